//! What regions ask each other beside the streams, and the answers.
//! `docs/reference/formats/regions.md` has the tables.
//!
//! # Invariants
//! - A question changes nothing where it is asked, but [`Question::Anew`], and [`Question::Close`]
//!   the time.
//! - Answers are bounded: what is longer is asked for in pieces.
//!
//! # On failure
//! What does not decode is refused with the reason.
//!
//! # Limits
//! A piece is about a mebibyte of rows, or [`PIECE`] keys.

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::cursor::{Cursor, Malformed, put_string, put_varint};
use telesto_common::key::KeyRange;
use telesto_common::{RegionId, Timestamp};
use telesto_txn::{ReadRange, Reads, Wanted};

use crate::past::Past;
use crate::wire::{LabelledRow, pack_rows, unpack_rows};

/// Keys in a piece.
pub(crate) const PIECE: usize = 1024;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// The transactions of `of` to whoever asks that are numbered above this, as far as who is
    /// asked got the very same. The answer is a packed batch.
    Again { of: RegionId, above: u64 },
    /// What is in your past, and how far you have `of`, of which you take nothing any more?
    Known { of: RegionId },
    /// Rows of yours that `of` wrote and that the asker replicates.
    Have { of: RegionId, from: Place },
    /// The asker has taken back what you had of it: forget where its stream stood.
    Anew,
    /// How far is everything at your place?
    Standing,
    /// What do your rows of this range amount to? As far as one piece goes.
    Digest { range: KeyRange },
    /// The labels of your rows in this range, as far as one piece goes.
    Labels { range: KeyRange },
    /// The labels of these keys, of those that are deleted too.
    LabelsOf { keys: Vec<Bytes> },
    /// Rows that you keep, for a transaction of mine that changes them and has seen everything of
    /// my region up to `seen`: as of `at`, or of now, where your definitions are those with this
    /// stamp; or whether they are as they were. See [`crate::rows_away`].
    Rows { seen: Timestamp, at: Option<Timestamp>, stamp: Bytes, wanted: Wanted },
    /// Close your time up to here for the asker, which has something that waits for it, and go on
    /// with that for a moment. 0: would you? The answer is what prevents it; empty: nothing. See
    /// [`crate::times`].
    Close { at: Timestamp },
    /// Of which times have you lost commits? See [`crate::gaps`].
    Gaps,
    /// Which transaction of `of` is the newest that came to you? See [`Newest`].
    Newest { of: RegionId },
}

/// The newest transaction of a region that came, by its own stream or by way of another region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Newest {
    pub number: u64,
    /// Its time; 0: it came before this runner began.
    pub at: Timestamp,
}

/// Where a list of rows goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Rows behind this key; all when it is empty.
    Rows(Bytes),
    /// Deleted keys from here on: of its log, in the words of the region that answers
    /// ([`crate::answer`]). At the beginning it is empty.
    Deleted(Bytes),
    /// What waits for its past, this many transactions left out.
    Waiting(u64),
    /// That was all.
    End,
}

/// What a region knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// Everything that was applied here, or waits here, brought this.
    pub past: Past,
    /// What came of each region's stream, by number, whether it was applied or waits.
    pub received: Vec<(RegionId, u64)>,
    /// Everything of the region that was asked for is here up to this time of its clock.
    pub passed: Timestamp,
    /// The region that was asked for is closed here: nothing waits for it any more.
    pub closed: bool,
    /// Who makes the definitions in the place of the region that was asked for, as this one was
    /// told.
    pub heir: Option<RegionId>,
}

/// How far everything is at one place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The region's own newest commit.
    pub now: Timestamp,
    /// Everything of each other region up to these times is there.
    pub passed: Vec<(RegionId, Timestamp)>,
    /// The rules by which rows are placed, as they are stored.
    pub rules: Bytes,
}

/// A key with what decides between two versions of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Labelled {
    pub key: Bytes,
    pub at: Timestamp,
    pub source: RegionId,
    /// Of the value; nothing when it is deleted.
    pub value: Option<[u8; 16]>,
    /// Copies are joined: under one label there may be some that have not seen as much as others.
    pub merges: bool,
}

