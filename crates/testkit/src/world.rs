//! A simulated world: one seed gives time, randomness, tasks and the fate of processes.
//!
//! # Invariants
//! - Everything runs on one thread under virtual time; the same seed gives the same run.
//! - A killed process runs no further instruction of its own: its tasks are never polled again.
//! - A frozen process is not polled until it is thawed, while its monotonic clock goes on, as
//!   `CLOCK_BOOTTIME` does for a stopped process.
//! - A paused process is not polled either, and its monotonic clock stands still, as that of a
//!   virtual machine that its host has stopped; its wall clock catches up when it goes on, or stays
//!   behind.
//!
//! # On failure
//! A world that makes no progress (a busy loop) panics after [`POLL_LIMIT`] polls, naming the seed.
//!
//! # Limits
//! Tasks started past the [`Env`] seam are not under control. Timers have the resolution of tokio's
//! (one millisecond).
#![allow(
    clippy::disallowed_methods,
    reason = "this is the seam's simulated side: tokio's paused clock and its tasks are what it is made of"
)]

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use telesto_common::Env;
use telesto_common::env::{Clock, Random, Spawn, Task};
use telesto_common::planted::Planted;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Wall time at the beginning of every world, microseconds since 1970 (2026-01-01).
pub const START_WALL_MICROS: u64 = 1_767_225_600_000_000;

/// Polls after which a run is taken for a busy loop.
pub const POLL_LIMIT: u64 = 20_000_000;

#[derive(Debug)]
struct Shared {
    seed: u64,
    start: Instant,
    polls: AtomicU64,
    trace: Mutex<Trace>,
    ticket: AtomicU64,
}

#[derive(Debug)]
struct Trace {
    hash: u64,
    events: u64,
    kept: Option<Vec<String>>,
}

/// The world of one seed. Clones are the same world.
#[derive(Clone, Debug)]
pub struct World {
    shared: Arc<Shared>,
    /// The world's own hand: schedules faults, never part of a simulated process.
    pub env: Env,
}

impl World {
    /// Runs `body` in the world of `seed`, to its end, in virtual time. With `keep_events` the
    /// trace is kept as text, not only as a hash.
    ///
    /// # Panics
    /// When the runtime cannot be built, and with whatever `body` panics.
    pub fn run<T>(seed: u64, keep_events: bool, body: impl AsyncFnOnce(Self) -> T) -> T {
        let mut rng_seed = [0; 32];
        rng_seed[..8].copy_from_slice(&seed.to_le_bytes());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .rng_seed(tokio::runtime::RngSeed::from_bytes(&rng_seed))
            .build()
            .expect("a current-thread runtime without I/O needs nothing that could be missing");
        runtime.block_on(async {
            let shared = Arc::new(Shared {
                seed,
                start: Instant::now(),
                polls: AtomicU64::new(0),
                trace: Mutex::new(Trace {
                    hash: 0xcbf2_9ce4_8422_2325,
                    events: 0,
                    kept: keep_events.then(Vec::new),
                }),
                ticket: AtomicU64::new(0),
            });
            let hand = process_on(&shared, "world", 0);
            body(Self { shared, env: hand.env }).await
        })
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.shared.seed
    }

    /// A process. Another `incarnation` of a name has other randomness.
    #[must_use]
    pub fn process(&self, name: &str, incarnation: u64) -> Process {
        process_on(&self.shared, name, incarnation)
    }

