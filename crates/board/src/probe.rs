//! Asks one target one thing, on schedule.
//!
//! ```text
//!   schedule   due 0   due 1   due 2 …        every 1/rate s, whatever became of those before
//!                |       |
//!              waiting (bounded)              full: counted as not begun
//!                |
//!              lanes  (bounded, one operation each; opened when none is idle, the last used first)
//!                |
//!              end - due -> history           time over: counted as timed out, or not begun when never sent
//! ```
//!
//! # Invariants
//! - The schedule waits for nobody.
//! - An operation that was due ends in exactly one count: succeeded, failed, or not probed.
//! - Waiting operations and lanes are bounded; a task runs only while there is work.
//!
//! # On failure
//! A lane that broke or whose operation timed out is dropped; the next operation opens another as
//! part of its own time. Where the board's own system lets it open none, the operation was not
//! probed: the target has not failed.
//!
//! # Limits
//! Records are drawn uniformly. An operation that timed out may still take effect.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::Env;
use telesto_common::limits::Deadline;

use crate::history::Series;
use crate::pulse::{Pulse, STALL};
use crate::target::{Failure, Kind, Lane, Operation, Target, belongs, value};

/// How to ask.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    /// Between two operations.
    pub interval: Duration,
    /// The first one is due so long after the start.
    pub offset: Duration,
    /// From when an operation is due until it is given up.
    pub timeout: Duration,
    /// Records that there are.
    pub records: u64,
    /// Most lanes.
    pub lanes: usize,
    /// Most operations that wait for a lane.
    pub waiting: usize,
}

/// One target and one operation.
pub(crate) struct Probe {
    env: Env,
    target: Arc<dyn Target>,
    operation: Operation,
    asking: Asking,
    series: Arc<Series>,
    pulse: Pulse,
    /// Off while records are loaded: reads would miss them.
    on: AtomicBool,
    stopped: AtomicBool,
    under_way: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Due>,
    idle: Vec<Box<dyn Lane>>,
    lanes: usize,
}

/// An operation that is due.
#[derive(Clone, Copy)]
struct Due {
    at: Duration,
    micros: i64,
    epoch: u64,
}

impl Probe {
    pub fn new(
        env: Env,
        target: Arc<dyn Target>,
        asking: Asking,
        series: Arc<Series>,
        pulse: Pulse,
    ) -> Self {
        Self {
            env,
            target,
            operation: series.key.operation,
            asking,
            series,
            pulse,
            on: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            under_way: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    /// Begins or suspends asking; what is due while it is suspended is not probed.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Nothing more becomes due.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Operations that were due and have not ended.
    pub fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Relaxed)
    }

    /// The interval that each operation stands for.
    pub fn interval(&self) -> Duration {
        self.asking.interval
    }

    /// Follows the schedule until it is stopped.
    pub async fn run(self: Arc<Self>) {
        let first = self.pulse.beat();
        let begun = first.now + self.asking.offset;
        let (mut epoch, mut next) = (first.epoch, 0_u64);
        while !self.stopped.load(Ordering::Relaxed) {
            let due = begun + self.after(next);
            let beat = self.pulse.beat();
            let late = beat.now.saturating_sub(due);
            if beat.epoch != epoch || late > STALL {
                // The board stood still: whatever was due meanwhile was not asked when it was due.
                epoch = beat.epoch;
                let missed = if due > beat.now { 0 } else { self.within(late) + 1 };
                self.series.unprobed(missed);
                next += missed;
            } else if due > beat.now {
                self.env.clock.sleep(due - beat.now).await;
            } else {
                next += 1;
                self.due(due, epoch);
            }
        }
    }

    /// How many operations become due in `time`, the one at its beginning aside.
    fn within(&self, time: Duration) -> u64 {
        let intervals = time.as_nanos() / self.asking.interval.as_nanos().max(1);
        u64::try_from(intervals).unwrap_or(u64::MAX / 2)
    }

