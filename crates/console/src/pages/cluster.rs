//! `/cluster` and `/regions`.
//!
//! # Purpose
//! The nodes, the logs, their copies; the regions where there are any.
//!
//! # Invariants
//! States are told in words, colour only beside them.
//!
//! # On failure
//! See [`super`].
//!
//! # Limits
//! How copies stand is known to the log's owner only.

use axum::response::Response;
use maud::{Markup, html};

use crate::model::cluster;
use crate::pages::map;
use crate::show::{self, Page};
use crate::visit::Visitor;

/// States with a mark beside them.
pub fn state(column: &str, value: &str, _: &[Option<String>]) -> Option<Markup> {
    if column != "state" || value.is_empty() {
        return None;
    }
    let well = ["alive", "owner", "follower", "self", "following", "active", "ok", "live", "up"]
        .contains(&value);
    let ill = ["dead", "lost", "failed", "removed", "down", "gone"].contains(&value);
    Some(html! { span.state .well[well] .ill[ill] { (value) } })
}

pub async fn page(visitor: Visitor) -> Response {
    let cluster = cluster::load(&visitor.reader()).await;
    let body = html! {
        p.note { "As this node knows it. " code { "telesto cluster status" } " asks all of them." }
        (show::part("Nodes", &cluster.nodes, Some(&state)))
        (show::part("Logs", &cluster.logs, None))
        (show::part("Copies of the newest log", &cluster.copies, Some(&state)))
        (show::part("Who owned the log, and why that changed", &cluster.changes, None))
    };
    Page::new("Cluster", "/cluster", body).response(&visitor)
}

pub async fn regions(visitor: Visitor) -> Response {
    let regions = cluster::regions(&visitor.reader()).await;
    let body = html! {
        (show::part("Regions", &regions.regions, Some(&state)))
        @if let Some(links) = regions.links.rows() { (map::draw(links)) }
        (show::part("Visibility of each pair", &regions.links, None))
        (show::part("Which tables are where", &regions.placement, None))
        (show::part("Conflicts between regions", &regions.conflicts, None))
    };
    Page::new("Regions", "/regions", body).response(&visitor)
}
