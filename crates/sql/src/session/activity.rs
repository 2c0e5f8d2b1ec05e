//! What a session shows of itself to the others: its row of `pg_stat_activity`.
//!
//! # Invariants
//! Shown as of the moment it is asked for; a statement that is told to stop still counts as active until it has.
//!
//! # Limits
//! [`QUERY_BYTES`] of a statement's text. The sessions of this process only.

use parking_lot::Mutex;

use super::{Session, TransactionStatus, pg_micros};

/// Bytes kept of a statement's text, PostgreSQL's default.
const QUERY_BYTES: usize = 1024;

/// One session, as others see it. Times are microseconds since 2000-01-01 UTC.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity {
    pub(crate) user: String,
    pub(crate) application_name: String,
    pub(crate) backend_start: i64,
    pub(crate) xact_start: Option<i64>,
    pub(crate) query_start: Option<i64>,
    pub(crate) state_change: i64,
    pub(crate) state: &'static str,
    pub(crate) query: String,
}

/// A session's activity, shared with the others.
#[derive(Debug, Default)]
pub(crate) struct Shown(Mutex<Activity>);

impl Shown {
    pub(super) fn of(user: &str, now: i64) -> Self {
        Self(Mutex::new(Activity {
            user: user.to_owned(),
            backend_start: now,
            state_change: now,
            state: "idle",
            ..Activity::default()
        }))
    }

    pub(crate) fn get(&self) -> Activity {
        self.0.lock().clone()
    }
}

impl Session {
    fn now(&self) -> i64 {
        pg_micros(self.engine.env.clock.wall_micros())
    }

    /// A statement of this text begins.
    pub(super) fn shows_query(&self, sql: &str) {
        let now = self.now();
        let mut shown = self.shown.0.lock();
        shown.state = "active";
        shown.state_change = now;
        shown.query_start = Some(now);
        shown.xact_start = Some(self.block.as_ref().map_or(now, |block| block.started_micros));
        shown.query.clear();
        shown.query.push_str(&sql[..sql.floor_char_boundary(QUERY_BYTES)]);
        if shown.application_name != self.settings.application_name {
            shown.application_name.clone_from(&self.settings.application_name);
        }
    }

    /// The session waits for its client.
    pub(super) fn shows_idle(&self) {
        let state = match self.transaction_status() {
            TransactionStatus::Idle => "idle",
            TransactionStatus::InTransaction => "idle in transaction",
            TransactionStatus::Failed => "idle in transaction (aborted)",
        };
        let now = self.now();
        let mut shown = self.shown.0.lock();
        shown.state = state;
        shown.state_change = now;
        shown.xact_start = self.block.as_ref().map(|block| block.started_micros);
    }
}
