//! What a position in a region's log has in its past: a matrix of counts.
//!
//! `past[j][l]` counts transactions of the stream j→l that were committed, or applied, in the
//! region at or before the position. `docs/architecture/regions.md` tells why this is enough, and
//! why it can be made again from the log.
//!
//! # Invariants
//! - Counts only grow along a log.
//! - Two pasts are told apart by their counts alone: the same log gives the same past.
//! - The upper bits of a region's counts are its incarnation: a region that has lost commits goes
//!   on above everything it has ever said.
//!
//! # On failure
//! Bytes that name regions past the limit are refused.
//!
//! # Limits
//! [`MEMBERS`] regions.

use std::cmp::Ordering;

use bytes::BytesMut;
use telesto_common::RegionId;
use telesto_common::cursor::{Cursor, Malformed, put_varint};
use telesto_geo::RegionSet;

/// Bits of a count below the incarnation of its source: more transactions than a region ever
/// commits in one.
const INCARNATION_BITS: u32 = 40;

/// The most regions that the matrix has room for.
pub const MEMBERS: usize = 16;

/// Counts of every stream, by source and target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Past(Box<[u64; MEMBERS * MEMBERS]>);

impl Default for Past {
    fn default() -> Self {
        Self(Box::new([0; MEMBERS * MEMBERS]))
    }
}

impl Past {
    /// Memory of one, about.
    pub const BYTES: usize = MEMBERS * MEMBERS * 8;

    pub fn get(&self, source: RegionId, target: RegionId) -> u64 {
        self.0[place(source, target)]
    }

    pub fn set(&mut self, source: RegionId, target: RegionId, count: u64) {
        self.0[place(source, target)] = count;
    }

    pub fn grow(&mut self, source: RegionId, target: RegionId, by: u64) {
        let count = &mut self.0[place(source, target)];
        *count = count.saturating_add(by);
    }

    /// Counts a transaction of `source`, once for each of its targets.
    pub fn count(&mut self, source: RegionId, targets: RegionSet) {
        for target in targets.iter().filter(|target| *target != source) {
            self.0[place(source, target)] += 1;
        }
    }

    /// Takes another past into this one.
    pub fn absorb(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0.iter()) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Begins a new incarnation of `source`: whatever it numbers from now on is above every number
    /// of its earlier ones.
    pub fn reincarnate(&mut self, source: RegionId) {
        let targets = 0..MEMBERS as u16;
        let counts = targets.map(|target| place(source, RegionId(target)));
        let next =
            counts.clone().map(|at| self.0[at] >> INCARNATION_BITS).max().unwrap_or_default();
        for at in counts {
            self.0[at] = (next + 1) << INCARNATION_BITS;
        }
    }

    /// The incarnation of `source`, as far as this knows it; the first one is 0.
    pub fn incarnation(&self, source: RegionId) -> u64 {
        let targets = 0..MEMBERS as u16;
        let of = |target| self.get(source, RegionId(target)) >> INCARNATION_BITS;
        targets.map(of).max().unwrap_or_default()
    }

    /// Appends what has grown since `before`.
    pub fn put_since(&self, before: &Self, out: &mut BytesMut) {
        let grown: Vec<_> = (0..self.0.len()).filter(|at| self.0[*at] > before.0[*at]).collect();
        put_varint(out, grown.len() as u64);
        for at in grown {
            out.extend_from_slice(&[u8::try_from(at).unwrap_or(u8::MAX)]);
            put_varint(out, self.0[at] - before.0[at]);
        }
    }

    /// Takes in what [`Past::put_since`] appended, where this is what it was before.
    pub fn take_since(&mut self, cursor: &mut Cursor) -> Result<(), Malformed> {
        for _ in 0..cursor.count(2)? {
            let at = usize::from(cursor.u8()?);
            let grown = cursor.varint()?;
            self.0[at] = self.0[at].saturating_add(grown);
        }
        Ok(())
    }
}

/// How many transactions a count names that are not among those up to `had`. Of another incarnation
/// than that of `had` only its own are known: where it began says nothing of how many there were
/// before.
pub(crate) fn beyond(named: u64, had: u64) -> u64 {
    match (named >> INCARNATION_BITS).cmp(&(had >> INCARNATION_BITS)) {
        Ordering::Less => 0,
        Ordering::Equal => named.saturating_sub(had),
        Ordering::Greater => named & ((1 << INCARNATION_BITS) - 1),
    }
}

fn place(source: RegionId, target: RegionId) -> usize {
    // Members are checked where they come in.
    usize::from(source.0) % MEMBERS * MEMBERS + usize::from(target.0) % MEMBERS
}
