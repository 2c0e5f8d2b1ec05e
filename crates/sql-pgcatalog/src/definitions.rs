//! Objects of the catalog written as SQL, as `pg_get_indexdef` and `pg_get_constraintdef` show
//! them.

use std::sync::Arc;

use telesto_common::key::Direction;

use super::view_text::view_text;
use telesto_sql_catalog::{
    CatalogSnapshot, ForeignKey, ForeignKeyAction, ForeignKeyMatch, Index, IndexColumn, Table, View,
};
use telesto_sql_expr::EvalContext;
use telesto_sql_expr::Settings;
use telesto_sql_expr::shown_names::{is_visible, relation_name, user_type_name};
use telesto_sql_parser::rewrite::{collation, variadic};
use telesto_sql_parser::stored::parse_over_row;
use telesto_sql_plan::index_expressions;
use telesto_sql_types::identifier::quote_ident;

/// A stored expression as it is shown: relations by their names, where the catalog has OIDs.
pub(crate) fn shown_expression(
    catalog: &CatalogSnapshot,
    settings: &Settings,
    text: &str,
) -> String {
    let relations = named(text, "'::REGCLASS", |oid| relation_name(catalog, settings, oid));
    named(&relations, "'::regtype", |oid| user_type_name(catalog, settings, oid))
}

/// A text with names for the OIDs in front of a cast.
fn named(text: &str, cast: &str, name_of: impl Fn(u32) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(cast) {
        let before = &rest[..at];
        let digits = before.len() - before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let start = before.len() - digits;
        let name = before[start..]
            .parse()
            .ok()
            .filter(|_| before[..start].ends_with('\''))
            .and_then(&name_of);
        match name {
            Some(name) => {
                out.push_str(&before[..start]);
                out.push_str(&name.replace('\'', "''"));
            }
            None => out.push_str(before),
        }
        out.push_str(&cast.to_ascii_lowercase());
        rest = &rest[at + cast.len()..];
    }
    out.push_str(rest);
    out
}

/// A view's query as it is shown.
pub(crate) fn view_definition(
    catalog: &Arc<CatalogSnapshot>,
    settings: &Settings,
    view: &View,
    pretty: bool,
) -> String {
    if let Some(text) = view_text(catalog, settings, view, pretty) {
        return format!("{text};");
    }
    let visible = |schema: &str, name: &str| is_visible(catalog, settings, schema, name);
    // pg_dump cuts the last character off: it is always this.
    let text = super::view_names::with_names(view);
    let shown = telesto_sql_parser::view_query::shown_query(&text, visible);
    format!("{};", shown_expression(catalog, settings, &shown))
}

fn column_list(table: &Table, positions: impl Iterator<Item = usize>) -> String {
    positions
        .map(|at| table.columns.get(at).map_or_else(String::new, |c| quote_ident(&c.name)))
        .collect::<Vec<_>>()
        .join(", ")
}

/// A column of an index, with the parentheses an expression needs. `eval`: print as psql does.
pub(crate) fn index_column(
    table: &Table,
    column: &IndexColumn,
    eval: Option<&EvalContext<'_>>,
) -> String {
    let Some(expression) = &column.expression else {
        return table.columns.get(column.column).map_or_else(String::new, |c| quote_ident(&c.name));
    };
    let text = expression_text(table, &expression.sql, eval);
    if expression.bare { text } else { format!("({text})") }
}

/// A stored expression; with `eval` without needless parentheses.
pub(crate) fn expression_text(
    table: &Table,
    stored: &str,
    eval: Option<&EvalContext<'_>>,
) -> String {
    let pretty = eval.and_then(|eval| {
        let written = parse_over_row(stored).ok()?;
        let bound = index_expressions::bind_over(table, eval, &written, "INDEX").ok()?;
        Some(index_expressions::text_over(table, &bound, true))
    });
    pretty.unwrap_or_else(|| as_written(stored))
}

/// A stored expression in the form in which a client writes it.
pub(crate) fn as_written(stored: &str) -> String {
    variadic::shown(&collation::shown(stored))
}

