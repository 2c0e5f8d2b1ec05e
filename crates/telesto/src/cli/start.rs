//! `telesto start`.
//!
//! # On failure
//! What prevents the start is one line on standard error, with what to do, and exit code 1. A stop
//! that had to cut statements off is exit code 0 too, and says so.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use telesto::{Options, open};
use telesto_common::Env;
use telesto_server::access_rules::AccessRules;
use telesto_server::audit::{AuditLog, Classes};
use telesto_server::auth::Users;
use telesto_server::hand_over::Passed;
use telesto_server::tls::{self, Files, Tls};
use telesto_server::{Auth, Limits, Mount, Server, ServerConfig};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::files_open;
use super::hand_over::{self, Successor};
use super::neighbours::cluster;
use super::prober::{Prober, Wanted};
use super::settings::{ConsoleKind, DurabilityKind, LogKind, Settings, Switch, address};
use telesto_common::units::Bytes;

const DEFAULT_FOLDER: &str = "telesto-data";
/// Memory of a node that is not told how much, at least.
const LEAST_DEFAULT_MEMORY: u64 = 512 << 20;
/// How long handing the log over may take.
const HAND_OVER: Duration = Duration::from_secs(5);
const DEFAULT_DRAIN: Duration = Duration::from_secs(10);
/// After how long a slow opening says that it is still at it, and how often.
const PROGRESS: Duration = Duration::from_secs(2);

/// Memory of a node that is not told how much: a quarter of what this machine, or the container it
/// runs in, has.
pub(super) fn default_memory() -> Bytes {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    let machine = system.total_memory();
    let total = system.cgroup_limits().map_or(machine, |limits| limits.total_memory.min(machine));
    let mebibytes = total / 4 / (1 << 20);
    Bytes((mebibytes << 20).max(LEAST_DEFAULT_MEMORY))
}

/// Runs a node until it is told to stop.
///
/// # Errors
/// Why it could not start, or not stop in order.
pub async fn run(
    log_level: &str,
    settings: &Settings,
    sessions: &Handle,
    commits: &Handle,
) -> Result<(), String> {
    let filter = EnvFilter::try_new(log_level)
        .map_err(|error| format!("--log-level {log_level:?} is no filter: {error}"))?;
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let env = telesto_runtime::env_of(&Handle::current(), sessions, commits);
    let mut server_config = server_config(&env, settings)?;
    files_open::allow(server_config.limits.max_connections);
    telesto_server::config::check_exposure(&server_config).map_err(text)?;
    let prober = Wanted::of(&env, settings, &mut server_config)?;
    let options = options(settings, &server_config)?;
    keep_to_this_user(settings)?;
    let console = console(settings)?;
    // Before the first measurement, or the layers below measure into nothing.
    let metrics = telesto_server::metrics::install().map_err(text)?;

    reload_on_hangup(&env, server_config.access.clone(), server_config.tls.clone())?;
    let passed = hand_over::received()?;
    let successor = Successor::of_this_process()?;
    // Signals count from here: a stop during a slow opening is a stop.
    let mut told = Told::listening()?;
    let opening = with_progress(&env, &options, open::open(&env, &options));
    let opened = tokio::select! {
        biased;
        () = told.stop() => return Ok(()),
        opened = opening => opened.map_err(text)?,
    };
    server_config.standing = opened.cluster.as_ref().map(|cluster| cluster.standing());
    let drain = settings.drain_timeout.map_or(DEFAULT_DRAIN, |span| span.0);
    let tls = server_config.tls.is_some();
    let scram = matches!(server_config.auth, Auth::Scram(_));
    let outside = (Some(metrics), console);
    let server =
        Server::go_on(env.clone(), Arc::clone(&opened.sql), server_config, outside, passed).await;
    let server = match server {
        Ok(server) => server,
        Err(error) => {
            // The reason for stopping is the one to tell; a second one would hide it.
            let _ = opened.shutdown().await;
            return Err(error.to_string());
        }
    };
    let prober = match prober {
        Some(wanted) => Some(wanted.start(&server, &opened)?),
        None => None,
    };
    if let Some(cluster) = &opened.cluster {
        let text = |address: Option<std::net::SocketAddr>| address.map(|at| at.to_string());
        let (sql, http) = (text(server.sql_address()), text(server.http_address()));
        cluster.member.serves_clients(sql.unwrap_or_default(), http.unwrap_or_default());
    }
    print!("{}", banner(&server, &opened, settings, tls, scram));
    super::supervisor::tell("READY=1");
    let goes_on = told.what(&env, &successor).await;
    let (said, end) = match goes_on {
        false => ("STOPPING=1", "stopping"),
        true => ("RELOADING=1", "handing clients over to the program on disk"),
    };
    super::supervisor::tell(said);
    eprintln!(
        "telesto: {end}; waiting up to {drain:?} for statements under way (again to stop now)"
    );
    let passed = tokio::select! {
        biased;
        ended = end_in_order(&env, (server, prober, &opened), drain, goes_on) => ended?,
        () = told.stop() => return Err("stopped at once; nothing acknowledged is lost".to_owned()),
    };
    if let Some(passed) = passed {
        // Whoever held the node's folder lets go of it, so that the next process finds it free.
        drop(opened);
        eprintln!("telesto: {} clients go on in the next process", passed.clients.len());
        return Err(successor.become_it(passed));
    }
    eprintln!("telesto: stopped");
    Ok(())
}

