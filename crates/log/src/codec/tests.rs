//! Golden bytes, round trips, and every flipped byte.

use bytes::Bytes;
use proptest::prelude::*;
use telesto_common::{
    Incarnation, Label, LabelKind, Lsn, NodeId, RegionId, ShardId, Timestamp, TxnId, WriterToken,
};

use super::*;
use crate::record::{Commit, Config, Decide, Messages, Part, Prepare, Write, Writes};

const PLACE: Place = Place { shard: ShardId(7), loglet: 2, lsn: Lsn(9) };

fn commit() -> Record {
    Record::Commit(Commit {
        shard: ShardId(300),
        txn: TxnId(1),
        timestamp: Timestamp(2),
        source: NodeId(3),
        origin: Label::update(RegionId(4), Timestamp(5)),
        writes: Writes::Inline(vec![
            Write {
                key: Bytes::from_static(b"a"),
                value: Some(Bytes::from_static(b"xy")),
                fresh: true,
            },
            Write { key: Bytes::from_static(b"b"), value: None, fresh: false },
        ]),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn entry_encoding_is_the_documented_bytes() {
    let advanced = Config::CheckpointAdvanced { shard: ShardId(7), lsn: Lsn(8), version: 3 };
    let records = [commit(), Record::Config(advanced)];
    let (bytes, hash) = encode(PLACE, WriterToken(0xAB), [0xCD; 16], &records).unwrap();
    let expected = concat!(
        "544c5345",
        "0200",
        "0000",
        "ce90151d",
        "91000000", // magic, version, flags, crc, length
        "0700000000000000",
        "0200000000000000",
        "0900000000000000", // shard, loglet, lsn
        "000000000000000000000000000000ab",
        "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd", // writer, previous
        "02",                               // two records
        "01",
        "ac02", // commit: shard
        "01000000000000000000000000000000",
        "0200000000000000",                 // txn, timestamp
        "03000000000000000000000000000000", // source
        "00",
        "0400",
        "0500000000000000",
        "00000000", // origin
        "00",
        "02",
        "03",
        "0161",
        "027879",
        "00",
        "0162", // inline: a=xy fresh, delete b
        "05",
        "01",
        "07",
        "0800000000000000",
        "0300000000000000", // checkpoint advanced
    );
    assert_eq!(hex(&bytes), expected);
    assert_eq!(hash, hash16(&bytes));
    let entry = decode("slot", PLACE, &bytes).unwrap();
    assert_eq!(entry.records, records);
    assert_eq!(
        (entry.writer, entry.previous_hash, entry.hash),
        (WriterToken(0xAB), [0xCD; 16], hash)
    );
}

/// Logs written before records named their shard are read on.
#[test]
fn entry_of_version_one_has_records_of_its_own_shard() {
    let Record::Commit(mut own) = commit() else { unreachable!("a commit") };
    own.shard = PLACE.shard;
    let (bytes, _) =
        encode(PLACE, WriterToken(1), [2; 16], &[Record::Commit(own.clone())]).unwrap();
    let mut old = bytes.to_vec();
    old[4] = 1;
    // Its one-byte shard, behind the record's kind.
    old.remove(HEADER_BYTES + 2);
    let length = (old.len() - 16) as u32;
    old[12..16].copy_from_slice(&length.to_le_bytes());
    let checksum = checksum_without(&old, 8);
    old[8..12].copy_from_slice(&checksum.to_le_bytes());
    let entry = decode("slot", PLACE, &old.into()).unwrap();
    assert_eq!(entry.records, [Record::Commit(own)]);
    assert_eq!(entry.records_of(PLACE.shard).count(), 1);
    assert_eq!(entry.records_of(ShardId(8)).count(), 0);
}

#[test]
fn entry_with_any_byte_changed_is_refused_naming_the_object() {
    let (bytes, _) = encode(PLACE, WriterToken(1), [2; 16], &[commit()]).unwrap();
    for position in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.to_vec();
            damaged[position] ^= 1 << bit;
            let error = decode("shards/7/log/x", PLACE, &damaged.into()).unwrap_err();
            assert!(matches!(error, Error::Corrupt { .. }), "byte {position} bit {bit}: {error}");
            let text = error.to_string();
            assert!(text.contains("shards/7/log/x") && text.contains("telesto log inspect"));
        }
    }
    for end in 0..bytes.len() {
        assert!(decode("x", PLACE, &bytes.slice(..end)).is_err(), "cut at {end}");
    }
}

#[test]
fn entry_at_another_place_is_refused() {
    let (bytes, _) = encode(PLACE, WriterToken(1), [2; 16], &[]).unwrap();
    for place in [
        Place { lsn: Lsn(10), ..PLACE },
        Place { loglet: 3, ..PLACE },
        Place { shard: ShardId(8), ..PLACE },
    ] {
        assert!(matches!(decode("x", place, &bytes), Err(Error::Corrupt { .. })));
    }
}

#[test]
fn entry_of_a_newer_version_with_good_checksum_is_too_new() {
    let (bytes, _) = encode(PLACE, WriterToken(1), [2; 16], &[]).unwrap();
    let mut newer = bytes.to_vec();
    newer[4] = 3;
    let checksum = checksum_without(&newer, 8);
    newer[8..12].copy_from_slice(&checksum.to_le_bytes());
    let error = decode("x", PLACE, &newer.into()).unwrap_err();
    assert!(matches!(error, Error::TooNew { found: 3, supported: 2, .. }), "{error}");
}

/// The entry with the bytes from `at` on replaced, its length and checksum made good.
fn forged(at: usize, with: &[u8]) -> Bytes {
    let (whole, _) = encode(PLACE, WriterToken(1), [2; 16], &[commit()]).unwrap();
    let mut bytes = whole[..at].to_vec();
    bytes.extend_from_slice(with);
    bytes.extend_from_slice(whole.get(at + with.len()..).unwrap_or_default());
    let length = (bytes.len() - 16) as u32;
    bytes[12..16].copy_from_slice(&length.to_le_bytes());
    let checksum = checksum_without(&bytes, 8);
    bytes[8..12].copy_from_slice(&checksum.to_le_bytes());
    bytes.into()
}

#[test]
fn anything_unknown_under_a_good_checksum_is_too_new_and_says_what() {
    let record = HEADER_BYTES + 1;
    let origin = record + 3 + 16 + 8 + 16;
    let writes = origin + 15;
    for (at, with, what) in [
        (6, &[1_u8][..], "flags 1"),
        (record, &[9], "a record of kind 9"),
        (record, &[0], "a record of kind 0"),
        (record, &[5, 77], "a configuration record of kind 77"),
        (record, &[&[3; 18][..], &[2], &[0; 8]].concat(), "a decision of kind 2"),
        (origin, &[3], "a label of kind 3"),
        (writes, &[2], "a write set of kind 2"),
        (writes + 2, &[4], "a write with flags 4"),
    ] {
        let error = decode("slot", PLACE, &forged(at, with)).unwrap_err();
        assert!(matches!(error, Error::TooNew { .. }), "{what}: {error}");
        let text = error.to_string();
        assert!(text.contains(what) && text.contains("upgrade Telesto"), "{what}: {text}");
    }
    // What is cut short or too long was written by nobody.
    let (whole, _) = encode(PLACE, WriterToken(1), [2; 16], &[commit()]).unwrap();
    let error = decode("slot", PLACE, &forged(whole.len(), &[0])).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
}

#[test]
fn entry_past_the_limit_is_refused() {
    let value = Bytes::from(vec![0; MAX_ENTRY_BYTES]);
    let write = Write { key: Bytes::from_static(b"k"), value: Some(value), fresh: false };
    let Record::Commit(mut commit) = commit() else { unreachable!() };
    commit.writes = Writes::Inline(vec![write]);
    let result = encode(PLACE, WriterToken(1), [0; 16], &[Record::Commit(commit)]);
    assert!(matches!(result, Err(Error::TooLarge { .. })));
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..200).prop_map(Bytes::from)
}

