//! What was dropped and is too much to be deleted key by key: merges of the checkpoint leave it
//! out.
//!
//! # Protocol
//! ```text
//! note -- more than [`FEW`] keys --> each round: Database::set_gone(range, since the first round that met the note)
//!                                      | snapshots from before are too old, a merge has left the rows out
//!                                      v
//!                                    the range is empty --> the note goes
//! ```
//! The database's watermark follows its commits: where nothing is committed for longer than
//! snapshots are kept, the note is written again.
//!
//! # Invariants
//! - A range is gone as of a snapshot that this process took with the note in its catalog: later
//!   than the drop.
//! - The note stays until the range is empty.
//!
//! # On failure
//! A process that begins anew counts from the start: what was dropped stays a retention window
//! longer. Where the rows are still there [`PATIENCE`] after they might have gone (another process
//! merges and does not know, or they are so small a part of a run that it is not merged for them),
//! they are deleted key by key.
//!
//! # Limits
//! Databases of several regions delete: each has a checkpoint of its own, and the note goes when
//! one of them is through.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::Timestamp;
use telesto_txn::{Gone, Level, ScanOptions, Transaction, TxnOptions};

use super::sweep::{forget, range, sweep};
use super::upkeep::or_later;
use crate::catalog::store::{DEFAULT_DATABASE_ID, touch_dropped};
use crate::catalog::{CatalogSnapshot, Dropped};
use crate::error::Result;
use crate::session::SqlEngine;

/// Keys, and bytes of rows, that are deleted one by one.
const FEW: usize = 30_000;
const FEW_BYTES: usize = 8 << 20;
const CHUNK: usize = 2000;
/// How often a range is looked at, at most and at least.
const LONGEST_LOOK: Duration = Duration::from_secs(60);
const SHORTEST_LOOK: Duration = Duration::from_secs(1);
/// How long merges have time to leave out what they may.
const PATIENCE: Duration = Duration::from_secs(45 * 60);

/// What this process knows of notes, by their OIDs.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<BTreeMap<u32, Seen>>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// A snapshot with the note.
    at: Timestamp,
    /// When it was taken.
    since: Duration,
    /// When the range was looked at, or the note written again.
    looked: Duration,
    /// Since when it might have gone.
    due: Option<Duration>,
    /// It is deleted key by key after all: merges for its sake would find its delete marks.
    deleted: bool,
}

/// What a round has to do with a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Wait,
    Look,
    Touch,
    Delete,
}

impl Seen {
    fn step(&mut self, now: Duration, below: Timestamp, retention: Duration) -> Step {
        if below < self.at {
            let late = now.saturating_sub(self.since) > retention;
            let again = now.saturating_sub(self.looked) > (retention / 4).max(SHORTEST_LOOK);
            if !(late && again) {
                return Step::Wait;
            }
            self.looked = now;
            return Step::Touch;
        }
        let due = *self.due.get_or_insert(now);
        if now.saturating_sub(due) > PATIENCE {
            self.deleted = true;
            return Step::Delete;
        }
        let every = (retention / 8).clamp(SHORTEST_LOOK, LONGEST_LOOK);
        if now.saturating_sub(self.looked) < every {
            return Step::Wait;
        }
        self.looked = now;
        Step::Look
    }
}

/// Whether the database was told of keys that are gone: it has to be told when none are left.
pub(super) fn is_told(engine: &SqlEngine) -> bool {
    !engine.upkeep.waiting.0.lock().is_empty()
}

/// Nothing is left to merges any more.
pub(super) fn forget_all(engine: &SqlEngine) {
    if is_told(engine) {
        engine.upkeep.waiting.0.lock().clear();
        let _ = engine.database().set_gone(Vec::new());
    }
}

