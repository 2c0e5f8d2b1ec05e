//! Backups of an engine that goes on, from a seed: commits, large ones, folds, compactions,
//! collections, restarts and backups in any order; then databases as of each backup and as of
//! moments between, beside a model of what was committed.
//!
//! `TELESTO_BACKUP_SEEDS` tells how many seeds, `TELESTO_SEED` the first of them.

#![allow(
    clippy::disallowed_methods,
    reason = "the test provides the environment itself, on tokio's paused clock"
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use telesto_backup::{
    Backup, Error, Progress, Repository, Stored, Wanted, create, plan, prune, verify,
};
use telesto_bucket::{Bucket, BucketOptions, Cause, LatencyModel, MemoryStore};
use telesto_common::env::Clock;
use telesto_common::{Env, Timestamp};
use telesto_shard::EngineKind;
use telesto_txn::{EngineOptions, Level};

#[allow(dead_code, reason = "the tests of the engine use more of it")]
#[path = "../../txn/tests/engine/harness.rs"]
mod harness;

use harness::{Process, World, put, scan};

type Rows = BTreeMap<String, String>;

/// Entries of the log are kept this long, so that trimming happens in a test.
const RETENTION: Duration = Duration::from_secs(120);

struct Quiet;

impl Progress for Quiet {
    fn copied(&self, _: &str, _: u64) {}
}

fn slate(options: &mut EngineOptions) {
    options.checkpoint = EngineKind::SlateDb;
    options.retention = RETENTION;
    options.checkpoint_interval = Duration::from_secs(5);
    // So that transactions of a few dozen kilobytes have objects of their own.
    options.write_set.inline_bytes = 16 << 10;
    options.write_set.part_bytes = 32 << 10;
}

struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

struct Story {
    world: World,
    draws: Draws,
    process: Process,
    /// What stood there after each commit.
    states: Vec<(Timestamp, Rows)>,
    repository: Repository,
}

fn bucket(env: &Env, store: &MemoryStore, latency: Option<&str>) -> Arc<dyn Bucket> {
    let latency = latency.map(|name| LatencyModel::named(name).expect("known"));
    let options = BucketOptions { latency, ..BucketOptions::default() };
    telesto_bucket::over(Arc::new(store.clone()), "memory://test", &options, env.clone())
        .expect("opens")
}

fn stored(env: &Env, store: &MemoryStore, latency: Option<&str>) -> Stored {
    let raw = bucket(env, store, latency);
    Stored { open: Arc::clone(&raw), raw }
}

async fn all(process: &Process) -> Rows {
    let txn = process.begin(Level::Serializable).await;
    scan(&txn, "k", "l").await.into_iter().collect()
}

impl Story {
    async fn begin(seed: u64) -> Self {
        let world = World::new(seed);
        let process = start(&world, &world.store).await;
        let store = || MemoryStore::new(Arc::clone(&process.env.clock) as Arc<dyn Clock>);
        let repository = Repository {
            records: bucket(&process.env, &store(), None),
            objects: bucket(&process.env, &store(), None),
        };
        Self { world, draws: Draws(seed), process, states: Vec::new(), repository }
    }

    /// One transaction; every eighth has more than an entry of the log holds itself.
    async fn commit(process: &Process, draws: &mut Draws, states: &mut Vec<(Timestamp, Rows)>) {
        let mut rows = states.last().map(|(_, rows)| rows.clone()).unwrap_or_default();
        let txn = process.begin(Level::Serializable).await;
        let large = draws.below(8) == 0;
        for _ in 0..if large { 40 } else { 1 + draws.below(3) } {
            let key = format!("k{:03}", draws.below(if large { 400 } else { 40 }));
            let value = format!("{}-{}", states.len(), "v".repeat(if large { 2_000 } else { 10 }));
            put(&txn, &key, &value).await;
            rows.insert(key, value);
        }
        let at = txn.commit().await.expect("commits").timestamp;
        states.push((at, rows));
    }

