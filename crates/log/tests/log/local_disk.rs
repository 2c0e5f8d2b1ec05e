//! What a local disk may do to a quorum log: fill up, fail a sync and lie about it, be put back to
//! an older state. The bucket has the rest.

use std::sync::Arc;
use std::time::Duration;

use telesto_common::{Lsn, WriterToken};
use telesto_log::disk::{Disk, DiskFile, DiskLock, SimDisk};
use telesto_log::server::{
    CountedLife, Counting, LocalLogServer, LogServer as _, LogletKey, Reply, Request,
};
use telesto_log::{DiskFault, Error, LogOptions};

use crate::support::*;

/// A quorum log whose segments hold a few entries each, and of which next to nothing is in memory.
fn small(life: u64, disk: &Arc<SimDisk>) -> LogOptions {
    let mut options = quorum_options(1, life, disk);
    options.segment_bytes = 4096;
    options.buffer_bytes = 1;
    options
}

struct Bench {
    objects: Arc<Objects>,
    bucket: Arc<MemBucket>,
    env: telesto_common::Env,
    disk: Arc<SimDisk>,
}

impl Bench {
    fn new() -> Self {
        let objects = Arc::new(Objects::default());
        let (bucket, env) = (MemBucket::new(&objects), telesto_runtime::env());
        Self { objects, bucket, env, disk: SimDisk::new() }
    }

    /// One whose log draws the same ids as that of any other one made so.
    fn alike() -> Self {
        let mut bench = Self::new();
        bench.env.random = Arc::new(Seeded::new(1));
        bench
    }

    async fn create(&self) -> Process {
        create(&self.bucket, &self.env, small(1, &self.disk)).await
    }

    async fn open(&self, life: u64) -> telesto_log::Result<Process> {
        open(&self.bucket, &self.env, small(life, &self.disk)).await
    }

    fn chain_versions(&self) -> usize {
        self.objects.keys("shards/1/chain/").len()
    }
}

fn segments(disk: &SimDisk) -> Vec<String> {
    disk.paths().into_iter().filter(|path| path.ends_with(".log")).collect()
}

/// Says numbers until the first segment is full; gives how many were said.
async fn fill_a_segment(process: &mut Process) -> u64 {
    let mut said = 0;
    for n in 0..7 {
        process.say(&format!("{n}{}", "x".repeat(200))).await.expect("said");
        said += 1;
    }
    said
}

#[tokio::test]
async fn disk_that_is_full_at_a_roll_over_goes_on_when_there_is_space() {
    let bench = Bench::new();
    let mut process = bench.create().await;
    let said = fill_a_segment(&mut process).await;
    assert_eq!(segments(&bench.disk).len(), 1);
    // The header of the next segment fits, and the seal; the batch does not, nor a new loglet.
    bench.disk.limit_space(Some(1024));
    let error = process.try_say(&"y".repeat(700)).await.unwrap_err();
    assert!(matches!(error, Error::Indeterminate { .. }), "{error}");
    assert_eq!(segments(&bench.disk).len(), 2, "the roll-over had begun");
    let error = process.try_say("refused").await.unwrap_err();
    assert!(matches!(error, Error::LocalDisk { fault: DiskFault::Full, .. }), "{error}");
    process.log.archive_through(Lsn(said), soon(&bench.env)).await.unwrap();
    bench.disk.limit_space(None);
    process.say("goes on").await.unwrap();
    process.catch_up().await.unwrap();
    assert_eq!(process.said().len() as u64, said + 1);
    drop(process);
    let mut process = bench.open(2).await.unwrap();
    process.catch_up().await.unwrap();
    assert_eq!(process.said().len() as u64, said + 1);
    assert_eq!(process.said().last().unwrap(), "goes on");
}

