//! `telesto-demo bench tpcw` and `telesto-demo bench compare`: the bookstore against one server, or
//! several in turns.
//!
//! # Invariants
//! - A server without the shop gets it first; one with another size is used as it is, unless a size
//!   was asked for.
//! - After the load the shop must add up, and show every order it acknowledged: else the command
//!   fails.
//!
//! # On failure
//! Exit code 1 with the reason; the shop stays, and `--reload` makes it anew.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use telesto_bookstore::compare::{self, Plan, Target, Workload};
use telesto_bookstore::drive::{self, Live, Load};
use telesto_bookstore::generate::Scale;
use telesto_bookstore::load::{self, Progress};
use telesto_bookstore::mix::Mix;
use telesto_bookstore::report::{Report, Usage};
use telesto_bookstore::{check, connect};

/// TPC-W's shop of 50 browsers, the size of seed 002's measurements.
const CUSTOMERS: u64 = 144_000;
const ITEMS: u64 = 10_000;

/// Which shop.
#[derive(Clone, Debug, Args)]
pub struct Shop {
    /// Customers; the other tables follow from it. Default: what is there, else 144000
    #[arg(long, value_parser = clap::value_parser!(u64).range(10..=1_000_000_000))]
    customers: Option<u64>,
    /// Items. Default: what is there, else 10000
    #[arg(long, value_parser = clap::value_parser!(u64).range(10..=1_000_000_000))]
    items: Option<u64>,
    /// What is drawn: the same seed gives the same rows and the same choices
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=i64::MAX as u64))]
    seed: u64,
    /// Drop the shop that is there first
    #[arg(long)]
    reload: bool,
}

impl Shop {
    /// One of that size.
    pub fn of(customers: u64, items: u64, seed: u64) -> Self {
        Self { customers: Some(customers), items: Some(items), seed, reload: false }
    }
}

/// What browsers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MixName {
    /// TPC-W: 95 % looking, 5 % ordering
    Browsing,
    /// TPC-W: 80 % and 20 %
    Shopping,
    /// TPC-W: 50 % and 50 %
    Ordering,
    /// Six products looked for, three ordered
    Customer,
    /// Joins of one and two steps, and updates
    Joins,
}

impl From<MixName> for Mix {
    fn from(name: MixName) -> Self {
        match name {
            MixName::Browsing => Self::Browsing,
            MixName::Shopping => Self::Shopping,
            MixName::Ordering => Self::Ordering,
            MixName::Customer => Self::Customer,
            MixName::Joins => Self::Joins,
        }
    }
}

/// How to load a server with browsers.
#[derive(Clone, Debug, Args)]
pub struct Browsers {
    /// What they do
    #[arg(long, value_enum, default_value = "shopping")]
    mix: MixName,
    /// How many, each on a connection of its own
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    clients: u64,
    /// How long
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
}

impl Browsers {
    /// How long they browse.
    pub fn seconds(&self) -> u64 {
        self.seconds
    }

    /// As arguments of another process of this program.
    pub fn arguments(&self) -> Vec<String> {
        let mix = self.mix.to_possible_value().map(|mix| mix.get_name().to_owned());
        let (clients, seconds) = (self.clients.to_string(), self.seconds.to_string());
        let mix = mix.into_iter().flat_map(|mix| ["--mix".to_owned(), mix]);
        mix.chain(["--clients".to_owned(), clients, "--seconds".to_owned(), seconds]).collect()
    }
}

/// `telesto-demo bench tpcw`.
#[derive(Debug, Args)]
pub struct Tpcw {
    /// The server: Telesto, or any PostgreSQL
    #[arg(long, env = "TELESTO_URL", default_value = crate::DEFAULT_URL)]
    target: String,
    #[command(flatten)]
    browsers: Browsers,
    #[command(flatten)]
    shop: Shop,
    /// Interactions a second that are due, answered or not (open loop). Without it each browser
    /// waits for its answer (closed loop)
    #[arg(long, value_parser = rate)]
    rate: Option<f64>,
    /// A statement for each connection, e.g. "SET default_transaction_isolation = 'repeatable
    /// read'"
    #[arg(long, value_name = "SQL")]
    set: Option<String>,
    /// The report as JSON into this file (- for standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1e7 => Ok(rate),
        _ => Err("give interactions a second, e.g. 500".to_owned()),
    }
}

/// `telesto-demo bench compare`.
#[derive(Debug, Args)]
pub struct Compare {
    /// The servers, as NAME=URL or URL; ratios are of the first to the others
    #[arg(required = true, value_name = "NAME=URL", num_args = 1..)]
    targets: Vec<String>,
    /// What to compare; all if not given
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = workload)]
    workload: Vec<Workload>,
    #[command(flatten)]
    shop: Shop,
    /// Connections to a server at once
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    clients: u64,
    /// Length of one measurement
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Measurements of each server
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    rounds: u64,
    /// Rows of the COPY workload
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    copy_rows: u64,
    /// A statement for each connection
    #[arg(long, value_name = "SQL")]
    set: Option<String>,
    /// The report as JSON into this file (- for standard output, instead of the table)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

fn workload(name: &str) -> Result<Workload, String> {
    Workload::named(name).ok_or_else(|| {
        let names: Vec<&str> = Workload::ALL.iter().map(|workload| workload.name()).collect();
        format!("there are: {}", names.join(", "))
    })
}

