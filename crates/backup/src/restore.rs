//! Restoring a database from backups, as of any moment that they cover.
//!
//! ```text
//! plan     which backup's checkpoint; walk the log behind it, in the copies, to the last entry at or before the moment
//! reserve  marker, key rings, and the version of the chain that ends the log there
//! copy     chain from version 2 on, checkpoint, log and parts, as they are stored
//! finish   version 1 of the chain, by which a database is one; marker away
//! ```
//!
//! # Invariants
//! - The new database is a state that the old one was in: all transactions up to one of them, and
//!   none behind it.
//! - Every entry that is given to it was read and followed the one before it; every table and part
//!   had the checksum of its copy.
//! - Until it is whole nobody can open it, or make another database in its place: version 1 of the
//!   chain is missing, later ones are there.
//!
//! - Each restored database has a version 1 of the chain that no other one has, into whatever place
//!   and from whatever backup it was restored.
//!
//! # On failure
//! The marker stays; the same command goes on, another one is refused. The marker says by which
//! backups: later ones are left out then.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use telesto_bucket::{Bucket, Cause, PutOutcome};
use telesto_common::{Env, Lsn, Timestamp, WriterToken};
use telesto_log::stored::{CutChain, StoredLog};

use crate::create::{SHARD, TOMBSTONE, patience};
use crate::error::{Error, Result};
use crate::record::{Backup, Copied};
use crate::repository::{Progress, Readable, Repository, Stored};

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
    keys: BTreeMap<String, Option<Copied>>,
    /// Objects that are copied, with what is known of them.
    objects: BTreeMap<String, Option<Copied>>,
    first: CutChain,
    chain: CutChain,
}

/// Finds out how to restore `wanted` to `target`, a bucket as it is stored; `copies` are the
/// repository's, as the database's keys open them.
///
/// # Errors
/// [`Error::NotCovered`], [`Error::NoBackups`], [`Error::NoSuchBackup`], [`Error::Damaged`]; the
/// bucket's.
pub async fn plan<'a>(
    env: &'a Env,
    repository: &'a Repository,
    copies: &Arc<dyn Bucket>,
    target: &dyn Bucket,
    wanted: Wanted,
) -> Result<Plan<'a>> {
    let mut readable = repository.readable().await?;
    let begun = begun(env, target, &readable).await?;
    readable.backups.retain(|backup| backup.number <= begun.known);
    let url = repository.url().to_owned();
    let chosen = choose(&mut readable, &url, wanted)?;
    let base = chosen.base;
    let found = follow(env, copies, &chosen, wanted).await?;
    let mut objects: BTreeMap<String, Option<Copied>> =
        found.walked.objects.into_iter().map(|key| (key, None)).collect();
    let parts: BTreeMap<&str, &Copied> = chosen
        .all()
        .flat_map(|backup| &backup.parts)
        .map(|part| (part.key.as_str(), part))
        .collect();
    for (key, lsn) in found.walked.parts {
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
    objects.extend(found.log.chain_keys().skip(1).map(|key| (key, None)));

    let through = found.walked.last.0;
    let writer = begun.writer;
    let marker = format!(
        "backup {} of {url}, through entry {through}\n{KNOWN}{} by {:032x}\n",
        base.number, begun.known, writer.0
    );
    let first = found.log.first_version(writer, patience(env)).await?;
    let chain = found.log.cut(base.reached()?, found.walked.last, writer, &first)?;
    let (number, newest, keys) = (base.number, found.walked.newest, chosen.keys(wanted));
    Ok(Plan { env, repository, marker, number, through, newest, keys, objects, first, chain })
}

/// The same each time that a command goes on with what was cut off.
struct Begun {
    /// The newest backup that counts.
    known: u64,
    /// Who makes the new database's versions of the chain.
    writer: WriterToken,
}

/// Begins the second line of a marker.
const KNOWN: &str = "of the backups through ";