    /// A backup, and commits while it is made; nobody waits for the other.
    async fn back_up(&mut self) {
        let source = stored(&self.process.env, &self.world.store, Some("s3-standard"));
        let before = self.states.last().map_or(Timestamp(0), |(at, _)| *at);
        let commits = self.draws.below(6);
        let (process, draws, states) = (&self.process, &mut self.draws, &mut self.states);
        let writes = async {
            for _ in 0..commits {
                Self::commit(process, draws, states).await;
                tokio::time::sleep(Duration::from_millis(draws.below(3000))).await;
            }
        };
        let (made, ()) =
            tokio::join!(create(&process.env, &source, &self.repository, &Quiet), writes);
        let made = made.expect("a backup");
        assert!(
            made.newest() >= before,
            "what was acknowledged before backup {} is not in it",
            made.number
        );
    }

    async fn step(&mut self) {
        match self.draws.below(12) {
            0..=5 => Self::commit(&self.process, &mut self.draws, &mut self.states).await,
            6 | 7 => {
                let seconds = self.draws.below(40);
                tokio::time::sleep(Duration::from_secs(seconds)).await;
            }
            8 | 9 => self.back_up().await,
            10 => {
                let next = start(&self.world, &self.world.store).await;
                std::mem::replace(&mut self.process, next).crash();
            }
            _ => self.process.engine.fold().await.expect("folds"),
        }
    }

    fn state_at(&self, micros: u64) -> Rows {
        let until = self.states.iter().rev().find(|(at, _)| at.wall_micros() <= micros);
        until.map(|(_, rows)| rows.clone()).unwrap_or_default()
    }

    /// Makes a database of the backups, looks at it, and has it go on.
    async fn restored(&self, wanted: Wanted, expected: &Rows) -> Result<(), Error> {
        let env = &self.process.env;
        let store = MemoryStore::new(Arc::clone(&env.clock) as Arc<dyn Clock>);
        let target = stored(env, &store, None);
        restore(env, &self.repository, &target, wanted).await?;
        let process = start(&self.world, &store).await;
        let found = all(&process).await;
        assert!(
            found == *expected,
            "{wanted:?}: {} rows of {}, or others",
            found.len(),
            expected.len()
        );
        let mut states = vec![(Timestamp(0), found)];
        let mut draws = Draws(7);
        Self::commit(&process, &mut draws, &mut states).await;
        // Backed up at once, before its checkpoint has passed the cut; what is made of that is it,
        // too.
        let again = Repository {
            records: bucket(env, &MemoryStore::new(Arc::clone(&env.clock) as Arc<dyn Clock>), None),
            objects: bucket(env, &MemoryStore::new(Arc::clone(&env.clock) as Arc<dyn Clock>), None),
        };
        create(env, &target, &again, &Quiet).await.expect("a backup of what was restored");
        let third = MemoryStore::new(Arc::clone(&env.clock) as Arc<dyn Clock>);
        restore(env, &again, &stored(env, &third, None), Wanted::Newest).await?;
        let copy = start(&self.world, &third).await;
        assert!(all(&copy).await == all(&process).await, "{wanted:?}: not the same a second time");
        copy.crash();
        for _ in 0..12 {
            Self::commit(&process, &mut draws, &mut states).await;
            tokio::time::sleep(Duration::from_secs(8)).await;
        }
        let next = start(&self.world, &store).await;
        process.crash();
        assert!(all(&next).await == states.pop().expect("some").1, "{wanted:?} did not go on");
        next.crash();
        Ok(())
    }
}

async fn restore(
    env: &Env,
    repository: &Repository,
    target: &Stored,
    wanted: Wanted,
) -> Result<(), Error> {
    let plan = plan(env, repository, &repository.objects, target.raw.as_ref(), wanted).await?;
    plan.reserve(target.raw.as_ref(), &Quiet).await?;
    plan.copy(target, &Quiet).await?;
    plan.finish(target).await
}

async fn start(world: &World, store: &MemoryStore) -> Process {
    let latency = LatencyModel::named("s3-standard").expect("known");
    world.try_start_over(Arc::new(store.clone()), 0, Some(latency), slate).await.expect("opens")
}

