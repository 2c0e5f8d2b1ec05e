//! The batches of an index build: rows read, their entries written.
//!
//! # Purpose
//! A batch grows as long as nobody is in its way, up to [`MOST`] rows. One of more bytes than a log
//! entry holds is written to the bucket as sorted parts, which the entry only names; so where
//! nobody writes the rows, an index costs the log a few entries, however many rows there are, and
//! neither the log nor the memory of any node holds its entries.
//!
//! # Invariants
//! - Of a batch the rows are read as constraints, so that it commits only if they are what it made
//!   the entries of.
//! - Entries of unique keys are looked up as constraints too, those of the same batch among them,
//!   so that of two rows with one key the second is always found.
//!
//! # On failure
//! A batch in conflict is made again with fewer rows ([`Pace::met_others`]). One that found no room
//! on the local disk, in memory or in the bucket is made again smaller, as it fits an entry of the
//! log, twice at most ([`Pace::shrink`]): then the error is told.
//!
//! # Limits
//! A batch ends after [`BATCH_TIME`], or [`BATCH_BYTES`], with the chunk of [`CHUNK`] rows that it
//! is at.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustc_hash::FxHashMap;
use telesto_common::key::KeyRange;
use telesto_txn::{Looked, Put, ReadFor, ScanOptions};

use super::LEASE;
use super::build::Builder;
use crate::catalog::build_record::BuildRecord;
use crate::catalog::{Index, IndexBuild, Table};
use crate::codec::{self, RowCodec};
use crate::ddl;
use crate::error::{Error, Result};
use crate::expr::EvalContext;
use crate::plan::ExecContext;
use crate::plan::compiled_table::CompiledTable;
use crate::types::Datum;
use telesto_sql_types::interrupt;

/// Rows of a batch at first, and at least.
const FIRST: usize = 512;
const LEAST: usize = 8;
/// Rows of a batch at most.
const MOST: usize = 128 << 10;
/// Rows read and written at a time within a batch.
const CHUNK: usize = 4096;
/// Bytes of rows, or of entries, after which a batch ends: with one more chunk of the longest
/// entries, less than what passes to another region at once.
const BATCH_BYTES: usize = 14 << 20;
/// Time after which a batch ends: its driver's beat, and what is told of its progress, wait for its
/// commit.
const BATCH_TIME: Duration = Duration::from_secs(2);
/// Bytes of rows, or of entries, after which a batch ends that is to fit an entry of the log.
const SMALL_BYTES: usize = 256 << 10;
/// Batches of that size after one in parts that was in vain.
const SMALL_BATCHES: u32 = 16;
/// A batch that takes longer, its commit with it, is too large for the driver's lease.
const SLOWEST: Duration = Duration::from_secs(LEASE.as_secs() / 6);
/// Batches of so few rows claim them: others of this process wait for their turn.
const CLAIMED: usize = 64;

/// How large batches are: smaller after conflicts.
#[derive(Debug)]
pub(super) struct Pace {
    rows: usize,
    /// Batches that are to fit an entry of the log before one may be larger again.
    small: u32,
    /// Rows of the newest batch.
    held: usize,
    /// Keys of the batch that conflicted.
    met: Vec<Bytes>,
}

impl Pace {
    /// Of a build that begins.
    pub(super) fn first() -> Self {
        Self { rows: FIRST, small: 0, held: 0, met: Vec::new() }
    }

    /// Of a build that is taken over.
    pub(super) fn least() -> Self {
        Self { rows: LEAST, ..Self::first() }
    }

    /// A batch is committed, `took` after it was begun.
    pub(super) fn went_well(&mut self, took: Duration) {
        // What the batch held, not what was wished: it may have ended by its bytes.
        let held = self.rows.min(self.held.max(FIRST));
        self.rows = if took > SLOWEST { (held / 2).max(LEAST) } else { (held * 2).min(MOST) };
        self.small = self.small.saturating_sub(1);
        self.met.clear();
    }

    /// A batch was in conflict with what others wrote. One in parts is uploaded before that is
    /// known, and whoever commits looks at it alone: it is not tried again for a while.
    pub(super) fn met_others(&mut self) {
        if self.held > CHUNK {
            self.small = SMALL_BATCHES;
        }
        self.rows = (self.rows.min(self.held.max(LEAST)) / 4).max(LEAST);
    }

