//! What regions say to each other, and positions as they are stored. `docs/reference/formats/regions.md` has the tables.
//!
//! # Invariants
//! - A batch names the position it begins at; a receiver that stands elsewhere refuses it and says where it stands.
//! - Pasts travel as what has grown since the element before.
//!
//! # On failure
//! What does not decode is refused with the reason; nothing of it was taken.
//!
//! # Limits
//! A request must fit into one frame of the network, also when it is unpacked.

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::cursor::{Cursor, Malformed, put_string, put_varint};
use telesto_common::{Lsn, RegionId, Timestamp};
use telesto_geo::RegionSet;

use crate::past::Past;

/// Bytes of a request when it is unpacked, at most.
pub(crate) const MAX_REQUEST_BYTES: usize = 60 << 20;
/// Of what is stored.
const STORED: u8 = 1;
/// Of what regions say to each other.
const SPOKEN: u8 = 2;

/// A position in a region's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Everything up to this entry.
    pub lsn: Lsn,
    /// Its hash: tells one history from another.
    pub hash: [u8; 16],
    /// The newest commit up to here.
    pub at: Timestamp,
    pub past: Past,
}

impl Position {
    pub fn put(&self, out: &mut BytesMut) {
        self.put_since(&Past::default(), out);
    }

    fn put_since(&self, before: &Past, out: &mut BytesMut) {
        put_varint(out, self.lsn.0);
        out.put_slice(&self.hash);
        out.put_u64_le(self.at.0);
        self.past.put_since(before, out);
    }

    pub fn take(cursor: &mut Cursor) -> Result<Self, Malformed> {
        Self::take_since(Past::default(), cursor)
    }

    fn take_since(mut past: Past, cursor: &mut Cursor) -> Result<Self, Malformed> {
        let lsn = Lsn(cursor.varint()?);
        let hash = cursor.array16()?;
        let at = Timestamp(cursor.u64()?);
        past.take_since(cursor)?;
        Ok(Self { lsn, hash, at, past })
    }

    /// The position alone, as it is stored.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(STORED);
        self.put(&mut out);
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        check_version(cursor.u8()?, STORED)?;
        let position = Self::take(&mut cursor)?;
        cursor.finish()?;
        Ok(position)
    }
}

fn check_version(version: u8, known: u8) -> Result<(), Malformed> {
    if version == known {
        return Ok(());
    }
    Err(format!(
        "version {version} of the streams between regions is not known, only version {known}"
    ))
}

/// A written key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyWrite {
    pub key: Bytes,
    /// `None` deletes.
    pub value: Option<Bytes>,
}

impl KeyWrite {
    pub fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len) + 16
    }

    fn put(&self, out: &mut BytesMut) {
        put_string(out, &self.key);
        out.put_u8(u8::from(self.value.is_some()));
        if let Some(value) = &self.value {
            put_string(out, value);
        }
    }

    fn take(cursor: &mut Cursor) -> Result<Self, Malformed> {
        let key = cursor.string()?;
        let value = match cursor.u8()? {
            0 => None,
            1 => Some(cursor.string()?),
            flag => return Err(format!("a written key with flag {flag}")),
        };
        Ok(Self { key, value })
    }
}

/// One transaction of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    /// Its commit timestamp in its region.
    pub at: Timestamp,
    /// Its past, itself included.
    pub past: Past,
    /// Other regions that get the very same part of it.
    pub shared_with: RegionSet,
    /// What the receiver replicates of it.
    pub writes: Vec<KeyWrite>,
}

/// A piece of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Where it begins, and that position's past, which is not sent.
    pub begin: (Lsn, [u8; 16]),
    pub elements: Vec<Element>,
    pub end: Position,
}

/// A row as it stood in its region, with the label that decides between two of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LabelledRow {
    pub source: RegionId,
    pub at: Timestamp,
    pub write: KeyWrite,
}

/// What a sender asks of a receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Where do you stand in my stream?
    Hello,
    /// Take this. The body stays packed until it is known where the receiver stands.
    Batch { begin: (Lsn, [u8; 16]), body: Bytes },
    /// Rows of a snapshot of mine.
    Rows(Vec<LabelledRow>),
    /// That were all rows; the stream goes on from here.
    Filled(Position),
    /// I have joined: the text with which a region is accepted.
    Introduce(String),
    /// A question beside the stream: see [`crate::question`].
    Ask(Bytes),
}

