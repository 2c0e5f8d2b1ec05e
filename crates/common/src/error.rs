//! The error type of the shared vocabulary: malformed encodings and exhausted limits.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong while decoding keys and ids or while waiting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Bytes do not decode as the expected key element.
    #[error(
        "malformed key at byte {offset}: {reason}; the stored key is damaged or was written by a newer version: run `telesto log inspect` and restore from a backup"
    )]
    MalformedKey {
        /// Offset of the first byte that does not fit.
        offset: usize,
        /// What was expected.
        reason: &'static str,
    },
    /// A text id does not parse.
    #[error("{text:?} is not a valid {kind}; expected {expected}")]
    MalformedId {
        /// The text given.
        text: String,
        /// The kind of id.
        kind: &'static str,
        /// What a valid one looks like.
        expected: &'static str,
    },
    /// A deadline passed.
    #[error("deadline passed while {what}; retry, or raise the time-out")]
    DeadlinePassed {
        /// What was being waited for.
        what: &'static str,
    },
    /// A memory budget is exhausted.
    #[error(
        "memory limit of {limit_bytes} bytes reached while asking for {asked_bytes} more for {what}; raise --memory or make the request smaller"
    )]
    MemoryExhausted {
        /// What the memory was for.
        what: &'static str,
        /// The bytes asked for.
        asked_bytes: u64,
        /// The configured limit, bytes.
        limit_bytes: u64,
    },
}
