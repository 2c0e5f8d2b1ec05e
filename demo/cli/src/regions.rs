//! `telesto-demo regions`: three regions on this machine as real processes, the links between them
//! as slow as between continents; two shops sell, a traveller moves with its token, one region is
//! cut off and comes back; what is seen of it, second by second.
//!
//! # Invariants
//! - Every way between two regions goes through a link of its own, which takes half a round trip as
//!   measured between the real sites.
//! - Visible: from when the client in one region is told "committed" to when a client in the other
//!   region reads it. Both are in this process, by one clock.
//! - At the end replicas are compared, every acknowledged order is looked for, and what the
//!   traveller did not find is counted; the exit code says whether all was well.
//! - Processes started here are stopped at the end, whatever the end.
//!
//! # Limits
//! All on one machine: three nodes share its processors and its disk, so what is added to a link's
//! time is more than on three machines. A region is asked every few milliseconds what is there,
//! which adds half of that.

mod legs;
mod load;
mod site;
mod visibility;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use telesto_common::RegionId;
use telesto_common::units::Span;
use telesto_geo::Latencies;
use tokio::time::Instant;

pub use self::legs::metrics;

use self::legs::Legs;
use self::visibility::{Pair, Seen};
use crate::link::Link;
use crate::sites::{self, PATIENCE, World, empty_folder};

/// Regions: names, the sites of [`Latencies::saturn`] that they stand for, and what those are
/// called.
const REGIONS: [(&str, u16, &str); 3] =
    [("us", 0, "N. Virginia"), ("eu", 3, "Ireland"), ("ap", 5, "Tokyo")];
const NAMES: [&str; REGIONS.len()] = [REGIONS[0].0, REGIONS[1].0, REGIONS[2].0];
/// The region that is cut off from both others.
const CUT_OFF: usize = 2;

/// `telesto-demo regions`.
#[derive(Debug, Args)]
pub struct Regions {
    /// For how long
    #[arg(long, value_name = "TIME", default_value = "40s")]
    time: Span,
    /// What is sold in which order, and where the traveller goes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How the third region is cut off in the middle; connections hang, or break
    #[arg(long, value_enum, default_value = "silent")]
    cut: Link,
    /// Folder for the regions' buckets and nodes; it must be new or empty. Default: a new one that
    /// is removed at the end
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
}

/// Runs the demo.
///
/// # Errors
/// Why the regions could not be started, or what was wrong with what they showed.
pub async fn run(asked: Regions) -> Result<(), String> {
    if asked.time.0 < Duration::from_secs(10) {
        return Err(
            "--time is too short for a region to be cut off and to come back; give 10s or more"
                .to_owned(),
        );
    }
    let temporary = tempfile::tempdir().map_err(|error| format!("no temporary folder: {error}"))?;
    let folder = empty_folder(asked.data_dir.as_deref().unwrap_or(temporary.path()))?;
    let places: Vec<RegionId> = REGIONS.iter().map(|(_, site, _)| RegionId(*site)).collect();
    let mut world = World::new(&folder, &NAMES, Latencies::saturn().select(&places)).await?;
    let shown = show(&asked, &mut world).await;
    for site in &mut world.sites {
        site.stop().await;
    }
    shown
}

fn name(region: usize) -> &'static str {
    REGIONS[region].0
}

async fn show(asked: &Regions, world: &mut World) -> Result<(), String> {
    println!(
        "Three regions on this machine; links take half a round trip between {}:",
        REGIONS.map(|(_, _, place)| place).join(", ")
    );
    world.found().await?;
    for new in 1..REGIONS.len() {
        world.join(new).await?;
    }
    world.slow_down();
    for (from, to) in pairs().filter(|pair| pair.0 < pair.1) {
        println!(
            "  {} ↔ {}: {} ms one way",
            name(from),
            name(to),
            world.one_way(from, to).as_millis()
        );
    }
    let urls: [String; REGIONS.len()] = std::array::from_fn(|region| world.sites[region].url());
    site::place_tables(&urls).await?;
    let seen = Arc::new(Seen::new(asked.seed));
    let tasks = load::start(&seen, &urls);
    let legs = watch(asked, world, &seen).await?;
    seen.stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.map_err(|error| error.to_string())?;
    }
    summary(world, &seen, &urls, &legs).await
}

