//! Ranges and multiranges: the values of `int4range`, `int8range`, `numrange`, `daterange`,
//! `tsrange`, `tstzrange` and of their multiranges.
//!
//! One kind of value over the datums of six types: what differs among them is a [`RangeKind`].
//!
//! # Invariants
//! - Without members there is one range, the empty one. A bound that is infinite is never
//!   inclusive.
//! - Ranges of integers and dates are kept as PostgreSQL's canonical form: lower bound inclusive,
//!   upper one exclusive (an infinite date stays as it was given).
//! - The ranges of a [`Multirange`] are not empty, in order, and neither overlap nor touch: equal
//!   sets are equal values.
//! - The order is that of PostgreSQL's btree class: the empty range first, then by lower and by
//!   upper bounds; a multirange as the list of its ranges.
//!
//! # On failure
//! What PostgreSQL answers: 22000 for a lower bound above the upper one and for results that would
//! not be one range, 22003 and 22008 where the canonical form has no number, 22P02 for texts, 22P03
//! for binary forms.
//!
//! # Limits
//! The six types PostgreSQL has of itself; there is no CREATE TYPE … AS RANGE.

mod multi;
mod order;
mod stored;
mod text;
mod wire;

use std::cmp::Ordering;

pub use self::multi::{Multirange, contain, have, overlap};
use crate::datetime_parse::DATES;
use crate::datum::Datum;
use crate::error::{Error, Result, SqlState};
use crate::sql_type::SqlType;

/// Which of the range types.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub enum RangeKind {
    /// int4range
    Int4,
    /// int8range
    Int8,
    /// numrange
    Num,
    /// daterange
    Date,
    /// tsrange
    Ts,
    /// tstzrange
    Tstz,
}

impl RangeKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Int4, Self::Int8, Self::Num, Self::Date, Self::Ts, Self::Tstz];

    /// The type of the bounds.
    #[must_use]
    pub fn subtype(self) -> SqlType {
        match self {
            Self::Int4 => SqlType::Int4,
            Self::Int8 => SqlType::Int8,
            Self::Num => SqlType::Numeric(None),
            Self::Date => SqlType::Date,
            Self::Ts => SqlType::Timestamp(None),
            Self::Tstz => SqlType::TimestampTz(None),
        }
    }

    /// The range type's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Int4 => "int4range",
            Self::Int8 => "int8range",
            Self::Num => "numrange",
            Self::Date => "daterange",
            Self::Ts => "tsrange",
            Self::Tstz => "tstzrange",
        }
    }

    /// The multirange type's name.
    #[must_use]
    pub fn multirange_name(self) -> &'static str {
        match self {
            Self::Int4 => "int4multirange",
            Self::Int8 => "int8multirange",
            Self::Num => "nummultirange",
            Self::Date => "datemultirange",
            Self::Ts => "tsmultirange",
            Self::Tstz => "tstzmultirange",
        }
    }

    /// OIDs of the range type, its array, the multirange type and its array.
    #[must_use]
    pub fn oids(self) -> [u32; 4] {
        match self {
            Self::Int4 => [3904, 3905, 4451, 6150],
            Self::Int8 => [3926, 3927, 4536, 6157],
            Self::Num => [3906, 3907, 4532, 6151],
            Self::Date => [3912, 3913, 4535, 6155],
            Self::Ts => [3908, 3909, 4533, 6152],
            Self::Tstz => [3910, 3911, 4534, 6153],
        }
    }

    /// The kind over values of a type.
    #[must_use]
    pub fn over(subtype: &SqlType) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.subtype().same_base(subtype))
    }
}

/// One end of a range.
#[derive(Clone, Debug)]
pub struct Bound {
    /// Where it is; `None`: nowhere, the range goes on for ever.
    pub value: Option<Datum>,
    /// Whether the value itself is in the range.
    pub inclusive: bool,
}

impl Bound {
    /// No end.
    pub const INFINITE: Self = Self { value: None, inclusive: false };

    /// An end at a value; NULL is no end.
    #[must_use]
    pub fn new(value: Datum, inclusive: bool) -> Self {
        if value.is_null() { Self::INFINITE } else { Self { value: Some(value), inclusive } }
    }

    /// The end of what begins or ends here on the other side.
    fn flipped(&self) -> Self {
        Self { value: self.value.clone(), inclusive: !self.inclusive }
    }

    /// How far beside its value it is: an upper bound that leaves it out before, a lower one
    /// behind.
    fn nudge(&self, lower: bool) -> i8 {
        match (self.inclusive, lower) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => -1,
        }
    }
}

