//! The `gentlerain` plane (Du et al., "GentleRain", SoCC 2014): one stable time, computed every 5
//! ms. A baseline of the study.
//!
//! # Invariants
//! A transaction is applied when the stable time, the least over all regions and partitions, has
//! reached its timestamp.
//!
//! # On failure
//! A region that is cut off stops everybody's visibility.
//!
//! # Limits
//! Those of its partitions (`lanes.rs`), which favour it.

use std::collections::BTreeMap;

use bytes::Bytes;
use telesto_common::{Label, RegionId, Timestamp};

use crate::error::Result;
use crate::lanes::Lanes;
use crate::message::{Address, Message, Meta};
use crate::plane::{
    CausalPlane, Commit, Output, PlaneConfig, PlaneKind, Transaction, member, unexpected,
};

/// The `gentlerain` plane of one region.
#[derive(Debug)]
pub(crate) struct GentleRain {
    me: RegionId,
    members: usize,
    lanes: Lanes,
    waiting: BTreeMap<(Timestamp, RegionId), (Label, Bytes)>,
}

impl GentleRain {
    pub(crate) fn new(me: RegionId, members: usize, config: &PlaneConfig, now_micros: u64) -> Self {
        let lanes = Lanes::new(me, members, config, now_micros);
        Self { me, members, lanes, waiting: BTreeMap::new() }
    }

    fn pump(&mut self, out: &mut Output) {
        let stable = self.lanes.stable();
        while let Some(first) = self.waiting.first_entry() {
            if first.key().0 > stable {
                return;
            }
            let (label, data) = first.remove();
            out.apply.push(Transaction { label, data });
        }
    }
}

impl CausalPlane for GentleRain {
    fn kind(&self) -> PlaneKind {
        PlaneKind::GentleRain
    }

    fn begin(&mut self, positions: &[Timestamp]) {
        self.lanes.begin(positions);
    }

    fn commit(&mut self, _now_micros: u64, commit: &Commit, out: &mut Output) {
        let lane = self.lanes.lane(&commit.label);
        for region in commit.placement.without(self.me).iter() {
            self.lanes.note_sent(lane, region);
            let (label, data) = (commit.label, commit.data.clone());
            let payload = Message::Payload { label, meta: Meta::Lane(lane), data };
            out.send.push((Address::Region(region), payload));
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
            Message::Payload { label, meta: Meta::Lane(lane), data } => {
                self.lanes.hear(lane, source, label.timestamp);
                self.waiting.insert((label.timestamp, source), (label, data));
            }
            Message::Beat { at, meta: Meta::Lane(lane) } => self.lanes.hear(lane, source, at),
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

    fn migrate(&mut self, _now_micros: u64, _token: &Label, _out: &mut Output) {
        // The next rounds bring the stable time past it; there is nothing faster.
    }

    fn attach(&mut self, token: &Label) -> bool {
        self.lanes.stable() >= token.timestamp
    }

    fn pending(&self) -> usize {
        self.waiting.len()
    }
}
