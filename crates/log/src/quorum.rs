//! The sequencer of a quorum loglet: writes entries in order to *r* log servers; an entry is
//! committed when a majority has it on disk.
//!
//! ```text
//! append(n) --Store(n)--> server 1   durable, next = n+1
//!           --Store(n)--> server 2   durable, next = n+1   majority: committed
//!           --Store(n)--> server 3   slow: gets n with n+1
//! ```
//! # Invariants
//! - One entry is under way at a time; each server has a prefix of what was written.
//! - An entry is readable only when it is committed.
//! - After a failed or abandoned append the sequencer stops for good: what it left behind is decided
//!   by [`recover`], which seals a majority, takes the longest prefix among them and brings a
//!   majority up to it. Every committed entry is in that prefix, because any two majorities meet.
//!
//! # Limits
//! A server that lags by more than the buffer gets nothing more until the next loglet.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use telesto_common::{Deadline, Env, Lsn};
use tokio::sync::{oneshot, watch};

use crate::chain::Loglet;
use crate::codec::{self, Place, hash16};
use crate::error::{Error, Result};
use crate::options::Append;
use crate::record::{Entry, Record};
use crate::server::{LogServer, LogletKey, Reply, Request};

/// What became of an append by a sequencer.
#[derive(Debug)]
pub enum Sequenced {
    /// A determinate result, and the size of what was appended.
    Done(Append, usize),
    /// The sequencer has stopped: nothing was appended, a successor has to be made first. The
    /// records come back.
    Stopped(Vec<Record>),
}

/// The sequencer of one quorum loglet.
#[derive(Debug)]
pub struct Sequencer {
    key: LogletKey,
    env: Env,
    servers: Vec<Arc<Remote>>,
    state: tokio::sync::Mutex<Position>,
    buffer: Arc<Mutex<Buffer>>,
    /// First LSN not yet committed.
    committed: watch::Sender<Lsn>,
}

#[derive(Debug)]
struct Position {
    next: Lsn,
    hash: [u8; 16],
    stopped: bool,
}

#[derive(Debug)]
struct Remote {
    server: Arc<dyn LogServer>,
    next: tokio::sync::Mutex<Lsn>,
}

/// The newest entries, for readers, the archive and servers that lag.
#[derive(Debug)]
struct Buffer {
    first: Lsn,
    entries: VecDeque<Bytes>,
    bytes: usize,
    limit: usize,
}

impl Buffer {
    fn push(&mut self, entry: Bytes) {
        self.bytes += entry.len();
        self.entries.push_back(entry);
        while self.bytes > self.limit && self.entries.len() > 1 {
            if let Some(old) = self.entries.pop_front() {
                self.bytes -= old.len();
                self.first = self.first.next();
            }
        }
    }

    /// Entries in `[from, below)`, about `max_bytes` of them; `None` when `from` is no longer here.
    fn range(&self, from: Lsn, below: Lsn, max_bytes: usize) -> Option<Vec<Bytes>> {
        let skip = from.0.checked_sub(self.first.0)? as usize;
        let wanted = below.0.saturating_sub(from.0) as usize;
        let mut bytes = 0;
        let mut found = Vec::new();
        for entry in self.entries.iter().skip(skip).take(wanted) {
            bytes += entry.len();
            found.push(entry.clone());
            if bytes >= max_bytes {
                break;
            }
        }
        Some(found)
    }
}

/// How many of `servers` make a majority.
pub fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

impl Sequencer {
    /// The sequencer of `loglet`, which is empty, on `servers`.
    pub fn new(
        key: LogletKey,
        env: Env,
        loglet: &Loglet,
        servers: Vec<Arc<dyn LogServer>>,
        buffer_bytes: usize,
    ) -> Arc<Self> {
        let start = loglet.start;
        let remotes = servers
            .into_iter()
            .map(|server| Arc::new(Remote { server, next: tokio::sync::Mutex::new(start) }));
        Arc::new(Self {
            key,
            env,
            servers: remotes.collect(),
            state: tokio::sync::Mutex::new(Position {
                next: start,
                hash: loglet.start_hash,
                stopped: false,
            }),
            buffer: Arc::new(Mutex::new(Buffer {
                first: start,
                entries: VecDeque::new(),
                bytes: 0,
                limit: buffer_bytes,
            })),
            committed: watch::channel(start).0,
        })
    }

    /// The loglet.
    pub fn key(&self) -> LogletKey {
        self.key
    }

    /// First LSN not yet committed, as it changes.
    pub fn committed(&self) -> watch::Receiver<Lsn> {
        self.committed.subscribe()
    }

