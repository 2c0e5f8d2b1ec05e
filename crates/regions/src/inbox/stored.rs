//! The state of an inbox as it is stored with what was applied, read again.
//!
//! # Invariants
//! Nothing is guessed: bytes of another version or with something left over are refused.

use std::collections::BTreeMap;

use bytes::Bytes;
use telesto_common::cursor::{Cursor, Malformed};
use telesto_common::{RegionId, Timestamp};

use super::{CLOSED, Source, VERSION};
use crate::past::Past;
use crate::wire::Position;

type Decoded = (Past, BTreeMap<RegionId, Source>);

/// A stored state, read.
///
/// # Errors
/// What is wrong with the bytes.
pub(super) fn decode(stored: Bytes) -> Result<Decoded, Malformed> {
    let mut cursor = Cursor::new(stored);
    let version = cursor.u8()?;
    if version != VERSION {
        return Err(format!("progress of version {version} is not known"));
    }
    let mut known = Past::default();
    known.take_since(&mut cursor)?;
    let mut sources = BTreeMap::new();
    for _ in 0..cursor.count(30)? {
        let region = RegionId(cursor.u16()?);
        let applied = cursor.varint()?;
        let passed = Timestamp(cursor.u64()?);
        let resume = Position::take(&mut cursor)?;
        let received = resume.clone();
        sources.insert(region, Source { applied, resume, passed, received, ..Source::default() });
    }
    cursor.finish()?;
    Ok((known, sources))
}

/// Up to where the log of `of` was applied where a state was stored, and in which incarnation of
/// that region.
pub(crate) fn stood(stored: Bytes, of: RegionId) -> Result<Option<(Timestamp, u64)>, Malformed> {
    let (_, sources) = decode(stored)?;
    let source = sources.get(&of).filter(|source| source.applied != CLOSED);
    Ok(source.map(|source| (source.passed, source.resume.past.incarnation(of))))
}

/// The past that a stored state brings with it.
pub(crate) fn known_of(stored: Bytes) -> Result<Past, Malformed> {
    decode(stored).map(|(known, _)| known)
}
