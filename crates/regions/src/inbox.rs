//! What came from other regions and waits to be applied: a state machine without I/O.
//!
//! ```text
//! batch of i ─► queue of i ── its past is here? ─► transactions to apply, and the state to note with them in the same entry
//! ```
//! # Invariants
//! - A transaction is given out only after everything of its past that goes to this region was given out (`matrix`).
//! - Each stream in its order; what was applied before is not given out again.
//! - The state says exactly what was given out: stored beside it, it is where the region goes on after a crash.
//!
//! # On failure
//! A batch that does not begin where its stream stands here changes nothing.
//!
//! # Limits
//! The caller bounds what is queued of each source by [`Inbox::queued_bytes`]. By source: what is first in the causal order of all that
//! was not applied is first in its own stream, so that it is here, or there is room for it.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::cursor::{Cursor, Malformed, put_varint};
use telesto_common::{Label, RegionId, Timestamp};
use telesto_geo::{Bug, PlaneKind};

use crate::past::Past;
use crate::wire::{Batch, KeyWrite, Position};

const VERSION: u8 = 1;

/// A remote transaction to apply.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub label: Label,
    pub writes: Vec<KeyWrite>,
}

impl Remote {
    /// What it writes to `key`, if it does.
    pub fn written(&self, key: &Bytes) -> Option<&Bytes> {
        let write = self.writes.iter().find(|write| write.key == *key);
        write.and_then(|write| write.value.as_ref())
    }
}

#[derive(Debug)]
enum Item {
    Transaction {
        at: Timestamp,
        past: Past,
        writes: Vec<KeyWrite>,
        bytes: usize,
    },
    /// The stream has passed this position.
    End(Box<Position>),
}

#[derive(Debug, Default)]
struct Source {
    /// Transactions of the stream that were applied.
    applied: u64,
    /// Where the stream is taken up again after a crash.
    resume: Position,
    /// Everything of the source up to here that goes to this region was applied.
    passed: Timestamp,
    /// The end of what came.
    received: Position,
    queue: VecDeque<Item>,
    /// Memory of what waits, about.
    bytes: usize,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Inbox {
    me: RegionId,
    plane: PlaneKind,
    planted: Option<Bug>,
    /// Where definitions are made: they and what needs them are in order on every plane.
    defining: Option<RegionId>,
    /// What was applied brought this into the past.
    known: Past,
    sources: BTreeMap<RegionId, Source>,
    /// A stream has begun, which is not stored yet.
    begun: bool,
}

impl Inbox {
    pub fn new(me: RegionId, plane: PlaneKind, planted: Option<Bug>) -> Self {
        let (known, sources) = (Past::default(), BTreeMap::new());
        Self { me, plane, planted, defining: None, known, sources, begun: false }
    }

    /// `region` makes definitions. What it sends waits for all of its past on every plane, and what the others send for the definitions: rows
    /// of a table never come before it, and a region never answers from a table of which it has a part only.
    pub fn defined_in(mut self, region: RegionId) -> Self {
        self.defining = Some(region);
        self
    }

    /// As it was when `stored` was written.
    pub fn restore(&mut self, stored: Bytes) -> Result<(), Malformed> {
        let (known, sources) = decode(stored)?;
        self.known = known;
        self.sources = sources;
        Ok(())
    }

    /// What is to be stored with everything given out so far.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(VERSION);
        self.known.put_since(&Past::default(), &mut out);
        put_varint(&mut out, self.sources.len() as u64);
        for (region, source) in &self.sources {
            out.put_u16_le(region.0);
            put_varint(&mut out, source.applied);
            out.put_u64_le(source.passed.0);
            source.resume.put(&mut out);
        }
        out.freeze()
    }

    /// Where the stream of `source` stands; nothing when none has begun.
    pub fn received(&self, source: RegionId) -> Option<&Position> {
        self.sources.get(&source).map(|source| &source.received)
    }

