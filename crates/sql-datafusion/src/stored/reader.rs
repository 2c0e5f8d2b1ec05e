//! The rows of a stored table, read for one execution.
//!
//! # Invariants
//! At most one batch of rows is held, of several ranges some megabytes; a secondary index's rows
//! are fetched a batch at a time.
//!
//! # On failure
//! Errors of the transaction and of stored bytes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use datafusion::error::Result as DfResult;
use datafusion::physical_expr::PhysicalExpr;
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use telesto_common::DatabaseId;
use telesto_common::key::{KeyRange, KeyReader};
use telesto_txn::{Scan, ScanOptions};

use super::entries_for;
use crate::columns::Columns;
use crate::row_tests::RowTests;
use crate::scan_ranges::{self, Access, Asking, Constraint, Part};
use crate::source::RowReader;
use crate::{dynamic, fault};
use telesto_sql_catalog::codec::{self, EntryCodec, RowCodec};
use telesto_sql_catalog::uses::Path;
use telesto_sql_catalog::{Index, Table};
use telesto_sql_plan::ExecContext;
use telesto_sql_plan::estimate::Shape;
use telesto_sql_plan::watch::Asked;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result};

/// Ranges that are read at a time, at first and at most.
const AT_FIRST: usize = 8;
const AT_A_TIME: usize = 128;
/// Bytes of their rows, about.
const TOGETHER_BYTES: usize = 4 << 20;
/// Rows of a range that are asked for at once.
const FIRST_ROWS: usize = 8;

/// Turns entries into rows.
pub(super) struct Decoder {
    pub codec: Result<RowCodec>,
    pub index: Option<Index>,
    /// Where the index's entries have all that is wanted.
    pub entries: Option<EntryCodec>,
    pub table: Arc<Table>,
    pub database: DatabaseId,
    pub exec: Arc<ExecContext>,
    /// What is read, for those who count it.
    pub path: Path,
    /// What a row has to be for it to be decoded.
    pub tests: Result<Option<RowTests>>,
}

pub(super) struct StoredReader {
    pub decoder: Decoder,
    pub access: Access,
    pub constraints: BTreeMap<usize, Constraint>,
    pub dynamic: Vec<Arc<dyn PhysicalExpr>>,
    pub begun: Option<Begun>,
    pub limit: Option<u64>,
    pub positions: Vec<usize>,
    pub types: Vec<SqlType>,
    pub schema: SchemaRef,
}

/// What is left to be read.
pub(super) struct Begun {
    points: VecDeque<Bytes>,
    ranges: VecDeque<KeyRange>,
    /// Ranges that have been begun.
    scans: VecDeque<Box<dyn Scan>>,
    /// How many are begun together next.
    together: usize,
    /// Rows of the whole table so far, if that is what is read.
    seen: Option<u64>,
    /// What conditions say of its columns all the same.
    asked: Asked,
}

impl RowReader for StoredReader {
    fn next(&mut self, max_rows: usize) -> BoxFuture<'_, DfResult<Option<RecordBatch>>> {
        self.batch(max_rows).map(|batch| batch.map_err(fault::to_datafusion)).boxed()
    }
}

