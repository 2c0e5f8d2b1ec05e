//! Who a request comes from, and whether it may change anything.
//!
//! ```text
//! page      cookie ──> session, else: /login (where the server asks for no password: a session at once)
//! API       cookie ──> session; or HTTP basic authentication; or, where no password is asked, nobody in particular
//! change    a session: its CSRF token.   without one: JSON and the header that no form can send
//! both      a browser that says the request comes from another site is refused
//! ```
//!
//! # Invariants
//! - A role is the visitor's only after its password was proven as the Postgres port proves it.
//! - With the role, its password or its right to log in the visitor's session ends.
//! - No change is made on a request that another site's page could have made a browser send.
//!
//! # On failure
//! A page sends its visitor to the log-in; the API answers 401 or 403.
//!
//! # Limits
//! Where the server asks nobody for a password the role is `telesto`, or the one that was named at
//! the log-in.

use std::convert::Infallible;
use std::net::SocketAddr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use telesto_server::Auth;
use telesto_server::http::Peer;
use telesto_server::inside::{Ask, NotAsked, Proof, Proven};
use tokio_util::sync::CancellationToken;

use crate::access::{self, CSRF_HEADER, Session};
use crate::error::Problem;
use crate::limits;
use crate::query::{APPLICATION, Reader};
use crate::routes::Console;
use crate::show;

/// The role of those who are not asked.
pub const EVERYONE: &str = "telesto";

/// Someone who looks at a page.
#[derive(Clone, Debug)]
pub struct Visitor {
    pub session: Session,
    /// Whose address the request comes from.
    pub client: SocketAddr,
    pub console: Console,
    pub theme: Option<&'static str>,
    /// The cookie of a session begun with this request.
    pub new_cookie: Option<String>,
}

impl Visitor {
    pub fn reader(&self) -> Reader {
        Reader::new(&self.console, &self.session.user, self.session.role(), self.client)
    }

    /// Whether a form with this token was sent by the visitor from a page of ours.
    pub fn sent(&self, headers: &HeaderMap, csrf: &str) -> Result<(), Problem> {
        same_site(headers)?;
        match self.new_cookie.is_none() && self.session.is_csrf(csrf) {
            true => Ok(()),
            false => Err(Problem::forged()),
        }
    }

    /// Runs a statement that may write, as the visitor; the caller has checked that the request is
    /// the visitor's own, and that the console may write.
    pub async fn change(&self, sql: &str) -> Result<(), Problem> {
        let ask = Ask {
            user: self.session.user.clone(),
            role: self.session.role(),
            client: self.client,
            application: APPLICATION,
            sql: sql.to_owned(),
            may_write: true,
            timeout: limits::PAGE_TIME,
            max_rows: 1,
            max_bytes: limits::BYTES,
            cancel: CancellationToken::new(),
        };
        match self.console.inside.run(ask).await?.error {
            Some(error) => Err(Problem::from(&error)),
            None => Ok(()),
        }
    }
}

/// The theme that the visitor chose.
pub fn theme(headers: &HeaderMap) -> Option<&'static str> {
    match access::cookie(headers, "telesto_theme") {
        Some("dark") => Some("dark"),
        Some("light") => Some("light"),
        _ => None,
    }
}

impl FromRequestParts<Console> for Visitor {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, console: &Console) -> Result<Self, Response> {
        let theme = theme(&parts.headers);
        let client = Peer::of(&parts.extensions).address;
        if let Some(session) = standing(console, &parts.headers).await {
            return Ok(Self { session, client, console: console.clone(), theme, new_cookie: None });
        }
        if matches!(console.inside.config().auth, Auth::Trust) {
            let (token, session) = console.sessions.begin(EVERYONE, None);
            let new_cookie = Some(access::set_cookie(Some(&token), &parts.headers));
            return Ok(Self { session, client, console: console.clone(), theme, new_cookie });
        }
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        Err(Redirect::to(&format!("/login?next={}", show::encode(path))).into_response())
    }
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug)]
pub struct Source(pub Peer);

impl FromRequestParts<Console> for Source {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Console) -> Result<Self, Infallible> {
        Ok(Self(Peer::of(&parts.extensions)))
    }
}

/// Someone who uses the API.
#[derive(Clone, Debug)]
pub struct Caller {
    pub user: String,
    /// The role that was proven.
    pub role: Option<u32>,
    /// Whose address the request comes from.
    pub client: SocketAddr,
    /// `None`: it comes without a session.
    pub session: Option<Session>,
    pub console: Console,
}

