//! Isolation as SQL shows it: one test for each anomaly and level, and cycles looked for in random
//! transactions while definitions change.
//!
//! Two engines on one bucket, each with its own tail and caches, stand for two processes. Every
//! anomaly is tried inside one of them and across both, and with either executor. Where a level
//! allows an anomaly, the test demands that it shows inside one process: so the scripts are known
//! to be able to find it. Across processes a transaction that is not strict may begin with an older
//! snapshot, and then the anomaly need not show.
#![recursion_limit = "512"]
#![allow(missing_docs, reason = "a test")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test is an outermost layer: real time, real tasks"
)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use telesto::LogKind;
use telesto::open::{Opened, Options, open};
use telesto_sql::{Datum, ResultSink, Session, SessionOptions, StatementResult};
use telesto_testkit::list_append::{Ended, Isolation, Observed, Step, check};

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

async fn process(dir: &Path, number: usize) -> Opened {
    let mut options = Options::new(format!("file://{}", dir.join("bucket").display()));
    options.log = Some(LogKind::Bucket);
    options.data_dir = Some(dir.join(format!("node{number}")));
    options.memory_bytes = 64 << 20;
    open(&telesto_runtime::env(), &options).await.expect("opens")
}

#[derive(Default)]
struct Rows(Vec<Vec<Datum>>);

#[async_trait::async_trait]
impl ResultSink for Rows {
    async fn result(&mut self, result: StatementResult) -> telesto_sql::Result<()> {
        if let StatementResult::Rows { rows, .. } = result {
            self.0.extend(rows.collect().await?);
        }
        Ok(())
    }
}

/// A client; errors are SQLSTATEs.
struct Client(Session);

impl Client {
    async fn new(opened: &Opened, executor: &str) -> Self {
        let session = opened.sql.session(SessionOptions::default()).await.expect("a session");
        let mut client = Self(session);
        client.run(&format!("set telesto.executor = {executor}")).await.expect("a setting");
        client
    }

    async fn rows(&mut self, sql: &str) -> Result<Vec<Vec<Datum>>, String> {
        let mut rows = Rows::default();
        // Boxed: the futures of many statements in one function would not fit a thread's stack.
        match Box::pin(self.0.execute_simple(sql, &mut rows)).await {
            Ok(()) => Ok(rows.0),
            Err(error) => Err(error.code().to_string()),
        }
    }

    async fn run(&mut self, sql: &str) -> Result<(), String> {
        self.rows(sql).await.map(|_| ())
    }

    async fn number(&mut self, sql: &str) -> Result<i64, String> {
        Ok(match self.rows(sql).await?.first().and_then(|row| row.first()) {
            Some(Datum::Int4(value)) => i64::from(*value),
            Some(Datum::Int8(value)) => *value,
            other => panic!("{sql}: {other:?} is no number"),
        })
    }

    async fn begin(&mut self, level: &str) {
        self.run(&format!("begin isolation level {level}")).await.expect("begins");
    }

    /// Whether it committed; a conflict is the only error there may be.
    async fn commit(&mut self) -> bool {
        match self.run("commit").await {
            Ok(()) => true,
            Err(code) => {
                assert_eq!(code, "40001");
                false
            }
        }
    }
}

/// The clients of one try: A and B may be on different processes; C looks.
struct Try {
    a: Client,
    b: Client,
    c: Client,
    level: &'static str,
    /// A and B are on different processes.
    across: bool,
}

const SETUP: &str = "drop table if exists t; create table t (id int primary key, class int, v int); create index on t (class);
    insert into t values (1, 1, 10), (2, 1, 20), (3, 2, 30)";

/// A statement of a transaction whose conflict may show before COMMIT.
async fn or_conflict(client: &mut Client, sql: &str) -> bool {
    match client.run(sql).await {
        Ok(()) => true,
        Err(code) => {
            assert_eq!(code, "40001", "{sql}");
            false
        }
    }
}

async fn dirty_read(t: &mut Try) -> bool {
    t.a.begin(t.level).await;
    t.a.run("update t set v = 99 where id = 1").await.expect("writes");
    t.b.begin(t.level).await;
    let seen = t.b.number("select v from t where id = 1").await.expect("reads");
    t.b.commit().await;
    t.a.run("rollback").await.expect("rolls back");
    seen == 99
}

