//! What a database that is one of several regions shows, and what its replication must know of what
//! its rows mean.
//!
//! The layer of regions stands above this one; sessions reach it through
//! [`crate::Database::regions`], and it reaches the tables through [`Definitions`]. So neither
//! needs the other.
//!
//! # Invariants
//! - Definitions are rows like others: the ones that hold for an entry are those before it.
//!
//! # On failure
//! A [`RegionControl`] says what to do; a [`Definitions`] that cannot be read is tried again by
//! whoever applies.
//!
//! # Limits
//! As the node that carries the region's streams knows it.

use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{Label, RegionId, Timestamp};

use crate::away::{AskRows, AwayRequest, Elsewhere, RowsGiven};
use crate::reading::{AwayRead, Distance, Pieces};

/// How another region stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionView {
    /// Its number.
    pub id: RegionId,
    /// Its name.
    pub name: String,
    /// Where it is reached by other regions.
    pub address: String,
    /// Whether this region's stream to it runs.
    pub connected: bool,
    /// Whether rows that it did not replicate before are being sent to it.
    pub filling: bool,
    /// Entries of this region's log that it has not been told yet.
    pub behind: u64,
    /// Transactions sent to it since the streams were started here.
    pub sent: u64,
    /// Their bytes, packed.
    pub sent_bytes: u64,
    /// Transactions of it applied here since then.
    pub applied: u64,
    /// Transactions of it that wait here for their past.
    pub waiting: usize,
    /// Everything of it up to this time is here.
    pub passed: Timestamp,
    /// From its newest transaction's commit to its being visible here.
    pub visible_after: Duration,
    /// What is wrong now.
    pub trouble: Option<String>,
}

/// How the tree of serializers stands in this region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeView {
    /// The epoch that runs; 0: none.
    pub epoch: u64,
    /// In a word: `followed`, `late`, `begins`, `carried` or `none`.
    pub state: Cow<'static, str>,
    /// Transactions of other regions applied since the streams were started here, because their
    /// labels had their turn.
    pub by_label: u64,
    /// The others.
    pub by_past: u64,
    /// Why it does not run.
    pub trouble: Option<String>,
}

/// How this region and the others stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionsView {
    /// This region.
    pub me: RegionId,
    /// Its name.
    pub name: String,
    /// How causal order is kept.
    pub plane: Cow<'static, str>,
    /// How the tree of serializers stands.
    pub tree: TreeView,
    /// The others.
    pub peers: Vec<RegionView>,
    /// Writes of other regions that lost against what was here, since the streams were started.
    pub conflicts: u64,
    /// What is wrong here now.
    pub trouble: Option<String>,
}

/// What is measured of the way from one region to another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkView {
    /// Who sends.
    pub from: RegionId,
    /// Who receives.
    pub to: RegionId,
    /// There and back, the least of the newest measures.
    pub round_trip: Option<Duration>,
    /// Transactions sent since the sender's streams were started.
    pub sent: u64,
    /// Their bytes, packed.
    pub sent_bytes: u64,
    /// Of the bytes before packing, those that tell of the past and of positions.
    pub metadata_bytes: u64,
    /// From commit to being visible at the receiver, of the last minute: mean, median, 99th
    /// percentile.
    pub visible: [Option<Duration>; 3],
    /// How long ago the sender has told; zero for what this region measures itself.
    pub age: Duration,
}

/// A write of another region that lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConflictView {
    /// `update_origin_differs`, `update_deleted`, `delete_origin_differs` or `delete_missing`: as
    /// PostgreSQL 18's logical replication names them, seen from what was here.
    pub kind: Cow<'static, str>,
    /// The key.
    pub key: Bytes,
    /// Label of the version that stays: time and region.
    pub kept: (Timestamp, RegionId),
    /// Label of the version that was passed over.
    pub passed_over: (Timestamp, RegionId),
}

/// Why a session does not go on here with its token. Each text says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAttached {
    /// It is no token of this deployment: it never will.
    #[error("{0}")]
    NoToken(String),
    /// Something that it stands for was lost with its region: it never will.
    #[error("{0}")]
    Lost(String),
    /// What it stands for is not here yet, or nobody can be asked: it may later.
    #[error("{0}")]
    NotYet(String),
}

