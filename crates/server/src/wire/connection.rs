//! One session's message loop.
//!
//! ```text
//! read a frame ──> simple query ────────────────> results, ReadyForQuery
//!      ^      └──> Parse Bind Describe Execute ──> replies (kept until Sync, Flush or an empty input)
//!      |           Sync ───────────────────────> commit the implicit transaction, ReadyForQuery
//!      └── output is sent only when no whole message is left to work on
//! ```
//!
//! # Invariants
//! - ReadyForQuery follows every simple query and every Sync, exactly once, with the transaction's
//!   state.
//! - After an error in the extended protocol everything up to Sync is read and ignored.
//! - A reply that is ready is sent before the loop waits for more input.
//!
//! # On failure
//! SQL errors go to the client and the loop goes on; an [`End`] ends it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use telesto_common::Env;
use telesto_common::admission::Gate;
use telesto_sql::session::Settings;
use telesto_sql::session::audit::{Audit as _, AuditClass};
use telesto_sql::session::passing::{PreparedState, SessionState};
use telesto_sql::types::TextStyle;
use telesto_sql::{
    CancelHandle, Ending, Error, Prepared, ResultSink, Session, SqlState, StatementResult,
    TransactionStatus,
};
use tokio::sync::Mutex;

use crate::audit::{Event, SessionAudit};
use crate::clients::Clients;
use crate::metrics::WireMetrics;
use crate::wire::admission::turned_away;
use crate::wire::backend::Status;
use crate::wire::extended::Extended;
use crate::wire::frontend::{self, Frontend, ProtocolError};
use crate::wire::report::{Severity, error_fields, notice_fields};
use crate::wire::rows::{Cursor, FLUSH_BYTES, Failure, copy_in, copy_out, describe};
use crate::wire::stream::{End, Wire};
use crate::wire::values;

/// What [`End::Stalled`] names when a session idles outside a transaction.
pub const IDLE: &str = "a message from an idle client";
/// What [`End::Stalled`] names when a session idles inside a transaction.
pub const IDLE_IN_TRANSACTION: &str = "a message from a client that is idle in a transaction";

/// What [`End::Stalled`] names when a session idles longer than its `idle_session_timeout`.
pub const IDLE_SESSION: &str = "idle-session timeout";
/// What [`End::Stalled`] names when a session idles in a transaction longer than its
/// `idle_in_transaction_session_timeout`.
pub const IDLE_TRANSACTION_SESSION: &str = "idle-in-transaction timeout";

/// What a session on its socket is taken apart into, for another process.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) socket: OwnedFd,
    pub(super) unnamed: Option<PreparedState>,
    pub(super) state: SessionState,
}

/// One client's session on its socket.
#[derive(Debug)]
pub struct Connection {
    pub(super) env: Env,
    pub(super) wire: Wire,
    pub(super) session: Session,
    handle: CancelHandle,
    pub(super) metrics: WireMetrics,
    gate: Gate,
    pub(super) extended: Extended,
    /// When the first write began that the next Sync commits, and the failure that ended it.
    pub(super) writing: Option<(Duration, Option<SqlState>)>,
    /// An error happened in the extended protocol: ignore everything up to Sync.
    skipping: bool,
    /// Extended messages have come since the last ReadyForQuery.
    in_pipeline: bool,
    /// The style of values and the settings it was made of.
    styled: Option<(Arc<Settings>, TextStyle)>,
    /// The settings whose reported values the client knows.
    told: Option<Arc<Settings>>,
    /// Who keeps records of what is refused, and statements that were refused and are not told yet.
    audit: Option<Arc<SessionAudit>>,
    denied: Vec<String>,
    /// What was not told of a commit, because the session is to end.
    in_doubt: Option<Error>,
}

impl Connection {
    /// A session that has been told ReadyForQuery.
    #[must_use]
    pub fn new(env: Env, wire: Wire, session: Session, clients: &Clients) -> Self {
        Self {
            env,
            wire,
            handle: session.cancel_handle(),
            session,
            metrics: clients.metrics.clone(),
            gate: clients.gate.clone(),
            extended: Extended::default(),
            writing: None,
            skipping: false,
            in_pipeline: false,
            styled: None,
            told: None,
            audit: None,
            denied: Vec::new(),
            in_doubt: None,
        }
    }

