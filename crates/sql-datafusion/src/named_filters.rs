//! DataFusion's rules for operators, where they keep the meaning of conditions.
//!
//! DataFusion 55 hands a filter from an operator to the one below by the names of its columns: of
//! several columns with one name the first is taken (`FilterRemapper` in datafusion-physical-plan).
//! Above `a JOIN b`, a filter on `b.id` became one on `a.id`: rows were lost, or came back that the
//! condition refuses. And it computes parts of a join's condition below the join, also those that
//! CASE would compute for some rows alone.
//!
//! # Invariants
//! - A plan where a filter would pass through columns of one name keeps its filters where they are:
//!   the same rows, read from whole tables.
//! - Nothing else of a plan is changed here.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::expressions::CaseExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::ensure_requirements::EnsureRequirements;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_optimizer::projection_pushdown::ProjectionPushdown;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::projection::remove_unnecessary_projections;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, get_ordered_partition_by_indices};
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode};
use rustc_hash::FxHashSet;

/// The last rule that changes operators: joins let scans know their keys. What it links is of one
/// execution.
const LINKS: &str = "FilterPushdown(Post)";

/// DataFusion's rules but the one that links operators for an execution, and that one.
pub(super) fn rules_apart() -> (Vec<Rule>, Vec<Rule>) {
    physical_rules().into_iter().partition(|rule| rule.name() != LINKS)
}

/// A rule for operators.
pub(super) type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// DataFusion's rules, those that push filters down behind a look at the plan.
pub(super) fn physical_rules() -> Vec<Rule> {
    let wrapped = |rule: Arc<dyn PhysicalOptimizerRule + Send + Sync>| {
        let how = match rule.name() {
            name if name.starts_with("FilterPushdown") => where_names_tell,
            name if name == ProjectionPushdown::new().name() => but_for_guards,
            name if name == SanityCheckPlan::new().name() => and_mended,
            _ => as_it_is,
        };
        Arc::new(Wrapped { rule, how }) as Rule
    };
    PhysicalOptimizer::new().rules.into_iter().map(wrapped).collect()
}

/// By itself.
fn as_it_is(
    rule: &dyn PhysicalOptimizerRule,
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    rule.optimize(plan, config)
}

/// How a rule is applied to a plan.
type How = fn(
    &dyn PhysicalOptimizerRule,
    Arc<dyn ExecutionPlan>,
    &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>>;

/// A rule of DataFusion that looks whether its statement is to end, and may be applied another way
/// than by itself.
#[derive(Debug)]
struct Wrapped {
    rule: Arc<dyn PhysicalOptimizerRule + Send + Sync>,
    how: How,
}

impl PhysicalOptimizerRule for Wrapped {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        telesto_sql_types::interrupt::check_long().map_err(super::fault::to_datafusion)?;
        (self.how)(self.rule.as_ref(), plan, config)
    }

    fn name(&self) -> &str {
        self.rule.name()
    }

    fn schema_check(&self) -> bool {
        self.rule.schema_check()
    }
}

/// Filters are pushed down where names tell the columns.
fn where_names_tell(
    rule: &dyn PhysicalOptimizerRule,
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    if finds_columns(&plan, false) { rule.optimize(plan, config) } else { Ok(plan) }
}

/// The last look at a plan. Where it finds an order missing, that is put in and it looks again:
/// what an earlier rule left out because a column is constant, a later one may have lost the reason
/// for.
fn and_mended(
    rule: &dyn PhysicalOptimizerRule,
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = match rule.optimize(Arc::clone(&plan), config) {
        Ok(plan) => plan,
        Err(_) => rule.optimize(EnsureRequirements::new().optimize(plan, config)?, config)?,
    };
    plan.transform_down(|plan| {
        let plan = without_lost_limit(plan)?;
        plan.transform_data(with_partitions_found)
    })
    .data()
}

