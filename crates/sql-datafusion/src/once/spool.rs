//! The rows of a WITH query, kept for all who read them.
//!
//! # Invariants
//! - Rows are asked for by whoever needs the next one first; a reader that stands behind takes what
//!   is kept.
//! - Nobody who waits is forgotten: whatever wakes the source wakes all who wait for it, also where
//!   one of them is gone.
//! - Segments follow one another without a gap; one in a file is whole before anybody reads it.
//!
//! # On failure
//! An error of the source is given to every reader that comes to it. 53100 and its kin where the
//! scratch has no room, 53400 for more than [`MOST_FILES`] files.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, SpillMetrics};
use datafusion::physical_plan::{ExecutionPlan, SpillManager};
use futures::task::{ArcWake, waker};
use futures::{Stream, StreamExt as _, ready};
use parking_lot::Mutex;
use telesto_sql_types::error::{Error, SqlState};

use crate::fault;

/// What is kept, and who computes more.
pub(super) struct Spool {
    kept: Mutex<Kept>,
    waiting: Arc<Waiting>,
    allowance: Arc<Allowance>,
}

/// What all spools of a statement may take together.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    /// Bytes in memory for which the statement has no room.
    over: AtomicUsize,
    files: AtomicUsize,
}

impl Allowance {
    /// Whether so many bytes more are allowed; then they are taken.
    fn takes(&self, bytes: usize) -> bool {
        let more = |over: usize| (over + bytes <= MOST_OVER).then_some(over + bytes);
        self.over.fetch_update(Relaxed, Relaxed, more).is_ok()
    }
}

impl Spool {
    pub fn new(allowance: &Arc<Allowance>) -> Self {
        let (kept, waiting) = (Mutex::default(), Arc::default());
        Self { kept, waiting, allowance: Arc::clone(allowance) }
    }
}

impl std::fmt::Debug for Spool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spool").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Kept {
    source: Source,
    segments: Vec<Segment>,
    rows: usize,
    /// Counts what is in memory.
    held: Option<MemoryReservation>,
    /// Bytes of the segment in memory for which the statement has no room.
    over: usize,
}

/// Bytes of a segment that stay in memory though the statement has no room for them: a file is an
/// open one of the process. Twice as many for each file that the spool has.
const LEAST_BYTES: usize = 1 << 20;
/// Such bytes of all spools of a statement.
const MOST_OVER: usize = 16 << 20;
/// Files of all spools of a statement.
const MOST_FILES: usize = 1000;
/// Batches of so few rows are put together, so many at a time.
const FEW_ROWS: usize = 256;
const TOGETHER: usize = 64;

/// Where further rows come from.
#[derive(Default)]
enum Source {
    /// Nobody has asked.
    #[default]
    NotBegun,
    /// Nothing: somebody asks it.
    Running(Option<SendableRecordBatchStream>),
    Ended,
    Failed(Arc<DataFusionError>),
}

/// Rows from the one of that number on.
struct Segment {
    from: usize,
    place: Place,
}

enum Place {
    /// Batches with the numbers of their first rows.
    Memory(Vec<(usize, RecordBatch)>),
    File(Arc<dyn datafusion::execution::spill_file::SpillFile>),
}

/// Those who wait for the source.
#[derive(Default)]
struct Waiting(Mutex<Vec<Waker>>);

impl Waiting {
    /// Adds one who waits; who was asked again before the source moved is there already.
    fn add(&self, who: &Waker) {
        let mut all = self.0.lock();
        if !all.iter().any(|other| other.will_wake(who)) {
            all.push(who.clone());
        }
    }
}

impl ArcWake for Waiting {
    fn wake_by_ref(own: &Arc<Self>) {
        let all = std::mem::take(&mut *own.0.lock());
        all.into_iter().for_each(Waker::wake);
    }
}

/// One who reads.
pub(super) struct Reader {
    spool: Arc<Spool>,
    /// Computes the rows if nobody has begun to.
    plan: Arc<dyn ExecutionPlan>,
    task: Arc<TaskContext>,
    schema: SchemaRef,
    /// Rows read so far.
    at: usize,
    /// A segment in a file that is being read, and how many of its rows are read already.
    file: Option<(SendableRecordBatchStream, usize)>,
}

/// What the spool has for a reader.
enum Next {
    Batch(RecordBatch),
    File(SendableRecordBatchStream, usize),
    End,
}

impl Reader {
    pub fn new(
        spool: Arc<Spool>,
        plan: Arc<dyn ExecutionPlan>,
        task: Arc<TaskContext>,
        schema: SchemaRef,
    ) -> Self {
        Self { spool, plan, task, schema, at: 0, file: None }
    }

