//! Plays simulation seeds of the geo layer: `telesto-geo-sim --seed 7 --verbose`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser;
use telesto_geo::{Bug, PlaneKind};
use telesto_geo_sim::{Options, run};

/// Plays seeds of the regions' simulation. Exits with 1 when a seed shows a violation.
#[derive(Parser)]
struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds, one after the other.
    #[arg(long, default_value_t = 1)]
    count: u64,
    /// Plant a bug (docs/architecture/geo.md lists them; a wrong name too).
    #[arg(long)]
    plant: Option<Bug>,
    /// Only this plane, without changes of planes; `eventual` shows what the checker finds.
    #[arg(long)]
    plane: Option<PlaneKind>,
    /// Print every event.
    #[arg(long)]
    verbose: bool,
    /// Stop at the first seed that shows a violation.
    #[arg(long)]
    found: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Arguments { plant, plane, verbose, .. } = arguments;
    let mut violated = false;
    let mut out = std::io::stdout().lock();
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.count) {
        let report = run(seed, Options { plant, plane, verbose });
        // A reader that has seen enough (`| head`) closes the pipe; the exit code still tells.
        for event in &report.events {
            let _ = writeln!(out, "{event}");
        }
        if verbose || arguments.count <= 20 || !report.violations.is_empty() {
            let _ = writeln!(out, "{report}");
        }
        violated |= !report.violations.is_empty();
        if violated && arguments.found {
            break;
        }
    }
    let _ = writeln!(
        out,
        "{} seeds: {}",
        arguments.count,
        if violated { "violations" } else { "clean" }
    );
    if violated { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
