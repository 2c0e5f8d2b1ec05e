//! The running server: its listeners, and an orderly end.
//!
//! ```text
//! running ──drain──> no new clients; idle sessions end; statements finish ──kill──> everything ends
//! ```
//!
//! # Invariants
//! [`Server::stop`] returns when every client has been served or told goodbye, or after its bound.

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use telesto_common::Env;
use telesto_common::env::Task;
use telesto_sql::SqlEngine;
use telesto_sql::plan::measurements::Measurements;
use telesto_sql::plan::watch::LOOK;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::audit::AuditLog;
use crate::clients::Clients;
use crate::config::{Auth, ServerConfig, check_exposure};
use crate::error::{Error, Result};
use crate::hand_over::{Listeners, Passed};
use crate::history::History;
use crate::http::{self, HttpState};
use crate::inside::Inside;
use crate::wire::WireServer;
use crate::wire::stream::Stop;

/// How often histograms are drained, so that they stay small while nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);
/// What clients get to read their goodbye after the drain's bound has passed.
const KILL_GRACE: Duration = Duration::from_secs(2);

/// Makes the console's routes, given the way in to SQL.
pub type Mount = Box<dyn FnOnce(Inside) -> axum::Router + Send>;

/// A running server. Dropping it leaves it running; see [`Server::stop`].
#[derive(Debug)]
pub struct Server {
    env: Env,
    stop: Stop,
    sql: Option<SocketAddr>,
    http: Option<SocketAddr>,
    status: Option<SocketAddr>,
    ended: Vec<oneshot::Receiver<()>>,
    upkeep: Vec<Arc<dyn Task>>,
    audit: Option<Arc<AuditLog>>,
    /// The listening sockets once more: what a drain closes goes on to take clients in, for the
    /// next process.
    listeners: Listeners,
}

impl Server {
    /// Binds the addresses of `config` and serves `engine` on them, and at HTTP's `/` what
    /// `console` makes.
    ///
    /// # Errors
    /// [`Error::OpenToAll`], [`Error::ReadablePasswords`], [`Error::Bind`], [`Error::Roles`];
    /// nothing is then served.
    pub async fn start(
        env: Env,
        engine: Arc<SqlEngine>,
        config: ServerConfig,
        metrics: Option<PrometheusHandle>,
        console: Option<Mount>,
    ) -> Result<Self> {
        Self::go_on(env, engine, config, (metrics, console), Passed::default()).await
    }

    /// [`Server::start`] with the sockets and clients that another process served up to now.
    ///
    /// # Errors
    /// Those of [`Server::start`]; the clients are lost then.
    pub async fn go_on(
        env: Env,
        engine: Arc<SqlEngine>,
        config: ServerConfig,
        (metrics, console): (Option<PrometheusHandle>, Option<Mount>),
        passed: Passed,
    ) -> Result<Self> {
        check_exposure(&config)?;
        if let Auth::Scram(users) = &config.auth {
            let made = engine.adopt_users(&users.names()).await.map_err(Error::Roles)?;
            for user in made {
                tracing::info!(user, "the user of the users file is a superuser of the database");
            }
        }
        let Passed { listeners, clients: passed } = passed;
        let sql = bind(config.listen, listeners.sql).await?;
        let http = bind(config.http, listeners.http).await?;
        let status = bind(config.status, listeners.status).await?;
        let kept = Listeners { sql: keep(&sql)?, http: keep(&http)?, status: keep(&status)? };
        let config = Arc::new(config);
        let stop = Stop::default();
        let mut server = Self {
            env: env.clone(),
            stop: stop.clone(),
            sql: sql.as_ref().map(|(_, address)| *address),
            http: http.as_ref().map(|(_, address)| *address),
            status: status.as_ref().map(|(_, address)| *address),
            ended: Vec::new(),
            upkeep: Vec::new(),
            audit: config.audit.clone(),
            listeners: kept,
        };
        let clients = Clients::new(&env, &config.limits);
        if let Some((listener, _)) = sql {
            let wire = WireServer::new(
                env.clone(),
                Arc::clone(&engine),
                Arc::clone(&config),
                Arc::clone(&clients),
                stop.clone(),
            );
            server.run("sql listener", Arc::new(wire).serve(listener, passed));
        }
        let state =
            HttpState::new(env.clone(), &engine, Arc::clone(&config), &clients, metrics.clone());
        state.stops_with(&stop);
        if let Some((listener, _)) = status {
            // It tells of the stop for as long as that takes, so that nobody waits for its end.
            env.spawn("status listener", http::serve_status(listener, state.clone(), stop.clone()));
        }
        if let Some((listener, _)) = http {
            let inside =
                Inside::new(env.clone(), Arc::clone(&engine), config, clients, stop.clone());
            let console = console.map(|mount| mount(inside));
            server.run("http listener", http::serve(listener, state, console, stop));
        }
        server.upkeep.push({
            let (engine, clock) = (Arc::downgrade(&engine), Arc::clone(&env.clock));
            env.spawn("looking around", async move {
                while let Some(engine) = engine.upgrade() {
                    engine.look_around();
                    drop(engine);
                    clock.sleep(LOOK).await;
                }
            })
        });
        server.upkeep.extend(metrics.map(|metrics| {
            let history = Arc::new(History::new(env.clone(), metrics.clone()));
            engine.measured().by(Arc::clone(&history) as Arc<dyn Measurements>);
            let clock = Arc::clone(&env.clock);
            env.spawn("metrics upkeep", async move {
                loop {
                    history.look();
                    clock.sleep(UPKEEP).await;
                    metrics.run_upkeep();
                }
            })
        }));
        Ok(server)
    }

