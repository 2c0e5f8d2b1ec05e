//! `telesto-demo bench scalaris`: what "Scalaris: Scalable Web Applications with a Transactional
//! Key-Value Store" measured (its Figure 3), on clusters of this machine; then a node is killed
//! under the same load.
//!
//! ```text
//!   n clients at each node ─ watch starts ─ each reads a key i times, or adds one to a key i times ─ all are done ─ watch stops
//! ```
//! # Invariants
//! - A modify reads a number and writes it plus one, in one serializable transaction; it is counted
//!   when it is acknowledged. The numbers have to add up to exactly that after every measurement,
//!   and after the kill to no less, and to no more than what was in doubt beside.
//! - A read that sees a number which this client has seen greater before fails the run.
//!
//! # On failure
//! Why. Nodes started here are stopped at the end, whatever the end.
//!
//! # Limits
//! All nodes and clients share one machine, so that more nodes do not do more in a second; what an
//! operation costs all nodes is told beside. The paper had a machine of eight cores for each server
//! and kept everything in memory; here every modify is synced to a majority's disks.

mod client;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use telesto_common::units::Span;

use self::client::{Client, Kind, Survivor};
use crate::measure::{Measured, Table, measure, show};
use crate::nodes::{Cluster, Counted, url};
use crate::plot::Series;
use crate::sites::empty_folder;
use crate::sql::{connect, full};

/// Servers of the paper, and their cores.
const SERVERS: f64 = 16.0;
const CORES: f64 = 128.0;
/// For how long nodes are watched while nobody asks anything.
const IDLE: Duration = Duration::from_secs(2);
/// After the kill, how long clients go on at least.
const AFTER_KILL: Duration = Duration::from_secs(2);

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Modify => "modify",
        }
    }

    /// Operations a second of all the paper's servers, at best.
    fn paper(self) -> f64 {
        match self {
            Self::Read => 20_000.0,
            Self::Modify => 5_500.0,
        }
    }

    fn figure(self) -> &'static str {
        match self {
            Self::Read => "figure-3a",
            Self::Modify => "figure-3b",
        }
    }
}

/// `telesto-demo bench scalaris`.
#[derive(Debug, Args)]
pub struct Scalaris {
    /// Numbers of nodes, growing (the paper: 1 to 16)
    #[arg(long, value_delimiter = ',', default_value = "1,2,3", value_parser = clap::value_parser!(u16).range(1..=16))]
    nodes: Vec<u16>,
    /// Clients of each node that read; 0 leaves reads out
    #[arg(long, value_delimiter = ',', default_value = "1,2,5", value_parser = clap::value_parser!(u32).range(0..=1000))]
    read_clients: Vec<u32>,
    /// Clients of each node that modify (the paper: 1, 50, 100); 0 leaves these out
    #[arg(long, value_delimiter = ',', default_value = "1,10,50", value_parser = clap::value_parser!(u32).range(0..=1000))]
    modify_clients: Vec<u32>,
    /// Reads of each client (the paper: 2000)
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    reads: u32,
    /// Modifies of each client (the paper: 100)
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    modifies: u32,
    /// Keys; each operation takes any of them
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    keys: u32,
    /// For how long clients modify while the node that owns the log is killed, with three nodes or
    /// more at the end; 0 leaves it out
    #[arg(long, value_name = "TIME", default_value = "10s")]
    kill_time: Span,
    /// What is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for tables and plots (SVG)
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Folder for the bucket and the nodes' own files; it must be new or empty. Default: a new one
    /// that is removed at the end
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
}

/// A measurement of one kind, with so many nodes and clients of each.
struct Point {
    nodes: usize,
    clients: u32,
    measured: Measured,
}

/// Runs the benchmark.
///
/// # Errors
/// Why nodes could not be started, what went wrong with their clients, or that an increment is
/// missing or done twice.
pub async fn run(mut asked: Scalaris) -> Result<(), String> {
    asked.nodes.sort_unstable();
    asked.nodes.dedup();
    let temporary = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let folder = empty_folder(asked.data_dir.as_deref().unwrap_or(temporary.path()))?;
    let mut cluster = Cluster::new(&folder);
    let measured = measure_all(&asked, &mut cluster).await;
    cluster.stop().await;
    measured
}

