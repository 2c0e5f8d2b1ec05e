//! Pages: runs of stored newest rows as the checkpoint has them, kept for the next scan and for
//! point reads.
//!
//! # Purpose
//! A scan of the checkpoint opens iterators over its tables and steps through several layers a row:
//! some 50 µs a scan and 2 µs a row with every block in memory. A page is the result of that,
//! without gaps: what a range of keys holds.
//!
//! # Protocol
//! ```text
//! scan at k:  page with start <= k < end?  -- yes --> its rows from k on, then go on at its end
//!                    | no
//!                    v
//!             read the view from k to the end or the next page, a page at a time; keep each, if nothing was trimmed meanwhile
//! ```
//! A descending scan does the same the other way round, from the range's end: page with start < k
//! <= end.
//!
//! A point read that finds its key in no page reads one row, some 25 µs with its block in memory.
//! Every [`MISSES`]th of those that cost no request has the page at its key read beside it
//! ([`crate::shard::Shard::page_at`]), one at a time: so the price of reads is at most about
//! doubled until what is read often is in pages. While there is no room that is every
//! [`MISSES_WITHOUT_ROOM`]th.
//!
//! # Invariants
//! - A page shows what a scan of the view in use, opened now, would show, but for versions that are
//!   still in the tail. So a version that leaves the tail is written into its page
//!   ([`Pages::change`], under the tail's lock), a write set whose keys are not known takes the
//!   pages it may touch along ([`Pages::forget`]), and a new view all ([`Pages::clear`]). A page is
//!   kept only if the tail has trimmed nothing, and the view was not replaced, since before it was
//!   read: both are looked at under the tail's lock.
//! - A page that was written to may show an older version than the view, whose newer one is in the
//!   tail still: what is read at the newer one's time finds it there, what is read before is right
//!   with the older.
//! - Pages do not overlap.
//! - All shards of a process hold [`crate::cache::ProcessCache`]'s bound of pages together. A
//!   page's bytes are its own: it pins no block.
//!
//! # On failure
//! Nothing here fails; a page that is not there costs a scan.

mod rows;
mod scan;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;
use smallvec::SmallVec;

use crate::api::Version;
use crate::row;

use rows::Rows;
pub(crate) use scan::PagedScan;

/// Bytes of a page at most, but for a row that is longer.
pub(crate) const PAGE_BYTES: usize = 32 << 10;
/// Bytes of a page that rows came into, at most.
const GROWN_BYTES: usize = PAGE_BYTES * 2;
/// Bookkeeping of a page, bytes.
const PAGE_OVERHEAD: usize = 384;
/// Point reads of the checkpoint for each page read beside them: together they cost about as much
/// as it.
const MISSES: u64 = 16;
const MISSES_WITHOUT_ROOM: u64 = 256;

/// Where a page begins. Most keys fit: a search compares them without following a pointer to each.
type Start = SmallVec<[u8; 32]>;

/// What a range of keys holds.
#[derive(Debug)]
struct Page {
    /// Read since the clock's hand last passed.
    touched: AtomicBool,
    end: Start,
    rows: Rows,
    weight: u64,
}

impl Clone for Page {
    fn clone(&self) -> Self {
        let touched = AtomicBool::new(self.touched.load(Ordering::Relaxed));
        let (end, rows) = (self.end.clone(), self.rows.clone());
        Self { touched, end, rows, weight: self.weight }
    }
}

