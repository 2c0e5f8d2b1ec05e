//! The checkpoint's key space and stored rows (`docs/reference/formats/shard.md`).
//!
//! # Invariants
//! - `C | key`: the newest version. `H | key | !timestamp`: an older one, newest first, with the
//!   timestamp that superseded it. `T | transaction`: its commit timestamp. `M`: how far the
//!   checkpoint reaches.
//! - Every garbage-collection decision needs one row and the watermark, nothing else.
//!
//! # On failure
//! A row that does not decode is `Error::Corrupt` naming the checkpoint and the row; blocks carry
//! checksums, so this means a bug or a foreign writer.

use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use smallvec::SmallVec;
use telesto_common::key::PREFIX_LEN;
use telesto_common::{Lsn, RegionId, Timestamp, TxnId};

use crate::api::{Origin, Version};
use crate::error::{Error, Result};

/// The newest format version of a row that is read. A row is written in the oldest that can hold
/// it.
pub const ROW_FORMAT: u8 = 2;
/// Rows without an origin label: whoever committed the version did so in this region.
const LOCAL_FORMAT: u8 = 1;
/// Versions, `C` and `H`, that were committed in another region first, with their origin label.
const LABELLED_FORMAT: u8 = 2;

const NEWEST: u8 = b'C';
const HISTORY: u8 = b'H';
const META: u8 = b'M';
const TXN: u8 = b'T';

/// Longer values are shared with those who read them, bytes.
pub const LONG: usize = 1024;

const DELETED: u8 = 1;
const VERSION_HEADER: usize = 1 + 1 + 8 + 16;
const HISTORY_HEADER: usize = 1 + 8 + 16;
/// Source and timestamp of an origin label.
const ORIGIN: usize = 2 + 8;

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

/// Where in the key space a stored row is: its kind and, of versions, the first bytes of the key,
/// which name an index.
pub type Place = [u8; 1 + PREFIX_LEN];

