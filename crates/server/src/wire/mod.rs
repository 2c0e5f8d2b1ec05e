//! The Postgres wire: accepting, admission, one task a connection.
//!
//! # Purpose
//! `pgwire` gives message types, backend encoding and SCRAM; the loop is ours (`connection`),
//! because `pgwire`'s flushes every reply by itself, waits without bounds, and its decoder panics
//! on malformed messages.
//!
//! # Invariants
//! - At most `max_startups` sockets that have not authenticated and `max_connections` that have.
//! - A connection's panic ends that connection only.

pub mod admission;
mod authentication;
pub mod backend;
pub mod cancel;
pub mod connection;
mod extended;
pub mod frontend;
pub mod place;
pub mod report;
pub mod rows;
pub mod socket;
pub mod startup;
pub mod stream;
pub mod values;

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::startup::{BackendKeyData, SecretKey};
use telesto_common::Env;
use telesto_common::limits::MemoryBudget;
use telesto_sql::session::audit::{Audit, AuditClass};
use telesto_sql::{SessionOptions, SqlEngine, SqlState};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::attempts::Door;
use crate::audit::{Event, SessionAudit, Who};
use crate::clients::Clients;
use crate::config::{Auth, ServerConfig};
use crate::hand_over::{ClientState, PassedClient, Passport};
use crate::metrics::WireMetrics;
use crate::tls_shown;
use crate::wire::backend::Status;
use crate::wire::cancel::Registered;
use crate::wire::connection::{
    Connection, IDLE_IN_TRANSACTION, IDLE_SESSION, IDLE_TRANSACTION_SESSION, Parts,
};
use crate::wire::frontend::ProtocolError;
use crate::wire::place::ForRegions;
use crate::wire::report::{Severity, error_fields, notice_fields};
use crate::wire::socket::Socket;
use crate::wire::startup::{Client, Started, fatal};
use crate::wire::stream::{End, Stop, Stream, Wire};

const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long a new socket waits for one of the places of those that have not authenticated.
const STARTUP_WAIT: Duration = Duration::from_millis(500);

/// What every connection shares.
#[derive(Debug)]
pub struct WireServer {
    env: Env,
    engine: Arc<SqlEngine>,
    config: Arc<ServerConfig>,
    stop: Stop,
    clients: Arc<Clients>,
    budget: Arc<MemoryBudget>,
    startups: Arc<Semaphore>,
}

impl WireServer {
    /// Over `engine`.
    #[must_use]
    pub fn new(
        env: Env,
        engine: Arc<SqlEngine>,
        config: Arc<ServerConfig>,
        clients: Arc<Clients>,
        stop: Stop,
    ) -> Self {
        let limits = &config.limits;
        Self {
            env,
            engine,
            stop,
            clients,
            budget: MemoryBudget::new(limits.wire_memory_bytes),
            startups: Arc::new(Semaphore::new(limits.max_startups)),
            config,
        }
    }

