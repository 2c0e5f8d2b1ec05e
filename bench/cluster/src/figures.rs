//! Runs, and what is said of them.
//!
//! # Invariants
//! Everything is divided by the transactions that the run did.

use std::fmt::Write as _;
use std::time::Duration;

use crate::Arguments;
use crate::machine::Bare;
use crate::nodes::{Counted, Nodes};
use crate::work::{self, Done, Place, Work};

/// Before what is measured: connections, plans, caches.
const WARM: Duration = Duration::from_secs(1);

/// One run.
pub(crate) struct Row {
    nodes: usize,
    work: Work,
    place: Place,
    seconds: f64,
    done: Done,
    /// Of all nodes.
    all: Counted,
    /// Processor seconds of the log's owner.
    owner: f64,
}

fn sum(counted: &[Counted]) -> Counted {
    counted.iter().fold(Counted::default(), |sum, one| Counted {
        messages: sum.messages + one.messages,
        bytes: sum.bytes + one.bytes,
        syncs: sum.syncs + one.syncs,
        requests: sum.requests + one.requests,
        processor: sum.processor + one.processor,
    })
}

/// What was counted while `time` passed.
async fn idle(nodes: &Nodes, time: Duration) -> Vec<Counted> {
    let before = nodes.counted();
    tokio::time::sleep(time).await;
    let none = Counted::default();
    nodes.counted().iter().zip(&before).map(|(now, then)| now.since(then, &none)).collect()
}

pub(crate) async fn run(
    nodes: &Nodes,
    kind: Work,
    place: Place,
    arguments: &Arguments,
    time: Duration,
) -> Row {
    work::run(nodes, kind, place, arguments.clients, arguments.rows, WARM).await;
    let idle = idle(nodes, time).await;
    let before = nodes.counted();
    let done = work::run(nodes, kind, place, arguments.clients, arguments.rows, time).await;
    let after = nodes.counted();
    let each: Vec<Counted> = after
        .iter()
        .zip(before.iter().zip(&idle))
        .map(|(after, (before, idle))| after.since(before, idle))
        .collect();
    let owner = each[nodes.owner().await].processor;
    let seconds = time.as_secs_f64();
    Row { nodes: nodes.all().len(), work: kind, place, seconds, done, all: sum(&each), owner }
}

/// One client at the owner that writes: how long a commit takes when nobody else is there.
pub(crate) async fn alone(nodes: &Nodes, rows: i64, time: Duration) -> Done {
    work::run(nodes, Work::Write, Place::Owner, 1, rows, time).await
}

/// What `alone` does, and the mean time of each stage of a commit, at the owner and at the first of
/// the others.
pub(crate) async fn alone_by_stages(nodes: &Nodes, rows: i64, time: Duration) -> (Done, String) {
    let owner = nodes.owner().await;
    let other = usize::from(owner == 0);
    let before = [nodes.stages(owner), nodes.stages(other)];
    let done = alone(nodes, rows, time).await;
    let after = [nodes.stages(owner), nodes.stages(other)];
    let mut text = String::from("| node | stage | times | mean µs |\n| --- | --- | --- | --- |\n");
    for (name, (before, after)) in ["owner", "other"].into_iter().zip(before.iter().zip(&after)) {
        for (stage, (count, sum)) in after {
            let (count_before, sum_before) = before.get(stage).copied().unwrap_or_default();
            let (count, sum) = (count - count_before, sum - sum_before);
            if count > 0.0 {
                // Writing to a string does not fail.
                let _ = writeln!(text, "| {name} | {stage} | {count} | {:.0} |", sum / count * 1e6);
            }
        }
    }
    (done, text)
}

pub(crate) fn commit_beside_the_machine(nodes: usize, alone: &Done, bare: &Bare) -> String {
    let half = alone.times.value_at_quantile(0.5);
    let least = (bare.round + bare.sync).as_micros().max(1);
    let majority = bare.majority.as_micros().max(1);
    format!(
        "{nodes} nodes, one client at the owner: a write statement takes {half} µs (median), from the client's sending to its answer; \
         a round trip and a sync of this machine {} + {} = {least} µs: {:.2} times (aim 1.5); \
         two of three bare threads with files on this disk that write and sync what they are sent {majority} µs: {:.2} times",
        bare.round.as_micros(),
        bare.sync.as_micros(),
        half as f64 / least as f64,
        half as f64 / majority as f64,
    )
}

impl Row {
    fn each(&self, of: f64) -> f64 {
        of / self.done.transactions.max(1) as f64
    }

    /// As a line of a Markdown table.
    pub(crate) fn line(&self) -> String {
        let quantile = |q: f64| self.done.times.value_at_quantile(q) as f64 / 1000.0;
        format!(
            "| {} | {} | {} | {:.0} | {:.2} | {:.2} | {:.2} | {:.0} | {:.3} | {:.2} | {:.0} | {:.0} | {} |",
            self.nodes,
            self.work.name(),
            self.place.name(),
            self.done.transactions as f64 / self.seconds,
            quantile(0.5),
            quantile(0.99),
            self.each(self.all.messages),
            self.each(self.all.bytes),
            self.each(self.all.syncs),
            self.each(self.all.requests) * 1000.0,
            self.each(self.all.processor) * 1e6,
            self.each(self.owner) * 1e6,
            self.done.conflicts,
        )
    }
}

pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| nodes | transaction | clients at | /s | p50 ms | p99 ms | messages each | bytes | syncs | bucket requests for 1,000 | processor µs, all nodes | of the owner | run again |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in rows {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", row.line());
    }
    text
}

/// What reads at other nodes cost the owner.
pub(crate) fn readers(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows.iter().filter(|row| row.work == Work::Read && row.place == Place::Others) {
        let _ = writeln!(
            text,
            "{} nodes, reads at the others: {:.1} µs of the owner's processor for each, {:.0} % of what all nodes spend",
            row.nodes,
            row.each(row.owner) * 1e6,
            100.0 * row.owner / row.all.processor.max(f64::MIN_POSITIVE),
        );
    }
    text
}
