//! One loglet on a log server's disk.
//!
//! # Invariants
//! - `next` is the only LSN accepted; once sealed, only repairs are.
//! - Callers that wait together share one write and one sync.
//! - A failed write poisons the loglet: nothing more is accepted until it is sealed, which first
//!   cuts the file back to what was acknowledged. Only then is the failed write gone for good.
//!
//! - What is in memory ([`RECENT_BYTES`]) is on disk: those who follow read it there, and wait for
//!   no sync of what comes after.
//!
//! # Limits
//! The index holds one position per batch, 32 bytes each, for entries not yet released.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::Lsn;
use tokio::sync::oneshot;

use super::protocol::{LogletKey, Reply};
use super::sector::{self, SEAL};
use super::segment::{COPYING, Segment, entries_payload, loglet_directory};
use crate::buffer::Buffer;
use crate::disk::Disk;
use crate::error::{DiskFault, Error, Result};

/// Entries kept in memory for those who follow, bytes.
const RECENT_BYTES: usize = 1 << 20;

/// A loglet's files.
#[derive(Debug)]
pub struct StoredLoglet {
    key: LogletKey,
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    files: tokio::sync::Mutex<Files>,
    waiting: Mutex<Vec<Waiting>>,
    /// The newest of what is durable, where others follow.
    recent: Mutex<Option<Buffer>>,
}

#[derive(Debug)]
struct Files {
    /// In order; never empty; only the last is written.
    segments: Vec<Segment>,
    sealed: bool,
    failed: bool,
}

#[derive(Debug)]
struct Waiting {
    first: Lsn,
    entries: Vec<Bytes>,
    repair: bool,
    reply: oneshot::Sender<Result<Reply>>,
}

impl Files {
    fn last(&mut self) -> &mut Segment {
        self.segments.last_mut().expect("a loglet keeps at least one segment")
    }

    fn next(&self) -> Lsn {
        self.segments.last().expect("a loglet keeps at least one segment").next_lsn()
    }
}

/// The segments, those in clear encrypted where the database is being turned over.
async fn turned_over(
    disk: &dyn Disk,
    key: &LogletKey,
    segments: Vec<Segment>,
) -> Result<Vec<Segment>> {
    let mut turned = Vec::with_capacity(segments.len());
    for segment in segments {
        turned.push(match segment.is_left_clear(disk) {
            true => segment.turned_over(disk, key).await?,
            false => segment,
        });
    }
    Ok(turned)
}

impl StoredLoglet {
    /// Makes a loglet whose first entry will be `start`, durably.
    pub async fn create(
        disk: Arc<dyn Disk>,
        key: LogletKey,
        start: Lsn,
        segment_bytes: u64,
    ) -> Result<Self> {
        let segment = Segment::create(&*disk, &key, 0, start).await?;
        Ok(Self::with_segments(disk, key, segment_bytes, vec![segment], false))
    }

    /// From now on what is written is kept in memory for a while too: of a server on which others
    /// follow.
    pub async fn keep_recent(self) -> Self {
        let next = self.files.lock().await.next();
        *self.recent.lock() = Some(Buffer::new(next, RECENT_BYTES));
        self
    }

    fn with_segments(
        disk: Arc<dyn Disk>,
        key: LogletKey,
        segment_bytes: u64,
        segments: Vec<Segment>,
        sealed: bool,
    ) -> Self {
        let files = Files { segments, sealed, failed: false };
        Self {
            key,
            disk,
            segment_bytes,
            files: tokio::sync::Mutex::new(files),
            waiting: Mutex::new(Vec::new()),
            recent: Mutex::new(None),
        }
    }

