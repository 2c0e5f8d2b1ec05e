//! Counting the requests of one task: one SQL statement, one group commit.
//!
//! # Purpose
//! A [`ScopeMeter`] counts beside the bucket's own meter whatever is requested inside it, so that a
//! statement can be told what it cost.
//!
//! # Invariants
//! - A scope sees the requests of futures polled inside it ([`scoped`], [`enter`]). Scopes do not
//!   add up: inside another one only the innermost counts.
//! - Work done once for several (a group commit, a shared look at the log's tail) is counted in a
//!   scope of its own and given out in shares ([`ScopeMeter::share_out`]): hence fractions.
//! - Nothing counted is lost: what a scope holds when it ends and nobody has taken counts as a job
//!   of the bucket's.
//! - A task spawned inside a scope is outside of it. The exception are the short tasks in which the
//!   checkpoint engine reads ahead and DataFusion runs operators, on a runtime prepared by
//!   [`follow_tasks`]: these libraries spawn by themselves, and a long scan does most of its
//!   reading there.
//!
//! # Limits
//! - On a runtime that was not prepared (a program's own, under the embedded library) what those
//!   tasks read counts for the bucket only.
//! - Which tasks are followed is told by the source file that spawns them; the versions of both
//!   libraries are pinned and a test in `crates/telesto` counts a cold scan.

use std::fmt;
use std::future::Future;
use std::ops::{AddAssign, Sub};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use telesto_common::env::Clock;
use telesto_meter::{Charge, Rates, Resource};
use tokio::task::Id;
use tokio::task::futures::TaskLocalFuture;

use crate::api::Cause;

/// How often a request waits for its guard at most, before it goes out all the same: no wait is
/// without a bound.
const MOST_WAITS: u32 = 100;

/// Bucket requests, bytes and dollars caused by something. Fractions are shares of work done for
/// several.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// GET and HEAD requests.
    pub gets: f64,
    /// PUT and COPY requests.
    pub puts: f64,
    /// LIST requests.
    pub lists: f64,
    /// DELETE requests.
    pub deletes: f64,
    /// Body bytes sent.
    pub uploaded_bytes: f64,
    /// Body bytes received.
    pub downloaded_bytes: f64,
    /// Dollars, by the bucket's price sheet.
    pub dollars: f64,
}

impl Cost {
    /// A charge in whole requests, at these rates. What was computed costs nothing here: it is no
    /// request.
    #[must_use]
    pub fn of(charge: &Charge, rates: &Rates) -> Self {
        let requests = *charge - Charge::of(Resource::Cpu, charge.get(Resource::Cpu));
        Self {
            gets: charge.amount(Resource::Gets),
            puts: charge.amount(Resource::Puts),
            lists: charge.amount(Resource::Lists),
            deletes: charge.amount(Resource::Deletes),
            uploaded_bytes: charge.amount(Resource::Sent),
            downloaded_bytes: charge.amount(Resource::Received),
            dollars: rates.price(&requests).to_f64(),
        }
    }

    /// The charge that this is the cost of: what came from another node as numbers.
    #[must_use]
    pub fn charge(&self) -> Charge {
        let units = |amount: f64, resource: Resource| {
            // Floats saturate when they become integers; whole units come back exactly.
            Charge::of(resource, (amount * resource.units() as f64).round() as u64)
        };
        units(self.gets, Resource::Gets)
            + units(self.puts, Resource::Puts)
            + units(self.lists, Resource::Lists)
            + units(self.deletes, Resource::Deletes)
            + units(self.uploaded_bytes, Resource::Sent)
            + units(self.downloaded_bytes, Resource::Received)
    }

    fn each(self, other: Self, op: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            gets: op(self.gets, other.gets),
            puts: op(self.puts, other.puts),
            lists: op(self.lists, other.lists),
            deletes: op(self.deletes, other.deletes),
            uploaded_bytes: op(self.uploaded_bytes, other.uploaded_bytes),
            downloaded_bytes: op(self.downloaded_bytes, other.downloaded_bytes),
            dollars: op(self.dollars, other.dollars),
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = self.each(other, |a, b| a + b);
    }
}

impl Sub for Cost {
    type Output = Self;

