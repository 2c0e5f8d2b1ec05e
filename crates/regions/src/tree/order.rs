//! The order of a tree at the end of one of its leaves: in what turn labels have come, and whether
//! it is followed.
//!
//! ```text
//! prepared ── all have begun, and everything is here that they had before ──► on the tree ◄─── labels are up to date again
//!    └─ as by matrix                                                              └─ a label has not come in time ──► fallen back
//! ```
//! # Invariants
//! - On the tree a transaction is given out when every label before its own was.
//! - Off the tree, and fallen back, the inbox goes by pasts. Either rule is right whatever was
//!   given out by the other one, so it may change between any two transactions.
//!
//! # On failure
//! A label whose transaction does not come, or a transaction whose label does not come, costs
//! `patience` once; then pasts decide until labels are up to date.
//!
//! # Limits
//! Labels that wait are in memory: [`QUEUED`], then the tree is not followed until its next epoch.

use std::collections::{BTreeMap, VecDeque};

use telesto_common::{LabelKind, RegionId, Timestamp};
use telesto_geo::{RegionSet, TreeLabel};

/// Labels that wait, at most.
const QUEUED: usize = 1 << 18;

/// How one source stands in the inbox.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stands {
    /// Its first transaction that was not given out: its time, and when it came.
    pub first: Option<(Timestamp, u64)>,
    /// Its newest transaction that was given out.
    pub applied: Timestamp,
    /// Everything of it up to here was given out.
    pub passed: Timestamp,
}

/// How the tree is followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Follows {
    /// Not every region has begun, or not everything is here that they had before.
    #[default]
    NotYet,
    On,
    /// Labels are late.
    Fallen,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Order {
    epoch: u64,
    others: RegionSet,
    /// Regions whose end is to be settled first: what they had comes beside the labels.
    pub lost: Vec<RegionId>,
    /// Labels that have come, and when.
    queue: VecDeque<(TreeLabel, u64)>,
    /// At which time of its log each region has begun.
    began: BTreeMap<RegionId, Timestamp>,
    /// The newest label that came of each region.
    labelled: BTreeMap<RegionId, Timestamp>,
    follows: Follows,
    full: bool,
    /// Microseconds.
    patience: u64,
    /// A planted bug.
    early: bool,
}

impl Order {
    pub fn new(
        epoch: u64,
        others: RegionSet,
        lost: Vec<RegionId>,
        patience: u64,
        early: bool,
    ) -> Self {
        Self {
            epoch,
            others,
            lost,
            queue: VecDeque::new(),
            began: BTreeMap::new(),
            labelled: BTreeMap::new(),
            follows: Follows::NotYet,
            full: false,
            patience,
            early,
        }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn follows(&self) -> Follows {
        self.follows
    }

    /// A label has come.
    pub fn label(&mut self, label: TreeLabel, now: u64) {
        let (source, at) = (label.label.source, label.label.timestamp);
        let labelled = self.labelled.entry(source).or_default();
        *labelled = (*labelled).max(at);
        match label.label.kind {
            LabelKind::EpochChange => {
                self.began.insert(source, at);
            }
            LabelKind::Migration => {}
            LabelKind::Update if self.queue.len() >= QUEUED => self.full = true,
            LabelKind::Update => self.queue.push_back((label, now)),
        }
    }

    /// Looks whether the tree is to be followed. `settled`: nothing of a lost region is to come
    /// beside the labels.
    pub fn look(&mut self, stands: impl Fn(RegionId) -> Stands, settled: bool, now: u64) {
        self.drop_done(&stands);
        let begun = |region: RegionId| {
            let began = self.began.get(&region);
            began.is_some_and(|began| stands(region).passed >= *began)
        };
        if !settled || self.full || !(self.early || self.others.iter().all(begun)) {
            self.follows = Follows::NotYet;
            return;
        }
        let late = |came: u64| came.saturating_add(self.patience) < now;
        let waits = |region: RegionId| stands(region).first.is_some_and(|(_, came)| late(came));
        if self.others.iter().any(waits) {
            self.follows = Follows::Fallen;
            return;
        }
        let up_to_date = |region: RegionId| {
            let labelled = self.labelled.get(&region).copied().unwrap_or_default();
            labelled >= stands(region).applied
        };
        let stuck = self.queue.front().is_some_and(|(_, came)| late(*came));
        if self.follows != Follows::Fallen || (self.others.iter().all(up_to_date) && !stuck) {
            self.follows = Follows::On;
        }
    }

    /// Labels whose transactions were given out have had their turn.
    fn drop_done(&mut self, stands: impl Fn(RegionId) -> Stands) {
        while let Some((TreeLabel { label, .. }, _)) = self.queue.front() {
            let stands = stands(label.source);
            if label.timestamp > stands.passed.max(stands.applied) {
                return;
            }
            self.queue.pop_front();
        }
    }

    /// Whose first transaction is to be given out now, by the order of labels.
    pub fn turn(&mut self, stands: impl Fn(RegionId) -> Stands) -> Option<RegionId> {
        if self.follows != Follows::On {
            return None;
        }
        self.drop_done(&stands);
        let (TreeLabel { label, .. }, _) = self.queue.front()?;
        let first = stands(label.source).first;
        first.is_some_and(|(at, _)| at == label.timestamp).then_some(label.source)
    }
}

#[cfg(test)]
mod tests {
    use telesto_common::Label;

