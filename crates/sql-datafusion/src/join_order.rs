//! The order of inner joins, by what statistics tell of their tables: DataFusion joins what a query names in the order of its FROM.
//!
//! # Protocol
//! ```text
//! WHERE and ON ──┐                        ┌─► rows of each: its statistics and the conditions on it alone
//! a, b JOIN c … ─┴─ conditions and inputs ┤
//!                                         └─► rows of two joined: by the distinct values of what is equal
//!        the order whose intermediate rows are the fewest ─► a, c, b under one filter ─► DataFusion's rules
//! ```
//! Up to [`EXACT`] inputs all orders are compared in which each next input is joined to one before it (Selinger et al., SIGMOD 1979, section
//! 5); of more, the next input is the one that leaves the fewest rows.
//!
//! # Invariants
//! - No answer depends on it: inner joins may be made in any order, and what was a condition stays one.
//! - Nothing changes where a stored table among the inputs has not been analyzed, or where the order written is as good.
//!
//! # Limits
//! Inner joins between outer ones, and those of correlated subqueries, stay as they are written. Conditions count as independent.

use std::sync::Arc;

use datafusion::catalog::default_table_source::source_as_provider;
use datafusion::common::tree_node::{Transformed, TreeNode as _, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, NullEquality};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, Expr, Filter, Join, LogicalPlan, LogicalPlanBuilder, Operator, Projection,
};

use super::sort_key;
use super::stored::StoredTable;

/// Inputs of which all orders are compared.
const EXACT: usize = 10;
/// Inputs that are put in order at all.
const MOST: usize = 60;
/// Rows of what nothing is known of.
const UNKNOWN_ROWS: f64 = 1000.0;
/// How much fewer rows another order has to have, so that estimates do not change what is as good.
const GAIN: f64 = 0.8;

/// The plan with its inner joins in their order.
///
/// # Errors
/// Those of DataFusion's plans.
pub(super) fn ordered(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    // Most queries have nothing to be put in order.
    let several = |plan: &LogicalPlan| match plan {
        LogicalPlan::Join(join) => is_inner(&join.left) || is_inner(&join.right),
        _ => false,
    };
    let mut found = false;
    plan.apply_with_subqueries(|plan| {
        found |= is_inner(plan) && several(plan);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if found { whole(plan) } else { Ok(plan) }
}

fn whole(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    let (condition, joined) = match plan {
        LogicalPlan::Filter(filter) if is_inner(&filter.input) => {
            (Some(filter.predicate), Arc::unwrap_or_clone(filter.input))
        }
        plan if is_inner(&plan) => (None, plan),
        plan => return below(plan),
    };
    let schema = Arc::clone(joined.schema());
    let mut inputs = Vec::new();
    let mut conditions = Vec::new();
    inputs_of(&joined, &mut inputs, &mut conditions);
    let mut all = conditions.clone();
    all.extend(condition.clone().map(split_conjunction_owned).unwrap_or_default());
    let better = match (3..=MOST).contains(&inputs.len()) && may_move(&inputs, &conditions) {
        true => better_order(&inputs, &all),
        false => None,
    };
    let Some(order) = better else {
        let joined = below(joined)?;
        return match condition {
            Some(condition) => filtered(joined, condition),
            None => Ok(joined),
        };
    };
    let mut next = order.into_iter().map(|at| below(inputs[at].clone()));
    let Some(first) = next.next() else { return Ok(joined) };
    let mut builder = LogicalPlanBuilder::from(first?);
    for input in next {
        builder = builder.cross_join(input?)?;
    }
    let mut plan = builder.build()?;
    if let Some(condition) = conjunction(all) {
        plan = filtered(plan, condition)?;
    }
    Ok(LogicalPlan::Projection(Projection::new_from_schema(Arc::new(plan), schema)))
}

/// A filter whose subqueries are put in order.
fn filtered(plan: LogicalPlan, condition: Expr) -> DfResult<LogicalPlan> {
    let plan = LogicalPlan::Filter(Filter::try_new(condition, Arc::new(plan))?);
    Ok(plan.map_uncorrelated_subqueries(|plan| whole(plan).map(Transformed::yes))?.data)
}

/// The plan with what stands below it in order, and its subqueries that are not correlated.
fn below(plan: LogicalPlan) -> DfResult<LogicalPlan> {
    let moved = |plan: LogicalPlan| whole(plan).map(Transformed::yes);
    let plan = plan.map_uncorrelated_subqueries(moved)?.data;
    // A subquery of FROM that looks outside is a plan of its own.
    if matches!(plan, LogicalPlan::Subquery(_)) {
        return Ok(plan);
    }
    let done = plan.map_children(moved)?.data;
    done.recompute_schema()
}

fn is_inner(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Join(join) if is_plain(join))
}

fn is_plain(join: &Join) -> bool {
    join.join_type == JoinType::Inner
        && join.null_equality == NullEquality::NullEqualsNothing
        && !join.null_aware
}

/// The inputs of a tree of inner joins from left to right, and its conditions.
fn inputs_of(plan: &LogicalPlan, inputs: &mut Vec<LogicalPlan>, conditions: &mut Vec<Expr>) {
    match plan {
        LogicalPlan::Join(join) if is_plain(join) => {
            inputs_of(&join.left, inputs, conditions);
            inputs_of(&join.right, inputs, conditions);
            let on = join.on.iter().map(|(left, right)| left.clone().eq(right.clone()));
            conditions.extend(on);
            conditions.extend(join.filter.clone().map(split_conjunction_owned).unwrap_or_default());
        }
        other => inputs.push(other.clone()),
    }
}

/// Whether nothing looks at the inputs' order: none of them sees another, and no condition of ON counts how often it is asked.
fn may_move(inputs: &[LogicalPlan], conditions: &[Expr]) -> bool {
    inputs.iter().all(|input| {
        !matches!(input, LogicalPlan::Subquery(_)) && input.all_out_ref_exprs().is_empty()
    }) && conditions.iter().all(|condition| !condition.is_volatile())
}

/// An input as far as its rows go.
struct Input<'p> {
    plan: &'p LogicalPlan,
    rows: f64,
}

