//! A transaction with a session's temporary keys beside it.
//!
//! # Invariants
//! - Temporary writes are kept if and only if the transaction below commits.
//! - Savepoints of this transaction have their highest bit set; others are those of the transaction
//!   below, made before there was anything temporary: rolling back to one undoes every temporary
//!   write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::key::KeyRange;
use telesto_common::{RegionId, Timestamp, TxnId};
use telesto_txn::{
    Away, Committed, Error, Labelled, Looked, Put, ReadFor, Result, Savepoint, Scan, ScanOptions,
    Transaction, TryClaim, TxnOptions, WriteIn,
};

use super::{TempStore, is_temporary_key};

/// Marks savepoints that know a place in the store.
const OURS: u64 = 1 << 63;

/// A transaction and a store.
#[derive(Debug)]
pub struct WithTemp {
    below: Arc<dyn Transaction>,
    store: Arc<TempStore>,
    savepoints: Mutex<Vec<(Savepoint, usize)>>,
    ended: AtomicBool,
}

impl WithTemp {
    /// `below`, with the keys of `store`.
    pub fn over(below: Arc<dyn Transaction>, store: Arc<TempStore>) -> Arc<dyn Transaction> {
        Arc::new(Self { below, store, savepoints: Mutex::default(), ended: AtomicBool::new(false) })
    }

    fn set(&self, key: Bytes, value: Option<Bytes>) -> Result<()> {
        self.store.set(key, value).map_err(|error| Error::OutOfMemory(error.to_string()))
    }

    fn end(&self) -> bool {
        !self.ended.swap(true, Ordering::SeqCst)
    }
}

impl Drop for WithTemp {
    fn drop(&mut self) {
        if self.end() {
            self.store.undo_to(0);
        }
    }
}

#[async_trait]
impl Transaction for WithTemp {
    fn id(&self) -> TxnId {
        self.below.id()
    }

    fn options(&self) -> &TxnOptions {
        self.below.options()
    }

    fn snapshot(&self) -> Timestamp {
        self.below.snapshot()
    }

    async fn next_statement(&self) -> Result<()> {
        self.below.next_statement().await
    }

    async fn claim(&self, keys: &[Bytes]) -> Result<()> {
        if keys.iter().any(|key| is_temporary_key(key)) {
            return Ok(());
        }
        self.below.claim(keys).await
    }

    fn try_claim(&self, keys: &[Bytes]) -> Result<Vec<TryClaim>> {
        if keys.iter().any(|key| is_temporary_key(key)) {
            // Nobody else sees them.
            return Ok(vec![TryClaim::Taken; keys.len()]);
        }
        self.below.try_claim(keys)
    }

    async fn get(&self, key: &[u8], read_for: ReadFor) -> Result<Option<Bytes>> {
        if is_temporary_key(key) {
            return Ok(self.store.get(key));
        }
        self.below.get(key, read_for).await
    }

    async fn get_many(&self, keys: &[Bytes], read_for: ReadFor) -> Result<Vec<Option<Bytes>>> {
        // The keys of one call are of one table.
        if keys.first().is_some_and(|key| is_temporary_key(key)) {
            return Ok(keys.iter().map(|key| self.store.get(key)).collect());
        }
        self.below.get_many(keys, read_for).await
    }

    async fn committed(&self, key: &[u8]) -> Result<Option<Labelled>> {
        if is_temporary_key(key) {
            return Ok(None);
        }
        self.below.committed(key).await
    }

    async fn look_up_new(&self, keys: &[Bytes]) -> Result<Looked> {
        if keys.first().is_some_and(|key| is_temporary_key(key)) {
            return Ok(Looked::Values(self.get_many(keys, ReadFor::Constraint).await?));
        }
        self.below.look_up_new(keys).await
    }

    async fn get_there(
        &self,
        away: &Arc<dyn Away>,
        keys: &[Bytes],
        read_for: ReadFor,
    ) -> Result<Vec<Option<Bytes>>> {
        self.below.get_there(away, keys, read_for).await
    }

    fn scan_there(
        &self,
        away: Arc<dyn Away>,
        range: KeyRange,
        options: ScanOptions,
    ) -> Box<dyn Scan> {
        self.below.scan_there(away, range, options)
    }

    async fn expect(&self, keys: &[Bytes], there: bool) -> Result<Vec<Option<Bytes>>> {
        self.below.expect(keys, there).await
    }

    fn try_get(&self, key: &[u8], read_for: ReadFor) -> Option<Result<Option<Bytes>>> {
        if is_temporary_key(key) {
            return Some(Ok(self.store.get(key)));
        }
        self.below.try_get(key, read_for)
    }

