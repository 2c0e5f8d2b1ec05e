//! What came from other regions and waits to be applied: a state machine without I/O.
//!
//! ```text
//! batch of i ─► queue of i ── its past is here? ─► transactions to apply, and the state to note with them in the same entry
//! ```
//! # Invariants
//! - A transaction is given out only after everything of its past that goes to this region was
//!   given out: by its counts (`matrix`), or because its label has its turn (`tree`, while that is
//!   followed). On `timestamp` by its counts, and in the order of labels.
//! - Each stream in its order; what was applied before is not given out again.
//! - The state says exactly what was given out: stored beside it, it is where the region goes on
//!   after a crash.
//! - What came of a region by another one is numbered as in its own stream, and is passed over when
//!   it comes by that.
//! - A row whose table is not defined yet stays, and its stream with it, whatever its past says.
//!   The others go on: one of them has the definition.
//!
//! # On failure
//! A batch that does not begin where its stream stands here changes nothing.
//!
//! # Limits
//! The caller bounds what is queued of each source by [`Inbox::queued_bytes`]: transactions, and
//! the positions between them, of which hardly more than two stand in a row, so that batches
//! without a transaction can come for as long as a queue stands. By source: what is first in the
//! causal order of all that was not applied is first in its own stream, so that it is here, or
//! there is room for it. What came is kept for other regions as far as [`KEPT_BYTES`] go.

mod again;
mod labels;
mod stored;
mod times;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::cursor::{Malformed, put_varint};
use telesto_common::{Label, RegionId, Timestamp};
use telesto_geo::{Bug, PlaneKind, RegionSet};

use self::stored::decode;
pub(crate) use self::stored::{known_of, stood};
use crate::defined::Defined;
use crate::past::Past;
use crate::tree::Order;
use crate::wire::{Batch, Element, KeyWrite, LabelledRow, Position};

const VERSION: u8 = 1;
/// Transactions applied of a region that is closed: nothing waits for it.
const CLOSED: u64 = u64::MAX >> 1;
/// Bytes of transactions of each source that are kept, about, for regions that its link does not
/// reach.
const KEPT_BYTES: usize = 2 << 20;
/// Bytes of transactions in an answer for such a region, about.
const AGAIN_BYTES: usize = 1 << 20;

/// A remote transaction to apply.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub label: Label,
    pub writes: Vec<KeyWrite>,
    pub way: Way,
}

/// When a transaction passed what, by this region's clock in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Way {
    pub came: u64,
    /// It was given out.
    pub due: u64,
    /// Its past was not here when it was looked at first.
    pub waited: bool,
    /// Its label has let it pass.
    pub by_label: bool,
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
        came: u64,
        /// The turn in which it came.
        turn: u64,
    },
    /// The stream has passed this position; told when `came`.
    End { position: Box<Position>, came: u64 },
}

#[derive(Debug, Default)]
struct Source {
    /// Transactions of the stream that were applied.
    applied: u64,
    /// The time of the newest of them, since this runner began.
    applied_at: Timestamp,
    /// Where the stream is taken up again after a crash.
    resume: Position,
    /// Everything of the source up to here that goes to this region was applied.
    passed: Timestamp,
    /// The end of what came.
    received: Position,
    queue: VecDeque<Item>,
    /// Memory of what waits, about.
    bytes: usize,
    /// The newest transactions that came, for regions that the source does not reach.
    kept: VecDeque<(Element, usize)>,
    kept_bytes: usize,
}

impl Source {
    /// The number of the newest transaction that came.
    fn came(&self, from: RegionId, me: RegionId) -> u64 {
        let last = self.queue.iter().rev().find_map(|item| match item {
            Item::Transaction { past, .. } => Some(past.get(from, me)),
            Item::End { .. } => None,
        });
        self.applied.max(last.unwrap_or_default())
    }

    fn push(&mut self, item: Item) {
        self.bytes += item.bytes();
        self.queue.push_back(item);
    }

    /// Takes out what stands at this place.
    fn remove(&mut self, at: usize) -> Option<Item> {
        let item = self.queue.remove(at)?;
        self.bytes = self.bytes.saturating_sub(item.bytes());
        Some(item)
    }

