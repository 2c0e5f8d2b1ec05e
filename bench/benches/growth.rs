//! How a point read and an insert cost in tables of different sizes, side by side in one run.
//!
//! # Purpose
//! One database for each size, all open in this process; the sizes take turns, round by round, and
//! the medians over the rounds are printed as ratios to the smallest. Reads ask for keys drawn
//! evenly from the whole table, and for keys of a set of [`WORKING_SET`] rows that is the same
//! share of no size: what applications do lies between the two. Inserts are durable commits of one
//! new row, at keys drawn evenly (the tables hold the even keys). Each is measured twice: as a
//! client sees it, one connection to the server of this process over loopback, and inside the
//! server from bound parameters to the encoded reply, where nothing hides what the size costs.
//! `cargo bench -p telesto-bench --bench growth -- --sizes 10000,1000000,10000000`.
//!
//! # Limits
//! One session at a time. Tables are folded and were read once before measuring, and the first
//! round is not counted; memory is enough for their blocks.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    missing_docs,
    reason = "the outermost layer: it measures real time and may stop at the first error"
)]

#[path = "../../crates/telesto/src/allocator.rs"]
mod allocator;
mod server;

use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use telesto::open::Opened;
use telesto_server::wire::backend::Output;
use telesto_server::{Server, ServerConfig};
use telesto_sql::{Datum, Prepared, Session, SessionOptions};
use telesto_txn::Database as _;

use server::{database, reply, run};

/// Rows that the reads of a working set ask for.
const WORKING_SET: u64 = 10_000;
/// Rows a loading statement inserts.
const LOAD_ROWS: u64 = 1_000_000;

/// Point read and insert in tables of several sizes.
#[derive(Parser)]
struct Arguments {
    /// Rows of each table.
    #[arg(long, value_delimiter = ',', default_value = "10000,1000000,10000000")]
    sizes: Vec<u64>,
    /// Rounds; every size is measured once a round, in turn.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Reads of one measurement; a tenth as many inserts.
    #[arg(long, default_value_t = 100_000)]
    reads: usize,
    /// Memory of each database, MiB.
    #[arg(long, default_value_t = 4096)]
    memory: u64,
    /// What `cargo bench` adds.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Anywhere,
    WorkingSet,
    Insert,
}

/// From where it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Inside,
}

const READ: &str = "select sensor, name, value from reading where id = $1";
const INSERT: &str = "insert into reading values ($1, 7, 'a new reading', 0.5)";

/// A client of a table's server.
struct Remote {
    server: Server,
    client: tokio_postgres::Client,
    read: tokio_postgres::Statement,
    insert: tokio_postgres::Statement,
}

impl Remote {
    async fn connect(opened: &Opened) -> Self {
        let listen = Some("127.0.0.1:0".parse().unwrap());
        let config = ServerConfig { listen, ..ServerConfig::default() };
        let server =
            Server::start(telesto_runtime::env(), Arc::clone(&opened.sql), config, None, None);
        let server = server.await.unwrap();
        let port = server.sql_address().unwrap().port();
        let url = format!("postgres://telesto@127.0.0.1:{port}/telesto");
        let (client, connection) =
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let (read, insert) =
            (client.prepare(READ).await.unwrap(), client.prepare(INSERT).await.unwrap());
        Self { server, client, read, insert }
    }
}

/// A table of one size.
struct Table {
    rows: u64,
    opened: Opened,
    session: Session,
    read: Arc<Prepared>,
    insert: Arc<Prepared>,
    remote: Remote,
    random: u64,
    inserted: u64,
    _folder: tempfile::TempDir,
}