    /// There was no room for a batch: those that follow are to fit an entry of the log. `false`:
    /// they do, and a smaller one would find none either; each try may have waited for as long as a
    /// request may take.
    pub(super) fn shrink(&mut self) -> bool {
        let (was_small, rows) = (self.small > 0, self.rows);
        self.rows = rows.min(if was_small { CLAIMED } else { FIRST });
        self.small = SMALL_BATCHES;
        !was_small || rows > CLAIMED
    }

    /// Rows, and bytes of rows or of entries, after which the next batch ends; rows to read at a
    /// time.
    fn bounds(&self) -> (usize, usize, usize) {
        match self.small {
            0 => (self.rows, BATCH_BYTES, CHUNK),
            _ => (self.rows.min(CHUNK), SMALL_BYTES, FIRST),
        }
    }
}

/// An entry that only one row may have, and its row.
type Exclusive = (Bytes, Bytes, Vec<Datum>);

impl Builder {
    /// Adds the entries of the next rows.
    pub(super) async fn batch(
        &self,
        context: &ExecContext,
        table: &Arc<Table>,
        index: u32,
        record: &mut BuildRecord,
        pace: &mut Pace,
    ) -> Result<()> {
        if pace.rows <= CLAIMED && !pace.met.is_empty() {
            pace.met.truncate(pace.rows);
            context.txn.claim(&pace.met).await?;
        }
        pace.met.clear();
        pace.held = 0;
        let (most, most_bytes, chunk_rows) = pace.bounds();
        let start = match record.cursor.as_slice() {
            [] => codec::table_range(context.catalog.database, table, 0).start,
            cursor => KeyRange::point(cursor).end,
        };
        let range = KeyRange::new(start, KeyRange::point(&record.last).end);
        let options = ScanOptions {
            limit: Some(most as u64),
            read_for: ReadFor::Constraint,
            ..ScanOptions::default()
        };
        let info = CompiledTable::new(&context.catalog, &context.settings, table)?;
        let build = table.build(index).ok_or_else(|| Error::internal("a build is gone"))?;
        let some = own_codec(table, &build.index)?;
        let filling = Filling {
            context,
            info: &info,
            codec: some.as_ref().unwrap_or(&info.codec),
            build,
            leaves_invalid: record.command.leaves_invalid(),
        };
        let clock = &context.env.clock;
        let begun = clock.monotonic();
        let mut scan = context.txn.scan(range, options);
        let mut bytes = 0;
        while pace.held < most && bytes < most_bytes {
            context.check_cancelled()?;
            interrupt::pace().await?;
            let chunk = scan.next_batch(chunk_rows.min(most - pace.held)).await?;
            let Some((last, _)) = chunk.last() else {
                record.cursor.clone_from(&record.last);
                break;
            };
            record.cursor = last.to_vec();
            pace.held += chunk.len();
            let read = chunk.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
            record.rows_done += chunk.len() as u64;
            record.bytes_done += read as u64;
            let unmet = CLAIMED.saturating_sub(pace.met.len());
            pace.met.extend(chunk.iter().take(unmet).map(|(key, _)| key.clone()));
            let written = filling.put_entries(chunk).await?;
            bytes += read.max(written);
            if clock.monotonic().saturating_sub(begun) > BATCH_TIME {
                break;
            }
        }
        Ok(())
    }
}

/// Decodes the index's columns alone, where its entries are made of no others.
fn own_codec(table: &Arc<Table>, index: &Index) -> Result<Option<RowCodec>> {
    if index.predicate.is_some() || index.columns.iter().any(|part| part.expression.is_some()) {
        return Ok(None);
    }
    let own = |at: usize| index.columns.iter().any(|part| part.column == at);
    RowCodec::projected(table, own).map(Some)
}

/// What entries are made with.
struct Filling<'a> {
    context: &'a ExecContext,
    info: &'a CompiledTable,
    /// Decodes what entries are made of.
    codec: &'a RowCodec,
    build: &'a IndexBuild,
    leaves_invalid: bool,
}

