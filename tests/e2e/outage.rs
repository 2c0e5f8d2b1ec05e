//! Three real processes on an S3 server that hangs, and that is not there: clients of all of them
//! append and read. What is acknowledged by the disks goes on, a node that dies or starts meanwhile
//! waits for the bucket, what clients saw is strictly serializable, and everything goes on when the
//! bucket is back. Commits go on far beyond what the tail's memory holds.
//!
//! One round takes about a minute. `TELESTO_SOAK_SECONDS` is for how long rounds are run (default:
//! one), `TELESTO_OUTAGE_SECONDS` how long an outage lasts (10).

#[path = "appending.rs"]
#[allow(dead_code)]
mod appending;
#[path = "harness.rs"]
#[allow(dead_code)]
mod harness;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use appending::{Run, TABLE, session};
use harness::{Node, PATIENCE, Place, S3Server};

const NODES: usize = 3;
const SESSIONS_A_NODE: u64 = 2;
/// How long an outage lasts: long enough for whatever is begun in it to meet it; in the soak longer
/// than a request may take.
fn outage() -> Duration {
    let seconds = std::env::var("TELESTO_OUTAGE_SECONDS");
    Duration::from_secs(seconds.map_or(10, |seconds| seconds.parse().expect("a number")))
}

struct Cluster {
    server: S3Server,
    place: Place,
    directory: tempfile::TempDir,
    memory: &'static str,
    nodes: Vec<Option<Node>>,
    ports: Vec<Arc<AtomicU16>>,
}

/// With a tail that has room for what is written in an outage.
const LARGE: &str = "1GiB";
/// With one of 12 MiB.
const SMALL: &str = "64MiB";
const SMALL_TAIL: u64 = 12 << 20;

fn launch(place: &Place, local: PathBuf, memory: &str) -> Node {
    Node::start(place, &local, &["--cluster", "127.0.0.1:0", "--memory", memory])
}

impl Cluster {
    fn start(memory: &'static str) -> Self {
        let directory = tempfile::tempdir().expect("temporary folder");
        let server = S3Server::start("versitygw");
        let place = Place::s3(&server, "outage", "quorum", "quorum");
        let ports = (0..NODES).map(|_| Arc::default()).collect();
        let mut cluster = Self { server, place, directory, memory, nodes: Vec::new(), ports };
        cluster.nodes.resize_with(NODES, || None);
        for index in 0..NODES {
            let node = cluster.launch(index);
            cluster.put(index, node);
        }
        cluster
    }

    fn launch(&self, index: usize) -> Node {
        launch(&self.place, self.local(index), self.memory)
    }

    fn local(&self, index: usize) -> PathBuf {
        self.directory.path().join(index.to_string())
    }

    /// A node that is being started.
    fn starting(&self, index: usize) -> std::thread::JoinHandle<Node> {
        let (place, local, memory) = (self.place.clone(), self.local(index), self.memory);
        std::thread::spawn(move || launch(&place, local, memory))
    }

    fn put(&mut self, index: usize, node: Node) {
        self.ports[index].store(node.port, Ordering::SeqCst);
        self.nodes[index] = Some(node);
    }

    fn node(&self, index: usize) -> &Node {
        self.nodes[index].as_ref().expect("it runs")
    }

    fn take(&mut self, index: usize) -> Node {
        self.nodes[index].take().expect("it runs")
    }

