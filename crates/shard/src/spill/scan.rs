//! A scan of one spilled run: what is visible at a timestamp, in order.
//!
//! # Invariants
//! A version that a settled write set may have superseded by then is left out: the checkpoint has
//! both.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use telesto_common::Timestamp;
use telesto_common::key::KeyRange;

use super::{Run, Stored, codec, damaged};
use crate::api::Version;
use crate::error::Result;
use crate::external::External;

/// A running scan of a run.
pub(crate) struct RunScan {
    run: Arc<Run>,
    range: KeyRange,
    at: Timestamp,
    reverse: bool,
    /// Settled write sets when the scan began.
    settled: Vec<Arc<External>>,
    /// Blocks still to be read.
    blocks: Range<usize>,
    /// Of the block read last: what is visible, without its values.
    rows: VecDeque<(Bytes, Stored)>,
}

impl RunScan {
    pub(crate) fn new(
        run: &Arc<Run>,
        range: KeyRange,
        at: Timestamp,
        reverse: bool,
        settled: Vec<Arc<External>>,
    ) -> Self {
        let blocks = if range.is_empty() { 0..0 } else { run.blocks_in(&range) };
        Self { run: Arc::clone(run), range, at, reverse, settled, blocks, rows: VecDeque::new() }
    }

    /// The next rows, at most `count` of them, fewer once they have `most` bytes; `true`: there are
    /// no more. Blocks.
    pub(crate) fn take(
        &mut self,
        count: usize,
        most: usize,
    ) -> Result<(Vec<(Bytes, Version)>, bool)> {
        let (mut out, mut bytes) = (Vec::new(), 0);
        while out.len() < count && bytes < most {
            let Some((key, stored)) = self.rows.pop_front() else {
                if !self.read_block()? {
                    return Ok((out, true));
                }
                continue;
            };
            let version = self.run.whole(stored)?;
            bytes += key.len() + version.value.as_ref().map_or(0, Bytes::len);
            out.push((key, version));
        }
        Ok((out, false))
    }

    /// Reads the next block; `false`: that was the last one.
    fn read_block(&mut self) -> Result<bool> {
        let next = if self.reverse { self.blocks.next_back() } else { self.blocks.next() };
        let Some(block) = next else { return Ok(false) };
        let keys = codec::keys(self.run.read(self.run.blocks[block].1)?).ok_or_else(damaged)?;
        for (key, versions) in keys {
            if !self.range.contains(&key) {
                continue;
            }
            let Some(stored) = versions.into_iter().rev().find(|v| v.version.at <= self.at) else {
                continue;
            };
            let between = |set: &Arc<External>| stored.version.at < set.at && set.at <= self.at;
            if self.settled.iter().any(|set| between(set) && set.may_hold(&key)) {
                continue;
            }
            // Copied, so that a row does not keep the whole block alive.
            let row = (Bytes::copy_from_slice(&key), stored);
            if self.reverse {
                self.rows.push_front(row);
            } else {
                self.rows.push_back(row);
            }
        }
        Ok(true)
    }
}
