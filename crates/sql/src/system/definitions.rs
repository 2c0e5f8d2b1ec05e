//! Objects of the catalog written as SQL, as `pg_get_indexdef` and `pg_get_constraintdef` show them.

use telesto_common::key::Direction;

use crate::catalog::{
    CatalogSnapshot, CheckConstraint, ForeignKey, ForeignKeyAction, ForeignKeyMatch, Index, Table,
};
use crate::identifier::quote_ident;

/// The table's name, with its schema unless that is `public`.
pub(crate) fn table_name(catalog: &CatalogSnapshot, table: &Table) -> String {
    match catalog.schema_name(table.schema) {
        crate::catalog::PUBLIC => quote_ident(&table.name),
        schema => format!("{}.{}", quote_ident(schema), quote_ident(&table.name)),
    }
}

fn column_list(table: &Table, positions: impl Iterator<Item = usize>) -> String {
    positions
        .map(|at| table.columns.get(at).map_or_else(String::new, |c| quote_ident(&c.name)))
        .collect::<Vec<_>>()
        .join(", ")
}

/// `CREATE [UNIQUE] INDEX …`. `short` leaves the schema `public` out.
pub(crate) fn index_definition(
    catalog: &CatalogSnapshot,
    table: &Table,
    index: &Index,
    short: bool,
) -> String {
    let columns = index
        .columns
        .iter()
        .map(|column| {
            let name =
                table.columns.get(column.column).map_or_else(String::new, |c| quote_ident(&c.name));
            match column.direction {
                Direction::Ascending => name,
                Direction::Descending => format!("{name} DESC"),
            }
        })
        .collect::<Vec<_>>()
        .join(", ");
    let on = if short {
        table_name(catalog, table)
    } else {
        format!("{}.{}", quote_ident(catalog.schema_name(table.schema)), quote_ident(&table.name))
    };
    let mut out = format!(
        "CREATE {}INDEX {} ON {on} USING btree ({columns})",
        if index.unique || index.id == 0 { "UNIQUE " } else { "" },
        quote_ident(&index.name),
    );
    if let Some(predicate) = &index.predicate {
        out.push_str(&format!(" WHERE ({predicate})"));
    }
    out
}

/// `PRIMARY KEY (…)` or `UNIQUE (…)`.
pub(crate) fn key_definition(table: &Table, index: &Index) -> String {
    let word = if index.id == 0 { "PRIMARY KEY" } else { "UNIQUE" };
    format!("{word} ({})", column_list(table, index.columns.iter().map(|c| c.column)))
}

/// `CHECK ((…))`.
pub(crate) fn check_definition(check: &CheckConstraint) -> String {
    let suffix = if check.validated { "" } else { " NOT VALID" };
    format!("CHECK (({})){suffix}", check.expression)
}

/// `FOREIGN KEY (…) REFERENCES …`.
pub(crate) fn foreign_key_definition(
    catalog: &CatalogSnapshot,
    table: &Table,
    key: &ForeignKey,
) -> String {
    let action = |action: ForeignKeyAction| match action {
        ForeignKeyAction::NoAction => None,
        ForeignKeyAction::Restrict => Some("RESTRICT"),
        ForeignKeyAction::Cascade => Some("CASCADE"),
        ForeignKeyAction::SetNull => Some("SET NULL"),
        ForeignKeyAction::SetDefault => Some("SET DEFAULT"),
    };
    let (name, columns) = catalog.table(key.referenced).map_or_else(
        || (String::new(), String::new()),
        |referenced| {
            let columns = column_list(referenced, key.referenced_columns.iter().copied());
            (table_name(catalog, referenced), columns)
        },
    );
    let mut out = format!(
        "FOREIGN KEY ({}) REFERENCES {name}({columns})",
        column_list(table, key.columns.iter().copied())
    );
    if key.match_kind == ForeignKeyMatch::Full {
        out.push_str(" MATCH FULL");
    }
    if let Some(word) = action(key.on_update) {
        out.push_str(&format!(" ON UPDATE {word}"));
    }
    if let Some(word) = action(key.on_delete) {
        out.push_str(&format!(" ON DELETE {word}"));
    }
    if key.deferrable {
        out.push_str(" DEFERRABLE");
    }
    if key.initially_deferred {
        out.push_str(" INITIALLY DEFERRED");
    }
    if !key.validated {
        out.push_str(" NOT VALID");
    }
    out
}

/// The constraint with this OID, as ALTER TABLE … ADD CONSTRAINT takes it.
pub(crate) fn constraint_definition(catalog: &CatalogSnapshot, oid: u32) -> Option<String> {
    for table in catalog.tables() {
        let key = table.all_indexes().find(|index| index.constraint_oid == Some(oid));
        if let Some(index) = key {
            return Some(key_definition(table, index));
        }
        if let Some(check) = table.checks.iter().find(|check| check.oid == oid) {
            return Some(check_definition(check));
        }
        if let Some(key) = table.foreign_keys.iter().find(|key| key.oid == oid) {
            return Some(foreign_key_definition(catalog, table, key));
        }
    }
    None
}
