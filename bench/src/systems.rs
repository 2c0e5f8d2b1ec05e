//! The two systems, behind one small interface, each used as its documentation says.
//!
//! # Invariants
//! A `put` returns when it is durable in both: Telesto's on the log server's disk (fsync),
//! SlateDB's when its write-ahead log object is in the folder. `get` and `scan` see every put that
//! returned.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use slatedb::Db;
use slatedb::config::{FlushOptions, FlushType, Settings};
use telesto_bucket::BucketOptions;
use telesto_common::key::{Direction, KeyRange, KeyWriter};
use telesto_common::{DatabaseId, Incarnation, TableId};
use telesto_log::disk::LocalDisk;
use telesto_log::{Identity, LogKind};
use telesto_txn::{Database, Engine, EngineOptions, ReadFor, ScanOptions, TxnOptions};

/// Bytes of a value.
const VALUE_BYTES: usize = 100;
/// Rows written at once while loading.
const LOAD_BATCH: u64 = 1000;

/// A key-value store under measurement.
pub trait System: Send + Sync {
    /// For the table.
    fn name(&self) -> &'static str;
    /// Loads keys `0..rows`.
    fn load(&self, rows: u64) -> BoxFuture<'_, ()>;
    /// Writes what is held in memory into tables of the bucket.
    fn settle(&self) -> BoxFuture<'_, ()>;
    /// Reads one key; whether it is there.
    fn get(&self, key: u64) -> BoxFuture<'_, bool>;
    /// Overwrites one key durably.
    fn put(&self, key: u64) -> BoxFuture<'_, ()>;
    /// Reads `count` keys from `start` on; how many there were.
    fn scan(&self, start: u64, count: u64) -> BoxFuture<'_, u64>;
    /// Ends.
    fn close(&self) -> BoxFuture<'_, ()>;
}

fn key(number: u64) -> Bytes {
    let mut key = KeyWriter::prefix(DatabaseId(1), TableId(900), 0);
    key.u64(number, Direction::Ascending);
    key.finish()
}

fn value(number: u64) -> Bytes {
    Bytes::from(vec![(number % 251) as u8; VALUE_BYTES])
}

/// Telesto's transaction layer on a folder with a quorum log (fsync at commit).
pub struct Telesto {
    engine: Arc<Engine>,
}

impl Telesto {
    pub async fn open(dir: &Path) -> Self {
        let env = telesto_runtime::env();
        let url = format!("file://{}", dir.join("bucket").display());
        let bucket = telesto_bucket::open(&url, &BucketOptions::default(), env.clone()).unwrap();
        let identity = Identity {
            node: env.node_id(),
            incarnation: Incarnation(1),
            host: "bench".to_owned(),
            pid: std::process::id(),
            address: String::new(),
        };
        let temp = dir.join("temp");
        std::fs::create_dir_all(&temp).unwrap();
        let mut options = EngineOptions::new(identity, temp);
        options.log = LogKind::Quorum;
        options.log_disk = Some(LocalDisk::new(dir.join("log"), env.clone()));
        Self { engine: Engine::open(bucket, env, options).await.unwrap() }
    }
}

impl System for Telesto {
    fn name(&self) -> &'static str {
        "Telesto"
    }

    fn load(&self, rows: u64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            for start in (0..rows).step_by(LOAD_BATCH as usize) {
                let txn = self.engine.begin(TxnOptions::default()).await.unwrap();
                for number in start..(start + LOAD_BATCH).min(rows) {
                    txn.put(key(number), value(number)).await.unwrap();
                }
                txn.commit().await.unwrap();
            }
        })
    }

    fn settle(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.engine.fold().await.unwrap() })
    }

    fn get(&self, number: u64) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let options = TxnOptions { read_only: true, ..TxnOptions::default() };
            let txn = self.engine.begin(options).await.unwrap();
            let key = key(number);
            let found = match txn.try_get(&key, ReadFor::Query) {
                Some(found) => found,
                None => txn.get(&key, ReadFor::Query).await,
            };
            found.unwrap().is_some()
        })
    }

    fn put(&self, number: u64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let txn = self.engine.begin(TxnOptions::default()).await.unwrap();
            txn.put(key(number), value(number + 1)).await.unwrap();
            // Two tasks may have drawn the same key; then one of them was first, and this is no
            // write lost.
            let _ = txn.commit().await;
        })
    }

    fn scan(&self, start: u64, count: u64) -> BoxFuture<'_, u64> {
        Box::pin(async move {
            let options = TxnOptions { read_only: true, ..TxnOptions::default() };
            let txn = self.engine.begin(options).await.unwrap();
            let range = KeyRange::new(key(start), key(start + count));
            let mut scan = txn.scan(range, ScanOptions::default());
            let mut found = 0;
            loop {
                let batch = scan.next_batch(1024).await.unwrap();
                if batch.is_empty() {
                    return found;
                }
                found += batch.len() as u64;
            }
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.engine.shutdown().await.unwrap() })
    }
}

/// SlateDB on a folder, with its defaults but one: its write-ahead log is written as soon as it can
/// be, not every tenth of a second, so that a put does not wait for a timer.
pub struct PlainSlateDb {
    db: Db,
}

impl PlainSlateDb {
    pub async fn open(dir: &Path) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let store = object_store::local::LocalFileSystem::new_with_prefix(dir).unwrap();
        let settings =
            Settings { flush_interval: Some(Duration::from_millis(1)), ..Settings::default() };
        let db = Db::builder("db", Arc::new(store)).with_settings(settings).build().await;
        Self { db: db.unwrap() }
    }
}

impl System for PlainSlateDb {
    fn name(&self) -> &'static str {
        "SlateDB"
    }

    fn load(&self, rows: u64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            for start in (0..rows).step_by(LOAD_BATCH as usize) {
                let mut batch = slatedb::WriteBatch::new();
                for number in start..(start + LOAD_BATCH).min(rows) {
                    batch.put(key(number), value(number));
                }
                self.db.write(batch).await.unwrap();
            }
            self.db.flush().await.unwrap();
        })
    }

    fn settle(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let options = FlushOptions { flush_type: FlushType::MemTable };
            self.db.flush_with_options(options).await.unwrap();
        })
    }

    fn get(&self, number: u64) -> BoxFuture<'_, bool> {
        Box::pin(async move { self.db.get(key(number)).await.unwrap().is_some() })
    }

    fn put(&self, number: u64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let handle = self.db.put(key(number), value(number + 1)).await.unwrap();
            handle.await_durable().await.unwrap();
        })
    }

    fn scan(&self, start: u64, count: u64) -> BoxFuture<'_, u64> {
        Box::pin(async move {
            let mut iterator = self.db.scan(key(start)..key(start + count)).await.unwrap();
            let mut found = 0;
            while iterator.next().await.unwrap().is_some() {
                found += 1;
            }
            found
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.db.close().await.unwrap() })
    }
}
