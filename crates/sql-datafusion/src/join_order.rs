//! The order of inner joins, by what statistics tell of their tables: DataFusion joins what a query
//! names in the order of its FROM.
//!
//! # Protocol
//! ```text
//! WHERE and ON ──┐                        ┌─► rows of each: its statistics and the conditions on it alone
//! a, b JOIN c … ─┴─ conditions and inputs ┤
//!                                         └─► rows of two joined: by the distinct values of what is equal
//!        the order whose intermediate rows are the fewest ─► a, c, b under one filter ─► DataFusion's rules
//! ```
//! `a = b` and `b = c` make `a = c`: an order may need what only follows, and has it as a condition
//! more.
//!
//! Beside the rows between joins counts what is read: all of a table that its conditions leave, or
//! the rows that the keys of the joins before it lead to, where those are few and an index begins
//! with the column ([`super::dynamic`]).
//!
//! Up to [`EXACT`] inputs all orders are compared in which each next input is joined to one before
//! it (Selinger et al., SIGMOD 1979, section 5); of more, the next input is the one that leaves the
//! fewest rows.
//!
//! # Invariants
//! - No answer depends on it: inner joins may be made in any order, and what was a condition stays
//!   one.
//! - Nothing changes where a stored table among the inputs has not been analyzed, or where the
//!   order written is as good.
//!
//! # Limits
//! Inner joins between outer ones, and those of correlated subqueries, stay as they are written.
//! Conditions count as independent.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode as _, TreeNodeRecursion};
use datafusion::common::{JoinType, NullEquality};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, Join, LogicalPlan, LogicalPlanBuilder, Projection};

use super::join_edges::{Edge, Input, edges_of, following, leads, selectivity};
use super::join_rows::{of_one, rows_of, stored};
use super::scan_costs::LOOK_UP;
use super::scan_ranges::MAX_RANGES;
use super::stored::StoredTable;

