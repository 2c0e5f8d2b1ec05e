//! WITH queries that are computed once, though they are named several times.
//!
//! # Purpose
//! PostgreSQL keeps the rows of a WITH query that is named more than once. Put in where it is
//! named, a sum over a large table would be computed as often.
//!
//! # Protocol
//! ```text
//! WITH r AS (SELECT k, sum(v) … GROUP BY k) SELECT … FROM r … (SELECT max(s) FROM r)
//!   Once r ──► its own copy of the plan ─┐
//!   Once r ──► its own copy of the plan ─┴─ one spool: whoever needs the next row first asks the copy that was begun, and keeps it
//! ```
//!
//! # Invariants
//! - Rows are computed when somebody asks for them, and only as many; everybody gets them in the
//!   same order.
//! - No condition, projection or limit passes such a node, so that all copies give the same.
//! - A node of a plan is bound anew for each execution, and its spool with it.
//!
//! # Failure behaviour
//! An error of the rows is everybody's. What is kept spills to the statement's scratch where its
//! memory has no room. 0A000 for a volatile query that sees outer rows and is named several times.
//!
//! # Limits
//! What groups, makes rows distinct, is recursive, draws random numbers, or is MATERIALIZED. Of
//! others conditions on what names them narrow what they read. Not what sees outer rows, or the
//! rows of a recursive query around it.

mod operator;
mod spool;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::catalog::cte_worktable::CteWorkTable;
use datafusion::catalog::default_table_source::source_as_provider;
use datafusion::common::DFSchemaRef;
use datafusion::common::tree_node::{TreeNode as _, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::{
    Expr, Extension, LogicalPlan, TableScan, UserDefinedLogicalNodeCore,
};
use datafusion::sql::sqlparser::ast;

use telesto_sql_expr::fold;
use telesto_sql_types::error::{Error, Result};

pub(crate) use operator::planned;
pub(crate) use spool::Allowance;
use spool::Spool;

/// One place where the rows of a WITH query are read.
#[derive(Clone, Debug)]
pub(crate) struct Once {
    input: LogicalPlan,
    name: Arc<str>,
    spool: Arc<Spool>,
}

impl Once {
    /// Those who read the same rows.
    fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.spool, &other.spool)
    }
}

impl PartialEq for Once {
    fn eq(&self, other: &Self) -> bool {
        self.same(other) && self.input == other.input
    }
}

impl Eq for Once {}

impl Hash for Once {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        self.input.hash(state);
    }
}

/// Nodes have no order; DataFusion asks for one of plans that it compares.
impl PartialOrd for Once {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }
}

impl UserDefinedLogicalNodeCore for Once {
    fn name(&self) -> &'static str {
        "Once"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Once: {}", self.name)
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> DfResult<Self> {
        match inputs.pop() {
            Some(input) if inputs.is_empty() => Ok(Self { input, ..self.clone() }),
            _ => Err(DataFusionError::Internal("a WITH query is one plan".to_owned())),
        }
    }
}

/// What is computed once by this node, if it is one.
pub(crate) fn input(plan: &LogicalPlan) -> Option<&LogicalPlan> {
    Some(&of(plan)?.input)
}

/// Whether `plan` is such a node, and another copy of it is among those `met`, to which it is
/// added.
pub(crate) fn is_met(plan: &LogicalPlan, met: &mut Vec<Once>) -> bool {
    let Some(node) = of(plan) else { return false };
    let known = met.iter().any(|other| other.same(node));
    if !known {
        met.push(node.clone());
    }
    known
}

fn of(plan: &LogicalPlan) -> Option<&Once> {
    let LogicalPlan::Extension(extension) = plan else { return None };
    extension.node.as_any().downcast_ref::<Once>()
}

/// The plan of a WITH query, computed once if that is to be. `uses`: how often it is named;
/// `inside`: outer rows may be in view.
///
/// # Errors
/// 0A000 for one that may not be computed more than once and cannot be computed once.
pub(crate) fn once(
    plan: LogicalPlan,
    cte: &ast::Cte,
    (uses, inside): (usize, bool),
    spooled: &Arc<Allowance>,
) -> Result<LogicalPlan> {
    use ast::CteAsMaterialized::{Materialized, NotMaterialized};
    if uses < 2 || !cte.query.locks.is_empty() {
        return Ok(plan);
    }
    let differs = differs(&plan);
    let wanted = match &cte.materialized {
        // PostgreSQL passes the word over there.
        Some(NotMaterialized) => differs || matches!(plan, LogicalPlan::RecursiveQuery(_)),
        Some(Materialized) => true,
        None => differs || gathers(&plan),
    };
    let apart = hangs_on_more(&plan, inside);
    if differs && apart {
        return Err(Error::unsupported(
            "a WITH query that sees rows of a query around it, calls what is volatile and is named several times",
        )
        .hint("Name it once, or compute what is volatile outside of it."));
    }
    if !wanted || apart {
        return Ok(plan);
    }
    let (name, spool) = (fold(&cte.alias.name).into(), Arc::new(Spool::new(spooled)));
    Ok(LogicalPlan::Extension(Extension { node: Arc::new(Once { input: plan, name, spool }) }))
}

/// Whether computing it again costs what it did: groups, what is distinct, and recursive queries.
fn gathers(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(_) | LogicalPlan::Distinct(_) | LogicalPlan::RecursiveQuery(_) => {
            true
        }
        LogicalPlan::Projection(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Limit(_) => plan.inputs().into_iter().all(gathers),
        _ => false,
    }
}

/// Whether something in it gives another value each time.
fn differs(plan: &LogicalPlan) -> bool {
    let volatile = |node: &LogicalPlan| node.expressions().iter().any(Expr::is_volatile);
    let mut found = false;
    let walked = plan.apply_with_subqueries(|node| {
        found |= volatile(node);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    walked.is_err() || found
}

/// Whether other rows belong to each place: they see outer rows, or those of a recursive query
/// around it.
fn hangs_on_more(plan: &LogicalPlan, inside: bool) -> bool {
    let (mut found, mut read, mut own) = (false, Vec::new(), Vec::new());
    let walked = plan.apply_with_subqueries(|node| {
        match node {
            LogicalPlan::RecursiveQuery(query) => own.push(query.name.clone()),
            LogicalPlan::TableScan(scan) if is_of_recursion(scan) => {
                read.push(scan.table_name.table().to_owned());
            }
            _ => {}
        }
        found |= inside && node.expressions().iter().any(sees_outside);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    walked.is_err() || found || read.iter().any(|name| !own.contains(name))
}

/// Whether it reads the rows that a recursive query found last.
fn is_of_recursion(scan: &TableScan) -> bool {
    source_as_provider(&scan.source)
        .is_ok_and(|provider| provider.downcast_ref::<CteWorkTable>().is_some())
}

fn sees_outside(expr: &Expr) -> bool {
    expr.exists(|part| Ok(matches!(part, Expr::OuterReferenceColumn(..)))).unwrap_or(true)
}
