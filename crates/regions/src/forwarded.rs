//! Transactions that one region asks another to commit, and its answers, as bytes.
//! `docs/reference/formats/regions.md` has the table.
//!
//! # Invariants
//! - Times are those of the home's log, but for the snapshot, which is the asker's.
//! - Bytes after the version are its own: what is added comes with a new one.
//!
//! # On failure
//! What does not decode is refused with the reason; nothing of it was done.
//!
//! # Limits
//! [`MAX_BYTES`] a request.

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::cursor::{Cursor, Malformed, put_string, put_varint};
use telesto_common::{Lsn, Timestamp, TxnId};
use telesto_log::record::Write;
use telesto_txn::service::CheckedWrite;
use telesto_txn::{Durability, Reads};

use crate::question::{put_reads, take_reads};

/// Bytes of a request, at most: the writes, and what was read beside them.
pub(crate) const MAX_BYTES: usize = 40 << 20;
/// Of a request that expects nothing of keys: as older regions know it.
const VERSION: u8 = 1;
/// Of one that does.
const EXPECTING: u8 = 2;

/// What a region is asked to commit.
#[derive(Clone, Debug)]
pub(crate) struct Forwarded {
    /// It was asked before, and the answer was lost.
    pub again: bool,
    pub txn: TxnId,
    /// How long the asker waits, microseconds.
    pub timeout_micros: u64,
    /// Everything of the asker up to here, by its clock, is in the transaction's past.
    pub snapshot: Timestamp,
    /// The incarnation of the home in which the times below are.
    pub incarnation: u64,
    /// The definitions that the transaction went by.
    pub stamp: Bytes,
    pub durability: Option<Durability>,
    pub reads: Reads,
    pub writes: Vec<CheckedWrite>,
    /// Keys under which something is to be (`true`) or nothing.
    pub expected: Vec<(Bytes, bool)>,
}

/// What the home says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Committed {
        at: Timestamp,
        lsn: Lsn,
    },
    /// Something was changed that the transaction read or writes.
    Conflict {
        other: TxnId,
        at: Timestamp,
        key: Bytes,
    },
    /// Under this key something is that was not to be (`there` is what was asked for: `false`), or
    /// nothing is.
    Unexpected {
        key: Bytes,
        there: bool,
    },
    /// The home has other definitions, up to this time of its log.
    Defined {
        at: Timestamp,
    },
    /// Nothing was done now.
    Refused(String),
    /// Whether it was committed could not be learnt.
    Unknown(String),
}

impl Forwarded {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(if self.expected.is_empty() { VERSION } else { EXPECTING });
        out.put_u8(u8::from(self.again));
        out.put_u128_le(self.txn.0);
        put_varint(&mut out, self.timeout_micros);
        out.put_u64_le(self.snapshot.0);
        put_varint(&mut out, self.incarnation);
        put_string(&mut out, &self.stamp);
        out.put_u8(match self.durability {
            None => 0,
            Some(Durability::Bucket) => 1,
            Some(Durability::Quorum) => 2,
        });
        put_reads(&self.reads, &mut out);
        put_varint(&mut out, self.writes.len() as u64);
        for CheckedWrite { write, since } in &self.writes {
            put_string(&mut out, &write.key);
            out.put_u8(u8::from(write.value.is_some()));
            put_string(&mut out, write.value.as_deref().unwrap_or_default());
            out.put_u64_le(since.0);
        }
        if !self.expected.is_empty() {
            put_varint(&mut out, self.expected.len() as u64);
        }
        for (key, there) in &self.expected {
            put_string(&mut out, key);
            out.put_u8(u8::from(*there));
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        if bytes.len() > MAX_BYTES {
            return Err(format!("{} bytes are more than a region is asked to commit", bytes.len()));
        }
        let mut cursor = Cursor::new(bytes);
        let version = cursor.u8()?;
        if ![VERSION, EXPECTING].contains(&version) {
            return Err(format!(
                "version {version} of forwarded transactions is too new, {EXPECTING} is known"
            ));
        }
        let again = flag(cursor.u8()?)?;
        let txn = TxnId(u128::from_le_bytes(cursor.array16()?));
        let timeout_micros = cursor.varint()?;
        let snapshot = Timestamp(cursor.u64()?);
        let incarnation = cursor.varint()?;
        let stamp = cursor.string()?;
        let durability = match cursor.u8()? {
            0 => None,
            1 => Some(Durability::Bucket),
            2 => Some(Durability::Quorum),
            other => return Err(format!("durability {other} is not known")),
        };
        let reads = take_reads(&mut cursor)?;
        let mut writes: Vec<CheckedWrite> = Vec::new();
        for _ in 0..cursor.count(11)? {
            let key = cursor.string()?;
            let there = flag(cursor.u8()?)?;
            let value = Some(cursor.string()?).filter(|_| there);
            let since = Timestamp(cursor.u64()?);
            if writes.last().is_some_and(|last| last.write.key >= key) {
                return Err("written keys are not in order".to_owned());
            }
            writes.push(CheckedWrite { write: Write { key, value, fresh: false }, since });
        }
        let mut expected = Vec::new();
        if version == EXPECTING {
            for _ in 0..cursor.count(2)? {
                expected.push((cursor.string()?, flag(cursor.u8()?)?));
            }
            if expected.is_empty() {
                return Err("nothing is expected".to_owned());
            }
        }
        cursor.finish()?;
        if writes.is_empty() {
            return Err("nothing is written".to_owned());
        }
        Ok(Self {
            again,
            txn,
            timeout_micros,
            snapshot,
            incarnation,
            stamp,
            durability,
            reads,
            writes,
            expected,
        })
    }

