//! What objects of the catalog are called in sentences: `pg_describe_object`.
//!
//! # Invariants
//! The words are PostgreSQL's. A name carries its schema where the search path does not find the
//! object without. Names of parts (columns, constraints, policies) are not quoted.
//!
//! # On failure
//! XX000 for a catalog whose objects nothing depends on, as PostgreSQL says it.

use telesto_sql_catalog::builtin::tables;
use telesto_sql_catalog::{CatalogSnapshot, PG_CATALOG_OID, Table, TypeKind};
use telesto_sql_expr::EvalContext;
use telesto_sql_expr::shown_names::{is_visible, relation_name, type_visible};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::identifier::quote_ident;

use super::objects::{DATABASE_OID, row_types};
use super::relations::{default_oid, kind_of_system};

/// The object `object` of the catalog `class`, or its part (a column) of that number; `None`: there
/// is none.
pub(super) fn describe(
    context: &EvalContext<'_>,
    class: u32,
    object: u32,
    part: i64,
) -> Result<Option<String>> {
    let catalog = context.catalog;
    let known = tables::all().find(|table| table.oid == class && table.schema == "pg_catalog");
    Ok(match known.map(|table| table.name) {
        Some("pg_class") => relation(context, object, part),
        Some("pg_type") => type_name(context, object).map(|name| format!("type {name}")),
        Some("pg_constraint") => constraint(context, object),
        Some("pg_attrdef") => catalog.tables().find_map(|table| {
            let column = table.columns.iter().find(|c| default_oid(table, c.id) == object)?;
            column.default.as_ref()?;
            let table = of_table(context, table)?;
            Some(format!("default value for column {} of {table}", column.name))
        }),
        Some("pg_proc") => reg(context, object, &SqlType::RegProcedure, "function"),
        Some("pg_namespace") => match object {
            PG_CATALOG_OID => Some("schema pg_catalog".to_owned()),
            telesto_sql_catalog::INFORMATION_SCHEMA_OID => {
                Some("schema information_schema".to_owned())
            }
            oid => catalog.schema_by_oid(oid).map(|schema| format!("schema {}", schema.name)),
        },
        Some("pg_authid") => {
            let role = catalog.roles().find(|role| role.oid == object);
            role.map(|role| format!("role {}", role.name))
        }
        Some("pg_database") => {
            (object == DATABASE_OID).then(|| format!("database {}", catalog.database_name))
        }
        Some("pg_rewrite") => {
            relation(context, object, 0).filter(|shown| shown.starts_with("view ")).map(|view| {
                // The rule of a view has the view's OID.
                format!("rule _RETURN on {view}")
            })
        }
        Some("pg_policy") => catalog.tables().find_map(|table| {
            let mut policies = table.row_security.policies.iter();
            let policy = policies.find(|policy| policy.oid == object)?;
            let table = of_table(context, table)?;
            Some(format!("policy {} on {table}", policy.name))
        }),
        Some(name) if UNDESCRIBED.contains(&name) => None,
        _ => return Err(Error::internal(format!("unrecognized object class: {class}"))),
    })
}

/// Catalogs of objects that are not there, or that nothing of a user's is.
const UNDESCRIBED: &[&str] = &[
    "pg_am",
    "pg_amop",
    "pg_amproc",
    "pg_cast",
    "pg_collation",
    "pg_conversion",
    "pg_default_acl",
    "pg_event_trigger",
    "pg_extension",
    "pg_foreign_data_wrapper",
    "pg_foreign_server",
    "pg_language",
    "pg_largeobject",
    "pg_opclass",
    "pg_operator",
    "pg_opfamily",
    "pg_parameter_acl",
    "pg_publication",
    "pg_publication_namespace",
    "pg_publication_rel",
    "pg_statistic_ext",
    "pg_subscription",
    "pg_tablespace",
    "pg_transform",
    "pg_trigger",
    "pg_ts_config",
    "pg_ts_dict",
    "pg_ts_parser",
    "pg_ts_template",
    "pg_user_mapping",
];

