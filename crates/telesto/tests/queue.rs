//! Workers that take jobs off one queue with FOR UPDATE SKIP LOCKED, and NOWAIT: each job is done
//! once, and nobody conflicts.
#![recursion_limit = "512"]
#![allow(missing_docs, reason = "a test")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test is an outermost layer: real time, real tasks"
)]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use telesto::LogKind;
use telesto::open::{Opened, Options, open};
use telesto_sql::{Datum, ResultSink, Session, SessionOptions, StatementResult};

const JOBS: i32 = 40;
const WORKERS: usize = 4;

async fn process(dir: &Path, log: LogKind) -> Opened {
    let mut options = Options::new(format!("file://{}", dir.join("bucket").display()));
    options.log = Some(log);
    options.data_dir = Some(dir.join("node"));
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

    /// Rows, or the SQLSTATE and text of the error.
    async fn rows(&mut self, sql: &str) -> Result<Vec<Vec<Datum>>, String> {
        let mut rows = Rows::default();
        // Boxed: the futures of many statements in one function would not fit a thread's stack.
        match Box::pin(self.0.execute_simple(sql, &mut rows)).await {
            Ok(()) => Ok(rows.0),
            Err(error) => Err(format!("{} {error}", error.code())),
        }
    }

    async fn ids(&mut self, sql: &str) -> Result<Vec<i32>, String> {
        let id = |row: &Vec<Datum>| match row.first() {
            Some(Datum::Int4(id)) => *id,
            other => panic!("{sql}: {other:?}"),
        };
        Ok(self.rows(sql).await?.iter().map(id).collect())
    }

    async fn run(&mut self, sql: &str) {
        if let Err(error) = self.rows(sql).await {
            panic!("{sql}: {error}");
        }
    }
}

/// How a worker takes jobs.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// A block: look, work, mark.
    Block(&'static str),
    /// One statement that gives the ids.
    Statement(&'static str),
}

const WAYS: [Way; 7] = [
    Way::Block("select id from job where state = 'new' order by id limit 1 for update skip locked"),
    Way::Block(
        "select id from job where state = 'new' order by due desc, id limit 2 for no key update of job skip locked",
    ),
    Way::Block("select id from job where state = 'new' for update skip locked limit 1 offset 1"),
    Way::Statement(
        "update job set state = 'done' where id = (select id from job where state = 'new' order by id limit 1
         for update skip locked) returning id",
    ),
    Way::Statement(
        "delete from job where id in (select id from job where state = 'new' order by due fetch first 3 rows only
         for update skip locked) returning id",
    ),
    Way::Statement(
        "with next as (select id from job where state = 'new' order by due limit 2 for update skip locked)
         update job set state = 'done' from next where job.id = next.id returning job.id",
    ),
    Way::Statement(
        "with next as materialized (select id from job where state = 'new' limit 1 for share skip locked)
         update job set state = 'done' where id in (select id from next) returning id",
    ),
];