    /// With records kept of what is refused.
    #[must_use]
    pub fn audited(self, audit: Option<Arc<SessionAudit>>) -> Self {
        let audit = audit.filter(|audit| audit.wants(AuditClass::Denied));
        Self { audit, ..self }
    }

    /// Keeps records of the statements that were refused.
    async fn tell_denied(&mut self) {
        let Some(audit) = &self.audit else { return };
        let role = &self.session.settings().current_user;
        for what in self.denied.drain(..) {
            let state = Some(SqlState::INSUFFICIENT_PRIVILEGE);
            let event = Event { class: AuditClass::Denied, what: &what, role: Some(role), state };
            audit.tell(event).await;
        }
    }

    /// Ends the session; the socket is left for the goodbye, with what it has to say of a commit
    /// whose outcome nobody waited for.
    #[must_use]
    pub fn finish(mut self) -> (Wire, Option<Error>) {
        self.extended.clear();
        let in_doubt = self.in_doubt.take().or_else(|| self.session.in_doubt());
        self.session.close();
        (self.wire, in_doubt)
    }

    /// Begins with a statement without a name: the session has been another process's.
    pub(super) fn goes_on_with(&mut self, unnamed: Option<Arc<Prepared>>) {
        self.extended.begin_with(unnamed);
    }

    /// Ends the session here, for another process to go on with it.
    ///
    /// # Errors
    /// The socket to say goodbye on, when it is still there, and why the session is not passed.
    pub(super) fn pass(mut self) -> Result<Parts, (Option<Box<Wire>>, String)> {
        let state = if self.extended.has_portals() || self.in_pipeline || self.skipping {
            Err("a message of it is under way".to_owned())
        } else {
            self.session.state().map_err(|held| held.to_string())
        };
        let unnamed = self.extended.unnamed().map(|prepared| PreparedState::of(prepared));
        self.extended.clear();
        self.session.close();
        let state = match state {
            Ok(state) => state,
            Err(why) => return Err((Some(Box::new(self.wire)), why)),
        };
        match self.wire.into_descriptor() {
            Ok(socket) => Ok(Parts { socket, unnamed, state }),
            Err((wire, why)) => Err((wire, why.to_owned())),
        }
    }

    /// Serves until the connection ends.
    pub async fn run(&mut self) -> End {
        loop {
            let stepped = self.step().await;
            if !self.denied.is_empty() {
                self.tell_denied().await;
            }
            if let Err(end) = stepped {
                return end;
            }
            // Ten bytes ask for a description of a thousand columns: what waits for the rest of the
            // input is bounded by itself.
            if self.wire.output.len() >= FLUSH_BYTES
                && let Err(end) = self.wire.flush().await
            {
                return end;
            }
        }
    }

