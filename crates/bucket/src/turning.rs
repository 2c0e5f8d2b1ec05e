//! Turning a database over: one that is in clear becomes encrypted, in place, while it is used.
//!
//! ```text
//! begin    no ring yet: keyring/1 says "turning"         from now on every process needs the keys; what they write is encrypted,
//!    |                                                   what they read may be either (`crate::mixed`)
//! turn     list everything; each object that is in clear: read ── encrypt ── put in its place, if it is the same still
//!    |     again until a whole listing had none          deleted meanwhile: stays deleted
//! finish   a new version of the ring, with a new epoch:  in clear is damage again
//! ```
//! # Invariants
//! - No object is absent at any moment, and none comes back that somebody has deleted.
//! - It can be stopped and begun again at any point, by several at once: each step is repeated or
//!   has happened.
//! - "Turning" is told by the ring, which is authenticated: nobody can make a database take what is
//!   in clear. The ring that ends it has an epoch that the one before has not, so that a provider
//!   who hides it hides the keys of all that is written later.
//!
//! # On failure
//! What is done stays done; begin again.
//!
//! # Limits
//! A process that opened the database before it began and has no keys goes on in clear until it
//! meets an encrypted object, and fails then: all have to be stopped before. An object is held in
//! memory while it is turned over. Copies that the store itself keeps (versions, replication,
//! backups) stay in clear.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetRange, ObjectMeta, ObjectStore as _, ObjectStoreExt as _,
    PutMode, PutOptions, UpdateVersion,
};
use telesto_cipher::{Chunks, HEADER, KeyService, Keys, StoredRing};

use crate::api::{Bucket as _, Cause, PutOutcome};
use crate::error::{Error, Result};
use crate::keyring::{self, is_clear};
use crate::local::Exchange;
use crate::metered::Metered;
use crate::mixed::is_encrypted;
use crate::open::OpenBucket;
use crate::outcome::shown;

/// Objects turned over at a time, of those below [`LARGE`]; larger ones one by one, for the memory
/// that they take.
const AT_ONCE: usize = 4;
/// Bytes of a large object.
const LARGE: u64 = 32 << 20;
/// Objects listed before they are worked on.
const PAGE: usize = 1000;
/// How often an object that others exchange is tried.
const ATTEMPTS: usize = 5;
/// Listings without an object in clear, one after the other, that are taken for the end.
const QUIET: u32 = 2;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turned {
    /// Objects turned over.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects looked at that were encrypted already.
    pub known: u64,
    /// Listings of the whole bucket.
    pub listings: u32,
}

/// How it is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// No process uses the database: stores without conditional overwrites will do.
    pub offline: bool,
}

/// Makes the database in `bucket` (opened without encryption) one that is being turned over; does
/// nothing when it is. `again`: also one that was encrypted before.
///
/// # Errors
/// [`Error::Encrypted`], [`Error::Keys`], and what the requests fail with.
pub async fn begin(
    bucket: &OpenBucket,
    service: &dyn KeyService,
    again: bool,
) -> Result<StoredRing> {
    let env = bucket.env();
    match keyring::read(bucket, service).await {
        Ok(ring) if ring.turning => Ok(ring),
        Ok(_) if !again => Err(Error::Encrypted { url: bucket.url().to_owned() }),
        Ok(ring) => {
            let name = service.current();
            let next = ring.next(name, false, env.clock.wall_micros(), &*env.random);
            put(bucket, service, next.that_turns(true)).await
        }
        Err(Error::NotEncrypted { .. }) => {
            let now = env.clock.wall_micros();
            let first = StoredRing::first(service.current(), now, &*env.random);
            put(bucket, service, first.that_turns(true)).await
        }
        Err(error) => Err(error),
    }
}

/// Ends it: from now on what is not encrypted is damage. Only after [`turn`] has found nothing
/// more.
///
/// # Errors
/// [`Error::Keys`], and what the requests fail with.
pub async fn finish(bucket: &OpenBucket, service: &dyn KeyService) -> Result<StoredRing> {
    let env = bucket.env();
    let ring = keyring::read(bucket, service).await?;
    if !ring.turning {
        return Ok(ring);
    }
    let next = ring.next(service.current(), true, env.clock.wall_micros(), &*env.random);
    put(bucket, service, next.that_turns(false)).await
}

