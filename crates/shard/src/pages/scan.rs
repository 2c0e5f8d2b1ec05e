//! Scans of the checkpoint, over pages where there are some, and single pages read beside point
//! reads.
//!
//! The protocol is told in [`super`].

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::key::KeyRange;

use super::rows::Rows;
use super::{PAGE_BYTES, Page};
use crate::engine::{Outcome, ReadAhead, RowScan, StoredRow, View, held_bytes};
use crate::row;
use crate::shard::Shard;

/// Rows of a page at most, in rows of the first one that is read for a scan, which waits for it.
/// What is read beside a point read is that large; a scan that goes on comes to it: few large pages
/// are found faster than many small ones.
const LARGEST: usize = 4;

impl Shard {
    /// Has the page that begins at `key`, a stored one, read beside what goes on.
    pub(crate) fn page_at(&self, key: Bytes) {
        let Some(this) = self.this.upgrade() else { return };
        self.options.env.spawn("page", async move {
            let trims = this.tail.read().trims;
            let generation = this.pages.generation();
            if let Some(view) = this.base() {
                let range = KeyRange::new(key, row::newest_end());
                let read_at = (trims, generation);
                let mut scan = PagedScan::new(&this, view, read_at, range, false, ReadAhead::Short);
                scan.page_rows *= LARGEST;
                if let Err(fault) = scan.advance().await {
                    // Told by the reads that need these rows.
                    tracing::debug!(path = this.engine.path(), ?fault, "no page was read");
                }
            }
            this.pages.read();
        });
    }
}

/// A scan of the checkpoint, over pages where there are some.
pub(crate) struct PagedScan {
    shard: Arc<Shard>,
    view: Arc<dyn View>,
    trims: u64,
    generation: u64,
    ahead: ReadAhead,
    reverse: bool,
    page_rows: usize,
    /// What was not given yet, in stored keys.
    rest: KeyRange,
    /// A page being given: where it ends in the scan's direction, and which of its rows are left.
    page: Option<(Arc<Page>, Bytes, Range<usize>)>,
    /// The view being read, and how far.
    inner: Option<(Box<dyn RowScan>, Bytes)>,
    buffer: VecDeque<StoredRow>,
}

impl PagedScan {
    /// A scan of `range`, in stored keys, which has an end. `trims` was read from the tail, then
    /// `generation` from the shard's pages, then `view`.
    pub(crate) fn new(
        shard: &Arc<Shard>,
        view: Arc<dyn View>,
        (trims, generation): (u64, u64),
        range: KeyRange,
        reverse: bool,
        ahead: ReadAhead,
    ) -> Self {
        Self {
            shard: Arc::clone(shard),
            view,
            trims,
            generation,
            ahead,
            reverse,
            page_rows: shard.options.page_rows.max(1),
            rest: range,
            page: None,
            inner: None,
            buffer: VecDeque::new(),
        }
    }

    /// Where the scan is.
    fn place(&self) -> &Bytes {
        if self.reverse { &self.rest.end } else { &self.rest.start }
    }

    fn move_to(&mut self, place: Bytes) {
        *(if self.reverse { &mut self.rest.end } else { &mut self.rest.start }) = place;
    }

    /// Makes the next rows ready: from a page, or by reading one. `false`: the range is at its end.
    async fn advance(&mut self) -> Outcome<bool> {
        if self.rest.is_empty() {
            return Ok(false);
        }
        if self.inner.is_none() {
            let (pages, reverse) = (&self.shard.pages, self.reverse);
            if let Some((page, far)) = pages.find(self.place(), reverse) {
                let left = page.rows.first(&self.rest.start)..page.rows.first(&self.rest.end);
                self.page = Some((page, far, left));
                return Ok(true);
            }
            // Not beyond the range: what is read ahead there would cost requests nobody asked for.
            let next = pages.next(self.place(), reverse);
            let mut range = self.rest.clone();
            let limit = if reverse {
                range.start = next.filter(|end| *end > range.start).unwrap_or(range.start);
                range.start.clone()
            } else {
                range.end = next.filter(|start| *start < range.end).unwrap_or(range.end);
                range.end.clone()
            };
            let scan = self.view.scan(range, reverse, self.ahead).await?;
            self.inner = Some((scan, limit));
        }
        self.read_page().await?;
        Ok(true)
    }

    /// Reads a page of the view, gives it and keeps it.
    async fn read_page(&mut self) -> Outcome<()> {
        let Some((mut scan, limit)) = self.inner.take() else { return Ok(()) };
        let page_rows = self.page_rows;
        let mut rows = VecDeque::new();
        let mut at_end = false;
        while !at_end && rows.len() < page_rows && held_bytes(&rows) < PAGE_BYTES {
            at_end = scan.fill(&mut rows, page_rows, PAGE_BYTES).await?;
        }
        let far = match rows.back() {
            Some((key, _)) if !at_end && self.reverse => key.clone(),
            Some((key, _)) if !at_end => KeyRange::point(key).end,
            _ => limit.clone(),
        };
        fn pair(row: &StoredRow) -> (&[u8], &[u8]) {
            (&row.0, &row.1)
        }
        let (kept, start, end) = if self.reverse {
            (Rows::copied(rows.iter().rev().map(pair)), far.clone(), self.rest.end.clone())
        } else {
            (Rows::copied(rows.iter().map(pair)), self.rest.start.clone(), far.clone())
        };
        if let Some(kept) = kept {
            let tail = self.shard.tail.read();
            if tail.trims == self.trims {
                self.shard.pages.insert(&start, &end, kept, self.generation);
            }
        }
        self.buffer.append(&mut rows);
        let largest = self.shard.options.page_rows.max(1) * LARGEST;
        self.page_rows = (page_rows * 2).min(largest);
        let met = self.shard.pages.find(&far, self.reverse).is_some();
        self.move_to(far);
        if !at_end && !met && !self.rest.is_empty() {
            self.inner = Some((scan, limit));
        }
        Ok(())
    }

    /// The next row of the page being given, and whether there is one in the range.
    fn next_of_page(&mut self) -> Option<StoredRow> {
        let (page, _, left) = self.page.as_mut()?;
        let at = if self.reverse { left.next_back() } else { left.next() };
        at.map(|at| page.rows.row(at))
    }
}

#[async_trait]
impl RowScan for PagedScan {
    async fn next(&mut self) -> Outcome<Option<StoredRow>> {
        let mut one = VecDeque::new();
        self.fill(&mut one, 1, usize::MAX).await?;
        Ok(one.pop_front())
    }

    async fn fill(
        &mut self,
        into: &mut VecDeque<StoredRow>,
        rows: usize,
        bytes: usize,
    ) -> Outcome<bool> {
        let mut held = held_bytes(into);
        while into.len() < rows && held < bytes {
            if let Some(row) = self.buffer.pop_front() {
                held += row.0.len() + row.1.len();
                into.push_back(row);
                continue;
            }
            if let Some(row) = self.next_of_page() {
                held += row.0.len() + row.1.len();
                into.push_back(row);
                continue;
            }
            if let Some((_, far, _)) = self.page.take() {
                self.move_to(far);
                continue;
            }
            if !self.advance().await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