/// A condition on several inputs.
struct Edge {
    /// The inputs it looks at, a bit each.
    inputs: u64,
    selectivity: f64,
    /// Whether it makes two inputs' values equal.
    equates: bool,
}

/// An order that leaves clearly fewer rows between the joins than the one written; `None`: there is none, or it cannot be told.
fn better_order(plans: &[LogicalPlan], conditions: &[Expr]) -> Option<Vec<usize>> {
    let mut inputs = Vec::with_capacity(plans.len());
    for plan in plans {
        inputs.push(Input { plan, rows: rows_of(plan)? });
    }
    let mut edges = Vec::new();
    for condition in conditions {
        let mut seen = 0_u64;
        for column in condition.column_refs() {
            let at = plans.iter().position(|plan| plan.schema().has_column(column))?;
            seen |= 1 << at;
        }
        match seen.count_ones() {
            0 => {}
            1 => {
                let input = &mut inputs[seen.trailing_zeros() as usize];
                input.rows = (input.rows * of_one(input.plan, condition)).max(1.0);
            }
            _ => edges.push(edge(condition, seen, &inputs)),
        }
    }
    let written: Vec<usize> = (0..inputs.len()).collect();
    let order = match inputs.len() <= EXACT {
        true => exact(&inputs, &edges)?,
        false => greedy(&inputs, &edges),
    };
    let better =
        cost(&order, &inputs, &edges) < GAIN * cost(&as_joined(&written, &edges), &inputs, &edges);
    better.then_some(order)
}

/// The order in which DataFusion joins inputs that are named in `order`: the next one is the first that something leads to.
fn as_joined(order: &[usize], edges: &[Edge]) -> Vec<usize> {
    let mut left: Vec<usize> = order.to_vec();
    let mut done = Vec::with_capacity(order.len());
    let mut seen = 0_u64;
    while !left.is_empty() {
        let at = left.iter().position(|at| seen != 0 && leads(seen, *at, edges)).unwrap_or(0);
        let next = left.remove(at);
        seen |= 1 << next;
        done.push(next);
    }
    done
}

/// Whether values of `seen` lead to input `at`.
fn leads(seen: u64, at: usize, edges: &[Edge]) -> bool {
    edges.iter().any(|edge| {
        edge.equates && edge.inputs & (1 << at) != 0 && edge.inputs & !(seen | 1 << at) == 0
    })
}

