//! Clients that append to lists and read them on running nodes, and the history of what they saw,
//! for the checker of `telesto_testkit::list_append`.
//!
//! # Invariants
//! - Every appended value is appended once, by one transaction; a client never repeats a
//!   transaction.
//! - A transaction counts as aborted only when the server said so for certain; a lost answer to
//!   COMMIT is unknown.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::Rng as _;
use telesto_testkit::list_append::{Anomaly, Ended, Isolation, Observed, Step, check};
use tokio_postgres::{Client, NoTls};

use crate::harness::{Node, PATIENCE};

const KEYS: u64 = 8;

/// The table that the clients work on.
pub const TABLE: &str = "CREATE TABLE lists (k bigint PRIMARY KEY, v text NOT NULL)";

/// What all sessions share.
#[derive(Default)]
pub struct Run {
    clock: AtomicU64,
    next_value: AtomicU64,
    pub stop: AtomicBool,
    commits: [AtomicU64; 5],
    history: Mutex<Vec<Observed>>,
}

impl Run {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Transactions that were committed on `node` so far.
    pub fn commits(&self, node: usize) -> u64 {
        self.commits[node].load(Ordering::SeqCst)
    }

    /// Waits until every one of `nodes` has committed `more` transactions from now on.
    pub async fn progress(&self, nodes: &[usize], more: u64, what: &str) {
        let before: Vec<u64> = self.commits.iter().map(|c| c.load(Ordering::SeqCst)).collect();
        let until = Instant::now() + PATIENCE;
        while nodes.iter().any(|n| self.commits[*n].load(Ordering::SeqCst) < before[*n] + more) {
            assert!(Instant::now() < until, "{what}: some of the nodes {nodes:?} commit no more");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Reads every list on `node`: appends nobody read become visible to the checker.
    pub async fn read_all(&self, number: u64, node: &Node) {
        let client = node.connect().await.expect("connects");
        let invoked = self.tick();
        let rows = client.query("SELECT k, v FROM lists ORDER BY k", &[]).await.expect("reads");
        let completed = self.tick();
        let steps = rows
            .iter()
            .map(|row| Step::Read(row.get::<_, i64>(0).unsigned_abs(), list(row.get(1))))
            .collect();
        self.history.lock().expect("no panic").push(Observed {
            session: 100 + number,
            invoked,
            completed,
            ended: Ended::Committed,
            steps,
        });
    }

    /// Holds the history to strict serializability; prints its size.
    pub fn check(&self) -> Vec<Anomaly> {
        let history = self.history.lock().expect("no panic");
        let count = |ended| history.iter().filter(|t| t.ended == ended).count();
        println!(
            "{} transactions on lists: {} committed, {} aborted, {} unknown",
            history.len(),
            count(Ended::Committed),
            count(Ended::Aborted),
            count(Ended::Unknown)
        );
        check(&history, Isolation::StrictSerializable)
    }
}

/// A client of a node on this machine.
pub async fn connect(port: u16) -> Option<Client> {
    connect_to(&here(port)).await
}

fn here(port: u16) -> String {
    format!("host=127.0.0.1 port={port} user=telesto dbname=telesto")
}

async fn connect_to(url: &str) -> Option<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

/// One transaction; returns its end.
async fn transact(
    client: &mut Client,
    run: &Run,
    steps: &mut Vec<Step>,
    plan: &[(bool, u64)],
) -> Ended {
    let Ok(transaction) = client.transaction().await else { return Ended::Aborted };
    for (append, key) in plan {
        let id = i64::try_from(*key).expect("small");
        if *append {
            let value = run.next_value.fetch_add(1, Ordering::SeqCst) + 1;
            let text = value.to_string();
            let sql = "INSERT INTO lists (k, v) VALUES ($1, $2) ON CONFLICT (k) DO UPDATE SET v = lists.v || ',' || EXCLUDED.v";
            if transaction.execute(sql, &[&id, &text]).await.is_err() {
                return Ended::Aborted;
            }
            steps.push(Step::Append(*key, value));
        } else {
            let Ok(row) = transaction.query_opt("SELECT v FROM lists WHERE k = $1", &[&id]).await
            else {
                return Ended::Aborted;
            };
            steps.push(Step::Read(*key, row.map(|row| list(row.get(0))).unwrap_or_default()));
        }
    }
    match transaction.commit().await {
        Ok(()) => Ended::Committed,
        Err(error) if error.code().is_some_and(|code| code.code() == "40001") => Ended::Aborted,
        Err(_) => Ended::Unknown,
    }
}

fn list(text: &str) -> Vec<u64> {
    text.split(',').map(|value| value.parse().expect("a number")).collect()
}

/// Session `number` on node `node`: transactions of one to four steps until the run is told to
/// stop. The node may be at another port each time that it starts.
pub async fn session(run: Arc<Run>, node: usize, port: Arc<AtomicU16>, number: u64) {
    session_at(run, node, || here(port.load(Ordering::SeqCst)), number).await;
}

/// The same on a node that is where `url` says.
pub async fn session_at(
    run: Arc<Run>,
    node: usize,
    url: impl Fn() -> String + Send + Sync,
    mut number: u64,
) {
    while !run.stop.load(Ordering::SeqCst) {
        let Some(mut client) = connect_to(&url()).await else {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        while !client.is_closed() && !run.stop.load(Ordering::SeqCst) {
            let plan: Vec<(bool, u64)> = {
                let mut rng = rand::rng();
                (0..rng.random_range(1..=4))
                    .map(|_| (rng.random_bool(0.5), rng.random_range(0..KEYS)))
                    .collect()
            };
            let mut steps = Vec::new();
            let invoked = run.tick();
            let ended = transact(&mut client, &run, &mut steps, &plan).await;
            let completed = run.tick();
            if ended == Ended::Committed {
                run.commits[node].fetch_add(1, Ordering::SeqCst);
            }
            run.history.lock().expect("no panic").push(Observed {
                session: number,
                invoked,
                completed,
                ended,
                steps,
            });
            if ended == Ended::Unknown {
                // It may take effect after those that follow it: they are another session's.
                number += 1_000_000;
            }
        }
    }
}
