//! A node's part in its region where several nodes of a cluster could carry the streams to and from
//! other regions: one does, the others stand by.
//!
//! ```text
//! start ─► stands by ◄── another one is named by the row ── carries
//!              │                                               ▲
//!              └── nobody has carried for SILENT, and the row names me now ──┘
//! ```
//! # Invariants
//! - A node that stands by does not listen for other regions: they find the one that carries by
//!   trying its region's addresses.
//! - Sessions of a node that stands by reach other regions through the node that carries.
//! - A region that has not got everything yet opens SQL on no node.
//!
//! # On failure
//! When the node that carries is gone, another one goes on after about [`SILENT`] and [`LOOK`]:
//! what others send goes on where the region's rows say, what is sent goes on where the others say.
//! A node that cannot listen gives its reason in the log and lets others try.
//!
//! # Limits
//! A node that lives and that other regions do not reach goes on carrying; `telesto_regions` shows
//! that.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_bucket::Bucket;
use telesto_common::env::Task;
use telesto_common::{Env, NodeId};
use telesto_regions::{Claim, Claims, Regions, Through};
use telesto_sql::SqlEngine;
use telesto_sql::catalog::regions::FOUNDER;
use telesto_txn::regions::RegionControl;
use telesto_txn::{Database as _, Engine};

use crate::error::{Error, Result};
use crate::regions::{self, Carrier, Waiting};

/// How often a node looks whether it is to carry.
const LOOK: Duration = Duration::from_millis(500);
/// For how long nobody has carried before another node than the one that did begins to.
const SILENT: Duration = Duration::from_secs(2);
/// How long a node that could not carry leaves it to others.
const FAILED: Duration = Duration::from_secs(5);
/// How long a node waits at its start for what its region has not got yet, and how often it says
/// so.
const PATIENCE: Duration = Duration::from_secs(3600);
const SAID: Duration = Duration::from_secs(10);

fn wrong(reason: impl ToString) -> Error {
    Error::Region(reason.to_string())
}

/// What a node does for its region.
#[derive(Debug)]
pub struct Carrying {
    shared: Arc<Shared>,
    task: Mutex<Option<Arc<dyn Task>>>,
}

#[derive(Debug)]
struct Shared {
    env: Env,
    bucket: Arc<dyn Bucket>,
    engine: Arc<Engine>,
    listen: SocketAddr,
    me: Claim,
    claims: Claims,
    /// The way of sessions to other regions while another node carries.
    through: Arc<Through>,
    /// The streams, while this one does.
    carrier: tokio::sync::Mutex<Option<Carrier>>,
}

/// Since when nobody has carried.
#[derive(Debug, Default)]
struct Silence {
    named: Option<Claim>,
    since: Option<Duration>,
}

impl Carrying {
    /// Carries the streams at `listen`, or stands by where another node of the cluster does; waits
    /// for what the region has not got yet.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub(crate) async fn start(
        env: &Env,
        (bucket, engine): (&Arc<dyn Bucket>, &Arc<Engine>),
        (listen, me): (SocketAddr, Claim),
        waiting: &Waiting,
    ) -> Result<Self> {
        let Some(through) = regions::through(env, bucket, engine).await? else {
            return Err(regions::no_region(bucket));
        };
        let shared = Arc::new(Shared {
            env: env.clone(),
            bucket: Arc::clone(bucket),
            engine: Arc::clone(engine),
            listen,
            me,
            claims: Claims::new(env, engine, me),
            through,
            carrier: tokio::sync::Mutex::default(),
        });
        shared.begin(waiting).await?;
        Ok(Self { shared, task: Mutex::default() })
    }

    /// What this node does now.
    #[must_use]
    pub fn shown(&self) -> String {
        let carrier = self.shared.carrier.try_lock();
        match carrier.as_deref() {
            Ok(Some(carrier)) => carrier.shown(),
            _ => "stands by; another node carries its streams".to_owned(),
        }
    }

    /// Keeps the streams, or stands by, from now on.
    ///
    /// # Errors
    /// [`Error::Region`], [`Error::Sql`].
    pub(crate) async fn watch(&self, sql: &Arc<SqlEngine>) -> Result<()> {
        let (shared, sql) = (Arc::clone(&self.shared), Arc::clone(sql));
        if let Some(carrier) = &*shared.carrier.lock().await {
            carrier.watch(&sql).await?;
        }
        let watching = Arc::clone(&shared).run(sql);
        *self.task.lock() = Some(shared.env.spawn("seeing that the region is carried", watching));
        Ok(())
    }
}

impl Drop for Carrying {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl Shared {
    /// Whether the region has everything that is to be there before SQL opens.
    async fn is_complete(&self) -> Result<bool> {
        Ok(self.engine.region() == FOUNDER
            || Regions::is_complete(&self.engine).await.map_err(wrong)?)
    }

