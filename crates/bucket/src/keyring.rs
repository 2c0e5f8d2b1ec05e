//! The key ring of an encrypted database: found, made, rotated; and who may open a bucket how.
//!
//! ```text
//!  ring?  key given?  other objects?
//!  yes    yes         any             open with the ring; a wrong key is refused
//!  yes    no          any             refused: the key is missing
//!  no     yes         none            make keyring/1 (put if absent), open with it
//!  no     yes         some            refused: the data in there is not encrypted (it can be turned over: `crate::turning`)
//!  no     no          any             open without encryption
//! ```
//! # Invariants
//! - Nothing is written before all of this is settled.
//! - `keyring/<version>` is put if absent and never deleted; the newest version has every epoch
//!   there ever was.
//! - Everything under `keyring/` is as it is stored: it protects itself. Everything else is
//!   encrypted.
//!
//! # On failure
//! A ring that is damaged, of another key or not complete is an error that says so.
//!
//! # Limits
//! - A process learns of a new epoch when it meets it, or within a minute while it writes. Until
//!   then it writes with the epoch before.
//! - Two first starts at the same moment, one with a key and one without, make a database of one of
//!   them; the other fails at its first read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::try_join_all;
use object_store::path::Path;
use parking_lot::Mutex;
use telesto_cipher::{KeyService, Keys, StoredRing};
use telesto_common::Env;

use crate::api::{Bucket as _, Cause, Object, PutOutcome};
use crate::error::{Error, Result};
use crate::mixed::Forms;
use crate::open::OpenBucket;

/// How often a process that writes looks for a newer ring: one GET a minute.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Versions looked for at a time.
const PROBES: u32 = 4;
/// How often a rotation is tried while others rotate too.
const ATTEMPTS: usize = 8;
const FOLDER: &str = "keyring";
/// Left behind by a probe that was killed.
const PROBED: &str = "probe/";

/// Whether an object is stored as it is in an encrypted bucket.
pub(crate) fn is_clear(location: &Path) -> bool {
    location.parts().next().is_some_and(|part| part.as_ref() == FOLDER)
}

pub(crate) fn key(version: u64) -> String {
    format!("{FOLDER}/{version:020}")
}

/// What a process that finds no key ring does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRing {
    /// Makes one, where nothing else is.
    Make,
    /// Refuses.
    Refuse,
}

/// The data keys of an open bucket, and how to learn of newer ones.
#[derive(Debug)]
pub(crate) struct Vault {
    keys: Arc<Keys>,
    source: Option<Source>,
    looked: Mutex<Duration>,
    looking: AtomicBool,
    /// What is known of objects while the database is being turned over.
    forms: Forms,
    env: Env,
}

#[derive(Debug)]
struct Source {
    /// Without encryption.
    bucket: Arc<OpenBucket>,
    service: Arc<dyn KeyService>,
}

impl Vault {
    /// Keys that never change (a simulation's, a test's).
    pub(crate) fn fixed(keys: Arc<Keys>, env: Env) -> Self {
        Self {
            keys,
            source: None,
            looked: Mutex::default(),
            looking: AtomicBool::new(false),
            forms: Forms::default(),
            env,
        }
    }

    pub(crate) fn forms(&self) -> &Forms {
        &self.forms
    }

    pub(crate) fn keys(&self) -> &Arc<Keys> {
        &self.keys
    }

    /// Looks for newer versions of the ring, now.
    pub(crate) async fn look(&self) -> Result<()> {
        let Some(source) = &self.source else { return Ok(()) };
        *self.looked.lock() = self.env.clock.monotonic();
        loop {
            let version = self.keys.version() + 1;
            let found = source.bucket.get(Cause::Registry, &key(version), None).await?;
            let Some(object) = found else { return Ok(()) };
            let ring = decode(version, &object, &*source.service).await?;
            tracing::info!(version, "a newer key ring was found");
            self.keys.take_over(ring.ring());
        }
    }

    /// Has somebody look for a newer ring when it is time to; waits for nothing.
    pub(crate) fn look_if_due(self: &Arc<Self>) {
        if self.source.is_none() {
            return;
        }
        let now = self.env.clock.monotonic();
        if now.saturating_sub(*self.looked.lock()) < LOOK_EVERY
            || self.looking.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let vault = Arc::clone(self);
        self.env.spawn("looking for newer keys", async move {
            if let Err(error) = vault.look().await {
                tracing::warn!(%error, "whether there is a newer key ring could not be learned");
            }
            vault.looking.store(false, Ordering::Release);
        });
    }
}

async fn decode(version: u64, object: &Object, service: &dyn KeyService) -> Result<StoredRing> {
    Ok(StoredRing::decode(&key(version), version, &object.body, service).await?)
}

