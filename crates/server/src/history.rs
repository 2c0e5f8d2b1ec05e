//! What this process measured lately: the registry of metrics as rows, and the last hour in
//! stretches of ten seconds.
//!
//! ```text
//! registry ── every STRETCH: difference to the last look ──> ring of MOST stretches ──> telesto_history
//!          └─ when asked ──────────────────────────────────────────────────────────> telesto_metrics
//! ```
//!
//! # Invariants
//! - A stretch is a difference of counts: statements that nobody looked at are in the next one,
//!   none in two.
//! - Memory is bounded by [`MOST`].
//! - What failed by the server's fault counts among what was asked, never as done in time, and in
//!   no percentile.
//!
//! # On failure
//! A line of the registry that is no number is left out.
//!
//! # Limits
//! Percentiles are estimated inside of a histogram's bucket as if its statements were spread evenly
//! over it; what lies beyond the last bucket is shown as its bound.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use serde_json::Value;
use telesto_common::Env;
use telesto_sql::plan::measurements::{Measurements, Metric, Stretch, Timed};
use telesto_sql::session::pg_micros;

/// How long a stretch is.
pub const STRETCH: Duration = Duration::from_secs(10);
/// How many stretches are kept: an hour.
pub const MOST: usize = 360;
/// What a read may take by the promise, seconds: a bound of the histogram.
const READ_PROMISE: f64 = 0.05;
/// What a write may take.
const WRITE_PROMISE: f64 = 0.5;

/// The measurements of this process.
#[derive(Debug)]
pub struct History {
    env: Env,
    registry: PrometheusHandle,
    begun: Duration,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    last: Option<(Duration, Counts)>,
    stretches: VecDeque<Stretch>,
}

/// Counts since the process started.
#[derive(Clone, Debug, Default)]
struct Counts {
    /// By kind and outcome, then by upper bound in seconds: how many took at most so long.
    timed: BTreeMap<(String, String), Vec<(f64, u64)>>,
    failures: u64,
    commits: u64,
    sessions: u64,
    requests: u64,
    dollars: f64,
}

impl History {
    /// Of what `registry` holds.
    #[must_use]
    pub fn new(env: Env, registry: PrometheusHandle) -> Self {
        let begun = env.clock.monotonic();
        Self { env, registry, begun, kept: Mutex::default() }
    }

    /// Closes a stretch, if the last one is old enough.
    pub fn look(&self) {
        let now = self.env.clock.monotonic();
        let due = match &self.kept.lock().last {
            Some((at, _)) => now.saturating_sub(*at) >= STRETCH,
            None => true,
        };
        if !due {
            return;
        }
        let up = now.saturating_sub(self.begun);
        metrics::gauge!("telesto_uptime_seconds").set(up.as_secs_f64());
        let counts = Counts::of(&parse(&self.registry.render()));
        let until_micros = pg_micros(self.env.clock.wall_micros());
        let mut kept = self.kept.lock();
        if let Some((at, before)) = &kept.last {
            let seconds = now.saturating_sub(*at).as_secs_f64();
            let stretch = counts.since(before, until_micros, seconds);
            kept.stretches.push_back(stretch);
            if kept.stretches.len() > MOST {
                kept.stretches.pop_front();
            }
        }
        kept.last = Some((now, counts));
    }
}

impl Measurements for History {
    fn metrics(&self) -> Vec<Metric> {
        parse(&self.registry.render())
            .into_iter()
            .map(|line| Metric {
                name: line.name.to_owned(),
                labels: Value::Object(
                    line.labels
                        .into_iter()
                        .map(|(name, value)| (name, Value::String(value)))
                        .collect(),
                )
                .to_string(),
                value: line.value,
            })
            .collect()
    }

    fn history(&self) -> Vec<Stretch> {
        self.kept.lock().stretches.iter().copied().collect()
    }
}

