//! Removes rows that were here and are placed elsewhere now.
//!
//! ```text
//! definitions: this region is not to have it, nobody is getting it ─► all peers stand behind that in this log ─► delete marks, here alone
//! ```
//! # Invariants
//! - Nothing is removed that another region may still be sent from here: the definitions say that
//!   nobody waits for rows, and every peer has this log up to where they do.
//! - What is removed is told to nobody: the marks bear a label of time zero and of another region,
//!   so that no stream takes them for writes of this one, and any version of the row that comes
//!   later wins against them.
//! - All of it holds for the definitions at the commit: their stamp is validated.
//! - Rows that another region has sent by definitions that have not come here yet are not removed
//!   by older ones: see [`crate::ahead`].
//!
//! # On failure
//! It is tried again. While a peer cannot be reached rows stay, unread.
//!
//! # Limits
//! Older versions go with the retention, as those of any deleted row.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_common::{Label, RegionId, Timestamp};
use telesto_shard::Read;
use telesto_txn::service::{CommitWrites, Freshness, RemoteWrites};
use telesto_txn::{Database as _, Reads};

use crate::ahead;
use crate::error::{Error, Result};
use crate::shared::Shared;
use crate::store::checked;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(5);
/// Looks that found nothing after which there is one look in so many, until the definitions change:
/// what was under way has come by then, but for what a region sends that has not heard of them.
const CLEAN: u32 = 12;
/// Keys removed in one entry.
const BATCH: usize = 1000;

/// Looks now and then.
pub(crate) async fn run(shared: Arc<Shared>) {
    let mut clean: (Option<Bytes>, u32) = (None, 0);
    loop {
        shared.env.clock.sleep(LOOK + shared.env.jitter(LOOK)).await;
        match look(&shared, &mut clean).await {
            Ok(()) => {}
            Err(Error::Stopped) => return,
            Err(Error::Engine(telesto_txn::Error::ShuttingDown)) => return,
            Err(error) => tracing::debug!(%error, "rows that are placed elsewhere are still here"),
        }
    }
}

async fn look(shared: &Shared, clean: &mut (Option<Bytes>, u32)) -> Result<()> {
    let Some(tables) = &shared.tables else { return Ok(()) };
    loop {
        let snapshot = shared.store.begin(Freshness::Applied, None).await?;
        let (at, position) = (snapshot.snapshot, shared.engine.applied().0);
        let removed = async {
            let stamp =
                shared.store.get(vec![tables.stamp()], at).await?.pop().and_then(Read::into_value);
            if clean.0 != stamp {
                *clean = (stamp.clone(), 0);
            }
            if clean.1 >= CLEAN {
                clean.1 += 1;
            }
            if stamp.is_none() || clean.1 > CLEAN && !clean.1.is_multiple_of(CLEAN) {
                return Ok(0);
            }
            let meaning = tables.at(at, stamp.as_ref()).await.map_err(Error::Definitions)?;
            let Some(meaning) = meaning else { return Ok(0) };
            let (number, ranges) = (meaning.number(), meaning.not_to_have());
            // Rows are here before the definitions that say so.
            if ahead::number(&shared.store, at).await? > number {
                return Ok(0);
            }
            let behind = |has: u64| has < position.0;
            if ranges.is_empty() {
                clean.1 = clean.1.max(CLEAN);
                return Ok(0);
            }
            if shared.peers.values().any(|peer| behind(peer.has.load(Ordering::Relaxed))) {
                return Ok(0);
            }
            let removed = remove(shared, ranges, at, (number, tables.stamp())).await?;
            match removed {
                0 if clean.1 < CLEAN => clean.1 += 1,
                0 => {}
                _ => clean.1 = 0,
            }
            Ok(removed)
        };
        let removed: Result<usize> = removed.await;
        shared.store.release(&snapshot).await;
        if removed? == 0 {
            return Ok(());
        }
    }
}

/// Removes some of what is in `ranges`, by definitions with this number and stamp; how many keys.
async fn remove(
    shared: &Shared,
    ranges: Vec<KeyRange>,
    at: Timestamp,
    (number, stamp): (u64, Bytes),
) -> Result<usize> {
    let mut keys: Vec<Bytes> = Vec::new();
    for range in ranges {
        let found = shared.store.scan(range, at).await?;
        keys.extend(found.into_iter().map(|row| row.key).take(BATCH - keys.len()));
        if keys.len() == BATCH {
            break;
        }
    }
    if keys.is_empty() {
        return Ok(0);
    }
    keys.sort();
    let other = shared.peers.keys().next().copied();
    let Some(other) = other.filter(|other| *other != shared.config.me) else { return Ok(0) };
    let reads = Reads { points: vec![(stamp, at)], ranges: Vec::new() };
    let count = keys.len();
    let writes = keys.into_iter().map(|key| checked(key, None, at)).collect();
    let remote = vec![marks(shared, other, writes)];
    let writes = CommitWrites::Applied { own: vec![ahead::is(number, at)], remote };
    shared.store.commit(writes, reads, Timestamp::ZERO).await?;
    metrics::counter!("telesto_regions_removed_total").increment(count as u64);
    Ok(count)
}

fn marks(
    shared: &Shared,
    other: RegionId,
    writes: Vec<telesto_txn::service::CheckedWrite>,
) -> RemoteWrites {
    let origin = Label::update(other, Timestamp::ZERO);
    RemoteWrites { txn: shared.env.txn_id(), origin, writes, parts: Vec::new() }
}
