//! Rows of `pg_class`, `pg_attribute`, `pg_attrdef` and `pg_index`.

use super::objects::{C_COLLATION, DEFAULT_COLLATION, OWNER_OID, role_oid};
use super::rows::RowSet;
use crate::catalog::{CatalogSnapshot, Generated, INFORMATION_SCHEMA_OID, PG_CATALOG_OID, Table};
use crate::types::SqlType;

/// OID of the heap access method.
pub(super) const HEAP: u32 = 2;
/// OID of the btree access method.
pub(super) const BTREE: u32 = 403;

/// One row of pg_class; the columns that differ come as arguments.
struct Class<'a> {
    oid: u32,
    name: &'a str,
    schema: u32,
    owner: u32,
    kind: &'a str,
    columns: usize,
    checks: usize,
    indexed: bool,
    row_type: u32,
}

fn class(out: &mut RowSet<'_>, class: &Class<'_>) {
    let method = match class.kind {
        "r" => HEAP,
        "i" => BTREE,
        _ => 0,
    };
    out.row()
        .set("oid", class.oid)
        .set("relname", class.name)
        .set("relnamespace", class.schema)
        .set("reltype", class.row_type)
        .set("relowner", class.owner)
        .set("relam", method)
        .set("relfilenode", class.oid)
        .set("relpages", 0)
        .set("reltuples", -1)
        .set("relhasindex", class.indexed)
        .set("relpersistence", "p")
        .set("relkind", class.kind)
        .set("relnatts", class.columns)
        .set("relchecks", class.checks)
        .set("relispopulated", true)
        .set("relreplident", if class.kind == "r" { "d" } else { "n" });
}

pub(super) fn classes(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for system in super::all() {
        let schema =
            if system.schema == "pg_catalog" { PG_CATALOG_OID } else { INFORMATION_SCHEMA_OID };
        let view = system.schema != "pg_catalog" || VIEWS.contains(&system.name);
        class(
            out,
            &Class {
                oid: system.oid,
                name: system.name,
                schema,
                owner: OWNER_OID,
                kind: if view { "v" } else { "r" },
                columns: system.columns.len(),
                checks: 0,
                indexed: false,
                row_type: 0,
            },
        );
    }
    for table in catalog.tables() {
        let owner = role_oid(catalog, &table.owner);
        class(
            out,
            &Class {
                oid: table.id.0,
                name: &table.name,
                schema: table.schema,
                owner,
                kind: "r",
                columns: table.columns.len(),
                checks: table.checks.len(),
                indexed: table.all_indexes().next().is_some(),
                row_type: table.type_oid,
            },
        );
        // Foreign keys are enforced by triggers in PostgreSQL, and psql looks at this flag for them.
        let keys = !table.foreign_keys.is_empty() || !catalog.referencing(table.id).is_empty();
        out.last().set("relhastriggers", keys);
        for index in table.all_indexes() {
            class(
                out,
                &Class {
                    oid: index.oid,
                    name: &index.name,
                    schema: table.schema,
                    owner,
                    kind: "i",
                    columns: index.columns.len(),
                    checks: 0,
                    indexed: false,
                    row_type: 0,
                },
            );
        }
    }
    for sequence in catalog.sequences() {
        class(
            out,
            &Class {
                oid: sequence.oid,
                name: &sequence.name,
                schema: sequence.schema,
                owner: role_oid(catalog, &sequence.owner),
                kind: "S",
                columns: 3,
                checks: 0,
                indexed: false,
                row_type: 0,
            },
        );
    }
    for view in catalog.views() {
        class(
            out,
            &Class {
                oid: view.oid,
                name: &view.name,
                schema: view.schema,
                owner: role_oid(catalog, &view.owner),
                kind: "v",
                columns: view.columns.len(),
                checks: 0,
                indexed: false,
                row_type: 0,
            },
        );
    }
}

/// The tables of `pg_catalog` that are views in PostgreSQL.
const VIEWS: &[&str] = &[
    "pg_roles",
    "pg_user",
    "pg_group",
    "pg_tables",
    "pg_indexes",
    "pg_views",
    "pg_matviews",
    "pg_sequences",
    "pg_settings",
    "pg_locks",
    "pg_cursors",
    "pg_prepared_statements",
    "pg_stat_activity",
    "pg_stat_user_tables",
    "pg_available_extensions",
    "pg_timezone_names",
];

pub(super) fn collation_of(ty: &SqlType) -> u32 {
    match ty {
        SqlType::Array(element) => collation_of(element),
        SqlType::Name => C_COLLATION,
        ty if ty.is_string() => DEFAULT_COLLATION,
        _ => 0,
    }
}

pub(super) fn storage_of(ty: &SqlType) -> &'static str {
    match ty {
        SqlType::Numeric(_) => "m",
        ty if ty.typlen() == -1 => "x",
        _ => "p",
    }
}

