//! A node's part in its region: it carries the streams to and from other regions.
//!
//! ```text
//! registry in the bucket ──► who I am, who the others are ──► streams
//!        ▲                                                      │ a region that joined introduces itself
//!        └──────────────── taken in ◄───────────────────────────┘  … or others
//! ```
//! # Invariants
//! - A database is opened as the region that its bucket's registry says, by every node.
//! - A region that has joined opens SQL only when the definitions of the others are there, and the
//!   rows that were to be sent before: it never makes a catalog of its own, and never answers from
//!   half a table.
//! - The catalog names the regions that the defining region's registry has, and rows are placed by
//!   it. Where that one is lost, the region that all others were told of takes over what it did.
//!
//! # On failure
//! [`Error::Region`] says what to do. Later failures are in `telesto_regions` and tried again.
//!
//! # Limits
//! One node of a region carries its streams at a time ([`crate::carrying`]). A changed registry is
//! seen within [`LOOK`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use telesto_bucket::Bucket;
use telesto_common::env::Task;
use telesto_common::{Deadline, Env, Incarnation, NodeId, RegionId};
use telesto_net::{Caller, Class, Handler, Router};
use telesto_regions::{
    Claim, Claims, Introduction, Regions, Registry, SERVICE, TAKING_BACK, Through,
};
use telesto_runtime::net::{Certificates, JoinToken, Tcp};
use telesto_sql::SqlEngine;
use telesto_sql::catalog::regions::FOUNDER;
use telesto_sql::regions::RegionDefinitions;
use telesto_txn::regions::Definitions as _;
use telesto_txn::{Database, Engine};
use tokio::sync::mpsc;

use crate::error::{Error, Result};

/// How often it is looked whether the registry was changed.
const LOOK: Duration = Duration::from_secs(2);
/// How long a region that has joined waits for what the others have.
const PATIENCE: Duration = Duration::from_secs(3600);
const AGAIN: Duration = Duration::from_millis(200);
/// How long a start waits for peers to say where they stand in what this region may have lost; for
/// what it has lost to be taken back it waits [`TAKING_BACK`].
const HEARING: Duration = Duration::from_secs(10);
/// For how long a node that does not carry the streams looks for one that does.
const UNCARRIED: Duration = Duration::from_secs(5);
/// Regions that introduce themselves, or others, at a time.
const INTRODUCTIONS: usize = 64;
/// How often it is tried to keep what they say, while commands change the registry.
const TRIES: usize = 5;

fn wrong(reason: impl ToString) -> Error {
    Error::Region(reason.to_string())
}

/// The process ends with it: no session is there to be shown the hint.
fn with_hint(error: Error) -> Error {
    match &error {
        Error::Sql(failed) => match &failed.fields().hint {
            Some(hint) => wrong(format!("{failed}. {hint}")),
            None => error,
        },
        _ => error,
    }
}

/// Told to carry the streams of what is no region.
pub(crate) fn no_region(bucket: &Arc<dyn Bucket>) -> Error {
    wrong(format!(
        "{} is no region yet; make it one with `telesto region init` or `telesto region join`",
        bucket.url()
    ))
}

/// Answers as the streams that run now do.
#[derive(Debug, Default)]
struct Switch(RwLock<Option<Arc<dyn Handler>>>);

#[async_trait]
impl Handler for Switch {
    async fn handle(&self, caller: Caller, class: Class, request: Bytes, by: Deadline) -> Bytes {
        let now = self.0.read().clone();
        match now {
            Some(handler) => handler.handle(caller, class, request, by).await,
            // Who asks takes it for damage, and asks again.
            None => Bytes::new(),
        }
    }
}

/// What an opening waits for, for people.
pub type Waiting = Arc<Mutex<Option<String>>>;

/// The streams of this node's region.
#[derive(Debug)]
pub struct Carrier {
    shared: Arc<Shared>,
    tasks: Mutex<Vec<Arc<dyn Task>>>,
    introductions: Mutex<Option<mpsc::Receiver<Introduction>>>,
}