async fn dirty_write(t: &mut Try) -> bool {
    t.a.begin(t.level).await;
    t.b.begin(t.level).await;
    t.a.run("update t set v = 1 where id = 1").await.expect("writes");
    let second = or_conflict(&mut t.b, "update t set v = 2 where id = 1").await
        && or_conflict(&mut t.b, "update t set v = 2 where id = 2").await;
    if second {
        t.b.commit().await;
    } else {
        t.b.run("rollback").await.expect("rolls back");
    }
    if or_conflict(&mut t.a, "update t set v = 1 where id = 2").await {
        t.a.commit().await;
    } else {
        t.a.run("rollback").await.expect("rolls back");
    }
    t.c.number("select count(distinct v) from t where id <= 2").await.expect("reads") != 1
}

async fn fuzzy_read(t: &mut Try) -> bool {
    t.a.begin(t.level).await;
    let first = t.a.number("select v from t where id = 1").await.expect("reads");
    t.b.run("update t set v = 11 where id = 1").await.expect("writes");
    let second = t.a.number("select v from t where id = 1").await.expect("reads");
    t.a.commit().await;
    first != second
}

async fn phantom(t: &mut Try) -> bool {
    t.a.begin(t.level).await;
    let first = t.a.number("select count(*) from t where class = 1").await.expect("reads");
    t.b.run("insert into t values (4, 1, 40)").await.expect("writes");
    let second = t.a.number("select count(*) from t where class = 1").await.expect("reads");
    t.a.commit().await;
    first != second
}

async fn read_skew(t: &mut Try) -> bool {
    t.a.begin(t.level).await;
    t.a.number("select v from t where id = 1").await.expect("reads");
    t.b.run("begin; update t set v = 12 where id = 1; update t set v = 22 where id = 2; commit")
        .await
        .expect("writes");
    let second = t.a.number("select v from t where id = 2").await.expect("reads");
    t.a.commit().await;
    second == 22
}

async fn lost_update(t: &mut Try) -> bool {
    t.a.begin(t.level).await;
    t.b.begin(t.level).await;
    let a = t.a.number("select v from t where id = 1").await.expect("reads");
    let b = t.b.number("select v from t where id = 1").await.expect("reads");
    t.b.run(&format!("update t set v = {} where id = 1", b + 1)).await.expect("writes");
    assert!(t.b.commit().await);
    or_conflict(&mut t.a, &format!("update t set v = {} where id = 1", a + 1)).await
        && t.a.commit().await
}

async fn write_skew(t: &mut Try) -> bool {
    t.a.begin(t.level).await;
    t.b.begin(t.level).await;
    t.a.number("select sum(v) from t where class = 1").await.expect("reads");
    t.b.number("select sum(v) from t where class = 1").await.expect("reads");
    t.a.run("update t set v = v - 25 where id = 1").await.expect("writes");
    t.b.run("update t set v = v - 25 where id = 2").await.expect("writes");
    let first = t.a.commit().await;
    let second = t.b.commit().await;
    assert!(first, "the first to commit has met nobody");
    second
}

async fn write_skew_through_phantoms(t: &mut Try) -> bool {
    t.a.begin(t.level).await;
    t.b.begin(t.level).await;
    t.a.number("select count(*) from t where class = 7").await.expect("reads");
    t.b.number("select count(*) from t where class = 8").await.expect("reads");
    t.a.run("insert into t values (10, 8, 0)").await.expect("writes");
    t.b.run("insert into t values (11, 7, 0)").await.expect("writes");
    let first = t.a.commit().await;
    assert!(first, "the first to commit has met nobody");
    t.b.commit().await
}

/// Fekete, O'Neil and O'Neil, "A read-only transaction anomaly under snapshot isolation", SIGMOD
/// Record 2004: two writers that alone would be serializable, and a reader that sees one of them
/// only.
async fn read_only_anomaly(t: &mut Try) -> bool {
    t.a.begin(t.level).await;
    t.a.rows("select v from t where id in (1, 2)").await.expect("reads");
    t.b.run("update t set v = 40 where id = 2").await.expect("writes");
    t.c.run(&format!("begin isolation level {} read only", t.level)).await.expect("begins");
    let seen = t.c.rows("select v from t where id in (1, 2) order by id").await.expect("reads");
    assert!(t.c.commit().await, "a reader never conflicts");
    if t.level == "serializable" || !t.across {
        assert_eq!(seen, [[Datum::Int4(10)], [Datum::Int4(40)]]);
    }
    or_conflict(&mut t.a, "update t set v = -1 where id = 1").await && t.a.commit().await
}

