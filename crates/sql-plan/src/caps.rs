//! Spend caps at work: purses, slices, guards, refusals.
//!
//! # Purpose
//! The catalog says which caps there are; a [`CapBook`] holds this process's [`Purse`] of each and
//! fills it with slices, each taken in a transaction of its own. A statement under a cap runs with
//! a [`CapGuard`] on its requests.
//!
//! # Invariants
//! - What is no statement's (fencing, chain, archive, checkpoints, collection, the slices
//!   themselves) is never asked.
//! - A write is asked for before it begins and sets aside what it may cost until its transaction
//!   ends.
//! - A read that needs a request of the bucket waits for its guard; what is in memory never meets
//!   it.
//! - A superuser who changes caps (`telesto_cap_set`, `telesto_cap_drop`) is not stopped by one.
//!   What others call a column or a function of theirs lifts no cap.
//! - A cap that only warns takes slices too, in the background: they tell what all processes have
//!   spent together.
//!
//! # On failure
//! A slice that cannot be had in time leaves the purse as it is: writes are told so (53400), reads
//! go on after 2 s.
//!
//! # Limits
//! A process learns of caps from the catalog that its statements read: one that is under way meets
//! a new cap at its next statement. What a cap refuses it refuses for up to five seconds after
//! another process has changed or dropped it. What is no statement's is counted within ten seconds,
//! in the window in which it is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use telesto_bucket::meter::{Guard, Toll, scoped};
use telesto_bucket::{Cause, ScopeMeter};
use telesto_common::{Env, Timestamp};
use telesto_meter::caps::{Cap, Class, Mode, Payer, Purse, Subject, Verdict, Window};
use telesto_meter::{Charge, Dollars, Entry, REQUEST, Rates, Resource};
use telesto_sql_catalog::store::{CatalogCache, CatalogChange, Object, spent_key};
use telesto_sql_catalog::{CatalogSnapshot, Stamp};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::interrupt::Shared;
use telesto_txn::{Database, ReadFor, TxnOptions};

mod refusal;

use self::refusal::{refusal, refused, told};
use crate::accounts::Accounts;
use crate::result::NoticeQueue;

/// How often a transaction of caps is tried again after a conflict.
const TRIES: u32 = 50;
/// How long a request waits before its purse is looked at again.
const LOOK: Duration = Duration::from_millis(20);
/// How long a request that was refused waits for its statement to go away.
const STOPPED: Duration = Duration::from_secs(1);
/// How long what was refused by a cap is refused before the catalog is looked at for another one,
/// which another process may have made.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How often a request waits for that look.
const LOOKS: u32 = 100;
/// What a statement that changes caps begins with.
const CHANGE: &str = "SELECT telesto_cap_";
const VERSION: u8 = 1;

/// How much of a cap was handed out in a window, as it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct HandedOut {
    window: Window,
    nanos: u64,
}

/// This process's purses.
#[derive(Debug)]
pub struct CapBook {
    database: Arc<dyn Database>,
    env: Env,
    active: AtomicBool,
    state: Mutex<Purses>,
    /// One slice is fetched at a time, or the catalog looked at.
    filling: tokio::sync::Mutex<()>,
    /// A task is fetching one.
    filler: AtomicBool,
    /// A task looks at the catalog.
    looking: AtomicBool,
    /// When the catalog was last looked at because of a refusal, microseconds of the monotonic
    /// clock; 0: never.
    looked_micros: AtomicU64,
}

#[derive(Debug, Default)]
struct Purses {
    stamp: Stamp,
    /// The snapshot in which the caps were seen: an older one tells nothing new.
    seen: Timestamp,
    all: Arc<[Arc<Purse>]>,
    /// What of the bucket's jobs has been counted for the caps of the database.
    jobs: Dollars,
}

impl CapBook {
    pub(crate) fn new(database: Arc<dyn Database>, env: Env) -> Self {
        Self {
            database,
            env,
            active: AtomicBool::new(false),
            state: Mutex::default(),
            filling: tokio::sync::Mutex::default(),
            filler: AtomicBool::new(false),
            looking: AtomicBool::new(false),
            looked_micros: AtomicU64::new(0),
        }
    }

    /// Whether there is any cap: what a statement looks at.
    #[must_use]
    pub fn active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Whether the purse is of a cap that there is, as far as this process knows.
    fn has(&self, purse: &Arc<Purse>) -> bool {
        self.state.lock().all.iter().any(|known| Arc::ptr_eq(known, purse))
    }

