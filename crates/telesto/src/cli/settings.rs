//! What `telesto start` is told: flags, then environment, then the TOML file, then defaults.
//!
//! # Invariants
//! - A flag wins over `TELESTO_*`, that wins over the file, that wins over the default.
//! - An unknown key in the file is an error: a misspelt setting must not be a silent default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Deserialize;

use telesto_common::units::{Bytes, Span};

/// The medium of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogKind {
    /// In the bucket: every process may write.
    Bucket,
    /// On log servers' local disks: this process sequences; faster commits, archived to the bucket.
    Quorum,
}

/// When a commit is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityKind {
    /// When it is in the bucket.
    Bucket,
    /// When a majority of the log servers has it on disk.
    Quorum,
}

/// What the console at the HTTP port may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConsoleKind {
    /// Visitors may switch to statements that write, as far as their role may.
    ReadWrite,
    /// Nothing can be written through it, whatever the role.
    ReadOnly,
    /// There is none.
    Off,
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// What a node of a cluster may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It keeps copies of the log, and may own it.
    Full,
    /// It executes statements; it never owns the log and keeps no copy of it.
    Follower,
}

macro_rules! settings {
    ($( $(#[doc = $doc:literal])+ $(#[arg($($arg:tt)*)])? $name:ident: $type:ty, $env:literal; )*) => {
        /// Settings, each perhaps given.
        #[derive(Clone, Debug, Default, Args, Deserialize)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case")]
        pub struct Settings {
            $( $(#[doc = $doc])+ #[arg(long, env = $env $(, $($arg)*)?)] pub $name: Option<$type>, )*
        }

        impl Settings {
            /// These settings, and `other`'s where these say nothing.
            #[must_use]
            pub fn or(self, other: Self) -> Self {
                Self { $( $name: self.$name.or(other.$name), )* }
            }

            /// The names as the file writes them, for messages and documentation tests.
            #[must_use]
            pub fn names() -> Vec<String> {
                vec![ $( stringify!($name).replace('_', "-"), )* ]
            }
        }
    };
}

settings! {
    /// The bucket that holds the database: file:///path, s3://bucket/prefix, gs://…, az://…, or
    /// memory://NAME (gone when the process ends). Any number of processes may open one. Default:
    /// the folder ./telesto-data/bucket
    #[arg(value_name = "URL")]
    bucket: String, "TELESTO_BUCKET";
    /// Where to serve the Postgres protocol, or none. Default: 127.0.0.1:5433
    #[arg(value_name = "HOST:PORT")]
    listen: String, "TELESTO_LISTEN";
    /// Where to serve HTTP (console, health, metrics, key-value API), or none. Default:
    /// 127.0.0.1:8080
    #[arg(value_name = "HOST:PORT")]
    http: String, "TELESTO_HTTP";
    /// Where to serve /live, /health, /ready and /metrics alone, without a password, for
    /// Prometheus, Kubernetes and load balancers; may be open to the network. Default: none
    #[arg(value_name = "HOST:PORT")]
    status: String, "TELESTO_STATUS";
    /// The console at the HTTP port. Default: read-write
    #[arg(value_enum)]
    console: ConsoleKind, "TELESTO_CONSOLE";
    /// A latency board (telesto board --listen) whose figures the console shows: http://HOST:PORT
    #[arg(value_name = "URL")]
    console_board: String, "TELESTO_CONSOLE_BOARD";
    /// Operations a second with which this node probes itself, reads and updates each: latencies
    /// and availability are kept and shown at /board and in telesto_board_figures. Costs requests
    /// like a client's; at most 100. Default: none
    #[arg(value_name = "RATE")]
    probe: f64, "TELESTO_PROBE";
    /// Records that are probed, 100 bytes each, made when they are not there. Default: 10000
    #[arg(value_name = "N", requires = "probe")]
    probe_records: u64, "TELESTO_PROBE_RECORDS";
    /// The role as which this node probes itself; it makes three tables telesto_board… in its first
    /// schema. Default: telesto
    #[arg(value_name = "ROLE", requires = "probe")]
    probe_user: String, "TELESTO_PROBE_USER";
    /// The medium of a new database's log; one that exists keeps its own (see telesto log switch).
    /// Default: quorum on a folder, bucket elsewhere
    #[arg(value_enum)]
    log: LogKind, "TELESTO_LOG";
    /// When a commit is acknowledged. Default: quorum where the log is quorum, else bucket
    #[arg(value_enum)]
    durability: DurabilityKind, "TELESTO_DURABILITY";
    /// Memory for caches and buffers. Default: a quarter of the machine's or the container's, at
    /// least 512MiB
    #[arg(value_name = "SIZE")]
    memory: Bytes, "TELESTO_MEMORY";
    /// This node's own folder: its identity, its log server's files, spilled data. Default:
    /// ./telesto-data/node
    #[arg(value_name = "FOLDER")]
    data_dir: PathBuf, "TELESTO_DATA_DIR";
    /// Where this node listens for the other nodes on the bucket, which find each other, keep the
    /// newest log for each other on their disks, and go on when one dies: auto, off (this process
    /// is no node of a cluster), or an address; port 0: any. Default: auto, which is this machine
    /// alone where the bucket is a folder, else the address by which this machine reaches the
    /// bucket, port 7433 if it is free
    #[arg(value_name = "HOST:PORT|auto|off")]
    cluster: String, "TELESTO_CLUSTER";
    /// Where other nodes reach this one, if not where it listens
    #[arg(value_name = "HOST:PORT")]
    advertise: String, "TELESTO_ADVERTISE";
    /// Where this node stands, as zone=NAME: copies of the log are put in different zones
    #[arg(value_name = "zone=NAME")]
    locality: String, "TELESTO_LOCALITY";
    /// What this node may become: full, or follower, which executes statements but never owns the
    /// log and keeps no copy of it. Default: full
    #[arg(value_enum)]
    role: Role, "TELESTO_ROLE";
    /// Copies of the newest log, where there are as many nodes; odd. Default: 3
    #[arg(value_name = "N")]
    replicas: usize, "TELESTO_REPLICAS";
    /// A file with the secret from which all nodes make their certificates. Default: one that is
    /// kept in the bucket
    #[arg(value_name = "FILE")]
    join_token_file: PathBuf, "TELESTO_JOIN_TOKEN_FILE";
    /// Where this node listens for other regions of the database, whose streams it carries. Several
    /// nodes of a cluster may be given one each: one of them carries the streams, and another one
    /// goes on when it is gone. The bucket is made a region with `telesto region` first
    #[arg(value_name = "HOST:PORT")]
    region: String, "TELESTO_REGION";
    /// The file with the keys of an encrypted database (telesto keys create); a new database is
    /// encrypted when it is given
    #[arg(value_name = "FILE")]
    encryption_key_file: PathBuf, "TELESTO_ENCRYPTION_KEY_FILE";
    /// Once, after the bucket was restored from a copy on purpose: open it although this node has
    /// seen more of it than there is
    #[arg(value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    accept_older_bucket: bool, "TELESTO_ACCEPT_OLDER_BUCKET";
    /// How far back snapshots can be read, and how long the log is kept. Default: 1h
    #[arg(value_name = "TIME")]
    retention: Span, "TELESTO_RETENTION";
    /// How often the log is folded into the checkpoint: longer is cheaper, shorter opens faster.
    /// Default: 10s
    #[arg(value_name = "TIME")]
    checkpoint_interval: Span, "TELESTO_CHECKPOINT_INTERVAL";
    /// While SQL clients LISTEN: how often this node looks for what other nodes committed. Each
    /// look is a request to the bucket, unless the log is this node's own. Default: 500ms
    #[arg(value_name = "TIME")]
    notify_interval: Span, "TELESTO_NOTIFY_INTERVAL";
    /// A file of users and their SCRAM verifiers (telesto hash-password); with it everyone must
    /// authenticate, without it only this machine may connect
    #[arg(value_name = "FILE")]
    auth_file: PathBuf, "TELESTO_AUTH_FILE";
    /// Rules of who may come to the Postgres port from where, like pg_hba.conf: lines of
    /// host|hostssl|hostnossl DATABASE USER ADDRESS/BITS scram-sha-256|cert|trust|reject; the first
    /// that fits decides, none means no. Read again on SIGHUP
    #[arg(value_name = "FILE")]
    access_file: PathBuf, "TELESTO_ACCESS_FILE";
    /// Where a record is kept of each log-in, refusal, definition and change of a role: a file
    /// (mode 600, appended to, opened anew when it was renamed), or - for standard error. What
    /// cannot be recorded is refused
    #[arg(value_name = "FILE")]
    audit_log: String, "TELESTO_AUDIT_LOG";
    /// Of what records are kept: some of connection, denied, definition, role, separated by commas.
    /// Default: all
    #[arg(value_name = "CLASSES")]
    audit: String, "TELESTO_AUDIT";
    /// Certificate chain for TLS on the Postgres port, PEM
    #[arg(value_name = "FILE", requires = "tls_key")]
    tls_cert: PathBuf, "TELESTO_TLS_CERT";
    /// Key of that certificate, PEM
    #[arg(value_name = "FILE", requires = "tls_cert")]
    tls_key: PathBuf, "TELESTO_TLS_KEY";
    /// TLS on the HTTP port, with the same certificate; it may then be open to the network, where
    /// there are users. Default: off
    #[arg(value_enum)]
    http_tls: Switch, "TELESTO_HTTP_TLS";
    /// Authorities whose clients' certificates are believed, PEM: an access rule may then ask for
    /// one (cert)
    #[arg(value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: PathBuf, "TELESTO_TLS_CLIENT_CA";
    /// Lists of certificates that these authorities have revoked, PEM: one of each authority,
    /// renewed before it ends, or its clients are refused. All files of TLS are read again on
    /// SIGHUP
    #[arg(value_name = "FILE", requires = "tls_client_ca")]
    tls_client_crl: PathBuf, "TELESTO_TLS_CLIENT_CRL";
    /// SQL clients at once. Default: 500
    #[arg(value_name = "N")]
    max_connections: usize, "TELESTO_MAX_CONNECTIONS";
    /// How long SQL clients' statements may wait for a thread before a part of new work is turned
    /// away (53400); 0 for never. Default: 250ms
    #[arg(value_name = "TIME")]
    queue_target: Span, "TELESTO_QUEUE_TARGET";
    /// Longest single message of a SQL client. Default: 64MiB
    #[arg(value_name = "SIZE")]
    max_message: Bytes, "TELESTO_MAX_MESSAGE";
    /// Ends SQL sessions that do nothing for so long outside a transaction; 0 for never. Default: 0
    #[arg(value_name = "TIME")]
    idle_timeout: Span, "TELESTO_IDLE_TIMEOUT";
    /// Ends SQL sessions that do nothing for so long inside a transaction; 0 for never. Default: 1h
    #[arg(value_name = "TIME")]
    idle_in_transaction_timeout: Span, "TELESTO_IDLE_IN_TRANSACTION_TIMEOUT";
    /// How long a stop waits for statements under way. Default: 10s
    #[arg(value_name = "TIME")]
    drain_timeout: Span, "TELESTO_DRAIN_TIMEOUT";
    /// Price sheet of the bucket: s3-standard, s3-express, gcs-standard, r2, free, or a file.
    /// Default: by the bucket's URL
    #[arg(value_name = "NAME|FILE")]
    prices: String, "TELESTO_PRICES";
}

/// Reads a TOML file of settings.
///
/// # Errors
/// What is wrong, with the file's name.
pub fn read_file(path: &Path) -> Result<Settings, String> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        format!("configuration file {} cannot be read: {error}", path.display())
    })?;
    toml::from_str(&text).map_err(|error| {
        format!(
            "configuration file {} is wrong: {error}\nit may set: {}",
            path.display(),
            Settings::names().join(", ")
        )
    })
}

/// `HOST:PORT`, or `none`. A host name is looked up; `localhost` needs no look-up.
///
/// # Errors
/// What is wrong with it.
pub fn address(text: &str) -> Result<Option<SocketAddr>, String> {
    use std::net::ToSocketAddrs as _;
    if text.eq_ignore_ascii_case("none") {
        return Ok(None);
    }
    let port_only = text.parse::<u16>().map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    if let Ok(address) = text.parse().or(port_only) {
        return Ok(Some(address));
    }
    let looked_up = text.to_socket_addrs().ok().and_then(|addresses| {
        // IPv4 first: what a URL with 127.0.0.1 or a driver's default reaches.
        let mut addresses: Vec<_> = addresses.collect();
        addresses.sort_by_key(SocketAddr::is_ipv6);
        addresses.first().copied()
    });
    match looked_up {
        Some(address) => Ok(Some(address)),
        None => {
            Err(format!("{text:?} is no address; write HOST:PORT like 127.0.0.1:5433, or none"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_with_an_unknown_or_wrong_key_is_refused_by_name() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("telesto.toml");
        let read = |text: &str| {
            std::fs::write(&path, text).expect("written");
            read_file(&path)
        };
        let good = read(
            "bucket = \"memory://\"\nlog = \"quorum\"\nmemory = \"1GiB\"\nretention = \"1h\"\nmax-connections = 7\n",
        );
        let good = good.expect("reads");
        assert_eq!((good.log, good.max_connections), (Some(LogKind::Quorum), Some(7)));
        for (text, named) in [
            ("buckit = \"x\"", "buckit"),
            ("memory = \"much\"", "512MiB"),
            ("log = \"paper\"", "paper"),
            ("=", "telesto.toml"),
        ] {
            let error = read(text).expect_err("refused");
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn settings_given_first_win() {
        let flags = Settings { bucket: Some("a".to_owned()), ..Settings::default() };
        let file = Settings {
            bucket: Some("b".to_owned()),
            max_connections: Some(3),
            ..Settings::default()
        };
        let both = flags.or(file);
        assert_eq!((both.bucket.as_deref(), both.max_connections), (Some("a"), Some(3)));
    }

    #[test]
    fn addresses_parse_or_say_why() {
        assert_eq!(address("none"), Ok(None));
        assert_eq!(address("5433"), Ok(Some(([127, 0, 0, 1], 5433).into())));
        assert_eq!(address("localhost:1"), Ok(Some(([127, 0, 0, 1], 1).into())));
        assert!(address("nonsense").is_err());
    }
}
