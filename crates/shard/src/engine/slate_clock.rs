//! Our clock as SlateDB takes it.
//!
//! # Invariants
//! Never goes back: wall time at the start plus monotonic time since. SlateDB sleeps up to 10 s and
//! then closes the database when its clock steps back.
//!
//! Long tickers (manifest polls we do not want) do not tick at once, as SlateDB's own would: an
//! opened checkpoint makes no request until it is used.

use std::fmt::{Debug, Formatter};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use slatedb_common::clock::{SystemClock, SystemClockTicker};
use telesto_common::Env;

/// Tickers at least this long begin with a wait.
const LONG_TICKER: Duration = Duration::from_secs(600);

pub(super) struct SlateClock {
    env: Env,
    wall_start: DateTime<Utc>,
    monotonic_start: Duration,
    quiet: QuietClock,
}

/// A clock that stands still: a ticker over it always waits its whole interval.
#[derive(Debug)]
struct QuietClock(Env);

impl Debug for SlateClock {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlateClock").field("wall_start", &self.wall_start).finish()
    }
}

impl SlateClock {
    pub(super) fn new(env: &Env) -> Arc<Self> {
        let micros = i64::try_from(env.clock.wall_micros()).unwrap_or(i64::MAX);
        Arc::new(Self {
            env: env.clone(),
            wall_start: DateTime::from_timestamp_micros(micros).unwrap_or(DateTime::UNIX_EPOCH),
            monotonic_start: env.clock.monotonic(),
            quiet: QuietClock(env.clone()),
        })
    }
}

impl SystemClock for SlateClock {
    fn now(&self) -> DateTime<Utc> {
        let since = self.env.clock.monotonic().saturating_sub(self.monotonic_start);
        self.wall_start + TimeDelta::from_std(since).unwrap_or(TimeDelta::MAX)
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.env.clock.sleep(duration)
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        if duration >= LONG_TICKER {
            SystemClockTicker::new(&self.quiet, duration)
        } else {
            SystemClockTicker::new(self, duration)
        }
    }
}

impl SystemClock for QuietClock {
    fn now(&self) -> DateTime<Utc> {
        DateTime::<Utc>::MIN_UTC
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        self.0.clock.sleep(duration)
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, duration)
    }
}
