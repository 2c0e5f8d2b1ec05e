//! Writing rows: uniqueness, index maintenance, and the order in which a statement's effects
//! happen.
//!
//! # Invariants
//! - Rows and index entries change in one transaction; a key that decides a constraint is read with
//!   `ReadFor::Constraint`, so that commit fails if somebody else changed it.
//! - A statement that changes keys removes all old rows before it puts the new ones:
//!   `SET id = id + 1` does not collide with itself.
//! - Foreign keys are settled by [`Statement::finish`], when all rows of the statement are written.
//!
//! # On failure
//! The caller undoes the statement (a savepoint): nothing here cleans up.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use rustc_hash::FxHashSet;
use telesto_common::TableId;
use telesto_txn::{Looked, Put, ReadFor};

use crate::dml::RowQuery;
use crate::homes;
use crate::merging;
use crate::policies::ConflictChecks;
use crate::read::get_many;
use crate::storage;
use telesto_sql_catalog::Index;
use telesto_sql_expr::{EvalContext, Expr};
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::compiled_table::CompiledTable;
use telesto_sql_plan::foreign_keys::{LostParent, MissingParent};
use telesto_sql_plan::unique_keys::SharedKey;
use telesto_sql_types::Datum;
use telesto_sql_types::Row;
use telesto_sql_types::error::{Error, Result, SqlState};

/// What an INSERT does about a row that is there.
#[derive(Clone, Debug)]
pub enum OnConflict {
    /// 23505.
    Fail,
    /// Leaves it out; the unique indexes concerned, `None` for all.
    Nothing(Option<Vec<u32>>),
    /// Updates the row that is there.
    Update {
        /// The unique indexes that decide.
        arbiters: Vec<u32>,
        /// What is done with it.
        upsert: Box<Upsert>,
    },
}

/// What ON CONFLICT DO UPDATE does with the row that is there.
#[derive(Clone, Debug)]
pub struct Upsert {
    /// Column positions and their new values, over (row there, row proposed), or over the row of
    /// `set_query`; `None`: the default.
    pub set: Vec<(usize, Option<Expr>)>,
    /// Gives what `set` is computed over, where it takes a query.
    pub(crate) set_query: Option<Arc<RowQuery>>,
    /// Whether to update, over (row there, row proposed), or over the row of `filter_query`.
    pub filter: Option<Expr>,
    /// Gives what `filter` is computed over, where it takes a query.
    pub(crate) filter_query: Option<Arc<RowQuery>>,
    /// What policies ask of the row.
    pub checks: Option<Arc<ConflictChecks>>,
    /// What the view asks of the row that is there, and its name.
    pub visible: Option<(Expr, String)>,
}

/// A row replaced by another.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its key before.
    pub key: Bytes,
    /// The row before.
    pub old: Row,
    /// The row after.
    pub new: Row,
}

/// The effects of one statement under way.
pub struct Statement<'a> {
    /// The execution.
    pub exec: &'a ExecContext,
    /// For evaluation.
    pub context: &'a EvalContext<'a>,
    /// Tables met, compiled.
    pub(super) infos: BTreeMap<TableId, Arc<CompiledTable>>,
    /// Keys that referencing rows need.
    pub(super) missing: Vec<MissingParent>,
    /// Keys that referenced rows had.
    pub(super) lost: Vec<LostParent>,
    /// Keys of deferrable constraints that written rows have.
    pub(super) keys: Vec<SharedKey>,
    /// Those that more than one row had when they were looked at.
    pub(super) shared: Vec<SharedKey>,
    /// Rows this statement inserted or updated by ON CONFLICT DO UPDATE.
    touched: FxHashSet<Bytes>,
    /// What queries of ON CONFLICT DO UPDATE see: the state at the statement's start.
    before: Option<Box<ExecContext>>,
    /// The row, of those given to [`Statement::insert`] last, that is being checked or put.
    row: Option<usize>,
}

impl std::fmt::Debug for Statement<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Statement").field("tables", &self.infos.len()).finish_non_exhaustive()
    }
}

