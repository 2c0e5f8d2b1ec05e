//! One run: build the world, let clients work while misfortunes strike, heal, read everything,
//! judge.
//!
//! # Invariants
//! After healing, every node must open and answer a strict read within [`RECOVERY`]: a database
//! that stays unavailable once its bucket is well again is broken too.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_bucket::{FaultRates, MemoryStore};
use telesto_common::Label;
use telesto_log::LogKind;
use telesto_shard::{EngineKind, MemoryCheckpoints};
use telesto_testkit::{World, bank, list_append, register, session};

use crate::client::{Client, OPENING_BALANCE};
use crate::disk::{Ailment, Backup, SimDisk};
use crate::history::{Counts, History};
use crate::node::{Node, Shared};
use crate::plan::{Checkpoint, Middlebox, Plan, Workload};
use crate::plant::Plant;

/// How long a healed node may take to answer, virtual time.
const RECOVERY: Duration = Duration::from_secs(120);

/// Opening must end within this, whatever befalls bucket and disk, virtual time.
const OPENING: Duration = Duration::from_secs(150);

/// What a tail may hold over its bound: what one round of commits brings (an external write set
/// counts with the 128 KiB that its readers may take).
const SLACK_BYTES: u64 = 512 << 10;

/// Violations printed of one run: the first ones tell most.
const SHOWN: usize = 8;

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was run.
    pub plan: Plan,
    /// What was broken; empty when all is well.
    pub violations: Vec<String>,
    /// Transactions by outcome.
    pub counts: Counts,
    /// Faults that struck requests.
    pub faults: u64,
    /// Crashes, freezes, clock jumps and outages.
    pub misfortunes: u64,
    /// Hash of the whole trace, and number of events in it.
    pub trace: (u64, u64),
    /// The trace as text, when asked for.
    pub events: Vec<String>,
    plant: Option<Plant>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { seed, workload, level, nodes, log, switches, checkpoint, .. } = &self.plan;
        let switched = if *switches { ", switched" } else { "" };
        let Counts { committed, aborted, unknown } = self.counts;
        writeln!(
            f,
            "seed {seed}: {workload:?} at {level:?} on {nodes} nodes, {log} log{switched}, {checkpoint:?}: {committed} committed, {aborted} aborted, {unknown} unknown; {} faults, {} misfortunes; trace {:016x} of {} events",
            self.faults, self.misfortunes, self.trace.0, self.trace.1
        )?;
        for violation in self.violations.iter().take(SHOWN) {
            writeln!(f, "  VIOLATION {violation}")?;
        }
        if self.violations.len() > SHOWN {
            writeln!(f, "  and {} more", self.violations.len() - SHOWN)?;
        }
        if !self.violations.is_empty() {
            match self.plant {
                None if *workload == Workload::Sql => {
                    write!(f, "  replay: make sim SEED={seed} SQL=1")?;
                }
                None => write!(f, "  replay: make sim SEED={seed}")?,
                Some(plant) => write!(f, "  planted: {plant:?}")?,
            }
        }
        Ok(())
    }
}

/// Runs the plan of `seed`, with a planted bug if one is given; keeps the trace as text on demand.
#[must_use]
pub fn run(seed: u64, plant: Option<Plant>, keep_events: bool) -> Report {
    run_plan(Plan::of(seed), plant, keep_events)
}

/// Runs the SQL plan of `seed` ([`Plan::sql`]).
#[must_use]
pub fn run_sql(seed: u64, plant: Option<Plant>, keep_events: bool) -> Report {
    run_plan(Plan::sql(seed), plant, keep_events)
}

fn run_plan(plan: Plan, plant: Option<Plant>, keep_events: bool) -> Report {
    World::run(plan.seed, keep_events, async |world| Run::new(world, plan, plant).play().await)
}

pub(crate) struct Run {
    pub(crate) shared: Shared,
    pub(crate) history: Arc<History>,
    pub(crate) nodes: Vec<Node>,
    /// The last copy of the local directory.
    pub(crate) backup: Option<Backup>,
    values: Arc<AtomicU64>,
    next_session: u64,
    faults: u64,
    misfortunes: u64,
    until: Duration,
}

