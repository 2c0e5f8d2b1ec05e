//! The geo layer of one region: clock, plane, session tokens, change of planes.
//!
//! ```text
//!  change of planes   commit ─► old plane │ mark │ new plane          each stream: old, mark, new
//!                     receive: old plane until all marks have come and it holds nothing back; the new plane's messages wait
//! ```
//!
//! # Invariants
//! - A label is greater than everything this region has committed, applied, or been shown by a
//!   session.
//! - A session is attached only when everything that its token stands for was handed out to be
//!   applied.
//! - The new plane takes nothing before the old one has handed out everything committed before any
//!   mark.
//!
//! # On failure
//! A message that does not decode changes nothing: its link is to be torn down and resumed.
//!
//! # Limits
//! Tokens are not signed yet. Messages of a new plane wait in memory while a change lasts.

use std::collections::BTreeMap;

use bytes::Bytes;
use telesto_common::{Label, LabelKind, RegionId, Timestamp};

use crate::error::{Error, Result};
use crate::message::{Address, Envelope, Message};
use crate::plane::{CausalPlane, Commit, Output, PlaneConfig, PlaneKind, Transaction, others};
use crate::{Bug, Clock, RegionSet, Tree};

/// What a region is made from.
#[derive(Clone, Debug)]
pub struct RegionConfig {
    /// Which region this is: 0 to `members` - 1.
    pub me: RegionId,
    /// How many regions there are.
    pub members: usize,
    /// The plane it begins with, as generation 0.
    pub plane: PlaneConfig,
    /// For simulations only.
    pub planted: Option<Bug>,
}

/// A session that waits to be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachId(pub u64);

/// Whether a session may go on here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// Yes.
    Ready,
    /// When this comes out in [`RegionOutput::attached`].
    Waiting(AttachId),
}

/// A message to send: bytes and how many of them are metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Where to.
    pub to: Address,
    /// The whole message.
    pub bytes: Bytes,
    /// How many of the bytes are not a write set.
    pub metadata_bytes: usize,
}

/// What a region asks for.
#[derive(Debug, Default)]
pub struct RegionOutput {
    /// Messages to send on FIFO links, in this order.
    pub send: Vec<Outgoing>,
    /// Remote transactions to apply, in this order.
    pub apply: Vec<Transaction>,
    /// Sessions that may go on.
    pub attached: Vec<AttachId>,
}

/// A change of planes under way.
#[derive(Debug)]
struct Change {
    plane: Box<dyn CausalPlane>,
    /// By region: its clock at its mark.
    marks: Vec<Option<Timestamp>>,
    /// Messages of the new plane.
    held: Vec<(Address, Message)>,
}

/// The geo layer of one region.
#[derive(Debug)]
pub struct Region {
    me: RegionId,
    members: usize,
    clock: Clock,
    generation: u32,
    plane: Box<dyn CausalPlane>,
    change: Option<Change>,
    /// Messages of a generation this region was not told of yet.
    early: BTreeMap<u32, Vec<(Address, Message)>>,
    waiting: BTreeMap<AttachId, Label>,
    attaches: u64,
    planted: Option<Bug>,
}

impl Region {
    /// A region that begins at wall-clock time `now_micros`.
    ///
    /// # Errors
    /// Those of [`PlaneConfig::make`]; [`Error::UnknownRegion`] when `me` is no member.
    pub fn new(config: &RegionConfig, now_micros: u64) -> Result<Self> {
        let (me, members) = (config.me, config.members);
        if usize::from(me.0) >= members {
            return Err(Error::UnknownRegion { region: me, members });
        }
        let plane = config.plane.make(me, members, now_micros, config.planted)?;
        Ok(Self {
            me,
            members,
            clock: Clock::default(),
            generation: 0,
            plane,
            change: None,
            early: BTreeMap::new(),
            waiting: BTreeMap::new(),
            attaches: 0,
            planted: config.planted,
        })
    }

    /// The plane whose order counts here.
    #[must_use]
    pub fn plane(&self) -> PlaneKind {
        self.plane.kind()
    }

    /// The generation of that plane, and whether a change of planes is under way.
    #[must_use]
    pub fn generation(&self) -> (u32, bool) {
        (self.generation, self.change.is_some())
    }

    /// The epoch of the tree in use and whether a change of trees is under way; nothing on other
    /// planes.
    #[must_use]
    pub fn epoch(&self) -> Option<(u32, bool)> {
        self.plane.epoch()
    }

    /// How many remote transactions have come and wait for their past.
    #[must_use]
    pub fn pending(&self) -> usize {
        let payload =
            |(_, message): &&(Address, Message)| matches!(message, Message::Payload { .. });
        let held = self.change.iter().flat_map(|change| &change.held);
        self.plane.pending() + held.chain(self.early.values().flatten()).filter(payload).count()
    }