    use super::*;

    const ONE: RegionId = RegionId(1);
    const TWO: RegionId = RegionId(2);

    fn label(kind: LabelKind, source: RegionId, at: u64) -> TreeLabel {
        let label = Label { kind, ..Label::update(source, Timestamp(at)) };
        TreeLabel { label, interest: RegionSet::first(3), floor: Timestamp::ZERO }
    }

    /// Both have begun at 10.
    fn begun() -> Order {
        let others = [ONE, TWO].into_iter().collect();
        let mut order = Order::new(1, others, Vec::new(), 100, false);
        for region in [ONE, TWO] {
            order.label(label(LabelKind::EpochChange, region, 10), 0);
        }
        order
    }

    fn stands(first: Option<u64>, passed: u64) -> Stands {
        let first = first.map(|at| (Timestamp(at), 50));
        Stands { first, applied: Timestamp::ZERO, passed: Timestamp(passed) }
    }

    #[test]
    fn tree_is_followed_when_all_have_begun_and_everything_before_is_here() {
        let mut order = begun();
        order.look(|_| stands(None, 9), true, 60);
        assert_eq!(order.follows(), Follows::NotYet);
        order.look(|_| stands(None, 10), false, 60);
        assert_eq!(order.follows(), Follows::NotYet, "a lost region is not settled");
        order.look(|_| stands(None, 10), true, 60);
        assert_eq!(order.follows(), Follows::On);
        let others = [ONE, TWO].into_iter().collect();
        let mut order = Order::new(1, others, Vec::new(), 100, false);
        order.label(label(LabelKind::EpochChange, ONE, 10), 0);
        order.look(|_| stands(None, 10), true, 60);
        assert_eq!(order.follows(), Follows::NotYet, "one has not begun");
    }

    #[test]
    fn transaction_waits_for_its_turn_and_a_label_for_its_transaction() {
        let mut order = begun();
        let both = |_: RegionId| stands(Some(20), 10);
        order.look(both, true, 60);
        assert_eq!(order.turn(both), None, "no label");
        order.label(label(LabelKind::Update, TWO, 20), 60);
        order.label(label(LabelKind::Update, ONE, 20), 60);
        assert_eq!(order.turn(both), Some(TWO));
        let first_only = |of| if of == ONE { stands(Some(20), 10) } else { stands(None, 10) };
        assert_eq!(order.turn(first_only), None, "that of TWO has not come");
        let applied =
            |of| Stands { applied: Timestamp(if of == TWO { 20 } else { 0 }), ..first_only(of) };
        assert_eq!(order.turn(applied), Some(ONE));
    }

    #[test]
    fn late_label_lets_pasts_decide_until_labels_are_up_to_date() {
        let mut order = begun();
        let waits = |of| if of == ONE { stands(Some(20), 10) } else { stands(None, 10) };
        order.look(waits, true, 150);
        assert_eq!(order.follows(), Follows::On);
        order.look(waits, true, 151);
        assert_eq!(order.follows(), Follows::Fallen);
        let applied =
            |of| Stands { applied: Timestamp(if of == ONE { 20 } else { 0 }), ..stands(None, 10) };
        order.look(applied, true, 152);
        assert_eq!(order.follows(), Follows::Fallen, "its label has not come");
        order.label(label(LabelKind::Update, ONE, 20), 153);
        order.look(applied, true, 154);
        assert_eq!(order.follows(), Follows::On);
        // A label whose transaction does not come lets nothing pass.
        order.label(label(LabelKind::Update, TWO, 30), 160);
        order.label(label(LabelKind::Update, ONE, 30), 160);
        let other = |of| match of {
            ONE => Stands { first: Some((Timestamp(30), 160)), ..applied(of) },
            _ => stands(None, 10),
        };
        order.look(other, true, 200);
        assert_eq!(order.turn(other), None);
        order.look(other, true, 261);
        assert_eq!(order.follows(), Follows::Fallen);
        let passed = |_| Stands { applied: Timestamp(30), ..stands(None, 10) };
        order.look(passed, true, 262);
        assert_eq!(order.follows(), Follows::On, "labels of what was given out are done");
    }
}
