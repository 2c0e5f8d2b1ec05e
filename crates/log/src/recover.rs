//! Where a quorum loglet ends: what its log server has, held against what the bucket knows.
//!
//! ```text
//!  log server   |--- entries ---|          sealed, longest prefix (crate::quorum)
//!  archive      |--- objects -------|      every entry in it was committed
//!  trim point           ^                  everything below it was committed, and is in the checkpoint
//!  the loglet ends at the furthest of the three
//! ```
//! Entries at the end that too few log servers have go to the archive first, for they are committed
//! once the chain says so.
//!
//! # Invariants
//! - A loglet never ends before an entry that the archive has, or below the trim point: those were
//!   committed, whatever the local directory remembers. A directory that this process did not write
//!   itself may be older than it was: a restored backup, a machine put back to a snapshot, a disk
//!   that lost what it had acknowledged.
//! - A directory that ends before an entry the caller knows to be committed, and that is not
//!   archived either, is refused before the chain is changed.
//! - The hash of the last entry comes from whoever still has that entry.
//!
//! # On failure
//! [`Error::Corrupt`], naming the directory, and nothing was changed but the seal of the loglet.
//!
//! # Limits
//! Entries that were acknowledged after the last archived one and that the directory forgot are
//! gone (one log server, one disk): they can be up to the archive's delay old. That some may be
//! missing is logged and counted.

use std::sync::Arc;

use telesto_bucket::Cause;
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Lsn};

use crate::archive::covered;
use crate::chain::Loglet;
use crate::codec::{self, Place, hash16};
use crate::error::{Error, Result};
use crate::holders::Holders;
use crate::log::Inner;
use crate::quorum::{self, Recovered};
use crate::server::{LogServer, LogletKey, Reply, Request, loglet_directory};

impl Holders {
    /// Where the loglet is, for messages.
    fn place(&self, key: &LogletKey) -> String {
        match &self.alone {
            Some(server) => format!("{}/{}", server.disk().location(), loglet_directory(key)),
            None => format!("the log servers of {}", loglet_directory(key)),
        }
    }
}

impl Inner {
    /// Seals `loglet` and gives the LSN after its last entry, with that entry's hash. The caller
    /// holds the reconfiguration lock.
    pub async fn recover_loglet(
        &self,
        key: LogletKey,
        loglet: &Loglet,
        holders: &Holders,
        by: Deadline,
    ) -> Result<(Lsn, [u8; 16])> {
        let found = self.end_of(key, loglet, holders, by).await;
        if matches!(found, Err(Error::Corrupt { .. }))
            && holders.alone.is_none()
            && self.newest_chain(Cause::Registry, by).await?.active().id != loglet.id
        {
            // Whoever was there first has removed what it shipped: nothing is damaged.
            return Err(Error::Unavailable {
                shard: self.store.shard,
                reason: format!("loglet {} was ended by another process meanwhile", loglet.id),
            });
        }
        found
    }

    async fn end_of(
        &self,
        key: LogletKey,
        loglet: &Loglet,
        holders: &Holders,
        by: Deadline,
    ) -> Result<(Lsn, [u8; 16])> {
        let own = self.sequencer().filter(|sequencer| sequencer.key() == key);
        let (servers, holder) = (&holders.servers, own.as_ref().map(|own| own.holder()));
        let Recovered { end: on_disk, hash, kept, longest } =
            quorum::recover(key, loglet, servers, holder, &self.store.env, by).await?;
        if self.store.env.planted(Bug::ReleasesLastBatch) && hash.is_none() {
            return Err(quorum::lost(key, on_disk.prev()));
        }
        if self.store.env.planted(Bug::TrustsOldDirectory)
            && let Some(hash) = hash
        {
            return Ok((on_disk, hash));
        }
        let made = match &holders.alone {
            Some(server) => server.has_made(&key),
            None => own.is_some(),
        };
        if !made {
            // Its owner was another process, which may have shipped more than was listed here.
            self.archive.forget();
        }
        let trim = self.chain().trim;
        let (end, furthest) = self
            .with_objects(Cause::Archive, by, |objects| {
                let place =
                    (loglet.id, Lsn::ZERO, Lsn::ZERO)..(loglet.id + 1, Lsn::ZERO, Lsn::ZERO);
                let furthest = objects.range(place).map(|(_, _, last)| last.next()).max();
                (covered(objects, loglet.id, on_disk.max(trim.lsn)), furthest)
            })
            .await?;
        let older = |lsn: Lsn, reason: String| Error::Corrupt {
            object: holders.place(&key),
            lsn: Some(lsn),
            reason: format!(
                "it ends before entry {on_disk}, but {reason}: an older copy of the directory was put back, or the disk lost what it had acknowledged"
            ),
        };
        if let Some(furthest) = furthest
            && furthest > end
        {
            let last = furthest.prev();
            return Err(older(end, format!("entry {last} is archived and entry {end} is not")));
        }
        let known = self.known_committed(holders, &key, by).await?;
        if end <= known {
            return Err(older(end, format!("entry {known} is in the checkpoint")));
        }
        if !kept {
            self.keep(key, loglet, &servers[longest], on_disk, by).await?;
        }
        if end > on_disk {
            metrics::counter!("telesto_log_forgotten_entries_total").increment(end.0 - on_disk.0);
            tracing::error!(
                shard = self.store.shard.0,
                directory = holders.place(&key),
                on_disk = on_disk.0,
                in_the_bucket = end.0,
                "the local log is older than the bucket; it goes on from the bucket, and commits of the last moments before may be lost"
            );
        }
        match hash {
            Some(hash) if end == on_disk => Ok((end, hash)),
            _ if end == trim.lsn => Ok((end, trim.previous_hash)),
            hash => {
                if let Some(hash) = hash
                    && on_disk >= trim.lsn
                {
                    self.check_joint(loglet, on_disk, hash, by).await?;
                }
                let before = self.read_archived(loglet.id, end.prev(), Cause::Archive, by).await?;
                match before.as_ref().and_then(|entries| entries.first()) {
                    Some(entry) => Ok((end, hash16(entry))),
                    None => Err(Error::Corrupt {
                        object: holders.place(&key),
                        lsn: Some(end.prev()),
                        reason: "the entry is neither there nor in the archive".into(),
                    }),
                }
            }
        }
    }

