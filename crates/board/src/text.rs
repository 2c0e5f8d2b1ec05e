//! The board as plain text, for terminals.
//!
//! # Invariants
//! A row for each target and operation; a figure that there is not is told in words, never as a
//! number.

use std::fmt::Write as _;

use crate::figures::{Figures, Window};
use crate::report::{OperationReport, Report, TargetReport};

const HEADS: [&str; 12] = [
    "target",
    "operation",
    "probed",
    "p50",
    "p90",
    "p99",
    "p99.9",
    "max",
    "failed",
    "available",
    "unknown",
    "promise",
];

/// A table for each of `windows`, and what went wrong.
#[must_use]
pub fn tables(report: &Report, windows: &[Window]) -> String {
    let mut out = String::new();
    for window in windows {
        let rows: Vec<[String; HEADS.len()]> = operations(report)
            .filter_map(|(target, operation)| {
                Some(row(&target.name, operation, operation.figures(*window)?))
            })
            .collect();
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(out, "{}", title(*window));
        draw(&mut out, &rows);
        out.push('\n');
    }
    notes(&mut out, report);
    out
}

fn operations(report: &Report) -> impl Iterator<Item = (&TargetReport, &OperationReport)> {
    report
        .targets
        .iter()
        .flat_map(|target| target.operations.iter().map(move |operation| (target, operation)))
}

fn title(window: Window) -> String {
    match window {
        Window::Run => "Since the board was started".to_owned(),
        _ => format!("The last {}", window.name()),
    }
}

fn row(target: &str, operation: &OperationReport, figures: &Figures) -> [String; HEADS.len()] {
    let failed: Vec<String> =
        figures.failures.each().map(|(kind, count)| format!("{count} {}", kind.name())).collect();
    let latency = |at| latency(at, figures.operations);
    [
        target.to_owned(),
        operation.operation.name().to_owned(),
        figures.operations.to_string(),
        latency(figures.latency_ms.p50),
        latency(figures.latency_ms.p90),
        latency(figures.latency_ms.p99),
        latency(figures.latency_ms.p999),
        latency(figures.latency_ms.max),
        if failed.is_empty() { "0".to_owned() } else { failed.join(", ") },
        availability(figures),
        length(figures.unknown_seconds),
        promise(figures),
    ]
}

/// A latency in the unit that fits; in words when there is none.
#[must_use]
pub fn latency(ms: Option<f64>, operations: u64) -> String {
    match ms {
        None if operations == 0 => "unknown".to_owned(),
        None => "failed".to_owned(),
        Some(ms) if ms >= 10_000.0 => format!("{:.1} s", ms / 1e3),
        Some(ms) if ms >= 1_000.0 => format!("{:.2} s", ms / 1e3),
        Some(ms) if ms >= 100.0 => format!("{ms:.0} ms"),
        Some(ms) if ms >= 10.0 => format!("{ms:.1} ms"),
        Some(ms) => format!("{ms:.2} ms"),
    }
}

/// Availability, with its nines.
#[must_use]
pub fn availability(figures: &Figures) -> String {
    match (figures.availability, figures.nines) {
        (None, _) => "unknown".to_owned(),
        (Some(_), None) => "100 %".to_owned(),
        // Rounded down: 99.999 % is not 100 %.
        (Some(share), Some(nines)) => {
            format!("{:.3} % ({nines:.1} nines)", (share * 1e5).floor() / 1e3)
        }
    }
}

/// Whether the promise was kept, in words.
#[must_use]
pub fn promise(figures: &Figures) -> String {
    let promise = format!("p99 {:.0} ms", figures.promise_ms);
    match figures.promise_kept {
        None => format!("{promise}: unknown"),
        Some(true) => format!("{promise}: kept"),
        Some(false) => format!("{promise}: broken"),
    }
}

/// A length of time in the unit that fits.
#[must_use]
pub fn length(seconds: f64) -> String {
    match seconds {
        s if s < 0.05 => "0".to_owned(),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7_200.0 => format!("{:.1} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3_600.0),
        s => format!("{:.1} d", s / 86_400.0),
    }
}

fn notes(out: &mut String, report: &Report) {
    for target in &report.targets {
        if !target.probing {
            let (name, loaded) = (&target.name, target.loaded);
            let _ = writeln!(out, "{name}: not probed yet, {loaded} of {} records", report.records);
        }
        if let Some(error) = &target.error {
            let _ = writeln!(out, "{}: cannot be prepared: {error}", target.name);
        }
        for operation in &target.operations {
            if let Some(last) = &operation.last_failure {
                let ago = length((report.now - last.at).max(1) as f64);
                let (name, operation) = (&target.name, operation.operation.name());
                let kind = last.kind.name();
                let _ = writeln!(out, "{name} {operation}: {kind} {ago} ago: {}", last.message);
            }
        }
    }
    if let Some(error) = report.store.as_ref().and_then(|store| store.error.as_ref()) {
        let _ = writeln!(out, "history is not written: {error}");
    }
}

fn draw(out: &mut String, rows: &[[String; HEADS.len()]]) {
    let widths: Vec<usize> = (0..HEADS.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([HEADS[column].len()]).max().unwrap_or_default()
        })
        .collect();
    let mut line = |cells: &[&str]| {
        let mut text = String::new();
        for (column, cell) in cells.iter().enumerate() {
            let width = widths[column];
            // Figures to the right, words to the left.
            let _ = match column {
                2..=7 => write!(text, "{cell:>width$}  "),
                _ => write!(text, "{cell:<width$}  "),
            };
        }
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line(&HEADS);
    for row in rows {
        line(&row.each_ref().map(String::as_str));
    }
}
