//! The trait over local folders and memory, plain and encrypted: same answers, durable files, odd
//! keys, ranges, listings.

use std::sync::Arc;

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::path::Path;
use object_store::{
    MultipartUpload as _, ObjectStore as _, ObjectStoreExt as _, PutMode, PutMultipartOptions,
};
use proptest::prelude::*;
use telesto_cipher::{Epoch, Keys, Ring};

use telesto_bucket::{
    Bucket, BucketOptions, Cause, Error, OpenBucket, PutOutcome, open, probe_conditional_put,
};

fn local(folder: &tempfile::TempDir) -> Arc<OpenBucket> {
    let url = format!("file://{}", folder.path().join("new/bucket").display());
    open(&url, &BucketOptions::default(), telesto_runtime::env()).expect("opens")
}

fn memory(name: &str) -> Arc<OpenBucket> {
    let url = format!("memory://{name}");
    open(&url, &BucketOptions::default(), telesto_runtime::env()).expect("opens")
}

fn keys() -> Option<Arc<Keys>> {
    let epochs = [(1, Epoch::new(&[7; 32])), (2, Epoch::new(&[8; 32]))].into_iter().collect();
    Some(Arc::new(Keys::new(
        Ring { version: 2, epochs, turning: false },
        telesto_runtime::env().random,
    )))
}

async fn behaves(bucket: &OpenBucket) {
    let text = Bytes::from_static;
    let put = |key: &'static str, body| bucket.put_if_absent(Cause::Commit, key, text(body));
    assert!(bucket.get(Cause::Read, "a/1", None).await.expect("get").is_none());
    assert!(bucket.list_after(Cause::Read, "a", None, 9).await.expect("list").is_empty());
    assert_eq!(put("a/1", b"hello").await.expect("put"), PutOutcome::Created);
    assert_eq!(put("a/1", b"other").await.expect("put"), PutOutcome::Exists);
    let object = bucket.get(Cause::Read, "a/1", None).await.expect("get").expect("there");
    assert_eq!((&object.body[..], object.size_bytes), (&b"hello"[..], 5));
    assert!(object.modified_micros > 1_600_000_000_000_000);
    let part = bucket.get(Cause::Read, "a/1", Some(1..3)).await.expect("get").expect("there");
    assert_eq!((&part.body[..], part.size_bytes), (&b"el"[..], 5));
    let tail = bucket.get(Cause::Read, "a/1", Some(3..99)).await.expect("get").expect("there");
    assert_eq!(&tail.body[..], b"lo");
    assert!(bucket.get(Cause::Read, "a/1", Some(2..2)).await.is_err());
    for key in ["a/3", "a/2", "a/20", "ab/1", "a-b/1"] {
        put(key, b"x").await.expect("put");
    }
    let keys = |listed: Vec<telesto_bucket::ListedObject>| {
        listed.into_iter().map(|object| object.key).collect::<Vec<_>>()
    };
    let all = bucket.list_after(Cause::Read, "a", None, 99).await.expect("list");
    assert_eq!(keys(all), ["a/1", "a/2", "a/20", "a/3"]);
    let some = bucket.list_after(Cause::Read, "a", Some("a/1"), 2).await.expect("list");
    assert_eq!(keys(some), ["a/2", "a/20"]);
    assert_eq!(bucket.list_after(Cause::Read, "", None, 99).await.expect("list").len(), 6);
    bucket.delete(Cause::Gc, "a/1").await.expect("delete");
    bucket.delete(Cause::Gc, "a/1").await.expect("deleting a missing object succeeds");
    assert!(bucket.get(Cause::Read, "a/1", None).await.expect("get").is_none());
    for key in ["/a", "a//b", "a/../b"] {
        let error = bucket.get(Cause::Read, key, None).await.expect_err(key);
        assert!(matches!(error, Error::Refused { .. }), "{error}");
    }
    probe_conditional_put(bucket, &telesto_runtime::env()).await.expect("one winner");
    assert!(bucket.list_after(Cause::Read, "probe", None, 9).await.expect("list").is_empty());
}

