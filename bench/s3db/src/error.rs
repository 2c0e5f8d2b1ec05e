//! Why a run of the study ended early.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The modelled store refused; it has no faults, so this is a defect of the study.
    #[error("the store: {0}; please report it with the arguments")]
    Store(#[from] object_store::Error),
    /// The bucket could not be opened.
    #[error("the bucket: {0}")]
    Bucket(#[from] telesto_bucket::Error),
    /// Telesto's engine failed.
    #[error("the database: {0}")]
    Database(#[from] telesto_txn::Error),
    /// A page or a message that does not decode.
    #[error("{what} does not decode: {source}; please report it with the arguments")]
    Damaged { what: String, source: postcard::Error },
    /// A record that must be there.
    #[error("{0} is missing; please report it with the arguments")]
    Missing(String),
    /// A background task of a client failed.
    #[error("in the background: {0}")]
    Background(String),
    /// A plot or its folder could not be written.
    #[error("{0}; give another folder with --out")]
    Output(String),
}