/// The replication of this region, as sessions use it.
#[async_trait]
pub trait RegionControl: Debug + Send + Sync {
    /// How the regions stand, as the node that carries the streams knows it: where that is another
    /// one, it is asked.
    ///
    /// # Errors
    /// [`crate::Error::Elsewhere`] when no node that carries them answers in time.
    async fn view(&self) -> crate::Result<RegionsView>;

    /// What is measured of the links between regions, of every pair that is known there.
    ///
    /// # Errors
    /// As [`RegionControl::view`].
    async fn links(&self) -> crate::Result<Vec<LinkView>>;

    /// The newest conflicts there.
    ///
    /// # Errors
    /// As [`RegionControl::view`].
    async fn conflicts(&self) -> crate::Result<Vec<ConflictView>>;

    /// The token of a session that has seen `session` here.
    ///
    /// # Errors
    /// What to do, when nobody can be asked for it.
    async fn token(&self, session: Label) -> Result<String, String>;

    /// As [`RegionControl::token`], of a session that goes to the region called `to`: it is told at
    /// once what the session has seen.
    ///
    /// # Errors
    /// What to do, when there is no such region.
    async fn migrate(&self, session: Label, to: &str) -> Result<String, String>;

    /// Waits, for `limit` at most, until everything that `token` stands for is here, as far as this
    /// region replicates it. The label that the session goes on with.
    ///
    /// # Errors
    /// What is wrong with the token, or what is not here yet.
    async fn attach(&self, token: &str, limit: Duration) -> Result<Label, NotAttached>;

    /// Validates and commits in `home` what a transaction here has written of what that region
    /// keeps, and waits for a while until it is here.
    ///
    /// # Errors
    /// As [`crate::Away::commit`].
    async fn commit_at(&self, home: RegionId, request: AwayRequest) -> crate::Result<Elsewhere>;

    /// Rows that `home` keeps, for a transaction here that changes them.
    ///
    /// # Errors
    /// As [`crate::Away::rows`].
    async fn rows_at(&self, home: RegionId, asked: AskRows) -> crate::Result<RowsGiven>;

    /// Waits, for `limit` at most, until everything of `home` up to `at` of its clock is here. The
    /// label that a session goes on with.
    ///
    /// # Errors
    /// What is not here yet.
    async fn arrive(&self, home: RegionId, at: Timestamp, limit: Duration)
    -> Result<Label, String>;

    /// How far the other regions are away; none when nobody can be asked.
    async fn distances(&self) -> Vec<Distance>;

    /// Has `region` execute a statement when it has everything that was seen here; what it gives,
    /// of which something has come.
    ///
    /// # Errors
    /// [`crate::Error::Elsewhere`] when the region cannot be reached or does not execute it:
    /// another one may.
    async fn read_at(&self, region: RegionId, read: AwayRead) -> crate::Result<Box<dyn Pieces>>;
}

/// What a write of a key means where the definitions are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is applied.
    Known,
    /// What it belongs to was dropped: it is left out.
    Gone,
    /// What it belongs to was defined later than what is here: it cannot be applied yet.
    NotYet,
}

/// An index entry that follows from a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedEntry {
    /// Its key.
    pub key: Bytes,
    /// Its value.
    pub value: Bytes,
}

/// Index entries that a changed row loses and gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DerivedEntries {
    /// To be deleted, where they have this value still.
    pub old: Vec<DerivedEntry>,
    /// To be put.
    pub new: Vec<DerivedEntry>,
}

/// Who writes what a key belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// One region.
    Region {
        /// Which.
        home: RegionId,
        /// It writes only when each of these rows says that a region which wrote before has
        /// stopped: [`Meaning::has_stopped`].
        moved: Vec<Bytes>,
    },
    /// Every region, or nobody: it is no row of a table, and no entry of an index.
    Other,
}

/// What becomes of a key whose versions merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The value that the key gets (`None`: it goes); nothing: it stays as it is.
    pub value: Option<Option<Bytes>>,
    /// Whether something was lost that does not merge.
    pub lost: bool,
}

/// What one region has written of a version: for one that has lost it, and for those that stay when
/// it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Share {
    /// The version, if its label says so.
    Whole,
    /// Nothing.
    Nothing,
    /// This, under this label: a value to be joined, or a delete mark.
    This((Timestamp, RegionId), Option<Bytes>),
}

