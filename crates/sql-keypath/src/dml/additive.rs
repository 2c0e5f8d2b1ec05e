//! Which UPDATEs only add to one row: `SET n = n + $1 WHERE key = $2`.
//!
//! # Invariants
//! - What is found here gives the same row as the UPDATE it is found in, whatever the row is by
//!   then, or is refused when it is carried out ([`telesto_sql_catalog::codec::addition`]).
//!   Everything else is an UPDATE as any other.
//! - Nothing but the columns themselves depends on them: no index, key, foreign key, generated
//!   column or domain.
//! - CHECK constraints that name them are bounds by constants: `n >= 0`, `n BETWEEN 0 AND 100`.
//!   Those that do not name them hold for the row as it is, since they were validated.

use super::{Access, CompiledTable, Given, Target};
use crate::access::Part;
use telesto_sql_catalog::codec::addition::Limit;
use telesto_sql_expr::{Comparison, EvalContext, Expr, Node, Volatility};
use telesto_sql_types::{Datum, Numeric, SqlType};

/// What is added to one column.
#[derive(Debug)]
pub(crate) struct Adding {
    pub column: usize,
    /// Computed without the row.
    pub value: Expr,
    /// `n - value`.
    pub negative: bool,
    /// The scale that `numeric(p, s)` rounds to: a value with more digits behind the point is no
    /// addition.
    pub scale: Option<u32>,
    pub low: Vec<Limit>,
    pub high: Vec<Limit>,
}

/// The additions of an UPDATE that does nothing else to one row, found by its primary key. Sorted
/// by column.
pub(super) fn additive(
    info: &CompiledTable,
    target: &Target,
    set: &[(usize, Given)],
    context: &EvalContext<'_>,
) -> Option<Vec<Adding>> {
    let Target::Path(access, None) = target else { return None };
    if !finds_one(access)
        || info.table.primary.is_none()
        // The owner of the log adds to bytes that it must be able to read.
        || info.table.key.is_some()
        || !info.generated.is_empty()
        || set.is_empty()
        || info.table.checks.iter().any(|check| !check.validated)
    {
        return None;
    }
    let changes = |column: usize| set.iter().any(|(at, _)| *at == column);
    if info.unique.iter().chain(&info.plain).any(|index| info.forms.depends(index, &changes))
        || info.domains.iter().any(|(at, _)| changes(*at))
        // Columns that others reference are those of a key, which is an index.
        || info.table.foreign_keys.iter().any(|key| key.columns.iter().any(|at| changes(*at)))
    {
        return None;
    }
    let mut all = Vec::with_capacity(set.len());
    for (column, given) in set {
        let Given::Expr(expr) = given else { return None };
        all.push(adding(info, *column, expr)?);
    }
    for (_, check) in &info.checks {
        let mut used = vec![false; info.table.columns.len()];
        check.mark_columns(&mut used);
        if used.iter().enumerate().any(|(at, used)| *used && changes(at)) {
            bounds(check, &mut all, context)?;
        }
    }
    all.sort_by_key(|adding| adding.column);
    Some(all)
}

/// Whether the path is one look-up by the whole primary key.
fn finds_one(access: &Access) -> bool {
    access.index == 0
        && access.unique
        && access.parts.iter().all(|part| matches!(part, Part::Eq(_)))
}

fn is_whole(ty: &SqlType) -> bool {
    matches!(ty, SqlType::Int2 | SqlType::Int4 | SqlType::Int8)
}

/// Whether a cast from one of these types to the other leaves every value as it is.
fn keeps_values(from: &SqlType, to: &SqlType) -> bool {
    match (from, to) {
        (SqlType::Int2, SqlType::Int2 | SqlType::Int4 | SqlType::Int8)
        | (SqlType::Int4, SqlType::Int4 | SqlType::Int8)
        | (SqlType::Int8, SqlType::Int8) => true,
        (SqlType::Int2 | SqlType::Int4 | SqlType::Int8, SqlType::Numeric(None))
        | (SqlType::Numeric(_), SqlType::Numeric(None)) => true,
        (SqlType::Numeric(one), SqlType::Numeric(other)) => one == other,
        _ => false,
    }
}

/// `expr` without casts that leave every value as it is. A cast that rounds or refuses does so with
/// the row as it is by then.
fn bare(expr: &Expr) -> &Expr {
    match &expr.node {
        Node::Cast(inner, _) if keeps_values(&inner.ty, &expr.ty) => bare(inner),
        _ => expr,
    }
}