    /// Whether it is known what the catalog said a moment ago.
    fn has_looked(&self) -> bool {
        let looked = self.looked_micros.load(Ordering::Relaxed);
        let now = u64::try_from(self.env.clock.monotonic().as_micros()).unwrap_or(u64::MAX);
        looked != 0 && now.saturating_sub(looked) < LOOK_AGAIN.as_micros() as u64
    }

    /// The newest catalog and its snapshot. Nobody's statement pays for it, and no cap stops it.
    async fn newest(&self) -> Result<(Arc<CatalogSnapshot>, Timestamp)> {
        let read = async {
            // One that may write takes whatever this process knows.
            let options = TxnOptions { read_only: true, ..TxnOptions::default() };
            let txn = self.database.begin(options).await?;
            let database = telesto_sql_catalog::store::DEFAULT_DATABASE_ID;
            let catalog = CatalogCache::default().read(&txn, database).await;
            let at = txn.snapshot();
            txn.rollback();
            Ok((catalog?, at))
        };
        scoped(ScopeMeter::shared(Cause::Admin), read).await
    }

    /// Learns which caps there are from a catalog that a statement reads.
    fn learn(&self, catalog: &CatalogSnapshot, at: Timestamp, jobs: Dollars) {
        let mut state = self.state.lock();
        if state.stamp == catalog.stamp || at < state.seen {
            return;
        }
        state.seen = at;
        state.stamp = catalog.stamp;
        let before = Arc::clone(&state.all);
        if before.is_empty() {
            state.jobs = jobs;
        }
        state.all = catalog
            .caps()
            .map(|cap| {
                let same = before.iter().find(|purse| purse.cap == **cap);
                same.map_or_else(|| Arc::new(Purse::new((**cap).clone())), Arc::clone)
            })
            .collect();
        self.active.store(!state.all.is_empty(), Ordering::Relaxed);
    }

    /// All purses, for views.
    #[must_use]
    pub fn purses(&self) -> Arc<[Arc<Purse>]> {
        Arc::clone(&self.state.lock().all)
    }

    /// Counts for the database what the bucket's jobs have cost since it was counted last. All
    /// purses.
    fn count(&self, jobs: Dollars) -> Arc<[Arc<Purse>]> {
        let now = self.env.clock.wall_micros();
        let mut state = self.state.lock();
        let more = jobs.less(state.jobs);
        // Whoever asked before and comes later has an older sum, which does not count what came
        // since once more.
        state.jobs = state.jobs.max(jobs);
        let purses = Arc::clone(&state.all);
        drop(state);
        if more > Dollars::ZERO {
            let whole = |purse: &&Arc<Purse>| matches!(purse.cap.subject, Subject::Database(_));
            purses.iter().filter(whole).for_each(|purse| purse.spend(more, now));
        }
        purses
    }

    /// The purses that a statement is paid from. `jobs`: what the bucket's jobs have cost by now,
    /// which counts for the database.
    fn paying(&self, payer: &Payer<'_>, jobs: Dollars) -> Vec<Arc<Purse>> {
        let purses = self.count(jobs);
        purses.iter().filter(|purse| purse.cap.subject.covers(payer)).cloned().collect()
    }

    /// Fills a purse, if it is time to.
    async fn fill(&self, purse: &Purse, price: Dollars) -> Result<()> {
        let _turn = self.filling.lock().await;
        for _ in 0..TRIES {
            let now = self.env.clock.wall_micros();
            let Some(wanted) = purse.wants(price, now) else { return Ok(()) };
            // What a slice itself costs is no statement's.
            let scope = ScopeMeter::shared(Cause::Admin);
            match scoped(scope, self.take(purse, wanted, now)).await {
                Err(error) if error.conflict().is_some() => {}
                done => return done,
            }
        }
        Err(Error::new(
            SqlState::CONFIGURATION_LIMIT_EXCEEDED,
            format!(
                "no slice of spend cap \"{}\" could be had: other processes take them",
                purse.cap.name
            ),
        )
        .hint("Try again."))
    }

