//! Where commit timestamps come from.
//!
//! # Purpose
//! The one way to a timestamp (DESIGN.md §13): later the system shard's owner hands them out to many
//! shards; with one shard its committer's own clock will do, because the log gives the order.
//!
//! # Invariants
//! Timestamps handed out after `after` are greater than it; those of one reservation grow by one.
//! Correctness never depends on how well the clock is set.

use std::fmt::Debug;

use async_trait::async_trait;
use telesto_common::{Env, Timestamp};

use crate::error::Result;

/// Hands out commit timestamps.
#[async_trait]
pub trait TimestampOracle: Debug + Send + Sync {
    /// The first of `count` consecutive timestamps, all greater than `after`.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] when the oracle cannot be reached in time.
    async fn reserve(&self, after: Timestamp, count: u32) -> Result<Timestamp>;
}

/// The oracle of a database with one shard: hybrid logical time over this process's clock.
#[derive(Debug)]
pub struct LocalOracle {
    env: Env,
}

impl LocalOracle {
    /// An oracle over `env`'s clock.
    #[must_use]
    pub fn new(env: Env) -> Self {
        Self { env }
    }
}

#[async_trait]
impl TimestampOracle for LocalOracle {
    async fn reserve(&self, after: Timestamp, _count: u32) -> Result<Timestamp> {
        Ok(Timestamp::after(after, self.env.clock.wall_micros()))
    }
}