    /// Leaves out the position at this place of the queue, if others stand on both sides of it: the
    /// one before is the next to come, and the one behind holds all others. One that alone says
    /// more of the stream's own number stays: what others sent may wait for that, and the one
    /// behind for them.
    fn merge_ends(&mut self, at: usize, from: RegionId, me: RegionId) {
        let number = |at: usize| match self.queue.get(at) {
            Some(Item::End { position, .. }) => Some(position.past.get(from, me)),
            _ => None,
        };
        let before = at.checked_sub(1).and_then(number);
        if let (Some(before), Some(this), Some(_)) = (before, number(at), number(at + 1))
            && this <= before.max(self.applied)
        {
            self.remove(at);
        }
    }

    fn keep(&mut self, element: Element) {
        let bytes = element.writes.iter().map(KeyWrite::bytes).sum::<usize>() + Past::BYTES;
        self.kept_bytes += bytes;
        self.kept.push_back((element, bytes));
        while self.kept_bytes > KEPT_BYTES {
            let Some((_, bytes)) = self.kept.pop_front() else { break };
            self.kept_bytes -= bytes;
        }
    }
}

/// What one region waits for: transactions of `of` above a number, which `via` has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub via: RegionId,
    pub of: RegionId,
    pub above: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Inbox {
    me: RegionId,
    plane: PlaneKind,
    planted: Option<Bug>,
    /// Where definitions are, or were, made: they and what needs them are in order on every plane.
    defining: RegionSet,
    /// The key that is written with each definition.
    stamp: Option<Bytes>,
    /// Definitions are being applied, which may name another region.
    defined: bool,
    /// What was applied brought this into the past.
    known: Past,
    sources: BTreeMap<RegionId, Source>,
    /// The order of labels, on plane `tree` while an epoch of it runs.
    order: Option<Order>,
    /// A stream has begun, or another thing was changed that no transaction brought, which is not
    /// stored yet.
    begun: bool,
    /// How often it was asked what is due.
    turn: u64,
    /// Regions that are being closed: nothing waits for them any more, although not all that others
    /// had of them is here.
    closing: BTreeSet<RegionId>,
    /// Whose next transaction waited for definitions alone when it was asked last what is due.
    undefined: Option<RegionId>,
    /// The order of times, on plane `timestamp`.
    times: times::Times,
}

impl Inbox {
    pub fn new(me: RegionId, plane: PlaneKind, planted: Option<Bug>) -> Self {
        let (known, sources) = (Past::default(), BTreeMap::new());
        let (defining, stamp, order) = (RegionSet::default(), None, None);
        let (defined, begun, turn) = (false, false, 0);
        let (closing, undefined) = (BTreeSet::new(), None);
        let times = times::Times::default();
        Self {
            me,
            plane,
            planted,
            defining,
            stamp,
            defined,
            known,
            sources,
            order,
            begun,
            turn,
            closing,
            undefined,
            times,
        }
    }

    /// Transactions that write `stamp` define something: they wait for all of their past on every
    /// plane.
    pub fn stamped_by(&mut self, stamp: Bytes) {
        self.stamp = Some(stamp);
    }

    /// `region` makes definitions, as those that were applied say. What it sends waits for all of
    /// its past on every plane, and what the others send for the definitions: rows of a table never
    /// come before it, and a region never answers from a table of which it has a part only. That
    /// holds of the regions before it, too.
    pub fn defined_in(&mut self, region: Option<RegionId>) {
        self.defined = false;
        if let Some(region) = region {
            self.defining = self.defining.with(region);
        }
    }

    /// Definitions are about to be applied: until [`Inbox::defined_in`] is told who makes them by
    /// those, it is not known here.
    pub fn defines(&mut self) {
        self.defined = true;
    }

    /// As it was when `stored` was written.
    pub fn restore(&mut self, stored: Bytes) -> Result<(), Malformed> {
        let (known, sources) = decode(stored)?;
        self.known = known;
        self.sources = sources;
        Ok(())
    }

