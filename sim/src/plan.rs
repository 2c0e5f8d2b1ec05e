//! What a seed asks for: workload, processes, faults, time.
//!
//! # Invariants
//! A plan depends on the seed alone.

use std::time::Duration;

use telesto_bucket::FaultRates;
use telesto_bucket::latency::{LatencyModel, Spread};
use telesto_log::LogKind;
use telesto_testkit::list_append::Isolation;
use telesto_txn::{Durability, Level, Upkeep};

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
    /// SQL over tables with indexes and foreign keys, definitions changing; never drawn by a seed
    /// of its own accord.
    Sql,
}

/// What stands between a process and the store (`crate::store`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Middlebox {
    /// A listing takes up to this long; zero: it is a snapshot.
    pub walk: Duration,
    /// Listings come in no order.
    pub unordered: bool,
    /// Share of conditional puts sent twice, the second answer arriving.
    pub repeat_at_once: f64,
    /// Share of conditional puts sent again later.
    pub repeat_later: f64,
    /// How much later, at most.
    pub later: Duration,
    /// Share of puts whose reply is held.
    pub hold: f64,
    /// The same for versions of the chain.
    pub hold_chain: f64,
    /// How long a reply is held, at most.
    pub held: Duration,
}

impl Middlebox {
    /// Nothing stands there.
    pub const NONE: Self = Self {
        walk: Duration::ZERO,
        unordered: false,
        repeat_at_once: 0.0,
        repeat_later: 0.0,
        later: Duration::ZERO,
        hold: 0.0,
        hold_chain: 0.0,
        held: Duration::ZERO,
    };

    /// Whether puts and their replies pass untouched.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.repeat_at_once + self.repeat_later + self.hold + self.hold_chain == 0.0
    }
}

/// Which checkpoint engine a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkpoint {
    /// The in-memory one.
    Memory,
    /// SlateDB in the simulated bucket.
    SlateDb,
}

/// What one life of a node is set to; lives differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Largest write set inside an entry, bytes; larger ones go to part objects.
    pub inline_bytes: usize,
    /// Checkpoint interval.
    pub checkpoint_interval: Duration,
    /// Memory bound of the tail, bytes.
    pub tail_bytes: u64,
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
    /// The checkpoint engine.
    pub checkpoint: Checkpoint,
    /// What stands between processes and store.
    pub middlebox: Middlebox,
    /// The store's answers tell its time.
    pub tells_time: bool,
    /// Machines are paused, their clocks with them.
    pub pauses: bool,
    /// Clocks step by years, not only by minutes.
    pub wild_clocks: bool,
    /// The local disk fills up, fails its syncs, hangs; the machine loses its power.
    pub sick_disk: bool,
    /// The local directory is put back to an older state.
    pub restores: bool,
    /// Some snapshots are held for longer than twice the retention.
    pub long_snapshots: bool,
    /// Clients read as of times in the past, and again.
    pub as_of: bool,
    /// Nodes differ in their settings.
    pub mixed_settings: bool,
    /// How often old objects are collected.
    pub collect_every: Duration,
    /// Size of a local segment file, bytes.
    pub segment_bytes: u64,
}

/// Makes the second series of draws another one than the first.
const SECOND: u64 = 0x5eed_0f5e_c04d;

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
        let plan = Self::first_part(seed, &mut draws);
        plan.with_second_part(&mut Draws(seed ^ SECOND))
    }

    /// What plans had from the beginning; a seed that once found a bug keeps it.
    fn first_part(seed: u64, draws: &mut Draws) -> Self {
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
            checkpoint: Checkpoint::Memory,
            middlebox: Middlebox::NONE,
            tells_time: false,
            pauses: false,
            wild_clocks: false,
            sick_disk: false,
            restores: false,
            long_snapshots: false,
            as_of: false,
            mixed_settings: false,
            collect_every: Duration::from_secs(600),
            segment_bytes: 64 << 20,
        }
    }

    /// What was added since.
    fn with_second_part(self, draws: &mut Draws) -> Self {
        let mut one_in = |n: u64| draws.below(n) == 0;
        let share = |drawn: bool, share: f64| if drawn { share } else { 0.0 };
        let checkpoint = if one_in(4) { Checkpoint::SlateDb } else { Checkpoint::Memory };
        let walks = one_in(2);
        let middlebox = Middlebox {
            walk: if walks { Duration::from_millis(800) } else { Duration::ZERO },
            unordered: walks && one_in(3),
            repeat_at_once: share(one_in(3), 0.03),
            repeat_later: share(one_in(3), 0.03),
            later: self.retention * 4,
            hold: share(one_in(4), 0.01),
            hold_chain: share(self.switches || one_in(4), 0.3),
            held: Duration::from_secs(25),
        };
        let calm = self.misfortune_every.is_none();
        Self {
            checkpoint,
            middlebox: if calm { Middlebox::NONE } else { middlebox },
            tells_time: !one_in(3),
            pauses: one_in(3),
            wild_clocks: one_in(8),
            sick_disk: one_in(2),
            restores: one_in(3),
            long_snapshots: one_in(2),
            as_of: one_in(2),
            mixed_settings: one_in(2),
            collect_every: self.retention,
            segment_bytes: [2 << 10, 16 << 10, 64 << 20][draws.below(3) as usize],
            // Where the log is switched it is switched often.
            misfortune_every: self
                .misfortune_every
                .map(|every| if self.switches { every / 3 } else { every }),
            ..self
        }
    }

    /// Background work, scaled down to the length of a run.
    #[must_use]
    pub fn upkeep(&self) -> Upkeep {
        Upkeep {
            collect_every: self.collect_every,
            trim_every: Duration::from_secs(3),
            tables_min_age: self.retention,
            manifests_min_age: self.retention / 2,
        }
    }

    /// What life `life` of node `node` is set to.
    #[must_use]
    pub fn settings(&self, node: usize, life: u64) -> Settings {
        let usual = Settings {
            inline_bytes: self.inline_bytes,
            checkpoint_interval: self.checkpoint_interval,
            tail_bytes: 64 << 20,
        };
        if !self.mixed_settings {
            return usual;
        }
        // A node keeps its settings for some lives, then somebody changes them.
        let mut draws = Draws(self.seed ^ (node as u64 + 1).wrapping_mul(0xa076_1d64) ^ (life / 3));
        Settings {
            inline_bytes: [1, 60, 200, 1 << 20][draws.below(4) as usize],
            checkpoint_interval: match draws.below(3) {
                0 => self.retention.mul_f64(0.9),
                _ => Duration::from_millis(300 + draws.below(5000)),
            },
            tail_bytes: [16 << 10, 64 << 10, 64 << 20][draws.below(3) as usize],
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
            misfortune_every: plan
                .misfortune_every
                .map(|every| every / if plan.switches { 2 } else { 4 }),
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
