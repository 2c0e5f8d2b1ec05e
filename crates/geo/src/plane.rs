//! The causal plane: how a region learns when a remote transaction may be applied.
//!
//! # Invariants
//! What every [`CausalPlane`] guarantees, except `eventual`, which guarantees only the second:
//! - a transaction is put into [`Output::apply`] after everything of its causal past that is placed
//!   here was;
//! - each stream in its order, each transaction once;
//! - `attach(token)` turns true only when everything that the token's region held at the token's
//!   time and that is placed here was put out, and a local commit made from then on counts all of
//!   it as its past.
//!
//! # On failure
//! A message that cannot come from a correct peer is refused with an error and changes nothing.
//!
//! # Limits
//! A plane trusts the links: FIFO, resumed, nothing lost.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use telesto_common::{Label, RegionId, Timestamp};

use crate::error::{Error, Result};
use crate::message::{Address, Message};
use crate::{Bug, RegionSet, Tree, cure, eventual, gentlerain, matrix, timestamp, tree};

/// A local commit, as a plane sees it.
#[derive(Clone, Debug)]
pub struct Commit {
    /// Its label: greater than everything the region has applied or committed.
    pub label: Label,
    /// The regions that replicate what it wrote. Its own region may or may not be among them.
    pub placement: RegionSet,
    /// Its write set, opaque here.
    pub data: Bytes,
}

/// A remote transaction that may be applied now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// Its label: origin and origin's timestamp.
    pub label: Label,
    /// Its write set.
    pub data: Bytes,
}

/// What a plane asks for.
#[derive(Debug, Default)]
pub struct Output {
    /// Messages to send, in this order.
    pub send: Vec<(Address, Message)>,
    /// Transactions to apply, in this order.
    pub apply: Vec<Transaction>,
}

/// The planes (docs/architecture/geo.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlaneKind {
    /// Counts of the streams' transactions; the default.
    Matrix,
    /// Saturn's serializers.
    Tree,
    /// Total timestamp order: Saturn's P-configuration.
    Timestamp,
    /// On arrival: no order. For the study.
    Eventual,
    /// One global stable time (Du et al., SoCC 2014). For the study.
    GentleRain,
    /// A vector of stable times (Akkoorath et al., ICDCS 2016). For the study.
    Cure,
}

impl PlaneKind {
    /// All planes.
    pub const ALL: [Self; 6] =
        [Self::Matrix, Self::Tree, Self::Timestamp, Self::Eventual, Self::GentleRain, Self::Cure];

    /// Its name, as the registry of a region and the study have it; `telesto region plane` takes
    /// those that a region runs by.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Matrix => "matrix",
            Self::Tree => "tree",
            Self::Timestamp => "timestamp",
            Self::Eventual => "eventual",
            Self::GentleRain => "gentlerain",
            Self::Cure => "cure",
        }
    }

    /// Whether it keeps causal order.
    #[must_use]
    pub fn is_causal(self) -> bool {
        self != Self::Eventual
    }
}