#[tokio::test]
async fn directory_whose_last_entries_only_the_archive_has_is_taken_over() {
    let bench = Bench::new();
    let mut process = bench.create().await;
    let said = fill_a_segment(&mut process).await;
    bench.disk.limit_space(Some(512));
    process.try_say(&"y".repeat(700)).await.unwrap_err();
    process.log.archive_through(Lsn(said), soon(&bench.env)).await.unwrap();
    bench.disk.limit_space(None);
    drop(process);
    // What versions before did: released, although nothing follows in the next segment.
    let paths = segments(&bench.disk);
    assert_eq!(paths.len(), 2);
    let disk = Arc::clone(&bench.disk) as Arc<dyn telesto_log::disk::Disk>;
    disk.remove(&paths[0]).await.unwrap();
    // Without the archive it is damage, and says so.
    let [key] = &bench.objects.keys("shards/1/archive/")[..] else { panic!("one object") };
    let body = bench.objects.body(key).unwrap();
    bench.objects.remove(key);
    let versions = bench.chain_versions();
    let error = bench.open(2).await.err().unwrap();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert_eq!(bench.chain_versions(), versions);
    bench.objects.replace(key, body);
    let mut process = bench.open(3).await.unwrap();
    process.say("goes on").await.unwrap();
    process.catch_up().await.unwrap();
    assert_eq!(process.said().len() as u64, said + 1);
}