impl<'a> Statement<'a> {
    /// A statement that writes `table` first of all.
    #[must_use]
    pub fn new(
        exec: &'a ExecContext,
        context: &'a EvalContext<'a>,
        table: &Arc<CompiledTable>,
    ) -> Self {
        let mut new = Self::over(exec, context);
        new.infos.insert(table.table.id, Arc::clone(table));
        if let Some(parts) = &exec.parts {
            new.resume(parts.take_pending());
        }
        new
    }

    /// A statement that has written nothing itself.
    #[must_use]
    pub fn over(exec: &'a ExecContext, context: &'a EvalContext<'a>) -> Self {
        Self {
            exec,
            context,
            infos: BTreeMap::new(),
            missing: Vec::new(),
            lost: Vec::new(),
            keys: Vec::new(),
            shared: Vec::new(),
            touched: FxHashSet::default(),
            before: None,
            row: None,
        }
    }

    /// Nothing is written yet: what queries of `conflict` are to see.
    pub(super) fn begins(&mut self, conflict: &OnConflict) {
        if let OnConflict::Update { upsert, .. } = conflict
            && (upsert.set_query.is_some() || upsert.filter_query.is_some())
        {
            let exec = ExecContext { txn: self.exec.txn.view(), ..self.exec.clone() };
            self.before = Some(Box::new(exec));
        }
    }

    /// The compiled table `id`.
    ///
    /// # Errors
    /// XX000 when the catalog has none.
    pub fn info(&mut self, id: TableId) -> Result<Arc<CompiledTable>> {
        if let Some(found) = self.infos.get(&id) {
            return Ok(Arc::clone(found));
        }
        let catalog = &self.exec.catalog;
        let table = catalog
            .table(id)
            .ok_or_else(|| Error::internal(format!("no table {id} in the catalog")))?;
        let info = Arc::new(CompiledTable::new(catalog, &self.exec.settings, table)?);
        self.infos.insert(id, Arc::clone(&info));
        Ok(info)
    }

    /// Computes stored generated columns.
    ///
    /// # Errors
    /// Those of their expressions.
    pub fn generate(&self, info: &CompiledTable, row: &mut Row) -> Result<()> {
        for (at, expr) in &info.generated {
            row[*at] = expr.eval(row, self.context)?;
        }
        Ok(())
    }

    /// The row that the last [`Statement::insert`] failed at, of those it was given; `None` when it
    /// was not one row's fault.
    #[must_use]
    pub fn refused(&self) -> Option<usize> {
        self.row
    }

