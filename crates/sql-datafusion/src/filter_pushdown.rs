//! DataFusion's rules for conditions, where they keep their meaning.
//!
//! DataFusion 55 gets four things wrong in `PushDownFilter`:
//! - It moves a condition without columns below any aggregate: `false` above `SELECT count(*) …`
//!   became `count(*)` of nothing, one row instead of none. Such a condition comes about when the
//!   optimiser finds that a column is never NULL.
//! - Of conditions on one column it takes `1 = x AND x = 1` for two different ones, which no value
//!   meets, and `5 < x AND x >= 5` for `x >= 5` (`simplify_predicates`).
//! - It moves a condition without columns below any node of ours, whatever that says: into one copy
//!   of a WITH query that is computed once, for all.
//! - It panics below an alias that has fewer columns than its input, which `PullUpCorrelatedExpr`
//!   leaves behind.
//!
//! And two of its rules compute what may fail for rows that it is not for ([`super::guards`] comes
//! behind all rules): `PushDownFilter` takes a condition over a key of a join for one over the
//! other side's equal key, too, and `CommonSubexprEliminate` computes what stands twice in a filter
//! below it, unless something stands before it that may decide.
//!
//! # Invariants
//! - Before each step of a rule the statement looks whether it is to end: data and constants decide
//!   how many steps there are.
//! - No condition passes an aggregate without groups, or one with grouping sets, on its way down.
//! - Where conditions on one column are made one, all have the column on the left.
//! - A condition that may fail is looked at for rows of the side of a join that it names, or for
//!   rows that the join puts together.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, Result, ScalarValue, internal_err};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{BinaryExpr, Expr, Filter, Join, LogicalPlan, SubqueryAlias};
use datafusion::optimizer::{ApplyOrder, Optimizer, OptimizerConfig, OptimizerRule};

use super::guards::{may_fail, risk, wants_guard};
use super::window_keys::without_names;
use super::{once, row_by_row};

/// DataFusion's rules, less those that get something wrong.
pub(super) fn logical_rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let mut rules = Optimizer::new().rules;
    // It computes an aggregate in two steps, as if a sum of sums had the type of a sum:
    // PostgreSQL's sum of bigint is numeric.
    rules.retain(|rule| rule.name() != "single_distinct_aggregation_to_group_by");
    let wrapped = |rule: Arc<dyn OptimizerRule + Send + Sync>| {
        let how = match rule.name() {
            "push_down_filter" => pushed_down,
            "common_sub_expression_eliminate" => steady_first,
            _ => as_it_is,
        };
        Arc::new(Wrapped { rule, how }) as Arc<dyn OptimizerRule + Send + Sync>
    };
    rules.into_iter().map(wrapped).collect()
}

/// By itself.
fn as_it_is(
    rule: &dyn OptimizerRule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    rule.rewrite(plan, config)
}

