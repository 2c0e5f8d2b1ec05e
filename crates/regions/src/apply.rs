//! Applies what the inbox gives out: many remote transactions in one entry, and with them how far
//! the sources have come.
//!
//! ```text
//! inbox ─ due, defined ─► versions here ─► winners by label ─► one entry: transactions with their labels, then progress
//!                                               ▲── something was changed meanwhile: again ──┘
//! ```
//! # Invariants
//! - Transactions and the progress that counts them are in the same entry: after a crash nothing is
//!   applied twice or left out.
//! - The entry's timestamps are greater than every label in it, so what is committed here later
//!   wins over what it has seen.
//! - A session is attached only when its past is in the log, so that what it writes here carries
//!   that past.
//!
//! # On failure
//! A conflict is sorted out again; what the store cannot do now is tried again until it can. What
//! is not defined yet is not begun with, and looked at again when the definitions have changed. Of
//! what cannot be computed here nothing is applied, nor what comes behind it in its stream; the
//! others go on, the status tells it, and it is tried again every [`HELD`]. Only another runner of
//! the same region stops it: what came is then to be asked for again, from where that one has come
//! ([`crate::Regions::is_superseded`]).
//!
//! # Limits
//! One task: the order in which streams are applied is one. Where something was taken from peers in
//! the same entry with what cannot be computed, it is tried until it can.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::{Deadline, RegionId, Timestamp};
use telesto_geo::Bug;
use telesto_shard::Read;
use telesto_txn::service::{CommitWrites, Freshness};
use telesto_txn::{Reads, RowClaims};

use crate::defined::Defined;
use crate::error::{Error, Result};
use crate::inbox::{Inbox, Remote};
use crate::past::Past;
use crate::rows;
use crate::shared::{Shared, Taken, Then};
use crate::sort_out::{self, INLINE_BYTES, meaning, sort_out};
use crate::store::checked;

/// Bytes of remote transactions in one entry, about; and the fewest, where much more follows from
/// them.
const ENTRY_BYTES: usize = 2 << 20;
const FEWEST_BYTES: usize = 64 << 10;
/// How long a transaction is left alone of which something cannot be computed.
const HELD: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// See the module's text.
pub(crate) struct Applier {
    pub shared: Arc<Shared>,
    /// The progress row as this runner wrote it last.
    pub stored: Option<Bytes>,
    /// The past that it brought.
    pub logged: Past,
    /// The definitions as they were looked at last; nothing: not yet.
    defined: Option<Defined>,
    /// Whose rows wait for definitions alone.
    undefined: Option<RegionId>,
    /// How much is taken from the streams for the next entry.
    takes: usize,
    /// Transactions of which something cannot be computed: until when they are left alone, and why.
    held: BTreeMap<(RegionId, Timestamp), (Deadline, String)>,
}

/// What became of work.
enum Done {
    Committed,
    /// It was given back but for one transaction, which is left alone for now.
    GivenBack,
    /// This runner has ended.
    Ended,
}

/// Something to be committed.
struct Work {
    /// Some of it was taken from peers.
    taken: bool,
    /// What was taken from peers, of which nothing more is to be applied.
    ends: Option<Taken>,
    transactions: Vec<Remote>,
    state: Bytes,
    known: Past,
    /// The commit's timestamp is greater than this.
    after: Timestamp,
}

/// What is to be done of what was taken from peers.
#[derive(Default)]
struct Part {
    transactions: Vec<Remote>,
    /// The whole of it, if nothing more is to be applied; with what is left.
    ends: Option<Taken>,
}

impl Applier {
    pub fn new(shared: Arc<Shared>, stored: Option<Bytes>, logged: Past) -> Self {
        Self {
            shared,
            stored,
            logged,
            defined: None,
            undefined: None,
            takes: ENTRY_BYTES,
            held: BTreeMap::new(),
        }
    }

