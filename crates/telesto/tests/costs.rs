//! What statements cost is told as the bucket counted it: nothing missing, nothing twice.
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use async_trait::async_trait;
use telesto::open::{Opened, open};
use telesto::{LogKind, Options};
use telesto_bucket::{Class, Cost, MeterSnapshot};
use telesto_sql::{ResultSink, Session, SessionOptions, StatementResult};

/// Collects the first column as text.
#[derive(Default)]
struct Lines(Vec<String>);

#[async_trait]
impl ResultSink for Lines {
    async fn result(&mut self, result: StatementResult) -> telesto_sql::Result<()> {
        if let StatementResult::Rows { columns, rows, .. } = result {
            let style = telesto_sql::types::TextStyle::default();
            for row in rows.collect().await? {
                self.0.push(row[0].to_text(&columns[0].ty, &style));
            }
        }
        Ok(())
    }
}

async fn run(session: &mut Session, sql: &str) -> Vec<String> {
    let mut lines = Lines::default();
    session.execute_simple(sql, &mut lines).await.expect(sql);
    lines.0
}

async fn last_cost(session: &mut Session) -> String {
    run(session, "SHOW telesto.last_statement_cost").await.remove(0)
}

/// What the bucket counted between two moments, in the words of a statement's cost.
fn counted(before: &MeterSnapshot, after: &MeterSnapshot) -> Cost {
    let spent = after.since(before);
    let all = spent.total(|_, _| true);
    Cost {
        gets: (spent.requests(Class::Get) + spent.requests(Class::Head)) as f64,
        puts: (spent.requests(Class::Put) + spent.requests(Class::Copy)) as f64,
        lists: spent.requests(Class::List) as f64,
        deletes: spent.requests(Class::Delete) as f64,
        uploaded_bytes: all.uploaded_bytes as f64,
        downloaded_bytes: all.downloaded_bytes as f64,
        dollars: spent.dollars(),
    }
}

async fn database(folder: &std::path::Path) -> Opened {
    let options = Options {
        prices: Some("s3-standard".to_owned()),
        log: Some(LogKind::Bucket),
        // Nothing happens beside the statements.
        checkpoint_interval: Some(std::time::Duration::from_secs(100_000)),
        retention: Some(std::time::Duration::from_secs(100_000)),
        ..Options::new(format!("file://{}", folder.display()))
    };
    open(&telesto_runtime::env(), &options).await.expect("opens")
}

async fn session(opened: &Opened) -> Session {
    opened.sql.session(SessionOptions::default()).await.expect("session")
}

/// Runs a statement and compares what the session says of it with what the bucket counted
/// meanwhile.
async fn exact(opened: &Opened, session: &mut Session, sql: &str) -> (Vec<String>, Cost) {
    let meter = Arc::clone(opened.bucket.meter());
    let before = meter.snapshot();
    let lines = run(session, sql).await;
    let cost = counted(&before, &meter.snapshot());
    assert_eq!(last_cost(session).await, cost.to_string(), "{sql}");
    assert_eq!(last_cost(session).await, cost.to_string(), "asking changes nothing");
    (lines, cost)
}