    async fn take(&self, purse: &Purse, wanted: Dollars, now: u64) -> Result<()> {
        let cap = &purse.cap;
        let own = cap.per.window(now);
        let txn = self.database.begin(TxnOptions::default()).await?;
        let key = spent_key(telesto_sql_catalog::store::DEFAULT_DATABASE_ID, cap.oid);
        let stored = txn.get(&key, ReadFor::Constraint).await?;
        let before = stored.map(|bytes| decode(&bytes)).transpose()?.unwrap_or_default();
        let window = own.or_begun(before.window, cap.per);
        let nanos = if before.window == window { before.nanos } else { 0 };
        let granted = Dollars(u128::from(nanos) * 1_000_000_000);
        // Up to whole nanodollars, but not beyond the cap.
        let amount =
            cap.hands_out(granted, Dollars(wanted.0.div_ceil(1_000_000_000) * 1_000_000_000));
        let amount_nanos = u64::try_from(amount.0 / 1_000_000_000).unwrap_or(u64::MAX);
        if amount_nanos == 0 {
            txn.rollback();
            purse.grant(own, Dollars::ZERO, granted.max(cap.usable()), now);
            return Ok(());
        }
        let after = HandedOut { window, nanos: nanos.saturating_add(amount_nanos) };
        txn.put(key, encode(&after)?).await?;
        txn.commit().await?;
        let all = Dollars(u128::from(after.nanos) * 1_000_000_000);
        purse.grant(own, Dollars(u128::from(amount_nanos) * 1_000_000_000), all, now);
        Ok(())
    }
}

fn decode(bytes: &[u8]) -> Result<HandedOut> {
    match bytes.split_first() {
        Some((&VERSION, json)) => serde_json::from_slice(json)
            .map_err(|error| Error::corrupt(format!("what a spend cap handed out: {error}"))),
        _ => Err(Error::corrupt(
            "what a spend cap handed out, of another version; use a newer telesto",
        )),
    }
}

fn encode(handed: &HandedOut) -> Result<Bytes> {
    let mut value = vec![VERSION];
    serde_json::to_writer(&mut value, handed)
        .map_err(|error| Error::internal(format!("what a spend cap handed out: {error}")))?;
    Ok(Bytes::from(value))
}

