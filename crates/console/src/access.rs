//! Who is logged in: sessions of the console, their cookie and their CSRF token.
//!
//! ```text
//! right password ──> token (256 random bits, in an HttpOnly cookie; here only its hash) + CSRF token (in pages, sent back in a header or a field)
//! ```
//!
//! # Invariants
//! - A session lasts no longer than what its visitor has proven: see
//!   `telesto_server::inside::Proof`.
//! - A session is named by a token that nobody can guess; the table holds its hash, so that what is
//!   in memory lets nobody in.
//! - A change needs the CSRF token beside the cookie; both are compared by their hashes.
//! - At most [`limits::SESSIONS`], of one role [`limits::SESSIONS_OF_A_ROLE`]; each ends when idle
//!   or old.
//!
//! # On failure
//! A session that ended is as one that never was: its visitor is asked to log in.
//!
//! # Limits
//! In memory of this process: a restart logs everyone out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use telesto_common::Env;
use telesto_server::inside::Proof;
use tokio_util::sync::CancellationToken;

use crate::limits;

/// The cookie's name, before the port.
const COOKIE: &str = "telesto_console";
/// The header that carries the CSRF token.
pub const CSRF_HEADER: &str = "x-csrf-token";

/// The header of requests that a page makes by itself, with nobody asking: they keep no session
/// from being unused.
pub const UNASKED_HEADER: &str = "x-unasked";

type Hash = [u8; 32];

/// A visitor who is logged in.
#[derive(Clone, Debug)]
pub struct Session {
    /// The role.
    pub user: String,
    /// What its password was proven against; `None` where nobody is asked for one.
    pub proof: Option<Proof>,
    /// What changes must carry.
    pub csrf: String,
    key: Hash,
    begun: Duration,
    used: Duration,
    runs: Arc<Mutex<BTreeMap<String, CancellationToken>>>,
}

/// A statement under way; leaves the table when dropped.
#[derive(Debug)]
pub struct Run {
    runs: Arc<Mutex<BTreeMap<String, CancellationToken>>>,
    id: String,
    /// Ends it.
    pub cancel: CancellationToken,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.runs.lock().remove(&self.id);
    }
}

/// A run of a role that came without a session; counted until dropped.
#[derive(Debug)]
pub struct CountedRun {
    counts: Arc<Mutex<BTreeMap<String, usize>>>,
    user: String,
}

impl Drop for CountedRun {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.user);
            }
        }
    }
}

impl Session {
    /// The role that was proven.
    #[must_use]
    pub fn role(&self) -> Option<u32> {
        self.proof.as_ref().map(|proof| proof.role)
    }

    /// Whether `token` is this session's CSRF token.
    #[must_use]
    pub fn is_csrf(&self, token: &str) -> bool {
        blake3::hash(token.as_bytes()) == blake3::hash(self.csrf.as_bytes())
    }

    /// Begins a run that [`Session::cancel`] can name; `None`: it has too many, or one of this
    /// name.
    #[must_use]
    pub fn begin_run(&self, id: &str) -> Option<Run> {
        let mut runs = self.runs.lock();
        if runs.len() >= limits::RUNS || runs.contains_key(id) {
            return None;
        }
        let cancel = CancellationToken::new();
        runs.insert(id.to_owned(), cancel.clone());
        Some(Run { runs: Arc::clone(&self.runs), id: id.to_owned(), cancel })
    }

    /// Ends the run of this name; whether there is one.
    pub fn cancel(&self, id: &str) -> bool {
        self.runs.lock().get(id).map(CancellationToken::cancel).is_some()
    }
}

