//! Restoring a database from backups, as of any moment that they cover.
//!
//! ```text
//! plan     which backup's checkpoint; walk the log behind it, in the copies, to the last entry at or before the moment
//! copy     marker, key rings, chain from version 2 on, checkpoint, log and parts as they are stored
//! finish   the version of the chain that ends the log there, then version 1, by which a database is one; marker away
//! ```
//!
//! # Invariants
//! - The new database is a state that the old one was in: all transactions up to one of them, and none behind it.
//! - Every entry that is given to it was read and followed the one before it; every table and part had the checksum of its copy.
//! - Until it is whole nobody can open it, or make another database in its place: version 1 of the chain is missing, later ones are there.
//!
//! # On failure
//! The marker stays; the same command goes on, another one is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use telesto_bucket::{Bucket, Cause, PutOutcome};
use telesto_common::{Env, Lsn, Timestamp};
use telesto_log::stored::{CutChain, StoredLog};

use crate::create::{SHARD, patience};
use crate::error::{Error, Result};
use crate::record::{Backup, Copied};
use crate::repository::{Progress, Repository, Stored, list};

/// Says which restoring is under way in a bucket.
const MARKER: &str = "restoring";
/// What else a bucket may hold of a database.
const PLACES: [&str; 5] = ["shards", "keyring", "nodes", "cluster", "regions"];
/// Objects copied at a time.
const AT_ONCE: usize = 4;

/// Which state to restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The newest backup.
    Newest,
    /// The backup of this number.
    Number(u64),
    /// The state at this moment: microseconds since 1970 by the database's clock.
    At(u64),
}

/// What is to be done.
#[derive(Debug)]
pub struct Plan<'a> {
    env: &'a Env,
    repository: &'a Repository,
    marker: String,
    /// The backup whose checkpoint it is.
    pub number: u64,
    /// The last entry.
    pub through: Lsn,
    /// The newest commit.
    pub newest: Timestamp,
    /// Objects that are copied, with what is known of them.
    objects: BTreeMap<String, Option<Copied>>,
    chain: CutChain,
}

/// Finds out how to restore `wanted`; `copies` are the repository's, as the database's keys open them.
///
/// # Errors
/// [`Error::NotCovered`], [`Error::NoBackups`], [`Error::NoSuchBackup`], [`Error::Damaged`]; the bucket's.
pub async fn plan<'a>(
    env: &'a Env,
    repository: &'a Repository,
    copies: &Arc<dyn Bucket>,
    wanted: Wanted,
) -> Result<Plan<'a>> {
    let backups = repository.backups().await?;
    let url = repository.url().to_owned();
    let Some(newest) = backups.last() else { return Err(Error::NoBackups { url }) };
    let missing = |number| Error::NoSuchBackup { number, url: url.clone() };
    let base = match wanted {
        Wanted::Newest => newest,
        Wanted::Number(number) => {
            backups.iter().find(|backup| backup.number == number).ok_or_else(|| missing(number))?
        }
        Wanted::At(micros) => base_of(&backups, micros)?,
    };
    let later: Vec<&Backup> = match wanted {
        Wanted::At(_) => backups.iter().filter(|backup| backup.number > base.number).collect(),
        Wanted::Newest | Wanted::Number(_) => Vec::new(),
    };
    let stop = match wanted {
        Wanted::At(micros) => Stop::Behind(micros),
        Wanted::Newest | Wanted::Number(_) => Stop::At(Lsn(base.end)),
    };
    let mut log = stored(env, copies, base).await?;
    for backup in &later {
        log = log.continued_by(&stored(env, copies, backup).await?);
    }
    let found = walk(env, &log, base, stop, later.last().map_or(base.end, |last| last.end)).await?;

    if found.newest == Timestamp(0) && matches!(wanted, Wanted::At(_)) {
        let reason = "it is before what the oldest backup holds".to_owned();
        return Err(Error::NotCovered { moment: moment(wanted), reason });
    }
    let mut objects: BTreeMap<String, Option<Copied>> =
        found.objects.into_iter().map(|key| (key, None)).collect();
    let parts: BTreeMap<&str, &Copied> = later
        .iter()
        .copied()
        .chain([base])
        .flat_map(|backup| &backup.parts)
        .map(|part| (part.key.as_str(), part))
        .collect();
    for (key, lsn) in found.parts {
        let Some(part) = parts.get(key.as_str()) else {
            let reason = format!(
                "{key}, which entry {lsn} needs, was collected by the database before a backup was made of it; a moment that a backup was made at, or one before, can be restored"
            );
            return Err(Error::NotCovered { moment: moment(wanted), reason });
        };
        objects.insert(key, Some((*part).clone()));
    }
    let checkpoint = base.checkpoint.iter().flat_map(|c| c.states.iter().chain(&c.tables));
    objects.extend(checkpoint.map(|copied| (copied.key.clone(), Some(copied.clone()))));
    objects.extend(log.chain_keys().skip(1).map(|key| (key, None)));
    for (key, _) in list(repository.objects.as_ref(), "keyring").await? {
        objects.insert(key, None);
    }
    let chain = log.cut(base.reached()?, found.last, env.writer_token());
    let marker = format!("backup {} of {url}, through entry {}\n", base.number, found.last.0);
    let (number, through, newest) = (base.number, found.last.0, found.newest);
    Ok(Plan { env, repository, marker, number, through, newest, objects, chain })
}

