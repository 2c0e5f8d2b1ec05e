//! Execution of INSERT, UPDATE and DELETE.
//!
//! # Invariants
//! - Rows are read, computed and written in batches of [`BATCH`]; only rows of RETURNING, rows
//!   whose keys move and pending foreign keys are held, counted against the statement's budget.
//! - Every scan is open before the first write.

use std::sync::Arc;

use bytes::Bytes;
use rustc_hash::FxHashSet;
use telesto_common::limits::Reservation;
use telesto_txn::ReadFor;

use super::dml::{DeletePlan, Given, InsertPlan, Rows as InsertRows, Target, UpdatePlan};
use super::read::{BATCH, Found, Reader, eval_all, eval_waiting, get_many};
use super::source::Batches;
use super::write::{Change, Statement};
use telesto_sql_expr::{EvalContext, Expr};
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::compiled_table::CompiledTable;
use telesto_sql_plan::{ResultColumn, Rows, StatementResult};
use telesto_sql_types::Datum;
use telesto_sql_types::Row;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::held::{out_of_memory, row_bytes};

/// What the client gets: rows of RETURNING, or a count.
struct Output<'p> {
    returning: Option<&'p [Expr]>,
    rows: Vec<Row>,
    count: u64,
    held: Reservation,
}

impl<'p> Output<'p> {
    fn new(returning: &'p Option<Vec<Expr>>, exec: &ExecContext) -> Result<Self> {
        let held = exec.memory.reserve("rows of RETURNING", 0).map_err(out_of_memory)?;
        Ok(Self { returning: returning.as_deref(), rows: Vec::new(), count: 0, held })
    }

    /// `others`: the columns of other tables behind those of the row.
    async fn add(
        &mut self,
        row: &Row,
        others: Option<&[Datum]>,
        context: &EvalContext<'_>,
    ) -> Result<()> {
        self.count += 1;
        if let Some(returning) = self.returning {
            let output = match others {
                None => eval_all(returning, row, context).await?,
                Some(others) => {
                    let both: Row = row.iter().chain(others).cloned().collect();
                    eval_all(returning, &both, context).await?
                }
            };
            self.held.grow(row_bytes(&output)).map_err(out_of_memory)?;
            self.rows.push(output);
        }
        Ok(())
    }

    pub(super) fn finish(
        self,
        tag: &'static str,
        columns: Option<&Arc<[ResultColumn]>>,
    ) -> StatementResult {
        match columns {
            Some(columns) => StatementResult::Rows {
                columns: Arc::clone(columns),
                rows: Rows::Ready(self.rows),
                tag,
            },
            None => StatementResult::Command { tag: format!("{tag} {}", self.count) },
        }
    }
}

/// What PostgreSQL's `xmax` tells of a row of INSERT … RETURNING: 0 unless the row was there and
/// was updated.
fn xmax(updated: bool, exec: &ExecContext) -> [Datum; 1] {
    // A number that applications may cast to integer.
    let id = exec.txn.id().0 as u32 & i32::MAX.unsigned_abs();
    [Datum::Oid(if updated { id.max(1) } else { 0 })]
}

impl InsertPlan {
    /// Runs the INSERT.
    pub(super) async fn execute(
        &self,
        exec: &ExecContext,
        columns: Option<&Arc<[ResultColumn]>>,
    ) -> Result<StatementResult> {
        let context = EvalContext::executing(exec);
        let mut statement = Statement::new(exec, &context, &self.info);
        statement.begins(&self.conflict);
        let mut output = Output::new(&self.returning, exec)?;
        match &self.rows {
            InsertRows::Values(rows) => {
                for batch in rows.chunks(BATCH) {
                    telesto_sql_types::interrupt::pace().await?;
                    let mut new = Vec::with_capacity(batch.len());
                    let mut failed = None;
                    for given in batch {
                        match self.row(given, &statement, &context).await {
                            Ok(row) => new.push(row),
                            Err(error) => {
                                failed = Some(error);
                                break;
                            }
                        }
                    }
                    // The rows before it come first: one of them may be refused.
                    self.check(&mut new, &statement).await?;
                    for (row, updated) in statement.insert(&self.info, new, &self.conflict).await? {
                        let others = self.shows_xmax.then(|| xmax(updated, exec));
                        output.add(&row, others.as_ref().map(|xmax| &xmax[..]), &context).await?;
                    }
                    if let Some(error) = failed {
                        return Err(error);
                    }
                }
            }
            InsertRows::Query(source, values) => {
                let mut batches = source.open(exec).await?;
                loop {
                    telesto_sql_types::interrupt::pace().await?;
                    let batch = batches.next(BATCH).await?;
                    if batch.is_empty() {
                        break;
                    }
                    let mut new = Vec::with_capacity(batch.len());
                    for input in &batch {
                        let values = eval_all(values, input, &context).await?;
                        new.push(self.placed(values, &statement).await?);
                    }
                    self.check(&mut new, &statement).await?;
                    for (row, updated) in statement.insert(&self.info, new, &self.conflict).await? {
                        let others = self.shows_xmax.then(|| xmax(updated, exec));
                        output.add(&row, others.as_ref().map(|xmax| &xmax[..]), &context).await?;
                    }
                }
            }
        }
        statement.finish().await?;
        Ok(output.finish("INSERT 0", columns))
    }