    async fn step(&mut self) -> Result<(), End> {
        self.goes_on()?;
        let idle =
            !self.in_pipeline && self.session.transaction_status() == TransactionStatus::Idle;
        let (limit, what) = self.may_idle(idle);
        let (kind, body) = if idle && self.session.listens() {
            self.frame_or_notifications(limit, what).await?
        } else {
            self.wire.frame(limit, what, idle).await?
        };
        let message = match frontend::parse(kind, &body) {
            Ok(message) => message,
            Err(error) => {
                let code = if error.to_string().contains("UTF8") {
                    SqlState::CHARACTER_NOT_IN_REPERTOIRE
                } else {
                    SqlState::PROTOCOL_VIOLATION
                };
                let error = Error::new(code, error.to_string());
                self.session.fail();
                return self.refuse(kind, &error).await;
            }
        };
        let begins = idle
            && !self.skipping
            && matches!(
                message,
                Frontend::Query(_)
                    | Frontend::Parse { .. }
                    | Frontend::Bind(_)
                    | Frontend::Execute { .. }
            );
        if begins && let Some(error) = turned_away(&self.env, &self.gate) {
            return self.refuse(kind, &error).await;
        }
        match message {
            Frontend::Terminate => Err(End::Done),
            // Nobody asked for one: what comes next is of another conversation.
            Frontend::Password(_) => Err(End::Protocol(ProtocolError::UnknownType(kind))),
            Frontend::Sync => self.sync().await,
            // What is left of a COPY that failed, as PostgreSQL swallows it.
            Frontend::CopyData(_) | Frontend::CopyDone | Frontend::CopyFail(_) => Ok(()),
            _ if self.skipping => Ok(()),
            Frontend::Query(sql) => self.simple(sql).await,
            Frontend::Flush => self.wire.flush().await,
            Frontend::FunctionCall(_) => {
                self.session.fail();
                let error = Error::unsupported("a FunctionCall message").hint("Use SELECT.");
                self.refuse(kind, &error).await
            }
            message => {
                self.in_pipeline = true;
                match self.extended_message(message).await {
                    Ok(()) => Ok(()),
                    Err(Failure::Sql(error)) => {
                        self.report(&error);
                        self.skipping = true;
                        Ok(())
                    }
                    Err(Failure::End(end)) => Err(end),
                }
            }
        }
    }

    /// How long the client may say nothing, and what it is told otherwise: the node's limit or the
    /// session's own, whichever is shorter.
    fn may_idle(&self, idle: bool) -> (Option<Duration>, &'static str) {
        let limits = self.wire.limits();
        let (limit, what, own) = match idle {
            true => (limits.idle, IDLE, IDLE_SESSION),
            false => (limits.idle_in_transaction, IDLE_IN_TRANSACTION, IDLE_TRANSACTION_SESSION),
        };
        // Between the messages of a pipeline a session does not idle, as in PostgreSQL.
        if self.in_pipeline {
            return (limit, what);
        }
        match self.session.settings().idle_timeout(!idle) {
            Some(asked) if limit.is_none_or(|limit| asked < limit) => (Some(asked), own),
            _ => (limit, what),
        }
    }

    /// The next frame; meanwhile notifications go out as they come. They begin the wait for an idle
    /// client anew.
    async fn frame_or_notifications(
        &mut self,
        limit: Option<Duration>,
        what: &'static str,
    ) -> Result<(u8, BytesMut), End> {
        loop {
            if let Some(frame) = self.wire.buffered_frame()? {
                return Ok(frame);
            }
            self.notifications()?;
            // To its end: a client that does not read is noticed there, while its queue is bounded.
            self.wire.flush().await?;
            tokio::select! {
                biased;
                frame = self.wire.frame(limit, what, true) => return frame,
                () = self.session.notified() => {}
            }
        }
    }

    fn notifications(&mut self) -> Result<(), End> {
        for notification in self.session.take_notifications().map_err(End::Lost)? {
            self.wire.output.notification(&notification);
        }
        Ok(())
    }

    /// Answers a message that could not be taken.
    async fn refuse(&mut self, kind: u8, error: &Error) -> Result<(), End> {
        self.report(error);
        match kind {
            b'S' => self.sync().await,
            b'Q' | b'F' => self.ready(),
            _ => {
                self.in_pipeline = true;
                self.skipping = true;
                Ok(())
            }
        }
    }

    pub(super) fn report(&mut self, error: &Error) {
        self.metrics.failures.increment(1);
        if self.audit.is_some() && error.code() == SqlState::INSUFFICIENT_PRIVILEGE {
            self.denied.push(self.session.recent_text());
        }
        if self.handle.ending().is_some() {
            // The goodbye says why, and what became of a commit is not forgotten over it.
            if error.code() == SqlState::TRANSACTION_RESOLUTION_UNKNOWN {
                self.in_doubt = Some(error.clone());
            }
            return;
        }
        self.notices();
        self.wire.output.error(error_fields(error, Severity::Error));
    }

    pub(super) fn notices(&mut self) {
        for notice in self.session.take_notices() {
            self.wire.output.notice(notice_fields(&notice));
        }
    }

