//! A real node and the statements that could stop it (`tests/data/hostile.sql`, and more made from
//! a seed): each is run and ended, by its time limit, by a cancel request, by `pg_cancel_backend`,
//! by `pg_terminate_backend` and by a client that hangs up. Meanwhile another connection asks
//! SELECT 1 and somebody asks for /health: both are answered, and the process lives.
//!
//! Times are printed; only bounds with much slack are asserted, because the machine may be busy.
//! `TELESTO_WAYS=all` ends every statement in each of the five ways; the default takes them in
//! turns. `TELESTO_INPUT=name` runs those whose name has this in it. `TELESTO_HOSTILE` is how many
//! are made (10), `TELESTO_SEED` from which seed.

#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;
#[path = "hostile_generated.rs"]
mod hostile_generated;
#[path = "hostile_inputs.rs"]
mod hostile_inputs;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::{Node, PATIENCE, Place};
use hostile_inputs::{Input, inputs};
use tokio_postgres::{Client, NoTls};

/// How long a statement runs before it is ended.
const RUNS: Duration = Duration::from_millis(500);
/// What is meant; later ones are listed.
const MEANT: Duration = Duration::from_millis(500);
/// Every end comes within this; half a second is meant, on a machine that does nothing else.
const SLACK: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    TimeLimit,
    CancelRequest,
    CancelBackend,
    TerminateBackend,
    HangUp,
}

const WAYS: [Way; 5] =
    [Way::TimeLimit, Way::CancelRequest, Way::CancelBackend, Way::TerminateBackend, Way::HangUp];

/// A client whose socket can be closed under it.
struct Victim {
    client: Client,
    connection: tokio::task::JoinHandle<()>,
    pid: i32,
}

impl Victim {
    async fn connect(node: &Node) -> Self {
        let url = format!("host=127.0.0.1 port={} user=telesto dbname=telesto", node.port);
        let connected = tokio::time::timeout(PATIENCE, tokio_postgres::connect(&url, NoTls)).await;
        let (client, connection) = connected.expect("connects in time").expect("connects");
        let connection = tokio::spawn(async move {
            // Its end is what the statement tells.
            let _ = connection.await;
        });
        let row = client.query_one("SELECT pg_backend_pid()", &[]).await.expect("a process id");
        Self { client, connection, pid: row.get(0) }
    }
}

/// Asks the node all the time, from a thread of its own; the times of the answers.
struct Asking {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Duration>>,
}

impl Asking {
    fn start<A: FnMut()>(connect: impl FnOnce() -> A + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut ask = connect();
            let mut times = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let begun = Instant::now();
                ask();
                times.push(begun.elapsed());
                std::thread::sleep(Duration::from_millis(20));
            }
            times
        });
        Self { stop, thread }
    }

    /// Median and worst.
    fn end(self) -> (Duration, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let mut times = self.thread.join().expect("every question is answered");
        times.sort();
        (times[times.len() / 2], times[times.len() - 1])
    }
}

fn selects(port: u16) -> impl FnMut() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let url = format!("host=127.0.0.1 port={port} user=telesto dbname=telesto");
    let client = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connects");
        tokio::spawn(connection);
        client
    });
    move || {
        let asked = runtime.block_on(async {
            tokio::time::timeout(PATIENCE, client.simple_query("SELECT 1")).await
        });
        asked.expect("an answer in time").expect("an answer");
    }
}

