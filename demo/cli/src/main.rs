//! The `telesto-demo` binary: what belongs to the demos and not to the database.
//!
//! ```text
//! telesto-demo ─ starts, and runs commands of ─► telesto (a process)      see `telesto`, the module
//!      └─ SQL over the Postgres wire ───────────────► its nodes, or any PostgreSQL
//! ```
//! # Invariants
//! Nothing of the database is linked: what a demo shows, another program can do as well.
//!
//! # Exit codes
//! 0: all went well. 1: the command failed, and said why and what to do. 2: the command line is
//! wrong.
#![allow(
    clippy::disallowed_methods,
    reason = "the outermost layer: real processes, real time, what people see"
)]

mod bookstore;
mod cloudtps;
mod cluster;
mod link;
mod measure;
mod mediawiki;
mod nodes;
mod planes;
// The plots of the other studies.
#[path = "../../../bench/s3db/src/plot.rs"]
mod plot;
mod regions;
mod scalaris;
mod sites;
mod social;
mod sql;
mod telesto;
mod tpcw;
mod wiki;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

const DEFAULT_URL: &str = "postgres://telesto@127.0.0.1:5433/telesto";

const AFTER_HELP: &str = "\
The telesto program is looked for beside this one; TELESTO_BIN names another.";

/// Demos of Telesto: applications, their data and their load.
#[derive(Debug, Parser)]
#[command(name = "telesto-demo", version, about, after_help = AFTER_HELP, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// TPC-W's bookstore: load it, let browsers shop for some seconds, ask a few questions.
    #[command(after_help = "Examples:
  telesto-demo bookstore
  telesto-demo bookstore --customers 1000 --items 1000 --seconds 10 --exit
  telesto-demo bookstore --regions --customers 1000 --items 1000 --mix ordering
  telesto-demo bookstore --url postgres://telesto@127.0.0.1:5433/telesto --mix ordering")]
    Bookstore(Box<bookstore::Bookstore>),
    /// A cluster on this machine: three nodes and a load, one node is killed every ten seconds.
    ///
    /// Shows throughput, latency and how long clients wait for their next commit, and counts at the
    /// end whether anything that was acknowledged is missing.
    #[command(after_help = "Examples:
  telesto-demo cluster
  telesto-demo cluster --nodes 5 --clients 16 --time 2m --kill-every 15s")]
    Cluster(cluster::Cluster),
    /// Three regions on this machine, with links as slow as between continents; one is cut off and
    /// comes back.
    ///
    /// Two shops sell, a traveller moves between the regions with its token. Shows how long what is
    /// committed in one region takes to be visible in another against the time of the link, and
    /// compares the replicas at the end.
    #[command(after_help = "Examples:
  telesto-demo regions
  telesto-demo regions --time 2m --seed 7 --cut refused")]
    Regions(regions::Regions),
    /// A social network in seven regions on this machine, with the links, users and placement of
    /// Saturn's evaluation.
    ///
    /// Every user's data is in three regions or more and in no other. Shows for every pair of
    /// regions how long what is written takes to be visible against the time of the link, and
    /// checks causal order, acknowledged writes and equal replicas.
    #[command(after_help = "Examples:
  telesto-demo social
  telesto-demo social --time 5m --copies 5 --clients 4
  telesto-demo social --users 5000 --writes 4")]
    Social(social::Social),
    /// A wiki to read and edit in a browser, on nodes that run: content, backlinks and categories
    /// of a page change in one transaction.
    #[command(after_help = "Examples:
  telesto-demo wiki
  telesto-demo wiki --url postgres://telesto@127.0.0.1:5433/telesto --url postgres://telesto@127.0.0.1:5434/telesto")]
    Wiki(wiki::Serve),
    /// The bookstore as a benchmark: load one server with it, or compare several. telesto bench
    /// loads a database of your own.
    #[command(after_help = "Examples:
  telesto-demo bench tpcw --mix ordering --rate 200 --seconds 60
  telesto-demo bench compare telesto=postgres://… postgresql=postgres://… --workload point-read,join-2
  telesto-demo bench regions --experiments reads,social
  telesto-demo bench wiki --clients 16 --edits 20")]
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
    /// Bring data in from elsewhere.
    Import {
        #[command(subcommand)]
        source: Source,
    },
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// TPC-W's bookstore: interactions of browsers, with latencies, errors, dollars and a check at
    /// the end.
    ///
    /// Loads the shop when it is not there. Latencies are corrected for coordinated omission: with
    /// --rate they count from when an interaction was due, without it what a slow answer kept from
    /// being asked is added.
    Tpcw(Box<tpcw::Tpcw>),
    /// Several servers side by side: the same work in turns, medians and ratios.
    Compare(Box<tpcw::Compare>),
    /// The causal planes on real regions, beside Saturn's throughput (Figures 5 and 8a).
    ///
    /// Starts the regions on this machine, with links as slow as between the paper's sites; planes
    /// take turns, ratios are to the first one.
    Regions(Box<planes::Planes>),
    /// Joins and updates on clusters of this machine, beside CloudTPS' figures (6, 7 and 8).
    ///
    /// Starts the nodes. Every answer of a join is compared with a plain computation, and every
    /// update is looked for at the end.
    #[command(after_help = "Examples:
  telesto-demo bench cloudtps
  telesto-demo bench cloudtps --experiments scale --nodes 1,3,5 --customers 144000 --items 10000
  telesto-demo bench cloudtps --experiments path,updates --nodes 3 --time 10s --out figures")]
    Cloudtps(Box<cloudtps::CloudTps>),
    /// Reads and increments on clusters of this machine, beside Scalaris' figures (3a and 3b); then
    /// a node is killed.
    ///
    /// Starts the nodes. Increments are counted when they are acknowledged and looked for at the
    /// end.
    #[command(after_help = "Examples:
  telesto-demo bench scalaris
  telesto-demo bench scalaris --nodes 1,3,5 --modify-clients 1,50,100
  telesto-demo bench scalaris --nodes 3 --kill-time 30s --out figures")]
    Scalaris(Box<scalaris::Scalaris>),
    /// Readers and editors of a wiki, beside Scalaris' figures; acknowledged edits and all links
    /// are checked at the end.
    Wiki(wiki::Load),
}

