//! The look that computing code takes at the limits of its statement.
//!
//! # Purpose
//! A statement waits in many places and computes in more. What waits is dropped where it waits;
//! what computes has to look by itself. [`check`] is that look: whoever loops as often as data or a
//! constant says calls it, wherever it is (functions, casts, operators of DataFusion), without
//! being handed anything.
//!
//! ```text
//! session ── scoped(future) ──> each poll:  thread-local := this session ── check() ──> cancelled? timed out? ended?
//!                                           thread-local := what it was                  every 4th look: clock, socket
//! ```
//!
//! # How to use
//! - [`check`] at least once a millisecond of work; it costs a few nanoseconds.
//! - [`Steps`] in a loop of cheap steps: it looks once in a thousand.
//! - [`check_long`] before a step that itself takes milliseconds: it looks at the clock and the
//!   socket every time.
//! - [`sort`] in the place of a sort of as many values as data says.
//! - [`pace`] in a loop that may await: it looks and, now and then, gives way to other tasks.
//! - [`computes`] before what may compute for long, from async code: the statement goes on where
//!   that holds up nobody.
//!
//! # Invariants
//! - Outside of a statement every look succeeds.
//! - The thread-local is set only while the statement's own code runs on the thread, and put back
//!   by every way out, a panic included.
//!
//! # On failure
//! 57014 for a cancelled or timed-out statement, 57P01 or 08006 when the session is to end.
//!
//! # Limits
//! Time and the client's socket are looked at every fourth look. Tasks that a library spawns by
//! itself inherit the statement where they are made [`inheriting`]; else nothing of length may run
//! there.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, Stream};
use parking_lot::Mutex;
use telesto_common::env::Clock;
use telesto_common::limits::{MemoryBudget, Reservation};
use telesto_common::wait::Wait;
use tokio::sync::Notify;

use crate::error::{Error, Result, SqlState};

/// How many looks lie between two looks at the clock and the socket.
const LONG_LOOK_EVERY: u32 = 4;
/// How many steps of [`Steps`] lie between two looks.
const STEPS_A_LOOK: u32 = 1024;
/// Turns of [`pace`] after which a statement counts as one that computes.
const SHORT_TURNS: u32 = 16;
/// Least time between two looks at the client's socket.
const PROBE_EVERY: Duration = Duration::from_millis(100);

thread_local! {
    /// The session whose statement runs on this thread right now.
    static CURRENT: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

/// Why a session is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// An administrator or `pg_terminate_backend` said so, or the server stops now.
    Terminated,
    /// The client is gone.
    ClientGone,
}

/// Looks whether the client is still there; must neither block nor wait.
pub type Probe = Box<dyn Fn() -> Option<Ending> + Send + Sync>;

/// What a session's statements look at.
#[derive(Default)]
pub struct Shared {
    /// Number of the statement under way; 0: none.
    statement: AtomicU64,
    /// The statement that a client asked to stop.
    cancelled: AtomicU64,
    /// The statement that is refused to go on, and why.
    refused: Mutex<Option<(u64, Error)>>,
    /// The statement whose time is over.
    timed_out: AtomicU64,
    /// Monotonic microseconds at which the time of the statement is over; 0: no limit.
    deadline_micros: AtomicU64,
    /// 0: the session goes on; else an [`Ending`].
    ended: AtomicU8,
    /// What the session waits for: a [`Wait`].
    waits: AtomicU8,
    looks: AtomicU32,
    turns: AtomicU32,
    /// The statement may compute for long: its polls belong where that holds up nobody.
    computes: AtomicBool,
    clock: Option<Arc<dyn Clock>>,
    probe: Mutex<Option<(Probe, Duration)>>,
    /// What the values that the statement makes take ([`crate::held`]); `None`: nobody counts.
    values: Option<Mutex<Reservation>>,
    /// Whether it is more than nothing.
    charged: AtomicBool,
    notify: Notify,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("statement", &self.statement).finish_non_exhaustive()
    }
}

impl Shared {
    /// Of a session that has begun no statement yet; what its values take is charged to `memory`.
    pub fn new(clock: Arc<dyn Clock>, memory: &Arc<MemoryBudget>) -> Self {
        Self { clock: Some(clock), ..Self::with_memory(memory) }
    }

    /// Whose statements have no time limit.
    pub fn with_memory(memory: &Arc<MemoryBudget>) -> Self {
        // Nothing is reserved yet, so nothing can be refused.
        let values = memory.reserve("the values of a statement", 0).ok().map(Mutex::new);
        Self { values, ..Self::default() }
    }

