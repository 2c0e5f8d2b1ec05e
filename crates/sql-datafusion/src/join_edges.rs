//! What joins the inputs of a query: the conditions on several of them, and the equalities that
//! follow from others.
//!
//! # Invariants
//! - What follows holds wherever what it follows from holds: `a = b` and `b = c` make `a = c`.
//! - Of equal values each input is counted as joined by one equality, however many are written.
//!
//! # Limits
//! Only equalities of columns, or of their sort keys, of one type have others follow from them.

use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable as _, LogicalPlan, Operator};

use super::join_rows::{UNKNOWN_ROWS, column_of, distinct, rows_of, stored};
use super::stored::StoredTable;

/// An input as far as its rows go.
pub(super) struct Input<'p> {
    pub plan: &'p LogicalPlan,
    /// Those that its conditions leave.
    pub rows: f64,
    /// All of them.
    pub all: f64,
    /// What reading them by themselves costs.
    pub read: f64,
}

/// A condition on several inputs.
pub(super) struct Edge {
    /// The inputs it looks at, a bit each.
    pub inputs: u64,
    pub selectivity: f64,
    /// Whether it makes two inputs' values equal.
    pub equates: bool,
    /// Inputs of which it names the first column of an index, and what a row costs to which that
    /// leads.
    pub led: Vec<(usize, f64)>,
    /// Which values are all equal, where others follow from it.
    pub class: Option<usize>,
    /// The condition, if it only follows from others.
    pub follows: Option<Expr>,
}

/// A value of an input that equalities compare.
struct Member {
    expr: Expr,
    input: usize,
    class: usize,
}

