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
//! - A read marked [`DurableRead`] returns only what is on disk: after a put whose fsync failed,
//!   the object may be visible without being durable.
//! - Temporary (`name#1`) and lock files (`name#0`) never show up in listings.
//!
//! # Limits
//! All writers must be on one machine (hard links and locks of network file systems are not
//! trusted). A reader may see an object a moment before the power-loss-proof instant.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use futures::channel::oneshot;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, UpdateVersion,
};
use parking_lot::Mutex;
use telesto_common::Env;

use crate::listing;
use crate::outcome::{Failure, classify};

/// Put into `GetOptions::extensions`: sync the object and its folder before reading it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DurableRead;

/// Put into `PutOptions::extensions` of a conditional overwrite: of an object that nobody
/// overwrites, but others may delete. It is exchanged in one step, without a lock file, and what
/// was deleted meanwhile stays so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exchange;

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

/// Makes `folder` and its missing parents, each durable and its user's alone (mode 700): what is in
/// it is the whole database. A folder that is there already may have been made a moment ago by a
/// process that did not live to sync its parent, so the parents of all are synced, up to the root
/// of the file system. Gives the folders that are on disk now.
fn create_durably(folder: &FilePath) -> Result<BTreeSet<PathBuf>> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| failed(error, folder))?;
    let folder = folder.canonicalize().map_err(|error| failed(error, folder))?;
    let mut durable = BTreeSet::new();
    for at in folder.ancestors() {
        let Some(parent) = at.parent() else { break };
        match sync_folder(parent) {
            Ok(()) => {}
            // A parent that this user may not even read was not made by a process of this user's.
            Err(error) if classify(&error) == Failure::Stopped && at != folder => break,
            Err(error) => return Err(error),
        }
        durable.insert(at.to_path_buf());
    }
    Ok(durable)
}

