//! Opening a database: bucket, local folder, engine, SQL.
//!
//! # Invariants
//! - Whether the database is encrypted, and whether the keys are right, is settled before anything
//!   is written.
//! - A remote store that holds no database yet is probed for working put-if-absent before one is
//!   made.
//!
//! # Limits
//! One LIST is spent on a remote store to see whether it is empty.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::keyring::{self, NoRing};
use telesto_bucket::table_keys::TableKeys;
use telesto_bucket::{AwsKms, Bucket as _, BucketOptions, Cause, Hedging, OpenBucket, PriceSheet};
use telesto_cipher::{KeyFile, KeyService, Keys, Kms, Scratch};
use telesto_common::{Env, Incarnation, ShardId};
use telesto_log::disk::{Disk, LocalDisk};
use telesto_log::{Identity, LogKind};
use telesto_regions::{Claim, Through};
use telesto_sql::{SqlEngine, SqlOptions};
use telesto_txn::Database as _;
use telesto_txn::{Durability, Engine, EngineOptions, MemoryLimits};

use crate::belonging;
use crate::carrying::Carrying;
use crate::cluster::{self, ClusterOptions, Joined};
use crate::error::{Error, Result};
use crate::node::Node;
use crate::regions::{self, Carrier, Waiting};
use crate::witness::Witness;

/// How to open a database. `new` suits development on one machine.
#[derive(Clone, Debug)]
pub struct Options {
    /// The bucket's URL.
    pub bucket: String,
    /// Store settings by their `object_store` names; they win over the environment.
    pub store_settings: Vec<(String, String)>,
    /// The file with the key-encryption keys of an encrypted database. A database that is made is
    /// encrypted if one is given.
    pub encryption_key_file: Option<PathBuf>,
    /// Opens the database although this node has seen more of it than there is: it was restored on
    /// purpose.
    pub accept_older_bucket: bool,
    /// A price sheet: a name or a file; `None` chooses by the URL.
    pub prices: Option<String>,
    /// Whether slow reads of the bucket are asked for a second time.
    pub hedging: Hedging,
    /// Requests may take minutes: for commands that move large objects over links of any speed, and
    /// that nobody waits for.
    pub patient: bool,
    /// Kind of log of a database that is made; `None`: quorum on a folder, bucket elsewhere.
    pub log: Option<LogKind>,
    /// When a commit is acknowledged; `None`: as the log's kind suits.
    pub durability: Option<Durability>,
    /// Memory for caches, tails and buffers, bytes.
    pub memory_bytes: u64,
    /// This node's folder; `None`: one that is removed at the end.
    pub data_dir: Option<PathBuf>,
    /// Whether a folder in use means the next free sibling instead of an error.
    pub data_dir_siblings: bool,
    /// How far back snapshots can be read; counts when the database is made.
    pub retention: Option<Duration>,
    /// How often the log is folded into the checkpoint.
    pub checkpoint_interval: Option<Duration>,
    /// How often a process whose sessions LISTEN looks for what others commit; `None`: 500 ms.
    pub notify_interval: Option<Duration>,
    /// Where clients reach this node.
    pub address: Option<std::net::SocketAddr>,
    /// How this process is a node of a cluster; `None`: it is none.
    pub cluster: Option<ClusterOptions>,
    /// Where this process listens for other regions, whose streams it carries then.
    pub region: Option<std::net::SocketAddr>,
    /// Says, while a region that has joined opens, what it waits for.
    pub waiting: Waiting,
}

impl Options {
    /// The database in `bucket`: a bucket log, 256 MiB of memory, no lasting local folder.
    #[must_use]
    pub fn new(bucket: impl Into<String>) -> Self {
        Self {
            bucket: bucket.into(),
            store_settings: Vec::new(),
            encryption_key_file: None,
            accept_older_bucket: false,
            prices: None,
            hedging: Hedging::default(),
            patient: false,
            log: Some(LogKind::Bucket),
            durability: None,
            memory_bytes: 256 << 20,
            data_dir: None,
            data_dir_siblings: false,
            retention: None,
            checkpoint_interval: None,
            notify_interval: None,
            address: None,
            cluster: None,
            region: None,
            waiting: Waiting::default(),
        }
    }
}

