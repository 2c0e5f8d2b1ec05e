//! Functions over frames that DataFusion has not: what EXCLUDE leaves, and distances from values
//! that it cannot add to.
//!
//! ```text
//! arguments of the function | condition of FILTER | what rows are sorted by | value, its bounds (RANGE with distances)
//!      all rows of a partition -> for each row: first and last row of its frame -> less what is excluded -> at most three runs of rows
//!      -> the aggregate over these, or the row that first_value and its like name
//! ```
//!
//! # Invariants
//! - Rows are sorted; peers are those that are equal in all that they are sorted by.
//! - Bounds are values as the rows' own, so that NULLs are peers and no distance leads to or from
//!   them.
//!
//! # On failure
//! Those of the aggregate; 22016 for what is no row of nth_value; 57014.
//!
//! # Limits
//! An aggregate whose frame leaves rows out in between is computed anew for each row: the work is
//! that of all frames together.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt64Array, make_comparator};
use arrow::compute::{SortOptions, filter, partition, take};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, Schema};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::function::{
    AccumulatorArgs, PartitionEvaluatorArgs, WindowUDFFieldArgs,
};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, PartitionEvaluator, Signature, Volatility, WindowUDF, WindowUDFImpl,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use telesto_sql_types::interrupt::Steps;

use super::fault;

/// What a frame's bounds count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Units {
    /// Rows.
    Rows,
    /// Values.
    Range,
    /// Peers.
    Groups,
}

/// Where a frame begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Bound {
    /// With the partition.
    Unbounded,
    /// CURRENT ROW.
    Current,
    /// So many rows or groups before it.
    Preceding(u64),
    /// So many behind it.
    Following(u64),
    /// At a value, which is an argument.
    Value,
}

/// What a frame leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Exclusion {
    /// NO OTHERS.
    #[default]
    None,
    /// CURRENT ROW.
    Row,
    /// GROUP: it and its peers.
    Group,
    /// TIES: its peers.
    Ties,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Frame {
    pub units: Units,
    pub start: Bound,
    pub end: Bound,
    pub exclude: Exclusion,
    /// How many keys rows are sorted by.
    pub sorted: usize,
    /// How they are sorted by the first.
    pub descending: bool,
    pub nulls_first: bool,
}

/// What is computed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Computed {
    /// An aggregate.
    Aggregate(Arc<AggregateUDF>),
    /// first_value.
    First,
    /// last_value.
    Last,
    /// nth_value.
    Nth,
}

