//! Sequences: positions and cached allocation.
//!
//! # Invariants
//! - Values are handed out by small transactions of their own, never rolled back: gaps, no
//!   repetitions.
//! - Of several regions each gives the values of parcels of its own, and keeps its own position:
//!   what sets it in one region sets it there alone, and says so ([`set_here_alone`]).
//! - A region that may have lost what it gave goes on behind it (`sequence/position.rs`).
//! - A sequence made in a transaction not yet committed is advanced in that transaction itself:
//!   nobody else can see it, and what it gave is rolled back with it.
//! - What a session knows of a sequence that a transaction made goes when that is undone: another
//!   one may get its OID.
//! - Who asks after a `setval` has returned gets no value from before it, whichever session of the
//!   process set it.
//! - Every process takes a block of at least [`BLOCK`] values at once; values of different
//!   processes interleave.
//!
//! # Limits
//! `CACHE 1` (the default) takes blocks too: consecutive values of one process, gaps after a
//! restart.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::{DatabaseId, Env};
use telesto_geo::placement::doubt_row;
use telesto_meter::Resource;
use telesto_txn::{Database, ReadFor, Transaction, TxnOptions};

mod position;

pub use self::position::Position;
use self::position::{Stored, decode, encode, in_own_parcel, past_lost};
use super::model::Sequence;
use super::regions::FOUNDER;
use super::snapshot::CatalogSnapshot;
use super::store::{region_sequence_key, sequence_key};
use telesto_sql_types::error::{Error, Result, SqlState};

/// Values taken at once.
pub const BLOCK: i64 = 32;
const ATTEMPTS: u32 = 50;

/// The value after `position`, if the sequence has one left.
fn following(sequence: &Sequence, position: Position) -> Option<i64> {
    if !position.called {
        return Some(position.last);
    }
    let next = position
        .last
        .checked_add(sequence.increment)
        .filter(|n| (sequence.min..=sequence.max).contains(n));
    match next {
        Some(next) => Some(next),
        None if sequence.cycle && sequence.increment > 0 => Some(sequence.min),
        None if sequence.cycle => Some(sequence.max),
        None => None,
    }
}

/// What the process has of a sequence.
#[derive(Debug)]
struct Block {
    /// The catalog object that the values were taken for: ALTER SEQUENCE starts a new block.
    of: Sequence,
    values: std::collections::VecDeque<i64>,
    /// Raised when the values taken before count no longer. Blocks stay, so that no number comes
    /// twice.
    generation: u64,
}

impl Block {
    fn start_over(&mut self) {
        self.values.clear();
        self.generation += 1;
    }
}

/// What [`SequenceCache::take`] found.
#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Value(i64),
    /// None is left: a block is to be taken from the store, for this generation.
    Empty(u64),
}

/// Values taken from the store and not yet given, of all sessions of a process.
#[derive(Debug, Default)]
pub struct SequenceCache {
    blocks: Mutex<BTreeMap<(DatabaseId, u32), Block>>,
    /// The next row id of tables without primary key; 0: none was drawn yet.
    next_row_id: Mutex<i64>,
}

impl SequenceCache {
    fn take(&self, database: DatabaseId, sequence: &Sequence) -> Taken {
        let mut blocks = self.blocks.lock();
        let block = blocks.entry((database, sequence.oid)).or_insert_with(|| Block {
            of: sequence.clone(),
            values: std::collections::VecDeque::new(),
            generation: 0,
        });
        if block.of != *sequence {
            block.of = sequence.clone();
            block.start_over();
        }
        block.values.pop_front().map_or(Taken::Empty(block.generation), Taken::Value)
    }

    /// Keeps values that were asked for in `generation`. A `setval` that has returned since, or
    /// another definition, lets them go: whoever asks from then on must not get what came before.
    fn fill(&self, database: DatabaseId, oid: u32, generation: u64, values: Vec<i64>) {
        if let Some(block) = self.blocks.lock().get_mut(&(database, oid))
            && block.generation == generation
        {
            block.values.extend(values);
        }
    }

    fn forget(&self, database: DatabaseId, oid: u32) {
        // Who takes values has made the block before.
        if let Some(block) = self.blocks.lock().get_mut(&(database, oid)) {
            block.start_over();
        }
    }
}

