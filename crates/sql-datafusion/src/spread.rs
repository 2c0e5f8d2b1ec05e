//! Variances and standard deviations, and sums and averages of floating point, as PostgreSQL 15 computes them.
//!
//! DataFusion's own take every argument as a double and look at no value that is not finite.
//!
//! # Invariants
//! - Integers and numerics are added exactly and give numeric, with the digits of PostgreSQL's division; a value that is not
//!   finite makes NaN of the result.
//! - Doubles are taken in one by one (Youngs and Cramer), in the order they come.
//! - A frame that moves: exact sums give back what leaves; of doubles the frame's rows are kept and added anew, as there, so that
//!   neither a large value nor NaN or an infinity stays behind.
//!
//! # On failure
//! Those of the statement's end.

use std::collections::{BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility,
};

use super::fault;
use super::sort_key::key_of;
use super::types::{arrow_type, datum_at, scalar};
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::interrupt::{self, Steps};
use telesto_sql_types::{ArrayValue, Datum, Numeric, SqlType};

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Measure {
    /// `var_pop`
    VariancePop,
    /// `var_samp`, `variance`
    Variance,
    /// `stddev_pop`
    DeviationPop,
    /// `stddev_samp`, `stddev`
    Deviation,
    /// `sum` of doubles
    Sum,
    /// `avg` of doubles
    Average,
}

impl Measure {
    fn of_sample(self) -> bool {
        matches!(self, Self::Variance | Self::Deviation)
    }

    fn is_root(self) -> bool {
        matches!(self, Self::DeviationPop | Self::Deviation)
    }
}

#[derive(Debug)]
struct Spread {
    measure: Measure,
    arg: SqlType,
    signature: Signature,
}

impl PartialEq for Spread {
    fn eq(&self, other: &Self) -> bool {
        self.measure == other.measure && self.arg == other.arg
    }
}

impl Eq for Spread {}

impl Hash for Spread {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.measure.hash(state);
        self.arg.hash(state);
    }
}

/// The aggregate over an argument of this type: double precision, an integer or numeric.
pub(crate) fn spread(measure: Measure, arg: &SqlType) -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::new_from_impl(Spread {
        measure,
        arg: arg.without_modifier(),
        signature: Signature::any(1, Volatility::Immutable),
    }))
}

/// What it gives.
pub(crate) fn returns(arg: &SqlType) -> SqlType {
    if *arg == SqlType::Float8 { SqlType::Float8 } else { SqlType::Numeric(None) }
}

fn state_types(arg: &SqlType, distinct: bool) -> Vec<SqlType> {
    if distinct {
        vec![arg.clone().array_of()]
    } else if *arg == SqlType::Float8 {
        vec![SqlType::Float8; 3]
    } else {
        vec![SqlType::Int8, SqlType::Numeric(None), SqlType::Numeric(None), SqlType::Int8]
    }
}

impl Spread {
    fn state(&self, args: &AccumulatorArgs<'_>, moves: bool) -> State {
        let arg = self.arg.clone();
        let kept = (moves && arg == SqlType::Float8).then(VecDeque::new);
        State {
            measure: self.measure,
            seen: args.is_distinct.then(BTreeSet::new),
            items: Vec::new(),
            sums: if arg == SqlType::Float8 {
                Sums::Doubles(Doubles::default())
            } else {
                Sums::Exact(Exact::default())
            },
            arg,
            kept,
        }
    }
}