/// The conditions on several inputs as edges, and those that follow from them behind these.
pub(super) fn edges_of(conditions: &[(&Expr, u64)], inputs: &[Input<'_>]) -> Vec<Edge> {
    let mut edges: Vec<Edge> =
        conditions.iter().map(|(condition, seen)| edge(condition, *seen, inputs)).collect();
    let mut members: Vec<Member> = Vec::new();
    for (edge, (condition, _)) in edges.iter_mut().zip(conditions) {
        if let Some((left, right)) = simple(condition, inputs).filter(|_| edge.equates) {
            let (one, other) = (meet(&mut members, left), meet(&mut members, right));
            members.iter_mut().filter(|member| member.class == other).for_each(|m| m.class = one);
        }
    }
    for (edge, (condition, _)) in edges.iter_mut().zip(conditions) {
        if let Some(((expr, _), _)) = simple(condition, inputs).filter(|_| edge.equates) {
            edge.class = members.iter().find(|member| member.expr == expr).map(|m| m.class);
        }
    }
    let written = edges.len();
    for (at, one) in members.iter().enumerate() {
        for other in &members[at + 1..] {
            let both = 1 << one.input | 1 << other.input;
            let known = |edge: &Edge| edge.class == Some(one.class) && edge.inputs == both;
            if one.class != other.class || one.input == other.input || edges.iter().any(known) {
                continue;
            }
            let condition = one.expr.clone().eq(other.expr.clone());
            let own = edge(&condition, both, inputs);
            edges.push(Edge { class: Some(one.class), follows: Some(condition), ..own });
        }
    }
    debug_assert!(edges[written..].iter().all(|edge| edge.follows.is_some()));
    edges
}

/// The class of a value, a new one if it was not met.
fn meet(members: &mut Vec<Member>, (expr, input): (Expr, usize)) -> usize {
    if let Some(known) = members.iter().find(|member| member.expr == expr) {
        return known.class;
    }
    let class = members.len();
    members.push(Member { expr, input, class });
    class
}

/// The two sides of an equality of columns, or their sort keys, of one type of two inputs.
fn simple(condition: &Expr, inputs: &[Input<'_>]) -> Option<((Expr, usize), (Expr, usize))> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = condition else {
        return None;
    };
    let side = |expr: &Expr| {
        if matches!(expr, Expr::Cast(_) | Expr::Alias(_)) {
            return None;
        }
        let column = column_of(expr)?;
        let input = inputs.iter().position(|input| input.plan.schema().has_column(column))?;
        let ty = expr.get_type(inputs[input].plan.schema()).ok()?;
        Some(((expr.clone(), input), ty))
    };
    let ((one, first), (other, second)) = (side(left)?, side(right)?);
    (first == second && one.1 != other.1).then_some((one, other))
}

/// Whether values of `seen` lead to input `at`.
pub(super) fn leads(seen: u64, at: usize, edges: &[Edge]) -> bool {
    edges.iter().any(|edge| edge.equates && edge.reaches(seen, at))
}

impl Edge {
    /// Whether it looks at input `at`, and beside it only at inputs of `seen`.
    pub fn reaches(&self, seen: u64, at: usize) -> bool {
        self.inputs & (1 << at) != 0 && self.inputs & !(seen | 1 << at) == 0
    }
}

/// The part of all pairs that is left when input `at` is joined to `seen`.
pub(super) fn selectivity(seen: u64, at: usize, edges: &[Edge]) -> f64 {
    let mut selectivity = 1.0;
    let mut classes: Vec<(usize, f64)> = Vec::new();
    for edge in edges.iter().filter(|edge| edge.reaches(seen, at)) {
        match edge.class {
            None => selectivity *= edge.selectivity,
            Some(class) => match classes.iter_mut().find(|(known, _)| *known == class) {
                Some((_, least)) => *least = least.min(edge.selectivity),
                None => classes.push((class, edge.selectivity)),
            },
        }
    }
    classes.into_iter().fold(selectivity, |all, (_, own)| all * own)
}

/// What has to be said beside what is written, so that each input of an order is joined by
/// equalities to those before it.
pub(super) fn following(order: &[usize], edges: &[Edge]) -> Vec<Expr> {
    let mut seen = 0_u64;
    let mut said = Vec::new();
    for at in order {
        let mut classes: Vec<usize> = Vec::new();
        // Those that are written come first.
        for edge in edges.iter().filter(|edge| edge.reaches(seen, *at)) {
            let Some(class) = edge.class.filter(|class| !classes.contains(class)) else { continue };
            classes.push(class);
            said.extend(edge.follows.clone());
        }
        seen |= 1 << at;
    }
    said
}

fn edge(condition: &Expr, seen: u64, inputs: &[Input<'_>]) -> Edge {
    let plain = |selectivity, equates, led| Edge {
        inputs: seen,
        selectivity,
        equates,
        led,
        class: None,
        follows: None,
    };
    let other = |selectivity| plain(selectivity, false, Vec::new());
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
    let sides = [(left, one), (right, two)];
    let led = sides.into_iter().filter_map(|(expr, at)| {
        let provider = stored(inputs[at].plan)?;
        let table = provider.downcast_ref::<StoredTable>()?;
        Some((at, table.led_cost(&column_of(expr)?.name)?))
    });
    plain(selectivity, true, led.collect())
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::{LogicalPlanBuilder, col, lit};

    use super::*;

    fn rows(name: &str, number: i32) -> LogicalPlan {
        let values = (0..number).map(|value| vec![lit(value)]).collect();
        LogicalPlanBuilder::values(values)
            .and_then(|builder| builder.alias(name)?.build())
            .expect("rows of values")
    }

    #[test]
    fn what_follows_joins_inputs_that_nothing_written_joins_and_counts_once() {
        let plans = [rows("a", 1), rows("b", 10), rows("c", 100)];
        let inputs: Vec<Input<'_>> = plans
            .iter()
            .zip([1.0, 10.0, 100.0])
            .map(|(plan, rows)| Input { plan, rows, all: rows, read: rows })
            .collect();
        let column = |table: &str| col(format!("{table}.column1"));
        let (first, second) = (column("a").eq(column("b")), column("b").eq(column("c")));
        let less = column("a").lt(column("c"));
        let written = [(&first, 0b011), (&second, 0b110), (&less, 0b101)];
        let edges = edges_of(&written, &inputs);
        assert_eq!(edges.len(), 4, "one equality follows");
        assert_eq!(edges[3].follows, Some(column("a").eq(column("c"))));
        assert!(leads(0b001, 2, &edges) && !leads(0b001, 2, &edges[..3]));
        // Two equalities of `c` with those before it, of which one says all.
        let both = selectivity(0b011, 2, &edges);
        assert!(
            (both - edges[1].selectivity.min(edges[3].selectivity) / 3.0).abs() < 1e-9,
            "{both}"
        );
        assert_eq!(following(&[0, 2, 1], &edges), [column("a").eq(column("c"))]);
        assert!(following(&[0, 1, 2], &edges).is_empty(), "all that it needs is written");
    }

    #[test]
    fn nothing_follows_from_values_of_two_types() {
        let wide = LogicalPlanBuilder::values(vec![vec![lit(1_i64)]])
            .and_then(|builder| builder.alias("w")?.build())
            .expect("a row of values");
        let plans = [rows("a", 1), wide, rows("c", 100)];
        let inputs: Vec<Input<'_>> =
            plans.iter().map(|plan| Input { plan, rows: 1.0, all: 1.0, read: 1.0 }).collect();
        let column = |table: &str| col(format!("{table}.column1"));
        let (first, second) = (column("a").eq(column("w")), column("w").eq(column("c")));
        let edges = edges_of(&[(&first, 0b011), (&second, 0b110)], &inputs);
        assert_eq!(edges.len(), 2);
        assert!(edges.iter().all(|edge| edge.class.is_none()));
    }
}
