//! The inbox on plane `tree`: transactions are given out in the turn of their labels, while those
//! are followed ([`Order`]).
//!
//! # Invariants
//! - A transaction whose label has its turn is the first one of its stream that was not given out.
//! - Positions between transactions keep their order among themselves, and behind the transactions
//!   that they hold.
//!
//! # On failure
//! While labels are not followed, nothing here holds anything back.
//!
//! # Limits
//! Those of the inbox and of the order.

use std::collections::BTreeMap;

use telesto_common::RegionId;
use telesto_geo::TreeLabel;

use super::{CLOSED, Inbox, Item, Remote, Source};
use crate::defined::Defined;
use crate::tree::{Follows, Order, Stands};

impl Source {
    /// Where in the queue the first transaction stands that was not given out.
    pub(super) fn first(&self, from: RegionId, me: RegionId) -> Option<usize> {
        let new = |item: &Item| match item {
            Item::Transaction { past, .. } => past.get(from, me) > self.applied,
            Item::End { .. } => false,
        };
        self.queue.iter().position(new)
    }
}

impl Inbox {
    /// Follows another order of labels, or none.
    pub fn follow(&mut self, order: Option<Order>) {
        self.order = order;
    }

    /// How the order of labels is followed.
    pub fn follows(&self) -> Follows {
        self.order.as_ref().map(Order::follows).unwrap_or_default()
    }

    /// Labels of an epoch have come, in this order.
    pub fn labels(&mut self, epoch: u64, labels: Vec<TreeLabel>, now: u64) {
        if let Some(order) = self.order.as_mut().filter(|order| order.epoch() == epoch) {
            labels.into_iter().for_each(|label| order.label(label, now));
        }
    }

    /// Looks whether the order of labels is to be followed.
    pub(super) fn look(&mut self, now: u64) {
        let Some(order) = &mut self.order else { return };
        let (sources, me) = (&self.sources, self.me);
        let closed = |of: &RegionId| sources.get(of).is_some_and(|of| of.applied == CLOSED);
        let settled = order.lost.iter().all(closed);
        order.look(|of| stands(sources, of, me), settled, now);
    }

    /// The first transaction of `from` has no turn yet.
    pub(super) fn waits_for_label(&self, from: RegionId) -> bool {
        let front =
            self.sources.get(&from).and_then(|source| Some((source, source.queue.front()?)));
        let Some((source, Item::Transaction { past, .. })) = front else { return false };
        self.follows() == Follows::On && past.get(from, self.me) > source.applied
    }

    /// Gives out the transaction whose label has its turn. Positions before it in its stream wait
    /// for their pasts, as ever: what they name may be more than what it has seen.
    pub(super) fn pop_labelled(&mut self, defined: &Defined, now: u64) -> Option<Remote> {
        let (sources, me) = (&self.sources, self.me);
        let from = self.order.as_mut()?.turn(|of| stands(sources, of, me))?;
        let at = self.sources.get(&from)?.first(from, me)?;
        if !self.is_defined(from, at, defined) {
            return None;
        }
        let source = self.sources.get_mut(&from)?;
        let item = source.queue.remove(at)?;
        let remote = self.applied(from, item, now);
        if let Some(source) = self.sources.get_mut(&from) {
            // What stood on both sides of it stands in a row now.
            source.merge_ends(at, from, me);
            if let Some(before) = at.checked_sub(1) {
                source.merge_ends(before, from, me);
            }
        }
        let mut remote = remote?;
        remote.way.by_label = true;
        Some(remote)
    }
}

/// How a source stands.
fn stands(sources: &BTreeMap<RegionId, Source>, of: RegionId, me: RegionId) -> Stands {
    let Some(source) = sources.get(&of) else { return Stands::default() };
    let first = source.first(of, me).and_then(|at| match source.queue.get(at) {
        Some(Item::Transaction { at, came, .. }) => Some((*at, *came)),
        _ => None,
    });
    Stands { first, applied: source.applied_at, passed: source.passed }
}
