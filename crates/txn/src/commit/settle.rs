//! What becomes of the groups under way.
//!
//! ```text
//!  oldest: committed ─► apply, answer ─────────────────────────────► the next one
//!          undecided ─► append again at its position ─► its own is there ─► apply, answer ─► settle all others before anything is begun
//!                                                  ├─► another's: it and all behind it are validated anew, and go elsewhere
//!                                                  ├─► nothing was appended: nor was anything behind it; all fail
//!                                                  └─► nobody knows: nobody knows of those behind it, either
//! ```
//! # Invariants
//! - They are settled in order. Each entry names the hash of the one before, so that none is in the
//!   log whose predecessor is not.
//! - A position is tried again only when the one before is known to hold what this one was
//!   validated against. Otherwise something unknown would lie between.
//!
//! # On failure
//! What is told to whom: `told.rs`.

use std::sync::Arc;

use telesto_bucket::meter::scoped;
use telesto_common::planted::Bug;
use telesto_log::{Append, Result as LogResult};

use super::append::{Attempt, Failed};
use super::committer::{Committer, stage};
use super::window::UnderWay;
use crate::error::Error;

impl Committer {
    /// Settles all that are under way.
    pub(super) async fn drain(&mut self) {
        while !self.window.is_empty() {
            let result = self.window.oldest_done().await;
            self.settle(result).await;
        }
    }

    /// The append of the oldest group has led to `result`. Whether nothing unusual happened:
    /// otherwise those behind it have to be settled before another one is begun.
    pub(super) async fn settle(&mut self, result: LogResult<Append>) -> bool {
        let Some(oldest) = self.window.pop() else { return true };
        let local = Arc::clone(&self.local);
        let done = local.env.clock.monotonic();
        let (usual, outcome) = match result {
            Ok(Append::Committed(entry)) => {
                self.appended_in(done.saturating_sub(oldest.started));
                let applied = local.apply(&entry);
                let unknown = |error: Error| Failed::Unknown(entry.lsn, error.to_string());
                (applied.is_ok(), applied.map(|()| Attempt::Committed(entry.lsn)).map_err(unknown))
            }
            other => {
                let UnderWay { group, validated, .. } = &oldest;
                let scope = Arc::clone(&group.scope);
                (false, scoped(scope, self.append(group, validated, Some(other))).await)
            }
        };
        let UnderWay { group, validated, .. } = oldest;
        match outcome {
            Ok(Attempt::Committed(lsn)) => {
                self.acknowledge(group, validated, lsn);
                stage("answer", local.env.clock.monotonic().saturating_sub(done));
                if local.env.planted(Bug::AnswersAhead) {
                    while let Some(UnderWay { group, validated, .. }) = self.window.pop() {
                        let at = validated.at;
                        self.acknowledge(group, validated, at);
                    }
                }
            }
            Ok(Attempt::Lost) => {
                self.lost_slot();
                self.again.push_back(group);
                if !local.env.planted(Bug::GoesOnBehindLost) {
                    while let Some(behind) = self.window.pop() {
                        self.again.push_back(behind.group);
                    }
                }
            }
            Err(Failed::Certain(error)) => {
                self.abort_all(group.live, &error);
                while let Some(behind) = self.window.pop() {
                    self.abort_all(behind.group.live, &error);
                }
            }
            Err(Failed::Unknown(slot, reason)) => {
                self.unknown(group, &validated, slot, &reason);
                while let Some(UnderWay { group, validated, .. }) = self.window.pop() {
                    let slot = validated.at;
                    self.unknown(group, &validated, slot, &reason);
                }
            }
            Err(Failed::Reopened(slot, error)) => {
                self.ask_after_reopening(group, &validated, slot, &error).await;
                while let Some(UnderWay { group, validated, .. }) = self.window.pop() {
                    let slot = validated.at;
                    self.ask_after_reopening(group, &validated, slot, &error).await;
                }
            }
        }
        usual
    }
}
