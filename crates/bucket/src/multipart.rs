//! Large uploads, metered and bounded in time.
//!
//! # Invariants
//! Start, every part and completion each count as one PUT, as stores price them.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};

use crate::metered::Metered;

/// An upload under way.
pub(crate) struct MeteredUpload {
    store: Metered,
    inner: Box<dyn MultipartUpload>,
}

impl MeteredUpload {
    pub(crate) fn new(store: Metered, inner: Box<dyn MultipartUpload>) -> Self {
        Self { store, inner }
    }
}

impl fmt::Debug for MeteredUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeteredUpload").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[async_trait]
impl MultipartUpload for MeteredUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let store = self.store.clone();
        let bytes = data.content_length() as u64;
        let part = self.inner.put_part(data);
        Box::pin(async move { store.put_request(bytes, part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        // Completion joins all parts on the store's side and may take longer than a small put.
        let store = self.store.clone();
        let store = store.clone().with_timeout(store.request_timeout + Duration::from_secs(60));
        store.put_request(0, self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.store.clone().delete_request(self.inner.abort()).await
    }
}
