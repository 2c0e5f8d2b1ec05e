//! Ending a loglet whose sequencer is gone, or has stopped.
//!
//! ```text
//! server 1  |─────────────|            sealed                 longest
//! server 2  |────────|~~~~|            sealed, repaired
//! server 3  (away)                     entries committed with it are on 1 or 2
//! server 3' |──  doubtful              it may have forgotten: it does not count, and is repaired all the same
//! ```
//! How many are enough: an entry is committed at q = majority of r servers, all among the m that
//! were met before the chain named the loglet (the others never take entries of it). Any m - q + 1
//! of those meet every such q. When all were met that is a majority; when one of three was not,
//! each of the other two has everything.
//!
//! Enough to know where the loglet ends is not enough to keep it: the last entries of a sequencer
//! that was cut off may be with that one server alone, and count as committed once the chain says
//! that the loglet ends after them. So up to a majority are sealed and brought up to the end, if
//! they answer within [`GRACE`]; else the caller is told ([`Recovered::kept`]), and ships what
//! there is to the archive before the chain says anything.
//!
//! # Invariants
//! - A majority, in this sense, is sealed before anything is believed.
//! - What counts as committed afterwards is with a majority of all servers, or the caller knows
//!   that it may not be.
//! - A server that may have forgotten something of the loglet is not part of that majority: what
//!   was committed with its help would be missed.
//!
//! # On failure
//! Nothing but seals and repairs was done; the next recovery does the same again.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Env, Lsn, WriterToken};

use super::majority;
use crate::chain::{Loglet, Medium};
use crate::codec::hash16;
use crate::error::{Error, Result};
use crate::server::{LogServer, LogletKey, Reply, Request};

/// How long more servers than must be sealed are waited for, so that a majority has the whole
/// loglet.
const GRACE: Duration = Duration::from_millis(200);
/// How long one of them may take to be brought up to the end.
const REPAIRING: Duration = Duration::from_secs(1);

/// Where the log servers of a loglet end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The LSN after the last entry that the sealed servers have now.
    pub end: Lsn,
    /// The hash of the entry before `end`; `None` when the servers have released that entry,
    /// because it is in the archive.
    pub hash: Option<[u8; 16]>,
    /// Whether everything below `end` is, or was when it was committed, with a majority of all
    /// servers.
    pub kept: bool,
    /// The place of a server that has it all, but for what is archived.
    pub longest: usize,
}

/// A server that was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sealed {
    next: Lsn,
    first: Lsn,
    index: usize,
    /// Everything below it was with a majority.
    committed: Lsn,
}

