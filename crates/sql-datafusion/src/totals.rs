//! Sums and averages as numeric: of one group, and of many a batch at a time.
//!
//! # Invariants
//! - A total is the sum of its values, exactly, and shows as many digits behind the point as the
//!   value that had most.
//! - NULLs count for nothing; without a value the result is NULL.
//! - The state of a group, as it is spilled, is what [`super::aggregate`] writes for one: the
//!   count, then the sum.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int64Array, LargeBinaryArray, LargeBinaryBuilder,
};
use arrow::datatypes::Int64Type;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::types::datum_at;
use super::{decimal, fault};
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::{Datum, Numeric, SqlType};

/// A sum. What fits 128 bits is added there.
#[derive(Clone, Debug, Default)]
pub(super) struct Total {
    /// Times 10 to the scale.
    small: i128,
    scale: u32,
    /// What does not fit.
    large: Option<Box<Numeric>>,
    /// Values that are not finite, of each kind: they may leave a frame that moves.
    odd: Option<Box<Odd>>,
    /// Of a frame that moves: how many finite values there are of each scale, so that the sum shows
    /// no more digits than what is still there.
    scales: Option<BTreeMap<u32, i64>>,
}

/// How many values are not finite.
#[derive(Clone, Copy, Debug, Default)]
struct Odd {
    nan: i64,
    infinity: i64,
    negative: i64,
}

impl Odd {
    fn value(self) -> Option<Numeric> {
        match (self.nan, self.infinity, self.negative) {
            (0, 0, 0) => None,
            (0, _, 0) => Some(Numeric::Infinity),
            (0, 0, _) => Some(Numeric::NegInfinity),
            _ => Some(Numeric::NaN),
        }
    }
}

/// `value` with `by` digits more behind the point.
fn shifted(value: i128, by: u32) -> Option<i128> {
    value.checked_mul(10_i128.checked_pow(by)?)
}

impl Total {
    /// Of a frame that moves.
    pub(super) fn moving() -> Self {
        Self { scales: Some(BTreeMap::new()), ..Self::default() }
    }

    /// Counts a value, or what leaves; whether it is finite and is to be added.
    fn counted(&mut self, value: &Numeric, away: bool) -> bool {
        let by = if away { -1 } else { 1 };
        let odd = match value {
            Numeric::Finite { scale, .. } => {
                self.scaled(*scale, by);
                return true;
            }
            _ => self.odd.get_or_insert_default(),
        };
        match value {
            Numeric::Infinity => odd.infinity += by,
            Numeric::NegInfinity => odd.negative += by,
            _ => odd.nan += by,
        }
        false
    }

    fn scaled(&mut self, scale: u32, by: i64) {
        if let Some(scales) = &mut self.scales {
            let count = scales.entry(scale).or_insert(0);
            *count += by;
            if *count == 0 {
                scales.remove(&scale);
            }
        }
    }

    fn try_small(&mut self, value: i128, scale: u32) -> Option<()> {
        if scale == self.scale {
            self.small = self.small.checked_add(value)?;
        } else if scale < self.scale {
            self.small = self.small.checked_add(shifted(value, self.scale - scale)?)?;
        } else {
            self.small = shifted(self.small, scale - self.scale)?.checked_add(value)?;
            self.scale = scale;
        }
        Some(())
    }

    /// Adds a number of 128 bits.
    pub(super) fn add_small(&mut self, value: i128, scale: u32) {
        if self.try_small(value, scale).is_none() {
            self.add_large(&Numeric::new(value, scale));
        }
    }

    fn add_large(&mut self, value: &Numeric) {
        match &mut self.large {
            Some(large) => **large = large.add(value),
            None => self.large = Some(Box::new(value.clone())),
        }
    }

    /// Adds a number, or takes it away.
    pub(super) fn add(&mut self, value: &Numeric, away: bool) {
        if !self.counted(value, away) {
            return;
        }
        if away { self.add_large(&value.neg()) } else { self.add_large(value) }
    }

    /// Adds a number or an integer, or takes it away.
    pub(super) fn add_datum(&mut self, value: &Datum, away: bool) -> Result<()> {
        if let Datum::Numeric(number) = value {
            let small = match number.as_ref() {
                Numeric::Finite { unscaled, scale } => {
                    let small = i128::try_from(unscaled).ok();
                    let small = if away { small.and_then(i128::checked_neg) } else { small };
                    small.map(|small| (small, *scale))
                }
                _ => None,
            };
            match small {
                Some((small, scale)) => {
                    self.scaled(scale, if away { -1 } else { 1 });
                    self.add_small(small, scale);
                }
                None => self.add(number, away),
            }
            return Ok(());
        }
        let integer = value
            .as_i64()
            .ok_or_else(|| Error::internal("sum over a value that is no number"))
            .map(i128::from)?;
        self.scaled(0, if away { -1 } else { 1 });
        self.add_small(if away { -integer } else { integer }, 0);
        Ok(())
    }

