//! Subqueries in join conditions.
//!
//! # Problem
//! DataFusion's joins neither wait nor decorrelate below a condition, and drivers ask for it: GORM
//! reads comments by
//! `LEFT JOIN pg_description d ON … AND d.objoid = (SELECT oid FROM pg_class WHERE relname = c.table_name …)`.
//!
//! # Invariants
//! - What a subquery gives hangs on its outer columns alone, so one that refers to columns of one
//!   side is computed in a projection over that side, for every kind of join, and the condition
//!   compares the column.
//! - A condition whose subquery needs both sides stands above an inner join as a filter, where it
//!   means the same. Above an outer join it would not: that stays refused (0A000).

use datafusion::common::{Column, DFSchema, JoinType};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};

use super::Binder;
use super::select::{collect, filter, project, substitute};
use crate::apply;
use crate::{fault, waiting};
use telesto_sql_types::error::Result;

/// The columns of this level that a subquery, or a call made of one, refers to.
fn references(node: &Expr) -> Vec<Column> {
    match node {
        Expr::ScalarSubquery(subquery) => subquery
            .outer_ref_columns
            .iter()
            .filter_map(|reference| match reference {
                Expr::OuterReferenceColumn(_, column) => Some(column.clone()),
                _ => None,
            })
            .collect(),
        call => call.column_refs().into_iter().cloned().collect(),
    }
}

fn is_subquery(node: &Expr) -> bool {
    matches!(node, Expr::ScalarSubquery(_)) || apply::is_awaited(node) && !waiting::holds(node)
}

/// One input of a join with what is to be computed over it.
struct Side {
    plan: LogicalPlan,
    computed: Vec<Expr>,
}

impl Side {
    fn has(&self, column: &Column) -> bool {
        self.plan.schema().has_column(column)
    }

    fn finish(self) -> Result<LogicalPlan> {
        if self.computed.is_empty() {
            return Ok(self.plan);
        }
        let mut exprs = own_columns(self.plan.schema());
        exprs.extend(self.computed);
        project(self.plan, exprs)
    }
}

fn own_columns(schema: &DFSchema) -> Vec<Expr> {
    schema
        .iter()
        .map(|(table, field)| Expr::Column(Column::new(table.cloned(), field.name().clone())))
        .collect()
}

impl Binder<'_> {
    /// Joins two plans on a condition that may have subqueries in it.
    pub(super) fn join_plans(
        &self,
        left: LogicalPlan,
        right: LogicalPlan,
        kind: JoinType,
        condition: Option<Expr>,
    ) -> Result<LogicalPlan> {
        let (mut left, mut right) =
            (Side { plan: left, computed: Vec::new() }, Side { plan: right, computed: Vec::new() });
        let (mut on, mut above, mut replace) = (Vec::new(), Vec::new(), Vec::new());
        let always = condition.is_none();
        for part in condition.into_iter().flat_map(split_conjunction_owned) {
            if waiting::holds(&part) {
                // It is computed for each pair of rows, in their order: a filter above does that.
                if kind != JoinType::Inner {
                    return Err(fault::unsupported(
                        "a function that waits in the condition of an outer join",
                    ));
                }
                above.push(part);
                continue;
            }
            let mut nodes = Vec::new();
            collect(&part, &mut nodes, is_subquery);
            let mut both = false;
            for node in nodes {
                let columns = references(&node);
                // An outer reference of neither side belongs to a query further out.
                let (lefts, rights) =
                    (columns.iter().any(|c| left.has(c)), columns.iter().any(|c| right.has(c)));
                if lefts && rights {
                    both = true;
                    continue;
                }
                if replace.iter().any(|(known, _)| *known == node) {
                    continue;
                }
                let name = self.unique("subquery");
                let side = if rights { &mut right } else { &mut left };
                side.computed.push(node.clone().alias(&name));
                replace.push((node, Expr::Column(Column::new_unqualified(name))));
            }
            if both && kind != JoinType::Inner {
                return Err(fault::unsupported(
                    "a subquery in the condition of an outer join that refers to both of its sides",
                ));
            }
            if both { &mut above } else { &mut on }.push(substitute(part, &replace)?);
        }
        let builder = LogicalPlanBuilder::from(left.finish()?);
        let right = right.finish()?;
        let joined = if kind == JoinType::Inner && (always || on.is_empty()) {
            builder.cross_join(right)
        } else {
            builder.join_on(right, kind, on)
        };
        let plan = joined.and_then(LogicalPlanBuilder::build).map_err(fault::from_datafusion)?;
        match conjunction(above) {
            Some(condition) => filter(plan, condition),
            None => Ok(plan),
        }
    }
}
