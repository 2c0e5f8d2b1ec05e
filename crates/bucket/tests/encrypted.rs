//! Encrypted buckets: every size and range as without encryption, nothing to read for whoever holds
//! the bucket, and every change of what is stored noticed.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, MultipartUpload as _, ObjectStore as _, ObjectStoreExt as _,
    PutMultipartOptions,
};
use proptest::prelude::*;
use telesto_bucket::keyring::{self, NoRing};
use telesto_bucket::{
    Bucket as _, BucketOptions, Cause, Error, MemoryStore, OpenBucket, PutOutcome, over,
};
use telesto_cipher::{Epoch, KeyFile, KeyService, Keys, Ring};
use telesto_common::Env;

fn over_memory(store: &MemoryStore, env: &Env, keys: Option<Arc<Keys>>) -> Arc<OpenBucket> {
    let options = BucketOptions { keys, ..BucketOptions::default() };
    over(Arc::new(store.clone()), "memory://encrypted", &options, env.clone()).expect("opens")
}

fn fixed(env: &Env) -> Option<Arc<Keys>> {
    let epochs = [(1, Epoch::new(&[7; 32]))].into_iter().collect();
    Some(Arc::new(Keys::new(Ring { version: 1, epochs, turning: false }, Arc::clone(&env.random))))
}

fn pair() -> (MemoryStore, Arc<OpenBucket>, Env) {
    let env = telesto_runtime::env();
    let store = MemoryStore::new(Arc::clone(&env.clock));
    let bucket = over_memory(&store, &env, fixed(&env));
    (store, bucket, env)
}

fn patterned(size: usize, seed: u8) -> Bytes {
    (0..size).map(|at| (at as u8).wrapping_mul(17) ^ (at >> 8) as u8 ^ seed).collect()
}

/// What a store says to a read: the bytes, the range and the size, or that it fails.
async fn answer(
    bucket: &OpenBucket,
    key: &Path,
    range: Option<GetRange>,
) -> Option<(Bytes, std::ops::Range<u64>, u64)> {
    let options = GetOptions { range, ..GetOptions::default() };
    let result = bucket.object_store(Cause::Read).get_opts(key, options).await.ok()?;
    let (range, size) = (result.range.clone(), result.meta.size);
    Some((result.bytes().await.expect("a body"), range, size))
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![0..40_usize, 16_370..16_400_usize, 32_750..32_790_usize, 0..120_000_usize]
}

