//! How the node that is asked is doing: health, throughput, latency, dollars, availability.
//!
//! # Purpose
//! The first page.
//!
//! # Invariants
//! - Figures of the last hour are sums over `telesto_history`; rates are per second of the time
//!   that it covers.
//! - Availability is the share that was done in time: reads within 50 ms, writes within 500 ms.
//!
//! # On failure
//! Each part fails by itself; `health` is the outcome of a strict read made for the purpose.
//!
//! # Limits
//! Of this process since it started, at most an hour.

use serde::Serialize;

use super::Part;
use crate::query::Reader;

const SUMS: &str = "coalesce(sum(seconds), 0) AS seconds, coalesce(sum(reads), 0) AS reads, \
     coalesce(sum(reads_in_time), 0) AS reads_in_time, coalesce(sum(writes), 0) AS writes, \
     coalesce(sum(writes_in_time), 0) AS writes_in_time, coalesce(sum(failures), 0) AS failures, \
     coalesce(sum(commits), 0) AS commits, coalesce(sum(requests), 0) AS requests, coalesce(sum(dollars), 0) AS dollars";

/// The first page.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    /// Whether strict reads are answered.
    pub health: Part,
    /// Sums over the last hour.
    pub hour: Part,
    /// Sums over the last minute.
    pub minute: Part,
    /// The newest stretch in which something was read or written.
    pub newest: Part,
    /// Nodes that are known.
    pub nodes: Part,
    /// The logs.
    pub logs: Part,
}

pub async fn load(reader: &Reader) -> Overview {
    let hour = format!("SELECT {SUMS} FROM telesto_history");
    let minute = format!("{hour} WHERE at > now() - interval '1 minute'");
    let newest = "SELECT at, read_p50_ms, read_p95_ms, read_p99_ms, write_p50_ms, write_p95_ms, write_p99_ms, sessions \
                  FROM telesto_history WHERE reads + writes > 0 ORDER BY at DESC LIMIT 1";
    let health = "SELECT version() AS version, now() AS at, (SELECT count(*) FROM pg_namespace) > 0 AS reads, \
                  (SELECT count(*) FROM pg_stat_activity) AS sessions";
    let nodes = "SELECT node, state, role, zone, version, silent_ms, is_self FROM telesto_nodes ORDER BY is_self DESC, node";
    let logs = "SELECT shard, medium, owner, applied_lsn, copies, copies_following FROM telesto_logs ORDER BY shard";
    let (health, hour, minute, newest, nodes, logs) = futures::join!(
        Part::of(reader, health),
        Part::of(reader, &hour),
        Part::of(reader, &minute),
        Part::of(reader, newest),
        Part::of(reader, nodes),
        Part::of(reader, logs),
    );
    Overview { health, hour, minute, newest, nodes, logs }
}

/// The last hour, a row a stretch, for the charts.
pub async fn history(reader: &Reader) -> Part {
    Part::of(
        reader,
        "SELECT extract(epoch FROM at)::float8 AS at, seconds, reads, reads_in_time, read_p50_ms, read_p99_ms, writes, \
         writes_in_time, write_p50_ms, write_p99_ms, failures, commits, sessions, requests, dollars \
         FROM telesto_history ORDER BY at",
    )
    .await
}
