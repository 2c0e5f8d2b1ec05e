//! `telesto bench levels`: the levels as a menu, with what each guarantees and what it costs on
//! this very bucket.
//!
//! # Invariants
//! - Each line is measured by sessions that carry an `application_name` of its own; quantities and
//!   dollars are what the node's accounts (`telesto_costs`) hold for it.
//! - It works on one table of its own, dropped at the end, after an error and after Ctrl-C too.
//!
//! # On failure
//! A level that the node refuses (quorum durability on a bucket log) is shown with what it said,
//! and the others are measured. A server that keeps no accounts is refused.
//!
//! # Limits
//! Dollars are those of the statements' own accounts: background work comes on top
//! (`shared_dollars`). Latencies include the way to the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use futures::future::try_join_all;
use serde_json::{Value, json};
use telesto_common::Env;
use tokio_postgres::Client;

use super::super::shell::{connect, full};
use super::Workload;
use super::work::{Count, run_client};

/// A line of the menu.
struct Level {
    name: &'static str,
    set: &'static str,
    workload: Workload,
    guarantee: &'static str,
    anomalies: &'static str,
}

const MENU: [Level; 8] = [
    Level {
        name: "read, strict",
        set: "SET telesto.consistency = strict",
        workload: Workload::Read,
        guarantee: "sees every commit acknowledged before it began, on any node",
        anomalies: "none",
    },
    Level {
        name: "read, session",
        set: "SET telesto.consistency = session",
        workload: Workload::Read,
        guarantee: "a consistent snapshot that has what this session wrote and saw",
        anomalies: "stale: may miss what others committed lately",
    },
    Level {
        name: "read, eventual",
        set: "SET telesto.consistency = eventual",
        workload: Workload::Read,
        guarantee: "a consistent snapshot of what the node has",
        anomalies: "stale; on another node perhaps without one's own writes",
    },
    Level {
        name: "write, serializable",
        set: "SET default_transaction_isolation = 'serializable'",
        workload: Workload::Write,
        guarantee: "as if all transactions ran one after the other, in the order they were acknowledged",
        anomalies: "none",
    },
    Level {
        name: "write, repeatable read",
        set: "SET default_transaction_isolation = 'repeatable read'",
        workload: Workload::Write,
        guarantee: "one snapshot for the whole transaction, no lost update",
        anomalies: "write skew",
    },
    Level {
        name: "write, read committed",
        set: "SET default_transaction_isolation = 'read committed'",
        workload: Workload::Write,
        guarantee: "each statement sees what was committed when it began",
        anomalies: "write skew, rows that change or appear between statements",
    },
    Level {
        name: "write, durability bucket",
        set: "SET telesto.durability = bucket",
        workload: Workload::Write,
        guarantee: "acknowledged when it is in the bucket",
        anomalies: "none: survives all nodes",
    },
    Level {
        name: "write, durability quorum",
        set: "SET telesto.durability = quorum",
        workload: Workload::Write,
        guarantee: "acknowledged when a majority of log servers has it on disk",
        anomalies: "none, unless a majority of disks is lost before the archive has it",
    },
];

/// `telesto bench levels`.
#[derive(Debug, Args)]
pub struct Levels {
    /// Where the node is
    #[arg(long, env = "TELESTO_URL", default_value = super::super::DEFAULT_URL)]
    url: String,
    /// Connections, each with one transaction at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    clients: u32,
    /// How long each level is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Rows in the table
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(2..=10_000_000))]
    rows: u64,
    /// Tell dollars by this price sheet instead of the bucket's own
    /// (`SELECT sheet FROM telesto_prices`)
    #[arg(long, value_name = "SHEET")]
    prices: Option<String>,
    /// The menu as JSON
    #[arg(long)]
    json: bool,
}

/// What a level came to.
struct Measured {
    count: Count,
    /// For one transaction: GETs, PUTs, bytes to other nodes, processor seconds, dollars.
    each: [f64; 5],
}

/// Prints the menu.
///
/// # Errors
/// What the node refused.
pub async fn run(asked: Levels) -> Result<(), String> {
    let env = telesto_runtime::env();
    let client = connect(&asked.url).await?;
    let said = |error: tokio_postgres::Error| full(&error);
    if let Some(sheet) = &asked.prices {
        client
            .execute("SELECT set_config('telesto.prices', $1, false)", &[sheet])
            .await
            .map_err(said)?;
    }
    client.query("SELECT 1 FROM telesto_costs LIMIT 1", &[]).await.map_err(|error| {
        format!(
            "this server keeps no accounts of costs, so there is nothing to measure: {}",
            full(&error)
        )
    })?;
    let mark = env.random.next_u64();
    let table = format!("telesto_bench_{mark:016x}");
    let measured = tokio::select! {
        measured = all(&env, &client, &table, &asked) => measured,
        _ = tokio::signal::ctrl_c() => Err("stopped before the end".to_owned()),
    };
    let dropped = client.batch_execute(&format!("DROP TABLE IF EXISTS {table}")).await;
    let measured = measured?;
    dropped.map_err(said)?;
    let sheet = client
        .query_one("SELECT sheet FROM telesto_prices WHERE is_default", &[])
        .await
        .map_err(said)?
        .get::<_, String>(0);
    if asked.json {
        println!("{:#}", to_json(&measured, &sheet));
    } else {
        print!("{}", to_text(&measured, &sheet));
    }
    Ok(())
}

