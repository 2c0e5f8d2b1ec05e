//! `telesto board` beside a real node (Postgres and HTTP), an S3 server, and one that is not there:
//! the node is stopped for three seconds, and the board shows as many late operations as were due
//! meanwhile; another board goes on with the stored history.
//!
//! The machine may be busy, and the board may find that it stood still itself: such operations are
//! unknown, and counted here as if they had been late. Nothing else is forgiven.

#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{Node, PATIENCE, Place, S3Server, free_port};
use serde_json::Value;
use telesto_board::store::{Postgres, Store as _};

const RECORDS: u64 = 200;

struct Board {
    child: Child,
    said: PathBuf,
    table: PathBuf,
}

impl Board {
    fn start(folder: &Path, name: &str, targets: &[String], extra: &[&str]) -> Self {
        let (said, table) =
            (folder.join(format!("{name}.err")), folder.join(format!("{name}.out")));
        let mut command = Command::new(env!("CARGO_BIN_EXE_telesto"));
        command.arg("board").args(["--records", &RECORDS.to_string()]).args(extra);
        for target in targets {
            command.args(["--target", target]);
        }
        let child = command
            .env("AWS_ACCESS_KEY_ID", "admin")
            .env("AWS_SECRET_ACCESS_KEY", "adminadmin")
            .stdin(Stdio::null())
            .stdout(File::create(&table).expect("a file"))
            .stderr(File::create(&said).expect("a file"))
            .spawn()
            .expect("the telesto binary runs");
        Self { child, said, table }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// The port of its page.
    fn port(&self) -> u16 {
        let until = Instant::now() + PATIENCE;
        loop {
            let said = self.said();
            let port = said.lines().find_map(|line| {
                let address = line.strip_prefix("The board is at http://")?.trim_end_matches('/');
                address.rsplit_once(':')?.1.parse().ok()
            });
            match port {
                Some(port) => return port,
                None => assert!(Instant::now() < until, "no page: {said}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Ends it as its user would (or waits until it ends by itself); what it printed.
    fn end(mut self, terminate: bool) -> String {
        if terminate {
            let kill = Command::new("kill").arg(self.child.id().to_string()).status();
            assert!(kill.expect("kill runs").success());
        }
        let until = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().expect("child") {
                Some(status) => break status,
                None => assert!(Instant::now() < until, "the board does not end"),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(status.success(), "{}", self.said());
        std::fs::read_to_string(&self.table).expect("a table")
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Head and body of the answer to a GET.
fn get(port: u16, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    assert!(head.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    (head.to_owned(), body.to_owned())
}

fn json(port: u16, path: &str) -> Value {
    serde_json::from_str(&get(port, path).1).expect("JSON")
}

/// Operations of each target since the start: target, operation, the report of the operation,
/// figures of the run.
fn runs(port: u16) -> Vec<(String, String, Value, Value)> {
    let report = json(port, "/board.json");
    let mut runs = Vec::new();
    for target in report["targets"].as_array().expect("targets") {
        for operation in target["operations"].as_array().expect("operations") {
            let text = |value: &Value| value.as_str().expect("a name").to_owned();
            let figures = operation["windows"][0].clone();
            assert_eq!(figures["window"], "run");
            let names = (text(&target["name"]), text(&operation["operation"]));
            runs.push((names.0, names.1, operation.clone(), figures));
        }
    }
    runs
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

/// Waits until each operation was probed `least` times.
fn wait_for(port: u16, least: u64) {
    let until = Instant::now() + PATIENCE;
    while runs(port).iter().any(|(_, _, _, figures)| count(&figures["operations"]) < least) {
        assert!(Instant::now() < until, "{:?}", runs(port));
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Operations that took longer than a second.
fn late(port: u16, target: &str, operation: &str) -> u64 {
    let path = format!("/history.json?target={target}&operation={operation}&window=run");
    let history = json(port, &path);
    let columns = history["columns"].as_array().expect("columns");
    // Bands end at 1, 2, 5, 10, … ms; the tenth at a second.
    let late = |column: &Value| -> u64 {
        column["bands"].as_array().expect("bands")[10..].iter().map(count).sum()
    };
    columns.iter().map(late).sum()
}

/// Every figure of the frozen node and of the store that was not.
fn check(port: u16, frozen: Duration) {
    for (target, operation, report, figures) in runs(port) {
        let shown = format!("{target} {operation}: {figures}");
        if target == "gone" {
            assert_eq!(figures["failures"]["unreachable"], figures["operations"], "{shown}");
            assert_eq!(
                (&figures["latency_ms"]["p50"], &figures["promise_kept"]),
                (&Value::Null, &Value::Bool(false))
            );
            continue;
        }
        assert_eq!(figures["succeeded"], figures["operations"], "{shown}");
        let unprobed = count(&report["unprobed"]);
        let late = late(port, &target, &operation);
        if target == "s3" {
            assert!(number(&figures["latency_ms"]["p50"]) < 1_000.0, "{shown}");
            continue;
        }
        // One was due every 100 ms; those of the last second took less than one.
        let due = (frozen.as_secs_f64() * 10.0) as u64 - 10;
        assert!(late + unprobed + 2 >= due, "{late} late, {unprobed} unknown, {due} due: {shown}");
        assert!(late <= due + 30, "{late} late, {due} due: {shown}");
        let max = number(&figures["latency_ms"]["max"]);
        assert!(unprobed > 0 || max > frozen.as_secs_f64() * 1e3 - 500.0, "{shown}");
        println!(
            "{target} {operation}: {late} late of {due} due, longest {max:.0} ms, {unprobed} unknown"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_stopped_for_three_seconds_is_shown_with_every_operation_that_was_due() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("bucket"), "quorum", "quorum");
    let node = Node::start(&place, &dir.path().join("local"), &[]);
    let s3 = S3Server::start("versitygw");
    let url = format!("postgres://telesto:hush@127.0.0.1:{}/telesto", node.port);
    let targets = [
        format!("pg={url}"),
        format!("kv=http://127.0.0.1:{}", node.http),
        format!("s3=s3://telesto/b?region=us-east-1&endpoint=http://127.0.0.1:{}", s3.port()),
        format!("gone=s3://telesto/b?region=us-east-1&endpoint=http://127.0.0.1:{}", free_port()),
    ];
    let listening = ["--listen", "127.0.0.1:0", "--store", &url];
    let board = Board::start(dir.path(), "first", &targets, &listening);
    let port = board.port();
    wait_for(port, 15);
    let begun = Instant::now();
    node.freeze();
    std::thread::sleep(Duration::from_secs(3));
    node.thaw();
    let frozen = begun.elapsed();
    wait_for(port, 60);
    check(port, frozen);

    let (head, page) = get(port, "/?window=1h");
    assert!(head.to_lowercase().contains("content-security-policy: default-src 'none'"), "{head}");
    assert!(page.contains("<svg") && page.contains("scope=\"row\">1h"), "{page}");
    let whole = format!("{page}{}", get(port, "/board.json").1);
    assert!(!whole.contains("hush") && !page.contains("<script"), "{whole}");

    let before = runs(port);
    let table = board.end(true);
    assert!(table.contains("p99 50 ms: broken") && !table.contains("hush"), "{table}");
    let client = node.connect().await.expect("connects");
    let sum = "SELECT sum(succeeded)::bigint FROM telesto_board WHERE resolution = $1";
    for resolution in ["minute", "hour", "day"] {
        let stored: i64 = client.query_one(sum, &[&resolution]).await.expect("rows").get(0);
        let shown: u64 = before.iter().map(|(_, _, _, figures)| count(&figures["succeeded"])).sum();
        assert!(u64::try_from(stored).expect("positive") >= shown, "{stored} of {shown}");
    }

    let short = ["--store", &url, "--for", "1s", "--once", "--window", "1d"];
    let second = Board::start(dir.path(), "second", &targets[..1], &short).end(false);
    let row = second.lines().find(|line| line.starts_with("pg") && line.contains("read"));
    let probed = row.and_then(|row| row.split_whitespace().nth(2)?.parse::<u64>().ok());
    let earlier = count(&before[0].3["operations"]);
    assert!(probed.expect("a row") > earlier, "{earlier} before, then:\n{second}");
    check_store(&url).await;
}

/// Rows come back as they were written, and of two boards of one name the earlier one writes no
/// more.
async fn check_store(url: &str) {
    let env = telesto_runtime::env();
    let now = i64::try_from(env.clock.wall_micros() / 1_000_000).expect("a time");
    let earlier = Postgres::new(&env, url, "board").expect("a URL");
    let rows = earlier.open().await.expect("opens");
    assert!(rows.len() >= 2 * 3 * 3, "{} rows", rows.len());
    let mut row = rows[0].clone();
    row.packed.failures = [1, 2, 3, 4, 5];
    row.start += 7;
    earlier.write(std::slice::from_ref(&row), now).await.expect("written");
    let later = Postgres::new(&env, url, "board").expect("a URL");
    let again = later.open().await.expect("opens");
    assert!(rows[1..].iter().chain([&row]).all(|row| again.contains(row)), "rows differ");
    let refused = earlier.write(&[row.clone()], now).await.expect_err("another board has it");
    assert!(matches!(refused, telesto_board::Error::Replaced(_)), "{refused}");
    later.write(&[row], now).await.expect("written");
    let other = Postgres::new(&env, url, "elsewhere").expect("a URL");
    assert!(other.open().await.expect("opens").is_empty(), "it saw nothing yet");
}

/// What a node's own prober shows of an operation within an hour: operations, failed ones, seconds
/// probed, longest latency.
async fn own_figures(node: &Node, operation: &str) -> (i64, i64, f64, Option<f64>) {
    let client = node.connect().await.expect("connects");
    let sql = "SELECT operations, operations - succeeded, probed_seconds, unknown_seconds, max_ms, p50_ms, p999_ms, availability, promise_kept \
               FROM telesto_board_figures WHERE span = '1h' AND target = 'telesto' AND operation = $1";
    let Some(row) = client.query_opt(sql, &[&operation]).await.expect("figures") else {
        return (0, 0, 0.0, None);
    };
    let (operations, failed): (i64, i64) = (row.get(0), row.get(1));
    let (probed, unknown): (f64, f64) = (row.get(2), row.get(3));
    // The hour begins at a whole minute.
    assert!((3_595.0..3_665.0).contains(&(probed + unknown)), "{probed} + {unknown}");
    assert_eq!(
        operations == 0,
        row.get::<_, Option<f64>>(7).is_none(),
        "nothing probed is unknown"
    );
    if operations > failed {
        assert!(row.get::<_, Option<f64>>(5).is_some() && row.get::<_, Option<bool>>(8).is_some());
    }
    (operations, failed, probed, row.get(4))
}

/// Waits until both operations were probed `least` times; the seconds probed of reads.
async fn own_probed(node: &Node, least: i64) -> f64 {
    let until = Instant::now() + PATIENCE;
    loop {
        let (reads, updates) = (own_figures(node, "read").await, own_figures(node, "update").await);
        if reads.0 >= least && updates.0 >= least {
            return reads.2;
        }
        assert!(Instant::now() < until, "{reads:?} {updates:?}\n{}", node.output());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A node that probes itself, through a freeze, a restart and a kill: what this test's clock says
/// that it could not probe is unknown, never up, and nothing else is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_probes_itself_shows_freeze_restart_and_kill_as_unknown() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("bucket"), "quorum", "quorum");
    let local = dir.path().join("local");
    let probing = ["--probe", "10", "--probe-records", "100"];
    let started = Instant::now();
    let node = Node::start(&place, &local, &probing);
    own_probed(&node, 15).await;

    // A freeze: the time probed goes on without it.
    let (before, begun) = (own_figures(&node, "read").await.2, Instant::now());
    node.freeze();
    std::thread::sleep(Duration::from_secs(4));
    node.thaw();
    let frozen = 4.0;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (operations, _, after, _) = own_figures(&node, "read").await;
    let (probed, elapsed) = (after - before, begun.elapsed().as_secs_f64());
    assert!(probed > 0.2 && probed < elapsed - frozen + 1.0, "{probed} s probed of {elapsed} s");

    // An orderly stop writes what was seen: the next life knows it.
    let alive = started.elapsed().as_secs_f64();
    assert!(node.stop(), "an orderly end");
    std::thread::sleep(Duration::from_secs(3));
    let node = Node::start(&place, &local, &probing);
    let probed = own_probed(&node, operations + 5).await;
    assert!(probed >= after - 0.5, "{probed} s known of {after} s before the restart");

    // A kill loses what was not written yet, ten seconds and a round at most.
    let (before, lived) = (own_figures(&node, "read").await.2, started.elapsed().as_secs_f64());
    let down = Instant::now();
    node.kill();
    std::thread::sleep(Duration::from_secs(3));
    let node = Node::start(&place, &local, &probing);
    let down = down.elapsed().as_secs_f64();
    let known = own_probed(&node, operations + 5).await;
    assert!(known >= after - 0.5 && known >= before - 25.0, "{known} s known of {before} s");
    let elapsed = started.elapsed().as_secs_f64();
    assert!(
        known <= elapsed - frozen - 3.0 - down + 2.0,
        "{known} s probed of {elapsed} s, {down} s down"
    );
    println!(
        "{alive:.1} s, frozen {frozen} s, restarted, at {lived:.1} s killed for {down:.1} s: {before:.1} s known before, {known:.1} s after"
    );

    // It is a client like any other: shown with its name, and charged for what it asks.
    let client = node.connect().await.expect("connects");
    let shown = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'telesto_prober'";
    assert!(client.query_one(shown, &[]).await.expect("rows").get::<_, i64>(0) > 0);
    let page = node.get("/board").expect("a page");
    assert!(page.contains("As this node sees itself") && page.contains("unknown"), "{page}");
}