/// What this process is told by signals.
struct Told {
    terminate: Signal,
    interrupt: Signal,
    /// SIGUSR2: go on as the program on disk.
    go_on: Signal,
}

impl Told {
    fn listening() -> Result<Self, String> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(text)?,
            interrupt: signal(SignalKind::interrupt()).map_err(text)?,
            go_on: signal(SignalKind::user_defined2()).map_err(text)?,
        })
    }

    async fn stop(&mut self) {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits until the node is to end here; whether it is to go on as `successor`, which has said
    /// that it can.
    async fn what(&mut self, env: &Env, successor: &Successor) -> bool {
        loop {
            tokio::select! {
                biased;
                _ = self.terminate.recv() => return false,
                _ = self.interrupt.recv() => return false,
                _ = self.go_on.recv() => match successor.check(env).await {
                    Ok(()) => return true,
                    Err(error) => {
                        tracing::error!(error, "clients are not handed over; this process goes on");
                    }
                },
            }
        }
    }
}

/// Ends the node's parts one after the other. What is passed to the next process, if there is to be
/// one.
async fn end_in_order(
    env: &Env,
    (server, prober, opened): (Server, Option<Prober>, &open::Opened),
    drain: Duration,
    goes_on: bool,
) -> Result<Option<Passed>, String> {
    if let Some(prober) = prober {
        // While it can still write what it saw.
        prober.stop().await;
    }
    if let Some(cluster) = &opened.cluster {
        // While the sessions still run: their commits wait for the next owner, and go there.
        match cluster.member.drain(env.deadline(HAND_OVER)).await {
            Ok(Some(node)) => eprintln!("telesto: node {node} owns the log from now on"),
            Ok(None) => {}
            Err(error) => eprintln!("telesto: the log was not handed over: {error}"),
        }
        if !cluster.member.is_alone() {
            opened.engine.leave_fold_to_others();
        }
    }
    let (in_time, passed) = match goes_on {
        true => {
            let (in_time, passed) = server.hand_over(drain).await;
            (in_time, Some(passed))
        }
        false => (server.stop(drain).await, None),
    };
    if !in_time {
        eprintln!("telesto: statements still running after {drain:?} were cut off");
    }
    match opened.shutdown().await {
        // The last nodes of a cluster that stop have no majority any more.
        Err(error) if opened.cluster.is_some() => {
            eprintln!(
                "telesto: not all of the log was shipped to the bucket ({error}); the nodes' disks have it, for their next start"
            );
        }
        ended => ended.map_err(text)?,
    }
    Ok(passed)
}