/// Takes jobs until there are none; gives them, and counts conflicts the client saw.
async fn work(mut client: Client, way: Way, conflicts: Arc<AtomicU64>) -> Vec<i32> {
    let mut mine = Vec::new();
    let mut empty = 0;
    // Others may give jobs back, or hold the last ones for a moment.
    while empty < 5 {
        let taken = match way {
            Way::Statement(sql) => client.ids(sql).await,
            Way::Block(sql) => {
                let block = async {
                    client.rows("begin").await?;
                    let ids = client.ids(sql).await?;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    for id in &ids {
                        let done = format!("update job set state = 'done' where id = {id}");
                        client.rows(&done).await?;
                    }
                    client.rows("commit").await?;
                    Ok::<_, String>(ids)
                };
                let ids = block.await;
                if ids.is_err() {
                    client.run("rollback").await;
                }
                ids
            }
        };
        match taken {
            Ok(ids) if ids.is_empty() => {
                empty += 1;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Ok(ids) => {
                empty = 0;
                mine.extend(ids);
            }
            Err(error) => {
                assert!(error.starts_with("40001"), "{way:?}: {error}");
                conflicts.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    mine
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_job_is_taken_once_and_workers_do_not_conflict() {
    let dir = tempfile::tempdir().expect("a folder");
    let opened = process(dir.path(), LogKind::Quorum).await;
    let mut client = Client::new(&opened).await;
    let seen = Arc::new(Mutex::new(0_usize));
    for index in ["", "create index job_state on job (state, due)"] {
        for level in ["read committed", "repeatable read", "serializable"] {
            for way in WAYS {
                client.run("drop table if exists job").await;
                client.run("create table job (id int primary key, state text, due int)").await;
                client.run(index).await;
                let rows = format!(
                    "insert into job select g, 'new', g % 7 from generate_series(1, {JOBS}) g"
                );
                client.run(&rows).await;
                let conflicts = Arc::new(AtomicU64::new(0));
                let mut workers = Vec::new();
                for _ in 0..WORKERS {
                    let mut client = Client::new(&opened).await;
                    client.run(&format!("set default_transaction_isolation = '{level}'")).await;
                    workers.push(tokio::spawn(work(client, way, Arc::clone(&conflicts))));
                }
                let mut all = Vec::new();
                let mut busy = 0;
                for worker in workers {
                    let mine = worker.await.expect("a worker");
                    busy += usize::from(!mine.is_empty());
                    all.extend(mine);
                }
                all.sort_unstable();
                // The way that passes the first one over leaves the last one.
                let left = usize::from(matches!(way, Way::Block(sql) if sql.contains("offset")));
                let expected = usize::try_from(JOBS).expect("small") - left;
                assert_eq!(all.len(), expected, "{way:?} at {level}");
                all.dedup();
                assert_eq!(all.len(), expected, "twice: {way:?} at {level}");
                let conflicts = conflicts.load(Ordering::Relaxed);
                assert_eq!(conflicts, 0, "{way:?} at {level}, {index}: workers conflicted");
                *seen.lock().expect("no panic") += busy;
            }
        }
    }
    let seen = *seen.lock().expect("no panic");
    assert!(seen > 2 * 3 * WAYS.len(), "one worker did everything: nothing was tested");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nowait_fails_at_once_where_another_has_the_row() {
    let dir = tempfile::tempdir().expect("a folder");
    let opened = process(dir.path(), LogKind::Bucket).await;
    let [mut a, mut b] = [Client::new(&opened).await, Client::new(&opened).await];
    a.run("create table t (id int primary key, v int, w int)").await;
    a.run("insert into t select g, g, g from generate_series(1, 5) g").await;
    for taking in [
        "select * from t where id = 2 for update",
        "select * from t where v = 2 for update",
        "select * from t where id between 2 and 3 order by id limit 1 for share",
        "update t set w = 0 where id = 2",
        "delete from t where id = 2",
    ] {
        a.run("begin").await;
        a.run(taking).await;
        for (asking, ids) in [
            ("select id from t where id = 2 for update nowait", None),
            ("select id from t where v = 2 for share nowait", None),
            ("select id from t order by id for update nowait", None),
            ("select id from t order by w desc limit 1 for update nowait", Some(vec![5])),
            ("select id from t where id = 3 for update nowait", Some(vec![3])),
            ("select id from t where id = 2 for update skip locked", Some(vec![])),
            ("select id from t order by id limit 2 for update skip locked", Some(vec![1, 3])),
            ("select id from t where id in (1, 2, 3) for share skip locked", Some(vec![1, 3])),
            ("select id from t order by id offset 1 for update skip locked", Some(vec![3, 4, 5])),
        ] {
            b.run("begin").await;
            let what = format!("{taking}; {asking}");
            match (b.ids(asking).await, ids) {
                (Err(error), None) => {
                    let expected = "55P03 could not obtain lock on row in relation \"t\"";
                    assert!(error.starts_with(expected), "{what}: {error}");
                }
                (Ok(found), Some(ids)) => assert_eq!(found, ids, "{what}"),
                (found, ids) => panic!("{what}: {found:?}, not {ids:?}"),
            }
            b.run("rollback").await;
        }
        a.run("rollback").await;
        assert_eq!(b.ids("select id from t where id = 2 for update nowait").await, Ok(vec![2]));
    }
    // Changed after the snapshot: passed over, where it could not be changed any more.
    b.run("begin isolation level repeatable read").await;
    assert_eq!(b.ids("select id from t where id = 1").await, Ok(vec![1]));
    a.run("update t set w = w + 1 where id = 1").await;
    let skipping = "select id, w from t where id < 3 order by id for update skip locked";
    assert_eq!(b.ids(skipping).await, Ok(vec![2]));
    b.run("update t set w = 7 where id = 2").await;
    b.run("commit").await;
    // What was taken holds until the commit.
    b.run("begin isolation level read committed").await;
    assert_eq!(b.ids(skipping).await, Ok(vec![1, 2]));
    let changing =
        tokio::time::timeout(Duration::from_secs(5), a.rows("update t set w = 9 where id = 1"));
    assert!(changing.await.expect("waits a second at most").is_ok());
    b.run("update t set v = 9 where id = 2").await;
    assert!(b.rows("commit").await.expect_err("changed").starts_with("40001"));
}
