//! Artificial delays of a given tree, by a linear program (Saturn §5.4, Definition 2).
//!
//! # Invariants
//! Delays are not negative, and only on edges that leave a serializer. The result is never worse
//! than no delays.
//!
//! # On failure
//! [`Error::Unsolvable`] when the program's solver gives up.
//!
//! # Limits
//! Rounded to whole microseconds.

use std::collections::BTreeMap;

use good_lp::{
    Expression, ProblemVariables, Solution as _, SolverModel as _, constraint, variable,
};

use crate::Tree;
use crate::error::{Error, Result};
use crate::solver::{Problem, Solution};
use crate::tree::Node;

/// Gives `tree` the delays that minimise the mismatch.
pub(super) fn with_best_delays(problem: &Problem, mut tree: Tree) -> Result<Solution> {
    tree.delays_micros.clear();
    let early = problem.pairs().any(|(from, to, _)| {
        tree.path_micros(from, to, &problem.latencies) < problem.latencies.get(from, to)
    });
    let plain = problem.mismatch_micros(&tree);
    if !early {
        return Ok(Solution { tree, mismatch_micros: plain });
    }
    let delays_micros = program(problem, &tree)?;
    let delayed = Tree { delays_micros, ..tree.clone() };
    let mismatch_micros = problem.mismatch_micros(&delayed);
    if mismatch_micros < plain {
        return Ok(Solution { tree: delayed, mismatch_micros });
    }
    Ok(Solution { tree, mismatch_micros: plain })
}

/// minimise Σ weight · off, where off ≥ ±(path + Σ delays on it − latency).
fn program(problem: &Problem, tree: &Tree) -> Result<BTreeMap<(Node, Node), u64>> {
    let mut variables = ProblemVariables::new();
    let mut edges = BTreeMap::new();
    let mut rows = Vec::new();
    let mut objective = Expression::from(0.0);
    for (from, to, weight) in problem.pairs() {
        let mut sum = Expression::from(0.0);
        for edge in tree.path(from, to) {
            if matches!(edge.0, Node::Serializer(_)) {
                sum += *edges.entry(edge).or_insert_with(|| variables.add(variable().min(0)));
            }
        }
        let early = problem.latencies.get(from, to) as f64
            - tree.path_micros(from, to, &problem.latencies) as f64;
        let off = variables.add(variable().min(0));
        objective += weight * off;
        rows.push((sum, early, off));
    }
    let mut model = variables.minimise(objective).using(good_lp::microlp);
    for (sum, early, off) in rows {
        model = model.with(constraint!(sum.clone() - early <= off));
        model = model.with(constraint!(early - sum <= off));
    }
    let solved = model.solve();
    let solved = solved.map_err(|_| Error::Unsolvable { reason: "the linear program failed" })?;
    let delays = edges.into_iter().map(|(edge, delay)| (edge, solved.value(delay).round() as u64));
    Ok(delays.filter(|(_, micros)| *micros > 0).collect())
}
