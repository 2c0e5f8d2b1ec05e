//! Rows of COPY FROM: the same checks and indexes as INSERT, without planning or executing a
//! statement a row.
//!
//! # Invariants
//! - Rows are written in batches of [`BATCH`], or fewer large ones; foreign keys are settled by
//!   [`BulkInsert::finish`], without which the caller must not let the statement stand.
//! - Defaults are computed row by row, in the order of the rows.
//!
//! # On failure
//! The caller undoes the statement (its transaction fails). [`Refused`] tells the row.

use std::sync::Arc;

use super::read::BATCH;
use super::write::{OnConflict, Statement};
use telesto_sql_catalog::Table;
use telesto_sql_expr::{EvalContext, Expr};
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::compiled_table::CompiledTable;
use telesto_sql_plan::foreign_keys::Pending;
use telesto_sql_types::Datum;
use telesto_sql_types::Row;
use telesto_sql_types::error::{Error, Result};

/// Size of the rows that are written together at most, bytes as they came.
const BATCH_BYTES: usize = 4 << 20;

/// A row was refused.
#[derive(Debug)]
pub struct Refused<T> {
    /// Why.
    pub error: Error,
    /// What came with the row; `None` when it is no single row's fault.
    pub row: Option<T>,
}

impl<T> From<Error> for Refused<T> {
    fn from(error: Error) -> Self {
        Self { error, row: None }
    }
}

/// Takes rows for one table, each with something the caller knows it by.
#[derive(Debug)]
pub struct BulkInsert<T> {
    exec: ExecContext,
    info: Arc<CompiledTable>,
    /// Columns given, by position.
    targets: Vec<usize>,
    /// Columns that get their defaults.
    others: Vec<usize>,
    /// Rows for which this does not hold are left out.
    condition: Option<Expr>,
    waiting: Vec<(Row, T)>,
    waiting_bytes: usize,
    pending: Pending,
    count: u64,
}

impl<T> BulkInsert<T> {
    /// Rows for `table` whose values are those of the columns `targets` (positions in
    /// `Table::columns`, none of them generated).
    ///
    /// # Errors
    /// XX001 when a stored expression does not bind.
    pub fn new(exec: &ExecContext, table: &Arc<Table>, targets: Vec<usize>) -> Result<Self> {
        let info = Arc::new(CompiledTable::new(&exec.catalog, &exec.settings, table)?);
        let others = table.visible_columns().map(|(at, _)| at);
        let others = others.filter(|at| !targets.contains(at)).collect();
        Ok(Self {
            exec: exec.clone(),
            info,
            targets,
            others,
            condition: None,
            waiting: Vec::new(),
            waiting_bytes: 0,
            pending: Pending::default(),
            count: 0,
        })
    }

    /// With only the rows for which `condition`, over the table's columns, holds once defaults are
    /// there.
    #[must_use]
    pub fn keeping(self, condition: Option<Expr>) -> Self {
        Self { condition, ..self }
    }

    /// Takes one row of about `bytes`: values that fit the target columns, in their order.
    ///
    /// # Errors
    /// Those of INSERT, perhaps of an earlier row; 57014.
    pub async fn push(
        &mut self,
        values: Row,
        bytes: usize,
        origin: T,
    ) -> std::result::Result<(), Refused<T>> {
        self.waiting.push((values, origin));
        self.waiting_bytes += bytes;
        if self.waiting.len() >= BATCH || self.waiting_bytes >= BATCH_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> std::result::Result<(), Refused<T>> {
        telesto_sql_types::interrupt::pace().await?;
        let context = EvalContext::executing(&self.exec);
        let mut statement = Statement::new(&self.exec, &context, &self.info);
        statement.resume(std::mem::take(&mut self.pending));
        let width = self.info.table.columns.len();
        let mut rows = Vec::with_capacity(self.waiting.len());
        let mut origins = Vec::with_capacity(self.waiting.len());
        self.waiting_bytes = 0;
        for (values, origin) in self.waiting.drain(..) {
            let mut row = vec![Datum::Null; width];
            for (value, at) in values.into_iter().zip(&self.targets) {
                row[*at] = value;
            }
            for at in &self.others {
                match statement.default_value(&self.info, *at).await {
                    Ok(value) => row[*at] = value,
                    Err(error) => return Err(Refused { error, row: Some(origin) }),
                }
            }
            match self.condition.as_ref().map_or(Ok(true), |wanted| wanted.holds(&row, &context)) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => return Err(Refused { error, row: Some(origin) }),
            }
            rows.push(row);
            origins.push(origin);
        }
        match statement.insert(&self.info, rows, &OnConflict::Fail).await {
            Ok(inserted) => self.count += inserted.len() as u64,
            Err(error) => {
                let row = statement.refused().and_then(|at| origins.into_iter().nth(at));
                return Err(Refused { error, row });
            }
        }
        self.pending = statement.suspend();
        Ok(())
    }

    /// Writes what is left, settles foreign keys; the number of rows.
    ///
    /// # Errors
    /// 23503 and those of [`BulkInsert::push`].
    pub async fn finish(&mut self) -> std::result::Result<u64, Refused<T>> {
        self.flush().await?;
        let context = EvalContext::executing(&self.exec);
        let mut statement = Statement::new(&self.exec, &context, &self.info);
        statement.resume(std::mem::take(&mut self.pending));
        statement.finish().await?;
        Ok(self.count)
    }
}
