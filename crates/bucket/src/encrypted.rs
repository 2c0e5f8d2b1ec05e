//! The store above the meter that encrypts what is written and decrypts what is read.
//!
//! # Purpose
//! Everything in the bucket but the key ring goes through here, the checkpoint engine's objects
//! too. Whoever holds the bucket sees names, stored lengths and times, and nothing else
//! (`docs/architecture/encryption.md`).
//!
//! # Invariants
//! - Sizes and ranges above are those of the plaintext; a range is one request, as without
//!   encryption.
//! - An object that does not decrypt is an error that nobody repeats, never absent and never other
//!   bytes.
//! - A put that is repeated is encrypted anew, with another salt: whoever compares, compares
//!   plaintexts.
//!
//! # On failure
//! [`Undecipherable`] inside of `object_store`'s error. An epoch that is not known is looked for in
//! the bucket once before it is one.
//!
//! # Limits
//! A database that is being turned over is read by [`crate::mixed`]. A copy is a read and a write:
//! the path is part of what is authenticated. Tags (ETags) are those of the stored bytes.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use telesto_cipher::{CHUNK, Chunks, Damage, Header, STORED_CHUNK, plain_size};

use crate::encrypted_upload::EncryptedUpload;
use crate::keyring::{self, Vault};
use crate::metered::Metered;

/// Bodies from this size on are encrypted and decrypted off the async threads.
const LARGE_BYTES: usize = 2 << 20;

/// An object that cannot be decrypted, inside of `object_store`'s error.
#[derive(Clone, Debug, thiserror::Error)]
#[error("undecipherable object {object}: {damage}")]
pub(crate) struct Undecipherable {
    pub(crate) object: String,
    pub(crate) damage: Damage,
}

impl Undecipherable {
    /// As a kind of error that the checkpoint engine does not repeat.
    pub(crate) fn error(object: &Path, damage: Damage) -> Error {
        Error::NotSupported { source: Box::new(Self { object: object.to_string(), damage }) }
    }
}

/// A store whose objects are encrypted.
#[derive(Clone, Debug)]
pub(crate) struct Encrypted {
    pub(crate) store: Metered,
    pub(crate) vault: Arc<Vault>,
}

impl fmt::Display for Encrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.store)
    }
}

/// Runs `work` where it holds nobody up.
async fn computed<T: Send + 'static>(
    store: &Metered,
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if bytes < LARGE_BYTES {
        return Ok(work());
    }
    let done = store.env.blocking("encryption of a large object", work).await;
    done.map_err(|error| Error::Generic { store: "bucket", source: Box::new(error) })
}

/// The stored bytes that hold the plaintext bytes asked for. Ranges that are none stay as they are:
/// the store says so.
fn stored_range(range: &GetRange) -> GetRange {
    let chunk_at = |plain: u64| (plain / CHUNK).saturating_mul(STORED_CHUNK);
    match range {
        GetRange::Bounded(range) if range.start < range.end => {
            let end = range.end.div_ceil(CHUNK).saturating_mul(STORED_CHUNK);
            GetRange::Bounded(chunk_at(range.start)..end)
        }
        GetRange::Offset(start) => GetRange::Offset(chunk_at(*start)),
        // The last bytes may lie in one chunk more than they fill: the last one may be short.
        GetRange::Suffix(bytes @ 1..) => {
            GetRange::Suffix(((bytes - 1).div_ceil(CHUNK) + 1).saturating_mul(STORED_CHUNK))
        }
        other => other.clone(),
    }
}

/// A listed or found object as the layers above see it. One whose length no encrypted object has is
/// shown as empty: whoever reads it is told.
fn plain_meta(mut meta: ObjectMeta) -> ObjectMeta {
    if !keyring::is_clear(&meta.location) {
        meta.size = plain_size(meta.size).unwrap_or(0);
    }
    meta
}

impl Encrypted {
    /// What decrypts the object at `location` that begins with, or has in it, `stored`.
    async fn chunks(&self, location: &Path, stored: &[u8]) -> Result<Chunks> {
        let failed = |damage| Undecipherable::error(location, damage);
        let header = Header::decode(stored).map_err(failed)?;
        match Chunks::for_stored(self.vault.keys(), header, location.as_ref()) {
            Err(Damage::UnknownEpoch(_)) => {
                // Another process may have begun a new epoch since this one looked.
                self.vault.look().await.map_err(|error| match error {
                    // The key ring is there and does not open: no later look changes that.
                    keys @ crate::Error::Keys(_) => Error::NotSupported { source: Box::new(keys) },
                    other => Error::Generic { store: "bucket", source: Box::new(other) },
                })?;
                Chunks::for_stored(self.vault.keys(), header, location.as_ref()).map_err(failed)
            }
            chunks => chunks.map_err(failed),
        }
    }