    /// The earliest time from which on something must be unchanged.
    pub fn earliest(&self) -> Timestamp {
        let points = self.reads.points.iter().map(|(_, since)| *since);
        let ranges = self.reads.ranges.iter().map(|read| read.since);
        let writes = self.writes.iter().map(|write| write.since);
        points.chain(ranges).chain(writes).min().unwrap_or_default()
    }
}

fn flag(byte: u8) -> Result<bool, Malformed> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(format!("a flag of {other}")),
    }
}

impl Answer {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Committed { at, lsn } => {
                out.put_u8(1);
                out.put_u64_le(at.0);
                put_varint(&mut out, lsn.0);
            }
            Self::Conflict { other, at, key } => {
                out.put_u8(2);
                out.put_u128_le(other.0);
                out.put_u64_le(at.0);
                put_string(&mut out, key);
            }
            Self::Unexpected { key, there } => {
                out.put_u8(6);
                put_string(&mut out, key);
                out.put_u8(u8::from(*there));
            }
            Self::Defined { at } => {
                out.put_u8(3);
                out.put_u64_le(at.0);
            }
            Self::Refused(reason) => {
                out.put_u8(4);
                put_string(&mut out, reason.as_bytes());
            }
            Self::Unknown(reason) => {
                out.put_u8(5);
                put_string(&mut out, reason.as_bytes());
            }
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let text = |cursor: &mut Cursor| -> Result<String, Malformed> {
            Ok(String::from_utf8_lossy(&cursor.string()?).into_owned())
        };
        let answer = match cursor.u8()? {
            1 => Self::Committed { at: Timestamp(cursor.u64()?), lsn: Lsn(cursor.varint()?) },
            2 => Self::Conflict {
                other: TxnId(u128::from_le_bytes(cursor.array16()?)),
                at: Timestamp(cursor.u64()?),
                key: cursor.string()?,
            },
            3 => Self::Defined { at: Timestamp(cursor.u64()?) },
            4 => Self::Refused(text(&mut cursor)?),
            5 => Self::Unknown(text(&mut cursor)?),
            6 => Self::Unexpected { key: cursor.string()?, there: flag(cursor.u8()?)? },
            kind => return Err(format!("an answer of kind {kind} is not known")),
        };
        cursor.finish()?;
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use telesto_common::key::KeyRange;
    use telesto_txn::ReadRange;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn requests_and_answers_are_read_back_and_any_bytes_are_read_or_refused(
            keys in prop::collection::btree_set(prop::collection::vec(any::<u8>(), 0..20), 1..8),
            numbers in any::<(u128, u64, u64)>(),
            again in any::<bool>(),
            expected in 0_usize..3,
            garbage in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let keys: Vec<Bytes> = keys.into_iter().map(Bytes::from).collect();
            let (txn, since, at) = (TxnId(numbers.0), Timestamp(numbers.1), Timestamp(numbers.2));
            let range = KeyRange::new(keys[0].clone(), Bytes::from_static(b"z"));
            let write = |(n, key): (usize, &Bytes)| CheckedWrite {
                write: Write {
                    key: key.clone(),
                    value: (n % 2 == 0).then(|| Bytes::from_static(b"v")),
                    fresh: false,
                },
                since,
            };
            let request = Forwarded {
                again,
                txn,
                timeout_micros: numbers.2,
                snapshot: at,
                incarnation: 3,
                stamp: keys[0].clone(),
                durability: again.then_some(Durability::Bucket),
                reads: Reads {
                    points: keys.iter().map(|key| (key.clone(), at)).collect(),
                    ranges: vec![ReadRange { range, since }],
                },
                writes: keys.iter().enumerate().map(write).collect(),
                expected: keys.iter().take(expected).map(|key| (key.clone(), again)).collect(),
            };
            let bytes = request.encode();
            let read = Forwarded::decode(bytes.clone()).expect("its own");
            prop_assert_eq!(&read.encode(), &bytes);
            prop_assert_eq!(read.earliest(), since.min(at));
            for cut in 0..bytes.len() {
                prop_assert!(Forwarded::decode(bytes.slice(..cut)).is_err());
            }
            let answers = [
                Answer::Committed { at, lsn: Lsn(numbers.1) },
                Answer::Conflict { other: txn, at, key: keys[0].clone() },
                Answer::Defined { at },
                Answer::Unexpected { key: keys[0].clone(), there: again },
                Answer::Refused("no".to_owned()),
                Answer::Unknown("who knows".to_owned()),
            ];
            for answer in answers {
                prop_assert_eq!(Answer::decode(answer.encode()), Ok(answer));
            }
            let garbage = Bytes::from(garbage);
            let _ = Forwarded::decode(garbage.clone());
            let _ = Answer::decode(garbage);
        }
    }

    #[test]
    fn newer_version_and_keys_out_of_order_are_refused() {
        let mut bytes = BytesMut::new();
        bytes.put_u8(EXPECTING + 1);
        assert!(Forwarded::decode(bytes.freeze()).expect_err("newer").contains("too new"));
        let write = |key: &'static [u8]| CheckedWrite {
            write: Write { key: Bytes::from_static(key), value: None, fresh: false },
            since: Timestamp(1),
        };
        let request = Forwarded {
            again: false,
            txn: TxnId(1),
            timeout_micros: 1,
            snapshot: Timestamp(1),
            incarnation: 0,
            stamp: Bytes::new(),
            durability: None,
            reads: Reads::default(),
            writes: vec![write(b"b"), write(b"a")],
            expected: Vec::new(),
        };
        assert!(Forwarded::decode(request.encode()).expect_err("order").contains("order"));
        let none = Forwarded { writes: Vec::new(), ..request };
        assert!(Forwarded::decode(none.encode()).is_err());
    }
}