#[derive(Debug)]
struct Shared {
    env: Env,
    bucket: Arc<dyn Bucket>,
    engine: Arc<Engine>,
    tcp: Tcp,
    me: Caller,
    switch: Arc<Switch>,
    hear: mpsc::Sender<Introduction>,
    definitions: Arc<RegionDefinitions>,
    running: Mutex<Option<Arc<Regions>>>,
    /// Held while the streams are started: the registry's watch and the carrier's may both want to.
    starting: tokio::sync::Mutex<()>,
    /// The streams were ended to be started anew, and that failed.
    ended: AtomicBool,
    /// The registry that the streams run by.
    number: Mutex<u64>,
    /// The catalog does not name the regions as the registry does yet.
    unnamed: AtomicBool,
    /// Clients may write ([`telesto_regions::RegionsConfig::opened`]).
    opened: Arc<AtomicBool>,
}

/// Which region the database in `bucket` is.
///
/// # Errors
/// [`Error::Region`].
pub(crate) async fn region_of(bucket: &Arc<dyn Bucket>) -> Result<RegionId> {
    let registry = Registry::load(bucket).await.map_err(wrong)?;
    Ok(registry.map_or(RegionId::default(), |(_, registry)| registry.me()))
}

/// Lets sessions of a node that does not carry its region's streams reach other regions through the
/// one that does; nothing where the database is no region.
///
/// # Errors
/// [`Error::Region`].
pub(crate) async fn through(
    env: &Env,
    bucket: &Arc<dyn Bucket>,
    engine: &Arc<Engine>,
) -> Result<Option<Arc<Through>>> {
    if Registry::load(bucket).await.map_err(wrong)?.is_none() {
        return Ok(None);
    }
    let database: Arc<dyn Database> = Arc::clone(engine) as _;
    let stamp = RegionDefinitions::new(database).stamp();
    Ok(Some(Through::start(env, engine, stamp)))
}

/// Waits, on a node that does not carry the streams, until the one that does lets clients write:
/// what the region may have lost is to be taken back before that. Where nobody carries them,
/// columns that merge are counted apart.
///
/// # Errors
/// [`Error::Region`].
pub(crate) async fn may_open(env: &Env, engine: &Arc<Engine>, me: Claim) -> Result<()> {
    let claims = Claims::new(env, engine, me);
    let patience = env.deadline(TAKING_BACK);
    let mut alone = env.deadline(UNCARRIED);
    let mut said = false;
    loop {
        let named = claims.named().await.map_err(wrong)?;
        match claims.carrier(named.map(|claim| claim.node)).await {
            Some(node) if claims.opens(node).await => return Ok(()),
            Some(node) => {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(
                        "waiting for what this region may have lost, which node {node} brings"
                    );
                }
                alone = env.deadline(UNCARRIED);
            }
            None if alone.passed(env.clock.monotonic()) => {
                return telesto_regions::count_apart(env, engine).await.map_err(wrong);
            }
            None => {}
        }
        if patience.passed(env.clock.monotonic()) {
            return telesto_regions::count_apart(env, engine).await.map_err(wrong);
        }
        env.clock.sleep(AGAIN).await;
    }
}

/// Refuses SQL in a region that joined and has not got all, on a node that does not get it.
///
/// # Errors
/// [`Error::Region`].
pub(crate) async fn check_complete(engine: &Arc<Engine>) -> Result<()> {
    if engine.region() == FOUNDER || Regions::is_complete(engine).await.map_err(wrong)? {
        return Ok(());
    }
    Err(wrong(
        "this region has joined others and has not got everything of them yet; start a node of it with --region first, which brings it here",
    ))
}

