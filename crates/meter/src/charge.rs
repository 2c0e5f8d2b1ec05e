//! Quantities of what is paid for, and how they are shared out.
//!
//! # Purpose
//! A [`Charge`] says how much of each [`Resource`] something used, in units so small that shares of
//! one request are whole numbers. Dollars are a linear function of quantities ([`crate::Rates`]),
//! so whatever conserves quantities conserves dollars.
//!
//! # Invariants
//! - Shares add up to what was shared, unit by unit ([`Charge::share_out`]).
//! - Sums do not wrap: they stop at the greatest number.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! A request can be shared by a million at most before some of them get nothing of it.

use std::ops::{Add, AddAssign, Sub};

/// Parts of one request.
pub const REQUEST: u64 = 1_000_000;

/// What is paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// GET and HEAD requests, millionths.
    Gets,
    /// PUT and COPY requests, millionths.
    Puts,
    /// LIST requests, millionths.
    Lists,
    /// DELETE requests, millionths.
    Deletes,
    /// Body bytes sent to the bucket.
    Sent,
    /// Body bytes received from the bucket.
    Received,
    /// Computing, nanoseconds of one processor.
    Cpu,
    /// Bytes sent to other nodes.
    Peers,
    /// Memory set aside, bytes times seconds.
    Memory,
    /// Bytes of transactions in the log: priced at nothing by themselves, and what background work
    /// is shared out by.
    Logged,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; COUNT] = [
        Self::Gets,
        Self::Puts,
        Self::Lists,
        Self::Deletes,
        Self::Sent,
        Self::Received,
        Self::Cpu,
        Self::Peers,
        Self::Memory,
        Self::Logged,
    ];

    /// As views show it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gets => "get requests",
            Self::Puts => "put requests",
            Self::Lists => "list requests",
            Self::Deletes => "delete requests",
            Self::Sent => "bytes sent to the bucket",
            Self::Received => "bytes received from the bucket",
            Self::Cpu => "processor seconds",
            Self::Peers => "bytes sent to other nodes",
            Self::Memory => "gigabyte hours of memory",
            Self::Logged => "log bytes",
        }
    }

    /// Units of what [`Resource::name`] names: millionths, nanoseconds, bytes.
    #[must_use]
    pub fn units(self) -> u64 {
        match self {
            Self::Gets | Self::Puts | Self::Lists | Self::Deletes => REQUEST,
            Self::Cpu => 1_000_000_000,
            Self::Memory => 3600 << 30,
            Self::Sent | Self::Received | Self::Peers | Self::Logged => 1,
        }
    }

    /// Whether it comes in requests, which are shared equally; all else is shared by weight.
    #[must_use]
    pub fn is_requests(self) -> bool {
        matches!(self, Self::Gets | Self::Puts | Self::Lists | Self::Deletes)
    }
}

/// How many resources there are.
pub const COUNT: usize = 10;

/// How much was used of each resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge([u64; COUNT]);

impl Charge {
    /// Nothing.
    pub const ZERO: Self = Self([0; COUNT]);

    /// So much of one resource.
    #[must_use]
    pub fn of(resource: Resource, units: u64) -> Self {
        let mut charge = Self::ZERO;
        charge.0[resource as usize] = units;
        charge
    }

    /// With so much more of a resource.
    #[must_use]
    pub fn and(mut self, resource: Resource, units: u64) -> Self {
        let cell = &mut self.0[resource as usize];
        *cell = cell.saturating_add(units);
        self
    }

    /// Units of a resource.
    #[must_use]
    pub fn get(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }

    /// The amount in whole things: requests, seconds, bytes.
    #[must_use]
    pub fn amount(&self, resource: Resource) -> f64 {
        self.get(resource) as f64 / resource.units() as f64
    }

