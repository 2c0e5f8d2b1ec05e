//! A sample of a table's rows: all of them where they are few, else blocks from many places of the key space.
//!
//! ```text
//! rows from the beginning, up to a bound ── the end? ──yes──> counted; a uniform choice of them
//!                                             | no
//! what is behind: one stratum ── split the largest, at the middle of its keys, again and again ──> STRATA strata
//!    a stratum: its first and last key, a block of rows from its first; its number of rows by how far the block reached
//! ```
//! # Invariants
//! - At most [`STRATA`] splits, of one seek forwards and one backwards each, and as many blocks: however large the table is.
//! - A stratum begins and ends at keys that are there, so each split looks closer where keys lie close: keys need not be spread
//!   evenly, only those of a small stratum are taken to be.
//! - Each part gives as many rows as its part of the table's rows, as far as it has been read.
//!
//! # On failure
//! Those of the transaction. Nothing is validated: what is read is a sample, whatever else commits.
//!
//! # Limits
//! Holds the rows that are kept, [`MOST_BYTES`] at most: then fewer are kept, not more.

use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_sql_types::error::Result;
use telesto_sql_types::interrupt;
use telesto_txn::{ReadFor, ScanOptions, Transaction};

/// Rows of a table that is read whole.
const WHOLE_ROWS: usize = 50_000;
/// Bytes of them.
const WHOLE_BYTES: usize = 64 << 20;
/// Bytes of rows that are held.
pub(super) const MOST_BYTES: usize = 24 << 20;
/// Parts that what is not read whole is divided into.
const STRATA: usize = 64;
const BATCH: usize = 1000;

/// A row as it is stored.
type Stored = (Bytes, Bytes);

/// Rows of a table.
#[derive(Debug, Default)]
pub struct Sample {
    /// Some rows, by key.
    pub rows: Vec<Stored>,
    /// How many the table has.
    pub total: f64,
    /// Bytes of all of them with their keys.
    pub bytes: f64,
    /// They were all counted.
    pub counted: bool,
}

/// A uniform choice of the rows that came by.
struct Reservoir<'r> {
    wanted: usize,
    kept: Vec<Stored>,
    held: usize,
    seen: u64,
    bytes: u64,
    random: &'r mut (dyn FnMut() -> u64 + Send),
}

fn size((key, value): &Stored) -> usize {
    key.len() + value.len()
}

impl Reservoir<'_> {
    fn add(&mut self, row: Stored) {
        self.seen += 1;
        self.bytes += size(&row) as u64;
        if self.kept.len() < self.wanted {
            self.held += size(&row);
            self.kept.push(row);
        } else {
            let at = (self.random)() % self.seen;
            if let Some(place) = usize::try_from(at).ok().and_then(|at| self.kept.get_mut(at)) {
                self.held = self.held + size(&row) - size(place);
                *place = row;
            }
        }
        if self.held > MOST_BYTES {
            self.wanted = (self.kept.len() / 2).max(1);
            choose(&mut self.kept, self.wanted, self.random);
            self.held = self.kept.iter().map(size).sum();
        }
    }
}

/// Leaves `wanted` of the rows, each as likely as any other.
fn choose(rows: &mut Vec<Stored>, wanted: usize, random: &mut (dyn FnMut() -> u64 + Send)) {
    for at in 0..wanted.min(rows.len()) {
        let left = (rows.len() - at) as u64;
        rows.swap(at, at + (random() % left) as usize);
    }
    rows.truncate(wanted);
}

/// A part of the keys.
struct Stratum {
    first: Bytes,
    last: Bytes,
    /// Rows from `first` on, none behind `last`.
    block: Vec<Stored>,
    /// The middle has nothing on one of its sides.
    whole: bool,
}

impl Stratum {
    fn new(first: Bytes, last: Bytes, mut block: Vec<Stored>) -> Self {
        block.retain(|(key, _)| *key <= last);
        Self { first, last, block, whole: false }
    }

    /// Whether the block is all of it.
    fn is_read(&self) -> bool {
        self.block.last().is_none_or(|(key, _)| *key >= self.last)
    }

    /// How many rows it has: as many as the block, for each time the block's keys fit between its ends.
    fn rows(&self) -> f64 {
        let held = self.block.len() as f64;
        let Some((reached, _)) = self.block.last().filter(|_| !self.is_read()) else { return held };
        let ends = Ends::of(&self.first, &self.last);
        let reach = ends.place(reached);
        if reach <= 0.0 { held } else { (held / reach).max(held + 1.0) }
    }

    fn bytes(&self) -> f64 {
        let held: usize = self.block.iter().map(size).sum();
        held as f64 / (self.block.len() as f64).max(1.0) * self.rows()
    }

    /// A key in the middle; `None`: there is none.
    fn middle(&self) -> Option<Bytes> {
        let Ends { prefix, low, high } = Ends::of(&self.first, &self.last);
        let middle = low + (high - low) / 2;
        let mut key = self.first[..prefix].to_vec();
        key.extend_from_slice(&middle.to_be_bytes());
        (middle > low).then(|| Bytes::from(key))
    }
}

/// Two keys as numbers behind what they have in common.
struct Ends {
    prefix: usize,
    low: u128,
    high: u128,
}

