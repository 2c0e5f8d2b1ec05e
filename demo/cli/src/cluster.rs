//! `telesto-demo cluster`: three nodes on this machine, a load, and one node that is killed again
//! and again; what clients see of it, second by second.
//!
//! # Invariants
//! - A client that is told "committed" has its row counted; at the end the rows are summed: nothing
//!   that was acknowledged may be missing.
//! - Nodes started here are stopped at the end, whatever the end.
//!
//! # Limits
//! All on one machine: a node's loss is shown, not a network's.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use telesto_common::units::Span;
use tokio::time::Instant;
use tokio_postgres::NoTls;

use crate::nodes::{Node, nothing_done, owner, url};
use crate::sql;

/// How long a killed node stays away.
const AWAY: Duration = Duration::from_secs(3);
/// How long a statement may take before its client gives it up.
const GIVEN_UP: Duration = Duration::from_secs(30);

/// `telesto-demo cluster`.
#[derive(Debug, Args)]
pub struct Cluster {
    /// Nodes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(3..=9))]
    nodes: u16,
    /// Clients
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: u16,
    /// For how long
    #[arg(long, value_name = "TIME", default_value = "60s")]
    time: Span,
    /// How often a node is killed, the owner of the log and another one in turns
    #[arg(long, value_name = "TIME", default_value = "10s")]
    kill_every: Span,
    /// Folder for the bucket and the nodes' own files. Default: a new one that is removed at the
    /// end
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
}

/// Runs the demo.
///
/// # Errors
/// Why the nodes could not be started, or that something acknowledged is missing.
pub async fn run(asked: Cluster) -> Result<(), String> {
    let temporary = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let folder = asked.data_dir.as_deref().unwrap_or(temporary.path());
    let folder = std::path::absolute(folder).map_err(|error| error.to_string())?;
    println!(
        "Starting {} nodes on one bucket ({}) …",
        asked.nodes,
        folder.join("bucket").display()
    );
    let mut nodes = Vec::new();
    for number in 1..=asked.nodes {
        let node = Node::start(&folder, number).await?;
        println!("  node {number}: {}, {}", node.id, node.url());
        nodes.push(node);
    }
    let shown = show(&asked, &mut nodes).await;
    for node in &mut nodes {
        node.stop().await;
    }
    shown
}

/// What the clients saw.
struct Seen {
    begun: Instant,
    stop: AtomicBool,
    committed: AtomicU64,
    /// Answers that were lost: committed or not.
    unknown: AtomicU64,
    /// Statements that were told to have done nothing.
    failed: AtomicU64,
    latencies: Mutex<Histogram<u64>>,
    /// Longest time without a commit of one client, within the second, milliseconds.
    gap: AtomicU64,
}

async fn show(asked: &Cluster, nodes: &mut [Node]) -> Result<(), String> {
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    let client = sql::connect(&url(&ports)).await?;
    client
        .batch_execute(&format!(
            "CREATE TABLE IF NOT EXISTS counters (id int PRIMARY KEY, n bigint NOT NULL); \
             INSERT INTO counters SELECT i, 0 FROM generate_series(1, {}) i ON CONFLICT (id) DO UPDATE SET n = 0",
            asked.clients
        ))
        .await
        .map_err(|error| sql::full(&error))?;
    let histogram =
        Histogram::new_with_bounds(1, 60_000_000, 2).map_err(|error| error.to_string())?;
    let seen = Arc::new(Seen {
        begun: Instant::now(),
        stop: AtomicBool::new(false),
        committed: AtomicU64::new(0),
        unknown: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        latencies: Mutex::new(histogram),
        gap: AtomicU64::new(0),
    });
    let clients: Vec<_> = (0..asked.clients)
        .map(|number| {
            let mut ports = ports.clone();
            let first = usize::from(number) % ports.len();
            ports.rotate_left(first);
            tokio::spawn(count(Arc::clone(&seen), url(&ports), i32::from(number) + 1))
        })
        .collect();
    let gaps = watch(asked, nodes, &seen, &url(&ports)).await?;
    seen.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.map_err(|error| error.to_string())?;
    }
    verdict(&seen, &gaps, &url(&ports)).await
}

