//! What replication between regions must know of tables, and the regions that the catalog names.
//!
//! # Invariants
//! - Rows are read by the definitions at the snapshot they are applied at; definitions are kept by
//!   their stamp.
//! - Index entries that follow from a row are those that a writer here would have put
//!   ([`CompiledTable::entry`]).
//! - A row that an index cannot have an entry of (its expression fails, its key is too long) stops
//!   nobody while that index is being filled: the row comes, and with it this region's word that
//!   its part has failed. No whole index meets one: whoever sent the row fills its own part, and
//!   fails too.
//!
//! # On failure
//! What cannot be read is told as text; whoever applies tries again.
//!
//! # Limits
//! The definitions of one stamp are kept.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::key::{KeyRange, KeyReader};
use telesto_common::{RegionId, TableId, Timestamp};
use telesto_txn::regions::{
    Definitions, DerivedEntries, DerivedEntry, Keeper, LabelledValue, Meaning, Merged, Share,
    Standing,
};
use telesto_txn::{Database, Level, ReadFor, TxnOptions};

use crate::catalog::by_row::{ByRow, ValuePlace};
use crate::catalog::merging::{Joined, Merger, keeps_state, share, written_out};
use crate::catalog::regional_builds::{Failure, Task, Word, word_key};
use crate::catalog::regions::{Home, Region, acknowledged, acknowledgement, acknowledgement_key};
use crate::catalog::store::{CatalogChange, DEFAULT_DATABASE_ID, Object, header_key};
use crate::catalog::{CatalogCache, CatalogSnapshot, Table};
use crate::error::{Error, Result, SqlState};
use crate::expr::{EvalContext, Settings};
use crate::plan::compiled_table::CompiledTable;
use crate::session::SqlEngine;

/// How often a change of the regions that others are in the way of is made again.
const ATTEMPTS: u32 = 20;

/// See the module's text.
#[derive(Debug)]
pub struct RegionDefinitions {
    database: Arc<dyn Database>,
    catalogs: CatalogCache,
    newest: Mutex<Option<(Bytes, Arc<TableMeaning>)>>,
}

impl RegionDefinitions {
    /// The definitions in `database`.
    #[must_use]
    pub fn new(database: Arc<dyn Database>) -> Arc<Self> {
        let catalogs = CatalogCache::of(database.region());
        Arc::new(Self { database, catalogs, newest: Mutex::default() })
    }

    /// Whether a region that joined has what the others had for it: their definitions, up to where
    /// they name this region, and all rows that were to be sent before. `passed`: everything of
    /// each region up to these times is here. What is missing, if something is.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn missing(&self, passed: &BTreeMap<RegionId, Timestamp>) -> Result<Option<String>> {
        let me = self.database.region();
        let options = TxnOptions { read_only: true, ..TxnOptions::default() };
        let txn = self.database.begin(options).await?;
        let header = txn.get(&header_key(DEFAULT_DATABASE_ID), ReadFor::Query).await?;
        let has =
            |region: u16| passed.get(&RegionId(region)).is_some_and(|at| *at > Timestamp::ZERO);
        if header.is_none() {
            return Ok(Some("the definitions".to_owned()));
        }
        let catalog = self.catalogs.read(&txn, DEFAULT_DATABASE_ID).await?;
        let defining = catalog.defining().0;
        if defining != me.0 && !has(defining) {
            return Ok(Some(format!(
                "the definitions of region {}",
                catalog.region_name(defining)
            )));
        }
        let Some(own) = catalog.regions().find(|region| region.id == me.0) else {
            let defining = catalog.region_name(defining);
            return Ok(Some(format!("region {defining} to name this one")));
        };
        // A region sends its rows before it says that it has heard of this one. The defining one's
        // saying is the filled stream itself.
        for region in catalog.regions().filter(|region| region.id != me.0) {
            let key = acknowledgement_key(DEFAULT_DATABASE_ID, RegionId(region.id));
            let said = txn.get(&key, ReadFor::Query).await?;
            let said = said.map(|row| acknowledged(&row)).transpose()?;
            if !catalog.has_heard(region.id, said, own.oid) || !has(region.id) {
                return Ok(Some(format!("the rows of region {}", region.name)));
            }
        }
        Ok(None)
    }

    async fn read(&self, at: Timestamp) -> Result<Arc<CatalogSnapshot>> {
        let options = TxnOptions { read_only: true, as_of: Some(at), ..TxnOptions::default() };
        let txn = self.database.begin(options).await?;
        let catalog = self.catalogs.read(&txn, DEFAULT_DATABASE_ID).await;
        txn.rollback();
        catalog
    }
}

