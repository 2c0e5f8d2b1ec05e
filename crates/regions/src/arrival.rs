//! Waits until what another region has committed is here.
//!
//! # Invariants
//! - What has arrived is in this region's log, with its past.
//! - What depends on it and is committed here has its label behind those of what has arrived, also
//!   of what is not placed here, where it was taken up by [`Shared::take_up`]. [`Shared::wait_for`]
//!   alone is for what commits nothing here afterwards.
//!
//! # On failure
//! [`Error::NotHereYet`] at the deadline.
//!
//! # Limits
//! Looked at once a beat at least.

use telesto_common::{Deadline, Label, RegionId, Timestamp};
use telesto_geo::Bug;
use telesto_txn::Database as _;
use telesto_txn::service::Freshness;

use crate::error::{Error, Result};
use crate::regions::Regions;
use crate::shared::{Shared, Then};
use crate::token;

impl Regions {
    /// Waits until everything that `token` stands for and that is replicated here is here. Returns
    /// the label with which the session goes on here ([`telesto_txn::TxnOptions::session`]).
    ///
    /// # Errors
    /// [`Error::Token`], [`Error::UnknownRegion`]; [`Error::NotHereYet`] at `by`: the session must
    /// not go on here, or without what it has seen; [`Error::LostWith`] when some of that is lost.
    pub async fn attach(&self, token: &str, by: Deadline) -> Result<Label> {
        let shared = self.shared();
        let config = &shared.config;
        let token = token::verify(&config.secret, config.deployment, token)?;
        let (region, wanted) = (token.source, token.timestamp);
        if region == config.me {
            shared.check_kept(region, wanted, by).await?;
        }
        if region == config.me && shared.engine.applied().1 >= wanted {
            // It has not moved, or is back. No look at the log's tail: what is begun with this
            // label is new enough.
            return Ok(token);
        }
        if region != config.me {
            match shared.peers.contains_key(&region) {
                true => {
                    shared.take_up(region, wanted, by).await?;
                    // Its time goes on also without what it has lost.
                    shared.check_kept(region, wanted, by).await?;
                }
                // What left a lost region before its end is here; what did not is nowhere.
                false if shared.config.lost.contains(&region) => self.was_passed(region, wanted)?,
                false => return Err(Error::UnknownRegion(region)),
            }
        }
        let snapshot = shared.store.begin(Freshness::Tail, None).await?;
        shared.store.release(&snapshot).await;
        let passed = snapshot.snapshot;
        if region == config.me && passed < wanted {
            return Err(shared.not_here(region, wanted, passed));
        }
        Ok(Label::update(config.me, passed))
    }

    fn was_passed(&self, region: RegionId, wanted: Timestamp) -> Result<()> {
        let passed = self.passed().get(&region).copied().unwrap_or_default();
        if passed < wanted {
            return Err(Error::LostWith { region, wanted, passed });
        }
        Ok(())
    }
}

impl Shared {
    /// Waits as [`Shared::wait_for`] does, for somebody who commits here afterwards: a session that
    /// has seen that state of `region`, or a transaction of that region. Returns up to where this
    /// region's log is then; what depends on it is committed behind that.
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

    /// What another region is to wait for, so that it has all that somebody has seen who stands at
    /// `seen` of this region's log. What was taken up holds labels behind the place where that was;
    /// up to the place itself this region may have told long ago how far its labels are. So a place
    /// behind it is told, and made where there is none.
    pub(crate) async fn place_of(&self, seen: Timestamp) -> Result<Timestamp> {
        let Some(held) = self.trees.held_from(seen) else { return Ok(seen) };
        if self.engine.applied().1 <= held {
            let by = self.env.deadline(self.config.timeout);
            let made = self.apply_taken(Vec::new(), Then::Nothing);
            let made = self.env.within(by, "noting where a session stands", made).await;
            made.map_err(|error| Error::Unnoted(error.to_string()))??;
        }
        Ok(self.engine.applied().1)
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