    /// Virtual time since the beginning.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.shared.start.elapsed()
    }

    /// A number greater than every one given before: the order of events in this run.
    #[must_use]
    pub fn ticket(&self) -> u64 {
        self.shared.ticket.fetch_add(1, Ordering::Relaxed)
    }

    /// Records an event in the trace.
    pub fn trace(&self, event: impl FnOnce() -> String) {
        let line = format!("{:>12} {}", self.now().as_micros(), event());
        let mut trace = self.shared.trace.lock();
        for byte in line.bytes().chain([b'\n']) {
            // FNV-1a: stable across versions and machines.
            trace.hash = (trace.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        trace.events += 1;
        if let Some(kept) = &mut trace.kept {
            kept.push(line);
        }
    }

    /// Hash of the whole trace and number of events in it.
    #[must_use]
    pub fn trace_hash(&self) -> (u64, u64) {
        let trace = self.shared.trace.lock();
        (trace.hash, trace.events)
    }

    /// The trace as text, when it was kept.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        self.shared.trace.lock().kept.clone().unwrap_or_default()
    }

    /// Uniform in `0..below` (0 when `below` is 0), from the world's own hand.
    #[must_use]
    pub fn draw(&self, below: u64) -> u64 {
        self.env.random.next_u64() % below.max(1)
    }

    /// True `share` of the time.
    #[must_use]
    pub fn chance(&self, share: f64) -> bool {
        (self.env.random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 <= share
    }

    /// Waits.
    pub async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

fn process_on(shared: &Arc<Shared>, name: &str, incarnation: u64) -> Process {
    let control = Arc::new(Control {
        shared: Arc::clone(shared),
        dead: AtomicBool::new(false),
        frozen: AtomicBool::new(false),
        pause: Mutex::default(),
        stops: AtomicU64::new(0),
        skew_micros: AtomicI64::new(0),
        parked: Mutex::default(),
        tasks: Mutex::default(),
    });
    let mut state = shared.seed ^ incarnation.wrapping_mul(0xd6e8_feb8_6659_fd93);
    for byte in name.bytes() {
        state = mix(state ^ u64::from(byte));
    }
    let env = Env {
        clock: Arc::new(SimClock(Arc::clone(&control))),
        random: Arc::new(SimRandom(AtomicU64::new(state))),
        tasks: Arc::new(SimTasks(Arc::clone(&control))),
        planted: Planted::NONE,
    };
    Process { name: name.to_owned(), env, control }
}

/// A simulated process.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its name.
    pub name: String,
    /// Its seams.
    pub env: Env,
    control: Arc<Control>,
}

impl Process {
    /// Kills it: every task stops where it is, at once.
    pub fn kill(&self) {
        self.control.dead.store(true, Ordering::Relaxed);
        for task in self.control.tasks.lock().drain(..) {
            task.abort();
        }
        self.control.wake();
    }

    /// Stops it as SIGSTOP does.
    pub fn freeze(&self) {
        self.control.stops.fetch_add(1, Ordering::Relaxed);
        self.control.frozen.store(true, Ordering::Relaxed);
    }

    /// Stops the machine it runs on, its clocks included. Pausing a paused one changes nothing.
    pub fn pause(&self) {
        self.control.stops.fetch_add(1, Ordering::Relaxed);
        let now = self.control.shared.start.elapsed();
        self.control.pause.lock().since.get_or_insert(now);
    }

    /// Whether its machine is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.control.pause.lock().since.is_some()
    }

    /// Lets the machine go on where it was paused. With `wall_jumps` its wall clock is put right at
    /// once (as by the host), otherwise it stays behind by the length of the pause.
    pub fn resume(&self, wall_jumps: bool) {
        let paused = self.control.pause.lock().end(self.control.shared.start.elapsed());
        if !wall_jumps {
            let micros = i64::try_from(paused.as_micros()).unwrap_or(i64::MAX);
            self.control.skew_micros.fetch_sub(micros, Ordering::Relaxed);
        }
        self.control.wake();
    }

    /// How often it was frozen or paused so far: a call during which this changed may have lasted
    /// for any time.
    #[must_use]
    pub fn stops(&self) -> u64 {
        self.control.stops.load(Ordering::Relaxed)
    }

    /// Resolves while the process runs: not while it is frozen or paused, and never once it is
    /// dead. For what acts on behalf of the process past its [`Env`].
    pub async fn running(&self) {
        let control = Arc::clone(&self.control);
        std::future::poll_fn(move |context| {
            if control.dead.load(Ordering::Relaxed) {
                return Poll::Pending;
            }
            if control.stopped() {
                control.parked.lock().push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.control.frozen.store(false, Ordering::Relaxed);
        self.control.wake();
    }

    /// Whether it was killed.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.control.dead.load(Ordering::Relaxed)
    }

    /// Sets its wall clock `micros` before (negative) or after the world's.
    pub fn set_clock_skew(&self, micros: i64) {
        self.control.skew_micros.store(micros, Ordering::Relaxed);
    }

    /// Runs `future` as a task of this process; resolves to its value, or to `None` when the
    /// process died before.
    pub fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> BoxFuture<'static, Option<T>> {
        let (reply, value) = futures::channel::oneshot::channel();
        self.env.spawn("client", async move {
            // The waiter may have lost interest.
            let _ = reply.send(future.await);
        });
        Box::pin(async move { value.await.ok() })
    }
}

#[derive(Debug)]
struct Control {
    shared: Arc<Shared>,
    dead: AtomicBool,
    frozen: AtomicBool,
    pause: Mutex<Pause>,
    stops: AtomicU64,
    skew_micros: AtomicI64,
    parked: Mutex<Vec<Waker>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// Pauses of a process so far, in world time.
#[derive(Debug, Default)]
struct Pause {
    since: Option<Duration>,
    total: Duration,
}

impl Pause {
    /// Ends the pause under way at `now`; how long it was.
    fn end(&mut self, now: Duration) -> Duration {
        let paused = self.since.take().map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.total += paused;
        paused
    }
}

impl Control {
    fn stopped(&self) -> bool {
        self.frozen.load(Ordering::Relaxed) || self.pause.lock().since.is_some()
    }

    /// The process's monotonic time: world time without its pauses.
    fn monotonic(&self) -> Duration {
        let pause = self.pause.lock();
        pause.since.unwrap_or_else(|| self.shared.start.elapsed()).saturating_sub(pause.total)
    }

    fn wake(&self) {
        let parked = std::mem::take(&mut *self.parked.lock());
        for waker in parked {
            waker.wake();
        }
    }
}

/// A task of a process: polled only while the process lives and runs.
struct Gated {
    control: Arc<Control>,
    inner: Option<BoxFuture<'static, ()>>,
}

impl Future for Gated {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.control.dead.load(Ordering::Relaxed) {
            self.inner = None;
            return Poll::Ready(());
        }
        if self.control.stopped() {
            self.control.parked.lock().push(context.waker().clone());
            return Poll::Pending;
        }
        let polls = self.control.shared.polls.fetch_add(1, Ordering::Relaxed);
        assert!(polls < POLL_LIMIT, "seed {}: no progress", self.control.shared.seed);
        match &mut self.inner {
            Some(inner) => inner.as_mut().poll(context),
            None => Poll::Ready(()),
        }
    }
}

struct SimClock(Arc<Control>);

impl fmt::Debug for SimClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimClock")
    }
}

