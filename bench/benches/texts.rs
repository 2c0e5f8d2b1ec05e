//! Texts that come again: what they cost when they are known, beside what they cost planned anew,
//! in one run.
//!
//! # Purpose
//! `cargo bench -p telesto-bench --bench texts`: each case with `telesto.text_cache` off and on, in
//! turns of 200 ms; medians in microseconds and their ratio. From the text to the encoded reply,
//! without the socket.
//!
//! # Limits
//! One session on one thread, rows in the caches; a local folder with a quorum log of one server,
//! the default of `telesto start`.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    missing_docs,
    reason = "the outermost layer: it measures real time and may stop at the first error"
)]

#[path = "../../crates/telesto/src/allocator.rs"]
mod allocator;
mod server;

use std::time::{Duration, Instant};

use telesto::open::Opened;
use telesto_server::wire::backend::Output;
use telesto_sql::{Datum, Session, SessionOptions};
use telesto_txn::Database as _;
use tokio::runtime::Runtime;

use server::{database, reply, run};

const ACCOUNTS: i64 = 100_000;
/// Turns of each side.
const ROUNDS: usize = 9;
const TURN: Duration = Duration::from_millis(200);

/// What is done with a text.
#[derive(Clone, Copy)]
enum How {
    /// A simple query.
    Simple,
    /// Parse, Bind, Execute, Sync of it.
    Parse,
    /// The same with the key as `$1`.
    ParseWithParameter,
    /// A simple query in a session of its own, opened for it.
    Connect,
}

struct Case {
    name: &'static str,
    how: How,
    /// `#` is the key, `@` what follows from it.
    sql: &'static str,
}

const POINT: &str = "SELECT abalance FROM pgbench_accounts WHERE aid = #";
const CASES: &[Case] = &[
    Case { name: "point read, simple protocol", how: How::Simple, sql: POINT },
    Case {
        name: "the same with a comment and a cast",
        how: How::Simple,
        sql: "/* trace: @ */ SELECT abalance FROM pgbench_accounts WHERE aid = #  AND made > '2020-01-01 00:00+00'::timestamptz",
    },
    Case { name: "point read, Parse each time", how: How::Parse, sql: POINT },
    Case {
        name: "point read, Parse with $1 each time",
        how: How::ParseWithParameter,
        sql: "SELECT abalance FROM pgbench_accounts WHERE aid = $1",
    },
    Case { name: "point read, a session each time", how: How::Connect, sql: POINT },
    Case {
        name: "write by key, simple protocol",
        how: How::Simple,
        sql: "UPDATE pgbench_accounts SET abalance = abalance + @ WHERE aid = #",
    },
    Case {
        name: "window over one branch's tellers (DataFusion)",
        how: How::Simple,
        sql: "SELECT tid, rank() OVER (ORDER BY tbalance) FROM pgbench_tellers WHERE bid = # AND tbalance < @",
    },
];

async fn load(opened: &Opened) -> Session {
    let mut session = opened.sql.session(SessionOptions::default()).await.unwrap();
    for sql in [
        "create table pgbench_accounts (aid int primary key, bid int, abalance int, filler char(84), made timestamptz default '2026-01-01')",
        "create table pgbench_tellers (tid int primary key, bid int, tbalance int)",
        "create index on pgbench_tellers (bid)",
        &format!(
            "insert into pgbench_accounts select n, 1, n, '' from generate_series(1, {ACCOUNTS}) n"
        ),
        &format!(
            "insert into pgbench_tellers select n, n / 10, n from generate_series(1, {ACCOUNTS}) n"
        ),
    ] {
        run(&mut session, sql).await;
    }
    opened.engine.fold().await.unwrap();
    session
}

/// Runs a case once, for `key`.
async fn once(case: &Case, key: i64, cache: &str, opened: &Opened, session: &mut Session) {
    let sql = case.sql.replace('#', &(key / 10 + 1).to_string()).replace('@', &key.to_string());
    let mut output = Output::default();
    match case.how {
        How::Simple => run(session, &sql).await,
        How::Parse => {
            let prepared = session.prepare(&sql, &[]).await.unwrap();
            reply(session, &prepared, Vec::new(), &mut output).await;
        }
        How::ParseWithParameter => {
            let prepared = session.prepare(&sql, &[]).await.unwrap();
            let key = Datum::Int4(i32::try_from(key).unwrap());
            reply(session, &prepared, vec![key], &mut output).await;
        }
        How::Connect => {
            let parameters = vec![("telesto.text_cache".to_owned(), cache.to_owned())];
            let options = SessionOptions { parameters, ..SessionOptions::default() };
            let mut session = opened.sql.session(options).await.unwrap();
            run(&mut session, &sql).await;
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (opened, mut session) = runtime.block_on(async {
        let opened = database(folder.path(), 1 << 30).await;
        let session = load(&opened).await;
        (opened, session)
    });
    println!("{:<50} {:>10} {:>10} {:>7}", "", "off, us", "on, us", "off/on");
    for case in CASES {
        let mut took = [Vec::new(), Vec::new()];
        let mut key = 0;
        for round in 0..2 * ROUNDS {
            let side = round % 2;
            let cache = ["off", "on"][side];
            let micros = runtime.block_on(async {
                run(&mut session, &format!("set telesto.text_cache = {cache}")).await;
                let (begun, mut done) = (Instant::now(), 0_u32);
                while begun.elapsed() < TURN {
                    key = key % (ACCOUNTS - 1) + 1;
                    once(case, key, cache, &opened, &mut session).await;
                    done += 1;
                }
                begun.elapsed().as_secs_f64() * 1e6 / f64::from(done)
            });
            took[side].push(micros);
        }
        let [off, on] = took.map(median);
        println!("{:<50} {off:>10.1} {on:>10.1} {:>7.2}", case.name, off / on);
    }
    session.close();
    runtime.block_on(opened.engine.shutdown()).unwrap();
}
