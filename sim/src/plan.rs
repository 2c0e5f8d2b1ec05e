//! What a seed asks for: workload, processes, faults, time.
//!
//! # Invariants
//! A plan depends on the seed alone.

use std::time::Duration;

use telesto_bucket::FaultRates;
use telesto_bucket::latency::{LatencyModel, Spread};
use telesto_log::LogKind;
use telesto_testkit::list_append::Isolation;
use telesto_txn::{Durability, Level};

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Append to lists, read lists, checked by dependency cycles.
    Append,
    /// Move money, read all accounts.
    Bank,
    /// Read, write, compare-and-set single keys, checked for linearizability.
    Register,
    /// Write and read under session guarantees.
    Session,
    /// SQL over tables with indexes and foreign keys, definitions changing; never drawn by a seed of its own accord.
    Sql,
}

/// What happens in one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// What the clients do.
    pub workload: Workload,
    /// Isolation of read-write transactions.
    pub level: Level,
    /// Kind of log the database is created with.
    pub log: LogKind,
    /// Whether the log is switched between kinds while it is in use.
    pub switches: bool,
    /// When commits are acknowledged; `None`: as the kind of log says.
    pub durability: Option<Durability>,
    /// Processes.
    pub nodes: usize,
    /// Clients a process.
    pub clients: usize,
    /// Keys.
    pub keys: u64,
    /// How long the clients work, virtual time.
    pub duration: Duration,
    /// Faults of the way to the bucket.
    pub rates: FaultRates,
    /// Times of the bucket.
    pub latency: LatencyModel,
    /// Log retention.
    pub retention: Duration,
    /// Checkpoint interval.
    pub checkpoint_interval: Duration,
    /// Mean time between misfortunes (crash, freeze, clock jump, outage).
    pub misfortune_every: Option<Duration>,
    /// Largest write set inside an entry, bytes; larger ones go to part objects.
    pub inline_bytes: usize,
    /// Whether clients claim the keys they are going to change.
    pub claims: bool,
}

/// Small numbers out of a seed, one after the other (SplitMix64).
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

impl Plan {
    /// The plan of `seed`.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut draws = Draws(seed);
        let workload = match draws.below(8) {
            0..=3 => Workload::Append,
            4 | 5 => Workload::Bank,
            6 => Workload::Register,
            _ => Workload::Session,
        };
        let level = match (workload, draws.below(10)) {
            (Workload::Append, 7 | 8) => Level::Snapshot,
            (Workload::Append, 9) => Level::ReadCommitted,
            _ => Level::Serializable,
        };
        let rates = match draws.below(4) {
            0 => FaultRates::NONE,
            1 => FaultRates { reset_after: 0.05, late: 0.02, ..FaultRates::HARSH },
            _ => FaultRates::HARSH,
        };
        let millis = |n: u64| Duration::from_millis(n);
        let p50 = 2 + draws.below(25);
        let spread = Spread { p50: millis(p50), p90: millis(p50 * 2) };
        let latency = LatencyModel { get: spread, put: spread, ..LatencyModel::S3_STANDARD };
        Self {
            seed,
            workload,
            level,
            log: if draws.below(4) == 0 { LogKind::Quorum } else { LogKind::Bucket },
            switches: draws.below(4) == 0,
            durability: (draws.below(4) == 0).then_some(Durability::Bucket),
            nodes: 2 + draws.below(3) as usize,
            clients: 1 + draws.below(3) as usize,
            keys: 2 + draws.below(5),
            duration: Duration::from_secs(60 + draws.below(120)),
            rates,
            latency,
            retention: Duration::from_secs(20 + draws.below(20)),
            checkpoint_interval: millis(500 + draws.below(4000)),
            misfortune_every: (draws.below(6) > 0).then(|| millis(2000 + draws.below(15_000))),
            inline_bytes: if draws.below(4) == 0 { 200 } else { 1 << 20 },
            // By the seed itself: those that once found a bug keep what they do.
            claims: seed % 5 == 4,
        }
    }

    /// The plan of `seed` for clients that speak SQL: the same misfortunes in a quarter of the time
    /// (a statement costs more real time than a transaction of the other workloads).
    #[must_use]
    pub fn sql(seed: u64) -> Self {
        let plan = Self::of(seed);
        Self {
            workload: Workload::Sql,
            level: Level::Serializable,
            nodes: plan.nodes.min(3),
            clients: plan.clients + 1,
            duration: Duration::from_secs(10) + plan.duration / 8,
            misfortune_every: plan.misfortune_every.map(|every| every / 4),
            ..plan
        }
    }

    /// What an append history of this plan is held to.
    #[must_use]
    pub fn isolation(&self) -> Isolation {
        match self.level {
            Level::ReadCommitted => Isolation::ReadCommitted,
            Level::Snapshot => Isolation::Snapshot,
            _ => Isolation::StrictSerializable,
        }
    }
}
