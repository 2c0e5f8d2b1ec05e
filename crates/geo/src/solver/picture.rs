//! A tree as a picture: for Graphviz, and as SVG without any program.
//!
//! # Invariants
//! Every serializer, region, link and artificial delay is shown once. The same tree gives the same
//! bytes.
//!
//! # On failure
//! A region without a name is shown by its number.
//!
//! # Limits
//! The SVG places nodes by their depth below serializer 0; it is not to scale.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use telesto_common::RegionId;

use crate::tree::Node;
use crate::{Latencies, Tree};

/// Pixels between two leaves.
const STEP_X: f64 = 130.0;
/// Pixels between two depths.
const STEP_Y: f64 = 110.0;
/// Half a node's width and height.
const NODE: (f64, f64) = (56.0, 16.0);

/// What is drawn of an edge and its two ends.
struct Edge {
    upper: Node,
    lower: Node,
    text: String,
}

/// The nodes below serializer 0 in the order of drawing, and the edges.
fn walk(tree: &Tree, latencies: &Latencies) -> (Vec<(Node, usize)>, Vec<Edge>) {
    let (mut nodes, mut edges) = (Vec::new(), Vec::new());
    let mut stack = vec![(Node::Serializer(0), None, 0)];
    while let Some((node, parent, depth)) = stack.pop() {
        nodes.push((node, depth));
        if let Some(parent) = parent {
            let millis = latencies.get(tree.site(parent), tree.site(node)) as f64 / 1000.0;
            let mut text = format!("{millis} ms");
            for (from, to, way) in [(parent, node, "↓"), (node, parent, "↑")] {
                if tree.delay(from, to) > 0 {
                    let _ = write!(text, ", {way} +{} ms", tree.delay(from, to) as f64 / 1000.0);
                }
            }
            edges.push(Edge { upper: parent, lower: node, text });
        }
        let below = tree.neighbours(node).into_iter().filter(|next| Some(*next) != parent);
        if matches!(node, Node::Serializer(_)) {
            stack.extend(below.map(|next| (next, Some(node), depth + 1)));
        }
    }
    (nodes, edges)
}

fn label(tree: &Tree, node: Node, names: &[&str]) -> String {
    let name = |region: RegionId| {
        names.get(usize::from(region.0)).map_or_else(|| region.to_string(), ToString::to_string)
    };
    match node {
        Node::Region(region) => name(region),
        Node::Serializer(index) => format!("S{index} at {}", name(tree.site(node))),
    }
}

fn id(node: Node) -> String {
    match node {
        Node::Region(region) => format!("r{}", region.0),
        Node::Serializer(index) => format!("s{index}"),
    }
}

/// `tree` in the language of Graphviz; `names` by region.
#[must_use]
pub fn dot(tree: &Tree, latencies: &Latencies, names: &[&str]) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let (nodes, edges) = walk(tree, latencies);
    let mut text = "graph tree {\n".to_owned();
    for (node, _) in nodes {
        let shape = if matches!(node, Node::Region(_)) { "box" } else { "ellipse" };
        let label = quoted(&label(tree, node, names));
        let _ = writeln!(text, "  {} [label=\"{label}\", shape={shape}];", id(node));
    }
    for edge in edges {
        let (upper, lower) = (id(edge.upper), id(edge.lower));
        let _ = writeln!(text, "  {upper} -- {lower} [label=\"{}\"];", edge.text);
    }
    text.push_str("}\n");
    text
}

