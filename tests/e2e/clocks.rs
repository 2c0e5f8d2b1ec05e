//! Three real processes whose clocks are set ahead and back while they work (libfaketime): clients
//! of all of them append and read, what they saw is strictly serializable, a clock that is hours
//! off stops commits and nothing else, the database's time stays within its bound, and everything
//! goes on when the clocks are right again.
//!
//! One round takes about a minute. `TELESTO_SOAK_SECONDS` is for how long rounds are run (default:
//! one), `TELESTO_FAKETIME` the library (`clocks.sh` installs it).

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

use std::ops::Deref;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use appending::Run;
use harness::{Node, PATIENCE, Site};
use rounds::Clients;
use three::{NODES, Three, all, others};

/// How far a node's clock may be ahead of the bucket's (`EngineOptions::clock_bound`), with what it
/// may drift before it is asked again; seconds.
const BOUND: i64 = 300 + 300 / 8;
/// libfaketime looks at its file so often, and a step is noticed by the commit after it.
const NOTICED: Duration = Duration::from_secs(3);

struct Clocks {
    three: Three,
    files: Vec<PathBuf>,
    _directory: tempfile::TempDir,
}

impl Clocks {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("temporary folder");
        let library = std::env::var("TELESTO_FAKETIME").expect("TELESTO_FAKETIME (clocks.sh)");
        let (mut files, mut three) = (Vec::new(), Three::on_folder(None));
        for index in all() {
            let file = directory.path().join(format!("clock-{index}"));
            std::fs::write(&file, "+0s").expect("written");
            let through = [
                "env".to_owned(),
                format!("LD_PRELOAD={library}"),
                format!("FAKETIME_TIMESTAMP_FILE={}", file.display()),
                "FAKETIME_CACHE_DURATION=1".to_owned(),
                // Only what a machine's clock is: not how long something takes, and not what the
                // file system says.
                "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
                "NO_FAKE_STAT=1".to_owned(),
            ];
            let site = Site { through: through.into(), ..Site::here() };
            let extra = ["--cluster", "127.0.0.1:0", "--memory", "256MiB"];
            let node = Node::launch_at(&three.place, &three.local(index), &extra, site);
            let node = node.unwrap_or_else(|log| panic!("node {index} did not start:\n{log}"));
            files.push(file);
            three.put(index, node);
        }
        Self { three, files, _directory: directory }
    }

    /// Sets the clock of node `index` so many seconds ahead of what it is.
    fn set(&self, index: usize, seconds: i64) {
        // In one step: a file that is half written would be the real time.
        let next = self.files[index].with_extension("next");
        std::fs::write(&next, format!("{seconds:+}s")).expect("written");
        std::fs::rename(&next, &self.files[index]).expect("renamed");
    }

    fn set_all(&self, seconds: i64) {
        all().into_iter().for_each(|index| self.set(index, seconds));
    }

    /// The node that owns the log.
    async fn owner(&self) -> usize {
        self.owner_when(|_, _| true).await
    }

    /// What a query on node `index` answers; its session's clock is that node's.
    async fn seconds(&self, index: usize, sql: &str) -> f64 {
        let client = self.node(index).connect().await.expect("connects");
        client.query_one(sql, &[]).await.expect("asked").get(0)
    }

    /// How far the clock of node `index` is ahead of this process's, seconds.
    async fn ahead(&self, index: usize) -> f64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now = now.expect("after 1970").as_secs_f64();
        self.seconds(index, "SELECT extract(epoch FROM clock_timestamp())::float8").await - now
    }
}

impl Deref for Clocks {
    type Target = Three;
    fn deref(&self) -> &Three {
        &self.three
    }
}

async fn wait_for_clock(clocks: &Clocks, index: usize, seconds: i64) {
    let until = Instant::now() + PATIENCE;
    while (clocks.ahead(index).await - seconds as f64).abs() > 5.0 {
        assert!(Instant::now() < until, "the clock of node {index} was not set: libfaketime");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn round(clocks: &Clocks, run: &Run) {
    // Back, near and far: nobody waits for that.
    for (which, seconds) in [(0, -3600), (1, -90), (2, -86_400 * 3000), (0, 200), (1, 0), (2, 30)] {
        let owner = clocks.owner().await;
        let index = (owner + which) % NODES;
        clocks.set(index, seconds);
        wait_for_clock(clocks, index, seconds).await;
        let what = format!(
            "the clock of {} set by {seconds} s",
            if which == 0 { "the owner" } else { "a follower" }
        );
        run.progress(&all(), 5, &what).await;
    }
    clocks.set_all(0);
    // A follower's clock is nobody's time but its own.
    let owner = clocks.owner().await;
    for index in others(owner) {
        clocks.set(index, 86_400);
        wait_for_clock(clocks, index, 86_400).await;
    }
    if clocks.owner().await == owner {
        run.progress(&[owner], 5, "the followers' clocks a day ahead").await;
    }
    clocks.set_all(0);
    run.progress(&all(), 5, "the followers' clocks set right").await;
    // The owner's runs away in steps that are each below the bound: at the bound it stops.
    let owner = clocks.owner().await;
    for step in 1..=8 {
        clocks.set(owner, step * 60);
        wait_for_clock(clocks, owner, step * 60).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    tokio::time::sleep(NOTICED).await;
    if clocks.owner().await == owner {
        let client = clocks.node(owner).connect().await.expect("connects");
        let refused = client.batch_execute("INSERT INTO probes VALUES (1)").await;
        let error = refused.expect_err("a commit by a clock that is eight minutes ahead");
        let said = error.as_db_error().map(|error| error.message()).unwrap_or_default();
        assert!(said.contains("clock is"), "{error:?}");
        // Reads go on.
        clocks.seconds(owner, "SELECT count(*)::float8 FROM lists").await;
    }
    clocks.set_all(0);
    run.progress(&all(), 5, "the owner's clock set right").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn three_processes_are_strictly_serializable_whatever_their_clocks_say() {
    let clocks = Clocks::start();
    let client = clocks.node(0).connect().await.expect("connects");
    client.batch_execute("CREATE TABLE probes (i int)").await.expect("table");
    let mut clients = Clients::start(&clocks).await;
    while clients.another_round() {
        round(&clocks, &clients.run).await;
    }
    // What was committed last has the database's time.
    let newest = "SELECT extract(epoch FROM watermark)::float8 FROM telesto_logs";
    // Against this process's clock: a node's may be read in the moment in which it is set right.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.expect("after 1970").as_secs_f64();
    let ahead = clocks.seconds(0, newest).await - now;
    println!("the database's time is {ahead:.0} s ahead");
    assert!(ahead < BOUND as f64, "the database's time was moved {ahead} s ahead");
    clients.end(&clocks).await;
}
