//! Pages: runs of stored newest rows as scans found them in the checkpoint, kept for the next scan and for point reads.
//!
//! # Purpose
//! A scan of the checkpoint opens iterators over its tables and steps through several layers a row: some 50 µs a scan and 2 µs a
//! row with every block in memory. A page is the result of that, without gaps: what a range of keys holds.
//!
//! # Protocol
//! ```text
//! scan at k:  page with start <= k < end?  -- yes --> its rows from k on, then go on at its end
//!                    | no
//!                    v
//!             read the view from k to the end or the next page, a page at a time; keep each, if nothing was trimmed meanwhile
//! ```
//! A descending scan does the same the other way round, from the range's end: page with start < k <= end.
//!
//! # Invariants
//! - A page shows what a scan of the view in use, opened now, would show, but for versions that are still in the tail. So a key
//!   that leaves the tail takes its page along ([`Pages::forget`], under the tail's lock), a write set whose keys are not known takes
//!   all, and so does a new view ([`Pages::clear`]). A page is kept only if the tail has trimmed nothing, and the view was not
//!   replaced, since before it was read: both are looked at under the tail's lock.
//! - Pages do not overlap.
//! - All shards of a process hold [`crate::cache::ProcessCache`]'s bound of pages together. A page's bytes are its own: it pins no
//!   block.
//!
//! # On failure
//! Nothing here fails; a page that is not there costs a scan.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use telesto_common::key::KeyRange;

use crate::engine::{Outcome, ReadAhead, RowScan, StoredRow, View, held_bytes};
use crate::row;
use crate::shard::Shard;

/// Bytes of a page at most, but for a row that is longer.
pub(crate) const PAGE_BYTES: usize = 32 << 10;
/// Bookkeeping of a page, and of a row in it, bytes.
const PAGE_OVERHEAD: usize = 256;
const ROW_OVERHEAD: usize = 16;

/// Rows without gaps, in one piece of memory.
#[derive(Debug)]
struct Rows {
    bytes: Bytes,
    /// Where each row's key begins, and its value.
    places: Vec<(u32, u32)>,
}

impl Rows {
    fn key(&self, at: usize) -> &[u8] {
        let (key, value) = self.places[at];
        &self.bytes[key as usize..value as usize]
    }

    fn row(&self, at: usize) -> StoredRow {
        let (key, value) = self.places[at];
        let end = self.places.get(at + 1).map_or(self.bytes.len(), |(next, _)| *next as usize);
        let (key, value) = (key as usize, value as usize);
        (self.bytes.slice(key..value), self.bytes.slice(value..end))
    }

    /// The first row at or behind `key`.
    fn first(&self, key: &[u8]) -> usize {
        self.places
            .partition_point(|(start, value)| &self.bytes[*start as usize..*value as usize] < key)
    }
}

#[derive(Debug)]
struct Page {
    end: Bytes,
    rows: Arc<Rows>,
    weight: u64,
    touched: bool,
}

#[derive(Debug, Default)]
struct Map {
    pages: BTreeMap<Bytes, Page>,
    /// Where the clock's hand is.
    hand: Bytes,
    /// How often all were dropped.
    generation: u64,
}

