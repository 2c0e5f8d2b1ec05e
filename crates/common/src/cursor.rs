//! Bounded reading of untrusted bytes, as stored objects and messages between nodes have them.
//!
//! # Invariants
//! Nothing is allocated from a length that the remaining input does not cover.
//!
//! # On failure
//! [`Malformed`] says what does not fit and where; the caller names the object.

use bytes::{BufMut, Bytes, BytesMut};

/// What does not fit. The caller names the object.
pub type Malformed = String;

/// Reads from the front of `bytes`.
#[derive(Clone, Debug)]
pub struct Cursor {
    bytes: Bytes,
    offset: usize,
}

macro_rules! fixed {
    ($name:ident, $type:ty) => {
        /// A little-endian number.
        ///
        /// # Errors
        /// Too few bytes are left.
        pub fn $name(&mut self) -> Result<$type, Malformed> {
            let mut raw = [0; size_of::<$type>()];
            raw.copy_from_slice(&self.take(size_of::<$type>())?);
            Ok(<$type>::from_le_bytes(raw))
        }
    };
}

impl Cursor {
    /// A cursor at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: Bytes) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Bytes left.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// The next `length` bytes, sharing the input's memory.
    ///
    /// # Errors
    /// The input does not hold that.
    pub fn take(&mut self, length: usize) -> Result<Bytes, Malformed> {
        if length > self.remaining() {
            return Err(format!(
                "{length} bytes expected at offset {}, {} left",
                self.offset,
                self.remaining()
            ));
        }
        let taken = self.bytes.slice(self.offset..self.offset + length);
        self.offset += length;
        Ok(taken)
    }

    fixed!(u8, u8);
    fixed!(u16, u16);
    fixed!(u32, u32);
    fixed!(u64, u64);
    fixed!(u128, u128);

    /// 16 raw bytes.
    ///
    /// # Errors
    /// The input does not hold that.
    pub fn array16(&mut self) -> Result<[u8; 16], Malformed> {
        let mut raw = [0; 16];
        raw.copy_from_slice(&self.take(16)?);
        Ok(raw)
    }

    /// A variable-length number (LEB128).
    ///
    /// # Errors
    /// The input does not hold that.
    pub fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let part = u64::from(byte & 0x7F);
            if part << shift >> shift != part {
                break;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(format!("number before offset {} is too long", self.offset))
    }

    /// A byte string with its length before it.
    ///
    /// # Errors
    /// The input does not hold that.
    pub fn string(&mut self) -> Result<Bytes, Malformed> {
        let length = self.varint()?;
        self.take(usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// A count of elements of at least `minimum` bytes each, so that it cannot exceed what the rest
    /// of the input holds.
    ///
    /// # Errors
    /// More elements are announced than can follow.
    pub fn count(&mut self, minimum: usize) -> Result<usize, Malformed> {
        let count = usize::try_from(self.varint()?).unwrap_or(usize::MAX);
        if count > self.remaining() / minimum.max(1) {
            return Err(format!("{count} elements announced at offset {}, too many", self.offset));
        }
        Ok(count)
    }

    /// `count` byte strings, each with its length (4) before it.
    ///
    /// # Errors
    /// The input does not hold that.
    pub fn strings(&mut self, count: usize) -> Result<Vec<Bytes>, Malformed> {
        if count > self.remaining() / 4 {
            return Err(format!("{count} entries announced, too many"));
        }
        let mut strings = Vec::with_capacity(count);
        for _ in 0..count {
            let length = self.u32()? as usize;
            strings.push(self.take(length)?);
        }
        Ok(strings)
    }

    /// Fails unless everything was read.
    ///
    /// # Errors
    /// The input does not hold that.
    pub fn finish(self) -> Result<(), Malformed> {
        match self.remaining() {
            0 => Ok(()),
            left => Err(format!("{left} bytes too many")),
        }
    }
}

/// Appends a variable-length number.
pub fn put_varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value & 0x7F) as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Appends a byte string with its length before it.
pub fn put_string(out: &mut BytesMut, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varint_of_every_width_round_trips_and_overlong_is_refused() {
        for value in (0..64).map(|bit| 1_u64 << bit).chain([0, u64::MAX, 127, 128, 300]) {
            let mut out = BytesMut::new();
            put_varint(&mut out, value);
            let mut cursor = Cursor::new(out.freeze());
            assert_eq!(cursor.varint(), Ok(value));
            assert_eq!(cursor.finish(), Ok(()));
        }
        assert!(Cursor::new(Bytes::from_static(&[0xFF; 11])).varint().is_err());
        let too_big =
            Bytes::from_static(&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2]);
        assert!(Cursor::new(too_big).varint().is_err());
    }

    #[test]
    fn string_longer_than_input_is_refused_without_allocation() {
        let mut out = BytesMut::new();
        put_varint(&mut out, u64::MAX);
        assert!(Cursor::new(out.clone().freeze()).string().is_err());
        assert!(Cursor::new(out.freeze()).count(1).is_err());
    }
}
