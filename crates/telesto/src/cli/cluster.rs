//! `telesto cluster`: the nodes of a cluster, found by the bucket and asked one by one.
//!
//! # On failure
//! A node that does not answer is shown as down. Without any that answers, what the bucket says is
//! shown, and the exit code is 1.
//!
//! # Limits
//! Whoever can read the bucket (or has the join token file) can ask and drain every node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use futures::future::join_all;
use telesto::Directory;
use telesto::Options;
use telesto::open::open_bucket;
use telesto_bucket::{Bucket, OpenBucket};
use telesto_cluster::{NodeRole, Phase, Record, Registry, Status, ask_drain, ask_look, ask_status};
use telesto_common::Env;

use super::table::Table;
use telesto_common::units::Span;

/// How long a node is waited for.
const ANSWER: Duration = Duration::from_secs(3);
/// The same for one that hands the log over.
const DRAIN: Duration = Duration::from_secs(10);
/// Events of each node that are shown.
const EVENTS: usize = 10;

/// Which cluster.
#[derive(Debug, Args)]
pub struct Place {
    /// The bucket that holds the database
    #[arg(long, value_name = "URL", env = "TELESTO_BUCKET")]
    bucket: String,
    /// The file with the nodes' secret, if they were started with one
    #[arg(long, value_name = "FILE", env = "TELESTO_JOIN_TOKEN_FILE")]
    join_token_file: Option<PathBuf>,
    /// The file with the keys of an encrypted database
    #[arg(long, value_name = "FILE", env = "TELESTO_ENCRYPTION_KEY_FILE")]
    encryption_key_file: Option<PathBuf>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Who owns the log, where its copies are and how they stand, what happened of late.
    Status {
        #[command(flatten)]
        place: Place,
        /// As JSON: the answer of each node
        #[arg(long)]
        json: bool,
    },
    /// The nodes: where they are, whether they live, where clients reach them.
    Nodes {
        #[command(flatten)]
        place: Place,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Has a node hand the log over, and take nothing over any more, before it is stopped.
    ///
    /// It goes on serving its clients. A stop (SIGTERM) does the same by itself.
    Drain {
        /// The node: its id, or as much of its beginning as tells it from others
        #[arg(required_unless_present = "here", conflicts_with = "here")]
        node: Option<String>,
        /// The node that runs on this host (in this container)
        #[arg(long)]
        here: bool,
        /// Wait so long afterwards: time for load balancers to send no more clients
        #[arg(long, value_name = "TIME")]
        then_wait: Option<Span>,
        #[command(flatten)]
        place: Place,
    },
    /// Removes a node that is down for good; its folder's identity is not let in again.
    Remove {
        /// The node: its id, or as much of its beginning as tells it from others
        node: String,
        /// Also when it still answers
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Lets the log go on in the bucket when a majority of its copies is gone for good.
    ///
    /// For when all nodes are stopped and too few of their disks are left. Says what it would do,
    /// and does it with --accept-loss.
    Recover {
        /// A stopped node's folder that is left; may be given several times
        #[arg(long, value_name = "FOLDER")]
        survivor: Vec<PathBuf>,
        /// What is on lost disks only may be given up
        #[arg(long)]
        accept_loss: bool,
        #[command(flatten)]
        place: Place,
    },
}

/// What is said before anything is given up.
const WARNING: &str = "\
Nothing was changed. With --accept-loss the log ends where the archive in the bucket ends, and what the named survivors have beyond it,
and goes on in the bucket. Commits that were acknowledged and are on lost disks only are lost for good: those of the last second before the
nodes died, with default settings, more if the bucket could not be reached then. Name the folder of every node that is left with --survivor:
two of three have everything. Stop every process that uses the bucket first, also those with --cluster off, which cannot be asked.";

/// Everybody, and what they answered.
struct Asked {
    env: Env,
    bucket: Arc<OpenBucket>,
    directory: Directory,
    nodes: Vec<(Record, Result<Status, String>)>,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

async fn opened(place: &Place) -> Result<(Env, Arc<OpenBucket>), String> {
    let env = telesto_runtime::env();
    let options = Options {
        encryption_key_file: place.encryption_key_file.clone(),
        ..Options::new(&place.bucket)
    };
    let bucket = open_bucket(&env, &options).await.map_err(text)?;
    Ok((env, bucket))
}

async fn ask(place: &Place) -> Result<Asked, String> {
    let (env, bucket) = opened(place).await?;
    let as_bucket: Arc<dyn Bucket> = Arc::clone(&bucket) as _;
    let reading = Directory::read(&env, &as_bucket, place.join_token_file.as_ref());
    let directory = reading.await.map_err(text)?;
    let asking = directory.registered.nodes.values().map(|record| {
        let (client, by) = (directory.client(record), env.deadline(ANSWER));
        async move { (record.clone(), ask_status(&client, by).await.map_err(text)) }
    });
    let nodes = join_all(asking).await;
    Ok(Asked { env, bucket, directory, nodes })
}

impl Asked {
    fn find(&self, name: &str) -> Result<&(Record, Result<Status, String>), String> {
        let wanted = name.to_lowercase().replace('-', "");
        let mut found =
            self.nodes.iter().filter(|(record, _)| record.node.to_string().starts_with(&wanted));
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => Err(text(telesto_cluster::Error::UnknownNode(name.to_owned()))),
            (Some(_), Some(_)) => {
                Err(format!("{name} is the beginning of several nodes' ids; give more of it"))
            }
        }
    }

    /// The one node that answers from this host.
    fn here(&self) -> Result<&(Record, Result<Status, String>), String> {
        let host = telesto::open::identity(&self.env, None, None).host;
        let mut there =
            self.nodes.iter().filter(|(record, answer)| answer.is_ok() && record.host == host);
        match (there.next(), there.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => Err(format!("no node that answers runs on {host}; give its id")),
            (Some(_), Some(_)) => Err(format!("several nodes run on {host}; give the id of one")),
        }
    }

    fn answers(&self) -> impl Iterator<Item = &Status> {
        self.nodes.iter().filter_map(|(_, answer)| answer.as_ref().ok())
    }

    /// The answer of the one that owns the log, else of the one that knows the newest chain.
    fn best(&self) -> Option<&Status> {
        self.answers().max_by_key(|status| (status.chain, status.live.owns))
    }

    fn none_answers(&self) -> Result<(), String> {
        match self.answers().next() {
            Some(_) => Ok(()),
            None => Err("no node answers; start them, or check that their addresses can be reached from here".to_owned()),
        }
    }

    fn table(&self) -> Table {
        let columns = [
            "node", "zone", "state", "role", "address", "postgres", "http", "host", "life",
            "version", "applied",
        ];
        let columns = columns.map(str::to_owned).to_vec();
        let rows = self.nodes.iter().map(|(record, answer)| {
            let live = answer.as_ref().ok().map(|status| &status.live);
            let state = match live {
                None => "down".to_owned(),
                Some(live) if live.owns => "owner".to_owned(),
                Some(live) => match live.phase {
                    Phase::Starting => "starting".to_owned(),
                    Phase::Serving => "serving".to_owned(),
                    Phase::Leaving => "drained".to_owned(),
                },
            };
            let role = match record.role {
                NodeRole::Full => "full",
                NodeRole::Follower => "follower",
            };
            vec![
                Some(record.node.to_string()),
                Some(record.zone.clone()),
                Some(state),
                Some(role.to_owned()),
                Some(record.address.clone()),
                live.map(|live| live.sql.clone()),
                live.map(|live| live.http.clone()),
                Some(format!("{} (process {})", record.host, record.pid)),
                Some(record.incarnation.to_string()),
                Some(record.program.clone()),
                live.map(|live| live.applied.0.to_string()),
            ]
        });
        Table { columns, rows: rows.collect() }
    }
}

/// Does it.
///
/// # Errors
/// Why it could not be done, or that no node answers.
pub async fn run(command: Command) -> Result<(), String> {
    match command {
        Command::Status { place, json } => status(&ask(&place).await?, json),
        Command::Nodes { place, json } => {
            let asked = ask(&place).await?;
            if json {
                print_json(&asked)?;
            } else {
                print!("{}", asked.table().render());
            }
            asked.none_answers()
        }
        Command::Drain { node, here: _, then_wait, place } => {
            let asked = ask(&place).await?;
            let (record, _) = match &node {
                Some(node) => asked.find(node)?,
                None => asked.here()?,
            };
            let client = asked.directory.client(record);
            match ask_drain(&client, asked.env.deadline(DRAIN)).await.map_err(text)? {
                Some(next) => println!("node {next} owns the log from now on"),
                None => println!("node {} owned no log; it takes none over any more", record.node),
            }
            if let Some(time) = then_wait {
                asked.env.clock.sleep(time.0).await;
            }
            Ok(())
        }
        Command::Recover { survivor, accept_loss, place } => {
            recover(&place, &survivor, accept_loss).await
        }
        Command::Remove { node, force, place } => {
            let asked = ask(&place).await?;
            let (record, answer) = asked.find(&node)?;
            if answer.is_ok() && !force {
                return Err(format!(
                    "node {} answers: stop it first, or remove it with --force",
                    record.node
                ));
            }
            let registry = Registry::new(Arc::clone(&asked.bucket) as Arc<dyn Bucket>);
            registry.remove(&asked.env, record.node).await.map_err(text)?;
            let living = asked.nodes.iter().filter(|(_, answer)| answer.is_ok());
            let telling = living.map(|(record, _)| {
                let (client, by) = (asked.directory.client(record), asked.env.deadline(ANSWER));
                async move { ask_look(&client, by).await }
            });
            let untold = join_all(telling).await.iter().filter(|told| told.is_err()).count();
            println!(
                "node {} is removed; its copy of the log is replaced where there is a spare node",
                record.node
            );
            if untold > 0 {
                println!(
                    "{untold} nodes could not be told; they learn of it from the others, or within ten minutes"
                );
            }
            Ok(())
        }
    }
}

async fn recover(place: &Place, survivors: &[PathBuf], accept_loss: bool) -> Result<(), String> {
    let (env, bucket) = opened(place).await?;
    let registered = Registry::new(Arc::clone(&bucket) as Arc<dyn Bucket>).load().await;
    // A process with `--cluster off` is no node: it cannot be asked, and its log can be lost all
    // the same.
    if !registered.map_err(text)?.nodes.is_empty()
        && let Some(status) = ask(place).await?.answers().next()
    {
        return Err(format!(
            "node {} answers: stop every node first; if it waits for others to open the database, start those whose disks are left",
            status.record.node
        ));
    }
    if !accept_loss {
        return Err(WARNING.to_owned());
    }
    let forsaken = telesto::recover(&env, &bucket, survivors).await.map_err(text)?;
    println!(
        "the log goes on in the bucket from entry {}; {} entries were taken from survivors",
        forsaken.end, forsaken.salvaged
    );
    if let Some((first, last)) = forsaken.only_in_checkpoint {
        println!(
            "entries {first} to {last} are in the checkpoint, and no longer in the log: none of their commits is lost; `telesto backup restore --at` cannot tell the moments between them"
        );
    }
    if forsaken.known_lost_below > forsaken.end {
        println!(
            "entries {} to {} were in the log and are LOST",
            forsaken.end,
            forsaken.known_lost_below.prev()
        );
    }
    println!(
        "what was acknowledged after entry {} and is on lost disks only is LOST",
        forsaken.end.prev()
    );
    println!("now start the nodes, and `telesto log switch --url postgres://… --to quorum`");
    Ok(())
}

fn print_json(asked: &Asked) -> Result<(), String> {
    let nodes: Vec<serde_json::Value> = asked
        .nodes
        .iter()
        .map(|(record, answer)| {
            serde_json::json!({
                "record": record,
                "status": answer.as_ref().ok(),
                "error": answer.as_ref().err(),
            })
        })
        .collect();
    println!("{}", serde_json::to_string_pretty(&nodes).map_err(text)?);
    Ok(())
}

fn status(asked: &Asked, json: bool) -> Result<(), String> {
    if json {
        print_json(asked)?;
        return asked.none_answers();
    }
    let living = asked.answers().count();
    println!("{} nodes, {living} of them answer", asked.nodes.len());
    asked.none_answers()?;
    let Some(best) = asked.best() else { return Ok(()) };
    match (best.owner, best.medium.as_str()) {
        (Some(owner), _) => println!(
            "log: owned by node {owner}, loglet {} from entry {}, chain version {}",
            best.loglet, best.start, best.chain
        ),
        (None, "") => println!("log: the database is being opened"),
        (None, medium) => println!(
            "log: on the {medium}, every node appends by itself; `telesto log switch quorum --url …` moves it to the nodes' disks"
        ),
    }
    for server in &best.servers {
        println!("  copy on node {}: {}, lacks {} entries", server.node, server.state, server.lag);
    }
    let following = best.servers.iter().filter(|server| server.state == "following").count();
    if let Some(spares) = best.spares {
        println!("  {spares} spare nodes could take the place of a lost copy");
        if following < best.servers.len() && spares == 0 {
            println!(
                "  REDUNDANCY LOST: {following} of {} copies take entries; start another node",
                best.servers.len()
            );
        }
    }
    print!("{}", asked.table().render());
    for status in asked.answers() {
        let skipped = status.events.len().saturating_sub(EVENTS);
        for event in status.events.iter().skip(skipped) {
            println!(
                "{} node {}: {}",
                time(event.at_micros),
                &status.record.node.to_string()[..8],
                event.what
            );
        }
    }
    Ok(())
}

/// RFC 3339, in UTC, to the millisecond.
fn time(micros: u64) -> String {
    let at = i64::try_from(micros).ok().and_then(chrono::DateTime::from_timestamp_micros);
    at.map_or_else(String::new, |at| at.format("%Y-%m-%dT%H:%M:%S%.3fZ").to_string())
}
