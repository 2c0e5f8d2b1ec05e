//! The `tree` plane of one region: label sink, remote proxy, fallback, change of trees (Saturn §4,
//! §6).
//!
//! # Invariants
//! - Labels leave in timestamp order, each down one tree: the next one from the change label on.
//! - A transaction is applied when its label's turn has come in the tree's order, or when time is
//!   stable past it and every stable one before it was applied. What was taken by time is not in
//!   the tree's order, so the labels of this region say so from then on: their floor is the
//!   greatest time taken by time, and they are taken elsewhere only when time is stable past it
//!   there.
//! - Per source, transactions are applied in order: one timestamp says which late labels are of the
//!   past.
//!
//! # On failure
//! Labels that do not come cost `patience`, then time decides. A tree that is lost is left by a
//! change of trees, which then ends by its slow exit.
//!
//! # Limits
//! One change at a time. Labels of the next tree are kept in memory while a change lasts.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use telesto_common::{Label, LabelKind, RegionId, Timestamp};

use crate::error::{Error, Result};
use crate::message::{Address, Message, Meta, SerializerId, TreeLabel};
use crate::plane::{
    CausalPlane, Commit, Output, PlaneConfig, PlaneKind, Transaction, member, others, unexpected,
};
use crate::tree::Tree;
use crate::{Bug, RegionSet};

/// A payload that has come and was not applied.
#[derive(Debug)]
struct Waiting {
    label: Label,
    data: Bytes,
    since_micros: u64,
}

/// What is known of one tree.
#[derive(Debug, Default)]
struct Epoch {
    /// Labels that have come and were not taken.
    queue: VecDeque<TreeLabel>,
    /// Regions whose change labels have come down this tree, as the next one, with their
    /// timestamps.
    begun: BTreeMap<RegionId, Timestamp>,
    /// Regions whose change labels for this tree were taken in the order of the tree before it.
    taken: RegionSet,
}

/// The `tree` plane of one region.
#[derive(Debug)]
pub struct TreePlane {
    me: RegionId,
    members: usize,
    tree: Tree,
    /// The tree that labels go down already, while the order of the other one is still followed.
    next: Option<Tree>,
    /// By epoch.
    epochs: BTreeMap<u32, Epoch>,
    payloads: BTreeMap<(Timestamp, RegionId), Waiting>,
    /// By region: the newest transaction of it that was applied.
    applied: Vec<Timestamp>,
    /// By region: everything it held at this time and that goes here was applied.
    position: Vec<Timestamp>,
    /// By region: its stream has passed this time.
    passed: Vec<Timestamp>,
    /// Everything up to here was taken by time, here or where what was taken here came from.
    floor: Timestamp,
    beat_micros: u64,
    patience_micros: u64,
    sent_micros: Vec<u64>,
    /// When the waiting payloads were last looked at.
    pumped_micros: u64,
    /// A label that a planted bug holds back.
    held: Option<TreeLabel>,
    planted: Option<Bug>,
}

impl TreePlane {
    /// The plane of region `me` of `members` on `tree`.
    ///
    /// # Errors
    /// [`Error::NotATree`].
    pub fn new(
        me: RegionId,
        members: usize,
        tree: Tree,
        config: &PlaneConfig,
        now_micros: u64,
        planted: Option<Bug>,
    ) -> Result<Self> {
        tree.validate(members)?;
        Ok(Self {
            me,
            members,
            tree,
            next: None,
            epochs: BTreeMap::new(),
            payloads: BTreeMap::new(),
            applied: vec![Timestamp::ZERO; members],
            position: vec![Timestamp::ZERO; members],
            passed: vec![Timestamp::ZERO; members],
            floor: Timestamp::ZERO,
            beat_micros: config.beat_micros,
            patience_micros: config.patience_micros,
            sent_micros: vec![now_micros; members],
            pumped_micros: now_micros,
            held: None,
            planted,
        })
    }

    /// The label sink: sends a label down the newest tree.
    fn emit(&mut self, label: Label, interest: RegionSet, out: &mut Output) {
        let unseen = self.planted == Some(Bug::UnseenFallback);
        let floor = if unseen { Timestamp::ZERO } else { self.floor };
        let label = TreeLabel { label, interest, floor };
        if self.planted != Some(Bug::LabelBeforeCause) {
            self.send(label, out);
            return;
        }
        if self.held.is_none() && label.label.timestamp.wall_micros().is_multiple_of(3) {
            self.held = Some(label);
            return;
        }
        self.send(label, out);
        if let Some(held) = self.held.take() {
            self.send(held, out);
        }
    }

    fn send(&self, label: TreeLabel, out: &mut Output) {
        let tree = self.next.as_ref().unwrap_or(&self.tree);
        let index = tree.homes[usize::from(self.me.0)];
        let to = Address::Serializer(SerializerId { epoch: tree.epoch, index });
        out.send.push((to, Message::Label { epoch: tree.epoch, label }));
    }