/// Rows of `rows` rows of the inputs `seen` joined with input `at`.
fn joined(rows: f64, seen: u64, at: usize, inputs: &[Input<'_>], edges: &[Edge]) -> f64 {
    let with = seen | 1 << at;
    let mut selectivity = 1.0;
    for edge in edges {
        if edge.inputs & (1 << at) != 0 && edge.inputs & !with == 0 {
            selectivity *= edge.selectivity;
        }
    }
    (rows * inputs[at].rows * selectivity).max(1.0)
}

/// All rows between the joins of an order.
fn cost(order: &[usize], inputs: &[Input<'_>], edges: &[Edge]) -> f64 {
    let Some((first, rest)) = order.split_first() else { return 0.0 };
    let (mut seen, mut rows, mut cost) = (1_u64 << first, inputs[*first].rows, 0.0);
    for at in rest {
        rows = joined(rows, seen, *at, inputs, edges);
        seen |= 1 << at;
        cost += rows;
    }
    cost
}

/// The cheapest order, by those of all sets of inputs.
fn exact(inputs: &[Input<'_>], edges: &[Edge]) -> Option<Vec<usize>> {
    struct Best {
        cost: f64,
        rows: f64,
        order: Vec<usize>,
    }
    let mut best: Vec<Option<Best>> = Vec::new();
    best.resize_with(1 << inputs.len(), || None);
    for (at, input) in inputs.iter().enumerate() {
        best[1 << at] = Some(Best { cost: 0.0, rows: input.rows, order: vec![at] });
    }
    for set in 1..best.len() {
        let Some(so_far) = best[set].take() else { continue };
        let seen = set as u64;
        let free = (0..inputs.len()).filter(|at| seen & (1 << at) == 0);
        let led: Vec<usize> = free.clone().filter(|at| leads(seen, *at, edges)).collect();
        let next = if led.is_empty() { free.collect() } else { led };
        for at in next {
            let rows = joined(so_far.rows, seen, at, inputs, edges);
            let cost = so_far.cost + rows;
            let there = &mut best[set | 1 << at];
            if there.as_ref().is_none_or(|there| cost < there.cost) {
                let mut order = so_far.order.clone();
                order.push(at);
                *there = Some(Best { cost, rows, order });
            }
        }
        best[set] = Some(so_far);
    }
    best.pop().flatten().map(|best| best.order)
}

/// From the smallest input on, the next one that leaves the fewest rows.
fn greedy(inputs: &[Input<'_>], edges: &[Edge]) -> Vec<usize> {
    let mut left: Vec<usize> = (0..inputs.len()).collect();
    let (mut seen, mut rows, mut order) = (0_u64, 1.0, Vec::with_capacity(inputs.len()));
    while !left.is_empty() {
        let some_lead = left.iter().any(|at| leads(seen, *at, edges));
        let after = |at: &usize| {
            let apart = some_lead && !leads(seen, *at, edges);
            (apart, joined(rows, seen, *at, inputs, edges))
        };
        let least = left.iter().enumerate().min_by(|(_, one), (_, other)| {
            let (one, other) = (after(one), after(other));
            one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))
        });
        let Some(at) = least.map(|(at, _)| at) else { break };
        let next = left.remove(at);
        rows = joined(rows, seen, next, inputs, edges);
        seen |= 1 << next;
        order.push(next);
    }
    order
}

fn edge(condition: &Expr, seen: u64, inputs: &[Input<'_>]) -> Edge {
    let other = |selectivity| Edge { inputs: seen, selectivity, equates: false };
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = condition else {
        return other(1.0 / 3.0);
    };
    let side = |expr: &Expr| {
        let mut columns = expr.column_refs().into_iter();
        let first = columns.next()?;
        let input = inputs.iter().position(|input| input.plan.schema().has_column(first))?;
        let one = columns.all(|column| inputs[input].plan.schema().has_column(column));
        one.then_some(input)
    };
    let (Some(one), Some(two)) = (side(left), side(right)) else { return other(0.1) };
    if one == two {
        return other(0.1);
    }
    let distinct = |expr: &Expr, input: usize| {
        let known = column_of(expr).and_then(|column| distinct(inputs[input].plan, column));
        // Of unknown values a row has one of its own: keys lead from table to table.
        known.unwrap_or_else(|| rows_of(inputs[input].plan).unwrap_or(UNKNOWN_ROWS)).max(1.0)
    };
    let selectivity = 1.0 / distinct(left, one).max(distinct(right, two));
    Edge { inputs: seen, selectivity, equates: true }
}

/// The column that an expression is, or is the sort key of.
fn column_of(expr: &Expr) -> Option<&Column> {
    match expr {
        Expr::Column(column) => Some(column),
        Expr::Cast(cast) => column_of(&cast.expr),
        Expr::Alias(alias) => column_of(&alias.expr),
        other => sort_key::of_sort_key(other).and_then(column_of),
    }
}

/// The stored table that a plan reads and nothing else.
fn stored(plan: &LogicalPlan) -> Option<Arc<dyn datafusion::catalog::TableProvider>> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => stored(&alias.input),
        LogicalPlan::TableScan(scan) => source_as_provider(&scan.source)
            .ok()
            .filter(|provider| provider.downcast_ref::<StoredTable>().is_some()),
        _ => None,
    }
}

/// Rows that a plan gives; `None`: a stored table in it has not been analyzed.
fn rows_of(plan: &LogicalPlan) -> Option<f64> {
    if let Some(provider) = stored(plan) {
        return provider.downcast_ref::<StoredTable>()?.known_rows();
    }
    Some(match plan {
        LogicalPlan::SubqueryAlias(alias) => rows_of(&alias.input)?,
        LogicalPlan::Projection(projection) => rows_of(&projection.input)?,
        LogicalPlan::Sort(sort) => rows_of(&sort.input)?,
        LogicalPlan::Window(window) => rows_of(&window.input)?,
        LogicalPlan::Filter(filter) => {
            (rows_of(&filter.input)? * of_one(&filter.input, &filter.predicate)).max(1.0)
        }
        LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => 1.0,
        LogicalPlan::Aggregate(aggregate) => {
            let rows = rows_of(&aggregate.input)?;
            let each = aggregate.group_expr.iter().map(|expr| {
                let known = column_of(expr).and_then(|column| distinct(&aggregate.input, column));
                known.unwrap_or(rows / 10.0).max(1.0)
            });
            each.product::<f64>().min(rows).max(1.0)
        }
        LogicalPlan::Distinct(_) => {
            let mut inputs = plan.inputs().into_iter();
            (rows_of(inputs.next()?)? / 10.0).max(1.0)
        }
        LogicalPlan::Join(join) => {
            let (left, right) = (rows_of(&join.left)?, rows_of(&join.right)?);
            match join.join_type {
                JoinType::LeftSemi | JoinType::LeftAnti => left / 2.0,
                _ => left.max(right),
            }
        }
        LogicalPlan::Union(union) => {
            let mut rows = 0.0;
            for input in &union.inputs {
                rows += rows_of(input)?;
            }
            rows
        }
        LogicalPlan::EmptyRelation(_) => 1.0,
        LogicalPlan::Values(values) => values.values.len() as f64,
        _ => {
            for input in plan.inputs() {
                rows_of(input)?;
            }
            UNKNOWN_ROWS
        }
    })
}

/// Distinct values of a column of a plan, as far as they are known.
fn distinct(plan: &LogicalPlan, column: &Column) -> Option<f64> {
    if let Some(provider) = stored(plan) {
        return provider.downcast_ref::<StoredTable>()?.known_distinct(&column.name);
    }
    match plan {
        LogicalPlan::SubqueryAlias(alias) => {
            let at = plan.schema().maybe_index_of_column(column)?;
            let (relation, field) = alias.input.schema().qualified_field(at);
            distinct(&alias.input, &Column::new(relation.cloned(), field.name()))
        }
        LogicalPlan::Projection(projection) => {
            let at = plan.schema().maybe_index_of_column(column)?;
            distinct(&projection.input, column_of(projection.expr.get(at)?)?)
        }
        LogicalPlan::Filter(filter) => distinct(&filter.input, column),
        LogicalPlan::Sort(sort) => distinct(&sort.input, column),
        _ => None,
    }
}

/// The part of a plan's rows that a condition on it alone leaves.
fn of_one(plan: &LogicalPlan, condition: &Expr) -> f64 {
    let own = |condition: &Expr| of_one(plan, condition);
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => own(left) * own(right),
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
            let (left, right) = (own(left), own(right));
            left + right - left * right
        }
        Expr::Not(inner) => 1.0 - own(inner),
        other => {
            let provider = stored(plan);
            let known = provider.as_ref().and_then(|provider| {
                provider.downcast_ref::<StoredTable>()?.known_selectivity(other)
            });
            known.unwrap_or_else(|| guess(other))
        }
    }
}

