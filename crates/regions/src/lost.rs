//! What a region asks of those that stay when others are lost for good.
//!
//! # Invariants
//! - Nothing is said of a lost region before every region that stays has closed it
//!   ([`crate::take_back`]).
//!
//! # On failure
//! Who does not answer is named; it is asked again later.
//!
//! # Limits
//! Two regions that were told different successors wait until a person has said the same to both.

use telesto_common::{Deadline, RegionId};

use crate::error::Result;
use crate::regions::Regions;
use crate::shared::Then;
use crate::take_back;

impl Regions {
    /// Whether nothing waits any more for anything of the lost regions, in any of those that stay.
    ///
    /// # Errors
    /// Who does not answer.
    pub async fn lost_are_closed(&self) -> Result<bool> {
        for lost in &self.shared().config.lost {
            if !take_back::is_closed_everywhere(self.shared(), *lost).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether everything has come again that those who answer had sent before this region lost
    /// commits: what is written before is written by older definitions, and perhaps by older ideas
    /// of who makes them. Waited for until `by`.
    ///
    /// # Errors
    /// [`crate::Error::Stopped`].
    pub async fn is_caught_up(&self, by: Deadline) -> Result<bool> {
        let shared = self.shared();
        let me = shared.config.me;
        if shared.owed.lock().is_empty() {
            return Ok(true);
        }
        loop {
            let behind = {
                let (owed, inbox) = (shared.owed.lock(), shared.inbox.lock());
                let known = inbox.known();
                owed.iter().any(|(peer, count)| known.get(*peer, me) < *count)
            };
            if !behind {
                // What was given out last is in the log behind this.
                shared.apply_taken(Vec::new(), Then::Nothing).await?;
                return Ok(true);
            }
            if by.passed(shared.env.clock.monotonic()) {
                return Ok(false);
            }
            shared.env.clock.sleep(shared.config.beat).await;
        }
    }

    /// Whether this region was told to make the definitions in the place of `lost`.
    #[must_use]
    pub fn is_heir_of(&self, lost: RegionId) -> bool {
        self.shared().config.heirs.get(&lost) == Some(&self.shared().config.me)
    }

    /// Whether it is to do so now: every region that stays was told so, and nothing of the lost one
    /// can come to any of them any more.
    ///
    /// # Errors
    /// Who does not answer; [`crate::Error::Config`] when one was told something else.
    pub async fn inherits_from(&self, lost: RegionId) -> Result<bool> {
        take_back::inherits_from(self.shared(), lost).await
    }
}
