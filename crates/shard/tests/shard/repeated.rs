//! A proxy that sends the checkpoint engine's conditional puts twice: the engine is told "exists"
//! for its own success.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use telesto_shard::{FoldOutcome, Shard};

use crate::model::Model;
use crate::support::{self, TestBucket, Which, hasty_env};

/// Which conditional puts are repeated, and whether the store keeps metadata.
#[derive(Debug, Default)]
pub struct Repeats {
    /// Every n-th is repeated; 0: none.
    pub every: AtomicU64,
    seen: AtomicU64,
    pub struck: AtomicU64,
    /// The store drops the metadata of objects.
    pub drops_metadata: AtomicBool,
}

impl Repeats {
    pub fn strikes(&self) -> bool {
        let every = self.every.load(Ordering::SeqCst);
        let seen = self.seen.fetch_add(1, Ordering::SeqCst);
        let strikes = every > 0 && seen.is_multiple_of(every);
        self.struck.fetch_add(u64::from(strikes), Ordering::SeqCst);
        strikes
    }
}

async fn checkpoints_are_right(every: u64, drops_metadata: bool) {
    let env = hasty_env();
    let bucket = TestBucket::new();
    bucket.repeats().drops_metadata.store(drops_metadata, Ordering::SeqCst);
    bucket.repeats().every.store(every, Ordering::SeqCst);
    let mut model = Model::default();
    let mut shard = Shard::open(support::options(&env, &bucket, &Which::Slate)).await.unwrap();
    let (mut advanced, mut fenced) = (0, 0);
    for round in 0..12_u8 {
        for i in 0..4 {
            model.commit(&[vec![((round + i) % 12, true), ((round + i + 5) % 12, i % 3 != 0)]]);
        }
        if round % 4 == 3 {
            shard.close().await;
            let options = support::options(&env, &bucket.another(), &Which::Slate);
            // Another process, through the same proxy.
            shard = Shard::open(options).await.unwrap();
        }
        model.replay(&shard);
        match shard.fold().await {
            Ok(FoldOutcome::Advanced(_)) => advanced += 1,
            Ok(FoldOutcome::Fenced) => fenced += 1,
            Ok(_) => {}
            Err(error) => assert!(drops_metadata, "round {round}: {error}"),
        }
        model.check(&shard, model.now).await;
    }
    assert!(bucket.repeats().struck.load(Ordering::SeqCst) > 0, "nothing was repeated");
    assert!(advanced > 0, "it never got on: fenced {fenced} times");
    assert!(drops_metadata || fenced == 0, "it took itself for fenced {fenced} times");
    // Whatever the engine thought meanwhile: what is in the bucket is right for a new process.
    let reader = Shard::open(support::options(&env, &bucket.another(), &Which::Slate)).await;
    let reader = reader.unwrap();
    model.replay(&reader);
    model.check(&reader, model.now).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_through_a_proxy_that_repeats_every_put_advances_and_is_right() {
    checkpoints_are_right(1, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_on_a_store_without_metadata_behind_such_a_proxy_is_right() {
    checkpoints_are_right(3, true).await;
}
