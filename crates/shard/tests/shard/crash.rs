//! Death at every request, and two processes that both want to fold.

use std::sync::Arc;

use telesto_common::Lsn;
use telesto_shard::{FoldOutcome, Shard, ShardOptions};

use crate::model::Model;
use crate::support::{self, TestBucket, Which, hasty_env};

fn options(env: &telesto_common::Env, bucket: &Arc<TestBucket>) -> ShardOptions {
    support::options(env, bucket, &Which::Slate)
}

/// Some entries with updates, deletes and new keys.
fn grow(model: &mut Model, entries: u8) {
    for i in 0..entries {
        model.commit(&[vec![(i % 12, true), ((i + 5) % 12, i % 3 != 0)]]);
    }
}

/// One life of a process: open, replay, fold, compact, collect; it may die anywhere in between.
async fn life(env: &telesto_common::Env, bucket: &Arc<TestBucket>, model: &Model) -> Option<()> {
    let shard = Shard::open(options(env, bucket)).await.ok()?;
    model.replay(&shard);
    let half = shard.fold().await.ok()?;
    assert_ne!(half, FoldOutcome::Fenced);
    shard.compact(true).await.ok()?;
    shard.collect().await.ok()?;
    Some(())
}

async fn process_killed_at_every_request(lose_reply: bool) {
    let env = hasty_env();
    let mut survived = false;
    for deadly in 0..200 {
        let bucket = TestBucket::new();
        let mut model = Model::default();
        grow(&mut model, 6);
        life(&env, &bucket, &model).await.expect("nothing fails yet");
        grow(&mut model, 6);
        let process = bucket.another();
        process.die_after(deadly, lose_reply);
        survived = life(&env, &process, &model).await.is_some();

        let next = bucket.another();
        let shard = Shard::open(options(&env, &next)).await.expect("opens after a crash");
        model.replay(&shard);
        model.check(&shard, model.now).await;
        shard.fold().await.expect("folds after a crash");
        assert_eq!(shard.checkpointed(), Lsn(model.log.len() as u64));
        model.check(&shard, model.now).await;
        shard.close().await;
        if survived {
            break;
        }
    }
    assert!(survived, "a life takes fewer requests than were tried");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_killed_before_any_request_loses_nothing() {
    process_killed_at_every_request(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_killed_after_any_request_took_effect_loses_nothing() {
    process_killed_at_every_request(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zombie_folder_is_fenced_and_changes_nothing() {
    let env = hasty_env();
    let bucket = TestBucket::new();
    let mut model = Model::default();
    grow(&mut model, 6);
    let zombie = Shard::open(options(&env, &bucket)).await.unwrap();
    model.replay(&zombie);
    zombie.fold().await.unwrap();

    // Another process takes over, folds more and compacts.
    grow(&mut model, 1);
    let known = model.clone();
    grow(&mut model, 5);
    let heir = Shard::open(options(&env, &bucket.another())).await.unwrap();
    model.replay(&heir);
    let FoldOutcome::Advanced(folded) = heir.fold().await.unwrap() else { panic!("must advance") };
    heir.compact(true).await.unwrap();

    // The zombie wakes up knowing a part of it.
    zombie.apply(&model.log[6]).unwrap();
    known.check(&zombie, known.now).await;
    assert_eq!(zombie.fold().await.unwrap(), FoldOutcome::Fenced);
    assert_eq!(zombie.checkpointed(), folded.lsn, "it reads the heir's checkpoint now");
    model.replay(&zombie);
    model.check(&zombie, model.now).await;
    model.check(&heir, model.now).await;

    // They may go on taking it from each other.
    grow(&mut model, 3);
    model.replay(&zombie);
    model.replay(&heir);
    assert!(matches!(zombie.fold().await.unwrap(), FoldOutcome::Advanced(_)));
    assert_eq!(heir.fold().await.unwrap(), FoldOutcome::Fenced);
    let reopened = Shard::open(options(&env, &bucket.another())).await.unwrap();
    model.replay(&reopened);
    for shard in [&zombie, &heir, &reopened] {
        model.check(shard, model.now).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_told_of_an_advance_drops_its_tail_and_reads_on() {
    let env = hasty_env();
    let bucket = TestBucket::new();
    let mut model = Model::default();
    grow(&mut model, 9);
    let folder = Shard::open(options(&env, &bucket)).await.unwrap();
    let reader = Shard::open(options(&env, &bucket.another())).await.unwrap();
    model.replay(&folder);
    model.replay(&reader);
    let FoldOutcome::Advanced(folded) = folder.fold().await.unwrap() else {
        panic!("must advance")
    };
    reader.refresh(folded.lsn, folded.version).await.unwrap();
    assert_eq!((reader.checkpointed(), reader.tail_bytes()), (folded.lsn, 0));
    model.check(&reader, model.now).await;
    let error = reader.refresh(Lsn(1_000), 1).await.unwrap_err();
    assert!(error.to_string().contains("LSN 1000"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_outage_fails_a_fold_and_the_next_one_recovers() {
    let env = hasty_env();
    let bucket = TestBucket::new();
    let mut model = Model::default();
    grow(&mut model, 6);
    let shard = Shard::open(options(&env, &bucket)).await.unwrap();
    model.replay(&shard);
    shard.fold().await.unwrap();
    grow(&mut model, 6);
    model.replay(&shard);
    bucket.die_after(0, false);
    assert!(shard.fold().await.is_err());
    bucket.revive();
    model.check(&shard, model.now).await;
    // The failed flush may have come through after all.
    shard.fold().await.unwrap();
    assert_eq!(shard.checkpointed(), Lsn(model.log.len() as u64));
    model.check(&shard, model.now).await;
}
