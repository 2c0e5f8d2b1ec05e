//! The runner: what a node does for its region's streams, and what the layers above ask of it.
//!
//! # Invariants
//! - A database that has one region becomes one of several by starting this; nothing is rewritten
//!   or exported.
//! - Stopping ends all tasks; everything needed to go on is in the engine.
//!
//! # On failure
//! Troubles with peers are in [`Regions::status`]; they end by themselves when their cause does,
//! unless their text says otherwise.
//!
//! # Limits
//! The numbers of peers are fixed while it runs.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use telesto_bucket::Bucket;
use telesto_common::env::Task;
use telesto_common::{Deadline, Env, Label, RegionId, ShardId, Timestamp};
use telesto_net::{CallLimits, Class, Client, Handler, Transport};
use telesto_shard::{ProcessCache, Read};
use telesto_txn::regions::{ConflictView, LinkView, RegionControl};
use telesto_txn::service::{CommitWrites, Freshness};
use telesto_txn::{Database as _, Engine, ReadFor, Reads, TxnOptions};
use tokio::sync::{Notify, watch};

use crate::again;
use crate::apply::Applier;
use crate::carried;
use crate::committing::Committing;
use crate::config::RegionsConfig;
use crate::error::{Error, Result};
use crate::fold::PartSource;
use crate::gaps::Gaps;
use crate::introduce;
use crate::life;
use crate::measured::{self, Reports};
use crate::purge;
use crate::read_for::ReadsFor;
use crate::receive::Receiver;
use crate::rows;
use crate::send::Sender;
use crate::shared::{Peer, Shared, stored_inbox};
use crate::sort_out::Tables;
use crate::store::{Store, checked};
use crate::take_back;
use crate::times::{self, Times};
use crate::token;
use crate::tree::{self, TreeStatus, Trees};
use crate::wire::Position;
use telesto_geo::PlaneKind;
use telesto_geo::placement::Rules;

/// Memory for parts of large write sets that are read again.
const PART_CACHE_BYTES: u64 = 16 << 20;
/// How often the position is kept for regions that will join.
const KEEP: Duration = Duration::from_secs(60);
/// How often it is looked whether the applier has ended.
const ENDED: Duration = Duration::from_millis(5);

/// How one peer stands.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// Its number.
    pub id: RegionId,
    /// Its name.
    pub name: String,
    /// Where it is reached.
    pub address: String,
    /// Whether this region's stream to it runs.
    pub connected: bool,
    /// Whether rows that it did not replicate before are being sent to it: reads of them there are
    /// not causal yet.
    pub filling: bool,
    /// Entries of this region's log that it has not been told yet.
    pub behind: u64,
    /// Transactions sent to it since this runner began, and their bytes, packed.
    pub sent: (u64, u64),
    /// Transactions of it that were applied here since this runner began.
    pub applied: u64,
    /// Transactions of it that wait here for their past.
    pub waiting: usize,
    /// Everything of it up to this time is here.
    pub passed: Timestamp,
    /// From its newest transaction's commit to its being visible here, by the two regions' clocks.
    pub visible_after: Duration,
    /// What is wrong now.
    pub trouble: Option<String>,
}

/// How this region stands.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its number.
    pub me: RegionId,
    /// Its name.
    pub name: String,
    /// How causal order is kept.
    pub plane: &'static str,
    /// How the tree of serializers stands.
    pub tree: TreeStatus,
    /// The peers.
    pub peers: Vec<PeerStatus>,
    /// Writes of other regions that lost against what was here, since this runner began.
    pub conflicts: u64,
    /// What is wrong here now.
    pub trouble: Option<String>,
}

/// The replication of one region.
#[derive(Debug)]
pub struct Regions {
    shared: Arc<Shared>,
    tasks: Mutex<Vec<Arc<dyn Task>>>,
}

