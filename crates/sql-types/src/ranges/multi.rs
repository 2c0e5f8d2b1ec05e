//! Multiranges.

use std::cmp::Ordering;

use super::{Range, RangeKind};
use crate::datum::Datum;
use crate::error::Result;
use crate::interrupt::{self, Steps};

/// A multirange: a set of ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multirange {
    pub(super) kind: RangeKind,
    pub(super) parts: Vec<Range>,
}

impl Multirange {
    /// All that is in the ranges.
    ///
    /// # Errors
    /// Those of [`interrupt`]: there may be many.
    pub fn new(kind: RangeKind, ranges: Vec<Range>) -> Result<Self> {
        let there: Vec<Range> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        let mut parts: Vec<Range> = Vec::with_capacity(there.len());
        let mut steps = Steps::default();
        for range in interrupt::sort(there, Ord::cmp)? {
            steps.step()?;
            match parts.last_mut() {
                Some(last) if last.overlaps(&range) || last.touches(&range) => {
                    *last = last.merged(&range);
                }
                _ => parts.push(range),
            }
        }
        Ok(Self { kind, parts })
    }

    /// Of which type.
    #[must_use]
    pub fn kind(&self) -> RangeKind {
        self.kind
    }

    /// Its ranges.
    #[must_use]
    pub fn parts(&self) -> &[Range] {
        &self.parts
    }

    /// The smallest range that all of them are in: empty when there is none.
    #[must_use]
    pub fn hull(&self) -> Range {
        match self.parts.as_slice() {
            [] => Range::empty(self.kind),
            [one] => one.clone(),
            [first, .., last] => first.merged(last),
        }
    }

    /// What is in one or the other.
    ///
    /// # Errors
    /// As [`Multirange::new`].
    pub fn union(&self, other: &Self) -> Result<Self> {
        Self::new(self.kind, self.parts.iter().chain(&other.parts).cloned().collect())
    }

    /// What is in both.
    ///
    /// # Errors
    /// As [`Multirange::new`].
    pub fn intersection(&self, other: &Self) -> Result<Self> {
        let mut parts = Vec::new();
        let mut steps = Steps::default();
        for range in &self.parts {
            for inner in beginning_with(&other.parts, range) {
                steps.step()?;
                if range.is_before(inner) {
                    break;
                }
                parts.push(range.intersection(inner));
            }
        }
        Self::new(self.kind, parts)
    }

    /// What is in it and not in the other.
    ///
    /// # Errors
    /// As [`Multirange::new`].
    pub fn difference(&self, other: &Self) -> Result<Self> {
        let mut parts = Vec::new();
        let mut steps = Steps::default();
        for range in &self.parts {
            let mut rest = range.clone();
            for taken in beginning_with(&other.parts, range) {
                steps.step()?;
                if rest.is_empty() || rest.is_before(taken) {
                    break;
                }
                if rest.overlaps(taken) {
                    let [before, behind] = rest.without(taken);
                    parts.push(before);
                    rest = behind;
                }
            }
            parts.push(rest);
        }
        Self::new(self.kind, parts)
    }

    /// Bytes it takes in memory, roughly.
    #[must_use]
    pub fn held(&self) -> usize {
        size_of::<Self>() + self.parts.iter().map(Range::held).sum::<usize>()
    }
}

impl PartialOrd for Multirange {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Multirange {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts.cmp(&other.parts)
    }
}

/// The ranges, in order and apart, from the first on that does not end before `range` begins.
fn beginning_with<'a>(parts: &'a [Range], range: &Range) -> &'a [Range] {
    &parts[parts.partition_point(|part| part.is_before(range))..]
}

/// Whether every one of `inner`, ranges in order and apart, is in one of `outer`, which are so too.
#[must_use]
pub fn contain(outer: &[Range], inner: &[Range]) -> bool {
    inner
        .iter()
        .all(|range| beginning_with(outer, range).first().is_some_and(|part| part.contains(range)))
}

/// Whether something is in one of each; both are in order and apart.
#[must_use]
pub fn overlap(a: &[Range], b: &[Range]) -> bool {
    let (few, many) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    few.iter()
        .any(|range| beginning_with(many, range).first().is_some_and(|part| part.overlaps(range)))
}

/// Whether a value that is not NULL is in one of them; they are in order and apart.
#[must_use]
pub fn have(parts: &[Range], value: &Datum) -> bool {
    let at = parts.partition_point(|part| part.is_below(value));
    parts.get(at).is_some_and(|part| part.has(value))
}
