//! DataFusion's push-down of conditions, where it keeps their meaning.
//!
//! DataFusion 55 gets three things wrong in `PushDownFilter`:
//! - It moves a condition without columns below any aggregate: `false` above `SELECT count(*) …` became `count(*)` of nothing,
//!   one row instead of none. Such a condition comes about when the optimiser finds that a column is never NULL.
//! - Of conditions on one column it takes `1 = x AND x = 1` for two different ones, which no value meets, and
//!   `5 < x AND x >= 5` for `x >= 5` (`simplify_predicates`).
//! - It panics below an alias that has fewer columns than its input, which `PullUpCorrelatedExpr` leaves behind.
//!
//! # Invariants
//! - No condition passes an aggregate without groups, or one with grouping sets, on its way down.
//! - Where conditions on one column are made one, all have the column on the left.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{BinaryExpr, Expr, Filter, LogicalPlan, SubqueryAlias};
use datafusion::optimizer::{ApplyOrder, Optimizer, OptimizerConfig, OptimizerRule};

/// DataFusion's rules, less those that get something wrong.
pub(super) fn logical_rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let mut rules = Optimizer::new().rules;
    // It computes an aggregate in two steps, as if a sum of sums had the type of a sum: PostgreSQL's sum of bigint is numeric.
    rules.retain(|rule| rule.name() != "single_distinct_aggregation_to_group_by");
    for rule in &mut rules {
        if rule.name() == "push_down_filter" {
            *rule = Arc::new(KeepsMeaning(Arc::clone(rule)));
        }
    }
    rules
}

#[derive(Debug)]
struct KeepsMeaning(Arc<dyn OptimizerRule + Send + Sync>);

impl OptimizerRule for KeepsMeaning {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        match plan {
            LogicalPlan::Filter(filter) if whole(&filter.input) => {
                Ok(Transformed::no(LogicalPlan::Filter(filter)))
            }
            LogicalPlan::Filter(filter) => {
                let filter = columns_left(filter)?;
                self.0.rewrite(LogicalPlan::Filter(whole_alias(filter)?), config)
            }
            plan => self.0.rewrite(plan, config),
        }
    }
}

/// The filter over an alias that has all columns of what it is for: pulling correlated columns up adds some below, and the rule
/// looks for the alias's columns by their places.
fn whole_alias(filter: Filter) -> Result<Filter> {
    match Arc::unwrap_or_clone(filter.input) {
        LogicalPlan::SubqueryAlias(alias)
            if alias.schema.fields().len() != alias.input.schema().fields().len() =>
        {
            let alias = SubqueryAlias::try_new(alias.input, alias.alias)?;
            Filter::try_new(filter.predicate, Arc::new(LogicalPlan::SubqueryAlias(alias)))
        }
        input => Filter::try_new(filter.predicate, Arc::new(input)),
    }
}

/// The condition, and those right below it, which are put together with it, with the columns they compare with values on the left.
fn columns_left(filter: Filter) -> Result<Filter> {
    let conditions = split_conjunction_owned(filter.predicate).into_iter().map(column_left);
    let input = match Arc::unwrap_or_clone(filter.input) {
        LogicalPlan::Filter(below) => LogicalPlan::Filter(columns_left(below)?),
        input => input,
    };
    let none = || Expr::Literal(ScalarValue::Boolean(Some(true)), None);
    Filter::try_new(conjunction(conditions).unwrap_or_else(none), Arc::new(input))
}

fn column_left(condition: Expr) -> Expr {
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if matches!((&*left, &*right), (Expr::Literal(..), Expr::Column(_))) =>
        {
            match op.swap() {
                Some(op) => Expr::BinaryExpr(BinaryExpr { left: right, op, right: left }),
                None => Expr::BinaryExpr(BinaryExpr { left, op, right }),
            }
        }
        condition => condition,
    }
}

/// Whether a plan is an aggregate, below conditions or none, that has a row for no rows.
fn whole(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Filter(filter) => whole(&filter.input),
        LogicalPlan::Aggregate(aggregate) => {
            aggregate.group_expr.is_empty()
                || aggregate.group_expr.iter().any(|expr| matches!(expr, Expr::GroupingSet(_)))
        }
        _ => false,
    }
}
