//! Variances and standard deviations, and sums, averages and extremes of floating point, as
//! PostgreSQL 15 computes them.
//!
//! DataFusion's own take every argument as a double and look at no value that is not finite.
//!
//! # Invariants
//! - Integers and numerics are added exactly and give numeric, with the digits of PostgreSQL's
//!   division; a value that is not finite makes NaN of the result.
//! - Doubles are taken in one by one, in the order they come ([`super::doubles`]).
//! - A frame that moves: exact sums give back what leaves; of doubles the frame's rows are kept and
//!   added anew, as there, so that neither a large value nor NaN or an infinity stays behind.
//!
//! # On failure
//! 22003 where finite doubles come to an infinite one; those of the statement's end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, Signature, Volatility,
};

use super::doubles::{DoubleGroups, Doubles};
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
    /// `sum` of reals, added up as such
    SumReal,
    /// `min` of doubles
    Least,
    /// `max` of doubles
    Greatest,
    /// `avg` of doubles
    Average,
}

impl Measure {
    /// Whether squares are of no matter.
    pub(super) fn is_plain(self) -> bool {
        matches!(self, Self::Sum | Self::SumReal | Self::Least | Self::Greatest)
    }

    pub(super) fn of_sample(self) -> bool {
        matches!(self, Self::Variance | Self::Deviation)
    }

    pub(super) fn is_root(self) -> bool {
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
            Measure::Sum | Measure::SumReal => "sum",
            Measure::Least => "min",
            Measure::Greatest => "max",
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

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        self.arg == SqlType::Float8 && !args.is_distinct
    }

    fn create_groups_accumulator(
        &self,
        _: AccumulatorArgs<'_>,
    ) -> DfResult<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(DoubleGroups::new(self.measure)))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        let types = state_types(&self.arg, args.is_distinct);
        let field = |(at, ty): (usize, &SqlType)| {
            Arc::new(Field::new(format!("{}[{at}]", args.name), arrow_type(ty), true))
        };
        Ok(types.iter().enumerate().map(field).collect())
    }
}

/// Exact sums of finite values; the others are counted.
#[derive(Clone, Debug)]
struct Exact {
    count: i64,
    sum: Numeric,
    squares: Numeric,
    not_finite: i64,
    /// How many finite values there are of each number of digits behind the point: what has left a
    /// frame that moves shows none.
    scales: BTreeMap<u32, i64>,
}

impl Default for Exact {
    fn default() -> Self {
        let (sum, squares) = (Numeric::zero(), Numeric::zero());
        Self { count: 0, sum, squares, not_finite: 0, scales: BTreeMap::new() }
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
        let same = self.scales.entry(value.scale()).or_insert(0);
        *same += by;
        if *same == 0 {
            self.scales.remove(&value.scale());
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
        let digits = self.scales.last_key_value().and_then(|(scale, _)| i32::try_from(*scale).ok());
        let shown = |value: &Numeric, digits: Option<i32>| match digits {
            Some(digits) if value.scale() > digits.unsigned_abs() => value.rounded(digits),
            _ => value.clone(),
        };
        let sum = shown(&self.sum, digits);
        let squares = shown(&self.squares, digits.and_then(|digits| digits.checked_mul(2)));
        let over = squares.mul(&count)?.sub(&sum.mul(&sum)?);
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
            self.items.push(value);
            return Ok(());
        }
        add(&mut self.sums, self.measure, &value, away)
    }

    fn value(&self) -> Result<Datum> {
        let distinct = self.seen.is_some().then(|| self.of_items()).transpose()?;
        Ok(match (distinct.as_ref().unwrap_or(&self.sums), &self.kept) {
            (_, Some(kept)) => {
                let (mut doubles, mut steps) = (Doubles::default(), Steps::default());
                for value in kept {
                    steps.step()?;
                    doubles.add(self.measure, *value)?;
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

    /// What the distinct values come to: PostgreSQL takes them in sorted.
    fn of_items(&self) -> Result<Sums> {
        let order = |a: &Datum, b: &Datum| a.cmp_typed(b, &self.arg);
        let (mut sums, mut steps) = (self.sums.clone(), Steps::default());
        for value in interrupt::sort(self.items.clone(), order)? {
            steps.step()?;
            add(&mut sums, self.measure, &value, false)?;
        }
        Ok(sums)
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
            ) => {
                let other = Doubles { count: *count, sum: *sum, squares: *squares };
                doubles.merge(self.measure, other)?;
            }
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
                *exact.scales.entry(sum.scale()).or_insert(0) += count - odd;
            }
            _ => return Err(Error::internal("a state that is no aggregate's")),
        }
        Ok(())
    }
}

fn add(sums: &mut Sums, measure: Measure, value: &Datum, away: bool) -> Result<()> {
    match (sums, value) {
        (Sums::Doubles(doubles), Datum::Float8(value)) => doubles.add(measure, *value)?,
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
        if let (Sums::Doubles(doubles), None, None) = (&mut self.sums, &self.seen, &self.kept) {
            let values = values[0].as_primitive::<Float64Type>();
            return values.iter().flatten().try_for_each(|value| doubles.add(self.measure, value));
        }
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
