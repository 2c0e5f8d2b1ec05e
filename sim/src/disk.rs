//! A simulated local disk for log servers: it tears, fills up, fails its syncs and forgets.
//!
//! # Invariants
//! - What [`DiskFile::append`] acknowledged survives the death of a process and a power loss. An
//!   append under way leaves any subset of its 512-byte sectors behind, with zeros where a hole
//!   lies before a later sector.
//! - Every file has two sides: what reads see (the page cache) and what a power loss leaves (the
//!   platter). A sync carries the dirty pages over; one that *fails* marks them clean without
//!   carrying them over, as Linux does (Rebello et al., "Can applications recover from fsync
//!   failures?", 2020): later reads see them, later syncs succeed, and the power loss takes them.
//! - A death of a process alone loses nothing that reads had seen.
//!
//! # Limits
//! Names are durable at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::Env;
use telesto_log::disk::{Disk, DiskFile, DiskLock};
use telesto_log::{DiskFault, Error, Result};
use telesto_testkit::{Process, World};

const SECTOR: usize = 512;
const PAGE: usize = 4096;

/// A file: what reads see, what is on the platter, and which pages differ by writes not yet synced.
#[derive(Clone, Debug, Default)]
struct TwoSided {
    cache: Vec<u8>,
    platter: Vec<u8>,
    dirty: BTreeSet<usize>,
}

impl TwoSided {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.cache.len() < end {
            self.cache.resize(end, 0);
        }
        self.cache[offset..end].copy_from_slice(bytes);
        self.dirty.extend(offset / PAGE..end.div_ceil(PAGE));
    }

    /// One page reaches the platter.
    fn carry(&mut self, page: usize) {
        let start = (page * PAGE).min(self.cache.len());
        let end = (start + PAGE).min(self.cache.len());
        if self.platter.len() < end {
            self.platter.resize(end, 0);
        }
        self.platter[start..end].copy_from_slice(&self.cache[start..end]);
    }

    fn sync(&mut self) {
        for page in std::mem::take(&mut self.dirty) {
            self.carry(page);
        }
        // The length goes with it.
        self.platter.resize(self.cache.len(), 0);
    }
}

/// What the disk does to those who write to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ailment {
    /// No space or quota is left: creating fails, appending fails, half of the times with a part
    /// written.
    pub full: bool,
    /// Syncs fail.
    pub sync_fails: bool,
    /// Nothing is answered.
    pub hangs: bool,
}

/// What was in a local directory at some time.
#[derive(Clone, Debug)]
pub struct Backup(BTreeMap<String, TwoSided>);

/// The directories that hold files.
fn directories(files: &BTreeMap<String, TwoSided>) -> BTreeSet<&str> {
    files.keys().filter_map(|path| path.rsplit_once('/')).map(|(directory, _)| directory).collect()
}

#[derive(Debug, Default)]
struct Contents {
    files: BTreeMap<String, TwoSided>,
    ailment: Ailment,
    /// Appends not synced yet.
    pending: BTreeMap<u64, Pending>,
    next_pending: u64,
    /// Who holds a lock: by which grant, and in which process.
    locks: BTreeMap<String, (u64, Process)>,
}

#[derive(Debug)]
struct Pending {
    process: Process,
    path: String,
    offset: usize,
    bytes: Bytes,
}

/// A disk. It stays when the process that uses it dies.
#[derive(Clone, Debug)]
pub struct SimDisk {
    contents: Arc<Mutex<Contents>>,
    world: World,
}

impl SimDisk {
    /// An empty disk.
    #[must_use]
    pub fn new(world: World) -> Self {
        Self { contents: Arc::default(), world }
    }

    /// From now on the disk ails so.
    pub fn ail(&self, ailment: Ailment) {
        self.contents.lock().ailment = ailment;
    }

    /// A copy of everything, for [`Self::restore`].
    #[must_use]
    pub fn backup(&self) -> Backup {
        Backup(self.contents.lock().files.clone())
    }

    /// Whether every directory there is now, was there already when `backup` was made.
    #[must_use]
    pub fn is_as_wide_as(&self, backup: &Backup) -> bool {
        let contents = self.contents.lock();
        directories(&contents.files).is_subset(&directories(&backup.0))
    }

