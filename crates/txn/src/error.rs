//! Errors of the transaction layer, each with the user's next step.

use telesto_common::{RegionId, ShardId, Timestamp, TxnId};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What is in other regions, and in which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotPlaced {
    /// What it is.
    pub message: String,
    /// What to do.
    pub hint: String,
    /// The regions that have all of it: what asked for it can be run there.
    pub regions: Vec<RegionId>,
}

/// Why a transaction could not go on. Cheap to clone: one failure may answer a whole commit group.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// Validation failed: something this transaction read or writes was changed by another.
    /// SQLSTATE 40001.
    #[error(
        "transaction {txn} conflicts with {other}, which committed at {at}; run the transaction again"
    )]
    Conflict {
        /// This transaction.
        txn: TxnId,
        /// The transaction that committed first.
        other: TxnId,
        /// When it committed.
        at: Timestamp,
        /// The key both touched.
        key: bytes::Bytes,
    },
    /// What was to be added to a row could not be: it is gone, or would leave its bounds. Nothing
    /// was committed. SQLSTATE 40001.
    #[error("transaction {txn} could not add to a row ({reason}); run the transaction again")]
    NotAdded {
        /// The transaction.
        txn: TxnId,
        /// The row's key.
        key: bytes::Bytes,
        /// Why.
        reason: String,
    },
    /// The snapshot is older than the retention window. SQLSTATE 72000.
    #[error(
        "the snapshot at {at} is older than what is kept (since {oldest}); begin again, or raise the retention"
    )]
    SnapshotTooOld {
        /// The snapshot asked for.
        at: Timestamp,
        /// The oldest that can be read.
        oldest: Timestamp,
    },
    /// A write in a read-only transaction. SQLSTATE 25006.
    #[error("the transaction is read-only; begin one without READ ONLY")]
    ReadOnly,
    /// The transaction has ended. SQLSTATE 25P01.
    #[error("transaction {0} has already ended; begin a new one")]
    Ended(TxnId),
    /// A savepoint that does not exist (any more). SQLSTATE 3B001.
    #[error("the savepoint does not exist any more; roll back the whole transaction")]
    NoSavepoint,
    /// Whether the commit took effect is not known. SQLSTATE 08007.
    #[error(
        "whether transaction {txn} committed could not be learned ({reason}); ask with telesto_txn_status('{txn}') before repeating it"
    )]
    OutcomeUnknown {
        /// The transaction.
        txn: TxnId,
        /// Why.
        reason: String,
    },
    /// The log belongs to another live process. SQLSTATE 57P03.
    #[error(
        "this database's log is sequenced by {owner}; connect to that node, or let every process write: telesto log switch --url <that node> --to bucket"
    )]
    NotOwner {
        /// The owner, as told by the chain.
        owner: String,
    },
    /// A request for a shard that this process does not serve; nothing was done. SQLSTATE 57P03.
    #[error("this node does not serve shard {0}; look up who does and ask there")]
    WrongShard(ShardId),
    /// Bucket, disk or deadline; nothing was changed. SQLSTATE 57P03.
    #[error("{0}")]
    Unavailable(String),
    /// What the session has seen is not in this database, though all that was ever acknowledged in
    /// it was looked at; nothing was done. SQLSTATE 57P03.
    #[error(
        "the session has seen {at}, but the newest commit of this database is {newest}; the session token belongs to another database: begin a new session"
    )]
    SessionAhead {
        /// What it has seen.
        at: Timestamp,
        /// The newest commit.
        newest: Timestamp,
    },
    /// A stored object is damaged. SQLSTATE XX001.
    #[error("{0}")]
    Corrupt(String),
    /// A memory bound was reached. SQLSTATE 53200.
    #[error("{0}")]
    OutOfMemory(String),
    /// More than a bound allows. SQLSTATE 54000.
    #[error("{0}")]
    TooLarge(String),
    /// The local disk refused (full, permissions). SQLSTATE 53100.
    #[error("{0}")]
    LocalDisk(String),
    /// Another region, which keeps what was written, did not take it; nothing was committed.
    /// SQLSTATE 08006.
    #[error("{0}")]
    Elsewhere(String),
    /// Another region, which keeps what was written, found something where nothing was to be, or
    /// nothing where something was; nothing was committed. SQLSTATE 23505, or 23503.
    #[error("{}; change what is written", unexpected(*.there))]
    Unexpected {
        /// The key.
        key: bytes::Bytes,
        /// Whether something was to be there.
        there: bool,
    },
    /// One transaction wrote more of what another region has, too, than comes there at once;
    /// nothing was committed. SQLSTATE 54000.
    #[error(
        "the transaction writes more than {mebibytes} MiB of what another region has, too; write less in one transaction"
    )]
    Outgoing {
        /// The limit.
        mebibytes: usize,
    },
    /// One transaction wrote what two regions keep. SQLSTATE 0A000.
    #[error("{0}")]
    TwoHomes(String),
    /// What was asked for, or part of it, is in other regions. SQLSTATE 55000.
    #[error("{}", _0.message)]
    NotPlaced(Box<NotPlaced>),
    /// The database is shutting down. SQLSTATE 57P01.
    #[error("the database is shutting down; connect again later or elsewhere")]
    ShuttingDown,
}

fn unexpected(there: bool) -> &'static str {
    match there {
        true => "a row that was referenced is not there",
        false => "a row with this key is there already",
    }
}

impl From<telesto_bucket::Error> for Error {
    fn from(error: telesto_bucket::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl From<telesto_common::Error> for Error {
    fn from(error: telesto_common::Error) -> Self {
        match error {
            telesto_common::Error::MemoryExhausted { .. } => Self::OutOfMemory(error.to_string()),
            telesto_common::Error::DeadlinePassed { .. } => Self::Unavailable(error.to_string()),
            telesto_common::Error::MalformedKey { .. }
            | telesto_common::Error::MalformedId { .. } => Self::Corrupt(error.to_string()),
        }
    }
}

impl From<telesto_shard::Error> for Error {
    fn from(error: telesto_shard::Error) -> Self {
        use telesto_shard::Error as Shard;
        match error {
            Shard::Bucket(error) => error.into(),
            Shard::Limit(error) => error.into(),
            Shard::SnapshotTooOld { at, oldest } => Self::SnapshotTooOld { at, oldest },
            Shard::Closed => Self::ShuttingDown,
            Shard::Corrupt { .. } | Shard::BadCheckpoint { .. } | Shard::PartMissing { .. } => {
                Self::Corrupt(error.to_string())
            }
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl From<telesto_log::Error> for Error {
    fn from(error: telesto_log::Error) -> Self {
        use telesto_log::Error as Log;
        match error {
            Log::NotOwner { ref owner, .. } => Self::NotOwner { owner: owner.to_string() },
            Log::Corrupt { .. } | Log::TooNew { .. } => Self::Corrupt(error.to_string()),
            Log::LocalDisk { .. } | Log::NoLocalDisk { .. } => Self::LocalDisk(error.to_string()),
            Log::Closed { .. } => Self::ShuttingDown,
            other => Self::Unavailable(other.to_string()),
        }
    }
}
