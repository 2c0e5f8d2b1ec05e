//! What one client of `telesto bench` does, and how it is timed.
//!
//! # Invariants
//! A latency is that of a whole transaction, from its first request to its acknowledgement, tries
//! repeated after a conflict included.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use telesto_common::Env;
use tokio_postgres::{Client, Statement};

use super::super::shell::full;
use super::Workload;

/// What every row has at the start.
pub const START_BALANCE: i64 = 1_000;
/// Longest latency told apart, microseconds.
const LONGEST_MICROS: u64 = 600_000_000;
/// First pause after a conflict; doubled up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// What a client did.
#[derive(Debug)]
pub struct Count {
    /// Latencies, microseconds.
    pub latencies: Histogram<u64>,
    /// Conflicts (40001), each followed by another try.
    pub aborts: u64,
}

impl Count {
    /// Nothing yet.
    #[allow(clippy::expect_used, reason = "the bounds are constants and valid")]
    pub fn new() -> Self {
        let latencies = Histogram::new_with_bounds(1, LONGEST_MICROS, 3).expect("constant bounds");
        Self { latencies, aborts: 0 }
    }

    /// Transactions acknowledged.
    pub fn transactions(&self) -> u64 {
        self.latencies.len()
    }

    /// Both together.
    pub fn with(mut self, other: Self) -> Self {
        // Same bounds: nothing can be out of range.
        self.latencies.add(&other.latencies).ok();
        self.aborts += other.aborts;
        self
    }
}

/// Prepared statements of a workload.
struct Statements {
    read: Statement,
    add: Statement,
}

/// One client's share of the load, until `stop`.
///
/// # Errors
/// Any but a conflict.
pub async fn run_client(
    env: Env,
    mut client: Client,
    workload: Workload,
    table: &str,
    rows: u64,
    stop: &AtomicBool,
    done: &AtomicU64,
) -> Result<Count, String> {
    let mut count = Count::new();
    let worked = async {
        let read = format!("SELECT balance FROM {table} WHERE id = $1");
        let add = format!(
            "UPDATE {table} SET balance = balance + $2, changes = changes + 1 WHERE id = $1"
        );
        let statements =
            Statements { read: client.prepare(&read).await?, add: client.prepare(&add).await? };
        while !stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let mut pause = FIRST_PAUSE;
            let (first, amount) = (env.random.next_u64() % rows, env.random.next_u64() % 100);
            let second = (first + 1 + env.random.next_u64() % (rows - 1)) % rows;
            loop {
                let tried = once(&mut client, &statements, workload, first, second, amount).await;
                match tried {
                    Ok(()) => break,
                    Err(error) if error.code().is_some_and(|code| code.code() == "40001") => {
                        count.aborts += 1;
                        tokio::time::sleep(pause / 2 + env.jitter(pause / 2)).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                    }
                    Err(error) => return Err(error),
                }
            }
            let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            count.latencies.saturating_record(micros.max(1));
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    worked.await.map_err(|error: tokio_postgres::Error| full(&error))?;
    Ok(count)
}

/// One try of one transaction.
async fn once(
    client: &mut Client,
    statements: &Statements,
    workload: Workload,
    first: u64,
    second: u64,
    amount: u64,
) -> Result<(), tokio_postgres::Error> {
    let (first, second, amount) = (first as i64, second as i64, amount as i64);
    match workload {
        Workload::Read => {
            client.query_one(&statements.read, &[&first]).await?;
        }
        Workload::Write => {
            client.execute(&statements.add, &[&first, &amount]).await?;
        }
        Workload::Transfer => {
            let transaction = client.transaction().await?;
            transaction.execute(&statements.add, &[&first, &-amount]).await?;
            transaction.execute(&statements.add, &[&second, &amount]).await?;
            transaction.commit().await?;
        }
    }
    Ok(())
}
