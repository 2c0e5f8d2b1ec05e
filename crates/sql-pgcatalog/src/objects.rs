//! Rows of `pg_catalog`.
//!
//! # Invariants
//! OIDs agree between tables: what one refers to, another has. A primary or unique key has the
//! index's OID in `pg_class` and `pg_index`, and its constraint's OID in `pg_constraint`.

use std::sync::Arc;

use super::definitions::{index_definition, view_definition};
use super::procedures;
use super::relations::{
    HEAP, align_of, attributes, classes, collation_of, defaults, indexes, numbers, storage_of,
};
use super::rows::RowSet;
use super::shown::{Over, Reader};
use telesto_sql_catalog::{
    CatalogSnapshot, ForeignKeyAction, ForeignKeyMatch, INFORMATION_SCHEMA_OID, Index,
    PG_CATALOG_OID, Table,
};
use telesto_sql_expr::Settings;
use telesto_sql_types::sql_type::SCALARS;
use telesto_sql_types::{Datum, SqlType};

/// OID of the role everything of the system belongs to.
pub(super) const OWNER_OID: u32 = 10;
/// `pg_language` of what is part of the server.
pub(super) const INTERNAL_LANGUAGE: u32 = 12;
/// OID of the default collation.
pub(super) const DEFAULT_COLLATION: u32 = 100;
/// OID of the C collation.
pub(super) const C_COLLATION: u32 = 950;
/// OIDs of Unicode's collations, in the order of their names here.
const FIRST_UNICODE_COLLATION: u32 = 12_400;
/// OID of the default tablespace.
const DEFAULT_TABLESPACE: u32 = 1663;
/// OID of the user database.
pub(super) const DATABASE_OID: u32 = 5;
/// Number of PostgreSQL's UTF8 encoding.
const UTF8: i32 = 6;

/// Fills the rows of one table of `pg_catalog`.
pub(super) fn fill(out: &mut RowSet<'_>, catalog: &Arc<CatalogSnapshot>, settings: &Settings) {
    match out.name() {
        "pg_namespace" => namespaces(out, catalog),
        "pg_class" => classes(out, catalog),
        "pg_attribute" => attributes(out, catalog),
        "pg_attrdef" => defaults(out, catalog, settings),
        "pg_index" => indexes(out, catalog),
        "pg_constraint" => constraints(out, catalog, settings),
        "pg_type" => types(out, catalog, settings),
        "pg_enum" => super::user_types::labels(out, catalog),
        "pg_roles" | "pg_authid" => super::acls::roles(out, catalog),
        "pg_user" => super::acls::users(out, catalog),
        "pg_db_role_setting" => super::acls::settings(out, catalog),
        "pg_group" => super::acls::groups(out, catalog),
        "pg_auth_members" => super::acls::members(out, catalog),
        "pg_default_acl" => super::acls::defaults(out, catalog),
        "pg_init_privs" => super::acls::initial(out, catalog),
        "pg_database" => databases(out, catalog),
        "pg_proc" => procedures::rows(out),
        "pg_range" => super::range_types::rows(out),
        "pg_opclass" => super::operator_classes::classes(out),
        "pg_am" => {
            out.row()
                .set("oid", HEAP)
                .set("amname", "heap")
                .set("amhandler", "heap_tableam_handler")
                .set("amtype", "t");
            out.row()
                .set("oid", telesto_sql_catalog::builtin::BTREE)
                .set("amname", "btree")
                .set("amhandler", "bthandler")
                .set("amtype", "i");
        }
        "pg_collation" => {
            for (oid, name, provider) in
                [(DEFAULT_COLLATION, "default", "d"), (C_COLLATION, "C", "c"), (951, "POSIX", "c")]
            {
                out.row()
                    .set("oid", oid)
                    .set("collname", name)
                    .set("collnamespace", PG_CATALOG_OID)
                    .set("collowner", OWNER_OID)
                    .set("collprovider", provider)
                    .set("collisdeterministic", true)
                    .set("collencoding", -1);
            }
            let names = telesto_sql_parser::rewrite::collation::unicode_names();
            for (oid, (name, language)) in (FIRST_UNICODE_COLLATION..).zip(names) {
                out.row()
                    .set("oid", oid)
                    .set("collname", name)
                    .set("collnamespace", PG_CATALOG_OID)
                    .set("collowner", OWNER_OID)
                    .set("collprovider", "i")
                    .set("collisdeterministic", true)
                    .set("collencoding", -1)
                    .set("colliculocale", language);
            }
        }
        "pg_tablespace" => {
            out.row()
                .set("oid", DEFAULT_TABLESPACE)
                .set("spcname", "pg_default")
                .set("spcowner", OWNER_OID);
            out.row().set("oid", 1664_u32).set("spcname", "pg_global").set("spcowner", OWNER_OID);
        }
        "pg_language" => languages(out),
        "pg_description" => descriptions(out, catalog),
        "pg_depend" => {
            super::dependencies::rows(out, catalog);
        }
        "pg_rewrite" => super::dependencies::rewrites(out, catalog),
        "pg_sequence" => sequences(out, catalog),
        "pg_sequences" => sequence_views(out, catalog),
        "pg_policy" => super::policies::policies(out, catalog, settings),
        "pg_policies" => super::policies::policy_views(out, catalog, settings),
        "pg_tables" => table_views(out, catalog),
        "pg_indexes" => index_views(out, catalog),
        "pg_views" => views(out, catalog, settings),
        "pg_settings" | "pg_show_all_settings()" => {
            super::parameters::rows(out, settings, settings.is_superuser_in(catalog));
        }
        // There are no pages, no WAL and no archiver of it: nobody counts what they would do.
        "pg_stat_bgwriter" | "pg_stat_archiver" | "pg_stat_wal" => {
            out.row().uncounted();
        }
        // What a standby cancels: there is none.
        "pg_stat_database_conflicts" => {
            out.row().set("datid", DATABASE_OID).set("datname", &catalog.database_name);
        }
        "pg_timezone_names" => zones(out),
        "pg_get_keywords()" => super::keywords::fill(out),
        _ => {}
    }
}