fn number(key: &[u8], from: usize) -> u128 {
    let mut bytes = [0; 16];
    for (to, byte) in bytes.iter_mut().zip(key.get(from..).unwrap_or_default()) {
        *to = *byte;
    }
    u128::from_be_bytes(bytes)
}

impl Ends {
    fn of(first: &[u8], last: &[u8]) -> Self {
        let prefix = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        Self { prefix, low: number(first, prefix), high: number(last, prefix) }
    }

    /// Where a key between them lies, from 0 to 1.
    fn place(&self, key: &[u8]) -> f64 {
        let at = number(key, self.prefix).clamp(self.low, self.high);
        (at - self.low) as f64 / ((self.high - self.low) as f64).max(1.0)
    }
}

/// About `wanted` rows of the keys in `range`.
///
/// # Errors
/// Those of the transaction; 57014.
pub async fn sample(
    txn: &dyn Transaction,
    range: KeyRange,
    wanted: usize,
    random: &mut (dyn FnMut() -> u64 + Send),
) -> Result<Sample> {
    let mut begun = Reservoir { wanted, kept: Vec::new(), held: 0, seen: 0, bytes: 0, random };
    let mut scan = txn.scan(range.clone(), options(false, None));
    let mut reached = None;
    loop {
        interrupt::pace().await?;
        let batch = scan.next_batch(BATCH).await?;
        let Some((key, _)) = batch.last() else {
            let (total, bytes) = (begun.seen as f64, begun.bytes as f64);
            let mut rows = begun.kept;
            rows.sort();
            return Ok(Sample { rows, total, bytes, counted: true });
        };
        reached = Some(key.clone()).or(reached);
        for row in batch {
            begun.add(row);
        }
        if begun.seen as usize >= WHOLE_ROWS.max(wanted) || begun.bytes as usize >= WHOLE_BYTES {
            break;
        }
    }
    drop(scan);
    let Reservoir { kept, seen, bytes, .. } = begun;
    let start = reached.map_or(range.start, |key| KeyRange::point(&key).end);
    let rest = KeyRange::new(start, range.end);
    let strata = divide(txn, rest, (2 * wanted).div_ceil(STRATA)).await?;
    let behind: f64 = strata.iter().map(Stratum::rows).sum();
    let total = seen as f64 + behind;
    let bytes = bytes as f64 + strata.iter().map(Stratum::bytes).sum::<f64>();
    let mut rows = Vec::new();
    let mut take = |mut part: Vec<Stored>, of: f64| {
        choose(&mut part, (wanted as f64 * of / total).round() as usize, random);
        rows.append(&mut part);
    };
    take(kept, seen as f64);
    for stratum in strata {
        let of = stratum.rows();
        take(stratum.block, of);
    }
    rows.sort();
    Ok(Sample { rows, total, bytes, counted: false })
}

fn options(reverse: bool, limit: Option<usize>) -> ScanOptions {
    let limit = limit.and_then(|limit| u64::try_from(limit).ok());
    ScanOptions { reverse, limit, read_for: ReadFor::Passing }
}

/// The first or last rows of a range, as many as are held without regret.
async fn rows_at(
    txn: &dyn Transaction,
    range: KeyRange,
    reverse: bool,
    most: usize,
) -> Result<Vec<Stored>> {
    let mut scan = txn.scan(range, options(reverse, Some(most)));
    let (mut rows, mut held): (Vec<Stored>, usize) = (Vec::new(), 0);
    while rows.len() < most && held < MOST_BYTES / STRATA {
        interrupt::pace().await?;
        let batch = scan.next_batch((most - rows.len()).min(BATCH)).await?;
        if batch.is_empty() {
            break;
        }
        held += batch.iter().map(size).sum::<usize>();
        rows.extend(batch);
    }
    Ok(rows)
}

async fn divide(txn: &dyn Transaction, range: KeyRange, block: usize) -> Result<Vec<Stratum>> {
    let first = rows_at(txn, range.clone(), false, block).await?;
    let last = rows_at(txn, range.clone(), true, 1).await?;
    let (Some((from, _)), Some((to, _))) = (first.first().cloned(), last.first().cloned()) else {
        return Ok(Vec::new());
    };
    let mut strata = vec![Stratum::new(from, to, first)];
    for _ in 1..STRATA {
        let open = strata.iter_mut().filter(|part| !part.whole && !part.is_read());
        let Some(largest) = open.max_by(|a, b| a.rows().total_cmp(&b.rows())) else { break };
        let Some(middle) = largest.middle() else {
            largest.whole = true;
            continue;
        };
        let behind = KeyRange::new(middle.clone(), KeyRange::point(&largest.last).end);
        let before = KeyRange::new(largest.first.clone(), middle);
        let right = rows_at(txn, behind, false, block).await?;
        let left = rows_at(txn, before, true, 1).await?;
        let (Some((from, _)), Some((to, _))) = (right.first().cloned(), left.first().cloned())
        else {
            // Something committed under another snapshot: leave it as it is.
            largest.whole = true;
            continue;
        };
        let end = std::mem::replace(&mut largest.last, to);
        let last = largest.last.clone();
        largest.block.retain(|(key, _)| *key <= last);
        strata.push(Stratum::new(from, end, right));
    }
    Ok(strata)
}