/// Tries an anomaly at a level: inside one process and across two, with both executors.
async fn shows(anomaly: &str, level: usize, allowed: bool) {
    let dir = tempfile::tempdir().expect("a folder");
    let (one, two) = (process(dir.path(), 1).await, process(dir.path(), 2).await);
    for executor in ["auto", "datafusion"] {
        for (other, across) in [(&one, false), (&two, true)] {
            let mut t = Try {
                a: Client::new(&one, executor).await,
                b: Client::new(other, executor).await,
                c: Client::new(&one, executor).await,
                level: LEVELS[level],
                across,
            };
            t.c.run(SETUP).await.expect("sets up");
            // What one process wrote, the other sees: its snapshots are strict.
            assert_eq!(t.b.number("select count(*) from t").await, Ok(3));
            let shown = match anomaly {
                "dirty read" => dirty_read(&mut t).await,
                "dirty write" => dirty_write(&mut t).await,
                "fuzzy read" => fuzzy_read(&mut t).await,
                "phantom" => phantom(&mut t).await,
                "read skew" => read_skew(&mut t).await,
                "lost update" => lost_update(&mut t).await,
                "write skew" => write_skew(&mut t).await,
                "write skew through phantoms" => write_skew_through_phantoms(&mut t).await,
                "read-only anomaly" => read_only_anomaly(&mut t).await,
                other => panic!("no anomaly {other}"),
            };
            let right = if across { allowed || !shown } else { shown == allowed };
            assert!(
                right,
                "{anomaly} at {}, executor {executor}, across processes: {across}; shown: {shown}",
                LEVELS[level]
            );
        }
    }
}

/// `name: anomaly, [allowed at read committed, repeatable read, serializable]`
macro_rules! anomalies {
    ($($module:ident: $anomaly:literal, [$($allowed:literal),*];)*) => {$(
        mod $module {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn read_committed() {
                super::shows($anomaly, 0, [$($allowed),*][0]).await;
            }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn repeatable_read() {
                super::shows($anomaly, 1, [$($allowed),*][1]).await;
            }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn serializable() {
                super::shows($anomaly, 2, [$($allowed),*][2]).await;
            }
        }
    )*};
}

anomalies! {
    dirty_reads: "dirty read", [false, false, false];
    dirty_writes: "dirty write", [false, false, false];
    fuzzy_reads: "fuzzy read", [true, false, false];
    phantoms: "phantom", [true, false, false];
    read_skews: "read skew", [true, false, false];
    lost_updates: "lost update", [true, false, false];
    write_skews: "write skew", [true, true, false];
    write_skews_through_phantoms: "write skew through phantoms", [true, true, false];
    read_only_anomalies: "read-only anomaly", [true, true, false];
}

/// A statement under READ COMMITTED goes by the definitions of its moment, but what the block wrote
/// before was written by older ones: a new index has no entries of it. The block reads it whole, or
/// is told that it conflicts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_block_wrote_is_not_read_by_a_definition_made_since() {
    let definitions = [
        "create index on small (k)",
        "create unique index on small (k)",
        "alter table small alter k type bigint",
        "alter table small alter k type text",
        "alter table small add column more int default 5",
    ];
    for executor in ["auto", "datafusion"] {
        let dir = tempfile::tempdir().expect("a folder");
        let (one, two) = (process(dir.path(), 1).await, process(dir.path(), 2).await);
        for (definition, across) in definitions.iter().flat_map(|d| [(d, false), (d, true)]) {
            let mut a = Client::new(&one, executor).await;
            let mut b = Client::new(if across { &two } else { &one }, executor).await;
            a.run(
                "drop table if exists small; create table small (id int primary key, k int);
                 insert into small select i, i from generate_series(1, 20) i",
            )
            .await
            .expect("a table");
            a.begin("read committed").await;
            let writes = "insert into small values (1000, 1000);
                update small set k = 2000 where id = 7; delete from small where id = 8";
            a.run(writes).await.expect("writes");
            b.run(definition).await.expect("a definition");
            for (k, rows) in [(1000, 1), (2000, 1), (7, 0), (8, 0), (9, 1)] {
                let sql = format!("select count(*) from small where k::text = '{k}' or k = '{k}'");
                let equal = format!("select count(*) from small where k = '{k}'");
                for sql in [equal, sql] {
                    match a.number(&sql).await {
                        Ok(found) => assert_eq!(found, rows, "{sql} after {definition}"),
                        Err(code) => assert!(code == "40001" || code == "25P02", "{sql}: {code}"),
                    }
                }
            }
            let _ = a.run("commit").await;
        }
    }
}

