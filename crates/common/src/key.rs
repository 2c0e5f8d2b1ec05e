//! Order-preserving ("memcomparable") key encoding.
//!
//! # Format
//! A key is a sequence of elements. Fixed prefix first: database id, table id, index id, each 4
//! bytes big endian ([`KeyWriter::prefix`]). Then one element a column:
//!
//! | element | bytes |
//! | --- | --- |
//! | null | `FF` (sorts after every value, as PostgreSQL's NULLS LAST) |
//! | bool | `01`, `00` or `01` |
//! | integers | `01`, big endian, sign bit flipped when signed |
//! | floats | `01`, IEEE bits big endian; negative numbers inverted, others sign bit flipped; `-0` as `+0`, all NaN as one that sorts last |
//! | bytes, text | `01`, each `00` as `00 FF`, end `00 01` |
//! | 16 raw bytes (uuid) | `01`, the bytes |
//!
//! A descending element is the ascending one with every bit inverted.
//!
//! # Invariants
//! - Order of bytes = order of tuples (each column in its direction).
//! - No complete key of an index is a proper prefix of another complete key of the same index: each
//!   element knows its end. The shard layer relies on it.
//! - `decode(encode(x)) = x`, except that `-0.0` comes back as `0.0`.

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::ids::{DatabaseId, TableId};

const VALUE: u8 = 0x01;
const NULL: u8 = 0xFF;
const ESCAPE: u8 = 0x00;
const ESCAPED_ZERO: u8 = 0xFF;
const END: u8 = 0x01;

/// Bytes of the fixed prefix: database, table, index.
pub const PREFIX_LEN: usize = 12;

/// Column direction inside a key.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
pub enum Direction {
    /// Smallest first.
    #[default]
    Ascending,
    /// Greatest first.
    Descending,
}

/// Builds one key.
#[derive(Clone, Debug, Default)]
pub struct KeyWriter {
    bytes: Vec<u8>,
}

impl KeyWriter {
    /// An empty key.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A key that starts with the fixed prefix. Index 0 is the primary key.
    #[must_use]
    pub fn prefix(database: DatabaseId, table: TableId, index: u32) -> Self {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&database.0.to_be_bytes());
        bytes.extend_from_slice(&table.0.to_be_bytes());
        bytes.extend_from_slice(&index.to_be_bytes());
        Self { bytes }
    }

    fn element(&mut self, direction: Direction, write: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        let start = self.bytes.len();
        write(&mut self.bytes);
        if direction == Direction::Descending {
            for byte in &mut self.bytes[start..] {
                *byte = !*byte;
            }
        }
        self
    }

    /// Appends NULL.
    pub fn null(&mut self, direction: Direction) -> &mut Self {
        self.element(direction, |out| out.push(NULL))
    }

    /// Appends a boolean.
    pub fn bool(&mut self, value: bool, direction: Direction) -> &mut Self {
        self.element(direction, |out| out.extend_from_slice(&[VALUE, u8::from(value)]))
    }

    /// Appends an unsigned 64-bit integer.
    pub fn u64(&mut self, value: u64, direction: Direction) -> &mut Self {
        self.element(direction, |out| {
            out.push(VALUE);
            out.extend_from_slice(&value.to_be_bytes());
        })
    }

    /// Appends a signed 16-bit integer.
    pub fn i16(&mut self, value: i16, direction: Direction) -> &mut Self {
        self.element(direction, |out| {
            out.push(VALUE);
            out.extend_from_slice(&(value as u16 ^ (1 << 15)).to_be_bytes());
        })
    }

    /// Appends a signed 32-bit integer.
    pub fn i32(&mut self, value: i32, direction: Direction) -> &mut Self {
        self.element(direction, |out| {
            out.push(VALUE);
            out.extend_from_slice(&(value as u32 ^ (1 << 31)).to_be_bytes());
        })
    }

    /// Appends a signed 64-bit integer.
    pub fn i64(&mut self, value: i64, direction: Direction) -> &mut Self {
        self.element(direction, |out| {
            out.push(VALUE);
            out.extend_from_slice(&(value as u64 ^ (1 << 63)).to_be_bytes());
        })
    }

    /// Appends a 32-bit float.
    pub fn f32(&mut self, value: f32, direction: Direction) -> &mut Self {
        let canonical = if value.is_nan() { f32::NAN.abs() } else { value + 0.0 };
        let bits = canonical.to_bits();
        let ordered = if bits >> 31 == 1 { !bits } else { bits ^ (1 << 31) };
        self.element(direction, |out| {
            out.push(VALUE);
            out.extend_from_slice(&ordered.to_be_bytes());
        })
    }

    /// Appends a 64-bit float.
    pub fn f64(&mut self, value: f64, direction: Direction) -> &mut Self {
        let canonical = if value.is_nan() { f64::NAN.abs() } else { value + 0.0 };
        let bits = canonical.to_bits();
        let ordered = if bits >> 63 == 1 { !bits } else { bits ^ (1 << 63) };
        self.element(direction, |out| {
            out.push(VALUE);
            out.extend_from_slice(&ordered.to_be_bytes());
        })
    }

    /// Appends bytes of any length.
    pub fn bytes(&mut self, value: &[u8], direction: Direction) -> &mut Self {
        self.element(direction, |out| {
            out.push(VALUE);
            for &byte in value {
                out.push(byte);
                if byte == ESCAPE {
                    out.push(ESCAPED_ZERO);
                }
            }
            out.extend_from_slice(&[ESCAPE, END]);
        })
    }

    /// Appends text, ordered by its UTF-8 bytes (collation "C").
    pub fn text(&mut self, value: &str, direction: Direction) -> &mut Self {
        self.bytes(value.as_bytes(), direction)
    }

    /// Appends exactly 16 bytes.
    pub fn raw16(&mut self, value: [u8; 16], direction: Direction) -> &mut Self {
        self.element(direction, |out| {
            out.push(VALUE);
            out.extend_from_slice(&value);
        })
    }

    /// Begins anew, keeping its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// The key so far.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// The finished key.
    #[must_use]
    pub fn finish(self) -> Bytes {
        Bytes::from(self.bytes)
    }
}

