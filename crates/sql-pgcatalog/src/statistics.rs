//! Rows of the views of statistics: `pg_stat_…`.
//!
//! # Invariants
//! What is not counted is NULL, not 0: nobody may conclude that an index is not used.
//!
//! # Limits
//! Nothing is counted by table or index yet; the metrics of a node say what it does as a whole. The views of system tables are empty.

use super::objects::DATABASE_OID;
use super::rows::RowSet;
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_catalog::rights::READ_ALL_STATS;
use telesto_sql_expr::Settings;
use telesto_sql_plan::SessionView;
use telesto_sql_plan::activity::Activity;
use telesto_sql_types::Datum;

/// Fills the rows of one of these views; of any other table, none.
pub(super) fn fill(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    match out.name() {
        "pg_stat_user_tables"
        | "pg_stat_all_tables"
        | "pg_statio_user_tables"
        | "pg_statio_all_tables" => {
            for table in catalog.tables() {
                out.row()
                    .uncounted()
                    .set("relid", table.id.0)
                    .set("schemaname", catalog.schema_name(table.schema))
                    .set("relname", &table.name);
            }
        }
        "pg_stat_user_indexes" | "pg_stat_all_indexes" => {
            for table in catalog.tables() {
                for index in table.known_indexes() {
                    out.row()
                        .uncounted()
                        .set("relid", table.id.0)
                        .set("indexrelid", index.oid)
                        .set("schemaname", catalog.schema_name(table.schema))
                        .set("relname", &table.name)
                        .set("indexrelname", &index.name);
                }
            }
        }
        _ => {}
    }
}

/// Rows of `pg_stat_activity`: every session of this process that has a process id, and the asking one.
pub(super) fn activity(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    settings: &Settings,
    live: &SessionView,
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
            row.set("state", shown.state).set("backend_type", "client backend")
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
