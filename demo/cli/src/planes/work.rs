//! What clients of a region do: reads and updates of single rows, here and elsewhere, as fast as
//! they are answered.
//!
//! ```text
//! client of region i ─ read, update ─► node of i
//!        └─ what is not in i: token, half a round trip ─► node of k: attach, read ─ token, half a round trip ─► node of i: attach
//! ```
//! # Invariants
//! - A client waits for each answer before it asks again (a closed loop), as Saturn's do.
//! - On a causal plane a session takes its token along, and waits where it comes to until all that
//!   it has seen is there. On `eventual` it does not: that baseline has nothing to wait for.
//!
//! # On failure
//! A conflict is counted, and is no operation. What else goes wrong ends the run, and is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use telesto_geo::{Latencies, RegionSet};
use telesto_social::{Graph, Operation, Sharing, Subject};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Statement};

use super::tables::{Tables, id};
use crate::sql::{connect, full};

/// What is drawn.
#[derive(Clone)]
pub enum Draws {
    /// The synthetic workload of §7.3.2: shares of a hundred.
    Synthetic { sharing: Sharing, reads: u32, remote_reads: u32 },
    /// The social network of §7.4.
    Social(Arc<Graph>),
}

/// One operation.
struct Step {
    set: RegionSet,
    key: i32,
    writes: bool,
}

impl Draws {
    fn step(&self, home: usize, keys: u32, random: &mut SmallRng) -> Step {
        match self {
            Self::Synthetic { sharing, reads, remote_reads } => {
                let writes = random.random_range(0..100) >= *reads;
                let mut set = sharing.placement(id(home), random);
                if !writes && random.random_range(0..100) < *remote_reads {
                    // An item of that region which is not here.
                    let there = sharing.elsewhere(id(home), random);
                    set = sharing.placement(there, random).without(id(home));
                }
                Step { set, key: random.random_range(0..keys).cast_signed(), writes }
            }
            Self::Social(graph) => {
                let operation = Operation::draw(1.0, random);
                let user = graph.user_of(id(home), random);
                let subject = match operation.subject() {
                    Subject::Own => user,
                    Subject::Friend => graph.friend_of(user, random).unwrap_or(user),
                    Subject::Anybody => graph.anybody(random),
                };
                let set = graph.placements[subject as usize];
                // A comment stands on one's own page; other messages to who is elsewhere are that,
                // too.
                let here = set.has(id(home));
                let (writes, subject) = match operation.writes() {
                    true if here => (true, subject),
                    true => (true, user),
                    false => (false, subject),
                };
                let set = graph.placements[subject as usize];
                Step { set, key: (subject % keys).cast_signed(), writes }
            }
        }
    }
}

/// What a run is like.
#[derive(Clone)]
pub struct Load {
    pub draws: Draws,
    pub value_bytes: usize,
    pub clients: u64,
    pub seed: u64,
    /// Sessions take their tokens along.
    pub tokens: bool,
}

/// What happened so far.
#[derive(Debug, Default)]
pub struct Done {
    stop: AtomicBool,
    operations: AtomicU64,
    updates: AtomicU64,
    conflicts: AtomicU64,
    trouble: Mutex<Option<String>>,
}

/// The counts of a moment.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub operations: u64,
    pub updates: u64,
    pub conflicts: u64,
}

impl Done {
    pub fn counts(&self) -> Counts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            operations: of(&self.operations),
            updates: of(&self.updates),
            conflicts: of(&self.conflicts),
        }
    }
}

/// Clients at work.
pub struct Clients {
    pub done: Arc<Done>,
    tasks: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Starts them, in every region of `urls`.
    pub fn start(
        urls: &[String],
        names: &'static [&'static str],
        latencies: &Latencies,
        tables: &Tables,
        load: &Arc<Load>,
    ) -> Self {
        let done = Arc::new(Done::default());
        let mut tasks = Vec::new();
        for home in 0..urls.len() {
            for number in 0..load.clients {
                let seed = load.seed.wrapping_mul(1_000_003) ^ ((home as u64) << 32 | number);
                let client = One {
                    urls: urls.to_vec(),
                    names,
                    latencies: latencies.clone(),
                    keys: tables.keys,
                    load: Arc::clone(load),
                    done: Arc::clone(&done),
                    sessions: (0..urls.len()).map(|_| None).collect(),
                    random: SmallRng::seed_from_u64(seed),
                };
                tasks.push(tokio::spawn(client.run(home)));
            }
        }
        Self { done, tasks }
    }

    /// Ends them.
    ///
    /// # Errors
    /// What went wrong in one of them.
    pub async fn stop(self) -> Result<(), String> {
        self.done.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.map_err(|error| error.to_string())?;
        }
        match self.done.trouble.lock().take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// A connection, and what is prepared on it.
