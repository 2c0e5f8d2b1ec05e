//! Making a backup while the database is in use.
//!
//! ```text
//! newest checkpoint: tables, states ─► log, from behind it to where the bucket has no more ─► chain ─► key rings ─► record
//!          ▲                                                                                 │
//!          └─────────── something was gone, or was trimmed past the checkpoint ◄─────────────┘
//! ```
//!
//! # Invariants
//! - A backup is a state that a crash of all nodes could have left: a checkpoint, and every entry
//!   of the log behind it up to its end.
//! - Nothing is written to the database's bucket, and no node is asked for anything.
//! - An entry is in it if it was in the bucket when the backup was begun: with the log on disks,
//!   what was shipped by then.
//! - Before anything else version 1 of the chain is copied, which each database has of its own:
//!   what is of another database than the copies, or of another course of it (one that was
//!   restored), is refused with nothing of it among them.
//! - A moment is covered by the database's own clock: what it commits later is later than the
//!   newest commit that was copied. The clocks of the bucket and of whoever copies say nothing of
//!   that.
//!
//! # On failure
//! Nothing is recorded. What was copied is found by the next try.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::Cause;
use telesto_common::{Deadline, Env, Lsn, ShardId, Timestamp};
use telesto_log::stored::{StoredEntry, StoredLog};
use telesto_shard::{ProcessCache, ShardOptions, StoredCheckpoint};

use crate::error::{Error, Result};
use crate::record::{Backup, Checkpoint, Copied, VERSION, hash_text};
use crate::repository::{Progress, Repository, Stored, copy, list};

/// Rounds until a database counts as one that goes on too fast to be copied.
const ROUNDS: u32 = 8;
/// Between two rounds.
const PAUSE: Duration = Duration::from_secs(1);
/// Pauses to wait for entries that the checkpoint has and the bucket has not.
const SHIPPING: u32 = 30;
/// Whose cluster a bucket is.
const HOME: &str = "cluster/home";
/// How the key of a tombstone ends: a key of tables that was dropped.
pub(crate) const TOMBSTONE: &str = "/dropped";
/// Bound on one request for the log.
const PATIENCE: Duration = Duration::from_secs(120);
/// Objects of the log that are copied together.
const BATCH: usize = 64;
/// What a look at the checkpoint may keep in memory.
const CACHE_BYTES: u64 = 4 << 20;

/// A database to back up, or the copies of one.
pub(crate) const SHARD: ShardId = ShardId(0);

pub(crate) fn patience(env: &Env) -> Deadline {
    env.deadline(PATIENCE)
}

/// Backs the database in `source` up.
///
/// # Errors
/// [`Error`].
pub async fn create(
    env: &Env,
    source: &Stored,
    repository: &Repository,
    progress: &dyn Progress,
) -> Result<Backup> {
    let mut reason = String::new();
    // What the rounds before have copied.
    let mut done = BTreeMap::new();
    for round in 0..ROUNDS {
        if round > 0 {
            env.clock.sleep(PAUSE).await;
        }
        let (last, newest) = repository.newest().await?;
        let there = BTreeSet::new();
        let mut run = Round { env, source, repository, progress, added: (0, 0), done, there };
        let made = run.run(last, newest).await;
        done = run.done;
        match made {
            Ok(Some(backup)) => return Ok(backup),
            Ok(None) => reason = "another backup was recorded".to_owned(),
            // Something was collected or trimmed while it was being copied.
            Err(
                error @ (Error::Gone { .. }
                | Error::Log(telesto_log::Error::Trimmed { .. })
                | Error::Checkpoint(telesto_shard::Error::Unavailable { .. })),
            ) => reason = error.to_string(),
            Err(error @ Error::Pruning { .. }) if round + 1 < ROUNDS => reason = error.to_string(),
            Err(error) => return Err(error),
        }
    }
    let url = source.raw.url().to_owned();
    Err(Error::Overtaken { url, rounds: ROUNDS, reason })
}

struct Round<'a> {
    env: &'a Env,
    source: &'a Stored,
    repository: &'a Repository,
    progress: &'a dyn Progress,
    /// Objects and bytes.
    added: (u64, u64),
    done: BTreeMap<String, Copied>,
    /// Tables and parts among the copies.
    there: BTreeSet<String>,
}

