//! Encryption of what leaves memory: keys, key rings, and the stored forms of what is encrypted.
//!
//! # Purpose
//! The layers above hand over bytes and get bytes; which key, which nonce and what is authenticated
//! with it is decided here and nowhere else. `docs/architecture/encryption.md` has the whole.
//!
//! ```text
//!  key file, or AWS KMS by its names: key-encryption keys, by name
//!     | wraps
//!  key ring (one object per version in the bucket): data keys, by epoch
//!     | HKDF-SHA-256                         drawn at start, never stored
//!     +--> key of one written object         scratch key
//!     |      chunks of 16 KiB, AES-256-GCM      +--> key of one scratch file, AES-256-CTR
//!     +--> key of one log segment
//!            records, AES-256-GCM
//!
//!  key file: keys for tables, by name
//!     | wraps (an object per epoch in the bucket)
//!  data keys of the name, by epoch
//!     | HKDF-SHA-256
//!     +--> key of rows, AES-256-GCM-SIV
//! ```
//!
//! # Invariants
//! - A nonce is never used twice with a key: objects have a key each and number their chunks,
//!   records draw theirs, scratch files are written once at each place.
//! - Keys never appear in `Debug` output or messages.
//! - What does not decrypt is an error, never absent and never other bytes.
//!
//! # On failure
//! [`Damage`] for stored bytes, [`Error`] for keys; both say what to do.
//!
//! # Limits
//! Lengths, names and times are not hidden.

mod chunk;
mod error;
mod key_file;
mod keys;
mod kms;
mod record;
mod ring;
mod rows;
mod scratch;
mod table_key;

pub use chunk::{CHUNK, Chunks, HEADER, Header, STORED_CHUNK, decrypt, plain_size, stored_size};
pub use error::{Damage, Error, Result};
pub use key_file::{KeyFile, check_table_key_name};
pub use keys::{Epoch, Keys, Ring};
pub use kms::{Kms, KmsError, KmsKey};
pub use record::{RECORD_OVERHEAD, RecordCipher, SALT};
pub use ring::{DataKey, KeyService, StoredRing, WrappingKey};
pub use rows::{Closed, ROW_OVERHEAD, RowError, RowKeys};
pub use scratch::{Scratch, ScratchFile};
pub use table_key::{make_table_key, open_table_key};