/// Compares two ends; the flags tell which of them are lower bounds.
fn compare(a: &Bound, a_lower: bool, b: &Bound, b_lower: bool) -> Ordering {
    match (&a.value, &b.value) {
        (Some(x), Some(y)) => x.cmp_values(y).then_with(|| a.nudge(a_lower).cmp(&b.nudge(b_lower))),
        (None, None) => b_lower.cmp(&a_lower),
        (None, Some(_)) => {
            if a_lower {
                Ordering::Less
            } else {
                Ordering::Greater
            }
        }
        (Some(_), None) => {
            if b_lower {
                Ordering::Greater
            } else {
                Ordering::Less
            }
        }
    }
}

/// A range.
#[derive(Clone, Debug)]
pub struct Range {
    kind: RangeKind,
    /// Lower and upper bound; `None`: empty.
    span: Option<(Bound, Bound)>,
}

fn fault(message: &str) -> Error {
    Error::new(SqlState::DATA_EXCEPTION, message)
}

impl Range {
    /// The empty range.
    #[must_use]
    pub fn empty(kind: RangeKind) -> Self {
        Self { kind, span: None }
    }

    /// The range between two bounds, in its canonical form.
    ///
    /// # Errors
    /// 22000 when the lower is above the upper one; 22003, 22008 when the form has no number.
    pub fn new(kind: RangeKind, lower: Bound, upper: Bound) -> Result<Self> {
        let Some((lower, upper)) = ordered(lower, upper)? else { return Ok(Self::empty(kind)) };
        let (lower, upper) = match kind {
            RangeKind::Int4 | RangeKind::Int8 | RangeKind::Date => {
                (canonical(lower, false)?, canonical(upper, true)?)
            }
            RangeKind::Num | RangeKind::Ts | RangeKind::Tstz => (lower, upper),
        };
        Ok(Self { kind, span: ordered(lower, upper)? })
    }

    /// A range of bounds that are in order, and in canonical form.
    fn between(kind: RangeKind, lower: &Bound, upper: &Bound) -> Self {
        let keep = compare(lower, true, upper, false).is_le();
        Self { kind, span: keep.then(|| (lower.clone(), upper.clone())) }
    }

    /// Of which type.
    #[must_use]
    pub fn kind(&self) -> RangeKind {
        self.kind
    }

    /// Lower and upper bound; `None` when it is empty.
    #[must_use]
    pub fn bounds(&self) -> Option<(&Bound, &Bound)> {
        self.span.as_ref().map(|(lower, upper)| (lower, upper))
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.span.is_none()
    }

    /// As a list of ranges that are not empty.
    #[must_use]
    pub fn parts(&self) -> &[Self] {
        if self.is_empty() { &[] } else { std::slice::from_ref(self) }
    }

