//! A simulated local disk for tests and the simulation: it can crash, tear, fill up, hang, lie
//! about what it synced and be put back to an older state.
//!
//! ```text
//! limit_space   every write takes from what is left; then DiskFault::Full
//! fail_next_sync   the bytes are in the page cache, the platter has what was there before, and the
//!                  pages are taken for clean: no later sync writes them, only writing them again does
//! crash         the power goes: pages that only the cache had are gone, a write under way is torn
//! image, restore   the directory as it was; `restore` is what a backup or a machine's snapshot does
//! hang, resume  appends wait
//! takes         how long a write and its sync take
//! ```
//! A process that dies without the power going is a dropped handle: the page cache outlives it.
//!
//! # Invariants
//! - What an append acknowledged survives [`SimDisk::crash`]. An append under way is applied in
//!   part: each of its sectors is written, missing (zero) or torn at a byte, chosen by the crash's
//!   random numbers, and the file may end anywhere inside it.
//! - A tear leaves at least two bytes of a sector unwritten (hardware writes whole sectors; the log
//!   takes a sector that lacks its last byte only for damaged).
//! - A crash gives back every lock; handles made before it fail from then on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_cipher::Keys;
use telesto_common::env::{Clock, Random};
use tokio::sync::Notify;

use super::{Disk, DiskFile, DiskLock};
use crate::error::{DiskFault, Error, Result};

const SECTOR: usize = 512;
/// Files grow in steps of this, bytes.
const GROW: usize = 4096;
/// What the page cache writes to the platter at once, bytes.
const PAGE: usize = 4096;

/// A disk in memory.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    shared: Arc<Mutex<Shared>>,
    keys: Option<Arc<Keys>>,
}

/// The files of a disk as they were at some moment.
#[derive(Clone, Debug, Default)]
pub struct DiskImage {
    files: BTreeMap<String, Vec<u8>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// As the page cache has them.
    files: BTreeMap<String, Vec<u8>>,
    /// Pages that differ on the platter although the cache takes them for clean: path and number,
    /// and what the platter has.
    lying: BTreeMap<(String, usize), Vec<u8>>,
    /// The next append reaches the cache only.
    fail_sync: bool,
    /// How long an append takes.
    takes: Option<(Arc<dyn Clock>, Duration)>,
    locks: BTreeMap<String, u64>,
    /// Counts crashes; handles of an earlier life fail.
    life: u64,
    next_lock: u64,
    /// Appends after this many more fail with their bytes half written, as when the power goes.
    appends_left: Option<u64>,
    /// The append that failed so: path, offset, bytes.
    under_way: Option<(String, u64, Bytes)>,
    /// The next append writes half of its bytes and fails; later ones succeed.
    tear_next: bool,
    /// Bytes that still fit.
    space_bytes: Option<u64>,
    /// Appends wait, as on a device that no longer answers.
    hangs: bool,
    answers: Arc<Notify>,
}

impl Shared {
    /// The pages that `[start, end)` of `path` touches are on the platter as the cache has them.
    fn written_through(&mut self, path: &str, start: usize, end: usize) {
        for page in start / PAGE..end.div_ceil(PAGE) {
            self.lying.remove(&(path.to_owned(), page));
        }
    }

    /// The pages that `[start, end)` of `path` is about to touch stay on the platter as they are.
    fn kept_from_platter(&mut self, path: &str, start: usize, end: usize) {
        let file = self.files.get(path).map_or(&[][..], Vec::as_slice);
        for page in start / PAGE..end.div_ceil(PAGE) {
            let from = (page * PAGE).min(file.len());
            let mut platter = file[from..file.len().min(from + PAGE)].to_vec();
            platter.resize(PAGE, 0);
            self.lying.entry((path.to_owned(), page)).or_insert(platter);
        }
    }

    /// The page cache is gone.
    fn forget_cache(&mut self) {
        for ((path, page), platter) in std::mem::take(&mut self.lying) {
            let Some(file) = self.files.get_mut(&path) else { continue };
            let from = (page * PAGE).min(file.len());
            let to = file.len().min(from + PAGE);
            file[from..to].copy_from_slice(&platter[..to - from]);
        }
    }
}