fn languages(out: &mut RowSet<'_>) {
    out.row().set("oid", INTERNAL_LANGUAGE).set("lanname", "internal").set("lanowner", OWNER_OID);
    out.row()
        .set("oid", 14_u32)
        .set("lanname", "sql")
        .set("lanowner", OWNER_OID)
        .set("lanpltrusted", true);
}

fn namespaces(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    let builtin = [(PG_CATALOG_OID, "pg_catalog"), (INFORMATION_SCHEMA_OID, "information_schema")];
    for (oid, name) in builtin {
        if catalog.schema_by_oid(oid).is_none() {
            out.row().set("oid", oid).set("nspname", name).set("nspowner", OWNER_OID);
        }
    }
    for schema in catalog.schemas() {
        out.row()
            .set("oid", schema.oid)
            .set("nspname", &schema.name)
            .set("nspowner", schema.owner.0)
            .set("nspacl", super::acls::shown(catalog, schema.acl.as_ref()));
    }
}

fn constraints(out: &mut RowSet<'_>, catalog: &Arc<CatalogSnapshot>, settings: &Settings) {
    let reader = Reader::new(catalog, settings);
    super::user_types::constraints(out, catalog, &reader);
    let key = |out: &mut RowSet<'_>, table: &Table, index: &Index, oid: u32| {
        out.row()
            .set("oid", oid)
            .set("conname", &index.name)
            .set("connamespace", table.schema)
            .set("contype", if index.is_primary() { "p" } else { "u" })
            .set("condeferrable", index.deferrable().0)
            .set("condeferred", index.deferrable().1)
            .set("convalidated", true)
            .set("conrelid", table.id.0)
            .set("conindid", index.oid)
            .set("confupdtype", " ")
            .set("confdeltype", " ")
            .set("confmatchtype", " ")
            .set("conislocal", true)
            .set("connoinherit", true)
            .set("conkey", numbers(table, index.columns.iter().map(|c| c.column)));
    };
    let action = |action: ForeignKeyAction| match action {
        ForeignKeyAction::NoAction => "a",
        ForeignKeyAction::Restrict => "r",
        ForeignKeyAction::Cascade => "c",
        ForeignKeyAction::SetNull => "n",
        ForeignKeyAction::SetDefault => "d",
    };
    for table in catalog.tables() {
        for index in table.all_indexes() {
            if let Some(oid) = index.constraint_oid {
                key(out, table, index, oid);
            }
        }
        for check in &table.checks {
            let named = reader.columns_of(&check.expression, table);
            out.row()
                .set("conkey", (!named.is_empty()).then(|| numbers(table, named.into_iter())))
                .set("oid", check.oid)
                .set("conname", &check.name)
                .set("connamespace", table.schema)
                .set("contype", "c")
                .set("convalidated", check.validated)
                .set("conrelid", table.id.0)
                .set("confupdtype", " ")
                .set("confdeltype", " ")
                .set("confmatchtype", " ")
                .set("conislocal", true)
                .set("conbin", reader.condition(&check.expression, &Over::Columns(table), false));
        }
        for foreign in &table.foreign_keys {
            let referenced = catalog.table(foreign.referenced);
            let index = referenced.and_then(|t| t.index(foreign.referenced_index));
            let columns = referenced
                .map(|t| numbers(t, foreign.referenced_columns.iter().copied()))
                .unwrap_or_default();
            let set = &foreign.delete_columns;
            out.row()
                .set("oid", foreign.oid)
                .set("conname", &foreign.name)
                .set("connamespace", table.schema)
                .set("contype", "f")
                .set("condeferrable", foreign.deferrable)
                .set("condeferred", foreign.initially_deferred)
                .set("convalidated", foreign.validated)
                .set("conrelid", table.id.0)
                .set("conindid", index.map_or(0, |index| index.oid))
                .set("confrelid", foreign.referenced.0)
                .set("confupdtype", action(foreign.on_update))
                .set("confdeltype", action(foreign.on_delete))
                .set(
                    "confmatchtype",
                    match foreign.match_kind {
                        ForeignKeyMatch::Simple => "s",
                        ForeignKeyMatch::Full => "f",
                    },
                )
                .set("conislocal", true)
                .set("connoinherit", true)
                .set("conkey", numbers(table, foreign.columns.iter().copied()))
                .set("confkey", columns)
                .set(
                    "confdelsetcols",
                    (!set.is_empty()).then(|| numbers(table, set.iter().copied())),
                );
        }
    }
}

