//! Windows: what OVER names, and the frame of rows a window function sees.
//!
//! # Invariants
//! A bound is a constant of the execution: an expression without columns, perhaps over parameters.
//! It is of the type that the column in ORDER BY is moved by (PostgreSQL 15 manual, 4.2.8).
//!
//! A frame that DataFusion has not (EXCLUDE, distances from numerics and intervals) is computed by
//! [`crate::framed`].
//!
//! # Limits
//! Of an offset over times of day only the part within a day counts, as in PostgreSQL; nothing
//! wraps around midnight.

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{
    Expr, SortExpr, WindowFrame, WindowFrameBound, WindowFrameUnits, cast,
};
use datafusion::sql::sqlparser::ast;

use super::scope::{Scope, fold};
use super::{Binder, Typed};
use crate::fault;
use crate::framed::{Bound, Exclusion, Frame, Units};
use crate::types::{TypeShape, datum_at};
use telesto_sql_parser::marks;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::{Datum, SqlType};

/// What integers in ORDER BY are carried in where a frame's bound is a distance from them: no sum
/// leaves it.
const WIDE: DataType = DataType::Decimal128(38, 0);

/// Whether a frame's bound is a distance from the value in ORDER BY.
fn moves(frame: &WindowFrame) -> bool {
    let far = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::CurrentRow => false,
        WindowFrameBound::Preceding(by) | WindowFrameBound::Following(by) => !by.is_null(),
    };
    frame.units == WindowFrameUnits::Range && (far(&frame.start_bound) || far(&frame.end_bound))
}

/// What a window function is computed over.
pub(super) struct Window {
    /// Rows go together by these.
    pub partition_by: Vec<Expr>,
    /// They are in this order.
    pub order_by: Vec<SortExpr>,
    /// Of them, each sees these.
    pub frame: WindowFrame,
    /// The frame ends before it begins, whatever the row: none sees any.
    pub empty: bool,
    /// The frame is not one of DataFusion's.
    pub own: Option<OwnFrame>,
}

/// A frame that is computed by [`crate::framed`].
pub(super) struct OwnFrame {
    /// Its form.
    pub frame: Frame,
    /// What rows are sorted by; for a frame of distances then the value they are taken from, and
    /// the value of each bound that is one.
    pub keys: Vec<Expr>,
}

/// Whether a frame ends before it begins.
fn ends_first(frame: &WindowFrame) -> bool {
    use WindowFrameBound as B;
    let less = |a: &ScalarValue, b: &ScalarValue| {
        !a.is_null() && !b.is_null() && a.partial_cmp(b).is_some_and(std::cmp::Ordering::is_lt)
    };
    match (&frame.start_bound, &frame.end_bound) {
        (B::Preceding(start), B::Preceding(end)) => less(start, end),
        (B::Following(start), B::Following(end)) => less(end, start),
        _ => false,
    }
}

/// More microseconds than any two times of day, and their zones, are apart.
const BEYOND_A_DAY: i64 = 4 * 86_400_000_000;

/// A window as it is written.
#[derive(Default)]
struct Spec {
    partition_by: Vec<Expr>,
    order_by: Vec<SortExpr>,
    order: Vec<Typed>,
    frame: Option<ast::WindowFrame>,
    exclude: Exclusion,
}

fn windowing(message: &str) -> Error {
    fault::new("42P20", message.to_owned())
}

