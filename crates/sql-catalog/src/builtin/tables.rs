//! The system tables: which there are, and their columns.
//!
//! # Invariants
//! Names, order and types of the columns are PostgreSQL 15's (`pg_catalog.txt`,
//! `information_schema.txt`). `pg_node_tree` columns are text, and so are the domains of
//! `information_schema`. A table whose name ends in `()` is what a function of that name gives.
//!
//! # Limits
//! Their rows are computed elsewhere, for each use.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use telesto_sql_types::SqlType;

/// A system table.
#[derive(Debug)]
pub struct SystemTable {
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
/// What PostgreSQL has nothing like; after the others, whose OIDs stay as they are.
const TELESTO: &str = include_str!("telesto.txt");
/// Views of who may do what; after all others, whose OIDs stay as they are.
const RIGHTS: &str = include_str!("rights.txt");
/// Changes of curated tables; after all others.
const CURATED: &str = include_str!("curated.txt");
/// How clients came in; after all others.
const ENTRANCE: &str = include_str!("entrance.txt");
/// What functions without arguments give, and views that came later; after all others.
const LATER: &str = include_str!("later.txt");
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
        for (schema, text) in [
            ("pg_catalog", PG_CATALOG),
            ("information_schema", INFORMATION_SCHEMA),
            ("pg_catalog", TELESTO),
            ("information_schema", RIGHTS),
            ("pg_catalog", CURATED),
            ("pg_catalog", ENTRANCE),
            ("pg_catalog", LATER),
        ] {
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
        "numeric" => SqlType::Numeric(None),
        "timestamptz" => SqlType::TimestampTz(None),
        "interval" => SqlType::Interval,
        "name" => SqlType::Name,
        "json" => SqlType::Json,
        "jsonb" => SqlType::Jsonb,
        "char" => SqlType::InternalChar,
        "regproc" => SqlType::RegProc,
        "regtype" => SqlType::RegType,
        "bytea" => SqlType::Bytea,
        "int2vector" => SqlType::Int2Vector,
        "oidvector" => SqlType::OidVector,
        _ => SqlType::Text,
    }
}

/// The system table of that name; without a schema, `pg_catalog` is meant, which comes before every
/// search path.
pub fn find(schema: Option<&str>, name: &str) -> Option<&'static SystemTable> {
    let schema = match schema {
        None | Some("pg_catalog") => "pg_catalog",
        Some("information_schema") => "information_schema",
        Some(_) => return None,
    };
    all().find(|table| table.schema == schema && table.name == name)
}

/// All system tables.
pub fn all() -> impl Iterator<Item = &'static SystemTable> {
    tables().values().filter(|table| !table.name.ends_with("()"))
}

/// What the function of that name, without arguments, gives in FROM.
pub fn find_call(schema: Option<&str>, name: &str) -> Option<&'static SystemTable> {
    let known = tables().values().find(|table| table.name.strip_suffix("()") == Some(name));
    known.filter(|_| matches!(schema, None | Some("pg_catalog")))
}
