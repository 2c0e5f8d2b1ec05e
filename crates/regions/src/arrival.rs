//! Waits until what another region has committed is here.
//!
//! # Invariants
//! - What has arrived is in this region's log, with its past.
//! - What depends on it and is committed here has its label behind those of what has arrived, also of what is not placed here, where it
//!   was taken up by [`Shared::take_up`]. [`Shared::wait_for`] alone is for what commits nothing here afterwards.
//!
//! # On failure
//! [`Error::NotHereYet`] at the deadline.
//!
//! # Limits
//! Looked at once a beat at least.

use telesto_common::{Deadline, RegionId, Timestamp};
use telesto_geo::Bug;
use telesto_txn::Database as _;

use crate::error::{Error, Result};
use crate::shared::Shared;

impl Shared {
    /// Waits as [`Shared::wait_for`] does, for somebody who commits here afterwards: a session that has seen that state of `region`, or a
    /// transaction of that region. Returns up to where this region's log is then; what depends on it is committed behind that.
    pub(crate) async fn take_up(
        &self,
        region: RegionId,
        seen: Timestamp,
        by: Deadline,
    ) -> Result<Timestamp> {
        self.wait_for(region, seen, by).await?;
        let (_, here) = self.engine.applied();
        self.trees.hold(here, region, seen);
        Ok(here)
    }

    /// Waits until everything of `region` up to `wanted` that goes here is here.
    pub(crate) async fn wait_for(
        &self,
        region: RegionId,
        wanted: Timestamp,
        by: Deadline,
    ) -> Result<()> {
        if self.config.planted == Some(Bug::StaleAttach) {
            return Ok(());
        }
        let mut passed = self.passed.subscribe();
        loop {
            let here = passed.borrow_and_update().get(&region).copied().unwrap_or_default();
            if here >= wanted {
                return Ok(());
            }
            if by.passed(self.env.clock.monotonic()) {
                return Err(self.not_here(region, wanted, here));
            }
            {
                let mut waiting = self.wanted.lock();
                *waiting = (*waiting).max(Some(wanted));
            }
            self.news.notify_one();
            let look = self.env.deadline(self.config.beat).earlier(by);
            // At the end of the wait it is looked at again, and the deadline with it.
            let _ = self.env.within(look, "waiting for another region", passed.changed()).await;
        }
    }

    /// Not everything of `region` up to `wanted` is here, which has `passed`.
    pub(crate) fn not_here(&self, region: RegionId, wanted: Timestamp, passed: Timestamp) -> Error {
        Error::NotHereYet { region, name: self.name_of(region), wanted, passed }
    }
}