/// Makes or changes a cap, in a transaction of its own; `None` drops the one of that name.
///
/// # Errors
/// 42704 when there is none to drop; those of the database.
pub async fn change(
    database: &Arc<dyn Database>,
    env: &Env,
    shown: &CatalogSnapshot,
    name: &str,
    to: Option<&Cap>,
) -> Result<(Arc<CatalogSnapshot>, Timestamp)> {
    let mut tries = 0;
    loop {
        let txn = database.begin(TxnOptions::default()).await?;
        let catalog = CatalogCache::default().read(&txn, shown.database).await?;
        let there = catalog.caps().find(|cap| cap.name == name).cloned();
        let mut change = CatalogChange::new(Arc::clone(&txn), &catalog);
        match (to, there) {
            (Some(to), there) => {
                let oid = there.map_or_else(|| change.oid(), |cap| cap.oid);
                change.put(Object::Cap(Cap { oid, ..to.clone() }));
            }
            (None, Some(there)) => {
                change.remove(there.oid);
                txn.delete(spent_key(shown.database, there.oid)).await?;
            }
            (None, None) => {
                txn.rollback();
                let text = format!("spend cap \"{name}\" does not exist");
                return Err(Error::new(SqlState::UNDEFINED_OBJECT, text)
                    .hint("SELECT name FROM telesto_caps shows those there are."));
            }
        }
        let (changed, _) = change.finish(env).await?;
        match txn.commit().await.map_err(Error::from) {
            Ok(committed) => return Ok((changed, committed.timestamp)),
            Err(error) if error.conflict().is_some() && tries < TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

/// What is set aside for a transaction's writes; given back when it ends.
#[derive(Debug, Default)]
pub struct SetAside(Vec<(Arc<Purse>, Dollars)>);

impl SetAside {
    /// Whether nothing is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether something of this purse is.
    fn has_of(&self, purse: &Arc<Purse>) -> bool {
        self.0.iter().any(|(of, _)| Arc::ptr_eq(of, purse))
    }

    /// So much more of this purse is: one sum for each, however many statements a transaction has.
    fn add(&mut self, purse: &Arc<Purse>, price: Dollars) {
        match self.0.iter_mut().find(|(of, _)| Arc::ptr_eq(of, purse)) {
            Some((_, sum)) => *sum += price,
            None => self.0.push((Arc::clone(purse), price)),
        }
    }
}

impl Drop for SetAside {
    fn drop(&mut self) {
        for (purse, price) in &self.0 {
            purse.release(*price);
        }
    }
}

/// Stands in the way of a statement's requests.
pub struct CapGuard {
    accounts: Arc<Accounts>,
    purses: Vec<Arc<Purse>>,
    rates: Rates,
    cancel: Arc<Shared>,
    /// The transaction commits.
    lets_through: AtomicBool,
}

impl std::fmt::Debug for CapGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CapGuard").field("purses", &self.purses).finish_non_exhaustive()
    }
}

impl Accounts {
    /// What the bucket's jobs have cost.
    fn jobs_cost(&self) -> Dollars {
        let jobs: Charge =
            self.meter().map(|meter| meter.jobs().all().into_iter().sum()).unwrap_or_default();
        self.rates().price(&jobs)
    }

    /// Learns which caps there are from the catalog of a snapshot.
    pub fn learn_caps(&self, catalog: &CatalogSnapshot, at: Timestamp) {
        if self.caps().active() || catalog.caps().next().is_some() {
            self.caps().learn(catalog, at, self.jobs_cost());
        }
    }

    /// Whether this process knows of a cap.
    #[must_use]
    pub fn counts_for_caps(&self) -> bool {
        self.caps().active()
    }

    /// Counts what the bucket's jobs have cost for caps of the database, and takes slices for it,
    /// whether clients run statements here or not.
    pub async fn count_jobs(&self) {
        let caps = self.caps();
        if !caps.active() {
            return;
        }
        let now = caps.env.clock.wall_micros();
        for purse in caps.count(self.jobs_cost()).iter().filter(|purse| purse.owes(now)) {
            if let Err(error) = caps.fill(purse, Dollars::ZERO).await {
                tracing::debug!(%error, cap = %purse.cap.name, "no slice of a spend cap was had");
            }
        }
    }

    /// The guard of what this payer runs; `None`: no cap concerns it. `boss`: it is a superuser's
    /// session, which is not kept from changing caps.
    pub fn guard(
        self: &Arc<Self>,
        payer: &Payer<'_>,
        boss: bool,
        cancel: &Arc<Shared>,
    ) -> Option<Arc<CapGuard>> {
        let begin = payer.text.get(..CHANGE.len());
        if boss && begin.is_some_and(|begin| begin.eq_ignore_ascii_case(CHANGE)) {
            return None;
        }
        let purses = self.caps().paying(payer, self.jobs_cost());
        if purses.is_empty() {
            return None;
        }
        let (accounts, cancel) = (Arc::clone(self), Arc::clone(cancel));
        let lets_through = AtomicBool::new(false);
        Some(Arc::new(CapGuard { accounts, purses, rates: self.rates(), cancel, lets_through }))
    }

    /// Looks whether another process has changed or dropped the cap that refuses something:
    /// statements that are refused before they read the catalog would never learn of it. Once in
    /// [`LOOK_AGAIN`] at most.
    async fn look_again(&self) {
        let caps = self.caps();
        if caps.has_looked() {
            return;
        }
        // Of many that are refused at once, one looks.
        let _turn = caps.filling.lock().await;
        if caps.has_looked() {
            return;
        }
        match caps.newest().await {
            Ok((catalog, at)) => self.learn_caps(&catalog, at),
            Err(error) => tracing::debug!(%error, "whether a spend cap was changed is not known"),
        }
        let now = u64::try_from(caps.env.clock.monotonic().as_micros()).unwrap_or(u64::MAX);
        caps.looked_micros.store(now.max(1), Ordering::Relaxed);
    }

    /// [`Self::look_again`] in the background.
    fn look_again_soon(self: &Arc<Self>) {
        if self.caps().looking.swap(true, Ordering::SeqCst) {
            return;
        }
        let accounts = Arc::clone(self);
        self.caps().env.spawn("looking for spend caps", async move {
            accounts.look_again().await;
            accounts.caps().looking.store(false, Ordering::SeqCst);
        });
    }

    /// Has a purse filled in the background.
    fn fill_soon(self: &Arc<Self>, purse: &Arc<Purse>, price: Dollars) {
        if self.caps().filler.swap(true, Ordering::SeqCst) {
            return;
        }
        let (accounts, purse) = (Arc::clone(self), Arc::clone(purse));
        self.caps().env.spawn("filling a purse", async move {
            if let Err(error) = accounts.caps().fill(&purse, price).await {
                tracing::debug!(%error, cap = %purse.cap.name, "no slice of a spend cap was had");
            }
            accounts.caps().filler.store(false, Ordering::SeqCst);
        });
    }
}

impl CapGuard {
    /// Whether a cap of it is another one by now.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.purses.iter().any(|purse| !self.accounts.caps().has(purse))
    }

    /// From now on what is asked for is counted and never refused: a transaction that was let begin
    /// commits.
    pub fn lets_through(&self) {
        self.lets_through.store(true, Ordering::Relaxed);
    }

    /// Has a purse that only warns take a slice when it is time to. Nobody waits for it, and none
    /// that is not had stops anybody.
    fn tell(&self, purse: &Arc<Purse>, price: Dollars, now: u64) {
        if purse.cap.mode == Mode::Warn && purse.wants(price, now).is_some() {
            self.accounts.fill_soon(purse, price);
        }
    }

    /// Lets a write begin and sets aside what it may cost: what this statement costs on the
    /// average, and at least a commit, which all of a transaction share.
    ///
    /// # Errors
    /// 53400 when a cap is reached.
    pub async fn admit_write(
        &self,
        entry: &Entry,
        aside: &mut SetAside,
        notices: &NoticeQueue,
    ) -> Result<()> {
        let stats = entry.stats();
        let computed = Charge::of(Resource::Cpu, stats.charge.get(Resource::Cpu));
        let mean = self.rates.price(&(stats.charge - computed)).part(1, stats.calls.max(1));
        let commit = self.rates.of(Resource::Puts, REQUEST);
        let clock = &self.accounts.caps().env.clock;
        for purse in &self.purses {
            let price = if aside.has_of(purse) { mean } else { mean.max(commit) };
            for attempt in 0.. {
                let now = clock.wall_micros();
                match purse.ask(Class::Write, price, attempt, now) {
                    Verdict::Go | Verdict::Slow(_) if purse.reserve(price, now) => {
                        self.tell(purse, price, now);
                        aside.add(purse, price);
                        break;
                    }
                    Verdict::Warn => {
                        let refusal = refusal(purse, Class::Write, price, now);
                        notices.warning(SqlState::WARNING, told(&refusal).0);
                        self.tell(purse, price, now);
                        break;
                    }
                    Verdict::Refuse => {
                        self.accounts.look_again().await;
                        return Err(refused(&refusal(purse, Class::Write, price, now)));
                    }
                    // What is left is less than it may cost: a slice, or the end.
                    _ if attempt < TRIES => self.accounts.caps().fill(purse, price).await?,
                    _ => return Err(refused(&refusal(purse, Class::Write, price, now))),
                }
            }
        }
        Ok(())
    }
}