#[async_trait]
impl Definitions for RegionDefinitions {
    fn stamp(&self) -> Bytes {
        header_key(DEFAULT_DATABASE_ID)
    }

    async fn at(
        &self,
        at: Timestamp,
        stamp: Option<&Bytes>,
    ) -> std::result::Result<Option<Arc<dyn Meaning>>, String> {
        let Some(stamp) = stamp else { return Ok(None) };
        if let Some((of, meaning)) = &*self.newest.lock()
            && of == stamp
        {
            return Ok(Some(Arc::clone(meaning) as _));
        }
        let catalog = self.read(at).await.map_err(|error| error.to_string())?;
        let meaning = Arc::new(TableMeaning::new(catalog));
        *self.newest.lock() = Some((stamp.clone(), Arc::clone(&meaning)));
        Ok(Some(meaning))
    }

    fn acknowledgement(&self, me: RegionId, stamp: &Bytes) -> Option<(Bytes, Bytes)> {
        // A header that does not decode stops the next read of the catalog, with its reason.
        let row = acknowledgement(stamp).ok()?;
        Some((acknowledgement_key(DEFAULT_DATABASE_ID, me), row))
    }
}

#[derive(Debug)]
struct TableMeaning {
    catalog: Arc<CatalogSnapshot>,
    settings: Settings,
    /// By where their rows are.
    tables: BTreeMap<TableId, Arc<Table>>,
    compiled: Mutex<BTreeMap<TableId, Arc<CompiledTable>>>,
}

impl TableMeaning {
    fn new(catalog: Arc<CatalogSnapshot>) -> Self {
        let tables = catalog.tables().map(|table| (table.storage, Arc::clone(table))).collect();
        Self { catalog, settings: Settings::default(), tables, compiled: Mutex::default() }
    }

    fn table_of(&self, key: &[u8]) -> Option<&Arc<Table>> {
        let (database, storage, _) = place(key)?;
        self.tables.get(&storage).filter(|_| database == self.catalog.database)
    }

    fn compiled(&self, table: &Arc<Table>) -> Result<Arc<CompiledTable>> {
        if let Some(compiled) = self.compiled.lock().get(&table.storage) {
            return Ok(Arc::clone(compiled));
        }
        let compiled = Arc::new(CompiledTable::new(&self.catalog, &self.settings, table)?);
        self.compiled.lock().insert(table.storage, Arc::clone(&compiled));
        Ok(compiled)
    }

