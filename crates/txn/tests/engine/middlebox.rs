//! A box between process and bucket that repeats conditional puts, so that the store's own "exists"
//! comes back for a put that took effect.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use telesto_txn::{Database as _, Level, TxnOptions};

use crate::harness::{Process, World, bytes, get, put, scan};

/// Sends the next `repeats` conditional puts of keys that contain `key` twice, and answers with the
/// second reply.
#[derive(Debug)]
struct Repeating {
    inner: Arc<dyn ObjectStore>,
    key: &'static str,
    repeats: AtomicU32,
}

impl fmt::Display for Repeating {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} behind a box that repeats", self.inner)
    }
}

#[async_trait]
impl ObjectStore for Repeating {
    async fn put_opts(&self, at: &Path, body: PutPayload, opts: PutOptions) -> Result<PutResult> {
        let due = opts.mode == PutMode::Create && at.as_ref().contains(self.key);
        let less = |left: u32| left.checked_sub(1);
        let all = Ordering::SeqCst;
        if due && self.repeats.fetch_update(all, all, less).is_ok() {
            let _ = self.inner.put_opts(at, body.clone(), opts.clone()).await;
        }
        self.inner.put_opts(at, body, opts).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, opts).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

async fn behind_the_box(world: &World, key: &'static str) -> (Process, Arc<Repeating>) {
    let inner: Arc<dyn ObjectStore> = Arc::new(world.store.clone());
    let repeating = Arc::new(Repeating { inner, key, repeats: AtomicU32::new(0) });
    let store = Arc::clone(&repeating) as Arc<dyn ObjectStore>;
    let small = |options: &mut telesto_txn::EngineOptions| options.write_set.inline_bytes = 2000;
    let process = world.try_start_over(store, 0, None, small).await.expect("opens");
    (process, repeating)
}

/// Adds one as the server does: runs the transaction again when it is told of a conflict.
async fn increment(process: &Process) {
    loop {
        let txn = process.begin(Level::Serializable).await;
        let before: u64 = get(&txn, "n").await.map_or(0, |text| text.parse().expect("a number"));
        put(&txn, "n", &(before + 1).to_string()).await;
        match txn.commit().await {
            Ok(_) => return,
            Err(telesto_txn::Error::Conflict { .. }) => {}
            Err(other) => panic!("unexpected: {other}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn commit_whose_own_put_is_answered_exists_is_acknowledged_and_not_run_again() {
    let world = World::new(201);
    let (process, repeating) = behind_the_box(&world, "/log/").await;
    process.put("warm", "up").await;
    repeating.repeats.store(1, Ordering::SeqCst);
    let txn = process.begin(Level::Serializable).await;
    assert_eq!(get(&txn, "n").await, None);
    put(&txn, "n", "1").await;
    let committed = txn.commit().await.expect("it is in the log");
    let outcome = process.engine.outcome(txn.id()).await.expect("answers");
    assert_eq!(outcome, telesto_txn::Outcome::Committed(committed.timestamp));
    assert_eq!(committed.lsn, process.engine.applied().0);
    repeating.repeats.store(u32::MAX, Ordering::SeqCst);
    for _ in 0..20 {
        increment(&process).await;
    }
    assert_eq!(process.read("n").await.as_deref(), Some("21"));
}

#[tokio::test(start_paused = true)]
async fn writers_behind_a_box_that_repeats_count_each_increment_once() {
    let world = World::new(202);
    let mut writers = Vec::new();
    for _ in 0..3 {
        let (process, repeating) = behind_the_box(&world, "/log/").await;
        repeating.repeats.store(u32::MAX, Ordering::SeqCst);
        writers.push(async move {
            for _ in 0..30 {
                increment(&process).await;
            }
        });
    }
    futures::future::join_all(writers).await;
    let fresh = world.start().await;
    assert_eq!(fresh.read("n").await.as_deref(), Some("90"));
}

#[tokio::test(start_paused = true)]
async fn large_write_set_whose_parts_are_answered_exists_commits() {
    let world = World::new(203);
    let (process, repeating) = behind_the_box(&world, "/parts/").await;
    repeating.repeats.store(u32::MAX, Ordering::SeqCst);
    let txn = process.begin(Level::Serializable).await;
    for n in 0..100 {
        txn.put(bytes(&format!("row-{n:03}")), bytes(&"v".repeat(100))).await.expect("puts");
    }
    txn.commit().await.expect("its parts are there");
    let reader = process.engine.begin(TxnOptions::default()).await.expect("begins");
    assert_eq!(scan(&reader, "row-", "row.").await.len(), 100);
}
