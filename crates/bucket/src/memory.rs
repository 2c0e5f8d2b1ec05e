//! An object store in memory, for `memory://` and the simulation.
//!
//! # Purpose
//! Unlike `object_store`'s own, its object times come from a clock seam, so that a simulated store
//! has a simulated clock, and listings, tags and times are the same in every run of a seed.
//!
//! # Invariants
//! - Every operation is atomic: it happens at one instant, between two suspension points.
//! - Listings are in byte order of whole keys.
//!
//! # Limits
//! Everything is lost with the process; nothing bounds its memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _};
use object_store::path::Path;
use object_store::{
    Attributes, CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, UploadPart,
};
use parking_lot::Mutex;
use telesto_common::env::Clock;

#[derive(Clone, Debug)]
struct Entry {
    body: Bytes,
    modified: DateTime<Utc>,
    tag: u64,
    attributes: Attributes,
}

impl Entry {
    fn meta(&self, location: &Path) -> ObjectMeta {
        ObjectMeta {
            location: location.clone(),
            last_modified: self.modified,
            size: self.body.len() as u64,
            e_tag: Some(format!("\"{}\"", self.tag)),
            version: None,
        }
    }
}

#[derive(Debug, Default)]
struct Objects {
    entries: BTreeMap<Path, Entry>,
    next_tag: u64,
}

/// An object store in memory.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    objects: Arc<Mutex<Objects>>,
    clock: Arc<dyn Clock>,
}

static NAMED: LazyLock<Mutex<BTreeMap<String, MemoryStore>>> = LazyLock::new(Mutex::default);

impl MemoryStore {
    /// An empty store whose object times come from `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { objects: Arc::default(), clock }
    }

    /// The store of this process called `name`; made on first use, kept until the process ends.
    #[must_use]
    pub fn named(name: &str, clock: &Arc<dyn Clock>) -> Self {
        NAMED.lock().entry(name.to_owned()).or_insert_with(|| Self::new(Arc::clone(clock))).clone()
    }

    /// Number of objects held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.lock().entries.len()
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes the stored bytes of an object behind everybody's back, for corruption tests. Returns
    /// whether there is such an object.
    pub fn tamper(&self, key: &str, change: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut objects = self.objects.lock();
        match objects.entries.get_mut(&Path::from(key)) {
            Some(entry) => {
                let mut body = entry.body.to_vec();
                change(&mut body);
                entry.body = body.into();
                true
            }
            None => false,
        }
    }

    /// Every key and body, in order: for comparing two runs and for corruption tests.
    #[must_use]
    pub fn contents(&self) -> Vec<(String, Bytes)> {
        let objects = self.objects.lock();
        objects.entries.iter().map(|(key, entry)| (key.to_string(), entry.body.clone())).collect()
    }

    fn now(&self) -> DateTime<Utc> {
        let micros = i64::try_from(self.clock.wall_micros()).unwrap_or(i64::MAX);
        DateTime::from_timestamp_micros(micros).unwrap_or_default()
    }

    fn write(
        &self,
        location: &Path,
        body: Bytes,
        mode: &PutMode,
        attributes: Attributes,
    ) -> Result<PutResult> {
        let modified = self.now();
        let mut objects = self.objects.lock();
        let current = objects.entries.get(location).map(|entry| entry.meta(location).e_tag);
        match (mode, current) {
            (PutMode::Create, Some(_)) => {
                return Err(Error::AlreadyExists {
                    path: location.to_string(),
                    source: "the key is taken".into(),
                });
            }
            (PutMode::Update(wanted), current) if current != Some(wanted.e_tag.clone()) => {
                return Err(Error::Precondition {
                    path: location.to_string(),
                    source: "the object has another tag".into(),
                });
            }
            _ => {}
        }
        objects.next_tag += 1;
        let tag = objects.next_tag;
        objects.entries.insert(location.clone(), Entry { body, modified, tag, attributes });
        let e_tag = Some(format!("\"{tag}\""));
        Ok(PutResult { e_tag, version: None, extensions: Default::default() })
    }

    fn read(&self, location: &Path) -> Result<Entry> {
        self.objects.lock().entries.get(location).cloned().ok_or_else(|| Error::NotFound {
            path: location.to_string(),
            source: "no such object".into(),
        })
    }

    fn metas(&self, prefix: Option<&Path>, after: Option<&Path>) -> Vec<ObjectMeta> {
        let root = Path::default();
        let prefix = prefix.unwrap_or(&root);
        let objects = self.objects.lock();
        objects
            .entries
            .range(prefix..)
            .take_while(|(key, _)| key.as_ref().starts_with(prefix.as_ref()))
            .filter(|(key, _)| {
                key.prefix_match(prefix).is_some_and(|mut rest| rest.next().is_some())
                    && after.is_none_or(|after| *key > after)
            })
            .map(|(key, entry)| entry.meta(key))
            .collect()
    }
}