impl LocalStore {
    /// Opens `root`, making it when it is missing.
    pub(crate) fn open(root: &FilePath, env: Env) -> Result<Self> {
        let durable = Arc::new(Mutex::new(create_durably(root)?));
        let root = root.canonicalize().map_err(|error| failed(error, root))?;
        let inner = LocalFileSystem::new_with_prefix(&root)?.with_fsync(true);
        Ok(Self { inner, root, env, durable })
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
    ///
    /// The work is a task of its own: a caller that gives up in the middle (a time-out) leaves it
    /// to hold the lock until the object was replaced or not, or another process could compare with
    /// the object that is just being replaced.
    async fn update(
        &self,
        location: &Path,
        payload: PutPayload,
        version: UpdateVersion,
    ) -> Result<PutResult> {
        let (done, result) = oneshot::channel();
        let (this, location) = (self.clone(), location.clone());
        self.env.spawn("conditional update in the bucket folder", async move {
            // The waiter may be gone; then nobody wants the result.
            let _ = done.send(this.update_locked(&location, payload, version).await);
        });
        match result.await {
            Ok(result) => result,
            Err(error) => Err(Error::Generic { store: "file", source: Box::new(error) }),
        }
    }

    async fn update_locked(
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

    /// Puts `payload` in the place of the object with the tag of `version`, by exchanging two names
    /// in one step.
    async fn exchange(
        &self,
        location: &Path,
        payload: PutPayload,
        version: UpdateVersion,
    ) -> Result<PutResult> {
        let path = self.inner.path_to_filesystem(location)?;
        let refused = |location: &Path| Error::Precondition {
            path: location.to_string(),
            source: "the object has another tag".into(),
        };
        // Which file has the tag: looked at before and after, so that both are of one file.
        let stood = match std::fs::metadata(&path) {
            Ok(meta) => Stood::of(&meta),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(refused(location)),
            Err(error) => return Err(failed(error, &path)),
        };
        if self.inner.head(location).await.map(|meta| meta.e_tag)? != version.e_tag {
            return Err(refused(location));
        }
        let (at, bytes) = (location.clone(), bytes::Bytes::from(payload));
        let exchanged = self
            .blocking(move || {
                let fault = |error: io::Error| failed(error, &path);
                let (temporary, mut file) = temporary_beside(&path).map_err(fault)?;
                let written = file.write_all(&bytes).and_then(|()| file.sync_all());
                let exchanged = written.and_then(|()| exchange_names(&temporary, &path, stood));
                // Either the object that was exchanged, or what was not needed.
                let removed = std::fs::remove_file(&temporary);
                let exchanged = exchanged.map_err(fault)?;
                removed.map_err(fault)?;
                path.parent().map_or(Ok(()), sync_folder)?;
                Ok(exchanged)
            })
            .await?;
        if !exchanged {
            return Err(refused(&at));
        }
        let e_tag = self.inner.head(&at).await.ok().and_then(|meta| meta.e_tag);
        Ok(PutResult { e_tag, version: None, extensions: Default::default() })
    }

    /// Every object under `prefix` with a key after `after`, in key order (see [`crate::listing`]).
    fn sorted(
        &self,
        prefix: Option<&Path>,
        after: Option<&Path>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned());
        let start = (after.cloned(), Some(listing::FIRST_PAGE));
        let pages = stream::try_unfold(start, move |(after, size)| {
            let (this, prefix) = (this.clone(), prefix.clone());
            async move {
                let Some(size) = size else { return Ok::<_, Error>(None) };
                let root = this.root.clone();
                let found = this
                    .blocking(move || {
                        listing::page(&root, prefix.as_ref(), after.as_ref(), size)
                            .map_err(|(path, error)| failed(error, &path))
                    })
                    .await?;
                let last = found.last().map(|meta| meta.location.clone());
                let more = (found.len() == size).then(|| listing::MAX_PAGE.min(2 * size));
                Ok(Some((stream::iter(found.into_iter().map(Ok)), (last, more))))
            }
        });
        pages.try_flatten().boxed()
    }

    /// Deletes one object. Its folder is not synced: a deletion that a power loss undoes is made
    /// again by whoever collects, and a sync for each is most of what collecting 10,000 objects
    /// costs.
    async fn remove(&self, location: Path) -> Result<Path> {
        let path = self.inner.path_to_filesystem(&location)?;
        self.blocking(move || match std::fs::remove_file(&path) {
            Ok(()) => Ok(location),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                Err(Error::NotFound { path: location.to_string(), source: source.into() })
            }
            Err(error) => Err(failed(error, &path)),
        })
        .await
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

/// A file, told from others of its name.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stood {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Stood {
    fn of(meta: &std::fs::Metadata) -> Self {
        Self { inode: meta.ino(), size: meta.len(), modified: (meta.mtime(), meta.mtime_nsec()) }
    }
}

/// A new file of a temporary name beside `path`.
fn temporary_beside(path: &FilePath) -> io::Result<(PathBuf, File)> {
    for number in 1_u32.. {
        let mut name = path.as_os_str().to_owned();
        name.push(format!("#{number}"));
        match File::options().write(true).create_new(true).open(&name) {
            Ok(file) => return Ok((name.into(), file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from(io::ErrorKind::AlreadyExists))
}

/// Exchanges the names of two files in one step, if the second is the one that stood there; whether
/// it was.
fn exchange_names(new: &FilePath, path: &FilePath, stood: Stood) -> io::Result<bool> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let exchange = || renameat_with(CWD, new, CWD, path, RenameFlags::EXCHANGE);
    match exchange() {
        Ok(()) => {}
        Err(rustix::io::Errno::NOENT) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    if Stood::of(&std::fs::metadata(new)?) == stood {
        return Ok(true);
    }
    exchange()?;
    Ok(false)
}

/// Whether a file name is that of an upload under way (`name#7`); `name#0` is a lock file.
fn is_temporary(name: &str) -> bool {
    listing::is_hidden(name) && !name.ends_with("#0")
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
            PutMode::Update(version)
                if opts.attributes.is_empty() && opts.extensions.get::<Exchange>().is_some() =>
            {
                self.exchange(location, payload, version).await
            }
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
        let this = self.clone();
        locations
            .then(move |location| {
                let this = this.clone();
                async move { this.remove(location?).await }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.sorted(prefix, None)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.sorted(prefix, Some(offset))
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
    async fn update_whose_caller_gives_up_keeps_its_lock_until_the_object_is_replaced() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = LocalStore::open(folder.path(), telesto_runtime::env()).expect("opens");
        let key = Path::from("a/b");
        let first = store.put(&key, "1".into()).await.expect("put");
        let large = vec![7_u8; 48 << 20];
        let (size, update) = (large.len() as u64, PutMode::Update(first.into()));
        let object = folder.path().join("a/b");
        {
            let updating = store.put_opts(&key, large.into(), update.into());
            futures::pin_mut!(updating);
            // Driven until the new object is being written, then given up.
            while !folder.path().join("a/b#1").exists() {
                assert!(futures::poll!(updating.as_mut()).is_pending(), "it ended unseen");
                std::thread::yield_now();
                let _ = telesto_runtime::env().blocking("a turn", || ()).await;
            }
        }
        let lock =
            File::options().write(true).open(folder.path().join("a/b#0")).expect("lock file");
        let replaced = || std::fs::metadata(&object).is_ok_and(|meta| meta.len() == size);
        while lock.try_lock().is_err() {
            let _ = telesto_runtime::env().blocking("a turn", || ()).await;
        }
        assert!(replaced(), "the lock was free while the object was still being replaced");
    }

    #[tokio::test]
    async fn bucket_that_is_made_here_is_its_users_alone_and_one_that_is_there_stays_as_it_is() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("directory");
        let mode =
            |path: &FilePath| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        let (made, there) = (folder.path().join("a/b"), folder.path().join("c"));
        std::fs::create_dir(&there).expect("made");
        std::fs::set_permissions(&there, std::fs::Permissions::from_mode(0o750)).expect("set");
        for root in [&made, &there] {
            LocalStore::open(root, telesto_runtime::env()).expect("opens");
        }
        assert_eq!(
            (mode(&folder.path().join("a")), mode(&made), mode(&there)),
            (0o700, 0o700, 0o750)
        );
    }

    #[tokio::test]
    async fn folder_that_is_there_already_is_made_durable_with_its_parents() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let root = folder.path().join("made/by/another");
        std::fs::create_dir_all(root.join("log")).expect("made, and nothing synced");
        let store = LocalStore::open(&root, telesto_runtime::env()).expect("opens");
        let root = root.canonicalize().expect("there");
        for made in root.ancestors().take(3) {
            assert!(store.durable.lock().contains(made), "{}", made.display());
        }
        store.put(&Path::from("log/1"), "x".into()).await.expect("put");
        assert!(store.durable.lock().contains(&root.join("log")));
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
