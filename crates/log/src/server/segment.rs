//! Segment files: naming, headers, batches of entries, recovery.
//!
//! ```text
//! <shard>/<loglet, 20 digits>-<token>/<segment, 20 digits>.log
//! ```
//! The header batch holds `TLSG`, format version, shard, loglet, token, segment number and the LSN
//! of the first entry; an entry batch holds the first LSN, a count, and each entry after its
//! length.
//!
//! # Encryption
//! Where the database is encrypted the header (version 2) also holds an epoch of the key ring and a
//! salt, and the payload of every later batch is encrypted with a key of this file, bound to its
//! place and kind. Checksums are over what is stored, so that torn and damaged writes are told
//! apart as ever. It is done at each disk, not once by the owner: every node that keeps a copy also
//! executes, and so has the keys, and messages between nodes have their own encryption.
//!
//! # On failure
//! Recovery drops an unfinished last batch with a log line (it was never acknowledged) and refuses
//! damage with [`Error::Corrupt`] naming the file and the byte offset.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use telesto_cipher::{RecordCipher, SALT};
use telesto_common::{Lsn, ShardId, WriterToken};

use super::protocol::LogletKey;
use super::sector::{self, ENCRYPTED, HEADER, Next, SEAL, SECTOR};
use crate::codec::cursor::{Cursor, Malformed};
use crate::disk::{Disk, DiskFile};
use crate::error::{DiskFault, Error, FORMAT_VERSION, Result};

const MAGIC: [u8; 4] = *b"TLSG";
/// Newest segment format this program reads. Encrypted segments have it.
pub const VERSION: u16 = 2;
/// At the end of a copy's name, until it takes the segment's place.
pub const COPYING: &str = ".new";
/// The format of segments that are not encrypted.
const CLEAR: u16 = 1;

/// Where one batch of entries stands in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// LSN of its first entry.
    pub first: Lsn,
    /// Entries in it.
    pub count: u64,
    /// Number of its first sector.
    pub sector: u64,
    /// Its sectors.
    pub sectors: u64,
}

/// One segment of a loglet.
#[derive(Debug)]
pub struct Segment {
    /// Its number, from 0.
    pub number: u64,
    /// Its path on the disk.
    pub path: String,
    /// The file.
    pub file: Arc<dyn DiskFile>,
    /// LSN of its first entry.
    pub first: Lsn,
    /// Its batches of entries, in order.
    pub batches: Vec<Position>,
    /// Where the next batch goes: everything before is whole.
    pub end_bytes: u64,
    /// Whether it holds the seal.
    pub sealed: bool,
    /// Bytes of an unfinished write after `end_bytes`.
    pub unfinished_bytes: u64,
    /// Of an encrypted segment.
    cipher: Option<RecordCipher>,
}

/// The directory of a shard's loglets.
pub fn shard_directory(shard: ShardId) -> String {
    shard.to_string()
}

/// The lock of a shard's loglets.
pub fn lock_name(shard: ShardId) -> String {
    format!("{shard}.lock")
}

/// The directory of a loglet.
pub fn loglet_directory(key: &LogletKey) -> String {
    format!("{}/{:020}-{}", key.shard, key.loglet, key.token)
}

/// Loglet and token of a loglet directory's last name.
pub fn loglet_of(shard: ShardId, name: &str) -> Option<LogletKey> {
    let (loglet, token) = name.split_once('-')?;
    Some(LogletKey { shard, loglet: loglet.parse().ok()?, token: token.parse().ok()? })
}

fn path(key: &LogletKey, number: u64) -> String {
    format!("{}/{number:020}.log", loglet_directory(key))
}

fn header(key: &LogletKey, number: u64, first: Lsn, drawn: Option<Drawn>) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(&MAGIC);
    out.put_u16_le(if drawn.is_some() { VERSION } else { CLEAR });
    out.put_u64_le(key.shard.0);
    out.put_u64_le(key.loglet);
    out.put_slice(&key.token.to_bytes());
    out.put_u64_le(number);
    out.put_u64_le(first.0);
    if let Some((epoch, salt)) = drawn {
        out.put_u32_le(epoch);
        out.put_slice(&salt);
    }
    out.freeze()
}

/// Epoch and salt of an encrypted segment.
type Drawn = (u32, [u8; SALT]);

