//! Rows of `information_schema`.

use std::sync::Arc;

use super::definitions::view_definition;
use super::rows::RowSet;
use super::shown::{Over, Reader};
use super::visible_rights::Seen;
use telesto_sql_catalog::{
    CatalogSnapshot, ForeignKeyAction, ForeignKeyMatch, Generated, Index, Sequence, Table,
    TypeKind, View,
};
use telesto_sql_expr::Settings;
use telesto_sql_plan::updatable_view::written_columns;
use telesto_sql_types::{Datum, SqlType};

/// Fills the rows of one table of `information_schema`.
pub(super) fn fill(out: &mut RowSet<'_>, catalog: &Arc<CatalogSnapshot>, settings: &Settings) {
    let database = settings.database.as_str();
    let path = settings.effective_search_path();
    let seen = Seen::by(catalog, settings.current_role);
    match out.name() {
        "information_schema_catalog_name" => {
            out.row().set("catalog_name", database);
        }
        "schemata" => {
            for name in ["pg_catalog", "information_schema"] {
                if catalog.schema(name).is_none() {
                    out.row()
                        .set("catalog_name", database)
                        .set("schema_name", name)
                        .set("schema_owner", "telesto");
                }
            }
            for schema in catalog.schemas().filter(|schema| seen.schema(schema)) {
                out.row()
                    .set("catalog_name", database)
                    .set("schema_name", &schema.name)
                    .set("schema_owner", catalog.role_name(schema.owner.0));
            }
        }
        "attributes" => super::composites::standard_attributes(out, catalog, database),
        "user_defined_types" => super::composites::standard_types(out, catalog, database),
        "tables" => tables(out, catalog, database, (&path, &seen)),
        "columns" => columns(out, catalog, settings, &seen),
        "table_constraints" => table_constraints(out, catalog, database, &seen),
        "key_column_usage" => key_columns(out, catalog, database, &seen),
        "referential_constraints" => references(out, catalog, database, &seen),
        "constraint_column_usage" => column_usage(out, catalog, settings, &seen),
        "domains" => domains(out, catalog, database),
        "domain_constraints" => super::user_types::domain_constraints(out, catalog, database),
        "check_constraints" => checks(out, catalog, settings, &seen),
        "views" => {
            for view in catalog.views().filter(|view| seen.view(view)) {
                let text =
                    seen.owns_view(view).then(|| view_definition(catalog, settings, view, false));
                let written = is_written(view, catalog, &path);
                let check = view.check_option.map(|check| check.name().to_uppercase());
                let check = check.unwrap_or_else(|| "NONE".to_owned());
                out.row()
                    .set("table_catalog", database)
                    .set("table_schema", catalog.schema_name(view.schema))
                    .set("table_name", &view.name)
                    .set("view_definition", text)
                    .set("check_option", check)
                    .set("is_updatable", written)
                    .set("is_insertable_into", written)
                    .set("is_trigger_updatable", false)
                    .set("is_trigger_deletable", false)
                    .set("is_trigger_insertable_into", false);
            }
        }
        "sequences" => {
            // As in PostgreSQL, without those of identity columns.
            let shown = |sequence: &&Arc<Sequence>| !sequence.identity && seen.sequence(sequence);
            for sequence in catalog.sequences().filter(shown) {
                out.row()
                    .set("sequence_catalog", database)
                    .set("sequence_schema", catalog.schema_name(sequence.schema))
                    .set("sequence_name", &sequence.name)
                    .set("data_type", sequence.ty.to_string())
                    .set("numeric_precision", integer_bits(&sequence.ty))
                    .set("numeric_precision_radix", 2)
                    .set("numeric_scale", 0)
                    .set("start_value", sequence.start)
                    .set("minimum_value", sequence.min)
                    .set("maximum_value", sequence.max)
                    .set("increment", sequence.increment)
                    .set("cycle_option", sequence.cycle);
            }
        }
        name => {
            let actor = catalog.actor(settings.current_role);
            match name {
                "table_privileges" | "role_table_grants" => {
                    super::acls::table_privileges(out, catalog, database, &actor);
                }
                "column_privileges" | "role_column_grants" => {
                    super::acls::column_privileges(out, catalog, database, &actor);
                }
                "usage_privileges" | "role_usage_grants" => {
                    super::acls::usage_privileges(out, catalog, database, &actor);
                }
                "enabled_roles" | "applicable_roles" | "administrable_role_authorizations" => {
                    super::acls::applicable(out, catalog, &actor);
                }
                _ => {}
            }
        }
    }
}