impl Run {
    fn new(world: World, plan: Plan, plant: Option<Plant>) -> Self {
        let until = world.now() + plan.duration;
        let shared = Shared {
            store: MemoryStore::new(Arc::clone(&world.env.clock)),
            checkpoints: match plan.checkpoint {
                Checkpoint::Memory => EngineKind::Memory(MemoryCheckpoints::new()),
                Checkpoint::SlateDb => EngineKind::SlateDb,
            },
            middlebox: Arc::new(Mutex::new(plan.middlebox)),
            disk: SimDisk::new(world.clone()),
            world,
            plan: Arc::new(plan),
            plant,
        };
        let nodes = (0..shared.plan.nodes).map(|number| Node::new(&shared, number)).collect();
        Self {
            shared,
            history: Arc::default(),
            nodes,
            backup: None,
            values: Arc::default(),
            next_session: 0,
            faults: 0,
            misfortunes: 0,
            until,
        }
    }

    async fn play(mut self) -> Report {
        for number in 0..self.nodes.len() {
            self.start(number).await;
        }
        self.strike_until_time_is_up().await;
        self.heal().await;
        let violations = self.judge();
        let world = &self.shared.world;
        Report {
            plan: (*self.shared.plan).clone(),
            violations,
            counts: self.history.counts(),
            faults: self.faults,
            misfortunes: self.misfortunes,
            trace: world.trace_hash(),
            events: world.events(),
            plant: self.shared.plant,
        }
    }

    fn client(&mut self, number: usize) -> Option<Client> {
        self.next_session += 1;
        let node = &self.nodes[number];
        Some(Client {
            world: self.shared.world.clone(),
            env: node.process.env.clone(),
            process: node.process.clone(),
            plan: Arc::clone(&self.shared.plan),
            history: Arc::clone(&self.history),
            db: node.database(self.shared.plant)?,
            sql: node.sql.clone(),
            session: self.next_session,
            label: Label::default(),
            values: Arc::clone(&self.values),
        })
    }

    /// Starts a node and its clients; whether it opened.
    pub(crate) async fn start(&mut self, number: usize) -> bool {
        let shared = self.shared.clone();
        let node = &mut self.nodes[number];
        self.faults += node.faults.struck();
        let by = shared.world.env.deadline(OPENING);
        let opened = shared.world.env.within(by, "opening", node.start(&shared)).await;
        let opened = opened.unwrap_or_else(|_| {
            self.history.broken(format!("node {number} did not open or fail within {OPENING:?}"));
            Err(telesto_txn::Error::Unavailable("it did not end".to_owned()))
        });
        shared.world.trace(|| match &opened {
            Ok(()) => format!("node {number} opened"),
            Err(error) => format!("node {number} did not open: {error}"),
        });
        if let Err(error) = opened {
            if matches!(error, telesto_txn::Error::Corrupt(_)) {
                self.history.broken(format!("damage reported without any, at opening: {error}"));
            }
            self.nodes[number].crash(&shared);
            return false;
        }
        for _ in 0..self.shared.plan.clients {
            if let Some(client) = self.client(number) {
                self.nodes[number].process.env.spawn("client", client.work(self.until));
            }
        }
        if self.shared.plan.long_snapshots
            && let Some(client) = self.client(number)
        {
            let held = client.hold_snapshots(self.until);
            self.nodes[number].process.env.spawn("client", held);
        }
        true
    }

    async fn strike_until_time_is_up(&mut self) {
        let world = self.shared.world.clone();
        let Some(every) = self.shared.plan.misfortune_every else {
            world.sleep(self.until.saturating_sub(world.now())).await;
            return;
        };
        while world.now() < self.until {
            world.sleep(world.env.jitter(every * 2)).await;
            let number = world.draw(self.nodes.len() as u64) as usize;
            if self.nodes[number].process.is_dead() {
                self.start(number).await;
                continue;
            }
            self.misfortunes += 1;
            self.strike(number).await;
        }
    }

