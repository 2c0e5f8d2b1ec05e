//! What the tasks of one region's replication share.
//!
//! # Invariants
//! What is published as passed is in this region's log, and so is the past that came with it.
//!
//! # On failure
//! Troubles are kept by peer until they are over, for the status.
//!
//! # Limits
//! The newest [`CONFLICTS`] conflicts are kept, in memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::{Env, RegionId, Timestamp};
use telesto_geo::Bug;
use telesto_txn::Engine;
use telesto_txn::regions::ConflictView;
use tokio::sync::{Notify, watch};

use crate::config::RegionsConfig;
use crate::fold::PartSource;
use crate::inbox::{Inbox, Remote};
use crate::measured::{Meter, Reports};
use crate::past::Past;
use crate::sort_out::Tables;
use crate::store::Store;

/// Conflicts kept.
const CONFLICTS: usize = 256;

/// What is said of one peer.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// Transactions sent, since this runner began.
    pub sent: AtomicU64,
    pub sent_bytes: AtomicU64,
    /// Of the unpacked bytes, those that tell of the past and of positions.
    pub metadata_bytes: AtomicU64,
    pub meter: Meter,
    /// Transactions of it applied, since this runner began.
    pub applied: AtomicU64,
    /// How long the newest took from its commit to being visible here, microseconds.
    pub visible_micros: AtomicU64,
    /// The newest position of this region's log that it has.
    pub has: AtomicU64,
    pub connected: AtomicBool,
    /// Rows are being sent to it that it did not replicate before.
    pub filling: AtomicBool,
    /// Send what is known at once: a session moves there.
    pub hurry: Notify,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Shared {
    pub env: Env,
    pub config: RegionsConfig,
    pub engine: Arc<Engine>,
    pub parts: PartSource,
    pub store: Store,
    pub tables: Tables,
    pub inbox: Mutex<Inbox>,
    /// Something came.
    pub news: Notify,
    /// Something was taken from the inbox.
    pub drained: Notify,
    /// A session waits whose newest label is this.
    pub wanted: Mutex<Option<Timestamp>>,
    /// By source: everything of it up to here is in the log, with its past.
    pub passed: watch::Sender<BTreeMap<RegionId, Timestamp>>,
    pub peers: BTreeMap<RegionId, Peer>,
    /// What the others have measured.
    pub reports: Reports,
    /// What goes wrong now, by peer; nothing: here.
    pub trouble: Mutex<BTreeMap<Option<RegionId>, String>>,
    pub conflicts: Mutex<(u64, VecDeque<ConflictView>)>,
    /// Nothing is taken any more.
    pub stopped: AtomicBool,
}

impl Shared {
    /// Tells how far the sources are, if the past they brought is in the log.
    pub fn publish(&self, passed: BTreeMap<RegionId, Timestamp>, logged: &Past) {
        if self.inbox.lock().known() == logged || self.config.planted == Some(Bug::StaleAttach) {
            self.passed.send_if_modified(|known| {
                let news = *known != passed;
                *known = passed;
                news
            });
        }
    }

    pub fn applied(&self, transactions: &[Remote]) {
        let (now, since) = (self.env.clock.wall_micros(), self.env.clock.monotonic());
        for remote in transactions {
            let source = remote.label.source;
            let took = now.saturating_sub(remote.label.timestamp.wall_micros());
            metrics::histogram!("telesto_regions_visibility_seconds", "source" => source.to_string())
                .record(Duration::from_micros(took).as_secs_f64());
            if let Some(peer) = self.peers.get(&source) {
                peer.applied.fetch_add(1, Ordering::Relaxed);
                peer.visible_micros.store(took, Ordering::Relaxed);
                peer.meter.saw(since, took);
            }
        }
    }

    pub fn note(&self, conflicts: Vec<ConflictView>) {
        if conflicts.is_empty() {
            return;
        }
        metrics::counter!("telesto_regions_conflicts_total").increment(conflicts.len() as u64);
        let mut kept = self.conflicts.lock();
        kept.0 += conflicts.len() as u64;
        kept.1.extend(conflicts);
        while kept.1.len() > CONFLICTS {
            kept.1.pop_front();
        }
    }
}
