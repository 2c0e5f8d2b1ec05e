//! Keys of tables in a bucket: made once, opened by who has the key file's line, destroyed for
//! ever.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_bucket::table_keys::{self, LOOK_EVERY, TableKeys};
use telesto_bucket::{
    Bucket, BucketOptions, Cause, Error, ListedObject, MemoryStore, Object, OpenBucket, PutOutcome,
    over,
};
use telesto_cipher::{Closed, KeyFile, KeyService, RowError, RowKeys};
use telesto_common::Env;

struct Place {
    env: Env,
    folder: tempfile::TempDir,
    store: MemoryStore,
}

impl Place {
    fn new() -> Self {
        let env = telesto_runtime::env();
        let folder = tempfile::tempdir().expect("folder");
        let store = MemoryStore::new(Arc::clone(&env.clock));
        let place = Self { env, folder, store };
        for name in ["a", "b"] {
            KeyFile::add_table_key(&place.file("all"), name, &*place.env.random).expect("made");
        }
        KeyFile::add_table_key(&place.file("none"), "other", &*place.env.random).expect("made");
        place
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn service(&self, file: &str) -> Arc<dyn KeyService> {
        let read = KeyFile::read(&self.file(file), Arc::clone(&self.env.random));
        Arc::new(read.expect("reads"))
    }

    fn bucket(&self) -> Arc<OpenBucket> {
        let store = Arc::new(self.store.clone());
        over(store, "memory://keys", &BucketOptions::default(), self.env.clone()).expect("opens")
    }

    fn process(&self, file: &str) -> Arc<TableKeys> {
        TableKeys::new(self.bucket(), Some(self.service(file)), self.env.clone())
    }
}

fn sealed(keys: &RowKeys, epoch: u32) -> Vec<u8> {
    let mut out = Vec::new();
    keys.seal(epoch, b"place", b"row", &mut out).expect("seals");
    out
}

fn opens(keys: &RowKeys, sealed: &[u8]) -> bool {
    keys.open(b"place", sealed).is_ok_and(|row| row == b"row")
}

#[tokio::test]
async fn key_is_made_once_and_opens_where_the_key_file_has_its_line() {
    let place = Place::new();
    let (one, two, without) = (place.process("all"), place.process("all"), place.process("none"));
    assert_eq!(one.newest("a").await.expect("made"), 1);
    assert_eq!(two.newest("a").await.expect("found"), 1);
    assert_eq!(place.store.len(), 1);
    let row = sealed(&*one.at_hand("a", 1).await, 1);
    assert!(opens(&*two.at_hand("a", 1).await, &row));
    let closed = without.at_hand("a", 1).await;
    assert_eq!(closed.open(b"place", &row), Err(RowError::Closed(Closed::NotHere)));
    let refused = without.newest("a").await.expect_err("refused").to_string();
    assert!(refused.contains("key file"), "{refused}");
    assert_eq!(two.newest("b").await.expect("made"), 1);
    assert!(!opens(&*two.at_hand("b", 1).await, &row), "another name is another key");

    let bucket = place.bucket();
    let next = table_keys::rotate(&*bucket, &*place.service("all"), "a", &place.env).await;
    assert_eq!(next.expect("rotates"), 2);
    let refused = table_keys::rotate(&*bucket, &*place.service("none"), "a", &place.env).await;
    assert!(matches!(refused, Err(Error::TableKey { .. })), "{refused:?}");
    assert_eq!(two.newest("a").await.expect("found"), 2);
    let new = sealed(&*two.at_hand("a", 2).await, 2);
    assert!(opens(&*one.at_hand("a", 2).await, &new) && opens(&*two.at_hand("a", 2).await, &row));
    assert!(opens(&*place.process("all").at_hand("a", 2).await, &row), "older epochs come along");
}

#[tokio::test]
async fn dropped_key_is_forgotten_and_what_is_put_back_from_a_copy_does_not_open() {
    let place = Place::new();
    let process = place.process("all");
    process.newest("a").await.expect("made");
    process.newest("b").await.expect("made");
    let (a, b) = (process.at_hand("a", 1).await, process.at_hand("b", 1).await);
    let (row, other) = (sealed(&a, 1), sealed(&b, 1));
    let copy = place.store.contents();
    let bucket = place.bucket();
    let dropped = table_keys::drop_key(&*bucket, "a", &place.env).await;
    assert_eq!(dropped.expect("dropped"), 1);
    process.look().await;
    assert_eq!(a.open(b"place", &row), Err(RowError::Closed(Closed::Dropped)));
    assert!(opens(&b, &other), "the other key is as it was");
    for (path, body) in copy {
        bucket.put_if_absent(Cause::Admin, &path, body).await.expect("put back");
    }
    process.look().await;
    for process in [process, place.process("all")] {
        let a = process.at_hand("a", 1).await;
        assert_eq!(a.open(b"place", &row), Err(RowError::Closed(Closed::Dropped)));
        let refused = process.newest("a").await.expect_err("never again").to_string();
        assert!(refused.contains("dropped"), "{refused}");
    }
    let none = place.process("none").at_hand("a", 1).await;
    assert_eq!(none.closed(), Some(Closed::Dropped), "said to who never had it, too");
    assert_eq!(table_keys::drop_key(&*bucket, "a", &place.env).await.expect("again"), 1);
    let listed = table_keys::all(&*bucket).await.expect("listed");
    assert!(listed["a"].dropped && listed["a"].epochs.is_empty());
    assert!(!listed["b"].dropped && listed["b"].epochs.len() == 1);
    let unknown = table_keys::drop_key(&*bucket, "c", &place.env).await.expect_err("unknown");
    assert!(unknown.to_string().contains("no such key"), "{unknown}");
}

#[tokio::test(start_paused = true)]
async fn process_that_does_not_use_its_keys_forgets_dropped_ones_too() {
    let place = Place::new();
    let process = place.process("all");
    process.newest("a").await.expect("made");
    let keys = process.at_hand("a", 1).await;
    table_keys::drop_key(&*place.bucket(), "a", &place.env).await.expect("dropped");
    assert_eq!(keys.closed(), None, "not yet");
    for _ in 0..100 {
        place.env.clock.sleep(LOOK_EVERY / 10).await;
        if keys.closed().is_some() {
            break;
        }
    }
    assert_eq!(keys.closed(), Some(Closed::Dropped));
}

/// A bucket in which things happen at the moment of a request.
#[derive(Debug)]
struct Meddled {
    bucket: Arc<OpenBucket>,
    /// The tombstone is put just before an epoch is.
    tombstone: bool,
    /// Deletes of epochs do not come through.
    killed: bool,
}

#[async_trait]
impl Bucket for Meddled {
    async fn get(
        &self,
        cause: Cause,
        key: &str,
        range: Option<Range<u64>>,
    ) -> telesto_bucket::Result<Option<Object>> {
        self.bucket.get(cause, key, range).await
    }

