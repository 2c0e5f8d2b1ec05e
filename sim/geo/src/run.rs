//! One seed from beginning to end.
//!
//! # Invariants
//! Regions, latencies, skews, plane, clients, misfortunes: all drawn from the seed. After the
//! misfortunes everything heals and comes to rest; only then is judged what has to be everywhere.
//!
//! # On failure
//! [`Report::violations`]; its text ends in the command that replays the seed.
//!
//! # Limits
//! Two to seven virtual seconds of work, three to seven regions.

use std::collections::BTreeMap;
use std::fmt;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use telesto_common::RegionId;
use telesto_geo::{Bug, Latencies, PlaneConfig, PlaneKind};
use telesto_testkit::causal::check_with_versions;

use crate::clients::Clients;
use crate::misfortune::{FIRST, Misfortune, causal, plane, random_tree};
use crate::{Happening, World, WorldConfig};

/// How a seed is played.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A planted bug.
    pub plant: Option<Bug>,
    /// Only this plane, without changes of planes.
    pub plane: Option<PlaneKind>,
    /// Keep every event of the run.
    pub verbose: bool,
}

/// What a seed has shown.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How it was played.
    pub options: Options,
    /// The plane it began with.
    pub plane: PlaneKind,
    /// Commits and events of clients.
    pub commits: usize,
    /// Reads and writes.
    pub operations: usize,
    /// A hash of every message with its time.
    pub hash: u64,
    /// What is wrong.
    pub violations: Vec<String>,
    /// Every event, when asked for.
    pub events: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, plane, commits, operations, hash, violations, .. } = self;
        write!(
            f,
            "seed {seed}: {plane} first, {commits} commits, {operations} operations, {hash:016x}"
        )?;
        for violation in violations.iter().take(8) {
            write!(f, "\n  VIOLATION {violation}")?;
        }
        if !violations.is_empty() {
            write!(f, "\n  replay: cargo run -p telesto-geo-sim -- --seed {seed} --verbose")?;
            let name = |(name, bug): &(&'static str, Bug)| {
                (Some(*bug) == self.options.plant).then_some(*name)
            };
            if let Some(plant) = Bug::ALL.iter().find_map(name) {
                write!(f, " --plant {plant}")?;
            }
            if let Some(plane) = self.options.plane {
                write!(f, " --plane {plane}")?;
            }
        }
        Ok(())
    }
}

struct Run {
    world: World,
    clients: Clients,
    misfortune: Misfortune,
    random: SmallRng,
    options: Options,
    violations: Vec<String>,
    events: Vec<String>,
}

/// Plays a seed.
#[must_use]
pub fn run(seed: u64, options: Options) -> Report {
    let mut random = SmallRng::seed_from_u64(seed);
    let members = random.random_range(3..=7);
    let kind = options.plane.unwrap_or_else(|| causal(&mut random));
    let config = WorldConfig {
        seed: random.random(),
        latencies: latencies(members, &mut random),
        jitter_micros: if random.random_bool(0.5) { random.random_range(0..20_000) } else { 0 },
        skew_micros: (0..members).map(|_| random.random_range(0..60_000)).collect(),
        plane: first_plane(kind, members, &mut random),
        planted: options.plant,
    };
    let mut report = Report {
        seed,
        options,
        plane: kind,
        commits: 0,
        operations: 0,
        hash: 0,
        violations: Vec::new(),
        events: Vec::new(),
    };
    let mut world = match World::new(&config) {
        Ok(world) => world,
        Err(error) => {
            report.violations.push(format!("no world: {error}"));
            return report;
        }
    };
    let clients = Clients::new(&mut world, &mut random);
    let misfortune = Misfortune::new(&mut world, kind, options.plane);
    let (violations, events) = (Vec::new(), Vec::new());
    let mut run = Run { world, clients, misfortune, random, options, violations, events };
    run.play();
    run.judge();
    report.commits = run.clients.commits.len();
    report.operations = run.clients.history.iter().map(Vec::len).sum();
    report.hash = run.world.hash();
    report.violations = run.violations;
    report.events = run.events;
    report
}

