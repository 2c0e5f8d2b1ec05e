//! One machine's disk with everything that befalls it, from a seed, and a reader that comes late:
//! nothing that was acknowledged or read is lost or changed, and nothing is called damaged.
//!
//! Space ends and comes back, syncs fail, processes die with the page cache staying or the power
//! going, segments are small, the log is archived, switched and trimmed at any time, a process on
//! another machine reads on in small steps.
//!
//! The same storm proves the mends of the local log: with one taken out, it finds what that one
//! mends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::Cause;
use telesto_common::env::Random as _;
use telesto_common::planted::{Bug, Planted};
use telesto_common::{Env, Lsn};
use telesto_log::disk::SimDisk;
use telesto_log::{Append, Error, LogKind, LogOptions};

use crate::support::*;

const RETENTION: Duration = Duration::from_secs(1000);
const STEPS: usize = 120;

/// Mends that are taken out, each with a seed that shows what it mends.
const MENDS: &[(Bug, u64)] =
    &[(Bug::ReleasesLastBatch, 8), (Bug::TrustsPageCache, 45), (Bug::TrimmedIsDamage, 195)];

/// Seeds that are enough to find what a mend mends.
const ENOUGH: u64 = 500;

struct Storm {
    random: Arc<Seeded>,
    env: Env,
    objects: Arc<Objects>,
    disk: Arc<SimDisk>,
    segment_bytes: u64,
    buffer_bytes: usize,
    life: u64,
    /// The process with the disk, unless it could not be started.
    owner: Option<Process>,
    /// A process on another machine.
    reader: Process,
    /// Every entry that a process has seen committed.
    seen: BTreeMap<Lsn, ([u8; 16], Option<String>)>,
    found: Vec<String>,
}

impl Storm {
    async fn new(seed: u64, planted: Planted) -> Self {
        let random = Arc::new(Seeded::new(seed));
        let mut env = telesto_runtime::env();
        env.planted = planted;
        let draws = Arc::new(Seeded::new(!seed));
        env.random = draws;
        let (objects, disk) = (Arc::new(Objects::default()), sim_disk(seed, &env));
        let segment_bytes = [1024, 2048, 8192][(random.next_u64() % 3) as usize];
        let buffer_bytes = [1, 1 << 20][(random.next_u64() % 2) as usize];
        let mut first = owners(1, &disk, segment_bytes, buffer_bytes);
        // Everybody opens it; then one makes it its own.
        first.kind = LogKind::Bucket;
        let owner = create(&MemBucket::new(&objects), &env, first).await;
        let reader = open(&MemBucket::new(&objects), &env, options(2, 1)).await.expect("opens");
        Self {
            random,
            env,
            objects,
            disk,
            segment_bytes,
            buffer_bytes,
            life: 1,
            owner: Some(owner),
            reader,
            seen: BTreeMap::new(),
            found: Vec::new(),
        }
    }

    fn below(&self, limit: u64) -> u64 {
        self.random.next_u64() % limit
    }

    /// Damage is never expected; whatever else fails may fail.
    fn failed(&mut self, what: &str, error: &Error) {
        if matches!(error, Error::Corrupt { .. }) {
            self.found.push(format!("{what}: damage reported without any: {error}"));
        }
    }

    /// Everything `process` has applied stays what it is.
    fn note(&mut self, what: &str, process: &Process) {
        for entry in &process.applied {
            let known = self.seen.entry(entry.lsn).or_insert_with(|| (entry.hash, said(entry)));
            if known.0 != entry.hash {
                self.found
                    .push(format!("{what} has another entry {} than {:?}", entry.lsn, known.1));
            }
        }
    }

    /// Whoever has read to the tail has everything that anybody saw.
    fn has_all(&mut self, process: &Process) {
        let last = self.seen.keys().next_back().copied().unwrap_or_default();
        if last >= process.next {
            self.found.push(format!("entries {} to {last} are gone", process.next));
        }
    }

    /// Starts the owner again, and lets it read everything.
    async fn start(&mut self) {
        self.owner = None;
        self.life += 1;
        let bucket = MemBucket::new(&self.objects);
        let options = owners(self.life, &self.disk, self.segment_bytes, self.buffer_bytes);
        match open(&bucket, &self.env, options).await {
            Ok(process) => {
                self.owner = Some(process);
                self.catch_up().await;
            }
            Err(error) => self.failed("an opening", &error),
        }
    }

    async fn catch_up(&mut self) {
        let Some(mut owner) = self.owner.take() else { return };
        match owner.catch_up().await {
            Ok(()) => self.has_all(&owner),
            Err(error) => self.failed("the owner's reading", &error),
        }
        self.note("the owner", &owner);
        self.owner = Some(owner);
    }

