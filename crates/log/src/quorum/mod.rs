//! The sequencer of a quorum loglet: writes entries in order to *r* log servers; an entry is
//! committed when a majority has it on disk.
//!
//! ```text
//! append(n)   ─► order, buffer ─┬─► pusher 1 ── Store(n..) ──► server 1   durable below n+1
//! append(n+1) ─►               ├─► pusher 2 ── Store(n..) ──► server 2   durable below n+2   majority: n committed
//!                               └─► pusher 3 ── lags, is fed from the buffer, a server's disk, the archive
//! ```
//! One log server in this process is written to by the appender itself: there is nothing to wait
//! for besides.
//!
//! # Invariants
//! - Entries are committed in order; each server has a prefix of what was written.
//! - An entry is readable only when it is committed.
//! - After a failed or abandoned append the sequencer stops for good: what it left behind is
//!   decided by [`recover()`], which seals a majority, takes the longest prefix among them and
//!   brings a majority up to it. Every committed entry is in that prefix, because any two
//!   majorities meet.
//! - It answers for the tail only while nobody else can have written: under the lock of this
//!   machine's directory, or while a majority of the servers has promised to accept no seal, or
//!   when a majority says, after it was asked, that it has accepted none ([`Sequencer::confirm`]).
//!
//! # On failure
//! A server that cannot be reached, lags or has forgotten the loglet is shown by
//! [`Sequencer::standing`]; its place is taken in the next loglet. A majority that has sealed the
//! loglet stops the sequencer at once.
//!
//! # Limits
//! At most [`PIPELINED`] entries wait for a majority.

mod lease;
mod pusher;
mod recover;

use std::sync::Arc;

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Env, Incarnation, Lsn, WriterToken};
use tokio::sync::watch;

use crate::buffer::Buffer;
use crate::chain::Loglet;
use crate::codec::{self, Place};
use crate::error::{Error, Result};
use crate::options::Append;
use crate::record::{Entry, Record};
use crate::server::{LogServer, LogletKey, Terms};
use lease::Rounds;
use pusher::Remote;

pub use pusher::{Standing, State as ServerState};
pub use recover::{Recovered, lost, recover, released_to};

/// Entries that wait for a majority, at most.
pub const PIPELINED: u64 = 64;

/// How long what is under way is waited for when the sequencer is stopped.
const STOPPING: Duration = Duration::from_secs(1);

/// What became of an append by a sequencer.
#[derive(Debug)]
pub enum Sequenced {
    /// A determinate result, and the size of what was appended.
    Done(Append, usize),
    /// The sequencer has stopped: nothing was appended, a successor has to be made first. The
    /// records come back.
    Stopped(Vec<Record>),
}

/// What became of an entry that was to be put in order.
#[derive(Debug)]
pub enum Ordered {
    /// It is committed; its size.
    Committed(Entry, usize),
    /// It is on its way to several log servers.
    UnderWay(UnderWay),
    /// Another one is there, and is committed.
    Taken,
    /// The sequencer has stopped: nothing was appended, a successor has to be made first. The
    /// records come back.
    Stopped(Vec<Record>),
}

/// An entry that is on its way to several log servers. Nobody need wait for it: it is committed all
/// the same, or is not.
#[derive(Debug)]
pub struct UnderWay {
    shared: Arc<Shared>,
    entry: Entry,
    size: usize,
    by: Deadline,
}

impl UnderWay {
    /// The entry's hash.
    pub fn hash(&self) -> [u8; 16] {
        self.entry.hash
    }

    /// Waits until a majority of the servers has it, and everything before it; gives the entry and
    /// its size.
    ///
    /// # Errors
    /// [`Error::Indeterminate`]: the sequencer has stopped then.
    pub async fn committed(self) -> Result<(Entry, usize)> {
        let shared = &self.shared;
        if let Err(error) = shared.committed_through(self.entry.lsn, self.by).await {
            shared.stopped.send_replace(true);
            return Err(shared.undecided(&self.entry, &error));
        }
        Ok((self.entry, self.size))
    }
}

