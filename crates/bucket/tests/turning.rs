//! Turning a database over: what is in clear becomes encrypted while it is read, written and
//! deleted, and nothing is wrong in between.

#![expect(
    clippy::disallowed_methods,
    reason = "a test is an outermost layer: it starts processes, threads and tasks of its own"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use proptest::prelude::*;
use telesto_bucket::keyring::{self, NoRing};
use telesto_bucket::turning::{self, How, Turned};
use telesto_bucket::{
    Bucket as _, BucketOptions, Cause, Error, MemoryStore, OpenBucket, PutOutcome, open, over,
};
use telesto_cipher::{KeyFile, KeyService};
use telesto_common::Env;

fn opened(store: Arc<dyn ObjectStore>, env: &Env) -> Arc<OpenBucket> {
    over(store, "memory://turning", &BucketOptions::default(), env.clone()).expect("opens")
}

fn key_file(env: &Env) -> Arc<dyn KeyService> {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("keys");
    KeyFile::add_key(&path, "one", &*env.random).expect("made");
    Arc::new(KeyFile::read(&path, Arc::clone(&env.random)).expect("reads"))
}

async fn with_keys(bucket: &Arc<OpenBucket>, keys: &Arc<dyn KeyService>) -> Arc<OpenBucket> {
    let unlocked = keyring::unlock(Arc::clone(bucket), Some(Arc::clone(keys)), NoRing::Refuse);
    unlocked.await.expect("opens")
}

fn patterned(size: usize, seed: u8) -> Bytes {
    (0..size).map(|at| (at as u8).wrapping_mul(17) ^ (at >> 8) as u8 ^ seed).collect()
}

/// Those of `store` that are in clear, but for the ring.
fn clear(store: &MemoryStore) -> Vec<String> {
    let ours = |(key, _): &(String, Bytes)| !key.starts_with("keyring/");
    let all = store.contents().into_iter().filter(ours);
    all.filter(|(_, body)| !body.starts_with(b"TLE")).map(|(key, _)| key).collect()
}

async fn all_of(bucket: &OpenBucket) -> BTreeMap<String, Bytes> {
    let mut found = BTreeMap::new();
    for listed in bucket.list_after(Cause::Read, "", None, 10_000).await.expect("lists") {
        if !listed.key.starts_with("keyring/") {
            let object = bucket.get(Cause::Read, &listed.key, None).await.expect("reads");
            found.insert(listed.key, object.expect("is there").body);
        }
    }
    found
}

fn silent() -> impl Fn(&Turned) + Send + Sync {
    |_: &Turned| ()
}

