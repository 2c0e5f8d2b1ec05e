//! A real local directory.
//!
//! # Invariants
//! - Data is on disk (`fdatasync`) before `append` returns; a new name is on disk (its directory
//!   synced) before `create` returns.
//! - Files grow ahead of what is written, by zeros: a sync of bytes inside a file's length need not wait for the
//!   file system to record a new length (what PostgreSQL does with its write-ahead log).
//! - The lock is `flock`: it ends with the process, also by SIGKILL, and a copy of the file on
//!   another machine holds nobody back (the chain in the bucket does that).
//!
//! # On failure
//! [`Error::LocalDisk`] with the path, what the operating system said and what to do.
//!
//! # Limits
//! Not for network file systems whose `flock` is local to one machine.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::Env;

use super::{Disk, DiskFile, DiskLock};
use crate::error::{DiskFault, Error, Result};

/// How far a file is made to reach beyond a write that passes its end, bytes.
const GROW_BYTES: u64 = 1 << 20;

/// A directory of the local file system. All blocking work goes through `Env::blocking`.
#[derive(Clone, Debug)]
pub struct LocalDisk {
    root: PathBuf,
    env: Env,
    /// Locks taken through this value. A file keeps those alive for as long as work on it is under
    /// way, so that a write that nobody waits for any more still ends before the lock is free.
    locks: Arc<Mutex<Vec<Weak<File>>>>,
}

impl LocalDisk {
    /// The directory `root`, made when first written to.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, env: Env) -> Arc<Self> {
        Arc::new(Self { root: root.into(), env, locks: Arc::default() })
    }

    fn held(&self) -> Vec<Arc<File>> {
        self.locks.lock().iter().filter_map(Weak::upgrade).collect()
    }

    async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(PathBuf) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let root = self.root.clone();
        self.env.blocking(name, move || work(root)).await?
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    let fault = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DiskFault::Full,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => DiskFault::Permission,
        ErrorKind::NotFound => DiskFault::Missing,
        _ => DiskFault::Io,
    };
    Error::LocalDisk { path: path.display().to_string(), fault, reason: error.to_string() }
}

fn sync_directory(path: &Path) -> Result<()> {
    File::open(path).and_then(|d| d.sync_all()).map_err(|e| failed(path, &e))
}

/// Makes `directory` and its missing parents, each name durable.
fn make_directory(directory: &Path) -> Result<()> {
    if directory.is_dir() || directory.as_os_str().is_empty() {
        return Ok(());
    }
    let parent = directory.parent().unwrap_or(Path::new("."));
    make_directory(parent)?;
    match std::fs::create_dir(directory) {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(failed(directory, &e)),
        _ => {}
    }
    sync_directory(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

fn make_parent(path: &Path) -> Result<PathBuf> {
    let parent = path.parent().unwrap_or(Path::new(".")).to_owned();
    make_directory(&parent)?;
    Ok(parent)
}

#[async_trait]
impl Disk for LocalDisk {
    fn location(&self) -> String {
        std::path::absolute(&self.root).unwrap_or_else(|_| self.root.clone()).display().to_string()
    }

    async fn lock(&self, name: &str) -> Result<Box<dyn DiskLock>> {
        let name = name.to_owned();
        let locks = Arc::clone(&self.locks);
        self.run("locking the local log", move |root| {
            let path = root.join(name);
            make_parent(&path)?;
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .map_err(|e| failed(&path, &e))?;
            if rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
                .is_err()
            {
                let mut holder = String::new();
                // Only for the message; an unreadable holder is still a holder.
                let _ = (&file).take(100).read_to_string(&mut holder);
                return Err(Error::LocalDisk {
                    path: path.display().to_string(),
                    fault: DiskFault::Locked,
                    reason: format!("in use by process {}", holder.trim()),
                });
            }
            // For the message of whoever comes next; the lock itself does not depend on it.
            let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
            let file = Arc::new(file);
            let mut locks = locks.lock();
            locks.retain(|l| l.strong_count() > 0);
            locks.push(Arc::downgrade(&file));
            Ok(Box::new(LocalLock { _file: file }) as Box<dyn DiskLock>)
        })
        .await
    }

    async fn list(&self, directory: &str) -> Result<Vec<String>> {
        let directory = directory.to_owned();
        self.run("listing the local log", move |root| {
            let path = root.join(directory);
            let entries = match std::fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                Err(e) => return Err(failed(&path, &e)),
            };
            let mut names = Vec::new();
            for entry in entries {
                let entry = entry.map_err(|e| failed(&path, &e))?;
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
            names.sort();
            Ok(names)
        })
        .await
    }

    async fn create(&self, path: &str) -> Result<Arc<dyn DiskFile>> {
        let (path, env, held) = (path.to_owned(), self.env.clone(), self.held());
        self.run("creating a local log file", move |root| {
            let path = root.join(path);
            let parent = make_parent(&path)?;
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path)
                .map_err(|e| failed(&path, &e))?;
            sync_directory(&parent)?;
            Ok(LocalFile::shared(file, 0, path, env, held))
        })
        .await
    }

    async fn open(&self, path: &str) -> Result<Arc<dyn DiskFile>> {
        let (path, env, held) = (path.to_owned(), self.env.clone(), self.held());
        self.run("opening a local log file", move |root| {
            let path = root.join(path);
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(|e| failed(&path, &e))?;
            let length = file.metadata().map_err(|e| failed(&path, &e))?.len();
            Ok(LocalFile::shared(file, length, path, env, held))
        })
        .await
    }

    async fn remove(&self, path: &str) -> Result<()> {
        let path = path.to_owned();
        self.run("removing a local log file", move |root| {
            let path = root.join(path);
            let removed = if path.is_dir() {
                std::fs::remove_dir(&path)
            } else {
                std::fs::remove_file(&path)
            };
            match removed {
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
                Err(e) => Err(failed(&path, &e)),
                Ok(()) => sync_directory(path.parent().unwrap_or(Path::new("."))),
            }
        })
        .await
    }
}

#[derive(Debug)]
struct LocalLock {
    _file: Arc<File>,
}

impl DiskLock for LocalLock {}

#[derive(Debug)]
struct LocalFile {
    opened: Arc<Opened>,
    path: PathBuf,
    env: Env,
}

#[derive(Debug)]
struct Opened {
    file: File,
    /// Counts cuts. An append that nobody waits for any more may still be queued; it must not write
    /// after the file was cut below it, so it does nothing when the count has changed.
    cuts: AtomicU64,
    /// Held while the file is changed; its length.
    length: Mutex<u64>,
    _locks: Vec<Arc<File>>,
}

impl LocalFile {
    fn shared(
        file: File,
        length: u64,
        path: PathBuf,
        env: Env,
        locks: Vec<Arc<File>>,
    ) -> Arc<dyn DiskFile> {
        let cuts = AtomicU64::new(0);
        let opened = Opened { file, cuts, length: Mutex::new(length), _locks: locks };
        Arc::new(Self { opened: Arc::new(opened), path, env })
    }

    async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&Opened) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let opened = Arc::clone(&self.opened);
        let done = self.env.blocking(name, move || work(&opened)).await?;
        done.map_err(|e| failed(&self.path, &e))
    }
}

