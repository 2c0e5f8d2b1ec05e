//! A transaction of a database in which rows of some tables are placed by a value: what it reads is here, and what it writes goes to the
//! home of each row.
//!
//! ```text
//! get, scan ── all of it placed here? ── yes ─► transaction below
//!                   └ no ─► telesto.local_rows? ── on ─► what is here of it
//!                                               └ off ─► NotPlaced: which regions have it
//! put, delete ── home of the key ─► write_in(here | there) ─► transaction below
//! key of a new row, or of one that it references, that is not here ─► expect: its home finds it free, or there, when it commits
//! ```
//! # Invariants
//! - Both executors, definitions and everything else that an [`telesto_sql_plan::ExecContext`] is given to read and write rows through this: no answer is
//!   made of a part of a table that was not asked for as such.
//! - What decides a constraint is read whole also where a session asks for what is here alone.
//! - A row is written where its value has its home, and there only when those who wrote it before have stopped.
//!
//! # On failure
//! [`Error::NotPlaced`] with the regions that have what was asked for; [`Error::TwoHomes`] when a transaction writes rows of two homes.
//! A scan tells it when it is first asked for rows.
//!
//! # Limits
//! Of a value that this region does not have new rows are written, and nothing else: a row to be changed is read first.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::key::KeyRange;
use telesto_common::{RegionId, TableId, Timestamp, TxnId};
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_catalog::by_row::{Part, ValuePlace};
use telesto_sql_catalog::regions::{acknowledged, acknowledgement_key};
use telesto_sql_expr::Settings;
use telesto_txn::regions::RegionControl;
use telesto_txn::{
    Committed, Database, Error, Labelled, Looked, NotPlaced, Put, ReadFor, Result, Savepoint, Scan,
    ScanOptions, Transaction, TryClaim, TxnOptions, WriteIn,
};

use crate::away::AwayHome;
use crate::homes;

/// The setting that asks for what is here alone.
const LOCAL_ROWS: &str = "telesto.local_rows";

/// See the module's text.
#[derive(Debug)]
pub struct PlacedRows {
    below: Arc<dyn Transaction>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    catalog: Arc<CatalogSnapshot>,
    control: Option<Arc<dyn RegionControl>>,
    local_rows: bool,
    forwards: bool,
    /// The values that may be written, as this transaction has found.
    written: Mutex<BTreeSet<(TableId, String)>>,
    /// Those of which rows are added whose keys their home will find free.
    added: Mutex<BTreeSet<(TableId, String)>>,
}

impl PlacedRows {
    /// `txn`, over which nothing is done where `catalog` places no rows by their values.
    #[must_use]
    pub fn over(
        txn: Arc<dyn Transaction>,
        catalog: &Arc<CatalogSnapshot>,
        database: &Arc<dyn Database>,
        settings: &Settings,
    ) -> Arc<dyn Transaction> {
        if !catalog.places_rows() {
            return txn;
        }
        let shared = Shared {
            catalog: Arc::clone(catalog),
            control: database.regions(),
            local_rows: settings.others.get(LOCAL_ROWS).is_some_and(|value| value == "on"),
            forwards: homes::forwards(settings),
            written: Mutex::default(),
            added: Mutex::default(),
        };
        Arc::new(Self { below: txn, shared: Arc::new(shared) })
    }

    fn same(&self, below: Arc<dyn Transaction>) -> Arc<dyn Transaction> {
        Arc::new(Self { below, shared: Arc::clone(&self.shared) })
    }

    /// Whether what is not here counts as if it were not there.
    fn clips(&self, read_for: ReadFor) -> bool {
        self.shared.local_rows && read_for != ReadFor::Constraint
    }

    /// Whether `key` is to be read; `false`: it counts as if nothing were there.
    fn reads(&self, key: &[u8], read_for: ReadFor) -> Result<bool> {
        match self.shared.catalog.check_keys(std::iter::once(key)) {
            Ok(()) => Ok(true),
            Err(_) if self.clips(read_for) => Ok(false),
            Err(what) => Err(Error::NotPlaced(what)),
        }
    }

