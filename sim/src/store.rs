//! The simulated bucket as the processes share it: traced, with what stands between a process and a
//! real store, and wrong when a bug is planted.
//!
//! # What stands between
//! - A listing is a walk, not a snapshot: it takes a while, and of the keys that come and go
//!   meanwhile it shows any. Keys that are there all the time are always shown. Where the plan says
//!   so it comes in no particular order.
//! - A middlebox repeats puts: at once, and then the second answer is the one that arrives
//!   ("exists" for one's own put); or much later, when nobody waits any more.
//! - Replies are held: the put takes effect, its process learns of it long after others have seen
//!   it; or the process loses the bucket altogether between the effect and the reply.
//!
//! # Invariants
//! - Every request that reaches the store is in the trace, in the order in which it took effect.
//! - Without a planted bug the store never lies: what it answers was true at some moment of the
//!   request.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use telesto_bucket::{Faults, MemoryStore, StoreClock};
use telesto_common::Env;
use telesto_testkit::World;

use crate::plan::Middlebox;
use crate::plant::Plant;

/// One process's connection to the shared store.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) store: MemoryStore,
    pub(crate) world: World,
    pub(crate) node: usize,
    /// The process's own seams: what it leaves undone dies with it.
    pub(crate) process: Env,
    /// The process's way to the store, to cut it after an effect.
    pub(crate) faults: Arc<Faults>,
    /// Where the store's answers tell its time; `None`: they tell none.
    pub(crate) clock: Option<Arc<StoreClock>>,
    pub(crate) middlebox: Arc<Mutex<Middlebox>>,
    pub(crate) plant: Option<Plant>,
}

impl Connection {
    fn trace(&self, what: &str, key: &Path, detail: impl fmt::Display) {
        if let Some(clock) = &self.clock {
            // Whole seconds, as an HTTP answer tells it.
            clock.heard(self.world.env.clock.wall_micros() / 1_000_000 * 1_000_000);
        }
        self.world.trace(|| format!("node {} {what} {key} {detail}", self.node));
    }
}

/// A put, to be sent again.
struct Repeat {
    payload: PutPayload,
    opts: PutOptions,
}

impl Connection {
    fn between(&self) -> Middlebox {
        *self.middlebox.lock()
    }

    /// Whether the trace, and so everything that follows, is left as it is when nothing is asked
    /// for.
    fn strikes(&self, share: f64) -> bool {
        share > 0.0 && self.world.chance(share)
    }

    /// What a middlebox makes of a put that was answered `first`.
    async fn repeat_put(
        &self,
        location: &Path,
        again: Repeat,
        first: Result<PutResult>,
    ) -> Result<PutResult> {
        if again.opts.mode != PutMode::Create {
            return first;
        }
        if self.strikes(self.between().repeat_at_once) {
            let second = self.store.put_opts(location, again.payload, again.opts).await;
            self.trace("put repeated", location, verdict(&second));
            return second;
        }
        if self.strikes(self.between().repeat_later) {
            let (this, to) = (self.clone(), location.clone());
            let later = self.world.env.jitter(self.between().later);
            self.world.env.spawn("repeated put", async move {
                this.world.sleep(later).await;
                let second = this.store.put_opts(&to, again.payload, again.opts).await;
                this.trace("put repeated late", &to, verdict(&second));
            });
        }
        first
    }

    /// Keeps the answer of a request that has taken effect.
    async fn hold_reply(&self, location: &Path) {
        let chain = location.as_ref().contains("/chain/");
        let share = if chain { self.between().hold_chain } else { self.between().hold };
        if !self.strikes(share) {
            return;
        }
        // Half of them are shorter than a request may last.
        let most = self.between().held / if self.world.chance(0.5) { 1 } else { 12 };
        let held = self.world.env.jitter(most);
        if chain && self.world.chance(0.5) {
            self.trace("node cut off after put", location, format_args!("for {held:?}"));
            let (faults, world) = (Arc::clone(&self.faults), self.world.clone());
            faults.stop_answering();
            self.world.env.spawn("resume", async move {
                world.sleep(held).await;
                faults.resume();
            });
            return;
        }
        self.trace("reply held", location, format_args!("for {held:?}"));
        self.world.sleep(held).await;
    }

    /// A listing that takes a while: of what comes and goes meanwhile it shows any.
    fn walk(
        &self,
        prefix: Option<Path>,
        offset: Option<Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let this = self.clone();
        let look = move |this: &Self| match &offset {
            Some(offset) => this.store.list_with_offset(prefix.as_ref(), offset),
            None => this.store.list(prefix.as_ref()),
        };
        if self.between().walk.is_zero() {
            return look(self).map_ok(move |meta| this.aged(meta)).boxed();
        }
        stream::once(async move {
            let before: Vec<ObjectMeta> = look(&this).try_collect().await?;
            this.world.sleep(this.world.env.jitter(this.between().walk)).await;
            let after: Vec<ObjectMeta> = look(&this).try_collect().await?;
            let mut shown = this.merged(before, after);
            if this.between().unordered {
                for at in (1..shown.len()).rev() {
                    shown.swap(at, this.world.draw(at as u64 + 1) as usize);
                }
            }
            Ok::<_, object_store::Error>(shown)
        })
        .map_ok(|shown| stream::iter(shown.into_iter().map(Ok)))
        .try_flatten()
        .map_ok({
            let this = self.clone();
            move |meta| this.aged(meta)
        })
        .boxed()
    }

    /// Both listings, in order; what is in one of them only is shown or not.
    fn merged(&self, before: Vec<ObjectMeta>, after: Vec<ObjectMeta>) -> Vec<ObjectMeta> {
        let mut all: BTreeMap<Path, (ObjectMeta, u8)> = BTreeMap::new();
        for meta in before.into_iter().chain(after) {
            let seen = all.entry(meta.location.clone()).or_insert((meta, 0));
            seen.1 += 1;
        }
        let shown = all.into_values().filter(|(_, seen)| *seen == 2 || self.world.draw(2) == 0);
        shown.map(|(meta, _)| meta).collect()
    }

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
        let repeats = Repeat { payload: payload.clone(), opts: opts.clone() };
        let result = self.store.put_opts(location, payload, opts).await;
        self.trace("put", location, format_args!("{sum:016x} {}", verdict(&result)));
        if self.between().is_quiet() {
            return result;
        }
        let result = self.repeat_put(location, repeats, result).await;
        self.hold_reply(location).await;
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
        self.walk(prefix.cloned(), None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.trace("list", prefix.unwrap_or(&Path::default()), offset);
        self.walk(prefix.cloned(), Some(offset.clone()))
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
