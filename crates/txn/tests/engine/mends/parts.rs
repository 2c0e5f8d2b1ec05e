//! Write sets in part objects: folds, collections, long snapshots and slow reads at times that a
//! seed draws. Whatever was told to be committed is read, by strict reads, by snapshots held
//! meanwhile, and after a crash.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::{Class, Fault, FaultRule};
use telesto_common::key::KeyRange;
use telesto_common::planted::Bug;
use telesto_txn::{
    Database as _, EngineOptions, Error, Level, ScanOptions, Transaction, TxnOptions,
};

use super::{Draws, Found};
use crate::harness::{Process, World, bytes};

/// Key ranges that are written whole, each by one transaction.
const TAGS: u64 = 5;
const ROWS: u64 = 8;

/// What one life of the process is set to.
#[derive(Clone, Copy, Debug)]
struct Settings {
    retention: Duration,
    interval: Duration,
    collect_every: Duration,
    cached: bool,
}

impl Settings {
    fn draw(draws: &mut Draws, unbounded: bool) -> Self {
        let retention = draws.between(Duration::from_secs(60), Duration::from_secs(180));
        let interval = draws.between(Duration::from_secs(2), retention);
        Self {
            retention,
            // Beyond the retention it is refused at opening, unless the mend that refuses it is
            // out.
            interval: if unbounded { interval * 2 + retention } else { interval },
            collect_every: draws.between(retention / 2, retention * 6),
            cached: draws.one_in(3),
        }
    }

    fn give(&self, options: &mut EngineOptions) {
        options.retention = self.retention;
        options.checkpoint_interval = self.interval;
        options.upkeep.collect_every = self.collect_every;
        options.upkeep.trim_every = self.retention / 16;
        options.write_set.inline_bytes = 200;
        if !self.cached {
            // No block of a part stays in memory.
            options.memory.cache_bytes = 1;
        }
    }
}

/// A snapshot that is held, what it must read, and until when.
struct Held {
    txn: Arc<dyn Transaction>,
    rows: BTreeMap<u64, u64>,
    until: Duration,
}

struct Play {
    world: World,
    draws: Draws,
    settings: Settings,
    process: Process,
    /// The newest version of each tag that was told to be committed; of some it is not known.
    told: BTreeMap<u64, u64>,
    versions: u64,
    held: Vec<Held>,
    found: Found,
}

pub fn play(world: World, draws: Draws) -> Pin<Box<dyn Future<Output = Found>>> {
    Box::pin(async move {
        let mut play = Play::new(world, draws).await;
        let end = play.settings.retention * 10 + play.settings.interval * 6;
        while play.found.is_empty() && play.now() < end {
            let pause = play.draws.between(Duration::ZERO, play.settings.retention / 5);
            tokio::time::sleep(pause).await;
            play.step().await;
        }
        play.judge().await
    })
}

impl Play {
    async fn new(world: World, mut draws: Draws) -> Self {
        let settings = Settings::draw(&mut draws, world.planted.has(Bug::PartsByAge));
        let process = world.start_with(|options| settings.give(options)).await;
        Self {
            world,
            draws,
            settings,
            process,
            told: BTreeMap::new(),
            versions: 0,
            held: Vec::new(),
            found: Found::new(),
        }
    }

    fn now(&self) -> Duration {
        self.process.env.clock.monotonic()
    }

    /// Damage is never expected here; whatever else fails may fail.
    fn failed(&mut self, what: &str, error: &Error) {
        if matches!(error, Error::Corrupt(_)) {
            self.found.push(format!("{what}: damage reported without any: {error}"));
        }
    }

    async fn step(&mut self) {
        match self.draws.below(60) {
            0..15 => self.copy().await,
            15..28 => self.put_one().await,
            28..38 => self.read().await,
            38..46 => self.hold().await,
            46..56 => self.read_held().await,
            56..59 => self.slow_parts(),
            // Seldom: whoever starts anew leaves folding and collecting to others for a long time.
            _ => self.restart().await,
        }
    }

    /// Writes all rows of a tag: too many for an entry.
    async fn copy(&mut self) {
        let tag = self.draws.below(TAGS);
        self.write(tag, ROWS).await;
    }

    /// Something small, so that there is something to fold.
    async fn put_one(&mut self) {
        self.write(TAGS, 1).await;
    }

