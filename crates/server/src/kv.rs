//! The key-value store: bytes under bytes, beside the SQL tables.
//!
//! # Purpose
//! What `/v1/kv` and the embedded facade offer. Every operation is one transaction.
//!
//! # Stored form
//! Key: `database 1 | table 4294967295 | index 0 | bytes element` (`telesto_common::key`). The
//! catalog never hands that table id out, so SQL and key-value data cannot meet. Value: `01`
//! (format), 16 bytes version, the value's bytes.
//!
//! # Invariants
//! - A version is the id of the transaction that wrote the value: never the same for two writes of
//!   a key.
//! - A conditional write is validated at commit: between the look and the write nobody else wrote.
//!
//! # On failure
//! A conflict runs the whole operation again, at most [`MAX_ATTEMPTS`] times: its answer depends on
//! the last run only. Every other error is handed on; an unknown outcome is never tried again.
//!
//! # Limits
//! Keys 1 to [`MAX_KEY_BYTES`] bytes; values up to [`MAX_VALUE_BYTES`]; scans up to
//! [`MAX_SCAN_ROWS`] rows and [`MAX_SCAN_BYTES`] bytes a call.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::key::{Direction, KeyRange, KeyReader, KeyWriter, successor};
use telesto_common::{DatabaseId, Env, Label, TableId, TxnId};
use telesto_txn::{
    Committed, Database, Level, Outcome, ReadFor, ScanOptions, Staleness, Transaction, TxnOptions,
};

/// The database that key-value data is in.
pub const KV_DATABASE: DatabaseId = DatabaseId(1);
/// The table id that key-value data is under; never a table of the catalog.
pub const KV_TABLE: TableId = TableId(u32::MAX);
/// Longest key, bytes.
pub const MAX_KEY_BYTES: usize = 4096;
/// Longest value, bytes.
pub const MAX_VALUE_BYTES: usize = 8 << 20;
/// Most rows of one scan.
pub const MAX_SCAN_ROWS: usize = 10_000;
/// Most key and value bytes of one scan (one row more may pass it).
pub const MAX_SCAN_BYTES: usize = 8 << 20;
/// Runs of one operation before its conflict is reported.
pub const MAX_ATTEMPTS: u32 = 16;

const FORMAT: u8 = 1;
const HEAD_BYTES: usize = 17;
const BATCH_ROWS: usize = 256;

/// Why a key-value operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum KvError {
    /// The key is empty or too long.
    #[error("a key has 1 to {MAX_KEY_BYTES} bytes, this one {0}; use a shorter key")]
    Key(usize),
    /// The value is too long.
    #[error(
        "a value has at most {MAX_VALUE_BYTES} bytes, this one {0}; split it over several keys"
    )]
    Value(usize),
    /// The condition of a conditional write does not hold.
    #[error("the condition does not hold: {found}; read the key again and decide anew")]
    Condition {
        /// What was found instead.
        found: &'static str,
        /// The version found.
        version: Option<TxnId>,
    },
    /// A stored value or key has an unknown form.
    #[error(
        "the stored value of a key is damaged or was written by a newer version: {0}; run `telesto log inspect`, then restore it or update Telesto"
    )]
    Damaged(&'static str),
    /// The transaction layer's answer.
    #[error(transparent)]
    Transaction(#[from] telesto_txn::Error),
}

/// A value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The value.
    pub value: Bytes,
    /// The transaction that wrote it.
    pub version: TxnId,
}

/// When a write may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Always.
    #[default]
    Always,
    /// Only when the key has no value.
    Absent,
    /// Only when the key has a value.
    Present,
    /// Only when the value has this version.
    Version(TxnId),
}

/// How to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOptions {
    /// Consistency level.
    pub level: Level,
    /// The greatest label the session has seen.
    pub session: Label,
    /// How old may be what is read, at levels below `Serializable`.
    pub staleness: Staleness,
}

/// Which keys a scan returns: those in the range that have the prefix.
#[derive(Clone, Debug, Default)]
pub struct ScanRange {
    /// Common beginning.
    pub prefix: Bytes,
    /// First key, inclusive.
    pub start: Option<Bytes>,
    /// First key not included.
    pub end: Option<Bytes>,
}

/// A page of a scan.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Keys and values in key order.
    pub rows: Vec<(Bytes, Versioned)>,
    /// Where the next page starts; `None` at the end.
    pub next: Option<Bytes>,
}

/// The key-value store of a database.
#[derive(Clone, Debug)]
pub struct Kv {
    env: Env,
    database: Arc<dyn Database>,
}

