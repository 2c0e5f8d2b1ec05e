//! One run of a workload on a plane, measured.
//!
//! # Invariants
//! - Visibility is the time from a commit to its being handed out to be applied elsewhere; *extra*
//!   is what exceeds the latency of the direct way, which is what `eventual` takes. No jitter,
//!   clocks in step: differences are the planes' own.
//! - The first virtual second is not measured.
//!
//! # On failure
//! What a plane or a region refuses ends the run with the reason.
//!
//! # Limits
//! No queues and no processors: throughput is not measured. Messages, bytes and waits are counted
//! instead.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use telesto_common::{Label, RegionId};
use telesto_geo::{Attach, AttachId, Latencies, PlaneConfig};
use telesto_geo_sim::{Happening, Traffic, World, WorldConfig};

use crate::workload::Workload;

/// What is run.
pub struct Setup<'a> {
    pub latencies: &'a Latencies,
    pub plane: PlaneConfig,
    pub seed: u64,
    /// Measured virtual time, seconds.
    pub seconds: f64,
    /// Updates a second and region.
    pub rate: f64,
    /// Sessions of a region that read remotely all the time, one read after the other.
    pub travellers: usize,
}

/// What was seen.
pub struct Measure {
    latencies: Latencies,
    /// By source and target: visibility, microseconds.
    pub pairs: BTreeMap<(RegionId, RegionId), Histogram<u64>>,
    sums: BTreeMap<(RegionId, RegionId), (u64, u64)>,
    pub updates: u64,
    pub traffic: Traffic,
    /// How long sessions that moved waited to be attached, microseconds, of reads there and back.
    pub waits: Histogram<u64>,
}

fn histogram() -> Histogram<u64> {
    // Up to a minute; the bounds are constants that it accepts.
    Histogram::new_with_bounds(1, 60_000_000, 3).unwrap_or_else(|_| unreachable!("constant bounds"))
}

impl Measure {
    /// Extra visibility of a pair on average, ms.
    pub fn pair_extra(&self, from: RegionId, to: RegionId) -> Option<f64> {
        let (sum, count) = self.sums.get(&(from, to))?;
        let direct = self.latencies.get(from, to) as f64;
        Some((*sum as f64 / *count as f64 - direct) / 1000.0)
    }

    /// Extra visibility over all remote applications, ms.
    pub fn average_extra(&self) -> f64 {
        let (mut extra, mut all) = (0.0, 0.0);
        for ((from, to), (_, count)) in &self.sums {
            extra += self.pair_extra(*from, *to).unwrap_or(0.0) * *count as f64;
            all += *count as f64;
        }
        if all > 0.0 { extra / all } else { 0.0 }
    }

    /// Mean visibility over all remote applications, ms.
    pub fn average_visibility(&self) -> f64 {
        let sums = self.sums.values().fold((0, 0), |(s, c), (sum, count)| (s + sum, c + count));
        sums.0 as f64 / sums.1.max(1) as f64 / 1000.0
    }

    /// The pair with the greatest average extra, ms.
    pub fn worst_pair(&self) -> (f64, (RegionId, RegionId)) {
        let extra =
            self.sums.keys().map(|(f, t)| (self.pair_extra(*f, *t).unwrap_or(0.0), (*f, *t)));
        extra.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default()
    }

    /// Extra visibility of a pair at the 90th percentile, ms.
    pub fn p90(&self, from: RegionId, to: RegionId) -> f64 {
        let direct = self.latencies.get(from, to) as f64;
        let value = self.pairs.get(&(from, to)).map_or(0, |pair| pair.value_at_quantile(0.9));
        (value as f64 - direct) / 1000.0
    }

    /// The greatest extra at the 90th percentile of any pair, ms.
    pub fn worst_p90(&self) -> f64 {
        self.pairs.keys().map(|(from, to)| self.p90(*from, *to)).fold(0.0, f64::max)
    }

    /// Remote applications.
    pub fn deliveries(&self) -> u64 {
        self.sums.values().map(|(_, count)| count).sum()
    }

    /// Messages an update, all kinds.
    pub fn messages(&self) -> f64 {
        let Traffic { payloads, beats, labels, .. } = self.traffic;
        (payloads + beats + labels) as f64 / self.updates.max(1) as f64
    }

    /// Bytes of metadata an update, all messages.
    pub fn metadata_bytes(&self) -> f64 {
        let bytes = self.traffic.payload_metadata_bytes + self.traffic.other_metadata_bytes;
        bytes as f64 / self.updates.max(1) as f64
    }
}

/// A session that reads remotely and returns, again and again.
#[derive(Clone, Copy)]
struct Traveller {
    home: RegionId,
    /// Where it goes next, with what, and since when it waits there.
    to: RegionId,
    token: Label,
    since_micros: u64,
    waiting: Option<AttachId>,
}

struct Run<'a> {
    world: World,
    workload: &'a mut dyn Workload,
    random: SmallRng,
    travellers: Vec<Traveller>,
    measure: Measure,
    rate: f64,
    from_micros: u64,
}