    /// The node that owns the log, once its log is kept by all.
    async fn owner(&self) -> usize {
        let until = Instant::now() + PATIENCE;
        loop {
            for index in 0..NODES {
                let Ok(client) = self.node(index).connect().await else { continue };
                let sql = "SELECT (SELECT copies_following FROM telesto_logs) = 3 AND EXISTS (
                    SELECT 1 FROM telesto_nodes WHERE is_self AND state = 'owner')";
                let row = client.query_one(sql, &[]).await;
                if row.is_ok_and(|row| row.get::<_, Option<bool>>(0) == Some(true)) {
                    return index;
                }
            }
            assert!(Instant::now() < until, "nobody owns the log");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

fn all() -> Vec<usize> {
    (0..NODES).collect()
}

fn others(than: usize) -> Vec<usize> {
    (0..NODES).filter(|index| *index != than).collect()
}

/// Commits of all nodes go on through all of an outage, and after it.
async fn outlast(run: &Run, what: &str) {
    let until = Instant::now() + outage();
    while Instant::now() < until {
        run.progress(&all(), 3, what).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn round(cluster: &mut Cluster, run: &Run) {
    cluster.owner().await;
    cluster.server.freeze();
    outlast(run, "the bucket hangs").await;
    cluster.server.thaw();
    run.progress(&all(), 3, "the bucket answers again").await;

    cluster.owner().await;
    cluster.server.end();
    outlast(run, "the bucket is gone").await;
    cluster.server.again();
    run.progress(&all(), 3, "the bucket is back").await;

    // A log server dies, and starts before the bucket is there again: it waits for it.
    let owner = cluster.owner().await;
    let follower = others(owner)[0];
    cluster.server.freeze();
    cluster.take(follower).kill();
    run.progress(&others(follower), 5, "the bucket hangs, and a log server is dead").await;
    let starting = cluster.starting(follower);
    tokio::time::sleep(outage()).await;
    assert!(!starting.is_finished(), "a node started without the bucket");
    run.progress(&others(follower), 5, "the bucket hangs, and a node waits for it").await;
    cluster.server.thaw();
    cluster.put(follower, starting.join().expect("started"));
    run.progress(&all(), 3, "the log server is back").await;

    // The owner dies: who has the log is decided in the bucket, and there is none for a while.
    let owner = cluster.owner().await;
    cluster.server.end();
    cluster.take(owner).kill();
    tokio::time::sleep(outage()).await;
    cluster.server.again();
    run.progress(&others(owner), 5, "the bucket is back, and the owner is not").await;
    let node = cluster.launch(owner);
    cluster.put(owner, node);
    run.progress(&all(), 3, "the owner is back").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_processes_are_strictly_serializable_through_outages_of_the_bucket() {
    let seconds = std::env::var("TELESTO_SOAK_SECONDS");
    let seconds = seconds.map_or(0, |seconds| seconds.parse().expect("a number"));
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut cluster = Cluster::start(LARGE);
    let client = cluster.node(0).connect().await.expect("connects");
    client.batch_execute(TABLE).await.expect("table");
    let run = Arc::new(Run::default());
    let mut tasks = Vec::new();
    for (n, port) in cluster.ports.iter().enumerate() {
        for s in 0..SESSIONS_A_NODE {
            let number = n as u64 * SESSIONS_A_NODE + s;
            tasks.push(tokio::spawn(session(Arc::clone(&run), n, Arc::clone(port), number)));
        }
    }
    run.progress(&all(), 3, "all run").await;
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < until {
        round(&mut cluster, &run).await;
        rounds += 1;
    }
    println!("{rounds} rounds");
    run.stop.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.expect("session");
    }
    for n in all() {
        run.read_all(n as u64, cluster.node(n)).await;
    }
    let shown: Vec<String> = run.check().iter().map(ToString::to_string).collect();
    assert!(shown.is_empty(), "{} anomalies:\n{}", shown.len(), shown.join("\n"));
}

/// Rows of each writer, few enough to stay in a node's caches: what is not there can be read from
/// the bucket only.
const ROWS: i64 = 40;
const VALUE_BYTES: usize = 16 << 10;

/// What a writer knows of its rows: how often each was counted up for certain, and how often
/// perhaps.
#[derive(Clone, Default)]
struct Counted {
    certain: Vec<i64>,
    perhaps: Vec<i64>,
    /// Bytes of values in what is certain.
    bytes: u64,
}

/// Counts its rows up through a node, ten a transaction, with new values each time, until it is
/// told to stop or the node dies.
async fn write(port: u16, writer: i64, stop: Arc<AtomicBool>, counted: Arc<Mutex<Counted>>) {
    let Some(mut client) = appending::connect(port).await else { return };
    let mut round = 0;
    while !stop.load(Ordering::SeqCst) && !client.is_closed() {
        round += 1;
        let rows: Vec<i64> = (0..10).map(|n| (round * 10 + n) % ROWS).collect();
        let value = format!("{writer}-{round}-").repeat(VALUE_BYTES / 8);
        let sql = "UPDATE counted SET n = n + 1, v = $2 WHERE k = $1";
        let Ok(transaction) = client.transaction().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let mut written = true;
        for row in &rows {
            let key = writer * 1000 + row;
            written &=
                transaction.execute(sql, &[&key, &value]).await.is_ok_and(|count| count == 1);
        }
        if !written {
            continue;
        }
        let committed = transaction.commit().await.is_ok();
        let mut counted = counted.lock().expect("no panic");
        for row in rows {
            let row = usize::try_from(row).expect("small");
            if committed {
                counted.certain[row] += 1;
                counted.bytes += value.len() as u64;
            } else {
                counted.perhaps[row] += 1;
            }
        }
    }
}

/// A number at a node's `/metrics`.
fn metric(node: &Node, name: &str) -> u64 {
    let all = node.get("/metrics").unwrap_or_default();
    let line = all.lines().find(|line| line.starts_with(&format!("{name} ")));
    line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0) as u64
}

/// Every node has what all writers were told, and no more than they asked for.
async fn counts_are_right(cluster: &Cluster, counted: &[Arc<Mutex<Counted>>], when: &str) {
    for index in all() {
        let client = cluster.node(index).connect().await.expect("connects");
        for (writer, counted) in counted.iter().enumerate() {
            let from = writer as i64 * 1000;
            let sql = "SELECT k, n FROM counted WHERE k >= $1 AND k < $2 ORDER BY k";
            let rows = client.query(sql, &[&from, &(from + 1000)]).await.expect(when);
            assert_eq!(rows.len(), usize::try_from(ROWS).expect("small"), "{when}, node {index}");
            let counted = counted.lock().expect("no panic");
            for (row, found) in rows.iter().enumerate() {
                let (n, certain) = (found.get::<_, i64>(1), counted.certain[row]);
                let most = certain + counted.perhaps[row];
                assert!(
                    (certain..=most).contains(&n),
                    "{when}, node {index}: row {row} of writer {writer} was counted {n} times, not {certain} to {most}"
                );
            }
        }
    }
}

async fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < until, "{what}: not within {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn commits_go_on_far_beyond_the_memory_of_the_tail_and_nothing_is_lost() {
    let mut cluster = Cluster::start(SMALL);
    let client = cluster.node(0).connect().await.expect("connects");
    let table = "CREATE TABLE counted (k bigint PRIMARY KEY, n bigint NOT NULL, v text NOT NULL)";
    client.batch_execute(table).await.expect("table");
    for writer in 0..NODES {
        let sql = format!(
            "INSERT INTO counted SELECT {writer} * 1000 + i, 0, '' FROM generate_series(0, {}) AS i",
            ROWS - 1
        );
        client.batch_execute(&sql).await.expect("rows");
    }
    let new =
        || Counted { certain: vec![0; ROWS as usize], perhaps: vec![0; ROWS as usize], bytes: 0 };
    let counted: Vec<Arc<Mutex<Counted>>> =
        all().iter().map(|_| Arc::new(Mutex::new(new()))).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = counted
        .iter()
        .enumerate()
        .map(|(index, counted)| {
            let (stop, counted) = (Arc::clone(&stop), Arc::clone(counted));
            tokio::spawn(write(cluster.node(index).port, index as i64, stop, counted))
        })
        .collect();
    let bytes = || counted.iter().map(|of| of.lock().expect("no panic").bytes).sum::<u64>();
    until("all write", || counted.iter().all(|of| of.lock().expect("no panic").bytes > 0)).await;
    let owner = cluster.owner().await;
    let follower = others(owner)[0];

    cluster.server.freeze();
    let before = bytes();
    until("the bucket hangs, and much is written", || bytes() > before + 4 * SMALL_TAIL).await;
    until("every node has moved some of its tail", || {
        all().iter().all(|index| {
            metric(cluster.node(*index), "telesto_txn_tail_spilled_bytes") > SMALL_TAIL
        })
    })
    .await;
    // A node dies with what it had moved, and starts: it waits for the bucket, and reads the log
    // again.
    cluster.take(follower).kill();
    let then = bytes();
    until("a node is dead, and more is written", || bytes() > then + 2 * SMALL_TAIL).await;
    let starting = cluster.starting(follower);
    tokio::time::sleep(Duration::from_secs(2)).await;
    stop.store(true, Ordering::SeqCst);
    println!("{} MiB were written in the outage", (bytes() - before) >> 20);

    cluster.server.thaw();
    cluster.put(follower, starting.join().expect("started"));
    for writer in writers {
        writer.await.expect("a writer");
    }
    counts_are_right(&cluster, &counted, "the bucket is back").await;
    until("what was moved is folded", || {
        all()
            .iter()
            .all(|index| metric(cluster.node(*index), "telesto_txn_tail_spilled_bytes") == 0)
    })
    .await;
    counts_are_right(&cluster, &counted, "everything is folded").await;
    for index in all() {
        cluster.take(index).kill();
    }
    let starting: Vec<_> = all().into_iter().map(|index| cluster.starting(index)).collect();
    for (index, node) in starting.into_iter().enumerate() {
        cluster.put(index, node.join().expect("started"));
    }
    counts_are_right(&cluster, &counted, "all were killed").await;
}