/// The function over the frame. Its arguments are `args` of its own, the condition of FILTER if
/// there is one, and the frame's keys.
pub(super) fn framed(computed: Computed, args: usize, filtered: bool, frame: Frame) -> WindowUDF {
    let signature = Signature::variadic_any(Volatility::Volatile);
    WindowUDF::new_from_impl(Framed { computed, args, filtered, frame, signature })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Framed {
    computed: Computed,
    args: usize,
    filtered: bool,
    frame: Frame,
    signature: Signature,
}

impl WindowUDFImpl for Framed {
    fn name(&self) -> &str {
        match &self.computed {
            Computed::Aggregate(function) => function.name(),
            Computed::First => "first_value",
            Computed::Last => "last_value",
            Computed::Nth => "nth_value",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn field(&self, fields: WindowUDFFieldArgs) -> DfResult<FieldRef> {
        let own = &fields.input_fields()[..self.args];
        let ty = match &self.computed {
            Computed::Aggregate(function) => function.return_field(own)?.data_type().clone(),
            _ => own.first().map_or(DataType::Null, |field| field.data_type().clone()),
        };
        Ok(Arc::new(Field::new(fields.name(), ty, true)))
    }

    fn partition_evaluator(
        &self,
        args: PartitionEvaluatorArgs,
    ) -> DfResult<Box<dyn PartitionEvaluator>> {
        let named = args.input_fields()[..self.args].iter().enumerate();
        let fields: Vec<FieldRef> = named
            .map(|(at, field)| Arc::new(field.as_ref().clone().with_name(format!("a{at}"))) as _)
            .collect();
        let returns = match &self.computed {
            Computed::Aggregate(function) => Some(function.return_field(&fields)?),
            _ => None,
        };
        Ok(Box::new(Evaluator {
            computed: self.computed.clone(),
            filtered: self.filtered,
            frame: self.frame.clone(),
            fields,
            returns,
        }))
    }
}

#[derive(Debug)]
struct Evaluator {
    computed: Computed,
    filtered: bool,
    frame: Frame,
    fields: Vec<FieldRef>,
    returns: Option<FieldRef>,
}

impl PartitionEvaluator for Evaluator {
    fn evaluate_all(&mut self, values: &[ArrayRef], rows: usize) -> DfResult<ArrayRef> {
        let (own, rest) = values.split_at(self.fields.len());
        let (passed, keys) = rest.split_at(usize::from(self.filtered));
        let frames = Frames::new(&self.frame, keys, rows)?;
        match &self.computed {
            Computed::Aggregate(function) => {
                let passed = passed.first().map(|passed| passed.as_boolean());
                self.aggregate(function, own, passed, &frames)
            }
            _ => self.pick(own, &frames),
        }
    }
}

impl Evaluator {
    fn accumulator(&self, function: &AggregateUDF, moving: bool) -> DfResult<Box<dyn Accumulator>> {
        let schema = Schema::new(self.fields.clone());
        let columns = self.fields.iter().enumerate();
        let exprs: Vec<Arc<dyn PhysicalExpr>> =
            columns.map(|(at, field)| Arc::new(Column::new(field.name(), at)) as _).collect();
        let returned = self.returns.clone();
        let args = AccumulatorArgs {
            return_field: returned
                .ok_or_else(|| DataFusionError::Internal("an aggregate of no type".to_owned()))?,
            schema: &schema,
            ignore_nulls: false,
            order_bys: &[],
            is_reversed: false,
            name: function.name(),
            is_distinct: false,
            exprs: &exprs,
            expr_fields: &self.fields,
        };
        match moving {
            true => function.create_sliding_accumulator(args),
            false => function.accumulator(args),
        }
    }

    fn aggregate(
        &self,
        function: &AggregateUDF,
        own: &[ArrayRef],
        passed: Option<&BooleanArray>,
        frames: &Frames,
    ) -> DfResult<ArrayRef> {
        // The rows that FILTER lets through, and how many of them are before each row.
        let mut before: Vec<usize> = Vec::with_capacity(frames.rows + 1);
        let mut own = own.to_vec();
        match passed {
            None => before.extend(0..=frames.rows),
            Some(passed) => {
                let mut count = 0;
                before.push(0);
                for row in 0..frames.rows {
                    count += usize::from(passed.is_valid(row) && passed.value(row));
                    before.push(count);
                }
                for column in &mut own {
                    *column = filter(column, passed)?;
                }
            }
        }
        let slices = |range: &Range<usize>| -> Vec<ArrayRef> {
            let (start, end) = (before[range.start], before[range.end]);
            own.iter().map(|column| column.slice(start, end - start)).collect()
        };
        let mut steps = Steps::default();
        let mut out: Vec<ScalarValue> = Vec::with_capacity(frames.rows);
        let mut last: Option<(Vec<Range<usize>>, ScalarValue)> = None;
        // Where nothing is left out in between, rows enter at the end and leave at the start.
        let mut moving = None;
        if self.frame.exclude == Exclusion::None {
            moving = Some(self.accumulator(function, true)?).filter(|a| a.supports_retract_batch());
        }
        let mut held = 0..0;
        for row in 0..frames.rows {
            steps.step().map_err(fault::to_datafusion)?;
            let runs = frames.of(row);
            if let Some((same, value)) = &last
                && *same == runs
            {
                out.push(value.clone());
                continue;
            }
            let value = match &mut moving {
                Some(moving) => {
                    let wanted = runs.first().cloned().unwrap_or(held.end..held.end);
                    let wanted = wanted.start.max(held.start)..wanted.end.max(held.end);
                    if wanted.end > held.end {
                        moving.update_batch(&slices(&(held.end..wanted.end)))?;
                    }
                    let start = wanted.start.min(wanted.end);
                    if start > held.start {
                        moving.retract_batch(&slices(&(held.start..start)))?;
                    }
                    held = start..wanted.end;
                    moving.evaluate()?
                }
                None => {
                    let mut fresh = self.accumulator(function, false)?;
                    for run in &runs {
                        fresh.update_batch(&slices(run))?;
                    }
                    fresh.evaluate()?
                }
            };
            last = Some((runs, value.clone()));
            out.push(value);
        }
        ScalarValue::iter_to_array(out)
    }

    /// first_value, last_value, nth_value.
    fn pick(&self, own: &[ArrayRef], frames: &Frames) -> DfResult<ArrayRef> {
        let Some(values) = own.first() else {
            return Err(DataFusionError::Internal("a value is missing".to_owned()));
        };
        let mut steps = Steps::default();
        let mut places: Vec<Option<u64>> = Vec::with_capacity(frames.rows);
        for row in 0..frames.rows {
            steps.step().map_err(fault::to_datafusion)?;
            let runs = frames.of(row);
            let place = match self.computed {
                Computed::Last => runs.last().map(|run| run.end - 1),
                Computed::Nth => match own.get(1) {
                    Some(number) if !number.is_null(row) => {
                        nth(&runs, number.as_primitive::<Int64Type>().value(row))?
                    }
                    _ => None,
                },
                _ => runs.first().map(|run| run.start),
            };
            places.push(place.map(|place| place as u64));
        }
        Ok(take(values.as_ref(), &UInt64Array::from(places), None)?)
    }
}

fn nth(runs: &[Range<usize>], number: i64) -> DfResult<Option<usize>> {
    let mut left = match usize::try_from(number) {
        Ok(number) if number > 0 => number - 1,
        _ => {
            let text = "argument of nth_value must be greater than zero";
            return Err(fault::to_datafusion(fault::new("22016", text.to_owned())));
        }
    };
    for run in runs {
        if left < run.len() {
            return Ok(Some(run.start + left));
        }
        left -= run.len();
    }
    Ok(None)
}

/// The frames of a partition's rows.
struct Frames<'f> {
    frame: &'f Frame,
    rows: usize,
    /// The peers, and of each row which they are.
    groups: Vec<Range<usize>>,
    group_of: Vec<usize>,
    /// First and last row by value, of each row, where the bound is one.
    starts: Vec<usize>,
    ends: Vec<usize>,
}

impl<'f> Frames<'f> {
    fn new(frame: &'f Frame, keys: &[ArrayRef], rows: usize) -> DfResult<Self> {
        let (sorted, values) = keys.split_at(frame.sorted);
        let groups = match sorted.is_empty() || rows == 0 {
            true => std::iter::once(0..rows).collect(),
            false => partition(sorted)?.ranges(),
        };
        let mut group_of = vec![0; rows];
        for (number, group) in groups.iter().enumerate() {
            group_of[group.clone()].fill(number);
        }
        let mut out = Self { frame, rows, groups, group_of, starts: Vec::new(), ends: Vec::new() };
        if let Some((value, bounds)) = values.split_first() {
            let mut bounds = bounds.iter();
            for (bound, start) in [(frame.start, true), (frame.end, false)] {
                if bound != Bound::Value {
                    continue;
                }
                let Some(bound) = bounds.next() else {
                    return Err(DataFusionError::Internal("a frame's bound is missing".to_owned()));
                };
                let found = out.places(value, bound, start)?;
                if start {
                    out.starts = found;
                } else {
                    out.ends = found;
                }
            }
        }
        Ok(out)
    }

    /// Of each row the first one that is not before its bound, or the first one behind it.
    fn places(&self, value: &ArrayRef, bound: &ArrayRef, start: bool) -> DfResult<Vec<usize>> {
        let options =
            SortOptions { descending: self.frame.descending, nulls_first: self.frame.nulls_first };
        let compare = make_comparator(value.as_ref(), bound.as_ref(), options)?;
        let mut steps = Steps::default();
        let mut out = Vec::with_capacity(self.rows);
        for row in 0..self.rows {
            steps.step().map_err(fault::to_datafusion)?;
            let (mut low, mut high) = (0, self.rows);
            while low < high {
                let middle = (low + high) / 2;
                let order = compare(middle, row);
                if order.is_lt() || !start && order.is_eq() {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            out.push(low);
        }
        Ok(out)
    }

    /// The group so far from that of `row`; those before the first, and behind the last, have no
    /// rows.
    fn group(&self, row: usize, by: Bound) -> Range<usize> {
        let own = self.group_of[row];
        let far = |by: u64| usize::try_from(by).unwrap_or(usize::MAX);
        match by {
            Bound::Preceding(by) => match own.checked_sub(far(by)) {
                Some(group) => self.groups[group].clone(),
                None => 0..0,
            },
            Bound::Following(by) => {
                let group = own.saturating_add(far(by));
                self.groups.get(group).cloned().unwrap_or(self.rows..self.rows)
            }
            _ => self.groups[own].clone(),
        }
    }

    fn start(&self, row: usize) -> usize {
        let far = |by: u64| usize::try_from(by).unwrap_or(usize::MAX);
        match (self.frame.start, self.frame.units) {
            (Bound::Unbounded, _) => 0,
            (Bound::Value, _) => self.starts[row],
            (Bound::Current, Units::Rows) => row,
            (Bound::Preceding(by), Units::Rows) => row.saturating_sub(far(by)),
            (Bound::Following(by), Units::Rows) => row.saturating_add(far(by)).min(self.rows),
            (bound, _) => self.group(row, bound).start,
        }
    }

    fn end(&self, row: usize) -> usize {
        let far = |by: u64| usize::try_from(by).unwrap_or(usize::MAX);
        match (self.frame.end, self.frame.units) {
            (Bound::Unbounded, _) => self.rows,
            (Bound::Value, _) => self.ends[row],
            (Bound::Current, Units::Rows) => row + 1,
            (Bound::Preceding(by), Units::Rows) => (row + 1).saturating_sub(far(by)),
            (Bound::Following(by), Units::Rows) => {
                row.saturating_add(far(by)).saturating_add(1).min(self.rows)
            }
            (bound, _) => self.group(row, bound).end,
        }
    }

    /// The rows of a row's frame, in runs that are not empty.
    fn of(&self, row: usize) -> Vec<Range<usize>> {
        let (start, end) = (self.start(row), self.end(row));
        let peers = || self.groups[self.group_of[row]].clone();
        let nothing = end..end;
        let gone = match self.frame.exclude {
            Exclusion::None => [nothing.clone(), nothing],
            Exclusion::Row => [row..row + 1, nothing],
            Exclusion::Group => [peers(), nothing],
            Exclusion::Ties => {
                let peers = peers();
                [peers.start..row, row + 1..peers.end]
            }
        };
        let mut out = Vec::new();
        let mut from = start;
        for gone in gone {
            let until = gone.start.clamp(from, end.max(from));
            if from < until {
                out.push(from..until);
            }
            from = from.max(gone.end);
        }
        if from < end {
            out.push(from..end);
        }
        out
    }
}