impl Kv {
    /// The store in `database`.
    #[must_use]
    pub fn new(env: Env, database: Arc<dyn Database>) -> Self {
        Self { env, database }
    }

    /// The value of `key`, and the label to remember.
    ///
    /// # Errors
    /// [`KvError`].
    pub async fn get(
        &self,
        key: &[u8],
        options: ReadOptions,
    ) -> Result<(Option<Versioned>, Label), KvError> {
        let key = stored_key(key)?;
        let txn = self.begin_read(options).await?;
        let value = txn.get(&key, ReadFor::Query).await?;
        let seen = seen(&txn.commit().await?, options)?;
        Ok((value.map(decode).transpose()?, seen))
    }

    /// Writes `value` under `key` if `condition` holds; the version written.
    ///
    /// # Errors
    /// [`KvError::Condition`] when it does not hold; others.
    pub async fn put(
        &self,
        key: &[u8],
        value: &[u8],
        condition: Condition,
        session: Label,
    ) -> Result<(TxnId, Committed), KvError> {
        if value.len() > MAX_VALUE_BYTES {
            return Err(KvError::Value(value.len()));
        }
        self.write(stored_key(key)?, Some(value), condition, session).await
    }

    /// Deletes `key` if `condition` holds. Deleting a missing key succeeds.
    ///
    /// # Errors
    /// [`KvError::Condition`] when it does not hold; others.
    pub async fn delete(
        &self,
        key: &[u8],
        condition: Condition,
        session: Label,
    ) -> Result<(TxnId, Committed), KvError> {
        self.write(stored_key(key)?, None, condition, session).await
    }

    /// At most `limit` rows of `range`, and the label to remember.
    ///
    /// # Errors
    /// [`KvError`].
    pub async fn scan(
        &self,
        range: &ScanRange,
        limit: usize,
        options: ReadOptions,
    ) -> Result<(Page, Label), KvError> {
        let limit = limit.clamp(1, MAX_SCAN_ROWS);
        let txn = self.begin_read(options).await?;
        let mut page = Page::default();
        if let Some(keys) = key_range(range) {
            let scan = ScanOptions { limit: Some(limit as u64 + 1), ..ScanOptions::default() };
            let mut scan = txn.scan(keys, scan);
            let mut bytes = 0;
            'pages: loop {
                let batch = scan.next_batch(BATCH_ROWS).await?;
                if batch.is_empty() {
                    break;
                }
                for (stored, value) in batch {
                    let key = user_key(&stored)?;
                    if page.rows.len() >= limit || bytes >= MAX_SCAN_BYTES {
                        page.next = Some(key);
                        break 'pages;
                    }
                    bytes += key.len() + value.len();
                    page.rows.push((key, decode(value)?));
                }
            }
        }
        let seen = seen(&txn.commit().await?, options)?;
        Ok((page, seen))
    }

    /// What became of a transaction.
    ///
    /// # Errors
    /// [`KvError::Transaction`].
    pub async fn outcome(&self, txn: TxnId) -> Result<Outcome, KvError> {
        Ok(self.database.outcome(txn).await?)
    }

    async fn begin_read(&self, options: ReadOptions) -> Result<Arc<dyn Transaction>, KvError> {
        let options = TxnOptions {
            level: options.level,
            read_only: true,
            session: options.session,
            staleness: options.staleness,
            ..TxnOptions::default()
        };
        Ok(self.database.begin(options).await?)
    }

    async fn write(
        &self,
        key: Bytes,
        value: Option<&[u8]>,
        condition: Condition,
        session: Label,
    ) -> Result<(TxnId, Committed), KvError> {
        let mut attempt = 1;
        loop {
            match self.write_once(&key, value, condition, session).await {
                Err(KvError::Transaction(telesto_txn::Error::Conflict { .. }))
                    if attempt < MAX_ATTEMPTS =>
                {
                    // Spread the losers, or they meet again.
                    let wait = self.env.jitter(Duration::from_millis(1 << attempt.min(7)));
                    self.env.clock.sleep(wait).await;
                    attempt += 1;
                }
                done => return done,
            }
        }
    }

    async fn write_once(
        &self,
        key: &Bytes,
        value: Option<&[u8]>,
        condition: Condition,
        session: Label,
    ) -> Result<(TxnId, Committed), KvError> {
        let txn = self.database.begin(TxnOptions { session, ..TxnOptions::default() }).await?;
        if condition != Condition::Always {
            let found = txn.get(key, ReadFor::Constraint).await?.map(decode).transpose()?;
            let version = found.map(|found| found.version);
            let failed = match (condition, version) {
                (Condition::Absent, Some(_)) => Some("the key has a value"),
                (Condition::Present | Condition::Version(_), None) => Some("the key has no value"),
                (Condition::Version(expected), Some(found)) if expected != found => {
                    Some("the value has another version")
                }
                _ => None,
            };
            if let Some(found) = failed {
                // The answer must be as current as a write would have been: validate the read.
                txn.commit().await?;
                return Err(KvError::Condition { found, version });
            }
        }
        let id = txn.id();
        match value {
            Some(value) => txn.put(key.clone(), encode(id, value)).await?,
            None => txn.delete(key.clone()).await?,
        }
        Ok((id, txn.commit().await?))
    }
}

