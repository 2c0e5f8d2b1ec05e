//! The catalog's side of what is done in many transactions: an index begins to be filled, becomes
//! whole, or is given up; keys of dropped objects are left to the sweep. The engine drives the
//! protocol.
//!
//! # Invariants
//! - Each function is part of one transaction, which changes the catalog with the record of the
//!   build or the note of the drop.
//! - An index gets a new number whenever it is built anew: entries of an earlier build are never
//!   mistaken for its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use telesto_common::TableId;
use telesto_txn::ScanOptions;

use super::names::{free_name, split, undefined_table};
use super::{After, Ddl, build};
use telesto_sql_catalog::build_record::{BuildRecord, forget_record};
use telesto_sql_catalog::codec;
use telesto_sql_catalog::regions::Home;
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::temp::is_temporary;
use telesto_sql_catalog::{
    BuildState, CatalogCache, Dropped, Guarded, Index, IndexBuild, Relation, Table,
};
use telesto_sql_parser::definition::ReindexOf;
use telesto_sql_parser::sqlparser::ast::{CreateIndex, ObjectName, ObjectType};
use telesto_sql_plan::ExecContext;
use telesto_sql_types::error::{Error, Result, SqlState};

/// Tables of more rows, or bytes, are worked on in several transactions.
const SMALL_ROWS: usize = 4000;
/// See [`SMALL_ROWS`].
const SMALL_BYTES: usize = 4 << 20;

/// A build that has begun.
pub type Started = (TableId, u32);

async fn written(ddl: Ddl<'_>, cache: &CatalogCache) -> Result<()> {
    let env = ddl.context.env.clone();
    let (_, shared) = ddl.change.finish(&env).await?;
    cache.remember(shared);
    Ok(())
}

/// Adds the index to its table as one that is being filled; `None`: there is one of that name (IF
/// NOT EXISTS).
///
/// # Errors
/// Those of CREATE INDEX.
pub async fn start_create(
    context: &ExecContext,
    cache: &CatalogCache,
    create: &CreateIndex,
    record: impl FnOnce(&Table) -> BuildRecord,
) -> Result<Option<Started>> {
    let mut ddl = Ddl::over(context);
    let Some((mut table, index)) = ddl.describe_index(create)? else { return Ok(None) };
    super::curated::may_change(&table, &ddl.actor)?;
    ddl.catalog().check_fillable(&table, &index)?;
    let started = (table.id, index.id);
    record(&table)
        .write(context.txn.as_ref(), context.catalog.database, table.id, index.id)
        .await?;
    table.building.push(IndexBuild { index, state: BuildState::Filling, replaces: None });
    ddl.change.put(Object::Table(table));
    written(ddl, cache).await?;
    Ok(Some(started))
}

/// Adds an index that is to take the place of the one with this number; the build there is, if that
/// is being filled. Whether it was begun here: another's is only waited for.
///
/// # Errors
/// 55000 when it is gone.
pub async fn start_reindex(
    context: &ExecContext,
    cache: &CatalogCache,
    (table, index): Started,
    record: impl FnOnce(&Table) -> BuildRecord,
) -> Result<(Started, bool)> {
    let mut ddl = Ddl::over(context);
    let found = ddl.catalog().table(table).cloned();
    let Some(table) = found else { return Err(gone_while_building()) };
    super::curated::may_change(&table, &ddl.actor)?;
    let mut table = (*table).clone();
    let current = table.known_indexes().find(|i| i.id == index).cloned();
    let Some(current) = current else { return Err(gone_while_building()) };
    if table.is_filling(index) {
        return Ok(((table.id, index), false));
    }
    let under_way = table.building.iter().find(|build| build.replaces == Some(index));
    if let Some(build) = under_way.filter(|build| build.state == BuildState::Filling) {
        return Ok(((table.id, build.index.id), false));
    }
    let catalog = ddl.catalog();
    catalog.check_fillable(&table, &current)?;
    let taken = |name: &str| catalog.relation(table.schema, name).is_some();
    let name = free_name(taken, (&current.name, "", "ccnew"));
    let id = table.next_index;
    table.next_index += 1;
    let oid = ddl.change.oid();
    let new = Index { oid, id, name, constraint_oid: None, comment: None, ..current };
    record(&table).write(context.txn.as_ref(), context.catalog.database, table.id, id).await?;
    table.building.push(IndexBuild {
        index: new,
        state: BuildState::Filling,
        replaces: Some(index),
    });
    let started = (table.id, id);
    ddl.change.put(Object::Table(table));
    written(ddl, cache).await?;
    Ok((started, true))
}