/// An open database.
#[derive(Debug)]
pub struct Opened {
    /// The bucket.
    pub bucket: Arc<OpenBucket>,
    /// The engine.
    pub engine: Arc<Engine>,
    /// SQL over it.
    pub sql: Arc<SqlEngine>,
    /// The local folder, if it lasts.
    pub node: Option<Node>,
    /// Its part in its region.
    pub region: RegionPart,
    /// This process among the nodes of a cluster, if it is one of them.
    pub cluster: Option<Joined>,
    /// What the node has seen of the log.
    witness: Option<Arc<Witness>>,
    /// The local folder, if it does not.
    _temporary: Option<tempfile::TempDir>,
}

impl Opened {
    /// Ends background work, leaves the bucket in order, and writes down what the node has seen of
    /// the log.
    ///
    /// # Errors
    /// Those of the engine; what was committed is safe all the same.
    pub async fn shutdown(&self) -> telesto_txn::Result<()> {
        if let Some(witness) = &self.witness {
            witness.notes_now(&self.engine).await;
        }
        self.engine.shutdown().await
    }
}

/// Opens the bucket of `options`, which holds a database, with its encryption. Writes nothing.
///
/// # Errors
/// [`Error::Bucket`].
pub async fn open_bucket(env: &Env, options: &Options) -> Result<Arc<OpenBucket>> {
    Ok(unlocked(env, options, NoRing::Refuse).await?.0)
}

/// [`open_bucket`], where the bucket may be empty: a database that will be made there is encrypted
/// if a key file is given, whose key ring is made now.
///
/// # Errors
/// [`Error::Bucket`].
pub async fn open_new_bucket(env: &Env, options: &Options) -> Result<Arc<OpenBucket>> {
    Ok(unlocked(env, options, NoRing::Make).await?.0)
}

/// The bucket with its encryption, and the keys that this process was given.
type Unlocked = (Arc<OpenBucket>, Option<Arc<dyn KeyService>>);

async fn unlocked(env: &Env, options: &Options, otherwise: NoRing) -> Result<Unlocked> {
    let file = options.encryption_key_file.as_deref();
    // Before the bucket: a key file that cannot be read makes no folder.
    let service = file.map(|file| key_service(env, file)).transpose()?;
    // A file of keys for tables alone does not ask for an encrypted database.
    let whole = service.clone().filter(|service| !service.current().is_empty());
    Ok((keyring::unlock(clear_bucket(env, options)?, whole, otherwise).await?, service))
}

/// The keys in `file`, and those that it says are in a key management service.
///
/// # Errors
/// [`Error::Bucket`].
pub fn key_service(env: &Env, file: &Path) -> Result<Arc<dyn KeyService>> {
    let read = KeyFile::read(file, Arc::clone(&env.random));
    Ok(Arc::new(read.map_err(telesto_bucket::Error::from)?.with_kms(kms(env))))
}

/// A client of the key management service. `AWS_ENDPOINT_URL`, which many set for a bucket of their
/// own, does not count: keys are not sent to whoever that is.
#[must_use]
pub fn kms(env: &Env) -> Arc<dyn Kms> {
    let endpoint = std::env::var("AWS_ENDPOINT_URL_KMS").ok().filter(|url| !url.is_empty());
    Arc::new(AwsKms::new(env.clone(), endpoint))
}