/// One client: adds one to its row, again and again, on whichever node answers.
async fn count(seen: Arc<Seen>, url: String, row: i32) {
    let mut last = Instant::now();
    while !seen.stop.load(Ordering::Relaxed) {
        let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        tokio::spawn(connection);
        while !client.is_closed() && !seen.stop.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let adding = async {
                client.execute("UPDATE counters SET n = n + 1 WHERE id = $1", &[&row]).await
            };
            match tokio::time::timeout(GIVEN_UP, adding).await {
                Ok(Ok(_)) => {
                    seen.committed.fetch_add(1, Ordering::Relaxed);
                    let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                    seen.latencies.lock().saturating_record(micros);
                    let gap = u64::try_from(last.elapsed().as_millis()).unwrap_or(u64::MAX);
                    seen.gap.fetch_max(gap, Ordering::Relaxed);
                    last = Instant::now();
                }
                // The server said what became of it: a conflict, or that nothing was done.
                Ok(Err(error)) if error.code().is_some_and(|code| nothing_done(code.code())) => {
                    seen.failed.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Err(_)) | Err(_) => {
                    seen.unknown.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

/// Kills and starts nodes, and prints a line a second; the longest gap after each kill.
async fn watch(
    asked: &Cluster,
    nodes: &mut [Node],
    seen: &Seen,
    url: &str,
) -> Result<Vec<(bool, u64)>, String> {
    println!(
        "\n{:>5} {:>9} {:>9} {:>9} {:>10}",
        "s", "commits/s", "p50 ms", "p99 ms", "longest ms"
    );
    let mut gaps: Vec<(bool, u64)> = Vec::new();
    let mut killed: Option<(usize, Instant)> = None;
    let mut next_kill = seen.begun + asked.kill_every.0;
    let mut before = 0;
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.tick().await;
    while seen.begun.elapsed() < asked.time.0 {
        tick.tick().await;
        let mut what = String::new();
        let total = seen.committed.load(Ordering::Relaxed);
        let gap = seen.gap.swap(0, Ordering::Relaxed);
        if let Some((_, last)) = gaps.last_mut().filter(|_| killed.is_some()) {
            *last = gap.max(*last);
        }
        if let Some((index, at)) = killed
            && at.elapsed() >= AWAY
        {
            nodes[index].start_again()?;
            what = format!("node {} starts again", nodes[index].number);
            killed = None;
        } else if killed.is_none() && Instant::now() >= next_kill && !asked.kill_every.0.is_zero() {
            next_kill += asked.kill_every.0;
            let owner = owner(url).await.unwrap_or_default();
            let of_owner = gaps.len().is_multiple_of(2);
            let chosen = nodes.iter().position(|node| (node.id == owner) == of_owner);
            if let Some(index) = chosen {
                nodes[index].kill().await;
                let role = if of_owner { "which owned the log" } else { "a follower" };
                what = format!("node {} is killed, {role}", nodes[index].number);
                gaps.push((of_owner, 0));
                killed = Some((index, Instant::now()));
            }
        }
        let (p50, p99) = {
            let mut latencies = seen.latencies.lock();
            let at = |share| latencies.value_at_quantile(share) as f64 / 1000.0;
            let both = (at(0.5), at(0.99));
            latencies.reset();
            both
        };
        println!(
            "{:>5} {:>9} {p50:>9.1} {p99:>9.1} {gap:>10}  {what}",
            seen.begun.elapsed().as_secs(),
            total - before
        );
        before = total;
    }
    Ok(gaps)
}

async fn verdict(seen: &Seen, gaps: &[(bool, u64)], url: &str) -> Result<(), String> {
    let client = sql::connect(url).await?;
    let row = client.query_one("SELECT sum(n)::bigint FROM counters", &[]).await;
    let stored: i64 = row.map_err(|error| sql::full(&error))?.get(0);
    let stored = stored.unsigned_abs();
    let committed = seen.committed.load(Ordering::Relaxed);
    let unknown = seen.unknown.load(Ordering::Relaxed);
    let failed = seen.failed.load(Ordering::Relaxed);
    println!(
        "\n{committed} commits were acknowledged, {failed} were refused, the answers of {unknown} were lost; the rows say {stored}."
    );
    for (of_owner, what) in [(true, "the owner of the log"), (false, "a follower")] {
        let mut of: Vec<u64> =
            gaps.iter().filter(|(owner, _)| *owner == of_owner).map(|(_, gap)| *gap).collect();
        of.sort_unstable();
        if let (Some(worst), Some(median)) = (of.last(), of.get(of.len() / 2)) {
            println!(
                "{what} killed {} times: a client waited for its next commit {median} ms (median), {worst} ms at most",
                of.len()
            );
        }
    }
    if stored < committed || stored > committed + unknown {
        return Err(format!(
            "the rows say {stored}, which is not between {committed} and {}: please report this with the nodes' folders",
            committed + unknown
        ));
    }
    println!("Nothing that was acknowledged is missing.");
    Ok(())
}