    /// Puts everything back to what it was. Call it when no process uses the disk.
    pub fn restore(&self, backup: &Backup) {
        self.contents.lock().files.clone_from(&backup.0);
    }

    /// The machine loses its power: what was written and not synced is there or not, page by page,
    /// and reads see the platter from now on. Call it when every process has died.
    pub fn power_loss(&self) {
        self.crash();
        let mut contents = self.contents.lock();
        for file in contents.files.values_mut() {
            for page in std::mem::take(&mut file.dirty) {
                if self.world.draw(2) == 0 {
                    file.carry(page);
                }
            }
            file.cache.clone_from(&file.platter);
        }
    }

    /// The disk as `process` uses it.
    #[must_use]
    pub fn mounted(&self, process: &Process) -> Mounted {
        Mounted { disk: self.clone(), process: process.clone() }
    }

    /// Tears the appends that dead processes had under way. Call it when a process has died.
    pub fn crash(&self) {
        let mut contents = self.contents.lock();
        let (dead, alive) = std::mem::take(&mut contents.pending)
            .into_iter()
            .partition(|(_, pending)| pending.process.is_dead());
        contents.pending = alive;
        let dead: BTreeMap<u64, Pending> = dead;
        for Pending { path, offset, bytes, .. } in dead.into_values() {
            let Some(file) = contents.files.get_mut(&path) else { continue };
            for (index, sector) in bytes.chunks(SECTOR).enumerate() {
                if self.world.draw(2) == 0 {
                    continue;
                }
                file.write(offset + index * SECTOR, sector);
            }
        }
    }
}

/// A disk as one process sees it.
#[derive(Clone, Debug)]
pub struct Mounted {
    disk: SimDisk,
    process: Process,
}

impl Mounted {
    fn env(&self) -> &Env {
        &self.process.env
    }

    fn missing(path: &str) -> Error {
        failed(path, DiskFault::Missing, "no such file on the simulated disk")
    }

    /// Resolves once the disk answers.
    async fn answering(&self) {
        while self.disk.contents.lock().ailment.hangs {
            self.env().clock.sleep(Duration::from_millis(100)).await;
        }
    }
}

fn failed(path: &str, fault: DiskFault, reason: &str) -> Error {
    Error::LocalDisk { path: path.to_owned(), fault, reason: reason.to_owned() }
}

#[derive(Debug)]
struct Lock {
    disk: SimDisk,
    name: String,
    grant: u64,
}

impl DiskLock for Lock {}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut contents = self.disk.contents.lock();
        if contents.locks.get(&self.name).is_some_and(|(grant, _)| *grant == self.grant) {
            contents.locks.remove(&self.name);
        }
    }
}

#[async_trait]
impl Disk for Mounted {
    fn location(&self) -> String {
        // The machine's, whichever process asks.
        "the simulated disk".to_owned()
    }

    async fn lock(&self, name: &str) -> Result<Box<dyn DiskLock>> {
        self.answering().await;
        let mut contents = self.disk.contents.lock();
        if contents.locks.get(name).is_some_and(|(_, holder)| !holder.is_dead()) {
            return Err(failed(name, DiskFault::Locked, "locked by a live process"));
        }
        let grant = contents.next_pending;
        contents.next_pending += 1;
        contents.locks.insert(name.to_owned(), (grant, self.process.clone()));
        Ok(Box::new(Lock { disk: self.disk.clone(), name: name.to_owned(), grant }))
    }

    async fn list(&self, directory: &str) -> Result<Vec<String>> {
        self.answering().await;
        let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        let contents = self.disk.contents.lock();
        let mut names: Vec<String> = contents
            .files
            .keys()
            .filter_map(|path| path.strip_prefix(&prefix))
            .map(|rest| rest.split('/').next().unwrap_or(rest).to_owned())
            .collect();
        names.dedup();
        Ok(names)
    }

    async fn create(&self, path: &str) -> Result<Arc<dyn DiskFile>> {
        self.answering().await;
        let mut contents = self.disk.contents.lock();
        if contents.files.contains_key(path) {
            return Err(failed(path, DiskFault::Io, "the file exists"));
        }
        if contents.ailment.full && self.disk.world.draw(2) == 0 {
            return Err(failed(path, DiskFault::Full, "no space left"));
        }
        contents.files.insert(path.to_owned(), TwoSided::default());
        Ok(Arc::new(File { disk: self.clone(), path: path.to_owned() }))
    }