    pub async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            let news = shared.news.notified();
            if !self.step().await {
                return;
            }
            let again = shared.env.within_timeout(shared.config.beat, "waiting for news", news);
            let _ = again.await;
        }
    }

    /// Applies what is due; whether to go on.
    async fn step(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        loop {
            // Between two entries: nothing of this runner is committed after its end.
            if shared.stopped.load(Ordering::Acquire) {
                return false;
            }
            let looked = self.defined.is_none() || self.undefined.is_some();
            let defined = match self.defined().await {
                Ok(defined) => self.without_held(defined),
                Err(error) => {
                    tracing::warn!(%error, "definitions cannot be read now; trying again");
                    shared.trouble.lock().insert(None, error.to_string());
                    return true;
                }
            };
            let now = shared.env.clock.wall_micros();
            let makes = |all: &[Remote]| all.iter().any(|one| defined.is_made_by(&one.writes));
            let (work, passed, undefined, lacking) = {
                let mut inbox = shared.inbox.lock();
                // What was taken from peers comes first, and what waited for it in the same entry:
                // nobody sees one without the other.
                let (part, waits) = self.taken(&mut inbox, &defined);
                let Part { mut transactions, ends } = part.unwrap_or_default();
                let taken = ends.is_some() || !transactions.is_empty();
                // What comes behind definitions is read by them, and not in the same entry.
                if !makes(&transactions) {
                    transactions.append(&mut inbox.due(self.takes, &defined, now));
                }
                if shared.is_definition(&transactions) {
                    inbox.defines();
                }
                let undefined = waits.or(inbox.undefined());
                let passed = inbox.passed();
                let lacking = inbox.lacking();
                let known = inbox.known().clone();
                let wanted = shared.wanted.lock().take();
                // Sessions that wait carry what came without a transaction; else it can wait for
                // the next one.
                let must = taken
                    || !transactions.is_empty()
                    || (wanted.is_some() && known != self.logged)
                    || inbox.has_begun();
                let newest = transactions.iter().map(|remote| remote.label.timestamp).max();
                let after = newest.max(wanted).unwrap_or_default();
                let state = must.then(|| inbox.encode());
                let work =
                    state.map(|state| Work { taken, ends, transactions, state, known, after });
                (work, passed, undefined, lacking)
            };
            // Without the inbox: whoever shows the status takes the two locks the other way round.
            self.wait_for_definitions(undefined, looked);
            shared.times.lack(lacking);
            shared.drained.notify_waiters();
            if let Some(work) = work {
                let done = self.insist(&work).await;
                if matches!(done, Done::Ended) || !self.learn(&work).await {
                    return false;
                }
                if matches!(done, Done::GivenBack) {
                    continue;
                }
                if makes(&work.transactions) {
                    self.defined = None;
                }
                self.logged = work.known;
                self.stored = Some(work.state);
                if let Some(Taken { transactions, done, .. }) = work.ends {
                    // Who waits no more does not need to hear of it.
                    let _ = done.send(transactions);
                }
                shared.publish(passed, &self.logged);
                continue;
            }
            shared.publish(passed, &self.logged);
            if self.undefined.is_some() && !looked {
                continue;
            }
            return true;
        }
    }

    /// The definitions that decide what can be applied: those looked at last, and the newest where
    /// something waits for newer ones.
    async fn defined(&mut self) -> Result<Defined> {
        if let (Some(defined), None) = (&self.defined, self.undefined) {
            return Ok(defined.clone());
        }
        let (store, tables) = (&self.shared.store, &self.shared.tables);
        let mut defined = Defined::default();
        if let Some(stamp) = tables.as_ref().map(|tables| tables.stamp()) {
            let snapshot = store.begin(Freshness::Applied, None).await?;
            let mut reads = Reads::default();
            let meaning = meaning(store, tables, snapshot.snapshot, &mut reads).await;
            store.release(&snapshot).await;
            let unreadable = BTreeSet::new();
            defined = Defined { stamp: Some(stamp), meaning: meaning?, unreadable };
        }
        self.defined = Some(defined.clone());
        Ok(defined)
    }

    /// The same, by which nothing can be read that is left alone for now.
    fn without_held(&mut self, defined: Defined) -> Defined {
        let now = self.shared.env.clock.monotonic();
        self.held.retain(|_, (until, _)| !until.passed(now));
        Defined { unreadable: self.held.keys().copied().collect(), ..defined }
    }

    /// Rows of `region` wait for definitions alone, or nothing does any more; `looked`: by the
    /// newest ones.
    fn wait_for_definitions(&mut self, region: Option<RegionId>, looked: bool) {
        let before = std::mem::replace(&mut self.undefined, region);
        let mut trouble = self.shared.trouble.lock();
        match region {
            Some(region) if looked => {
                let mut held = self.held.iter().filter(|((of, _), _)| *of == region);
                let reason = held.next().map(|(_, (_, reason))| reason.clone());
                let reason = reason.unwrap_or_else(|| Error::NotDefined { region }.to_string());
                trouble.insert(None, reason);
            }
            None if before.is_some() => {
                trouble.remove(&None);
            }
            _ => {}
        }
    }

    /// What can be applied of what was taken from peers, and whose rows in it wait for definitions.
    /// What waits lets what was taken later pass: that may bring the definitions, or what they wait
    /// for.
    fn taken(&self, inbox: &mut Inbox, defined: &Defined) -> (Option<Part>, Option<RegionId>) {
        let mut work = self.shared.work.lock();
        let mut waits = None;
        for at in 0..work.len() {
            let Some(taken) = work.get_mut(at) else { break };
            let first = taken.transactions.iter().position(|remote| !defined.has(&remote.writes));
            let left = first.map(|first| taken.transactions.split_off(first)).unwrap_or_default();
            let waiting = left.first().map(|remote| remote.label.source);
            let transactions = std::mem::replace(&mut taken.transactions, left);
            waits = waits.or(waiting);
            match &taken.then {
                Then::Nothing => {}
                Then::Close(region) if waiting.is_some() => inbox.begin_to_close(*region),
                Then::Close(region) => inbox.close(*region),
                Then::Reincarnate(_) if waiting.is_some() => {}
                Then::Reincarnate(told) => {
                    if self.shared.config.planted == Some(Bug::EpochsMixed) {
                        // Goes on as if nothing had been lost.
                    } else {
                        inbox.reincarnate(told);
                    }
                }
            }
            if waiting.is_none() || matches!(taken.then, Then::Nothing) {
                let ends = work.remove(at);
                return (Some(Part { transactions, ends }), waits);
            }
            if !transactions.is_empty() {
                return (Some(Part { transactions, ends: None }), waits);
            }
        }
        (None, waits)
    }

    /// Finds out, when definitions were applied, who makes them now, until it is known; `false`
    /// when this runner has ended.
    async fn learn(&self, work: &Work) -> bool {
        let shared = &self.shared;
        let mut pause = FIRST_PAUSE;
        while shared.is_definition(&work.transactions) {
            match shared.learn_defining().await {
                Ok(()) => return true,
                Err(_) if shared.stopped.load(Ordering::Acquire) => return false,
                Err(error) => {
                    tracing::warn!(%error, "definitions that were applied cannot be read now; trying again");
                    shared.trouble.lock().insert(None, error.to_string());
                    shared.env.clock.sleep(pause + shared.env.jitter(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
        true
    }

    /// Leaves alone what cannot be computed, and gives back the rest of what was to be committed
    /// with it; whether that can be done.
    fn give_back(&mut self, work: &Work, error: &Error) -> bool {
        let (Error::Unreadable { label, .. }, false) = (error, work.taken) else { return false };
        let Some(stored) = self.stored.clone() else { return false };
        let shared = &self.shared;
        if let Err(error) = shared.inbox.lock().take_back(stored) {
            tracing::error!(%error, "the stored progress of other regions' streams is damaged");
            return false;
        }
        let mut wanted = shared.wanted.lock();
        *wanted = (*wanted).max(Some(work.after));
        let until = shared.env.deadline(HELD);
        self.held.insert((label.source, label.timestamp), (until, error.to_string()));
        true
    }

    /// Commits, until it is committed or given back.
    async fn insist(&mut self, work: &Work) -> Done {
        let shared = &Arc::clone(&self.shared);
        let mut pause = FIRST_PAUSE;
        // What this process has will do: what it does not know of makes the commit fail. A look at
        // the tail is a request on a bucket log.
        let mut freshness = Freshness::Applied;
        // Clients that write one row without a pause would be ahead of this each time.
        let mut claims: Option<RowClaims> = None;
        loop {
            let committed = self.commit(work, freshness).await;
            freshness = Freshness::Tail;
            match committed {
                Ok(()) => {
                    shared.applied(&work.transactions);
                    return Done::Committed;
                }
                Err(Error::Stale) => {
                    metrics::counter!("telesto_regions_apply_retries_total").increment(1);
                }
                Err(Error::Engine(telesto_txn::Error::Conflict { key, .. })) => {
                    metrics::counter!("telesto_regions_apply_retries_total").increment(1);
                    self.takes = (self.takes / 2).max(FEWEST_BYTES);
                    let claims = claims.get_or_insert_with(|| shared.engine.row_claims());
                    claims.claim(&key, shared.config.timeout).await;
                }
                Err(
                    error @ (Error::Config(_)
                    | Error::Superseded
                    | Error::Engine(telesto_txn::Error::ShuttingDown)),
                ) => {
                    tracing::error!(%error, "transactions of other regions are not applied any more");
                    shared.superseded.store(matches!(error, Error::Superseded), Ordering::Release);
                    shared.trouble.lock().insert(None, error.to_string());
                    return Done::Ended;
                }
                Err(error) => {
                    shared.trouble.lock().insert(None, error.to_string());
                    if self.give_back(work, &error) {
                        tracing::error!(%error, "a transaction of another region is left alone for now");
                        return Done::GivenBack;
                    }
                    tracing::warn!(%error, "transactions of other regions cannot be applied now; trying again");
                    shared.env.clock.sleep(pause + shared.env.jitter(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Less is taken for an entry where so much follows from its rows that the next ones might have
    /// to lie in parts.
    fn note_size(&mut self, bytes: usize) {
        self.takes = match bytes > INLINE_BYTES / 4 {
            true => (self.takes / 2).max(FEWEST_BYTES),
            false => (self.takes * 2).min(ENTRY_BYTES),
        };
    }

    async fn commit(&mut self, work: &Work, freshness: Freshness) -> Result<()> {
        let shared = &Arc::clone(&self.shared);
        let store = &shared.store;
        let snapshot = store.begin(freshness, None).await?;
        let at = snapshot.snapshot;
        let sorted = async {
            let present =
                store.get(vec![rows::inbox()], at).await?.pop().and_then(Read::into_value);
            // What was taken from peers may leave the state as it was: then it says nothing, and
            // the labels tell what is here already.
            if present != self.stored && present.as_ref() == Some(&work.state) {
                // An attempt of unknown outcome has committed.
                return Ok(None);
            }
            if present != self.stored && freshness == Freshness::Applied {
                return Err(Error::Stale);
            }
            if present != self.stored {
                return Err(Error::Superseded);
            }
            sort_out(store, &shared.tables, &work.transactions, at, None).await.map(Some)
        };
        let sorted = sorted.await;
        store.release(&snapshot).await;
        let Some(mut sorted) = sorted? else { return Ok(()) };
        let conflicts = std::mem::take(&mut sorted.conflicts);
        sorted.own.push(checked(rows::inbox(), Some(work.state.clone()), at));
        sorted.own.sort_by(|a, b| a.write.key.cmp(&b.write.key));
        if shared.config.planted == Some(Bug::ResumeSkips) {
            // Progress without what it counts.
            let own = std::mem::take(&mut sorted.own);
            store.commit(CommitWrites::Inline(own), Reads::default(), work.after).await?;
            for remote in &mut sorted.remote {
                remote.writes.iter_mut().for_each(|write| write.since = Timestamp::MAX);
            }
        }
        let bytes = sorted.bytes;
        sort_out::commit(shared, sorted, work.after).await?;
        self.note_size(bytes);
        shared.trouble.lock().remove(&None);
        shared.note(conflicts);
        Ok(())
    }
}