    /// The plaintext of what a read brought.
    pub(crate) async fn opened(
        &self,
        location: &Path,
        asked: Option<&GetRange>,
        result: GetResult,
    ) -> Result<GetResult> {
        let failed = |damage| Undecipherable::error(location, damage);
        let mut meta = result.meta.clone();
        let (attributes, extensions) = (result.attributes.clone(), result.extensions.clone());
        let size = plain_size(meta.size).ok_or_else(|| failed(Damage::Length))?;
        let range = match asked {
            None => 0..size,
            Some(asked) => asked
                .as_range(size)
                .map_err(|source| Error::Generic { store: "bucket", source: Box::new(source) })?,
        };
        meta.size = size;
        let answer = |body: Bytes| {
            let payload = GetResultPayload::Stream(stream::once(async { Ok(body) }).boxed());
            GetResult { payload, meta, range: range.clone(), attributes, extensions }
        };
        if asked.is_some() && range.is_empty() {
            // Nothing was asked for, and nothing has to be true of it.
            return Ok(answer(Bytes::new()));
        }
        let found = result.range.clone();
        let ends = found.end == result.meta.size;
        let first = found.start.div_ceil(STORED_CHUNK);
        // Of the last bytes of an object the first ones may be the end of a chunk.
        let skipped = first * STORED_CHUNK - found.start;
        let mut stored = result.bytes().await?;
        if stored.len() as u64 != found.end - found.start || skipped > stored.len() as u64 {
            return Err(failed(Damage::Length));
        }
        let stored = stored.split_off(usize::try_from(skipped).unwrap_or(usize::MAX));
        let chunks = self.chunks(location, &stored).await?;
        let plain = computed(&self.store, stored.len(), move || {
            let mut plain = Vec::new();
            chunks.decrypt(first, &stored, ends, &mut plain).map(|()| plain)
        });
        let plain = Bytes::from(plain.await?.map_err(failed)?);
        let at = |position: u64| {
            let within = position.checked_sub(first * CHUNK)?;
            usize::try_from(within).ok().filter(|within| *within <= plain.len())
        };
        let (Some(start), Some(end)) = (at(range.start), at(range.end)) else {
            return Err(failed(Damage::Length));
        };
        Ok(answer(plain.slice(start..end)))
    }
}

impl Encrypted {
    /// A read of an encrypted object. `options` are without their range.
    pub(crate) async fn get_encrypted(
        &self,
        location: &Path,
        asked: Option<GetRange>,
        mut options: GetOptions,
    ) -> Result<GetResult> {
        if options.head {
            let mut result = self.store.get_opts(location, options).await?;
            let size = plain_size(result.meta.size);
            let size = size.ok_or_else(|| Undecipherable::error(location, Damage::Length))?;
            result.meta.size = size;
            result.range = 0..size;
            return Ok(result);
        }
        options.range = asked.as_ref().map(stored_range);
        let result = self.store.get_opts(location, options).await?;
        self.opened(location, asked.as_ref(), result).await
    }

    /// A listed object as the layers above see it.
    fn listed(mixed: bool, meta: ObjectMeta) -> ObjectMeta {
        // Which form it has is not known; nobody above reads by a listing's sizes.
        if mixed { meta } else { plain_meta(meta) }
    }

    fn plain_list(
        &self,
        items: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let mixed = self.vault.keys().takes_clear();
        items.map(move |item| item.map(|meta| Self::listed(mixed, meta))).boxed()
    }
}

#[async_trait]
impl ObjectStore for Encrypted {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        if keyring::is_clear(location) {
            return self.store.put_opts(location, payload, opts).await;
        }
        self.vault.look_if_due();
        let (plain, chunks) =
            (Bytes::from(payload), Chunks::for_new(self.vault.keys(), location.as_ref()));
        let stored = computed(&self.store, plain.len(), move || {
            let mut stored = Vec::new();
            chunks.encrypt(0, &plain, true, &mut stored);
            Bytes::from(stored)
        });
        self.store.put_opts(location, stored.await?.into(), opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.vault.look_if_due();
        let chunks = Chunks::for_new(self.vault.keys(), location.as_ref());
        let upload = self.store.put_multipart_opts(location, opts).await?;
        Ok(Box::new(EncryptedUpload::new(upload, chunks)))
    }

    async fn get_opts(&self, location: &Path, mut options: GetOptions) -> Result<GetResult> {
        if keyring::is_clear(location) {
            return self.store.get_opts(location, options).await;
        }
        let asked = options.range.take();
        match self.vault.keys().takes_clear() {
            true => self.get_mixed(location, asked, options).await,
            false => self.get_encrypted(location, asked, options).await,
        }
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.plain_list(self.store.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.plain_list(self.store.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut listed = self.store.list_with_delimiter(prefix).await?;
        let mixed = self.vault.keys().takes_clear();
        let objects = listed.objects.into_iter();
        listed.objects = objects.map(|meta| Self::listed(mixed, meta)).collect();
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let found = self.get_opts(from, GetOptions::default()).await?;
        let mode = match options.mode {
            CopyMode::Overwrite => PutMode::Overwrite,
            CopyMode::Create => PutMode::Create,
        };
        let attributes = found.attributes.clone();
        let body = found.bytes().await?;
        let options = PutOptions { mode, attributes, ..PutOptions::default() };
        self.put_opts(to, body.into(), options).await.map(|_| ())
    }
}