async fn begun(env: &Env, target: &dyn Bucket, readable: &Readable) -> Result<Begun> {
    let marker = target.get(Cause::Admin, MARKER, None).await?;
    let marker = marker.map(|object| String::from_utf8_lossy(&object.body).into_owned());
    let begun = marker.as_deref().and_then(|marker| {
        let (known, writer) = marker.lines().nth(1)?.strip_prefix(KNOWN)?.split_once(" by ")?;
        let writer = WriterToken(u128::from_str_radix(writer, 16).ok()?);
        Some(Begun { known: known.parse().ok()?, writer })
    });
    Ok(begun.unwrap_or_else(|| {
        let newest = readable.backups.iter().map(|backup| backup.number);
        let known = newest.chain(readable.damaged.iter().map(|(number, _)| *number)).max();
        Begun { known: known.unwrap_or(0), writer: env.writer_token() }
    }))
}

/// A backup, and those behind it whose logs go on without a gap.
struct Chosen<'a> {
    base: &'a Backup,
    later: Vec<&'a Backup>,
    /// The first one behind a gap.
    beyond: Option<&'a Backup>,
    /// All that can be read.
    known: &'a [Backup],
}

impl<'a> Chosen<'a> {
    fn all(&self) -> impl Iterator<Item = &'a Backup> {
        [self.base].into_iter().chain(self.later.iter().copied())
    }

    /// Key rings and keys of tables. As of a moment: those of the backup and those made since, for
    /// what came later may be needed by what was written later; and of each table whose key was
    /// dropped, whether it was so at that moment. Where no backup says when, the key is gone where
    /// the backup that is restored says so.
    fn keys(&self, wanted: Wanted) -> BTreeMap<String, Option<Copied>> {
        let of = |copied: &Copied| (copied.key.clone(), Some(copied.clone()));
        let rings = |copied: &&Copied| copied.key.starts_with("keyring/");
        let Wanted::At(micros) = wanted else {
            return self.base.keys.iter().filter(rings).map(of).collect();
        };
        let mut keys: BTreeMap<_, _> =
            self.all().flat_map(|backup| &backup.keys).filter(rings).map(of).collect();
        let every = || self.known.iter().flat_map(|backup| &backup.keys);
        let tombstones: BTreeMap<&str, &Copied> = every()
            .filter(|copied| copied.key.ends_with(TOMBSTONE))
            .map(|copied| (copied.key.as_str(), copied))
            .collect();
        for (key, tombstone) in tombstones {
            let name = key.strip_suffix(TOMBSTONE).unwrap_or(key);
            let of_table =
                |other: &str| other.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
            let when = self.known.iter().find_map(|backup| backup.dropped.get(key));
            let was = when.map(|when| *when <= micros);
            let base = self.base.keys.iter().any(|copied| copied.key == *key);
            if was.unwrap_or(base) {
                keys.retain(|other, _| !of_table(other));
                keys.insert(key.to_owned(), Some(tombstone.clone()));
            } else {
                // A backup from before it was dropped has the key; this one may have the tombstone
                // alone.
                keys.extend(every().filter(|copied| of_table(&copied.key)).map(of));
                keys.remove(key);
            }
        }
        keys
    }
}

