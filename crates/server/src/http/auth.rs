//! Who may use HTTP: everyone on this machine, or users with HTTP basic authentication against the
//! same verifiers as the Postgres wire, as far as their roles reach.
//!
//! # Invariants
//! - A password that was proven once is recognised by a keyed hash of its header and of the
//!   verifier it was proven against, not kept: another password of the role, or none, and it is
//!   asked for again.
//! - What a route needs is looked up for each request; a route that nobody thought of needs the
//!   right to write.
//! - Key derivation runs off the async threads.
//! - A wrong password and a user who does not exist take the same work and the same delay; see
//!   [`crate::attempts`] for how many.
//!
//! # Limits
//! [`MAX_PROVEN`] proven headers are remembered; then all are forgotten.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, Method, StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use telesto_common::Env;
use telesto_sql::session::audit::AuditClass;
use telesto_sql::session::users::{LogIn, Reach};
use telesto_sql::{SqlEngine, SqlState};
use tokio::sync::Semaphore;

use crate::attempts::{Attempts, Door, TooMany};
use crate::audit::{Event, SessionAudit, Stranger, Who};
use crate::auth::WRONG_PASSWORD_DELAY;
use crate::config::{Auth, ServerConfig};
use crate::http::Peer;
use crate::http::reply::ApiError;
use crate::wire::of_connection;

const MAX_PROVEN: usize = 1024;

/// Passwords proven since the start.
#[derive(Debug, Default)]
pub struct Passwords {
    key: RandomState,
    proven: Mutex<BTreeSet<u64>>,
}

/// What a route takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A user.
    User,
    /// `pg_read_all_data`: keys and values are in no table that could be granted.
    Read,
    /// `pg_write_all_data`.
    Write,
    /// `pg_monitor`.
    Monitor,
}

impl Need {
    /// Of a route and a method; of what nobody thought of, everything.
    pub fn of(route: &str, method: &Method) -> Self {
        match (route, method) {
            ("/" | "/health" | "/ready" | "/openapi.json" | "/v1/txn/{id}" | "none", _) => {
                Self::User
            }
            ("/metrics", _) => Self::Monitor,
            ("/v1/kv" | "/v1/kv/{key}", &Method::GET | &Method::HEAD) => Self::Read,
            _ => Self::Write,
        }
    }

    fn met(self, reach: Reach) -> Result<(), ApiError> {
        let (held, role) = match self {
            Self::User => return Ok(()),
            Self::Read => (reach.reads, "pg_read_all_data"),
            Self::Write => (reach.writes, "pg_write_all_data"),
            Self::Monitor => (reach.monitors, "pg_monitor"),
        };
        if held {
            return Ok(());
        }
        Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "forbidden",
            format!("permission denied: the user is no member of {role}; GRANT {role} TO the user"),
        ))
    }
}

/// What is asked of the guard.
#[derive(Debug)]
pub struct Asked<'a> {
    /// Where the request comes from.
    pub peer: Peer,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// What its route takes.
    pub need: Need,
    /// What it is, for records.
    pub what: String,
}

impl Asked<'_> {
    /// Keeps a record of what became of it.
    async fn tell(
        &self,
        config: &ServerConfig,
        user: &str,
        (class, what): (AuditClass, &str),
        state: &'static str,
    ) {
        if let Some(audit) = self.audit(config, user) {
            audit.tell(Event { class, what, role: None, state: Some(SqlState(state)) }).await;
        }
    }

    /// Keeps a record of a password that was refused.
    async fn tell_stranger(
        &self,
        config: &ServerConfig,
        user: &str,
        (stranger, what): (Stranger, &str),
        state: &'static str,
    ) {
        if let Some(audit) = self.audit(config, user) {
            audit.tell_stranger(stranger, of_connection(what, Some(SqlState(state)))).await;
        }
    }

    fn audit(&self, config: &ServerConfig, user: &str) -> Option<Arc<SessionAudit>> {
        let who = Who {
            user: user.to_owned(),
            client: Some(self.peer.address),
            door: Door::Http,
            application: String::new(),
            database: String::new(),
        };
        Some(SessionAudit::new(config.audit.as_ref()?, who))
    }
}

