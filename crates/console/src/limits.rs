//! What one visitor, and all together, can take.
//!
//! # Purpose
//! One place for every bound of the console, so that its page and its tests name the same ones.
//!
//! # Invariants
//! A statement's time stays below the server's bound on a request (60 s): its own error is told,
//! not a cut-off.
//!
//! # On failure
//! Nothing here fails.
//!
//! # Limits
//! These.

use std::time::Duration;

/// Log-ins that stand at once; the one unused for longest makes room.
pub const SESSIONS: usize = 256;
/// Log-ins of one role.
pub const SESSIONS_OF_A_ROLE: usize = 32;
/// A log-in ends when it was not used for so long.
pub const IDLE: Duration = Duration::from_secs(30 * 60);
/// A log-in ends after so long in any case.
pub const LIFE: Duration = Duration::from_secs(12 * 3600);
/// Bytes of a request's body.
pub const BODY: usize = 256 << 10;
/// Bytes of SQL text.
pub const SQL: usize = 128 << 10;
/// Rows of a result.
pub const ROWS: usize = 10_000;
/// Rows of a result that is not asked for more.
pub const USUAL_ROWS: usize = 500;
/// Bytes of all values of an answer.
pub const BYTES: usize = 8 << 20;
/// Time of the statements of one run.
pub const TIME: Duration = Duration::from_secs(50);
/// Time of those that are not given more.
pub const USUAL_TIME: Duration = Duration::from_secs(15);
/// Time of what the console asks for its pages.
pub const PAGE_TIME: Duration = Duration::from_secs(10);
/// Runs of one log-in at once.
pub const RUNS: usize = 4;
/// Runs at once of a role that comes without a log-in.
pub const RUNS_OF_A_ROLE: usize = 8;
/// What is read at once for the pages of one role.
pub const READS_OF_A_ROLE: usize = 8;
/// Rows of a page of the data browser.
pub const PAGE: usize = 100;
