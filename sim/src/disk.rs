//! A simulated local disk for log servers: what was not synced may be torn by a crash.
//!
//! # Invariants
//! What [`DiskFile::append`] acknowledged survives [`SimDisk::crash`]. An append under way leaves any
//! subset of its 512-byte sectors behind, with zeros where a hole lies before a later sector.
//!
//! # Limits
//! No capacity limit; names are durable at once.

use std::collections::BTreeMap;
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

#[derive(Debug, Default)]
struct Contents {
    files: BTreeMap<String, Vec<u8>>,
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
                let at = offset + index * SECTOR;
                if file.len() < at + sector.len() {
                    file.resize(at + sector.len(), 0);
                }
                file[at..at + sector.len()].copy_from_slice(sector);
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
        Error::LocalDisk {
            path: path.to_owned(),
            fault: DiskFault::Missing,
            reason: "no such file on the simulated disk".to_owned(),
        }
    }
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
        let mut contents = self.disk.contents.lock();
        if contents.locks.get(name).is_some_and(|(_, holder)| !holder.is_dead()) {
            return Err(Error::LocalDisk {
                path: name.to_owned(),
                fault: DiskFault::Locked,
                reason: "locked by a live process".to_owned(),
            });
        }
        let grant = contents.next_pending;
        contents.next_pending += 1;
        contents.locks.insert(name.to_owned(), (grant, self.process.clone()));
        Ok(Box::new(Lock { disk: self.disk.clone(), name: name.to_owned(), grant }))
    }

    async fn list(&self, directory: &str) -> Result<Vec<String>> {
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
        let mut contents = self.disk.contents.lock();
        if contents.files.contains_key(path) {
            return Err(Error::LocalDisk {
                path: path.to_owned(),
                fault: DiskFault::Io,
                reason: "the file exists".to_owned(),
            });
        }
        contents.files.insert(path.to_owned(), Vec::new());
        Ok(Arc::new(File { disk: self.clone(), path: path.to_owned() }))
    }

    async fn open(&self, path: &str) -> Result<Arc<dyn DiskFile>> {
        if !self.disk.contents.lock().files.contains_key(path) {
            return Err(Self::missing(path));
        }
        Ok(Arc::new(File { disk: self.clone(), path: path.to_owned() }))
    }

    async fn remove(&self, path: &str) -> Result<()> {
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
    fn with<T>(&self, work: impl FnOnce(&mut Vec<u8>) -> T) -> Result<T> {
        let mut contents = self.disk.disk.contents.lock();
        contents.files.get_mut(&self.path).map(work).ok_or_else(|| Mounted::missing(&self.path))
    }
}

#[async_trait]
impl DiskFile for File {
    fn location(&self) -> String {
        format!("{}: {}", self.disk.location(), self.path)
    }

    async fn size_bytes(&self) -> Result<u64> {
        self.with(|bytes| bytes.len() as u64)
    }

    async fn read(&self, offset: u64, length: usize) -> Result<Bytes> {
        self.with(|bytes| {
            let start = (offset as usize).min(bytes.len());
            let end = start.saturating_add(length).min(bytes.len());
            Bytes::copy_from_slice(&bytes[start..end])
        })
    }

    async fn append(&self, offset: u64, bytes: Bytes) -> Result<()> {
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
        if self.disk.disk.contents.lock().pending.remove(&ticket).is_none() {
            return Err(Mounted::missing(&self.path));
        }
        self.with(|file| {
            file.truncate(offset);
            file.resize(offset, 0);
            file.extend_from_slice(&bytes);
            // As real files do, it grows ahead.
            file.resize(file.len().next_multiple_of(4096), 0);
        })
    }

    async fn rewrite(&self, _: u64, _: Bytes) -> Result<()> {
        // The same bytes at the same place: what is not pending is on the platter.
        self.with(|_| ())
    }

    async fn truncate(&self, length: u64) -> Result<()> {
        self.with(|bytes| bytes.truncate(length as usize))
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
