//! The `matrix` plane: a transaction waits for counted transactions of other streams, and for
//! nothing else.
//!
//! # Invariants
//! - `known[j][l]` never exceeds the number of transactions of stream j→l in this region's past,
//!   and every one of them is either counted or waited for by one that is (docs/architecture/geo.md
//!   has the proof).
//! - An increment is relative to what the same stream told before; links keep the order, so both
//!   ends agree.
//!
//! # On failure
//! A message that names a region that is no member is refused before anything of it is taken.
//!
//! # Limits
//! 16 regions: a pair of regions is one byte on the wire. Memory is cubic in the regions: 16 of
//! them, 96 KiB.

use std::collections::VecDeque;

use telesto_common::{Label, RegionId, Timestamp};

use crate::Bug;
use crate::error::{Error, Result};
use crate::message::{Address, Count, Message, Meta};
use crate::plane::{
    CausalPlane, Commit, Output, PlaneKind, Transaction, member, others, unexpected,
};

/// A square matrix of counts, by source and target region.
#[derive(Clone, Debug)]
struct Counts {
    members: usize,
    values: Vec<u64>,
}

impl Counts {
    fn new(members: usize) -> Self {
        Self { members, values: vec![0; members * members] }
    }

    fn get(&self, source: usize, target: usize) -> u64 {
        self.values[source * self.members + target]
    }

    fn at(&mut self, source: usize, target: usize) -> &mut u64 {
        &mut self.values[source * self.members + target]
    }
}

/// What came on a stream and has not been taken: a transaction or a beat.
#[derive(Debug)]
struct Element {
    at: Timestamp,
    /// Absolute counts, by source and target.
    counts: Vec<(usize, usize, u64)>,
    transaction: Option<Transaction>,
}

/// The `matrix` plane of one region.
#[derive(Debug)]
pub(crate) struct Matrix {
    me: RegionId,
    members: usize,
    /// How many transactions of each stream are in this region's past, as far as no other count
    /// stands for them.
    known: Counts,
    /// What this region's own newest transaction to the target waits for already.
    covered: Counts,
    /// By peer: what the stream to it has told.
    told: Vec<Counts>,
    /// By peer: what the stream from it has told, at its newest message.
    heard: Vec<Counts>,
    /// By peer: how many of its transactions to this region were applied.
    applied: Vec<u64>,
    /// By peer: the time of the newest element taken of its stream.
    position: Vec<Timestamp>,
    queues: Vec<VecDeque<Element>>,
    beat_micros: u64,
    /// By peer: when something was sent to it last.
    sent_micros: Vec<u64>,
    planted: Option<Bug>,
}

impl Matrix {
    pub(crate) fn new(
        me: RegionId,
        members: usize,
        beat_micros: u64,
        now_micros: u64,
        planted: Option<Bug>,
    ) -> Self {
        let counts = Counts::new(members);
        Self {
            me,
            members,
            known: counts.clone(),
            covered: counts.clone(),
            told: vec![counts.clone(); members],
            heard: vec![counts; members],
            applied: vec![0; members],
            position: vec![Timestamp::ZERO; members],
            queues: (0..members).map(|_| VecDeque::new()).collect(),
            beat_micros,
            sent_micros: vec![now_micros; members],
            planted,
        }
    }

    /// What the next element of the stream to `to` must say, beyond what the stream has told.
    fn untold(&mut self, to: usize) -> Meta {
        let me = usize::from(self.me.0);
        let mut counts = Vec::new();
        for target in (0..self.members).filter(|target| *target != me) {
            for source in (0..self.members).filter(|source| *source != target) {
                // What goes from here to `to` is numbered by the stream itself.
                if source == me && target == to {
                    continue;
                }
                let known = self.known.get(source, target);
                let told = self.told[to].get(source, target);
                if known > told.max(self.covered.get(source, target)) {
                    *self.told[to].at(source, target) = known;
                    let (source, target) = (source as u8, target as u8);
                    counts.push(Count { source, target, increment: known - told });
                }
            }
        }
        Meta::Counts(counts)
    }