    async fn put_if_absent(
        &self,
        cause: Cause,
        key: &str,
        body: Bytes,
    ) -> telesto_bucket::Result<PutOutcome> {
        if self.tombstone && !key.ends_with("dropped") {
            let stone = Bytes::from_static(b"x");
            let key = "keyring/tables/a/dropped";
            self.bucket.put_if_absent(cause, key, stone).await?;
        }
        self.bucket.put_if_absent(cause, key, body).await
    }

    async fn list_after(
        &self,
        cause: Cause,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> telesto_bucket::Result<Vec<ListedObject>> {
        self.bucket.list_after(cause, prefix, after, limit).await
    }

    async fn delete(&self, cause: Cause, key: &str) -> telesto_bucket::Result<()> {
        if self.killed {
            let (key, reason) = (key.to_owned(), "killed".to_owned());
            return Err(Error::Unavailable { key, reason });
        }
        self.bucket.delete(cause, key).await
    }

    fn object_store(&self, cause: Cause) -> Arc<dyn object_store::ObjectStore> {
        self.bucket.object_store(cause)
    }

    fn url(&self) -> &str {
        self.bucket.url()
    }
}

#[tokio::test]
async fn epoch_that_is_made_while_its_name_is_dropped_is_taken_back() {
    let place = Place::new();
    let meddled = Meddled { bucket: place.bucket(), tombstone: true, killed: false };
    let made = table_keys::rotate(&meddled, &*place.service("all"), "a", &place.env).await;
    assert!(made.expect_err("refused").to_string().contains("dropped"));
    let listed = table_keys::list(&meddled, "a").await.expect("listed");
    assert!(listed.dropped && listed.epochs.is_empty(), "{listed:?}");
}

#[tokio::test]
async fn drop_that_is_killed_in_the_middle_counts_and_is_finished_by_the_next() {
    let place = Place::new();
    let process = place.process("all");
    process.newest("a").await.expect("made");
    let row = sealed(&*process.at_hand("a", 1).await, 1);
    let meddled = Meddled { bucket: place.bucket(), tombstone: false, killed: true };
    table_keys::drop_key(&meddled, "a", &place.env).await.expect_err("killed");
    let listed = table_keys::list(&meddled, "a").await.expect("listed");
    assert!(listed.dropped && listed.epochs.len() == 1, "{listed:?}");
    let a = place.process("all").at_hand("a", 1).await;
    assert_eq!(a.open(b"place", &row), Err(RowError::Closed(Closed::Dropped)));
    let bucket = place.bucket();
    assert_eq!(table_keys::drop_key(&*bucket, "a", &place.env).await.expect("finished"), 1);
    assert!(table_keys::list(&*bucket, "a").await.expect("listed").epochs.is_empty());
}
