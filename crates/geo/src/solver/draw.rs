//! A tree as text.
//!
//! # Invariants
//! Every serializer, region and delay is shown once.
//!
//! # On failure
//! A region without a name is shown by its number.
//!
//! # Limits
//! Plain text, one node a line.

use std::fmt::Write as _;

use telesto_common::RegionId;

use crate::tree::Node;
use crate::{Latencies, Tree};

/// Draws `tree` from its serializer 0, with the latencies of its edges and artificial delays;
/// `names` by region.
#[must_use]
pub fn draw(tree: &Tree, latencies: &Latencies, names: &[&str]) -> String {
    let name = |region: RegionId| {
        names.get(usize::from(region.0)).map_or_else(|| region.to_string(), ToString::to_string)
    };
    let label = |node: Node| match node {
        Node::Region(region) => name(region),
        Node::Serializer(index) => format!("S{index} at {}", name(tree.site(node))),
    };
    let mut text = String::new();
    // (node, parent, the line's beginning, that of its children)
    let mut stack = vec![(Node::Serializer(0), None, String::new(), String::new())];
    while let Some((node, parent, first, rest)) = stack.pop() {
        let mut line = format!("{first}{}", label(node));
        if let Some(parent) = parent {
            let millis = latencies.get(tree.site(parent), tree.site(node)) as f64 / 1000.0;
            let _ = write!(line, "  {millis} ms");
            for (from, to, way) in [(parent, node, "down"), (node, parent, "up")] {
                if tree.delay(from, to) > 0 {
                    let _ = write!(line, ", {way} +{} ms", tree.delay(from, to) as f64 / 1000.0);
                }
            }
        }
        let _ = writeln!(text, "{line}");
        let mut children: Vec<_> =
            tree.neighbours(node).into_iter().filter(|next| Some(*next) != parent).collect();
        if matches!(node, Node::Region(_)) {
            children.clear();
        }
        let last = children.len().saturating_sub(1);
        for (at, child) in children.into_iter().enumerate().rev() {
            let (branch, below) =
                if at == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            stack.push((child, Some(node), format!("{rest}{branch}"), format!("{rest}{below}")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawing_shows_every_node_once_with_latency_and_delay() {
        let mut tree = Tree {
            sites: vec![RegionId(0), RegionId(2)],
            links: vec![(0, 1)],
            homes: vec![0, 0, 1],
            ..Tree::default()
        };
        tree.delays_micros.insert((Node::Serializer(0), Node::Serializer(1)), 1_500);
        let latencies = Latencies::from_upper_millis(&[&[5, 20], &[30]]).unwrap();
        let text = draw(&tree, &latencies, &["A", "B", "C"]);
        let expected =
            "S0 at A\n├─ S1 at C  20 ms, down +1.5 ms\n│  └─ C  0 ms\n├─ A  0 ms\n└─ B  5 ms\n";
        assert_eq!(text, expected);
    }
}
