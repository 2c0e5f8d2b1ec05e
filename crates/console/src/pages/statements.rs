//! `/statements`: what runs now, what ran, what it waited for, and what could be better.
//!
//! # Purpose
//! Sees sessions, cancels a statement, ends a session; statements by the time and dollars they
//! took.
//!
//! # Invariants
//! Cancelling and ending are SQL as the visitor (`pg_cancel_backend`, `pg_terminate_backend`), on a
//! form with the CSRF token.
//!
//! # On failure
//! See [`super`].
//!
//! # Limits
//! Sessions of the node that is asked.

use axum::Form;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use serde::Deserialize;

use crate::error::Problem;
use crate::model::Part;
use crate::model::statements::{self, MINUTES};
use crate::show::{self, Page};
use crate::visit::Visitor;

#[derive(Deserialize)]
pub struct Signal {
    csrf: String,
    pid: i32,
    act: String,
}

pub async fn page(visitor: Visitor) -> Response {
    let statements = statements::load(&visitor.reader()).await;
    let csrf = visitor.session.csrf.clone();
    let acts = move |column: &str, value: &str, _: &[Option<String>]| -> Option<Markup> {
        (column == "pid" && value.parse::<i32>().is_ok()).then(|| acts(value, &csrf))
    };
    let query = |column: &str, value: &str, _: &[Option<String>]| -> Option<Markup> {
        match column {
            "query" => Some(html! { code { (show::text(value)) } }),
            "plan" if !value.is_empty() => Some(html! {
                details { summary { "Plan" } pre tabindex="0" { code { (value) } } }
            }),
            _ => None,
        }
    };
    let cell = |column: &str, value: &str, row: &[Option<String>]| {
        acts(column, value, row).or_else(|| query(column, value, row))
    };
    let ready = |column: &str, value: &str, _: &[Option<String>]| -> Option<Markup> {
        (column == "definition").then(|| {
            let at = format!("/sql?sql={}", show::encode(value));
            html! { code { (value) } " " a href=(at) { "Open in SQL" } }
        })
    };
    let body = html! {
        (show::part("Sessions", &statements.activity, Some(&cell)))
        (waits(&statements.waits))
        (show::part("Indexes that are missing", &statements.advice, Some(&ready)))
        p.note { "Each was asked for by conditions that read a whole table. An index costs every write of its columns." }
        (show::part("Unlike it used to be, by two deviations or more", &statements.anomalies, Some(&query)))
        (show::part("Statements, by time", &statements.statements, Some(&query)))
        (show::part("Dearest statements", &statements.dearest, Some(&query)))
        (show::part("Most conflicted statements", &statements.conflicted, Some(&query)))
    };
    Page::new("Statements", "/statements", body).response(&visitor)
}

/// What busy sessions waited for, as bars above the table.
fn waits(part: &Part) -> Markup {
    let caption = format!("What sessions were busy with, last {MINUTES} minutes");
    let bars = part.rows().map(|table| {
        let share = |row: &[Option<String>]| -> Option<(String, f64)> {
            let of = table.get(row, "busy_with")?;
            let name = match table.get(row, "wait_event") {
                Some(event) => format!("{of}: {event}"),
                None => of.to_owned(),
            };
            Some((name, table.get(row, "sessions_on_average")?.parse().ok()?))
        };
        table.rows.iter().filter_map(|row| share(row)).collect::<Vec<_>>()
    });
    let bars = bars.unwrap_or_default();
    let all: f64 = bars.iter().map(|(_, amount)| amount).sum();
    html! {
        @if all > 0.0 {
            (show::bars(&bars.into_iter().map(|(name, amount)| {
                let note = format!("{amount} sessions");
                (name, amount / all, note)
            }).collect::<Vec<_>>()))
        }
        (show::part(&caption, part, None))
    }
}

fn acts(pid: &str, csrf: &str) -> Markup {
    html! {
        form.acts method="post" action="/statements/signal" {
            span { (pid) }
            input type="hidden" name="csrf" value=(csrf);
            input type="hidden" name="pid" value=(pid);
            button.small name="act" value="cancel" aria-label={ "Cancel the statement of session " (pid) } { "Cancel" }
            button.small name="act" value="terminate" aria-label={ "End session " (pid) } { "End" }
        }
    }
}

/// `POST /statements/signal`
pub async fn signal(visitor: Visitor, headers: HeaderMap, Form(signal): Form<Signal>) -> Response {
    if let Err(problem) = visitor.sent(&headers, &signal.csrf) {
        return problem.into_response();
    }
    let function = match signal.act.as_str() {
        "cancel" => "pg_cancel_backend",
        "terminate" => "pg_terminate_backend",
        _ => return Problem::bad_request("act is cancel or terminate").into_response(),
    };
    let sql = format!("SELECT {function}({})", signal.pid);
    match visitor.reader().table(&sql).await {
        Ok(_) => Redirect::to("/statements").into_response(),
        Err(problem) => {
            let body = html! { (show::problem(&problem)) p { a href="/statements" { "Back" } } };
            Page::new("Statements", "/statements", body).response(&visitor)
        }
    }
}