/// What is taken for the part that a condition leaves of which nothing is known.
fn guess(condition: &Expr) -> f64 {
    match condition {
        Expr::BinaryExpr(BinaryExpr { op: Operator::Eq, .. }) => 0.005,
        Expr::BinaryExpr(BinaryExpr { op: Operator::NotEq, .. }) => 0.995,
        Expr::BinaryExpr(_) => 1.0 / 3.0,
        Expr::InList(list) if list.negated => 0.9,
        Expr::InList(list) => (0.005 * list.list.len() as f64).min(0.5),
        Expr::IsNull(_) => 0.005,
        Expr::IsNotNull(_) => 0.995,
        Expr::Exists(_) | Expr::InSubquery(_) => 0.5,
        Expr::ScalarFunction(call) if call.name().contains("~~") => 0.05,
        _ => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(one: usize, other: usize, distinct: f64) -> Edge {
        Edge { inputs: 1 << one | 1 << other, selectivity: 1.0 / distinct, equates: true }
    }

    /// A row of inputs in which each leads to the next, the first to the second and so on.
    fn chain<'p>(plan: &'p LogicalPlan, rows: &[f64]) -> (Vec<Input<'p>>, Vec<Edge>) {
        let inputs = rows.iter().map(|rows| Input { plan, rows: *rows }).collect();
        let edges = (1..rows.len()).map(|at| equal(at - 1, at, rows[at].max(rows[at - 1])));
        (inputs, edges.collect())
    }

    #[test]
    fn order_begins_where_few_rows_are_and_goes_where_values_lead() {
        let plan = LogicalPlanBuilder::empty(true).build().expect("a plan");
        let (inputs, edges) = chain(&plan, &[1_000_000.0, 1000.0, 1.0, 500_000.0]);
        let order = exact(&inputs, &edges).expect("an order");
        // Never an input that nothing leads to yet, and never the two large ones side by side.
        for at in 1..order.len() {
            let seen = order[..at].iter().fold(0, |seen, at| seen | 1 << at);
            assert!(leads(seen, order[at], &edges), "{order:?}");
        }
        assert!(cost(&order, &inputs, &edges) < cost(&[0, 1, 2, 3], &inputs, &edges));
        let quick = greedy(&inputs, &edges);
        assert_eq!(quick[0], 2, "{quick:?}");
        assert!(cost(&order, &inputs, &edges) <= cost(&quick, &inputs, &edges));
    }

    #[test]
    fn exact_order_is_the_cheapest_of_those_in_which_values_lead() {
        let plan = LogicalPlanBuilder::empty(true).build().expect("a plan");
        let (inputs, mut edges) = chain(&plan, &[100.0, 10.0, 2000.0, 5.0]);
        edges.push(equal(0, 3, 7.0));
        let best = cost(&exact(&inputs, &edges).expect("an order"), &inputs, &edges);
        let mut order = [0, 1, 2, 3];
        let mut least = f64::INFINITY;
        permutations(&mut order, 0, &mut |order| {
            let led = (1..order.len()).all(|at| {
                let seen = order[..at].iter().fold(0, |seen, at| seen | 1 << at);
                leads(seen, order[at], &edges)
            });
            if led {
                least = least.min(cost(order, &inputs, &edges));
            }
        });
        assert!((best - least).abs() < 1e-6, "{best} is not {least}");
    }

    fn permutations(order: &mut [usize; 4], at: usize, see: &mut dyn FnMut(&[usize])) {
        if at == order.len() {
            return see(order);
        }
        for other in at..order.len() {
            order.swap(at, other);
            permutations(order, at + 1, see);
            order.swap(at, other);
        }
    }
}
