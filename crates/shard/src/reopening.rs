//! Views that are opened while a fold of the same process goes on (tests).
//!
//! A read that finds its view of no use opens the newest checkpoint; until it is there a fold may have taken the checkpoint over, or
//! gone on with it, and the tail have let go what the newer one has.

use std::sync::Arc;

use bytes::Bytes;
use telesto_bucket::BucketOptions;
use telesto_common::{Label, Lsn, NodeId, RegionId, ShardId, Timestamp, TxnId, WriterToken};
use telesto_log::record::{Commit, Entry, Record, Write, Writes};

use crate::api::{EngineKind, FoldOutcome, Read, ShardOptions};
use crate::cache::ProcessCache;
use crate::engine::Fault;
use crate::row::Meta;
use crate::shard::{Base, Shard, open_newest, same};

async fn shard(name: &str, engine: EngineKind) -> Arc<Shard> {
    let env = telesto_runtime::env();
    let url = format!("memory://reopening-{name}");
    let bucket =
        telesto_bucket::open(&url, &BucketOptions::default(), env.clone()).expect("a bucket");
    let cache = Arc::new(ProcessCache::new(64 << 20));
    let mut options = ShardOptions::new(ShardId(0), env, bucket, cache);
    options.engine = engine;
    Shard::open(options).await.expect("a shard")
}

/// Puts `key` in entry `lsn`.
fn apply(shard: &Shard, lsn: u64, key: &'static str) {
    let value = Some(Bytes::from_static(b"value"));
    let write = Write { key: Bytes::from_static(key.as_bytes()), value, fresh: false };
    let at = Timestamp(lsn * 10);
    let commit = Commit {
        shard: ShardId(0),
        txn: TxnId(u128::from(lsn)),
        timestamp: at,
        source: NodeId(1),
        origin: Label::update(RegionId::default(), at),
        writes: Writes::Inline(vec![write]),
    };
    let entry = Entry {
        lsn: Lsn(lsn),
        writer: WriterToken(1),
        previous_hash: [0; 16],
        hash: [0; 16],
        records: vec![Record::Commit(commit)],
    };
    shard.apply(&entry).expect("an entry in order");
}

async fn folded(shard: &Shard) {
    assert!(matches!(shard.fold().await, Ok(FoldOutcome::Advanced(_))));
}

async fn reads(shard: &Arc<Shard>, key: &str) -> bool {
    let read = shard.get(key.as_bytes(), Timestamp(1000)).await.expect("a read");
    matches!(read, Read::Found(_))
}

async fn opened(shard: &Shard) -> (Base, Meta) {
    open_newest(shard.engine.as_ref()).await.expect("a checkpoint")
}

async fn older_view_is_not_used_for_a_newer_one(name: &str, engine: EngineKind) {
    let shard = shard(name, engine).await;
    apply(&shard, 1, "a");
    folded(&shard).await;
    // As a read sees it whose view was of no use, while it waits for the bucket.
    let failed = shard.base();
    let (older, meta) = opened(&shard).await;
    apply(&shard, 2, "b");
    folded(&shard).await;
    let Err(back) = shard.adopt(Some(&failed), older, &meta) else {
        panic!("a view of LSN 1 in place of one of LSN 2");
    };
    assert!(back.is_some() && same(&shard.base(), &failed));
    assert_eq!(shard.checkpointed(), Lsn(2));
    assert!(reads(&shard, "a").await && reads(&shard, "b").await);
    // It opens once more, and has all.
    shard.reopen(&failed).await.expect("a newer one");
    assert!(!same(&shard.base(), &failed));
    assert!(reads(&shard, "a").await && reads(&shard, "b").await);
}

async fn fold_lets_nothing_go_that_the_view_in_use_lacks(name: &str, engine: EngineKind) {
    let shard = shard(name, engine).await;
    apply(&shard, 1, "a");
    folded(&shard).await;
    let writer = shard.base();
    // A read has put a view of its own in the place of the writer's, before the fold heard that it is durable.
    let (own, meta) = opened(&shard).await;
    assert!(shard.adopt(Some(&writer), own, &meta).is_ok());
    apply(&shard, 2, "b");
    let further = Meta { lsn: Lsn(2), ..meta };
    assert!(matches!(shard.advanced(&writer, &further), Err(Fault::Gone(_))));
    assert_eq!(shard.checkpointed(), Lsn(1));
    assert!(reads(&shard, "a").await && reads(&shard, "b").await);
    // Nor is a view put in the place of another than the one that failed.
    let (third, meta) = opened(&shard).await;
    assert!(shard.adopt(Some(&writer), third, &meta).is_err());
}

#[tokio::test]
async fn older_view_is_not_used_for_a_newer_one_in_memory() {
    let engine = EngineKind::Memory(crate::MemoryCheckpoints::new());
    older_view_is_not_used_for_a_newer_one("older", engine).await;
}

#[tokio::test]
async fn older_view_is_not_used_for_a_newer_one_on_slatedb() {
    older_view_is_not_used_for_a_newer_one("older-slate", EngineKind::SlateDb).await;
}

#[tokio::test]
async fn fold_lets_nothing_go_that_the_view_in_use_lacks_in_memory() {
    let engine = EngineKind::Memory(crate::MemoryCheckpoints::new());
    fold_lets_nothing_go_that_the_view_in_use_lacks("fold", engine).await;
}

#[tokio::test]
async fn fold_lets_nothing_go_that_the_view_in_use_lacks_on_slatedb() {
    fold_lets_nothing_go_that_the_view_in_use_lacks("fold-slate", EngineKind::SlateDb).await;
}