    /// The session waits for this from now on.
    pub fn waits_for(&self, wait: Wait) {
        self.waits.store(wait as u8, Ordering::Relaxed);
    }

    /// What the session waited for when it was last looked at.
    pub fn wait(&self) -> Wait {
        Wait::of(self.waits.load(Ordering::Relaxed))
    }

    /// A statement begins, with this much time; `None`: without a limit.
    pub fn begin(&self, number: u64, limit: Option<Duration>) {
        let deadline = match (&self.clock, limit) {
            (Some(clock), Some(limit)) => micros(clock.monotonic().saturating_add(limit)).max(1),
            _ => 0,
        };
        self.give_back(0);
        self.deadline_micros.store(deadline, Ordering::Relaxed);
        self.turns.store(0, Ordering::Relaxed);
        self.statement.store(number, Ordering::SeqCst);
    }

    /// The statement has ended.
    pub fn finish(&self) {
        self.give_back(0);
        self.statement.store(0, Ordering::SeqCst);
        self.deadline_micros.store(0, Ordering::Relaxed);
    }

    /// Gives back what values took beyond `left` bytes.
    fn give_back(&self, left: u64) {
        if let Some(values) = &self.values
            && self.charged.load(Ordering::Relaxed)
        {
            let mut values = values.lock();
            let over = values.bytes().saturating_sub(left);
            values.shrink(over);
            self.charged.store(left > 0, Ordering::Relaxed);
        }
    }

    /// Stops the statement under way.
    pub fn cancel(&self) {
        let statement = self.statement.load(Ordering::SeqCst);
        if statement != 0 {
            self.cancelled.store(statement, Ordering::SeqCst);
            self.notify.notify_waiters();
        }
    }

    /// Stops the statement under way with an error of its own; the first one stays.
    pub fn refuse(&self, error: Error) {
        let statement = self.statement.load(Ordering::SeqCst);
        if statement != 0 {
            let mut refused = self.refused.lock();
            if refused.as_ref().is_none_or(|(number, _)| *number != statement) {
                *refused = Some((statement, error));
            }
            drop(refused);
            self.cancel();
        }
    }

    /// The time of statement `number` is over.
    pub fn time_out(&self, number: u64) {
        self.timed_out.store(number, Ordering::SeqCst);
    }

