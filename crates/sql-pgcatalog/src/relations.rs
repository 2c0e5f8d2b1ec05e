//! Rows of `pg_class`, `pg_attribute`, `pg_attrdef` and `pg_index`.

use std::sync::Arc;

use super::objects::{C_COLLATION, DEFAULT_COLLATION, OWNER_OID};
use super::operator_classes;
use super::rows::RowSet;
use super::shown::{Over, Reader};
use telesto_sql_catalog::{
    BuildState, CatalogSnapshot, Generated, INFORMATION_SCHEMA_OID, PG_CATALOG_OID, Table, View,
};
use telesto_sql_expr::Settings;
use telesto_sql_types::SqlType;

/// OID of the heap access method.
pub(super) const HEAP: u32 = 2;

/// One row of pg_class; the columns that differ come as arguments.
pub(super) struct Class<'a> {
    pub(super) oid: u32,
    pub(super) name: &'a str,
    pub(super) schema: u32,
    pub(super) owner: u32,
    pub(super) kind: &'a str,
    pub(super) columns: usize,
    pub(super) checks: usize,
    pub(super) indexed: bool,
    pub(super) row_type: u32,
}

pub(super) fn class(out: &mut RowSet<'_>, class: &Class<'_>) {
    let method = match class.kind {
        "r" => HEAP,
        "i" => telesto_sql_catalog::builtin::BTREE,
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
        .set(
            "relpersistence",
            if telesto_sql_catalog::temp::is_temporary(class.oid) { "t" } else { "p" },
        )
        .set("relkind", class.kind)
        .set("relhasrules", class.kind == "v")
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
        let owner = table.owner.0;
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
                indexed: table.known_indexes().next().is_some(),
                row_type: table.type_oid,
            },
        );
        // PostgreSQL enforces foreign keys by triggers: psql looks at this flag for them.
        super::table_statistics::of_class(out, catalog, table);
        let keys = !table.foreign_keys.is_empty() || !catalog.referencing(table.id).is_empty();
        out.last()
            .set("relhastriggers", keys)
            .set("reloptions", options_of(table, catalog))
            .set("relrowsecurity", table.row_security.enabled)
            .set("relforcerowsecurity", table.row_security.forced)
            .set("relacl", super::acls::shown(catalog, table.acl.as_ref()));
        for index in table.known_indexes() {
            class(
                out,
                &Class {
                    oid: index.oid,
                    name: &index.name,
                    schema: table.schema,
                    owner,
                    kind: "i",
                    columns: index.columns.len() + index.include.len(),
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
                owner: sequence.owner.0,
                kind: "S",
                columns: 3,
                checks: 0,
                indexed: false,
                row_type: 0,
            },
        );
        out.last().set("relacl", super::acls::shown(catalog, sequence.acl.as_ref()));
    }
    for view in catalog.views() {
        class(
            out,
            &Class {
                oid: view.oid,
                name: &view.name,
                schema: view.schema,
                owner: view.owner.0,
                kind: "v",
                columns: view.columns.len(),
                checks: 0,
                indexed: false,
                row_type: view.type_oid,
            },
        );
        out.last()
            .set("relacl", super::acls::shown(catalog, view.acl.as_ref()))
            .set("reloptions", options_of_view(view));
    }
    super::composites::classes(out, catalog);
}

fn options_of_view(view: &View) -> Option<Vec<String>> {
    let set = [
        (view.security_barrier, "security_barrier=true"),
        (view.security_invoker, "security_invoker=true"),
    ];
    let mut options: Vec<String> =
        set.iter().filter(|(on, _)| *on).map(|(_, option)| (*option).to_owned()).collect();
    options.extend(view.check_option.map(|check| format!("check_option={}", check.name())));
    (!options.is_empty()).then_some(options)
}

/// Who curates a table and which key it has, as storage parameters of it.
fn options_of(table: &Table, catalog: &CatalogSnapshot) -> Option<Vec<String>> {
    let curators = table.curated.and_then(|role| catalog.role(role));
    let curated = curators.map(|role| format!("telesto.curated={}", role.name));
    let key = table.key.as_ref().map(|key| format!("telesto.key={}", key.name));
    let options: Vec<String> = curated.into_iter().chain(key).collect();
    (!options.is_empty()).then_some(options)
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
    "pg_stat_ssl",
    "pg_stat_gssapi",
    "pg_stat_progress_create_index",
    "pg_stat_user_tables",
    "pg_stat_all_tables",
    "pg_stat_sys_tables",
    "pg_statio_user_tables",
    "pg_statio_all_tables",
    "pg_stat_user_indexes",
    "pg_stat_all_indexes",
    "pg_stat_sys_indexes",
    "pg_stat_user_functions",
    "pg_stat_replication",
    "pg_stats",
    "pg_policies",
    "pg_rules",
    "pg_prepared_xacts",
    "pg_publication_tables",
    "pg_replication_slots",
    "pg_user_mappings",
    "pg_available_extensions",
    "pg_timezone_names",
    "telesto_nodes",
    "telesto_logs",
    "telesto_log_copies",
    "telesto_regions",
    "telesto_links",
    "telesto_conflicts",
    "telesto_placement",
    "telesto_costs",
    "telesto_bill",
    "telesto_session_costs",
    "telesto_prices",
    "telesto_storage",
    "telesto_space",
    "telesto_caps",
    "telesto_pending",
    "telesto_decided",
    "telesto_cap_dry_run",
    "telesto_activity_samples",
    "telesto_anomalies",
    "telesto_index_advice",
    "telesto_log_history",
    "pg_stat_statements",
    "pg_stat_statements_info",
    "pg_stat_archiver",
    "pg_stat_bgwriter",
    "pg_stat_database_conflicts",
    "pg_stat_progress_vacuum",
    "pg_stat_wal",
];

