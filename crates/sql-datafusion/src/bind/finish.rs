//! The end of a SELECT: its outputs, DISTINCT, DISTINCT ON and ORDER BY.
//!
//! # Invariants
//! Where an output waits, what is volatile is computed behind the sort, as in PostgreSQL: a
//! sequence numbers the rows in the order in which they come out, and only those that LIMIT lets
//! through. What the order names, and what DISTINCT compares, is computed before.
//!
//! # On failure
//! 42P10 for an order that DISTINCT does not allow.

use std::collections::BTreeSet;

use datafusion::common::Column;
use datafusion::logical_expr::{
    Expr, ExprFunctionExt, LogicalPlan, LogicalPlanBuilder, SortExpr, lit,
};
use datafusion::sql::sqlparser::ast;

use super::Binder;
use super::scope::{Relation, ScopeColumn};
use super::select::{Order, Output, collect, project, substitute};
use crate::{fault, waiting};
use telesto_sql_types::error::Result;

/// What is computed below the sort, and what above.
struct Parts {
    /// Below, under names of the plan: the outputs but those of `later`, then what is hidden.
    below: Vec<Expr>,
    columns: Vec<ScopeColumn>,
    /// Outputs that are computed above, by position.
    later: Vec<(usize, Expr)>,
    /// Whether there is something hidden.
    hidden: bool,
}

impl Binder<'_> {
    pub(super) fn finish(
        &self,
        plan: LogicalPlan,
        select: &ast::Select,
        outputs: Vec<Output>,
        orders: Vec<Order>,
        on: Vec<Expr>,
    ) -> Result<Relation> {
        let mut parts = self.named(select, outputs, &orders)?;
        let distinct = matches!(select.distinct, Some(ast::Distinct::Distinct));
        let sorts = self.sort_keys_of(orders, distinct, &mut parts)?;
        let mut partition = Vec::new();
        for expr in on {
            let name = self.unique("on#");
            parts.below.push(expr.alias(&name));
            partition.push(Expr::Column(Column::new_unqualified(name)));
            parts.hidden = true;
        }
        let Parts { below, columns, later, mut hidden } = parts;
        let mut builder = LogicalPlanBuilder::from(project(plan, below)?);
        if distinct {
            let rows = builder.build().map_err(fault::from_datafusion)?;
            builder = LogicalPlanBuilder::from(self.distinct(rows, &columns)?);
        }
        if !partition.is_empty() {
            // DISTINCT ON: the first row of each partition in the order asked for.
            let number =
                datafusion::functions_window::expr_fn::row_number().partition_by(partition);
            // An empty order would be a frame over no values.
            let number = match sorts.is_empty() {
                true => number.build(),
                false => number.order_by(sorts.clone()).build(),
            };
            let number = number.map_err(fault::from_datafusion)?;
            let first = number.schema_name().to_string();
            hidden = true;
            builder = builder
                .window(vec![number])
                .and_then(|plan| {
                    let first = Expr::Column(Column::new_unqualified(first));
                    plan.filter(first.eq(lit(1_u64)))
                })
                .map_err(fault::from_datafusion)?;
        }
        if !sorts.is_empty() {
            builder = builder.sort(sorts).map_err(fault::from_datafusion)?;
        }
        let mut plan = builder.build().map_err(fault::from_datafusion)?;
        if hidden || !later.is_empty() {
            let mut keep: Vec<_> = columns.iter().map(|c| Expr::Column(c.column.clone())).collect();
            for (at, expr) in later {
                keep[at] = expr.alias(&columns[at].column.name);
            }
            plan = project(plan, keep)?;
        }
        Ok(Relation { plan, columns })
    }

    /// The outputs under names of their own.
    fn named(&self, select: &ast::Select, outputs: Vec<Output>, orders: &[Order]) -> Result<Parts> {
        let postponed = postponed(select, &outputs, orders);
        let mut parts =
            Parts { below: Vec::new(), columns: Vec::new(), later: Vec::new(), hidden: false };
        let mut taken = BTreeSet::new();
        for (at, output) in outputs.into_iter().enumerate() {
            let mut plan_name = output.name.clone();
            let mut copy = 1;
            while !taken.insert(plan_name.clone()) {
                copy += 1;
                plan_name = format!("{}_{copy}", output.name);
            }
            if postponed.contains(&at) {
                parts.later.push((at, output.expr));
            } else {
                parts.below.push(output.expr.alias(plan_name.clone()));
            }
            parts.columns.push(ScopeColumn {
                table: None,
                name: output.name,
                ty: output.ty,
                column: Column::new_unqualified(plan_name),
                merged: false,
                scalar: false,
                parameter: output.parameter,
                origin: output.origin,
            });
        }
        // The columns that those above use.
        let mut used: Vec<Expr> = Vec::new();
        for (_, expr) in &parts.later {
            collect(expr, &mut used, |part| matches!(part, Expr::Column(_)));
        }
        let mut replace = Vec::with_capacity(used.len());
        for column in used {
            let name = self.unique("later#");
            parts.below.push(column.clone().alias(&name));
            replace.push((column, Expr::Column(Column::new_unqualified(name))));
        }
        for (_, expr) in &mut parts.later {
            *expr = substitute(std::mem::take(expr), &replace)?;
        }
        Ok(parts)
    }

    /// What is sorted by; what is no output is computed beside them.
    fn sort_keys_of(
        &self,
        orders: Vec<Order>,
        distinct: bool,
        parts: &mut Parts,
    ) -> Result<Vec<SortExpr>> {
        let mut sorts: Vec<SortExpr> = Vec::new();
        for order in orders {
            let (expr, ty, options) = match order {
                Order::Output(at, options) => {
                    let column = &parts.columns[at];
                    (Expr::Column(column.column.clone()), column.ty.clone(), options)
                }
                Order::Other(expr, ty, options) => {
                    if distinct {
                        return Err(fault::new(
                            "42P10",
                            "for SELECT DISTINCT, ORDER BY expressions must appear in select list"
                                .to_owned(),
                        ));
                    }
                    parts.hidden = true;
                    let name = self.unique("sort#");
                    parts.below.push(expr.alias(&name));
                    (Expr::Column(Column::new_unqualified(name)), ty, options)
                }
            };
            sorts.push(self.sort_key(expr, &ty, &options)?);
        }
        Ok(sorts)
    }
}

/// The outputs that are computed behind the sort.
fn postponed(select: &ast::Select, outputs: &[Output], orders: &[Order]) -> Vec<usize> {
    let distinct = matches!(select.distinct, Some(ast::Distinct::Distinct));
    if orders.is_empty() || distinct || !outputs.iter().any(|o| waiting::holds(&o.expr)) {
        return Vec::new();
    }
    let named = |at: usize| orders.iter().any(|o| matches!(o, Order::Output(by, _) if *by == at));
    let volatile = outputs.iter().enumerate().filter(|(_, output)| output.expr.is_volatile());
    volatile.map(|(at, _)| at).filter(|at| !named(*at)).collect()
}
