//! What sessions did and what they waited for, second by second: the rows of
//! `telesto_activity_samples`.
//!
//! # Purpose
//! A statement that was slow an hour ago is gone from `pg_stat_activity`. Samples of what was
//! active tell where the time of all of them went: computing, the log, the bucket, a queue, each
//! other.
//!
//! # Invariants
//! Newest last; the oldest go when there are more than [`MOST`].
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! What begins and ends between two looks is not seen; how much time went where is right on
//! average.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use telesto_common::wait::Wait;

use crate::activity::Activity;

/// Samples kept.
pub const MOST: usize = 20_000;
/// How long they are kept, microseconds.
const KEPT_MICROS: u64 = 3_600_000_000;
/// Samples of one look: of more sessions than that, evenly many are left out.
const EACH: usize = 100;
/// Bytes of a statement's text.
const TEXT: usize = 200;

/// A session at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Microseconds since 1970.
    pub at_micros: u64,
    /// How many sessions it stands for: more than one where there were too many to keep.
    pub weight: f64,
    /// Its process id.
    pub pid: i32,
    /// Its user.
    pub user: Arc<str>,
    /// What its client calls itself.
    pub application: Arc<str>,
    /// `active`, or why it holds a transaction open.
    pub state: &'static str,
    /// What it waited for; none: it computed.
    pub wait: Wait,
    /// Microseconds since its statement began.
    pub running_micros: i64,
    /// The begin of its statement's text.
    pub query: Arc<str>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Samples(Mutex<VecDeque<Sample>>);

impl Samples {
    /// Keeps what the sessions do now.
    pub fn take(&self, at_micros: u64, active: Vec<(i32, Activity)>) {
        let step = active.len().div_ceil(EACH).max(1);
        let kept = active.len().div_ceil(step).max(1);
        let weight = active.len() as f64 / kept as f64;
        let now = telesto_sql_types::pg_micros(at_micros);
        let mut samples = self.0.lock();
        // A statement that goes on has its text once.
        let before: Vec<Sample> = match samples.back().map(|last| last.at_micros) {
            Some(last) => {
                samples.iter().rev().take_while(|own| own.at_micros == last).cloned().collect()
            }
            None => Vec::new(),
        };
        for (pid, shown) in active.into_iter().step_by(step) {
            let query = cut(&shown.query);
            let known = before.iter().find(|own| own.pid == pid);
            let shared = |text: &str, of: fn(&Sample) -> &Arc<str>| match known.map(of) {
                Some(own) if **own == *text => Arc::clone(own),
                _ => text.into(),
            };
            samples.push_back(Sample {
                at_micros,
                weight,
                pid,
                user: shared(&shown.user, |own| &own.user),
                application: shared(&shown.application_name, |own| &own.application),
                state: shown.state,
                wait: shown.wait,
                running_micros: shown.query_start.map_or(0, |begun| (now - begun).max(0)),
                query: shared(query, |own| &own.query),
            });
        }
        let old = at_micros.saturating_sub(KEPT_MICROS);
        while samples.len() > MOST || samples.front().is_some_and(|own| own.at_micros < old) {
            samples.pop_front();
        }
    }

    /// All of them, oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Sample> {
        self.0.lock().iter().cloned().collect()
    }
}

/// The begin of a text.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(pid: i32, query: &str) -> (i32, Activity) {
        let shown = Activity {
            user: "u".to_owned(),
            state: "active",
            query: query.to_owned(),
            wait: Wait::Commit,
            ..Activity::default()
        };
        (pid, shown)
    }

    #[test]
    fn texts_that_go_on_are_kept_once_and_cut_at_a_character() {
        let samples = Samples::default();
        let long = "é".repeat(TEXT);
        samples.take(1_000_000, vec![session(1, &long)]);
        samples.take(2_000_000, vec![session(1, &long), session(2, "b")]);
        let all = samples.all();
        assert_eq!(all.len(), 3);
        assert_eq!(all[0].query.len(), TEXT);
        assert!(Arc::ptr_eq(&all[0].query, &all[1].query));
    }

    #[test]
    fn memory_is_bounded_by_number_and_age_and_weights_add_up() {
        let samples = Samples::default();
        let many: Vec<_> = (0..1050).map(|pid| session(pid, "q")).collect();
        samples.take(1, many.clone());
        let all = samples.all();
        assert!(all.len() <= EACH, "{}", all.len());
        let weight: f64 = all.iter().map(|own| own.weight).sum();
        assert!((weight - 1050.0).abs() < 1e-6, "{weight}");
        for look in 0..500 {
            samples.take(look, many.clone());
        }
        assert!(samples.all().len() <= MOST);
        samples.take(KEPT_MICROS * 2, vec![session(1, "new")]);
        assert_eq!(samples.all().len(), 1);
    }
}