impl Regions {
    /// Starts the streams of `engine`'s region. Its [`Regions::handler`] is to be served under
    /// [`crate::SERVICE`]. By `tables` rows of others are understood; without it every key is
    /// applied as it comes.
    ///
    /// # Errors
    /// [`Error::Config`]; the engine's.
    pub async fn start(
        env: &Env,
        engine: Arc<Engine>,
        bucket: Arc<dyn Bucket>,
        transport: Arc<dyn Transport>,
        config: RegionsConfig,
        tables: Tables,
    ) -> Result<Arc<Self>> {
        config.check()?;
        if engine.region() != config.me {
            return Err(Error::Config(format!(
                "the database was opened as region {}, not {}; open it as the region it is",
                engine.region(),
                config.me
            )));
        }
        let (service, timeout) = (engine.service(), config.timeout);
        let store = Store { env: env.clone(), service, shard: ShardId(0), me: config.me, timeout };
        let gaps = Gaps::at_opening(&store, engine.applied().1).await?;
        let (inbox, stored) = stored_inbox(&store, &tables, &config).await?;
        let logged = inbox.known().clone();
        let passed = inbox.passed();
        let peers: BTreeMap<_, _> =
            config.peers.iter().map(|peer| (peer.id, Peer::default())).collect();
        let cache = Arc::new(ProcessCache::new(PART_CACHE_BYTES));
        let clients = speaking(env, &transport, &config, Class::Append);
        let readers = speaking(env, &transport, &config, Class::Read);
        // Kept in memory from now on.
        let _ = engine.recent(engine.applied().0.next(), 0);
        let shared = Arc::new(Shared {
            env: env.clone(),
            parts: PartSource { bucket, cache },
            engine,
            store,
            tables,
            inbox: Mutex::new(inbox),
            news: Notify::new(),
            drained: Notify::new(),
            wanted: Mutex::new(None),
            passed: watch::Sender::new(passed),
            peers,
            reports: Reports::default(),
            trouble: Mutex::default(),
            conflicts: Mutex::default(),
            stopped: AtomicBool::new(false),
            superseded: AtomicBool::new(false),
            clients,
            readers,
            reads_for: ReadsFor::default(),
            work: Mutex::default(),
            heard: watch::Sender::default(),
            trees: Trees::new(env.random_u128() as u64, config.tree.clone()),
            times: Times::default(),
            committing: Committing::default(),
            certain: watch::Sender::default(),
            gaps: Mutex::new(gaps),
            gaps_elsewhere: Mutex::default(),
            owed: Mutex::default(),
            taking_back: Mutex::default(),
            config,
        });
        let regions = Arc::new(Self { shared: Arc::clone(&shared), tasks: Mutex::default() });
        regions.keep_position().await?;
        let mut tasks = vec![
            env.spawn(
                "applying transactions of other regions",
                Applier::new(Arc::clone(&shared), stored, logged).run(),
            ),
            env.spawn("keeping the region's position", keep(Arc::downgrade(&regions))),
        ];
        tasks.push(env.spawn("asking others again", again::run(Arc::clone(&shared))));
        tasks.push(env.spawn("keeping the tree of serializers", tree::keep(Arc::clone(&shared))));
        tasks.push(env.spawn("closing time for others", times::close(Arc::clone(&shared))));
        tasks.push(env.spawn("hearing where all stand", life::run(Arc::clone(&shared))));
        tasks.push(env.spawn("removing what this region lost", purge::run(Arc::clone(&shared))));
        for lost in &shared.config.lost {
            let closing = take_back::close(Arc::clone(&shared), *lost);
            tasks.push(env.spawn("closing a lost region", closing));
        }
        for peer in &shared.config.peers {
            let telling = measured::tell(Arc::clone(&shared), peer.id);
            tasks.push(env.spawn("telling another region what was measured", telling));
            let telling = introduce::tell(Arc::clone(&shared), peer.id);
            tasks.push(env.spawn("telling another region which others there are", telling));
            if shared.config.plane == PlaneKind::Timestamp {
                let asking = times::ask(Arc::clone(&shared), peer.id);
                tasks.push(env.spawn("asking for another region's time", asking));
            }
            let sender = Sender { shared: Arc::clone(&shared), to: peer.id };
            tasks.push(env.spawn("a stream to another region", sender.run()));
        }
        *regions.tasks.lock() = tasks;
        let control: std::sync::Weak<Self> = Arc::downgrade(&regions);
        shared.engine.replicates(control as std::sync::Weak<dyn RegionControl>);
        carried::answer_nodes(&regions);
        Ok(regions)
    }

