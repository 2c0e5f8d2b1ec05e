//! The system tables: `pg_catalog` and `information_schema`, computed from the catalog snapshot.
//!
//! # Invariants
//! - Which tables there are, and their columns, is the catalog's list (`builtin::tables`):
//!   PostgreSQL 15's, so that psql, drivers and ORMs find what they look for.
//! - Rows describe the statement's own snapshot: a table created earlier in the same transaction is
//!   there.
//!
//! # Limits
//! Computed whole for each use: sized for catalogs of thousands of objects. Tables of features
//! Telesto has not (triggers, publications, …) are there and empty.

mod acls;
mod composites;
mod costs;
mod curated;
mod definitions;
mod dependencies;
mod described;
mod entrance;
mod functions;
mod information_schema;
mod introspection;
mod keywords;
pub mod live;
mod objects;
mod operator_classes;
mod parameters;
mod policies;
mod privileges;
mod procedures;
mod pseudo_types;
mod range_types;
mod regions;
mod relations;
mod rows;
mod shown;
mod space;
mod statistics;
mod storage;
mod table_statistics;
mod user_types;
mod view_names;
mod view_text;
mod visible_rights;
mod watch;

use std::sync::Arc;

/// The functions over the catalog.
pub const FUNCTIONS: [&[telesto_sql_expr::registry::Function]; 4] =
    [functions::TABLE, introspection::TABLE, privileges::TABLE, space::TABLE];

use telesto_sql_catalog::builtin::tables::{SystemTable, all};

use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_expr::Settings;
use telesto_sql_plan::SessionView;
use telesto_sql_types::Row;
use telesto_sql_types::error::Result;

/// For how long the rows of a system table stay what they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// As long as the catalog's content, and what is known of the rows of tables.
    Catalog,
    /// As long as that, and the session's settings.
    Settings,
    /// They differ from one look to the next.
    No,
}

/// For how long the rows of `table` stay what they are.
#[must_use]
pub fn lasting(table: &SystemTable) -> Lasting {
    match (table.schema, table.name) {
        (
            "pg_catalog",
            "pg_namespace" | "pg_class" | "pg_attribute" | "pg_index" | "pg_enum" | "pg_proc"
            | "pg_range" | "pg_opclass" | "pg_operator" | "pg_cast" | "pg_description"
            | "pg_depend" | "pg_rewrite" | "pg_sequence" | "pg_tables" | "pg_indexes",
        ) => Lasting::Catalog,
        ("pg_catalog", "pg_type" | "pg_constraint" | "pg_attrdef" | "pg_views")
        | (
            "information_schema",
            "columns"
            | "tables"
            | "views"
            | "table_constraints"
            | "key_column_usage"
            | "constraint_column_usage"
            | "referential_constraints"
            | "check_constraints",
        ) => Lasting::Settings,
        _ => Lasting::No,
    }
}

/// Whether the rows tell of the present whatever the transaction sees: of sessions, nodes, costs,
/// statistics, and of what waits for curators. Others follow from the catalog, or are the session's
/// own.
#[must_use]
pub fn is_of_the_present(table: &SystemTable) -> bool {
    match table.name {
        "pg_locks" => true,
        // PostgreSQL's catalogs of extended statistics, which are empty.
        "pg_statistic_ext" | "pg_statistic_ext_data" => false,
        "telesto_placement" => false,
        name => name.starts_with("telesto_") || name.starts_with("pg_stat"),
    }
}

/// The rows of a system table.
///
/// # Errors
/// XX001 when a stored definition does not parse.
pub fn rows(
    table: &SystemTable,
    catalog: &Arc<CatalogSnapshot>,
    settings: &Settings,
    live: &SessionView,
) -> Result<Vec<Row>> {
    let mut out = rows::RowSet::new(table);
    if table.schema == "pg_catalog" {
        if !costs::fill(&mut out, catalog, settings, live)?
            && !live::fill(&mut out, live)
            && !watch::fill(&mut out, catalog, live)
            && !regions::fill(&mut out, catalog)
            && !statistics::fill(&mut out, catalog)
            && !table_statistics::fill(&mut out, catalog, settings)?
        {
            objects::fill(&mut out, catalog, settings);
        }
    } else {
        information_schema::fill(&mut out, catalog, settings);
    }
    Ok(out.into_rows())
}