    fn scan(&self, range: KeyRange, options: ScanOptions) -> Box<dyn Scan> {
        if !is_temporary_key(&range.start) {
            return self.below.scan(range, options);
        }
        let mut rows = self.store.range(&range);
        if options.reverse {
            rows.reverse();
        }
        Box::new(TempScan(rows.into_iter()))
    }

    fn view(&self) -> Arc<dyn Transaction> {
        Arc::new(TempView {
            below: self.below.view(),
            store: Arc::clone(&self.store),
            mark: self.store.mark(),
        })
    }

    async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        if is_temporary_key(&key) {
            return self.set(key, Some(value));
        }
        self.below.put(key, value).await
    }

    async fn put_all(&self, writes: Vec<Put>) -> Result<()> {
        // They are of one table.
        if writes.first().is_some_and(|write| is_temporary_key(&write.key)) {
            return writes.into_iter().try_for_each(|put| self.set(put.key, Some(put.value)));
        }
        self.below.put_all(writes).await
    }

    async fn delete(&self, key: Bytes) -> Result<()> {
        if is_temporary_key(&key) {
            return self.set(key, None);
        }
        self.below.delete(key).await
    }

    fn savepoint(&self) -> Result<Savepoint> {
        let below = self.below.savepoint()?;
        let mut savepoints = self.savepoints.lock();
        savepoints.push((below, self.store.mark()));
        Ok(Savepoint(OURS | (savepoints.len() as u64 - 1)))
    }

    fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        if savepoint.0 & OURS == 0 {
            self.below.rollback_to(savepoint)?;
            self.store.undo_to(0);
            return Ok(());
        }
        let at = usize::try_from(savepoint.0 & !OURS).map_err(|_| Error::NoSavepoint)?;
        let (below, mark) = *self.savepoints.lock().get(at).ok_or(Error::NoSavepoint)?;
        self.below.rollback_to(below)?;
        self.store.undo_to(mark);
        Ok(())
    }

    fn write_in(&self, to: WriteIn) -> Result<Option<RegionId>> {
        self.below.write_in(to)
    }

    fn holds_back(&self, key: &[u8]) -> bool {
        self.below.holds_back(key)
    }

    fn beneath(&self) -> Option<Arc<dyn Transaction>> {
        self.below.beneath()
    }

    fn has_written(&self) -> bool {
        self.below.has_written()
    }

    async fn confirm(&self) -> Result<()> {
        self.below.confirm().await
    }

    async fn untouched(&self, ranges: &[KeyRange]) -> Result<()> {
        self.below.untouched(ranges).await
    }

    fn tell(&self, messages: Vec<Bytes>) -> Result<()> {
        self.below.tell(messages)
    }

    async fn commit(&self) -> Result<Committed> {
        if let Err(error) = super::catalog::on_commit(&self.store) {
            self.rollback();
            return Err(Error::OutOfMemory(error.to_string()));
        }
        let committed = self.below.commit().await;
        if self.end() {
            match &committed {
                Ok(_) => self.store.keep(),
                Err(_) => self.store.undo_to(0),
            }
        }
        committed
    }

    fn rollback(&self) {
        self.below.rollback();
        if self.end() {
            self.store.undo_to(0);
        }
    }
}

/// A view of such a transaction, for the duration of a statement: it is neither ended nor rolled
/// back through it.
#[derive(Debug)]
struct TempView {
    below: Arc<dyn Transaction>,
    store: Arc<TempStore>,
    /// Writes to the store from here on are not seen by queries.
    mark: usize,
}

impl TempView {
    fn read(&self, keys: &[&[u8]], read_for: ReadFor) -> Vec<Option<Bytes>> {
        match read_for {
            ReadFor::Query | ReadFor::Locked | ReadFor::Passing => {
                self.store.get_before(keys, self.mark)
            }
            ReadFor::Constraint => keys.iter().map(|key| self.store.get(key)).collect(),
        }
    }

    fn set(&self, key: Bytes, value: Option<Bytes>) -> Result<()> {
        self.store.set(key, value).map_err(|error| Error::OutOfMemory(error.to_string()))
    }
}

#[async_trait]
impl Transaction for TempView {
    fn id(&self) -> TxnId {
        self.below.id()
    }

    fn options(&self) -> &TxnOptions {
        self.below.options()
    }

    fn snapshot(&self) -> Timestamp {
        self.below.snapshot()
    }

    async fn next_statement(&self) -> Result<()> {
        self.below.next_statement().await
    }

    async fn claim(&self, keys: &[Bytes]) -> Result<()> {
        if keys.iter().any(|key| is_temporary_key(key)) {
            return Ok(());
        }
        self.below.claim(keys).await
    }

    fn try_claim(&self, keys: &[Bytes]) -> Result<Vec<TryClaim>> {
        if keys.iter().any(|key| is_temporary_key(key)) {
            // Nobody else sees them.
            return Ok(vec![TryClaim::Taken; keys.len()]);
        }
        self.below.try_claim(keys)
    }

