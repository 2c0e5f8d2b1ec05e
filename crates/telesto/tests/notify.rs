//! LISTEN and NOTIFY through a driver: one process and two on a bucket, transactions, kills, a log
//! that is switched.
#![allow(missing_docs, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "real processes, real time")]

#[path = "../../../tests/e2e/harness.rs"]
#[allow(dead_code, reason = "shared with the other tests of real processes")]
mod harness;

use std::path::Path;
use std::process::Command;

use harness::{Node, PATIENCE, Place};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls};

/// A client that listens.
struct Ear {
    client: Client,
    heard: mpsc::UnboundedReceiver<(String, String)>,
}

impl Ear {
    async fn new(node: &Node, channel: &str) -> Self {
        let url = format!("host=127.0.0.1 port={} user=telesto dbname=telesto", node.port);
        let (client, mut connection) =
            tokio_postgres::connect(&url, NoTls).await.expect("connects");
        let (say, heard) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) =
                std::future::poll_fn(|context| connection.poll_message(context)).await
            {
                if let AsyncMessage::Notification(n) = message {
                    let _ = say.send((n.channel().to_owned(), n.payload().to_owned()));
                }
            }
        });
        client.batch_execute(&format!("LISTEN {channel}")).await.expect("listens");
        Self { client, heard }
    }

    async fn next(&mut self) -> (String, String) {
        let heard = tokio::time::timeout(PATIENCE, self.heard.recv()).await;
        heard.expect("a notification comes").expect("the connection is up")
    }

    /// Payloads up to `last`, which is left out.
    async fn until(&mut self, last: &str) -> Vec<String> {
        let mut payloads = Vec::new();
        loop {
            let (_, payload) = self.next().await;
            if payload == last {
                return payloads;
            }
            payloads.push(payload);
        }
    }
}

fn place(dir: &Path, log: &'static str) -> Place {
    Place::folder(&dir.join("bucket"), log, log)
}

