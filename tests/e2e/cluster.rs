//! Three real processes keep one log for each other: clients of all of them append and read through
//! kills, freezes, rolling restarts and the death of all three; what they saw is strictly
//! serializable, nothing acknowledged is lost.
//!
//! One round takes about half a minute. `TELESTO_SOAK_SECONDS` is for how long rounds are run
//! (default: one). `TELESTO_BEFORE` is the program of the version before: with it every second
//! start of a node is one of that program, so that both are in the cluster all the time.

#[path = "appending.rs"]
#[allow(dead_code)]
mod appending;
#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;
#[path = "rounds.rs"]
mod rounds;
#[path = "three.rs"]
#[allow(dead_code)]
mod three;

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use appending::Run;
use harness::{Node, PATIENCE, Place, program};
use rounds::Clients;
use three::{NODES, Three, all, following, others};
use tokio_postgres::{NoTls, SimpleQueryMessage};

struct Cluster {
    three: Three,
    /// Nodes started so far.
    starts: usize,
}

fn launch(place: &Place, local: PathBuf) -> Node {
    Node::start(place, &local, &["--cluster", "127.0.0.1:0", "--memory", "256MiB"])
}

impl Cluster {
    fn start() -> Self {
        let mut cluster = Self { three: Three::on_folder(None), starts: 0 };
        for index in all() {
            cluster.begin(&[index]);
        }
        cluster
    }

    /// Starts nodes at once: one may need another to open the database.
    fn begin(&mut self, indexes: &[usize]) {
        let before = std::env::var_os("TELESTO_BEFORE").map(PathBuf::from);
        let mut starting = Vec::new();
        for index in indexes {
            let (mut place, local) = (self.place.clone(), self.local(*index));
            place.program = before.clone().filter(|_| self.starts.is_multiple_of(2));
            self.starts += 1;
            starting.push((*index, std::thread::spawn(move || launch(&place, local))));
        }
        for (index, starting) in starting {
            self.put(index, starting.join().expect("started"));
        }
    }

    /// The node that owns the log, once one does and its log is kept by as many as run.
    async fn owner(&self, copies: usize) -> usize {
        self.owner_when(|owner, _| following(owner) == copies).await
    }
}

