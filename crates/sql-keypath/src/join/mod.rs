//! Joins along keys, fetched level by level.
//!
//! ```text
//! FROM, WHERE -> from: tables, conjuncts -> order: driver, steps -> run: rows of the driver -> level 1 -> level 2 -> …
//! ```
//!
//! # Invariants
//! - A plan holds for one catalog and serves every set of parameters; the order of the tables is
//!   fixed in it.
//! - A level asks for the rows of a batch together, never for each row; what is held does not grow
//!   with the result.
//! - Every key and range asked for is recorded in the transaction, whether or not something is
//!   there.
//!
//! # On failure
//! Planning declines (see `from`, `order`); running gives the transaction's errors, 53200 when a
//! batch is too large.
//!
//! # Limits
//! Inner, left, semi and anti joins whose tables are all reached by a key.

pub mod from;
pub mod order;
pub mod run;

use std::sync::Arc;

use crate::access::Access;
use crate::select::{access_words, describe_access, index_only};
use telesto_sql_catalog::Table;
use telesto_sql_catalog::codec::{EntryCodec, RowCodec};
use telesto_sql_expr::Expr;

pub use from::{JoinKind, Sources};

/// The table whose rows come first.
#[derive(Debug)]
pub struct Driver {
    /// Its description.
    pub table: Arc<Table>,
    /// Decodes the columns used.
    pub codec: RowCodec,
    /// Where the entries of the path's index are enough.
    pub entries: Option<EntryCodec>,
    /// Which rows.
    pub access: Access,
    /// What the path does not prove.
    pub filter: Option<Expr>,
}

/// A table joined to the rows so far.
#[derive(Debug)]
pub struct Step {
    /// Its description.
    pub table: Arc<Table>,
    /// Decodes the columns used; they follow the columns of the rows so far.
    pub codec: RowCodec,
    /// Where the entries of the path's index are enough.
    pub entries: Option<EntryCodec>,
    /// Its rows for a row so far.
    pub access: Access,
    /// How it is joined.
    pub kind: JoinKind,
    /// What a match must fulfil besides the path.
    pub matches: Option<Expr>,
    /// What a row must fulfil once the NULLs of a left join are there.
    pub after: Option<Expr>,
}

/// A join in the order it is walked.
#[derive(Debug)]
pub struct JoinPlan {
    /// Where it starts.
    pub driver: Driver,
    /// The levels.
    pub steps: Vec<Step>,
}

impl JoinPlan {
    /// Has rows fetched also where entries would do: to be locked.
    pub fn fetch_rows(&mut self) {
        self.driver.entries = None;
        self.steps.iter_mut().for_each(|step| step.entries = None);
    }

    /// For EXPLAIN: the driver, then a line for each level.
    #[must_use]
    pub fn describe(&self) -> String {
        let driver = &self.driver;
        let words = describe_access(&driver.table, &driver.access, driver.filter.is_some());
        let mut out = index_only(words, driver.entries.as_ref());
        for (depth, step) in self.steps.iter().enumerate() {
            let kind = match step.kind {
                JoinKind::Inner => "join",
                JoinKind::Left => "left join",
                JoinKind::Semi => "semi join",
                JoinKind::Anti => "anti join",
            };
            let filtered = step.matches.is_some() || step.after.is_some();
            let words = access_words(&step.table, &step.access, filtered);
            let words = index_only(words, step.entries.as_ref());
            out.push_str(&format!("\n{}-> {kind}: {words}", "  ".repeat(depth + 1)));
        }
        out
    }
}