    /// Fails when the session is to end: nothing more is told to the client but that.
    fn goes_on(&self) -> Result<(), End> {
        match self.handle.ending() {
            None => Ok(()),
            Some(Ending::Terminated) => Err(End::Terminated),
            Some(Ending::ClientGone) => Err(End::Gone),
        }
    }

    fn ready(&mut self) -> Result<(), End> {
        self.goes_on()?;
        self.notices();
        // Comparing every reported setting costs more than a point read: only when one was set.
        if !self.told.as_ref().is_some_and(|told| Arc::ptr_eq(told, self.session.settings())) {
            for (name, value) in self.session.take_parameter_changes() {
                self.wire.output.parameter_status(&name, &value);
            }
            self.told = Some(Arc::clone(self.session.settings()));
        }
        self.in_pipeline = false;
        self.skipping = false;
        if self.session.transaction_status() == TransactionStatus::Idle {
            self.notifications()?;
        }
        self.wire.output.ready(match self.session.transaction_status() {
            TransactionStatus::Idle => Status::Idle,
            TransactionStatus::InTransaction => Status::Transaction,
            TransactionStatus::Failed => Status::Failed,
        });
        Ok(())
    }

    /// How values are written and read now. Made anew only when a setting has changed.
    pub(super) fn style(&mut self) -> TextStyle {
        let settings = self.session.settings();
        if !self.styled.as_ref().is_some_and(|(of, _)| Arc::ptr_eq(of, settings)) {
            self.styled = Some((Arc::clone(settings), values::style(settings, 0)));
        }
        self.styled.as_ref().map_or_else(TextStyle::default, |(_, style)| *style)
    }

    async fn sync(&mut self) -> Result<(), End> {
        if self.session.transaction_status() == TransactionStatus::Idle {
            // Portals of an implicit transaction end with it, before it commits.
            self.drop_portals();
            let committed = self.wire.during(self.session.sync()).await?;
            if let Err(error) = committed {
                self.report(&error);
                if let Some((_, failure)) = &mut self.writing {
                    *failure = Some(error.code());
                }
            }
        } else if let Err(error) = self.wire.during(self.session.configure()).await? {
            self.report(&error);
        }
        if let Some((begun, failure)) = self.writing.take() {
            self.session.take_wrote();
            self.metrics.took(true, self.env.clock.monotonic().saturating_sub(begun), failure);
        }
        self.ready()
    }

    async fn simple(&mut self, sql: &str) -> Result<(), End> {
        let begun = self.env.clock.monotonic();
        self.extended.drop_unnamed();
        self.session.close_portal("");
        let done = match self.set_portals_aside(Some(sql)).await {
            Ok(()) => self.run_simple(sql).await,
            Err(failure) => Err(failure),
        };
        let failure = done.as_ref().err().and_then(Failure::state);
        match done {
            Ok(()) => {}
            Err(Failure::Sql(error)) => self.report(&error),
            Err(Failure::End(end)) => return Err(end),
        }
        if self.session.transaction_status() == TransactionStatus::Idle {
            self.drop_portals();
        }
        self.ready()?;
        let took = self.env.clock.monotonic().saturating_sub(begun);
        self.metrics.ran(self.session.take_wrote(), took, failure);
        Ok(())
    }

