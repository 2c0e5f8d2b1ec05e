//! DataFusion's rules for conditions, where they keep their meaning.
//!
//! DataFusion 55 gets three things wrong in `PushDownFilter`:
//! - It moves a condition without columns below any aggregate: `false` above `SELECT count(*) …` became `count(*)` of nothing,
//!   one row instead of none. Such a condition comes about when the optimiser finds that a column is never NULL.
//! - Of conditions on one column it takes `1 = x AND x = 1` for two different ones, which no value meets, and
//!   `5 < x AND x >= 5` for `x >= 5` (`simplify_predicates`).
//! - It panics below an alias that has fewer columns than its input, which `PullUpCorrelatedExpr` leaves behind.
//!
//! And two of its rules compute what may fail for rows that it is not for ([`super::guards`] comes behind all rules): `PushDownFilter`
//! takes a condition over one side's key of a join for one over the other side's, too, and `CommonSubexprEliminate` computes what stands
//! twice in a filter below it, unless something stands before it that may decide.
//!
//! # Invariants
//! - No condition passes an aggregate without groups, or one with grouping sets, on its way down.
//! - Where conditions on one column are made one, all have the column on the left.
//! - A condition above a join that may fail is looked at for rows of the side that it names, or above the join.
//!
//! # Limits
//! - A condition in the ON of an outer join that may fail and names only keys of the side that is kept is still taken for the other side's.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, Result, ScalarValue};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{BinaryExpr, Expr, Filter, Join, LogicalPlan, SubqueryAlias};
use datafusion::optimizer::{ApplyOrder, Optimizer, OptimizerConfig, OptimizerRule};

use super::guards::may_fail;

/// DataFusion's rules, less those that get something wrong.
pub(super) fn logical_rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let mut rules = Optimizer::new().rules;
    // It computes an aggregate in two steps, as if a sum of sums had the type of a sum: PostgreSQL's sum of bigint is numeric.
    rules.retain(|rule| rule.name() != "single_distinct_aggregation_to_group_by");
    for rule in &mut rules {
        match rule.name() {
            "push_down_filter" => *rule = Arc::new(KeepsMeaning(Arc::clone(rule))),
            "common_sub_expression_eliminate" => *rule = Arc::new(SteadyFirst(Arc::clone(rule))),
            _ => {}
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
                let (filter, above) = beside_keys(whole_alias(filter)?)?;
                let below = match filter {
                    LogicalPlan::Filter(_) => self.0.rewrite(filter, config)?,
                    plan => Transformed::yes(plan),
                };
                match conjunction(above) {
                    Some(above) => below.map_data(|below| filtered(below, above)),
                    None => Ok(below),
                }
            }
            LogicalPlan::Join(mut join) if join.join_type == JoinType::Inner => {
                let Some(condition) = join.filter.take() else {
                    return self.0.rewrite(LogicalPlan::Join(join), config);
                };
                let (conditions, given) = given_to_sides(&mut join, condition)?;
                join.filter = conjunction(conditions);
                let done = self.0.rewrite(LogicalPlan::Join(join), config)?;
                Ok(Transformed::new(done.data, done.transformed || given, done.tnr))
            }
            plan => self.0.rewrite(plan, config),
        }
    }
}

/// The filter, without conditions that may fail and name only keys of a join right below it: those are given to the side they name, or
/// come back to stand above, if they look at rows that the join makes.
fn beside_keys(filter: Filter) -> Result<(LogicalPlan, Vec<Expr>)> {
    let mut join = match Arc::unwrap_or_clone(filter.input) {
        LogicalPlan::Join(join) => join,
        input => {
            let filter = Filter::try_new(filter.predicate, Arc::new(input))?;
            return Ok((LogicalPlan::Filter(filter), Vec::new()));
        }
    };
    let (conditions, _) = given_to_sides(&mut join, filter.predicate)?;
    let (above, conditions): (Vec<_>, Vec<_>) =
        conditions.into_iter().partition(|condition| keys_that_fail(&join, condition).is_some());
    let join = LogicalPlan::Join(join);
    let below = match conjunction(conditions) {
        Some(condition) => filtered(join, condition)?,
        None => join,
    };
    Ok((below, above))
}

