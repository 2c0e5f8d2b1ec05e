//! Keys of tables: made, found, rotated and destroyed.
//!
//! ```text
//!  keyring/tables/<name>/<epoch, 10 digits>   a wrapped data key, put if absent
//!  keyring/tables/<name>/dropped              the tombstone: the name is used no more
//!
//!  make an epoch: put it -> look for the tombstone -> there: delete what was put, refuse
//!  drop:          put the tombstone -> delete the epochs -> list again until none is left
//! ```
//! # Invariants
//! - A name with a tombstone opens nothing, whatever else is there: [`TableKeys::at_hand`] looks
//!   for it first.
//! - Of a drop and the making of an epoch one sees the other: each writes before it looks. So no
//!   epoch that is used outlives a drop.
//! - A process forgets dropped keys at most [`LOOK_EVERY`] after it can reach the tombstone,
//!   whether it uses them or not.
//!
//! # On failure
//! Opening never fails: why a key is not at hand is kept with it ([`Closed`]), and asked about
//! again where that can change.
//!
//! # Limits
//! The key file is read once, at the start.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::{join, try_join_all};
use parking_lot::Mutex;
use telesto_cipher::{Closed, Epoch, KeyService, RowKeys, make_table_key, open_table_key};
use telesto_common::Env;

use crate::api::{Bucket, Cause, PutOutcome};
use crate::error::{Error, Result};

/// How often a process looks whether keys that it holds were dropped: one GET for each name.
pub const LOOK_EVERY: Duration = Duration::from_secs(60);
const FOLDER: &str = "keyring/tables";
const TOMBSTONE: &str = "dropped";
/// Epochs of a name that are listed at a time.
const PAGE: usize = 1000;
/// How often the making of an epoch is tried while others make some too.
const ATTEMPTS: usize = 8;

fn epoch_key(name: &str, epoch: u32) -> String {
    format!("{FOLDER}/{name}/{epoch:010}")
}

fn tombstone(name: &str) -> String {
    format!("{FOLDER}/{name}/{TOMBSTONE}")
}

/// What the bucket has of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Its epochs, ascending, and when the store says they were made, microseconds since 1970.
    pub epochs: Vec<(u32, u64)>,
    /// Whether it was dropped.
    pub dropped: bool,
}

/// The keys of tables of a database, as one process has them.
#[derive(Debug)]
pub struct TableKeys {
    bucket: Arc<dyn Bucket>,
    service: Option<Arc<dyn KeyService>>,
    env: Env,
    known: Mutex<BTreeMap<String, Known>>,
}

#[derive(Debug)]
struct Known {
    keys: Arc<RowKeys>,
    /// The newest epoch that was asked for.
    wanted: u32,
}

impl TableKeys {
    /// Of the database in `bucket`; `service` has the key-encryption keys that this process was
    /// given.
    #[must_use]
    pub fn new(
        bucket: Arc<dyn Bucket>,
        service: Option<Arc<dyn KeyService>>,
        env: Env,
    ) -> Arc<Self> {
        Arc::new(Self { bucket, service, env, known: Mutex::default() })
    }

    fn service(&self, name: &str) -> std::result::Result<&Arc<dyn KeyService>, Closed> {
        let service = self.service.as_ref().filter(|service| service.has_table_key(name));
        service.ok_or(Closed::NotHere)
    }

    /// The keys of `name`, with the data keys of all epochs up to `epoch` if they can be had.
    pub async fn at_hand(self: &Arc<Self>, name: &str, epoch: u32) -> Arc<RowKeys> {
        let (keys, first) = {
            let mut known = self.known.lock();
            let first = known.is_empty();
            let entry = known.entry(name.to_owned()).or_insert_with(|| {
                let why = Closed::Unread("it has not been read yet".to_owned());
                let keys = RowKeys::closed_for(name, why, Arc::clone(&self.env.random));
                Known { keys: Arc::new(keys), wanted: 0 }
            });
            entry.wanted = entry.wanted.max(epoch);
            (Arc::clone(&entry.keys), first)
        };
        if first {
            self.watch();
        }
        self.bring(&keys, epoch).await;
        keys
    }

