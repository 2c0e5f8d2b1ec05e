//! The checkpoint engine over SlateDB 0.18, its own write-ahead log off.
//!
//! # Invariants
//! - One log of truth, ours: a no-op WAL initialiser replaces SlateDB's fence object and replay.
//! - No idle requests: manifest polls of a writer are an hour apart (and do not begin with one), no
//!   compactor or collector runs inside; the caller drives both.
//! - A reader shows one checkpoint as long as it lives: it never polls. What it shows goes with the
//!   watermark that was read with it; once its objects are collected it is `Gone`, and another one
//!   is opened, watermark and all.
//! - A reader that is dropped, closed or not, leaves no task behind.
//! - Retries are bounded; every wait ends by `io_timeout`.
//! - One block cache serves all checkpoints of the process.
//! - What is read ahead is bounded over all sources of a scan together ([`fetches`]). A table being
//!   made is bounded by the fold, which flushes long before SlateDB would by itself: SlateDB counts
//!   encoded bytes, a row in its memory takes several times as much.
//!
//! # On failure
//! SlateDB's errors become a [`Fault`]. Any that closes the instance, and a missing object
//! (collected under a reader that did not refresh in time), is `Gone`: the caller opens another.

use std::collections::VecDeque;
use std::fmt::{Debug, Formatter};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt as _, poll};
use object_store::ObjectStore;
use slatedb::config::{
    CloseOptions, DbReaderOptions, FlushOptions, FlushType, PutOptions, ReadOptions, ScanOptions,
    Settings, WriteOptions,
};
use slatedb::{
    CloseReason, Db, DbIterator, DbReader, DbReaderMode, ErrorKind, IterationOrder, SstBlockSize,
    SstReader, VersionedManifest, WriteBatch,
};
use telesto_bucket::{Bucket, Cause};
use telesto_common::Env;
use telesto_common::key::KeyRange;

use super::contact::Instant;
use super::no_wal::NoWal;
use super::slate_clock::SlateClock;
use super::slate_space::{KnownTables, Tables};
use super::witness::{
    GivenUp, LastFailure, LastRead, Witness, damaged_object, named_object, witnessed,
};
use super::{
    Ages, Engine, Fault, Outcome, ReadAhead, RowScan, Shape, StoredRow, Taken, View, WorkSizes,
    Writer, compaction, fetches, held_bytes,
};
use crate::cache::ProcessCache;
use crate::gone::{Expired, Extent};

pub(super) const BLOCK_SIZE: SstBlockSize = SstBlockSize::Block16Kib;
/// Retries of SlateDB itself; the bucket below retries too.
pub(super) const RETRIES: u32 = 2;
/// Between two looks of a writer at its manifest.
const POLL: Duration = Duration::from_secs(3600);
/// A reader's view stays what it was when it was opened: a look puts the newest checkpoint in its
/// place, and the watermark that was read with the view would be that of an older one. So it never
/// looks; a wait of more than two years is longer than tokio's longest.
const NEVER: Duration = Duration::from_secs(700 * 24 * 3600);
/// Level-0 tables at which SlateDB would stop a flush: far above where compaction starts.
const LEVEL0_STOP: usize = 1024;
/// What SlateDB 0.18 says when another process was first to write a manifest; its error has no kind
/// of its own.
const LOST_RACE: &str = "version already exists";

/// The checkpoint of one shard in the bucket.
pub(crate) struct SlateEngine {
    pub(super) env: Env,
    pub(super) bucket: Arc<dyn Bucket>,
    pub(super) path: String,
    pub(super) clock: Arc<SlateClock>,
    pub(super) io_timeout: Duration,
    pub(super) sizes: WorkSizes,
    pub(super) ages: Ages,
    cache: Arc<ProcessCache>,
    cache_id: u64,
    last_read: LastRead,
    failed_write: LastFailure,
    pub(super) known_tables: Arc<KnownTables>,
}

impl Debug for SlateEngine {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlateEngine").field("path", &self.path).finish_non_exhaustive()
    }
}

