//! What runs now, what ran since the start, what that waited for, and what could be better.
//!
//! # Purpose
//! `pg_stat_activity`, `telesto_activity_samples`, `pg_stat_statements`, `telesto_anomalies`,
//! `telesto_index_advice`, as far as the server has them.
//!
//! # Invariants
//! A session is ended or its statement cancelled by SQL as the visitor: whoever may not do it in
//! psql may not do it here.
//!
//! # On failure
//! Each part fails by itself.
//!
//! # Limits
//! The hundred statements that took most time; [`TOP`] of the other orders; waits of the last
//! [`MINUTES`] minutes.

use serde::Serialize;

use super::Part;
use crate::query::Reader;

/// Statements of an order.
const TOP: usize = 20;
/// How far the waits go back.
pub const MINUTES: u32 = 15;

/// What runs, and what ran.
#[derive(Clone, Debug, Serialize)]
pub struct Statements {
    pub activity: Part,
    /// Sessions that were busy on average, by what they waited for.
    pub waits: Part,
    /// By the time they took.
    pub statements: Part,
    /// By dollars.
    pub dearest: Part,
    /// By conflicts.
    pub conflicted: Part,
    /// What ran unlike it used to.
    pub anomalies: Part,
    /// Indexes that are missing.
    pub advice: Part,
}

/// Columns of `pg_stat_statements` that are shown, as far as there are such.
const SHOWN: [&str; 17] = [
    "query",
    "plan",
    "calls",
    "total_exec_time",
    "mean_exec_time",
    "max_exec_time",
    "stddev_exec_time",
    "rows",
    "failures",
    "conflicts",
    "gets",
    "puts",
    "bytes_sent",
    "bytes_received",
    "cpu_seconds",
    "dollars",
    "dollars_per_call",
];

pub async fn load(reader: &Reader) -> Statements {
    let names = ["telesto_activity_samples", "telesto_anomalies", "telesto_index_advice"];
    let there = reader.relations(&names).await.unwrap_or_default();
    let activity = format!(
        "SELECT pid, usename, application_name, state, wait_event_type, wait_event, \
         clock_timestamp() - query_start AS running_for, query FROM pg_stat_activity \
         WHERE application_name <> '{}' ORDER BY state, query_start",
        crate::query::APPLICATION
    );
    let waits = format!(
        "SELECT CASE WHEN state <> 'active' THEN state ELSE coalesce(wait_event_type, 'Computing') END AS busy_with, \
         wait_event, round((sum(weight) / {})::numeric, 3) AS sessions_on_average, count(DISTINCT query) AS queries \
         FROM telesto_activity_samples WHERE at > clock_timestamp() - interval '{MINUTES} minutes' \
         AND application_name <> '{}' GROUP BY 1, 2 ORDER BY 3 DESC",
        MINUTES * 60,
        crate::query::APPLICATION
    );
    let anomalies = format!(
        "SELECT at, measure, round(value::numeric, 4) AS value, round(usual::numeric, 4) AS usual, \
         round(sigmas::numeric, 1) AS sigmas, calls, coalesce(query, '(the whole node)') AS query \
         FROM telesto_anomalies ORDER BY at DESC LIMIT {}",
        2 * TOP
    );
    let advice = "SELECT definition, table_name, scans, rows_read, round(rows_wanted::numeric, 1) AS rows_wanted, last_at, queries \
                  FROM telesto_index_advice ORDER BY rows_read DESC";
    let (activity, waits, by_time, dearest, conflicted, anomalies, advice) = futures::join!(
        Part::of(reader, &activity),
        Part::if_there(reader, names[0], &there, &waits),
        by_time(reader),
        by(reader, "dollars", "plan, calls, dollars, dollars_per_call, gets, puts, mean_exec_time"),
        by(reader, "conflicts", "plan, calls, conflicts, failures, mean_exec_time, max_exec_time"),
        Part::if_there(reader, names[1], &there, &anomalies),
        Part::if_there(reader, names[2], &there, advice),
    );
    Statements { activity, waits, statements: by_time, dearest, conflicted, anomalies, advice }
}

/// The columns that `pg_stat_statements` has.
async fn columns(reader: &Reader) -> Result<Vec<String>, Part> {
    let columns = "SELECT a.attname FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid \
                   WHERE c.relname = 'pg_stat_statements' AND a.attnum > 0";
    match reader.table(columns).await {
        Ok(table) => Ok(table.texts("attname")),
        Err(error) => Err(Part::Failed { error }),
    }
}

async fn by_time(reader: &Reader) -> Part {
    let there = match columns(reader).await {
        Ok(there) => there,
        Err(failed) => return failed,
    };
    let shown: Vec<&str> =
        SHOWN.into_iter().filter(|name| there.iter().any(|own| own == name)).collect();
    let Some(order) = ["total_exec_time", "calls"].into_iter().find(|name| shown.contains(name))
    else {
        return Part::missing("pg_stat_statements");
    };
    let shown = shown.join(", ");
    Part::of(
        reader,
        &format!("SELECT {shown} FROM pg_stat_statements ORDER BY {order} DESC LIMIT 100"),
    )
    .await
}

/// Statements that have most of something.
async fn by(reader: &Reader, order: &str, shown: &str) -> Part {
    match columns(reader).await {
        Ok(there) if there.iter().any(|own| own == order) => {}
        Ok(_) => return Part::missing(&format!("pg_stat_statements.{order}")),
        Err(failed) => return failed,
    }
    let sql = format!(
        "SELECT query, {shown} FROM pg_stat_statements WHERE {order} > 0 ORDER BY {order} DESC LIMIT {TOP}"
    );
    Part::of(reader, &sql).await
}