    /// Ends all misfortunes, then asks every node for everything.
    async fn heal(&mut self) {
        let world = self.shared.world.clone();
        world.trace(|| "all misfortunes end".to_owned());
        let mut plan = (*self.shared.plan).clone();
        plan.rates = FaultRates::NONE;
        self.shared.plan = Arc::new(plan);
        for node in &self.nodes {
            node.faults.set_rates(FaultRates::NONE);
            node.faults.resume();
            node.process.thaw();
            node.process.resume(true);
            node.process.set_clock_skew(0);
        }
        self.shared.disk.ail(Ailment::default());
        *self.shared.middlebox.lock() = Middlebox::NONE;
        // Clients finish what they have begun.
        world.sleep(Duration::from_secs(90)).await;
        self.check_archive().await;
        // On a quorum log only its owner answers: then each node is asked with the others gone.
        let one_by_one = self.shared.plan.switches || self.shared.plan.log == LogKind::Quorum;
        // The first one is asked as it is, whatever it has been through; those after it start anew.
        let nodes = self.nodes.len();
        let first = usize::try_from(self.shared.plan.seed).unwrap_or(0) % nodes;
        for number in (0..nodes).map(|turn| (first + turn) % nodes) {
            if one_by_one {
                for (other, node) in self.nodes.iter_mut().enumerate() {
                    if other != number {
                        self.faults += node.faults.struck();
                        node.crash(&self.shared);
                    }
                }
            }
            let by = world.now() + RECOVERY;
            while self.nodes[number].process.is_dead() && world.now() < by {
                self.start(number).await;
                world.sleep(Duration::from_secs(1)).await;
            }
            let mut answered = false;
            while !answered && world.now() < by {
                let Some(mut client) = self.client(number) else { break };
                let read = self.nodes[number].process.run(async move { client.final_read().await });
                let left = by.saturating_sub(world.now());
                let read = world.env.within(world.env.deadline(left), "a final read", read).await;
                answered = matches!(read, Ok(Some(true)));
                if answered {
                    self.check_memory(number);
                }
                world.sleep(Duration::from_millis(500)).await;
            }
            if !answered {
                self.history.broken(format!(
                    "node {number} does not answer within {RECOVERY:?} though all is well again"
                ));
            }
        }
        for node in &mut self.nodes {
            self.faults += node.faults.struck();
            node.crash(&self.shared);
        }
    }

    /// After a quiet while nothing is on a local disk alone: the archive's delay has a bound.
    async fn check_archive(&self) {
        let env = &self.shared.world.env;
        for node in &self.nodes {
            let Some(engine) = node.engine.clone() else { continue };
            if node.process.is_dead() || !engine.log().is_local_sequencer() {
                continue;
            }
            let next = engine.shard().applied().0.next();
            let by = node.process.env.deadline(Duration::from_secs(20));
            let asked = node.process.run(async move { engine.log().archived(by).await });
            let asked = env.within(env.deadline(Duration::from_secs(30)), "asking", asked).await;
            let Ok(Some(Ok(archived))) = asked else { continue };
            if archived < next {
                self.history.broken(format!(
                    "after a quiet minute entries {archived} to {} are on the disk of node {} alone",
                    next.prev(),
                    node.number
                ));
            }
        }
    }

    /// A node that has caught up holds no more than its settings allow.
    fn check_memory(&self, number: usize) {
        let node = &self.nodes[number];
        let Some(engine) = &node.engine else { return };
        let (held, limit) = (engine.shard().tail_bytes(), node.settings.tail_bytes);
        if held > 2 * limit + SLACK_BYTES {
            self.history.broken(format!("the tail of node {number} holds {held} of {limit} bytes"));
        }
    }

    fn judge(&self) -> Vec<String> {
        let plan = &self.shared.plan;
        let mut violations = self.history.all_broken();
        let total = OPENING_BALANCE * plan.keys as i64;
        match plan.workload {
            Workload::Append => violations.extend(
                list_append::check(&self.history.appends(), plan.isolation())
                    .iter()
                    .map(ToString::to_string),
            ),
            Workload::Bank => violations.extend(
                bank::check(&self.history.bank(), plan.keys as usize, total)
                    .iter()
                    .map(ToString::to_string),
            ),
            Workload::Register => violations.extend(
                register::check(&self.history.operations()).iter().map(ToString::to_string),
            ),
            Workload::Sql => violations.extend(crate::sql::judge(&self.history.sql())),
            Workload::Session => violations
                .extend(session::check(&self.history.sessions()).iter().map(ToString::to_string)),
        }
        violations
    }
}
