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
//! - A condition that may fail is looked at for rows of the side of a join that it names, above the join or within it.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, Result, ScalarValue, internal_err};
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
                let filter = whole_alias(columns_left(filter)?)?;
                match Arc::unwrap_or_clone(filter.input) {
                    LogicalPlan::Join(join) => self.over_join(join, Some(filter.predicate), config),
                    input => {
                        let filter = filtered(input, filter.predicate)?;
                        self.0.rewrite(filter, config)
                    }
                }
            }
            LogicalPlan::Join(join) => self.over_join(join, None, config),
            plan => self.0.rewrite(plan, config),
        }
    }
}

impl KeepsMeaning {
    /// A join, below a condition or none. Conditions that may fail and name only keys of one side do not reach the rule: they are given to
    /// that side, or come back to where they stood.
    fn over_join(
        &self,
        mut join: Join,
        condition: Option<Expr>,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let whole = condition.is_some();
        let above = given_to_sides(&mut join, condition, rows_that_come_out)?;
        let within = join.filter.take();
        let within = given_to_sides(&mut join, within, rows_that_match)?;
        join.filter = conjunction(within.passed);
        let plan = LogicalPlan::Join(join);
        let done = match conjunction(above.passed) {
            Some(condition) => self.0.rewrite(filtered(plan, condition)?, config)?,
            // The filter is gone: its join is looked at when the rule comes again.
            None if whole => Transformed::yes(plan),
            None => self.0.rewrite(plan, config)?,
        };
        let given = above.given || within.given;
        let plan = kept_within(done.data, within.held)?;
        let plan = match conjunction(above.held) {
            Some(held) => filtered(plan, held)?,
            None => plan,
        };
        Ok(Transformed::new(plan, done.transformed || given, done.tnr))
    }
}

/// What becomes of a join's conditions.
struct Conditions {
    /// Those that the rule sees.
    passed: Vec<Expr>,
    /// Those that it would take for the other side's.
    held: Vec<Expr>,
    /// Whether any became a filter of the side that it names.
    given: bool,
}

/// Gives conditions that may fail and name only keys of one side of a join to that side, if the join allows it.
fn given_to_sides(
    join: &mut Join,
    condition: Option<Expr>,
    allowed: fn(JoinType, Side) -> bool,
) -> Result<Conditions> {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut done = Conditions { passed: Vec::new(), held: Vec::new(), given: false };
    for condition in condition.into_iter().flat_map(split_conjunction_owned) {
        match keys_that_fail(join, &condition) {
            None => done.passed.push(condition),
            Some(side) if !allowed(join.join_type, side) => done.held.push(condition),
            Some(Side::Left) => left.push(condition),
            Some(Side::Right) => right.push(condition),
        }
    }
    done.given = !left.is_empty() || !right.is_empty();
    for (side, conditions) in [(&mut join.left, left), (&mut join.right, right)] {
        if let Some(condition) = conjunction(conditions) {
            *side = Arc::new(filtered(LogicalPlan::clone(side), condition)?);
        }
    }
    Ok(done)
}

/// Whether a condition above a join may be looked at for the rows of a side: each row that comes out has one of it.
fn rows_that_come_out(join: JoinType, side: Side) -> bool {
    use JoinType::{Inner, Left, LeftAnti, LeftSemi, Right, RightAnti, RightSemi};
    match side {
        Side::Left => matches!(join, Inner | Left | LeftSemi | LeftAnti),
        Side::Right => matches!(join, Inner | Right | RightSemi | RightAnti),
    }
}

/// Whether a condition of a join may be looked at for the rows of a side: those that do not match are of no use.
fn rows_that_match(join: JoinType, side: Side) -> bool {
    let (left, right) = join.on_lr_is_preserved();
    match side {
        Side::Left => left,
        Side::Right => right,
    }
}

/// The join, below filters or none, with conditions more.
fn kept_within(plan: LogicalPlan, held: Vec<Expr>) -> Result<LogicalPlan> {
    if held.is_empty() {
        return Ok(plan);
    }
    match plan {
        LogicalPlan::Join(mut join) => {
            join.filter = conjunction(join.filter.take().into_iter().chain(held));
            Ok(LogicalPlan::Join(join))
        }
        LogicalPlan::Filter(filter) => {
            filtered(kept_within(Arc::unwrap_or_clone(filter.input), held)?, filter.predicate)
        }
        _ => internal_err!("a join stays one when conditions are pushed down"),
    }
}

/// A join's side.
#[derive(Clone, Copy)]
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