/// What was copied of the log.
struct CopiedLog {
    from: Lsn,
    reaches_hash: [u8; 16],
    end: (Lsn, [u8; 16]),
    newest: Timestamp,
    version: u64,
    parts: Vec<Copied>,
}

impl Round<'_> {
    /// `newest`: the number of the newest record.
    async fn run(&mut self, last: Option<Backup>, newest: u64) -> Result<Option<Backup>> {
        let began_micros = self.env.clock.wall_micros();
        let log = self.log().await?;
        let home = self.claim(&log).await?;
        self.there = self.tables_and_parts().await?;
        let there = &self.there;
        self.done.retain(|key, _| there.contains(key));
        // The database's own time, if its bucket told one with the chain: this machine's clock may
        // be wrong.
        let began_micros =
            self.source.open.clock_micros().map_or(began_micros, |at| at.min(began_micros));
        let cache = Arc::new(ProcessCache::new(CACHE_BYTES));
        let options =
            ShardOptions::new(SHARD, self.env.clone(), Arc::clone(&self.source.open), cache);
        let checkpoint = StoredCheckpoint::newest(&options).await?;
        let (reaches, checkpoint_newest) =
            checkpoint.as_ref().map_or((Lsn::ZERO, Timestamp(0)), |c| (c.reaches, c.newest));
        let known = known(last.iter().flat_map(Backup::copied));
        let copied = match checkpoint {
            None => None,
            Some(checkpoint) => Some(Checkpoint {
                tables: self.copy_new(checkpoint.tables, &known, "tables").await?,
                states: self.copy_new(checkpoint.states, &known, "states").await?,
            }),
        };
        let log = self.copy_log(log, reaches, checkpoint_newest, last.as_ref()).await?;
        // Behind everything that was written with them.
        let rings = list(self.source.raw.as_ref(), "keyring").await?;
        let tombstones = rings.iter().filter(|(key, _)| key.ends_with(TOMBSTONE)).cloned();
        let dropped = tombstones.collect();
        let rings = rings.into_iter().map(|(key, _)| key).collect();
        let mut keys = self.copy(rings, "keys").await?;
        keys.extend(home);
        let backup = Backup {
            version: VERSION,
            number: newest + 1,
            began_micros,
            ended_micros: self.env.clock.wall_micros(),
            source: self.source.raw.url().to_owned(),
            checkpoint: copied,
            reaches: reaches.0,
            reaches_hash: hash_text(log.reaches_hash),
            checkpoint_newest: checkpoint_newest.0,
            end: log.end.0.0,
            end_hash: hash_text(log.end.1),
            newest: log.newest.0,
            log_from: log.from.0,
            chain_version: log.version,
            keys,
            dropped,
            covers_micros: log.newest.wall_micros(),
            parts: log.parts,
            added_objects: self.added.0,
            added_bytes: self.added.1,
        };
        // The place may refuse deletes: nothing is recorded that would have to be forgotten.
        self.is_not_pruned().await?;
        if !self.repository.record(&backup).await? {
            return Ok(None);
        }
        self.still_there(&backup).await?;
        Ok(Some(backup))
    }

    /// Copies what tells this database from all others, unless it is there: refuses when another
    /// one's is. Gives the name of the home, which comes along so that nobody starts a node on the
    /// copies and takes them for the database.
    async fn claim(&mut self, log: &StoredLog) -> Result<Option<Copied>> {
        self.copy(log.chain_keys().take(1).collect(), "chain").await?;
        if self.source.raw.get(Cause::Admin, HOME, None).await?.is_none() {
            return Ok(None);
        }
        Ok(self.copy(vec![HOME.to_owned()], "keys").await?.pop())
    }

    async fn is_not_pruned(&self) -> Result<()> {
        if self.repository.is_pruned(self.env).await? {
            return Err(Error::Pruning { url: self.repository.url().to_owned() });
        }
        Ok(())
    }

    async fn tables_and_parts(&self) -> Result<BTreeSet<String>> {
        let mut there = BTreeSet::new();
        for place in ["checkpoint", "parts"] {
            let listed =
                list(self.repository.objects.as_ref(), &format!("shards/{SHARD}/{place}")).await?;
            there.extend(listed.into_iter().map(|(key, _)| key));
        }
        Ok(there)
    }

    /// What was found copied may have been pruned since, and another backup may have gone ahead:
    /// then this one does not count.
    async fn still_there(&self, backup: &Backup) -> Result<()> {
        let newer = self.repository.newest().await?.1 > backup.number;
        let found = async {
            // Before the look: who removes says so first, and no more when all is removed.
            self.is_not_pruned().await?;
            let there = self.tables_and_parts().await?;
            let stored = |copied: &&Copied| copied.key.starts_with("shards/");
            let lost = backup.copied().filter(stored).find(|copied| !there.contains(&copied.key));
            match lost {
                Some(lost) => Err(Error::Gone { object: format!("{} of the copies", lost.key) }),
                None if newer => {
                    Err(Error::Gone { object: "the place as the newest backup".to_owned() })
                }
                None => Ok(()),
            }
        };
        let Err(error) = found.await else { return Ok(()) };
        self.repository.forget(backup.number).await?;
        Err(error)
    }

    async fn log(&self) -> Result<StoredLog> {
        let bucket = Arc::clone(&self.source.open);
        let newest = StoredLog::newest(bucket, self.env.clone(), SHARD, patience(self.env)).await?;
        newest.ok_or_else(|| Error::NoDatabase { url: self.source.raw.url().to_owned() })
    }

    async fn copy(&mut self, keys: Vec<String>, what: &str) -> Result<Vec<Copied>> {
        let to = self.repository.objects.as_ref();
        let copied = copy(self.source.raw.as_ref(), to, keys, what, self.progress).await?;
        self.added.0 += copied.len() as u64;
        self.added.1 += copied.iter().map(|copied| copied.bytes).sum::<u64>();
        self.done.extend(copied.iter().map(|copied| (copied.key.clone(), copied.clone())));
        Ok(copied)
    }

    /// Copies those of `keys` that are not known to be there.
    async fn copy_new(
        &mut self,
        keys: Vec<String>,
        known: &BTreeMap<&str, &Copied>,
        what: &str,
    ) -> Result<Vec<Copied>> {
        let (mut all, mut new) = (Vec::new(), Vec::new());
        for key in keys {
            let copied = known.get(key.as_str()).copied().or_else(|| self.done.get(&key));
            match copied.filter(|_| self.there.contains(&key)) {
                Some(copied) => all.push(copied.clone()),
                None => new.push(key),
            }
        }
        all.extend(self.copy(new, what).await?);
        all.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(all)
    }

    async fn copy_log(
        &mut self,
        mut log: StoredLog,
        reaches: Lsn,
        checkpoint_newest: Timestamp,
        last: Option<&Backup>,
    ) -> Result<CopiedLog> {
        let (first, before_first) = log.first();
        if reaches.next() < first {
            return Err(Error::Gone { object: format!("entry {}", reaches.next()) });
        }
        // From the checkpoint's last entry, whose hash is wanted, or from where the last backup
        // ended.
        let since = last.map_or(u64::MAX, |last| last.end + 1);
        let begin = Lsn(reaches.0.max(1).min(since)).max(first);
        let mut walk = log.walk(begin);
        let mut seen = Seen {
            reaches,
            reaches_hash: (reaches.next() == first).then_some(before_first),
            last: last.map(Backup::ended).transpose()?,
            newest: checkpoint_newest,
            parts: BTreeMap::new(),
        };
        // The last one that was copied is compared once more.
        let mut versions = last.map_or(0, |last| last.chain_version - 1);
        let (mut waiting, mut looked, mut waited) = (Vec::new(), false, 0);
        loop {
            while let Some(object) = walk.next(patience(self.env)).await? {
                for entry in &object.entries {
                    seen.entry(entry, self.repository.url(), &object.key)?;
                }
                waiting.push(object.key);
                if waiting.len() >= BATCH {
                    self.copy(std::mem::take(&mut waiting), "log").await?;
                }
            }
            self.copy(std::mem::take(&mut waiting), "log").await?;
            let newest = self.log().await?;
            if newest.first().0 > reaches.next() {
                return Err(Error::Gone { object: format!("entry {}", reaches.next()) });
            }
            let shipped = walk.position().0 > reaches;
            if looked && newest.version() == log.version() && (shipped || waited == SHIPPING) {
                break;
            }
            if !shipped {
                waited += 1;
                self.env.clock.sleep(PAUSE).await;
            }
            // Somebody moved or trimmed the log meanwhile, or more of it is shipped. The versions
            // are copied before the last look.
            log = newest;
            looked = true;
            if !walk.go_on_by(&log) {
                return Err(Error::Gone { object: format!("entry {}", walk.position().0.prev()) });
            }
            let skip = usize::try_from(versions).unwrap_or(usize::MAX);
            self.copy(log.chain_keys().skip(skip).collect(), "chain").await?;
            versions = log.version();
        }
        let (next, hash) = walk.position();
        if log.has_ended(next) && log.kept_by(next).is_none() {
            let object = format!("entry {next} of the log");
            let reason = "is missing from the bucket".to_owned();
            return Err(Error::Damaged { url: self.source.raw.url().to_owned(), object, reason });
        }
        let (Some(hash), Some(reaches_hash)) = (hash, seen.reaches_hash) else {
            return Err(Error::NotShipped { from: next });
        };
        if next <= reaches {
            return Err(Error::NotShipped { from: next });
        }
        if last.is_some_and(|last| next.prev().0 < last.end) {
            let object = format!("the end of the log, entry {} now,", next.prev());
            return Err(Error::OtherDatabase { url: self.repository.url().to_owned(), object });
        }
        let parts = self.copy_parts(&seen, last).await?;
        let without_gap = last.filter(|last| begin.0 <= last.end + 1);
        Ok(CopiedLog {
            from: without_gap.map_or(begin, |last| Lsn(last.log_from.min(begin.0))),
            reaches_hash,
            end: (next.prev(), hash),
            newest: seen.newest,
            version: log.version(),
            parts,
        })
    }

    /// Parts behind the checkpoint have to be there; of those before it, which serve moments
    /// between this backup and the last one, the database may have collected some.
    async fn copy_parts(&mut self, seen: &Seen, last: Option<&Backup>) -> Result<Vec<Copied>> {
        let known = known(last.iter().flat_map(|last| &last.parts));
        let (needed, settled): (Vec<_>, Vec<_>) =
            seen.parts.iter().partition(|(_, lsn)| **lsn > seen.reaches);
        let needed = needed.into_iter().map(|(key, _)| key.clone()).collect();
        let mut parts = self.copy_new(needed, &known, "parts").await?;
        for (key, _) in settled {
            match self.copy_new(vec![key.clone()], &known, "parts").await {
                Ok(copied) => parts.extend(copied),
                Err(Error::Gone { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(parts)
    }
}

fn known<'a>(copied: impl Iterator<Item = &'a Copied>) -> BTreeMap<&'a str, &'a Copied> {
    copied.map(|copied| (copied.key.as_str(), copied)).collect()
}

/// What was seen of entries.
struct Seen {
    reaches: Lsn,
    reaches_hash: Option<[u8; 16]>,
    /// Where the last backup ended.
    last: Option<(Lsn, [u8; 16])>,
    newest: Timestamp,
    /// Part objects, and the entry that names each.
    parts: BTreeMap<String, Lsn>,
}

impl Seen {
    fn entry(&mut self, entry: &StoredEntry, url: &str, object: &str) -> Result<()> {
        if entry.lsn == self.reaches {
            self.reaches_hash = Some(entry.hash);
        }
        if entry.lsn.prev() == self.reaches {
            self.reaches_hash = Some(entry.previous_hash);
        }
        let differs = self.last.is_some_and(|(lsn, hash)| {
            (lsn == entry.lsn && hash != entry.hash)
                || (lsn.next() == entry.lsn && hash != entry.previous_hash)
        });
        if differs {
            return Err(Error::OtherDatabase { url: url.to_owned(), object: object.to_owned() });
        }
        self.newest = self.newest.max(entry.newest.unwrap_or(Timestamp(0)));
        self.parts.extend(entry.parts.iter().map(|part| (part.object.clone(), entry.lsn)));
        Ok(())
    }
}
