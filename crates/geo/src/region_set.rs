//! Sets of regions: placements and interests.
//!
//! # Invariants
//! A set is one 64-bit number, so a label that carries one has constant size.
//!
//! # On failure
//! Inserting a region beyond the limit changes nothing; members are checked where a region is
//! configured.
//!
//! # Limits
//! Regions 0 to 63.

use telesto_common::RegionId;

/// A set of regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionSet(pub u64);

impl RegionSet {
    /// How many regions fit.
    pub const LIMIT: usize = 64;

    /// Regions 0 to `members` - 1.
    #[must_use]
    pub fn first(members: usize) -> Self {
        if members >= Self::LIMIT { Self(u64::MAX) } else { Self((1 << members) - 1) }
    }

    /// One region.
    #[must_use]
    pub fn only(region: RegionId) -> Self {
        Self::default().with(region)
    }

    /// This set and `region`.
    #[must_use]
    pub fn with(self, region: RegionId) -> Self {
        let bit = 1_u64.checked_shl(u32::from(region.0)).unwrap_or(0);
        Self(self.0 | bit)
    }

    /// This set without `region`.
    #[must_use]
    pub fn without(self, region: RegionId) -> Self {
        let bit = 1_u64.checked_shl(u32::from(region.0)).unwrap_or(0);
        Self(self.0 & !bit)
    }

    /// Whether `region` is in it.
    #[must_use]
    pub fn has(self, region: RegionId) -> bool {
        1_u64.checked_shl(u32::from(region.0)).is_some_and(|bit| self.0 & bit != 0)
    }

    /// Whether a region is in both.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The number of regions in it.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its regions, ascending.
    pub fn iter(self) -> impl Iterator<Item = RegionId> {
        (0..Self::LIMIT as u16).map(RegionId).filter(move |region| self.has(*region))
    }
}

impl FromIterator<RegionId> for RegionSet {
    fn from_iter<I: IntoIterator<Item = RegionId>>(regions: I) -> Self {
        regions.into_iter().fold(Self::default(), Self::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_set_holds_what_was_inserted_and_nothing_beyond_its_limit() {
        let set: RegionSet = [RegionId(0), RegionId(3), RegionId(63)].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [RegionId(0), RegionId(3), RegionId(63)]);
        assert_eq!(set.with(RegionId(64)), set);
        assert!(RegionSet::only(RegionId(64)).is_empty());
        assert!(!set.has(RegionId(64)) && !set.without(RegionId(3)).has(RegionId(3)));
        assert_eq!(RegionSet::first(3), [0, 1, 2].map(RegionId).into_iter().collect());
        assert_eq!(RegionSet::first(64).len(), 64);
    }
}