    /// Opens a loglet's files. `None` when there is no usable one.
    ///
    /// With `repair`, an unfinished last write is cut off and what is there made durable, whatever
    /// an earlier life was told by its sync; without, the files are left as they are.
    /// `trusts_cache` (a test's): what reads as written is taken for durable.
    pub async fn open(
        disk: Arc<dyn Disk>,
        key: LogletKey,
        segment_bytes: u64,
        repair: bool,
        trusts_cache: bool,
    ) -> Result<Option<Self>> {
        let directory = loglet_directory(&key);
        let mut numbers = Vec::new();
        for name in disk.list(&directory).await? {
            match name.strip_suffix(".log").and_then(|n| n.parse::<u64>().ok()) {
                Some(number) => numbers.push(number),
                // Of a copy that was not finished.
                None if repair && name.ends_with(COPYING) => {
                    disk.remove(&format!("{directory}/{name}")).await?;
                }
                None => tracing::warn!(directory, name, "not a segment of the log; ignored"),
            }
        }
        let mut segments: Vec<Segment> = Vec::new();
        for (index, number) in numbers.iter().enumerate() {
            let is_last = index + 1 == numbers.len();
            let Some(segment) = Segment::recover(&*disk, &key, *number).await? else {
                if !is_last {
                    return Err(Error::Corrupt {
                        object: format!("{}/{directory}/{number:020}.log", disk.location()),
                        lsn: None,
                        reason: "its header is empty although later segments follow".into(),
                    });
                }
                if repair {
                    tracing::warn!(directory, number, "segment never finished; removed");
                    disk.remove(&format!("{directory}/{number:020}.log")).await?;
                }
                break;
            };
            if let Some(before) = segments.last() {
                if before.number + 1 != *number || before.next_lsn() != segment.first {
                    return Err(Error::Corrupt {
                        object: segment.file.location(),
                        lsn: Some(before.next_lsn()),
                        reason: format!(
                            "it starts at entry {}, the segment before ends at {}: one is missing",
                            segment.first,
                            before.next_lsn()
                        ),
                    });
                }
                if before.unfinished_bytes > 0 {
                    return Err(Error::Corrupt {
                        object: format!("{} (byte {})", before.file.location(), before.end_bytes),
                        lsn: Some(before.next_lsn()),
                        reason: "its end is missing although later segments follow".into(),
                    });
                }
            }
            segments.push(segment);
        }
        // Versions before began a segment for repairs too, after the one with the seal.
        let sealed = segments.iter().any(|segment| segment.sealed);
        let Some(last) = segments.last_mut() else { return Ok(None) };
        if repair {
            if last.unfinished_bytes > 0 {
                tracing::warn!(
                    file = last.file.location(),
                    offset = last.end_bytes,
                    bytes = last.unfinished_bytes,
                    next_lsn = last.next_lsn().0,
                    "an unfinished, never acknowledged write was dropped"
                );
                last.unfinished_bytes = 0;
            }
            last.file.truncate(last.end_bytes).await?;
            if !trusts_cache {
                last.harden().await?;
            }
            segments = turned_over(&*disk, &key, segments).await?;
        }
        Ok(Some(Self::with_segments(disk, key, segment_bytes, segments, sealed)))
    }

    pub fn failed(&self) -> Error {
        Error::LocalDisk {
            path: format!("{}/{}", self.disk.location(), loglet_directory(&self.key)),
            fault: DiskFault::Io,
            reason: "an earlier write failed".into(),
        }
    }

    /// Takes entries from `first` on; told when they are durable, after [`Self::write_queued`].
    pub fn queue(
        &self,
        first: Lsn,
        entries: Vec<Bytes>,
        repair: bool,
    ) -> oneshot::Receiver<Result<Reply>> {
        let (reply, result) = oneshot::channel();
        self.waiting.lock().push(Waiting { first, entries, repair, reply });
        result
    }

    /// Appends what is queued; gives what follows the last entry on disk. Not to be given up on the
    /// way: the files would count as failed. `in_place`: the task may be held up by the disk.
    pub async fn write_queued(&self, in_place: bool) -> Lsn {
        let mut files = self.files.lock().await;
        // Whoever had the lock before may have written ours together with its own.
        let waiting = std::mem::take(&mut *self.waiting.lock());
        if waiting.is_empty() {
            return files.next();
        }
        let mut batch = Vec::new();
        let start = files.next();
        let mut next = start;
        let mut written = Vec::new();
        let mut refused = Vec::new();
        for one in waiting {
            let closed = files.sealed && !one.repair;
            if files.failed {
                let _ = one.reply.send(Err(self.failed()));
            } else if closed || one.first != next {
                refused.push(one.reply);
            } else {
                next = Lsn(next.0 + one.entries.len() as u64);
                batch.extend(one.entries);
                written.push((next, one.reply));
            }
        }
        if !batch.is_empty() {
            let outcome = self.write(&mut files, start, &batch, in_place).await;
            for (next, reply) in written {
                let _ = reply.send(outcome.clone().map(|()| Reply::Stored { next, leased: false }));
            }
        } else {
            for (next, reply) in written {
                let _ = reply.send(Ok(Reply::Stored { next, leased: false }));
            }
        }
        // Answered after the write: below `next` is what is on disk, not what was about to be.
        for reply in refused {
            let (next, sealed) = (files.next(), files.sealed);
            let answer =
                if files.failed { Err(self.failed()) } else { Ok(Reply::Refused { next, sealed }) };
            let _ = reply.send(answer);
        }
        files.next()
    }

    async fn write(
        &self,
        files: &mut Files,
        first: Lsn,
        entries: &[Bytes],
        in_place: bool,
    ) -> Result<()> {
        // A repair stays in the segment that has the seal: one after it would be unsealed.
        let full = files.last().end_bytes >= self.segment_bytes && !files.sealed;
        if full && !files.last().batches.is_empty() {
            let number = files.last().number + 1;
            // A failure here leaves an empty segment behind, which recovery removes; the loglet is
            // poisoned so that the number is not tried again.
            files.failed = true;
            let segment = Segment::create(&*self.disk, &self.key, number, first).await?;
            files.failed = false;
            files.segments.push(segment);
        }
        let payload = entries_payload(first, entries);
        let (sector, sectors) = self.append(files, 0, &payload, in_place).await?;
        let count = entries.len() as u64;
        files.last().batches.push(super::segment::Position { first, count, sector, sectors });
        if let Some(recent) = &mut *self.recent.lock() {
            for entry in entries {
                recent.push(entry.clone(), files.next());
            }
        }
        Ok(())
    }

