//! A transaction of a database in which rows of some tables are placed by a value: what it reads is
//! here, and what it writes goes to the home of each row.
//!
//! ```text
//! get, scan ── all of it placed here? ── yes ─► transaction below
//!                   └ no ─► telesto.local_rows? ── on ─► what is here of it
//!                                               └ off ─► NotPlaced: which regions have it
//! get, scan of a statement that changes or locks rows, of what other regions keep ─► get_there, scan_there: each as it is in its home
//! put, delete ── home of the key ─► write_in(here | there) ─► transaction below
//! key of a new row, or of one that it references, that is not here ─► expect: its home finds it free, or there, when it commits
//! ```
//! # Invariants
//! - Whatever an [`telesto_sql_plan::ExecContext`] is given to reads and writes rows through this:
//!   no answer is made of a part of a table by itself.
//! - What decides a constraint is read whole also where a session asks for what is here alone.
//! - A row is written where its value has its home, and there only when those who wrote it before
//!   have stopped.
//!
//! # On failure
//! [`Error::NotPlaced`] with the regions that have what was asked for, by a scan when it is first
//! asked for rows; [`Error::TwoHomes`].
//!
//! # Limits
//! Ranges of several values are read one after the other, a round trip each at least. What decides
//! a constraint is of one value.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;
use parking_lot::Mutex;
use telesto_common::key::KeyRange;
use telesto_common::{RegionId, TableId, Timestamp, TxnId};
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_catalog::by_row::{Part, ValuePlace, intersection};
use telesto_sql_catalog::regions::{acknowledged, acknowledgement_key};
use telesto_sql_expr::Settings;
use telesto_txn::regions::RegionControl;
use telesto_txn::{
    Away, Committed, Database, Error, Labelled, Looked, NotPlaced, Put, ReadFor, Result, Savepoint,
    Scan, ScanOptions, Transaction, TryClaim, TxnOptions, WriteIn,
};
mod refusals;
mod scans;
use self::refusals::{nowhere, two_homes};
use self::scans::{OneByOne, Refused, Where};
use crate::{away::AwayHome, homes};

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
    /// The statement changes or locks rows: it reads those that are not here in their home.
    changes: bool,
    /// The values that may be written, as this transaction has found.
    written: Mutex<BTreeSet<(TableId, String)>>,
    /// Those that are not here, of which rows were read in their home, or are added whose keys it
    /// will find free.
    told: Mutex<BTreeSet<(TableId, String)>>,
}

