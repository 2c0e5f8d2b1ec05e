//! Indexes built while others write, builds that fail or are stopped, and what drops leave behind.
//!
//! Two engines on one bucket, each with its own tail and caches, stand for two processes.
//! `telesto_check_table` compares rows and entries.
#![recursion_limit = "512"]
#![allow(missing_docs, reason = "a test")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test is an outermost layer: real time, real tasks"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use telesto::LogKind;
use telesto::open::{Opened, Options, open};
use telesto_common::key::{KeyRange, KeyWriter};
use telesto_common::{DatabaseId, TableId};
use telesto_sql::{Datum, ResultSink, Session, SessionOptions, StatementResult};
use telesto_txn::{Database as _, ScanOptions, TxnOptions};

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

struct Client(Session);

impl Client {
    async fn new(opened: &Opened) -> Self {
        Self(opened.sql.session(SessionOptions::default()).await.expect("a session"))
    }

    /// Rows, or SQLSTATE and message.
    async fn rows(&mut self, sql: &str) -> Result<Vec<Vec<Datum>>, (String, String)> {
        let mut rows = Rows::default();
        // Boxed: the futures of many statements in one function would not fit a thread's stack.
        match Box::pin(self.0.execute_simple(sql, &mut rows)).await {
            Ok(()) => Ok(rows.0),
            Err(error) => Err((error.code().to_string(), error.to_string())),
        }
    }

    async fn run(&mut self, sql: &str) {
        if let Err(error) = self.rows(sql).await {
            panic!("{sql}: {error:?}");
        }
    }

    async fn code(&mut self, sql: &str) -> String {
        self.rows(sql).await.expect_err(sql).0
    }

    async fn number(&mut self, sql: &str) -> i64 {
        match self.rows(sql).await.expect(sql).first().and_then(|row| row.first()) {
            Some(Datum::Int4(value)) => i64::from(*value),
            Some(Datum::Int8(value)) => *value,
            Some(Datum::Oid(value)) => i64::from(*value),
            other => panic!("{sql}: {other:?} is no number"),
        }
    }
}

const ROWS: i64 = 5000;

