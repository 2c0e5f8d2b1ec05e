//! Where commit timestamps come from.
//!
//! # Purpose
//! The one way to a timestamp. The committer's own clock will do, because the log gives the order;
//! who would hand them out to several logs would be another [`TimestampOracle`], and there is none.
//!
//! # Invariants
//! - Timestamps handed out after `after` are greater than it; those of one reservation grow by one.
//! - Correctness never depends on how well the clock is set. But a region's time never goes back:
//!   one commit by a clock that is years ahead would keep it there for ever, and with it everything
//!   that is collected by age. So a clock that was set ahead, or runs away, is first held against
//!   the bucket's own, and refused if it is ahead of that one by more than a bound. Being near the
//!   newest commit is no proof: that may be this clock's own, a step earlier.
//!
//! ```text
//! wall clock <= newest commit ---------------------------------------------------------> time goes on from that commit
//!      else: as far from the monotonic clock as when it was believed, to bound / 8 ----> believed
//!      else: the first time, and wall clock <= newest commit + bound / 8 --------------> believed, and how far it is noted
//!      else: put an object, read when the bucket says it was put:
//!            wall clock <= that + bound --> believed, noted;   else --> nothing is committed
//! ```
//!
//! # On failure
//! [`Error::Unavailable`] says how far the clock is off, and that nothing was committed.
//!
//! # Limits
//! A local folder has this machine's clock: a wrong one is not found out there.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_bucket::{Bucket, Cause};
use telesto_common::planted::Bug;
use telesto_common::{Env, Timestamp};

use crate::error::{Error, Result};

/// A clock may drift by this part of the bound before it is held against the bucket's again.
const SLACK: u64 = 8;

/// Hands out commit timestamps.
#[async_trait]
pub trait TimestampOracle: Debug + Send + Sync {
    /// The first of `count` consecutive timestamps, all greater than `after` and than `newest`, the
    /// newest commit that the asker has applied (`after` is what it was told elsewhere).
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the oracle cannot be reached in time, or would have to move time
    /// too far.
    async fn reserve(&self, newest: Timestamp, after: Timestamp, count: u32) -> Result<Timestamp>;
}

/// The oracle of a database with one shard: hybrid logical time over this process's clock.
#[derive(Debug)]
pub struct LocalOracle {
    env: Env,
    bucket: Arc<dyn Bucket>,
    bound_micros: u64,
    /// Wall clock less monotonic clock, microseconds, when the wall clock was last believed.
    believed: Mutex<Option<i128>>,
}

impl LocalOracle {
    /// An oracle over `env`'s clock, which is refused when it is more than `bound` ahead of the
    /// clock of `bucket`.
    #[must_use]
    pub fn new(env: Env, bucket: Arc<dyn Bucket>, bound: Duration) -> Self {
        let bound_micros = u64::try_from(bound.as_micros()).unwrap_or(u64::MAX / 4);
        Self { env, bucket, bound_micros, believed: Mutex::new(None) }
    }

    /// How far the wall clock is from the monotonic one now.
    fn offset(&self, wall_micros: u64) -> i128 {
        let monotonic = self.env.clock.monotonic().as_micros();
        i128::from(wall_micros) - i128::try_from(monotonic).unwrap_or(i128::MAX / 2)
    }

    /// Whether the wall clock has gone with the monotonic one since it was believed.
    fn is_steady(&self, wall_micros: u64) -> bool {
        let offset = self.offset(wall_micros);
        self.believed.lock().is_some_and(|at| offset <= at + i128::from(self.bound_micros / SLACK))
    }

    /// What the bucket's clock says, if it has one.
    async fn bucket_micros(&self) -> Result<Option<u64>> {
        let key = format!("probe/clock-{:032x}", self.env.random_u128());
        let body = Bytes::copy_from_slice(key.as_bytes());
        self.bucket.put_if_absent(Cause::Admin, &key, body).await?;
        let found = self.bucket.get(Cause::Admin, &key, None).await?;
        // What cannot be deleted harms nobody: nothing reads it.
        let _ = self.bucket.delete(Cause::Admin, &key).await;
        Ok(found.map(|object| object.modified_micros).filter(|micros| *micros > 0))
    }

    async fn hold_against_bucket(&self, wall_micros: u64, newest: Timestamp) -> Result<()> {
        metrics::counter!("telesto_txn_clock_checks_total").increment(1);
        let Some(bucket) = self.bucket_micros().await? else { return Ok(()) };
        let ahead = wall_micros.saturating_sub(bucket);
        if ahead <= self.bound_micros {
            return Ok(());
        }
        metrics::counter!("telesto_txn_clocks_refused_total").increment(1);
        let seconds = |micros: u64| micros / 1_000_000;
        Err(Error::Unavailable(format!(
            "this machine's clock is {} s ahead of the bucket's and {} s ahead of the newest commit; nothing was committed, since that would move the database's time for ever: set the clock, then run the transaction again",
            seconds(ahead),
            seconds(wall_micros.saturating_sub(newest.wall_micros()))
        )))
    }
}

#[async_trait]
impl TimestampOracle for LocalOracle {
    async fn reserve(&self, newest: Timestamp, after: Timestamp, _count: u32) -> Result<Timestamp> {
        let wall = self.env.clock.wall_micros();
        let is_near = wall <= newest.wall_micros().saturating_add(self.bound_micros / SLACK);
        // A clock that is behind moves nothing.
        if wall > newest.wall_micros() && !self.is_steady(wall) {
            // Only the first time: afterwards the newest commit may be one of this clock's own.
            let taken = is_near && self.believed.lock().is_none();
            if !taken && !self.env.planted(Bug::AnyClock) {
                self.hold_against_bucket(wall, newest).await?;
            }
            // Not where it only was steady: a clock that runs fast would be believed bit by bit.
            *self.believed.lock() = Some(self.offset(wall));
        }
        let farthest = wall.max(newest.wall_micros()).saturating_add(self.bound_micros);
        if after.wall_micros() > farthest {
            return Err(Error::Unavailable(format!(
                "the session has seen {after}, which lies {} s ahead of this database's time; nothing was committed: begin a new session, or set the clocks",
                (after.wall_micros() - wall.max(newest.wall_micros())) / 1_000_000
            )));
        }
        Ok(Timestamp::after(newest.max(after), wall))
    }
}