async fn measure_all(asked: &Scalaris, cluster: &mut Cluster) -> Result<(), String> {
    let (mut reads, mut modifies) = (Vec::new(), Vec::new());
    let mut acknowledged = 0;
    for count in &asked.nodes {
        println!("{count} nodes …");
        let begins = cluster.nodes.is_empty();
        cluster.grow(*count).await?;
        if begins {
            make_keys(cluster, asked.keys).await?;
        }
        let idle = cluster.idle(IDLE).await?;
        for clients in asked.read_clients.iter().filter(|clients| **clients > 0) {
            reads.push(point(asked, cluster, Kind::Read, *clients, idle).await?);
        }
        for clients in asked.modify_clients.iter().filter(|clients| **clients > 0) {
            let point = point(asked, cluster, Kind::Modify, *clients, idle).await?;
            acknowledged += point.measured.tally.times.len();
            modifies.push(point);
            agree(stored(cluster).await?, acknowledged, 0)?;
        }
    }
    for (kind, points) in [(Kind::Read, &reads), (Kind::Modify, &modifies)] {
        if !points.is_empty() {
            show_points(asked, kind, points)?;
        }
    }
    println!("{acknowledged} increments are there, each once.");
    match cluster.nodes.len() {
        3.. if !asked.kill_time.0.is_zero() => kill(asked, cluster, acknowledged).await,
        _ => Ok(()),
    }
}

async fn make_keys(cluster: &Cluster, keys: u32) -> Result<(), String> {
    let client = connect(&cluster.nodes[0].url()).await?;
    let make = format!(
        "CREATE TABLE scalaris_keys (k bigint PRIMARY KEY, n bigint NOT NULL); \
         INSERT INTO scalaris_keys SELECT g, 0 FROM generate_series(1, {keys}) g"
    );
    client.batch_execute(&make).await.map_err(|error| full(&error))
}

/// What the numbers add up to, at a node that lives.
async fn stored(cluster: &Cluster) -> Result<u64, String> {
    let mut ports: Vec<u16> = cluster.nodes.iter().map(|node| node.port).collect();
    // What was acknowledged by any has to be seen at the last one.
    ports.reverse();
    let client = connect(&url(&ports)).await?;
    let row = client.query_one("SELECT sum(n)::bigint FROM scalaris_keys", &[]).await;
    let stored: i64 = row.map_err(|error| full(&error))?.get(0);
    u64::try_from(stored).map_err(|_| format!("the numbers add up to {stored}"))
}

async fn point(
    asked: &Scalaris,
    cluster: &Cluster,
    kind: Kind,
    clients: u32,
    idle: Counted,
) -> Result<Point, String> {
    let times = if kind == Kind::Read { asked.reads } else { asked.modifies };
    let mut opened = Vec::new();
    for (node, url) in (0_u64..).zip(cluster.urls()) {
        for number in 0..u64::from(clients) {
            let seed = asked.seed ^ (node << 40) ^ (number << 20) ^ (u64::from(clients) << 4);
            opened.push(Client::open(&url, asked.keys, seed).await?);
        }
    }
    let working = opened.into_iter().map(|client| client.work(kind, times)).collect();
    let measured = measure(cluster, idle, working).await?;
    println!(
        "  {}, {clients} clients at each node: {:.0} a second, p99 {:.1} ms, {:.0} µs of processor time each",
        kind.name(),
        measured.rate(),
        measured.tally.millis(0.99),
        measured.micros()
    );
    Ok(Point { nodes: cluster.nodes.len(), clients, measured })
}