fn fault(path: &str, fault: DiskFault, reason: &str) -> Error {
    Error::LocalDisk { path: path.to_owned(), fault, reason: reason.to_owned() }
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// An empty disk on which everything is encrypted.
    #[must_use]
    pub fn encrypted(keys: Arc<Keys>) -> Arc<Self> {
        Arc::new(Self { keys: Some(keys), ..Self::default() })
    }

    /// After `appends` more appends, the next one fails and stays unfinished until the crash.
    pub fn fail_after(&self, appends: u64) {
        self.shared.lock().appends_left = Some(appends);
    }

    /// The next append writes half of its bytes and fails; later ones succeed.
    pub fn tear_next(&self) {
        self.shared.lock().tear_next = true;
    }

    /// From now on only `bytes` more fit; `None` lifts the limit.
    pub fn limit_space(&self, bytes: Option<u64>) {
        self.shared.lock().space_bytes = bytes;
    }

    /// From now on appends wait until [`Self::resume`], or until whoever asked gives up.
    pub fn hang(&self) {
        self.shared.lock().hangs = true;
    }

    /// Ends [`Self::hang`]: what waited goes on.
    pub fn resume(&self) {
        let mut shared = self.shared.lock();
        shared.hangs = false;
        shared.answers.notify_waiters();
    }

    /// From now on an append takes so long.
    pub fn takes(&self, clock: &Arc<dyn Clock>, takes: Duration) {
        self.shared.lock().takes = Some((Arc::clone(clock), takes));
    }

    /// The next append fails to sync: its bytes stay in the page cache, marked clean, and only
    /// there.
    pub fn fail_next_sync(&self) {
        self.shared.lock().fail_sync = true;
    }

    /// The files as they are now.
    #[must_use]
    pub fn image(&self) -> DiskImage {
        DiskImage { files: self.shared.lock().files.clone() }
    }

    /// Puts the disk back to `image`. Frees the locks and makes old handles fail: the machine was
    /// off.
    pub fn restore(&self, image: &DiskImage) {
        let mut shared = self.shared.lock();
        shared.life += 1;
        shared.locks.clear();
        shared.lying.clear();
        shared.under_way = None;
        shared.files = image.files.clone();
    }

    /// The power goes: loses what was not acknowledged and what only the page cache had, frees the
    /// locks, makes old handles fail.
    pub fn crash(&self, random: &dyn Random) {
        let mut shared = self.shared.lock();
        shared.life += 1;
        shared.locks.clear();
        shared.appends_left = None;
        shared.forget_cache();
        if let Some((path, offset, bytes)) = shared.under_way.take() {
            let torn = tear(&bytes, random);
            if let Some(file) = shared.files.get_mut(&path) {
                file.truncate(usize::try_from(offset).unwrap_or(usize::MAX));
                file.extend_from_slice(&torn);
            }
        }
    }

    /// The bytes of a file, for tests that damage them.
    #[must_use]
    pub fn contents(&self, path: &str) -> Option<Vec<u8>> {
        self.shared.lock().files.get(path).cloned()
    }

    /// Replaces the bytes of a file, for tests that damage them.
    pub fn overwrite(&self, path: &str, bytes: Vec<u8>) {
        self.shared.lock().files.insert(path.to_owned(), bytes);
    }

    /// Every file's path.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        self.shared.lock().files.keys().cloned().collect()
    }
}

/// What may be left of an unacknowledged append.
fn tear(bytes: &[u8], random: &dyn Random) -> Vec<u8> {
    let mut left = vec![0; bytes.len()];
    for (from, to) in bytes.chunks(SECTOR).zip(left.chunks_mut(SECTOR)) {
        let written = match random.next_u64() % 3 {
            0 => 0,
            1 => from.len(),
            _ => (random.next_u64() as usize) % from.len().saturating_sub(1).max(1),
        };
        to[..written].copy_from_slice(&from[..written]);
    }
    if random.next_u64().is_multiple_of(2) {
        let mut end = (random.next_u64() as usize) % (left.len() + 1);
        if end % SECTOR == SECTOR - 1 {
            end -= 1;
        }
        left.truncate(end);
    }
    left
}

#[derive(Debug)]
struct SimLock {
    disk: SimDisk,
    name: String,
    id: u64,
}

impl DiskLock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        let mut shared = self.disk.shared.lock();
        if shared.locks.get(&self.name) == Some(&self.id) {
            shared.locks.remove(&self.name);
        }
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    path: String,
    life: u64,
}

impl SimFile {
    fn with<T>(&self, work: impl FnOnce(&mut Shared) -> Result<T>) -> Result<T> {
        let mut shared = self.disk.shared.lock();
        if shared.life != self.life {
            return Err(fault(&self.path, DiskFault::Io, "the machine crashed"));
        }
        work(&mut shared)
    }
}

#[async_trait]
impl Disk for SimDisk {
    fn location(&self) -> String {
        "simulated disk".into()
    }

    fn keys(&self) -> Option<&Arc<Keys>> {
        self.keys.as_ref()
    }

    async fn lock(&self, name: &str) -> Result<Box<dyn DiskLock>> {
        let mut shared = self.shared.lock();
        if shared.locks.contains_key(name) {
            return Err(fault(name, DiskFault::Locked, "in use by another simulated process"));
        }
        shared.next_lock += 1;
        let id = shared.next_lock;
        shared.locks.insert(name.to_owned(), id);
        Ok(Box::new(SimLock { disk: self.clone(), name: name.to_owned(), id }))
    }

    async fn list(&self, directory: &str) -> Result<Vec<String>> {
        let prefix = format!("{directory}/");
        let shared = self.shared.lock();
        let mut names: Vec<String> = shared
            .files
            .keys()
            .filter_map(|path| path.strip_prefix(&prefix))
            .filter_map(|rest| rest.split('/').next())
            .map(str::to_owned)
            .collect();
        names.dedup();
        Ok(names)
    }

