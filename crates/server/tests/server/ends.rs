//! Every way to end a statement or a session, whether it computes, sleeps, or waits for a bucket
//! that hangs; and what goes on meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{Env, Lsn, Timestamp, TxnId};
use telesto_server::{Limits, Server, ServerConfig};
use telesto_sql::{SqlEngine, SqlOptions};
use telesto_txn::memory::MemoryDatabase;
use telesto_txn::{
    Committed, Database, Level, LogKind, MessageSink, Outcome, ReadFor, Result, Savepoint, Scan,
    ScanOptions, Transaction, TryClaim, TxnOptions,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_postgres::{Client, NoTls};

use crate::support::{Node, PATIENCE, Raw, error_field, query};

/// Computes, far longer than any test waits, inside of DataFusion.
const COMPUTES: &str =
    "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b";
const SLEEPS: &str = "SELECT pg_sleep(600)";

/// A database whose newest state can no longer be learned: what is strict waits for ever.
#[derive(Debug)]
struct Hanging {
    inner: MemoryDatabase,
    hangs: AtomicBool,
    panics: AtomicBool,
    /// Commits take effect, and nobody learns of it.
    commits_hang: Arc<AtomicBool>,
}

/// A transaction whose commit may take effect without an answer.
#[derive(Debug)]
struct Unanswered {
    inner: Arc<dyn Transaction>,
    hangs: Arc<AtomicBool>,
}

#[async_trait]
impl Transaction for Unanswered {
    fn id(&self) -> TxnId {
        self.inner.id()
    }

    fn options(&self) -> &TxnOptions {
        self.inner.options()
    }

    fn snapshot(&self) -> Timestamp {
        self.inner.snapshot()
    }

    async fn next_statement(&self) -> Result<()> {
        self.inner.next_statement().await
    }

    async fn claim(&self, keys: &[Bytes]) -> Result<()> {
        self.inner.claim(keys).await
    }

    fn try_claim(&self, keys: &[Bytes]) -> Result<Vec<TryClaim>> {
        self.inner.try_claim(keys)
    }

    async fn get(&self, key: &[u8], read_for: ReadFor) -> Result<Option<Bytes>> {
        self.inner.get(key, read_for).await
    }

    async fn get_many(&self, keys: &[Bytes], read_for: ReadFor) -> Result<Vec<Option<Bytes>>> {
        self.inner.get_many(keys, read_for).await
    }

    fn try_get(&self, key: &[u8], read_for: ReadFor) -> Option<Result<Option<Bytes>>> {
        self.inner.try_get(key, read_for)
    }

    fn scan(&self, range: KeyRange, options: ScanOptions) -> Box<dyn Scan> {
        self.inner.scan(range, options)
    }

    fn view(&self) -> Arc<dyn Transaction> {
        self.inner.view()
    }

    async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        self.inner.put(key, value).await
    }

    async fn delete(&self, key: Bytes) -> Result<()> {
        self.inner.delete(key).await
    }

    fn savepoint(&self) -> Result<Savepoint> {
        self.inner.savepoint()
    }

    fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        self.inner.rollback_to(savepoint)
    }

    fn has_written(&self) -> bool {
        self.inner.has_written()
    }

    async fn confirm(&self) -> Result<()> {
        self.inner.confirm().await
    }

    fn tell(&self, messages: Vec<Bytes>) -> Result<()> {
        self.inner.tell(messages)
    }

    async fn commit(&self) -> Result<Committed> {
        let committed = self.inner.commit().await;
        while self.hangs.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        committed
    }

    fn rollback(&self) {
        self.inner.rollback();
    }
}

#[async_trait]
impl Database for Hanging {
    async fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Transaction>> {
        let strict = !matches!(options.level, Level::Session | Level::Eventual);
        if strict && self.panics.load(Ordering::SeqCst) {
            panic!("meant: a defect of ours");
        }
        if strict && self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        // Who only reads learns of its end.
        let hangs = if options.read_only { Arc::default() } else { Arc::clone(&self.commits_hang) };
        let inner = self.inner.begin(options).await?;
        Ok(Arc::new(Unanswered { inner, hangs }))
    }