    fn stable(&self) -> Timestamp {
        let passed = others(self.me, self.members).map(|region| self.passed[usize::from(region.0)]);
        passed.min().unwrap_or(Timestamp::MAX)
    }

    fn apply(&mut self, waiting: Waiting, out: &mut Output) {
        let applied = &mut self.applied[usize::from(waiting.label.source.0)];
        *applied = (*applied).max(waiting.label.timestamp);
        out.apply.push(Transaction { label: waiting.label, data: waiting.data });
    }

    /// Applies in timestamp order what is stable in time, up to `limit`.
    fn apply_by_time(&mut self, limit: Timestamp, out: &mut Output) {
        let limit = limit.min(self.stable());
        if self.payloads.first_key_value().is_some_and(|((at, _), _)| *at <= limit) {
            self.floor = self.floor.max(limit);
        }
        while let Some(first) = self.payloads.first_entry() {
            if first.key().0 > limit {
                return;
            }
            let waiting = first.remove();
            self.apply(waiting, out);
        }
    }

    /// Takes labels in the tree's order, as far as payloads are here.
    fn apply_by_label(&mut self, out: &mut Output) {
        let order = self.tree.epoch;
        while let Some(next) =
            self.epochs.get(&order).and_then(|epoch| epoch.queue.front()).copied()
        {
            let (source, at) = (next.label.source, next.label.timestamp);
            if next.floor > self.floor {
                if next.floor > self.stable() {
                    return;
                }
                self.apply_by_time(next.floor, out);
                self.floor = self.floor.max(next.floor);
            }
            if next.label.kind == LabelKind::Update && at > self.applied[usize::from(source.0)] {
                let Some(waiting) = self.payloads.remove(&(at, source)) else { return };
                self.apply(waiting, out);
            }
            if next.label.kind == LabelKind::EpochChange && next.label.target > order {
                // This region may not have been told of that tree yet.
                let known = self.epochs.entry(next.label.target).or_default();
                known.taken = known.taken.with(source);
            }
            let position = &mut self.position[usize::from(source.0)];
            *position = (*position).max(at);
            if let Some(epoch) = self.epochs.get_mut(&order) {
                epoch.queue.pop_front();
            }
        }
    }

    /// Whether the next tree's order may be followed, and up to which time everything must be
    /// applied first.
    fn exit(&self) -> Option<Timestamp> {
        let epoch = self.epochs.get(&self.next.as_ref()?.epoch)?;
        let all = RegionSet::first(self.members).without(self.me);
        if epoch.taken == all {
            return Some(Timestamp::ZERO);
        }
        if self.planted == Some(Bug::PaperSlowSwitch) {
            let first = epoch.queue.iter().find(|l| l.label.kind == LabelKind::Update)?;
            return Some(first.label.timestamp).filter(|at| *at <= self.stable());
        }
        if epoch.begun.len() < all.len() {
            return None;
        }
        let latest = epoch.begun.values().copied().max().unwrap_or_default();
        (latest <= self.stable()).then_some(latest)
    }

    fn pump(&mut self, now_micros: u64, out: &mut Output) {
        self.pumped_micros = now_micros;
        self.apply_by_label(out);
        if let Some(limit) = self.exit() {
            self.apply_by_time(limit, out);
            self.leave_old_tree(limit);
            self.apply_by_label(out);
        }
        // Its oldest payload has waited too long: the tree is slow or broken, so time decides.
        let oldest = self.payloads.values().map(|waiting| waiting.since_micros).min();
        if oldest.is_some_and(|since| now_micros >= since + self.patience_micros) {
            self.apply_by_time(Timestamp::MAX, out);
            self.apply_by_label(out);
        }
    }

    /// Follows the order of the next tree from here on; everything up to `limit` was taken by time.
    fn leave_old_tree(&mut self, limit: Timestamp) {
        let Some(next) = self.next.take() else { return };
        self.floor = self.floor.max(limit);
        self.epochs.remove(&self.tree.epoch);
        self.tree = next;
    }

    fn receive_label(&mut self, epoch: u32, label: TreeLabel) {
        let order = self.tree.epoch;
        if epoch < order {
            return;
        }
        let known = self.epochs.entry(epoch).or_default();
        if label.label.kind == LabelKind::EpochChange && label.label.target == epoch {
            known.begun.insert(label.label.source, label.label.timestamp);
        }
        let into = if self.planted == Some(Bug::EpochsMixed) { order } else { epoch };
        self.epochs.entry(into).or_default().queue.push_back(label);
    }
}

impl CausalPlane for TreePlane {
    fn kind(&self) -> PlaneKind {
        PlaneKind::Tree
    }

    fn begin(&mut self, positions: &[Timestamp]) {
        self.applied.copy_from_slice(positions);
        self.position.copy_from_slice(positions);
        self.passed.copy_from_slice(positions);
    }