/// `CREATE [UNIQUE] INDEX …`. With `pretty` as psql shows it: without needless parentheses and the
/// schema `public`.
pub(crate) fn index_definition(
    catalog: &CatalogSnapshot,
    table: &Table,
    index: &Index,
    pretty: Option<&EvalContext<'_>>,
) -> String {
    let columns = index
        .columns
        .iter()
        .map(|column| {
            let mut out = index_column(table, column, pretty);
            let descending = column.direction == Direction::Descending;
            if descending {
                out.push_str(" DESC");
            }
            match (descending, column.nulls_first()) {
                (true, false) => out.push_str(" NULLS LAST"),
                (false, true) => out.push_str(" NULLS FIRST"),
                _ => {}
            }
            out
        })
        .collect::<Vec<_>>()
        .join(", ");
    let visible = pretty.and_then(|eval| relation_name(catalog, eval.settings, table.id.0));
    let on = visible.unwrap_or_else(|| {
        format!("{}.{}", quote_ident(catalog.schema_name(table.schema)), quote_ident(&table.name))
    });
    let mut out = format!(
        "CREATE {}INDEX {} ON {on} USING btree ({columns})",
        if index.is_key() { "UNIQUE " } else { "" },
        quote_ident(&index.name),
    );
    out.push_str(&include_text(table, index));
    if index.nulls_not_distinct {
        out.push_str(" NULLS NOT DISTINCT");
    }
    if let Some(predicate) = &index.predicate {
        out.push_str(&format!(" WHERE {}", expression_text(table, predicate, pretty)));
    }
    out
}

/// The comments on a table's constraints, by the constraint's OID.
pub(crate) fn constraint_comments(table: &Table) -> impl Iterator<Item = (u32, &str)> {
    table.constraint_comments.iter().filter_map(|(name, comment)| {
        let oid = table
            .checks
            .iter()
            .find(|c| c.name == *name)
            .map(|c| c.oid)
            .or_else(|| table.foreign_keys.iter().find(|c| c.name == *name).map(|c| c.oid))
            .or_else(|| {
                table.all_indexes().find(|i| i.name == *name).and_then(|i| i.constraint_oid)
            })?;
        Some((oid, comment.as_str()))
    })
}

fn include_text(table: &Table, index: &Index) -> String {
    if index.include.is_empty() {
        return String::new();
    }
    format!(" INCLUDE ({})", column_list(table, index.include.iter().copied()))
}

/// `PRIMARY KEY (…)` or `UNIQUE (…)`.
pub(crate) fn key_definition(table: &Table, index: &Index) -> String {
    let word = match (index.is_primary(), index.nulls_not_distinct) {
        (true, _) => "PRIMARY KEY",
        (_, true) => "UNIQUE NULLS NOT DISTINCT",
        _ => "UNIQUE",
    };
    let columns = column_list(table, index.columns.iter().map(|c| c.column));
    let deferral = match index.deferrable() {
        (false, _) => "",
        (true, false) => " DEFERRABLE",
        (true, true) => " DEFERRABLE INITIALLY DEFERRED",
    };
    format!("{word} ({columns}){}{deferral}", include_text(table, index))
}

/// `FOREIGN KEY (…) REFERENCES …`.
pub(crate) fn foreign_key_definition(
    catalog: &CatalogSnapshot,
    settings: &Settings,
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
            let name = relation_name(catalog, settings, referenced.id.0);
            (name.unwrap_or_default(), columns)
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
        if !key.delete_columns.is_empty() {
            let columns = column_list(table, key.delete_columns.iter().copied());
            out.push_str(&format!(" ({columns})"));
        }
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

/// The constraint with this OID, unless it is a check, as ALTER TABLE … ADD CONSTRAINT takes it.
pub(crate) fn constraint_definition(
    catalog: &CatalogSnapshot,
    settings: &Settings,
    oid: u32,
) -> Option<String> {
    for table in catalog.tables() {
        let key = table.all_indexes().find(|index| index.constraint_oid == Some(oid));
        if let Some(index) = key {
            return Some(key_definition(table, index));
        }
        if let Some(key) = table.foreign_keys.iter().find(|key| key.oid == oid) {
            return Some(foreign_key_definition(catalog, settings, table, key));
        }
    }
    None
}