impl Caller {
    pub fn reader(&self) -> Reader {
        Reader::new(&self.console, &self.user, self.role, self.client)
    }
}

impl FromRequestParts<Console> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, console: &Console) -> Result<Self, Problem> {
        let headers = &parts.headers;
        // Reading costs, too, and another site's page has nothing to ask here.
        same_site(headers)?;
        let console = console.clone();
        let client = Peer::of(&parts.extensions).address;
        if let Some(session) = standing(&console, headers).await {
            let (user, role) = (session.user.clone(), session.role());
            return Ok(Self { user, role, client, session: Some(session), console });
        }
        if let Some((user, password)) = basic(headers) {
            let proof = prove(&console, &user, password, Peer::of(&parts.extensions)).await?;
            let role = proof.map(|proof| proof.role);
            return Ok(Self { user, role, client, session: None, console });
        }
        match console.inside.config().auth {
            Auth::Trust => {
                Ok(Self { user: EVERYONE.to_owned(), role: None, client, session: None, console })
            }
            Auth::Scram(_) => Err(Problem::unauthorized()),
        }
    }
}

/// The session that a request names, if what was proven when it began still holds; otherwise it
/// ends here.
async fn standing(console: &Console, headers: &HeaderMap) -> Option<Session> {
    let session = console.sessions.of(headers)?;
    // Where it cannot be looked up, what the session asks cannot run either.
    if let Some(proof) = &session.proof
        && let Ok(false) = console.inside.holds(&session.user, proof).await
    {
        console.sessions.end(&session);
        return None;
    }
    Some(session)
}

/// What `user` has proven by this password, unless too many were tried; `None` where nobody is
/// asked for one.
pub async fn prove(
    console: &Console,
    user: &str,
    password: String,
    source: Peer,
) -> Result<Option<Proof>, Problem> {
    if user.is_empty() || user.len() > 63 || user.contains('\0') {
        return Err(Problem::bad_request("a role has a name of 1 to 63 bytes"));
    }
    match console.inside.proves(user, password, source).await {
        Ok(Proven::By(proof)) => Ok(Some(proof)),
        Ok(Proven::NotAsked) => Ok(None),
        Ok(Proven::No) => {
            let message = format!("password authentication failed for user \"{user}\"");
            Err(Problem::new(StatusCode::UNAUTHORIZED, "28P01", message))
        }
        Err(NotAsked::TooMany(refused)) => {
            Err(Problem::busy("too_many_guesses", refused.to_string(), refused.seconds()))
        }
        Err(busy @ NotAsked::Busy) => Err(Problem::busy("unavailable", busy.to_string(), 1)),
        Err(NotAsked::Unrecorded(error)) => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            Err(Problem::new(status, "not_recorded", error.to_string()))
        }
        Err(refused @ NotAsked::NoRule(_)) => {
            Err(Problem::new(StatusCode::FORBIDDEN, "no_access_rule", refused.to_string()))
        }
    }
}

/// Refuses what another site's page made a browser send.
pub fn same_site(headers: &HeaderMap) -> Result<(), Problem> {
    let foreign = |site: &str| !matches!(site, "same-origin" | "none");
    match headers.get("sec-fetch-site").map(|site| site.to_str().unwrap_or("?")) {
        Some(site) if foreign(site) => Err(Problem::forged()),
        _ => Ok(()),
    }
}

/// Refuses a change that does not come from a page of ours, or from a program.
pub fn may_change(caller: &Caller, headers: &HeaderMap) -> Result<(), Problem> {
    same_site(headers)?;
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let meant = match &caller.session {
        Some(session) => header(CSRF_HEADER).is_some_and(|token| session.is_csrf(token)),
        // A form cannot send this header, and a script of another site has to ask first, which
        // nobody grants.
        None => header("x-requested-with").is_some(),
    };
    if meant { Ok(()) } else { Err(Problem::forged()) }
}

fn basic(headers: &HeaderMap) -> Option<(String, String)> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = text.split_once(' ')?;
    let raw = STANDARD.decode(encoded.trim()).ok()?;
    let (user, password) = std::str::from_utf8(&raw).ok()?.split_once(':')?;
    scheme.eq_ignore_ascii_case("basic").then(|| (user.to_owned(), password.to_owned()))
}
