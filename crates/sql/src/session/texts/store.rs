//! What all sessions of a process know of texts.
//!
//! ```text
//! (basis, key of the text) ─► shape ─► variant: fixed literals ─► prepared statement, with its plan
//! ```
//! # Invariants
//! - Found is only what was learned under the same [`Basis`], of a text with the same key and the
//!   same fixed literals.
//! - What is held is charged to a budget of its own before it is held. When that is used up, the
//!   shape that was used longest ago goes, whoever's it is.
//! - A text is learned when it comes the second time, so that what comes once pushes nothing out.
//! - Looking up waits for nobody but one who learns in the same part of the store; parts are
//!   sixteen.
//!
//! # On failure
//! Nothing fails: what has no room is not learned.
//!
//! # Limits
//! [`VARIANTS`] statements of a text that differ in fixed literals. "Used longest ago" counts in
//! texts learned, not in time. A text that cannot be learned is looked at again after it came
//! [`PATIENCE`] times.

use std::hash::{BuildHasher as _, BuildHasherDefault};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use telesto_common::limits::{MemoryBudget, Reservation};
use telesto_sql_parser::lifting::{Cut, Place};

use super::basis::{Bases, Basis};
use crate::session::Prepared;
use crate::types::SqlType;

/// What a known statement is taken to hold besides what its text says, bytes (measured: 6 to 11 KB
/// for texts of 60 to 100 bytes).
const STATEMENT_BYTES: u64 = 8 << 10;
/// What each byte of its text adds, bytes.
const BYTES_A_BYTE: u64 = 40;
/// What a text holds of which no statement is known, bytes.
const SHAPE_BYTES: u64 = 256;
/// Statements of a text, by the literals that are no parameters.
const VARIANTS: usize = 4;
/// Parts of the store.
const PARTS: usize = 16;
/// Texts remembered by a part as having come once.
const MET: usize = 256;
/// How often a text that could not be learned goes the ordinary way before that is tried again.
const PATIENCE: u32 = 1024;
/// How often sessions inside of transactions find a statement outdated before one of them learns it
/// again.
const OUTDATED: u32 = 4;

/// A statement of a text.
#[derive(Debug)]
pub(super) struct Variant {
    /// The literals that are no parameters, by their number.
    pub fixed: Vec<(usize, String)>,
    /// The others.
    pub places: Vec<Place>,
    /// What their values are read as: that of the parameter, with the modifier of the column they
    /// are assigned to.
    pub types: Vec<SqlType>,
    /// With the places as parameters; of a text with parameters of its own it is the pattern for
    /// those of sessions.
    pub prepared: Arc<Prepared>,
    /// Found since it was learned, when its plan was one of other definitions.
    stale: AtomicU32,
    _charged: Reservation,
}

impl Variant {
    /// See the fields.
    pub fn new(
        fixed: Vec<(usize, String)>,
        places: Vec<Place>,
        types: Vec<SqlType>,
        prepared: Arc<Prepared>,
        charged: Reservation,
    ) -> Self {
        let stale = AtomicU32::new(0);
        Self { fixed, places, types, prepared, stale, _charged: charged }
    }

    /// It was found stale; whether often enough that even a session which may have an old snapshot
    /// learns it again.
    pub fn is_past(&self) -> bool {
        self.stale.fetch_add(1, Ordering::Relaxed) + 1 >= OUTDATED
    }

    /// Whether a text's fixed literals are these.
    fn has_the_fixed_of(&self, sql: &str, cut: &Cut) -> bool {
        self.fixed.iter().all(|(index, text)| {
            cut.literals.get(*index).is_some_and(|literal| sql[literal.at.clone()] == **text)
        })
    }
}

/// What is known of a text.
pub(super) enum Found {
    /// It is this statement.
    Known(Arc<Variant>, Cut),
    /// It came before, and may be worth knowing.
    Again(Cut),
    /// It goes the ordinary way.
    Nothing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    basis: u64,
    text: String,
}

impl Key {
    fn hash(&self) -> u64 {
        BuildHasherDefault::<FxHasher>::default().hash_one(self)
    }
}

