//! Where backups are kept: a bucket, or a prefix of one, of their own.
//!
//! ```text
//! backups/<number>.json   one backup, put last
//! pruning/<begun>-<who>   while old backups are removed, by whom that was begun when
//! objects/<key>           objects of the database's bucket, each once, under the names and in the form that they have there
//! ```
//!
//! # Invariants
//! - An object that was copied is never changed; what is taken for it has the same bytes.
//! - A record is put when all that it names is there.
//! - Who removes puts its mark into `pruning` before it reads the records; who makes a backup looks
//!   for that, and for what it named, when its record is there. So the one keeps what the other
//!   names, or the other sees that it does not.
//!
//! # On failure
//! What a backup that was cut off has copied stays, and the next one finds it.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use telesto_bucket::{Bucket, Cause, PutOutcome};
use telesto_common::Env;

use crate::error::{Error, Result};
use crate::record::{Backup, Copied};

/// Objects copied at a time: with tables of 64 MiB this is what copying keeps in memory.
const AT_ONCE: usize = 4;
/// Objects a LIST request returns at most.
const PAGE: usize = 1000;

/// A bucket, as it is stored and as its keys open it. Of a database that is not encrypted both are
/// the same.
#[derive(Clone, Debug)]
pub struct Stored {
    /// As it is stored.
    pub raw: Arc<dyn Bucket>,
    /// As its keys open it.
    pub open: Arc<dyn Bucket>,
}

/// Told what was copied.
pub trait Progress: Send + Sync {
    /// One more object of `what`.
    fn copied(&self, what: &str, bytes: u64);
}

/// The place of backups.
#[derive(Clone, Debug)]
pub struct Repository {
    /// Where the records are.
    pub records: Arc<dyn Bucket>,
    /// Where the copies are, as they are stored.
    pub objects: Arc<dyn Bucket>,
}

/// See the module's text.
const PRUNING: &str = "pruning";
/// After so long nobody removes anything any more: who began it, has stopped.
pub(crate) const PRUNED_BY: Duration = Duration::from_secs(15 * 60);

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// What can be read of the records.
#[derive(Debug)]
pub struct Readable {
    /// Oldest first.
    pub backups: Vec<Backup>,
    /// Numbers of the others, and what is wrong with each.
    pub damaged: Vec<(u64, Error)>,
}

fn record_key(number: u64) -> String {
    format!("backups/{number:020}.json")
}

impl Repository {
    /// Its URL, for messages.
    #[must_use]
    pub fn url(&self) -> &str {
        self.records.url()
    }

