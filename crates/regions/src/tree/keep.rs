//! Begins and ends epochs, and answers what other regions say of trees.
//!
//! ```text
//! region with a plan in its registry ─ know ─► the others
//! leader: standing? ─► all there, and ready ─► prepare ─► all have ─► begin          again when one has lost it, or it is broken
//! ```
//! # Invariants
//! - An epoch's number is greater than every one that was heard of; each process takes part in the
//!   newest one that it was asked to.
//! - No label is sent before every region has made ready to take it.
//! - A region makes ready only when all its streams run: what others have of it is in its log then.
//!
//! # On failure
//! The next look tries again, with pauses that double up to [`LONGEST`] looks while epochs do not
//! last.
//!
//! # Limits
//! One leader: the region of the tree's first serializer. While it is away no epoch begins.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use telesto_common::RegionId;
use telesto_geo::{Bug, PlaneKind, RegionSet};

use crate::error::{Error, Result};
use crate::shared::Shared;
use crate::tree::epoch::Epoch;
use crate::tree::order::Order;
use crate::tree::plan::Plan;
use crate::tree::say::{Say, Standing, Took};
use crate::tree::{State, emit, link, micros};
use crate::wire::{Reply, Request};

/// How often it is looked whether everything stands as it should, in beats.
const LOOK_BEATS: u32 = 20;
/// Looks between two attempts, at most.
const LONGEST: u32 = 32;
/// An epoch that lasted for so many looks was no failure.
const LASTING: u32 = 10;

impl Shared {
    /// What `to` answers to something about trees.
    pub(crate) async fn say(&self, to: RegionId, say: &Say) -> Result<Bytes> {
        match self.ask(to, Request::Tree(say.encode())).await? {
            Reply::Answer(answer) => Ok(answer),
            _ => Err(Error::malformed("another region's answer")("it is none".to_owned())),
        }
    }

    /// The same, where the answer is how it stands.
    async fn stands(&self, to: RegionId, say: &Say) -> Result<Standing> {
        let answer = self.say(to, say).await?;
        Standing::decode(answer).map_err(Error::malformed("how a tree stands"))
    }

    fn others(&self) -> RegionSet {
        self.peers.keys().copied().collect()
    }

    fn wants_tree(&self) -> bool {
        self.config.plane == PlaneKind::Tree
    }

    /// How the tree stands here.
    fn standing(&self) -> Standing {
        let connected = |peer: &crate::shared::Peer| peer.connected.load(Ordering::Relaxed);
        let ready = self.peers.values().all(connected) && self.taking_back.lock().is_empty();
        let state = self.trees.state.lock();
        let epoch = state.epoch.as_ref();
        Standing {
            life: self.trees.life,
            plan: state.plan.as_ref().map_or(0, |plan| plan.number),
            wants: self.wants_tree(),
            ready,
            epoch: epoch.map_or(0, |epoch| epoch.number),
            begun: epoch.is_some_and(|epoch| epoch.has_begun()),
            broken: epoch.is_some_and(|epoch| epoch.broken().is_some()),
            seen: state.seen,
        }
    }
}

/// Answers what region `from` says.
///
/// # Errors
/// What does not decode, or a plan that does not fit.
pub(crate) fn hear(shared: &Arc<Shared>, from: RegionId, said: Bytes) -> Result<Bytes> {
    match Say::decode(said).map_err(Error::malformed("what a region says of trees"))? {
        Say::Standing => {}
        Say::Know(plan) => know(&mut shared.trees.state.lock(), &Plan::parse(&plan)?),
        Say::Prepare { epoch, plan } => prepare(shared, epoch, &Plan::parse(&plan)?)?,
        Say::Begin { epoch } => begin(shared, epoch),
        Say::End { epoch } => end(shared, epoch),
        Say::Labels { epoch, life, edge, first, labels } => {
            let running = shared.trees.epoch().filter(|running| running.number == epoch);
            let took = running.map_or(Took::Over, |running| {
                running.take(shared, (from, life), edge, first, labels)
            });
            return Ok(took.encode());
        }
    }
    Ok(shared.standing().encode())
}

fn know(state: &mut State, plan: &Plan) {
    if state.plan.as_ref().is_none_or(|known| known.number < plan.number) {
        state.plan = Some(plan.clone());
    }
}

/// Makes ready for an epoch, in the place of the one that runs, if it is newer.
fn prepare(shared: &Arc<Shared>, number: u64, plan: &Plan) -> Result<()> {
    let me = shared.config.me;
    plan.check(shared.others().with(me))?;
    let ready = shared.standing().ready;
    let mut state = shared.trees.state.lock();
    know(&mut state, plan);
    if number <= state.seen || !ready {
        return Ok(());
    }
    state.seen = number;
    state.end();
    let planted = shared.config.planted;
    let epoch = Arc::new(Epoch::new(number, plan, me, shared.others(), planted)?);
    let order = shared.wants_tree().then(|| {
        let (lost, patience) = (shared.config.lost.clone(), micros(shared.config.patience));
        let early = planted == Some(Bug::EarlyTree);
        Order::new(number, shared.others(), lost, patience, early)
    });
    shared.inbox.lock().follow(order);
    for edge in epoch.to_do() {
        let link = link::run(Arc::clone(shared), Arc::clone(&epoch), edge);
        state.tasks.push(shared.env.spawn("an edge of the tree of serializers", link));
    }
    state.epoch = Some(epoch);
    state.trouble = None;
    Ok(())
}

fn begin(shared: &Arc<Shared>, number: u64) {
    let mut state = shared.trees.state.lock();
    let Some(epoch) = state.epoch.clone().filter(|epoch| epoch.number == number) else { return };
    if epoch.begin() {
        let labels = emit::run(Arc::clone(shared), epoch);
        state.tasks.push(shared.env.spawn("sending labels", labels));
    }
}

