//! Reading a quorum log that another node of the cluster owns, from its log servers.
//!
//! ```text
//! strict read:  tail? ──► all servers; a majority unsealed: nothing acknowledged lies at or after the furthest
//!               what the sequencer has said to one of them to be committed, this node's own server is told
//!               entries up to there ──► Follow, from one server
//! following:    Follow ── waits on the server until something is committed, or the loglet is sealed
//! ```
//! # Invariants
//! - Only what the sequencer has said to be committed is read from an active loglet. What a
//!   majority of the servers has is committed, too, but the sequencer may not know it yet, and its
//!   owner answers strict reads by what it knows: a reader here would have seen what one there,
//!   later, does not see.
//! - A tail is given only when a majority of the servers had accepted no seal, after the call
//!   began: then nobody had gone on elsewhere.
//! - This node's own server is read from while it has what there is: it costs no message.
//! - A reader depends on no single server: where one has nothing new for a moment a second one is
//!   waited on too, and one that is sealed or silent is left for the next one, and the chain is
//!   looked at.
//!
//! # On failure
//! Without a majority a strict read ends by its deadline. What is on the servers and was never
//! committed is decided by whoever takes the log over.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use telesto_bucket::Cause;
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Lsn, WriterToken};

use crate::chain::{Loglet, Medium, ServerInfo};
use crate::error::{Error, Result};
use crate::hedge::ask_in_turn;
use crate::log::{Inner, VirtualLog};
use crate::options::Batch;
use crate::quorum::majority;
use crate::role::Role;
use crate::server::{LogServer as _, LogletKey, Reply, Request, Terms};

/// The longest a reader waits on one server.
const PARKED: Duration = Duration::from_millis(500);
/// How long a server may take to answer beyond what it was asked to wait.
const PATIENCE: Duration = Duration::from_millis(500);
/// So many servers are waited on while one alone has no news.
const ASKED: usize = 2;
/// A reader that reads elsewhere tries its own log server again so often, microseconds: where that
/// one is dead or lags, each time costs it the wait until a second one is asked.
const HOME_MICROS: u64 = 1_000_000;
/// How long the others are waited for when a majority has entries of which none of it was told that
/// they are committed. The owner's own server is told at once.
const WORD: Duration = Duration::from_millis(10);
/// Between two looks at a log that is being taken over.
const SETTLING: Duration = Duration::from_millis(20);

/// What the tails of a majority tell.
#[derive(Clone, Copy, Debug)]
struct Tails {
    /// Whatever was acknowledged before lies below.
    furthest: Lsn,
    /// Below this everything is committed, and the sequencer knows it.
    committed: Lsn,
}

impl VirtualLog {
    /// The number of the loglet that holds `lsn`, as far as this process knows the chain.
    #[must_use]
    pub fn loglet_of(&self, lsn: Lsn) -> Option<u64> {
        self.chain().loglet_at(lsn).map(|(loglet, _)| loglet.id)
    }

    /// The log's owner has said that everything below `next` is committed in loglet `loglet`. This
    /// node's log server is told, so that those who follow it here need not wait until the owner
    /// tells it. Of a loglet that is not the active one nothing is believed: what its servers have
    /// beyond its end was never committed.
    pub async fn learn_committed(&self, loglet: u64, next: Lsn, by: Deadline) {
        let chain = self.chain();
        if let Medium::Quorum { token, .. } = &chain.active().medium
            && chain.active().id == loglet
        {
            let key = LogletKey { shard: chain.shard, loglet, token: *token };
            self.inner.tell_own(key, next, by).await;
        }
    }

    /// The entries from `from` on, as [`VirtualLog::read`], but where there are none yet waits for
    /// some, at most for `wait`: whoever follows the log asks no more often than there is something
    /// new. [`Batch::at_tail`] is not promised. On a bucket loglet there is nobody to wait on: one
    /// look.
    ///
    /// # Errors
    /// As [`VirtualLog::read`].
    pub async fn follow(
        &self,
        from: Lsn,
        max_bytes: usize,
        wait: Duration,
        by: Deadline,
    ) -> Result<Batch> {
        let inner = &self.inner;
        let env = &inner.store.env;
        let (chain, role) = inner.view()?;
        let active = chain.active();
        if from < active.start || matches!(active.medium, Medium::Bucket) {
            return self.read(from, max_bytes, Cause::Read, by).await;
        }
        match role {
            Role::Owner(sequencer) | Role::HandingOver(sequencer) => {
                let mut committed = sequencer.committed();
                let news = committed.wait_for(|next| *next > from);
                let news = env.within_timeout(wait, "news of the log", news).await.is_ok();
                if !news {
                    return Ok(Batch::default());
                }
                inner.read_through(&chain, from, max_bytes, Cause::Read, by).await
            }
            Role::Follower if inner.options.cluster.is_some() => {
                let bytes = inner.next_committed(active, from, max_bytes, wait, by).await?;
                inner.accepted(active, from, &bytes)
            }
            Role::Follower => self.read(from, max_bytes, Cause::Read, by).await,
        }
    }
}

