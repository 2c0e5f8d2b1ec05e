//! `/cost`: where each dollar goes, and what else it could be.
//!
//! # Purpose
//! Dollars by cause, spend caps, the price sheet, a projection, a what-if.
//!
//! # Invariants
//! See [`crate::model::cost`]. A cap is set and dropped by SQL as the visitor, on a form with the
//! CSRF token, where the console may write.
//!
//! # On failure
//! See [`super`].
//!
//! # Limits
//! Requests of the node that is asked.

use axum::Form;
use axum::extract::Query;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Redirect, Response};
use maud::{Markup, html};
use serde::Deserialize;

use crate::error::Problem;
use crate::model::Part;
use crate::model::cost::{self, Cost, INTERVALS, WhatIf, Wish};
use crate::query::quote_literal;
use crate::show::{self, Page, dollars, number, or_dash};
use crate::visit::Visitor;

#[derive(Debug, Default, Deserialize)]
pub struct Asked {
    #[serde(default)]
    interval: String,
    #[serde(default)]
    level: String,
}

impl Asked {
    /// What is wished; what is no number, or out of bounds, is no wish.
    pub fn wish(&self) -> Wish {
        let interval =
            self.interval.trim().parse().ok().filter(|seconds| INTERVALS.contains(seconds));
        Wish { interval, relaxed: matches!(self.level.as_str(), "session" | "eventual") }
    }
}

pub async fn page(visitor: Visitor, Query(asked): Query<Asked>) -> Response {
    let cost = cost::load(&visitor.reader(), asked.wish()).await;
    let money = |column: &str, value: &str, _: &[Option<String>]| -> Option<Markup> {
        let dollar = [
            "dollars",
            "spent_dollars",
            "dollars_beyond",
            "an_hour",
            "a_day",
            "thirty_days",
            "per_1000_transactions",
            "dollars_per_month",
        ]
        .contains(&column);
        let amount: f64 = value.parse().ok()?;
        if dollar {
            return Some(html! { (dollars(amount)) });
        }
        (column == "measured_seconds").then(|| html! { (cost::measured(amount)) })
    };
    let body = html! {
        (show::part("What the last hour's rate makes", &cost.projection, Some(&money)))
        (shares(&cost.causes))
        (show::part("Where each dollar goes, since the start", &cost.causes, Some(&money)))
        (show::part("The bill, by resource", &cost.bill, Some(&money)))
        (show::part("By whom and what for", &cost.accounts, Some(&money)))
        (caps(&cost, &visitor))
        (what_if(&cost.what_if, &asked))
        (show::part("Price sheet, dollars", &cost.sheet, None))
        p.note { "Requests and bytes; what is stored is charged by the month beside this. " code { "--prices" } " chooses the sheet." }
    };
    Page::new("Cost", "/cost", body).response(&visitor)
}

/// What may be spent: the caps there are, and a form for another one where the console may write.
fn caps(cost: &Cost, visitor: &Visitor) -> Markup {
    let csrf = visitor.session.csrf.as_str();
    let may_write = visitor.console.options.may_write;
    let drop = |column: &str, value: &str, _: &[Option<String>]| -> Option<Markup> {
        if let (true, Ok(amount)) = (column.contains("dollars"), value.parse::<f64>()) {
            return Some(html! { (dollars(amount)) });
        }
        (may_write && column == "name").then(|| {
            html! {
                form.acts method="post" action="/cost/caps" {
                    span { (value) }
                    input type="hidden" name="csrf" value=(csrf);
                    input type="hidden" name="name" value=(value);
                    button.small name="act" value="drop" aria-label={ "Drop cap " (value) } { "Drop" }
                }
            }
        })
    };
    html! {
        (show::part("Spend caps", &cost.caps, Some(&drop)))
        @if may_write {
            form.row method="post" action="/cost/caps" aria-label="A spend cap" {
                input type="hidden" name="csrf" value=(csrf);
                label { "Name" input name="name" required maxlength="63"; }
                label { "Of"
                    select name="kind" {
                        @for kind in ["database", "role", "application", "statement"] { option value=(kind) { (kind) } }
                    }
                }
                label { "Which" input name="subject" required maxlength="1000" value="telesto"; }
                label { "Dollars" input type="number" name="dollars" required min="0" step="any"; }
                label { "Per"
                    select name="per" { @for per in ["hour", "day", "month"] { option value=(per) { (per) } } }
                }
                label { "When it is reached"
                    select name="mode" {
                        option value="warn" { "warn" }
                        option value="enforce" { "enforce" }
                    }
                }
                button.main name="act" value="set" { "Set" }
            }
        }
        @if cost.dry_run.rows().is_some_and(|table| !table.rows.is_empty()) {
            (show::part("What caps that only warn would have done", &cost.dry_run, Some(&drop)))
        }
    }
}

