//! For how long a writer of the checkpoint was away, on a machine whose clocks may stand still or
//! jump.
//!
//! # Invariants
//! Time that passed unseen counts as too much: where the two clocks disagree, nobody knows how long
//! it was.
//!
//! # Limits
//! A machine that was paused and both of whose clocks stay behind is not found out.

use std::time::Duration;

use telesto_common::Env;

/// How far wall clock and monotonic clock may differ on the time since the last touch: more is a
/// machine that was paused, or a clock that was set, and nobody knows for how long the writer was
/// away.
const CLOCKS_APART: Duration = Duration::from_secs(300);

/// A moment on both clocks. The monotonic one stands still while a hypervisor has paused the
/// machine, the other one jumps when it is set: only where they agree on the time between two
/// moments is it known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Instant {
    monotonic: Duration,
    wall_micros: u64,
}

impl Instant {
    pub(super) fn now(env: &Env) -> Self {
        Self { monotonic: env.clock.monotonic(), wall_micros: env.clock.wall_micros() }
    }

    /// Whether too much time may have passed since. A wall clock that was set by more than
    /// [`CLOCKS_APART`], whichever way, counts as too much: opening a writer again costs some
    /// requests.
    pub(super) fn is_stale(&self, env: &Env, after: Duration) -> bool {
        let now = Self::now(env);
        let passed = now.monotonic.saturating_sub(self.monotonic);
        let by_wall = i128::from(now.wall_micros) - i128::from(self.wall_micros);
        let passed_micros = i128::try_from(passed.as_micros()).unwrap_or(i128::MAX);
        let apart = u64::try_from((by_wall - passed_micros).unsigned_abs()).unwrap_or(u64::MAX);
        passed > after || Duration::from_micros(apart) > CLOCKS_APART
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::future::BoxFuture;
    use telesto_common::env::Clock;

    use super::*;

    #[derive(Debug)]
    struct Fixed(Duration, u64);

    impl Clock for Fixed {
        fn wall_micros(&self) -> u64 {
            self.1
        }

        fn monotonic(&self) -> Duration {
            self.0
        }

        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::ready(()))
        }
    }

    #[tokio::test]
    async fn writer_is_stale_by_either_clock_and_when_they_disagree() {
        let at = |monotonic: u64, wall: u64| {
            let clock = Fixed(Duration::from_secs(monotonic), wall * 1_000_000);
            Env { clock: Arc::new(clock), ..telesto_runtime::env() }
        };
        let touched = Instant::now(&at(1_000, 10_000));
        for (monotonic, wall, stale) in [
            (1_000, 10_000, false),
            (1_800, 10_800, false),
            (2_000, 11_000, true),
            // Paused: the monotonic clock stood still.
            (1_001, 14_000, true),
            // Set back: nobody knows.
            (1_001, 5_000, true),
            (1_100, 10_250, false),
        ] {
            let found = touched.is_stale(&at(monotonic, wall), Duration::from_secs(900));
            assert_eq!(found, stale, "{monotonic} {wall}");
        }
    }
}
