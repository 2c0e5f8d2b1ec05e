//! Key-value work on Telesto beside plain SlateDB, on folders of the same disk, in one run.
//!
//! # Purpose
//! Ratios, not absolute numbers: both systems take turns, round by round, in the same process, and
//! the median over the rounds is printed. `scripts/bench.sh` runs it, and pgbench beside PostgreSQL.
//!
//! # Limits
//! Warm data only (it fits the caches of both).
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the outermost layer: it measures real time and may stop at the first error"
)]

mod systems;

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
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
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Get,
    Put,
    Scan,
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
                    Work::Get => {
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
                    Work::Scan => {
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
        "\n{:<6} {:>16} {:>16} {:>8}   ({} tasks, {} rounds, medians; rows or operations a second)",
        "work",
        ours.name(),
        plain.name(),
        "ratio",
        arguments.tasks,
        arguments.rounds
    );
    for work in [Work::Get, Work::Scan, Work::Put] {
        let (mut a, mut b, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..arguments.rounds {
            let x = measure(&ours, work, &arguments, round as u64 + 1).await;
            let y = measure(&plain, work, &arguments, round as u64 + 1).await;
            a.push(x);
            b.push(y);
            ratios.push(x / y);
        }
        println!(
            "{:<6} {:>16.0} {:>16.0} {:>8.2}",
            format!("{work:?}").to_lowercase(),
            median(&mut a),
            median(&mut b),
            median(&mut ratios)
        );
    }
    ours.close().await;
    plain.close().await;
}
