//! Foreign keys: parents that must exist, and what happens to children.
//!
//! ```text
//! row written   -> MissingParent: key looked up, at the latest at the end of the statement
//! row removed   -> LostParent:   children found by index (or scan); CASCADE, SET … act, NO ACTION fails
//!                                unless the key is there again
//! ```
//!
//! # Invariants
//! - Parents and children are read with `ReadFor::Constraint`: a transaction that adds a child and
//!   one that removes its parent cannot both commit.
//! - In a database of several regions a table that is not here, or not all of it, is not read as if
//!   it had no rows: 55000.
//! - A cascade writes through the same [`Statement`], so its effects cascade further until nothing
//!   is left.
//!
//! # Limits
//! At most [`MAX_ROUNDS`] rounds of cascading. Without an index on the referencing columns the
//! referencing table is scanned once for each round, not once for each key. What deferred
//! constraints do is in `deferred`.

use std::sync::Arc;

use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use telesto_common::TableId;
use telesto_common::key::KeyRange;
use telesto_txn::{ReadFor, ScanOptions};

use crate::key_types::{KeyTypes, to_child, to_parent};
use crate::read::{BATCH, eval_waiting, get_many};
use crate::storage;
use crate::write::{Change, Statement, same};
use telesto_sql_catalog::codec;
use telesto_sql_catalog::{ForeignKey, ForeignKeyAction, ForeignKeyMatch};
use telesto_sql_expr::CastContext;
use telesto_sql_expr::cast::cast;
use telesto_sql_plan::compiled_table::{CompiledTable, DefaultValue};
use telesto_sql_plan::foreign_keys::{LostParent, MissingParent, Pending};
use telesto_sql_types::Row;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, SqlType};

/// Rounds of cascading before the statement is refused.
pub const MAX_ROUNDS: usize = 256;
/// Parents waiting to be looked up before they are, early.
const LOOK_UP_AT: usize = 4096;
/// Parents that may still be missing before the end of a statement.
const MAX_MISSING: usize = 1_000_000;