/// What keeps others from ending the loglet unnoticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// The lock of this machine's directory, which holds the only log server.
    Lock,
    /// The servers' promises, for so long each; zero: they are asked each time.
    Lease(Duration),
}

/// The sequencer of one quorum loglet.
#[derive(Debug)]
pub struct Sequencer {
    state: tokio::sync::Mutex<Position>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Position {
    next: Lsn,
    hash: [u8; 16],
}

/// What appenders and pushers share.
#[derive(Debug)]
struct Shared {
    key: LogletKey,
    env: Env,
    start: Lsn,
    fence: Fence,
    /// Drawn for this sequencer.
    holder: WriterToken,
    remotes: Vec<Arc<Remote>>,
    buffer: Mutex<Buffer>,
    /// The LSN after the last entry that was ordered.
    ordered: watch::Sender<Lsn>,
    /// First LSN not yet committed.
    committed: watch::Sender<Lsn>,
    /// It takes no more entries.
    stopped: watch::Sender<bool>,
    /// Below this everything is in the archive.
    archived: Mutex<Lsn>,
    rounds: Rounds,
}

/// How many of `servers` make a majority.
pub fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

impl Sequencer {
    /// The sequencer of `loglet`, which is empty, on `servers`, each with the incarnation in which
    /// it was met before the chain named the loglet (0: it was not).
    pub fn new(
        key: LogletKey,
        env: Env,
        loglet: &Loglet,
        servers: Vec<(Arc<dyn LogServer>, Incarnation)>,
        buffer_bytes: usize,
        fence: Fence,
    ) -> Arc<Self> {
        let (start, now) = (loglet.start, env.clock.monotonic());
        let state = if servers.len() == 1 { ServerState::Following } else { ServerState::Away };
        let remotes: Vec<_> = servers
            .into_iter()
            .map(|(server, life)| Arc::new(Remote::new(server, life, state, start, now)))
            .collect();
        let shared = Arc::new(Shared {
            key,
            fence,
            start,
            holder: env.writer_token(),
            remotes,
            buffer: Mutex::new(Buffer::new(start, buffer_bytes)),
            ordered: watch::channel(start).0,
            committed: watch::channel(start).0,
            stopped: watch::channel(false).0,
            archived: Mutex::new(start),
            rounds: Rounds::default(),
            env,
        });
        if shared.remotes.len() > 1 {
            // One task for all: an entry wakes one, which hands it to every connection before it
            // waits for any. A task each would be handed from thread to thread.
            let pushing: FuturesUnordered<_> =
                (0..shared.remotes.len()).map(|index| Arc::clone(&shared).push(index)).collect();
            shared.env.commits().spawn("feeding the log servers", pushing.collect::<()>());
        }
        let position = Position { next: start, hash: loglet.start_hash };
        Arc::new(Self { state: tokio::sync::Mutex::new(position), shared })
    }

    /// The loglet.
    pub fn key(&self) -> LogletKey {
        self.shared.key
    }

    /// The mark by which its own seal need not wait for its own lease.
    pub fn holder(&self) -> WriterToken {
        self.shared.holder
    }

    /// First LSN not yet committed, as it changes.
    pub fn committed(&self) -> watch::Receiver<Lsn> {
        self.shared.committed.subscribe()
    }

    /// First LSN not yet committed.
    pub fn next(&self) -> Lsn {
        *self.shared.committed.borrow()
    }

    /// Committed entries from `from` on, if they are still in memory.
    pub fn buffered(&self, from: Lsn, max_bytes: usize) -> Option<Vec<Bytes>> {
        let next = self.next();
        self.shared.buffer.lock().range(from, next, max_bytes)
    }