/// What an encrypted batch is bound to.
fn place(sector: u64, kind: u8) -> [u8; 9] {
    let mut out = [kind; 9];
    out[..8].copy_from_slice(&sector.to_le_bytes());
    out
}

/// The payload of a batch of entries.
pub fn entries_payload(first: Lsn, entries: &[Bytes]) -> Bytes {
    let size: usize = entries.iter().map(|e| e.len() + 4).sum();
    let mut out = BytesMut::with_capacity(12 + size);
    out.put_u64_le(first.0);
    out.put_u32_le(entries.len() as u32);
    for entry in entries {
        out.put_u32_le(entry.len() as u32);
        out.put_slice(entry);
    }
    out.freeze()
}

/// First LSN and entries of a batch's payload.
pub fn entries_of(payload: &Bytes) -> std::result::Result<(Lsn, Vec<Bytes>), Malformed> {
    let mut cursor = Cursor::new(payload.clone());
    let first = Lsn(cursor.u64()?);
    let count = cursor.u32()? as usize;
    let entries = cursor.strings(count)?;
    cursor.finish()?;
    Ok((first, entries))
}

impl Segment {
    /// Makes segment `number`, durably.
    pub async fn create(disk: &dyn Disk, key: &LogletKey, number: u64, first: Lsn) -> Result<Self> {
        Self::create_at(disk, key, number, first, path(key, number)).await
    }

    async fn create_at(
        disk: &dyn Disk,
        key: &LogletKey,
        number: u64,
        first: Lsn,
        path: String,
    ) -> Result<Self> {
        let file = disk.create(&path).await?;
        let drawn = disk.keys().map(|keys| (keys, RecordCipher::draw(keys)));
        let header = header(key, number, first, drawn.map(|(_, drawn)| drawn));
        let cipher = drawn.map(|(keys, (epoch, salt))| {
            RecordCipher::of(keys, epoch, &salt, &header)
                .map_err(|damage| corrupt(&*file, 0, None, damage.to_string()))
        });
        let cipher = cipher.transpose()?;
        let bytes = sector::encode_batch(0, HEADER, &header);
        let end_bytes = bytes.len() as u64;
        file.append(0, bytes).await?;
        Ok(Self {
            number,
            path,
            file,
            first,
            batches: Vec::new(),
            end_bytes,
            sealed: false,
            unfinished_bytes: 0,
            cipher,
        })
    }

    /// Whether it is in clear on a disk where what is written is encrypted: the database is being
    /// turned over.
    pub fn is_left_clear(&self, disk: &dyn Disk) -> bool {
        self.cipher.is_none() && disk.keys().is_some()
    }

    /// Puts an encrypted copy in its place. A crash leaves the one or the other.
    pub async fn turned_over(self, disk: &dyn Disk, key: &LogletKey) -> Result<Self> {
        let copying = format!("{}{COPYING}", self.path);
        // Of a process that did not live to rename it.
        disk.remove(&copying).await?;
        let mut copy = Self::create_at(disk, key, self.number, self.first, copying.clone()).await?;
        let begin = copy.end_bytes;
        let length = usize::try_from(self.end_bytes).unwrap_or(usize::MAX);
        let bytes = self.file.read(0, length).await?;
        let corrupt = |(offset, reason)| corrupt(&*self.file, offset, None, reason);
        let mut batches = BytesMut::new();
        let mut sector = 0;
        while let Next::Batch(batch) = sector::next_batch(&bytes, sector).map_err(corrupt)? {
            if batch.kind != HEADER {
                let stored = copy.batch(batch.kind, &batch.payload);
                copy.end_bytes += stored.len() as u64;
                batches.put_slice(&stored);
            }
            sector += batch.sectors;
        }
        copy.file.append(begin, batches.freeze()).await?;
        disk.rename(&copying, &self.path).await?;
        let lost = || {
            let reason = "its encrypted copy holds something else".to_owned();
            Error::Corrupt { object: self.path.clone(), lsn: Some(self.first), reason }
        };
        let copied = Self::recover(disk, key, self.number).await?.ok_or_else(lost)?;
        match copied.next_lsn() == self.next_lsn() && copied.sealed == self.sealed {
            true => Ok(copied),
            false => Err(lost()),
        }
    }