    /// Answers other regions.
    #[must_use]
    pub fn handler(&self) -> Arc<dyn Handler> {
        Arc::new(Receiver(Arc::clone(&self.shared)))
    }

    /// Keeps where the log stands, for regions that will join.
    async fn keep_position(&self) -> Result<()> {
        let shared = &self.shared;
        let Some(stored) = shared.store.row(rows::base(), None).await? else {
            let (lsn, at) = shared.engine.applied();
            let by = shared.env.deadline(shared.config.timeout);
            let hash = shared.engine.log().hash_before(lsn.next(), by).await?;
            return self.keep(Position { lsn, hash, at, ..Position::default() }).await;
        };
        let base = Position::decode(stored).map_err(Error::malformed("a stored position"))?;
        // The row itself is an entry.
        if shared.engine.applied().0.0 <= base.lsn.0 + 1 {
            return Ok(());
        }
        let mut fold = shared.fold(base, Rules::default());
        fold.rules = shared.rules_at(&fold.position).await?;
        shared.run_to_tail(&mut fold).await?;
        self.keep(fold.position).await
    }

    async fn keep(&self, position: Position) -> Result<()> {
        let row = checked(rows::base(), Some(position.encode()), Timestamp::MAX);
        let writes = CommitWrites::Inline(vec![row]);
        self.shared.store.commit(writes, Reads::default(), Timestamp::ZERO).await?;
        Ok(())
    }

    /// How this region and its peers stand.
    #[must_use]
    pub fn status(&self) -> Status {
        let shared = &self.shared;
        let trouble = shared.trouble.lock();
        let applied = shared.engine.applied().0.0;
        let passed = shared.passed.borrow().clone();
        let trouble_with = |peer: RegionId| {
            let link = trouble.get(&Some(peer)).cloned();
            let all = [link, shared.trouble_with_time_of(peer), shared.waits_for_nobody(peer)];
            let all: Vec<_> = all.into_iter().flatten().collect();
            (!all.is_empty()).then(|| all.join("; "))
        };
        let peer = |config: &crate::PeerRegion| {
            let peer = shared.peers.get(&config.id)?;
            let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
            // Before the inbox is locked for as long as the rest is put together.
            let trouble = trouble_with(config.id);
            Some(PeerStatus {
                id: config.id,
                name: config.name.clone(),
                address: config.node.address.clone(),
                connected: peer.connected.load(Ordering::Relaxed),
                filling: peer.filling.load(Ordering::Relaxed),
                behind: applied.saturating_sub(count(&peer.has)),
                sent: (count(&peer.sent), count(&peer.sent_bytes)),
                applied: count(&peer.applied),
                waiting: shared.inbox.lock().waiting(config.id),
                passed: passed.get(&config.id).copied().unwrap_or_default(),
                visible_after: Duration::from_micros(count(&peer.visible_micros)),
                trouble,
            })
        };
        let mut lost = shared.config.lost.iter();
        let follows = shared.inbox.lock().follows();
        Status {
            me: shared.config.me,
            name: shared.config.name.clone(),
            plane: shared.config.plane.name(),
            tree: shared.trees.status(follows, shared.config.plane == PlaneKind::Tree),
            peers: shared.config.peers.iter().filter_map(peer).collect(),
            conflicts: shared.conflicts.lock().0,
            trouble: trouble
                .get(&None)
                .or_else(|| lost.find_map(|id| trouble.get(&Some(*id))))
                .cloned(),
        }
    }

    /// The newest conflicts.
    #[must_use]
    pub fn conflicts(&self) -> Vec<ConflictView> {
        self.shared.conflicts.lock().1.iter().cloned().collect()
    }

    /// What is measured of the links between regions, of every pair that is known here.
    #[must_use]
    pub fn links(&self) -> Vec<LinkView> {
        self.shared.links()
    }

    /// The token of a session that has seen `session` (the label that the engine gave it) here.
    /// What it stands for is everything that was here then; of a session that has seen nothing yet,
    /// everything that is here now: its client may have seen that by a connection that was lost.
    #[must_use]
    pub fn token(&self, session: Label) -> String {
        let config = &self.shared.config;
        let seen = match session.timestamp {
            Timestamp::ZERO => self.shared.engine.applied().1,
            seen => seen,
        };
        token::sign(&config.secret, config.deployment, config.me, seen)
    }