    /// The sum.
    pub(super) fn value(&self) -> Numeric {
        if let Some(value) = self.odd.as_ref().and_then(|odd| odd.value()) {
            return value;
        }
        let small = Numeric::new(self.small, self.scale);
        let sum = match &self.large {
            Some(large) => large.add(&small),
            None => small,
        };
        match self.scales.as_ref().and_then(|scales| scales.last_key_value()) {
            Some((scale, _)) if *scale < sum.scale() => {
                sum.rounded(i32::try_from(*scale).unwrap_or(i32::MAX))
            }
            _ => sum,
        }
    }
}

/// A sum divided by how many there were.
pub(super) fn average(sum: &Numeric, count: i64) -> Datum {
    sum.div(&Numeric::from(count)).map_or(Datum::Null, Datum::numeric)
}

/// The sums, or averages, of groups.
#[derive(Debug)]
pub(super) struct Totals {
    average: bool,
    argument: SqlType,
    groups: Vec<(i64, Total)>,
    /// How many of them did not fit 128 bits; counted when they come to it, since the pool asks for
    /// the size after each batch.
    large: usize,
}

impl Totals {
    pub(super) fn new(average: bool, argument: SqlType) -> Self {
        Self { average, argument, groups: Vec::new(), large: 0 }
    }

    /// Adds a row of the argument.
    fn row(&mut self, values: &ArrayRef, row: usize, group: usize) -> Result<()> {
        if values.is_null(row) {
            return Ok(());
        }
        if let Some(numerics) = values.as_binary_opt::<i64>()
            && let Some((value, scale)) = decimal::decode_small(numerics.value(row))
        {
            let (count, total) = &mut self.groups[group];
            let before = total.large.is_some();
            *count += 1;
            total.add_small(value.into(), scale);
            self.large += usize::from(!before && total.large.is_some());
            return Ok(());
        }
        let value = datum_at(values.as_ref(), row, &self.argument)?;
        self.add(group, 1, &value)
    }

    /// Adds `count` values whose sum is `value` to a group.
    fn add(&mut self, group: usize, count: i64, value: &Datum) -> Result<()> {
        let (counted, total) = &mut self.groups[group];
        let before = total.large.is_some();
        *counted += count;
        total.add_datum(value, false)?;
        self.large += usize::from(!before && total.large.is_some());
        Ok(())
    }

    /// Takes groups out.
    fn take(&mut self, emit_to: EmitTo) -> Vec<(i64, Total)> {
        let groups = emit_to.take_needed(&mut self.groups);
        self.large -= groups.iter().filter(|(_, total)| total.large.is_some()).count();
        groups
    }
}

fn numerics(values: impl Iterator<Item = Option<Numeric>>) -> LargeBinaryArray {
    let mut out = LargeBinaryBuilder::new();
    for value in values {
        match value {
            Some(value) => out.append_value(decimal::encode(&value)),
            None => out.append_null(),
        }
    }
    out.finish()
}