fn show_points(asked: &Scalaris, kind: Kind, points: &[Point]) -> Result<(), String> {
    let mut table = Table::new(&[
        "nodes",
        "clients of each",
        "a second",
        "by server",
        "the paper's, of 16",
        "p50 ms",
        "p99 ms",
        "processor µs each, all nodes",
        "for each second of processor time",
        "the paper's, for each second and core",
        "messages each",
        "bucket requests for 1,000",
        "conflicts",
    ]);
    for Point { nodes, clients, measured } in points {
        table.row(vec![
            nodes.to_string(),
            clients.to_string(),
            format!("{:.0}", measured.rate()),
            format!("{:.0}", measured.rate() / *nodes as f64),
            format!("{:.0}", kind.paper() / SERVERS),
            format!("{:.2}", measured.tally.millis(0.5)),
            format!("{:.2}", measured.tally.millis(0.99)),
            format!("{:.0}", measured.micros()),
            format!("{:.0}", 1e6 / measured.micros()),
            format!("{:.0}", kind.paper() / CORES),
            format!("{:.1}", measured.messages()),
            format!("{:.1}", measured.requests()),
            measured.tally.conflicts.to_string(),
        ]);
    }
    let paper = vec![(SERVERS, kind.paper())];
    let mut lines =
        vec![Series { name: "Scalaris, 16 servers of 8 cores".to_owned(), points: paper }];
    let mut numbers: Vec<u32> = points.iter().map(|point| point.clients).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for clients in numbers {
        let of = points.iter().filter(|point| point.clients == clients);
        let of = of.map(|point| (point.nodes as f64, point.measured.rate()));
        let name = format!("Telesto, {clients} clients of each node");
        lines.push(Series { name, points: of.collect() });
    }
    let what = match kind {
        Kind::Read => "3a: reads",
        Kind::Modify => "3b: a number read and written plus one",
    };
    let title = format!("Scalaris, Figure {what}, by number of nodes");
    let axes = ("nodes, servers", "operations a second");
    show(asked.out.as_deref(), kind.figure(), &title, &table, axes, &lines)
}

/// Clients modify, the node that owns the log is killed, and they go on; nothing that was
/// acknowledged may be missing then.
async fn kill(asked: &Scalaris, cluster: &mut Cluster, before: u64) -> Result<(), String> {
    let stop = Arc::new(AtomicBool::new(false));
    let ports: Vec<u16> = cluster.nodes.iter().map(|node| node.port).collect();
    let clients: Vec<_> = (0..ports.len() * 4)
        .map(|number| {
            let mut ports = ports.clone();
            let first = number % ports.len();
            ports.rotate_left(first);
            let seed = asked.seed ^ ((number as u64) << 8);
            let survivor = Survivor::new(url(&ports), asked.keys, seed);
            tokio::spawn(survivor.work(Arc::clone(&stop)))
        })
        .collect();
    let calm = asked.kill_time.0 / 4;
    tokio::time::sleep(calm).await;
    let owner = cluster.owner().await?;
    println!("\nnode {} is killed, which owned the log …", cluster.nodes[owner].number);
    cluster.nodes[owner].kill().await;
    tokio::time::sleep((asked.kill_time.0 - calm).max(AFTER_KILL)).await;
    stop.store(true, Ordering::Relaxed);
    let (mut acknowledged, mut doubtful, mut longest) = (before, 0, Duration::ZERO);
    for client in clients {
        let survived = client.await.map_err(|error| format!("a client died: {error}"))??;
        acknowledged += survived.acknowledged;
        doubtful += survived.doubtful;
        longest = longest.max(survived.longest);
    }
    let stored = stored(cluster).await?;
    println!(
        "{acknowledged} increments were acknowledged, those before included, and the answers of {doubtful} were lost; the numbers say {stored}. \
         A client waited {} ms at most for its next one.",
        longest.as_millis()
    );
    agree(stored, acknowledged, doubtful)?;
    println!("Nothing that was acknowledged is missing.");
    Ok(())
}

/// Whether the numbers say what was acknowledged, and no more beside than was in doubt.
fn agree(stored: u64, acknowledged: u64, doubtful: u64) -> Result<(), String> {
    let most = acknowledged + doubtful;
    match (acknowledged..=most).contains(&stored) {
        true => Ok(()),
        false => Err(format!(
            "{acknowledged} increments were acknowledged and {doubtful} are in doubt, and the numbers say {stored}: please report this with the nodes' folders"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increments_that_are_lost_or_done_twice_are_told() {
        assert_eq!((agree(7, 7, 0), agree(9, 7, 2)), (Ok(()), Ok(())));
        for (stored, doubtful) in [(6, 0), (8, 0), (6, 2), (10, 2)] {
            assert!(agree(stored, 7, doubtful).is_err(), "{stored}");
        }
    }
}