    /// Ends the session; the first reason stays.
    pub fn end(&self, ending: Ending) {
        let code = match ending {
            Ending::Terminated => 1,
            Ending::ClientGone => 2,
        };
        let first = self.ended.compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst);
        if first.is_ok() {
            self.notify.notify_waiters();
        }
    }

    /// Why the session is to end, if it is.
    pub fn ending(&self) -> Option<Ending> {
        match self.ended.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Ending::Terminated),
            _ => Some(Ending::ClientGone),
        }
    }

    /// How to find out whether the client is still there.
    pub fn set_probe(&self, probe: Probe) {
        *self.probe.lock() = Some((probe, Duration::ZERO));
    }

    /// Fails when statement `number` is to stop.
    pub fn look(&self, number: u64) -> Result<()> {
        if number != 0 {
            if self.cancelled.load(Ordering::Relaxed) == number {
                let refused = self.refused.lock();
                let own = refused.as_ref().filter(|(refused, _)| *refused == number);
                return Err(own.map_or_else(cancelled, |(_, error)| error.clone()));
            }
            if self.timed_out.load(Ordering::Relaxed) == number {
                return Err(timed_out());
            }
        }
        match self.ended.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(ended(self.ending())),
        }
    }

    /// The look of whatever runs now.
    fn check(&self) -> Result<()> {
        let number = self.statement.load(Ordering::Relaxed);
        self.look(number)?;
        // One thread at a time runs a session: no count is lost that matters.
        let looks = self.looks.load(Ordering::Relaxed).wrapping_add(1);
        self.looks.store(looks, Ordering::Relaxed);
        if looks.is_multiple_of(LONG_LOOK_EVERY) {
            return self.long_look(number);
        }
        Ok(())
    }

    #[cold]
    fn long_look(&self, number: u64) -> Result<()> {
        let Some(clock) = &self.clock else { return Ok(()) };
        let now = clock.monotonic();
        let deadline = self.deadline_micros.load(Ordering::Relaxed);
        if deadline != 0 && micros(now) >= deadline {
            self.time_out(number);
            return Err(timed_out());
        }
        if let Some((probe, last)) = &mut *self.probe.lock()
            && now.saturating_sub(*last) >= PROBE_EVERY
        {
            *last = now;
            if let Some(ending) = probe() {
                self.end(ending);
                return Err(ended(Some(ending)));
            }
        }
        Ok(())
    }

    /// Whether statement `number` is to stop, also by the clock.
    pub fn is_over(&self, number: u64) -> bool {
        self.look(number).is_err() || self.long_look(number).is_err()
    }

    /// The number of the statement that runs.
    pub fn number(&self) -> u64 {
        self.statement.load(Ordering::SeqCst)
    }

    /// Whether the statement computes for long.
    pub fn set_computes(&self, computes: bool) {
        self.computes.store(computes, Ordering::Relaxed);
    }

    /// Whether the statement computes for long.
    pub fn is_computing(&self) -> bool {
        self.computes.load(Ordering::Relaxed)
    }

    /// Resolves when `over` holds; asked whenever something has been told to this session.
    pub async fn told(&self, over: impl Fn(&Self) -> bool) {
        loop {
            let mut notified = pin!(self.notify.notified());
            // Registered before the look, so that what comes in between is not missed.
            notified.as_mut().enable();
            if over(self) {
                return;
            }
            notified.await;
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn cancelled() -> Error {
    Error::new(SqlState::QUERY_CANCELED, "canceling statement due to user request")
}

/// 57014 of `statement_timeout`.
pub fn timed_out() -> Error {
    Error::new(SqlState::QUERY_CANCELED, "canceling statement due to statement timeout")
}

fn ended(ending: Option<Ending>) -> Error {
    match ending {
        Some(Ending::ClientGone) => {
            Error::new(SqlState::CONNECTION_FAILURE, "connection to client lost")
        }
        _ => Error::new(
            SqlState::ADMIN_SHUTDOWN,
            "terminating connection due to administrator command",
        ),
    }
}

/// Fails when the statement that this thread runs is to stop. Outside of a statement: never.
///
/// # Errors
/// 57014; 57P01 or 08006 when the session is to end.
#[inline]
pub fn check() -> Result<()> {
    let looked = CURRENT.try_with(|current| match &*current.borrow() {
        Some(shared) => shared.check(),
        None => Ok(()),
    });
    // A thread that ends runs no statement.
    looked.unwrap_or(Ok(()))
}

/// [`check`] before a step that takes milliseconds: the clock and the socket are looked at each
/// time.
///
/// # Errors
/// Those of [`check`].
pub fn check_long() -> Result<()> {
    let looked = CURRENT.try_with(|current| match &*current.borrow() {
        Some(shared) => {
            let number = shared.number();
            shared.look(number).and_then(|()| shared.long_look(number))
        }
        None => Ok(()),
    });
    // A thread that ends runs no statement.
    looked.unwrap_or(Ok(()))
}

/// Takes `bytes` for values of the statement that this thread runs. Outside of a statement nothing
/// is counted.
pub fn charge(bytes: u64) -> telesto_common::Result<()> {
    with_shared(|shared| match &shared.values {
        Some(values) => {
            shared.charged.store(true, Ordering::Relaxed);
            values.lock().grow(bytes)
        }
        None => Ok(()),
    })
    .unwrap_or(Ok(()))
}

/// What the values of the statement take now, bytes.
pub fn charged() -> u64 {
    let bytes = |shared: &Shared| match &shared.values {
        Some(values) if shared.charged.load(Ordering::Relaxed) => values.lock().bytes(),
        _ => 0,
    };
    with_shared(bytes).unwrap_or(0)
}

/// Gives back what the values of the statement take beyond `left` bytes.
pub fn give_back(left: u64) {
    with_shared(|shared| shared.give_back(left));
}

/// What `work` makes of the session whose statement this thread runs; `None`: there is none.
fn with_shared<T>(work: impl FnOnce(&Shared) -> T) -> Option<T> {
    // A thread that ends runs no statement.
    CURRENT.try_with(|current| current.borrow().as_deref().map(work)).ok().flatten()
}

/// How many values are sorted between two looks.
const SORTED_A_LOOK: usize = 4096;

/// A stable sort that looks now and then: pieces are sorted one by one, and merged pair by pair.
///
/// # Errors
/// Those of [`check`]; then the values are gone.
pub fn sort<T>(
    values: Vec<T>,
    mut order: impl FnMut(&T, &T) -> std::cmp::Ordering,
) -> Result<Vec<T>> {
    let mut pieces = Vec::with_capacity(values.len().div_ceil(SORTED_A_LOOK));
    let mut left = values.into_iter();
    loop {
        let mut piece: Vec<T> = left.by_ref().take(SORTED_A_LOOK).collect();
        if piece.is_empty() {
            break;
        }
        check()?;
        piece.sort_by(&mut order);
        pieces.push(piece);
    }
    let mut steps = Steps::default();
    while pieces.len() > 1 {
        let mut merged = Vec::with_capacity(pieces.len().div_ceil(2));
        let mut pairs = pieces.into_iter();
        while let Some(first) = pairs.next() {
            merged.push(match pairs.next() {
                Some(second) => merge(first, second, &mut order, &mut steps)?,
                None => first,
            });
        }
        pieces = merged;
    }
    Ok(pieces.pop().unwrap_or_default())
}

/// Two sorted lists as one; of equals, those of the first come first.
fn merge<T>(
    first: Vec<T>,
    second: Vec<T>,
    order: &mut impl FnMut(&T, &T) -> std::cmp::Ordering,
    steps: &mut Steps,
) -> Result<Vec<T>> {
    let mut out = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter().peekable(), second.into_iter().peekable());
    loop {
        steps.step()?;
        let from_second = match (first.peek(), second.peek()) {
            (Some(a), Some(b)) => order(b, a).is_lt(),
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (None, None) => return Ok(out),
        };
        out.extend(if from_second { second.next() } else { first.next() });
    }
}

/// Looks once in a thousand steps, for loops whose steps cost nanoseconds.
#[derive(Debug, Default)]
pub struct Steps(u32);

impl Steps {
    /// One step more.
    ///
    /// # Errors
    /// Those of [`check`].
    #[inline]
    pub fn step(&mut self) -> Result<()> {
        self.0 = self.0.wrapping_add(1);
        if self.0.is_multiple_of(STEPS_A_LOOK) { check() } else { Ok(()) }
    }
}

/// [`check`] for loops that may await: gives way to other tasks as tokio's budget says. A statement
/// that takes many turns goes on where it may compute.
///
/// # Errors
/// Those of [`check`].
pub async fn pace() -> Result<()> {
    check()?;
    let long = CURRENT.with_borrow(|current| {
        let Some(shared) = current else { return false };
        // The row before is done; whoever keeps its values counts them.
        shared.give_back(0);
        let turns = shared.turns.load(Ordering::Relaxed).wrapping_add(1);
        shared.turns.store(turns, Ordering::Relaxed);
        turns == SHORT_TURNS && !shared.is_computing()
    });
    if long {
        computes().await;
    }
    tokio::task::consume_budget().await;
    Ok(())
}

/// What follows may compute for long: the statement gives way once and is polled from then on,
/// until it ends, where that holds up nobody.
pub async fn computes() {
    let changed = CURRENT.with_borrow(|current| match current {
        Some(shared) if !shared.is_computing() => {
            shared.set_computes(true);
            true
        }
        _ => false,
    });
    if changed {
        let mut yielded = false;
        poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

/// Puts the thread-local back when dropped.
struct Entered(Option<Arc<Shared>>);

impl Drop for Entered {
    fn drop(&mut self) {
        let before = self.0.take();
        // A thread that ends has nothing to put back.
        let _ = CURRENT.try_with(|current| current.replace(before));
    }
}

fn enter(shared: Option<Arc<Shared>>) -> Entered {
    Entered(CURRENT.with(|current| current.replace(shared)))
}

/// `future`, whose code looks at `shared`.
pub async fn scoped<F: Future>(shared: &Arc<Shared>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        let _entered = enter(Some(Arc::clone(shared)));
        future.as_mut().poll(context)
    })
    .await
}

/// `future` as a part of the statement under way, for a library that spawns it. When the statement
/// is to end it is not polled any more: whoever waits for it is dropped too, and drops it.
pub fn inheriting<T: Send + 'static>(mut future: BoxFuture<'static, T>) -> BoxFuture<'static, T> {
    // A thread that ends runs no statement.
    let current = CURRENT.try_with(|current| current.borrow().clone()).ok().flatten();
    let Some(shared) = current else { return future };
    let number = shared.number();
    poll_fn(move |context| {
        if shared.is_over(number) {
            return Poll::Pending;
        }
        let _entered = enter(Some(Arc::clone(&shared)));
        future.as_mut().poll(context)
    })
    .boxed()
}

