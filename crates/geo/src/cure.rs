//! The `cure` plane (Akkoorath et al., "Cure", ICDCS 2016): a timestamp of every region per
//! transaction, and a vector of stable times, computed every 5 ms. A baseline of the study.
//!
//! # Invariants
//! A transaction of i is applied when region i is stable past its own timestamp and every other
//! region past the entry it carries.
//!
//! # On failure
//! A region that is cut off stops what depends on it.
//!
//! # Limits
//! Those of its partitions (`lanes.rs`), which favour it. A migration carries the vector with a
//! beat, as Cure's clients do.

use std::collections::BTreeMap;

use telesto_common::{Label, RegionId, Timestamp};

use crate::error::Result;
use crate::lanes::Lanes;
use crate::message::{Address, Message, Meta};
use crate::plane::{
    CausalPlane, Commit, Output, PlaneConfig, PlaneKind, Transaction, member, others, unexpected,
};

/// The `cure` plane of one region.
#[derive(Debug)]
pub(crate) struct Cure {
    me: RegionId,
    members: usize,
    lanes: Lanes,
    waiting: BTreeMap<(Timestamp, RegionId), (Vec<Timestamp>, Transaction)>,
    /// By region: the newest vector a migration brought, and its time.
    moved: Vec<(Timestamp, Vec<Timestamp>)>,
}

impl Cure {
    pub(crate) fn new(me: RegionId, members: usize, config: &PlaneConfig, now_micros: u64) -> Self {
        let lanes = Lanes::new(me, members, config, now_micros);
        let moved = vec![(Timestamp::ZERO, vec![Timestamp::ZERO; members]); members];
        Self { me, members, lanes, waiting: BTreeMap::new(), moved }
    }

    /// What is stable here; this region's own entry is `own`.
    fn vector(&self, own: Timestamp) -> Vec<Timestamp> {
        let mut vector = vec![own; self.members];
        for region in others(self.me, self.members) {
            vector[usize::from(region.0)] = self.lanes.stable_of(region);
        }
        vector
    }

    fn reached(&self, vector: &[Timestamp]) -> bool {
        others(self.me, self.members)
            .all(|region| self.lanes.stable_of(region) >= vector[usize::from(region.0)])
    }

    fn pump(&mut self, out: &mut Output) {
        // Timestamp order respects causality, and one pass is enough: what a transaction depends on
        // has a lower timestamp, and stable times do not change meanwhile.
        let due = self.waiting.iter().filter(|(_, (vector, _))| self.reached(vector));
        let due: Vec<_> = due.map(|(key, _)| *key).collect();
        for key in due {
            if let Some((_, transaction)) = self.waiting.remove(&key) {
                out.apply.push(transaction);
            }
        }
    }
}

impl CausalPlane for Cure {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Cure
    }

    fn begin(&mut self, positions: &[Timestamp]) {
        self.lanes.begin(positions);
    }

    fn commit(&mut self, _now_micros: u64, commit: &Commit, out: &mut Output) {
        let lane = self.lanes.lane(&commit.label);
        let vector = self.vector(commit.label.timestamp);
        for region in commit.placement.without(self.me).iter() {
            self.lanes.note_sent(lane, region);
            let (label, data) = (commit.label, commit.data.clone());
            let meta = Meta::Vector(lane, vector.clone());
            out.send.push((Address::Region(region), Message::Payload { label, meta, data }));
        }
    }

    fn receive(
        &mut self,
        _now_micros: u64,
        from: Address,
        message: Message,
        _out: &mut Output,
    ) -> Result<()> {
        let source = member(from, self.members)?;
        match message {
            Message::Payload { label, meta: Meta::Vector(lane, vector), data }
                if vector.len() == self.members =>
            {
                self.lanes.hear(lane, source, label.timestamp);
                let waiting = (vector, Transaction { label, data });
                self.waiting.insert((label.timestamp, source), waiting);
            }
            Message::Beat { at, meta: Meta::Lane(lane) } => self.lanes.hear(lane, source, at),
            Message::Beat { at, meta: Meta::Vector(_, vector) } if vector.len() == self.members => {
                self.moved[usize::from(source.0)] = (at, vector);
            }
            _ => return unexpected(),
        }
        Ok(())
    }

    fn close(&mut self, _now_micros: u64, source: RegionId, _at: Timestamp, out: &mut Output) {
        self.lanes.close(source);
        self.pump(out);
    }

    fn tick(&mut self, now_micros: u64, closed: Timestamp, out: &mut Output) {
        if self.lanes.tick(now_micros, closed, out) {
            self.pump(out);
        }
    }

    fn next_tick(&self) -> Option<u64> {
        self.lanes.next_round()
    }

    fn migrate(&mut self, _now_micros: u64, token: &Label, out: &mut Output) {
        let meta = Meta::Vector(0, self.vector(token.timestamp));
        let beat = Message::Beat { at: token.timestamp, meta };
        out.send.push((Address::Region(RegionId(token.target as u16)), beat));
    }

    fn attach(&mut self, token: &Label) -> bool {
        let (at, vector) = &self.moved[usize::from(token.source.0)];
        // By time alone it is not enough that time has passed: a vector's entries may be ahead of
        // its own timestamp.
        let first = self.waiting.first_key_value().map(|((at, _), _)| *at);
        (*at >= token.timestamp && self.reached(vector))
            || (self.lanes.stable() >= token.timestamp
                && first.is_none_or(|first| first > token.timestamp))
    }

    fn pending(&self) -> usize {
        self.waiting.len()
    }
}
