//! DataFusion's push-down of conditions, kept above aggregates that have a row even when nothing does.
//!
//! DataFusion 55 moves a condition without columns below any aggregate (`PushDownFilter`): `false` above
//! `SELECT count(*) …` became `count(*)` of nothing, one row instead of none. Such a condition comes about when the
//! optimiser finds that a column is never NULL.
//!
//! # Invariants
//! - No condition passes an aggregate without groups, or one with grouping sets, on its way down.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::{ApplyOrder, Optimizer, OptimizerConfig, OptimizerRule};

/// DataFusion's rules, less those that get something wrong.
pub(super) fn logical_rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let mut rules = Optimizer::new().rules;
    // It computes an aggregate in two steps, as if a sum of sums had the type of a sum: PostgreSQL's sum of bigint is numeric.
    rules.retain(|rule| rule.name() != "single_distinct_aggregation_to_group_by");
    for rule in &mut rules {
        if rule.name() == "push_down_filter" {
            *rule = Arc::new(AboveWhole(Arc::clone(rule)));
        }
    }
    rules
}

#[derive(Debug)]
struct AboveWhole(Arc<dyn OptimizerRule + Send + Sync>);

impl OptimizerRule for AboveWhole {
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
        match &plan {
            LogicalPlan::Filter(filter) if whole(&filter.input) => Ok(Transformed::no(plan)),
            _ => self.0.rewrite(plan, config),
        }
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
