//! Typed log records. Their stored form is in `docs/reference/formats.md`.
//!
//! # Invariants
//! - A log may serve several shards: what a record says of a shard, it says of the one it names;
//!   what is said of the log itself (a seal, a node that joined) names none.
//! - Among the records of one shard, commit timestamps grow strictly with (LSN, position in the
//!   entry).
//! - A commit's writes are sorted by key, each key at most once.
//! - A transaction's messages follow its commit in the same entry: they are committed with it or
//!   not at all.

use bytes::Bytes;
use telesto_common::{Incarnation, Label, Lsn, NodeId, ShardId, Timestamp, TxnId};

/// One record of an entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// A transaction of a shard.
    Commit(Commit),
    /// First phase of a transaction over several shards (reserved; written by no version yet).
    Prepare(Prepare),
    /// Second phase (reserved; written by no version yet).
    Decide(Decide),
    /// A transaction of another region, applied here under its origin label (reserved).
    RemoteCommit(Commit),
    /// Something about the log, or a shard's checkpoint.
    Config(Config),
    /// What the transaction committed just before says to whoever listens. No state: nothing keeps
    /// it but the log.
    Messages(Messages),
}

/// Messages of a committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages {
    /// The shard.
    pub shard: ShardId,
    /// The transaction.
    pub txn: TxnId,
    /// In the order they were given; what is in them is the layer's above.
    pub bodies: Vec<Bytes>,
}

/// A committed transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Commit {
    /// The shard it belongs to.
    pub shard: ShardId,
    /// Its id, by which the outcome can be asked for.
    pub txn: TxnId,
    /// Its commit timestamp.
    pub timestamp: Timestamp,
    /// The node that committed it.
    pub source: NodeId,
    /// The label it had where it was first committed.
    pub origin: Label,
    /// What it wrote.
    pub writes: Writes,
}

/// The writes of a commit.
#[derive(Clone, Debug, PartialEq)]
pub enum Writes {
    /// In the entry itself.
    Inline(Vec<Write>),
    /// In part objects written to the bucket before the commit: for write sets too large for an
    /// entry. Together the parts are sorted by key.
    External(Vec<Part>),
}

/// One written key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: Bytes,
    /// The new value; `None` deletes.
    pub value: Option<Bytes>,
    /// The writer has read the key and validated that it has no version at all, not even a delete
    /// mark: the fold into the checkpoint need not look for one.
    pub fresh: bool,
}

/// One object of an external write set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bucket key of the object.
    pub object: String,
    /// First key in it.
    pub first_key: Bytes,
    /// Last key in it.
    pub last_key: Bytes,
    /// Number of writes in it.
    pub writes: u64,
    /// Size of the object, bytes.
    pub size_bytes: u64,
    /// CRC-32C of the object.
    pub checksum: u32,
}

/// A prepared transaction's share of one shard.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepare {
    /// The shard whose share this is.
    pub shard: ShardId,
    /// The transaction.
    pub txn: TxnId,
    /// Shard whose log holds the decision.
    pub home_shard: u64,
    /// After this timestamp anyone may decide abort.
    pub deadline: Timestamp,
    /// What it would write here.
    pub writes: Writes,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decide {
    /// The shard it is said to.
    pub shard: ShardId,
    /// The transaction.
    pub txn: TxnId,
    /// Its commit timestamp; `None` aborts.
    pub timestamp: Option<Timestamp>,
}

/// A record about the log, or a shard's checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Config {
    /// The checkpoint now holds everything up to `lsn`; readers may refresh and drop their tail.
    CheckpointAdvanced {
        /// The shard.
        shard: ShardId,
        /// Last LSN inside the checkpoint.
        lsn: Lsn,
        /// The engine's version of the checkpoint (SlateDB manifest id).
        version: u64,
    },
    /// The last entry of a loglet: whoever reads it goes on with the chain version named; when that
    /// is missing, whoever needs it writes it.
    Seal {
        /// Chain version that follows.
        next_version: u64,
        /// The encoded chain object to put there.
        next_chain: Bytes,
    },
    /// A node began to write here.
    NodeJoined {
        /// The node.
        node: NodeId,
        /// Its life.
        incarnation: Incarnation,
    },
}

impl Record {
    /// The shard it says something of; none when it is about the log itself.
    #[must_use]
    pub fn shard(&self) -> Option<ShardId> {
        match self {
            Self::Commit(commit) | Self::RemoteCommit(commit) => Some(commit.shard),
            Self::Prepare(prepare) => Some(prepare.shard),
            Self::Decide(decide) => Some(decide.shard),
            Self::Messages(messages) => Some(messages.shard),
            Self::Config(Config::CheckpointAdvanced { shard, .. }) => Some(*shard),
            Self::Config(Config::Seal { .. } | Config::NodeJoined { .. }) => None,
        }
    }
}

/// One entry of a virtual log: what one append wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Position.
    pub lsn: Lsn,
    /// Token of the write that made it.
    pub writer: telesto_common::WriterToken,
    /// Hash of the previous entry's bytes; zero for the first.
    pub previous_hash: [u8; 16],
    /// Hash of this entry's bytes.
    pub hash: [u8; 16],
    /// Its records, in order.
    pub records: Vec<Record>,
}

impl Entry {
    /// What it says of `shard`, in order.
    pub fn records_of(&self, shard: ShardId) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |record| record.shard() == Some(shard))
    }
}