/// Opens the bucket of `options` as it is stored, without encryption; makes no request.
///
/// # Errors
/// [`Error::Bucket`].
pub fn clear_bucket(env: &Env, options: &Options) -> Result<Arc<OpenBucket>> {
    let prices = match &options.prices {
        None => None,
        Some(name) => Some(price_sheet(name)?),
    };
    let settings = options.store_settings.iter().cloned().collect();
    let hedging = options.hedging;
    let mut bucket = BucketOptions { settings, prices, hedging, ..BucketOptions::default() };
    if options.patient {
        bucket.request_timeout = Duration::from_secs(180);
        bucket.operation_timeout = Duration::from_secs(600);
    }
    Ok(telesto_bucket::open(&options.bucket, &bucket, env.clone())?)
}

/// How this process names itself in the log.
#[must_use]
pub fn identity(env: &Env, node: Option<&Node>, address: Option<std::net::SocketAddr>) -> Identity {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
    Identity {
        node: node.map_or_else(|| env.node_id(), |node| node.id),
        incarnation: node.map_or(Incarnation(1), |node| node.incarnation),
        host: host.map_or_else(|_| "localhost".to_owned(), |name| name.trim().to_owned()),
        pid: std::process::id(),
        address: address.map(|address| address.to_string()).unwrap_or_default(),
    }
}

/// The local log directory of `node`; `keys`: those of the database, if it is encrypted.
#[must_use]
pub fn log_disk(env: &Env, node: &Node, keys: Option<&Arc<Keys>>) -> Arc<dyn Disk> {
    LocalDisk::encrypted(node.log_folder(), env.clone(), keys.cloned())
}

/// `NAME` of a built-in sheet, `FILE` that has one, or `FILE#NAME` of several.
fn price_sheet(name: &str) -> Result<PriceSheet> {
    let (file, wanted) = match name.rsplit_once('#') {
        Some((file, sheet)) if std::path::Path::new(file).exists() => (file, Some(sheet)),
        _ => (name, None),
    };
    if !std::path::Path::new(file).exists() {
        return Ok(PriceSheet::builtin(name)?);
    }
    let text = std::fs::read_to_string(file).map_err(|error| telesto_bucket::Error::BadConfig {
        name: name.to_owned(),
        reason: error.to_string(),
    })?;
    Ok(match wanted {
        Some(wanted) => PriceSheet::from_toml(wanted, &text)?,
        None => PriceSheet::only_one(name, &text)?,
    })
}

/// Where goes what does not fit in memory. Rows of tables with a key are in clear in what is
/// spilled, so it is `encrypted` wherever there are any keys.
fn scratch(env: &Env, folder: &Path, encrypted: bool) -> Scratch {
    match encrypted {
        true => Scratch::encrypted(folder, &*env.random),
        false => Scratch::plain(folder),
    }
}

/// The node's folder, or one that ends with the process.
fn local_folder(env: &Env, options: &Options) -> Result<(Option<Node>, Option<tempfile::TempDir>)> {
    Ok(match &options.data_dir {
        Some(folder) if options.data_dir_siblings => (Some(Node::claim_any(env, folder)?), None),
        Some(folder) => (Some(Node::claim(env, folder)?), None),
        None => {
            let folder = tempfile::Builder::new().prefix("telesto-").tempdir();
            let folder = folder.map_err(|error| Error::DataDir {
                folder: std::env::temp_dir().display().to_string(),
                reason: error.to_string(),
            })?;
            (None, Some(folder))
        }
    })
}

/// What `node` has seen of the bucket.
fn witness_of(
    env: &Env,
    node: Option<&Node>,
    bucket: &OpenBucket,
    options: &Options,
) -> Result<Option<Arc<Witness>>> {
    // One in memory ends with the process.
    let Some(node) = node.filter(|_| !bucket.url().starts_with("memory:")) else { return Ok(None) };
    let witness = Witness::of(env, node, bucket.url(), options.accept_older_bucket)?;
    Ok(Some(Arc::new(witness)))
}

