//! What an error of a store tells about the request's effect.
//!
//! # Invariants
//! A request is called "not applied" only when it cannot have reached the store's data: everything
//! that leaves a doubt is ambiguous, and the caller reads back.
//!
//! # Limits
//! `object_store` keeps HTTP status codes in its messages only; they are read from there
//! (`non-2xx status code: 503 …`). An unknown message is ambiguous, which is safe.

use std::error::Error as StdError;
use std::io::ErrorKind;

use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};

use crate::encrypted::Undecipherable;
use crate::error::Error;

/// What a failed request tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There is no such object.
    Missing,
    /// The key is taken (or the condition on the object does not hold).
    Taken,
    /// Refused for good: credentials, permissions, bad request, missing bucket. Nothing changed.
    Refused,
    /// The local file system refused one of a request's steps (no space, no quota, no permission,
    /// now read-only). What came before that step stands: a put may have made the object's name and
    /// failed to sync its folder. Nothing more will come of it, so one look settles it.
    Stopped,
    /// Did not reach the store's data (refused connection, throttled); repeat it at will.
    NotApplied,
    /// May or may not have happened.
    Ambiguous,
}

/// A failure made by this crate (fault model, time-outs), carried inside `object_store::Error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Injected {
    #[error("the store answered 503 slow down")]
    Throttled,
    #[error("the store answered 500 internal error")]
    ServerError,
    #[error("the connection could not be made")]
    NoConnection,
    #[error("the connection was reset before the answer came")]
    Reset,
    #[error("no answer within the request time-out")]
    TimedOut,
}

impl Injected {
    pub(crate) fn error(self) -> StoreError {
        StoreError::Generic { store: "bucket", source: Box::new(self) }
    }
}

/// Why an object could not be decrypted, if that is what failed.
pub(crate) fn undecipherable(error: &StoreError) -> Option<Error> {
    let StoreError::NotSupported { source } = error else { return None };
    if let Some(keys) = source.downcast_ref::<Error>() {
        return Some(keys.clone());
    }
    let found = source.downcast_ref::<Undecipherable>()?;
    let reason = found.damage.to_string();
    Some(Error::Undecipherable { key: found.object.clone(), reason })
}

/// Classifies a failure.
pub(crate) fn classify(error: &StoreError) -> Failure {
    let status = status(error);
    match error {
        StoreError::NotFound { .. } if says(error, "NoSuchBucket") => Failure::Refused,
        StoreError::NotFound { .. } => Failure::Missing,
        // 409 on a conditional put: another request for the key is under way and may yet fail.
        StoreError::AlreadyExists { .. } if status == Some(409) => Failure::Ambiguous,
        StoreError::AlreadyExists { .. }
        | StoreError::Precondition { .. }
        | StoreError::NotModified { .. } => Failure::Taken,
        StoreError::PermissionDenied { .. }
        | StoreError::Unauthenticated { .. }
        | StoreError::InvalidPath { .. }
        | StoreError::NotSupported { .. }
        | StoreError::NotImplemented { .. }
        | StoreError::UnknownConfigurationKey { .. } => Failure::Refused,
        _ => match status {
            Some(429) => Failure::NotApplied,
            Some(408) => Failure::Ambiguous,
            // S3's "RequestTimeout" is a 400: the body did not arrive in time.
            Some(400) if says(error, "RequestTimeout") => Failure::Ambiguous,
            Some(400..=499) => Failure::Refused,
            Some(_) => Failure::Ambiguous,
            None => by_source(error),
        },
    }
}

fn by_source(error: &StoreError) -> Failure {
    let mut source: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(cause) = source {
        if let Some(injected) = cause.downcast_ref::<Injected>() {
            return match injected {
                Injected::NoConnection => Failure::NotApplied,
                _ => Failure::Ambiguous,
            };
        }
        if let Some(http) = cause.downcast_ref::<HttpError>() {
            return match http.kind() {
                HttpErrorKind::Connect => Failure::NotApplied,
                _ => Failure::Ambiguous,
            };
        }
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            return match io.kind() {
                ErrorKind::StorageFull
                | ErrorKind::QuotaExceeded
                | ErrorKind::PermissionDenied
                | ErrorKind::ReadOnlyFilesystem => Failure::Stopped,
                ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::InvalidFilename => {
                    Failure::Refused
                }
                _ => Failure::Ambiguous,
            };
        }
        source = cause.source();
    }
    Failure::Ambiguous
}

fn says(error: &StoreError, word: &str) -> bool {
    error.to_string().contains(word)
}

/// The HTTP status in an error's message.
fn status(error: &StoreError) -> Option<u16> {
    let text = error.to_string();
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// The message of an error as it may be shown: one line, bounded, without the query part of any
/// URL (signatures and tokens travel there).
pub(crate) fn shown(error: &StoreError) -> String {
    let mut out = String::new();
    for word in error.to_string().split_whitespace() {
        let word = if word.contains("://") {
            word.split_once('?').map_or(word, |(url, _)| url)
        } else {
            word
        };
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
        if out.len() > 400 {
            out.push('…');
            break;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> StoreError {
        StoreError::Generic { store: "S3", source: text.to_owned().into() }
    }

    #[test]
    fn failures_are_classified_by_what_they_tell_of_the_effect() {
        let status = |code: &str| generic(&format!("Server returned non-2xx status code: {code}"));
        let io = |kind: ErrorKind| StoreError::Generic {
            store: "file",
            source: Box::new(std::io::Error::from(kind)),
        };
        let taken = |text: &str| StoreError::AlreadyExists {
            path: "k".into(),
            source: text.to_owned().into(),
        };
        for (error, expected) in [
            (status("503 Slow Down"), Failure::Ambiguous),
            (status("500 Internal"), Failure::Ambiguous),
            (status("429 Too Many"), Failure::NotApplied),
            (status("400 Bad Request: MalformedXML"), Failure::Refused),
            (status("400 Bad Request: RequestTimeout"), Failure::Ambiguous),
            (taken("status code: 412 Precondition Failed"), Failure::Taken),
            (taken("status code: 409 Conflict"), Failure::Ambiguous),
            (taken("the key is taken"), Failure::Taken),
            (io(ErrorKind::StorageFull), Failure::Stopped),
            (io(ErrorKind::QuotaExceeded), Failure::Stopped),
            (io(ErrorKind::PermissionDenied), Failure::Stopped),
            (io(ErrorKind::Other), Failure::Ambiguous),
            (Injected::NoConnection.error(), Failure::NotApplied),
            (Injected::TimedOut.error(), Failure::Ambiguous),
            (generic("who knows"), Failure::Ambiguous),
        ] {
            assert_eq!(classify(&error), expected, "{error}");
        }
    }

    #[test]
    fn shown_error_drops_url_queries_and_length() {
        let long = "x".repeat(2000);
        let text = shown(&generic(&format!("GET https://h/p?sig=hush failed: {long} {long}")));
        assert!(!text.contains("hush") && text.contains("https://h/p"));
        assert!(text.len() < 5000);
    }
}
