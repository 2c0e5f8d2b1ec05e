//! What one medium lost is answered from the other; every wait has a bound of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use telesto_bucket::{Bucket, Cause};
use telesto_common::Lsn;
use telesto_log::disk::{Disk, DiskFile, DiskLock, SimDisk};
use telesto_log::{Error, LogKind, VirtualLog};
use tokio::sync::Notify;

use crate::support::*;

#[tokio::test]
async fn entry_of_a_closed_loglet_trimmed_meanwhile_is_trimmed_and_not_damaged() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut options = quorum_options(1, 1, &SimDisk::new());
    options.retention = Duration::from_secs(100);
    let mut process = create(&bucket, &env, options).await;
    for n in 0..4 {
        let lsn = process.say(&n.to_string()).await.unwrap();
        process.log.archive_through(lsn, soon(&env)).await.unwrap();
    }
    process.log.switch(LogKind::Bucket, soon(&env)).await.unwrap();
    process.say("in the bucket").await.unwrap();
    let slow = open(&MemBucket::new(&objects), &env, crate::support::options(2, 1)).await.unwrap();
    objects.advance(Duration::from_secs(101));
    process.say("young").await.unwrap();
    let trimmed = process.log.trim(Lsn(6), soon(&env)).await.unwrap();
    assert_eq!(trimmed.start, Lsn(6));
    for from in [1, 3, 5] {
        let read = slow.log.read(Lsn(from), 10_000, Cause::Read, soon(&env)).await;
        assert!(matches!(read, Err(Error::Trimmed { start: Lsn(6), .. })), "{from}: {read:?}");
    }
}

/// Seeds 773 and 1188 of the simulation: the archive was listed before the new owner shipped the
/// entry, and the chain read again after it.
#[tokio::test]
async fn entry_archived_after_the_archive_was_listed_is_found_and_not_damaged() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let mut process = create(&bucket, &env, quorum_options(1, 1, &SimDisk::new())).await;
    process.say("one").await.unwrap();
    process.log.switch(LogKind::Bucket, soon(&env)).await.unwrap();
    let others = MemBucket::new(&objects);
    let other = open(&others, &env, crate::support::options(2, 1)).await.unwrap();
    let listed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&listed);
    others.distort_lists(move |found| {
        let is_old = found.iter().any(|object| object.key.contains("/archive/"))
            && count.fetch_add(1, Ordering::SeqCst) < 2;
        found.retain(|object| !is_old || !object.key.contains("/archive/"));
    });
    let read = other.log.read(Lsn(1), 10_000, Cause::Read, soon(&env)).await.unwrap();
    assert_eq!(read.entries.iter().filter_map(said).next().as_deref(), Some("one"));
    assert_eq!(listed.load(Ordering::SeqCst), 3, "two old listings, then one that has it");
}

#[tokio::test]
async fn entry_whose_local_sector_is_damaged_is_read_from_the_archive() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let disk = SimDisk::new();
    let mut options = quorum_options(1, 1, &disk);
    options.buffer_bytes = 1;
    let mut process = create(&bucket, &env, options).await;
    for n in 0..5 {
        process.say(&n.to_string()).await.unwrap();
    }
    let path = disk.paths().remove(0);
    let whole = disk.contents(&path).unwrap();
    let mut damaged = whole.clone();
    for byte in damaged.iter_mut().skip(512).step_by(64) {
        *byte ^= 1;
    }
    disk.overwrite(&path, damaged.clone());
    let read = process.log.read(Lsn(1), 10_000, Cause::Read, soon(&env)).await;
    assert!(matches!(read, Err(Error::Corrupt { .. })), "it is nowhere else: {read:?}");
    disk.overwrite(&path, whole);
    process.log.archive_through(Lsn(4), soon(&env)).await.unwrap();
    disk.overwrite(&path, damaged);
    let read = process.log.read(Lsn(1), 10_000, Cause::Read, soon(&env)).await.unwrap();
    let entries: Vec<_> = read.entries.iter().filter_map(said).collect();
    assert_eq!(entries, ["0", "1", "2", "3", "4"]);
}

/// A disk that stops answering, also to those who only list or lock.
#[derive(Debug)]
struct Hung {
    disk: Arc<SimDisk>,
    hangs: AtomicBool,
}

