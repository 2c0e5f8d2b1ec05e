//! The bank: money moves between accounts, the total stays.
//!
//! # Limits
//! Sees only what a read of all accounts in one transaction shows.

use std::fmt;

/// One read of all accounts, in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BankRead {
    /// Who read.
    pub reader: String,
    /// The balances.
    pub balances: Vec<i64>,
}

/// What a read showed that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BankViolation {
    /// Money appeared or vanished.
    Total {
        /// The read.
        read: BankRead,
        /// The total it should show.
        expected: i64,
        /// The total it shows.
        found: i64,
    },
    /// An account is below zero though no transfer may take it there.
    Negative {
        /// The read.
        read: BankRead,
    },
    /// An account is missing or there are too many.
    Accounts {
        /// The read.
        read: BankRead,
        /// The number of accounts there are.
        expected: usize,
    },
}

impl fmt::Display for BankViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Total { read, expected, found } => {
                write!(
                    f,
                    "bank: {} saw {found} in all, not {expected}: {:?}",
                    read.reader, read.balances
                )
            }
            Self::Negative { read } => {
                write!(f, "bank: {} saw an account below zero: {:?}", read.reader, read.balances)
            }
            Self::Accounts { read, expected } => {
                write!(
                    f,
                    "bank: {} saw {} of {expected} accounts",
                    read.reader,
                    read.balances.len()
                )
            }
        }
    }
}

/// Checks every read.
#[must_use]
pub fn check(reads: &[BankRead], accounts: usize, total: i64) -> Vec<BankViolation> {
    let mut found = Vec::new();
    for read in reads {
        let sum: i64 = read.balances.iter().sum();
        if read.balances.len() != accounts {
            found.push(BankViolation::Accounts { read: read.clone(), expected: accounts });
        } else if sum != total {
            found.push(BankViolation::Total { read: read.clone(), expected: total, found: sum });
        } else if read.balances.iter().any(|balance| *balance < 0) {
            found.push(BankViolation::Negative { read: read.clone() });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(balances: &[i64]) -> BankRead {
        BankRead { reader: "r".into(), balances: balances.to_vec() }
    }

    #[test]
    fn bank_reads_with_the_right_total_pass_and_others_are_named() {
        assert!(check(&[read(&[5, 5]), read(&[10, 0])], 2, 10).is_empty());
        assert!(matches!(check(&[read(&[5, 6])], 2, 10)[..], [BankViolation::Total { .. }]));
        assert!(matches!(check(&[read(&[11, -1])], 2, 10)[..], [BankViolation::Negative { .. }]));
        assert!(matches!(check(&[read(&[10])], 2, 10)[..], [BankViolation::Accounts { .. }]));
    }
}
