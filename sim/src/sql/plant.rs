//! Bugs planted under SQL: a transaction that forgets index entries, or what a rule rests on.
//!
//! # Invariants
//! Only keys of users' tables are touched: the catalog stays what it is.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::key::{KeyRange, KeyReader};
use telesto_common::{Env, Timestamp, TxnId};
use telesto_txn::{
    Committed, ReadFor, Result, Savepoint, Scan, ScanOptions, Transaction, TryClaim, TxnOptions,
};

use crate::plant::Plant;

/// The first OID of a user's table, as in PostgreSQL.
const FIRST_USER_TABLE: u32 = 16_384;

/// A transaction with a planted bug.
#[derive(Debug)]
pub(crate) struct PlantedTransaction {
    pub(crate) inner: Arc<dyn Transaction>,
    pub(crate) plant: Plant,
    pub(crate) env: Env,
}

/// Table and index of a key, when a user's table it is.
fn of_user(key: &[u8]) -> Option<u32> {
    let (_, table, index) = KeyReader::new(key).prefix().ok()?;
    (table.0 >= FIRST_USER_TABLE).then_some(index)
}

impl PlantedTransaction {
    /// Now and then, an index entry.
    fn forgets(&self, key: &[u8]) -> bool {
        self.plant == Plant::SkipIndexWrites
            && of_user(key).is_some_and(|index| index != 0)
            && self.env.random.next_u64().is_multiple_of(50)
    }

    fn reads(&self, key: &[u8], read_for: ReadFor) -> ReadFor {
        if self.plant == Plant::NoConstraintReads && of_user(key).is_some() {
            ReadFor::Query
        } else {
            read_for
        }
    }
}

#[async_trait]
impl Transaction for PlantedTransaction {
    fn id(&self) -> TxnId {
        self.inner.id()
    }

    fn options(&self) -> &TxnOptions {
        self.inner.options()
    }

    fn snapshot(&self) -> Timestamp {
        self.inner.snapshot()
    }

    async fn next_statement(&self) -> Result<()> {
        self.inner.next_statement().await
    }

    async fn claim(&self, keys: &[Bytes]) -> Result<()> {
        self.inner.claim(keys).await
    }

    fn try_claim(&self, keys: &[Bytes]) -> Result<Vec<TryClaim>> {
        self.inner.try_claim(keys)
    }

    async fn get(&self, key: &[u8], read_for: ReadFor) -> Result<Option<Bytes>> {
        self.inner.get(key, self.reads(key, read_for)).await
    }

    async fn get_many(&self, keys: &[Bytes], read_for: ReadFor) -> Result<Vec<Option<Bytes>>> {
        let read_for = keys.first().map_or(read_for, |key| self.reads(key, read_for));
        self.inner.get_many(keys, read_for).await
    }

    fn try_get(&self, key: &[u8], read_for: ReadFor) -> Option<Result<Option<Bytes>>> {
        self.inner.try_get(key, self.reads(key, read_for))
    }

    fn scan(&self, range: KeyRange, mut options: ScanOptions) -> Box<dyn Scan> {
        options.read_for = self.reads(&range.start, options.read_for);
        self.inner.scan(range, options)
    }

    fn view(&self) -> Arc<dyn Transaction> {
        Arc::new(Self { inner: self.inner.view(), plant: self.plant, env: self.env.clone() })
    }

    async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        if self.forgets(&key) {
            return Ok(());
        }
        self.inner.put(key, value).await
    }

    async fn delete(&self, key: Bytes) -> Result<()> {
        if self.forgets(&key) {
            return Ok(());
        }
        self.inner.delete(key).await
    }

    fn tell(&self, messages: Vec<Bytes>) -> Result<()> {
        self.inner.tell(messages)
    }

    fn savepoint(&self) -> Result<Savepoint> {
        self.inner.savepoint()
    }

    fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        self.inner.rollback_to(savepoint)
    }

    fn has_written(&self) -> bool {
        self.inner.has_written()
    }

    async fn confirm(&self) -> Result<()> {
        self.inner.confirm().await
    }

    async fn commit(&self) -> Result<Committed> {
        self.inner.commit().await
    }

    fn rollback(&self) {
        self.inner.rollback();
    }
}