    /// First LSN not yet committed.
    pub fn next(&self) -> Lsn {
        *self.committed.borrow()
    }

    /// Committed entries from `from` on, if they are still in memory.
    pub fn buffered(&self, from: Lsn, max_bytes: usize) -> Option<Vec<Bytes>> {
        let next = self.next();
        self.buffer.lock().range(from, next, max_bytes)
    }

    /// Appends one entry at exactly `at`.
    pub async fn append(
        &self,
        at: Lsn,
        previous_hash: [u8; 16],
        records: Vec<Record>,
        by: Deadline,
    ) -> Result<Sequenced> {
        let waiting = "waiting for the log's sequencer";
        let mut state = self.env.within(by, waiting, self.state.lock()).await?;
        if state.stopped {
            return Ok(Sequenced::Stopped(records));
        }
        if at < state.next {
            return Ok(Sequenced::Done(Append::TAKEN, 0));
        }
        if at != state.next || previous_hash != state.hash {
            return Err(Error::Corrupt {
                object: format!("entry to be appended to shard {}", self.key.shard),
                lsn: Some(at),
                reason: format!("it does not follow entry {}", state.next.prev()),
            });
        }
        let place = Place { shard: self.key.shard, loglet: self.key.loglet, lsn: at };
        let writer = self.env.writer_token();
        let (bytes, hash) = codec::encode(place, writer, previous_hash, &records)?;
        // Until the outcome is known the sequencer counts as stopped, also when this future is
        // dropped: only a recovery can tell what the servers have.
        state.stopped = true;
        let size = bytes.len();
        self.buffer.lock().push(bytes);
        if let Err(error) = self.replicate(at, by).await {
            return Err(Error::Indeterminate {
                shard: self.key.shard,
                lsn: at,
                writer,
                reason: error.to_string(),
            });
        }
        state.stopped = false;
        state.next = at.next();
        state.hash = hash;
        self.committed.send_replace(at.next());
        let entry = Entry { lsn: at, writer, previous_hash, hash, records };
        Ok(Sequenced::Done(Append::Committed(entry), size))
    }

    /// Brings a majority up to and including `last`.
    async fn replicate(&self, last: Lsn, by: Deadline) -> Result<()> {
        if let [only] = self.servers.as_slice() {
            return only.catch_up(&self.env, self.key, &self.buffer, last, by).await;
        }
        // The slow minority goes on after we return.
        let mut replies = FuturesUnordered::new();
        for remote in &self.servers {
            let (done, reply) = oneshot::channel();
            let (remote, buffer, key) = (Arc::clone(remote), Arc::clone(&self.buffer), self.key);
            let env = self.env.clone();
            self.env.spawn("storing on a log server", async move {
                let _ = done.send(remote.catch_up(&env, key, &buffer, last, by).await);
            });
            replies.push(reply);
        }
        let mut stored = 0;
        let mut failure = None;
        while let Some(reply) = replies.next().await {
            match reply {
                Ok(Ok(())) => stored += 1,
                Ok(Err(error)) => failure = Some(error),
                Err(_) => {}
            }
            if stored >= majority(self.servers.len()) {
                return Ok(());
            }
        }
        Err(failure.unwrap_or(Error::Unavailable {
            shard: self.key.shard,
            reason: "a majority of the log servers did not answer".into(),
        }))
    }

    /// Stops taking entries; gives the LSN after the last committed one and its hash, or `None` when
    /// an append was left undecided.
    pub async fn stop(&self) -> Option<(Lsn, [u8; 16])> {
        let mut state = self.state.lock().await;
        let undecided = state.stopped;
        state.stopped = true;
        (!undecided).then_some((state.next, state.hash))
    }

    /// Everything below `end` was found committed after it stopped.
    pub fn decided(&self, end: Lsn) {
        self.committed.send_if_modified(|next| {
            let grew = end > *next;
            *next = end.max(*next);
            grew
        });
    }

    /// Whether it takes no more entries.
    pub fn is_stopped(&self) -> bool {
        // Locked means an append is under way; it will find out itself.
        self.state.try_lock().is_ok_and(|s| s.stopped)
    }
}

