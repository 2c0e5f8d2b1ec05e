//! Prices of units, and dollars.
//!
//! # Purpose
//! A sheet's prices in attodollars a unit of each [`Resource`]; a bill is the sum of quantities
//! times rates.
//!
//! # Invariants
//! Dollars are whole attodollars (10^-18): linear in quantities, so that parts of a quantity cost
//! the parts of its price.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! A rate is rounded to a whole attodollar: the price of a byte at $0.0006 a gigabyte is off by one
//! part in a million at most.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use crate::charge::{COUNT, Charge, REQUEST, Resource};

/// Attodollars of a dollar.
const DOLLAR: f64 = 1e18;

/// Dollars, exact to 10^-18.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dollars(pub u128);

impl Dollars {
    /// Nothing.
    pub const ZERO: Self = Self(0);

    /// The nearest to a number; nothing below zero.
    #[must_use]
    pub fn from_f64(dollars: f64) -> Self {
        // Floats saturate when they become integers.
        Self((dollars * DOLLAR).round() as u128)
    }

    /// For floating-point uses.
    #[must_use]
    pub fn to_f64(self) -> f64 {
        self.0 as f64 / DOLLAR
    }

    /// This times a fraction.
    #[must_use]
    pub fn part(self, numerator: u64, denominator: u64) -> Self {
        let (n, d) = (u128::from(numerator), u128::from(denominator.max(1)));
        Self(self.0 / d * n + self.0 % d * n / d)
    }

    /// What is left of it when `other` is taken; nothing where that is more.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Add for Dollars {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Dollars {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Dollars {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.less(other)
    }
}

impl std::iter::Sum for Dollars {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::ZERO, |sum, one| sum + one)
    }
}

/// `0.0000054`: all digits that are not zeros at the end.
impl fmt::Display for Dollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 10_u128.pow(18), self.0 % 10_u128.pow(18));
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{rest:018}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

/// What one unit of each resource costs, attodollars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates([u64; COUNT]);

impl Rates {
    /// Everything is free.
    pub const FREE: Self = Self([0; COUNT]);

    /// With this price, dollars, of so many units of a resource.
    #[must_use]
    pub fn with(mut self, resource: Resource, dollars: f64, units: f64) -> Self {
        self.0[resource as usize] = (dollars / units * DOLLAR).round() as u64;
        self
    }

    /// With this price of a thousand requests, dollars.
    #[must_use]
    pub fn per_1000(self, resource: Resource, dollars: f64) -> Self {
        self.with(resource, dollars, 1000.0 * REQUEST as f64)
    }

    /// The price of one unit, attodollars.
    #[must_use]
    pub fn unit(&self, resource: Resource) -> u64 {
        self.0[resource as usize]
    }

    /// What so much of one resource costs.
    #[must_use]
    pub fn of(&self, resource: Resource, units: u64) -> Dollars {
        Dollars(u128::from(self.unit(resource)) * u128::from(units))
    }

    /// A charge in words, with what it costs:
    /// ```text
    /// 1 get, 0.5 put, 0 list, 0 delete; 206 bytes sent, 9117 received, 0 to nodes; 0.31 ms computed; $0.0000029
    /// ```
    #[must_use]
    pub fn describe(&self, charge: &Charge) -> String {
        let requests = |resource: Resource| {
            let text = format!("{:.6}", charge.amount(resource));
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        format!(
            "{} get, {} put, {} list, {} delete; {} bytes sent, {} received, {} to nodes; {:.3} ms computed; ${}",
            requests(Resource::Gets),
            requests(Resource::Puts),
            requests(Resource::Lists),
            requests(Resource::Deletes),
            charge.get(Resource::Sent),
            charge.get(Resource::Received),
            charge.get(Resource::Peers),
            charge.amount(Resource::Cpu) * 1000.0,
            self.price(charge),
        )
    }

    /// What a charge costs.
    #[must_use]
    pub fn price(&self, charge: &Charge) -> Dollars {
        Resource::ALL.into_iter().map(|resource| self.of(resource, charge.get(resource))).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn s3() -> Rates {
        Rates::FREE
            .per_1000(Resource::Puts, 0.005)
            .per_1000(Resource::Gets, 0.0004)
            .with(Resource::Received, 0.0006, (1_u64 << 30) as f64)
            .with(Resource::Cpu, 0.048, 3600e9)
    }

    #[test]
    fn published_prices_are_met_to_the_last_digit() {
        let charge = Charge::of(Resource::Puts, 3 * REQUEST).and(Resource::Gets, REQUEST);
        assert_eq!(s3().price(&charge).to_string(), "0.0000154");
        assert_eq!(s3().of(Resource::Puts, REQUEST / 4).to_string(), "0.00000125");
        let gigabyte = s3().of(Resource::Received, 1 << 30).to_f64();
        assert!((gigabyte / 0.0006 - 1.0).abs() < 1e-6, "{gigabyte}");
        assert_eq!(Dollars(0).to_string(), "0");
        assert_eq!(Dollars::from_f64(1.5).part(1, 3).to_string(), "0.5");
    }

    proptest! {
        #[test]
        fn dollars_of_shares_add_up_to_the_bill(
            puts in 0_u64..1 << 30,
            received in 0_u64..1 << 45,
            cpu in 0_u64..1 << 50,
            weights in prop::collection::vec(0_u64..1 << 30, 1..50),
        ) {
            let whole = Charge::of(Resource::Puts, puts)
                .and(Resource::Received, received)
                .and(Resource::Cpu, cpu);
            let shares = whole.share_out(&weights);
            let sum: Dollars = shares.iter().map(|share| s3().price(share)).sum();
            prop_assert_eq!(sum, s3().price(&whole));
        }
    }
}
