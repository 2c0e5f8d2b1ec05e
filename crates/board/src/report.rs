//! What a board knows, as data: the page, the terminal and `/board.json` show this
//! (`docs/reference/board.md`).
//!
//! # Invariants
//! Times are whole seconds since 1970, lengths are seconds, latencies are milliseconds. Nothing
//! here has a password.

use serde::Serialize;

use crate::figures::{Figures, Window};
use crate::target::{Kind, Operation};

/// A board at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The board's name.
    pub board: String,
    /// When this was.
    pub now: i64,
    /// When the board was started.
    pub started: i64,
    /// Operations a second, of each target and operation.
    pub rate: f64,
    /// Records of each target.
    pub records: u64,
    /// When an operation is given up.
    pub timeout_seconds: f64,
    /// Within what an operation must succeed to count as available.
    pub limit_seconds: f64,
    /// Where history is kept, when it is.
    pub store: Option<StoreReport>,
    /// In the order in which they were given.
    pub targets: Vec<TargetReport>,
}

/// The history's place.
#[derive(Clone, Debug, Serialize)]
pub struct StoreReport {
    /// When it was last written; `None`: not yet.
    pub written: Option<i64>,
    /// Why the last write failed, if it did.
    pub error: Option<String>,
}

/// One target.
#[derive(Clone, Debug, Serialize)]
pub struct TargetReport {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub address: String,
    /// Whether operations are probed now: not while records are loaded.
    pub probing: bool,
    /// Records it is known to have, while they are loaded.
    pub loaded: u64,
    /// Why its records could not be looked after, if they could not.
    pub error: Option<String>,
    /// Read and update.
    pub operations: Vec<OperationReport>,
}

/// One operation of a target.
#[derive(Clone, Debug, Serialize)]
pub struct OperationReport {
    /// Which.
    pub operation: Operation,
    /// Due and not ended.
    pub under_way: u64,
    /// Due since the start, and not probed: the board stood still, or loaded.
    pub unprobed: u64,
    /// The last one that failed.
    pub last_failure: Option<LastFailure>,
    /// By window.
    pub windows: Vec<Figures>,
}

/// A failed operation.
#[derive(Clone, Debug, Serialize)]
pub struct LastFailure {
    /// When it was due.
    pub at: i64,
    /// How it failed.
    pub kind: Kind,
    /// What was said.
    pub message: String,
}

impl OperationReport {
    /// The figures of a window.
    #[must_use]
    pub fn figures(&self, window: Window) -> Option<&Figures> {
        self.windows.iter().find(|figures| figures.window == window)
    }
}
