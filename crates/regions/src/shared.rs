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

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::{Env, RegionId, Timestamp};
use telesto_geo::{Bug, PlaneKind};
use telesto_net::{Client, Service};
use telesto_txn::Engine;
use telesto_txn::regions::ConflictView;
use tokio::sync::{Notify, oneshot, watch};

use crate::committing::Committing;
use crate::config::RegionsConfig;
use crate::error::{Error, Result};
use crate::fold::PartSource;
use crate::gaps::Gaps;
use crate::inbox::{Inbox, Remote, Way};
use crate::measured::{Meter, Reports};
use crate::past::Past;
use crate::question::Question;
use crate::read_for::ReadsFor;
use crate::rows;
use crate::sort_out::{self, Tables};
use crate::store::Store;
use crate::times::Times;
use crate::tree::Trees;
use crate::wire::{Header, Reply, Request};

/// The service of the streams between regions.
pub const SERVICE: Service = Service(0x5247);

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
    /// It has said, since this runner began, where it stands in this region's log, and the log has
    /// that place.
    pub stands: AtomicBool,
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
    /// Another runner of this region has applied something.
    pub superseded: AtomicBool,
    /// The connections to peers.
    pub clients: BTreeMap<RegionId, Client>,
    /// Those that reads take.
    pub readers: BTreeMap<RegionId, Client>,
    /// What is read here for others.
    pub reads_for: ReadsFor,
    /// What the applier is to do beside what the streams bring, in this order, but for what waits
    /// for definitions.
    pub work: Mutex<VecDeque<Taken>>,
    /// Peers that have said, since this runner began, where they stand, or could not be asked.
    pub heard: watch::Sender<BTreeSet<RegionId>>,
    /// Trees of serializers.
    pub trees: Trees,
    /// Closed times, of plane `timestamp`.
    pub times: Times,
    /// What other regions have asked to commit here.
    pub committing: Committing,
    /// Those that have said it: they have nothing of this region that is not here.
    pub certain: watch::Sender<BTreeSet<RegionId>>,
    /// Peers that have seen commits which this region has lost, and have not given them back yet.
    pub taking_back: Mutex<BTreeSet<RegionId>>,
    /// What is known of losses of this region's log, and of others' since which incarnation of
    /// theirs.
    pub gaps: Mutex<Gaps>,
    pub gaps_elsewhere: Mutex<BTreeMap<RegionId, (u64, Gaps)>>,
    /// How many transactions for this region peers had committed when it found that it had lost
    /// some of its own: they are to come again.
    pub owed: Mutex<BTreeMap<RegionId, u64>>,
}

/// What was taken from peers, all of it in one entry as far as it is defined here, and what it
/// ends.
#[derive(Debug)]
pub(crate) struct Taken {
    /// By label: what is behind one that is not defined yet may depend on it, and waits with it.
    pub transactions: Vec<Remote>,
    pub then: Then,
    /// Gets what is left, when the rest is committed.
    pub done: oneshot::Sender<Vec<Remote>>,
}

/// What follows from it.
#[derive(Debug)]
pub(crate) enum Then {
    /// More comes. What is not defined yet is given back.
    Nothing,
    /// This region goes on in a new incarnation; its peers know of this of it.
    Reincarnate(Box<Past>),
    /// Nothing waits for this region any more.
    Close(RegionId),
}

impl Shared {
    /// What `to` answers.
    pub async fn ask(&self, to: RegionId, request: Request) -> Result<Reply> {
        let Some(client) = self.clients.get(&to) else { return Err(Error::UnknownRegion(to)) };
        let header = Header { deployment: self.config.deployment, from: self.config.me, to };
        let by = self.env.deadline(self.config.timeout);
        let asked = self.env.clock.monotonic();
        let reply = client.call(SERVICE, request.encode(header), by).await?;
        if let Some(peer) = self.peers.get(&to) {
            peer.meter.answered(self.env.clock.monotonic().saturating_sub(asked));
        }
        let reply = Reply::decode(reply).map_err(Error::malformed("another region's reply"))?;
        match reply {
            Reply::Refused(reason) => Err(Error::Refused { region: to, reason }),
            reply => Ok(reply),
        }
    }

    /// Says that what `from` sends waits for a region that is none here, if it does: nothing of
    /// that comes.
    pub fn waits_for_nobody(&self, from: RegionId) -> Option<String> {
        let waits = self.inbox.lock().waits_for(from, |other| !self.peers.contains_key(&other))?;
        Some(format!(
            "what it sends waits for transactions of region {waits}, which this region does not know, or has left out without taking from the others what they have of it: if that region has left, run `telesto region remove` of it on the bucket of each region that stays; if it has joined a moment ago, this ends by itself"
        ))
    }