impl Table {
    async fn load(rows: u64, memory_bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let opened = database(folder.path(), memory_bytes).await;
        let mut session = opened.sql.session(SessionOptions::default()).await.unwrap();
        run(
            &mut session,
            "create table reading (id bigint primary key, sensor int not null, name text not null, value double precision)",
        )
        .await;
        let began = Instant::now();
        for first in (0..rows).step_by(usize::try_from(LOAD_ROWS).unwrap()) {
            let last = (first + LOAD_ROWS).min(rows) - 1;
            let sql = format!(
                "insert into reading select 2 * n, n % 1000, 'reading number ' || n, n / 7.0 from generate_series({first}, {last}) n"
            );
            run(&mut session, &sql).await;
            eprint!("\rloading {rows} rows: {}", last + 1);
            std::io::stderr().flush().unwrap();
        }
        opened.engine.fold().await.unwrap();
        let took = began.elapsed().as_secs_f64();
        eprintln!("\rloaded {rows} rows in {took:.1} s ({:.0} a second)", rows as f64 / took);
        // Once through: what memory has room for is there, as after some time of use.
        run(&mut session, "select count(*), max(name) from reading").await;
        run(&mut session, "set telesto.executor = key").await;
        let read = session.prepare(READ, &[]).await.unwrap();
        let insert = session.prepare(INSERT, &[]).await.unwrap();
        let remote = Remote::connect(&opened).await;
        let random = 0x9E37_79B9_7F4A_7C15;
        Self { rows, opened, session, read, insert, remote, random, inserted: 0, _folder: folder }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    /// Microseconds an operation takes, the mean of `count`.
    async fn measure(&mut self, work: Work, from: Side, count: usize, output: &mut Output) -> f64 {
        let spread = self.rows / WORKING_SET.min(self.rows);
        let began = Instant::now();
        for _ in 0..count {
            let key = match work {
                Work::Anywhere => 2 * self.below(self.rows),
                Work::WorkingSet => 2 * spread * self.below(WORKING_SET.min(self.rows)),
                Work::Insert => {
                    self.inserted += 1;
                    // Odd, all over the table, and all different as long as there are fewer than
                    // rows: the factor is prime.
                    2 * (self.inserted * 2_654_435_761 % self.rows) + 1
                }
            };
            let key = i64::try_from(key).unwrap();
            if from == Side::Client {
                if work == Work::Insert {
                    self.remote.client.execute(&self.remote.insert, &[&key]).await.unwrap();
                } else {
                    self.remote.client.query_one(&self.remote.read, &[&key]).await.unwrap();
                }
                continue;
            }
            let parameters = vec![Datum::Int8(key)];
            match work {
                Work::Insert => {
                    reply(&mut self.session, &self.insert, parameters, output).await;
                }
                Work::Anywhere | Work::WorkingSet => {
                    let rows = reply(&mut self.session, &self.read, parameters, output).await;
                    assert_eq!(rows, 1, "a loaded key is there");
                }
            }
        }
        began.elapsed().as_secs_f64() * 1e6 / count as f64
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn compare(tables: &mut [Table], work: Work, from: Side, arguments: &Arguments) {
    let smallest = tables.iter().map(|table| table.rows).min().unwrap_or(0);
    // Both ways of measuring take keys of their own.
    let room = usize::try_from(smallest).unwrap_or(usize::MAX) / (arguments.rounds + 1) / 2;
    let count = match work {
        // Every key once at most, in the smallest table too.
        Work::Insert => (arguments.reads / 10).min(room),
        Work::Anywhere | Work::WorkingSet if from == Side::Client => arguments.reads / 10,
        Work::Anywhere | Work::WorkingSet => arguments.reads,
    };
    let mut output = Output::default();
    let mut times = vec![Vec::new(); tables.len()];
    // The first round warms.
    for round in 0..=arguments.rounds {
        for (table, times) in tables.iter_mut().zip(&mut times) {
            let time = table.measure(work, from, count, &mut output).await;
            if round > 0 {
                times.push(time);
            }
        }
    }
    let medians: Vec<f64> = times.iter_mut().map(|times| median(times)).collect();
    for (table, time) in tables.iter().zip(&medians) {
        println!(
            "{:<20} {:>12} {:>10.1} {:>8.2}",
            format!("{from:?} {work:?}"),
            table.rows,
            time,
            time / medians[0]
        );
    }
}

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    assert!(!arguments.sizes.is_empty() && arguments.rounds > 0, "sizes and rounds are needed");
    let mut tables = Vec::new();
    for rows in &arguments.sizes {
        tables.push(Table::load(*rows, arguments.memory << 20).await);
    }
    println!("{:<20} {:>12} {:>10} {:>8}", "work", "rows", "µs", "ratio");
    for from in [Side::Client, Side::Inside] {
        for work in [Work::WorkingSet, Work::Anywhere, Work::Insert] {
            compare(&mut tables, work, from, &arguments).await;
        }
    }
    for mut table in tables {
        table.session.close();
        drop(table.remote.client);
        table.remote.server.stop(Duration::from_secs(5)).await;
        table.opened.engine.shutdown().await.unwrap();
    }
}
