//! What functions may ask of the statement that runs them.
//!
//! # Purpose
//! Functions see this trait and never a session: whoever executes statements says here what a
//! statement's time, randomness, sequences and locks are.
//!
//! # Invariants
//! - Only [`Execution::answer`] waits. Everything else answers at once from what the statement has.
//! - `now()` is the start of this try of the transaction, so that a transaction executed again has
//!   a time of its own.
//!
//! # On failure
//! Errors carry PostgreSQL's SQLSTATE and reach the client as they are.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use telesto_common::TxnId;
use telesto_sql_catalog::{CatalogSnapshot, SequenceSession};
use telesto_sql_types::{Datum, Result, SqlState};
use telesto_txn::{Space, TxnOptions};

use crate::context::Request;
use crate::settings::Settings;

/// A statement under way, as functions see it.
#[async_trait]
pub trait Execution: Debug + Send + Sync {
    /// The session's settings.
    fn settings(&self) -> &Settings;

    /// The catalog of the statement's transaction.
    fn catalog(&self) -> &Arc<CatalogSnapshot>;

    /// The value of `$number` (1-based).
    ///
    /// # Errors
    /// 42P02 when there is none.
    fn parameter(&self, number: usize) -> Result<&Datum>;

    /// `now()`: microseconds since 2000-01-01 UTC.
    fn transaction_micros(&self) -> i64;

    /// `statement_timestamp()`: microseconds since 2000-01-01 UTC.
    fn statement_micros(&self) -> i64;

    /// `clock_timestamp()`: microseconds since 2000-01-01 UTC.
    fn clock_micros(&self) -> i64;

    /// A random number from 0 up to 1: of the sequence that `setseed` began in this session, if it
    /// did.
    fn random_f64(&self) -> f64;

    /// Begins the session's sequence of random numbers that belongs to a seed from -1 to 1.
    fn set_seed(&self, seed: f64);

    /// 128 random bits.
    fn random_u128(&self) -> u128;

    /// The transaction's id.
    fn transaction_id(&self) -> TxnId;

    /// The options of the transaction (level, read-only).
    fn transaction_options(&self) -> &TxnOptions;

    /// Whether the transaction may only read because somebody said so: one that a query opened for
    /// itself is of that kind too.
    fn only_reads(&self) -> bool;

    /// Positions of sequences that this session has seen.
    fn sequences(&self) -> &SequenceSession;

    /// What each index takes, once the statement has measured it ([`Request::MeasureSpace`]).
    fn space(&self) -> Option<Arc<Space>>;

    /// Queues a message for the commit.
    ///
    /// # Errors
    /// 22023 for a channel or a payload that is too long, 54000 for a full queue.
    fn notify(&self, channel: &str, payload: &str) -> Result<()>;

    /// The channels that the session listens to.
    fn listening(&self) -> Vec<String>;

    /// How full the queue of messages is: 0 to 1.
    fn notify_queue_usage(&self) -> f64;

    /// What this process has asked of the bucket, as JSON; `None` where there is no bucket.
    fn bucket_usage(&self) -> Option<String>;

    /// Begins the statistics of statements anew: of one role, of one statement, or of all where
    /// these are `None`.
    fn reset_statements(&self, role: Option<u32>, query_id: Option<i64>);

    /// Sends a WARNING to the client.
    fn warn(&self, code: SqlState, message: String);

    /// Keeps a call of `set_config` until the statement is done; the parameter's new value as SHOW
    /// prints it.
    ///
    /// # Errors
    /// Those of [`Settings::set`].
    fn set_config(&self, name: &str, value: &str, local: bool) -> Result<String>;

    /// Gives up all advisory locks that the session holds until its end.
    fn unlock_all(&self);

    /// OID of the role of the session with that process id; `None`: there is none.
    fn backend_role(&self, pid: i32) -> Option<u32>;

    /// Cancels the statement of the session with that process id; whether there is such a session.
    fn cancel_backend(&self, pid: i32) -> bool;

    /// Ends the session with that process id; whether there is such a session.
    fn terminate_backend(&self, pid: i32) -> bool;

    /// Refuses `what` in a statement that is executed for a session of another region.
    ///
    /// # Errors
    /// 0A000.
    fn check_at_home(&self, what: &dyn std::fmt::Display) -> Result<()>;

    /// Does what a function cannot do without waiting, and gives its answer.
    ///
    /// # Errors
    /// Those of the sequence, the lock or the database.
    async fn answer(&self, request: Request) -> Result<Datum>;
}
