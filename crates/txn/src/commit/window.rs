//! Groups whose entries are on their way to the log servers.
//!
//! ```text
//!  applied │ under way, oldest first: at most ENTRIES │ the next group
//!  ... n-3 │ n-2   n-1   n                            │ n+1: validated against what is applied and against these
//! ```
//! # Invariants
//! - Positions follow each other: the next one is behind the newest, and behind what is applied
//!   when there is none.
//! - The oldest is settled first: it is applied, and then its requests are answered, before the
//!   next one is looked at.
//! - What the next group is validated against, and adds to, is what all of these write on top of
//!   what is applied.
//!
//! # On failure
//! See `settle.rs`.
//!
//! # Limits
//! [`ENTRIES`] entries, and no further one once they have `limit` bytes. Entries are begun [`PACE`]
//! apart, or a quarter of what an append takes, whichever is more: an entry costs each node a
//! message, a write and a sync, and requests that come closer together share it. So where appends
//! take long because the machines are busy, it makes them at most so much busier.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use telesto_common::{Lsn, Timestamp};
use telesto_log::{Append, Result as LogResult};

use super::checks::GroupIndex;
use super::committer::{Group, Pending};
use super::validate::Validated;
use crate::error::Error;

/// Entries under way, at most.
const ENTRIES: usize = 8;
/// The least time between the beginnings of two entries, unless nothing is under way.
const PACE: Duration = Duration::from_millis(1);
/// Entries begun in the time that an append takes, at most.
const IN_AN_APPEND: u32 = 4;

/// A group whose entry is on its way.
pub(crate) struct UnderWay {
    pub group: Group,
    pub validated: Validated,
    /// The entry's hash.
    pub hash: [u8; 16],
    /// When it was begun (monotonic).
    pub started: Duration,
    index: Arc<GroupIndex>,
    newest: Timestamp,
    bytes: usize,
    /// Never locked: who has the window waits for it.
    appending: Mutex<BoxFuture<'static, LogResult<Append>>>,
}

impl UnderWay {
    pub fn new(
        group: Group,
        mut validated: Validated,
        hash: [u8; 16],
        started: Duration,
        appending: BoxFuture<'static, LogResult<Append>>,
    ) -> Self {
        let mut index = std::mem::take(&mut validated.index);
        // Those before it are settled before it is.
        index.before.clear();
        let newest = validated.survivors.last().map_or(Timestamp::ZERO, |(_, at)| *at);
        let bytes = group.live.iter().map(|pending| pending.bytes).sum();
        let (index, appending) = (Arc::new(index), Mutex::new(appending));
        Self { group, validated, hash, started, index, newest, bytes, appending }
    }

    /// Requests of a later group that this one, or one before it, beats: they are answered with it.
    pub fn take_beaten(&mut self, live: Vec<Pending>, beaten: Vec<(usize, Error)>) {
        let first = self.group.live.len();
        self.group.live.extend(live);
        self.validated.beaten.extend(beaten.into_iter().map(|(at, error)| (first + at, error)));
    }
}

/// See the module's text.
pub(crate) struct Window {
    under_way: VecDeque<UnderWay>,
    /// Bytes of requests under way.
    bytes: usize,
    limit: usize,
    /// When the newest was begun.
    begun: Duration,
}

impl Window {
    /// An empty one, for about `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { under_way: VecDeque::new(), bytes: 0, limit, begun: Duration::ZERO }
    }

    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// How many are under way.
    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    /// How long the next group has to wait when an append takes `takes`; `None`: until one is
    /// settled.
    pub fn pause(&self, now: Duration, takes: Duration) -> Option<Duration> {
        if self.is_empty() {
            return Some(Duration::ZERO);
        }
        if self.under_way.len() >= ENTRIES || self.bytes >= self.limit {
            return None;
        }
        let apart = PACE.max(takes / IN_AN_APPEND);
        Some((self.begun + apart).saturating_sub(now))
    }

    /// The newest, if any.
    pub fn newest(&mut self) -> Option<&mut UnderWay> {
        self.under_way.back_mut()
    }

    /// The position of the next entry, the newest timestamp below it, and the hash of the entry
    /// before it if that is under way, where `applied` is the newest entry applied and `newest` its
    /// timestamp.
    pub fn behind(&self, applied: Lsn, newest: Timestamp) -> (Lsn, Timestamp, Option<[u8; 16]>) {
        match self.under_way.back().filter(|last| last.validated.at > applied) {
            Some(last) => (last.validated.at.next(), newest.max(last.newest), Some(last.hash)),
            None => (applied.next(), newest, None),
        }
    }

    /// What is written by those under way that are not among what is `applied`, oldest first.
    pub fn indexes(&self, applied: Lsn) -> Vec<Arc<GroupIndex>> {
        let under_way = self.under_way.iter().filter(|one| one.validated.at > applied);
        under_way.map(|one| Arc::clone(&one.index)).collect()
    }

    pub fn push(&mut self, one: UnderWay) {
        self.bytes += one.bytes;
        self.begun = one.started;
        self.under_way.push_back(one);
    }

    /// Waits for the oldest; may be given up and called again.
    pub async fn oldest_done(&mut self) -> LogResult<Append> {
        match self.under_way.front_mut() {
            Some(oldest) => oldest.appending.get_mut().await,
            None => std::future::pending().await,
        }
    }

    /// Takes the oldest out.
    pub fn pop(&mut self) -> Option<UnderWay> {
        let oldest = self.under_way.pop_front()?;
        self.bytes -= oldest.bytes;
        Some(oldest)
    }
}