    /// As [`Regions::token`], of a session that is about to go to region `to`: what it has seen is
    /// told there at once.
    ///
    /// # Errors
    /// [`Error::UnknownRegion`].
    pub fn migrate(&self, session: Label, to: RegionId) -> Result<String> {
        if to != self.shared.config.me {
            let peer = self.shared.peers.get(&to).ok_or(Error::UnknownRegion(to))?;
            peer.hurry.notify_one();
            self.shared.trees.hurry();
        }
        Ok(self.token(session))
    }

    /// [`Regions::migrate`] to the region that is called `to`, of a session as
    /// [`Regions::told_token`].
    pub(crate) async fn migrate_to(
        &self,
        session: Label,
        to: &str,
    ) -> std::result::Result<String, String> {
        let config = &self.shared.config;
        let peer = config.peers.iter().find(|peer| peer.name == to).map(|peer| peer.id);
        let id = peer.or((to == config.name).then_some(config.me)).ok_or_else(|| {
            format!("there is no region {to}; SELECT name FROM telesto_regions shows them")
        })?;
        let token = self.told_token(session).await.map_err(|error| error.to_string())?;
        self.migrate(session, id).map_err(|error| error.to_string())?;
        Ok(token)
    }

    /// Waits until every peer that can be reached has said where it stands in this region's log,
    /// and what this region had lost was taken back: what is written before that is written without
    /// it. Whether that is so at `by`.
    pub async fn has_heard_of_all(&self, by: Deadline) -> bool {
        let shared = &self.shared;
        let (mut heard, everybody) = (shared.heard.subscribe(), shared.peers.len());
        let all = async { heard.wait_for(|heard| heard.len() >= everybody).await.is_ok() };
        shared.env.within(by, "hearing of the other regions", all).await.unwrap_or(false)
    }

    /// Says what this region counts as where columns merge: apart from what it has counted, if not
    /// all have said where they stand. To be called before clients write.
    ///
    /// # Errors
    /// The engine's.
    pub async fn begin_life(&self) -> Result<()> {
        life::begin(&self.shared).await
    }

    /// Statements that are executed here for other regions now.
    #[must_use]
    pub fn reads_for_others(&self) -> usize {
        self.shared.reads_for.count()
    }

    /// Peers that have seen commits which this region has lost and not taken back yet.
    #[must_use]
    pub fn taking_back(&self) -> Vec<RegionId> {
        self.shared.taking_back.lock().iter().copied().collect()
    }

    /// How often this region has lost commits and gone on.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.shared.incarnation()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// A deadline of this region's clock.
    pub(crate) fn deadline(&self, limit: Duration) -> Deadline {
        self.shared.env.deadline(limit)
    }

    /// Everything of each region up to these times is here.
    #[must_use]
    pub fn passed(&self) -> BTreeMap<RegionId, Timestamp> {
        self.shared.passed.borrow().clone()
    }

    /// Whether everything is here that was committed before the version of `key` that is here, in
    /// the region that wrote it.
    ///
    /// # Errors
    /// The engine's.
    pub async fn has_past_of(&self, key: Bytes) -> Result<bool> {
        let store = &self.shared.store;
        let snapshot = store.begin(Freshness::Tail, None).await?;
        let read = store.get(vec![key], snapshot.snapshot).await;
        store.release(&snapshot).await;
        let Some(Read::Found(version)) = read?.pop() else { return Ok(false) };
        let (at, source) = store.rank(&version);
        // What came without a transaction is noted only when somebody waits for it.
        {
            let mut waiting = self.shared.wanted.lock();
            *waiting = (*waiting).max(Some(Timestamp::ZERO));
        }
        self.shared.news.notify_one();
        let passed = self.passed().get(&source).copied();
        Ok(source == self.shared.config.me || passed.is_some_and(|passed| passed >= at))
    }

