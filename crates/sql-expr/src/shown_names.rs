//! How objects of the catalog are named when they are shown: by `regclass` and its kin, by deparsed
//! expressions, by the functions over the catalog.
//!
//! # Invariants
//! A name carries its schema unless the search path, or that the schema is `public`, makes that
//! unnecessary; each function says which of the two it goes by.

use std::sync::Arc;

use telesto_sql_catalog::{CatalogSnapshot, Table, UserType, builtin, temp};
use telesto_sql_types::SqlType;
use telesto_sql_types::enums::quoted;
use telesto_sql_types::identifier::quote_ident;

use crate::settings::Settings;

/// The table's name, with its schema unless that is `public` or the session's own.
pub fn table_name(catalog: &CatalogSnapshot, table: &Table) -> String {
    name_in(catalog, table.schema, &table.name)
}

/// A relation's name, as [`table_name`].
pub fn name_in(catalog: &CatalogSnapshot, schema: u32, name: &str) -> String {
    match catalog.schema_name(schema) {
        telesto_sql_catalog::PUBLIC => quote_ident(name),
        _ if temp::is_temporary(schema) => quote_ident(name),
        schema => format!("{}.{}", quote_ident(schema), quote_ident(name)),
    }
}

/// The relation's name, with its schema unless the search path makes that unnecessary.
pub fn relation_name(catalog: &CatalogSnapshot, settings: &Settings, oid: u32) -> Option<String> {
    let (schema, name) = catalog
        .sequences()
        .find(|s| s.oid == oid)
        .map(|s| (s.schema, s.name.as_str()))
        .or_else(|| catalog.tables().find(|t| t.id.0 == oid).map(|t| (t.schema, t.name.as_str())))
        .or_else(|| catalog.views().find(|v| v.oid == oid).map(|v| (v.schema, v.name.as_str())))?;
    let within = catalog.schema_name(schema);
    if is_visible(catalog, settings, within, name) {
        return Some(quote_ident(name));
    }
    Some(format!("{}.{}", quote_ident(within), quote_ident(name)))
}

/// Whether the name alone means the relation of this schema.
pub fn is_visible(
    catalog: &CatalogSnapshot,
    settings: &Settings,
    schema: &str,
    name: &str,
) -> bool {
    if schema == "pg_catalog" {
        return true;
    }
    let first = catalog.visible_in(name, &settings.effective_search_path());
    first.is_some() && first == catalog.schema(schema).map(|s| s.oid)
}

/// Whether the type is what its bare name means.
fn is_type_visible(catalog: &CatalogSnapshot, settings: &Settings, ty: &UserType) -> bool {
    let first = settings.effective_search_path().into_iter().find(|schema| {
        catalog.schema(schema).is_some_and(|s| catalog.user_type_named(s.oid, &ty.name).is_some())
    });
    first.as_deref() == Some(catalog.schema_name(ty.schema))
}

/// The name of a type as `format_type` writes it, without a modifier; `None` when it is not a
/// user's.
pub fn user_type_name(catalog: &CatalogSnapshot, settings: &Settings, oid: u32) -> Option<String> {
    let array = |ty: &&Arc<UserType>| oid != 0 && ty.array_oid == oid;
    let found = catalog.user_type(oid).or_else(|| catalog.user_types().find(array))?;
    let mut shown = quoted(&found.name);
    if !is_type_visible(catalog, settings, found) {
        shown = format!("{}.{shown}", quoted(catalog.schema_name(found.schema)));
    }
    if found.oid != oid {
        shown.push_str("[]");
    }
    Some(shown)
}

/// Whether the type with this OID is found by its bare name; `None`: there is none.
pub fn type_visible(catalog: &CatalogSnapshot, settings: &Settings, oid: u32) -> Option<bool> {
    if let Some(ty) = catalog.user_type(oid) {
        return Some(is_type_visible(catalog, settings, ty));
    }
    if let Some(ty) = catalog.user_types().find(|ty| ty.array_oid == oid) {
        return Some(is_type_visible(catalog, settings, ty));
    }
    SqlType::from_oid(oid).map(|_| true)
}

/// The name a reg* value is shown by; `None` when the OID names nothing.
pub fn reg_name(oid: u32, ty: &SqlType, catalog: &CatalogSnapshot) -> Option<String> {
    match ty {
        _ if oid == 0 => Some("-".to_owned()),
        SqlType::RegProc => crate::named_functions::name(oid),
        SqlType::RegProcedure => crate::named_functions::signature(oid),
        SqlType::RegClass => catalog
            .tables()
            .find_map(|table| {
                if table.id.0 == oid {
                    return Some(table_name(catalog, table));
                }
                let index = table.known_indexes().find(|index| index.oid == oid)?;
                Some(quote_ident(&index.name))
            })
            .or_else(|| {
                let sequence = catalog.sequence(oid)?;
                Some(name_in(catalog, sequence.schema, &sequence.name))
            })
            .or_else(|| {
                let view = catalog.views().find(|view| view.oid == oid)?;
                Some(name_in(catalog, view.schema, &view.name))
            })
            .or_else(|| {
                builtin::tables::all()
                    .find(|table| table.oid == oid)
                    .map(|table| table.name.to_owned())
            }),
        SqlType::RegNamespace => match oid {
            telesto_sql_catalog::PG_CATALOG_OID => Some("pg_catalog".to_owned()),
            telesto_sql_catalog::INFORMATION_SCHEMA_OID => Some("information_schema".to_owned()),
            oid => catalog.schema_by_oid(oid).map(|schema| quote_ident(&schema.name)),
        },
        SqlType::RegRole => {
            catalog.roles().find(|role| role.oid == oid).map(|role| quote_ident(&role.name))
        }
        _ => None,
    }
}
