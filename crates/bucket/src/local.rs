//! A bucket in a local folder, durable before it acknowledges.
//!
//! # Purpose
//! `object_store`'s local store does the publishing (temporary file, fsync, then hard link for
//! create-if-absent or rename for overwrite, then fsync of the folder). This wrapper adds what a
//! database needs beyond that: parent folders made durable before first use whoever made them,
//! put-if-match for the checkpoint engine's collector, syncing reads for outcome resolution, and
//! collection of temporary files that a crash left behind.
//!
//! # Invariants
//! - When a put returns, file, folder and all parent folders up to the root are on disk.
//! - A read marked [`DurableRead`] returns only what is on disk: after a put whose fsync failed, the
//!   object may be visible without being durable.
//! - Temporary (`name#1`) and lock files (`name#0`) never show up in listings.
//!
//! # Limits
//! All writers must be on one machine (hard links and locks of network file systems are not
//! trusted). A reader may see an object a moment before the power-loss-proof instant.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, UpdateVersion,
};
use parking_lot::Mutex;
use telesto_common::Env;

/// Put into `GetOptions::extensions`: sync the object and its folder before reading it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DurableRead;

/// Age after which a temporary file belongs to nobody.
const TEMPORARY_AGE: Duration = Duration::from_secs(3600);

/// A local folder as an object store.
#[derive(Clone, Debug)]
pub(crate) struct LocalStore {
    inner: LocalFileSystem,
    root: PathBuf,
    env: Env,
    /// Folders known to be on disk, with all their parents up to the root.
    durable: Arc<Mutex<BTreeSet<PathBuf>>>,
}

fn failed(source: io::Error, path: &FilePath) -> Error {
    let text = format!("{}: {source}", path.display());
    Error::Generic { store: "file", source: Box::new(io::Error::new(source.kind(), text)) }
}

fn sync_folder(path: &FilePath) -> Result<()> {
    File::open(path).and_then(|folder| folder.sync_all()).map_err(|error| failed(error, path))
}

/// Makes `folder` and its missing parents, each durable.
fn create_durably(folder: &FilePath) -> Result<()> {
    let mut missing = Vec::new();
    let mut at = folder;
    while !at.exists() {
        missing.push(at);
        match at.parent() {
            Some(parent) => at = parent,
            None => break,
        }
    }
    std::fs::create_dir_all(folder).map_err(|error| failed(error, folder))?;
    for made in missing.iter().rev() {
        if let Some(parent) = made.parent() {
            sync_folder(parent)?;
        }
    }
    Ok(())
}

impl LocalStore {
    /// Opens `root`, making it when it is missing.
    pub(crate) fn open(root: &FilePath, env: Env) -> Result<Self> {
        create_durably(root)?;
        let root = root.canonicalize().map_err(|error| failed(error, root))?;
        let inner = LocalFileSystem::new_with_prefix(&root)?.with_fsync(true);
        Ok(Self { inner, root, env, durable: Arc::default() })
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self.env.blocking("bucket folder", work).await {
            Ok(result) => result,
            Err(error) => Err(Error::Generic { store: "file", source: Box::new(error) }),
        }
    }

    /// Makes the folder of `location` durable, whoever created it: another process may have made
    /// it without having synced its parent yet.
    async fn ensure_folder(&self, location: &Path) -> Result<()> {
        let path = self.inner.path_to_filesystem(location)?;
        let Some(folder) = path.parent().map(FilePath::to_path_buf) else { return Ok(()) };
        if self.durable.lock().contains(&folder) && folder.is_dir() {
            return Ok(());
        }
        let (root, durable) = (self.root.clone(), Arc::clone(&self.durable));
        self.blocking(move || {
            std::fs::create_dir_all(&folder).map_err(|error| failed(error, &folder))?;
            let mut at = folder.as_path();
            while at != root && at.starts_with(&root) {
                let Some(parent) = at.parent() else { break };
                sync_folder(parent)?;
                durable.lock().insert(at.to_path_buf());
                at = parent;
            }
            durable.lock().insert(folder);
            Ok(())
        })
        .await
    }

    /// Put-if-match: under an exclusive lock of the machine, compare and replace. Overwrites and
    /// creates of the same key do not take the lock: a key is either updated conditionally or not.
    async fn update(
        &self,
        location: &Path,
        payload: PutPayload,
        version: UpdateVersion,
    ) -> Result<PutResult> {
        let mut lock_path = self.inner.path_to_filesystem(location)?.into_os_string();
        lock_path.push("#0");
        let lock_path = PathBuf::from(lock_path);
        let lock = self
            .blocking(move || {
                let open = || {
                    let file = File::options()
                        .create(true)
                        .truncate(false)
                        .write(true)
                        .open(&lock_path)?;
                    file.lock()?;
                    Ok(file)
                };
                open().map_err(|error| failed(error, &lock_path))
            })
            .await?;
        let current = self.inner.head(location).await.map(|meta| meta.e_tag);
        let matches = match current {
            Ok(tag) => tag == version.e_tag,
            Err(Error::NotFound { .. }) => false,
            Err(error) => return Err(error),
        };
        if !matches {
            return Err(Error::Precondition {
                path: location.to_string(),
                source: "the object has another tag".into(),
            });
        }
        let result = self.inner.put_opts(location, payload, PutMode::Overwrite.into()).await;
        // Held until the object was replaced.
        drop(lock);
        result
    }