#[tokio::test]
async fn directory_put_back_to_an_older_state_goes_on_from_the_archive() {
    for archived in [6, 9] {
        let bench = Bench::new();
        let mut process = bench.create().await;
        for n in 1..=4 {
            process.say(&n.to_string()).await.unwrap();
        }
        process.log.archive_through(Lsn(2), soon(&bench.env)).await.unwrap();
        let older = bench.disk.image();
        for n in 5..=archived {
            process.say(&n.to_string()).await.unwrap();
            if n == 6 {
                process.log.archive_through(Lsn(6), soon(&bench.env)).await.unwrap();
            }
        }
        process.log.archive_through(Lsn(archived), soon(&bench.env)).await.unwrap();
        let newest = process.hash;
        drop(process);
        bench.disk.restore(&older);
        for life in 2..4 {
            let mut process = bench.open(life).await.unwrap();
            process.catch_up().await.unwrap();
            let expected: Vec<String> = (1..=archived).map(|n| n.to_string()).collect();
            assert_eq!(process.said()[..expected.len()], expected, "nothing acknowledged is lost");
            if life == 2 {
                assert_eq!(process.hash, newest);
                process.say("goes on").await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn directory_older_than_the_trim_point_goes_on_from_there() {
    let bench = Bench::new();
    let mut options = small(1, &bench.disk);
    options.retention = Duration::from_secs(100);
    let mut process = create(&bench.bucket, &bench.env, options).await;
    for n in 1..=3 {
        process.say(&n.to_string()).await.unwrap();
    }
    let older = bench.disk.image();
    for n in 4..=8 {
        process.say(&n.to_string()).await.unwrap();
    }
    process.log.archive_through(Lsn(8), soon(&bench.env)).await.unwrap();
    bench.objects.advance(Duration::from_secs(101));
    let trimmed = process.log.trim(Lsn(9), soon(&bench.env)).await.unwrap();
    assert_eq!(trimmed.start, Lsn(9));
    drop(process);
    bench.disk.restore(&older);
    let mut process = bench.open(2).await.unwrap();
    assert_eq!(process.say("goes on").await.unwrap(), Lsn(9));
}

#[tokio::test]
async fn directory_that_ends_before_what_the_checkpoint_holds_is_refused_and_nothing_is_changed() {
    let bench = Bench::new();
    let mut process = bench.create().await;
    for n in 1..=3 {
        process.say(&n.to_string()).await.unwrap();
    }
    let older = bench.disk.image();
    for n in 4..=8 {
        process.say(&n.to_string()).await.unwrap();
    }
    drop(process);
    let newer = bench.disk.image();
    bench.disk.restore(&older);
    let versions = bench.chain_versions();
    let mut options = small(2, &bench.disk);
    options.known_committed = std::sync::Arc::new(Lsn(7));
    let error = open(&bench.bucket, &bench.env, options.clone()).await.err().unwrap();
    assert!(matches!(error, Error::Corrupt { lsn: Some(Lsn(4)), .. }), "{error}");
    assert!(error.to_string().contains("older copy"), "{error}");
    assert_eq!(bench.chain_versions(), versions);
    bench.disk.restore(&newer);
    let mut process = open(&bench.bucket, &bench.env, options).await.unwrap();
    process.catch_up().await.unwrap();
    assert_eq!(process.said().len(), 8);
}

#[tokio::test]
async fn archive_with_a_hole_behind_an_older_directory_is_damage() {
    let bench = Bench::new();
    let mut process = bench.create().await;
    process.say("1").await.unwrap();
    let older = bench.disk.image();
    for n in 2..=4 {
        process.say(&n.to_string()).await.unwrap();
        process.log.archive_through(Lsn(n), soon(&bench.env)).await.unwrap();
    }
    drop(process);
    bench.disk.restore(&older);
    let lost = bench.objects.keys("shards/1/archive/").remove(1);
    let body = bench.objects.body(&lost).unwrap();
    bench.objects.remove(&lost);
    let versions = bench.chain_versions();
    let error = bench.open(2).await.err().unwrap();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    assert_eq!(bench.chain_versions(), versions);
    bench.objects.replace(&lost, body);
    let mut process = bench.open(3).await.unwrap();
    process.catch_up().await.unwrap();
    assert_eq!(process.said(), ["1", "2", "3", "4"]);
}

#[tokio::test]
async fn archive_object_of_the_same_name_counts_only_with_the_same_entries() {
    let bench = Bench::alike();
    let mut process = bench.create().await;
    process.say("1").await.unwrap();
    process.say("2").await.unwrap();
    process.log.archive_through(Lsn(2), soon(&bench.env)).await.unwrap();
    let [key] = &bench.objects.keys("shards/1/archive/")[..] else { panic!("one object") };
    let whole = bench.objects.body(key).unwrap();
    drop(process);

    // The same name with other entries: made by another log of another bucket.
    let other = Bench::alike();
    let mut stranger = other.create().await;
    stranger.say("1").await.unwrap();
    stranger.say("other").await.unwrap();
    stranger.log.archive_through(Lsn(2), soon(&other.env)).await.unwrap();
    let mut process = Bench::alike();
    process.objects.replace(key, other.objects.body(key).unwrap());
    let mut victim = process.create().await;
    victim.say("1").await.unwrap();
    victim.say("2").await.unwrap();
    // It is listed at the first look; shipping sees it only when it was put after that.
    process.objects.remove(key);
    assert_eq!(victim.log.archived(soon(&process.env)).await.unwrap(), Lsn(1));
    process.objects.replace(key, other.objects.body(key).unwrap());
    let error = victim.log.archive_through(Lsn(2), soon(&process.env)).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }) && error.to_string().contains(key), "{error}");
    assert_eq!(victim.log.archived(soon(&process.env)).await.unwrap(), Lsn(1), "not acknowledged");
    victim.catch_up().await.unwrap();
    assert_eq!(victim.said(), ["1", "2"], "the local log was kept");

    // The same entries, shipped by this log before the reply was lost.
    process = bench;
    process.objects.remove(key);
    let mut again = process.open(2).await.unwrap();
    assert_eq!(again.log.archived(soon(&process.env)).await.unwrap(), Lsn(1));
    process.objects.replace(key, whole);
    again.log.archive_through(Lsn(2), soon(&process.env)).await.unwrap();
    again.catch_up().await.unwrap();
    assert_eq!(again.said(), ["1", "2"]);
}

/// The connection over which an entry came breaks while it is written: the next one finds a server
/// that goes on.
#[tokio::test]
async fn store_that_nobody_waits_for_any_more_is_written_and_the_server_goes_on() {
    let (env, disk) = (telesto_runtime::env(), SimDisk::new());
    let key = LogletKey { shard: SHARD, loglet: 1, token: WriterToken(5) };
    let opening = LocalLogServer::open_shared(
        Arc::clone(&disk) as _,
        env.clone(),
        SHARD,
        1 << 20,
        telesto_common::Incarnation(1),
        None,
    );
    let server = opening.await.unwrap();
    server.call(Request::Create { key, start: Lsn(1), server: None }, soon(&env)).await.unwrap();
    let store = |first| {
        let entries = vec![bytes::Bytes::from_static(b"entry")];
        server.call(
            Request::Store { key, first: Lsn(first), entries, repair: false, terms: None },
            soon(&env),
        )
    };
    disk.hang();
    let given_up = env.within_timeout(std::time::Duration::from_millis(50), "a store", store(1));
    assert!(given_up.await.is_err());
    disk.resume();
    assert_eq!(store(2).await.unwrap(), Reply::Stored { next: Lsn(3), leased: false });
}

/// The chain of a bucket that was put back to an older copy gives numbers again that the directory
/// remembers as ended.
#[tokio::test]
async fn directory_beside_a_bucket_that_was_put_back_begins_loglets_again_when_it_is_told_to() {
    let (env, disk) = (telesto_runtime::env(), SimDisk::new());
    let key = |loglet, token| LogletKey { shard: SHARD, loglet, token: WriterToken(token) };
    let server = |life| {
        let (disk, life) = (Arc::clone(&disk) as _, telesto_common::Incarnation(life));
        LocalLogServer::open_shared(disk, env.clone(), SHARD, 1 << 20, life, None)
    };
    let create = |key| Request::Create { key, start: Lsn(1), server: None };
    let before = server(1).await.unwrap();
    assert_eq!(before.call(create(key(7, 1)), soon(&env)).await.unwrap(), Reply::Done);
    let ended = Request::Remove { key: key(7, 1), over: true };
    before.call(ended, soon(&env)).await.unwrap();
    let again = before.call(create(key(6, 2)), soon(&env)).await.unwrap();
    assert!(matches!(again, Reply::Refused { sealed: true, .. }), "{again:?}");
    let in_use = LocalLogServer::forget_ended(&*disk, SHARD).await;
    assert!(matches!(in_use, Err(Error::LocalDisk { .. })), "{in_use:?}");
    drop(before);
    LocalLogServer::forget_ended(&*disk, SHARD).await.unwrap();
    let after = server(2).await.unwrap();
    assert_eq!(after.call(create(key(6, 2)), soon(&env)).await.unwrap(), Reply::Done);
}

/// A node that leaves is told of what was begun on it, and nothing is begun on it afterwards, until
/// it stays.
#[tokio::test]
async fn server_of_a_node_that_leaves_begins_no_loglet_and_tells_the_last_one() {
    let (env, disk) = (telesto_runtime::env(), SimDisk::new());
    let server = LocalLogServer::open(Arc::clone(&disk) as _, env.clone(), SHARD, 1 << 20).await;
    let server = server.unwrap();
    let attempt = |loglet, token| LogletKey { shard: SHARD, loglet, token: WriterToken(token) };
    let key = |loglet| attempt(loglet, 5);
    let make = |key| server.call(Request::Create { key, start: Lsn(1), server: None }, soon(&env));
    let create = |loglet| make(key(loglet));
    assert_eq!(server.close(false), None);
    // Made several times, for a race: as long as one of them is there, the chain may name it.
    for token in [3, 9] {
        assert_eq!(make(attempt(6, token)).await.unwrap(), Reply::Done);
    }
    let lost = Request::Remove { key: attempt(6, 9), over: false };
    server.call(lost, soon(&env)).await.unwrap();
    assert_eq!(server.close(false), Some(6));
    assert_eq!(create(7).await.unwrap(), Reply::Done);
    assert_eq!(server.close(true), Some(7));
    assert!(matches!(create(8).await.unwrap(), Reply::Refused { .. }));
    let unused = Request::Remove { key: key(7), over: false };
    server.call(unused, soon(&env)).await.unwrap();
    assert_eq!(server.close(false), None);
    assert_eq!(create(8).await.unwrap(), Reply::Done);
    assert_eq!(server.close(false), Some(8));
}

/// A disk that takes its time until a new name is durable.
#[derive(Debug)]
struct SlowNames {
    disk: Arc<SimDisk>,
    removed: parking_lot::Mutex<Vec<String>>,
}

#[async_trait::async_trait]
impl Disk for SlowNames {
    fn location(&self) -> String {
        self.disk.location()
    }

    async fn lock(&self, name: &str) -> telesto_log::Result<Box<dyn DiskLock>> {
        self.disk.lock(name).await
    }

    async fn list(&self, directory: &str) -> telesto_log::Result<Vec<String>> {
        self.disk.list(directory).await
    }

    async fn create(&self, path: &str) -> telesto_log::Result<Arc<dyn DiskFile>> {
        let file = self.disk.create(path).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
        Ok(file)
    }

    async fn open(&self, path: &str) -> telesto_log::Result<Arc<dyn DiskFile>> {
        self.disk.open(path).await
    }

    async fn rename(&self, from: &str, to: &str) -> telesto_log::Result<()> {
        self.disk.rename(from, to).await
    }

    async fn remove(&self, path: &str) -> telesto_log::Result<()> {
        self.removed.lock().push(path.to_owned());
        self.disk.remove(path).await
    }
}

/// Whoever asks for a loglet while it is being made waits for it, also when nobody waits for the
/// making any more: its files are not those of one that was never finished.
#[tokio::test]
async fn loglet_that_is_being_made_is_not_taken_for_one_that_was_never_finished() {
    for patience in [Duration::from_secs(30), Duration::from_millis(50)] {
        let env = telesto_runtime::env();
        let disk = Arc::new(SlowNames { disk: SimDisk::new(), removed: Default::default() });
        let opened = LocalLogServer::open(Arc::clone(&disk) as _, env.clone(), SHARD, 1 << 20);
        let server = opened.await.unwrap();
        let key = LogletKey { shard: SHARD, loglet: 1, token: WriterToken(5) };
        let create = server.call(Request::Create { key, start: Lsn(1), server: None }, soon(&env));
        let making = tokio::time::timeout(patience, create);
        let asking = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            server.call(Request::Tail { key }, soon(&env)).await.unwrap()
        };
        let (_, tail) = futures::join!(making, asking);
        assert!(matches!(tail, Reply::Tail { .. }), "{tail:?}");
        assert_eq!(*disk.removed.lock(), Vec::<String>::new());
        let entries = vec![bytes::Bytes::from_static(b"entry")];
        let store = Request::Store { key, first: Lsn(1), entries, repair: false, terms: None };
        assert!(matches!(server.call(store, soon(&env)).await.unwrap(), Reply::Stored { .. }));
        drop(server);
        let again = LocalLogServer::open(Arc::clone(&disk) as _, env.clone(), SHARD, 1 << 20);
        let tail = again.await.unwrap().call(Request::Tail { key }, soon(&env)).await.unwrap();
        assert!(matches!(tail, Reply::Tail { next: Lsn(2), .. }), "{tail:?}");
    }
}