/// Runs it.
pub fn run(setup: &Setup<'_>, workload: &mut dyn Workload) -> Result<Measure, String> {
    let config = WorldConfig {
        seed: setup.seed,
        latencies: setup.latencies.clone(),
        jitter_micros: 0,
        skew_micros: Vec::new(),
        plane: setup.plane.clone(),
        planted: None,
    };
    let world = World::new(&config).map_err(|error| error.to_string())?;
    let measure = Measure {
        latencies: setup.latencies.clone(),
        pairs: BTreeMap::new(),
        sums: BTreeMap::new(),
        updates: 0,
        traffic: Traffic::default(),
        waits: histogram(),
    };
    let random = SmallRng::seed_from_u64(setup.seed);
    let from_micros = World::BEGIN_MICROS + 1_000_000;
    let rate = setup.rate;
    let mut run =
        Run { world, workload, random, travellers: Vec::new(), measure, rate, from_micros };
    run.begin(setup);
    run.until(from_micros)?;
    let before = run.world.traffic();
    let end = from_micros + (setup.seconds * 1e6) as u64;
    run.until(end)?;
    let after = run.world.traffic();
    run.measure.traffic = Traffic {
        payloads: after.payloads - before.payloads,
        beats: after.beats - before.beats,
        labels: after.labels - before.labels,
        payload_metadata_bytes: after.payload_metadata_bytes - before.payload_metadata_bytes,
        other_metadata_bytes: after.other_metadata_bytes - before.other_metadata_bytes,
    };
    Ok(run.measure)
}

impl Run<'_> {
    fn begin(&mut self, setup: &Setup<'_>) {
        let members = self.world.members();
        for region in 0..members {
            self.plan_update(region as u64);
            for _ in 0..setup.travellers {
                let home = RegionId(region as u16);
                let token = self.world.token(home);
                let index = members + self.travellers.len();
                let traveller = Traveller { home, to: home, token, since_micros: 0, waiting: None };
                self.travellers.push(traveller);
                let at = self.world.now_micros() + self.random.random_range(0..100_000);
                self.world.wake(at, index as u64);
            }
        }
    }

    fn plan_update(&mut self, region: u64) {
        // Exponential gaps.
        let gap = -(1.0 - self.random.random::<f64>()).ln() / self.rate * 1e6;
        self.world.wake(self.world.now_micros() + gap as u64 + 1, region);
    }

    fn until(&mut self, until_micros: u64) -> Result<(), String> {
        let members = self.world.members() as u64;
        while let Some(happening) = self.world.next(until_micros).map_err(|e| e.to_string())? {
            match happening {
                Happening::Applied(to, transaction) => {
                    let bytes = transaction.data.get(..8).and_then(|b| b.try_into().ok());
                    let committed = bytes.map(u64::from_be_bytes).unwrap_or_default();
                    self.seen(transaction.label.source, to, committed);
                }
                Happening::Attached(region, id) => {
                    let waits = |t: &Traveller| t.to == region && t.waiting == Some(id);
                    if let Some(index) = self.travellers.iter().position(waits) {
                        self.go_on(index);
                    }
                }
                Happening::Wake(region) if region < members => self.update(region),
                Happening::Wake(number) => self.arrive((number - members) as usize),
            }
        }
        Ok(())
    }

    fn update(&mut self, number: u64) {
        let region = RegionId(number as u16);
        let (target, placement) = self.workload.update(region, &mut self.random);
        let now = self.world.now_micros();
        self.world.commit(region, target, placement, now.to_be_bytes().to_vec().into());
        self.measure.updates += u64::from(now >= self.from_micros);
        self.plan_update(number);
    }

    fn seen(&mut self, from: RegionId, to: RegionId, committed: u64) {
        if committed < self.from_micros {
            return;
        }
        let visibility = self.world.now_micros() - committed;
        let pair = self.measure.pairs.entry((from, to)).or_insert_with(histogram);
        pair.saturating_record(visibility);
        let sums = self.measure.sums.entry((from, to)).or_default();
        *sums = (sums.0 + visibility, sums.1 + 1);
    }

    fn arrive(&mut self, index: usize) {
        let Traveller { to, token, .. } = self.travellers[index];
        self.travellers[index].since_micros = self.world.now_micros();
        match self.world.attach(to, &token) {
            Ok(Attach::Waiting(id)) => self.travellers[index].waiting = Some(id),
            _ => self.go_on(index),
        }
    }

    /// A traveller has been attached where it went: it reads, and goes home or, from there, to the
    /// next remote read.
    fn go_on(&mut self, index: usize) {
        let now = self.world.now_micros();
        let Traveller { home, to: here, since_micros, .. } = self.travellers[index];
        if since_micros >= self.from_micros {
            self.measure.waits.saturating_record(now - since_micros);
        }
        let to = if here == home { self.workload.remote(home, &mut self.random) } else { home };
        let token = self.world.migrate(here, to).unwrap_or_default();
        let waiting = None;
        self.travellers[index] = Traveller { home, to, token, since_micros: now, waiting };
        // A local read or two between the moves.
        let pause = 0;
        let way = self.world.latencies().get(here, to);
        self.world.wake(now + way + pause, (self.world.members() + index) as u64);
    }
}