    fn derive(
        &self,
        table: &Arc<Table>,
        key: &Bytes,
        old: Option<&Bytes>,
        new: Option<&Bytes>,
    ) -> Result<DerivedEntries> {
        let compiled = self.compiled(table)?;
        let context = EvalContext::planning(&self.settings, &self.catalog);
        let indexes = compiled.unique.iter().filter(|index| index.id != 0).chain(&compiled.plain);
        let indexes: Vec<_> = indexes.collect();
        let of = |value: Option<&Bytes>, comes: bool| -> Result<Vec<DerivedEntry>> {
            let Some(value) = value else { return Ok(Vec::new()) };
            let row = compiled.codec.decode(key, value)?;
            let mut entries = Vec::new();
            for index in &indexes {
                match compiled.entry(index, &row, key, &context) {
                    Ok(entry) => {
                        entries.extend(entry.map(|(key, value)| DerivedEntry { key, value }));
                    }
                    Err(error) if table.is_filling(index.id) => {
                        let failed = self.failed(table, index.id, &error);
                        entries.extend(comes.then_some(failed).transpose()?);
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(entries)
        };
        let (mut old, mut new) = (of(old, false)?, of(new, true)?);
        // What stays is not written.
        let stays: Vec<_> = old.iter().filter(|entry| new.contains(entry)).cloned().collect();
        old.retain(|entry| !stays.contains(entry));
        new.retain(|entry| !stays.contains(entry));
        Ok(DerivedEntries { old, new })
    }
}

impl TableMeaning {
    /// The word that this region's part of a build has failed. It is told when it is said again:
    /// what comes from another region is sent to nobody.
    fn failed(&self, table: &Table, index: u32, error: &Error) -> Result<DerivedEntry> {
        let task = Task::Fill(table.id, index);
        let key = word_key(self.catalog.database, self.catalog.me(), task);
        tracing::warn!(table = table.id.0, index, %error, detail = error.fields().detail, "a row of another region has no entry of an index that is built");
        let value = Word::Failed(Failure::untold(error, table, index)).encode()?;
        Ok(DerivedEntry { key, value })
    }

    /// The table whose row is under `key`.
    fn row_table_of(&self, key: &[u8]) -> Option<&Arc<Table>> {
        let (database, storage, index) = place(key)?;
        let table = self.tables.get(&storage)?;
        (index == 0 && database == self.catalog.database).then_some(table)
    }

    /// Where the row, or the entry, under `key` is, of a table that places rows by `rule`.
    fn place_of<'r>(&self, rule: &'r ByRow, key: &[u8]) -> Option<&'r ValuePlace> {
        let part = self.catalog.row_parts_of(key)?.part_of(key)?;
        rule.values.get(&part.value)
    }

    /// The same, if its columns merge.
    fn merging(&self, key: &[u8]) -> Option<&Arc<Table>> {
        self.row_table_of(key).filter(|table| table.placement.merging.is_some())
    }
}

/// Database, table and index, which every key begins with.
const PREFIX_BYTES: usize = 12;

fn place(key: &[u8]) -> Option<(telesto_common::DatabaseId, TableId, u32)> {
    KeyReader::new(key).prefix().ok()
}

impl Meaning for TableMeaning {
    fn defining(&self) -> Option<RegionId> {
        Some(self.catalog.defining())
    }

    fn standing(&self, key: &[u8]) -> Standing {
        let Some((database, storage, _)) = place(key) else { return Standing::Known };
        if database != self.catalog.database || self.tables.contains_key(&storage) {
            return Standing::Known;
        }
        if storage.0 == u32::MAX || self.catalog.dropped().any(|note| note.storage == storage) {
            return Standing::Known;
        }
        if storage.0 >= self.catalog.next_oid() { Standing::NotYet } else { Standing::Gone }
    }

    fn is_later(&self, range: &KeyRange) -> bool {
        // A table's range begins with its database and number alone; its first key has an index,
        // too.
        let mut first = range.start.to_vec();
        first.resize(first.len().max(PREFIX_BYTES), 0);
        self.standing(&first) == Standing::NotYet
    }

    fn entries(
        &self,
        source: RegionId,
        key: &Bytes,
        old: Option<&Bytes>,
        new: Option<&Bytes>,
    ) -> std::result::Result<DerivedEntries, String> {
        let Some(table) = self.row_table_of(key) else { return Ok(DerivedEntries::default()) };
        let placement = &table.placement;
        let (home, moved) = match (&placement.home, &placement.by_row) {
            (Home::Region(home), _) => (Some(*home), placement.moved.is_some()),
            (Home::Row, Some(rule)) => {
                let place = self.place_of(rule, key);
                (place.and_then(ValuePlace::home), place.is_some_and(|p| p.moved.is_some()))
            }
            _ => (None, false),
        };
        // The label of a row that merges, or has merged, does not say whose it is.
        let sent = home == Some(source.0) && !moved && !new.is_some_and(|new| keeps_state(new));
        if sent || table.maintained_indexes().all(|index| index.id == 0) {
            return Ok(DerivedEntries::default());
        }
        self.derive(table, key, old, new).map_err(|error| error.to_string())
    }