/// What a session has seen after a read. A strict one was of everything that was ever acknowledged
/// here: nobody has seen more.
fn seen(read: &Committed, options: ReadOptions) -> Result<Label, KvError> {
    let at = options.session.timestamp;
    if options.level == Level::Serializable && read.timestamp < at {
        return Err(telesto_txn::Error::SessionAhead { at, newest: read.timestamp }.into());
    }
    Ok(read.label.max(options.session))
}

fn stored_key(key: &[u8]) -> Result<Bytes, KvError> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(KvError::Key(key.len()));
    }
    Ok(key_element(key))
}

fn key_element(key: &[u8]) -> Bytes {
    let mut writer = KeyWriter::prefix(KV_DATABASE, KV_TABLE, 0);
    writer.bytes(key, Direction::Ascending);
    writer.finish()
}

fn user_key(stored: &[u8]) -> Result<Bytes, KvError> {
    let mut reader = KeyReader::new(stored);
    let damaged = |_| KvError::Damaged("its key does not decode");
    reader.prefix().map_err(damaged)?;
    Ok(Bytes::from(reader.bytes(Direction::Ascending).map_err(damaged)?))
}

/// The stored range, or `None` when no key can be in it.
fn key_range(range: &ScanRange) -> Option<KeyRange> {
    let start = range.start.clone().unwrap_or_default().max(range.prefix.clone());
    let after_prefix = Some(successor(&range.prefix)).filter(|after| !after.is_empty());
    let end = match (range.end.clone(), after_prefix) {
        (Some(end), Some(after)) => Some(end.min(after)),
        (end, after) => end.or(after),
    };
    if end.as_ref().is_some_and(|end| *end <= start) {
        return None;
    }
    let table_end = KeyWriter::prefix(KV_DATABASE, KV_TABLE, 1).finish();
    // Elements of bytes sort as the bytes themselves do, so bounds may be encoded like keys.
    let end = end.map_or(table_end, |end| key_element(&end));
    Some(KeyRange::new(key_element(&start), end))
}

fn encode(version: TxnId, value: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HEAD_BYTES + value.len());
    out.put_u8(FORMAT);
    out.put_slice(&version.to_bytes());
    out.put_slice(value);
    out.freeze()
}

