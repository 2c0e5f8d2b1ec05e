//! A loglet as a server serves it: its files, what was promised about it, and who waits for what
//! comes.
//!
//! ```text
//!  sequencer ── Store, Confirm (lease) ──► promise ─┐  no seal until then, by this server's own clock
//!  successor ── Seal ── waits out the promise ──────┘  from now on no further promise; sealed
//!  reader    ── Follow ── waits for progress: committed grew, or sealed
//! ```
//! # Invariants
//! - Between the moment a lease is given and its end no seal of another is accepted. A waiting seal
//!   stops further leases, so that it waits for one at most.
//! - `progress` never runs ahead of what is durable, and shows a seal before the seal is answered.
//!
//! # On failure
//! A seal that gives up before the lease has ended leaves the loglet as it was.
//!
//! # Limits
//! Promises are not stored: a server that starts again keeps every seal waiting for the longest one
//! it can have given.

use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Env, Lsn, WriterToken};
use tokio::sync::watch;

use super::loglet::StoredLoglet;
use super::protocol::{MAX_LEASE, Reply, Terms};
use crate::error::Result;

/// How far a loglet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Progress {
    first: Lsn,
    next: Lsn,
    committed: Lsn,
    sealed: bool,
}

#[derive(Debug, Default)]
struct Promise {
    holder: Option<WriterToken>,
    /// On the monotonic clock; no seal of another before.
    until: Duration,
    /// Seals that wait.
    sealing: usize,
    /// A seal was written, or may have been: whoever asked for it may have given up before its
    /// outcome was known.
    begun: bool,
    /// A seal was answered in this life of the server.
    answered: bool,
}

/// See the module's text.
#[derive(Debug)]
pub struct Hosted {
    stored: StoredLoglet,
    /// The server may have forgotten some of it.
    doubtful: bool,
    promise: Mutex<Promise>,
    progress: watch::Sender<Progress>,
}

/// Counts a seal that waits.
struct Sealing<'a>(&'a Mutex<Promise>);

impl Drop for Sealing<'_> {
    fn drop(&mut self) {
        self.0.lock().sealing -= 1;
    }
}

impl Hosted {
    /// Serves `stored`; before `unpromised` (monotonic) an earlier life's promise may still hold.
    pub async fn new(stored: StoredLoglet, doubtful: bool, unpromised: Duration) -> Self {
        let progress = match stored.tail().await {
            Reply::Tail { first, next, sealed, .. } => {
                Progress { first, next, committed: first, sealed }
            }
            _ => Progress {
                first: Lsn::FIRST,
                next: Lsn::FIRST,
                committed: Lsn::FIRST,
                sealed: false,
            },
        };
        let promise = Promise { until: unpromised, ..Promise::default() };
        Self {
            stored,
            doubtful,
            promise: Mutex::new(promise),
            progress: watch::channel(progress).0,
        }
    }

    /// The files.
    pub fn stored(&self) -> &StoredLoglet {
        &self.stored
    }

    /// Writes what is queued. What is on disk then is known, whether or not whoever asked for it
    /// still waits: a sequencer that gave a slow disk up, and asks later, goes on from there.
    pub async fn write_queued(&self, in_place: bool) {
        let next = self.stored.write_queued(in_place).await;
        self.progress.send_if_modified(|progress| {
            let grew = next > progress.next;
            progress.next = next.max(progress.next);
            grew
        });
    }

    /// Notes what a store or a skip has made durable, and what the sequencer knows to be committed;
    /// answers it.
    pub fn stored_reply(&self, env: &Env, reply: Reply, terms: Option<Terms>) -> Reply {
        let Reply::Stored { next, .. } = reply else { return reply };
        self.progress.send_if_modified(|progress| {
            let before = *progress;
            progress.next = progress.next.max(next);
            if let Some(terms) = terms {
                progress.committed = progress.committed.max(terms.committed);
            }
            *progress != before
        });
        Reply::Stored { next, leased: terms.is_some_and(|terms| self.promise(env, terms)) }
    }