#[tokio::test]
async fn refusal_by_a_server_whose_write_fails_does_not_call_the_write_stored() {
    let (env, disk) = (telesto_runtime::env(), SimDisk::new());
    let key = LogletKey { shard: SHARD, loglet: 1, token: WriterToken(5) };
    let server = LocalLogServer::open(Arc::clone(&disk) as _, env.clone(), SHARD, 1 << 20).await;
    let server = server.unwrap();
    server.call(Request::Create { key, start: Lsn(1), server: None }, soon(&env)).await.unwrap();
    let store = |first| {
        let entries = vec![bytes::Bytes::from_static(b"entry")];
        server.call(
            Request::Store { key, first: Lsn(first), entries, repair: false, terms: None },
            soon(&env),
        )
    };
    // The first write is under way; the second and its repetition wait for it together.
    disk.limit_space(Some(512));
    disk.hang();
    let later = async {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        futures::join!(store(2), store(2))
    };
    let all = async { futures::join!(store(1), later) };
    let resume = async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        disk.resume();
    };
    let ((first, (second, repeated)), ()) = futures::join!(all, resume);
    assert_eq!(first.unwrap(), Reply::Stored { next: Lsn(2), leased: false });
    assert!(second.is_err());
    if let Ok(Reply::Refused { next, .. }) = repeated {
        assert_eq!(next, Lsn(2), "entry 2 is not on disk");
    }
    let tail = server.call(Request::Tail { key }, soon(&env)).await.unwrap();
    assert!(matches!(tail, Reply::Tail { next: Lsn(2), .. }), "{tail:?}");
}

