//! The handlers of `/v1/kv` and `/v1/txn`.
//!
//! # Invariants
//! Every reply to a request that the database has carried out, or found nothing for, carries the
//! session's token: of the greater of what the one that came stood for and what this request saw or
//! wrote.
//!
//! # Limits
//! Those of [`crate::kv`]; bodies are bounded by `Limits::max_body_bytes`.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use telesto_common::TxnId;
use telesto_txn::{Level, Outcome, Staleness};

use crate::http::HttpState;
use crate::http::reply::ApiError;
use crate::kv::{Condition, ReadOptions, ScanRange, Versioned};

const DEFAULT_SCAN_ROWS: usize = 100;

/// How keys are written in paths, queries and replies.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KeyEncoding {
    /// As UTF-8 text.
    #[default]
    Text,
    /// As base64url without padding.
    Base64url,
}

/// Consistency of a read.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Consistency {
    #[default]
    Serializable,
    Session,
    Eventual,
}

impl From<Consistency> for Level {
    fn from(consistency: Consistency) -> Self {
        match consistency {
            Consistency::Serializable => Self::Serializable,
            Consistency::Session => Self::Session,
            Consistency::Eventual => Self::Eventual,
        }
    }
}

/// Query parameters of a read.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadQuery {
    #[serde(default)]
    consistency: Consistency,
    /// Seconds; -1: no bound.
    max_staleness: Option<i64>,
    #[serde(default)]
    key_encoding: KeyEncoding,
}

/// Query parameters of a write.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteQuery {
    #[serde(default)]
    key_encoding: KeyEncoding,
}

/// Query parameters of a scan.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScanQuery {
    #[serde(default)]
    consistency: Consistency,
    /// Seconds; -1: no bound.
    max_staleness: Option<i64>,
    #[serde(default)]
    key_encoding: KeyEncoding,
    prefix: Option<String>,
    start: Option<String>,
    end: Option<String>,
    limit: Option<usize>,
}

/// The body of a PUT: exactly one of the two.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PutBody {
    value: Option<String>,
    value_base64: Option<String>,
}

impl PutBody {
    fn bytes(self) -> Result<Vec<u8>, ApiError> {
        match (self.value, self.value_base64) {
            (Some(text), None) => Ok(text.into_bytes()),
            (None, Some(encoded)) => STANDARD.decode(encoded).map_err(|error| {
                ApiError::bad_request(format!("value_base64 is not base64: {error}"))
            }),
            _ => Err(ApiError::bad_request(
                "the body needs exactly one of \"value\" (text) and \"value_base64\" (bytes)",
            )),
        }
    }
}

impl KeyEncoding {
    fn decode(self, text: String) -> Result<Bytes, ApiError> {
        match self {
            Self::Text => Ok(text.into()),
            Self::Base64url => match URL_SAFE_NO_PAD.decode(&text) {
                Ok(raw) => Ok(raw.into()),
                Err(error) => {
                    Err(ApiError::bad_request(format!("key {text:?} is not base64url: {error}")))
                }
            },
        }
    }

    /// The members that name a key: `key`, or `key_base64url` where it is no text or was asked for.
    fn name(self, object: &mut Map<String, Value>, name: &str, key: &[u8]) {
        match (self, std::str::from_utf8(key)) {
            (Self::Text, Ok(text)) => object.insert(name.to_owned(), text.into()),
            _ => object.insert(format!("{name}_base64url"), URL_SAFE_NO_PAD.encode(key).into()),
        };
    }
}

fn row(encoding: KeyEncoding, key: &[u8], found: &Versioned) -> Map<String, Value> {
    let mut object = Map::new();
    encoding.name(&mut object, "key", key);
    match std::str::from_utf8(&found.value) {
        Ok(text) => object.insert("value".to_owned(), text.into()),
        Err(_) => object.insert("value_base64".to_owned(), STANDARD.encode(&found.value).into()),
    };
    object.insert("version".to_owned(), found.version.to_string().into());
    object
}

/// How old a read may be that is not strict, where it says so in seconds.
fn staleness(seconds: Option<i64>) -> Result<Staleness, ApiError> {
    let most = match seconds {
        None => return Ok(Staleness::USUAL),
        Some(-1) => None,
        Some(seconds) => Some(u64::try_from(seconds).map(Duration::from_secs).map_err(|_| {
            ApiError::bad_request(format!(
                "max_staleness is {seconds}; send seconds, or -1 to read what this node has however old it is"
            ))
        })?),
    };
    Ok(Staleness { most, ..Staleness::default() })
}

/// `If-Match` and `If-None-Match` as a condition.
fn condition(headers: &HeaderMap) -> Result<Condition, ApiError> {
    let text = |name: header::HeaderName| {
        headers.get(&name).map(|value| {
            value.to_str().map(str::trim).map_err(|_| {
                ApiError::bad_request(format!("the {name} header is not readable text"))
            })
        })
    };
    let matches = text(header::IF_MATCH).transpose()?;
    let none_match = text(header::IF_NONE_MATCH).transpose()?;
    match (matches, none_match) {
        (None, None) => Ok(Condition::Always),
        (Some("*"), None) => Ok(Condition::Present),
        (None, Some("*")) => Ok(Condition::Absent),
        (Some(version), None) => {
            let bare = version.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            bare.unwrap_or(version).parse::<TxnId>().map(Condition::Version).map_err(|_| {
                ApiError::bad_request(format!(
                    "If-Match: {version} is no version; send one exactly as it was returned, or *"
                ))
            })
        }
        (None, Some(_)) => Err(ApiError::bad_request("a write takes If-None-Match: * only")),
        (Some(_), Some(_)) => {
            Err(ApiError::bad_request("send one of If-Match and If-None-Match, not both"))
        }
    }
}