    async fn run_simple(&mut self, sql: &str) -> Result<(), Failure> {
        let style = self.style();
        let metrics = self.metrics.clone();
        // The sink is inside of the work: what it does is polled where the work is.
        let mut place = self.wire.take_place();
        let wire = Mutex::new(&mut self.wire);
        let mut sink = Sink {
            wire: &wire,
            style,
            metrics,
            binary: false,
            end: None,
            owed: None,
            holds: false,
        };
        let executed = {
            let mut work = self.session.execute_simple(sql, &mut sink);
            let mut work = std::future::poll_fn(|context| match &mut place {
                Some(place) => place.poll(context, |context| work.as_mut().poll(context)),
                None => work.as_mut().poll(context),
            });
            // Whoever holds the socket watches it: the sink while it sends, this watch meanwhile.
            let watch = std::future::poll_fn(|context| match wire.try_lock() {
                Ok(mut wire) => wire.poll_gone(context),
                Err(_) => std::task::Poll::Pending,
            });
            let mut watch = std::pin::pin!(watch);
            tokio::select! {
                biased;
                executed = &mut work => executed,
                end = &mut watch => return Err(Failure::End(end)),
            }
        };
        let (ended, owed) = (sink.end, sink.owed.filter(|_| executed.is_ok() || sink.holds));
        self.wire.give_place(place);
        if let Some(owed) = owed {
            owed.tell(&mut self.wire);
        }
        match ended {
            Some(end) => Err(Failure::End(end)),
            None => Ok(executed?),
        }
    }
}

/// Sends the results of a simple query.
struct Sink<'a, 'w> {
    wire: &'a Mutex<&'w mut Wire>,
    style: TextStyle,
    metrics: WireMetrics,
    /// The next rows are wanted in binary.
    binary: bool,
    /// Set when the connection ended under a result.
    end: Option<End>,
    /// What is to be told of the last statement. Its transaction may still have to commit, and who
    /// was told that a statement is complete takes it for done.
    owed: Option<Complete>,
    /// It is told whatever comes: another statement has begun behind it.
    holds: bool,
}

/// The CommandComplete of a statement.
enum Complete {
    Rows(&'static str, u64),
    Command(String),
    Copied(u64),
}

impl Complete {
    fn tell(self, wire: &mut Wire) {
        match self {
            Self::Rows(tag, rows) => wire.output.rows_complete(tag, rows),
            Self::Command(tag) => wire.output.command_complete(&tag),
            Self::Copied(rows) => wire.output.command_complete(&format!("COPY {rows}")),
        }
    }
}

#[async_trait]
impl ResultSink for Sink<'_, '_> {
    async fn result(&mut self, result: StatementResult) -> telesto_sql::Result<()> {
        let mut wire = self.wire.lock().await;
        if let Some(before) = self.owed.take() {
            before.tell(&mut wire);
        }
        self.holds = false;
        let sent = send_whole(&mut wire, result, &self.style, self.binary, &self.metrics).await;
        match sent {
            Ok(complete) => {
                self.owed = complete;
                Ok(())
            }
            Err(Failure::Sql(error)) => Err(error),
            Err(Failure::End(end)) => {
                self.end = Some(end);
                // Never seen by anyone: it only makes the session stop.
                Err(Error::new(SqlState::ADMIN_SHUTDOWN, "the connection ended"))
            }
        }
    }

    fn begins(&mut self) {
        self.holds = true;
    }

    fn binary(&mut self, binary: bool) {
        self.binary = binary;
    }

    fn settings(&mut self, settings: &Arc<Settings>) {
        self.style = values::style(settings, 0);
    }
}

/// Sends a result to its end, in text format unless it is fetched from a binary cursor; all but
/// that it is complete.
async fn send_whole(
    wire: &mut Wire,
    result: StatementResult,
    style: &TextStyle,
    binary: bool,
    metrics: &WireMetrics,
) -> Result<Option<Complete>, Failure> {
    Ok(match result {
        StatementResult::Rows { columns, rows, tag } => {
            let formats = if binary { vec![1] } else { Vec::new() };
            describe(&mut wire.output, &columns, &formats);
            let mut cursor = Cursor::new(columns, formats, *style, rows);
            let (sent, _) = cursor.send(wire, 0).await?;
            metrics.rows.increment(sent);
            Some(Complete::Rows(tag, sent))
        }
        StatementResult::Command { tag } => Some(Complete::Command(tag)),
        StatementResult::Empty => {
            wire.output.empty_query();
            None
        }
        StatementResult::CopyIn { format, columns, target } => {
            Some(Complete::Copied(copy_in(wire, format, columns, target).await?))
        }
        StatementResult::CopyOut { format, columns, data } => {
            Some(Complete::Copied(copy_out(wire, format, columns, data).await?))
        }
    })
}
