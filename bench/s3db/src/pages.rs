//! The page manager: a buffer pool over the metered bucket (§3.3).
//!
//! # Invariants
//! - A cached page older than the time to live is refreshed by a conditional GET before it is used.
//! - What a client changed in its cache stays there until the page is evicted or another version of
//!   it is fetched.
//! - A page written here is not asked for again as long as the store may still return what was
//!   there before.
//! - The pool is bounded by bytes; the page used longest ago goes first.
//!
//! # Limits
//! Pages are plain objects that are overwritten, as in the paper; the product never does that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use object_store::{Error as StoreError, GetOptions, ObjectStore as _, ObjectStoreExt as _};
use parking_lot::Mutex;
use telesto_bucket::{Bucket as _, Cause, OpenBucket};
use telesto_common::Env;

use crate::error::{Error, Result};
use crate::node::{Node, PageRef};

#[derive(Debug)]
struct Cached {
    /// With what this client has committed since.
    node: Arc<Node>,
    /// As it is stored: what a checkpoint starts from, so that nothing gets there past its queue.
    stored: Arc<Node>,
    tag: Option<String>,
    checked: Duration,
    /// Until when a GET may return something older than this, which was written here.
    settled: Duration,
    bytes: u64,
    used: u64,
}

#[derive(Debug, Default)]
struct Pool {
    pages: BTreeMap<PageRef, Cached>,
    bytes: u64,
    clock: u64,
}

impl Cached {
    fn version(&self, fresh: bool) -> Arc<Node> {
        Arc::clone(if fresh { &self.stored } else { &self.node })
    }
}

impl Pool {
    fn touch(&mut self, page: PageRef) -> Option<&mut Cached> {
        self.clock += 1;
        let cached = self.pages.get_mut(&page)?;
        cached.used = self.clock;
        Some(cached)
    }

    fn insert(&mut self, page: PageRef, cached: Cached, limit: u64, now: Duration) {
        self.bytes += cached.bytes;
        if let Some(old) = self.pages.insert(page, cached) {
            self.bytes -= old.bytes;
        }
        self.touch(page);
        while self.bytes > limit && self.pages.len() > 1 {
            let settled = self.pages.iter().filter(|(_, cached)| cached.settled <= now);
            let oldest = settled.min_by_key(|(_, cached)| cached.used);
            let Some(oldest) = oldest.map(|(page, _)| *page) else { return };
            if let Some(gone) = self.pages.remove(&oldest) {
                self.bytes -= gone.bytes;
            }
        }
    }
}

/// The pages of one client.
#[derive(Debug)]
pub struct Pages {
    bucket: Arc<OpenBucket>,
    env: Env,
    time_to_live: Duration,
    limit: u64,
    /// How long the store may return what was overwritten.
    lag: Duration,
    pool: Mutex<Pool>,
}

impl Pages {
    pub fn new(
        bucket: Arc<OpenBucket>,
        env: Env,
        time_to_live: Duration,
        limit: u64,
        lag: Duration,
    ) -> Self {
        Self { bucket, env, time_to_live, limit, lag, pool: Mutex::default() }
    }

    pub fn env(&self) -> &Env {
        &self.env
    }

    /// A page: from the pool within its time to live, or `fresh`: as it is stored now, by a
    /// conditional GET.
    pub async fn get(&self, cause: Cause, page: PageRef, fresh: bool) -> Result<Arc<Node>> {
        loop {
            let tag = {
                let now = self.env.clock.monotonic();
                match self.pool.lock().touch(page) {
                    // What was just written here is newer than anything a GET may return: nobody
                    // else has had the token since.
                    Some(cached)
                        if cached.settled > now
                            || !fresh && now.saturating_sub(cached.checked) < self.time_to_live =>
                    {
                        return Ok(cached.version(fresh));
                    }
                    Some(cached) => cached.tag.clone(),
                    None => None,
                }
            };
            let options = GetOptions { if_none_match: tag, ..GetOptions::default() };
            let store = self.bucket.object_store(cause);
            match store.get_opts(&Path::from(page.key()), options).await {
                Ok(result) => {
                    let tag = result.meta.e_tag.clone();
                    let body = result.bytes().await?;
                    let node = Arc::new(Node::decode(page, &body)?);
                    self.keep(page, Arc::clone(&node), tag, body.len() as u64, Duration::ZERO);
                    return Ok(node);
                }
                Err(StoreError::NotModified { .. }) => {
                    let now = self.env.clock.monotonic();
                    // Evicted meanwhile: asked again, without a condition.
                    if let Some(cached) = self.pool.lock().touch(page) {
                        cached.checked = now;
                        return Ok(cached.version(fresh));
                    }
                }
                Err(StoreError::NotFound { .. }) => return Err(Error::Missing(page.key())),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes a page, whatever is there.
    pub async fn put(&self, cause: Cause, page: PageRef, node: Node) -> Result<()> {
        let body = node.encode()?;
        let bytes = body.len() as u64;
        let store = self.bucket.object_store(cause);
        let written = store.put(&Path::from(page.key()), body.into()).await?;
        self.keep(page, Arc::new(node), written.e_tag, bytes, self.lag);
        Ok(())
    }

    fn keep(
        &self,
        page: PageRef,
        node: Arc<Node>,
        tag: Option<String>,
        bytes: u64,
        unsettled: Duration,
    ) {
        let checked = self.env.clock.monotonic();
        let (stored, settled) = (Arc::clone(&node), checked + unsettled);
        let cached = Cached { node, stored, tag, checked, settled, bytes, used: 0 };
        self.pool.lock().insert(page, cached, self.limit, checked);
    }

    /// Changes the copy in the pool, if there is one: what this client has committed.
    pub fn patch(&self, page: PageRef, change: impl FnOnce(&mut Node)) {
        if let Some(cached) = self.pool.lock().pages.get_mut(&page) {
            change(Arc::make_mut(&mut cached.node));
        }
    }

    /// A number for a new page.
    pub fn fresh_id(&self) -> u64 {
        // Neither a root nor a header.
        self.env.random.next_u64().clamp(1, u64::MAX - 1)
    }
}