    /// Takes back everything that was given out since `stored` was written: the streams go on from
    /// there, as they do after a crash. Labels that have had their turn do not come again, so that
    /// pasts alone decide until another order is followed.
    pub fn take_back(&mut self, stored: Bytes) -> Result<(), Malformed> {
        self.restore(stored)?;
        self.order = None;
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
    pub fn take(&mut self, from: RegionId, batch: Batch, now: u64) {
        let (me, turn) = (self.me, self.turn);
        let Some(source) = self.sources.get_mut(&from) else { return };
        for element in batch.elements {
            source.keep(element.clone());
            source.push(queued(element, now, turn));
        }
        source.received = batch.end.clone();
        source.push(Item::End { position: Box::new(batch.end), came: now });
        if let Some(last_but_one) = source.queue.len().checked_sub(2) {
            source.merge_ends(last_but_one, from, me);
        }
    }

    /// Begins the stream of `from` at `position`; everything before it is here as rows.
    pub fn begin(&mut self, from: RegionId, position: Position, now: u64) {
        let source = self.sources.entry(from).or_default();
        source.queue.clear();
        source.bytes = 0;
        source.applied = source.applied.max(position.past.get(from, self.me));
        source.received = position.clone();
        source.resume = position.clone();
        source.push(Item::End { position: Box::new(position), came: now });
        self.begun = true;
    }

    /// Forgets the stream of `from`: it begins anew.
    pub fn forget(&mut self, from: RegionId) {
        self.sources.remove(&from);
    }

    /// Everything that was applied, or waits, brought this.
    pub fn known_all(&self) -> Past {
        let mut known = self.known.clone();
        for item in self.sources.values().flat_map(|source| &source.queue) {
            match item {
                Item::Transaction { past, .. } => known.absorb(past),
                Item::End { position, .. } => known.absorb(&position.past),
            }
        }
        known
    }

    /// How many transactions of each stream came.
    pub fn received_counts(&self) -> BTreeMap<RegionId, u64> {
        let came =
            |(region, source): (&RegionId, &Source)| (*region, source.came(*region, self.me));
        self.sources.iter().map(came).collect()
    }

    /// What waits of `of`, `skipped` transactions left out: about `max_bytes`, and how many
    /// transactions that are.
    pub fn waiting_rows(
        &self,
        of: RegionId,
        skipped: u64,
        max_bytes: usize,
    ) -> (Vec<LabelledRow>, u64) {
        let mut rows = Vec::new();
        let (mut bytes, mut count) = (0, 0);
        let waiting = self.sources.get(&of).into_iter().flat_map(|source| &source.queue);
        let transactions = waiting.filter_map(|item| match item {
            Item::Transaction { at, writes, .. } => Some((*at, writes)),
            Item::End { .. } => None,
        });
        for (at, writes) in transactions.skip(usize::try_from(skipped).unwrap_or(usize::MAX)) {
            if bytes >= max_bytes {
                break;
            }
            count += 1;
            for write in writes {
                bytes += write.bytes();
                rows.push(LabelledRow { source: of, at, write: write.clone() });
            }
        }
        (rows, count)
    }

    /// Nothing waits for `of` any more, which is to be closed when all is here that others had of
    /// it. That may stand behind a definition which waits for `of` itself. It is not noted: after a
    /// crash closing begins anew.
    pub fn begin_to_close(&mut self, of: RegionId) {
        self.closing.insert(of);
    }

    /// Takes nothing of `of` any more: what waits is left out, and nothing waits for it.
    pub fn close(&mut self, of: RegionId) {
        self.closing.remove(&of);
        let source = self.sources.entry(of).or_default();
        *source = Source { applied: CLOSED, passed: source.passed, ..Source::default() };
        self.begun = true;
    }

    /// Whether `of` was closed.
    pub fn is_closed(&self, of: RegionId) -> bool {
        self.sources.get(&of).is_some_and(|source| source.applied == CLOSED)
    }

    /// Goes on above everything that this region ever said: `told` is what its peers know.
    pub fn reincarnate(&mut self, told: &Past) {
        self.known.absorb(told);
        self.known.reincarnate(self.me);
        self.begun = true;
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

    /// Whose next transaction waits for definitions alone.
    pub fn undefined(&self) -> Option<RegionId> {
        self.undefined
    }

    /// Gives out what may be applied now and can be read by the definitions here, in this order,
    /// about `max_bytes` of it. A transaction that makes definitions is the last one: what comes
    /// behind it is to be read by those.
    pub fn due(&mut self, max_bytes: usize, defined: &Defined, now: u64) -> Vec<Remote> {
        self.turn += 1;
        self.undefined = None;
        self.look_who_may_be_passed(defined);
        self.look(now);
        let mut out = Vec::new();
        let mut bytes = 0;
        let mut give = |remote: Remote, bytes: &mut usize| {
            *bytes += remote.writes.iter().map(KeyWrite::bytes).sum::<usize>() + 64;
            let defines = defined.is_made_by(&remote.writes);
            out.push(remote);
            defines
        };
        let regions: Vec<RegionId> = self.sources.keys().copied().collect();
        loop {
            let mut moved = false;
            while bytes < max_bytes
                && let Some(remote) = self.pop_labelled(defined, now)
            {
                moved = true;
                if give(remote, &mut bytes) {
                    return out;
                }
            }
            for from in &regions {
                while bytes < max_bytes
                    && self.is_due(*from)
                    && !self.waits_for_label(*from)
                    && self.has_turn(*from)
                    && self.is_defined(*from, 0, defined)
                {
                    moved = true;
                    if let Some(remote) = self.pop(*from, now)
                        && give(remote, &mut bytes)
                    {
                        return out;
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
        let (past, writes) = match front {
            Item::Transaction { past, writes, .. } => (past, &writes[..]),
            Item::End { position, .. } => (&position.past, &[][..]),
        };
        let stamp = self.stamp.as_ref().filter(|_| self.plane == PlaneKind::Eventual);
        let stamped = stamp.is_some_and(|stamp| writes.iter().any(|write| write.key == *stamp));
        let defines = |region| stamped && region == from || self.defining.has(region);
        (0..crate::past::MEMBERS as u16).map(RegionId).all(|other| {
            let any_order = self.plane == PlaneKind::Eventual && !defines(from) && !defines(other);
            any_order || !self.lacks(other, from, past)
        })
    }

    /// Whether not all of `other` is here that `past`, of something that `from` sent, names.
    fn lacks(&self, other: RegionId, from: RegionId, past: &Past) -> bool {
        let applied = self.sources.get(&other).map_or(0, |source| source.applied);
        other != self.me
            && other != from
            && applied < past.get(other, self.me)
            && !self.closing.contains(&other)
    }

    /// For which of some regions the next transaction of `from` waits; nothing when it does not
    /// wait for them.
    pub fn waits_for(&self, from: RegionId, some: impl Fn(RegionId) -> bool) -> Option<RegionId> {
        let queue = &self.sources.get(&from)?.queue;
        let past = queue.iter().find_map(|item| match item {
            Item::Transaction { past, .. } => Some(past),
            Item::End { .. } => None,
        })?;
        let mut all = (0..crate::past::MEMBERS as u16).map(RegionId);
        all.find(|other| some(*other) && self.lacks(*other, from, past))
    }

    /// Whether what stands at this place of a queue can be read; that it cannot is noted.
    fn is_defined(&mut self, from: RegionId, at: usize, defined: &Defined) -> bool {
        let item = self.sources.get(&from).and_then(|source| Some((source, source.queue.get(at)?)));
        let Some((source, Item::Transaction { at, past, writes, .. })) = item else { return true };
        if past.get(from, self.me) <= source.applied || defined.reads(from, *at, writes) {
            return true;
        }
        self.undefined = Some(from);
        self.times.unread = self.times.unread.with(from);
        false
    }

    fn pop(&mut self, from: RegionId, now: u64) -> Option<Remote> {
        let item = self.sources.get_mut(&from)?.queue.pop_front()?;
        self.applied(from, item, now)
    }

    /// Notes that `item` of `from` is given out.
    fn applied(&mut self, from: RegionId, item: Item, now: u64) -> Option<Remote> {
        let (me, this_turn) = (self.me, self.turn);
        let source = self.sources.get_mut(&from)?;
        let merges = self.planted != Some(Bug::ColumnNotMerged);
        source.bytes = source.bytes.saturating_sub(item.bytes());
        match item {
            Item::End { position, .. } => {
                if merges {
                    self.known.absorb(&position.past);
                }
                source.passed = source.passed.max(position.at);
                // A new incarnation says by this that nothing of the one before will come any more.
                source.applied = source.applied.max(position.past.get(from, me));
                source.resume = *position;
                None
            }
            Item::Transaction { at, past, writes, came, turn, .. } => {
                let number = past.get(from, me);
                if number <= source.applied {
                    return None;
                }
                source.applied = number;
                source.applied_at = source.applied_at.max(at);
                if merges {
                    self.known.absorb(&past);
                }
                let way = Way { came, due: now, waited: turn + 1 < this_turn, by_label: false };
                Some(Remote { label: Label::update(from, at), writes, way })
            }
        }
    }
}

impl Item {
    /// What it waits for, and when it came.
    fn waits(&self) -> (&Past, u64) {
        match self {
            Self::Transaction { past, came, .. } => (past, *came),
            Self::End { position, came } => (&position.past, *came),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Transaction { bytes, .. } => *bytes,
            Self::End { .. } => Past::BYTES,
        }
    }
}

fn queued(element: Element, came: u64, turn: u64) -> Item {
    let Element { at, past, writes, .. } = element;
    let bytes = writes.iter().map(KeyWrite::bytes).sum::<usize>() + Past::BYTES;
    Item::Transaction { at, past, writes, bytes, came, turn }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use telesto_common::Lsn;
    use telesto_geo::RegionSet;
    use telesto_txn::regions::{DerivedEntries, Keeper, Meaning, Standing};

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
        let shared_with = RegionSet::default();
        let element = Element { at, past: past.clone(), shared_with, writes: Vec::new() };
        let end = Position { lsn: Lsn(1), hash: [1; 16], at, past };
        Batch { begin: (Lsn(0), [0; 16]), elements: vec![element], end }
    }

    fn due(plane: PlaneKind, defining: Option<u16>, batches: &[(u16, &[u16])]) -> Vec<u16> {
        let mut inbox = Inbox::new(ME, plane, None);
        inbox.defined_in(defining.map(RegionId));
        for (source, seen) in batches {
            inbox.begin(RegionId(*source), Position::default(), 0);
            inbox.take(RegionId(*source), batch(*source, seen), 0);
        }
        all_due(&mut inbox)
    }

    fn all_due(inbox: &mut Inbox) -> Vec<u16> {
        let due = inbox.due(usize::MAX, &Defined::default(), 0);
        due.iter().map(|remote| remote.label.source.0).collect()
    }

    /// Only keys that begin with a letter of it are defined.
    #[derive(Debug)]
    struct Letters(&'static str);

    impl Meaning for Letters {
        fn standing(&self, key: &[u8]) -> Standing {
            let known = self.0.as_bytes().contains(&key[0]);
            if known { Standing::Known } else { Standing::NotYet }
        }

        fn entries(
            &self,
            _: RegionId,
            _: &Bytes,
            _: Option<&Bytes>,
            _: Option<&Bytes>,
        ) -> Result<DerivedEntries, String> {
            Ok(DerivedEntries::default())
        }

        fn keeper(&self, _: &[u8]) -> Keeper {
            Keeper::Other
        }

        fn has_stopped(&self, _: &[u8], _: Option<&Bytes>) -> bool {
            false
        }
    }

    #[test]
    fn row_of_what_is_not_defined_stays_with_its_stream_and_the_others_go_on() {
        let mut inbox = Inbox::new(ME, PlaneKind::Matrix, None);
        for (source, key) in [(1, "t1"), (2, "s")] {
            inbox.begin(RegionId(source), Position::default(), 0);
            let mut batch = batch(source, &[]);
            let (key, value) = (Bytes::from_static(key.as_bytes()), Some(Bytes::new()));
            batch.elements[0].writes.push(KeyWrite { key, value });
            inbox.take(RegionId(source), batch, 0);
        }
        let by = |letters| Defined {
            stamp: Some(Bytes::from_static(b"s")),
            meaning: Some(Arc::new(Letters(letters))),
            ..Defined::default()
        };
        let mut due = |letters| {
            let due = inbox.due(usize::MAX, &by(letters), 0);
            (due.iter().map(|remote| remote.label.source.0).collect::<Vec<_>>(), inbox.undefined())
        };
        assert_eq!(due("a"), (vec![2], Some(RegionId(1))), "what defines something is not held");
        assert_eq!(due("a"), (vec![], Some(RegionId(1))));
        assert_eq!(due("t"), (vec![1], None));
    }

    /// A batch of region 1 that has no transaction.
    fn beat(number: u64) -> Batch {
        let mut past = batch(1, &[]).end.past;
        past.count(RegionId(0), RegionSet::only(RegionId(0)));
        let end = Position { lsn: Lsn(number), hash: [1; 16], at: Timestamp(number), past };
        Batch { begin: (Lsn(0), [0; 16]), elements: Vec::new(), end }
    }

    #[test]
    fn queue_that_stands_does_not_grow_by_batches_without_transactions() {
        let mut inbox = Inbox::new(ME, PlaneKind::Matrix, None);
        inbox.begin(RegionId(1), Position::default(), 0);
        inbox.begin(RegionId(2), Position::default(), 0);
        inbox.take(RegionId(1), batch(1, &[2]), 0);
        assert_eq!(all_due(&mut inbox), [] as [u16; 0], "it waits for region 2");
        let before = inbox.queued_bytes(RegionId(1));
        for number in 3..1000 {
            inbox.take(RegionId(1), beat(number), 0);
        }
        let queued = inbox.sources[&RegionId(1)].queue.len();
        assert!(queued <= 4, "{queued} wait");
        let bytes = inbox.queued_bytes(RegionId(1));
        assert!(bytes >= before && bytes <= before + 2 * Past::BYTES, "{before}, then {bytes}");
        inbox.take(RegionId(2), batch(2, &[]), 0);
        assert_eq!(all_due(&mut inbox), [2, 1]);
        assert_eq!(inbox.passed()[&RegionId(1)], Timestamp(999), "the newest place is known");
        assert_eq!(inbox.queued_bytes(RegionId(1)), 0);
    }

    #[test]
    fn positions_between_transactions_count_as_memory_until_they_are_passed() {
        let mut inbox = Inbox::new(ME, PlaneKind::Matrix, None);
        for source in [1, 2] {
            inbox.begin(RegionId(source), Position::default(), 0);
        }
        let of_one = inbox.queued_bytes(RegionId(1));
        assert!(of_one >= Past::BYTES, "{of_one}");
        inbox.take(RegionId(1), batch(1, &[2]), 0);
        assert!(inbox.queued_bytes(RegionId(1)) >= 3 * Past::BYTES);
        inbox.take(RegionId(2), batch(2, &[]), 0);
        assert_eq!(all_due(&mut inbox), [2, 1]);
        assert_eq!(inbox.queued_bytes(RegionId(1)), 0);
        assert_eq!(inbox.queued_bytes(RegionId(2)), 0);
    }

    #[test]
    fn nothing_waits_for_a_region_that_is_being_closed() {
        let mut inbox = Inbox::new(ME, PlaneKind::Matrix, None);
        inbox.begin(RegionId(1), Position::default(), 0);
        inbox.take(RegionId(1), batch(1, &[2]), 0);
        assert_eq!(all_due(&mut inbox), [] as [u16; 0]);
        inbox.begin_to_close(RegionId(2));
        assert!(!inbox.is_closed(RegionId(2)));
        assert_eq!(all_due(&mut inbox), [1]);
        // Of that nothing is noted.
        let mut later = Inbox::new(ME, PlaneKind::Matrix, None);
        later.restore(inbox.encode()).expect("read back");
        later.take(RegionId(1), batch(1, &[2]), 0);
        assert!(!later.is_closed(RegionId(2)));
    }

    #[test]
    fn what_others_serve_again_never_waits_for_what_depends_on_it() {
        let mut inbox = Inbox::new(ME, PlaneKind::Matrix, None);
        for source in [1, 2] {
            inbox.begin(RegionId(source), Position::default(), 0);
        }
        // Region 2 has seen what region 1 sent it. What it serves again of that is told with the
        // past of a batch that was made later: as if it had seen what depends on it.
        inbox.take(RegionId(2), batch(2, &[1]), 0);
        assert!(all_due(&mut inbox).is_empty());
        let missing = Missing { via: RegionId(2), of: RegionId(1), above: 0 };
        assert_eq!(inbox.missing(1), [missing]);
        assert_eq!(inbox.take_again(RegionId(1), batch(1, &[2]).elements, 0), 0);
        assert!(all_due(&mut inbox).is_empty());
        let again = batch(1, &[]).elements;
        assert_eq!(inbox.take_again(RegionId(1), again.clone(), 0), 1);
        assert_eq!(inbox.take_again(RegionId(1), again, 0), 0, "twice");
        inbox.take(RegionId(1), batch(1, &[]), 0);
        assert_eq!(all_due(&mut inbox), [1, 2]);
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