/// Every way from one region to another.
fn pairs() -> impl Iterator<Item = Pair> {
    sites::pairs(REGIONS.len())
}

/// Cuts the third region off for a while, and prints a line a second.
///
/// What the nodes measured while all were connected.
async fn watch(asked: &Regions, world: &World, seen: &Seen) -> Result<Legs, String> {
    let ways: Vec<String> =
        pairs().map(|(from, to)| format!("{}→{}", name(from), name(to))).collect();
    println!(
        "\n{:>4} {:>14} {:>61} {:>16}",
        "", "commits/s", "visible after, ms: p50/p99 of the second", "traveller's"
    );
    print!("{:>4} {:>4} {:>4} {:>4} ", "s", name(0), name(1), name(2));
    println!(
        "{}  {:>6} {:>5}",
        ways.iter().map(|way| format!("{way:>11}")).collect::<String>(),
        "checks",
        "wrong"
    );
    let (cut, heal) = (asked.time.0.mul_f64(0.4), asked.time.0.mul_f64(0.6));
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    tick.tick().await;
    let mut catching_up: Option<(Instant, [u64; REGIONS.len()])> = None;
    let mut before = [0; REGIONS.len()];
    let mut from = Instant::now();
    let mut begun = Legs::read(world.measurements()).await?;
    let mut legs = Legs::default();
    while seen.begun.elapsed() < asked.time.0 || catching_up.is_some() {
        tick.tick().await;
        let mut what = String::new();
        let elapsed = seen.begun.elapsed();
        let cut_at = seen.cut.lock().as_ref().map(|cut| (cut.at, cut.healed));
        match cut_at {
            None if elapsed >= cut => {
                legs = Legs::read(world.measurements()).await?.since(&begun);
                world.set_link_of(CUT_OFF, asked.cut);
                seen.cut_off();
                what = format!("{} is cut off", name(CUT_OFF));
            }
            Some((_, None)) if elapsed >= heal => {
                catching_up = Some((Instant::now(), seen.committed_pulses()));
                seen.healed();
                world.set_link_of(CUT_OFF, Link::Up);
                what = format!("{} is back", name(CUT_OFF));
            }
            _ => {}
        }
        if let Some((healed, all)) = catching_up {
            if let Some(at) = seen.caught_up(&all) {
                what = format!(
                    "{} and the others have all of each other, {:.0} ms after",
                    name(CUT_OFF),
                    (at - healed).as_secs_f64() * 1e3
                );
                begun = Legs::read(world.measurements()).await?;
                catching_up = None;
            } else if healed.elapsed() > PATIENCE {
                return Err(format!(
                    "{} does not catch up after {} s; see output.log in its folder (--data-dir keeps it)",
                    name(CUT_OFF),
                    PATIENCE.as_secs()
                ));
            }
        }
        let now = seen.commits();
        print!("{:>4} ", elapsed.as_secs());
        for region in 0..REGIONS.len() {
            print!("{:>4} ", now[region] - before[region]);
        }
        before = now;
        let until = Instant::now();
        for pair in pairs() {
            let mut times = seen.visible_within(pair, from, until);
            let cell = match (
                visibility::quantile(&mut times, 0.5),
                visibility::quantile(&mut times, 0.99),
            ) {
                (Some(p50), Some(p99)) => format!("{p50:.0}/{p99:.0}"),
                _ => "-".to_owned(),
            };
            print!("{cell:>11}");
        }
        from = until;
        let (checks, wrong) = seen.checks();
        println!("  {checks:>6} {wrong:>5}  {what}");
    }
    Ok(legs.and(Legs::read(world.measurements()).await?.since(&begun)))
}