    async fn append(
        &self,
        files: &mut Files,
        kind: u8,
        payload: &[u8],
        in_place: bool,
    ) -> Result<(u64, u64)> {
        let last = files.last();
        let (sector, offset, file) = (last.next_sector(), last.end_bytes, Arc::clone(&last.file));
        let bytes = last.batch(kind, payload);
        let size = bytes.len() as u64;
        // Poisoned until the write is known to be durable: also when this future is dropped
        // half-way.
        files.failed = true;
        match in_place {
            true => file.append_in_place(offset, bytes).await?,
            false => file.append(offset, bytes).await?,
        }
        files.failed = false;
        files.last().end_bytes += size;
        Ok((sector, size / sector::SECTOR as u64))
    }

    /// Accepts nothing more; gives the tail. Heals a poisoned loglet by cutting off what was not
    /// acknowledged.
    pub async fn seal(&self) -> Result<Reply> {
        let mut files = self.files.lock().await;
        if files.failed {
            let end = files.last().end_bytes;
            files.last().file.truncate(end).await?;
            let leftover = files.last().number + 1;
            let directory = loglet_directory(&self.key);
            self.disk.remove(&format!("{directory}/{leftover:020}.log")).await?;
            files.failed = false;
        }
        if !files.sealed {
            self.append(&mut files, SEAL, &[], false).await?;
            files.sealed = true;
            files.last().sealed = true;
        }
        Ok(Self::tail_of(&files))
    }

    fn tail_of(files: &Files) -> Reply {
        let first = files.segments.first().map_or(Lsn::FIRST, |s| s.first);
        let (next, sealed) = (files.next(), files.sealed);
        Reply::Tail { first, next, sealed, committed: first, leased: false, doubtful: false }
    }

    /// The tail.
    pub async fn tail(&self) -> Reply {
        Self::tail_of(&*self.files.lock().await)
    }

    /// Entries from `from` on, about `max_bytes` of them, at least one when there is one.
    pub async fn read(&self, from: Lsn, max_bytes: usize) -> Result<Vec<Bytes>> {
        let end = Lsn(u64::MAX);
        let recent =
            self.recent.lock().as_ref().and_then(|recent| recent.range(from, end, max_bytes));
        if let Some(found) = recent.filter(|found| !found.is_empty()) {
            return Ok(found);
        }
        let files = self.files.lock().await;
        let mut found: Vec<Bytes> = Vec::new();
        let mut size = 0;
        let start = files.segments.partition_point(|s| s.next_lsn() <= from);
        for segment in &files.segments[start..] {
            let batch = segment.batches.partition_point(|b| b.first.0 + b.count <= from.0);
            for position in &segment.batches[batch..] {
                if position.first > from && found.is_empty() {
                    return Ok(found); // released
                }
                let skip = from.0.saturating_sub(position.first.0) as usize;
                for entry in segment.read(*position).await?.into_iter().skip(skip) {
                    size += entry.len();
                    found.push(entry);
                    if size >= max_bytes {
                        return Ok(found);
                    }
                }
            }
        }
        Ok(found)
    }

    /// Drops segments that hold only entries below `below`. What stays has at least one entry, if
    /// there ever was one: a recovery names the hash of the last entry, so a segment that a
    /// roll-over made and no batch ever reached (full disk, stalled sync) does not let the one
    /// before it go. With `last_too` (a test's), it does.
    pub async fn release(&self, below: Lsn, last_too: bool) -> Result<()> {
        let mut files = self.files.lock().await;
        while files.segments.len() > 1
            && files.segments[0].next_lsn() <= below
            && (last_too || !files.segments[1].batches.is_empty())
        {
            self.disk.remove(&files.segments[0].path).await?;
            files.segments.remove(0);
        }
        Ok(())
    }

    /// Goes on from `to`: everything below is in the archive. Changes nothing when it is there
    /// already.
    pub async fn skip(&self, to: Lsn) -> Result<Reply> {
        let mut files = self.files.lock().await;
        if files.failed {
            return Err(self.failed());
        }
        if files.next() < to {
            // A crash between the two leaves no segment: then the server has forgotten this loglet,
            // and says so.
            files.failed = true;
            let number = files.last().number + 1;
            for segment in &files.segments {
                self.disk.remove(&segment.path).await?;
            }
            let segment = Segment::create(&*self.disk, &self.key, number, to).await?;
            files.segments = vec![segment];
            if let Some(recent) = &mut *self.recent.lock() {
                *recent = Buffer::new(to, RECENT_BYTES);
            }
            files.failed = false;
            if files.sealed {
                self.append(&mut files, SEAL, &[], false).await?;
                files.last().sealed = true;
            }
        }
        Ok(Reply::Stored { next: files.next(), leased: false })
    }

    /// Removes every file.
    pub async fn remove(&self) -> Result<()> {
        let mut files = self.files.lock().await;
        files.failed = true;
        for segment in &files.segments {
            self.disk.remove(&segment.path).await?;
        }
        self.disk.remove(&loglet_directory(&self.key)).await
    }
}