/// Takes a key apart. Every method names the direction the element was written with.
#[derive(Clone, Debug)]
pub struct KeyReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> KeyReader<'a> {
    /// Reads `bytes` from the start.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Reads the fixed prefix.
    ///
    /// # Errors
    /// [`Error::MalformedKey`] when the key is shorter than the prefix.
    pub fn prefix(&mut self) -> Result<(DatabaseId, TableId, u32)> {
        let mut word = || {
            let raw = self.take(4, Direction::Ascending)?;
            Ok(u32::from_be_bytes([raw[0], raw[1], raw[2], raw[3]]))
        };
        Ok((DatabaseId(word()?), TableId(word()?), word()?))
    }

    /// Whether everything has been read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// What has not been read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or(&[])
    }

    fn malformed(&self, reason: &'static str) -> Error {
        Error::MalformedKey { offset: self.at, reason }
    }

    fn take(&mut self, count: usize, direction: Direction) -> Result<Vec<u8>> {
        let end = self.at + count;
        let raw = self.bytes.get(self.at..end).ok_or_else(|| self.malformed("key ends early"))?;
        let out = match direction {
            Direction::Ascending => raw.to_vec(),
            Direction::Descending => raw.iter().map(|b| !b).collect(),
        };
        self.at = end;
        Ok(out)
    }

    /// Consumes a NULL if the next element is one.
    ///
    /// # Errors
    /// [`Error::MalformedKey`] when the next byte starts no element.
    pub fn take_null(&mut self, direction: Direction) -> Result<bool> {
        match self.take(1, direction)?[0] {
            NULL => Ok(true),
            VALUE => {
                self.at -= 1;
                Ok(false)
            }
            _ => {
                self.at -= 1;
                Err(self.malformed("unknown element tag"))
            }
        }
    }

    fn fixed<const N: usize>(&mut self, direction: Direction) -> Result<[u8; N]> {
        if self.take(1, direction)?[0] != VALUE {
            self.at -= 1;
            return Err(self.malformed("expected a value"));
        }
        let raw = self.take(N, direction)?;
        let mut out = [0; N];
        out.copy_from_slice(&raw);
        Ok(out)
    }

    /// Reads a boolean.
    ///
    /// # Errors
    /// [`Error::MalformedKey`] when the next element is not one.
    pub fn bool(&mut self, direction: Direction) -> Result<bool> {
        match self.fixed::<1>(direction)?[0] {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed("expected 0 or 1")),
        }
    }

    /// Reads an unsigned 64-bit integer.
    ///
    /// # Errors
    /// [`Error::MalformedKey`] when the next element is not one.
    pub fn u64(&mut self, direction: Direction) -> Result<u64> {
        Ok(u64::from_be_bytes(self.fixed(direction)?))
    }

    /// Reads a signed 16-bit integer.
    ///
    /// # Errors
    /// [`Error::MalformedKey`] when the next element is not one.
    pub fn i16(&mut self, direction: Direction) -> Result<i16> {
        Ok((u16::from_be_bytes(self.fixed(direction)?) ^ (1 << 15)) as i16)
    }

    /// Reads a signed 32-bit integer.
    ///
    /// # Errors
    /// [`Error::MalformedKey`] when the next element is not one.
    pub fn i32(&mut self, direction: Direction) -> Result<i32> {
        Ok((u32::from_be_bytes(self.fixed(direction)?) ^ (1 << 31)) as i32)
    }

    /// Reads a signed 64-bit integer.
    ///
    /// # Errors
    /// [`Error::MalformedKey`] when the next element is not one.
    pub fn i64(&mut self, direction: Direction) -> Result<i64> {
        Ok((u64::from_be_bytes(self.fixed(direction)?) ^ (1 << 63)) as i64)
    }

    /// Reads a 32-bit float.
    ///
    /// # Errors
    /// [`Error::MalformedKey`] when the next element is not one.
    pub fn f32(&mut self, direction: Direction) -> Result<f32> {
        let ordered = u32::from_be_bytes(self.fixed(direction)?);
        Ok(f32::from_bits(if ordered >> 31 == 1 { ordered ^ (1 << 31) } else { !ordered }))
    }

    /// Reads a 64-bit float.
    ///
    /// # Errors
    /// [`Error::MalformedKey`] when the next element is not one.
    pub fn f64(&mut self, direction: Direction) -> Result<f64> {
        let ordered = u64::from_be_bytes(self.fixed(direction)?);
        Ok(f64::from_bits(if ordered >> 63 == 1 { ordered ^ (1 << 63) } else { !ordered }))
    }

    /// Reads 16 raw bytes.
    ///
    /// # Errors
    /// [`Error::MalformedKey`] when the next element is not 16 bytes.
    pub fn raw16(&mut self, direction: Direction) -> Result<[u8; 16]> {
        self.fixed(direction)
    }

    /// Reads bytes of any length.
    ///
    /// # Errors
    /// [`Error::MalformedKey`] when the next element is not terminated.
    pub fn bytes(&mut self, direction: Direction) -> Result<Vec<u8>> {
        self.fixed::<0>(direction)?;
        let flip = if direction == Direction::Descending { 0xFF } else { 0 };
        let mut out = Vec::new();
        loop {
            let byte = self.next_flipped(flip)?;
            if byte != ESCAPE {
                out.push(byte);
                continue;
            }
            match self.next_flipped(flip)? {
                ESCAPED_ZERO => out.push(ESCAPE),
                END => return Ok(out),
                _ => return Err(self.malformed("unknown escape")),
            }
        }
    }

    fn next_flipped(&mut self, flip: u8) -> Result<u8> {
        let byte =
            *self.bytes.get(self.at).ok_or_else(|| self.malformed("bytes are not terminated"))?;
        self.at += 1;
        Ok(byte ^ flip)
    }

    /// Reads text.
    ///
    /// # Errors
    /// [`Error::MalformedKey`] when the element is not valid UTF-8 or not terminated.
    pub fn text(&mut self, direction: Direction) -> Result<String> {
        let start = self.at;
        String::from_utf8(self.bytes(direction)?)
            .map_err(|_| Error::MalformedKey { offset: start, reason: "text is not UTF-8" })
    }
}

