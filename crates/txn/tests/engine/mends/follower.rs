//! A process that asks seldom while another writes much: its tail holds no more than its bound
//! allows, however much it has to catch up with, and what it reads is what was written.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use telesto_bucket::LatencyModel;
use telesto_txn::{Database as _, EngineOptions, Error, Level, TxnOptions};

use super::{Draws, Found};
use crate::harness::{Process, World, bytes};

/// What a tail may hold over its bound: what one round of reading brings.
const SLACK_BYTES: u64 = 512 << 10;

#[derive(Clone, Copy, Debug)]
struct Settings {
    tail_bytes: u64,
    interval: Duration,
}

impl Settings {
    fn draw(draws: &mut Draws) -> Self {
        Self {
            tail_bytes: [64 << 10, 128 << 10, 256 << 10][draws.below(3) as usize],
            interval: draws.between(Duration::from_millis(300), Duration::from_secs(20)),
        }
    }

    fn give(&self, options: &mut EngineOptions) {
        options.retention = Duration::from_secs(3600);
        options.memory.tail_bytes = self.tail_bytes;
        options.checkpoint_interval = self.interval;
    }
}

struct Play {
    draws: Draws,
    writer: Process,
    follower: Process,
    limit: u64,
    rows: u64,
    found: Found,
}

pub fn play(world: World, mut draws: Draws) -> Pin<Box<dyn Future<Output = Found>>> {
    Box::pin(async move {
        let settings = (Settings::draw(&mut draws), Settings::draw(&mut draws));
        let model = draws.one_in(2).then(|| LatencyModel::named("s3-standard").expect("known"));
        let writer = world.start_with(|options| settings.0.give(options)).await;
        let follower = world.try_start(model, |options| settings.1.give(options)).await;
        let follower = follower.expect("opens");
        let limit = settings.1.tail_bytes;
        let mut play = Play { draws, writer, follower, limit, rows: 0, found: Found::new() };
        for _ in 0..3 {
            let open = play.follower.begin(Level::Snapshot).await;
            play.write().await;
            play.ask().await;
            drop(open);
        }
        play.found
    })
}

impl Play {
    /// The writer commits up to many times what the follower may hold, at a pace of its own.
    async fn write(&mut self) {
        let size = 1024 << self.draws.below(4);
        let total = self.draws.below(2 << 20);
        let pause = self.draws.between(Duration::ZERO, Duration::from_secs(1));
        for _ in 0..=total / size {
            let key = format!("row-{:06}", self.rows);
            self.writer.put(&key, &"v".repeat(size as usize)).await;
            self.rows += 1;
            tokio::time::sleep(pause).await;
        }
        if self.draws.one_in(2)
            && let Err(error) = self.writer.engine.fold().await
        {
            self.found.push(format!("a fold: {error}"));
        }
        tokio::time::sleep(self.draws.between(Duration::ZERO, Duration::from_secs(60))).await;
    }

    /// The follower asks for the newest row, and is watched while it catches up.
    async fn ask(&mut self) {
        let key = format!("row-{:06}", self.rows - 1);
        let done = Cell::new(false);
        let asking = async {
            let found = strict(&self.follower, &key).await;
            done.set(true);
            found
        };
        let watching = async {
            let mut most = 0;
            while !done.get() {
                most = most.max(self.follower.engine.shard().tail_bytes());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            most.max(self.follower.engine.shard().tail_bytes())
        };
        let (found, most) = futures::join!(asking, watching);
        match found {
            Ok(true) => {}
            Ok(false) => self.found.push(format!("{key} is not there")),
            Err(error) => self.found.push(format!("{key}: {error}")),
        }
        if most > 2 * self.limit + SLACK_BYTES {
            self.found.push(format!("the tail held {most} of {} bytes", self.limit));
        }
    }
}

async fn strict(process: &Process, key: &str) -> Result<bool, Error> {
    let options = TxnOptions { read_only: true, ..TxnOptions::default() };
    let txn = process.engine.begin(options).await?;
    Ok(txn.get(&bytes(key), telesto_txn::ReadFor::Query).await?.is_some())
}