impl Remote {
    async fn catch_up(
        &self,
        env: &Env,
        key: LogletKey,
        buffer: &Mutex<Buffer>,
        last: Lsn,
        by: Deadline,
    ) -> Result<()> {
        let waiting = "waiting for a log server";
        let mut next = env.within(by, waiting, self.next.lock()).await?;
        while *next <= last {
            let entries = buffer.lock().range(*next, last.next(), 4 << 20);
            let Some(entries) = entries.filter(|e| !e.is_empty()) else {
                return Err(Error::Unavailable {
                    shard: key.shard,
                    reason: format!("a log server lags too far behind (it needs entry {next})"),
                });
            };
            let store = Request::Store { key, first: *next, entries, repair: false };
            match self.server.call(store, by).await? {
                Reply::Stored { next: stored } => *next = stored.max(*next),
                // An earlier reply was lost: the server has more than we knew.
                Reply::Refused { next: has, sealed: false } if has > *next => *next = has,
                other => {
                    return Err(Error::Unavailable {
                        shard: key.shard,
                        reason: format!("a log server answered {other:?}"),
                    });
                }
            }
        }
        Ok(())
    }
}

/// Where the log servers of a loglet end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The LSN after the last entry that a majority has now.
    pub end: Lsn,
    /// The hash of the entry before `end`; `None` when the servers have released that entry, because
    /// it is in the archive.
    pub hash: Option<[u8; 16]>,
}

/// Ends a loglet whose sequencer is gone: seals a majority, takes the longest prefix among them,
/// brings a majority up to it.
///
/// Two recoveries may end at different LSNs; both ends include every committed entry, and whoever
/// puts the next chain version decides.
pub async fn recover(
    key: LogletKey,
    loglet: &Loglet,
    servers: &[Arc<dyn LogServer>],
    by: Deadline,
) -> Result<Recovered> {
    let mut seals: FuturesUnordered<_> = servers
        .iter()
        .enumerate()
        .map(|(i, s)| async move { (i, s.call(Request::Seal { key }, by).await) })
        .collect();
    let needed = majority(servers.len());
    let mut tails: Vec<(Lsn, usize)> = Vec::new();
    let mut failure = None;
    while tails.len() < needed {
        match seals.next().await {
            Some((index, Ok(Reply::Tail { next, sealed: true, .. }))) => tails.push((next, index)),
            Some((_, Ok(Reply::Unknown))) => {
                failure = Some(Error::Corrupt {
                    object: format!(
                        "loglet {} of shard {} on its log server ({})",
                        key.loglet,
                        key.shard,
                        crate::server::loglet_directory(&key)
                    ),
                    lsn: Some(loglet.start),
                    reason: "its files are missing".into(),
                });
            }
            Some((_, Ok(other))) => {
                failure = Some(Error::Unavailable {
                    shard: key.shard,
                    reason: format!("a log server answered {other:?} to a seal"),
                });
            }
            Some((_, Err(error))) => failure = Some(error),
            None => {
                return Err(failure.unwrap_or(Error::Unavailable {
                    shard: key.shard,
                    reason: "a majority of the log servers cannot be reached".into(),
                }));
            }
        }
    }
    drop(seals);
    tails.sort_unstable();
    let (end, longest) = *tails.last().expect("a majority has at least one server");
    for (tail, index) in &tails {
        let mut next = *tail;
        while next < end {
            let read = Request::Read { key, from: next, max_bytes: 4 << 20 };
            let Reply::Entries(entries) = servers[longest].call(read, by).await? else {
                return Err(lost(key, next));
            };
            if entries.is_empty() {
                return Err(lost(key, next));
            }
            let count = entries.len() as u64;
            let store = Request::Store { key, first: next, entries, repair: true };
            match servers[*index].call(store, by).await? {
                Reply::Stored { .. } => next = Lsn(next.0 + count),
                Reply::Refused { next: has, .. } if has > next => next = has,
                other => {
                    return Err(Error::Unavailable {
                        shard: key.shard,
                        reason: format!("a log server answered {other:?} to a repair"),
                    });
                }
            }
        }
    }
    if end <= loglet.start {
        return Ok(Recovered { end: loglet.start, hash: Some(loglet.start_hash) });
    }
    let read = Request::Read { key, from: end.prev(), max_bytes: 1 };
    match servers[longest].call(read, by).await? {
        Reply::Entries(entries) => Ok(Recovered { end, hash: entries.first().map(|e| hash16(e)) }),
        _ => Err(lost(key, end.prev())),
    }
}

/// An entry that a log server had is not there any more.
pub fn lost(key: LogletKey, lsn: Lsn) -> Error {
    Error::Corrupt {
        object: format!("loglet {} of shard {} on its log server", key.loglet, key.shard),
        lsn: Some(lsn),
        reason: "the server no longer has an entry that it had".into(),
    }
}
