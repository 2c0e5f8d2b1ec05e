//! The `timestamp` plane: all transactions in label order. Saturn's P-configuration (§7.1).
//!
//! # Invariants
//! A transaction is applied when the stream of every other region has passed its timestamp: then
//! nothing with a lower label can come.
//!
//! # On failure
//! A region that is cut off stops everybody's visibility until it is back: its time stands still.
//!
//! # Limits
//! Visibility is that of the farthest region. Beats are sent on every stream, whoever replicates
//! what.

use std::collections::BTreeMap;

use bytes::Bytes;
use telesto_common::{Label, RegionId, Timestamp};

use crate::error::Result;
use crate::message::{Address, Message, Meta};
use crate::plane::{
    CausalPlane, Commit, Output, PlaneKind, Transaction, member, others, unexpected,
};

/// The `timestamp` plane of one region.
#[derive(Debug)]
pub(crate) struct TimestampOrder {
    me: RegionId,
    members: usize,
    /// By region: its stream has passed this time.
    passed: Vec<Timestamp>,
    waiting: BTreeMap<(Timestamp, RegionId), (Label, Bytes)>,
    beat_micros: u64,
    sent_micros: Vec<u64>,
}

impl TimestampOrder {
    pub(crate) fn new(me: RegionId, members: usize, beat_micros: u64, now_micros: u64) -> Self {
        Self {
            me,
            members,
            passed: vec![Timestamp::ZERO; members],
            waiting: BTreeMap::new(),
            beat_micros,
            sent_micros: vec![now_micros; members],
        }
    }

    fn stable(&self) -> Timestamp {
        let passed = others(self.me, self.members).map(|region| self.passed[usize::from(region.0)]);
        passed.min().unwrap_or(Timestamp::MAX)
    }

    fn pass(&mut self, source: RegionId, at: Timestamp, out: &mut Output) {
        let passed = &mut self.passed[usize::from(source.0)];
        *passed = (*passed).max(at);
        let stable = self.stable();
        while let Some(first) = self.waiting.first_entry() {
            if first.key().0 > stable {
                return;
            }
            let (label, data) = first.remove();
            out.apply.push(Transaction { label, data });
        }
    }

    fn beat(&mut self, now_micros: u64, to: RegionId, at: Timestamp, out: &mut Output) {
        self.sent_micros[usize::from(to.0)] = now_micros;
        out.send.push((Address::Region(to), Message::Beat { at, meta: Meta::None }));
    }
}

impl CausalPlane for TimestampOrder {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Timestamp
    }

    fn begin(&mut self, positions: &[Timestamp]) {
        self.passed.copy_from_slice(positions);
    }

    fn commit(&mut self, now_micros: u64, commit: &Commit, out: &mut Output) {
        for region in commit.placement.without(self.me).iter() {
            self.sent_micros[usize::from(region.0)] = now_micros;
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
        let source = member(from, self.members)?;
        match message {
            Message::Payload { label, data, .. } => {
                self.waiting.insert((label.timestamp, source), (label, data));
                self.pass(source, label.timestamp, out);
            }
            Message::Beat { at, .. } => self.pass(source, at, out),
            Message::Mark { .. } | Message::Label { .. } => return unexpected(),
        }
        Ok(())
    }

    fn close(&mut self, _now_micros: u64, source: RegionId, _at: Timestamp, out: &mut Output) {
        self.pass(source, Timestamp::MAX, out);
    }

    fn tick(&mut self, now_micros: u64, closed: Timestamp, out: &mut Output) {
        for to in others(self.me, self.members) {
            if now_micros >= self.sent_micros[usize::from(to.0)] + self.beat_micros {
                self.beat(now_micros, to, closed, out);
            }
        }
    }

    fn next_tick(&self) -> Option<u64> {
        let sent = others(self.me, self.members).map(|to| self.sent_micros[usize::from(to.0)]);
        sent.min().map(|sent| sent + self.beat_micros)
    }

    fn migrate(&mut self, now_micros: u64, token: &Label, out: &mut Output) {
        self.beat(now_micros, RegionId(token.target as u16), token.timestamp, out);
    }

    fn attach(&mut self, token: &Label) -> bool {
        self.stable() >= token.timestamp
    }

    fn pending(&self) -> usize {
        self.waiting.len()
    }
}
