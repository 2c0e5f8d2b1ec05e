//! `/board`: what the node's own prober saw, and a latency board from the outside.
//!
//! # Purpose
//! Both beside each other; the board's page has the rest.
//!
//! # Invariants
//! See [`crate::model::board`].
//!
//! # On failure
//! See [`super`].
//!
//! # Limits
//! Three windows.

use axum::response::Response;
use maud::{Markup, html};

use crate::model::board;
use crate::show::{self, Page};
use crate::visit::Visitor;

pub async fn page(visitor: Visitor) -> Response {
    let board = board::load(&visitor.reader(), &visitor.console).await;
    let promise = |column: &str, value: &str, _: &[Option<String>]| -> Option<Markup> {
        let (well, ill) = (value == "kept", value == "broken");
        (column == "promise").then(|| html! { span.state .well[well] .ill[ill] { (value) } })
    };
    let body = html! {
        p.note { "The promise: 99 of 100 reads within 50 ms, updates within 500 ms. Time that was not probed is unknown, never up." }
        (show::part("As this node sees itself", &board.own, Some(&promise)))
        @if let Some(page) = &board.page {
            p.note { "From the outside, as " a href=(page) { (page) } " saw it:" }
            (show::part("Figures", &board.figures, Some(&promise)))
        }
    };
    Page::new("Board", "/board", body).response(&visitor)
}
