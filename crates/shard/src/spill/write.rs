//! Writes a spilled run.
//!
//! # On failure
//! [`Error::Spill`]; the file has no name and is gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{BufMut as _, Bytes};
use telesto_cipher::{Scratch, ScratchFile};
use telesto_common::{Lsn, Timestamp, TxnId};

use super::{BITS_PER_KEY, Place, Run, Stored, Stretch, bits, codec};
use crate::api::Version;
use crate::error::{Error, Result};
use crate::space::prefix_of;
use crate::tail::{Item, ItemWrites};

/// Bytes of a piece and of a block, for the tail's memory bound and at most.
const PIECE_PART: u64 = 16;
const PIECE_BYTES: u64 = 1 << 20;
const BLOCK_PART: u64 = 32;
const BLOCK_BYTES: u64 = 16 << 10;

struct Writer<'a> {
    scratch: &'a Scratch,
    file: ScratchFile,
    piece_bytes: usize,
    block_bytes: usize,
}

impl Writer<'_> {
    /// Adds `body | checksum` and empties it.
    fn put(&self, body: &mut Vec<u8>) -> Result<Stretch> {
        let bytes = u32::try_from(body.len())
            .map_err(|_| Error::Spill { reason: "an entry of the log exceeds 4 GiB".to_owned() })?;
        body.put_u32(crc32c::crc32c(body));
        let offset = self.file.append(body).map_err(|error| failed(self.scratch, &error))?;
        body.clear();
        Ok(Stretch { offset, bytes })
    }
}

/// Writes `items`, which are not empty, to a file. `limit_bytes` is the tail's bound: what is held
/// to read the run is small beside it. Blocks.
pub(crate) fn write_run(scratch: &Scratch, limit_bytes: u64, items: &[Arc<Item>]) -> Result<Run> {
    let file = scratch.file().map_err(|error| failed(scratch, &error))?;
    let writer = Writer {
        scratch,
        file,
        piece_bytes: (limit_bytes / PIECE_PART).min(PIECE_BYTES) as usize,
        block_bytes: (limit_bytes / BLOCK_PART).min(BLOCK_BYTES) as usize,
    };
    let (mut pieces, mut externals) = (Vec::new(), BTreeMap::new());
    let mut outcomes: Vec<(TxnId, Timestamp)> = Vec::new();
    let mut versions: Vec<(Bytes, Stored)> = Vec::new();
    let mut taken: BTreeMap<_, u64> = BTreeMap::new();
    let mut body = Vec::new();
    for (number, item) in items.iter().enumerate() {
        // Nobody else adds to the file, so that it is known where the piece will be.
        let begins = writer.file.size_bytes();
        codec::put_item(&mut body, item, |commit, write, at| {
            let place = write.value.as_ref().map(|value| Place {
                offset: begins + at as u64,
                bytes: value.len() as u32,
                crc: crc32c::crc32c(value),
            });
            let origin = commit.origin.clone();
            let version = Version { at: commit.at, txn: commit.txn, origin, value: None };
            let bytes = write.key.len() + write.value.as_ref().map_or(0, Bytes::len);
            *taken.entry(prefix_of(&write.key)).or_default() += bytes as u64;
            versions.push((write.key.clone(), Stored { version, place }));
        });
        for commit in &item.commits {
            outcomes.push((commit.txn, commit.at));
            if let ItemWrites::External(external) = &commit.writes {
                externals.insert(commit.at, Arc::clone(external));
            }
        }
        if body.len() >= writer.piece_bytes || number + 1 == items.len() {
            pieces.push((item.lsn, writer.put(&mut body)?));
        }
    }
    // Those of a key stay in their order, which is that of their commits.
    versions.sort_by(|(a, _), (b, _)| a.cmp(b));
    outcomes.sort_unstable();
    let mut filter = Vec::new();
    let (blocks, last_key) = write_blocks(&writer, &versions, &mut filter)?;
    let outcomes = write_outcomes(&writer, &outcomes)?;
    let with_commits = |item: &&Arc<Item>| !item.commits.is_empty();
    let (Some(first), Some(last)) = (items.first(), items.last()) else {
        return Err(Error::Spill { reason: "there was nothing to write".to_owned() });
    };
    Ok(Run {
        first: first.lsn,
        last: last.lsn,
        newest: last.newest,
        commits_until: items.iter().rev().find(with_commits).map_or(Lsn::ZERO, |item| item.lsn),
        applied_at: first.applied_at,
        externals,
        taken,
        file: writer.file,
        pieces,
        blocks,
        last_key,
        outcomes,
        filter,
    })
}

type Blocks = Vec<(Bytes, Stretch)>;

/// Writes the keys of `versions`, which are sorted, in blocks; also the last key.
fn write_blocks(
    writer: &Writer<'_>,
    versions: &[(Bytes, Stored)],
    filter: &mut Vec<u64>,
) -> Result<(Blocks, Bytes)> {
    let keys = || versions.chunk_by(|(a, _), (b, _)| a == b);
    filter.resize((keys().count() * BITS_PER_KEY).div_ceil(64).max(1), 0);
    let (mut blocks, mut body) = (Vec::new(), Vec::with_capacity(writer.block_bytes * 2));
    // Copied, so that the run does not keep entries alive through shared buffers.
    let mut first_key = Bytes::new();
    for versions in keys() {
        let key = &versions[0].0;
        if body.is_empty() {
            first_key = Bytes::copy_from_slice(key);
        }
        for bit in bits(key, filter.len()) {
            filter[(bit / 64) as usize] |= 1 << (bit % 64);
        }
        codec::put_key(&mut body, key, versions.len());
        versions.iter().for_each(|(_, stored)| codec::put_version(&mut body, stored));
        if body.len() >= writer.block_bytes {
            blocks.push((std::mem::take(&mut first_key), writer.put(&mut body)?));
        }
    }
    if !body.is_empty() {
        blocks.push((first_key, writer.put(&mut body)?));
    }
    let last_key = versions.last().map(|(key, _)| Bytes::copy_from_slice(key));
    Ok((blocks, last_key.unwrap_or_default()))
}

/// Writes outcomes, which are sorted, in blocks.
fn write_outcomes(
    writer: &Writer<'_>,
    outcomes: &[(TxnId, Timestamp)],
) -> Result<Vec<(TxnId, Stretch)>> {
    let (mut blocks, mut body) = (Vec::new(), Vec::with_capacity(writer.block_bytes));
    for chunk in outcomes.chunks((writer.block_bytes / 24).max(1)) {
        chunk.iter().for_each(|(txn, at)| codec::put_outcome(&mut body, *txn, *at));
        blocks.push((chunk[0].0, writer.put(&mut body)?));
    }
    Ok(blocks)
}

fn failed(scratch: &Scratch, error: &std::io::Error) -> Error {
    Error::Spill {
        reason: format!("it could not be written to {}: {error}", scratch.place().display()),
    }
}
