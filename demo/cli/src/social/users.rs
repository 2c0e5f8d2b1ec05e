//! The network's users: a client is one user after the other, always of its region, in one session
//! that moves.
//!
//! # Invariants
//! What is acknowledged is noted after the acknowledgement, never before.
//!
//! # On failure
//! A conflict is tried again as another operation. What else goes wrong ends the client, and is
//! told at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use telesto_common::RegionId;
use telesto_social::{Operation, REGIONS, Subject};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::{Client, Error};

use super::tables::{Network, rows};
use super::{NAMES, Social};
use crate::sql::{connect, full};

/// Whoever moves waits so long for what it has seen, and then goes home without: longer than a
/// message and its answer take.
const ATTACH: &str = "2s";
/// Posts on a page.
const PAGE: usize = 10;

/// What happened so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub operations: u64,
    pub writes: u64,
    pub moves: u64,
    pub checks: u64,
    pub violations: u64,
}

/// What was seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub stop: AtomicBool,
    operations: AtomicU64,
    writes: AtomicU64,
    moves: AtomicU64,
    pub stayed: AtomicU64,
    checks: AtomicU64,
    violations: AtomicU64,
    /// Of moves there and back, beyond the link's time.
    pub waited_micros: AtomicU64,
    pub acknowledged: Mutex<Vec<(u32, i64)>>,
    /// The first error that no client expected.
    pub trouble: Mutex<Option<String>>,
}

impl Seen {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn counts(&self) -> Counts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            operations: of(&self.operations),
            writes: of(&self.writes),
            moves: of(&self.moves),
            checks: of(&self.checks),
            violations: of(&self.violations),
        }
    }

    fn checked(&self, right: bool) {
        self.checks.fetch_add(1, Ordering::Relaxed);
        self.violations.fetch_add(u64::from(!right), Ordering::Relaxed);
    }
}

/// Starts the clients of all regions.
pub fn start(network: &Arc<Network>, seen: &Arc<Seen>, asked: &Social) -> Vec<JoinHandle<()>> {
    let mut clients = Vec::new();
    for home in 0..REGIONS {
        for number in 0..asked.clients {
            let seed = asked.seed.wrapping_mul(1_000_003) ^ ((home as u64) << 32 | number);
            let user = User {
                network: Arc::clone(network),
                seen: Arc::clone(seen),
                home,
                at: home,
                sessions: (0..REGIONS).map(|_| None).collect(),
                random: SmallRng::seed_from_u64(seed),
                writes: asked.writes,
                // Posts of all clients differ, and newer ones of a client are greater.
                next: (home as i64) * 1000 + number as i64 + 1,
                wrote: None,
            };
            clients.push(tokio::spawn(user.run(asked.think.0)));
        }
    }
    clients
}

struct User {
    network: Arc<Network>,
    seen: Arc<Seen>,
    home: usize,
    /// Where the session is.
    at: usize,
    /// By region.
    sessions: Vec<Option<Client>>,
    random: SmallRng,
    writes: f64,
    next: i64,
    /// The newest post of this session.
    wrote: Option<(u32, i64)>,
}

/// Whether it was committed; a conflict was not.
fn done<T>(answer: Result<T, Error>) -> Result<bool, String> {
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.code().is_some_and(|code| code.code() == "40001") => Ok(false),
        Err(error) => Err(full(&error)),
    }
}

impl User {
    async fn run(mut self, think: Duration) {
        while !self.seen.stop.load(Ordering::Relaxed) {
            if let Err(error) = self.turn().await {
                let region = NAMES[self.at];
                self.seen.trouble.lock().get_or_insert(format!("a user in {region}: {error}"));
                return;
            }
            self.seen.operations.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(think).await;
        }
    }

    async fn session(&mut self) -> Result<&Client, String> {
        let at = self.at;
        if self.sessions[at].is_none() {
            self.sessions[at] = Some(connect(&self.network.urls[at]).await?);
        }
        self.sessions[at].as_ref().ok_or_else(|| "no session".to_owned())
    }

    /// One operation, where its data are, and home again.
    async fn turn(&mut self) -> Result<(), String> {
        let network = Arc::clone(&self.network);
        let operation = Operation::draw(self.writes, &mut self.random);
        let region = RegionId(u16::try_from(self.home).unwrap_or_default());
        let user = network.graph.user_of(region, &mut self.random);
        let subject = match operation.subject() {
            Subject::Own => user,
            Subject::Friend => network.graph.friend_of(user, &mut self.random).unwrap_or(user),
            Subject::Anybody => network.graph.anybody(&mut self.random),
        };
        if !network.is_in(subject, self.home) {
            let there = network.nearest(subject, self.home);
            if !self.go(there).await? {
                return Ok(());
            }
        }
        match operation {
            Operation::Post => self.write(user, None).await?,
            Operation::Message => self.write(subject, Some((user, None))).await?,
            Operation::Settings => self.change_settings(user).await?,
            Operation::Comment => {
                let newest = self.browse(subject).await?;
                // One's own page is at home.
                self.go(self.home).await?;
                let about = newest.map(|n| (subject, Some(n)));
                if self.at == self.home {
                    self.write(user, about).await?;
                }
            }
            Operation::BrowseFriend
            | Operation::BrowsePhotos
            | Operation::BrowseOwn
            | Operation::Search => {
                self.browse(subject).await?;
            }
        }
        while self.at != self.home && !self.seen.stop.load(Ordering::Relaxed) {
            self.go(self.home).await?;
        }
        Ok(())
    }

