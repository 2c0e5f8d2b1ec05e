//! Brings the records into a target that does not have them.
//!
//! ```text
//!   is the last one there? -> yes: done
//!                          -> no: halve until the first missing one is found, go back by what may have been under way,
//!                             write ranges in order, some at once
//! ```
//!
//! # Invariants
//! Ranges are begun in order, so everything below what was under way is there: loading that was cut
//! off goes on where it stopped, without a list of what was done.
//!
//! # On failure
//! The first failed range ends loading; the same call goes on later.
//!
//! # Limits
//! Records that somebody deleted in the middle are not looked for; reading them counts as wrong.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::stream::{self, TryStreamExt as _};
use parking_lot::Mutex;
use telesto_common::Env;

use crate::target::{Failure, Kind, Lane, Target};

/// Records of a range.
const RANGE: u64 = 1_000;
/// Ranges written at once.
const AT_ONCE: usize = 4;

/// A range may take so many times what a single question may.
const RANGE_PATIENCE: u32 = 20;

/// Sees to it that `target` has records `0..records`; tells `progress` how many it has. Each
/// question to it may take `patience`.
///
/// # Errors
/// Why the target could not be asked or written to.
pub async fn load(
    env: &Env,
    target: &dyn Target,
    records: u64,
    patience: Duration,
    progress: &(dyn Fn(u64) + Send + Sync),
) -> Result<(), Failure> {
    let Some(last) = records.checked_sub(1) else { return Ok(()) };
    let asking = Asking { env, patience };
    asking.bounded(1, target.prepare()).await?;
    let mut lane = asking.bounded(1, target.open()).await?;
    let first_is_there = asking.bounded(1, lane.read(0)).await?.is_some();
    if first_is_there && asking.bounded(1, lane.read(last)).await?.is_some() {
        progress(records);
        return Ok(());
    }
    let (mut there, mut missing) = (0, last);
    while first_is_there && there < missing {
        let middle = there.midpoint(missing);
        if asking.bounded(1, lane.read(middle)).await?.is_some() {
            there = middle + 1;
        } else {
            missing = middle;
        }
    }
    drop(lane);
    // Ranges end in any order: below the first hole that was found there may be others.
    let from = there.saturating_sub(RANGE * AT_ONCE as u64 * 2);
    progress(from);
    let starts = (from..records).step_by(RANGE as usize);
    let ranges = starts.map(|start| Ok::<_, Failure>(start..records.min(start + RANGE)));
    let written = AtomicU64::new(from);
    let idle = Mutex::new(Vec::new());
    stream::iter(ranges)
        .try_for_each_concurrent(AT_ONCE, |range| {
            let (asking, written, idle) = (&asking, &written, &idle);
            async move {
                let kept = idle.lock().pop();
                let mut lane: Box<dyn Lane> = match kept {
                    Some(lane) => lane,
                    None => asking.bounded(1, target.open()).await?,
                };
                let count = range.end - range.start;
                asking.bounded(RANGE_PATIENCE, lane.load(range)).await?;
                idle.lock().push(lane);
                progress(written.fetch_add(count, Ordering::Relaxed) + count);
                Ok(())
            }
        })
        .await
}

/// How long one waits for an answer.
struct Asking<'a> {
    env: &'a Env,
    patience: Duration,
}

impl Asking<'_> {
    async fn bounded<T>(
        &self,
        times: u32,
        asked: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let patience = self.patience * times;
        self.env.within_timeout(patience, "loading", asked).await.unwrap_or_else(|_| {
            let why = format!("no answer within {patience:?} while loading");
            Err(Failure::new(Kind::TimedOut, why))
        })
    }
}
