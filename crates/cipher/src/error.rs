//! Errors of keys, and of stored bytes that do not decrypt.

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can be wrong with keys.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The key file cannot be used.
    #[error("encryption key file {file}: {reason}")]
    KeyFile {
        /// The file.
        file: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// The key ring was made with a key that is not at hand.
    #[error(
        "the database's keys are wrapped with the key {name:?}, which is not in {place}; add that key to it, from the copy that was kept when it was made"
    )]
    UnknownKey {
        /// The key's name.
        name: String,
        /// Where it was looked for.
        place: String,
    },
    /// The key of this name is another one.
    #[error(
        "the key {name:?} in {place} does not open the database's keys: it is not the key they were wrapped with, or {object} is damaged; give the key file that this database was made with"
    )]
    WrongKey {
        /// The key's name.
        name: String,
        /// Where it was found.
        place: String,
        /// The key ring.
        object: String,
    },
    /// The key ring cannot be read.
    #[error(
        "the key ring {object} is damaged: {reason}; restore that object from a copy of the bucket"
    )]
    DamagedRing {
        /// The object.
        object: String,
        /// What is wrong.
        reason: String,
    },
    /// The key ring was written by a newer program.
    #[error(
        "the key ring {object} has format version {found}, this program reads up to {supported}; upgrade it"
    )]
    TooNew {
        /// The object.
        object: String,
        /// Its version.
        found: u8,
        /// The newest this program reads.
        supported: u8,
    },
    /// The key service did not do what was asked.
    #[error("key service: {0}")]
    Service(String),
}

/// What is wrong with stored bytes that should decrypt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// They do not begin as encrypted bytes do.
    #[error("it is not encrypted, or damaged: this database holds encrypted data only")]
    NotEncrypted,
    /// Written by a newer program.
    #[error("it has encryption format version {0}, this program reads version 1; upgrade it")]
    TooNew(u8),
    /// The key ring has no such epoch.
    #[error(
        "it needs the data key of epoch {0}, which the key ring does not have: the ring's newest version is missing, or the data is of another database"
    )]
    UnknownEpoch(u32),
    /// The number of bytes cannot be.
    #[error("its length is none that an encrypted object can have: it was cut short or added to")]
    Length,
    /// The bytes are not what was written there with this key.
    #[error("it does not decrypt: it is damaged, was exchanged for another, or is of another key")]
    Unauthentic,
}
