//! How long single reads take: of rows in memory, strict, and from the bucket with and without
//! hedging.
//!
//! # Invariants
//! A read counts as cold when it made requests for itself; a strict read's look at the log's tail
//! is a request of the read-only transaction's beginning.
//!
//! # Limits
//! As of the runs: a read from memory takes no simulated time at all.

use std::sync::Arc;

use telesto_bucket::meter::scoped;
use telesto_bucket::{Cause, Hedging, MemoryStore, ScopeMeter};
use telesto_testkit::World;
use telesto_txn::{Database as _, Level, ReadFor, TxnOptions};

use crate::error::Result;
use crate::measure::{Scene, Times, note, times};
use crate::ours::{key, load, open};
use crate::workload::Table;

/// Reads of each kind.
const READS: u64 = 5_000;
/// A cache that holds next to nothing, bytes.
const NO_CACHE: u64 = 64 << 10;
/// Rows that are read again and again.
const HOT: u64 = 50;

/// What reads took.
pub struct Reads {
    /// In a transaction that is validated at its commit, of rows in memory.
    pub warm: Times,
    /// A read-only transaction of a row in memory, with its look at the log's tail.
    pub strict: Times,
    /// Of rows that are only in the bucket.
    pub cold: Times,
}

/// Reads products of a shop that nobody changes.
pub fn run(scene: &Scene, hedging: Hedging) -> Result<Reads> {
    World::run(scene.seed, false, async |world| run_in(world, scene, hedging).await)
}

async fn run_in(world: World, scene: &Scene, hedging: Hedging) -> Result<Reads> {
    let store = MemoryStore::new(Arc::clone(&world.env.clock));
    load(&world, &store, scene).await?;
    let bucket = scene.setting.bucket(hedging);
    let mut reads = Reads { warm: times(), strict: times(), cold: times() };
    let node = open(&world, &store, scene, &bucket, ("warm", 0)).await?;
    let env = &node.process.env;
    for round in 0..READS {
        let row = key(Table::Products, u128::from(round % HOT) + 1);
        for read_only in [false, true] {
            let begun = env.clock.monotonic();
            let options = TxnOptions { read_only, ..TxnOptions::default() };
            let txn = node.engine.begin(options).await?;
            let scope = ScopeMeter::for_cause(Cause::Read);
            scoped(Arc::clone(&scope), txn.get(&row, ReadFor::Query)).await?;
            txn.rollback();
            let took = env.clock.monotonic().saturating_sub(begun);
            // The first reads of a row bring it into memory.
            if scope.totals().gets == 0.0 {
                note(if read_only { &mut reads.strict } else { &mut reads.warm }, took);
            }
        }
    }
    node.process.kill();
    let small = Scene { cache_bytes: NO_CACHE, ..scene.clone() };
    let node = open(&world, &store, &small, &bucket, ("cold", 0)).await?;
    let env = &node.process.env;
    let eventual = TxnOptions { level: Level::Eventual, read_only: true, ..TxnOptions::default() };
    for _ in 0..READS {
        let product = env.random.next_u64() % scene.shop.products.max(1);
        let row = key(Table::Products, u128::from(product) + 1);
        let begun = env.clock.monotonic();
        let txn = node.engine.begin(eventual).await?;
        let scope = ScopeMeter::for_cause(Cause::Read);
        scoped(Arc::clone(&scope), txn.get(&row, ReadFor::Query)).await?;
        txn.rollback();
        if scope.totals().gets > 0.0 {
            note(&mut reads.cold, env.clock.monotonic().saturating_sub(begun));
        }
    }
    node.process.kill();
    Ok(reads)
}
