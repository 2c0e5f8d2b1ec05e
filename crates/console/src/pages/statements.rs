//! `/statements`: what runs now, and what ran.
//!
//! # Purpose
//! Sees sessions, cancels a statement, ends a session; statements by the time and dollars they took.
//!
//! # Invariants
//! Cancelling and ending are SQL as the visitor (`pg_cancel_backend`, `pg_terminate_backend`), on a form with the CSRF token.
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
use crate::model::statements;
use crate::show::{self, Page};
use crate::visit::{self, Visitor};

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
        (column == "query").then(|| html! { code { (show::text(value)) } })
    };
    let cell = |column: &str, value: &str, row: &[Option<String>]| {
        acts(column, value, row).or_else(|| query(column, value, row))
    };
    let body = html! {
        (show::part("Sessions", &statements.activity, Some(&cell)))
        (show::part("Statements", &statements.statements, Some(&query)))
    };
    Page::new("Statements", "/statements", body).response(&visitor)
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
    if let Err(problem) = visit::same_site(&headers) {
        return problem.into_response();
    }
    if visitor.new_cookie.is_some() || !visitor.session.is_csrf(&signal.csrf) {
        return Problem::forged().into_response();
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
