//! The study: what each level of consistency costs in dollars and seconds, beside "Building a
//! Database on S3" (SIGMOD 2008).
//!
//! # Purpose
//! `make bench-s3db` prints the paper's Tables 3 and 4 and Figure 3, measured on its protocols and
//! on Telesto's levels in the paper's world and in today's, what each level loses, and dollars by
//! the number of clients; plots go to a folder as SVG.
//!
//! # Invariants
//! The same arguments print the same tables.
//!
//! # On failure
//! A promise that was not kept, and a run that failed, end it with exit code 1 and the reason.
//!
//! # Limits
//! A simulation of requests and their prices; computing takes no time in it
//! (`docs/architecture/s3db-study.md`).

mod checkpoint;
mod client;
mod commit;
mod error;
mod history;
mod lagging;
mod measure;
mod node;
mod ours;
mod pages;
mod paper;
mod plot;
mod queue;
mod reads;
mod setting;
mod study;
mod table;
mod theirs;
mod tree;
mod workload;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::error::{Error, Result};
use crate::measure::Scene;
use crate::setting::Setting;
use crate::study::Study;
use crate::workload::Shop;

/// A database on S3: dollars and seconds of each level of consistency, beside the paper's figures.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Where the plots go.
    #[arg(long, default_value = "target/bench-s3db")]
    out: PathBuf,
    /// Checkpoint interval, seconds; Telesto's too.
    #[arg(long, default_value_t = paper::INTERVAL_SECONDS)]
    interval: f64,
    /// Checkpoint intervals of Figure 3, seconds.
    #[arg(long, value_delimiter = ',', default_value = "5,10,15,20,25")]
    intervals: Vec<f64>,
    /// Time to live of cached pages, seconds.
    #[arg(long, default_value_t = 100.0)]
    time_to_live: f64,
    /// Cache of a client, bytes. A process of Telesto has those of all its clients together.
    #[arg(long, default_value_t = 5_000_000)]
    cache: u64,
    /// Size of a data page, bytes.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(4_000..=10_000_000))]
    page: u64,
    /// Time-out of the token of a page's lock queue, seconds.
    #[arg(long, default_value_t = 2.0)]
    page_lock: f64,
    /// Time-out of the token of a tree's lock queue, seconds.
    #[arg(long, default_value_t = 10.0)]
    tree_lock: f64,
    /// Share of a queue's messages that a receive finds.
    #[arg(long, default_value_t = 0.9)]
    found: f64,
    /// Products; each has 1,000 bytes.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(10..=10_000_000))]
    products: u64,
    /// Customers; each has 500 bytes.
    #[arg(long, default_value_t = 2_880, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    customers: u64,
    /// Numbers of clients, least first.
    #[arg(long, value_delimiter = ',', default_value = "1,10,50")]
    clients: Vec<u32>,
    /// Purchases of each client that are measured.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    transactions: u64,
    /// Clients of the runs that show what is lost.
    #[arg(long, default_value_t = 10)]
    rivals: u32,
    /// How often each of them is killed.
    #[arg(long, default_value_t = 8)]
    kills: u32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Arguments {
    fn scene(&self, setting: Setting) -> Scene {
        let kill_within = setting.put_padding(self.page) * 20;
        Scene {
            setting,
            shop: Shop {
                customers: self.customers,
                products: self.products,
                orders: 1_000,
                customer_bytes: 500,
                product_bytes: 1_000,
                order_bytes: 150,
            },
            checkpoint_interval: Duration::from_secs_f64(self.interval),
            time_to_live: Duration::from_secs_f64(self.time_to_live),
            cache_bytes: self.cache,
            page_bytes: self.page as usize,
            page_lock: Duration::from_secs_f64(self.page_lock),
            tree_lock: Duration::from_secs_f64(self.tree_lock),
            found: self.found,
            clients: 1,
            warm_up: (self.transactions / 10).max(1),
            purchases: self.transactions,
            kills: 0,
            kill_within,
            seed: self.seed,
        }
    }

    fn run(self) -> Result<Vec<String>> {
        std::fs::create_dir_all(&self.out)
            .map_err(|error| Error::Output(format!("{}: {error}", self.out.display())))?;
        let study = Study {
            today: self.scene(Setting::today()?),
            paper: self.scene(Setting::paper()?),
            rivals: self.rivals,
            rival_purchases: (self.transactions / 10).max(20),
            kills: self.kills,
            intervals: self.intervals,
            clients: self.clients,
            out: self.out,
        };
        let wrong = study.run()?;
        println!("\nplots: {}", study.out.display());
        Ok(wrong)
    }
}

fn main() -> ExitCode {
    match Arguments::parse().run() {
        Ok(wrong) if wrong.is_empty() => ExitCode::SUCCESS,
        Ok(wrong) => {
            for wrong in wrong {
                eprintln!("promise not kept: {wrong}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
