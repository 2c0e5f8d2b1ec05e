//! Errors of the bucket: determinate and indeterminate, each with the user's next step.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong between us and the bucket. Cheap to clone: one failure may answer many
/// waiters.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The bucket's URL cannot be used.
    #[error(
        "bucket URL {url:?} cannot be used: {reason}; expected s3://, gs://, az://, file:/// or memory://NAME"
    )]
    BadUrl {
        /// The URL given.
        url: String,
        /// Why not.
        reason: String,
    },
    /// A conditional put may or may not have happened and reading it back failed too.
    #[error(
        "whether {key} was written to the bucket could not be learned before the deadline ({reason}); ask for the transaction's outcome by its id before repeating it"
    )]
    Indeterminate {
        /// The object.
        key: String,
        /// The last failure.
        reason: String,
    },
    /// The bucket did not answer in time or keeps failing; nothing was changed.
    #[error(
        "bucket request for {key} failed: {reason}; check that the bucket is reachable, then retry"
    )]
    Unavailable {
        /// The object or prefix.
        key: String,
        /// The last failure.
        reason: String,
    },
    /// The bucket refuses the request for good (no space, credentials, permissions, missing
    /// bucket).
    #[error(
        "bucket refused the request for {key}: {reason}; check its free space, credentials, permissions and the bucket's name"
    )]
    Refused {
        /// The object or prefix.
        key: String,
        /// What the store said.
        reason: String,
    },
    /// The store lets two conditional puts of one key win.
    #[error(
        "bucket {url} has no working put-if-absent ({reason}); Telesto would lose data on it: use a store with conditional writes"
    )]
    NoConditionalPut {
        /// The bucket.
        url: String,
        /// What the probe saw.
        reason: String,
    },
    /// The database is encrypted and no key was given.
    #[error(
        "the database in {url} is encrypted: name its key file with --encryption-key-file (or TELESTO_ENCRYPTION_KEY_FILE)"
    )]
    KeyMissing {
        /// The bucket.
        url: String,
    },
    /// A key was given for a bucket that holds no encrypted database.
    #[error(
        "{url} holds no encrypted database: to open what is there leave --encryption-key-file out; to encrypt it, stop its nodes and run `telesto keys encrypt` (docs/operating/encryption.md)"
    )]
    NotEncrypted {
        /// The bucket.
        url: String,
    },
    /// A database that is encrypted already was to be turned over.
    #[error(
        "{url} holds an encrypted database already; if objects in clear were left in it, which reads name, turn them over with --again"
    )]
    Encrypted {
        /// The bucket.
        url: String,
    },
    /// The store overwrites whatever stands there.
    #[error(
        "bucket {url} has no conditional overwrite ({reason}): objects that a running node deletes could come back; stop every node and turn it over with --offline"
    )]
    NoConditionalOverwrite {
        /// The bucket.
        url: String,
        /// What the probe saw.
        reason: String,
    },
    /// The keys of an encrypted database cannot be used.
    #[error(transparent)]
    Keys(#[from] telesto_cipher::Error),
    /// A key of tables cannot be used.
    #[error("key {name:?} of tables: {reason}")]
    TableKey {
        /// Its name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// An object of an encrypted database cannot be decrypted.
    #[error(
        "object {key} cannot be decrypted: {reason}; restore that object from a copy of the bucket, or open the database with the key it was made with"
    )]
    Undecipherable {
        /// The object.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A price sheet or model file cannot be read.
    #[error("price sheet or model {name:?} cannot be used: {reason}; see docs/operating/prices.md")]
    BadConfig {
        /// The sheet, model or file.
        name: String,
        /// Why not.
        reason: String,
    },
}
