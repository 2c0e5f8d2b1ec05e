//! `telesto-demo bench cloudtps`: what "Consistent Join Queries in Cloud Data Stores" (CloudTPS)
//! measured, on a cluster of this machine.
//!
//! ```text
//!   nodes 1 … N:   TPC-W's joins and updates on a cluster that grows           Figures 7 and 8
//!   N nodes:       joins by records and by path; updates with and without      Figure 6
//!                  a changed index
//! ```
//! Its Figure 9, failures over time, takes networks that can be cut:
//! `telesto-failover-bench --timeline`.
//!
//! # Invariants
//! - Beside a figure stands only what the paper's text says of it; its plots have no numbers that
//!   could be read off.
//! - A wrong answer, a change that is missing or done twice, and a shop that does not add up fail
//!   the command.
//!
//! # On failure
//! Why. Nodes started here are stopped at the end, whatever the end.
//!
//! # Limits
//! All nodes and clients share one machine. Transactions a second are that machine's; what a
//! transaction costs all nodes together, in processor time, messages and requests to the bucket, is
//! what shows whether more machines would do more. The paper raised its load until one in a hundred
//! transactions took more than 100 ms; here clients wait for their answers, and the 99th percentile
//! is told.

mod records;
mod scale;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use telesto_common::units::Span;

use self::records::{Records, Work};
use self::scale::{Scaled, mean};
use crate::measure::{Measured, Table, show};
use crate::nodes::{Cluster, Counted};
use crate::plot::Series;
use crate::sites::empty_folder;
use crate::tpcw::{self, Shop};

/// The paper's: machines of its own (40 and 2) and of the store below (17 and 2), transactions a
/// second.
const PAPER: [(f64, f64); 2] = [(4.0, 1770.0), (57.0, 15_340.0)];
/// PostgreSQL 9.0 at its best there: a master and six that follow it.
const PAPER_POSTGRES: f64 = 5493.0;
/// Records of its transactions, on average: joins, updates.
const PAPER_RECORDS: [f64; 2] = [4.92, 2.96];
/// Records of every transaction in the experiment by path length.
const BY_PATH: usize = 12;
/// For how long nodes are watched while nobody asks anything.
const IDLE: Duration = Duration::from_secs(2);

/// `telesto-demo bench cloudtps`.
#[derive(Debug, Args)]
pub struct CloudTps {
    /// Which figures
    #[arg(long, value_delimiter = ',', default_value = "scale,records,path,updates")]
    experiments: Vec<Experiment>,
    /// Numbers of nodes, growing; all but `scale` are done with the last
    #[arg(long, value_delimiter = ',', default_value = "1,2,3", value_parser = clap::value_parser!(u16).range(1..=16))]
    nodes: Vec<u16>,
    /// Clients of each node
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// For how long each point is measured
    #[arg(long, value_name = "TIME", default_value = "5s")]
    time: Span,
    /// Customers of the bookstore (the paper: 144000)
    #[arg(long, default_value_t = 14_400, value_parser = clap::value_parser!(u64).range(10..=1_000_000_000))]
    customers: u64,
    /// Items of the bookstore (the paper: 10000)
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(10..=1_000_000_000))]
    items: u64,
    /// Rows of the table of joins by key and of updates (the paper: 10000)
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    rows: u32,
    /// `records`: records that a join of one step takes, even numbers
    #[arg(long, value_delimiter = ',', default_value = "4,8,12,16,20", value_parser = even)]
    joined: Vec<usize>,
    /// `path`: lengths of the path to twelve records
    #[arg(long, value_delimiter = ',', default_value = "0,1,2,3,5", value_parser = path)]
    paths: Vec<usize>,
    /// `updates`: records that are changed, those of indexes included, by threes
    #[arg(long, value_delimiter = ',', default_value = "3,6,9,12", value_parser = threes)]
    changed: Vec<usize>,
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

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// Figures 7 and 8: TPC-W's joins and updates, by number of nodes; records of a transaction
    Scale,
    /// Figure 6a: joins of one step, by number of records
    Records,
    /// Figure 6b: twelve records, by length of the path to them
    Path,
    /// Figure 6c: updates, by number of records, with and without a changed index
    Updates,
}

