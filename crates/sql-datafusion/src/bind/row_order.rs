//! The order of rows where it is part of an answer: of a subquery's rows for the aggregates above
//! it, and FETCH … WITH TIES.
//!
//! `SELECT json_agg(t) FROM (SELECT … ORDER BY …) t`: SQL promises nothing here, PostgreSQL keeps
//! the order, and applications live by it. DataFusion drops a sort nobody asks for. Here what the
//! subquery sorts by becomes columns of it, and the aggregates whose result depends on the order
//! take them as their ORDER BY.
//!
//! # Invariants
//! What an aggregate writes itself (ORDER BY, DISTINCT) goes before; the subquery's own columns
//! stay as they are.
//!
//! # Limits
//! One item in FROM: over a join PostgreSQL's order depends on its plan.

use std::ops::ControlFlow;

use datafusion::common::Column;
use datafusion::functions_window as fw;
use datafusion::logical_expr::{
    Expr, ExprFunctionExt, LogicalPlan, LogicalPlanBuilder, SortExpr, lit,
};
use datafusion::sql::sqlparser::ast;

use super::Binder;
use super::scope::{Relation, Scope, fold};
use super::select::{all_columns, project};
use crate::fault;
use crate::types::TypeShape;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

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

/// Whether a query is `FETCH … WITH TIES`.
///
/// # Errors
/// 42601 where it cannot be.
pub(super) fn asks_for_ties(query: &ast::Query) -> Result<bool> {
    if !query.fetch.as_ref().is_some_and(|fetch| fetch.with_ties) {
        return Ok(false);
    }
    if query.locks.iter().any(|lock| lock.nonblock == Some(ast::NonBlock::SkipLocked)) {
        let message = "SKIP LOCKED and WITH TIES options cannot be used together";
        return Err(fault::syntax(message));
    }
    if query.order_by.is_none() {
        return Err(fault::syntax("WITH TIES cannot be specified without ORDER BY clause"));
    }
    Ok(true)
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

    /// The plan below a SELECT with what its rows are sorted by, as far as the SELECT's aggregates
    /// show it.
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

    /// A query's rows within its LIMIT, OFFSET and FETCH.
    pub(super) fn bounded(
        &self,
        mut relation: Relation,
        query: &ast::Query,
        order: &[ast::OrderByExpr],
        outer: Option<&Scope<'_>>,
    ) -> Result<Relation> {
        let (mut limit, mut offset) = self.limits(query, outer)?;
        if asks_for_ties(query)?
            && let Some(rows) = limit.take()
        {
            relation = self.with_ties(relation, rows, offset.take().unwrap_or(0))?;
        }
        if limit.is_none()
            && !order.is_empty()
            && let Some(rows) = offset.take_if(|rows| *rows > 0)
        {
            relation = self.behind(relation, rows)?;
        }
        if limit.is_some() || offset.is_some() {
            relation.plan = LogicalPlanBuilder::from(relation.plan)
                .limit_by_expr(offset.map(lit), limit.map(lit))
                .and_then(LogicalPlanBuilder::build)
                .map_err(fault::from_datafusion)?;
        }
        Ok(relation)
    }

    /// `FETCH FIRST limit ROWS WITH TIES` after `offset`: also the rows that sort like the last
    /// one.
    ///
    /// # Errors
    /// 42601 for rows without an order.
    pub(super) fn with_ties(
        &self,
        relation: Relation,
        limit: i64,
        offset: i64,
    ) -> Result<Relation> {
        let Some((plan, keys)) = self.exposed(&relation.plan)? else {
            return Err(fault::syntax("WITH TIES cannot be specified without ORDER BY clause"));
        };
        let over = |function: Expr, name: &str| {
            let ordered = function.order_by(keys.clone()).build();
            ordered.map(|window| window.alias(name)).map_err(fault::from_datafusion)
        };
        let (rank, number) = (self.unique("rank#"), self.unique("number#"));
        let windows =
            vec![over(fw::rank::rank(), &rank)?, over(fw::row_number::row_number(), &number)?];
        let column = |name: &String| Expr::Column(Column::new_unqualified(name.clone()));
        // A row's rank is one more than the number of rows before it and its equals. Without a
        // limit of at least one row there is no last row to be like.
        let last = if limit == 0 { 0 } else { offset.saturating_add(limit) };
        let wanted = column(&number)
            .gt(lit(offset.unsigned_abs()))
            .and(column(&rank).lt_eq(lit(last.unsigned_abs())));
        let keep = relation.columns.iter().map(|c| Expr::Column(c.column.clone()));
        let plan = LogicalPlanBuilder::from(plan)
            .window(windows)
            .and_then(|plan| plan.filter(wanted))
            .and_then(|plan| plan.sort([column(&number).sort(true, false)]))
            .and_then(|plan| plan.project(keep))
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        Ok(Relation { plan, columns: relation.columns })
    }

    /// `ORDER BY … OFFSET offset` without a limit: the rows behind, by their number. DataFusion
    /// moves a sort that stands above a limit without a number of rows below it, and other rows
    /// would come back.
    pub(super) fn behind(&self, relation: Relation, offset: i64) -> Result<Relation> {
        let Some((plan, keys)) = self.exposed(&relation.plan)? else {
            return Err(fault::unsupported("OFFSET over this order"));
        };
        let number = self.unique("number#");
        let window = fw::row_number::row_number().order_by(keys).build();
        let window = window.map_err(fault::from_datafusion)?.alias(&number);
        let number = Expr::Column(Column::new_unqualified(number));
        let keep = relation.columns.iter().map(|c| Expr::Column(c.column.clone()));
        let plan = LogicalPlanBuilder::from(plan)
            .window(vec![window])
            .and_then(|plan| plan.filter(number.clone().gt(lit(offset.unsigned_abs()))))
            .and_then(|plan| plan.sort([number.sort(true, false)]))
            .and_then(|plan| plan.project(keep))
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        Ok(Relation { plan, columns: relation.columns })
    }

    /// `plan` with its sort keys as further columns, if it is sorted.
    fn exposed(&self, plan: &LogicalPlan) -> Result<Option<(LogicalPlan, Vec<SortExpr>)>> {
        let above = |plan: LogicalPlanBuilder| plan.build().map_err(fault::from_datafusion);
        Ok(match plan {
            LogicalPlan::Sort(sort) => {
                let mut exprs = all_columns(&sort.input);
                let mut keys = Vec::new();
                for key in &sort.expr {
                    let name = self.unique("order#");
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
            LogicalPlan::Filter(filter) => match self.exposed(&filter.input)? {
                None => None,
                Some((input, keys)) => {
                    let kept = LogicalPlanBuilder::from(input)
                        .filter(filter.predicate.clone())
                        .map_err(fault::from_datafusion)?;
                    Some((above(kept)?, keys))
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
