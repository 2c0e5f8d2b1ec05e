//! The kinds of target: a Postgres URL, an HTTP key-value URL, an S3 URL.
//!
//! # Invariants
//! - All kinds are measured alike: one operation a lane, one request an operation, no retries of
//!   any library.
//! - What is shown of a URL has neither user nor password.
//!
//! # On failure
//! A URL that means nothing is refused with what to write.

mod http;
mod postgres;
mod s3;
mod wire;

use std::sync::Arc;

use reqwest::Url;
use telesto_common::Env;

use crate::error::{Error, Result};
use crate::target::Target;

pub(crate) use wire::{Connection, Server};

/// The target that `url` names.
///
/// # Errors
/// [`Error::Target`], with `name`.
pub fn open(env: &Env, name: &str, url: &str) -> Result<Arc<dyn Target>> {
    let refuse = |reason: String| Error::Target { name: name.to_owned(), reason };
    let parsed = Url::parse(url).map_err(|error| refuse(format!("it is no URL ({error})")))?;
    match parsed.scheme() {
        "postgres" | "postgresql" => {
            Ok(Arc::new(postgres::Postgres::new(env, url).map_err(refuse)?))
        }
        "http" | "https" => Ok(Arc::new(http::KeyValue::new(parsed).map_err(refuse)?)),
        "s3" => Ok(Arc::new(s3::Objects::new(&parsed).map_err(refuse)?)),
        other => Err(refuse(format!("nothing is known of {other}://"))),
    }
}