/// A version as replication meets it: its label, and its value or nothing for a delete mark.
pub type LabelledValue<'a> = ((Timestamp, RegionId), Option<&'a Bytes>);

/// The definitions at one moment.
pub trait Meaning: Debug + Send + Sync {
    /// The region in which definitions are made, by these; nothing where there are none yet.
    fn defining(&self) -> Option<RegionId> {
        None
    }

    /// Whether a write of `key` can be applied.
    fn standing(&self, key: &[u8]) -> Standing;

    /// Whether what the keys of `range` belong to was defined later than these definitions, so that
    /// nobody who went by them has written any.
    fn is_later(&self, _range: &KeyRange) -> bool {
        false
    }

    /// The entries that follow from a row written by `source`; none when the writer sends them
    /// itself, or the key is no row's.
    ///
    /// # Errors
    /// Why the row cannot be read.
    fn entries(
        &self,
        source: RegionId,
        key: &Bytes,
        old: Option<&Bytes>,
        new: Option<&Bytes>,
    ) -> Result<DerivedEntries, String>;

    /// Who writes `key`.
    fn keeper(&self, key: &[u8]) -> Keeper;

    /// Whether the row that [`Keeper::Region`] names says that its region has stopped to write what
    /// `key` belongs to; `None`: it is not there.
    fn has_stopped(&self, key: &[u8], row: Option<&Bytes>) -> bool;

    /// Whether versions of `key`, of which `value` is one, merge, or have merged: the label of a
    /// copy does not say who has it, so everybody sends it.
    fn merges(&self, _key: &[u8], _value: Option<&Bytes>) -> bool {
        false
    }

    /// Whether each region that has rows of a range sends all of them to one that gets it, whoever
    /// wrote them: who wrote a row last may have it no more.
    fn is_sent_by_all(&self, _key: &[u8]) -> bool {
        false
    }

    /// The number of these definitions, where rows of some table are placed by their values, or
    /// were: it grows with each change of where they are. 0: no rows are.
    fn number(&self) -> u64 {
        0
    }

    /// Keys that this region is not to have any more, and that no other waits for.
    fn not_to_have(&self) -> Vec<KeyRange> {
        Vec::new()
    }

    /// Label and value of a version of `key` that are the same in all copies which have seen the
    /// same writes; `None`: its own.
    ///
    /// # Errors
    /// Why a row cannot be read.
    fn written_out(
        &self,
        _key: &[u8],
        _rank: (Timestamp, RegionId),
        _value: &Bytes,
    ) -> Result<Option<(Timestamp, RegionId, Bytes)>, String> {
        Ok(None)
    }

    /// What `of` has written of a version of `key`.
    ///
    /// # Errors
    /// Why a row cannot be read.
    fn share(
        &self,
        _key: &[u8],
        _rank: (Timestamp, RegionId),
        _value: &Bytes,
        _of: RegionId,
    ) -> Result<Share, String> {
        Ok(Share::Whole)
    }

    /// What becomes of a key that merges when a version comes; `None`: the version with the greater
    /// label stays.
    ///
    /// # Errors
    /// Why a row cannot be read.
    fn merge(
        &self,
        _key: &Bytes,
        _here: Option<LabelledValue<'_>>,
        _came: LabelledValue<'_>,
    ) -> Result<Option<Merged>, String> {
        Ok(None)
    }
}

/// How replication finds what rows mean.
#[async_trait]
pub trait Definitions: Debug + Send + Sync {
    /// The key whose change means that the definitions have changed.
    fn stamp(&self) -> Bytes;

    /// The definitions as of `at`, where the stamp's value is `stamp`; `None`: there are none yet.
    ///
    /// # Errors
    /// Why they cannot be read.
    async fn at(
        &self,
        at: Timestamp,
        stamp: Option<&Bytes>,
    ) -> Result<Option<Arc<dyn Meaning>>, String>;

    /// The row in which region `me` says that it has applied definitions with this stamp: key and
    /// value.
    fn acknowledgement(&self, me: RegionId, stamp: &Bytes) -> Option<(Bytes, Bytes)>;
}