impl Deref for Cluster {
    type Target = Three;
    fn deref(&self) -> &Three {
        &self.three
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut Three {
        &mut self.three
    }
}

/// Waits until SQL tells that the log was taken over, and why.
async fn told_why(node: &Node) {
    // Nodes of the version before do not tell.
    if std::env::var_os("TELESTO_BEFORE").is_some() {
        return;
    }
    let client = node.connect().await.expect("connects");
    let until = Instant::now() + PATIENCE;
    loop {
        let sql =
            "SELECT reason, took_ms FROM telesto_log_history ORDER BY chain_version DESC LIMIT 1";
        let row = client.query_one(sql, &[]).await.expect("asked");
        let (reason, took): (Option<String>, Option<i64>) = (row.get(0), row.get(1));
        if reason.as_deref().is_some_and(|why| why.contains("has not answered")) && took.is_some() {
            return;
        }
        assert!(Instant::now() < until, "not told: {reason:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Everything that may befall it once.
async fn round(cluster: &mut Cluster, run: &Run) {
    let all = all();
    run.progress(&all, 3, "all run").await;
    let owner = cluster.owner(NODES).await;
    cluster.take(owner).kill();
    run.progress(&others(owner), 5, "the owner killed").await;
    told_why(cluster.node(others(owner)[0])).await;
    cluster.begin(&[owner]);
    run.progress(&all, 3, "it is back").await;

    let owner = cluster.owner(NODES).await;
    cluster.node(owner).freeze();
    run.progress(&others(owner), 5, "the owner frozen").await;
    cluster.node(owner).thaw();
    run.progress(&all, 3, "it is thawed").await;

    let owner = cluster.owner(NODES).await;
    let follower = others(owner)[0];
    cluster.node(follower).freeze();
    run.progress(&[owner, others(owner)[1]], 5, "a log server frozen").await;
    cluster.node(follower).thaw();

    // A rolling restart.
    for index in 0..NODES {
        assert!(cluster.take(index).stop(), "node {index} did not stop in order");
        run.progress(&others(index), 3, "one stopped").await;
        cluster.begin(&[index]);
    }
    run.progress(&all, 3, "all started again").await;

    cluster.owner(NODES).await;
    for index in 0..NODES {
        cluster.take(index).kill();
    }
    cluster.begin(&all);
    run.progress(&all, 3, "all died and came back").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_processes_are_strictly_serializable_through_deaths_freezes_and_restarts() {
    let mut cluster = Cluster::start();
    let mut clients = Clients::start(&cluster).await;
    while clients.another_round() {
        round(&mut cluster, &clients.run).await;
    }
    clients.end(&cluster).await;
}

/// A database that one node kept by itself becomes a cluster's when that node is started so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_that_one_node_kept_alone_is_taken_into_the_cluster() {
    let directory = tempfile::tempdir().expect("temporary folder");
    let place = Place::folder(&directory.path().join("bucket"), "quorum", "quorum");
    let local = directory.path().join("0");
    let alone = Node::start(&place, &local, &["--cluster", "off"]);
    let client = alone.connect().await.expect("connects");
    client.batch_execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1)").await.expect("rows");
    drop(client);
    alone.kill();
    let first = launch(&place, local.clone());
    let client = first.connect().await.expect("connects");
    client.batch_execute("INSERT INTO t VALUES (2)").await.expect("a row");
    let second = launch(&place, directory.path().join("1"));
    let third = launch(&place, directory.path().join("2"));
    for node in [&first, &second, &third] {
        let client = node.connect().await.expect("connects");
        let rows = client.simple_query("SELECT a FROM t ORDER BY a").await.expect("read");
        let rows: Vec<_> = rows
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            })
            .collect();
        assert_eq!(rows, ["1", "2"]);
    }
    let client = second.connect().await.expect("connects");
    let seen = "SELECT count(*) FILTER (WHERE state = 'owner'), count(*) FILTER (WHERE state = 'serving'),
                count(*) FILTER (WHERE is_self), (SELECT copies FROM telesto_logs) FROM telesto_nodes";
    let until = Instant::now() + PATIENCE;
    loop {
        let row = client.query_one(seen, &[]).await.expect("read");
        let counts: (i64, i64, i64, i32) = (row.get(0), row.get(1), row.get(2), row.get(3));
        if counts == (1, 2, 1, 3) {
            break;
        }
        assert!(Instant::now() < until, "telesto_nodes and telesto_logs say {counts:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(client);
    // Alone again it is refused: the others have entries that it lacks.
    first.kill();
    second.kill();
    third.kill();
    let refused = Node::launch(&place, &local, &["--cluster", "off"]).err().expect("refused");
    assert!(refused.contains("cluster"), "{refused}");
}

fn telesto(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program()).args(arguments).output();
    let output = output.expect("the telesto binary runs");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Two of three disks are gone for good, and then all three.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_goes_on_in_the_bucket_when_its_disks_are_lost() {
    let mut cluster = Cluster::start();
    let bucket = cluster.place.bucket.clone();
    let client = cluster.node(0).connect().await.expect("connects");
    client.batch_execute("CREATE TABLE t (a int)").await.expect("table");
    let mut expected = 0;
    for lost in [2, 3] {
        cluster.owner(NODES).await;
        let client = cluster.node(1).connect().await.expect("connects");
        for _ in 0..20 {
            client.batch_execute("INSERT INTO t VALUES (1)").await.expect("a row");
        }
        for index in 0..NODES {
            cluster.take(index).kill();
        }
        for index in 0..lost {
            std::fs::remove_dir_all(cluster.local(index)).expect("removed");
        }
        let survivor = cluster.local(2).join("node").display().to_string();
        let mut command = vec!["cluster", "recover", "--bucket", &bucket];
        if lost == 2 {
            command.extend(["--survivor", &survivor]);
        }
        let (done, said) = telesto(&command);
        assert!(!done && said.contains("--accept-loss"), "{said}");
        command.push("--accept-loss");
        let (done, said) = telesto(&command);
        assert!(done && said.contains("goes on in the bucket from entry"), "{said}");
        cluster.begin(&[0, 1, 2]);
        let client = cluster.node(0).connect().await.expect("connects");
        let row = client.query_one("SELECT count(*) FROM t", &[]).await.expect("read");
        let count: i64 = row.get(0);
        // What one disk has and the bucket has not may lack the newest entries, which the other two
        // had.
        assert!((expected..=expected + 20).contains(&count), "{count} rows of {expected} and 20");
        expected = count;
        let url = format!("postgres://telesto@127.0.0.1:{}/telesto", cluster.node(1).port);
        let (done, said) = telesto(&["log", "switch", "--url", &url, "--to", "quorum"]);
        assert!(done, "{said}");
    }
}

/// From any node one sees the sessions of all, and stops them as one may: by process id, and with
/// the key that a client has.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sessions_of_all_nodes_are_seen_and_stopped_from_any() {
    let cluster = Cluster::start();
    let here = cluster.node(0).connect().await.expect("connects");
    here.batch_execute("CREATE ROLE clerk LOGIN; CREATE ROLE boss LOGIN").await.expect("roles");
    let (there, connection) = tokio_postgres::Config::new()
        .host("127.0.0.1")
        .port(cluster.node(1).port)
        .user("clerk")
        .dbname("telesto")
        .application_name("far")
        .connect(NoTls)
        .await
        .expect("connects");
    tokio::spawn(connection);
    let seen = "SELECT pid, state, query, usename FROM pg_stat_activity WHERE pid = $1";
    let code = |error: tokio_postgres::Error| error.code().map(|code| code.code().to_owned());
    let sleeps = || there.simple_query("SELECT pg_sleep(600)");
    let pid = {
        let named = "SELECT pid FROM pg_stat_activity WHERE application_name = 'far'";
        let rows = here.query(named, &[]).await.expect("asked");
        assert_eq!(rows.len(), 1, "the other node's session is seen once");
        rows[0].get::<_, i32>(0)
    };
    // It runs something, is seen to, and is stopped from here.
    let (slept, ()) = tokio::join!(sleeps(), async {
        loop {
            let row = asked(&here, seen, pid).await;
            assert_eq!(row.get::<_, &str>(3), "clerk");
            if row.get::<_, &str>(1) == "active" {
                assert_eq!(row.get::<_, &str>(2), "SELECT pg_sleep(600)");
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let done = here.query_one("SELECT pg_cancel_backend($1)", &[&pid]).await.expect("asked");
        assert!(done.get::<_, bool>(0));
    });
    assert_eq!(slept.map(|_| ()).map_err(code), Err(Some("57014".to_owned())));
    // Who may not, may not from another node either, and does not see what it runs.
    let boss = format!("host=127.0.0.1 port={} user=boss dbname=telesto", cluster.node(2).port);
    let (stranger, connection) = tokio_postgres::connect(&boss, NoTls).await.expect("connects");
    tokio::spawn(connection);
    let row =
        stranger.query_opt("SELECT query FROM pg_stat_activity WHERE pid = $1", &[&pid]).await;
    let row = row.expect("asked").expect("a row that says little");
    assert_eq!(row.get::<_, &str>(0), "<insufficient privilege>");
    let refused = stranger.query("SELECT pg_terminate_backend($1)", &[&pid]).await;
    assert_eq!(refused.map(|_| ()).map_err(code), Err(Some("42501".to_owned())));
    // A cancel request that a load balancer took to another node.
    let token = there.cancel_token();
    let (slept, ()) = tokio::join!(sleeps(), async {
        loop {
            let row = asked(&here, seen, pid).await;
            if row.get::<_, &str>(1) == "active" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let other = ("127.0.0.1", cluster.node(2).port);
        let socket = tokio::net::TcpStream::connect(other).await.expect("connects");
        token.cancel_query_raw(socket, NoTls).await.expect("asked");
    });
    assert_eq!(slept.map(|_| ()).map_err(code), Err(Some("57014".to_owned())));
    // As scripts say it.
    let named = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'far' AND pid <> pg_backend_pid()";
    let done = here.query_one(named, &[]).await.expect("asked");
    assert!(done.get::<_, bool>(0));
    let nobody = here.query_one("SELECT pg_cancel_backend(1)", &[]).await.expect("asked");
    assert!(!nobody.get::<_, bool>(0), "nobody has that process id");
    let until = Instant::now() + PATIENCE;
    while there.simple_query("SELECT 1").await.is_ok() {
        assert!(Instant::now() < until, "the session does not end");
    }
}

/// The row of a query; asked again while the log goes to another owner, which a busy machine has it
/// do now and then.
async fn asked(client: &tokio_postgres::Client, sql: &str, pid: i32) -> tokio_postgres::Row {
    let until = Instant::now() + PATIENCE;
    loop {
        match client.query_one(sql, &[&pid]).await {
            Ok(row) => return row,
            Err(error) => {
                let code = error.code().map(|code| code.code());
                // Views are short of what a node that did not answer in time would have told.
                let short = code.is_none() && !error.is_closed();
                assert!((code == Some("57P03") || short) && Instant::now() < until, "{error:?}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Views of what nodes count add up what all of them did, and locks are seen from any node.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn counts_and_locks_of_all_nodes_are_seen_from_any() {
    let cluster = Cluster::start();
    let here = cluster.node(0).connect().await.expect("connects");
    here.batch_execute("CREATE TABLE seen (a int PRIMARY KEY)").await.expect("a table");
    for index in 0..NODES {
        let client = cluster.node(index).connect().await.expect("connects");
        for row in 0..5 {
            let sql = format!("INSERT INTO seen VALUES ({})", index * 10 + row);
            client.batch_execute(&sql).await.expect("a row");
        }
        let key = (index * 10) as i32;
        client.query_one("SELECT a FROM seen WHERE a = $1", &[&key]).await.expect("the row");
    }
    let holder = cluster.node(1).connect().await.expect("connects");
    holder.batch_execute("SELECT pg_advisory_lock(7, 8)").await.expect("the lock");
    let pid: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.expect("asked").get(0);
    let sql = "SELECT n_tup_ins, idx_scan,
            (SELECT tup_inserted FROM pg_stat_database WHERE datname = 'telesto'),
            (SELECT numbackends FROM pg_stat_database WHERE datname = 'telesto'),
            (SELECT count(*) FROM pg_locks WHERE granted AND classid = 7 AND objid = 8 AND pid = $1)
        FROM pg_stat_user_tables WHERE relname = 'seen'";
    let mut seen = Vec::new();
    for index in 0..NODES {
        let client = cluster.node(index).connect().await.expect("connects");
        let row = asked(&client, sql, pid).await;
        let (inserted, looked_up): (i64, i64) = (row.get(0), row.get(1));
        let (of_database, backends): (i64, i32) = (row.get(2), row.get(3));
        assert!(of_database >= inserted, "{of_database} of {inserted}");
        // Two clients of this test at least.
        assert!(backends >= 2, "{backends} sessions");
        seen.push((inserted, looked_up, row.get::<_, i64>(4)));
    }
    let looked_up = seen[0].1;
    assert!(looked_up >= NODES as i64, "a look-up on each node");
    assert_eq!(seen, vec![(5 * NODES as i64, looked_up, 1); NODES]);
}

/// What reads a whole table commits on a node that does not own the log, while clients of all nodes
/// write into the table all the time: their commits wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn definitions_of_a_whole_table_get_through_under_writers_of_all_nodes() {
    const ROWS: i32 = 6_000;
    let cluster = Cluster::start();
    let owner = cluster.owner(NODES).await;
    let here = cluster.node(others(owner)[0]).connect().await.expect("connects");
    here.batch_execute(&format!(
        "CREATE TABLE busy (a int PRIMARY KEY, n int, m int);
         INSERT INTO busy SELECT a, 0, 0 FROM generate_series(1, {ROWS}) AS a"
    ))
    .await
    .expect("a table");
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for (index, writer) in all().into_iter().flat_map(|index| [(index, 0), (index, 1)]) {
        let client = cluster.node(index).connect().await.expect("connects");
        let stop = Arc::clone(&stop);
        writers.push(tokio::spawn(async move {
            let mut count = 0_i64;
            while !stop.load(Ordering::Relaxed) {
                let row = (count * 613 + (index * 2 + writer) as i64 * 997) % i64::from(ROWS) + 1;
                let sql = format!("UPDATE busy SET n = n + 1, m = {count} WHERE a = {row}");
                client.batch_execute(&sql).await.expect("a write");
                count += 1;
            }
            count
        }));
    }
    for definition in [
        "ALTER TABLE busy ALTER COLUMN m TYPE bigint USING m + 1",
        "ALTER TABLE busy ADD CONSTRAINT positive CHECK (n >= 0)",
        "ALTER TABLE busy ALTER COLUMN n SET NOT NULL",
    ] {
        here.batch_execute(definition).await.expect(definition);
    }
    stop.store(true, Ordering::Relaxed);
    let mut written = 0;
    for writer in writers {
        written += writer.await.expect("a writer");
    }
    let sum = here.query_one("SELECT sum(n)::bigint FROM busy", &[]).await.expect("a sum");
    assert_eq!(sum.get::<_, i64>(0), written, "each write counts once");
}
