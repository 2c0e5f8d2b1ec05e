//! Carrying out additions where commits are put in order.
//!
//! ```text
//!  group: T1 n+1 | T2 n-3 | T3 n = 7 (read n) | T4 n+1
//!  row as applied: n = 10 ──T1──► 11 ──T2──► 8   T3: n was written by T1 ⇒ conflict   ──T4──► 9
//!  entry: T1 {n = 11} T2 {n = 8} T4 {n = 9}          values, as from any other transaction
//! ```
//! # Invariants
//! - An addition is carried out on the newest version below its own place: what is applied, or what
//!   an earlier transaction of the same entry has written. The entry's slot decides that nothing
//!   comes between: where it is taken, all is computed anew.
//! - The entry holds values. Whoever replays, folds or sends it on needs to know nothing of
//!   additions.
//! - A transaction that adds has no key that would conflict with itself when it is asked for twice:
//!   what it has committed before is looked for by its id, in memory where that covers its
//!   snapshot, else in the checkpoint; and a group takes it once.
//!
//! # On failure
//! What cannot be carried out, or whose row cannot be had at once, is refused
//! ([`Error::NotAdded`]); the others of the group go on.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use telesto_common::{Deadline, Env, Timestamp, TxnId};
use telesto_log::record::{Write, Writes};
use telesto_shard::Shard;

use super::checks::GroupIndex;
use super::committer::Pending;
use crate::additions::{Addition, Additions};
use crate::error::{Error, Result};
use crate::service::{CheckedWrite, CommitWrites};

/// Values of the rows that a group adds to, as of what is applied; `None`: it could not be had.
pub(crate) type Bases = BTreeMap<Bytes, Option<Option<Bytes>>>;

/// What transactions of a group have added, by their places in it.
pub(crate) type Made = BTreeMap<usize, Vec<Write>>;

fn refused(txn: TxnId, key: &Bytes, reason: impl Into<String>) -> Error {
    Error::NotAdded { txn, key: key.clone(), reason: reason.into() }
}

/// Reads the rows that the transactions of a group add to, as of `at`.
pub(crate) async fn bases(
    group: &[Pending],
    shard: &Arc<Shard>,
    at: Timestamp,
    env: &Env,
    by: Deadline,
) -> Bases {
    let mut bases = Bases::new();
    for addition in group.iter().flat_map(|pending| pending.request.writes.additions()) {
        if bases.contains_key(&addition.key) {
            continue;
        }
        let read = match shard.try_get(&addition.key, at) {
            Some(read) => read.ok(),
            None => {
                let reading = shard.get(&addition.key, at);
                let read = env.within(by, "reading a row that is added to", reading).await;
                read.ok().and_then(telesto_shard::Result::ok)
            }
        };
        bases.insert(addition.key.clone(), read.map(telesto_shard::Read::into_value));
    }
    bases
}

/// When the transaction committed, if an earlier attempt of it did.
pub(crate) async fn committed_before(
    pending: &Pending,
    shard: &Shard,
    env: &Env,
    by: Deadline,
) -> Result<Option<Timestamp>> {
    let Some(first) = pending.request.writes.additions().first() else { return Ok(None) };
    let txn = pending.request.txn;
    let since =
        pending.request.writes.additions().iter().map(|a| a.since).min().unwrap_or(first.since);
    if let Some(known) = shard.try_outcome(txn, since) {
        return Ok(known);
    }
    let asked = env.within(by, "reading an outcome", shard.outcome(txn)).await;
    match asked {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(_)) | Err(_) => {
            Err(refused(txn, &first.key, "whether it committed before is not in memory"))
        }
    }
}

/// What the transaction's additions come to at its place in the group; `None`: it makes none.
pub(crate) fn made(
    pending: &Pending,
    index: &GroupIndex,
    bases: &Bases,
    additions: Option<&Arc<dyn Additions>>,
) -> Result<Option<Vec<Write>>> {
    let wanted = pending.request.writes.additions();
    let Some(first) = wanted.first() else { return Ok(None) };
    let txn = pending.request.txn;
    if index.has(txn) {
        return Err(refused(txn, &first.key, "it is asked for twice at once"));
    }
    let additions =
        additions.ok_or_else(|| refused(txn, &first.key, "this node does not know additions"))?;
    let write = |Addition { key, steps, .. }: &Addition| {
        let base = match index.value(key) {
            Some(written) => written,
            None => bases
                .get(key)
                .cloned()
                .flatten()
                .ok_or_else(|| refused(txn, key, "the row could not be read at once"))?,
        };
        let mut row = base.ok_or_else(|| refused(txn, key, "the row is gone"))?;
        for step in steps {
            row = additions.add(&row, step).map_err(|reason| refused(txn, key, reason))?;
        }
        Ok(Write { key: key.clone(), value: Some(row), fresh: false })
    };
    wanted.iter().map(write).collect::<Result<Vec<_>>>().map(Some)
}

/// The writes of an entry's record: the transaction's own, and what it added.
pub(crate) fn together(own: &[CheckedWrite], made: &[Write]) -> Writes {
    let own = own.iter().map(|checked| checked.write.clone());
    let mut all: Vec<Write> = own.chain(made.iter().cloned()).collect();
    all.sort_by(|a, b| a.key.cmp(&b.key));
    Writes::Inline(all)
}

impl CommitWrites {
    /// What is added to rows.
    pub(crate) fn additions(&self) -> &[Addition] {
        match self {
            Self::Adding { additions, .. } => additions,
            Self::Inline(_) | Self::External { .. } | Self::Applied { .. } => &[],
        }
    }
}
