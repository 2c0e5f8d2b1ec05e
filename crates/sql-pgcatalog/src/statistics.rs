//! Rows of the views of statistics: `pg_stat_…`.
//!
//! # Invariants
//! What is not counted is NULL, not 0: nobody may conclude that an index is not used.
//!
//! # Limits
//! Of all nodes, each since it started; those that do not answer within a second are not in the
//! sums. `n_live_tup` is what this process knows. Blocks are not counted: there are none. The views
//! of system tables are empty.

use super::objects::DATABASE_OID;
use super::rows::RowSet;
use super::table_statistics;
use telesto_sql_catalog::rights::READ_ALL_STATS;
use telesto_sql_catalog::uses::{IndexCounts, TableCounts};
use telesto_sql_catalog::{CatalogSnapshot, Index, Table};
use telesto_sql_expr::Settings;
use telesto_sql_plan::SessionView;
use telesto_sql_plan::activity::Activity;
use telesto_sql_plan::everywhere::{self, Counts};
use telesto_sql_types::Datum;

/// What this process shows, and what the other nodes have counted.
type Counted<'a> = (&'a SessionView, &'a Counts);

/// Whether the view shows what nodes count.
pub(super) fn is_counted(view: &str) -> bool {
    matches!(
        view,
        "pg_stat_database"
            | "pg_stat_user_tables"
            | "pg_stat_all_tables"
            | "pg_stat_user_indexes"
            | "pg_stat_all_indexes"
    )
}

/// Fills the rows of such a view.
pub(super) fn counts(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    settings: &Settings,
    counted: Counted<'_>,
) {
    match out.name() {
        "pg_stat_database" => database(out, catalog, settings, counted),
        "pg_stat_user_tables" | "pg_stat_all_tables" => {
            for table in catalog.tables() {
                table_row(out, catalog, table, counted);
            }
        }
        _ => {
            for table in catalog.tables() {
                for index in table.known_indexes() {
                    index_row(out, catalog, (table, index), counted);
                }
            }
        }
    }
}

/// Fills the rows of the views of what is counted nowhere; of any other table, none.
pub(super) fn fill(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) -> bool {
    if !matches!(out.name(), "pg_statio_user_tables" | "pg_statio_all_tables") {
        return false;
    }
    for table in catalog.tables() {
        out.row()
            .uncounted()
            .set("relid", table.id.0)
            .set("schemaname", catalog.schema_name(table.schema))
            .set("relname", &table.name);
    }
    true
}

fn count(number: u64) -> Datum {
    Datum::Int8(i64::try_from(number).unwrap_or(i64::MAX))
}

fn of_table(table: &Table, (live, elsewhere): Counted<'_>) -> Option<TableCounts> {
    live.uses.of(table.id).map(|own| own + elsewhere.uses.of(table.id))
}

fn of_index(table: &Table, index: u32, (live, elsewhere): Counted<'_>) -> Option<IndexCounts> {
    let own = live.uses.of_index(table.id, index);
    own.map(|own| own + elsewhere.uses.of_index(table.id, index))
}

/// Scans and rows by all indexes of a table.
fn by_index(table: &Table, counted: Counted<'_>) -> (u64, u64) {
    let counts = table.known_indexes().filter_map(|index| of_index(table, index.id, counted));
    counts.fold((0, 0), |(scans, rows), counts| (scans + counts.scans, rows + counts.rows))
}

fn index_row(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    (table, index): (&Table, &Index),
    counted: Counted<'_>,
) {
    out.row()
        .uncounted()
        .set("relid", table.id.0)
        .set("indexrelid", index.oid)
        .set("schemaname", catalog.schema_name(table.schema))
        .set("relname", &table.name)
        .set("indexrelname", &index.name);
    if let Some(counts) = of_index(table, index.id, counted) {
        out.last()
            .set("idx_scan", count(counts.scans))
            .set("idx_tup_read", count(counts.rows))
            .set("idx_tup_fetch", count(counts.rows));
    }
}

fn table_row(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, table: &Table, counted: Counted<'_>) {
    out.row()
        .uncounted()
        .set("relid", table.id.0)
        .set("schemaname", catalog.schema_name(table.schema))
        .set("relname", &table.name);
    if let Some(rows) = counted.0.sizes.known(table.id) {
        out.last().set("n_live_tup", count(rows));
    }
    table_statistics::of_table(out, catalog, table);
    let Some(counts) = of_table(table, counted) else { return };
    let row = out
        .last()
        .set("seq_scan", count(counts.scans.0))
        .set("seq_tup_read", count(counts.scans.1))
        .set("n_tup_ins", count(counts.inserted))
        .set("n_tup_upd", count(counts.updated))
        .set("n_tup_del", count(counts.deleted));
    if table.known_indexes().next().is_some() {
        let (scans, rows) = by_index(table, counted);
        row.set("idx_scan", count(scans)).set("idx_tup_fetch", count(rows));
    }
}

