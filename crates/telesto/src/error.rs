//! Errors of the embedded library.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with an embedded database.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The bucket cannot be opened.
    #[error(transparent)]
    Bucket(#[from] telesto_bucket::Error),
    /// The database in the bucket cannot be opened or closed.
    #[error(transparent)]
    Database(#[from] telesto_txn::Error),
    /// This node's local folder cannot be used.
    #[error("local folder {folder}: {reason}; choose another with --data-dir, or free it")]
    DataDir {
        /// The folder.
        folder: String,
        /// Why not.
        reason: String,
    },
    /// The bucket is older than what this node has seen of it.
    #[error(
        "the database in {url} is not the one this node has seen, or was put back to an earlier state: {reason}. What was committed since would be missing. If it was restored on purpose, start every node once with --accept-older-bucket; if not, find out who changed the bucket"
    )]
    RolledBack {
        /// The bucket.
        url: String,
        /// What does not fit.
        reason: String,
    },
    /// This node cannot take part in its cluster. The text says what to do.
    #[error("cluster: {0}")]
    Cluster(String),
    /// This node cannot take part in its region. The text says what to do.
    #[error("regions: {0}")]
    Region(String),
    /// A statement failed.
    #[error("{0} (SQLSTATE {code})", code = .0.code())]
    Sql(#[from] telesto_sql::Error),
    /// A key-value operation failed.
    #[error(transparent)]
    Kv(#[from] telesto_server::kv::KvError),
    /// A column was asked for as a type that it is not.
    #[error(
        "column {column} holds {found}, not {wanted}; ask for it as what it is, or cast it in SQL"
    )]
    Type {
        /// The column.
        column: String,
        /// What it holds.
        found: String,
        /// What was asked for.
        wanted: &'static str,
    },
    /// A row has no such column.
    #[error("the row has no column {0}; its columns are those of the SELECT list")]
    NoColumn(String),
}

impl Error {
    /// The SQLSTATE of a failed statement.
    #[must_use]
    pub fn sql_state(&self) -> Option<&'static str> {
        match self {
            Self::Sql(error) => Some(error.code().0),
            _ => None,
        }
    }
}
