//! Ending a loglet whose sequencer is gone, or has stopped.
//!
//! ```text
//! server 1  |─────────────|            sealed                 longest
//! server 2  |────────|~~~~|            sealed, repaired
//! server 3  (away)                     entries committed with it are on 1 or 2
//! server 3' |──  doubtful              it may have forgotten: it does not count, and is repaired all the same
//! ```
//! How many are enough: an entry is committed at q = majority of r servers, all among the m that were met before the
//! chain named the loglet (the others never take entries of it). Any m - q + 1 of those meet every such q. When all
//! were met that is a majority; when one of three was not, each of the other two has everything.
//!
//! # Invariants
//! - A majority, in this sense, is sealed before anything is believed, and holds the whole loglet afterwards.
//! - A server that may have forgotten something of the loglet is not part of that majority: what was committed with its
//!   help would be missed.
//!
//! # On failure
//! Nothing but seals and repairs was done; the next recovery does the same again.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Env, Lsn, WriterToken};

use super::majority;
use crate::chain::{Loglet, Medium};
use crate::codec::hash16;
use crate::error::{Error, Result};
use crate::server::{LogServer, LogletKey, Reply, Request};

/// Where the log servers of a loglet end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The LSN after the last entry that a majority has now.
    pub end: Lsn,
    /// The hash of the entry before `end`; `None` when the servers have released that entry, because
    /// it is in the archive.
    pub hash: Option<[u8; 16]>,
}

/// A server that was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sealed {
    next: Lsn,
    first: Lsn,
    index: usize,
}

/// Ends a loglet whose sequencer is gone: seals a majority, takes the longest prefix among them,
/// brings a majority up to it. `holder` is the sequencer's own mark, if it is the one that ends it.
///
/// Two recoveries may end at different LSNs; both ends include every committed entry, and whoever
/// puts the next chain version decides.
///
/// # Errors
/// [`Error::Unavailable`] without a majority; [`Error::Corrupt`] when the only server has lost the loglet.
pub async fn recover(
    key: LogletKey,
    loglet: &Loglet,
    servers: &[Arc<dyn LogServer>],
    holder: Option<WriterToken>,
    env: &Env,
    by: Deadline,
) -> Result<Recovered> {
    let mut sealed = seal_majority(key, loglet, servers, holder, env, by).await?;
    sealed.sort_unstable();
    let Some(longest) = sealed.last().copied() else {
        return Err(Error::Unavailable {
            shard: key.shard,
            reason: "no log server of the loglet is known".into(),
        });
    };
    for one in &sealed {
        repair(key, servers, *one, longest, by).await?;
    }
    let end = longest.next;
    if end <= loglet.start {
        return Ok(Recovered { end: loglet.start, hash: Some(loglet.start_hash) });
    }
    let read = Request::Read { key, from: end.prev(), max_bytes: 1 };
    match servers[longest.index].call(read, by).await? {
        Reply::Entries(entries) => Ok(Recovered { end, hash: entries.first().map(|e| hash16(e)) }),
        _ => Err(lost(key, end.prev())),
    }
}

/// How many sealed servers meet every set of servers at which an entry can have been committed.
fn enough(loglet: &Loglet, servers: usize) -> usize {
    let met = match &loglet.medium {
        Medium::Quorum { servers, .. } => servers.iter().filter(|s| s.incarnation.0 != 0).count(),
        Medium::Bucket => 0,
    };
    let majority = majority(servers);
    // A single node's own server was not asked who it is.
    if met < majority { majority } else { met - majority + 1 }
}

async fn seal_majority(
    key: LogletKey,
    loglet: &Loglet,
    servers: &[Arc<dyn LogServer>],
    holder: Option<WriterToken>,
    env: &Env,
    by: Deadline,
) -> Result<Vec<Sealed>> {
    let mut seals: FuturesUnordered<_> = servers
        .iter()
        .enumerate()
        .map(|(i, s)| async move { (i, s.call(Request::Seal { key, holder }, by).await) })
        .collect();
    let needed = if env.planted(Bug::SealsMinority) { 1 } else { enough(loglet, servers.len()) };
    let credulous = env.planted(Bug::CountsForgetful);
    let mut sealed: Vec<Sealed> = Vec::new();
    let mut forgetful = 0;
    let mut failure = None;
    while sealed.len() < needed {
        match seals.next().await {
            Some((index, Ok(Reply::Tail { first, next, sealed: true, doubtful, .. }))) => {
                if doubtful && !credulous {
                    forgetful += 1;
                } else {
                    sealed.push(Sealed { next, first, index });
                }
            }
            Some((index, Ok(Reply::Unknown))) if credulous && servers.len() > 1 => {
                let (start, server) = (loglet.start, None);
                servers[index].call(Request::Create { key, start, server }, by).await?;
                servers[index].call(Request::Seal { key, holder }, by).await?;
                sealed.push(Sealed { next: start, first: start, index });
            }
            Some((_, Ok(Reply::Unknown))) if servers.len() == 1 => {
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
            Some((_, Ok(Reply::Unknown))) => forgetful += 1,
            Some((_, Ok(other))) => {
                failure = Some(Error::Unavailable {
                    shard: key.shard,
                    reason: format!("a log server answered {other:?} to a seal"),
                });
            }
            Some((_, Err(error))) => failure = Some(error),
            None if servers.len() == 1 && failure.is_some() => {
                return Err(failure.unwrap_or_else(|| lost(key, loglet.start)));
            }
            None => {
                let last = failure.map(|error| format!(" ({error})")).unwrap_or_default();
                return Err(Error::Unavailable {
                    shard: key.shard,
                    reason: format!(
                        "{} of the {} log servers of loglet {} answered, {forgetful} more may have forgotten some of it, and {needed} are needed{last}",
                        sealed.len(),
                        servers.len(),
                        key.loglet
                    ),
                });
            }
        }
    }
    Ok(sealed)
}

/// Brings one sealed server up to the longest.
async fn repair(
    key: LogletKey,
    servers: &[Arc<dyn LogServer>],
    one: Sealed,
    longest: Sealed,
    by: Deadline,
) -> Result<()> {
    let mut next = one.next;
    if next < longest.first {
        // What the longest has released is in the archive.
        let skip = Request::Skip { key, to: longest.first };
        match servers[one.index].call(skip, by).await? {
            Reply::Stored { next: skipped, .. } => next = skipped,
            other => return Err(refused(key, &other)),
        }
    }
    while next < longest.next {
        let read = Request::Read { key, from: next, max_bytes: 4 << 20 };
        let Reply::Entries(entries) = servers[longest.index].call(read, by).await? else {
            return Err(lost(key, next));
        };
        if entries.is_empty() {
            return Err(lost(key, next));
        }
        let count = entries.len() as u64;
        let store = Request::Store { key, first: next, entries, repair: true, terms: None };
        match servers[one.index].call(store, by).await? {
            Reply::Stored { .. } => next = Lsn(next.0 + count),
            Reply::Refused { next: has, .. } if has > next => next = has,
            other => return Err(refused(key, &other)),
        }
    }
    Ok(())
}

fn refused(key: LogletKey, answer: &Reply) -> Error {
    Error::Unavailable {
        shard: key.shard,
        reason: format!("a log server answered {answer:?} to a repair"),
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
