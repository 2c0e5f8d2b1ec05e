//! The real clock, randomness and tasks behind [`telesto_common::Env`].
//!
//! # Purpose
//! The one place where wall time, operating-system randomness and tokio tasks enter. Only the
//! outermost layer (binary, embedded facade, benchmarks, tests against real parts) uses it.
//!
//! # Invariants
//! Monotonic time is `CLOCK_BOOTTIME`: it counts while the machine is suspended.
//!
//! # On failure
//! Must be used inside a tokio runtime; [`env()`] panics otherwise, as tokio does.
#![allow(
    clippy::disallowed_methods,
    reason = "this crate is the seam's real side: everything else goes through it"
)]

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use rand::RngCore as _;
use telesto_common::Env;
use telesto_common::env::{Clock, Random, Spawn, Task};
use telesto_common::planted::Planted;

/// The real environment on the current tokio runtime.
#[must_use]
pub fn env() -> Env {
    Env {
        clock: Arc::new(RealClock),
        random: Arc::new(RealRandom),
        tasks: Arc::new(RealTasks { runtime: tokio::runtime::Handle::current() }),
        planted: Planted::NONE,
    }
}

#[derive(Debug)]
struct RealClock;

impl Clock for RealClock {
    fn wall_micros(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    fn monotonic(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(
            u64::try_from(now.tv_sec).unwrap_or_default(),
            u32::try_from(now.tv_nsec).unwrap_or_default(),
        )
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

#[derive(Debug)]
struct RealRandom;

impl Random for RealRandom {
    fn next_u64(&self) -> u64 {
        rand::rng().next_u64()
    }
}

#[derive(Debug)]
struct RealTasks {
    runtime: tokio::runtime::Handle,
}

#[derive(Debug)]
struct RealTask(tokio::task::AbortHandle);

impl Task for RealTask {
    fn abort(&self) {
        self.0.abort();
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Spawn for RealTasks {
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) -> Arc<dyn Task> {
        Arc::new(RealTask(self.runtime.spawn(future).abort_handle()))
    }

    fn spawn_blocking(&self, _name: &'static str, work: Box<dyn FnOnce() + Send + 'static>) {
        self.runtime.spawn_blocking(work);
    }
}
