//! What statements cost: bucket requests, bytes and dollars.
//!
//! # Invariants
//! - One [`ScopeMeter`] a session counts everything it does; a statement's cost is a difference. So the
//!   bookkeeping of a statement is a few numbers and no allocation.
//! - Counted: what the statement itself reads and writes, row streams and COPY data included however late
//!   they are pulled; its share of the look at the log's tail its transaction begins with; of the
//!   group commit it takes part in; every try of one that is repeated after a conflict.
//! - `SHOW telesto.last_statement_cost` counts for nothing and changes nothing.
//! - What is one statement: a simple query, all its statements together; in the extended protocol
//!   everything up to Sync, inside a transaction block one Execute. Planning ahead (Parse) counts for the
//!   next statement that runs.
//!
//! # Limits
//! Background work belongs to no statement: folding the log into the checkpoint, compaction, shipping a
//! quorum log to the bucket, collection; nor do group commits that fail as a whole. Node-wide counts
//! (`telesto_bucket_usage()`, `/metrics`) have them.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_bucket::meter::{ScopedStream, scoped};
use telesto_bucket::{Cause, Cost, Meter, ScopeMeter};

use crate::result::{CopyInTarget, Rows, StatementResult};
use telesto_sql_types::error::Result;

/// What SHOW calls the cost of the last statement.
pub const LAST_COST: &str = "telesto.last_statement_cost";

/// A session's counts.
#[derive(Debug)]
pub struct Spending {
    scope: Arc<ScopeMeter>,
    meter: Option<Arc<Meter>>,
    /// What had been counted when the last statement began.
    begun: Cost,
    /// The same when something was planned ahead.
    ahead: Option<Cost>,
    /// What had been counted when the execution under way began.
    execution: Cost,
    /// The next one that runs is a new statement.
    over: bool,
}

impl Spending {
    /// Nothing counted yet.
    #[must_use]
    pub fn new(meter: Option<Arc<Meter>>) -> Self {
        Self {
            scope: ScopeMeter::for_cause(Cause::Read),
            meter,
            begun: Cost::default(),
            ahead: None,
            execution: Cost::default(),
            over: true,
        }
    }

    /// The scope the session works in.
    pub fn scope(&self) -> Arc<ScopeMeter> {
        Arc::clone(&self.scope)
    }

    /// Something is planned ahead.
    pub fn prepares(&mut self) {
        if self.over {
            self.ahead.get_or_insert_with(|| self.scope.totals());
        }
    }

    /// Something runs, as a statement of its own or as a part of the one under way.
    pub fn runs(&mut self) {
        self.execution = self.scope.totals();
        if std::mem::take(&mut self.over) {
            self.begun = self.ahead.take().unwrap_or(self.execution);
        }
    }

    /// The statement is over.
    pub fn ends(&mut self) {
        self.over = true;
    }

    /// What the last statement has cost; whoever asks has planned nothing ahead but the question.
    pub fn last(&mut self) -> Cost {
        self.ahead = None;
        self.scope.totals() - self.begun
    }

    /// What the session has cost so far.
    pub fn total(&self) -> Cost {
        self.scope.totals()
    }

    /// What executions see.
    pub fn of_execution(&self) -> StatementCost {
        StatementCost {
            scope: Arc::clone(&self.scope),
            before: self.execution,
            meter: self.meter.clone(),
        }
    }
}

/// The cost of a statement being executed. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StatementCost {
    scope: Arc<ScopeMeter>,
    before: Cost,
    meter: Option<Arc<Meter>>,
}

impl StatementCost {
    /// So far, from the begin of its transaction on if it began it.
    #[must_use]
    pub fn so_far(&self) -> Cost {
        self.scope.totals() - self.before
    }

    /// The bucket's meter; `None` where there is no bucket (the reference database of tests).
    #[must_use]
    pub fn meter(&self) -> Option<&Arc<Meter>> {
        self.meter.as_ref()
    }
}

/// Makes what is pulled or pushed after the statement returned count for the session.
pub fn counted(result: StatementResult, scope: Arc<ScopeMeter>) -> StatementResult {
    match result {
        StatementResult::Rows { columns, rows: Rows::Stream(stream), tag } => {
            let rows = Rows::Stream(Box::pin(ScopedStream::new(stream, scope)));
            StatementResult::Rows { columns, rows, tag }
        }
        StatementResult::CopyIn { format, columns, target } => {
            let target = Box::new(CountedCopy { target, scope });
            StatementResult::CopyIn { format, columns, target }
        }
        StatementResult::CopyOut { format, columns, data } => {
            let data = Box::pin(ScopedStream::new(data, scope));
            StatementResult::CopyOut { format, columns, data }
        }
        other => other,
    }
}

struct CountedCopy {
    target: Box<dyn CopyInTarget>,
    scope: Arc<ScopeMeter>,
}

#[async_trait]
impl CopyInTarget for CountedCopy {
    async fn data(&mut self, data: Bytes) -> Result<()> {
        scoped(Arc::clone(&self.scope), self.target.data(data)).await
    }

    async fn finish(&mut self) -> Result<u64> {
        scoped(Arc::clone(&self.scope), self.target.finish()).await
    }
}