#[derive(Debug, Subcommand)]
enum Source {
    /// A MediaWiki XML dump (plain or bz2): pages, revisions, links, categories.
    ///
    /// Reads the dump as a stream and commits page by page with its links and categories; run
    /// again, it goes on where it stopped.
    Mediawiki {
        /// The dump, e.g. enwiki-latest-pages-articles1.xml.bz2
        file: PathBuf,
        /// Where the node is
        #[arg(long, env = "TELESTO_URL", default_value = DEFAULT_URL)]
        url: String,
        /// Pages in one transaction
        #[arg(long, default_value_t = 50)]
        batch_pages: usize,
    },
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    // Output that goes to `head` ends quietly when `head` has read enough.
    sigpipe::reset();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(run(command)),
        Err(error) => Err(format!("the runtime cannot start: {error}")),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("telesto-demo: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(command: Command) -> Result<(), String> {
    match command {
        Command::Bookstore(asked) => bookstore::run(*asked).await,
        Command::Cluster(asked) => cluster::run(asked).await,
        Command::Regions(asked) => regions::run(asked).await,
        Command::Social(asked) => social::run(asked).await,
        Command::Bench { what: Bench::Tpcw(asked) } => tpcw::tpcw(*asked).await,
        Command::Bench { what: Bench::Compare(asked) } => tpcw::compare(*asked).await,
        Command::Wiki(asked) => wiki::run(asked).await,
        Command::Bench { what: Bench::Wiki(asked) } => wiki::bench(asked).await,
        Command::Bench { what: Bench::Regions(asked) } => planes::run(*asked).await,
        Command::Bench { what: Bench::Cloudtps(asked) } => cloudtps::run(*asked).await,
        Command::Bench { what: Bench::Scalaris(asked) } => scalaris::run(*asked).await,
        Command::Import { source: Source::Mediawiki { file, url, batch_pages } } => {
            mediawiki::run(&file, &url, batch_pages).await
        }
    }
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
