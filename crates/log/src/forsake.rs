//! Going on in the bucket when a majority of the log servers is gone for good.
//!
//! ```text
//!  archive    |--- objects ---|
//!  survivors  |--- what one of them has beyond ---|    shipped to the archive first
//!                                                 └─ the log ends here; chain n+1: a bucket loglet
//! ```
//! # Invariants
//! - Nothing that the archive or a survivor has is given up: the log ends where neither goes on.
//! - Entries of a survivor are taken over only as they follow each other by their hashes.
//! - It never ends before an entry that the checkpoint holds.
//!
//! # On failure
//! Nothing was changed but objects that were added to the archive, all of which hold entries of the log.
//!
//! # Limits
//! **What was acknowledged and is on lost servers only is lost**, and no trace tells how much it was: an operator has to say that
//! this is accepted. An owner that lives after all, with a majority, goes on acknowledging until it sees the chain.

use std::sync::Arc;

use bytes::Bytes;
use telesto_bucket::{Bucket, Cause};
use telesto_common::{Deadline, Env, Lsn, ShardId};

use crate::archive::covered;
use crate::chain::{Loglet, Medium};
use crate::codec::{self, Place, hash16};
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::log::{Inner, VirtualLog};
use crate::options::LogOptions;
use crate::server::{LocalLogServer, LogletKey, Reply, StoredLoglet};

/// Read from a survivor, and put into an object of the archive, at a time.
const PIECE_BYTES: usize = 8 << 20;

/// What became of a log whose servers were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forsaken {
    /// The log goes on at this position: what was there and after it is lost.
    pub end: Lsn,
    /// Entries that a survivor had and the archive had not.
    pub salvaged: u64,
    /// Entries up to this position certainly were in the log, and are lost; none when not beyond `end`.
    pub known_lost_below: Lsn,
}

/// Ends the log of `shard` where the archive and the `survivors` (directories of log servers, which no process uses) end, and lets it go on
/// in the bucket.
///
/// # Errors
/// [`Error::Unavailable`] when its newest part is in the bucket already; [`Error::LocalDisk`] when a process uses a survivor;
/// [`Error::Corrupt`] when the checkpoint holds more than was found; those of the bucket.
pub async fn forsake_majority(
    bucket: Arc<dyn Bucket>,
    env: Env,
    shard: ShardId,
    options: LogOptions,
    survivors: &[Arc<dyn Disk>],
    by: Deadline,
) -> Result<Forsaken> {
    let mut locks = Vec::new();
    for disk in survivors {
        let opening =
            LocalLogServer::open(Arc::clone(disk), env.clone(), shard, options.segment_bytes);
        locks.push(env.within(by, "waiting for a survivor's directory", opening).await??);
    }
    let log = VirtualLog::over_newest(bucket, env, shard, options, by).await?;
    let inner = &log.inner;
    let chain = inner.chain();
    if chain.active().medium == Medium::Bucket {
        return Err(Error::Unavailable {
            shard,
            reason: "its newest part is in the bucket already: nothing is missing; start the nodes"
                .into(),
        });
    }
    let mut salvaged = 0;
    let mut found = None;
    for (index, loglet) in chain.loglets.iter().enumerate() {
        let Medium::Quorum { token, .. } = &loglet.medium else { continue };
        let key = LogletKey { shard, loglet: loglet.id, token: *token };
        let end = chain.loglets.get(index + 1).map(|next| next.start);
        let (reached, hash) = inner.salvage(key, loglet, end, survivors, &mut salvaged, by).await?;
        if end.is_none_or(|end| reached < end) {
            found = Some((loglet.id, reached, hash));
            break;
        }
    }
    let (last, end, hash) = found.unwrap_or_default();
    let known = inner.options.known_committed.through().await;
    let known = known.map_err(|reason| Error::Unavailable { shard, reason })?;
    if end <= known {
        return Err(Error::Corrupt {
            object: format!("log of shard {shard}"),
            lsn: Some(end),
            reason: format!(
                "entry {known} is in the checkpoint, but entry {end} is neither in the archive nor with a survivor; name more survivors"
            ),
        });
    }
    let writer = inner.store.env.writer_token();
    let mut next = chain.followed_by(writer, end, hash, Medium::Bucket);
    let new = chain.active().id + 1;
    // Loglets that began after the end hold nothing that still counts.
    next.loglets.retain(|loglet| loglet.id <= last || loglet.id == new);
    if !inner.put_chain(next, by).await? {
        return Err(Error::Unavailable {
            shard,
            reason: "another process has changed the log meanwhile: a node lives; look at it before this is tried again".into(),
        });
    }
    log.explain("a majority of the log servers was given up: what they alone had is lost", None);
    Ok(Forsaken { end, salvaged, known_lost_below: chain.active().start.max(end) })
}