fn tables(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    database: &str,
    (path, seen): (&[String], &Seen<'_>),
) {
    let mut one = |schema: &str, name: &str, kind: &str, insertable: bool| {
        out.row()
            .set("table_catalog", database)
            .set("table_schema", schema)
            .set("table_name", name)
            .set("table_type", kind)
            .set("is_insertable_into", insertable)
            .set("is_typed", false);
    };
    for system in super::all() {
        let kind = if system.schema == "pg_catalog" { "BASE TABLE" } else { "VIEW" };
        one(system.schema, system.name, kind, false);
    }
    for table in catalog.tables().filter(|table| seen.table(table)) {
        let temporary = telesto_sql_catalog::temp::is_temporary(table.id.0);
        let kind = if temporary { "LOCAL TEMPORARY" } else { "BASE TABLE" };
        one(catalog.schema_name(table.schema), &table.name, kind, true);
    }
    for view in catalog.views().filter(|view| seen.view(view)) {
        let written = is_written(view, catalog, path);
        one(catalog.schema_name(view.schema), &view.name, "VIEW", written);
    }
}

/// Whether rows of a view can be inserted and updated.
fn is_written(view: &View, catalog: &CatalogSnapshot, path: &[String]) -> bool {
    written_columns(view, catalog, path).is_some_and(|columns| columns.contains(&true))
}

fn integer_bits(ty: &SqlType) -> Option<i64> {
    match ty {
        SqlType::Int2 => Some(16),
        SqlType::Int4 => Some(32),
        SqlType::Int8 => Some(64),
        SqlType::Float4 => Some(24),
        SqlType::Float8 => Some(53),
        _ => None,
    }
}

fn column(
    out: &mut RowSet<'_>,
    database: &str,
    schema: &str,
    table: &str,
    number: usize,
    name: &str,
    ty: &SqlType,
) {
    out.row()
        .set("table_catalog", database)
        .set("table_schema", schema)
        .set("table_name", table)
        .set("column_name", name)
        .set("ordinal_position", number)
        .set("is_nullable", true)
        .set("dtd_identifier", number.to_string())
        .set("is_self_referencing", false)
        .set("is_identity", false)
        .set("identity_cycle", false)
        .set("is_generated", "NEVER")
        .set("is_updatable", true);
    shape(out, database, ty, "udt");
}

/// What columns and domains tell of their type.
pub(super) fn shape(out: &mut RowSet<'_>, database: &str, ty: &SqlType, udt: &str) {
    let length = match ty {
        SqlType::Varchar(Some(n))
        | SqlType::Char(Some(n))
        | SqlType::Bit(Some(n))
        | SqlType::Varbit(Some(n)) => Some(i64::from(*n)),
        _ => None,
    };
    let (precision, scale, radix) = match ty {
        SqlType::Numeric(Some(m)) => {
            (Some(i64::from(m.precision)), Some(i64::from(m.scale)), Some(10))
        }
        SqlType::Numeric(None) => (None, None, Some(10)),
        ty if ty.is_integer() => (integer_bits(ty), Some(0), Some(2)),
        ty => (integer_bits(ty), None, integer_bits(ty).map(|_| 2)),
    };
    let time = match ty {
        SqlType::Time(p) | SqlType::TimeTz(p) | SqlType::Timestamp(p) | SqlType::TimestampTz(p) => {
            Some(i64::from(p.unwrap_or(6)))
        }
        SqlType::Interval => Some(6),
        SqlType::Date => Some(0),
        _ => None,
    };
    let shown = match ty {
        SqlType::Array(_) => "ARRAY".to_owned(),
        SqlType::Enum(_) | SqlType::Composite(_) => "USER-DEFINED".to_owned(),
        ty => ty.without_modifier().to_string(),
    };
    out.last()
        .set("data_type", if shown == "bpchar" { "character".to_owned() } else { shown })
        .set("character_maximum_length", length.map_or(Datum::Null, int4))
        .set("character_octet_length", octets(ty, length))
        .set("numeric_precision", precision.map_or(Datum::Null, int4))
        .set("numeric_precision_radix", radix.map_or(Datum::Null, int4))
        .set("numeric_scale", scale.map_or(Datum::Null, int4))
        .set("datetime_precision", time.map_or(Datum::Null, int4))
        .set("interval_precision", Datum::Null)
        .set("maximum_cardinality", Datum::Null)
        .set(&format!("{udt}_catalog"), database)
        .set(&format!("{udt}_schema"), udt_schema(ty))
        .set(&format!("{udt}_name"), ty.internal_name());
}

fn domains(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, database: &str) {
    for ty in catalog.user_types() {
        let Some(domain) = catalog.domain(ty.oid) else { continue };
        out.row()
            .set("domain_catalog", database)
            .set("domain_schema", &domain.schema)
            .set("domain_name", &domain.name)
            .set("dtd_identifier", "1");
        if let Some(default) = &domain.default {
            out.last().set("domain_default", default);
        }
        shape(out, database, &domain.base, "udt");
        of_parent(out, catalog, domain.oid);
    }
}

/// A domain made of another one is, for the standard, made of a user's type; so is a column of it.
fn of_parent(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, oid: u32) {
    let Some(TypeKind::Domain(domain)) = catalog.user_type(oid).map(|ty| &ty.kind) else { return };
    if let Some(parent) = domain.parent.and_then(|oid| catalog.user_type(oid)) {
        out.last()
            .set("data_type", "USER-DEFINED")
            .set("udt_schema", catalog.schema_name(parent.schema))
            .set("udt_name", &parent.name);
    }
}

fn udt_schema(ty: &SqlType) -> &str {
    match ty {
        SqlType::Enum(ty) => &ty.schema,
        SqlType::Composite(ty) => &ty.schema,
        SqlType::Array(element) => udt_schema(element),
        _ => "pg_catalog",
    }
}

fn int4(value: i64) -> Datum {
    Datum::Int4(i32::try_from(value).unwrap_or(i32::MAX))
}

fn octets(ty: &SqlType, length: Option<i64>) -> Datum {
    match (ty, length) {
        (_, Some(length)) => int4(length.saturating_mul(4)),
        (ty, None) if ty.is_string() => int4(1 << 30),
        _ => Datum::Null,
    }
}

fn columns(
    out: &mut RowSet<'_>,
    catalog: &Arc<CatalogSnapshot>,
    settings: &Settings,
    seen: &Seen<'_>,
) {
    let reader = Reader::new(catalog, settings);
    let database = settings.database.as_str();
    for system in super::all() {
        for (at, (name, ty)) in system.columns.iter().enumerate() {
            column(out, database, system.schema, system.name, at + 1, name, ty);
        }
    }
    for table in catalog.tables() {
        let schema = catalog.schema_name(table.schema);
        for (_, c) in table.visible_columns().filter(|(at, _)| seen.column(table, *at)) {
            column(out, database, schema, &table.name, usize::from(c.id), &c.name, &c.ty);
            if let Some(domain) = c.domain.and_then(|oid| catalog.domain(oid)) {
                out.last()
                    .set("domain_catalog", database)
                    .set("domain_schema", &domain.schema)
                    .set("domain_name", &domain.name);
                of_parent(out, catalog, domain.oid);
            }
            let nullable = !c.not_null
                && c.domain.and_then(|oid| catalog.domain(oid)).is_none_or(|d| !d.not_null);
            let setter = out.last().set("is_nullable", nullable);
            let setter = match &c.default {
                Some(text) => {
                    setter.set("column_default", reader.default_of(text, &Over::Nothing, &c.ty))
                }
                None => setter,
            };
            match &c.generated {
                Some(Generated::Stored(text)) => {
                    let shown = reader.default_of(text, &Over::Columns(table), &c.ty);
                    setter.set("is_generated", "ALWAYS").set("generation_expression", shown);
                }
                Some(Generated::IdentityAlways(oid) | Generated::IdentityByDefault(oid)) => {
                    let always = matches!(c.generated, Some(Generated::IdentityAlways(_)));
                    let setter = setter
                        .set("is_identity", true)
                        .set("identity_generation", if always { "ALWAYS" } else { "BY DEFAULT" });
                    if let Some(sequence) = catalog.sequence(*oid) {
                        setter
                            .set("identity_start", sequence.start)
                            .set("identity_increment", sequence.increment)
                            .set("identity_maximum", sequence.max)
                            .set("identity_minimum", sequence.min)
                            .set("identity_cycle", sequence.cycle);
                    }
                }
                None => {}
            }
        }
    }
    for view in catalog.views().filter(|view| seen.view(view)) {
        let schema = catalog.schema_name(view.schema);
        let written = written_columns(view, catalog, &settings.effective_search_path());
        for (at, (name, ty)) in view.columns.iter().enumerate() {
            column(out, database, schema, &view.name, at + 1, name, ty);
            let written = written.as_ref().is_some_and(|columns| columns.get(at) == Some(&true));
            out.last().set("is_updatable", written);
        }
    }
}

fn keys(table: &Table) -> impl Iterator<Item = &Index> {
    table.all_indexes().filter(|index| index.constraint_oid.is_some() || index.id == 0)
}

fn table_constraints(
    out: &mut RowSet<'_>,
    catalog: &CatalogSnapshot,
    database: &str,
    seen: &Seen<'_>,
) {
    for table in catalog.tables().filter(|table| seen.constraints(table)) {
        let schema = catalog.schema_name(table.schema);
        let mut one = |name: &str, kind: &str, deferral: (bool, bool)| {
            out.row()
                .set("constraint_catalog", database)
                .set("constraint_schema", schema)
                .set("constraint_name", name)
                .set("table_catalog", database)
                .set("table_schema", schema)
                .set("table_name", &table.name)
                .set("constraint_type", kind)
                .set("is_deferrable", deferral.0)
                .set("initially_deferred", deferral.1)
                .set("enforced", true);
        };
        for index in keys(table) {
            let kind = if index.is_primary() { "PRIMARY KEY" } else { "UNIQUE" };
            one(&index.name, kind, index.deferrable());
        }
        for check in &table.checks {
            one(&check.name, "CHECK", (false, false));
        }
        for key in &table.foreign_keys {
            one(&key.name, "FOREIGN KEY", (key.deferrable, key.initially_deferred));
        }
    }
}

fn key_columns(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, database: &str, seen: &Seen<'_>) {
    for table in catalog.tables() {
        let schema = catalog.schema_name(table.schema);
        let mut one = |constraint: &str, at: usize, position: usize, referenced: Option<i64>| {
            let Some(column) = table.columns.get(position) else { return };
            if !seen.column(table, position) {
                return;
            }
            out.row()
                .set("constraint_catalog", database)
                .set("constraint_schema", schema)
                .set("constraint_name", constraint)
                .set("table_catalog", database)
                .set("table_schema", schema)
                .set("table_name", &table.name)
                .set("column_name", &column.name)
                .set("ordinal_position", at + 1)
                .set("position_in_unique_constraint", referenced.map_or(Datum::Null, int4));
        };
        for index in keys(table) {
            for (at, part) in index.columns.iter().enumerate() {
                one(&index.name, at, part.column, None);
            }
        }
        for key in &table.foreign_keys {
            let referenced = catalog.table(key.referenced);
            let unique = referenced.and_then(|t| t.index(key.referenced_index));
            for (at, position) in key.columns.iter().enumerate() {
                let place =
                    unique.zip(key.referenced_columns.get(at)).and_then(|(index, column)| {
                        index.columns.iter().position(|part| part.column == *column)
                    });
                let place = place.and_then(|place| i64::try_from(place + 1).ok());
                one(&key.name, at, *position, place);
            }
        }
    }
}

fn references(out: &mut RowSet<'_>, catalog: &CatalogSnapshot, database: &str, seen: &Seen<'_>) {
    let rule = |action: ForeignKeyAction| match action {
        ForeignKeyAction::NoAction => "NO ACTION",
        ForeignKeyAction::Restrict => "RESTRICT",
        ForeignKeyAction::Cascade => "CASCADE",
        ForeignKeyAction::SetNull => "SET NULL",
        ForeignKeyAction::SetDefault => "SET DEFAULT",
    };
    for table in catalog.tables().filter(|table| seen.constraints(table)) {
        for key in &table.foreign_keys {
            let Some(referenced) = catalog.table(key.referenced) else { continue };
            let unique = referenced.index(key.referenced_index).map(|index| index.name.clone());
            out.row()
                .set("constraint_catalog", database)
                .set("constraint_schema", catalog.schema_name(table.schema))
                .set("constraint_name", &key.name)
                .set("unique_constraint_catalog", database)
                .set("unique_constraint_schema", catalog.schema_name(referenced.schema))
                .set("unique_constraint_name", unique)
                .set(
                    "match_option",
                    match key.match_kind {
                        ForeignKeyMatch::Simple => "NONE",
                        ForeignKeyMatch::Full => "FULL",
                    },
                )
                .set("update_rule", rule(key.on_update))
                .set("delete_rule", rule(key.on_delete));
        }
    }
}

fn column_usage(
    out: &mut RowSet<'_>,
    catalog: &Arc<CatalogSnapshot>,
    settings: &Settings,
    seen: &Seen<'_>,
) {
    let reader = Reader::new(catalog, settings);
    let database = settings.database.as_str();
    let mut one = |of: &Table, position: usize, schema: &str, constraint: &str| {
        let Some(column) = of.columns.get(position).filter(|_| seen.owns(of)) else { return };
        out.row()
            .set("table_catalog", database)
            .set("table_schema", catalog.schema_name(of.schema))
            .set("table_name", &of.name)
            .set("column_name", &column.name)
            .set("constraint_catalog", database)
            .set("constraint_schema", schema)
            .set("constraint_name", constraint);
    };
    for table in catalog.tables() {
        let schema = catalog.schema_name(table.schema);
        for index in keys(table) {
            for part in &index.columns {
                one(table, part.column, schema, &index.name);
            }
        }
        for check in &table.checks {
            for position in reader.columns_of(&check.expression, table) {
                one(table, position, schema, &check.name);
            }
        }
        for key in &table.foreign_keys {
            if let Some(referenced) = catalog.table(key.referenced) {
                for position in &key.referenced_columns {
                    one(referenced, *position, schema, &key.name);
                }
            }
        }
    }
}

fn checks(
    out: &mut RowSet<'_>,
    catalog: &Arc<CatalogSnapshot>,
    settings: &Settings,
    seen: &Seen<'_>,
) {
    let reader = Reader::new(catalog, settings);
    let database = settings.database.as_str();
    for table in catalog.tables().filter(|table| seen.owns(table)) {
        for check in &table.checks {
            let clause = reader.check(check, &Over::Columns(table), false);
            out.row()
                .set("constraint_catalog", database)
                .set("constraint_schema", catalog.schema_name(table.schema))
                .set("constraint_name", &check.name)
                .set("check_clause", clause.trim_start_matches("CHECK "));
        }
    }
}
