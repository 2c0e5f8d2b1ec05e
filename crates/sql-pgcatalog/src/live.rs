//! System tables whose rows are the session's own: pg_cursors; its process's: the advisory locks of pg_locks; and those that
//! are read when the scan runs: `pg_stat_progress_create_index`.

use super::SystemTable;
use super::objects::DATABASE_OID;
use super::rows::RowSet;
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_catalog::build_record::progress;
use telesto_sql_expr::Settings;
use telesto_sql_plan::SessionView;
use telesto_sql_types::Datum;
use telesto_sql_types::Row;
use telesto_sql_types::error::Result;

/// Fills the table if it is one of these; whether it is.
pub(super) fn fill(out: &mut RowSet<'_>, live: &SessionView) -> bool {
    match out.name() {
        "pg_cursors" => {
            for cursor in &live.cursors {
                out.row()
                    .set("name", &cursor.name)
                    .set("statement", &cursor.statement)
                    .set("is_holdable", cursor.hold)
                    .set("is_binary", cursor.binary)
                    .set("is_scrollable", cursor.scroll)
                    .set("creation_time", Datum::TimestampTz(cursor.created_micros));
            }
            true
        }
        "pg_locks" => {
            let locks = live.locks.as_ref().map(|locks| locks.shown()).unwrap_or_default();
            for lock in locks {
                out.row()
                    .set("locktype", "advisory")
                    .set("database", DATABASE_OID)
                    .set("relation", Datum::Null)
                    .set("page", Datum::Null)
                    .set("tuple", Datum::Null)
                    .set("transactionid", Datum::Null)
                    .set("classid", lock.key.class)
                    .set("objid", lock.key.object)
                    .set("objsubid", i32::from(lock.key.sub))
                    .set("virtualtransaction", "")
                    .set("pid", lock.pid)
                    .set("mode", lock.mode.name())
                    .set("granted", lock.granted);
            }
            true
        }
        _ => false,
    }
}

/// Whether the table's rows are read by [`read`], and not computed.
pub fn is_read(table: &SystemTable) -> bool {
    table.name == "pg_stat_progress_create_index"
}

/// The rows of such a table. A block is 8 kB of keys and rows: there are no pages.
pub async fn read(
    table: &SystemTable,
    catalog: &CatalogSnapshot,
    settings: &Settings,
    live: &SessionView,
) -> Result<Vec<Row>> {
    const BLOCK: u64 = 8192;
    let mut out = RowSet::new(table);
    let Some(database) = &live.database else { return Ok(out.into_rows()) };
    for build in progress(database, catalog).await? {
        let record = &build.record;
        let counting = record.last.is_empty() || record.counted < record.last;
        let phase = if counting { "initializing" } else { "building index: scanning table" };
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        out.row()
            .set("pid", record.pid)
            .set("datid", DATABASE_OID)
            .set("datname", &settings.database)
            .set("relid", build.table.0)
            .set("index_relid", build.index_oid)
            .set("command", record.command.name())
            .set("phase", phase)
            .set("blocks_total", number(record.bytes_total.div_ceil(BLOCK)))
            .set("blocks_done", number(record.bytes_done.div_ceil(BLOCK)))
            .set("tuples_total", number(record.rows_total))
            .set("tuples_done", number(record.rows_done));
    }
    Ok(out.into_rows())
}
