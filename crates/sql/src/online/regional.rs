//! What regions do for a definition that the defining one drives: each fills its part of an index,
//! deletes its own keys of what was dropped, and says so ([`crate::catalog::regional_builds`]).
//!
//! # Invariants
//! - A region's record of a build is its own, and goes with its word that it has done its part.
//! - Keys that only the region has are deleted when every region has heard that they are dropped:
//!   nobody sends it more of them.
//!
//! # On failure
//! Errors that say nothing of the build leave the record, which this process or another goes on
//! from; others are told as the region's word, and end the build.
//!
//! # Limits
//! A region that says nothing for [`PATIENCE`] fails the build.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::{RegionId, TableId};
use telesto_txn::{Level, ReadFor, ScanOptions, Transaction, TxnOptions};

use super::build::Builder;
use super::sweep;
use super::upkeep::or_later;
use crate::catalog::build_record::{BuildRecord, forget_other_records, forget_record};
use crate::catalog::regional_builds::{Failure, Task, Word, word_key, words};
use crate::catalog::regions::{acknowledged, acknowledgement_key};
use crate::catalog::store::DEFAULT_DATABASE_ID;
use crate::catalog::{CatalogSnapshot, Dropped, Table};
use crate::error::{Error, Result, SqlState};
use crate::plan::ExecContext;
use crate::session::SqlEngine;

/// For how long the driver waits for a region that says nothing new.
const PATIENCE: Duration = Duration::from_secs(600);
/// Words looked at together.
const WORDS: usize = 1000;

/// What other regions have said last, and since when it is the same.
#[derive(Debug, Default)]
pub(super) struct Heard(Mutex<BTreeMap<RegionId, (Option<Bytes>, Duration)>>);

impl Heard {
    /// For how long the region has said the same.
    fn still(&self, region: RegionId, word: Option<Bytes>, now: Duration) -> Duration {
        let mut heard = self.0.lock();
        let (last, since) = heard.entry(region).or_insert_with(|| (word.clone(), now));
        if *last != word {
            (*last, *since) = (word, now);
        }
        now.saturating_sub(*since)
    }
}

/// This region's word, in the transaction.
pub(super) async fn say(context: &ExecContext, task: Task, word: &Word) -> Result<()> {
    let catalog = &context.catalog;
    let key = word_key(catalog.database, catalog.me(), task);
    Ok(context.txn.put(key, word.encode()?).await?)
}

/// This region's word.
pub(super) async fn said(context: &ExecContext, task: Task) -> Result<Option<Word>> {
    let catalog = &context.catalog;
    let key = word_key(catalog.database, catalog.me(), task);
    let word = context.txn.get(&key, ReadFor::Constraint).await?;
    word.map(|row| Word::decode(&row)).transpose()
}

/// Writes the record of a build, and where another region drives it how far this one is.
pub(super) async fn keep(
    context: &ExecContext,
    record: &BuildRecord,
    table: TableId,
    index: u32,
) -> Result<()> {
    let catalog = &context.catalog;
    record.write(context.txn.as_ref(), catalog.database, table, index).await?;
    if catalog.defines() {
        return Ok(());
    }
    let word = Word::Filling { beat: record.beat, rows: record.rows_done };
    say(context, Task::Fill(table, index), &word).await
}

impl Builder {
    /// Whether every other region that writes the table has filled its part.
    ///
    /// # Errors
    /// What a region failed with; 55000 for one that has said nothing for [`PATIENCE`].
    pub(super) async fn others_have_filled(
        &self,
        context: &ExecContext,
        table: &Arc<Table>,
        index: u32,
    ) -> Result<bool> {
        let catalog = &context.catalog;
        let mut all = true;
        for region in catalog.fillers(table) {
            if region == catalog.me() {
                continue;
            }
            let key = word_key(catalog.database, region, Task::Fill(table.id, index));
            let row = context.txn.get(&key, ReadFor::Constraint).await?;
            let now = context.env.clock.monotonic();
            let still = self.heard.still(region, row.clone(), now);
            match row.map(|row| Word::decode(&row)).transpose()? {
                Some(Word::Done) => {}
                Some(Word::Failed(failure)) => {
                    return Err(failure.into_error(&catalog.region_name(region.0)));
                }
                Some(Word::Filling { .. }) | None if still < PATIENCE => all = false,
                Some(Word::Filling { .. }) | None => {
                    return Err(self.out_of_patience(catalog, table, region));
                }
            }
        }
        Ok(all)
    }

    fn out_of_patience(&self, catalog: &CatalogSnapshot, table: &Table, region: RegionId) -> Error {
        Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!(
                "region \"{}\", which writes rows of table \"{}\", has said nothing of the index for {} minutes",
                catalog.region_name(region.0),
                table.name,
                PATIENCE.as_secs() / 60
            ),
        )
        .hint("SELECT * FROM telesto_regions shows whether that region can be reached; its nodes have to be of this version. Then create the index again.")
    }

    /// Says that this region cannot do its part of a build.
    ///
    /// # Errors
    /// Those of the database: the build is gone on with.
    pub(super) async fn say_failed(
        &self,
        table: TableId,
        index: u32,
        why: impl FnOnce(&Table) -> Failure,
    ) -> Result<()> {
        let context = self.begin().await?;
        let failed = async {
            let Some(defined) =
                context.catalog.table(table).filter(|table| table.is_filling(index))
            else {
                return Ok(());
            };
            let word = Word::Failed(why(defined));
            say(&context, Task::Fill(table, index), &word).await?;
            forget_record(context.txn.as_ref(), context.catalog.database, table, index).await
        };
        let result = failed.await;
        self.end(&context, result).await
    }
}