    async fn bring(&self, keys: &RowKeys, epoch: u32) {
        if keys.has(epoch) || matches!(keys.closed(), Some(Closed::Dropped | Closed::NotHere)) {
            return;
        }
        match self.epochs(keys, epoch).await {
            Ok(found) => keys.admit(found),
            Err(why) => {
                tracing::warn!(name = keys.name(), %why, "a key of tables is not at hand");
                // What is open already stays: other tables go on with older epochs.
                if keys.closed().is_some() || why == Closed::Dropped {
                    keys.close(why);
                }
            }
        }
    }

    async fn epochs(
        &self,
        keys: &RowKeys,
        newest: u32,
    ) -> std::result::Result<Vec<(u32, Epoch)>, Closed> {
        let name = keys.name();
        let unread = |error: Error| Closed::Unread(format!("it could not be read: {error}"));
        let service = self.service(name);
        let gone = tombstone(name);
        let stone = self.bucket.get(Cause::Open, &gone, None);
        let Ok(service) = service else {
            // That it was dropped is the better answer, and final.
            return Err(match stone.await {
                Ok(Some(_)) => Closed::Dropped,
                _ => Closed::NotHere,
            });
        };
        let wanted: Vec<u32> = (1..=newest).filter(|epoch| !keys.has(*epoch)).collect();
        let gets = wanted.iter().map(|epoch| async move {
            let object = epoch_key(name, *epoch);
            let found = self.bucket.get(Cause::Open, &object, None).await?;
            Ok((*epoch, object, found))
        });
        let (stone, found) = join(stone, try_join_all(gets)).await;
        if stone.map_err(unread)?.is_some() {
            return Err(Closed::Dropped);
        }
        let mut epochs = Vec::with_capacity(wanted.len());
        for (epoch, object, found) in found.map_err(unread)? {
            let Some(found) = found else {
                return Err(Closed::Unread(format!(
                    "{object} is missing from the bucket; restore that object from a copy"
                )));
            };
            let opened = open_table_key(&**service, (name, epoch), &object, &found.body).await;
            epochs.push((epoch, opened.map_err(|error| unread(error.into()))?));
        }
        Ok(epochs)
    }

    /// Looks for tombstones of the names that are known, and again for keys that could not be had.
    pub async fn look(&self) {
        let known: Vec<_> = {
            let known = self.known.lock();
            known.values().map(|known| (Arc::clone(&known.keys), known.wanted)).collect()
        };
        for (keys, wanted) in known {
            match keys.closed() {
                Some(Closed::Dropped | Closed::NotHere) => {}
                Some(Closed::Unread(_)) => self.bring(&keys, wanted).await,
                None => match self.bucket.get(Cause::Registry, &tombstone(keys.name()), None).await
                {
                    Ok(None) => self.bring(&keys, wanted).await,
                    Ok(Some(_)) => {
                        keys.close(Closed::Dropped);
                        tracing::info!(name = keys.name(), "a key of tables was dropped");
                    }
                    Err(error) => {
                        tracing::warn!(name = keys.name(), %error, "whether a key of tables was dropped could not be learned");
                    }
                },
            }
        }
    }

    fn watch(self: &Arc<Self>) {
        let (this, clock) = (Arc::downgrade(self), Arc::clone(&self.env.clock));
        self.env.spawn("looking for dropped keys", async move {
            loop {
                clock.sleep(LOOK_EVERY).await;
                let Some(this) = Weak::upgrade(&this) else { return };
                this.look().await;
            }
        });
    }

    /// The newest epoch of `name`, for a table that begins to use it; makes the first one if there
    /// is none.
    ///
    /// # Errors
    /// [`Error::TableKey`] when the name was dropped or this process does not have it; those of the
    /// requests.
    pub async fn newest(&self, name: &str) -> Result<u32> {
        let closed =
            |why: Closed| Error::TableKey { name: name.to_owned(), reason: why.to_string() };
        let listed = list(&*self.bucket, name).await?;
        if listed.dropped {
            return Err(closed(Closed::Dropped));
        }
        let service = self.service(name).map_err(closed)?;
        match listed.epochs.last() {
            Some((newest, _)) => Ok(*newest),
            None => {
                make(&*self.bucket, &**service, (name, 1), &self.env).await?;
                Ok(1)
            }
        }
    }
}