impl Statement<'_> {
    /// Notes the parents a written row needs.
    pub(super) fn need_parents(
        &mut self,
        info: &Arc<CompiledTable>,
        old: Option<&Row>,
        row: &Row,
    ) -> Result<()> {
        for (at, constraint) in info.table.foreign_keys.iter().enumerate() {
            if old.is_some_and(|old| constraint.columns.iter().all(|c| same(&old[*c], &row[*c]))) {
                continue;
            }
            let values: Vec<Datum> = constraint.columns.iter().map(|c| row[*c].clone()).collect();
            let nulls = values.iter().filter(|v| v.is_null()).count();
            if (old.is_none() || nulls == 0) && self.exec.deferred.waits(constraint) {
                self.exec.deferred.queue(info.table.id, constraint.oid);
            }
            if nulls > 0 {
                if constraint.match_kind == ForeignKeyMatch::Full && nulls < values.len() {
                    return Err(Error::new(
                        SqlState::FOREIGN_KEY_VIOLATION,
                        format!(
                            "insert or update on table \"{}\" violates foreign key constraint \"{}\"",
                            info.table.name, constraint.name
                        ),
                    )
                    .detail("MATCH FULL does not allow mixing of null and nonnull key values.")
                    .table(&info.schema, &info.table.name)
                    .constraint(&constraint.name));
                }
                continue;
            }
            let parent = self.info(constraint.referenced)?;
            let wanted = self.parent_values(info, &parent, constraint, &values)?;
            let key = parent_key(info, &parent, constraint, &wanted)?;
            self.missing.push(MissingParent {
                child: Arc::clone(info),
                constraint: at,
                key,
                values,
                late: false,
            });
        }
        Ok(())
    }

    /// Notes the keys other tables may reference that this row no longer has.
    pub(super) fn lose_keys(&mut self, info: &Arc<CompiledTable>, old: &Row, new: Option<&Row>) {
        for (child, constraint) in self.exec.catalog.referencing(info.table.id) {
            let columns = &constraint.referenced_columns;
            if columns.iter().any(|c| old[*c].is_null()) {
                continue;
            }
            if new.is_some_and(|new| columns.iter().all(|c| same(&old[*c], &new[*c]))) {
                continue;
            }
            let action = if new.is_some() { constraint.on_update } else { constraint.on_delete };
            if action == ForeignKeyAction::NoAction && self.exec.deferred.waits(constraint) {
                self.exec.deferred.queue(info.table.id, constraint.oid);
            }
            self.lost.push(LostParent {
                parent: Arc::clone(info),
                child: *child,
                constraint: Arc::clone(constraint),
                values: columns.iter().map(|c| old[*c].clone()).collect(),
                new_values: new.map(|new| columns.iter().map(|c| new[*c].clone()).collect()),
            });
        }
    }

    /// Looks parents up early when many wait, so that a large INSERT holds few.
    pub(super) async fn settle_parents_when_many(&mut self) -> Result<()> {
        let fresh = self.missing.iter().rev().take_while(|m| !m.late).count();
        if fresh >= LOOK_UP_AT {
            self.look_up(false).await?;
            if self.missing.len() > MAX_MISSING {
                return Err(Error::new(
                    SqlState::PROGRAM_LIMIT_EXCEEDED,
                    "too many rows reference rows that come later in the same statement",
                )
                .hint("Insert referenced rows first, or in smaller statements."));
            }
        }
        Ok(())
    }

    async fn look_up(&mut self, last: bool) -> Result<()> {
        let waiting = std::mem::take(&mut self.missing);
        let (late, fresh): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|m| m.late && !last);
        self.missing = late;
        self.parents_are_here(&fresh)?;
        for chunk in fresh.chunks(BATCH) {
            let mut keys: Vec<Bytes> = chunk.iter().map(|m| m.key.clone()).collect();
            keys.sort();
            keys.dedup();
            let found = if self.exec.catalog.places_rows() {
                self.exec.txn.are_there(&keys).await?
            } else {
                let found = get_many(self.exec, &keys, ReadFor::Constraint).await?;
                found.iter().map(Option::is_some).collect()
            };
            for wanted in chunk {
                let there = keys.binary_search(&wanted.key).is_ok_and(|at| found[at]);
                if there {
                    self.is_approved(wanted).await?;
                    continue;
                }
                if last {
                    if self.waits_apart(wanted)? {
                        return Err(self.no_parent(wanted));
                    }
                    self.without_parent(wanted)?;
                    continue;
                }
                self.missing.push(MissingParent { late: true, ..wanted.clone() });
            }
        }
        Ok(())
    }

    /// Refuses to look for parents in a table that this region does not have, or not all of it.
    fn parents_are_here(&self, wanted: &[MissingParent]) -> Result<()> {
        let mut last = None;
        for wanted in wanted {
            let key = wanted.foreign_key();
            if last.replace(key.oid) == Some(key.oid) {
                continue;
            }
            if let Some(parent) = self.exec.catalog.table(key.referenced) {
                self.exec.catalog.check_read_for_key(key, parent, &wanted.child.table)?;
            }
        }
        Ok(())
    }

    pub(super) fn no_parent(&self, wanted: &MissingParent) -> Error {
        let constraint = wanted.foreign_key();
        let parent =
            self.exec.catalog.table(constraint.referenced).map_or("?", |t| t.name.as_str());
        Error::new(
            SqlState::FOREIGN_KEY_VIOLATION,
            format!(
                "insert or update on table \"{}\" violates foreign key constraint \"{}\"",
                wanted.child.table.name, constraint.name
            ),
        )
        .detail(format!(
            "{} is not present in table \"{parent}\".",
            wanted.child.key_told(&constraint.columns, &wanted.values, self.context)
        ))
        .table(&wanted.child.schema, &wanted.child.table.name)
        .constraint(&constraint.name)
    }

    /// Settles foreign keys: acts on children until nothing is left, then looks the parents up.
    ///
    /// # Errors
    /// 23503, 54001.
    pub async fn finish(&mut self) -> Result<()> {
        if let Some(parts) = &self.exec.parts {
            parts.set_pending(self.take_pending());
            return Ok(());
        }
        let mut unhandled: Vec<LostParent> = Vec::new();
        for round in 0.. {
            let lost = std::mem::take(&mut self.lost);
            if lost.is_empty() {
                break;
            }
            if round >= MAX_ROUNDS {
                return Err(Error::new(
                    SqlState::STATEMENT_TOO_COMPLEX,
                    format!("foreign keys cascade more than {MAX_ROUNDS} levels deep"),
                )
                .hint("Delete from the referencing tables first."));
            }
            // One search in each referencing table for all keys of a constraint.
            let mut groups: Vec<(TableId, Arc<ForeignKey>, Vec<LostParent>)> = Vec::new();
            for key in lost {
                match groups
                    .iter_mut()
                    .find(|(child, fk, _)| *child == key.child && fk.oid == key.constraint.oid)
                {
                    Some((_, _, keys)) => keys.push(key),
                    None => groups.push((key.child, Arc::clone(&key.constraint), vec![key])),
                }
            }
            for (child, constraint, keys) in groups {
                unhandled.extend(self.act(child, &constraint, keys).await?);
            }
        }
        for key in unhandled {
            self.lost_for_good(key).await?;
        }
        self.settle_keys().await?;
        self.look_up(true).await
    }

    /// Acts on the children of removed or changed keys; gives back those that are to have no
    /// children in the end.
    async fn act(
        &mut self,
        child: TableId,
        constraint: &ForeignKey,
        keys: Vec<LostParent>,
    ) -> Result<Vec<LostParent>> {
        let info = self.info(child)?;
        let (mut changes, mut deletes, mut unhandled) = (Vec::new(), Vec::new(), Vec::new());
        let Some(parent) = keys.first().map(|key| Arc::clone(&key.parent)) else {
            return Ok(unhandled);
        };
        self.exec.catalog.check_read_for_key(constraint, &info.table, &parent.table)?;
        self.children_stay(&info, &parent, &keys).await?;
        let apart = self.holds_back(&parent) && !self.holds_back(&info);
        let wanted: Vec<Vec<Datum>> = keys.iter().map(|key| key.values.clone()).collect();
        let children = self.children(&info, constraint, Some(&parent), &wanted).await?;
        for (key, rows) in keys.into_iter().zip(children) {
            if rows.is_empty() {
                continue;
            }
            let action =
                if key.new_values.is_some() { constraint.on_update } else { constraint.on_delete };
            let acts = !matches!(action, ForeignKeyAction::NoAction | ForeignKeyAction::Restrict);
            if apart && acts {
                return Err(crate::apart::would_act(&parent, &info, constraint));
            }
            // A default may be the key that goes: nobody may have it in the end either.
            if action == ForeignKeyAction::SetDefault {
                unhandled.push(key.clone());
            }
            match action {
                ForeignKeyAction::NoAction | ForeignKeyAction::Restrict => unhandled.push(key),
                ForeignKeyAction::Cascade if key.new_values.is_none() => deletes.extend(rows),
                ForeignKeyAction::Cascade
                | ForeignKeyAction::SetNull
                | ForeignKeyAction::SetDefault => {
                    for (row_key, old) in rows {
                        let mut new = old.clone();
                        for (at, column) in constraint.columns.iter().enumerate() {
                            if !sets(constraint, *column, key.new_values.is_none()) {
                                continue;
                            }
                            new[*column] = match (action, &key.new_values) {
                                (ForeignKeyAction::Cascade, Some(values)) => cast(
                                    values[at].clone(),
                                    &parent.table.columns[constraint.referenced_columns[at]].ty,
                                    &info.table.columns[*column].ty,
                                    CastContext::Assignment,
                                    self.context,
                                )?,
                                (ForeignKeyAction::SetDefault, _) => {
                                    self.default_value(&info, *column).await?
                                }
                                _ => Datum::Null,
                            };
                        }
                        self.generate(&info, &mut new)?;
                        changes.push(Change { key: row_key, old, new });
                    }
                }
            }
        }
        if !deletes.is_empty() {
            self.delete(&info, deletes).await?;
        }
        if !changes.is_empty() {
            self.update(&info, changes).await?;
        }
        Ok(unhandled)
    }

    /// The default of a column.
    ///
    /// # Errors
    /// Those of its expression.
    pub async fn default_value(&self, info: &CompiledTable, column: usize) -> Result<Datum> {
        match &info.defaults[column] {
            DefaultValue::Null => Ok(Datum::Null),
            DefaultValue::Expr(expr) => eval_waiting(expr, &[], self.context).await,
            DefaultValue::Sequence(oid) => {
                let value = self.exec.sequences.next(*oid).await?;
                let ty = &info.table.columns[column].ty;
                cast(Datum::Int8(value), &SqlType::Int8, ty, CastContext::Assignment, self.context)
            }
        }
    }

    /// The key and the error, if it is not there again and rows reference it.
    pub(super) async fn still_referenced(
        &mut self,
        key: &LostParent,
    ) -> Result<Option<(Bytes, Error)>> {
        let info = self.info(key.child)?;
        let parent_key = parent_key(&info, &key.parent, &key.constraint, &key.values)?;
        if get_many(self.exec, std::slice::from_ref(&parent_key), ReadFor::Constraint)
            .await?
            .into_iter()
            .flatten()
            .next()
            .is_some()
        {
            return Ok(None);
        }
        let wanted = std::slice::from_ref(&key.values);
        let rows = self.children(&info, &key.constraint, Some(&key.parent), wanted).await?;
        if rows.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        let error = Error::new(
            SqlState::FOREIGN_KEY_VIOLATION,
            format!(
                "update or delete on table \"{}\" violates foreign key constraint \"{}\" on table \"{}\"",
                key.parent.table.name, key.constraint.name, info.table.name
            ),
        )
        .detail(format!(
            "{} is still referenced from table \"{}\".",
            key.parent.key_told(&key.constraint.referenced_columns, &key.values, self.context),
            info.table.name
        ))
        .table(&info.schema, &info.table.name)
        .constraint(&key.constraint.name);
        Ok(Some((parent_key, error)))
    }

    /// What a referencing row's values are among the referenced ones: NULL, which no key holds,
    /// where none equals them.
    fn parent_values(
        &self,
        child: &CompiledTable,
        parent: &CompiledTable,
        constraint: &ForeignKey,
        values: &[Datum],
    ) -> Result<Vec<Datum>> {
        let mut out = Vec::with_capacity(values.len());
        for (value, (from, to)) in values.iter().zip(key_types(child, parent, constraint)) {
            out.push(to_parent(value, from, to, self.context)?.unwrap_or(Datum::Null));
        }
        Ok(out)
    }

    /// The rows whose referencing columns equal each of `keys`: values of the table `of`, without
    /// one of the referencing columns.
    pub(super) async fn children(
        &self,
        info: &CompiledTable,
        constraint: &ForeignKey,
        of: Option<&CompiledTable>,
        keys: &[Vec<Datum>],
    ) -> Result<Vec<Vec<(Bytes, Row)>>> {
        let mut out = vec![Vec::new(); keys.len()];
        let types: Vec<(&SqlType, &SqlType)> = match of {
            Some(parent) => key_types(info, parent, constraint).collect(),
            None => {
                let own = constraint.columns.iter().map(|c| &info.table.columns[*c].ty);
                own.map(|ty| (ty, ty)).collect()
            }
        };
        let options = ScanOptions { read_for: ReadFor::Constraint, ..ScanOptions::default() };
        let count = constraint.columns.len();
        // An index whose leading columns are the referencing ones, in any order.
        let one = types.iter().all(|(child, parent)| {
            matches!(KeyTypes::of(child, parent), KeyTypes::Same | KeyTypes::Exact)
        });
        let index = info.table.all_indexes().filter(|i| i.predicate.is_none()).find(|i| {
            one && i.columns.len() >= count
                && i.columns[..count].iter().all(|c| constraint.columns.contains(&c.column))
        });
        if let Some(index) = index {
            for (at, key) in keys.iter().enumerate() {
                let key: Option<Vec<Datum>> = key
                    .iter()
                    .zip(&types)
                    .map(|(value, (child, parent))| to_child(value, child, parent, self.context))
                    .collect();
                // A key that the referencing columns cannot hold.
                let Some(key) = key else { continue };
                let mut prefix = storage::prefix(info.database, &info.table, index.id);
                for column in &index.columns[..count] {
                    let position =
                        constraint.columns.iter().position(|c| *c == column.column).unwrap_or(0);
                    let ty = &info.table.columns[column.column].ty;
                    storage::append_key(&mut prefix, &key[position], ty, column.direction)?;
                }
                let mut scan =
                    self.exec.txn.scan(KeyRange::with_prefix(prefix.as_slice()), options);
                loop {
                    telesto_sql_types::interrupt::pace().await?;
                    let batch = scan.next_batch(BATCH).await?;
                    if batch.is_empty() {
                        break;
                    }
                    let pairs = if index.id == 0 {
                        batch
                    } else {
                        let row_keys = batch
                            .iter()
                            .map(|(k, v)| {
                                storage::primary_of_entry(info.database, &info.table, index, k, v)
                            })
                            .collect::<Result<Vec<_>>>()?;
                        let values = get_many(self.exec, &row_keys, ReadFor::Constraint).await?;
                        row_keys
                            .into_iter()
                            .zip(values)
                            .filter_map(|(k, v)| v.map(|v| (k, v)))
                            .collect()
                    };
                    out[at].extend(decoded(info, pairs)?);
                }
            }
            return Ok(out);
        }
        // Without an index: one scan, and a look into a table of the wanted keys for each row.
        let mut wanted: FxHashMap<Vec<u8>, usize> = FxHashMap::default();
        let encode = |values: &[Datum]| -> Result<Vec<u8>> {
            let mut key = telesto_common::key::KeyWriter::new();
            for (value, (_, parent)) in values.iter().zip(&types) {
                storage::append_key(&mut key, value, parent, Default::default())?;
            }
            Ok(key.as_slice().to_vec())
        };
        for (at, key) in keys.iter().enumerate() {
            wanted.insert(encode(key)?, at);
        }
        let mut seen: FxHashSet<Bytes> = FxHashSet::default();
        let mut scan =
            self.exec.txn.scan(codec::table_range(info.database, &info.table, 0), options);
        loop {
            telesto_sql_types::interrupt::pace().await?;
            let batch = scan.next_batch(BATCH).await?;
            if batch.is_empty() {
                return Ok(out);
            }
            for (row_key, value) in batch {
                let row = info.codec.decode(&row_key, &value)?;
                let mut values = Vec::with_capacity(count);
                for (column, (child, parent)) in constraint.columns.iter().zip(&types) {
                    match &row[*column] {
                        Datum::Null => break,
                        value => values.extend(to_parent(value, child, parent, self.context)?),
                    }
                }
                if values.len() < count {
                    continue;
                }
                if let Some(at) = wanted.get(&encode(&values)?)
                    && seen.insert(row_key.clone())
                {
                    out[*at].push((row_key, row));
                }
            }
        }
    }
}

