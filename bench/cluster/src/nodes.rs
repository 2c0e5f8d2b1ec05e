//! Nodes of one cluster on this machine, and what they have counted.
//!
//! # Invariants
//! Each has a folder of its own; the bucket is a folder beside them.
//!
//! # On failure
//! What does not start or settle within two minutes ends the program with what the node printed.
//!
//! # Limits
//! Loopback stands for the network.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{Node, PATIENCE, Place};

/// A cluster.
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    directory: tempfile::TempDir,
}

/// What one node has counted until now.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Counted {
    pub messages: f64,
    pub bytes: f64,
    pub syncs: f64,
    pub requests: f64,
    /// Seconds.
    pub processor: f64,
}

impl Counted {
    /// What was counted since `before`, and not while nothing was done for as long (`idle`).
    pub(crate) fn since(&self, before: &Self, idle: &Self) -> Self {
        let less = |of: fn(&Self) -> f64| (of(self) - of(before) - of(idle)).max(0.0);
        Self {
            messages: less(|c| c.messages),
            bytes: less(|c| c.bytes),
            syncs: less(|c| c.syncs),
            requests: less(|c| c.requests),
            processor: less(|c| c.processor),
        }
    }
}

/// Sums of the counters in a text of Prometheus' exposition format, by name.
fn sums(text: &str) -> BTreeMap<&str, f64> {
    let mut sums = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.rsplit_once(' ') else { continue };
        let name = name.split('{').next().unwrap_or(name);
        if let Ok(value) = value.parse::<f64>() {
            *sums.entry(name).or_insert(0.0) += value;
        }
    }
    sums
}

/// Counts and sums of the histogram of a commit's stages, by stage.
fn stages(text: &str) -> BTreeMap<String, (f64, f64)> {
    let mut stages: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("telesto_commit_stage_seconds_") else { continue };
        let Some((what, rest)) = rest.split_once("{stage=\"") else { continue };
        let Some((stage, value)) = rest.split_once("\"} ") else { continue };
        let Ok(value) = value.parse::<f64>() else { continue };
        match what {
            "count" => stages.entry(stage.to_owned()).or_default().0 = value,
            "sum" => stages.entry(stage.to_owned()).or_default().1 = value,
            _ => {}
        }
    }
    stages
}

/// Seconds of processor time that a process has used, by the kernel's count in hundredths.
fn processor(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a live process");
    // The name in parentheses may hold spaces.
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |index: usize| {
        let field = after.split_whitespace().nth(index);
        field.and_then(|field| field.parse::<f64>().ok()).expect("a number of ticks")
    };
    (ticks(11) + ticks(12)) / 100.0
}

impl Nodes {
    /// Starts them; returns when the log has all the copies it wants.
    pub(crate) async fn start(count: usize) -> Self {
        let directory = tempfile::tempdir().expect("a folder");
        let place = Place::folder(&directory.path().join("bucket"), "quorum", "quorum");
        let cluster = ["--cluster", "127.0.0.1:0"];
        let nodes = (0..count)
            .map(|index| Node::start(&place, &directory.path().join(index.to_string()), &cluster))
            .collect();
        let nodes = Self { nodes, directory };
        nodes.owner().await;
        nodes
    }

    pub(crate) fn all(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn folder(&self) -> &Path {
        self.directory.path()
    }

    fn metrics(&self, index: usize) -> String {
        self.nodes[index].get("/metrics").expect("metrics")
    }

    /// The node that owns the log, once it has its copies: three, or one of a lone node.
    pub(crate) async fn owner(&self) -> usize {
        let copies = if self.nodes.len() < 3 { 1.0 } else { 3.0 };
        let until = Instant::now() + PATIENCE;
        loop {
            let following = |index: &usize| {
                let text = self.metrics(*index);
                sums(&text).get("telesto_log_servers_following").copied() == Some(copies)
            };
            let owning: Vec<usize> = (0..self.nodes.len()).filter(following).collect();
            if let [owner] = owning[..] {
                return owner;
            }
            assert!(Instant::now() < until, "no node owns the log with {copies} copies");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// How often each stage of a commit was gone through on a node, and how long it took in all,
    /// seconds.
    pub(crate) fn stages(&self, index: usize) -> BTreeMap<String, (f64, f64)> {
        stages(&self.metrics(index))
    }

    /// What each has counted.
    pub(crate) fn counted(&self) -> Vec<Counted> {
        let one = |index: usize| {
            let text = self.metrics(index);
            let sums = sums(&text);
            let sum = |name: &str| sums.get(name).copied().unwrap_or(0.0);
            Counted {
                messages: sum("telesto_net_sent_messages_total"),
                bytes: sum("telesto_net_sent_bytes_total"),
                syncs: sum("telesto_log_syncs_total"),
                requests: sum("telesto_bucket_requests_total"),
                processor: processor(self.nodes[index].pid()),
            }
        };
        (0..self.nodes.len()).map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labelled_series_are_summed_and_comments_passed_over() {
        let text = "# HELP a counts\n# TYPE a counter\na{op=\"get\"} 2\na{op=\"put x\"} 3\nb 1.5\n";
        let sums = sums(text);
        assert_eq!(sums.get("a"), Some(&5.0));
        assert_eq!(sums.get("b"), Some(&1.5));
        assert_eq!(sums.len(), 2);
    }

    #[test]
    fn counts_and_sums_of_stages_are_found_among_buckets() {
        let text = "telesto_commit_stage_seconds_bucket{stage=\"disk\",le=\"1\"} 9\n\
                    telesto_commit_stage_seconds_sum{stage=\"disk\"} 0.5\n\
                    telesto_commit_stage_seconds_count{stage=\"disk\"} 7\n";
        assert_eq!(stages(text), BTreeMap::from([("disk".to_owned(), (7.0, 0.5))]));
    }

    #[test]
    fn what_an_idle_cluster_does_is_not_the_transactions() {
        let [before, idle, after] =
            [10.0, 5.0, 40.0].map(|n| Counted { messages: n, ..Counted::default() });
        assert_eq!(after.since(&before, &idle).messages, 25.0);
        assert_eq!(before.since(&after, &idle).messages, 0.0);
    }
}