    async fn get(&self, key: &[u8], read_for: ReadFor) -> Result<Option<Bytes>> {
        if is_temporary_key(key) {
            return Ok(self.read(&[key], read_for).pop().flatten());
        }
        self.below.get(key, read_for).await
    }

    async fn get_many(&self, keys: &[Bytes], read_for: ReadFor) -> Result<Vec<Option<Bytes>>> {
        // The keys of one call are of one table.
        if keys.first().is_some_and(|key| is_temporary_key(key)) {
            let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            return Ok(self.read(&keys, read_for));
        }
        self.below.get_many(keys, read_for).await
    }

    async fn committed(&self, key: &[u8]) -> Result<Option<Labelled>> {
        if is_temporary_key(key) {
            return Ok(None);
        }
        self.below.committed(key).await
    }

    async fn look_up_new(&self, keys: &[Bytes]) -> Result<Looked> {
        if keys.first().is_some_and(|key| is_temporary_key(key)) {
            return Ok(Looked::Values(self.get_many(keys, ReadFor::Constraint).await?));
        }
        self.below.look_up_new(keys).await
    }

    async fn get_there(
        &self,
        away: &Arc<dyn Away>,
        keys: &[Bytes],
        read_for: ReadFor,
    ) -> Result<Vec<Option<Bytes>>> {
        self.below.get_there(away, keys, read_for).await
    }

    fn scan_there(
        &self,
        away: Arc<dyn Away>,
        range: KeyRange,
        options: ScanOptions,
    ) -> Box<dyn Scan> {
        self.below.scan_there(away, range, options)
    }

    async fn expect(&self, keys: &[Bytes], there: bool) -> Result<Vec<Option<Bytes>>> {
        self.below.expect(keys, there).await
    }

    fn try_get(&self, key: &[u8], read_for: ReadFor) -> Option<Result<Option<Bytes>>> {
        if is_temporary_key(key) {
            return Some(Ok(self.read(&[key], read_for).pop().flatten()));
        }
        self.below.try_get(key, read_for)
    }

    fn scan(&self, range: KeyRange, options: ScanOptions) -> Box<dyn Scan> {
        if !is_temporary_key(&range.start) {
            return self.below.scan(range, options);
        }
        let mut rows = match options.read_for {
            ReadFor::Query | ReadFor::Locked | ReadFor::Passing => {
                self.store.range_before(&range, self.mark)
            }
            ReadFor::Constraint => self.store.range(&range),
        };
        if options.reverse {
            rows.reverse();
        }
        Box::new(TempScan(rows.into_iter()))
    }

    fn view(&self) -> Arc<dyn Transaction> {
        Arc::new(Self { below: self.below.view(), store: Arc::clone(&self.store), mark: self.mark })
    }

    async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        if is_temporary_key(&key) {
            return self.set(key, Some(value));
        }
        self.below.put(key, value).await
    }

    async fn put_all(&self, writes: Vec<Put>) -> Result<()> {
        // They are of one table.
        if writes.first().is_some_and(|write| is_temporary_key(&write.key)) {
            return writes.into_iter().try_for_each(|put| self.set(put.key, Some(put.value)));
        }
        self.below.put_all(writes).await
    }

    async fn delete(&self, key: Bytes) -> Result<()> {
        if is_temporary_key(&key) {
            return self.set(key, None);
        }
        self.below.delete(key).await
    }

    fn savepoint(&self) -> Result<Savepoint> {
        Err(Error::NoSavepoint)
    }

    fn rollback_to(&self, _: Savepoint) -> Result<()> {
        Err(Error::NoSavepoint)
    }

    fn write_in(&self, to: WriteIn) -> Result<Option<RegionId>> {
        self.below.write_in(to)
    }

    fn holds_back(&self, key: &[u8]) -> bool {
        self.below.holds_back(key)
    }

    fn beneath(&self) -> Option<Arc<dyn Transaction>> {
        self.below.beneath()
    }

    fn has_written(&self) -> bool {
        self.below.has_written()
    }

    async fn confirm(&self) -> Result<()> {
        self.below.confirm().await
    }

    async fn untouched(&self, ranges: &[KeyRange]) -> Result<()> {
        self.below.untouched(ranges).await
    }

    fn tell(&self, messages: Vec<Bytes>) -> Result<()> {
        self.below.tell(messages)
    }

    async fn commit(&self) -> Result<Committed> {
        Err(Error::Ended(self.id()))
    }

    fn rollback(&self) {}
}

/// The rows there were when the scan began.
struct TempScan(std::vec::IntoIter<(Bytes, Bytes)>);

#[async_trait]
impl Scan for TempScan {
    async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<(Bytes, Bytes)>> {
        Ok(self.0.by_ref().take(max_rows).collect())
    }
}
