//! Errors of reading and importing a dump.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an import stopped. What was committed before stays.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened or read.
    #[error(
        "cannot read {path}: {source}; check the path, or fetch the dump again if it is cut short"
    )]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a MediaWiki dump, or damaged.
    #[error(
        "{path} is not a well-formed MediaWiki dump near byte {offset} of the XML: {reason}; fetch the dump again"
    )]
    Malformed {
        /// The file.
        path: String,
        /// Offset in the decompressed XML, bytes.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// The database refused.
    #[error(
        "the database refused while {doing}: {reason}; run the same command again to go on where it stopped"
    )]
    Database {
        /// What the importer was doing.
        doing: String,
        /// The server's message.
        reason: String,
        /// SQLSTATE, when the server gave one.
        sqlstate: Option<String>,
    },
    /// A page whose links or categories are not those of its text: an import or an edit was not one
    /// transaction.
    #[error(
        "the links or categories of {title:?} are not those of its newest text; please report this with the node's log and folder"
    )]
    Inconsistent {
        /// The page.
        title: String,
    },
}
