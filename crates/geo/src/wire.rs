//! Numbers on the wire between regions.
//!
//! # Invariants
//! Variable-length numbers are little-endian groups of seven bits, at most ten bytes; fixed ones
//! are big endian.
//!
//! # On failure
//! [`Reader`] returns [`Error::Malformed`] with the offset; it never panics on input.
//!
//! # Limits
//! No framing and no checksum: links frame, their transport checks.

use bytes::{BufMut as _, Bytes};

use crate::error::{Error, Result};

/// Appends `value` in groups of seven bits.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Reads a message from its start.
pub(crate) struct Reader {
    bytes: Bytes,
    offset: usize,
}

impl Reader {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self { bytes, offset: 0 }
    }

    pub(crate) fn malformed<T>(&self, reason: &'static str) -> Result<T> {
        Err(Error::Malformed { offset: self.offset, reason })
    }

    pub(crate) fn byte(&mut self) -> Result<u8> {
        let Some(byte) = self.bytes.get(self.offset).copied() else {
            return self.malformed("a byte is missing");
        };
        self.offset += 1;
        Ok(byte)
    }

    pub(crate) fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let found = self.bytes.get(self.offset..self.offset + N);
        let Some(Ok(found)) = found.map(<[u8; N]>::try_from) else {
            return self.malformed("a number is cut off");
        };
        self.offset += N;
        Ok(found)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.fixed()?))
    }

    pub(crate) fn varint(&mut self) -> Result<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return self.malformed("a number is greater than 64 bits");
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        self.malformed("a number has more than ten bytes")
    }

    /// A number that must be below `limit`.
    pub(crate) fn below(&mut self, limit: u64, reason: &'static str) -> Result<u64> {
        let value = self.varint()?;
        if value < limit { Ok(value) } else { self.malformed(reason) }
    }

    /// What is left.
    pub(crate) fn rest(self) -> Bytes {
        self.bytes.slice(self.offset..)
    }

    /// Ends the message.
    pub(crate) fn end(&self) -> Result<()> {
        if self.offset == self.bytes.len() {
            Ok(())
        } else {
            self.malformed("bytes follow the end of the message")
        }
    }
}