/// The conjuncts that stay, after those that may fail and name only keys of one side of a join went to that side, where its rows are those
/// that come out of the join. Whether any went.
fn given_to_sides(join: &mut Join, condition: Expr) -> Result<(Vec<Expr>, bool)> {
    let (mut left, mut right, mut stay) = (Vec::new(), Vec::new(), Vec::new());
    for condition in split_conjunction_owned(condition) {
        match (keys_that_fail(join, &condition), join.join_type) {
            (
                Some(Side::Left),
                JoinType::Inner | JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti,
            ) => left.push(condition),
            (
                Some(Side::Right),
                JoinType::Inner | JoinType::Right | JoinType::RightSemi | JoinType::RightAnti,
            ) => right.push(condition),
            _ => stay.push(condition),
        }
    }
    let given = !left.is_empty() || !right.is_empty();
    for (side, conditions) in [(&mut join.left, left), (&mut join.right, right)] {
        if let Some(condition) = conjunction(conditions) {
            *side = Arc::new(filtered(LogicalPlan::clone(side), condition)?);
        }
    }
    Ok((stay, given))
}

/// A join's side.
enum Side {
    Left,
    Right,
}

/// The side of a join that a condition names only keys of, if it may fail and DataFusion would take it for the other side's.
fn keys_that_fail(join: &Join, condition: &Expr) -> Option<Side> {
    if !may_fail(condition) || condition.is_volatile() {
        return None;
    }
    let pairs = || join.on.iter().filter_map(|(l, r)| Some((l.try_as_col()?, r.try_as_col()?)));
    let columns = condition.column_refs();
    let only = |keys: Vec<&Column>| {
        !columns.is_empty() && columns.iter().all(|column| keys.contains(column))
    };
    if only(pairs().map(|(left, _)| left).collect()) {
        Some(Side::Left)
    } else if only(pairs().map(|(_, right)| right).collect()) {
        Some(Side::Right)
    } else {
        None
    }
}

fn filtered(input: LogicalPlan, condition: Expr) -> Result<LogicalPlan> {
    Filter::try_new(condition, Arc::new(input)).map(LogicalPlan::Filter)
}

/// Finds what stands twice when conditions that may fail stand last in their filters: only what comes first is computed for all rows.
#[derive(Debug)]
struct SteadyFirst(Arc<dyn OptimizerRule + Send + Sync>);

impl OptimizerRule for SteadyFirst {
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
        let sorted = plan.transform_down_with_subqueries(|node| match node {
            LogicalPlan::Filter(filter) if may_fail(&filter.predicate) => {
                let mut conditions = split_conjunction_owned(filter.predicate);
                let sorted = conditions.is_sorted_by_key(may_fail);
                conditions.sort_by_cached_key(may_fail);
                let condition = conjunction(conditions).unwrap_or_else(truth);
                let filter = Filter::try_new(condition, filter.input)?;
                Ok(Transformed::new(
                    LogicalPlan::Filter(filter),
                    !sorted,
                    TreeNodeRecursion::Continue,
                ))
            }
            node => Ok(Transformed::no(node)),
        })?;
        let done = self.0.rewrite(sorted.data, config)?;
        Ok(Transformed::new(done.data, done.transformed || sorted.transformed, done.tnr))
    }
}

fn truth() -> Expr {
    Expr::Literal(ScalarValue::Boolean(Some(true)), None)
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

/// The condition and those right below it as one, with the columns they compare with values on the left.
fn columns_left(filter: Filter) -> Result<Filter> {
    let mut conditions = Vec::new();
    let mut input = LogicalPlan::Filter(filter);
    while let LogicalPlan::Filter(filter) = input {
        conditions
            .splice(0..0, split_conjunction_owned(filter.predicate).into_iter().map(column_left));
        input = Arc::unwrap_or_clone(filter.input);
    }
    Filter::try_new(conjunction(conditions).unwrap_or_else(truth), Arc::new(input))
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
