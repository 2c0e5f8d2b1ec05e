//! Sessions over HTTP: what a request's token stands for, and which token its reply carries.
//!
//! ```text
//! Telesto-Session of a request ─► begin: label, once what it stands for is here ─► transaction ─► finish: Telesto-Session of the reply
//! ```
//! # Invariants
//! - In a region the token of a reply is the one that the deployment signs, as
//!   `SHOW telesto.session_token` gives it: every region takes it.
//! - A token that only names a label ([`token`]) is good in the region that gave it: another one
//!   would read it by its own clock. What it says is believed no further than the newest commit
//!   ([`telesto_txn::Error::SessionAhead`]), since anybody can write one.
//!
//! # On failure
//! 400 for what is no token here, 410 when something of what it stands for was lost with its
//! region, 503 while it is not here yet. Where nobody can be asked to sign, the reply still tells
//! of what was done: its token is good in this region only.
//!
//! # Limits
//! What was seen elsewhere is waited for `LONGEST`, a signature `SIGNED`.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use telesto_common::{Env, Label, RegionId};
use telesto_txn::Database;
use telesto_txn::regions::{NotAttached, RegionControl};

use crate::http::reply::ApiError;
use crate::http::token::{self, SESSION_HEADER};

/// The code of what is no token here.
pub const BAD_SESSION: &str = "bad_session";
/// How long a request waits for what its client has seen in another region; less than a request may
/// take.
const LONGEST: Duration = Duration::from_secs(30);
/// How long a reply waits for its token, where another node signs it.
const SIGNED: Duration = Duration::from_secs(1);

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Sessions {
    env: Env,
    database: Arc<dyn Database>,
}

impl Sessions {
    /// Of clients of `database`.
    #[must_use]
    pub fn new(env: Env, database: Arc<dyn Database>) -> Self {
        Self { env, database }
    }

    /// What the session has seen that a request belongs to; it is here.
    ///
    /// # Errors
    /// See the module's text.
    pub async fn begin(&self, headers: &HeaderMap) -> Result<Label, ApiError> {
        let Some(token) = headers.get(SESSION_HEADER) else { return Ok(Label::default()) };
        let token = token.to_str().map_err(|_| no_token("it is no text"))?.trim();
        label_of(token, self.database.region(), self.database.regions()).await
    }

    /// `reply` to a request of a session that has seen `seen` by now.
    pub async fn finish(&self, seen: Label, reply: impl IntoResponse) -> Response {
        let mut response = reply.into_response();
        let token = match self.database.regions() {
            Some(regions) => token_of(&self.env, &*regions, seen).await,
            None => token::encode(seen),
        };
        if let Ok(token) = HeaderValue::from_str(&token) {
            response.headers_mut().insert(SESSION_HEADER, token);
        }
        response
    }
}

/// The token of a session in a region that has seen `seen`.
pub async fn token_of(env: &Env, regions: &dyn RegionControl, seen: Label) -> String {
    let by = env.deadline(SIGNED);
    let reason = match env.within(by, "signing a session's token", regions.token(seen)).await {
        Ok(Ok(token)) => return token,
        Ok(Err(reason)) => reason,
        Err(error) => error.to_string(),
    };
    tracing::debug!(%reason, "a session's token is good in this region only");
    token::encode(seen)
}

/// What `token` stands for in region `me` of these `regions`; it is here.
///
/// # Errors
/// See the module's text.
pub async fn label_of(
    token: &str,
    me: RegionId,
    regions: Option<Arc<dyn RegionControl>>,
) -> Result<Label, ApiError> {
    if let Some(label) = token::decode(token) {
        return match label == Label::update(me, label.timestamp) {
            true => Ok(label),
            false => Err(no_token(&format!(
                "it was given by region {} for itself, and this is region {me}; a token is good in all regions when a node that carries its region's streams can be asked for it",
                label.source
            ))),
        };
    }
    let Some(regions) = regions else {
        return Err(no_token("it is damaged, or of regions, and this database is in none"));
    };
    regions.attach(token, LONGEST).await.map_err(|why| {
        let (status, code) = match &why {
            NotAttached::NoToken(_) => (StatusCode::BAD_REQUEST, BAD_SESSION),
            NotAttached::Lost(_) => (StatusCode::GONE, "session_lost"),
            NotAttached::NotYet(_) => (StatusCode::SERVICE_UNAVAILABLE, "not_here_yet"),
        };
        ApiError::new(status, code, format!("the session cannot go on here: {why}"))
    })
}

fn no_token(why: &str) -> ApiError {
    ApiError::new(
        StatusCode::BAD_REQUEST,
        BAD_SESSION,
        format!(
            "the {SESSION_HEADER} header holds no token of this database ({why}); send one exactly as it was returned, or none to begin a new session"
        ),
    )
}