async fn play(seed: u64) {
    let mut story = Story::begin(seed).await;
    for _ in 0..50 {
        story.step().await;
    }
    story.back_up().await;
    let backups = story.repository.backups().await.expect("read");
    for backup in backups.iter().rev().take(3) {
        let expected = story.state_of(backup);
        story.restored(Wanted::Number(backup.number), &expected).await.expect("restores");
    }
    let (first, last) = (&backups[0], &backups[backups.len() - 1]);
    let mut covered = 0;
    for _ in 0..6 {
        let span = last.began_micros - first.began_micros;
        let micros = first.began_micros + story.draws.below(span.max(1));
        let expected = story.state_at(micros);
        match story.restored(Wanted::At(micros), &expected).await {
            Ok(()) => covered += 1,
            Err(Error::NotCovered { .. }) => {}
            Err(error) => panic!("seed {seed}, {micros}: {error}"),
        }
    }
    let wrong = verify(&story.process.env, &story.repository, &story.repository.objects, &Quiet)
        .await
        .expect("reads");
    let wrong: Vec<Error> =
        wrong.into_iter().filter(|error| !matches!(error, Error::NotCovered { .. })).collect();
    assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
    // Not by waiting: what a killed process left behind in SlateDB would look at its manifest all
    // the while.
    story.process.clock.set_ahead(3 * 24 * 3600);
    prune(&story.process.env, &story.repository, 2).await.expect("prunes");
    let expected = story.state_of(last);
    story.restored(Wanted::Newest, &expected).await.expect("restores");
    println!(
        "seed {seed}: {} commits, {} backups, {covered} of 6 moments",
        story.states.len(),
        backups.len()
    );
}

impl Story {
    fn state_of(&self, backup: &Backup) -> Rows {
        let until = self.states.iter().rev().find(|(at, _)| *at <= backup.newest());
        until.map(|(_, rows)| rows.clone()).unwrap_or_default()
    }
}

#[test]
fn what_is_restored_is_what_was_committed_by_then() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let first = number("TELESTO_SEED", 1);
    for seed in first..first + number("TELESTO_BACKUP_SEEDS", 6) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(play(seed));
    }
}

#[tokio::test(start_paused = true)]
async fn strange_records_are_refused() {
    let mut story = Story::begin(3).await;
    Story::commit(&story.process, &mut story.draws, &mut story.states).await;
    story.back_up().await;
    let good = story.repository.backups().await.expect("read").remove(0);
    let changes: [fn(&mut Backup); 8] = [
        |b| b.number = 0,
        |b| b.chain_version = 0,
        |b| b.chain_version = u64::MAX,
        |b| b.end = u64::MAX,
        |b| b.reaches = b.end + 1,
        |b| b.parts.push(copied("shards/../../outside")),
        |b| b.parts.push(copied("/etc/passwd")),
        |b| b.parts.push(copied("restoring")),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut strange = good.clone();
        change(&mut strange);
        let records = bucket(
            &story.process.env,
            &MemoryStore::new(Arc::clone(&story.process.env.clock) as Arc<dyn Clock>),
            None,
        );
        let body = serde_json::to_vec(&strange).expect("plain data");
        let key = "backups/00000000000000000001.json";
        records.put_if_absent(telesto_bucket::Cause::Admin, key, body.into()).await.expect("puts");
        let objects = Arc::clone(&story.repository.objects);
        let read = Repository { records, objects }.backups().await;
        assert!(matches!(read, Err(Error::Damaged { .. })), "change {number}: {read:?}");
    }
}

fn copied(key: &str) -> telesto_backup::Copied {
    telesto_backup::Copied { key: key.to_owned(), bytes: 1, crc32c: 2 }
}

