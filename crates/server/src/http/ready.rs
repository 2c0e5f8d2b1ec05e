//! `/ready`: whether clients should come here, and whether another node may be taken away.
//!
//! ```text
//! GET /ready ──> /health's reads and writes  ┐
//!          └───> is this node stopping?      ├─ all well: 200; else 503 with each reason
//!          └───> does its copy of the log count? (one message to the owner, at most every 2 s)
//! ```
//! An orchestrator restarts or evicts one node after the other, and waits for each until it is
//! ready again. A node that serves clients but whose copy of the log is behind is one more loss
//! away from a log that stands still: it is not ready.
//!
//! # Invariants
//! - A copy that is missing makes the node unready that should keep it, not those whose copies are
//!   well: clients always find somebody.
//! - Answered within `PATIENCE` and what [`Health`] takes, without a password.
//!
//! # On failure
//! What cannot be found out is a reason not to be ready.
//!
//! # Limits
//! What was found out is believed for `FRESH`.

use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use serde_json::json;
use telesto_common::{Deadline, Env};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::HttpState;
use super::health::Health;

/// The path; its requests are let through before others.
pub const PATH: &str = "/ready";
/// How long what was found out is believed.
const FRESH: Duration = Duration::from_secs(2);
/// How long finding out may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// How a node does its part among others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// What is missing of it; nothing when all is well.
    pub trouble: Option<String>,
    /// Copies of the newest log that take entries, and copies that there are to be, where that is
    /// known.
    pub copies: Option<(usize, usize)>,
}

/// Knows how this node does its part.
#[async_trait]
pub trait Standing: Debug + Send + Sync {
    /// Finds it out, by asking others if need be.
    async fn part(&self, by: Deadline) -> Part;
}

/// Whether the node is ready.
#[derive(Debug)]
pub struct Readiness {
    env: Env,
    health: Arc<Health>,
    standing: Option<Arc<dyn Standing>>,
    stopping: OnceLock<CancellationToken>,
    part: Mutex<Option<(Duration, Part)>>,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    reads: Option<String>,
    writes: Option<String>,
    stopping: bool,
    part: Part,
}

impl Found {
    /// Whether clients should come here and the node counts as whole.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.reads.is_none()
            && self.writes.is_none()
            && !self.stopping
            && self.part.trouble.is_none()
    }
}

impl Readiness {
    /// Of the node whose health is `health`.
    #[must_use]
    pub fn new(env: Env, health: Arc<Health>, standing: Option<Arc<dyn Standing>>) -> Arc<Self> {
        Arc::new(Self {
            env,
            health,
            standing,
            stopping: OnceLock::new(),
            part: Mutex::const_new(None),
        })
    }

    /// When `stopping` is cancelled, the node is not ready any more.
    pub fn stops_with(&self, stopping: CancellationToken) {
        // A server stops once.
        let _ = self.stopping.set(stopping);
    }

    async fn part(&self) -> Part {
        let Some(standing) = &self.standing else { return Part::default() };
        // Who comes while it is being found out shares the answer.
        let mut kept = self.part.lock().await;
        let now = self.env.clock.monotonic();
        if let Some((at, part)) = &*kept
            && now.saturating_sub(*at) < FRESH
        {
            return part.clone();
        }
        let by = self.env.deadline(PATIENCE);
        let part = match self.env.within(by, "the other nodes", standing.part(by)).await {
            Ok(part) => part,
            Err(_) => {
                let trouble = format!("the other nodes did not answer within {PATIENCE:?}");
                Part { trouble: Some(trouble), copies: None }
            }
        };
        *kept = Some((self.env.clock.monotonic(), part.clone()));
        part
    }

    /// Finds it out.
    pub async fn look(&self) -> Found {
        let part = self.part().await;
        Found {
            reads: self.health.reads().await,
            writes: self.health.writes(),
            stopping: self.stopping.get().is_some_and(CancellationToken::is_cancelled),
            part,
        }
    }
}

/// `GET /ready`
pub async fn get(State(state): State<HttpState>) -> impl IntoResponse {
    let found = state.ready.look().await;
    let ready = found.is_ready();
    let ok = || "ok".to_owned();
    let copies = found.part.copies;
    let body = json!({
        "status": if ready { "ready" } else { "not ready" },
        "reads": found.reads.unwrap_or_else(ok),
        "writes": found.writes.unwrap_or_else(ok),
        "stopping": found.stopping,
        "log_copy": found.part.trouble.unwrap_or_else(ok),
        "copies": copies.map(|(following, _)| following),
        "copies_wanted": copies.map(|(_, wanted)| wanted),
    });
    (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(body))
}