    async fn outcome(&self, txn: TxnId) -> Result<Outcome> {
        self.inner.outcome(txn).await
    }

    fn hear(&self, sink: Weak<dyn MessageSink>) {
        self.inner.hear(sink);
    }

    fn applied(&self) -> (Lsn, Timestamp) {
        self.inner.applied()
    }

    fn cluster(&self) -> telesto_txn::ClusterView {
        self.inner.cluster()
    }

    async fn space(&self) -> Result<telesto_txn::Space> {
        self.inner.space().await
    }

    async fn switch_log(&self, to: LogKind) -> Result<()> {
        self.inner.switch_log(to).await
    }

    async fn shutdown(&self) -> Result<()> {
        self.inner.shutdown().await
    }
}

/// A node whose database can be made to hang.
async fn hanging(env: Env, limits: Limits) -> (Node, Arc<Hanging>, std::net::SocketAddr) {
    let inner = MemoryDatabase::new(env.clone());
    let database = Arc::new(Hanging {
        inner,
        hangs: AtomicBool::default(),
        panics: AtomicBool::default(),
        commits_hang: Arc::default(),
    });
    let opened: Arc<dyn Database> = Arc::clone(&database) as _;
    let engine = SqlEngine::open(opened, env.clone(), SqlOptions::default()).await.expect("opens");
    let local = "127.0.0.1:0".parse().expect("an address");
    let config =
        ServerConfig { listen: Some(local), http: Some(local), limits, ..ServerConfig::default() };
    let server = Server::start(env, engine, config, None, None).await.expect("starts");
    let http = server.http_address().expect("listens");
    let address = server.sql_address().expect("listens");
    (Node { address, server }, database, http)
}

async fn pid(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.expect("a process id").get(0)
}

