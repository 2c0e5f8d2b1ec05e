//! `telesto-demo bookstore --regions`: the bookstore in two regions, and an application server in
//! each that knows nothing of it.
//!
//! ```text
//! application (a process) ─ SQL ─► us ◄──── a link as slow as between them ────► eu ◄─ SQL ─ application (a process)
//!                                  └─ home of all tables; eu's writes commit here, and come back
//! ```
//! # Invariants
//! - The applications are the program that loads one region's node (`telesto-demo bench tpcw`),
//!   unchanged: same statements, same transactions.
//! - Each checks its shop at its end in its own region: what its buyers were told is there.
//!   Afterwards both regions have everything of each other, the shop adds up in both, and their
//!   replicas are compared.
//! - Processes started here are stopped at the end, whatever the end.
//!
//! # On failure
//! What a process said is in the error.
//!
//! # Limits
//! All on one machine.

use std::path::Path;
use std::process::Stdio;

use telesto_bookstore::generate::Scale;
use telesto_bookstore::{check, connect};
use telesto_common::RegionId;
use telesto_geo::Latencies;
use tokio::process::{Child, Command};

use super::Bookstore;
use crate::regions::metrics;
use crate::sites::{World, until};
use crate::sql::{self, full};
use crate::telesto::program;
use crate::tpcw::shop;

/// The regions, and the sites of [`Latencies::saturn`] that they stand for: N. Virginia and
/// Ireland.
const NAMES: [&str; 2] = ["us", "eu"];
const PLACES: [RegionId; 2] = [RegionId(0), RegionId(3)];

/// Runs it.
///
/// # Errors
/// Why the regions could not be started, or what was wrong with what they showed.
pub async fn run(asked: &Bookstore) -> Result<(), String> {
    let temporary = tempfile::tempdir().map_err(text)?;
    let folder = asked.data_dir.as_deref().unwrap_or(temporary.path());
    let folder = std::path::absolute(folder).map_err(text)?;
    if folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(format!(
            "{} is not empty; name a new folder with --data-dir",
            folder.display()
        ));
    }
    let mut world = World::new(&folder, &NAMES, Latencies::saturn().select(&PLACES)).await?;
    let shown = show(asked, &mut world, &folder).await;
    for site in &mut world.sites {
        site.stop().await;
    }
    shown
}

async fn show(asked: &Bookstore, world: &mut World, folder: &Path) -> Result<(), String> {
    world.found().await?;
    let scale = shop(&world.sites[0].url(), &asked.shop, "the bookstore").await?;
    println!(
        "The bookstore of region {}: {} customers, {} items, {} orders. Region {} joins it.",
        NAMES[0],
        scale.customers,
        scale.items,
        scale.orders(),
        NAMES[1]
    );
    world.join(1).await?;
    let urls = [world.sites[0].url(), world.sites[1].url()];
    let there = sql::connect(&urls[1]).await?;
    until(&there, &format!("SELECT 1 FROM orders HAVING count(*) = {}", scale.orders())).await?;
    until(
        &sql::connect(&urls[0]).await?,
        "SELECT 1 FROM telesto_regions WHERE NOT is_self HAVING bool_and(connected) AND NOT bool_or(filling)",
    )
    .await?;
    world.slow_down();
    println!(
        "The link takes {} ms each way. An application server in each region, for {} s:",
        world.one_way(0, 1).as_millis(),
        asked.browsers.seconds()
    );
    let mut applications = Vec::new();
    for (region, url) in urls.iter().enumerate() {
        let report = folder.join(format!("{}.json", NAMES[region]));
        applications.push((application(asked, region, url, &report)?, report));
    }
    let mut acknowledged = 0;
    for (region, (application, report)) in applications.into_iter().enumerate() {
        let ended = application.wait_with_output().await.map_err(text)?;
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        let wrong = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        if !ended.status.success() {
            return Err(format!("the application in {} failed: {wrong}", NAMES[region]));
        }
        println!("\n== in region {}\n{said}", NAMES[region]);
        acknowledged += acknowledged_in(&report)?;
    }
    println!("\n{}", forwarded(world.measurements()[1]).await?);
    settle(&urls).await?;
    for (name, url) in NAMES.iter().zip(&urls) {
        let checked = checked(url, scale).await?;
        if checked < scale.orders() + acknowledged {
            return Err(format!(
                "region {name} has {checked} orders, of {} loaded and {acknowledged} acknowledged",
                scale.orders()
            ));
        }
        println!("Region {name}: the shop adds up, {checked} orders.");
    }
    verify(world).await?;
    println!("The replicas are equal: what was bought in either region is in both, once.");
    Ok(())
}

/// The application server of a region: a process that has its node's address and nothing else.
fn application(
    asked: &Bookstore,
    region: usize,
    url: &str,
    report: &Path,
) -> Result<Child, String> {
    let mut command = Command::new(std::env::current_exe().map_err(text)?);
    command.args(["bench", "tpcw", "--target", url]);
    command.args(asked.browsers.arguments());
    command.args(["--seed", &(region + 1).to_string()]);
    command.arg("--json").arg(report);
    if let Some(rate) = asked.rate {
        command.args(["--rate", &rate.to_string()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command.spawn().map_err(|error| format!("cannot start an application: {error}"))
}

/// Orders that a finished application's buyers were told.
fn acknowledged_in(report: &Path) -> Result<u64, String> {
    let said = std::fs::read_to_string(report).map_err(text)?;
    let said: serde_json::Value = serde_json::from_str(&said).map_err(text)?;
    said["checked"]["acknowledged"].as_u64().ok_or_else(|| {
        format!("{} does not say how many orders were acknowledged", report.display())
    })
}

/// What the second region's node says of the writes that it sent to the first one.
async fn forwarded(port: u16) -> Result<String, String> {
    let told = metrics(port).await.map_err(text)?;
    let sum = |name: &str, label: &str| -> f64 {
        let lines = told.lines().filter(|line| line.starts_with(name) && line.contains(label));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    let outcome =
        |what: &str| sum("telesto_regions_forwarded_total{", &format!("outcome=\"{what}\""));
    let seconds = sum("telesto_regions_forwarded_seconds_sum", "");
    let all = sum("telesto_regions_forwarded_seconds_count", "");
    Ok(format!(
        "Region {} forwarded {} transactions to region {}, in {:.0} ms on average until they were back; {} met a conflict there.",
        NAMES[1],
        outcome("committed"),
        NAMES[0],
        seconds * 1e3 / all.max(1.0),
        outcome("conflict"),
    ))
}

/// Waits until each region has what the other one has.
async fn settle(urls: &[String; 2]) -> Result<(), String> {
    for (from, to) in [(0, 1), (1, 0)] {
        let one = sql::connect(&urls[from]).await?;
        let token = one.query_one("SHOW telesto.session_token", &[]).await;
        let token: String = token.map_err(|error| full(&error))?.get(0);
        let other = sql::connect(&urls[to]).await?;
        let moved = other.batch_execute(&format!("SET telesto.session_token = '{token}'")).await;
        moved.map_err(|error| full(&error))?;
    }
    Ok(())
}

/// The orders of a shop that adds up.
async fn checked(url: &str, scale: Scale) -> Result<u64, String> {
    let client = connect(url).await.map_err(text)?;
    Ok(check::check(&client, scale, &[]).await.map_err(text)?.orders)
}

async fn verify(world: &World) -> Result<(), String> {
    let mut command = Command::new(program()?);
    command.args(["verify", "--regions", "--bucket", world.sites[0].bucket()]);
    let output = command.stdin(Stdio::null()).output().await.map_err(text)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "the replicas differ: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
