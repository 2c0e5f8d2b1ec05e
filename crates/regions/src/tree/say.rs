//! What regions say to each other about a tree: who runs what, and labels.
//! `docs/reference/formats/regions.md` has the tables.
//!
//! # Invariants
//! A label has the same size whatever it is of: [`LABEL_BYTES`].
//!
//! # On failure
//! What does not decode is refused with the reason; nothing of it was taken.
//!
//! # Limits
//! [`LABELS`] labels in a request.

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::cursor::{Cursor, Malformed, put_string, put_varint};
use telesto_common::{Label, LabelKind, RegionId, Timestamp};
use telesto_geo::{Node, RegionSet, TreeLabel};

/// Labels in one request, at most.
pub(crate) const LABELS: usize = 512;
/// Kind, source, time, target, interest.
pub(crate) const LABEL_BYTES: usize = 1 + 2 + 8 + 4 + 8;

/// A directed edge of a tree.
pub(crate) type Edge = (Node, Node);

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Say {
    /// What do you run?
    Standing,
    /// Here is a plan.
    Know(String),
    /// Make ready for this epoch of this plan.
    Prepare { epoch: u64, plan: String },
    /// Everybody is ready: send labels.
    Begin { epoch: u64 },
    /// Nobody follows the tree any more.
    End { epoch: u64 },
    /// Labels of an edge, numbered from `first` on; `life` tells one process that sends them from
    /// the next.
    Labels { epoch: u64, life: u64, edge: Edge, first: u64, labels: Vec<TreeLabel> },
}

/// What is answered to all but labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Tells this process from the next one of the region.
    pub life: u64,
    /// The number of the newest plan that it knows; 0: none.
    pub plan: u64,
    /// It follows the tree.
    pub wants: bool,
    /// Its streams to all others run, and nothing that it had lost is missing.
    pub ready: bool,
    /// The epoch that it runs; 0: none.
    pub epoch: u64,
    pub begun: bool,
    pub broken: bool,
    /// The greatest epoch that it has heard of.
    pub seen: u64,
}

/// What is answered to labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Took {
    /// Everything below `expected` was taken, by the process `life`.
    Up { life: u64, expected: u64 },
    /// It does not run this epoch, or hears the edge from another process: the epoch is over.
    Over,
}

const STANDING: u8 = 1;
const KNOW: u8 = 2;
const PREPARE: u8 = 3;
const BEGIN: u8 = 4;
const END: u8 = 5;
const LABELS_OF: u8 = 6;

fn put_node(node: Node, out: &mut BytesMut) {
    let (kind, number) = match node {
        Node::Region(region) => (0, region.0),
        Node::Serializer(index) => (1, index),
    };
    out.put_u8(kind);
    out.put_u16_le(number);
}

fn take_node(cursor: &mut Cursor) -> Result<Node, Malformed> {
    match (cursor.u8()?, cursor.u16()?) {
        (0, region) => Ok(Node::Region(RegionId(region))),
        (1, index) => Ok(Node::Serializer(index)),
        (kind, _) => Err(format!("a node of kind {kind} of a tree is not known")),
    }
}

fn put_label(of: &TreeLabel, out: &mut BytesMut) {
    out.put_u8(of.label.kind as u8);
    out.put_u16_le(of.label.source.0);
    out.put_u64_le(of.label.timestamp.0);
    out.put_u32_le(of.label.target);
    out.put_u64_le(of.interest.0);
}

fn take_label(cursor: &mut Cursor) -> Result<TreeLabel, Malformed> {
    let kind = match cursor.u8()? {
        0 => LabelKind::Update,
        1 => LabelKind::Migration,
        2 => LabelKind::EpochChange,
        kind => return Err(format!("a label of kind {kind} is not known")),
    };
    let (source, timestamp) = (RegionId(cursor.u16()?), Timestamp(cursor.u64()?));
    let label = Label { kind, source, timestamp, target: cursor.u32()? };
    Ok(TreeLabel { label, interest: RegionSet(cursor.u64()?), floor: Timestamp::ZERO })
}

fn take_text(cursor: &mut Cursor) -> Result<String, Malformed> {
    let text = cursor.string()?;
    std::str::from_utf8(&text).map(str::to_owned).map_err(|error| error.to_string())
}

