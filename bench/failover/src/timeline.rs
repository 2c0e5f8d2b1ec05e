//! Throughput over time while nodes are cut off and killed, as CloudTPS' Figure 9 has it: three
//! partitions and two failures in turns.
//!
//! # Invariants
//! - Every commit of every client is counted in the tenth of a second of its acknowledgement;
//!   nothing is smoothed.
//! - At the end each client's row says what it was acknowledged, or as many more as it lost the
//!   answers of.
//!
//! # On failure
//! Panics when a row says something else: a commit was lost, or done twice.
//!
//! # Limits
//! Three nodes; a client of each, one statement at a time. A node that is cut off takes no commits
//! from its client meanwhile.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::clients::Clients;
use crate::namespaces::{Trio, both};
use crate::plot::{self, Series};
use crate::three::{all, others};
use crate::{CALM, LIMIT};

/// The time of one count of commits.
const TENTH: Duration = Duration::from_millis(100);
const TENTHS: usize = 10;
/// What the paper's took no commits for when a machine failed, seconds; its partitions lasted a
/// minute.
const PAPER_FAILURE: u64 = 14;

/// What happens, in this order; whether the node owns the log.
const EVENTS: [(Event, bool); 5] = [
    (Event::Partition, true),
    (Event::Failure, true),
    (Event::Partition, false),
    (Event::Failure, false),
    (Event::Partition, true),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A node and the two others do not hear each other for some time.
    Partition,
    /// SIGKILL; the node is started again after some time.
    Failure,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Self::Partition => "partition",
            Self::Failure => "failure",
        }
    }
}

/// Commits so far, of all clients, by tenths of a second; and what happened when.
#[derive(Debug, Default)]
struct Record {
    commits: Vec<u64>,
    said: Vec<String>,
}

impl Record {
    /// The longest time without any commit from tenth `from` on.
    fn longest_zero(&self, from: usize) -> Duration {
        let mut longest = 0;
        let mut zeroes = 0;
        for count in self.commits.iter().skip(from) {
            zeroes = if *count == 0 { zeroes + 1 } else { 0 };
            longest = longest.max(zeroes);
        }
        TENTH * longest
    }

    /// Commits in each whole second.
    fn by_seconds(&self) -> Vec<u64> {
        self.commits.chunks_exact(TENTHS).map(|tenths| tenths.iter().sum()).collect()
    }
}

/// Counts commits until it is told to stop, and prints a line for each second.
async fn keep(record: Arc<Mutex<Record>>, clients: Arc<Clients>, stop: Arc<AtomicBool>) {
    let mut tick = tokio::time::interval(TENTH);
    tick.tick().await;
    let mut before = clients.acknowledged();
    while !stop.load(Ordering::SeqCst) {
        tick.tick().await;
        let now = clients.acknowledged();
        let mut record = record.lock().expect("no panic");
        record.commits.push(now - before);
        before = now;
        if record.commits.len().is_multiple_of(TENTHS) {
            let second = record.by_seconds().len();
            let count: u64 = record.commits.iter().rev().take(TENTHS).sum();
            let said = std::mem::take(&mut record.said).join("; ");
            println!("{second:>5} s {count:>7} commits  {said}");
        }
    }
}

/// One event, and what came of it.
struct Happened {
    event: Event,
    of_owner: bool,
    zero: Duration,
    /// The longest wait of a client of another node.
    longest: Duration,
    /// From the end of a partition, or the start of the killed node, to a commit of that node's
    /// client.
    back: Duration,
}

fn say(record: &Mutex<Record>, what: String) {
    record.lock().expect("no panic").said.push(what);
}

