//! The replication of a region as the sessions of a node use it that does not carry its streams:
//! through the node that does.
//!
//! ```text
//! session ─► Through ─ question ─► the node that carries (over the connections of the cluster) ─► another region
//!               │ waits until this node has applied what came with the answer
//! ```
//! # Invariants
//! - A transaction is translated here, at its own snapshot, and sent on as it is; it keeps its id,
//!   so whoever carries it now, and then, it is committed once.
//! - A session goes on only when this node has applied what it was told. A commit is told as one
//!   all the same: what is not applied in time has not arrived, and the session's next statement
//!   waits for it.
//!
//! # On failure
//! When no node that carries the streams answers: [`telesto_txn::Error::Elsewhere`] of what was
//! certainly not done; a commit that may have been is asked for again until its deadline.
//!
//! # Limits
//! How the regions stand, their links and conflicts are asked for each time: nothing of it is kept
//! here.

use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::{Deadline, Env, Label, NodeId, RegionId, ShardId, Timestamp, TxnId};
use telesto_txn::regions::{ConflictView, LinkView, NotAttached, RegionControl, RegionsView};
use telesto_txn::service::Freshness;
use telesto_txn::{
    AskRows, AwayRead, AwayRequest, Database as _, Distance, Elsewhere, Engine, Error as Txn,
    Pieces, RowsGiven, Unanswered,
};

use crate::asked::{Asked, Told};
use crate::error::{Error, Result};
use crate::forward;
use crate::forwarded::Forwarded;
use crate::kept_tokens::KeptTokens;
use crate::read_away::{self, Way};
use crate::relayed::{Relay, Relayed};
use crate::rows_away::{self, Told as RowsTold};
use crate::shown::Shown;
use crate::store::Store;

/// How long nodes are waited for that are asked who carries the streams.
const FINDING: Duration = Duration::from_secs(1);
/// How long an answer may take beyond what was asked for.
const SPARE: Duration = Duration::from_secs(2);
/// How long a node that carries the streams is looked for.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest one request to commit is waited for before it is sent again.
const ASKED: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// See the module's text.
#[derive(Debug)]
pub struct Through {
    env: Env,
    engine: Arc<Engine>,
    store: Store,
    /// The key that every change of the definitions writes.
    stamp: Bytes,
    carrier: Mutex<Option<NodeId>>,
    given: KeptTokens,
    itself: Weak<Self>,
}

impl Through {
    /// Of a node of `engine`'s region; sessions reach it from now on, as long as it is there.
    /// Changes of the definitions write the key `stamp`.
    #[must_use]
    pub fn start(env: &Env, engine: &Arc<Engine>, stamp: Bytes) -> Arc<Self> {
        let store = Store {
            env: env.clone(),
            service: engine.service(),
            shard: ShardId(0),
            me: engine.region(),
            timeout: Duration::from_secs(30),
        };
        let through = Arc::new_cyclic(|itself| Self {
            env: env.clone(),
            engine: Arc::clone(engine),
            store,
            stamp,
            carrier: Mutex::default(),
            given: KeptTokens::default(),
            itself: Weak::clone(itself),
        });
        let control: Weak<Self> = Arc::downgrade(&through);
        engine.replicates(control as Weak<dyn RegionControl>);
        through
    }

    /// The node that carries the streams, as it is known or found now.
    async fn carrier(&self) -> Option<NodeId> {
        let known = *self.carrier.lock();
        if known.is_some() {
            return known;
        }
        let peers = self.engine.peers()?;
        let answers = peers.ask(Relay::Carries.encode(), FINDING).await;
        let carries = |(node, answer): (NodeId, Bytes)| {
            (Relayed::decode(answer) == Ok(Relayed::Yes)).then_some(node)
        };
        let found = answers.into_iter().find_map(carries);
        *self.carrier.lock() = found;
        found
    }

    /// One question to the node that carries the streams.
    async fn ask_once(
        &self,
        relay: &Relay,
        within: Duration,
    ) -> std::result::Result<Relayed, Unanswered> {
        let not_done = |reason: &str| Unanswered { perhaps_done: false, reason: reason.to_owned() };
        let (Some(node), Some(peers)) = (self.carrier().await, self.engine.peers()) else {
            return Err(not_done(
                "no node of this region that carries its streams answers: start one with --region",
            ));
        };
        let asked = peers.ask_one(node, relay.encode(), within).await;
        if asked.is_err() {
            // Perhaps another one does by now.
            *self.carrier.lock() = None;
        }
        Relayed::decode(asked?).map_err(|reason| Unanswered { perhaps_done: true, reason })
    }

    /// The same, again while nobody carries the streams.
    async fn ask(&self, relay: &Relay, within: Duration) -> std::result::Result<Relayed, String> {
        let patience = self.env.deadline(PATIENCE);
        loop {
            match self.ask_once(relay, within + SPARE).await {
                Ok(Relayed::Refused(reason)) => return Err(reason),
                Ok(answer) => return Ok(answer),
                Err(Unanswered { reason, .. }) => {
                    if patience.passed(self.env.clock.monotonic() + PAUSE) {
                        return Err(reason);
                    }
                }
            }
            self.env.clock.sleep(PAUSE).await;
        }
    }

