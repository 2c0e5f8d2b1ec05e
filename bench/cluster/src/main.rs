//! What a transaction costs on one, three and five nodes.
//!
//! # Purpose
//! `make bench-cluster` prints a table: for each number of nodes, kind of transaction and place of
//! its clients, how many messages and bytes pass between nodes, how often disks are synced, how
//! many requests the bucket sees, and how much processor time the nodes spend, for each
//! transaction. Counts say what a machine with more cores would do; times on a shared one do not.
//!
//! # Invariants
//! - What is counted is the difference of the nodes' own counters around the time in which the
//!   clients work, less what the idle cluster did in as long a time just before.
//! - Processor time is the kernel's count of each node's process; the clients are not in it.
//! - A statement that fails ends the run: nothing is left out.
//!
//! # Limits
//! All nodes, their clients and the bucket's folder share one machine. The kernel counts processor
//! time in hundredths of a second.
#![allow(
    clippy::disallowed_methods,
    reason = "the outermost layer: it measures real time, and may stop at the first error"
)]

#[path = "../../../tests/e2e/harness.rs"]
#[allow(dead_code, missing_docs)]
mod harness;

mod figures;
mod machine;
mod nodes;
mod work;

use std::time::Duration;

use clap::Parser;

use figures::Row;
use nodes::Nodes;
use work::{Place, Work};

/// What a transaction costs on one, three and five nodes.
#[derive(Parser)]
struct Arguments {
    /// Numbers of nodes.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 3, 5])]
    nodes: Vec<usize>,
    /// Seconds of each run.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Clients of each run, one statement at a time each.
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Rows of the table.
    #[arg(long, default_value_t = 20_000)]
    rows: i64,
    /// Only the time that one client's commit takes, beside what the machine itself takes.
    #[arg(long)]
    alone: bool,
    /// Starts this many nodes with the table, prints the addresses of their clients and process
    /// ids, and waits until the standard input ends: for other programs' measurements.
    #[arg(long)]
    serve: Option<usize>,
}

/// The places clients of a cluster of this size can be at.
fn places(nodes: usize) -> &'static [Place] {
    if nodes == 1 { &[Place::Owner] } else { &[Place::Owner, Place::Others] }
}

async fn measured(arguments: &Arguments) {
    let time = Duration::from_secs(arguments.seconds);
    let mut rows: Vec<Row> = Vec::new();
    for count in &arguments.nodes {
        eprintln!("{count} node(s): starting, loading {} rows", arguments.rows);
        let nodes = Nodes::start(*count).await;
        work::load(&nodes, arguments.rows).await;
        for kind in Work::ALL.into_iter().filter(|_| !arguments.alone) {
            for place in places(*count) {
                let row = figures::run(&nodes, kind, *place, arguments, time).await;
                eprintln!("{}", row.line());
                rows.push(row);
            }
        }
        if *count > 1 {
            let (alone, stages) = figures::alone_by_stages(&nodes, arguments.rows, time).await;
            let bare = machine::bare(nodes.folder());
            println!("{}", figures::commit_beside_the_machine(*count, &alone, &bare));
            println!("{stages}");
        }
    }
    if !arguments.alone {
        println!("{}", figures::table(&rows));
        println!("{}", figures::readers(&rows));
    }
}

async fn served(count: usize, rows: i64) {
    let nodes = Nodes::start(count).await;
    work::load(&nodes, rows).await;
    let owner = nodes.owner().await;
    for (index, node) in nodes.all().iter().enumerate() {
        let what = if index == owner { "owner" } else { "follower" };
        println!("{what} {} {}", node.port, node.pid());
    }
    println!("serving");
    let mut line = String::new();
    // Nothing is expected: the end is.
    while std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        line.clear();
    }
}

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    match arguments.serve {
        Some(count) => served(count, arguments.rows).await,
        None => measured(&arguments).await,
    }
}