pub(super) fn category(ty: &SqlType) -> &'static str {
    match ty {
        SqlType::Array(element) if matches!(**element, SqlType::Record(_)) => "P",
        SqlType::Array(_) | SqlType::Int2Vector | SqlType::OidVector => "A",
        SqlType::Bool => "B",
        ty if ty.is_number() || ty.is_oid_like() => "N",
        ty if ty.is_string() => "S",
        SqlType::InternalChar => "Z",
        SqlType::Date
        | SqlType::Time(_)
        | SqlType::TimeTz(_)
        | SqlType::Timestamp(_)
        | SqlType::TimestampTz(_) => "D",
        SqlType::Interval => "T",
        SqlType::Inet | SqlType::Cidr => "I",
        SqlType::Bit(_) | SqlType::Varbit(_) => "V",
        SqlType::Range(_) | SqlType::Multirange(_) => "R",
        SqlType::Unknown => "X",
        SqlType::Composite(_) => "C",
        SqlType::Record(_) | SqlType::Void => "P",
        _ => "U",
    }
}

fn types(out: &mut RowSet<'_>, catalog: &Arc<CatalogSnapshot>, settings: &Settings) {
    let one = |out: &mut RowSet<'_>, ty: &SqlType, element: u32| {
        let pseudo = category(ty) == "P" || *ty == SqlType::Unknown;
        let name = ty.internal_name();
        let (kind, functions) = match ty {
            _ if element > 0 => ("b", "array"),
            _ if pseudo => ("p", name.as_str()),
            SqlType::Range(_) => ("r", "range"),
            SqlType::Multirange(_) => ("m", "multirange"),
            _ => ("b", name.as_str()),
        };
        // An array takes the modifiers of its elements.
        let modifiers = name.trim_start_matches('_');
        out.row()
            .set("oid", ty.oid())
            .set("typnamespace", PG_CATALOG_OID)
            .set("typowner", OWNER_OID)
            .set("typlen", i32::from(ty.typlen()))
            .set("typbyval", matches!(ty.typlen(), 1..=8))
            .set("typtype", if pseudo { "p" } else { kind })
            .set("typcategory", category(ty))
            .set(
                "typispreferred",
                matches!(
                    ty,
                    SqlType::Bool
                        | SqlType::Text
                        | SqlType::Float8
                        | SqlType::Oid
                        | SqlType::TimestampTz(_)
                        | SqlType::Interval
                        | SqlType::Inet
                        | SqlType::Varbit(_)
                ),
            )
            .set("typisdefined", true)
            .set("typdelim", ",")
            .set("typelem", element)
            .set("typarray", ty.array_oid())
            .set("typinput", telesto_sql_catalog::builtin::procedures::of_type(functions, "in"))
            .set("typoutput", telesto_sql_catalog::builtin::procedures::of_type(functions, "out"))
            .set("typreceive", telesto_sql_catalog::builtin::procedures::of_type(functions, "recv"))
            .set("typsend", telesto_sql_catalog::builtin::procedures::of_type(functions, "send"))
            .set(
                "typmodin",
                telesto_sql_catalog::builtin::procedures::of_type(modifiers, "typmodin"),
            )
            .set(
                "typmodout",
                telesto_sql_catalog::builtin::procedures::of_type(modifiers, "typmodout"),
            )
            .set("typsubscript", if element > 0 { "array_subscript_handler" } else { "" })
            .set(
                "typanalyze",
                match functions {
                    "array" | "range" | "multirange" => format!("{functions}_typanalyze"),
                    _ => String::new(),
                },
            )
            .set("typalign", align_of(ty))
            .set("typstorage", storage_of(ty))
            .set("typtypmod", -1)
            .set("typcollation", collation_of(ty))
            .set("typname", name);
    };
    for ty in SCALARS {
        one(out, ty, 0);
        if let Some(element) = ty.element_type() {
            out.last().set("typelem", element.oid());
        }
        if *ty == SqlType::Name {
            // A name is a row of letters that can be taken by a subscript, in PostgreSQL.
            out.last().set("typelem", SqlType::InternalChar.oid());
        }
        if ty.array_oid() != 0 {
            one(out, &ty.clone().array_of(), ty.oid());
        }
    }
    super::pseudo_types::rows(out);
    super::user_types::types(out, catalog, &Reader::new(catalog, settings));
    for row in row_types(catalog) {
        out.row()
            .set("oid", row.oid)
            .set("typname", row.name)
            .set("typnamespace", row.schema)
            .set("typowner", row.owner)
            .set("typlen", -1)
            .set("typtype", "c")
            .set("typcategory", "C")
            .set("typisdefined", true)
            .set("typdelim", ",")
            .set("typrelid", row.relation)
            .set("typinput", "record_in")
            .set("typoutput", "record_out")
            .set("typalign", "d")
            .set("typstorage", "x")
            .set("typtypmod", -1);
    }
}

