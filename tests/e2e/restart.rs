//! A node that is replaced by the program on disk (SIGUSR2) under a load: no client that is idle or
//! between two transactions sees an error, none that connects meanwhile is refused, nothing
//! acknowledged is lost or doubled, and what a session had it has. `TELESTO_RESTARTS=50` for the
//! long run.

#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use harness::{Node, Place};
use tokio_postgres::{AsyncMessage, Client, NoTls};

fn restarts() -> usize {
    std::env::var("TELESTO_RESTARTS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

/// A node on a folder of its own, which is removed with what comes first.
fn start(extra: &[&str]) -> (tempfile::TempDir, Node) {
    let dir = tempfile::tempdir().expect("folder");
    let place = Place::folder(&dir.path().join("bucket"), "bucket", "bucket");
    let node = Node::start(&place, &dir.path().join("local"), extra);
    (dir, node)
}

async fn one(client: &Client, sql: &str) -> String {
    let messages =
        client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let row = messages.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    row.unwrap_or_default()
}

/// Adds rows one by one, each in a statement or in a block of three; the number that was
/// acknowledged.
async fn write(url: String, from: i64, blocks: bool, stop: Arc<AtomicBool>) -> (i64, Duration) {
    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connects");
    tokio::spawn(connection);
    let insert = client.prepare("INSERT INTO written VALUES ($1)").await.expect("prepared");
    let (mut done, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        if blocks {
            let txn = client.transaction().await.expect("between transactions nothing fails");
            for _ in 0..3 {
                txn.execute(&insert, &[&(from + done)]).await.expect("a block goes on to its end");
                done += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            txn.commit().await.expect("commits");
        } else {
            client.execute(&insert, &[&(from + done)]).await.expect("no error");
            done += 1;
        }
        longest = longest.max(begun.elapsed());
    }
    (done, longest)
}

/// Connects again and again.
async fn connect(url: String, stop: Arc<AtomicBool>) -> i64 {
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let (client, connection) =
            tokio_postgres::connect(&url, NoTls).await.expect("nobody is refused");
        tokio::spawn(connection);
        assert_eq!(one(&client, "SELECT 1").await, "1");
        done += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_is_replaced_under_load_loses_no_client_and_no_row() {
    let (_dir, node) = start(&[]);
    let pid = node.pid();
    let setup = node.connect().await.expect("connects");
    setup
        .batch_execute("CREATE TABLE written (n bigint PRIMARY KEY); CREATE SEQUENCE s START 41; CREATE ROLE clerk; CREATE TABLE mine (k int PRIMARY KEY, v text); GRANT SELECT ON mine TO clerk; INSERT INTO mine VALUES (1, 'one')")
        .await
        .expect("set up");
    // A session with everything that a session can have.
    let rich = node.connect().await.expect("connects");
    let prepared =
        rich.prepare("SELECT v, $2::bigint + 1 FROM mine WHERE k = $1").await.expect("prepared");
    let backend = one(&rich, "SELECT pg_backend_pid()").await;
    let began =
        one(&rich, "SELECT extract(epoch FROM backend_start) FROM pg_stat_activity WHERE pid = pg_backend_pid()").await;
    rich.batch_execute("SET application_name = 'rich'; SET app.tenant = 'seven'; SET TimeZone = 'Europe/Berlin'; SELECT nextval('s'); PREPARE by_sql (int) AS SELECT v FROM mine WHERE k = $1; SET ROLE clerk; SET statement_timeout = '1h'").await.expect("set");
    let stop = Arc::new(AtomicBool::new(false));
    let url = node.url();
    let writers: Vec<_> = (0..6)
        .map(|n| tokio::spawn(write(url.clone(), n * 1_000_000_000, n % 2 == 1, Arc::clone(&stop))))
        .collect();
    let connecting = tokio::spawn(connect(url.clone(), Arc::clone(&stop)));
    let rounds = restarts();
    for _ in 0..rounds {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let began = Instant::now();
        tokio::task::block_in_place(|| node.replace());
        println!("replaced in {:?}", began.elapsed());
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.store(true, Ordering::Relaxed);
    let (mut acknowledged, mut longest) = (0, Duration::ZERO);
    for writer in writers {
        let (done, pause) = writer.await.expect("a writer without an error");
        assert!(done > 0, "a writer that never wrote shows nothing");
        acknowledged += done;
        longest = longest.max(pause);
    }
    let connected = connecting.await.expect("every connection was taken");
    println!(
        "{rounds} restarts: {acknowledged} rows, {connected} connections; longest transaction {longest:?}"
    );
    assert!(connected > 0);
    assert_eq!(node.pid(), pid, "the same process");
    assert_eq!(one(&setup, "SELECT count(*) FROM written").await, acknowledged.to_string());

    let row =
        rich.query_one(&prepared, &[&1, &41_i64]).await.expect("the prepared statement is there");
    assert_eq!((row.get::<_, &str>(0), row.get::<_, i64>(1)), ("one", 42));
    assert_eq!(one(&rich, "EXECUTE by_sql (1)").await, "one");
    for (sql, expected) in [
        ("SHOW application_name", "rich"),
        ("SHOW app.tenant", "seven"),
        ("SHOW TimeZone", "Europe/Berlin"),
        ("SELECT current_user", "clerk"),
        ("SELECT session_user", "telesto"),
        ("SELECT pg_backend_pid()", backend.as_str()),
    ] {
        assert_eq!(one(&rich, sql).await, expected, "{sql}");
    }
    let denied =
        rich.simple_query("INSERT INTO mine VALUES (2, 'two')").await.expect_err("not clerk's");
    assert_eq!(denied.code().map(|code| code.code()), Some("42501"));
    rich.batch_execute("RESET ROLE").await.expect("back to who logged in");
    assert_eq!(one(&rich, "SELECT currval('s'), lastval()").await, "41");
    assert_eq!(
        one(&rich, "SELECT extract(epoch FROM backend_start) FROM pg_stat_activity WHERE pid = pg_backend_pid()").await,
        began
    );
    // The key that the client was given long ago still cancels.
    let cancel = rich.cancel_token();
    let (slept, ()) = tokio::join!(rich.simple_query("SELECT pg_sleep(600)"), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cancel.cancel_query(NoTls).await.expect("asked");
    });
    assert_eq!(slept.expect_err("cancelled").code().map(|code| code.code()), Some("57014"));
    assert!(node.stop());
}

/// Every node of a cluster is replaced in its turn, while clients work at all of them.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_a_cluster_are_replaced_one_after_the_other() {
    let dir = tempfile::tempdir().expect("folder");
    let place = Place::folder(&dir.path().join("bucket"), "quorum", "quorum");
    let cluster = ["--cluster", "127.0.0.1:0", "--memory", "256MiB"];
    let nodes: Vec<Node> =
        (0..3).map(|n| Node::start(&place, &dir.path().join(n.to_string()), &cluster)).collect();
    let setup = nodes[0].connect().await.expect("connects");
    setup.batch_execute("CREATE TABLE written (n bigint PRIMARY KEY)").await.expect("set up");
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..6_usize)
        .map(|n| {
            let url = nodes[n % 3].url();
            tokio::spawn(write(url, n as i64 * 1_000_000_000, n >= 3, Arc::clone(&stop)))
        })
        .collect();
    for node in nodes.iter().cycle().take(restarts().max(3)) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        tokio::task::block_in_place(|| node.replace());
        println!("replaced in {:?}", began.elapsed());
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.store(true, Ordering::Relaxed);
    let (mut acknowledged, mut longest) = (0, Duration::ZERO);
    for writer in writers {
        let (done, pause) = writer.await.expect("a writer without an error");
        assert!(done > 0, "a writer that never wrote shows nothing");
        acknowledged += done;
        longest = longest.max(pause);
    }
    println!("three nodes: {acknowledged} rows; longest transaction {longest:?}");
    assert_eq!(one(&setup, "SELECT count(*) FROM written").await, acknowledged.to_string());
}

/// What has no form outside of a process keeps its session there; it is told so, as at any stop.
#[tokio::test(flavor = "multi_thread")]
async fn session_that_cannot_be_passed_is_told() {
    let (_dir, node) = start(&["--drain-timeout", "2s"]);
    let setup = node.connect().await.expect("connects");
    setup.batch_execute("CREATE TABLE t (a int)").await.expect("set up");
    let told = Arc::new(AtomicI64::new(0));
    let held = [
        "CREATE TEMP TABLE mine (a int)",
        "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT 1; COMMIT",
        "SELECT pg_advisory_lock(7)",
        "LISTEN news",
        "BEGIN; INSERT INTO t VALUES (1)",
    ];
    let mut clients = Vec::new();
    for sql in held {
        let (client, mut connection) =
            tokio_postgres::connect(&node.url(), NoTls).await.expect("connects");
        let told = Arc::clone(&told);
        let ended = tokio::spawn(async move {
            let mut messages =
                futures::stream::poll_fn(move |context| connection.poll_message(context));
            while let Some(message) = messages.next().await {
                match message {
                    Ok(AsyncMessage::Notice(_) | AsyncMessage::Notification(_)) => {}
                    Ok(_) => {}
                    Err(error) => {
                        let code = error.code().map(|code| code.code().to_owned());
                        assert_eq!(code.as_deref(), Some("57P01"), "{sql}: {error}");
                        told.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                }
            }
        });
        client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        clients.push((client, ended));
    }
    tokio::task::block_in_place(|| node.replace());
    for (client, ended) in clients {
        ended.await.expect("told why");
        assert!(client.is_closed());
    }
    assert_eq!(told.load(Ordering::Relaxed), held.len() as i64);
    assert_eq!(one(&setup, "SELECT count(*) FROM t").await, "0", "what was open is rolled back");
    assert!(node.stop());
}

/// Who changes what a node asks of clients closes the door by a restart: a client that was passed
/// stays only where it could come in anew by what it showed when it came.
#[tokio::test(flavor = "multi_thread")]
async fn clients_are_held_to_the_rules_of_the_process_that_takes_them_over() {
    let files = tempfile::tempdir().expect("folder");
    let (users, access) = (files.path().join("users"), files.path().join("access"));
    let mut hash = std::process::Command::new(harness::program())
        .args(["hash-password", "telesto"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::fs::File::create(&users).expect("users file"))
        .spawn()
        .expect("the telesto binary runs");
    let mut input = hash.stdin.take().expect("input");
    std::io::Write::write_all(&mut input, b"pencil\n").expect("password given");
    drop(input);
    assert!(hash.wait().expect("ends").success());
    let rules = |methods: [&str; 5]| {
        let names = ["telesto", "proved", "trusted", "trusted_still", "encrypted"];
        let lines = names.iter().zip(methods).map(|(name, method)| {
            let (kind, method) = method.split_once(' ').expect("kind and method");
            format!("{kind} all {name} 127.0.0.1/32 {method}\n")
        });
        std::fs::write(&access, lines.collect::<String>()).expect("access file");
    };
    let (scram, trust) = ("host scram-sha-256", "host trust");
    rules([scram, scram, trust, trust, scram]);
    let (users, access) = (users.display().to_string(), access.display().to_string());
    let (_dir, node) = start(&["--auth-file", &users, "--access-file", &access]);
    let url = node.url();
    let connect = |user: &'static str| {
        let url = url.replace("user=telesto", &format!("user={user} password=pencil"));
        async move {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect(user);
            tokio::spawn(connection);
            client
        }
    };
    let first = connect("telesto").await;
    for role in ["proved", "trusted", "trusted_still", "encrypted"] {
        let sql = format!("CREATE ROLE {role} LOGIN PASSWORD 'pencil'");
        first.batch_execute(&sql).await.expect("role");
    }
    let mut clients = Vec::new();
    for user in ["proved", "trusted", "trusted_still", "encrypted"] {
        clients.push((user, connect(user).await));
    }
    rules([scram, scram, scram, trust, "hostssl scram-sha-256"]);
    tokio::task::block_in_place(|| node.replace());
    assert_eq!(one(&first, "SELECT 1").await, "1");
    for (user, client) in clients {
        let stays = matches!(user, "proved" | "trusted_still");
        let told = client.batch_execute("SELECT 1").await;
        assert_eq!(told.is_ok(), stays, "{user}: {told:?}\n{}", node.output());
    }
    assert!(node.stop());
}
