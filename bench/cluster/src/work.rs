//! Kinds of transactions, and the clients that run them.
//!
//! # Invariants
//! - Each client has a connection of its own and one statement under way.
//! - Keys are drawn evenly from the table, by a generator that begins the same in each run.
//!
//! # On failure
//! A conflict that the server could not settle itself (40001) is run again and counted; anything
//! else ends the program.
//!
//! # Limits
//! The table fits the nodes' memory.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio_postgres::{Client, Statement};

use crate::nodes::Nodes;

/// A kind of transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A row by its key, strictly serializable.
    Read,
    /// One statement that replaces a column of a row.
    Write,
    /// A block that reads a number, and writes it plus one.
    ReadModifyWrite,
    /// One statement that adds to a number, without a conflict with others that do.
    Add,
}

impl Work {
    pub(crate) const ALL: [Self; 4] = [Self::Read, Self::Write, Self::ReadModifyWrite, Self::Add];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadModifyWrite => "read-modify-write",
            Self::Add => "addition",
        }
    }
}

/// Where clients are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the node that owns the log.
    Owner,
    /// Spread over the other nodes.
    Others,
}

impl Place {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Others => "others",
        }
    }
}

/// What clients did.
pub(crate) struct Done {
    pub transactions: u64,
    pub conflicts: u64,
    /// Microseconds.
    pub times: Histogram<u64>,
}

/// The table that all work on.
pub(crate) async fn load(nodes: &Nodes, rows: i64) {
    let client = nodes.all()[0].connect().await.expect("connects");
    client
        .batch_execute(
            "CREATE TABLE numbers (k bigint PRIMARY KEY, n bigint NOT NULL, note text NOT NULL)",
        )
        .await
        .expect("a table");
    let sql = "INSERT INTO numbers SELECT g, 0, repeat('x', 100) FROM generate_series(1, $1::bigint) AS g";
    client.execute(sql, &[&rows]).await.expect("rows");
}

/// One client's statements.
struct Prepared {
    client: Client,
    read: Statement,
    change: Statement,
}

impl Prepared {
    async fn new(client: Client, work: Work) -> Self {
        let change = match work {
            Work::Read | Work::Write => "UPDATE numbers SET n = $2 WHERE k = $1",
            Work::ReadModifyWrite => "UPDATE numbers SET n = $2 WHERE k = $1",
            Work::Add => "UPDATE numbers SET n = n + $2 WHERE k = $1",
        };
        let read = client.prepare("SELECT n FROM numbers WHERE k = $1").await.expect("prepares");
        let change = client.prepare(change).await.expect("prepares");
        Self { client, read, change }
    }

    async fn run(&self, work: Work, key: i64) -> Result<(), tokio_postgres::Error> {
        match work {
            Work::Read => {
                self.client.query_one(&self.read, &[&key]).await?;
            }
            Work::Write => {
                self.client.execute(&self.change, &[&key, &key]).await?;
            }
            Work::Add => {
                self.client.execute(&self.change, &[&key, &1_i64]).await?;
            }
            Work::ReadModifyWrite => {
                self.client.batch_execute("BEGIN").await?;
                let n: i64 = self.client.query_one(&self.read, &[&key]).await?.get(0);
                self.client.execute(&self.change, &[&key, &(n + 1)]).await?;
                self.client.batch_execute("COMMIT").await?;
            }
        }
        Ok(())
    }
}

/// The next of a row of numbers without a pattern that matters here (Marsaglia's xorshift).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

async fn client(url: String, work: Work, seed: u64, rows: i64, until: Instant) -> Done {
    let (client, connection) =
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("connects");
    tokio::spawn(connection);
    let prepared = Prepared::new(client, work).await;
    let mut done =
        Done { transactions: 0, conflicts: 0, times: Histogram::new(3).expect("three digits") };
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    while Instant::now() < until {
        let key = i64::try_from(next(&mut state) % rows.unsigned_abs()).expect("fits") + 1;
        let begun = Instant::now();
        while let Err(error) = prepared.run(work, key).await {
            let code = error.code().map(tokio_postgres::error::SqlState::code);
            assert_eq!(code, Some("40001"), "{} of {key}: {error:?}", work.name());
            done.conflicts += 1;
            let _ = prepared.client.batch_execute("ROLLBACK").await;
        }
        done.transactions += 1;
        let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        done.times.record(micros).expect("it grows");
    }
    done
}

/// Runs `clients` of `work` at `place` for `time`.
pub(crate) async fn run(
    nodes: &Nodes,
    work: Work,
    place: Place,
    clients: usize,
    rows: i64,
    time: Duration,
) -> Done {
    let owner = nodes.owner().await;
    let at: Vec<String> = nodes
        .all()
        .iter()
        .enumerate()
        .filter(|(index, _)| (*index == owner) == (place == Place::Owner))
        .map(|(_, node)| node.url())
        .collect();
    let until = Instant::now() + time;
    let tasks: Vec<_> = (0..clients)
        .map(|index| {
            let url = at[index % at.len()].clone();
            tokio::spawn(client(url, work, index as u64 + 1, rows, until))
        })
        .collect();
    let mut all = Done { transactions: 0, conflicts: 0, times: Histogram::new(3).expect("digits") };
    for task in tasks {
        let done = task.await.expect("no client fails");
        all.transactions += done.transactions;
        all.conflicts += done.conflicts;
        all.times.add(done.times).expect("of the same digits");
    }
    all
}