impl Clock for SimClock {
    fn wall_micros(&self) -> u64 {
        let elapsed = u64::try_from(self.0.shared.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        (START_WALL_MICROS + elapsed)
            .saturating_add_signed(self.0.skew_micros.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let control = Arc::clone(&self.0);
        let wake = control.monotonic().saturating_add(duration);
        let timer = tokio::time::sleep(duration);
        Box::pin(async move {
            timer.await;
            // A pause in between does not count.
            loop {
                let left = wake.saturating_sub(control.monotonic());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left).await;
            }
        })
    }
}

#[derive(Debug)]
struct SimRandom(AtomicU64);

/// SplitMix64's output function (Steele, Lea, Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random for SimRandom {
    fn next_u64(&self) -> u64 {
        const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
        mix(self.0.fetch_add(GAMMA, Ordering::Relaxed).wrapping_add(GAMMA))
    }
}

struct SimTasks(Arc<Control>);

impl fmt::Debug for SimTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimTasks")
    }
}

#[derive(Debug)]
struct SimTask(AbortHandle);

impl Task for SimTask {
    fn abort(&self) {
        self.0.abort();
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Spawn for SimTasks {
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) -> Arc<dyn Task> {
        let task = Gated { control: Arc::clone(&self.0), inner: Some(future) };
        let handle = tokio::spawn(task).abort_handle();
        let mut tasks = self.0.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(handle.clone());
        Arc::new(SimTask(handle))
    }

    fn spawn_blocking(&self, _name: &'static str, work: Box<dyn FnOnce() + Send + 'static>) {
        if !self.0.dead.load(Ordering::Relaxed) {
            work();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn world_of_one_seed_runs_the_same_twice_and_another_differs() {
        let run = |seed| {
            World::run(seed, false, async |world| {
                let mut waits = Vec::new();
                for name in ["a", "b", "c"] {
                    let process = world.process(name, 0);
                    let (world, env) = (world.clone(), process.env.clone());
                    waits.push(process.run(async move {
                        for _ in 0..20 {
                            env.clock.sleep(env.jitter(Duration::from_millis(50))).await;
                            world.trace(|| format!("{:?}", env.random.next_u64()));
                        }
                    }));
                }
                for wait in waits {
                    wait.await.expect("ends");
                }
                world.trace_hash()
            })
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
        assert_eq!(run(1).1, 60);
    }

    #[test]
    fn killed_process_does_nothing_more() {
        World::run(1, false, async |world| {
            let process = world.process("p", 0);
            let count = Arc::new(AtomicU64::new(0));
            let (env, counter) = (process.env.clone(), Arc::clone(&count));
            let end = process.run(async move {
                loop {
                    env.clock.sleep(Duration::from_millis(10)).await;
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            });
            world.sleep(Duration::from_millis(105)).await;
            process.kill();
            let at_death = count.load(Ordering::Relaxed);
            assert_eq!(at_death, 10);
            assert!(end.await.is_none(), "who waits for a dead process learns it");
            world.sleep(Duration::from_secs(1)).await;
            assert_eq!(count.load(Ordering::Relaxed), at_death);
            assert!(process.is_dead());
        });
    }

    #[test]
    fn frozen_process_misses_its_timers_and_sees_time_gone() {
        World::run(1, false, async |world| {
            let process = world.process("p", 0);
            let env = process.env.clone();
            let woken = process.run(async move {
                env.clock.sleep(Duration::from_millis(10)).await;
                env.clock.monotonic()
            });
            process.freeze();
            world.sleep(Duration::from_secs(3600)).await;
            process.thaw();
            assert!(woken.await.expect("alive") >= Duration::from_secs(3600));
        });
    }

    #[test]
    fn paused_process_sees_no_time_gone_and_its_timers_wait_as_long_as_they_would_have() {
        for wall_jumps in [true, false] {
            World::run(1, false, async |world| {
                let process = world.process("p", 0);
                let env = process.env.clone();
                let wall = env.clock.wall_micros();
                let woken = process.run(async move {
                    env.clock.sleep(Duration::from_secs(10)).await;
                    (env.clock.monotonic(), env.clock.wall_micros())
                });
                world.sleep(Duration::from_secs(4)).await;
                process.pause();
                world.sleep(Duration::from_secs(3600)).await;
                process.resume(wall_jumps);
                let (monotonic, then) = woken.await.expect("alive");
                assert_eq!(monotonic, Duration::from_secs(10));
                assert_eq!(world.now(), Duration::from_secs(3610));
                let gone = if wall_jumps { 3610 } else { 10 };
                assert_eq!(then - wall, gone * 1_000_000);
            });
        }
    }

    #[test]
    fn running_waits_while_the_process_is_stopped_and_for_ever_once_it_is_dead() {
        World::run(1, false, async |world| {
            let process = world.process("p", 0);
            process.freeze();
            process.pause();
            let mut running = std::pin::pin!(process.running());
            assert!(futures::poll!(running.as_mut()).is_pending());
            process.thaw();
            assert!(futures::poll!(running.as_mut()).is_pending());
            process.resume(true);
            assert!(futures::poll!(running.as_mut()).is_ready());
            process.kill();
            let mut running = std::pin::pin!(process.running());
            assert!(futures::poll!(running.as_mut()).is_pending());
        });
    }

    #[test]
    fn skewed_clock_jumps_while_monotonic_time_does_not() {
        World::run(1, false, async |world| {
            let process = world.process("p", 0);
            let (wall, mono) = (process.env.clock.wall_micros(), process.env.clock.monotonic());
            process.set_clock_skew(-5_000_000);
            assert_eq!(process.env.clock.wall_micros(), wall - 5_000_000);
            assert_eq!(process.env.clock.monotonic(), mono);
        });
    }
}