fn exhausted(sequence: &Sequence) -> Error {
    let (word, bound) =
        if sequence.increment > 0 { ("maximum", sequence.max) } else { ("minimum", sequence.min) };
    Error::new(
        SqlState::SEQUENCE_LIMIT_EXCEEDED,
        format!("nextval: reached {word} value of sequence \"{}\" ({bound})", sequence.name),
    )
}

/// Whether the regions share the values of a sequence, and where this one keeps its position if it
/// is not the one of all.
fn own_position_key(catalog: &CatalogSnapshot, oid: u32) -> (bool, Option<Bytes>) {
    let shared = catalog.is_regional() && !crate::temp::is_temporary(oid);
    let own = shared && catalog.me() != FOUNDER;
    (shared, own.then(|| region_sequence_key(catalog.database, oid)))
}

/// Says where a sequence that was set, or restarted, goes on as before: each region keeps its own
/// position in it. `None`: it does nowhere.
#[must_use]
pub fn set_here_alone(catalog: &CatalogSnapshot, oid: u32) -> Option<String> {
    let (shared, _) = own_position_key(catalog, oid);
    let others = catalog.regions().any(|region| region.id != catalog.me().0);
    let sequence = catalog.sequence(oid).filter(|_| shared && others)?;
    Some(format!(
        "sequence \"{}\" was set in region \"{}\" alone: other regions go on behind the values that they have given, until setval is called in each of them",
        sequence.name,
        catalog.region_name(catalog.me().0)
    ))
}

/// Advances `sequence` by `count` values in `txn`.
async fn advance(
    txn: &Arc<dyn Transaction>,
    catalog: &CatalogSnapshot,
    sequence: &Sequence,
    count: i64,
) -> Result<Vec<i64>> {
    let (shared, own) = own_position_key(catalog, sequence.oid);
    let stored = stored(txn, catalog, sequence, ReadFor::Constraint).await?;
    let doubt = doubt(txn, shared).await?;
    let mut position = match (stored, doubt) {
        (Some(((position, under), true)), Some(doubt)) if under != Some(doubt) => {
            past_lost(sequence, position, doubt)
        }
        (stored, _) => begun(sequence, stored),
    };
    let mut values = Vec::new();
    let mut wrapped = false;
    while (values.len() as i64) < count {
        let Some(mut next) = following(sequence, position) else { break };
        if shared {
            match in_own_parcel(sequence, next, catalog.me()) {
                Some(value) => next = value,
                None if sequence.cycle && !wrapped => {
                    wrapped = true;
                    let first = if sequence.increment > 0 { sequence.min } else { sequence.max };
                    position = Position { last: first, called: false };
                    continue;
                }
                None => break,
            }
        }
        values.push(next);
        position = Position { last: next, called: true };
    }
    if values.is_empty() {
        return Err(exhausted(sequence));
    }
    let key = own.unwrap_or_else(|| sequence_key(catalog.database, sequence.oid));
    txn.put(key, encode((position, doubt))).await?;
    Ok(values)
}

/// Where a sequence stands, as `txn` sees it.
pub async fn read_position(
    txn: &Arc<dyn Transaction>,
    catalog: &CatalogSnapshot,
    sequence: &Sequence,
) -> Result<Position> {
    position_of(txn, catalog, sequence, ReadFor::Constraint).await
}

async fn position_of(
    txn: &Arc<dyn Transaction>,
    catalog: &CatalogSnapshot,
    sequence: &Sequence,
    read_for: ReadFor,
) -> Result<Position> {
    Ok(begun(sequence, stored(txn, catalog, sequence, read_for).await?))
}

fn begun(sequence: &Sequence, stored: Option<(Stored, bool)>) -> Position {
    let first = Position { last: sequence.start, called: false };
    stored.map_or(first, |((position, _), _)| position)
}

/// The region's doubt now, where its values are `shared` with others.
async fn doubt(txn: &Arc<dyn Transaction>, shared: bool) -> Result<Option<u64>> {
    if !shared {
        return Ok(None);
    }
    let Some(row) = txn.get(&doubt_row(), ReadFor::Constraint).await? else { return Ok(None) };
    let number = row[..].try_into().map_err(|_| Error::corrupt("a region's doubt"))?;
    Ok(Some(u64::from_le_bytes(number)))
}

