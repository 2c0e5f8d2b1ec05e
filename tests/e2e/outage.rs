//! Three real processes on an S3 server that hangs, and that is not there: clients of all of them append and read. What is acknowledged by
//! the disks goes on, a node that dies or starts meanwhile waits for the bucket, what clients saw is strictly serializable, and everything
//! goes on when the bucket is back.
//!
//! One round takes about a minute. `TELESTO_SOAK_SECONDS` is for how long rounds are run (default: one), `TELESTO_OUTAGE_SECONDS` how long an
//! outage lasts (10).

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
use std::time::{Duration, Instant};

use appending::Run;
use harness::{Node, PATIENCE, Place, S3Server};
use rounds::Clients;
use three::{Three, all, others};

/// How long an outage lasts: long enough for whatever is begun in it to meet it; in the soak longer than a request may take.
fn outage() -> Duration {
    let seconds = std::env::var("TELESTO_OUTAGE_SECONDS");
    Duration::from_secs(seconds.map_or(10, |seconds| seconds.parse().expect("a number")))
}

struct Cluster {
    server: S3Server,
    three: Three,
}

/// With a tail that has room for what is written in an outage: when it is full, commits wait for the bucket.
fn launch(place: &Place, local: PathBuf) -> Node {
    Node::start(place, &local, &["--cluster", "127.0.0.1:0", "--memory", "1GiB"])
}

impl Cluster {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("temporary folder");
        let server = S3Server::start("versitygw");
        let place = Place::s3(&server, "outage", "quorum", "quorum");
        let mut cluster = Self { server, three: Three::new(directory, place, None) };
        for index in all() {
            let node = launch(&cluster.place, cluster.local(index));
            cluster.put(index, node);
        }
        cluster
    }

    /// The node that owns the log, once its log is kept by all.
    async fn owner(&self) -> usize {
        let until = Instant::now() + PATIENCE;
        loop {
            for index in all() {
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
    let (place, local) = (cluster.place.clone(), cluster.local(follower));
    let starting = std::thread::spawn(move || launch(&place, local));
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
    let node = launch(&cluster.place, cluster.local(owner));
    cluster.put(owner, node);
    run.progress(&all(), 3, "the owner is back").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_processes_are_strictly_serializable_through_outages_of_the_bucket() {
    let mut cluster = Cluster::start();
    let mut clients = Clients::start(&cluster).await;
    while clients.another_round() {
        round(&mut cluster, &clients.run).await;
    }
    clients.end(&cluster).await;
}