#[tokio::test]
async fn loglet_that_was_repaired_after_its_seal_opens_again_and_is_sealed_still() {
    let (env, disk) = (telesto_runtime::env(), SimDisk::new());
    let key = LogletKey { shard: SHARD, loglet: 1, token: WriterToken(5) };
    // Each entry fills a segment.
    let open = || LocalLogServer::open(Arc::clone(&disk) as _, env.clone(), SHARD, 512);
    let server = open().await.unwrap();
    server.call(Request::Create { key, start: Lsn(1), server: None }, soon(&env)).await.unwrap();
    for (first, repair) in [(1, false), (2, false), (3, true), (4, true)] {
        if first == 3 {
            server.call(Request::Seal { key, holder: None }, soon(&env)).await.unwrap();
        }
        let entries = vec![bytes::Bytes::from(vec![7; 600])];
        let store = Request::Store { key, first: Lsn(first), entries, repair, terms: None };
        let stored = server.call(store, soon(&env)).await.unwrap();
        assert_eq!(stored, Reply::Stored { next: Lsn(first + 1), leased: false });
    }
    drop(server);
    let server = open().await.unwrap();
    let tail = server.call(Request::Tail { key }, soon(&env)).await.unwrap();
    assert!(matches!(tail, Reply::Tail { next: Lsn(5), sealed: true, .. }), "{tail:?}");
    let entries = vec![bytes::Bytes::from_static(b"late")];
    let store = Request::Store { key, first: Lsn(5), entries, repair: false, terms: None };
    let refused = server.call(store, soon(&env)).await.unwrap();
    assert_eq!(refused, Reply::Refused { next: Lsn(5), sealed: true });
}