/// What `node` knows of the database before it is opened: itself, if what it knows lasts, and what
/// it has seen.
///
/// # Errors
/// That the bucket has another database, or an earlier state of this one.
async fn known_before<'a>(
    env: &Env,
    node: Option<&'a Node>,
    bucket: &Arc<OpenBucket>,
    shard: ShardId,
    options: &Options,
) -> Result<(Option<&'a Node>, Option<Arc<Witness>>)> {
    let witness = witness_of(env, node, bucket, options)?;
    // A bucket in memory ends with the process.
    let lasting = node.filter(|_| !bucket.url().starts_with("memory:"));
    let as_bucket: Arc<dyn telesto_bucket::Bucket> = Arc::clone(bucket) as _;
    if let Some(node) = lasting {
        belonging::check(env, node, &as_bucket, shard).await?;
    }
    if let Some(witness) = &witness {
        witness.check_chain(&as_bucket, shard).await?;
    }
    Ok((lasting, witness))
}

/// Opens the database of `options`; makes it when there is none.
///
/// # Errors
/// [`Error`].
pub async fn open(env: &Env, options: &Options) -> Result<Opened> {
    let (bucket, service) = unlocked(env, options, NoRing::Make).await?;
    let local = bucket.url().starts_with("file:");
    if !local && !bucket.url().starts_with("memory:") {
        let found = bucket.list_after(Cause::Open, "shards", None, 1).await?;
        if found.is_empty() {
            telesto_bucket::probe_conditional_put(&*bucket, env).await?;
        }
    }
    // A node that nobody made one of a cluster may stay alone, and its disk is not the only place
    // for what it has acknowledged.
    let on_disks = local || options.cluster.as_ref().is_some_and(|cluster| !cluster.automatic);
    let log = options.log.unwrap_or(if on_disks { LogKind::Quorum } else { LogKind::Bucket });
    let (node, temporary) = local_folder(env, options)?;
    let temp_dir = match (&node, &temporary) {
        (Some(node), _) => node.temp_folder(),
        (None, Some(folder)) => folder.path().to_owned(),
        (None, None) => std::env::temp_dir(),
    };
    let scratch = scratch(env, &temp_dir, bucket.keys().is_some() || service.is_some());
    let mut engine = EngineOptions::new(identity(env, node.as_ref(), options.address), temp_dir);
    engine.scratch = scratch.clone();
    engine.log = log;
    engine.durability = options.durability;
    // A quarter is left to SQL's statements and the server's buffers.
    // Folds and compactions come on top (docs/operating/memory.md).
    engine.memory = MemoryLimits {
        work_bytes: options.memory_bytes / 6,
        ..MemoryLimits::split(options.memory_bytes / 4 * 3)
    };
    if let Some(node) = &node {
        engine.log_disk = Some(log_disk(env, node, bucket.keys()));
    }
    engine.retention = options.retention.unwrap_or(engine.retention);
    // Without a wish of the user's it fits the retention that was asked for.
    let fitting = engine.checkpoint_interval.min(options.retention.unwrap_or(Duration::MAX));
    engine.checkpoint_interval = options.checkpoint_interval.unwrap_or(fitting);
    let as_bucket: Arc<dyn telesto_bucket::Bucket> = Arc::clone(&bucket) as _;
    let shard = engine.shard;
    let (lasting, witness) = known_before(env, node.as_ref(), &bucket, shard, options).await?;
    let cluster = match (&options.cluster, &node) {
        (None, _) => None,
        (Some(cluster), Some(node)) => Some(cluster::join(env, &bucket, node, cluster).await?),
        (Some(_), None) => {
            return Err(Error::Cluster(
                "a node of a cluster keeps copies of the log: name its folder with --data-dir"
                    .to_owned(),
            ));
        }
    };
    engine.region = regions::region_of(&as_bucket).await?;
    let (engine_node, life) = (engine.identity.node, engine.identity.incarnation);
    let region_bucket = Arc::clone(&as_bucket);
    let engine = match &cluster {
        None => Engine::open(as_bucket, env.clone(), engine).await?,
        Some(joined) => {
            engine.cluster = Some(joined.member.engine_options());
            cluster::open_engine(env, &as_bucket, engine, joined).await?
        }
    };
    if let Some(witness) = &witness {
        witness.check_entry(&engine).await?;
        witness.remembers(&engine);
    }
    if let Some(node) = lasting {
        belonging::remember(env, node, &region_bucket, shard).await?;
    }
    if cluster.is_some() && options.log == Some(LogKind::Bucket) {
        cluster::keep_in_bucket(env, &engine).await?;
    }
    let defaults = SqlOptions::default();
    let sql_options = SqlOptions {
        memory_bytes: options.memory_bytes / 4,
        reserved_bytes: options.memory_bytes,
        meter: Some(Arc::clone(bucket.meter())),
        scratch,
        bucket: Some(Arc::clone(&bucket) as _),
        table_keys: Some(TableKeys::new(Arc::clone(&bucket) as _, service, env.clone())),
        notify_interval: options.notify_interval.unwrap_or(defaults.notify_interval),
        ..defaults
    };
    let me = cluster.as_ref().map(|_| Claim { node: engine_node, life });
    let part = reach_regions(env, options, (&region_bucket, &engine), me, life).await?;
    let database: Arc<dyn telesto_txn::Database> = Arc::clone(&engine) as _;
    let sql = SqlEngine::open(database, env.clone(), sql_options).await?;
    match &part {
        RegionPart::Carries(carrier) => carrier.watch(&sql).await?,
        RegionPart::OneOfSeveral(carrying) => carrying.watch(&sql).await?,
        RegionPart::None | RegionPart::Through(_) => {}
    }
    Ok(Opened { bucket, engine, sql, node, region: part, cluster, witness, _temporary: temporary })
}

