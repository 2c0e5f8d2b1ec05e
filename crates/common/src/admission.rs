//! Admission: how large a part of new work is turned away, by how long work waits.
//!
//! # Purpose
//! Work that waits longer than its client does is done for nobody, and the client asks for it
//! again: a queue that is once too long keeps itself so, also when what made it long is over. What
//! is turned away at once costs little, and its client knows.
//!
//! # Protocol
//! PIE (RFC 8033): every [`PERIOD`] the share that is turned away is changed by how far the time in
//! the queue is from what it should be, and by how it moves. In small steps while the share is
//! small.
//! ```text
//! share += scale(share) * (1/8 per second * (delay - target) + 5/4 per second * (delay - delay before))
//! ```
//! # Invariants
//! - Nothing is turned away before the delay was above its target for [`BURST`] without a break; a
//!   share of 97 % at most, so that the delay goes on being measured by work that is done.
//! - When the delay is nothing, the share goes to nothing, by itself.
//!
//! # Limits
//! It keeps the delay near its target as long as turning away costs a small part of what the work
//! costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Between two changes of the share.
pub const PERIOD: Duration = Duration::from_millis(50);
/// How long a delay above its target is taken for a burst that ends by itself.
pub const BURST: Duration = Duration::from_secs(1);
/// The largest share that is turned away.
const MOST: f64 = 0.97;
/// By the delay's distance from its target, in seconds.
const BY_DISTANCE: f64 = 0.125;
/// By the delay's change, in seconds.
const BY_CHANGE: f64 = 1.25;
/// Longer delays count as this one, seconds: how long a stall was says nothing of the load.
const LONGEST: f64 = 2.0;

/// Who asks whether to take new work. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<AtomicU32>);

impl Gate {
    /// Whether to turn this piece of new work away; `random`: uniformly distributed bits.
    #[must_use]
    pub fn sheds(&self, random: u64) -> bool {
        let share = self.0.load(Ordering::Relaxed);
        // None is turned away while the share is nothing, whatever the draw.
        (random >> 32) < u64::from(share)
    }

    /// The share of new work that is turned away now, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        f64::from(self.0.load(Ordering::Relaxed)) / f64::from(u32::MAX)
    }
}

/// Sets the share, from delays as they are measured.
#[derive(Debug)]
pub struct Admission {
    gate: Gate,
    target: f64,
    share: f64,
    before: f64,
    /// Since when the delay is above its target.
    above: Option<Duration>,
}

impl Admission {
    /// Nothing waits yet. `target`: how long work may wait for its turn.
    #[must_use]
    pub fn new(target: Duration) -> Self {
        Self {
            gate: Gate::default(),
            target: target.as_secs_f64(),
            share: 0.0,
            before: 0.0,
            above: None,
        }
    }