/// What the rows of a range amount to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digest {
    /// Of the rows before this key; nothing: to the range's end.
    pub through: Option<Bytes>,
    pub rows: u64,
    pub hash: [u8; 16],
}

const AGAIN: u8 = 1;
const KNOWN: u8 = 2;
const HAVE: u8 = 3;
const ANEW: u8 = 4;
const STANDING: u8 = 5;
const DIGEST: u8 = 6;
const LABELS: u8 = 7;
const LABELS_OF: u8 = 8;
const ROWS_OF_KEYS: u8 = 9;
const ROWS_OF_RANGE: u8 = 10;
const UNCHANGED: u8 = 11;
pub(crate) const CLOSE: u8 = 12;
pub(crate) const GAPS: u8 = 13;
const NEWEST: u8 = 14;

/// Of a label: the key has a value.
const THERE: u8 = 1;
/// Its copies are joined.
const MERGES: u8 = 2;

impl Question {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Again { of, above } => {
                out.put_u8(AGAIN);
                out.put_u16_le(of.0);
                put_varint(&mut out, *above);
            }
            Self::Known { of } => {
                out.put_u8(KNOWN);
                out.put_u16_le(of.0);
            }
            Self::Have { of, from } => {
                out.put_u8(HAVE);
                out.put_u16_le(of.0);
                from.put(&mut out);
            }
            Self::Anew => out.put_u8(ANEW),
            Self::Gaps => out.put_u8(GAPS),
            Self::Newest { of } => {
                out.put_u8(NEWEST);
                out.put_u16_le(of.0);
            }
            Self::Close { at } => {
                out.put_u8(CLOSE);
                out.put_u64_le(at.0);
            }
            Self::Standing => out.put_u8(STANDING),
            Self::Digest { range } => {
                out.put_u8(DIGEST);
                put_range(range, &mut out);
            }
            Self::Labels { range } => {
                out.put_u8(LABELS);
                put_range(range, &mut out);
            }
            Self::LabelsOf { keys } => {
                out.put_u8(LABELS_OF);
                put_varint(&mut out, keys.len() as u64);
                keys.iter().for_each(|key| put_string(&mut out, key));
            }
            Self::Rows { seen, at, stamp, wanted } => {
                let kind = match wanted {
                    Wanted::Keys(_) => ROWS_OF_KEYS,
                    Wanted::Range { .. } => ROWS_OF_RANGE,
                    Wanted::Unchanged(_) => UNCHANGED,
                };
                out.put_u8(kind);
                out.put_u64_le(seen.0);
                out.put_u64_le(at.unwrap_or_default().0);
                put_string(&mut out, stamp);
                match wanted {
                    Wanted::Keys(keys) => {
                        put_varint(&mut out, keys.len() as u64);
                        keys.iter().for_each(|key| put_string(&mut out, key));
                    }
                    Wanted::Range { range, reverse, limit } => {
                        put_range(range, &mut out);
                        out.put_u8(u8::from(*reverse));
                        put_varint(&mut out, *limit);
                    }
                    Wanted::Unchanged(reads) => put_reads(reads, &mut out),
                }
            }
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let question = match cursor.u8()? {
            AGAIN => Self::Again { of: RegionId(cursor.u16()?), above: cursor.varint()? },
            KNOWN => Self::Known { of: RegionId(cursor.u16()?) },
            HAVE => Self::Have { of: RegionId(cursor.u16()?), from: Place::take(&mut cursor)? },
            ANEW => Self::Anew,
            STANDING => Self::Standing,
            GAPS => Self::Gaps,
            NEWEST => Self::Newest { of: RegionId(cursor.u16()?) },
            DIGEST => Self::Digest { range: take_range(&mut cursor)? },
            LABELS => Self::Labels { range: take_range(&mut cursor)? },
            LABELS_OF => {
                let count = cursor.count(1)?;
                let keys = (0..count).map(|_| cursor.string()).collect::<Result<_, _>>()?;
                Self::LabelsOf { keys }
            }
            kind @ (ROWS_OF_KEYS | ROWS_OF_RANGE | UNCHANGED) => {
                let (seen, at) = (Timestamp(cursor.u64()?), Timestamp(cursor.u64()?));
                let stamp = cursor.string()?;
                let wanted = match kind {
                    ROWS_OF_KEYS => {
                        let count = cursor.count(1)?;
                        let keys = (0..count).map(|_| cursor.string()).collect::<Result<_, _>>()?;
                        Wanted::Keys(keys)
                    }
                    UNCHANGED => Wanted::Unchanged(take_reads(&mut cursor)?),
                    _ => {
                        let range = take_range(&mut cursor)?;
                        let reverse = cursor.u8()? != 0;
                        Wanted::Range { range, reverse, limit: cursor.varint()? }
                    }
                };
                let at = Some(at).filter(|at| *at != Timestamp::ZERO);
                Self::Rows { seen, at, stamp, wanted }
            }
            CLOSE => Self::Close { at: Timestamp(cursor.u64()?) },
            kind => return Err(unknown(kind)),
        };
        cursor.finish()?;
        Ok(question)
    }
}