/// A window whose partitions are told to be sorted finds them by the order of its input, which
/// counts columns that are equal to others, or constant, once: of `PARTITION BY a, b` with `a = b`
/// it looks for both and finds one. It finds them by what is sorted then, and by hashes.
fn with_partitions_found(
    plan: Arc<dyn ExecutionPlan>,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let lost = plan.downcast_ref::<BoundedWindowAggExec>().filter(|window| {
        window.input_order_mode == InputOrderMode::Sorted
            && window.partition_by_sort_keys().is_err()
    });
    let Some(window) = lost else { return Ok(Transformed::no(plan)) };
    let (exprs, input) = (window.window_expr(), window.input());
    let Some(first) = exprs.first() else { return Ok(Transformed::no(plan)) };
    let sorted = get_ordered_partition_by_indices(first.partition_by(), input)?;
    let mode = match sorted.is_empty() {
        true => InputOrderMode::Linear,
        false => InputOrderMode::PartiallySorted(sorted),
    };
    let repartitions = !window.partition_keys().is_empty();
    let found =
        BoundedWindowAggExec::try_new(exprs.to_vec(), Arc::clone(input), mode, repartitions)?;
    Ok(Transformed::yes(Arc::new(found)))
}

/// DISTINCT below a LIMIT ends early where its rows come in no order, which is asked when the limit
/// is given to it and again when it runs. A rule in between may have found an order: then it has a
/// limit that it cannot run with, and goes without.
fn without_lost_limit(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let lost = plan.downcast_ref::<AggregateExec>().filter(|aggregate| {
        let ascending = aggregate.limit_options().map(|limit| limit.descending);
        ascending == Some(None)
            && aggregate.get_minmax_desc().is_none()
            && !aggregate.is_unordered_unfiltered_group_by_distinct()
    });
    Ok(match lost {
        Some(aggregate) => Transformed::yes(Arc::new(aggregate.with_new_limit_options(None))),
        None => Transformed::no(plan),
    })
}

/// Projections are put where fewer columns are passed on. DataFusion's rule also computes parts of
/// one side in the condition of a join without equal keys below the join, for all rows of that
/// side; a plan with a condition that guards some of its parts is left without.
fn but_for_guards(
    rule: &dyn PhysicalOptimizerRule,
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    if plan.exists(|node| Ok(joins_by_cases(node)))? {
        plan.transform_down(remove_unnecessary_projections).data()
    } else {
        rule.optimize(plan, config)
    }
}

/// Whether a node is a join without equal keys whose condition computes a part for some rows alone.
fn joins_by_cases(node: &Arc<dyn ExecutionPlan>) -> bool {
    let filter = node.downcast_ref::<NestedLoopJoinExec>().and_then(NestedLoopJoinExec::filter);
    filter.is_some_and(|filter| {
        let cases =
            filter.expression().exists(|part| Ok(part.downcast_ref::<CaseExpr>().is_some()));
        cases.unwrap_or(true)
    })
}

/// Whether names tell the columns of every operator that a filter may reach. `reached`: one may
/// come from above.
fn finds_columns(plan: &Arc<dyn ExecutionPlan>, reached: bool) -> bool {
    if reached {
        let schema = plan.schema();
        let mut names = FxHashSet::default();
        if !schema.fields().iter().all(|field| names.insert(field.name().as_str())) {
            return false;
        }
        // The parts of a union are told from each other by place, not by name.
        let same = |part: &&Arc<dyn ExecutionPlan>| {
            let part = part.schema();
            let pairs = schema.fields().iter().zip(part.fields());
            pairs.into_iter().all(|(own, other)| own.name() == other.name())
        };
        if plan.downcast_ref::<UnionExec>().is_some() && !plan.children().iter().all(same) {
            return false;
        }
    }
    let filters = plan.downcast_ref::<FilterExec>().is_some();
    let joins = plan.downcast_ref::<HashJoinExec>().is_some();
    plan.children().into_iter().enumerate().all(|(at, child)| {
        // A join makes a filter of its left side's keys for its right side.
        finds_columns(child, reached || filters || (joins && at == 1))
    })
}