fn decode(stored: Bytes) -> Result<Versioned, KvError> {
    let head = stored.get(..HEAD_BYTES).ok_or(KvError::Damaged("it is too short"))?;
    if head[0] != FORMAT {
        return Err(KvError::Damaged("its format is unknown"));
    }
    let mut version = [0; 16];
    version.copy_from_slice(&head[1..]);
    Ok(Versioned { version: TxnId::from_bytes(version), value: stored.slice(HEAD_BYTES..) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use telesto_txn::memory::MemoryDatabase;

    use super::*;

    fn kv() -> Kv {
        let env = telesto_runtime::env();
        Kv::new(env.clone(), Arc::new(MemoryDatabase::new(env)))
    }

    async fn get(kv: &Kv, key: &[u8]) -> Option<Versioned> {
        kv.get(key, ReadOptions::default()).await.expect("read").0
    }

    #[tokio::test]
    async fn conditional_puts_hold_exactly_when_their_condition_does() {
        let kv = kv();
        let label = Label::default();
        let (first, _) = kv.put(b"k", b"1", Condition::Absent, label).await.expect("absent");
        let again = kv.put(b"k", b"2", Condition::Absent, label).await;
        assert!(matches!(again, Err(KvError::Condition { version: Some(v), .. }) if v == first));
        let (second, _) =
            kv.put(b"k", b"2", Condition::Version(first), label).await.expect("same version");
        let stale = kv.put(b"k", b"3", Condition::Version(first), label).await;
        assert!(matches!(stale, Err(KvError::Condition { .. })));
        let stale = kv.delete(b"k", Condition::Version(first), label).await;
        assert!(matches!(stale, Err(KvError::Condition { .. })));
        let value = Bytes::from_static(b"2");
        assert_eq!(get(&kv, b"k").await, Some(Versioned { value, version: second }));
        kv.delete(b"k", Condition::Version(second), label).await.expect("deleted");
        assert_eq!(get(&kv, b"k").await, None);
        let missing = kv.delete(b"k", Condition::Present, label).await;
        assert!(matches!(missing, Err(KvError::Condition { version: None, .. })));
    }

    #[tokio::test]
    async fn concurrent_compare_and_set_counters_lose_nothing() {
        let kv = kv();
        let adders = (0..8).map(|_| {
            let kv = kv.clone();
            async move {
                for _ in 0..10 {
                    loop {
                        let found = get(&kv, b"n").await;
                        let (value, condition) = match &found {
                            None => (1, Condition::Absent),
                            Some(at) => (
                                std::str::from_utf8(&at.value)
                                    .expect("text")
                                    .parse::<u64>()
                                    .expect("number")
                                    + 1,
                                Condition::Version(at.version),
                            ),
                        };
                        let text = value.to_string();
                        match kv.put(b"n", text.as_bytes(), condition, Label::default()).await {
                            Ok(_) => break,
                            Err(KvError::Condition { .. }) => tokio::task::yield_now().await,
                            Err(other) => panic!("{other}"),
                        }
                    }
                }
            }
        });
        futures::future::join_all(adders).await;
        assert_eq!(get(&kv, b"n").await.expect("counted").value, "80");
    }

    #[tokio::test]
    async fn scan_pages_cover_the_prefix_once_in_order() {
        let kv = kv();
        for n in 0..25u8 {
            kv.put(&[b'p', n], &[n], Condition::Always, Label::default()).await.expect("put");
        }
        for other in [&b"o"[..], b"q", b"p"] {
            kv.put(other, b"x", Condition::Always, Label::default()).await.expect("put");
        }
        let mut range = ScanRange { prefix: Bytes::from_static(b"p"), ..ScanRange::default() };
        let mut keys = Vec::new();
        loop {
            let (page, _) = kv.scan(&range, 7, ReadOptions::default()).await.expect("scan");
            keys.extend(page.rows.into_iter().map(|(key, _)| key.to_vec()));
            match page.next {
                Some(next) => range.start = Some(next),
                None => break,
            }
        }
        let mut expected = vec![b"p".to_vec()];
        expected.extend((0..25u8).map(|n| vec![b'p', n]));
        assert_eq!(keys, expected);
    }

    #[tokio::test]
    async fn keys_outside_the_limits_are_refused() {
        let kv = kv();
        let long = vec![b'x'; MAX_KEY_BYTES + 1];
        for key in [&b""[..], &long] {
            let put = kv.put(key, b"", Condition::Always, Label::default()).await;
            assert!(matches!(put, Err(KvError::Key(_))));
        }
    }

    proptest! {
        #[test]
        fn value_of_any_bytes_decodes_or_says_why(stored in proptest::collection::vec(any::<u8>(), 0..60)) {
            match decode(Bytes::from(stored.clone())) {
                Ok(found) => prop_assert_eq!(encode(found.version, &found.value), Bytes::from(stored)),
                Err(error) => prop_assert!(matches!(error, KvError::Damaged(_))),
            }
        }

        #[test]
        fn key_range_holds_exactly_the_keys_asked_for(
            prefix in proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(254), Just(255)], 0..3),
            start in proptest::option::of(proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 0..3)),
            end in proptest::option::of(proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 0..3)),
            key in proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(254), Just(255)], 1..4),
        ) {
            let expected = key.starts_with(&prefix)
                && start.as_ref().is_none_or(|start| key >= *start)
                && end.as_ref().is_none_or(|end| key < *end);
            let range = ScanRange {
                prefix: prefix.into(),
                start: start.map(Bytes::from),
                end: end.map(Bytes::from),
            };
            let stored = stored_key(&key).expect("in bounds");
            prop_assert_eq!(key_range(&range).is_some_and(|range| range.contains(&stored)), expected);
            prop_assert_eq!(user_key(&stored).expect("decodes"), Bytes::from(key));
        }
    }
}
