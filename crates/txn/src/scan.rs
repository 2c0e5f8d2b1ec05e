//! A transaction's scan: the shard's rows overlaid with the transaction's own writes.
//!
//! # Invariants
//! - Own writes are those made before the scan began; a delete hides the shard's row.
//! - What is recorded for validation reaches exactly as far as what was returned: through the last
//!   row, or to the end of the range when the scan ran dry.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::key::KeyRange;
use telesto_common::wait::{self, Wait};
use telesto_common::{RegionId, Timestamp};
use telesto_shard::{Row, ScanSpec};

use crate::api::{Scan, ScanOptions};
use crate::buffer::{BufferScan, Merged, Visible};
use crate::error::{Error, Result};
use crate::service::{RowStream, ScanRequest};
use crate::transaction::Core;

/// Rows asked of the shard at a time at most.
const MAX_BATCH_ROWS: usize = 4096;
/// A batch ends when it holds this much, bytes.
const MAX_BATCH_BYTES: usize = 1 << 20;

/// Where the rows of a scan are.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// Here, as of this snapshot.
    Here(Timestamp),
    /// In another region, as of what the transaction reads there.
    There(RegionId),
}

pub(crate) struct TxnScan {
    core: Arc<Core>,
    /// What is not recorded yet.
    rest: KeyRange,
    reverse: bool,
    record: bool,
    at: Place,
    rows: Box<dyn RowStream>,
    fetched: VecDeque<Row>,
    rows_ended: bool,
    own: Option<BufferScan>,
    own_next: Option<Merged>,
    left: u64,
    ended: bool,
    /// After a failure rows may be missing: every later call fails too.
    failed: Option<Error>,
}

impl TxnScan {
    /// `seen`: which of the transaction's own writes it shows; `None`: those made so far.
    pub fn new(
        core: Arc<Core>,
        range: KeyRange,
        options: ScanOptions,
        seen: Option<&Visible>,
    ) -> Self {
        let at = core.snapshot();
        // Own deletes hide rows of the shard, so a limit holds for the shard only without them.
        let limit = if core.buffer.used() { None } else { options.limit };
        let rows = core.shared.reach.scan(ScanRequest {
            shard: core.shared.reach.shard(),
            range: range.clone(),
            at,
            spec: ScanSpec { reverse: options.reverse, limit },
            timeout: core.timeout,
        });
        Self::of(core, rows, (range, options), seen, Place::Here(at))
    }

    /// A scan of `rows`, which are those of the range in `home`.
    pub fn there(
        core: Arc<Core>,
        rows: Box<dyn RowStream>,
        range: (KeyRange, ScanOptions),
        seen: Option<&Visible>,
        home: RegionId,
    ) -> Self {
        Self::of(core, rows, range, seen, Place::There(home))
    }

    fn of(
        core: Arc<Core>,
        rows: Box<dyn RowStream>,
        (range, options): (KeyRange, ScanOptions),
        seen: Option<&Visible>,
        at: Place,
    ) -> Self {
        let own =
            core.buffer.used().then(|| core.buffer.scan(range.clone(), options.reverse, seen));
        Self {
            record: core.records(options.read_for),
            core,
            rest: range,
            reverse: options.reverse,
            at,
            rows,
            fetched: VecDeque::new(),
            rows_ended: false,
            own,
            own_next: None,
            left: options.limit.unwrap_or(u64::MAX),
            ended: false,
            failed: None,
        }
    }

    async fn fill(&mut self, wanted: usize) -> Result<()> {
        if self.fetched.is_empty() && !self.rows_ended {
            let next = self.rows.next_batch(wanted.clamp(1, MAX_BATCH_ROWS));
            let batch = wait::on(Wait::Rows, next).await?;
            self.rows_ended = batch.is_empty();
            self.fetched = batch.into();
        }
        if self.own_next.is_none()
            && let Some(own) = self.own.as_mut()
        {
            self.own_next = own.next().await?;
            if self.own_next.is_none() {
                self.own = None;
            }
        }
        Ok(())
    }

    /// Records what was walked over up to and including `last`; everything that is left when
    /// `None`.
    fn record(&mut self, last: Option<&Bytes>) {
        let walked = match last {
            None => std::mem::replace(&mut self.rest, nothing()),
            Some(last) if self.reverse => {
                let walked = KeyRange::new(last.clone(), self.rest.end.clone());
                self.rest.end = last.clone();
                walked
            }
            Some(last) => {
                let mut after = BytesMut::with_capacity(last.len() + 1);
                after.put_slice(last);
                after.put_u8(0);
                let after = after.freeze();
                let walked = KeyRange::new(self.rest.start.clone(), after.clone());
                self.rest.start = after;
                walked
            }
        };
        if self.record {
            match self.at {
                Place::Here(at) => self.core.record_range(walked, at),
                Place::There(home) => self.core.record_there(home, walked),
            }
        }
    }
}

/// A range that holds no key.
fn nothing() -> KeyRange {
    KeyRange::new(Bytes::from_static(b"\0"), Bytes::from_static(b"\0"))
}

#[async_trait]
impl Scan for TxnScan {
    async fn next_batch(&mut self, max_rows: usize) -> Result<Vec<(Bytes, Bytes)>> {
        self.core.open()?;
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let wanted = max_rows.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let mut out = Vec::with_capacity(wanted.min(MAX_BATCH_ROWS));
        if self.ended || self.rest.is_empty() {
            return Ok(out);
        }
        let mut bytes = 0;
        if self.own.is_none() && self.own_next.is_none() {
            // Nothing to overlay: the shard's batch as it is.
            if let Err(error) = self.fill(wanted).await {
                self.failed = Some(error.clone());
                return Err(error);
            }
            self.ended = self.fetched.is_empty();
            let count = wanted.min(self.fetched.len());
            out.extend(self.fetched.drain(..count).map(|row| (row.key, row.value)));
            bytes = MAX_BATCH_BYTES;
        }
        while out.len() < wanted && bytes < MAX_BATCH_BYTES {
            if let Err(error) = self.fill(wanted - out.len()).await {
                self.failed = Some(error.clone());
                return Err(error);
            }
            let own_first = match (&self.own_next, self.fetched.front()) {
                (None, None) => {
                    self.ended = true;
                    break;
                }
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (Some(own), Some(row)) if own.key == row.key => {
                    self.fetched.pop_front();
                    true
                }
                (Some(own), Some(row)) => (own.key < row.key) != self.reverse,
            };
            if own_first {
                if let Some(Merged { key, value: Some(value), .. }) = self.own_next.take() {
                    bytes += key.len() + value.len();
                    out.push((key, value));
                }
            } else if let Some(row) = self.fetched.pop_front() {
                bytes += row.key.len() + row.value.len();
                out.push((row.key, row.value));
            }
        }
        self.left -= out.len() as u64;
        if self.ended {
            self.record(None);
        } else if let Some((last, _)) = out.last() {
            let last = last.clone();
            self.record(Some(&last));
        }
        self.ended |= self.left == 0;
        Ok(out)
    }
}