/// A text.
#[derive(Debug)]
struct Shape {
    /// Empty: none could be learned.
    variants: Vec<(Arc<Variant>, AtomicU64)>,
    /// In which turn of the store it was used last.
    used: AtomicU64,
    /// Times that it is still left alone.
    patience: AtomicU32,
    /// Its number stays that of these settings as long as the shape is there.
    _basis: Arc<Basis>,
    _charged: Reservation,
}

#[derive(Debug, Default)]
struct Part {
    shapes: RwLock<FxHashMap<Key, Shape>>,
    /// Hashes of what came once.
    met: Mutex<FxHashSet<u64>>,
}

impl Part {
    /// Whether it was met before; from now on it was.
    fn meets(&self, hash: u64) -> bool {
        let mut met = self.met.lock();
        if met.len() >= MET && !met.contains(&hash) {
            met.clear();
        }
        !met.insert(hash)
    }
}

/// What the store tells of itself.
#[derive(Debug)]
struct Counts {
    hits: metrics::Counter,
    misses: metrics::Counter,
    stale: metrics::Counter,
    learned: metrics::Counter,
    forgotten: metrics::Counter,
    entries: metrics::Gauge,
    bytes: metrics::Gauge,
}

/// See the module's text.
#[derive(Debug)]
pub(in crate::session) struct TextStore {
    parts: [Part; PARTS],
    memory: Arc<MemoryBudget>,
    /// Raised whenever something is learned.
    turn: AtomicU64,
    /// What is in the parts.
    entries: AtomicU64,
    pub bases: Bases,
    counts: Counts,
    #[cfg(test)]
    hits: AtomicU64,
}

/// Marks an access of this turn.
fn touch(used: &AtomicU64, turn: u64) {
    // Only read in most cases, so that processors can share it.
    if used.load(Ordering::Relaxed) != turn {
        used.store(turn, Ordering::Relaxed);
    }
}

