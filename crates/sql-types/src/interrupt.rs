//! The look that computing code takes at the limits of its statement.
//!
//! # Purpose
//! A statement waits in many places and computes in more. What waits is dropped where it waits; what computes
//! has to look by itself. [`check`] is that look: whoever loops as often as data or a constant says calls it, wherever
//! it is (functions, casts, operators of DataFusion), without being handed anything.
//!
//! ```text
//! session ── scoped(future) ──> each poll:  thread-local := this session ── check() ──> cancelled? timed out? ended?
//!                                           thread-local := what it was                  every 16th look: clock, socket
//! ```
//!
//! # How to use
//! - [`check`] at least once a millisecond of work; it costs a few nanoseconds.
//! - [`Steps`] in a loop of cheap steps: it looks once in a thousand.
//! - [`pace`] in a loop that may await: it looks and, now and then, gives way to other tasks.
//! - [`computes`] before what may compute for long, from async code: the statement goes on where that holds up nobody.
//!
//! # Invariants
//! - Outside of a statement every look succeeds.
//! - The thread-local is set only while the statement's own code runs on the thread, and put back by every way out, a
//!   panic included.
//!
//! # On failure
//! 57014 for a cancelled or timed-out statement, 57P01 or 08006 when the session is to end.
//!
//! # Limits
//! Time and the client's socket are looked at every 16th look. Tasks that a library spawns by itself do not
//! inherit the statement: nothing of length may run there.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use parking_lot::Mutex;
use telesto_common::env::Clock;
use tokio::sync::Notify;

use crate::error::{Error, Result, SqlState};

/// How many looks lie between two looks at the clock and the socket.
const LONG_LOOK_EVERY: u32 = 16;
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
    /// The statement whose time is over.
    timed_out: AtomicU64,
    /// Monotonic microseconds at which the time of the statement is over; 0: no limit.
    deadline_micros: AtomicU64,
    /// 0: the session goes on; else an [`Ending`].
    ended: AtomicU8,
    looks: AtomicU32,
    turns: AtomicU32,
    /// The statement may compute for long: its polls belong where that holds up nobody.
    computes: AtomicBool,
    clock: Option<Arc<dyn Clock>>,
    probe: Mutex<Option<(Probe, Duration)>>,
    notify: Notify,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("statement", &self.statement).finish_non_exhaustive()
    }
}

impl Shared {
    /// Of a session that has begun no statement yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock: Some(clock), ..Self::default() }
    }

    /// A statement begins, with this much time; `None`: without a limit.
    pub fn begin(&self, number: u64, limit: Option<Duration>) {
        let deadline = match (&self.clock, limit) {
            (Some(clock), Some(limit)) => micros(clock.monotonic().saturating_add(limit)).max(1),
            _ => 0,
        };
        self.deadline_micros.store(deadline, Ordering::Relaxed);
        self.turns.store(0, Ordering::Relaxed);
        self.statement.store(number, Ordering::SeqCst);
    }

    /// The statement has ended.
    pub fn finish(&self) {
        self.statement.store(0, Ordering::SeqCst);
        self.deadline_micros.store(0, Ordering::Relaxed);
    }

    /// Stops the statement under way.
    pub fn cancel(&self) {
        let statement = self.statement.load(Ordering::SeqCst);
        if statement != 0 {
            self.cancelled.store(statement, Ordering::SeqCst);
            self.notify.notify_waiters();
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
                return Err(cancelled());
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

/// [`check`] for loops that may await: gives way to other tasks as tokio's budget says. A statement that takes many turns
/// goes on where it may compute.
///
/// # Errors
/// Those of [`check`].
pub async fn pace() -> Result<()> {
    check()?;
    let long = CURRENT.with_borrow(|current| {
        let Some(shared) = current else { return false };
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

/// What follows may compute for long: the statement gives way once and is polled from then on, until it ends, where that
/// holds up nobody.
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

/// Runs `work` as a part of the session's statement.
#[cfg(test)]
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
        Arc::new(Shared::new(telesto_runtime_clock()))
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