impl fmt::Display for PlaneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PlaneKind {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| {
            format!("{name:?} is no plane; there are {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// What a plane is made from.
#[derive(Clone, Debug)]
pub struct PlaneConfig {
    /// Which.
    pub kind: PlaneKind,
    /// The tree, for the tree plane.
    pub tree: Option<Tree>,
    /// How long a stream may be silent before a beat is sent, microseconds. The baselines' beats
    /// and stabilisation rounds run at this interval too (5 ms in Saturn §7.3.1).
    pub beat_micros: u64,
    /// How long a payload waits for its label before the tree plane falls back to timestamp order,
    /// microseconds.
    pub patience_micros: u64,
    /// Partitions of a region, for the baselines: 1 to 255.
    pub partitions: u8,
}

impl PlaneConfig {
    /// The intervals the product would use: beats after 50 ms of silence (5 ms where a plane waits
    /// for time), a patience of half a second.
    #[must_use]
    pub fn new(kind: PlaneKind) -> Self {
        let beat_micros = match kind {
            PlaneKind::Matrix | PlaneKind::Tree | PlaneKind::Eventual => 50_000,
            PlaneKind::Timestamp | PlaneKind::GentleRain | PlaneKind::Cure => 5_000,
        };
        Self { kind, tree: None, beat_micros, patience_micros: 500_000, partitions: 8 }
    }

    /// The tree plane on `tree`.
    #[must_use]
    pub fn tree(tree: Tree) -> Self {
        Self { tree: Some(tree), ..Self::new(PlaneKind::Tree) }
    }

    /// Makes the plane of region `me` of `members`, which begins at wall-clock time `now_micros`.
    ///
    /// # Errors
    /// [`Error::TooManyRegions`], or [`Error::NotATree`] for a tree plane without a fitting tree.
    pub fn make(
        &self,
        me: RegionId,
        members: usize,
        now_micros: u64,
        planted: Option<Bug>,
    ) -> Result<Box<dyn CausalPlane>> {
        let limit = if self.kind == PlaneKind::Matrix { 16 } else { RegionSet::LIMIT };
        if members > limit {
            return Err(Error::TooManyRegions { plane: self.kind.name(), limit, members });
        }
        Ok(match self.kind {
            PlaneKind::Matrix => {
                Box::new(matrix::Matrix::new(me, members, self.beat_micros, now_micros, planted))
            }
            PlaneKind::Tree => {
                let tree = self.tree.clone();
                let tree = tree.ok_or(Error::NotATree { reason: "no tree was given" })?;
                let plane = tree::TreePlane::new(me, members, tree, self, now_micros, planted)?;
                Box::new(plane)
            }
            PlaneKind::Timestamp => {
                Box::new(timestamp::TimestampOrder::new(me, members, self.beat_micros, now_micros))
            }
            PlaneKind::Eventual => Box::new(eventual::Eventual::new(me, members)),
            PlaneKind::GentleRain => {
                Box::new(gentlerain::GentleRain::new(me, members, self, now_micros))
            }
            PlaneKind::Cure => Box::new(cure::Cure::new(me, members, self, now_micros)),
        })
    }
}

/// How one region keeps causal order. All times are wall-clock microseconds of this region.
pub trait CausalPlane: fmt::Debug + Send {
    /// Which plane this is.
    fn kind(&self) -> PlaneKind;

    /// Everything that `positions` names was applied before this plane began (a change of planes).
    fn begin(&mut self, positions: &[Timestamp]);

    /// A transaction of this region has committed.
    fn commit(&mut self, now_micros: u64, commit: &Commit, out: &mut Output);

    /// A message has come, in its link's order.
    ///
    /// # Errors
    /// [`Error::Malformed`] or [`Error::UnknownRegion`] for what no correct peer sends.
    fn receive(
        &mut self,
        now_micros: u64,
        from: Address,
        message: Message,
        out: &mut Output,
    ) -> Result<()>;

    /// No transaction of `source` will come any more in this plane; the last had at most timestamp
    /// `at`.
    fn close(&mut self, now_micros: u64, source: RegionId, at: Timestamp, out: &mut Output);

    /// Time has passed. No later local commit has timestamp `closed` or a lower one.
    fn tick(&mut self, now_micros: u64, closed: Timestamp, out: &mut Output);

    /// When it wants a tick at the latest.
    fn next_tick(&self) -> Option<u64>;

    /// A session with this token (of this region) moves to region `token.target`: speed its
    /// attachment up.
    fn migrate(&mut self, now_micros: u64, token: &Label, out: &mut Output);

    /// Whether everything the token stands for is here. If so, a session with it goes on here.
    fn attach(&mut self, token: &Label) -> bool;

    /// How many transactions wait here.
    fn pending(&self) -> usize;

    /// Changes to another tree; `epoch` grows.
    ///
    /// # Errors
    /// [`Error::NoTree`] on other planes; [`Error::ChangeRefused`] while a change is under way;
    /// [`Error::NotATree`].
    fn change_tree(
        &mut self,
        _now_micros: u64,
        _at: Timestamp,
        _tree: Tree,
        _out: &mut Output,
    ) -> Result<()> {
        Err(Error::NoTree { plane: self.kind().name() })
    }

    /// The epoch of the tree in use and whether a change is under way; nothing on other planes.
    fn epoch(&self) -> Option<(u32, bool)> {
        None
    }
}

/// The regions other than `me`.
pub(crate) fn others(me: RegionId, members: usize) -> impl Iterator<Item = RegionId> {
    (0..members as u16).map(RegionId).filter(move |region| *region != me)
}

/// The member that a message of a plane without serializers comes from.
pub(crate) fn member(from: Address, members: usize) -> Result<RegionId> {
    match from {
        Address::Region(region) if usize::from(region.0) < members => Ok(region),
        Address::Region(region) => Err(Error::UnknownRegion { region, members }),
        Address::Serializer(_) => {
            Err(Error::Malformed { offset: 0, reason: "a serializer has no part in this plane" })
        }
    }
}

/// Refuses a message that this plane's peers do not send.
pub(crate) fn unexpected<T>() -> Result<T> {
    Err(Error::Malformed { offset: 0, reason: "a message of another plane" })
}
