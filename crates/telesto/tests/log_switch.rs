//! `telesto log switch --url` on a live node under load: nothing acknowledged is lost, nothing is
//! done twice.
#![allow(missing_docs, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "real processes, real time")]

#[path = "../../../tests/e2e/harness.rs"]
#[allow(dead_code, reason = "shared with the other tests of real processes")]
mod harness;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use harness::{Node, Place};

const WRITERS: i64 = 4;

fn switch(node: &Node, user: &str, to: &str) -> Output {
    let url = format!("postgres://{user}@127.0.0.1:{}/telesto", node.port);
    Command::new(env!("CARGO_BIN_EXE_telesto"))
        .args(["log", "switch", "--url", &url, "--to", to])
        .output()
        .expect("the telesto binary runs")
}

fn chain(bucket: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_telesto"))
        .args(["log", "inspect", "--bucket", bucket, "--limit", "0"])
        .output()
        .expect("the telesto binary runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Appends to the writer's own list and counts up a row all share, one transaction each; every
/// error is one too many.
async fn write(node: &Node, writer: i64, stop: Arc<AtomicBool>, acknowledged: Arc<AtomicI64>) {
    let mut client = node.connect().await.expect("connects");
    let mut position = 0_i64;
    while !stop.load(Ordering::Acquire) {
        position += 1;
        loop {
            let transaction = client.transaction().await.expect("begins");
            let work = async {
                transaction
                    .execute("INSERT INTO list VALUES ($1, $2)", &[&writer, &position])
                    .await?;
                transaction.execute("UPDATE counter SET n = n + 1", &[]).await?;
                transaction.commit().await
            };
            match work.await {
                Ok(()) => break,
                Err(error) if error.code().is_some_and(|code| code.code() == "40001") => {}
                Err(error) => panic!("writer {writer}, {position}: {error:?}"),
            }
        }
        acknowledged.fetch_add(1, Ordering::AcqRel);
    }
}

async fn verify(node: &Node, acknowledged: i64) {
    let client = node.connect().await.expect("connects");
    let row = client.query_one("SELECT n FROM counter", &[]).await.expect("counter");
    assert_eq!(row.get::<_, i64>(0), acknowledged, "the counter");
    let lists = "SELECT writer, count(*), max(position) FROM list GROUP BY writer";
    let mut rows = 0;
    for row in client.query(lists, &[]).await.expect("lists") {
        assert_eq!(row.get::<_, i64>(1), row.get::<_, i64>(2), "writer {}", row.get::<_, i64>(0));
        rows += row.get::<_, i64>(1);
    }
    assert_eq!(rows, acknowledged, "the lists");
}

async fn wait_for_more(acknowledged: &AtomicI64) {
    let before = acknowledged.load(Ordering::Acquire);
    while acknowledged.load(Ordering::Acquire) < before + 20 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

fn place(dir: &Path) -> Place {
    // The kind counts only when the database is made.
    Place::folder(&dir.join("bucket"), "bucket", "bucket")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_switched_both_ways_under_load_loses_nothing() {
    let dir = tempfile::tempdir().expect("folder");
    let place = place(dir.path());
    let node = Node::start(&place, dir.path(), &[]);
    let admin = node.connect().await.expect("connects");
    admin
        .batch_execute(
            "CREATE TABLE counter (id int PRIMARY KEY, n bigint NOT NULL); INSERT INTO counter VALUES (0, 0);
             CREATE TABLE list (writer bigint, position bigint, PRIMARY KEY (writer, position))",
        )
        .await
        .expect("tables");
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
    let writers =
        (0..WRITERS).map(|w| write(&node, w, Arc::clone(&stop), Arc::clone(&acknowledged)));
    let switching = async {
        for to in ["quorum", "bucket", "quorum", "quorum", "bucket", "quorum"] {
            wait_for_more(&acknowledged).await;
            let output = tokio::task::block_in_place(|| switch(&node, "telesto", to));
            assert!(output.status.success(), "{output:?}\n{}", node.output());
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(said.trim(), format!("the log goes on on {to}"));
        }
        wait_for_more(&acknowledged).await;
        stop.store(true, Ordering::Release);
    };
    tokio::join!(futures::future::join_all(writers), switching);
    let total = acknowledged.load(Ordering::Acquire);
    verify(&node, total).await;
    let shown = chain(&place.bucket);
    let last = shown.lines().rfind(|line| line.trim_start().starts_with("chain ")).expect("chain");
    assert_eq!(last.matches(" on ").count(), 6, "six loglets, one a change: {last}");
    node.kill();
    // What the disk acknowledged last is there after a crash too, on either medium.
    let node = Node::start(&place, dir.path(), &[]);
    verify(&node, total).await;
    let output = switch(&node, "telesto", "bucket");
    assert!(output.status.success(), "{output:?}");
    verify(&node, total).await;
    assert!(node.stop(), "stops in order");
}

#[tokio::test]
async fn log_switch_is_for_superusers_and_names_what_is_wrong() {
    let dir = tempfile::tempdir().expect("folder");
    let place = place(dir.path());
    let node = Node::start(&place, dir.path(), &[]);
    let admin = node.connect().await.expect("connects");
    admin.batch_execute("CREATE ROLE ada LOGIN").await.expect("role");
    let refused = switch(&node, "ada", "quorum");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("42501"), "{said}");
    let error = admin.simple_query("SELECT telesto_log_switch('tape')").await.expect_err("kind");
    assert_eq!(error.code().expect("code").code(), "22023");
    let nowhere = Command::new(env!("CARGO_BIN_EXE_telesto"))
        .args(["log", "switch", "--to", "bucket"])
        .env_remove("TELESTO_BUCKET")
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(!nowhere.status.success() && said.contains("--url"), "{said}");
    assert!(!chain(&place.bucket).contains("quorum"), "nothing was switched");
}
