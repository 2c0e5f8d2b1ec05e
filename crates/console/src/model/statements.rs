//! What runs now, and what ran since the start.
//!
//! # Purpose
//! `pg_stat_activity`, and `pg_stat_statements` where the server has it.
//!
//! # Invariants
//! A session is ended or its statement cancelled by SQL as the visitor: whoever may not do it in psql may not do it here.
//!
//! # On failure
//! Each part fails by itself.
//!
//! # Limits
//! The hundred statements that took most time.

use serde::Serialize;

use super::Part;
use crate::query::Reader;

/// What runs, and what ran.
#[derive(Clone, Debug, Serialize)]
pub struct Statements {
    pub activity: Part,
    pub statements: Part,
}

/// Columns of `pg_stat_statements` that are shown, as far as there are such.
const SHOWN: [&str; 14] = [
    "query",
    "calls",
    "total_exec_time",
    "mean_exec_time",
    "max_exec_time",
    "stddev_exec_time",
    "rows",
    "gets",
    "puts",
    "bytes_sent",
    "bytes_received",
    "cpu_seconds",
    "dollars",
    "dollars_per_call",
];

pub async fn load(reader: &Reader) -> Statements {
    let activity = "SELECT pid, usename, application_name, state, clock_timestamp() - query_start AS running_for, query \
                    FROM pg_stat_activity WHERE pid <> pg_backend_pid() ORDER BY state, query_start";
    let (activity, statements) = futures::join!(Part::of(reader, activity), statements(reader));
    Statements { activity, statements }
}

async fn statements(reader: &Reader) -> Part {
    let columns = "SELECT a.attname FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid \
                   WHERE c.relname = 'pg_stat_statements' AND a.attnum > 0";
    let there = match reader.table(columns).await {
        Ok(table) => table.texts("attname"),
        Err(error) => return Part::Failed { error },
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
