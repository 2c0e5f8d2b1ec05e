//! Which processes have a lock: rows of the system key space, changed by transactions of their own.
//!
//! # Invariants
//! - Two processes never have conflicting modes of one lock: both write the lock's row, and one of
//!   two commits conflicts.
//! - A holder is removed from a row only by itself, or by one that read its beats unchanged for
//!   [`LEASE`] and whose transaction finds them unchanged at its commit; that transaction removes
//!   the holder's `alive` row, too.
//!
//! # On failure
//! [`RemoteError::Lost`]: this process was taken for dead. Other errors are the database's.
//!
//! # Limits
//! A process's `alive` row stays when it ends: a few bytes a process that ever took a lock, until
//! it is taken for dead.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use telesto_common::key::{Direction, KeyWriter};
use telesto_common::{DatabaseId, Env, TableId, Timestamp};
use telesto_txn::{Database, ReadFor, Transaction, TxnOptions};

use super::{LockKey, LockMode};
use telesto_sql_types::error::{Error, Result};

/// How often a process that has locks says that it lives.
pub const BEAT: Duration = Duration::from_secs(5);
/// A process that has not said so for so long is taken for dead.
pub const LEASE: Duration = Duration::from_secs(30);

const SYSTEM: DatabaseId = DatabaseId(0);
const LOCKS: TableId = TableId(16);
const ALIVE: TableId = TableId(17);
const BEATS: TableId = TableId(18);
const VERSION: u8 = 1;

/// What went wrong.
#[derive(Debug)]
pub enum RemoteError {
    /// Another process has taken this one for dead, in this life of it.
    Lost(u64),
    /// The database's error.
    Failed(Error),
}

impl From<Error> for RemoteError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<telesto_txn::Error> for RemoteError {
    fn from(error: telesto_txn::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// The value of a lock's row: processes by their number, and how they have it.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Holders(BTreeMap<String, LockMode>);

/// A beat and when it was first seen.
#[derive(Clone, Copy, Debug)]
struct Watched {
    beat: Option<u64>,
    since: Duration,
}

/// What the others know this process by.
#[derive(Clone, Copy, Debug)]
struct Life {
    /// Of this process: how often it has begun anew.
    number: u64,
    /// The name that the rows have.
    me: u128,
    /// The commit that made it known; `None`: none yet.
    known: Option<Timestamp>,
}

/// This process among those of the bucket.
#[derive(Debug)]
pub struct Remote {
    database: Arc<dyn Database>,
    env: Env,
    of: DatabaseId,
    life: Mutex<Life>,
    watched: Mutex<BTreeMap<String, Watched>>,
}

fn process_key(table: TableId, process: u128) -> Bytes {
    let mut key = KeyWriter::prefix(SYSTEM, table, 0);
    key.raw16(process.to_be_bytes(), Direction::Ascending);
    key.finish()
}

fn named(process: &str) -> Result<u128> {
    u128::from_str_radix(process, 16)
        .map_err(|_| Error::corrupt("an advisory lock names a process that has no name"))
}

fn versioned(bytes: &Bytes) -> Result<&[u8]> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => Ok(rest),
        _ => Err(Error::corrupt("an advisory lock of another version; use a newer telesto")),
    }
}

fn beat_of(bytes: Option<Bytes>) -> Result<Option<u64>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let number: [u8; 8] = versioned(&bytes)?
        .try_into()
        .map_err(|_| Error::corrupt("the beat of an advisory lock's holder"))?;
    Ok(Some(u64::from_be_bytes(number)))
}

fn beat_bytes(beat: u64) -> Bytes {
    let mut out = vec![VERSION];
    out.extend_from_slice(&beat.to_be_bytes());
    Bytes::from(out)
}

async fn check_alive(
    txn: &Arc<dyn Transaction>,
    life: Life,
) -> std::result::Result<bool, RemoteError> {
    let alive = txn.get(&process_key(ALIVE, life.me), ReadFor::Constraint).await?.is_some();
    let lost = life.known.is_some() && !alive;
    if lost { Err(RemoteError::Lost(life.number)) } else { Ok(alive) }
}

impl Remote {
    pub(super) fn database(&self) -> &Arc<dyn Database> {
        &self.database
    }

    /// The locks of a database as they are kept in the bucket.
    pub fn new(database: Arc<dyn Database>, env: Env, of: DatabaseId) -> Self {
        let life = Mutex::new(Life { number: 0, me: env.random_u128(), known: None });
        Self { database, env, of, life, watched: Mutex::default() }
    }

    fn lock_key(&self, key: LockKey) -> Bytes {
        let mut out = KeyWriter::prefix(SYSTEM, LOCKS, 0);
        out.u64(u64::from(self.of.0), Direction::Ascending)
            .u64(u64::from(key.class) << 32 | u64::from(key.object), Direction::Ascending)
            .i16(key.sub, Direction::Ascending);
        out.finish()
    }

    /// Makes this process one nobody knows: it has lost its locks of this life. `false`: that life
    /// was over already.
    pub fn begin_anew(&self, of: u64) -> bool {
        let mut life = self.life.lock();
        if life.number != of {
            return false;
        }
        *life = Life { number: of + 1, me: self.env.random_u128(), known: None };
        true
    }