impl AggregateUDFImpl for Spread {
    fn name(&self) -> &str {
        match self.measure {
            Measure::VariancePop => "var_pop",
            Measure::Variance => "var_samp",
            Measure::DeviationPop => "stddev_pop",
            Measure::Deviation => "stddev_samp",
            Measure::Sum => "sum",
            Measure::Average => "avg",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(arrow_type(&returns(&self.arg)))
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
        let types = state_types(&self.arg, args.is_distinct);
        let field = |(at, ty): (usize, &SqlType)| {
            Arc::new(Field::new(format!("{}[{at}]", args.name), arrow_type(ty), true))
        };
        Ok(types.iter().enumerate().map(field).collect())
    }
}

/// Doubles taken in one by one.
#[derive(Clone, Copy, Debug, Default)]
struct Doubles {
    count: f64,
    sum: f64,
    /// Squares of the differences from the mean.
    squares: f64,
}

impl Doubles {
    fn add(&mut self, value: f64) {
        let before = self.count;
        self.count += 1.0;
        if before == 0.0 {
            // Not 0 + value: the sum of nothing but -0 is -0.
            self.sum = value;
            self.squares = if value.is_finite() { 0.0 } else { f64::NAN };
            return;
        }
        self.sum += value;
        let off = value * self.count - self.sum;
        self.squares += off * off / (self.count * before);
        if !self.sum.is_finite() || !self.squares.is_finite() {
            self.squares = f64::NAN;
        }
    }

    fn merge(&mut self, other: Self) {
        if other.count == 0.0 {
            return;
        }
        if self.count == 0.0 {
            *self = other;
            return;
        }
        let apart = self.sum / self.count - other.sum / other.count;
        let count = self.count + other.count;
        self.squares += other.squares + self.count * other.count * apart * apart / count;
        self.sum += other.sum;
        self.count = count;
    }

    fn value(self, measure: Measure) -> Option<f64> {
        let least = if measure.of_sample() { 2.0 } else { 1.0 };
        if self.count < least {
            return None;
        }
        Some(match measure {
            Measure::Sum => self.sum,
            Measure::Average => self.sum / self.count,
            _ => {
                let by = if measure.of_sample() { self.count - 1.0 } else { self.count };
                let variance = self.squares / by;
                if measure.is_root() { variance.sqrt() } else { variance }
            }
        })
    }
}

/// Exact sums of finite values; the others are counted.
#[derive(Clone, Debug)]
struct Exact {
    count: i64,
    sum: Numeric,
    squares: Numeric,
    not_finite: i64,
}

impl Default for Exact {
    fn default() -> Self {
        Self { count: 0, sum: Numeric::zero(), squares: Numeric::zero(), not_finite: 0 }
    }
}

impl Exact {
    fn add(&mut self, value: &Numeric, away: bool) -> Result<()> {
        let by = if away { -1 } else { 1 };
        self.count += by;
        if !value.is_finite() {
            self.not_finite += by;
            return Ok(());
        }
        let square = value.mul(value).ok_or_else(|| Error::internal("a square is too large"))?;
        let signed = |value: &Numeric| if away { value.neg() } else { value.clone() };
        self.sum = self.sum.add(&signed(value));
        self.squares = self.squares.add(&signed(&square));
        Ok(())
    }

    fn value(&self, measure: Measure) -> Option<Numeric> {
        if self.count < if measure.of_sample() { 2 } else { 1 } {
            return None;
        }
        if self.not_finite > 0 {
            return Some(Numeric::NaN);
        }
        let count = Numeric::from(self.count);
        let over = self.squares.mul(&count)?.sub(&self.sum.mul(&self.sum)?);
        if over.signum().is_none_or(|sign| sign <= 0) {
            return Some(Numeric::zero());
        }
        let by = if measure.of_sample() { self.count - 1 } else { self.count };
        let by = count.mul(&Numeric::from(by))?;
        let variance = over.div(&by)?;
        if !measure.is_root() {
            return Some(variance);
        }
        telesto_sql_expr::numeric_root(&variance, over.quotient_scale(&by)).ok()
    }
}

#[derive(Clone, Debug)]
enum Sums {
    Doubles(Doubles),
    Exact(Exact),
}

#[derive(Debug)]
struct State {
    measure: Measure,
    arg: SqlType,
    sums: Sums,
    /// Of a DISTINCT aggregate: keys of the values, and these.
    seen: Option<BTreeSet<Vec<u8>>>,
    items: Vec<Datum>,
    /// The doubles of a frame that moves.
    kept: Option<VecDeque<f64>>,
}

impl State {
    fn row(&mut self, value: Datum, away: bool) -> Result<()> {
        if value.is_null() {
            return Ok(());
        }
        if let Some(kept) = &mut self.kept {
            match value {
                // What leaves a frame came first.
                _ if away => {
                    kept.pop_front();
                }
                Datum::Float8(value) => kept.push_back(value),
                _ => {}
            }
            return Ok(());
        }
        if let Some(seen) = &mut self.seen {
            if !seen.insert(key_of(&value, &self.arg)?) {
                return Ok(());
            }
            self.items.push(value.clone());
        }
        add(&mut self.sums, &value, away)
    }