    /// Waits until this node has applied everything up to `at` of the region's log.
    async fn apply_up_to(&self, at: Timestamp) -> telesto_txn::Result<Label> {
        let snapshot = self.store.begin(Freshness::AtLeast(at), None).await.map_err(of_store)?;
        self.store.release(&snapshot).await;
        Ok(Label::update(self.store.me, snapshot.snapshot))
    }

    /// Whether this node applies everything up to `at` of the region's log soon. What is committed
    /// stays so where it does not: nobody may be told another thing of it than that it is not here
    /// yet.
    async fn has_applied(&self, at: Timestamp) -> bool {
        let by = self.env.deadline(forward::ARRIVAL);
        let applied =
            self.env.within(by, "applying a commit of another region", self.apply_up_to(at));
        let error = match applied.await {
            Ok(Ok(_)) => return true,
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        tracing::debug!(%error, "a commit in another region is not applied by this node yet");
        false
    }

    async fn here(&self, relay: &Relay, limit: Duration) -> std::result::Result<Label, String> {
        match self.ask(relay, limit).await? {
            Relayed::Here(at) => self.apply_up_to(at).await.map_err(|error| error.to_string()),
            other => Err(strange(&other)),
        }
    }

    async fn text(&self, relay: &Relay) -> std::result::Result<String, String> {
        match self.ask(relay, FINDING).await? {
            Relayed::Text(text) => Ok(text),
            other => Err(strange(&other)),
        }
    }

    /// What the node that carries the streams shows of them.
    async fn shown(&self, what: Shown) -> telesto_txn::Result<Relayed> {
        self.ask(&Relay::Shown(what), FINDING).await.map_err(|reason| not_told(&reason))
    }

    /// What a token of this session stands for.
    fn seen(&self, session: Label) -> Timestamp {
        match session.timestamp {
            // Its client may have seen by another connection what this node has.
            Timestamp::ZERO => self.engine.applied().1,
            seen => seen,
        }
    }

    async fn send_until_known(
        &self,
        home: RegionId,
        mut forwarded: Forwarded,
        by: Deadline,
    ) -> telesto_txn::Result<Elsewhere> {
        let txn = forwarded.txn;
        let reach_by = by.earlier(self.env.deadline(PATIENCE));
        loop {
            let left = by.remaining(self.env.clock.monotonic());
            forwarded.timeout_micros = u64::try_from(left.as_micros()).unwrap_or(u64::MAX);
            let relay = Relay::Commit { home, forwarded: forwarded.encode() };
            let lost = match self.ask_once(&relay, (left + SPARE).min(ASKED)).await {
                Ok(Relayed::Committed { done, here }) => {
                    let arrived = done.arrived && self.has_applied(here).await;
                    return Ok(Elsewhere { arrived, ..done });
                }
                Ok(Relayed::Conflict { other, at, key }) => {
                    return Err(Txn::Conflict { txn, other, at, key });
                }
                Ok(Relayed::Unexpected { key, there }) => {
                    return Err(Txn::Unexpected { key, there });
                }
                Ok(Relayed::Refused(reason)) if !forwarded.again => {
                    return Err(Txn::Elsewhere(reason));
                }
                Ok(Relayed::Refused(reason)) => Unanswered { perhaps_done: false, reason },
                Ok(Relayed::Unknown(reason)) => Unanswered { perhaps_done: true, reason },
                Ok(other) => Unanswered { perhaps_done: true, reason: strange(&other) },
                Err(lost) => lost,
            };
            forwarded.again |= lost.perhaps_done;
            let until = if forwarded.again { by } else { reach_by };
            if until.passed(self.env.clock.monotonic() + PAUSE) {
                return Err(given_up(txn, forwarded.again, lost.reason));
            }
            self.env.clock.sleep(PAUSE).await;
        }
    }
}

fn given_up(txn: TxnId, perhaps_done: bool, reason: String) -> Txn {
    match perhaps_done {
        true => Txn::OutcomeUnknown { txn, reason },
        false => Txn::Elsewhere(format!(
            "the region where these tables are written was not reached ({reason}); nothing was written: run it again"
        )),
    }
}

fn not_told(reason: &str) -> Txn {
    Txn::Elsewhere(format!(
        "how the regions stand is known to the node that carries this region's streams, which did not tell it ({reason}); run the statement again when that node runs"
    ))
}

fn strange(answer: &Relayed) -> String {
    format!("the node that carries the streams answers {answer:?}; upgrade the older node")
}

fn of_store(error: Error) -> Txn {
    match error {
        Error::Engine(error) => error,
        error => Txn::Elsewhere(error.to_string()),
    }
}

#[async_trait]
impl Way for Through {
    fn env(&self) -> &Env {
        &self.env
    }

    fn name(&self, region: RegionId) -> String {
        region.to_string()
    }

