//! Errors of the HTTP API: a status, a code that programs can match, a message for people.
//!
//! ```json
//! {"error": {"code": "condition_failed", "message": "…", "version": "…"}}
//! ```

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use telesto_txn::Error as TxnError;

use crate::http::session::BAD_SESSION;
use crate::kv::KvError;

/// An error reply.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// A further member of the error object. Boxed: errors travel in every result of the API.
    detail: Option<Box<(&'static str, Value)>>,
}

impl ApiError {
    /// An error reply.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), detail: None }
    }

    /// The request is wrong in itself.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.detail = Some(Box::new((name, value.into())));
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut error = json!({"code": self.code, "message": self.message});
        if let Some(detail) = self.detail {
            let (name, value) = *detail;
            error[name] = value;
        }
        let mut response = (self.status, Json(json!({"error": error}))).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                let challenge =
                    HeaderValue::from_static("Basic realm=\"telesto\", charset=\"UTF-8\"");
                headers.insert(header::WWW_AUTHENTICATE, challenge);
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

impl From<KvError> for ApiError {
    fn from(error: KvError) -> Self {
        let message = error.to_string();
        match error {
            KvError::Key(_) => Self::bad_request(message),
            KvError::Value(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "value_too_large", message)
            }
            KvError::Condition { version, .. } => {
                Self::new(StatusCode::PRECONDITION_FAILED, "condition_failed", message)
                    .with("version", version.map(|version| version.to_string()))
            }
            KvError::Damaged(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "damaged", message),
            KvError::Transaction(error) => Self::from_transaction(&error, message),
        }
    }
}

impl ApiError {
    fn from_transaction(error: &TxnError, message: String) -> Self {
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        match error {
            TxnError::Conflict { .. } | TxnError::NotAdded { .. } => {
                Self::new(StatusCode::CONFLICT, "conflict", message)
            }
            TxnError::OutcomeUnknown { txn, reason } => {
                let message = format!(
                    "whether the write took effect could not be learned ({reason}); ask GET /v1/txn/{txn} before repeating it"
                );
                Self::new(unavailable, "outcome_unknown", message)
                    .with("transaction", txn.to_string())
            }
            TxnError::NotOwner { owner } => {
                Self::new(unavailable, "not_owner", message).with("owner", owner.clone())
            }
            TxnError::WrongShard(_) | TxnError::Unavailable(_) | TxnError::Elsewhere(_) => {
                Self::new(unavailable, "unavailable", message)
            }
            TxnError::SessionAhead { .. } => {
                Self::new(StatusCode::BAD_REQUEST, BAD_SESSION, message)
            }
            TxnError::ShuttingDown => Self::new(unavailable, "shutting_down", message),
            TxnError::OutOfMemory(_) => Self::new(unavailable, "out_of_memory", message),
            TxnError::LocalDisk(_) => Self::new(unavailable, "local_disk", message),
            TxnError::SnapshotTooOld { .. } => {
                Self::new(StatusCode::GONE, "snapshot_too_old", message)
            }
            TxnError::Corrupt(_) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "damaged", message)
            }
            TxnError::ReadOnly
            | TxnError::Ended(_)
            | TxnError::NoSavepoint
            | TxnError::Unexpected { .. }
            | TxnError::Outgoing { .. }
            | TxnError::TwoHomes(_)
            | TxnError::NotPlaced(_)
            | TxnError::TooLarge(_) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
            }
        }
    }
}