impl Page {
    fn touch(&self) {
        // Not written without need: other threads read beside it.
        if !self.touched.load(Ordering::Relaxed) {
            self.touched.store(true, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Default)]
struct Map {
    /// Apart from what a search goes through.
    pages: BTreeMap<Start, Arc<Page>>,
    /// Where the clock's hand is.
    hand: Start,
    /// How often all were dropped.
    generation: u64,
}

/// The pages of one shard.
#[derive(Debug)]
pub(crate) struct Pages {
    map: RwLock<Map>,
    budget: Arc<PageBudget>,
    /// Point reads of the checkpoint that cost no request.
    misses: AtomicU64,
    /// Whether a page is being read beside one.
    reading: AtomicBool,
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
    fn containing(&self, key: &[u8]) -> Option<Start> {
        let below = (Bound::Unbounded, Bound::Included(key));
        let (start, page) = self.pages.range::<[u8], _>(below).next_back()?;
        (key < &page.end[..]).then(|| start.clone())
    }

    fn remove(&mut self, start: &[u8], budget: &PageBudget) {
        if let Some(page) = self.pages.remove(start) {
            budget.used.fetch_sub(page.weight, Ordering::Relaxed);
        }
    }

    /// Drops pages not read since the hand last passed, until there is room.
    fn evict(&mut self, budget: &PageBudget) {
        while budget.used_bytes() > budget.limit && !self.pages.is_empty() {
            let behind = (Bound::Excluded(&self.hand[..]), Bound::Unbounded);
            let Some((start, page)) = self.pages.range::<[u8], _>(behind).next() else {
                // Round: the empty key is before every page but one that begins with it.
                self.hand = Start::new();
                self.remove(&[], budget);
                continue;
            };
            let start = start.clone();
            if !page.touched.swap(false, Ordering::Relaxed) {
                self.remove(&start, budget);
            }
            // Also past one that goes: else pages that come and go at low keys would keep the hand
            // from the others.
            self.hand = start;
        }
    }
}

impl Pages {
    pub(crate) fn new(budget: &Arc<PageBudget>) -> Self {
        Self {
            map: RwLock::new(Map::default()),
            budget: Arc::clone(budget),
            misses: AtomicU64::new(0),
            reading: AtomicBool::new(false),
        }
    }

    /// Changes when all pages are dropped.
    pub(crate) fn generation(&self) -> u64 {
        self.map.read().generation
    }

    /// The version of a user's key that leaves the tail, as it is stored. The caller holds the
    /// tail's lock.
    pub(crate) fn change(&self, key: &[u8], stored: impl FnOnce() -> Bytes) {
        let mut map = self.map.write();
        if map.pages.is_empty() {
            return;
        }
        let key = row::newest_key(key);
        let Some(start) = map.containing(&key) else { return };
        let Some(page) = map.pages.get_mut(&start) else { return };
        // A scan that holds it goes on with what it was.
        let page = Arc::make_mut(page);
        let rows = &mut page.rows;
        let grown = rows.change(&key, &stored()).is_none() || rows.bytes() > GROWN_BYTES;
        let weight = weight_of(&start, &page.end, rows);
        let before = std::mem::replace(&mut page.weight, weight);
        self.budget.used.fetch_add(weight, Ordering::Relaxed);
        self.budget.used.fetch_sub(before, Ordering::Relaxed);
        if grown {
            map.remove(&start, &self.budget);
        } else {
            map.evict(&self.budget);
        }
    }

    /// Any row between two keys of a user, both included, may change. The caller holds the tail's
    /// lock.
    pub(crate) fn forget(&self, first: &[u8], last: &[u8]) {
        let mut map = self.map.write();
        if map.pages.is_empty() {
            return;
        }
        let (first, last) = (row::newest_key(first), row::newest_key(last));
        let begins = map.containing(&first).unwrap_or_else(|| Start::from_slice(&first));
        let between = (Bound::Included(&begins[..]), Bound::Included(&last[..]));
        let starts: Vec<Start> =
            map.pages.range::<[u8], _>(between).map(|(start, _)| start.clone()).collect();
        starts.iter().for_each(|start| map.remove(start, &self.budget));
    }

    /// Notes a point read of the checkpoint that cost no request. `true`: a page should be read
    /// beside it, after which [`Pages::read`] must be called.
    pub(crate) fn missed(&self) -> bool {
        let limit = self.budget.limit;
        let room = self.budget.used_bytes() < limit / 8 * 7;
        let each = if room { MISSES } else { MISSES_WITHOUT_ROOM };
        let misses = self.misses.fetch_add(1, Ordering::Relaxed) + 1;
        misses.is_multiple_of(each)
            && PAGE_BYTES as u64 <= limit / 4
            && !self.reading.swap(true, Ordering::AcqRel)
    }

    /// The page read beside a point read is there, or could not be read.
    pub(crate) fn read(&self) {
        self.reading.store(false, Ordering::Release);
    }

    /// Any row may change.
    pub(crate) fn clear(&self) {
        let mut map = self.map.write();
        map.generation += 1;
        for page in std::mem::take(&mut map.pages).into_values() {
            self.budget.used.fetch_sub(page.weight, Ordering::Relaxed);
        }
    }

    /// The page that has the rows next to `key` in the scan's direction, and where it ends there.
    /// Ascending: the page `key` is in; descending: that with what is right below it.
    fn find(&self, key: &[u8], reverse: bool) -> Option<(Arc<Page>, Bytes)> {
        let map = self.map.read();
        let bound = if reverse { Bound::Excluded(key) } else { Bound::Included(key) };
        let (start, page) = map.pages.range::<[u8], _>((Bound::Unbounded, bound)).next_back()?;
        let beyond = if reverse { key > &page.end[..] } else { key >= &page.end[..] };
        if beyond {
            return None;
        }
        page.touch();
        let far = Bytes::copy_from_slice(if reverse { start } else { &page.end });
        Some((Arc::clone(page), far))
    }

    /// What the page that a user's `key` is in says of it, `path` being the checkpoint's; the inner
    /// `None`: it has no row. `None`: it is in no page, or does not decode.
    pub(crate) fn version(&self, path: &str, key: &[u8]) -> Option<Option<Version>> {
        let mut stored = SmallVec::<[u8; 64]>::new();
        row::push_newest_key(key, &mut stored);
        let key = &stored[..];
        let map = self.map.read();
        let below = (Bound::Unbounded, Bound::Included(key));
        let (_, page) = map.pages.range::<[u8], _>(below).next_back()?;
        if key >= &page.end[..] {
            return None;
        }
        page.touch();
        match page.rows.value(key) {
            None => Some(None),
            Some((piece, at)) => row::copy_newest(path, piece, at).ok().map(Some),
        }
    }

    /// Where the next page beyond `key`, which is in none, begins in the scan's direction.
    fn next(&self, key: &[u8], reverse: bool) -> Option<Bytes> {
        let map = self.map.read();
        if reverse {
            let below = (Bound::Unbounded, Bound::Excluded(key));
            let next = map.pages.range::<[u8], _>(below).next_back();
            return next.map(|(_, page)| Bytes::copy_from_slice(&page.end));
        }
        let behind = (Bound::Excluded(key), Bound::Unbounded);
        let next = map.pages.range::<[u8], _>(behind).next();
        next.map(|(start, _)| Bytes::copy_from_slice(start))
    }

    fn insert(&self, start: &[u8], end: &[u8], rows: Rows, generation: u64) {
        let weight = weight_of(start, end, &rows);
        let mut map = self.map.write();
        if map.generation != generation || start >= end || weight > self.budget.limit / 4 {
            return;
        }
        // Another scan may have read a part of it meanwhile.
        if let Some(other) = map.containing(start) {
            map.remove(&other, &self.budget);
        }
        let inside = (Bound::Included(start), Bound::Excluded(end));
        let others: Vec<Start> =
            map.pages.range::<[u8], _>(inside).map(|(start, _)| start.clone()).collect();
        others.iter().for_each(|other| map.remove(other, &self.budget));
        self.budget.used.fetch_add(weight, Ordering::Relaxed);
        let end = Start::from_slice(end);
        let page = Page { touched: AtomicBool::new(false), end, rows, weight };
        map.pages.insert(Start::from_slice(start), Arc::new(page));
        map.evict(&self.budget);
    }
}

fn weight_of(start: &[u8], end: &[u8], rows: &Rows) -> u64 {
    (rows.weight() + start.len() + end.len() + PAGE_OVERHEAD) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page of the keys that begin with `n`, of some 4 kB.
    fn insert(pages: &Pages, n: u32) {
        let (start, end) = (n.to_be_bytes(), (n + 1).to_be_bytes());
        let value = [b'v'; 4 << 10];
        let rows = Rows::copied(std::iter::once((&start[..], &value[..]))).expect("a short row");
        pages.insert(&start, &end, rows, pages.generation());
    }

    fn is_there(pages: &Pages, n: u32) -> bool {
        pages.map.read().pages.contains_key(&n.to_be_bytes()[..])
    }

    #[test]
    fn a_page_that_is_read_outlives_a_scan_of_what_is_not() {
        let budget = Arc::new(PageBudget::new(256 << 10));
        let pages = Pages::new(&budget);
        let often = 500;
        insert(&pages, often);
        // A scan of 1000 pages, four times what there is room for; the one page is read all along.
        for n in 0..1000 {
            assert!(pages.find(&often.to_be_bytes(), false).is_some(), "gone after {n} pages");
            if n != often {
                insert(&pages, n);
            }
            assert!(budget.used_bytes() <= budget.limit);
        }
        let kept: Vec<u32> = (0..1000).filter(|n| is_there(&pages, *n)).collect();
        assert!(kept.len() > 40 && kept.contains(&often), "{kept:?}");
        // Read no more, it goes when the hand has passed it twice.
        (0..4).for_each(|_| (0..400).for_each(|n| insert(&pages, n)));
        assert!(!is_there(&pages, often));
        pages.clear();
        assert_eq!(budget.used_bytes(), 0);
    }
}
