//! A real local directory.
//!
//! # Invariants
//! - Data is on disk (`fdatasync`) before `append` returns; a new name is on disk (its directory
//!   synced) before `create` returns.
//! - Files grow ahead of what is written, by zeros: a sync of bytes inside a file's length need not
//!   wait for the file system to record a new length (what PostgreSQL does with its write-ahead
//!   log).
//! - The lock is `flock`: it ends with the process, also by SIGKILL, and a copy of the file on
//!   another machine holds nobody back (the chain in the bucket does that).
//!
//! - A directory that is there already may have been made a moment ago by a process that did not
//!   live to sync its parent: every directory on the way is synced once, whoever made it.
//! - Work on one file that changes it is done one by one, also when nobody waits for it any more: a
//!   late append never writes into a file that was cut meanwhile.
//!
//! # On failure
//! [`Error::LocalDisk`] with the path, what the operating system said and what to do. A disk that
//! does not answer is such a failure after [`TIMEOUT`]; what was asked of it may still happen.
//! Calls that wait for it hold a thread each, [`PARALLEL`] at most; the others wait without one.
//!
//! An append in place is the exception: it lasts until the disk answers. It is made where that
//! holds up one task only, which has nothing else to do, and on a disk that has lately answered
//! within [`QUICK`]; whoever waits for that task has a bound of its own.
//!
//! # Limits
//! Not for network file systems whose `flock` is local to one machine.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_cipher::Keys;
use telesto_common::Env;
use telesto_common::env::Clock;
use tokio::sync::Semaphore;

use super::{Disk, DiskFile, DiskLock};
use crate::error::{DiskFault, Error, Result};

/// How far a file is made to reach beyond a write that passes its end, bytes.
const GROW_BYTES: u64 = 1 << 20;

/// How long one call waits for the disk.
const TIMEOUT: Duration = Duration::from_secs(30);

/// An append that takes longer than this, smoothed, goes to another thread: beside that, the way
/// there and back is nothing.
const QUICK: Duration = Duration::from_millis(2);

/// Calls that may be with the disk at once.
const PARALLEL: usize = 64;

/// A directory of the local file system. All blocking work goes through `Env::blocking`.
#[derive(Clone, Debug)]
pub struct LocalDisk {
    root: PathBuf,
    env: Env,
    /// Locks taken through this value. A file keeps those alive for as long as work on it is under
    /// way, so that a write that nobody waits for any more still ends before the lock is free.
    locks: Arc<Mutex<Vec<Weak<File>>>>,
    /// Directories known to be on disk, with all their parents.
    durable: Arc<Mutex<BTreeSet<PathBuf>>>,
    calls: Arc<Semaphore>,
    /// Of an encrypted database.
    keys: Option<Arc<Keys>>,
}

impl LocalDisk {
    /// The directory `root`, made when first written to.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, env: Env) -> Arc<Self> {
        Self::encrypted(root, env, None)
    }

    /// As [`Self::new`]; what is written is encrypted with `keys`, if there are any.
    #[must_use]
    pub fn encrypted(root: impl Into<PathBuf>, env: Env, keys: Option<Arc<Keys>>) -> Arc<Self> {
        let calls = Arc::new(Semaphore::new(PARALLEL));
        Arc::new(Self {
            root: root.into(),
            env,
            locks: Arc::default(),
            durable: Arc::default(),
            calls,
            keys,
        })
    }

    fn shared(&self) -> SharedParts {
        SharedParts {
            env: self.env.clone(),
            calls: Arc::clone(&self.calls),
            locks: self.locks.lock().iter().filter_map(Weak::upgrade).collect(),
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(PathBuf) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let root = self.root.clone();
        asked(&self.env, &self.calls, &self.root, name, move || work(root)).await?
    }
}

/// Runs blocking `work` on the disk, for as long as a call may last.
async fn asked<T: Send + 'static>(
    env: &Env,
    calls: &Arc<Semaphore>,
    path: &Path,
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let answer = env.within_timeout(TIMEOUT, name, async {
        let call = Arc::clone(calls).acquire_owned().await;
        env.blocking(name, move || {
            let done = work();
            drop(call);
            done
        })
        .await
    });
    match answer.await {
        Ok(done) => Ok(done?),
        Err(_) => Err(silent(path, name)),
    }
}

