//! The nodes, the logs and their copies; the regions.
//!
//! # Purpose
//! What `telesto_nodes`, `telesto_logs`, `telesto_log_copies` and, where there is one,
//! `telesto_regions` show.
//!
//! # Invariants
//! None beyond those of [`super`].
//!
//! # On failure
//! Each part fails by itself.
//!
//! # Limits
//! How copies stand is known to the log's owner only.

use serde::Serialize;

use super::Part;
use crate::query::Reader;

/// The cluster.
#[derive(Clone, Debug, Serialize)]
pub struct Cluster {
    pub nodes: Part,
    pub logs: Part,
    pub copies: Part,
    /// Who owned the log when, and why that changed, newest first.
    pub changes: Part,
}

pub async fn load(reader: &Reader) -> Cluster {
    let nodes = "SELECT * FROM telesto_nodes ORDER BY is_self DESC, node";
    let logs = "SELECT * FROM telesto_logs ORDER BY shard";
    let copies = "SELECT * FROM telesto_log_copies ORDER BY shard, node";
    let there = reader.relations(&["telesto_log_history"]).await.unwrap_or_default();
    let changes = "SELECT at, reason, took_ms, medium, owner, host, first_lsn, loglet, chain_version FROM telesto_log_history \
                   ORDER BY shard, chain_version DESC LIMIT 50";
    let (nodes, logs, copies, changes) = futures::join!(
        Part::of(reader, nodes),
        Part::of(reader, logs),
        Part::of(reader, copies),
        Part::if_there(reader, "telesto_log_history", &there, changes),
    );
    Cluster { nodes, logs, copies, changes }
}

/// The regions.
#[derive(Clone, Debug, Serialize)]
pub struct Regions {
    pub regions: Part,
    /// How long after its commit in one region a transaction is seen in another.
    pub links: Part,
    /// Changes that met others of the same row, newest first.
    pub conflicts: Part,
    /// Which tables are where.
    pub placement: Part,
}

pub async fn regions(reader: &Reader) -> Regions {
    let names = ["telesto_regions", "telesto_links", "telesto_conflicts", "telesto_placement"];
    let there = match reader.relations(&names).await {
        Ok(there) => there,
        Err(error) => {
            let failed = || Part::Failed { error: error.clone() };
            return Regions {
                regions: failed(),
                links: failed(),
                conflicts: failed(),
                placement: failed(),
            };
        }
    };
    let links = "SELECT from_region, to_region, round(visible_mean_ms::numeric, 1) AS visible_mean_ms, \
                 round(visible_p50_ms::numeric, 1) AS visible_p50_ms, round(visible_p99_ms::numeric, 1) AS visible_p99_ms, \
                 round((round_trip_ms / 2)::numeric, 1) AS one_way_ms, sent_transactions, sent_bytes, metadata_bytes, told_ms_ago \
                 FROM telesto_links ORDER BY from_region, to_region";
    let conflicts = "SELECT kept_at, type, schema_name, table_name, encode(row_key, 'hex') AS row_key, kept_region, passed_over_region, \
                     passed_over_at FROM telesto_conflicts ORDER BY kept_at DESC LIMIT 100";
    let placement = "SELECT * FROM telesto_placement ORDER BY schema_name, table_name LIMIT 500";
    let (regions, links, conflicts, placement) = futures::join!(
        Part::if_there(reader, names[0], &there, "SELECT * FROM telesto_regions ORDER BY id"),
        Part::if_there(reader, names[1], &there, links),
        Part::if_there(reader, names[2], &there, conflicts),
        Part::if_there(reader, names[3], &there, placement),
    );
    Regions { regions, links, conflicts, placement }
}
