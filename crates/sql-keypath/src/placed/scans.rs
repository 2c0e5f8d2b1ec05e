//! Scans of what is not all in this region.
//!
//! # Invariants
//! - Ranges are told one after the other, in the order of the scan, and no more rows than were
//!   asked for.
//!
//! # On failure
//! What is refused is told when it is first asked for rows; else the errors of the scans below.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_txn::{Away, Error, Result, Scan, ScanOptions, Transaction};

/// A scan of what is not all here.
pub(super) struct Refused(pub Error);

#[async_trait]
impl Scan for Refused {
    async fn next_batch(&mut self, _: usize) -> Result<Vec<(Bytes, Bytes)>> {
        Err(self.0.clone())
    }
}

/// A range, and the region where it is read; nothing: here.
pub(super) type Where = (KeyRange, Option<Arc<dyn Away>>);

/// Scans of several ranges, one after the other.
pub(super) struct OneByOne {
    pub below: Arc<dyn Transaction>,
    pub ranges: VecDeque<Where>,
    pub options: ScanOptions,
    pub open: Option<Box<dyn Scan>>,
    pub left: Option<u64>,
}

#[async_trait]
impl Scan for OneByOne {
    async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<(Bytes, Bytes)>> {
        while self.left != Some(0) {
            let scan = match &mut self.open {
                Some(scan) => scan,
                none => {
                    let Some((range, away)) = self.ranges.pop_front() else { break };
                    let options = ScanOptions { limit: self.left, ..self.options };
                    none.insert(match away {
                        None => self.below.scan(range, options),
                        Some(away) => self.below.scan_there(away, range, options),
                    })
                }
            };
            let mut batch = scan.next_batch(max_rows).await?;
            if batch.is_empty() {
                self.open = None;
                continue;
            }
            if let Some(left) = &mut self.left {
                batch.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= batch.len() as u64;
            }
            return Ok(batch);
        }
        Ok(Vec::new())
    }
}