impl Inner {
    /// Where `loglet` ends as far as anything is left of it, and the hash before that. What a survivor has is shipped.
    async fn salvage(
        &self,
        key: LogletKey,
        loglet: &Loglet,
        end: Option<Lsn>,
        survivors: &[Arc<dyn Disk>],
        salvaged: &mut u64,
        by: Deadline,
    ) -> Result<(Lsn, [u8; 16])> {
        let trim = self.chain().trim;
        let from = loglet.start.max(trim.lsn);
        let archived =
            self.with_objects(Cause::Archive, by, |objects| covered(objects, loglet.id, from));
        let mut next = archived.await?;
        let mut hash = if next == trim.lsn {
            trim.previous_hash
        } else if next == loglet.start {
            loglet.start_hash
        } else {
            let last = self.read_archived(loglet.id, next.prev(), Cause::Archive, by).await?;
            match last.as_ref().and_then(|entries| entries.first()) {
                Some(entry) => hash16(entry),
                None => {
                    return Err(Error::Corrupt {
                        object: format!("archive of loglet {}", loglet.id),
                        lsn: Some(next.prev()),
                        reason: "it was listed but is not there".into(),
                    });
                }
            }
        };
        for disk in survivors {
            while end.is_none_or(|end| next < end) {
                let entries = read(disk, key, next).await?;
                let entries = follow(key, next, &mut hash, end, entries);
                if entries.is_empty() {
                    break;
                }
                self.ship_entries(key, next, &entries, by).await?;
                let count = entries.len() as u64;
                *salvaged += count;
                next = Lsn(next.0 + count);
            }
        }
        Ok((next, hash))
    }
}

/// Entries that a survivor has of a loglet from `from` on; none when it never had it.
async fn read(disk: &Arc<dyn Disk>, key: LogletKey, from: Lsn) -> Result<Vec<Bytes>> {
    let opened = StoredLoglet::open(Arc::clone(disk), key, u64::MAX, false, false).await?;
    let Some(stored) = opened else { return Ok(Vec::new()) };
    let Reply::Tail { first, next, .. } = stored.tail().await else { return Ok(Vec::new()) };
    if from < first || from >= next {
        return Ok(Vec::new());
    }
    stored.read(from, PIECE_BYTES).await
}

/// Those of `entries` that follow `hash`, which becomes that of the last of them; none beyond `end`.
fn follow(
    key: LogletKey,
    first: Lsn,
    hash: &mut [u8; 16],
    end: Option<Lsn>,
    entries: Vec<Bytes>,
) -> Vec<Bytes> {
    let mut out = Vec::new();
    let mut lsn = first;
    for bytes in entries {
        let place = Place { shard: key.shard, loglet: key.loglet, lsn };
        let entry = codec::decode("a survivor's entry", place, &bytes);
        match entry {
            Ok(entry) if entry.previous_hash == *hash && end.is_none_or(|end| lsn < end) => {
                *hash = entry.hash;
                out.push(bytes);
                lsn = lsn.next();
            }
            _ => break,
        }
    }
    out
}