async fn put(
    bucket: &OpenBucket,
    service: &dyn KeyService,
    ring: StoredRing,
) -> Result<StoredRing> {
    let place = keyring::key(ring.version);
    let body = ring.encode(&place, service, &*bucket.env().random).await?;
    match bucket.put_if_absent(Cause::Registry, &place, body).await? {
        PutOutcome::Created => Ok(ring),
        PutOutcome::Exists => Err(Error::Unavailable {
            key: place,
            reason: "another process changes the key ring; run the command again".to_owned(),
        }),
    }
}

/// Turns over every object of `bucket`, which was opened with its keys. `told` hears of each.
///
/// # Errors
/// [`Error::NoConditionalOverwrite`], and what the requests fail with.
pub async fn turn(
    bucket: &OpenBucket,
    how: How,
    told: &(dyn Fn(&Turned) + Send + Sync),
) -> Result<Turned> {
    let Some(keys) = bucket.keys() else {
        return Err(Error::KeyMissing { url: bucket.url().to_owned() });
    };
    let turner =
        Turner { store: bucket.metered(Cause::Admin), keys: Arc::clone(keys), how, bucket };
    if !how.offline {
        turner.probe().await?;
    }
    let mut done = Turned::default();
    // Those that were found to be encrypted: by path, with their tags.
    let mut known: BTreeMap<Path, Option<String>> = BTreeMap::new();
    let mut quiet = 0;
    while quiet < QUIET {
        let before = done.objects;
        turner.pass(&mut known, &mut done, told).await?;
        done.listings += 1;
        quiet = if done.objects == before { quiet + 1 } else { 0 };
        told(&done);
    }
    Ok(done)
}

struct Turner<'b> {
    store: Metered,
    keys: Arc<Keys>,
    how: How,
    bucket: &'b OpenBucket,
}

/// What became of an object.
enum Found {
    /// It was in clear, of so many bytes, and is encrypted now.
    Turned(u64),
    Encrypted,
    Gone,
}

