//! SQL for parts of the server that are no socket: the console runs its statements here.
//!
//! ```text
//! Ask ──> a session of its own, as the role that was proven ──> statements, rows as text ──> Answer
//!          (the sessions' runtime; a slot of max_connections)     |
//!          whoever asks stops waiting, or cancels ────────────────+──> the statement ends
//! ```
//!
//! # Invariants
//! - What is asked runs in the session layer that clients of the Postgres port have, as the role
//!   named: rights bind, limits hold, `pg_stat_activity` shows it.
//! - An [`Ask`] that may only read cannot write, whatever its text says
//!   (`SessionOptions::read_only`).
//! - A session lives for one [`Ask`]: nothing stays open behind it. A transaction left open is
//!   rolled back, and the answer says so.
//! - Time, rows and bytes of an answer are bounded by the [`Ask`].
//!
//! # On failure
//! An SQL error is part of the answer, beside the results before it.
//!
//! # Limits
//! COPY to and from the client is refused: there is no stream to the client.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use telesto_common::Env;
use telesto_sql::session::audit::{Audit, AuditClass};
use telesto_sql::types::TextStyle;
use telesto_sql::{
    Error, Notice, Session, SessionOptions, SqlEngine, SqlState, SqlType, TransactionStatus,
};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::access_rules::NotOverHttp;
use crate::attempts::{Door, TooMany};
use crate::audit::{Event, SessionAudit, Stranger, Who};
use crate::auth::{self, Verifier, WRONG_PASSWORD_DELAY};
use crate::clients::Clients;
use crate::collect::Collect;
use crate::config::{Auth, ServerConfig};
use crate::http::Peer;
use crate::wire::of_connection;
use crate::wire::place::Place;
use crate::wire::stream::Stop;
use crate::wire::values;

/// Bytes of the words that tell what a run cost.
const COST_BYTES: usize = 64 << 10;
/// What log-ins of the console are called in records.
const CONSOLE: &str = "telesto console";

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The role: authenticated, or merely stated where everyone is trusted.
    pub user: String,
    /// The role that was authenticated: another one under its name is refused. `None` where nobody
    /// is asked for a password.
    pub role: Option<u32>,
    /// Whose address the request comes from, for records.
    pub client: SocketAddr,
    /// What `pg_stat_activity` shows.
    pub application: &'static str,
    /// Statements, separated by semicolons: a simple query.
    pub sql: String,
    /// Whether its transactions may write.
    pub may_write: bool,
    /// Time for all of it.
    pub timeout: Duration,
    /// Rows of each result.
    pub max_rows: usize,
    /// Bytes of all values, as JSON has them.
    pub max_bytes: usize,
    /// Ends the statement under way.
    pub cancel: CancellationToken,
}

/// One statement's result.
#[derive(Clone, Debug, Default)]
pub struct Answered {
    /// Columns: name and type.
    pub columns: Vec<(String, SqlType)>,
    /// Values as text; `None` is NULL.
    pub rows: Vec<Vec<Option<String>>>,
    /// PostgreSQL's command tag: of a write it tells all rows that were written, whichever are
    /// here.
    pub tag: String,
    /// There were more rows than were asked for, or more bytes.
    pub cut: bool,
}

/// What came of an [`Ask`].
#[derive(Debug, Default)]
pub struct Answer {
    /// Results, in order.
    pub results: Vec<Answered>,
    /// Results of further statements, which were left out.
    pub left_out: usize,
    /// Notices and warnings.
    pub notices: Vec<Notice>,
    /// Why it ended early.
    pub error: Option<Error>,
    /// How long it took.
    pub took: Duration,
    /// What it asked of the bucket, in words with dollars.
    pub cost: String,
    /// A transaction was left open and was rolled back.
    pub rolled_back: bool,
}

/// Who was let in: the role, and what it was proven against. It holds until the role has another
/// password, may not log in any more, or is gone; whoever is made anew under its name has not
/// proven anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The role's OID.
    pub role: u32,
    verifier: Verifier,
}

