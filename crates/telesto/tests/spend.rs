//! Who pays for what: accounts add up to the bill, views tell the same, spend caps hold.
#![allow(missing_docs, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a real runtime, real time")]

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use telesto::open::{Opened, open};
use telesto::{LogKind, Options};
use telesto_bucket::Class;
use telesto_meter::{Charge, REQUEST, Resource};
use telesto_sql::{ResultSink, Session, SessionOptions, SqlState, StatementResult};

/// Collects rows as text.
#[derive(Default)]
struct Table(Vec<Vec<String>>);

#[async_trait]
impl ResultSink for Table {
    async fn result(&mut self, result: StatementResult) -> telesto_sql::Result<()> {
        if let StatementResult::Rows { columns, rows, .. } = result {
            let style = telesto_sql::types::TextStyle::default();
            for row in rows.collect().await? {
                let texts = row.iter().zip(columns.iter());
                self.0
                    .push(texts.map(|(value, column)| value.to_text(&column.ty, &style)).collect());
            }
        }
        Ok(())
    }
}

async fn tried(session: &mut Session, sql: &str) -> telesto_sql::Result<Vec<Vec<String>>> {
    let mut table = Table::default();
    session.execute_simple(sql, &mut table).await?;
    Ok(table.0)
}

async fn run(session: &mut Session, sql: &str) -> Vec<Vec<String>> {
    tried(session, sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
}

async fn one(session: &mut Session, sql: &str) -> String {
    run(session, sql).await.remove(0).remove(0)
}

async fn database(folder: &Path) -> Opened {
    let options = Options {
        prices: Some("s3-standard".to_owned()),
        log: Some(LogKind::Bucket),
        // Nothing happens beside what the test does.
        checkpoint_interval: Some(std::time::Duration::from_secs(100_000)),
        retention: Some(std::time::Duration::from_secs(100_000)),
        ..Options::new(format!("file://{}", folder.display()))
    };
    open(&telesto_runtime::env(), &options).await.expect("opens")
}

async fn session(opened: &Opened, user: &str, application: &str) -> Session {
    let options = SessionOptions {
        user: user.to_owned(),
        application_name: application.to_owned(),
        ..SessionOptions::default()
    };
    opened.sql.session(options).await.expect("session")
}

async fn close(opened: Opened) {
    telesto_txn::Database::shutdown(&*opened.engine).await.expect("closed");
}

/// What accounts and jobs hold beside what the bucket counted, computing apart: that goes on as one
/// looks.
fn books(opened: &Opened) -> (Charge, Charge, Charge) {
    let without_cpu =
        |charge: Charge| charge - Charge::of(Resource::Cpu, charge.get(Resource::Cpu));
    let accounts = opened.sql.accounts();
    let own: Charge = accounts.entries().iter().map(|(_, stats)| stats.charge).sum();
    let jobs: Charge = opened.bucket.meter().jobs().all().into_iter().sum();
    (without_cpu(own), jobs, without_cpu(opened.bucket.meter().bill()))
}

/// The books, which add up to the bill.
async fn balanced(opened: &Opened) -> (Charge, Charge, Charge) {
    // What was given up on may have a request under way.
    for _ in 0..100 {
        let (own, jobs, bill) = books(opened);
        if own + jobs == bill {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let (own, jobs, bill) = books(opened);
    assert_eq!(own + jobs, bill);
    (own, jobs, bill)
}

async fn adds_up(opened: &Opened) {
    let (own, jobs, bill) = balanced(opened).await;
    let counted = opened.bucket.meter().snapshot();
    assert_eq!(bill.get(Resource::Puts), counted.requests(Class::Put) * REQUEST);
    assert!(own.get(Resource::Puts) > 0 && jobs.get(Resource::Puts) > 0, "{own:?} {jobs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accounts_add_up_to_the_bill_whatever_becomes_of_who_pays() {
    let folder = tempfile::tempdir().expect("folder");
    let opened = Arc::new(database(folder.path()).await);
    let mut ada = session(&opened, "telesto", "shop").await;
    run(&mut ada, "CREATE TABLE t (id int PRIMARY KEY, v int)").await;
    run(&mut ada, "INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i").await;
    let workers = (0..6).map(|who| {
        let opened = Arc::clone(&opened);
        tokio::spawn(async move {
            let name = if who % 2 == 0 { "shop" } else { "jobs" };
            let mut s = session(&opened, "telesto", name).await;
            for n in 0..15 {
                // All meet on few rows: conflicts, repetitions, shared commits.
                let sql =
                    format!("UPDATE t SET v = v + 1 WHERE id = {} /*action='a{n}'*/", 1 + n % 3);
                if n % 5 == 4 {
                    // A client that goes away in the middle.
                    let mut gone = session(&opened, "telesto", name).await;
                    let patience = std::time::Duration::from_micros(300 * n);
                    tokio::time::timeout(patience, tried(&mut gone, &sql)).await.ok();
                } else {
                    tried(&mut s, &sql).await.ok();
                }
            }
            run(&mut s, "SELECT sum(v) FROM t").await;
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.expect("worked");
    }
    // Who takes a lock pays for its row, who goes away meanwhile too.
    let mut locks = session(&opened, "telesto", "locks").await;
    for n in 0..6 {
        let sql = format!("SELECT pg_advisory_lock({n})");
        let asked = Box::pin(tried(&mut locks, &sql));
        let patience = std::time::Duration::from_micros(if n < 3 { 10_000_000 } else { 200 * n });
        tokio::time::timeout(patience, asked).await.ok();
    }
    drop(locks);
    let paid =
        "SELECT puts >= 3 FROM telesto_costs WHERE dimension = 'application' AND name = 'locks'";
    assert_eq!(one(&mut ada, paid).await, "t");
    opened.engine.fold().await.expect("folded");
    // What was given up on is over when another commit is.
    run(&mut ada, "UPDATE t SET v = 0 WHERE id = 9").await;
    adds_up(&opened).await;

    // The views add up too, to the last digit; the query counts for itself only when it is over.
    let sums = run(
        &mut ada,
        "SELECT dimension, sum(puts), sum(bytes_sent), sum(own_dollars) + sum(shared_dollars) - sum(dollars), count(*)
           FROM telesto_costs GROUP BY dimension ORDER BY dimension",
    )
    .await;
    assert_eq!(sums.len(), 6, "{sums:?}");
    let counted = opened.bucket.meter().snapshot();
    let sent = counted.total(|_, _| true).uploaded_bytes.to_string();
    for row in &sums {
        assert_eq!(
            row[1].parse::<f64>().expect("puts"),
            counted.requests(Class::Put) as f64,
            "{row:?}"
        );
        assert_eq!(row[2].split('.').next(), Some(sent.as_str()), "{row:?}");
        assert_eq!(row[3].parse::<f64>().expect("dollars"), 0.0, "{row:?}");
    }
    let differ = "SELECT count(DISTINCT d) FROM (SELECT sum(dollars) AS d FROM telesto_costs WHERE name <> 'memory'
        AND name <> 'computing' AND dimension IN ('role', 'application', 'tag', 'statement', 'database') GROUP BY dimension) s";
    assert_eq!(one(&mut ada, differ).await, "1");
    let tags =
        "SELECT count(*) FROM telesto_costs WHERE dimension = 'tag' AND name LIKE 'action=%'";
    assert_eq!(one(&mut ada, tags).await, "15");
    let shared =
        "SELECT count(*) FROM telesto_costs WHERE dimension = 'application' AND shared_dollars > 0";
    assert!(
        one(&mut ada, shared).await.parse::<u32>().expect("count") >= 2,
        "the fold was for those who wrote"
    );
    drop(ada);
    close(Arc::into_inner(opened).expect("the last")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_tell_what_was_spent_and_reset_forgets_no_dollar() {
    let folder = tempfile::tempdir().expect("folder");
    let opened = database(folder.path()).await;
    let mut s = session(&opened, "telesto", "shop").await;
    s.set_backend_pid(77);
    run(&mut s, "CREATE TABLE t (id int PRIMARY KEY)").await;
    for id in 0..3 {
        run(&mut s, &format!("INSERT INTO t VALUES ({id})")).await;
    }
    let query =
        "SELECT calls, rows, puts, query, wal_bytes > 0, dollars > 0.000015 FROM pg_stat_statements
        WHERE query LIKE 'INSERT%'";
    assert_eq!(run(&mut s, query).await, [["3", "3", "3", "INSERT INTO t VALUES ($1)", "t", "t"]]);
    let cost = run(&mut s, "SHOW telesto.cost").await;
    assert_eq!(cost.len(), 3);
    assert!(cost[2][0].starts_with("session: ") && cost[2][0].contains(" 4 put, "), "{cost:?}");
    run(&mut s, "BEGIN").await;
    run(&mut s, "INSERT INTO t VALUES (10)").await;
    run(&mut s, "COMMIT").await;
    let cost = run(&mut s, "SHOW telesto.cost").await;
    assert!(cost[1][0].starts_with("transaction: ") && cost[1][0].contains(" 1 put, "), "{cost:?}");
    let own =
        run(&mut s, "SELECT role, application, puts FROM telesto_session_costs WHERE pid = 77")
            .await;
    assert_eq!(own, [["telesto", "shop", "5"]]);
    let plan = run(&mut s, "EXPLAIN (ANALYZE, COST) SELECT * FROM t WHERE id = 1").await;
    let line = |begin: &str| plan.iter().any(|row| row[0].starts_with(begin));
    assert!(line("Cost of processor seconds: ") && line("Cost: $0.0000"), "{plan:?}");

    let bill = "SELECT sum(puts) FROM telesto_costs WHERE dimension = 'role'";
    let before = one(&mut s, bill).await;
    run(&mut s, "SELECT pg_stat_statements_reset()").await;
    assert_eq!(run(&mut s, query).await, Vec::<Vec<String>>::new());
    assert_eq!(one(&mut s, bill).await, before);
    assert_eq!(one(&mut s, "SELECT dealloc FROM pg_stat_statements_info").await, "0");

    let at = "SELECT unit_dollars FROM telesto_bill WHERE resource = 'put requests'";
    assert_eq!(one(&mut s, at).await, "0.000005");
    let storage = "SELECT bytes > 0, dollars_per_month > 0 FROM telesto_storage WHERE kind = 'log'";
    assert_eq!(run(&mut s, storage).await, [["t", "t"]]);
    run(&mut s, "SET telesto.prices = 'r2'").await;
    assert_eq!(one(&mut s, at).await, "0.0000045");
    run(&mut s, "SET telesto.prices = 'nobody'").await;
    let error = tried(&mut s, at).await.expect_err("no such sheet");
    assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE);
    run(&mut s, "RESET telesto.prices").await;
    drop(s);
    close(opened).await;
}

fn refused(result: telesto_sql::Result<Vec<Vec<String>>>, words: &str) {
    let error = result.expect_err(words);
    assert_eq!(error.code(), SqlState::CONFIGURATION_LIMIT_EXCEEDED, "{error:?}");
    assert!(error.message().contains(words), "{error:?}");
    assert!(error.message().contains("until 20"), "the time of reset: {error:?}");
}

async fn spend_until_refused(s: &mut Session) -> u32 {
    for n in 0..2000 {
        if let Err(error) = tried(s, "UPDATE t SET v = v + 1 WHERE id = 1").await {
            refused(Err(error), "writes are refused");
            return n;
        }
    }
    panic!("never refused");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cap_refuses_writes_and_cold_reads_and_lets_the_rest_go_on() {
    let folder = tempfile::tempdir().expect("folder");
    let opened = database(folder.path()).await;
    let mut admin = session(&opened, "telesto", "admin").await;
    run(&mut admin, "CREATE TABLE t (id int PRIMARY KEY, v int)").await;
    run(&mut admin, "INSERT INTO t VALUES (1, 0), (2, 0)").await;
    // A hundred PUTs a month: $0.0005.
    let set = "SELECT telesto_cap_set('jobs', 'application', 'jobs', 0.0005, 'month', 'enforce')";
    run(&mut admin, set).await;
    let mut jobs = session(&opened, "telesto", "jobs").await;
    let puts = opened.bucket.meter().snapshot().requests(Class::Put);
    let done = spend_until_refused(&mut jobs).await;
    let puts = opened.bucket.meter().snapshot().requests(Class::Put) - puts;
    // 100 PUTs less what reads of the tail cost; slices are PUTs of their own, not of this
    // application's.
    assert!((40..=100).contains(&done), "{done} writes, {puts} puts");
    let caps = "SELECT state, spent_dollars <= dollars + slice_dollars, refused_writes, granted_dollars = dollars FROM telesto_caps";
    assert_eq!(run(&mut admin, caps).await, [["refusing", "t", "1", "t"]]);

    // Memory is read, the bucket is not.
    run(&mut jobs, "SET telesto.consistency = session").await;
    assert_eq!(run(&mut jobs, "SELECT id FROM t WHERE id = 2").await, [["2"]]);
    run(&mut jobs, "SET telesto.consistency = strict").await;
    // What is left is less than a PUT, and enough for some GETs.
    let mut looks = 0;
    let error = loop {
        match tried(&mut jobs, "SELECT id FROM t WHERE id = 2").await {
            Ok(_) => looks += 1,
            Err(error) => break error,
        }
        assert!(looks <= 13, "{looks} strict reads");
    };
    refused(Err(error), "at $0.0000004 each");
    // Others spend as they like; what keeps the data safe is not asked.
    run(&mut admin, "UPDATE t SET v = 0 WHERE id = 2").await;
    opened.engine.fold().await.expect("folded");
    drop((admin, jobs));
    close(opened).await;

    // The cap outlives the process, and what was spent of it too.
    let opened = database(folder.path()).await;
    let mut admin = session(&opened, "telesto", "admin").await;
    run(&mut admin, "SELECT 1 FROM t").await;
    let mut jobs = session(&opened, "telesto", "jobs").await;
    refused(tried(&mut jobs, "UPDATE t SET v = 9 WHERE id = 1").await, "writes are refused");
    // Whoever may raise it does.
    run(&mut jobs, "SELECT telesto_cap_set('jobs', 'application', 'jobs', 5, 'month', 'enforce')")
        .await;
    run(&mut jobs, "UPDATE t SET v = 9 WHERE id = 1").await;
    run(&mut admin, "SELECT telesto_cap_drop('jobs')").await;
    run(&mut admin, "SELECT 1 FROM t").await;
    assert!(run(&mut admin, "SELECT * FROM telesto_caps").await.is_empty());
    let error = tried(&mut admin, "SELECT telesto_cap_drop('jobs')").await.expect_err("gone");
    assert_eq!(error.code(), SqlState::UNDEFINED_OBJECT);
    drop((admin, jobs));
    close(opened).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_a_cap_and_a_warning_one_only_counts() {
    let folder = tempfile::tempdir().expect("folder");
    let (first, second) = (database(folder.path()).await, database(folder.path()).await);
    let mut admin = session(&first, "telesto", "admin").await;
    run(&mut admin, "CREATE TABLE t (id int PRIMARY KEY, v int)").await;
    run(&mut admin, "INSERT INTO t VALUES (1, 0)").await;
    run(
        &mut admin,
        "SELECT telesto_cap_set('u', 'statement', 'update t%', 0.0004, 'month', 'enforce')",
    )
    .await;
    run(&mut admin, "SELECT telesto_cap_set('w', 'role', 'telesto', 0.0000001, 'month', 'warn')")
        .await;
    let mut here = session(&first, "telesto", "a").await;
    let mut there = session(&second, "telesto", "b").await;
    run(&mut there, "SELECT 1 FROM t").await;
    let mut done = (0, 0);
    let mut ended = (false, false);
    while !ended.0 || !ended.1 {
        for (session, done, ended) in
            [(&mut here, &mut done.0, &mut ended.0), (&mut there, &mut done.1, &mut ended.1)]
        {
            match tried(session, "UPDATE t SET v = v + 1 WHERE id = 1").await {
                Ok(_) => *done += 1,
                Err(error) => {
                    refused(Err(error), "\"u\"");
                    *ended = true;
                }
            }
        }
        assert!(done.0 + done.1 <= 80, "80 PUTs are all there is: {done:?}");
    }
    assert!(done.0 > 5 && done.1 > 5, "both had some: {done:?}");
    // Another statement is not concerned.
    run(&mut here, "INSERT INTO t VALUES (2, 0)").await;
    assert!(
        here.take_notices()
            .iter()
            .any(|notice| notice.message.contains("spend cap \"w\" is reached: it warns only"))
    );
    let dry = "SELECT name, would_refuse_writes > 5, dollars_beyond > 0 FROM telesto_cap_dry_run";
    assert_eq!(run(&mut admin, dry).await, [["w", "t", "t"]]);
    // Not for everybody.
    run(&mut admin, "CREATE ROLE bob LOGIN").await;
    let mut bob = session(&first, "bob", "").await;
    for sql in [
        "SELECT telesto_cap_drop('u')",
        "SELECT telesto_cap_set('u', 'role', 'x', 1, 'day', 'warn')",
        "SELECT pg_stat_statements_reset()",
    ] {
        let error = tried(&mut bob, sql).await.expect_err(sql);
        assert_eq!(error.code().0, "42501", "{sql}");
    }
    for sql in [
        "SELECT telesto_cap_set('u', 'planet', 'x', 1, 'day', 'warn')",
        "SELECT telesto_cap_set('u', 'role', 'x', -1, 'day', 'warn')",
        "SELECT telesto_cap_set('u', 'role', 'x', 1, 'century', 'warn')",
        "SELECT telesto_cap_set('u', 'role', 'x', 1, 'day', 'beg')",
        "SELECT telesto_cap_set('u', 'role', 'x', 1, 'day', 'warn', 99)",
        "SELECT telesto_cap_set('', 'role', 'x', 1, 'day', 'warn')",
    ] {
        let error = tried(&mut admin, sql).await.expect_err(sql);
        assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE, "{sql}");
    }
    drop((admin, here, there, bob));
    close(first).await;
    close(second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_spends_without_statements_counts_for_the_database() {
    let folder = tempfile::tempdir().expect("folder");
    let first = database(folder.path()).await;
    let mut admin = session(&first, "telesto", "admin").await;
    run(&mut admin, "CREATE TABLE t (id int PRIMARY KEY, v int)").await;
    run(&mut admin, "INSERT INTO t VALUES (1, 0)").await;
    // 200 PUTs an hour.
    let set = "SELECT telesto_cap_set('all', 'database', 'telesto', 0.001, 'hour', 'enforce')";
    run(&mut admin, set).await;
    run(&mut admin, "UPDATE t SET v = 1 WHERE id = 1").await;
    // Another process, which no client of SQL uses: what it writes is in no session's scope, as
    // over HTTP.
    let second = database(folder.path()).await;
    for _ in 0..1000 {
        if second.sql.accounts().counts_for_caps() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(second.sql.accounts().counts_for_caps(), "it knows of the cap without a statement");
    for n in 0..300_u32 {
        let options = telesto_txn::TxnOptions::default();
        let txn = telesto_txn::Database::begin(&*second.engine, options).await.expect("begun");
        let key = bytes::Bytes::from(format!("\u{ff}\u{ff}key {n}"));
        txn.put(key, bytes::Bytes::from_static(b"value")).await.expect("put");
        txn.commit().await.expect("committed");
    }
    second.sql.accounts().count_jobs().await;
    let (_, jobs, _) = balanced(&second).await;
    assert!(jobs.get(Resource::Logged) > 300 * 5, "its share of what the log costs: {jobs:?}");
    let write = "UPDATE t SET v = v + 1 WHERE id = 1";
    let mut done = 0;
    let error = loop {
        match tried(&mut admin, write).await {
            Ok(_) => done += 1,
            Err(error) => break error,
        }
        assert!(done < 60, "the first process had at most a few slices");
    };
    refused(Err(error), "\"all\"");
    drop(admin);
    close(first).await;
    close(second).await;
}

/// Two sessions of a capped role that has nothing left; the second one has become another role
/// before.
async fn bob_has_spent_all(opened: &Opened, admin: &mut Session) -> (Session, Session) {
    for sql in [
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "INSERT INTO t VALUES (1, 0), (2, 0)",
        "CREATE SEQUENCE s",
        "CREATE ROLE bob LOGIN",
        "CREATE ROLE staff",
        "GRANT staff, pg_monitor TO bob",
        "GRANT ALL ON t, s TO bob, staff",
        "SELECT telesto_cap_set('bob', 'role', 'bob', 0.0005, 'month', 'enforce')",
    ] {
        run(admin, sql).await;
    }
    let mut acting = session(opened, "bob", "psql").await;
    run(&mut acting, "SET ROLE staff").await;
    let mut bob = session(opened, "bob", "psql").await;
    spend_until_refused(&mut bob).await;
    // What needs no look at the log does not stop there already.
    for session in [&mut bob, &mut acting] {
        run(session, "SET telesto.consistency = session").await;
    }
    (bob, acting)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cap_of_a_role_is_not_left_behind() {
    const WRITE: &str = "UPDATE t SET v = v + 1 WHERE id = 2";
    let folder = tempfile::tempdir().expect("folder");
    let opened = database(folder.path()).await;
    let mut admin = session(&opened, "telesto", "admin").await;
    let (mut bob, mut acting) = bob_has_spent_all(&opened, &mut admin).await;
    let mut went_on = Vec::new();
    if tried(&mut acting, WRITE).await.is_ok() {
        went_on.push(("as another role", Ok(Vec::new())));
    }
    for (before, sql, after) in [
        ("SET application_name = 'another'", WRITE, "RESET application_name"),
        ("PREPARE p AS UPDATE t SET v = 7 WHERE id = 2", "EXECUTE p", "DEALLOCATE p"),
        ("BEGIN", WRITE, "ROLLBACK"),
        // A name of its own that looks like the function which changes caps.
        (
            "",
            "SELECT telesto_cap_x FROM (SELECT 1 AS telesto_cap_x) q; UPDATE t SET v = 9 WHERE id = 2",
            "",
        ),
        ("", "EXPLAIN ANALYZE UPDATE t SET v = v + 1 WHERE id = 2", ""),
        // What writes and does not say so.
        ("", "SELECT pg_notify('c', 'x')", ""),
        ("", "NOTIFY c", ""),
        ("", "SELECT setval('s', 7)", ""),
        ("", "SELECT pg_advisory_lock(5)", ""),
        ("", "SELECT pg_try_advisory_lock_shared(6)", ""),
        ("BEGIN", "SELECT pg_advisory_xact_lock(7)", "ROLLBACK"),
        ("", "CREATE INDEX CONCURRENTLY i ON t (v)", ""),
    ] {
        if !before.is_empty() {
            run(&mut bob, before).await;
        }
        let code = tried(&mut bob, sql).await.map_err(|error| error.code());
        if code != Err(SqlState::CONFIGURATION_LIMIT_EXCEEDED) {
            went_on.push((sql, code));
        }
        if !after.is_empty() {
            run(&mut bob, after).await;
        }
    }
    assert_eq!(went_on, []);
    let mut other = session(&opened, "bob", "another").await;
    refused(tried(&mut other, WRITE).await, "writes are refused");
    // A page of a listing is a request, and a dear one.
    let listed = "SELECT count(*) FROM telesto_storage";
    refused(tried(&mut bob, listed).await, "at $0.000005 each");
    // The books are filled with tags: from here on accounts are those of `(others)`.
    for n in 0..telesto_meter::PRINCIPALS + 5 {
        run(&mut bob, &format!("SELECT 1 /*a='{n}'*/")).await;
    }
    run(&mut bob, "SET application_name = 'nobody has heard of'").await;
    refused(tried(&mut bob, WRITE).await, "writes are refused");
    assert_eq!(one(&mut admin, "SELECT v FROM t WHERE id = 2").await, "0");
    drop((admin, bob, acting, other));
    close(opened).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn warning_cap_counts_what_all_processes_spend() {
    let folder = tempfile::tempdir().expect("folder");
    let (first, second) = (database(folder.path()).await, database(folder.path()).await);
    let mut admin = session(&first, "telesto", "admin").await;
    run(&mut admin, "CREATE TABLE t (id int PRIMARY KEY, v int)").await;
    run(&mut admin, "INSERT INTO t VALUES (1, 0)").await;
    // 80 PUTs.
    let cap = "SELECT telesto_cap_set('w', 'statement', 'update t%', 0.0004, 'month', 'warn')";
    run(&mut admin, cap).await;
    for opened in [&first, &second] {
        let mut s = session(opened, "telesto", "a").await;
        run(&mut s, "SELECT 1 FROM t").await;
        for _ in 0..60 {
            run(&mut s, "UPDATE t SET v = v + 1 WHERE id = 1").await;
        }
    }
    // Each alone stayed below it.
    let mut there = session(&second, "telesto", "b").await;
    let dry = "SELECT would_refuse_writes > 5 FROM telesto_cap_dry_run";
    assert_eq!(one(&mut there, dry).await, "t");
    drop((admin, there));
    close(first).await;
    close(second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writes_of_one_transaction_set_aside_one_commit() {
    let folder = tempfile::tempdir().expect("folder");
    let opened = database(folder.path()).await;
    let mut admin = session(&opened, "telesto", "admin").await;
    run(&mut admin, "CREATE TABLE t (id int PRIMARY KEY, v int)").await;
    // 100 PUTs: more than the transaction costs, less than it has statements.
    let set = "SELECT telesto_cap_set('jobs', 'application', 'jobs', 0.0005, 'month', 'enforce')";
    run(&mut admin, set).await;
    let mut jobs = session(&opened, "telesto", "jobs").await;
    run(&mut jobs, "BEGIN").await;
    for id in 0..150 {
        run(&mut jobs, &format!("INSERT INTO t VALUES ({id}, 0)")).await;
    }
    run(&mut jobs, "COMMIT").await;
    let spent = "SELECT spent_dollars < 0.0001, refused_writes FROM telesto_caps";
    assert_eq!(run(&mut admin, spent).await, [["t", "0"]]);
    drop((admin, jobs));
    close(opened).await;
}

/// Whether the statement is done within ten seconds: what was refused a moment ago may be refused
/// for some more.
async fn soon(s: &mut Session, sql: &str) -> bool {
    for _ in 0..100 {
        match tried(s, sql).await {
            Ok(_) => return true,
            Err(error) => refused(Err(error), "is reached"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn caps_that_another_process_raised_or_dropped_refuse_nothing_more() {
    let folder = tempfile::tempdir().expect("folder");
    let (first, second) = (database(folder.path()).await, database(folder.path()).await);
    let mut admin = session(&first, "telesto", "admin").await;
    run(&mut admin, "CREATE TABLE t (id int PRIMARY KEY, v int)").await;
    run(&mut admin, "INSERT INTO t VALUES (1, 0)").await;
    let cap = |dollars: &str| {
        format!(
            "SELECT telesto_cap_set('all', 'database', 'telesto', {dollars}, 'month', 'enforce')"
        )
    };
    run(&mut admin, &cap("0.0005")).await;
    // Nobody's statement is begun there any more that would tell of another cap.
    let mut there = session(&second, "telesto", "a").await;
    run(&mut there, "SELECT 1 FROM t").await;
    spend_until_refused(&mut there).await;
    run(&mut admin, &cap("0.002")).await;
    assert!(soon(&mut there, "UPDATE t SET v = v + 1 WHERE id = 1").await, "it was raised");
    spend_until_refused(&mut there).await;
    while tried(&mut there, "SELECT v FROM t").await.is_ok() {}
    run(&mut admin, "SELECT telesto_cap_drop('all')").await;
    assert!(soon(&mut there, "SELECT v FROM t").await, "it was dropped");
    assert!(soon(&mut there, "UPDATE t SET v = v + 1 WHERE id = 1").await, "it was dropped");
    drop((admin, there));
    close(first).await;
    close(second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cap_that_was_dropped_is_not_left_in_sessions_that_met_it() {
    let folder = tempfile::tempdir().expect("folder");
    let opened = database(folder.path()).await;
    let mut admin = session(&opened, "telesto", "admin").await;
    let (mut bob, acting) = bob_has_spent_all(&opened, &mut admin).await;
    run(&mut bob, "SET telesto.consistency = strict").await;
    while tried(&mut bob, "SELECT v FROM t").await.is_ok() {}
    run(&mut admin, "SELECT telesto_cap_drop('bob')").await;
    for _ in 0..3 {
        run(&mut bob, "SELECT v FROM t").await;
        run(&mut bob, "UPDATE t SET v = v + 1 WHERE id = 1").await;
    }
    let mixed = "INSERT INTO t VALUES (70, 0); SELECT telesto_cap_drop('none')";
    let told = tried(&mut admin, mixed).await.map_err(|error| error.code());
    assert_eq!(told, Err(SqlState::ACTIVE_SQL_TRANSACTION));
    drop((admin, bob, acting));
    close(opened).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_that_was_let_begin_commits_although_the_cap_is_reached_meanwhile() {
    let folder = tempfile::tempdir().expect("folder");
    let opened = database(folder.path()).await;
    let mut admin = session(&opened, "telesto", "admin").await;
    for sql in [
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "INSERT INTO t VALUES (1, 0)",
        "CREATE TABLE large (id int PRIMARY KEY, v text)",
        "CREATE ROLE bob LOGIN",
        "GRANT ALL ON t, large TO bob",
        "SELECT telesto_cap_set('bob', 'role', 'bob', 0.0005, 'month', 'enforce')",
    ] {
        run(&mut admin, sql).await;
    }
    let mut bob = session(&opened, "bob", "psql").await;
    run(&mut bob, "BEGIN").await;
    // More than one entry of the log holds: its parts are written when it commits.
    for batch in 0..4 {
        let sql = format!(
            "INSERT INTO large SELECT {batch} * 40 + i, repeat(md5(i::text), 8000) FROM generate_series(1, 40) i"
        );
        run(&mut bob, &sql).await;
    }
    let mut other = session(&opened, "bob", "psql").await;
    spend_until_refused(&mut other).await;
    while tried(&mut other, "SELECT v FROM t").await.is_ok() {}
    run(&mut bob, "COMMIT").await;
    assert_eq!(one(&mut admin, "SELECT count(*) FROM large").await, "160");
    refused(tried(&mut bob, "UPDATE t SET v = 1 WHERE id = 1").await, "writes are refused");
    drop((admin, bob, other));
    close(opened).await;
}
