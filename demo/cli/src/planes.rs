//! `telesto-demo bench regions`: what a causal plane costs real regions, beside Saturn's Figures 5
//! and 8a.
//!
//! ```text
//! for each point of a figure, for each round, for each plane: all regions go over ─ warm up ─ count for a while ─► ratios to the first plane
//! ```
//! # Invariants
//! - Planes take turns inside a round, in an order that changes, on the same regions and rows: what
//!   the machine does meanwhile is done to all.
//! - Every way between two regions goes through a link of its own, which takes half a round trip as
//!   measured between the real sites.
//! - Counted is what clients were answered, what the kernel says the nodes' processes took, and
//!   what went over the links; not what nodes say of themselves. Only the time until an update is
//!   visible is theirs.
//!
//! # On failure
//! Why, and where to look. Processes started here are stopped at the end, whatever the end.
//!
//! # Limits
//! All regions and clients share one machine, so that throughput is that of its processors; the
//! paper had machines for each datacenter. Instructions cannot be counted on every machine;
//! processor time can, in hundredths of a second.

mod report;
mod tables;
mod work;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use telesto_common::RegionId;
use telesto_common::units::Span;
use telesto_geo::Latencies;
use telesto_social::{Correlation, Graph, REGIONS, Sharing, placement};
use tokio::time::Instant;

use self::report::{Point, Sample};
use self::tables::Tables;
use self::work::{Clients, Draws, Load};
use crate::sites::{Site, World, empty_folder, until};
use crate::sql;

/// The paper's sites, in its order.
const NAMES: [&str; REGIONS] = ["nv", "nc", "o", "i", "f", "t", "s"];
/// Three of them, far from each other.
const THREE: [&str; 3] = ["nv", "i", "t"];
const THREE_IDS: [RegionId; 3] = [RegionId(0), RegionId(3), RegionId(5)];
/// Nothing is counted of a measurement's beginning: sessions connect and prepare.
const WARM: Duration = Duration::from_secs(2);

/// `telesto-demo bench regions`.
#[derive(Debug, Args)]
pub struct Planes {
    /// How many regions: 7, the paper's, or 3 of them
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u8).range(3..=7))]
    regions: u8,
    /// What is compared; ratios are to the first one
    #[arg(long, value_delimiter = ',', default_value = "eventual,matrix,tree")]
    planes: Vec<Plane>,
    /// Which figures
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "value-size,reads,correlation,remote-reads,social"
    )]
    experiments: Vec<Experiment>,
    /// For how long each plane is measured in a round
    #[arg(long, value_name = "TIME", default_value = "5s")]
    time: Span,
    /// How often planes take turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Clients in each region
    #[arg(long, default_value_t = 4)]
    clients: u64,
    /// Rows of each table; there is a table for every set of regions
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    keys: u32,
    /// What is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write all measurements to a file, as comma-separated values
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Folder for the regions' buckets and nodes; it must be new or empty. Default: a new one that
    /// is removed at the end
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
}

/// A plane that real regions have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Plane {
    Eventual,
    Matrix,
    Tree,
    Timestamp,
}

impl Plane {
    fn name(self) -> &'static str {
        match self {
            Self::Eventual => "eventual",
            Self::Matrix => "matrix",
            Self::Tree => "tree",
            Self::Timestamp => "timestamp",
        }
    }
}

/// A figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// Figure 5a: 8 to 2,048 bytes
    ValueSize,
    /// Figure 5b: 99 to 50 % reads
    Reads,
    /// Figure 5c: how much data regions share
    Correlation,
    /// Figure 5d: reads of what the client's region does not hold
    RemoteReads,
    /// Figure 8a: the social network, 2 to 5 copies
    Social,
}

/// A point of a figure, before it is measured.
struct Planned {
    experiment: &'static str,
    name: String,
    draws: Draws,
    value_bytes: usize,
}