    /// Ships what the archive lacks of a loglet that ends at `end`, of which too few servers have
    /// copies. An entry has one possible content, so that what is shipped is right wherever the
    /// chain will say that the loglet ends.
    async fn keep(
        &self,
        key: LogletKey,
        loglet: &Loglet,
        server: &Arc<dyn LogServer>,
        end: Lsn,
        by: Deadline,
    ) -> Result<()> {
        let start = loglet.start.max(self.chain().trim.lsn);
        let mut next = self
            .with_objects(Cause::Archive, by, |objects| covered(objects, loglet.id, start))
            .await?;
        while next < end {
            let read = Request::Read { key, from: next, max_bytes: self.options.archive_bytes };
            let Reply::Entries(mut entries) = server.call(read, by).await? else {
                return Err(quorum::lost(key, next));
            };
            entries.truncate(usize::try_from(end.0 - next.0).unwrap_or(usize::MAX));
            if entries.is_empty() {
                // Released, so that it is archived: the listing was too old.
                let released = quorum::released_to(key, server, next, by).await?;
                self.archive.forget();
                let listed = self
                    .with_objects(Cause::Archive, by, |objects| covered(objects, loglet.id, next));
                let listed = listed.await?;
                if listed < released {
                    return Err(quorum::lost(key, listed));
                }
                next = listed;
                continue;
            }
            self.ship_entries(key, next, &entries, by).await?;
            next = Lsn(next.0 + entries.len() as u64);
        }
        Ok(())
    }

    /// What those above the log know to be committed. Files that this very process has made are
    /// what they were, and what a majority of servers knows is more than one directory does.
    async fn known_committed(
        &self,
        holders: &Holders,
        key: &LogletKey,
        by: Deadline,
    ) -> Result<Lsn> {
        let own = match (&holders.alone, &self.options.cluster) {
            (Some(server), _) => server.has_made(key),
            (None, Some(cluster)) => holders.servers.len() > 1 || cluster.own.has_made(key),
            (None, None) => true,
        };
        if own {
            return Ok(Lsn::ZERO);
        }
        let asked = self.options.known_committed.through();
        let known = self.store.env.within(by, "asking what the checkpoint holds", asked).await?;
        known.map_err(|reason| Error::Unavailable { shard: self.store.shard, reason })
    }

    /// What the archive has at `at` must follow what the directory has before it, whose hash is
    /// `hash`.
    async fn check_joint(
        &self,
        loglet: &Loglet,
        at: Lsn,
        hash: [u8; 16],
        by: Deadline,
    ) -> Result<()> {
        let Some(found) = self.read_archived(loglet.id, at, Cause::Archive, by).await? else {
            return Ok(());
        };
        let object = format!("archive of loglet {} of shard {}", loglet.id, self.store.shard);
        let place = Place { shard: self.store.shard, loglet: loglet.id, lsn: at };
        let Some(bytes) = found.first() else { return Ok(()) };
        let entry = codec::decode(&object, place, bytes)?;
        if entry.previous_hash == hash {
            return Ok(());
        }
        Err(Error::Corrupt {
            object,
            lsn: Some(at),
            reason: "it does not follow the last entry of the local directory (hash chain broken)"
                .into(),
        })
    }
}