/// Changes rows until told to stop; `u` is never given twice at a time.
async fn write(mut client: Client, seed: u64, next: Arc<AtomicI64>, stop: Arc<AtomicBool>) -> u64 {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut changes = 0;
    while !stop.load(Ordering::SeqCst) {
        let new = next.fetch_add(1, Ordering::SeqCst);
        let id = rng.random_range(0..new);
        let a = rng.random_range(0..100);
        let n = if a % 2 == 0 { "null".to_owned() } else { a.to_string() };
        let kind = rng.random_range(0..9);
        let sql = match kind {
            0 => format!("insert into t values ({new}, {a}, 'B{a}', {new}, {n})"),
            1 => format!("update t set a = {a}, b = 'b{id}', n = {n} where id = {id}"),
            2 => format!("update t set u = {new} where id = {id}"),
            3 => format!("update t set id = {new}, u = {new} where id = {id}"),
            4 => format!("delete from t where id = {id}"),
            5 => {
                format!("update t set b = 'x' || a, a = a + 1 where id between {id} and {id} + 20")
            }
            // The value goes from one row to another, before and behind where a build is.
            6 => format!(
                "with gone as (delete from t where id = {id} returning u) insert into t select {new}, {a}, 'w', u, {n} from gone"
            ),
            // A row that the build may not have reached gives its value to another before it goes.
            7 => format!(
                "begin; insert into t select {new}, {a}, 'v', u, n from t where id = {id}; delete from t where id = {id}; commit"
            ),
            _ => format!(
                "begin isolation level read committed; delete from t where id = {id}; insert into t values ({new}, {a}, 'q', {id} - 1000000000, null) on conflict do nothing; update t set u = {new} where id = {new}; commit"
            ),
        };
        match client.rows(&sql).await {
            Ok(_) => changes += 1,
            // Only where two rows have one value for a moment may a unique index refuse. A machine
            // too slow for the fold tells writers to come again (57P03); the builder is told so
            // only if folds stand still.
            Err((code, _))
                if ["40001", "57P03"].contains(&code.as_str()) || kind == 7 && code == "23505" =>
            {
                let _ = client.rows("rollback").await;
            }
            Err(error) => panic!("{sql}: {error:?}"),
        }
    }
    changes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn indexes_built_while_two_processes_write_have_every_entry_and_no_other() {
    let dir = tempfile::tempdir().expect("a folder");
    let processes = [process(dir.path(), 0).await, process(dir.path(), 1).await];
    let mut builder = Client::new(&processes[0]).await;
    builder.run("create table t (id int primary key, a int, b text, u bigint, n int)").await;
    builder
        .run(&format!(
            "insert into t select g, g % 100, 'B' || g, g, nullif(g % 7, 0) from generate_series(0, {ROWS} - 1) g"
        ))
        .await;
    let stop = Arc::new(AtomicBool::new(false));
    let next = Arc::new(AtomicI64::new(ROWS));
    let mut writers = Vec::new();
    for (seed, opened) in [0, 1, 0, 1].into_iter().map(|at| &processes[at]).enumerate() {
        let client = Client::new(opened).await;
        writers.push(tokio::spawn(write(
            client,
            seed as u64,
            Arc::clone(&next),
            Arc::clone(&stop),
        )));
    }
    for (at, sql) in [
        "create index concurrently t_a on t (a)",
        "create unique index concurrently t_u on t (u)",
        "create index concurrently t_part on t (lower(b)) where a > 50",
        "create unique index concurrently t_un on t (u, n) nulls not distinct",
        "create unique index t_nn on t (u) include (b) where n is null",
        "create index t_ba on t (b desc, a) include (n)",
        "reindex index concurrently t_u",
        "reindex table t",
    ]
    .into_iter()
    .enumerate()
    {
        let mut other = Client::new(&processes[at % 2]).await;
        other.run(sql).await;
        builder.number("select telesto_check_table('t')").await;
    }
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        assert!(writer.await.expect("a writer") > 0, "a writer that wrote nothing tests nothing");
    }
    for opened in &processes {
        let mut client = Client::new(opened).await;
        let rows = client.number("select telesto_check_table('t')").await;
        assert_eq!(rows, client.number("select count(*) from t").await);
        let valid = "select count(*) from pg_index where indrelid = 't'::regclass and indisvalid";
        assert_eq!(client.number(valid).await, 7);
    }
}

async fn large(client: &mut Client, rows: i64) {
    client.run("create table l (id int primary key, a int, b text)").await;
    client
        .run(&format!(
            "insert into l select g, g % 1000, repeat('x', 20) || g from generate_series(1, {rows}) g"
        ))
        .await;
}

/// How often a build may end before what was to meet it comes.
const TRIES: usize = 50;

