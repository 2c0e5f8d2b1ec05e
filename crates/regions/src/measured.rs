//! What is measured of the links between regions, and told to the other regions: the input for
//! `telesto geo plan`.
//!
//! ```text
//! sender i→k: round trips, transactions, bytes ─┐
//! applier at i: visible after, of each source   ├─► report of i ─► every peer, each [`TELL`] ─► telesto_links shows all pairs
//! ```
//! # Invariants
//! - A round trip is the least of the newest [`ROUND_TRIPS`]: what the receiver's queues add is not
//!   the link's.
//! - A report is told as it is; nothing is decided by it.
//!
//! # On failure
//! A region that cannot be reached hears none; the last one of a region that is away stays, with
//! its age.
//!
//! # Limits
//! In memory, since the runner began. Visibility is of the newest [`SAMPLES`] transactions within
//! [`WITHIN`], by the two regions' clocks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{BufMut as _, BytesMut};
use parking_lot::Mutex;
use telesto_common::RegionId;
use telesto_common::cursor::{Cursor, Malformed, put_varint};
use telesto_txn::regions::LinkView;

use crate::shared::Shared;
use crate::wire::Request;

/// How often a region tells what it has measured.
const TELL: Duration = Duration::from_secs(10);
/// Round trips kept of each peer.
const ROUND_TRIPS: usize = 256;
/// Transactions kept of each peer.
const SAMPLES: usize = 1024;
/// Samples count for so long.
const WITHIN: Duration = Duration::from_secs(60);

/// What one region has measured with one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measures {
    pub peer: RegionId,
    /// To the peer and back, microseconds; 0: not known yet.
    pub round_trip: u64,
    /// Transactions sent to the peer, their bytes as sent, and how much of the unpacked bytes tells
    /// of the past and of positions.
    pub sent: u64,
    pub sent_bytes: u64,
    pub metadata_bytes: u64,
    /// How long the peer's transactions take from their commit to being visible here, microseconds:
    /// mean, median, 99th percentile. 0: nothing came.
    pub visible: [u64; 3],
}

/// What is measured with one peer.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    round_trips: Mutex<VecDeque<u64>>,
    visible: Mutex<VecDeque<(Duration, u64)>>,
}

impl Meter {
    /// A request was answered after `took`.
    pub fn answered(&self, took: Duration) {
        let mut trips = self.round_trips.lock();
        if trips.len() == ROUND_TRIPS {
            trips.pop_front();
        }
        trips.push_back(micros(took).max(1));
    }

    /// A transaction of the peer is visible, `took_micros` after its commit.
    pub fn saw(&self, now: Duration, took_micros: u64) {
        let mut visible = self.visible.lock();
        if visible.len() == SAMPLES {
            visible.pop_front();
        }
        visible.push_back((now, took_micros));
    }

    fn round_trip(&self) -> u64 {
        self.round_trips.lock().iter().copied().min().unwrap_or_default()
    }