    /// Commits a local transaction that wrote what the regions of `placement` replicate; `target`
    /// is its table. Returns its label.
    pub fn commit(
        &mut self,
        now_micros: u64,
        target: u32,
        placement: RegionSet,
        data: Bytes,
        out: &mut RegionOutput,
    ) -> Label {
        let timestamp = self.clock.next(now_micros);
        let label = Label { target, ..Label::update(self.me, timestamp) };
        let commit = Commit { label, placement, data };
        let mut output = Output::default();
        let (plane, generation) = match &mut self.change {
            Some(change) => (&mut change.plane, self.generation + 1),
            None => (&mut self.plane, self.generation),
        };
        plane.commit(now_micros, &commit, &mut output);
        self.collect(output, generation, out);
        label
    }

    /// Takes a message that came from `from`, in its link's order.
    ///
    /// # Errors
    /// [`Error::Malformed`] or [`Error::UnknownRegion`] for what no correct peer sends; nothing has
    /// changed then.
    pub fn receive(
        &mut self,
        now_micros: u64,
        from: Address,
        bytes: Bytes,
        out: &mut RegionOutput,
    ) -> Result<()> {
        let Envelope { generation, message } = Envelope::decode(from, bytes)?;
        if generation < self.generation {
            // A beat, or a label of a serializer that is behind: the plane it was for has handed
            // everything out.
            return Ok(());
        }
        if generation > self.generation {
            if self.change.is_some() && generation == self.generation + 1 {
                self.take_new(now_micros, from, message, out);
            } else {
                self.early.entry(generation).or_default().push((from, message));
            }
        } else {
            let mut output = Output::default();
            self.plane.receive(now_micros, from, message, &mut output)?;
            self.collect(output, generation, out);
        }
        self.settle(now_micros, out);
        Ok(())
    }

    /// Lets time pass: beats, rounds, patience.
    pub fn tick(&mut self, now_micros: u64, out: &mut RegionOutput) {
        let closed = self.clock.close(now_micros);
        let mut output = Output::default();
        self.plane.tick(now_micros, closed, &mut output);
        if self.change.is_some() {
            // Behind its own mark a region says nothing more in the old plane.
            output.send.clear();
        }
        self.collect(output, self.generation, out);
        self.settle(now_micros, out);
    }

    /// When it wants a tick at the latest.
    #[must_use]
    pub fn next_tick(&self) -> Option<u64> {
        self.plane.next_tick()
    }

    /// The token of a session that has seen everything that is here now. Its time is one of its
    /// own: above every time that this region has told others it has passed, so that nothing sent
    /// before answers for it.
    pub fn token(&mut self, now_micros: u64) -> Label {
        Label::update(self.me, self.clock.next(now_micros))
    }

    /// The token of a session that moves to region `to`, where it will be attached as soon as the
    /// network allows.
    ///
    /// # Errors
    /// [`Error::UnknownRegion`].
    pub fn migrate(
        &mut self,
        now_micros: u64,
        to: RegionId,
        out: &mut RegionOutput,
    ) -> Result<Label> {
        self.check(to)?;
        let timestamp = self.clock.next(now_micros);
        let target = u32::from(to.0);
        let token = Label { kind: LabelKind::Migration, source: self.me, timestamp, target };
        if to != self.me {
            let mut output = Output::default();
            let (plane, generation) = match &mut self.change {
                Some(change) => (&mut change.plane, self.generation + 1),
                None => (&mut self.plane, self.generation),
            };
            plane.migrate(now_micros, &token, &mut output);
            self.collect(output, generation, out);
        }
        Ok(token)
    }

    /// Attaches a session that brings `token`. Until it is attached, it must not read or write
    /// here.
    ///
    /// # Errors
    /// [`Error::UnknownRegion`] when the token is of no member: it will never be attached.
    pub fn attach(&mut self, token: &Label) -> Result<Attach> {
        self.check(token.source)?;
        // What the session writes here must be greater than what it has seen.
        self.clock.show(token.timestamp);
        if self.is_here(token) || self.planted == Some(Bug::StaleAttach) {
            return Ok(Attach::Ready);
        }
        self.attaches += 1;
        let id = AttachId(self.attaches);
        self.waiting.insert(id, *token);
        Ok(Attach::Waiting(id))
    }