fn range() -> impl Strategy<Value = GetRange> {
    let at = || prop_oneof![0..50_u64, 16_380..16_390_u64, 32_760..32_780_u64, 0..130_000_u64];
    prop_oneof![
        (at(), at()).prop_map(|(start, length)| GetRange::Bounded(start..start + length)),
        at().prop_map(GetRange::Offset),
        at().prop_map(GetRange::Suffix),
        Just(GetRange::Bounded(5..u64::MAX)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn objects_of_any_size_read_in_any_range_as_from_a_plain_store(
        size in size(), ranges in prop::collection::vec(range(), 1..12), parts in prop::option::of(1..5_usize),
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("runtime");
        runtime.block_on(async {
            let (_, bucket, env) = pair();
            let plain = over_memory(&MemoryStore::new(Arc::clone(&env.clock)), &env, None);
            let (key, body) = (Path::from("a/b"), patterned(size, 3));
            for bucket in [&bucket, &plain] {
                let store = bucket.object_store(Cause::Checkpoint);
                match parts {
                    None => drop(store.put(&key, body.clone().into()).await.expect("put")),
                    Some(parts) => {
                        let options = PutMultipartOptions::default();
                        let mut upload = store.put_multipart_opts(&key, options).await.expect("starts");
                        for part in body.chunks((size / parts).max(1)) {
                            upload.put_part(part.to_vec().into()).await.expect("part");
                        }
                        upload.complete().await.expect("completes");
                    }
                }
                let head = store.head(&key).await.expect("head");
                assert_eq!(head.size, size as u64);
                let listed = bucket.list_after(Cause::Read, "a", None, 9).await.expect("list");
                assert_eq!(listed[0].size_bytes, size as u64);
            }
            for range in ranges.into_iter().map(Some).chain([None]) {
                let (ours, theirs) = (answer(&bucket, &key, range.clone()).await, answer(&plain, &key, range.clone()).await);
                assert_eq!(ours, theirs, "{range:?} of {size} bytes");
            }
        });
    }

    #[test]
    fn any_change_of_what_is_stored_is_an_error_that_says_so(
        size in size(), at: prop::sample::Index, bit in 0..8_u8, cut in prop::bool::ANY, whole: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("runtime");
        runtime.block_on(async {
            let (store, bucket, _) = pair();
            let body = patterned(size, 3);
            bucket.put_if_absent(Cause::Commit, "a/b", body).await.expect("put");
            store.tamper("a/b", |stored| {
                let at = at.index(stored.len());
                if cut { stored.truncate(at) } else { stored[at] ^= 1 << bit }
            });
            if whole || !cut {
                let error = bucket.get(Cause::Read, "a/b", None).await.expect_err("noticed");
                assert!(matches!(error, Error::Undecipherable { .. }), "{error}");
            } else {
                // A read of a part meets what is wrong with that part: the last byte is in the last
                // chunk.
                let key = Path::from("a/b");
                let last = answer(&bucket, &key, Some(GetRange::Offset(size.saturating_sub(1) as u64))).await;
                assert_eq!(last, None);
            }
        });
    }
}

#[tokio::test]
async fn objects_exchanged_or_put_back_elsewhere_are_errors_at_once() {
    let (store, bucket, env) = pair();
    for key in ["x/1", "x/2"] {
        bucket.put_if_absent(Cause::Commit, key, patterned(50, 1)).await.expect("put");
    }
    let of = |key: &str| {
        let contents = store.contents();
        contents.into_iter().find(|(found, _)| found == key).expect("there").1.to_vec()
    };
    let (one, two) = (of("x/1"), of("x/2"));
    store.tamper("x/1", |stored| *stored = two);
    store.tamper("x/2", |stored| *stored = one);
    let begun = env.clock.monotonic();
    for key in ["x/1", "x/2"] {
        let error = bucket.get(Cause::Read, key, None).await.expect_err("exchanged");
        assert!(matches!(error, Error::Undecipherable { .. }), "{error}");
        assert!(
            error.to_string().contains("exchanged") && error.to_string().contains(key),
            "{error}"
        );
    }
    let taken = bucket.put_if_absent(Cause::Commit, "x/1", patterned(50, 2)).await;
    assert!(matches!(taken, Err(Error::Indeterminate { .. })), "{taken:?}");
    let requests = bucket.meter().snapshot();
    assert!(env.clock.monotonic() - begun < std::time::Duration::from_secs(10), "{requests:?}");
}

#[tokio::test]
async fn nothing_written_can_be_found_in_the_store_and_without_encryption_it_can() {
    let marker = b"the-marker-of-this-test";
    for encrypted in [true, false] {
        let env = telesto_runtime::env();
        let store = MemoryStore::new(Arc::clone(&env.clock));
        let bucket = over_memory(&store, &env, if encrypted { fixed(&env) } else { None });
        let body = marker.repeat(3000);
        bucket.put_if_absent(Cause::Commit, "a", body.clone().into()).await.expect("put");
        let objects = bucket.object_store(Cause::Checkpoint);
        objects.put(&Path::from("b"), body.clone().into()).await.expect("put");
        let options = PutMultipartOptions::default();
        let mut upload =
            objects.put_multipart_opts(&Path::from("c"), options).await.expect("starts");
        // More than a part that leaves.
        upload.put_part(marker.repeat(500_000).into()).await.expect("part");
        upload.complete().await.expect("completes");
        objects.copy(&Path::from("c"), &Path::from("d")).await.expect("copied");
        assert_eq!(store.contents().len(), 4);
        for (key, body) in store.contents() {
            let found = body.windows(marker.len()).any(|part| part == marker);
            assert_eq!(found, !encrypted, "{key}");
        }
        let copied = bucket.get(Cause::Read, "d", None).await.expect("get").expect("there");
        assert_eq!(copied.body, marker.repeat(500_000));
    }
}

struct Place {
    _folder: tempfile::TempDir,
    file: std::path::PathBuf,
    store: MemoryStore,
    env: Env,
}

impl Place {
    fn new() -> Self {
        let env = telesto_runtime::env();
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("keys");
        KeyFile::add_key(&file, "one", &*env.random).expect("made");
        Self { file, _folder: folder, store: MemoryStore::new(Arc::clone(&env.clock)), env }
    }

    fn service(&self) -> Arc<dyn KeyService> {
        Arc::new(KeyFile::read(&self.file, Arc::clone(&self.env.random)).expect("reads"))
    }

    fn clear(&self) -> Arc<OpenBucket> {
        over_memory(&self.store, &self.env, None)
    }

    async fn open(&self) -> telesto_bucket::Result<Arc<OpenBucket>> {
        keyring::unlock(self.clear(), Some(self.service()), NoRing::Make).await
    }
}

fn is_body(
    read: telesto_bucket::Result<Option<telesto_bucket::Object>>,
    body: &'static [u8],
) -> bool {
    read.expect("reads").expect("there").body == body
}

#[tokio::test]
async fn database_is_made_with_its_key_and_opens_with_that_key_only() {
    let place = Place::new();
    let none = keyring::unlock(place.clear(), Some(place.service()), NoRing::Refuse).await;
    assert!(matches!(none, Err(Error::NotEncrypted { .. })), "{none:?}");
    assert!(place.store.is_empty(), "nothing is written by a refusal");
    let bucket = place.open().await.expect("made");
    bucket.put_if_absent(Cause::Commit, "a", Bytes::from_static(b"x")).await.expect("put");
    let before = place.store.contents();
    let again = keyring::unlock(place.clear(), Some(place.service()), NoRing::Refuse).await;
    let again = again.expect("opens");
    assert!(is_body(again.get(Cause::Read, "a", None).await, b"x"));

    let without = keyring::unlock(place.clear(), None, NoRing::Make).await;
    assert!(matches!(without, Err(Error::KeyMissing { .. })), "{without:?}");
    let other = Place::new();
    let wrong = keyring::unlock(place.clear(), Some(other.service()), NoRing::Make).await;
    let wrong = wrong.expect_err("another key of the same name").to_string();
    assert!(wrong.contains("does not open"), "{wrong}");
    std::fs::remove_file(&other.file).expect("removed");
    KeyFile::add_key(&other.file, "two", &*other.env.random).expect("made");
    let unknown = keyring::unlock(place.clear(), Some(other.service()), NoRing::Make).await;
    let unknown = unknown.expect_err("no key of that name").to_string();
    assert!(unknown.contains("\"one\""), "{unknown}");
    assert_eq!(place.store.contents(), before, "nothing is written by a refusal");
}

#[tokio::test]
async fn key_on_a_bucket_with_other_data_is_refused_and_nothing_is_written() {
    let place = Place::new();
    let clear = place.clear();
    clear.put_if_absent(Cause::Commit, "shards/x", Bytes::from_static(b"x")).await.expect("put");
    let refused = place.open().await.expect_err("refused");
    assert!(
        matches!(refused, Error::NotEncrypted { .. })
            && refused.to_string().contains("telesto keys encrypt")
    );
    assert_eq!(place.store.len(), 1);
    keyring::unlock(clear, None, NoRing::Make).await.expect("as before");
}

#[tokio::test]
async fn rotation_goes_on_under_open_processes_and_old_objects_stay_readable() {
    let place = Place::new();
    let (old, other) = (place.open().await.expect("made"), place.open().await.expect("opens"));
    let put = |bucket: &Arc<OpenBucket>, key: &'static str| {
        let bucket = Arc::clone(bucket);
        async move {
            let body = Bytes::from_static(key.as_bytes());
            bucket.put_if_absent(Cause::Commit, key, body).await.expect("put")
        }
    };
    assert_eq!(put(&old, "a").await, PutOutcome::Created);
    KeyFile::add_key(&place.file, "two", &*place.env.random).expect("added");
    for (name, new_epoch, version, epochs) in
        [("one", true, 2, 2), ("two", false, 3, 2), ("two", true, 4, 3)]
    {
        let rotated = keyring::rotate(&place.clear(), &*place.service(), name, new_epoch).await;
        let rotated = rotated.expect("rotates");
        assert_eq!((rotated.version, rotated.keys.len()), (version, epochs));
    }
    let new = place.open().await.expect("opens");
    assert_eq!(new.keys().expect("encrypted").newest().0, 3);
    put(&new, "b").await;
    // It was opened before the key file had the key that the ring is wrapped with now.
    let error = old.get(Cause::Read, "b", None).await.expect_err("its key file is older");
    assert!(error.to_string().contains("\"two\""), "{error}");
    assert!(is_body(other.get(Cause::Read, "a", None).await, b"a"));
    let reopened = place.open().await.expect("opens");
    keyring::rotate(&place.clear(), &*place.service(), "two", true).await.expect("rotates");
    put(&place.open().await.expect("opens"), "c").await;
    assert!(is_body(reopened.get(Cause::Read, "c", None).await, b"c"), "met, looked for, found");
    for key in ["a", "b"] {
        assert!(is_body(reopened.get(Cause::Read, key, None).await, key.as_bytes()));
    }
}

#[tokio::test]
async fn ring_whose_versions_are_missing_is_noticed() {
    let place = Place::new();
    place.open().await.expect("made");
    for _ in 0..5 {
        keyring::rotate(&place.clear(), &*place.service(), "one", true).await.expect("rotates");
    }
    let bucket = place.open().await.expect("opens");
    assert_eq!(bucket.keys().expect("encrypted").version(), 6);
    bucket.put_if_absent(Cause::Commit, "a", Bytes::from_static(b"x")).await.expect("put");
    let key = |version: u64| format!("keyring/{version:020}");
    let clear = place.clear();
    // Rolled back: what was written with the newest key tells it.
    clear.delete(Cause::Gc, &key(6)).await.expect("deleted");
    let rolled_back = place.open().await.expect("opens");
    let error = rolled_back.get(Cause::Read, "a", None).await.expect_err("noticed").to_string();
    assert!(error.contains("epoch 6") && error.contains("newest version is missing"), "{error}");
    clear.delete(Cause::Gc, &key(1)).await.expect("deleted");
    let error = place.open().await.expect_err("a gap").to_string();
    assert!(error.contains("missing although"), "{error}");
}