impl Binder<'_> {
    /// The window of an OVER; with `by_hand`, one whose frame [`crate::framed`] computes in any
    /// case.
    pub(super) fn window(
        &self,
        over: &ast::WindowType,
        scope: &Scope<'_>,
        by_hand: bool,
    ) -> Result<Window> {
        let Spec { partition_by, mut order_by, order, frame, exclude } = self.spec(over, scope)?;
        let order_types: Vec<SqlType> = order.iter().map(|typed| typed.ty.clone()).collect();
        let mut own = None;
        let frame = match frame {
            Some(written) => {
                let frame = self.frame(&written, &order_types, scope)?;
                let far = moves(&frame);
                let own_kind = matches!(
                    &order_types[..],
                    [SqlType::Numeric(_)
                        | SqlType::Interval
                        | SqlType::Time(_)
                        | SqlType::TimeTz(_)]
                );
                if by_hand || exclude != Exclusion::None || far && own_kind {
                    own = Some(self.own_frame(&frame, exclude, &order_by, &order)?);
                }
                if let (true, [sort], [ty]) = (far, order_by.as_mut_slice(), order_types.as_slice())
                    && ty.is_integer()
                    && own.is_none()
                {
                    sort.expr = cast(std::mem::take(&mut sort.expr), WIDE);
                }
                frame
            }
            None => {
                let frame = WindowFrame::new((!order_by.is_empty()).then_some(false));
                if by_hand {
                    own = Some(self.own_frame(&frame, exclude, &order_by, &order)?);
                }
                frame
            }
        };
        let empty = own.is_none() && ends_first(&frame);
        let frame = if empty || own.is_some() {
            WindowFrame::new((!order_by.is_empty()).then_some(false))
        } else {
            frame
        };
        frame.regularize_order_bys(&mut order_by).map_err(fault::from_datafusion)?;
        Ok(Window { partition_by, order_by, frame: of_peers(frame), empty, own })
    }

    /// A frame as [`crate::framed`] takes it.
    fn own_frame(
        &self,
        frame: &WindowFrame,
        exclude: Exclusion,
        order_by: &[SortExpr],
        order: &[Typed],
    ) -> Result<OwnFrame> {
        let units = match frame.units {
            WindowFrameUnits::Rows => Units::Rows,
            WindowFrameUnits::Range => Units::Range,
            WindowFrameUnits::Groups => Units::Groups,
        };
        let mut keys: Vec<Expr> = order_by.iter().map(|sort| sort.expr.clone()).collect();
        let far = moves(frame);
        let descending = order_by.first().is_some_and(|sort| !sort.asc);
        let mut from = None;
        if let (true, [value]) = (far, order) {
            let (value, by) = match &value.ty {
                SqlType::Time(_) | SqlType::TimeTz(_) => {
                    (self.time_of_day(value)?, (SqlType::Numeric(None), SqlType::Numeric(None)))
                }
                _ => moving_value(value),
            };
            let value = self.coerce(value, &by.0, "RANGE")?;
            keys.push(self.orderable(value.expr.clone(), &by.0)?);
            from = Some((value, by.1));
        }
        let mut bound = |bound: &WindowFrameBound| -> Result<Bound> {
            let (by, back) = match bound {
                WindowFrameBound::CurrentRow => return Ok(Bound::Current),
                WindowFrameBound::Preceding(by) => (by, true),
                WindowFrameBound::Following(by) => (by, false),
            };
            if by.is_null() {
                return Ok(Bound::Unbounded);
            }
            if let Some((value, ty)) = &from {
                let by = match by {
                    ScalarValue::Decimal128(Some(by), ..) => {
                        let by = i64::try_from(*by).unwrap_or(i64::MAX);
                        Typed::of(Expr::Literal(ScalarValue::Int64(Some(by)), None), SqlType::Int8)
                    }
                    // A parameter without a value yet.
                    ScalarValue::UInt64(_) => Typed::of(Self::null_of(ty)?, ty.clone()),
                    ScalarValue::IntervalMonthDayNano(Some(by))
                        if matches!(ty, SqlType::Numeric(_)) =>
                    {
                        let by = (by.nanoseconds / 1000).min(BEYOND_A_DAY);
                        Typed::of(Expr::Literal(ScalarValue::Int64(Some(by)), None), SqlType::Int8)
                    }
                    by => Typed::of(Expr::Literal(by.clone(), None), ty.clone()),
                };
                let op = if back == descending { "+" } else { "-" };
                let end = self.binary(op, value.clone(), by)?;
                let end = self.coerce(end, &value.ty, "RANGE")?;
                keys.push(self.orderable(end.expr, &value.ty)?);
                return Ok(Bound::Value);
            }
            let ScalarValue::UInt64(Some(by)) = by else {
                return Err(Error::internal("a frame's bound is no number of rows"));
            };
            Ok(if back { Bound::Preceding(*by) } else { Bound::Following(*by) })
        };
        let (start, end) = (bound(&frame.start_bound)?, bound(&frame.end_bound)?);
        let nulls_first = order_by.first().is_some_and(|sort| sort.nulls_first);
        let sorted = order_by.len();
        let frame = Frame { units, start, end, exclude, sorted, descending, nulls_first };
        Ok(OwnFrame { frame, keys })
    }

    /// A time of day in microseconds of UTC, as numbers that are ordered as the times are: of two
    /// at once in UTC the one whose zone is further west is the later, by less than a microsecond.
    fn time_of_day(&self, value: &Typed) -> Result<Typed> {
        let million =
            || Typed::of(Expr::Literal(ScalarValue::Int64(Some(1_000_000)), None), SqlType::Int8);
        let part =
            |name: &str| self.call("extract", vec![Typed::text(name.to_owned()), value.clone()]);
        let micros = self.binary("*", part("epoch")?, million())?;
        if !matches!(value.ty, SqlType::TimeTz(_)) {
            return Ok(micros);
        }
        let east = self.binary("/", part("timezone")?, million())?;
        self.binary("-", micros, east)
    }

    fn spec(&self, over: &ast::WindowType, scope: &Scope<'_>) -> Result<Spec> {
        let written = match over {
            ast::WindowType::WindowSpec(spec) => spec.clone(),
            ast::WindowType::NamedWindow(name) => self.named_window(name)?,
        };
        let mut spec = Spec::default();
        let mut base = written.window_name.clone();
        if let Some(name) = &base
            && let Some((left_out, of)) = marks::excluded(&name.value)
        {
            spec.exclude = match left_out {
                "row" => Exclusion::Row,
                "group" => Exclusion::Group,
                _ => Exclusion::Ties,
            };
            base = of.map(|of| ast::Ident::with_quote('"', of));
        }
        if let Some(base) = &base {
            let exclude = spec.exclude;
            let window = ast::WindowType::WindowSpec(self.named_window(base)?);
            let below = self.spec(&window, scope)?;
            let name = fold(base);
            let refused = if !written.partition_by.is_empty() {
                format!("cannot override PARTITION BY clause of window \"{name}\"")
            } else if !written.order_by.is_empty() && !below.order_by.is_empty() {
                format!("cannot override ORDER BY clause of window \"{name}\"")
            } else if below.frame.is_some() || below.exclude != Exclusion::None {
                format!("cannot copy window \"{name}\" because it has a frame clause")
            } else {
                String::new()
            };
            if !refused.is_empty() {
                return Err(windowing(&refused));
            }
            spec = Spec { exclude, ..below };
        }
        for expr in &written.partition_by {
            let typed = self.expr(expr, scope)?;
            let ty = if typed.ty.is_unknown() { SqlType::Text } else { typed.ty.clone() };
            let typed = self.coerce(typed, &ty, "PARTITION BY")?;
            spec.partition_by.push(self.orderable(typed.expr, &ty)?);
        }
        if !written.order_by.is_empty() {
            spec.order_by = self.sorts(&written.order_by, scope)?;
            spec.order = written
                .order_by
                .iter()
                .map(|item| self.expr(&item.expr, scope))
                .collect::<Result<_>>()?;
        }
        spec.frame = written.window_frame;
        Ok(spec)
    }

    fn frame(
        &self,
        frame: &ast::WindowFrame,
        order: &[SqlType],
        scope: &Scope<'_>,
    ) -> Result<WindowFrame> {
        use ast::WindowFrameBound as B;
        let units = match frame.units {
            ast::WindowFrameUnits::Rows => WindowFrameUnits::Rows,
            ast::WindowFrameUnits::Range => WindowFrameUnits::Range,
            ast::WindowFrameUnits::Groups => WindowFrameUnits::Groups,
        };
        let end = frame.end_bound.as_ref().unwrap_or(&B::CurrentRow);
        match (&frame.start_bound, end) {
            (B::Following(None), _) => {
                return Err(windowing("frame start cannot be UNBOUNDED FOLLOWING"));
            }
            (_, B::Preceding(None)) => {
                return Err(windowing("frame end cannot be UNBOUNDED PRECEDING"));
            }
            (B::CurrentRow, B::Preceding(_)) => {
                let message = "frame starting from current row cannot have preceding rows";
                return Err(windowing(message));
            }
            (B::Following(_), B::Preceding(_) | B::CurrentRow) => {
                let message = "frame starting from following row cannot have preceding rows";
                return Err(windowing(message));
            }
            _ => {}
        }
        if units == WindowFrameUnits::Groups && order.is_empty() {
            return Err(windowing("GROUPS mode requires an ORDER BY clause"));
        }
        let bound = |bound: &B, which: &str| -> Result<WindowFrameBound> {
            let unbounded = ScalarValue::Null;
            Ok(match bound {
                B::CurrentRow => WindowFrameBound::CurrentRow,
                B::Preceding(None) => WindowFrameBound::Preceding(unbounded),
                B::Following(None) => WindowFrameBound::Following(unbounded),
                B::Preceding(Some(by)) => {
                    WindowFrameBound::Preceding(self.offset(by, units, order, which, scope)?)
                }
                B::Following(Some(by)) => {
                    WindowFrameBound::Following(self.offset(by, units, order, which, scope)?)
                }
            })
        };
        // Without an offset, values need no arithmetic, which DataFusion asks of the first column
        // of ORDER BY for RANGE.
        let units = match (units, &frame.start_bound, end) {
            (WindowFrameUnits::Range, B::Preceding(None), B::Following(None)) => {
                WindowFrameUnits::Rows
            }
            (WindowFrameUnits::Range, B::CurrentRow, B::CurrentRow | B::Following(None))
                if !order.is_empty() =>
            {
                WindowFrameUnits::Groups
            }
            (units, ..) => units,
        };
        let (start, end) = (bound(&frame.start_bound, "starting")?, bound(end, "ending")?);
        Ok(WindowFrame::new_bounds(units, start, end))
    }

    /// How far a bound is from the current row.
    fn offset(
        &self,
        by: &ast::Expr,
        units: WindowFrameUnits,
        order: &[SqlType],
        which: &str,
        scope: &Scope<'_>,
    ) -> Result<ScalarValue> {
        // The parser takes a string for an interval, whatever is moved by it.
        let string = match by {
            ast::Expr::Interval(interval) if interval.leading_field.is_none() => {
                Some(&*interval.value).filter(|_| matches!(order, [ty] if ty.is_number()))
            }
            _ => None,
        };
        let typed = self.expr(string.unwrap_or(by), scope)?;
        let clause = units.to_string();
        let (ty, wide) = match (units, order) {
            (WindowFrameUnits::Rows | WindowFrameUnits::Groups, _) => (SqlType::Int8, false),
            (WindowFrameUnits::Range, [order]) => (moved_by(order, &typed.ty)?, order.is_integer()),
            (WindowFrameUnits::Range, _) => {
                return Err(windowing(
                    "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column",
                ));
            }
        };
        let described = self.parameters.borrow().values.is_none();
        let value = self.constant(self.coerce(typed, &ty, &clause)?, &clause)?;
        if value.is_null() {
            if described {
                // A parameter has no value yet, and its frame is not computed.
                return Ok(ScalarValue::UInt64(Some(0)));
            }
            return Err(fault::new("22004", format!("frame {which} offset must not be null")));
        }
        let negative = match &value {
            ScalarValue::Int64(Some(by)) => *by < 0,
            ScalarValue::Float64(Some(by)) => by.is_nan() || by.is_sign_negative(),
            ScalarValue::Float32(Some(by)) => by.is_nan() || by.is_sign_negative(),
            ScalarValue::IntervalMonthDayNano(Some(by))
                if matches!(order, [SqlType::Time(_) | SqlType::TimeTz(_)]) =>
            {
                by.nanoseconds < 0
            }
            ScalarValue::IntervalMonthDayNano(Some(by)) => {
                (i128::from(by.months) * 30 + i128::from(by.days)) * 86_400_000_000_000
                    + i128::from(by.nanoseconds)
                    < 0
            }
            other if !wide => {
                let value = other.to_array_of_size(1);
                let value = value.map_err(fault::from_datafusion)?;
                match datum_at(value.as_ref(), 0, &ty)? {
                    Datum::Numeric(by) => by.is_nan() || by.signum() == Some(-1),
                    _ => false,
                }
            }
            _ => false,
        };
        if negative {
            return Err(match units {
                WindowFrameUnits::Range => fault::new(
                    "22013",
                    "invalid preceding or following size in window function".to_owned(),
                ),
                _ => fault::new("22013", format!("frame {which} offset must not be negative")),
            });
        }
        match (value, wide) {
            (value, true) => value.cast_to(&WIDE).map_err(fault::from_datafusion),
            (ScalarValue::Int64(Some(by)), false) => {
                Ok(ScalarValue::UInt64(Some(by.unsigned_abs())))
            }
            (value, false) => Ok(value),
        }
    }

    fn named_window(&self, name: &ast::Ident) -> Result<ast::WindowSpec> {
        let wanted = fold(name);
        let windows = self.windows.borrow().clone();
        for ast::NamedWindowDefinition(ident, definition) in windows {
            if fold(&ident) == wanted {
                return match definition {
                    ast::NamedWindowExpr::WindowSpec(spec) => Ok(spec),
                    ast::NamedWindowExpr::NamedWindow(other) => self.named_window(&other),
                };
            }
        }
        Err(fault::new("42704", format!("window \"{wanted}\" does not exist")))
    }
}