/// What came of a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proven {
    /// It is wrong, or there is no such role.
    No,
    /// It is right.
    By(Proof),
    /// Nobody is asked for one.
    NotAsked,
}

/// Why nothing was run.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Every session that is allowed is taken.
    #[error("all {0} sessions are taken; close some, or raise --max-connections")]
    Sessions(usize),
    /// The server stops.
    #[error("the server is stopping; connect to another node")]
    Stopping,
}

/// Why nobody is let in, whatever the password.
#[derive(Debug, thiserror::Error)]
pub enum NotAsked {
    /// Too many were wrong.
    #[error(transparent)]
    TooMany(TooMany),
    /// The rules of entrance.
    #[error(transparent)]
    NoRule(NotOverHttp),
    /// Too many passwords are being proven.
    #[error("too many passwords are being proven at once; try again shortly")]
    Busy,
    /// No record of the log-in can be kept, and one is wanted.
    #[error("{0}")]
    Unrecorded(Error),
}

/// The way in.
#[derive(Clone, Debug)]
pub struct Inside {
    env: Env,
    engine: Arc<SqlEngine>,
    config: Arc<ServerConfig>,
    clients: Arc<Clients>,
    stop: Stop,
}

impl Inside {
    /// Of the server with these parts.
    #[must_use]
    pub fn new(
        env: Env,
        engine: Arc<SqlEngine>,
        config: Arc<ServerConfig>,
        clients: Arc<Clients>,
        stop: Stop,
    ) -> Self {
        Self { env, engine, config, clients, stop }
    }

    /// The seams.
    #[must_use]
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// The server's configuration.
    #[must_use]
    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// What came of `password` for `user`: by the verification of the Postgres port, which asks
    /// nobody for a password where everyone is trusted. A wrong one, and a user who does not exist,
    /// take as long to be refused as there.
    ///
    /// # Errors
    /// [`NotAsked`]: nothing is told of the password.
    pub async fn proves(
        &self,
        user: &str,
        password: String,
        from: Peer,
    ) -> Result<Proven, NotAsked> {
        let Auth::Scram(users) = &self.config.auth else { return Ok(Proven::NotAsked) };
        let peer = from.address;
        if let Some(rules) = &self.config.access
            && let Err(why) = rules.over_http(peer.ip(), from.encrypted, user)
        {
            let what = format!("log-in refused: {why}");
            self.tell_stranger((user, peer), (Stranger::TurnedAway, &what), "28000").await;
            return Err(NotAsked::NoRule(NotOverHttp { user: user.to_owned(), why }));
        }
        let Ok(_place) = self.clients.proving.try_acquire() else { return Err(NotAsked::Busy) };
        let limited = async |refused| {
            let what = "log-in refused: too many failed ones";
            self.tell_stranger((user, peer), (Stranger::TurnedAway, what), "28000").await;
            Err(NotAsked::TooMany(refused))
        };
        let attempt = match self.clients.attempts.begin(Door::Http, user, peer.ip()) {
            Ok(attempt) => attempt,
            Err(refused) => return limited(refused).await,
        };
        // A role that cannot be looked up now is nobody's.
        let right = match self.engine.reach_of(user).await {
            Ok((known, reach)) => {
                let verifier = users.verifier_of(user, &known);
                // Derived for nobody as well: the time must not tell who exists.
                let right = auth::proves(&self.env, verifier.clone(), password).await;
                reach.role.filter(|_| right).map(|role| Proof { role, verifier })
            }
            Err(_) => None,
        };
        let proven = match attempt.judge(right.is_some()) {
            Ok(_) => right,
            Err(refused) => return limited(refused).await,
        };
        if proven.is_none() {
            let what = "log-in refused: wrong password, or no such user";
            self.tell_stranger((user, peer), (Stranger::Guessed, what), "28P01").await;
            self.env.clock.sleep(WRONG_PASSWORD_DELAY).await;
        } else if let Some(audit) = self.audit(user, CONSOLE, peer) {
            let event = of_connection("password proven", Some(SqlState::SUCCESS));
            audit.must_tell(event).await.map_err(NotAsked::Unrecorded)?;
        }
        Ok(proven.map_or(Proven::No, Proven::By))
    }

