//! The command line of `telesto`.
//!
//! # Exit codes
//! 0: all went well. 1: the command failed, and said why and what to do. 2: the command line is
//! wrong. 3: a statement of a script failed (`telesto sql`).

mod backup;
mod bench;
mod board;
mod cluster;
mod dump;
mod encrypt;
mod files_open;
mod geo;
mod hand_over;
mod keys;
mod log;
mod moved;
mod neighbours;
mod password;
mod prober;
mod region;
mod restore;
mod runtimes;
mod settings;
mod shell;
mod start;
mod statements;
mod supervisor;
mod table;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::runtime::Handle;

use runtimes::Runtimes;

const DEFAULT_URL: &str = "postgres://telesto@127.0.0.1:5433/telesto";

const AFTER_HELP: &str = "\
First steps:
  telesto start                                   a database in ./telesto-data
  psql 'postgres://telesto@127.0.0.1:5433/telesto'  or: telesto sql

The database is the bucket: start more processes with the same --bucket and they are the same
database. Every setting of start can also be an environment variable (TELESTO_…) or a line of a
TOML file (--config).";

/// A transactional SQL database that lives in an object-storage bucket.
#[derive(Debug, Parser)]
#[command(name = "telesto", version, about, after_help = AFTER_HELP, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node: open the database in a bucket (made when there is none) and serve it.
    ///
    /// Serves the Postgres protocol and HTTP until SIGTERM or SIGINT; then lets statements under
    /// way finish and leaves the bucket in order. Any number of nodes may share a bucket.
    #[command(after_help = "Examples:
  telesto start
  telesto start --bucket s3://my-bucket/telesto --memory 2GiB
  telesto start --bucket s3://my-bucket/telesto --listen 127.0.0.1:5434 --http none --data-dir ./n2
  telesto start --config telesto.toml")]
    Start {
        /// A TOML file with the settings below, e.g. bucket = \"s3://…\"; flags and environment win
        #[arg(long, value_name = "FILE", env = "TELESTO_CONFIG")]
        config: Option<PathBuf>,
        /// What to log: error, warn, info, debug, or filters like telesto_log=debug
        #[arg(long, value_name = "FILTER", env = "TELESTO_LOG_LEVEL", default_value = "warn")]
        log_level: String,
        #[command(flatten)]
        settings: Box<settings::Settings>,
    },
    /// Run SQL: a small shell, or a script from standard input.
    ///
    /// A script ends at its first failing statement with exit code 3.
    #[command(after_help = "Examples:
  telesto sql
  telesto sql -c 'select 1'
  telesto sql < script.sql")]
    Sql {
        /// Where the node is
        #[arg(long, env = "TELESTO_URL", default_value = DEFAULT_URL)]
        url: String,
        /// Run this and leave
        #[arg(short, long, value_name = "SQL")]
        command: Option<String>,
        /// Show how long each statement takes, and its bucket requests and dollars
        #[arg(long)]
        timing: bool,
    },
    /// Load a node and measure: latencies, throughput, bucket requests and dollars.
    ///
    /// Works on a table of its own, which it drops at the end, and checks that the table shows
    /// every change that was acknowledged. `levels` measures the consistency and isolation levels
    /// instead.
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:
  telesto bench
  telesto bench --workload read --clients 32 --seconds 30 --rows 1000000
  telesto bench --workload write --json
  telesto bench levels"
    )]
    Bench {
        #[command(subcommand)]
        other: Option<BenchCommand>,
        /// Where the node is
        #[arg(long, env = "TELESTO_URL", default_value = DEFAULT_URL)]
        url: String,
        #[command(flatten)]
        load: bench::Load,
    },
    /// Probe databases and stores all the time and show how long they take: Telesto, and any peer
    /// beside it.
    ///
    /// Reads and updates one of a million small records at a fixed rate, each counted from when it
    /// was due; records that are not there are loaded first. Shows a table in the terminal, and
    /// with --listen a page.
    #[command(after_help = "Examples:
  telesto board --target telesto=postgres://telesto@127.0.0.1:5433/telesto --listen 127.0.0.1:8090
  telesto board --target kv=http://127.0.0.1:8080 --records 10000 --for 60s --once
  telesto board --target telesto=postgres://… --target s3=s3://my-bucket/board \\
    --store postgres://telesto@127.0.0.1:5433/telesto")]
    Board(Box<board::Board>),
    #[command(hide = true, disable_help_flag = true)]
    Demo(moved::Moved),
    /// Write a database as plain SQL that PostgreSQL 15 and Telesto load.
    ///
    /// One consistent snapshot of definitions and rows, while others go on writing. What cannot be
    /// written is refused by name; nothing is left out silently.
    #[command(after_help = "Examples:
  telesto dump --file shop.sql
  telesto dump --url postgres://telesto@127.0.0.1:5433/telesto --schema-only
  psql -v ON_ERROR_STOP=1 -f shop.sql postgres://postgres@127.0.0.1/shop")]
    Dump(dump::Dump),
    /// Load a plain SQL dump, of telesto dump or of PostgreSQL's pg_dump.
    ///
    /// Stops at the first error, naming its line.
    #[command(after_help = "Examples:
  telesto restore shop.sql
  pg_dump postgres://postgres@127.0.0.1/shop | telesto restore -")]
    Restore(restore::Restore),
    /// Copy a database's bucket while it is in use, and make a database from copies, as of any
    /// moment they cover.
    ///
    /// A dump is SQL, and slow to load; a backup is the stored form, and incremental.
    #[command(after_help = "Examples:
  telesto backup create --bucket s3://my-bucket/telesto --backups s3://other-bucket/backups --every 15m
  telesto backup list --backups s3://other-bucket/backups
  telesto backup restore --backups s3://other-bucket/backups --at 2026-11-28T09:30:00Z --into s3://my-bucket/restored")]
    Backup {
        #[command(subcommand)]
        command: backup::Command,
    },
    #[command(hide = true, disable_help_flag = true)]
    Import(moved::Moved),
    /// Look at the nodes of a cluster, have one hand over what it owns, or remove one.
    ///
    /// Finds the nodes by the bucket, and asks them.
    #[command(after_help = "Examples:
  telesto cluster status --bucket s3://my-bucket/telesto
  telesto cluster nodes --bucket s3://my-bucket/telesto --json
  telesto cluster drain 6f1c… --bucket s3://my-bucket/telesto")]
    Cluster {
        #[command(subcommand)]
        command: cluster::Command,
    },
    /// Compare the replicas of regions.
    #[command(after_help = "Examples:
  telesto verify --regions --bucket s3://my-bucket/us")]
    Verify(verify::Verify),
    /// Make buckets regions of one database.
    ///
    /// Each region has a bucket of its own, serves by itself, and sends the others what is placed
    /// there.
    #[command(after_help = "Examples:
  telesto region init us --bucket s3://my-us-bucket/telesto --address us.example.com:7400
  telesto region invite eu --bucket s3://my-us-bucket/telesto
  telesto region join TEXT --bucket s3://my-eu-bucket/telesto --address eu.example.com:7400
  telesto start --bucket s3://my-eu-bucket/telesto --region 0.0.0.0:7400")]
    Region {
        #[command(subcommand)]
        command: region::Command,
    },
    /// Plan how labels would travel between regions, from what the regions have measured.
    Geo {
        #[command(subcommand)]
        command: geo::Command,
    },
    /// Make keys for encryption, look at a database's data keys, or go on with a new one.
    Keys {
        #[command(subcommand)]
        command: keys::Command,
    },
    /// Look at a database's log, or move it to the other medium.
    Log {
        #[command(subcommand)]
        command: LogCommand,
    },
    /// Make a line for the users file (start --auth-file) from a password.
    ///
    /// Reads the password from standard input; prints its SCRAM-SHA-256 verifier. The password
    /// itself is stored nowhere.
    #[command(after_help = "Example:
  telesto hash-password ada >> users.txt")]
    HashPassword {
        /// The user
        user: String,
    },
    /// Print the version.
    Version,
    /// Print in what form this program takes clients over from the process it replaces (SIGUSR2).
    #[command(hide = true)]
    HandOver,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// The consistency and isolation levels as a menu: guarantee, anomalies, latency and dollars of
    /// each, measured here.
    #[command(after_help = "Examples:
  telesto bench levels
  telesto bench levels --prices s3-standard --seconds 10 --clients 16")]
    Levels(bench::levels::Levels),
    #[command(hide = true, disable_help_flag = true)]
    Tpcw(moved::Moved),
    #[command(hide = true, disable_help_flag = true)]
    Compare(moved::Moved),
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// Show what is stored of the log: its chain and its entries, with every damage found.
    ///
    /// Reads only, and may run beside live nodes. Exit code 1 when something is damaged.
    Inspect {
        #[command(flatten)]
        place: log::Place,
        /// First position shown
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// Most entries shown
        #[arg(long, default_value_t = 100)]
        limit: usize,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Go on with the log on the other medium: bucket (every process writes) or quorum (one process
    /// writes, on its own disk).
    ///
    /// With --url a live node does it while its clients go on writing (superusers only; in SQL:
    /// SELECT telesto_log_switch('bucket')). With --bucket this process does it by itself; a quorum
    /// log that a live node owns is then refused.
    #[command(after_help = "Examples:
  telesto log switch --url postgres://telesto@127.0.0.1:5433/telesto --to bucket
  telesto log switch --bucket s3://my-bucket/telesto --data-dir ./telesto-data/node --to quorum")]
    Switch {
        /// The medium to go on with
        #[arg(long, value_enum)]
        to: settings::LogKind,
        #[command(flatten)]
        place: log::SwitchPlace,
    },
}

/// The command with the settings of its file, where one is named.
fn with_file(command: Command) -> Result<Command, String> {
    Ok(match command {
        Command::Start { config: Some(path), log_level, settings } => {
            let settings = Box::new(settings.or(settings::read_file(&path)?));
            Command::Start { config: None, log_level, settings }
        }
        command => command,
    })
}

/// Runs the command line; the process's exit code.
pub fn main() -> ExitCode {
    let command = match with_file(Cli::parse().command) {
        Ok(command) => command,
        Err(error) => return fail(&error),
    };
    // A command whose output goes to `head` ends quietly when `head` has read enough; a node goes
    // on without its output.
    if !matches!(command, Command::Start { .. }) {
        sigpipe::reset();
    }
    let runtimes = match Runtimes::start(node_memory(&command)) {
        Ok(runtimes) => runtimes,
        Err(error) => return fail(&format!("the runtime cannot start: {error}")),
    };
    let node = (runtimes.sessions().clone(), runtimes.commits().clone());
    let code = runtimes.core().block_on(run(command, node));
    runtimes.stop();
    code
}

/// The memory a node is given; `None`: the command is no node.
fn node_memory(command: &Command) -> Option<u64> {
    let Command::Start { settings, .. } = command else { return None };
    Some(settings.memory.unwrap_or_else(start::default_memory).0)
}

async fn run(command: Command, (sessions, commits): (Handle, Handle)) -> ExitCode {
    match command {
        Command::Start { log_level, settings, .. } => {
            report(start::run(&log_level, &settings, &sessions, &commits).await)
        }
        Command::Backup { command } => report(backup::run(command).await),
        Command::Keys { command } => report(keys::run(command).await),
        Command::Cluster { command } => report(cluster::run(command).await),
        Command::Region { command } => report(region::run(command).await),
        Command::Geo { command } => report(geo::run(command).await),
        Command::Verify(asked) => report(verify::run(asked).await),
        Command::Log { command: LogCommand::Inspect { place, from, limit, json } } => {
            report(log::inspect(place, from, limit, json).await)
        }
        Command::Log { command: LogCommand::Switch { to, place } } => {
            report(log::switch(place, to).await)
        }
        Command::Sql { url, command, timing } => {
            match shell::run(&url, command.as_deref(), timing).await {
                Ok(shell::Ended::Well) => ExitCode::SUCCESS,
                Ok(shell::Ended::StatementFailed) => ExitCode::from(3),
                Err(error) => fail(&error),
            }
        }
        Command::Bench { other: Some(BenchCommand::Levels(asked)), .. } => {
            report(bench::levels::run(asked).await)
        }
        Command::Board(asked) => report(board::run(*asked).await),
        Command::Dump(asked) => report(dump::run(asked).await),
        Command::Restore(asked) => report(restore::run(asked).await),
        Command::Demo(moved) => moved.end("demo", "telesto-demo"),
        Command::Import(moved) => moved.end("import", "telesto-demo import"),
        Command::Bench { other: Some(BenchCommand::Tpcw(moved)), .. } => {
            moved.end("bench tpcw", "telesto-demo bench tpcw")
        }
        Command::Bench { other: Some(BenchCommand::Compare(moved)), .. } => {
            moved.end("bench compare", "telesto-demo bench compare")
        }
        Command::Bench { other: None, url, load } => report(bench::run(&url, &load).await),
        Command::HashPassword { user } => report(password::run(&user)),
        Command::HandOver => {
            println!("{}", hand_over::FORM);
            ExitCode::SUCCESS
        }
        Command::Version => {
            println!("telesto {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
    }
}

fn report(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &str) -> ExitCode {
    eprintln!("telesto: {error}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