/// Refuses two windows of one name, and one over a window that comes behind it.
pub(super) fn told_apart(windows: &[ast::NamedWindowDefinition]) -> Result<()> {
    for (at, ast::NamedWindowDefinition(name, definition)) in windows.iter().enumerate() {
        let name = fold(name);
        let before = |wanted: &str| windows[..at].iter().any(|other| fold(&other.0) == wanted);
        if before(&name) {
            return Err(windowing(&format!("window \"{name}\" is already defined")));
        }
        let base = match definition {
            ast::NamedWindowExpr::NamedWindow(base) => Some(base),
            ast::NamedWindowExpr::WindowSpec(spec) => spec.window_name.as_ref(),
        };
        if let Some(base) = base.filter(|base| marks::excluded(&base.value).is_none())
            && !before(&fold(base))
        {
            return Err(fault::new("42704", format!("window \"{}\" does not exist", fold(base))));
        }
    }
    Ok(())
}

/// The type of what values of type `order` are moved by, when `given` is what is written.
fn moved_by(order: &SqlType, given: &SqlType) -> Result<SqlType> {
    let by = match order {
        SqlType::Int2 | SqlType::Int4 | SqlType::Int8
            if given.is_integer() || given.is_unknown() =>
        {
            Some(SqlType::Int8)
        }
        SqlType::Float4 | SqlType::Float8 if given.is_number() || given.is_unknown() => {
            Some(order.clone())
        }
        SqlType::Numeric(_)
            if given.is_integer() || matches!(given, SqlType::Numeric(_)) || given.is_unknown() =>
        {
            Some(SqlType::Numeric(None))
        }
        SqlType::Date
        | SqlType::Timestamp(_)
        | SqlType::TimestampTz(_)
        | SqlType::Interval
        | SqlType::Time(_)
        | SqlType::TimeTz(_)
            if *given == SqlType::Interval || given.is_unknown() =>
        {
            Some(SqlType::Interval)
        }
        _ => None,
    };
    by.ok_or_else(|| {
        let offset = if given.is_unknown() { order } else { given };
        fault::unsupported(&format!(
            "RANGE with offset PRECEDING/FOLLOWING for column type {order} and offset type {offset}"
        ))
    })
}