fn moment(wanted: Wanted) -> String {
    match wanted {
        Wanted::Newest => "the newest backup".to_owned(),
        Wanted::Number(number) => format!("backup {number}"),
        Wanted::At(micros) => format!("that moment ({micros} microseconds since 1970)"),
    }
}

/// The newest backup whose checkpoint holds nothing behind the moment.
fn base_of(backups: &[Backup], micros: u64) -> Result<&Backup> {
    let refuse = |reason: String| Error::NotCovered { moment: moment(Wanted::At(micros)), reason };
    if backups.last().is_some_and(|newest| micros > newest.began_micros) {
        return Err(refuse("it is later than the newest backup was begun".to_owned()));
    }
    let reaches = |backup: &&Backup| Timestamp(backup.checkpoint_newest).wall_micros() <= micros;
    // A backup that was begun before tells nothing of what came between, unless the log of later ones goes on from it.
    let base = backups.iter().rev().find(reaches);
    let base =
        base.ok_or_else(|| refuse("it is before what the oldest backup holds".to_owned()))?;
    let gap =
        backups.iter().find(|later| later.number > base.number && later.log_from > base.end + 1);
    match gap {
        Some(later) if micros > base.began_micros => Err(refuse(format!(
            "entries {} to {} of the log were trimmed between backups {} and {}: make backups more often than --retention",
            base.end + 1,
            later.log_from - 1,
            later.number - 1,
            later.number
        ))),
        _ => Ok(base),
    }
}

async fn stored(env: &Env, copies: &Arc<dyn Bucket>, backup: &Backup) -> Result<StoredLog> {
    let (bucket, version) = (Arc::clone(copies), backup.chain_version);
    Ok(StoredLog::at_version(bucket, env.clone(), SHARD, version, patience(env)).await?)
}

#[derive(Clone, Copy)]
enum Stop {
    /// With this entry.
    At(Lsn),
    /// Before the first entry with a commit later than this.
    Behind(u64),
}

struct Found {
    objects: Vec<String>,
    parts: BTreeMap<String, Lsn>,
    last: (Lsn, [u8; 16]),
    newest: Timestamp,
}

async fn walk(env: &Env, log: &StoredLog, base: &Backup, stop: Stop, end: u64) -> Result<Found> {
    let before = base.reached()?;
    let mut found = Found {
        objects: Vec::new(),
        parts: BTreeMap::new(),
        last: before,
        newest: Timestamp(base.checkpoint_newest),
    };
    let mut walk = log.walk_behind(before);
    while found.last.0.0 < end {
        let Some(object) = walk.next(patience(env)).await? else {
            let next = walk.position().0;
            return Err(Error::Damaged {
                url: base.source.clone(),
                object: format!("entry {next} of the log"),
                reason: "is missing".to_owned(),
            });
        };
        let mut taken = false;
        for entry in object.entries {
            let behind = match stop {
                Stop::At(lsn) => entry.lsn > lsn,
                Stop::Behind(micros) => entry.newest.is_some_and(|at| at.wall_micros() > micros),
            };
            if behind {
                if taken {
                    found.objects.push(object.key);
                }
                return Ok(found);
            }
            taken = true;
            found.last = (entry.lsn, entry.hash);
            found.newest = found.newest.max(entry.newest.unwrap_or(Timestamp(0)));
            found.parts.extend(entry.parts.into_iter().map(|part| (part.object, entry.lsn)));
        }
        found.objects.push(object.key);
    }
    Ok(found)
}

