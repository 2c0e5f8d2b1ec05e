//! `/cost`: where each dollar goes, and what else it could be.
//!
//! # Purpose
//! Dollars by cause, the price sheet, a projection, a what-if.
//!
//! # Invariants
//! See [`crate::model::cost`].
//!
//! # On failure
//! See [`super`].
//!
//! # Limits
//! Requests of the node that is asked.

use axum::extract::Query;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use crate::model::Part;
use crate::model::cost::{self, INTERVALS, WhatIf, Wish};
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
        (what_if(&cost.what_if, &asked))
        (show::part("Price sheet, dollars", &cost.sheet, None))
        p.note { "Requests and bytes; what is stored is charged by the month beside this. " code { "--prices" } " chooses the sheet." }
    };
    Page::new("Cost", "/cost", body).response(&visitor)
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
            dl.bars {
                @for (cause, amount) in &by_cause {
                    div {
                        dt { (cause) }
                        dd {
                            meter min="0" max="1" value={ (amount / all) } aria-label={ (cause) ", share of all dollars" } {}
                            span { (dollars(*amount)) " · " (number(amount / all * 100.0)) " %" }
                        }
                    }
                }
            }
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
