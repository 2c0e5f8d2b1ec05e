//! Holds: what one transaction is about to write anew as a whole is left alone by the commits of
//! others until it is done.
//!
//! # Purpose
//! A transaction that reads a whole table and rests on it (one that rewrites its rows, or proves a
//! constraint of all of them) loses to every commit into the table while it runs, and would lose
//! for ever where the table is written all the time. With a hold on the table those commits wait,
//! as they would for PostgreSQL's lock.
//!
//! # Protocol
//! ```text
//!  holder: place hold on the ranges, at every node ── read all ── commit (admitted) ── lift, at every node
//!  others: ...................... commit into a range: waits ........................... goes on: validated as ever
//! ```
//!
//! # Invariants
//! - A hold is a hint. Commits are validated whether or not there is one, and a node that knows
//!   nothing of it lets commits through: the holder is then found in conflict, as without it.
//! - A commit waits before it is validated and before it takes a place in the queue, so that it
//!   holds up nobody.
//! - A transaction that a hold admits waits for none, so that two holders never wait for each
//!   other.
//! - One that was lifted is not placed again by what was sent before and arrives later.
//! - No hold outlasts `Hold::lasts` after it was last placed: one whose holder is gone ends by
//!   itself.
//!
//! # On failure
//! A commit that waits until its time is up is in conflict with the holder; nothing of it was
//! committed.
//!
//! # Limits
//! A process keeps [`MOST`] holds; further ones are passed over. Where every process writes the log
//! on its own, a hold reaches those that can be told of it: a process without a way to others keeps
//! its own commits back only.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use telesto_common::key::KeyRange;
use telesto_common::wait::{self, Wait};
use telesto_common::{Deadline, Env, TxnId};
use tokio::sync::Notify;

use crate::service::{CommitRequest, CommitWrites};

/// Holds that a process keeps.
const MOST: usize = 1024;

/// What is to be left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its number: who places it again says the same.
    pub id: u128,
    /// Counts how often it was placed for something else than before: a lower one that comes later
    /// says nothing any more.
    pub number: u64,
    /// Keys in these ranges.
    pub ranges: Vec<KeyRange>,
    /// The transaction that may write them.
    pub by: TxnId,
    /// For how long, unless it is placed again or lifted before.
    pub lasts: Duration,
}

#[derive(Debug)]
struct Placed {
    number: u64,
    /// None once it is lifted: it is remembered for as long as something may be on its way that
    /// places it again.
    ranges: Vec<KeyRange>,
    by: TxnId,
    /// By the monotonic clock.
    until: Duration,
}

/// What is in a commit's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InTheWay {
    /// Whose hold it is.
    pub by: TxnId,
    /// A key within it.
    pub key: Bytes,
    until: Duration,
}

/// The holds that a process knows of.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    placed: Mutex<BTreeMap<u128, Placed>>,
    /// How many there are: most of the time there is none, and a commit asks for nothing else.
    count: AtomicUsize,
    wakes: Notify,
}

impl Holds {
    /// Places a hold, or lets one go on, perhaps for another transaction.
    pub fn place(&self, env: &Env, hold: Hold) {
        let now = env.clock.monotonic();
        let mut placed = self.placed.lock();
        placed.retain(|_, other| other.until > now);
        let counts = match placed.get(&hold.id) {
            Some(known) => known.number <= hold.number && !known.ranges.is_empty(),
            None => placed.len() < MOST,
        };
        if counts {
            let Hold { id, number, ranges, by, lasts } = hold;
            placed.insert(id, Placed { number, ranges, by, until: now + lasts });
        }
        self.changed(placed);
    }

    /// Ends a hold.
    pub fn lift(&self, id: u128) {
        let mut placed = self.placed.lock();
        if let Some(hold) = placed.get_mut(&id) {
            hold.ranges = Vec::new();
        }
        self.changed(placed);
    }

    /// Counts them, and wakes who waits: whom one admits now may be waiting for it.
    fn changed(&self, placed: MutexGuard<'_, BTreeMap<u128, Placed>>) {
        let live = placed.values().filter(|hold| !hold.ranges.is_empty()).count();
        self.count.store(live, Ordering::Release);
        drop(placed);
        self.wakes.notify_waiters();
    }

    /// Waits until nothing is in the way of `request`.
    ///
    /// # Errors
    /// What still is when the time is up.
    pub async fn pass(
        &self,
        env: &Env,
        request: &CommitRequest,
        by: Deadline,
    ) -> std::result::Result<(), InTheWay> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let mut waited = false;
        loop {
            let changed = self.wakes.notified();
            let mut changed = std::pin::pin!(changed);
            // Told of what changes from here on.
            changed.as_mut().enable();
            let now = env.clock.monotonic();
            let Some(other) = self.in_the_way(request, now) else { return Ok(()) };
            if by.passed(now) {
                return Err(other);
            }
            if !waited {
                waited = true;
                metrics::counter!("telesto_txn_hold_waits_total").increment(1);
            }
            let ends = Deadline::at(other.until).earlier(by);
            let waiting = env.within(ends, "what is being rewritten", changed);
            // Whether it was lifted or its time is up is found out next.
            let _ = wait::on(Wait::Row, waiting).await;
        }
    }

    fn in_the_way(&self, request: &CommitRequest, now: Duration) -> Option<InTheWay> {
        let placed = self.placed.lock();
        let live = |hold: &&Placed| hold.until > now && !hold.ranges.is_empty();
        let current = || placed.values().filter(live);
        if current().any(|hold| hold.by == request.txn) {
            return None;
        }
        current().find_map(|hold| {
            let key = hold.ranges.iter().find_map(|range| writes_within(&request.writes, range))?;
            Some(InTheWay { by: hold.by, key, until: hold.until })
        })
    }
}

/// A key within `range` that is written, or of parts whose keys are not known here the first that
/// may be.
fn writes_within(writes: &CommitWrites, range: &KeyRange) -> Option<Bytes> {
    let carried = writes.carried().map(|checked| &checked.write.key);
    let added: &[_] = match writes {
        CommitWrites::Adding { additions, .. } => additions,
        _ => &[],
    };
    let mut keys = carried.chain(added.iter().map(|addition| &addition.key));
    if let Some(key) = keys.find(|key| range.contains(key)) {
        return Some(key.clone());
    }
    let (own, remote): (&[_], &[_]) = match writes {
        CommitWrites::External { parts, .. } => (parts, &[]),
        CommitWrites::Applied { remote, .. } => (&[], remote),
        CommitWrites::Inline(_) | CommitWrites::Adding { .. } => (&[], &[]),
    };
    let parts = own.iter().chain(remote.iter().flat_map(|remote| &remote.parts));
    let mut spans = parts
        .map(|part| KeyRange::new(part.first_key.clone(), KeyRange::point(&part.last_key).end));
    spans.find(|span| span.overlaps(range)).map(|span| span.start.max(range.start.clone()))
}
