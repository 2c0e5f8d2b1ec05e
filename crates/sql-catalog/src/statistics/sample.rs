//! A sample of a table's rows: all of them where they are few, else blocks from many places of the
//! key space.
//!
//! ```text
//! rows from the beginning, up to a bound ── the end? ──yes──> counted; a uniform choice of them
//!                                             | no
//! what is behind: one stratum ── split the largest, at the middle of its keys, again and again ──> STRATA strata
//!    a stratum: its first and last key, a block of rows from its first; its number of rows by how far the block reached
//!
//!    a block that ends within its first group, keys of several columns:   7,1  7,2  7,3 | … 7,9000   8,1 …      … 20,9000
//!      how many the group has, by how far the block reached in it:        └─ 3 of 9000 ──────────┘
//!      how many the stratum has, by how far the group reached in it:      └─ 1 of 14 ─────────────────────────────────┘
//! ```
//! # Invariants
//! - At most [`STRATA`] splits, of one seek forwards and one backwards each, and as many blocks,
//!   each with [`STEPS`] further seeks either way: however large the table is.
//! - A stratum begins and ends at keys that are there, so each split looks closer where keys lie
//!   close: keys need not be spread evenly, only those of a small stratum are taken to be. Numbers
//!   of a key's second column lie close together within each value of the first and leave the rest
//!   of their range empty, so what a block covers there says nothing of what is behind the group.
//! - Each part gives as many rows as its part of the table's rows, as far as it has been read.
//!
//! # On failure
//! Those of the transaction. Nothing is validated: what is read is a sample, whatever else commits.
//!
//! # Limits
//! Holds the rows that are kept, [`MOST_BYTES`] at most: then fewer are kept, not more.

use bytes::Bytes;
use telesto_common::key::{KeyRange, successor};
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
/// Groups within groups that are looked at behind a block.
const STEPS: usize = 4;
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

/// Rows that the keys of a stratum begin with: a block, or a group of which a block is the
/// beginning.
#[derive(Clone, Debug)]
struct Begun {
    rows: f64,
    /// The last key of them.
    end: Bytes,
    /// The first key behind them.
    next: Bytes,
}

impl Begun {
    /// The rows before the last of a block.
    fn block(block: &[Stored]) -> Option<Self> {
        let [.., (end, _), (next, _)] = block else { return None };
        Some(Self { rows: (block.len() - 1) as f64, end: end.clone(), next: next.clone() })
    }

    /// How many rows lie between `first`, with which these begin, and `last`: as many as these for
    /// each time that they fit in there, each with the gap behind it.
    fn fill(&self, first: &Bytes, last: &Bytes) -> f64 {
        let ends = Ends::of(first, last);
        let (end, next) = (ends.place(&self.end), ends.place(&self.next));
        if next > 0.0 { self.rows * (1.0 + next - end) / next } else { self.rows }
    }
}

/// A part of the keys.
struct Stratum {
    first: Bytes,
    last: Bytes,
    /// Rows from `first` on, none behind `last`.
    block: Vec<Stored>,
    /// Groups that `first` begins, each around the one before.
    groups: Vec<Begun>,
    /// The middle has nothing on one of its sides.
    whole: bool,
}

impl Stratum {
    /// # Errors
    /// Those of the transaction.
    async fn new(
        txn: &dyn Transaction,
        first: Bytes,
        last: Bytes,
        mut block: Vec<Stored>,
    ) -> Result<Self> {
        block.retain(|(key, _)| *key <= last);
        let mut part = Self { first, last, block, groups: Vec::new(), whole: false };
        part.look_at_groups(txn).await?;
        Ok(part)
    }

    /// Finds where the groups end that the block does not fill, and how many rows they have.
    async fn look_at_groups(&mut self, txn: &dyn Transaction) -> Result<()> {
        let Some(mut begun) = Begun::block(&self.block).filter(|_| !self.is_read()) else {
            return Ok(());
        };
        for _ in 0..STEPS {
            if !self.lies_deep(&begun.next) {
                break;
            }
            let group = &self.first[..common(&self.first, &begun.next)];
            let behind = successor(group);
            let within = KeyRange::new(self.first.clone(), behind.clone());
            let rest = KeyRange::new(behind, KeyRange::point(&self.last).end);
            let end = rows_at(txn, within, true, 1).await?.into_iter().next();
            let following = rows_at(txn, rest, false, 1).await?.into_iter().next();
            let (Some((end, _)), Some((next, _))) = (end, following) else { break };
            begun = Begun { rows: begun.fill(&self.first, &end), end, next };
            self.groups.push(begun.clone());
        }
        Ok(())
    }

    /// Whether a key differs from the first so far behind where the last one does that it may lie
    /// in another column.
    fn lies_deep(&self, key: &[u8]) -> bool {
        common(&self.first, key) > common(&self.first, &self.last) + 1
    }

    /// Whether the block is all of it.
    fn is_read(&self) -> bool {
        self.block.last().is_none_or(|(key, _)| *key >= self.last)
    }

    /// How many rows it has: by its block, or by the first group that is wide enough to say it.
    fn rows(&self) -> f64 {
        let held = self.block.len() as f64;
        let Some(block) = Begun::block(&self.block) else { return held };
        if self.is_read() {
            return held;
        }
        let within = self.groups.iter().take_while(|group| group.next <= self.last);
        let mut begun = &block;
        for group in within {
            if !self.lies_deep(&begun.next) {
                break;
            }
            begun = group;
        }
        begun.fill(&self.first, &self.last).max(held + 1.0)
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

/// How many bytes two keys begin with alike.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
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
        let prefix = common(first, last);
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
    while rows.len() < most && (held < MOST_BYTES / STRATA || rows.len() < 2) {
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
    let mut strata = vec![Stratum::new(txn, from, to, first).await?];
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
        strata.push(Stratum::new(txn, from, end, right).await?);
    }
    Ok(strata)
}
