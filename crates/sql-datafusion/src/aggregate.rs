//! Aggregates that DataFusion has not, or has with other types than PostgreSQL.
//!
//! # Invariants
//! - Arguments arrive in the order the aggregate's ORDER BY asks for; NULLs are skipped where
//!   PostgreSQL skips them.
//! - DISTINCT is done here, on values.
//! - What an accumulator holds is reported to the query's memory pool.
//! - Every loop over rows looks whether the statement is to end: a result may be made of millions
//!   of them.

mod aside;
mod combined;
mod distinct;
mod gathered;
mod intervals;

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, Field, FieldRef};
use arrow::row::{RowConverter, SortField};
use datafusion::common::ScalarValue;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, Signature, Volatility,
};

use self::aside::state_types;
pub(crate) use self::combined::Combined;
use super::arrays;
use super::evaluate::Evaluation;
use super::fault;
use super::json_folds;
use super::totals::{Total, Totals, average};
use super::types::{arrow_type, datum_at, list_of, list_type, scalar};
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::held as memory;
use telesto_sql_types::interrupt::{self, Steps};
use telesto_sql_types::{ArrayValue, Datum, Numeric, SqlType};

/// What is computed over the rows of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fold {
    /// `sum` as numeric.
    SumNumeric,
    /// `avg` as numeric.
    AvgNumeric,
    /// `sum` of intervals.
    SumInterval,
    /// `avg` of intervals.
    AvgInterval,
    /// `min` by PostgreSQL's order.
    Least,
    /// `max` by PostgreSQL's order.
    Greatest,
    /// `bit_and`, `bit_or`, `bit_xor` of bit strings, `range_intersect_agg`.
    Combined(Combined),
    /// `range_agg`.
    Ranges,
    /// `string_agg`.
    Joined,
    /// `array_agg`: NULL without rows.
    Array,
    /// `ARRAY(subquery)`: `{}` without rows.
    ArrayOrEmpty,
    /// `json_agg`, `jsonb_agg`.
    JsonArray,
    /// `json_object_agg`, `jsonb_object_agg`.
    JsonObject,
    /// The first row of a scalar subquery as a list, with a second element when there are more
    /// rows: who takes it fails then ([`super::arrays::ArrayWork::Only`]), as a join gathers groups
    /// that no outer row asks for, too.
    Single,
}

impl Fold {
    /// Whether NULL does not count.
    fn skips_null(self) -> bool {
        !matches!(
            self,
            Self::Array | Self::ArrayOrEmpty | Self::JsonArray | Self::JsonObject | Self::Single
        )
    }

    /// Whether the rows of a window's frame are kept, not only what they come to.
    fn keeps_rows(self) -> bool {
        !matches!(self, Self::SumNumeric | Self::AvgNumeric | Self::SumInterval | Self::AvgInterval)
    }
}

#[derive(Debug)]
struct FoldFunction {
    fold: Fold,
    args: Vec<SqlType>,
    returns: SqlType,
    signature: Signature,
    evaluation: Evaluation,
}

impl PartialEq for FoldFunction {
    fn eq(&self, other: &Self) -> bool {
        self.fold == other.fold && self.args == other.args && self.returns == other.returns
    }
}

impl Eq for FoldFunction {}

impl Hash for FoldFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.fold.hash(state);
        self.args.hash(state);
    }
}

/// The aggregate `fold` over arguments of these types.
pub(crate) fn folding(
    fold: Fold,
    args: &[SqlType],
    returns: &SqlType,
    evaluation: &Evaluation,
) -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::new_from_impl(FoldFunction {
        fold,
        args: args.to_vec(),
        returns: returns.clone(),
        signature: Signature::any(args.len(), Volatility::Immutable),
        evaluation: evaluation.clone(),
    }))
}