/// Does it for `time`; ends when all clients commit again.
async fn happen(
    trio: &mut Trio,
    clients: &Clients,
    record: &Mutex<Record>,
    (event, of_owner): (Event, bool),
    time: Duration,
) -> Happened {
    let owner = trio.owner().await;
    tokio::time::sleep(CALM).await;
    let node = if of_owner { owner } else { others(owner)[0] };
    let role = if of_owner { "which owned the log" } else { "a follower" };
    let from = record.lock().expect("no panic").commits.len();
    clients.forget(Instant::now());
    match event {
        Event::Partition => trio.nets.cut(&both(node, &others(node))),
        Event::Failure => trio.take(node).kill(),
    }
    say(record, format!("{} of node {node}, {role}", event.name()));
    tokio::time::sleep(time).await;
    let longest = others(node).iter().map(|client| clients.longest(*client)).max();
    let longest = longest.unwrap_or_default();
    let zero = record.lock().expect("no panic").longest_zero(from);
    let (begun, before) = (Instant::now(), clients.acknowledged_of(node));
    match event {
        Event::Partition => trio.nets.heal(),
        Event::Failure => trio.begin(node),
    }
    say(record, format!("node {node} is back"));
    while clients.acknowledged_of(node) == before && begun.elapsed() < LIMIT {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Happened { event, of_owner, zero, longest, back: begun.elapsed() }
}

fn shown(happened: &[Happened]) -> String {
    let mut text = String::from(
        "| event | of | no commit of anybody, ms | the paper's, s | longest wait of other nodes' clients, ms | back until its client commits, ms | the paper's |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for Happened { event, of_owner, zero, longest, back } in happened {
        let (paper, after) = match event {
            Event::Partition => (String::new(), "almost instantly"),
            Event::Failure => (PAPER_FAILURE.to_string(), ""),
        };
        let of = if *of_owner { "owner" } else { "follower" };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {} | {of} | {} | {paper} | {} | {} | {after} |",
            event.name(),
            zero.as_millis(),
            longest.as_millis(),
            back.as_millis()
        );
    }
    text
}

/// Runs it; `time`: of each partition, and of each absence of a killed node. Writes plot and table
/// into `out`.
pub(crate) async fn run(time: Duration, out: Option<&Path>) {
    let mut trio = Trio::start(None);
    let clients = Arc::new(Clients::start(&trio).await);
    let record = Arc::new(Mutex::new(Record::default()));
    let stop = Arc::new(AtomicBool::new(false));
    let keeper = tokio::spawn(keep(Arc::clone(&record), Arc::clone(&clients), Arc::clone(&stop)));
    let mut happened = Vec::new();
    for event in EVENTS {
        happened.push(happen(&mut trio, &clients, &record, event, time).await);
    }
    trio.owner().await;
    tokio::time::sleep(CALM).await;
    stop.store(true, Ordering::SeqCst);
    keeper.await.expect("no panic");
    let text = shown(&happened);
    println!("\n## CloudTPS, Figure 9: commits over time\n\n{text}");
    clients.check(&trio).await;
    if let Some(out) = out {
        std::fs::create_dir_all(out).expect("a folder for the plot");
        std::fs::write(out.join("figure-9.md"), text).expect("written");
        let seconds = record.lock().expect("no panic").by_seconds();
        let points = seconds.iter().enumerate().map(|(at, count)| (at as f64, *count as f64));
        let line =
            Series { name: format!("clients of {} nodes", all().len()), points: points.collect() };
        let title = "CloudTPS, Figure 9: commits over time, 3 partitions and 2 failures in turns";
        plot::lines(&out.join("figure-9.svg"), title, "seconds", "commits a second", &[line])
            .expect("a plot");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_time_without_commits_is_that_of_neighbouring_tenths_after_the_event() {
        let commits = vec![0, 0, 0, 0, 5, 0, 0, 1, 0, 3, 1, 1];
        let record = Record { commits, said: Vec::new() };
        assert_eq!(record.longest_zero(4), Duration::from_millis(200));
        assert_eq!(record.longest_zero(0), Duration::from_millis(400));
        assert_eq!(record.by_seconds(), [9]);
    }
}