/// The answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Taken,
    /// The receiver stands here.
    At(Position),
    /// The receiver has nothing of this stream.
    Fresh,
    Refused(String),
    /// The answer to a question.
    Answer(Bytes),
}

/// Who speaks to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub deployment: u128,
    pub from: RegionId,
    pub to: RegionId,
}

impl Batch {
    /// Its body, packed, after a position whose past is `before`.
    pub fn pack(&self, before: &Past) -> Bytes {
        let mut out = BytesMut::new();
        put_varint(&mut out, self.elements.len() as u64);
        let mut last = before;
        for element in &self.elements {
            out.put_u64_le(element.at.0);
            element.past.put_since(last, &mut out);
            last = &element.past;
            put_varint(&mut out, element.shared_with.0);
            put_varint(&mut out, element.writes.len() as u64);
            for write in &element.writes {
                write.put(&mut out);
            }
        }
        self.end.put_since(last, &mut out);
        Bytes::from(lz4_flex::compress_prepend_size(&out))
    }

    pub fn unpack(begin: (Lsn, [u8; 16]), body: &[u8], before: &Past) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(unpacked(body)?);
        let count = cursor.count(11)?;
        let mut elements = Vec::with_capacity(count);
        let mut last = before.clone();
        for _ in 0..count {
            let at = Timestamp(cursor.u64()?);
            last.take_since(&mut cursor)?;
            let shared_with = RegionSet(cursor.varint()?);
            let writes = take_writes(&mut cursor)?;
            elements.push(Element { at, past: last.clone(), shared_with, writes });
        }
        let end = Position::take_since(last, &mut cursor)?;
        cursor.finish()?;
        Ok(Self { begin, elements, end })
    }
}

fn take_writes(cursor: &mut Cursor) -> Result<Vec<KeyWrite>, Malformed> {
    let count = cursor.count(2)?;
    (0..count).map(|_| KeyWrite::take(cursor)).collect()
}

fn unpacked(body: &[u8]) -> Result<Bytes, Malformed> {
    let (size, packed) =
        lz4_flex::block::uncompressed_size(body).map_err(|error| error.to_string())?;
    if size > MAX_REQUEST_BYTES {
        return Err(format!("{size} bytes are more than a request between regions may hold"));
    }
    lz4_flex::block::decompress(packed, size).map(Bytes::from).map_err(|error| error.to_string())
}

/// Rows with their labels, packed.
pub(crate) fn pack_rows(rows: &[LabelledRow]) -> Vec<u8> {
    let mut body = BytesMut::new();
    put_varint(&mut body, rows.len() as u64);
    for row in rows {
        body.put_u16_le(row.source.0);
        body.put_u64_le(row.at.0);
        row.write.put(&mut body);
    }
    lz4_flex::compress_prepend_size(&body)
}

/// Reads what [`pack_rows`] made.
pub(crate) fn unpack_rows(packed: &[u8]) -> Result<Vec<LabelledRow>, Malformed> {
    let mut body = Cursor::new(unpacked(packed)?);
    let count = body.count(12)?;
    let mut rows = Vec::with_capacity(count);
    for _ in 0..count {
        let source = RegionId(body.u16()?);
        let at = Timestamp(body.u64()?);
        rows.push(LabelledRow { source, at, write: KeyWrite::take(&mut body)? });
    }
    body.finish()?;
    Ok(rows)
}

const HELLO: u8 = 1;
const BATCH: u8 = 2;
const ROWS: u8 = 3;
const FILLED: u8 = 4;
const INTRODUCE: u8 = 5;
const ASK: u8 = 6;

