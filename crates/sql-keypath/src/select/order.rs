//! ORDER BY, LIMIT and OFFSET of the key path.
//!
//! # Invariants
//! A number or a name of the select list in ORDER BY means that item, before a column of a table.

use super::*;

/// Whether an item is a constant in parentheses or with a sign, which is no order.
pub(super) fn is_constant(item: &ast::Expr) -> bool {
    match item {
        ast::Expr::Nested(inner) => is_constant(inner),
        ast::Expr::UnaryOp { expr, .. } => {
            matches!(&**expr, ast::Expr::Value(v) if matches!(v.value, ast::Value::Number(..)))
        }
        ast::Expr::Value(v) => !matches!(v.value, ast::Value::Placeholder(_)),
        _ => false,
    }
}

pub(super) fn sort_keys(
    query: &Query,
    scope: &Scope,
    context: &mut PlanContext<'_>,
    eval: &EvalContext<'_>,
    (columns, output): (&[ResultColumn], &[Expr]),
    mut aggregates: Option<&mut Aggregates>,
) -> Result<Vec<SortKey>> {
    let Some(order) = &query.order_by else { return Ok(Vec::new()) };
    let OrderByKind::Expressions(items) = &order.kind else { return Err(decline("ORDER BY ALL")) };
    items
        .iter()
        .map(|item| {
            let descending = item.options.asc == Some(false);
            let alias = match &item.expr {
                // A number or an alias means an output column, before a column of the table.
                ast::Expr::Value(v) => match &v.value {
                    ast::Value::Number(n, _) if n.parse::<i32>().is_ok() => {
                        let at = n
                            .parse::<usize>()
                            .ok()
                            .and_then(|n| n.checked_sub(1))
                            .filter(|at| *at < output.len());
                        Some(at.ok_or_else(|| {
                            Error::new(
                                SqlState::INVALID_COLUMN_REFERENCE,
                                format!("ORDER BY position {n} is not in select list"),
                            )
                        })?)
                    }
                    _ => return Err(decline("a constant in ORDER BY")),
                },
                other if is_constant(other) => return Err(decline("a constant in ORDER BY")),
                ast::Expr::Identifier(i) => {
                    let name = fold(i);
                    let mut named = (0..output.len()).filter(|at| columns[*at].name == name);
                    match (named.next(), named.next()) {
                        (Some(_), Some(_)) => return Err(decline("a name twice in ORDER BY")),
                        (found, _) => found,
                    }
                }
                _ => None,
            };
            let expr = match alias {
                Some(at) => output[at].clone(),
                None => {
                    let mut binder = Binder::new(scope, context.parameters, eval, "ORDER BY");
                    if let Some(aggregates) = &mut aggregates {
                        binder.hook = Some(&mut **aggregates);
                    }
                    binder.bind_known(&item.expr)?
                }
            };
            Ok(SortKey {
                expr,
                descending,
                nulls_first: item.options.nulls_first.unwrap_or(descending),
            })
        })
        .collect()
}

/// Leaves to the other executor what draws values (nextval, random) beside a sort. Rows are given
/// in the order of what was drawn for them, once, or else it is drawn behind the sort and for the
/// rows that LIMIT gives alone; here all output is computed before the sort. What has effects or
/// waits is no order here either: nothing waits where rows are sorted.
pub(super) fn behind_no_sort(
    output: &[Expr],
    sort: &[SortKey],
    locks: Option<RowLock>,
) -> Result<()> {
    if sort.iter().any(|key| does_more_than_draw(&key.expr)) {
        return Err(decline("an order that has effects"));
    }
    let volatile = |e: &Expr| e.volatility() == Volatility::Volatile;
    match !sort.is_empty() && locks.is_none() && output.iter().any(volatile) {
        true => Err(decline("a volatile column beside a sort")),
        false => Ok(()),
    }
}

/// The order as table columns, when it is only of those with the usual place of NULLs.
pub(super) fn order_columns(sort: &[SortKey], forms: &IndexExpressions) -> Option<Order> {
    if sort.is_empty() {
        return None;
    }
    sort.iter()
        .map(|key| {
            if key.nulls_first != key.descending {
                return None;
            }
            match key.expr.node {
                Node::Column(at) => Some((at, key.descending)),
                // Behind the table's columns: an expression some index holds.
                _ => forms.place_of(&key.expr).map(|(at, _)| (at, key.descending)),
            }
        })
        .collect()
}

pub(super) fn limits(
    query: &Query,
    context: &mut PlanContext<'_>,
    eval: &EvalContext<'_>,
) -> Result<(Option<Expr>, Option<Expr>)> {
    let empty = Scope::default();
    let mut bind = |expr: &ast::Expr, clause: &'static str| {
        let mut binder = Binder::new(&empty, context.parameters, eval, clause);
        let bound = binder.bind(expr)?;
        binder.coerce(bound, &SqlType::Int8, telesto_sql_expr::CastContext::Assignment)
    };
    let (mut limit, offset) = match &query.limit_clause {
        None => (None, None),
        Some(LimitClause::LimitOffset { limit, offset, limit_by }) if limit_by.is_empty() => (
            limit.as_ref().map(|e| bind(e, "LIMIT")).transpose()?,
            offset.as_ref().map(|o| bind(&o.value, "OFFSET")).transpose()?,
        ),
        Some(_) => return Err(decline("this form of LIMIT")),
    };
    if let Some(fetch) = &query.fetch {
        if limit.is_some() || fetch.with_ties || fetch.percent {
            return Err(decline("this form of FETCH"));
        }
        limit = Some(match &fetch.quantity {
            Some(quantity) => bind(quantity, "LIMIT")?,
            None => Expr::constant(Datum::Int8(1), SqlType::Int8),
        });
    }
    // NULL is no bound.
    let told = |bound: &Expr| !matches!(bound.node, Node::Const(Datum::Null));
    Ok((limit.filter(told), offset.filter(told)))
}

/// The value of LIMIT or OFFSET; NULL is no bound.
pub(super) fn bound_value(
    expr: &Option<Expr>,
    context: &EvalContext<'_>,
    what: &str,
) -> Result<Option<u64>> {
    let Some(expr) = expr else { return Ok(None) };
    match expr.eval(&[], context)? {
        Datum::Null => Ok(None),
        value => u64::try_from(value.as_i64().unwrap_or(0)).map(Some).map_err(|_| {
            let code = if what == "LIMIT" {
                SqlState::INVALID_ROW_COUNT_IN_LIMIT
            } else {
                SqlState::INVALID_ROW_COUNT_IN_OFFSET
            };
            Error::new(code, format!("{what} must not be negative"))
        }),
    }
}