impl Turner<'_> {
    fn failed(&self, location: &Path, error: &StoreError) -> Error {
        Error::Unavailable { key: location.to_string(), reason: shown(error) }
    }

    /// Whether the store keeps to the condition of an overwrite: a version that was replaced is not
    /// replaced once more.
    async fn probe(&self) -> Result<()> {
        let key = Path::from(format!("probe/{:032x}", self.bucket.env().random_u128()));
        let failed = |error: StoreError| self.failed(&key, &error);
        let first: UpdateVersion = self.store.put(&key, "1".into()).await.map_err(failed)?.into();
        let options = |version: &UpdateVersion| PutOptions {
            mode: PutMode::Update(version.clone()),
            ..PutOptions::default()
        };
        let taken = self.store.put_opts(&key, "22".into(), options(&first)).await;
        let refused = self.store.put_opts(&key, "333".into(), options(&first)).await;
        self.store.delete(&key).await.map_err(failed)?;
        let reason = match (refused, taken) {
            (Err(StoreError::Precondition { .. }), Ok(_)) => return Ok(()),
            (Ok(_), _) => "an object that had been replaced was overwritten".to_owned(),
            (_, Err(error)) | (Err(error), _) => shown(&error),
        };
        Err(Error::NoConditionalOverwrite { url: self.bucket.url().to_owned(), reason })
    }

    async fn pass(
        &self,
        known: &mut BTreeMap<Path, Option<String>>,
        done: &mut Turned,
        told: &(dyn Fn(&Turned) + Send + Sync),
    ) -> Result<()> {
        let root = Path::default();
        let mut pages = self.store.list(None).chunks(PAGE);
        while let Some(page) = pages.next().await {
            let page: Vec<ObjectMeta> = page
                .into_iter()
                .collect::<object_store::Result<_>>()
                .map_err(|error| self.failed(&root, &error))?;
            let unknown = page.into_iter().filter(|meta| {
                !is_clear(&meta.location) && known.get(&meta.location) != Some(&meta.e_tag)
            });
            let (large, small): (Vec<_>, Vec<_>) = unknown.partition(|meta| meta.size >= LARGE);
            for (objects, at_once) in [(small, AT_ONCE), (large, 1)] {
                self.each(objects, at_once, known, done, told).await?;
            }
        }
        Ok(())
    }

    /// Sees to these objects.
    async fn each(
        &self,
        objects: Vec<ObjectMeta>,
        at_once: usize,
        known: &mut BTreeMap<Path, Option<String>>,
        done: &mut Turned,
        told: &(dyn Fn(&Turned) + Send + Sync),
    ) -> Result<()> {
        let mut found = stream::iter(objects)
            .map(|meta| async move {
                let found = self.object(&meta.location).await?;
                Ok::<_, Error>((meta, found))
            })
            .buffer_unordered(at_once);
        while let Some((meta, found)) = found.try_next().await? {
            match found {
                // Its tag is another one now: the next listing looks at it once more.
                Found::Turned(bytes) => {
                    done.objects += 1;
                    done.bytes += bytes;
                }
                Found::Encrypted => {
                    done.known += 1;
                    known.insert(meta.location, meta.e_tag);
                }
                Found::Gone => {}
            }
            told(done);
        }
        Ok(())
    }

    /// Sees to one object.
    async fn object(&self, location: &Path) -> Result<Found> {
        let failed = |error: StoreError| self.failed(location, &error);
        let mut whole = false;
        for _ in 0..ATTEMPTS {
            // Most are encrypted from the second listing on: their begin tells.
            let range = (!whole).then_some(GetRange::Bounded(0..HEADER as u64));
            let options = GetOptions { range, ..GetOptions::default() };
            let read = match self.store.get_opts(location, options).await {
                Ok(read) => read,
                Err(StoreError::NotFound { .. }) => return Ok(Found::Gone),
                // An empty object has no range that could be asked for.
                Err(_) if !whole => {
                    whole = true;
                    continue;
                }
                Err(error) => return Err(failed(error)),
            };
            let (meta, attributes) = (read.meta.clone(), read.attributes.clone());
            let body = match read.bytes().await {
                Ok(body) => body,
                Err(StoreError::NotFound { .. }) => return Ok(Found::Gone),
                Err(error) => return Err(failed(error)),
            };
            let encrypted = is_encrypted(&body).map_err(|damage| Error::Undecipherable {
                key: location.to_string(),
                reason: damage.to_string(),
            })?;
            if encrypted {
                return Ok(Found::Encrypted);
            }
            if !whole {
                whole = true;
                continue;
            }
            if self.replace(location, &meta, attributes, &body).await? {
                return Ok(Found::Turned(body.len() as u64));
            }
        }
        Err(Error::Unavailable {
            key: location.to_string(),
            reason: "it is exchanged by others all the time".to_owned(),
        })
    }

    /// Puts the encrypted form of `body` in its place; `false`: another object stands there now, or
    /// none.
    async fn replace(
        &self,
        location: &Path,
        meta: &ObjectMeta,
        attributes: object_store::Attributes,
        body: &Bytes,
    ) -> Result<bool> {
        let chunks = Chunks::for_new(&self.keys, location.as_ref());
        let mut stored = Vec::new();
        chunks.encrypt(0, body, true, &mut stored);
        let version = UpdateVersion { e_tag: meta.e_tag.clone(), version: meta.version.clone() };
        let mode = if self.how.offline { PutMode::Overwrite } else { PutMode::Update(version) };
        let mut options = PutOptions { mode, attributes, ..PutOptions::default() };
        options.extensions.insert(Exchange);
        match self.store.put_opts(location, stored.into(), options).await {
            Ok(_) => Ok(true),
            Err(StoreError::Precondition { .. } | StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.failed(location, &error)),
        }
    }
}