impl Filling<'_> {
    /// Writes the entries of `rows`; their bytes.
    async fn put_entries(&self, rows: Vec<(Bytes, Bytes)>) -> Result<usize> {
        let (context, table) = (self.context, &self.info.table);
        let eval = EvalContext::executing(context);
        let mut exclusive: Vec<Exclusive> = Vec::new();
        let mut puts: Vec<Put> = Vec::with_capacity(rows.len());
        let mut bytes = 0;
        for (primary, value) in rows {
            if !context.catalog.fills_row(table, &primary) {
                continue;
            }
            let row = self.codec.decode(&primary, &value)?;
            let entry = self.info.exclusive_entry(&self.build.index, &row, &primary, &eval)?;
            let Some((key, value, alone)) = entry else { continue };
            bytes += key.len() + value.len();
            if alone {
                exclusive.push((key, value, row));
            } else {
                puts.push(Put { key, value, absent: None });
            }
        }
        self.put_exclusive(exclusive, &mut puts, &eval).await?;
        context.txn.put_all(puts).await?;
        Ok(bytes)
    }

    /// Adds to `puts` the entries that only one row may have.
    ///
    /// # Errors
    /// 23505 for a key that another row has.
    async fn put_exclusive(
        &self,
        entries: Vec<Exclusive>,
        puts: &mut Vec<Put>,
        eval: &EvalContext<'_>,
    ) -> Result<()> {
        let keys: Vec<Bytes> = entries.iter().map(|(key, ..)| key.clone()).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let looked = self.context.txn.look_up_new(&keys).await?;
        let mut own: FxHashMap<Bytes, Bytes> = FxHashMap::default();
        for (number, (key, value, row)) in entries.into_iter().enumerate() {
            let (there, absent) = match &looked {
                Looked::Absent(since) => (None, Some(*since)),
                Looked::Values(values) => (values[number].as_ref(), None),
            };
            // A writer may have put the row's entry already.
            let other = there.is_some_and(|found| *found != value);
            if other || own.insert(key.clone(), value.clone()).is_some() {
                return Err(self.duplicate(&row, eval));
            }
            puts.push(Put { key, value, absent });
        }
        Ok(())
    }

    /// 23505, told of the index that is replaced where there is one.
    fn duplicate(&self, row: &[Datum], eval: &EvalContext<'_>) -> Error {
        let mut told = self.build.index.clone();
        let place = self.info.table.known_indexes().find(|i| Some(i.id) == self.build.replaces);
        if let (Some(place), false) = (place, self.leaves_invalid) {
            told.name.clone_from(&place.name);
        }
        ddl::duplicate(self.info, &told, row, eval)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch of what is wished, or of less.
    fn batch(pace: &mut Pace, at_most: usize) -> usize {
        pace.held = pace.bounds().0.min(at_most);
        pace.held
    }

    #[test]
    fn batches_grow_alone_and_fit_an_entry_after_they_met_others() {
        let mut pace = Pace::first();
        for _ in 0..12 {
            batch(&mut pace, usize::MAX);
            pace.went_well(Duration::ZERO);
        }
        assert_eq!(batch(&mut pace, usize::MAX), MOST);
        pace.met_others();
        for _ in 0..SMALL_BATCHES {
            assert!(batch(&mut pace, usize::MAX) <= CHUNK && pace.bounds().1 == SMALL_BYTES);
            pace.went_well(Duration::ZERO);
        }
        assert_eq!(pace.bounds().1, BATCH_BYTES);
        // What a batch held counts, not what was wished.
        batch(&mut pace, 1000);
        pace.met_others();
        assert_eq!(batch(&mut pace, usize::MAX), 250);
        pace.went_well(SLOWEST * 2);
        assert_eq!(batch(&mut pace, usize::MAX), 125);
    }

    #[test]
    fn a_batch_without_room_is_made_smaller_twice() {
        let mut pace = Pace::first();
        pace.rows = MOST;
        assert!(pace.shrink());
        assert_eq!(batch(&mut pace, usize::MAX), FIRST);
        assert!(pace.shrink());
        assert_eq!(batch(&mut pace, usize::MAX), CLAIMED);
        assert!(!pace.shrink(), "the error is told");
    }
}