/// Runs `work` as a part of the session's statement, for tests of what looks at its limits.
#[doc(hidden)]
pub fn within<T>(shared: &Arc<Shared>, work: impl FnOnce() -> T) -> T {
    let _entered = enter(Some(Arc::clone(shared)));
    work()
}

/// A stream whose code looks at its statement.
pub struct ScopedStream<S> {
    stream: S,
    shared: Arc<Shared>,
}

impl<S> ScopedStream<S> {
    /// `stream`, each poll of it as the session's.
    pub fn new(shared: Arc<Shared>, stream: S) -> Self {
        Self { stream, shared }
    }
}

impl<S: Stream + Unpin> Stream for ScopedStream<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let _entered = enter(Some(Arc::clone(&this.shared)));
        Pin::new(&mut this.stream).poll_next(context)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.stream.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Arc<Shared> {
        Arc::new(Shared::new(telesto_runtime_clock(), &MemoryBudget::new(1 << 20)))
    }

    fn telesto_runtime_clock() -> Arc<dyn Clock> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        let _entered = runtime.enter();
        telesto_runtime::env().clock
    }

    fn code(result: Result<()>) -> Option<&'static str> {
        result.err().map(|error| error.code().0)
    }

    #[test]
    fn look_outside_of_a_statement_succeeds() {
        assert_eq!(code(check()), None);
        let shared = shared();
        shared.begin(1, None);
        shared.cancel();
        assert_eq!(code(check()), None);
        assert_eq!(code(within(&shared, check)), Some("57014"));
        assert_eq!(code(check()), None, "put back");
    }

    #[test]
    fn cancel_of_one_statement_does_not_stop_the_next() {
        let shared = shared();
        shared.cancel();
        shared.begin(1, None);
        assert_eq!(code(within(&shared, check)), None, "there was none to cancel");
        shared.cancel();
        assert_eq!(code(within(&shared, check)), Some("57014"));
        shared.begin(2, None);
        assert_eq!(code(within(&shared, check)), None);
    }

    #[test]
    fn loop_that_only_looks_ends_at_its_deadline() {
        let shared = shared();
        shared.begin(1, Some(Duration::from_millis(20)));
        let stopped = within(&shared, || {
            let mut steps = Steps::default();
            loop {
                if let Err(error) = steps.step() {
                    break error;
                }
            }
        });
        assert_eq!(stopped.message(), "canceling statement due to statement timeout");
    }

    #[test]
    fn loop_that_only_looks_ends_when_the_client_is_gone() {
        let shared = shared();
        shared.set_probe(Box::new(|| Some(Ending::ClientGone)));
        shared.begin(1, None);
        let stopped = within(&shared, || {
            loop {
                if let Err(error) = check() {
                    break error;
                }
            }
        });
        assert_eq!(stopped.code().0, "08006");
        assert_eq!(shared.ending(), Some(Ending::ClientGone));
    }

    #[test]
    fn sort_is_stable_and_ends_when_told() {
        let values: Vec<(u64, usize)> =
            (0..20_000).map(|at| ((at as u64).wrapping_mul(0x9E37_79B9) % 50, at)).collect();
        let mut expected = values.clone();
        expected.sort_by_key(|value| value.0);
        let by_key = |a: &(u64, usize), b: &(u64, usize)| a.0.cmp(&b.0);
        assert_eq!(sort(values.clone(), by_key).ok(), Some(expected));
        assert_eq!(sort(Vec::<u8>::new(), Ord::cmp).ok(), Some(Vec::new()));
        let shared = shared();
        shared.begin(1, None);
        let mut compared = 0_u32;
        let sorted = within(&shared, || {
            sort(values, |a, b| {
                compared += 1;
                shared.cancel();
                a.cmp(b)
            })
        });
        assert_eq!(code(sorted.map(|_| ())), Some("57014"));
        assert!(compared < 200_000, "{compared}");
    }

    #[test]
    fn long_look_sees_the_deadline_at_once() {
        let shared = shared();
        shared.begin(1, Some(Duration::ZERO));
        assert_eq!(code(within(&shared, check_long)), Some("57014"));
    }

    #[test]
    fn panic_inside_puts_the_thread_back() {
        let shared = shared();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            within(&shared, || panic!("meant"));
        }));
        assert!(caught.is_err());
        shared.end(Ending::Terminated);
        assert_eq!(code(check()), None);
    }

    #[test]
    fn spawned_work_looks_and_is_left_when_its_statement_ends() {
        let shared = shared();
        shared.begin(1, None);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        let work =
            |shared: &Arc<Shared>| within(shared, || inheriting(async { check().is_ok() }.boxed()));
        assert!(runtime.block_on(work(&shared)));
        let left = work(&shared);
        shared.cancel();
        assert_eq!(left.now_or_never(), None);
        assert!(runtime.block_on(inheriting(async { check().is_ok() }.boxed())), "of nobody");
    }

    #[test]
    fn statement_of_many_turns_counts_as_one_that_computes() {
        let shared = shared();
        shared.begin(1, None);
        let loops = scoped(&shared, async {
            for _ in 0..=SHORT_TURNS {
                pace().await?;
            }
            Ok(())
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        assert_eq!(code(runtime.block_on(loops)), None);
        assert!(shared.is_computing());
    }
}