    /// Takes a batch that begins where the stream stands.
    pub fn take(&mut self, from: RegionId, batch: Batch) {
        let Some(source) = self.sources.get_mut(&from) else { return };
        for element in batch.elements {
            let writes: usize = element.writes.iter().map(KeyWrite::bytes).sum();
            let bytes = writes + Past::BYTES;
            source.bytes += bytes;
            let (at, past, writes) = (element.at, element.past, element.writes);
            source.queue.push_back(Item::Transaction { at, past, writes, bytes });
        }
        source.received = batch.end.clone();
        source.queue.push_back(Item::End(Box::new(batch.end)));
    }

    /// Begins the stream of `from` at `position`; everything before it is here as rows.
    pub fn begin(&mut self, from: RegionId, position: Position) {
        let source = self.sources.entry(from).or_default();
        source.queue.clear();
        source.bytes = 0;
        source.applied = source.applied.max(position.past.get(from, self.me));
        source.received = position.clone();
        source.resume = position.clone();
        source.queue.push_back(Item::End(Box::new(position)));
        self.begun = true;
    }

    /// Forgets the stream of `from`: it begins anew.
    pub fn forget(&mut self, from: RegionId) {
        self.sources.remove(&from);
    }

    /// Whether a stream has begun since this was asked last: where it begins is to be stored.
    pub fn has_begun(&mut self) -> bool {
        std::mem::take(&mut self.begun)
    }

    /// Memory of what waits of `source`, about.
    pub fn queued_bytes(&self, source: RegionId) -> usize {
        self.sources.get(&source).map_or(0, |source| source.bytes)
    }

    /// Transactions that wait, by source.
    pub fn waiting(&self, source: RegionId) -> usize {
        let transaction = |item: &&Item| matches!(item, Item::Transaction { .. });
        self.sources
            .get(&source)
            .map_or(0, |source| source.queue.iter().filter(transaction).count())
    }

    /// Everything of each source up to these times is here.
    pub fn passed(&self) -> BTreeMap<RegionId, Timestamp> {
        self.sources.iter().map(|(region, source)| (*region, source.passed)).collect()
    }

    /// What was applied brought this into the past.
    pub fn known(&self) -> &Past {
        &self.known
    }

    /// Gives out what may be applied now, in this order, about `max_bytes` of it. A transaction that writes `stamp` is the last one:
    /// what comes behind it is to be read by the definitions that it brings.
    pub fn due(&mut self, max_bytes: usize, stamp: Option<&Bytes>) -> Vec<Remote> {
        let mut out = Vec::new();
        let mut bytes = 0;
        let regions: Vec<RegionId> = self.sources.keys().copied().collect();
        loop {
            let mut moved = false;
            for from in &regions {
                while bytes < max_bytes && self.is_due(*from) {
                    moved = true;
                    if let Some(remote) = self.pop(*from) {
                        bytes += remote.writes.iter().map(KeyWrite::bytes).sum::<usize>() + 64;
                        let defines = stamp.is_some_and(|stamp| remote.written(stamp).is_some());
                        out.push(remote);
                        if defines {
                            return out;
                        }
                    }
                }
            }
            if !moved || bytes >= max_bytes {
                return out;
            }
        }
    }

    fn is_due(&self, from: RegionId) -> bool {
        let Some(front) = self.sources.get(&from).and_then(|source| source.queue.front()) else {
            return false;
        };
        let past = match front {
            Item::Transaction { past, .. } => past,
            Item::End(position) => &position.past,
        };
        let defines = |region| self.defining == Some(region);
        (0..crate::past::MEMBERS as u16).map(RegionId).all(|other| {
            let waits_for = past.get(other, self.me);
            let applied = self.sources.get(&other).map_or(0, |source| source.applied);
            let any_order = self.plane == PlaneKind::Eventual && !defines(from) && !defines(other);
            any_order || other == self.me || other == from || applied >= waits_for
        })
    }

