//! Two processes write one folder at full speed through a bucket log while a third opens and closes
//! the database again and again: it never meets damage that is none, and each time it sees all that
//! was acknowledged before. `TELESTO_SOAK_OPENS=200 TELESTO_SOAK_SECONDS=600` for the long run.

#[path = "appending.rs"]
#[allow(dead_code)]
mod appending;
#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use appending::connect;
use harness::{Node, Place};

/// Slots that wait behind the trim point before the first open: the more there are, the longer a
/// listing takes.
const SLOTS: i64 = 2_000;
/// An error of an open counts when it is still there after this long.
const RETRY: Duration = Duration::from_secs(1);

/// Inserts rows of its own until it is told to stop; `done` counts the acknowledged ones.
async fn write(port: u16, first: i64, done: Arc<AtomicI64>, stop: Arc<AtomicBool>) {
    let client = connect(port).await.expect("connects");
    let mut next = first;
    while !stop.load(Ordering::SeqCst) {
        next += 1;
        client.execute("INSERT INTO rows VALUES ($1)", &[&next]).await.expect("inserts");
        done.fetch_add(1, Ordering::SeqCst);
    }
}

/// Opens the database in this process, counts the rows, closes it.
async fn look(url: &str) -> Result<i64, telesto::Error> {
    let database = telesto::Database::open(url).await?;
    let rows = database.query("SELECT count(*) FROM rows", &[]).await?;
    let count = rows[0].get::<i64>("count")?;
    database.close().await?;
    Ok(count)
}

/// A number of the environment, or `short`.
fn setting(name: &str, short: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(short)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn third_process_opens_while_two_write_one_folder_at_full_speed() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&dir.path().join("bucket"), "bucket", "bucket");
    let nodes: Vec<Node> =
        (0..2).map(|n| Node::start(&place, &dir.path().join(n.to_string()), &[])).collect();
    let client = nodes[0].connect().await.expect("connects");
    client.batch_execute("CREATE TABLE rows (id bigint PRIMARY KEY)").await.expect("table");
    let (done, stop) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicBool::new(false)));
    let tasks: Vec<_> = (0..4_i64)
        .map(|n| {
            let port = nodes[(n % 2) as usize].port;
            tokio::spawn(write(port, n * 1_000_000_000, Arc::clone(&done), Arc::clone(&stop)))
        })
        .collect();
    while done.load(Ordering::SeqCst) < SLOTS {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(tasks.iter().all(|task| !task.is_finished()), "a writer ended");
    }
    let least = Duration::from_secs(setting("TELESTO_SOAK_SECONDS", 0));
    let (opens, began) = (setting("TELESTO_SOAK_OPENS", 20), Instant::now());
    let (mut opened, mut retried) = (0, 0);
    while opened < opens || began.elapsed() < least {
        let before = done.load(Ordering::SeqCst);
        let tried = Instant::now();
        let count = loop {
            match look(&place.bucket).await {
                Ok(count) => break count,
                Err(error) => {
                    let words = error.to_string();
                    assert!(!words.contains("damaged"), "open {opened}: {words}");
                    assert!(tried.elapsed() < RETRY, "open {opened}: {words}");
                    retried += 1;
                }
            }
        };
        assert!(count >= before, "open {opened}: {count} rows of {before} acknowledged");
        opened += 1;
    }
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.expect("writer");
    }
    println!(
        "{opened} opens beside {} commits, {retried} tried again",
        done.load(Ordering::SeqCst)
    );
}
