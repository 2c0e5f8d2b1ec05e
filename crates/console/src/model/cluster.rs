//! The nodes, the logs and their copies; the regions.
//!
//! # Purpose
//! What `telesto_nodes`, `telesto_logs`, `telesto_log_copies` and, where there is one, `telesto_regions` show.
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
}

pub async fn load(reader: &Reader) -> Cluster {
    let nodes = "SELECT * FROM telesto_nodes ORDER BY is_self DESC, node";
    let logs = "SELECT * FROM telesto_logs ORDER BY shard";
    let copies = "SELECT * FROM telesto_log_copies ORDER BY shard, node";
    let (nodes, logs, copies) =
        futures::join!(Part::of(reader, nodes), Part::of(reader, logs), Part::of(reader, copies),);
    Cluster { nodes, logs, copies }
}

/// The regions.
#[derive(Clone, Debug, Serialize)]
pub struct Regions {
    pub regions: Part,
}

pub async fn regions(reader: &Reader) -> Regions {
    let regions = match reader.relations(&["telesto_regions"]).await {
        Ok(found) if found.is_empty() => Part::Missing {
            missing: "This server knows no regions: it has no telesto_regions.".to_owned(),
        },
        Ok(_) => Part::of(reader, "SELECT * FROM telesto_regions").await,
        Err(error) => Part::Failed { error },
    };
    Regions { regions }
}
