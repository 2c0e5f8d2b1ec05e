//! The order of a subquery's rows, kept for the aggregates above it.
//!
//! `SELECT json_agg(t) FROM (SELECT … ORDER BY …) t`: SQL promises nothing here, PostgreSQL keeps the order, and applications
//! live by it. DataFusion drops a sort nobody asks for. Here what the subquery sorts by becomes columns of it, and the
//! aggregates whose result depends on the order take them as their ORDER BY.
//!
//! # Invariants
//! What an aggregate writes itself (ORDER BY, DISTINCT) goes before; the subquery's own columns stay as they are.
//!
//! # Limits
//! One item in FROM: over a join PostgreSQL's order depends on its plan.

use std::ops::ControlFlow;

use datafusion::common::Column;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, SortExpr};
use datafusion::sql::sqlparser::ast;

use super::Binder;
use super::scope::{Scope, fold};
use super::select::{all_columns, project};
use crate::engine_df::fault;
use crate::engine_df::types::TypeShape;
use crate::error::Result;
use crate::types::SqlType;

/// The aggregates whose result shows the order of their rows.
const ORDERED: &[&str] =
    &["array_agg", "json_agg", "json_object_agg", "jsonb_agg", "jsonb_object_agg", "string_agg"];

/// Whether an aggregate's result shows the order of its rows.
pub(super) fn shows_order(name: &str) -> bool {
    ORDERED.contains(&name)
}

/// Whether a SELECT has such an aggregate over one subquery, view or name of WITH.
fn concerned(select: &ast::Select) -> bool {
    let [ast::TableWithJoins { relation, joins }] = select.from.as_slice() else { return false };
    let one = joins.is_empty()
        && matches!(
            relation,
            ast::TableFactor::Derived { .. } | ast::TableFactor::Table { args: None, .. }
        );
    one && ast::visit_expressions(&select.projection, |expr| match expr {
        ast::Expr::Function(call)
            if call
                .name
                .0
                .last()
                .and_then(|part| part.as_ident())
                .map(fold)
                .is_some_and(|name| shows_order(&name)) =>
        {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    })
    .is_break()
}

impl Binder<'_> {
    /// The ORDER BY of an aggregate call.
    pub(super) fn sorts(
        &self,
        items: &[ast::OrderByExpr],
        scope: &Scope<'_>,
    ) -> Result<Vec<SortExpr>> {
        items
            .iter()
            .map(|item| {
                let typed = self.expr(&item.expr, scope)?;
                let ty = if typed.ty.is_unknown() { SqlType::Text } else { typed.ty.clone() };
                let typed = self.coerce(typed, &ty, "ORDER BY")?;
                self.sort_key(typed.expr, &ty, &item.options)
            })
            .collect()
    }

    /// The plan below a SELECT with what its rows are sorted by, as far as the SELECT's aggregates show it.
    pub(super) fn with_order(
        &self,
        select: &ast::Select,
        plan: LogicalPlan,
    ) -> Result<(LogicalPlan, Vec<SortExpr>)> {
        if !concerned(select) {
            return Ok((plan, Vec::new()));
        }
        match self.exposed(&plan)? {
            Some(exposed) => Ok(exposed),
            None => Ok((plan, Vec::new())),
        }
    }

    /// `plan` with its sort keys as further columns, if it is sorted.
    fn exposed(&self, plan: &LogicalPlan) -> Result<Option<(LogicalPlan, Vec<SortExpr>)>> {
        let above = |plan: LogicalPlanBuilder| plan.build().map_err(fault::from_datafusion);
        Ok(match plan {
            LogicalPlan::Sort(sort) => {
                let mut exprs = all_columns(&sort.input);
                let mut keys = Vec::new();
                for key in &sort.expr {
                    let name = self.unique("order");
                    exprs.push(key.expr.clone().alias(&name));
                    let column = Expr::Column(Column::new_unqualified(name));
                    keys.push(SortExpr { expr: column, ..key.clone() });
                }
                let rows = project(sort.input.as_ref().clone(), exprs)?;
                let sorted = LogicalPlanBuilder::from(rows)
                    .sort_with_limit(keys.clone(), sort.fetch)
                    .map_err(fault::from_datafusion)?;
                Some((above(sorted)?, keys))
            }
            LogicalPlan::Limit(limit) => match self.exposed(&limit.input)? {
                None => None,
                Some((input, keys)) => {
                    let skip = limit.skip.as_deref().cloned();
                    let limited = LogicalPlanBuilder::from(input)
                        .limit_by_expr(skip, limit.fetch.as_deref().cloned())
                        .map_err(fault::from_datafusion)?;
                    Some((above(limited)?, keys))
                }
            },
            LogicalPlan::Projection(projection) => match self.exposed(&projection.input)? {
                None => None,
                Some((input, keys)) => {
                    let mut exprs = projection.expr.clone();
                    exprs.extend(keys.iter().map(|key| key.expr.clone()));
                    Some((project(input, exprs)?, keys))
                }
            },
            LogicalPlan::SubqueryAlias(alias) => match self.exposed(&alias.input)? {
                None => None,
                Some((input, keys)) => {
                    let renamed = LogicalPlanBuilder::from(input)
                        .alias(alias.alias.clone())
                        .map_err(fault::from_datafusion)?;
                    let keys = keys.into_iter().map(|key| SortExpr {
                        expr: match key.expr {
                            Expr::Column(column) => {
                                Expr::Column(Column::new(Some(alias.alias.clone()), column.name))
                            }
                            other => other,
                        },
                        ..key
                    });
                    let keys = keys.collect();
                    Some((above(renamed)?, keys))
                }
            },
            _ => None,
        })
    }
}
