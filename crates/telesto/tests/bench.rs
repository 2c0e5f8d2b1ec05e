//! `telesto bench` against a real node: its report adds up with what the node counted. And the
//! commands that went to the demos.
#![allow(missing_docs, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "real processes, real time")]

#[path = "../../../tests/e2e/harness.rs"]
#[allow(dead_code, reason = "shared with the other tests of real processes")]
mod harness;

use std::process::{Command, Output};

use harness::{Node, Place};
use serde_json::Value;

fn bench(port: u16, extra: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_telesto"))
        .args(["bench", "--url", &format!("postgres://telesto@127.0.0.1:{port}/telesto")])
        .args(["--clients", "4", "--seconds", "1", "--rows", "50", "--json"])
        .args(extra)
        .output()
        .expect("the telesto binary runs")
}

fn metric(node: &Node, name: &str) -> f64 {
    let page = node.get("/metrics").expect("metrics");
    let line = page.lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
    line.and_then(|line| line.split_whitespace().last())
        .map_or(0.0, |n| n.parse().expect("a number"))
}

#[tokio::test]
async fn report_adds_up_with_what_the_node_committed() {
    let dir = tempfile::tempdir().expect("folder");
    let place = Place::folder(&dir.path().join("bucket"), "bucket", "bucket");
    let node = Node::start(&place, dir.path(), &["--prices", "s3-standard"]);
    let commits = "telesto_txn_commits_total";
    for workload in ["read", "write", "transfer"] {
        let before = metric(&node, commits);
        let output = bench(node.port, &["--workload", workload]);
        assert!(output.status.success(), "{output:?}\n{}", node.output());
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let number = |path: &str| report.pointer(path).and_then(Value::as_f64).expect(path);
        let transactions = number("/transactions");
        assert!(transactions > 0.0, "{report}");
        let committed = metric(&node, commits) - before;
        // CREATE TABLE, one batch of rows, DROP TABLE.
        let wrote = if workload == "read" { 0.0 } else { transactions };
        assert_eq!(committed, wrote + 3.0, "{report}");
        assert!(number("/latency_ms/p50") <= number("/latency_ms/p95"));
        assert!(number("/latency_ms/p95") <= number("/latency_ms/p99"));
        assert!(number("/latency_ms/p99") <= number("/latency_ms/max"));
        let puts = number("/bucket/requests/put");
        if workload != "read" {
            assert!(puts > 0.0 && number("/bucket/dollars") >= puts * 0.005 / 1000.0, "{report}");
        }
        let per_1000 = number("/bucket/dollars") * 1000.0 / transactions;
        assert!((number("/bucket/dollars_per_1000") - per_1000).abs() < 1e-9, "{report}");
    }
    let client = node.connect().await.expect("connects");
    let left = "SELECT count(*) FROM pg_class WHERE relname LIKE 'telesto_bench%'";
    assert_eq!(client.query_one(left, &[]).await.expect("reads").get::<_, i64>(0), 0);
}

#[test]
fn nobody_at_the_address_is_said_with_what_to_do() {
    let output = bench(harness::free_port(), &[]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("telesto start"), "{said}");
}

/// Whoever knows the demos' commands from this program is told where they are, and not what was
/// given with them.
#[test]
fn command_of_the_demos_says_where_it_is_and_is_a_usage_error() {
    let secret = "postgres://telesto:hush@127.0.0.1/telesto";
    for (was, now) in [
        (&["demo"][..], "telesto-demo."),
        (&["demo", "cluster", "--time", "5s"], "telesto-demo with the same arguments."),
        (&["demo", "bookstore", "--help"], "telesto-demo with the same arguments."),
        (
            &["bench", "tpcw", "--target", secret],
            "telesto-demo bench tpcw with the same arguments.",
        ),
        (&["bench", "compare", secret], "telesto-demo bench compare with the same arguments."),
        (&["import", "mediawiki", "x.bz2"], "telesto-demo import with the same arguments."),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_telesto")).args(was).output();
        let output = output.expect("the telesto binary runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{was:?}: {said}");
        assert!(said.contains(&format!("run {now}")), "{was:?}: {said}");
        assert!(said.contains("cargo build -p telesto-demo") && !said.contains("hush"), "{said}");
    }
}