    /// Whether what `user` has proven still holds.
    ///
    /// # Errors
    /// Those of looking it up; an [`Ask`] then fails as well, which looks at the role for itself.
    pub async fn holds(&self, user: &str, proof: &Proof) -> telesto_sql::Result<bool> {
        let Auth::Scram(users) = &self.config.auth else { return Ok(false) };
        let (known, reach) = self.engine.reach_of(user).await?;
        let same = reach.role == Some(proof.role);
        Ok(same && users.verifier_of(user, &known) == proof.verifier)
    }

    async fn tell_stranger(
        &self,
        (user, peer): (&str, SocketAddr),
        (stranger, what): (Stranger, &str),
        state: &'static str,
    ) {
        if let Some(audit) = self.audit(user, CONSOLE, peer) {
            audit.tell_stranger(stranger, of_connection(what, Some(SqlState(state)))).await;
        }
    }

    fn audit(
        &self,
        user: &str,
        application: &str,
        client: SocketAddr,
    ) -> Option<Arc<SessionAudit>> {
        let log = self.config.audit.as_ref()?;
        let who = Who {
            user: user.to_owned(),
            client: Some(client),
            door: Door::Http,
            application: application.to_owned(),
            database: String::new(),
        };
        Some(SessionAudit::new(log, who))
    }

    /// Runs `ask` to its end. Who stops waiting ends it.
    ///
    /// # Errors
    /// [`Refused`]; errors of SQL are in the answer.
    pub async fn run(&self, ask: Ask) -> Result<Answer, Refused> {
        if self.stop.drain.is_cancelled() {
            return Err(Refused::Stopping);
        }
        let Ok(permit) = Arc::clone(&self.clients.sessions).try_acquire_owned() else {
            self.clients.metrics.refused.increment(1);
            return Err(Refused::Sessions(self.config.limits.max_connections));
        };
        let (mut reply, answer) = oneshot::channel();
        let inside = self.clone();
        let task = async move {
            let metrics = inside.clients.metrics.clone();
            metrics.sessions_opened.increment(1);
            metrics.sessions.increment(1);
            let run = AssertUnwindSafe(inside.answer(ask)).catch_unwind();
            let answered = tokio::select! {
                biased;
                answered = run => Some(answered),
                // Whoever asked is gone: dropping the run ends its session.
                () = reply.closed() => None,
            };
            metrics.sessions.decrement(1);
            drop(permit);
            let answer = match answered {
                Some(Ok(answer)) => answer,
                Some(Err(_)) => {
                    metrics.panics.increment(1);
                    let text = "the statement ended because of an internal error";
                    let error = Error::new(SqlState::INTERNAL_ERROR, text)
                        .hint("The server's log has the place: please report it.");
                    Answer { error: Some(error), ..Answer::default() }
                }
                None => return,
            };
            // Whoever asked may have left just now.
            let _ = reply.send(answer);
        };
        self.env.tasks.spawn_session("console session", Box::pin(task));
        answer.await.map_err(|_| Refused::Stopping)
    }

