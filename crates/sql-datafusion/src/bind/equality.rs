//! Rows that are equal in SQL: DISTINCT, set operations and groups over values that are equal and
//! do not look so.
//!
//! `1.0` and `1.00`, `'1 day'` and `'24 hours'`, `'a'` and `'a '` as char(2): DataFusion compares
//! what carries them, byte by byte. Here such columns are compared by their sort keys, and one of
//! the equal values is shown.
//!
//! # Invariants
//! Of equal rows of a set operation one of the left side is shown, where there is one.

use datafusion::common::Column;
use datafusion::functions_aggregate as fa;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{
    Expr, ExprFunctionExt, LogicalPlan, LogicalPlanBuilder, SortExpr, col, lit, when,
};

use super::Binder;
use super::operators::natively_ordered;
use super::scope::{Relation, ScopeColumn};
use crate::fault;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

/// Beside the rows of both sides of a set operation: which side.
const SIDE: &str = "side#";
/// Rows of the left, and of the right side among equal ones.
const LEFT: &str = "left#";
const RIGHT: &str = "right#";
/// The number of a row among its equals.
const COPY: &str = "copy#";

/// One of the values that are grouped together.
pub(super) fn one_of(value: Expr, order: Vec<SortExpr>) -> Expr {
    Expr::AggregateFunction(AggregateFunction::new_udf(
        fa::first_last::first_value_udaf(),
        vec![value],
        false,
        None,
        order,
        None,
    ))
}

fn counted(side: i64) -> Expr {
    let filter = Box::new(col(SIDE).eq(lit(side)));
    Expr::AggregateFunction(AggregateFunction::new_udf(
        fa::count::count_udaf(),
        vec![lit(1_i64)],
        false,
        Some(filter),
        Vec::new(),
        None,
    ))
}

/// Whether DataFusion tells values of all these types apart as SQL does.
fn native(columns: &[ScopeColumn]) -> bool {
    columns.iter().all(|column| natively_ordered(&column.ty) || column.ty == SqlType::Unknown)
}

/// Refuses values that no operator compares.
///
/// # Errors
/// 42883.
pub(super) fn comparable(ty: &SqlType) -> Result<()> {
    match ty.element_type().unwrap_or(ty) {
        SqlType::Json => Err(fault::new(
            "42883",
            format!("could not identify an equality operator for type {ty}"),
        )),
        _ => Ok(()),
    }
}

impl Binder<'_> {
    /// The distinct rows of `plan`, whose columns are `columns`.
    pub(super) fn distinct(
        &self,
        plan: LogicalPlan,
        columns: &[ScopeColumn],
    ) -> Result<LogicalPlan> {
        for column in columns {
            comparable(&column.ty)?;
        }
        if native(columns) {
            return LogicalPlanBuilder::from(plan)
                .distinct()
                .and_then(LogicalPlanBuilder::build)
                .map_err(fault::from_datafusion);
        }
        let (group, shown, names) = self.keys(columns, &[])?;
        LogicalPlanBuilder::from(plan)
            .aggregate(group, shown)
            .and_then(|plan| plan.project(names))
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)
    }

    /// What to group by, what to show of a group, and the columns of both under their names.
    #[allow(clippy::type_complexity, reason = "three lists of one loop")]
    fn keys(
        &self,
        columns: &[ScopeColumn],
        order: &[SortExpr],
    ) -> Result<(Vec<Expr>, Vec<Expr>, Vec<Expr>)> {
        let (mut group, mut shown, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for column in columns {
            let value = Expr::Column(column.column.clone());
            if natively_ordered(&column.ty) {
                group.push(value.clone());
                names.push(value);
                continue;
            }
            group.push(self.orderable(value.clone(), &column.ty)?.alias(self.unique("equal#")));
            let name = self.unique("shown#");
            shown.push(one_of(value, order.to_vec()).alias(&name));
            names.push(col(Column::new_unqualified(name)).alias(&column.column.name));
        }
        Ok((group, shown, names))
    }

    /// INTERSECT and EXCEPT.
    pub(super) fn set_difference(
        &self,
        left: Relation,
        right: Relation,
        intersect: bool,
        all: bool,
    ) -> Result<LogicalPlan> {
        let names = left.columns.clone();
        for column in &names {
            comparable(&column.ty)?;
        }
        if native(&names) {
            let (left, right) = (self.numbered(left, all)?, self.numbered(right, all)?);
            let plan = if intersect {
                LogicalPlanBuilder::intersect(left, right, false)
            } else {
                LogicalPlanBuilder::except(left, right, false)
            };
            return plan.map_err(fault::from_datafusion);
        }
        let beside = |relation: Relation, side: i64| -> Result<LogicalPlan> {
            let mut exprs: Vec<Expr> = relation
                .columns
                .iter()
                .zip(&names)
                .map(|(from, to)| col(from.column.clone()).alias(&to.column.name))
                .collect();
            let plan = self.numbered(relation, all)?;
            if all {
                exprs.push(col(Column::new_unqualified(COPY)));
            }
            exprs.push(lit(side).alias(SIDE));
            LogicalPlanBuilder::from(plan)
                .project(exprs)
                .and_then(LogicalPlanBuilder::build)
                .map_err(fault::from_datafusion)
        };
        let (left, right) = (beside(left, 0)?, beside(right, 1)?);
        let union = LogicalPlanBuilder::from(left)
            .union(right)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        let plain: Vec<ScopeColumn> = names
            .iter()
            .map(|column| ScopeColumn {
                column: Column::new_unqualified(column.column.name.clone()),
                ..column.clone()
            })
            .collect();
        let (mut group, mut shown, names) = self.keys(&plain, &[col(SIDE).sort(true, false)])?;
        if all {
            group.push(col(Column::new_unqualified(COPY)));
        }
        shown.push(counted(0).alias(LEFT));
        shown.push(counted(1).alias(RIGHT));
        let there = |name: &str| col(Column::new_unqualified(name)).gt(lit(0_i64));
        let kept = if intersect {
            there(LEFT).and(there(RIGHT))
        } else {
            there(LEFT).and(Expr::Not(Box::new(there(RIGHT))))
        };
        LogicalPlanBuilder::from(union)
            .aggregate(group, shown)
            .and_then(|plan| plan.filter(kept))
            .and_then(|plan| plan.project(names))
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)
    }

    /// For the multiset forms: a copy number beside each row makes equal rows distinct.
    fn numbered(&self, relation: Relation, all: bool) -> Result<LogicalPlan> {
        if !all {
            return Ok(relation.plan);
        }
        let columns = relation
            .columns
            .iter()
            .map(|c| self.orderable(Expr::Column(c.column.clone()), &c.ty))
            .collect::<Result<Vec<_>>>()?;
        let number = datafusion::functions_window::expr_fn::row_number()
            .partition_by(columns)
            .build()
            .map_err(fault::from_datafusion)?;
        let name = number.schema_name().to_string();
        LogicalPlanBuilder::from(relation.plan)
            .window(vec![number])
            .and_then(|plan| {
                let keep: Vec<_> = plan
                    .schema()
                    .iter()
                    .map(|(q, f)| {
                        let column = Expr::Column(Column::new(q.cloned(), f.name().clone()));
                        if *f.name() == name { column.alias(COPY) } else { column }
                    })
                    .collect();
                plan.project(keep)
            })
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)
    }
}

/// What is shown of a group by a sort key: NULL where the key is, which a grouping set without it
/// makes it.
pub(super) fn shown(key: Column, value: Column) -> Result<Expr> {
    when(Expr::Column(key).is_not_null(), Expr::Column(value)).end().map_err(fault::from_datafusion)
}
