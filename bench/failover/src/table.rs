//! The table of the runs.

use std::fmt::Write as _;
use std::time::Duration;

/// One failure of one node.
pub(crate) struct Row {
    fault: &'static str,
    of: &'static str,
    /// Milliseconds.
    aim: Option<u64>,
    gaps: Vec<Duration>,
    /// Runs after which another node owned the log.
    moved: usize,
}

impl Row {
    pub(crate) fn new(fault: &'static str, of: &'static str, aim: Option<u64>) -> Self {
        Self { fault, of, aim, gaps: Vec::new(), moved: 0 }
    }

    pub(crate) fn add(&mut self, gap: Duration, moved: bool) {
        self.gaps.push(gap);
        self.gaps.sort();
        self.moved += usize::from(moved);
    }

    /// The gap that `percent` of the runs do not exceed, milliseconds (nearest rank).
    fn percentile(&self, percent: usize) -> u128 {
        let rank = (self.gaps.len() * percent).div_ceil(100).max(1);
        self.gaps.get(rank - 1).map_or(0, Duration::as_millis)
    }
}

/// As Markdown.
pub(crate) fn shown(rows: &[Row]) -> String {
    let mut text = String::from(
        "| failure | of | runs | p50 ms | p90 | p99 | max | aim | reached | another owner |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in rows {
        let [half, most, nearly, all] = [50, 90, 99, 100].map(|percent| row.percentile(percent));
        let aim = row.aim.map_or_else(String::new, |aim| format!("p99 < {aim}"));
        let reached = match row.aim {
            None => "",
            Some(aim) if nearly < u128::from(aim) => "yes",
            Some(_) => "NO",
        };
        let (fault, of, runs, moved) = (row.fault, row.of, row.gaps.len(), row.moved);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| {fault} | {of} | {runs} | {half} | {most} | {nearly} | {all} | {aim} | {reached} | {moved} |"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_runs_and_misses_are_said() {
        let mut row = Row::new("kill", "owner", Some(5));
        for millis in [9, 1, 2, 3, 4] {
            row.add(Duration::from_millis(millis), millis == 9);
        }
        assert_eq!([50, 90, 100].map(|percent| row.percentile(percent)), [3, 9, 9]);
        assert!(shown(&[row]).contains("| 3 | 9 | 9 | 9 | p99 < 5 | NO | 1 |"));
    }
}
