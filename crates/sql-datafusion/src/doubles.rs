//! Sums, averages, extremes and variances of floating point: of one group, and of many a batch at a
//! time.
//!
//! # Invariants
//! - Values are taken in one by one, in the order they come, by PostgreSQL 15's steps (Youngs and
//!   Cramer), so that results have its digits.
//! - NaN is greater than all other values. DataFusion's own grouped `min` and `max` pass over it.
//! - A value that is not finite makes NaN of a variance; NULLs count for nothing.
//! - The state of a group, as it is spilled, is what [`super::spread`] writes for one.
//!
//! # On failure
//! 22003 where finite values come to an infinite one.

use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array};
use arrow::datatypes::Float64Type;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{EmitTo, GroupsAccumulator};

use super::fault;
use super::spread::Measure;
use super::types::plain8;
use telesto_sql_types::error::{Error, Result, SqlState};

/// 22003.
pub(super) fn overflow() -> Error {
    Error::new(SqlState::NUMERIC_OUT_OF_RANGE, "value out of range: overflow")
}

/// The sum; 22003 where finite values come to none.
fn plus(a: f64, b: f64) -> Result<f64> {
    let sum = a + b;
    if sum.is_infinite() && !a.is_infinite() && !b.is_infinite() {
        Err(overflow())
    } else {
        Ok(sum)
    }
}

/// The sum of two values of type real, as one.
fn plus_real(a: f64, b: f64) -> Result<f64> {
    let sum = a as f32 + b as f32;
    if sum.is_infinite() && !a.is_infinite() && !b.is_infinite() {
        return Err(overflow());
    }
    Ok(sum.into())
}

/// Values taken in one by one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doubles {
    pub count: f64,
    /// Their sum; of extremes the best.
    pub sum: f64,
    /// Squares of the differences from the mean.
    pub squares: f64,
}

impl Doubles {
    /// Takes a value in.
    pub(super) fn add(&mut self, measure: Measure, value: f64) -> Result<()> {
        let before = self.count;
        self.count += 1.0;
        match measure {
            // Not 0 + value: the sum of nothing but -0 is -0.
            _ if measure.is_plain() && before == 0.0 => self.sum = value,
            Measure::Least if plain8(value).total_cmp(&plain8(self.sum)).is_ge() => {}
            Measure::Greatest if plain8(value).total_cmp(&plain8(self.sum)).is_le() => {}
            Measure::Least | Measure::Greatest => self.sum = value,
            Measure::Sum => self.sum = plus(self.sum, value)?,
            Measure::SumReal => self.sum = plus_real(self.sum, value)?,
            _ => self.accumulate(before, value)?,
        }
        Ok(())
    }

    fn accumulate(&mut self, before: f64, value: f64) -> Result<()> {
        let sum = self.sum;
        self.sum += value;
        if before == 0.0 {
            self.squares = if value.is_finite() { 0.0 } else { f64::NAN };
            return Ok(());
        }
        let off = value * self.count - self.sum;
        self.squares += off * off / (self.count * before);
        if self.sum.is_infinite() || self.squares.is_infinite() {
            if !sum.is_infinite() && !value.is_infinite() {
                return Err(overflow());
            }
            self.squares = f64::NAN;
        }
        Ok(())
    }

    /// Takes in what others were taken into.
    pub(super) fn merge(&mut self, measure: Measure, other: Self) -> Result<()> {
        if other.count == 0.0 {
            return Ok(());
        }
        if self.count == 0.0 {
            *self = other;
            return Ok(());
        }
        let count = self.count + other.count;
        if matches!(measure, Measure::Least | Measure::Greatest) {
            self.add(measure, other.sum)?;
            self.count = count;
            return Ok(());
        }
        let sum = match measure {
            Measure::SumReal => plus_real(self.sum, other.sum)?,
            _ => plus(self.sum, other.sum)?,
        };
        let apart = self.sum / self.count - other.sum / other.count;
        let squares =
            self.squares + other.squares + self.count * other.count * apart * apart / count;
        let finite = !self.squares.is_infinite() && !other.squares.is_infinite();
        if squares.is_infinite() && finite && !measure.is_plain() {
            return Err(overflow());
        }
        *self = Self { count, sum, squares };
        Ok(())
    }

    /// What they come to.
    pub(super) fn value(self, measure: Measure) -> Option<f64> {
        let least = if measure.of_sample() { 2.0 } else { 1.0 };
        if self.count < least {
            return None;
        }
        Some(match measure {
            _ if measure.is_plain() => self.sum,
            Measure::Average => self.sum / self.count,
            _ => {
                let by = if measure.of_sample() { self.count - 1.0 } else { self.count };
                let variance = self.squares / by;
                if measure.is_root() { variance.sqrt() } else { variance }
            }
        })
    }
}

/// The values of groups.
#[derive(Debug)]
pub(super) struct DoubleGroups {
    measure: Measure,
    groups: Vec<Doubles>,
}

impl DoubleGroups {
    pub(super) fn new(measure: Measure) -> Self {
        Self { measure, groups: Vec::new() }
    }
}