fn choose<'a>(readable: &'a mut Readable, url: &str, wanted: Wanted) -> Result<Chosen<'a>> {
    let missing = |number| Error::NoSuchBackup { number, url: url.to_owned() };
    let newest = readable.backups.last().map(|backup| backup.number);
    // What was asked for by its number, or as the newest one, is not replaced by another.
    let asked = |number| match wanted {
        Wanted::Number(asked) => number == asked,
        Wanted::Newest => Some(number) > newest,
        Wanted::At(_) => false,
    };
    if let Some(at) = readable.damaged.iter().position(|(number, _)| asked(*number)) {
        return Err(readable.damaged.swap_remove(at).1);
    }
    let known = readable.backups.as_slice();
    let Some(newest) = known.last() else { return Err(Error::NoBackups { url: url.to_owned() }) };
    let alone = |base| Chosen { base, later: Vec::new(), beyond: None, known };
    let micros = match wanted {
        Wanted::Newest => return Ok(alone(newest)),
        Wanted::Number(number) => {
            let base = known.iter().find(|backup| backup.number == number);
            return base.map(alone).ok_or_else(|| missing(number));
        }
        Wanted::At(micros) => micros,
    };
    let reaches = |backup: &Backup| Timestamp(backup.checkpoint_newest).wall_micros() <= micros;
    let Some(at) = known.iter().rposition(reaches) else {
        return Err(not_covered(wanted, BEFORE));
    };
    let mut chosen = alone(&known[at]);
    let mut end = chosen.base.end;
    for backup in &known[at + 1..] {
        if backup.log_from > end + 1 {
            chosen.beyond = Some(backup);
            break;
        }
        end = backup.end;
        chosen.later.push(backup);
    }
    Ok(chosen)
}

const BEFORE: &str = "it is before what the oldest backup holds";

fn not_covered(wanted: Wanted, reason: &str) -> Error {
    Error::NotCovered { moment: moment(wanted), reason: reason.to_owned() }
}

struct Followed {
    log: StoredLog,
    walked: Walked,
}

/// Walks to the last entry that is wanted.
async fn follow(
    env: &Env,
    copies: &Arc<dyn Bucket>,
    chosen: &Chosen<'_>,
    wanted: Wanted,
) -> Result<Followed> {
    let mut log = stored(env, copies, chosen.base).await?;
    for backup in &chosen.later {
        log = log.continued_by(&stored(env, copies, backup).await?);
    }
    let last = chosen.later.last().copied().unwrap_or(chosen.base);
    let until = match wanted {
        Wanted::At(micros) => Some(micros),
        Wanted::Newest | Wanted::Number(_) => None,
    };
    let walked = walk(env, &log, chosen.base, until, last.end).await?;
    if let (Some(micros), false) = (until, walked.met_later)
        && micros > last.covers_micros
    {
        return Err(match chosen.beyond {
            None => not_covered(
                wanted,
                &format!(
                    "it is later than what the newest backup is sure to hold (all through its newest commit, {} microseconds since 1970). If the database has committed nothing since, the newest backup is as of that moment: restore it without a moment",
                    last.covers_micros
                ),
            ),
            Some(beyond) => not_covered(
                wanted,
                &format!(
                    "entries {} to {} of the log were trimmed between backups {} and {}: make backups more often than --retention",
                    last.end + 1,
                    beyond.log_from - 1,
                    last.number,
                    beyond.number
                ),
            ),
        });
    }
    if walked.newest == Timestamp(0) && until.is_some() {
        return Err(not_covered(wanted, BEFORE));
    }
    Ok(Followed { log, walked })
}

fn moment(wanted: Wanted) -> String {
    match wanted {
        Wanted::Newest => "the newest backup".to_owned(),
        Wanted::Number(number) => format!("backup {number}"),
        Wanted::At(micros) => format!("that moment ({micros} microseconds since 1970)"),
    }
}

async fn stored(env: &Env, copies: &Arc<dyn Bucket>, backup: &Backup) -> Result<StoredLog> {
    let (bucket, version) = (Arc::clone(copies), backup.chain_version);
    Ok(StoredLog::at_version(bucket, env.clone(), SHARD, version, patience(env)).await?)
}

struct Walked {
    objects: Vec<String>,
    parts: BTreeMap<String, Lsn>,
    last: (Lsn, [u8; 16]),
    newest: Timestamp,
    /// A commit later than what is wanted was met: so all that is wanted was seen.
    met_later: bool,
}

/// Walks from the checkpoint of `base` through entry `end`, or until a commit later than `until`.
async fn walk(
    env: &Env,
    log: &StoredLog,
    base: &Backup,
    until: Option<u64>,
    end: u64,
) -> Result<Walked> {
    walk_from(env, log, (base.reached()?, base.checkpoint_newest), until, end).await
}