struct Session {
    client: Client,
    reads: BTreeMap<u64, Statement>,
    writes: BTreeMap<u64, Statement>,
}

struct One {
    urls: Vec<String>,
    names: &'static [&'static str],
    latencies: Latencies,
    keys: u32,
    load: Arc<Load>,
    done: Arc<Done>,
    /// By region.
    sessions: Vec<Option<Session>>,
    random: SmallRng,
}

impl One {
    async fn run(mut self, home: usize) {
        while !self.done.stop.load(Ordering::Relaxed) {
            if let Err(error) = self.turn(home).await {
                let told = format!("a client of {}: {error}", self.names[home]);
                self.done.trouble.lock().get_or_insert(told);
                return;
            }
        }
    }

    async fn session(&mut self, at: usize) -> Result<&mut Session, String> {
        if self.sessions[at].is_none() {
            let client = connect(&self.urls[at]).await?;
            let (reads, writes) = (BTreeMap::new(), BTreeMap::new());
            self.sessions[at] = Some(Session { client, reads, writes });
        }
        self.sessions[at].as_mut().ok_or_else(|| "no session".to_owned())
    }

    async fn turn(&mut self, home: usize) -> Result<(), String> {
        let load = Arc::clone(&self.load);
        let step = load.draws.step(home, self.keys, &mut self.random);
        if step.set.has(id(home)) {
            return self.act(home, &step).await;
        }
        let near = step.set.iter().min_by_key(|region| self.latencies.get(id(home), *region));
        let there = near.map_or(home, |region| usize::from(region.0));
        self.go(home, there).await?;
        self.act(there, &step).await?;
        self.go(there, home).await
    }

    async fn act(&mut self, at: usize, step: &Step) -> Result<(), String> {
        let mut value = vec![0; if step.writes { self.load.value_bytes } else { 0 }];
        self.random.fill_bytes(&mut value);
        let session = self.session(at).await?;
        let answer = if step.writes {
            let write = session.write(step.set).await?;
            session.client.execute(&write, &[&step.key, &value]).await
        } else {
            let read = session.read(step.set).await?;
            session.client.query(&read, &[&step.key]).await.map(|rows| rows.len() as u64)
        };
        match answer {
            Ok(1) => {
                self.done.operations.fetch_add(1, Ordering::Relaxed);
                self.done.updates.fetch_add(u64::from(step.writes), Ordering::Relaxed);
                Ok(())
            }
            Ok(rows) => Err(format!("{rows} rows have key {}, not one", step.key)),
            Err(error) if error.code().is_some_and(|code| code.code() == "40001") => {
                self.done.conflicts.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(full(&error)),
        }
    }

    /// Takes the session along, and half a round trip.
    async fn go(&mut self, from: usize, to: usize) -> Result<(), String> {
        let way = Duration::from_micros(self.latencies.get(id(from), id(to)));
        if !self.load.tokens {
            tokio::time::sleep(way).await;
            return Ok(());
        }
        let migrate = format!("SELECT telesto_migrate('{}')", self.names[to]);
        let session = self.session(from).await?;
        let token = session.client.query_one(&migrate, &[]).await.map_err(|error| full(&error))?;
        let token: String = token.get(0);
        tokio::time::sleep(way).await;
        let attach = format!("SET telesto.session_token = '{token}'");
        let session = self.session(to).await?;
        session.client.batch_execute(&attach).await.map_err(|error| full(&error))
    }
}

impl Session {
    async fn read(&mut self, set: RegionSet) -> Result<Statement, String> {
        prepared(&self.client, &mut self.reads, set, Tables::read(set)).await
    }

    async fn write(&mut self, set: RegionSet) -> Result<Statement, String> {
        prepared(&self.client, &mut self.writes, set, Tables::write(set)).await
    }
}

async fn prepared(
    client: &Client,
    kept: &mut BTreeMap<u64, Statement>,
    set: RegionSet,
    text: String,
) -> Result<Statement, String> {
    if let Some(statement) = kept.get(&set.0) {
        return Ok(statement.clone());
    }
    let statement = client.prepare(&text).await.map_err(|error| full(&error))?;
    kept.insert(set.0, statement.clone());
    Ok(statement)
}
