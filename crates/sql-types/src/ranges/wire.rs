//! Binary forms of ranges and multiranges: those of `range_send` and `multirange_send`.
//!
//! ```text
//! range      = flags (u8) [length (i32) lower] [length (i32) upper]
//! multirange = count (i32), of each range: length (i32) range
//! ```

use bytes::{BufMut, BytesMut};

use super::stored::{EMPTY, LOWER_INCLUSIVE, LOWER_INFINITE, UPPER_INCLUSIVE, UPPER_INFINITE};
use super::{Bound, Multirange, Range, RangeKind};
use crate::datum::Datum;
use crate::error::{Error, Result, SqlState};
use crate::held::Growing;
use crate::interrupt::Steps;

fn bad() -> Error {
    Error::new(SqlState::INVALID_BINARY_REPRESENTATION, "insufficient data left in message")
}

fn integer(bytes: &mut &[u8]) -> Result<i32> {
    let (head, rest) = bytes.split_first_chunk::<4>().ok_or_else(bad)?;
    *bytes = rest;
    Ok(i32::from_be_bytes(*head))
}

/// Bytes behind their length.
fn sized<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8]> {
    let length = usize::try_from(integer(bytes)?).map_err(|_| bad())?;
    let (head, rest) = bytes.split_at_checked(length).ok_or_else(bad)?;
    *bytes = rest;
    Ok(head)
}

/// Writes what `content` appends behind its length.
fn put_sized(out: &mut BytesMut, content: impl FnOnce(&mut BytesMut)) {
    let at = out.len();
    out.put_i32(0);
    content(out);
    let length = (out.len() - at - 4) as i32;
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

impl Range {
    /// Reads the binary form, all of `bytes`.
    ///
    /// # Errors
    /// 22P03; those of [`Range::new`] and of the bounds.
    pub fn from_wire(mut bytes: &[u8], kind: RangeKind) -> Result<Self> {
        let (flags, rest) = bytes.split_first().ok_or_else(bad)?;
        bytes = rest;
        let mut bound = |infinite: u8, inclusive: u8| -> Result<Bound> {
            if flags & (EMPTY | infinite) != 0 {
                return Ok(Bound::INFINITE);
            }
            let value = Datum::from_binary(sized(&mut bytes)?, &kind.subtype())?;
            Ok(Bound::new(value, flags & inclusive != 0))
        };
        let lower = bound(LOWER_INFINITE, LOWER_INCLUSIVE)?;
        let upper = bound(UPPER_INFINITE, UPPER_INCLUSIVE)?;
        if !bytes.is_empty() {
            return Err(Error::new(
                SqlState::INVALID_BINARY_REPRESENTATION,
                format!("incorrect binary data format for type {}", kind.name()),
            ));
        }
        if flags & EMPTY != 0 { Ok(Self::empty(kind)) } else { Self::new(kind, lower, upper) }
    }

    /// Appends the binary form.
    pub fn to_wire(&self, out: &mut BytesMut) {
        out.put_u8(self.flags());
        let Some((lower, upper)) = self.bounds() else { return };
        for value in [lower, upper].into_iter().filter_map(|bound| bound.value.as_ref()) {
            put_sized(out, |out| value.to_binary(&self.kind.subtype(), out));
        }
    }
}

impl Multirange {
    /// Reads the binary form, all of `bytes`.
    ///
    /// # Errors
    /// As [`Range::from_wire`]; those of [`crate::held`].
    pub fn from_wire(mut bytes: &[u8], kind: RangeKind) -> Result<Self> {
        let count = integer(&mut bytes)?;
        let mut parts = Vec::new();
        let (mut steps, mut made) = (Steps::default(), Growing::default());
        for _ in 0..count.max(0) {
            steps.step()?;
            let range = Range::from_wire(sized(&mut bytes)?, kind)?;
            made.add(range.held())?;
            parts.push(range);
        }
        if !bytes.is_empty() {
            return Err(Error::new(
                SqlState::INVALID_BINARY_REPRESENTATION,
                format!("incorrect binary data format for type {}", kind.multirange_name()),
            ));
        }
        Self::new(kind, parts)
    }

    /// Appends the binary form.
    pub fn to_wire(&self, out: &mut BytesMut) {
        out.put_i32(self.parts.len() as i32);
        for part in &self.parts {
            put_sized(out, |out| part.to_wire(out));
        }
    }
}