impl TextStore {
    /// A store that holds at most `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self {
            parts: Default::default(),
            memory: MemoryBudget::new(bytes),
            turn: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            bases: Bases::default(),
            #[cfg(test)]
            hits: AtomicU64::new(0),
            counts: Counts {
                hits: metrics::counter!("telesto_text_cache_hits_total"),
                misses: metrics::counter!("telesto_text_cache_misses_total"),
                stale: metrics::counter!("telesto_text_cache_stale_total"),
                learned: metrics::counter!("telesto_text_cache_learned_total"),
                forgotten: metrics::counter!("telesto_text_cache_forgotten_total"),
                entries: metrics::gauge!("telesto_text_cache_entries"),
                bytes: metrics::gauge!("telesto_text_cache_bytes"),
            },
        }
    }

    /// What is known of `sql`, which was cut into `cut`.
    pub(super) fn find(&self, basis: &Basis, sql: &str, mut cut: Cut) -> Found {
        let key = Key { basis: basis.number, text: std::mem::take(&mut cut.key) };
        let hash = key.hash();
        let part = self.part(hash);
        let shapes = part.shapes.read();
        let Some(shape) = shapes.get(&key) else {
            drop(shapes);
            self.counts.misses.increment(1);
            cut.key = key.text;
            let again = basis.eager || part.meets(hash);
            return if again { Found::Again(cut) } else { Found::Nothing };
        };
        let turn = self.turn.load(Ordering::Relaxed);
        touch(&shape.used, turn);
        let found = shape.variants.iter().find(|(variant, _)| variant.has_the_fixed_of(sql, &cut));
        if let Some((variant, used)) = found {
            touch(used, turn);
            let variant = Arc::clone(variant);
            drop(shapes);
            cut.key = key.text;
            return Found::Known(variant, cut);
        }
        let again = match shape.variants.len() {
            0 => {
                let left = shape.patience.load(Ordering::Relaxed);
                shape.patience.store(left.saturating_sub(1), Ordering::Relaxed);
                left == 0
            }
            // Whatever its fixed literals are, they came twice.
            VARIANTS.. => part.meets(BuildHasherDefault::<FxHasher>::default().hash_one(sql)),
            _ => true,
        };
        drop(shapes);
        self.counts.misses.increment(1);
        cut.key = key.text;
        if again { Found::Again(cut) } else { Found::Nothing }
    }

    /// A known text runs as what it is known as.
    pub(super) fn hit(&self) {
        self.counts.hits.increment(1);
        #[cfg(test)]
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// A text was known, and its literals are no values for it.
    pub(super) fn miss(&self) {
        self.counts.misses.increment(1);
    }

    /// A text was known, and means something else by now.
    pub(super) fn stale(&self) {
        self.counts.stale.increment(1);
    }

    /// Takes room for a statement of a text as long as `key`; `None`: there is none.
    pub(super) fn room(&self, key: &str) -> Option<Reservation> {
        self.reserve(STATEMENT_BYTES + BYTES_A_BYTE * key.len() as u64)
    }

    fn reserve(&self, bytes: u64) -> Option<Reservation> {
        loop {
            match self.memory.reserve("texts that are known", bytes) {
                Ok(reserved) => return Some(reserved),
                Err(_) if self.forget_one() => {}
                Err(_) => return None,
            }
        }
    }

    /// Remembers the statement of a text; `None`: that there is none.
    pub(super) fn learn(&self, basis: &Arc<Basis>, cut: Cut, variant: Option<Variant>) {
        let key = Key { basis: basis.number, text: cut.key };
        let Some(charged) = self.reserve(SHAPE_BYTES + 2 * key.text.len() as u64) else { return };
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) + 1;
        let mut shapes = self.part(key.hash()).shapes.write();
        let shape = shapes.entry(key).or_insert_with(|| {
            self.entries.fetch_add(1, Ordering::Relaxed);
            Shape {
                variants: Vec::new(),
                used: AtomicU64::new(turn),
                patience: AtomicU32::new(0),
                _basis: Arc::clone(basis),
                _charged: charged,
            }
        });
        shape.used.store(turn, Ordering::Relaxed);
        shape.patience.store(PATIENCE, Ordering::Relaxed);
        if let Some(variant) = variant {
            shape.variants.retain(|(known, _)| known.fixed != variant.fixed);
            if shape.variants.len() >= VARIANTS {
                let used = |(_, used): &(Arc<Variant>, AtomicU64)| used.load(Ordering::Relaxed);
                let oldest = shape.variants.iter().enumerate().min_by_key(|(_, one)| used(one));
                oldest.map(|(at, _)| at).map(|at| shape.variants.swap_remove(at));
            }
            shape.variants.push((Arc::new(variant), AtomicU64::new(turn)));
            self.counts.learned.increment(1);
        }
        drop(shapes);
        self.tell();
    }

    /// Lets the shape go that was used longest ago. `false`: there is none.
    fn forget_one(&self) -> bool {
        let oldest = self.parts.iter().filter_map(|part| {
            let shapes = part.shapes.read();
            let used = |shape: &Shape| shape.used.load(Ordering::Relaxed);
            let (key, shape) = shapes.iter().min_by_key(|(_, shape)| used(shape))?;
            Some((used(shape), part, key.clone()))
        });
        let Some((_, part, key)) = oldest.min_by_key(|(used, ..)| *used) else { return false };
        let gone = part.shapes.write().remove(&key);
        if gone.is_some() {
            self.entries.fetch_sub(1, Ordering::Relaxed);
            self.counts.forgotten.increment(1);
            self.tell();
        }
        true
    }

    fn part(&self, hash: u64) -> &Part {
        // The upper bits: the lower ones choose the place inside of a part's map.
        &self.parts[usize::try_from(hash >> 60).unwrap_or_default() % PARTS]
    }

    #[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
    fn tell(&self) {
        self.counts.entries.set(self.entries.load(Ordering::Relaxed) as f64);
        self.counts.bytes.set(self.memory.used_bytes() as f64);
    }

    /// Texts that were known.
    #[cfg(test)]
    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Texts, and bytes they are charged for.
    #[cfg(test)]
    pub(super) fn size(&self) -> (u64, u64) {
        (self.entries.load(Ordering::Relaxed), self.memory.used_bytes())
    }
}
