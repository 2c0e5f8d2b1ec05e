//! The page's HTML.
//!
//! # Invariants
//! No scripts and no styles in it; every figure of a picture is in a table too.

use std::fmt::Write as _;

use crate::figures::{Figures, Window};
use crate::page::escape;
use crate::report::{OperationReport, Report, TargetReport};
use crate::text::{availability, latency, length, promise};

/// The least seconds between two loads of a page that refreshes itself.
const LEAST_REFRESH: u32 = 2;

/// The page that shows `window`; `strips` are those of all operations in the report's order.
pub(super) fn page(
    report: &Report,
    window: Window,
    refresh: Option<u32>,
    strips: &[String],
) -> String {
    let mut out = String::new();
    let name = escape(&report.board);
    let again = refresh.map(|seconds| {
        let seconds = seconds.max(LEAST_REFRESH);
        format!("<meta http-equiv=\"refresh\" content=\"{seconds}\">")
    });
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Latency board: {name}</title>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">{}\
         <link rel=\"stylesheet\" href=\"board.css\"></head><body><header><h1>Latency board: {name}</h1>",
        again.unwrap_or_default()
    );
    let _ = write!(
        out,
        "<p class=\"soft\">Reads and updates one of {} small records, {} times a second each, counted from when it was due. \
         Running for {}. An operation is available when it succeeds within {} s.</p>",
        report.records,
        report.rate,
        length((report.now - report.started) as f64),
        report.limit_seconds
    );
    navigation(&mut out, window, refresh);
    out.push_str("</header><main>");
    let mut strips = strips.iter();
    for target in &report.targets {
        section(&mut out, report, target, window, &mut strips);
    }
    out.push_str("</main><footer>");
    store(&mut out, report);
    out.push_str(
        "<p class=\"soft\">A failed operation counts as slower than any that succeeded. Grey is time that was not probed. \
         The dashed line is the promise. The same as <a href=\"board.json\">JSON</a>.</p></footer></body></html>",
    );
    out
}

fn navigation(out: &mut String, window: Window, refresh: Option<u32>) {
    out.push_str("<nav aria-label=\"Window\"><ul>");
    let kept = refresh.map(|seconds| format!("&amp;refresh={seconds}")).unwrap_or_default();
    for other in Window::ALL {
        let name = other.name();
        let current = if other == window { " aria-current=\"page\"" } else { "" };
        let _ = write!(out, "<li><a href=\"?window={name}{kept}\"{current}>{name}</a></li>");
    }
    let name = window.name();
    let _ = match refresh {
        Some(_) => write!(out, "<li><a href=\"?window={name}\">stop refreshing</a></li>"),
        None => {
            write!(out, "<li><a href=\"?window={name}&amp;refresh=10\">refresh every 10 s</a></li>")
        }
    };
    out.push_str("</ul></nav>");
}

fn section<'a>(
    out: &mut String,
    report: &Report,
    target: &TargetReport,
    window: Window,
    strips: &mut impl Iterator<Item = &'a String>,
) {
    let _ = write!(
        out,
        "<section><h2>{}</h2><p class=\"soft\">{}</p>",
        escape(&target.name),
        escape(&target.address)
    );
    if !target.probing {
        let (loaded, records) = (target.loaded, report.records);
        let _ = write!(out, "<p>Not probed yet: {loaded} of {records} records are there.</p>");
    }
    if let Some(error) = &target.error {
        let _ = write!(out, "<p>Cannot be prepared: {}</p>", escape(error));
    }
    for operation in &target.operations {
        let title = operation.operation.name();
        let _ = write!(out, "<h3>{}: {title}</h3>", escape(&target.name));
        if let Some(strip) = strips.next() {
            scrolled(out, &format!("history of {} {title}", target.name), strip);
        }
        let table = table(&format!("{} {title}", target.name), operation, window);
        scrolled(out, &format!("figures of {} {title}", target.name), &table);
        if let Some(last) = &operation.last_failure {
            let _ = write!(
                out,
                "<p>Last failure, {} ago: {} ({})</p>",
                length((report.now - last.at).max(1) as f64),
                last.kind.name(),
                escape(&last.message)
            );
        }
    }
    out.push_str("</section>");
}

/// What may be wider than a phone, reached by keyboard too.
fn scrolled(out: &mut String, label: &str, content: &str) {
    let label = escape(label);
    let _ = write!(
        out,
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">{content}</div>"
    );
}

fn table(name: &str, operation: &OperationReport, shown: Window) -> String {
    let mut out = format!(
        "<table><caption>Latency and availability of {}</caption><thead><tr><th scope=\"col\">window</th>\
         <th scope=\"col\">probed</th><th scope=\"col\">p50</th><th scope=\"col\">p90</th><th scope=\"col\">p99</th>\
         <th scope=\"col\">p99.9</th><th scope=\"col\">max</th><th scope=\"col\">failed</th>\
         <th scope=\"col\">available</th><th scope=\"col\">unknown</th><th scope=\"col\">promise</th></tr></thead><tbody>",
        escape(name)
    );
    for figures in &operation.windows {
        row(&mut out, figures, figures.window == shown);
    }
    out.push_str("</tbody></table>");
    out
}

fn row(out: &mut String, figures: &Figures, shown: bool) {
    let name = figures.window.name();
    let current = if shown { " aria-current=\"true\"" } else { "" };
    let _ =
        write!(out, "<tr{current}><th scope=\"row\">{name}</th><td>{}</td>", figures.operations);
    let at = figures.latency_ms;
    for value in [at.p50, at.p90, at.p99, at.p999, at.max] {
        let class =
            if value.is_none() && figures.operations > 0 { " class=\"failed\"" } else { "" };
        let _ = write!(out, "<td{class}>{}</td>", latency(value, figures.operations));
    }
    let failed: Vec<String> =
        figures.failures.each().map(|(kind, count)| format!("{count} {}", kind.name())).collect();
    if failed.is_empty() {
        out.push_str("<td>0</td>");
    } else {
        let _ = write!(out, "<td class=\"failed\">{}</td>", failed.join(", "));
    }
    let class = match figures.promise_kept {
        Some(true) => "kept",
        Some(false) => "broken",
        None => "word",
    };
    let _ = write!(
        out,
        "<td>{}</td><td>{}</td><td class=\"{class}\">{}</td></tr>",
        availability(figures),
        length(figures.unknown_seconds),
        promise(figures)
    );
}

fn store(out: &mut String, report: &Report) {
    let Some(store) = &report.store else {
        out.push_str("<p>History is kept in memory only, and ends with the board.</p>");
        return;
    };
    if let Some(error) = &store.error {
        let _ = write!(out, "<p>History is not written: {}</p>", escape(error));
    }
    match store.written {
        Some(at) => {
            let ago = length((report.now - at).max(0) as f64);
            let _ = write!(out, "<p class=\"soft\">History was written {ago} ago.</p>");
        }
        None => out.push_str("<p class=\"soft\">History was not written yet.</p>"),
    }
}
