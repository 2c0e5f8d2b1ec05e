//! The system tables: `pg_catalog` and `information_schema`, computed from the catalog snapshot.
//!
//! # Invariants
//! - Names, order and types of the columns are PostgreSQL 15's (`pg_catalog.txt`, `information_schema.txt`), so that
//!   psql, drivers and ORMs find what they look for. `pg_node_tree` columns are served as text, and so are the
//!   domains of `information_schema`. A table whose name ends in `()` is what a function of that name gives.
//! - Rows describe the statement's own snapshot: a table created earlier in the same transaction is there.
//!
//! # Limits
//! Computed whole for each use: sized for catalogs of thousands of objects. Tables of features Telesto has not
//! (policies, triggers, publications, …) are there and empty.

pub(crate) mod definitions;
mod functions;
mod information_schema;
mod keywords;
pub(crate) mod live;
mod objects;
mod operator_classes;
pub(crate) mod procedures;
pub(crate) mod pseudo_types;
mod relations;
mod rows;
mod shown;
mod statistics;
pub(crate) mod user_types;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

pub use functions::TABLE as FUNCTIONS;
pub(crate) use relations::BTREE;

use crate::catalog::CatalogSnapshot;
use crate::error::Result;
use crate::identifier::quote_ident;
use crate::session::{Live, Row, Settings};
use crate::types::SqlType;

/// A system table.
#[derive(Debug)]
pub(crate) struct SystemTable {
    /// `pg_catalog` or `information_schema`.
    pub schema: &'static str,
    /// Name.
    pub name: &'static str,
    /// Columns.
    pub columns: Vec<(&'static str, SqlType)>,
    /// OID in pg_class.
    pub oid: u32,
}

const PG_CATALOG: &str = include_str!("pg_catalog.txt");
const INFORMATION_SCHEMA: &str = include_str!("information_schema.txt");

/// OIDs of the tables whose OID clients know by heart.
const WELL_KNOWN: &[(&str, u32)] = &[
    ("pg_type", 1247),
    ("pg_attribute", 1249),
    ("pg_proc", 1255),
    ("pg_class", 1259),
    ("pg_authid", 1260),
    ("pg_database", 1262),
    ("pg_constraint", 2606),
    ("pg_namespace", 2615),
    ("pg_description", 2609),
    ("pg_index", 2610),
    ("pg_attrdef", 2604),
    ("pg_depend", 2608),
    ("pg_rewrite", 2618),
];
/// First OID given to the others.
const FIRST_OID: u32 = 12_000;

fn tables() -> &'static BTreeMap<(&'static str, &'static str), SystemTable> {
    static TABLES: OnceLock<BTreeMap<(&'static str, &'static str), SystemTable>> = OnceLock::new();
    TABLES.get_or_init(|| {
        let mut out = BTreeMap::new();
        let mut next = FIRST_OID;
        for (schema, text) in
            [("pg_catalog", PG_CATALOG), ("information_schema", INFORMATION_SCHEMA)]
        {
            for line in text.lines() {
                let Some((name, columns)) = line.split_once(": ") else { continue };
                let columns = columns
                    .split(", ")
                    .filter_map(|column| {
                        let (name, ty) = column.split_once(' ')?;
                        Some((name, column_type(ty)))
                    })
                    .collect();
                let known = WELL_KNOWN.iter().find(|(known, _)| *known == name);
                let oid = known.map_or_else(
                    || {
                        next += 1;
                        next
                    },
                    |(_, oid)| *oid,
                );
                out.insert((schema, name), SystemTable { schema, name, columns, oid });
            }
        }
        out
    })
}

fn column_type(name: &str) -> SqlType {
    if let Some(element) = name.strip_suffix("[]") {
        return column_type(element).array_of();
    }
    match name {
        "oid" => SqlType::Oid,
        "bool" => SqlType::Bool,
        "int2" => SqlType::Int2,
        "int4" => SqlType::Int4,
        "int8" => SqlType::Int8,
        "float4" => SqlType::Float4,
        "float8" => SqlType::Float8,
        "timestamptz" => SqlType::TimestampTz(None),
        "interval" => SqlType::Interval,
        "name" => SqlType::Name,
        "char" => SqlType::InternalChar,
        "regproc" => SqlType::RegProc,
        "bytea" => SqlType::Bytea,
        "int2vector" => SqlType::Int2Vector,
        "oidvector" => SqlType::OidVector,
        _ => SqlType::Text,
    }
}

/// The system table of that name; without a schema, `pg_catalog` is meant, which comes before every search path.
pub(crate) fn find(schema: Option<&str>, name: &str) -> Option<&'static SystemTable> {
    let schema = match schema {
        None | Some("pg_catalog") => "pg_catalog",
        Some("information_schema") => "information_schema",
        Some(_) => return None,
    };
    all().find(|table| table.schema == schema && table.name == name)
}

/// All system tables.
pub(crate) fn all() -> impl Iterator<Item = &'static SystemTable> {
    tables().values().filter(|table| !table.name.ends_with("()"))
}

/// What the function of that name, without arguments, gives in FROM.
pub(crate) fn find_call(schema: Option<&str>, name: &str) -> Option<&'static SystemTable> {
    let known = tables().values().find(|table| table.name.strip_suffix("()") == Some(name));
    known.filter(|_| matches!(schema, None | Some("pg_catalog")))
}

/// The rows of a system table.
pub(crate) fn rows(
    table: &SystemTable,
    catalog: &Arc<CatalogSnapshot>,
    settings: &Settings,
    live: &Live,
) -> Result<Vec<Row>> {
    let mut out = rows::RowSet::new(table);
    if table.name == "pg_stat_activity" {
        statistics::activity(&mut out, catalog, settings, live);
    } else if table.schema == "pg_catalog" {
        if !live::fill(&mut out, live) {
            objects::fill(&mut out, catalog, settings);
        }
    } else {
        information_schema::fill(&mut out, catalog, settings);
    }
    Ok(out.into_rows())
}

/// The name a reg* value is shown by; `None` when the OID names nothing.
pub(crate) fn reg_name(oid: u32, ty: &SqlType, catalog: &CatalogSnapshot) -> Option<String> {
    match ty {
        _ if oid == 0 => Some("-".to_owned()),
        SqlType::RegProc => procedures::name(oid).map(str::to_owned),
        SqlType::RegClass => catalog
            .tables()
            .find_map(|table| {
                if table.id.0 == oid {
                    return Some(definitions::table_name(catalog, table));
                }
                let index = table.known_indexes().find(|index| index.oid == oid)?;
                Some(quote_ident(&index.name))
            })
            .or_else(|| {
                let sequence = catalog.sequence(oid)?;
                Some(definitions::name_in(catalog, sequence.schema, &sequence.name))
            })
            .or_else(|| {
                let view = catalog.views().find(|view| view.oid == oid)?;
                Some(definitions::name_in(catalog, view.schema, &view.name))
            })
            .or_else(|| all().find(|table| table.oid == oid).map(|table| table.name.to_owned())),
        SqlType::RegNamespace => match oid {
            crate::catalog::PG_CATALOG_OID => Some("pg_catalog".to_owned()),
            crate::catalog::INFORMATION_SCHEMA_OID => Some("information_schema".to_owned()),
            oid => catalog.schema_by_oid(oid).map(|schema| quote_ident(&schema.name)),
        },
        SqlType::RegRole => {
            catalog.roles().find(|role| role.oid == oid).map(|role| quote_ident(&role.name))
        }
        _ => None,
    }
}
