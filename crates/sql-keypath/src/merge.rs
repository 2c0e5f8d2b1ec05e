//! Execution of MERGE.
//!
//! # Invariants
//! - Rows come from a query over a view of the transaction: nothing MERGE writes is matched by it.
//! - Actions are done in the order of the rows; a row that one changed is not changed again
//!   (21000).
//!
//! # On failure
//! The statement's error; the caller undoes its writes.

use bytes::Bytes;
use rustc_hash::FxHashSet;
use telesto_txn::ReadFor;

use super::dml::{Given, MergeDo, MergePlan, MergeWhen, may_move_keys};
use super::read::{BATCH, eval_waiting, get_many};
use super::write::{Change, OnConflict, Statement};
use telesto_sql_expr::EvalContext;
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::StatementResult;
use telesto_sql_types::Datum;
use telesto_sql_types::Row;
use telesto_sql_types::error::{Error, Result, SqlState};

/// Changes of one kind that are written together.
#[derive(Default)]
struct Batch {
    kind: u8,
    inserts: Vec<Row>,
    updates: Vec<Change>,
    deletes: Vec<(Bytes, Row)>,
}

impl MergePlan {
    /// Runs the MERGE.
    pub(super) async fn execute(&self, exec: &ExecContext) -> Result<StatementResult> {
        let exec = &ExecContext { txn: exec.txn.view(), ..exec.clone() };
        let context = EvalContext::executing(exec);
        let mut statement = Statement::new(exec, &context, &self.info);
        let mut rows = self.source.open(exec).await?;
        let mut changed: FxHashSet<Bytes> = FxHashSet::default();
        let mut batch = Batch::default();
        let mut count = 0_u64;
        // Keys that move must not meet rows whose turn has not come: one row at a time.
        let together = if may_move_keys(self) { 1 } else { BATCH };
        loop {
            telesto_sql_types::interrupt::pace().await?;
            let inputs = rows.next(BATCH).await?;
            if inputs.is_empty() {
                break;
            }
            let keys: Vec<Bytes> = inputs.iter().filter_map(key_of).collect();
            let mut there = get_many(exec, &keys, ReadFor::Query).await?.into_iter();
            for input in &inputs {
                let key = key_of(input);
                let source = input.get(1..=self.width).unwrap_or_default();
                let mut both = match &key {
                    None => vec![Datum::Null; self.info.table.columns.len()],
                    Some(key) => match there.next().flatten() {
                        Some(value) => self.info.codec.decode(key, &value)?,
                        None => return Err(Error::internal("a matched row is not there")),
                    },
                };
                let old = both.clone();
                both.extend_from_slice(source);
                let Some(clause) = self.clause(key.is_some(), &both, &context)? else { continue };
                if let (Some(key), MergeDo::Update(_) | MergeDo::Delete) = (&key, &clause.action)
                    && !changed.insert(key.clone())
                {
                    return Err(second_time());
                }
                if let Some(key) = &key
                    && exec.parts.is_some()
                    && !matches!(clause.action, MergeDo::Nothing)
                    && written(exec, key).await?
                {
                    return Err(second_time());
                }
                let kind = match &clause.action {
                    MergeDo::Delete => 1,
                    MergeDo::Update(_) => 2,
                    MergeDo::Insert(..) => 3,
                    MergeDo::Nothing => continue,
                };
                if batch.kind != kind || batch.len() >= together {
                    self.write(&mut batch, &mut statement).await?;
                    batch.kind = kind;
                }
                if self.act(&clause.action, key, old, &both, &statement, &mut batch).await? {
                    count += 1;
                }
            }
            self.write(&mut batch, &mut statement).await?;
        }
        statement.finish().await?;
        Ok(StatementResult::Command { tag: format!("MERGE {count}") })
    }

