//! Commits on their way to the node that sequences the log, and its answers, as bytes (postcard).
//!
//! # Invariants
//! - Both ends speak one version, agreed on when they met (`telesto_net`); fields are only added
//!   together with a new one, or behind everything else, where who does not know them reads over
//!   them, and who misses them goes on without.
//! - Time-outs travel, deadlines do not: each side measures with its own clock.
//!
//! # On failure
//! Bytes that do not fit are refused as [`Error::Unavailable`]; nothing was done then.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use telesto_common::key::KeyRange;
use telesto_common::{Label, Lsn, ShardId, Timestamp, TxnId};
use telesto_log::record::{Part, Write};
use telesto_shard::Change;

use crate::additions::Addition;
use crate::api::{Cost, Durability};
use crate::error::{Error, Result};
use crate::read_set::{ReadRange, Reads};
use crate::service::{CheckedWrite, CommitReply, CommitRequest, CommitWrites, RemoteWrites};

#[derive(Serialize, Deserialize)]
struct WireWrite {
    key: Bytes,
    value: Option<Bytes>,
    fresh: bool,
    since: Timestamp,
}

#[derive(Serialize, Deserialize)]
struct WirePart {
    object: String,
    first_key: Bytes,
    last_key: Bytes,
    writes: u64,
    size_bytes: u64,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
enum WireWrites {
    Inline(Vec<WireWrite>),
    External {
        parts: Vec<WirePart>,
        since: Timestamp,
    },
    Applied {
        own: Vec<WireWrite>,
        remote: Vec<WireRemote>,
    },
    Adding {
        own: Vec<WireWrite>,
        additions: Vec<(Bytes, Timestamp, Vec<Bytes>)>,
    },
    /// As `Applied`, with the parts of each of `remote`. Who does not know it refuses it, and
    /// nothing is done.
    InParts {
        own: Vec<WireWrite>,
        remote: Vec<(WireRemote, Vec<WirePart>)>,
    },
}

/// A transaction that another region committed first.
#[derive(Serialize, Deserialize)]
struct WireRemote {
    txn: TxnId,
    origin: Label,
    writes: Vec<WireWrite>,
}

/// A commit request, and whether it was sent before without an answer.
#[derive(Serialize, Deserialize)]
struct WireCommit {
    shard: ShardId,
    txn: TxnId,
    points: Vec<(Bytes, Timestamp)>,
    ranges: Vec<(Bytes, Bytes, Timestamp)>,
    writes: WireWrites,
    messages: Vec<Bytes>,
    after: Timestamp,
    origin: Option<Label>,
    /// Whether it is to be in the bucket; `None`: as the log's owner does by itself.
    in_bucket: Option<bool>,
    timeout_micros: u64,
    again: bool,
}

/// What the owner says.
#[derive(Serialize, Deserialize)]
enum WireAnswer {
    Committed {
        timestamp: Timestamp,
        lsn: Lsn,
        cost: [f64; 7],
    },
    Recheck {
        key: Bytes,
        at: Timestamp,
        txn: TxnId,
    },
    Conflict {
        other: TxnId,
        at: Timestamp,
        key: Bytes,
    },
    OutcomeUnknown {
        reason: String,
    },
    /// It does not sequence the log, or does not any more; nothing was done.
    NotOwner {
        owner: String,
    },
    ShuttingDown,
    OutOfMemory {
        reason: String,
    },
    Corrupt {
        reason: String,
    },
    LocalDisk {
        reason: String,
    },
    /// Nothing was changed.
    Unavailable {
        reason: String,
    },
    NotAdded {
        key: Bytes,
        reason: String,
    },
}

/// What a node says of a message that it does not know.
const UNREADABLE: &str = "a message between nodes cannot be read";

fn malformed(error: &postcard::Error) -> Error {
    Error::Unavailable(format!(
        "{UNREADABLE} ({error}); nothing was committed: run one version on all nodes"
    ))
}

fn pack<T: Serialize>(value: &T) -> Result<Bytes> {
    Ok(postcard::to_stdvec(value).map_err(|error| malformed(&error))?.into())
}

fn unpack<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|error| malformed(&error))
}

fn sent(writes: &[CheckedWrite]) -> Vec<WireWrite> {
    let each = writes.iter().map(|CheckedWrite { write, since }| WireWrite {
        key: write.key.clone(),
        value: write.value.clone(),
        fresh: write.fresh,
        since: *since,
    });
    each.collect()
}

fn come(writes: Vec<WireWrite>) -> Vec<CheckedWrite> {
    let each = writes.into_iter().map(|WireWrite { key, value, fresh, since }| CheckedWrite {
        write: Write { key, value, fresh },
        since,
    });
    each.collect()
}