impl Guard for CapGuard {
    fn ask(&self, resource: Resource, attempt: u32) -> Toll {
        if self.lets_through.load(Ordering::Relaxed) {
            return Toll::Free;
        }
        let now = self.accounts.caps().env.clock.wall_micros();
        let price = self.rates.of(resource, REQUEST);
        let class = if resource == Resource::Puts { Class::Write } else { Class::ColdRead };
        for purse in &self.purses {
            match purse.ask(class, price, attempt, now) {
                Verdict::Go | Verdict::Warn => self.tell(purse, price, now),
                Verdict::Slow(time) => return Toll::Wait(time),
                Verdict::Ask => {
                    self.accounts.fill_soon(purse, price);
                    return Toll::Wait(LOOK);
                }
                // The next statement meets what there is in its place.
                Verdict::Refuse if !self.accounts.caps().has(purse) => {}
                Verdict::Refuse if attempt < LOOKS && !self.accounts.caps().has_looked() => {
                    self.accounts.look_again_soon();
                    return Toll::Wait(LOOK);
                }
                Verdict::Refuse => {
                    self.cancel.refuse(refused(&refusal(purse, class, price, now)));
                    return Toll::Stopped(STOPPED);
                }
            }
        }
        Toll::Free
    }

    fn spent(&self, charge: &Charge) {
        let now = self.accounts.caps().env.clock.wall_micros();
        let price = self.rates.price(charge);
        if price > Dollars::ZERO {
            self.purses.iter().for_each(|purse| purse.spend(price, now));
        }
    }
}