/// A story with backups that have checkpoints of their own.
async fn told(seed: u64, backups: usize) -> Story {
    let mut story = Story::begin(seed).await;
    for _ in 0..backups {
        for _ in 0..6 {
            Story::commit(&story.process, &mut story.draws, &mut story.states).await;
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        story.process.engine.fold().await.expect("folds");
        story.back_up().await;
    }
    story
}

impl Story {
    async fn backups(&self) -> Vec<Backup> {
        self.repository.backups().await.expect("read")
    }

    async fn copies(&self, prefix: &str) -> Vec<String> {
        let objects = &self.repository.objects;
        let page = objects.list_after(Cause::Admin, prefix, None, 1000).await.expect("lists");
        page.into_iter().map(|object| object.key).collect()
    }

    async fn verified(&self) -> Vec<Error> {
        let copies = &self.repository.objects;
        verify(&self.process.env, &self.repository, copies, &Quiet).await.expect("reads")
    }

    fn empty(&self) -> (MemoryStore, Stored) {
        let store = MemoryStore::new(Arc::clone(&self.process.env.clock) as Arc<dyn Clock>);
        let target = stored(&self.process.env, &store, None);
        (store, target)
    }
}

#[tokio::test(start_paused = true)]
async fn restored_database_is_refused_before_anything_of_it_is_copied() {
    let mut story = told(11, 2).await;
    let (store, target) = story.empty();
    restore(&story.process.env, &story.repository, &target, Wanted::Newest)
        .await
        .expect("restores");
    let rehearsal = start(&story.world, &store).await;
    Story::commit(&rehearsal, &mut Draws(1), &mut vec![]).await;
    let before = story.copies("").await;
    let refused = create(&story.process.env, &target, &story.repository, &Quiet).await;
    assert!(matches!(refused, Err(Error::OtherDatabase { .. })), "{refused:?}");
    assert_eq!(story.copies("").await, before);
    rehearsal.crash();
    // The place is its database's as it was.
    Story::commit(&story.process, &mut story.draws, &mut story.states).await;
    story.back_up().await;
    let backups = story.backups().await;
    assert_eq!(backups.len(), 3);
    let expected = story.state_of(&backups[2]);
    story.restored(Wanted::Newest, &expected).await.expect("restores");
    // Restored to one place twice, it is another database each time.
    let first = store_version_one(&target).await;
    let (_, again) = story.empty();
    restore(&story.process.env, &story.repository, &again, Wanted::Number(2))
        .await
        .expect("restores");
    assert_ne!(first, store_version_one(&again).await);
}

async fn store_version_one(target: &Stored) -> bytes::Bytes {
    let key = telesto_log::stored::chain_keys(telesto_common::ShardId(0), 1).next().expect("one");
    target.raw.get(Cause::Admin, &key, None).await.expect("reads").expect("is there").body
}

#[tokio::test(start_paused = true)]
async fn entries_that_are_missing_between_two_backups_are_told() {
    let story = told(12, 2).await;
    assert!(story.verified().await.is_empty());
    let backups = story.backups().await;
    let between = backups[0].end + 1..=backups[1].reaches;
    let mut keys = story.copies("").await;
    keys.retain(|key| {
        telesto_log::stored::entries_of(key)
            .is_some_and(|(first, last)| between.contains(&first.0) && between.contains(&last.0))
    });
    let lost = keys.first().expect("the checkpoint of the second begins behind the first's end");
    story.repository.objects.delete(Cause::Gc, lost).await.expect("deletes");
    assert!(!story.verified().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn table_that_is_missing_from_the_copies_is_copied_again() {
    let mut story = told(13, 2).await;
    let last = story.backups().await.pop().expect("some");
    let lost = &last.checkpoint.as_ref().expect("one").tables[0].key;
    story.repository.objects.delete(Cause::Gc, lost).await.expect("deletes");
    assert!(!story.verified().await.is_empty());
    story.back_up().await;
    let last = story.backups().await.pop().expect("some");
    let expected = story.state_of(&last);
    story.restored(Wanted::Newest, &expected).await.expect("restores");
}

#[tokio::test(start_paused = true)]
async fn damaged_record_is_told_and_the_other_backups_are_of_use() {
    let mut story = told(14, 3).await;
    let backups = story.backups().await;
    let records = Arc::clone(&story.repository.records);
    let damage = async |number: u64| {
        let key = format!("backups/{number:020}.json");
        records.delete(Cause::Gc, &key).await.expect("deletes");
        records.put_if_absent(Cause::Admin, &key, "{".into()).await.expect("puts");
    };
    damage(1).await;
    assert_eq!(story.repository.readable().await.expect("reads").damaged.len(), 1);
    assert_eq!(story.verified().await.len(), 1);
    let (second, third) = (story.state_of(&backups[1]), story.state_of(&backups[2]));
    story.restored(Wanted::Number(2), &second).await.expect("restores");
    story.restored(Wanted::Newest, &third).await.expect("restores");
    let moment = backups[1].newest().wall_micros();
    story.restored(Wanted::At(moment), &story.state_at(moment)).await.expect("restores");
    damage(3).await;
    for wanted in [Wanted::Newest, Wanted::Number(3)] {
        let refused = story.restored(wanted, &third).await;
        assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
    }
    story.back_up().await;
    let last = story.repository.readable().await.expect("reads").backups.pop().expect("some");
    assert_eq!(last.number, 4);
    story.restored(Wanted::Newest, &story.state_of(&last)).await.expect("restores");
    // What a record names that cannot be read is not known: nothing is removed unless that backup
    // goes, too.
    let pruned = prune(&story.process.env, &story.repository, 2).await;
    assert!(matches!(pruned, Err(Error::Damaged { .. })), "{pruned:?}");
    prune(&story.process.env, &story.repository, 1).await.expect("prunes");
    story.restored(Wanted::Newest, &story.state_of(&last)).await.expect("restores");
}

#[tokio::test(start_paused = true)]
async fn moment_behind_the_newest_commit_is_not_covered_whatever_other_clocks_say() {
    let mut story = told(15, 1).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    story.back_up().await;
    let last = story.backups().await.pop().expect("some");
    let newest = last.newest().wall_micros();
    story.restored(Wanted::At(newest), &story.state_at(newest)).await.expect("restores");
    let refused = story.restored(Wanted::At(newest + 1), &Rows::new()).await;
    assert!(matches!(refused, Err(Error::NotCovered { .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn restoring_that_was_cut_off_goes_on_though_another_backup_was_made() {
    for at in [false, true] {
        let mut story = told(16, 2).await;
        let newest = story.backups().await.pop().expect("some");
        let wanted = if at { Wanted::At(newest.newest().wall_micros()) } else { Wanted::Newest };
        let (store, target) = story.empty();
        let (env, copies) = (story.process.env.clone(), Arc::clone(&story.repository.objects));
        let cut = plan(&env, &story.repository, &copies, target.raw.as_ref(), wanted);
        let cut = cut.await.expect("plans");
        cut.reserve(target.raw.as_ref(), &Quiet).await.expect("reserves");
        cut.copy(&target, &Quiet).await.expect("copies");
        drop(cut);
        let next = start(&story.world, &story.world.store).await;
        std::mem::replace(&mut story.process, next).crash();
        Story::commit(&story.process, &mut story.draws, &mut story.states).await;
        story.back_up().await;
        restore(&story.process.env, &story.repository, &target, wanted).await.expect("goes on");
        let process = start(&story.world, &store).await;
        assert!(all(&process).await == story.state_of(&newest), "at {at}");
        process.crash();
    }
}

#[tokio::test(start_paused = true)]
async fn backup_waits_for_one_who_removes_old_ones() {
    let mut story = told(17, 1).await;
    let records = Arc::clone(&story.repository.records);
    let begun = |ago: Duration, who: &str| {
        let ago = u64::try_from(ago.as_micros()).expect("small");
        format!("pruning/{:020}-{who}", story.process.env.clock.wall_micros() - ago)
    };
    let now = begun(Duration::ZERO, "other");
    let killed = [begun(Duration::from_secs(3600), "one"), "pruning/unreadable".to_owned()];
    for mark in killed.iter().chain([&now]) {
        records.put_if_absent(Cause::Admin, mark, Vec::new().into()).await.expect("puts");
    }
    let source = stored(&story.process.env, &story.world.store, None);
    for _ in 0..2 {
        let refused = prune(&story.process.env, &story.repository, 1).await;
        assert!(matches!(refused, Err(Error::Pruning { .. })), "{refused:?}");
        // Who was refused took away what is its own, and not what the other has put.
        let refused = create(&story.process.env, &source, &story.repository, &Quiet).await;
        assert!(matches!(refused, Err(Error::Pruning { .. })), "{refused:?}");
    }
    assert_eq!(story.backups().await.len(), 1, "nothing is left of what did not count");
    records.delete(Cause::Gc, &now).await.expect("deletes");
    story.back_up().await;
    let (env, place) = (&story.process.env, &story.repository);
    let (one, other) = futures::join!(prune(env, place, 1), prune(env, place, 1));
    for removed in [one, other] {
        assert!(matches!(removed, Ok(_) | Err(Error::Pruning { .. })), "{removed:?}");
    }
    prune(env, place, 1).await.expect("prunes");
    let left = records.list_after(Cause::Admin, "pruning", None, 10).await.expect("lists");
    assert!(left.is_empty(), "{left:?}");
}
