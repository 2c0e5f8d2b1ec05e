//! The study: the causal planes side by side with Saturn's figures (EuroSys 2017, §7).
//!
//! # Purpose
//! `make bench-geo` prints the tables of Figures 1 and 4 to 8 and writes their plots as SVG. The
//! paper's own figures stand beside ours where its text gives them.
//!
//! # Invariants
//! The same arguments print the same tables.
//!
//! # Limits
//! A simulation: no processors, no queues, no jitter. Throughput (Figures 5 and 8a) is not
//! measured; messages, bytes of metadata and waits of moving clients are counted instead.

mod figures;
mod measure;
mod plot;
mod sites;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use figures::Study;

/// The causal planes beside Saturn's figures.
#[derive(Parser)]
struct Arguments {
    /// Where the plots go.
    #[arg(long, default_value = "target/bench-geo")]
    out: PathBuf,
    /// Which figures: 1, 4, 5, 6, 7, 8, tree, change; all if not given.
    #[arg(long)]
    figure: Vec<String>,
    /// Measured virtual time of a run, seconds.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Updates a second and region.
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Arguments { out, figure, seconds, rate, seed } = arguments;
    if let Err(error) = std::fs::create_dir_all(&out) {
        eprintln!("{} cannot be made: {error}", out.display());
        return ExitCode::FAILURE;
    }
    let study = Study { out, seconds, rate, seed };
    for (name, draw) in figures::ALL {
        if !figure.is_empty() && !figure.iter().any(|wanted| wanted == name) {
            continue;
        }
        if let Err(error) = draw(&study) {
            eprintln!("figure {name}: {error}");
            return ExitCode::FAILURE;
        }
    }
    println!("\nplots: {}", study.out.display());
    ExitCode::SUCCESS
}