/// An error tells of what is in the database as much as rows do: it must not deny what another
/// process was told is committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_hold_across_processes() {
    for level in LEVELS {
        for executor in ["auto", "datafusion"] {
            let dir = tempfile::tempdir().expect("a folder");
            let (one, two) = (process(dir.path(), 1).await, process(dir.path(), 2).await);
            let (mut a, mut b) =
                (Client::new(&one, executor).await, Client::new(&two, executor).await);
            a.run("create table u (id int primary key, v int)").await.expect("creates");
            let in_block = async |client: &mut Client, sql: &str| {
                client.begin(level).await;
                let done = client.run(sql).await;
                let ended = client.run(if done.is_ok() { "commit" } else { "rollback" }).await;
                assert_eq!(ended, Ok(()), "{sql}");
                done
            };
            // A table that was made elsewhere, and one that was dropped.
            assert_eq!(in_block(&mut b, "insert into u values (1, 1)").await, Ok(()));
            a.run("create table w (id int primary key)").await.expect("creates");
            assert!(b.0.prepare("insert into w values ($1)", &[]).await.is_ok(), "a new table");
            a.run("drop table w").await.expect("drops");
            assert_eq!(b.run("create table w (id int primary key)").await, Ok(()));
            // A key that is free again; a row whose value no longer divides by zero.
            a.run("delete from u; insert into u values (2, 0)").await.expect("writes");
            assert_eq!(in_block(&mut b, "insert into u values (1, 2)").await, Ok(()));
            assert_eq!(in_block(&mut b, "insert into u values (2, 2)").await, Err("23505".into()));
            a.run("update u set v = 5 where id = 2").await.expect("writes");
            if level == "serializable" {
                let sql = "insert into u select 3, 10 / v from u where id = 2";
                assert_eq!(in_block(&mut b, sql).await, Ok(()));
            }
            // What the client has seen in the block stays true, or it is told that it does not.
            b.begin(level).await;
            b.number("select count(*) from u").await.expect("reads");
            a.run("create table x (id int)").await.expect("creates");
            a.run("insert into u values (9, 9)").await.expect("writes");
            let told = b.run("insert into x values (1)").await;
            let right = match level {
                "read committed" => told.is_ok() || told == Err("40001".into()),
                _ => told == Err("40001".into()),
            };
            assert!(right, "{level}, {executor}: {told:?}");
        }
    }
}

const KEYS: u64 = 6;

#[derive(Default)]
struct Run {
    clock: AtomicU64,
    next_value: AtomicU64,
    stop: AtomicBool,
    history: Mutex<Vec<Observed>>,
}

impl Run {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }
}

fn list(rows: &[Vec<Datum>]) -> Vec<u64> {
    let Some(Datum::Text(text)) = rows.first().and_then(|row| row.first()) else {
        return Vec::new();
    };
    text.split(',')
        .filter(|value| !value.is_empty())
        .map(|value| value.parse().expect("a number"))
        .collect()
}

/// A transaction of reads and appends; the ways to the row change, and with them the plan and the
/// executor.
async fn transact(
    client: &mut Client,
    run: &Run,
    level: &str,
    rng: &mut SmallRng,
    steps: &mut Vec<Step>,
) -> Ended {
    client.begin(level).await;
    for _ in 0..rng.random_range(1..=4) {
        let key = rng.random_range(0..KEYS);
        if rng.random_bool(0.5) {
            let value = run.next_value.fetch_add(1, Ordering::SeqCst) + 1;
            let sql = match rng.random_range(0..3) {
                0 => format!("update lists set v = v || ',{value}' where k = {key}"),
                1 => format!("update lists set v = concat(v, ',{value}') where g = {key}"),
                _ => format!(
                    "insert into lists (k, g, v) values ({key}, {key}, ',{value}') on conflict (k) do update set v = lists.v || excluded.v"
                ),
            };
            if client.run(&sql).await.is_err() {
                return aborted(client).await;
            }
            steps.push(Step::Append(key, value));
        } else {
            let sql = match rng.random_range(0..4) {
                0 => format!("select v from lists where k = {key}"),
                1 => format!("select v from lists where g = {key}"),
                2 => format!("select a.v from lists a join lists b on a.k = b.g where b.k = {key}"),
                _ => format!("select max(v) from lists where k = {key} group by g"),
            };
            match client.rows(&sql).await {
                Ok(rows) => steps.push(Step::Read(key, list(&rows))),
                Err(_) => return aborted(client).await,
            }
        }
    }
    match client.run("commit").await {
        Ok(()) => Ended::Committed,
        Err(code) if code == "40001" => Ended::Aborted,
        Err(_) => Ended::Unknown,
    }
}