impl Hung {
    async fn answer(&self) {
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Disk for Hung {
    fn location(&self) -> String {
        self.disk.location()
    }
    async fn lock(&self, name: &str) -> telesto_log::Result<Box<dyn DiskLock>> {
        self.answer().await;
        self.disk.lock(name).await
    }
    async fn list(&self, directory: &str) -> telesto_log::Result<Vec<String>> {
        self.answer().await;
        self.disk.list(directory).await
    }
    async fn create(&self, path: &str) -> telesto_log::Result<Arc<dyn DiskFile>> {
        self.answer().await;
        self.disk.create(path).await
    }
    async fn open(&self, path: &str) -> telesto_log::Result<Arc<dyn DiskFile>> {
        self.answer().await;
        self.disk.open(path).await
    }
    async fn rename(&self, from: &str, to: &str) -> telesto_log::Result<()> {
        self.answer().await;
        self.disk.rename(from, to).await
    }
    async fn remove(&self, path: &str) -> telesto_log::Result<()> {
        self.answer().await;
        self.disk.remove(path).await
    }
}

/// Fails the test when `call` has no bound of its own.
async fn bounded<T>(what: &str, call: impl Future<Output = T>) -> T {
    let patience = Duration::from_secs(60);
    tokio::time::timeout(patience, call).await.unwrap_or_else(|_| panic!("{what} waits for ever"))
}

#[tokio::test]
async fn local_disk_that_hangs_ends_every_call_by_its_deadline() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let disk = Arc::new(Hung { disk: SimDisk::new(), hangs: AtomicBool::new(false) });
    let mut options = quorum_options(1, 1, &SimDisk::new());
    options.disk = Some(Arc::clone(&disk) as Arc<dyn Disk>);
    options.timeout = Duration::from_millis(50);
    let mut process = create(&bucket, &env, options.clone()).await;
    process.say("kept").await.unwrap();
    drop(process);
    disk.hangs.store(true, Ordering::SeqCst);
    let dynamic = || Arc::clone(&bucket) as Arc<dyn Bucket>;
    let opening = VirtualLog::open(dynamic(), env.clone(), SHARD, options.clone());
    let error = bounded("open", opening).await.unwrap_err();
    assert!(matches!(error, Error::DeadlinePassed { .. }), "{error}");
    let other = Arc::new(Objects::default());
    let fresh = MemBucket::new(&other) as Arc<dyn Bucket>;
    let creating = VirtualLog::create(fresh, env.clone(), SHARD, options.clone());
    let error = bounded("create", creating).await.unwrap_err();
    assert!(matches!(error, Error::DeadlinePassed { .. }), "{error}");
    let mut shared = options.clone();
    shared.kind = LogKind::Bucket;
    let third = Arc::new(Objects::default());
    let process = create(&MemBucket::new(&third), &env, shared).await;
    let by = env.deadline(Duration::from_millis(50));
    let error = bounded("switch", process.log.switch(LogKind::Quorum, by)).await.unwrap_err();
    assert!(matches!(error, Error::DeadlinePassed { .. }), "{error}");
    bounded("close", process.log.close(env.deadline(Duration::from_millis(50)))).await.unwrap();
    // When it answers again, everything is as it was.
    disk.hangs.store(false, Ordering::SeqCst);
    let mut process = open(&bucket, &env, options).await.unwrap();
    process.catch_up().await.unwrap();
    assert_eq!(process.said(), ["kept"]);
}

#[tokio::test]
async fn append_that_must_recover_waits_for_no_listing_of_a_trim() {
    let objects = Arc::new(Objects::default());
    let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
    let disk = SimDisk::new();
    let mut process = create(&bucket, &env, quorum_options(1, 1, &disk)).await;
    process.say("one").await.unwrap();
    let (gate, lists) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let (held, seen) = (Arc::clone(&gate), Arc::clone(&lists));
    bucket.hook(move |class, key| {
        if class == "list" && key.contains("/log") {
            seen.fetch_add(1, Ordering::SeqCst);
            return Fault::Delay(Arc::clone(&held));
        }
        Fault::None
    });
    let (log, by) = (process.log.clone(), soon(&env));
    let trim = tokio::spawn(async move { log.trim(Lsn(2), by).await });
    while lists.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    disk.tear_next();
    process.try_say("torn").await.unwrap_err();
    bounded("recovering", process.say("two")).await.unwrap();
    assert!(!trim.is_finished());
    gate.notify_one();
    trim.await.unwrap().unwrap();
    assert_eq!(process.said(), ["one", "two"]);
}
