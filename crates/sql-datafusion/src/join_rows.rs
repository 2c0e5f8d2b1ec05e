//! How many rows plans give before they are executed, by the statistics of the tables they read.
//!
//! # Invariants
//! Numbers for choosing: no answer hangs on them.
//!
//! # Limits
//! Conditions count as independent. `None` where a stored table has not been analyzed.

use std::sync::Arc;

use datafusion::catalog::default_table_source::source_as_provider;
use datafusion::common::{Column, JoinType};
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};

use super::stored::StoredTable;
use super::{once, sort_key};

/// Rows of what nothing is known of.
pub(super) const UNKNOWN_ROWS: f64 = 1000.0;

/// The column that an expression is, or is the sort key of.
pub(super) fn column_of(expr: &Expr) -> Option<&Column> {
    match expr {
        Expr::Column(column) => Some(column),
        Expr::Cast(cast) => column_of(&cast.expr),
        Expr::Alias(alias) => column_of(&alias.expr),
        other => sort_key::of_sort_key(other).and_then(column_of),
    }
}

/// The stored table that a plan reads and nothing else.
pub(super) fn stored(plan: &LogicalPlan) -> Option<Arc<dyn datafusion::catalog::TableProvider>> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => stored(&alias.input),
        LogicalPlan::TableScan(scan) => source_as_provider(&scan.source)
            .ok()
            .filter(|provider| provider.downcast_ref::<StoredTable>().is_some()),
        _ => None,
    }
}

/// Rows that a plan gives; `None`: a stored table in it has not been analyzed.
pub(super) fn rows_of(plan: &LogicalPlan) -> Option<f64> {
    if let Some(provider) = stored(plan) {
        return provider.downcast_ref::<StoredTable>()?.known_rows();
    }
    Some(match plan {
        LogicalPlan::SubqueryAlias(alias) => rows_of(&alias.input)?,
        LogicalPlan::Projection(projection) => rows_of(&projection.input)?,
        LogicalPlan::Sort(sort) => rows_of(&sort.input)?,
        LogicalPlan::Window(window) => rows_of(&window.input)?,
        LogicalPlan::Filter(filter) => {
            (rows_of(&filter.input)? * of_one(&filter.input, &filter.predicate)).max(1.0)
        }
        LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => 1.0,
        LogicalPlan::Aggregate(aggregate) => {
            let rows = rows_of(&aggregate.input)?;
            let each = aggregate.group_expr.iter().map(|expr| {
                let known = column_of(expr).and_then(|column| distinct(&aggregate.input, column));
                known.unwrap_or(rows / 10.0).max(1.0)
            });
            each.product::<f64>().min(rows).max(1.0)
        }
        LogicalPlan::Distinct(_) => {
            let mut inputs = plan.inputs().into_iter();
            (rows_of(inputs.next()?)? / 10.0).max(1.0)
        }
        LogicalPlan::Join(join) => {
            let (left, right) = (rows_of(&join.left)?, rows_of(&join.right)?);
            match join.join_type {
                JoinType::LeftSemi | JoinType::LeftAnti => left / 2.0,
                _ => left.max(right),
            }
        }
        LogicalPlan::Union(union) => {
            let mut rows = 0.0;
            for input in &union.inputs {
                rows += rows_of(input)?;
            }
            rows
        }
        LogicalPlan::EmptyRelation(_) => 1.0,
        LogicalPlan::Values(values) => values.values.len() as f64,
        _ if once::input(plan).is_some() => rows_of(once::input(plan)?)?,
        _ => {
            for input in plan.inputs() {
                rows_of(input)?;
            }
            UNKNOWN_ROWS
        }
    })
}

/// Distinct values of a column of a plan, as far as they are known.
pub(super) fn distinct(plan: &LogicalPlan, column: &Column) -> Option<f64> {
    if let Some(provider) = stored(plan) {
        return provider.downcast_ref::<StoredTable>()?.known_distinct(&column.name);
    }
    match plan {
        LogicalPlan::SubqueryAlias(alias) => {
            let at = plan.schema().maybe_index_of_column(column)?;
            let (relation, field) = alias.input.schema().qualified_field(at);
            distinct(&alias.input, &Column::new(relation.cloned(), field.name()))
        }
        LogicalPlan::Projection(projection) => {
            let at = plan.schema().maybe_index_of_column(column)?;
            distinct(&projection.input, column_of(projection.expr.get(at)?)?)
        }
        LogicalPlan::Filter(filter) => distinct(&filter.input, column),
        LogicalPlan::Sort(sort) => distinct(&sort.input, column),
        _ => None,
    }
}

/// The part of a plan's rows that a condition on it alone leaves.
pub(super) fn of_one(plan: &LogicalPlan, condition: &Expr) -> f64 {
    let own = |condition: &Expr| of_one(plan, condition);
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => own(left) * own(right),
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
            let (left, right) = (own(left), own(right));
            left + right - left * right
        }
        Expr::Not(inner) => 1.0 - own(inner),
        other => {
            let provider = stored(plan);
            let known = provider.as_ref().and_then(|provider| {
                provider.downcast_ref::<StoredTable>()?.known_selectivity(other)
            });
            known.unwrap_or_else(|| guess(other))
        }
    }
}

/// What is taken for the part that a condition leaves of which nothing is known.
fn guess(condition: &Expr) -> f64 {
    match condition {
        Expr::BinaryExpr(BinaryExpr { op: Operator::Eq, .. }) => 0.005,
        Expr::BinaryExpr(BinaryExpr { op: Operator::NotEq, .. }) => 0.995,
        Expr::BinaryExpr(_) => 1.0 / 3.0,
        Expr::InList(list) if list.negated => 0.9,
        Expr::InList(list) => (0.005 * list.list.len() as f64).min(0.5),
        Expr::IsNull(_) => 0.005,
        Expr::IsNotNull(_) => 0.995,
        Expr::Exists(_) | Expr::InSubquery(_) => 0.5,
        Expr::ScalarFunction(call) if call.name().contains("~~") => 0.05,
        _ => 0.5,
    }
}