    /// Whether it is nothing.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0 == [0; COUNT]
    }

    /// Shares for as many as there are weights: of requests in equal parts, of everything else in
    /// proportion to the weights (in equal parts where all weigh nothing). The shares add up to the
    /// whole, exactly.
    #[must_use]
    pub fn share_out(&self, weights: &[u64]) -> Vec<Self> {
        let mut shares = vec![Self::ZERO; weights.len()];
        let equal = vec![1; weights.len()];
        let weighed = if weights.iter().all(|weight| *weight == 0) { &equal[..] } else { weights };
        for resource in Resource::ALL {
            let whole = self.get(resource);
            if whole == 0 {
                continue;
            }
            let weights = if resource.is_requests() { &equal[..] } else { weighed };
            for (share, part) in shares.iter_mut().zip(split(u128::from(whole), weights)) {
                // A part of a u64 is one.
                share.0[resource as usize] = u64::try_from(part).unwrap_or(u64::MAX);
            }
        }
        shares
    }
}

/// `whole` in parts in proportion to `weights`, not all of which are zero; the parts add up to it,
/// exactly.
#[must_use]
pub fn split(whole: u128, weights: &[u64]) -> Vec<u128> {
    let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    if total == 0 {
        return vec![0; weights.len()];
    }
    // So that products fit; of weights that are larger than that the last bits do not matter.
    let shift = (u128::BITS - total.leading_zeros()).saturating_sub(63);
    let weights: Vec<u128> = weights.iter().map(|weight| u128::from(*weight) >> shift).collect();
    let total: u128 = weights.iter().sum();
    // Where the parts up to each one end; neighbours differ by the part. Quotient and rest are
    // multiplied apart: their product with a sum of weights fits, that of the whole may not.
    let end = |upto: u128| whole / total * upto + whole % total * upto / total;
    let mut upto = 0;
    let mut begin = 0;
    weights
        .iter()
        .map(|weight| {
            upto += weight;
            let to = end(upto);
            let part = to - begin;
            begin = to;
            part
        })
        .collect()
}

impl AddAssign for Charge {
    fn add_assign(&mut self, other: Self) {
        for (own, more) in self.0.iter_mut().zip(other.0) {
            *own = own.saturating_add(more);
        }
    }
}

impl Add for Charge {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl Sub for Charge {
    type Output = Self;

    /// What came since `earlier`; never below zero.
    fn sub(mut self, earlier: Self) -> Self {
        for (own, less) in self.0.iter_mut().zip(earlier.0) {
            *own = own.saturating_sub(less);
        }
        self
    }
}

impl std::iter::Sum for Charge {
    fn sum<I: Iterator<Item = Self>>(charges: I) -> Self {
        charges.fold(Self::ZERO, |sum, charge| sum + charge)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn charge() -> impl Strategy<Value = Charge> {
        prop::array::uniform10(0_u64..1 << 50).prop_map(Charge)
    }

    proptest! {
        #[test]
        fn shares_add_up_to_the_whole(
            whole in charge(),
            weights in prop::collection::vec(0_u64..1 << 40, 1..40),
        ) {
            let shares = whole.share_out(&weights);
            prop_assert_eq!(shares.iter().copied().sum::<Charge>(), whole);
            // Requests are shared equally, to the last part.
            for resource in Resource::ALL.into_iter().filter(|r| r.is_requests()) {
                let parts = shares.iter().map(|share| share.get(resource));
                let (least, most) = (parts.clone().min(), parts.max());
                prop_assert!(most <= least.map(|least| least + 1));
            }
        }

        #[test]
        fn shares_follow_the_weights(whole in 0_u64..1 << 50, weight in 0_u64..1000, other in 1_u64..1000) {
            let shares = Charge::of(Resource::Sent, whole).share_out(&[weight, other]);
            let exact = u128::from(whole) * u128::from(weight) / u128::from(weight + other);
            prop_assert_eq!(u128::from(shares[0].get(Resource::Sent)), exact);
        }

        #[test]
        fn greatest_numbers_are_split_without_overflow(
            whole in any::<u128>().prop_map(|n| n >> 8),
            weights in prop::collection::vec(any::<u64>(), 1..20),
        ) {
            let parts = split(whole, &weights);
            let sum: u128 = parts.iter().sum();
            prop_assert!(sum == whole || weights.iter().all(|weight| *weight == 0));
        }
    }

    #[test]
    fn nothing_weighed_is_shared_equally() {
        let shares = Charge::of(Resource::Sent, 7).share_out(&[0, 0]);
        assert_eq!((shares[0].get(Resource::Sent), shares[1].get(Resource::Sent)), (3, 4));
        assert!(Charge::of(Resource::Puts, 7).share_out(&[]).is_empty());
    }
}