    /// What is asked about new work.
    #[must_use]
    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Work that gets its turn now, at `now` (monotonic), has waited for `delay`. To be told every
    /// [`PERIOD`].
    pub fn observed(&mut self, now: Duration, delay: Duration) {
        let delay = delay.as_secs_f64().min(LONGEST);
        if delay > self.target {
            self.above.get_or_insert(now);
        } else {
            self.above = None;
        }
        let standing = self.above.is_some_and(|since| now.saturating_sub(since) >= BURST);
        if standing || self.share > 0.0 {
            let scale = match self.share {
                share if share < 0.001 => 1.0 / 32.0,
                share if share < 0.01 => 1.0 / 8.0,
                share if share < 0.1 => 1.0 / 2.0,
                _ => 1.0,
            };
            let change = BY_DISTANCE * (delay - self.target) + BY_CHANGE * (delay - self.before);
            self.share = (self.share + scale * change).clamp(0.0, MOST);
            // An idle queue forgets.
            if delay < self.target / 2.0 && self.before < self.target / 2.0 {
                self.share *= 0.98;
                if self.share < 0.001 {
                    self.share = 0.0;
                }
            }
        }
        self.before = delay;
        self.gate.0.store((self.share * f64::from(u32::MAX)) as u32, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use super::*;

    /// A server that does 1,000 pieces of work a second, in their order; 5 % of one to turn one
    /// away. Clients wait for a second, then ask again at once, and after a moment when they were
    /// turned away; so often at most. Time in milliseconds.
    struct Model {
        admission: Option<Admission>,
        a_second: u64,
        stalled: std::ops::Range<u64>,
        retries: u32,
    }

    struct Work {
        id: usize,
        came: u64,
        tries: u32,
    }

    const PATIENCE: u64 = 1000;

    impl Model {
        /// Pieces of work done in time, by second; and how many were turned away.
        fn play(mut self, seconds: u64) -> (Vec<u64>, u64) {
            let gate = self.admission.as_ref().map(Admission::gate);
            let mut random = 7_u64;
            let mut draw = move || {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random.wrapping_mul(0x2545_f491_4f6c_dd1d)
            };
            let (mut queue, mut answered) = (VecDeque::new(), Vec::new());
            let mut later: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
            let mut waiting: BTreeMap<u64, Vec<(usize, u32)>> = BTreeMap::new();
            let mut good = vec![0; usize::try_from(seconds).expect("few")];
            let (mut shed, mut owed) = (0, 0_i64);
            for now in 0..seconds * 1000 {
                let fresh = now * self.a_second / 1000..(now + 1) * self.a_second / 1000;
                let again = later.remove(&now).unwrap_or_default();
                for tries in fresh.map(|_| 0).chain(again) {
                    let id = answered.len();
                    answered.push(false);
                    queue.push_back(Work { id, came: now, tries });
                    waiting.entry(now + PATIENCE).or_default().push((id, tries));
                }
                if let Some(admission) = &mut self.admission
                    && now % 50 == 0
                {
                    let delay = queue.front().map_or(0, |work: &Work| now - work.came);
                    admission.observed(Duration::from_millis(now), Duration::from_millis(delay));
                }
                // Twentieths of a piece.
                owed = (owed + if self.stalled.contains(&now) { 0 } else { 20 }).min(20);
                while owed > 0
                    && let Some(work) = queue.pop_front()
                {
                    answered[work.id] = true;
                    let waited = now - work.came;
                    if gate.as_ref().is_some_and(|gate| gate.sheds(draw())) {
                        (shed, owed) = (shed + 1, owed - 1);
                        if work.tries < self.retries && waited < PATIENCE {
                            later.entry(now + 100 + draw() % 400).or_default().push(work.tries + 1);
                        }
                        continue;
                    }
                    owed -= 20;
                    if waited < PATIENCE {
                        good[usize::try_from(now / 1000).expect("few")] += 1;
                    }
                }
                for (id, tries) in waiting.remove(&now).unwrap_or_default() {
                    if !answered[id] && tries < self.retries {
                        later.entry(now + 1).or_default().push(tries + 1);
                    }
                }
            }
            (good, shed)
        }
    }

    fn admission() -> Option<Admission> {
        Some(Admission::new(Duration::from_millis(100)))
    }

    #[test]
    fn storm_of_repetitions_after_a_stall_ends_with_admission_and_not_without() {
        let model =
            |admission| Model { admission, a_second: 700, stalled: 5000..10_000, retries: 8 };
        let (without, _) = model(None).play(40);
        assert_eq!(without[4], 700);
        assert_eq!(without[20..].iter().sum::<u64>(), 0, "the model has no storm: {without:?}");
        let (with, shed) = model(admission()).play(40);
        assert!(shed > 0);
        assert!(with[..5].iter().all(|good| *good == 700), "nothing was wrong: {with:?}");
        // Ten seconds after the stall, and from then on.
        assert!(with[20..].iter().all(|good| *good >= 630), "{with:?}");
    }

    #[test]
    fn three_times_the_load_leaves_most_of_the_peak() {
        let model = |admission| Model { admission, a_second: 3000, stalled: 0..0, retries: 1 };
        let (without, _) = model(None).play(30);
        assert!(without[10..].iter().all(|good| *good < 100), "{without:?}");
        let (with, _) = model(admission()).play(30);
        // What is left of 1,000 when each of some 4,800 that are turned away takes a twentieth of
        // one's time.
        assert!(with[10..].iter().all(|good| *good >= 730), "{with:?}");
    }

    #[test]
    fn load_below_the_peak_and_bursts_are_not_turned_away() {
        let model = Model { admission: admission(), a_second: 950, stalled: 0..0, retries: 8 };
        let (good, shed) = model.play(20);
        assert_eq!((shed, good[10]), (0, 950));
        // A stall of half a second is a burst.
        let model =
            Model { admission: admission(), a_second: 500, stalled: 5000..5500, retries: 8 };
        assert_eq!(model.play(20).1, 0);
    }

    #[test]
    fn share_goes_to_nothing_when_nothing_waits() {
        let mut admission = Admission::new(Duration::from_millis(100));
        let gate = admission.gate();
        let mut now = Duration::ZERO;
        for _ in 0..200 {
            now += PERIOD;
            admission.observed(now, Duration::from_secs(1));
        }
        assert!(gate.share() > 0.9 && gate.sheds(0) && !gate.sheds(u64::MAX));
        for _ in 0..400 {
            now += PERIOD;
            admission.observed(now, Duration::ZERO);
        }
        assert!(gate.share() == 0.0 && !gate.sheds(0));
    }
}
