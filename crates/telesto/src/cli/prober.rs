//! The node's own prober: a latency board of one target, the node itself, on a thread of its own
//! (`--probe`).
//!
//! ```text
//! thread "prober" ── Postgres wire, loopback, like any client ──> this node's listener
//!      │                                                           └ history in telesto_board, of this database
//!      └ figures ──> telesto_board_figures ──> console
//! ```
//! # Invariants
//! - It comes in by the same door as clients do: a listener that takes nobody, sessions that are
//!   all taken or a log without a majority show.
//! - It stands still when the node does; then nothing is known, and that is what is shown: never
//!   that the node was up.
//! - Serving does not depend on it.
//!
//! # On failure
//! It begins again every [`AGAIN`], and says so once. Only another process with this node's
//! folder's name ends it.
//!
//! # Limits
//! What lies between clients and this machine is not seen: `telesto board` elsewhere sees it. A
//! kill loses up to 10 s of history.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto::open::Opened;
use telesto_board::figures::{Figures, Window};
use telesto_board::store::{Postgres, Store};
use telesto_board::{Board, Named, Options, Report, targets};
use telesto_common::Env;
use telesto_server::auth::Verifier;
use telesto_server::{ProberKey, Server, ServerConfig};
use telesto_sql::plan::measurements::{Probed, Probes};
use tokio::runtime::Runtime;

use super::runtimes;
use super::settings::Settings;

/// Between two attempts to begin.
const AGAIN: Duration = Duration::from_secs(5);
/// How long operations under way are waited for at the end.
const DRAIN: Duration = Duration::from_secs(1);
/// How long figures are shown before they are reckoned again.
const KEPT: Duration = Duration::from_secs(2);
/// Most operations a second.
const MAX_RATE: f64 = 100.0;
const DEFAULT_RECORDS: u64 = 10_000;
const DEFAULT_USER: &str = "telesto";
/// What is probed, as it is shown.
const TARGET: &str = "telesto";

/// A prober that is asked for.
#[derive(Debug)]
pub struct Wanted {
    user: String,
    secret: String,
    rate: f64,
    records: u64,
}

impl Wanted {
    /// What `settings` ask for; the server of `config` lets it in.
    ///
    /// # Errors
    /// A rate that is none, or nothing to probe.
    pub fn of(
        env: &Env,
        settings: &Settings,
        config: &mut ServerConfig,
    ) -> Result<Option<Self>, String> {
        let Some(rate) = settings.probe else { return Ok(None) };
        if !(rate > 0.0 && rate <= MAX_RATE) {
            return Err(format!("--probe {rate} is refused: give more than 0, at most {MAX_RATE}"));
        }
        if config.listen.is_none() {
            return Err("--probe needs the Postgres port that it probes: give --listen".to_owned());
        }
        let user = settings.probe_user.clone().unwrap_or_else(|| DEFAULT_USER.to_owned());
        let secret = format!("{:032x}", env.random_u128());
        let verifier = Verifier::of_password(env, &secret);
        config.prober = Some(ProberKey { user: user.clone(), verifier });
        let records = settings.probe_records.unwrap_or(DEFAULT_RECORDS);
        Ok(Some(Self { user, secret, rate, records }))
    }

    /// Probes `server` from now on.
    ///
    /// # Errors
    /// The system's, when it has no thread.
    pub fn start(self, server: &Server, opened: &Opened) -> Result<Prober, String> {
        let address = server.sql_address().ok_or("there is no Postgres port to probe")?;
        let url = self.url(address);
        let name = match &opened.node {
            Some(node) => format!("node {}", node.id),
            None => "node".to_owned(),
        };
        let options = Options {
            name,
            rate: self.rate,
            records: self.records,
            timeout: Duration::from_secs(30),
            lanes: 4,
            waiting: 200,
            ..Options::default()
        };
        let runtime = runtimes::probing()
            .map_err(|error| format!("there is no thread for --probe: {error}"))?;
        let env = telesto_runtime::env_of(runtime.handle(), runtime.handle(), runtime.handle());
        let shown =
            Arc::new(Shown { env: env.clone(), board: Mutex::default(), kept: Mutex::default() });
        opened.sql.measured().probed_by(Arc::clone(&shown) as Arc<dyn Probes>);
        let running = Arc::clone(&shown);
        let task = env.spawn("prober", async move { run(&running, &options, &url).await });
        Ok(Prober { shown, task, runtime: Some(runtime) })
    }