/// What a region says of a question that it does not know: older versions, too.
pub(crate) fn unknown(kind: u8) -> String {
    format!("a question of kind {kind} between regions is not known")
}

fn put_range(range: &KeyRange, out: &mut BytesMut) {
    put_string(out, &range.start);
    put_string(out, &range.end);
}

fn take_range(cursor: &mut Cursor) -> Result<KeyRange, Malformed> {
    Ok(KeyRange { start: cursor.string()?, end: cursor.string()? })
}

/// Keys and ranges that were read, each with the time since when it is to be as it was.
pub(crate) fn put_reads(reads: &Reads, out: &mut BytesMut) {
    put_varint(out, reads.points.len() as u64);
    for (key, since) in &reads.points {
        put_string(out, key);
        out.put_u64_le(since.0);
    }
    put_varint(out, reads.ranges.len() as u64);
    for ReadRange { range, since } in &reads.ranges {
        put_range(range, out);
        out.put_u64_le(since.0);
    }
}

/// Reads what [`put_reads`] made.
pub(crate) fn take_reads(cursor: &mut Cursor) -> Result<Reads, Malformed> {
    let mut reads = Reads::default();
    for _ in 0..cursor.count(9)? {
        reads.points.push((cursor.string()?, Timestamp(cursor.u64()?)));
    }
    for _ in 0..cursor.count(10)? {
        let range = take_range(cursor)?;
        reads.ranges.push(ReadRange { range, since: Timestamp(cursor.u64()?) });
    }
    Ok(reads)
}

impl Place {
    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Rows(key) => {
                out.put_u8(1);
                put_string(out, key);
            }
            Self::Deleted(key) => {
                out.put_u8(2);
                put_string(out, key);
            }
            Self::Waiting(number) => {
                out.put_u8(3);
                put_varint(out, *number);
            }
            Self::End => out.put_u8(4),
        }
    }

    fn take(cursor: &mut Cursor) -> Result<Self, Malformed> {
        Ok(match cursor.u8()? {
            1 => Self::Rows(cursor.string()?),
            2 => Self::Deleted(cursor.string()?),
            3 => Self::Waiting(cursor.varint()?),
            4 => Self::End,
            kind => return Err(format!("a place of kind {kind} in a list of rows is not known")),
        })
    }
}

/// An answer to [`Question::Have`]: rows, and where the list goes on.
pub(crate) fn pack_piece(next: &Place, rows: &[LabelledRow]) -> Bytes {
    let mut out = BytesMut::new();
    next.put(&mut out);
    out.put_slice(&pack_rows(rows));
    out.freeze()
}

/// Reads what [`pack_piece`] made.
pub(crate) fn unpack_piece(bytes: Bytes) -> Result<(Place, Vec<LabelledRow>), Malformed> {
    let mut cursor = Cursor::new(bytes);
    let next = Place::take(&mut cursor)?;
    let rows = unpack_rows(&cursor.take(cursor.remaining())?)?;
    Ok((next, rows))
}