    fn keeper(&self, key: &[u8]) -> Keeper {
        let Some(table) = self.table_of(key) else { return Keeper::Other };
        let (home, moved) = match (&table.placement.home, &table.placement.by_row) {
            (Home::Region(home), _) => (*home, &table.placement.moved),
            (Home::Row, Some(rule)) => {
                let Some(place) = self.place_of(rule, key) else { return Keeper::Other };
                let Some(home) = place.home() else { return Keeper::Other };
                (home, &place.moved)
            }
            _ => return Keeper::Other,
        };
        let from = moved.iter().flat_map(|moved| &moved.from);
        let stays = |id: &&u16| self.catalog.regions().any(|region| region.id == **id);
        let row = |id: &u16| acknowledgement_key(self.catalog.database, RegionId(*id));
        Keeper::Region { home: RegionId(home), moved: from.filter(stays).map(row).collect() }
    }

    fn has_stopped(&self, key: &[u8], row: Option<&Bytes>) -> bool {
        let moved = self.table_of(key).and_then(|table| match &table.placement.by_row {
            Some(rule) => self.place_of(rule, key).and_then(|place| place.moved.as_ref()),
            None => table.placement.moved.as_ref(),
        });
        let said = row.and_then(|row| acknowledged(row).ok());
        moved.is_none_or(|moved| said.is_some_and(|next_oid| next_oid > moved.at))
    }

    fn merges(&self, key: &[u8], value: Option<&Bytes>) -> bool {
        let Some(table) = self.row_table_of(key) else { return false };
        table.placement.merging.is_some() || value.is_some_and(|value| keeps_state(value))
    }

    fn is_sent_by_all(&self, key: &[u8]) -> bool {
        self.table_of(key).is_some_and(|table| table.placement.sent_by_all)
    }

    fn number(&self) -> u64 {
        let by_value = self.tables.values().any(|table| table.placement.sent_by_all);
        if by_value { u64::from(self.catalog.next_oid()) } else { 0 }
    }

    fn not_to_have(&self) -> Vec<KeyRange> {
        self.catalog.rows_elsewhere()
    }

    fn written_out(
        &self,
        key: &[u8],
        rank: (Timestamp, RegionId),
        value: &Bytes,
    ) -> std::result::Result<Option<(Timestamp, RegionId, Bytes)>, String> {
        let Some(table) = self.row_table_of(key).filter(|_| keeps_state(value)) else {
            return Ok(None);
        };
        let compiled = self.compiled(table).map_err(|error| error.to_string())?;
        let written = written_out(&compiled.table, &compiled.codec, rank, value);
        let written = written.map_err(|error| error.to_string())?;
        Ok(written.map(|((at, region), value)| (at, region, value)))
    }

    fn share(
        &self,
        key: &[u8],
        rank: (Timestamp, RegionId),
        value: &Bytes,
        of: RegionId,
    ) -> std::result::Result<Share, String> {
        let Some(table) = self.row_table_of(key) else { return Ok(Share::Whole) };
        let compiled = self.compiled(table).map_err(|error| error.to_string())?;
        share(&compiled.table, &compiled.codec, rank, value, of).map_err(|error| error.to_string())
    }