    /// Says where `key` is written.
    async fn writes(&self, key: &[u8]) -> Result<()> {
        let shared = &self.shared;
        let catalog = &shared.catalog;
        let Some(parts) = catalog.row_parts_of(key) else { return Ok(()) };
        let part = parts.part_of(key).ok_or_else(|| nowhere(catalog, parts.table))?;
        let found = (parts.table, part.value.clone());
        if shared.written.lock().contains(&found) {
            return Ok(());
        }
        if !shared.added.lock().contains(&found) {
            // Whether its keys are free was read here.
            catalog.check_placed(&part.range).map_err(Error::NotPlaced)?;
        }
        let Some((table, _, place)) = catalog.place_of(parts.table, &part.value) else {
            return Err(nowhere(catalog, parts.table));
        };
        let to = shared.destination(&table.name, part, place)?;
        if let Some(other) = self.below.write_in(to)? {
            return Err(Error::TwoHomes(two_homes(catalog, &table.name, part, place, other)));
        }
        self.have_stopped(&table.name, part, place).await?;
        shared.written.lock().insert(found);
        Ok(())
    }

    /// The values of `keys` that this region has; of the others, which their home is to find there or not, what the transaction has put
    /// there itself. Second, which are here.
    async fn get_or_expect(
        &self,
        keys: &[Bytes],
        there: bool,
    ) -> Result<(Vec<Option<Bytes>>, Vec<bool>)> {
        let (mut here, mut away) = (Vec::new(), Vec::new());
        let mut is_here = Vec::with_capacity(keys.len());
        for key in keys {
            match self.shared.catalog.check_keys(std::iter::once(&key[..])) {
                Ok(()) => here.push(key.clone()),
                Err(_) if self.shared.is_told_by_its_home(key) => away.push(key.clone()),
                Err(what) => return Err(Error::NotPlaced(what)),
            }
            is_here.push(here.last() == Some(key));
        }
        let mut found = self.below.get_many(&here, ReadFor::Constraint).await?.into_iter();
        let mut own = self.below.expect(&away, there).await?.into_iter();
        let value = |here: &bool| if *here { found.next().flatten() } else { own.next().flatten() };
        Ok((is_here.iter().map(value).collect(), is_here))
    }