/// A half-open range of keys: `start <= key < end`; an empty `end` means "to the last key".
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// First key inside.
    pub start: Bytes,
    /// First key after it; empty for no bound.
    pub end: Bytes,
}

impl KeyRange {
    /// Everything from `start` (inside) to `end` (outside).
    #[must_use]
    pub fn new(start: Bytes, end: Bytes) -> Self {
        Self { start, end }
    }

    /// Exactly one key.
    #[must_use]
    pub fn point(key: &[u8]) -> Self {
        let mut end = Vec::with_capacity(key.len() + 1);
        end.extend_from_slice(key);
        end.push(0);
        Self { start: Bytes::copy_from_slice(key), end: Bytes::from(end) }
    }

    /// All keys that start with `prefix`.
    #[must_use]
    pub fn with_prefix(prefix: &[u8]) -> Self {
        Self { start: Bytes::copy_from_slice(prefix), end: successor(prefix) }
    }

    /// Whether `key` lies inside.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= &self.start[..] && (self.end.is_empty() || key < &self.end[..])
    }

    /// Whether no key can lie inside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.end.is_empty() && self.start >= self.end
    }

    /// Whether some key can lie in both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        (other.end.is_empty() || self.start < other.end)
            && (self.end.is_empty() || other.start < self.end)
            && !self.is_empty()
            && !other.is_empty()
    }
}

