//! Plays simulation seeds: `telesto-sim --seed 7 --verbose`.

use std::io::Write as _;
use std::process::ExitCode;

use telesto_sim::{Plant, run, run_sql};

const HELP: &str = "\
Plays seeds of the deterministic simulation.

  telesto-sim [--seed N] [--count N] [--sql] [--verbose] [--plant NAME] [--found]

  --seed N      the first seed (default 1)
  --count N     how many seeds, one after the other (default 1)
  --sql         clients speak SQL
  --verbose     print every event of the run
  --plant NAME  plant a bug (docs/architecture/simulation.md lists them; a wrong name too)
  --found       stop at the first seed that shows a violation

Exits with 1 when a seed shows a violation.";

struct Arguments {
    seed: u64,
    count: u64,
    sql: bool,
    verbose: bool,
    found: bool,
    plant: Option<Plant>,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments =
        Arguments { seed: 1, count: 1, sql: false, verbose: false, found: false, plant: None };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--seed" => arguments.seed = number(&value()?)?,
            "--count" => arguments.count = number(&value()?)?,
            "--plant" => arguments.plant = Some(value()?.parse()?),
            "--found" => arguments.found = true,
            "--sql" => arguments.sql = true,
            "--verbose" => arguments.verbose = true,
            _ => return Err(format!("{word:?} is not an option\n\n{HELP}")),
        }
    }
    Ok(arguments)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let arguments = match parse(words.into_iter()) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let mut violated = false;
    let mut out = std::io::stdout().lock();
    for seed in arguments.seed..arguments.seed.saturating_add(arguments.count) {
        let play = if arguments.sql { run_sql } else { run };
        let report = play(seed, arguments.plant, arguments.verbose);
        // A reader that has seen enough (`| head`) closes the pipe; the exit code still tells.
        for event in &report.events {
            let _ = writeln!(out, "{event}");
        }
        let _ = writeln!(out, "{report}");
        violated |= !report.violations.is_empty();
        if violated && arguments.found {
            break;
        }
    }
    if violated { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