/// Goes on with all notes; whether some are left.
///
/// # Errors
/// Those of the transactions, but conflicts.
pub(super) async fn round(
    engine: &Arc<SqlEngine>,
    txn: &Arc<dyn Transaction>,
    catalog: &Arc<CatalogSnapshot>,
) -> Result<bool> {
    let notes: Vec<Arc<Dropped>> = catalog.dropped().cloned().collect();
    let (at, now) = (txn.snapshot(), engine.env().clock.monotonic());
    // A sweep takes its time: its snapshot may not be from before it.
    txn.rollback();
    let is_there = |oid: &u32| notes.iter().any(|note| note.oid == *oid) && !catalog.is_regional();
    engine.upkeep.waiting.0.lock().retain(|oid, _| is_there(oid));
    let mut left = false;
    let mut many = Vec::new();
    for note in notes {
        let few = match catalog.is_regional() || note.by_row {
            true => Ok(true),
            false => is_few(engine, &note).await,
        };
        match few {
            Ok(true) => left |= !or_later(sweep(engine, &note).await)?,
            Ok(false) => many.push(note),
            Err(error) => left |= !or_later(Err(error))?,
        }
    }
    let gone: Vec<Gone> = many.iter().filter_map(|note| gone_by(engine, note, (at, now))).collect();
    let Some(reclaiming) = engine.database().set_gone(gone) else {
        engine.upkeep.waiting.0.lock().clear();
        for note in many {
            left |= !or_later(sweep(engine, &note).await)?;
        }
        return Ok(left);
    };
    for note in many {
        let step = match engine.upkeep.waiting.0.lock().get_mut(&note.oid) {
            Some(seen) => seen.step(now, reclaiming.below, reclaiming.retention),
            None => Step::Wait,
        };
        let done = match step {
            Step::Wait => Ok(false),
            Step::Touch => touch(engine, &note).await,
            Step::Look => look(engine, &note).await,
            Step::Delete => match touch(engine, &note).await {
                Ok(false) => sweep(engine, &note).await,
                done => done,
            },
        };
        match done {
            Err(error) if error.conflict().is_some() => left = true,
            done => left |= !or_later(done)?,
        }
    }
    Ok(left)
}

/// What the database is told of a note, if it is left to merges.
fn gone_by(engine: &SqlEngine, note: &Dropped, (at, now): (Timestamp, Duration)) -> Option<Gone> {
    let mut waiting = engine.upkeep.waiting.0.lock();
    let first = Seen { at, since: now, looked: now, due: None, deleted: false };
    let seen = waiting.entry(note.oid).or_insert(first);
    let prefix = range(DEFAULT_DATABASE_ID, note.storage, note.index).start;
    (!seen.deleted).then_some(Gone { prefix, at: seen.at })
}

/// Whether the keys are deleted in little time. Looked at once: those that wait are many.
async fn is_few(engine: &SqlEngine, note: &Dropped) -> Result<bool> {
    if engine.upkeep.waiting.0.lock().contains_key(&note.oid) {
        return Ok(false);
    }
    Ok(count(engine, note, FEW + 1).await?.is_some())
}

/// Whether the range is empty; then the note goes.
async fn look(engine: &Arc<SqlEngine>, note: &Dropped) -> Result<bool> {
    Ok(count(engine, note, 1).await?.is_some() && forget(engine, note).await?)
}

/// The number of keys; `None`: there are `most`, or too many bytes.
async fn count(engine: &SqlEngine, note: &Dropped, most: usize) -> Result<Option<usize>> {
    let options = TxnOptions { level: Level::Snapshot, read_only: true, ..TxnOptions::default() };
    let txn = engine.database().begin(options).await?;
    let keys = range(DEFAULT_DATABASE_ID, note.storage, note.index);
    let options = ScanOptions { limit: Some(most as u64), ..ScanOptions::default() };
    let mut scan = txn.scan(keys, options);
    let (mut rows, mut bytes) = (0, 0);
    loop {
        let chunk: Vec<(Bytes, Bytes)> = scan.next_batch(CHUNK).await?;
        rows += chunk.len();
        bytes += chunk.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        if rows >= most || bytes > FEW_BYTES {
            return Ok(None);
        }
        if chunk.is_empty() {
            return Ok(Some(rows));
        }
    }
}

/// Writes the note again as it is, so that there is a commit, and with it a newer watermark. True:
/// it is gone, and this process knows an older catalog.
async fn touch(engine: &Arc<SqlEngine>, note: &Dropped) -> Result<bool> {
    let options = TxnOptions { level: Level::Snapshot, ..TxnOptions::default() };
    let txn = engine.database().begin(options).await?;
    let catalog = engine.catalogs.read(&txn, DEFAULT_DATABASE_ID).await?;
    if touch_dropped(&txn, &catalog, note.oid).await? {
        txn.commit().await?;
        return Ok(false);
    }
    txn.rollback();
    forget(engine, note).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_note_waits_for_the_watermark_and_then_for_a_merge() {
        let since = Duration::from_secs(100);
        let mut seen = Seen { at: Timestamp(50), since, looked: since, due: None, deleted: false };
        let mut step =
            |seconds, below| seen.step(Duration::from_secs(seconds), Timestamp(below), HOUR);
        assert_eq!(step(101, 10), Step::Wait);
        assert_eq!(step(3600, 49), Step::Wait, "commits move the watermark by themselves");
        assert_eq!(step(3701, 49), Step::Touch);
        assert_eq!(step(3702, 49), Step::Wait);
        assert_eq!(step(4602, 49), Step::Touch);
        assert_eq!(step(4603, 50), Step::Wait);
        assert_eq!(step(4663, 50), Step::Look);
        assert_eq!(step(4664, 50), Step::Wait);
        assert_eq!(step(4724, 50), Step::Look);
        assert_eq!(step(4603 + 2701, 50), Step::Delete);
    }
}
