//! What the fuzz targets call: every decoder of the log's stored bytes, and what must hold of it.
//!
//! # Invariants
//! For any bytes at all: no panic; memory within a small multiple of the input; what decodes is
//! encoded to bytes that decode to the same. Checksums would turn nearly all inputs away, so each
//! input is also tried with its envelope made good.
//!
//! # On failure
//! A function here panics: that is the finding.

use bytes::Bytes;
use telesto_common::{Lsn, ShardId, WriterToken};

use crate::chain::Chain;
use crate::codec::{self, HEADER_BYTES, Place, checksum_without};
use crate::server::{sector, segment};
use crate::{archive, keys};

/// The same bytes with mark, length and checksum of an envelope made good.
fn sealed(magic: [u8; 4], bytes: &[u8]) -> Bytes {
    let mut out = bytes.to_vec();
    if out.len() >= 16 {
        out[..4].copy_from_slice(&magic);
        let length = (out.len() - 16) as u32;
        out[12..16].copy_from_slice(&length.to_le_bytes());
        let checksum = checksum_without(&out, 8);
        out[8..12].copy_from_slice(&checksum.to_le_bytes());
    }
    Bytes::from(out)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |raw| raw.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
}

/// A log entry.
pub fn entry(bytes: &[u8]) {
    let place = Place {
        shard: ShardId(word(bytes, 16)),
        loglet: word(bytes, 24),
        lsn: Lsn(word(bytes, 32)),
    };
    for bytes in [Bytes::copy_from_slice(bytes), sealed(codec::MAGIC, bytes)] {
        if bytes.len() < HEADER_BYTES {
            assert!(codec::decode("entry", place, &bytes).is_err(), "an entry without a header");
            continue;
        }
        let Ok(entry) = codec::decode("entry", place, &bytes) else { continue };
        let (again, hash) = codec::encode(place, entry.writer, entry.previous_hash, &entry.records)
            .expect("an entry that was read can be written");
        let back = codec::decode("entry", place, &again).expect("what was written can be read");
        assert_eq!(back.records, entry.records);
        assert_eq!(
            (back.hash, back.writer, back.previous_hash),
            (hash, entry.writer, entry.previous_hash)
        );
    }
}

/// An archive object.
pub fn archived(bytes: &[u8]) {
    let (shard, loglet, first) = (ShardId(word(bytes, 16)), word(bytes, 24), Lsn(word(bytes, 32)));
    let count = word(bytes, 40) & u64::from(u32::MAX);
    let last = Lsn(first.0.wrapping_add(count).saturating_sub(1));
    let key = keys::archive(shard, loglet, first, last);
    for bytes in [Bytes::copy_from_slice(bytes), sealed(archive::MAGIC, bytes)] {
        let Ok((found, entries)) = archive::decode(shard, &key, &bytes) else { continue };
        assert_eq!((found, entries.len() as u64), (first, count));
        let again = archive::encode(shard, loglet, first, WriterToken(1), &entries);
        assert_eq!(archive::decode(shard, &key, &again).ok(), Some((found, entries)));
    }
}

/// A chain version, of shard 7, version 3.
pub fn chain(bytes: &[u8]) {
    for bytes in [Bytes::copy_from_slice(bytes), sealed(crate::chain::MAGIC, bytes)] {
        let Ok(chain) = Chain::decode(ShardId(7), 3, &bytes) else { continue };
        let _ = (
            chain.active(),
            chain.retention(),
            chain.loglet_at(Lsn(1)),
            chain.loglet_at(Lsn(u64::MAX)),
        );
        let again = chain.encode();
        assert_eq!(Chain::decode(ShardId(7), 3, &again).ok(), Some(chain));
    }
}

