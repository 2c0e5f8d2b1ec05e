//! Making a backup while the database is in use.
//!
//! ```text
//! newest checkpoint: tables, states ─► log, from behind it to where the bucket has no more ─► chain ─► key rings ─► record
//!          ▲                                                                                 │
//!          └─────────── something was gone, or was trimmed past the checkpoint ◄─────────────┘
//! ```
//!
//! # Invariants
//! - A backup is a state that a crash of all nodes could have left: a checkpoint, and every entry of the log behind it up to its end.
//! - Nothing is written to the database's bucket, and no node is asked for anything.
//! - An entry is in it if it was in the bucket when the backup was begun: with the log on disks, what was shipped by then.
//!
//! # On failure
//! Nothing is recorded. What was copied is found by the next try.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

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
    for round in 0..ROUNDS {
        if round > 0 {
            env.clock.sleep(PAUSE).await;
        }
        let last = repository.backups().await?.pop();
        let round = Round { env, source, repository, progress, added: (0, 0) };
        match round.run(last).await {
            Ok(Some(backup)) => return Ok(backup),
            Ok(None) => reason = "another backup was recorded".to_owned(),
            Err(error @ (Error::Gone { .. } | Error::NotShipped { .. })) => {
                reason = error.to_string()
            }
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
    async fn run(mut self, last: Option<Backup>) -> Result<Option<Backup>> {
        let began_micros = self.env.clock.wall_micros();
        let log = self.log().await?;
        let cache = Arc::new(ProcessCache::new(CACHE_BYTES));
        let options =
            ShardOptions::new(SHARD, self.env.clone(), Arc::clone(&self.source.open), cache);
        let checkpoint = StoredCheckpoint::newest(&options).await?;
        let (reaches, checkpoint_newest) =
            checkpoint.as_ref().map_or((Lsn::ZERO, Timestamp(0)), |c| (c.reaches, c.newest));
        let known: BTreeMap<&str, &Copied> = last
            .iter()
            .flat_map(Backup::copied)
            .map(|copied| (copied.key.as_str(), copied))
            .collect();
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
        // The name of the home comes along, so that nobody starts a node on the copies and takes them for the database.
        let home = list(self.source.raw.as_ref(), "cluster/home").await?;
        let keys = rings.into_iter().chain(home).map(|(key, _)| key).collect();
        self.copy(keys, "keys").await?;
        let backup = Backup {
            version: VERSION,
            number: last.as_ref().map_or(1, |last| last.number + 1),
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
            parts: log.parts,
            added_objects: self.added.0,
            added_bytes: self.added.1,
        };
        Ok(self.repository.record(&backup).await?.then_some(backup))
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
        Ok(copied)
    }

    /// Copies those of `keys` that are not known to be there.
    async fn copy_new(
        &mut self,
        keys: Vec<String>,
        known: &BTreeMap<&str, &Copied>,
        what: &str,
    ) -> Result<Vec<Copied>> {
        let (there, new): (Vec<_>, Vec<_>) =
            keys.into_iter().partition(|key| known.contains_key(key.as_str()));
        let mut all = self.copy(new, what).await?;
        all.extend(there.iter().filter_map(|key| known.get(key.as_str())).map(|c| (*c).clone()));
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
        // From the checkpoint's last entry, whose hash is wanted, or from where the last backup ended.
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
        let mut version_keys = 0;
        let mut waiting = Vec::new();
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
            if newest.version() == log.version() && version_keys == log.version() {
                break;
            }
            // Somebody moved or trimmed the log meanwhile; then there may be more of it. The versions are copied before the last look.
            log = newest;
            walk.go_on_by(&log);
            self.copy(
                log.chain_keys()
                    .skip(usize::try_from(version_keys).unwrap_or(usize::MAX))
                    .collect(),
                "chain",
            )
            .await?;
            version_keys = log.version();
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

    /// Parts behind the checkpoint have to be there; of those before it, which serve moments between this backup and the last one, the
    /// database may have collected some.
    async fn copy_parts(&mut self, seen: &Seen, last: Option<&Backup>) -> Result<Vec<Copied>> {
        let known: BTreeMap<&str, &Copied> = last
            .iter()
            .flat_map(|last| &last.parts)
            .map(|copied| (copied.key.as_str(), copied))
            .collect();
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