    /// Carries, or finds out that another node does and that the region is complete.
    async fn begin(&self, waiting: &Waiting) -> Result<()> {
        let patience = self.env.deadline(PATIENCE);
        let (mut silence, mut said) = (Silence::default(), Duration::ZERO);
        loop {
            match self.carried_by().await? {
                Some(node) if self.is_complete().await? && self.claims.opens(node).await => {
                    tracing::info!("another node carries the region's streams: this one stands by");
                    *waiting.lock() = None;
                    return Ok(());
                }
                Some(node) => {
                    silence = Silence::default();
                    let now = self.env.clock.monotonic();
                    if said.is_zero() || now >= said + SAID {
                        let text = format!("what node {node} brings here of the other regions");
                        tracing::warn!("waiting for {text}");
                        *waiting.lock() = Some(text);
                        said = now;
                    }
                    if patience.passed(now) {
                        return Err(wrong(
                            "this region has not got everything of the others; see what telesto_regions says on the node that carries its streams",
                        ));
                    }
                }
                None if self.may_take(&mut silence).await? => {
                    let carrier = self.carry().await?;
                    carrier.hear_of_all().await?;
                    carrier.complete(waiting).await?;
                    *self.carrier.lock().await = Some(carrier);
                    return Ok(());
                }
                None => {}
            }
            self.env.clock.sleep(LOOK).await;
        }
    }

    async fn carried_by(&self) -> Result<Option<NodeId>> {
        let named = self.claims.named().await.map_err(wrong)?;
        Ok(self.claims.carrier(named.map(|claim| claim.node)).await)
    }

    /// Nobody carries: whether the row names this process now. Where it named another one that one
    /// is given time, for it may only be about to begin.
    async fn may_take(&self, silence: &mut Silence) -> Result<bool> {
        let named = self.claims.named().await.map_err(wrong)?;
        let now = self.env.clock.monotonic();
        if silence.since.is_none() || silence.named != named {
            *silence = Silence { named, since: Some(now) };
        }
        let silent = silence.since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let is_free = named.is_none_or(|claim| claim.node == self.me.node);
        if !is_free && silent < SILENT {
            return Ok(false);
        }
        let taken = self.claims.take(named).await.map_err(wrong)?;
        if taken && !is_free {
            tracing::warn!(
                "nobody has carried the region's streams for {silent:?}: this node does now"
            );
        }
        Ok(taken)
    }

    async fn carry(&self) -> Result<Carrier> {
        Carrier::start(&self.env, &self.bucket, &self.engine, self.listen, self.me.life).await
    }

    async fn run(self: Arc<Self>, sql: Arc<SqlEngine>) {
        let mut silence = Silence::default();
        loop {
            self.env.clock.sleep(LOOK + self.env.jitter(LOOK / 4)).await;
            let carries = self.carrier.lock().await.is_some();
            self.claims.show(carries);
            let looked = match carries {
                true => self.stand_by_if_told().await,
                false => self.carry_if_needed(&mut silence, &sql).await,
            };
            if let Err(error) = looked {
                tracing::warn!(%error, "whether this node is to carry the region's streams is not known; trying again");
                self.env.clock.sleep(FAILED).await;
            }
        }
    }

    /// Ends the streams when another node's have taken their place, and starts them anew when
    /// another node has taken something in before it had read that this one carries.
    async fn stand_by_if_told(&self) -> Result<()> {
        if self.claims.is_mine().await.map_err(wrong)? {
            let carrier = self.carrier.lock().await;
            return match carrier.as_ref().filter(|carrier| carrier.is_superseded()) {
                Some(carrier) => carrier.start_anew().await,
                None => Ok(()),
            };
        }
        tracing::warn!("another node carries the region's streams now: this one stands by");
        self.carrier.lock().await.take();
        self.through_others();
        Ok(())
    }

    /// Lets sessions reach other regions through the node that carries.
    fn through_others(&self) {
        let control: std::sync::Weak<Through> = Arc::downgrade(&self.through);
        self.engine.replicates(control as std::sync::Weak<dyn RegionControl>);
    }

    async fn carry_if_needed(&self, silence: &mut Silence, sql: &Arc<SqlEngine>) -> Result<()> {
        if self.carried_by().await?.is_some() {
            *silence = Silence::default();
            return Ok(());
        }
        if !self.may_take(silence).await? {
            return Ok(());
        }
        *silence = Silence::default();
        // Nothing that this region has committed is lost, so the life it counts in goes on.
        let begun = async {
            let carrier = self.carry().await?;
            carrier.is_open();
            carrier.watch(sql).await?;
            Ok(carrier)
        };
        match begun.await {
            Ok(carrier) => {
                *self.carrier.lock().await = Some(carrier);
                Ok(())
            }
            Err(error) => {
                self.through_others();
                Err(error)
            }
        }
    }
}
