//! The inbox on plane `timestamp`: transactions are given out in the order of their labels over all
//! streams, first time, then region.
//!
//! ```text
//! stream of i:  … T at t            T has its turn when every other stream has something later to come next, or nothing, but has
//! stream of j:  … ─ closed up to c  been closed up to t: what the end of its last batch says (c ≥ t)
//! ```
//! # Invariants
//! - A stream comes in the order of its region's log, whose times grow. So nothing that is still to
//!   come of it is at or below the end of what came: that is a closed time, which no region has to
//!   promise.
//! - Pasts are waited for as on `matrix`. The least label of all has its past here, as a label is
//!   greater than all that its region had applied: the two never wait for each other.
//!
//! # On failure
//! While a region is known not to close its time for others, pasts alone decide.
//!
//! # Limits
//! The order begins with what has not been given out when the plane is chosen, or a stream begins.
//! Transactions whose rows wait for definitions let others pass, of which one may bring those. What
//! a region took back from others after a loss comes under its old label.

use std::collections::BTreeMap;

use telesto_common::{RegionId, Timestamp};
use telesto_geo::{Bug, RegionSet};

use super::{CLOSED, Inbox, Item, Source};
use crate::defined::Defined;

/// Whose time counts, and for whom.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// The regions whose times are waited for; empty on other planes.
    waited_for: RegionSet,
    /// One of them does not close its time: pasts decide.
    refused: bool,
    /// Whose next transaction had no definitions at its turn when it was asked last what is due.
    pub unread: RegionSet,
    /// Of those, whose has none by the newest definitions either.
    passable: RegionSet,
}

impl Times {
    fn are_followed(&self) -> bool {
        !self.waited_for.is_empty() && !self.refused
    }
}

impl Source {
    /// When the first transaction was committed that was not given out.
    fn next_at(&self, from: RegionId, me: RegionId) -> Option<Timestamp> {
        match self.queue.get(self.first(from, me)?)? {
            Item::Transaction { at, .. } => Some(*at),
            Item::End { .. } => None,
        }
    }

    /// When the transactions that wait were committed, and came.
    fn waiting(&self) -> impl DoubleEndedIterator<Item = (Timestamp, u64)> + '_ {
        self.queue.iter().filter_map(|item| match item {
            Item::Transaction { at, came, .. } => Some((*at, *came)),
            Item::End { .. } => None,
        })
    }
}

impl Inbox {
    /// Transactions wait for the times of these regions.
    pub fn timed_by(&mut self, regions: RegionSet) {
        self.times.waited_for = regions;
    }

    /// Whether a region does not close its time for others, so that pasts decide; whether that is
    /// new.
    pub fn go_by_pasts(&mut self, refused: bool) -> bool {
        std::mem::replace(&mut self.times.refused, refused) != refused
    }

    /// Looks, by the definitions that are here now, who may be passed.
    pub(super) fn look_who_may_be_passed(&mut self, defined: &Defined) {
        let unread = |region: &RegionId| {
            let source = self.sources.get(region);
            let first = source.and_then(|source| source.queue.get(source.first(*region, self.me)?));
            matches!(first, Some(Item::Transaction { at, writes, .. }) if !defined.reads(*region, *at, writes))
        };
        self.times.passable = self.times.unread.iter().filter(unread).collect();
        self.times.unread = self.times.passable;
    }

    /// Others whose times count for what `from` sent: their streams have begun, and are not given
    /// up.
    fn timers(&self, from: RegionId) -> impl Iterator<Item = (RegionId, &Source)> + '_ {
        let waited_for = self.times.waited_for;
        let counts = move |(region, source): &(RegionId, &Source)| {
            *region != from
                && waited_for.has(*region)
                && source.applied != CLOSED
                && !self.closing.contains(region)
        };
        self.sources.iter().map(|(region, source)| (*region, source)).filter(counts)
    }

    /// Whether the first transaction of `from` is the next one in the order of labels. Positions
    /// have no turn.
    pub(super) fn has_turn(&self, from: RegionId) -> bool {
        if !self.times.are_followed() {
            return true;
        }
        let front =
            self.sources.get(&from).and_then(|source| Some((source, source.queue.front()?)));
        let Some((source, Item::Transaction { at, past, .. })) = front else { return true };
        if past.get(from, self.me) <= source.applied {
            return true;
        }
        self.timers(from).all(|(other, source)| match source.next_at(other, self.me) {
            Some(next) => (*at, from) < (next, other) || self.times.passable.has(other),
            None => source.received.at >= *at || self.planted == Some(Bug::OpenTime),
        })
    }

    /// The regions that transactions wait for, whose times are not closed far enough: up to when
    /// they are wanted.
    pub fn lacking(&self) -> BTreeMap<RegionId, Timestamp> {
        if !self.times.are_followed() {
            return BTreeMap::new();
        }
        let newest = |other: RegionId| {
            let sources = self.sources.iter().filter(|(region, _)| **region != other);
            sources.filter_map(|(_, source)| Some(source.waiting().next_back()?.0)).max()
        };
        let lacks = |(other, source): (RegionId, &Source)| {
            let wanted = newest(other)?;
            (wanted > source.received.at).then_some((other, wanted))
        };
        self.timers(self.me).filter_map(lacks).collect()
    }

    /// Since when (microseconds of this region's clock) something waits for the time of `other`.
    pub fn lacks_since(&self, other: RegionId) -> Option<u64> {
        let (_, of) = self.timers(self.me).find(|(region, _)| *region == other)?;
        if !self.times.are_followed() {
            return None;
        }
        let later = |source: &Source| {
            source.waiting().find(|(at, _)| *at > of.received.at).map(|(_, came)| came)
        };
        let others = self.sources.iter().filter(|(region, _)| **region != other);
        others.filter_map(|(_, source)| later(source)).min()
    }
}

