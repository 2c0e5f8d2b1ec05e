//! For how long commits stop when a node of three fails, by the way it fails.
//!
//! # Purpose
//! `make bench-failover` prints a table: each kind of failure, of the log's owner and of another
//! node (which is a log server), and the longest time between two commits of one client, for
//! clients of the nodes that did not fail. With `--timeline` it shows throughput over time instead,
//! while nodes are cut off and killed ([`timeline`]).
//!
//! # Invariants
//! - Clients send one statement at a time, and again at once when it fails; each has a row of its
//!   own, so none conflicts.
//! - A run's figure is that of the client which waited longest.
//! - Nothing is left out: a run in which commits did not come back within [`LIMIT`] counts as that.
//!
//! # Limits
//! Three nodes, the clients and the bucket's folder share one machine: what else runs on it is part
//! of the figures, and the row "nothing" says how much. It takes root (network namespaces, a
//! mount).
#![allow(
    clippy::disallowed_methods,
    reason = "the outermost layer: it measures real time, and may stop at the first error"
)]

#[path = "../../../tests/e2e/harness.rs"]
#[allow(dead_code, missing_docs)]
mod harness;
#[path = "../../../tests/e2e/namespaces.rs"]
#[allow(missing_docs)]
mod namespaces;
#[path = "../../../tests/e2e/three.rs"]
#[allow(dead_code, missing_docs)]
mod three;

mod clients;
mod disks;
// The plots of the other studies.
#[path = "../../s3db/src/plot.rs"]
mod plot;
mod table;
mod timeline;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};

use clients::Clients;
use disks::Disks;
use namespaces::{Trio, both};
use table::Row;
use three::{all, others};

/// A failure is ended after this time, whatever it did.
const LIMIT: Duration = Duration::from_secs(20);
/// How long clients are watched at least, and after the last of them has committed again.
const LEAST: Duration = Duration::from_millis(2500);
const AFTER: Duration = Duration::from_millis(1000);
/// How long all is well before each.
const CALM: Duration = Duration::from_millis(1000);

/// For how long commits stop when a node fails.
#[derive(Parser)]
struct Arguments {
    /// Runs of each row.
    #[arg(long, default_value_t = 9)]
    runs: usize,
    /// Which failures; all if not given.
    #[arg(long, value_enum)]
    fault: Vec<Fault>,
    /// Instead of the table: throughput over time, three partitions and two failures in turns
    /// (CloudTPS' Figure 9).
    #[arg(long)]
    timeline: bool,
    /// Seconds of each partition of the timeline, and of a killed node's absence (the paper's
    /// partitions: 60).
    #[arg(long, default_value_t = 15)]
    away: u64,
    /// Folder for the timeline's table and plot.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// A way to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fault {
    /// None: what the machine itself does to the figures.
    Nothing,
    /// SIGKILL.
    Kill,
    /// It neither sends nor receives.
    BlackHole,
    /// It receives, and sends nothing.
    ReceiveOnly,
    /// It sends, and receives nothing.
    SendOnly,
    /// SIGSTOP.
    Freeze,
    /// Its disk takes no writes (fsfreeze of a file system of its own).
    DiskStall,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Kill => "kill",
            Self::BlackHole => "black hole",
            Self::ReceiveOnly => "receive-only",
            Self::SendOnly => "send-only",
            Self::Freeze => "freeze (SIGSTOP)",
            Self::DiskStall => "disk stall",
        }
    }

    /// What is aimed at, milliseconds, when the owner fails.
    fn aim(self) -> Option<u64> {
        match self {
            Self::Nothing => None,
            Self::Kill => Some(1000),
            Self::BlackHole | Self::ReceiveOnly | Self::SendOnly | Self::Freeze => Some(2000),
            Self::DiskStall => Some(5000),
        }
    }

    fn begin(self, trio: &mut Trio, disks: &Disks, node: usize) {
        let [near, far] = others(node)[..] else { unreachable!("three nodes") };
        let rest = [near, far];
        match self {
            Self::Nothing => {}
            Self::Kill => trio.take(node).kill(),
            Self::BlackHole => trio.nets.cut(&both(node, &rest)),
            Self::ReceiveOnly => trio.nets.cut(&rest.map(|other| (node, other))),
            Self::SendOnly => trio.nets.cut(&rest.map(|other| (other, node))),
            Self::Freeze => trio.node(node).freeze(),
            Self::DiskStall => disks.freeze(node),
        }
    }

    fn end(self, trio: &mut Trio, disks: &Disks, node: usize) {
        match self {
            Self::Nothing => {}
            Self::Kill => trio.begin(node),
            Self::BlackHole | Self::ReceiveOnly | Self::SendOnly => trio.nets.heal(),
            Self::Freeze => trio.node(node).thaw(),
            Self::DiskStall => disks.thaw(node),
        }
    }
}

/// One failure; the longest gap, and whether another node owns the log afterwards.
async fn run(
    trio: &mut Trio,
    disks: &Disks,
    clients: &Clients,
    fault: Fault,
    of_owner: bool,
) -> (Duration, bool) {
    let owner = trio.owner().await;
    tokio::time::sleep(CALM).await;
    let node = if of_owner { owner } else { others(owner)[0] };
    let watched = if fault == Fault::Nothing { all() } else { others(node) };
    let begun = Instant::now();
    // With it begins what is measured.
    clients.forget(begun);
    fault.begin(trio, disks, node);
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let passed = begun.elapsed();
        let steady = watched.iter().all(|client| clients.steady(*client, AFTER));
        if passed > LIMIT || passed > LEAST && steady {
            break;
        }
    }
    let gap = watched.iter().map(|client| clients.longest(*client)).max().unwrap_or_default();
    fault.end(trio, disks, node);
    let after = trio.owner().await;
    (gap.min(LIMIT), after != owner)
}

async fn rows(arguments: &Arguments, faults: &[Fault], disks: &Disks) -> Vec<Row> {
    let mut trio = Trio::start(disks.folders());
    let clients = Clients::start(&trio).await;
    let mut rows = Vec::new();
    for fault in faults {
        for of_owner in [true, false] {
            if *fault == Fault::Nothing && !of_owner {
                continue;
            }
            let of = match (*fault, of_owner) {
                (Fault::Nothing, _) => "nobody",
                (_, true) => "owner",
                (_, false) => "follower, a log server",
            };
            let aim = if of_owner { fault.aim() } else { Some(200) };
            let mut row = Row::new(fault.name(), of, aim);
            for _ in 0..arguments.runs {
                let (gap, moved) = run(&mut trio, disks, &clients, *fault, of_owner).await;
                eprintln!(
                    "{} of {of}: {} ms{}",
                    fault.name(),
                    gap.as_millis(),
                    if moved { ", another owner" } else { "" }
                );
                row.add(gap, moved);
            }
            rows.push(row);
        }
    }
    clients.stop();
    rows
}

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    if arguments.timeline {
        let away = Duration::from_secs(arguments.away.max(1));
        return timeline::run(away, arguments.out.as_deref()).await;
    }
    let all = Fault::value_variants().to_vec();
    let chosen = if arguments.fault.is_empty() { all } else { arguments.fault.clone() };
    let (stalls, rest): (Vec<_>, Vec<_>) =
        chosen.into_iter().partition(|fault| *fault == Fault::DiskStall);
    let mut table = Vec::new();
    if !rest.is_empty() {
        table.extend(rows(&arguments, &rest, &Disks::none()).await);
    }
    if !stalls.is_empty() {
        let disks = Disks::mount();
        table.extend(rows(&arguments, &stalls, &disks).await);
    }
    println!("{}", table::shown(&table));
}
