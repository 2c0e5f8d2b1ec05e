//! `/`: how the node is doing.
//!
//! # Purpose
//! Health, throughput, latency, dollars, availability at a glance; charts of the last hour.
//!
//! # Invariants
//! A figure that was not measured is a dash, never a zero.
//!
//! # On failure
//! See [`super`].
//!
//! # Limits
//! Of the node that is asked.

use axum::response::Response;
use maud::{Markup, html};

use crate::model::Part;
use crate::model::overview::{self, Overview};
use crate::show::{self, Page, dollars, millis, number, or_dash, share};
use crate::visit::Visitor;

pub async fn page(visitor: Visitor) -> Response {
    let overview = overview::load(&visitor.reader()).await;
    let body = html! {
        (health(&overview))
        (figures(&overview))
        section aria-labelledby="charts-title" {
            h2 #charts-title { "The last hour" }
            p.note { "Ten seconds a point, of this node. " a href="/api/v1/history" { "The same as JSON" } "." }
            div.charts #charts {
                figure { figcaption { "Statements a second" } div.chart #chart-rate {} }
                figure { figcaption { "Latency, ms" } div.chart #chart-latency {} }
                figure { figcaption { "Dollars an hour" } div.chart #chart-dollars {} }
                figure { figcaption { "Done in time, %" } div.chart #chart-promise {} }
            }
            noscript { p.note { "Charts need scripts; SELECT * FROM telesto_history shows what they show." } }
        }
        (show::part("Nodes", &overview.nodes, None))
        (show::part("Logs", &overview.logs, None))
    };
    Page { scripts: &["charts.js"], ..Page::new("Overview", "/", body) }.response(&visitor)
}

fn health(overview: &Overview) -> Markup {
    match &overview.health {
        Part::Rows(table) => {
            let well = table.first("reads") == Some("t");
            html! {
                p.health .well[well] .ill[!well] role="status" {
                    strong { @if well { "Healthy" } @else { "Not healthy" } }
                    " · a strict read was answered · "
                    (table.first("sessions").unwrap_or("0")) " sessions · "
                    span.note { (table.first("version").unwrap_or_default()) }
                }
            }
        }
        Part::Failed { error } => html! {
            p.health.ill role="status" { strong { "Not healthy" } " · strict reads are not answered" }
            (show::problem(error))
        },
        Part::Missing { missing } => html! { p.health.ill { (missing) } },
    }
}

fn figures(overview: &Overview) -> Markup {
    let hour = |name: &str| overview.hour.rows().and_then(|table| table.number(name));
    let minute = |name: &str| overview.minute.rows().and_then(|table| table.number(name));
    let newest = |name: &str| overview.newest.rows().and_then(|table| table.number(name));
    let rate = |name: &str| {
        let seconds = minute("seconds").filter(|seconds| *seconds > 0.0)?;
        Some(format!("{}/s", number(minute(name)? / seconds)))
    };
    let percentiles = |kind: &str| {
        let at = |which: &str| newest(&format!("{kind}_{which}_ms")).map(millis);
        (or_dash(at("p99")), format!("p50 {}, p95 {}", or_dash(at("p50")), or_dash(at("p95"))))
    };
    let (read, read_note) = percentiles("read");
    let (write, write_note) = percentiles("write");
    let an_hour = hour("seconds")
        .filter(|seconds| *seconds > 0.0)
        .and_then(|seconds| Some(dollars(hour("dollars")? / seconds * 3600.0)));
    let per_1000 = hour("commits")
        .filter(|commits| *commits > 0.0)
        .and_then(|commits| Some(dollars(hour("dollars")? / commits * 1000.0)));
    let in_time = |kind: &str| share(hour(&format!("{kind}_in_time"))?, hour(kind)?);
    let of = |kind: &str| format!("of {} {kind}", number(hour(kind).unwrap_or_default()));
    html! {
        (show::figures(&[
            ("Reads", or_dash(rate("reads")), "the last minute".to_owned()),
            ("Writes", or_dash(rate("writes")), "the last minute".to_owned()),
            ("Read p99", read, read_note),
            ("Write p99", write, write_note),
            ("Dollars an hour", or_dash(an_hour), "at the last hour's rate".to_owned()),
            ("Per 1,000 transactions", or_dash(per_1000), "bucket requests".to_owned()),
            ("Reads within 50 ms", or_dash(in_time("reads")), format!("{}; promise 99 %", of("reads"))),
            ("Writes within 500 ms", or_dash(in_time("writes")), format!("{}; promise 99 %", of("writes"))),
        ]))
        @let parts = [&overview.hour, &overview.minute, &overview.newest];
        @let all: Vec<&str> = parts.iter().filter_map(|part| Some(part.rows()?.sql.as_str())).collect();
        (show::sources(&all))
        @for part in parts {
            @if let Part::Failed { error } = part { (show::problem(error)) }
        }
    }
}