    /// The bytes of the next batch.
    pub fn batch(&self, kind: u8, payload: &[u8]) -> Bytes {
        let first = self.next_sector();
        match &self.cipher {
            None => sector::encode_batch(first, kind, payload),
            Some(cipher) => {
                let stored = cipher.encrypt(&place(first, kind), payload);
                sector::encode_batch(first, kind | ENCRYPTED, &stored)
            }
        }
    }

    /// The payload of the batch at sector `first`, as it was before it was encrypted.
    fn opened(&self, first: u64, kind: u8, stored: Bytes) -> std::result::Result<Bytes, Malformed> {
        match (&self.cipher, kind & ENCRYPTED != 0) {
            (None, false) => Ok(stored),
            (Some(cipher), true) => cipher
                .decrypt(&place(first, kind & !ENCRYPTED), &stored)
                .map(Bytes::from)
                .map_err(|damage| damage.to_string()),
            (Some(_), false) => Err("it is not encrypted, its segment is".into()),
            (None, true) => Err("it is encrypted, its segment is not".into()),
        }
    }

    /// Number of the sector where the next batch goes.
    pub fn next_sector(&self) -> u64 {
        self.end_bytes / SECTOR as u64
    }

    /// The LSN after its last entry.
    pub fn next_lsn(&self) -> Lsn {
        self.batches.last().map_or(self.first, |b| Lsn(b.first.0 + b.count))
    }

    /// Writes its last batch (and a seal behind it) again, the same bytes to the same place. The
    /// sync of that batch may have failed in an earlier life, which then died: the batch is in the
    /// page cache, taken for clean, and a sync alone would leave it there. Everything before it was
    /// acknowledged.
    pub async fn harden(&self) -> Result<()> {
        let from = self.batches.last().map_or(0, |b| b.sector * SECTOR as u64);
        let length = usize::try_from(self.end_bytes - from).unwrap_or(usize::MAX);
        let bytes = self.file.read(from, length).await?;
        self.file.rewrite(from, bytes).await
    }

    /// The entries of one of its batches.
    pub async fn read(&self, position: Position) -> Result<Vec<Bytes>> {
        let offset = position.sector * SECTOR as u64;
        let length = position.sectors as usize * SECTOR;
        let bytes = self.file.read(offset, length).await?;
        let corrupt = |reason| Error::Corrupt {
            object: format!("{} (byte {offset})", self.file.location()),
            lsn: Some(position.first),
            reason,
        };
        let mut payload = BytesMut::new();
        let mut kind = 0;
        for index in 0..position.sectors {
            let start = (index as usize * SECTOR).min(bytes.len());
            let part = &bytes[start..bytes.len().min(start + SECTOR)];
            match sector::look(position.sector + index, part) {
                sector::Sector::Written { batch, payload: part, flags }
                    if batch == position.sector =>
                {
                    kind = flags & ENCRYPTED;
                    payload.put_slice(part);
                }
                sector::Sector::Damaged(reason) => return Err(corrupt(reason)),
                _ => return Err(corrupt("an acknowledged sector is gone".into())),
            }
        }
        let payload = self.opened(position.sector, kind, payload.freeze()).map_err(corrupt)?;
        let (first, entries) = entries_of(&payload).map_err(corrupt)?;
        if first != position.first || entries.len() as u64 != position.count {
            return Err(corrupt("it holds other entries than when it was opened".into()));
        }
        Ok(entries)
    }