/// Walks from behind `before`, an entry with its hash and the newest commit by then.
async fn walk_from(
    env: &Env,
    log: &StoredLog,
    (before, newest): ((Lsn, [u8; 16]), u64),
    until: Option<u64>,
    end: u64,
) -> Result<Walked> {
    let mut walked = Walked {
        objects: Vec::new(),
        parts: BTreeMap::new(),
        last: before,
        newest: Timestamp(newest),
        met_later: false,
    };
    let mut walk = log.walk_behind(before);
    while walked.last.0.0 < end {
        let Some(object) = walk.next(patience(env)).await? else {
            let next = walk.position().0;
            return Err(Error::Damaged {
                url: log.url().to_owned(),
                object: format!("entry {next} of the log"),
                reason: "is missing".to_owned(),
            });
        };
        let mut taken = false;
        for entry in object.entries {
            let later = |at: Timestamp| until.is_some_and(|until| at.wall_micros() > until);
            walked.met_later = entry.newest.is_some_and(later);
            if walked.met_later || entry.lsn.0 > end {
                break;
            }
            taken = true;
            walked.last = (entry.lsn, entry.hash);
            walked.newest = walked.newest.max(entry.newest.unwrap_or(Timestamp(0)));
            walked.parts.extend(entry.parts.into_iter().map(|part| (part.object, entry.lsn)));
        }
        if taken {
            walked.objects.push(object.key);
        }
        if walked.met_later {
            break;
        }
    }
    Ok(walked)
}

/// Walks the log of `backup` from its checkpoint to its end, and gives what is wrong.
pub(crate) async fn check_log(env: &Env, copies: &Arc<dyn Bucket>, backup: &Backup) -> Result<()> {
    let log = stored(env, copies, backup).await?;
    walk(env, &log, backup, None, backup.end).await?;
    Ok(())
}

/// Walks the log between the ends of two backups whose logs are joined: moments between them are
/// restored by it.
pub(crate) async fn check_between(
    env: &Env,
    copies: &Arc<dyn Bucket>,
    before: &Backup,
    backup: &Backup,
) -> Result<()> {
    // From its own checkpoint on the later one was walked.
    if backup.log_from > before.end + 1 || backup.reaches <= before.end {
        return Ok(());
    }
    let log = stored(env, copies, before).await?;
    let log = log.continued_by(&stored(env, copies, backup).await?);
    walk_from(env, &log, (before.ended()?, before.newest), None, backup.reaches).await?;
    Ok(())
}