    /// Inserts rows; gives back those inserted or updated, in order, and whether each was updated.
    ///
    /// # Errors
    /// 23502, 23505, 23514, 21000 and those of evaluation.
    pub async fn insert(
        &mut self,
        info: &Arc<CompiledTable>,
        rows: Vec<Row>,
        conflict: &OnConflict,
    ) -> Result<Vec<(Row, bool)>> {
        homes::check(info, self.exec).await?;
        super::deferred_keys::may_decide(info, conflict, rows.len())?;
        let (mut prepared, mut keys) = (Vec::with_capacity(rows.len()), Vec::new());
        let mut refused = None;
        for (number, mut row) in rows.into_iter().enumerate() {
            self.row = Some(number);
            let key = match self.checked_key(info, &mut row) {
                Ok(key) => key,
                Err(error) => {
                    // Rows before it come first: one of them may be a duplicate.
                    refused = Some((number, error));
                    break;
                }
            };
            let first = keys.len();
            // Row ids are not looked up: two are hardly ever equal (`SequenceSession::row_id`).
            let mut indexes: Vec<Arc<Index>> = Vec::new();
            for index in &info.unique {
                if index.id == 0 {
                    keys.push(key.clone());
                } else {
                    match info.exclusive_entry(index, &row, &key, self.context)? {
                        Some((entry, _, true)) => keys.push(entry),
                        _ => continue,
                    }
                }
                indexes.push(Arc::clone(index));
            }
            prepared.push((row, key, first, indexes));
        }
        self.row = None;
        let (there, absent) = match conflict {
            OnConflict::Fail if keys.len() > 1 || self.exec.catalog.places_rows() => {
                match self.exec.txn.look_up_new(&keys).await? {
                    Looked::Absent(at) => (vec![None; keys.len()], Some(at)),
                    Looked::Values(values) => (values, None),
                }
            }
            _ => (get_many(self.exec, &keys, ReadFor::Constraint).await?, None),
        };
        // Keys put by earlier rows of this batch, which the look-up above could not see. In order
        // there are none twice.
        let in_order = keys.windows(2).all(|pair| pair[0] < pair[1]);
        let mut own: FxHashSet<Bytes> = FxHashSet::default();
        // What nothing below reads back is put at once.
        let together = matches!(conflict, OnConflict::Fail);
        let mut puts = Vec::new();
        let mut stale = false;
        let mut out = Vec::with_capacity(prepared.len());
        for (number, (row, key, first, indexes)) in prepared.into_iter().enumerate() {
            self.row = Some(number);
            let mut clash: Option<(Arc<Index>, Option<Bytes>, Bytes)> = None;
            for (offset, index) in indexes.iter().enumerate() {
                let at = first + offset;
                let value = if stale {
                    get_many(self.exec, &keys[at..=at], ReadFor::Constraint).await?.pop().flatten()
                } else {
                    there[at].clone()
                };
                if value.is_some() || own.contains(&keys[at]) {
                    let better = match conflict {
                        OnConflict::Update { arbiters, .. } => arbiters.contains(&index.id),
                        OnConflict::Nothing(Some(targets)) => targets.contains(&index.id),
                        OnConflict::Fail | OnConflict::Nothing(None) => false,
                    };
                    if clash.is_none() || better {
                        clash = Some((Arc::clone(index), value, keys[at].clone()));
                    }
                }
            }
            if let Some((index, value, entry)) = clash {
                match conflict {
                    OnConflict::Nothing(targets)
                        if targets.as_ref().is_none_or(|t| t.contains(&index.id)) => {}
                    OnConflict::Update { arbiters, upsert } if arbiters.contains(&index.id) => {
                        let existing = match (index.id, value) {
                            (_, None) => return Err(second_time()),
                            (0, Some(_)) => entry,
                            (_, Some(elements)) => storage::primary_from_elements(
                                info.database,
                                &info.table,
                                &elements,
                            ),
                        };
                        if let Some(updated) = self.upsert(info, existing, &row, upsert).await? {
                            out.push((updated, true));
                        }
                        stale = true;
                    }
                    _ => return Err(info.duplicate(&index, &row, self.context)),
                }
                continue;
            }
            let looked = &keys[first..first + indexes.len()];
            if !in_order {
                own.extend(looked.iter().cloned());
            }
            let absent = |key: &Bytes| absent.filter(|_| looked.contains(key));
            let beside = merging::beside(info, &key, self.exec).await?;
            super::row_writes::puts(info, &key, &row, beside, self.context, absent, &mut puts)?;
            if !together {
                self.exec.txn.put_all(std::mem::take(&mut puts)).await?;
            }
            if matches!(conflict, OnConflict::Update { .. }) {
                self.touched.insert(key.clone());
            }
            self.note_insert(info, &row)?;
            out.push((row, false));
        }
        if let Some((number, error)) = refused {
            self.row = Some(number);
            return Err(error);
        }
        self.row = None;
        self.put_counted(info, puts, &out).await?;
        self.settle_parents_when_many().await?;
        Ok(out)
    }

    /// Puts what is left of `done` (each row, and whether it was there: then its update counts) and
    /// counts it.
    async fn put_counted(
        &mut self,
        info: &CompiledTable,
        puts: Vec<Put>,
        done: &[(Row, bool)],
    ) -> Result<()> {
        self.exec.txn.put_all(puts).await?;
        let inserted = done.iter().filter(|(_, updated)| !updated).count() as u64;
        self.exec.live.uses.wrote(info.table.id, inserted, 0, 0);
        self.look_at_keys_when_many().await
    }

    /// Notes what a new row needs in other tables, and the keys it may share with other rows.
    fn note_insert(&mut self, info: &Arc<CompiledTable>, row: &Row) -> Result<()> {
        if !info.table.foreign_keys.is_empty() {
            self.need_parents(info, None, row)?;
        }
        self.note_keys(info, None, row)
    }