    fn url(&self, address: SocketAddr) -> String {
        // An unspecified address cannot be connected to.
        let host = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        let at = SocketAddr::new(host, address.port());
        let user: String = self.user.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let (secret, application) = (&self.secret, ProberKey::APPLICATION);
        format!(
            "postgres://{user}:{secret}@{at}/telesto?application_name={application}&sslmode=disable"
        )
    }
}

async fn run(shown: &Shown, options: &Options, url: &str) {
    let mut said = false;
    loop {
        match begin(&shown.env, options, url).await {
            Ok(board) => {
                *shown.board.lock() = Some(Arc::clone(&board));
                let error = board.failed().await;
                tracing::warn!(%error, "this node does not probe itself any more");
                return;
            }
            Err(error) => {
                if !said {
                    said = true;
                    tracing::warn!(%error, "this node cannot probe itself yet; it tries again every {AGAIN:?}");
                }
                shown.env.clock.sleep(AGAIN).await;
            }
        }
    }
}

async fn begin(env: &Env, options: &Options, url: &str) -> telesto_board::Result<Arc<Board>> {
    let target = targets::open(env, TARGET, url)?;
    let store = Postgres::new(env, url, &options.name)? as Arc<dyn Store>;
    let targets = vec![Named { name: TARGET.to_owned(), target }];
    Board::start(env, options.clone(), targets, Some(store), Arc::new(|_, _, _| {})).await
}

/// A prober at work.
#[derive(Debug)]
pub struct Prober {
    shown: Arc<Shown>,
    task: Arc<dyn telesto_common::env::Task>,
    runtime: Option<Runtime>,
}

impl Prober {
    /// Writes what it saw, and ends.
    pub async fn stop(self) {
        let board = self.shown.board.lock().clone();
        if let Some(board) = board
            && let Some(error) = board.stop(DRAIN).await
        {
            eprintln!("telesto: the end of what the prober saw was not written: {error}");
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.task.abort();
        // A runtime that is merely dropped waits for its threads, which must not be done in a task.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What SQL sees of it.
#[derive(Debug)]
struct Shown {
    env: Env,
    board: Mutex<Option<Arc<Board>>>,
    kept: Mutex<Option<(Duration, Vec<Probed>)>>,
}

impl Probes for Shown {
    fn figures(&self) -> Vec<Probed> {
        let Some(board) = self.board.lock().clone() else { return Vec::new() };
        // Who comes while they are reckoned shares them.
        let mut kept = self.kept.lock();
        let now = self.env.clock.monotonic();
        if let Some((at, figures)) = &*kept
            && now.saturating_sub(*at) < KEPT
        {
            return figures.clone();
        }
        match board.report(&Window::ALL) {
            Ok(report) => {
                let figures = rows(&report);
                *kept = Some((now, figures.clone()));
                figures
            }
            Err(error) => {
                tracing::warn!(%error, "what the prober saw cannot be shown");
                Vec::new()
            }
        }
    }
}

fn rows(report: &Report) -> Vec<Probed> {
    let mut rows = Vec::new();
    for target in &report.targets {
        for operation in &target.operations {
            let row = |figures: &Figures| Probed {
                board: report.board.clone(),
                target: target.name.clone(),
                operation: operation.operation.name(),
                ..row(figures)
            };
            rows.extend(operation.windows.iter().map(row));
        }
    }
    rows
}

fn row(figures: &Figures) -> Probed {
    let (failures, latency) = (&figures.failures, &figures.latency_ms);
    Probed {
        span: figures.window.name(),
        from_to: (figures.from, figures.to),
        operations: (figures.operations, figures.succeeded),
        failures: [
            failures.unreachable,
            failures.timed_out,
            failures.rejected,
            failures.wrong,
            failures.not_begun,
        ],
        latency_ms: [latency.p50, latency.p90, latency.p99, latency.p999, latency.max],
        availability: (figures.availability, figures.nines),
        promise: (figures.promise_ms, figures.promise_kept),
        probed_unknown_seconds: (figures.probed_seconds, figures.unknown_seconds),
        ..Probed::default()
    }
}
