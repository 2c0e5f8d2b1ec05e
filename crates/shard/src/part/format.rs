//! Bytes of a part object (`docs/reference/formats/shard.md`).
//!
//! ```text
//! header   "TPRT" | version 1 | 3 zero bytes | writer token (16)
//! block    payload length (4) | CRC-32C of payload (4) | payload        (repeated)
//! payload  key length (4) | value length (4; FFFFFFFF deletes) | flags (1; bit 0 fresh) | key | value (repeated)
//! index    block offset (8) | block length (4) | first key length (4) | first key         (repeated)
//! footer   index offset (8) | index length (4) | CRC-32C of index (4) | writes (8) |
//!          CRC-32C of the 24 footer bytes before (4) | version 1 | "PRT" (4 bytes together)
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};
use telesto_log::record::Write;

use crate::error::{Error, Result};

pub(crate) const VERSION: u8 = 1;
pub(crate) const HEADER_LEN: usize = 24;
pub(crate) const FOOTER_LEN: usize = 32;
pub(crate) const BLOCK_HEADER_LEN: usize = 8;
const DELETE: u32 = u32::MAX;
const FRESH: u8 = 1;

pub(crate) fn header(token: telesto_common::WriterToken) -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    out[..4].copy_from_slice(b"TPRT");
    out[4] = VERSION;
    out[8..].copy_from_slice(&token.to_bytes());
    out
}

pub(crate) fn encode_write(out: &mut BytesMut, write: &Write) {
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(DELETE);
    out.put_u32(length(write.key.len()));
    out.put_u32(write.value.as_ref().map_or(DELETE, |value| length(value.len())));
    out.put_u8(if write.fresh { FRESH } else { 0 });
    out.put_slice(&write.key);
    out.put_slice(write.value.as_deref().unwrap_or_default());
}

/// Bytes of a row before its key.
const ROW_HEADER_LEN: usize = 9;

/// How a row is laid out.
struct Layout {
    key_len: usize,
    value_len: Option<usize>,
    fresh: bool,
}

impl Layout {
    /// Of the row that `bytes` begin with; `None` when the bytes do not fit.
    fn of(bytes: &[u8]) -> Option<Self> {
        let mut head = bytes.get(..ROW_HEADER_LEN)?;
        let key_len = head.get_u32() as usize;
        let value_len = head.get_u32();
        let flags = head.get_u8();
        let value_len = (value_len != DELETE).then_some(value_len as usize);
        let layout = Self { key_len, value_len, fresh: flags & FRESH != 0 };
        (flags & !FRESH == 0 && layout.len()? <= bytes.len()).then_some(layout)
    }

    fn len(&self) -> Option<usize> {
        ROW_HEADER_LEN.checked_add(self.key_len)?.checked_add(self.value_len.unwrap_or(0))
    }
}

/// How long the row is that `bytes` begin with; `None` when they do not begin with one.
pub(crate) fn write_len(bytes: &[u8]) -> Option<usize> {
    Layout::of(bytes)?.len()
}

/// The key of the row that `bytes` begin with; empty when they do not begin with one.
pub(crate) fn write_key(bytes: &[u8]) -> &[u8] {
    let Some(layout) = Layout::of(bytes) else { return &[] };
    &bytes[ROW_HEADER_LEN..ROW_HEADER_LEN + layout.key_len]
}

/// The row that `bytes` are; `None` when they are no row.
pub(crate) fn decode_write(mut bytes: Bytes) -> Option<Write> {
    let layout = Layout::of(&bytes)?;
    let mut value = bytes.split_off(ROW_HEADER_LEN + layout.key_len);
    bytes.advance(ROW_HEADER_LEN);
    let value = layout.value_len.map(|len| value.split_to(len));
    Some(Write { key: bytes, value, fresh: layout.fresh })
}

/// Where a block lies and which keys it begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockRef {
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) first_key: Bytes,
}