    fn value(&self) -> Result<Datum> {
        Ok(match (&self.sums, &self.kept) {
            (_, Some(kept)) => {
                let (mut doubles, mut steps) = (Doubles::default(), Steps::default());
                for value in kept {
                    steps.step()?;
                    doubles.add(*value);
                }
                doubles.value(self.measure).map_or(Datum::Null, Datum::Float8)
            }
            (Sums::Doubles(doubles), None) => {
                doubles.value(self.measure).map_or(Datum::Null, Datum::Float8)
            }
            (Sums::Exact(exact), None) => {
                exact.value(self.measure).map_or(Datum::Null, Datum::numeric)
            }
        })
    }

    fn parts(&self) -> Vec<Datum> {
        if self.seen.is_some() {
            let list = ArrayValue::new(self.arg.clone(), self.items.clone());
            return vec![Datum::Array(Arc::new(list))];
        }
        match &self.sums {
            Sums::Doubles(d) => [d.count, d.sum, d.squares].map(Datum::Float8).to_vec(),
            Sums::Exact(e) => vec![
                Datum::Int8(e.count),
                Datum::numeric(e.sum.clone()),
                Datum::numeric(e.squares.clone()),
                Datum::Int8(e.not_finite),
            ],
        }
    }

    fn merge(&mut self, parts: &[Datum]) -> Result<()> {
        match (&mut self.sums, parts) {
            (_, [Datum::Array(list)]) => {
                let mut steps = Steps::default();
                for value in &list.elements {
                    steps.step()?;
                    self.row(value.clone(), false)?;
                }
            }
            (
                Sums::Doubles(doubles),
                [Datum::Float8(count), Datum::Float8(sum), Datum::Float8(squares)],
            ) => doubles.merge(Doubles { count: *count, sum: *sum, squares: *squares }),
            (
                Sums::Exact(exact),
                [
                    Datum::Int8(count),
                    Datum::Numeric(sum),
                    Datum::Numeric(squares),
                    Datum::Int8(odd),
                ],
            ) => {
                exact.count += count;
                exact.sum = exact.sum.add(sum);
                exact.squares = exact.squares.add(squares);
                exact.not_finite += odd;
            }
            _ => return Err(Error::internal("a state that is no aggregate's")),
        }
        Ok(())
    }
}

fn add(sums: &mut Sums, value: &Datum, away: bool) -> Result<()> {
    match (sums, value) {
        (Sums::Doubles(doubles), Datum::Float8(value)) => doubles.add(*value),
        (Sums::Exact(exact), Datum::Numeric(value)) => exact.add(value, away)?,
        (Sums::Exact(exact), value) => {
            let integer = value.as_i64();
            let integer = integer.ok_or_else(|| Error::internal("a value that is no number"))?;
            exact.add(&Numeric::from(integer), away)?;
        }
        _ => return Err(Error::internal("a value that is no double")),
    }
    Ok(())
}

impl Accumulator for State {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.rows(values, false).map_err(fault::to_datafusion)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        self.rows(values, true).map_err(fault::to_datafusion)
    }

    fn supports_retract_batch(&self) -> bool {
        self.seen.is_none() && (self.kept.is_some() || matches!(self.sums, Sums::Exact(_)))
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        interrupt::check().map_err(fault::to_datafusion)?;
        self.value()
            .and_then(|value| scalar(&value, &returns(&self.arg)))
            .map_err(fault::to_datafusion)
    }