    async fn create(&self, path: &str) -> Result<Arc<dyn DiskFile>> {
        let mut shared = self.shared.lock();
        if shared.space_bytes == Some(0) {
            return Err(fault(path, DiskFault::Full, "no space left"));
        }
        if shared.files.contains_key(path) {
            return Err(fault(path, DiskFault::Io, "it exists"));
        }
        shared.files.insert(path.to_owned(), Vec::new());
        let life = shared.life;
        Ok(Arc::new(SimFile { disk: self.clone(), path: path.to_owned(), life }))
    }

    async fn open(&self, path: &str) -> Result<Arc<dyn DiskFile>> {
        let shared = self.shared.lock();
        if !shared.files.contains_key(path) {
            return Err(fault(path, DiskFault::Missing, "no such file"));
        }
        let life = shared.life;
        Ok(Arc::new(SimFile { disk: self.clone(), path: path.to_owned(), life }))
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut shared = self.shared.lock();
        let Some(file) = shared.files.remove(from) else {
            return Err(fault(from, DiskFault::Missing, "no such file"));
        };
        shared.files.insert(to.to_owned(), file);
        shared.lying.retain(|(of, _), _| of != to);
        for ((of, page), platter) in std::mem::take(&mut shared.lying) {
            let of = if of == from { to.to_owned() } else { of };
            shared.lying.insert((of, page), platter);
        }
        Ok(())
    }

    async fn remove(&self, path: &str) -> Result<()> {
        let mut shared = self.shared.lock();
        shared.files.remove(path);
        shared.lying.retain(|(of, _), _| of != path);
        Ok(())
    }
}

#[async_trait]
impl DiskFile for SimFile {
    fn location(&self) -> String {
        self.path.clone()
    }

    async fn size_bytes(&self) -> Result<u64> {
        self.with(|s| Ok(s.files.get(&self.path).map_or(0, Vec::len) as u64))
    }

    async fn read(&self, offset: u64, length: usize) -> Result<Bytes> {
        self.with(|s| {
            let file = s.files.get(&self.path).map_or(&[][..], Vec::as_slice);
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(file.len());
            let end = start.saturating_add(length).min(file.len());
            Ok(Bytes::copy_from_slice(&file[start..end]))
        })
    }

    async fn append(&self, offset: u64, bytes: Bytes) -> Result<()> {
        let takes = self.with(|s| Ok(s.takes.clone()))?;
        if let Some((clock, takes)) = takes {
            clock.sleep(takes).await;
        }
        loop {
            let (hangs, answers) = self.with(|s| Ok((s.hangs, Arc::clone(&s.answers))))?;
            if !hangs {
                break;
            }
            let answered = answers.notified();
            if self.with(|s| Ok(s.hangs))? {
                answered.await;
            }
        }
        self.with(|s| {
            match &mut s.appends_left {
                Some(0) => {
                    s.under_way = Some((self.path.clone(), offset, bytes));
                    return Err(fault(&self.path, DiskFault::Io, "the disk went away"));
                }
                Some(left) => *left -= 1,
                None => {}
            }
            if let Some(space) = &mut s.space_bytes {
                if *space < bytes.len() as u64 {
                    return Err(fault(&self.path, DiskFault::Full, "no space left"));
                }
                *space -= bytes.len() as u64;
            }
            let torn = std::mem::take(&mut s.tear_next);
            let written = if torn { bytes.slice(..bytes.len() / 2) } else { bytes };
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let end = start + written.len();
            let lost = std::mem::take(&mut s.fail_sync);
            if lost {
                s.kept_from_platter(&self.path, start, end);
            } else {
                s.written_through(&self.path, start, end);
            }
            let file = s.files.entry(self.path.clone()).or_default();
            if file.len() < end {
                // As real files do, it grows ahead.
                file.resize(end.next_multiple_of(GROW), 0);
            }
            file[start..end].copy_from_slice(&written);
            if torn {
                return Err(fault(&self.path, DiskFault::Io, "the write failed half-way"));
            }
            if lost {
                return Err(fault(&self.path, DiskFault::Io, "the sync failed"));
            }
            Ok(())
        })
    }

    async fn rewrite(&self, offset: u64, bytes: Bytes) -> Result<()> {
        self.with(|s| {
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let end = start.saturating_add(bytes.len());
            let held = s.files.get(&self.path).and_then(|file| file.get(start..end));
            if held != Some(&bytes[..]) {
                return Err(fault(&self.path, DiskFault::Io, "other bytes are there"));
            }
            s.written_through(&self.path, start, end);
            Ok(())
        })
    }

    async fn truncate(&self, length: u64) -> Result<()> {
        self.with(|s| {
            let file = s.files.entry(self.path.clone()).or_default();
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            file.truncate(length);
            s.lying.retain(|(path, page), _| *path != self.path || page * PAGE < length);
            if s.under_way.as_ref().is_some_and(|(path, ..)| *path == self.path) {
                s.under_way = None;
            }
            Ok(())
        })
    }
}
