//! `/health`: what the node can do now.
//!
//! ```text
//! GET /health ──> what is known, at once
//!          └────> if that is old: a strict read in the background, as a client's would be
//! ```
//!
//! # Invariants
//! - Answered without waiting for anything but a lock, without a password, however many requests are under way.
//! - "ok" means: a strict read succeeded lately or nothing says that it would not, and the last write got through.
//!
//! # On failure
//! 503 with `"status": "degraded"` and the reason for each of `reads` and `writes`. Reads at the levels `session` and
//! `eventual` may go on meanwhile.
//!
//! # Limits
//! The strict read costs what a client's costs; it is made when somebody asks, at most every `FRESH`. Writes are judged by
//! those of SQL sessions: none is made for the purpose.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use parking_lot::Mutex;
use serde_json::json;
use telesto_common::Env;
use telesto_sql::SqlEngine;
use telesto_txn::TxnOptions;

use super::HttpState;

/// The path; its requests are let through before others.
pub const PATH: &str = "/health";
/// How long what a strict read has told is believed.
const FRESH: Duration = Duration::from_secs(5);
/// How long a strict read may take before the node counts as degraded.
const SLOW: Duration = Duration::from_secs(2);

/// What is known of the node.
#[derive(Debug)]
pub struct Health {
    env: Env,
    engine: Arc<SqlEngine>,
    started: Duration,
    reads: Mutex<Reads>,
}

#[derive(Debug, Default)]
struct Reads {
    /// Since when a strict read is under way.
    asking: Option<Duration>,
    /// When the last one ended, and its error.
    last: Option<(Duration, Option<String>)>,
}

impl Health {
    /// Of the node that serves `engine`, from now on.
    #[must_use]
    pub fn new(env: Env, engine: Arc<SqlEngine>) -> Arc<Self> {
        let started = env.clock.monotonic();
        Arc::new(Self { env, engine, started, reads: Mutex::default() })
    }

    /// What keeps the last write from having got through.
    pub(super) fn writes(&self) -> Option<String> {
        self.engine.write_trouble().map(|error| error.to_string())
    }

    /// What keeps strict reads from being answered; has one made if the last is old.
    pub(super) fn reads(self: &Arc<Self>) -> Option<String> {
        let now = self.env.clock.monotonic();
        let mut reads = self.reads.lock();
        let fresh = |at: Duration| now.saturating_sub(at) < FRESH;
        if reads.asking.is_none() && !reads.last.as_ref().is_some_and(|(at, _)| fresh(*at)) {
            reads.asking = Some(now);
            let health = Arc::clone(self);
            self.env.spawn("health", async move { health.ask().await });
        }
        match (reads.asking, &reads.last) {
            (Some(since), _) if now.saturating_sub(since) >= SLOW => Some(format!(
                "the newest state has been waited for for {} s; see that the bucket and the log's owner answer",
                now.saturating_sub(since).as_secs()
            )),
            (_, Some((_, error))) => error.clone(),
            (_, None) => None,
        }
    }

    async fn ask(self: Arc<Self>) {
        let options = TxnOptions { read_only: true, ..TxnOptions::default() };
        let error = match self.engine.database().begin(options).await {
            Ok(txn) => {
                txn.rollback();
                None
            }
            Err(error) => Some(error.to_string()),
        };
        let mut reads = self.reads.lock();
        reads.asking = None;
        reads.last = Some((self.env.clock.monotonic(), error));
    }
}

/// `GET /health`
pub async fn get(State(state): State<HttpState>) -> impl IntoResponse {
    let health = &state.health;
    let (lsn, timestamp) = state.database.applied();
    let uptime = health.env.clock.monotonic().saturating_sub(health.started);
    let reads = health.reads();
    let writes = health.writes();
    let well = reads.is_none() && writes.is_none();
    let ok = || "ok".to_owned();
    let body = json!({
        "status": if well { "ok" } else { "degraded" },
        "reads": reads.unwrap_or_else(ok),
        "writes": writes.unwrap_or_else(ok),
        "version": env!("CARGO_PKG_VERSION"),
        "applied_lsn": lsn,
        "applied_timestamp": timestamp.to_string(),
        "uptime_seconds": uptime.as_secs(),
    });
    (if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(body))
}