impl StoredReader {
    /// Settles what is read: joins have filled their filters by now.
    fn begin(&mut self) -> Result<Begun> {
        let decoder = &mut self.decoder;
        let mut access = self.access.clone();
        let mut constraints = std::mem::take(&mut self.constraints);
        let whole = access.part == Part::Whole;
        let sizes = whole.then_some(&*decoder.exec.live.sizes);
        let (table, positions) = (&decoder.table, &self.positions);
        let shape = Shape::of(&decoder.exec.catalog, table);
        let (database, analyzed) = (decoder.database, shape.is_some());
        let wanted = entries_for(table, positions, &decoder.exec);
        let told =
            dynamic::collect(table, positions, &self.dynamic, sizes, analyzed, &mut constraints);
        if told.narrowed || !told.together.is_empty() {
            let (constraints, together) = (&constraints, &told.together[..]);
            let asking = Asking { constraints, together, wanted: wanted.as_deref() };
            access = scan_ranges::choose(database, table, &asking, shape.as_ref())?;
        }
        decoder.path = match (access.part, access.index) {
            (Part::Whole, 0) => Path::Whole,
            (_, index) => Path::Index(index),
        };
        decoder.count(1, 0);
        decoder.tests = RowTests::of(&decoder.table, &constraints);
        decoder.index = match access.index {
            0 => None,
            id => decoder.table.index(id).cloned(),
        };
        decoder.entries = decoder
            .index
            .as_ref()
            .zip(wanted.as_deref())
            .and_then(|(index, wanted)| EntryCodec::compact(&decoder.table, index, wanted));
        Ok(Begun {
            points: access.points.into(),
            ranges: access.ranges.into(),
            scans: VecDeque::new(),
            together: AT_FIRST,
            seen: (access.part == Part::Whole && self.limit.is_none()).then_some(0),
            asked: scan_ranges::asked(&constraints),
        })
    }

    async fn batch(&mut self, max_rows: usize) -> Result<Option<RecordBatch>> {
        let mut begun = match self.begun.take() {
            Some(begun) => begun,
            None => self.begin()?,
        };
        let batch = self.more(&mut begun, max_rows).await;
        self.begun = Some(begun);
        batch
    }

    async fn more(&mut self, begun: &mut Begun, max_rows: usize) -> Result<Option<RecordBatch>> {
        let width = self.decoder.table.columns.len();
        loop {
            telesto_sql_types::interrupt::pace().await?;
            if !begun.points.is_empty() {
                let most = begun.points.len().min(max_rows);
                let keys: Vec<Bytes> = begun.points.drain(..most).collect();
                let columns = Columns::new(&self.positions, &self.types, width, keys.len());
                let columns = self.decoder.look_up(keys, columns).await?;
                return columns.finish(&self.schema).map(Some);
            }
            let entries = match begun.scans.front_mut() {
                Some(scan) => scan.next_batch(max_rows).await?,
                None => match (begun.ranges.len(), self.limit) {
                    (0, _) => {
                        self.is_through(begun);
                        return Ok(None);
                    }
                    // More than are asked for may not be read.
                    (1, _) | (_, Some(_)) => {
                        let range = begun.ranges.pop_front();
                        let open = |range| self.decoder.open(range, self.limit);
                        begun.scans.extend(range.map(open));
                        continue;
                    }
                    _ => {
                        let entries = self.decoder.several(begun, max_rows).await?;
                        if entries.is_empty() {
                            continue;
                        }
                        entries
                    }
                },
            };
            if entries.is_empty() {
                begun.scans.pop_front();
                continue;
            }
            begun.seen = begun.seen.map(|seen| seen + entries.len() as u64);
            self.decoder.count(0, entries.len());
            let columns = Columns::new(&self.positions, &self.types, width, entries.len());
            let columns = self.decoder.decode(entries, columns).await?;
            if columns.is_empty() {
                continue;
            }
            return columns.finish(&self.schema).map(Some);
        }
    }
}

impl StoredReader {
    /// Notes what a scan of the whole table saw.
    fn is_through(&self, begun: &mut Begun) {
        let decoder = &self.decoder;
        if let Some(seen) = begun.seen.take() {
            decoder.exec.live.sizes.note(decoder.table.id, seen);
            decoder.exec.note_unindexed(&decoder.table, &begun.asked, seen);
        }
    }
}

impl Decoder {
    fn count(&self, scans: u64, rows: usize) {
        self.exec.live.uses.read(self.table.id, self.path, scans, rows as u64);
    }

    fn open(&self, range: KeyRange, limit: Option<u64>) -> Box<dyn Scan> {
        let options = ScanOptions { reverse: false, limit, read_for: self.exec.read_for };
        self.exec.txn.scan(range, options)
    }

