//! What is known of tables' rows: `pg_stats`, `reltuples` and `relpages`, and what
//! `pg_stat_user_tables` says of ANALYZE.
//!
//! # Invariants
//! A column is shown to who may read it, and only if no row policies stand in the way: its values
//! are in the statistics.
//!
//! # Limits
//! As this process knows them ([`telesto_sql_catalog::statistics::KnownStatistics`]).

use std::sync::Arc;

use telesto_sql_catalog::statistics::{PAGE_BYTES, Valued, value_of};
use telesto_sql_catalog::{CatalogSnapshot, Column, Rights, Table};
use telesto_sql_expr::Settings;
use telesto_sql_plan::row_security;
use telesto_sql_types::error::Result;
use telesto_sql_types::{ArrayValue, Datum, SqlType};

use super::rows::RowSet;

/// Fills `pg_stats`; whether it is that.
///
/// # Errors
/// XX001 for a value that does not decode.
pub(super) fn fill(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    settings: &Settings,
) -> Result<bool> {
    if out.name() != "pg_stats" {
        return Ok(false);
    }
    let actor = catalog.actor(settings.current_role);
    for table in catalog.tables() {
        let Some(found) = catalog.statistics.of(table) else { continue };
        if row_security::applies(table, catalog, &actor) {
            continue;
        }
        for (at, column) in table.visible_columns() {
            let Some(known) = found.column(column) else { continue };
            if !catalog.column_rights(&actor, table, at).has(Rights::SELECT) {
                continue;
            }
            out.row()
                .set("schemaname", catalog.schema_name(table.schema))
                .set("tablename", &table.name)
                .set("attname", &column.name)
                .set("null_frac", Datum::Float4(known.null_fraction))
                .set("avg_width", known.width)
                .set("n_distinct", Datum::Float4(known.distinct))
                .set("correlation", known.correlation.map_or(Datum::Null, Datum::Float4));
            if !known.common.is_empty() {
                let values = known.common.iter().map(|(value, _)| value);
                let frequencies = known.common.iter().map(|(_, f)| Datum::Float4(*f)).collect();
                out.last()
                    .set("most_common_vals", listed(values, column, settings)?)
                    .set("most_common_freqs", array(SqlType::Float4, frequencies));
            }
            if !known.bounds.is_empty() {
                out.last().set("histogram_bounds", listed(known.bounds.iter(), column, settings)?);
            }
        }
    }
    Ok(true)
}

fn array(element: SqlType, items: Vec<Datum>) -> Datum {
    Datum::Array(Arc::new(ArrayValue::new(element, items)))
}

/// Values as the text of an array of them.
fn listed<'v>(
    values: impl Iterator<Item = &'v Valued>,
    column: &Column,
    settings: &Settings,
) -> Result<Datum> {
    let style = settings.text_style(0);
    let values = values.map(|value| value_of(value, &column.ty));
    let values = values.collect::<Result<Vec<Datum>>>()?;
    // An array has no arrays in it that are not of its own dimensions.
    let (values, element) = match &column.ty {
        SqlType::Array(_) => {
            let texts = values.iter().map(|value| Datum::text(value.to_text(&column.ty, &style)));
            (texts.collect(), SqlType::Text)
        }
        ty => (values, ty.clone()),
    };
    let ty = element.clone().array_of();
    Ok(Datum::text(array(element, values).to_text(&ty, &style)))
}

/// The row of `pg_class` set last is that of `table`.
pub(super) fn of_class(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, table: &Table) {
    let Some(found) = catalog.statistics.of(table) else { return };
    // As PostgreSQL after TRUNCATE: unknown.
    if found.record.storage != table.storage.0 {
        return;
    }
    let pages = (found.record.bytes / PAGE_BYTES).ceil();
    out.last()
        .set("reltuples", Datum::Float4(found.record.rows as f32))
        .set("relpages", i32::try_from(pages as i64).unwrap_or(i32::MAX));
}

/// The row of `pg_stat_all_tables` set last is that of `table`.
pub(super) fn of_table(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, table: &Table) {
    let Some(found) = catalog.statistics.of(table) else { return };
    let time = |micros: Option<i64>| micros.map_or(Datum::Null, Datum::TimestampTz);
    let count = |number: u64| Datum::Int8(i64::try_from(number).unwrap_or(i64::MAX));
    let (asked, automatic) = found.record.times;
    let row = out
        .last()
        .set("n_mod_since_analyze", count(found.changed))
        .set("last_analyze", time(found.record.asked_micros))
        .set("last_autoanalyze", time(found.record.automatic_micros))
        .set("analyze_count", count(asked))
        .set("autoanalyze_count", count(automatic));
    if let Some(rows) = found.rows {
        row.set("n_live_tup", count(rows.round() as u64));
    }
}