    /// The LSN after the last entry that was ordered, and that entry's hash: where the next append
    /// goes while earlier ones are under way. `None` while one is being ordered.
    pub fn ordered(&self) -> Option<(Lsn, [u8; 16])> {
        self.state.try_lock().ok().map(|state| (state.next, state.hash))
    }

    /// How its log servers stand, in the order of the loglet's.
    pub fn standing(&self) -> Vec<Standing> {
        let ordered = *self.shared.ordered.borrow();
        self.shared.remotes.iter().map(|remote| remote.standing(ordered)).collect()
    }

    /// Everything below `below` is in the archive: a server that lags need not be given it.
    pub fn archived(&self, below: Lsn) {
        let mut archived = self.shared.archived.lock();
        *archived = below.max(*archived);
    }

    /// Appends one entry at exactly `at`. Several may be under way; they are committed in order.
    pub async fn append(
        &self,
        at: Lsn,
        previous_hash: [u8; 16],
        records: Vec<Record>,
        by: Deadline,
    ) -> Result<Sequenced> {
        let (entry, size) = match self.order(at, previous_hash, records, by).await? {
            Ordered::Committed(entry, size) => (entry, size),
            Ordered::UnderWay(under_way) => under_way.committed().await?,
            Ordered::Taken => return Ok(Sequenced::Done(Append::TAKEN, 0)),
            Ordered::Stopped(records) => return Ok(Sequenced::Stopped(records)),
        };
        Ok(Sequenced::Done(Append::Committed(entry), size))
    }

    /// Whether the next entry can be put in order while others are on their way.
    pub fn is_pipelined(&self) -> bool {
        self.shared.remotes.len() > 1
    }

    /// Puts one entry in order, at exactly `at`. With several log servers it is on its way to them
    /// then, and the next one may be put in order behind it; with the one of this process it is
    /// committed when this returns.
    pub async fn order(
        &self,
        at: Lsn,
        previous_hash: [u8; 16],
        records: Vec<Record>,
        by: Deadline,
    ) -> Result<Ordered> {
        let shared = &self.shared;
        let waiting = "waiting for the log's sequencer";
        let mut state = shared.env.within(by, waiting, self.state.lock()).await?;
        if *shared.stopped.borrow() {
            return Ok(Ordered::Stopped(records));
        }
        if at < state.next {
            drop(state);
            // What is there is readable, and its outcome known, once it is committed.
            shared.committed_through(at, by).await?;
            return Ok(Ordered::Taken);
        }
        if at != state.next || previous_hash != state.hash {
            return Err(Error::Corrupt {
                object: format!("entry to be appended to shard {}", shared.key.shard),
                lsn: Some(at),
                reason: format!("it does not follow entry {}", state.next.prev()),
            });
        }
        if at.0 >= PIPELINED {
            // Nothing was appended when this fails.
            shared.committed_through(Lsn(at.0 - PIPELINED), by).await?;
        }
        let place = Place { shard: shared.key.shard, loglet: shared.key.loglet, lsn: at };
        let writer = shared.env.writer_token();
        let (bytes, hash) = codec::encode(place, writer, previous_hash, &records)?;
        let size = bytes.len();
        let entry = Entry { lsn: at, writer, previous_hash, hash, records };
        shared.buffer.lock().push(bytes, self.next());
        if let [only] = shared.remotes.as_slice() {
            // Until the outcome is known the sequencer counts as stopped, also when this future is
            // dropped: only a recovery can tell what the server has.
            shared.stopped.send_replace(true);
            shared.feed(only, at, by).await.map_err(|error| shared.undecided(&entry, &error))?;
            shared.stopped.send_replace(false);
            (state.next, state.hash) = (at.next(), hash);
            shared.ordered.send_replace(at.next());
            shared.committed.send_replace(at.next());
            if matches!(shared.fence, Fence::Lease(_)) {
                // Followers wait at the server for what is committed. Without a next entry nothing
                // else would tell it; an answer that is lost is made good by that one.
                let _ = only.server.call(shared.confirming(), by).await;
            }
            return Ok(Ordered::Committed(entry, size));
        }
        (state.next, state.hash) = (at.next(), hash);
        shared.ordered.send_replace(at.next());
        Ok(Ordered::UnderWay(UnderWay { shared: Arc::clone(shared), entry, size, by }))
    }