impl Carrier {
    /// Starts the streams, listening at `listen`.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub(crate) async fn start(
        env: &Env,
        bucket: &Arc<dyn Bucket>,
        engine: &Arc<Engine>,
        listen: SocketAddr,
        life: Incarnation,
    ) -> Result<Self> {
        let Some((number, registry)) = Registry::load(bucket).await.map_err(wrong)? else {
            return Err(no_region(bucket));
        };
        let listener = tokio::net::TcpListener::bind(listen).await.map_err(|error| {
            wrong(format!("cannot listen for other regions at {listen}: {error}; choose another address with --region"))
        })?;
        let node = own_node(&registry)?;
        let token = JoinToken::new(registry.secret()).map_err(wrong)?;
        let certificates = Certificates::from_token(&token, node).map_err(wrong)?;
        let tcp = Tcp::new(env.clone(), Some(certificates));
        let (hear, introductions) = mpsc::channel(INTRODUCTIONS);
        let me = Caller { node, incarnation: life };
        let database: Arc<dyn Database> = Arc::clone(engine) as _;
        let shared = Arc::new(Shared {
            env: env.clone(),
            bucket: Arc::clone(bucket),
            engine: Arc::clone(engine),
            tcp: tcp.clone(),
            me,
            switch: Arc::default(),
            hear,
            definitions: RegionDefinitions::new(database),
            running: Mutex::default(),
            starting: tokio::sync::Mutex::default(),
            ended: AtomicBool::new(false),
            number: Mutex::new(number),
            unnamed: AtomicBool::new(false),
            opened: Arc::default(),
        });
        shared.run(&registry).await?;
        let router = Router::default().with(SERVICE, Arc::clone(&shared.switch) as _);
        let serving =
            env.spawn("serving regions", async move { tcp.serve(listener, me, router).await });
        let (tasks, introductions) = (Mutex::new(vec![serving]), Mutex::new(Some(introductions)));
        Ok(Self { shared, tasks, introductions })
    }

    /// The region's name, and how many others it knows.
    #[must_use]
    pub fn shown(&self) -> String {
        let running = self.shared.running.lock();
        running.as_ref().map_or_else(
            || "its streams are being started".to_owned(),
            |running| {
                let status = running.status();
                let others = status.peers.len();
                format!("{} (TLS), {others} other regions are known", status.name)
            },
        )
    }

    /// Waits for what the other regions have for one that has joined them; the first region waits
    /// for nothing. `waiting` says for what.
    ///
    /// # Errors
    /// [`Error::Region`] when it does not come.
    pub(crate) async fn complete(&self, waiting: &Waiting) -> Result<()> {
        let shared = &self.shared;
        if shared.engine.region() == FOUNDER
            || Regions::is_complete(&shared.engine).await.map_err(wrong)?
        {
            return Ok(());
        }
        let patience = shared.env.deadline(PATIENCE);
        let mut said = String::new();
        let mut looked = shared.env.deadline(LOOK);
        while let Some(missing) = shared.missing().await? {
            if said != missing {
                tracing::warn!("waiting for {missing}");
                *waiting.lock() = Some(missing.clone());
                said = missing;
            }
            if patience.passed(shared.env.clock.monotonic()) {
                return Err(wrong(format!(
                    "{said} did not come; see that a node of each region runs with --region and can be reached from here, and from there"
                )));
            }
            if let Err(error) = self.learn(&mut looked).await {
                tracing::warn!(%error, "what is said of other regions was not taken in; trying again");
            }
            shared.env.clock.sleep(AGAIN).await;
        }
        *waiting.lock() = None;
        let running = shared.running.lock().clone();
        if let Some(running) = running {
            running.note_complete().await.map_err(wrong)?;
        }
        Ok(())
    }

    /// Waits, for a while, until the peers that can be reached have said where they stand; and when
    /// this region has lost something, until it was taken back: a definition that is made before
    /// would take the place of one that was lost. What columns that merge count without that is
    /// counted apart.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub(crate) async fn hear_of_all(&self) -> Result<()> {
        let running = self.shared.running.lock().clone();
        let Some(running) = running else { return Ok(()) };
        let patience = self.shared.env.deadline(TAKING_BACK);
        while !running.has_heard_of_all(self.shared.env.deadline(HEARING)).await {
            let taking_back = running.taking_back();
            if taking_back.is_empty() || patience.passed(self.shared.env.clock.monotonic()) {
                tracing::warn!(
                    "other regions have not said yet where they stand; this one opens without that"
                );
                break;
            }
            let trouble = running.status().trouble.unwrap_or_default();
            tracing::warn!(?taking_back, trouble, "waiting for what this region has lost");
        }
        while !running.is_caught_up(self.shared.env.deadline(HEARING)).await.map_err(wrong)? {
            if patience.passed(self.shared.env.clock.monotonic()) {
                tracing::warn!(
                    "this region opens without everything that other regions had sent before it lost commits"
                );
                break;
            }
            tracing::warn!("waiting for what other regions had sent before this one lost commits");
        }
        running.begin_life().await.map_err(wrong)
    }

    /// Clients of the region write already: whoever carried before has let them.
    pub(crate) fn is_open(&self) {
        self.shared.opened.store(true, Ordering::Release);
    }

    /// Whether the streams do not take anything in any more: another process has, or they were to
    /// be started anew and that failed.
    pub(crate) fn is_superseded(&self) -> bool {
        let running = self.shared.running.lock();
        running.as_ref().map_or_else(
            || self.shared.ended.load(Ordering::Acquire),
            |running| running.is_superseded(),
        )
    }

    /// Starts the streams anew, from where the region's rows say that they are.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub(crate) async fn start_anew(&self) -> Result<()> {
        match Registry::load(&self.shared.bucket).await.map_err(wrong)? {
            Some((_, registry)) => self.shared.run(&registry).await,
            None => Err(no_region(&self.shared.bucket)),
        }
    }

    /// Takes in what regions have said of themselves and of others, and what a command has changed
    /// in the registry.
    async fn learn(&self, looked: &mut Deadline) -> Result<()> {
        let shared = &self.shared;
        let said: Vec<_> = {
            let mut heard = self.introductions.lock();
            let next = || heard.as_mut().and_then(|heard| heard.try_recv().ok());
            std::iter::from_fn(next).collect()
        };
        if !said.is_empty() {
            shared.take_in(&said, true).await?;
        } else if !looked.passed(shared.env.clock.monotonic()) {
            return Ok(());
        }
        *looked = shared.env.deadline(LOOK);
        shared.run_by_newest().await?;
        Ok(())
    }

    /// Keeps catalog and streams as the registry says from now on.
    ///
    /// # Errors
    /// [`Error::Region`], [`Error::Sql`].
    pub(crate) async fn watch(&self, sql: &Arc<SqlEngine>) -> Result<()> {
        self.shared.name(sql).await.map_err(with_hint)?;
        let Some(introductions) = self.introductions.lock().take() else { return Ok(()) };
        let (shared, sql) = (Arc::clone(&self.shared), Arc::clone(sql));
        let watching = shared.env.clone().spawn("watching the registry of regions", async move {
            shared.look_after(sql, introductions).await
        });
        self.tasks.lock().push(watching);
        Ok(())
    }
}

