//! `/sql`: the editor.
//!
//! # Purpose
//! A text area that runs SQL through the API; the editor with completion takes its place when its
//! script has come.
//!
//! # Invariants
//! Reads only, unless the visitor switches and the server lets the console write.
//!
//! # On failure
//! Errors are shown with their place in the text.
//!
//! # Limits
//! See [`crate::limits`]. Each run is a session of its own: what it left open is rolled back, `SET`
//! and temporary tables end with it.

use axum::extract::Query;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::html;
use serde::Deserialize;

use crate::limits;
use crate::show::Page;
use crate::visit::Visitor;

#[derive(Debug, Default, Deserialize)]
pub struct Start {
    #[serde(default)]
    sql: String,
}

pub async fn page(visitor: Visitor, Query(start): Query<Start>) -> Response {
    let nonce = STANDARD.encode(visitor.console.inside.env().random_u128().to_be_bytes());
    let may_write = visitor.console.options.may_write;
    let body = html! {
        form #sql-form.editor {
            label.hidden for="sql-text" { "SQL" }
            textarea #sql-text name="sql" rows="9" spellcheck="false" autocapitalize="none" autocomplete="off"
                maxlength=(limits::SQL) placeholder="SELECT …" { (start.sql) }
            div.row {
                button.main #sql-run type="submit" { "Run" }
                button #sql-explain type="button" { "Explain" }
                button #sql-analyze type="button" title="Runs the statement and throws its rows away" { "Explain analyze" }
                button #sql-cancel type="button" disabled { "Cancel" }
                label { "Mode"
                    select #sql-mode {
                        option value="read_only" selected { "read only" }
                        @if may_write { option value="read_write" { "read and write" } }
                    }
                }
                label { "Rows"
                    select #sql-rows {
                        @for rows in [100, limits::USUAL_ROWS, 2_000, limits::ROWS] {
                            option value=(rows) selected[rows == limits::USUAL_ROWS] { (rows) }
                        }
                    }
                }
                label { "Time"
                    select #sql-time {
                        @for seconds in [5, limits::USUAL_TIME.as_secs(), 30, limits::TIME.as_secs()] {
                            option value=(seconds * 1000) selected[seconds == limits::USUAL_TIME.as_secs()] { (seconds) " s" }
                        }
                    }
                }
            }
        }
        p.note { kbd { "Ctrl" } "+" kbd { "Enter" } " runs. Each run is a session of its own; a transaction that it leaves open is rolled back." }
        p #sql-status role="status" aria-live="polite" {}
        div #sql-results {}
        noscript { p.problem { "Running SQL here needs scripts. " code { "psql" } " does not." } }
    };
    Page { scripts: &["editor.js"], nonce: Some(nonce), ..Page::new("SQL", "/sql", body) }
        .response(&visitor)
}
