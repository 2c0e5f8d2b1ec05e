//! What the own link does not bring: what is missing, what this region serves again, and what it
//! takes from others.
//!
//! # Invariants
//! - What is taken goes on where the stream of its source stands here, and waits for nothing.
//!
//! # On failure
//! What does not fit is left: it comes by its own stream.
//!
//! # Limits
//! The newest [`super::KEPT_BYTES`] of each source are kept to be served again.

use telesto_common::RegionId;

use super::{AGAIN_BYTES, Inbox, Item, Missing, queued};
use crate::past::MEMBERS;
use crate::question::Newest;
use crate::wire::Element;

impl Inbox {
    /// What this region waits for since before `since` (microseconds of its clock) and has not got
    /// of whom it is.
    pub fn missing(&self, since: u64) -> Vec<Missing> {
        let mut missing = Vec::new();
        for (via, source) in &self.sources {
            // A position waits for its past as a transaction does, and what is behind it with it.
            let Some((past, came)) = source.queue.front().map(Item::waits) else { continue };
            if came > since || self.is_due(*via) {
                continue;
            }
            for of in (0..MEMBERS as u16).map(RegionId).filter(|of| of != via && *of != self.me) {
                let above = self.sources.get(&of).map(|source| source.came(of, self.me));
                if above.is_some_and(|above| above < past.get(of, self.me)) {
                    missing.push(Missing { via: *via, of, above: above.unwrap_or_default() });
                }
            }
        }
        missing
    }

    /// The newest transaction of `of` that came; none of one that is closed.
    pub fn newest(&self, of: RegionId) -> Newest {
        let Some(source) = self.sources.get(&of).filter(|_| !self.is_closed(of)) else {
            return Newest::default();
        };
        let applied = Newest { number: source.applied, at: source.applied_at };
        let queued = source.queue.iter().rev().find_map(|item| match item {
            Item::Transaction { at, past, .. } => {
                Some(Newest { number: past.get(of, self.me), at: *at })
            }
            Item::End { .. } => None,
        });
        queued.filter(|queued| queued.number > applied.number).unwrap_or(applied)
    }

    /// Transactions of `of` to region `to` that are numbered above `above`, of which this region
    /// got the same.
    pub fn again(&self, of: RegionId, to: RegionId, above: u64) -> Vec<Element> {
        let Some(source) = self.sources.get(&of) else { return Vec::new() };
        let (mut next, mut bytes) = (above + 1, 0);
        let mut again = Vec::new();
        for (element, size) in &source.kept {
            let number = element.past.get(of, to);
            if bytes >= AGAIN_BYTES || number > next {
                break;
            }
            if number == next && element.shared_with.has(to) {
                next += 1;
                bytes += size;
                again.push(element.clone());
            }
        }
        again
    }

    /// Takes transactions of `of` that another region had; those that go on where its stream stands
    /// here.
    ///
    /// None that would wait: what is told of their past here is that of a batch to somebody else,
    /// made later than they were, and may name what depends on them. It would stand before the same
    /// transaction in the queue when that comes by its own stream, and for ever.
    ///
    /// None that may stand behind a definition which has not come here by that stream: rows of a
    /// table that this region gets by the definition stand between, in no transaction, and only the
    /// stream brings them.
    pub fn take_again(&mut self, of: RegionId, elements: Vec<Element>, now: u64) -> usize {
        let (me, turn, defining) = (self.me, self.turn, self.defining);
        if self.defined {
            return 0;
        }
        let applied: Vec<u64> = (0..MEMBERS as u16)
            .map(|region| self.sources.get(&RegionId(region)).map_or(0, |source| source.applied))
            .collect();
        let Some(source) = self.sources.get_mut(&of) else { return 0 };
        let mut taken = 0;
        for element in elements {
            let waits = |region: RegionId| {
                let here = applied.get(usize::from(region.0)).copied().unwrap_or_default();
                region != me && region != of && element.past.get(region, me) > here
            };
            if (0..MEMBERS as u16).map(RegionId).any(waits) {
                break;
            }
            let defined = |region| {
                let told = source.received.past.get(region, me);
                region == of || element.past.get(region, me) > told
            };
            if defining.iter().any(defined) {
                break;
            }
            if element.past.get(of, me) == source.came(of, me) + 1 {
                source.push(queued(element, now, turn));
                taken += 1;
            }
        }
        taken
    }
}
