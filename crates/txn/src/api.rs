//! What the layers above see: a database of ordered keys with transactions.
//!
//! # Guarantees, by [`Level`]
//! | level | guarantee |
//! | --- | --- |
//! | `Serializable` | strict serializability inside a region |
//! | `Snapshot` | one snapshot, no lost updates (first committer wins); write skew possible |
//! | `ReadCommitted`, `ReadUncommitted` | each statement its own snapshot of committed data; writes validated against the statement's snapshot |
//! | `Session` | reads: monotonic reads, read your writes, monotonic writes, writes follow reads; no look at the log's tail while what is here is recent |
//! | `Eventual` | reads: whatever this process has; no look at the log's tail while that is recent |
//!
//! Below `Serializable` what is seen may miss what other processes have committed since this one
//! last knew all there was. How long ago that may be is said by [`TxnOptions::staleness`]: by
//! itself half the log's retention.
//!
//! # Invariants
//! - A transaction's writes become visible together, at one timestamp, or not at all.
//! - Keys written must be prefix-free (see `telesto_common::key`).
//! - A `Transaction` handle may be shared by concurrent readers of one statement; statements of one
//!   transaction run one after the other.
//! - Dropping every handle of an open transaction rolls it back.

use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
pub use telesto_bucket::Cost;
use telesto_common::key::KeyRange;
use telesto_common::{Label, Lsn, RegionId, Timestamp, TxnId};
use telesto_log::{Change as LogChange, LogKind};
use telesto_shard::{Gone, Space};

use crate::additions::Additions;
use crate::away::{Away, Elsewhere, WriteIn};
use crate::error::Result;
use crate::holds::Hold;
pub use crate::levels::{Durability, Level, TxnOptions};
use crate::outgoing::Placed;
use crate::peers::Peers;
use crate::reading::Reader;
use crate::regions::RegionControl;
use crate::view::ClusterView;

/// Whether a read is validated at commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadFor {
    /// As the level says: validated under `Serializable`, not under weaker ones.
    #[default]
    Query,
    /// Of rows that are asked for to be locked: always validated, and otherwise a query's read
    /// (which of a statement's own writes it sees).
    Locked,
    /// Of rows that may be passed over: never validated, and otherwise a query's read. What is made
    /// of them must not depend on which of them are there; those that are used are read again as
    /// `Locked`.
    Passing,
    /// Always validated: uniqueness, foreign keys, the catalog version. Under weaker levels too the
    /// commit fails with `Conflict` if what was read here has changed since.
    Constraint,
}

/// What became of a claim that does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TryClaim {
    /// Taken, until the transaction ends. What this transaction's snapshot says of the key is the
    /// newest that this process knows.
    Taken,
    /// Another transaction of this process has it.
    Held,
    /// Nobody has it, and it was changed after this transaction's snapshot: changing it would end
    /// in a conflict.
    Changed,
}

/// What is known of keys that rows to be inserted will have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    /// None of them has a version at this snapshot or ever had one. Nothing is remembered of that:
    /// it is validated with the writes that name it ([`Put::absent`]).
    Absent(Timestamp),
    /// Their values, in order, remembered as [`Transaction::get_many`] does.
    Values(Vec<Option<Bytes>>),
}

fn unreached(region: RegionId) -> crate::Error {
    crate::Error::Elsewhere(format!(
        "transactions here do not reach region {region}; connect to a node of that region"
    ))
}

/// A scan of rows that cannot be reached.
struct Unreached(RegionId);

#[async_trait]
impl Scan for Unreached {
    async fn next_batch(&mut self, _: usize) -> Result<Vec<(Bytes, Bytes)>> {
        Err(unreached(self.0))
    }
}

/// A committed version with its label: when it was committed, and in which region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labelled {
    /// When, by that region's time.
    pub at: Timestamp,
    /// Where.
    pub region: RegionId,
    /// The value; `None` is a delete mark.
    pub value: Option<Bytes>,
}