    /// All backups, oldest first.
    ///
    /// # Errors
    /// The bucket's; [`Error::Damaged`], [`Error::TooNew`].
    pub async fn backups(&self) -> Result<Vec<Backup>> {
        let readable = self.readable().await?;
        match readable.damaged.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(readable.backups),
        }
    }

    /// The backups whose records can be read, and what is wrong with the others.
    ///
    /// # Errors
    /// The bucket's; [`Error::TooNew`].
    pub async fn readable(&self) -> Result<Readable> {
        let reads = self.keys().await?.into_iter().map(|(number, key)| async move {
            match self.read(&key).await {
                Ok(backup) => Ok((backup, None)),
                Err(error @ Error::Damaged { .. }) => Ok((None, Some((number, error)))),
                Err(error) => Err(error),
            }
        });
        let read: Vec<_> = stream::iter(reads).buffered(AT_ONCE * 4).try_collect().await?;
        let (backups, damaged): (Vec<_>, Vec<_>) = read.into_iter().unzip();
        Ok(Readable {
            backups: backups.into_iter().flatten().collect(),
            damaged: damaged.into_iter().flatten().collect(),
        })
    }

    /// Numbers and keys of the records, oldest first.
    pub(crate) async fn keys(&self) -> Result<Vec<(u64, String)>> {
        let listed = list(self.records.as_ref(), "backups").await?;
        let number =
            |key: &str| key.strip_prefix("backups/")?.strip_suffix(".json")?.parse::<u64>().ok();
        Ok(listed.into_iter().filter_map(|(key, _)| Some((number(&key)?, key))).collect())
    }

    /// The newest backup that can be read, and the number of the newest record.
    pub(crate) async fn newest(&self) -> Result<(Option<Backup>, u64)> {
        let keys = self.keys().await?;
        let newest = keys.last().map_or(0, |(number, _)| *number);
        for (_, key) in keys.iter().rev() {
            match self.read(key).await {
                Ok(Some(backup)) => return Ok((Some(backup), newest)),
                // Its copies are there, and found; `verify` tells of it.
                Ok(None) | Err(Error::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((None, newest))
    }

    /// Whether old backups are being removed.
    pub(crate) async fn is_pruned(&self, env: &Env) -> Result<bool> {
        Ok(self.marks(env).await?.iter().any(|(_, live)| *live))
    }

    /// The marks of those who remove, and whether they still do.
    async fn marks(&self, env: &Env) -> Result<Vec<(String, bool)>> {
        let now = env.clock.wall_micros();
        let marks = list(self.records.as_ref(), PRUNING).await?.into_iter().map(|(key, _)| {
            let name = key.strip_prefix(PRUNING).unwrap_or_default().trim_start_matches('/');
            // One that cannot be read counts as old: what was cut off has no end of its own.
            let begun = name.split('-').next().and_then(|begun| begun.parse::<u64>().ok());
            let live = begun.is_some_and(|begun| now < begun.saturating_add(micros(PRUNED_BY)));
            (key, live)
        });
        Ok(marks.collect())
    }

    /// Says that old backups are removed from now on; what says so is gone once
    /// [`Repository::end_pruning`] has it. Of two who begin at once one at most goes on: each looks
    /// for the other when its own mark is there.
    pub(crate) async fn begin_pruning(&self, env: &Env) -> Result<String> {
        let own = format!("{PRUNING}/{:020}-{:032x}", env.clock.wall_micros(), env.random_u128());
        self.records.put_if_absent(Cause::Admin, &own, Vec::new().into()).await?;
        let others = self.marks(env).await?.into_iter().filter(|(key, _)| *key != own);
        for (key, live) in others {
            if live {
                self.end_pruning(&own).await?;
                return Err(Error::Pruning { url: self.url().to_owned() });
            }
            self.end_pruning(&key).await?;
        }
        Ok(own)
    }

    pub(crate) async fn end_pruning(&self, mark: &str) -> Result<()> {
        Ok(self.records.delete(Cause::Admin, mark).await?)
    }

    async fn read(&self, key: &str) -> Result<Option<Backup>> {
        let object = self.records.get(Cause::Admin, key, None).await?;
        object.map(|object| Backup::decode(self.url(), key, &object.body)).transpose()
    }

    /// Records `backup`; whether it is there now, which it is not when another one took its number.
    pub(crate) async fn record(&self, backup: &Backup) -> Result<bool> {
        let key = record_key(backup.number);
        let put = self.records.put_if_absent(Cause::Admin, &key, backup.encode());
        Ok(put.await? == PutOutcome::Created)
    }

    pub(crate) async fn forget(&self, number: u64) -> Result<()> {
        Ok(self.records.delete(Cause::Admin, &record_key(number)).await?)
    }
}

/// Copies `keys`, some at a time, and gives what was copied, in any order.
///
/// # Errors
/// [`Error::Gone`] when one is not there, [`Error::OtherDatabase`] when another object has its
/// place.
pub(crate) async fn copy(
    from: &dyn Bucket,
    to: &dyn Bucket,
    keys: Vec<String>,
    what: &str,
    progress: &dyn Progress,
) -> Result<Vec<Copied>> {
    let copies = keys.into_iter().map(|key| async move {
        let object = from.get(Cause::Admin, &key, None).await?;
        let Some(object) = object else { return Err(Error::Gone { object: key }) };
        let (bytes, crc32c) = (object.size_bytes, crc32c::crc32c(&object.body));
        if to.put_if_absent(Cause::Admin, &key, object.body).await? == PutOutcome::Exists {
            return Err(Error::OtherDatabase { url: to.url().to_owned(), object: key });
        }
        progress.copied(what, bytes);
        Ok(Copied { key, bytes, crc32c })
    });
    stream::iter(copies).buffer_unordered(AT_ONCE).try_collect().await
}

/// Keys below `prefix`, and when each was written.
pub(crate) async fn list(bucket: &dyn Bucket, prefix: &str) -> Result<Vec<(String, u64)>> {
    let (mut found, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = bucket.list_after(Cause::Admin, prefix, after.as_deref(), PAGE).await?;
        let full = page.len() == PAGE;
        after = page.last().map(|object| object.key.clone());
        found.extend(page.into_iter().map(|object| (object.key, object.modified_micros)));
        if !full {
            return Ok(found);
        }
    }
}