    /// Puts what an action does with a row into the batch; whether it does anything.
    async fn act(
        &self,
        action: &MergeDo,
        key: Option<Bytes>,
        old: Row,
        both: &Row,
        statement: &Statement<'_>,
        batch: &mut Batch,
    ) -> Result<bool> {
        let (table, context) = (&self.info.table, statement.context);
        let checks = self.checks.as_ref();
        match (action, key) {
            (MergeDo::Delete, Some(key)) => {
                if let Some(checks) = checks {
                    checks.delete.check(table, &old, statement.exec, context).await?;
                }
                batch.deletes.push((key, old));
            }
            (MergeDo::Update(set), Some(key)) => {
                if let Some(checks) = checks {
                    checks.update.check(table, &old, statement.exec, context).await?;
                }
                let mut new = old.clone();
                for (column, given) in set {
                    new[*column] = self.value(given, *column, both, statement, context).await?;
                }
                statement.generate(&self.info, &mut new)?;
                if let Some(checks) = checks {
                    checks.new.check(table, &new, statement.exec, context).await?;
                }
                batch.updates.push(Change { key, old, new });
            }
            (MergeDo::Insert(targets, values), None) => {
                let mut row = vec![Datum::Null; table.columns.len()];
                for (at, column) in table.visible_columns() {
                    if column.dropped {
                        continue;
                    }
                    let given = targets.iter().position(|target| *target == at);
                    let given = given.map_or(&Given::Default, |given| &values[given]);
                    row[at] = self.value(given, at, both, statement, context).await?;
                }
                if let Some(checks) = checks {
                    statement.generate(&self.info, &mut row)?;
                    checks.insert.check(table, &row, statement.exec, context).await?;
                }
                batch.inserts.push(row);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The first WHEN clause that concerns a row.
    fn clause(
        &self,
        matched: bool,
        row: &Row,
        context: &EvalContext<'_>,
    ) -> Result<Option<&MergeWhen>> {
        for clause in self.clauses.iter().filter(|clause| clause.matched == matched) {
            let holds = match &clause.condition {
                None => true,
                Some(condition) => condition.holds(row, context)?,
            };
            if holds {
                return Ok(Some(clause));
            }
        }
        Ok(None)
    }

    async fn value(
        &self,
        given: &Given,
        column: usize,
        row: &Row,
        statement: &Statement<'_>,
        context: &EvalContext<'_>,
    ) -> Result<Datum> {
        match given {
            Given::Default => statement.default_value(&self.info, column).await,
            Given::Expr(expr) => eval_waiting(expr, row, context).await,
        }
    }

    /// Writes what is gathered.
    async fn write(&self, batch: &mut Batch, statement: &mut Statement<'_>) -> Result<()> {
        let Batch { inserts, updates, deletes, .. } = std::mem::take(batch);
        if !deletes.is_empty() {
            statement.delete(&self.info, deletes).await?;
        }
        if !updates.is_empty() {
            statement.update(&self.info, updates).await?;
        }
        if !inserts.is_empty() {
            statement.insert(&self.info, inserts, &OnConflict::Fail).await?;
        }
        Ok(())
    }
}

impl Batch {
    fn len(&self) -> usize {
        self.inserts.len() + self.updates.len() + self.deletes.len()
    }
}

fn key_of(input: &Row) -> Option<Bytes> {
    match input.first() {
        Some(Datum::Bytea(key)) => Some(Bytes::copy_from_slice(key)),
        _ => None,
    }
}

/// Whether an earlier part of the statement wrote the row.
async fn written(exec: &ExecContext, key: &Bytes) -> Result<bool> {
    let key = std::slice::from_ref(key);
    let before = get_many(exec, key, ReadFor::Query).await?;
    Ok(before != get_many(exec, key, ReadFor::Constraint).await?)
}

fn second_time() -> Error {
    Error::new(SqlState::CARDINALITY_VIOLATION, "MERGE command cannot affect row a second time")
        .hint("Ensure that not more than one source row matches any one target row.")
}
