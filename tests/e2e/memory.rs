//! Bounded memory: importing and scanning data five times the configured limit keeps the resident
//! set within 1.5 times the limit plus 150 MB; a write set of five million rows commits
//! (`TELESTO_BIG_ROWS=5000000`; the short run uses fewer).

#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;

use harness::{Node, Place};

const LIMIT_MB: u64 = 64;
const ROW_BYTES: usize = 1000;

fn allowed_kb() -> u64 {
    (LIMIT_MB * 3 / 2 + 150) * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn import_and_scan_of_five_times_the_limit_stays_within_bounds() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("bucket"), "quorum", "quorum");
    let node = Node::start(&place, &dir.path().join("local"), &["--memory", "64MiB"]);
    let client = node.connect().await.expect("connects");
    client
        .batch_execute("CREATE TABLE big (id bigint PRIMARY KEY, filler text NOT NULL)")
        .await
        .expect("table");
    let rows = (LIMIT_MB * 5 * 1024 * 1024) / ROW_BYTES as u64;
    let insert = client.prepare("INSERT INTO big SELECT g, md5(g::text) || $3 FROM generate_series($1::bigint, $2::bigint) g").await;
    let filler = "x".repeat(ROW_BYTES - 32);
    let mut next = 0_i64;
    while (next as u64) < rows {
        let last = (next + 1999).min(rows as i64 - 1);
        match &insert {
            Ok(statement) => {
                client.execute(statement, &[&next, &last, &filler]).await.expect("insert");
            }
            Err(_) => {
                let values: Vec<String> =
                    (next..=last).map(|id| format!("({id}, '{id}{filler}')")).collect();
                client
                    .batch_execute(&format!("INSERT INTO big VALUES {}", values.join(",")))
                    .await
                    .expect("insert");
            }
        }
        next = last + 1;
    }
    let after_import = node.memory_kb("VmHWM");
    let count: i64 = client.query_one("SELECT count(*) FROM big", &[]).await.expect("count").get(0);
    assert_eq!(count as u64, rows);
    let bytes: i64 = client
        .query_one("SELECT sum(length(filler))::bigint FROM big", &[])
        .await
        .expect("scan")
        .get(0);
    assert!(bytes as u64 > rows * (ROW_BYTES as u64 - 40), "{bytes}");
    let peak = node.memory_kb("VmHWM");
    println!(
        "peak resident set: import {after_import} kB, scan {peak} kB, allowed {} kB",
        allowed_kb()
    );
    assert!(peak <= allowed_kb(), "resident set peaked at {peak} kB, allowed {} kB", allowed_kb());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_set_far_larger_than_memory_commits_whole() {
    let rows: i64 =
        std::env::var("TELESTO_BIG_ROWS").ok().and_then(|n| n.parse().ok()).unwrap_or(300_000);
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("bucket"), "quorum", "quorum");
    let local = dir.path().join("local");
    let node = Node::start(&place, &local, &["--memory", "64MiB"]);
    let client = node.connect().await.expect("connects");
    client
        .batch_execute("CREATE TABLE many (id bigint PRIMARY KEY, half bigint NOT NULL)")
        .await
        .expect("table");
    let inserted = client
        .execute("INSERT INTO many SELECT g, g / 2 FROM generate_series(1, $1::bigint) g", &[&rows])
        .await
        .expect("one statement, one commit");
    assert_eq!(inserted, rows.unsigned_abs());
    let peak = node.memory_kb("VmHWM");
    println!("{rows} rows in one commit, peak resident set {peak} kB, allowed {} kB", allowed_kb());
    assert!(peak <= allowed_kb(), "resident set peaked at {peak} kB, allowed {} kB", allowed_kb());
    node.kill();
    let node = Node::start(&place, &local, &["--memory", "64MiB"]);
    let client = node.connect().await.expect("connects");
    let row = client
        .query_one("SELECT count(*), sum(half)::bigint, max(id) FROM many", &[])
        .await
        .expect("scan");
    let (count, halves, greatest): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert_eq!((count, greatest), (rows, rows));
    assert_eq!(halves, (1..=rows).map(|g| g / 2).sum::<i64>());
}