impl Plan<'_> {
    /// Objects that will be copied.
    #[must_use]
    pub fn objects(&self) -> usize {
        self.objects.len() + self.keys.len()
    }

    /// Takes `target`, as it is stored, which has to be empty or to have been taken so before, and
    /// gives it the keys.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::Damaged`]; the bucket's.
    pub async fn reserve(&self, target: &dyn Bucket, progress: &dyn Progress) -> Result<()> {
        self.claim(target).await?;
        self.copy_all(target, &self.keys, progress).await
    }

    /// Copies everything into `target`, but for what makes it a database. The version of the chain
    /// that ends the log goes first: with it there and version 1 missing nobody makes another
    /// database in the place.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::Damaged`]; the bucket's.
    pub async fn copy(&self, target: &Stored, progress: &dyn Progress) -> Result<()> {
        self.put(target, &self.chain).await?;
        if target
            .open
            .get(Cause::Admin, &self.first.key, None)
            .await?
            .is_some_and(|there| there.body != self.first.body)
        {
            // A node was started on it a moment ago. Its database has not seen the version that was
            // put.
            target.raw.delete(Cause::Admin, &self.chain.key).await?;
            return Err(Error::NotEmpty {
                url: target.raw.url().to_owned(),
                object: self.first.key.clone(),
            });
        }
        self.copy_all(target.raw.as_ref(), &self.objects, progress).await
    }

    async fn copy_all(
        &self,
        target: &dyn Bucket,
        objects: &BTreeMap<String, Option<Copied>>,
        progress: &dyn Progress,
    ) -> Result<()> {
        let copies = objects.iter().map(|(key, known)| async move {
            let bytes = self.one(target, key, known.as_ref()).await?;
            progress.copied("objects", bytes);
            Ok::<_, Error>(())
        });
        stream::iter(copies).buffer_unordered(AT_ONCE).try_collect().await
    }

    async fn put(&self, target: &Stored, chain: &CutChain) -> Result<()> {
        let (key, body) = (&chain.key, &chain.body);
        if let Some(there) = target.open.get(Cause::Admin, key, None).await? {
            // By the same command before.
            return match there.body == *body {
                true => Ok(()),
                false => {
                    Err(Error::NotEmpty { url: target.raw.url().to_owned(), object: key.clone() })
                }
            };
        }
        match target.open.put_if_absent(Cause::Admin, key, body.clone()).await? {
            PutOutcome::Created => Ok(()),
            PutOutcome::Exists => {
                Err(Error::NotEmpty { url: target.raw.url().to_owned(), object: key.clone() })
            }
        }
    }

    /// The marker in `target`, which has to be empty or have the same one.
    async fn claim(&self, target: &dyn Bucket) -> Result<()> {
        let url = target.url().to_owned();
        match target.get(Cause::Admin, MARKER, None).await? {
            Some(found) if found.body == self.marker => return Ok(()),
            Some(other) => {
                let other = String::from_utf8_lossy(&other.body).into_owned();
                let other = other.lines().next().unwrap_or_default();
                return Err(Error::NotEmpty { url, object: format!("{MARKER}: {other};") });
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
        self.put(target, &self.first).await?;
        Ok(target.raw.delete(Cause::Admin, MARKER).await?)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A backup with these keys of the table's, and when its key was dropped.
    fn backup(number: u64, keys: &[&str], dropped: Option<u64>) -> Backup {
        let copied =
            |name: &&str| Copied { key: format!("keyring/tables/t/{name}"), bytes: 1, crc32c: 2 };
        let tombstone = "keyring/tables/t/dropped".to_owned();
        let record = serde_json::json!({
            "version": 1, "number": number, "began_micros": 0, "ended_micros": 0, "source": "",
            "checkpoint": null, "reaches": 0, "reaches_hash": "00", "end": 0, "end_hash": "00",
            "checkpoint_newest": 0, "newest": 0, "log_from": 0, "chain_version": 1,
            "keys": keys.iter().map(copied).collect::<Vec<_>>(),
            "dropped": dropped.map(|at| (tombstone, at)).into_iter().collect::<BTreeMap<_, _>>(),
            "covers_micros": 0, "parts": [], "added_objects": 0, "added_bytes": 0,
        });
        serde_json::from_value(record).expect("a record")
    }

    #[test]
    fn key_of_a_table_is_there_at_moments_before_it_was_dropped_and_at_no_other() {
        let known = [
            backup(1, &["0000000001"], None),
            backup(2, &["dropped"], Some(500)),
            backup(3, &["dropped"], Some(500)),
        ];
        let keys = |base: usize, wanted| {
            let later = known[base + 1..].iter().collect();
            let chosen = Chosen { base: &known[base], later, beyond: None, known: &known };
            let keys = chosen.keys(wanted).into_keys();
            keys.map(|key| key.rsplit('/').next().unwrap_or_default().to_owned())
                .collect::<Vec<_>>()
        };
        for base in 0..2 {
            assert_eq!(keys(base, Wanted::At(499)), ["0000000001"], "base {base}");
            assert_eq!(keys(base, Wanted::At(500)), ["dropped"], "base {base}");
        }
        assert_eq!(keys(0, Wanted::Number(1)), ["0000000001"]);
        assert_eq!(keys(2, Wanted::Newest), ["dropped"]);
    }
}