    async fn write(&mut self, tag: u64, rows: u64) {
        self.versions += 1;
        let version = self.versions;
        let txn = match self.process.engine.begin(TxnOptions::default()).await {
            Ok(txn) => txn,
            Err(error) => return self.failed("a begin", &error),
        };
        for row in 0..rows {
            let put = txn.put(bytes(&format!("{tag}-{row}")), bytes(&format!("{version:0100}")));
            if let Err(error) = put.await {
                return self.failed("a put", &error);
            }
        }
        match txn.commit().await {
            Ok(_) => {
                self.told.insert(tag, version);
            }
            Err(error) => {
                self.failed("a commit", &error);
                if matches!(error, Error::OutcomeUnknown { .. }) {
                    self.told.remove(&tag);
                }
            }
        }
    }

    /// A strict read of a tag.
    async fn read(&mut self) {
        let tag = self.draws.below(TAGS);
        let options = TxnOptions { read_only: true, ..TxnOptions::default() };
        match self.process.engine.begin(options).await {
            Ok(txn) => self.compare("a strict read", &txn, tag, &self.told.clone()).await,
            Err(error) => self.failed("a begin", &error),
        }
    }

    async fn hold(&mut self) {
        let options = TxnOptions { level: Level::Snapshot, ..TxnOptions::default() };
        match self.process.engine.begin(options).await {
            Ok(txn) => {
                let retention = self.settings.retention;
                let until = self.now() + self.draws.between(retention, retention * 7);
                self.held.push(Held { txn, rows: self.told.clone(), until });
            }
            Err(error) => self.failed("a begin", &error),
        }
    }

    async fn read_held(&mut self) {
        let now = self.now();
        self.held.retain(|held| held.until > now);
        if self.held.is_empty() {
            return;
        }
        let at = self.draws.below(self.held.len() as u64) as usize;
        let (txn, rows) = (Arc::clone(&self.held[at].txn), self.held[at].rows.clone());
        let tag = self.draws.below(TAGS);
        self.compare("a held snapshot", &txn, tag, &rows).await;
    }

    /// Reads all rows of `tag`, which are of the version that `told` says, if it says one.
    async fn compare(
        &mut self,
        what: &str,
        txn: &Arc<dyn Transaction>,
        tag: u64,
        told: &BTreeMap<u64, u64>,
    ) {
        let range = KeyRange::new(bytes(&format!("{tag}-")), bytes(&format!("{tag}.")));
        let mut scan = txn.scan(range, ScanOptions::default());
        let mut rows = Vec::new();
        loop {
            match scan.next_batch(3).await {
                Ok(batch) if batch.is_empty() => break,
                Ok(batch) => rows.extend(batch.into_iter().map(|(_, value)| value)),
                Err(error) => return self.failed(what, &error),
            }
        }
        let Some(version) = told.get(&tag) else { return };
        let wanted = vec![bytes(&format!("{version:0100}")); ROWS as usize];
        if rows != wanted {
            let read = rows.iter().map(|row| String::from_utf8_lossy(row).into_owned());
            let read: Vec<String> =
                read.map(|row| row.trim_start_matches('0').to_owned()).collect();
            self.found.push(format!("{what} of tag {tag}, version {version}, read {read:?}"));
        }
    }

    /// For a while each read of a part takes long, and so does a fold.
    fn slow_parts(&mut self) {
        self.process.faults.resume();
        let by = self.draws.between(Duration::ZERO, Duration::from_secs(8));
        self.process.faults.add(FaultRule {
            class: Some(Class::Get),
            key_contains: "/parts/".to_owned(),
            skip: 0,
            times: 1 + self.draws.below(20) as u32,
            fault: Fault::Slow(by),
        });
    }

    async fn restart(&mut self) {
        self.held.clear();
        let settings = self.settings;
        let fresh = self.world.try_start(None, |options| settings.give(options)).await;
        match fresh {
            Ok(fresh) => std::mem::replace(&mut self.process, fresh).crash(),
            Err(error) => self.failed("an opening", &error),
        }
    }

    /// All is well again: everything is read, before and after a crash and a fold.
    async fn judge(mut self) -> Found {
        self.process.faults.resume();
        for _ in 0..2 {
            for tag in 0..TAGS {
                let options = TxnOptions { read_only: true, ..TxnOptions::default() };
                match self.process.engine.begin(options).await {
                    Ok(txn) => self.compare("the last read", &txn, tag, &self.told.clone()).await,
                    Err(error) => self.found.push(format!("the last begin: {error}")),
                }
            }
            self.restart().await;
            if let Err(error) = self.process.engine.fold().await {
                self.found.push(format!("the last fold: {error}"));
            }
        }
        self.found
    }
}
