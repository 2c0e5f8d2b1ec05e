//! What the server is told: addresses, authentication, limits.
//!
//! # Invariants
//! [`check_exposure`] has passed for every address the server listens on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::access_rules::AccessRules;
use crate::audit::AuditLog;
use crate::auth::{Users, Verifier};
use crate::error::{Error, Result};
use crate::http::ready::Standing;
use crate::tls::Tls;

/// Bounds on what one client, and all together, can take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Clients at once.
    pub max_connections: usize,
    /// Connections that have not authenticated yet, at once; more are closed unheard.
    pub max_startups: usize,
    /// Longest message, bytes.
    pub max_message_bytes: usize,
    /// Memory for long messages of all clients, bytes.
    pub wire_memory_bytes: u64,
    /// Prepared statements and portals of one client, each.
    pub max_statements: usize,
    /// From connecting to being authenticated.
    pub startup: Duration,
    /// Without progress in the middle of a message or of a result.
    pub stall: Duration,
    /// Without a message, outside a transaction; `None` for no bound.
    pub idle: Option<Duration>,
    /// Without a message, inside a transaction; `None` for no bound.
    pub idle_in_transaction: Option<Duration>,
    /// Longest HTTP request body, bytes.
    pub max_body_bytes: usize,
    /// HTTP requests at once.
    pub max_requests: usize,
    /// Statements that compute at once, each on a thread of its own.
    pub max_computing: usize,
    /// How long sessions may wait for their turn on the threads before a part of new work is turned
    /// away; `None`: none is.
    pub queue_target: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 500,
            max_startups: 128,
            max_message_bytes: 64 << 20,
            wire_memory_bytes: 256 << 20,
            max_statements: 10_000,
            startup: Duration::from_secs(30),
            stall: Duration::from_secs(60),
            idle: None,
            idle_in_transaction: Some(Duration::from_secs(3600)),
            max_body_bytes: 12 << 20,
            max_requests: 256,
            max_computing: 32,
            queue_target: Some(Duration::from_millis(250)),
        }
    }
}

impl Limits {
    /// The shortest bound on a wait; ticks follow it.
    #[must_use]
    pub fn shortest_wait(&self) -> Duration {
        let optional = [self.idle, self.idle_in_transaction];
        optional.into_iter().flatten().fold(self.stall.min(self.startup), Duration::min)
    }
}

/// Who may connect, and how they show it.
#[derive(Clone, Debug, Default)]
pub enum Auth {
    /// Everyone who reaches the socket.
    #[default]
    Trust,
    /// These users, by SCRAM-SHA-256 (HTTP: basic authentication against the same verifiers).
    Scram(Arc<Users>),
}

/// How the process's own prober shows that it is that: by a secret that nobody else has.
#[derive(Clone, Debug)]
pub struct ProberKey {
    /// The role it connects as.
    pub user: String,
    /// Of its secret, which is drawn at each start and stored nowhere.
    pub verifier: Verifier,
}

impl ProberKey {
    /// What the prober calls itself when it connects; a client that says so and does not know the
    /// secret gets no session.
    pub const APPLICATION: &'static str = "telesto_prober";
}

/// The server's configuration.
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    /// Where the Postgres wire is served; `None` for nowhere.
    pub listen: Option<SocketAddr>,
    /// Where HTTP is served; `None` for nowhere.
    pub http: Option<SocketAddr>,
    /// Where health, readiness and metrics alone are served, to whoever can connect; `None` for
    /// nowhere.
    pub status: Option<SocketAddr>,
    /// What is asked whether this node does its part among others; `None`: there are no others.
    pub standing: Option<Arc<dyn Standing>>,
    /// Who may connect.
    pub auth: Auth,
    /// Lets the process's own prober in.
    pub prober: Option<ProberKey>,
    /// Who may come to the Postgres wire from where; `None`: whoever proves a password.
    pub access: Option<Arc<AccessRules>>,
    /// TLS for the Postgres wire, and for HTTP if `http_tls`.
    pub tls: Option<Tls>,
    /// Whether HTTP speaks TLS, and nothing else.
    pub http_tls: bool,
    /// Bounds.
    pub limits: Limits,
    /// Where records are kept of who did what; `None`: nowhere.
    pub audit: Option<Arc<AuditLog>>,
}

/// Refuses to open the database to the network without authentication.
///
/// # Errors
/// [`Error::OpenToAll`]; [`Error::RulesWithoutUsers`]; [`Error::HttpTls`];
/// [`Error::ReadablePasswords`] for HTTP, whose passwords are readable without TLS.
pub fn check_exposure(config: &ServerConfig) -> Result<()> {
    let open = |address: &&SocketAddr| !address.ip().to_canonical().is_loopback();
    let trust = matches!(config.auth, Auth::Trust);
    if let Some(address) = config.listen.iter().chain(&config.http).find(open)
        && trust
    {
        return Err(Error::OpenToAll { address: *address });
    }
    if trust && config.access.is_some() {
        return Err(Error::RulesWithoutUsers);
    }
    if config.http_tls && config.tls.is_none() {
        return Err(Error::HttpTls);
    }
    match config.http.iter().find(open) {
        Some(address) if !config.http_tls => Err(Error::ReadablePasswords { address: *address }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn config(listen: &str, http: &str, auth: Auth) -> ServerConfig {
        ServerConfig {
            listen: Some(listen.parse().expect("address")),
            http: Some(http.parse().expect("address")),
            auth,
            ..ServerConfig::default()
        }
    }

    #[tokio::test]
    async fn addresses_off_loopback_need_authentication() {
        let scram = Auth::Scram(Arc::new(Users::new(&telesto_runtime::env(), BTreeMap::new())));
        for (listen, http, auth, allowed) in [
            ("127.0.0.1:1", "[::1]:2", Auth::Trust, true),
            ("127.9.9.9:1", "[::ffff:127.0.0.1]:2", Auth::Trust, true),
            ("0.0.0.0:1", "127.0.0.1:2", Auth::Trust, false),
            ("[::]:1", "127.0.0.1:2", Auth::Trust, false),
            ("127.0.0.1:1", "10.0.0.1:2", Auth::Trust, false),
            ("10.0.0.1:1", "127.0.0.1:2", scram.clone(), true),
            ("10.0.0.1:1", "10.0.0.1:2", scram.clone(), false),
        ] {
            let checked = check_exposure(&config(listen, http, auth));
            assert_eq!(checked.is_ok(), allowed, "{listen} {http}: {checked:?}");
        }
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("access");
        std::fs::write(&path, "host all all all reject\n").expect("written");
        let access = Some(AccessRules::read(&path, false).expect("reads"));
        let config = |auth| ServerConfig { auth, access: access.clone(), ..Default::default() };
        assert!(check_exposure(&config(Auth::Trust)).is_err(), "rules that nobody would ask");
        assert!(check_exposure(&config(scram)).is_ok());
    }
}
