//! How old may be what a read below `Serializable` sees.
//!
//! # Purpose
//! Such reads take what this process has applied. Where nothing brings it what others commit (on a
//! bucket log each look is a request, and nobody follows it) that could be as old as half a
//! retention, when contact to the log is lost.
//!
//! ```text
//! read ─► has this process known all there was, at some moment since now - Staleness::most? ─┬─ yes: what is here, no request
//!         (a look, a commit of its own, or it sequences the log)                             └─ no: one look, shared by all who wait
//! ```
//! # Invariants
//! - What is given out holds every commit that was acknowledged longer ago than
//!   [`Staleness::most`].
//! - One look serves all who wait for one ([`crate::look`]), and all who come for as long as it is
//!   recent enough.
//!
//! # On failure
//! When the log cannot be looked at, the read fails with [`Error::Unavailable`], or, with
//! [`Staleness::or_what_is_here`], takes what is here after [`SOON`]; for [`AGAIN`] after that no
//! such read waits for a look any more.
//!
//! # Limits
//! A process without contact for half a retention gives out nothing without a look, whatever is
//! asked for. Clocks that disagree, or that tell seconds only, make it look sooner than it had to.

use std::time::Duration;

use telesto_common::{Deadline, Timestamp};

use crate::error::{Error, Result};
use crate::local::Local;
use crate::service::{BeginRequest, Freshness};

/// How long a read waits for a look that can do without.
const SOON: Duration = Duration::from_secs(1);
/// After so long such a read tries again to look.
const AGAIN: Duration = Duration::from_secs(5);

/// See the module's text. As it is made: no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Staleness {
    /// What is seen holds every commit acknowledged longer ago than this, in whichever process;
    /// zero: each read looks at the log; `None`: no bound but that of contact to the log, half a
    /// retention.
    pub most: Option<Duration>,
    /// Where the log cannot be looked at, what this process has is read all the same.
    pub or_what_is_here: bool,
}

impl Staleness {
    /// Where nothing else is said to a session.
    pub const USUAL: Self = Self { most: Some(Duration::from_secs(10)), or_what_is_here: false };
}

impl Local {
    /// Whether a snapshot can be had for `request` without a look.
    pub(crate) fn fresh_enough(&self, request: &BeginRequest) -> bool {
        self.is_new_enough(request) && self.is_recent_enough(request)
    }

    fn is_new_enough(&self, request: &BeginRequest) -> bool {
        let wanted = match request.freshness {
            Freshness::Applied => Timestamp::ZERO,
            Freshness::AtLeast(at) => at,
            Freshness::Tail if self.sequences_and_knows_all() => Timestamp::ZERO,
            Freshness::Tail => return false,
        };
        let wanted = request.as_of.map_or(wanted, |as_of| as_of.max(wanted));
        wanted <= self.shard.read().applied().1
    }

    /// Whether this process has known all that there was at a moment that lies back no further than
    /// is allowed.
    pub(crate) fn is_recent_enough(&self, request: &BeginRequest) -> bool {
        let Some(most) = request.staleness.most else { return true };
        if most.is_zero() {
            return self.sequences_and_knows_all();
        }
        let next = self.shard.read().applied().0.next();
        // Nothing is acknowledged by who sequences the log before it is applied there: what is
        // under way does not count.
        let sequences = self.log.is_local_sequencer() && next >= self.log.chain().active().start;
        sequences || self.log.knew_all_within(next, most)
    }

    /// Looks at the log's tail for `request`, which cannot be answered without:
    /// [`Self::fresh_enough`].
    pub(crate) async fn look_for(
        self: &std::sync::Arc<Self>,
        request: &BeginRequest,
        by: Deadline,
    ) -> Result<()> {
        let Some(most) = request.staleness.most else { return self.look(by).await };
        if !self.in_contact() || !self.is_new_enough(request) {
            // What is here would not do however old it may be.
            return self.look(by).await;
        }
        let clock = &self.env.clock;
        if !request.staleness.or_what_is_here {
            return self.look(by).await.map_err(|error| too_old(most, error));
        }
        let lately = |at: Duration| clock.monotonic().saturating_sub(at) < AGAIN;
        if self.not_looked.lock().is_some_and(lately) {
            return Ok(());
        }
        match self.look(self.env.deadline(SOON).earlier(by)).await {
            Err(Error::ShuttingDown) => Err(Error::ShuttingDown),
            Err(error) => {
                tracing::debug!(%error, "older commits are read than was asked for");
                *self.not_looked.lock() = Some(clock.monotonic());
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

fn too_old(most: Duration, error: Error) -> Error {
    match error {
        Error::ShuttingDown => Error::ShuttingDown,
        error => Error::Unavailable(format!(
            "what this node has may be more than {} s old, and the log cannot be looked at ({error}); retry, or read what is here: SET telesto.serve_stale = on, over HTTP max_staleness=-1",
            most.as_secs_f64()
        )),
    }
}