impl Say {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Standing => out.put_u8(STANDING),
            Self::Know(plan) => {
                out.put_u8(KNOW);
                put_string(&mut out, plan.as_bytes());
            }
            Self::Prepare { epoch, plan } => {
                out.put_u8(PREPARE);
                out.put_u64_le(*epoch);
                put_string(&mut out, plan.as_bytes());
            }
            Self::Begin { epoch } => {
                out.put_u8(BEGIN);
                out.put_u64_le(*epoch);
            }
            Self::End { epoch } => {
                out.put_u8(END);
                out.put_u64_le(*epoch);
            }
            Self::Labels { epoch, life, edge, first, labels } => {
                out.put_u8(LABELS_OF);
                out.put_u64_le(*epoch);
                out.put_u64_le(*life);
                put_node(edge.0, &mut out);
                put_node(edge.1, &mut out);
                put_varint(&mut out, *first);
                put_varint(&mut out, labels.len() as u64);
                labels.iter().for_each(|label| put_label(label, &mut out));
            }
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let said = match cursor.u8()? {
            STANDING => Self::Standing,
            KNOW => Self::Know(take_text(&mut cursor)?),
            PREPARE => Self::Prepare { epoch: cursor.u64()?, plan: take_text(&mut cursor)? },
            BEGIN => Self::Begin { epoch: cursor.u64()? },
            END => Self::End { epoch: cursor.u64()? },
            LABELS_OF => {
                let (epoch, life) = (cursor.u64()?, cursor.u64()?);
                let edge = (take_node(&mut cursor)?, take_node(&mut cursor)?);
                let first = cursor.varint()?;
                let count = cursor.count(LABEL_BYTES)?;
                let labels = (0..count).map(|_| take_label(&mut cursor)).collect::<Result<_, _>>();
                Self::Labels { epoch, life, edge, first, labels: labels? }
            }
            kind => return Err(format!("{kind} is not known to be said of trees")),
        };
        cursor.finish()?;
        Ok(said)
    }
}

impl Standing {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        for number in [self.life, self.plan, self.epoch, self.seen] {
            out.put_u64_le(number);
        }
        for flag in [self.wants, self.ready, self.begun, self.broken] {
            out.put_u8(u8::from(flag));
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let (life, plan) = (cursor.u64()?, cursor.u64()?);
        let (epoch, seen) = (cursor.u64()?, cursor.u64()?);
        let mut flag = || Ok::<_, Malformed>(cursor.u8()? != 0);
        let (wants, ready, begun, broken) = (flag()?, flag()?, flag()?, flag()?);
        cursor.finish()?;
        Ok(Self { life, plan, wants, ready, epoch, begun, broken, seen })
    }
}

impl Took {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Over => out.put_u8(0),
            Self::Up { life, expected } => {
                out.put_u8(1);
                out.put_u64_le(*life);
                put_varint(&mut out, *expected);
            }
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let took = match cursor.u8()? {
            0 => Self::Over,
            1 => Self::Up { life: cursor.u64()?, expected: cursor.varint()? },
            kind => return Err(format!("an answer of kind {kind} to labels is not known")),
        };
        cursor.finish()?;
        Ok(took)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn what_is_said_of_trees_is_read_back_and_any_bytes_are_read_or_refused(
            number in any::<u64>(),
            target in any::<u32>(),
            kind in 0_u8..3,
            flags in any::<[bool; 4]>(),
            garbage in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let kind = [LabelKind::Update, LabelKind::Migration, LabelKind::EpochChange]
                [usize::from(kind)];
            let label = Label { kind, source: RegionId(3), timestamp: Timestamp(number), target };
            let label = TreeLabel { label, interest: RegionSet(number), floor: Timestamp::ZERO };
            let edge = (Node::Region(RegionId(3)), Node::Serializer(1));
            let labels = |count| Say::Labels {
                epoch: number,
                life: 5,
                edge,
                first: 9,
                labels: vec![label; count],
            };
            let [one, two] = [1, 2].map(|count| labels(count).encode().len());
            prop_assert_eq!(two - one, LABEL_BYTES);
            for said in [
                Say::Standing,
                Say::Know("a plan".to_owned()),
                Say::Prepare { epoch: number, plan: "a plan".to_owned() },
                Say::Begin { epoch: number },
                Say::End { epoch: number },
                labels(3),
            ] {
                prop_assert_eq!(Say::decode(said.encode()), Ok(said));
            }
            let [wants, ready, begun, broken] = flags;
            let standing = Standing {
                life: 1,
                plan: number,
                wants,
                ready,
                epoch: 3,
                begun,
                broken,
                seen: 4,
            };
            prop_assert_eq!(Standing::decode(standing.encode()), Ok(standing));
            for took in [Took::Over, Took::Up { life: number, expected: number }] {
                prop_assert_eq!(Took::decode(took.encode()), Ok(took));
            }
            let garbage = Bytes::from(garbage);
            let _ = Say::decode(garbage.clone());
            let _ = Standing::decode(garbage.clone());
            let _ = Took::decode(garbage);
        }
    }
}