/// Inputs of which all orders are compared.
const EXACT: usize = 10;
/// Inputs that are put in order at all.
const MOST: usize = 60;
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
    let Some((order, more)) = better else {
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
    all.extend(more);
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

/// Whether nothing looks at the inputs' order: none of them sees another, and no condition of ON
/// counts how often it is asked.
fn may_move(inputs: &[LogicalPlan], conditions: &[Expr]) -> bool {
    inputs.iter().all(|input| {
        !matches!(input, LogicalPlan::Subquery(_)) && input.all_out_ref_exprs().is_empty()
    }) && conditions.iter().all(|condition| !condition.is_volatile())
}

/// An order that leaves clearly fewer rows between the joins than the one written; `None`: there is
/// none, or it cannot be told. With the equalities that it needs beside those that are written.
fn better_order(plans: &[LogicalPlan], conditions: &[Expr]) -> Option<(Vec<usize>, Vec<Expr>)> {
    let mut inputs = Vec::with_capacity(plans.len());
    for plan in plans {
        let rows = rows_of(plan)?;
        inputs.push(Input { plan, rows, all: rows, read: 0.0 });
    }
    let mut several = Vec::new();
    let mut own: Vec<Vec<&Expr>> = vec![Vec::new(); inputs.len()];
    for condition in conditions {
        let mut seen = 0_u64;
        for column in condition.column_refs() {
            let at = plans.iter().position(|plan| plan.schema().has_column(column))?;
            seen |= 1 << at;
        }
        match seen.count_ones() {
            0 => {}
            1 => {
                let at = seen.trailing_zeros() as usize;
                own[at].push(condition);
                let input = &mut inputs[at];
                input.rows = (input.rows * of_one(input.plan, condition)).max(1.0);
            }
            _ => several.push((condition, seen)),
        }
    }
    for (input, conditions) in inputs.iter_mut().zip(&own) {
        let provider = stored(input.plan);
        let table = provider.as_ref().and_then(|p| p.downcast_ref::<StoredTable>());
        input.read = table.and_then(|table| table.known_cost(conditions)).unwrap_or(0.0);
    }
    let edges = edges_of(&several, &inputs);
    let written: Vec<usize> = (0..inputs.len()).collect();
    let order = match inputs.len() <= EXACT {
        true => exact(&inputs, &edges)?,
        false => greedy(&inputs, &edges),
    };
    // DataFusion goes by what is written.
    let stated = &edges[..several.len()];
    let before = cost(&as_joined(&written, stated), &inputs, stated);
    let gained = before.total() - cost(&order, &inputs, &edges).total();
    (gained > (1.0 - GAIN) * before.rows).then(|| {
        let more = following(&order, &edges);
        (order, more)
    })
}

/// The order in which DataFusion joins inputs that are named in `order`: the next one is the first
/// that something leads to.
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

/// Rows of `rows` rows of the inputs `seen` joined with input `at`.
fn joined(rows: f64, seen: u64, at: usize, inputs: &[Input<'_>], edges: &[Edge]) -> f64 {
    (rows * inputs[at].rows * selectivity(seen, at, edges)).max(1.0)
}

/// What reading input `at` costs behind `rows` rows of the inputs `seen`.
fn read(rows: f64, seen: u64, at: usize, inputs: &[Input<'_>], edges: &[Edge]) -> f64 {
    let own = inputs[at].read;
    if rows > MAX_RANGES as f64 {
        return own;
    }
    let reaching = edges.iter().filter(|edge| edge.equates && edge.reaches(seen, at));
    let by_keys = reaching.filter_map(|edge| {
        let (_, row_cost) = edge.led.iter().find(|(input, _)| *input == at)?;
        Some(rows * LOOK_UP + rows * inputs[at].all * edge.selectivity * row_cost)
    });
    by_keys.fold(own, f64::min)
}

/// What an order costs.
#[derive(Clone, Copy)]
struct Cost {
    /// Rows between the joins.
    rows: f64,
    /// What is read, in rows of a scan.
    read: f64,
}

impl Cost {
    fn total(self) -> f64 {
        self.rows + self.read
    }
}

fn cost(order: &[usize], inputs: &[Input<'_>], edges: &[Edge]) -> Cost {
    let Some((first, rest)) = order.split_first() else { return Cost { rows: 0.0, read: 0.0 } };
    let (mut seen, mut rows) = (1_u64 << first, inputs[*first].rows);
    let mut cost = Cost { rows: 0.0, read: inputs[*first].read };
    for at in rest {
        cost.read += read(rows, seen, *at, inputs, edges);
        rows = joined(rows, seen, *at, inputs, edges);
        seen |= 1 << at;
        cost.rows += rows;
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
        best[1 << at] = Some(Best { cost: input.read, rows: input.rows, order: vec![at] });
    }
    for set in 1..best.len() {
        let Some(so_far) = best[set].take() else { continue };
        let seen = set as u64;
        let free = (0..inputs.len()).filter(|at| seen & (1 << at) == 0);
        let led: Vec<usize> = free.clone().filter(|at| leads(seen, *at, edges)).collect();
        let next = if led.is_empty() { free.collect() } else { led };
        for at in next {
            let rows = joined(so_far.rows, seen, at, inputs, edges);
            let cost = so_far.cost + rows + read(so_far.rows, seen, at, inputs, edges);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(one: usize, other: usize, distinct: f64) -> Edge {
        let inputs = 1 << one | 1 << other;
        let (selectivity, equates, led) = (1.0 / distinct, true, Vec::new());
        Edge { inputs, selectivity, equates, led, class: None, follows: None }
    }

    /// A row of inputs in which each leads to the next, the first to the second and so on.
    fn chain<'p>(plan: &'p LogicalPlan, rows: &[f64]) -> (Vec<Input<'p>>, Vec<Edge>) {
        let inputs = rows.iter().map(|rows| Input { plan, rows: *rows, all: *rows, read: 0.0 });
        let inputs = inputs.collect();
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
        assert!(
            cost(&order, &inputs, &edges).total() < cost(&[0, 1, 2, 3], &inputs, &edges).total()
        );
        let quick = greedy(&inputs, &edges);
        assert_eq!(quick[0], 2, "{quick:?}");
        assert!(cost(&order, &inputs, &edges).total() <= cost(&quick, &inputs, &edges).total());
    }

    #[test]
    fn exact_order_is_the_cheapest_of_those_in_which_values_lead() {
        let plan = LogicalPlanBuilder::empty(true).build().expect("a plan");
        let (inputs, mut edges) = chain(&plan, &[100.0, 10.0, 2000.0, 5.0]);
        edges.push(equal(0, 3, 7.0));
        let best = cost(&exact(&inputs, &edges).expect("an order"), &inputs, &edges).total();
        let mut order = [0, 1, 2, 3];
        let mut least = f64::INFINITY;
        permutations(&mut order, 0, &mut |order| {
            let led = (1..order.len()).all(|at| {
                let seen = order[..at].iter().fold(0, |seen, at| seen | 1 << at);
                leads(seen, order[at], &edges)
            });
            if led {
                least = least.min(cost(order, &inputs, &edges).total());
            }
        });
        assert!((best - least).abs() < 1e-6, "{best} is not {least}");
    }

    #[test]
    fn keys_lead_to_a_large_table_rather_than_that_all_of_it_is_read() {
        let plan = LogicalPlanBuilder::empty(true).build().expect("a plan");
        // 0: a table of which conditions leave few rows; 1: a large one, of which an index begins
        // with what joins it to 0; 2: a small one that joins 1, and leaves a hundredth of it.
        let rows = [50.0, 600_000.0, 10.0];
        let mut inputs: Vec<Input<'_>> = rows
            .iter()
            .map(|rows| Input { plan: &plan, rows: *rows, all: *rows, read: *rows })
            .collect();
        inputs[0].all = 15_000.0;
        let to = |one, distinct, led| Edge { led, ..equal(one, 1, distinct) };
        let without = [to(0, 15_000.0, Vec::new()), to(2, 1000.0, Vec::new())];
        let order = exact(&inputs, &without).expect("an order");
        assert_eq!(cost(&order, &inputs, &without).read, 600_060.0, "{order:?}");
        let with = [to(0, 15_000.0, vec![(1, 1.0)]), to(2, 1000.0, Vec::new())];
        let order = exact(&inputs, &with).expect("an order");
        assert_eq!(order, [0, 1, 2], "the keys of 0 lead to rows of 1");
        assert!(cost(&order, &inputs, &with).read < 10_000.0);
        // Of very many keys a scan is what they come to.
        assert_eq!(read(MAX_RANGES as f64 + 1.0, 1, 1, &inputs, &with), 600_000.0);
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