impl Plan<'_> {
    /// Objects that will be copied.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.objects.len()
    }

    /// Copies everything into `target`, but for what makes it a database.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::Damaged`]; the bucket's.
    pub async fn copy(&self, target: &dyn Bucket, progress: &dyn Progress) -> Result<()> {
        self.claim(target).await?;
        let copies = self.objects.iter().map(|(key, known)| async move {
            let bytes = self.one(target, key, known.as_ref()).await?;
            progress.copied("objects", bytes);
            Ok::<_, Error>(())
        });
        stream::iter(copies).buffer_unordered(AT_ONCE).try_collect().await
    }

    /// The marker in `target`, which has to be empty or have the same one.
    async fn claim(&self, target: &dyn Bucket) -> Result<()> {
        let url = target.url().to_owned();
        match target.get(Cause::Admin, MARKER, None).await? {
            Some(found) if found.body == self.marker => return Ok(()),
            Some(_) => {
                return Err(Error::NotEmpty {
                    url,
                    object: format!("{MARKER}, of another restoring,"),
                });
            }
            None => {}
        }
        for place in PLACES {
            let there = target.list_after(Cause::Admin, place, None, 1).await?;
            if let Some(object) = there.into_iter().next() {
                return Err(Error::NotEmpty { url, object: object.key });
            }
        }
        match target.put_if_absent(Cause::Admin, MARKER, self.marker.clone().into()).await? {
            PutOutcome::Created => Ok(()),
            PutOutcome::Exists => Err(Error::NotEmpty { url, object: MARKER.to_owned() }),
        }
    }

    async fn one(&self, target: &dyn Bucket, key: &str, known: Option<&Copied>) -> Result<u64> {
        let body = read_copy(self.repository, key, known).await?;
        let bytes = body.len() as u64;
        match target.put_if_absent(Cause::Admin, key, body).await? {
            PutOutcome::Created => Ok(bytes),
            PutOutcome::Exists => {
                Err(Error::NotEmpty { url: target.url().to_owned(), object: key.to_owned() })
            }
        }
    }

    /// Makes what was copied a database.
    ///
    /// # Errors
    /// The bucket's; [`Error::NotEmpty`] when something else is there.
    pub async fn finish(&self, target: &Stored) -> Result<()> {
        let url = || target.raw.url().to_owned();
        let taken = |object: &str| Error::NotEmpty { url: url(), object: object.to_owned() };
        // Another token each time: one that was cut off behind this put has left its own.
        let there = target.open.get(Cause::Admin, &self.chain.key, None).await?;
        if there.is_none() {
            let put =
                target.open.put_if_absent(Cause::Admin, &self.chain.key, self.chain.body.clone());
            if put.await? == PutOutcome::Exists {
                return Err(taken(&self.chain.key));
            }
        }
        let first = self.first_version();
        self.one(target.raw.as_ref(), &first, None).await?;
        Ok(target.raw.delete(Cause::Admin, MARKER).await?)
    }

    fn first_version(&self) -> String {
        let mut keys = telesto_log::stored::chain_keys(SHARD, 1);
        keys.next().unwrap_or_default()
    }

    /// The environment that it was made in.
    #[must_use]
    pub fn env(&self) -> &Env {
        self.env
    }
}

/// The copy of `key`, as long and with the checksum that are known of it.
pub(crate) async fn read_copy(
    repository: &Repository,
    key: &str,
    known: Option<&Copied>,
) -> Result<bytes::Bytes> {
    let damaged = |reason: &str| Error::Damaged {
        url: repository.url().to_owned(),
        object: key.to_owned(),
        reason: reason.to_owned(),
    };
    let object = repository.objects.get(Cause::Admin, key, None).await?;
    let body = object.ok_or_else(|| damaged("is missing"))?.body;
    match known {
        Some(known)
            if known.bytes != body.len() as u64 || known.crc32c != crc32c::crc32c(&body) =>
        {
            Err(damaged("is damaged: it is not what was copied"))
        }
        _ => Ok(body),
    }
}
