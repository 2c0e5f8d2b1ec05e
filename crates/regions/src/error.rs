//! The error type of replication between regions. Each message says what to do next.

use telesto_common::RegionId;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong between regions.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The engine's.
    #[error(transparent)]
    Engine(#[from] telesto_txn::Error),
    /// The log's.
    #[error(transparent)]
    Log(#[from] telesto_log::Error),
    /// The bucket's.
    #[error(transparent)]
    Bucket(#[from] telesto_bucket::Error),
    /// The network's.
    #[error(transparent)]
    Net(#[from] telesto_net::Error),
    /// The shard's.
    #[error("{0}")]
    Shard(String),
    /// A configuration that cannot be run.
    #[error("regions cannot be started: {0}")]
    Config(String),
    /// What another region sent or a row holds does not decode.
    #[error(
        "{what} does not decode: {reason}; upgrade the older region first if their versions differ"
    )]
    Malformed {
        /// What.
        what: &'static str,
        /// Why not.
        reason: String,
    },
    /// A row came before the definition of its table.
    #[error(
        "a row of region {region} belongs to a table whose definition is not here yet; it is applied as soon as that has come from the definitions' region"
    )]
    NotDefined {
        /// Who sent it.
        region: RegionId,
    },
    /// What follows from a row cannot be computed here.
    #[error(
        "a transaction of region {} at {} cannot be applied by the definitions here: {reason}; what comes behind it in that region's stream waits, the others go on, and it is tried again: drop or change what cannot be computed, such as an index over an expression",
        .label.source, .label.timestamp
    )]
    Unreadable {
        /// Of the transaction.
        label: telesto_common::Label,
        /// Why not.
        reason: String,
    },
    /// Too many regions introduce themselves.
    #[error("this region is taking in another one; it is asked again in a moment")]
    Busy,
    /// Where a stream begins could not be stored in time.
    #[error("{0}; it is tried again when this region can commit")]
    Unnoted(String),
    /// The definitions cannot be read, or a row by them.
    #[error("rows of another region cannot be read by the definitions here: {0}")]
    Definitions(String),
    /// The receiver stands in a history that this region's log does not have.
    #[error(
        "region {region} has seen commits of this region that its log does not hold: this region has lost commits, and takes back from its peers what they have of them before it sends anything; see that they can be reached"
    )]
    LostCommits {
        /// Who has seen them.
        region: RegionId,
    },
    /// Something was asked of a lost region that is a member here still.
    #[error(
        "region {region} is a member here still, and sends; run `telesto region remove` for it on every bucket that stays"
    )]
    StillMember {
        /// The region that was lost.
        region: RegionId,
    },
    /// What the receiver has not seen is in the log no more.
    #[error(
        "region {region} was away for longer than this region keeps its log; let it begin again (Regions::begin_again there) so that it is filled anew, and raise the retention"
    )]
    Trimmed {
        /// Who was away.
        region: RegionId,
    },
    /// A transaction is larger than what passes between regions.
    #[error(
        "a transaction at {at} wrote {bytes} bytes that region {region} replicates, more than {limit}; its stream stands still: take the table from that region's placement, and write less at once"
    )]
    TooLarge {
        /// The receiver.
        region: RegionId,
        /// Its commit timestamp.
        at: telesto_common::Timestamp,
        /// Its size.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
    /// The other region refuses.
    #[error("region {region} refuses: {reason}")]
    Refused {
        /// Who.
        region: RegionId,
        /// Why, and what to do.
        reason: String,
    },
    /// A region that is not configured.
    #[error(
        "region {0} is not one of this deployment; begin a new session without its token, or join it"
    )]
    UnknownRegion(RegionId),
    /// A token that this deployment did not sign.
    #[error("the session token is not valid here ({0}); begin a new session without it")]
    Token(&'static str),
    /// Not everything that the session has seen is here yet.
    #[error(
        "what the session has seen in region {name} up to {wanted} is not here yet (here: {passed}); retry, wait longer, or begin a new session without the token to go on without it"
    )]
    NotHereYet {
        /// The session's region.
        region: RegionId,
        /// What it is called here.
        name: String,
        /// Up to where it has seen it.
        wanted: telesto_common::Timestamp,
        /// Up to where it is here.
        passed: telesto_common::Timestamp,
    },
    /// The session has seen what was lost: with its region, or by its region.
    #[error(
        "what the session has seen in region {region} up to {wanted} was lost behind {passed}; begin a new session without the token to go on without that"
    )]
    LostWith {
        /// The session's region.
        region: RegionId,
        /// Up to where it has seen it.
        wanted: telesto_common::Timestamp,
        /// Up to where it came here.
        passed: telesto_common::Timestamp,
    },
    /// A transaction of another region counts by a log that this one cannot tell to be its own.
    #[error(
        "the stream to region {region} does not run, or begins anew, so that what it has seen is not known here; retry in a moment"
    )]
    NotStreaming {
        /// The other one.
        region: RegionId,
    },
    /// A transaction of another region writes what this one does not keep.
    #[error("this region does not commit it: {reason}; retry in a moment")]
    NotHome {
        /// Why not.
        reason: String,
    },
    /// SQL is not open here.
    #[error("it does not execute statements yet, or any more; retry in a moment")]
    NotReading,
    /// What this process has is not the newest; it is looked at again.
    #[error("the log has gone on elsewhere; it is read again: retry")]
    Stale,
    /// Somebody else carries the streams of this region, too.
    #[error(
        "another process has applied transactions of other regions here; let one process carry this region's streams, or start those that are to stand by as nodes of a cluster (--cluster)"
    )]
    Superseded,
    /// The runner has stopped.
    #[error("replication between regions is stopping; connect again")]
    Stopped,
}

impl Error {
    pub(crate) fn malformed(what: &'static str) -> impl FnOnce(String) -> Self {
        move |reason| Self::Malformed { what, reason }
    }
}
