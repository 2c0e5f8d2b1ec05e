//! Which writes of other regions win against what is here, and what follows from them.
//!
//! ```text
//! writes ─► known, gone, not yet? ─► label greater than the one here? ─► the row, and the index entries that follow from it
//! ```
//! # Invariants
//! - Of two versions of a key the one with the greater label wins; who loses is a conflict, and
//!   told. Where columns merge, what is here takes in what comes, and is kept under the label of
//!   what came: its own labels stand in the row.
//! - An index entry that follows from a row is put and deleted with the row, by what the row was
//!   here: entries fit the rows that are here, whichever of two writers won. An entry is deleted
//!   only while it leads to that row.
//! - All of it holds for the definitions at the snapshot: the stamp is among the reads that the
//!   commit is validated with.
//!
//! # On failure
//! [`Error::NotDefined`]: a row came before the definition of its table. [`Error::Unreadable`]:
//! what follows from a row cannot be computed. Both are tried again.
//!
//! # Limits
//! Rows, and entries they lose, are read once a batch, and held with those that they bring. What is
//! in one entry of the log has a bound, [`INLINE_BYTES`]; whatever a transaction brings about here
//! beyond it lies in part objects, which its record names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::{RegionId, Timestamp};
use telesto_log::record::Write;
use telesto_shard::Read;
use telesto_txn::regions::{
    ConflictView, Definitions, DerivedEntries, Keeper, LabelledValue, Meaning, Merged, Standing,
};
use telesto_txn::service::{CheckedWrite, CommitWrites, Freshness, RemoteWrites};
use telesto_txn::{OUTGOING_OVERHEAD_BYTES, Reads};

use crate::error::{Error, Result};
use crate::inbox::Remote;
use crate::shared::Shared;
use crate::store::{Rank, Store, checked};
use crate::wire::KeyWrite;

/// Bytes of an entry of the log, about: far below what one may have. The rows of the largest
/// transaction that passes fit ([`telesto_txn::MAX_OUTGOING_BYTES`]); what follows from them by the
/// definitions here nobody has counted.
pub(crate) const INLINE_BYTES: usize = 40 << 20;

/// What tables mean, where there are any.
pub(crate) type Tables = Option<Arc<dyn Definitions>>;

/// Transactions sorted out against what is here.
#[derive(Debug, Default)]
pub(crate) struct SortedOut {
    pub remote: Vec<RemoteWrites>,
    /// What is too much for the entry of the log: all of the one of `remote` with this place, to be
    /// its parts.
    pub apart: Vec<(usize, Vec<Write>)>,
    /// Bytes of all transactions with what follows from them, about.
    pub bytes: usize,
    /// What this region says in its own name with them.
    pub own: Vec<CheckedWrite>,
    pub conflicts: Vec<ConflictView>,
    /// What it depends on.
    pub reads: Reads,
}

/// A key as it is here, with what the transactions before have made of it.
#[derive(Clone, Debug, Default)]
struct Present {
    rank: Option<Rank>,
    value: Option<Bytes>,
}

/// What one transaction leaves.
struct Left<'a> {
    transaction: &'a Remote,
    winners: BTreeMap<Bytes, Option<Bytes>>,
    entries: Vec<DerivedEntries>,
}

/// Sorts `transactions` out against the versions at `at` and against those before each. `filling`:
/// they are rows of a snapshot that this region sends. Those of a table that is being defined come
/// before its definition where the defining region sends them, with all index entries.
pub(crate) async fn sort_out(
    store: &Store,
    tables: &Tables,
    transactions: &[Remote],
    at: Timestamp,
    filling: Option<RegionId>,
) -> Result<SortedOut> {
    let mut out = SortedOut::default();
    let meaning = meaning(store, tables, at, &mut out.reads).await?;
    let defining = meaning.as_ref().and_then(|meaning| meaning.defining());
    let early = filling.is_some() && filling == defining;
    let keys = transactions.iter().flat_map(|transaction| &transaction.writes);
    let mut present = read(store, keys.map(|write| write.key.clone()), at).await?;
    let mut left = Vec::with_capacity(transactions.len());
    for transaction in transactions {
        // A transaction that defines something may hold rows of what it defines.
        let defines =
            tables.as_ref().is_some_and(|tables| transaction.written(&tables.stamp()).is_some());
        let read = Reading { meaning: meaning.as_deref(), early: early || defines };
        left.push(winners(transaction, &read, &mut present, &mut out.conflicts)?);
        if let Some(tables) = tables
            && let Some(stamp) = transaction.written(&tables.stamp())
            && let Some((key, value)) = tables.acknowledgement(store.me, stamp)
        {
            out.own.retain(|write| write.write.key != key);
            out.own.push(checked(key, Some(value), at));
        }
    }
    let lost = left.iter().flat_map(|left| &left.entries).flat_map(|entries| &entries.old);
    let mut entries = read(store, lost.map(|entry| entry.key.clone()), at).await?;
    let mut inline = 0;
    for left in left {
        let writes = with_entries(&left, &mut entries);
        if writes.is_empty() {
            continue;
        }
        let size = |(key, value): (&Bytes, &Option<Bytes>)| {
            key.len() + value.as_ref().map_or(0, Bytes::len) + OUTGOING_OVERHEAD_BYTES
        };
        let bytes: usize = writes.iter().map(size).sum();
        out.bytes += bytes;
        let (txn, origin) = (store.env.txn_id(), left.transaction.label);
        let mut remote = RemoteWrites { txn, origin, writes: Vec::new(), parts: Vec::new() };
        if inline + bytes > INLINE_BYTES {
            // Who writes an entry writes the row that it leads to: what becomes of both rests on
            // the rows.
            out.reads.points.extend(left.winners.into_keys().map(|key| (key, at)));
            let write = |(key, value)| Write { key, value, fresh: false };
            out.apart.push((out.remote.len(), writes.into_iter().map(write).collect()));
        } else {
            inline += bytes;
            let writes = writes.into_iter().map(|(key, value)| checked(key, value, at));
            remote.writes = writes.collect();
        }
        out.remote.push(remote);
    }
    Ok(out)
}