/// The place of a stored key; `None`: it is too short to tell.
#[must_use]
pub fn place(stored: &[u8]) -> Option<Place> {
    match stored.first() {
        Some(&kind @ (META | TXN)) => {
            let mut place = Place::default();
            place[0] = kind;
            Some(place)
        }
        _ => stored.get(..1 + PREFIX_LEN)?.try_into().ok(),
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

fn put_origin(out: &mut BytesMut, origin: Option<&Origin>) {
    if let Some(origin) = origin {
        out.put_u16(origin.source.0);
        out.put_u64(origin.timestamp.0);
    }
}

fn format_of(origin: Option<&Origin>) -> u8 {
    if origin.is_some() { LABELLED_FORMAT } else { LOCAL_FORMAT }
}

/// Encodes a `C` row.
#[must_use]
pub fn encode_newest(version: &Version) -> Bytes {
    let value = version.value.as_deref().unwrap_or_default();
    let origin = version.origin.as_deref();
    let mut out = BytesMut::with_capacity(VERSION_HEADER + ORIGIN + value.len());
    out.put_u8(format_of(origin));
    out.put_u8(if version.value.is_none() { DELETED } else { 0 });
    out.put_u64(version.at.0);
    out.put_slice(&version.txn.to_bytes());
    put_origin(&mut out, origin);
    out.put_slice(value);
    out.freeze()
}

/// Encodes an `H` row. Delete marks have none.
#[must_use]
pub fn encode_history(
    superseded: Timestamp,
    txn: TxnId,
    origin: Option<&Origin>,
    value: &[u8],
) -> Bytes {
    let mut out = BytesMut::with_capacity(HISTORY_HEADER + ORIGIN + value.len());
    out.put_u8(format_of(origin));
    out.put_u64(superseded.0);
    out.put_slice(&txn.to_bytes());
    put_origin(&mut out, origin);
    out.put_slice(value);
    out.freeze()
}

/// Encodes a `T` row.
#[must_use]
pub fn encode_outcome(at: Timestamp) -> Bytes {
    let mut out = BytesMut::with_capacity(9);
    out.put_u8(LOCAL_FORMAT);
    out.put_u64(at.0);
    out.freeze()
}

/// Encodes the `M` row.
#[must_use]
pub fn encode_meta(meta: &Meta) -> Bytes {
    let mut out = BytesMut::with_capacity(25);
    out.put_u8(LOCAL_FORMAT);
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
    /// Where and when it was committed first, if that was in another region.
    pub origin: Option<Box<Origin>>,
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
        if version != LOCAL_FORMAT {
            return Err(unknown(path, what, version));
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

    /// As [`Fields::new`], of a version, which may have an origin label: whether it has one.
    fn of_version(path: &'a str, what: &'static str, stored: &Bytes) -> Result<(Self, bool)> {
        let mut fields = Self { path, what, rest: stored.clone() };
        match fields.take()? {
            [LOCAL_FORMAT] => Ok((fields, false)),
            [LABELLED_FORMAT] => Ok((fields, true)),
            [version] => Err(unknown(path, what, version)),
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
    let (head, deleted, len) = newest_header(path, stored)?;
    Ok(Version { value: (!deleted).then(|| stored.slice(len..)), ..head })
}

/// Decodes the `C` row at `place` of a buffer. A short value is copied: what counts a buffer's
/// references lies elsewhere in memory, and is written to by each reader.
///
/// # Errors
/// As [`decode_newest`].
pub fn copy_newest(path: &str, buffer: &Bytes, place: Range<usize>) -> Result<Version> {
    let (head, deleted, len) = newest_header(path, &buffer[place.clone()])?;
    let value = place.start + len..place.end;
    let value = (!deleted).then(|| {
        if value.len() > LONG {
            buffer.slice(value)
        } else {
            Bytes::copy_from_slice(&buffer[value])
        }
    });
    Ok(Version { value, ..head })
}

/// The head of a `C` row, read in place: this is the inner loop of scans. A version without its
/// value, whether it is a delete mark, and where the value begins.
fn newest_header(path: &str, stored: &[u8]) -> Result<(Version, bool, usize)> {
    const WHAT: &str = "newest-version";
    let corrupt = |reason: &str| Error::Corrupt {
        object: path.to_owned(),
        reason: format!("a {WHAT} row does not decode: {reason}"),
    };
    let Some((head, rest)) = stored.split_first_chunk::<VERSION_HEADER>() else {
        return match stored.first() {
            Some(version) if *version > ROW_FORMAT => Err(unknown(path, WHAT, *version)),
            _ => Err(corrupt("it is too short")),
        };
    };
    let origin = match head[0] {
        LOCAL_FORMAT => None,
        LABELLED_FORMAT => {
            let label = rest.first_chunk::<ORIGIN>().ok_or_else(|| corrupt("it is too short"))?;
            Some(Box::new(origin_of(label)))
        }
        version => return Err(unknown(path, WHAT, version)),
    };
    if head[1] & !DELETED != 0 {
        return Err(corrupt("unknown flags"));
    }
    let (mut at, mut txn) = ([0; 8], [0; 16]);
    at.copy_from_slice(&head[2..10]);
    txn.copy_from_slice(&head[10..]);
    let at = Timestamp(u64::from_be_bytes(at));
    let len = VERSION_HEADER + if origin.is_some() { ORIGIN } else { 0 };
    let version = Version { at, txn: TxnId::from_bytes(txn), origin, value: None };
    Ok((version, head[1] & DELETED != 0, len))
}

fn origin_of(label: &[u8; ORIGIN]) -> Origin {
    let [s0, s1, at @ ..] = *label;
    Origin {
        source: RegionId(u16::from_be_bytes([s0, s1])),
        timestamp: Timestamp(u64::from_be_bytes(at)),
    }
}

/// Format 0 was never written: a row that begins with it is damaged.
fn unknown(path: &str, what: &str, version: u8) -> Error {
    if version <= ROW_FORMAT {
        return Error::Corrupt {
            object: path.to_owned(),
            reason: format!("a {what} row does not decode: it cannot have format {version}"),
        };
    }
    Error::NewerFormat { object: format!("a {what} row of {path}"), version, known: ROW_FORMAT }
}

/// The commit timestamp of a `C` row and whether it is a delete mark, without its value.
///
/// # Errors
/// As [`decode_newest`].
pub fn peek_newest(path: &str, stored: &Bytes) -> Result<(Timestamp, bool)> {
    newest_header(path, stored).map(|(head, deleted, _)| (head.at, deleted))
}

/// Decodes an `H` row.
///
/// # Errors
/// As [`decode_newest`].
pub fn decode_history(path: &str, stored: &Bytes) -> Result<History> {
    let (mut fields, labelled) = Fields::of_version(path, "history", stored)?;
    let superseded = fields.timestamp()?;
    let txn = TxnId::from_bytes(fields.take()?);
    let origin = match labelled {
        true => Some(Box::new(origin_of(&fields.take()?))),
        false => None,
    };
    Ok(History { superseded, txn, origin, value: fields.rest })
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
        fn rows_decode_to_what_was_encoded(
            at: u64, superseded: u64, txn: u128, value: Option<Vec<u8>>, key: Vec<u8>, label: Option<(u16, u64)>,
        ) {
            let origin = label.map(|(source, timestamp)| {
                Box::new(Origin { source: RegionId(source), timestamp: Timestamp(timestamp) })
            });
            let version = Version {
                at: Timestamp(at), txn: TxnId(txn), origin: origin.clone(), value: value.clone().map(Bytes::from),
            };
            prop_assert_eq!(encode_newest(&version)[0], if origin.is_some() { 2 } else { 1 });
            prop_assert_eq!(decode_newest("p", &encode_newest(&version)).unwrap(), version.clone());
            prop_assert_eq!(peek_newest("p", &encode_newest(&version)).unwrap(), (version.at, value.is_none()));
            let bytes = value.unwrap_or_default();
            let history = decode_history("p", &encode_history(Timestamp(superseded), TxnId(txn), origin.as_deref(), &bytes)).unwrap();
            prop_assert_eq!(history, History { superseded: Timestamp(superseded), txn: TxnId(txn), origin, value: Bytes::from(bytes) });
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
        let error = decode_newest("p", &Bytes::from_static(&[3, 0])).unwrap_err();
        assert!(matches!(error, Error::NewerFormat { version: 3, known: 2, .. }));
        let error = decode_history("p", &Bytes::from_static(&[3, 0])).unwrap_err();
        assert!(matches!(error, Error::NewerFormat { version: 3, known: 2, .. }));
        // A row of the first format, byte by byte: databases are full of them.
        let mut stored = vec![1, 0];
        stored.extend([0, 0, 0, 0, 0, 0, 0, 9]);
        stored.extend(TxnId(7).to_bytes());
        stored.extend(b"value");
        let version = decode_newest("p", &Bytes::from(stored)).unwrap();
        let value = Some(Bytes::from_static(b"value"));
        assert_eq!(version, Version { at: Timestamp(9), txn: TxnId(7), origin: None, value });
    }
}