/// What a frame's distances are taken from, with the type that it and its bounds are compared as,
/// and that of the distances.
fn moving_value(value: &Typed) -> (Typed, (SqlType, SqlType)) {
    let types = match &value.ty {
        // No sum of them leaves numeric.
        ty if ty.is_integer() => (SqlType::Numeric(None), SqlType::Numeric(None)),
        SqlType::Numeric(_) => (SqlType::Numeric(None), SqlType::Numeric(None)),
        SqlType::Date | SqlType::Timestamp(_) => (SqlType::Timestamp(None), SqlType::Interval),
        SqlType::TimestampTz(_) => (SqlType::TimestampTz(None), SqlType::Interval),
        ty => (ty.clone(), ty.clone()),
    };
    (value.clone(), types)
}

/// A RANGE frame without offsets as the GROUPS frame of the same rows: DataFusion computes ranges
/// of few types only.
fn of_peers(frame: WindowFrame) -> WindowFrame {
    let whole = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::CurrentRow => true,
        WindowFrameBound::Preceding(by) | WindowFrameBound::Following(by) => by.is_null(),
    };
    if frame.units == WindowFrameUnits::Range
        && whole(&frame.start_bound)
        && whole(&frame.end_bound)
        && (frame.start_bound == WindowFrameBound::CurrentRow
            || frame.end_bound == WindowFrameBound::CurrentRow)
    {
        WindowFrame::new_bounds(WindowFrameUnits::Groups, frame.start_bound, frame.end_bound)
    } else {
        frame
    }
}
