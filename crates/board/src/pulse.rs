//! Whether the board itself ran, and what time it is for it.
//!
//! # Purpose
//! A board that stood still (stopped, starved, on a paused machine) saw nothing: what it measured
//! across such a gap is its own fault and is thrown away, and time is then unknown.
//!
//! ```text
//!   beats   |.|.|.|.|            |.|.|     every task of the board beats, one does so every 50 ms
//!   epoch    1 1 1 1               2 2     a gap of more than STALL begins the next epoch
//!   op         `-------------------'       begun in 1, ended in 2: not counted
//! ```
//!
//! # Invariants
//! - The board's time never goes back, and goes on with monotonic time; it follows the wall clock
//!   forwards only.
//! - What ends in the epoch in which it was due did so while the board ran.
//!
//! # On failure
//! A wall clock that is set back, or ahead by more than history is kept, is ignored until the board
//! is started again.
//!
//! # Limits
//! Gaps of less than [`STALL`] are not told from a slow target, nor is a task that waits for CPU
//! while others run.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use telesto_common::Env;

/// A gap of the board's own that makes what was under way unknown.
pub(crate) const STALL: Duration = Duration::from_millis(250);
/// How often the board shows itself that it runs.
const BEAT_EVERY: Duration = Duration::from_millis(50);
/// How far the wall clock may run ahead before the board follows it.
const STEP_MICROS: i64 = 1_000_000;
/// A step beyond this is a clock that is wrong: history is kept for 368 days, and following it
/// would drop all of it.
const LONGEST_STEP_MICROS: i64 = 368 * 86_400 * 1_000_000;

/// The board's own pulse. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Pulse {
    env: Env,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    last: Duration,
    epoch: u64,
    /// Wall time at the origin of monotonic time, microseconds.
    anchor: i64,
}

/// A moment, as [`Pulse::beat`] saw it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Beat {
    /// Monotonic time.
    pub now: Duration,
    /// The stretch without a gap that this is in.
    pub epoch: u64,
}

impl Pulse {
    pub fn new(env: &Env) -> Self {
        let now = env.clock.monotonic();
        let anchor = wall(env) - signed(now);
        let state = State { last: now, epoch: 0, anchor };
        Self { env: env.clone(), state: Arc::new(Mutex::new(state)) }
    }

    /// Says that the board runs; finds out whether it did until now.
    pub fn beat(&self) -> Beat {
        let mut state = self.state.lock();
        // Looked at under the lock: another's beat would otherwise be after this one's time.
        let now = self.env.clock.monotonic();
        let ahead = wall(&self.env) - (state.anchor + signed(now));
        let stepped = ahead > STEP_MICROS && ahead < LONGEST_STEP_MICROS;
        if stepped {
            state.anchor += ahead;
        }
        if stepped || now.saturating_sub(state.last) > STALL {
            state.epoch += 1;
        }
        state.last = now;
        Beat { now, epoch: state.epoch }
    }

    /// The board's time at a monotonic time, microseconds since 1970.
    pub fn micros_at(&self, monotonic: Duration) -> i64 {
        self.state.lock().anchor + signed(monotonic)
    }

    /// The board's time, whole seconds since 1970.
    pub fn seconds(&self) -> i64 {
        self.micros_at(self.env.clock.monotonic()).div_euclid(1_000_000)
    }

    /// Beats until it is dropped.
    pub async fn run(self) {
        loop {
            self.beat();
            self.env.clock.sleep(BEAT_EVERY).await;
        }
    }
}

fn wall(env: &Env) -> i64 {
    i64::try_from(env.clock.wall_micros()).unwrap_or(i64::MAX / 2)
}

fn signed(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use telesto_testkit::World;

    use super::*;

    #[test]
    fn freeze_and_pause_of_the_board_begin_an_epoch_and_a_short_wait_does_not() {
        World::run(1, false, async |world| {
            let process = world.process("board", 0);
            let pulse = Pulse::new(&process.env);
            process.env.spawn("pulse", pulse.clone().run());
            world.sleep(Duration::from_secs(5)).await;
            assert_eq!(pulse.beat().epoch, 0);
            process.freeze();
            world.sleep(Duration::from_secs(1)).await;
            process.thaw();
            assert_eq!(pulse.beat().epoch, 1);
            // The machine's host stops it: its monotonic clock does not see that, its wall clock
            // does.
            process.pause();
            world.sleep(Duration::from_secs(60)).await;
            process.resume(true);
            assert_eq!(pulse.beat().epoch, 2);
            let wall = process.env.clock.wall_micros() / 1_000_000;
            assert_eq!(pulse.seconds(), wall as i64);
        });
    }

    #[test]
    fn time_of_a_clock_set_back_or_ahead_by_years_goes_on() {
        World::run(1, false, async |world| {
            let process = world.process("board", 0);
            let pulse = Pulse::new(&process.env);
            let before = pulse.seconds();
            for days in [-1, 20_000] {
                process.set_clock_skew(days * 86_400_000_000);
                assert_eq!(pulse.beat().epoch, 0);
                assert_eq!(pulse.seconds(), before);
            }
            process.set_clock_skew(86_400_000_000);
            assert_eq!((pulse.beat().epoch, pulse.seconds()), (1, before + 86_400));
        });
    }
}