impl Inner {
    /// As [`VirtualLog::read`], of the active loglet, which another node owns.
    pub async fn read_as_follower(
        &self,
        from: Lsn,
        max_bytes: usize,
        cause: Cause,
        by: Deadline,
    ) -> Result<Batch> {
        let started = self.now();
        let mut tail = None;
        loop {
            let chain = self.chain();
            let active = chain.active();
            let Medium::Quorum { servers, token, .. } = &active.medium else {
                return self.read_through(&chain, from, max_bytes, cause, by).await;
            };
            if from < active.start {
                return self.read_through(&chain, from, max_bytes, cause, by).await;
            }
            let key = LogletKey { shard: chain.shard, loglet: active.id, token: *token };
            // One look is enough, as long as the loglet is the same: whatever comes later was not
            // acknowledged then.
            let furthest = match tail {
                Some((loglet, furthest)) if loglet == active.id => furthest,
                _ => match self.tails(key, servers, by).await? {
                    Some(tails) => {
                        if tails.committed > from {
                            self.tell_own(key, tails.committed, by).await;
                        }
                        tails.furthest
                    }
                    None => {
                        self.newest_chain(cause, by).await?;
                        if self.chain().version == chain.version {
                            self.settle(by).await?;
                        }
                        continue;
                    }
                },
            };
            tail = Some((active.id, furthest));
            if from >= furthest {
                self.at_tail(from, started);
                return Ok(Batch { entries: Vec::new(), at_tail: true });
            }
            let bytes = self.next_committed(active, from, max_bytes, PARKED, by).await?;
            if bytes.is_empty() {
                self.newest_chain(cause, by).await?;
                self.settle(by).await?;
                continue;
            }
            let mut batch = self.accepted(active, from, &bytes)?;
            let next = batch.next(from);
            batch.at_tail = next >= furthest;
            if batch.at_tail {
                self.at_tail(next, started);
            }
            return Ok(batch);
        }
    }

    /// Waits a little for a log that is being taken over.
    pub async fn settle(&self, by: Deadline) -> Result<()> {
        let clock = &self.store.env.clock;
        if by.passed(clock.monotonic()) {
            return Err(Error::DeadlinePassed { what: "waiting for an owner of the log" });
        }
        clock.sleep(SETTLING).await;
        Ok(())
    }

