//! The `eventual` plane: transactions are applied when they arrive. For the study, and as what the
//! checker must find fault with.
//!
//! # Invariants
//! Each stream in its order; nothing between streams.
//!
//! # On failure
//! As every plane: what no correct peer sends is refused.
//!
//! # Limits
//! A session that moves is attached at once, whatever it saw.

use telesto_common::{Label, RegionId, Timestamp};

use crate::error::Result;
use crate::message::{Address, Message, Meta};
use crate::plane::{CausalPlane, Commit, Output, PlaneKind, Transaction, member, unexpected};

/// The `eventual` plane of one region.
#[derive(Debug)]
pub(crate) struct Eventual {
    me: RegionId,
    members: usize,
}

impl Eventual {
    pub(crate) fn new(me: RegionId, members: usize) -> Self {
        Self { me, members }
    }
}

impl CausalPlane for Eventual {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Eventual
    }

    fn begin(&mut self, _positions: &[Timestamp]) {}

    fn commit(&mut self, _now_micros: u64, commit: &Commit, out: &mut Output) {
        for region in commit.placement.without(self.me).iter() {
            let (label, data) = (commit.label, commit.data.clone());
            let payload = Message::Payload { label, meta: Meta::None, data };
            out.send.push((Address::Region(region), payload));
        }
    }

    fn receive(
        &mut self,
        _now_micros: u64,
        from: Address,
        message: Message,
        out: &mut Output,
    ) -> Result<()> {
        member(from, self.members)?;
        let Message::Payload { label, data, .. } = message else { return unexpected() };
        out.apply.push(Transaction { label, data });
        Ok(())
    }

    fn close(&mut self, _now_micros: u64, _source: RegionId, _at: Timestamp, _out: &mut Output) {}

    fn tick(&mut self, _now_micros: u64, _closed: Timestamp, _out: &mut Output) {}

    fn next_tick(&self) -> Option<u64> {
        None
    }

    fn migrate(&mut self, _now_micros: u64, _token: &Label, _out: &mut Output) {}

    fn attach(&mut self, _token: &Label) -> bool {
        true
    }

    fn pending(&self) -> usize {
        0
    }
}