    /// Files of the statement's scratch.
    fn files(&self) -> SpillManager {
        let metrics = SpillMetrics::new(&ExecutionPlanMetricsSet::new(), 0);
        SpillManager::new(self.task.runtime_env(), metrics, Arc::clone(&self.schema))
    }

    /// The rows that come next, which the source computes if nobody has read them. It is asked
    /// outside of the lock: one who reads while the source answers, which may be the source itself,
    /// waits as for anything else.
    fn more(&self, context: &mut Context<'_>) -> Poll<DfResult<Next>> {
        loop {
            let mut kept = self.spool.kept.lock();
            if self.at < kept.rows {
                return Poll::Ready(kept.from(self.at, &self.files()));
            }
            let mut stream = match &mut kept.source {
                Source::NotBegun => {
                    let stream = self.plan.execute(0, Arc::clone(&self.task))?;
                    let consumer = MemoryConsumer::new("rows of WITH").with_can_spill(true);
                    kept.held = Some(consumer.register(self.task.memory_pool()));
                    stream
                }
                Source::Running(stream) => match stream.take() {
                    Some(stream) => stream,
                    None => {
                        self.spool.waiting.add(context.waker());
                        return Poll::Pending;
                    }
                },
                Source::Ended => return Poll::Ready(Ok(Next::End)),
                Source::Failed(error) => {
                    return Poll::Ready(Err(DataFusionError::Shared(Arc::clone(error))));
                }
            };
            kept.source = Source::Running(None);
            // Before the source is asked: it may be woken while it answers.
            self.spool.waiting.add(context.waker());
            drop(kept);
            let all = waker(Arc::clone(&self.spool.waiting));
            let given = stream.poll_next_unpin(&mut Context::from_waker(&all));
            let mut kept = self.spool.kept.lock();
            kept.source = Source::Running(Some(stream));
            let added = match ready!(given) {
                Some(Ok(batch)) if batch.num_rows() == 0 => Ok(()),
                Some(Ok(batch)) => kept.add(batch, &self.files(), &self.spool.allowance),
                Some(Err(error)) => Err(error),
                None => {
                    kept.source = Source::Ended;
                    Ok(())
                }
            };
            if let Err(error) = added {
                kept.source = Source::Failed(Arc::new(error));
            }
            drop(kept);
            ArcWake::wake_by_ref(&self.spool.waiting);
        }
    }
}

impl Kept {
    /// The rows from that of number `at` on, as far as they come at once.
    fn from(&self, at: usize, files: &SpillManager) -> DfResult<Next> {
        let last = self.segments.partition_point(|segment| segment.from <= at);
        let segment = last.checked_sub(1).and_then(|last| self.segments.get(last));
        let segment = segment.ok_or_else(lost)?;
        match &segment.place {
            Place::File(file) => {
                let stream = files.read_spill_as_stream_unbuffered(Arc::clone(file), None)?;
                Ok(Next::File(stream, at - segment.from))
            }
            Place::Memory(batches) => {
                let next = batches.partition_point(|(first, _)| *first <= at);
                let batch = next.checked_sub(1).and_then(|last| batches.get(last));
                let (first, batch) = batch.ok_or_else(lost)?;
                let over = at - first;
                Ok(Next::Batch(batch.slice(over, batch.num_rows() - over)))
            }
        }
    }

    /// Keeps a batch: in memory, or with all that is there in a file.
    fn add(
        &mut self,
        batch: RecordBatch,
        files: &SpillManager,
        allowance: &Allowance,
    ) -> DfResult<()> {
        let (from, rows) = (self.rows, batch.num_rows());
        let bytes = batch.get_array_memory_size();
        let files_so_far = self.segments.iter().filter(|s| matches!(s.place, Place::File(_)));
        let files_so_far = files_so_far.count();
        let least = LEAST_BYTES.saturating_mul(1 << files_so_far.min(4));
        let mut fits = self.held.as_ref().is_none_or(|held| held.try_grow(bytes).is_ok());
        if !fits && self.over + bytes <= least && allowance.takes(bytes) {
            self.over += bytes;
            fits = true;
        }
        let in_memory = self.segments.pop_if(|last| matches!(last.place, Place::Memory(_)));
        let mut segment = match in_memory {
            Some(segment) => segment,
            None => Segment { from, place: Place::Memory(Vec::new()) },
        };
        if let Place::Memory(batches) = &mut segment.place {
            batches.push((from, batch));
            put_together(batches)?;
            if !fits {
                if allowance.files.fetch_add(1, Relaxed) >= MOST_FILES {
                    return Err(too_many());
                }
                let all: Vec<RecordBatch> = batches.iter().map(|(_, one)| one.clone()).collect();
                if let Some(file) = files.spill_record_batch_and_finish(&all, "rows of WITH")? {
                    segment.place = Place::File(file);
                    allowance.over.fetch_sub(std::mem::take(&mut self.over), Relaxed);
                    if let Some(held) = &self.held {
                        held.free();
                    }
                }
            }
        }
        self.segments.push(segment);
        self.rows += rows;
        Ok(())
    }
}