/// A file of a log server, read sector by sector; and the same bytes as the payload of a batch.
pub fn sectors(bytes: &[u8]) {
    let mut good = bytes.to_vec();
    for (number, sector) in good.chunks_exact_mut(sector::SECTOR).enumerate() {
        sector[8..16].copy_from_slice(&(number as u64).to_le_bytes());
        let end = sector::SECTOR - sector::TRAILER.len();
        sector[end..].copy_from_slice(&sector::TRAILER);
        let checksum = crc32c::crc32c(&sector[4..]);
        sector[..4].copy_from_slice(&checksum.to_le_bytes());
    }
    for file in [bytes, &good] {
        let mut at = 0;
        while let Ok(sector::Next::Batch(batch)) = sector::next_batch(file, at) {
            assert!(batch.sectors > 0, "a batch of nothing");
            at += batch.sectors;
            entries(&batch.payload);
        }
    }
    let payload = Bytes::copy_from_slice(bytes);
    entries(&payload);
    let file = sector::encode_batch(0, 0, bytes);
    match sector::next_batch(&file, 0) {
        Ok(sector::Next::Batch(batch)) => assert_eq!(batch.payload, payload),
        other => panic!("a batch does not come back: {other:?}"),
    }
}

fn entries(payload: &Bytes) {
    if let Ok((first, entries)) = segment::entries_of(payload) {
        assert_eq!(segment::entries_payload(first, &entries), payload, "one form only");
    }
}

/// Inputs to start from: one of each kind that decodes, by the name of the function here.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    use crate::chain::{Loglet, Medium, Owner, ServerInfo, TrimPoint};
    use crate::record::{Commit, Config, Record, Write, Writes};
    use telesto_common::{Incarnation, Label, NodeId, RegionId, Timestamp, TxnId};
    let write = |key, value| Write { key: Bytes::from_static(key), value, fresh: false };
    let commit = Record::Commit(Commit {
        shard: ShardId(7),
        txn: TxnId(1),
        timestamp: Timestamp(2),
        source: NodeId(3),
        origin: Label::update(RegionId(4), Timestamp(5)),
        writes: Writes::Inline(vec![
            write(b"a", Some(Bytes::from_static(b"xy"))),
            write(b"b", None),
        ]),
    });
    let seal =
        Record::Config(Config::Seal { next_version: 3, next_chain: Bytes::from_static(b"c") });
    let advanced =
        Record::Config(Config::CheckpointAdvanced { shard: ShardId(7), lsn: Lsn(8), version: 3 });
    let place = Place { shard: ShardId(7), loglet: 2, lsn: Lsn(9) };
    let mut out = Vec::new();
    let mut all = Vec::new();
    for records in [vec![], vec![commit.clone()], vec![commit, seal, advanced]] {
        if let Ok((bytes, _)) = codec::encode(place, WriterToken(1), [2; 16], &records) {
            out.push(("entry", bytes.to_vec()));
            all.push(bytes);
        }
    }
    out.push(("archived", archive::encode(ShardId(7), 2, Lsn(9), WriterToken(1), &all).to_vec()));
    let loglet = |id, start, medium| Loglet { id, start: Lsn(start), start_hash: [1; 16], medium };
    let node = NodeId(9);
    let text = |text: &str| text.to_owned();
    let owner = Owner {
        node,
        incarnation: Incarnation(1),
        host: text("host"),
        pid: 5,
        address: text("h:1"),
        directory: text("/d"),
    };
    let servers = vec![ServerInfo {
        node,
        address: String::new(),
        incarnation: telesto_common::Incarnation(0),
    }];
    let quorum = Medium::Quorum { owner, servers, token: WriterToken(4) };
    let chain = Chain {
        shard: ShardId(7),
        version: 3,
        writer: WriterToken(2),
        previous: [1; 16],
        retention_micros: 5,
        trim: TrimPoint { lsn: Lsn(1), previous_hash: [0; 16] },
        loglets: vec![loglet(1, 1, Medium::Bucket), loglet(2, 9, quorum)],
    };
    out.push(("chain", chain.encode().to_vec()));
    let payload = segment::entries_payload(Lsn(9), &all);
    let mut file = sector::encode_batch(0, sector::HEADER, b"header").to_vec();
    file.extend_from_slice(&sector::encode_batch(1, 0, &payload));
    out.push(("sectors", file));
    out.push(("sectors", payload.to_vec()));
    out
}