/// Stored rows, read.
fn decoded(info: &CompiledTable, rows: Vec<(Bytes, Bytes)>) -> Result<Vec<(Bytes, Row)>> {
    let row = |(key, value): (Bytes, Bytes)| {
        let row = info.codec.decode(&key, &value)?;
        Ok((key, row))
    };
    rows.into_iter().map(row).collect()
}

/// The types of the pairs of columns, referencing and referenced.
fn key_types<'a>(
    child: &'a CompiledTable,
    parent: &'a CompiledTable,
    constraint: &'a ForeignKey,
) -> impl Iterator<Item = (&'a SqlType, &'a SqlType)> {
    let pairs = constraint.columns.iter().zip(&constraint.referenced_columns);
    pairs.map(|(a, b)| (&child.table.columns[*a].ty, &parent.table.columns[*b].ty))
}

/// The key of the referenced row, or of its entry in the referenced unique index; `values` are of
/// the referenced types.
fn parent_key(
    child: &CompiledTable,
    parent: &CompiledTable,
    constraint: &ForeignKey,
    values: &[Datum],
) -> Result<Bytes> {
    let index = parent.table.index(constraint.referenced_index).ok_or_else(|| {
        Error::internal(format!(
            "foreign key {} of {} refers to no index",
            constraint.name, child.table.name
        ))
    })?;
    let mut key = storage::prefix(parent.database, &parent.table, index.id);
    for column in &index.columns {
        let at =
            constraint.referenced_columns.iter().position(|c| *c == column.column).unwrap_or(0);
        let ty = &parent.table.columns[column.column].ty;
        storage::append_key(&mut key, &values[at], ty, column.direction)?;
    }
    Ok(key.finish())
}

impl Statement<'_> {
    /// Takes up what an earlier batch left.
    pub fn resume(&mut self, pending: Pending) {
        self.missing = pending.missing;
        self.lost = pending.lost;
        self.keys = pending.keys;
        self.shared = pending.shared;
        self.infos.extend(pending.infos);
    }

    /// Leaves what is to be settled to a later batch.
    pub fn suspend(self) -> Pending {
        Pending {
            missing: self.missing,
            lost: self.lost,
            keys: self.keys,
            shared: self.shared,
            infos: self.infos,
        }
    }

    fn take_pending(&mut self) -> Pending {
        Pending {
            missing: std::mem::take(&mut self.missing),
            lost: std::mem::take(&mut self.lost),
            keys: std::mem::take(&mut self.keys),
            shared: std::mem::take(&mut self.shared),
            infos: std::mem::take(&mut self.infos),
        }
    }
}

/// Whether a column of a foreign key is changed when the row that it refers to goes, or gets other
/// values.
fn sets(key: &ForeignKey, column: usize, gone: bool) -> bool {
    !gone || key.delete_columns.is_empty() || key.delete_columns.contains(&column)
}