/// Makes sure that the shop is at `url`, showing how loading goes; its size.
///
/// # Errors
/// What the server refused, or another shop being there.
pub async fn shop(url: &str, shop: &Shop, name: &str) -> Result<Scale, String> {
    let mut client = connect(url).await.map_err(text)?;
    if shop.reload {
        load::remove(&client).await.map_err(text)?;
    }
    if let Some(found) = load::found(&client).await.map_err(text)? {
        let fits = |asked: Option<u64>, there| asked.is_none_or(|asked| asked == there);
        if fits(shop.customers, found.customers) && fits(shop.items, found.items) {
            return Ok(found);
        }
    }
    let scale = Scale {
        customers: shop.customers.unwrap_or(CUSTOMERS),
        items: shop.items.unwrap_or(ITEMS),
        seed: shop.seed,
    };
    let bar = bar(0, "{msg} {bar:30} {percent:>3}% {elapsed} (eta {eta})");
    let show = |progress: Progress<'_>| {
        bar.set_length(progress.all);
        bar.set_position(progress.done);
        bar.set_message(format!("loading {name}: {}", progress.part));
    };
    let loaded = load::load(&mut client, scale, show).await;
    bar.finish_and_clear();
    loaded.map_err(text)?;
    Ok(scale)
}

/// Runs browsers, showing how it goes, and checks the shop.
///
/// # Errors
/// A lost connection, or a shop that does not add up.
pub async fn browse(
    url: &str,
    scale: Scale,
    browsers: &Browsers,
    seed: u64,
    rate: Option<f64>,
    set: Option<String>,
) -> Result<Report, String> {
    let client = connect(url).await.map_err(text)?;
    let load = Load {
        url: url.to_owned(),
        scale,
        mix: browsers.mix.into(),
        clients: browsers.clients,
        length: Duration::from_secs(browsers.seconds),
        rate,
        seed,
        set,
    };
    let before = Usage::of(&client).await;
    let live = Arc::new(Live::default());
    let run = tokio::select! {
        run = drive::run(load.clone(), Arc::clone(&live)) => run.map_err(text)?,
        never = watch(&load, &live) => match never {},
    };
    let usage = match (before, Usage::of(&client).await) {
        (Some(before), Some(after)) => Some(after.since(&before)),
        _ => None,
    };
    let checked = check::check(&client, scale, &run.placed).await.map_err(text)?;
    Ok(Report { run, checked: Some(checked), usage })
}

/// Shows how it goes, for as long as it is let.
async fn watch(load: &Load, live: &Live) -> std::convert::Infallible {
    let seconds = load.length.as_secs();
    let bar = bar(seconds, "{msg} {bar:30} {elapsed}");
    for second in 0_u64.. {
        let rate = live.done.load(Ordering::Relaxed).checked_div(second).unwrap_or(0);
        bar.set_message(format!("{}: {rate} interactions/s", load.mix.name()));
        bar.set_position(second.min(seconds));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    std::future::pending().await
}

/// Runs `telesto-demo bench tpcw`.
///
/// # Errors
/// See [`shop`] and [`browse`].
pub async fn tpcw(asked: Tpcw) -> Result<(), String> {
    let scale = shop(&asked.target, &asked.shop, "the bookstore").await?;
    let seed = asked.shop.seed;
    let report = browse(&asked.target, scale, &asked.browsers, seed, asked.rate, asked.set).await?;
    tell(asked.json.as_deref(), &report.json(), &report.text())
}

/// Runs `telesto-demo bench compare`.
///
/// # Errors
/// What a server refused.
pub async fn compare(asked: Compare) -> Result<(), String> {
    let mut targets = Vec::new();
    for target in &asked.targets {
        // A URL may hold a = behind its ?, but no name holds a colon.
        let (name, url) = match target.split_once('=') {
            Some((name, url)) if !name.contains(':') => (name, url),
            _ => (target.as_str(), target.as_str()),
        };
        targets.push(Target { name: name.to_owned(), url: url.to_owned() });
    }
    let mut scale = None;
    for target in &targets {
        let there = shop(&target.url, &asked.shop, &target.name).await?;
        if *scale.get_or_insert(there) != there {
            return Err(format!(
                "the servers hold different shops ({scale:?} and {there:?}): give --customers and --items, and --reload"
            ));
        }
    }
    let Some(scale) = scale else { return Err("no server given".to_owned()) };
    let workloads = if asked.workload.is_empty() { Workload::ALL.to_vec() } else { asked.workload };
    let plan = Plan {
        targets,
        workloads,
        scale,
        clients: asked.clients,
        length: Duration::from_secs(asked.seconds),
        rounds: usize::try_from(asked.rounds).unwrap_or(1),
        copy_rows: asked.copy_rows,
        seed: asked.shop.seed,
        set: asked.set,
    };
    let all = compare::compare(&plan, |line| eprintln!("{line}")).await.map_err(text)?;
    for target in &plan.targets {
        let client = connect(&target.url).await.map_err(text)?;
        check::check(&client, scale, &[])
            .await
            .map_err(|error| format!("{}: {error}", target.name))?;
    }
    tell(asked.json.as_deref(), &compare::to_json(&plan, &all), &compare::table(&plan, &all))
}

fn tell(json: Option<&Path>, report: &serde_json::Value, table: &str) -> Result<(), String> {
    match json {
        Some(path) if path == Path::new("-") => println!("{report:#}"),
        Some(path) => {
            print!("{table}");
            std::fs::write(path, format!("{report:#}\n"))
                .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        None => print!("{table}"),
    }
    Ok(())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Nothing is shown where standard error is no terminal.
fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
