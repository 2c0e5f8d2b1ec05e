//! `telesto-demo social`: a social network in seven regions, as real processes on this machine,
//! with the links of Saturn's Table 1 and the real placement of its users.
//!
//! ```text
//! users of a region ─ browse, post, comment, message ─► its node          walls of users by the set of regions that hold them: a table each
//!        └─ data that is not there: move with the session's token ─► the nearest node that has it ─ and back
//! ```
//! # Invariants
//! - Every way between two regions goes through a link of its own, which takes half a round trip as
//!   measured between the real sites.
//! - Whoever reads something about another post must find that post, where its wall is in the same
//!   region; and whoever has written finds it wherever it goes with its token. What is not found is
//!   counted, and the exit code says so.
//! - At the end replicas are compared, acknowledged writes are looked for, and a region must refuse
//!   what is not placed there.
//!
//! # On failure
//! Why, and where to look. Processes started here are stopped at the end, whatever the end.
//!
//! # Limits
//! All on one machine: seven nodes share its processors and its disk, which adds to a link's time.
//! Visible: from the commit timestamp to being applied, by the nodes, whose clocks are one here.
//! Friends' lists are this process's; the database holds the users' walls.

mod tables;
mod users;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use telesto_common::units::Span;
use telesto_geo::Latencies;
use telesto_social::{Graph, REGIONS, placement};
use tokio::time::Instant;

use self::tables::Network;
use self::users::Seen;
use crate::sites::{Site, World, empty_folder, pairs};
use crate::sql;

/// The regions: short names of the paper's sites, in its order.
const NAMES: [&str; REGIONS] = ["nv", "nc", "o", "i", "f", "t", "s"];
const PLACES: &str = "N. Virginia, N. California, Oregon, Ireland, Frankfurt, Tokyo, Sydney";
/// How often a table of what is seen is shown.
const SHOW: Duration = Duration::from_secs(5);

/// `telesto-demo social`.
#[derive(Debug, Args)]
pub struct Social {
    /// For how long users use it
    #[arg(long, value_name = "TIME", default_value = "60s")]
    time: Span,
    /// How many users, of 61,096
    #[arg(long, default_value_t = 61_096)]
    users: usize,
    /// Most copies of a user's data beside the master's: 2 to 5
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=5))]
    copies: u8,
    /// Clients in each region; one is one user after the other
    #[arg(long, default_value_t = 2)]
    clients: u64,
    /// A client waits so long after each operation
    #[arg(long, value_name = "TIME", default_value = "20ms")]
    think: Span,
    /// How many times as many writes as the mix has, which are 8 of 100 operations
    #[arg(long, default_value_t = 1.0)]
    writes: f64,
    /// What is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the regions' buckets and nodes; it must be new or empty. Default: a new one that
    /// is removed at the end
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
}

/// Runs the demo.
///
/// # Errors
/// Why the regions could not be started, or what was wrong with what they showed.
pub async fn run(asked: Social) -> Result<(), String> {
    if !(asked.writes.is_finite() && asked.writes >= 0.0) {
        return Err("--writes is no number of 0 or more".to_owned());
    }
    let mut random = SmallRng::seed_from_u64(asked.seed);
    let packed = placement(usize::from(asked.copies)).ok_or("--copies is 2 to 5")?;
    let graph = Graph::new(packed, asked.users, &mut random)?;
    let temporary = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let folder = empty_folder(asked.data_dir.as_deref().unwrap_or(temporary.path()))?;
    let mut world = World::new(&folder, &NAMES, Latencies::saturn()).await?;
    let shown = show(&asked, graph, &mut world).await;
    for site in &mut world.sites {
        site.stop().await;
    }
    shown
}

async fn show(asked: &Social, graph: Graph, world: &mut World) -> Result<(), String> {
    let edges: usize = graph.friends.iter().map(Vec::len).sum::<usize>() / 2;
    println!(
        "{} users with {edges} friendships, each user's data in 3 to {} of {REGIONS} regions; {:.0} % of friends' data are elsewhere.",
        graph.users(),
        asked.copies + 1,
        graph.remote_share() * 100.0
    );
    println!("Starting {REGIONS} regions on this machine ({PLACES}).");
    let begun = Instant::now();
    world.found().await?;
    for new in 1..REGIONS {
        world.join(new).await?;
    }
    println!("They know each other after {:.0} s.", begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    let urls = world.sites.iter().map(Site::url).collect();
    let network = Arc::new(Network::new(graph, urls, Latencies::saturn()));
    network.make_tables().await?;
    network.load().await?;
    network.fence(1).await?;
    println!(
        "{} tables of walls, one for each set of regions; {} users are loaded and where they belong after {:.0} s.",
        network.groups(),
        network.graph.users(),
        begun.elapsed().as_secs_f64()
    );
    world.slow_down();
    // Loading is not what is to be measured.
    world.begin_anew("matrix").await?;
    println!("From now on links take half a round trip between the real sites.");
    let seen = Arc::new(Seen::new());
    let clients = users::start(&network, &seen, asked);
    let watched = watch(asked, world, &network, &seen).await;
    seen.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.map_err(|error| error.to_string())?;
    }
    summary(&watched?, world, &network, &seen).await
}

/// What the nodes say of a pair: mean, median, 99th percentile, ms.
type Visible = Vec<Vec<Option<[f64; 3]>>>;