    /// Opens segment `number` and finds its batches. `None` when its header was never finished.
    pub async fn recover(disk: &dyn Disk, key: &LogletKey, number: u64) -> Result<Option<Self>> {
        let path = path(key, number);
        let file = disk.open(&path).await?;
        let size = file.size_bytes().await?;
        let bytes = file.read(0, usize::try_from(size).unwrap_or(usize::MAX)).await?;
        let corrupt = |offset, lsn, reason| corrupt(&*file, offset, lsn, reason);
        let head = match sector::next_batch(&bytes, 0).map_err(|(o, r)| corrupt(o, None, r))? {
            Next::Batch(batch) if batch.kind == HEADER => batch,
            Next::Batch(_) => {
                return Err(corrupt(0, None, "it does not start with a header".into()));
            }
            Next::End | Next::Unfinished => return Ok(None),
        };
        let (first, drawn) = check_header(&file.location(), key, number, &head.payload)?;
        let cipher = match (drawn, disk.keys()) {
            (None, None) => None,
            (Some((epoch, salt)), Some(keys)) => {
                let cipher = RecordCipher::of(keys, epoch, &salt, &head.payload);
                Some(cipher.map_err(|damage| corrupt(0, None, damage.to_string()))?)
            }
            (Some(_), None) => {
                return Err(Error::LocalDisk {
                    path: file.location(),
                    fault: DiskFault::Key,
                    reason: "it is encrypted".into(),
                });
            }
            // Of the time before the database was encrypted.
            (None, Some(keys)) if keys.takes_clear() => None,
            (None, Some(_)) => {
                let reason = "it is not encrypted, but the database is: it is of another database, was exchanged, or its node was not started while the database was turned over (telesto keys encrypt --again)";
                return Err(corrupt(0, None, reason.into()));
            }
        };
        let mut segment = Self {
            number,
            path,
            file: Arc::clone(&file),
            first,
            batches: Vec::new(),
            end_bytes: head.sectors * SECTOR as u64,
            sealed: false,
            unfinished_bytes: 0,
            cipher,
        };
        loop {
            let sector = segment.next_sector();
            let offset = segment.end_bytes;
            let lsn = segment.next_lsn();
            let next = sector::next_batch(&bytes, sector)
                .map_err(|(o, reason)| corrupt(o, Some(lsn), reason))?;
            match next {
                Next::End => break,
                Next::Unfinished => {
                    segment.unfinished_bytes = bytes.len() as u64 - offset;
                    break;
                }
                Next::Batch(batch) => {
                    let payload = segment
                        .opened(sector, batch.kind, batch.payload)
                        .map_err(|reason| corrupt(offset, Some(lsn), reason))?;
                    if batch.kind & !ENCRYPTED == SEAL {
                        segment.sealed = true;
                    } else if batch.kind & !ENCRYPTED == 0 {
                        let (first, entries) = entries_of(&payload)
                            .map_err(|reason| corrupt(offset, Some(lsn), reason))?;
                        if first != lsn {
                            let reason = format!("it starts with entry {first}");
                            return Err(corrupt(offset, Some(lsn), reason));
                        }
                        segment.batches.push(Position {
                            first,
                            count: entries.len() as u64,
                            sector,
                            sectors: batch.sectors,
                        });
                    } else {
                        return Err(corrupt(offset, Some(lsn), "a second header".into()));
                    }
                    segment.end_bytes += batch.sectors * SECTOR as u64;
                }
            }
        }
        Ok(Some(segment))
    }
}

fn corrupt(file: &dyn DiskFile, offset: u64, lsn: Option<Lsn>, reason: String) -> Error {
    Error::Corrupt { object: format!("{} (byte {offset})", file.location()), lsn, reason }
}

fn check_header(
    object: &str,
    key: &LogletKey,
    number: u64,
    payload: &Bytes,
) -> Result<(Lsn, Option<Drawn>)> {
    let corrupt = |reason: Malformed| Error::Corrupt {
        object: format!("{object} (byte 0)"),
        lsn: None,
        reason,
    };
    let mut cursor = Cursor::new(payload.clone());
    type Found = (Lsn, Option<Drawn>);
    let mut parse = || -> std::result::Result<std::result::Result<Found, u16>, Malformed> {
        if cursor.take(4)?[..] != MAGIC {
            return Err("it is not a log segment".into());
        }
        let version = cursor.u16()?;
        if version > VERSION {
            return Ok(Err(version));
        }
        let found = LogletKey {
            shard: ShardId(cursor.u64()?),
            loglet: cursor.u64()?,
            token: WriterToken::from_bytes(cursor.array16()?),
        };
        if found != *key || cursor.u64()? != number {
            return Err(format!("it belongs to {found:?}"));
        }
        let first = Lsn(cursor.u64()?);
        let drawn = if version == CLEAR { None } else { Some((cursor.u32()?, cursor.array16()?)) };
        Ok(Ok((first, drawn)))
    };
    parse().map_err(corrupt)?.map_err(|found| Error::TooNew {
        object: object.to_owned(),
        what: FORMAT_VERSION,
        found,
        supported: VERSION,
    })
}