    /// Reads the beginnings of several ranges together: most have few rows, and each may be a
    /// request of its own. Those that have more stay begun.
    async fn several(&self, begun: &mut Begun, max_rows: usize) -> Result<Vec<(Bytes, Bytes)>> {
        let most = begun.ranges.len().min(begun.together);
        let (each, share) = (max_rows.div_ceil(AT_A_TIME), TOGETHER_BYTES / most);
        let reads = begun.ranges.drain(..most).map(|range| async move {
            let mut scan = self.open(range, None);
            let (mut entries, mut bytes) = (Vec::new(), 0);
            while entries.len() < each && bytes < share {
                let more = scan.next_batch(FIRST_ROWS.min(each - entries.len())).await?;
                if more.is_empty() {
                    return Ok::<_, Error>((entries, bytes, None));
                }
                bytes += more.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
                entries.extend(more);
            }
            Ok((entries, bytes, Some(scan)))
        });
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for (found, held, scan) in try_join_all(reads).await? {
            entries.extend(found);
            bytes += held;
            begun.scans.extend(scan);
        }
        // What the next ones hold is guessed from these.
        let fitting = TOGETHER_BYTES / (bytes / most).max(1);
        begun.together = fitting.clamp(1, AT_A_TIME.min(2 * most));
        Ok(entries)
    }

    async fn decode(&self, entries: Vec<(Bytes, Bytes)>, mut columns: Columns) -> Result<Columns> {
        let codec = self.codec.as_ref().map_err(Clone::clone)?;
        let tests = self.tests.as_ref().map_err(Clone::clone)?;
        if let Some(own) = &self.entries {
            for (key, value) in &entries {
                columns.push_values(&own.decode(&self.table, key, value)?)?;
            }
            return Ok(columns);
        }
        let Some(index) = &self.index else {
            for (key, value) in &entries {
                columns.push_if(tests.as_ref(), codec, key, value)?;
            }
            return Ok(columns);
        };
        let keys = entries
            .iter()
            .map(|(key, value)| self.primary_of(index, key, value))
            .collect::<Result<Vec<Bytes>>>()?;
        let values = self.exec.txn.get_many(&keys, self.exec.read_for).await?;
        for (value, key) in values.iter().zip(&keys) {
            let Some(value) = value else {
                return Err(Error::corrupt(format!(
                    "index {} of table {} points at a row that is not there",
                    index.name, self.table.name
                )));
            };
            columns.push_if(tests.as_ref(), codec, key, value)?;
        }
        Ok(columns)
    }

    /// The rows of these keys that are there.
    async fn look_up(&self, keys: Vec<Bytes>, mut columns: Columns) -> Result<Columns> {
        let codec = self.codec.as_ref().map_err(Clone::clone)?;
        let tests = self.tests.as_ref().map_err(Clone::clone)?;
        let values = self.exec.txn.get_many(&keys, self.exec.read_for).await?;
        self.count(0, values.iter().flatten().count());
        for (key, value) in keys.iter().zip(&values) {
            if let Some(value) = value {
                columns.push_if(tests.as_ref(), codec, key, value)?;
            }
        }
        Ok(columns)
    }

    /// The row's key, from its entry in an index.
    fn primary_of(&self, index: &Index, key: &Bytes, value: &Bytes) -> Result<Bytes> {
        let elements = if value.is_empty() {
            let mut reader = KeyReader::new(key);
            reader.prefix()?;
            for part in &index.columns {
                codec::read_index_key(&mut reader, &self.table, part)?;
            }
            Bytes::copy_from_slice(reader.rest())
        } else {
            value.clone()
        };
        let prefix = codec::index_prefix(self.database, &self.table, 0);
        let mut out = prefix.as_slice().to_vec();
        out.extend_from_slice(&elements);
        Ok(Bytes::from(out))
    }
}
