//! What each index takes: in the checkpoint, and in the tail.
//!
//! # Invariants
//! What may be read does not depend on it: the numbers are shown to people, and tell whether a
//! merge for what is gone pays ([`crate::gone`]).
//!
//! # On failure
//! The checkpoint's errors; a view that is of no use any more is replaced, as for a read.
//!
//! # Limits
//! Bytes of the checkpoint are those of stored blocks, with every version that no compaction has
//! dropped yet. A key that was changed between two compactions counts once for each table that has
//! it. Rows of a write set in parts count by whole blocks.

use std::collections::BTreeMap;

use bytes::Bytes;
use telesto_bucket::Cause;
use telesto_common::Timestamp;
use telesto_common::key::{KeyRange, PREFIX_LEN};

use crate::engine::Taken;
use crate::error::Result;
use crate::row::RowKind;
use crate::shard::Shard;

/// Keys of the tail looked at between two releases of its lock.
const KEYS_A_LOOK: usize = 4096;

/// The first bytes of a key: they name an index.
pub type IndexPrefix = [u8; PREFIX_LEN];

/// What one index takes, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexSpace {
    /// Newest versions in the checkpoint.
    pub newest_bytes: u64,
    /// Older versions in the checkpoint.
    pub history_bytes: u64,
    /// What was committed after the checkpoint, every version.
    pub tail_bytes: u64,
}

/// What a shard takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// By the first bytes of keys.
    pub indexes: BTreeMap<IndexPrefix, IndexSpace>,
    /// What the checkpoint keeps beside versions (outcomes of transactions), bytes.
    pub other_bytes: u64,
    /// Versions superseded before are not kept, and cannot be read.
    pub oldest_readable: Timestamp,
}

impl Shard {
    /// What the shard takes now, by index.
    ///
    /// # Errors
    /// Those of reading the checkpoint and the parts of the tail.
    pub async fn space(&self) -> Result<Space> {
        let mut space = Space { oldest_readable: self.oldest_readable(), ..Space::default() };
        for (place, bytes) in self.checkpoint_space().await? {
            let [kind, prefix @ ..] = place;
            match RowKind::of(&[kind]) {
                Some(RowKind::Newest) => {
                    space.indexes.entry(prefix).or_default().newest_bytes += bytes;
                }
                Some(RowKind::History) => {
                    space.indexes.entry(prefix).or_default().history_bytes += bytes;
                }
                _ => space.other_bytes += bytes,
            }
        }
        for (prefix, bytes) in self.tail_space().await? {
            space.indexes.entry(prefix).or_default().tail_bytes += bytes;
        }
        Ok(space)
    }

    pub(crate) async fn checkpoint_space(&self) -> Result<Taken> {
        let mut reopens = 0;
        loop {
            self.open_check()?;
            let base = self.base();
            let Some(view) = &base else { return Ok(Taken::new()) };
            match view.space().await {
                Ok(taken) => return Ok(taken),
                Err(fault) => self.recover(&base, fault, &mut reopens).await?,
            }
        }
    }

    async fn tail_space(&self) -> Result<BTreeMap<IndexPrefix, u64>> {
        let mut taken = BTreeMap::new();
        let mut from = Some(Bytes::new());
        while let Some(key) = from {
            from = self.tail.read().space_from(&key, KEYS_A_LOOK, &mut taken);
            tokio::task::yield_now().await;
        }
        self.tail.read().spilled_space(&mut taken);
        let all = KeyRange::new(Bytes::new(), Bytes::new());
        let externals = self.tail.read().externals_in(&all, Timestamp(u64::MAX));
        for external in externals {
            external.space(Cause::Read, &mut taken).await?;
        }
        Ok(taken)
    }
}

/// The first bytes of `key`; of a shorter one what it has.
#[must_use]
pub fn prefix_of(key: &[u8]) -> IndexPrefix {
    let mut prefix = IndexPrefix::default();
    let len = key.len().min(PREFIX_LEN);
    prefix[..len].copy_from_slice(&key[..len]);
    prefix
}
