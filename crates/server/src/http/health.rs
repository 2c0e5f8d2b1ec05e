//! `/health`: what the node can do now.
//!
//! ```text
//! GET /health ──> what is known, at once
//!          └────> if that is old: a strict read, as a client's would be, which is waited for while it is not slow
//! ```
//!
//! # Invariants
//! - Answered within `SLOW`, without a password, however many requests are under way. What was
//!   found longer ago than `FRESH` is told to nobody as the present state.
//! - "ok" means: a strict read succeeded lately or nothing says that it would not, and the last
//!   write got through.
//!
//! # On failure
//! 503 with `"status": "degraded"` and the reason for each of `reads` and `writes`. Reads at the
//! levels `session` and `eventual` may go on meanwhile.
//!
//! # Limits
//! The strict read costs what a client's costs; it is made when somebody asks, at most every
//! `FRESH`. Writes are judged by those of SQL sessions: none is made for the purpose.

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
use tokio::sync::Notify;

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
    /// A strict read has ended.
    ended: Notify,
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
        Arc::new(Self { env, engine, started, reads: Mutex::default(), ended: Notify::new() })
    }

    /// What keeps the last write from having got through.
    pub(super) fn writes(&self) -> Option<String> {
        self.engine.write_trouble().map(|error| error.to_string())
    }

    /// What keeps strict reads from being answered; has one made if the last is old, and waits for
    /// it for a while.
    pub(super) async fn reads(self: &Arc<Self>) -> Option<String> {
        let ended = self.ended.notified();
        let mut ended = std::pin::pin!(ended);
        ended.as_mut().enable();
        if let Some(known) = self.known() {
            return known;
        }
        let ended = self.env.within_timeout(SLOW, "a strict read for /health", ended);
        // What has come meanwhile, or that nothing has, is told below.
        let _ = ended.await;
        if let Some(known) = self.known() {
            return known;
        }
        let since = self.reads.lock().asking.unwrap_or_default();
        Some(Self::waited(self.env.clock.monotonic().saturating_sub(since)))
    }

    /// What is known, if it is new enough; has a strict read made if it is not.
    fn known(self: &Arc<Self>) -> Option<Option<String>> {
        let now = self.env.clock.monotonic();
        let mut reads = self.reads.lock();
        let fresh = |at: Duration| now.saturating_sub(at) < FRESH;
        let last = reads.last.as_ref().filter(|(at, _)| fresh(*at)).map(|(_, error)| error.clone());
        if reads.asking.is_none() && last.is_none() {
            reads.asking = Some(now);
            let health = Arc::clone(self);
            self.env.spawn("health", async move { health.ask().await });
        }
        match reads.asking.map(|since| now.saturating_sub(since)) {
            Some(waited) if waited >= SLOW => Some(Some(Self::waited(waited))),
            _ => last,
        }
    }

    fn waited(so_long: Duration) -> String {
        format!(
            "the newest state has been waited for for {} s; see that the bucket and the log's owner answer",
            so_long.as_secs()
        )
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
        drop(reads);
        self.ended.notify_waiters();
    }
}

/// `GET /health`
pub async fn get(State(state): State<HttpState>) -> impl IntoResponse {
    let health = &state.health;
    let (lsn, timestamp) = state.database.applied();
    let uptime = health.env.clock.monotonic().saturating_sub(health.started);
    let reads = health.reads().await;
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

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use telesto_common::{Lsn, Timestamp, TxnId};
    use telesto_sql::SqlOptions;
    use telesto_testkit::World;
    use telesto_txn::memory::MemoryDatabase;
    use telesto_txn::{
        ClusterView, Database, LogKind, MessageSink, Outcome, Result, Space, Transaction,
    };

    use super::*;

    /// A database that begins nothing while the others of its log are away.
    #[derive(Debug)]
    struct Gated {
        inner: MemoryDatabase,
        env: Env,
        away: AtomicBool,
    }

    #[async_trait]
    impl Database for Gated {
        async fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Transaction>> {
            while self.away.load(Ordering::Acquire) {
                self.env.clock.sleep(Duration::from_millis(100)).await;
            }
            self.inner.begin(options).await
        }

        async fn outcome(&self, txn: TxnId) -> Result<Outcome> {
            self.inner.outcome(txn).await
        }

        fn hear(&self, sink: Weak<dyn MessageSink>) {
            self.inner.hear(sink);
        }

        fn applied(&self) -> (Lsn, Timestamp) {
            self.inner.applied()
        }

        async fn space(&self) -> Result<Space> {
            self.inner.space().await
        }

        fn cluster(&self) -> ClusterView {
            self.inner.cluster()
        }

        async fn switch_log(&self, to: LogKind) -> Result<()> {
            self.inner.switch_log(to).await
        }

        async fn shutdown(&self) -> Result<()> {
            self.inner.shutdown().await
        }
    }

    #[test]
    fn first_who_asks_after_the_others_went_away_hears_of_it() {
        World::run(1, false, async |world| {
            let env = world.env.clone();
            let inner = MemoryDatabase::new(env.clone());
            let away = AtomicBool::new(false);
            let gated = Arc::new(Gated { inner, env: env.clone(), away });
            let database = Arc::clone(&gated) as Arc<dyn Database>;
            let options = SqlOptions::default();
            let engine = SqlEngine::open(database, env.clone(), options).await.expect("opens");
            let health = Health::new(env, engine);
            assert_eq!(health.reads().await, None);
            gated.away.store(true, Ordering::Release);
            assert_eq!(health.reads().await, None, "what was found just now");
            world.sleep(Duration::from_secs(60)).await;
            let told = health.reads().await.expect("trouble");
            assert!(told.contains("waited for for 2 s"), "{told}");
            gated.away.store(false, Ordering::Release);
            world.sleep(Duration::from_secs(60)).await;
            assert_eq!(health.reads().await, None, "and that they are back");
        });
    }
}