impl SlateEngine {
    pub(crate) fn new(
        env: &Env,
        bucket: &Arc<dyn Bucket>,
        cache: &Arc<ProcessCache>,
        path: String,
        io_timeout: Duration,
        sizes: WorkSizes,
        ages: Ages,
    ) -> Self {
        Self {
            env: env.clone(),
            bucket: Arc::clone(bucket),
            path,
            clock: SlateClock::new(env),
            io_timeout,
            sizes,
            ages,
            cache: Arc::clone(cache),
            cache_id: cache.scope(),
            last_read: LastRead::default(),
            failed_write: LastFailure::default(),
            known_tables: Arc::default(),
        }
    }

    fn tables(&self) -> Tables {
        let (store, cache) = (self.store(Cause::Read), self.cache.blocks.as_db_cache());
        Tables {
            env: self.env.clone(),
            io_timeout: self.io_timeout,
            reader: SstReader::new(self.path.as_str(), store, Some(cache), None),
            known: Arc::clone(&self.known_tables),
            last_read: self.last_read.clone(),
        }
    }

    /// Runs a SlateDB call, at most for `io_timeout`.
    pub(super) async fn bounded<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, slatedb::Error>>,
    ) -> Outcome<T> {
        let call = bounded(&self.env, self.io_timeout, what, call).await;
        call.map_err(|fault| witnessed(fault, &self.last_read))
    }

    /// The bucket as SlateDB gets it.
    pub(super) fn store(&self, cause: Cause) -> Arc<dyn ObjectStore> {
        self.store_until(cause, &GivenUp::default())
    }

    fn store_until(&self, cause: Cause, given_up: &GivenUp) -> Arc<dyn ObjectStore> {
        let store = self.bucket.object_store(cause);
        Witness::over(store, &self.last_read, &self.failed_write, given_up)
    }

    fn settings(&self) -> Settings {
        Settings {
            flush_interval: None,
            wal_enabled: false,
            manifest_poll_interval: POLL,
            manifest_update_timeout: self.io_timeout,
            l0_sst_size_bytes: self.sizes.table_bytes,
            l0_max_ssts: LEVEL0_STOP,
            l0_max_ssts_per_key: LEVEL0_STOP,
            max_unflushed_bytes: self.sizes.table_bytes * 2,
            l0_flush_parallelism: 1,
            compactor_options: None,
            garbage_collector_options: None,
            object_store_max_retries: Some(RETRIES),
            ..Settings::default()
        }
    }
}

pub(super) async fn bounded<T>(
    env: &Env,
    timeout: Duration,
    what: &'static str,
    call: impl Future<Output = Result<T, slatedb::Error>>,
) -> Outcome<T> {
    match env.within_timeout(timeout, what, call).await {
        Ok(result) => result.map_err(|error| fault(&error)),
        Err(error) => Err(Fault::Unavailable(error.to_string())),
    }
}