/// The console, unless there is to be none.
fn console(settings: &Settings) -> Result<Option<Mount>, String> {
    let board =
        settings.console_board.as_deref().map(telesto_console::board_address).transpose()?;
    let may_write = match settings.console.unwrap_or(ConsoleKind::ReadWrite) {
        ConsoleKind::ReadWrite => true,
        ConsoleKind::ReadOnly => false,
        ConsoleKind::Off => return Ok(None),
    };
    let probes = settings.probe.is_some();
    Ok(Some(telesto_console::mount(telesto_console::Options { may_write, board, probes })))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Says what is being waited for when it takes long.
async fn with_progress<T>(env: &Env, options: &Options, opening: impl Future<Output = T>) -> T {
    let mut opening = std::pin::pin!(opening);
    let begun = env.clock.monotonic();
    loop {
        tokio::select! {
            biased;
            opened = &mut opening => return opened,
            () = env.clock.sleep(PROGRESS) => {
                let taken = env.clock.monotonic().saturating_sub(begun);
                let (bucket, taken) = (&options.bucket, taken.as_secs());
                match options.waiting.lock().clone() {
                    Some(what) => eprintln!("telesto: opening {bucket}: {taken} s so far (waiting for {what})"),
                    None => eprintln!("telesto: opening {bucket}: {taken} s so far (checkpoint and log are being read)"),
                }
            }
        }
    }
}

/// Where the Postgres wire, HTTP and their guards are set up.
fn server_config(env: &Env, settings: &Settings) -> Result<ServerConfig, String> {
    let listen = settings.listen.as_deref().unwrap_or("127.0.0.1:5433");
    let http = settings.http.as_deref().unwrap_or("127.0.0.1:8080");
    let auth = match &settings.auth_file {
        Some(path) => Auth::Scram(Arc::new(Users::read(env, path).map_err(text)?)),
        None => Auth::Trust,
    };
    let tls = tls(settings)?;
    let defaults = Limits::default();
    let or_never = |span: Option<telesto_common::units::Span>, default: Option<Duration>| match span
    {
        Some(span) if span.0.is_zero() => None,
        Some(span) => Some(span.0),
        None => default,
    };
    let max_message = settings.max_message.map(|bytes| usize::try_from(bytes.0));
    let max_message = max_message.transpose().map_err(text)?;
    // Long messages share a quarter of the memory; one that was allowed for must fit.
    let memory = settings.memory.unwrap_or_else(default_memory).0;
    let long_messages = (memory / 4).max(max_message.map_or(0, |bytes| bytes as u64));
    let limits = Limits {
        wire_memory_bytes: defaults.wire_memory_bytes.min(long_messages),
        max_connections: settings.max_connections.unwrap_or(defaults.max_connections).max(1),
        max_message_bytes: max_message.unwrap_or(defaults.max_message_bytes),
        max_computing: super::runtimes::computing(memory),
        queue_target: or_never(settings.queue_target, defaults.queue_target),
        idle: or_never(settings.idle_timeout, defaults.idle),
        idle_in_transaction: or_never(
            settings.idle_in_transaction_timeout,
            defaults.idle_in_transaction,
        ),
        ..defaults
    };
    let status = settings.status.as_deref().map(address).transpose()?.flatten();
    let (listen, http) = (address(listen)?, address(http)?);
    let (access, audit) = (access(settings)?, audit(env, settings)?);
    Ok(ServerConfig {
        listen,
        http,
        status,
        standing: None,
        auth,
        prober: None,
        access,
        tls,
        http_tls: settings.http_tls == Some(Switch::On),
        limits,
        audit,
    })
}

/// The certificate that clients are shown, and whose certificates are believed.
fn tls(settings: &Settings) -> Result<Option<Tls>, String> {
    if settings.tls_client_crl.is_some() && settings.tls_client_ca.is_none() {
        return Err("tls-client-crl needs tls-client-ca".to_owned());
    }
    match (&settings.tls_cert, &settings.tls_key) {
        (Some(certificate), Some(key)) => {
            let files = Files {
                certificate: certificate.clone(),
                key: key.clone(),
                client_ca: settings.tls_client_ca.clone(),
                client_crl: settings.tls_client_crl.clone(),
            };
            tls::load(files).map(Some).map_err(text)
        }
        (None, None) if settings.tls_client_ca.is_some() => {
            Err("tls-client-ca needs tls-cert and tls-key".to_owned())
        }
        (None, None) => Ok(None),
        _ => Err("tls-cert and tls-key belong together: give both, or none".to_owned()),
    }
}

/// Who may come to the Postgres port from where.
fn access(settings: &Settings) -> Result<Option<Arc<AccessRules>>, String> {
    let Some(path) = &settings.access_file else { return Ok(None) };
    AccessRules::read(path, settings.tls_client_ca.is_some()).map(Some).map_err(text)
}

/// Reads the rules of entrance and the files of TLS again whenever a SIGHUP comes; without any, it
/// ends the process as ever.
fn reload_on_hangup(
    env: &Env,
    rules: Option<Arc<AccessRules>>,
    tls: Option<Tls>,
) -> Result<(), String> {
    if rules.is_none() && tls.is_none() {
        return Ok(());
    }
    let mut hangup = signal(SignalKind::hangup()).map_err(text)?;
    env.spawn("access rules", async move {
        while hangup.recv().await.is_some() {
            match rules.as_ref().map(|rules| rules.reload()) {
                None => {}
                Some(Ok(())) => tracing::info!("the access file was read again"),
                Some(Err(error)) => tracing::error!(%error, "the access rules stay what they were"),
            }
            match tls.as_ref().map(Tls::reload) {
                None => {}
                Some(Ok(())) => tracing::info!("the files of TLS were read again"),
                Some(Err(error)) => tracing::error!(%error, "TLS stays what it was"),
            }
        }
    });
    Ok(())
}

/// Makes the default folder this user's alone, and tells of files with secrets that others may
/// read.
fn keep_to_this_user(settings: &Settings) -> Result<(), String> {
    if settings.bucket.is_none() || settings.data_dir.is_none() {
        telesto::own_folder(Path::new(DEFAULT_FOLDER))
            .map_err(|error| format!("the folder {DEFAULT_FOLDER} cannot be made: {error}"))?;
    }
    let audit_log = settings.audit_log.as_deref().filter(|path| *path != "-").map(Path::new);
    let files = [
        ("users file", settings.auth_file.as_deref()),
        ("TLS key", settings.tls_key.as_deref()),
        ("join token file", settings.join_token_file.as_deref()),
        ("audit log", audit_log),
    ];
    for (what, path) in files.into_iter().filter_map(|(what, path)| Some((what, path?))) {
        if let Some(mode) = telesto::reach_of_others(path) {
            tracing::warn!(
                file = %path.display(),
                mode = format!("{mode:o}"),
                "everybody on this machine may read the {what}; chmod 600 it"
            );
        }
    }
    Ok(())
}

/// Where records are kept of who did what.
fn audit(env: &Env, settings: &Settings) -> Result<Option<Arc<AuditLog>>, String> {
    let classes = settings.audit.as_deref().map_or(Ok(Classes::all()), str::parse)?;
    match settings.audit_log.as_deref() {
        Some(target) => AuditLog::open(env, target.into(), classes).map(Some).map_err(text),
        None if settings.audit.is_some() => {
            Err("audit needs audit-log: say where the records go, a file or -".to_owned())
        }
        None => Ok(None),
    }
}

fn options(settings: &Settings, server: &ServerConfig) -> Result<Options, String> {
    let folder = std::path::absolute(DEFAULT_FOLDER)
        .map_err(|error| format!("the current folder cannot be found: {error}"))?;
    let bucket = match &settings.bucket {
        Some(url) => url.clone(),
        None => file_url(&folder.join("bucket"))?,
    };
    let cluster = cluster(settings, &bucket)?;
    let memory = settings.memory.unwrap_or_else(default_memory);
    if memory.0 < 64 << 20 {
        return Err(format!("--memory {memory} is too little; give at least 64MiB"));
    }
    Ok(Options {
        prices: settings.prices.clone(),
        encryption_key_file: settings.encryption_key_file.clone(),
        accept_older_bucket: settings.accept_older_bucket.unwrap_or(false),
        log: settings.log.map(|log| match log {
            LogKind::Bucket => telesto_log::LogKind::Bucket,
            LogKind::Quorum => telesto_log::LogKind::Quorum,
        }),
        durability: settings.durability.map(|durability| match durability {
            DurabilityKind::Bucket => telesto_txn::Durability::Bucket,
            DurabilityKind::Quorum => telesto_txn::Durability::Quorum,
        }),
        memory_bytes: memory.0,
        // Several nodes started in one folder find a place each; a folder that was named is meant.
        data_dir_siblings: settings.data_dir.is_none(),
        data_dir: Some(settings.data_dir.clone().unwrap_or_else(|| folder.join("node"))),
        retention: settings.retention.map(|span| span.0),
        checkpoint_interval: settings.checkpoint_interval.map(|span| span.0),
        notify_interval: settings.notify_interval.map(|span| span.0),
        address: server.listen,
        cluster,
        region: region(settings)?,
        ..Options::new(bucket)
    })
}

/// Where this process listens for other regions.
fn region(settings: &Settings) -> Result<Option<std::net::SocketAddr>, String> {
    let Some(listen) = &settings.region else { return Ok(None) };
    address(listen)?.map(Some).ok_or_else(|| "--region needs an address, HOST:PORT".to_owned())
}

/// The URL of a folder as a bucket.
///
/// # Errors
/// When its name is not UTF-8.
pub fn file_url(path: &Path) -> Result<String, String> {
    let text = path
        .to_str()
        .ok_or_else(|| format!("the folder {} has no UTF-8 name; use --bucket", path.display()))?;
    let mut url = "file://".to_owned();
    for byte in text.bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' => url.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => url.push(char::from(byte)),
            byte => url.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok(url)
}

fn banner(
    server: &Server,
    opened: &open::Opened,
    settings: &Settings,
    tls: bool,
    scram: bool,
) -> String {
    use telesto_bucket::Bucket as _;
    let kind = opened.engine.log().kind();
    let (log, durability) = match kind {
        telesto_log::LogKind::Bucket => {
            ("bucket: every process on this bucket may write", "bucket")
        }
        telesto_log::LogKind::Quorum if opened.cluster.is_some() => {
            ("quorum: on the disks of the cluster's nodes, each of which may write", "quorum")
        }
        telesto_log::LogKind::Quorum => ("quorum: this node writes, with its own disk", "quorum"),
    };
    let durability = match settings.durability {
        Some(DurabilityKind::Bucket) => "bucket",
        Some(DurabilityKind::Quorum) => "quorum",
        None => durability,
    };
    let acknowledged = match durability {
        "bucket" => "bucket: acknowledged when in the bucket",
        _ => "quorum: acknowledged when on a majority of log servers' disks",
    };
    let shown = |address: Option<std::net::SocketAddr>| {
        address.map_or("off".to_owned(), |address| address.to_string())
    };
    let mut out = format!("Telesto {}\n", env!("CARGO_PKG_VERSION"));
    let memory = settings.memory.unwrap_or_else(default_memory);
    let guard = match (scram, tls) {
        (true, true) => " (SCRAM, TLS)",
        (true, false) => " (SCRAM)",
        (false, true) => " (this machine only, TLS)",
        (false, false) => " (this machine only, no password)",
    };
    let http_tls = settings.http_tls == Some(Switch::On) && server.http_address().is_some();
    let http_guard = if http_tls { " (TLS)" } else { "" };
    let node = opened.node.as_ref().map_or("none".to_owned(), |node| {
        format!("{} life {} in {}", node.id, node.incarnation, node.folder.display())
    });
    let cluster = opened.cluster.as_ref().map_or("none".to_owned(), |cluster| {
        let others = cluster.member.status().members.len();
        format!("{} (TLS), {others} other nodes are known", cluster.address)
    });
    let region = opened.region.shown();
    let encryption = match opened.bucket.keys() {
        Some(_) => "on: bucket, local log and spilled data",
        None => "off (telesto keys, --encryption-key-file)",
    };
    for (name, value) in [
        ("bucket", opened.bucket.url().to_owned()),
        ("log", log.to_owned()),
        ("durability", acknowledged.to_owned()),
        ("memory", memory.to_string()),
        ("encryption", encryption.to_owned()),
        ("node", node),
        ("cluster", cluster),
        ("region", region),
        ("postgres", format!("{}{guard}", shown(server.sql_address()))),
        ("http", format!("{}{http_guard}", shown(server.http_address()))),
        ("status", shown(server.status_address())),
    ] {
        out.push_str(&format!("  {name:<11} {value}\n"));
    }
    if let Some(address) = server.sql_address() {
        // An unspecified address cannot be connected to.
        let host = match address.ip() {
            ip if ip.is_unspecified() => "127.0.0.1".to_owned(),
            std::net::IpAddr::V6(ip) => format!("[{ip}]"),
            ip => ip.to_string(),
        };
        out.push_str(&format!(
            "Try:  psql 'postgres://telesto@{host}:{}/telesto'\n",
            address.port()
        ));
    }
    out.push_str("Ready.\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_url_of_any_folder_parses_back() {
        assert_eq!(file_url(Path::new("/a b/é%")), Ok("file:///a%20b/%C3%A9%25".to_owned()));
    }

    #[tokio::test]
    async fn listening_off_loopback_without_users_is_refused() {
        let settings = Settings { listen: Some("0.0.0.0:0".to_owned()), ..Settings::default() };
        let config = server_config(&telesto_runtime::env(), &settings).expect("readable");
        let refused = telesto_server::config::check_exposure(&config);
        assert!(refused.expect_err("refused").to_string().contains("hash-password"));
    }
}