/// Commits what was sorted out, in one entry of the log: what is too much for that is put into part
/// objects first. Those of a commit that fails are collected by their age, as those are of a
/// process that dies.
///
/// # Errors
/// [`Error::Stale`] when the parts took so long that they might be gone; those of the bucket and of
/// the commit.
pub(crate) async fn commit(shared: &Shared, sorted: SortedOut, after: Timestamp) -> Result<()> {
    let SortedOut { mut remote, apart, own, reads, .. } = sorted;
    let mut store = shared.store.clone();
    if !apart.is_empty() {
        let (clock, kept) = (&shared.env.clock, shared.engine.keeps_parts());
        let begun = (clock.monotonic(), clock.wall_micros());
        for (place, writes) in apart {
            let Some(remote) = remote.get_mut(place) else { continue };
            remote.parts = shared.engine.put_parts(remote.txn, &writes).await?;
        }
        // By the clock that says more, as whoever collects them counts.
        let by_wall = Duration::from_micros(clock.wall_micros().saturating_sub(begun.1));
        if clock.monotonic().saturating_sub(begun.0).max(by_wall) > kept / 4 {
            return Err(Error::Stale);
        }
        store.timeout = store.timeout.min(kept / 4);
    }
    store.commit(CommitWrites::Applied { own, remote }, reads, after).await?;
    Ok(())
}

/// The region in which definitions are made, by those that are here.
pub(crate) async fn defining(store: &Store, tables: &Tables) -> Result<Option<RegionId>> {
    let snapshot = store.begin(Freshness::Tail, None).await?;
    let meaning = meaning(store, tables, snapshot.snapshot, &mut Reads::default()).await;
    store.release(&snapshot).await;
    Ok(meaning?.and_then(|meaning| meaning.defining()))
}

/// What rows mean at a snapshot; that it is so is added to `reads`.
pub(crate) async fn meaning(
    store: &Store,
    tables: &Tables,
    at: Timestamp,
    reads: &mut Reads,
) -> Result<Option<Arc<dyn Meaning>>> {
    let Some(tables) = tables else { return Ok(None) };
    let stamp = store.get(vec![tables.stamp()], at).await?.pop().and_then(Read::into_value);
    reads.points.push((tables.stamp(), at));
    let meaning = tables.at(at, stamp.as_ref()).await.map_err(Error::Definitions)?;
    Ok(Some(meaning.unwrap_or_else(|| Arc::new(Undefined))))
}

/// What is under `keys` now, and what it means.
pub(crate) async fn read_meant(
    store: &Store,
    tables: &Tables,
    keys: Vec<Bytes>,
) -> Result<(Vec<Read>, Option<Arc<dyn Meaning>>)> {
    let snapshot = store.begin(Freshness::Tail, None).await?;
    let at = snapshot.snapshot;
    let reads = store.get(keys, at).await;
    let meaning = meaning(store, tables, at, &mut Reads::default()).await;
    store.release(&snapshot).await;
    Ok((reads?, meaning?))
}

async fn read(
    store: &Store,
    keys: impl Iterator<Item = Bytes>,
    at: Timestamp,
) -> Result<BTreeMap<Bytes, Present>> {
    let mut present: BTreeMap<Bytes, Present> = keys.map(|key| (key, Present::default())).collect();
    if present.is_empty() {
        return Ok(present);
    }
    let reads = store.get(present.keys().cloned().collect(), at).await?;
    for (present, read) in present.values_mut().zip(reads) {
        if let Read::Found(version) = read {
            *present = Present { rank: Some(store.rank(&version)), value: version.value };
        }
    }
    Ok(present)
}