#[tokio::test]
async fn database_is_turned_over_and_what_is_in_clear_is_damage_again() {
    let env = telesto_runtime::env();
    let store = MemoryStore::new(Arc::clone(&env.clock));
    let (bucket, keys) = (opened(Arc::new(store.clone()), &env), key_file(&env));
    let mut written = BTreeMap::new();
    for (at, size) in [0, 1, 23, 24, 40, 16_384, 16_385, 100_000].into_iter().enumerate() {
        let (key, body) = (format!("shards/1/x/{at}"), patterned(size, at as u8));
        bucket.put_if_absent(Cause::Commit, &key, body.clone()).await.expect("put");
        written.insert(key, body);
    }
    let unlocked = keyring::unlock(Arc::clone(&bucket), Some(Arc::clone(&keys)), NoRing::Make);
    assert!(matches!(unlocked.await, Err(Error::NotEncrypted { .. })));
    turning::begin(&bucket, &*keys, false).await.expect("begins");
    turning::begin(&bucket, &*keys, false).await.expect("a second time changes nothing");
    assert!(matches!(
        keyring::unlock(Arc::clone(&bucket), None, NoRing::Make).await,
        Err(Error::KeyMissing { .. })
    ));
    let (own, other) = (with_keys(&bucket, &keys).await, with_keys(&bucket, &keys).await);
    assert_eq!(all_of(&own).await, written);
    // What is written now is encrypted, and taken for what it is by all.
    other.put_if_absent(Cause::Commit, "shards/1/new", patterned(9, 9)).await.expect("put");
    written.insert("shards/1/new".to_owned(), patterned(9, 9));
    assert_eq!(clear(&store).len(), 8);
    assert_eq!(all_of(&own).await, written);
    // What a put that is repeated finds is compared in whichever form it is.
    for (key, body) in [("shards/1/x/7", patterned(100_000, 7)), ("shards/1/new", patterned(9, 9))]
    {
        let again = own.put_if_absent(Cause::Commit, key, body).await.expect("answered");
        assert_eq!(again, PutOutcome::Created, "its own");
        let others =
            own.put_if_absent(Cause::Commit, key, patterned(8, 1)).await.expect("answered");
        assert_eq!(others, PutOutcome::Exists);
    }
    let done = turning::turn(&own, How::default(), &silent()).await.expect("turns");
    assert_eq!((done.objects, done.known), (8, 9), "{done:?}");
    assert_eq!(clear(&store), Vec::<String>::new());
    assert_eq!(all_of(&other).await, written);
    let ring = turning::finish(&bucket, &*keys).await.expect("ends");
    assert!(!ring.turning && ring.keys.len() == 2);
    let settled = with_keys(&bucket, &keys).await;
    assert_eq!(all_of(&settled).await, written);
    // Somebody puts an object in clear.
    bucket.put_if_absent(Cause::Commit, "shards/1/forged", patterned(50, 1)).await.expect("put");
    for (bucket, taken) in [(&settled, false), (&own, true)] {
        let read = bucket.get(Cause::Read, "shards/1/forged", None).await;
        assert_eq!(read.is_ok(), taken, "{read:?}");
    }
    // Who has met the new epoch does not take it any more either.
    settled.put_if_absent(Cause::Commit, "shards/1/newer", patterned(9, 2)).await.expect("put");
    own.get(Cause::Read, "shards/1/newer", None).await.expect("read").expect("there");
    let read = own.get(Cause::Read, "shards/1/forged", None).await.expect_err("in clear");
    assert!(matches!(read, Error::Undecipherable { .. }), "{read}");
    assert!(matches!(turning::begin(&bucket, &*keys, false).await, Err(Error::Encrypted { .. })));
    turning::begin(&bucket, &*keys, true).await.expect("again");
    assert_eq!(
        turning::turn(&*with_keys(&bucket, &keys).await, How::default(), &silent())
            .await
            .expect("turns")
            .objects,
        1
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn ranges_read_the_same_before_while_and_after(
        size in prop_oneof![0..60_usize, 16_370..16_400_usize, 0..90_000_usize],
        ranges in prop::collection::vec((0..100_000_u64, 0..40_000_u64, 0..3_u8), 1..8),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("runtime");
        runtime.block_on(async {
            let env = telesto_runtime::env();
            let plain = MemoryStore::new(Arc::clone(&env.clock));
            let (bucket, keys) = (opened(Arc::new(plain.clone()), &env), key_file(&env));
            let reference = opened(Arc::new(MemoryStore::new(Arc::clone(&env.clock))), &env);
            let (key, body) = ("a/b", patterned(size, 3));
            bucket.put_if_absent(Cause::Commit, key, body.clone()).await.expect("put");
            reference.put_if_absent(Cause::Commit, key, body).await.expect("put");
            turning::begin(&bucket, &*keys, false).await.expect("begins");
            // One that knows the object in clear, one that looks at it for the first time.
            let knowing = with_keys(&bucket, &keys).await;
            let path = Path::from(key);
            for turned in [false, true] {
                let fresh = with_keys(&bucket, &keys).await;
                if turned {
                    turning::turn(&fresh, How::default(), &silent()).await.expect("turns");
                }
                for bucket in [&knowing, &fresh] {
                    let head = bucket.object_store(Cause::Read).head(&path).await.expect("head");
                    assert_eq!(head.size, size as u64);
                    for (start, length, kind) in &ranges {
                        let range = match kind {
                            0 => GetRange::Bounded(*start..start + length),
                            1 => GetRange::Offset(*start),
                            _ => GetRange::Suffix(*length),
                        };
                        let ask = async |bucket: &OpenBucket| {
                            let options = GetOptions { range: Some(range.clone()), ..GetOptions::default() };
                            let result = bucket.object_store(Cause::Read).get_opts(&path, options).await.ok()?;
                            let (at, size) = (result.range.clone(), result.meta.size);
                            Some((result.bytes().await.expect("a body"), at, size))
                        };
                        let (ours, theirs) = (ask(bucket).await, ask(&reference).await);
                        assert_eq!(ours, theirs, "{range:?} of {size} bytes, turned: {turned}");
                    }
                }
            }
        });
    }
}

/// Deletes an object between the moment it was read and the moment it is put again; perhaps ignores
/// conditions.
#[derive(Debug)]
struct Meddling {
    inner: MemoryStore,
    deletes: AtomicBool,
    ignores: bool,
    overwrites: AtomicUsize,
}

impl std::fmt::Display for Meddling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("meddling")
    }
}