fn sent_parts(parts: &[Part]) -> Vec<WirePart> {
    let each = parts.iter().cloned().map(
        |Part { object, first_key, last_key, writes, size_bytes, checksum }| WirePart {
            object,
            first_key,
            last_key,
            writes,
            size_bytes,
            checksum,
        },
    );
    each.collect()
}

fn come_parts(parts: Vec<WirePart>) -> Vec<Part> {
    let each = parts.into_iter().map(
        |WirePart { object, first_key, last_key, writes, size_bytes, checksum }| Part {
            object,
            first_key,
            last_key,
            writes,
            size_bytes,
            checksum,
        },
    );
    each.collect()
}

fn come_remote(remote: WireRemote, parts: Vec<WirePart>) -> RemoteWrites {
    let WireRemote { txn, origin, writes } = remote;
    RemoteWrites { txn, origin, writes: come(writes), parts: come_parts(parts) }
}

/// The bytes of a commit request; `again`: it was sent before, and the answer was lost.
pub(crate) fn encode_commit(
    request: &CommitRequest,
    again: bool,
    timeout: Duration,
) -> Result<Bytes> {
    let writes = match &request.writes {
        CommitWrites::Inline(writes) => WireWrites::Inline(sent(writes)),
        writes @ CommitWrites::Applied { own, remote } => {
            let wire = |RemoteWrites { txn, origin, writes, .. }: &RemoteWrites| WireRemote {
                txn: *txn,
                origin: *origin,
                writes: sent(writes),
            };
            let own = sent(own);
            match writes.names_parts() {
                false => WireWrites::Applied { own, remote: remote.iter().map(wire).collect() },
                true => {
                    let with_parts = |one| (wire(one), sent_parts(&one.parts));
                    WireWrites::InParts { own, remote: remote.iter().map(with_parts).collect() }
                }
            }
        }
        CommitWrites::Adding { own, additions } => WireWrites::Adding {
            own: sent(own),
            additions: additions
                .iter()
                .cloned()
                .map(|Addition { key, since, steps }| (key, since, steps))
                .collect(),
        },
        CommitWrites::External { parts, since } => {
            WireWrites::External { since: *since, parts: sent_parts(parts) }
        }
    };
    let ranges = request.reads.ranges.iter();
    pack(&WireCommit {
        shard: request.shard,
        txn: request.txn,
        points: request.reads.points.clone(),
        ranges: ranges
            .map(|read| (read.range.start.clone(), read.range.end.clone(), read.since))
            .collect(),
        writes,
        messages: request.messages.clone(),
        after: request.after,
        origin: request.origin,
        in_bucket: request.durability.map(|durability| durability == Durability::Bucket),
        timeout_micros: u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX),
        again,
    })
}

/// A commit request, and whether it was sent before.
pub(crate) fn decode_commit(bytes: &[u8]) -> Result<(CommitRequest, bool)> {
    let wire: WireCommit = unpack(bytes)?;
    let writes = match wire.writes {
        WireWrites::Inline(writes) => CommitWrites::Inline(come(writes)),
        WireWrites::Applied { own, remote } => {
            let remote = remote.into_iter().map(|remote| come_remote(remote, Vec::new()));
            CommitWrites::Applied { own: come(own), remote: remote.collect() }
        }
        WireWrites::InParts { own, remote } => {
            let remote = remote.into_iter().map(|(remote, parts)| come_remote(remote, parts));
            CommitWrites::Applied { own: come(own), remote: remote.collect() }
        }
        WireWrites::Adding { own, additions } => CommitWrites::Adding {
            own: come(own),
            additions: additions
                .into_iter()
                .map(|(key, since, steps)| Addition { key, since, steps })
                .collect(),
        },
        WireWrites::External { parts, since } => {
            CommitWrites::External { since, parts: come_parts(parts) }
        }
    };
    let ranges = wire.ranges.into_iter();
    let request = CommitRequest {
        shard: wire.shard,
        txn: wire.txn,
        reads: Reads {
            points: wire.points,
            ranges: ranges
                .map(|(start, end, since)| ReadRange { range: KeyRange::new(start, end), since })
                .collect(),
        },
        writes,
        messages: wire.messages,
        after: wire.after,
        origin: wire.origin,
        durability: wire
            .in_bucket
            .map(|bucket| if bucket { Durability::Bucket } else { Durability::Quorum }),
        timeout: Duration::from_micros(wire.timeout_micros),
    };
    Ok((request, wire.again))
}