/// What an error of SlateDB means for us.
pub(super) fn fault(error: &slatedb::Error) -> Fault {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    let mut missing = false;
    while let Some(cause) = source {
        if let Some(store) = cause.downcast_ref::<object_store::Error>() {
            missing |= matches!(store, object_store::Error::NotFound { .. });
        }
        if let Some(store) = cause.downcast_ref::<Arc<object_store::Error>>() {
            missing |= matches!(store.as_ref(), object_store::Error::NotFound { .. });
        }
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    if let Some(object) = damaged_object(&text) {
        return Fault::Corrupt { object: Some(object), reason: text };
    }
    match error.kind() {
        ErrorKind::Closed(CloseReason::Fenced) => Fault::Fenced,
        // Nothing is damaged: another process wrote the next manifest first.
        ErrorKind::Data if text.contains(LOST_RACE) => Fault::Gone(text),
        ErrorKind::Data if missing => Fault::Gone(text),
        ErrorKind::Data => Fault::Corrupt { object: named_object(&text), reason: text },
        ErrorKind::Unavailable => Fault::Unavailable(text),
        _ => Fault::Gone(text),
    }
}

fn is_empty_database(error: &slatedb::Error) -> bool {
    error.kind() == ErrorKind::Data
        && error.to_string().contains("failed to find latest transactional object")
}

#[async_trait]
impl Engine for SlateEngine {
    fn requests(&self) -> u64 {
        self.last_read.count()
    }

    fn failed_write(&self) -> Option<String> {
        self.failed_write.text()
    }

    fn path(&self) -> &str {
        &self.path
    }

    async fn open_reader(&self) -> Outcome<Option<Arc<dyn View>>> {
        self.failed_write.clear();
        let options = DbReaderOptions {
            manifest_poll_interval: NEVER,
            skip_wal_replay: true,
            object_store_max_retries: Some(RETRIES),
            ..DbReaderOptions::default()
        };
        let build = DbReader::builder(self.path.as_str(), self.store(Cause::Read))
            .with_reader_mode(DbReaderMode::FollowLatest)
            .with_options(options)
            .with_db_cache(self.cache.blocks.as_db_cache(), self.cache_id)
            .with_system_clock(self.clock.clone())
            .with_seed(self.env.random.next_u64())
            .build();
        let opened = self
            .bounded("opening a checkpoint", async {
                match build.await {
                    Ok(reader) => Ok(Some(reader)),
                    Err(error) if is_empty_database(&error) => Ok(None),
                    Err(error) => Err(error),
                }
            })
            .await?;
        Ok(opened.map(|reader| {
            let view = SlateReader {
                env: self.env.clone(),
                io_timeout: self.io_timeout,
                ahead_bytes: self.sizes.ahead_bytes,
                reader,
                tables: self.tables(),
                last_read: self.last_read.clone(),
            };
            Arc::new(view) as Arc<dyn View>
        }))
    }

    async fn open_writer(&self) -> Outcome<Arc<dyn Writer>> {
        self.failed_write.clear();
        let given_up = GivenUp::default();
        let store = self.store_until(Cause::Checkpoint, &given_up);
        let build = Db::builder(self.path.as_str(), store)
            .with_settings(self.settings())
            .with_sst_block_size(BLOCK_SIZE)
            .with_wal_writer(Box::new(NoWal))
            .with_db_cache(self.cache.blocks.as_db_cache(), self.cache_id)
            .with_system_clock(self.clock.clone())
            .with_seed(self.env.random.next_u64())
            .build();
        let opened = self.bounded("taking a checkpoint over", build).await;
        // What a half-opened one has begun ends as well.
        let db = opened.inspect_err(|_| given_up.set())?;
        Ok(Arc::new(SlateWriter {
            env: self.env.clone(),
            io_timeout: self.io_timeout,
            ahead_bytes: self.sizes.ahead_bytes,
            db,
            tables: self.tables(),
            contact: parking_lot::Mutex::new(Instant::now(&self.env)),
            stale_after: self.ages.manifests / 2,
            last_read: self.last_read.clone(),
            given_up,
        }))
    }

    async fn compact(&self, expired: &Expired, extent: Extent, shape: Shape) -> Outcome<()> {
        compaction::run(self, expired, extent, shape).await
    }

    async fn collect(&self) -> Outcome<()> {
        compaction::collect(self).await
    }
}

struct SlateReader {
    env: Env,
    io_timeout: Duration,
    ahead_bytes: usize,
    reader: DbReader,
    tables: Tables,
    last_read: LastRead,
}

struct SlateWriter {
    env: Env,
    io_timeout: Duration,
    ahead_bytes: usize,
    db: Db,
    tables: Tables,
    /// When the manifest was last known to be ours.
    contact: parking_lot::Mutex<Instant>,
    /// Away for longer, it must not flush any more.
    stale_after: Duration,
    last_read: LastRead,
    given_up: GivenUp,
}

impl Drop for SlateReader {
    /// SlateDB's task of a reader keeps all of it until it is told to end, which it is when a close
    /// is begun; whoever opens a reader may be cut off, or fail, before it can close it.
    fn drop(&mut self) {
        // Nobody waits for the task's end, which changes nothing.
        let _ = self.reader.close().now_or_never();
    }
}

impl Drop for SlateWriter {
    fn drop(&mut self) {
        self.given_up.set();
    }
}

impl SlateWriter {
    /// A failure of a closed instance stays for ever, whatever its kind: only another one can help.
    fn lasting(&self, fault: Fault) -> Fault {
        match witnessed(fault, &self.last_read) {
            Fault::Fenced => Fault::Fenced,
            Fault::Unavailable(reason) if self.db.status().close_reason.is_some() => {
                Fault::Gone(reason)
            }
            other => other,
        }
    }
}

impl Debug for SlateReader {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlateReader").field("version", &self.version()).finish_non_exhaustive()
    }
}