    async fn answer(&self, ask: Ask) -> Answer {
        let begun = self.env.clock.monotonic();
        let timeout = ask.timeout.as_millis().to_string();
        let audit = self.audit(&ask.user, ask.application, ask.client);
        let options = SessionOptions {
            user: ask.user.clone(),
            proven: matches!(self.config.auth, Auth::Scram(_)),
            role: ask.role,
            application_name: ask.application.to_owned(),
            parameters: vec![("statement_timeout".to_owned(), timeout)],
            read_only: !ask.may_write,
            audit: audit.clone().map(|audit| audit as Arc<dyn Audit>),
            ..SessionOptions::default()
        };
        let mut session = match self.engine.session(options).await {
            Ok(session) => session,
            Err(error) => return Answer { error: Some(error), ..Answer::default() },
        };
        let registered = self.clients.cancels.register(&self.env, false, session.cancel_handle());
        session.set_backend_pid(registered.pid);
        let style = values::style(session.settings(), 0);
        let mut sink = Collect::new(style, ask.max_rows, ask.max_bytes);
        let ran = self.execute(&mut session, &ask, &mut sink).await;
        let mut answer = sink.ended(ran);
        if let (Some(audit), Some(error)) = (&audit, &answer.error)
            && error.code() == SqlState::INSUFFICIENT_PRIVILEGE
        {
            let what = session.recent_text();
            let role = Some(session.settings().current_user.as_str());
            let state = Some(error.code());
            audit.tell(Event { class: AuditClass::Denied, what: &what, role, state }).await;
        }
        answer.rolled_back = session.transaction_status() != TransactionStatus::Idle;
        answer.notices = session.take_notices();
        answer.took = self.env.clock.monotonic().saturating_sub(begun);
        if answer.error.is_some() {
            self.clients.metrics.failures.increment(1);
        }
        let rows: usize = answer.results.iter().map(|result| result.rows.len()).sum();
        self.clients.metrics.rows.increment(rows as u64);
        let failure = answer.error.as_ref().map(Error::code);
        self.clients.metrics.ran(session.take_wrote(), answer.took, failure);
        answer.cost = cost(&mut session).await;
        session.close();
        answer
    }

    /// Runs the text, with its end watched: the time for all of it, a cancel, the server's stop.
    async fn execute(
        &self,
        session: &mut Session,
        ask: &Ask,
        sink: &mut Collect,
    ) -> telesto_sql::Result<()> {
        let handle = session.cancel_handle();
        let computing = Arc::clone(&self.clients.computing);
        let mut place = Place::new(self.env.clone(), handle.clone(), computing);
        let mut work = session.execute_simple(&ask.sql, sink);
        let mut work = std::future::poll_fn(|context| {
            place.poll(context, |context| work.as_mut().poll(context))
        });
        let mut over = self.env.clock.sleep(ask.timeout);
        let (mut timed_out, mut cancelled) = (false, false);
        loop {
            tokio::select! {
                biased;
                done = &mut work => {
                    return match (done, timed_out && !cancelled) {
                        (Err(error), true) if is_cancelled(&error) => Err(over_time(ask)),
                        (done, _) => done,
                    };
                }
                () = ask.cancel.cancelled(), if !cancelled => {
                    cancelled = true;
                    handle.cancel();
                }
                () = &mut over, if !timed_out => {
                    timed_out = true;
                    handle.cancel();
                }
                () = self.stop.kill.cancelled() => {
                    return Err(Error::new(SqlState::ADMIN_SHUTDOWN, "the server is stopping"));
                }
            }
        }
    }
}

fn is_cancelled(error: &Error) -> bool {
    error.code() == SqlState::QUERY_CANCELED
}

/// What ended a run that nobody cancelled.
fn over_time(ask: &Ask) -> Error {
    let text = format!("canceling statement: the run took its {} ms", ask.timeout.as_millis());
    Error::new(SqlState::QUERY_CANCELED, text).hint("Give it more time, or let it do less.")
}

/// What the statements asked of the bucket.
async fn cost(session: &mut Session) -> String {
    let mut sink = Collect::new(TextStyle::default(), 1, COST_BYTES);
    // A failed transaction answers no question; then there is nothing to tell.
    if session.execute_simple("SHOW telesto.last_statement_cost", &mut sink).await.is_err() {
        return String::new();
    }
    let first =
        sink.answer.results.into_iter().next().and_then(|result| result.rows.into_iter().next());
    first.and_then(|row| row.into_iter().next().flatten()).unwrap_or_default()
}