    fn pop(&mut self, from: RegionId) -> Option<Remote> {
        let source = self.sources.get_mut(&from)?;
        let merges = self.planted != Some(Bug::ColumnNotMerged);
        match source.queue.pop_front()? {
            Item::End(position) => {
                if merges {
                    self.known.absorb(&position.past);
                }
                source.passed = source.passed.max(position.at);
                source.resume = *position;
                None
            }
            Item::Transaction { at, past, writes, bytes } => {
                source.bytes -= bytes;
                let number = past.get(from, self.me);
                if number <= source.applied {
                    return None;
                }
                source.applied = number;
                if merges {
                    self.known.absorb(&past);
                }
                Some(Remote { label: Label::update(from, at), writes })
            }
        }
    }
}

type Decoded = (Past, BTreeMap<RegionId, Source>);

fn decode(stored: Bytes) -> Result<Decoded, Malformed> {
    let mut cursor = Cursor::new(stored);
    let version = cursor.u8()?;
    if version != VERSION {
        return Err(format!("progress of version {version} is not known"));
    }
    let mut known = Past::default();
    known.take_since(&mut cursor)?;
    let mut sources = BTreeMap::new();
    for _ in 0..cursor.count(30)? {
        let region = RegionId(cursor.u16()?);
        let applied = cursor.varint()?;
        let passed = Timestamp(cursor.u64()?);
        let resume = Position::take(&mut cursor)?;
        let received = resume.clone();
        sources.insert(
            region,
            Source { applied, resume, passed, received, queue: VecDeque::new(), bytes: 0 },
        );
    }
    cursor.finish()?;
    Ok((known, sources))
}

/// The past that a stored state brings with it.
pub(crate) fn known_of(stored: Bytes) -> Result<Past, Malformed> {
    decode(stored).map(|(known, _)| known)
}

#[cfg(test)]
mod tests {
    use telesto_common::Lsn;
    use telesto_geo::RegionSet;

    use super::*;
    use crate::wire::Element;

    const ME: RegionId = RegionId(3);

    /// A batch of `source` with one transaction that has seen one of each of `seen`.
    fn batch(source: u16, seen: &[u16]) -> Batch {
        let mut past = Past::default();
        for region in seen.iter().chain(&[source]) {
            past.count(RegionId(*region), RegionSet::only(ME));
        }
        let at = Timestamp(u64::from(source) + 1);
        let element = Element { at, past: past.clone(), writes: Vec::new() };
        let end = Position { lsn: Lsn(1), hash: [1; 16], at, past };
        Batch { begin: (Lsn(0), [0; 16]), elements: vec![element], end }
    }

    fn due(plane: PlaneKind, defining: Option<u16>, batches: &[(u16, &[u16])]) -> Vec<u16> {
        let inbox = Inbox::new(ME, plane, None);
        let mut inbox = match defining {
            Some(region) => inbox.defined_in(RegionId(region)),
            None => inbox,
        };
        for (source, seen) in batches {
            inbox.begin(RegionId(*source), Position::default());
            inbox.take(RegionId(*source), batch(*source, seen));
        }
        inbox.due(usize::MAX, None).iter().map(|remote| remote.label.source.0).collect()
    }

    #[test]
    fn eventual_plane_waits_for_definitions_alone_and_definitions_for_everything() {
        assert_eq!(due(PlaneKind::Matrix, Some(0), &[(1, &[2])]), [] as [u16; 0]);
        assert_eq!(due(PlaneKind::Matrix, Some(0), &[(1, &[2]), (2, &[])]), [2, 1]);
        assert_eq!(due(PlaneKind::Eventual, None, &[(1, &[2])]), [1]);
        assert_eq!(due(PlaneKind::Eventual, Some(0), &[(1, &[2])]), [1]);
        assert_eq!(due(PlaneKind::Eventual, Some(0), &[(1, &[0])]), [] as [u16; 0]);
        assert_eq!(due(PlaneKind::Eventual, Some(0), &[(1, &[0]), (0, &[])]), [0, 1]);
        assert_eq!(due(PlaneKind::Eventual, Some(0), &[(0, &[1])]), [] as [u16; 0]);
    }
}