/// How a rule is applied to a plan.
type How =
    fn(&dyn OptimizerRule, LogicalPlan, &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>>;

/// A rule of DataFusion that looks whether its statement is to end, and may be applied another way
/// than by itself.
#[derive(Debug)]
struct Wrapped {
    rule: Arc<dyn OptimizerRule + Send + Sync>,
    how: How,
}

impl OptimizerRule for Wrapped {
    fn name(&self) -> &str {
        self.rule.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.rule.apply_order()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        // A step over one node takes milliseconds where it holds a list of thousands.
        telesto_sql_types::interrupt::check_long().map_err(super::fault::to_datafusion)?;
        (self.how)(self.rule.as_ref(), plan, config)
    }
}

/// Conditions are pushed down where that keeps their meaning.
fn pushed_down(
    rule: &dyn OptimizerRule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    match plan {
        LogicalPlan::Filter(filter) if whole(&filter.input) => {
            Ok(Transformed::no(LogicalPlan::Filter(filter)))
        }
        LogicalPlan::Filter(filter) if row_by_row::is_row_by_row(&filter.input) => {
            row_by_row::filtered_below(filter)
        }
        LogicalPlan::Filter(filter) => {
            let merged = matches!(*filter.input, LogicalPlan::Filter(_));
            let filter = whole_alias(columns_left(filter)?)?;
            // The rule would have those without columns pass. One copy of what is computed once
            // gives all others their rows.
            if once::input(&filter.input).is_some() {
                return Ok(Transformed::new_transformed(LogicalPlan::Filter(filter), merged));
            }
            if row_by_row::is_row_by_row(&filter.input) {
                return row_by_row::filtered_below(filter);
            }
            match Arc::unwrap_or_clone(filter.input) {
                LogicalPlan::Join(join) => over_join(rule, join, Some(filter.predicate), config),
                input => rule.rewrite(filtered(input, filter.predicate)?, config),
            }
        }
        LogicalPlan::Join(join) => over_join(rule, join, None, config),
        plan => rule.rewrite(plan, config),
    }
}

/// A join, below a condition or none. Conditions that may fail do not reach the rule where it would
/// copy them: they are given to the side that they name, or come back to where they stood.
fn over_join(
    rule: &dyn OptimizerRule,
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
        Some(condition) => rule.rewrite(filtered(plan, condition)?, config)?,
        // The filter is gone: its join is looked at when the rule comes again.
        None if whole => Transformed::yes(plan),
        None => rule.rewrite(plan, config)?,
    };
    let given = above.given || within.given;
    let plan = kept_within(done.data, within.held)?;
    // One filter, not two: operators put two together again, without guards.
    let plan = match (plan, conjunction(above.held)) {
        (LogicalPlan::Filter(rest), Some(held)) => {
            filtered(Arc::unwrap_or_clone(rest.input), rest.predicate.and(held))?
        }
        (plan, Some(held)) => filtered(plan, held)?,
        (plan, None) => plan,
    };
    Ok(Transformed::new(plan, done.transformed || given, done.tnr))
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

/// Gives conditions that may fail, and would be copied, to the one side of a join that they name,
/// if the join allows it.
fn given_to_sides(
    join: &mut Join,
    condition: Option<Expr>,
    allowed: fn(JoinType, Side) -> bool,
) -> Result<Conditions> {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    let mut done = Conditions { passed: Vec::new(), held: Vec::new(), given: false };
    for condition in condition.into_iter().flat_map(split_conjunction_owned) {
        match copied(join, &condition) {
            None => done.passed.push(condition),
            Some(Some(side)) if allowed(join.join_type, side) => match side {
                Side::Left => left.push(condition),
                Side::Right => right.push(condition),
            },
            Some(_) => done.held.push(condition),
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

/// Whether a condition above a join may be looked at for the rows of a side: each row that comes
/// out has one of it.
fn rows_that_come_out(join: JoinType, side: Side) -> bool {
    use JoinType::{Inner, Left, LeftAnti, LeftSemi, Right, RightAnti, RightSemi};
    match side {
        Side::Left => matches!(join, Inner | Left | LeftSemi | LeftAnti),
        Side::Right => matches!(join, Inner | Right | RightSemi | RightAnti),
    }
}

/// Whether a condition of a join may be looked at for the rows of a side: those that do not match
/// are of no use.
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

/// Whether a condition may fail and DataFusion would take it for another, over one side alone: each
/// key in it is replaced by the other side's equal one. `Some(None)` if it names columns of both
/// sides as it is.
fn copied(join: &Join, condition: &Expr) -> Option<Option<Side>> {
    if !may_fail(condition) || condition.is_volatile() {
        return None;
    }
    let pairs = || join.on.iter().filter_map(|(l, r)| Some((l.try_as_col()?, r.try_as_col()?)));
    let columns = condition.column_refs();
    let all = |of: &dyn Fn(&Column) -> bool| columns.iter().all(|column| of(column));
    let left = |column: &Column| join.left.schema().has_column(column);
    let right = |column: &Column| join.right.schema().has_column(column);
    let to_left = all(&|column| left(column) || pairs().any(|(_, key)| key == column));
    let to_right = all(&|column| right(column) || pairs().any(|(key, _)| key == column));
    match (all(&left), all(&right)) {
        (true, true) => None,
        (true, false) => to_right.then_some(Some(Side::Left)),
        (false, true) => to_left.then_some(Some(Side::Right)),
        (false, false) => (to_left || to_right).then_some(None),
    }
}

fn filtered(input: LogicalPlan, condition: Expr) -> Result<LogicalPlan> {
    Filter::try_new(condition, Arc::new(input)).map(LogicalPlan::Filter)
}

/// What stands twice is looked for when conditions that may fail stand last in their filters: only
/// what comes first is computed for all rows. Behind it keys of windows have no names.
fn steady_first(
    rule: &dyn OptimizerRule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let sorted = plan.transform_down_with_subqueries(|node| match node {
        LogicalPlan::Filter(filter) if wants_guard(&filter.predicate) => {
            let mut conditions = split_conjunction_owned(filter.predicate);
            let sorted = conditions.is_sorted_by_key(risk);
            conditions.sort_by_cached_key(risk);
            let condition = conjunction(conditions).unwrap_or_else(truth);
            let filter = filtered(Arc::unwrap_or_clone(filter.input), condition)?;
            Ok(Transformed::new(filter, !sorted, TreeNodeRecursion::Continue))
        }
        node => Ok(Transformed::no(node)),
    })?;
    let done = rule.rewrite(sorted.data, config)?;
    let changed = done.transformed || sorted.transformed;
    let data = if done.transformed { without_names(done.data)?.data } else { done.data };
    Ok(Transformed::new(data, changed, done.tnr))
}

fn truth() -> Expr {
    Expr::Literal(ScalarValue::Boolean(Some(true)), None)
}

/// The filter over an alias that has all columns of what it is for: pulling correlated columns up
/// adds some below, and the rule looks for the alias's columns by their places.
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

/// The condition and those right below it as one, with the columns they compare with values on the
/// left.
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