/// Whether a request with these headers may go on.
///
/// # Errors
/// The reply to send instead.
pub async fn check(
    env: &Env,
    engine: &SqlEngine,
    config: &ServerConfig,
    (passwords, attempts, proving): (&Passwords, &Arc<Attempts>, &Arc<Semaphore>),
    asked: Asked<'_>,
) -> Result<(), ApiError> {
    let Asked { headers, need, peer, .. } = asked;
    check_host(&config.auth, headers)?;
    let Auth::Scram(users) = &config.auth else { return Ok(()) };
    let refuse = || {
        let message = "user and password needed (HTTP basic authentication)";
        ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    };
    let header = headers.get(header::AUTHORIZATION).ok_or_else(refuse)?;
    let (user, password) = basic(header.as_bytes()).ok_or_else(refuse)?;
    if let Some(rules) = &config.access
        && let Err(why) = rules.over_http(peer.address.ip(), peer.encrypted, &user)
    {
        let what = format!("request refused: {why}");
        asked.tell_stranger(config, &user, (Stranger::TurnedAway, &what), "28000").await;
        let text = crate::access_rules::NotOverHttp { user, why }.to_string();
        return Err(ApiError::new(StatusCode::FORBIDDEN, "no_access_rule", text));
    }
    let (known, reach) = engine.reach_of(&user).await.map_err(|error| {
        let message = format!("the user's rights cannot be looked up: {error}; try again shortly");
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "rights_unknown", message)
    })?;
    let verifier = users.verifier_of(&user, &known);
    // Another password, another mark.
    let mark = passwords.key.hash_one((header.as_bytes(), verifier.to_string()));
    let known_before = passwords.proven.lock().contains(&mark);
    if !known_before {
        let Ok(_place) = proving.try_acquire() else {
            let message = "too many passwords are being proven at once; try again shortly";
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return Err(ApiError::new(status, "too_many_requests", message));
        };
        let limited = async |refused: TooMany| {
            let what = (Stranger::TurnedAway, "request refused: too many failed ones");
            asked.tell_stranger(config, &user, what, "28000").await;
            let status = StatusCode::TOO_MANY_REQUESTS;
            Err(ApiError::new(status, "too_many_guesses", refused.to_string()))
        };
        let attempt = match attempts.begin(Door::Http, &user, peer.address.ip()) {
            Ok(attempt) => attempt,
            Err(refused) => return limited(refused).await,
        };
        match attempt.judge(crate::auth::proves(env, verifier, password).await) {
            Ok(true) => {}
            Ok(false) => {
                let what = (Stranger::Guessed, "request refused: wrong password, or no such user");
                asked.tell_stranger(config, &user, what, "28P01").await;
                env.clock.sleep(WRONG_PASSWORD_DELAY).await;
                return Err(refuse());
            }
            Err(refused) => return limited(refused).await,
        }
        if let Some(audit) = asked.audit(config, &user) {
            let event = of_connection("password proven", Some(SqlState::SUCCESS));
            audit.must_tell(event).await.map_err(|error| {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                ApiError::new(status, "not_recorded", error.to_string())
            })?;
        }
        let mut proven = passwords.proven.lock();
        if proven.len() >= MAX_PROVEN {
            proven.clear();
        }
        proven.insert(mark);
    }
    if known == LogIn::Unknown {
        let what = (AuditClass::Connection, "request refused: no such role");
        asked.tell(config, &user, what, "28000").await;
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "no_role",
            format!("role {user:?} does not exist; a superuser makes it: CREATE ROLE … LOGIN"),
        ));
    }
    let met = if reach.connects { need.met(reach) } else { Err(no_connect()) };
    if met.is_err() {
        asked.tell(config, &user, (AuditClass::Denied, &asked.what), "42501").await;
    }
    met
}

/// Whoever may not connect reaches nothing, as over the Postgres port.
fn no_connect() -> ApiError {
    let message = "permission denied: the user has no CONNECT privilege on the database; GRANT CONNECT ON DATABASE TO the user";
    ApiError::new(StatusCode::FORBIDDEN, "forbidden", message)
}

/// Whether a request may be meant for this server; see [`is_for_us`].
///
/// # Errors
/// The reply to send instead.
pub fn check_host(auth: &Auth, headers: &HeaderMap) -> Result<(), ApiError> {
    match host(headers) {
        Some(host) if !is_for_us(auth, headers) => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "foreign_host",
            format!(
                "requests for {host:?} are refused: without authentication only localhost is served"
            ),
        )),
        _ => Ok(()),
    }
}

/// Whether a request without a password may be meant for this server: where everyone is trusted, a
/// page that has its own name resolve to this machine may not use a visitor's browser.
pub fn is_for_us(auth: &Auth, headers: &HeaderMap) -> bool {
    matches!(auth, Auth::Scram(_)) || host(headers).is_none_or(is_local)
}

fn basic(header: &[u8]) -> Option<(String, String)> {
    let text = std::str::from_utf8(header).ok()?;
    let (scheme, encoded) = text.split_once(' ')?;
    let raw = STANDARD.decode(encoded.trim()).ok()?;
    let (user, password) = std::str::from_utf8(&raw).ok()?.split_once(':')?;
    scheme.eq_ignore_ascii_case("basic").then(|| (user.to_owned(), password.to_owned()))
}

fn host(headers: &HeaderMap) -> Option<&str> {
    // A header that is no text is no local name either.
    headers.get(header::HOST).map(|host| host.to_str().unwrap_or("?"))
}

fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_that_is_not_this_machine_is_foreign() {
        for local in
            ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "127.1.2.3", "[::1]:8080", "[::1]"]
        {
            assert!(is_local(local), "{local}");
        }
        for foreign in
            ["evil.example", "localhost.evil.example:8080", "10.0.0.1", "[2001:db8::1]:80", "", "?"]
        {
            assert!(!is_local(foreign), "{foreign}");
        }
    }

    #[test]
    fn basic_header_parses_only_when_well_formed() {
        assert_eq!(basic(b"Basic YTpiOmM="), Some(("a".to_owned(), "b:c".to_owned())));
        for bad in [&b"Basic"[..], b"Bearer YTpi", b"Basic !!", b"Basic YQ=="] {
            assert_eq!(basic(bad), None);
        }
    }
}
