//! Closed times, which plane `timestamp` waits for: asked for where they are waited for, and closed
//! where nothing else is committed.
//!
//! ```text
//! k, on timestamp                                         j
//! T of i at t waits, j's stream is at c < t ── close t ─► nothing committed since t? ─ an entry that holds nothing ─► its log is at t
//!                                                         the next second, too: one entry a beat in which nothing was committed
//! T has its turn ◄──────────── the stream: position at t ─────────────────────────────────────────────────────────────┘
//! ```
//! # Invariants
//! - What closes time is an entry of the log, so that it holds whoever owns the log next, after any
//!   crash: nobody promises anything.
//! - Who asks for nothing costs nothing, and nobody asks while nothing waits.
//!
//! # On failure
//! A region that cannot close its time says why when it is asked again. One that does not know the
//! question is of an older version: pasts decide until it is upgraded, and the status says so. One
//! that cannot be reached is waited for.
//!
//! # Limits
//! Whoever asks moves the time of whom it asks up to its own newest label, as far as that region
//! lets a label move it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use telesto_common::{RegionId, Timestamp};
use telesto_txn::service::CommitWrites;
use telesto_txn::{Database as _, Reads};
use tokio::sync::{Notify, watch};

use crate::error::{Error, Result};
use crate::question::{CLOSE, Question};
use crate::shared::Shared;

/// For so long time is closed, beat by beat, for who has asked: a round trip around the world, and
/// more.
const LASTING: Duration = Duration::from_secs(1);
/// Positions are told so often within a beat to who has asked.
const PROMPT: u32 = 5;
/// Before a region is asked again that did not know what it was asked, or could not be reached.
const AGAIN: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);
/// What has waited for so long is told in the status.
const LONG: Duration = Duration::from_secs(1);

/// How a peer answers.
#[derive(Debug)]
enum Told {
    /// It closes its time.
    Closes,
    /// It would, but says why it cannot now.
    Cannot(String),
    /// It is of a version that does not know of it.
    Unknown,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Whose times are waited for here, and up to when.
    lacking: watch::Sender<BTreeMap<RegionId, Timestamp>>,
    told: Mutex<BTreeMap<RegionId, Told>>,
    /// By who has asked for this region's time: until when it is closed for them (monotonic).
    asked: Mutex<BTreeMap<RegionId, Duration>>,
    /// The greatest time that was asked for.
    wanted: Mutex<Timestamp>,
    news: Notify,
    /// Why time cannot be closed here now.
    trouble: Mutex<Option<String>>,
}

impl Times {
    /// These times are waited for here.
    pub fn lack(&self, lacking: BTreeMap<RegionId, Timestamp>) {
        self.lacking.send_if_modified(|known| {
            let news = *known != lacking;
            *known = lacking;
            news
        });
    }

    /// How long a position may wait, of a beat, before it is told `to`.
    pub fn beat_for(&self, to: RegionId, beat: Duration, now: Duration) -> Duration {
        let asks = self.asked.lock().get(&to).is_some_and(|until| now < *until);
        if asks { beat / PROMPT } else { beat }
    }

    /// Until when somebody asks.
    fn until(&self) -> Option<Duration> {
        self.asked.lock().values().max().copied()
    }
}

impl Shared {
    /// Region `from` waits for this region's time to be closed up to `at`. What prevents it;
    /// nothing: it will be.
    pub(crate) fn close_for(&self, from: RegionId, at: Timestamp) -> Bytes {
        let times = &self.times;
        if at > Timestamp::ZERO {
            times.asked.lock().insert(from, self.env.clock.monotonic() + LASTING);
            {
                let mut wanted = times.wanted.lock();
                *wanted = (*wanted).max(at);
            }
            times.news.notify_one();
        }
        times.trouble.lock().clone().map(Bytes::from).unwrap_or_default()
    }