/// Of the one database, and of what all nodes did in it.
fn database(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    settings: &Settings,
    counted: Counted<'_>,
) {
    let (live, elsewhere) = counted;
    let metrics = live.measured.metrics();
    let metric = |name: &str, elsewhere: u64| -> Datum {
        let found: Vec<f64> = metrics
            .iter()
            .filter(|metric| metric.name == name)
            .map(|metric| metric.value)
            .collect();
        match found.is_empty() {
            true => Datum::Null,
            // Counts, exact up to 2^53.
            false => count(found.iter().sum::<f64>() as u64 + elsewhere),
        }
    };
    let (mut read, mut fetched, mut written) = (0, 0, (0, 0, 0));
    for table in catalog.tables() {
        let (_, rows) = by_index(table, counted);
        fetched += rows;
        let counts = of_table(table, counted).unwrap_or_default();
        read += counts.scans.1 + rows;
        written.0 += counts.inserted;
        written.1 += counts.updated;
        written.2 += counts.deleted;
    }
    let backends = live.backends.shown().len().max(1) as u64 + elsewhere.backends;
    out.row()
        .uncounted()
        .set("datid", DATABASE_OID)
        .set("datname", &settings.database)
        .set("numbackends", i32::try_from(backends).unwrap_or(i32::MAX))
        .set("xact_commit", metric(everywhere::COMMITS, elsewhere.commits))
        .set("conflicts", metric(everywhere::CONFLICTS, elsewhere.conflicts))
        .set("sessions", metric(everywhere::SESSIONS, elsewhere.sessions))
        .set("tup_returned", count(read))
        .set("tup_fetched", count(fetched))
        .set("tup_inserted", count(written.0))
        .set("tup_updated", count(written.1))
        .set("tup_deleted", count(written.2));
    for unknown in [
        "checksum_last_failure",
        "blk_read_time",
        "blk_write_time",
        "session_time",
        "active_time",
        "idle_in_transaction_time",
        "stats_reset",
    ] {
        out.last().set(unknown, Datum::Null);
    }
}

/// Rows of `pg_stat_activity`: every session of this process that has a process id, the asking one,
/// and those of other nodes.
pub(super) fn activity(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    settings: &Settings,
    (live, elsewhere): (&SessionView, Vec<(i32, Activity)>),
) {
    let mut sessions = live.backends.shown();
    if sessions.is_empty() {
        // An embedded session has no process id that others could name.
        let own = Activity {
            user: settings.session_user.clone(),
            role: settings.session_role,
            application_name: settings.application_name.clone(),
            state: "active",
            ..Activity::default()
        };
        sessions.push((0, own));
    }
    sessions.extend(elsewhere);
    let actor = catalog.actor(settings.current_role);
    for (pid, mut shown) in sessions {
        // What sessions of other roles do is theirs.
        let told = actor.acts_as(shown.role) || actor.acts_as(READ_ALL_STATS);
        if !told {
            shown = Activity {
                user: shown.user,
                role: shown.role,
                query: "<insufficient privilege>".to_owned(),
                ..Activity::default()
            };
        }
        let time = |micros: Option<i64>| micros.map_or(Datum::Null, Datum::TimestampTz);
        let row = out
            .row()
            .set("datid", DATABASE_OID)
            .set("datname", &settings.database)
            .set("usesysid", shown.role)
            .set("usename", &shown.user)
            .set("application_name", &shown.application_name)
            .set("xact_start", time(shown.xact_start))
            .set("query_start", time(shown.query_start))
            .set("query", &shown.query);
        let row = if told {
            let wait = shown.wait.names();
            let wait = |of: fn((&'static str, &'static str)) -> &'static str| {
                wait.map_or(Datum::Null, |names| Datum::text(of(names)))
            };
            let client = shown.client;
            row.set("state", shown.state)
                .set("backend_type", "client backend")
                .set("wait_event_type", wait(|(kind, _)| kind))
                .set("wait_event", wait(|(_, event)| event))
                .set(
                    "client_addr",
                    client
                        .map_or(Datum::Null, |at| Datum::text(at.ip().to_canonical().to_string())),
                )
                .set("client_port", client.map_or(Datum::Null, |at| Datum::Int4(at.port().into())))
        } else {
            row
        };
        if pid != 0 {
            let row = row.set("pid", pid);
            if told {
                row.set("backend_start", time(Some(shown.backend_start)))
                    .set("state_change", time(Some(shown.state_change)));
            }
        }
    }
}