    async fn say(&mut self, step: usize) {
        let size = self.below([80, 700, 12_000][self.below(3) as usize]) as usize;
        let text = format!("{step}{}", "x".repeat(size));
        let Some(mut owner) = self.owner.take() else { return };
        match owner.try_say(&text).await {
            Ok(Append::Committed(_)) => {}
            Ok(Append::Taken { .. }) => {
                if let Err(error) = owner.catch_up().await {
                    self.failed("the owner's reading", &error);
                }
            }
            Err(error) => self.failed("an append", &error),
        }
        self.note("the owner", &owner);
        self.owner = Some(owner);
    }

    /// One small step of the reader; it begins again where the log begins when it comes too late.
    async fn read_on(&mut self) {
        let max_bytes = 1 + self.below(4000) as usize;
        let (next, by) = (self.reader.next, soon(&self.env));
        match self.reader.log.read(next, max_bytes, Cause::Read, by).await {
            Ok(batch) => {
                for entry in batch.entries {
                    let known = self.seen.get(&entry.lsn);
                    if known.is_some_and(|(hash, _)| *hash != entry.hash) {
                        self.found.push(format!("the reader has another entry {}", entry.lsn));
                    }
                    self.reader.next = entry.lsn.next();
                }
            }
            Err(Error::Trimmed { start, .. }) => self.reader.next = start,
            Err(error) => self.failed("the reader's reading", &error),
        }
    }

    async fn trim(&mut self) {
        self.catch_up().await;
        let Some(owner) = &self.owner else { return };
        let (log, below) = (owner.log.clone(), owner.next);
        if self.below(2) == 0 {
            self.objects.advance(RETENTION + Duration::from_secs(1));
        }
        if let Err(error) = log.trim(below, soon(&self.env)).await {
            self.failed("a trim", &error);
        }
    }

    async fn archive(&mut self) {
        let Some(owner) = &self.owner else { return };
        let (log, last) = (owner.log.clone(), owner.next.prev());
        if let Err(error) = log.archive_through(last, soon(&self.env)).await {
            self.failed("archiving", &error);
        }
    }

    async fn switch(&mut self) {
        let Some(owner) = &self.owner else { return };
        let log = owner.log.clone();
        let to = if self.below(3) == 0 { LogKind::Bucket } else { LogKind::Quorum };
        if let Err(error) = log.switch(to, soon(&self.env)).await {
            self.failed("a switch", &error);
        }
    }

    async fn step(&mut self, step: usize) {
        if self.owner.is_none() && self.below(3) == 0 {
            self.disk.limit_space(None);
            return self.start().await;
        }
        match self.below(100) {
            0..45 => self.say(step).await,
            45..50 => self.catch_up().await,
            50..60 => self.archive().await,
            60..67 => self.disk.limit_space(Some(self.below(8) * 512)),
            67..72 => self.disk.limit_space(None),
            72..77 => self.disk.fail_next_sync(),
            77..82 => self.start().await,
            82..86 => {
                self.owner = None;
                self.disk.crash(&*self.random);
                self.start().await;
            }
            86..90 => self.trim().await,
            90..94 => self.switch().await,
            _ => self.read_on().await,
        }
    }

    /// There is space again; the owner starts anew and has everything.
    async fn judge(mut self) -> Vec<String> {
        self.disk.limit_space(None);
        for power_goes in [false, true] {
            self.owner = None;
            if power_goes {
                self.disk.crash(&*self.random);
            }
            // A sync that was to fail fails the first of them.
            for _ in 0..2 {
                if self.owner.is_none() {
                    self.start().await;
                }
            }
            if self.owner.is_none() && self.found.is_empty() {
                self.found.push("the log cannot be opened though all is well again".to_owned());
            }
        }
        self.found
    }
}

fn owners(life: u64, disk: &Arc<SimDisk>, segment_bytes: u64, buffer_bytes: usize) -> LogOptions {
    LogOptions {
        segment_bytes,
        buffer_bytes,
        retention: RETENTION,
        ..quorum_options(1, life, disk)
    }
}

fn play(seed: u64, planted: Planted) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut storm = Storm::new(seed, planted).await;
        for step in 0..STEPS {
            storm.step(step).await;
            if !storm.found.is_empty() {
                return storm.found;
            }
        }
        storm.judge().await
    })
}

#[test]
fn storm_over_a_local_disk_loses_nothing_and_calls_nothing_damaged() {
    // More by hand: TELESTO_SEEDS=500.
    let seeds = std::env::var("TELESTO_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    for seed in 1..=seeds {
        assert_eq!(play(seed, Planted::NONE), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn each_mend_that_is_taken_out_is_found_and_the_seed_is_clean_with_it() {
    for (bug, seed) in MENDS {
        let shows = |seed: u64| {
            let found = play(seed, Planted::only(*bug)).into_iter().next();
            found.map(|first| (seed, first))
        };
        let found = std::iter::once(*seed).chain(1..=ENOUGH).find_map(shows);
        let (found, first) =
            found.unwrap_or_else(|| panic!("{bug:?} was not found in {ENOUGH} seeds"));
        println!("{bug:?}: seed {found}: {first}");
        assert_eq!(play(found, Planted::NONE), Vec::<String>::new(), "seed {found}");
    }
}