/// Ends a loglet whose sequencer is gone: seals a majority, takes the longest prefix among them,
/// brings a majority up to it. `holder` is the sequencer's own mark, if it is the one that ends it.
///
/// Two recoveries may end at different LSNs; both ends include every committed entry, and whoever
/// puts the next chain version decides.
///
/// # Errors
/// [`Error::Unavailable`] without a majority; [`Error::Corrupt`] when the only server has lost the
/// loglet.
pub async fn recover(
    key: LogletKey,
    loglet: &Loglet,
    servers: &[Arc<dyn LogServer>],
    holder: Option<WriterToken>,
    env: &Env,
    by: Deadline,
) -> Result<Recovered> {
    let needed = if env.planted(Bug::SealsMinority) { 1 } else { enough(loglet, servers.len()) };
    let copies = if env.planted(Bug::SealsMinority) || env.planted(Bug::KeepsOneCopy) {
        needed
    } else {
        majority(servers.len()).max(needed)
    };
    let mut sealed = seal(key, loglet, servers, holder, (needed, copies), env, by).await?;
    sealed.sort_unstable();
    let Some(longest) = sealed.last().copied() else {
        return Err(Error::Unavailable {
            shard: key.shard,
            reason: "no log server of the loglet is known".into(),
        });
    };
    let more = sealed.len() > needed;
    let soon = if more { by.earlier(env.deadline(REPAIRING)) } else { by };
    let mut whole = 0;
    for one in &sealed {
        match repair(key, servers, *one, longest, soon).await {
            Ok(()) => whole += 1,
            // Where it ends is known without this one.
            Err(error) if more => {
                tracing::debug!(loglet = key.loglet, %error, "a log server was not brought up to the end");
            }
            Err(error) => return Err(error),
        }
    }
    let (end, longest_at) = (longest.next, longest.index);
    let committed = sealed.iter().map(|one| one.committed).max().unwrap_or_default();
    let kept = whole >= copies || committed >= end || end <= loglet.start;
    if end <= loglet.start {
        let (end, hash) = (loglet.start, Some(loglet.start_hash));
        return Ok(Recovered { end, hash, kept, longest: longest_at });
    }
    let read = Request::Read { key, from: end.prev(), max_bytes: 1 };
    match servers[longest_at].call(read, by).await? {
        Reply::Entries(entries) => {
            let hash = entries.first().map(|e| hash16(e));
            Ok(Recovered { end, hash, kept, longest: longest_at })
        }
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

/// Seals as many servers as must be, and up to `copies` if more answer soon.
async fn seal(
    key: LogletKey,
    loglet: &Loglet,
    servers: &[Arc<dyn LogServer>],
    holder: Option<WriterToken>,
    (needed, copies): (usize, usize),
    env: &Env,
    by: Deadline,
) -> Result<Vec<Sealed>> {
    let mut seals: FuturesUnordered<_> = servers
        .iter()
        .enumerate()
        .map(|(i, s)| async move { (i, s.call(Request::Seal { key, holder }, by).await) })
        .collect();
    let credulous = env.planted(Bug::CountsForgetful);
    let mut sealed: Vec<Sealed> = Vec::new();
    let mut forgetful = 0;
    let mut failure = None;
    let mut grace = None;
    while sealed.len() < copies {
        let answer = if sealed.len() < needed {
            seals.next().await
        } else {
            let grace = *grace.get_or_insert_with(|| by.earlier(env.deadline(GRACE)));
            match env.within(grace, "more copies of an ended loglet", seals.next()).await {
                Ok(Some(answer)) => Some(answer),
                Ok(None) | Err(_) => break,
            }
        };
        match answer {
            Some((
                index,
                Ok(Reply::Tail { first, next, sealed: true, doubtful, committed, .. }),
            )) => {
                if doubtful && !credulous {
                    forgetful += 1;
                } else {
                    sealed.push(Sealed { next, first, index, committed });
                }
            }
            Some((index, Ok(Reply::Unknown))) if credulous && servers.len() > 1 => {
                let (start, server) = (loglet.start, None);
                servers[index].call(Request::Create { key, start, server }, by).await?;
                servers[index].call(Request::Seal { key, holder }, by).await?;
                sealed.push(Sealed { next: start, first: start, index, committed: start });
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
    let mut first = longest.first;
    while next < longest.next {
        if next < first {
            // What the longest has released is in the archive.
            let skip = Request::Skip { key, to: first };
            match servers[one.index].call(skip, by).await? {
                Reply::Stored { next: skipped, .. } => next = skipped,
                other => return Err(refused(key, &other)),
            }
            continue;
        }
        let read = Request::Read { key, from: next, max_bytes: 4 << 20 };
        let Reply::Entries(entries) = servers[longest.index].call(read, by).await? else {
            return Err(lost(key, next));
        };
        if entries.is_empty() {
            first = released_to(key, &servers[longest.index], next, by).await?;
            continue;
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

/// Up to where a sealed server has released what it had at `lsn`: its owner, which may live on, has
/// shipped it meanwhile.
///
/// # Errors
/// [`Error::Corrupt`] when it has released nothing there: the entry is lost.
pub async fn released_to(
    key: LogletKey,
    server: &Arc<dyn LogServer>,
    lsn: Lsn,
    by: Deadline,
) -> Result<Lsn> {
    match server.call(Request::Tail { key }, by).await? {
        Reply::Tail { first, .. } if first > lsn => Ok(first),
        _ => Err(lost(key, lsn)),
    }
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