/// Shows what is seen until the time is over; what was seen in the end.
async fn watch(
    asked: &Social,
    world: &World,
    network: &Network,
    seen: &Seen,
) -> Result<Visible, String> {
    let mut monitors = Vec::new();
    for url in &network.urls {
        monitors.push(sql::connect(url).await?);
    }
    let begun = Instant::now();
    let mut before = seen.counts();
    let mut last = begun;
    loop {
        let left = asked.time.0.saturating_sub(begun.elapsed());
        if left.is_zero() || seen.trouble.lock().is_some() {
            return visible(&monitors).await;
        }
        tokio::time::sleep(left.min(SHOW)).await;
        let now = seen.counts();
        let seconds = last.elapsed().as_secs_f64();
        last = Instant::now();
        let rate = |of: fn(&users::Counts) -> u64| (of(&now) - of(&before)) as f64 / seconds;
        println!(
            "\n{:>4} s: {:.0} operations/s, {:.0} writes/s, {:.0} moves/s; looked for {} causes and own writes, {} not found",
            begun.elapsed().as_secs(),
            rate(|c| c.operations),
            rate(|c| c.writes),
            rate(|c| c.moves),
            now.checks,
            now.violations
        );
        before = now;
        show_grid(world, &visible(&monitors).await?);
    }
}

/// Median time to be visible and the link's own, ms; a row for each source.
fn show_grid(world: &World, visible: &Visible) {
    print!("{:>8}", "from\\to");
    NAMES.iter().for_each(|name| print!("{name:>9}"));
    println!("   (median ms until visible / the link's)");
    for (from, name) in NAMES.iter().enumerate() {
        print!("{name:>8}");
        for (to, seen) in visible[from].iter().enumerate() {
            let cell = match seen {
                _ if from == to => String::new(),
                Some([_, p50, _]) => {
                    format!("{p50:.0}/{}", world.one_way(from, to).as_millis())
                }
                None => format!("-/{}", world.one_way(from, to).as_millis()),
            };
            print!("{cell:>9}");
        }
        println!();
    }
}

async fn visible(monitors: &[tokio_postgres::Client]) -> Result<Visible, String> {
    let mut visible = vec![vec![None; REGIONS]; REGIONS];
    for (to, monitor) in monitors.iter().enumerate() {
        let query = format!(
            "SELECT from_region, visible_mean_ms, visible_p50_ms, visible_p99_ms FROM telesto_links WHERE to_region = '{}'",
            NAMES[to]
        );
        let rows = monitor.query(&query, &[]).await.map_err(|error| sql::full(&error))?;
        for row in rows {
            let from: &str = row.get(0);
            let Some(from) = NAMES.iter().position(|name| *name == from) else { continue };
            let times: [Option<f64>; 3] = [row.get(1), row.get(2), row.get(3)];
            if let [Some(mean), Some(p50), Some(p99)] = times {
                visible[from][to] = Some([mean, p50, p99]);
            }
        }
    }
    Ok(visible)
}

async fn summary(
    visible: &Visible,
    world: &World,
    network: &Network,
    seen: &Seen,
) -> Result<(), String> {
    let mut wrong = Vec::new();
    println!(
        "\nThe last minute:\n{:<8} {:>8} {:>9} {:>8} {:>8} {:>9}",
        "", "link ms", "mean ms", "p50 ms", "p99 ms", "extra ms"
    );
    let mut extras = Vec::new();
    for (from, to) in pairs(REGIONS) {
        let link = world.one_way(from, to).as_secs_f64() * 1e3;
        let way = format!("{}→{}", NAMES[from], NAMES[to]);
        let Some([mean, p50, p99]) = visible[from][to] else {
            println!("{way:<8} {link:>8.0}  nothing came");
            continue;
        };
        println!("{way:<8} {link:>8.0} {mean:>9.1} {p50:>8.1} {p99:>8.1} {:>9.1}", mean - link);
        extras.push((mean - link, way));
    }
    let worst = extras.iter().max_by(|a, b| a.0.total_cmp(&b.0));
    match worst {
        Some((extra, way)) => println!(
            "Visible after the link's own time and {:.1} ms more, the average of the pairs; {extra:.1} ms for the worst pair ({way}). The paper, on machines of its own: Saturn 16.1, Cure 23.7, GentleRain 79.2 ms.",
            extras.iter().map(|(extra, _)| extra).sum::<f64>() / extras.len() as f64,
        ),
        None => wrong.push("nothing came from one region to another".to_owned()),
    }
    let counts = seen.counts();
    println!(
        "{} operations, {} of them writes; {} times a user moved to data elsewhere and back, and waited {:.1} ms beyond the way on average to go on there; {} times what it had seen was not there in time.",
        counts.operations,
        counts.writes,
        counts.moves,
        seen.waited_micros.load(Ordering::Relaxed) as f64
            / 1000.0
            / (counts.moves.max(1) * 2) as f64,
        seen.stayed.load(Ordering::Relaxed)
    );
    println!(
        "Looked {} times for what a post is about, or for what the same user had written: {} violations of causal order.",
        counts.checks, counts.violations
    );
    if counts.violations > 0 || counts.checks == 0 {
        wrong.push(format!("{} violations in {} checks", counts.violations, counts.checks));
    }
    if let Some(error) = seen.trouble.lock().take() {
        wrong.push(error);
    }
    network.fence(2).await?;
    println!("{}", network.metadata().await?);
    let (rows, copies) = network.compare().await?;
    println!(
        "Replicas are equal: {rows} rows, {copies} with all copies; a region refuses what is not placed there."
    );
    let acknowledged = seen.acknowledged.lock().clone();
    let missing = network.missing(&acknowledged).await?;
    println!("{} posts were acknowledged, {missing} of them are missing.", acknowledged.len());
    if missing > 0 {
        wrong.push(format!("{missing} acknowledged posts are missing"));
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{}: please report this with the regions' folders (--data-dir)",
            wrong.join("; ")
        )),
    }
}
