//! Background work of one process: folding, following other processes' folds, trimming, collecting.
//!
//! # Invariants
//! - Nothing is done, and no request made, when there is nothing to do.
//! - A process that did not fold last waits until the tail is past twice the interval before it
//!   takes the fold over, so that the living one is not fenced without need; at the memory limit
//!   anyone folds.
//! - Taking the fold over fences whoever folds, so processes at their limits together must not do
//!   it in turns, each losing its work to the next: one that is about to take over looks at the
//!   newest checkpoint first and leaves the fold to whoever has just advanced it, and one that was
//!   fenced stands back, longer each time.
//! - The log is trimmed only below a durable checkpoint, and only after one (the log keeps entries
//!   for the retention window besides).
//! - Nothing is folded, trimmed or collected before the chain was looked at: a process whose
//!   database was removed, and another one put in its place, must not write its checkpoint over
//!   that one's, nor delete what it does not know.
//! - The log's owner ships what it is about to fold first, so that the bucket's log goes as far as
//!   the checkpoint. Where that fails, and on other nodes, the checkpoint may be ahead of it by
//!   what the archive is late; a recovery from lost disks goes on behind the checkpoint then.
//! - A part object is deleted only when nobody can need it ([`crate::parts`]): no commit that is
//!   not folded names it, and none that is still to come can.
//!
//! # On failure
//! Logged, counted, tried again at the next round: the log has everything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use telesto_common::Lsn;
use telesto_shard::{FoldNeed, FoldOutcome};

use crate::error::Result;
use crate::local::Local;
use crate::parts::Collector;

/// How often the need for a fold is looked at, at most and at least.
const SHORTEST_ROUND: Duration = Duration::from_millis(50);
const LONGEST_ROUND: Duration = Duration::from_secs(5);
/// How long a process leaves the fold to another one that advances.
const FOLLOW: Duration = Duration::from_secs(1);
/// How long a fold waits for the archive.
const SHIPPING: Duration = Duration::from_secs(5);
/// How long a process that was fenced stands back, at least (twice as long each time) and at most.
const STAND_BACK: Duration = Duration::from_secs(1);
const STAND_BACK_LONGEST: Duration = Duration::from_secs(15);

/// The background task.
#[derive(Debug)]
pub(crate) struct Maintenance {
    local: Arc<Local>,
    /// Whether this process folded last.
    folds: AtomicBool,
}

/// When things were last done.
#[derive(Debug, Default)]
struct Done {
    collected: Duration,
    collected_at: Lsn,
    trimmed: Duration,
    reclaimed: Duration,
    trimmed_at: Lsn,
    /// Until when another process is left to fold.
    stands_back: Duration,
    /// How often in a row this process was fenced.
    fenced: u32,
    parts: Collector,
}

impl Maintenance {
    pub fn new(local: Arc<Local>) -> Self {
        Self { local, folds: AtomicBool::new(false) }
    }

    /// Runs until aborted.
    pub async fn run(self: Arc<Self>) {
        let local = &self.local;
        let env = &local.env;
        let round = (local.options.checkpoint_interval / 4).clamp(SHORTEST_ROUND, LONGEST_ROUND);
        let now = env.clock.monotonic();
        let mut done = Done { collected: now, trimmed: now, reclaimed: now, ..Done::default() };
        // Whoever watches finds it from the start, not from the first round on.
        metrics::gauge!("telesto_txn_tail_bytes").set(local.shard().tail_bytes() as f64);
        loop {
            let pause = round + env.jitter(round / 4);
            // Either someone wants a fold or it is time to look.
            let _ = env
                .within(env.deadline(pause), "the next round", local.fold_wanted.notified())
                .await;
            if let Err(error) = self.round(&mut done).await {
                metrics::counter!("telesto_txn_maintenance_failures_total").increment(1);
                tracing::warn!(%error, "background work failed; it is tried again");
                env.clock.sleep(round + env.jitter(round)).await;
            }
        }
    }