type Line = (&'static Level, Result<Measured, String>);

async fn all(env: &Env, client: &Client, table: &str, asked: &Levels) -> Result<Vec<Line>, String> {
    let said = |error: tokio_postgres::Error| full(&error);
    let columns = "id bigint PRIMARY KEY, balance bigint NOT NULL, changes bigint NOT NULL";
    let last = asked.rows - 1;
    let fill = format!(
        "CREATE TABLE {table} ({columns}); INSERT INTO {table} SELECT i, 0, 0 FROM generate_series(0, {last}) i"
    );
    client.batch_execute(&fill).await.map_err(said)?;
    let mut lines = Vec::new();
    for (at, level) in MENU.iter().enumerate() {
        eprintln!("{} ({} s)", level.name, asked.seconds);
        let name = format!("{table}_{at}");
        lines.push((level, measure(env, client, table, &name, level, asked).await));
    }
    Ok(lines)
}

async fn measure(
    env: &Env,
    client: &Client,
    table: &str,
    name: &str,
    level: &Level,
    asked: &Levels,
) -> Result<Measured, String> {
    let said = |error: tokio_postgres::Error| full(&error);
    let mut clients = Vec::new();
    for _ in 0..asked.clients {
        let client = connect(&asked.url).await?;
        client.batch_execute(level.set).await.map_err(said)?;
        client.batch_execute(&format!("SET application_name = '{name}'")).await.map_err(said)?;
        clients.push(client);
    }
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let workers = clients.into_iter().map(|client| {
        run_client(env.clone(), client, level.workload, table, asked.rows, &stop, &done)
    });
    let over = async {
        tokio::time::sleep(Duration::from_secs(asked.seconds)).await;
        stop.store(true, Ordering::Relaxed);
        std::future::pending::<()>().await;
    };
    let counts: Vec<Count> = tokio::select! {
        counts = try_join_all(workers) => counts?,
        () = over => return Err("the clients did not stop".to_owned()),
    };
    let count = counts.into_iter().reduce(Count::with).unwrap_or_else(Count::new);
    let account = "SELECT gets::float8, puts::float8, bytes_to_nodes::float8, cpu_seconds, own_dollars::float8
        FROM telesto_costs WHERE dimension = 'application' AND name = $1";
    let row = client.query_one(account, &[&name]).await.map_err(said)?;
    let transactions = count.transactions().max(1) as f64;
    let each = [0, 1, 2, 3, 4].map(|column| row.get::<_, f64>(column) / transactions);
    Ok(Measured { count, each })
}

fn millis(count: &Count, quantile: f64) -> f64 {
    count.latencies.value_at_quantile(quantile) as f64 / 1000.0
}

fn to_text(lines: &[Line], sheet: &str) -> String {
    let mut out = format!(
        "{:<26} {:>9} {:>9} {:>8} {:>8} {:>9} {:>12}\n",
        "level", "p50 ms", "p99 ms", "get", "put", "cpu ms", "$ per 1000"
    );
    for (level, measured) in lines {
        match measured {
            Ok(Measured { count, each: [gets, puts, _, cpu, dollars] }) => out.push_str(&format!(
                "{:<26} {:>9.3} {:>9.3} {:>8.3} {:>8.3} {:>9.3} {:>12.6}\n",
                level.name,
                millis(count, 0.5),
                millis(count, 0.99),
                gets,
                puts,
                cpu * 1000.0,
                dollars * 1000.0
            )),
            Err(error) => out.push_str(&format!("{:<26} not measured: {error}\n", level.name)),
        }
    }
    out.push_str(&format!(
        "\nRequests and milliseconds of processors are for one transaction; prices: {sheet}.\n"
    ));
    for (level, _) in lines {
        out.push_str(&format!(
            "\n{}: {};\n  guarantee: {}\n  anomalies: {}\n",
            level.name, level.set, level.guarantee, level.anomalies
        ));
    }
    out
}

fn to_json(lines: &[Line], sheet: &str) -> Value {
    let levels: Vec<Value> = lines
        .iter()
        .map(|(level, measured)| {
            let measured = match measured {
                Ok(Measured { count, each: [gets, puts, peers, cpu, dollars] }) => json!({
                    "transactions": count.transactions(),
                    "aborts": count.aborts,
                    "p50_ms": millis(count, 0.5),
                    "p99_ms": millis(count, 0.99),
                    "gets": gets,
                    "puts": puts,
                    "bytes_to_nodes": peers,
                    "cpu_seconds": cpu,
                    "dollars": dollars,
                }),
                Err(error) => json!({ "error": error }),
            };
            json!({
                "level": level.name,
                "set": level.set,
                "guarantee": level.guarantee,
                "anomalies": level.anomalies,
                "one_transaction": measured,
            })
        })
        .collect();
    json!({ "format": 1, "prices": sheet, "levels": levels })
}