    /// When operation `n` is due, after the first.
    fn after(&self, n: u64) -> Duration {
        let nanos = self.asking.interval.as_nanos() * u128::from(n);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    fn due(self: &Arc<Self>, at: Duration, epoch: u64) {
        if !self.on.load(Ordering::Relaxed) {
            self.series.unprobed(1);
            return;
        }
        let due = Due { at, micros: self.pulse.micros_at(at), epoch };
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let lane = {
            let mut state = self.state.lock();
            if state.waiting.len() >= self.asking.waiting {
                drop(state);
                let most = self.asking.waiting;
                let why = format!("{most} operations already wait for the target");
                return self.ended(due, Err(Failure::new(Kind::NotBegun, why)));
            }
            state.waiting.push_back(due);
            match state.idle.pop() {
                Some(lane) => Some(lane),
                None if state.lanes < self.asking.lanes => {
                    state.lanes += 1;
                    None
                }
                // The lanes that there are will come to it.
                None => return,
            }
        };
        self.env.spawn("board lane", Arc::clone(self).serve(lane));
    }

    /// Does what waits; keeps the lane for later, or gives its place up.
    async fn serve(self: Arc<Self>, mut lane: Option<Box<dyn Lane>>) {
        loop {
            let due = {
                let mut state = self.state.lock();
                match state.waiting.pop_front() {
                    Some(due) => due,
                    None => {
                        match lane {
                            Some(lane) => state.idle.push(lane),
                            None => state.lanes -= 1,
                        }
                        return;
                    }
                }
            };
            lane = self.perform(due, lane).await;
        }
    }

    async fn perform(&self, due: Due, lane: Option<Box<dyn Lane>>) -> Option<Box<dyn Lane>> {
        let deadline = Deadline::at(due.at + self.asking.timeout);
        if deadline.passed(self.env.clock.monotonic()) {
            let why = "its time was over before it could be sent";
            self.ended(due, Err(Failure::new(Kind::NotBegun, why)));
            return lane;
        }
        let asked = self.env.within(deadline, "an operation", self.ask(lane)).await;
        let (lane, outcome) = asked.unwrap_or_else(|_| {
            let why = format!("no answer within {:?}", self.asking.timeout);
            (None, Err(Failure::new(Kind::TimedOut, why)))
        });
        let latency = self.env.clock.monotonic().saturating_sub(due.at);
        self.ended(due, outcome.map(|()| latency));
        lane
    }

    async fn ask(
        &self,
        lane: Option<Box<dyn Lane>>,
    ) -> (Option<Box<dyn Lane>>, Result<(), Failure>) {
        let mut lane = match lane.filter(|lane| lane.usable()) {
            Some(lane) => lane,
            None => match self.target.open().await {
                Ok(lane) => lane,
                Err(failure) => return (None, Err(failure)),
            },
        };
        let record = self.env.random.next_u64() % self.asking.records.max(1);
        let outcome = match self.operation {
            Operation::Read => lane.read(record).await.and_then(|found| match found {
                Some(found) if belongs(record, &found) => Ok(()),
                Some(_) => {
                    let why = format!("the value read is none of record {record}");
                    Err(Failure::new(Kind::Wrong, why))
                }
                None => Err(Failure::new(Kind::Wrong, format!("record {record} is not there"))),
            }),
            Operation::Update => {
                lane.update(record, &value(record, self.env.random.next_u64())).await
            }
        };
        (Some(lane).filter(|lane| lane.usable()), outcome)
    }

    fn ended(&self, due: Due, outcome: Result<Duration, Failure>) {
        let own = outcome.as_ref().is_err_and(|failure| failure.own);
        if self.pulse.beat().epoch == due.epoch && !own {
            self.series.record(due.micros, outcome, self.asking.interval);
        } else {
            self.series.unprobed(1);
        }
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}
