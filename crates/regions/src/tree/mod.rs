//! The `tree` plane between real regions: serializers over logs, after Saturn (EuroSys 2017).
//! `docs/architecture/tree.md`.
//!
//! ```text
//! plan (registry, or told by another region) ─► leader: prepare, begin ─► epoch in each region ─► order of labels at each inbox
//! ```
//! # Invariants
//! - Pasts go with every transaction as ever: each region may go by them at any moment, and nobody
//!   has to be asked.
//! - An epoch is memory of the processes that began it. Who is started again never takes part in
//!   it; the leader begins another one.
//!
//! # On failure
//! The status says why no epoch runs; meanwhile all regions go by pasts, as on `matrix`.
//!
//! # Limits
//! Every region of the deployment has to be reached for an epoch to begin. Labels come in addition
//! to pasts.

mod emit;
mod epoch;
mod keep;
mod link;
mod order;
mod plan;
mod say;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::env::Task;
use telesto_common::{RegionId, Timestamp};

pub(crate) use epoch::Epoch;
pub(crate) use keep::{hear, keep};
pub(crate) use order::{Follows, Order, Stands};
pub use plan::Plan;

const NO_PLAN: &str =
    "no tree of serializers is known here; make one with `telesto geo plan --apply` in any region";

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// How the tree stands in a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeStatus {
    /// The number of the newest plan known here; 0: none.
    pub plan: u64,
    /// The epoch that runs here; 0: none.
    pub epoch: u64,
    /// What is applied now goes by labels. Else, and on other planes, it goes by pasts, or in no
    /// order.
    pub on: bool,
    /// In a word: `followed`, `late` (by pasts until labels are up to date), `begins` (by pasts,
    /// too), `carried` (for the others; this region is on another plane), `none` (no epoch runs).
    pub state: &'static str,
    /// Transactions of other regions applied since this runner began: by their labels, and by their
    /// pasts.
    pub applied: (u64, u64),
    /// Labels that this region has sent of its own since this runner began.
    pub labels: u64,
    /// Why it does not run.
    pub trouble: Option<String>,
}

/// What a region knows of trees.
#[derive(Debug)]
pub(crate) struct Trees {
    /// Tells this runner from the next one.
    pub life: u64,
    pub state: Mutex<State>,
    by_label: AtomicU64,
    by_past: AtomicU64,
    pub labels: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub plan: Option<Plan>,
    /// The greatest epoch heard of.
    pub seen: u64,
    pub epoch: Option<Arc<Epoch>>,
    tasks: Vec<Arc<dyn Task>>,
    pub trouble: Option<String>,
}

impl State {
    fn end(&mut self) {
        self.epoch = None;
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

impl Trees {
    pub fn new(life: u64, plan: Option<Plan>) -> Self {
        let state = Mutex::new(State { plan, ..State::default() });
        Self {
            life,
            state,
            by_label: AtomicU64::new(0),
            by_past: AtomicU64::new(0),
            labels: AtomicU64::new(0),
        }
    }

    fn epoch(&self) -> Option<Arc<Epoch>> {
        self.state.lock().epoch.clone()
    }

    /// Somebody who goes on here has seen everything of `region` up to `seen`; what they do here is
    /// committed after `from`. To be said before they go on.
    pub fn hold(&self, from: Timestamp, region: RegionId, seen: Timestamp) {
        if let Some(epoch) = self.epoch() {
            epoch.hold(from, region, seen);
        }
    }

    /// See [`Epoch::held_from`].
    pub fn held_from(&self, at: Timestamp) -> Option<Timestamp> {
        self.epoch().and_then(|epoch| epoch.held_from(at))
    }

    /// A session moves.
    pub fn hurry(&self) {
        if let Some(epoch) = self.epoch() {
            epoch.hurry.notify_one();
        }
    }

    /// A transaction of another region was applied.
    pub fn applied(&self, by_label: bool) {
        let (count, by) =
            if by_label { (&self.by_label, "label") } else { (&self.by_past, "past") };
        count.fetch_add(1, Ordering::Relaxed);
        metrics::counter!("telesto_regions_applied_total", "by" => by).increment(1);
    }

    pub fn status(&self, follows: Follows, wanted: bool) -> TreeStatus {
        let state = self.state.lock();
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let broken = state.epoch.as_ref().and_then(|epoch| epoch.broken());
        TreeStatus {
            plan: state.plan.as_ref().map_or(0, |plan| plan.number),
            epoch: state.epoch.as_ref().map_or(0, |epoch| epoch.number),
            on: follows == Follows::On,
            state: match (follows, &state.epoch) {
                (_, None) => "none",
                (_, Some(_)) if !wanted => "carried",
                (Follows::On, _) => "followed",
                (Follows::Fallen, _) => "late",
                (Follows::NotYet, _) => "begins",
            },
            applied: (count(&self.by_label), count(&self.by_past)),
            labels: count(&self.labels),
            trouble: broken.or_else(|| state.trouble.clone()).or_else(|| {
                let unknown = wanted && state.plan.is_none();
                unknown.then(|| NO_PLAN.to_owned())
            }),
        }
    }

    /// Ends what runs.
    pub fn stop(&self) {
        self.state.lock().end();
    }
}
