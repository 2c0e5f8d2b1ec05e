//! What this process is to the active loglet: the one answer to "do I sequence this log?".
//!
//! ```text
//!             install (chain names our new loglet)
//!  Follower ─────────────────────────────────────► Owner
//!     ▲                                              │ before a chain version goes out that gives
//!     │ a chain is adopted whose active              │ the log away
//!     │ loglet is not the sequencer's                ▼
//!     └───────────────────────────────────────── HandingOver
//! ```
//! # Invariants
//! - `Owner` only while no other process can have appended: from the adoption of the chain that
//!   names our loglet until the moment before a request goes out that could let others append. Then
//!   reads at the tail need no request.
//! - `HandingOver` from that moment on, whatever became of the request: its reply may be lost, late
//!   or held while others write already. Its sequencer has stopped and its loglet is sealed and
//!   archived. A read at the tail first looks for a newer chain version: as long as there is none
//!   nobody else has written, and what the sequencer has is all there is.
//! - [`crate::log::Inner::adopt`] makes it `Follower` whenever the active loglet of the chain is
//!   not the sequencer's, whoever put that chain.
//!
//! # On failure
//! A hand-over whose outcome is unknown is settled by the next append or switch (it recovers, or
//! finds the chain changed) and by every read at the tail that finds the newer chain.
//!
//! # Limits
//! With one log server on this machine the directory's lock keeps others from sealing the loglet.
//! An owner in a cluster can be sealed out without knowing: `Owner` is then what it was, and a read
//! at the tail asks the sequencer whether it is so still (`crate::quorum`, lease and round).

use std::sync::Arc;

use crate::chain::{Chain, Medium};
use crate::quorum::Sequencer;

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub(crate) enum Role {
    /// Another process sequences the log, or nobody does.
    #[default]
    Follower,
    /// This process sequences the log.
    Owner(Arc<Sequencer>),
    /// This process sequenced the log and has begun to give it away.
    HandingOver(Arc<Sequencer>),
}

impl Role {
    /// The sequencer, while this process certainly is the one that orders the log.
    pub fn owner(&self) -> Option<&Arc<Sequencer>> {
        match self {
            Self::Owner(sequencer) => Some(sequencer),
            Self::Follower | Self::HandingOver(_) => None,
        }
    }

    /// The sequencer of the active loglet, as far as this process knows, also while it is given
    /// away: it has the newest entries.
    pub fn sequencer(&self) -> Option<&Arc<Sequencer>> {
        match self {
            Self::Owner(sequencer) | Self::HandingOver(sequencer) => Some(sequencer),
            Self::Follower => None,
        }
    }

    /// Whether `chain`'s active loglet is the one whose sequencer is here.
    pub fn fits(&self, chain: &Chain) -> bool {
        let active = chain.active();
        match (&active.medium, self.sequencer()) {
            (_, None) => true,
            (Medium::Quorum { token, .. }, Some(sequencer)) => {
                let key = sequencer.key();
                key.loglet == active.id && key.token == *token
            }
            (Medium::Bucket, Some(_)) => false,
        }
    }
}
