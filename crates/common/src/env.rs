//! The seams to the outside: clock, randomness, tasks.
//!
//! # Invariants
//! - [`Clock::monotonic`] never goes back and keeps counting while the process is frozen or the
//!   machine suspended: fences against late writers are measured with it.
//! - Everything spawned through one [`Env`] can be stopped together by whoever made that `Env`; a
//!   simulated crash does exactly this.
//!
//! # On failure
//! A task that panics is reported by the implementation; it never takes its neighbours with it.

use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::future::{BoxFuture, Either, select};
use futures::poll;

use crate::error::{Error, Result};
use crate::ids::{NodeId, TxnId, WriterToken};
use crate::limits::Deadline;
use crate::planted::{Bug, Planted};

/// Time as a process sees it.
pub trait Clock: Debug + Send + Sync {
    /// Wall-clock microseconds since 1970. May jump in both directions.
    fn wall_micros(&self) -> u64;
    /// Time since an arbitrary origin; never goes back; counts through suspension.
    fn monotonic(&self) -> Duration;
    /// The processor time that the process has taken; `None` where that is not known (a
    /// simulation).
    fn computed(&self) -> Option<Duration> {
        None
    }
    /// Resolves after `duration` of monotonic time.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// Randomness as a process sees it.
pub trait Random: Debug + Send + Sync {
    /// Uniformly distributed 64 bits.
    fn next_u64(&self) -> u64;
}

/// A running task. Dropping the handle leaves the task running.
pub trait Task: Debug + Send + Sync {
    /// Stops the task at its next suspension point.
    fn abort(&self);
    /// Whether the task has ended.
    fn is_finished(&self) -> bool;
}

/// Starts tasks.
pub trait Spawn: Debug + Send + Sync {
    /// Runs `future` concurrently. `name` is for diagnostics.
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Arc<dyn Task>;
    /// Runs a closure that may block (disk sync, heavy computing) where it delays nobody.
    /// In simulation it runs in place.
    fn spawn_blocking(&self, name: &'static str, work: Box<dyn FnOnce() + Send + 'static>);
    /// Runs `future` where a client's session belongs: apart from the tasks that everybody waits
    /// for, where there is such a place.
    fn spawn_session(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Arc<dyn Task> {
        self.spawn(name, future)
    }
    /// Starts tasks where those of commits run, apart from all others; `None`: there is no such
    /// place.
    fn commits(&self) -> Option<Arc<dyn Spawn>> {
        None
    }
    /// Runs `work`, which waits for a disk, on the thread of the task that calls it, where that
    /// holds up no other task and saves handing it to another thread and back. Otherwise nothing is
    /// done: `false`.
    fn block_in_place(&self, _work: &mut dyn FnMut()) -> bool {
        false
    }
    /// Runs `work`, a piece of the task that calls it, so that however long it takes it holds up no
    /// other task. Where there are no threads, or one for all (a simulation), it runs in place.
    fn compute(&self, work: &mut dyn FnMut()) {
        work();
    }
}

/// The seams of one process, bundled; cheap to clone.
#[derive(Clone, Debug)]
pub struct Env {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub random: Arc<dyn Random>,
    /// Tasks.
    pub tasks: Arc<dyn Spawn>,
    /// Bugs planted in this process: none, except in the simulation.
    pub planted: Planted,
}

impl Env {
    /// Whether the mend of `bug` is taken out here, for a test.
    #[must_use]
    pub fn planted(&self, bug: Bug) -> bool {
        self.planted.has(bug)
    }

    /// A fresh 128-bit number.
    #[must_use]
    pub fn random_u128(&self) -> u128 {
        (u128::from(self.random.next_u64()) << 64) | u128::from(self.random.next_u64())
    }

    /// A fresh transaction id.
    #[must_use]
    pub fn txn_id(&self) -> TxnId {
        TxnId(self.random_u128())
    }

    /// A fresh writer token.
    #[must_use]
    pub fn writer_token(&self) -> WriterToken {
        WriterToken(self.random_u128())
    }

    /// A fresh node id.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        NodeId(self.random_u128())
    }

    /// A uniformly random duration in `[0, upper)`, for jitter.
    #[must_use]
    pub fn jitter(&self, upper: Duration) -> Duration {
        let nanos = u64::try_from(upper.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(self.random.next_u64() % nanos)
    }

    /// The deadline `timeout` from now.
    #[must_use]
    pub fn deadline(&self, timeout: Duration) -> Deadline {
        Deadline::at(self.clock.monotonic() + timeout)
    }

    /// The same seams, but tasks are spawned where those of commits run, if there is such a place:
    /// what each commit waits for, and nothing that computes.
    #[must_use]
    pub fn commits(&self) -> Self {
        let mut env = self.clone();
        if let Some(tasks) = self.tasks.commits() {
            env.tasks = tasks;
        }
        env
    }

    /// Spawns a task.
    pub fn spawn(
        &self,
        name: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Arc<dyn Task> {
        self.tasks.spawn(name, Box::pin(future))
    }

    /// Runs blocking `work` off the async threads and waits for its result.
    ///
    /// # Errors
    /// [`Error::DeadlinePassed`] when the work was dropped unrun (the process is stopping).
    pub async fn blocking<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let (reply, result) = futures::channel::oneshot::channel();
        self.tasks.spawn_blocking(
            name,
            Box::new(move || {
                // The waiter may be gone; then nobody wants the result.
                let _ = reply.send(work());
            }),
        );
        result.await.map_err(|_| Error::DeadlinePassed { what: name })
    }

    /// Waits for `future`, at most until `deadline`. `what` names the wait in the error. A future
    /// that is ready at once costs no timer and no look at the clock.
    ///
    /// # Errors
    /// [`Error::DeadlinePassed`] when the deadline comes first; `future` is dropped.
    pub async fn within<T>(
        &self,
        deadline: Deadline,
        what: &'static str,
        future: impl Future<Output = T>,
    ) -> Result<T> {
        self.bounded(|| deadline, what, future).await
    }

    /// As [`Env::within`], for at most `timeout` from the moment it has to wait.
    ///
    /// # Errors
    /// [`Error::DeadlinePassed`] when the time is over first; `future` is dropped.
    pub async fn within_timeout<T>(
        &self,
        timeout: Duration,
        what: &'static str,
        future: impl Future<Output = T>,
    ) -> Result<T> {
        self.bounded(|| self.deadline(timeout), what, future).await
    }

    /// `deadline` is asked for only when there is something to wait for.
    async fn bounded<T>(
        &self,
        deadline: impl FnOnce() -> Deadline,
        what: &'static str,
        future: impl Future<Output = T>,
    ) -> Result<T> {
        let mut future = pin!(future);
        if let Poll::Ready(value) = poll!(future.as_mut()) {
            return Ok(value);
        }
        let timer = self.clock.sleep(deadline().remaining(self.clock.monotonic()));
        match select(future, timer).await {
            Either::Left((value, _)) => Ok(value),
            Either::Right(((), _)) => Err(Error::DeadlinePassed { what }),
        }
    }
}
