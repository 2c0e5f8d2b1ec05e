//! What an entry of the log takes until two of three nodes have it, beside what the machine itself
//! takes.
//!
//! # Purpose
//! `make bench-commit`: three processes on loopback, each with a log server on this disk and with
//! the threads of a node; one of them appends entries one after the other. Transactions, SQL and
//! clients are left out: it shows what the log adds to a round trip and a sync. Nodes whose commits
//! have a thread of their own, as they are, and nodes where they share the core's threads, are
//! measured in turns.
//!
//! # Invariants
//! - Each turn measures the machine first: a round trip, a sync, and two of three bare threads
//!   (`bench/cluster/src/machine.rs`).
//! - Figures are medians of a turn's entries; what is printed at the end is the median of the
//!   turns.
//! - Processor time is the kernel's, of all three processes.
//!
//! # On failure
//! The program ends with what failed.
//!
//! # Limits
//! All share one machine and one disk. Connections have TLS, as nodes' have.
#![allow(
    clippy::disallowed_methods,
    reason = "the outermost layer: it measures real time, and may stop at the first error"
)]

#[path = "../../cluster/src/machine.rs"]
mod machine;
mod node;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;

use node::{Owner, Threads};

/// What an entry of the log takes until two of three nodes have it.
#[derive(Parser)]
struct Arguments {
    /// Turns.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Entries in each.
    #[arg(long, default_value_t = 400)]
    entries: usize,
    /// Where the nodes' folders are put; else the system's place for temporary files.
    #[arg(long)]
    folder: Option<std::path::PathBuf>,
    /// Of a process that this program starts: its folder.
    #[arg(long, hide = true)]
    server: Option<std::path::PathBuf>,
    /// Its number.
    #[arg(long, hide = true, default_value_t = 0)]
    number: u128,
    /// Its threads.
    #[arg(long, hide = true, value_enum, default_value_t = Threads::Own)]
    threads: Threads,
}

/// Three nodes; two of them are processes of their own.
struct Trio {
    threads: Threads,
    owner: Owner,
    others: Vec<Child>,
    turns: Vec<Turn>,
}

/// Figures of a turn, microseconds.
struct Turn {
    entry: f64,
    processor: f64,
    least: f64,
    majority: f64,
}

impl Drop for Trio {
    fn drop(&mut self) {
        for other in &mut self.others {
            // It may have ended by itself.
            let _ = other.kill();
            let _ = other.wait();
        }
    }
}

impl Trio {
    fn start(threads: Threads, folder: &Path) -> Self {
        let mut addresses = Vec::new();
        let mut others = Vec::new();
        for number in [2_u128, 3] {
            let mut other = Command::new(std::env::current_exe().expect("this program"))
                .arg("--server")
                .arg(folder.join(number.to_string()))
                .args(["--number", &number.to_string(), "--threads", threads.name()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a process");
            let mut line = String::new();
            let out = other.stdout.take().expect("its output");
            BufReader::new(out).read_line(&mut line).expect("its address");
            addresses.push((number, line.trim().to_owned()));
            others.push(other);
        }
        let owner = Owner::start(threads, &folder.join("1"), &addresses);
        Self { threads, owner, others, turns: Vec::new() }
    }

    /// Processor seconds of all three.
    fn processor(&self) -> f64 {
        let pids = self.others.iter().map(Child::id).chain([std::process::id()]);
        pids.map(processor).sum()
    }

    fn turn(&mut self, entries: usize, folder: &Path) {
        let bare = machine::bare(folder);
        self.owner.append(entries / 10 + 1);
        let before = self.processor();
        let mut times = self.owner.append(entries);
        let processor = (self.processor() - before) * 1e6 / entries as f64;
        times.sort_unstable();
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let entry = micros(times[times.len() / 2]);
        let (least, majority) = (micros(bare.round + bare.sync), micros(bare.majority));
        self.turns.push(Turn { entry, processor, least, majority });
    }

    fn line(&self) -> String {
        let median = |of: fn(&Turn) -> f64| {
            let mut all: Vec<f64> = self.turns.iter().map(of).collect();
            all.sort_unstable_by(f64::total_cmp);
            all[all.len() / 2]
        };
        format!(
            "| {} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} | {:.0} |",
            self.threads.name(),
            median(|turn| turn.entry),
            median(|turn| turn.least),
            median(|turn| turn.majority),
            median(|turn| turn.entry / turn.least),
            median(|turn| turn.entry / turn.majority),
            median(|turn| turn.processor),
        )
    }
}

/// Processor seconds of a process, by the kernel's count in hundredths.
fn processor(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a live process");
    // The name in parentheses may hold spaces.
    let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |index: usize| {
        let field = after.split_whitespace().nth(index);
        field.and_then(|field| field.parse::<f64>().ok()).expect("a number of ticks")
    };
    (ticks(11) + ticks(12)) / 100.0
}

fn main() {
    let arguments = Arguments::parse();
    if let Some(folder) = &arguments.server {
        return node::serve(arguments.threads, folder, arguments.number);
    }
    let place = match &arguments.folder {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    };
    let place = place.expect("a folder");
    let mut trios = [Threads::Own, Threads::Shared].map(|threads| {
        let folder = place.path().join(threads.name());
        std::fs::create_dir(&folder).expect("a folder");
        Trio::start(threads, &folder)
    });
    let begun = Instant::now();
    for round in 0..arguments.rounds {
        let mut order = [0, 1];
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            trios[index].turn(arguments.entries, place.path());
        }
        eprintln!("turn {round}: {:?}", begun.elapsed());
    }
    println!(
        "| threads of commits | entry µs | round trip and sync µs | two of three bare threads µs | entry by the first | by the second | processor µs, three nodes |\n\
         | --- | --- | --- | --- | --- | --- | --- |"
    );
    for trio in &trios {
        println!("{}", trio.line());
    }
}
