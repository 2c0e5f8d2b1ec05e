//! The log, the checkpoint, the settings, and every number that the process keeps of itself.
//!
//! # Purpose
//! For whoever runs the database.
//!
//! # Invariants
//! None beyond those of [`super`].
//!
//! # On failure
//! Each part fails by itself.
//!
//! # Limits
//! Settings are those of a session (`pg_settings`); what the process was started with is in its
//! configuration.

use serde::Serialize;

use super::Part;
use crate::query::Reader;

/// The log, the checkpoint, the settings.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    pub logs: Part,
    pub log: Part,
    pub checkpoint: Part,
    pub settings: Part,
}

/// Metrics of these prefixes, histograms without their buckets.
fn metrics(prefixes: &[&str]) -> String {
    let any = prefixes
        .iter()
        .map(|prefix| format!("starts_with(name, '{prefix}')"))
        .collect::<Vec<_>>()
        .join(" OR ");
    format!(
        "SELECT name, labels, value FROM telesto_metrics WHERE ({any}) AND name NOT LIKE '%\\_bucket' ORDER BY name"
    )
}

pub async fn load(reader: &Reader) -> Settings {
    let logs = "SELECT * FROM telesto_logs ORDER BY shard";
    let log = metrics(&["telesto_log_", "telesto_txn_append"]);
    let checkpoint = metrics(&[
        "telesto_txn_fold",
        "telesto_txn_tail",
        "telesto_txn_trim",
        "telesto_txn_applied",
    ]);
    let settings = "SELECT name, setting FROM pg_settings ORDER BY name";
    let (logs, log, checkpoint, settings) = futures::join!(
        Part::of(reader, logs),
        Part::of(reader, &log),
        Part::of(reader, &checkpoint),
        Part::of(reader, settings),
    );
    Settings { logs, log, checkpoint, settings }
}