    /// What is wrong with the time of `peer`, for people.
    pub(crate) fn trouble_with_time_of(&self, peer: RegionId) -> Option<String> {
        let told = self.times.told.lock();
        let cannot = match told.get(&peer) {
            Some(Told::Unknown) => {
                return Some(
                    "it is of a version that does not close its time for others: plane timestamp keeps the order of matrix only, until that region is upgraded"
                        .to_owned(),
                );
            }
            Some(Told::Cannot(reason)) => format!("; it says: {reason}"),
            _ => String::new(),
        };
        drop(told);
        let since = self.inbox.lock().lacks_since(peer)?;
        let waited = self.env.clock.wall_micros().saturating_sub(since);
        let waited = Duration::from_micros(waited);
        (waited >= LONG).then(|| {
            format!(
                "what other regions sent has waited {} s for its time (plane timestamp){cannot}",
                waited.as_secs()
            )
        })
    }

    /// Has its time closed up to `at` by an entry that holds nothing.
    pub(crate) async fn close_time(&self, at: Timestamp) -> Result<()> {
        let writes = CommitWrites::Inline(Vec::new());
        self.store.commit(writes, Reads::default(), at.prev()).await?;
        metrics::counter!("telesto_regions_times_closed_total").increment(1);
        Ok(())
    }
}

/// Closes this region's time while others ask for it.
pub(crate) async fn close(shared: Arc<Shared>) {
    let (times, beat) = (&shared.times, shared.config.beat);
    loop {
        let news = times.news.notified();
        let now = shared.env.clock.monotonic();
        if times.until().is_none_or(|until| now >= until) {
            news.await;
            continue;
        }
        let (newest, wall) = (shared.engine.applied().1, shared.env.clock.wall_micros());
        let micros = u64::try_from(beat.as_micros()).unwrap_or(u64::MAX);
        let wanted = *times.wanted.lock();
        let is_idle = newest.wall_micros().saturating_add(micros) <= wall;
        if newest < wanted || is_idle {
            let closed = shared.close_time(wanted).await;
            if let Err(error) = &closed {
                tracing::warn!(%error, "this region's time cannot be closed for others; trying again");
            }
            *times.trouble.lock() = closed.err().map(|error| error.to_string());
        }
        // At the end of a beat it is looked at again.
        let _ = shared.env.within_timeout(beat, "waiting for who asks for time", news).await;
    }
}

/// On plane `timestamp`: asks `of` for its time when something waits for it.
pub(crate) async fn ask(shared: Arc<Shared>, of: RegionId) {
    let mut lacking = shared.times.lacking.subscribe();
    // The first time, whether it knows of it.
    let mut at = Timestamp::ZERO;
    loop {
        let answer = shared.question(of, &Question::Close { at }).await;
        let pause = match heard(&shared, of, answer) {
            Ok(()) => shared.config.beat,
            Err(pause) => pause,
        };
        shared.env.clock.sleep(pause).await;
        let wanted = async {
            let is_wanted = |lacking: &BTreeMap<_, _>| lacking.contains_key(&of);
            let lacking = lacking.wait_for(is_wanted).await.ok()?;
            lacking.get(&of).copied()
        };
        at = if pause == AGAIN {
            Timestamp::ZERO
        } else {
            let Some(wanted) = wanted.await else { return };
            wanted
        };
    }
}

/// Notes what `of` has answered; when to ask again if that was no use.
fn heard(
    shared: &Shared,
    of: RegionId,
    answer: Result<Bytes>,
) -> std::result::Result<(), Duration> {
    let (told, pause) = match answer {
        Ok(why) if why.is_empty() => (Told::Closes, Ok(())),
        Ok(why) => (Told::Cannot(String::from_utf8_lossy(&why).into_owned()), Ok(())),
        Err(Error::Refused { reason, .. }) if is_unknown(&reason) => (Told::Unknown, Err(AGAIN)),
        Err(_) => return Err(PAUSE),
    };
    let mut all = shared.times.told.lock();
    all.insert(of, told);
    let refused = all.values().any(|told| matches!(told, Told::Unknown));
    drop(all);
    if shared.inbox.lock().go_by_pasts(refused) {
        if refused {
            tracing::warn!(%of, "this region is of a version that does not close its time for others: plane timestamp keeps the order of matrix only, until it is upgraded");
        }
        shared.news.notify_one();
    }
    pause
}

/// Whether a region that refuses for this reason does not know the question.
fn is_unknown(reason: &str) -> bool {
    reason.contains(&crate::question::unknown(CLOSE))
}