/// The disk did not answer.
fn silent(path: &Path, name: &str) -> Error {
    Error::LocalDisk {
        path: path.display().to_string(),
        fault: DiskFault::Io,
        reason: format!("{name}: the disk did not answer for {} seconds", TIMEOUT.as_secs()),
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

/// Makes `directory` and its missing parents, each name durable, whoever made it. `root` is the
/// directory of the log, `durable` what is on disk already.
fn make_directory(directory: &Path, root: &Path, durable: &Mutex<BTreeSet<PathBuf>>) -> Result<()> {
    let said = |e: std::io::Error| failed(directory, &e);
    let absolute = std::path::absolute(directory).map_err(said)?;
    let root = std::path::absolute(root).map_err(said)?;
    if durable.lock().contains(&absolute) && absolute.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(&absolute).map_err(said)?;
    let mut synced = Vec::new();
    for at in absolute.ancestors() {
        if at != absolute && durable.lock().contains(at) {
            break;
        }
        let Some(parent) = at.parent() else { break };
        match sync_directory(parent) {
            Ok(()) => {}
            // A parent that this user may not even read was not made by a process of this user's.
            Err(Error::LocalDisk { fault: DiskFault::Permission, .. })
                if !at.starts_with(&root) =>
            {
                break;
            }
            Err(error) => return Err(error),
        }
        synced.push(at.to_owned());
    }
    // Only now is the whole way on disk.
    durable.lock().extend(synced);
    Ok(())
}

fn make_parent(path: &Path, root: &Path, durable: &Mutex<BTreeSet<PathBuf>>) -> Result<PathBuf> {
    let parent = path.parent().unwrap_or(Path::new(".")).to_owned();
    make_directory(&parent, root, durable)?;
    Ok(parent)
}

#[async_trait]
impl Disk for LocalDisk {
    fn location(&self) -> String {
        std::path::absolute(&self.root).unwrap_or_else(|_| self.root.clone()).display().to_string()
    }

    fn keys(&self) -> Option<&Arc<Keys>> {
        self.keys.as_ref()
    }

    async fn lock(&self, name: &str) -> Result<Box<dyn DiskLock>> {
        let name = name.to_owned();
        let (locks, durable) = (Arc::clone(&self.locks), Arc::clone(&self.durable));
        self.run("locking the local log", move |root| {
            let path = root.join(name);
            make_parent(&path, &root, &durable)?;
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
        let (path, shared) = (path.to_owned(), self.shared());
        let durable = Arc::clone(&self.durable);
        self.run("creating a local log file", move |root| {
            let path = root.join(path);
            let parent = make_parent(&path, &root, &durable)?;
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path)
                .map_err(|e| failed(&path, &e))?;
            sync_directory(&parent)?;
            Ok(shared.file(file, 0, path))
        })
        .await
    }

    async fn open(&self, path: &str) -> Result<Arc<dyn DiskFile>> {
        let (path, shared) = (path.to_owned(), self.shared());
        let durable = Arc::clone(&self.durable);
        self.run("opening a local log file", move |root| {
            let path = root.join(path);
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(|e| failed(&path, &e))?;
            let length = file.metadata().map_err(|e| failed(&path, &e))?.len();
            // Whoever made it may not have lived to make its name durable.
            sync_directory(&make_parent(&path, &root, &durable)?)?;
            Ok(shared.file(file, length, path))
        })
        .await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.run("renaming a local log file", move |root| {
            let to = root.join(to);
            std::fs::rename(root.join(from), &to).map_err(|e| failed(&to, &e))?;
            sync_directory(to.parent().unwrap_or(Path::new(".")))
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
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(failed(&path, &e)),
                // Gone already, by a removal that was perhaps never synced.
                _ => {}
            }
            match sync_directory(path.parent().unwrap_or(Path::new("."))) {
                Err(Error::LocalDisk { fault: DiskFault::Missing, .. }) => Ok(()),
                synced => synced,
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

/// What the files of a disk share with it.
#[derive(Debug)]
struct SharedParts {
    env: Env,
    calls: Arc<Semaphore>,
    locks: Vec<Arc<File>>,
}

impl SharedParts {
    fn file(self, file: File, length: u64, path: PathBuf) -> Arc<dyn DiskFile> {
        let took = AtomicU64::new(0);
        let opened = Arc::new(Opened { file, took, _locks: self.locks });
        let length = Arc::new(tokio::sync::Mutex::new(length));
        Arc::new(LocalFile { opened, length, path, env: self.env, calls: self.calls })
    }
}

#[derive(Debug)]
struct LocalFile {
    opened: Arc<Opened>,
    /// The file's length. Held while the file is changed, by the work itself: a change that nobody
    /// waits for any more still ends before the next one starts. Whoever waits for it holds no
    /// thread.
    length: Arc<tokio::sync::Mutex<u64>>,
    path: PathBuf,
    env: Env,
    calls: Arc<Semaphore>,
}

#[derive(Debug)]
struct Opened {
    file: File,
    /// Smoothed duration of an append, microseconds.
    took: AtomicU64,
    _locks: Vec<Arc<File>>,
}

impl Opened {
    /// Whether handing an append to another thread would take long, beside the append.
    fn is_quick(&self) -> bool {
        Duration::from_micros(self.took.load(Ordering::Relaxed)) < QUICK
    }

    /// Writes `bytes` at `offset` and makes them durable; `length` is that of the file.
    fn append(
        &self,
        clock: &dyn Clock,
        offset: u64,
        bytes: &[u8],
        length: &mut u64,
    ) -> std::io::Result<()> {
        let began = clock.monotonic();
        let end = offset + bytes.len() as u64;
        self.file.write_all_at(bytes, offset)?;
        if end > *length {
            let zeros = vec![0; usize::try_from(GROW_BYTES).unwrap_or(0)];
            // Space that is not there is no failure of this write.
            let grown = self.file.write_at(&zeros, end).unwrap_or(0);
            *length = end + grown as u64;
        }
        synced();
        self.file.sync_data()?;
        let took = clock.monotonic().saturating_sub(began);
        stage("disk", took);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX / 8);
        let smoothed =
            self.took.load(Ordering::Relaxed).saturating_mul(7).saturating_add(micros) / 8;
        self.took.store(smoothed, Ordering::Relaxed);
        Ok(())
    }
}

impl LocalFile {
    async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(&Opened) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let opened = Arc::clone(&self.opened);
        let done = asked(&self.env, &self.calls, &self.path, name, move || work(&opened)).await?;
        done.map_err(|e| failed(&self.path, &e))
    }

    /// Runs `work`, which changes the file and is given its length to keep, after whatever changes
    /// it now.
    async fn change(
        &self,
        name: &'static str,
        work: impl FnOnce(&Opened, &mut u64) -> std::io::Result<()> + Send + 'static,
    ) -> Result<()> {
        let lock = Arc::clone(&self.length).lock_owned();
        let Ok(mut length) = self.env.within_timeout(TIMEOUT, name, lock).await else {
            return Err(silent(&self.path, name));
        };
        self.run(name, move |opened| work(opened, &mut length)).await
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
        let clock = Arc::clone(&self.env.clock);
        let handed = clock.monotonic();
        let synced_at = Arc::new(Mutex::new(handed));
        let done_at = Arc::clone(&synced_at);
        self.change("writing the local log", move |o, length| {
            stage("disk_thread", clock.monotonic().saturating_sub(handed));
            o.append(&*clock, offset, &bytes, length)?;
            *done_at.lock() = clock.monotonic();
            Ok(())
        })
        .await?;
        stage("disk_heard", self.env.clock.monotonic().saturating_sub(*synced_at.lock()));
        Ok(())
    }

    async fn append_in_place(&self, offset: u64, bytes: Bytes) -> Result<()> {
        let mut done = None;
        // Whoever changes the file now, or waits for the disk, is waited for without a thread.
        if self.opened.is_quick()
            && let Ok(_call) = self.calls.try_acquire()
            && let Ok(mut length) = self.length.try_lock()
        {
            self.env.tasks.block_in_place(&mut || {
                done = Some(self.opened.append(&*self.env.clock, offset, &bytes, &mut length));
            });
        }
        match done {
            Some(done) => done.map_err(|error| failed(&self.path, &error)),
            None => self.append(offset, bytes).await,
        }
    }

    async fn rewrite(&self, offset: u64, bytes: Bytes) -> Result<()> {
        self.change("writing the local log again", move |o, _| {
            o.file.write_all_at(&bytes, offset)?;
            synced();
            o.file.sync_data()
        })
        .await
    }

    async fn truncate(&self, length: u64) -> Result<()> {
        self.change("cutting a local log file", move |o, known| {
            o.file.set_len(length)?;
            *known = length;
            o.file.sync_all()
        })
        .await
    }
}

/// How long a stage of a write took: handed to a thread, written and synced, heard of by who asked
/// for it.
fn stage(stage: &'static str, took: Duration) {
    metrics::histogram!("telesto_commit_stage_seconds", "stage" => stage)
        .record(took.as_secs_f64());
}

/// Entries are about to be put on disk: what a commit waits for beside the network.
fn synced() {
    metrics::counter!("telesto_log_syncs_total").increment(1);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use futures::future::BoxFuture;
    use telesto_common::env::{Spawn, Task};

    use super::*;

    /// Blocking work that never comes to its turn, and time that passes at once.
    struct Hung {
        real: Env,
        kept: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
        asked: AtomicUsize,
    }

    impl std::fmt::Debug for Hung {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Hung")
        }
    }

    impl Spawn for Hung {
        fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Arc<dyn Task> {
            self.real.tasks.spawn(name, future)
        }
        fn spawn_blocking(&self, _: &'static str, work: Box<dyn FnOnce() + Send + 'static>) {
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.kept.lock().push(work);
        }
    }

    impl Clock for Hung {
        fn wall_micros(&self) -> u64 {
            self.real.clock.wall_micros()
        }
        fn monotonic(&self) -> Duration {
            self.real.clock.monotonic()
        }
        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            self.real.clock.sleep(Duration::from_millis(1))
        }
    }

    #[tokio::test]
    async fn disk_that_does_not_answer_ends_every_call_and_holds_a_bounded_number_of_threads() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let real = telesto_runtime::env();
        let before = LocalDisk::new(folder.path(), real.clone());
        before.create("1/a.log").await.expect("created");
        let hung = Arc::new(Hung { real: real.clone(), kept: Mutex::default(), asked: 0.into() });
        let mut env = real;
        env.tasks = Arc::clone(&hung) as Arc<dyn Spawn>;
        env.clock = Arc::clone(&hung) as Arc<dyn Clock>;
        let file = SharedParts {
            env: env.clone(),
            calls: Arc::new(Semaphore::new(PARALLEL)),
            locks: Vec::new(),
        };
        let opened = OpenOptions::new().read(true).write(true).open(folder.path().join("1/a.log"));
        let file = file.file(opened.expect("opens"), 0, folder.path().join("1/a.log"));
        let disk = LocalDisk::new(folder.path(), env);
        let silent = |error: Error| {
            assert!(matches!(error, Error::LocalDisk { fault: DiskFault::Io, .. }), "{error}");
            assert!(error.to_string().contains("did not answer"), "{error}");
        };
        for _ in 0..2 * PARALLEL {
            silent(disk.list("1").await.expect_err("no answer"));
            silent(disk.lock("1.lock").await.expect_err("no answer"));
            silent(file.read(0, 10).await.expect_err("no answer"));
        }
        assert!(hung.asked.load(Ordering::SeqCst) <= 2 * PARALLEL);
        for _ in 0..2 * PARALLEL {
            silent(disk.open("1/a.log").await.expect_err("no answer"));
            silent(disk.create("1/b.log").await.expect_err("no answer"));
            silent(disk.remove("1/a.log").await.expect_err("no answer"));
        }
        assert!(hung.asked.load(Ordering::SeqCst) <= 2 * PARALLEL);
    }

    #[tokio::test]
    async fn changes_of_a_file_on_a_disk_that_does_not_answer_hold_one_thread() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let real = telesto_runtime::env();
        let hung = Arc::new(Hung { real: real.clone(), kept: Mutex::default(), asked: 0.into() });
        let mut env = real;
        env.tasks = Arc::clone(&hung) as Arc<dyn Spawn>;
        env.clock = Arc::clone(&hung) as Arc<dyn Clock>;
        let (path, calls) = (folder.path().join("a"), Arc::new(Semaphore::new(PARALLEL)));
        let file = File::create_new(&path).expect("created");
        let file = SharedParts { env, calls, locks: Vec::new() }.file(file, 0, path.clone());
        for _ in 0..10 {
            assert!(file.append(0, Bytes::from_static(b"late")).await.is_err());
            assert!(file.truncate(0).await.is_err());
        }
        assert_eq!(hung.asked.load(Ordering::SeqCst), 1);
        // The disk answers again: the late write ends, and what comes after it is done after it.
        let kept = std::mem::take(&mut *hung.kept.lock());
        let cut = file.truncate(0);
        futures::pin_mut!(cut);
        assert!(futures::poll!(cut.as_mut()).is_pending());
        for work in kept {
            work();
        }
        assert!(std::fs::read(&path).expect("there").starts_with(b"late"));
        assert!(futures::poll!(cut.as_mut()).is_pending());
        for work in std::mem::take(&mut *hung.kept.lock()) {
            work();
        }
        cut.await.expect("cut");
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 0);
    }

    #[tokio::test]
    async fn directories_that_are_there_already_are_made_durable_with_their_parents() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let root = folder.path().join("made/by/another");
        std::fs::create_dir_all(root.join("1")).expect("made, and nothing synced");
        let disk = LocalDisk::new(&root, telesto_runtime::env());
        disk.create("1/a/b.log").await.expect("created");
        for made in root.join("1/a").ancestors().take(5) {
            assert!(disk.durable.lock().contains(made), "{}", made.display());
        }
        let disk = LocalDisk::new(&root, telesto_runtime::env());
        disk.open("1/a/b.log").await.expect("opened");
        assert!(disk.durable.lock().contains(&root.join("1/a")));
    }

    /// Where it is, and how often blocking work was done in place and handed to another thread.
    #[derive(Debug)]
    struct Counting {
        real: Env,
        in_place: AtomicUsize,
        handed: AtomicUsize,
    }

    impl Spawn for Counting {
        fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Arc<dyn Task> {
            self.real.tasks.spawn(name, future)
        }
        fn spawn_blocking(&self, name: &'static str, work: Box<dyn FnOnce() + Send + 'static>) {
            self.handed.fetch_add(1, Ordering::SeqCst);
            self.real.tasks.spawn_blocking(name, work);
        }
        fn block_in_place(&self, work: &mut dyn FnMut()) -> bool {
            self.in_place.fetch_add(1, Ordering::SeqCst);
            work();
            true
        }
    }

    #[tokio::test]
    async fn append_in_place_hands_a_slow_disk_to_another_thread() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut env = telesto_runtime::env();
        let real = env.clone();
        let counting = Arc::new(Counting { real, in_place: 0.into(), handed: 0.into() });
        env.tasks = Arc::clone(&counting) as Arc<dyn Spawn>;
        let (path, calls) = (folder.path().join("a"), Arc::new(Semaphore::new(PARALLEL)));
        let took = AtomicU64::new(0);
        let opened = File::options().read(true).write(true).create_new(true).open(&path);
        let opened = Arc::new(Opened { file: opened.expect("created"), took, _locks: Vec::new() });
        let length = Arc::new(tokio::sync::Mutex::new(0));
        let file =
            LocalFile { opened: Arc::clone(&opened), length, path: path.clone(), env, calls };
        let counted =
            || (counting.in_place.load(Ordering::SeqCst), counting.handed.load(Ordering::SeqCst));
        file.append_in_place(0, Bytes::from_static(b"one")).await.expect("written");
        assert_eq!(counted(), (1, 0));
        assert_eq!(*file.length.lock().await, 3 + GROW_BYTES);
        assert_eq!(std::fs::metadata(&path).expect("there").len(), 3 + GROW_BYTES);
        // It is not known yet to be slow, and somebody else changes the file.
        opened.took.store(0, Ordering::Relaxed);
        let changing = Arc::clone(&file.length).lock_owned().await;
        let mut waits = file.append_in_place(3, Bytes::from_static(b"two"));
        assert!(futures::poll!(waits.as_mut()).is_pending());
        drop(changing);
        waits.await.expect("written");
        assert_eq!(counted(), (1, 1));
        // Slower than any disk of this machine, however busy that is.
        let slow = u64::try_from(3600 * QUICK.as_micros().max(1_000_000)).expect("fits");
        opened.took.store(slow, Ordering::Relaxed);
        file.append_in_place(6, Bytes::from_static(b"six")).await.expect("written");
        assert_eq!(counted(), (1, 2));
        assert!(opened.took.load(Ordering::Relaxed) < slow, "it is never taken for quick again");
        assert!(std::fs::read(&path).expect("there").starts_with(b"onetwosix"));
        // An error is told as that of any append.
        opened.took.store(0, Ordering::Relaxed);
        let read_only = File::open(&path).expect("opens");
        let opened = Arc::new(Opened { file: read_only, took: 0.into(), _locks: Vec::new() });
        let file = LocalFile { opened, ..file };
        let error = file.append_in_place(9, Bytes::from_static(b"no")).await.expect_err("refused");
        assert!(matches!(error, Error::LocalDisk { .. }), "{error}");
        assert_eq!(counted(), (2, 2));
    }
}