/// The position that is stored, and whether this region has reached it: one that has given none yet
/// begins behind what was given before there were several.
async fn stored(
    txn: &Arc<dyn Transaction>,
    catalog: &CatalogSnapshot,
    sequence: &Sequence,
    read_for: ReadFor,
) -> Result<Option<(Stored, bool)>> {
    let (_, own) = own_position_key(catalog, sequence.oid);
    let first = sequence_key(catalog.database, sequence.oid);
    if let Some(own) = &own
        && let Some(bytes) = txn.get(own, read_for).await?
    {
        return Ok(Some((decode(&bytes)?, true)));
    }
    let Some(bytes) = txn.get(&first, read_for).await? else { return Ok(None) };
    Ok(Some((decode(&bytes)?, own.is_none())))
}

/// Writes a sequence's position in `txn` (TRUNCATE … RESTART IDENTITY, ALTER SEQUENCE RESTART).
pub async fn write_position(
    txn: &Arc<dyn Transaction>,
    catalog: &CatalogSnapshot,
    oid: u32,
    position: Option<Position>,
) -> Result<()> {
    let (shared, own) = own_position_key(catalog, oid);
    let key = own.unwrap_or_else(|| sequence_key(catalog.database, oid));
    match position {
        Some(position) => txn.put(key, encode((position, doubt(txn, shared).await?))).await?,
        None => txn.delete(key).await?,
    }
    Ok(())
}

/// What a transaction of its own does to a sequence.
#[derive(Clone, Copy)]
enum Work {
    Take(i64),
    Set(Option<Position>),
}

/// What a session is inside of: set by the session before each statement.
#[derive(Clone, Debug)]
pub struct SequenceScope {
    /// The catalog of the statement.
    pub catalog: Arc<CatalogSnapshot>,
    /// The transaction, and the catalog before it changed anything (`None`: it has changed
    /// nothing).
    pub txn: Arc<dyn Transaction>,
    /// The catalog the transaction began with, where it has changed it since.
    pub base: Option<Arc<CatalogSnapshot>>,
}

/// What `currval` and `lastval` know.
#[derive(Clone, Debug, Default)]
struct Given {
    /// The value last given by each sequence.
    values: BTreeMap<u32, i64>,
    /// The sequence asked last.
    last: Option<u32>,
    /// Those that the transaction under way has made, and how many savepoints there were when each
    /// was asked first.
    made: BTreeMap<u32, usize>,
    /// Those of `made` that may have been undone with a savepoint: the catalog of the next
    /// statement says which are there.
    doubtful: BTreeSet<u32>,
    savepoints: usize,
}

impl Given {
    fn note(&mut self, oid: u32, value: i64, scope: &SequenceScope) {
        self.values.insert(oid, value);
        if scope.base.as_ref().is_some_and(|base| base.sequence(oid).is_none()) {
            self.made.entry(oid).or_insert(self.savepoints);
        }
    }

    fn forget(&mut self, oid: u32) {
        self.made.remove(&oid);
        self.values.remove(&oid);
        self.last = self.last.filter(|last| *last != oid);
    }

    /// Forgets the doubtful ones that are not `there`.
    fn settle(&mut self, there: impl Fn(u32) -> bool) {
        for oid in std::mem::take(&mut self.doubtful) {
            if !there(oid) {
                self.forget(oid);
            }
        }
    }
}

/// Sequence values of one session (`nextval`, `currval`, `setval`, `lastval`).
pub struct SequenceSession {
    database: Arc<dyn Database>,
    env: Env,
    cache: Arc<SequenceCache>,
    scope: Mutex<Option<SequenceScope>>,
    given: Mutex<Given>,
}

impl fmt::Debug for SequenceSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SequenceSession")
    }
}