fn even(text: &str) -> Result<usize, String> {
    multiple(text, 2, "an even number from 2 to 200")
}

fn threes(text: &str) -> Result<usize, String> {
    multiple(text, 3, "a number from 3 to 198 that three divides")
}

fn multiple(text: &str, of: usize, what: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number: &usize| (of..=200).contains(number));
    number.filter(|number| number.is_multiple_of(of)).ok_or_else(|| format!("give {what}"))
}

fn path(text: &str) -> Result<usize, String> {
    let length = text.parse().ok().filter(|length: &usize| *length < BY_PATH);
    let fits = |length: &usize| BY_PATH.is_multiple_of(length + 1);
    length.filter(fits).ok_or_else(|| "there are paths of 0, 1, 2, 3, 5 and 11".to_owned())
}

/// Runs the benchmark.
///
/// # Errors
/// Why nodes could not be started, what went wrong with their clients, or what is not as it has to
/// be.
pub async fn run(mut asked: CloudTps) -> Result<(), String> {
    asked.nodes.sort_unstable();
    asked.nodes.dedup();
    let temporary = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let folder = empty_folder(asked.data_dir.as_deref().unwrap_or(temporary.path()))?;
    let mut cluster = Cluster::new(&folder);
    let measured = measure_all(&asked, &mut cluster).await;
    cluster.stop().await;
    measured
}

async fn measure_all(asked: &CloudTps, cluster: &mut Cluster) -> Result<(), String> {
    let most = asked.nodes.last().copied().ok_or("give --nodes")?;
    if asked.experiments.contains(&Experiment::Scale) {
        scale(asked, cluster).await?;
    }
    if asked.experiments.iter().all(|experiment| *experiment == Experiment::Scale) {
        return Ok(());
    }
    println!("{most} nodes: {} rows that refer to each other …", asked.rows);
    cluster.grow(most).await?;
    let mut records = Records::load(cluster, asked.rows).await?;
    let idle = cluster.idle(IDLE).await?;
    for experiment in &asked.experiments {
        match experiment {
            Experiment::Scale => {}
            Experiment::Records => by_records(asked, cluster, &mut records, idle).await?,
            Experiment::Path => by_path(asked, cluster, &mut records, idle).await?,
            Experiment::Updates => by_changes(asked, cluster, &mut records, idle).await?,
        }
    }
    Ok(())
}

/// Figures 7 and 8.
async fn scale(asked: &CloudTps, cluster: &mut Cluster) -> Result<(), String> {
    let mut all: Vec<Scaled> = Vec::new();
    let shop = Shop::of(asked.customers, asked.items, asked.seed);
    for count in &asked.nodes {
        cluster.grow(*count).await?;
        let loaded = tpcw::shop(&cluster.nodes[0].url(), &shop, "the bookstore").await?;
        let idle = cluster.idle(IDLE).await?;
        let taken = (idle, asked.seed);
        let scaled = scale::measure(cluster, loaded, asked.clients, asked.time.0, taken).await?;
        println!("{count} nodes, TPC-W's joins and updates: {}", said(&scaled.measured));
        all.push(scaled);
    }
    show_scale(asked, &all)?;
    all.last().map_or(Ok(()), |last| show_distribution(asked, last))
}

fn said(measured: &Measured) -> String {
    format!(
        "{:.0} transactions/s, p99 {:.1} ms, {:.0} µs of processor time each",
        measured.rate(),
        measured.tally.millis(0.99),
        measured.micros()
    )
}