    fn merge(
        &self,
        key: &Bytes,
        here: Option<LabelledValue<'_>>,
        came: LabelledValue<'_>,
    ) -> std::result::Result<Option<Merged>, String> {
        let Some(table) = self.merging(key) else { return Ok(None) };
        let compiled = self.compiled(table).map_err(|error| error.to_string())?;
        let Some(merger) = Merger::of(&compiled.table, &compiled.codec) else { return Ok(None) };
        let (joined, lost) = merger.join(here, came).map_err(|error| error.to_string())?;
        let value = match joined {
            Joined::Stays => None,
            Joined::Becomes(value) => Some(value),
        };
        Ok(Some(Merged { value, lost }))
    }
}

/// Rows that are placed by the names of regions may bear those of regions that have come. A region
/// that comes under the name of one that is gone takes its rows over: by number the rule names
/// nobody.
fn name_values(
    change: &mut CatalogChange,
    catalog: &CatalogSnapshot,
    named: &[(u16, String, String)],
) {
    for table in catalog.tables() {
        let mut more = (**table).clone();
        let Some(rule) = more.placement.by_row.as_mut().filter(|rule| rule.named) else { continue };
        for (id, name, _) in named {
            let mut place = ValuePlace { regions: vec![*id], ..ValuePlace::default() };
            match rule.values.entry(name.clone()) {
                Entry::Vacant(value) => {
                    value.insert(place);
                }
                Entry::Occupied(mut value) => {
                    let stays = |at: &u16| named.iter().any(|(id, ..)| id == at);
                    if value.get().regions.iter().any(stays) {
                        continue;
                    }
                    place.follow(value.get(), change.oid(), catalog.me().0);
                    value.insert(place);
                }
            }
        }
        if more != **table {
            change.put(Object::Table(more));
        }
    }
}

impl SqlEngine {
    /// Makes the catalog name these regions: number, name and address. Those of `kept` stay named
    /// if they are, and are not named if they are not. Does nothing when it does.
    ///
    /// # Errors
    /// 25006 in a region that does not make definitions; those of the database.
    pub async fn name_regions(&self, named: &[(u16, String, String)], kept: &[u16]) -> Result<()> {
        let mut attempt = 0;
        loop {
            match self.try_name_regions(named, kept).await {
                Err(error) if error.conflict().is_some() && attempt < ATTEMPTS => attempt += 1,
                done => return done,
            }
        }
    }

    /// Forgets of moves and gains of tables what all regions have heard of, where definitions are
    /// made; elsewhere begins what is this region's part of an index build or of a drop. Called now
    /// and then.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn settle_regions(self: &Arc<Self>) -> Result<()> {
        let options =
            TxnOptions { level: Level::Session, read_only: true, ..TxnOptions::default() };
        let txn = self.database().begin(options).await?;
        let catalog = self.catalogs.read(&txn, DEFAULT_DATABASE_ID).await?;
        txn.rollback();
        if !catalog.defines() {
            if self.has_parts(&catalog).await? {
                crate::online::Upkeep::wake(self);
            }
            return Ok(());
        }
        if catalog.unsettled().next().is_none() && !catalog.is_yet_to_define() {
            return Ok(());
        }
        match self.try_settle().await {
            // Looked at again.
            Err(error) if error.conflict().is_some() => Ok(()),
            done => done,
        }
    }

    async fn try_settle(&self) -> Result<()> {
        let txn = self.database().begin(TxnOptions::default()).await?;
        let catalog = self.catalogs.read(&txn, DEFAULT_DATABASE_ID).await?;
        let mut heard = BTreeMap::new();
        for region in catalog.regions().filter(|region| region.id != catalog.me().0) {
            let key = acknowledgement_key(DEFAULT_DATABASE_ID, RegionId(region.id));
            let said = txn.get(&key, ReadFor::Query).await?;
            heard.insert(region.id, said.map(|row| acknowledged(&row)).transpose()?);
        }
        let mut change = CatalogChange::new(Arc::clone(&txn), &catalog);
        change.begin();
        for table in catalog.unsettled() {
            let mut settled = (**table).clone();
            let everybody =
                |at: u32| heard.iter().all(|(region, said)| catalog.has_heard(*region, *said, at));
            let placement = &mut settled.placement;
            placement.gaining.take_if(|gaining| everybody(gaining.at));
            placement.moved.take_if(|moved| everybody(moved.at));
            for place in placement.by_row.iter_mut().flat_map(|rule| rule.values.values_mut()) {
                place.gaining.take_if(|gaining| everybody(gaining.at));
                place.moved.take_if(|moved| everybody(moved.at));
            }
            if settled != **table {
                change.put(Object::Table(settled));
            }
        }
        if !change.is_changed() {
            txn.rollback();
            return Ok(());
        }
        let (_, shared) = change.finish(self.env()).await?;
        txn.commit().await.map_err(Error::from)?;
        self.catalogs.remember(shared);
        Ok(())
    }