fn etag(version: TxnId) -> [(header::HeaderName, String); 1] {
    [(header::ETAG, format!("\"{version}\""))]
}

fn plain<T>(path: Result<Path<T>, PathRejection>) -> Result<T, ApiError> {
    path.map(|Path(path)| path).map_err(|error| ApiError::bad_request(error.body_text()))
}

fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    query.map(|Query(query)| query).map_err(|error| ApiError::bad_request(error.body_text()))
}

/// `GET /v1/kv/{key}`
pub async fn get(
    State(state): State<HttpState>,
    path: Result<Path<String>, PathRejection>,
    parameters: Result<Query<ReadQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let parameters = query(parameters)?;
    let key = parameters.key_encoding.decode(plain(path)?)?;
    let staleness = staleness(parameters.max_staleness)?;
    let session = state.sessions.begin(&headers).await?;
    let options = ReadOptions { level: parameters.consistency.into(), session, staleness };
    let (found, label) = state.kv.get(&key, options).await?;
    let reply = match found {
        Some(found) => {
            let body = Json(row(parameters.key_encoding, &key, &found));
            (etag(found.version), body).into_response()
        }
        None => {
            let message = "the key has no value; PUT one, or read another key";
            ApiError::new(StatusCode::NOT_FOUND, "not_found", message).into_response()
        }
    };
    Ok(state.sessions.finish(label, reply).await)
}

/// `PUT /v1/kv/{key}`
pub async fn put(
    State(state): State<HttpState>,
    path: Result<Path<String>, PathRejection>,
    parameters: Result<Query<WriteQuery>, QueryRejection>,
    headers: HeaderMap,
    body: Result<Json<PutBody>, JsonRejection>,
) -> Result<Response, ApiError> {
    let encoding = query(parameters)?.key_encoding;
    let key = encoding.decode(plain(path)?)?;
    let Json(body) = body.map_err(|error| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", error.body_text())
        }
        _ => ApiError::bad_request(format!(
            "{}; expected {{\"value\": \"text\"}} or {{\"value_base64\": \"…\"}} as application/json",
            error.body_text()
        )),
    })?;
    let (value, condition) = (body.bytes()?, condition(&headers)?);
    let session = state.sessions.begin(&headers).await?;
    let (version, done) = state.kv.put(&key, &value, condition, session).await?;
    let mut object = Map::new();
    encoding.name(&mut object, "key", &key);
    object.insert("version".to_owned(), version.to_string().into());
    let reply = (etag(version), Json(object));
    Ok(state.sessions.finish(done.label.max(session), reply).await)
}

/// `DELETE /v1/kv/{key}`
pub async fn delete(
    State(state): State<HttpState>,
    path: Result<Path<String>, PathRejection>,
    parameters: Result<Query<WriteQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let key = query(parameters)?.key_encoding.decode(plain(path)?)?;
    let condition = condition(&headers)?;
    let session = state.sessions.begin(&headers).await?;
    let (_, done) = state.kv.delete(&key, condition, session).await?;
    Ok(state.sessions.finish(done.label.max(session), StatusCode::NO_CONTENT).await)
}

/// `GET /v1/kv`
pub async fn scan(
    State(state): State<HttpState>,
    parameters: Result<Query<ScanQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let parameters = query(parameters)?;
    let encoding = parameters.key_encoding;
    let decode = |text: Option<String>| text.map(|text| encoding.decode(text)).transpose();
    let range = ScanRange {
        prefix: decode(parameters.prefix)?.unwrap_or_default(),
        start: decode(parameters.start)?,
        end: decode(parameters.end)?,
    };
    let limit = parameters.limit.unwrap_or(DEFAULT_SCAN_ROWS);
    if !(1..=crate::kv::MAX_SCAN_ROWS).contains(&limit) {
        return Err(ApiError::bad_request(format!(
            "limit is 1 to {}; read the rest with start set to \"next\"",
            crate::kv::MAX_SCAN_ROWS
        )));
    }
    let staleness = staleness(parameters.max_staleness)?;
    let session = state.sessions.begin(&headers).await?;
    let options = ReadOptions { level: parameters.consistency.into(), session, staleness };
    let (page, label) = state.kv.scan(&range, limit, options).await?;
    let rows: Vec<_> = page.rows.iter().map(|(key, found)| row(encoding, key, found)).collect();
    let mut object = Map::new();
    object.insert("rows".to_owned(), rows.into());
    if let Some(next) = page.next {
        encoding.name(&mut object, "next", &next);
    }
    Ok(state.sessions.finish(label, Json(object)).await)
}

/// `GET /v1/txn/{id}`
pub async fn transaction(
    State(state): State<HttpState>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let id: TxnId = plain(path)?
        .parse()
        .map_err(|error: telesto_common::Error| ApiError::bad_request(error.to_string()))?;
    let body = match state.kv.outcome(id).await? {
        Outcome::Committed(at) => {
            json!({"transaction": id, "outcome": "committed", "timestamp": at.to_string()})
        }
        Outcome::Aborted => json!({"transaction": id, "outcome": "aborted"}),
        Outcome::Unknown => json!({"transaction": id, "outcome": "unknown"}),
    };
    Ok(Json(body).into_response())
}