fn show_scale(asked: &CloudTps, all: &[Scaled]) -> Result<(), String> {
    let mut table = Table::new(&[
        "nodes",
        "transactions/s",
        "by node",
        "the paper's, by machine",
        "p99 ms",
        "processor µs each, all nodes",
        "to the first",
        "messages each",
        "bucket requests for 1,000",
        "conflicts",
    ]);
    let first = all.first().map_or(1.0, |first| first.measured.micros());
    let [small, large] = PAPER.map(|(machines, rate)| rate / machines);
    for Scaled { nodes, measured, .. } in all {
        table.row(vec![
            nodes.to_string(),
            format!("{:.0}", measured.rate()),
            format!("{:.0}", measured.rate() / *nodes as f64),
            format!("{small:.0} of {} to {large:.0} of {}", PAPER[0].0, PAPER[1].0),
            format!("{:.1}", measured.tally.millis(0.99)),
            format!("{:.0}", measured.micros()),
            format!("{:.2}", measured.micros() / first),
            format!("{:.1}", measured.messages()),
            format!("{:.1}", measured.requests()),
            measured.tally.conflicts.to_string(),
        ]);
    }
    let points = |of: fn(&Measured) -> f64| {
        all.iter().map(|scaled| (scaled.nodes as f64, of(&scaled.measured))).collect()
    };
    let lines = [
        Series { name: "CloudTPS and HBase on DAS-3, machines".to_owned(), points: PAPER.to_vec() },
        Series {
            name: "PostgreSQL 9.0 there, at best".to_owned(),
            points: vec![(7.0, PAPER_POSTGRES)],
        },
        Series {
            name: "Telesto, nodes of this machine".to_owned(),
            points: points(Measured::rate),
        },
    ];
    let title = "CloudTPS, Figure 7: TPC-W's joins and updates by number of nodes";
    let axes = ("nodes, machines", "transactions a second");
    show(asked.out.as_deref(), "figure-7", title, &table, axes, &lines)?;
    println!(
        "The shop of {} customers adds up at every node. PostgreSQL 9.0 reached {PAPER_POSTGRES} there with seven machines. \
         Fewer than three nodes keep the log once, more keep it three times: compare nodes with three.",
        asked.customers
    );
    Ok(())
}

fn show_distribution(asked: &CloudTps, last: &Scaled) -> Result<(), String> {
    let mut table = Table::new(&["records", "% of joins", "% of updates"]);
    let share = |of: &std::collections::BTreeMap<u64, u64>, records: u64| {
        let all: u64 = of.values().sum();
        100.0 * of.get(&records).copied().unwrap_or_default() as f64 / all.max(1) as f64
    };
    let most =
        last.reads.keys().chain(&last.updates.keys().copied().collect::<Vec<_>>()).copied().max();
    let all: Vec<u64> = (1..=most.unwrap_or_default()).collect();
    for records in &all {
        let (joins, updates) = (share(&last.reads, *records), share(&last.updates, *records));
        table.row(vec![records.to_string(), format!("{joins:.1}"), format!("{updates:.1}")]);
    }
    let [joins, updates] = [&last.reads, &last.updates].map(mean);
    table.row(vec!["mean".to_owned(), format!("{joins:.2}"), format!("{updates:.2}")]);
    table.row(vec![
        "mean, the paper's".to_owned(),
        format!("{:.2}", PAPER_RECORDS[0]),
        format!("{:.2}", PAPER_RECORDS[1]),
    ]);
    let line = |name: &str, of| Series {
        name: name.to_owned(),
        points: all.iter().map(|records| (*records as f64, share(of, *records))).collect(),
    };
    let lines = [line("joins", &last.reads), line("updates", &last.updates)];
    let title = "CloudTPS, Figure 8: records a transaction reaches";
    show(asked.out.as_deref(), "figure-8", title, &table, ("records", "% of its kind"), &lines)
}

/// One measurement of Figure 6.
struct Point {
    /// On the figure's axis.
    at: usize,
    name: String,
    work: Work,
    /// What the paper's text says of its ratio.
    paper: &'static str,
}

/// What it came to: records a second, and the rest.
async fn points(
    asked: &CloudTps,
    cluster: &Cluster,
    records: &mut Records,
    idle: Counted,
    points: Vec<Point>,
) -> Result<Vec<(Point, Measured)>, String> {
    let mut all = Vec::new();
    for (seed, point) in (asked.seed..).zip(points) {
        let taken = (idle, seed);
        let measured =
            records.measure(cluster, point.work, asked.clients, asked.time.0, taken).await?;
        println!("{}: {}", point.name, said(&measured));
        all.push((point, measured));
    }
    Ok(all)
}

/// Records a second.
fn records_rate(point: &Point, measured: &Measured) -> f64 {
    measured.rate() * point.work.records() as f64
}