impl SequenceSession {
    /// A row id for a table without primary key. A process counts up from a number drawn at random:
    /// rows lie in the order in which they came, and ids of two processes are equal only if the
    /// stretches they have used overlap, which for N rows and P starts of processes is as likely as
    /// N * P to 2^62. Numbers drawn one by one would be equal as likely as N * N.
    pub fn row_id(&self) -> i64 {
        let mut next = self.cache.next_row_id.lock();
        if *next <= 0 {
            // Half of the numbers are kept for other uses: ids are positive.
            *next = i64::try_from(self.env.random.next_u64() >> 2).unwrap_or(0).max(1);
        }
        let id = *next;
        *next = next.checked_add(1).unwrap_or(0);
        id
    }

    /// The sequences of a new session, over those of its process.
    pub fn new(database: Arc<dyn Database>, env: Env, cache: Arc<SequenceCache>) -> Self {
        Self { database, env, cache, scope: Mutex::default(), given: Mutex::default() }
    }

    /// Statements from now on see this scope.
    pub fn enter(&self, scope: SequenceScope) {
        self.given.lock().settle(|oid| scope.catalog.sequence(oid).is_some());
        *self.scope.lock() = Some(scope);
    }

    /// The transaction has committed: what it made stays.
    pub fn committed(&self) {
        let mut given = self.given.lock();
        given.settle(|_| false);
        given.made.clear();
        given.savepoints = 0;
    }

    /// The transaction was rolled back, or is about to be executed again.
    pub fn rolled_back(&self) {
        let mut given = self.given.lock();
        for oid in std::mem::take(&mut given.made).into_keys() {
            given.forget(oid);
        }
        given.doubtful.clear();
        given.savepoints = 0;
    }

    /// The transaction has so many savepoints now; `undone`: what came behind the last of them is
    /// undone.
    pub fn savepoints(&self, count: usize, undone: bool) {
        let mut given = self.given.lock();
        let Given { made, doubtful, savepoints, .. } = &mut *given;
        *savepoints = count;
        for (oid, since) in made.iter_mut() {
            if !undone {
                *since = count.min(*since);
            } else if *since >= count {
                doubtful.insert(*oid);
            }
        }
    }

    /// Forgets what `currval` and `lastval` know (DISCARD SEQUENCES).
    pub fn discard(&self) {
        *self.given.lock() = Given::default();
    }

    /// What `currval` and `lastval` know: the value last given by each sequence, and the sequence
    /// asked last.
    #[must_use]
    pub fn given(&self) -> (BTreeMap<u32, i64>, Option<u32>) {
        let given = self.given.lock();
        (given.values.clone(), given.last)
    }

    /// Has `currval` and `lastval` know what another session of this client knew.
    pub fn go_on(&self, (values, last): (BTreeMap<u32, i64>, Option<u32>)) {
        *self.given.lock() = Given { values, last, ..Given::default() };
    }

    fn find(&self, oid: u32) -> Result<(SequenceScope, Arc<Sequence>)> {
        let scope = self
            .scope
            .lock()
            .clone()
            .ok_or_else(|| Error::internal("a sequence outside a statement"))?;
        let sequence = scope.catalog.sequence(oid).cloned().ok_or_else(|| {
            Error::new(SqlState::UNDEFINED_TABLE, format!("relation with OID {oid} does not exist"))
        })?;
        Ok((scope, sequence))
    }

    /// Whether the sequence as it is here is known only to the transaction under way.
    fn is_private(scope: &SequenceScope, sequence: &Sequence) -> bool {
        // A temporary one is in this session's transactions only.
        crate::temp::is_temporary(sequence.oid)
            || scope
                .base
                .as_ref()
                .is_some_and(|base| base.sequence(sequence.oid).map(|s| &**s) != Some(sequence))
    }

    /// `nextval`: the next value of the sequence with this OID. Never rolled back.
    ///
    /// # Errors
    /// 42P01 for no such sequence, 2200H at its end.
    pub async fn next(&self, oid: u32) -> Result<i64> {
        let (scope, sequence) = self.find(oid)?;
        let database = scope.catalog.database;
        let value = if Self::is_private(&scope, &sequence) {
            let values = advance(&scope.txn, &scope.catalog, &sequence, 1).await?;
            values.first().copied().ok_or_else(|| exhausted(&sequence))?
        } else {
            match self.cache.take(database, &sequence) {
                Taken::Value(value) => value,
                Taken::Empty(generation) => {
                    let work = Work::Take(sequence.cache.max(BLOCK));
                    let mut values = self.alone(&scope.catalog, &sequence, work).await?;
                    let first = values.remove(0);
                    self.cache.fill(database, oid, generation, values);
                    first
                }
            }
        };
        let mut given = self.given.lock();
        given.note(oid, value, &scope);
        given.last = Some(oid);
        Ok(value)
    }