fn own_node(registry: &Registry) -> Result<NodeId> {
    let own = registry.members().iter().find(|member| RegionId(member.id) == registry.me());
    let node = own.and_then(|member| member.node.as_ref()).map(|(node, _)| *node);
    node.ok_or_else(|| wrong("the registry of regions does not say who carries this one; run `telesto region join` again"))
}

impl Drop for Carrier {
    fn drop(&mut self) {
        for task in self.tasks.lock().drain(..) {
            task.abort();
        }
        if let Some(running) = self.shared.running.lock().take() {
            running.stop();
        }
    }
}

impl Shared {
    /// What this region has not got yet, if there is something.
    async fn missing(&self) -> Result<Option<String>> {
        let running = self.running.lock().clone();
        let Some(running) = running else { return Ok(Some("the streams".to_owned())) };
        let missing = self.definitions.missing(&running.passed()).await?;
        // What names this region comes behind the rows that were to be sent before.
        let whole = running.has_past_of(self.definitions.stamp()).await.map_err(wrong)?;
        // What is written here before its stream to another region has begun goes there as rows of
        // a snapshot, before its causes.
        let silent = running.status().peers.into_iter().find(|peer| !peer.connected);
        let silent =
            silent.map(|peer| format!("region {}, to take what is written here", peer.name));
        Ok(missing
            .or_else(|| (!whole).then(|| "the rows of the first region".to_owned()))
            .or(silent))
    }

    /// Runs the streams as `registry` says, in the place of those that run.
    async fn run(&self, registry: &Registry) -> Result<()> {
        let _one = self.starting.lock().await;
        let before = self.running.lock().take();
        if let Some(running) = before {
            running.finish().await;
        }
        let started = self.started(registry).await;
        // Who looks after the carrier tries again.
        self.ended.store(started.is_err(), Ordering::Release);
        let regions = started?;
        *self.switch.0.write() = Some(regions.handler());
        *self.running.lock() = Some(regions);
        Ok(())
    }

    async fn started(&self, registry: &Registry) -> Result<Arc<Regions>> {
        let mut config = registry.config(self.me).map_err(wrong)?;
        config.introductions = Some(self.hear.clone());
        config.opened = Arc::clone(&self.opened);
        let regions = Regions::start(
            &self.env,
            Arc::clone(&self.engine),
            Arc::clone(&self.bucket),
            Arc::new(self.tcp.clone()),
            config,
            Some(Arc::clone(&self.definitions) as _),
        );
        regions.await.map_err(wrong)
    }

