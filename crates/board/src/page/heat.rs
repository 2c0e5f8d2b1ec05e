//! A heat strip as inline SVG: time to the right, latency upwards, darker where more operations
//! ended.
//!
//! ```text
//!   failed   |    ##      |   share of the column's operations that failed
//!   > 10 s   |            |
//!   ...      |     #      |
//!   < 1 ms   | ######  ## |
//!   unknown  |       ==   |   share of the column's time that was not probed
//! ```
//!
//! # Invariants
//! - A column with nothing probed shows as unknown from top to bottom; never as empty.
//! - Colour is not alone: failures and unknown time have rows of their own, and a sentence tells
//!   both.

use std::fmt::Write as _;

use crate::figures::{BANDS, Column};
use crate::page::escape;
use crate::target::Operation;

const LEFT: f64 = 52.0;
const WIDTH: f64 = 960.0;
const ROW: f64 = 11.0;
/// Failed, the bands from the slowest to the fastest, unknown.
const ROWS: usize = BANDS.len() + 3;
/// A column counts as seen when at least this share of it was probed.
const SEEN: f64 = 0.999;

/// The strip of `name` (a target and operation).
pub(super) fn strip(name: &str, columns: &[Column], operation: Operation) -> String {
    let height = ROW * ROWS as f64;
    let mut out = String::new();
    let total_height = height + 16.0;
    let told = escape(&sentence(name, columns));
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {:.0} {total_height:.0}\" role=\"img\" aria-label=\"{told}\"><title>{told}</title>",
        LEFT + WIDTH
    );
    for (row, label) in labels().iter().enumerate() {
        let y = ROW * row as f64 + 9.0;
        let _ = write!(
            out,
            "<text x=\"{:.0}\" y=\"{y:.0}\" text-anchor=\"end\">{label}</text>",
            LEFT - 4.0
        );
    }
    let width = WIDTH / columns.len().max(1) as f64;
    for (at, column) in columns.iter().enumerate() {
        cells(&mut out, column, LEFT + width * at as f64, width);
    }
    let _ = write!(
        out,
        "<rect class=\"frame\" x=\"{LEFT:.0}\" y=\"0\" width=\"{WIDTH:.0}\" height=\"{height:.0}\"/>"
    );
    let micros = u64::try_from(operation.promise().as_micros()).unwrap_or(u64::MAX);
    let above = BANDS.iter().filter(|upper| **upper > micros).count() + 2;
    let y = ROW * above as f64;
    let _ = write!(
        out,
        "<line class=\"promise\" x1=\"{LEFT:.0}\" x2=\"{:.0}\" y1=\"{y:.0}\" y2=\"{y:.0}\"/>",
        LEFT + WIDTH
    );
    if let (Some(first), Some(last)) = (columns.first(), columns.last()) {
        let y = height + 12.0;
        let ago = crate::text::length((last.start + last.seconds - first.start) as f64);
        let _ = write!(
            out,
            "<text x=\"{LEFT:.0}\" y=\"{y:.0}\">{ago} ago</text><text x=\"{:.0}\" y=\"{y:.0}\" text-anchor=\"end\">now</text>",
            LEFT + WIDTH
        );
    }
    out.push_str("</svg>");
    out
}

fn labels() -> Vec<String> {
    let mut labels = vec!["failed".to_owned(), "longer".to_owned()];
    labels.extend(BANDS.iter().rev().map(|micros| match micros {
        micros if *micros >= 1_000_000 => format!("{} s", micros / 1_000_000),
        micros => format!("{} ms", micros / 1_000),
    }));
    labels.push("unknown".to_owned());
    labels
}

fn cells(out: &mut String, column: &Column, x: f64, width: f64) {
    let failed: u64 = column.failures.each().map(|(_, count)| count).sum();
    let all = column.bands.iter().sum::<u64>() + failed;
    let mut cell = |class: &str, row: usize, rows: usize, share: f64| {
        if share > 0.0 {
            let (y, height) = (ROW * row as f64, ROW * rows as f64);
            // What is rare must still be seen.
            let opacity = share.sqrt().clamp(0.15, 1.0);
            let _ = write!(
                out,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{height:.0}\" opacity=\"{opacity:.2}\"/>"
            );
        }
    };
    if all == 0 {
        return cell("gap", 0, ROWS, 1.0);
    }
    let share = |count: u64| count as f64 / all as f64;
    cell("fail", 0, 1, share(failed));
    for (band, count) in column.bands.iter().enumerate() {
        cell("heat", ROWS - 2 - band, 1, share(*count));
    }
    if column.known < SEEN {
        cell("gap", ROWS - 1, 1, 1.0 - column.known);
    }
}

/// What the picture shows, in words.
fn sentence(name: &str, columns: &[Column]) -> String {
    let unknown = columns.iter().filter(|column| column.known == 0.0).count();
    let failing = columns.iter().filter(|column| column.failures.each().next().is_some()).count();
    let worst = columns.iter().filter_map(|column| column.p99_ms).fold(0.0, f64::max);
    format!(
        "Latency history of {name}: {} columns, {failing} with failures, {unknown} unknown; worst p99 {}",
        columns.len(),
        crate::text::latency((worst > 0.0).then_some(worst), 0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::Failures;

    fn column(known: f64, read: u64, failed: u64) -> Column {
        let mut bands = [0; BANDS.len() + 1];
        bands[0] = read;
        let failures = Failures { unreachable: failed, ..Failures::default() };
        Column { start: 0, seconds: 60, bands, failures, p99_ms: Some(1.0), known }
    }

    #[test]
    fn column_not_probed_is_unknown_from_top_to_bottom() {
        let strip = strip("a read", &[column(1.0, 5, 0), column(0.0, 0, 0)], Operation::Read);
        let whole = format!("height=\"{:.0}\" opacity=\"1.00\"/>", ROW * ROWS as f64);
        assert_eq!(strip.matches("class=\"gap\"").count(), 1);
        assert!(strip.contains(&whole) && strip.contains("1 unknown"), "{strip}");
    }

    #[test]
    fn names_are_escaped_and_failures_have_their_row() {
        let strip = strip("<b>\"x\"", &[column(1.0, 1, 1)], Operation::Read);
        assert!(!strip.contains("<b>") && strip.contains("&lt;b&gt;&quot;x&quot;"));
        assert_eq!(strip.matches("class=\"fail\"").count(), 1);
    }
}