    /// The region in which definitions are made, as this one knows it.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn defining_region(&self) -> Result<RegionId> {
        let options = TxnOptions { read_only: true, ..TxnOptions::default() };
        let txn = self.database().begin(options).await?;
        let catalog = self.catalogs.read(&txn, DEFAULT_DATABASE_ID).await?;
        txn.rollback();
        Ok(catalog.defining())
    }

    /// Has this region make the definitions in the place of `lost`, of which nothing can come any
    /// more; does nothing when that one does not make them.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn take_over_definitions(&self, lost: RegionId) -> Result<()> {
        let mut attempt = 0;
        loop {
            match self.try_take_over(lost).await {
                Err(error) if error.conflict().is_some() && attempt < ATTEMPTS => attempt += 1,
                done => return done,
            }
        }
    }

    async fn try_take_over(&self, lost: RegionId) -> Result<()> {
        let txn = self.database().begin(TxnOptions::default()).await?;
        let catalog = self.catalogs.read(&txn, DEFAULT_DATABASE_ID).await?;
        if catalog.defining() != lost {
            txn.rollback();
            return Ok(());
        }
        let mut change = CatalogChange::new(Arc::clone(&txn), &catalog);
        change.take_over(lost)?;
        let (_, shared) = change.finish(self.env()).await?;
        txn.commit().await.map_err(Error::from)?;
        self.catalogs.remember(shared);
        Ok(())
    }

    async fn try_name_regions(&self, named: &[(u16, String, String)], kept: &[u16]) -> Result<()> {
        let txn = self.database().begin(TxnOptions::default()).await?;
        let catalog = self.catalogs.read(&txn, DEFAULT_DATABASE_ID).await?;
        let is_new = |id: &u16| named.iter().all(|(named, ..)| named != id);
        let kept = catalog.regions().filter(|region| kept.contains(&region.id));
        let kept = kept.filter(|region| is_new(&region.id));
        let kept = kept.map(|region| (region.id, region.name.clone(), region.address.clone()));
        let named = &named.iter().cloned().chain(kept).collect::<Vec<_>>()[..];
        let mut change = CatalogChange::new(Arc::clone(&txn), &catalog);
        for (id, name, address) in named {
            let known = catalog.regions().find(|region| region.id == *id);
            if known.is_some_and(|region| region.name == *name && region.address == *address) {
                continue;
            }
            let keyed = catalog.tables().filter(|table| table.key.is_some());
            let keyed: Vec<_> = keyed.map(|table| format!("\"{}\"", table.name)).collect();
            if !catalog.is_regional() && !keyed.is_empty() {
                return Err(keyed_and_regional(&keyed.join(", ")));
            }
            let oid = known.map_or_else(|| change.oid(), |region| region.oid);
            let (id, name, address) = (*id, name.clone(), address.clone());
            let defines = known.and_then(|region| region.defines);
            change.put(Object::Region(Region { oid, id, name, address, defines }));
        }
        name_values(&mut change, &catalog, named);
        for gone in catalog.regions().filter(|region| named.iter().all(|(id, ..)| *id != region.id))
        {
            change.remove(gone.oid);
        }
        if !change.is_changed() {
            txn.rollback();
            return Ok(());
        }
        let (_, shared) = change.finish(self.env()).await?;
        txn.commit().await.map_err(Error::from)?;
        self.catalogs.remember(shared);
        Ok(())
    }
}

/// Other regions would have to read what only nodes with the key can.
fn keyed_and_regional(tables: &str) -> Error {
    Error::new(
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("tables have a key (telesto.key), which a database of several regions cannot have yet: {tables}"),
    )
    .hint("ALTER TABLE … RESET (telesto.key) writes the rows of a table without one: start a node that ends by this once without --region, run it there, and start it with --region again.")
}
