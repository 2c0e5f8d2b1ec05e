//! Regression, correlation and covariance, as PostgreSQL 15 computes them.
//!
//! DataFusion's own divide by a count where PostgreSQL has NULL, take away what leaves a frame that
//! moves (a large value, or one that is not finite, stays), and tell distinct pairs by their first
//! value.
//!
//! # Invariants
//! - Pairs are taken in one by one (Youngs and Cramer), in the order they come; of a frame that
//!   moves they are kept and added anew.
//! - A pair of which one is NULL does not count.
//!
//! # On failure
//! 22003 where finite values come to an infinite one; those of the statement's end.

use std::collections::{BTreeSet, VecDeque};
use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility,
};

use super::doubles::overflow;
use super::fault;
use super::types::{arrow_type, datum_at, plain8, scalar};
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::interrupt::{self, Steps};
use telesto_sql_types::{ArrayValue, Datum, SqlType};

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Measure {
    Slope,
    R2,
    Intercept,
    AverageX,
    AverageY,
    Sxx,
    Syy,
    Sxy,
    Count,
    Correlation,
    CovariancePop,
    Covariance,
}

/// The measures by name.
const NAMES: [(&str, Measure); 12] = [
    ("regr_slope", Measure::Slope),
    ("regr_r2", Measure::R2),
    ("regr_intercept", Measure::Intercept),
    ("regr_avgx", Measure::AverageX),
    ("regr_avgy", Measure::AverageY),
    ("regr_sxx", Measure::Sxx),
    ("regr_syy", Measure::Syy),
    ("regr_sxy", Measure::Sxy),
    ("regr_count", Measure::Count),
    ("corr", Measure::Correlation),
    ("covar_pop", Measure::CovariancePop),
    ("covar_samp", Measure::Covariance),
];

