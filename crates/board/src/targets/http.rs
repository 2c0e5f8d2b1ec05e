//! A server with Telesto's HTTP key-value API: records are keys, values are JSON
//! (`docs/reference/http.md`).
//!
//! # Invariants
//! A request is sent once: no redirects, no proxies, no retries. Idle connections are kept for the
//! next request, for less time than servers keep them: what a server closes as a request is on its
//! way would look like an outage.
//!
//! # On failure
//! Any status but 2xx is [`Kind::Rejected`] with the code of the body (a read of a missing key is
//! no failure); no answer is [`Kind::Unreachable`].
//!
//! # Limits
//! An update is a plain PUT: it makes a key that was not there. User and password of the URL go as
//! HTTP basic authentication.

use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, TryStreamExt as _};
use reqwest::{Client, Response, StatusCode, Url, redirect};
use serde::Deserialize;

use crate::target::{Failure, Kind, Lane, Target, value};

/// Where keys are when the URL has no path.
const DEFAULT_PATH: &str = "/v1/kv";
/// Records written at once when loading.
const AT_ONCE: usize = 16;
/// Servers close connections that were idle for five seconds and more.
const IDLE: Duration = Duration::from_secs(2);

/// A server.
#[derive(Debug)]
pub(crate) struct KeyValue {
    client: Client,
    base: Url,
    address: String,
}

impl KeyValue {
    pub fn new(mut base: Url) -> Result<Self, String> {
        if base.path() == "/" {
            base.set_path(DEFAULT_PATH);
        }
        if base.cannot_be_a_base() || base.query().is_some() {
            return Err("it must be a plain URL without a query".to_owned());
        }
        let mut shown = base.clone();
        // Neither can fail on a URL with a host.
        let _ = shown.set_username("");
        let _ = shown.set_password(None);
        let client = Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .pool_idle_timeout(IDLE)
            .build()
            .map_err(|error| format!("no HTTP client ({error})"))?;
        Ok(Self { client, base, address: shown.to_string() })
    }
}

#[async_trait]
impl Target for KeyValue {
    fn address(&self) -> &str {
        &self.address
    }

    async fn open(&self) -> Result<Box<dyn Lane>, Failure> {
        Ok(Box::new(Keys { client: self.client.clone(), base: self.base.clone() }))
    }
}

struct Keys {
    client: Client,
    base: Url,
}

/// A value as the API tells it.
#[derive(Deserialize)]
struct Told {
    value: String,
}

/// An error as the API tells it.
#[derive(Deserialize)]
struct Refused {
    error: Reason,
}

#[derive(Deserialize)]
struct Reason {
    code: String,
    message: String,
}

fn failure(error: reqwest::Error) -> Failure {
    // Its URL may have a password.
    Failure::of(Kind::Unreachable, &error.without_url())
}

async fn rejected(response: Response) -> Failure {
    let status = response.status();
    let body = response.bytes().await.unwrap_or_default();
    let told = serde_json::from_slice::<Refused>(&body);
    let reason = told.map(|told| format!(" {}: {}", told.error.code, told.error.message));
    Failure::new(Kind::Rejected, format!("{}{}", status.as_u16(), reason.unwrap_or_default()))
}

impl Keys {
    fn url(&self, record: u64) -> Url {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().push("telesto-board").push(&format!("{record:012}"));
        }
        url
    }

    async fn put(&self, record: u64, value: &str) -> Result<(), Failure> {
        let body = serde_json::json!({ "value": value }).to_string();
        let request = self.client.put(self.url(record));
        let request = request.header("content-type", "application/json").body(body);
        let response = request.send().await.map_err(failure)?;
        if !response.status().is_success() {
            return Err(rejected(response).await);
        }
        // Read to its end, so that the connection can be used again.
        response.bytes().await.map_err(failure)?;
        Ok(())
    }
}

#[async_trait]
impl Lane for Keys {
    async fn read(&mut self, record: u64) -> Result<Option<String>, Failure> {
        let response = self.client.get(self.url(record)).send().await.map_err(failure)?;
        if response.status() == StatusCode::NOT_FOUND {
            response.bytes().await.map_err(failure)?;
            return Ok(None);
        }
        if !response.status().is_success() {
            return Err(rejected(response).await);
        }
        let body = response.bytes().await.map_err(failure)?;
        match serde_json::from_slice::<Told>(&body) {
            Ok(told) => Ok(Some(told.value)),
            Err(error) => {
                Err(Failure::new(Kind::Wrong, format!("the answer is no value ({error})")))
            }
        }
    }

    async fn update(&mut self, record: u64, value: &str) -> Result<(), Failure> {
        self.put(record, value).await
    }

    async fn load(&mut self, records: Range<u64>) -> Result<(), Failure> {
        let this = &*self;
        stream::iter(records.map(Ok))
            .try_for_each_concurrent(AT_ONCE, |record| async move {
                this.put(record, &value(record, 0)).await
            })
            .await
    }

    fn usable(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_below_the_path_and_the_password_is_not_shown() {
        let url = Url::parse("http://ada:secret@localhost:8080").expect("a URL");
        let target = KeyValue::new(url).expect("a target");
        assert_eq!(target.address(), "http://localhost:8080/v1/kv");
        let keys = Keys { client: target.client.clone(), base: target.base.clone() };
        assert_eq!(keys.url(7).path(), "/v1/kv/telesto-board/000000000007");
    }
}
