//! `bit_and`, `bit_or` and `bit_xor` of bit strings, and `range_intersect_agg`: aggregates that put
//! two values together.
//!
//! # Invariants
//! The order of the rows does not matter.
//!
//! # On failure
//! 22026 when the strings are not of one length.

use telesto_sql_expr::value::{bits_of, multirange_of};
use telesto_sql_types::Datum;
use telesto_sql_types::error::Result;
use telesto_sql_types::interrupt::Steps;

/// How two values are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Combined {
    /// The bits set in both.
    And,
    /// Set in one.
    Or,
    /// Set in one of them only.
    Xor,
    /// What is in both ranges, or multiranges.
    Intersection,
}

impl Combined {
    /// That of the aggregate `bit_and`, `bit_or`, `bit_xor` or `range_intersect_agg`.
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "bit_and" => Self::And,
            "bit_or" => Self::Or,
            "bit_xor" => Self::Xor,
            _ => Self::Intersection,
        }
    }

    /// The aggregate's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::And => "bit_and",
            Self::Or => "bit_or",
            Self::Xor => "bit_xor",
            Self::Intersection => "range_intersect_agg",
        }
    }

    /// What there was before, NULL at first, with one value more.
    pub(super) fn of(self, before: &Datum, value: &Datum) -> Result<Datum> {
        if before.is_null() {
            return Ok(value.clone());
        }
        let (what, with): (_, fn(u8, u8) -> u8) = match self {
            Self::And => ("AND", |a, b| a & b),
            Self::Or => ("OR", |a, b| a | b),
            Self::Xor => ("XOR", |a, b| a ^ b),
            Self::Intersection => return intersection(before, value),
        };
        bits_of(before)?.combined(bits_of(value)?, what, with).map(Datum::bits)
    }

    /// The first values of all these rows.
    pub(super) fn of_rows(self, rows: &[Vec<Datum>]) -> Result<Datum> {
        let mut steps = Steps::default();
        rows.iter().try_fold(Datum::Null, |before, row| {
            steps.step()?;
            self.of(&before, &row[0])
        })
    }
}

fn intersection(a: &Datum, b: &Datum) -> Result<Datum> {
    match (a, b) {
        (Datum::Range(a), Datum::Range(b)) => Ok(Datum::range(a.intersection(b))),
        (a, b) => multirange_of(a)?.intersection(multirange_of(b)?).map(Datum::multirange),
    }
}