    /// Promises the sequencer not to accept a seal for a while, unless it is too late for that.
    fn promise(&self, env: &Env, terms: Terms) -> bool {
        if terms.lease.is_zero() || self.doubtful {
            return false;
        }
        let mut promise = self.promise.lock();
        let ending = promise.sealing > 0 || promise.begun || self.progress.borrow().sealed;
        // A loglet has one sequencer. Who takes itself for another one gets no lease.
        let other = promise.holder.is_some_and(|holder| holder != terms.holder);
        if ending || other {
            return false;
        }
        promise.holder = Some(terms.holder);
        let until = env.clock.monotonic() + terms.lease.min(MAX_LEASE);
        promise.until = promise.until.max(until);
        true
    }

    /// The sequencer knows everything below `committed` to be committed.
    pub fn note_committed(&self, committed: Lsn) {
        self.progress.send_if_modified(|progress| {
            let grew = committed > progress.committed;
            progress.committed = progress.committed.max(committed);
            grew
        });
    }

    /// The tail as of now, for the sequencer that asks whether its loglet is still unsealed.
    pub fn confirm(&self, env: &Env, terms: Terms) -> Reply {
        self.note_committed(terms.committed);
        let leased = self.promise(env, terms);
        self.tail(leased)
    }

    /// The tail as of now: what is durable.
    pub fn tail(&self, leased: bool) -> Reply {
        let Progress { first, next, committed, sealed } = *self.progress.borrow();
        let committed = committed.min(next);
        Reply::Tail { first, next, sealed, committed, leased, doubtful: self.doubtful }
    }

    /// Seals, once no promise of another holds any more.
    pub async fn seal(
        &self,
        env: &Env,
        holder: Option<WriterToken>,
        by: Deadline,
    ) -> Result<Reply> {
        self.promise.lock().sealing += 1;
        let _sealing = Sealing(&self.promise);
        loop {
            let left = {
                let mut promise = self.promise.lock();
                let own = holder.is_some() && promise.holder == holder;
                let now = env.clock.monotonic();
                let left = promise.until.saturating_sub(now);
                // A seal that an earlier life of the server wrote and never answered is not one
                // that has waited for its promises.
                if own || left.is_zero() || promise.answered {
                    promise.begun = true;
                    Duration::ZERO
                } else {
                    left
                }
            };
            if left.is_zero() {
                break;
            }
            env.within(by, "waiting for a lease of the log to end", env.clock.sleep(left)).await?;
        }
        let sealed = self.stored.seal().await?;
        self.promise.lock().answered = true;
        if let Reply::Tail { first, next, sealed, .. } = sealed {
            self.progress.send_modify(|progress| {
                progress.first = first;
                progress.next = next;
                progress.sealed = sealed;
            });
        }
        Ok(self.tail(false))
    }

    /// Entries were let go: what is left begins later.
    pub async fn released(&self) {
        if let Reply::Tail { first, .. } = self.stored.tail().await {
            self.progress.send_modify(|progress| progress.first = first);
        }
    }

    /// Committed entries from `from` on, once there are any, the loglet is sealed, or `wait` is
    /// over.
    pub async fn follow(
        &self,
        env: &Env,
        from: Lsn,
        max_bytes: usize,
        wait: Duration,
    ) -> Result<Reply> {
        let mut progress = self.progress.subscribe();
        let parked = env.planted(Bug::ParksReaders);
        let news =
            progress.wait_for(|now| now.committed.min(now.next) > from || (now.sealed && !parked));
        let _ = env.within_timeout(wait, "news of the log", news).await;
        let Progress { next, committed, sealed, .. } = *self.progress.borrow();
        let committed = committed.min(next);
        let mut entries = Vec::new();
        if committed > from {
            entries = self.stored.read(from, max_bytes).await?;
            let wanted = usize::try_from(committed.0 - from.0).unwrap_or(usize::MAX);
            entries.truncate(wanted);
        }
        Ok(Reply::Followed { entries, committed, sealed: sealed && !parked })
    }
}