/// What a system table of `pg_catalog` is called in PostgreSQL.
pub(super) fn kind_of_system(name: &str) -> &'static str {
    if VIEWS.contains(&name) { "view" } else { "table" }
}

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
        SqlType::Numeric(_) | SqlType::Inet | SqlType::Cidr => "m",
        ty if ty.typlen() == -1 => "x",
        _ => "p",
    }
}

/// Whether it is a range or multirange over values of eight bytes.
fn has_wide_bounds(ty: &SqlType) -> bool {
    let (SqlType::Range(kind) | SqlType::Multirange(kind)) = ty else { return false };
    kind.subtype().typlen() == 8
}

pub(super) fn align_of(ty: &SqlType) -> &'static str {
    match ty.typlen() {
        _ if ty.element_type().unwrap_or(ty).is_row() => "d",
        _ if has_wide_bounds(ty.element_type().unwrap_or(ty)) => "d",
        1 => "c",
        2 => "s",
        8 | 12 | 16 if *ty != SqlType::Uuid => "d",
        16 => "c",
        _ => "i",
    }
}

pub(super) fn attribute(
    out: &mut RowSet<'_>,
    relation: u32,
    number: usize,
    name: &str,
    ty: &SqlType,
) {
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
            if let Some(domain) = column.domain {
                out.last().set("atttypid", domain).set("atttypmod", -1).set("attndims", 0);
            }
            out.last()
                .set("attnotnull", column.not_null)
                .set("atthasdef", column.default.is_some() || stored)
                .set("atthasmissing", column.missing.is_some())
                .set("attidentity", identity)
                .set("attgenerated", if stored { "s" } else { "" })
                .set("attacl", super::acls::shown(catalog, column.acl.as_ref()))
                .set("attisdropped", column.dropped);
        }
        for index in table.known_indexes() {
            let keys = index.columns.iter().map(|part| part.ty(table));
            let included = index.include.iter().filter_map(|at| table.columns.get(*at));
            let types = keys.chain(included.map(|column| &column.ty));
            for (at, (name, ty)) in index.column_names(table).iter().zip(types).enumerate() {
                attribute(out, index.oid, at + 1, name, ty);
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
    super::composites::attributes(out, catalog);
}

/// The OID of a column's default: derived, so that it needs no place in the catalog.
pub(super) fn default_oid(table: &Table, column: u16) -> u32 {
    0x4000_0000 | (table.id.0.wrapping_mul(1600).wrapping_add(u32::from(column)) & 0x3FFF_FFFF)
}

pub(super) fn defaults(out: &mut RowSet<'_>, catalog: &Arc<CatalogSnapshot>, settings: &Settings) {
    let reader = Reader::new(catalog, settings);
    for table in catalog.tables() {
        for (_, column) in table.visible_columns() {
            let text = match &column.generated {
                Some(Generated::Stored(text)) => Some(text),
                _ => column.default.as_ref(),
            };
            let shown =
                text.and_then(|text| reader.default_of(text, &Over::Columns(table), &column.ty));
            if let Some(shown) = shown {
                out.row()
                    .set("oid", default_oid(table, column.id))
                    .set("adrelid", table.id.0)
                    .set("adnum", i32::from(column.id))
                    .set("adbin", shown);
            }
        }
    }
}

pub(super) fn numbers(table: &Table, positions: impl Iterator<Item = usize>) -> Vec<i64> {
    positions.map(|at| table.columns.get(at).map_or(0, |column| i64::from(column.id))).collect()
}

pub(super) fn indexes(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for table in catalog.tables() {
        for index in table.known_indexes() {
            // Bit 0: descending, bit 1: NULLs first.
            let options: Vec<i64> = index
                .columns
                .iter()
                .map(|c| {
                    let descending = c.direction == telesto_common::key::Direction::Descending;
                    i64::from(descending) | i64::from(c.nulls_first()) << 1
                })
                .collect();
            let building = table.building.iter().find(|build| build.index.id == index.id);
            let filling = building.is_some_and(|build| build.state == BuildState::Filling);
            let all = index.columns.len() + index.include.len();
            // An expression has number 0.
            let columns = index.columns.iter().map(|c| c.column);
            let expressions: Vec<&str> = index
                .columns
                .iter()
                .filter_map(|c| c.expression.as_ref().map(|e| e.sql.as_str()))
                .collect();
            out.row()
                .set("indexrelid", index.oid)
                .set("indrelid", table.id.0)
                .set("indnatts", all)
                .set("indnkeyatts", index.columns.len())
                .set("indisunique", index.is_key())
                .set("indisprimary", index.is_primary())
                .set("indimmediate", index.deferral.is_none())
                .set("indisvalid", building.is_none())
                .set("indisready", building.is_none() || filling)
                .set("indnullsnotdistinct", index.nulls_not_distinct)
                .set("indislive", true)
                .set("indkey", numbers(table, columns.chain(index.include.iter().copied())))
                .set("indcollation", vec![0_i64; index.columns.len()])
                .set("indclass", operator_classes::of_index(table, index))
                .set("indoption", options)
                .set("indexprs", (!expressions.is_empty()).then(|| expressions.join(", ")))
                .set("indpred", index.predicate.clone());
        }
    }
}