    /// Turns the increments of a message into absolute counts.
    fn hear(&mut self, from: RegionId, meta: Meta) -> Result<Vec<(usize, usize, u64)>> {
        let Meta::Counts(counts) = meta else { return unexpected() };
        let members = self.members;
        if let Some(count) = counts.iter().find(|c| usize::from(c.source.max(c.target)) >= members)
        {
            let region = RegionId(u16::from(count.source.max(count.target)));
            return Err(Error::UnknownRegion { region, members });
        }
        let heard = &mut self.heard[usize::from(from.0)];
        let absolute = |count: &Count| {
            let (source, target) = (usize::from(count.source), usize::from(count.target));
            let value = heard.at(source, target);
            *value = value.saturating_add(count.increment);
            (source, target, *value)
        };
        Ok(counts.iter().map(absolute).collect())
    }

    /// Takes every element whose past is here, until none is.
    fn pump(&mut self, out: &mut Output) {
        loop {
            let mut moved = false;
            for source in 0..self.members {
                while self.queues[source].front().is_some_and(|element| self.is_due(element)) {
                    if let Some(element) = self.queues[source].pop_front() {
                        self.take(source, element, out);
                        moved = true;
                    }
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn is_due(&self, element: &Element) -> bool {
        let me = usize::from(self.me.0);
        let here = element.counts.iter().filter(|(_, target, _)| *target == me);
        here.clone().all(|(source, _, value)| self.applied[*source] >= *value)
    }

    fn take(&mut self, source: usize, element: Element, out: &mut Output) {
        let me = usize::from(self.me.0);
        if self.planted != Some(Bug::ColumnNotMerged) {
            for (from, target, value) in element.counts {
                // What goes to this region was waited for; what it sent itself it knows better.
                if target != me && from != me {
                    let known = self.known.at(from, target);
                    *known = (*known).max(value);
                }
            }
        }
        self.position[source] = self.position[source].max(element.at);
        if let Some(transaction) = element.transaction {
            self.applied[source] += 1;
            out.apply.push(transaction);
        }
    }

    fn beat(&mut self, now_micros: u64, to: RegionId, at: Timestamp, out: &mut Output) {
        let meta = self.untold(usize::from(to.0));
        self.sent_micros[usize::from(to.0)] = now_micros;
        out.send.push((Address::Region(to), Message::Beat { at, meta }));
    }
}

impl CausalPlane for Matrix {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Matrix
    }

    fn begin(&mut self, positions: &[Timestamp]) {
        self.position.copy_from_slice(positions);
    }

    fn commit(&mut self, now_micros: u64, commit: &Commit, out: &mut Output) {
        let me = usize::from(self.me.0);
        let targets = commit.placement.without(self.me);
        // The new transaction stands for the columns of all its targets, except to each target
        // itself.
        let before: Vec<u64> = self.covered.values.clone();
        for target in targets.iter().map(|target| usize::from(target.0)) {
            *self.known.at(me, target) += 1;
            for source in (0..self.members).filter(|source| *source != me) {
                *self.covered.at(source, target) = self.known.get(source, target);
            }
        }
        for region in targets.iter() {
            let to = usize::from(region.0);
            let column: Vec<u64> = (0..self.members).map(|s| self.covered.get(s, to)).collect();
            for source in 0..self.members {
                *self.covered.at(source, to) = before[source * self.members + to];
            }
            let meta = self.untold(to);
            for (source, value) in column.into_iter().enumerate() {
                *self.covered.at(source, to) = value;
            }
            self.sent_micros[to] = now_micros;
            let (label, data) = (commit.label, commit.data.clone());
            out.send.push((Address::Region(region), Message::Payload { label, meta, data }));
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
        let (at, meta, transaction) = match message {
            Message::Payload { label, meta, data } => {
                (label.timestamp, meta, Some(Transaction { label, data }))
            }
            Message::Beat { at, meta } => (at, meta, None),
            Message::Mark { .. } | Message::Label { .. } => return unexpected(),
        };
        let counts = self.hear(source, meta)?;
        self.queues[usize::from(source.0)].push_back(Element { at, counts, transaction });
        self.pump(out);
        Ok(())
    }

    fn close(&mut self, _now_micros: u64, _source: RegionId, _at: Timestamp, _out: &mut Output) {
        // Counts wait for nothing that is not on its way.
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
        let to = RegionId(token.target as u16);
        self.beat(now_micros, to, token.timestamp, out);
    }

    fn attach(&mut self, token: &Label) -> bool {
        let position = self.position.get(usize::from(token.source.0));
        position.is_some_and(|position| *position >= token.timestamp)
    }

    fn pending(&self) -> usize {
        let waits = |queue: &VecDeque<Element>| {
            queue.iter().filter(|element| element.transaction.is_some()).count()
        };
        self.queues.iter().map(waits).sum()
    }
}