/// Makes one batch of many small ones at the end: a recursive query gives one for each of its
/// steps.
fn put_together(batches: &mut Vec<(usize, RecordBatch)>) -> DfResult<()> {
    let small = batches.iter().rev().take_while(|(_, batch)| batch.num_rows() < FEW_ROWS).count();
    if small < TOGETHER {
        return Ok(());
    }
    let own = batches.split_off(batches.len() - small);
    let Some((first, one)) = own.first() else { return Ok(()) };
    let whole = concat_batches(&one.schema(), own.iter().map(|(_, batch)| batch))?;
    batches.push((*first, whole));
    Ok(())
}

fn lost() -> DataFusionError {
    DataFusionError::Internal("rows that were kept are gone".to_owned())
}

fn too_many() -> DataFusionError {
    fault::to_datafusion(
        Error::new(
            SqlState::CONFIGURATION_LIMIT_EXCEEDED,
            format!("the rows of WITH queries take more than {MOST_FILES} temporary files"),
        )
        .hint("Give the node more --memory, or write NOT MATERIALIZED where the query may be computed wherever it is named."),
    )
}

impl Stream for Reader {
    type Item = DfResult<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some((stream, over)) = &mut self.file {
                match ready!(stream.poll_next_unpin(context)) {
                    Some(Ok(batch)) => {
                        let skipped = (*over).min(batch.num_rows());
                        *over -= skipped;
                        let rest = batch.slice(skipped, batch.num_rows() - skipped);
                        if rest.num_rows() > 0 {
                            self.at += rest.num_rows();
                            return Poll::Ready(Some(Ok(rest)));
                        }
                    }
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    None => self.file = None,
                }
                continue;
            }
            match ready!(self.more(context)) {
                Ok(Next::Batch(batch)) => {
                    self.at += batch.num_rows();
                    return Poll::Ready(Some(Ok(batch)));
                }
                Ok(Next::File(stream, over)) => self.file = Some((stream, over)),
                Ok(Next::End) => return Poll::Ready(None),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray as _, Int64Array};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};
    use datafusion::execution::memory_pool::GreedyMemoryPool;
    use datafusion::execution::runtime_env::RuntimeEnvBuilder;
    use datafusion::physical_plan::empty::EmptyExec;
    use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
    use futures::{FutureExt as _, TryStreamExt as _};

    use super::*;

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]))
    }

    /// Batches of so many numbers, one behind the other.
    fn batches(number: usize, rows: usize) -> Vec<DfResult<RecordBatch>> {
        let batch = |at: usize| {
            let first = (at * rows) as i64;
            let column = Int64Array::from_iter_values(first..first + rows as i64);
            RecordBatch::try_new(schema(), vec![Arc::new(column)]).map_err(Into::into)
        };
        (0..number).map(batch).collect()
    }

    /// A spool over a stream that runs already.
    fn spool(stream: impl Stream<Item = DfResult<RecordBatch>> + Send + 'static) -> Arc<Spool> {
        let spool = Arc::new(Spool::new(&Arc::default()));
        let stream = Box::pin(RecordBatchStreamAdapter::new(schema(), stream));
        spool.kept.lock().source = Source::Running(Some(stream));
        spool
    }

    fn reader(spool: &Arc<Spool>, memory: usize) -> Reader {
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(GreedyMemoryPool::new(memory)))
            .build_arc()
            .expect("an environment");
        let task = Arc::new(TaskContext::default().with_runtime(runtime));
        let held = MemoryConsumer::new("rows of WITH").register(task.memory_pool());
        spool.kept.lock().held.get_or_insert(held);
        Reader::new(Arc::clone(spool), Arc::new(EmptyExec::new(schema())), task, schema())
    }

    fn numbers(batch: &RecordBatch) -> Vec<i64> {
        batch.column(0).as_primitive::<Int64Type>().values().to_vec()
    }

    async fn rest(reader: Reader) -> Vec<i64> {
        let all: Vec<RecordBatch> = reader.try_collect().await.expect("rows");
        all.iter().flat_map(numbers).collect()
    }

    #[tokio::test]
    async fn readers_get_all_rows_in_order_from_memory_and_from_files() {
        for (number, rows, memory, files) in
            [(1000, 3, 1 << 30, false), (100, 8192, 1000, true), (5000, 1, 1000, false)]
        {
            let spool = spool(futures::stream::iter(batches(number, rows)));
            let (mut first, mut second) = (reader(&spool, memory), reader(&spool, memory));
            let mut alternately = (Vec::new(), Vec::new());
            for at in 0..number / 2 {
                let batch = first.try_next().await.expect("rows").expect("more");
                alternately.0.extend(numbers(&batch));
                if at % 3 == 0 {
                    let batch = second.try_next().await.expect("rows").expect("more");
                    alternately.1.extend(numbers(&batch));
                }
            }
            // One that goes takes nobody along.
            drop(first);
            alternately.1.extend(rest(second).await);
            let whole: Vec<i64> = (0..(number * rows) as i64).collect();
            assert_eq!(alternately.1, whole);
            assert_eq!(rest(reader(&spool, memory)).await, whole, "who comes last");
            assert!(whole.starts_with(&alternately.0));
            let kept = spool.kept.lock();
            let in_files =
                kept.segments.iter().filter(|s| matches!(s.place, Place::File(_))).count();
            assert_eq!(in_files > 0, files);
            // 6.5 MB in files of 1, 2 and more megabytes, not one for each batch that finds no
            // room.
            assert!(in_files < 6, "{in_files}");
            let batches = |segment: &Segment| match &segment.place {
                Place::Memory(batches) => batches.len(),
                Place::File(_) => 0,
            };
            let held: usize = kept.segments.iter().map(batches).sum();
            assert!(held < 200, "small batches are put together: {held}");
        }
    }

    #[tokio::test]
    async fn spools_of_a_statement_share_what_they_may_take_beyond_its_memory() {
        let allowance = Arc::new(Allowance::default());
        let mut spools = Vec::new();
        for _ in 0..40 {
            let spool = Arc::new(Spool::new(&allowance));
            let stream = futures::stream::iter(batches(30, 8192));
            let stream = Box::pin(RecordBatchStreamAdapter::new(schema(), stream));
            spool.kept.lock().source = Source::Running(Some(stream));
            assert_eq!(rest(reader(&spool, 1000)).await.len(), 30 * 8192);
            spools.push(spool);
        }
        let over: usize = spools.iter().map(|spool| spool.kept.lock().over).sum();
        assert_eq!(over, allowance.over.load(Relaxed));
        assert!(over > 0 && over <= MOST_OVER, "{over}");
        assert!(allowance.files.load(Relaxed) >= 40);
        allowance.files.store(MOST_FILES, Relaxed);
        let spool = Arc::new(Spool::new(&allowance));
        let stream = futures::stream::iter(batches(200, 8192));
        let stream = Box::pin(RecordBatchStreamAdapter::new(schema(), stream));
        spool.kept.lock().source = Source::Running(Some(stream));
        let read: DfResult<Vec<RecordBatch>> = reader(&spool, 1000).try_collect().await;
        assert!(read.is_err_and(|error| error.to_string().contains("temporary files")));
    }

    #[tokio::test]
    async fn every_reader_is_told_the_error() {
        let mut all = batches(2, 10);
        all.push(Err(DataFusionError::Execution("no more".to_owned())));
        let spool = spool(futures::stream::iter(all));
        for _ in 0..2 {
            let read: DfResult<Vec<RecordBatch>> = reader(&spool, 1 << 20).try_collect().await;
            assert!(read.is_err_and(|error| error.to_string().contains("no more")));
        }
    }

    struct Counted(AtomicUsize);

    impl ArcWake for Counted {
        fn wake_by_ref(own: &Arc<Self>) {
            own.0.fetch_add(1, Relaxed);
        }
    }

    #[tokio::test]
    async fn who_waits_is_woken_though_another_asked_last_and_is_gone() {
        let (send, receive) = futures::channel::mpsc::unbounded();
        let spool = spool(receive);
        let (mut first, mut second) = (reader(&spool, 1 << 20), reader(&spool, 1 << 20));
        let counted = Arc::new(Counted(AtomicUsize::new(0)));
        let own = waker(Arc::clone(&counted));
        for _ in 0..2 {
            assert!(first.poll_next_unpin(&mut Context::from_waker(&own)).is_pending());
        }
        assert!(second.next().now_or_never().is_none());
        drop(second);
        for batch in batches(1, 5) {
            send.unbounded_send(batch).expect("a receiver");
        }
        assert_eq!(counted.0.load(Relaxed), 1);
        let batch = first.next().now_or_never().flatten().expect("rows").expect("rows");
        assert_eq!(numbers(&batch), [0, 1, 2, 3, 4]);
    }
}