/// Makes an index whole whose entries are all there.
///
/// # Errors
/// 55000 when the index whose place it is to take is gone.
pub async fn finish(
    context: &ExecContext,
    cache: &CatalogCache,
    table: TableId,
    index: u32,
) -> Result<()> {
    let mut ddl = Ddl::over(context);
    let found = ddl.catalog().table(table).cloned();
    let Some(table) = found else { return Err(gone_while_building()) };
    let mut table = (*table).clone();
    let at = table.building.iter().position(|build| build.index.id == index);
    let Some(at) = at else { return Err(gone_while_building()) };
    let build = table.building.remove(at);
    match build.replaces {
        None => {
            table.indexes.push(build.index);
            ddl.change.put(Object::Table(table));
        }
        Some(old) => {
            if !ddl.renumber(table, old, index)? {
                return Err(gone_while_building());
            }
        }
    }
    written(ddl, cache).await
}

/// Ends a build that failed; false: another than `holder` drives it. Who was taken over from, or
/// only waits, ends nobody else's.
///
/// # Errors
/// Those of the transaction.
pub async fn abandon(
    context: &ExecContext,
    cache: &CatalogCache,
    (id, index): Started,
    holder: u128,
) -> Result<bool> {
    let (txn, database) = (context.txn.as_ref(), context.catalog.database);
    let mut ddl = Ddl::over(context);
    let record = BuildRecord::read(txn, database, id, index).await?;
    if record.as_ref().is_some_and(|record| record.holder != holder) {
        return Ok(false);
    }
    let Some(table) = ddl.catalog().table(id).cloned() else { return Ok(true) };
    let mut table = (*table).clone();
    if !table.is_filling(index) {
        return Ok(true);
    }
    if record.is_some_and(|record| record.command.leaves_invalid()) {
        for build in table.building.iter_mut().filter(|build| build.index.id == index) {
            build.state = BuildState::Invalid;
            build.replaces = None;
        }
    } else {
        table.building.retain(|build| build.index.id != index);
        ddl.leave_to_sweep(&table, Some(index));
    }
    forget_record(txn, database, id, index).await?;
    ddl.change.put(Object::Table(table));
    written(ddl, cache).await.map(|()| true)
}

/// What the builder of an index is told when somebody has dropped it, or its table.
pub fn gone_while_building() -> Error {
    Error::new(
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "the index or its table was dropped while the index was being built",
    )
    .hint("Create the index again if it is still wanted.")
}