    /// Waits for nobody: fails while one of those who wrote rows of the value before has not said that it has stopped.
    async fn have_stopped(&self, table: &str, part: &Part, place: &ValuePlace) -> Result<()> {
        let Some(moved) = &place.moved else { return Ok(()) };
        let catalog = &self.shared.catalog;
        for region in &moved.from {
            if catalog.regions().all(|known| known.id != *region) {
                // It was removed.
                continue;
            }
            let key = acknowledgement_key(catalog.database, RegionId(*region));
            let said = self.below.get(&key, ReadFor::Constraint).await?;
            let said = said.map(|row| acknowledged(&row)).transpose();
            let said = said.map_err(|error| Error::Corrupt(error.to_string()))?;
            if said.is_none_or(|next_oid| next_oid <= moved.at) {
                return Err(Error::NotPlaced(Box::new(NotPlaced {
                    message: format!(
                        "rows of table \"{table}\" with value '{}' have moved, but region \"{}\" has not said yet that it has stopped to write them",
                        part.value,
                        catalog.region_name(*region)
                    ),
                    hint: "Try again in a moment; SELECT * FROM telesto_regions shows whether that region can be reached.".to_owned(),
                    regions: Vec::new(),
                })));
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Whether `key` is written in another region, which says when it commits what is there.
    fn is_told_by_its_home(&self, key: &[u8]) -> bool {
        let catalog = &self.catalog;
        let home = || {
            let parts = catalog.row_parts_of(key)?;
            let (_, _, place) = catalog.place_of(parts.table, &parts.part_of(key)?.value)?;
            place.home().filter(|home| catalog.regions().any(|known| known.id == *home))
        };
        self.forwards && self.control.is_some() && home().is_some_and(|it| it != catalog.me().0)
    }

    /// The region that keeps rows of a value.
    fn destination(&self, table: &str, part: &Part, place: &ValuePlace) -> Result<WriteIn> {
        let catalog = &self.catalog;
        let home = place.home().filter(|home| catalog.regions().any(|known| known.id == *home));
        let Some(home) = home.map(RegionId) else {
            return Err(Error::NotPlaced(Box::new(NotPlaced {
                message: format!(
                    "rows of table \"{table}\" with value '{}' have no home any more: their region was removed",
                    part.value
                ),
                hint: "Give them another one in telesto.regions of the table, in the region that makes definitions.".to_owned(),
                regions: Vec::new(),
            })));
        };
        if home == catalog.me() {
            return Ok(WriteIn::Here);
        }
        match &self.control {
            Some(control) if self.forwards => Ok(WriteIn::There(Arc::new(AwayHome::new(
                Arc::clone(catalog),
                Arc::clone(control),
                home,
            )))),
            control => {
                let name = catalog.region_name(home.0);
                let why = match control {
                    Some(_) => "telesto.forward_writes is off",
                    None => {
                        "this node does not carry its region's streams, so that it cannot forward writes"
                    }
                };
                Err(Error::NotPlaced(Box::new(NotPlaced {
                    message: format!(
                        "rows of table \"{table}\" with value '{}' are written in region \"{name}\", this is region \"{}\"",
                        part.value,
                        catalog.region_name(catalog.me().0)
                    ),
                    hint: format!("Write them in region \"{name}\": {why}."),
                    regions: vec![home],
                })))
            }
        }
    }
}

fn nowhere(catalog: &CatalogSnapshot, table: TableId) -> Error {
    let name = catalog.table(table).map_or("?", |table| table.name.as_str());
    Error::NotPlaced(Box::new(NotPlaced {
        message: format!(
            "a row of table \"{name}\" has a value that telesto.regions does not name"
        ),
        hint: "Name it in telesto.regions of the table.".to_owned(),
        regions: Vec::new(),
    }))
}

fn two_homes(
    catalog: &CatalogSnapshot,
    table: &str,
    part: &Part,
    place: &ValuePlace,
    other: RegionId,
) -> String {
    let home = place.home().map_or_else(|| "?".to_owned(), |home| catalog.region_name(home));
    format!(
        "a transaction that writes in two regions is not supported: rows of table \"{table}\" with value '{}' are written in region \"{home}\", and this transaction has written what is committed in region \"{}\"; write them in transactions of their own",
        part.value,
        catalog.region_name(other.0)
    )
}

#[async_trait]
impl Transaction for PlacedRows {
    fn id(&self) -> TxnId {
        self.below.id()
    }

    fn options(&self) -> &TxnOptions {
        self.below.options()
    }

    fn snapshot(&self) -> Timestamp {
        self.below.snapshot()
    }

    async fn next_statement(&self) -> Result<()> {
        self.below.next_statement().await
    }

    async fn claim(&self, keys: &[Bytes]) -> Result<()> {
        self.below.claim(keys).await
    }

    fn try_claim(&self, keys: &[Bytes]) -> Result<Vec<TryClaim>> {
        self.below.try_claim(keys)
    }

    async fn get(&self, key: &[u8], read_for: ReadFor) -> Result<Option<Bytes>> {
        match self.reads(key, read_for)? {
            true => self.below.get(key, read_for).await,
            false => Ok(None),
        }
    }

    async fn get_many(&self, keys: &[Bytes], read_for: ReadFor) -> Result<Vec<Option<Bytes>>> {
        let Err(what) = self.shared.catalog.check_keys(keys.iter().map(|key| &key[..])) else {
            return self.below.get_many(keys, read_for).await;
        };
        if !self.clips(read_for) {
            return Err(Error::NotPlaced(what));
        }
        let here = keys.iter().map(|key| self.reads(key, read_for)).collect::<Result<Vec<_>>>()?;
        let ours = keys.iter().zip(&here).filter(|(_, here)| **here);
        let ours: Vec<Bytes> = ours.map(|(key, _)| key.clone()).collect();
        let mut found = self.below.get_many(&ours, read_for).await?.into_iter();
        Ok(here.into_iter().map(|here| if here { found.next().flatten() } else { None }).collect())
    }

    async fn look_up_new(&self, keys: &[Bytes]) -> Result<Looked> {
        let catalog = &self.shared.catalog;
        if catalog.check_keys(keys.iter().map(|key| &key[..])).is_ok() {
            return self.below.look_up_new(keys).await;
        }
        let (values, here) = self.get_or_expect(keys, false).await?;
        let away = keys.iter().zip(here).filter(|(_, here)| !here);
        let value = |key: &Bytes| {
            let parts = catalog.row_parts_of(key)?;
            Some((parts.table, parts.part_of(key)?.value.clone()))
        };
        self.shared.added.lock().extend(away.filter_map(|(key, _)| value(key)));
        Ok(Looked::Values(values))
    }

    async fn are_there(&self, keys: &[Bytes]) -> Result<Vec<bool>> {
        let catalog = &self.shared.catalog;
        if catalog.check_keys(keys.iter().map(|key| &key[..])).is_ok() {
            return self.below.are_there(keys).await;
        }
        let (values, here) = self.get_or_expect(keys, true).await?;
        Ok(values.iter().zip(here).map(|(value, here)| !here || value.is_some()).collect())
    }

    async fn expect(&self, keys: &[Bytes], there: bool) -> Result<Vec<Option<Bytes>>> {
        self.below.expect(keys, there).await
    }

    async fn committed(&self, key: &[u8]) -> Result<Option<Labelled>> {
        self.reads(key, ReadFor::Constraint)?;
        self.below.committed(key).await
    }

    fn try_get(&self, key: &[u8], read_for: ReadFor) -> Option<Result<Option<Bytes>>> {
        match self.reads(key, read_for) {
            Ok(true) => self.below.try_get(key, read_for),
            Ok(false) => Some(Ok(None)),
            Err(error) => Some(Err(error)),
        }
    }

    fn scan(&self, range: KeyRange, options: ScanOptions) -> Box<dyn Scan> {
        let shared = &self.shared;
        let Err(what) = shared.catalog.check_placed(&range) else {
            return self.below.scan(range, options);
        };
        if !self.clips(options.read_for) {
            return Box::new(Refused(Error::NotPlaced(what)));
        }
        let mut ranges: VecDeque<KeyRange> = shared.catalog.placed_of(&range).into();
        if options.reverse {
            ranges.make_contiguous().reverse();
        }
        let below = Arc::clone(&self.below);
        Box::new(OneByOne { below, ranges, options, open: None, left: options.limit })
    }

    fn view(&self) -> Arc<dyn Transaction> {
        self.same(self.below.view())
    }

    async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        self.writes(&key).await?;
        self.below.put(key, value).await
    }

    async fn put_all(&self, writes: Vec<Put>) -> Result<()> {
        for write in &writes {
            self.writes(&write.key).await?;
        }
        self.below.put_all(writes).await
    }

    async fn may_add(&self, key: &Bytes) -> Result<bool> {
        // Additions are of this region's own tables.
        match self.shared.catalog.row_parts_of(key) {
            Some(_) => Ok(false),
            None => self.below.may_add(key).await,
        }
    }

    async fn add(&self, key: Bytes, value: Bytes, addition: Bytes) -> Result<()> {
        self.writes(&key).await?;
        self.below.add(key, value, addition).await
    }

    fn holds_back(&self, key: &[u8]) -> bool {
        self.below.holds_back(key)
    }

    fn beneath(&self) -> Option<Arc<dyn Transaction>> {
        self.below.beneath().map(|below| self.same(below))
    }

    async fn delete(&self, key: Bytes) -> Result<()> {
        self.writes(&key).await?;
        self.below.delete(key).await
    }

    fn write_in(&self, to: WriteIn) -> Result<Option<RegionId>> {
        self.below.write_in(to)
    }

    fn savepoint(&self) -> Result<Savepoint> {
        self.below.savepoint()
    }

    fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        self.below.rollback_to(savepoint)
    }

    async fn confirm(&self) -> Result<()> {
        self.below.confirm().await
    }

    fn tell(&self, messages: Vec<Bytes>) -> Result<()> {
        self.below.tell(messages)
    }

    async fn commit(&self) -> Result<Committed> {
        self.below.commit().await
    }

    fn rollback(&self) {
        self.below.rollback();
    }
}

/// A scan of what is not all here.
struct Refused(Error);

#[async_trait]
impl Scan for Refused {
    async fn next_batch(&mut self, _: usize) -> Result<Vec<(Bytes, Bytes)>> {
        Err(self.0.clone())
    }
}

/// Scans of several ranges, one after the other.
struct OneByOne {
    below: Arc<dyn Transaction>,
    ranges: VecDeque<KeyRange>,
    options: ScanOptions,
    open: Option<Box<dyn Scan>>,
    left: Option<u64>,
}

#[async_trait]
impl Scan for OneByOne {
    async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<(Bytes, Bytes)>> {
        while self.left != Some(0) {
            let scan = match &mut self.open {
                Some(scan) => scan,
                none => {
                    let Some(range) = self.ranges.pop_front() else { break };
                    let options = ScanOptions { limit: self.left, ..self.options };
                    none.insert(self.below.scan(range, options))
                }
            };
            let mut batch = scan.next_batch(max_rows).await?;
            if batch.is_empty() {
                self.open = None;
                continue;
            }
            if let Some(left) = &mut self.left {
                batch.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= batch.len() as u64;
            }
            return Ok(batch);
        }
        Ok(Vec::new())
    }
}
