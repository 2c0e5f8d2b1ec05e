//! Why a request of the console was not answered: a status, a code, a message with the next step.
//!
//! ```json
//! {"error": {"code": "42P01", "message": "…", "detail": "…", "hint": "…", "position": 15}}
//! ```
//!
//! # Purpose
//! One form for errors of SQL and of the console itself; `code` is an SQLSTATE or a word.
//!
//! # Invariants
//! Every one says what the visitor can do, in `message` or `hint`.
//!
//! # On failure
//! Making the reply cannot fail.
//!
//! # Limits
//! Places in the statement (`position`) are PostgreSQL's: characters from 1.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;
use telesto_server::inside::Refused;
use telesto_sql::{Error, SqlState};

/// What went wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    #[serde(skip)]
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// Seconds after which to try again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
}

impl Problem {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            detail: None,
            hint: None,
            position: None,
            retry_after: None,
        }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    pub fn not_found(what: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("there is no {what} that this role may see; the page Data lists what there is"),
        )
    }

    pub fn unauthorized() -> Self {
        let message = "log in first: at /login, or with HTTP basic authentication";
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
    }

    pub fn forged() -> Self {
        let message = "the request does not come from a page of this console; load the page again and repeat it";
        Self::new(StatusCode::FORBIDDEN, "csrf", message)
    }

    pub fn read_only() -> Self {
        let message = "this console may only read; start the server with --console read-write to let it write";
        Self::new(StatusCode::FORBIDDEN, "read_only", message)
    }

    pub fn too_large(what: &str, most: usize) -> Self {
        let message = format!("{what} may have {most} bytes at most; use psql for more");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    }

    pub fn busy(code: &'static str, message: impl Into<String>, seconds: u64) -> Self {
        let problem = Self::new(StatusCode::TOO_MANY_REQUESTS, code, message);
        Self { retry_after: Some(seconds.max(1)), ..problem }
    }
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        let status = match error.code() {
            SqlState::INTERNAL_ERROR | SqlState::DATA_CORRUPTED => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            SqlState::ADMIN_SHUTDOWN => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::UNPROCESSABLE_ENTITY,
        };
        let fields = error.fields();
        Self {
            detail: fields.detail.clone(),
            hint: fields.hint.clone(),
            position: fields.position,
            ..Self::new(status, error.code().0, error.message())
        }
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        Self {
            retry_after: Some(1),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(json!({"error": self}))).into_response();
        if let Some(seconds) = self.retry_after
            && let Ok(value) = HeaderValue::from_str(&seconds.to_string())
        {
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
        response
    }
}
