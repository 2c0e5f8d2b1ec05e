//! Tells another region which others there are.
//!
//! ```text
//! a: invites b, c      b joins ──► a          c joins ──► a        (by texts that name neither of them as one that has joined)
//!                      b ◄── "there is c" ── a ── "there is b" ──► c
//! ```
//! # Invariants
//! - Each peer is told of each other region that is known here, and of those that were left out,
//!   once in the life of the runner: it begins anew when something new is known.
//!
//! # On failure
//! Said again until the peer has taken it.
//!
//! # Limits
//! A peer that ends before it has kept what it took is told again by the region that this was
//! about.

use std::sync::Arc;
use std::time::Duration;

use telesto_common::RegionId;

use crate::error::Error;
use crate::shared::Shared;
use crate::wire::Request;

/// Before it is said again.
const AGAIN: Duration = Duration::from_secs(1);

/// Tells `to` of the others.
pub(crate) async fn tell(shared: Arc<Shared>, to: RegionId) {
    let others = shared.config.others.iter().filter(|(of, _)| *of != to);
    for (of, text) in others {
        loop {
            match shared.ask(to, Request::Introduce(text.clone())).await {
                Ok(_) => break,
                Err(Error::Stopped | Error::UnknownRegion(_)) => return,
                Err(error) => {
                    tracing::debug!(%to, %of, %error, "a region is not told of another one yet");
                }
            }
            shared.env.clock.sleep(AGAIN + shared.env.jitter(AGAIN)).await;
        }
    }
}