#[tokio::test]
async fn write_whose_sync_failed_is_on_the_platter_before_the_next_life_calls_it_committed() {
    for sealed in [false, true] {
        let bench = Bench::new();
        let random = Seeded::new(1);
        let mut process = bench.create().await;
        process.say("one").await.unwrap();
        bench.disk.fail_next_sync();
        let long = "two".repeat(4000);
        let error = process.try_say(&long).await.unwrap_err();
        assert!(matches!(error, Error::Indeterminate { .. }), "{error}");
        // The process dies, the machine goes on: the page cache has what the platter lacks.
        drop(process);
        let mut process = bench.open(2).await.unwrap();
        process.catch_up().await.unwrap();
        assert_eq!(process.said(), ["one", &long], "it is there, so it may have been committed");
        if sealed {
            process.say("three").await.unwrap();
        }
        // Now the power goes.
        bench.disk.crash(&random);
        drop(process);
        let mut process = bench.open(3).await.unwrap();
        process.catch_up().await.unwrap();
        assert_eq!(process.said()[..2], ["one", &long], "it was told to be committed");
    }
}

/// Opens a directory for a life, as a bucket that counts `last` has it do; what the server is, and
/// how the bucket is to count it.
async fn counted_life(
    disk: &Arc<SimDisk>,
    life: u64,
    last: Option<CountedLife>,
) -> (telesto_common::Incarnation, Option<CountedLife>) {
    let env = telesto_runtime::env();
    let counting = Some(Counting { last, mark: 100 + life });
    let opening = LocalLogServer::open_shared(
        Arc::clone(disk) as _,
        env,
        SHARD,
        1 << 20,
        telesto_common::Incarnation(life),
        counting,
    );
    let server = opening.await.expect("it opens");
    (server.incarnation().await, server.counted_life().await)
}

/// A bucket that was put back knows an earlier life of the directory, which is at least as new as
/// that: it is believed, whatever was refused on account of the bucket. A directory that was put
/// back does not know the last life.
#[tokio::test]
async fn directory_that_knows_the_life_counted_last_is_believed_and_an_older_one_is_not() {
    let disk = SimDisk::new();
    let (first, mut last) = counted_life(&disk, 1, None).await;
    let (mut lives, mut image) = (Vec::new(), None);
    for life in 2..=5 {
        lives.push(last);
        if life == 4 {
            image = Some(disk.image());
        }
        let (server, counted) = counted_life(&disk, life, last).await;
        assert_eq!(server, first, "life {life}");
        last = counted;
    }
    let (server, _) = counted_life(&disk, 6, lives[0]).await;
    assert_eq!(server, first, "the bucket is four lives older");
    let (server, _) = counted_life(&disk, 7, last).await;
    assert_eq!(server, first, "and is the right one again");
    disk.restore(&image.unwrap());
    let (server, _) = counted_life(&disk, 4, last).await;
    assert_ne!(server, first, "the directory is older");
}