impl GroupsAccumulator for Totals {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> DfResult<()> {
        self.groups.resize(total_num_groups, (0, Total::default()));
        for (row, group) in group_indices.iter().enumerate() {
            if opt_filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row)) {
                self.row(&values[0], row, *group).map_err(fault::to_datafusion)?;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> DfResult<ArrayRef> {
        let groups = self.take(emit_to);
        let results = groups.iter().map(|(count, total)| match (count, self.average) {
            (0, _) => None,
            (_, false) => Some(total.value()),
            (count, true) => match average(&total.value(), *count) {
                Datum::Numeric(value) => Some(value.as_ref().clone()),
                _ => None,
            },
        });
        Ok(Arc::new(numerics(results)))
    }

    fn state(&mut self, emit_to: EmitTo) -> DfResult<Vec<ArrayRef>> {
        let groups = self.take(emit_to);
        let counts = groups.iter().map(|(count, _)| *count);
        let sums = groups.iter().map(|(_, total)| Some(total.value()));
        Ok(vec![Arc::new(Int64Array::from_iter_values(counts)), Arc::new(numerics(sums))])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> DfResult<()> {
        self.groups.resize(total_num_groups, (0, Total::default()));
        let counts = values[0].as_primitive::<Int64Type>();
        for (row, group) in group_indices.iter().enumerate() {
            let sum = datum_at(values[1].as_ref(), row, &SqlType::Numeric(None));
            sum.and_then(|sum| self.add(*group, counts.value(row), &sum))
                .map_err(fault::to_datafusion)?;
        }
        Ok(())
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> DfResult<Vec<ArrayRef>> {
        let mut each = Self::new(self.average, self.argument.clone());
        let rows: Vec<usize> = (0..values[0].len()).collect();
        each.update_batch(values, &rows, opt_filter, rows.len())?;
        each.state(EmitTo::All)
    }

    fn size(&self) -> usize {
        size_of::<Self>()
            + self.groups.capacity() * size_of::<(i64, Total)>()
            + self.large * (size_of::<Numeric>() + 32)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn number() -> impl Strategy<Value = Numeric> {
        let finite = |unscaled: BoxedStrategy<i128>| {
            (unscaled, prop_oneof![0_u32..4, 0_u32..50])
                .prop_map(|(n, scale)| Numeric::new(n, scale))
        };
        prop_oneof![
            8 => finite((-100_000_i128..100_000).boxed()),
            3 => finite(any::<i64>().prop_map(i128::from).boxed()),
            2 => finite(any::<i128>().boxed()),
            1 => prop_oneof![Just(Numeric::NaN), Just(Numeric::Infinity), Just(Numeric::NegInfinity)],
        ]
    }

    type Row = (Option<Numeric>, usize, Option<bool>);

    const GROUPS: usize = 4;

    fn columns(rows: &[Row]) -> (ArrayRef, Vec<usize>, BooleanArray) {
        let values = rows.iter().map(|row| row.0.as_ref().map(decimal::encode));
        let values: ArrayRef = Arc::new(LargeBinaryArray::from_iter(values));
        let filter = BooleanArray::from_iter(rows.iter().map(|row| row.2));
        (values, rows.iter().map(|row| row.1).collect(), filter)
    }

    fn shown(array: &ArrayRef) -> Vec<Option<String>> {
        let array = array.as_binary::<i64>();
        let number = |bytes| decimal::decode(bytes).expect("decodes").to_string();
        array.iter().map(|bytes| bytes.map(number)).collect()
    }

    fn totals(average: bool) -> Totals {
        Totals::new(average, SqlType::Numeric(None))
    }

    proptest! {
        #[test]
        fn groups_are_added_as_their_values_are_one_by_one(
            rows in proptest::collection::vec(
                (proptest::option::weighted(0.9, number()), 0..GROUPS,
                 prop_oneof![8 => Just(Some(true)), 1 => Just(Some(false)), 1 => Just(None)]), 0..60),
            cut in 0_usize..60,
        ) {
            let expected = |average_of: bool| -> Vec<Option<String>> {
                (0..GROUPS).map(|group| {
                    let values: Vec<&Numeric> = rows.iter()
                        .filter(|row| row.1 == group && row.2 == Some(true))
                        .filter_map(|row| row.0.as_ref()).collect();
                    let sum = values.iter().fold(Numeric::zero(), |sum, value| sum.add(value));
                    let count = i64::try_from(values.len()).expect("few");
                    match (values.len(), average_of) {
                        (0, _) => None,
                        (_, false) => Some(sum.to_string()),
                        _ => match average(&sum, count) {
                            Datum::Numeric(value) => Some(value.to_string()),
                            _ => None,
                        },
                    }
                }).collect()
            };
            for average_of in [false, true] {
                let cut = cut.min(rows.len());
                let (first, rest) = rows.split_at(cut);
                let mut whole = totals(average_of);
                // A state put aside and taken in again, and rows turned into states of their own.
                let (mut aside, mut merged) = (totals(average_of), totals(average_of));
                for part in [first, rest] {
                    let (values, groups, filter) = columns(part);
                    whole.update_batch(&[Arc::clone(&values)], &groups, Some(&filter), GROUPS).expect("adds");
                }
                let (values, groups, filter) = columns(first);
                aside.update_batch(&[values], &groups, Some(&filter), GROUPS).expect("adds");
                let state = aside.state(EmitTo::All).expect("state");
                let all: Vec<usize> = (0..GROUPS).collect();
                merged.merge_batch(&state, &all, GROUPS).expect("merges");
                let (values, groups, filter) = columns(rest);
                let state = merged.convert_to_state(&[values], Some(&filter)).expect("states");
                merged.merge_batch(&state, &groups, GROUPS).expect("merges");
                for totals in [&whole, &merged] {
                    let large = totals.groups.iter().filter(|(_, total)| total.large.is_some());
                    prop_assert_eq!(totals.large, large.count());
                }
                let expected = expected(average_of);
                prop_assert_eq!(shown(&whole.evaluate(EmitTo::All).expect("results")), expected.clone());
                prop_assert_eq!(shown(&merged.evaluate(EmitTo::First(2)).expect("results")), &expected[..2]);
                prop_assert_eq!(shown(&merged.evaluate(EmitTo::All).expect("results")), &expected[2..]);
                prop_assert_eq!(merged.large, 0);
            }
        }
    }
}