/// How rows are read.
struct Reading<'a> {
    meaning: Option<&'a dyn Meaning>,
    /// Rows of what is defined later are applied as they come: their index entries come with them.
    early: bool,
}

fn winners<'a>(
    transaction: &'a Remote,
    reading: &Reading<'_>,
    present: &mut BTreeMap<Bytes, Present>,
    conflicts: &mut Vec<ConflictView>,
) -> Result<Left<'a>> {
    let Remote { label, writes, .. } = transaction;
    let rank = (label.timestamp, label.source);
    let mut left = Left { transaction, winners: BTreeMap::new(), entries: Vec::new() };
    for write in writes {
        let KeyWrite { key, value } = write;
        let standing = reading.meaning.map_or(Standing::Known, |meaning| meaning.standing(key));
        match standing {
            Standing::NotYet if !reading.early => {
                return Err(Error::NotDefined { region: label.source });
            }
            Standing::Gone => continue,
            Standing::Known | Standing::NotYet => {}
        }
        let Some(here) = present.get_mut(key) else { continue };
        let meaning = reading.meaning.filter(|_| standing == Standing::Known);
        let Taken { value, lost } = taken(meaning, key, here, (rank, value.as_ref()))
            .map_err(|reason| Error::Unreadable { label: *label, reason })?;
        if let Some((kept, came)) = here.rank.filter(|_| lost).zip(Some(write.value.is_some())) {
            let kind = kind(here.value.is_some(), came).into();
            conflicts.push(ConflictView { kind, key: key.clone(), kept, passed_over: rank });
        }
        let Some(value) = value else { continue };
        if let Some(meaning) = meaning {
            let entries = meaning.entries(label.source, key, here.value.as_ref(), value.as_ref());
            left.entries
                .push(entries.map_err(|reason| Error::Unreadable { label: *label, reason })?);
        }
        *here = Present { rank: Some(rank), value: value.clone() };
        left.winners.insert(key.clone(), value);
    }
    Ok(left)
}

/// What is taken of a version that comes.
struct Taken {
    /// What the key gets; nothing: it stays as it is.
    value: Option<Option<Bytes>>,
    /// Whether something of what came is lost.
    lost: bool,
}

/// The version with the greater label, or both merged, where a table's columns do.
fn taken(
    meaning: Option<&dyn Meaning>,
    key: &Bytes,
    here: &Present,
    came: LabelledValue<'_>,
) -> std::result::Result<Taken, String> {
    let (rank, value) = came;
    if let Some(meaning) = meaning {
        let present = here.rank.map(|kept| (kept, here.value.as_ref()));
        if let Some(Merged { value, lost }) = meaning.merge(key, present, came)? {
            return Ok(Taken { value, lost });
        }
    }
    Ok(match here.rank.filter(|kept| *kept >= rank) {
        Some(kept) => Taken { value: None, lost: kept > rank },
        None => Taken { value: Some(value.cloned()), lost: false },
    })
}

/// As PostgreSQL 18 names conflicts of logical replication; whether what is here, and what came, is
/// a row.
fn kind(here: bool, came: bool) -> &'static str {
    match (here, came) {
        (true, true) => "update_origin_differs",
        (false, true) => "update_deleted",
        (true, false) => "delete_origin_differs",
        (false, false) => "delete_missing",
    }
}

/// The winners with the entries that follow from them. An entry that the transaction brings itself
/// is as it says.
fn with_entries(
    left: &Left<'_>,
    entries: &mut BTreeMap<Bytes, Present>,
) -> BTreeMap<Bytes, Option<Bytes>> {
    let mut writes = BTreeMap::new();
    for old in left.entries.iter().flat_map(|entries| &entries.old) {
        if let Some(here) = entries.get_mut(&old.key)
            && here.value.as_ref() == Some(&old.value)
        {
            here.value = None;
            writes.insert(old.key.clone(), None);
        }
    }
    for new in left.entries.iter().flat_map(|entries| &entries.new) {
        writes.insert(new.key.clone(), Some(new.value.clone()));
    }
    writes.extend(left.winners.clone());
    for (key, value) in &writes {
        if let Some(here) = entries.get_mut(key) {
            here.value.clone_from(value);
        }
    }
    writes
}

/// Before the first definition came: only the system's own rows can be applied.
#[derive(Debug)]
struct Undefined;

impl Meaning for Undefined {
    fn standing(&self, key: &[u8]) -> Standing {
        // Database 0 is the system's.
        if key.starts_with(&[0; 4]) { Standing::Known } else { Standing::NotYet }
    }

    fn entries(
        &self,
        _: RegionId,
        _: &Bytes,
        _: Option<&Bytes>,
        _: Option<&Bytes>,
    ) -> std::result::Result<DerivedEntries, String> {
        Ok(DerivedEntries::default())
    }

    fn keeper(&self, _: &[u8]) -> Keeper {
        Keeper::Other
    }

    fn has_stopped(&self, _: &[u8], _: Option<&Bytes>) -> bool {
        false
    }
}