/// Waits until the build under way has added entries; `false`: it ended before that was seen.
async fn under_way<T>(client: &mut Client, built: &tokio::task::JoinHandle<T>) -> bool {
    let sql = "select count(*) from pg_stat_progress_create_index where tuples_done > 0 and tuples_total >= tuples_done
        and phase = 'building index: scanning table' and relid = 'l'::regclass and blocks_total > 0";
    while client.number(sql).await == 0 {
        if built.is_finished() {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn builder_is_told_when_its_index_is_dropped_and_ends_well_when_rows_move() {
    let dir = tempfile::tempdir().expect("a folder");
    let processes = [process(dir.path(), 0).await, process(dir.path(), 1).await];
    let mut other = Client::new(&processes[1]).await;
    large(&mut other, 15_000).await;
    for (change, outlives) in [
        ("drop index l_b", false),
        ("alter table l alter b type bytea using b::bytea", true),
        ("alter table l drop column b", false),
        ("truncate l", true),
        ("drop table l", false),
    ] {
        if change == "truncate l" {
            other.run("alter table l add column b text").await;
        }
        let mut tries = 0;
        let result = loop {
            let mut builder = Client::new(&processes[0]).await;
            let built = tokio::spawn(async move {
                builder.rows("create index concurrently l_b on l (b)").await
            });
            let met = under_way(&mut other, &built).await;
            if met {
                other.run(change).await;
            }
            let result = built.await.expect("no panic");
            if met && (outlives || result.is_err()) {
                break result;
            }
            // The build ended before the change came: as it was, and again.
            tries += 1;
            assert!(tries < TRIES, "{change}: the build always ends first");
            match change {
                _ if !met => other.run("drop index l_b").await,
                "alter table l drop column b" => {
                    other.run("alter table l add column b text").await;
                    other.run("update l set b = 'again' || id").await;
                }
                "drop table l" => large(&mut other, 15_000).await,
                _ => {}
            }
        };
        if !outlives {
            assert_eq!(result.expect_err(change).0, "55000", "{change}");
            continue;
        }
        // The rows are elsewhere now, and whoever put them there put the entries too.
        assert_eq!(result.map(|_| ()), Ok(()), "{change}");
        if change == "truncate l" {
            other.run("insert into l select g, 1, 'y' || g from generate_series(1, 15000) g").await;
        }
        assert_eq!(other.number("select telesto_check_table('l')").await, 15_000, "{change}");
        let valid =
            "select count(*) from pg_index where indexrelid = 'l_b'::regclass and indisvalid";
        assert_eq!(other.number(valid).await, 1, "{change}");
        other.run("drop index l_b").await;
    }
    assert_eq!(other.number("select count(*) from pg_class where relname like 'l_b%'").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn build_that_is_stopped_leaves_nothing_or_an_invalid_index() {
    let dir = tempfile::tempdir().expect("a folder");
    let opened = process(dir.path(), 0).await;
    let mut client = Client::new(&opened).await;
    large(&mut client, 15_000).await;
    let named = "select count(*) from pg_class where relname = 'l_b'";
    let cases = [("create index l_b on l (b)", 0), ("create index concurrently l_b on l (b)", 1)];
    for (sql, left) in cases {
        let mut tries = 0;
        loop {
            let mut watcher = Client::new(&opened).await;
            let mut builder = Client::new(&opened).await;
            let cancel = builder.0.cancel_handle();
            let built = tokio::spawn(async move { builder.rows(sql).await.map(|_| ()) });
            if under_way(&mut watcher, &built).await {
                cancel.cancel();
            }
            match built.await.expect("no panic") {
                Err((code, _)) => {
                    assert_eq!(code, "57014", "{sql}");
                    break;
                }
                // It ended before it was cancelled: again.
                Ok(()) => client.run("drop index l_b").await,
            }
            tries += 1;
            assert!(tries < TRIES, "{sql}: the build always ends first");
        }
        assert_eq!(client.number(named).await, left, "{sql}");
        client.run("insert into l values (-1, 1, 'one') on conflict do nothing").await;
    }
    let valid_of = "select count(*) from pg_index i join pg_class c on c.oid = i.indexrelid where c.relname = 'l_b'";
    let invalid = format!("{valid_of} and not indisvalid");
    assert_eq!(client.number(&invalid).await, 1);
    client.run("reindex index l_b").await;
    assert_eq!(client.number(&invalid).await, 0);
    client.run("drop index l_b").await;
    client.run("set statement_timeout = 30").await;
    assert_eq!(client.code("create index l_b on l (b)").await, "57014");
    client.run("set statement_timeout = 0").await;
    // Its end is waited for a little; on a busy machine it goes on behind the answer.
    let whole = format!("{valid_of} and indisvalid");
    while client.number(named).await > 0 {
        assert_eq!(client.number(&whole).await, 0, "a build that was stopped went on");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The session goes in the middle of its statement.
    let mut builder = Client::new(&opened).await;
    let built = tokio::spawn(async move { builder.run("create index l_b on l (b)").await });
    under_way(&mut client, &built).await;
    built.abort();
    while client.number(named).await > 0 {
        if client.number(&whole).await > 0 {
            // It ended before the session did.
            client.run("drop index l_b").await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(client.number("select telesto_check_table('l')").await, 15_001);
}

/// How many keys there are of the table's rows and indexes.
async fn keys(opened: &Opened, storage: i64) -> usize {
    let database = opened.sql.database();
    let txn = database.begin(TxnOptions { read_only: true, ..TxnOptions::default() }).await;
    let storage = TableId(u32::try_from(storage).expect("an OID"));
    let prefix = KeyWriter::prefix(DatabaseId(1), storage, 0).finish();
    let range = KeyRange::with_prefix(&prefix[..8]);
    let mut scan = txn.expect("begins").scan(range, ScanOptions::default());
    let mut count = 0;
    loop {
        let batch = scan.next_batch(1000).await.expect("scans");
        if batch.is_empty() {
            return count;
        }
        count += batch.len();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn dropped_rows_are_swept_and_older_snapshots_still_read_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let opened = process(dir.path(), 0).await;
    let mut client = Client::new(&opened).await;
    large(&mut client, 12_000).await;
    client.run("create index l_a on l (a)").await;
    let table = client.number("select 'l'::regclass::oid").await;
    assert_eq!(keys(&opened, table).await, 24_000);
    let mut reader = Client::new(&opened).await;
    reader.run("begin isolation level repeatable read read only").await;
    assert_eq!(reader.number("select count(*) from l").await, 12_000);

    client.run("drop index l_a").await;
    while keys(&opened, table).await != 12_000 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    client.run("begin; truncate l; rollback").await;
    assert_eq!(client.number("select telesto_check_table('l')").await, 12_000);
    client.run("truncate l").await;
    client.run("insert into l values (1, 2, 'three')").await;
    while keys(&opened, table).await != 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(client.number("select telesto_check_table('l')").await, 1);
    client.run("drop table l").await;
    // Swept long ago for others.
    assert_eq!(reader.number("select count(*) from l where a >= 0").await, 12_000);
    assert_eq!(reader.number("select count(*) from l where a = 7").await, 12);
    reader.run("commit").await;
    assert_eq!(reader.code("select count(*) from l").await, "42P01");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn rows_swept_by_two_processes_are_read_as_of_before_the_drop() {
    let dir = tempfile::tempdir().expect("a folder");
    let (first, second) = (process(dir.path(), 0).await, process(dir.path(), 1).await);
    let (mut client, mut other) = (Client::new(&first).await, Client::new(&second).await);
    large(&mut client, 12_000).await;
    client.run("create index l_a on l (a); create table kept (id int primary key)").await;
    client.run("insert into kept select n from generate_series(1, 5000) n").await;
    let table = client.number("select 'l'::regclass::oid").await;
    let kept = client.number("select 'kept'::regclass::oid").await;
    let before = match client.rows("select clock_timestamp()::text").await.expect("now").remove(0) {
        row if row.len() == 1 => match &row[0] {
            Datum::Text(text) => text.to_string(),
            other => panic!("{other:?} is no text"),
        },
        other => panic!("{other:?}"),
    };
    tokio::time::sleep(Duration::from_millis(5)).await;
    client.run("drop table l").await;
    // Whoever runs a statement on the newer catalog sweeps along.
    assert_eq!(other.code("select count(*) from l").await, "42P01");
    for opened in [&first, &second] {
        while keys(opened, table).await != 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let then = format!("select count(*) from l as of system time '{before}' where a >= 0");
    let by_index = format!("select count(*) from l as of system time '{before}' where a = 7");
    for client in [&mut client, &mut other] {
        assert_eq!((client.number(&then).await, client.number(&by_index).await), (12_000, 12));
        assert_eq!(client.number("select telesto_check_table('kept')").await, 5000);
        assert_eq!(client.code("select count(*) from l").await, "42P01");
    }
    drop((client, other));
    first.engine.shutdown().await.expect("stops");
    second.engine.shutdown().await.expect("stops");

    // From the checkpoint, by a process that has seen nothing of it.
    let third = process(dir.path(), 2).await;
    let mut client = Client::new(&third).await;
    assert_eq!((client.number(&then).await, client.number(&by_index).await), (12_000, 12));
    assert_eq!((keys(&third, table).await, keys(&third, kept).await), (0, 5000));
}

/// What was dropped and is much is not deleted key by key: it is there until no snapshot can ask
/// for it, then a merge leaves it out. Nobody commits anything meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn much_that_was_dropped_leaves_when_it_cannot_be_asked_for_any_more() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut options = Options::new(format!("file://{}", dir.path().join("bucket").display()));
    options.log = Some(LogKind::Bucket);
    options.data_dir = Some(dir.path().join("node"));
    options.memory_bytes = 64 << 20;
    options.retention = Some(Duration::from_secs(6));
    options.checkpoint_interval = Some(Duration::from_millis(500));
    let opened = open(&telesto_runtime::env(), &options).await.expect("opens");
    let mut client = Client::new(&opened).await;
    large(&mut client, 40_000).await;
    client.run("create index l_a on l (a); create table kept (id int primary key)").await;
    client.run("insert into kept select n from generate_series(1, 5000) n").await;
    let table = client.number("select 'l'::regclass::oid").await;
    let kept = client.number("select 'kept'::regclass::oid").await;
    let mut reader = Client::new(&opened).await;
    reader.run("begin isolation level repeatable read read only").await;
    assert_eq!(reader.number("select count(*) from l").await, 40_000);
    let begun = std::time::Instant::now();
    client.run("drop table l").await;
    assert_eq!(client.code("select count(*) from l").await, "42P01");
    let left = "select bytes from telesto_space where kind = 'dropped'";
    while begun.elapsed() < Duration::from_secs(3) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(reader.number("select count(*) from l where a >= 0").await, 40_000);
        assert_eq!(keys(&opened, table).await, 80_000, "nothing is deleted");
    }
    assert!(client.number(left).await > 1_000_000);
    reader.run("commit").await;
    while keys(&opened, table).await != 0 || client.number(left).await != 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(begun.elapsed() < Duration::from_secs(500), "{}", keys(&opened, table).await);
    }
    assert_eq!(client.number("select telesto_check_table('kept')").await, 5000);
    assert_eq!(keys(&opened, kept).await, 5000);
}

/// A process knows what it has applied; which indexes there are to build again it must know as of
/// now.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reindex_is_about_the_indexes_as_another_process_left_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let processes = [process(dir.path(), 0).await, process(dir.path(), 1).await];
    let mut one = Client::new(&processes[0]).await;
    let mut other = Client::new(&processes[1]).await;
    large(&mut one, 12_000).await;
    one.run("create index l_a on l (a)").await;
    assert_eq!(other.number("select telesto_check_table('l')").await, 12_000);
    one.run("reindex index concurrently l_a").await;
    other.run("reindex table l").await;
    assert_eq!(other.number("select telesto_check_table('l')").await, 12_000);
}

/// How a statement comes to its end before it is done.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Cancel,
    Timeout,
    /// Its session goes.
    Leave,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reindex_that_waits_for_the_build_of_another_leaves_it_alone_when_it_is_stopped() {
    let dir = tempfile::tempdir().expect("a folder");
    let processes = [process(dir.path(), 0).await, process(dir.path(), 1).await];
    let mut client = Client::new(&processes[0]).await;
    large(&mut client, 12_000).await;
    for (build, waiter, stop, at) in [
        ("create index l_b on l (b)", "reindex index l_b", Stop::Cancel, 1),
        ("create index l_b on l (b)", "reindex table l", Stop::Timeout, 0),
        ("create index concurrently l_b on l (b)", "reindex table l", Stop::Leave, 1),
        (
            "create index concurrently l_b on l (b)",
            "reindex index concurrently l_b",
            Stop::Cancel,
            0,
        ),
        ("reindex index l_b", "reindex table concurrently l", Stop::Cancel, 0),
        ("reindex index l_b", "reindex index l_b", Stop::Leave, 0),
        ("reindex index concurrently l_b", "reindex index l_b", Stop::Timeout, 1),
    ] {
        let told = format!("{build}, {waiter}, {stop:?}");
        let mut tries = 0;
        loop {
            client.run("drop index if exists l_b").await;
            if build.starts_with("reindex") {
                client.run("create index l_b on l (b)").await;
            }
            let mut builder = Client::new(&processes[0]).await;
            let built = tokio::spawn(async move { builder.rows(build).await.map(|_| ()) });
            let mut second = Client::new(&processes[at]).await;
            // Its process knows of the index then.
            let met = under_way(&mut second, &built).await;
            if let Stop::Timeout = stop {
                second.run("set statement_timeout = 100").await;
            }
            let cancel = second.0.cancel_handle();
            let waited = tokio::spawn(async move { second.rows(waiter).await.map(|_| ()) });
            tokio::time::sleep(Duration::from_millis(100)).await;
            match stop {
                Stop::Cancel => cancel.cancel(),
                Stop::Timeout => {}
                Stop::Leave => waited.abort(),
            }
            let waited = waited.await;
            // What a stopped statement leaves behind it does so behind its answer.
            let stopped_first = met && !built.is_finished();
            // Whoever was waited for has built it.
            assert_eq!(built.await.expect("no panic"), Ok(()), "{told}");
            let whole =
                "select count(*) from pg_index where indexrelid = 'l_b'::regclass and indisvalid";
            assert_eq!(client.number(whole).await, 1, "{told}");
            if stopped_first && !matches!(waited, Ok(Ok(()))) {
                if let Ok(waited) = waited {
                    assert_eq!(waited.expect_err(&told).0, "57014", "{told}");
                }
                break;
            }
            // The build was done before: again.
            tries += 1;
            assert!(tries < TRIES, "{told}: the build always ends first");
        }
        assert_eq!(client.number("select telesto_check_table('l')").await, 12_000, "{told}");
        // Nothing is left of what was stopped.
        let filling = "select count(*) from pg_stat_progress_create_index";
        assert_eq!(client.number(filling).await, 0, "{told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reindex_builds_the_index_that_another_has_given_up() {
    let dir = tempfile::tempdir().expect("a folder");
    let opened = process(dir.path(), 0).await;
    let mut client = Client::new(&opened).await;
    large(&mut client, 12_000).await;
    for (build, waiter) in [
        ("create index concurrently l_b on l (b)", "reindex index l_b"),
        ("reindex index l_b", "reindex table l"),
        ("reindex index concurrently l_b", "reindex index concurrently l_b"),
    ] {
        let told = format!("{build}, {waiter}");
        let mut tries = 0;
        loop {
            client.run("drop index if exists l_b").await;
            if build.starts_with("reindex") {
                client.run("create index l_b on l (b)").await;
            }
            let mut builder = Client::new(&opened).await;
            let cancel = builder.0.cancel_handle();
            let built = tokio::spawn(async move { builder.rows(build).await.map(|_| ()) });
            let met = under_way(&mut client, &built).await;
            let mut second = Client::new(&opened).await;
            let waited = tokio::spawn(async move { second.rows(waiter).await.map(|_| ()) });
            tokio::time::sleep(Duration::from_millis(100)).await;
            let waits = met && !waited.is_finished();
            cancel.cancel();
            let stopped = built.await.expect("no panic").is_err();
            let waited = waited.await.expect("no panic");
            if waits && stopped {
                assert_eq!(waited, Ok(()), "{told}");
                break;
            }
            tries += 1;
            assert!(tries < TRIES, "{told}: the build always ends first");
        }
        let whole =
            "select count(*) from pg_index where indexrelid = 'l_b'::regclass and indisvalid";
        assert_eq!(client.number(whole).await, 1, "{told}");
        assert_eq!(client.number("select telesto_check_table('l')").await, 12_000, "{told}");
    }
}