/// What a process does for its region.
#[derive(Debug)]
pub enum RegionPart {
    /// Nothing: the database is no region, or another process carries the streams that this one
    /// does not reach.
    None,
    /// It is no node of a cluster, and carries the streams.
    Carries(Carrier),
    /// It is one of the nodes that could, and carries them or stands by.
    OneOfSeveral(Carrying),
    /// It reaches other regions through the node of its cluster that carries them.
    Through(Arc<Through>),
}

impl RegionPart {
    /// It, for people.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Carries(carrier) => carrier.shown(),
            Self::OneOfSeveral(carrying) => carrying.shown(),
            Self::Through(_) => "reached through the node that carries its streams".to_owned(),
        }
    }
}

/// This process's part in its region: it carries the streams where it is told to listen, or stands
/// by in a cluster, and waits for what the others have; else, as a node of a cluster, it reaches
/// other regions through the node that does. `me` is who it is in a cluster.
async fn reach_regions(
    env: &Env,
    options: &Options,
    (bucket, engine): (&Arc<dyn telesto_bucket::Bucket>, &Arc<Engine>),
    me: Option<Claim>,
    life: Incarnation,
) -> Result<RegionPart> {
    let waiting = &options.waiting;
    let Some(listen) = options.region else {
        regions::check_complete(engine).await?;
        let through = match me {
            Some(_) => regions::through(env, bucket, engine).await?,
            None => None,
        };
        if let (Some(_), Some(me)) = (&through, me) {
            regions::may_open(env, engine, me).await?;
        }
        return Ok(through.map_or(RegionPart::None, RegionPart::Through));
    };
    if let Some(me) = me {
        let carrying = Carrying::start(env, (bucket, engine), (listen, me), waiting).await?;
        return Ok(RegionPart::OneOfSeveral(carrying));
    }
    let carrier = Carrier::start(env, bucket, engine, listen, life).await?;
    carrier.hear_of_all().await?;
    carrier.complete(waiting).await?;
    Ok(RegionPart::Carries(carrier))
}
