//! `telesto geo`: plans how labels would travel between regions.
//!
//! ```text
//! measured delays and traffic (telesto_links), a file, or the paper's sites ─► solver ─► tree, delays, what each plane would cost
//! ```
//! # Invariants
//! A plan is printed or written to a file. Only with --apply something is changed: the registry of
//! one region.
//!
//! # On failure
//! What is not measured yet is named, pair by pair; nothing is guessed for it.
//!
//! # Limits
//! Averages of what was measured. Up to 8 regions every tree is tried; above, a good one is looked
//! for.

mod input;
mod report;

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use telesto_geo::solver::{self, Problem, Solution};

use self::input::Input;
use super::region::{self, Place};

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Find the best tree of serializers for the regions, and compare what each causal plane would
    /// add.
    ///
    /// Asks a running node for what the regions have measured of each other (view telesto_links),
    /// or takes latencies from a file, or the seven sites of Saturn's evaluation.
    #[command(after_help = "Examples:
  telesto geo plan --url postgres://telesto@127.0.0.1:5433/telesto
  telesto geo plan --latencies sites.csv --weights traffic.csv
  telesto geo plan --paper
  telesto geo plan --paper --format svg --out tree.svg
  telesto geo plan --apply --bucket s3://my-bucket/us

A file of latencies has one line of names and one line for each region, milliseconds one way:
  ,   us, eu, ap
  us,  0, 41, 73
  eu, 41,  0, 107
  ap, 73, 107, 0")]
    Plan(Box<Plan>),
}

/// `telesto geo plan`.
#[derive(Debug, Args)]
pub struct Plan {
    /// A node of one of the regions, which tells what all of them have measured
    #[arg(long, env = "TELESTO_URL", default_value = super::DEFAULT_URL)]
    url: String,
    /// One-way latencies from a file, instead
    #[arg(long, value_name = "FILE", conflicts_with = "paper")]
    latencies: Option<PathBuf>,
    /// The seven sites of Saturn's evaluation, instead
    #[arg(long)]
    paper: bool,
    /// How much each pair counts, from a file like that of latencies; default: the transactions
    /// that were sent, or all alike
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// What to make of it
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Write it to a file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Have the regions use the tree: it is written into the registry of a region, which tells it
    /// the others. Regions follow it when they are on plane tree (`telesto region plane tree`)
    #[arg(long, requires = "bucket", conflicts_with = "paper")]
    apply: bool,
    /// With --apply: the bucket of that region
    #[arg(long, value_name = "URL", requires = "apply")]
    bucket: Option<String>,
    /// The file with the keys of an encrypted database
    #[arg(long, value_name = "FILE", env = "TELESTO_ENCRYPTION_KEY_FILE")]
    encryption_key_file: Option<PathBuf>,
}

/// How a plan is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The tree, its delays, and a table of all pairs and planes
    Text,
    /// The tree in the language of Graphviz
    Dot,
    /// The tree as a picture
    Svg,
    /// All of it, for programs
    Json,
}

/// Runs `telesto geo`.
///
/// # Errors
/// What is missing or wrong, and what to do.
pub async fn run(command: Command) -> Result<(), String> {
    let Command::Plan(plan) = command;
    let mut input = if let Some(file) = &plan.latencies {
        Input::of_latencies(&input::read(file)?).map_err(|error| in_file(file, &error))?
    } else if plan.paper {
        Input::paper()
    } else {
        Input::measured(&super::shell::connect(&plan.url).await?).await?
    };
    if let Some(file) = &plan.weights {
        input.weigh(&input::read(file)?).map_err(|error| in_file(file, &error))?;
    }
    let solution = solved(&input)?;
    let text = shown(&input, &solution, plan.format);
    if let Some(bucket) = plan.bucket.filter(|_| plan.apply) {
        let place = Place::new(bucket, plan.encryption_key_file);
        apply(&place, &input, &solution).await?;
    }
    match &plan.out {
        Some(file) => std::fs::write(file, text)
            .map_err(|error| format!("cannot write {}: {error}", file.display())),
        None => {
            print!("{text}");
            Ok(())
        }
    }
}