/// A write of many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Put {
    /// The key.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
    /// What [`Looked::Absent`] told of the key.
    pub absent: Option<Timestamp>,
}

/// A point inside a transaction to roll back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Savepoint(pub u64);

/// How to scan.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScanOptions {
    /// Greatest key first.
    pub reverse: bool,
    /// Stop after this many rows (a hint for read-ahead and a bound on what is validated).
    pub limit: Option<u64>,
    /// Whether the range is validated at commit.
    pub read_for: ReadFor,
}

/// A successful commit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Committed {
    /// Commit timestamp; for a transaction without writes, its snapshot.
    pub timestamp: Timestamp,
    /// Log position; `Lsn::ZERO` for a transaction without writes.
    pub lsn: Lsn,
    /// What the session must remember.
    pub label: Label,
    /// This transaction's share of the commit's cost.
    pub cost: Cost,
    /// It committed in another region, by whose clock and log timestamp and position are.
    pub elsewhere: Option<Elsewhere>,
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It committed at this timestamp.
    Committed(Timestamp),
    /// It did not commit and never will.
    Aborted,
    /// Nothing is known of it: it ran longer ago than outcomes are kept, or never tried to commit
    /// here, or may still be under way.
    Unknown,
}

/// Hears what committed transactions say ([`Transaction::tell`]).
pub trait MessageSink: Debug + Send + Sync {
    /// The messages of one transaction. Called in commit order, when its writes can be read; before
    /// its commit is acknowledged where that happens in this process. Must not wait.
    fn messages(&self, messages: &[Bytes]);

    /// This process has passed over a part of the log: messages may have been missed.
    fn missed(&self);
}

/// How far what is gone may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclaiming {
    /// What is gone since then, or before, is left out of merges from now on.
    pub below: Timestamp,
    /// For how long at least what was dropped is kept for snapshots from before.
    pub retention: Duration,
}

/// A database of ordered keys.
#[async_trait]
pub trait Database: Debug + Send + Sync {
    /// Begins a transaction.
    async fn begin(&self, options: TxnOptions) -> Result<Arc<dyn Transaction>>;

    /// What became of a transaction, as known after a look at the tail.
    async fn outcome(&self, txn: TxnId) -> Result<Outcome>;

    /// Messages of transactions that this process applies from now on go to `sink` too, as long as
    /// it is there. What others commit is applied when something looks at the log's tail: a commit,
    /// a strict read, nothing else.
    fn hear(&self, sink: Weak<dyn MessageSink>);

    /// Additions ([`Transaction::add`]) are carried out by `additions` on this node. Until it is
    /// told, and where a database ignores it, commits that add are refused. Only what is told first
    /// counts.
    fn add_with(&self, additions: Arc<dyn Additions>) {
        let _ = additions;
    }

    /// By `placed` it is decided how much of a transaction goes to other regions: what is more than
    /// passes at once is refused ([`crate::Error::Outgoing`]). Until it is told, and where a
    /// database ignores it, nothing is. Only what is told first counts.
    fn place_by(&self, placed: Arc<dyn Placed>) {
        let _ = placed;
    }

    /// Has commits of other transactions of this process wait that write what `hold` is of, until
    /// it is lifted or over. A hint: what the holder reads is validated in any case. Where a
    /// database ignores it nobody waits.
    fn hold(&self, hold: Hold) {
        let _ = hold;
    }

    /// Ends the hold with this number.
    fn lift(&self, id: u128) {
        let _ = id;
    }

    /// The timestamp of the newest commit this process has applied.
    fn applied(&self) -> (Lsn, Timestamp);

    /// What each index takes, as this process sees it.
    ///
    /// # Errors
    /// Those of reading the checkpoint.
    async fn space(&self) -> Result<Space>;