    async fn row(
        &self,
        given: &[Given],
        statement: &Statement<'_>,
        context: &EvalContext<'_>,
    ) -> Result<Row> {
        let mut values = Vec::with_capacity(given.len());
        for (given, column) in given.iter().zip(&self.targets) {
            values.push(match given {
                Given::Default => statement.default_value(&self.info, *column).await?,
                Given::Expr(expr) => eval_waiting(expr, &[], context).await?,
            });
        }
        self.placed(values, statement).await
    }

    /// Fails when policies refuse one of the new rows.
    async fn check(&self, rows: &mut [Row], statement: &Statement<'_>) -> Result<()> {
        let Some(checks) = &self.checks else { return Ok(()) };
        for row in rows {
            statement.generate(&self.info, row)?;
            checks.check(&self.info.table, row, statement.exec, statement.context).await?;
        }
        Ok(())
    }

    /// A whole row from the values given, defaults for the rest.
    async fn placed(&self, values: Row, statement: &Statement<'_>) -> Result<Row> {
        let mut row = vec![Datum::Null; self.info.table.columns.len()];
        let mut given = vec![false; row.len()];
        for (value, column) in values.into_iter().zip(&self.targets) {
            row[*column] = value;
            given[*column] = true;
        }
        for column in 0..row.len() {
            if !given[column] && !self.info.table.columns[column].dropped {
                row[column] = statement.default_value(&self.info, column).await?;
            }
        }
        Ok(row)
    }
}

/// Rows to write, with what the query gave beside them.
enum Rowset {
    Path(Box<Reader>),
    Query(Batches, FxHashSet<Bytes>),
}