pub(crate) fn encode_index(blocks: &[BlockRef]) -> Bytes {
    let mut out = BytesMut::new();
    for block in blocks {
        out.put_u64(block.offset);
        out.put_u32(block.len);
        out.put_u32(u32::try_from(block.first_key.len()).unwrap_or(u32::MAX));
        out.put_slice(&block.first_key);
    }
    out.freeze()
}

pub(crate) fn decode_index(object: &str, mut bytes: Bytes) -> Result<Vec<BlockRef>> {
    let mut blocks = Vec::new();
    while !bytes.is_empty() {
        if bytes.len() < 16 {
            return Err(corrupt(object, "its index is cut short"));
        }
        let offset = bytes.get_u64();
        let len = bytes.get_u32();
        let key_len = bytes.get_u32() as usize;
        if bytes.len() < key_len || (len as usize) < BLOCK_HEADER_LEN {
            return Err(corrupt(object, "its index is cut short"));
        }
        // Copied, so that the index does not keep the bytes it was read with.
        let first_key = Bytes::copy_from_slice(&bytes.split_to(key_len));
        blocks.push(BlockRef { offset, len, first_key });
    }
    Ok(blocks)
}

/// The fixed end of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) index_offset: u64,
    pub(crate) index_len: u32,
    pub(crate) index_crc: u32,
    pub(crate) writes: u64,
}

impl Footer {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(FOOTER_LEN);
        out.put_u64(self.index_offset);
        out.put_u32(self.index_len);
        out.put_u32(self.index_crc);
        out.put_u64(self.writes);
        let crc = crc32c::crc32c(&out);
        out.put_u32(crc);
        out.put_u8(VERSION);
        out.put_slice(b"PRT");
        out.freeze()
    }

    pub(crate) fn decode(object: &str, bytes: &[u8]) -> Result<Self> {
        let mut rest = bytes;
        if bytes.len() != FOOTER_LEN {
            return Err(corrupt(object, "it is too short"));
        }
        let crc = crc32c::crc32c(&bytes[..24]);
        let footer = Self {
            index_offset: rest.get_u64(),
            index_len: rest.get_u32(),
            index_crc: rest.get_u32(),
            writes: rest.get_u64(),
        };
        if rest.get_u32() != crc {
            return Err(corrupt(object, "its footer does not match its checksum"));
        }
        let version = rest.get_u8();
        if rest != b"PRT" {
            return Err(corrupt(object, "it does not end like a part object"));
        }
        if version != VERSION {
            return Err(Error::NewerFormat { object: object.to_owned(), version, known: VERSION });
        }
        Ok(footer)
    }
}

pub(crate) fn corrupt(object: &str, reason: &str) -> Error {
    Error::Corrupt { object: object.to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn writes_decode_to_what_was_encoded(key: Vec<u8>, value: Option<Vec<u8>>, fresh: bool) {
            let write = Write { key: key.into(), value: value.map(Bytes::from), fresh };
            let mut out = BytesMut::new();
            encode_write(&mut out, &write);
            let bytes = out.freeze();
            prop_assert_eq!(write_len(&bytes), Some(bytes.len()));
            prop_assert_eq!(write_key(&bytes), &write.key[..]);
            prop_assert_eq!(decode_write(bytes), Some(write));
        }

        #[test]
        fn arbitrary_bytes_never_panic_a_decoder(bytes: Vec<u8>) {
            let bytes = Bytes::from(bytes);
            let _ = (decode_write(bytes.clone()), decode_index("o", bytes.clone()));
            let _ = Footer::decode("o", &bytes);
        }

        #[test]
        fn footer_with_a_flipped_byte_is_refused(offset: u64, len: u32, crc: u32, writes: u64, at in 0..FOOTER_LEN, bit in 0..8) {
            let footer = Footer { index_offset: offset, index_len: len, index_crc: crc, writes };
            let mut bytes = footer.encode().to_vec();
            prop_assert_eq!(Footer::decode("o", &bytes).unwrap(), footer);
            bytes[at] ^= 1_u8 << bit;
            prop_assert!(Footer::decode("o", &bytes).is_err());
        }
    }
}