    /// Makes this process have `key` as `wanted`; `None`: not at all. False when others are in the
    /// way.
    pub async fn set(
        &self,
        key: LockKey,
        wanted: Option<LockMode>,
    ) -> std::result::Result<bool, RemoteError> {
        loop {
            let txn = self.database.begin(TxnOptions::default()).await?;
            let life = *self.life.lock();
            let changed = self.change(&txn, key, wanted, life).await;
            match changed {
                Ok(true) => match txn.commit().await {
                    Ok(committed) => {
                        let mut now = self.life.lock();
                        if now.number != life.number {
                            // The row has a name that never beats again.
                            return Err(RemoteError::Lost(life.number));
                        }
                        now.known.get_or_insert(committed.timestamp);
                        return Ok(true);
                    }
                    Err(telesto_txn::Error::Conflict { .. }) => self.pause().await,
                    Err(error) => return Err(error.into()),
                },
                Ok(false) => {
                    let seen = txn.get(&self.lock_key(key), ReadFor::Query).await?;
                    txn.rollback();
                    // What this process knows may be old.
                    let options = TxnOptions { read_only: true, ..TxnOptions::default() };
                    let fresh = self.database.begin(options).await?;
                    let now = fresh.get(&self.lock_key(key), ReadFor::Query).await?;
                    fresh.rollback();
                    if now == seen {
                        return Ok(false);
                    }
                }
                Err(error) => {
                    txn.rollback();
                    match error {
                        RemoteError::Failed(error) if error.conflict().is_some() => {
                            self.pause().await;
                        }
                        error => return Err(error),
                    }
                }
            }
        }
    }

    async fn pause(&self) {
        self.env.clock.sleep(self.env.jitter(Duration::from_millis(10))).await;
    }

    /// Writes the rows; false: others are in the way, nothing is to be committed.
    async fn change(
        &self,
        txn: &Arc<dyn Transaction>,
        key: LockKey,
        wanted: Option<LockMode>,
        life: Life,
    ) -> std::result::Result<bool, RemoteError> {
        let me = life.me;
        let mine = format!("{me:032x}");
        let row = self.lock_key(key);
        let mut holders = match txn.get(&row, ReadFor::Constraint).await? {
            Some(bytes) => serde_json::from_slice(versioned(&bytes)?)
                .map_err(|error| Error::corrupt(format!("an advisory lock: {error}")))?,
            None => Holders::default(),
        };
        let alive = check_alive(txn, life).await?;
        holders.0.remove(&mine);
        if let Some(wanted) = wanted {
            let in_the_way: Vec<String> = holders
                .0
                .iter()
                .filter(|(_, mode)| mode.conflicts(wanted))
                .map(|(process, _)| process.clone())
                .collect();
            for process in in_the_way {
                if !self.is_gone(txn, &process).await? {
                    return Ok(false);
                }
                holders.0.remove(&process);
            }
            holders.0.insert(mine, wanted);
            // Once: commits under a lock fail when this row changes.
            if !alive {
                txn.put(process_key(ALIVE, me), Bytes::from(vec![VERSION])).await?;
            }
            self.write_beat(txn, me).await?;
        }
        if holders.0.is_empty() {
            txn.delete(row).await?;
        } else {
            let mut value = vec![VERSION];
            serde_json::to_writer(&mut value, &holders)
                .map_err(|error| Error::internal(format!("an advisory lock: {error}")))?;
            txn.put(row, Bytes::from(value)).await?;
        }
        Ok(true)
    }

    async fn write_beat(&self, txn: &Arc<dyn Transaction>, me: u128) -> Result<()> {
        let key = process_key(BEATS, me);
        let beat = beat_of(txn.get(&key, ReadFor::Constraint).await?)?.unwrap_or(0);
        txn.put(key, beat_bytes(beat + 1)).await?;
        Ok(())
    }

    /// Whether a holder is dead; then it is removed.
    async fn is_gone(&self, txn: &Arc<dyn Transaction>, process: &str) -> Result<bool> {
        let number = named(process)?;
        if txn.get(&process_key(ALIVE, number), ReadFor::Constraint).await?.is_none() {
            return Ok(true);
        }
        let beat = beat_of(txn.get(&process_key(BEATS, number), ReadFor::Constraint).await?)?;
        let now = self.env.clock.monotonic();
        let still = {
            let mut watched = self.watched.lock();
            let seen = watched.entry(process.to_owned()).or_insert(Watched { beat, since: now });
            if seen.beat != beat {
                *seen = Watched { beat, since: now };
            }
            now.saturating_sub(seen.since)
        };
        if still < LEASE {
            return Ok(false);
        }
        tracing::warn!(
            process,
            "a holder of advisory locks has not beaten for {still:?}: taken for dead"
        );
        txn.delete(process_key(ALIVE, number)).await?;
        txn.delete(process_key(BEATS, number)).await?;
        self.watched.lock().remove(process);
        Ok(true)
    }

    /// Says that this process lives.
    pub async fn beat(&self) -> std::result::Result<(), RemoteError> {
        loop {
            let life = *self.life.lock();
            let txn = self.database.begin(TxnOptions::default()).await?;
            check_alive(&txn, life).await?;
            self.write_beat(&txn, life.me).await?;
            match txn.commit().await {
                Ok(_) => return Ok(()),
                Err(telesto_txn::Error::Conflict { .. }) => self.pause().await,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Lets the commit of `txn` fail if this process was taken for dead in the life that it has
    /// now. A life in which it is known to have been.
    pub async fn fence(&self, txn: &Arc<dyn Transaction>) -> Result<Option<u64>> {
        let life = *self.life.lock();
        let alive = txn.get(&process_key(ALIVE, life.me), ReadFor::Constraint).await?.is_some();
        // A snapshot from before this process was known does not have the row: the commit will find
        // it changed, and the block is executed again at a newer one.
        let lost = !alive && life.known.is_some_and(|since| txn.snapshot() >= since);
        Ok(lost.then_some(life.number))
    }
}