/// Whether every region has applied the definitions up to this OID.
pub(super) async fn all_have_heard(
    txn: &Arc<dyn Transaction>,
    catalog: &CatalogSnapshot,
    oid: u32,
) -> Result<bool> {
    for region in catalog.regions().filter(|region| region.id != catalog.me().0) {
        let key = acknowledgement_key(catalog.database, RegionId(region.id));
        let said = txn.get(&key, ReadFor::Query).await?;
        let said = said.map(|row| acknowledged(&row)).transpose()?;
        if !catalog.has_heard(region.id, said, oid) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether every other region has deleted its keys that the note names.
pub(super) async fn others_have_swept(
    txn: &Arc<dyn Transaction>,
    catalog: &CatalogSnapshot,
    note: &Dropped,
) -> Result<bool> {
    for region in catalog.regions().filter(|region| region.id != catalog.me().0) {
        let key = word_key(catalog.database, RegionId(region.id), Task::Sweep(note.oid));
        if txn.get(&key, ReadFor::Query).await?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A snapshot to see what is to be done by.
async fn look(engine: &Arc<SqlEngine>) -> Result<(Arc<dyn Transaction>, Arc<CatalogSnapshot>)> {
    let options = TxnOptions { level: Level::Session, read_only: true, ..TxnOptions::default() };
    let txn = engine.database().begin(options).await?;
    let catalog = engine.catalogs.read(&txn, DEFAULT_DATABASE_ID).await?;
    Ok((txn, catalog))
}

/// Deletes this region's own keys that a note names, and says so. False: there is something to be
/// waited for.
async fn sweep_part(engine: &Arc<SqlEngine>, note: &Dropped) -> Result<bool> {
    let (txn, catalog) = look(engine).await?;
    let key = word_key(catalog.database, catalog.me(), Task::Sweep(note.oid));
    let said = txn.get(&key, ReadFor::Query).await?.is_some();
    let ready = said || all_have_heard(&txn, &catalog, note.oid).await?;
    txn.rollback();
    if said || !ready {
        return Ok(ready);
    }
    sweep::sweep_keys(engine, note).await?;
    let txn = engine.database().begin(TxnOptions::default()).await?;
    txn.put(key, Word::Done.encode()?).await?;
    txn.commit().await?;
    Ok(true)
}

/// Forgets words and records of what the catalog does not show any more.
async fn forget_ended(engine: &Arc<SqlEngine>) -> Result<()> {
    let txn = engine.database().begin(TxnOptions::default()).await?;
    let catalog = engine.catalogs.read(&txn, DEFAULT_DATABASE_ID).await?;
    let (database, me, tasks) = (catalog.database, catalog.me(), catalog.tasks());
    let kept: Vec<Bytes> = tasks.iter().map(|task| word_key(database, me, *task)).collect();
    let said = txn.scan(words(database, me), ScanOptions::default()).next_batch(WORDS).await?;
    let gone: Vec<Bytes> =
        said.into_iter().map(|(key, _)| key).filter(|key| !kept.contains(key)).collect();
    for key in &gone {
        txn.delete(key.clone()).await?;
    }
    let filling = tasks.iter().filter_map(|task| match task {
        Task::Fill(table, index) => Some((*table, *index)),
        Task::Sweep(_) => None,
    });
    let records = forget_other_records(txn.as_ref(), database, filling).await?;
    if gone.is_empty() && records == 0 {
        txn.rollback();
        return Ok(());
    }
    txn.commit().await?;
    Ok(())
}

/// Does what there is to do for definitions that another region drives; whether something is left
/// to look at later.
///
/// # Errors
/// Those of the database.
pub(super) async fn round(engine: &Arc<SqlEngine>) -> Result<bool> {
    forget_ended(engine).await?;
    let (txn, catalog) = look(engine).await?;
    let me = catalog.me();
    let mut left = false;
    for note in catalog.dropped().filter(|note| note.by_row) {
        left |= !or_later(sweep_part(engine, note).await)?;
    }
    let (mut parts, mut failures) = (Vec::new(), Vec::new());
    for (table, index) in catalog.filling() {
        let key = word_key(catalog.database, me, Task::Fill(table.id, index));
        let word = txn.get(&key, ReadFor::Query).await?;
        let word = word.map(|row| Word::decode(&row)).transpose()?;
        if let Some(Word::Failed(failure)) = &word
            && let Some(failure) = failure.to_tell()
        {
            failures.push((table.id, index, failure));
        }
        let ended = matches!(word, Some(Word::Done | Word::Failed(_)));
        if !ended && catalog.fillers(table).contains(&me) {
            parts.push((table.id, index));
        }
    }
    if parts.is_empty() && failures.is_empty() {
        txn.rollback();
        return Ok(left);
    }
    let builder = super::upkeep::builder(engine, &txn, &catalog).await?;
    txn.rollback();
    for (table, index, failure) in failures {
        builder.say_failed(table, index, |_| failure).await?;
    }
    for (table, index) in parts {
        match builder.rescue(table, index).await {
            Ok(_) => {}
            Err(error) if error.conflict().is_some() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

impl SqlEngine {
    /// Whether there is, or may be, something to do here for definitions that another region
    /// drives.
    pub(crate) async fn has_parts(&self, catalog: &CatalogSnapshot) -> Result<bool> {
        if !catalog.tasks().is_empty() {
            return Ok(true);
        }
        // Words and records of what has ended.
        let options =
            TxnOptions { level: Level::Session, read_only: true, ..TxnOptions::default() };
        let txn = self.database().begin(options).await?;
        let said = txn.scan(words(catalog.database, catalog.me()), ScanOptions::default());
        let found = { said }.next_batch(1).await?;
        txn.rollback();
        Ok(!found.is_empty())
    }
}
