//! Rows of `telesto_pending`, the changes that wait for curators, and `telesto_decided`, what
//! became of others.
//!
//! # Invariants
//! - A change is shown to its author and to those who decide on it; nobody else learns that it is
//!   there.
//! - Its rows are shown to those of them who may read the whole table: rights on all columns, and
//!   no row policies. What was there before may hold more than its author sees. What this node
//!   cannot open is shown as NULL.
//!
//! # On failure
//! Those of the database.
//!
//! # Limits
//! Read whole, in a transaction of its own: what is decided in the statement's own transaction
//! still waits here.

use std::sync::Arc;

use telesto_common::TableId;
use telesto_sql_catalog::curated::{WaitingTable, all_decided, all_waiting};
use telesto_sql_catalog::{Actor, CatalogSnapshot, Guarded, Rights};
use telesto_sql_expr::functions::curated::changes;
use telesto_sql_expr::{EvalContext, Settings};
use telesto_sql_types::Datum;
use telesto_sql_types::error::{Result, SqlState};
use telesto_txn::{Database, TxnOptions};

use super::rows::RowSet;

/// Fills the table if it is one of these; whether it is.
pub(super) async fn fill(
    out: &mut RowSet<'_>,
    database: &Arc<dyn Database>,
    catalog: &Arc<CatalogSnapshot>,
    settings: &Settings,
) -> Result<bool> {
    let pending = match out.name() {
        "telesto_pending" => true,
        "telesto_decided" => false,
        _ => return Ok(false),
    };
    let txn = database.begin(TxnOptions { read_only: true, ..TxnOptions::default() }).await?;
    let actor = catalog.actor(settings.current_role);
    let named =
        |oid: u32| catalog.role(oid).map_or_else(|| oid.to_string(), |role| role.name.clone());
    if pending {
        for change in all_waiting(&*txn, catalog.database).await? {
            if change.author.0 != actor.oid && !actor.acts_as(change.curators) {
                continue;
            }
            for table in &change.tables {
                let shown = shown(table, &actor, catalog, settings)?;
                out.row()
                    .set("id", Datum::Int8(change.id))
                    .set("schema_name", &table.name.0)
                    .set("table_name", &table.name.1)
                    .set("author", &change.author.1)
                    .set("curators", named(change.curators))
                    .set("made", Datum::TimestampTz(change.made_micros))
                    .set("rows", count(table.rows.len() as u64))
                    .set("changes", shown);
            }
        }
    } else {
        for decided in all_decided(&*txn, catalog.database).await? {
            if decided.author.0 != actor.oid && !actor.acts_as(decided.curators) {
                continue;
            }
            let tables: Vec<String> =
                decided.tables.iter().map(|(schema, name, _)| format!("{schema}.{name}")).collect();
            let reason = decided.reason.as_deref().map_or(Datum::Null, Datum::text);
            out.row()
                .set("id", Datum::Int8(decided.id))
                .set("tables", tables.join(", "))
                .set("author", &decided.author.1)
                .set("curators", named(decided.curators))
                .set("made", Datum::TimestampTz(decided.made_micros))
                .set("curator", &decided.curator.1)
                .set("decided", Datum::TimestampTz(decided.decided_micros))
                .set("decision", if decided.approved { "approved" } else { "rejected" })
                .set("reason", reason)
                .set("rows", count(decided.tables.iter().map(|(_, _, rows)| rows).sum()));
        }
    }
    txn.rollback();
    Ok(true)
}

fn shown(
    waiting: &WaitingTable,
    actor: &Actor,
    catalog: &Arc<CatalogSnapshot>,
    settings: &Settings,
) -> Result<Datum> {
    let Some(table) = catalog.table(TableId(waiting.oid)) else { return Ok(Datum::Null) };
    let reads = Guarded::table(table).need(actor, Rights::SELECT).is_ok()
        && !telesto_sql_plan::row_security::applies(table, catalog, actor);
    if !reads {
        return Ok(Datum::Null);
    }
    let context = EvalContext::planning(settings, catalog);
    match changes(table, waiting, &context) {
        Ok(changes) => Ok(changes.unwrap_or(Datum::Null)),
        // A key that is not at hand, or rows that are none: whoever decides needs the number all
        // the same, to reject it.
        Err(error)
            if matches!(
                error.code(),
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE | SqlState::DATA_CORRUPTED
            ) =>
        {
            Ok(Datum::Null)
        }
        Err(error) => Err(error),
    }
}

fn count(number: u64) -> Datum {
    Datum::Int8(i64::try_from(number).unwrap_or(i64::MAX))
}