    fn size(&self) -> usize {
        let kept = self.kept.as_ref().map_or(0, |kept| kept.capacity() * size_of::<f64>());
        let seen: usize = self.seen.iter().flatten().map(|key| key.len() + 48).sum();
        size_of::<Self>() + kept + seen + self.items.capacity() * size_of::<Datum>()
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        let types = state_types(&self.arg, self.seen.is_some());
        let parts = self.parts();
        let parts = parts.iter().zip(&types).map(|(value, ty)| scalar(value, ty));
        parts.map(|part| part.map_err(fault::to_datafusion)).collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        let types = state_types(&self.arg, self.seen.is_some());
        for row in 0..states.first().map_or(0, |array| array.len()) {
            let parts =
                states.iter().zip(&types).map(|(array, ty)| datum_at(array.as_ref(), row, ty));
            let parts = parts.collect::<Result<Vec<_>>>();
            parts.and_then(|parts| self.merge(&parts)).map_err(fault::to_datafusion)?;
        }
        Ok(())
    }
}

impl State {
    fn rows(&mut self, values: &[ArrayRef], away: bool) -> Result<()> {
        interrupt::check()?;
        let mut steps = Steps::default();
        for row in 0..values.first().map_or(0, |array| array.len()) {
            steps.step()?;
            let value = datum_at(values[0].as_ref(), row, &self.arg)?;
            self.row(value, away)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubles(values: &[f64]) -> Doubles {
        let mut sums = Doubles::default();
        values.iter().for_each(|value| sums.add(*value));
        sums
    }

    #[test]
    fn doubles_that_are_not_finite_make_a_variance_nan() {
        for values in [&[f64::NAN][..], &[f64::INFINITY], &[1.0, f64::NAN], &[f64::INFINITY, 1.0]] {
            assert!(doubles(values).value(Measure::VariancePop).is_some_and(f64::is_nan));
        }
        assert_eq!(doubles(&[1.0]).value(Measure::VariancePop), Some(0.0));
        assert_eq!(doubles(&[1.0]).value(Measure::Variance), None);
        assert_eq!(doubles(&[1.0, 2.0, 4.0]).value(Measure::Average), Some(7.0 / 3.0));
        assert!(doubles(&[-0.0, -0.0]).value(Measure::Sum).is_some_and(f64::is_sign_negative));
    }

    #[test]
    fn merged_doubles_are_those_taken_in_one_by_one() {
        let mut merged = doubles(&[1.0, 2.0]);
        merged.merge(doubles(&[4.0, 8.0]));
        let whole = doubles(&[1.0, 2.0, 4.0, 8.0]);
        assert_eq!(merged.value(Measure::Variance), whole.value(Measure::Variance));
    }

    #[test]
    fn exact_variances_have_the_digits_of_postgres() {
        let of = |texts: &[&str], measure| {
            let mut exact = Exact::default();
            for text in texts {
                exact.add(&Numeric::parse(text).expect("a number"), false).expect("adds");
            }
            exact.value(measure).map(|value| value.to_string())
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of(&["1.1", "2.2", "3.4"], Measure::Variance), some("1.3233333333333333"));
        assert_eq!(of(&["1", "2", "4"], Measure::Deviation), some("1.5275252316519467"));
        assert_eq!(of(&["1", "2", "4"], Measure::DeviationPop), some("1.2472191289246471"));
        assert_eq!(of(&["3", "3"], Measure::Variance), some("0"));
        assert_eq!(of(&["3"], Measure::Variance), None);
        assert_eq!(of(&["NaN"], Measure::VariancePop), some("NaN"));
        let mut moving = Exact::default();
        for (value, away) in [("Infinity", false), ("1", false), ("Infinity", true), ("3", false)] {
            moving.add(&Numeric::parse(value).expect("a number"), away).expect("adds");
        }
        assert_eq!(
            moving.value(Measure::VariancePop).map(|v| v.to_string()),
            some("1.00000000000000000000")
        );
    }
}