impl Experiment {
    fn points(self, latencies: &Latencies, seed: u64) -> Result<Vec<Planned>, String> {
        let synthetic = |correlation, reads, remote_reads| Draws::Synthetic {
            sharing: Sharing::new(correlation, latencies),
            reads,
            remote_reads,
        };
        let point = |experiment, name: String, draws, value_bytes| Planned {
            experiment,
            name,
            draws,
            value_bytes,
        };
        let exponential = Correlation::Exponential;
        Ok(match self {
            Self::ValueSize => [8, 128, 2048]
                .map(|size| {
                    point(
                        "value-size",
                        format!("values of {size} B"),
                        synthetic(exponential, 90, 0),
                        size,
                    )
                })
                .into(),
            Self::Reads => [99, 90, 75, 50]
                .map(|reads| {
                    point("reads", format!("{reads} % reads"), synthetic(exponential, reads, 0), 2)
                })
                .into(),
            Self::Correlation => {
                [exponential, Correlation::Proportional, Correlation::Uniform, Correlation::Full]
                    .map(|c| {
                        point(
                            "correlation",
                            format!("{} sharing", c.name()),
                            synthetic(c, 90, 0),
                            2,
                        )
                    })
                    .into()
            }
            Self::RemoteReads => [10, 20, 40]
                .map(|remote| {
                    let draws = synthetic(exponential, 90, remote);
                    point("remote-reads", format!("{remote} % of reads remote"), draws, 2)
                })
                .into(),
            Self::Social => {
                let mut points = Vec::new();
                for copies in 2..=5 {
                    let packed = placement(copies).ok_or("no such placement")?;
                    let mut random = SmallRng::seed_from_u64(seed);
                    let graph = Arc::new(Graph::new(packed, usize::MAX, &mut random)?);
                    points.push(point(
                        "social",
                        format!("social, 2 to {copies} copies"),
                        Draws::Social(graph),
                        128,
                    ));
                }
                points
            }
        })
    }
}

/// Runs the benchmark.
///
/// # Errors
/// Why the regions could not be started, or what went wrong with their clients.
pub async fn run(asked: Planes) -> Result<(), String> {
    let (names, latencies): (&'static [&'static str], Latencies) = match asked.regions {
        7 => (&NAMES, Latencies::saturn()),
        3 => (&THREE, Latencies::saturn().select(&THREE_IDS)),
        other => return Err(format!("--regions is 3 or 7, not {other}")),
    };
    if names.len() < REGIONS && asked.experiments.contains(&Experiment::Social) {
        return Err(format!(
            "the social network's users are placed in {REGIONS} regions: leave social out of --experiments, or take --regions 7"
        ));
    }
    let temporary = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let folder = empty_folder(asked.data_dir.as_deref().unwrap_or(temporary.path()))?;
    let mut world = World::new(&folder, names, latencies.clone()).await?;
    let measured = measure_all(&asked, &latencies, &mut world).await;
    for site in &mut world.sites {
        site.stop().await;
    }
    measured
}

async fn measure_all(
    asked: &Planes,
    latencies: &Latencies,
    world: &mut World,
) -> Result<(), String> {
    let mut planned = Vec::new();
    for experiment in &asked.experiments {
        planned.extend(experiment.points(latencies, asked.seed)?);
    }
    let each = asked.time.0 + WARM + Duration::from_secs(3);
    let turns = planned.len() * asked.planes.len() * asked.rounds as usize;
    println!(
        "{} points, {} planes, {} rounds of {} s: about {:.0} minutes. Starting {} regions on this machine.",
        planned.len(),
        asked.planes.len(),
        asked.rounds,
        asked.time.0.as_secs_f64(),
        (each * turns as u32).as_secs_f64() / 60.0,
        world.names.len()
    );
    world.found().await?;
    for new in 1..world.names.len() {
        world.join(new).await?;
    }
    let tables = Tables { keys: asked.keys };
    let begun = Instant::now();
    tables.make(world).await?;
    println!(
        "{} tables of {} rows, one for each set of regions, are where they belong after {:.0} s.",
        (1_u64 << world.names.len()) - 1,
        asked.keys,
        begun.elapsed().as_secs_f64()
    );
    world.slow_down();
    if asked.planes.contains(&Plane::Tree) {
        world.begin_anew("matrix").await?;
        world.plan_tree().await?;
    }
    let points_planned = planned.len();
    let mut points = Vec::new();
    for (at, planned) in planned.iter().enumerate() {
        println!("\n{} ({} of {points_planned} points)", planned.name, at + 1);
        points.push(measure_point(asked, latencies, world, &tables, planned).await?);
    }
    let names: Vec<String> = asked.planes.iter().map(|plane| plane.name().to_owned()).collect();
    report::print(&points, &names);
    if let Some(out) = &asked.out {
        std::fs::write(out, report::lines(&points, &names))
            .map_err(|error| format!("cannot write {}: {error}", out.display()))?;
        println!("\nAll measurements are in {}.", out.display());
    }
    Ok(())
}