/// The smallest byte string greater than every string that starts with `prefix`; empty when there
/// is none (`prefix` is all `FF`).
#[must_use]
pub fn successor(prefix: &[u8]) -> Bytes {
    let mut out = prefix.to_vec();
    while let Some(last) = out.pop() {
        if last < 0xFF {
            out.push(last + 1);
            break;
        }
    }
    Bytes::from(out)
}

#[cfg(test)]
mod tests {
    use super::Direction::{Ascending, Descending};
    use super::*;

    #[test]
    fn key_bytes_order_follows_tuple_order() {
        let texts = ["", "\0", "\0\0", "\0a", "a", "a\0", "ab", "b", "é"];
        for x in texts {
            for y in texts {
                for (a, b) in [(1_i64, 2_i64), (2, 1), (-1, 1), (i64::MIN, i64::MAX)] {
                    let mut left = KeyWriter::new();
                    left.text(x, Ascending).i64(a, Descending);
                    let mut right = KeyWriter::new();
                    right.text(y, Ascending).i64(b, Descending);
                    assert_eq!((x, b).cmp(&(y, a)), left.as_slice().cmp(right.as_slice()));
                }
            }
        }
    }

    #[test]
    fn floats_order_numerically_with_nan_last() {
        let values = [f64::NEG_INFINITY, -1.5, -0.0, 1e-300, 1.0, f64::INFINITY, f64::NAN];
        let keys: Vec<_> = values
            .iter()
            .map(|v| {
                let mut key = KeyWriter::new();
                key.f64(*v, Ascending);
                key.finish()
            })
            .collect();
        assert!(keys.windows(2).all(|w| w[0] < w[1]));
    }

    #[test]
    fn reader_returns_what_writer_wrote_in_both_directions() {
        for direction in [Ascending, Descending] {
            let mut key = KeyWriter::prefix(DatabaseId(1), TableId(2), 3);
            key.null(direction).bool(true, direction).i16(-7, direction).i32(9, direction);
            key.u64(8, direction).f32(-1.5, direction).f64(2.5, direction);
            key.bytes(b"a\0\xff", direction).text("zo\u{eb}", direction).raw16([7; 16], direction);
            let key = key.finish();
            let mut reader = KeyReader::new(&key);
            assert_eq!(reader.prefix(), Ok((DatabaseId(1), TableId(2), 3)));
            assert_eq!(reader.take_null(direction), Ok(true));
            assert_eq!(reader.take_null(direction), Ok(false));
            assert_eq!(reader.bool(direction), Ok(true));
            assert_eq!(reader.i16(direction), Ok(-7));
            assert_eq!(reader.i32(direction), Ok(9));
            assert_eq!(reader.u64(direction), Ok(8));
            assert_eq!(reader.f32(direction), Ok(-1.5));
            assert_eq!(reader.f64(direction), Ok(2.5));
            assert_eq!(reader.bytes(direction), Ok(b"a\0\xff".to_vec()));
            assert_eq!(reader.text(direction), Ok("zo\u{eb}".to_owned()));
            assert_eq!(reader.raw16(direction), Ok([7; 16]));
            assert!(reader.is_empty());
            for cut in PREFIX_LEN..key.len() {
                let mut reader = KeyReader::new(&key[..cut]);
                reader.prefix().expect("prefix is whole");
                let result = (|| -> Result<()> {
                    reader.take_null(direction)?;
                    reader.bool(direction)?;
                    reader.i16(direction)?;
                    reader.i32(direction)?;
                    reader.u64(direction)?;
                    reader.f32(direction)?;
                    reader.f64(direction)?;
                    reader.bytes(direction)?;
                    reader.text(direction)?;
                    reader.raw16(direction)?;
                    Ok(())
                })();
                assert!(result.is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn successor_skips_everything_with_the_prefix() {
        assert_eq!(&successor(b"a\xff\xff")[..], b"b");
        assert!(successor(b"\xff\xff").is_empty());
        let range = KeyRange::with_prefix(b"ab");
        assert!(range.contains(b"ab") && range.contains(b"ab\xff\xff") && !range.contains(b"ac"));
        assert!(KeyRange::point(b"k").contains(b"k") && !KeyRange::point(b"k").contains(b"k\0"));
    }
}
