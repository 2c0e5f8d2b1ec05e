//! DISTINCT ON where the outputs hold sets, and outputs that are grouped by twice.
//!
//! # Invariants
//! DISTINCT ON sees the rows as they are before sets among their outputs make several of each,
//! unless rows are told apart or sorted by a set.

use datafusion::common::Column;
use datafusion::common::tree_node::TreeNode as _;
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::{Expr, ExprFunctionExt as _, LogicalPlan, LogicalPlanBuilder, lit};
use datafusion::sql::sqlparser::ast;

use super::Binder;
use super::select::{Order, Output};
use crate::{fault, waiting};
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// The first row of each group of equal `on`, in the order asked for.
    pub(super) fn first_of_each(
        &self,
        plan: LogicalPlan,
        outputs: &[Output],
        orders: &[Order],
        on: Vec<Expr>,
    ) -> Result<LogicalPlan> {
        let mut sorts = Vec::new();
        for order in orders {
            let (expr, ty, options) = match order {
                Order::Output(at, options) => (&outputs[*at].expr, &outputs[*at].ty, options),
                Order::Other(expr, ty, options) => (expr, ty, options),
            };
            sorts.push(self.sort_key(expr.clone(), ty, options)?);
        }
        let number = row_number().partition_by(on);
        let number = if sorts.is_empty() { number.build() } else { number.order_by(sorts).build() };
        let number = number.map_err(fault::from_datafusion)?;
        let first = Expr::Column(Column::new_unqualified(number.schema_name().to_string()));
        LogicalPlanBuilder::from(plan)
            .window(vec![number])
            .and_then(|plan| plan.filter(first.eq(lit(1_u64))))
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)
    }
}

/// Refuses an order that does not begin with what rows are told apart by: which row comes first
/// would be anybody's.
///
/// # Errors
/// 42P10.
pub(super) fn begins_order(on: &[Expr], orders: &[Order], outputs: &[Output]) -> Result<()> {
    let same = |a: &Expr, b: &Expr| a == b || waiting::alike(a, b);
    let ordered: Vec<&Expr> = orders
        .iter()
        .map(|order| match order {
            Order::Output(at, _) => &outputs[*at].expr,
            Order::Other(expr, ..) => expr,
        })
        .collect();
    let among = |expr: &&&Expr| on.iter().any(|on| same(on, expr));
    let begins = ordered.iter().take_while(among).count();
    let all = || on.iter().all(|on| ordered[..begins].iter().any(|expr| same(on, expr)));
    // Once all have come, it does not matter which comes again.
    if begins == ordered.len() || all() {
        return Ok(());
    }
    Err(fault::new(
        "42P10",
        "SELECT DISTINCT ON expressions must match initial ORDER BY expressions".to_owned(),
    ))
}

/// Whether sets are among the outputs, and neither in what is sorted by nor in what rows are told
/// apart by.
pub(super) fn sets_in_outputs_alone(outputs: &[Output], orders: &[Order], on: &[Expr]) -> bool {
    let set = |expr: &Expr| expr.exists(|node| Ok(matches!(node, Expr::Unnest(_)))).unwrap_or(true);
    let sorted = |order: &Order| match order {
        Order::Output(at, _) => set(&outputs[*at].expr),
        Order::Other(expr, ..) => set(expr),
    };
    outputs.iter().any(|output| set(&output.expr))
        && !orders.iter().any(sorted)
        && !on.iter().any(set)
}

/// Where there are grouping sets, an output that is selected twice is two things to group by: they
/// get names that differ.
pub(super) fn tell_apart(group: &ast::GroupByExpr, outputs: &mut [Output]) {
    let ast::GroupByExpr::Expressions(items, _) = group else { return };
    let sets = |item: &ast::Expr| {
        matches!(item, ast::Expr::Rollup(_) | ast::Expr::Cube(_) | ast::Expr::GroupingSets(_))
    };
    if !items.iter().any(sets) {
        return;
    }
    for at in 1..outputs.len() {
        let (before, from) = outputs.split_at_mut(at);
        let output = &mut from[0];
        if !matches!(output.expr, Expr::Literal(..)) && before.iter().any(|b| b.expr == output.expr)
        {
            output.expr = std::mem::take(&mut output.expr).alias(format!("twice#{at}"));
        }
    }
}