impl PlacedRows {
    /// `txn`, over which nothing is done where `catalog` places no rows by their values. `changes`:
    /// for a statement that changes rows.
    #[must_use]
    pub fn over(
        txn: Arc<dyn Transaction>,
        catalog: &Arc<CatalogSnapshot>,
        database: &Arc<dyn Database>,
        settings: &Settings,
        changes: bool,
    ) -> Arc<dyn Transaction> {
        if !catalog.places_rows() {
            return txn;
        }
        let shared = Shared {
            catalog: Arc::clone(catalog),
            control: database.regions(),
            local_rows: settings.others.get(LOCAL_ROWS).is_some_and(|value| value == "on"),
            forwards: homes::forwards(settings),
            changes,
            written: Mutex::default(),
            told: Mutex::default(),
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

    /// Whether `key` is read in its home, which is another region.
    fn is_elsewhere(&self, key: &[u8], read_for: ReadFor) -> bool {
        self.shared.changes
            && !self.clips(read_for)
            && self.shared.catalog.check_keys(std::iter::once(key)).is_err()
            && self.shared.home_of(key).is_some()
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
        if !shared.told.lock().contains(&found) {
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

    /// The values of `keys` that this region has; of the others, which their home is to find there
    /// or not, what the transaction has put there itself. Second, which are here.
    async fn get_or_expect(
        &self,
        keys: &[Bytes],
        there: bool,
    ) -> Result<(Vec<Option<Bytes>>, Vec<bool>)> {
        let homes = self.shared.homes_of(keys)?;
        let away: Vec<&Bytes> = keys
            .iter()
            .zip(&homes)
            .filter(|(_, home)| home.is_some())
            .map(|(key, _)| key)
            .collect();
        self.shared.is_told(away.iter().copied());
        let away: Vec<Bytes> = away.into_iter().cloned().collect();
        let mut own = self.below.expect(&away, there).await?.into_iter();
        let mut values = self.get_here(keys, &homes, ReadFor::Constraint).await?;
        for (value, home) in values.iter_mut().zip(&homes) {
            if home.is_some() {
                *value = own.next().flatten();
            }
        }
        Ok((values, homes.iter().map(Option::is_none).collect()))
    }

    /// The values of those of `keys` that have no home elsewhere.
    async fn get_here(
        &self,
        keys: &[Bytes],
        homes: &[Option<RegionId>],
        read_for: ReadFor,
    ) -> Result<Vec<Option<Bytes>>> {
        let here = keys.iter().zip(homes).filter(|(_, home)| home.is_none());
        let here: Vec<Bytes> = here.map(|(key, _)| key.clone()).collect();
        let mut found = self.below.get_many(&here, read_for).await?.into_iter();
        let value = |home: &Option<RegionId>| {
            if home.is_some() { None } else { found.next().flatten() }
        };
        Ok(homes.iter().map(value).collect())
    }

    /// The values of `keys`, of which some are read in their home.
    async fn get_here_and_there(
        &self,
        keys: &[Bytes],
        read_for: ReadFor,
    ) -> Result<Vec<Option<Bytes>>> {
        let homes = self.shared.homes_of(keys)?;
        let mut values = self.get_here(keys, &homes, read_for).await?;
        let all: BTreeSet<RegionId> = homes.iter().flatten().copied().collect();
        let asked = all.into_iter().map(|home| {
            let there = homes.iter().enumerate().filter(|(_, of)| **of == Some(home));
            let there: Vec<usize> = there.map(|(at, _)| at).collect();
            self.get_at(home, there, keys, read_for)
        });
        for (there, found) in try_join_all(asked).await? {
            for (at, value) in there.into_iter().zip(found) {
                values[at] = value;
            }
        }
        Ok(values)
    }

    /// The values of those of `keys` that `home` keeps, with where they are among them.
    async fn get_at(
        &self,
        home: RegionId,
        there: Vec<usize>,
        keys: &[Bytes],
        read_for: ReadFor,
    ) -> Result<(Vec<usize>, Vec<Option<Bytes>>)> {
        let asked: Vec<Bytes> = there.iter().map(|at| keys[*at].clone()).collect();
        self.shared.is_told(asked.iter());
        let away = self.shared.away(home)?;
        Ok((there, self.below.get_there(&away, &asked, read_for).await?))
    }

    /// Waits for nobody: fails while one of those who wrote rows of the value before has not said
    /// that it has stopped.
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
    /// The region that keeps the row or entry under `key` and says what is there, if it is another
    /// one.
    fn home_of(&self, key: &[u8]) -> Option<RegionId> {
        let catalog = &self.catalog;
        let parts = catalog.row_parts_of(key)?;
        let (_, _, place) = catalog.place_of(parts.table, &parts.part_of(key)?.value)?;
        let home = place.home().filter(|home| catalog.regions().any(|known| known.id == *home));
        home.map(RegionId)
            .filter(|home| self.forwards && self.control.is_some() && *home != catalog.me())
    }

    /// Where each of `keys` is to be asked for; nothing: it is here.
    fn homes_of(&self, keys: &[Bytes]) -> Result<Vec<Option<RegionId>>> {
        let home = |key: &Bytes| match self.catalog.check_keys(std::iter::once(&key[..])) {
            Ok(()) => Ok(None),
            Err(what) => match self.home_of(key) {
                Some(home) => Ok(Some(home)),
                None => Err(Error::NotPlaced(what)),
            },
        };
        keys.iter().map(home).collect()
    }

    /// Where each part of a range is read that is not all here; nothing, where it is not read.
    fn places_of(&self, range: &KeyRange, read_for: ReadFor) -> Result<Option<VecDeque<Where>>> {
        let Some(parts) = self.catalog.row_parts_of(&range.start).filter(|_| self.changes) else {
            return Ok(None);
        };
        // A range of several tables is none that a statement changes rows of.
        if !parts.holds(range) {
            return Ok(None);
        }
        let mut aways: BTreeMap<RegionId, Arc<dyn Away>> = BTreeMap::new();
        let mut places = VecDeque::new();
        for part in parts.meeting(range) {
            let range = intersection(&part.range, range);
            if self.catalog.check_placed(&range).is_ok() {
                places.push_back((range, None));
                continue;
            }
            let Some(home) = self.home_of(&range.start) else { return Ok(None) };
            let away = match aways.entry(home) {
                Entry::Occupied(known) => Arc::clone(known.get()),
                Entry::Vacant(place) => Arc::clone(place.insert(self.away(home)?)),
            };
            self.is_told(std::iter::once(&range.start));
            places.push_back((range, Some(away)));
        }
        // What is found in a home that does not commit is not validated there.
        let constrains = read_for == ReadFor::Constraint && places.len() > 1;
        Ok(Some(places).filter(|_| !constrains))
    }

    /// Rows of these values may be written.
    fn is_told<'k>(&self, keys: impl Iterator<Item = &'k Bytes>) {
        let value = |key: &Bytes| {
            let parts = self.catalog.row_parts_of(key)?;
            Some((parts.table, parts.part_of(key)?.value.clone()))
        };
        self.told.lock().extend(keys.filter_map(value));
    }

    /// The way to another region.
    fn away(&self, home: RegionId) -> Result<Arc<dyn Away>> {
        let Some(control) = &self.control else {
            return Err(Error::Elsewhere(format!("region {home} is not reached from this node")));
        };
        Ok(Arc::new(AwayHome::new(Arc::clone(&self.catalog), Arc::clone(control), home)))
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
            Some(_) if self.forwards => Ok(WriteIn::There(self.away(home)?)),
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
        if self.is_elsewhere(key, read_for) {
            let keys = [Bytes::copy_from_slice(key)];
            return Ok(self.get_here_and_there(&keys, read_for).await?.pop().flatten());
        }
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
            return match self.shared.changes {
                true => self.get_here_and_there(keys, read_for).await,
                false => Err(Error::NotPlaced(what)),
            };
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
        let (values, _) = self.get_or_expect(keys, false).await?;
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

    async fn get_there(
        &self,
        away: &Arc<dyn Away>,
        keys: &[Bytes],
        read_for: ReadFor,
    ) -> Result<Vec<Option<Bytes>>> {
        self.below.get_there(away, keys, read_for).await
    }

    fn scan_there(
        &self,
        away: Arc<dyn Away>,
        range: KeyRange,
        options: ScanOptions,
    ) -> Box<dyn Scan> {
        self.below.scan_there(away, range, options)
    }

    async fn expect(&self, keys: &[Bytes], there: bool) -> Result<Vec<Option<Bytes>>> {
        self.below.expect(keys, there).await
    }

    async fn committed(&self, key: &[u8]) -> Result<Option<Labelled>> {
        self.reads(key, ReadFor::Constraint)?;
        self.below.committed(key).await
    }

    fn try_get(&self, key: &[u8], read_for: ReadFor) -> Option<Result<Option<Bytes>>> {
        if self.is_elsewhere(key, read_for) {
            return None;
        }
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
        let mut ranges: VecDeque<Where> = if self.clips(options.read_for) {
            let here = shared.catalog.placed_of(&range).into_iter();
            here.map(|range| (range, None)).collect()
        } else {
            match shared.places_of(&range, options.read_for) {
                Ok(Some(places)) => places,
                Ok(None) => return Box::new(Refused(Error::NotPlaced(what))),
                Err(error) => return Box::new(Refused(error)),
            }
        };
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

    fn has_written(&self) -> bool {
        self.below.has_written()
    }

    async fn confirm(&self) -> Result<()> {
        self.below.confirm().await
    }

    async fn untouched(&self, ranges: &[KeyRange]) -> Result<()> {
        self.below.untouched(ranges).await
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
