//! Why a board stops or does not start.
//!
//! # Invariants
//! Every error says what to do. A failed operation on a target is no error: it is counted.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a board stops or does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A target's URL means nothing.
    #[error(
        "target {name}: {reason}; write NAME=postgres://user@host:port/database, NAME=http://host:port or NAME=s3://bucket/prefix"
    )]
    Target {
        /// The target.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// An option is out of its range.
    #[error("{0}")]
    Option(String),
    /// The history cannot be read or written.
    #[error(
        "the board's history in {address}: {reason}; see that its server runs and that --store is right"
    )]
    Store {
        /// Where, without a password.
        address: String,
        /// Why.
        reason: String,
    },
    /// What is stored is not what this version writes.
    #[error(
        "a row of the board's history is damaged: {0}; delete the row from telesto_board, or drop the table to begin anew"
    )]
    Damaged(String),
    /// The store's history ends after now.
    #[error(
        "the board's history ends {hours} h after this machine's time: set the clock right, or delete the rows of telesto_board that are ahead"
    )]
    Future {
        /// How far ahead.
        hours: i64,
    },
    /// The store's history ended so long ago that nothing of it is kept any more.
    #[error(
        "the board's history ends {days} days before this machine's time, and nothing is kept that long: set the clock right, or delete this board's rows of telesto_board"
    )]
    Past {
        /// How long ago.
        days: i64,
    },
    /// A later board of the same name has taken the history over.
    #[error(
        "another board named {0:?} writes this history now; give each board its own --name, or run only one"
    )]
    Replaced(String),
}
