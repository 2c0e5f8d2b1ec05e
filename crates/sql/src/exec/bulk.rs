//! Rows of COPY FROM: the same checks and indexes as INSERT, without planning a statement.
//!
//! # Invariants
//! Rows are written in batches of [`BATCH`]; foreign keys are settled by [`BulkInsert::finish`], without which the
//! caller must not let the statement stand.
//!
//! # On failure
//! The caller undoes the statement (a savepoint).

use std::sync::Arc;

use super::foreign::Pending;
use super::info::TableInfo;
use super::read::BATCH;
use super::write::{OnConflict, Statement};
use crate::catalog::{Generated, Table};
use crate::error::{Error, Result, SqlState};
use crate::expr::EvalContext;
use crate::plan::ExecContext;
use crate::session::Row;
use crate::types::Datum;

/// Takes rows for one table.
#[derive(Debug)]
pub struct BulkInsert {
    exec: ExecContext,
    info: Arc<TableInfo>,
    targets: Vec<usize>,
    waiting: Vec<Row>,
    pending: Pending,
    count: u64,
}

impl BulkInsert {
    /// Rows for `table` whose values are those of the columns `targets` (positions in `Table::columns`).
    ///
    /// # Errors
    /// 428C9 for a generated column; XX001 when a stored expression does not bind.
    pub fn new(exec: &ExecContext, table: &Arc<Table>, targets: Vec<usize>) -> Result<Self> {
        for at in &targets {
            let column = table.columns.get(*at).ok_or_else(|| Error::internal("no such column"))?;
            if let Some(Generated::Stored(_)) = &column.generated {
                return Err(Error::new(
                    SqlState::INVALID_COLUMN_REFERENCE,
                    format!("column \"{}\" is a generated column", column.name),
                )
                .detail("Generated columns cannot be used in COPY."));
            }
        }
        let info = Arc::new(TableInfo::new(&exec.catalog, &exec.settings, table)?);
        Ok(Self {
            exec: exec.clone(),
            info,
            targets,
            waiting: Vec::new(),
            pending: Pending::default(),
            count: 0,
        })
    }

    /// Takes one row: values of the target columns' types, in their order.
    ///
    /// # Errors
    /// 22001 and 22003 when a value does not fit its column; those of INSERT.
    pub async fn push(&mut self, values: Row) -> Result<()> {
        self.waiting.push(values);
        if self.waiting.len() >= BATCH { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<()> {
        self.exec.check_cancelled()?;
        let context = EvalContext::executing(&self.exec);
        let mut statement = Statement::new(&self.exec, &context, &self.info);
        statement.resume(std::mem::take(&mut self.pending));
        let width = self.info.table.columns.len();
        let mut rows = Vec::with_capacity(self.waiting.len());
        for values in std::mem::take(&mut self.waiting) {
            let mut row = vec![Datum::Null; width];
            for (value, at) in values.into_iter().zip(&self.targets) {
                row[*at] = crate::expr::cast::fit(value, &self.info.table.columns[*at].ty)?;
            }
            for (at, column) in self.info.table.columns.iter().enumerate() {
                if !self.targets.contains(&at) && !column.dropped {
                    row[at] = statement.default_value(&self.info, at).await?;
                }
            }
            rows.push(row);
        }
        self.count += statement.insert(&self.info, rows, &OnConflict::Fail).await?.len() as u64;
        self.pending = statement.suspend();
        Ok(())
    }

    /// Writes what is left, settles foreign keys; the number of rows.
    ///
    /// # Errors
    /// 23503 and those of [`BulkInsert::push`].
    pub async fn finish(mut self) -> Result<u64> {
        self.flush().await?;
        let context = EvalContext::executing(&self.exec);
        let mut statement = Statement::new(&self.exec, &context, &self.info);
        statement.resume(std::mem::take(&mut self.pending));
        statement.finish().await?;
        Ok(self.count)
    }
}