#[derive(Debug, Deserialize)]
pub struct Cap {
    csrf: String,
    act: String,
    name: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    subject: String,
    #[serde(default)]
    dollars: String,
    #[serde(default)]
    per: String,
    #[serde(default)]
    mode: String,
}

impl Cap {
    fn sql(&self) -> Result<String, Problem> {
        let name = quote_literal(&self.name);
        match self.act.as_str() {
            "drop" => Ok(format!("SELECT telesto_cap_drop({name})")),
            "set" => {
                let amount: f64 = self.dollars.trim().parse().unwrap_or(f64::NAN);
                if !amount.is_finite() || amount < 0.0 {
                    return Err(Problem::bad_request("dollars is a number, 0 or more"));
                }
                let text = |value: &str| quote_literal(value);
                Ok(format!(
                    "SELECT telesto_cap_set({name}, {}, {}, {amount}, {}, {})",
                    text(&self.kind),
                    text(&self.subject),
                    text(&self.per),
                    text(&self.mode)
                ))
            }
            _ => Err(Problem::bad_request("act is set or drop")),
        }
    }
}

/// `POST /cost/caps`
pub async fn change_caps(visitor: Visitor, headers: HeaderMap, Form(cap): Form<Cap>) -> Response {
    if let Err(problem) = visitor.sent(&headers, &cap.csrf) {
        return problem.into_response();
    }
    if !visitor.console.options.may_write {
        return Problem::read_only().into_response();
    }
    let changed = match cap.sql() {
        Ok(sql) => visitor.change(&sql).await,
        Err(problem) => Err(problem),
    };
    match changed {
        Ok(()) => Redirect::to("/cost").into_response(),
        Err(problem) => {
            let body = html! { (show::problem(&problem)) p { a href="/cost" { "Back" } } };
            Page::new("Cost", "/cost", body).response(&visitor)
        }
    }
}

/// Dollars by cause as bars.
fn shares(causes: &Part) -> Markup {
    let Part::Rows(table) = causes else { return html! {} };
    let mut by_cause: Vec<(String, f64)> = Vec::new();
    for row in &table.rows {
        let amount = table.get(row, "dollars").and_then(|text| text.parse().ok()).unwrap_or(0.0);
        let cause = table.get(row, "cause").unwrap_or_default();
        match by_cause.iter_mut().find(|(own, _)| own == cause) {
            Some((_, sum)) => *sum += amount,
            None => by_cause.push((cause.to_owned(), amount)),
        }
    }
    by_cause.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let all: f64 = by_cause.iter().map(|(_, amount)| amount).sum();
    html! {
        @if all > 0.0 {
            h2 { "By cause" }
            (show::bars(&by_cause.into_iter().map(|(cause, amount)| {
                (cause, amount / all, dollars(amount))
            }).collect::<Vec<_>>()))
        }
    }
}

fn what_if(found: &WhatIf, asked: &Asked) -> Markup {
    let shown = |amount: f64| (found.hours > 0.0).then(|| dollars(amount));
    let chosen = |level: &str| asked.level == level;
    html! {
        section aria-labelledby="what-if" {
            h2 #what-if { "What if" }
            form.row method="get" action="/cost" {
                label { "Seconds between checkpoints"
                    input type="number" name="interval" min="1" max="86400" step="any" value=(asked.interval)
                        placeholder=(or_dash(found.measured_interval.map(number)));
                }
                label { "Consistency of reads"
                    select name="level" {
                        option value="strict" { "strict: look at the log's tail" }
                        option value="session" selected[chosen("session")] { "session: no look" }
                        option value="eventual" selected[chosen("eventual")] { "eventual: no look" }
                    }
                }
                button.main type="submit" { "Compute" }
            }
            (show::figures(&[
                ("Now, an hour", or_dash(shown(found.now)), format!("measured over {}", cost::measured(found.hours * 3600.0))),
                ("Then, an hour", or_dash(shown(found.then)), "as wished above".to_owned()),
                ("Of now, checkpoints", or_dash(shown(found.folding)), format!("{} folds", number(found.folds))),
                ("Of now, looks at the tail", or_dash(shown(found.looks)), "none where the log is not in the bucket".to_owned()),
            ]))
            @if found.measured_interval.is_none() {
                p.note { "No checkpoint was made yet, so another interval changes nothing that was measured." }
            }
            p.note { "A checkpoint is taken to cost the same however much it folds; longer intervals make a node's opening slower." }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wish_out_of_bounds_is_none() {
        let wish = |interval: &str, level: &str| {
            Asked { interval: interval.to_owned(), level: level.to_owned() }.wish()
        };
        assert_eq!(wish(" 60 ", "session").interval, Some(60.0));
        assert!(wish("", "eventual").relaxed && !wish("", "strict").relaxed);
        for bad in ["", "0", "-1", "NaN", "inf", "1e9", "x"] {
            assert_eq!(wish(bad, "").interval, None, "{bad}");
        }
    }
}