impl Measure {
    /// That of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, measure)| *measure)
    }

    /// What it gives.
    pub(super) fn returns(self) -> SqlType {
        if self == Self::Count { SqlType::Int8 } else { SqlType::Float8 }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Pairs {
    measure: Measure,
    signature: Signature,
}

/// The aggregate over y and x, both double precision.
pub(super) fn of_pairs(measure: Measure) -> Arc<AggregateUDF> {
    let signature = Signature::any(2, Volatility::Immutable);
    Arc::new(AggregateUDF::new_from_impl(Pairs { measure, signature }))
}

impl Pairs {
    fn state(&self, args: &AccumulatorArgs<'_>, moves: bool) -> State {
        State {
            measure: self.measure,
            sums: Sums::default(),
            seen: args.is_distinct.then(BTreeSet::new),
            kept: (moves || args.is_distinct).then(VecDeque::new),
        }
    }
}

impl AggregateUDFImpl for Pairs {
    fn name(&self) -> &str {
        NAMES.iter().find(|(_, measure)| *measure == self.measure).map_or("pairs", |(name, _)| name)
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(arrow_type(&self.measure.returns()))
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        Ok(Box::new(self.state(&args, false)))
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> DfResult<Box<dyn Accumulator>> {
        Ok(Box::new(self.state(&args, true)))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        let types = state_types(args.is_distinct);
        let field = |(at, ty): (usize, &SqlType)| {
            Arc::new(Field::new(format!("{}[{at}]", args.name), arrow_type(ty), true))
        };
        Ok(types.iter().enumerate().map(field).collect())
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }
}

/// Of a DISTINCT aggregate the pairs, else the sums.
fn state_types(distinct: bool) -> Vec<SqlType> {
    if distinct { vec![SqlType::Float8.array_of(); 2] } else { vec![SqlType::Float8; 6] }
}

/// Pairs taken in one by one: how many, their sums, and the squares and products of the differences
/// from the means.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: f64,
    x: f64,
    xx: f64,
    y: f64,
    yy: f64,
    xy: f64,
}

impl Sums {
    fn add(&mut self, measure: Measure, y: f64, x: f64) -> Result<()> {
        let before = *self;
        self.count += 1.0;
        if measure == Measure::Count {
            return Ok(());
        }
        self.x += x;
        self.y += y;
        if before.count == 0.0 {
            let (odd_x, odd_y) = (!x.is_finite(), !y.is_finite());
            self.xx = if odd_x { f64::NAN } else { 0.0 };
            self.yy = if odd_y { f64::NAN } else { 0.0 };
            self.xy = if odd_x || odd_y { f64::NAN } else { 0.0 };
            return Ok(());
        }
        let off_x = x * self.count - self.x;
        let off_y = y * self.count - self.y;
        let scale = 1.0 / (self.count * before.count);
        self.xx += off_x * off_x * scale;
        self.yy += off_y * off_y * scale;
        self.xy += off_x * off_y * scale;
        let given_x = before.x.is_infinite() || x.is_infinite();
        let given_y = before.y.is_infinite() || y.is_infinite();
        let over_x = (self.x.is_infinite() || self.xx.is_infinite()) && !given_x;
        let over_y = (self.y.is_infinite() || self.yy.is_infinite()) && !given_y;
        if over_x || over_y || self.xy.is_infinite() && !given_x && !given_y {
            return Err(overflow());
        }
        for part in [&mut self.xx, &mut self.yy, &mut self.xy] {
            if part.is_infinite() {
                *part = f64::NAN;
            }
        }
        Ok(())
    }

    fn merge(&mut self, other: Self) -> Result<()> {
        if other.count == 0.0 {
            return Ok(());
        }
        if self.count == 0.0 {
            *self = other;
            return Ok(());
        }
        let count = self.count + other.count;
        let apart_x = self.x / self.count - other.x / other.count;
        let apart_y = self.y / self.count - other.y / other.count;
        let weight = self.count * other.count / count;
        let whole = Self {
            count,
            x: self.x + other.x,
            xx: self.xx + other.xx + weight * apart_x * apart_x,
            y: self.y + other.y,
            yy: self.yy + other.yy + weight * apart_y * apart_y,
            xy: self.xy + other.xy + weight * apart_x * apart_y,
        };
        let over = |of: &fn(&Self) -> f64| {
            of(&whole).is_infinite() && !of(self).is_infinite() && !of(&other).is_infinite()
        };
        let parts: [fn(&Self) -> f64; 5] = [|s| s.x, |s| s.xx, |s| s.y, |s| s.yy, |s| s.xy];
        if parts.iter().any(over) {
            return Err(overflow());
        }
        *self = whole;
        Ok(())
    }

    fn value(&self, measure: Measure) -> Option<f64> {
        let least = if measure == Measure::Covariance { 2.0 } else { 1.0 };
        if self.count < least {
            return None;
        }
        let level = self.xx == 0.0;
        match measure {
            Measure::Slope | Measure::R2 | Measure::Intercept if level => None,
            Measure::Correlation if level || self.yy == 0.0 => None,
            Measure::R2 if self.yy == 0.0 => Some(1.0),
            Measure::Slope => Some(self.xy / self.xx),
            Measure::R2 => Some((self.xy * self.xy) / (self.xx * self.yy)),
            Measure::Intercept => Some((self.y - self.x * self.xy / self.xx) / self.count),
            Measure::AverageX => Some(self.x / self.count),
            Measure::AverageY => Some(self.y / self.count),
            Measure::Sxx => Some(self.xx),
            Measure::Syy => Some(self.yy),
            Measure::Sxy => Some(self.xy),
            Measure::Count => Some(self.count),
            Measure::Correlation => Some(self.xy / (self.xx * self.yy).sqrt()),
            Measure::CovariancePop => Some(self.xy / self.count),
            Measure::Covariance => Some(self.xy / (self.count - 1.0)),
        }
    }
}

#[derive(Debug)]
struct State {
    measure: Measure,
    sums: Sums,
    /// Of a DISTINCT aggregate: the bits of the pairs taken in.
    seen: Option<BTreeSet<(u64, u64)>>,
    /// The pairs, where they may leave again, or are to be told from others.
    kept: Option<VecDeque<(f64, f64)>>,
}

impl State {
    fn row(&mut self, y: f64, x: f64) -> Result<()> {
        if let Some(seen) = &mut self.seen
            && !seen.insert((plain8(y).to_bits(), plain8(x).to_bits()))
        {
            return Ok(());
        }
        match &mut self.kept {
            Some(kept) => kept.push_back((y, x)),
            None => self.sums.add(self.measure, y, x)?,
        }
        Ok(())
    }

    fn rows(&mut self, values: &[ArrayRef], away: bool) -> Result<()> {
        interrupt::check()?;
        let (y, x) =
            (values[0].as_primitive::<Float64Type>(), values[1].as_primitive::<Float64Type>());
        let mut steps = Steps::default();
        for (y, x) in y.iter().zip(x) {
            steps.step()?;
            let (Some(y), Some(x)) = (y, x) else { continue };
            match &mut self.kept {
                // What leaves a frame came first.
                Some(kept) if away => drop(kept.pop_front()),
                _ => self.row(y, x)?,
            }
        }
        Ok(())
    }

    fn value(&self) -> Result<Datum> {
        interrupt::check()?;
        let mut sums = self.sums;
        let mut steps = Steps::default();
        let mut pairs: Vec<(f64, f64)> = self.kept.iter().flatten().copied().collect();
        if self.seen.is_some() {
            // PostgreSQL takes distinct pairs in sorted.
            let order = |a: &(f64, f64), b: &(f64, f64)| {
                a.0.total_cmp(&b.0).then_with(|| a.1.total_cmp(&b.1))
            };
            pairs = interrupt::sort(pairs, order)?;
        }
        for (y, x) in pairs {
            steps.step()?;
            sums.add(self.measure, y, x)?;
        }
        if self.measure == Measure::Count {
            return Ok(Datum::Int8(sums.count as i64));
        }
        Ok(sums.value(self.measure).map_or(Datum::Null, Datum::Float8))
    }

    fn parts(&self) -> Vec<Datum> {
        let Some(kept) = self.kept.as_ref().filter(|_| self.seen.is_some()) else {
            let Sums { count, x, xx, y, yy, xy } = self.sums;
            return [count, x, xx, y, yy, xy].map(Datum::Float8).to_vec();
        };
        let list = |of: fn(&(f64, f64)) -> f64| {
            let values = kept.iter().map(|pair| Datum::Float8(of(pair))).collect();
            Datum::Array(Arc::new(ArrayValue::new(SqlType::Float8, values)))
        };
        vec![list(|pair| pair.0), list(|pair| pair.1)]
    }

    fn merge(&mut self, parts: &[Datum]) -> Result<()> {
        let double = |value: &Datum| match value {
            Datum::Float8(value) => Ok(*value),
            _ => Err(Error::internal("a state that is no aggregate's")),
        };
        match parts {
            [Datum::Array(y), Datum::Array(x)] => {
                let mut steps = Steps::default();
                for (y, x) in y.elements.iter().zip(&x.elements) {
                    steps.step()?;
                    self.row(double(y)?, double(x)?)?;
                }
                Ok(())
            }
            [count, x, xx, y, yy, xy] => self.sums.merge(Sums {
                count: double(count)?,
                x: double(x)?,
                xx: double(xx)?,
                y: double(y)?,
                yy: double(yy)?,
                xy: double(xy)?,
            }),
            _ => Err(Error::internal("a state that is no aggregate's")),
        }
    }
}

impl Accumulator for State {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.rows(values, false).map_err(fault::to_datafusion)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.rows(values, true).map_err(fault::to_datafusion)
    }

    fn supports_retract_batch(&self) -> bool {
        self.seen.is_none() && self.kept.is_some()
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        let value = self.value().and_then(|value| scalar(&value, &self.measure.returns()));
        value.map_err(fault::to_datafusion)
    }

    fn size(&self) -> usize {
        let kept = self.kept.as_ref().map_or(0, VecDeque::capacity);
        let seen = self.seen.as_ref().map_or(0, BTreeSet::len);
        size_of::<Self>() + kept * size_of::<(f64, f64)>() + seen * 32
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        let types = state_types(self.seen.is_some());
        let parts = self.parts();
        let parts = parts.iter().zip(&types).map(|(value, ty)| scalar(value, ty));
        parts.map(|part| part.map_err(fault::to_datafusion)).collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        let types = state_types(self.seen.is_some());
        for row in 0..states.first().map_or(0, |array| array.len()) {
            let parts =
                states.iter().zip(&types).map(|(array, ty)| datum_at(array.as_ref(), row, ty));
            let parts = parts.collect::<Result<Vec<_>>>();
            parts.and_then(|parts| self.merge(&parts)).map_err(fault::to_datafusion)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(pairs: &[(f64, f64)]) -> Sums {
        let mut sums = Sums::default();
        pairs.iter().for_each(|(y, x)| sums.add(Measure::Slope, *y, *x).expect("in range"));
        sums
    }

    #[test]
    fn merged_pairs_are_those_taken_in_one_by_one() {
        let mut merged = sums(&[(1.0, 2.0), (3.0, 5.0)]);
        merged.merge(sums(&[(7.0, 11.0), (13.0, 17.0)])).expect("in range");
        let whole = sums(&[(1.0, 2.0), (3.0, 5.0), (7.0, 11.0), (13.0, 17.0)]);
        for (_, measure) in NAMES {
            let (a, b) = (merged.value(measure), whole.value(measure));
            assert!(
                a.zip(b).is_some_and(|(a, b)| (a - b).abs() < 1e-9),
                "{measure:?}: {a:?} {b:?}"
            );
        }
    }

    #[test]
    fn a_level_line_has_no_slope_and_what_is_too_large_fails() {
        let level = sums(&[(1.0, 1.0), (2.0, 1.0)]);
        assert_eq!(level.value(Measure::Slope), None);
        assert_eq!(level.value(Measure::Correlation), None);
        assert_eq!(sums(&[(1.0, 1.0), (1.0, 2.0)]).value(Measure::R2), Some(1.0));
        assert!(sums(&[(1.0, 1e200)]).add(Measure::Slope, 1.0, -1e200).is_err());
        assert!(sums(&[(0.0, f64::NAN)]).value(Measure::Slope).is_some_and(f64::is_nan));
    }
}