    async fn open(&self, path: &str) -> Result<Arc<dyn DiskFile>> {
        self.answering().await;
        if !self.disk.contents.lock().files.contains_key(path) {
            return Err(Self::missing(path));
        }
        Ok(Arc::new(File { disk: self.clone(), path: path.to_owned() }))
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.answering().await;
        let mut contents = self.disk.contents.lock();
        let Some(file) = contents.files.remove(from) else { return Err(Self::missing(from)) };
        contents.files.insert(to.to_owned(), file);
        Ok(())
    }

    async fn remove(&self, path: &str) -> Result<()> {
        self.answering().await;
        self.disk.contents.lock().files.remove(path);
        Ok(())
    }
}

#[derive(Debug)]
struct File {
    disk: Mounted,
    path: String,
}

impl File {
    fn with<T>(&self, work: impl FnOnce(&mut TwoSided) -> T) -> Result<T> {
        let mut contents = self.disk.disk.contents.lock();
        contents.files.get_mut(&self.path).map(work).ok_or_else(|| Mounted::missing(&self.path))
    }

    /// Writes and syncs as far as the disk's ailment allows.
    fn write_through(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let ailment = self.disk.disk.contents.lock().ailment;
        if ailment.full {
            // The write may have got some way before the space was gone.
            let written = self.disk.disk.world.draw(2) as usize * bytes.len() / 2;
            self.with(|file| file.write(offset, &bytes[..written]))?;
            return Err(failed(&self.path, DiskFault::Full, "no space left"));
        }
        self.with(|file| {
            file.write(offset, bytes);
            // As real files do, it grows ahead.
            let grown = file.cache.len().next_multiple_of(PAGE);
            file.cache.resize(grown, 0);
        })?;
        self.sync(ailment)
    }

    fn sync(&self, ailment: Ailment) -> Result<()> {
        if ailment.sync_fails {
            self.with(|file| file.dirty.clear())?;
            return Err(failed(&self.path, DiskFault::Io, "the sync failed"));
        }
        self.with(TwoSided::sync)
    }
}

#[async_trait]
impl DiskFile for File {
    fn location(&self) -> String {
        format!("{}: {}", self.disk.location(), self.path)
    }

    async fn size_bytes(&self) -> Result<u64> {
        self.disk.answering().await;
        self.with(|file| file.cache.len() as u64)
    }

    async fn read(&self, offset: u64, length: usize) -> Result<Bytes> {
        self.disk.answering().await;
        self.with(|file| {
            let bytes = &file.cache;
            let start = (offset as usize).min(bytes.len());
            let end = start.saturating_add(length).min(bytes.len());
            Bytes::copy_from_slice(&bytes[start..end])
        })
    }

    async fn append(&self, offset: u64, bytes: Bytes) -> Result<()> {
        self.disk.answering().await;
        let offset = offset as usize;
        let ticket = {
            let mut contents = self.disk.disk.contents.lock();
            let ticket = contents.next_pending;
            contents.next_pending += 1;
            let process = self.disk.process.clone();
            let (path, bytes) = (self.path.clone(), bytes.clone());
            contents.pending.insert(ticket, Pending { process, path, offset, bytes });
            ticket
        };
        let sync = Duration::from_millis(1) + self.disk.env().jitter(Duration::from_millis(8));
        self.disk.env().clock.sleep(sync).await;
        self.disk.answering().await;
        if self.disk.disk.contents.lock().pending.remove(&ticket).is_none() {
            return Err(Mounted::missing(&self.path));
        }
        self.write_through(offset, &bytes)
    }

    async fn rewrite(&self, offset: u64, bytes: Bytes) -> Result<()> {
        self.disk.answering().await;
        self.write_through(offset as usize, &bytes)
    }