    /// Deletes temporary files older than [`TEMPORARY_AGE`]; returns how many.
    pub(crate) async fn collect_temporary(&self) -> Result<usize> {
        let root = self.root.clone();
        let now = Duration::from_micros(self.env.clock.wall_micros());
        self.blocking(move || {
            let mut folders = vec![root];
            let mut collected = 0;
            while let Some(folder) = folders.pop() {
                // A folder or file that vanishes meanwhile is nobody's concern.
                let Ok(entries) = std::fs::read_dir(&folder) else { continue };
                for entry in entries.flatten() {
                    let Ok(meta) = entry.metadata() else { continue };
                    if meta.is_dir() {
                        folders.push(entry.path());
                        continue;
                    }
                    let age = meta
                        .modified()
                        .ok()
                        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
                        .map(|modified| now.saturating_sub(modified));
                    let old = age.is_some_and(|age| age > TEMPORARY_AGE);
                    if old
                        && is_temporary(&entry.file_name().to_string_lossy())
                        && std::fs::remove_file(entry.path()).is_ok()
                    {
                        collected += 1;
                    }
                }
            }
            Ok(collected)
        })
        .await
    }
}

/// Whether a file name is that of an upload under way (`name#7`); `name#0` is a lock file.
fn is_temporary(name: &str) -> bool {
    match name.split_once('#') {
        Some((_, number)) => {
            number != "0" && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit())
        }
        None => false,
    }
}

impl fmt::Display for LocalStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for LocalStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.ensure_folder(location).await?;
        match opts.mode {
            PutMode::Update(version) if opts.attributes.is_empty() => {
                self.update(location, payload, version).await
            }
            PutMode::Update(_) => Err(Error::NotImplemented {
                operation: "attributes on local files".into(),
                implementer: self.to_string(),
            }),
            _ => self.inner.put_opts(location, payload, opts).await,
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.ensure_folder(location).await?;
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.extensions.get::<DurableRead>().is_some() {
            let path = self.inner.path_to_filesystem(location)?;
            self.blocking(move || match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(failed(error, &path)),
                Ok(file) => {
                    file.sync_all().map_err(|error| failed(error, &path))?;
                    path.parent().map_or(Ok(()), sync_folder)
                }
            })
            .await?;
        }
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.ensure_folder(to).await?;
        self.inner.copy_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::TryStreamExt as _;

    #[tokio::test]
    async fn update_replaces_only_the_version_it_names() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = LocalStore::open(folder.path(), telesto_runtime::env()).expect("opens");
        let key = Path::from("a/b");
        let missing = UpdateVersion { e_tag: Some("x".into()), version: None };
        let update = |tag: UpdateVersion, body: &'static str| {
            store.put_opts(&key, body.into(), PutMode::Update(tag).into())
        };
        assert!(matches!(update(missing, "0").await, Err(Error::Precondition { .. })));
        let first = store.put(&key, "1".into()).await.expect("put");
        let second = update(first.clone().into(), "2").await.expect("matches");
        assert!(matches!(update(first.into(), "3").await, Err(Error::Precondition { .. })));
        update(second.into(), "4").await.expect("matches");
        let body = store.get(&key).await.expect("get").bytes().await.expect("body");
        assert_eq!(&body[..], b"4");
        let listed: Vec<_> = store.list(None).try_collect().await.expect("list");
        assert_eq!(listed.len(), 1, "lock files are not listed: {listed:?}");
    }

    #[tokio::test]
    async fn collection_removes_old_temporary_files_only() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = LocalStore::open(folder.path(), telesto_runtime::env()).expect("opens");
        store.put(&Path::from("d/object"), "x".into()).await.expect("put");
        for (name, old) in [("object#1", true), ("object#2", false), ("lock#0", true)] {
            let file = File::create(folder.path().join("d").join(name)).expect("create");
            if old {
                file.set_modified(UNIX_EPOCH).expect("set time");
            }
        }
        let listed: Vec<_> = store.list(None).try_collect().await.expect("list");
        assert_eq!(listed.len(), 1);
        assert_eq!(store.collect_temporary().await.expect("collects"), 1);
        assert!(!folder.path().join("d/object#1").exists());
        assert!(folder.path().join("d/object#2").exists());
        assert!(folder.path().join("d/lock#0").exists());
    }
}