/// The bytes of an answer to a commit request.
/// `loglet`: the one that holds the entry of a commit.
pub(crate) fn encode_answer(answer: &Result<CommitReply>, loglet: Option<u64>) -> Bytes {
    let text = |error: &Error| error.to_string();
    let wire = match answer {
        Ok(CommitReply::Committed { timestamp, lsn, cost }) => WireAnswer::Committed {
            timestamp: *timestamp,
            lsn: *lsn,
            cost: [
                cost.gets,
                cost.puts,
                cost.lists,
                cost.deletes,
                cost.uploaded_bytes,
                cost.downloaded_bytes,
                cost.dollars,
            ],
        },
        Ok(CommitReply::Recheck(Change { key, at, txn })) => {
            WireAnswer::Recheck { key: key.clone(), at: *at, txn: *txn }
        }
        Err(Error::Conflict { other, at, key, .. }) => {
            WireAnswer::Conflict { other: *other, at: *at, key: key.clone() }
        }
        Err(Error::NotAdded { key, reason, .. }) => {
            WireAnswer::NotAdded { key: key.clone(), reason: reason.clone() }
        }
        Err(Error::OutcomeUnknown { reason, .. }) => {
            WireAnswer::OutcomeUnknown { reason: reason.clone() }
        }
        Err(Error::NotOwner { owner }) => WireAnswer::NotOwner { owner: owner.clone() },
        Err(Error::ShuttingDown) => WireAnswer::ShuttingDown,
        Err(error @ Error::OutOfMemory(_)) => WireAnswer::OutOfMemory { reason: text(error) },
        Err(error @ Error::Corrupt(_)) => WireAnswer::Corrupt { reason: text(error) },
        Err(error @ Error::LocalDisk(_)) => WireAnswer::LocalDisk { reason: text(error) },
        Err(
            error @ (Error::Unavailable(_)
            | Error::SessionAhead { .. }
            | Error::WrongShard(_)
            | Error::SnapshotTooOld { .. }
            | Error::ReadOnly
            | Error::Ended(_)
            | Error::NoSavepoint
            | Error::Elsewhere(_)
            | Error::Unexpected { .. }
            | Error::Outgoing { .. }
            | Error::TwoHomes(_)
            | Error::NotPlaced(_)
            | Error::TooLarge(_)),
        ) => WireAnswer::Unavailable { reason: text(error) },
    };
    // Only sequences of unknown length cannot be written, and there is none.
    pack(&(wire, loglet)).unwrap_or_default()
}

/// The loglet that an answer names, if it does: an owner of a version before does not.
pub(crate) fn loglet_of_answer(bytes: &[u8]) -> Option<u64> {
    let (_, rest) = postcard::take_from_bytes::<WireAnswer>(bytes).ok()?;
    postcard::from_bytes::<Option<u64>>(rest).ok().flatten()
}

/// The answer to the commit request of `txn`.
pub(crate) fn decode_answer(txn: TxnId, bytes: &[u8]) -> Result<CommitReply> {
    let unreadable = |error: Error| Error::OutcomeUnknown { txn, reason: error.to_string() };
    match unpack(bytes).map_err(unreadable)? {
        WireAnswer::Committed { timestamp, lsn, cost } => {
            let [gets, puts, lists, deletes, uploaded_bytes, downloaded_bytes, dollars] = cost;
            let cost =
                Cost { gets, puts, lists, deletes, uploaded_bytes, downloaded_bytes, dollars };
            Ok(CommitReply::Committed { timestamp, lsn, cost })
        }
        WireAnswer::Recheck { key, at, txn } => Ok(CommitReply::Recheck(Change { key, at, txn })),
        WireAnswer::Conflict { other, at, key } => Err(Error::Conflict { txn, other, at, key }),
        WireAnswer::OutcomeUnknown { reason } => Err(Error::OutcomeUnknown { txn, reason }),
        WireAnswer::NotOwner { owner } => Err(Error::NotOwner { owner }),
        WireAnswer::ShuttingDown => Err(Error::ShuttingDown),
        WireAnswer::OutOfMemory { reason } => Err(Error::OutOfMemory(reason)),
        WireAnswer::Corrupt { reason } => Err(Error::Corrupt(reason)),
        WireAnswer::LocalDisk { reason } => Err(Error::LocalDisk(reason)),
        WireAnswer::Unavailable { reason } => Err(Error::Unavailable(reason)),
        WireAnswer::NotAdded { key, reason } => Err(Error::NotAdded { txn, key, reason }),
    }
}