#[test]
fn cost_of_a_statement_is_what_the_bucket_counted() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = telesto_bucket::meter::follow_tasks(builder.worker_threads(2).enable_all());
    runtime.build().expect("runtime").block_on(async {
        let folder = tempfile::tempdir().expect("folder");
        let opened = database(folder.path()).await;
        let mut s = session(&opened).await;
        run(&mut s, "CREATE TABLE t (id int PRIMARY KEY, filler text)").await;
        let (_, cost) = exact(&opened, &mut s, "INSERT INTO t VALUES (0, 'x')").await;
        assert_eq!(cost.puts, 1.0, "one log entry: {cost}");
        assert!(cost.dollars >= 0.000_005, "{cost}");
        let (lines, cost) =
            exact(&opened, &mut s, "EXPLAIN ANALYZE INSERT INTO t VALUES (-1, 'x')").await;
        let commit = lines.iter().find(|line| line.starts_with("Commit: ")).expect("told");
        assert!(commit.contains(" 1 put,"), "{lines:?}");
        assert!(lines.iter().any(|line| line.starts_with("Bucket: ") && line.contains(" 0 put,")));
        assert_eq!(cost.puts, 1.0);
        let rows = "SELECT i, repeat(md5(i::text), 40) FROM generate_series(1, 20000) i";
        run(&mut s, &format!("INSERT INTO t {rows}")).await;
        opened.engine.fold().await.expect("folded");
        drop(s);
        telesto_txn::Database::shutdown(&*opened.engine).await.expect("closed");
        drop(opened);

        // Nothing is cached: a scan reads the checkpoint, most of it in SlateDB's own tasks.
        let opened = database(folder.path()).await;
        let mut s = session(&opened).await;
        run(&mut s, "SELECT 1 FROM t WHERE id = 1").await;
        let query = "EXPLAIN ANALYZE SELECT sum(length(filler)) FROM t";
        let (lines, cost) = exact(&opened, &mut s, query).await;
        assert!(cost.downloaded_bytes > 100_000.0, "the table was read: {cost}");
        assert!(cost.gets >= 3.0 && cost.puts == 0.0, "{cost}");
        let told = lines.iter().find(|line| line.starts_with("Bucket: ")).expect("told");
        assert_eq!(*told, format!("Bucket: {cost} (prices: s3-standard)"), "{lines:?}");
        assert!(!lines.iter().any(|line| line.starts_with("Commit")), "{lines:?}");

        // Several statements of one query are one; in a block each counts for itself.
        let both = "INSERT INTO t VALUES (-2, 'x'); INSERT INTO t VALUES (-3, 'x')";
        let (_, cost) = exact(&opened, &mut s, both).await;
        assert_eq!(cost.puts, 1.0, "one transaction: {cost}");
        exact(&opened, &mut s, "BEGIN").await;
        let (lines, cost) =
            exact(&opened, &mut s, "EXPLAIN (ANALYZE, FORMAT JSON) DELETE FROM t WHERE id < 0")
                .await;
        assert_eq!(cost.puts, 0.0, "{cost}");
        let plan: serde_json::Value = serde_json::from_str(&lines[0]).expect("JSON");
        assert!(plan[0]["Commit"].as_str().expect("words").contains("not counted"), "{plan}");
        assert_eq!(plan[0]["Bucket"]["Puts"], 0.0);
        let (_, cost) = exact(&opened, &mut s, "COMMIT").await;
        assert_eq!(cost.puts, 1.0, "{cost}");
        let usage = run(&mut s, "SELECT telesto_bucket_usage()").await.remove(0);
        let usage: serde_json::Value = serde_json::from_str(&usage).expect("JSON");
        let all = opened.bucket.meter().snapshot();
        assert_eq!(usage["requests"]["put"], all.requests(Class::Put));
        assert_eq!(usage["prices"], "s3-standard");
        assert!(usage["dollars"].as_f64().expect("dollars") > 0.0);
    });
}

#[tokio::test]
async fn group_commit_and_shared_look_are_given_out_in_shares() {
    let folder = tempfile::tempdir().expect("folder");
    let opened = database(folder.path()).await;
    let mut first = session(&opened).await;
    run(&mut first, "CREATE TABLE t (id int PRIMARY KEY)").await;
    let before = opened.bucket.meter().snapshot();
    let writers = (0..8).map(|id| {
        let opened = &opened;
        async move {
            let mut session = session(opened).await;
            run(&mut session, &format!("INSERT INTO t VALUES ({id})")).await;
            let words = last_cost(&mut session).await;
            let puts = words.split(" get, ").nth(1).and_then(|rest| rest.split(" put").next());
            puts.expect("puts").parse::<f64>().expect("a number")
        }
    });
    let shares: f64 = futures::future::join_all(writers).await.into_iter().sum();
    let puts = opened.bucket.meter().snapshot().since(&before).requests(Class::Put) as f64;
    assert!((shares - puts).abs() < 0.01, "{shares} told, {puts} counted");
    assert!(puts < 8.0, "some shared a log entry: {puts}");
}