    /// What came since `other`; never below zero.
    fn sub(self, other: Self) -> Self {
        // Sums of dollars are rounded: a difference may miss zero by the last digit.
        self.each(other, |a, b| (a - b).max(0.0))
    }
}

/// `2 get, 0.5 put, 0 list, 0 delete; 310 bytes sent, 8192 received; $0.0000033`
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} get, {} put, {} list, {} delete; {:.0} bytes sent, {:.0} received; ${}",
            short(self.gets, 3),
            short(self.puts, 3),
            short(self.lists, 3),
            short(self.deletes, 3),
            self.uploaded_bytes,
            self.downloaded_bytes,
            short(self.dollars, 10),
        )
    }
}

/// A number of at most `digits` decimals, without trailing zeros.
fn short(number: f64, digits: usize) -> String {
    let text = format!("{number:.digits$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// What may stand in the way of a scope's requests: a spend cap.
pub trait Guard: fmt::Debug + Send + Sync {
    /// May a request of this kind go out? `attempt`: how often it has waited already.
    fn ask(&self, resource: Resource, attempt: u32) -> Toll;
    /// So much was used.
    fn spent(&self, charge: &Charge);
}

/// What a [`Guard`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toll {
    /// The request may go out.
    Free,
    /// It waits so long and asks again.
    Wait(Duration),
    /// Whoever asked for it has been told to stop. The request goes out after this time if somebody
    /// still waits for it then: another statement may, which shares it.
    Stopped(Duration),
}

/// What is no scope's, by [`Cause`], and what is not seen in requests; kept beside the bucket's own
/// counts.
#[derive(Debug, Default)]
pub struct Jobs {
    causes: Mutex<[Charge; Cause::ALL.len()]>,
    extras: Mutex<Charge>,
    lent: Mutex<Charge>,
}

impl Jobs {
    /// So much more was used for a cause.
    pub fn add(&self, cause: Cause, charge: Charge) {
        self.causes.lock()[cause as usize] += charge;
    }

    /// As [`Self::add`], of what is no request of this process: see [`ScopeMeter::add_extra`].
    pub fn add_extra(&self, cause: Cause, charge: Charge) {
        *self.extras.lock() += charge;
        self.add(cause, charge);
    }

    /// What was used for each cause.
    #[must_use]
    pub fn all(&self) -> [Charge; Cause::ALL.len()] {
        *self.causes.lock()
    }

    /// What scopes of this process used that is no request of its own: bytes to other nodes, log
    /// bytes, what other nodes did for them.
    #[must_use]
    pub fn extras(&self) -> Charge {
        *self.extras.lock()
    }

    /// What was done for other nodes and is in their accounts.
    #[must_use]
    pub fn lent(&self) -> Charge {
        *self.lent.lock()
    }
}

#[derive(Debug, Default)]
struct Counts {
    all: Charge,
    /// Of it, what has an account, or was given out in shares.
    settled: Charge,
    home: Option<Arc<Jobs>>,
    cause: Option<Cause>,
}

impl Drop for Counts {
    fn drop(&mut self) {
        // Nobody took it: whoever should have, a session or a waiting commit, is gone.
        let open = self.all - self.settled;
        if let (false, Some(home)) = (open.is_zero(), &self.home) {
            home.add(self.cause.unwrap_or(Cause::Admin), open);
        }
    }
}

/// Counts of one task, for `EXPLAIN ANALYZE` and for the accounts of costs.
#[derive(Debug, Default)]
pub struct ScopeMeter {
    cause: Option<Cause>,
    counts: Mutex<Counts>,
    rates: OnceLock<Rates>,
    /// Nanoseconds of computing that have no account yet: apart, because they come with every poll.
    cpu: AtomicU64,
    /// Monotonic nanoseconds at which the poll under way began; 0: none is.
    poll: AtomicU64,
    guarded: AtomicBool,
    guard: Mutex<Option<Arc<dyn Guard>>>,
}

impl ScopeMeter {
    /// A scope that only counts.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A scope whose reads through [`crate::Bucket::object_store`] count as `cause`, whatever that
    /// store was made for: the checkpoint engine has one store for foreground and background.
    #[must_use]
    pub fn for_cause(cause: Cause) -> Arc<Self> {
        let scope = Self { cause: Some(cause), ..Self::default() };
        scope.counts.lock().cause = Some(cause);
        Arc::new(scope)
    }

    /// A scope whose counts are given out in shares; what is left of them counts for `cause`.
    #[must_use]
    pub fn shared(cause: Cause) -> Arc<Self> {
        let scope = Self::default();
        scope.counts.lock().cause = Some(cause);
        Arc::new(scope)
    }

    /// The same, of a bucket whose jobs are known before anything is requested.
    #[must_use]
    pub fn shared_of(jobs: Option<&Arc<Jobs>>, cause: Cause) -> Arc<Self> {
        let scope = Self::shared(cause);
        scope.counts.lock().home = jobs.cloned();
        scope
    }

    /// A scope of a bucket's, whose prices it knows before anything is requested.
    #[must_use]
    pub fn of(meter: &crate::Meter, cause: Cause) -> Arc<Self> {
        let scope = Self::for_cause(cause);
        scope.counts.lock().home = Some(Arc::clone(meter.jobs()));
        scope.rates.get_or_init(|| *meter.rates());
        scope
    }

    /// A charge in whole requests and in dollars, as this scope's bucket prices it.
    #[must_use]
    pub fn cost(&self, charge: &Charge) -> Cost {
        Cost::of(charge, self.rates.get().unwrap_or(&Rates::FREE))
    }

    /// What was counted so far. Computing is not in it.
    #[must_use]
    pub fn totals(&self) -> Cost {
        self.cost(&self.charged())
    }

    /// The same in whole units.
    #[must_use]
    pub fn charged(&self) -> Charge {
        self.counts.lock().all
    }

    /// Adds what was counted elsewhere.
    pub fn add(&self, charge: Charge) {
        self.counts.lock().all += charge;
        if self.guarded.load(Ordering::Relaxed)
            && let Some(guard) = self.guard.lock().clone()
        {
            guard.spent(&charge);
        }
    }

    /// Gives `share`, given out by [`ScopeMeter::share_out`], to its payer.
    pub fn give(&self, share: Charge, payer: Option<&Self>) {
        let Some(payer) = payer else { return self.take_back(share) };
        let home = self.counts.lock().home.clone();
        if let Some(home) = home {
            payer.counts.lock().home.get_or_insert(home);
        }
        if let Some(rates) = self.rates.get() {
            payer.rates.get_or_init(|| *rates);
        }
        payer.add(share);
    }

    /// Adds what is no request of this process: bytes to other nodes, log bytes, what another node
    /// did for it.
    pub fn add_extra(&self, charge: Charge) {
        let home = self.counts.lock().home.clone();
        // Without one it belongs to no bill: nothing was ever requested here.
        if let Some(home) = home {
            *home.extras.lock() += charge;
            self.add(charge);
        }
    }

    /// Hands what was counted and has no account yet to another node, which is told the cost of it.
    #[must_use]
    pub fn lend(&self) -> Charge {
        let (charge, _) = self.settle();
        if let Some(home) = self.counts.lock().home.clone() {
            *home.lent.lock() += charge;
        }
        charge
    }

    /// A share that nobody pays for counts as this scope's again.
    fn take_back(&self, share: Charge) {
        let mut counts = self.counts.lock();
        counts.settled = counts.settled - share;
    }

    /// A poll begins that [`ScopeMeter::add_cpu`] will tell the time of.
    pub fn computes_from(&self, now: Duration) {
        self.poll.store(nanos(now).max(1), Ordering::Relaxed);
    }

    /// Whether a poll is under way whose time is being taken.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.poll.load(Ordering::Relaxed) != 0
    }

    /// Adds computing time: that of a poll.
    pub fn add_cpu(&self, time: Duration) {
        self.poll.store(0, Ordering::Relaxed);
        self.cpu.fetch_add(nanos(time), Ordering::Relaxed);
    }

    /// Nanoseconds of computing that have no account yet, with those of the poll under way.
    #[must_use]
    pub fn computing(&self, now: Duration) -> u64 {
        let poll = match self.poll.load(Ordering::Relaxed) {
            0 => 0,
            from => nanos(now).saturating_sub(from),
        };
        self.cpu.load(Ordering::Relaxed) + poll
    }

    /// What was counted and has no account yet; from now on it has: the caller's. Computing time is
    /// told apart.
    pub fn settle(&self) -> (Charge, u64) {
        let mut counts = self.counts.lock();
        let open = counts.all - counts.settled;
        counts.settled = counts.all;
        (open, self.cpu.swap(0, Ordering::Relaxed))
    }

    /// Gives out what was counted: a share for each of `weights`. See [`Charge::share_out`].
    #[must_use]
    pub fn share_out(&self, weights: &[u64]) -> Vec<Charge> {
        if weights.is_empty() { Vec::new() } else { self.settle().0.share_out(weights) }
    }

    /// Has `guard` asked before requests; `None`: nobody.
    pub fn set_guard(&self, guard: Option<Arc<dyn Guard>>) {
        self.guarded.store(guard.is_some(), Ordering::Relaxed);
        *self.guard.lock() = guard;
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits until the current scope's guard lets a request out; at once where there is none.
pub async fn toll(clock: &dyn Clock, resource: Resource) {
    let Some(scope) = current_scope() else { return };
    if !scope.guarded.load(Ordering::Relaxed) {
        return;
    }
    let Some(guard) = scope.guard.lock().clone() else { return };
    for attempt in 0..MOST_WAITS {
        match guard.ask(resource, attempt) {
            Toll::Free => return,
            Toll::Wait(time) => clock.sleep(time).await,
            Toll::Stopped(time) => return clock.sleep(time).await,
        }
    }
}

tokio::task_local! {
    static SCOPE: Arc<ScopeMeter>;
}

/// Runs `future` so that the requests it makes count in `scope` too.
pub fn scoped<F: Future>(scope: Arc<ScopeMeter>, future: F) -> TaskLocalFuture<Arc<ScopeMeter>, F> {
    // Not an async fn: that would hold large futures twice.
    SCOPE.scope(scope, future)
}

/// Runs `work` inside `scope`: polls something by hand.
pub fn enter<R>(scope: &Arc<ScopeMeter>, work: impl FnOnce() -> R) -> R {
    SCOPE.sync_scope(Arc::clone(scope), work)
}

/// The scope this task runs in, to take along into a task it spawns.
#[must_use]
pub fn current_scope() -> Option<Arc<ScopeMeter>> {
    SCOPE.try_with(Arc::clone).ok().or_else(followed_scope)
}

/// The cause the current scope gives to reads.
pub(crate) fn cause() -> Option<Cause> {
    current_scope().and_then(|scope| scope.cause)
}

/// A request, or a part of what it moved: counts for the current scope, else as a job.
pub(crate) fn add_request(charge: Charge, cause: Cause, jobs: &Arc<Jobs>, rates: &Rates) {
    let Some(scope) = current_scope() else { return jobs.add(cause, charge) };
    scope.counts.lock().home.get_or_insert_with(|| Arc::clone(jobs));
    scope.rates.get_or_init(|| *rates);
    scope.add(charge);
}

/// A stream whose requests count in a scope, whoever pulls it.
#[derive(Debug)]
pub struct ScopedStream<S> {
    inner: S,
    scope: Arc<ScopeMeter>,
}

impl<S> ScopedStream<S> {
    /// `inner`, polled inside `scope`.
    pub fn new(inner: S, scope: Arc<ScopeMeter>) -> Self {
        Self { inner, scope }
    }
}

impl<S: Stream + Unpin> Stream for ScopedStream<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let this = self.get_mut();
        enter(&this.scope, || Pin::new(&mut this.inner).poll_next(context))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.inner.size_hint()
    }
}