fn end(shared: &Shared, number: u64) {
    let mut state = shared.trees.state.lock();
    if state.epoch.as_ref().is_some_and(|epoch| epoch.number == number) {
        state.end();
        shared.inbox.lock().follow(None);
    }
}

/// What the leader remembers.
#[derive(Default)]
struct Leading {
    /// The epoch that it began last, who took part, and when.
    epoch: u64,
    lives: BTreeMap<RegionId, u64>,
    since: Duration,
    /// Attempts that failed, or did not last, one after the other.
    failed: u32,
    /// No attempt before this.
    pause: Duration,
}

/// Looks after the tree, again and again.
pub(crate) async fn keep(shared: Arc<Shared>) {
    let look = shared.config.beat * LOOK_BEATS;
    let mut leading = Leading::default();
    loop {
        shared.env.clock.sleep(look).await;
        if let Err(error) = turn(&shared, &mut leading).await {
            shared.trees.state.lock().trouble = Some(error.to_string());
        }
    }
}

async fn turn(shared: &Arc<Shared>, leading: &mut Leading) -> Result<()> {
    // What is in the registry here is told to the others, who may have been started again since.
    let Some(plan) = shared.trees.state.lock().plan.clone() else {
        return Ok(());
    };
    let leads = plan.leader() == shared.config.me;
    if !leads && shared.config.tree.is_none() {
        return Ok(());
    }
    let stands = everybody(shared, &Say::Standing).await;
    let text = plan.text()?;
    for (region, standing) in &stands {
        if let Ok(standing) = standing
            && standing.plan < plan.number
        {
            // Who does not hear it now is told at the next look.
            let _ = shared.say(*region, &Say::Know(text.clone())).await;
        }
    }
    if leads { lead(shared, leading, &plan, stands).await } else { Ok(()) }
}

type Answers = BTreeMap<RegionId, Result<Standing>>;

/// What every region answers, this one included.
async fn everybody(shared: &Arc<Shared>, say: &Say) -> Answers {
    let ask = async |to: RegionId| (to, shared.stands(to, say).await);
    let mut answers: Answers =
        join_all(shared.peers.keys().map(|to| ask(*to))).await.into_iter().collect();
    let me = shared.config.me;
    let own = hear(shared, me, say.encode())
        .and_then(|answer| Standing::decode(answer).map_err(Error::malformed("how a tree stands")));
    answers.insert(me, own);
    answers
}

/// Begins an epoch, or ends it, if there is need.
async fn lead(
    shared: &Arc<Shared>,
    leading: &mut Leading,
    plan: &Plan,
    stands: Answers,
) -> Result<()> {
    let look = shared.config.beat * LOOK_BEATS;
    let known = || stands.values().flatten();
    if !known().any(|standing| standing.wants) {
        for number in known().map(|standing| standing.epoch).filter(|number| *number > 0) {
            everybody(shared, &Say::End { epoch: number }).await;
        }
        return Ok(());
    }
    let epoch = shared.trees.epoch();
    let planned = epoch.as_ref().is_some_and(|epoch| epoch.plan == plan.number);
    // Who cannot be asked may be cut off and be back in a moment: its edges go on then.
    let goes_on = |(region, standing): (&RegionId, &Standing)| {
        standing.epoch == leading.epoch
            && standing.begun
            && !standing.broken
            && leading.lives.get(region) == Some(&standing.life)
    };
    let answered = || stands.iter().filter_map(|(of, told)| told.as_ref().ok().map(|t| (of, t)));
    if planned && answered().all(goes_on) {
        return Ok(());
    }
    // In an epoch that is broken nobody waits for labels.
    if epoch.is_some_and(|epoch| epoch.broken().is_some()) {
        shared.inbox.lock().follow(None);
    }
    let now = shared.env.clock.monotonic();
    if now < leading.pause {
        return Ok(());
    }
    plan.check(shared.others().with(shared.config.me))?;
    let mut seen = leading.epoch;
    for (region, standing) in &stands {
        let standing = standing.as_ref().map_err(Clone::clone)?;
        if !standing.ready {
            return Err(Error::Config(format!(
                "the tree waits for the streams of region {region} to all others"
            )));
        }
        seen = seen.max(standing.seen);
    }
    let lasted = leading.epoch > 0 && now > leading.since + look * LASTING;
    leading.failed = if lasted { 0 } else { (leading.failed + 1).min(LONGEST.ilog2()) };
    leading.pause = now + look * (1 << leading.failed) / 2;
    leading.since = now;
    leading.epoch = shared.env.clock.wall_micros().max(seen + 1);
    leading.lives = start(shared, leading.epoch, plan).await?;
    metrics::counter!("telesto_regions_tree_epochs_total").increment(1);
    Ok(())
}

/// Has everybody take part in an epoch; who they are.
async fn start(shared: &Arc<Shared>, epoch: u64, plan: &Plan) -> Result<BTreeMap<RegionId, u64>> {
    let mut lives = BTreeMap::new();
    for (region, prepared) in everybody(shared, &Say::Prepare { epoch, plan: plan.text()? }).await {
        let prepared = prepared?;
        if prepared.epoch != epoch {
            return Err(Error::Config(format!(
                "region {region} did not make ready for an epoch of the tree; it is tried again"
            )));
        }
        lives.insert(region, prepared.life);
    }
    for (region, begun) in everybody(shared, &Say::Begin { epoch }).await {
        let begun = begun?;
        if begun.epoch != epoch || lives.get(&region) != Some(&begun.life) {
            return Err(Error::Config(format!(
                "region {region} was started again before an epoch of the tree began; it is tried again"
            )));
        }
    }
    Ok(lives)
}
