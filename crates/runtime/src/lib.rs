//! The real clock, randomness and tasks behind [`telesto_common::Env`].
//!
//! # Purpose
//! The one place where wall time, operating-system randomness, tokio tasks and sockets between
//! nodes enter. Only the outermost layer (binary, embedded facade, benchmarks, tests against real
//! parts) uses it.
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

pub mod net;

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::future::BoxFuture;
use rand::RngCore as _;
use telesto_common::Env;
use telesto_common::env::{Clock, Random, Spawn, Task};
use telesto_common::planted::Planted;
use tokio::runtime::{Handle, RuntimeFlavor};

/// The real environment on the current tokio runtime.
#[must_use]
pub fn env() -> Env {
    let runtime = Handle::current();
    env_of(&runtime, &runtime, &runtime)
}

/// The real environment of a node: clients' sessions are `sessions`' tasks, what each commit waits
/// for is `commits`', all others are `core`'s, and so is every timer but those of `commits`' own
/// tasks.
#[must_use]
pub fn env_of(core: &Handle, sessions: &Handle, commits: &Handle) -> Env {
    let commits = (commits.id() != core.id()).then(|| commits.clone());
    Env {
        clock: Arc::new(RealClock { core: core.clone(), commits: commits.clone() }),
        random: Arc::new(RealRandom),
        tasks: Arc::new(RealTasks {
            runtime: core.clone(),
            core: core.clone(),
            sessions: sessions.clone(),
            commits,
        }),
        planted: Planted::NONE,
    }
}

#[derive(Debug)]
struct RealClock {
    core: Handle,
    commits: Option<Handle>,
}

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

    fn computed(&self) -> Option<Duration> {
        let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let (seconds, nanos) = (spent.tv_sec, spent.tv_nsec);
        Some(Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanos).ok()?))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        // Of the core's driver, whoever asks: a session's driver may be held up by a statement. Not
        // so that of commits, and another thread would have to be woken to be told of the timer.
        let own = |commits: &&Handle| Handle::try_current().is_ok_and(|at| at.id() == commits.id());
        let timers = self.commits.as_ref().filter(own).unwrap_or(&self.core);
        let _entered = timers.enter();
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
    /// Where tasks are spawned.
    runtime: Handle,
    core: Handle,
    sessions: Handle,
    commits: Option<Handle>,
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

    fn commits(&self) -> Option<Arc<dyn Spawn>> {
        let runtime = self.commits.clone()?;
        let (core, sessions) = (self.core.clone(), self.sessions.clone());
        Some(Arc::new(Self { runtime, core, sessions, commits: None }))
    }

    fn spawn_blocking(&self, _name: &'static str, work: Box<dyn FnOnce() + Send + 'static>) {
        self.core.spawn_blocking(work);
    }

    fn spawn_session(&self, _name: &'static str, future: BoxFuture<'static, ()>) -> Arc<dyn Task> {
        Arc::new(RealTask(self.sessions.spawn(future).abort_handle()))
    }

    fn block_in_place(&self, work: &mut dyn FnMut()) -> bool {
        let at_commits = |commits: &Handle| {
            let here = Handle::try_current().is_ok_and(|at| at.id() == commits.id());
            here && commits.runtime_flavor() == RuntimeFlavor::MultiThread
        };
        if !self.commits.as_ref().is_some_and(at_commits) {
            return false;
        }
        // Another thread takes the commits' other tasks and their timers over while this one goes
        // into the disk's system call.
        tokio::task::block_in_place(work);
        true
    }

    fn compute(&self, work: &mut dyn FnMut()) {
        let many = Handle::try_current()
            .ok()
            .filter(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
        let Some(handle) = many else { return work() };
        // The thread leaves its worker's other tasks, and its driver, to another thread. A part
        // that is blocked on has a budget of its own, as a poll of a task has: operators give way
        // when it is used up, and with none at all they never would.
        tokio::task::block_in_place(|| {
            handle.block_on(std::future::poll_fn(|_| {
                work();
                Poll::Ready(())
            }));
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// As many tasks as there are workers compute, until another task has run on the same runtime.
    #[test]
    fn task_that_computes_holds_up_no_other() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("runtime");
        let env = env_of(runtime.handle(), runtime.handle(), runtime.handle());
        let (ran, runs) = mpsc::channel();
        let runs = Arc::new(std::sync::Mutex::new(runs));
        let (done, ended) = mpsc::channel();
        for _ in 0..2 {
            let (tasks, runs, done) = (Arc::clone(&env.tasks), Arc::clone(&runs), done.clone());
            env.spawn("computes", async move {
                let computing = Arc::clone(&tasks);
                computing.compute(&mut || {
                    let heard = runs.lock().expect("held").recv_timeout(Duration::from_secs(30));
                    let _ = done.send(heard.is_ok());
                });
            });
        }
        for _ in 0..2 {
            let (clock, ran) = (Arc::clone(&env.clock), ran.clone());
            env.spawn("waits for a timer", async move {
                clock.sleep(Duration::from_millis(50)).await;
                let _ = ran.send(());
            });
        }
        for _ in 0..2 {
            assert!(ended.recv_timeout(Duration::from_secs(60)).expect("ends"), "nobody else ran");
        }
    }

    /// Elsewhere than among commits it is not done: another task may wait for the thread.
    #[test]
    fn disk_is_waited_for_in_place_among_commits_alone() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).max_blocking_threads(1).enable_all().build().expect("runtime")
        };
        let (core, commits) = (runtime(), runtime());
        let env = env_of(core.handle(), core.handle(), commits.handle());
        let tasks = Arc::clone(&env.tasks);
        let elsewhere = core.spawn(async move { tasks.block_in_place(&mut || panic!("runs")) });
        assert!(!core.block_on(elsewhere).expect("ends"));
        for _ in 0..3 {
            let (ran, runs) = mpsc::channel();
            let (tasks, committing) = (Arc::clone(&env.tasks), env.commits());
            let blocks = commits.spawn(async move {
                // A timer and a task of the same runtime, whose only thread waits for them.
                committing.spawn("ticks", async move {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    let _ = ran.send(());
                });
                let mut heard = Err(mpsc::RecvTimeoutError::Timeout);
                let work = &mut || heard = runs.recv_timeout(Duration::from_secs(30));
                tasks.block_in_place(work) && heard.is_ok()
            });
            assert!(core.block_on(blocks).expect("ends"), "another task was held up, or none ran");
        }
    }

    /// Without a budget what computes by `consume_budget` would never give way.
    #[test]
    fn computing_has_a_budget() {
        let runtime = tokio::runtime::Builder::new_multi_thread().build().expect("runtime");
        let env = env_of(runtime.handle(), runtime.handle(), runtime.handle());
        let tasks = Arc::clone(&env.tasks);
        let gave_way = runtime.block_on(runtime.spawn(async move {
            let mut endless = Box::pin(async {
                for _ in 0..100_000 {
                    tokio::task::consume_budget().await;
                }
            });
            let mut pending = false;
            std::future::poll_fn(|context| {
                tasks.compute(&mut || pending = endless.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            pending
        }));
        assert!(gave_way.expect("ends"));
    }
}
