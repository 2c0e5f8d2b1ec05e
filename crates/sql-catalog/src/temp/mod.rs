//! Temporary relations: definitions and rows that belong to one session.
//!
//! # How it works
//! A session that makes its first temporary relation gets a [`TempStore`]: ordered keys in memory,
//! with the definitions and the rows under a database id of their own ([`TEMP_DATABASE`]). Its
//! transactions are wrapped ([`transaction::WithTemp`]): keys of that database go to the store, all
//! others to the transaction below. The session's catalog is the shared one with the store's
//! objects put over it, under a stamp made of both.
//!
//! # Invariants
//! - Nothing temporary reaches the log or the bucket: nothing is left after a crash, and no other
//!   session's catalog or plan changes.
//! - What a transaction did to the store is undone with it: by ROLLBACK, ROLLBACK TO, a conflict,
//!   or when it is dropped.
//! - OIDs from [`TEMP_FIRST_OID`] on are those of temporary objects, and only theirs.
//!
//! # On failure
//! Memory is counted against the engine's statement memory: 53200.
//!
//! # Limits
//! Rows are held in memory, not on disk. One transaction at a time, as a session has.

pub mod catalog;
pub mod transaction;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::DatabaseId;
use telesto_common::key::KeyRange;
use telesto_common::limits::{MemoryBudget, Reservation};

use crate::CatalogSnapshot;
use telesto_sql_types::error::{Error, Result, SqlState};

/// The database id in keys of temporary things.
pub const TEMP_DATABASE: DatabaseId = DatabaseId(u32::MAX);
/// OIDs from here on are those of temporary objects.
pub const TEMP_FIRST_OID: u32 = 0xC000_0000;

/// Numbers the sessions of a process, for the names of their schemas.
static NUMBERS: AtomicU32 = AtomicU32::new(1);

/// Whether an OID is that of a temporary object.
pub fn is_temporary(oid: u32) -> bool {
    oid >= TEMP_FIRST_OID
}

/// Whether a key belongs to a store.
pub fn is_temporary_key(key: &[u8]) -> bool {
    key.starts_with(&TEMP_DATABASE.0.to_be_bytes())
}

#[derive(Debug)]
struct Inner {
    rows: BTreeMap<Bytes, Bytes>,
    /// What was there before each write of the transaction under way.
    undo: Vec<(Bytes, Option<Bytes>)>,
    held: Reservation,
    /// Bytes of rows and of what is kept for undo.
    bytes: u64,
}

impl Inner {
    fn account(&mut self) -> std::result::Result<(), telesto_common::Error> {
        let (now, held) = (self.bytes, self.held.bytes());
        if now > held {
            // In steps: each is an atomic operation on a counter that all sessions share.
            return self.held.grow((now - held).max(4096));
        }
        if held - now > 1 << 20 {
            self.held.shrink(held - now);
        }
        Ok(())
    }

    fn set(&mut self, key: &Bytes, value: Option<Bytes>) -> Option<Bytes> {
        let size = |value: &Bytes| (key.len() + value.len() + 64) as u64;
        if let Some(value) = &value {
            self.bytes += size(value);
        }
        let before = match value {
            Some(value) => self.rows.insert(key.clone(), value),
            None => self.rows.remove(key),
        };
        if let Some(before) = &before {
            self.bytes = self.bytes.saturating_sub(size(before));
        }
        before
    }
}

/// The temporary keys of one session.
#[derive(Debug)]
pub struct TempStore {
    number: u32,
    inner: Mutex<Inner>,
    /// The catalog made last, by the stamps it was made of.
    merged: Mutex<Option<(u128, u128, Arc<CatalogSnapshot>)>>,
    /// What the users' types are called that columns of its tables have been of.
    types: Mutex<BTreeMap<u32, String>>,
}