pub(super) fn align_of(ty: &SqlType) -> &'static str {
    match ty.typlen() {
        1 => "c",
        2 => "s",
        8 | 16 if *ty != SqlType::Uuid => "d",
        16 => "c",
        _ => "i",
    }
}

fn attribute(out: &mut RowSet<'_>, relation: u32, number: usize, name: &str, ty: &SqlType) {
    out.row()
        .set("attrelid", relation)
        .set("attname", name)
        .set("atttypid", ty.oid())
        .set("attstattarget", -1)
        .set("attlen", i32::from(ty.typlen()))
        .set("attnum", number)
        .set("attndims", i32::from(matches!(ty, SqlType::Array(_))))
        .set("attcacheoff", -1)
        .set("atttypmod", ty.typmod())
        .set("attbyval", matches!(ty.typlen(), 1..=8))
        .set("attalign", align_of(ty))
        .set("attstorage", storage_of(ty))
        .set("attcompression", "")
        .set("attidentity", "")
        .set("attgenerated", "")
        .set("attislocal", true)
        .set("attcollation", collation_of(ty));
}

pub(super) fn attributes(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for system in super::all() {
        for (at, (name, ty)) in system.columns.iter().enumerate() {
            attribute(out, system.oid, at + 1, name, ty);
        }
    }
    for table in catalog.tables() {
        for column in &table.columns {
            attribute(out, table.id.0, usize::from(column.id), &column.name, &column.ty);
            let identity = match column.generated {
                Some(Generated::IdentityAlways(_)) => "a",
                Some(Generated::IdentityByDefault(_)) => "d",
                _ => "",
            };
            let stored = matches!(column.generated, Some(Generated::Stored(_)));
            out.last()
                .set("attnotnull", column.not_null)
                .set("atthasdef", column.default.is_some() || stored)
                .set("atthasmissing", column.missing.is_some())
                .set("attidentity", identity)
                .set("attgenerated", if stored { "s" } else { "" })
                .set("attisdropped", column.dropped);
        }
        for index in table.all_indexes() {
            for (at, part) in index.columns.iter().enumerate() {
                if let Some(column) = table.columns.get(part.column) {
                    attribute(out, index.oid, at + 1, &column.name, &column.ty);
                }
            }
        }
    }
    for sequence in catalog.sequences() {
        let columns = [
            ("last_value", SqlType::Int8),
            ("log_cnt", SqlType::Int8),
            ("is_called", SqlType::Bool),
        ];
        for (at, (name, ty)) in columns.iter().enumerate() {
            attribute(out, sequence.oid, at + 1, name, ty);
        }
    }
    for view in catalog.views() {
        for (at, (name, ty)) in view.columns.iter().enumerate() {
            attribute(out, view.oid, at + 1, name, ty);
        }
    }
}

/// The OID of a column's default: derived, so that it needs no place in the catalog.
fn default_oid(table: &Table, column: u16) -> u32 {
    0x4000_0000 | (table.id.0.wrapping_mul(1600).wrapping_add(u32::from(column)) & 0x3FFF_FFFF)
}

pub(super) fn defaults(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for table in catalog.tables() {
        for (_, column) in table.visible_columns() {
            let text = match &column.generated {
                Some(Generated::Stored(text)) => Some(text),
                _ => column.default.as_ref(),
            };
            if let Some(text) = text {
                out.row()
                    .set("oid", default_oid(table, column.id))
                    .set("adrelid", table.id.0)
                    .set("adnum", i32::from(column.id))
                    .set("adbin", text);
            }
        }
    }
}

pub(super) fn numbers(table: &Table, positions: impl Iterator<Item = usize>) -> Vec<i64> {
    positions.map(|at| table.columns.get(at).map_or(0, |column| i64::from(column.id))).collect()
}

pub(super) fn indexes(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for table in catalog.tables() {
        for index in table.all_indexes() {
            let options: Vec<i64> = index
                .columns
                .iter()
                .map(|c| match c.direction {
                    telesto_common::key::Direction::Ascending => 0,
                    telesto_common::key::Direction::Descending => 3,
                })
                .collect();
            out.row()
                .set("indexrelid", index.oid)
                .set("indrelid", table.id.0)
                .set("indnatts", index.columns.len())
                .set("indnkeyatts", index.columns.len())
                .set("indisunique", index.unique || index.id == 0)
                .set("indisprimary", index.id == 0)
                .set("indimmediate", true)
                .set("indisvalid", true)
                .set("indisready", true)
                .set("indislive", true)
                .set("indkey", numbers(table, index.columns.iter().map(|c| c.column)))
                .set("indcollation", vec![0_i64; index.columns.len()])
                .set("indclass", vec![0_i64; index.columns.len()])
                .set("indoption", options)
                .set("indpred", index.predicate.clone());
        }
    }
}