impl Debug for SlateWriter {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlateWriter").field("version", &self.version()).finish_non_exhaustive()
    }
}

fn shape(manifest: &VersionedManifest) -> Shape {
    Shape { level0_tables: manifest.l0().len(), sorted_runs: manifest.compacted().len() }
}

fn scan_options(reverse: bool, ahead: ReadAhead, budget: usize, shape: Shape) -> ScanOptions {
    let (read_ahead_bytes, max_fetch_tasks) = match ahead {
        ReadAhead::Short => (fetches(budget, shape.sources()).0.min(64 << 10), 1),
        ReadAhead::Long => fetches(budget, shape.sources()),
    };
    ScanOptions {
        read_ahead_bytes,
        max_fetch_tasks,
        cache_blocks: true,
        order: if reverse { IterationOrder::Descending } else { IterationOrder::Ascending },
        ..ScanOptions::default()
    }
}

type StoredRange = (std::ops::Bound<Bytes>, std::ops::Bound<Bytes>);

fn stored_range(range: KeyRange) -> StoredRange {
    use std::ops::Bound::{Excluded, Included, Unbounded};
    let end = if range.end.is_empty() { Unbounded } else { Excluded(range.end) };
    (Included(range.start), end)
}

struct SlateScan {
    env: Env,
    io_timeout: Duration,
    rows: DbIterator,
    last_read: LastRead,
}

#[async_trait]
impl RowScan for SlateScan {
    async fn next(&mut self) -> Outcome<Option<StoredRow>> {
        let next = self.rows.next();
        let row = bounded(&self.env, self.io_timeout, "scanning a checkpoint", next).await;
        let row = row.map_err(|fault| witnessed(fault, &self.last_read))?;
        Ok(row.map(|row| (row.key, row.value)))
    }

    /// One boxed future a chunk, not one a row.
    async fn fill(
        &mut self,
        into: &mut VecDeque<StoredRow>,
        rows: usize,
        bytes: usize,
    ) -> Outcome<bool> {
        let mut held = held_bytes(into);
        while into.len() < rows && held < bytes {
            // The future is large: it is polled where it is made, not moved.
            let mut next = pin!(self.rows.next());
            let row = match poll!(next.as_mut()) {
                Poll::Ready(row) => row.map_err(|error| fault(&error)),
                Poll::Pending => {
                    bounded(&self.env, self.io_timeout, "scanning a checkpoint", next).await
                }
            };
            match row.map_err(|fault| witnessed(fault, &self.last_read))? {
                Some(row) => {
                    held += row.key.len() + row.value.len();
                    into.push_back((row.key, row.value));
                }
                None => return Ok(true),
            }
        }
        Ok(false)
    }
}

#[async_trait]
impl View for SlateReader {
    async fn get(&self, key: &[u8]) -> Outcome<Option<Bytes>> {
        let options = ReadOptions::default();
        let get = self.reader.get_with_options(key, &options);
        let read = bounded(&self.env, self.io_timeout, "reading a checkpoint", get).await;
        read.map_err(|fault| witnessed(fault, &self.last_read))
    }

    async fn scan(
        &self,
        range: KeyRange,
        reverse: bool,
        ahead: ReadAhead,
    ) -> Outcome<Box<dyn RowScan>> {
        let options = scan_options(reverse, ahead, self.ahead_bytes, self.shape());
        let open = self.reader.scan_with_options::<StoredRange>(stored_range(range), &options);
        let rows = bounded(&self.env, self.io_timeout, "scanning a checkpoint", open)
            .await
            .map_err(|fault| witnessed(fault, &self.last_read))?;
        Ok(Box::new(SlateScan {
            env: self.env.clone(),
            io_timeout: self.io_timeout,
            rows,
            last_read: self.last_read.clone(),
        }))
    }