/// All sessions.
#[derive(Debug)]
pub struct Sessions {
    env: Env,
    by_key: Mutex<BTreeMap<Hash, Session>>,
    /// Runs under way of those who have no session, by role.
    without: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Sessions {
    /// Nobody.
    #[must_use]
    pub fn new(env: Env) -> Self {
        Self { env, by_key: Mutex::default(), without: Arc::default() }
    }

    /// Lets `user` in: the token for the cookie, and the session.
    pub fn begin(&self, user: &str, proof: Option<Proof>) -> (String, Session) {
        let token = self.secret();
        let now = self.env.clock.monotonic();
        let session = Session {
            user: user.to_owned(),
            proof,
            csrf: self.secret(),
            key: *blake3::hash(token.as_bytes()).as_bytes(),
            begun: now,
            used: now,
            runs: Arc::default(),
        };
        let mut all = self.by_key.lock();
        all.retain(|_, session| stands(session, now));
        let unused = |all: &BTreeMap<Hash, Session>, of: Option<&str>| {
            let those = all.values().filter(|session| of.is_none_or(|role| session.user == role));
            // One that was begun by fetching a page, and whose cookie never came back, is nobody's:
            // a health check makes many.
            let least = those.min_by_key(|session| (session.used > session.begun, session.used));
            least.map(|session| session.key)
        };
        if all.values().filter(|session| session.user == user).count() >= limits::SESSIONS_OF_A_ROLE
            && let Some(key) = unused(&all, Some(user))
        {
            all.remove(&key);
        }
        if all.len() >= limits::SESSIONS
            && let Some(key) = unused(&all, None)
        {
            all.remove(&key);
        }
        all.insert(session.key, session.clone());
        (token, session)
    }

    /// Begins a run of a role that has no session; `None`: it has too many.
    #[must_use]
    pub fn begin_run_without(&self, user: &str) -> Option<CountedRun> {
        let mut counts = self.without.lock();
        let count = counts.entry(user.to_owned()).or_default();
        if *count >= limits::RUNS_OF_A_ROLE {
            return None;
        }
        *count += 1;
        Some(CountedRun { counts: Arc::clone(&self.without), user: user.to_owned() })
    }

    /// The session that the cookie of a request names; a request that its page makes by itself is
    /// no use of it.
    #[must_use]
    pub fn of(&self, headers: &HeaderMap) -> Option<Session> {
        let token = cookie(headers, &cookie_name(headers))?;
        let key = *blake3::hash(token.as_bytes()).as_bytes();
        let now = self.env.clock.monotonic();
        let mut all = self.by_key.lock();
        match all.get_mut(&key) {
            Some(session) if stands(session, now) => {
                if !headers.contains_key(UNASKED_HEADER) {
                    session.used = now;
                }
                Some(session.clone())
            }
            Some(_) => {
                all.remove(&key);
                None
            }
            None => None,
        }
    }

    /// Ends a session, and what it runs.
    pub fn end(&self, session: &Session) {
        self.by_key.lock().remove(&session.key);
        for cancel in session.runs.lock().values() {
            cancel.cancel();
        }
    }

    /// 256 random bits as text.
    fn secret(&self) -> String {
        let mut raw = [0; 32];
        raw[..16].copy_from_slice(&self.env.random_u128().to_be_bytes());
        raw[16..].copy_from_slice(&self.env.random_u128().to_be_bytes());
        URL_SAFE_NO_PAD.encode(raw)
    }
}

fn stands(session: &Session, now: Duration) -> bool {
    now.saturating_sub(session.used) < limits::IDLE
        && now.saturating_sub(session.begun) < limits::LIFE
}

/// Browsers send a host's cookies to all of its ports: nodes on one machine must not take each
/// other's for theirs.
fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    match host.rsplit_once(':') {
        Some((_, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => {
            format!("{COOKIE}_{port}")
        }
        _ => COOKIE.to_owned(),
    }
}

/// The value of the cookie of this name.
#[must_use]
pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(own, _)| *own == name)
        .map(|(_, value)| value)
}