    /// Says which keys nobody reads any more but snapshots from before they were dropped: merges of
    /// the checkpoint leave them out, if this process makes them. Each call says all that are gone.
    /// `None`: they have to be deleted one by one.
    fn set_gone(&self, gone: Vec<Gone>) -> Option<Reclaiming> {
        let _ = gone;
        None
    }

    /// The nodes of its cluster and its log, as this process knows them.
    fn cluster(&self) -> ClusterView;

    /// Which loglets of its log became active lately, and why, oldest first.
    ///
    /// # Errors
    /// Those of the bucket; a damaged version of the chain.
    async fn log_changes(&self) -> Result<Vec<LogChange>> {
        Ok(Vec::new())
    }

    /// The other processes of its cluster, to be asked; `None`: it is in none.
    fn peers(&self) -> Option<Arc<dyn Peers>> {
        None
    }

    /// The region it was opened as.
    fn region(&self) -> RegionId {
        RegionId::default()
    }

    /// Its replication to other regions; `None`: it is alone.
    fn regions(&self) -> Option<Arc<dyn RegionControl>> {
        None
    }

    /// What other regions ask to be read here is executed by `reader` from now on, as long as it is
    /// there.
    fn read_with(&self, reader: Weak<dyn Reader>) {
        let _ = reader;
    }

    /// Goes on with the log on another medium while transactions run; nothing is lost or copied by
    /// hand. No-op when the log is there already. Goes on to its end when the caller stops waiting.
    async fn switch_log(&self, to: LogKind) -> Result<()>;

    /// Stops background work, flushes what is owed, releases ownership. Further calls fail with
    /// `ShuttingDown`.
    async fn shutdown(&self) -> Result<()>;
}

/// A transaction under way.
#[async_trait]
pub trait Transaction: Debug + Send + Sync {
    /// Its id.
    fn id(&self) -> TxnId;

    /// The options it was begun with.
    fn options(&self) -> &TxnOptions;

    /// The timestamp its reads see now.
    fn snapshot(&self) -> Timestamp;

    /// Starts the next statement: under `ReadCommitted` takes a new snapshot, otherwise nothing.
    async fn next_statement(&self) -> Result<()>;

    /// Says that this statement is about to read and change `keys`. Waits, at most about a second
    /// for each, while other transactions of this process that said so are under way; then moves
    /// the snapshot forward past a change of one of them, if everything read so far is unchanged.
    /// So transactions that meet on a key take turns instead of failing. A hint: commit validates
    /// in any case. To be called before the statement's first read; nothing under levels other than
    /// `Serializable` and `ReadCommitted`.
    async fn claim(&self, keys: &[Bytes]) -> Result<()>;

    /// [`claim`](Self::claim) without waiting, at every level: one answer for each key, in order.
    /// Beyond a bound of keys for one transaction, and in one declared read-only, nothing is
    /// claimed, and what nobody else has counts as taken.
    ///
    /// # Errors
    /// [`crate::Error::Ended`].
    fn try_claim(&self, keys: &[Bytes]) -> Result<Vec<TryClaim>>;

    /// The value of `key`, own writes included.
    async fn get(&self, key: &[u8], read_for: ReadFor) -> Result<Option<Bytes>>;

    /// The values of several keys, in their order, fetched together.
    async fn get_many(&self, keys: &[Bytes], read_for: ReadFor) -> Result<Vec<Option<Bytes>>>;

    /// [`Transaction::get_many`] with [`ReadFor::Constraint`] of keys that are to be written next
    /// by [`Transaction::put_all`], if none has a value: many new keys beside each other are told
    /// by one look.
    async fn look_up_new(&self, keys: &[Bytes]) -> Result<Looked> {
        Ok(Looked::Values(self.get_many(keys, ReadFor::Constraint).await?))
    }

    /// Whether something is under each of `keys`, own writes included, as a constraint asks.
    async fn are_there(&self, keys: &[Bytes]) -> Result<Vec<bool>> {
        let values = self.get_many(keys, ReadFor::Constraint).await?;
        Ok(values.iter().map(Option::is_some).collect())
    }