    /// Runs `work` in a transaction of its own until it does not conflict.
    async fn alone(
        &self,
        catalog: &CatalogSnapshot,
        sequence: &Sequence,
        work: Work,
    ) -> Result<Vec<i64>> {
        let mut attempt = 0;
        loop {
            let txn = self.database.begin(TxnOptions::default()).await?;
            let done = match work {
                Work::Take(count) => advance(&txn, catalog, sequence, count).await,
                Work::Set(position) => {
                    write_position(&txn, catalog, sequence.oid, position).await.map(|()| Vec::new())
                }
            };
            if done.is_ok() {
                // No statement says that it will take numbers, so that no cap was asked for what
                // they cost.
                telesto_bucket::meter::toll(&*self.env.clock, Resource::Puts).await;
            }
            let result = match done {
                Ok(value) => txn.commit().await.map(|_| value).map_err(Error::from),
                Err(error) => {
                    txn.rollback();
                    Err(error)
                }
            };
            match result {
                Err(error) if error.conflict().is_some() && attempt < ATTEMPTS => {
                    attempt += 1;
                    let pause = std::time::Duration::from_millis(u64::from(attempt.min(20)));
                    self.env.clock.sleep(self.env.jitter(pause)).await;
                }
                other => return other,
            }
        }
    }

    /// `currval`: the value [`SequenceSession::next`] gave last in this session.
    ///
    /// # Errors
    /// 55000 when there was none.
    pub fn current(&self, oid: u32) -> Result<i64> {
        let (_, sequence) = self.find(oid)?;
        self.given.lock().values.get(&oid).copied().ok_or_else(|| {
            Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!(
                    "currval of sequence \"{}\" is not yet defined in this session",
                    sequence.name
                ),
            )
        })
    }

    /// `lastval`.
    ///
    /// # Errors
    /// 55000 when there was none, or the sequence is gone.
    pub fn last(&self) -> Result<i64> {
        let last = self.last_used().filter(|oid| self.find(*oid).is_ok());
        let given = self.given.lock();
        last.and_then(|oid| given.values.get(&oid).copied()).ok_or_else(|| {
            Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                "lastval is not yet defined in this session",
            )
        })
    }

    /// OID of the sequence that [`SequenceSession::last`] is about.
    #[must_use]
    pub fn last_used(&self) -> Option<u32> {
        self.given.lock().last
    }

    /// `setval`. Never rolled back.
    ///
    /// # Errors
    /// 22003 when out of the sequence's bounds.
    pub async fn set(&self, oid: u32, value: i64, is_called: bool) -> Result<i64> {
        let (scope, sequence) = self.find(oid)?;
        if !(sequence.min..=sequence.max).contains(&value) {
            return Err(Error::new(
                SqlState::NUMERIC_OUT_OF_RANGE,
                format!(
                    "setval: value {value} is out of bounds for sequence \"{}\" ({}..{})",
                    sequence.name, sequence.min, sequence.max
                ),
            ));
        }
        let database = scope.catalog.database;
        let position = Some(Position { last: value, called: is_called });
        if Self::is_private(&scope, &sequence) {
            write_position(&scope.txn, &scope.catalog, oid, position).await?;
        } else {
            self.alone(&scope.catalog, &sequence, Work::Set(position)).await?;
            self.cache.forget(database, oid);
        }
        if is_called {
            self.given.lock().note(oid, value, &scope);
        }
        Ok(value)
    }

    /// The position as stored: (`last_value`, `is_called`). Blocks taken and not yet given count as
    /// given.
    ///
    /// # Errors
    /// 42P01 for no such sequence.
    pub async fn position(&self, oid: u32) -> Result<(i64, bool)> {
        let (scope, sequence) = self.find(oid)?;
        let position = position_of(&scope.txn, &scope.catalog, &sequence, ReadFor::Query).await?;
        Ok((position.last, position.called))
    }
}

