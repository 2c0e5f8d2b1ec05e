//! Messages between regions and serializers, and their wire form.
//!
//! # Invariants
//! - The source of a stream's message is the stream's; it is not written again.
//! - Everything but the write set of a payload is metadata: [`Envelope::encode`] tells how many
//!   bytes that is.
//! - A tree label has constant size (26 bytes, 34 with a floor), whatever the number of regions.
//!
//! # On failure
//! [`Envelope::decode`] returns [`crate::Error::Malformed`]; it allocates no more than the message
//! is long.
//!
//! # Limits
//! Write sets are opaque bytes. Version 1 of the form: a first byte above 4 is refused.

use bytes::{BufMut as _, Bytes};
use telesto_common::{Label, LabelKind, RegionId, Timestamp};

use crate::RegionSet;
use crate::error::Result;
use crate::wire::{Reader, put_varint};

/// A serializer of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SerializerId {
    /// The epoch of its tree.
    pub epoch: u32,
    /// Its number in the tree.
    pub index: u16,
}

/// Where a message comes from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// A region.
    Region(RegionId),
    /// A serializer.
    Serializer(SerializerId),
}

/// One entry of the matrix of counts: how many more transactions of the stream source→target are in
/// the past than this stream had told before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The region that made them.
    pub source: u8,
    /// The region they go to.
    pub target: u8,
    /// How many more.
    pub increment: u64,
}

/// What a plane attaches to a payload or a beat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meta {
    /// Nothing: the label says all.
    None,
    /// Entries of the matrix of counts (`matrix`).
    Counts(Vec<Count>),
    /// The partition the message belongs to (`gentlerain`).
    Lane(u8),
    /// The partition, and a timestamp of every region (`cure`).
    Vector(u8, Vec<Timestamp>),
}

/// A label as it travels along a tree: constant size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeLabel {
    /// Kind, source, timestamp; the target is the epoch of change labels.
    pub label: Label,
    /// The regions it goes to.
    pub interest: RegionSet,
    /// It is to be taken only when time is stable past this: its source has taken something by
    /// time, which no tree's order tells.
    pub floor: Timestamp,
}

/// What travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A transaction, from region to region.
    Payload {
        /// Its label.
        label: Label,
        /// The plane's part.
        meta: Meta,
        /// Its write set, opaque here.
        data: Bytes,
    },
    /// The sender's stream has passed this time.
    Beat {
        /// No later transaction of the sender (with lanes: of the lane) has this timestamp or a
        /// lower one.
        at: Timestamp,
        /// The plane's part.
        meta: Meta,
    },
    /// What follows on this stream belongs to the envelope's generation.
    Mark {
        /// The sender's clock at the mark.
        at: Timestamp,
    },
    /// A label along a tree.
    Label {
        /// The epoch of the tree.
        epoch: u32,
        /// The label.
        label: TreeLabel,
    },
}

/// A message and the plane generation it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Raised by one with every change of planes.
    pub generation: u32,
    /// The message.
    pub message: Message,
}

const PAYLOAD: u8 = 1;
const BEAT: u8 = 2;
const MARK: u8 = 3;
const LABEL: u8 = 4;

impl Envelope {
    /// The bytes, and how many of them are metadata (all but the write set).
    #[must_use]
    pub fn encode(&self) -> (Bytes, usize) {
        let mut out = Vec::with_capacity(32);
        let mut metadata = None;
        match &self.message {
            Message::Payload { label, meta, data } => {
                out.put_u8(PAYLOAD);
                put_varint(&mut out, u64::from(self.generation));
                out.put_u64(label.timestamp.0);
                put_varint(&mut out, u64::from(label.target));
                put_meta(&mut out, meta);
                metadata = Some(out.len());
                out.put_slice(data);
            }
            Message::Beat { at, meta } => {
                out.put_u8(BEAT);
                put_varint(&mut out, u64::from(self.generation));
                out.put_u64(at.0);
                put_meta(&mut out, meta);
            }
            Message::Mark { at } => {
                out.put_u8(MARK);
                put_varint(&mut out, u64::from(self.generation));
                out.put_u64(at.0);
            }
            Message::Label { epoch, label } => {
                out.put_u8(LABEL);
                put_varint(&mut out, u64::from(self.generation));
                put_varint(&mut out, u64::from(*epoch));
                let has_floor = label.floor > Timestamp::ZERO;
                out.put_u8(label.label.kind as u8 | u8::from(has_floor) << 7);
                out.put_u16(label.label.source.0);
                out.put_u64(label.label.timestamp.0);
                out.put_u32(label.label.target);
                out.put_u64(label.interest.0);
                if has_floor {
                    out.put_u64(label.floor.0);
                }
            }
        }
        let metadata = metadata.unwrap_or(out.len());
        (Bytes::from(out), metadata)
    }

    /// Reads what came from `from`.
    ///
    /// # Errors
    /// [`crate::Error::Malformed`] with the offset of the first byte that does not fit.
    pub fn decode(from: Address, bytes: Bytes) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let tag = reader.byte()?;
        let number = |reader: &mut Reader| {
            reader.below(1 << 32, "a number is greater than 32 bits").map(|value| value as u32)
        };
        let generation = number(&mut reader)?;
        let message = match (tag, from) {
            (PAYLOAD, Address::Region(source)) => {
                let timestamp = Timestamp(reader.u64()?);
                let target = number(&mut reader)?;
                let label = Label { kind: LabelKind::Update, source, timestamp, target };
                let meta = read_meta(&mut reader)?;
                return Ok(Self {
                    generation,
                    message: Message::Payload { label, meta, data: reader.rest() },
                });
            }
            (BEAT, Address::Region(_)) => {
                Message::Beat { at: Timestamp(reader.u64()?), meta: read_meta(&mut reader)? }
            }
            (MARK, Address::Region(_)) => Message::Mark { at: Timestamp(reader.u64()?) },
            (LABEL, _) => {
                let epoch = number(&mut reader)?;
                Message::Label { epoch, label: read_label(&mut reader)? }
            }
            (PAYLOAD..=LABEL, _) => return reader.malformed("a serializer sends labels only"),
            _ => return reader.malformed("an unknown kind of message"),
        };
        reader.end()?;
        Ok(Self { generation, message })
    }
}