#[cfg(test)]
mod tests {
    use telesto_common::Lsn;
    use telesto_geo::PlaneKind;

    use super::*;
    use crate::past::Past;
    use crate::wire::{Batch, Element, Position};

    const ME: RegionId = RegionId(3);

    /// An inbox that waits for the times of three regions, whose streams have begun.
    fn inbox() -> Inbox {
        let mut inbox = Inbox::new(ME, PlaneKind::Timestamp, None);
        inbox.timed_by([0, 1, 2].map(RegionId).into_iter().collect());
        for source in [0, 1] {
            inbox.begin(RegionId(source), Position::default(), 0);
        }
        inbox
    }

    /// The next batch of `source`: transactions of these times, closed up to `end`.
    fn take(inbox: &mut Inbox, source: u16, times: &[u64], end: u64) {
        let source = RegionId(source);
        let before = inbox.received(source).expect("has begun").clone();
        let mut past: Past = before.past.clone();
        let element = |at: &u64| {
            past.count(source, RegionSet::only(ME));
            let shared_with = RegionSet::default();
            Element { at: Timestamp(*at), past: past.clone(), shared_with, writes: Vec::new() }
        };
        let elements = times.iter().map(element).collect();
        let end = Position { lsn: Lsn(end), hash: [1; 16], at: Timestamp(end), past };
        inbox.take(source, Batch { begin: (before.lsn, before.hash), elements, end }, 7);
    }

    fn due(inbox: &mut Inbox) -> Vec<(u64, u16)> {
        let due = inbox.due(usize::MAX, &Defined::default(), 0);
        due.iter().map(|remote| (remote.label.timestamp.0, remote.label.source.0)).collect()
    }

    #[test]
    fn transactions_come_by_label_and_not_before_every_stream_was_closed_up_to_them() {
        let mut inbox = inbox();
        take(&mut inbox, 1, &[2, 5, 9], 9);
        assert_eq!(due(&mut inbox), []);
        assert_eq!(inbox.lacking(), BTreeMap::from([(RegionId(0), Timestamp(9))]));
        assert_eq!(
            (inbox.lacks_since(RegionId(0)), inbox.lacks_since(RegionId(1))),
            (Some(7), None)
        );
        take(&mut inbox, 0, &[], 2);
        assert_eq!(due(&mut inbox), [(2, 1)]);
        // Of one time it is the region that decides.
        take(&mut inbox, 0, &[5, 8], 8);
        assert_eq!(due(&mut inbox), [(5, 0), (5, 1), (8, 0)]);
        take(&mut inbox, 0, &[10], 10);
        assert_eq!(due(&mut inbox), [(9, 1)]);
        assert_eq!(inbox.lacking(), BTreeMap::from([(RegionId(1), Timestamp(10))]));
    }

    #[test]
    fn region_whose_stream_begins_holds_from_there_on_and_one_that_is_closed_never() {
        let mut inbox = inbox();
        take(&mut inbox, 0, &[2], 2);
        take(&mut inbox, 1, &[3], 3);
        assert_eq!(due(&mut inbox), [(2, 0)]);
        inbox.begin(RegionId(2), Position { at: Timestamp(2), ..Position::default() }, 0);
        take(&mut inbox, 0, &[], 3);
        assert_eq!(due(&mut inbox), []);
        inbox.begin_to_close(RegionId(2));
        assert_eq!(due(&mut inbox), [(3, 1)]);
        inbox.close(RegionId(2));
        take(&mut inbox, 1, &[4], 4);
        take(&mut inbox, 0, &[], 4);
        assert_eq!(due(&mut inbox), [(4, 1)]);
    }

    #[test]
    fn pasts_alone_decide_while_a_region_does_not_close_its_time() {
        let mut inbox = inbox();
        take(&mut inbox, 1, &[2], 2);
        assert!(inbox.go_by_pasts(true) && !inbox.go_by_pasts(true));
        assert!(inbox.lacking().is_empty() && inbox.lacks_since(RegionId(0)).is_none());
        assert_eq!(due(&mut inbox), [(2, 1)]);
        assert!(inbox.go_by_pasts(false));
        take(&mut inbox, 1, &[4], 4);
        assert_eq!(due(&mut inbox), []);
    }
}