    fn visible(&self, now: Duration) -> [u64; 3] {
        let mut samples: Vec<u64> = {
            let visible = self.visible.lock();
            let new = visible.iter().filter(|(at, _)| *at + WITHIN > now);
            new.map(|(_, took)| *took).collect()
        };
        let Some(last) = samples.len().checked_sub(1) else { return [0; 3] };
        samples.sort_unstable();
        let mean = samples.iter().sum::<u64>() / samples.len() as u64;
        [mean, samples[last / 2], samples[last * 99 / 100]]
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// What the others have told: by region, when it came and what it says.
#[derive(Debug, Default)]
pub(crate) struct Reports(Mutex<BTreeMap<RegionId, (Duration, Vec<Measures>)>>);

impl Reports {
    pub fn heard(&self, now: Duration, from: RegionId, report: Vec<Measures>) {
        self.0.lock().insert(from, (now, report));
    }
}

/// A report as it is sent.
pub(crate) fn put(report: &[Measures], out: &mut BytesMut) {
    put_varint(out, report.len() as u64);
    for of in report {
        out.put_u16_le(of.peer.0);
        for number in [of.round_trip, of.sent, of.sent_bytes, of.metadata_bytes] {
            put_varint(out, number);
        }
        of.visible.iter().for_each(|number| put_varint(out, *number));
    }
}

pub(crate) fn take(cursor: &mut Cursor) -> Result<Vec<Measures>, Malformed> {
    let count = cursor.count(9)?;
    let mut report = Vec::with_capacity(count);
    for _ in 0..count {
        report.push(Measures {
            peer: RegionId(cursor.u16()?),
            round_trip: cursor.varint()?,
            sent: cursor.varint()?,
            sent_bytes: cursor.varint()?,
            metadata_bytes: cursor.varint()?,
            visible: [cursor.varint()?, cursor.varint()?, cursor.varint()?],
        });
    }
    Ok(report)
}

impl Shared {
    /// What this region has measured.
    pub(crate) fn report(&self) -> Vec<Measures> {
        let now = self.env.clock.monotonic();
        let of = |(peer, said): (&RegionId, &crate::shared::Peer)| Measures {
            peer: *peer,
            round_trip: said.meter.round_trip(),
            sent: said.sent.load(Ordering::Relaxed),
            sent_bytes: said.sent_bytes.load(Ordering::Relaxed),
            metadata_bytes: said.metadata_bytes.load(Ordering::Relaxed),
            visible: said.meter.visible(now),
        };
        self.peers.iter().map(of).collect()
    }

    /// Every pair of which this region knows something, from its own measures and the others'
    /// reports.
    pub(crate) fn links(&self) -> Vec<LinkView> {
        let now = self.env.clock.monotonic();
        let mut reports = self.reports.0.lock().clone();
        reports.insert(self.config.me, (now, self.report()));
        let mut links: BTreeMap<(RegionId, RegionId), LinkView> = BTreeMap::new();
        let time = |micros: u64| (micros > 0).then(|| Duration::from_micros(micros));
        for (region, (at, report)) in reports {
            for of in report.into_iter().filter(|of| of.peer != region) {
                let out = links.entry((region, of.peer)).or_default();
                (out.from, out.to) = (region, of.peer);
                out.round_trip = time(of.round_trip);
                out.sent = of.sent;
                out.sent_bytes = of.sent_bytes;
                out.metadata_bytes = of.metadata_bytes;
                out.age = now.saturating_sub(at);
                let back = links.entry((of.peer, region)).or_default();
                (back.from, back.to) = (of.peer, region);
                back.visible = of.visible.map(time);
            }
        }
        links.into_values().collect()
    }
}

/// Tells a peer what was measured, again and again.
pub(crate) async fn tell(shared: Arc<Shared>, to: RegionId) {
    loop {
        shared.env.clock.sleep(TELL).await;
        let report = shared.report();
        if let Some(own) = report.iter().find(|of| of.peer == to) {
            metrics::gauge!("telesto_regions_round_trip_seconds", "to" => to.to_string())
                .set(Duration::from_micros(own.round_trip).as_secs_f64());
        }
        // Who is away hears the next one.
        let _ = shared.ask(to, Request::Measured(report)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_is_the_least_and_visibility_is_of_the_last_minute() {
        let meter = Meter::default();
        assert_eq!((meter.round_trip(), meter.visible(Duration::ZERO)), (0, [0; 3]));
        for millis in [90, 80, 300] {
            meter.answered(Duration::from_millis(millis));
        }
        assert_eq!(meter.round_trip(), 80_000);
        meter.saw(Duration::from_secs(1), 1_000_000);
        for took in 1..=100 {
            meter.saw(Duration::from_secs(70), took);
        }
        assert_eq!(meter.visible(Duration::from_secs(90)), [50, 50, 99]);
        for _ in 0..ROUND_TRIPS {
            meter.answered(Duration::from_millis(100));
        }
        assert_eq!(meter.round_trip(), 100_000, "a way that has become longer is seen");
    }
}