    async fn truncate(&self, length: u64) -> Result<()> {
        self.disk.answering().await;
        let ailment = self.disk.disk.contents.lock().ailment;
        self.with(|file| {
            let length = length as usize;
            file.cache.truncate(length);
            let pages = file.cache.len().div_ceil(PAGE);
            file.dirty.retain(|page| *page < pages);
        })?;
        self.sync(ailment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever is under way at the crash, what was acknowledged before it is there after it.
        #[test]
        fn acknowledged_bytes_survive_and_unacknowledged_ones_may_tear(
            seed in any::<u64>(),
            sizes in prop::collection::vec(1_usize..3000, 1..6),
            last in 1_usize..4000,
        ) {
            World::run(seed, false, async |world| {
                let disk = SimDisk::new(world.clone());
                let process = world.process("p", 0);
                let mounted = disk.mounted(&process);
                let file = mounted.create("a/1").await.expect("created");
                let mut expected = Vec::new();
                for (n, size) in sizes.into_iter().enumerate() {
                    let bytes = vec![n as u8 + 1; size];
                    file.append(expected.len() as u64, bytes.clone().into()).await.expect("synced");
                    expected.extend(bytes);
                }
                let at = expected.len() as u64;
                let writer = Arc::clone(&file);
                let lost = process.run(async move { writer.append(at, vec![9; last].into()).await });
                world.sleep(Duration::ZERO).await;
                tokio::task::yield_now().await;
                process.kill();
                disk.crash();
                assert!(lost.await.is_none());
                let again = disk.mounted(&world.process("p", 1));
                let file = again.open("a/1").await.expect("there");
                let found = file.read(0, usize::MAX).await.expect("read");
                assert_eq!(&found[..expected.len()], &expected[..]);
                assert!(found.len() <= (expected.len() + last).next_multiple_of(4096));
                assert!(found[expected.len()..].iter().all(|byte| matches!(byte, 0 | 9)));
            });
        }
    }

    #[test]
    fn failed_sync_is_believed_by_reads_and_later_syncs_until_the_power_is_lost() {
        World::run(1, false, async |world| {
            let disk = SimDisk::new(world.clone());
            let process = world.process("p", 0);
            let file = disk.mounted(&process).create("a").await.expect("created");
            file.append(0, vec![1; PAGE].into()).await.expect("synced");
            disk.ail(Ailment { sync_fails: true, ..Ailment::default() });
            file.append(PAGE as u64, vec![2; PAGE].into()).await.expect_err("not synced");
            disk.ail(Ailment::default());
            file.truncate(2 * PAGE as u64).await.expect("nothing is dirty");
            process.kill();
            disk.crash();
            let file = disk.mounted(&world.process("p", 1)).open("a").await.expect("there");
            let cached = file.read(PAGE as u64, PAGE).await.expect("read");
            assert_eq!(cached, vec![2; PAGE], "the page cache has it");
            disk.power_loss();
            let left = file.read(0, 2 * PAGE).await.expect("read");
            assert_eq!(&left[..PAGE], vec![1; PAGE], "what was acknowledged stays");
            assert_eq!(&left[PAGE..], vec![0; PAGE], "the platter never had it");
        });
    }

    #[test]
    fn full_disk_refuses_and_goes_on_once_there_is_space() {
        World::run(1, false, async |world| {
            let disk = SimDisk::new(world.clone());
            let file = disk.mounted(&world.process("p", 0)).create("a").await.expect("created");
            disk.ail(Ailment { full: true, ..Ailment::default() });
            let error = file.append(0, vec![1; 9].into()).await.expect_err("full");
            assert!(matches!(error, Error::LocalDisk { fault: DiskFault::Full, .. }));
            disk.ail(Ailment::default());
            file.append(0, vec![2; 9].into()).await.expect("space");
            assert_eq!(file.read(0, 9).await.expect("read"), vec![2; 9]);
        });
    }

    #[test]
    fn lock_of_a_live_process_holds_and_ends_with_it() {
        World::run(1, false, async |world| {
            let disk = SimDisk::new(world.clone());
            let (first, second) = (world.process("a", 0), world.process("b", 0));
            let held = disk.mounted(&first).lock("l").await.expect("free");
            let refused = disk.mounted(&second).lock("l").await.expect_err("held");
            assert!(matches!(refused, Error::LocalDisk { fault: DiskFault::Locked, .. }));
            first.kill();
            assert!(disk.mounted(&second).lock("l").await.is_ok());
            drop(held);
        });
    }
}
