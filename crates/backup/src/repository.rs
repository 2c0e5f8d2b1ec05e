//! Where backups are kept: a bucket, or a prefix of one, of their own.
//!
//! ```text
//! backups/<number>.json   one backup, put last
//! objects/<key>           objects of the database's bucket, each once, under the names and in the form that they have there
//! ```
//!
//! # Invariants
//! - An object that was copied is never changed; what is taken for it has the same bytes.
//! - A record is put when all that it names is there.
//!
//! # On failure
//! What a backup that was cut off has copied stays, and the next one finds it.

use std::sync::Arc;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use telesto_bucket::{Bucket, Cause, PutOutcome};

use crate::error::{Error, Result};
use crate::record::{Backup, Copied};

/// Objects copied at a time: with tables of 64 MiB this is what copying keeps in memory.
const AT_ONCE: usize = 4;
/// Objects a LIST request returns at most.
const PAGE: usize = 1000;

/// A bucket, as it is stored and as its keys open it. Of a database that is not encrypted both are the same.
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
        let keys = list(self.records.as_ref(), "backups").await?;
        let read =
            stream::iter(keys.into_iter().map(|(key, _)| async move { self.read(&key).await }));
        let read: Vec<Option<Backup>> = read.buffered(AT_ONCE * 4).try_collect().await?;
        Ok(read.into_iter().flatten().collect())
    }

    /// The newest backup.
    pub(crate) async fn newest(&self) -> Result<Option<Backup>> {
        match list(self.records.as_ref(), "backups").await?.pop() {
            Some((key, _)) => self.read(&key).await,
            None => Ok(None),
        }
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
/// [`Error::Gone`] when one is not there, [`Error::OtherDatabase`] when another object has its place.
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