/// The scopes of followed tasks, as long as these live.
static FOLLOWED: LazyLock<Mutex<FxHashMap<Id, Arc<ScopeMeter>>>> = LazyLock::new(Mutex::default);
/// How many there are: where none is followed, nothing is locked.
static FOLLOWED_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Makes the tasks that SlateDB's scans and DataFusion's operators spawn on a runtime count in the
/// scope they are spawned from.
pub fn follow_tasks(runtime: &mut tokio::runtime::Builder) -> &mut tokio::runtime::Builder {
    runtime
        .on_task_spawn(|task| {
            if !is_followed(task.spawned_at().file()) {
                return;
            }
            let Some(scope) = current_scope() else { return };
            FOLLOWED.lock().insert(task.id(), scope);
            FOLLOWED_COUNT.fetch_add(1, Ordering::Release);
        })
        .on_task_terminate(|task| {
            if FOLLOWED_COUNT.load(Ordering::Acquire) == 0 {
                return;
            }
            if FOLLOWED.lock().remove(&task.id()).is_some() {
                FOLLOWED_COUNT.fetch_sub(1, Ordering::Release);
            }
        })
}

/// Whether a task spawned in this source file lives no longer than what spawned it. SlateDB starts
/// its read-ahead in `utils.rs`; its lasting tasks start elsewhere.
fn is_followed(file: &str) -> bool {
    file.contains("datafusion") || (file.contains("slatedb") && file.ends_with("utils.rs"))
}