#[async_trait]
impl ObjectStore for Meddling {
    async fn put_opts(
        &self,
        at: &Path,
        body: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        if matches!(options.mode, PutMode::Update(_)) && at.as_ref().starts_with("shards") {
            self.overwrites.fetch_add(1, Ordering::SeqCst);
            if self.deletes.load(Ordering::SeqCst) {
                self.inner.delete(at).await?;
            }
        }
        if self.ignores && matches!(options.mode, PutMode::Update(_)) {
            options.mode = PutMode::Overwrite;
        }
        self.inner.put_opts(at, body, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(at, options).await
    }

    fn delete_stream(
        &self,
        at: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(at)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn what_is_deleted_meanwhile_stays_deleted_and_a_store_that_cannot_tell_is_refused() {
    for ignores in [false, true] {
        let env = telesto_runtime::env();
        let inner = MemoryStore::new(Arc::clone(&env.clock));
        let store = Arc::new(Meddling {
            inner: inner.clone(),
            deletes: AtomicBool::new(true),
            ignores,
            overwrites: AtomicUsize::new(0),
        });
        let (bucket, keys) = (opened(store.clone(), &env), key_file(&env));
        for at in 0..20 {
            let key = format!("shards/1/x/{at}");
            bucket.put_if_absent(Cause::Commit, &key, patterned(100, at)).await.expect("put");
        }
        turning::begin(&bucket, &*keys, false).await.expect("begins");
        let own = with_keys(&bucket, &keys).await;
        let turned = turning::turn(&own, How::default(), &silent()).await;
        if !ignores {
            assert_eq!(turned.expect("turns").objects, 0);
            assert_eq!(store.overwrites.load(Ordering::SeqCst), 20);
            assert_eq!(inner.contents().len(), 1, "the ring alone");
            continue;
        }
        let error = turned.expect_err("refused");
        assert!(matches!(error, Error::NoConditionalOverwrite { .. }), "{error}");
        assert_eq!(clear(&inner).len(), 20, "nothing was done");
        store.deletes.store(false, Ordering::SeqCst);
        let done = turning::turn(&own, How { offline: true }, &silent()).await.expect("turns");
        assert_eq!((done.objects, clear(&inner).len()), (20, 0));
    }
}

/// A folder: readers that hold on to sizes and ranges, writers and deleters beside the one that
/// turns it over.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn folder_is_turned_over_under_readers_writers_and_deleters() {
    let env = telesto_runtime::env();
    let folder = tempfile::tempdir().expect("folder");
    let url = format!("file://{}", folder.path().display());
    let bucket = open(&url, &BucketOptions::default(), env.clone()).expect("opens");
    let keys = key_file(&env);
    let size = |at: usize| 1000 + at * 37 % 40_000;
    for at in 0..300 {
        let (key, body) = (format!("shards/1/{at:04}"), patterned(size(at), at as u8));
        bucket.put_if_absent(Cause::Commit, &key, body).await.expect("put");
    }
    turning::begin(&bucket, &*keys, false).await.expect("begins");
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for task in 0..3_usize {
        let (own, over) = (with_keys(&bucket, &keys).await, Arc::clone(&over));
        tasks.push(tokio::spawn(async move {
            for (reads, turn) in (task..).enumerate() {
                if over.load(Ordering::SeqCst) && reads > 300 {
                    break;
                }
                // Every third is deleted by somebody else.
                let at = turn * 7 % 300;
                let (from, to) = ((turn % 900) as u64, 950);
                let range = from..to.max(from + 1);
                let key = format!("shards/1/{at:04}");
                let read = own.get(Cause::Read, &key, Some(range.clone())).await;
                match read.expect("reads") {
                    Some(object) => {
                        let whole = patterned(size(at), at as u8);
                        let wanted = whole.slice(range.start as usize..range.end as usize);
                        assert_eq!(object.body, wanted, "{at}");
                        assert_eq!(object.size_bytes, size(at) as u64);
                    }
                    None => assert_eq!(at % 3, 0, "{at} is gone"),
                }
            }
        }));
    }
    let (deleter, writer) = (with_keys(&bucket, &keys).await, with_keys(&bucket, &keys).await);
    tasks.push(tokio::spawn(async move {
        for at in (0..300).step_by(3) {
            deleter.delete(Cause::Gc, &format!("shards/1/{at:04}")).await.expect("deleted");
        }
    }));
    tasks.push(tokio::spawn(async move {
        for at in 300..400 {
            let (key, body) = (format!("shards/1/{at:04}"), patterned(size(at), at as u8));
            writer.put_if_absent(Cause::Commit, &key, body).await.expect("put");
        }
    }));
    let own = with_keys(&bucket, &keys).await;
    turning::turn(&own, How::default(), &silent()).await.expect("turns");
    over.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.expect("none was wrong");
    }
    turning::turn(&own, How::default(), &silent()).await.expect("turns");
    turning::finish(&bucket, &*keys).await.expect("ends");
    let found = all_of(&*with_keys(&bucket, &keys).await).await;
    let wanted = (0..400).filter(|at| *at >= 300 || at % 3 != 0);
    let wanted: BTreeMap<String, Bytes> =
        wanted.map(|at| (format!("shards/1/{at:04}"), patterned(size(at), at as u8))).collect();
    assert_eq!(found, wanted);
    // No other file is left, in clear or otherwise.
    let mut files = 0;
    for entry in std::fs::read_dir(folder.path().join("shards/1")).expect("lists") {
        let bytes = std::fs::read(entry.expect("an entry").path()).expect("reads");
        assert!(bytes.starts_with(b"TLE"));
        files += 1;
    }
    assert_eq!(files, wanted.len());
}