fn put_meta(out: &mut Vec<u8>, meta: &Meta) {
    match meta {
        Meta::None => out.put_u8(0),
        Meta::Counts(counts) => {
            out.put_u8(1);
            put_varint(out, counts.len() as u64);
            for count in counts {
                out.put_u8(count.source << 4 | count.target);
                put_varint(out, count.increment);
            }
        }
        Meta::Lane(lane) => out.put_slice(&[2, *lane]),
        Meta::Vector(lane, stamps) => {
            out.put_slice(&[3, *lane, stamps.len() as u8]);
            stamps.iter().for_each(|stamp| out.put_u64(stamp.0));
        }
    }
}

fn read_meta(reader: &mut Reader) -> Result<Meta> {
    match reader.byte()? {
        0 => Ok(Meta::None),
        1 => {
            let length = reader.below(257, "more counts than pairs of regions")?;
            let mut counts = Vec::new();
            for _ in 0..length {
                let pair = reader.byte()?;
                let increment = reader.varint()?;
                counts.push(Count { source: pair >> 4, target: pair & 15, increment });
            }
            Ok(Meta::Counts(counts))
        }
        2 => Ok(Meta::Lane(reader.byte()?)),
        3 => {
            let lane = reader.byte()?;
            let length = reader.byte()?;
            let stamps =
                (0..length).map(|_| Ok(Timestamp(reader.u64()?))).collect::<Result<_>>()?;
            Ok(Meta::Vector(lane, stamps))
        }
        _ => reader.malformed("an unknown kind of metadata"),
    }
}

fn read_label(reader: &mut Reader) -> Result<TreeLabel> {
    let kind = reader.byte()?;
    let has_floor = kind & 0x80 != 0;
    let kind = match kind & 0x7f {
        0 => LabelKind::Update,
        1 => LabelKind::Migration,
        2 => LabelKind::EpochChange,
        _ => return reader.malformed("an unknown kind of label"),
    };
    let source = RegionId(u16::from_be_bytes(reader.fixed()?));
    let timestamp = Timestamp(reader.u64()?);
    let target = u32::from_be_bytes(reader.fixed()?);
    let interest = RegionSet(reader.u64()?);
    let floor = if has_floor { Timestamp(reader.u64()?) } else { Timestamp::ZERO };
    Ok(TreeLabel { label: Label { kind, source, timestamp, target }, interest, floor })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn meta() -> impl Strategy<Value = Meta> {
        let count = (0..16_u8, 0..16_u8, any::<u64>())
            .prop_map(|(source, target, increment)| Count { source, target, increment });
        prop_oneof![
            Just(Meta::None),
            prop::collection::vec(count, 0..20).prop_map(Meta::Counts),
            any::<u8>().prop_map(Meta::Lane),
            (any::<u8>(), prop::collection::vec(any::<u64>().prop_map(Timestamp), 0..17))
                .prop_map(|(lane, stamps)| Meta::Vector(lane, stamps)),
        ]
    }

    fn message() -> impl Strategy<Value = Message> {
        let data = prop::collection::vec(any::<u8>(), 0..9).prop_map(Bytes::from);
        let payload =
            (any::<u64>(), any::<u32>(), meta(), data).prop_map(|(at, target, meta, data)| {
                let label = Label { target, ..Label::update(RegionId(3), Timestamp(at)) };
                Message::Payload { label, meta, data }
            });
        let label = (0..3_u8, any::<u16>(), any::<u64>(), any::<u64>(), any::<u64>()).prop_map(
            |(kind, source, at, interest, floor)| {
                let kind = [LabelKind::Update, LabelKind::Migration, LabelKind::EpochChange]
                    [usize::from(kind)];
                let (source, timestamp) = (RegionId(source), Timestamp(at));
                let label = Label { kind, source, timestamp, target: 9 };
                let label =
                    TreeLabel { label, interest: RegionSet(interest), floor: Timestamp(floor) };
                Message::Label { epoch: 7, label }
            },
        );
        prop_oneof![
            payload,
            (any::<u64>(), meta()).prop_map(|(at, meta)| Message::Beat { at: Timestamp(at), meta }),
            any::<u64>().prop_map(|at| Message::Mark { at: Timestamp(at) }),
            label,
        ]
    }

    proptest! {
        #[test]
        fn message_written_and_read_is_the_same_and_what_is_cut_or_followed_is_refused(
            generation in any::<u32>(), message in message()
        ) {
            let from = Address::Region(RegionId(3));
            let envelope = Envelope { generation, message };
            let (bytes, metadata) = envelope.encode();
            let longer = [&bytes[..], &[0]].concat();
            let is_payload = matches!(envelope.message, Message::Payload { .. });
            prop_assert_eq!(Envelope::decode(from, longer.into()).is_ok(), is_payload);
            prop_assert_eq!(Envelope::decode(from, bytes.clone()), Ok(envelope));
            for cut in 0..metadata {
                prop_assert!(Envelope::decode(from, bytes.slice(..cut)).is_err());
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = Envelope::decode(Address::Region(RegionId(0)), bytes.into());
        }
    }
}