impl Ddl<'_> {
    /// Gives the index `old` the number, and so the entries, of `new`; false: it is gone.
    fn renumber(&mut self, mut table: Table, old: u32, new: u32) -> Result<bool> {
        if let Some(found) = table.indexes.iter_mut().find(|index| index.id == old) {
            found.id = new;
        } else if let Some(at) = table.building.iter().position(|b| b.index.id == old) {
            let mut found = table.building.remove(at).index;
            found.id = new;
            table.indexes.push(found);
        } else {
            return Ok(false);
        }
        self.leave_to_sweep(&table, Some(old));
        self.repoint_keys(&mut table, old, new);
        self.change.put(Object::Table(table));
        Ok(true)
    }

    /// Foreign keys that rely on the index `old` of the table rely on `new` from then on, whosever
    /// tables they are of.
    pub(super) fn repoint_keys(&mut self, table: &mut Table, old: u32, new: u32) {
        let id = table.id;
        let repoint = |of: &mut Table| {
            for key in of.foreign_keys.iter_mut() {
                if key.referenced == id && key.referenced_index == old {
                    key.referenced_index = new;
                }
            }
        };
        repoint(table);
        let referencing: BTreeSet<TableId> = self
            .catalog()
            .referencing(id)
            .iter()
            .filter(|(other, key)| *other != id && key.referenced_index == old)
            .map(|(other, _)| *other)
            .collect();
        for other in referencing {
            let Some(other) = self.catalog().table(other) else { continue };
            let mut other = (**other).clone();
            repoint(&mut other);
            self.kept.insert(other.id.0);
            self.change.put(Object::Table(other));
        }
    }

    /// Notes that the keys of an index (`None`: of the table) are to be swept.
    pub(super) fn leave_to_sweep(&mut self, table: &Table, index: Option<u32>) {
        self.change.define_temporary(false);
        let oid = self.change.oid();
        // Where every region writes, each has entries of its own. Where some regions have the
        // table, the others are not to get what is about to be deleted, as a rule of the note would
        // have it.
        let placement = &table.placement;
        let own = index.is_some() && placement.home == Home::Any;
        let by_row = placement.by_row.is_some() || placement.regions.is_some() || own;
        self.change.put(Object::Dropped(Dropped { oid, storage: table.storage, index, by_row }));
    }

    /// Removes the keys of an index (`None`: of the table): now if they are few, else later.
    pub(super) async fn release(&mut self, table: &Table, index: Option<u32>) -> Result<()> {
        let database = self.context.catalog.database;
        for build in &table.building {
            if index.is_none_or(|index| index == build.index.id) {
                let txn = self.context.txn.as_ref();
                forget_record(txn, database, table.id, build.index.id).await?;
            }
        }
        self.release_keys(table, index).await
    }

    /// [`Ddl::release`] of what goes on being built.
    pub(super) async fn release_keys(&mut self, table: &Table, index: Option<u32>) -> Result<()> {
        if !is_temporary(table.id.0) && self.is_large(table, index.unwrap_or(0)).await? {
            self.leave_to_sweep(table, index);
            return Ok(());
        }
        match index {
            Some(index) => build::delete_index(self.context, table, index).await?,
            None => build::delete_rows(self.context, table).await?,
        };
        Ok(())
    }

    /// Whether an index (0: the rows) has more keys than one transaction should touch.
    pub(super) async fn is_large(&self, table: &Table, index: u32) -> Result<bool> {
        if table.placement.by_row.is_some() || (index != 0 && !self.catalog().writes_alone(table)) {
            // Its rows are written by other regions too: none of them is deleted by this one.
            return Ok(true);
        }
        let range = codec::table_range(self.context.catalog.database, table, index);
        is_large(self.context, range).await
    }

    /// The secondary indexes that REINDEX names.
    pub(super) fn reindexed(
        &self,
        table: bool,
        concurrently: bool,
        name: &ObjectName,
    ) -> Result<Vec<Started>> {
        let (_, shown) = split(name)?;
        match (table, self.find(name)?) {
            (true, Some(Relation::Table(table))) => {
                if table.known_indexes().next().is_none() {
                    let what = if concurrently {
                        "has no indexes that can be reindexed concurrently"
                    } else {
                        "has no indexes to reindex"
                    };
                    self.context.notices.notice(format!("table \"{}\" {what}", table.name));
                }
                Ok(indexes_of(&table))
            }
            (true, Some(_)) => Err(Error::new(
                SqlState::WRONG_OBJECT_TYPE,
                format!("\"{shown}\" is not a table or materialized view"),
            )),
            // The rows themselves are the primary key: there is nothing beside them to build.
            (false, Some(Relation::Index(_, index))) if index.id == 0 => Ok(Vec::new()),
            (false, Some(Relation::Index(table, index))) => Ok(vec![(table.id, index.id)]),
            (false, Some(_)) => {
                Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{shown}\" is not an index")))
            }
            (_, None) => Err(undefined_table(name)),
        }
    }

    /// Builds an index anew inside this transaction.
    pub(super) async fn reindex_here(&mut self, table: TableId, index: u32) -> Result<()> {
        let Some(found) = self.catalog().table(table).cloned() else { return Ok(()) };
        if found.is_filling(index) {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                "the index is being built by another session",
            )
            .hint("Wait for that build, or drop the index."));
        }
        let mut found = (*found).clone();
        let new = found.next_index;
        found.next_index += 1;
        if is_temporary(table.0) {
            // Nobody else sees the entries: they are put again where they are.
            build::delete_index(self.context, &found, index).await?;
            self.after.push(After::Fill(table, index));
            return Ok(());
        }
        if self.renumber(found, index, new)? {
            self.after.push(After::Fill(table, new));
        }
        Ok(())
    }

    /// DROP INDEX CONCURRENTLY.
    pub(super) async fn drop_concurrently(
        &mut self,
        names: &[ObjectName],
        if_exists: bool,
        cascade: bool,
    ) -> Result<()> {
        if names.len() > 1 {
            return Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                "DROP INDEX CONCURRENTLY does not support dropping multiple objects",
            ));
        }
        if cascade {
            return Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                "DROP INDEX CONCURRENTLY does not support CASCADE",
            ));
        }
        self.drop_objects(ObjectType::Index, names, if_exists, false).await.map(drop)
    }
}

/// Whether there are more keys, or bytes, in the range than one transaction should touch.
///
/// # Errors
/// Those of the transaction.
pub async fn is_large(context: &ExecContext, range: telesto_common::key::KeyRange) -> Result<bool> {
    let limit = SMALL_ROWS as u64 + 1;
    let options = ScanOptions { limit: Some(limit), ..ScanOptions::default() };
    let mut scan = context.txn.scan(range, options);
    let (mut rows, mut bytes) = (0, 0);
    loop {
        let batch = scan.next_batch(SMALL_ROWS + 1).await?;
        if batch.is_empty() {
            return Ok(false);
        }
        rows += batch.len();
        bytes += batch.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        if rows > SMALL_ROWS || bytes > SMALL_BYTES {
            return Ok(true);
        }
    }
}

