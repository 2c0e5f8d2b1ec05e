//! What a region's replication is configured with.
//!
//! # Invariants
//! All regions of a deployment have the same deployment number and secret; each has its own number,
//! below 16. Each may have a plane of its own: it says how the region applies what others send, not
//! what it sends.
//!
//! # On failure
//! [`crate::Error::Config`] names what does not fit.
//!
//! # Limits
//! One node a region carries its streams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use telesto_common::RegionId;
use telesto_geo::{Bug, PlaneKind};
use telesto_net::{Caller, Peer};

use crate::error::{Error, Result};
use crate::past::MEMBERS;
use crate::tree::Plan;

/// Another region.
#[derive(Clone, Debug)]
pub struct PeerRegion {
    /// Its number.
    pub id: RegionId,
    /// Its name, for people.
    pub name: String,
    /// The node that carries its streams.
    pub node: Peer,
}

/// What a region says of itself, or of a third one; [`crate::Registry::hear`] takes it in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Who says it.
    pub by: RegionId,
    /// The text by which that region is accepted.
    pub text: String,
}

/// The configuration of one region.
#[derive(Clone, Debug)]
pub struct RegionsConfig {
    /// This region; the engine must have been opened as it.
    pub me: RegionId,
    /// Its name, for people.
    pub name: String,
    /// Tells this deployment from others.
    pub deployment: u128,
    /// Signs session tokens.
    pub secret: [u8; 32],
    /// The other regions.
    pub peers: Vec<PeerRegion>,
    /// Regions that are gone for good, whose peers exchange what they have of them.
    pub lost: Vec<RegionId>,
    /// Of those, which region makes the definitions if they made them.
    pub heirs: BTreeMap<RegionId, RegionId>,
    /// How causal order is kept: `matrix`, `tree`, `timestamp` (in one order over all regions), or
    /// `eventual` (none but of definitions).
    pub plane: PlaneKind,
    /// The tree of serializers that this region tells the others.
    pub tree: Option<Plan>,
    /// On `tree`: how long a transaction waits for its label, and a label for its transaction,
    /// before pasts decide.
    pub patience: Duration,
    /// Who this node is to others.
    pub caller: Caller,
    /// How long a position without anything for a peer may wait before it is told, and how often a
    /// shared log is looked at.
    pub beat: Duration,
    /// Bytes that wait to be applied, about, in equal shares for the peers; who sends more waits.
    pub inbox_bytes: usize,
    /// Bound on each wait for the engine or a peer.
    pub timeout: Duration,
    /// The text with which this region is accepted: said to peers that do not know it.
    pub introduction: Option<String>,
    /// The same of other regions that have joined, those that have left included: each peer is told
    /// of all others, since two that joined by texts of before each other know nothing of one
    /// another.
    pub others: Vec<(RegionId, String)>,
    /// Who takes in regions that introduce themselves, or others.
    pub introductions: Option<tokio::sync::mpsc::Sender<Introduction>>,
    /// Clients may write: this region has heard of all others, or counts apart. It outlasts streams
    /// that are started anew.
    pub opened: Arc<AtomicBool>,
    /// For tests only.
    pub planted: Option<Bug>,
}

impl RegionsConfig {
    /// The defaults: `matrix`, beats of 50 ms, 64 MiB of inbox, waits of at most 30 s, for labels
    /// of 1 s.
    #[must_use]
    pub fn new(me: RegionId, deployment: u128, secret: [u8; 32], caller: Caller) -> Self {
        Self {
            me,
            name: format!("region {me}"),
            deployment,
            secret,
            peers: Vec::new(),
            lost: Vec::new(),
            heirs: BTreeMap::new(),
            plane: PlaneKind::Matrix,
            tree: None,
            patience: Duration::from_secs(1),
            caller,
            beat: Duration::from_millis(50),
            inbox_bytes: 64 << 20,
            timeout: Duration::from_secs(30),
            introduction: None,
            others: Vec::new(),
            introductions: None,
            opened: Arc::default(),
            planted: None,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        runs(self.plane)?;
        let mut numbers: Vec<_> = self.peers.iter().map(|peer| peer.id).collect();
        numbers.push(self.me);
        numbers.sort_unstable();
        if numbers.windows(2).any(|two| two[0] == two[1]) {
            return Err(Error::Config(
                "two regions have the same number; give each its own".into(),
            ));
        }
        if numbers.iter().any(|number| usize::from(number.0) >= MEMBERS) {
            return Err(Error::Config(format!("numbers of regions go up to {}", MEMBERS - 1)));
        }
        Ok(())
    }
}

/// Whether regions run `plane`.
pub(crate) fn runs(plane: PlaneKind) -> Result<()> {
    if matches!(
        plane,
        PlaneKind::Matrix | PlaneKind::Tree | PlaneKind::Timestamp | PlaneKind::Eventual
    ) {
        return Ok(());
    }
    Err(Error::Config(format!(
        "the {plane} plane runs in the study only (make bench-geo), since it makes nothing visible sooner than matrix does; choose matrix, tree, timestamp for one order over all regions, or eventual for none between them"
    )))
}
