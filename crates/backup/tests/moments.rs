//! Backups of an engine that goes on, from a seed: commits, large ones, folds, compactions, collections, restarts and backups in any
//! order; then databases as of each backup and as of moments between, beside a model of what was committed.
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
use telesto_bucket::{Bucket, BucketOptions, LatencyModel, MemoryStore};
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
        // Backed up at once, before its checkpoint has passed the cut; what is made of that is it, too.
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
    let plan = plan(env, repository, &repository.objects, "memory://test", wanted).await?;
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
    // Not by waiting: what a killed process left behind in SlateDB would look at its manifest all the while.
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
