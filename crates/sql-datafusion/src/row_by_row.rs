//! Projections and filters that compute what waits, row by row.
//!
//! # Purpose
//! PostgreSQL computes a row's expressions from left to right, then the next row's, and only the
//! parts that CASE, AND and OR get to. A call of `nextval` can be told from every other order.
//! DataFusion computes a column for a whole batch, and of what must be awaited everything. So what
//! holds such a call ([`super::waiting`]) becomes a node of our own here.
//!
//! # Protocol
//! ```text
//! project (nextval('s'), a + 1, random())  ->  RowByRow [nextval('s'), c, random()]
//!                                                Projection [all columns, a + 1 AS c]
//! filter (a > 1 AND nextval('s') > 2)      ->  RowByRow filter [nextval('s') > 2]
//!                                                Filter [a > 1]
//! ```
//!
//! # Invariants
//! - The optimizer sees the node's expressions but does not move, drop, copy or merge them: no rule
//!   does so with those of an extension. No pruning of columns passes it; a limit does, through a
//!   projection, and conditions that see nothing of what is computed here.
//! - What is not volatile is computed below, by DataFusion's own operators, and subqueries that
//!   became no calls too: DataFusion makes joins of them in projections and filters alone.
//! - The parts of a union that compute such things run one after the other ([`mod@in_turn`]).
//! - The rows come out in the order of the input, which an operator below that sorts must keep.
//!
//! # Failure behaviour
//! Errors of the expressions as they are; rows before the one that failed have had their effects,
//! as in PostgreSQL.
//!
//! # Limits
//! A filter below a LIMIT, and operators that do not need all rows, take rows a batch at a time:
//! more calls are made than in PostgreSQL, which takes them one by one. What is volatile and does
//! not wait (`currval`) is computed in the same order only where it stands beside a call that
//! waits.

mod in_turn;
mod operator;
mod program;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::common::{Column, DFSchemaRef};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::expr_rewriter::normalize_col;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Expr, Extension, Filter, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore,
    projection_schema,
};

use super::bind::{all_columns, collect, substitute};
use super::guards::may_fail;
use super::{fault, outer};
use telesto_sql_types::error::Result;

pub(crate) use in_turn::{InTurnExec, in_turn, one_after_the_other};
pub(crate) use operator::Planner;

/// A projection, or a filter, computed row by row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowByRow {
    input: LogicalPlan,
    /// The columns that come out; of a filter its condition alone.
    exprs: Vec<Expr>,
    filters: bool,
    schema: DFSchemaRef,
}

impl RowByRow {
    fn new(input: LogicalPlan, exprs: Vec<Expr>, filters: bool) -> DfResult<Self> {
        let schema =
            if filters { Arc::clone(input.schema()) } else { projection_schema(&input, &exprs)? };
        Ok(Self { input, exprs, filters, schema })
    }

    /// A condition over the columns that come out, as one over the input's; `None`: it sees what is
    /// computed here, may differ from time to time, or may fail for rows that a condition below
    /// refuses: the two would be one filter, in any order.
    fn below(&self, condition: &Expr) -> DfResult<Option<Expr>> {
        let subquery = |part: &Expr| Ok(outer::subquery(part).is_some());
        if condition.is_volatile() || may_fail(condition) || condition.exists(subquery)? {
            return Ok(None);
        }
        if self.filters {
            return Ok(Some(condition.clone()));
        }
        let mut known = true;
        let below = condition.clone().transform(|part| {
            let Expr::Column(column) = &part else { return Ok(Transformed::no(part)) };
            let at = self.schema.maybe_index_of_column(column);
            let own = at.and_then(|at| self.exprs.get(at)).map(|expr| expr.clone().unalias());
            match own {
                Some(own @ (Expr::Column(_) | Expr::Literal(..))) => Ok(Transformed::yes(own)),
                _ => {
                    known = false;
                    Ok(Transformed::no(part))
                }
            }
        })?;
        Ok(known.then_some(below.data))
    }

    /// As a plan over `input`, whose columns the expressions name as they are known there.
    fn plan(input: LogicalPlan, exprs: Vec<Expr>, filters: bool) -> DfResult<LogicalPlan> {
        let exprs = exprs.into_iter().map(|expr| normalize_col(expr, &input));
        let exprs = exprs.collect::<DfResult<Vec<_>>>()?;
        let node = Arc::new(Self::new(input, exprs, filters)?);
        Ok(LogicalPlan::Extension(Extension { node }))
    }
}

/// Nodes have no order; DataFusion asks for one of plans that it compares.
impl PartialOrd for RowByRow {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }
}

impl UserDefinedLogicalNodeCore for RowByRow {
    fn name(&self) -> &'static str {
        "RowByRow"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        self.exprs.clone()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowByRow: {}", if self.filters { "filter=" } else { "" })?;
        for (at, expr) in self.exprs.iter().enumerate() {
            write!(f, "{}{expr}", if at > 0 { ", " } else { "" })?;
        }
        Ok(())
    }

    fn with_exprs_and_inputs(
        &self,
        exprs: Vec<Expr>,
        mut inputs: Vec<LogicalPlan>,
    ) -> DfResult<Self> {
        match inputs.pop() {
            Some(input) if inputs.is_empty() && exprs.len() == self.exprs.len() => {
                Self::new(input, exprs, self.filters)
            }
            _ => Err(DataFusionError::Internal("a RowByRow has one input".to_owned())),
        }
    }

    fn supports_limit_pushdown(&self) -> bool {
        !self.filters
    }
}

