//! The object store as SlateDB gets it: it seals metadata objects, and remembers what was read last
//! and which write failed.
//!
//! # Why
//! SlateDB checks blocks, indexes and filters, but its manifests and compaction states carry no
//! checksum: a flipped byte could hide rows. So every `.manifest` and `.compactions` object gets a
//! trailer, `TCRC` and the CRC-32C of what is before it, written here and taken off here.
//!
//! And where SlateDB does not name the object that does not decode, the last one read is named:
//! opening reads one object after the other; reads under way at the same time may make it a
//! neighbour, so the message says so.
//!
//! SlateDB repeats writes that fail; what waits for them meanwhile asks here why ([`LastFailure`]).
//! It repeats them for ever, also when its database was given up by us: nothing it holds would be
//! freed, and every repetition is a request. So a writer that was given up gets no more writes
//! through ([`GivenUp`]).
//!
//! # On failure
//! A trailer that does not match is an error of the store that names the object
//! ([`damaged_object`]).

use std::fmt::{Debug, Display, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;

use super::Fault;

const TRAILER: &[u8; 4] = b"TCRC";
const TRAILER_LEN: usize = 8;
const DAMAGED: &str = "damaged metadata object ";
/// What the bucket says of an object that cannot be decrypted.
const UNDECIPHERABLE: &str = "undecipherable object ";

/// Whether an object of this name is sealed.
fn sealed(location: &Path) -> bool {
    location.as_ref().ends_with(".manifest") || location.as_ref().ends_with(".compactions")
}

fn seal(body: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(body.len() + TRAILER_LEN);
    out.put_slice(body);
    out.put_slice(TRAILER);
    out.put_u32(crc32c::crc32c(body));
    out.freeze()
}

/// The body of a sealed object, if it is whole.
fn unseal(stored: &Bytes) -> Option<Bytes> {
    let at = stored.len().checked_sub(TRAILER_LEN)?;
    let (body, trailer) = stored.split_at(at);
    let crc = u32::from_be_bytes(trailer.strip_prefix(TRAILER)?.try_into().ok()?);
    (crc == crc32c::crc32c(body)).then(|| stored.slice(..at))
}

/// The object named by an error of a seal that does not match, or of an encrypted object that does
/// not open.
pub(super) fn damaged_object(text: &str) -> Option<String> {
    let (_, rest) = text.split_once(DAMAGED).or_else(|| text.split_once(UNDECIPHERABLE))?;
    rest.split(':').next().map(str::to_owned)
}

/// SlateDB names the object in `checksum mismatch in <path>`.
pub(super) fn named_object(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("checksum mismatch in ")?;
    Some(rest.split([' ', ':', ')', ',']).next().unwrap_or(rest).to_owned())
}

/// Names the object last read when the fault names none.
pub(super) fn witnessed(fault: Fault, last: &LastRead) -> Fault {
    match fault {
        Fault::Corrupt { object: None, reason } => Fault::Corrupt {
            object: last.0.lock().as_ref().map(ToString::to_string),
            reason: format!("{reason} (the object named is the last one read)"),
        },
        other => other,
    }
}

/// The object read last, and how many were read. Shared between the store and whoever reports an
/// error.
#[derive(Clone, Debug, Default)]
pub(super) struct LastRead(Arc<Mutex<Option<Path>>>, Arc<AtomicU64>);

impl LastRead {
    /// How often the store was read.
    pub(super) fn count(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }
}

/// The object and the error of the newest write, if that failed.
#[derive(Clone, Debug, Default)]
pub(super) struct LastFailure(Arc<Mutex<Option<String>>>);

impl LastFailure {
    pub(super) fn text(&self) -> Option<String> {
        self.0.lock().clone()
    }

    /// Another writer may have gone on since.
    pub(super) fn clear(&self) {
        *self.0.lock() = None;
    }

    fn note<T>(&self, location: &Path, result: Result<T>) -> Result<T> {
        let failed = match &result {
            // Answers that the protocol asked for.
            Ok(_)
            | Err(object_store::Error::AlreadyExists { .. })
            | Err(object_store::Error::Precondition { .. }) => None,
            Err(error) => Some(format!("{location}: {error}")),
        };
        *self.0.lock() = failed;
        result
    }
}

/// Set once the database that was given the store is of no use any more.
#[derive(Clone, Debug, Default)]
pub(super) struct GivenUp(Arc<AtomicBool>);

impl GivenUp {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// # Errors
    /// Of the only kind SlateDB does not repeat.
    fn check(&self) -> Result<()> {
        if !self.0.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(object_store::Error::NotSupported { source: "this writer was given up".into() })
    }
}

#[derive(Debug)]
pub(super) struct Witness {
    store: Arc<dyn ObjectStore>,
    last: LastRead,
    failed: LastFailure,
    given_up: GivenUp,
}

impl Witness {
    pub(super) fn over(
        store: Arc<dyn ObjectStore>,
        last: &LastRead,
        failed: &LastFailure,
        given_up: &GivenUp,
    ) -> Arc<dyn ObjectStore> {
        let (last, failed, given_up) = (last.clone(), failed.clone(), given_up.clone());
        Arc::new(Self { store, last, failed, given_up })
    }
}

/// An upload in parts whose failures are noted.
#[derive(Debug)]
struct Upload {
    upload: Box<dyn MultipartUpload>,
    location: Path,
    failed: LastFailure,
    given_up: GivenUp,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        if let Err(error) = self.given_up.check() {
            return Box::pin(async { Err(error) });
        }
        let part = self.upload.put_part(data);
        let (location, failed) = (self.location.clone(), self.failed.clone());
        Box::pin(async move { failed.note(&location, part.await) })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.given_up.check()?;
        let result = self.upload.complete().await;
        self.failed.note(&self.location, result)
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

impl Display for Witness {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        Display::fmt(&self.store, f)
    }
}

#[async_trait]
impl ObjectStore for Witness {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.given_up.check()?;
        let payload = if sealed(location) { seal(&Bytes::from(payload)).into() } else { payload };
        let result = self.store.put_opts(location, payload, options).await;
        self.failed.note(location, result)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.given_up.check()?;
        let upload = self.store.put_multipart_opts(location, options).await;
        let upload = self.failed.note(location, upload)?;
        let (location, failed) = (location.clone(), self.failed.clone());
        Ok(Box::new(Upload { upload, location, failed, given_up: self.given_up.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let whole = !options.head && options.range.is_none();
        self.last.1.fetch_add(1, Ordering::Relaxed);
        let got = self.store.get_opts(location, options).await?;
        *self.last.0.lock() = Some(location.clone());
        if !(whole && sealed(location)) {
            return Ok(got);
        }
        let mut meta = got.meta.clone();
        let (attributes, extensions) = (got.attributes.clone(), got.extensions.clone());
        let stored = got.bytes().await?;
        let body = unseal(&stored).ok_or_else(|| object_store::Error::Generic {
            store: "checkpoint",
            source: format!("{DAMAGED}{location}: its checksum does not match").into(),
        })?;
        meta.size = body.len() as u64;
        let range = 0..meta.size;
        let payload = GetResultPayload::Stream(stream::once(async { Ok(body) }).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn object_that_does_not_decrypt_is_named() {
        let text = "Operation not supported: undecipherable object a/b.sst: it does not decrypt";
        assert_eq!(damaged_object(text).as_deref(), Some("a/b.sst"));
    }

    proptest! {
        #[test]
        fn sealed_body_comes_back_and_any_flipped_bit_is_noticed(body: Vec<u8>, at: prop::sample::Index, bit in 0..8_u8) {
            let stored = seal(&body);
            prop_assert_eq!(unseal(&stored), Some(Bytes::from(body)));
            let mut damaged = stored.to_vec();
            let at = at.index(damaged.len());
            damaged[at] ^= 1 << bit;
            prop_assert_eq!(unseal(&Bytes::from(damaged)), None);
        }
    }
}