    /// Moves the session, with all that it has seen; whether it did.
    async fn go(&mut self, to: usize) -> Result<bool, String> {
        if to == self.at {
            return Ok(true);
        }
        let (network, from) = (Arc::clone(&self.network), self.at);
        let migrate = format!("SELECT telesto_migrate('{}')", NAMES[to]);
        let token = rows(self.session().await?, &migrate).await.map_err(|error| full(&error))?;
        let token = token.first().and_then(|row| row.first()?.clone()).unwrap_or_default();
        tokio::time::sleep(network.one_way(from, to)).await;
        self.at = to;
        let asked = Instant::now();
        let attach = format!(
            "SET statement_timeout = '{ATTACH}'; SET telesto.session_token = '{token}'; SET statement_timeout = 0"
        );
        let attached = self.session().await?.batch_execute(&attach).await;
        match attached {
            Ok(()) => {
                let took = u64::try_from(asked.elapsed().as_micros()).unwrap_or_default();
                self.seen.waited_micros.fetch_add(took, Ordering::Relaxed);
                if to != self.home {
                    self.seen.moves.fetch_add(1, Ordering::Relaxed);
                }
                self.check_own().await?;
                Ok(true)
            }
            // What it has seen is not there in time.
            Err(error)
                if error.code().is_some_and(|code| matches!(code.code(), "55000" | "57014")) =>
            {
                self.seen.stayed.fetch_add(1, Ordering::Relaxed);
                self.at = from;
                Ok(false)
            }
            Err(error) => Err(full(&error)),
        }
    }

    /// Looks for the session's newest post, where its wall is here.
    async fn check_own(&mut self) -> Result<(), String> {
        if let Some((owner, n)) = self.wrote
            && self.network.is_in(owner, self.at)
        {
            let there = self.has(owner, n).await?;
            self.seen.checked(there);
        }
        Ok(())
    }

    async fn has(&mut self, owner: u32, n: i64) -> Result<bool, String> {
        let wall = self.network.wall(owner);
        let look = format!("SELECT 1 FROM {wall} WHERE owner = {owner} AND n = {n}");
        let found = rows(self.session().await?, &look).await.map_err(|error| full(&error))?;
        Ok(!found.is_empty())
    }

    /// Looks at a wall, and for what a post on it is about; the number of its newest post.
    async fn browse(&mut self, owner: u32) -> Result<Option<i64>, String> {
        let wall = self.network.wall(owner);
        let page = format!(
            "SELECT n, about, about_n FROM {wall} WHERE owner = {owner} AND n > 0 ORDER BY n DESC LIMIT {PAGE}"
        );
        let posts = rows(self.session().await?, &page).await.map_err(|error| full(&error))?;
        let number = |row: &Vec<Option<String>>, cell: usize| -> Option<i64> {
            row.get(cell)?.as_deref()?.parse().ok()
        };
        let about = posts
            .iter()
            .filter_map(|row| Some((u32::try_from(number(row, 1)?).ok()?, number(row, 2)?)));
        let here: Vec<_> = about.filter(|(about, _)| self.network.is_in(*about, self.at)).collect();
        if !here.is_empty() {
            let (about, n) = here[self.random.random_range(0..here.len())];
            let there = self.has(about, n).await?;
            self.seen.checked(there);
        }
        Ok(posts.first().and_then(|row| number(row, 0)))
    }

    async fn write(&mut self, owner: u32, about: Option<(u32, Option<i64>)>) -> Result<(), String> {
        let (wall, n) = (self.network.wall(owner), self.next);
        self.next += 10_000;
        let shown = |number: Option<i64>| number.map_or("NULL".to_owned(), |n| n.to_string());
        let (about, about_n) = match about {
            Some((about, n)) => (shown(Some(i64::from(about))), shown(n)),
            None => (shown(None), shown(None)),
        };
        let words = "hello ".repeat(self.random.random_range(1..30));
        let post =
            format!("INSERT INTO {wall} VALUES ({owner}, {n}, '{words}', {about}, {about_n})");
        if done(self.session().await?.batch_execute(&post).await)? {
            self.seen.writes.fetch_add(1, Ordering::Relaxed);
            self.seen.acknowledged.lock().push((owner, n));
            self.wrote = Some((owner, n));
        }
        Ok(())
    }

    async fn change_settings(&mut self, user: u32) -> Result<(), String> {
        let wall = self.network.wall(user);
        let to: u32 = self.random.random_range(0..1_000_000);
        let change =
            format!("UPDATE {wall} SET body = 'settings; {to}' WHERE owner = {user} AND n = 0");
        if done(self.session().await?.batch_execute(&change).await)? {
            self.seen.writes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
