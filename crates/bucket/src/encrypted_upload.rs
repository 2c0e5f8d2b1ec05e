//! Large uploads, encrypted as they come.
//!
//! # Invariants
//! - Parts that leave are of one size ([`PART_BYTES`] of plaintext, whole chunks) but the last, as
//!   some stores ask for, whatever the sizes of the parts that come in.
//! - What is held back is never empty once something came, so that the last chunk is known to be
//!   the last.
//!
//! # Limits
//! Up to one part is held back in memory. Parts come in the order of the calls.

use std::fmt;

use async_trait::async_trait;
use futures::FutureExt as _;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use telesto_cipher::{CHUNK, Chunks};

/// Plaintext of a part: more than the 5 MiB that S3 asks for, and whole chunks.
const PART_BYTES: usize = 8 << 20;
const _: () = assert!((PART_BYTES as u64).is_multiple_of(CHUNK));

/// An upload under way.
pub(crate) struct EncryptedUpload {
    inner: Box<dyn MultipartUpload>,
    chunks: Chunks,
    held: Vec<u8>,
    next_chunk: u64,
}

impl EncryptedUpload {
    pub(crate) fn new(inner: Box<dyn MultipartUpload>, chunks: Chunks) -> Self {
        Self { inner, chunks, held: Vec::new(), next_chunk: 0 }
    }

    /// Sends the first `bytes` held.
    fn send(&mut self, bytes: usize, ends: bool) -> UploadPart {
        let mut stored = Vec::new();
        self.chunks.encrypt(self.next_chunk, &self.held[..bytes], ends, &mut stored);
        self.next_chunk += bytes as u64 / CHUNK;
        self.held.drain(..bytes);
        self.inner.put_part(stored.into())
    }
}

impl fmt::Debug for EncryptedUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EncryptedUpload").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[async_trait]
impl MultipartUpload for EncryptedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        for piece in &data {
            self.held.extend_from_slice(piece);
        }
        let mut parts = Vec::new();
        while self.held.len() > PART_BYTES {
            parts.push(self.send(PART_BYTES, false));
        }
        async move { futures::future::try_join_all(parts).await.map(|_| ()) }.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.send(self.held.len(), true).await?;
        self.inner.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.held = Vec::new();
        self.inner.abort().await
    }
}