/// The Set-Cookie line that gives a visitor `token`; without one, takes it away.
#[must_use]
pub fn set_cookie(token: Option<&str>, headers: &HeaderMap) -> String {
    // Behind a proxy that speaks TLS the cookie must not leave it.
    let proxied = headers.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    let secure = if proxied { "; Secure" } else { "" };
    let name = cookie_name(headers);
    match token {
        Some(token) => format!("{name}={token}; Path=/; HttpOnly; SameSite=Strict{secure}"),
        None => format!("{name}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0{secure}"),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn with_cookie(token: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let line = format!("a=b; {COOKIE}={token}");
        headers.insert(header::COOKIE, HeaderValue::from_str(&line).expect("a header"));
        headers
    }

    #[tokio::test]
    async fn session_is_found_by_its_cookie_alone_and_ends() {
        let sessions = Sessions::new(telesto_runtime::env());
        let (token, session) = sessions.begin("ada", None);
        let found = sessions.of(&with_cookie(&token)).expect("stands");
        assert_eq!(found.user, "ada");
        assert!(found.is_csrf(&session.csrf) && !found.is_csrf("") && !found.is_csrf(&token));
        assert!(sessions.of(&with_cookie(&session.csrf)).is_none());
        assert!(sessions.of(&HeaderMap::new()).is_none());
        sessions.end(&session);
        assert!(sessions.of(&with_cookie(&token)).is_none());
    }

    #[tokio::test]
    async fn sessions_of_one_role_are_bounded_and_the_oldest_goes() {
        let sessions = Sessions::new(telesto_runtime::env());
        let (first, _) = sessions.begin("ada", None);
        let (other, _) = sessions.begin("bob", None);
        for _ in 0..limits::SESSIONS_OF_A_ROLE {
            sessions.begin("ada", None);
        }
        assert!(sessions.of(&with_cookie(&first)).is_none());
        assert!(sessions.of(&with_cookie(&other)).is_some());
    }

    #[tokio::test]
    async fn sessions_that_never_came_back_go_before_those_in_use() {
        let sessions = Sessions::new(telesto_runtime::env());
        let (token, _) = sessions.begin("ada", None);
        assert!(sessions.of(&with_cookie(&token)).is_some());
        for _ in 0..3 * limits::SESSIONS_OF_A_ROLE {
            sessions.begin("ada", None);
        }
        assert!(sessions.of(&with_cookie(&token)).is_some());
    }

    #[tokio::test]
    async fn idle_session_no_longer_stands() {
        let sessions = Sessions::new(telesto_runtime::env());
        let (_, session) = sessions.begin("ada", None);
        assert!(stands(&session, session.used + limits::IDLE - Duration::from_secs(1)));
        assert!(!stands(&session, session.used + limits::IDLE));
        let old = Session { used: session.begun + limits::LIFE, ..session };
        assert!(!stands(&old, old.used));
    }

    #[tokio::test]
    async fn what_nobody_asked_for_keeps_no_session_in_use() {
        let sessions = Sessions::new(telesto_runtime::env());
        let (token, session) = sessions.begin("ada", None);
        let mut headers = with_cookie(&token);
        headers.insert(UNASKED_HEADER, HeaderValue::from_static("1"));
        let polled = sessions.of(&headers).expect("stands");
        assert_eq!(polled.used, session.used);
        headers.remove(UNASKED_HEADER);
        assert!(sessions.of(&headers).expect("stands").used > session.used);
    }

    #[tokio::test]
    async fn runs_are_bounded_and_leave_when_done() {
        let sessions = Sessions::new(telesto_runtime::env());
        let (_, session) = sessions.begin("ada", None);
        let runs: Vec<Run> =
            (0..limits::RUNS).filter_map(|id| session.begin_run(&id.to_string())).collect();
        assert_eq!(runs.len(), limits::RUNS);
        assert!(session.begin_run("more").is_none());
        assert!(session.cancel("0") && runs[0].cancel.is_cancelled() && !session.cancel("more"));
        drop(runs);
        assert!(session.begin_run("more").is_some() && !session.cancel("0"));
    }

    #[test]
    fn cookie_is_out_of_reach_of_scripts_and_other_sites() {
        let mut headers = HeaderMap::new();
        let line = set_cookie(Some("t"), &headers);
        assert!(line.contains("; HttpOnly") && line.contains("; SameSite=Strict"), "{line}");
        assert!(!line.contains("Secure"));
        headers.insert(header::HOST, HeaderValue::from_static("[::1]:8081"));
        assert!(set_cookie(None, &headers).starts_with("telesto_console_8081=;"));
        headers.insert(header::HOST, HeaderValue::from_static("[::1]"));
        headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
        assert!(set_cookie(Some("t"), &headers).ends_with("; Secure"));
    }
}
