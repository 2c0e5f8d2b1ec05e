//! Four processes write to one S3 bucket through a middlebox that repeats, holds, drops and
//! reorders replies (`meddler.rs`): the history of lists is strictly serializable, no increment is
//! lost or doubled, no insert that conflicts with nothing is refused. `TELESTO_SOAK_SECONDS=600`
//! for the long run.

#[path = "appending.rs"]
#[allow(dead_code)]
mod appending;
#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;
#[path = "meddler.rs"]
mod meddler;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use appending::{Run, TABLE, connect, session};
use harness::{Node, Place, S3Server};
use meddler::Meddler;

const NODES: usize = 4;
const COUNTERS: i64 = 3;

/// What became of single statements.
#[derive(Default)]
struct Told {
    /// Increments acknowledged and of unknown outcome.
    increments: [AtomicU64; 2],
    /// Inserted numbers: acknowledged, or of unknown outcome.
    inserts: Mutex<BTreeMap<i64, bool>>,
    /// Inserts refused although nothing conflicts with them, with the server's words.
    refused: Mutex<Vec<String>>,
}

/// Increments counters at random until the run is told to stop.
async fn count(run: Arc<Run>, told: Arc<Told>, port: u16, mut next: i64) {
    while !run.stop.load(Ordering::SeqCst) {
        let Some(client) = connect(port).await else { continue };
        while !client.is_closed() && !run.stop.load(Ordering::SeqCst) {
            next += 1;
            let sql = "UPDATE counters SET n = n + 1 WHERE id = $1";
            let done = client.execute(sql, &[&(next % COUNTERS)]).await;
            match done {
                Ok(1) => told.increments[0].fetch_add(1, Ordering::SeqCst),
                Ok(other) => panic!("{other} rows of one counter"),
                // Refused for certain.
                Err(error) if error.code().is_some_and(|c| c.code() == "40001") => 0,
                Err(_) => told.increments[1].fetch_add(1, Ordering::SeqCst),
            };
        }
    }
}

/// Inserts rows of its own until the run is told to stop.
async fn insert(run: Arc<Run>, told: Arc<Told>, port: u16, mut next: i64) {
    while !run.stop.load(Ordering::SeqCst) {
        let Some(client) = connect(port).await else { continue };
        while !client.is_closed() && !run.stop.load(Ordering::SeqCst) {
            next += 1;
            let done = client.execute("INSERT INTO own VALUES ($1)", &[&next]).await;
            let refused = |error: &tokio_postgres::Error| {
                error.code().is_some_and(|c| ["40001", "23505"].contains(&c.code()))
            };
            match done {
                Ok(_) => {
                    told.inserts.lock().expect("no panic").insert(next, true);
                }
                Err(error) if refused(&error) => {
                    let words = error.as_db_error().map(ToString::to_string).unwrap_or_default();
                    told.refused.lock().expect("no panic").push(format!("{next}: {words}"));
                }
                Err(_) => {
                    told.inserts.lock().expect("no panic").insert(next, false);
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_doubled_or_wrongly_refused_behind_a_middlebox_that_repeats() {
    let seconds = std::env::var("TELESTO_SOAK_SECONDS").ok().and_then(|s| s.parse().ok());
    let server = S3Server::start("versitygw");
    let meddler = Meddler::start(server.port(), 1).await;
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::s3(&server, "middle", "bucket", "bucket").through(meddler.port());
    let direct = Place::s3(&server, "middle", "bucket", "bucket");
    // The schema comes into being undisturbed.
    let first = Node::start(&direct, &dir.path().join("first"), &[]);
    let client = first.connect().await.expect("connects");
    let tables = format!(
        "{TABLE}; CREATE TABLE counters (id bigint PRIMARY KEY, n bigint NOT NULL);
         CREATE TABLE own (id bigint PRIMARY KEY);
         INSERT INTO counters SELECT g, 0 FROM generate_series(0, {}) g",
        COUNTERS - 1
    );
    client.batch_execute(&tables).await.expect("tables");
    let extra = ["--checkpoint-interval", "5s"];
    let nodes: Vec<Node> =
        (0..NODES).map(|n| Node::start(&place, &dir.path().join(n.to_string()), &extra)).collect();
    let (run, told) = (Arc::new(Run::default()), Arc::new(Told::default()));
    let mut tasks = Vec::new();
    for (n, node) in nodes.iter().enumerate() {
        let (port, number) = (node.port, n as i64 * 1_000_000_000);
        let at = Arc::new(AtomicU16::new(port));
        tasks.push(tokio::spawn(session(Arc::clone(&run), n, at, n as u64)));
        tasks.push(tokio::spawn(count(Arc::clone(&run), Arc::clone(&told), port, number)));
        tasks.push(tokio::spawn(insert(Arc::clone(&run), Arc::clone(&told), port, number)));
    }
    tokio::time::sleep(Duration::from_secs(seconds.unwrap_or(20))).await;
    run.stop.store(true, Ordering::SeqCst);
    meddler.behave();
    for task in tasks {
        task.await.expect("session");
    }
    println!("the middlebox: {:?}", meddler.counts());
    assert!(
        meddler.counts().own_success_refused.load(Ordering::Relaxed) > 0,
        "no client was refused its own success: the run shows nothing"
    );
    for (n, node) in nodes.iter().enumerate() {
        run.read_all(n as u64, node).await;
    }
    verify(&nodes[0], &told).await;
    let shown: Vec<String> = run.check().iter().map(ToString::to_string).collect();
    assert!(shown.is_empty(), "{} anomalies:\n{}", shown.len(), shown.join("\n"));
}

/// Compares what clients were told with what is stored.
async fn verify(node: &Node, told: &Told) {
    let client = node.connect().await.expect("connects");
    let row = client.query_one("SELECT sum(n)::bigint FROM counters", &[]).await.expect("sum");
    let stored = row.get::<_, i64>(0).unsigned_abs();
    let [acknowledged, unknown] =
        [&told.increments[0], &told.increments[1]].map(|n| n.load(Ordering::SeqCst));
    println!("increments: {acknowledged} acknowledged, {unknown} unknown, {stored} stored");
    let rows = client.query("SELECT id FROM own", &[]).await.expect("rows");
    let there: std::collections::BTreeSet<i64> = rows.iter().map(|row| row.get(0)).collect();
    let inserts = told.inserts.lock().expect("no panic");
    let lost: Vec<i64> = inserts
        .iter()
        .filter(|(id, acked)| **acked && !there.contains(id))
        .map(|(id, _)| *id)
        .collect();
    let refused = told.refused.lock().expect("no panic");
    println!("inserts: {} told, {} stored, {} refused", inserts.len(), there.len(), refused.len());
    assert!(acknowledged > 0 && !there.is_empty(), "nothing was done");
    assert!(stored >= acknowledged, "{} acknowledged increments are lost", acknowledged - stored);
    assert!(
        stored <= acknowledged + unknown,
        "{} increments were applied twice",
        stored - acknowledged - unknown
    );
    assert!(lost.is_empty(), "{} acknowledged inserts are lost: {lost:?}", lost.len());
    assert!(refused.is_empty(), "inserts refused though nothing conflicts: {refused:#?}");
}
