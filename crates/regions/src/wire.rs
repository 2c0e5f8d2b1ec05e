//! What regions say to each other, and positions as they are stored.
//! `docs/reference/formats/regions.md` has the tables.
//!
//! # Invariants
//! - A batch names the position it begins at; a receiver that stands elsewhere refuses it and says
//!   where it stands.
//! - Pasts travel as what has grown since the element before: of an element two lines (see
//!   [`crate::lines`]), of a batch's end everything.
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
use telesto_txn::OUTGOING_OVERHEAD_BYTES;

use crate::lines::Lines;
use crate::measured::{self, Measures};
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
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len) + OUTGOING_OVERHEAD_BYTES
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

/// A piece of a stream. The past of its end holds that of every element.
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
    /// Rows of a snapshot of mine, whose definitions had the number `of`
    /// ([`Meaning::number`](telesto_txn::regions::Meaning::number)).
    Rows { of: u64, rows: Vec<LabelledRow> },
    /// That were all rows; the stream goes on from here.
    Filled(Position),
    /// I have joined: the text with which a region is accepted.
    Introduce(String),
    /// What I have measured.
    Measured(Vec<Measures>),
    /// A question beside the stream: see [`crate::question`].
    Ask(Bytes),
    /// Something about trees of serializers: see [`crate::tree`].
    Tree(Bytes),
    /// A transaction to commit: see [`crate::forwarded`].
    Forward(Bytes),
    /// Of a statement that is executed for another region: see [`crate::asked`].
    Read(Bytes),
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

/// A packed batch.
#[derive(Debug)]
pub(crate) struct Packed {
    pub body: Bytes,
    /// Of its bytes before packing, those that tell of the past and of positions.
    pub metadata: usize,
}

impl Batch {
    /// Its body, packed, after a position whose past is `before`.
    pub fn pack(&self, lines: Lines, before: &Past) -> Packed {
        let mut out = BytesMut::new();
        put_varint(&mut out, self.elements.len() as u64);
        let mut metadata = out.len();
        let mut last = before;
        for element in &self.elements {
            let begin = out.len();
            out.put_u64_le(element.at.0);
            element.past.put_lines_since(lines, last, &mut out);
            last = &element.past;
            put_varint(&mut out, element.shared_with.0);
            metadata += out.len() - begin;
            put_varint(&mut out, element.writes.len() as u64);
            for write in &element.writes {
                write.put(&mut out);
            }
        }
        let begin = out.len();
        self.end.put_since(&last.with_lines(lines, before), &mut out);
        metadata += out.len() - begin;
        Packed { body: Bytes::from(lz4_flex::compress_prepend_size(&out)), metadata }
    }

