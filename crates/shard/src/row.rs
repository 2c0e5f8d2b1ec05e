//! The checkpoint's key space and stored rows (`docs/reference/formats/shard.md`).
//!
//! # Invariants
//! - `C | key`: the newest version. `H | key | !timestamp`: an older one, newest first, with the timestamp
//!   that superseded it. `T | transaction`: its commit timestamp. `M`: how far the checkpoint reaches.
//! - Every garbage-collection decision needs one row and the watermark, nothing else.
//!
//! # On failure
//! A row that does not decode is `Error::Corrupt` naming the checkpoint and the row; blocks carry
//! checksums, so this means a bug or a foreign writer.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use smallvec::SmallVec;
use telesto_common::{Lsn, Timestamp, TxnId};

use crate::api::Version;
use crate::error::{Error, Result};

/// Format version of every row.
pub const ROW_FORMAT: u8 = 1;

const NEWEST: u8 = b'C';
const HISTORY: u8 = b'H';
const META: u8 = b'M';
const TXN: u8 = b'T';

/// Longer values are shared with those who read them, bytes.
pub const LONG: usize = 1024;

const DELETED: u8 = 1;
const VERSION_HEADER: usize = 1 + 1 + 8 + 16;
const HISTORY_HEADER: usize = 1 + 8 + 16;

/// What kind of row a stored key names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// `C`: newest version.
    Newest,
    /// `H`: older version.
    History,
    /// `M`: reach of the checkpoint.
    Meta,
    /// `T`: outcome of a transaction.
    Outcome,
}

impl RowKind {
    /// The kind of a stored key.
    #[must_use]
    pub fn of(stored: &[u8]) -> Option<Self> {
        match stored.first() {
            Some(&NEWEST) => Some(Self::Newest),
            Some(&HISTORY) => Some(Self::History),
            Some(&META) => Some(Self::Meta),
            Some(&TXN) => Some(Self::Outcome),
            _ => None,
        }
    }
}

/// `C | key`.
#[must_use]
pub fn newest_key(key: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(1 + key.len());
    out.put_u8(NEWEST);
    out.put_slice(key);
    out.freeze()
}

/// Appends `C | key`.
pub fn push_newest_key(key: &[u8], out: &mut SmallVec<[u8; 64]>) {
    out.push(NEWEST);
    out.extend_from_slice(key);
}

/// The first stored key after every `C` row.
#[must_use]
pub fn newest_end() -> Bytes {
    Bytes::from_static(&[NEWEST + 1])
}

/// `H | key | !at`.
#[must_use]
pub fn history_key(key: &[u8], at: Timestamp) -> Bytes {
    let mut out = BytesMut::with_capacity(1 + key.len() + 8);
    out.put_u8(HISTORY);
    out.put_slice(key);
    out.put_u64(!at.0);
    out.freeze()
}

/// The key and timestamp of a stored `H` key.
#[must_use]
pub fn split_history_key(stored: &[u8]) -> Option<(&[u8], Timestamp)> {
    let body = stored.strip_prefix(&[HISTORY])?;
    let (key, at) = body.split_at_checked(body.len().checked_sub(8)?)?;
    Some((key, Timestamp(!u64::from_be_bytes(at.try_into().ok()?))))
}

/// `T | transaction`.
#[must_use]
pub fn outcome_key(txn: TxnId) -> Bytes {
    let mut out = BytesMut::with_capacity(17);
    out.put_u8(TXN);
    out.put_slice(&txn.to_bytes());
    out.freeze()
}

/// `M`.
#[must_use]
pub fn meta_key() -> Bytes {
    Bytes::from_static(&[META])
}

/// How far a checkpoint reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Every entry up to here is inside.
    pub lsn: Lsn,
    /// The newest commit timestamp inside.
    pub applied: Timestamp,
    /// History below this timestamp may be gone: no read below it.
    pub watermark: Timestamp,
}

/// Encodes a `C` row.
#[must_use]
pub fn encode_newest(version: &Version) -> Bytes {
    let value = version.value.as_deref().unwrap_or_default();
    let mut out = BytesMut::with_capacity(VERSION_HEADER + value.len());
    out.put_u8(ROW_FORMAT);
    out.put_u8(if version.value.is_none() { DELETED } else { 0 });
    out.put_u64(version.at.0);
    out.put_slice(&version.txn.to_bytes());
    out.put_slice(value);
    out.freeze()
}

