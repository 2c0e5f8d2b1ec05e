//! Key-value work on Telesto beside plain SlateDB, on folders of the same disk, in one run.
//!
//! # Purpose
//! Ratios, not absolute numbers: both systems take turns, round by round, in the same process, and
//! the median over the rounds is printed. `scripts/bench.sh` runs it, and pgbench beside
//! PostgreSQL. Reads are measured twice: of rows just written, which both hold in memory only, and
//! of rows in tables of the bucket. Allocation is as in the `telesto` binary, for both.
//!
//! # Limits
//! Warm data only (it fits the caches of both).
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the outermost layer: it measures real time and may stop at the first error"
)]

#[path = "../../crates/telesto/src/allocator.rs"]
mod allocator;
mod systems;

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum as _};
use futures::future::join_all;

use systems::{PlainSlateDb, System, Telesto};

/// Key-value get, put and scan, Telesto beside plain SlateDB.
#[derive(Parser)]
struct Arguments {
    /// Rows loaded before measuring.
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// Concurrent tasks.
    #[arg(long, default_value_t = 8)]
    tasks: u64,
    /// Rounds; each system is measured once a round, in turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of one measurement, milliseconds.
    #[arg(long, default_value_t = 1500)]
    millis: u64,
    /// What to measure; everything if not given.
    #[arg(long, value_enum)]
    work: Vec<Work>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Work {
    /// One row just written.
    FreshGet,
    /// A range of rows just written.
    FreshScan,
    /// One row in the tables.
    Get,
    /// A range of rows in the tables.
    Scan,
    /// One durable write.
    Put,
}

impl Work {
    fn fresh(self) -> bool {
        matches!(self, Self::FreshGet | Self::FreshScan)
    }
}

/// Rows a scan reads.
const SCAN_ROWS: u64 = 1000;

/// A small generator of keys; the same for both systems.
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

async fn measure(system: &Arc<dyn System>, work: Work, arguments: &Arguments, seed: u64) -> f64 {
    let until = Instant::now() + Duration::from_millis(arguments.millis);
    let began = Instant::now();
    let tasks = (0..arguments.tasks).map(|task| {
        let (system, rows) = (Arc::clone(system), arguments.rows);
        tokio::spawn(async move {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (task + 1);
            let mut done = 0_u64;
            while Instant::now() < until {
                match work {
                    Work::FreshGet | Work::Get => {
                        for _ in 0..16 {
                            assert!(
                                system.get(next_random(&mut state) % rows).await,
                                "a loaded key is there"
                            );
                            done += 1;
                        }
                    }
                    Work::Put => {
                        system.put(next_random(&mut state) % rows).await;
                        done += 1;
                    }
                    Work::FreshScan | Work::Scan => {
                        let start = next_random(&mut state) % (rows - SCAN_ROWS);
                        assert_eq!(system.scan(start, SCAN_ROWS).await, SCAN_ROWS);
                        done += SCAN_ROWS;
                    }
                }
            }
            done
        })
    });
    let done: u64 = join_all(tasks).await.into_iter().map(|count| count.unwrap()).sum();
    done as f64 / began.elapsed().as_secs_f64()
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures `work` on both in turn and prints a line.
async fn compare(
    work: Work,
    ours: &Arc<dyn System>,
    plain: &Arc<dyn System>,
    arguments: &Arguments,
) {
    let (mut a, mut b, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..arguments.rounds {
        let x = measure(ours, work, arguments, round as u64 + 1).await;
        let y = measure(plain, work, arguments, round as u64 + 1).await;
        a.push(x);
        b.push(y);
        ratios.push(x / y);
    }
    let name = work.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
    let (a, b, ratio) = (median(&mut a), median(&mut b), median(&mut ratios));
    println!("{name:<10} {a:>16.0} {b:>16.0} {ratio:>8.2}");
}

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    assert!(arguments.rows > 2 * SCAN_ROWS, "--rows must be over {}", 2 * SCAN_ROWS);
    let dir = tempfile::tempdir().unwrap();
    let ours: Arc<dyn System> = Arc::new(Telesto::open(&dir.path().join("telesto")).await);
    let plain: Arc<dyn System> = Arc::new(PlainSlateDb::open(&dir.path().join("slatedb")).await);
    for system in [&ours, &plain] {
        let began = Instant::now();
        system.load(arguments.rows).await;
        println!(
            "loaded {} rows into {} in {:.1} s",
            arguments.rows,
            system.name(),
            began.elapsed().as_secs_f64()
        );
    }
    println!(
        "\n{:<10} {:>16} {:>16} {:>8}   ({} tasks, {} rounds, medians; rows or operations a second)",
        "work",
        ours.name(),
        plain.name(),
        "ratio",
        arguments.tasks,
        arguments.rounds
    );
    let mut settled = false;
    for work in Work::value_variants() {
        if !arguments.work.is_empty() && !arguments.work.contains(work) {
            continue;
        }
        if !settled && !work.fresh() {
            ours.settle().await;
            plain.settle().await;
            settled = true;
        }
        compare(*work, &ours, &plain, &arguments).await;
    }
    ours.close().await;
    plain.close().await;
}