/// Every method the checkpoint engine uses.
async fn carries_the_checkpoint_engine(bucket: &OpenBucket) {
    let store = bucket.object_store(Cause::Checkpoint);
    let key = Path::from("db/manifest/1");
    let created = store.put_opts(&key, "1".into(), PutMode::Create.into()).await.expect("create");
    let again = store.put_opts(&key, "2".into(), PutMode::Create.into()).await;
    assert!(matches!(again, Err(object_store::Error::AlreadyExists { .. })));
    let update = PutMode::Update(created.clone().into());
    let updated = store.put_opts(&key, "2".into(), update.into()).await.expect("matches");
    let stale = store.put_opts(&key, "3".into(), PutMode::Update(created.into()).into()).await;
    assert!(matches!(stale, Err(object_store::Error::Precondition { .. })));
    let head = store.head(&key).await.expect("head");
    assert_eq!((head.size, head.e_tag), (1, updated.e_tag));
    store.put(&key, "overwritten".into()).await.expect("overwrite");

    let large = Path::from("db/compacted/x.sst");
    let options = PutMultipartOptions::default();
    let mut upload = store.put_multipart_opts(&large, options).await.expect("starts");
    upload.put_part(vec![1_u8; 1000].into()).await.expect("part");
    upload.put_part(vec![2_u8; 500].into()).await.expect("part");
    upload.complete().await.expect("completes");
    let ranges = store.get_ranges(&large, &[998..1002, 1499..1500]).await.expect("ranges");
    assert_eq!(ranges, [Bytes::from_static(&[1, 1, 2, 2]), Bytes::from_static(&[2])]);
    let mut dropped = store
        .put_multipart_opts(&Path::from("db/compacted/y.sst"), PutMultipartOptions::default())
        .await
        .expect("starts");
    dropped.put_part("x".into()).await.expect("part");
    dropped.abort().await.expect("aborts");

    store.copy(&key, &Path::from("db/manifest/2")).await.expect("copy");
    store.rename(&key, &Path::from("db/manifest/3")).await.expect("rename");
    let listed: Vec<_> = store.list(Some(&Path::from("db"))).try_collect().await.expect("list");
    let mut keys: Vec<_> = listed.iter().map(|meta| meta.location.to_string()).collect();
    keys.sort();
    assert_eq!(keys, ["db/compacted/x.sst", "db/manifest/2", "db/manifest/3"]);
    let level = store.list_with_delimiter(Some(&Path::from("db"))).await.expect("list");
    assert_eq!((level.common_prefixes.len(), level.objects.len()), (2, 0));
    store.delete(&large).await.expect("delete");
    assert!(matches!(store.head(&large).await, Err(object_store::Error::NotFound { .. })));
}

#[tokio::test]
async fn local_folder_behaves_as_a_bucket() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let bucket = local(&folder);
    behaves(&bucket).await;
    carries_the_checkpoint_engine(&bucket).await;
}

#[tokio::test]
async fn memory_behaves_as_a_bucket() {
    let bucket = memory("behaves");
    behaves(&bucket).await;
    carries_the_checkpoint_engine(&bucket).await;
}

#[tokio::test]
async fn encrypted_local_folder_and_memory_behave_as_buckets() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let url = format!("file://{}", folder.path().join("new/bucket").display());
    for url in [&url[..], "memory://behaves-encrypted"] {
        let options = BucketOptions { keys: keys(), ..BucketOptions::default() };
        let bucket = open(url, &options, telesto_runtime::env()).expect("opens");
        behaves(&bucket).await;
        carries_the_checkpoint_engine(&bucket).await;
    }
}

#[tokio::test]
async fn memory_buckets_of_one_name_are_one_store() {
    let (first, second, other) = (memory("shared"), memory("shared"), memory("not-shared"));
    let body = Bytes::from_static;
    first.put_if_absent(Cause::Commit, "k", body(b"x")).await.expect("put");
    assert_eq!(
        second.put_if_absent(Cause::Commit, "k", body(b"y")).await.expect("put"),
        PutOutcome::Exists
    );
    assert!(other.get(Cause::Read, "k", None).await.expect("get").is_none());
}

#[tokio::test]
async fn local_folder_is_listed_in_key_order_across_pages() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let bucket = local(&folder);
    let root = folder.path().join("new/bucket");
    let mut expected = Vec::new();
    // Two folders whose keys interleave with a third's as text, more than two pages in all.
    for (name, count) in [("log/a", 1700), ("log/a-b", 900), ("log/b", 800), ("logs", 10)] {
        std::fs::create_dir_all(root.join(name)).expect("folder");
        for n in (0..count).rev() {
            let key = format!("{name}/{n:020}");
            std::fs::write(root.join(&key), "x").expect("file");
            if name.starts_with("log/") {
                expected.push(key);
            }
        }
    }
    expected.sort();
    let store = bucket.object_store(Cause::Gc);
    let all: Vec<_> = store.list(Some(&Path::from("log"))).try_collect().await.expect("list");
    let keys: Vec<String> = all.iter().map(|meta| meta.location.to_string()).collect();
    assert_eq!(keys, expected);
    let after = &expected[2500];
    let page = bucket.list_after(Cause::Gc, "log", Some(after), 3).await.expect("list");
    let keys: Vec<String> = page.into_iter().map(|object| object.key).collect();
    assert_eq!(keys, expected[2501..2504]);
    let page = bucket.list_after(Cause::Gc, "log", None, 0).await.expect("list");
    assert!(page.is_empty());
}

