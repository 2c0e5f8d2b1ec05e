//! Whether the sequencer may answer for the tail: by what the servers have promised, or by asking
//! them.
//!
//! ```text
//! asked ──► server: promise until its now + lease ──► answer
//!   └── counted from here: now < asked + lease ⇒ the server keeps its promise still
//! ```
//! # Invariants
//! - A lease counts from before it was asked for, so the server's own count ends later, whatever
//!   the message took.
//! - It holds while a majority of the servers has promised: any majority that could seal meets it.
//! - Both clocks of this machine must say that little time has passed. A round asks no clock.
//! - A round serves those only who asked for one before it began.
//!
//! # On failure
//! A majority that has sealed the loglet ends the sequencer; one that does not answer leaves it as
//! it was, and the read is not answered.
//!
//! # Limits
//! A machine that is paused together with all its clocks, which nobody sets afterwards, does not
//! see that its lease has ended. A lease of zero has no such case: every look at the tail asks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use telesto_common::planted::Bug;
use telesto_common::{Deadline, Env};

use super::{Fence, Sequencer, Shared, majority};
use crate::error::{Error, Result};
use crate::server::{Reply, Request};

/// A moment by this machine's two clocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    monotonic: Duration,
    wall_micros: u64,
}

impl Asked {
    pub fn now(env: &Env) -> Self {
        Self { monotonic: env.clock.monotonic(), wall_micros: env.clock.wall_micros() }
    }

    /// How long ago that was.
    pub fn elapsed(self, env: &Env) -> Duration {
        env.clock.monotonic().saturating_sub(self.monotonic)
    }

    /// Whether less than `lease` has passed since.
    fn holds(self, now: Self, lease: Duration) -> bool {
        let wall = now.wall_micros.checked_sub(self.wall_micros).map(Duration::from_micros);
        now.monotonic.saturating_sub(self.monotonic) < lease && wall.is_some_and(|w| w < lease)
    }
}

/// The rounds that ask whether the loglet is still unsealed.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    turn: tokio::sync::Mutex<()>,
    begun: AtomicU64,
    /// Number of the last one that found it so.
    unsealed: AtomicU64,
}

impl Sequencer {
    /// Whether nobody else can have written, as far as is known without asking.
    pub fn is_safe(&self) -> bool {
        let shared = &self.shared;
        match shared.fence {
            Fence::Lock => true,
            Fence::Lease(_) if shared.env.planted(Bug::OwnsAfterThaw) => true,
            Fence::Lease(lease) => !*shared.stopped.borrow() && shared.is_promised(lease),
        }
    }

    /// Makes sure that nobody else had written at some moment after the call: all who wait share a
    /// round.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when a majority has sealed the loglet, or cannot be reached.
    pub async fn confirm(&self, by: Deadline) -> Result<()> {
        let shared = &self.shared;
        if self.is_safe() {
            return Ok(());
        }
        let before = shared.rounds.begun.load(Ordering::Acquire);
        let waiting = "asking the log servers whether the log goes on elsewhere";
        let _turn = shared.env.within(by, waiting, shared.rounds.turn.lock()).await?;
        if shared.rounds.unsealed.load(Ordering::Acquire) > before {
            return Ok(());
        }
        let round = shared.rounds.begun.fetch_add(1, Ordering::AcqRel) + 1;
        shared.round(by).await?;
        shared.rounds.unsealed.store(round, Ordering::Release);
        Ok(())
    }
}

impl Shared {
    fn is_promised(&self, lease: Duration) -> bool {
        let now = Asked::now(&self.env);
        let promised =
            self.remotes.iter().filter(|r| r.promised().is_some_and(|at| at.holds(now, lease)));
        promised.count() >= majority(self.remotes.len())
    }

    /// Tells a server what is committed, and asks whether the loglet is still unsealed.
    pub(super) fn confirming(&self) -> Request {
        Request::Confirm { key: self.key, terms: self.terms() }
    }

    /// Asks all servers; returns once a majority has said that it has accepted no seal.
    async fn round(&self, by: Deadline) -> Result<()> {
        metrics::counter!("telesto_log_confirm_rounds_total").increment(1);
        let asked = Asked::now(&self.env);
        let needed = majority(self.remotes.len());
        let mut answers: FuturesUnordered<_> = self
            .remotes
            .iter()
            .map(|remote| async move { (remote, remote.server.call(self.confirming(), by).await) })
            .collect();
        let (mut open, mut sealed) = (0, 0);
        let mut failure = None;
        while let Some((remote, answer)) = answers.next().await {
            match answer {
                Ok(Reply::Tail { sealed: false, doubtful: false, leased, .. }) => {
                    open += 1;
                    if leased {
                        remote.promise(asked);
                    }
                }
                Ok(Reply::Tail { sealed: true, .. }) => sealed += 1,
                Ok(other) => failure = Some(format!("a log server answered {other:?}")),
                Err(error) => failure = Some(error.to_string()),
            }
            if open >= needed {
                return Ok(());
            }
            if sealed >= needed {
                break;
            }
        }
        if sealed > 0 && open + sealed >= needed {
            // Enough to know that it cannot go on as before; what follows, the chain tells.
            self.stopped.send_replace(true);
            failure = Some("another node has ended the loglet".into());
        }
        Err(Error::Unavailable {
            shard: self.key.shard,
            reason: failure
                .unwrap_or_else(|| "a majority of the log servers did not answer".into()),
        })
    }
}