impl Newest {
    pub fn encode(self) -> Bytes {
        let mut out = BytesMut::new();
        put_varint(&mut out, self.number);
        out.put_u64_le(self.at.0);
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let (number, at) = (cursor.varint()?, Timestamp(cursor.u64()?));
        cursor.finish()?;
        Ok(Self { number, at })
    }
}

impl Known {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.past.put_since(&Past::default(), &mut out);
        put_varint(&mut out, self.received.len() as u64);
        for (region, count) in &self.received {
            out.put_u16_le(region.0);
            put_varint(&mut out, *count);
        }
        out.put_u64_le(self.passed.0);
        out.put_u8(u8::from(self.closed));
        // Versions that know nothing of it read what ends here.
        if let Some(heir) = self.heir {
            out.put_u16_le(heir.0);
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let mut past = Past::default();
        past.take_since(&mut cursor)?;
        let count = cursor.count(3)?;
        let mut received = Vec::with_capacity(count);
        for _ in 0..count {
            received.push((RegionId(cursor.u16()?), cursor.varint()?));
        }
        let (passed, closed) = (Timestamp(cursor.u64()?), cursor.u8()? != 0);
        let heir = (cursor.remaining() > 0).then(|| cursor.u16()).transpose()?.map(RegionId);
        cursor.finish()?;
        Ok(Self { past, received, passed, closed, heir })
    }
}

impl Standing {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u64_le(self.now.0);
        put_varint(&mut out, self.passed.len() as u64);
        for (region, at) in &self.passed {
            out.put_u16_le(region.0);
            out.put_u64_le(at.0);
        }
        put_string(&mut out, &self.rules);
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let now = Timestamp(cursor.u64()?);
        let count = cursor.count(10)?;
        let mut passed = Vec::with_capacity(count);
        for _ in 0..count {
            passed.push((RegionId(cursor.u16()?), Timestamp(cursor.u64()?)));
        }
        let rules = cursor.string()?;
        cursor.finish()?;
        Ok(Self { now, passed, rules })
    }
}

impl Digest {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(u8::from(self.through.is_some()));
        put_string(&mut out, self.through.as_deref().unwrap_or_default());
        put_varint(&mut out, self.rows);
        out.put_slice(&self.hash);
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let bounded = cursor.u8()? != 0;
        let key = cursor.string()?;
        let (rows, hash) = (cursor.varint()?, cursor.array16()?);
        cursor.finish()?;
        Ok(Self { through: bounded.then_some(key), rows, hash })
    }
}

/// Labels of keys, in their order.
pub(crate) fn pack_labels(labels: &[Labelled]) -> Bytes {
    let mut out = BytesMut::new();
    put_varint(&mut out, labels.len() as u64);
    for labelled in labels {
        put_string(&mut out, &labelled.key);
        out.put_u64_le(labelled.at.0);
        out.put_u16_le(labelled.source.0);
        let there = if labelled.value.is_some() { THERE } else { 0 };
        out.put_u8(there | if labelled.merges { MERGES } else { 0 });
        out.put_slice(&labelled.value.unwrap_or_default());
    }
    out.freeze()
}