    fn both<'a>(&'a self, other: &'a Self) -> Option<[(&'a Bound, &'a Bound); 2]> {
        Some([self.bounds()?, other.bounds()?])
    }

    /// Whether a value that is not NULL is in it.
    #[must_use]
    pub fn has(&self, value: &Datum) -> bool {
        let at = Bound { value: Some(value.clone()), inclusive: true };
        self.bounds().is_some_and(|(lower, upper)| {
            compare(lower, true, &at, true).is_le() && compare(upper, false, &at, false).is_ge()
        })
    }

    /// Whether it ends before a value that is not NULL.
    fn is_below(&self, value: &Datum) -> bool {
        let at = Bound { value: Some(value.clone()), inclusive: true };
        self.bounds().is_some_and(|(_, upper)| compare(upper, false, &at, true).is_lt())
    }

    /// Whether all of the other is in it.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        let Some([(low, high), (inner_low, inner_high)]) = self.both(other) else {
            return other.is_empty();
        };
        compare(low, true, inner_low, true).is_le()
            && compare(high, false, inner_high, false).is_ge()
    }

    /// Whether something is in both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.both(other).is_some_and(|[a, b]| {
            compare(a.0, true, b.1, false).is_le() && compare(b.0, true, a.1, false).is_le()
        })
    }

    /// `<<`: whether it ends before the other begins.
    #[must_use]
    pub fn is_before(&self, other: &Self) -> bool {
        self.both(other).is_some_and(|[a, b]| compare(a.1, false, b.0, true).is_lt())
    }

    /// `&<`: whether it does not go on behind the other.
    #[must_use]
    pub fn ends_within(&self, other: &Self) -> bool {
        self.both(other).is_some_and(|[a, b]| compare(a.1, false, b.1, false).is_le())
    }

    /// `&>`: whether it does not begin before the other.
    #[must_use]
    pub fn begins_within(&self, other: &Self) -> bool {
        self.both(other).is_some_and(|[a, b]| compare(a.0, true, b.0, true).is_ge())
    }

    /// `-|-`: whether one ends where the other begins, with nothing between and nothing in both.
    #[must_use]
    pub fn touches(&self, other: &Self) -> bool {
        // In canonical form no two integers or dates are neighbours without being equal as bounds.
        let meet = |upper: &Bound, lower: &Bound| match (&upper.value, &lower.value) {
            (Some(a), Some(b)) => upper.inclusive != lower.inclusive && a.cmp_values(b).is_eq(),
            _ => false,
        };
        self.both(other).is_some_and(|[a, b]| meet(a.1, b.0) || meet(b.1, a.0))
    }

    /// The smallest range that both are in.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let Some([a, b]) = self.both(other) else {
            return if self.is_empty() { other.clone() } else { self.clone() };
        };
        // Of equal bounds PostgreSQL takes the second's: numbers may be of another scale.
        let lower = if compare(a.0, true, b.0, true).is_lt() { a.0 } else { b.0 };
        let upper = if compare(a.1, false, b.1, false).is_gt() { a.1 } else { b.1 };
        Self::between(self.kind, lower, upper)
    }

    /// `+`.
    ///
    /// # Errors
    /// 22000 when something is between the two.
    pub fn union(&self, other: &Self) -> Result<Self> {
        if self.both(other).is_some() && !self.overlaps(other) && !self.touches(other) {
            return Err(fault("result of range union would not be contiguous"));
        }
        Ok(self.merged(other))
    }

    /// `*`: what is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let Some([a, b]) = self.both(other) else { return Self::empty(self.kind) };
        let lower = if compare(a.0, true, b.0, true).is_ge() { a.0 } else { b.0 };
        let upper = if compare(a.1, false, b.1, false).is_le() { a.1 } else { b.1 };
        Self::between(self.kind, lower, upper)
    }

    /// What is in it before and behind the other.
    fn without(&self, other: &Self) -> [Self; 2] {
        let Some([a, b]) = self.both(other).filter(|_| self.overlaps(other)) else {
            return [self.clone(), Self::empty(self.kind)];
        };
        let piece = |there: bool, lower: &Bound, upper: &Bound| {
            if there { Self::between(self.kind, lower, upper) } else { Self::empty(self.kind) }
        };
        [
            piece(compare(a.0, true, b.0, true).is_lt(), a.0, &b.0.flipped()),
            piece(compare(a.1, false, b.1, false).is_gt(), &b.1.flipped(), a.1),
        ]
    }

    /// `-`: what is in it and not in the other.
    ///
    /// # Errors
    /// 22000 when something would be left on both sides.
    pub fn difference(&self, other: &Self) -> Result<Self> {
        let [before, behind] = self.without(other);
        match (before.is_empty(), behind.is_empty()) {
            (false, false) => Err(fault("result of range difference would not be contiguous")),
            (true, _) => Ok(behind),
            (false, true) => Ok(before),
        }
    }

    /// Bytes it takes in memory, roughly.
    #[must_use]
    pub fn held(&self) -> usize {
        // A numeric has its digits elsewhere.
        size_of::<Self>() + if self.kind == RangeKind::Num { 128 } else { 0 }
    }
}

impl PartialEq for Range {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Range {}

impl PartialOrd for Range {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Range {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.bounds(), other.bounds()) {
            (None, None) => Ordering::Equal,
            (None, _) => Ordering::Less,
            (_, None) => Ordering::Greater,
            (Some(a), Some(b)) => {
                compare(a.0, true, b.0, true).then_with(|| compare(a.1, false, b.1, false))
            }
        }
    }
}

/// The bounds as they are; `None` when nothing is between them.
fn ordered(lower: Bound, upper: Bound) -> Result<Option<(Bound, Bound)>> {
    if let (Some(a), Some(b)) = (&lower.value, &upper.value) {
        match a.cmp_values(b) {
            Ordering::Greater => {
                return Err(fault(
                    "range lower bound must be less than or equal to range upper bound",
                ));
            }
            Ordering::Equal if !(lower.inclusive && upper.inclusive) => return Ok(None),
            _ => {}
        }
    }
    Ok(Some((lower, upper)))
}

/// The bound as it is kept: a lower one inclusive, an upper one exclusive.
fn canonical(bound: Bound, upper: bool) -> Result<Bound> {
    // Both move on to the next value.
    if bound.inclusive != upper {
        return Ok(bound);
    }
    let overflow =
        |name: &str| Error::new(SqlState::NUMERIC_OUT_OF_RANGE, format!("{name} out of range"));
    let next = match bound.value {
        Some(Datum::Int4(v)) => {
            v.checked_add(1).map(Datum::Int4).ok_or_else(|| overflow("integer"))?
        }
        Some(Datum::Int8(v)) => {
            v.checked_add(1).map(Datum::Int8).ok_or_else(|| overflow("bigint"))?
        }
        Some(Datum::Date(v)) if v != i32::MIN && v != i32::MAX => {
            if !DATES.contains(&(i64::from(v) + 1)) {
                return Err(Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "date out of range"));
            }
            Datum::Date(v + 1)
        }
        _ => return Ok(bound),
    };
    Ok(Bound { value: Some(next), inclusive: !upper })
}