/// Where the time goes, and what the third region's absence cost the others.
fn print_legs(seen: &Seen, legs: &Legs) {
    println!(
        "\nWhere the time goes as the nodes measure it, ms on average / 99 of 100 within. send: the commit there, to its sending; past: what\ncame before it is not here; turn: others are applied; apply: read, log and sync here. A client asks besides, every 2 ms.\n{}",
        legs.table()
    );
    let waited = pairs().filter(|pair| pair.0 != CUT_OFF && pair.1 != CUT_OFF);
    let waited = waited.filter_map(|pair| Some((seen.slowest_while_cut_off(pair)?, pair)));
    if let Some((slowest, (from, to))) = waited.max_by(|a, b| a.0.total_cmp(&b.0)) {
        println!(
            "While {} was cut off, {}→{} took {slowest:.0} ms at most: what {} had sent to one of them only, the other got from there.",
            name(CUT_OFF),
            name(from),
            name(to),
            name(CUT_OFF)
        );
    }
}

async fn summary(world: &World, seen: &Seen, urls: &[String], legs: &Legs) -> Result<(), String> {
    let mut wrong = Vec::new();
    println!(
        "\n{:<8} {:>9} {:>9} {:>9} {:>9} {:>8}",
        "", "link ms", "p50 ms", "p99 ms", "extra ms", "samples"
    );
    let (mut extras, mut samples, mut worst) = (0.0, 0_usize, (0.0, String::new()));
    for (from, to) in pairs() {
        let link = world.one_way(from, to).as_secs_f64() * 1e3;
        let mut times = seen.visible_while_connected((from, to));
        let way = format!("{}→{}", name(from), name(to));
        let (Some(p50), Some(p99)) =
            (visibility::quantile(&mut times, 0.5), visibility::quantile(&mut times, 0.99))
        else {
            wrong.push(format!("nothing was seen of {way}"));
            continue;
        };
        let extra: f64 = times.iter().map(|time| time - link).sum();
        println!(
            "{way:<8} {link:>9.0} {p50:>9.1} {p99:>9.1} {:>9.1} {:>8}",
            extra / times.len() as f64,
            times.len()
        );
        extras += extra;
        samples += times.len();
        if let Some(slowest) = times.last().filter(|slowest| **slowest - link > worst.0) {
            worst = (slowest - link, way);
        }
    }
    println!(
        "Visible after the link's own time and {:.1} ms more on average, {:.1} ms at worst ({}); not counted: what was committed while {} was cut off or catching up.",
        extras / samples.max(1) as f64,
        worst.0,
        worst.1,
        name(CUT_OFF)
    );
    print_legs(seen, legs);
    if let Some(cut) = seen.cut.lock().as_ref()
        && let (Some(healed), Some(caught_up)) = (cut.healed, cut.caught_up)
    {
        println!(
            "{} was cut off for {:.1} s and went on by itself; {:.0} ms after the links were back, every region had everything.",
            name(CUT_OFF),
            (healed - cut.at).as_secs_f64(),
            (caught_up - healed).as_secs_f64() * 1e3
        );
    }
    let (checks, violations) = seen.checks();
    let moves = seen.moves.load(Ordering::Relaxed);
    let stayed = seen.stayed.load(Ordering::Relaxed);
    println!(
        "The traveller moved {moves} times with its token and looked {checks} times for what it had written: {violations} violations. {stayed} times what it had seen was not there in time, and it stayed where it was."
    );
    if violations > 0 || checks == 0 {
        wrong.push(format!("{violations} violations in {checks} checks"));
    }
    let rows = site::settled(urls).await?;
    for (table, found) in &rows {
        match found.iter().all(|rows| *rows == found[0]) {
            true => println!("{table}: equal in all regions, {} rows", found[0].len()),
            false => wrong.push(format!(
                "{table} differs between regions ({} rows)",
                found.each_ref().map(Vec::len).map(|rows| rows.to_string()).join(", ")
            )),
        }
    }
    let missing = seen.missing_orders(
        rows.iter().find(|(table, _)| *table == "orders").map_or(&[], |(_, rows)| &rows[CUT_OFF]),
    );
    println!("{} orders were acknowledged, {missing} of them are missing.", seen.order_count());
    if missing > 0 {
        wrong.push(format!("{missing} acknowledged orders are missing"));
    }
    if let Some(error) = seen.trouble.lock().as_ref() {
        wrong.push(error.clone());
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{}: please report this with the regions' folders (--data-dir)",
            wrong.join("; ")
        )),
    }
}
