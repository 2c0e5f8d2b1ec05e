//! Going on in the bucket when a majority of the log servers is gone for good.
//!
//! ```text
//!  archive    |--- objects ---|
//!  survivors  |--- what one of them has beyond ---|    shipped to the archive first
//!                                                 └─ the log ends here; chain n+1: a bucket loglet
//!
//!  archive    |--- objects ---|   (lost)
//!  checkpoint |----------------------------|           a fold does not wait for the archive
//!  survivors                               |-- some --|
//!                                          └─ trim point └─ the log ends here
//! ```
//! # Invariants
//! - Nothing that the archive or a survivor has is given up: the log ends where neither goes on.
//! - Entries of a survivor are taken over only as they follow each other by their hashes.
//! - It never ends before an entry that the checkpoint holds. Where what is left of the log ends
//!   before one, it begins anew behind the checkpoint: nobody needs to read what that holds, and no
//!   commit of it is lost.
//!
//! # On failure
//! Nothing was changed but objects that were added to the archive, all of which hold entries of the
//! log.
//!
//! # Limits
//! **What was acknowledged and is on lost servers only is lost**, and no trace tells how much it
//! was: an operator has to say that this is accepted. An owner that lives after all, with a
//! majority, goes on acknowledging until it sees the chain.

use std::sync::Arc;

use bytes::Bytes;
use telesto_bucket::{Bucket, Cause};
use telesto_common::{Deadline, Env, Lsn, ShardId};

use crate::archive::covered;
use crate::chain::{Chain, Loglet, Medium, TrimPoint};
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
    /// Entries up to this position certainly were in the log, and are lost; none when not beyond
    /// `end`.
    pub known_lost_below: Lsn,
    /// The first and the last entry that are in the checkpoint only: no commit of theirs is lost,
    /// but no moment between them can be told any more.
    pub only_in_checkpoint: Option<(Lsn, Lsn)>,
}

/// What is left of a log from some position on.
struct Left {
    /// The newest loglet that holds some of it.
    loglet: u64,
    /// Where it ends, and the hash before that.
    end: Lsn,
    hash: [u8; 16],
}

/// Ends the log of `shard` where the archive and the `survivors` (directories of log servers, which
/// no process uses) end, and lets it go on in the bucket.
///
/// # Errors
/// [`Error::Unavailable`] when its newest part is in the bucket already; [`Error::LocalDisk`] when
/// a process uses a survivor; those of the bucket.
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
    let start = (chain.trim.lsn, None);
    let mut left = inner.left(&chain, start, survivors, &mut salvaged, by).await?;
    let known = inner.options.known_committed.through().await;
    let known = known.map_err(|reason| Error::Unavailable { shard, reason })?;
    let mut trim = None;
    if left.end <= known {
        let (first_lost, from) = (left.end, known.next());
        // Whoever has seen another entry there is told to begin again from the checkpoint.
        let fresh = inner.store.env.writer_token().to_bytes();
        let hash = inner.hash_left(&chain, from, survivors, by).await?.unwrap_or(fresh);
        left = inner.left(&chain, (from, Some(hash)), survivors, &mut salvaged, by).await?;
        trim = Some((TrimPoint { lsn: from, previous_hash: hash }, (first_lost, known)));
    }
    let writer = inner.store.env.writer_token();
    let mut next = chain.followed_by(writer, left.end, left.hash, Medium::Bucket);
    let new = chain.active().id + 1;
    // Loglets that began after the end hold nothing that still counts.
    next.loglets.retain(|loglet| loglet.id <= left.loglet || loglet.id == new);
    if let Some((trim, _)) = trim {
        next.trim_to(trim);
    }
    let end = left.end;
    if !inner.put_chain(next, by).await? {
        return Err(Error::Unavailable {
            shard,
            reason: "another process has changed the log meanwhile: a node lives; look at it before this is tried again".into(),
        });
    }
    log.explain("a majority of the log servers was given up: what they alone had is lost", None);
    Ok(Forsaken {
        end,
        salvaged,
        known_lost_below: chain.active().start.max(end),
        only_in_checkpoint: trim.map(|(_, lost)| lost),
    })
}

impl Inner {
    /// What is left of the log from `from` on, which is not below the trim point; the hash before
    /// it, where it is not what the chain says. What a survivor has is shipped.
    async fn left(
        &self,
        chain: &Chain,
        from: (Lsn, Option<[u8; 16]>),
        survivors: &[Arc<dyn Disk>],
        salvaged: &mut u64,
        by: Deadline,
    ) -> Result<Left> {
        let mut left = Left { loglet: 0, end: from.0, hash: from.1.unwrap_or_default() };
        for (index, loglet) in chain.loglets.iter().enumerate() {
            let end = chain.loglets.get(index + 1).map(|next| next.start);
            let Medium::Quorum { token, .. } = &loglet.medium else { continue };
            if end.is_some_and(|end| end <= from.0) {
                continue;
            }
            let key = LogletKey { shard: chain.shard, loglet: loglet.id, token: *token };
            let (reached, hash) =
                self.salvage(key, loglet, (from, end), survivors, salvaged, by).await?;
            left = Left { loglet: loglet.id, end: reached, hash };
            if end.is_some_and(|end| reached < end) {
                break;
            }
        }
        Ok(left)
    }

    /// The hash before entry `from`, as that entry tells it, if a survivor or the archive has it.
    async fn hash_left(
        &self,
        chain: &Chain,
        from: Lsn,
        survivors: &[Arc<dyn Disk>],
        by: Deadline,
    ) -> Result<Option<[u8; 16]>> {
        let Some((loglet, _)) = chain.loglet_at(from) else { return Ok(None) };
        let Medium::Quorum { token, .. } = &loglet.medium else { return Ok(None) };
        let key = LogletKey { shard: chain.shard, loglet: loglet.id, token: *token };
        let place = Place { shard: chain.shard, loglet: loglet.id, lsn: from };
        let archived = self.read_archived(loglet.id, from, Cause::Archive, by).await?;
        let mut found: Vec<Bytes> =
            archived.into_iter().filter_map(|e| e.into_iter().next()).collect();
        for disk in survivors {
            found.extend(read(disk, key, from).await?.into_iter().next());
        }
        let decoded =
            found.iter().filter_map(|entry| codec::decode("a survivor's entry", place, entry).ok());
        Ok(decoded.map(|entry| entry.previous_hash).next())
    }

    /// Where `loglet`, from `from` on and not beyond `end`, ends as far as anything is left of it,
    /// and the hash before that. What a survivor has is shipped.
    async fn salvage(
        &self,
        key: LogletKey,
        loglet: &Loglet,
        (from, end): ((Lsn, Option<[u8; 16]>), Option<Lsn>),
        survivors: &[Arc<dyn Disk>],
        salvaged: &mut u64,
        by: Deadline,
    ) -> Result<(Lsn, [u8; 16])> {
        let trim = self.chain().trim;
        let begin = loglet.start.max(from.0);
        let archived =
            self.with_objects(Cause::Archive, by, |objects| covered(objects, loglet.id, begin));
        let mut next = archived.await?;
        let mut hash = if let (true, Some(hash)) = (next == from.0, from.1) {
            hash
        } else if next == trim.lsn {
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

/// Those of `entries` that follow `hash`, which becomes that of the last of them; none beyond
/// `end`.
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
