//! What a region counts while it cannot know whether it has lost commits: apart from what it
//! counted before.
//!
//! ```text
//! opens ── every peer stands in this log? ─ yes ─► usual life (0)
//!                                         └ no ──► a life of its own ── all have said so, what was lost is back ─► usual life
//! ```
//! A column that merges holds a total of each region. Were the total that a restored region goes on
//! from less than what a peer has had of it, one of the two would take the other's place, and what
//! only the other counted were gone. So they stand beside each other.
//!
//! # Invariants
//! - Before a region opens without having heard of all, its life is a number that was never used.
//! - The usual life is taken up again only when no peer has anything of this region that is not
//!   here.
//!
//! # On failure
//! Until the row is written the region does not open; that the usual life is taken up again is
//! tried until it is.
//!
//! # Limits
//! Parts of a life stay in the rows that were written in it. A peer that is gone for good says
//! nothing: what it alone had had of this region is gone with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::{Env, Timestamp};
use telesto_geo::placement::{doubt_row, life_row};
use telesto_txn::service::CheckedWrite;

use crate::error::{Error, Result};
use crate::shared::Shared;
use crate::store::checked;

/// Before it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Says what the region counts as from here on: before anything is written by clients.
pub(crate) async fn begin(shared: &Shared) -> Result<()> {
    if !shared.is_certain() {
        let life = shared.env.random.next_u64() | 1;
        tracing::warn!(
            life,
            "not all regions have said where they stand: columns that merge are counted apart until they have"
        );
        put(shared, Some(life)).await?;
        shared.store.put(vec![doubt_write(&shared.env, false)]).await?;
        shared.keep_suspects().await?;
    }
    // All have said it by now, perhaps; then nobody else takes the usual life up again.
    settle(shared).await?;
    shared.config.opened.store(true, Ordering::Release);
    Ok(())
}

/// Takes the usual life up again when all have said where they stand.
pub(crate) async fn run(shared: Arc<Shared>) {
    let everybody = shared.peers.len();
    let mut certain = shared.certain.subscribe();
    if certain.wait_for(|certain| certain.len() >= everybody).await.is_err() {
        return;
    }
    while let Err(error) = settle(&shared).await {
        if matches!(error, Error::Stopped) {
            return;
        }
        tracing::warn!(%error, "columns that merge are still counted apart");
        shared.env.clock.sleep(AGAIN).await;
    }
}

async fn settle(shared: &Shared) -> Result<()> {
    if !shared.is_certain() {
        return Ok(());
    }
    if shared.store.row(life_row(), None).await?.is_some() {
        put(shared, None).await?;
    }
    shared.clear_suspects().await
}

/// The write that begins a new doubt: what this region gave by positions of its own may be lost
/// here, or is (`lost`), and be elsewhere.
pub(crate) fn doubt_write(env: &Env, lost: bool) -> CheckedWrite {
    let doubt = env.random.next_u64() & !1 | u64::from(lost);
    let doubt = Bytes::copy_from_slice(&doubt.to_le_bytes());
    checked(doubt_row(), Some(doubt), Timestamp::MAX)
}

async fn put(shared: &Shared, life: Option<u64>) -> Result<()> {
    let life = life.map(|life| Bytes::copy_from_slice(&life.to_le_bytes()));
    shared.store.put(vec![checked(life_row(), life, Timestamp::MAX)]).await
}