/// Reads what [`pack_labels`] made.
pub(crate) fn unpack_labels(bytes: Bytes) -> Result<Vec<Labelled>, Malformed> {
    let mut cursor = Cursor::new(bytes);
    let count = cursor.count(28)?;
    let mut labels = Vec::with_capacity(count);
    for _ in 0..count {
        let key = cursor.string()?;
        let (at, source) = (Timestamp(cursor.u64()?), RegionId(cursor.u16()?));
        let flags = cursor.u8()?;
        let value = cursor.array16()?;
        let (there, merges) = (flags & THERE != 0, flags & MERGES != 0);
        labels.push(Labelled { key, at, source, value: there.then_some(value), merges });
    }
    cursor.finish()?;
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use telesto_common::TxnId;
    use telesto_geo::RegionSet;

    use telesto_txn::RowsGiven;

    use super::*;
    use crate::rows_away::Told;
    use crate::wire::KeyWrite;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn questions_and_answers_are_read_back_and_any_bytes_are_read_or_refused(
            key in prop::collection::vec(any::<u8>(), 0..40),
            number in any::<u64>(),
            garbage in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let (key, of) = (Bytes::from(key), RegionId(3));
            let range_key = key.clone();
            let range = KeyRange { start: key.clone(), end: Bytes::from_static(b"z") };
            let places = [
                Place::Rows(key.clone()),
                Place::Deleted(key.clone()),
                Place::Waiting(number),
                Place::End,
            ];
            let have = places.clone().map(|from| Question::Have { of, from });
            let questions = [
                Question::Again { of, above: number },
                Question::Known { of },
                Question::Anew,
                Question::Standing,
                Question::Gaps,
                Question::Close { at: Timestamp(number) },
                Question::Digest { range: range.clone() },
                Question::Rows {
                    seen: Timestamp(number),
                    at: Some(Timestamp(number | 1)),
                    stamp: key.clone(),
                    wanted: Wanted::Keys(vec![key.clone(), Bytes::new()]),
                },
                Question::Rows {
                    seen: Timestamp(number),
                    at: None,
                    stamp: Bytes::new(),
                    wanted: Wanted::Range {
                        range: range.clone(),
                        reverse: number % 2 == 0,
                        limit: number,
                    },
                },
                Question::Rows {
                    seen: Timestamp(number),
                    at: None,
                    stamp: key.clone(),
                    wanted: Wanted::Unchanged(Reads {
                        points: vec![(key.clone(), Timestamp(number))],
                        ranges: vec![ReadRange { range: range.clone(), since: Timestamp(7) }],
                    }),
                },
                Question::Labels { range },
                Question::LabelsOf { keys: vec![key.clone(), Bytes::new()] },
            ];
            for question in questions.into_iter().chain(have) {
                prop_assert_eq!(Question::decode(question.encode()), Ok(question));
            }
            let mut past = Past::default();
            past.count(RegionId(1), RegionSet(0b101));
            let at = Timestamp(number);
            let received = vec![(of, number)];
            let heir = Some(RegionId(2));
            let known = Known { past, received, passed: at, closed: true, heir };
            prop_assert_eq!(Known::decode(known.encode()), Ok(known));
            let standing = Standing { now: at, passed: vec![(of, at)], rules: key.clone() };
            prop_assert_eq!(Standing::decode(standing.encode()), Ok(standing));
            let digest = Digest { through: Some(key.clone()), rows: number, hash: [4; 16] };
            prop_assert_eq!(Digest::decode(digest.encode()), Ok(digest));
            let value = Some([5; 16]);
            let merges = number % 2 == 0;
            let labels = vec![Labelled { key: key.clone(), at, source: of, value, merges }];
            prop_assert_eq!(unpack_labels(pack_labels(&labels)), Ok(labels));
            let write = KeyWrite { key, value: None };
            let rows = vec![LabelledRow { source: of, at, write }];
            for place in places {
                let piece = pack_piece(&place, &rows);
                prop_assert_eq!(unpack_piece(piece), Ok((place, rows.clone())));
            }
            let given = RowsGiven {
                at,
                incarnation: number,
                values: vec![None, Some(range_key.clone())],
                rows: vec![(range_key.clone(), Bytes::new())],
                more: number % 2 == 0,
            };
            let changed = Told::Changed { other: TxnId(9), at, key: range_key.clone() };
            for told in [Told::Rows(given), Told::Defined(at), changed] {
                prop_assert_eq!(Told::decode(told.encode()), Ok(told));
            }
            let garbage = Bytes::from(garbage);
            let _ = Told::decode(garbage.clone());
            let _ = Question::decode(garbage.clone());
            let _ = Known::decode(garbage.clone());
            let _ = Standing::decode(garbage.clone());
            let _ = Digest::decode(garbage.clone());
            let _ = unpack_labels(garbage.clone());
            let _ = unpack_piece(garbage);
        }
    }
}
