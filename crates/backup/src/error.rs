//! Errors of backups, each with the user's next step.

use telesto_common::Lsn;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with a backup.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A bucket failed.
    #[error(transparent)]
    Bucket(#[from] telesto_bucket::Error),
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] telesto_log::Error),
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Checkpoint(#[from] telesto_shard::Error),
    /// A wait reached its bound.
    #[error(transparent)]
    Limit(#[from] telesto_common::Error),
    /// There is no database.
    #[error("there is no database in {url}; check the URL and its prefix")]
    NoDatabase {
        /// The bucket.
        url: String,
    },
    /// There are no backups.
    #[error(
        "there are no backups in {url}; check the URL, or make one with `telesto backup create`"
    )]
    NoBackups {
        /// The place of the backups.
        url: String,
    },
    /// The asked for backup is not there.
    #[error(
        "there is no backup {number} in {url}; `telesto backup list` shows those that are there"
    )]
    NoSuchBackup {
        /// Its number.
        number: u64,
        /// The place of the backups.
        url: String,
    },
    /// No backup reaches the moment that was asked for.
    #[error(
        "the backups do not cover {moment}: {reason}; `telesto backup list` shows what they cover"
    )]
    NotCovered {
        /// The moment.
        moment: String,
        /// Why not.
        reason: String,
    },
    /// The database went on faster than it could be copied.
    #[error(
        "the database in {url} changed under every one of {rounds} rounds of copying ({reason}); copy from a machine nearer to the bucket, or make the database keep more with --retention"
    )]
    Overtaken {
        /// The bucket.
        url: String,
        /// Rounds tried.
        rounds: u32,
        /// What was missing in the last one.
        reason: String,
    },
    /// What is backed up is not what the backups there are of.
    #[error(
        "{url} has backups of another database, or of another course of this one: {object} differs; give these backups a place of their own"
    )]
    OtherDatabase {
        /// The place of the backups.
        url: String,
        /// What differs.
        object: String,
    },
    /// A database, or something else, is where one is to be restored to.
    #[error(
        "{url} is not empty ({object} is there); restore into a bucket, or a prefix, of its own"
    )]
    NotEmpty {
        /// The bucket.
        url: String,
        /// An object that is there.
        object: String,
    },
    /// A backup lacks something, or something in it is damaged.
    #[error(
        "{object} of the backups in {url} {reason}; nothing was opened: `telesto backup verify` shows what else is, restore an earlier backup or from another copy"
    )]
    Damaged {
        /// The place of the backups.
        url: String,
        /// The object.
        object: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A backup was recorded by a newer version.
    #[error(
        "{object} has format version {found}, this program knows those up to {known}; use a newer Telesto"
    )]
    TooNew {
        /// The object.
        object: String,
        /// Its version.
        found: u32,
        /// The newest version known here.
        known: u32,
    },
    /// Something that is copied was deleted by the database meanwhile: another round may succeed.
    #[error("{object} is gone; try again")]
    Gone {
        /// What was gone.
        object: String,
    },
    /// Old backups are being removed.
    #[error(
        "`telesto backup prune` is removing old backups from {url}; try again when it is done, or in fifteen minutes if it was cut off"
    )]
    Pruning {
        /// The place of the backups.
        url: String,
    },
    /// The bucket lacks entries of the log that its checkpoint has, which nodes have on their
    /// disks.
    #[error(
        "entries from {from} on are not in the bucket yet; try again when the nodes have shipped them"
    )]
    NotShipped {
        /// The first one.
        from: Lsn,
    },
}