/// The table that CREATE INDEX names, and the indexes that REINDEX names, if they are shared: what
/// is temporary is built in one transaction.
pub enum Named {
    /// The table.
    Table(Arc<Table>),
    /// Indexes by table and number.
    Indexes(Vec<Started>),
    /// Nothing, or something temporary: for the ordinary path to do, or to refuse.
    Other,
}

/// The indexes of a table that REINDEX builds anew.
fn indexes_of(table: &Table) -> Vec<Started> {
    // The rows themselves are the primary key: there is nothing beside them to build.
    let beside = table.known_indexes().filter(|index| index.id != 0);
    let left = |index: &&Index| table.build(index.id).is_none_or(|build| build.replaces.is_none());
    beside.filter(left).map(|index| (table.id, index.id)).collect()
}

/// What is said of REINDEX of many where it cannot commit as it goes.
pub(super) fn not_in_a_block(of: ReindexOf) -> Error {
    Error::new(
        SqlState::ACTIVE_SQL_TRANSACTION,
        format!("{} cannot run inside a transaction block", of.statement()),
    )
}

/// Looks up what REINDEX SCHEMA, DATABASE or SYSTEM is about.
///
/// # Errors
/// 3F000, 0A000 for another database, 42501 for who does not own it.
pub fn all_indexes(
    context: &ExecContext,
    of: ReindexOf,
    concurrently: bool,
    name: &str,
) -> Result<Named> {
    let ddl = Ddl::over(context);
    let catalog = ddl.catalog();
    let unsupported = |what: &str| Err(Error::new(SqlState::FEATURE_NOT_SUPPORTED, what));
    let within = match of {
        ReindexOf::Schema => {
            let schema = catalog.schema(name).ok_or_else(|| {
                Error::new(
                    SqlState::INVALID_SCHEMA_NAME,
                    format!("schema \"{name}\" does not exist"),
                )
            })?;
            ddl.need_owner(Guarded::schema(schema))?;
            Some(schema.oid)
        }
        ReindexOf::System if concurrently => {
            return unsupported("cannot reindex system catalogs concurrently");
        }
        ReindexOf::Database | ReindexOf::System => {
            if name != catalog.database_name {
                return unsupported("can only reindex the currently open database");
            }
            ddl.need_owner(catalog.guarded_database())?;
            None
        }
    };
    // System tables are computed when they are read.
    if of == ReindexOf::System {
        return Ok(Named::Indexes(Vec::new()));
    }
    let tables = catalog.tables().filter(|table| {
        !is_temporary(table.id.0) && within.is_none_or(|schema| table.schema == schema)
    });
    let mut found: Vec<Started> = tables.flat_map(|table| indexes_of(table)).collect();
    if concurrently {
        found.retain(|(table, index)| {
            let build = catalog.table(*table).and_then(|table| table.build(*index));
            build.is_none_or(|build| build.state == BuildState::Filling)
        });
    }
    Ok(Named::Indexes(found))
}

/// Looks up what CREATE INDEX is about.
pub fn named_table(context: &ExecContext, create: &CreateIndex) -> Named {
    match Ddl::over(context).table(&create.table_name) {
        Ok(table) if !is_temporary(table.id.0) => Named::Table(table),
        _ => Named::Other,
    }
}

/// Looks up what REINDEX is about; those whose build failed are left out where PostgreSQL does.
///
/// # Errors
/// 42P01, 42809.
pub fn named_indexes(
    context: &ExecContext,
    table: bool,
    concurrently: bool,
    name: &ObjectName,
) -> Result<Named> {
    let ddl = Ddl::over(context);
    if let Some(found) = ddl.find(name)? {
        ddl.need_owner_of(&found)?;
    }
    let mut found = ddl.reindexed(table, concurrently, name)?;
    if found.iter().any(|(table, _)| is_temporary(table.0)) {
        return Ok(Named::Other);
    }
    if table && concurrently {
        found.retain(|(table, index)| {
            let Some(table) = ddl.catalog().table(*table) else { return false };
            let Some(build) = table.build(*index) else { return true };
            if build.state == BuildState::Filling {
                return true;
            }
            let schema = ddl.catalog().schema_name(table.schema);
            context.notices.warning(
                SqlState::FEATURE_NOT_SUPPORTED,
                format!(
                    "cannot reindex invalid index \"{schema}.{}\" concurrently, skipping",
                    build.index.name
                ),
            );
            false
        });
    }
    Ok(Named::Indexes(found))
}