    /// Serves until the server drains, then waits for the sessions to end. Begins with clients that
    /// another process served.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, passed: Vec<PassedClient>) {
        if self.engine.has_peers() {
            self.clients.cancels.begin_anywhere(&self.env);
            let cancels = Arc::clone(&self.clients.cancels);
            self.engine.cancelled_by(Box::new(move |pid, key| cancels.cancel(pid, key)));
        }
        let host = ForRegions { env: self.env.clone(), clients: Arc::clone(&self.clients) };
        self.engine.hosted_by(Arc::new(host));
        // First: a new client must not get the process id of one that is known by it.
        self.clients.cancels.begin_above(passed.iter().map(|client| client.state.pid));
        for client in passed {
            let server = Arc::clone(&self);
            let session = async move { server.go_on(client).await };
            self.env.tasks.spawn_session("session", Box::pin(session));
        }
        if let Some(admission) = self.clients.admission() {
            admission::probe(&self.env, admission, self.stop.drain.clone());
        }
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.stop.drain.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let (socket, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, most likely: give the others time to close theirs.
                    tracing::warn!(%error, "accept failed");
                    self.env.clock.sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            // A wave of clients waits in the system's queue, not for long: whoever fills the places
            // with silence must not keep others out.
            let by = self.env.deadline(STARTUP_WAIT);
            let place = Arc::clone(&self.startups).acquire_owned();
            let Ok(Ok(startup)) = self.env.within(by, "a place to start", place).await else {
                self.clients.metrics.refused.increment(1);
                continue;
            };
            let server = Arc::clone(&self);
            self.env.spawn("connection", async move {
                if let Some((wire, client)) = server.start(socket, peer).await {
                    let env = server.env.clone();
                    let session = async move {
                        server.session((wire, startup), client, peer).await;
                    };
                    env.tasks.spawn_session("session", Box::pin(session));
                }
            });
        }
        drop(listener);
        // Every connection holds a permit: all back means all done. The caller bounds this wait.
        for (semaphore, all) in [
            (&self.startups, self.config.limits.max_startups),
            (&self.clients.sessions, self.config.limits.max_connections),
        ] {
            let _ = semaphore.acquire_many(u32::try_from(all).unwrap_or(u32::MAX)).await;
        }
    }

    async fn start(&self, socket: TcpStream, peer: SocketAddr) -> Option<(Wire, Client)> {
        // Without it small replies wait for the client's delayed acknowledgement.
        let _ = socket.set_nodelay(true);
        // Each wait of a start has its limit; all together have this one, or a byte at a time would
        // keep a place for days.
        let by = self.env.deadline(self.config.limits.startup * 2);
        let started = startup::start(self, socket, peer);
        let Ok(started) = self.env.within(by, "the start of a client", started).await else {
            self.clients.metrics.refused.increment(1);
            return None;
        };
        match started {
            Ok((wire, Started::Session(client))) => Some((wire, client)),
            Ok((wire, Started::Cancel { pid, secret })) => {
                if !self.clients.cancels.cancel(pid, &secret) {
                    // Of another node, perhaps: a load balancer knows nothing of sessions.
                    self.engine.cancel_elsewhere(pid, &secret).await;
                }
                wire.close().await;
                None
            }
            Err((wire, end)) => {
                if !matches!(end, End::Gone) {
                    self.clients.metrics.refused.increment(1);
                }
                if let Some(wire) = wire {
                    self.part(wire, end).await;
                }
                None
            }
        }
    }

    async fn session(
        &self,
        (mut wire, startup): (Wire, OwnedSemaphorePermit),
        client: Client,
        peer: SocketAddr,
    ) {
        if let Err(end) = wire.move_here() {
            return self.part(wire, end).await;
        }
        let Ok(_permit) = Arc::clone(&self.clients.sessions).try_acquire_owned() else {
            self.clients.metrics.refused.increment(1);
            let hint = "Close connections, use a pool, or raise --max-connections.";
            fatal(&mut wire.output, "53300", "sorry, too many clients already", Some(hint));
            wire.close().await;
            return;
        };
        // Not before: a server that ends waits for those that start, then for the sessions.
        drop(startup);
        let mut passport = Passport {
            user: client.user,
            database: client.database,
            application: String::new(),
            proven: matches!(self.config.auth, Auth::Scram(_)),
            password: Some(client.showed_password),
            peer,
        };
        let mut parameters = Vec::new();
        for (name, value) in client.settings {
            match name.as_str() {
                "application_name" => passport.application = value,
                _ => parameters.push((name, value)),
            }
        }
        let audit = self.audit_of(&passport);
        let encrypted = match wire.stream() {
            Stream::Tls(stream, _) => Some(Arc::new(tls_shown::of(stream.get_ref().1))),
            Stream::Plain(_) => None,
        };
        let options =
            SessionOptions { parameters, encrypted, ..options_of(&passport, audit.as_ref()) };
        let begun = async {
            let begun = self.engine.session(options).await;
            let Some(audit) = &audit else { return begun };
            match begun {
                Ok(session) => {
                    audit.must_tell(of_connection("log-in", Some(SqlState::SUCCESS))).await?;
                    Ok(session)
                }
                Err(error) => {
                    audit.tell(of_connection("log-in refused", Some(error.code()))).await;
                    Err(error)
                }
            }
        };
        let mut session = match wire.during(begun).await {
            Ok(Ok(session)) => session,
            Ok(Err(error)) => {
                wire.output.error(error_fields(&error, Severity::Fatal));
                wire.close().await;
                return;
            }
            Err(end) => return self.part(wire, end).await,
        };
        let handle = session.cancel_handle();
        wire.belongs_to(&handle, Arc::clone(&self.clients.computing));
        let registered = self.clients.cancels.register(&self.env, client.long_secret, handle);
        session.set_backend_pid(registered.pid);
        for (name, value) in session.take_parameter_changes() {
            wire.output.parameter_status(&name, &value);
        }
        let secret = SecretKey::Bytes(registered.secret.clone());
        let key = BackendKeyData::new(registered.pid, secret);
        wire.output.message(&PgWireBackendMessage::BackendKeyData(key));
        for notice in session.take_notices() {
            wire.output.notice(notice_fields(&notice));
        }
        wire.output.ready(Status::Idle);
        let connection =
            Connection::new(self.env.clone(), wire, session, &self.clients).audited(audit.clone());
        self.serve_session(connection, (passport, registered), audit).await;
    }

    /// Where records of a client go, if any are kept.
    fn audit_of(&self, passport: &Passport) -> Option<Arc<SessionAudit>> {
        let log = self.config.audit.as_ref()?;
        let who = Who {
            user: passport.user.clone(),
            client: Some(passport.peer),
            door: Door::Sql,
            application: passport.application.clone(),
            database: passport.database.clone(),
        };
        Some(SessionAudit::new(log, who))
    }

    /// Serves a session to its end, or until it is passed to the next process.
    async fn serve_session(
        &self,
        mut connection: Connection,
        (passport, registered): (Passport, Registered),
        audit: Option<Arc<SessionAudit>>,
    ) {
        self.clients.metrics.sessions_opened.increment(1);
        self.clients.metrics.sessions.increment(1);
        // Also counted back when the connection's task is dropped or panics.
        let _open = Open(&self.clients.metrics);
        // After a panic the session is closed and nothing else: no more is asked of its state.
        let end = match AssertUnwindSafe(connection.run()).catch_unwind().await {
            Ok(end) => end,
            Err(_) => {
                self.clients.metrics.panics.increment(1);
                End::Panicked
            }
        };
        let wire = if matches!(end, End::Draining) && self.stop.waiting.is_wanted() {
            match connection.pass() {
                Ok(Parts { socket, unnamed, state }) => {
                    let (pid, secret) = (registered.pid, registered.secret.to_vec());
                    let state = ClientState { passport, pid, secret, unnamed, session: state };
                    self.stop.waiting.push(PassedClient { socket, state });
                    return;
                }
                Err((wire, why)) => {
                    tracing::info!(user = passport.user, why, "a session is not passed: it ends");
                    wire.map(|wire| (*wire, None))
                }
            }
        } else {
            Some(connection.finish())
        };
        if let Some(audit) = audit {
            audit.tell(of_connection("session ended", Some(SqlState::SUCCESS))).await;
        }
        match wire {
            Some((mut wire, Some(in_doubt))) if end.is_told() => {
                wire.output.error(error_fields(&in_doubt, Severity::Fatal));
                wire.close().await;
            }
            Some((wire, _)) => self.part(wire, end).await,
            None => {}
        }
    }

    /// Goes on with a client that another process served up to now.
    async fn go_on(&self, client: PassedClient) {
        let PassedClient { socket, state } = client;
        let ClientState { mut passport, pid, secret, unnamed, session } = state;
        let Ok(socket) = Socket::from_descriptor(socket) else { return };
        let limits = self.config.limits.clone();
        let stream = Stream::Plain(socket);
        let mut wire =
            Wire::new(self.env.clone(), stream, limits, Arc::clone(&self.budget), &self.stop);
        let Ok(_permit) = Arc::clone(&self.clients.sessions).try_acquire_owned() else {
            return self.part(wire, End::Terminated).await;
        };
        let audit = self.audit_of(&passport);
        let shown = passport.showed_password();
        if !authentication::may_stay(self, &passport) {
            tracing::warn!(user = passport.user, "a session may not go on by this node's rules");
            if let Some(audit) = &audit {
                let state = Some(SqlState::INVALID_AUTHORIZATION);
                audit.tell(of_connection("session ended by new rules", state)).await;
            }
            return self.part(wire, End::Terminated).await;
        }
        // Where this process asks who somebody is, a name that no role has is nobody's.
        passport.proven = matches!(self.config.auth, Auth::Scram(_));
        passport.password = Some(shown);
        let options = options_of(&passport, audit.as_ref());
        let begun = async {
            let mut session = self.engine.session_again(options, session).await?;
            let unnamed = match &unnamed {
                Some(statement) => Some(session.prepare_again(statement).await?),
                None => None,
            };
            session.sync().await?;
            Ok::<_, telesto_sql::Error>((session, unnamed))
        };
        let (session, unnamed) = match wire.during(begun).await {
            Ok(Ok(begun)) => begun,
            Ok(Err(error)) => {
                tracing::warn!(user = passport.user, %error, "a session cannot go on: it ends");
                return self.part(wire, End::Terminated).await;
            }
            Err(end) => return self.part(wire, end).await,
        };
        let handle = session.cancel_handle();
        wire.belongs_to(&handle, Arc::clone(&self.clients.computing));
        let key = (pid, Bytes::from(secret));
        let Some(registered) = self.clients.cancels.register_again(key, handle) else {
            return self.part(wire, End::Terminated).await;
        };
        self.clients.metrics.sessions_passed.increment(1);
        let mut connection =
            Connection::new(self.env.clone(), wire, session, &self.clients).audited(audit.clone());
        connection.goes_on_with(unnamed);
        self.serve_session(connection, (passport, registered), audit).await;
    }

    /// Says goodbye as the end demands.
    async fn part(&self, mut wire: Wire, end: End) {
        let output = &mut wire.output;
        match end {
            End::Gone => return,
            End::Done => {}
            End::Draining | End::Killed | End::Terminated => {
                let text = "terminating connection due to administrator command";
                fatal(output, "57P01", text, Some("Connect again later, or to another node."));
            }
            End::Stalled(what @ (IDLE_SESSION | IDLE_TRANSACTION_SESSION)) => {
                let code = if what == IDLE_TRANSACTION_SESSION { "25P03" } else { "57P05" };
                fatal(output, code, &format!("terminating connection due to {what}"), None);
            }
            End::Stalled(what) => {
                self.clients.metrics.refused.increment(1);
                let text = format!("terminating connection: timeout while waiting for {what}");
                let code = if what == IDLE_IN_TRANSACTION { "25P03" } else { "57P05" };
                fatal(output, code, &text, None);
            }
            End::Protocol(error) => {
                self.clients.metrics.refused.increment(1);
                let code = match error {
                    ProtocolError::Length { .. } => "54000",
                    ProtocolError::UnknownType(_) | ProtocolError::Malformed { .. } => "08P01",
                };
                fatal(output, code, &error.to_string(), None);
            }
            End::Panicked => {
                let text = "terminating connection because of an internal error";
                fatal(
                    output,
                    "XX000",
                    text,
                    Some("The server's log has the place: please report it."),
                );
            }
            End::Lost(lost) => {
                tracing::warn!(?lost, "a listening session ends");
                output.error(error_fields(&lost.error(), Severity::Fatal));
            }
            End::Memory(error) => {
                self.clients.metrics.refused.increment(1);
                fatal(output, "53200", &error.to_string(), None);
            }
        }
        wire.close().await;
    }
}

/// How a session of this client begins, without the parameters that it gave.
fn options_of(passport: &Passport, audit: Option<&Arc<SessionAudit>>) -> SessionOptions {
    SessionOptions {
        user: passport.user.clone(),
        proven: passport.proven,
        database: passport.database.clone(),
        client: Some(passport.peer),
        application_name: passport.application.clone(),
        audit: audit.map(|audit| Arc::clone(audit) as Arc<dyn Audit>),
        ..SessionOptions::default()
    }
}

/// A record of a log-in, or of a session's end.
pub(crate) fn of_connection(what: &str, state: Option<SqlState>) -> Event<'_> {
    Event { class: AuditClass::Connection, what, role: None, state }
}

/// Counts a session while it is open.
struct Open<'a>(&'a WireMetrics);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.sessions.decrement(1);
    }
}