/// What is assigned to a column of type `ty`, before the cast that the assignment makes: an
/// addition keeps to the column's bounds, and to its scale.
fn assigned<'a>(expr: &'a Expr, ty: &SqlType) -> &'a Expr {
    let numeric = |ty: &SqlType| matches!(ty, SqlType::Numeric(_));
    match &expr.node {
        Node::Cast(inner, _)
            if expr.ty == *ty
                && (is_whole(&inner.ty) && is_whole(ty) || numeric(&inner.ty) && numeric(ty)) =>
        {
            bare(inner)
        }
        _ => bare(expr),
    }
}

/// `column + value`, `value + column` or `column - value`, for that column.
fn adding(info: &CompiledTable, column: usize, expr: &Expr) -> Option<Adding> {
    let ty = &info.table.columns.get(column)?.ty;
    let numeric = matches!(ty, SqlType::Numeric(_));
    if !numeric && !is_whole(ty) {
        return None;
    }
    let Node::Call(function, arguments, _) = &assigned(expr, ty).node else { return None };
    let [left, right] = arguments.as_slice() else { return None };
    let is_column = |side: &Expr| matches!(bare(side).node, Node::Column(at) if at == column);
    let (value, negative) = match function.name {
        "+" if is_column(left) => (right, false),
        "+" if is_column(right) => (left, false),
        "-" if is_column(left) => (right, true),
        _ => return None,
    };
    let fits = is_whole(&value.ty) || numeric && matches!(value.ty, SqlType::Numeric(_));
    // It may be computed twice: once here, and once more where the row turns out to need an
    // ordinary write.
    if !fits || value.uses_columns() || value.volatility() == Volatility::Volatile {
        return None;
    }
    let mut adding = Adding {
        column,
        value: value.clone(),
        negative,
        scale: None,
        low: Vec::new(),
        high: Vec::new(),
    };
    if let SqlType::Numeric(Some(modifier)) = ty {
        let scale = u32::try_from(modifier.scale).ok()?;
        let digits = "9".repeat(usize::from(modifier.precision));
        let most = Numeric::parse(&digits)?;
        let Numeric::Finite { unscaled, .. } = most else { return None };
        let most = Numeric::new(unscaled, scale);
        adding.scale = Some(scale);
        adding.low.push(Limit { value: most.neg(), inclusive: true });
        adding.high.push(Limit { value: most, inclusive: true });
    }
    Some(adding)
}

/// Adds the bounds that a CHECK constraint sets; `None`: it says something else.
fn bounds(check: &Expr, all: &mut [Adding], context: &EvalContext<'_>) -> Option<()> {
    match &check.node {
        Node::And(parts) => parts.iter().try_for_each(|part| bounds(part, all, context)),
        Node::Compare(comparison, left, right) => {
            let (comparison, column, limit) = match (column_of(left), column_of(right)) {
                (Some(column), None) => (*comparison, column, right),
                (None, Some(column)) => (comparison.flipped(), column, left),
                _ => return None,
            };
            if !is_constant(limit) {
                return None;
            }
            let value = number(&limit.eval(&[], context).ok()?)?;
            let adding = all.iter_mut().find(|adding| adding.column == column)?;
            let inclusive = matches!(comparison, Comparison::GtEq | Comparison::LtEq);
            match comparison {
                Comparison::Gt | Comparison::GtEq => adding.low.push(Limit { value, inclusive }),
                Comparison::Lt | Comparison::LtEq => adding.high.push(Limit { value, inclusive }),
                Comparison::Eq | Comparison::NotEq => return None,
            }
            Some(())
        }
        _ => None,
    }
}

/// Whether it is made of constants and what computes the same from them always.
fn is_constant(expr: &Expr) -> bool {
    let mut constant = true;
    expr.walk(&mut |e| {
        constant &= match &e.node {
            Node::Const(_) => true,
            Node::Cast(..) => is_whole(&e.ty) || matches!(e.ty, SqlType::Numeric(_)),
            Node::Call(function, ..) => function.volatility == Volatility::Immutable,
            _ => false,
        };
    });
    constant
}

/// The column that is compared, as it is or widened.
fn column_of(expr: &Expr) -> Option<usize> {
    match bare(expr).node {
        Node::Column(at) => Some(at),
        _ => None,
    }
}

/// A number as it is, if it is one.
pub(crate) fn number(value: &Datum) -> Option<Numeric> {
    match value {
        Datum::Int2(v) => Some(Numeric::new(*v, 0)),
        Datum::Int4(v) => Some(Numeric::new(*v, 0)),
        Datum::Int8(v) => Some(Numeric::new(*v, 0)),
        Datum::Numeric(v) if v.is_finite() => Some((**v).clone()),
        _ => None,
    }
}