async fn measure_point(
    asked: &Planes,
    latencies: &Latencies,
    world: &World,
    tables: &Tables,
    planned: &Planned,
) -> Result<Point, String> {
    let mut samples = vec![Vec::new(); asked.planes.len()];
    for round in 0..asked.rounds as usize {
        for turn in 0..asked.planes.len() {
            let at = (turn + round) % asked.planes.len();
            let plane = asked.planes[at];
            go_over(world, plane).await?;
            let load = Arc::new(Load {
                draws: planned.draws.clone(),
                value_bytes: planned.value_bytes,
                clients: asked.clients,
                seed: asked.seed.wrapping_add(round as u64),
                tokens: plane != Plane::Eventual,
            });
            let sample = measure(asked.time.0, latencies, world, tables, &load).await?;
            println!(
                "  round {}, {:<8} {:>7.0} operations/s, {:>6.0} updates/s, {} conflicts; {:.0} µs of processor time each",
                round + 1,
                plane.name(),
                sample.rate,
                sample.updates,
                sample.conflicts,
                sample.cpu_micros
            );
            samples[at].push(sample);
        }
    }
    Ok(Point { experiment: planned.experiment, name: planned.name.clone(), samples })
}

async fn go_over(world: &World, plane: Plane) -> Result<(), String> {
    world.begin_anew(plane.name()).await?;
    if plane == Plane::Tree {
        for site in &world.sites {
            let client = sql::connect(&site.url()).await?;
            let followed = "SELECT 1 FROM telesto_regions WHERE is_self AND tree = 'followed'";
            until(&client, followed).await?;
        }
    }
    Ok(())
}

async fn measure(
    time: Duration,
    latencies: &Latencies,
    world: &World,
    tables: &Tables,
    load: &Arc<Load>,
) -> Result<Sample, String> {
    let urls: Vec<String> = world.sites.iter().map(Site::url).collect();
    let clients = Clients::start(&urls, world.names, latencies, tables, load);
    tokio::time::sleep(WARM).await;
    let before = (clients.done.counts(), cpu_micros(world)?, world.link_bytes(), Instant::now());
    tokio::time::sleep(time).await;
    let seconds = before.3.elapsed().as_secs_f64();
    let (counts, cpu, bytes) = (clients.done.counts(), cpu_micros(world)?, world.link_bytes());
    let visible = extra_ms(world).await;
    clients.stop().await?;
    let operations = (counts.operations - before.0.operations) as f64;
    let updates = (counts.updates - before.0.updates) as f64;
    Ok(Sample {
        rate: operations / seconds,
        updates: updates / seconds,
        conflicts: counts.conflicts - before.0.conflicts,
        cpu_micros: (cpu - before.1) as f64 / operations,
        bytes: (bytes - before.2) as f64 / updates,
        extra_ms: visible?,
    })
}

/// Processor time of all nodes so far, microseconds.
fn cpu_micros(world: &World) -> Result<u64, String> {
    let mut all = 0;
    for site in &world.sites {
        let process = site.process().ok_or("a node has ended; its output.log says why")?;
        let path = format!("/proc/{process}/stat");
        let stat = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        // Behind the name, which may hold anything: state is the third field, user and system time
        // the 14th and 15th.
        let fields = stat.rsplit_once(')').map(|(_, behind)| behind).unwrap_or_default();
        let ticks: Vec<u64> = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse().ok())
            .collect();
        let [user, system] = ticks[..] else {
            return Err(format!("{path} is not as on Linux: {stat}"));
        };
        // Linux has 100 a second for all programs.
        all += (user + system) * 10_000;
    }
    Ok(all)
}

/// What an update took beyond its link's time to be visible: the mean of all pairs to which
/// something was sent, ms.
async fn extra_ms(world: &World) -> Result<Option<f64>, String> {
    let mut extras = Vec::new();
    for (to, site) in world.sites.iter().enumerate() {
        let client = sql::connect(&site.url()).await?;
        let query = format!(
            "SELECT from_region, visible_mean_ms FROM telesto_links WHERE to_region = '{}' AND visible_mean_ms IS NOT NULL",
            world.names[to]
        );
        for row in client.query(&query, &[]).await.map_err(|error| sql::full(&error))? {
            let from: &str = row.get(0);
            let Some(from) = world.names.iter().position(|name| *name == from) else { continue };
            let link = world.one_way(from, to).as_secs_f64() * 1e3;
            extras.push(row.get::<_, f64>(1) - link);
        }
    }
    let mean = extras.iter().sum::<f64>() / extras.len().max(1) as f64;
    Ok((!extras.is_empty()).then_some(mean))
}
