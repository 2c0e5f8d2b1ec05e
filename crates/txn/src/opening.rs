//! A shard is opened from its checkpoint, and the log replayed on top of it.
//!
//! # Invariants
//! - What is bounded is how long the opening stands still, not how much there is to do: each batch
//!   that was applied, and each fold that made room for more, begins the time anew. So a process
//!   that was away for long opens in one go.
//! - A shard that is opened in the place of another one takes it only when it has all that the
//!   other one has applied.
//!
//! # On failure
//! A log that is trimmed meanwhile has a newer checkpoint: the shard is opened from that one, a
//! bounded number of times.

use std::sync::Arc;
use std::time::Duration;

use telesto_bucket::Cause;
use telesto_common::{Env, Lsn};
use telesto_log::{Error as LogError, VirtualLog};
use telesto_shard::{FoldNeed, Shard, ShardOptions};

use crate::error::Result;

/// Stored bytes of entries read at a time, at most.
pub(crate) const READ_BYTES: usize = 4 << 20;
/// Times a shard is reopened in a row when the log is trimmed past it.
const MAX_REOPENS: u32 = 5;
/// An opening that takes longer says how far it is, each time so much has passed.
const TELLS: Duration = Duration::from_secs(2);

/// Tells of an opening that takes its time.
struct Progress<'a> {
    env: &'a Env,
    from: Lsn,
    began: Duration,
    told: Duration,
}

impl<'a> Progress<'a> {
    fn begin(env: &'a Env, from: Lsn) -> Self {
        let now = env.clock.monotonic();
        Self { env, from, began: now, told: now }
    }

    fn reached(&mut self, next: Lsn) {
        let now = self.env.clock.monotonic();
        if now.saturating_sub(self.told) < TELLS {
            return;
        }
        self.told = now;
        let (from, took) = (self.from.0, now.saturating_sub(self.began));
        tracing::info!(from, next = next.0, ?took, "the log is being replayed");
    }
}

/// Makes room in a tail that is being read from the log.
async fn fold_or_spill(shard: &Shard, env: &Env, patience: Duration) -> Result<()> {
    // What is on disk would have to be folded first: no room would come of it for long.
    if shard.spilled_bytes() == 0 {
        match shard.fold().await {
            Ok(_) => return Ok(()),
            Err(error) if !spill(shard, env, patience).await? => return Err(error.into()),
            Err(error) => tracing::warn!(%error, "the tail goes to the local disk for now"),
        }
        return Ok(());
    }
    match spill(shard, env, patience).await {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(error) => tracing::warn!(%error, "no more of the tail goes to the local disk"),
    }
    shard.fold().await?;
    Ok(())
}

/// [`Shard::make_room`], for no longer than a local disk may stand still.
async fn spill(shard: &Shard, env: &Env, patience: Duration) -> Result<bool> {
    let made = env.within_timeout(patience, "moving a part of the tail to disk", shard.make_room());
    Ok(made.await??)
}

/// Opens a shard and replays the log on top of it. `patience`: how long it may stand still.
pub(crate) async fn open_shard(
    log: &VirtualLog,
    options: &ShardOptions,
    mut opened: Option<Arc<Shard>>,
    before: Option<&Shard>,
    patience: Duration,
) -> Result<Arc<Shard>> {
    let mut reopens = 0;
    loop {
        let shard = match (opened.take(), before) {
            (Some(shard), _) => shard,
            (None, None) => Shard::open(options.clone()).await?,
            (None, Some(before)) => before.open_again().await?,
        };
        let replayed = replay(log, &shard, &options.env, patience).await.transpose();
        let Some(trimmed) = replayed else { return Ok(shard) };
        shard.close().await;
        let trimmed = trimmed?;
        // Another process folded and trimmed meanwhile: its checkpoint is newer.
        reopens += 1;
        if reopens > MAX_REOPENS {
            return Err(trimmed.into());
        }
    }
}

/// Applies the log up to its tail. `Some`: it was trimmed past what the shard has.
async fn replay(
    log: &VirtualLog,
    shard: &Shard,
    env: &Env,
    patience: Duration,
) -> Result<Option<LogError>> {
    let mut progress = Progress::begin(env, shard.replay_from());
    loop {
        let from = shard.replay_from();
        progress.reached(from);
        let batch = match log.read(from, READ_BYTES, Cause::Open, env.deadline(patience)).await {
            Ok(batch) => batch,
            Err(trimmed @ LogError::Trimmed { .. }) => return Ok(Some(trimmed)),
            Err(error) => return Err(error.into()),
        };
        for entry in &batch.entries {
            shard.apply(entry)?;
            if shard.fold_need() == FoldNeed::Full {
                // A tail longer than memory: nobody folded for long.
                fold_or_spill(shard, env, patience).await?;
                progress.reached(shard.replay_from());
            }
        }
        if batch.at_tail {
            return Ok(None);
        }
    }
}