    /// Lets the catalog name the regions, where definitions are made.
    async fn name(&self, sql: &Arc<SqlEngine>) -> Result<()> {
        let loaded = Registry::load(&self.bucket).await.map_err(wrong)?;
        let Some((_, registry)) = loaded else { return Ok(()) };
        let defining = sql.defining_region().await?;
        if self.engine.region() != defining && !self.take_over(sql, defining).await? {
            return Ok(());
        }
        // A region that was left out stays named until those that stay have what they can have of
        // it: a new home of its tables must not write before. What is named no more stays so: when
        // all have closed it, and it is only not known now whether they have.
        let running = self.running.lock().clone();
        let closed = match running {
            Some(running) => running.lost_are_closed().await.unwrap_or(false),
            None => false,
        };
        self.unnamed.store(!closed, Ordering::Relaxed);
        let members = registry.members().iter();
        let named = members.clone().filter(|member| !member.removed).filter_map(|member| {
            let (_, address) = member.node.as_ref()?;
            Some((member.id, member.name.clone(), address.clone()))
        });
        let kept = members.filter(|member| member.removed && member.lost && !closed);
        let kept = kept.map(|member| member.id).collect::<Vec<_>>();
        Ok(sql.name_regions(&named.collect::<Vec<_>>(), &kept).await?)
    }

    /// Takes the definitions over where that is to be done; whether they are made here now.
    async fn take_over(&self, sql: &Arc<SqlEngine>, defining: RegionId) -> Result<bool> {
        let running = self.running.lock().clone();
        let Some(running) = running.filter(|running| running.is_heir_of(defining)) else {
            self.unnamed.store(false, Ordering::Relaxed);
            return Ok(false);
        };
        // Looked at again.
        self.unnamed.store(true, Ordering::Relaxed);
        match running.inherits_from(defining).await {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(error) => {
                tracing::warn!(%error, "the definitions are not taken over yet");
                return Ok(false);
            }
        }
        sql.take_over_definitions(defining).await?;
        tracing::info!("definitions are made in this region now: region {defining} made them");
        Ok(true)
    }

    async fn look_after(
        &self,
        sql: Arc<SqlEngine>,
        mut introductions: mpsc::Receiver<Introduction>,
    ) {
        loop {
            let turn = tokio::select! {
                heard = introductions.recv() => match heard {
                    Some(said) => {
                        let more = std::iter::from_fn(|| introductions.try_recv().ok());
                        let said: Vec<_> = std::iter::once(said).chain(more).collect();
                        match self.take_in(&said, false).await {
                            Ok(()) => self.follow(&sql).await,
                            failed => failed,
                        }
                    }
                    None => return,
                },
                () = self.env.clock.sleep(LOOK) => self.follow(&sql).await,
            };
            if let Err(error) = turn {
                tracing::warn!(%error, "the registry of regions was not followed; trying again");
            }
        }
    }

    /// Takes in what regions have said of themselves and of others; `opening`: this region has
    /// nothing yet.
    async fn take_in(&self, said: &[Introduction], opening: bool) -> Result<()> {
        for tries in 1.. {
            let loaded = Registry::load(&self.bucket).await.map_err(wrong)?;
            let Some((number, before)) = loaded else { return Ok(()) };
            let mut registry = before.clone();
            for one in said {
                if let Err(error) = registry.hear(one, opening) {
                    tracing::warn!(%error, by = %one.by, "a region was not taken in");
                }
            }
            if registry == before {
                return Ok(());
            }
            match registry.save(&self.bucket, number).await {
                Ok(()) => return Ok(()),
                // A command has changed it.
                Err(error) if tries >= TRIES => return Err(wrong(error)),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Runs the streams by the newest registry, if they run by an older one; whether they did.
    async fn run_by_newest(&self) -> Result<bool> {
        let known = *self.number.lock();
        if !Registry::is_newer(&self.bucket, known).await.map_err(wrong)? {
            return Ok(false);
        }
        let Some((number, registry)) = Registry::load(&self.bucket).await.map_err(wrong)? else {
            return Ok(false);
        };
        self.run(&registry).await?;
        *self.number.lock() = number;
        Ok(true)
    }

    /// Does what a changed registry says.
    async fn follow(&self, sql: &Arc<SqlEngine>) -> Result<()> {
        sql.settle_regions().await?;
        if self.run_by_newest().await? {
            // Tried again, where it fails.
            self.unnamed.store(true, Ordering::Relaxed);
        }
        if self.unnamed.load(Ordering::Relaxed) {
            self.name(sql).await?;
        }
        Ok(())
    }
}