    /// Changes to another plane, as generation `generation`: one more than the present one. Every
    /// region must be told.
    ///
    /// # Errors
    /// [`Error::ChangeRefused`], or those of [`PlaneConfig::make`].
    pub fn change_plane(
        &mut self,
        now_micros: u64,
        generation: u32,
        plane: &PlaneConfig,
        out: &mut RegionOutput,
    ) -> Result<()> {
        let refused =
            |reason| Err(Error::ChangeRefused { what: "generation", asked: generation, reason });
        if self.change.is_some() || self.plane.epoch().is_some_and(|(_, changing)| changing) {
            return refused("a change is under way");
        }
        if generation != self.generation + 1 {
            return refused("generations grow by one");
        }
        let plane = plane.make(self.me, self.members, now_micros, self.planted)?;
        let at = self.clock.next(now_micros);
        for region in others(self.me, self.members) {
            send(generation, Address::Region(region), Message::Mark { at }, out);
        }
        self.change = Some(Change { plane, marks: vec![None; self.members], held: Vec::new() });
        for (from, message) in self.early.remove(&generation).unwrap_or_default() {
            self.take_new(now_micros, from, message, out);
        }
        self.settle(now_micros, out);
        Ok(())
    }

    /// Changes to another tree (the tree plane only). Every region must be told; the serializers of
    /// both trees must run meanwhile, those of the old one unless it is lost.
    ///
    /// # Errors
    /// [`Error::NoTree`], [`Error::NotATree`], [`Error::ChangeRefused`].
    pub fn change_tree(
        &mut self,
        now_micros: u64,
        tree: Tree,
        out: &mut RegionOutput,
    ) -> Result<()> {
        if self.change.is_some() {
            let reason = "a change of planes is under way";
            return Err(Error::ChangeRefused { what: "epoch", asked: tree.epoch, reason });
        }
        let at = self.clock.next(now_micros);
        let mut output = Output::default();
        self.plane.change_tree(now_micros, at, tree, &mut output)?;
        self.collect(output, self.generation, out);
        self.settle(now_micros, out);
        Ok(())
    }

    fn check(&self, region: RegionId) -> Result<()> {
        if usize::from(region.0) < self.members {
            return Ok(());
        }
        Err(Error::UnknownRegion { region, members: self.members })
    }

    fn is_here(&mut self, token: &Label) -> bool {
        // What its region did behind its mark is held back here with the new plane; the old one
        // knows nothing of it.
        let behind_mark = self.change.as_ref().is_some_and(|change| {
            let mark = change.marks.get(usize::from(token.source.0)).copied().flatten();
            mark.is_some_and(|mark| token.timestamp > mark)
        });
        token.source == self.me || (!behind_mark && self.plane.attach(token))
    }

    /// A message of the plane that comes: a mark closes the sender's stream in the old one, the
    /// rest waits.
    fn take_new(
        &mut self,
        now_micros: u64,
        from: Address,
        message: Message,
        out: &mut RegionOutput,
    ) {
        let Some(change) = &mut self.change else { return };
        match (from, message) {
            (Address::Region(source), Message::Mark { at })
                if usize::from(source.0) < self.members =>
            {
                change.marks[usize::from(source.0)] = Some(at);
                // A token made from here on is above every mark, so no old plane answers it too
                // early.
                self.clock.show(at);
                let mut output = Output::default();
                self.plane.close(now_micros, source, at, &mut output);
                output.send.clear();
                self.collect(output, self.generation, out);
            }
            (from, message) => change.held.push((from, message)),
        }
    }

    /// After any input: the change of planes ends when the old plane is empty, and sessions go on
    /// when their past is here.
    fn settle(&mut self, now_micros: u64, out: &mut RegionOutput) {
        let all = |change: &Change| {
            others(self.me, self.members)
                .all(|region| change.marks[usize::from(region.0)].is_some())
        };
        if self.plane.pending() == 0 && self.change.as_ref().is_some_and(all) {
            self.begin_new(now_micros, out);
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|id, token| {
            let ready = self.is_here(token);
            if ready {
                out.attached.push(*id);
            }
            !ready
        });
        self.waiting = waiting;
    }

    fn begin_new(&mut self, now_micros: u64, out: &mut RegionOutput) {
        let Some(change) = self.change.take() else { return };
        self.generation += 1;
        self.plane = change.plane;
        let positions: Vec<_> = change.marks.into_iter().map(Option::unwrap_or_default).collect();
        self.plane.begin(&positions);
        for (from, message) in change.held {
            let mut output = Output::default();
            // It was not looked at when it came, so a malformed one can only be left out: its
            // sender is no correct peer.
            if self.plane.receive(now_micros, from, message, &mut output).is_ok() {
                self.collect(output, self.generation, out);
            }
        }
    }

    fn collect(&mut self, output: Output, generation: u32, out: &mut RegionOutput) {
        for transaction in output.apply {
            self.clock.show(transaction.label.timestamp);
            out.apply.push(transaction);
        }
        for (to, message) in output.send {
            send(generation, to, message, out);
        }
    }
}

fn send(generation: u32, to: Address, message: Message, out: &mut RegionOutput) {
    let (bytes, metadata_bytes) = Envelope { generation, message }.encode();
    out.send.push(Outgoing { to, bytes, metadata_bytes });
}