impl GroupsAccumulator for DoubleGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> DfResult<()> {
        self.groups.resize(total_num_groups, Doubles::default());
        let values = values[0].as_primitive::<Float64Type>();
        for (row, group) in group_indices.iter().enumerate() {
            let wanted = opt_filter.is_none_or(|filter| filter.is_valid(row) && filter.value(row));
            if wanted && values.is_valid(row) {
                let added = self.groups[*group].add(self.measure, values.value(row));
                added.map_err(fault::to_datafusion)?;
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> DfResult<ArrayRef> {
        let groups = emit_to.take_needed(&mut self.groups);
        let values = groups.into_iter().map(|group| group.value(self.measure).map(plain8));
        Ok(Arc::new(Float64Array::from_iter(values)))
    }

    fn state(&mut self, emit_to: EmitTo) -> DfResult<Vec<ArrayRef>> {
        let groups = emit_to.take_needed(&mut self.groups);
        let part = |of: fn(&Doubles) -> f64| {
            Arc::new(Float64Array::from_iter_values(groups.iter().map(of))) as ArrayRef
        };
        Ok(vec![part(|group| group.count), part(|group| group.sum), part(|group| group.squares)])
    }

    fn merge_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        total_num_groups: usize,
    ) -> DfResult<()> {
        self.groups.resize(total_num_groups, Doubles::default());
        let part = |at: usize| values[at].as_primitive::<Float64Type>();
        let (counts, sums, squares) = (part(0), part(1), part(2));
        for (row, group) in group_indices.iter().enumerate() {
            let other = Doubles {
                count: counts.value(row),
                sum: sums.value(row),
                squares: squares.value(row),
            };
            self.groups[*group].merge(self.measure, other).map_err(fault::to_datafusion)?;
        }
        Ok(())
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        opt_filter: Option<&BooleanArray>,
    ) -> DfResult<Vec<ArrayRef>> {
        let mut each = Self::new(self.measure);
        let rows: Vec<usize> = (0..values[0].len()).collect();
        each.update_batch(values, &rows, opt_filter, rows.len())?;
        each.state(EmitTo::All)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.groups.capacity() * size_of::<Doubles>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubles(measure: Measure, values: &[f64]) -> Doubles {
        let mut sums = Doubles::default();
        values.iter().for_each(|value| sums.add(measure, *value).expect("in range"));
        sums
    }

    #[test]
    fn doubles_that_are_not_finite_make_a_variance_nan() {
        let of = |values: &[f64], measure| doubles(measure, values).value(measure);
        for values in [&[f64::NAN][..], &[f64::INFINITY], &[1.0, f64::NAN], &[f64::INFINITY, 1.0]] {
            assert!(of(values, Measure::VariancePop).is_some_and(f64::is_nan));
        }
        assert_eq!(of(&[1.0], Measure::VariancePop), Some(0.0));
        assert_eq!(of(&[1.0], Measure::Variance), None);
        assert_eq!(of(&[1.0, 2.0, 4.0], Measure::Average), Some(7.0 / 3.0));
        assert!(of(&[-0.0, -0.0], Measure::Sum).is_some_and(f64::is_sign_negative));
    }

    #[test]
    fn what_is_too_large_fails_but_infinities_add_up() {
        let mut sums = doubles(Measure::Sum, &[1e308]);
        assert!(sums.add(Measure::Sum, 1e308).is_err());
        let mut squares = doubles(Measure::Average, &[1e200]);
        assert!(squares.add(Measure::Average, -1e200).is_err());
        let mut reals = doubles(Measure::SumReal, &[3e38]);
        assert!(reals.add(Measure::SumReal, 3e38).is_err());
        let infinite = doubles(Measure::Sum, &[1.0, f64::INFINITY, 1e308]);
        assert_eq!(infinite.value(Measure::Sum), Some(f64::INFINITY));
        let reals = doubles(Measure::SumReal, &[16_777_216.0, 1.0, 1.0]);
        assert_eq!(reals.value(Measure::SumReal), Some(16_777_216.0));
    }

    #[test]
    fn nan_is_the_greatest() {
        let values = [1.0, f64::NAN, f64::NEG_INFINITY];
        let greatest = doubles(Measure::Greatest, &values).value(Measure::Greatest);
        assert!(greatest.is_some_and(f64::is_nan));
        let least = doubles(Measure::Least, &values).value(Measure::Least);
        assert_eq!(least, Some(f64::NEG_INFINITY));
        assert!(
            doubles(Measure::Least, &values[1..2]).value(Measure::Least).is_some_and(f64::is_nan)
        );
    }

    #[test]
    fn merged_doubles_are_those_taken_in_one_by_one() {
        let mut merged = doubles(Measure::Variance, &[1.0, 2.0]);
        merged.merge(Measure::Variance, doubles(Measure::Variance, &[4.0, 8.0])).expect("in range");
        let whole = doubles(Measure::Variance, &[1.0, 2.0, 4.0, 8.0]);
        assert_eq!(merged.value(Measure::Variance), whole.value(Measure::Variance));
    }
}