impl Rowset {
    async fn open(
        target: &Target,
        info: &CompiledTable,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Self> {
        Ok(match target {
            Target::Path(access, filter) => {
                let mut reader = Reader::open(
                    &info.table,
                    &info.codec,
                    access,
                    filter.as_ref(),
                    None,
                    exec,
                    context,
                )?;
                reader.claim(exec).await?;
                reader.claim_found();
                Self::Path(Box::new(reader))
            }
            Target::Query(source, _) => Self::Query(source.open(exec).await?, FxHashSet::default()),
        })
    }

    /// The next rows, each with the row that the new values are computed over.
    async fn next(
        &mut self,
        info: &CompiledTable,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Vec<(Found, Option<Row>)>> {
        loop {
            let found = self.found(info, exec, context).await?;
            if found.is_empty() || exec.parts.is_none() {
                return Ok(found);
            }
            let left = untouched(found, exec).await?;
            if !left.is_empty() {
                return Ok(left);
            }
        }
    }

    async fn found(
        &mut self,
        info: &CompiledTable,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Vec<(Found, Option<Row>)>> {
        match self {
            Self::Path(reader) => Ok(reader
                .next(BATCH, exec, context)
                .await?
                .into_iter()
                .map(|found| (found, None))
                .collect()),
            Self::Query(batches, seen) => loop {
                telesto_sql_types::interrupt::pace().await?;
                let batch = batches.next(BATCH).await?;
                if batch.is_empty() {
                    return Ok(Vec::new());
                }
                let mut keys = Vec::with_capacity(batch.len());
                let mut inputs = Vec::with_capacity(batch.len());
                for input in batch {
                    let Some(Datum::Bytea(key)) = input.first() else {
                        return Err(Error::internal("a row without its key"));
                    };
                    let key = Bytes::copy_from_slice(key);
                    // A row joined several times is written once, with the first match.
                    if seen.insert(key.clone()) {
                        keys.push(key);
                        inputs.push(input);
                    }
                }
                let values = get_many(exec, &keys, ReadFor::Query).await?;
                let mut out = Vec::with_capacity(keys.len());
                for ((key, value), input) in keys.into_iter().zip(values).zip(inputs) {
                    if let Some(value) = value {
                        let row = info.codec.decode(&key, &value)?;
                        out.push((Found { key, row }, Some(input)));
                    }
                }
                if !out.is_empty() {
                    return Ok(out);
                }
            },
        }
    }
}

/// The rows that no earlier part of the statement has written: of two parts that write a row, the
/// first does.
async fn untouched(
    found: Vec<(Found, Option<Row>)>,
    exec: &ExecContext,
) -> Result<Vec<(Found, Option<Row>)>> {
    let keys: Vec<Bytes> = found.iter().map(|(found, _)| found.key.clone()).collect();
    let before = get_many(exec, &keys, ReadFor::Query).await?;
    let now = get_many(exec, &keys, ReadFor::Constraint).await?;
    let same = before.into_iter().zip(now).map(|(before, now)| before == now);
    Ok(found.into_iter().zip(same).filter_map(|(found, same)| same.then_some(found)).collect())
}

impl Target {
    /// The columns of other tables in a row of the query.
    fn others<'r>(&self, input: Option<&'r Row>) -> Option<&'r [Datum]> {
        match self {
            Self::Query(_, Some(begin)) => input.and_then(|input| input.get(*begin..)),
            _ => None,
        }
    }
}

impl UpdatePlan {
    /// Runs the UPDATE.
    pub(super) async fn execute(
        &self,
        exec: &ExecContext,
        columns: Option<&Arc<[ResultColumn]>>,
    ) -> Result<StatementResult> {
        let context = EvalContext::executing(exec);
        let mut statement = Statement::new(exec, &context, &self.info);
        let mut output = Output::new(&self.returning, exec)?;
        if let Some(adding) = &self.adding
            // Apart, so that no other statement's future is larger for it.
            && Box::pin(self.added(adding, exec, &context)).await?
        {
            output.count = 1;
            return Ok(output.finish("UPDATE", columns));
        }
        let mut rows = Rowset::open(&self.target, &self.info, exec, &context).await?;
        let mut moved = Vec::new();
        let mut held = exec.memory.reserve("rows whose keys change", 0).map_err(out_of_memory)?;
        loop {
            let batch = rows.next(&self.info, exec, &context).await?;
            if batch.is_empty() {
                break;
            }
            let mut changes = Vec::with_capacity(batch.len());
            for (found, input) in batch {
                let mut new = found.row.clone();
                for (column, given) in &self.set {
                    new[*column] = match given {
                        Given::Default => statement.default_value(&self.info, *column).await?,
                        Given::Expr(expr) => {
                            eval_waiting(expr, input.as_ref().unwrap_or(&found.row), &context)
                                .await?
                        }
                    };
                }
                statement.generate(&self.info, &mut new)?;
                if let Some(checks) = &self.checks {
                    checks.check(&self.info.table, &new, exec, &context).await?;
                }
                output.add(&new, self.target.others(input.as_ref()), &context).await?;
                changes.push(Change { key: found.key, old: found.row, new });
            }
            if self.moves_keys {
                // All old rows go first: the new keys of one batch may be the old ones of another.
                for change in changes {
                    held.grow(row_bytes(&change.old) + row_bytes(&change.new))
                        .map_err(out_of_memory)?;
                    statement.remove_old(&self.info, &change).await?;
                    moved.push(change);
                }
            } else {
                statement.update(&self.info, changes).await?;
            }
        }
        exec.live.uses.wrote(self.info.table.id, 0, moved.len() as u64, 0);
        statement.put_moved(&self.info, moved).await?;
        statement.finish().await?;
        Ok(output.finish("UPDATE", columns))
    }
}

impl DeletePlan {
    /// Runs the DELETE.
    pub(super) async fn execute(
        &self,
        exec: &ExecContext,
        columns: Option<&Arc<[ResultColumn]>>,
    ) -> Result<StatementResult> {
        let context = EvalContext::executing(exec);
        let mut statement = Statement::new(exec, &context, &self.info);
        let mut output = Output::new(&self.returning, exec)?;
        let mut rows = Rowset::open(&self.target, &self.info, exec, &context).await?;
        loop {
            let batch = rows.next(&self.info, exec, &context).await?;
            if batch.is_empty() {
                break;
            }
            let mut deletes = Vec::with_capacity(batch.len());
            for (found, input) in batch {
                let others = self.target.others(input.as_ref());
                output.add(&found.row, others, &context).await?;
                deletes.push((found.key, found.row));
            }
            statement.delete(&self.info, deletes).await?;
        }
        statement.finish().await?;
        Ok(output.finish("DELETE", columns))
    }
}