impl fmt::Display for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory")
    }
}

fn joined(payload: &PutPayload) -> Bytes {
    let mut parts = payload.iter();
    match (parts.next(), parts.next()) {
        (None, _) => Bytes::new(),
        (Some(only), None) => only.clone(),
        _ => payload.iter().flat_map(|part| part.iter().copied()).collect(),
    }
}

#[async_trait]
impl ObjectStore for MemoryStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.write(location, joined(&payload), &opts.mode, opts.attributes)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(Upload {
            store: self.clone(),
            location: location.clone(),
            attributes: opts.attributes,
            parts: Arc::default(),
            next_part: 0,
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let entry = self.read(location)?;
        let meta = entry.meta(location);
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            Some(range) => range
                .as_range(meta.size)
                .map_err(|source| Error::Generic { store: "memory", source: Box::new(source) })?,
            None => 0..meta.size,
        };
        let body = if options.head {
            Bytes::new()
        } else {
            entry.body.slice(range.start as usize..range.end as usize)
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::once(async { Ok(body) }).boxed()),
            meta,
            range,
            attributes: entry.attributes,
            extensions: Default::default(),
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .map(move |location| {
                let location = location?;
                store.objects.lock().entries.remove(&location);
                Ok(location)
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        stream::iter(self.metas(prefix, None).into_iter().map(Ok)).boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        stream::iter(self.metas(prefix, Some(offset)).into_iter().map(Ok)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let root = Path::default();
        let prefix = prefix.unwrap_or(&root);
        let mut common_prefixes = BTreeSet::new();
        let mut objects = Vec::new();
        for meta in self.metas(Some(prefix), None) {
            let Some(mut rest) = meta.location.prefix_match(prefix) else { continue };
            let Some(first) = rest.next() else { continue };
            if rest.next().is_some() {
                common_prefixes.insert(prefix.clone().join(first));
            } else {
                drop(rest);
                objects.push(meta);
            }
        }
        let common_prefixes = common_prefixes.into_iter().collect();
        Ok(ListResult { common_prefixes, objects, extensions: Default::default() })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let entry = self.read(from)?;
        let mode = match options.mode {
            CopyMode::Overwrite => PutMode::Overwrite,
            CopyMode::Create => PutMode::Create,
        };
        self.write(to, entry.body, &mode, entry.attributes).map(|_| ())
    }
}

#[derive(Debug)]
struct Upload {
    store: MemoryStore,
    location: Path,
    attributes: Attributes,
    parts: Arc<Mutex<BTreeMap<u64, Bytes>>>,
    next_part: u64,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (parts, number) = (Arc::clone(&self.parts), self.next_part);
        self.next_part += 1;
        async move {
            parts.lock().insert(number, joined(&data));
            Ok(())
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let parts = std::mem::take(&mut *self.parts.lock());
        if parts.len() as u64 != self.next_part {
            return Err(Error::Generic { store: "memory", source: "a part is missing".into() });
        }
        let body: PutPayload = parts.into_values().collect();
        self.store.write(
            &self.location,
            joined(&body),
            &PutMode::Overwrite,
            std::mem::take(&mut self.attributes),
        )
    }

    async fn abort(&mut self) -> Result<()> {
        self.parts.lock().clear();
        Ok(())
    }
}