    /// What the region that keeps what this transaction writes is to find under `keys` when it
    /// commits, which this region does not have: something (`there`), or nothing. Gives what the
    /// transaction itself has written there; nothing is expected of those.
    ///
    /// # Errors
    /// [`crate::Error::Ended`]; [`crate::Error::Elsewhere`] where transactions do not reach other
    /// regions. At the commit [`crate::Error::Unexpected`].
    async fn expect(&self, _keys: &[Bytes], _there: bool) -> Result<Vec<Option<Bytes>>> {
        Err(crate::Error::Elsewhere(
            "transactions here do not reach other regions; connect to a node of one".to_owned(),
        ))
    }

    /// The values of `keys`, own writes included, in the region behind `away`, which keeps them:
    /// for a transaction that changes rows there.
    ///
    /// # Errors
    /// As [`crate::Away::rows`]; [`crate::Error::TwoHomes`].
    async fn get_there(
        &self,
        away: &Arc<dyn Away>,
        _keys: &[Bytes],
        _read_for: ReadFor,
    ) -> Result<Vec<Option<Bytes>>> {
        Err(unreached(away.home()))
    }

    /// Rows of a range that the region behind `away` keeps, own writes included: for a transaction
    /// that changes rows there. Errors, as of [`Transaction::get_there`], come with the first
    /// batch.
    fn scan_there(
        &self,
        away: Arc<dyn Away>,
        _range: KeyRange,
        _options: ScanOptions,
    ) -> Box<dyn Scan> {
        Box::new(Unreached(away.home()))
    }

    /// The committed version of `key` that this snapshot sees, a delete mark too, whatever the
    /// transaction has written itself. Not recorded: a write of the key is validated against the
    /// snapshot. `None`: there is none, or this kind of transaction keeps no labels.
    async fn committed(&self, _key: &[u8]) -> Result<Option<Labelled>> {
        Ok(None)
    }

    /// The value of `key` if it can be had from memory without waiting: outer `None` means "use
    /// [`Transaction::get`]". Recorded for validation like `get`.
    fn try_get(&self, key: &[u8], read_for: ReadFor) -> Option<Result<Option<Bytes>>>;

    /// Scans `range`, own writes included (those made before this call). The range is recorded for
    /// validation as far as it is consumed.
    fn scan(&self, range: KeyRange, options: ScanOptions) -> Box<dyn Scan>;

    /// A handle on the same transaction whose reads for queries see, of its own writes, only those
    /// made before this call: several parts of one statement that write see the same state. Reads
    /// with [`ReadFor::Constraint`] see every write. A claim moves the snapshot only where that is
    /// found out to change nothing that was read. For the duration of one statement: after a
    /// rollback to an earlier savepoint a view must not be read any more.
    fn view(&self) -> Arc<dyn Transaction>;

    /// Buffers a write.
    ///
    /// # Errors
    /// With [`TxnOptions::fail_early`], [`crate::Error::Conflict`] when the key is known to have
    /// been changed after the snapshot; nothing was buffered.
    async fn put(&self, key: Bytes, value: Bytes) -> Result<()>;