fn writes() -> impl Strategy<Value = Writes> {
    let write = (bytes(), prop::option::of(bytes()), any::<bool>())
        .prop_map(|(key, value, fresh)| Write { key, value, fresh });
    let part = ("[ -~]{0,40}", bytes(), bytes(), any::<u64>(), any::<u64>(), any::<u32>())
        .prop_map(|(object, first_key, last_key, writes, size_bytes, checksum)| Part {
            object,
            first_key,
            last_key,
            writes,
            size_bytes,
            checksum,
        });
    prop_oneof![
        prop::collection::vec(write, 0..20).prop_map(Writes::Inline),
        prop::collection::vec(part, 0..5).prop_map(Writes::External),
    ]
}

fn label() -> impl Strategy<Value = Label> {
    let kind = prop_oneof![
        Just(LabelKind::Update),
        Just(LabelKind::Migration),
        Just(LabelKind::EpochChange)
    ];
    (kind, any::<u16>(), any::<u64>(), any::<u32>()).prop_map(|(kind, source, at, target)| Label {
        kind,
        source: RegionId(source),
        timestamp: Timestamp(at),
        target,
    })
}

fn record() -> impl Strategy<Value = Record> {
    let commit = || {
        (any::<u64>(), any::<u128>(), any::<u64>(), any::<u128>(), label(), writes()).prop_map(
            |(shard, txn, at, source, origin, writes)| Commit {
                shard: ShardId(shard),
                txn: TxnId(txn),
                timestamp: Timestamp(at),
                source: NodeId(source),
                origin,
                writes,
            },
        )
    };
    prop_oneof![
        commit().prop_map(Record::Commit),
        commit().prop_map(Record::RemoteCommit),
        (any::<u128>(), any::<u64>(), any::<u64>(), writes()).prop_map(
            |(txn, home, by, writes)| {
                Record::Prepare(Prepare {
                    shard: ShardId(home / 2),
                    txn: TxnId(txn),
                    home_shard: home,
                    deadline: Timestamp(by),
                    writes,
                })
            }
        ),
        (any::<u128>(), prop::option::of(any::<u64>())).prop_map(|(txn, at)| {
            Record::Decide(Decide {
                shard: ShardId(3),
                txn: TxnId(txn),
                timestamp: at.map(Timestamp),
            })
        }),
        (any::<u128>(), prop::collection::vec(bytes(), 0..5)).prop_map(|(txn, bodies)| {
            Record::Messages(Messages { shard: ShardId(4), txn: TxnId(txn), bodies })
        }),
        (any::<u64>(), bytes()).prop_map(|(next_version, next_chain)| {
            Record::Config(Config::Seal { next_version, next_chain })
        }),
        (any::<u128>(), any::<u64>()).prop_map(|(node, life)| {
            Record::Config(Config::NodeJoined {
                node: NodeId(node),
                incarnation: Incarnation(life),
            })
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn entries_of_any_records_round_trip(
        records in prop::collection::vec(record(), 0..8),
        writer in any::<u128>(),
        previous in any::<[u8; 16]>(),
    ) {
        let (bytes, hash) = encode(PLACE, WriterToken(writer), previous, &records).unwrap();
        let entry = decode("x", PLACE, &bytes).unwrap();
        prop_assert_eq!(entry.records, records);
        prop_assert_eq!(entry.hash, hash);
        prop_assert_eq!(entry.previous_hash, previous);
        prop_assert_eq!(entry.writer, WriterToken(writer));
    }

    #[test]
    fn garbage_with_a_good_checksum_never_panics(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let (whole, _) = encode(PLACE, WriterToken(1), [0; 16], &[]).unwrap();
        let mut forged = whole[..HEADER_BYTES].to_vec();
        forged.extend_from_slice(&body);
        let length = (forged.len() - 16) as u32;
        forged[12..16].copy_from_slice(&length.to_le_bytes());
        let checksum = checksum_without(&forged, 8);
        forged[8..12].copy_from_slice(&checksum.to_le_bytes());
        let _ = decode("x", PLACE, &forged.into());
    }
}