/// The type of a relation's rows.
pub(super) struct RowType<'a> {
    pub(super) oid: u32,
    pub(super) schema: u32,
    pub(super) name: &'a str,
    owner: u32,
    pub(super) relation: u32,
}

/// The row types of tables and views.
pub(super) fn row_types(catalog: &CatalogSnapshot) -> impl Iterator<Item = RowType<'_>> {
    let tables = catalog.tables().map(|table| RowType {
        oid: table.type_oid,
        schema: table.schema,
        name: &table.name,
        owner: table.owner.0,
        relation: table.id.0,
    });
    let views = catalog.views().filter(|view| view.type_oid != 0).map(|view| RowType {
        oid: view.type_oid,
        schema: view.schema,
        name: &view.name,
        owner: view.owner.0,
        relation: view.oid,
    });
    tables.chain(views)
}

fn databases(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    out.row()
        .set("oid", DATABASE_OID)
        .set("datname", &catalog.database_name)
        .set("datdba", catalog.database_owner().0)
        .set("datacl", super::acls::shown(catalog, catalog.guarded_database().acl))
        .set("encoding", UTF8)
        .set("datlocprovider", "c")
        .set("datallowconn", true)
        .set("datconnlimit", -1)
        .set("dattablespace", DEFAULT_TABLESPACE)
        .set("datcollate", "C")
        .set("datctype", "C");
}

/// OID of pg_class, as other tables refer to it.
pub(super) const PG_CLASS: u32 = 1259;
pub(super) const PG_ATTRDEF: u32 = 2604;
pub(super) const PG_REWRITE: u32 = 2618;
const PG_CONSTRAINT: u32 = 2606;
/// OID of pg_type.
const PG_TYPE: u32 = 1247;
/// OID of pg_namespace.
pub(super) const PG_NAMESPACE: u32 = 2615;

