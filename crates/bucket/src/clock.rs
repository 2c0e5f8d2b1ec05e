//! The store's own clock, as its answers tell it.
//!
//! # Purpose
//! Objects are aged by the store's clock, so a process that must know whether others may have aged
//! something out under it asks the same clock, not its own, which may have stood still with the
//! whole machine. HTTP answers carry the time (`Date`, RFC 9110 §6.6.1), so it costs nothing.
//!
//! # Invariants
//! - What is told is the greatest time of any answer so far: an answer that was sent before a pause
//!   and is looked at after it changes nothing.
//! - Answers of intermediaries about their own failures (5xx) tell nothing.
//!
//! # On failure
//! A store that tells no time leaves the clock unknown. A wrong answer from far in the future is
//! forgotten with the next one that is a day or more before it.
//!
//! # Limits
//! Whole seconds. Different front ends of a store differ by what their clocks differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use chrono::DateTime;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};

/// An answer this much older than the newest one shows that the newest one was wrong.
const WRONG_AHEAD_MICROS: u64 = 24 * 3600 * 1_000_000;

/// What a store's answers say of its time. Shared by all who talk to that store in this process.
#[derive(Debug, Default)]
pub struct StoreClock {
    /// Microseconds since 1970; 0: never heard.
    newest: AtomicU64,
}

impl StoreClock {
    /// An answer of the store says that it is `micros` microseconds after 1970.
    pub fn heard(&self, micros: u64) {
        let newer = |newest: u64| {
            let wrong = micros.saturating_add(WRONG_AHEAD_MICROS) < newest;
            (micros > newest || wrong).then_some(micros)
        };
        // Unchanged is as good as changed.
        let _ = self.newest.fetch_update(Ordering::AcqRel, Ordering::Acquire, newer);
    }

    /// Microseconds since 1970 as of the store's newest answer; `None` when it never said.
    #[must_use]
    pub fn micros(&self) -> Option<u64> {
        Some(self.newest.load(Ordering::Acquire)).filter(|micros| *micros > 0)
    }
}

/// Connects as `object_store` does by itself, and listens to what answers say of the time.
#[derive(Debug)]
pub(crate) struct Listening(pub Arc<StoreClock>);

impl HttpConnector for Listening {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Heard { client, clock: Arc::clone(&self.0) }))
    }
}

#[derive(Debug)]
struct Heard {
    client: HttpClient,
    clock: Arc<StoreClock>,
}

#[async_trait]
impl HttpService for Heard {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.client.execute(request).await?;
        let date = response.headers().get("date").and_then(|date| date.to_str().ok());
        if !response.status().is_server_error()
            && let Some(micros) = date.and_then(micros_of)
        {
            self.clock.heard(micros);
        }
        Ok(response)
    }
}

/// An HTTP date as microseconds since 1970.
fn micros_of(date: &str) -> Option<u64> {
    let date = DateTime::parse_from_rfc2822(date).ok()?;
    u64::try_from(date.timestamp_micros()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_tells_the_newest_answer_and_forgets_one_from_far_ahead() {
        let clock = StoreClock::default();
        assert_eq!(clock.micros(), None);
        clock.heard(5_000_000);
        clock.heard(3_000_000);
        assert_eq!(clock.micros(), Some(5_000_000));
        let wrong = 5_000_000 + 2 * WRONG_AHEAD_MICROS;
        clock.heard(wrong);
        assert_eq!(clock.micros(), Some(wrong));
        clock.heard(6_000_000);
        assert_eq!(clock.micros(), Some(6_000_000));
    }

    #[test]
    fn http_date_is_read_and_anything_else_is_not() {
        assert_eq!(micros_of("Tue, 15 Nov 1994 08:12:31 GMT"), Some(784_887_151_000_000));
        for other in ["", "yesterday", "1994-11-15T08:12:31Z", "Tue, 15 Nov 1894 08:12:31 GMT"] {
            assert_eq!(micros_of(other), None, "{other:?}");
        }
    }
}