async fn aborted(client: &mut Client) -> Ended {
    client.run("rollback").await.expect("rolls back");
    Ended::Aborted
}

/// Definitions of the table, changed again and again while rows are.
async fn define(mut client: Client, run: Arc<Run>) -> u64 {
    let mut done = 0;
    // A strict read: what the other process made is known here from now on.
    client.number("select count(*) from lists").await.expect("reads");
    while !run.stop.load(Ordering::SeqCst) {
        for sql in [
            "create index lists_v on lists (v)",
            "alter table lists add column extra int default 7",
            "drop index lists_v",
            "create unique index lists_u on lists (g, k)",
            "alter table lists drop column extra",
            "begin; alter table lists rename column g to h; alter table lists rename column h to g; commit",
            "drop index lists_u",
        ] {
            loop {
                match client.run(sql).await {
                    Ok(()) => break done += 1,
                    Err(code) => assert_eq!(code, "40001", "{sql}"),
                }
                if sql.starts_with("begin") {
                    let _ = client.run("rollback").await;
                }
            }
        }
    }
    done
}

async fn random_transactions(level: &'static str, held_to: Isolation, seed: u64) {
    let dir = tempfile::tempdir().expect("a folder");
    let processes = [process(dir.path(), 1).await, process(dir.path(), 2).await];
    let mut setup = Client::new(&processes[0], "auto").await;
    setup.run("create table lists (k bigint primary key, g bigint, v text); create index on lists (g)").await.expect("a table");
    for key in 0..KEYS {
        setup.run(&format!("insert into lists values ({key}, {key}, '')")).await.expect("a row");
    }
    let run = Arc::new(Run::default());
    let definer = tokio::spawn(define(Client::new(&processes[1], "auto").await, Arc::clone(&run)));
    let mut sessions = Vec::new();
    for number in 0..6_u64 {
        let executor = if number % 3 == 2 { "datafusion" } else { "auto" };
        let mut client = Client::new(&processes[(number % 2) as usize], executor).await;
        let run = Arc::clone(&run);
        let mut rng = SmallRng::seed_from_u64(seed * 100 + number);
        sessions.push(tokio::spawn(async move {
            client.number("select count(*) from lists").await.expect("reads");
            for _ in 0..40 {
                let mut steps = Vec::new();
                let invoked = run.tick();
                let ended = transact(&mut client, &run, level, &mut rng, &mut steps).await;
                let completed = run.tick();
                let seen = Observed { session: number, invoked, completed, ended, steps };
                run.history.lock().expect("no panic").push(seen);
            }
        }));
    }
    for session in sessions {
        session.await.expect("a session that does not panic");
    }
    run.stop.store(true, Ordering::SeqCst);
    let definitions = definer.await.expect("definitions that do not panic");
    // Every key read at the end, so that every append has its place.
    let mut steps = Vec::new();
    let invoked = run.tick();
    // Read only: strict without a conflict to fear.
    setup.begin("serializable read only").await;
    for key in 0..KEYS {
        let rows =
            setup.rows(&format!("select v from lists where k = {key}")).await.expect("reads");
        steps.push(Step::Read(key, list(&rows)));
    }
    assert!(setup.commit().await);
    let completed = run.tick();
    let mut history = run.history.lock().expect("no panic").clone();
    history.push(Observed { session: 99, invoked, completed, ended: Ended::Committed, steps });
    let committed = history.iter().filter(|seen| seen.ended == Ended::Committed).count();
    println!(
        "{level}: {committed} of {} transactions committed, {definitions} definitions changed",
        history.len()
    );
    assert!(committed > 60 && definitions > 3, "too little happened to show anything");
    let anomalies = check(&history, held_to);
    assert!(anomalies.is_empty(), "{level}, seed {seed}: {anomalies:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_transactions_with_definitions_changing_are_strictly_serializable() {
    random_transactions("serializable", Isolation::StrictSerializable, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_transactions_with_definitions_changing_have_snapshots_at_repeatable_read() {
    random_transactions("repeatable read", Isolation::Snapshot, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_transactions_with_definitions_changing_read_only_what_is_committed_at_read_committed()
 {
    random_transactions("read committed", Isolation::ReadCommitted, 3).await;
}
