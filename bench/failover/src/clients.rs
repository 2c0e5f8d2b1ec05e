//! Clients that commit one statement after the other, and when they did.
//!
//! # Invariants
//! A statement that failed, or whose connection broke, is sent again at once, on a new connection if need be.
//!
//! # On failure
//! None is told: what fails makes a gap.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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
}

/// One client of each node.
pub(crate) struct Clients {
    commits: Vec<Arc<Mutex<Commits>>>,
    stop: Arc<AtomicBool>,
}

impl Clients {
    pub(crate) async fn start(trio: &Trio) -> Self {
        let client = trio.node(0).connect().await.expect("connects");
        let table = "CREATE TABLE beats (k bigint PRIMARY KEY, n bigint NOT NULL)";
        client.batch_execute(table).await.expect("a table");
        let stop = Arc::new(AtomicBool::new(false));
        let mut commits = Vec::new();
        for (index, url) in trio.urls.iter().enumerate() {
            let now = Instant::now();
            let seen = Commits { last: now, longest: Duration::ZERO, disturbed: now };
            let seen = Arc::new(Mutex::new(seen));
            commits.push(Arc::clone(&seen));
            let (url, stop) = (Arc::clone(url), Arc::clone(&stop));
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let at = url.lock().expect("no panic").clone();
                    beat(&at, index, &seen, &stop).await;
                    tokio::time::sleep(AGAIN).await;
                }
            });
        }
        Self { commits, stop }
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
    while !stop.load(Ordering::SeqCst) && client.execute(&statement, &[&key]).await.is_ok() {
        let now = Instant::now();
        let mut commits = seen.lock().expect("no panic");
        let gap = now - commits.last;
        commits.last = now;
        commits.longest = commits.longest.max(gap);
        if gap > DISTURBS {
            commits.disturbed = now;
        }
    }
}