fn of_table(context: &EvalContext<'_>, table: &Table) -> Option<String> {
    let name = relation_name(context.catalog, context.settings, table.id.0)?;
    Some(format!("table {name}"))
}

fn relation(context: &EvalContext<'_>, oid: u32, part: i64) -> Option<String> {
    let (catalog, settings) = (context.catalog, context.settings);
    let named = relation_name(catalog, settings, oid);
    let table = catalog.tables().find(|table| table.id.0 == oid);
    let view = catalog.views().find(|view| view.oid == oid);
    let index = || super::functions::find_index(catalog, oid);
    let (kind, name) = match (table, view) {
        (Some(_), _) => ("table", named?),
        (None, Some(_)) => ("view", named?),
        _ if named.is_some() => ("sequence", named?),
        _ => match (index(), tables::all().find(|table| table.oid == oid)) {
            (Some((table, index)), _) => ("index", name_of(context, table.schema, &index.name)),
            (None, Some(system)) if system.schema == "pg_catalog" => {
                (kind_of_system(system.name), system.name.to_owned())
            }
            (None, Some(system)) => ("view", format!("{}.{}", system.schema, system.name)),
            (None, None) => {
                let ty = super::composites::of_relation(catalog, oid)?;
                ("composite type", type_name(context, ty)?)
            }
        },
    };
    if part == 0 {
        return Some(format!("{kind} {name}"));
    }
    let column = match (table, view) {
        (Some(table), _) => {
            let mut columns = table.columns.iter().filter(|column| !column.dropped);
            columns.find(|column| i64::from(column.id) == part)?.name.as_str()
        }
        (None, Some(view)) => {
            let at = usize::try_from(part - 1).ok()?;
            view.columns.get(at)?.0.as_str()
        }
        _ => return None,
    };
    Some(format!("column {column} of {kind} {name}"))
}

/// A relation's name, with its schema unless the search path makes that unnecessary.
fn name_of(context: &EvalContext<'_>, schema: u32, name: &str) -> String {
    let within = context.catalog.schema_name(schema);
    if is_visible(context.catalog, context.settings, within, name) {
        return quote_ident(name);
    }
    format!("{}.{}", quote_ident(within), quote_ident(name))
}

fn type_name(context: &EvalContext<'_>, oid: u32) -> Option<String> {
    let catalog: &CatalogSnapshot = context.catalog;
    if let Some(row) = row_types(catalog).find(|row| row.oid == oid) {
        return relation_name(catalog, context.settings, row.relation);
    }
    let pseudo = telesto_sql_catalog::builtin::pseudo_types::name(oid).is_some();
    if !pseudo && type_visible(catalog, context.settings, oid).is_none() {
        return None;
    }
    let value = telesto_sql_types::Datum::Oid(oid);
    telesto_sql_expr::text_form::output(&value, &SqlType::RegType, context).ok()
}

fn constraint(context: &EvalContext<'_>, oid: u32) -> Option<String> {
    let catalog = context.catalog;
    let of_domain = || {
        catalog.user_types().find_map(|ty| {
            let TypeKind::Domain(domain) = &ty.kind else { return None };
            let check = domain.checks.iter().find(|check| check.oid == oid)?;
            Some(format!("constraint {}", check.name))
        })
    };
    let of_tables = catalog.tables().find_map(|table| {
        let key = table.all_indexes().find(|index| index.constraint_oid == Some(oid));
        let name = key
            .map(|index| &index.name)
            .or_else(|| table.checks.iter().find(|check| check.oid == oid).map(|c| &c.name))
            .or_else(|| table.foreign_keys.iter().find(|key| key.oid == oid).map(|k| &k.name))?;
        Some(format!("constraint {name} on {}", of_table(context, table)?))
    });
    of_tables.or_else(of_domain)
}

fn reg(context: &EvalContext<'_>, oid: u32, ty: &SqlType, what: &str) -> Option<String> {
    let name = telesto_sql_expr::shown_names::reg_name(oid, ty, context.catalog);
    name.filter(|_| oid != 0).map(|name| format!("{what} {name}"))
}