    /// How far a majority of the servers is, none of which is sealed. `None`: there is no such
    /// majority.
    async fn tails(
        &self,
        key: LogletKey,
        servers: &[ServerInfo],
        by: Deadline,
    ) -> Result<Option<Tails>> {
        let soon = by.earlier(self.store.env.deadline(PATIENCE));
        let readers = self.readers(servers, by).await?;
        let mut answers: FuturesUnordered<_> =
            readers.iter().map(|server| server.call(Request::Tail { key }, soon)).collect();
        let mut ends: Vec<Lsn> = Vec::new();
        let mut told = Lsn::ZERO;
        let env = &self.store.env;
        let needed = majority(servers.len());
        while ends.len() < needed {
            let Some(answer) = answers.next().await else { return Ok(None) };
            if let Ok(Reply::Tail { next, sealed: false, doubtful: false, committed, .. }) = answer
            {
                ends.push(next);
                told = told.max(committed);
            }
        }
        let furthest = ends.iter().copied().max().unwrap_or_default();
        if env.planted(Bug::TellsUncommitted) {
            return Ok(Some(Tails { furthest, committed: furthest }));
        }
        if env.planted(Bug::ShowsUnheard) {
            // Just a majority has answered: what the least of them has, all of them have.
            let least = ends.iter().copied().min().unwrap_or_default();
            return Ok(Some(Tails { furthest, committed: least }));
        }
        let soon = env.deadline(WORD).earlier(soon);
        while told < furthest {
            // Whoever was not told yet is told by what comes next, and then followed.
            match env.within(soon, "what the log's owner knows", answers.next()).await {
                Ok(Some(Ok(Reply::Tail { committed, .. }))) => told = told.max(committed),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        Ok(Some(Tails { furthest, committed: told.min(furthest) }))
    }

    /// Tells this node's own log server, if it has one of the loglet, that everything below
    /// `committed` is.
    async fn tell_own(&self, key: LogletKey, committed: Lsn, by: Deadline) {
        let Some(cluster) = &self.options.cluster else { return };
        let holder = WriterToken::default();
        let terms = Terms { holder, lease: Duration::ZERO, committed };
        // One that does not answer, or has none, is told by the owner.
        let _ = cluster.own.call(Request::Confirm { key, terms }, by).await;
    }

    /// Committed entries of the active loglet from `from` on, once one server has some; none when
    /// it is sealed, silent, or `wait` is over. The next call asks another server then.
    async fn next_committed(
        &self,
        active: &Loglet,
        from: Lsn,
        max_bytes: usize,
        wait: Duration,
        by: Deadline,
    ) -> Result<Vec<Bytes>> {
        let Medium::Quorum { servers, token, .. } = &active.medium else { return Ok(Vec::new()) };
        let key = LogletKey { shard: self.store.shard, loglet: active.id, token: *token };
        let env = &self.store.env;
        let wait = wait.min(PARKED).min(by.remaining(env.clock.monotonic()));
        let mut readers = self.readers(servers, by).await?;
        let turn = self.reader.load(Ordering::Relaxed);
        let first = turn % readers.len().max(1);
        readers.rotate_left(first);
        readers.truncate(if env.planted(Bug::ParksReaders) { 1 } else { ASKED });
        let follow = Request::Follow { key, from, max_bytes, wait };
        let soon = by.earlier(env.deadline(wait + PATIENCE));
        let some =
            |reply: &Reply| matches!(reply, Reply::Followed { entries, .. } if !entries.is_empty());
        let mut asked = ask_in_turn(env, &readers, &follow, soon, some).await;
        if let Some((place, Reply::Followed { entries, .. })) = asked.fit {
            let next = if self.goes_home(servers, turn + place) { 0 } else { turn + place };
            self.reader.store(next, Ordering::Relaxed);
            return Ok(entries);
        }
        if env.planted(Bug::ParksReaders) {
            return Ok(Vec::new());
        }
        self.reader.store(turn.wrapping_add(1), Ordering::Relaxed);
        match asked.others.pop() {
            // The server has let go what is archived.
            Some(Ok(Reply::Followed { committed, .. })) if committed > from => {
                let found = self.read_archived(active.id, from, Cause::Read, by).await?;
                let mut found = found.unwrap_or_default();
                // The archive may have more of it, which a candidate shipped that took nothing
                // over.
                found.truncate(usize::try_from(committed.0 - from.0).unwrap_or(usize::MAX));
                return Ok(found);
            }
            Some(Ok(Reply::Followed { sealed: false, .. })) => {}
            _ => {
                self.newest_chain(Cause::Read, by).await?;
            }
        }
        Ok(Vec::new())
    }

    /// Whether it is time to read from this node's own log server again, after there was news from
    /// the one whose turn was `turn`: that one is left while nothing is written, and whenever it is
    /// slower, and each entry from another costs two messages.
    fn goes_home(&self, servers: &[ServerInfo], turn: usize) -> bool {
        let me = self.options.identity.node;
        if turn.checked_rem(servers.len()) == Some(0) || servers.iter().all(|s| s.node != me) {
            return false;
        }
        let now = self.store.env.clock.monotonic().as_micros();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let last = self.reader_home.load(Ordering::Relaxed);
        let due = now.saturating_sub(last) >= HOME_MICROS;
        if due {
            self.reader_home.store(now, Ordering::Relaxed);
        }
        due
    }

    /// Checks entries of a quorum loglet and takes them in.
    pub fn accepted(&self, loglet: &Loglet, from: Lsn, bytes: &[Bytes]) -> Result<Batch> {
        let mut batch = Batch::default();
        let mut next = from;
        for bytes in bytes {
            let object = format!("loglet {} of shard {}", loglet.id, self.store.shard);
            let entry = self.accept(&object, loglet.id, next, batch.entries.last(), bytes)?;
            next = next.next();
            self.reached(next, entry.hash);
            batch.entries.push(entry);
        }
        Ok(batch)
    }
}