#[async_trait]
impl DiskFile for LocalFile {
    fn location(&self) -> String {
        self.path.display().to_string()
    }

    async fn size_bytes(&self) -> Result<u64> {
        self.run("reading a local log file", |o| Ok(o.file.metadata()?.len())).await
    }

    async fn read(&self, offset: u64, length: usize) -> Result<Bytes> {
        self.run("reading a local log file", move |o| {
            let left = o.file.metadata()?.len().saturating_sub(offset);
            let mut buffer = vec![0; length.min(usize::try_from(left).unwrap_or(usize::MAX))];
            let mut filled = 0;
            while filled < buffer.len() {
                match o.file.read_at(&mut buffer[filled..], offset + filled as u64) {
                    Ok(0) => break,
                    Ok(n) => filled += n,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            buffer.truncate(filled);
            Ok(Bytes::from(buffer))
        })
        .await
    }

    async fn append(&self, offset: u64, bytes: Bytes) -> Result<()> {
        let cuts = self.opened.cuts.load(Ordering::SeqCst);
        self.run("writing the local log", move |o| {
            let mut length = o.length.lock();
            if o.cuts.load(Ordering::SeqCst) != cuts {
                return Err(std::io::Error::other("the file was cut meanwhile"));
            }
            let end = offset + bytes.len() as u64;
            if end > *length {
                let zeros = vec![0; usize::try_from(GROW_BYTES).unwrap_or(0)];
                o.file.write_all_at(&bytes, offset)?;
                // Space that is not there is no failure of this write.
                let grown = o.file.write_at(&zeros, end).unwrap_or(0);
                *length = end + grown as u64;
            } else {
                o.file.write_all_at(&bytes, offset)?;
            }
            o.file.sync_data()
        })
        .await
    }

    async fn rewrite(&self, offset: u64, bytes: Bytes) -> Result<()> {
        self.run("writing the local log again", move |o| {
            let _length = o.length.lock();
            o.file.write_all_at(&bytes, offset)?;
            o.file.sync_data()
        })
        .await
    }

    async fn truncate(&self, length: u64) -> Result<()> {
        self.run("cutting a local log file", move |o| {
            let mut known = o.length.lock();
            o.cuts.fetch_add(1, Ordering::SeqCst);
            o.file.set_len(length)?;
            *known = length;
            o.file.sync_all()
        })
        .await
    }
}
