//! Rows of external write sets that come into the newest-row cache before anybody asked for them.
//!
//! # Purpose
//! Commits in the log's entries get into the cache when they leave the tail. Those of an external
//! write set would not, and just after a load every read would look for its block: so a block that
//! is read for one row, and a fold, bring the others along.
//!
//! # Invariants
//! Only what is the newest of its key comes in, looked at under a lock of the tail, so that nothing
//! is applied meanwhile; and only while the tail holds the write set: a checkpoint of another
//! process may go past it, and then what came after it may be gone from the tail too.
//!
//! # On failure
//! Nothing here fails.
//!
//! # Limits
//! A fold fills half of the cache at most; a block comes in only while nothing has to go for it.

use std::sync::Arc;

use bytes::Bytes;

use crate::api::Version;
use crate::external::External;
use crate::part::Block;
use crate::shard::Shard;

/// Rows that come in under one lock: readers and writers get in between.
const STEP: usize = 64;

impl Shard {
    /// Takes `rows`, which `external` wrote, into the newest-row cache, at most `room` bytes of
    /// them.
    pub(crate) fn warm(
        &self,
        external: &Arc<External>,
        mut rows: impl Iterator<Item = (Bytes, Version)>,
        room: &mut u64,
    ) {
        while *room > 0 {
            let tail = self.tail.read();
            if !tail.holds(external) {
                return;
            }
            for _ in 0..STEP {
                let Some((key, version)) = rows.next() else { return };
                if version.value.is_some() && tail.is_newest(&key, external.at) {
                    let bytes = self.cache.rows.demote(self.scope, tail.epoch, &key, &version);
                    *room = room.saturating_sub(bytes);
                }
            }
        }
    }

    /// Takes the rows of a block that was just read.
    pub(crate) fn warm_block(&self, external: &Arc<External>, block: &Block) {
        if self.cache.rows.has_room() {
            let rows = (0..).map_while(|at| block.write(at));
            let rows = rows.map(|write| (write.key, external.version(write.value)));
            let mut room = u64::MAX;
            self.warm(external, rows, &mut room);
        }
    }
}