/// The newest version of the ring in `bucket` (opened without encryption), if there is one.
async fn newest(bucket: &OpenBucket) -> Result<Option<(u64, Object)>> {
    let mut newest: Option<(u64, Object)> = None;
    let mut missing: Option<u64> = None;
    loop {
        let known = newest.as_ref().map_or(0, |(version, _)| *version);
        let wanted: Vec<u64> = match missing {
            None => (0..PROBES).map(|n| known.saturating_mul(2).max(1) << n).collect(),
            Some(missing) if missing > known + 1 => vec![known + (missing - known) / 2],
            Some(_) => return Ok(newest),
        };
        let keys: Vec<String> = wanted.iter().map(|version| key(*version)).collect();
        let gets = keys.iter().map(|key| bucket.get(Cause::Open, key, None));
        for (version, object) in wanted.iter().zip(try_join_all(gets).await?) {
            match object {
                Some(object) => newest = Some((*version, object)),
                None if missing.is_none_or(|least| *version < least) => missing = Some(*version),
                None => {}
            }
        }
        if let (Some((found, _)), Some(gone)) = (&newest, missing)
            && gone < *found
        {
            // It may have been put between the two looks.
            if bucket.get(Cause::Open, &key(gone), None).await?.is_none() {
                return Err(incomplete(gone, *found));
            }
            missing = None;
        }
    }
}

fn incomplete(version: u64, later: u64) -> Error {
    Error::Keys(telesto_cipher::Error::DamagedRing {
        object: key(version),
        reason: format!("it is missing although version {later} exists"),
    })
}

/// Opens the encryption of `bucket`, or finds that there is none. Without a `service` one GET.
///
/// # Errors
/// [`Error::KeyMissing`], [`Error::NotEncrypted`], [`Error::Keys`], and what the requests fail
/// with.
pub async fn unlock(
    bucket: Arc<OpenBucket>,
    service: Option<Arc<dyn KeyService>>,
    otherwise: NoRing,
) -> Result<Arc<OpenBucket>> {
    let Some(service) = service else {
        let ring = bucket.get(Cause::Open, &key(1), None).await?;
        return match ring {
            None => Ok(bucket),
            Some(_) => Err(Error::KeyMissing { url: bucket.url().to_owned() }),
        };
    };
    let ring = match newest(&bucket).await? {
        Some((version, object)) => decode(version, &object, &*service).await?,
        None if holds_data(&bucket).await? => match newest(&bucket).await? {
            // Another process with the key has begun a moment ago.
            Some((version, object)) => decode(version, &object, &*service).await?,
            None => return Err(Error::NotEncrypted { url: bucket.url().to_owned() }),
        },
        None if otherwise == NoRing::Refuse => {
            return Err(Error::NotEncrypted { url: bucket.url().to_owned() });
        }
        None => make(&bucket, &*service).await?,
    };
    let env = bucket.env().clone();
    let keys = Arc::new(Keys::new(ring.ring(), Arc::clone(&env.random)));
    let looked = Mutex::new(env.clock.monotonic());
    let source = Some(Source { bucket: Arc::clone(&bucket), service });
    let (looking, forms) = (AtomicBool::new(false), Forms::default());
    let vault = Vault { keys, source, looked, looking, forms, env };
    Ok(Arc::new(bucket.with_vault(Arc::new(vault))))
}

async fn holds_data(bucket: &OpenBucket) -> Result<bool> {
    let found = bucket.list_after(Cause::Open, "", None, 1000).await?;
    let ours = |key: &str| key.starts_with("keyring/") || key.starts_with(PROBED);
    Ok(found.len() == 1000 || found.iter().any(|object| !ours(&object.key)))
}

async fn make(bucket: &OpenBucket, service: &dyn KeyService) -> Result<StoredRing> {
    let env = bucket.env();
    let ring = StoredRing::first(service.current(), env.clock.wall_micros(), &*env.random);
    let body = ring.encode(&key(1), service, &*env.random).await?;
    match bucket.put_if_absent(Cause::Registry, &key(1), body).await? {
        PutOutcome::Created => Ok(ring),
        PutOutcome::Exists => {
            let first = bucket.get(Cause::Registry, &key(1), None).await?;
            let first = first.ok_or_else(|| incomplete(1, 1))?;
            decode(1, &first, service).await
        }
    }
}

/// The newest key ring of `bucket`, which is opened without encryption.
///
/// # Errors
/// [`Error::NotEncrypted`], [`Error::Keys`], and what the requests fail with.
pub async fn read(bucket: &OpenBucket, service: &dyn KeyService) -> Result<StoredRing> {
    match newest(bucket).await? {
        Some((version, object)) => decode(version, &object, service).await,
        None => Err(Error::NotEncrypted { url: bucket.url().to_owned() }),
    }
}

/// Adds a version to the ring of `bucket` (opened without encryption), wrapped with the key `name`,
/// and with a new data key when `new_epoch`. Processes that are running take it up within a minute.
///
/// # Errors
/// As [`read`].
pub async fn rotate(
    bucket: &OpenBucket,
    service: &dyn KeyService,
    name: &str,
    new_epoch: bool,
) -> Result<StoredRing> {
    let env = bucket.env();
    for _ in 0..ATTEMPTS {
        let ring = read(bucket, service).await?;
        let next = ring.next(name.to_owned(), new_epoch, env.clock.wall_micros(), &*env.random);
        let place = key(next.version);
        let body = next.encode(&place, service, &*env.random).await?;
        match bucket.put_if_absent(Cause::Registry, &place, body).await? {
            PutOutcome::Created => return Ok(next),
            PutOutcome::Exists => {}
        }
    }
    Err(Error::Unavailable {
        key: FOLDER.to_owned(),
        reason: "others rotate the key ring all the time".to_owned(),
    })
}