    /// What a region is called, for people.
    pub fn name_of(&self, region: RegionId) -> String {
        let peer = self.config.peers.iter().find(|peer| peer.id == region);
        peer.map_or_else(|| region.to_string(), |peer| format!("\"{}\"", peer.name))
    }

    /// What `to` answers to a question.
    pub async fn question(&self, to: RegionId, question: &Question) -> Result<Bytes> {
        match self.ask(to, Request::Ask(question.encode())).await? {
            Reply::Answer(answer) => Ok(answer),
            _ => Err(Error::malformed("another region's answer")("it is none".to_owned())),
        }
    }

    /// Has the applier apply `transactions` (by label), and waits until it is done; then all of
    /// them are applied, and if it is nothing as many as are defined: the others are given back.
    pub async fn apply_taken(&self, transactions: Vec<Remote>, then: Then) -> Result<Vec<Remote>> {
        let (done, left) = oneshot::channel();
        self.work.lock().push_back(Taken { transactions, then, done });
        self.news.notify_one();
        left.await.map_err(|_| Error::Stopped)
    }

    /// Whether one of `transactions` defines something.
    pub fn is_definition(&self, transactions: &[Remote]) -> bool {
        let stamp = self.tables.as_ref().map(|tables| tables.stamp());
        let mut defines = transactions
            .iter()
            .map(|remote| stamp.as_ref().and_then(|stamp| remote.written(stamp)));
        defines.any(|written| written.is_some())
    }

    /// Notes who makes definitions, by those that were applied.
    pub async fn learn_defining(&self) -> Result<()> {
        let defining = sort_out::defining(&self.store, &self.tables).await?;
        self.inbox.lock().defined_in(defining);
        Ok(())
    }

    /// How often this region has lost commits and gone on.
    pub fn incarnation(&self) -> u64 {
        self.inbox.lock().known().incarnation(self.config.me)
    }

    /// A peer said where it stands, or could not be asked.
    pub fn heard_of(&self, peer: RegionId) {
        self.heard.send_if_modified(|heard| heard.insert(peer));
    }

    /// Peers that have something of this region that is not here and do not give it back are away:
    /// it is taken back when they are not.
    pub fn wait_for_nobody(&self) {
        let mut away: BTreeSet<RegionId> = self.peers.keys().copied().collect();
        away.retain(|peer| !self.heard.borrow().contains(peer));
        tracing::warn!(
            ?away,
            "what this region has lost is not given back; it goes on without that"
        );
        self.taking_back.lock().retain(|peer| !away.contains(peer));
        away.into_iter().for_each(|peer| self.heard_of(peer));
    }

    /// No peer has anything of this region that is not here.
    pub fn is_certain(&self) -> bool {
        self.certain.borrow().len() >= self.peers.len()
    }

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
            if !self.peers.contains_key(&source) {
                continue;
            }
            let Way { came, due, waited, by_label } = remote.way;
            self.trees.applied(by_label);
            let committed = remote.label.timestamp.wall_micros();
            leg("arrive", source, came.saturating_sub(committed));
            let waiting = due.saturating_sub(came);
            leg("past", source, if waited { waiting } else { 0 });
            leg("turn", source, if waited { 0 } else { waiting });
            leg("apply", source, now.saturating_sub(due));
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

/// What came in and is not applied, as it was stored last; and as it is stored.
pub(crate) async fn stored_inbox(
    store: &Store,
    tables: &Tables,
    config: &RegionsConfig,
) -> Result<(Inbox, Option<Bytes>)> {
    let mut inbox = Inbox::new(config.me, config.plane, config.planted);
    if config.plane == PlaneKind::Timestamp {
        inbox.timed_by(config.peers.iter().map(|peer| peer.id).collect());
    }
    if let Some(known) = tables {
        inbox.stamped_by(known.stamp());
        inbox.defined_in(sort_out::defining(store, tables).await?);
    }
    let stored = store.row(rows::inbox(), None).await?;
    if let Some(stored) = stored.clone() {
        inbox.restore(stored).map_err(Error::malformed("progress"))?;
    }
    Ok((inbox, stored))
}

/// One leg of a transaction's way from `peer`, or to it: microseconds that it took.
pub(crate) fn leg(leg: &'static str, peer: RegionId, micros: u64) {
    metrics::histogram!("telesto_regions_leg_seconds", "leg" => leg, "peer" => peer.to_string())
        .record(Duration::from_micros(micros).as_secs_f64());
}
