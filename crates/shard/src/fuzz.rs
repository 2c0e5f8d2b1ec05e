//! What the fuzz targets call: every decoder of the shard's stored bytes, and what must hold of it.
//!
//! # Invariants
//! For any bytes at all: no panic; memory within a small multiple of the input; what decodes is
//! encoded to the same bytes.
//!
//! # On failure
//! A function here panics: that is the finding.
//!
//! # Limits
//! Blocks, indexes and manifests of SlateDB are SlateDB's; `tests/shard/damage.rs` flips their
//! bytes.

use bytes::{Bytes, BytesMut};

use crate::part::format::{self, BLOCK_HEADER_LEN, FOOTER_LEN, Footer, HEADER_LEN};
use crate::row;

/// A stored row of each kind, and a stored key.
pub fn rows(bytes: &[u8]) {
    let stored = Bytes::copy_from_slice(bytes);
    if let Ok(version) = row::decode_newest("row", &stored) {
        // A delete mark has no value; bytes behind one are passed over.
        let again = row::encode_newest(&version);
        assert_eq!(row::decode_newest("row", &again).ok(), Some(version));
    }
    if let Ok(history) = row::decode_history("row", &stored) {
        let again = row::encode_history(
            history.superseded,
            history.txn,
            history.origin.as_deref(),
            &history.value,
        );
        assert_eq!(again, stored);
    }
    if let Ok(at) = row::decode_outcome("row", &stored) {
        assert_eq!(row::encode_outcome(at), stored);
    }
    if let Ok(meta) = row::decode_meta("row", &stored) {
        assert_eq!(row::encode_meta(&meta), stored);
    }
    let _ = row::RowKind::of(bytes);
    if let Some((key, at)) = row::split_history_key(bytes) {
        assert_eq!(row::history_key(key, at), stored);
    }
}

/// Pieces of a part object: the payload of a block, an index, a footer.
pub fn part_pieces(bytes: &[u8]) {
    let stored = Bytes::copy_from_slice(bytes);
    let (mut read, mut again) = (0, BytesMut::new());
    while let Some(len) = format::write_len(&stored[read..]) {
        let write = format::decode_write(stored.slice(read..read + len));
        assert_eq!(
            write.as_ref().map(|write| &write.key[..]),
            Some(format::write_key(&stored[read..]))
        );
        write.iter().for_each(|write| format::encode_write(&mut again, write));
        read += len;
    }
    assert_eq!(again, stored[..read], "one form only");
    if let Ok(blocks) = format::decode_index("part", stored.clone()) {
        assert_eq!(format::encode_index(&blocks), stored);
    }
    if let Ok(footer) = Footer::decode("part", bytes) {
        assert_eq!(footer.encode(), stored);
    }
}

/// The bytes as a part object whose checksums are good, as far as its own offsets lead to them.
#[must_use]
pub fn sealed_part(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    let Some(footer_at) = out.len().checked_sub(FOOTER_LEN) else { return out };
    let word = |out: &[u8], at: usize, count: usize| {
        out[at..at + count].iter().fold(0_u64, |n, b| n << 8 | u64::from(*b))
    };
    let index_at = word(&out, footer_at, 8).min(footer_at as u64) as usize;
    let index = Bytes::copy_from_slice(&out[index_at..footer_at]);
    for block in format::decode_index("part", index.clone()).unwrap_or_default() {
        let at = block.offset.min(out.len() as u64) as usize;
        let end = at.saturating_add(block.len as usize).min(footer_at);
        if end >= at + BLOCK_HEADER_LEN && at >= HEADER_LEN {
            let payload = (end - at - BLOCK_HEADER_LEN) as u32;
            let checksum = crc32c::crc32c(&out[at + BLOCK_HEADER_LEN..end]);
            out[at..at + 4].copy_from_slice(&payload.to_be_bytes());
            out[at + 4..at + 8].copy_from_slice(&checksum.to_be_bytes());
        }
    }
    let index = crc32c::crc32c(&out[index_at..footer_at]);
    out[footer_at + 12..footer_at + 16].copy_from_slice(&index.to_be_bytes());
    let footer = crc32c::crc32c(&out[footer_at..footer_at + 24]);
    out[footer_at + 24..footer_at + 28].copy_from_slice(&footer.to_be_bytes());
    out
}

/// Inputs to start from, by the name of the function here.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    use telesto_common::{Lsn, Timestamp, TxnId};
    use telesto_log::record::Write;
    let value = Some(Bytes::from_static(b"value"));
    let version =
        crate::Version { at: Timestamp(7), txn: TxnId(8), origin: None, value: value.clone() };
    let meta = row::Meta { lsn: Lsn(1), applied: Timestamp(2), watermark: Timestamp(3) };
    let mut payload = BytesMut::new();
    for (key, value) in [(b"key-1", value), (b"key-2", None)] {
        let write = Write { key: Bytes::from_static(key), value, fresh: true };
        format::encode_write(&mut payload, &write);
    }
    let block = format::BlockRef { offset: 24, len: 60, first_key: Bytes::from_static(b"key-1") };
    let footer = Footer { index_offset: 90, index_len: 30, index_crc: 1, writes: 2 };
    vec![
        ("rows", row::encode_newest(&version).to_vec()),
        ("rows", row::encode_newest(&crate::Version { value: None, ..version }).to_vec()),
        ("rows", row::encode_history(Timestamp(9), TxnId(8), None, b"value").to_vec()),
        ("rows", row::encode_outcome(Timestamp(9)).to_vec()),
        ("rows", row::encode_meta(&meta).to_vec()),
        ("rows", row::history_key(b"key", Timestamp(9)).to_vec()),
        ("part_pieces", payload.to_vec()),
        ("part_pieces", format::encode_index(&[block.clone(), block]).to_vec()),
        ("part_pieces", footer.encode().to_vec()),
    ]
}
