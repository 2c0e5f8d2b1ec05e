//! `telesto log inspect` and `telesto log switch`.
//!
//! # Limits
//! A quorum log's entries that are not archived yet are seen only with `--data-dir` of the node
//! that holds them, while that node is stopped.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use telesto::open::{identity, log_disk, open_bucket};
use telesto::{Node, Options};
use telesto_bucket::{Bucket, OpenBucket};
use telesto_common::{Env, Lsn, ShardId};
use telesto_log::{InspectOptions, LogOptions, VirtualLog, inspect as look};
use telesto_shard::{CheckpointKnows, ProcessCache, ShardOptions};

use super::settings::LogKind;

/// Bound on the whole command.
const TIMEOUT: Duration = Duration::from_secs(300);
/// What a look at how far the checkpoint reaches may keep in memory.
const PROBE_CACHE_BYTES: u64 = 4 << 20;

/// Which database's log to switch: by a live node, or by itself.
#[derive(Debug, Args)]
pub struct SwitchPlace {
    /// The live node that owns the log, or any node while the log is on the bucket
    #[arg(long, value_name = "URL", conflicts_with_all = ["bucket", "data_dir"])]
    url: Option<String>,
    /// The bucket that holds the database, when no node owns its log
    #[arg(long, value_name = "URL")]
    bucket: Option<String>,
    /// The folder of the (stopped) node whose own log files are to be used
    #[arg(long, value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// The file with the keys of an encrypted database, with --bucket
    #[arg(long, value_name = "FILE", env = "TELESTO_ENCRYPTION_KEY_FILE")]
    encryption_key_file: Option<PathBuf>,
}

/// Which database.
#[derive(Debug, Args)]
pub struct Place {
    /// The bucket that holds the database
    #[arg(long, value_name = "URL", env = "TELESTO_BUCKET")]
    bucket: String,
    /// The folder of the (stopped) node whose own log files are to be used
    #[arg(long, value_name = "FOLDER", env = "TELESTO_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// The file with the keys of an encrypted database
    #[arg(long, value_name = "FILE", env = "TELESTO_ENCRYPTION_KEY_FILE")]
    encryption_key_file: Option<PathBuf>,
}

impl Place {
    async fn open(&self, env: &Env) -> Result<(Arc<OpenBucket>, Option<Node>), String> {
        let options = Options {
            encryption_key_file: self.encryption_key_file.clone(),
            ..Options::new(&self.bucket)
        };
        let bucket = open_bucket(env, &options).await.map_err(text)?;
        let node = self.data_dir.as_ref().map(|folder| Node::claim(env, folder));
        Ok((bucket, node.transpose().map_err(text)?))
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Shows what is stored.
///
/// # Errors
/// When it cannot be read, or something is damaged.
pub async fn inspect(place: Place, from: u64, limit: usize, json: bool) -> Result<(), String> {
    let env = telesto_runtime::env();
    let (bucket, node) = place.open(&env).await?;
    let disk = node.as_ref().map(|node| log_disk(&env, node, bucket.keys()));
    let options = InspectOptions { disk, from: Lsn(from), limit };
    let by = env.deadline(TIMEOUT);
    let report = look(bucket, env, ShardId(0), options, by).await.map_err(text)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report).map_err(text)?);
    } else {
        println!("shard {} in {}", report.shard, report.bucket);
        for version in &report.chain {
            match (&version.chain, &version.damage) {
                (Some(chain), _) => {
                    let loglets: Vec<String> = chain
                        .loglets
                        .iter()
                        .map(|l| format!("{} from {} on {}", l.id, l.start, l.medium.kind()))
                        .collect();
                    let (number, trim) = (chain.version, chain.trim.lsn);
                    println!(
                        "  chain {number}: readable from {trim}; loglets {}",
                        loglets.join(", ")
                    );
                }
                (None, damage) => {
                    let damage = damage.as_deref().unwrap_or("unreadable");
                    println!("  chain {} DAMAGED: {damage}", version.object);
                }
            }
        }
        for entry in &report.entries {
            println!(
                "  {} {} ({} bytes) {}",
                entry.lsn, entry.object, entry.size_bytes, entry.hash
            );
            for record in &entry.records {
                println!("      {record}");
            }
            if let Some(damage) = &entry.damage {
                println!("      DAMAGED: {damage}");
            }
        }
        for note in &report.notes {
            println!("  note: {note}");
        }
    }
    match report.damaged {
        0 => Ok(()),
        damaged => Err(format!(
            "{damaged} objects are damaged (see above); restore them from a backup, or restore the database to a point before them"
        )),
    }
}

/// Moves the log.
///
/// # Errors
/// Why it could not be moved.
pub async fn switch(place: SwitchPlace, to: LogKind) -> Result<(), String> {
    let from_environment = |name| std::env::var_os(name).map(|value| value.display().to_string());
    match (place.url, place.bucket.or_else(|| from_environment("TELESTO_BUCKET"))) {
        (Some(url), _) => switch_live(&url, to).await,
        (None, Some(bucket)) => {
            let folder = place.data_dir.or_else(|| from_environment("TELESTO_DATA_DIR").map(Into::into));
            let encryption_key_file = place.encryption_key_file;
            switch_alone(Place { bucket, data_dir: folder, encryption_key_file }, to).await
        }
        (None, None) => Err("say which database: --url postgres://… of a live node, or --bucket URL (TELESTO_BUCKET) when no node owns its log".to_owned()),
    }
}

/// Has a live node move its log; its transactions go on meanwhile.
async fn switch_live(url: &str, to: LogKind) -> Result<(), String> {
    let client = super::shell::connect(url).await?;
    let statement = format!("SELECT telesto_log_switch('{}')", kind_of(to));
    client.simple_query(&statement).await.map_err(|error| match error.as_db_error() {
        None => super::shell::full(&error),
        Some(refused) => {
            let hint = refused.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
            format!("{} ({}){hint}", refused.message(), refused.code().code())
        }
    })?;
    println!("the log goes on on {}", kind_of(to));
    Ok(())
}

fn kind_of(kind: LogKind) -> telesto_log::LogKind {
    match kind {
        LogKind::Bucket => telesto_log::LogKind::Bucket,
        LogKind::Quorum => telesto_log::LogKind::Quorum,
    }
}

/// Moves the log of a database whose log no live process owns.
async fn switch_alone(place: Place, to: LogKind) -> Result<(), String> {
    let env = telesto_runtime::env();
    let (bucket, node) = place.open(&env).await?;
    if to == LogKind::Quorum && node.is_none() {
        return Err(
            "a quorum log lives on a node's disk: name its folder with --data-dir".to_owned()
        );
    }
    let mut options = LogOptions::new(identity(&env, node.as_ref(), None));
    options.disk = node.as_ref().map(|node| log_disk(&env, node, bucket.keys()));
    let bucket: Arc<dyn Bucket> = bucket;
    let cache = Arc::new(ProcessCache::new(PROBE_CACHE_BYTES));
    let shard = ShardOptions::new(ShardId(0), env.clone(), Arc::clone(&bucket), cache);
    options.known_committed = CheckpointKnows::new(shard);
    let by = env.deadline(TIMEOUT);
    let log = VirtualLog::open(bucket, env.clone(), ShardId(0), options).await.map_err(text)?;
    let before = log.kind();
    let switched = log.switch(kind_of(to), by).await;
    // Gives a quorum log free for the node that will own it; the switch itself is what counts.
    let closed = log.close(by).await;
    switched.map_err(text)?;
    closed.map_err(text)?;
    println!("the log was on {before}, it now goes on on {}", log.kind());
    Ok(())
}
