//! `/board`: what a latency board saw from the outside.
//!
//! # Purpose
//! Its figures beside the node's own; the board's page has the rest.
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
    let console = &visitor.console;
    let board = board::load(console.inside.env(), console.options.board.as_ref()).await;
    let promise = |column: &str, value: &str, _: &[Option<String>]| -> Option<Markup> {
        let (well, ill) = (value == "kept", value == "broken");
        (column == "promise").then(|| html! { span.state .well[well] .ill[ill] { (value) } })
    };
    let body = html! {
        @if let Some(page) = &board.page { p.note { "As " a href=(page) { (page) } " saw it; the promise: 99 of 100 reads within 50 ms, updates within 500 ms." } }
        (show::part("Figures", &board.figures, Some(&promise)))
    };
    Page::new("Board", "/board", body).response(&visitor)
}