    fn run(&mut self, name: &'static str, serving: impl Future<Output = ()> + Send + 'static) {
        let (done, ended) = oneshot::channel();
        self.env.spawn(name, async move {
            serving.await;
            // Nobody waits when the server was dropped without a stop.
            let _ = done.send(());
        });
        self.ended.push(ended);
    }

    /// Where the Postgres wire is served.
    #[must_use]
    pub fn sql_address(&self) -> Option<SocketAddr> {
        self.sql
    }

    /// Where HTTP is served.
    #[must_use]
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Where health, readiness and metrics alone are served.
    #[must_use]
    pub fn status_address(&self) -> Option<SocketAddr> {
        self.status
    }

    /// Takes no new clients, lets statements under way finish for at most `drain`, then ends the
    /// rest. Whether all finished in time.
    pub async fn stop(mut self, drain: Duration) -> bool {
        self.end(drain).await
    }

    /// [`Server::stop`] that ends no client which can go on in another process: those come back,
    /// with the sockets that are listened on. Clients that connect meanwhile wait in the system's
    /// queue.
    pub async fn hand_over(mut self, drain: Duration) -> (bool, Passed) {
        self.stop.waiting.begin();
        let in_time = self.end(drain).await;
        let clients = self.stop.waiting.take();
        (in_time, Passed { listeners: self.listeners, clients })
    }

    async fn end(&mut self, drain: Duration) -> bool {
        for upkeep in self.upkeep.drain(..) {
            upkeep.abort();
        }
        self.stop.drain.cancel();
        let deadline = self.env.deadline(drain);
        let mut all = futures::future::join_all(std::mem::take(&mut self.ended));
        let in_time = self.env.within(deadline, "clients to finish", &mut all).await.is_ok();
        self.stop.kill.cancel();
        if !in_time {
            let deadline = self.env.deadline(KILL_GRACE);
            // They were told; what does not listen is left to the process's end.
            let _ = self.env.within(deadline, "clients to leave", &mut all).await;
        }
        if let Some(audit) = &self.audit {
            audit.stop(KILL_GRACE).await;
        }
        in_time
    }
}

/// Listens on `address`: with the socket that was passed, if that is where it listens.
async fn bind(
    address: Option<SocketAddr>,
    passed: Option<OwnedFd>,
) -> Result<Option<(TcpListener, SocketAddr)>> {
    let Some(address) = address else { return Ok(None) };
    let fail = |reason| Error::Bind { address, reason };
    if let Some(passed) = passed {
        let listener = std::net::TcpListener::from(passed);
        let at = listener.local_addr().map_err(fail)?;
        if at.ip() == address.ip() && (at.port() == address.port() || address.port() == 0) {
            listener.set_nonblocking(true).map_err(fail)?;
            return Ok(Some((TcpListener::from_std(listener).map_err(fail)?, at)));
        }
        tracing::info!(%at, now = %address, "the address is another one than before the restart");
    }
    let listener = TcpListener::bind(address).await.map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    Ok(Some((listener, bound)))
}

/// The socket once more.
fn keep(bound: &Option<(TcpListener, SocketAddr)>) -> Result<Option<OwnedFd>> {
    let again = bound.as_ref().map(|(listener, address)| {
        let again = listener.as_fd().try_clone_to_owned();
        again.map_err(|reason| Error::Bind { address: *address, reason })
    });
    again.transpose()
}