    async fn space(&self) -> Outcome<Taken> {
        self.tables.space(&self.reader.manifest()).await
    }

    fn durable_seq(&self) -> u64 {
        self.reader.manifest().last_l0_seq()
    }

    fn version(&self) -> u64 {
        self.reader.manifest().id()
    }

    fn shape(&self) -> Shape {
        shape(&self.reader.manifest())
    }

    async fn close(&self) {
        // Only ends the poller; its result changes nothing.
        let _ = bounded(&self.env, self.io_timeout, "closing", self.reader.close()).await;
    }
}

#[async_trait]
impl View for SlateWriter {
    async fn get(&self, key: &[u8]) -> Outcome<Option<Bytes>> {
        let options = ReadOptions::default();
        let get = self.db.get_with_options(key, &options);
        let read = bounded(&self.env, self.io_timeout, "reading a checkpoint", get).await;
        read.map_err(|fault| self.lasting(fault))
    }

    async fn scan(
        &self,
        range: KeyRange,
        reverse: bool,
        ahead: ReadAhead,
    ) -> Outcome<Box<dyn RowScan>> {
        let options = scan_options(reverse, ahead, self.ahead_bytes, self.shape());
        let open = self.db.scan_with_options::<StoredRange>(stored_range(range), &options);
        let rows = bounded(&self.env, self.io_timeout, "scanning a checkpoint", open)
            .await
            .map_err(|fault| self.lasting(fault))?;
        Ok(Box::new(SlateScan {
            env: self.env.clone(),
            io_timeout: self.io_timeout,
            rows,
            last_read: self.last_read.clone(),
        }))
    }

    async fn space(&self) -> Outcome<Taken> {
        self.tables.space(&self.db.manifest()).await.map_err(|fault| self.lasting(fault))
    }

    fn durable_seq(&self) -> u64 {
        self.db.manifest().last_l0_seq()
    }

    fn version(&self) -> u64 {
        self.db.manifest().id()
    }

    fn shape(&self) -> Shape {
        shape(&self.db.manifest())
    }

    async fn close(&self) {
        // Without a write-ahead log SlateDB repeats a failed write for ever, and closing waits for
        // it.
        self.given_up.set();
        let options = CloseOptions { flush_type: None };
        let close = self.db.close_with_options(options);
        // What was not flushed is in our log.
        let _ = bounded(&self.env, self.io_timeout, "closing", close).await;
    }
}

#[async_trait]
impl Writer for SlateWriter {
    async fn apply(&self, seq: u64, rows: Vec<StoredRow>) -> Outcome<()> {
        let mut batch = WriteBatch::new();
        for (key, value) in rows {
            batch.put_bytes_with_options(key, value, &PutOptions::default());
        }
        let options = WriteOptions { seqnum: seq };
        let write = self.db.write_with_options(batch, &options);
        bounded(&self.env, self.io_timeout, "writing a checkpoint", write).await?;
        Ok(())
    }

    async fn flush(&self) -> Outcome<()> {
        let now = Instant::now(&self.env);
        if self.stale() {
            return Err(Fault::Gone("the writer was away for too long".to_owned()));
        }
        let options = FlushOptions { flush_type: FlushType::MemTable };
        let flush = self.db.flush_with_options(options);
        bounded(&self.env, self.io_timeout, "flushing a checkpoint", flush).await?;
        if self.stale() {
            return Err(Fault::Gone("the writer was frozen during its flush".to_owned()));
        }
        *self.contact.lock() = now;
        Ok(())
    }

    fn stale(&self) -> bool {
        self.contact.lock().is_stale(&self.env, self.stale_after)
    }

    async fn refresh(&self) -> Outcome<()> {
        let now = Instant::now(&self.env);
        let refresh = self.db.refresh_manifest();
        bounded(&self.env, self.io_timeout, "refreshing a checkpoint", refresh).await?;
        *self.contact.lock() = now;
        Ok(())
    }

    fn view(self: Arc<Self>) -> Arc<dyn View> {
        self
    }
}