    /// What a new row must be before its keys are looked up; its key.
    fn checked_key(&self, info: &CompiledTable, row: &mut Row) -> Result<Bytes> {
        self.generate(info, row)?;
        info.check_row(row, self.context)?;
        info.new_key(row, &self.exec.sequences)
    }

    async fn upsert(
        &mut self,
        info: &Arc<CompiledTable>,
        key: Bytes,
        proposed: &Row,
        how: &Upsert,
    ) -> Result<Option<Row>> {
        if self.touched.contains(&key) {
            return Err(second_time());
        }
        let value = get_many(self.exec, std::slice::from_ref(&key), ReadFor::Constraint)
            .await?
            .pop()
            .flatten();
        let value = value.ok_or_else(|| {
            Error::corrupt(format!("a unique index of {} names no row", info.table.name))
        })?;
        if self.exec.parts.is_some() {
            // Another part of the statement wrote the row.
            let keys = std::slice::from_ref(&key);
            let before = get_many(self.exec, keys, ReadFor::Query).await?.pop().flatten();
            if before.as_ref() != Some(&value) {
                return Err(second_time());
            }
        }
        let old = info.codec.decode(&key, &value)?;
        if let Some((condition, view)) = &how.visible
            && !condition.holds(&old, self.context)?
        {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("conflicting row is not visible through view \"{view}\""),
            ));
        }
        // Before the conditions of whoever asks, which could tell by failing what is hidden.
        if let Some(checks) = &how.checks {
            checks.existing.check(&info.table, &old, self.exec, self.context).await?;
        }
        let both: Row = old.iter().chain(proposed).cloned().collect();
        if let Some(filter) = &how.filter {
            let over = self.asked(how.filter_query.as_ref(), &old, proposed).await?;
            if !filter.holds(over.as_ref().unwrap_or(&both), self.context)? {
                return Ok(None);
            }
        }
        let over = self.asked(how.set_query.as_ref(), &old, proposed).await?;
        let over = over.as_ref().unwrap_or(&both);
        // A row that the condition left as it was may be proposed again.
        self.touched.insert(key.clone());
        let mut new = old.clone();
        for (at, expr) in &how.set {
            new[*at] = match expr {
                Some(expr) => crate::read::eval_waiting(expr, over, self.context).await?,
                None => self.default_value(info, *at).await?,
            };
        }
        self.generate(info, &mut new)?;
        if let Some(checks) = &how.checks {
            checks.new.check(&info.table, &new, self.exec, self.context).await?;
        }
        self.update(info, vec![Change { key, old, new: new.clone() }]).await?;
        Ok(Some(new))
    }

    /// What a query gives for the two rows of a conflict.
    async fn asked(
        &self,
        query: Option<&Arc<RowQuery>>,
        there: &Row,
        proposed: &Row,
    ) -> Result<Option<Row>> {
        let Some(query) = query else { return Ok(None) };
        let before = self.before.as_deref().unwrap_or(self.exec);
        query.values(there, proposed, before).await.map(Some)
    }

    /// Replaces rows: all old ones go before the new ones come. Generated columns are computed by
    /// the caller.
    ///
    /// # Errors
    /// 23502, 23505, 23514.
    pub async fn update(&mut self, info: &Arc<CompiledTable>, changes: Vec<Change>) -> Result<()> {
        homes::check(info, self.exec).await?;
        for change in &changes {
            info.check_row(&change.new, self.context)?;
        }
        self.exec.live.uses.wrote(info.table.id, 0, changes.len() as u64, 0);
        let mut moved = Vec::new();
        for change in changes {
            if self.keeps_keys(info, &change)? {
                self.rewrite(info, &change).await?;
                self.note_update(info, &change)?;
            } else {
                super::row_writes::remove_row(
                    info,
                    &change.key,
                    &change.old,
                    self.exec,
                    self.context,
                )
                .await?;
                moved.push(change);
            }
        }
        self.put_moved(info, moved).await?;
        self.look_at_keys_when_many().await?;
        self.settle_parents_when_many().await
    }

    /// Whether primary and unique keys stay as they are.
    fn keeps_keys(&self, info: &CompiledTable, change: &Change) -> Result<bool> {
        for index in &info.unique {
            let kept = if index.id != 0 && info.forms.has(index) {
                info.entry(index, &change.old, &change.key, self.context)?
                    == info.entry(index, &change.new, &change.key, self.context)?
            } else {
                index.columns.iter().all(|c| same(&change.old[c.column], &change.new[c.column]))
            };
            if !kept {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes the old row of a change whose new one [`Statement::put_moved`] will put.
    ///
    /// # Errors
    /// Those of the transaction.
    pub async fn remove_old(&self, info: &CompiledTable, change: &Change) -> Result<()> {
        homes::check(info, self.exec).await?;
        info.check_row(&change.new, self.context)?;
        super::row_writes::remove_row(info, &change.key, &change.old, self.exec, self.context).await
    }

    /// Puts the new rows of changes whose old ones are removed, checking uniqueness.
    ///
    /// # Errors
    /// 23505.
    pub async fn put_moved(
        &mut self,
        info: &Arc<CompiledTable>,
        changes: Vec<Change>,
    ) -> Result<()> {
        for change in changes {
            let key = match &info.table.primary {
                Some(_) => info.new_key(&change.new, &self.exec.sequences)?,
                None => change.key.clone(),
            };
            for index in &info.unique {
                let entry = if index.id == 0 {
                    key.clone()
                } else {
                    match info.exclusive_entry(index, &change.new, &key, self.context)? {
                        Some((entry, _, true)) => entry,
                        _ => continue,
                    }
                };
                let there =
                    get_many(self.exec, std::slice::from_ref(&entry), ReadFor::Constraint).await?;
                if there.into_iter().flatten().next().is_some() {
                    return Err(info.duplicate(index, &change.new, self.context));
                }
            }
            super::row_writes::put_row(info, &key, &change.new, self.exec, self.context).await?;
            self.note_update(info, &change)?;
        }
        Ok(())
    }

    /// Puts a row under its old key and moves the entries that differ.
    async fn rewrite(&self, info: &CompiledTable, change: &Change) -> Result<()> {
        let (value, merged) = merging::updated(info, &change.key, &change.new, self.exec).await?;
        let row = merged.as_ref().unwrap_or(&change.new);
        self.exec.txn.put(change.key.clone(), value).await?;
        for index in &info.plain {
            let old = info.entry(index, &change.old, &change.key, self.context)?;
            let new = info.entry(index, row, &change.key, self.context)?;
            if old == new {
                continue;
            }
            if let Some((entry, value)) = old {
                super::row_writes::remove_entry(info, index, entry, &value, self.exec).await?;
            }
            if let Some((entry, value)) = new {
                self.exec.txn.put(entry, value).await?;
            }
        }
        Ok(())
    }

    fn note_update(&mut self, info: &Arc<CompiledTable>, change: &Change) -> Result<()> {
        self.note_keys(info, Some(&change.old), &change.new)?;
        if info.has_foreign_keys {
            if !info.table.foreign_keys.is_empty() {
                self.need_parents(info, Some(&change.old), &change.new)?;
            }
            self.lose_keys(info, &change.old, Some(&change.new));
        }
        Ok(())
    }

    /// Deletes rows.
    ///
    /// # Errors
    /// Those of the transaction.
    pub async fn delete(
        &mut self,
        info: &Arc<CompiledTable>,
        rows: Vec<(Bytes, Row)>,
    ) -> Result<()> {
        homes::check(info, self.exec).await?;
        self.exec.live.uses.wrote(info.table.id, 0, 0, rows.len() as u64);
        for (key, row) in rows {
            super::row_writes::remove_row(info, &key, &row, self.exec, self.context).await?;
            if info.has_foreign_keys {
                self.lose_keys(info, &row, None);
            }
        }
        Ok(())
    }
}

/// Whether two values are the same in every respect an index key shows.
#[must_use]
pub fn same(a: &Datum, b: &Datum) -> bool {
    a.cmp_values(b).is_eq()
}

fn second_time() -> Error {
    Error::new(
        SqlState::CARDINALITY_VIOLATION,
        "ON CONFLICT DO UPDATE command cannot affect row a second time",
    )
    .hint("Ensure that no rows proposed for insertion within the same command have duplicate constrained values.")
}