    async fn say(&self, region: RegionId, asked: &Asked) -> Result<Told> {
        let relay = Relay::Read { region, asked: asked.encode() };
        let refused = |reason| Error::Refused { region, reason };
        match self.ask(&relay, read_away::ASKED).await.map_err(refused)? {
            Relayed::Said(told) => {
                Told::decode(told).map_err(Error::malformed("another region's answer to a read"))
            }
            other => Err(refused(strange(&other))),
        }
    }
}

#[async_trait]
impl RegionControl for Through {
    async fn view(&self) -> telesto_txn::Result<RegionsView> {
        match self.shown(Shown::Regions).await? {
            Relayed::Regions(view) => Ok(view),
            other => Err(not_told(&strange(&other))),
        }
    }

    async fn links(&self) -> telesto_txn::Result<Vec<LinkView>> {
        match self.shown(Shown::Links).await? {
            Relayed::Links(links) => Ok(links),
            other => Err(not_told(&strange(&other))),
        }
    }

    async fn conflicts(&self) -> telesto_txn::Result<Vec<ConflictView>> {
        match self.shown(Shown::Conflicts).await? {
            Relayed::Conflicts(conflicts) => Ok(conflicts),
            other => Err(not_told(&strange(&other))),
        }
    }

    async fn token(&self, session: Label) -> std::result::Result<String, String> {
        let seen = self.seen(session);
        if let Some(token) = self.given.token_of(seen) {
            return Ok(token);
        }
        let token = self.text(&Relay::Token { seen }).await?;
        self.given.keep(seen, &token);
        Ok(token)
    }

    async fn migrate(&self, session: Label, to: &str) -> std::result::Result<String, String> {
        self.text(&Relay::Migrate { seen: self.seen(session), to: to.to_owned() }).await
    }

    async fn attach(
        &self,
        token: &str,
        limit: Duration,
    ) -> std::result::Result<Label, NotAttached> {
        if let Some(at) = self.given.seen_by(token)
            && at <= self.engine.applied().1
        {
            return Ok(Label::update(self.store.me, at));
        }
        let not_yet = NotAttached::NotYet;
        let relay = Relay::Attach { token: token.to_owned(), limit };
        match self.ask(&relay, limit).await.map_err(not_yet)? {
            Relayed::Here(at) => {
                let here = self.apply_up_to(at).await;
                here.map_err(|error| not_yet(error.to_string()))
            }
            Relayed::NoToken { lost: true, reason } => Err(NotAttached::Lost(reason)),
            Relayed::NoToken { lost: false, reason } => Err(NotAttached::NoToken(reason)),
            other => Err(not_yet(strange(&other))),
        }
    }

    async fn commit_at(
        &self,
        home: RegionId,
        request: AwayRequest,
    ) -> telesto_txn::Result<Elsewhere> {
        let by = self.env.deadline(request.timeout);
        let stamp = Some(self.stamp.clone());
        let forwarded = forward::translate(&self.store, stamp, home, request).await;
        self.send_until_known(home, forwarded.map_err(of_store)?, by).await
    }

    async fn rows_at(&self, home: RegionId, asked: AskRows) -> telesto_txn::Result<RowsGiven> {
        let name = home.to_string();
        let unanswered = |reason: &str| rows_away::unanswered(&name, reason);
        let question = rows_away::question(&self.store, Some(self.stamp.clone()), &asked).await;
        let question = question.map_err(of_store)?.encode();
        let relay = Relay::Rows { region: home, question };
        let answer = self.ask(&relay, asked.timeout.min(ASKED)).await;
        let told = match answer.map_err(|reason| unanswered(&reason))? {
            Relayed::Said(told) => RowsTold::decode(told).map_err(|reason| unanswered(&reason))?,
            other => return Err(unanswered(&strange(&other))),
        };
        let (other, at, key) = match told {
            RowsTold::Rows(given) => return Ok(given),
            RowsTold::Changed { other, at, key } => (other, at, key),
            RowsTold::Defined(at) => (TxnId(0), at, self.stamp.clone()),
        };
        // What was in the way is to be here when it is tried again.
        let limit = forward::ARRIVAL;
        if let Err(reason) = self.here(&Relay::Arrive { home, at, limit }, limit).await {
            tracing::debug!(%reason, "what another region has changed is not here yet");
        }
        Err(Txn::Conflict { txn: asked.txn, other, at, key })
    }

    async fn arrive(
        &self,
        home: RegionId,
        at: Timestamp,
        limit: Duration,
    ) -> std::result::Result<Label, String> {
        self.here(&Relay::Arrive { home, at, limit }, limit).await
    }

    async fn distances(&self) -> Vec<Distance> {
        match self.ask(&Relay::Distances, FINDING).await {
            Ok(Relayed::Far(far)) => far,
            _ => Vec::new(),
        }
    }

    async fn read_at(
        &self,
        region: RegionId,
        read: AwayRead,
    ) -> telesto_txn::Result<Box<dyn Pieces>> {
        let stopping = || Txn::Elsewhere("this node is stopping".to_owned());
        let way = self.itself.upgrade().ok_or_else(stopping)?;
        read_away::read_by(way, region, read).await
    }
}
