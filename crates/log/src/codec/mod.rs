//! Stored form of entries.
//!
//! # Format (`docs/reference/formats/log.md` has every byte)
//! ```text
//! magic 4 | version 2 | flags 2 | crc32c 4 | body length 4 | shard 8 | loglet 8 | lsn 8
//! writer 16 | previous hash 16 | records: count, then each
//! ```
//! # Invariants
//! - What a good checksum covers and this program does not know (a version, a flag, a kind of
//!   record) was written by a newer program: [`Error::TooNew`], never damage.
//! - The checksum covers every other byte, so one flipped byte anywhere is detected. It is checked
//!   before the version: a damaged version number is damage, not a newer program.
//! - `hash` is the first 16 bytes of BLAKE3 over the whole encoding; it binds an entry to its
//!   predecessor, its place and its writer.
//!
//! # On failure
//! [`Error::Corrupt`] or [`Error::TooNew`] naming the object; decoding never panics and allocates
//! nothing from lengths that the input does not cover.

mod record;

use bytes::{BufMut, Bytes, BytesMut};
use telesto_common::{Lsn, ShardId, WriterToken};

use crate::error::{Error, FORMAT_VERSION, Result};
use crate::record::{Entry, Record};
use record::Unreadable;
pub(crate) use telesto_common::cursor;
use telesto_common::cursor::{Cursor, Malformed, put_varint};

/// First bytes of an entry.
pub const MAGIC: [u8; 4] = *b"TLSE";
/// Newest entry format this program reads, and the one it writes: its records name their shard.
pub const VERSION: u16 = 2;
/// The format before: every record is the shard's in the envelope.
const ONE_SHARD: u16 = 1;
/// Bytes before the records.
pub const HEADER_BYTES: usize = 72;
/// Largest encoded entry, bytes.
pub const MAX_ENTRY_BYTES: usize = 64 << 20;

/// Where an entry stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The shard.
    pub shard: ShardId,
    /// The loglet of its chain.
    pub loglet: u64,
    /// The position.
    pub lsn: Lsn,
}

/// The first 16 bytes of BLAKE3.
#[must_use]
pub fn hash16(bytes: &[u8]) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    short
}

/// The checksum of `bytes` with the four bytes at `at` left out.
pub(crate) fn checksum_without(bytes: &[u8], at: usize) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..at]), &bytes[at + 4..])
}

/// Encodes an entry; gives its bytes and their hash.
///
/// # Errors
/// [`Error::TooLarge`] past [`MAX_ENTRY_BYTES`].
pub fn encode(
    place: Place,
    writer: WriterToken,
    previous_hash: [u8; 16],
    records: &[Record],
) -> Result<(Bytes, [u8; 16])> {
    let mut out = BytesMut::with_capacity(HEADER_BYTES + 256);
    out.put_slice(&MAGIC);
    out.put_u16_le(VERSION);
    out.put_u16_le(0);
    out.put_u64_le(0); // checksum and length, below
    out.put_u64_le(place.shard.0);
    out.put_u64_le(place.loglet);
    out.put_u64_le(place.lsn.0);
    out.put_slice(&writer.to_bytes());
    out.put_slice(&previous_hash);
    put_varint(&mut out, records.len() as u64);
    for record in records {
        record::put_record(&mut out, record);
    }
    if out.len() > MAX_ENTRY_BYTES {
        return Err(Error::TooLarge { bytes: out.len() as u64, limit: MAX_ENTRY_BYTES as u64 });
    }
    let body_bytes = (out.len() - 16) as u32;
    out[12..16].copy_from_slice(&body_bytes.to_le_bytes());
    let checksum = checksum_without(&out, 8);
    out[8..12].copy_from_slice(&checksum.to_le_bytes());
    let hash = hash16(&out);
    Ok((out.freeze(), hash))
}

/// Decodes the entry that must stand at `place`. `object` names it in errors.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::TooNew`].
pub fn decode(object: &str, place: Place, bytes: &Bytes) -> Result<Entry> {
    let corrupt = |reason: Malformed| Error::Corrupt {
        object: object.to_owned(),
        lsn: Some(place.lsn),
        reason,
    };
    check_envelope(bytes, MAGIC, HEADER_BYTES).map_err(corrupt)?;
    let mut cursor = Cursor::new(bytes.clone());
    let mut parse = || -> std::result::Result<Entry, Unreadable> {
        cursor.take(4)?;
        let version = cursor.u16()?;
        let newer = |what, found, supported| Err(Unreadable::Unknown { what, found, supported });
        if version > VERSION {
            return newer(FORMAT_VERSION, version, VERSION);
        }
        let flags = cursor.u16()?;
        if flags != 0 {
            return newer("flags", flags, 0);
        }
        cursor.take(8)?;
        let found =
            Place { shard: ShardId(cursor.u64()?), loglet: cursor.u64()?, lsn: Lsn(cursor.u64()?) };
        if found != place {
            return Err(format!("it is {found:?}, expected {place:?}").into());
        }
        let writer = WriterToken::from_bytes(cursor.array16()?);
        let previous_hash = cursor.array16()?;
        let only = (version <= ONE_SHARD).then_some(place.shard);
        let count = cursor.count(2)?;
        let mut records = Vec::with_capacity(count);
        for _ in 0..count {
            records.push(record::take_record(&mut cursor, only)?);
        }
        cursor.clone().finish()?;
        Ok(Entry { lsn: place.lsn, writer, previous_hash, hash: hash16(bytes), records })
    };
    parse().map_err(|error| match error {
        Unreadable::Malformed(reason) => corrupt(reason),
        Unreadable::Unknown { what, found, supported } => {
            Error::TooNew { object: object.to_owned(), what, found, supported }
        }
    })
}

/// Checks magic, length and checksum of
/// `magic 4 | version 2 | flags 2 | crc32c 4 | length 4 | ...`, the envelope that every object of
/// the log has and that no later version changes.
pub(crate) fn check_envelope(
    bytes: &[u8],
    magic: [u8; 4],
    minimum: usize,
) -> std::result::Result<(), Malformed> {
    if bytes.len() < minimum.max(16) {
        return Err(format!("{} bytes are too few", bytes.len()));
    }
    let stored = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    let length = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
    let computed = checksum_without(bytes, 8);
    if bytes[..4] != magic {
        Err("it does not start with the mark of its kind".into())
    } else if length as usize != bytes.len() - 16 {
        Err(format!("it has {} bytes, its header says {}", bytes.len(), u64::from(length) + 16))
    } else if stored != computed {
        Err(format!("checksum {computed:08x}, stored {stored:08x}"))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