/// The answer to a request that adds to rows, of an owner that may be of a version that does not
/// know such requests: it has done nothing then, and gets the same work as ordinary writes when it
/// is executed again.
pub(crate) fn of_older(
    request: &CommitRequest,
    answer: Result<CommitReply>,
) -> Result<CommitReply> {
    match (answer, request.writes.additions().first()) {
        (Err(Error::Unavailable(reason)), Some(first)) if reason.starts_with(UNREADABLE) => {
            Err(Error::NotAdded { txn: request.txn, key: first.key.clone(), reason })
        }
        (answer, _) => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> CommitRequest {
        let key = |text: &'static str| Bytes::from_static(text.as_bytes());
        CommitRequest {
            shard: ShardId(3),
            txn: TxnId(1 << 100),
            reads: Reads {
                points: vec![(key("a"), Timestamp(7))],
                ranges: vec![ReadRange {
                    range: KeyRange::new(key("b"), key("c")),
                    since: Timestamp(9),
                }],
            },
            writes: CommitWrites::Inline(vec![CheckedWrite {
                write: Write { key: key("a"), value: None, fresh: true },
                since: Timestamp(7),
            }]),
            messages: vec![key("hello")],
            after: Timestamp(11),
            origin: Some(Label::default()),
            durability: Some(Durability::Bucket),
            timeout: Duration::from_millis(1500),
        }
    }

    #[test]
    fn commit_request_arrives_as_it_was_sent() {
        let own = match request().writes {
            CommitWrites::Inline(own) => own,
            other => panic!("{other:?}"),
        };
        let key = |text: &'static str| Bytes::from_static(text.as_bytes());
        let (txn, origin) = (TxnId(9), Label::default());
        let rows = RemoteWrites { txn, origin, writes: own.clone(), parts: Vec::new() };
        let part = Part {
            object: "shards/0/parts/9-000000".to_owned(),
            first_key: key("a"),
            last_key: key("b"),
            writes: 2,
            size_bytes: 90,
            checksum: 7,
        };
        let entries = RemoteWrites { txn, origin, writes: Vec::new(), parts: vec![part] };
        let applied = |remote| CommitRequest {
            writes: CommitWrites::Applied { own: own.clone(), remote },
            ..request()
        };
        let in_parts = applied(vec![entries, rows.clone()]);
        let applied = applied(vec![rows]);
        let additions = vec![Addition {
            key: key("n"),
            since: Timestamp(3),
            steps: vec![key("+1"), key("+2")],
        }];
        let own = match request().writes {
            CommitWrites::Inline(own) => own,
            other => panic!("{other:?}"),
        };
        let adding = CommitRequest { writes: CommitWrites::Adding { own, additions }, ..request() };
        for sent in [request(), applied, in_parts, adding] {
            let bytes = encode_commit(&sent, true, Duration::from_millis(700)).expect("bytes");
            let (came, again) = decode_commit(&bytes).expect("read");
            assert!(again);
            let expected = CommitRequest { timeout: Duration::from_millis(700), ..sent };
            assert_eq!(format!("{came:?}"), format!("{expected:?}"));
            for length in 0..bytes.len() {
                assert!(decode_commit(&bytes[..length]).is_err(), "{length} bytes were taken");
            }
        }
    }

    #[test]
    fn answer_tells_what_the_owner_found() {
        let txn = TxnId(5);
        let conflict = Error::Conflict {
            txn,
            other: TxnId(6),
            at: Timestamp(8),
            key: Bytes::from_static(b"k"),
        };
        let answers: Vec<Result<CommitReply>> = vec![
            Ok(CommitReply::Committed {
                timestamp: Timestamp(4),
                lsn: Lsn(2),
                cost: Cost { puts: 1.0, ..Cost::default() },
            }),
            Err(conflict),
            Err(Error::OutcomeUnknown { txn, reason: "r".into() }),
            Err(Error::NotAdded { txn, key: Bytes::from_static(b"k"), reason: "r".into() }),
            Err(Error::NotOwner { owner: "o".into() }),
            Err(Error::ShuttingDown),
            Err(Error::Unavailable("u".into())),
        ];
        for answer in answers {
            let bytes = encode_answer(&answer, Some(7));
            let came = decode_answer(txn, &bytes);
            assert_eq!(format!("{came:?}"), format!("{answer:?}"));
            assert_eq!(loglet_of_answer(&bytes), Some(7));
            // As a version before writes it: without what was added behind.
            let older = &bytes[..bytes.len() - 2];
            assert_eq!(format!("{:?}", decode_answer(txn, older)), format!("{answer:?}"));
            assert_eq!(loglet_of_answer(older), None);
        }
        // Whoever cannot read the answer does not know what became of the commit.
        let lost = decode_answer(txn, &[200]);
        assert!(matches!(lost, Err(Error::OutcomeUnknown { .. })), "{lost:?}");
    }
}