/// Encodes an `H` row. Delete marks have none.
#[must_use]
pub fn encode_history(superseded: Timestamp, txn: TxnId, value: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HISTORY_HEADER + value.len());
    out.put_u8(ROW_FORMAT);
    out.put_u64(superseded.0);
    out.put_slice(&txn.to_bytes());
    out.put_slice(value);
    out.freeze()
}

/// Encodes a `T` row.
#[must_use]
pub fn encode_outcome(at: Timestamp) -> Bytes {
    let mut out = BytesMut::with_capacity(9);
    out.put_u8(ROW_FORMAT);
    out.put_u64(at.0);
    out.freeze()
}

/// Encodes the `M` row.
#[must_use]
pub fn encode_meta(meta: &Meta) -> Bytes {
    let mut out = BytesMut::with_capacity(25);
    out.put_u8(ROW_FORMAT);
    out.put_u64(meta.lsn.0);
    out.put_u64(meta.applied.0);
    out.put_u64(meta.watermark.0);
    out.freeze()
}

/// An `H` row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// When the version was superseded.
    pub superseded: Timestamp,
    /// Who wrote the version.
    pub txn: TxnId,
    /// Its value.
    pub value: Bytes,
}

/// Cursor over a stored value whose bounds are checked.
struct Fields<'a> {
    path: &'a str,
    what: &'static str,
    rest: Bytes,
}

impl<'a> Fields<'a> {
    fn new(path: &'a str, what: &'static str, stored: &Bytes) -> Result<Self> {
        let mut fields = Self { path, what, rest: stored.clone() };
        let [version] = fields.take()?;
        if version != ROW_FORMAT {
            return Err(newer(path, what, version));
        }
        Ok(fields)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.rest.first_chunk::<N>() {
            Some(chunk) => {
                let chunk = *chunk;
                self.rest = self.rest.slice(N..);
                Ok(chunk)
            }
            None => Err(self.corrupt("it is too short")),
        }
    }

    fn timestamp(&mut self) -> Result<Timestamp> {
        Ok(Timestamp(u64::from_be_bytes(self.take()?)))
    }

    fn finish(self) -> Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(self.corrupt("it is too long")) }
    }

    fn corrupt(&self, reason: &str) -> Error {
        Error::Corrupt {
            object: self.path.to_owned(),
            reason: format!("a {} row does not decode: {reason}", self.what),
        }
    }
}

/// Decodes a `C` row. The value is a slice of `stored`.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::NewerFormat`]; so for all decoders here.
pub fn decode_newest(path: &str, stored: &Bytes) -> Result<Version> {
    let (at, txn, deleted) = newest_header(path, stored)?;
    let value = (!deleted).then(|| stored.slice(VERSION_HEADER..));
    Ok(Version { at, txn, value })
}

/// Decodes the `C` row at `place` of a buffer. A short value is copied: what counts a buffer's references lies elsewhere in memory, and
/// is written to by each reader.
///
/// # Errors
/// As [`decode_newest`].
pub fn copy_newest(path: &str, buffer: &Bytes, place: Range<usize>) -> Result<Version> {
    let (at, txn, deleted) = newest_header(path, &buffer[place.clone()])?;
    let value = place.start + VERSION_HEADER..place.end;
    let value = (!deleted).then(|| {
        if value.len() > LONG {
            buffer.slice(value)
        } else {
            Bytes::copy_from_slice(&buffer[value])
        }
    });
    Ok(Version { at, txn, value })
}

/// The head of a `C` row, read in place: this is the inner loop of scans.
fn newest_header(path: &str, stored: &[u8]) -> Result<(Timestamp, TxnId, bool)> {
    let corrupt = |reason: &str| Error::Corrupt {
        object: path.to_owned(),
        reason: format!("a newest-version row does not decode: {reason}"),
    };
    let Some((head, _)) = stored.split_first_chunk::<VERSION_HEADER>() else {
        return match stored.first() {
            Some(version) if *version != ROW_FORMAT => Err(newer(path, "newest-version", *version)),
            _ => Err(corrupt("it is too short")),
        };
    };
    if head[0] != ROW_FORMAT {
        return Err(newer(path, "newest-version", head[0]));
    }
    if head[1] & !DELETED != 0 {
        return Err(corrupt("unknown flags"));
    }
    let (mut at, mut txn) = ([0; 8], [0; 16]);
    at.copy_from_slice(&head[2..10]);
    txn.copy_from_slice(&head[10..]);
    let at = Timestamp(u64::from_be_bytes(at));
    Ok((at, TxnId::from_bytes(txn), head[1] & DELETED != 0))
}