fn latencies(members: usize, random: &mut SmallRng) -> Latencies {
    if members == 7 && random.random_bool(0.5) {
        return Latencies::saturn();
    }
    let mut latencies = Latencies::saturn().select(&vec![RegionId(0); members]);
    for a in (0..members as u16).map(RegionId) {
        for b in (0..a.0).map(RegionId) {
            let micros = random.random_range(2_000..160_000);
            latencies.set(a, b, micros);
            latencies.set(b, a, micros);
        }
    }
    latencies
}

fn first_plane(kind: PlaneKind, members: usize, random: &mut SmallRng) -> PlaneConfig {
    let tree = random_tree(members, random);
    plane(kind, tree, random)
}

impl Run {
    fn play(&mut self) {
        let works_for = self.random.random_range(2_000_000..7_000_000);
        self.until(World::BEGIN_MICROS + works_for);
        self.misfortune.over = true;
        let members = self.world.members() as u16;
        for a in (0..members).map(RegionId) {
            for b in (0..a.0).map(RegionId) {
                self.world.heal(a, b);
            }
        }
        self.until(self.world.now_micros() + 2_000_000);
        self.clients.resting = true;
        // Patience, the longest beat, and a few of the longest ways.
        self.until(self.world.now_micros() + 8_000_000);
    }

    fn until(&mut self, until_micros: u64) {
        while self.violations.is_empty() {
            match self.world.next(until_micros) {
                Ok(None) => return,
                Ok(Some(happening)) => self.happen(happening),
                Err(error) => self.violations.push(format!("a correct peer was refused: {error}")),
            }
        }
    }

    fn happen(&mut self, happening: Happening) {
        let text = match happening {
            Happening::Applied(region, transaction) => {
                self.clients.apply(region, &transaction);
                let label = transaction.label;
                format!("{region} applies {} of {}", label.timestamp, label.source)
            }
            Happening::Attached(region, id) => {
                self.clients.attached(&mut self.world, region, id);
                format!("{region} attaches {}", id.0)
            }
            Happening::Wake(number) if number >= FIRST => {
                match self.misfortune.act(&mut self.world, &mut self.random, number) {
                    Ok(text) => text,
                    Err(error) => {
                        self.violations.push(error);
                        return;
                    }
                }
            }
            Happening::Wake(number) => {
                let index = number as usize % self.clients.len();
                let did = self.clients.act(&mut self.world, &mut self.random, index);
                format!("client {index} {did}")
            }
        };
        if self.options.verbose {
            let at = (self.world.now_micros() - World::BEGIN_MICROS) as f64 / 1000.0;
            self.events.push(format!("{at:10.3} ms  {text}"));
        }
    }

    fn judge(&mut self) {
        let versions = &self.clients.versions;
        let version =
            |value: u64| versions.get(&value).map(|(t, s)| u128::from(t.0) << 16 | u128::from(s.0));
        let causal = check_with_versions(&self.clients.history, version);
        self.violations.extend(causal.iter().map(ToString::to_string));
        if !self.violations.is_empty() {
            return;
        }
        if self.clients.waiting() > 0 {
            self.violations.push(format!("{} clients were never attached", self.clients.waiting()));
        }
        for region in (0..self.world.members() as u16).map(RegionId) {
            self.judge_region(region);
        }
        self.violations.extend(self.clients.diverged());
    }

    /// Everything placed in a region was applied there once, each stream in its order, and nothing
    /// waits.
    fn judge_region(&mut self, region: RegionId) {
        let pending = self.world.region(region).pending();
        if pending > 0 {
            self.violations.push(format!("{pending} transactions wait in {region} for ever"));
        }
        let mut due: BTreeMap<RegionId, Vec<_>> = BTreeMap::new();
        for (label, placement) in &self.clients.commits {
            if label.source != region && placement.has(region) {
                due.entry(label.source).or_default().push(label.timestamp);
            }
        }
        let mut applied: BTreeMap<RegionId, Vec<_>> = BTreeMap::new();
        for label in &self.clients.applied[usize::from(region.0)] {
            applied.entry(label.source).or_default().push(label.timestamp);
        }
        if due != applied {
            self.violations.push(format!("{region} did not apply each stream once and in order"));
        }
    }
}