    /// Reads what [`Batch::pack`] made with the same lines.
    pub fn unpack(
        begin: (Lsn, [u8; 16]),
        body: &[u8],
        lines: Lines,
        before: &Past,
    ) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(unpacked(body)?);
        let count = cursor.count(11)?;
        let mut elements = Vec::with_capacity(count);
        let mut last = before.clone();
        for _ in 0..count {
            let at = Timestamp(cursor.u64()?);
            last.take_lines_since(lines, &mut cursor)?;
            let shared_with = RegionSet(cursor.varint()?);
            let writes = take_writes(&mut cursor)?;
            elements.push(Element { at, past: last.clone(), shared_with, writes });
        }
        let end = Position::take_since(last, &mut cursor)?;
        cursor.finish()?;
        for element in &mut elements {
            element.past = element.past.with_lines(lines, &end.past);
        }
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
const MEASURED: u8 = 7;
const TREE: u8 = 9;
const FORWARD: u8 = 8;
const READ: u8 = 10;
const ROWS_OF: u8 = 11;

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
            // As ever where no rows are placed by value: a region that is older understands it.
            Self::Rows { of: 0, rows } => {
                out.put_u8(ROWS);
                out.put_slice(&pack_rows(rows));
            }
            Self::Rows { of, rows } => {
                out.put_u8(ROWS_OF);
                out.put_u64_le(*of);
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
            Self::Measured(report) => {
                out.put_u8(MEASURED);
                measured::put(report, &mut out);
            }
            Self::Ask(question) => {
                out.put_u8(ASK);
                out.put_slice(question);
            }
            Self::Tree(said) => {
                out.put_u8(TREE);
                out.put_slice(said);
            }
            Self::Forward(transaction) => {
                out.put_u8(FORWARD);
                out.put_slice(transaction);
            }
            Self::Read(asked) => {
                out.put_u8(READ);
                out.put_slice(asked);
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
            MEASURED => Self::Measured(measured::take(&mut cursor)?),
            ROWS => Self::Rows { of: 0, rows: unpack_rows(&cursor.take(cursor.remaining())?)? },
            ROWS_OF => Self::Rows {
                of: cursor.u64()?,
                rows: unpack_rows(&cursor.take(cursor.remaining())?)?,
            },
            FORWARD => Self::Forward(cursor.take(cursor.remaining())?),
            READ => Self::Read(cursor.take(cursor.remaining())?),
            ASK => Self::Ask(cursor.take(cursor.remaining())?),
            TREE => Self::Tree(cursor.take(cursor.remaining())?),
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
            let lines = Lines { from: RegionId(2), to: RegionId(3) };
            let Packed { body, metadata } = batch.pack(lines, &before);
            prop_assert!(metadata > 0);
            let unpacked = Batch::unpack(begin, &body, lines, &before).expect("its own");
            let rest = |element: &Element| (element.at, element.shared_with, element.writes.clone());
            for (sent, came) in batch.elements.iter().zip(&unpacked.elements) {
                prop_assert_eq!(rest(sent), rest(came));
                prop_assert_eq!(&came.past, &sent.past.with_lines(lines, &end.past));
            }
            prop_assert_eq!((unpacked.elements.len(), &unpacked.end), (batch.elements.len(), &end));
            let header = Header { deployment: 6, from: RegionId(1), to: RegionId(2) };
            let rows = vec![LabelledRow {
                source: RegionId(3),
                at: Timestamp(8),
                write: write(key, value),
            }];
            for request in [
                Request::Hello,
                Request::Batch { begin, body },
                Request::Rows { of: 0, rows: rows.clone() },
                Request::Rows { of: 77, rows },
                Request::Measured(vec![Measures {
                    peer: RegionId(3),
                    round_trip: 4,
                    visible: [1, 2, 3],
                    ..Measures::default()
                }]),
                Request::Filled(end.clone()),
                Request::Introduce("who I am".to_owned()),
                Request::Ask(garbage.clone().into()),
                Request::Tree(garbage.clone().into()),
                Request::Read(garbage.clone().into()),
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
            let _ = Batch::unpack(begin, &garbage, lines, &before);
        }
    }

    /// What a region sends of its past with each of `elements` transactions of one batch to one of
    /// `members` regions, all of which replicate everything and commit alike: bytes before packing,
    /// and in the first form.
    fn metadata_of_a_copy(members: u16, elements: usize) -> (f64, f64) {
        let everyone = RegionSet::first(usize::from(members));
        let mut past = Past::default();
        for region in (0..members).map(RegionId) {
            (0..300).for_each(|_| past.count(region, everyone));
        }
        let before = past.clone();
        let (mut batch, mut first_form) = (Vec::new(), BytesMut::new());
        let mut last = before.clone();
        for at in 0..elements {
            (0..members).map(RegionId).for_each(|region| past.count(region, everyone));
            first_form.put_u64_le(at as u64);
            past.put_since(&last, &mut first_form);
            last = past.clone();
            let shared_with = everyone.without(RegionId(0)).without(RegionId(1));
            let (at, past) = (Timestamp(at as u64), past.clone());
            batch.push(Element { at, past, shared_with, writes: Vec::new() });
        }
        let end = Position { lsn: Lsn(1000), hash: [4; 16], at: Timestamp(5), past };
        end.put_since(&last, &mut first_form);
        let batch = Batch { begin: (Lsn(900), [0; 16]), elements: batch, end };
        let lines = Lines { from: RegionId(0), to: RegionId(1) };
        let metadata = batch.pack(lines, &before).metadata;
        let of_one = |bytes: usize| bytes as f64 / elements as f64;
        (of_one(metadata), of_one(first_form.len()))
    }

    #[test]
    fn past_of_a_transaction_does_not_grow_with_the_square_of_the_regions() {
        println!("regions  in a batch  bytes of an update  with whole pasts  tree");
        for members in [3, 7, 16] {
            let copies = f64::from(members - 1);
            // A label of 26 bytes on each edge of a tree with two serializers less than regions, a
            // timestamp with each copy.
            let tree = (2.0 * f64::from(members) - 3.0) * 26.0 + copies * 8.0;
            for elements in [1, 8, 64] {
                let (bytes, first) = metadata_of_a_copy(members, elements);
                let (bytes, first) = (bytes * copies, first * copies);
                println!("{members:>7}  {elements:>10}  {bytes:>18.0}  {first:>16.0}  {tree:>4.0}");
            }
        }
        let (bytes, first) = metadata_of_a_copy(16, 64);
        assert!(bytes < 32.0, "{bytes}: a timestamp, two lines, a share of the batch's end");
        assert!(first > 400.0, "{first}: two bytes a pair of regions");
        let (alone, first) = metadata_of_a_copy(7, 1);
        assert!(alone < first * 1.2, "{alone} {first}: a batch of one is hardly larger");
    }
}