/// Waits until `pid` shows that state; `None`: until it is gone.
async fn shows(other: &Client, pid: i32, state: Option<&str>) {
    let until = Instant::now() + PATIENCE;
    loop {
        let sql = "SELECT state FROM pg_stat_activity WHERE pid = $1";
        let row = other.query_opt(sql, &[&pid]).await.expect("asked");
        let now: Option<String> = row.map(|row| row.get(0));
        if now.as_deref() == state {
            return;
        }
        assert!(Instant::now() < until, "still {now:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn code(client: &Client, sql: &str) -> String {
    let ran = tokio::time::timeout(PATIENCE, client.simple_query(sql));
    let error = ran.await.expect("an end in time").expect_err("an error");
    error.code().map_or_else(|| error.to_string(), |code| code.code().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statement_that_computes_or_sleeps_ends_by_its_limit_by_request_and_by_name() {
    let node = Node::start(ServerConfig::default()).await;
    let other = node.client().await;
    for sql in [COMPUTES, SLEEPS] {
        let client = node.client().await;
        let pid = pid(&client).await;
        client.batch_execute("SET statement_timeout = 200").await.expect("set");
        assert_eq!(code(&client, sql).await, "57014", "by its limit");
        client.batch_execute("SET statement_timeout = 0").await.expect("set");
        let token = client.cancel_token();
        let (ended, ()) = tokio::join!(code(&client, sql), async {
            shows(&other, pid, Some("active")).await;
            token.cancel_query(NoTls).await.expect("asked");
        });
        assert_eq!(ended, "57014", "by request");
        let (ended, ()) = tokio::join!(code(&client, sql), async {
            shows(&other, pid, Some("active")).await;
            other.execute("SELECT pg_cancel_backend($1)", &[&pid]).await.expect("asked");
        });
        assert_eq!(ended, "57014", "by name");
        let (ended, ()) = tokio::join!(code(&client, sql), async {
            shows(&other, pid, Some("active")).await;
            other.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.expect("asked");
        });
        assert_eq!(ended, "57P01", "with its session");
        shows(&other, pid, None).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_session_that_is_terminated_is_told_and_closed() {
    let node = Node::start(ServerConfig::default()).await;
    let other = node.client().await;
    let mut raw = Raw::ready(&node).await;
    raw.send(&query("BEGIN; SELECT pg_backend_pid()")).await;
    let row = raw.until(b'Z').await.into_iter().find(|(kind, _)| *kind == b'D').expect("a row");
    let pid: i32 = String::from_utf8_lossy(&row.1[6..]).parse().expect("a number");
    shows(&other, pid, Some("idle in transaction")).await;
    other.execute("SELECT pg_terminate_backend($1)", &[&pid]).await.expect("asked");
    let (_, error) = raw.until(b'E').await.pop().expect("told");
    assert_eq!(error_field(&error, b'C').as_deref(), Some("57P01"));
    assert_eq!(error_field(&error, b'S').as_deref(), Some("FATAL"));
    assert_eq!(raw.message().await, None);
    shows(&other, pid, None).await;
    let missing: bool =
        other.query_one("SELECT pg_terminate_backend($1)", &[&pid]).await.expect("asked").get(0);
    assert!(!missing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_hangs_up_ends_its_statement() {
    let node = Node::start(ServerConfig::default()).await;
    let other = node.client().await;
    for sql in [COMPUTES, SLEEPS] {
        let (client, connection) =
            tokio_postgres::connect(&node.url(), NoTls).await.expect("connects");
        let connection = tokio::spawn(connection);
        let pid = pid(&client).await;
        let sql = sql.to_owned();
        tokio::spawn(async move { client.simple_query(&sql).await.map(drop) });
        shows(&other, pid, Some("active")).await;
        connection.abort();
        shows(&other, pid, None).await;
    }
}

/// More statements compute than there are slots and workers: short ones go on, and those that wait
/// for a slot heed their limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_compute_hold_up_no_short_one() {
    let limits = Limits { max_computing: 3, ..Limits::default() };
    let node = Node::start(ServerConfig { limits, ..ServerConfig::default() }).await;
    let other = node.client().await;
    let mut hogs = Vec::new();
    for _ in 0..6 {
        let hog = node.client().await;
        let pid = pid(&hog).await;
        hog.batch_execute("SET statement_timeout = 3000").await.expect("set");
        hogs.push(tokio::spawn(async move { code(&hog, COMPUTES).await }));
        shows(&other, pid, Some("active")).await;
    }
    for _ in 0..20 {
        let one = tokio::time::timeout(PATIENCE, other.simple_query("SELECT 1")).await;
        one.expect("an answer in time").expect("answered");
    }
    for hog in hogs {
        assert_eq!(hog.await.expect("ends"), "57014");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_bucket_hangs_what_needs_no_data_is_answered_and_what_waits_can_be_ended() {
    let (node, database, _) = hanging(telesto_runtime::env(), Limits::default()).await;
    let client = node.client().await;
    client.batch_execute("CREATE TABLE t (a int PRIMARY KEY)").await.expect("made");
    database.hangs.store(true, Ordering::SeqCst);
    let other = node.client().await;
    for sql in
        ["SELECT 1", "SET work_mem = '1MB'", "SHOW work_mem", "BEGIN", "SELECT now()", "COMMIT"]
    {
        let ran = tokio::time::timeout(PATIENCE, other.simple_query(sql)).await;
        ran.expect("an answer in time").unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let waiting = ["SELECT count(*) FROM t", "INSERT INTO t VALUES (1)", "CREATE TABLE u (a int)"];
    client.batch_execute("SET statement_timeout = 200").await.expect("set");
    for sql in waiting {
        assert_eq!(code(&client, sql).await, "57014", "{sql}");
    }
    client.batch_execute("SET statement_timeout = 0").await.expect("set");
    let token = client.cancel_token();
    for sql in waiting {
        let (ended, ()) = tokio::join!(code(&client, sql), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            token.cancel_query(NoTls).await.expect("asked");
        });
        assert_eq!(ended, "57014", "{sql}");
    }
    database.hangs.store(false, Ordering::SeqCst);
    let rows = client.query("SELECT a FROM t", &[]).await.expect("goes on");
    assert!(rows.is_empty());
}

async fn status(client: &tokio_postgres::Client, id: &str) -> String {
    let row = client.query_one("SELECT telesto_txn_status($1)", &[&id]).await.expect("answers");
    row.get(0)
}

/// A session that is ended while its commit is under way says so, by whatever ends it: a driver
/// that is told 57P01 may run all of it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_whose_session_is_ended_is_told_as_unknown() {
    let (node, database, _) = hanging(telesto_runtime::env(), Limits::default()).await;
    let (client, other) = (node.client().await, node.client().await);
    client.batch_execute("CREATE TABLE t (a int PRIMARY KEY)").await.expect("made");
    let pid = pid(&client).await;
    database.commits_hang.store(true, Ordering::SeqCst);
    let inserted = client.execute("INSERT INTO t VALUES (1)", &[]);
    let ended = async {
        shows(&other, pid, Some("active")).await;
        // Commits take effect here, and nobody learns of it.
        let until = Instant::now() + PATIENCE;
        while other.query("SELECT a FROM t", &[]).await.expect("reads").is_empty() {
            assert!(Instant::now() < until, "the commit does not take effect");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        other.query("SELECT pg_terminate_backend($1)", &[&pid]).await.expect("asked");
    };
    let (inserted, ()) = tokio::join!(inserted, ended);
    let error = inserted.expect_err("ended");
    let error = error.as_db_error().expect("told");
    assert_eq!((error.severity(), error.code().code()), ("FATAL", "08007"), "{error}");
    assert!(error.message().contains("telesto_txn_status('"), "{error}");
    database.commits_hang.store(false, Ordering::SeqCst);
}

/// Whoever has seen a transaction's id can ask for that transaction: it is not repeated under
/// another id unseen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_that_has_shown_its_id_is_the_one_that_commits() {
    let (node, _, _) = hanging(telesto_runtime::env(), Limits::default()).await;
    let (client, other) = (node.client().await, node.client().await);
    client.batch_execute("CREATE TABLE t (a int PRIMARY KEY, n int)").await.expect("made");
    client.batch_execute("INSERT INTO t VALUES (1, 0)").await.expect("added");
    let begun = |id: bool| {
        let client = &client;
        async move {
            client.batch_execute("BEGIN").await.expect("begins");
            let id = match id {
                true => Some(client.query_one("SELECT telesto_txn_id()", &[]).await.expect("told")),
                false => None,
            };
            let change = "UPDATE t SET n = n * 2 + 1 WHERE a = 1";
            client.batch_execute(change).await.expect("changed");
            id.map(|row| row.get::<_, String>(0))
        }
    };
    let id = begun(true).await.expect("an id");
    assert_eq!(status(&other, &id).await, "unknown", "it has not ended");
    client.batch_execute("COMMIT").await.expect("commits");
    assert_eq!(status(&other, &id).await, "committed");
    let id = begun(true).await.expect("an id");
    client.batch_execute("ROLLBACK").await.expect("ends");
    assert_ne!(status(&other, &id).await, "committed");
    // Another one changes the row meanwhile: without an id the block is repeated, with one it is
    // refused.
    begun(false).await;
    other.batch_execute("UPDATE t SET n = 10 WHERE a = 1").await.expect("changed");
    client.batch_execute("COMMIT").await.expect("it is repeated");
    let id = begun(true).await.expect("an id");
    other.batch_execute("UPDATE t SET n = 100 WHERE a = 1").await.expect("changed");
    assert_eq!(code(&client, "COMMIT").await, "40001");
    assert_ne!(status(&other, &id).await, "committed");
    let row = other.query_one("SELECT n FROM t", &[]).await.expect("reads");
    assert_eq!(row.get::<_, i32>(0), 100);
    assert_eq!(code(&client, "SELECT telesto_txn_status('no id')").await, "22P02");
}

/// It may have happened: nobody may say that it did not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_that_is_not_waited_for_is_told_as_unknown() {
    let (node, database, _) = hanging(telesto_runtime::env(), Limits::default()).await;
    let client = node.client().await;
    client.batch_execute("CREATE TABLE t (a int PRIMARY KEY)").await.expect("made");
    client.batch_execute("SET statement_timeout = 200").await.expect("set");
    database.commits_hang.store(true, Ordering::SeqCst);
    assert_eq!(code(&client, "INSERT INTO t VALUES (1)").await, "08007", "alone");
    client.batch_execute("BEGIN; INSERT INTO t VALUES (2)").await.expect("runs");
    assert_eq!(code(&client, "COMMIT").await, "08007", "a block");
    let error = client.execute("INSERT INTO t VALUES ($1)", &[&3_i32]).await.expect_err("unknown");
    let error = error.as_db_error().expect("told");
    assert_eq!(error.code().code(), "08007", "at Sync");
    let id = error
        .message()
        .split_once("telesto_txn_status('")
        .and_then(|(_, id)| id.split('\'').next());
    let id = id.expect("the message tells how to ask").to_owned();
    database.commits_hang.store(false, Ordering::SeqCst);
    assert_eq!(status(&client, &id).await, "committed", "it had happened");
    let rows = client.query("SELECT a FROM t ORDER BY a", &[]).await.expect("the session goes on");
    let rows: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(rows, [1, 2, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn index_build_that_is_stopped_while_its_beginning_commits_is_ended() {
    let (node, database, _) = hanging(telesto_runtime::env(), Limits::default()).await;
    let client = node.client().await;
    client.batch_execute("CREATE TABLE t (a int PRIMARY KEY, b int)").await.expect("made");
    client.batch_execute("SET statement_timeout = 200").await.expect("set");
    database.commits_hang.store(true, Ordering::SeqCst);
    assert_eq!(code(&client, "CREATE INDEX CONCURRENTLY t_b ON t (b)").await, "57014");
    database.commits_hang.store(false, Ordering::SeqCst);
    client.batch_execute("SET statement_timeout = 0").await.expect("set");
    let until = Instant::now() + PATIENCE;
    let filling = "SELECT count(*) FROM pg_stat_progress_create_index";
    while client.query_one(filling, &[]).await.expect("asked").get::<_, i64>(0) > 0 {
        assert!(Instant::now() < until, "nobody ends it");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 't_b'::regclass";
    let valid: bool = client.query_one(valid, &[]).await.expect("asked").get(0);
    assert!(!valid, "it went on without the statement");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_tells_that_the_bucket_hangs_and_that_it_answers_again() {
    let (_node, database, http) = hanging(telesto_runtime::env(), Limits::default()).await;
    let ask = || async move {
        let mut socket = tokio::net::TcpStream::connect(http).await.expect("connects");
        let request = "GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        socket.write_all(request.as_bytes()).await.expect("sent");
        let mut reply = String::new();
        socket.read_to_string(&mut reply).await.expect("read");
        reply
    };
    let becomes = |status: &'static str| async move {
        let until = Instant::now() + PATIENCE;
        loop {
            let reply = tokio::time::timeout(PATIENCE, ask()).await.expect("an answer in time");
            if reply.starts_with(&format!("HTTP/1.1 {status}")) {
                return reply;
            }
            assert!(Instant::now() < until, "{reply}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    becomes("200").await;
    database.hangs.store(true, Ordering::SeqCst);
    let reply = becomes("503").await;
    assert!(
        reply.contains("\"status\":\"degraded\"") && reply.contains("has been waited for"),
        "{reply}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_ends_one_session_and_is_told() {
    let (node, database, _) = hanging(telesto_runtime::env(), Limits::default()).await;
    let other = node.client().await;
    let mut raw = Raw::ready(&node).await;
    database.panics.store(true, Ordering::SeqCst);
    raw.send(&query("SELECT * FROM pg_class WHERE oid = 1")).await;
    let (_, error) = raw.until(b'E').await.pop().expect("told");
    assert_eq!(error_field(&error, b'C').as_deref(), Some("XX000"));
    assert_eq!(raw.message().await, None);
    database.panics.store(false, Ordering::SeqCst);
    other.batch_execute("CREATE TABLE t (a int)").await.expect("others go on");
}

/// Waits until `pid` shows that it waits for this.
async fn waits(other: &Client, pid: i32, kind: &str, event: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let sql = "SELECT wait_event_type, wait_event, client_addr, client_port > 0, backend_type, xact_start IS NOT NULL, application_name \
                   FROM pg_stat_activity WHERE pid = $1";
        let row = other.query_one(sql, &[&pid]).await.expect("asked");
        let now: (Option<String>, Option<String>) = (row.get(0), row.get(1));
        assert_eq!(row.get::<_, Option<&str>>(2), Some("127.0.0.1"));
        assert_eq!(row.get::<_, Option<bool>>(3), Some(true));
        assert_eq!(row.get::<_, Option<&str>>(4), Some("client backend"));
        if now == (Some(kind.to_owned()), Some(event.to_owned())) {
            assert_eq!(row.get::<_, Option<bool>>(5), Some(kind != "Client"), "{kind} {event}");
            return;
        }
        assert!(Instant::now() < until, "{kind} {event}: still {now:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until a sample of the session was kept that waited for `event`.
async fn sampled(other: &tokio_postgres::Client, pid: i32, event: &str) {
    let until = Instant::now() + PATIENCE;
    let sql = "SELECT count(*) FROM telesto_activity_samples WHERE pid = $1 AND wait_event = $2 AND query LIKE 'SELECT pg_sleep%'";
    loop {
        let kept: i64 = other.query_one(sql, &[&pid, &event]).await.expect("asked").get(0);
        if kept > 0 {
            return;
        }
        assert!(Instant::now() < until, "no sample of {event}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_that_waits_shows_others_for_what() {
    let node = Node::start(ServerConfig::default()).await;
    let (other, client, holder) = (node.client().await, node.client().await, node.client().await);
    let waiter = pid(&client).await;
    waits(&other, waiter, "Client", "ClientRead").await;
    let (slept, ()) = tokio::join!(client.batch_execute("SELECT pg_sleep(30)"), async {
        waits(&other, waiter, "Timeout", "PgSleep").await;
        sampled(&other, waiter, "PgSleep").await;
        other.execute("SELECT pg_cancel_backend($1)", &[&waiter]).await.expect("asked");
    });
    slept.expect_err("cancelled");
    waits(&other, waiter, "Client", "ClientRead").await;
    holder.batch_execute("SELECT pg_advisory_lock(7)").await.expect("held");
    let (locked, ()) = tokio::join!(client.batch_execute("SELECT pg_advisory_lock(7)"), async {
        waits(&other, waiter, "Lock", "advisory").await;
        holder.batch_execute("SELECT pg_advisory_unlock(7)").await.expect("given up");
    });
    locked.expect("held");
    waits(&other, waiter, "Client", "ClientRead").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_whose_bucket_hangs_is_not_ready_and_says_why() {
    let (_node, database, http) = hanging(telesto_runtime::env(), Limits::default()).await;
    let becomes = |status: &'static str| async move {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut socket = tokio::net::TcpStream::connect(http).await.expect("connects");
            let request = "GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            socket.write_all(request.as_bytes()).await.expect("sent");
            let mut reply = String::new();
            socket.read_to_string(&mut reply).await.expect("read");
            if reply.starts_with(&format!("HTTP/1.1 {status}")) {
                return reply;
            }
            assert!(Instant::now() < until, "{reply}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let reply = becomes("200").await;
    assert!(reply.contains("\"status\":\"ready\"") && reply.contains("\"copies\":null"), "{reply}");
    database.hangs.store(true, Ordering::SeqCst);
    let reply = becomes("503").await;
    assert!(
        reply.contains("\"status\":\"not ready\"") && reply.contains("has been waited for"),
        "{reply}"
    );
}
