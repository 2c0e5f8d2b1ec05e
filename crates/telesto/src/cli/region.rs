//! `telesto region`: makes buckets regions of one database.
//!
//! ```text
//! us: init us ─► invite eu ─► text ─► eu: join TEXT ─► both: start --region
//! ```
//! # On failure
//! Nothing is changed, and why is said.
//!
//! # Limits
//! An invitation holds the secret that regions share: it is to be passed on as a password is. A
//! running node takes in a changed registry by itself; one that was started without --region has to
//! be started anew.

use std::sync::Arc;

use clap::{Args, Subcommand};
use telesto::Options;
use telesto::open::{open_bucket, open_new_bucket};
use telesto_bucket::Bucket;
use telesto_common::Env;
use telesto_regions::{MEMBERS, Member, Registry, Removed};

use super::table::Table;

/// Which region.
#[derive(Debug, Args)]
pub struct Place {
    /// The bucket that holds the region
    #[arg(long, value_name = "URL", env = "TELESTO_BUCKET")]
    bucket: String,
    /// The file with the keys of an encrypted database
    #[arg(long, value_name = "FILE", env = "TELESTO_ENCRYPTION_KEY_FILE")]
    encryption_key_file: Option<std::path::PathBuf>,
}

impl Place {
    /// The region in `bucket`.
    pub fn new(bucket: String, encryption_key_file: Option<std::path::PathBuf>) -> Self {
        Self { bucket, encryption_key_file }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Makes the database of a bucket the first region of several.
    ///
    /// Nothing is exported or rewritten. Definitions are made in this region from now on.
    Init {
        /// What the region is called
        name: String,
        /// Where other regions reach the node that will carry its streams; of a cluster those of
        /// all nodes that could, set apart by commas
        #[arg(long, value_name = "HOST:PORT[,…]")]
        address: String,
        #[command(flatten)]
        place: Place,
    },
    /// Reserves a place for another region, and prints the text with which it joins; the same text
    /// again until it has joined.
    Invite {
        /// What the other region will be called
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// Makes an empty bucket the region that was invited.
    Join {
        /// The text of `telesto region invite`
        invitation: String,
        /// Where other regions reach the node that will carry its streams; of a cluster those of
        /// all nodes that could, set apart by commas
        #[arg(long, value_name = "HOST:PORT[,…]")]
        address: String,
        #[command(flatten)]
        place: Place,
    },
    /// Takes in a region that has joined, by the text that `join` printed.
    ///
    /// Needed only where it cannot introduce itself over the network.
    Accept {
        /// The text of `telesto region join`
        text: String,
        #[command(flatten)]
        place: Place,
    },
    /// Changes where a region is reached: this one, or another as this one is to reach it.
    Move {
        /// The region
        name: String,
        /// Where it is reached from now on; of a cluster the addresses of all nodes that could
        /// carry its streams, set apart by commas
        #[arg(long, value_name = "HOST:PORT[,…]")]
        address: String,
        #[command(flatten)]
        place: Place,
    },
    /// The regions that a bucket knows of.
    List {
        #[command(flatten)]
        place: Place,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Shows or changes in what order the region of a bucket applies what the others send.
    ///
    /// matrix: in causal order (usual). tree: in causal order, by labels that come along a tree of
    /// serializers (`telesto geo plan --apply` makes one), and as matrix while they are late.
    /// timestamp: in one order over all regions, that of their commit times; everything waits for
    /// the region that is farthest, and for one that is cut off. eventual: each region's
    /// transactions in their order, those of different regions as they come; sessions that move may
    /// then see an effect without its cause. A running node goes over within seconds, and nothing
    /// is lost.
    Plane {
        /// matrix, tree, timestamp or eventual
        plane: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// Leaves a region out; to be run for every region that stays.
    ///
    /// Stop its node first, when all that it has committed is sent: what is not stays in its
    /// bucket. Those that stay exchange what they have of it, when this was run for each of them.
    /// It cannot come back under its number. Of one that was invited and has not joined the
    /// invitation is taken back, in the region that has invited it.
    Remove {
        /// The region
        name: String,
        /// It is gone for good, with what it had sent to nobody
        #[arg(long)]
        lost: bool,
        /// With --lost: the region that makes the definitions from now on, and writes what the lost
        /// one wrote, if the lost one made them
        #[arg(long, requires = "lost", value_name = "REGION")]
        successor: Option<String>,
        #[command(flatten)]
        place: Place,
    },
    /// What was lost with a region, and what was taken back, as the nodes have found it.
    Reports {
        #[command(flatten)]
        place: Place,
    },
}

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn options(place: &Place) -> Options {
    Options {
        encryption_key_file: place.encryption_key_file.clone(),
        ..Options::new(&place.bucket)
    }
}

pub(super) async fn bucket(env: &Env, place: &Place) -> Result<Arc<dyn Bucket>, String> {
    let bucket = open_bucket(env, &options(place)).await.map_err(text)?;
    Ok(bucket)
}

/// The same of one that may be empty. A region's database is then made by its first start, as
/// encrypted as its key file says now.
async fn new_bucket(env: &Env, place: &Place) -> Result<Arc<dyn Bucket>, String> {
    let bucket = open_new_bucket(env, &options(place)).await.map_err(text)?;
    Ok(bucket)
}

pub(super) async fn known(bucket: &Arc<dyn Bucket>) -> Result<(u64, Registry), String> {
    let found = Registry::load(bucket).await.map_err(text)?;
    found.ok_or_else(|| {
        format!("{} is no region; make it the first one with `telesto region init`, or have it join others", bucket.url())
    })
}

/// With how few numbers left it is said how many.
const FEW_NUMBERS: usize = 4;

/// Nodes of a region that could carry its streams, at most.
const MOST_ADDRESSES: usize = 8;

/// One address, or those of all nodes that could carry the streams, set apart by commas.
fn check_address(addresses: &str) -> Result<(), String> {
    let is_address = |address: &str| {
        address.trim().rsplit_once(':').is_some_and(|(host, port)| {
            port.parse::<u16>().is_ok_and(|port| port != 0) && !host.is_empty()
        })
    };
    if let Some(wrong) = addresses.split(',').find(|address| !is_address(address)) {
        return Err(format!(
            "--address {addresses}: \"{wrong}\" is not HOST:PORT; several are set apart by commas"
        ));
    }
    if addresses.split(',').count() > MOST_ADDRESSES {
        return Err(format!("--address {addresses} names more than {MOST_ADDRESSES} nodes"));
    }
    Ok(())
}

/// Shows the plane of a bucket's region, or the one that it is to go over to.
async fn change_plane(env: &Env, plane: Option<String>, place: &Place) -> Result<(), String> {
    let bucket = bucket(env, place).await?;
    let (number, mut registry) = known(&bucket).await?;
    if let Some(plane) = plane {
        registry.set_plane(&plane).map_err(text)?;
        registry.save(&bucket, number).await.map_err(text)?;
    }
    println!("{}", registry.plane());
    if registry.plane() == "tree" && registry.tree().is_none() {
        eprintln!(
            "No tree is planned in this bucket. It follows the one that another region tells of; if none does, make one with `telesto geo plan --apply --bucket {}`.",
            bucket.url()
        );
    }
    if registry.plane() == "timestamp" {
        eprintln!(
            "Every region has to be of a version that closes its time for others, and to be reached: `SELECT name, trouble FROM telesto_regions` says which one is not, and is waited for."
        );
    }
    Ok(())
}

/// Runs `telesto region`.
///
/// # Errors
/// Why it failed, and what to do.
pub async fn run(command: Command) -> Result<(), String> {
    let env = telesto_runtime::env();
    match command {
        Command::Init { name, address, place } => {
            check_address(&address)?;
            let bucket = new_bucket(&env, &place).await?;
            if let Some((_, registry)) = Registry::load(&bucket).await.map_err(text)? {
                return Err(format!("{} is region {} already", bucket.url(), own(&registry)));
            }
            let registry = Registry::init(&env, &name, env.node_id(), &address);
            registry.save(&bucket, 0).await.map_err(text)?;
            println!(
                "{} is region {name} now. Start its node with --region {address} (of several addresses each node with its own); invite others with `telesto region invite`.",
                bucket.url()
            );
        }
        Command::Invite { name, place } => {
            let bucket = bucket(&env, &place).await?;
            let (number, mut registry) = known(&bucket).await?;
            let invitation = registry.invite(&name).map_err(text)?;
            registry.save(&bucket, number).await.map_err(text)?;
            eprintln!("Have region {name} join with this text; it holds a secret:");
            println!("{invitation}");
            let left = registry.numbers_left();
            if left <= FEW_NUMBERS {
                eprintln!(
                    "Regions that can still be invited: {left}. A deployment has {MEMBERS} in its life, those that were removed and invitations that were taken back included."
                );
            }
        }
        Command::Join { invitation, address, place } => {
            check_address(&address)?;
            join(&env, &invitation, &address, &place).await?;
        }
        Command::Accept { text: accepted, place } => {
            let bucket = bucket(&env, &place).await?;
            let (number, mut registry) = known(&bucket).await?;
            registry.accept(&accepted).map_err(text)?;
            registry.save(&bucket, number).await.map_err(text)?;
            println!("Taken in.");
        }
        Command::Move { name, address, place } => {
            check_address(&address)?;
            let bucket = bucket(&env, &place).await?;
            let (number, mut registry) = known(&bucket).await?;
            registry.move_to(&name, &address).map_err(text)?;
            registry.save(&bucket, number).await.map_err(text)?;
            println!("Region {name} is reached at {address}.");
        }
        Command::List { place, json } => {
            let bucket = bucket(&env, &place).await?;
            let (_, registry) = known(&bucket).await?;
            list(&registry, json)?;
        }
        Command::Plane { plane, place } => change_plane(&env, plane, &place).await?,
        Command::Remove { name, lost, successor, place } => {
            remove(&env, &name, (lost, successor), &place).await?;
        }
        Command::Reports { place } => {
            let bucket = bucket(&env, &place).await?;
            let reports = telesto_regions::reports(&bucket).await.map_err(text)?;
            if reports.is_empty() {
                println!("Nothing was lost, as far as this region knows.");
            }
            for report in reports {
                println!("{}  {}", when(report.at_micros), report.text);
            }
        }
    }
    Ok(())
}

/// Leaves a region out; the successor is that of one that is `lost`.
async fn remove(
    env: &Env,
    name: &str,
    (lost, successor): (bool, Option<String>),
    place: &Place,
) -> Result<(), String> {
    let bucket = bucket(env, place).await?;
    let (number, mut registry) = known(&bucket).await?;
    let removed = match lost {
        true => registry.remove_lost(name, successor.as_deref()).map(|()| Removed::LeftOut),
        false => registry.remove(name),
    };
    let removed = removed.map_err(text)?;
    registry.save(&bucket, number).await.map_err(text)?;
    match removed {
        Removed::LeftOut => {}
        Removed::TakenBack => {
            println!(
                "The invitation of region {name} is taken back; its number is not given again. Should it have joined another region meanwhile, `trouble` in telesto_regions says so: run this for the buckets of the other regions then."
            );
            return Ok(());
        }
        Removed::Refused => {
            println!(
                "Region {name} has not joined, as far as is known here; it is not taken in any more. Its invitation is taken back with the same command for the bucket of the region that has made it. Run this for the buckets of the other regions too, in case it has joined one of them."
            );
            return Ok(());
        }
    }
    println!("Region {name} is left out here. Run this for the buckets of the other regions too.");
    println!(
        "When it was run for all of them, they exchange what they have of {name}; `telesto region reports` says then what that was, and what is lost. Until then what they send each other may wait: `trouble` in telesto_regions says for whom."
    );
    if let Some(successor) = successor {
        println!(
            "Then definitions are made in {successor}, if {name} made them; `SELECT name FROM telesto_regions WHERE defines` shows it."
        );
    }
    Ok(())
}

/// A moment, in UTC.
fn when(micros: u64) -> String {
    let at = i64::try_from(micros).ok().and_then(chrono::DateTime::from_timestamp_micros);
    at.map_or_else(|| micros.to_string(), |at| at.format("%Y-%m-%d %H:%M:%S").to_string())
}

fn own(registry: &Registry) -> String {
    let own = |member: &&Member| member.id == registry.me().0;
    registry.members().iter().find(own).map_or_else(String::new, |member| member.name.clone())
}

async fn join(env: &Env, invitation: &str, address: &str, place: &Place) -> Result<(), String> {
    let bucket = new_bucket(env, place).await?;
    if let Some((_, registry)) = Registry::load(&bucket).await.map_err(text)? {
        return Err(format!("{} is region {} already", bucket.url(), own(&registry)));
    }
    let found = bucket.list_after(telesto_bucket::Cause::Admin, "shards", None, 1).await;
    if !found.map_err(text)?.is_empty() {
        return Err(format!(
            "{} holds a database already; a region joins with an empty bucket: dump that database and restore it into the regions",
            bucket.url()
        ));
    }
    let (registry, accepted) = Registry::join(invitation, env.node_id(), address).map_err(text)?;
    registry.save(&bucket, 0).await.map_err(text)?;
    eprintln!(
        "{} is region {} now. Start its node with --region {address} (of several addresses each node with its own): it introduces itself to the others. Where it cannot reach them, have each `telesto region accept` this text:",
        bucket.url(),
        own(&registry)
    );
    println!("{accepted}");
    Ok(())
}

fn list(registry: &Registry, json: bool) -> Result<(), String> {
    let state = |member: &Member| match (&member.node, member.removed) {
        (_, true) => "removed",
        (None, false) => "invited",
        (Some(_), false) if member.id == registry.me().0 => "this one",
        (Some(_), false) => "known",
    };
    let address = |member: &Member| {
        member.node.as_ref().map_or_else(String::new, |(_, address)| address.clone())
    };
    if json {
        let members = registry.members().iter().map(|member| {
            serde_json::json!({
                "id": member.id,
                "name": member.name,
                "address": address(member),
                "state": state(member),
            })
        });
        let all: Vec<_> = members.collect();
        println!("{}", serde_json::to_string_pretty(&all).map_err(text)?);
        return Ok(());
    }
    let rows = registry.members().iter().map(|member| {
        let cells = [member.id.to_string(), member.name.clone(), address(member)];
        cells.into_iter().chain([state(member).to_owned()]).map(Some).collect()
    });
    let columns = ["id", "name", "address", "state"].map(str::to_owned).to_vec();
    print!("{}", Table { columns, rows: rows.collect() }.render());
    Ok(())
}
