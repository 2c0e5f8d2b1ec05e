//! Partitions of a region and their stabilisation rounds, for the baselines (GentleRain §4; Cure
//! §III).
//!
//! ```text
//!  partition p of region i ── payloads and beats of p ──► partition p of region k: heard[p]
//!                                                            │ publishes once a round
//!                              stable = least over partitions of what was published
//! ```
//!
//! # Invariants
//! `stable[j]` is at most what every partition has heard of region j: no transaction of j with a
//! lower timestamp can come.
//!
//! # On failure
//! A region that is cut off stands still in `stable`.
//!
//! # Limits
//! Favours the baselines: rounds take no time of their own, and every partition sees the newest
//! stable time at once. The rounds' messages inside the region are counted, not sent.

use telesto_common::{Label, RegionId, Timestamp};

use crate::message::{Address, Message, Meta};
use crate::plane::{Output, PlaneConfig, others};

/// The partitions of one region.
#[derive(Debug)]
pub(crate) struct Lanes {
    me: RegionId,
    members: usize,
    partitions: usize,
    interval_micros: u64,
    /// By partition and region: heard on the streams.
    heard: Vec<Vec<Timestamp>>,
    /// By partition and region: published in the partition's last round.
    published: Vec<Vec<Timestamp>>,
    /// By region.
    stable: Vec<Timestamp>,
    /// By partition: when its next round is. Rounds are spread over the interval.
    round_micros: Vec<u64>,
    /// By partition and region: something was sent since the partition's last round.
    sent: Vec<Vec<bool>>,
}

impl Lanes {
    pub(crate) fn new(me: RegionId, members: usize, config: &PlaneConfig, now_micros: u64) -> Self {
        let partitions = usize::from(config.partitions.max(1));
        let interval = config.beat_micros.max(1);
        let zero = vec![vec![Timestamp::ZERO; members]; partitions];
        // The regions' rounds are not in step with each other.
        let shift = interval * u64::from(me.0) / members.max(1) as u64;
        let round =
            |p: usize| now_micros + (interval * p as u64 / partitions as u64 + shift) % interval;
        Self {
            me,
            members,
            partitions,
            interval_micros: interval,
            heard: zero.clone(),
            published: zero,
            stable: vec![Timestamp::ZERO; members],
            round_micros: (0..partitions).map(round).collect(),
            sent: vec![vec![false; members]; partitions],
        }
    }

    pub(crate) fn begin(&mut self, positions: &[Timestamp]) {
        for lane in self.heard.iter_mut().chain(&mut self.published) {
            lane.copy_from_slice(positions);
        }
        self.stable.copy_from_slice(positions);
    }

    /// The partition of a transaction.
    pub(crate) fn lane(&self, label: &Label) -> u8 {
        (label.target as usize % self.partitions) as u8
    }

    pub(crate) fn note_sent(&mut self, lane: u8, to: RegionId) {
        self.sent[usize::from(lane)][usize::from(to.0)] = true;
    }

    pub(crate) fn hear(&mut self, lane: u8, source: RegionId, at: Timestamp) {
        if let Some(lane) = self.heard.get_mut(usize::from(lane)) {
            let heard = &mut lane[usize::from(source.0)];
            *heard = (*heard).max(at);
        }
    }

    pub(crate) fn close(&mut self, source: RegionId) {
        for lane in self.heard.iter_mut().chain(&mut self.published) {
            lane[usize::from(source.0)] = Timestamp::MAX;
        }
        self.stable[usize::from(source.0)] = Timestamp::MAX;
    }

    /// Runs the rounds that are due: beats, publication. Returns whether stable times may have
    /// grown.
    pub(crate) fn tick(&mut self, now_micros: u64, closed: Timestamp, out: &mut Output) -> bool {
        let mut ran = false;
        for lane in 0..self.partitions {
            if self.round_micros[lane] > now_micros {
                continue;
            }
            ran = true;
            self.round_micros[lane] =
                (self.round_micros[lane] + self.interval_micros).max(now_micros + 1);
            for to in others(self.me, self.members) {
                let sent = std::mem::take(&mut self.sent[lane][usize::from(to.0)]);
                if !sent {
                    let beat = Message::Beat { at: closed, meta: Meta::Lane(lane as u8) };
                    out.send.push((Address::Region(to), beat));
                }
            }
            self.published[lane] = self.heard[lane].clone();
        }
        if ran {
            for (region, stable) in self.stable.iter_mut().enumerate() {
                let least = self.published.iter().map(|lane| lane[region]).min();
                *stable = (*stable).max(least.unwrap_or_default());
            }
        }
        ran
    }

    pub(crate) fn next_round(&self) -> Option<u64> {
        self.round_micros.iter().copied().min()
    }

    /// Stable time of one region here.
    pub(crate) fn stable_of(&self, region: RegionId) -> Timestamp {
        self.stable[usize::from(region.0)]
    }

    /// Stable time of all other regions here.
    pub(crate) fn stable(&self) -> Timestamp {
        let all = others(self.me, self.members).map(|region| self.stable_of(region));
        all.min().unwrap_or(Timestamp::MAX)
    }
}
