//! How large and how deep a bound plan is: DataFusion walks it by functions that call themselves,
//! dozens of times.
//!
//! # Invariants
//! - The measure stops at its limits, so that a plan that shares its parts (a WITH query named
//!   twice by one that is named twice …) costs no more to measure than to refuse.
//! - A plan is planned, run and dropped with the stack that its measure asks for.
//!
//! # On failure
//! 54001.
//!
//! # Limits
//! [`MAX_NODES`], [`MAX_LEVELS`], [`MAX_EXPRESSION`].

use datafusion::common::Result as DfResult;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion, TreeNodeVisitor};
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};

use telesto_sql_parser::stack::Need;
use telesto_sql_types::error::Result;

/// Operators of a plan, those of its subqueries included, each as often as it is named.
const MAX_NODES: usize = 40_000;

/// Operators of a plan above each other.
const MAX_LEVELS: usize = 2_500;

/// Levels of an expression, and the ANDs and ORs that DataFusion may chain up again.
const MAX_EXPRESSION: usize = 110_000;

#[derive(Default)]
struct Measure {
    nodes: usize,
    level: usize,
    levels: usize,
    expression: usize,
}

impl Measure {
    fn within(&self) -> bool {
        self.nodes <= MAX_NODES && self.levels <= MAX_LEVELS && self.expression <= MAX_EXPRESSION
    }
}

impl<'n> TreeNodeVisitor<'n> for Measure {
    type Node = LogicalPlan;

    fn f_down(&mut self, node: &'n LogicalPlan) -> DfResult<TreeNodeRecursion> {
        telesto_sql_types::interrupt::check().map_err(super::fault::to_datafusion)?;
        self.nodes += 1;
        self.level += 1;
        self.levels = self.levels.max(self.level);
        node.apply_expressions(|expr| {
            let mut inside = ExpressionMeasure::default();
            expr.visit(&mut inside)?;
            self.expression = self.expression.max(inside.levels + inside.joins);
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if self.within() { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    }

    fn f_up(&mut self, _node: &'n LogicalPlan) -> DfResult<TreeNodeRecursion> {
        self.level = self.level.saturating_sub(1);
        Ok(TreeNodeRecursion::Continue)
    }
}

#[derive(Default)]
struct ExpressionMeasure {
    level: usize,
    levels: usize,
    joins: usize,
}

impl<'n> TreeNodeVisitor<'n> for ExpressionMeasure {
    type Node = Expr;

    fn f_down(&mut self, node: &'n Expr) -> DfResult<TreeNodeRecursion> {
        self.level += 1;
        self.levels = self.levels.max(self.level);
        if matches!(node, Expr::BinaryExpr(BinaryExpr { op: Operator::And | Operator::Or, .. })) {
            self.joins += 1;
        }
        Ok(TreeNodeRecursion::Continue)
    }

    fn f_up(&mut self, _node: &'n Expr) -> DfResult<TreeNodeRecursion> {
        self.level -= 1;
        Ok(TreeNodeRecursion::Continue)
    }
}

/// The stack that planning and running `plan` takes.
///
/// # Errors
/// 54001 when it is beyond the limits.
pub(super) fn need(plan: &LogicalPlan) -> Result<Need> {
    let mut measure = Measure::default();
    plan.visit_with_subqueries(&mut measure).map_err(super::fault::from_datafusion)?;
    if !measure.within() {
        return Err(telesto_sql_parser::syntax::too_deep());
    }
    Ok(Need::of_plan(measure.levels, measure.expression))
}