impl Request {
    pub fn encode(&self, header: Header) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(SPOKEN);
        out.put_u128_le(header.deployment);
        out.put_u16_le(header.from.0);
        out.put_u16_le(header.to.0);
        match self {
            Self::Hello => out.put_u8(HELLO),
            Self::Batch { begin: (lsn, hash), body } => {
                out.put_u8(BATCH);
                put_varint(&mut out, lsn.0);
                out.put_slice(hash);
                out.put_slice(body);
            }
            Self::Rows(rows) => {
                out.put_u8(ROWS);
                out.put_slice(&pack_rows(rows));
            }
            Self::Filled(position) => {
                out.put_u8(FILLED);
                position.put(&mut out);
            }
            Self::Introduce(text) => {
                out.put_u8(INTRODUCE);
                put_string(&mut out, text.as_bytes());
            }
            Self::Ask(question) => {
                out.put_u8(ASK);
                out.put_slice(question);
            }
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<(Header, Self), Malformed> {
        let mut cursor = Cursor::new(bytes);
        check_version(cursor.u8()?, SPOKEN)?;
        let deployment = u128::from_le_bytes(cursor.array16()?);
        let header =
            Header { deployment, from: RegionId(cursor.u16()?), to: RegionId(cursor.u16()?) };
        let request = match cursor.u8()? {
            HELLO => Self::Hello,
            BATCH => {
                let begin = (Lsn(cursor.varint()?), cursor.array16()?);
                Self::Batch { begin, body: cursor.take(cursor.remaining())? }
            }
            ROWS => Self::Rows(unpack_rows(&cursor.take(cursor.remaining())?)?),
            ASK => Self::Ask(cursor.take(cursor.remaining())?),
            FILLED => Self::Filled(Position::take(&mut cursor)?),
            INTRODUCE => {
                let text = cursor.string()?;
                let text = std::str::from_utf8(&text).map_err(|error| error.to_string())?;
                Self::Introduce(text.to_owned())
            }
            kind => return Err(format!("a request of kind {kind} between regions is not known")),
        };
        cursor.finish()?;
        Ok((header, request))
    }
}

impl Reply {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Taken => out.put_u8(1),
            Self::At(position) => {
                out.put_u8(2);
                position.put(&mut out);
            }
            Self::Fresh => out.put_u8(3),
            Self::Refused(reason) => {
                out.put_u8(4);
                put_string(&mut out, reason.as_bytes());
            }
            Self::Answer(answer) => {
                out.put_u8(5);
                out.put_slice(answer);
            }
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let reply = match cursor.u8()? {
            1 => Self::Taken,
            2 => Self::At(Position::take(&mut cursor)?),
            3 => Self::Fresh,
            4 => Self::Refused(String::from_utf8_lossy(&cursor.string()?).into_owned()),
            5 => Self::Answer(cursor.take(cursor.remaining())?),
            kind => return Err(format!("a reply of kind {kind} between regions is not known")),
        };
        cursor.finish()?;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(key: Vec<u8>, value: Option<Vec<u8>>) -> KeyWrite {
        KeyWrite { key: Bytes::from(key), value: value.map(Bytes::from) }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn batches_and_requests_are_read_back_and_any_bytes_are_read_or_refused(
            steps in prop::collection::vec((0_u16..16, any::<u16>(), any::<u64>()), 1..12),
            key in prop::collection::vec(any::<u8>(), 0..40),
            value in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
            garbage in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut past = Past::default();
            past.count(RegionId(2), RegionSet(0b1001));
            let (before, begin) = (past.clone(), (Lsn(7), [3; 16]));
            let mut elements = Vec::new();
            for (source, targets, at) in steps {
                past.count(RegionId(source), RegionSet(u64::from(targets)));
                let writes = vec![write(key.clone(), value.clone())];
                let shared_with = RegionSet(u64::from(targets));
                elements.push(Element { at: Timestamp(at), past: past.clone(), shared_with, writes });
            }
            let end = Position { lsn: Lsn(9), hash: [4; 16], at: Timestamp(5), past };
            let batch = Batch { begin, elements, end: end.clone() };
            let body = batch.pack(&before);
            prop_assert_eq!(Batch::unpack(begin, &body, &before), Ok(batch));
            let header = Header { deployment: 6, from: RegionId(1), to: RegionId(2) };
            let rows = vec![LabelledRow {
                source: RegionId(3),
                at: Timestamp(8),
                write: write(key, value),
            }];
            for request in [
                Request::Hello,
                Request::Batch { begin, body },
                Request::Rows(rows),
                Request::Filled(end.clone()),
                Request::Introduce("who I am".to_owned()),
                Request::Ask(garbage.clone().into()),
            ] {
                prop_assert_eq!(Request::decode(request.encode(header)), Ok((header, request)));
            }
            let refused = Reply::Refused("no".to_owned());
            let answer = Reply::Answer(garbage.clone().into());
            for reply in [Reply::Taken, Reply::At(end.clone()), Reply::Fresh, refused, answer] {
                prop_assert_eq!(Reply::decode(reply.encode()), Ok(reply));
            }
            prop_assert_eq!(Position::decode(end.encode()), Ok(end));
            let garbage = Bytes::from(garbage);
            let _ = Request::decode(garbage.clone());
            let _ = Reply::decode(garbage.clone());
            let _ = Position::decode(garbage.clone());
            let _ = Batch::unpack(begin, &garbage, &before);
        }
    }
}