/// What `bucket` has of the key `name`.
///
/// # Errors
/// Those of the requests.
pub async fn list(bucket: &dyn Bucket, name: &str) -> Result<Listed> {
    let folder = format!("{FOLDER}/{name}");
    let mut listed = Listed::default();
    let mut after: Option<String> = None;
    loop {
        let page = bucket.list_after(Cause::Registry, &folder, after.as_deref(), PAGE).await?;
        for object in &page {
            let last = object.key.rsplit('/').next().unwrap_or_default();
            match last.parse() {
                Ok(epoch) => listed.epochs.push((epoch, object.modified_micros)),
                Err(_) => listed.dropped |= last == TOMBSTONE,
            }
        }
        match page.last() {
            Some(last) if page.len() == PAGE => after = Some(last.key.clone()),
            _ => return Ok(listed),
        }
    }
}

/// All keys of tables in `bucket`, by name.
///
/// # Errors
/// Those of the requests.
pub async fn all(bucket: &dyn Bucket) -> Result<BTreeMap<String, Listed>> {
    let mut names = BTreeMap::new();
    let mut after: Option<String> = None;
    loop {
        let page = bucket.list_after(Cause::Registry, FOLDER, after.as_deref(), PAGE).await?;
        for object in &page {
            let rest = object.key.strip_prefix(FOLDER).and_then(|rest| rest.strip_prefix('/'));
            if let Some((name, _)) = rest.and_then(|rest| rest.split_once('/')) {
                names.insert(name.to_owned(), Listed::default());
            }
        }
        match page.last() {
            Some(last) if page.len() == PAGE => after = Some(last.key.clone()),
            _ => break,
        }
    }
    for (name, listed) in &mut names {
        *listed = list(bucket, name).await?;
    }
    Ok(names)
}

/// Makes an epoch, unless it is there; fails when the name was dropped.
async fn make(
    bucket: &dyn Bucket,
    service: &dyn KeyService,
    (name, epoch): (&str, u32),
    env: &Env,
) -> Result<PutOutcome> {
    let object = epoch_key(name, epoch);
    let body = make_table_key(service, (name, epoch), &object, &*env.random).await?;
    let outcome = bucket.put_if_absent(Cause::Registry, &object, body.into()).await?;
    // After the put: a drop puts its tombstone before it lists.
    if bucket.get(Cause::Registry, &tombstone(name), None).await?.is_some() {
        bucket.delete(Cause::Registry, &object).await?;
        return Err(Error::TableKey { name: name.to_owned(), reason: Closed::Dropped.to_string() });
    }
    Ok(outcome)
}

/// Makes the next epoch of the key `name`; its number. Tables go on with it when they are told to
/// (`SET (telesto.key = …)`).
///
/// # Errors
/// [`Error::TableKey`], and those of the requests.
pub async fn rotate(
    bucket: &dyn Bucket,
    service: &dyn KeyService,
    name: &str,
    env: &Env,
) -> Result<u32> {
    let refused = |reason: String| Error::TableKey { name: name.to_owned(), reason };
    if !service.has_table_key(name) {
        return Err(refused(format!("{} has no key for tables of that name", service.place())));
    }
    for _ in 0..ATTEMPTS {
        let listed = list(bucket, name).await?;
        if listed.dropped {
            return Err(refused(Closed::Dropped.to_string()));
        }
        let next = listed.epochs.last().map_or(1, |(newest, _)| newest + 1);
        if make(bucket, service, (name, next), env).await? == PutOutcome::Created {
            return Ok(next);
        }
    }
    Err(refused("others rotate it all the time".to_owned()))
}

/// Destroys the key `name` for ever; how many epochs were deleted. Repeating it finishes what a
/// crash left.
///
/// # Errors
/// [`Error::TableKey`] when there is no such key; those of the requests.
pub async fn drop_key(bucket: &dyn Bucket, name: &str, env: &Env) -> Result<usize> {
    let mut listed = list(bucket, name).await?;
    if listed == Listed::default() {
        let reason = "the bucket has no such key".to_owned();
        return Err(Error::TableKey { name: name.to_owned(), reason });
    }
    if !listed.dropped {
        // Unique, as every body of a conditional put.
        let body = format!("dropped {:032x}\n", env.random_u128());
        bucket.put_if_absent(Cause::Registry, &tombstone(name), body.into()).await?;
    }
    let mut deleted = 0;
    loop {
        for (epoch, _) in &listed.epochs {
            bucket.delete(Cause::Registry, &epoch_key(name, *epoch)).await?;
            deleted += 1;
        }
        // Listed after the tombstone: what is put later is taken back by whoever puts it.
        listed = list(bucket, name).await?;
        if listed.epochs.is_empty() {
            return Ok(deleted);
        }
    }
}
