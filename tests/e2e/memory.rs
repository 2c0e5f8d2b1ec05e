//! Bounded memory, with real processes: importing and scanning data five times the configured limit
//! keeps the resident set within 1.5 times the limit plus 150 MB, and so does a commit far larger
//! than memory, with the fold and the compactions after it. Of the 150 MB a release has 20 MB
//! beside its own pages at most; those of a development build, which are many more, count apart.
//!
//! `TELESTO_BIG_ROWS` sets the rows of the large commit (the script `memory_5m.sh` gives
//! 5,000,000), `TELESTO_MEMORY_MB` the limit.

#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;

use std::time::{Duration, Instant};

use harness::{Node, PATIENCE, Place};

const ROW_BYTES: usize = 1000;

fn from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => default,
    }
}

fn limit_mb() -> u64 {
    from_environment("TELESTO_MEMORY_MB", 64)
}

fn limit() -> String {
    format!("{}MiB", limit_mb())
}

fn allowed_kb() -> u64 {
    (limit_mb() * 3 / 2 + 20) * 1024
}

/// The greatest resident set so far beside the pages of the program, which only become more;
/// checked.
fn peak(node: &Node, phase: &str) -> u64 {
    let (peak, program) = (node.memory_kb("VmHWM"), node.memory_kb("RssFile"));
    let (data, allowed) = (peak.saturating_sub(program), allowed_kb());
    println!(
        "{phase}: peak resident set {peak} kB, of which {program} kB are the program: {data} kB, allowed {allowed} kB, limit {}",
        limit()
    );
    assert!(data <= allowed, "{phase}: {data} kB beside the program, allowed {allowed} kB");
    data
}

/// A value of the node's metrics.
fn metric(node: &Node, name: &str) -> Option<f64> {
    let answer = node.get("/metrics")?;
    let line = answer.lines().find(|line| line.split([' ', '{']).next() == Some(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Waits until everything written so far is in the checkpoint: the fold is where memory was lost.
async fn folded(node: &Node) {
    let mut since = Instant::now();
    let mut before = None;
    loop {
        let tail = metric(node, "telesto_txn_tail_bytes");
        // The record that says so is all that is left.
        if tail.is_some_and(|tail| tail < 64_000.0) {
            return;
        }
        let folds = metric(node, "telesto_txn_folds_total");
        if before != folds {
            (before, since) = (folds, Instant::now());
        }
        let waited = since.elapsed();
        assert!(
            waited < PATIENCE * 5,
            "no fold ends; bytes in the tail: {tail:?}\n{}",
            node.output()
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn import_and_scan_of_five_times_the_limit_stays_within_bounds() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("bucket"), "quorum", "quorum");
    let node = Node::start(&place, &dir.path().join("local"), &["--memory", &limit()]);
    let client = node.connect().await.expect("connects");
    client
        .batch_execute("CREATE TABLE big (id bigint PRIMARY KEY, filler text NOT NULL)")
        .await
        .expect("table");
    let rows = (limit_mb() * 5 * 1024 * 1024) / ROW_BYTES as u64;
    let insert = client
        .prepare("INSERT INTO big SELECT g, md5(g::text) || $3 FROM generate_series($1::bigint, $2::bigint) g")
        .await
        .expect("prepared");
    let filler = "x".repeat(ROW_BYTES - 32);
    let mut next = 0_i64;
    while (next as u64) < rows {
        let last = (next + 1999).min(rows as i64 - 1);
        client.execute(&insert, &[&next, &last, &filler]).await.expect("insert");
        next = last + 1;
    }
    peak(&node, "import");
    // In part from the tail, in part from the checkpoint; then, folded, from there alone.
    for phase in ["scan", "scan after the fold"] {
        let row = client
            .query_one(
                "SELECT count(*), sum(id)::bigint, sum(length(filler))::bigint FROM big",
                &[],
            )
            .await
            .expect("scan");
        let (count, sum, bytes): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
        assert_eq!(count as u64, rows);
        assert_eq!(sum, (0..rows as i64).sum::<i64>());
        assert_eq!(bytes as u64, rows * ROW_BYTES as u64);
        peak(&node, phase);
        folded(&node).await;
    }
    // Every row to the client.
    let stream = client
        .query_raw("SELECT id, filler FROM big", std::iter::empty::<i64>())
        .await
        .expect("query");
    futures::pin_mut!(stream);
    let (mut count, mut sum) = (0, 0);
    while let Some(row) = futures::TryStreamExt::try_next(&mut stream).await.expect("row") {
        count += 1;
        sum += row.get::<_, i64>(0);
        assert_eq!(row.get::<_, &str>(1).len(), ROW_BYTES);
    }
    assert_eq!((count, sum), (rows, (0..rows as i64).sum::<i64>()));
    peak(&node, "all rows to the client");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_set_far_larger_than_memory_commits_whole_and_outlives_the_process() {
    let rows = i64::try_from(from_environment("TELESTO_BIG_ROWS", 1_000_000)).expect("a count");
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("bucket"), "quorum", "quorum");
    let local = dir.path().join("local");
    let node = Node::start(&place, &local, &["--memory", &limit()]);
    let client = node.connect().await.expect("connects");
    client
        .batch_execute("CREATE TABLE many (id bigint PRIMARY KEY, half bigint NOT NULL)")
        .await
        .expect("table");
    let began = Instant::now();
    let inserted = client
        .execute("INSERT INTO many SELECT g, g / 2 FROM generate_series(1, $1::bigint) g", &[&rows])
        .await
        .expect("one statement, one commit");
    assert_eq!(inserted, rows.unsigned_abs());
    println!("{rows} rows in one commit took {:.1} s", began.elapsed().as_secs_f64());
    peak(&node, "commit");
    // Killed before it was folded: the next process finds the commit in the log.
    node.kill();
    let node = Node::start(&place, &local, &["--memory", &limit()]);
    check(&node, rows).await;
    peak(&node, "scan after a restart");
    let began = Instant::now();
    folded(&node).await;
    println!("folded after another {:.1} s", began.elapsed().as_secs_f64());
    peak(&node, "fold");
    check(&node, rows).await;
    node.kill();
    // And now in the checkpoint.
    let node = Node::start(&place, &local, &["--memory", &limit()]);
    check(&node, rows).await;
    peak(&node, "scan of the checkpoint after a restart");
}

async fn check(node: &Node, rows: i64) {
    let client = node.connect().await.expect("connects");
    let row = client
        .query_one("SELECT count(*), sum(half)::bigint, min(id), max(id) FROM many", &[])
        .await
        .expect("scan");
    let found: (i64, i64, i64, i64) = (row.get(0), row.get(1), row.get(2), row.get(3));
    assert_eq!(found, (rows, (1..=rows).map(|g| g / 2).sum::<i64>(), 1, rows));
}