    /// Stops taking entries; gives the LSN after the last committed one and its hash, or `None`
    /// when an append was left undecided.
    pub async fn stop(&self, by: Deadline) -> Option<(Lsn, [u8; 16])> {
        // An append may wait for a disk that does not answer.
        let waiting = "waiting for the log's sequencer";
        let state = self.shared.env.within(by, waiting, self.state.lock()).await.ok()?;
        if !*self.shared.stopped.borrow() && self.next() < state.next {
            // What is under way is given time to become what it would have become.
            let soon = by.earlier(self.shared.env.deadline(STOPPING));
            let _ = self.shared.committed_through(state.next.prev(), soon).await;
        }
        let undecided = *self.shared.stopped.borrow() || self.next() != state.next;
        self.shared.stopped.send_replace(true);
        (!undecided).then_some((state.next, state.hash))
    }

    /// Whether it takes no more entries.
    pub fn is_stopped(&self) -> bool {
        // Locked means that an append to the only server is under way; it will find out itself.
        *self.shared.stopped.borrow() && self.state.try_lock().is_ok()
    }
}

impl Drop for Sequencer {
    fn drop(&mut self) {
        // The pushers end.
        self.shared.stopped.send_replace(true);
        self.shared.ordered.send_modify(|_| {});
    }
}

impl Shared {
    /// What goes along with each request.
    fn terms(&self) -> Terms {
        let lease = match self.fence {
            Fence::Lock => Duration::ZERO,
            Fence::Lease(lease) => lease,
        };
        Terms { holder: self.holder, lease, committed: *self.committed.borrow() }
    }

    fn undecided(&self, entry: &Entry, error: &Error) -> Error {
        Error::Indeterminate {
            shard: self.key.shard,
            lsn: entry.lsn,
            writer: entry.writer,
            reason: error.to_string(),
        }
    }

    fn commit_below(&self, end: Lsn) {
        self.committed.send_if_modified(|next| {
            let grew = end > *next;
            *next = end.max(*next);
            grew
        });
    }

    /// Waits until `at` is committed.
    async fn committed_through(&self, at: Lsn, by: Deadline) -> Result<()> {
        let mut committed = self.committed.subscribe();
        let mut stopped = self.stopped.subscribe();
        let waiting = "waiting for a majority of the log servers";
        let done = async {
            let committed = committed.wait_for(|next| *next > at);
            let stopped = stopped.wait_for(|stopped| *stopped);
            futures::pin_mut!(committed, stopped);
            matches!(
                futures::future::select(committed, stopped).await,
                futures::future::Either::Left(_)
            )
        };
        if self.env.within(by, waiting, done).await? || *self.committed.borrow() > at {
            return Ok(());
        }
        Err(Error::Unavailable {
            shard: self.key.shard,
            reason: "the loglet has ended before a majority of its log servers had the entry"
                .into(),
        })
    }

    /// Counts what the servers have.
    fn count(&self) {
        let mut next: Vec<Lsn> = self.remotes.iter().map(|remote| remote.stored()).collect();
        next.sort_unstable_by(|a, b| b.cmp(a));
        let enough =
            if self.env.planted(Bug::AcknowledgesEarly) { 1 } else { majority(next.len()) };
        self.commit_below(next[enough - 1]);
        // Whoever asks for the tail learns from it what the owner knows.
        let committed = *self.committed.borrow();
        for remote in self.remotes.iter().filter(|remote| remote.server.is_local()) {
            remote.server.note_committed(self.key, committed);
        }
    }
}