    /// [`Transaction::put`] for each of `writes`, in order. Some may have been buffered when it
    /// fails.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    async fn put_all(&self, writes: Vec<Put>) -> Result<()> {
        for write in writes {
            self.put(write.key, write.value).await?;
        }
        Ok(())
    }

    /// Whether the next write of `key` may be an [`add`](Self::add): the transaction has not
    /// written it in another way, is at a level at which no snapshot of its own binds it, and was
    /// not in conflict before. Waits, about a second at most, while another transaction of this
    /// process has claimed the key: it is about to read and write it, and could not win against a
    /// stream of additions.
    ///
    /// # Errors
    /// [`crate::Error::Ended`].
    async fn may_add(&self, key: &Bytes) -> Result<bool> {
        let _ = key;
        Ok(false)
    }

    /// Buffers an addition to the row at `key`, after [`may_add`](Self::may_add) said so and a read
    /// of it with [`ReadFor::Passing`]. `value` is what it comes to at the snapshot, which the
    /// transaction's own reads see. As long as nothing of this transaction reads the row after
    /// that, the commit does not conflict with others' writes of it: `addition` is carried out
    /// ([`Database::add_with`]) on the value that the row has at the commit's place in the log, and
    /// the commit fails with [`crate::Error::NotAdded`] where that is refused.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    async fn add(&self, key: Bytes, value: Bytes, addition: Bytes) -> Result<()> {
        let _ = addition;
        self.get(&key, ReadFor::Constraint).await?;
        self.put(key, value).await
    }

    /// Whether writes of `key` are held back for a curator instead of being committed. Layers above
    /// put such transactions over others.
    fn holds_back(&self, key: &[u8]) -> bool {
        let _ = key;
        false
    }

    /// The same transaction without what it shows to its author alone, and without what it holds
    /// back; `None`: there is no such thing.
    fn beneath(&self) -> Option<Arc<dyn Transaction>> {
        None
    }

    /// Buffers a delete.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    async fn delete(&self, key: Bytes) -> Result<()>;

    /// Says where what is written next belongs; a transaction writes in one region. The other one
    /// that it writes in, if it does: then nothing is to be written. To be called before the first
    /// write of each statement, where there is more than one region.
    ///
    /// # Errors
    /// [`crate::Error::Ended`]; [`crate::Error::Elsewhere`] where transactions do not reach other
    /// regions.
    fn write_in(&self, to: WriteIn) -> Result<Option<RegionId>> {
        match to {
            WriteIn::Here => Ok(None),
            WriteIn::There(away) => Err(unreached(away.home())),
        }
    }

    /// Marks a point to roll back to.
    fn savepoint(&self) -> Result<Savepoint>;

    /// Undoes every write since `savepoint`; reads stay recorded. The savepoint stays valid.
    fn rollback_to(&self, savepoint: Savepoint) -> Result<()>;

    /// Whether anything was written, rolled back or not: whether a commit validates what was read.
    fn has_written(&self) -> bool;

    /// Finds out whether everything remembered of what was read so far is the same at the log's
    /// tail, as of a moment inside this call. For an answer that is given although nothing is
    /// committed: an error told from an older snapshot could contradict what was acknowledged
    /// elsewhere before. The transaction goes on as it was. Nothing for a transaction whose
    /// snapshot was declared read-only.
    ///
    /// # Errors
    /// [`crate::Error::Conflict`] when something has changed; those of the look at the tail.
    async fn confirm(&self) -> Result<()>;

    /// Finds out, as far as this node can tell, whether something in `ranges` was changed after the
    /// snapshot: whoever is about to read all of them would do so in vain. A hint; nothing is
    /// remembered.
    ///
    /// # Errors
    /// [`crate::Error::Conflict`] when something has changed.
    async fn untouched(&self, ranges: &[KeyRange]) -> Result<()> {
        let _ = ranges;
        Ok(())
    }

    /// Says `messages` to whoever listens ([`Database::hear`]), in every process, if the
    /// transaction commits. Not undone by [`Transaction::rollback_to`]; to be called just before
    /// the commit.
    ///
    /// # Errors
    /// [`crate::Error::ReadOnly`].
    fn tell(&self, messages: Vec<Bytes>) -> Result<()>;

    /// Validates and commits. Whatever the result, the transaction has ended.
    async fn commit(&self) -> Result<Committed>;

    /// Ends the transaction without a trace.
    fn rollback(&self);
}

/// A running scan.
#[async_trait]
pub trait Scan: Send {
    /// The next rows in order, at most `max_rows`, fewer when they are large; empty at the end.
    async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<(Bytes, Bytes)>>;
}