/// Whether a node is one of these.
pub(crate) fn is_row_by_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Extension(extension) => extension.node.as_any().is::<RowByRow>(),
        _ => false,
    }
}

/// Whether there is one in a plan, or in a subquery of it.
pub(crate) fn within(plan: &LogicalPlan) -> bool {
    let mut found = false;
    let walked = plan.apply_with_subqueries(|node| {
        use datafusion::common::tree_node::TreeNodeRecursion::{Continue, Stop};
        found |= is_row_by_row(node) || node.expressions().iter().any(super::waiting::holds);
        Ok(if found { Stop } else { Continue })
    });
    walked.is_err() || found
}

/// A projection of expressions some of which wait.
pub(crate) fn projection(plan: LogicalPlan, exprs: Vec<Expr>) -> Result<LogicalPlan> {
    let mut below = Below::over(&plan);
    let mut out = Vec::with_capacity(exprs.len());
    for expr in exprs {
        let name = expr.schema_name().to_string();
        out.push(match expr.unalias() {
            column @ (Expr::Column(_) | Expr::Literal(..))
                if column.schema_name().to_string() == name =>
            {
                column
            }
            column @ (Expr::Column(_) | Expr::Literal(..)) => column.alias(name),
            steady if !steady.is_volatile() => below.column(steady).alias(name),
            volatile => below.subqueries(volatile)?.alias(name),
        });
    }
    let plan = below.project(plan)?;
    RowByRow::plan(plan, out, false).map_err(fault::from_datafusion)
}

/// A filter whose condition waits.
pub(crate) fn filter(plan: LogicalPlan, condition: Expr) -> Result<LogicalPlan> {
    let (volatile, steady): (Vec<Expr>, Vec<Expr>) =
        split_conjunction_owned(condition).into_iter().partition(Expr::is_volatile);
    let mut plan = plan;
    if let Some(steady) = conjunction(steady) {
        plan = LogicalPlanBuilder::from(plan)
            .filter(steady)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
    }
    let Some(condition) = conjunction(volatile) else { return Ok(plan) };
    let own = all_columns(&plan);
    let mut below = Below::over(&plan);
    let condition = below.subqueries(condition)?;
    let more = !below.computed.is_empty();
    let plan = RowByRow::plan(below.project(plan)?, vec![condition], true)
        .map_err(fault::from_datafusion)?;
    if !more {
        return Ok(plan);
    }
    LogicalPlanBuilder::from(plan)
        .project(own)
        .and_then(LogicalPlanBuilder::build)
        .map_err(fault::from_datafusion)
}

/// A filter above one of these, with the conditions below that see nothing that is computed row by
/// row: as in PostgreSQL, rows that they refuse are not computed.
pub(crate) fn filtered_below(filter: Filter) -> DfResult<Transformed<LogicalPlan>> {
    let own = match &*filter.input {
        LogicalPlan::Extension(extension) => extension.node.as_any().downcast_ref::<RowByRow>(),
        _ => None,
    };
    let Some(node) = own.cloned() else { return Ok(Transformed::no(LogicalPlan::Filter(filter))) };
    let (mut below, mut above) = (Vec::new(), Vec::new());
    for condition in split_conjunction_owned(filter.predicate.clone()) {
        match node.below(&condition)? {
            Some(condition) => below.push(condition),
            None => above.push(condition),
        }
    }
    let Some(below) = conjunction(below) else {
        return Ok(Transformed::no(LogicalPlan::Filter(filter)));
    };
    let input = LogicalPlan::Filter(Filter::try_new(below, Arc::new(node.input.clone()))?);
    let node = Arc::new(RowByRow::new(input, node.exprs, node.filters)?);
    let plan = LogicalPlan::Extension(Extension { node });
    Ok(Transformed::yes(match conjunction(above) {
        Some(above) => LogicalPlan::Filter(Filter::try_new(above, Arc::new(plan))?),
        None => plan,
    }))
}

/// What is computed below, beside the columns that are there.
struct Below {
    known: Vec<String>,
    computed: Vec<Expr>,
}

impl Below {
    fn over(plan: &LogicalPlan) -> Self {
        let known = plan.schema().fields().iter().map(|field| field.name().clone()).collect();
        Self { known, computed: Vec::new() }
    }

    /// The expression as a column of what is computed below.
    fn column(&mut self, expr: Expr) -> Expr {
        let mut name = format!("steady#{}", self.computed.len());
        while self.known.contains(&name) {
            name.push('\'');
        }
        self.known.push(name.clone());
        self.computed.push(expr.alias(&name));
        Expr::Column(Column::new_unqualified(name))
    }

    /// The expression with its subqueries as columns.
    fn subqueries(&mut self, expr: Expr) -> Result<Expr> {
        let mut found = Vec::new();
        collect(&expr, &mut found, |part| outer::subquery(part).is_some());
        let replace: Vec<(Expr, Expr)> =
            found.into_iter().map(|part| (part.clone(), self.column(part))).collect();
        if replace.is_empty() { Ok(expr) } else { substitute(expr, &replace) }
    }

    fn project(self, plan: LogicalPlan) -> Result<LogicalPlan> {
        if self.computed.is_empty() {
            return Ok(plan);
        }
        let mut exprs = all_columns(&plan);
        exprs.extend(self.computed);
        LogicalPlanBuilder::from(plan)
            .project(exprs)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)
    }
}
