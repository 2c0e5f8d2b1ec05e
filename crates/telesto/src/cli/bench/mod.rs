//! `telesto bench`: load on a node, and what it came to in time and dollars.
//!
//! # Invariants
//! - It works on one table of its own, made at the start under a name nobody has and dropped at the
//!   end, after an error and after Ctrl-C too.
//! - What is reported was checked: every change counted is in the table, no money came or went.
//! - Requests and dollars are the node's own counts (`telesto_bucket_usage()`), between begin and
//!   end of the load: whatever else the node does meanwhile is in them, what other nodes of the
//!   bucket do is not.
//!
//! # On failure
//! Any error but a conflict ends the run and is the command's. A conflict (40001) is counted and
//! run again.
//!
//! # Limits
//! - One process and its connections: at high rates the load generator itself is the limit.
//! - Killed by SIGKILL it leaves its table `telesto_bench_…` behind.

pub mod levels;
mod report;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use futures::future::try_join_all;
use indicatif::{ProgressBar, ProgressStyle};
use telesto_common::Env;
use tokio_postgres::Client;

use self::report::{Report, Usage};
use self::work::{Count, START_BALANCE, run_client};
use super::shell::{connect, full};

/// Rows put by one statement.
const BATCH_ROWS: u64 = 5_000;

/// What clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Read a row by its key
    Read,
    /// Change a row by its key
    Write,
    /// Move money between two rows in a transaction block
    Transfer,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Transfer => "transfer",
        }
    }

    /// Rows a transaction changes.
    fn changes(self) -> u64 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Transfer => 2,
        }
    }
}

/// How to load.
#[derive(Debug, Args)]
pub struct Load {
    /// What the clients do
    #[arg(long, value_enum, default_value = "transfer")]
    workload: Workload,
    /// Connections, each with one transaction at a time
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// How long
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Rows in the table
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(2..=100_000_000))]
    rows: u64,
    /// The report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the load on the node at `url`.
///
/// # Errors
/// What the node refused, or what did not add up.
pub async fn run(url: &str, load: &Load) -> Result<(), String> {
    let env = telesto_runtime::env();
    let client = connect(url).await?;
    let table = format!("telesto_bench_{:016x}", env.random.next_u64());
    let measured = tokio::select! {
        measured = measure(&env, url, &client, &table, load) => measured,
        _ = tokio::signal::ctrl_c() => Err("stopped before the end".to_owned()),
    };
    let dropped = client.batch_execute(&format!("DROP TABLE IF EXISTS {table}")).await;
    let report = measured?;
    dropped.map_err(|error| {
        format!("the run went well, but its table {table} could not be dropped: {}", full(&error))
    })?;
    print!("{}", if load.json { report.json() } else { report.text() });
    Ok(())
}

async fn measure(
    env: &Env,
    url: &str,
    client: &Client,
    table: &str,
    load: &Load,
) -> Result<Report, String> {
    let bar = bar(load.rows, "{msg} {bar:30} {percent:>3}% {elapsed}");
    bar.set_message("filling");
    let said = |error: tokio_postgres::Error| full(&error);
    let columns = "id bigint PRIMARY KEY, balance bigint NOT NULL, changes bigint NOT NULL";
    client.batch_execute(&format!("CREATE TABLE {table} ({columns})")).await.map_err(said)?;
    for first in (0..load.rows).step_by(BATCH_ROWS as usize) {
        let last = (first + BATCH_ROWS).min(load.rows) - 1;
        let rows = format!("SELECT i, {START_BALANCE}, 0 FROM generate_series({first}, {last}) i");
        client.batch_execute(&format!("INSERT INTO {table} {rows}")).await.map_err(said)?;
        bar.set_position(last + 1);
    }
    bar.finish_and_clear();
    let mut clients = Vec::new();
    for _ in 0..load.clients {
        clients.push(connect(url).await?);
    }
    let before = Usage::of(client).await?;
    let begun = Instant::now();
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let workers = clients.into_iter().map(|client| {
        run_client(env.clone(), client, load.workload, table, load.rows, &stop, &done)
    });
    let counts: Vec<Count> = tokio::select! {
        counts = try_join_all(workers) => counts?,
        () = watch(load, &stop, &done) => return Err("the clients did not stop".to_owned()),
    };
    let took = begun.elapsed();
    let usage = match (before, Usage::of(client).await?) {
        (Some(before), Some(after)) => Some(after.since(&before)),
        _ => None,
    };
    let count = counts.into_iter().reduce(Count::with).unwrap_or_else(Count::new);
    check(client, table, load, &count).await?;
    Ok(Report { load: load.into(), took, count, usage })
}

/// Shows how it goes, says stop when the time is up, and then waits for ever.
async fn watch(load: &Load, stop: &AtomicBool, done: &AtomicU64) {
    let bar = bar(load.seconds, "{msg} {bar:30} {elapsed}");
    for second in 0..load.seconds {
        let rate = done.load(Ordering::Relaxed).checked_div(second).unwrap_or(0);
        bar.set_message(format!("{}: {rate} transactions/s", load.workload.name()));
        bar.set_position(second);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    bar.finish_and_clear();
    stop.store(true, Ordering::Relaxed);
    std::future::pending().await
}

/// Nothing is shown where standard error is no terminal.
fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Whether the table shows what was counted.
async fn check(client: &Client, table: &str, load: &Load, count: &Count) -> Result<(), String> {
    let sums = format!(
        "SELECT count(*), coalesce(sum(changes), 0)::bigint, coalesce(sum(balance), 0)::bigint FROM {table}"
    );
    let row = client.query_one(&sums, &[]).await.map_err(|error| full(&error))?;
    let (rows, changes, balance): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    let counted = count.transactions() * load.workload.changes();
    let money = load.rows as i64 * START_BALANCE;
    let money_kept = load.workload != Workload::Transfer || balance == money;
    if rows as u64 == load.rows && changes as u64 == counted && money_kept {
        return Ok(());
    }
    Err(format!(
        "the table does not show what was acknowledged: {rows} rows of {}, {changes} changes of {counted}, balance {balance} of {money}. This is a bug of the database: please report it with the node's log",
        load.rows
    ))
}