impl Counts {
    fn of(lines: &[Line<'_>]) -> Self {
        let mut counts = Self::default();
        for line in lines {
            let label = |name: &str| {
                line.labels.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
            };
            // Counts are whole and far below 2^53.
            let whole = line.value.max(0.0) as u64;
            match line.name {
                "telesto_statement_seconds_bucket" => {
                    let bound = match label("le") {
                        Some("+Inf") => f64::INFINITY,
                        Some(bound) => bound.parse().unwrap_or(f64::INFINITY),
                        None => continue,
                    };
                    let of = |name| label(name).unwrap_or_default().to_owned();
                    let key = (of("kind"), of("outcome"));
                    counts.timed.entry(key).or_default().push((bound, whole));
                }
                "telesto_statement_failures_total" => counts.failures += whole,
                "telesto_txn_commits_total" => counts.commits += whole,
                "telesto_sessions" => counts.sessions += whole,
                "telesto_bucket_requests_total" => counts.requests += whole,
                "telesto_bucket_dollars_total" => counts.dollars += line.value,
                _ => {}
            }
        }
        for buckets in counts.timed.values_mut() {
            buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        }
        counts
    }

    fn since(&self, before: &Self, until_micros: i64, seconds: f64) -> Stretch {
        let buckets = |kind: &str, outcome: &str| -> Vec<(f64, u64)> {
            let key = (kind.to_owned(), outcome.to_owned());
            let now = self.timed.get(&key).map(Vec::as_slice).unwrap_or_default();
            let then = before.timed.get(&key).map(Vec::as_slice).unwrap_or_default();
            let since = |(bound, count): &(f64, u64)| {
                let old = then.iter().find(|(own, _)| own == bound).map_or(0, |(_, old)| *old);
                (*bound, count.saturating_sub(old))
            };
            now.iter().map(since).collect()
        };
        let all = |buckets: &[(f64, u64)]| buckets.last().map_or(0, |(_, count)| *count);
        let timed = |kind: &str, promise: f64| {
            // What failed is asked for as well, and is in no time.
            let (buckets, failed) = (buckets(kind, "done"), buckets(kind, "failed"));
            let in_time = buckets.iter().find(|(bound, _)| *bound >= promise);
            Timed {
                count: all(&buckets) + all(&failed),
                in_time: in_time.map_or(0, |(_, count)| *count),
                percentiles: percentiles(&buckets),
            }
        };
        Stretch {
            until_micros,
            seconds,
            reads: timed("read", READ_PROMISE),
            writes: timed("write", WRITE_PROMISE),
            failures: self.failures.saturating_sub(before.failures),
            commits: self.commits.saturating_sub(before.commits),
            sessions: self.sessions,
            requests: self.requests.saturating_sub(before.requests),
            dollars: (self.dollars - before.dollars).max(0.0),
        }
    }
}

/// The 50th, 95th and 99th of 100, in milliseconds.
fn percentiles(buckets: &[(f64, u64)]) -> Option<[f64; 3]> {
    let total = buckets.last().map_or(0, |(_, count)| *count);
    if total == 0 {
        return None;
    }
    Some([0.5, 0.95, 0.99].map(|share| {
        let wanted = share * total as f64;
        let mut lower = (0.0, 0u64);
        for (bound, count) in buckets {
            if *count as f64 >= wanted {
                if bound.is_infinite() {
                    return lower.0 * 1000.0;
                }
                let inside = (count - lower.1) as f64;
                let part = if inside > 0.0 { (wanted - lower.1 as f64) / inside } else { 1.0 };
                return (lower.0 + (bound - lower.0) * part) * 1000.0;
            }
            lower = (*bound, *count);
        }
        lower.0 * 1000.0
    }))
}

/// A line of the registry's text.
#[derive(Debug, PartialEq)]
struct Line<'a> {
    name: &'a str,
    labels: Vec<(String, String)>,
    value: f64,
}

fn parse(text: &str) -> Vec<Line<'_>> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(parse_line).collect()
}

/// `name value` or `name{label="value",…} value`.
fn parse_line(line: &str) -> Option<Line<'_>> {
    let name_ends = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_ends);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.push((label.trim_start_matches(',').to_owned(), value));
            rest = after;
        }
        rest = &rest[1..];
    }
    Some(Line { name, labels, value: rest.trim().parse().ok()? })
}

/// A label's value up to its closing quote, and what follows that.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_text_is_read_with_labels_and_escapes() {
        let text =
            "# TYPE a counter\na 3\nb{x=\"1\",y=\"q\\\"u\\\\o\\nte,}\"} 2.5\nbroken\nc{x=\"1\" 2\n";
        let lines = parse(text);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0], Line { name: "a", labels: Vec::new(), value: 3.0 });
        assert_eq!(lines[1].labels[1], ("y".to_owned(), "q\"u\\o\nte,}".to_owned()));
    }

    #[test]
    fn stretch_counts_only_what_is_new_and_holds_it_to_the_promise() {
        let text = |fast: u64, slow: u64, all: u64| {
            let read = |outcome: &str, bound: &str, count: u64| {
                format!(
                    "telesto_statement_seconds_bucket{{kind=\"read\",outcome=\"{outcome}\",le=\"{bound}\"}} {count}\n"
                )
            };
            let failed = [("0.05", all), ("0.1", all), ("+Inf", all)];
            let failed = failed.map(|(bound, all)| read("failed", bound, all / 10)).concat();
            let done = [("0.05", fast), ("0.1", slow), ("+Inf", all)];
            let done = done.map(|(bound, count)| read("done", bound, count)).concat();
            format!(
                "{failed}{done}\
                 telesto_bucket_dollars_total{{class=\"put\",cause=\"commit\"}} 0.25\n\
                 telesto_bucket_dollars_total{{class=\"get\",cause=\"read\"}} 0.5\n"
            )
        };
        let before = Counts::of(&parse(&text(10, 10, 10)));
        let now = Counts::of(&parse(&text(108, 109, 110)));
        let stretch = now.since(&before, 5, 10.0);
        // Ten more failed, at once.
        assert_eq!((stretch.reads.count, stretch.reads.in_time), (110, 98));
        let [p50, _, p99] = stretch.reads.percentiles.expect("there were reads");
        assert!((p50 - 25.51).abs() < 0.01, "{p50}");
        assert!((p99 - 100.0).abs() < 0.01, "{p99}");
        assert_eq!(stretch.writes, Timed::default());
        assert_eq!(stretch.dollars, 0.0);
        assert_eq!(now.since(&Counts::default(), 5, 10.0).dollars, 0.75);
    }

    #[test]
    fn percentile_beyond_the_last_bound_is_that_bound() {
        let [p50, _, p99] = percentiles(&[(1.0, 1), (f64::INFINITY, 4)]).expect("there were some");
        assert_eq!((p50, p99), (1000.0, 1000.0));
    }
}