const SOON: [&str; 2] = ["--notify-interval", "50ms"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notification_is_part_of_its_transaction() {
    let dir = tempfile::tempdir().expect("folder");
    let node = Node::start(&place(dir.path(), "quorum"), dir.path(), &[]);
    let mut ear = Ear::new(&node, "news").await;
    let other = node.connect().await.expect("connects");
    for sql in [
        "CREATE TABLE t (n int PRIMARY KEY)",
        "NOTIFY news, 'alone'; NOTIFY elsewhere, 'unheard'",
        "BEGIN; NOTIFY news, 'rolled back'; ROLLBACK",
        "BEGIN; NOTIFY news, 'first'; SAVEPOINT s; NOTIFY news, 'undone'; NOTIFY news, 'first'; ROLLBACK TO s;
             NOTIFY news, 'second'; NOTIFY news, 'first'; SELECT pg_notify('news', 'second'), pg_notify('news', 'third'); COMMIT",
        "BEGIN READ ONLY; NOTIFY news, 'read only'; COMMIT",
        "INSERT INTO t SELECT n FROM generate_series(1, 3) n; SELECT pg_notify('news', 'row ' || n) FROM t ORDER BY n",
    ] {
        other.batch_execute(sql).await.expect("notifies");
    }
    other
        .batch_execute(
            "INSERT INTO t VALUES (4); NOTIFY news, 'of a failure'; INSERT INTO t VALUES (4)",
        )
        .await
        .expect_err("a duplicate");
    other.query("SELECT pg_notify($1, $2)", &[&"news", &"by parameters"]).await.expect("notifies");
    ear.client.batch_execute("NOTIFY news, 'own'").await.expect("notifies");
    let expected = [
        "alone",
        "first",
        "second",
        "third",
        "read only",
        "row 1",
        "row 2",
        "row 3",
        "by parameters",
    ];
    assert_eq!(ear.until("own").await, expected);

    // In a block nothing is told; LISTEN, too, waits for the commit, and hears what its own
    // transaction says.
    ear.client
        .batch_execute("BEGIN; LISTEN later; NOTIFY later, 'own, at once'")
        .await
        .expect("begins");
    other.batch_execute("NOTIFY news, 'meanwhile'").await.expect("notifies");
    ear.client.query("SELECT 1", &[]).await.expect("a query in the block");
    assert!(ear.heard.try_recv().is_err(), "told inside the block");
    ear.client.batch_execute("COMMIT").await.expect("commits");
    assert_eq!(ear.next().await, ("news".to_owned(), "meanwhile".to_owned()));
    assert_eq!(ear.next().await, ("later".to_owned(), "own, at once".to_owned()));
    ear.client.batch_execute("UNLISTEN news").await.expect("unlistens");
    other.batch_execute("NOTIFY news, 'too late'; NOTIFY later, 'end'").await.expect("notifies");
    assert_eq!(ear.until("end").await, [""; 0]);
    // Writes too many for a log entry go to objects of their own: what is said goes with them.
    let rows = "INSERT INTO t SELECT n FROM generate_series(1000, 60000) n";
    other
        .batch_execute(&format!("BEGIN; {rows}; NOTIFY later, 'a large one'; COMMIT"))
        .await
        .expect("commits");
    assert_eq!(ear.next().await.1, "a large one");
    let count: i64 =
        ear.client.query_one("SELECT count(*) FROM t", &[]).await.expect("counts").get(0);
    assert_eq!(count, 3 + 59_001);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listeners_of_two_processes_hear_the_same_in_the_same_order() {
    const EACH: usize = 40;
    let dir = tempfile::tempdir().expect("folder");
    let place = place(dir.path(), "bucket");
    let nodes = [
        Node::start(&place, &dir.path().join("a"), &SOON),
        Node::start(&place, &dir.path().join("b"), &SOON),
    ];
    let setup = nodes[0].connect().await.expect("connects");
    setup.batch_execute("CREATE TABLE said (who int, n int, PRIMARY KEY (who, n)); CREATE TABLE c (n int); INSERT INTO c VALUES (0)").await.expect("tables");
    let mut ears = [Ear::new(&nodes[0], "news").await, Ear::new(&nodes[1], "news").await];
    let speakers = (0..4).map(|who| {
        let node = &nodes[who % 2];
        async move {
            let client = node.connect().await.expect("connects");
            for n in 0..EACH {
                // All change one row: transactions conflict, and are executed again.
                let sql = format!(
                    "BEGIN; UPDATE c SET n = n + 1; INSERT INTO said VALUES ({who}, {n}); NOTIFY news, '{who} {n}'; COMMIT"
                );
                while let Err(error) = client.batch_execute(&sql).await {
                    assert_eq!(error.code().map(|code| code.code()), Some("40001"), "{error}");
                    client.batch_execute("ROLLBACK").await.expect("rolls back");
                }
            }
        }
    });
    futures::future::join_all(speakers).await;
    setup.batch_execute("NOTIFY news, 'end'").await.expect("notifies");
    let [first, second] = &mut ears;
    let heard = first.until("end").await;
    assert_eq!(second.until("end").await, heard);
    let mut sorted = heard.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!((sorted.len(), heard.len()), (4 * EACH, 4 * EACH), "each once");
    for who in 0..4 {
        let of: Vec<&String> = heard.iter().filter(|h| h.starts_with(&format!("{who} "))).collect();
        assert!(of.iter().enumerate().all(|(n, said)| **said == format!("{who} {n}")), "{of:?}");
    }
    // What was heard can be read.
    let other = nodes[1].connect().await.expect("connects");
    other
        .batch_execute("BEGIN; INSERT INTO said VALUES (9, 9); NOTIFY news, 'look'; COMMIT")
        .await
        .expect("commits");
    assert_eq!(first.until("look").await, [""; 0]);
    assert_eq!(
        first.client.query("SELECT 1 FROM said WHERE who = 9", &[]).await.expect("reads").len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_killed_process_everything_committed_is_heard_and_nothing_else() {
    let dir = tempfile::tempdir().expect("folder");
    let place = place(dir.path(), "bucket");
    let node = Node::start(&place, &dir.path().join("a"), &SOON);
    let setup = node.connect().await.expect("connects");
    setup.batch_execute("CREATE TABLE said (n int PRIMARY KEY)").await.expect("table");
    let mut ear = Ear::new(&node, "news").await;
    let mut next = 0;
    for round in 0..3 {
        let doomed = Node::start(&place, &dir.path().join(format!("b{round}")), &SOON);
        let client = doomed.connect().await.expect("connects");
        let speaks = tokio::spawn(async move {
            let mut n = next;
            loop {
                let sql =
                    format!("BEGIN; INSERT INTO said VALUES ({n}); NOTIFY news, '{n}'; COMMIT");
                if client.batch_execute(&sql).await.is_err() {
                    return n + 1;
                }
                n += 1;
            }
        });
        // In the middle of it.
        let mut heard = Vec::new();
        while heard.len() < 15 {
            heard.push(ear.next().await.1);
        }
        doomed.kill();
        next = speaks.await.expect("ends");
        // The tail of the log is looked at before this commits: what the dead process committed
        // comes before it.
        setup
            .batch_execute("SELECT count(*) FROM said; NOTIFY news, 'end'")
            .await
            .expect("notifies");
        heard.extend(ear.until("end").await);
        let heard: Vec<i32> = heard.iter().map(|n| n.parse().expect("a number")).collect();
        let rows = setup.query("DELETE FROM said RETURNING n", &[]).await.expect("rows");
        let mut rows: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
        rows.sort_unstable();
        assert_eq!(heard, rows, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listener_hears_on_while_the_log_is_switched() {
    let dir = tempfile::tempdir().expect("folder");
    let node = Node::start(&place(dir.path(), "bucket"), dir.path(), &SOON);
    let mut ear = Ear::new(&node, "news").await;
    let client = node.connect().await.expect("connects");
    let mut said = Vec::new();
    for to in ["quorum", "bucket", "quorum"] {
        for n in 0..5 {
            said.push(format!("{to} {n}"));
            client.batch_execute(&format!("NOTIFY news, '{to} {n}'")).await.expect("notifies");
        }
        let url = format!("postgres://telesto@127.0.0.1:{}/telesto", node.port);
        let output = tokio::task::block_in_place(|| {
            Command::new(env!("CARGO_BIN_EXE_telesto"))
                .args(["log", "switch", "--url", &url, "--to", to])
                .output()
                .expect("the telesto binary runs")
        });
        assert!(output.status.success(), "{output:?}");
    }
    client.batch_execute("NOTIFY news, 'end'").await.expect("notifies");
    assert_eq!(ear.until("end").await, said);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listener_that_takes_nothing_is_ended_with_the_reason() {
    let dir = tempfile::tempdir().expect("folder");
    let node = Node::start(&place(dir.path(), "quorum"), dir.path(), &[]);
    let ear = Ear::new(&node, "news").await;
    let mut fine = Ear::new(&node, "news").await;
    ear.client.batch_execute("BEGIN").await.expect("begins");
    let client = node.connect().await.expect("connects");
    let mut count = 0;
    for round in 0..6 {
        let sql = format!(
            "SELECT pg_notify('news', repeat('x', 7900) || '{round} ' || n) FROM generate_series(1, 500) n"
        );
        client.batch_execute(&sql).await.expect("notifies");
        count += 500;
    }
    let error = ear.client.batch_execute("COMMIT").await.expect_err("its session has ended");
    assert_eq!(error.code().map(|code| code.code()), Some("54000"), "{error:?}");
    assert!(ear.client.query("SELECT 1", &[]).await.is_err(), "the connection is closed");
    // Whoever takes them gets them all.
    client.batch_execute("NOTIFY news, 'end'").await.expect("notifies");
    assert_eq!(fine.until("end").await.len(), count);
    let too_much =
        "BEGIN; SELECT pg_notify('news', repeat('x', 7900) || n) FROM generate_series(1, 600) n";
    let error = client.batch_execute(too_much).await.expect_err("more than a transaction may say");
    assert_eq!(error.code().map(|code| code.code()), Some("54000"), "{error:?}");
}