#[cfg(test)]
mod tests {
    use telesto_common::RegionId;

    use super::*;
    use crate::regions::MOST_REGIONS;

    fn counting() -> Sequence {
        Sequence {
            oid: 1,
            schema: 1,
            name: "s".to_owned(),
            owner: crate::acl::Owner::BOOTSTRAP,
            acl: None,
            ty: telesto_sql_types::SqlType::Int8,
            start: 1,
            increment: 1,
            min: 1,
            max: i64::MAX,
            cache: 1,
            cycle: false,
            owned_by: None,
            epoch: 0,
            identity: false,
            comment: None,
        }
    }

    #[test]
    fn values_taken_before_a_setval_returned_are_not_kept_behind_it() {
        let (cache, database, sequence) = (SequenceCache::default(), DatabaseId(7), counting());
        assert_eq!(cache.take(database, &sequence), Taken::Empty(0));
        // One session has taken 1 to 32 from the store when another's setval returns.
        cache.forget(database, sequence.oid);
        cache.fill(database, sequence.oid, 0, (2..=32).collect());
        assert_eq!(cache.take(database, &sequence), Taken::Empty(1));
        cache.fill(database, sequence.oid, 1, vec![1001]);
        assert_eq!(cache.take(database, &sequence), Taken::Value(1001));
    }

    #[test]
    fn values_of_another_definition_are_not_kept() {
        let (cache, database, sequence) = (SequenceCache::default(), DatabaseId(7), counting());
        let altered = Sequence { start: 500, epoch: 1, ..counting() };
        assert_eq!(cache.take(database, &sequence), Taken::Empty(0));
        assert_eq!(cache.take(database, &altered), Taken::Empty(1));
        cache.fill(database, sequence.oid, 0, vec![2, 3]);
        cache.fill(database, altered.oid, 1, vec![501, 502]);
        assert_eq!(cache.take(database, &altered), Taken::Value(501));
        // What is left of a definition goes with it.
        assert_eq!(cache.take(database, &sequence), Taken::Empty(2));
        assert_eq!(cache.take(database, &altered), Taken::Empty(3));
    }

    #[test]
    fn regions_give_different_values_and_all_of_them() {
        for (start, increment, min, max) in
            [(1, 1, 1, 5000), (7, 3, -100, 9000), (-2, -5, -9000, 0)]
        {
            let sequence = Sequence { start, increment, min, max, ..counting() };
            let mut given = std::collections::BTreeSet::new();
            for region in 0..MOST_REGIONS {
                let mut position = Position { last: start, called: false };
                while let Some(next) = following(&sequence, position) {
                    let Some(value) = in_own_parcel(&sequence, next, RegionId(region)) else {
                        break;
                    };
                    assert!(given.insert(value), "{value} was given twice");
                    position = Position { last: value, called: true };
                }
            }
            let mut all = Position { last: start, called: false };
            while let Some(value) = following(&sequence, all) {
                assert!(given.contains(&value), "{value} is nobody's");
                all = Position { last: value, called: true };
            }
        }
    }

    #[test]
    fn what_may_be_lost_is_passed_over_as_far_as_there_are_values() {
        let given = Position { last: 500, called: true };
        for (doubt, rounds) in [(0, 64), (6, 256), (1, 4096), (3, 8192)] {
            assert_eq!(past_lost(&counting(), given, doubt).last, 500 + rounds * 512);
        }
        let small = Sequence { max: 32767, ..counting() };
        assert_eq!(past_lost(&small, given, 3).last, 500 + 3 * 512, "a sixteenth of 63 rounds");
        let down = Sequence { increment: -2, min: -32768, max: 1000, ..counting() };
        assert_eq!(past_lost(&down, given, 3).last, 500 - 2 * 2 * 512, "of 32 rounds");
        let full = Sequence { max: 510, ..counting() };
        assert_eq!(past_lost(&full, given, 3), given, "there is none to pass over");
    }
}