/// `tree` as an SVG picture; `names` by region.
#[must_use]
pub fn svg(tree: &Tree, latencies: &Latencies, names: &[&str]) -> String {
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let (nodes, edges) = walk(tree, latencies);
    let places = places(&nodes, &edges);
    let leaves = nodes.iter().filter(|(node, _)| matches!(node, Node::Region(_))).count();
    let deepest = nodes.iter().map(|(_, depth)| *depth).max().unwrap_or_default();
    let (width, height) = (leaves.max(1) as f64 * STEP_X, deepest as f64 * STEP_Y + 4.0 * NODE.1);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\" text-anchor=\"middle\">\n"
    );
    let at = |node: Node| places.get(&node).copied().unwrap_or_default();
    for edge in &edges {
        let ((x1, y1), (x2, y2)) = (at(edge.upper), at(edge.lower));
        let _ = writeln!(
            text,
            "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"#888\"/>\n<text x=\"{}\" y=\"{}\" fill=\"#444\" font-size=\"10\">{}</text>",
            x1 * 0.35 + x2 * 0.65,
            y1 * 0.35 + y2 * 0.65,
            edge.text
        );
    }
    for (node, _) in &nodes {
        let (x, y) = at(*node);
        let is_region = matches!(node, Node::Region(_));
        let (round, fill) = if is_region { (2.0, "#dbeafe") } else { (NODE.1, "#fef3c7") };
        let _ = writeln!(
            text,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{round}\" fill=\"{fill}\" stroke=\"#555\"/>\n<text x=\"{x}\" y=\"{}\">{}</text>",
            x - NODE.0,
            y - NODE.1,
            NODE.0 * 2.0,
            NODE.1 * 2.0,
            y + 4.0,
            escaped(&label(tree, *node, names))
        );
    }
    text.push_str("</svg>\n");
    text
}

/// Leaves side by side in the order of drawing, serializers in the middle above what hangs on them.
fn places(nodes: &[(Node, usize)], edges: &[Edge]) -> BTreeMap<Node, (f64, f64)> {
    let mut places: BTreeMap<Node, (f64, f64)> = BTreeMap::new();
    let mut leaf = 0.5;
    // Whoever hangs below a node comes behind it.
    for (node, depth) in nodes.iter().filter(|(node, _)| matches!(node, Node::Region(_))) {
        places.insert(*node, (leaf * STEP_X, *depth as f64 * STEP_Y + 2.0 * NODE.1));
        leaf += 1.0;
    }
    for (node, depth) in nodes.iter().rev() {
        let below = edges.iter().filter(|edge| edge.upper == *node);
        let xs: Vec<f64> =
            below.filter_map(|edge| places.get(&edge.lower).map(|(x, _)| *x)).collect();
        if !xs.is_empty() {
            let middle = xs.iter().sum::<f64>() / xs.len() as f64;
            places.insert(*node, (middle, *depth as f64 * STEP_Y + 2.0 * NODE.1));
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn() -> (Tree, Latencies) {
        let mut tree = Tree {
            sites: vec![RegionId(0), RegionId(2)],
            links: vec![(0, 1)],
            homes: vec![0, 0, 1],
            ..Tree::default()
        };
        tree.delays_micros.insert((Node::Serializer(0), Node::Serializer(1)), 1_500);
        (tree, Latencies::from_upper_millis(&[&[5, 20], &[30]]).unwrap())
    }

    #[test]
    fn graphviz_text_has_every_node_link_and_delay_once() {
        let (tree, latencies) = drawn();
        let text = dot(&tree, &latencies, &["A", "B \"b\"", "C"]);
        let expected = "graph tree {\n  s0 [label=\"S0 at A\", shape=ellipse];\n  r1 [label=\"B \\\"b\\\"\", shape=box];\n  r0 [label=\"A\", shape=box];\n  s1 [label=\"S1 at C\", shape=ellipse];\n  r2 [label=\"C\", shape=box];\n  s0 -- r1 [label=\"5 ms\"];\n  s0 -- r0 [label=\"0 ms\"];\n  s0 -- s1 [label=\"20 ms, ↓ +1.5 ms\"];\n  s1 -- r2 [label=\"0 ms\"];\n}\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn svg_shows_every_node_at_a_place_of_its_own() {
        let (tree, latencies) = drawn();
        let text = svg(&tree, &latencies, &["A", "B<b>", "C"]);
        for shown in [">S0 at A<", ">S1 at C<", ">A<", ">B&lt;b&gt;<", ">C<", "↓ +1.5 ms"] {
            assert_eq!(text.matches(shown).count(), 1, "{shown} in {text}");
        }
        let (nodes, edges) = walk(&tree, &latencies);
        let places = places(&nodes, &edges);
        let different: std::collections::BTreeSet<_> =
            places.values().map(|(x, y)| (*x as i64, *y as i64)).collect();
        assert_eq!((places.len(), different.len()), (5, 5));
    }
}
