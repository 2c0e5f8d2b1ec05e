//! A plan as text and as JSON.
//!
//! # Invariants
//! Every ordered pair is there, with each plane beside the others.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! What is expected rests on latencies alone: no queues, no commit, no apply. What is measured has
//! all of them.

use std::fmt::Write as _;

use serde_json::json;
use telesto_common::RegionId;
use telesto_geo::solver::{EXACT_LIMIT, Problem, Solution, draw};
use telesto_geo::{Node, PlaneKind};

use super::input::Input;

/// The planes that are compared.
const PLANES: [PlaneKind; 3] = [PlaneKind::Matrix, PlaneKind::Tree, PlaneKind::Timestamp];

/// A pair and what is expected of it.
struct Pair {
    from: usize,
    to: usize,
    way: f64,
    weight: f64,
    extra: [f64; PLANES.len()],
    measured: Option<f64>,
}

fn pairs(input: &Input, problem: &Problem, solution: &Solution) -> Vec<Pair> {
    let extras = PLANES.map(|plane| problem.expected_extra_micros(plane, Some(&solution.tree)));
    let total: f64 = input.weights.iter().flatten().sum();
    let regions = 0..input.names.len();
    let all = regions.clone().flat_map(|from| regions.clone().map(move |to| (from, to)));
    let pair = |(from, to): (usize, usize)| {
        let id = |region: usize| RegionId(u16::try_from(region).unwrap_or(u16::MAX));
        let way = input.latencies.get(id(from), id(to)) as f64 / 1000.0;
        Pair {
            from,
            to,
            way,
            weight: input.weights[from][to] / total.max(f64::MIN_POSITIVE),
            extra: std::array::from_fn(|plane| extras[plane][from][to] as f64 / 1000.0),
            measured: input.visible.get(&(from, to)).map(|after| after - way),
        }
    };
    all.filter(|(from, to)| from != to).map(pair).collect()
}

/// By plane: the weighted average, and the worst pair.
fn summary(pairs: &[Pair]) -> [(f64, f64); PLANES.len()] {
    let weights: f64 = pairs.iter().map(|pair| pair.weight).sum();
    std::array::from_fn(|plane| {
        let sum: f64 = pairs.iter().map(|pair| pair.weight * pair.extra[plane]).sum();
        let worst = pairs.iter().map(|pair| pair.extra[plane]).fold(0.0, f64::max);
        (sum / weights.max(f64::MIN_POSITIVE), worst)
    })
}

fn name(input: &Input, node: Node, solution: &Solution) -> String {
    let region = |region: RegionId| {
        input.names.get(usize::from(region.0)).cloned().unwrap_or_else(|| region.to_string())
    };
    match node {
        Node::Region(id) => region(id),
        Node::Serializer(index) => {
            format!("S{index} at {}", region(solution.tree.site(node)))
        }
    }
}

fn how(input: &Input) -> String {
    match input.names.len() {
        regions if regions <= EXACT_LIMIT => {
            "every spanning tree over the regions was tried".to_owned()
        }
        regions => {
            format!("a good one, not surely the best: more than {EXACT_LIMIT} regions ({regions})")
        }
    }
}

/// The plan as text.
pub fn text(input: &Input, problem: &Problem, solution: &Solution) -> String {
    let names: Vec<&str> = input.names.iter().map(String::as_str).collect();
    let mut text = format!(
        "Tree of serializers for {} regions ({}; {}; {}): labels are {:.1} ms off their payloads on average.\n\n",
        names.len(),
        input.origin,
        input.weighted_by,
        how(input),
        solution.mismatch_micros / 1000.0
    );
    text.push_str(&draw(&solution.tree, &input.latencies, &names));
    if solution.tree.delays_micros.is_empty() {
        text.push_str("\nArtificial delays: none.\n");
    } else {
        text.push_str("\nArtificial delays:\n");
        for ((from, to), micros) in &solution.tree.delays_micros {
            let (from, to) = (name(input, *from, solution), name(input, *to, solution));
            let _ = writeln!(text, "  from {from} to {to}: {} ms", *micros as f64 / 1000.0);
        }
    }
    let pairs = pairs(input, problem, solution);
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or_default() * 2 + 3;
    text.push_str("\nExpected to become visible later than the direct way, ms:\n");
    let _ = write!(text, "{:<width$} {:>9} {:>7}", "", "one way", "share");
    PLANES.iter().for_each(|plane| {
        let _ = write!(text, " {:>10}", plane.name());
    });
    let measured = pairs.iter().any(|pair| pair.measured.is_some());
    text.push_str(if measured { "   measured\n" } else { "\n" });
    for pair in &pairs {
        let way = format!("{} → {}", names[pair.from], names[pair.to]);
        let _ = write!(text, "{way:<width$} {:>9.1} {:>6.1}%", pair.way, pair.weight * 100.0);
        pair.extra.iter().for_each(|extra| {
            let _ = write!(text, " {extra:>10.1}");
        });
        let _ = match pair.measured {
            Some(extra) => writeln!(text, " {extra:>10.1}"),
            None => writeln!(text),
        };
    }
    let summary = summary(&pairs);
    for (what, of) in [("average", 0), ("worst pair", 1)] {
        let _ = write!(text, "{what:<width$} {:>9} {:>7}", "", "");
        for (average, worst) in summary {
            let _ = write!(text, " {:>10.1}", if of == 0 { average } else { worst });
        }
        text.push('\n');
    }
    text.push_str("\nmatrix: the most that a cause under way from a third region can be late; it is what regions run unless they are told otherwise (telesto region plane). timestamp: the wait for the time of the farthest region; a region that shows everything in one order has it (telesto region plane timestamp).\n");
    text
}

/// The plan for programs.
pub fn json(input: &Input, problem: &Problem, solution: &Solution) -> String {
    let tree = &solution.tree;
    let pairs = pairs(input, problem, solution);
    let planes = |of: &dyn Fn(usize) -> f64| {
        let entries = PLANES.iter().enumerate();
        let entries = entries.map(|(at, plane)| (plane.name().to_owned(), json!(of(at))));
        serde_json::Value::Object(entries.collect())
    };
    let summary = summary(&pairs);
    let shown: Vec<_> = pairs
        .iter()
        .map(|pair| {
            json!({
                "from": input.names[pair.from],
                "to": input.names[pair.to],
                "one_way_ms": pair.way,
                "share": pair.weight,
                "extra_ms": planes(&|plane| pair.extra[plane]),
                "measured_extra_ms": pair.measured,
            })
        })
        .collect();
    let delays: Vec<_> = tree
        .delays_micros
        .iter()
        .map(|((from, to), micros)| {
            json!({
                "from": name(input, *from, solution),
                "to": name(input, *to, solution),
                "ms": *micros as f64 / 1000.0,
            })
        })
        .collect();
    let site = |site: &RegionId| input.names.get(usize::from(site.0));
    let plan = json!({
        "regions": input.names,
        "mismatch_ms": solution.mismatch_micros / 1000.0,
        "serializers": tree.sites.iter().map(site).collect::<Vec<_>>(),
        "links": tree.links,
        "homes": tree.homes,
        "delays": delays,
        "pairs": shown,
        "average_extra_ms": planes(&|plane| summary[plane].0),
        "worst_extra_ms": planes(&|plane| summary[plane].1),
    });
    format!("{plan:#}\n")
}
