//! The simulated bucket as the processes share it: traced, and wrong when a bug is planted.
//!
//! # Invariants
//! Every request that reaches the store is in the trace, in the order in which it took effect.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use telesto_bucket::MemoryStore;
use telesto_common::Env;
use telesto_testkit::World;

use crate::plant::Plant;

/// One process's connection to the shared store.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) store: MemoryStore,
    pub(crate) world: World,
    pub(crate) node: usize,
    /// The process's own seams: what it leaves undone dies with it.
    pub(crate) process: Env,
    pub(crate) plant: Option<Plant>,
}

impl Connection {
    fn trace(&self, what: &str, key: &Path, detail: impl fmt::Display) {
        self.world.trace(|| format!("node {} {what} {key} {detail}", self.node));
    }
}

impl Connection {
    /// The age of an object as this store tells it.
    fn aged(&self, mut meta: ObjectMeta) -> ObjectMeta {
        if self.plant == Some(Plant::EarlyTrim) && !meta.location.as_ref().contains("/clock/") {
            meta.last_modified -= Duration::from_secs(3600);
        }
        meta
    }
}

fn checksum(payload: &PutPayload) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in payload.iter().flat_map(|part| part.iter()) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash
}

fn verdict<T>(result: &Result<T>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(object_store::Error::AlreadyExists { .. }) => "taken",
        Err(object_store::Error::NotFound { .. }) => "missing",
        Err(_) => "failed",
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated bucket")
    }
}

#[async_trait]
impl ObjectStore for Connection {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut opts: PutOptions,
    ) -> Result<PutResult> {
        let sum = checksum(&payload);
        let creates = opts.mode == PutMode::Create;
        match self.plant {
            Some(Plant::TwoWinners) if creates && self.world.chance(0.2) => {
                opts.mode = PutMode::Overwrite;
            }
            Some(Plant::AckBeforeDurable) if creates => {
                // Acknowledged now, written when the process gets round to it.
                let (store, to, clock) =
                    (self.store.clone(), location.clone(), Arc::clone(&self.process.clock));
                self.process.spawn("lazy write", async move {
                    clock.sleep(Duration::from_millis(300)).await;
                    // Whether it still lands is what the plant leaves to chance.
                    let _ = store.put_opts(&to, payload, opts).await;
                });
                self.trace("put (lazily)", location, format_args!("{sum:016x}"));
                return Ok(PutResult {
                    e_tag: None,
                    version: None,
                    extensions: Default::default(),
                });
            }
            _ => {}
        }
        let result = self.store.put_opts(location, payload, opts).await;
        self.trace("put", location, format_args!("{sum:016x} {}", verdict(&result)));
        result
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.trace("upload", location, "");
        self.store.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let result = self.store.get_opts(location, options).await;
        self.trace("get", location, verdict(&result));
        result.map(|mut result| {
            result.meta = self.aged(result.meta);
            result
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        self.store
            .delete_stream(locations)
            .inspect(move |deleted| {
                if let Ok(location) = deleted {
                    this.trace("delete", location, "");
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.trace("list", prefix.unwrap_or(&Path::default()), "");
        let this = self.clone();
        self.store.list(prefix).map_ok(move |meta| this.aged(meta)).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.trace("list", prefix.unwrap_or(&Path::default()), offset);
        let this = self.clone();
        self.store.list_with_offset(prefix, offset).map_ok(move |meta| this.aged(meta)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.trace("list", prefix.unwrap_or(&Path::default()), "level");
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.trace("copy", from, to);
        self.store.copy_opts(from, to, options).await
    }
}