    async fn round(&self, done: &mut Done) -> Result<()> {
        let local = &self.local;
        let shard = local.shard();
        metrics::gauge!("telesto_txn_tail_bytes").set(shard.tail_bytes() as f64);
        metrics::gauge!("telesto_txn_tail_spilled_bytes").set(shard.spilled_bytes() as f64);
        local.leases.expire(local.env.clock.monotonic());
        local.refresh(&shard).await?;
        // The shard says `Due` only to the process that folded last.
        if shard.fold_need() != FoldNeed::None && local.env.clock.monotonic() >= done.stands_back {
            self.fold_or_follow(done).await?;
        }
        let now = local.env.clock.monotonic();
        let checkpointed = shard.checkpointed();
        if !self.folds.load(Ordering::Relaxed) {
            return Ok(());
        }
        let trim_every = (local.log.chain().retention() / 16).max(local.options.upkeep.trim_every);
        if checkpointed > done.trimmed_at && now.saturating_sub(done.trimmed) >= trim_every {
            done.trimmed = now;
            done.trimmed_at = checkpointed;
            local.trim(checkpointed).await?;
        }
        let collect_every = local.options.upkeep.collect_every;
        let wait = now.saturating_sub(done.collected) < collect_every;
        if !wait && (checkpointed > done.collected_at || shard.has_replaced()) {
            done.collected = now;
            done.collected_at = checkpointed;
            local.log.refresh(local.env.deadline(local.options.timeout)).await?;
            shard.collect().await?;
            done.parts.collect(local).await?;
        }
        // What was dropped may go long after the last fold, once no snapshot can ask for it.
        let reclaim_every = (local.log.chain().retention() / 16).max(LONGEST_ROUND / 5);
        if now.saturating_sub(done.reclaimed) >= reclaim_every.min(collect_every) {
            done.reclaimed = now;
            shard.reclaim_aside();
        }
        Ok(())
    }

    /// Folds, unless another process is seen to do it.
    async fn fold_or_follow(&self, done: &mut Done) -> Result<()> {
        let env = &self.local.env;
        let pause = if !self.folds.load(Ordering::Relaxed) && self.local.shard().follow().await? {
            self.local.folded.notify_waiters();
            FOLLOW
        } else {
            let started = env.clock.monotonic();
            if self.fold().await? != FoldOutcome::Fenced {
                done.fenced = 0;
                return Ok(());
            }
            done.fenced = done.fenced.saturating_add(1);
            let took = env.clock.monotonic().saturating_sub(started);
            let pause = took.max(STAND_BACK).saturating_mul(1 << done.fenced.min(4));
            pause.min(STAND_BACK_LONGEST)
        };
        done.stands_back = env.clock.monotonic() + pause + env.jitter(pause / 2);
        Ok(())
    }

    /// Ships what is applied, if this process owns the log, and gives how far the checkpoint may
    /// go.
    async fn ship(&self) -> Lsn {
        let local = &self.local;
        let shard = local.shard();
        if !local.log.sequences() || shard.fold_need() == FoldNeed::Full {
            return Lsn(u64::MAX);
        }
        let (applied, _) = shard.applied();
        match local.log.archive_through(applied, local.env.deadline(SHIPPING)).await {
            Ok(()) => applied,
            Err(error) => {
                tracing::debug!(%error, "the checkpoint goes ahead of the archive");
                Lsn(u64::MAX)
            }
        }
    }

    /// Folds the tail now.
    pub async fn fold(&self) -> Result<FoldOutcome> {
        let local = &self.local;
        let started = local.env.clock.monotonic();
        local.log.refresh(local.env.deadline(local.options.timeout)).await?;
        let limit = self.ship().await;
        let outcome = local.shard().fold_through(limit).await;
        local.folded.notify_waiters();
        let outcome = outcome?;
        match outcome {
            FoldOutcome::Advanced(folded) => {
                self.folds.store(true, Ordering::Relaxed);
                *local.folded_record.lock() = Some(folded);
                let took = local.env.clock.monotonic().saturating_sub(started);
                metrics::counter!("telesto_txn_folds_total").increment(1);
                metrics::histogram!("telesto_txn_fold_seconds").record(took.as_secs_f64());
            }
            FoldOutcome::Nothing => {}
            FoldOutcome::Fenced => {
                self.folds.store(false, Ordering::Relaxed);
                metrics::counter!("telesto_txn_folds_fenced_total").increment(1);
            }
        }
        Ok(outcome)
    }
}