fn followed_scope() -> Option<Arc<ScopeMeter>> {
    if FOLLOWED_COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    FOLLOWED.lock().get(&tokio::task::try_id()?).cloned()
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use telesto_meter::REQUEST;

    use super::*;

    static JOBS: LazyLock<Arc<Jobs>> = LazyLock::new(Arc::default);

    fn get() {
        let rates = Rates::FREE.per_1000(Resource::Gets, 500.0).per_1000(Resource::Puts, 300.0);
        add_request(Charge::of(Resource::Gets, REQUEST), Cause::Gc, &JOBS, &rates);
    }

    #[tokio::test]
    async fn innermost_scope_counts_and_streams_keep_theirs() {
        let (outer, inner) = (ScopeMeter::new(), ScopeMeter::new());
        let stream = futures::stream::poll_fn(|_| {
            get();
            Poll::Ready(None::<()>)
        });
        let stream = ScopedStream::new(stream, Arc::clone(&outer));
        scoped(Arc::clone(&outer), async {
            get();
            scoped(Arc::clone(&inner), async { get() }).await;
        })
        .await;
        assert_eq!((outer.totals().gets, inner.totals().gets), (1.0, 1.0));
        assert_eq!(stream.count().await, 0);
        assert_eq!(outer.totals().gets, 2.0, "pulled outside, counted inside");
        outer.add(Charge::of(Resource::Puts, REQUEST / 4));
        let since = outer.totals() - inner.totals();
        assert_eq!(
            since.to_string(),
            "1 get, 0.25 put, 0 list, 0 delete; 0 bytes sent, 0 received; $0.575"
        );
    }

    #[tokio::test]
    async fn what_nobody_took_counts_as_a_job() {
        let jobs = || JOBS.all()[Cause::Registry as usize].get(Resource::Gets);
        let scope = ScopeMeter::for_cause(Cause::Registry);
        scoped(Arc::clone(&scope), async {
            get();
            get();
        })
        .await;
        let shares = scope.share_out(&[1, 1, 1]);
        assert_eq!(shares.iter().map(|share| share.get(Resource::Gets)).sum::<u64>(), 2 * REQUEST);
        assert!(scope.share_out(&[1]).iter().all(Charge::is_zero), "given out once");
        scoped(Arc::clone(&scope), async { get() }).await;
        let before = jobs();
        drop(scope);
        assert_eq!(jobs() - before, REQUEST);
        let cost = Cost { gets: 1.0 / 3.0, puts: 7.0, downloaded_bytes: 9.0, ..Cost::default() };
        let charge = cost.charge();
        assert_eq!(Cost::of(&charge, &Rates::FREE).charge(), charge, "there and back");
    }

    #[test]
    fn spawned_task_is_followed_only_when_a_library_spawned_it() {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = follow_tasks(builder.worker_threads(1)).build().expect("runtime");
        let scope = ScopeMeter::new();
        runtime.block_on(scoped(Arc::clone(&scope), async {
            let spawned = tokio::runtime::Handle::current().spawn(async { get() });
            spawned.await.expect("ran");
        }));
        assert_eq!(scope.totals().gets, 0.0, "this file is no library");
        assert!(is_followed("/registry/slatedb-0.18.0/src/utils.rs"));
        assert!(!is_followed("/registry/slatedb-0.18.0/src/dispatcher.rs"));
        assert!(is_followed("/registry/datafusion-common-runtime-55.2.0/src/common.rs"));
        assert!(FOLLOWED.lock().is_empty());
    }
}
