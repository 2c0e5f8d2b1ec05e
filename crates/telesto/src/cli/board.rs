//! `telesto board`: the latency board as a process of its own.
//!
//! # Invariants
//! - Only tables go to standard output; where it is no terminal, only the last one.
//! - `--for` counts from when every target is probed: loading is not part of it.
//!
//! # On failure
//! A target that is down is shown as down. A store that cannot be read, or that another board has
//! taken over, ends the command; one that fails later is said and written to again.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use telesto_board::figures::Window;
use telesto_board::progress::Bars;
use telesto_board::store::{Postgres, Store};
use telesto_board::{Named, Options, page, targets, text};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use telesto_common::units::Span;

/// Between two tables of a terminal.
const REFRESH: Duration = Duration::from_secs(2);
/// How long operations under way are waited for when the user ends the board.
const SHORT_DRAIN: Duration = Duration::from_secs(1);
/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// `telesto board`.
#[derive(Debug, Args)]
pub struct Board {
    /// What to probe, under which name: postgres://…, http://… (Telesto's key-value API) or
    /// s3://bucket/prefix. Passwords are better given in the environment, where several targets are
    /// separated by blanks
    #[arg(
        long = "target",
        value_name = "NAME=URL",
        env = "TELESTO_BOARD_TARGETS",
        hide_env_values = true,
        value_delimiter = ' ',
        required = true
    )]
    targets: Vec<String>,
    /// A Postgres-wire database that keeps the history; without it history ends with the command
    #[arg(long, value_name = "URL", env = "TELESTO_BOARD_STORE", hide_env_values = true)]
    store: Option<String>,
    /// Serve the board as a page and JSON
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// This board's name; boards that share a store need different ones
    #[arg(long, default_value = "board")]
    name: String,
    /// Operations a second, of each target and operation
    #[arg(long, default_value_t = 10.0)]
    rate: f64,
    /// Records of each target, loaded when they are not there
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// When an operation is given up, counted from when it was due; at most 60s
    #[arg(long, value_name = "TIME", default_value = "30s")]
    timeout: Span,
    /// Within what an operation must succeed to count as available
    #[arg(long, value_name = "TIME", default_value = "5s")]
    limit: Span,
    /// Most connections to a target for each operation
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Windows of the terminal's tables: run (since the start), 1h, 1d, 1w, 30d, 1y
    #[arg(long, value_name = "WINDOW", value_delimiter = ',', default_value = "run", value_parser = window)]
    window: Vec<Window>,
    /// End after this time
    #[arg(long = "for", value_name = "TIME")]
    length: Option<Span>,
    /// Print one table, at the end
    #[arg(long, requires = "length")]
    once: bool,
}

fn window(name: &str) -> Result<Window, String> {
    Window::of(name).ok_or_else(|| {
        format!(
            "there is no window {name:?}; there are {}",
            Window::ALL.map(Window::name).join(", ")
        )
    })
}

/// Runs the board until its time is over or somebody ends it.
///
/// # Errors
/// What it could not start with, or what ended it.
pub async fn run(asked: Board) -> Result<(), String> {
    let env = telesto_runtime::env();
    let mut named = Vec::new();
    for target in &asked.targets {
        let Some((name, url)) = target.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err("a target is written NAME=URL, e.g. telesto=postgres://…".to_owned());
        };
        let target = targets::open(&env, name, url).map_err(|error| error.to_string())?;
        named.push(Named { name: name.to_owned(), target });
    }
    let listener = match &asked.listen {
        Some(address) => Some(
            TcpListener::bind(address)
                .await
                .map_err(|error| format!("cannot listen on {address}: {error}; give another"))?,
        ),
        None => None,
    };
    let store = match &asked.store {
        Some(url) => {
            let store = Postgres::new(&env, url, &asked.name).map_err(|error| error.to_string())?;
            Some(store as Arc<dyn Store>)
        }
        None => None,
    };
    let options = Options {
        name: asked.name.clone(),
        rate: asked.rate,
        records: asked.records,
        timeout: asked.timeout.0,
        limit: asked.limit.0,
        lanes: asked.connections,
        ..Options::default()
    };
    let bars = Bars::default();
    let progress = Arc::new(move |target: &str, done, of| bars.show(target, done, of));
    let board = telesto_board::Board::start(&env, options, named, store, progress)
        .await
        .map_err(|error| error.to_string())?;
    if let Some(listener) = listener {
        if let Ok(address) = listener.local_addr() {
            eprintln!("The board is at http://{address}/");
        }
        let page = page::serve(Arc::clone(&board), listener);
        env.spawn("board page", async move {
            if let Err(error) = page.await {
                eprintln!("the page is not served any more: {error}");
            }
        });
    }
    let outcome = show(&board, &asked).await;
    let drain = match outcome {
        Ok(Ended::TimeOver) => asked.timeout.0,
        _ => SHORT_DRAIN,
    };
    let unwritten = board.stop(drain).await;
    print!("{}", table(&board, &asked)?);
    outcome?;
    match unwritten {
        Some(error) => Err(format!("the end of the history was not written: {error}")),
        None => Ok(()),
    }
}

enum Ended {
    TimeOver,
    ByUser,
}

/// Shows tables until the end.
async fn show(board: &telesto_board::Board, asked: &Board) -> Result<Ended, String> {
    let caught = |kind| signal(kind).map_err(|error| format!("signals cannot be caught: {error}"));
    let (mut terminate, mut interrupt) =
        (caught(SignalKind::terminate())?, caught(SignalKind::interrupt())?);
    let live = !asked.once && std::io::stdout().is_terminal();
    let clock = &board.env().clock;
    let failed = board.failed();
    let mut failed = std::pin::pin!(failed);
    let mut until = None;
    loop {
        let probing = board
            .report(&[])
            .map_err(|error| error.to_string())?
            .targets
            .iter()
            .all(|target| target.probing);
        // While records are loaded, bars are shown.
        if probing {
            let begun = clock.monotonic();
            let end = asked.length.map(|length| *until.get_or_insert(begun + length.0));
            if end.is_some_and(|end| end <= begun) {
                return Ok(Ended::TimeOver);
            }
            if live {
                print!("{CLEAR}{}", table(board, asked)?);
                let _ = std::io::stdout().flush();
            }
        }
        let left = until.map_or(REFRESH, |end| end.saturating_sub(clock.monotonic()));
        tokio::select! {
            () = clock.sleep(left.min(REFRESH)) => {}
            error = &mut failed => return Err(error.to_string()),
            _ = interrupt.recv() => return Ok(Ended::ByUser),
            _ = terminate.recv() => return Ok(Ended::ByUser),
        }
    }
}

fn table(board: &telesto_board::Board, asked: &Board) -> Result<String, String> {
    let report = board.report(&asked.window).map_err(|error| error.to_string())?;
    Ok(text::tables(&report, &asked.window))
}
