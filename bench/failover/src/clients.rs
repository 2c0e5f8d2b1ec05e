//! Clients that commit one statement after the other, and when they did.
//!
//! # Invariants
//! A statement that failed, or whose connection broke, is sent again at once, on a new connection
//! if need be.
//!
//! # On failure
//! None is told: what fails makes a gap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio_postgres::NoTls;

use crate::namespaces::Trio;

/// Between two attempts that failed.
const AGAIN: Duration = Duration::from_millis(10);
/// A gap after which a client does not go on steadily.
const DISTURBS: Duration = Duration::from_millis(500);

/// When a client has committed since the last [`Clients::forget`].
#[derive(Debug)]
struct Commits {
    last: Instant,
    longest: Duration,
    /// When the last gap of [`DISTURBS`] ended, or else what is measured began.
    disturbed: Instant,
    /// Commits that were acknowledged.
    acknowledged: u64,
    /// Statements whose outcome is not known.
    doubtful: u64,
}

/// One client of each node.
pub(crate) struct Clients {
    commits: Vec<Arc<Mutex<Commits>>>,
    stop: Arc<AtomicBool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Clients {
    pub(crate) async fn start(trio: &Trio) -> Self {
        let client = trio.node(0).connect().await.expect("connects");
        let table = "CREATE TABLE beats (k bigint PRIMARY KEY, n bigint NOT NULL)";
        client.batch_execute(table).await.expect("a table");
        let stop = Arc::new(AtomicBool::new(false));
        let (mut commits, mut tasks) = (Vec::new(), Vec::new());
        for (index, url) in trio.urls.iter().enumerate() {
            let now = Instant::now();
            let seen = Arc::new(Mutex::new(Commits {
                last: now,
                longest: Duration::ZERO,
                disturbed: now,
                acknowledged: 0,
                doubtful: 0,
            }));
            commits.push(Arc::clone(&seen));
            let (url, stop) = (Arc::clone(url), Arc::clone(&stop));
            tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let at = url.lock().expect("no panic").clone();
                    beat(&at, index, &seen, &stop).await;
                    tokio::time::sleep(AGAIN).await;
                }
            }));
        }
        Self { commits, stop, tasks: Mutex::new(tasks) }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// What is measured begins at `now`.
    pub(crate) fn forget(&self, now: Instant) {
        for commits in &self.commits {
            let mut commits = commits.lock().expect("no panic");
            // The gap that is open now counts from the commit before.
            (commits.disturbed, commits.longest) = (now, Duration::ZERO);
        }
    }

    /// The longest time between two commits of client `index`, one still open included.
    pub(crate) fn longest(&self, index: usize) -> Duration {
        let commits = self.commits[index].lock().expect("no panic");
        commits.longest.max(commits.last.elapsed())
    }

    /// Commits of client `index` so far.
    pub(crate) fn acknowledged_of(&self, index: usize) -> u64 {
        self.commits[index].lock().expect("no panic").acknowledged
    }

    /// Commits of all so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        (0..self.commits.len()).map(|index| self.acknowledged_of(index)).sum()
    }

    /// Stops all; panics when a row says less than its client was acknowledged, or more than that
    /// and what it does not know of.
    pub(crate) async fn check(&self, trio: &Trio) {
        self.stop();
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("no panic"));
        for task in tasks {
            task.await.expect("no client panics");
        }
        let client = trio.node(0).connect().await.expect("connects");
        for (index, commits) in self.commits.iter().enumerate() {
            let key = i64::try_from(index).expect("small");
            let row = client.query_one("SELECT n FROM beats WHERE k = $1", &[&key]).await;
            let stored = row.expect("a row").get::<_, i64>(0).unsigned_abs();
            let commits = commits.lock().expect("no panic");
            let (least, most) = (commits.acknowledged, commits.acknowledged + commits.doubtful);
            assert!(
                (least..=most).contains(&stored),
                "client {index}: {least} commits were acknowledged, {} are in doubt, and its row says {stored}",
                commits.doubtful
            );
        }
        println!("{} acknowledged commits are there.", self.acknowledged());
    }

    /// Whether it has committed for `time` without a gap of [`DISTURBS`].
    pub(crate) fn steady(&self, index: usize, time: Duration) -> bool {
        let commits = self.commits[index].lock().expect("no panic");
        commits.last.elapsed() < DISTURBS && commits.disturbed.elapsed() > time
    }
}

/// Commits until something fails.
async fn beat(url: &str, index: usize, seen: &Mutex<Commits>, stop: &AtomicBool) {
    let Ok((client, connection)) = tokio_postgres::connect(url, NoTls).await else { return };
    tokio::spawn(connection);
    let sql = "INSERT INTO beats VALUES ($1, 1) ON CONFLICT (k) DO UPDATE SET n = beats.n + 1";
    let Ok(statement) = client.prepare(sql).await else { return };
    let key = i64::try_from(index).expect("small");
    while !stop.load(Ordering::SeqCst) {
        let answer = client.execute(&statement, &[&key]).await;
        let now = Instant::now();
        let mut commits = seen.lock().expect("no panic");
        if let Err(error) = answer {
            let code = error.code().map_or("", |code| code.code());
            // A conflict has done nothing; of anything else it is not known.
            commits.doubtful += u64::from(!code.starts_with("40") || code == "40003");
            return;
        }
        commits.acknowledged += 1;
        let gap = now - commits.last;
        commits.last = now;
        commits.longest = commits.longest.max(gap);
        if gap > DISTURBS {
            commits.disturbed = now;
        }
    }
}