fn descriptions(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    let mut one = |object: u32, class: u32, column: u32, comment: &Option<String>| {
        if let Some(comment) = comment {
            out.row()
                .set("objoid", object)
                .set("classoid", class)
                .set("objsubid", column)
                .set("description", comment);
        }
    };
    for schema in catalog.schemas() {
        // The schema that every database has comes with a comment, which pg_dump does not repeat.
        let standard = (schema.name == "public").then(|| "standard public schema".to_owned());
        one(schema.oid, PG_NAMESPACE, 0, &schema.comment.clone().or(standard));
    }
    for table in catalog.tables() {
        one(table.id.0, PG_CLASS, 0, &table.comment);
        for (_, column) in table.visible_columns() {
            one(table.id.0, PG_CLASS, u32::from(column.id), &column.comment);
        }
        for index in table.known_indexes() {
            one(index.oid, PG_CLASS, 0, &index.comment);
        }
        for (constraint, comment) in super::definitions::constraint_comments(table) {
            one(constraint, PG_CONSTRAINT, 0, &Some(comment.to_owned()));
        }
    }
    for sequence in catalog.sequences() {
        one(sequence.oid, PG_CLASS, 0, &sequence.comment);
    }
    for view in catalog.views() {
        one(view.oid, PG_CLASS, 0, &view.comment);
        for (number, comment) in &view.column_comments {
            one(view.oid, PG_CLASS, u32::from(*number), &Some(comment.clone()));
        }
    }
    for ty in catalog.user_types() {
        one(ty.oid, PG_TYPE, 0, &ty.comment);
    }
}

fn sequences(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for sequence in catalog.sequences() {
        out.row()
            .set("seqrelid", sequence.oid)
            .set("seqtypid", sequence.ty.oid())
            .set("seqstart", sequence.start)
            .set("seqincrement", sequence.increment)
            .set("seqmax", sequence.max)
            .set("seqmin", sequence.min)
            .set("seqcache", sequence.cache)
            .set("seqcycle", sequence.cycle);
    }
}

fn sequence_views(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for sequence in catalog.sequences() {
        out.row()
            .set("schemaname", catalog.schema_name(sequence.schema))
            .set("sequencename", &sequence.name)
            .set("sequenceowner", catalog.role_name(sequence.owner.0))
            .set("data_type", sequence.ty.to_string())
            .set("start_value", sequence.start)
            .set("min_value", sequence.min)
            .set("max_value", sequence.max)
            .set("increment_by", sequence.increment)
            .set("cycle", sequence.cycle)
            .set("cache_size", sequence.cache)
            .set("last_value", Datum::Null);
    }
}

fn table_views(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for table in catalog.tables() {
        out.row()
            .set("schemaname", catalog.schema_name(table.schema))
            .set("tablename", &table.name)
            .set("tableowner", catalog.role_name(table.owner.0))
            .set("hasindexes", table.known_indexes().next().is_some())
            .set("rowsecurity", table.row_security.enabled);
    }
}

fn index_views(out: &mut RowSet<'_>, catalog: &CatalogSnapshot) {
    for table in catalog.tables() {
        for index in table.known_indexes() {
            out.row()
                .set("schemaname", catalog.schema_name(table.schema))
                .set("tablename", &table.name)
                .set("indexname", &index.name)
                .set("indexdef", index_definition(catalog, table, index, None));
        }
    }
}

fn views(out: &mut RowSet<'_>, catalog: &Arc<CatalogSnapshot>, settings: &Settings) {
    for view in catalog.views() {
        out.row()
            .set("schemaname", catalog.schema_name(view.schema))
            .set("viewname", &view.name)
            .set("viewowner", catalog.role_name(view.owner.0))
            .set("definition", view_definition(catalog, settings, view, false));
    }
}

/// The zones as they are at the beginning of 2024's winter or summer: no clock is read here.
fn zones(out: &mut RowSet<'_>) {
    /// 2024-01-01.
    const AT: i64 = 8766 * 86_400 * 1_000_000;
    for (name, called, seconds, daylight) in telesto_sql_types::datetime::zones_at(AT) {
        let offset = telesto_sql_types::Interval {
            micros: i64::from(seconds) * 1_000_000,
            ..telesto_sql_types::Interval::default()
        };
        out.row()
            .set("name", name)
            .set("abbrev", called.as_str())
            .set("utc_offset", Datum::Interval(offset))
            .set("is_dst", daylight);
    }
}