fn newer(path: &str, what: &str, version: u8) -> Error {
    Error::NewerFormat { object: format!("a {what} row of {path}"), version, known: ROW_FORMAT }
}

/// The commit timestamp of a `C` row and whether it is a delete mark, without its value.
///
/// # Errors
/// As [`decode_newest`].
pub fn peek_newest(path: &str, stored: &Bytes) -> Result<(Timestamp, bool)> {
    newest_header(path, stored).map(|(at, _, deleted)| (at, deleted))
}

/// Decodes an `H` row.
///
/// # Errors
/// As [`decode_newest`].
pub fn decode_history(path: &str, stored: &Bytes) -> Result<History> {
    let mut fields = Fields::new(path, "history", stored)?;
    let superseded = fields.timestamp()?;
    let txn = TxnId::from_bytes(fields.take()?);
    Ok(History { superseded, txn, value: fields.rest })
}

/// Decodes a `T` row.
///
/// # Errors
/// As [`decode_newest`].
pub fn decode_outcome(path: &str, stored: &Bytes) -> Result<Timestamp> {
    let mut fields = Fields::new(path, "transaction outcome", stored)?;
    let at = fields.timestamp()?;
    fields.finish()?;
    Ok(at)
}

/// Decodes the `M` row.
///
/// # Errors
/// As [`decode_newest`].
pub fn decode_meta(path: &str, stored: &Bytes) -> Result<Meta> {
    let mut fields = Fields::new(path, "reach", stored)?;
    let lsn = Lsn(u64::from_be_bytes(fields.take()?));
    let applied = fields.timestamp()?;
    let watermark = fields.timestamp()?;
    fields.finish()?;
    Ok(Meta { lsn, applied, watermark })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rows_decode_to_what_was_encoded(at: u64, superseded: u64, txn: u128, value: Option<Vec<u8>>, key: Vec<u8>) {
            let version = Version { at: Timestamp(at), txn: TxnId(txn), value: value.clone().map(Bytes::from) };
            prop_assert_eq!(decode_newest("p", &encode_newest(&version)).unwrap(), version.clone());
            prop_assert_eq!(peek_newest("p", &encode_newest(&version)).unwrap(), (version.at, value.is_none()));
            let bytes = value.unwrap_or_default();
            let history = decode_history("p", &encode_history(Timestamp(superseded), TxnId(txn), &bytes)).unwrap();
            prop_assert_eq!(history, History { superseded: Timestamp(superseded), txn: TxnId(txn), value: Bytes::from(bytes) });
            prop_assert_eq!(decode_outcome("p", &encode_outcome(Timestamp(at))).unwrap(), Timestamp(at));
            let meta = Meta { lsn: Lsn(at), applied: Timestamp(superseded), watermark: Timestamp(at) };
            prop_assert_eq!(decode_meta("p", &encode_meta(&meta)).unwrap(), meta);
            let history_key = history_key(&key, Timestamp(at));
            prop_assert_eq!(split_history_key(&history_key), Some((&key[..], Timestamp(at))));
        }

        #[test]
        fn arbitrary_bytes_never_panic_a_decoder(bytes: Vec<u8>) {
            let bytes = Bytes::from(bytes);
            let _ = (decode_newest("p", &bytes), decode_history("p", &bytes));
            let _ = (decode_outcome("p", &bytes), decode_meta("p", &bytes), split_history_key(&bytes));
        }
    }

    #[test]
    fn history_keys_sort_newest_version_first() {
        assert!(history_key(b"k", Timestamp(9)) < history_key(b"k", Timestamp(8)));
        assert!(history_key(b"k", Timestamp(1)) < history_key(b"l", Timestamp(8)));
    }

    #[test]
    fn row_of_newer_format_is_refused_clearly() {
        let error = decode_newest("p", &Bytes::from_static(&[2, 0])).unwrap_err();
        assert!(matches!(error, Error::NewerFormat { version: 2, known: 1, .. }));
    }
}