/// A part of Figure 6, with ratios of records a second to `base`'s.
fn show_points(
    asked: &CloudTps,
    (name, title, axis): (&str, &str, &str),
    all: &[(Point, Measured)],
    base: usize,
    lines: &[Series],
) -> Result<(), String> {
    let mut table = Table::new(&[
        "transaction",
        "records",
        "transactions/s",
        "records/s",
        "ratio",
        "the paper's",
        "p99 ms",
        "processor µs for a record, all nodes",
        "messages each",
        "bucket requests for 1,000",
        "conflicts",
    ]);
    let first = all.get(base).map_or(1.0, |(point, measured)| records_rate(point, measured));
    for (point, measured) in all {
        let records = point.work.records();
        table.row(vec![
            point.name.clone(),
            records.to_string(),
            format!("{:.0}", measured.rate()),
            format!("{:.0}", records_rate(point, measured)),
            format!("{:.2}", records_rate(point, measured) / first),
            point.paper.to_owned(),
            format!("{:.1}", measured.tally.millis(0.99)),
            format!("{:.1}", measured.micros() / records as f64),
            format!("{:.1}", measured.messages()),
            format!("{:.1}", measured.requests()),
            measured.tally.conflicts.to_string(),
        ]);
    }
    show(asked.out.as_deref(), name, title, &table, (axis, "records a second"), lines)
}

fn line(name: &str, all: &[(Point, Measured)]) -> Series {
    let points =
        all.iter().map(|(point, measured)| (point.at as f64, records_rate(point, measured)));
    Series { name: name.to_owned(), points: points.collect() }
}

/// Figure 6a.
async fn by_records(
    asked: &CloudTps,
    cluster: &Cluster,
    table: &mut Records,
    idle: Counted,
) -> Result<(), String> {
    let planned = asked.joined.iter().enumerate().map(|(index, records)| Point {
        at: *records,
        name: format!("join of {records} records"),
        work: Work::Join { roots: records / 2, path: 1 },
        paper: if index == 0 { "1" } else { "about 1" },
    });
    let all = points(asked, cluster, table, idle, planned.collect()).await?;
    let title = "CloudTPS, Figure 6a: joins of one step by number of records";
    show_points(asked, ("figure-6a", title, "records"), &all, 0, &[line("Telesto", &all)])
}

/// Figure 6b.
async fn by_path(
    asked: &CloudTps,
    cluster: &Cluster,
    table: &mut Records,
    idle: Counted,
) -> Result<(), String> {
    let planned = asked.paths.iter().map(|path| Point {
        at: *path,
        name: format!("path of {path}"),
        work: Work::Join { roots: BY_PATH / (path + 1), path: *path },
        paper: match path {
            0 => "about 1.5",
            1 => "1",
            _ => "slightly below the one before",
        },
    });
    let all = points(asked, cluster, table, idle, planned.collect()).await?;
    let one = asked.paths.iter().position(|path| *path == 1).unwrap_or_default();
    let title = "CloudTPS, Figure 6b: twelve records by length of the path to them";
    show_points(
        asked,
        ("figure-6b", title, "length of the path"),
        &all,
        one,
        &[line("Telesto", &all)],
    )
}

/// Figure 6c.
async fn by_changes(
    asked: &CloudTps,
    cluster: &Cluster,
    table: &mut Records,
    idle: Counted,
) -> Result<(), String> {
    let mut planned = Vec::new();
    for index in [false, true] {
        for records in &asked.changed {
            let rows = if index { records / 3 } else { *records };
            planned.push(Point {
                at: *records,
                name: format!(
                    "rows changed: {rows}, {}",
                    if index { "and their index" } else { "no index" }
                ),
                work: Work::Update { rows, index },
                paper: if planned.is_empty() { "1" } else { "about 1" },
            });
        }
    }
    let all = points(asked, cluster, table, idle, planned).await?;
    let (plain, index) = all.split_at(asked.changed.len());
    let lines = [line("rows only", plain), line("rows and an index", index)];
    let title = "CloudTPS, Figure 6c: updates by number of records";
    show_points(asked, ("figure-6c", title, "records changed"), &all, 0, &lines)?;
    table.check(cluster).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_of_records_that_rows_can_make_up_are_taken() {
        assert_eq!((even("4"), threes("9"), path("5")), (Ok(4), Ok(9), Ok(5)));
        for refused in [even("3"), even("0"), threes("4"), threes("0"), path("4"), path("12")] {
            assert!(refused.is_err(), "{refused:?}");
        }
    }
}
