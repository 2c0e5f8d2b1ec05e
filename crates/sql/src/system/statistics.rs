//! Rows of the views of statistics: `pg_stat_…`.
//!
//! # Invariants
//! What is not counted is NULL, not 0: nobody may conclude that an index is not used.
//!
//! # Limits
//! Nothing is counted by table or index yet; the metrics of a node say what it does as a whole. The views of system tables are empty.

use super::objects::{DATABASE_OID, role_oid};
use super::rows::RowSet;
use crate::catalog::CatalogSnapshot;
use crate::session::Settings;

/// Fills the rows of one of these views; of any other table, none.
pub(super) fn fill(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, settings: &Settings) {
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
        "pg_stat_activity" => {
            out.row()
                .set("datid", DATABASE_OID)
                .set("datname", &settings.database)
                .set("usesysid", role_oid(catalog, &settings.session_user))
                .set("usename", &settings.session_user)
                .set("application_name", &settings.application_name)
                .set("state", "active")
                .set("backend_type", "client backend");
        }
        _ => {}
    }
}