    fn commit(&mut self, now_micros: u64, commit: &Commit, out: &mut Output) {
        let interest = commit.placement.without(self.me);
        if interest.is_empty() {
            return;
        }
        for region in interest.iter() {
            self.sent_micros[usize::from(region.0)] = now_micros;
            let (label, data) = (commit.label, commit.data.clone());
            let payload = Message::Payload { label, meta: Meta::None, data };
            out.send.push((Address::Region(region), payload));
        }
        self.emit(commit.label, interest, out);
    }

    fn receive(
        &mut self,
        now_micros: u64,
        from: Address,
        message: Message,
        out: &mut Output,
    ) -> Result<()> {
        match message {
            Message::Payload { label, data, .. } => {
                let source = member(from, self.members)?;
                let passed = &mut self.passed[usize::from(source.0)];
                *passed = (*passed).max(label.timestamp);
                let waiting = Waiting { label, data, since_micros: now_micros };
                self.payloads.insert((label.timestamp, source), waiting);
            }
            Message::Beat { at, .. } => {
                let source = member(from, self.members)?;
                let passed = &mut self.passed[usize::from(source.0)];
                *passed = (*passed).max(at);
            }
            Message::Label { epoch, label } => {
                let source = label.label.source;
                member(Address::Region(source), self.members)?;
                self.receive_label(epoch, label);
            }
            Message::Mark { .. } => return unexpected(),
        }
        self.pump(now_micros, out);
        Ok(())
    }

    fn close(&mut self, now_micros: u64, source: RegionId, _at: Timestamp, out: &mut Output) {
        self.passed[usize::from(source.0)] = Timestamp::MAX;
        if self.stable() == Timestamp::MAX {
            self.apply_by_time(Timestamp::MAX, out);
        }
        self.pump(now_micros, out);
    }

    fn tick(&mut self, now_micros: u64, closed: Timestamp, out: &mut Output) {
        if let Some(held) = self.held.take() {
            self.send(held, out);
        }
        for to in others(self.me, self.members) {
            let sent = &mut self.sent_micros[usize::from(to.0)];
            if now_micros >= *sent + self.beat_micros {
                *sent = now_micros;
                let beat = Message::Beat { at: closed, meta: Meta::None };
                out.send.push((Address::Region(to), beat));
            }
        }
        self.pump(now_micros, out);
    }

    fn next_tick(&self) -> Option<u64> {
        let sent = others(self.me, self.members).map(|to| self.sent_micros[usize::from(to.0)]);
        let beat = sent.min().map(|sent| sent + self.beat_micros);
        let oldest = self.payloads.values().map(|waiting| waiting.since_micros).min();
        // Once patience has run out, the beats of the others are what it waits for.
        let patience = oldest.map(|since| since + self.patience_micros);
        beat.into_iter().chain(patience.filter(|at| *at > self.pumped_micros)).min()
    }

    fn migrate(&mut self, _now_micros: u64, token: &Label, out: &mut Output) {
        let interest = RegionSet::only(RegionId(token.target as u16));
        self.emit(*token, interest, out);
    }

    fn attach(&mut self, token: &Label) -> bool {
        // By label: the token's turn has come.
        if self.position.get(usize::from(token.source.0)).is_some_and(|at| *at >= token.timestamp) {
            return true;
        }
        // By time: nothing of its time or before can come, and nothing waits. What the session goes
        // on to do here must say so.
        let first = self.payloads.first_key_value().map(|((at, _), _)| *at);
        let passed =
            self.stable() >= token.timestamp && first.is_none_or(|at| at > token.timestamp);
        if passed {
            self.floor = self.floor.max(token.timestamp);
        }
        passed
    }

    fn pending(&self) -> usize {
        self.payloads.len()
    }

    fn change_tree(
        &mut self,
        now_micros: u64,
        at: Timestamp,
        tree: Tree,
        out: &mut Output,
    ) -> Result<()> {
        tree.validate(self.members)?;
        let refused =
            |reason| Err(Error::ChangeRefused { what: "epoch", asked: tree.epoch, reason });
        if self.next.is_some() {
            return refused("a change of trees is under way");
        }
        if tree.epoch <= self.tree.epoch {
            return refused("epochs only grow");
        }
        let kind = LabelKind::EpochChange;
        let label = Label { kind, source: self.me, timestamp: at, target: tree.epoch };
        let interest = RegionSet::first(self.members).without(self.me);
        if let Some(held) = self.held.take() {
            self.send(held, out);
        }
        // Down the old tree as its last label, down the new one as its first.
        let change = TreeLabel { label, interest, floor: self.floor };
        self.send(change, out);
        // Known from now on, also where no other region will ever say a word of it: a lone region
        // moves at once.
        self.epochs.entry(tree.epoch).or_default();
        self.next = Some(tree);
        self.send(change, out);
        self.pump(now_micros, out);
        Ok(())
    }

    fn epoch(&self) -> Option<(u32, bool)> {
        Some((self.tree.epoch, self.next.is_some()))
    }
}