fn in_file(file: &std::path::Path, error: &str) -> String {
    format!("{}: {error}", file.display())
}

fn problem(input: &Input) -> Problem {
    Problem { latencies: input.latencies.clone(), weights: input.weights.clone() }
}

fn solved(input: &Input) -> Result<Solution, String> {
    solver::solve(&problem(input)).map_err(|error| error.to_string())
}

/// Writes the tree into the registry of a region.
async fn apply(place: &Place, input: &Input, solution: &Solution) -> Result<(), String> {
    let env = telesto_runtime::env();
    let bucket = region::bucket(&env, place).await?;
    let (number, mut registry) = region::known(&bucket).await?;
    let names: Vec<&str> = input.names.iter().map(String::as_str).collect();
    registry.set_tree(&env, &solution.tree, &names).map_err(region::text)?;
    registry.save(&bucket, number).await.map_err(region::text)?;
    eprintln!(
        "The tree is in {} now; its node tells it the others. Regions on plane tree follow it (`telesto region plane tree`, for each bucket).",
        bucket.url()
    );
    Ok(())
}

#[cfg(test)]
fn planned(input: &Input, format: Format) -> Result<String, String> {
    Ok(shown(input, &solved(input)?, format))
}

fn shown(input: &Input, solution: &Solution, format: Format) -> String {
    let names: Vec<&str> = input.names.iter().map(String::as_str).collect();
    let (tree, latencies) = (&solution.tree, &input.latencies);
    match format {
        Format::Text => report::text(input, &problem(input), solution),
        Format::Dot => solver::dot(tree, latencies, &names),
        Format::Svg => solver::svg(tree, latencies, &names),
        Format::Json => report::json(input, &problem(input), solution),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_of_the_papers_sites_has_the_least_average_and_every_pair() {
        let text = planned(&Input::paper(), Format::Text).unwrap();
        assert!(text.contains("10.7"), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains(" → ")).count(), 42, "{text}");
        assert!(text.contains("└─"), "{text}");
        let json: serde_json::Value =
            serde_json::from_str(&planned(&Input::paper(), Format::Json).unwrap()).unwrap();
        assert_eq!(json["pairs"].as_array().map(Vec::len), Some(42));
        let average = &json["average_extra_ms"];
        let of = |plane: &str| average[plane].as_f64().unwrap();
        assert!((10.6..10.8).contains(&of("tree")) && of("matrix") < 1.0, "{average}");
        assert!(of("timestamp") > of("tree"), "{average}");
        assert!(planned(&Input::paper(), Format::Svg).unwrap().starts_with("<svg"));
        assert!(planned(&Input::paper(), Format::Dot).unwrap().starts_with("graph"));
    }

    #[test]
    fn artificial_delays_are_listed_where_a_label_would_be_early() {
        // The way from a to c by b is shorter than the direct one, which most transactions take.
        let file = ",a,b,c\na,0,10,60\nb,10,0,10\nc,60,10,0\n";
        let mut input = Input::of_latencies(file).unwrap();
        input.weigh(",a,b,c\na,0,1,10\nb,1,0,1\nc,10,1,0\n").unwrap();
        let text = planned(&input, Format::Text).unwrap();
        assert!(text.contains("Artificial delays:\n"), "{text}");
        let plain = planned(&Input::paper(), Format::Text).unwrap();
        assert!(plain.contains("Artificial delays: none"), "{plain}");
    }

    #[test]
    fn single_region_has_no_plan() {
        let alone = Input::of_latencies(",a\na,0\n").unwrap();
        assert!(planned(&alone, Format::Text).unwrap_err().contains("two regions"));
    }
}