fn health(node: Arc<Node>) -> impl FnMut() {
    move || {
        let answer = node.get("/health").expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

/// Waits until nobody runs anything as `pid` any more.
async fn gone(other: &Client, pid: i32) {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let rows = other
            .query("SELECT 1 FROM pg_stat_activity WHERE pid = $1", &[&pid])
            .await
            .expect("asked");
        if rows.is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the session {pid} is still there");
}

/// Runs an input and ends it; how it ended, and how long after it was told to.
async fn run(node: &Node, other: &Client, input: &Input, way: Way) -> (String, Duration) {
    let victim = Victim::connect(node).await;
    let sql = input.sql.clone();
    if way == Way::TimeLimit {
        let limit = format!("SET statement_timeout = {}", RUNS.as_millis());
        victim.client.batch_execute(&limit).await.expect("set");
    }
    let cancel = victim.client.cancel_token();
    let client = Arc::new(victim.client);
    let runs = {
        let client = Arc::clone(&client);
        tokio::spawn(async move {
            // By turns as Parse and as a simple query: constants are computed while planning.
            if way == Way::TimeLimit {
                client.prepare(&sql).await?;
            }
            client.simple_query(&sql).await.map(|messages| messages.len())
        })
    };
    tokio::time::sleep(RUNS).await;
    let told = Instant::now();
    match way {
        Way::TimeLimit => {}
        Way::CancelRequest => cancel.cancel_query(NoTls).await.expect("asked"),
        Way::CancelBackend | Way::TerminateBackend => {
            let name = if way == Way::CancelBackend { "cancel" } else { "terminate" };
            let sql = format!("SELECT pg_{name}_backend($1)");
            other.execute(&sql, &[&victim.pid]).await.expect("asked");
        }
        Way::HangUp => victim.connection.abort(),
    }
    if way == Way::HangUp {
        gone(other, victim.pid).await;
        return ("hung up".to_owned(), told.elapsed());
    }
    let ended = tokio::time::timeout(PATIENCE, runs).await;
    let ended = ended.unwrap_or_else(|_| panic!("{way:?} does not end: {}", input.name));
    let taken = told.elapsed();
    let ended = match ended.expect("no panic here") {
        Ok(_) => "answered".to_owned(),
        Err(error) => match error.code() {
            Some(code) => code.code().to_owned(),
            None if way == Way::TerminateBackend => "closed".to_owned(),
            None => panic!("{}: {error}", input.name),
        },
    };
    assert_ne!(ended, "XX000", "{}", input.name);
    (ended, taken)
}

/// One node at a time: what the other test's holds up says nothing.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_statements_are_ended_and_hold_up_nobody() {
    all_end(inputs()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_statements_are_ended_and_hold_up_nobody() {
    let count = usize::try_from(number("TELESTO_HOSTILE", 10)).expect("few");
    all_end(hostile_generated::generated(number("TELESTO_SEED", 19), count)).await;
}

async fn all_end(inputs: Vec<Input>) {
    let _alone = ALONE.lock().await;
    let folder = tempfile::tempdir().expect("folder");
    let place = Place::folder(&folder.path().join("bucket"), "quorum", "quorum");
    let node = Arc::new(Node::start(&place, &folder.path().join("local"), &[]));
    let other = node.connect().await.expect("connects");
    let all = std::env::var("TELESTO_WAYS").is_ok_and(|ways| ways == "all");
    let only = std::env::var("TELESTO_INPUT").ok();
    let (mut late, mut later, mut ran) = (Vec::new(), Vec::new(), 0);
    println!(
        "{:<62} {:<16} {:<9} {:>8}  SELECT 1 and /health, median and worst, ms",
        "", "ended by", "", "after ms"
    );
    for (at, input) in inputs.into_iter().enumerate() {
        if only.as_ref().is_some_and(|only| !input.name.contains(only.as_str())) {
            continue;
        }
        // Inputs of one kind come at equal distances: they too meet every way.
        let turn = (at + at / 10) % WAYS.len();
        let ways = if all { &WAYS[..] } else { &WAYS[turn..=turn] };
        for way in ways {
            ran += 1;
            let (port, asked) = (node.port, Arc::clone(&node));
            let asking =
                [Asking::start(move || selects(port)), Asking::start(move || health(asked))];
            let (ended, taken) = run(&node, &other, &input, *way).await;
            let [selected, healthy] = asking.map(Asking::end);
            println!(
                "{:<62} {:<16} {ended:<9} {:>8}  {:>6} {:>6} {:>6} {:>6}",
                input.name,
                format!("{way:?}"),
                taken.as_millis(),
                selected.0.as_millis(),
                selected.1.as_millis(),
                healthy.0.as_millis(),
                healthy.1.as_millis(),
            );
            // A constant may take its time twice: when it is prepared, and when it is run.
            let meant = if *way == Way::TimeLimit { MEANT + RUNS } else { MEANT };
            if taken > meant {
                later.push(format!("{} {way:?}: {} ms", input.name, taken.as_millis()));
            }
            if taken > SLACK || selected.0 > SLACK / 10 || healthy.0 > SLACK / 10 {
                late.push(format!("{} {way:?}", input.name));
            }
        }
    }
    println!("peak memory {} MB", node.memory_kb("VmHWM") / 1024);
    println!("{} of {ran} ended later than {} ms: {later:#?}", later.len(), MEANT.as_millis());
    assert!(ran > 0 || only.is_some(), "no inputs");
    assert!(late.is_empty(), "far too late: {late:#?}");
    let panics = node.get("/metrics").expect("metrics");
    let panics = panics.lines().find(|line| line.starts_with("telesto_session_panics_total"));
    assert!(panics.is_none_or(|line| line.ends_with(" 0")), "{panics:?}");
}