impl TempStore {
    /// An empty store.
    pub fn new(memory: &Arc<MemoryBudget>) -> Result<Arc<Self>> {
        let held = memory.reserve("temporary tables", 0).map_err(out_of_memory)?;
        Ok(Arc::new(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            inner: Mutex::new(Inner { rows: BTreeMap::new(), undo: Vec::new(), held, bytes: 0 }),
            merged: Mutex::default(),
            types: Mutex::default(),
        }))
    }

    /// The schema's name.
    pub fn schema_name(&self) -> String {
        format!("pg_temp_{}", self.number)
    }

    /// The value of a key now.
    pub fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.inner.lock().rows.get(key).cloned()
    }

    /// The rows of a range as they are now.
    pub fn range(&self, range: &KeyRange) -> Vec<(Bytes, Bytes)> {
        let inner = self.inner.lock();
        inner
            .rows
            .range(range.start.clone()..)
            .take_while(|(key, _)| range.contains(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    /// Writes a key; the transaction under way can undo it.
    pub fn set(
        &self,
        key: Bytes,
        value: Option<Bytes>,
    ) -> std::result::Result<(), telesto_common::Error> {
        let mut inner = self.inner.lock();
        let before = inner.set(&key, value);
        inner.bytes += (key.len() + before.as_ref().map_or(0, Bytes::len) + 64) as u64;
        inner.undo.push((key, before));
        inner.account()
    }

    /// How many writes can be undone.
    pub fn mark(&self) -> usize {
        self.inner.lock().undo.len()
    }

    /// The values of keys before the writes after `mark`.
    pub fn get_before(&self, keys: &[&[u8]], mark: usize) -> Vec<Option<Bytes>> {
        let inner = self.inner.lock();
        // The first write after the mark knows what was there.
        let mut first: BTreeMap<&[u8], &Option<Bytes>> = BTreeMap::new();
        for (key, before) in inner.undo.iter().skip(mark) {
            first.entry(key).or_insert(before);
        }
        keys.iter()
            .map(|key| match first.get(*key) {
                Some(before) => (*before).clone(),
                None => inner.rows.get(*key).cloned(),
            })
            .collect()
    }

    /// The rows of a range before the writes after `mark`.
    pub fn range_before(&self, range: &KeyRange, mark: usize) -> Vec<(Bytes, Bytes)> {
        let mut rows: BTreeMap<Bytes, Bytes> = self.range(range).into_iter().collect();
        let inner = self.inner.lock();
        for (key, before) in inner.undo.iter().skip(mark).rev() {
            if range.contains(key) {
                match before {
                    Some(value) => rows.insert(key.clone(), value.clone()),
                    None => rows.remove(key),
                };
            }
        }
        rows.into_iter().collect()
    }

    /// Undoes the writes after `mark`.
    pub fn undo_to(&self, mark: usize) {
        let mut inner = self.inner.lock();
        while inner.undo.len() > mark {
            let Some((key, before)) = inner.undo.pop() else { break };
            let kept = (key.len() + before.as_ref().map_or(0, Bytes::len) + 64) as u64;
            inner.bytes = inner.bytes.saturating_sub(kept);
            inner.set(&key, before);
        }
        // Less is held than before: this cannot fail.
        let _ = inner.account();
    }

    /// Keeps what was written.
    pub fn keep(&self) {
        let mut inner = self.inner.lock();
        let kept: u64 = inner
            .undo
            .iter()
            .map(|(key, before)| (key.len() + before.as_ref().map_or(0, Bytes::len) + 64) as u64)
            .sum();
        inner.bytes = inner.bytes.saturating_sub(kept);
        inner.undo = Vec::new();
        let _ = inner.account();
    }

    /// Removes everything (DISCARD TEMP); the transaction under way, if there is one, can undo it.
    pub fn clear(&self, in_transaction: bool) -> Result<()> {
        let keys: Vec<Bytes> = self.inner.lock().rows.keys().cloned().collect();
        for key in keys {
            self.set(key, None).map_err(out_of_memory)?;
        }
        if !in_transaction {
            self.keep();
        }
        Ok(())
    }
}

/// 53200.
pub fn out_of_memory(error: telesto_common::Error) -> Error {
    Error::new(SqlState::OUT_OF_MEMORY, error.to_string())
        .hint("Temporary tables are held in memory: keep less in them, or use an ordinary table.")
}
