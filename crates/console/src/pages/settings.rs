//! `/settings`: the log, the checkpoint, the settings.
//!
//! # Purpose
//! For whoever runs the database.
//!
//! # Invariants
//! None beyond those of [`super`].
//!
//! # On failure
//! See [`super`].
//!
//! # Limits
//! Shows; does not set. `SET` in the SQL page holds for one run.

use axum::response::Response;
use maud::html;

use crate::assets;
use crate::limits;
use crate::model::settings;
use crate::show::{self, Page};
use crate::visit::Visitor;

pub async fn page(visitor: Visitor) -> Response {
    let settings = settings::load(&visitor.reader()).await;
    let minutes = limits::IDLE.as_secs() / 60;
    let may_write = visitor.console.options.may_write;
    let body = html! {
        (show::part("Logs", &settings.logs, None))
        (show::part("Log", &settings.log, None))
        (show::part("Checkpoint and tail", &settings.checkpoint, None))
        section aria-labelledby="console-title" {
            h2 #console-title { "This console" }
            (show::figures(&[
                ("Writes", if may_write { "allowed" } else { "refused" }.to_owned(), "--console read-write or read-only".to_owned()),
                ("Log-in ends", format!("{minutes} min"), "after so long unused".to_owned()),
                ("Rows of a result", limits::ROWS.to_string(), "at most".to_owned()),
                ("Time of a run", format!("{} s", limits::TIME.as_secs()), "at most".to_owned()),
            ]))
            p.note { "Scripts of others that are part of it: " a href=(assets::url("licences.txt")) { "their licences" } "." }
        }
        (show::part("Settings of a session", &settings.settings, None))
    };
    Page::new("Settings", "/settings", body).response(&visitor)
}