    /// Keeps that this region, which has joined others, has what was to be sent to it at first.
    ///
    /// # Errors
    /// The engine's.
    pub async fn note_complete(&self) -> Result<()> {
        let row = checked(rows::complete(), Some(Bytes::from_static(&[1])), Timestamp::MAX);
        let writes = CommitWrites::Inline(vec![row]);
        self.shared.store.commit(writes, Reads::default(), Timestamp::ZERO).await?;
        Ok(())
    }

    /// Whether that was noted in the region of `engine`.
    ///
    /// # Errors
    /// The engine's.
    pub async fn is_complete(engine: &Arc<Engine>) -> Result<bool> {
        let options = TxnOptions { read_only: true, ..TxnOptions::default() };
        let txn = engine.begin(options).await?;
        Ok(txn.get(&rows::complete(), ReadFor::Query).await?.is_some())
    }

    /// The placement that holds here now.
    ///
    /// # Errors
    /// The engine's.
    pub async fn placement(&self) -> Result<Rules> {
        crate::fold::rules_of(self.shared.store.row(rows::placement(), None).await?)
    }

    /// Replaces the placement of what this region writes, from the next commit on. Rows that a
    /// region gains are sent to it, and [`PeerStatus::filling`] says until when. Every region has
    /// its own rules: give all the same.
    ///
    /// # Errors
    /// The engine's; a conflict when another change was made at the same time.
    pub async fn set_placement(&self, rules: &Rules) -> Result<()> {
        let store = &self.shared.store;
        let snapshot = store.begin(Freshness::Tail, None).await?;
        let row = checked(rows::placement(), Some(rules.encode()), snapshot.snapshot);
        let writes = CommitWrites::Inline(vec![row]);
        let committed = store.commit(writes, Reads::default(), Timestamp::ZERO).await;
        store.release(&snapshot).await;
        committed.map(|_| ())
    }

    /// Forgets how far the stream of `from` is here, so that `from` sends its rows anew: for a
    /// region that was away for longer than the other keeps its log. What others say that depends
    /// on `from` waits until it is filled.
    ///
    /// # Errors
    /// [`Error::UnknownRegion`].
    pub fn begin_again(&self, from: RegionId) -> Result<()> {
        if !self.shared.peers.contains_key(&from) {
            return Err(Error::UnknownRegion(from));
        }
        self.shared.inbox.lock().forget(from);
        Ok(())
    }

    /// Whether another runner of this region has applied something meanwhile: nothing more is
    /// applied by this one. One that is started anew goes on from there.
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        self.shared.superseded.load(Ordering::Acquire)
    }

    /// Ends all tasks as [`Regions::stop`] does, but lets what is being committed end first, so
    /// that streams can be started anew on the same engine: progress that is committed after they
    /// have read it looks like another runner's to them.
    pub async fn finish(&self) {
        let shared = &self.shared;
        shared.stopped.store(true, Ordering::Release);
        // The applier is the first one.
        let applying = self.tasks.lock().first().cloned();
        let by = shared.env.deadline(shared.config.timeout);
        while applying.as_ref().is_some_and(|task| !task.is_finished())
            && !by.passed(shared.env.clock.monotonic())
        {
            shared.news.notify_waiters();
            shared.env.clock.sleep(ENDED).await;
        }
        self.stop();
    }

    /// Ends all tasks, and refuses what others send from then on. The engine goes on.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.trees.stop();
        self.shared.reads_for.clear();
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The connections to all peers, of one class.
fn speaking(
    env: &Env,
    transport: &Arc<dyn Transport>,
    config: &RegionsConfig,
    class: Class,
) -> BTreeMap<RegionId, Client> {
    let client = |peer: &crate::PeerRegion| {
        let (transport, limits) = (Arc::clone(transport), CallLimits::default());
        (peer.id, Client::new(env, transport, peer.node.clone(), config.caller, class, limits))
    };
    config.peers.iter().map(client).collect()
}

async fn keep(regions: std::sync::Weak<Regions>) {
    loop {
        let Some(env) = regions.upgrade().map(|regions| regions.shared.env.clone()) else { return };
        env.clock.sleep(KEEP).await;
        let Some(regions) = regions.upgrade() else { return };
        if let Err(error) = regions.keep_position().await {
            tracing::warn!(%error, "the region's position was not kept; regions that join now read more of the log");
        }
    }
}
