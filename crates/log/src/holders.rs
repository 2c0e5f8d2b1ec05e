//! Who keeps a loglet of several nodes, and how many copies of it there are.
//!
//! # Invariants
//! Plain data: who decides by it is [`crate::cluster`].

use std::sync::Arc;

use crate::chain::ServerInfo;
use crate::quorum::{ServerState, Standing};
use crate::server::{LocalLogServer, LogServer};

/// Whose loglet is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// This node's own, of this life or an earlier one.
    Own,
    /// This loglet's, whose owner was found dead.
    Dead(u64),
}

/// Those who keep a loglet.
#[derive(Debug)]
pub(crate) struct Holders {
    pub servers: Vec<Arc<dyn LogServer>>,
    /// The only one, when it is this process's own under the lock of its directory.
    pub alone: Option<Arc<LocalLogServer>>,
}

impl Holders {
    pub fn alone(server: Arc<LocalLogServer>) -> Self {
        let servers = vec![Arc::clone(&server) as Arc<dyn LogServer>];
        Self { servers, alone: Some(server) }
    }
}

/// How many copies of the newest log there are, as its owner knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redundancy {
    /// Each log server of the active loglet, and how it stands.
    pub servers: Vec<(ServerInfo, Standing)>,
    /// Log servers that could be put in the place of a lost one.
    pub spares: usize,
}

impl Redundancy {
    /// Servers that take entries.
    #[must_use]
    pub fn following(&self) -> usize {
        self.servers.iter().filter(|(_, s)| s.state == ServerState::Following).count()
    }

    /// Whether copies are missing and nobody can take their place.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.following() < self.servers.len() && self.spares == 0
    }
}
