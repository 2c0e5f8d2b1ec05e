//! What a session shows of itself to the others: its row of `pg_stat_activity`.
//!
//! # Invariants
//! Shown as of the moment it is asked for; a statement that is told to stop still counts as active
//! until it has.
//!
//! # Limits
//! [`QUERY_BYTES`] of a statement's text. The sessions of this process only.

use super::{Session, TransactionStatus, pg_micros};

/// Bytes kept of a statement's text, PostgreSQL's default.
const QUERY_BYTES: usize = 1024;

impl Session {
    fn now(&self) -> i64 {
        pg_micros(self.engine.env.clock.wall_micros())
    }

    /// A statement of this text begins.
    pub(super) fn shows_query(&self, sql: &str) {
        let now = self.now();
        let mut shown = self.shown.change();
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
        let mut shown = self.shown.change();
        shown.state = state;
        shown.state_change = now;
        shown.xact_start = self.block.as_ref().map(|block| block.started_micros);
    }
}
