//! Aggregates of the key path: count, sum, min, max, avg.
//!
//! # Invariants
//! NULLs are left out; sums and averages are exact, in PostgreSQL's result types.
//!
//! # Limits
//! Without DISTINCT, FILTER and ORDER BY.

use super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AggregateKind {
    CountRows,
    Count,
    Sum,
    Avg,
    Min,
    Max,
}

#[derive(Debug)]
pub(super) struct Aggregate {
    pub kind: AggregateKind,
    pub arg: Option<Expr>,
    pub ty: SqlType,
}

/// Where the columns of aggregates are while expressions are bound over a row with groups beside
/// them: behind every column of every table.
pub(super) const BEHIND: usize = 1 << 24;

/// Collects aggregates; each becomes a column of the row of results, from `first` on.
#[derive(Default)]
pub(super) struct Aggregates {
    pub first: usize,
    pub found: Vec<Aggregate>,
}

impl CallHook for Aggregates {
    fn aggregate(
        &mut self,
        binder: &mut Binder<'_>,
        name: &str,
        call: &ast::Function,
    ) -> Result<Option<Expr>> {
        let kind = match name {
            "count" => AggregateKind::Count,
            "sum" => AggregateKind::Sum,
            "avg" => AggregateKind::Avg,
            "min" => AggregateKind::Min,
            "max" => AggregateKind::Max,
            other if telesto_sql_expr::is_aggregate(other) || !call.within_group.is_empty() => {
                return Err(fault::unsupported(format!("{other}() by key")));
            }
            _ => return Ok(None),
        };
        let ast::FunctionArguments::List(list) = &call.args else {
            return Err(fault::unsupported("this aggregate"));
        };
        let plain =
            list.duplicate_treatment.is_none() && list.clauses.is_empty() && call.filter.is_none();
        if !plain || list.args.len() != 1 {
            return Err(fault::unsupported("this aggregate by key"));
        }
        let (kind, arg, ty) = match &list.args[0] {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Wildcard)
                if kind == AggregateKind::Count =>
            {
                (AggregateKind::CountRows, None, SqlType::Int8)
            }
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => {
                let arg = binder.bind_known(expr)?;
                let ty = aggregate_type(kind, &arg.ty)?;
                (kind, Some(arg), ty)
            }
            _ => return Err(fault::unsupported("this aggregate by key")),
        };
        self.found.push(Aggregate { kind, arg, ty: ty.clone() });
        Ok(Some(Expr::column(self.first + self.found.len() - 1, ty)))
    }
}

fn aggregate_type(kind: AggregateKind, ty: &SqlType) -> Result<SqlType> {
    Ok(match (kind, ty) {
        (AggregateKind::Count | AggregateKind::CountRows, _) => SqlType::Int8,
        (AggregateKind::Sum, SqlType::Int2 | SqlType::Int4) => SqlType::Int8,
        (AggregateKind::Sum, SqlType::Int8 | SqlType::Numeric(_)) => SqlType::Numeric(None),
        (AggregateKind::Sum, SqlType::Float8) => SqlType::Float8,
        (
            AggregateKind::Avg,
            SqlType::Int2 | SqlType::Int4 | SqlType::Int8 | SqlType::Numeric(_),
        ) => SqlType::Numeric(None),
        (AggregateKind::Avg, SqlType::Float8) => SqlType::Float8,
        (AggregateKind::Min | AggregateKind::Max, ty)
            if ty.is_number()
                || matches!(
                    ty,
                    SqlType::Text
                        | SqlType::Date
                        | SqlType::Time(_)
                        | SqlType::TimeTz(_)
                        | SqlType::Timestamp(_)
                        | SqlType::TimestampTz(_)
                ) =>
        {
            ty.without_modifier()
        }
        _ => return Err(fault::unsupported("this aggregate by key")),
    })
}

/// An aggregate under way.
pub(super) struct State {
    count: i64,
    value: Datum,
}

impl State {
    pub fn new(_: &Aggregate) -> Self {
        Self { count: 0, value: Datum::Null }
    }

    /// Takes a row.
    pub fn take(
        &mut self,
        aggregate: &Aggregate,
        row: &[Datum],
        context: &EvalContext<'_>,
    ) -> Result<()> {
        let value = match &aggregate.arg {
            None => Datum::Bool(true),
            Some(arg) => arg.eval(row, context)?,
        };
        if value.is_null() { Ok(()) } else { self.add(aggregate, value, context) }
    }

    fn add(
        &mut self,
        aggregate: &Aggregate,
        value: Datum,
        context: &EvalContext<'_>,
    ) -> Result<()> {
        self.count += 1;
        let ty = aggregate.arg.as_ref().map_or(&SqlType::Int8, |a| &a.ty);
        match aggregate.kind {
            AggregateKind::CountRows | AggregateKind::Count => {}
            AggregateKind::Min | AggregateKind::Max => {
                let order = value.cmp_typed(&self.value, ty);
                let better = if aggregate.kind == AggregateKind::Max {
                    order.is_gt()
                } else {
                    order.is_lt()
                };
                if self.value.is_null() || better {
                    self.value = value;
                }
            }
            AggregateKind::Sum | AggregateKind::Avg => {
                let wide = telesto_sql_expr::cast::cast(
                    value,
                    ty,
                    &aggregate.ty,
                    telesto_sql_expr::CastContext::Explicit,
                    context,
                )?;
                self.value = match (&self.value, &wide) {
                    (Datum::Null, _) => wide,
                    (Datum::Int8(a), Datum::Int8(b)) => Datum::Int8(
                        a.checked_add(*b).ok_or_else(|| fault::out_of_range(&SqlType::Int8))?,
                    ),
                    (Datum::Float8(a), Datum::Float8(b)) => Datum::Float8(a + b),
                    (Datum::Numeric(a), Datum::Numeric(b)) => Datum::numeric(a.add(b)),
                    _ => return Err(fault::kind("numbers")),
                };
            }
        }
        Ok(())
    }

    pub fn finish(self, aggregate: &Aggregate) -> Result<Datum> {
        Ok(match (aggregate.kind, self.value) {
            (AggregateKind::CountRows | AggregateKind::Count, _) => Datum::Int8(self.count),
            (AggregateKind::Avg, Datum::Numeric(sum)) => {
                Datum::numeric(sum.div(&Numeric::from(self.count)).unwrap_or(Numeric::NaN))
            }
            (AggregateKind::Avg, Datum::Float8(sum)) => Datum::Float8(sum / self.count as f64),
            (_, value) => value,
        })
    }
}

/// The order along which the first row has the result, when the only aggregate is the least or
/// greatest value of a column.
pub(super) fn extremum(aggregates: &[Aggregate], grouped: bool) -> Option<Order> {
    let [only] = aggregates else { return None };
    let descending = match only.kind {
        AggregateKind::Min => false,
        AggregateKind::Max => true,
        _ => return None,
    };
    let Some(Expr { node: Node::Column(at), .. }) = &only.arg else { return None };
    (!grouped).then(|| vec![(*at, descending)])
}