impl FoldFunction {
    fn state(&self, args: &AccumulatorArgs<'_>) -> DfResult<FoldState> {
        let fields = args
            .order_bys
            .iter()
            .map(|sort| {
                let ty = sort.expr.data_type(args.schema)?;
                Ok(SortField::new_with_options(ty, sort.options))
            })
            .collect::<DfResult<Vec<_>>>()?;
        let order =
            if fields.is_empty() { None } else { Some(Arc::new(RowConverter::new(fields)?)) };
        Ok(FoldState {
            order,
            keys: Vec::new(),
            fold: self.fold,
            args: self.args.clone(),
            returns: self.returns.clone(),
            evaluation: self.evaluation.clone(),
            seen: args.is_distinct.then(BTreeSet::new),
            count: 0,
            sum: Total::default(),
            interval: intervals::Sum::default(),
            best: Datum::Null,
            items: Vec::new(),
            held_bytes: 0,
            moves: false,
        })
    }
}

impl AggregateUDFImpl for FoldFunction {
    fn name(&self) -> &str {
        match self.fold {
            Fold::SumNumeric | Fold::SumInterval => "sum",
            Fold::AvgNumeric | Fold::AvgInterval => "avg",
            Fold::Least => "min",
            Fold::Greatest => "max",
            Fold::Combined(with) => with.name(),
            Fold::Ranges => "range_agg",
            Fold::Joined => "string_agg",
            Fold::Array => "array_agg",
            Fold::ArrayOrEmpty => "array",
            Fold::JsonArray if self.returns == SqlType::Json => "json_agg",
            Fold::JsonArray => "jsonb_agg",
            Fold::JsonObject if self.returns == SqlType::Json => "json_object_agg",
            Fold::JsonObject => "jsonb_object_agg",
            Fold::Single => "single",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(match (self.fold, self.returns.element_type()) {
            (Fold::Single, Some(element)) => list_type(element),
            _ => arrow_type(&self.returns),
        })
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        Ok(Box::new(self.state(&args)?))
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> DfResult<Box<dyn Accumulator>> {
        Ok(Box::new(FoldState { moves: true, sum: Total::moving(), ..self.state(&args)? }))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        matches!(self.fold, Fold::SumNumeric | Fold::AvgNumeric)
            && !args.is_distinct
            && args.order_bys.is_empty()
    }

    fn create_groups_accumulator(
        &self,
        _: AccumulatorArgs<'_>,
    ) -> DfResult<Box<dyn GroupsAccumulator>> {
        let argument = self.args.first().cloned().unwrap_or(SqlType::Numeric(None));
        Ok(Box::new(Totals::new(self.fold == Fold::AvgNumeric, argument)))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        let mut types = state_types(self.fold, &self.args, args.is_distinct);
        if !args.ordering_fields.is_empty() {
            types.push(SqlType::Bytea.array_of());
        }
        Ok(types
            .iter()
            .enumerate()
            .map(|(at, ty)| {
                Arc::new(Field::new(format!("{}[{at}]", args.name), arrow_type(ty), true))
            })
            .collect())
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        // Rows are put in order here: several aggregates of one query may each want another.
        AggregateOrderSensitivity::SoftRequirement
    }

    fn with_beneficial_ordering(
        self: Arc<Self>,
        _: bool,
    ) -> DfResult<Option<Arc<dyn AggregateUDFImpl>>> {
        Ok(Some(self))
    }

    fn default_value(&self, data_type: &DataType) -> DfResult<ScalarValue> {
        if self.fold == Fold::ArrayOrEmpty {
            let empty = Datum::Array(Arc::new(ArrayValue::new(
                self.args.first().cloned().unwrap_or(SqlType::Text),
                Vec::new(),
            )));
            return scalar(&empty, &self.returns).map_err(fault::to_datafusion);
        }
        ScalarValue::try_from(data_type)
    }
}

#[derive(Clone, Debug)]
struct FoldState {
    fold: Fold,
    args: Vec<SqlType>,
    returns: SqlType,
    evaluation: Evaluation,
    /// What makes sort keys of the aggregate's ORDER BY; they come after the arguments.
    order: Option<Arc<RowConverter>>,
    /// Sort keys of `items`.
    keys: Vec<Vec<u8>>,
    seen: Option<BTreeSet<Vec<u8>>>,
    count: i64,
    sum: Total,
    interval: intervals::Sum,
    best: Datum,
    items: Vec<Vec<Datum>>,
    held_bytes: usize,
    /// It is a window's whose frame moves: rows leave it.
    moves: bool,
}

impl FoldState {
    fn row(&mut self, values: Vec<Datum>, order: Option<Vec<u8>>) -> Result<()> {
        let first = &values[0];
        if first.is_null() && self.fold.skips_null() {
            return Ok(());
        }
        if let Some(seen) = &mut self.seen {
            let key = distinct::key(&values, &self.args)?;
            if seen.insert(key.clone()) {
                // PostgreSQL finds distinct values by sorting them, and leaves them so.
                let order = [order.unwrap_or_default(), key].concat();
                self.held_bytes += values.iter().map(held).sum::<usize>() + order.len();
                self.items.push(values);
                self.keys.push(order);
            }
            return Ok(());
        }
        let before = self.items.len();
        self.add(values, 1)?;
        if self.items.len() > before {
            self.held_bytes += order.as_ref().map_or(0, Vec::len);
            self.keys.extend(order);
        }
        Ok(())
    }

    /// Puts the rows kept in the order asked for.
    fn sort(&mut self) -> Result<()> {
        if self.keys.len() != self.items.len() || self.keys.is_empty() {
            return Ok(());
        }
        let rows = self.keys.drain(..).zip(self.items.drain(..)).collect();
        let rows: Vec<(Vec<u8>, Vec<Datum>)> = interrupt::sort(rows, |a, b| a.0.cmp(&b.0))?;
        (self.keys, self.items) = rows.into_iter().unzip();
        Ok(())
    }

    fn add(&mut self, values: Vec<Datum>, sign: i64) -> Result<()> {
        self.count += sign;
        let first = &values[0];
        match self.fold {
            Fold::SumNumeric | Fold::AvgNumeric => {
                self.sum.add_datum(first, sign < 0)?;
            }
            Fold::SumInterval | Fold::AvgInterval => {
                let Datum::Interval(value) = first else {
                    return Err(Error::internal("sum over a value that is no interval"));
                };
                self.interval.add(*value, sign)?;
            }
            // A window's frame moves forward: what is the best may leave it.
            Fold::Least | Fold::Greatest | Fold::Combined(_) if self.moves => {
                self.held_bytes += held(first);
                self.items.push(values);
            }
            Fold::Least | Fold::Greatest => {
                let order = first.cmp_typed(&self.best, &self.args[0]);
                let better = if self.fold == Fold::Least { order.is_lt() } else { order.is_gt() };
                if self.best.is_null() || better {
                    self.best = first.clone();
                }
            }
            Fold::Combined(with) => self.best = with.of(&self.best, first)?,
            Fold::Single if self.items.len() > 1 => {}
            Fold::Single if !self.items.is_empty() => self.items.push(vec![Datum::Null]),
            _ => {
                self.held_bytes += values.iter().map(held).sum::<usize>();
                self.items.push(values);
            }
        }
        Ok(())
    }

    fn finish(&self) -> Result<Datum> {
        interrupt::check()?;
        if self.seen.is_some() {
            let mut plain = self.without_rows();
            let mut steps = Steps::default();
            for row in &self.items {
                steps.step()?;
                plain.add(row.clone(), 1)?;
            }
            return plain.finish();
        }
        Ok(match self.fold {
            Fold::SumNumeric if self.count > 0 => Datum::numeric(self.sum.value()),
            Fold::AvgNumeric if self.count > 0 => average(&self.sum.value(), self.count),
            Fold::SumInterval if self.count > 0 => Datum::Interval(self.interval.value()?),
            Fold::AvgInterval if self.count > 0 => self.interval.average(self.count)?,
            Fold::Least | Fold::Greatest if self.moves => {
                let values = self.items.iter().map(|row| &row[0]);
                let order = |a: &&Datum, b: &&Datum| a.cmp_typed(b, &self.args[0]);
                let best = if self.fold == Fold::Least {
                    values.min_by(order)
                } else {
                    values.max_by(order)
                };
                best.cloned().unwrap_or(Datum::Null)
            }
            Fold::Combined(with) if self.moves => with.of_rows(&self.items)?,
            Fold::Least | Fold::Greatest | Fold::Combined(_) => self.best.clone(),
            Fold::Ranges if !self.items.is_empty() => gathered::ranges(&self.items, &self.returns)?,
            Fold::Joined if !self.items.is_empty() => self.joined()?,
            Fold::Array if self.items.is_empty() => Datum::Null,
            Fold::Array | Fold::ArrayOrEmpty => {
                arrays::of_rows(self.column(0, &self.args[0])?, &self.args[0])?
            }
            Fold::JsonArray if !self.items.is_empty() => {
                json_folds::array(&self.items, &self.args, &self.evaluation, &self.returns)?
            }
            Fold::JsonObject if !self.items.is_empty() => {
                json_folds::object(&self.items, &self.args, &self.evaluation, &self.returns)?
            }
            Fold::Single if !self.items.is_empty() => self.column(0, &self.args[0])?,
            _ => Datum::Null,
        })
    }

    /// The same state before its first row, of values that are distinct already.
    fn without_rows(&self) -> Self {
        Self {
            fold: self.fold,
            args: self.args.clone(),
            returns: self.returns.clone(),
            evaluation: self.evaluation.clone(),
            order: None,
            keys: Vec::new(),
            seen: None,
            count: 0,
            sum: Total::default(),
            interval: intervals::Sum::default(),
            best: Datum::Null,
            items: Vec::new(),
            held_bytes: 0,
            moves: self.moves,
        }
    }

    /// Argument `at` of the rows kept, as one array.
    fn column(&self, at: usize, ty: &SqlType) -> Result<Datum> {
        memory::charge(self.items.len(), 0)?;
        let mut steps = Steps::default();
        let items = self.items.iter().map(|row| steps.step().map(|()| row[at].clone()));
        let items = items.collect::<Result<_>>()?;
        Ok(Datum::Array(Arc::new(ArrayValue::new(ty.clone(), items))))
    }

    fn joined(&self) -> Result<Datum> {
        memory::charge(0, self.held_bytes)?;
        let mut out: Vec<u8> = Vec::new();
        let mut steps = Steps::default();
        for (at, row) in self.items.iter().enumerate() {
            steps.step()?;
            let part = |value: &Datum, out: &mut Vec<u8>| match value {
                Datum::Text(text) => out.extend_from_slice(text.as_bytes()),
                Datum::Bytea(bytes) => out.extend_from_slice(bytes),
                _ => {}
            };
            if at > 0 {
                part(&row[1], &mut out);
            }
            part(&row[0], &mut out);
        }
        if self.returns == SqlType::Bytea {
            return Ok(Datum::bytea(out));
        }
        String::from_utf8(out).map(Datum::text).map_err(|_| Error::internal("text is UTF-8"))
    }
}

fn held(value: &Datum) -> usize {
    size_of::<Datum>()
        + match value {
            Datum::Text(text) | Datum::Json(text) => text.len(),
            Datum::Bytea(bytes) => bytes.len(),
            Datum::Bits(bits) => bits.bytes().len(),
            Datum::Range(range) => range.held(),
            Datum::Multirange(ranges) => ranges.held(),
            Datum::Array(array) => array.elements.iter().map(held).sum(),
            Datum::Jsonb(value) => json_folds::held(value),
            Datum::Numeric(_) => 64,
            _ => 0,
        }
}

impl Accumulator for FoldState {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        let rows = values.first().map_or(0, |array| array.len());
        let order = match &self.order {
            Some(order) => Some(order.convert_columns(&values[self.args.len()..])?),
            None => None,
        };
        interrupt::check().map_err(fault::to_datafusion)?;
        let _values = memory::scope();
        let mut steps = Steps::default();
        for row in 0..rows {
            steps.step().map_err(fault::to_datafusion)?;
            let mut datums = Vec::with_capacity(self.args.len());
            for (array, ty) in values.iter().zip(&self.args) {
                datums.push(datum_at(array.as_ref(), row, ty).map_err(fault::to_datafusion)?);
            }
            let key = order.as_ref().map(|order| order.row(row).as_ref().to_vec());
            self.row(datums, key).map_err(fault::to_datafusion)?;
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        let rows = values.first().map_or(0, |array| array.len());
        interrupt::check().map_err(fault::to_datafusion)?;
        let _values = memory::scope();
        for row in 0..rows {
            let value =
                datum_at(values[0].as_ref(), row, &self.args[0]).map_err(fault::to_datafusion)?;
            if value.is_null() && self.fold.skips_null() {
                continue;
            }
            if self.fold.keeps_rows() {
                // A window's frame moves forward: what leaves it came first.
                let gone = self.items.remove(0);
                self.held_bytes -= gone.iter().map(held).sum::<usize>();
            } else {
                self.add(vec![value], -1).map_err(fault::to_datafusion)?;
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        self.seen.is_none() && self.fold != Fold::Single && (self.moves || !self.fold.keeps_rows())
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        let _values = memory::scope();
        self.sort().map_err(fault::to_datafusion)?;
        let made = |value: Datum| match (self.fold, self.returns.element_type()) {
            (Fold::Single, Some(element)) => {
                let list = list_of(element, std::iter::once(&value))?;
                ScalarValue::try_from_array(&list, 0).map_err(fault::from_datafusion)
            }
            _ => scalar(&value, &self.returns),
        };
        self.finish().and_then(made).map_err(fault::to_datafusion)
    }

    fn size(&self) -> usize {
        let seen: usize = self.seen.iter().flatten().map(|key| key.len() + 48).sum();
        size_of::<Self>() + self.held_bytes + seen
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        let mut out = vec![Datum::Int8(self.count)];
        let compact = self.seen.is_none();
        match self.fold {
            Fold::SumNumeric | Fold::AvgNumeric if compact => {
                out.push(Datum::numeric(self.sum.value()));
            }
            Fold::SumInterval | Fold::AvgInterval if compact => {
                let intervals::Sum { months, days, micros } = self.interval;
                let parts = [i128::from(months), i128::from(days), micros]
                    .map(|part| Datum::numeric(Numeric::new(part, 0)));
                let list = ArrayValue::new(SqlType::Numeric(None), parts.to_vec());
                out.push(Datum::Array(Arc::new(list)));
            }
            Fold::Least | Fold::Greatest | Fold::Combined(_) if compact => {
                out.push(self.best.clone())
            }
            _ => {
                for (at, ty) in self.args.iter().enumerate() {
                    out.push(self.column(at, ty).map_err(fault::to_datafusion)?);
                }
            }
        }
        let mut types = state_types(self.fold, &self.args, self.seen.is_some());
        if self.order.is_some() {
            types.push(SqlType::Bytea.array_of());
            let keys = self.keys.iter().map(|key| Datum::bytea(key.as_slice())).collect();
            out.push(Datum::Array(Arc::new(ArrayValue::new(SqlType::Bytea, keys))));
        }
        out.iter()
            .zip(&types)
            .map(|(value, ty)| scalar(value, ty).map_err(fault::to_datafusion))
            .collect()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        let mut types = state_types(self.fold, &self.args, self.seen.is_some());
        if self.order.is_some() {
            types.push(SqlType::Bytea.array_of());
        }
        let _values = memory::scope();
        for row in 0..states.first().map_or(0, |array| array.len()) {
            let parts = states
                .iter()
                .zip(&types)
                .map(|(array, ty)| datum_at(array.as_ref(), row, ty))
                .collect::<Result<Vec<_>>>()
                .and_then(|parts| self.merge(&parts));
            parts.map_err(fault::to_datafusion)?;
        }
        Ok(())
    }
}