/// The pages of one shard.
#[derive(Debug)]
pub(crate) struct Pages {
    map: Mutex<Map>,
    budget: Arc<PageBudget>,
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What the pages of a process hold together.
#[derive(Debug)]
pub(crate) struct PageBudget {
    used: AtomicU64,
    limit: u64,
}

impl PageBudget {
    pub(crate) fn new(limit: u64) -> Self {
        Self { used: AtomicU64::new(0), limit }
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

impl Map {
    fn containing(&self, key: &[u8]) -> Option<Bytes> {
        let below = (Bound::Unbounded, Bound::Included(key));
        let (start, page) = self.pages.range::<[u8], _>(below).next_back()?;
        (key < &page.end[..]).then(|| start.clone())
    }

    fn remove(&mut self, start: &Bytes, budget: &PageBudget) {
        if let Some(page) = self.pages.remove(start) {
            budget.used.fetch_sub(page.weight, Ordering::Relaxed);
        }
    }

    /// Drops pages not read since the hand last passed, until there is room.
    fn evict(&mut self, budget: &PageBudget) {
        while budget.used_bytes() > budget.limit && !self.pages.is_empty() {
            let behind = (Bound::Excluded(self.hand.clone()), Bound::Unbounded);
            let Some((start, page)) = self.pages.range_mut::<Bytes, _>(behind).next() else {
                // Round: the empty key is before every page but one that begins with it.
                self.hand = Bytes::new();
                if let Some(first) = self.pages.remove(&self.hand) {
                    budget.used.fetch_sub(first.weight, Ordering::Relaxed);
                }
                continue;
            };
            let start = start.clone();
            if std::mem::take(&mut page.touched) {
                self.hand = start;
            } else {
                self.remove(&start, budget);
            }
        }
    }
}

impl Pages {
    pub(crate) fn new(budget: &Arc<PageBudget>) -> Self {
        Self { map: Mutex::new(Map::default()), budget: Arc::clone(budget) }
    }

    /// Changes when all pages are dropped.
    pub(crate) fn generation(&self) -> u64 {
        self.map.lock().generation
    }

    /// The stored row of a user's key may change: it leaves the tail. The caller holds the tail's lock.
    pub(crate) fn forget(&self, key: &[u8]) {
        let mut map = self.map.lock();
        if map.pages.is_empty() {
            return;
        }
        let stored = row::newest_key(key);
        if let Some(start) = map.containing(&stored) {
            map.remove(&start, &self.budget);
        }
    }

    /// Any row may change.
    pub(crate) fn clear(&self) {
        let mut map = self.map.lock();
        map.generation += 1;
        for page in std::mem::take(&mut map.pages).into_values() {
            self.budget.used.fetch_sub(page.weight, Ordering::Relaxed);
        }
    }

    /// The page that has the rows next to `key` in the scan's direction, and where it ends there. Ascending: the page `key` is
    /// in; descending: that with what is right below it.
    fn find(&self, key: &[u8], reverse: bool) -> Option<(Arc<Rows>, Bytes)> {
        let mut map = self.map.lock();
        let bound = if reverse { Bound::Excluded(key) } else { Bound::Included(key) };
        let (start, page) =
            map.pages.range_mut::<[u8], _>((Bound::Unbounded, bound)).next_back()?;
        let beyond = if reverse { key > &page.end[..] } else { key >= &page.end[..] };
        if beyond {
            return None;
        }
        page.touched = true;
        let far = if reverse { start.clone() } else { page.end.clone() };
        Some((Arc::clone(&page.rows), far))
    }

    /// What the page that `key` is in says of it; `None`: it is in no page.
    pub(crate) fn row(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let (rows, _) = self.find(key, false)?;
        let at = rows.first(key);
        let there = at < rows.places.len() && rows.key(at) == key;
        Some(there.then(|| rows.row(at).1))
    }

    /// Where the next page beyond `key`, which is in none, begins in the scan's direction.
    fn next(&self, key: &[u8], reverse: bool) -> Option<Bytes> {
        let map = self.map.lock();
        if reverse {
            let below = (Bound::Unbounded, Bound::Excluded(key));
            return map.pages.range::<[u8], _>(below).next_back().map(|(_, page)| page.end.clone());
        }
        let behind = (Bound::Excluded(key), Bound::Unbounded);
        map.pages.range::<[u8], _>(behind).next().map(|(start, _)| start.clone())
    }

    fn insert(&self, start: Bytes, end: Bytes, rows: Arc<Rows>, generation: u64) {
        let weight = rows.bytes.len()
            + rows.places.len() * ROW_OVERHEAD
            + start.len()
            + end.len()
            + PAGE_OVERHEAD;
        let weight = weight as u64;
        let mut map = self.map.lock();
        if map.generation != generation || start >= end || weight > self.budget.limit / 4 {
            return;
        }
        // Another scan may have read a part of it meanwhile.
        if let Some(other) = map.containing(&start) {
            map.remove(&other, &self.budget);
        }
        let inside = (Bound::Included(start.clone()), Bound::Excluded(end.clone()));
        let others: Vec<Bytes> =
            map.pages.range::<Bytes, _>(inside).map(|(start, _)| start.clone()).collect();
        others.iter().for_each(|other| map.remove(other, &self.budget));
        self.budget.used.fetch_add(weight, Ordering::Relaxed);
        map.pages.insert(start, Page { end, rows, weight, touched: false });
        map.evict(&self.budget);
    }
}

impl Rows {
    /// Copies rows, which come in ascending order; `None`: one is too long to be kept.
    fn copied<'a>(rows: impl Iterator<Item = &'a StoredRow>) -> Option<Self> {
        let mut bytes = BytesMut::new();
        let mut places = Vec::new();
        for (key, value) in rows {
            if value.len() >= PAGE_BYTES * 64 {
                return None;
            }
            let start = u32::try_from(bytes.len()).ok()?;
            bytes.extend_from_slice(key);
            let middle = u32::try_from(bytes.len()).ok()?;
            bytes.extend_from_slice(value);
            places.push((start, middle));
        }
        Some(Self { bytes: bytes.freeze(), places })
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
    /// What was not given yet, in stored keys.
    rest: KeyRange,
    /// A page being given: where it ends in the scan's direction, and how many of its rows lie before the scan's place.
    page: Option<(Arc<Rows>, Bytes, usize)>,
    /// The view being read, and how far.
    inner: Option<(Box<dyn RowScan>, Bytes)>,
    buffer: VecDeque<StoredRow>,
}

impl PagedScan {
    /// A scan of `range`, in stored keys, which has an end. `trims` was read from the tail, then `generation` from the shard's pages, then `view`.
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
            if let Some((rows, far)) = pages.find(self.place(), reverse) {
                let before = rows.first(self.place());
                self.page = Some((rows, far, before));
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
        let page_rows = self.shard.options.page_rows.max(1);
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
        let (kept, start, end) = if self.reverse {
            (Rows::copied(rows.iter().rev()), far.clone(), self.rest.end.clone())
        } else {
            (Rows::copied(rows.iter()), self.rest.start.clone(), far.clone())
        };
        if let Some(kept) = kept {
            let tail = self.shard.tail.read();
            if tail.trims == self.trims {
                self.shard.pages.insert(start, end, Arc::new(kept), self.generation);
            }
        }
        self.buffer.append(&mut rows);
        let met = self.shard.pages.find(&far, self.reverse).is_some();
        self.move_to(far);
        if !at_end && !met && !self.rest.is_empty() {
            self.inner = Some((scan, limit));
        }
        Ok(())
    }

    /// The next row of the page being given, and whether there is one in the range.
    fn next_of_page(&mut self) -> Option<StoredRow> {
        let (page, _, before) = self.page.as_mut()?;
        if self.reverse {
            let at = before.checked_sub(1)?;
            if page.key(at) < &self.rest.start[..] {
                return None;
            }
            *before = at;
            return Some(page.row(at));
        }
        let at = *before;
        if at >= page.places.len() || page.key(at) >= &self.rest.end[..] {
            return None;
        }
        *before += 1;
        Some(page.row(at))
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
