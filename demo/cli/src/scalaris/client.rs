//! Clients that read numbers, or read them and write them plus one.
//!
//! # Invariants
//! - A conflict has done nothing, and is tried again with the same key.
//! - What failed before COMMIT was sent has done nothing either; what failed afterwards, and the
//!   server did not say what became of it, is in doubt.
//!
//! # On failure
//! A [`Client`] ends at the first failure; a [`Survivor`] connects again, to whichever node
//! answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;
use tokio_postgres::Statement;

use crate::measure::Tally;
use crate::nodes::nothing_done;
use crate::sql::{connect, full};

/// How often a modify is tried.
const TRIES: u32 = 1000;
/// Reads before the watch starts: plans, caches.
const WARM: u32 = 20;
/// Between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(20);
/// How long an operation may take before a survivor gives its connection up.
const GIVEN_UP: Duration = Duration::from_secs(30);

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Modify,
}

/// What became of a modify that was not acknowledged.
#[derive(Debug, PartialEq, Eq)]
enum Failed {
    /// A conflict: nothing was done.
    Conflict,
    /// Nothing was done, for another reason.
    Undone(String),
    /// It may have been done.
    Doubtful(String),
}

impl Failed {
    fn why(self) -> String {
        match self {
            Self::Conflict => "a conflict".to_owned(),
            Self::Undone(why) | Self::Doubtful(why) => why,
        }
    }

    fn of(error: &tokio_postgres::Error, committing: bool) -> Self {
        match error.code() {
            Some(code) if nothing_done(code.code()) => Self::Conflict,
            _ if committing => Self::Doubtful(full(error)),
            _ => Self::Undone(full(error)),
        }
    }
}

/// The greatest number seen of each key: none may become less.
#[derive(Debug, Default)]
struct Seen(BTreeMap<i64, i64>);

impl Seen {
    fn saw(&mut self, key: i64, number: i64) -> Result<(), String> {
        match self.0.insert(key, number) {
            Some(before) if before > number => Err(format!(
                "the number of key {key} was {before} and is {number}: please report this with the nodes' folders"
            )),
            _ => Ok(()),
        }
    }
}

/// A connection.
pub struct Client {
    client: tokio_postgres::Client,
    read: Statement,
    write: Statement,
    keys: i64,
    random: SmallRng,
    seen: Seen,
}

impl Client {
    /// Connects.
    pub async fn open(url: &str, keys: u32, seed: u64) -> Result<Self, String> {
        let client = connect(url).await?;
        let prepare = async |statement| client.prepare(statement).await;
        let read = prepare("SELECT n FROM scalaris_keys WHERE k = $1").await;
        let write = prepare("UPDATE scalaris_keys SET n = $2 WHERE k = $1").await;
        let (read, write) =
            (read.map_err(|error| full(&error))?, write.map_err(|error| full(&error))?);
        let random = SmallRng::seed_from_u64(seed);
        let mut opened =
            Self { client, read, write, keys: i64::from(keys), random, seen: Seen::default() };
        for _ in 0..WARM {
            let key = opened.key();
            opened.read(key).await?;
        }
        Ok(opened)
    }

    fn key(&mut self) -> i64 {
        self.random.random_range(1..=self.keys)
    }

    async fn read(&mut self, key: i64) -> Result<(), String> {
        let row = self.client.query_one(&self.read, &[&key]).await;
        let number: i64 = row.map_err(|error| full(&error))?.get(0);
        self.seen.saw(key, number)
    }

    /// One try; the number written.
    async fn modify(&self, key: i64) -> Result<i64, Failed> {
        let before = |error: tokio_postgres::Error| Failed::of(&error, false);
        self.client.batch_execute("BEGIN").await.map_err(before)?;
        let row = self.client.query_one(&self.read, &[&key]).await.map_err(before)?;
        let number = row.get::<_, i64>(0) + 1;
        self.client.execute(&self.write, &[&key, &number]).await.map_err(before)?;
        let committed = self.client.batch_execute("COMMIT").await;
        committed.map_err(|error| Failed::of(&error, true))?;
        Ok(number)
    }

    /// Does it so many times.
    pub async fn work(mut self, kind: Kind, times: u32) -> Result<Tally, String> {
        let mut tally = Tally::new()?;
        for _ in 0..times {
            let (key, begun) = (self.key(), Instant::now());
            match kind {
                Kind::Read => self.read(key).await?,
                Kind::Modify => tally.conflicts += self.modify_until_done(key).await?,
            }
            tally.done(begun);
        }
        Ok(tally)
    }

    /// Tries it until it is acknowledged; how many conflicts there were.
    async fn modify_until_done(&mut self, key: i64) -> Result<u64, String> {
        for conflicts in 0..TRIES {
            match self.modify(key).await {
                Ok(number) => {
                    self.seen.saw(key, number)?;
                    return Ok(conflicts.into());
                }
                Err(Failed::Conflict) => self.roll_back().await?,
                Err(failed) => return Err(failed.why()),
            }
        }
        Err(format!("a modify met a conflict {TRIES} times in a row; give more --keys"))
    }

    async fn roll_back(&self) -> Result<(), String> {
        self.client.batch_execute("ROLLBACK").await.map_err(|error| full(&error))
    }
}

/// A client that goes on when its node is gone.
pub struct Survivor {
    url: String,
    keys: u32,
    seed: u64,
    /// What its connections have seen, one after the other.
    seen: Seen,
    survived: Survived,
}

/// What a survivor has met.
#[derive(Debug, Default)]
pub struct Survived {
    pub acknowledged: u64,
    pub doubtful: u64,
    /// The longest time between two acknowledgements.
    pub longest: Duration,
}

impl Survivor {
    /// A client of the nodes of `url`, the first that answers.
    pub fn new(url: String, keys: u32, seed: u64) -> Self {
        Self { url, keys, seed, seen: Seen::default(), survived: Survived::default() }
    }

    /// Modifies until it is told to stop.
    pub async fn work(mut self, stop: Arc<AtomicBool>) -> Result<Survived, String> {
        let mut last = Instant::now();
        let mut lives: u64 = 0;
        while !stop.load(Ordering::Relaxed) {
            lives += 1;
            // Another life draws other keys.
            let opening = Client::open(&self.url, self.keys, self.seed ^ (lives << 32));
            let Ok(Ok(mut client)) = tokio::time::timeout(GIVEN_UP, opening).await else {
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            client.seen = std::mem::take(&mut self.seen);
            while !stop.load(Ordering::Relaxed) && !client.client.is_closed() {
                let key = client.key();
                let Ok(ended) = tokio::time::timeout(GIVEN_UP, client.modify(key)).await else {
                    self.survived.doubtful += 1;
                    break;
                };
                match ended {
                    Ok(number) => {
                        client.seen.saw(key, number)?;
                        self.survived.acknowledged += 1;
                        self.survived.longest = self.survived.longest.max(last.elapsed());
                        last = Instant::now();
                    }
                    Err(failed) => {
                        self.survived.doubtful += u64::from(matches!(failed, Failed::Doubtful(_)));
                        if client.roll_back().await.is_err() {
                            break;
                        }
                    }
                }
            }
            self.seen = client.seen;
        }
        self.survived.longest = self.survived.longest.max(last.elapsed());
        Ok(self.survived)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_that_became_less_is_told() {
        let mut seen = Seen::default();
        assert_eq!((seen.saw(1, 5), seen.saw(1, 5), seen.saw(2, 1)), (Ok(()), Ok(()), Ok(())));
        assert!(seen.saw(1, 4).is_err());
    }
}