#[tokio::test]
async fn local_put_leaves_no_temporary_file() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let bucket = local(&folder);
    for body in ["one", "two"] {
        let body = Bytes::from_static(body.as_bytes());
        bucket.put_if_absent(Cause::Commit, "log/1", body).await.expect("put");
    }
    let names: Vec<_> = std::fs::read_dir(folder.path().join("new/bucket/log"))
        .expect("folder")
        .map(|entry| entry.expect("entry").file_name())
        .collect();
    assert_eq!(names, ["1"]);
}

#[tokio::test]
async fn local_folder_that_cannot_be_written_is_refused_at_once() {
    // Even root cannot make a folder below a file.
    let folder = tempfile::tempdir().expect("temporary folder");
    std::fs::write(folder.path().join("file"), "x").expect("write");
    let url = format!("file://{}/file/bucket", folder.path().display());
    let error = open(&url, &BucketOptions::default(), telesto_runtime::env()).expect_err("refused");
    assert!(matches!(error, Error::BadUrl { .. }), "{error}");
}

/// A store that ignores the condition of a conditional put.
mod careless {
    use super::*;
    use async_trait::async_trait;
    use futures::stream::BoxStream;
    use object_store::*;

    #[derive(Debug)]
    pub struct Careless(pub telesto_bucket::MemoryStore);

    impl std::fmt::Display for Careless {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("careless")
        }
    }

    #[async_trait]
    impl ObjectStore for Careless {
        async fn put_opts(
            &self,
            location: &Path,
            payload: PutPayload,
            _: PutOptions,
        ) -> Result<PutResult> {
            self.0.put_opts(location, payload, PutMode::Overwrite.into()).await
        }

        async fn put_multipart_opts(
            &self,
            location: &Path,
            opts: PutMultipartOptions,
        ) -> Result<Box<dyn MultipartUpload>> {
            self.0.put_multipart_opts(location, opts).await
        }

        async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
            self.0.get_opts(location, options).await
        }

        fn delete_stream(
            &self,
            locations: BoxStream<'static, Result<Path>>,
        ) -> BoxStream<'static, Result<Path>> {
            self.0.delete_stream(locations)
        }

        fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
            self.0.list(prefix)
        }

        async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
            self.0.list_with_delimiter(prefix).await
        }

        async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
            self.0.copy_opts(from, to, options).await
        }
    }
}

#[tokio::test]
async fn probe_refuses_a_store_whose_races_have_two_winners() {
    let env = telesto_runtime::env();
    let store = careless::Careless(telesto_bucket::MemoryStore::new(Arc::clone(&env.clock)));
    let options = BucketOptions::default();
    let bucket = telesto_bucket::over(Arc::new(store), "memory://careless", &options, env.clone())
        .expect("opens");
    let error = probe_conditional_put(&*bucket, &env).await.expect_err("refused");
    assert!(matches!(error, Error::NoConditionalPut { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A local folder and memory answer alike, whatever is asked of them.
    #[test]
    fn local_folder_and_memory_agree(ops in prop::collection::vec((0_u8..4, 0_u8..12, 0_u8..4), 1..40)) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("runtime");
        runtime.block_on(async {
            let folder = tempfile::tempdir().expect("temporary folder");
            let env = telesto_runtime::env();
            let store = telesto_bucket::MemoryStore::new(Arc::clone(&env.clock));
            let options = BucketOptions::default();
            let memory = telesto_bucket::over(Arc::new(store), "memory://model", &options, env)
                .expect("opens");
            let disk = local(&folder);
            for (op, key, arg) in ops {
                let key = format!("p{}/k{}", key % 3, key);
                match op {
                    0 => {
                        let body = Bytes::from(vec![arg; 3]);
                        let a = disk.put_if_absent(Cause::Commit, &key, body.clone()).await;
                        let b = memory.put_if_absent(Cause::Commit, &key, body).await;
                        assert_eq!(a.expect("put"), b.expect("put"));
                    }
                    1 => {
                        let a = disk.get(Cause::Read, &key, Some(0..2)).await.expect("get");
                        let b = memory.get(Cause::Read, &key, Some(0..2)).await.expect("get");
                        assert_eq!(a.map(|o| o.body), b.map(|o| o.body));
                    }
                    2 => {
                        disk.delete(Cause::Gc, &key).await.expect("delete");
                        memory.delete(Cause::Gc, &key).await.expect("delete");
                    }
                    _ => {
                        let (limit, after) = (usize::from(arg) + 1, (arg > 1).then_some(&key[..]));
                        let a = disk.list_after(Cause::Read, "p1", after, limit).await;
                        let b = memory.list_after(Cause::Read, "p1", after, limit).await;
                        let keys = |listed: Vec<telesto_bucket::ListedObject>| {
                            listed.into_iter().map(|o| (o.key, o.size_bytes)).collect::<Vec<_>>()
                        };
                        assert_eq!(keys(a.expect("list")), keys(b.expect("list")));
                    }
                }
            }
        });
    }
}
