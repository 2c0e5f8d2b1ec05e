//! Schemas, tables, columns, indexes, keys, rows.
//!
//! # Purpose
//! The data browser, the diagram, and what the editor completes.
//!
//! # Invariants
//! - Names from a request are compared as literals, or quoted as names; a table is looked up before
//!   its rows are read.
//! - Pages of rows go along the primary key: a page costs what its rows cost, however far back it
//!   is.
//!
//! # On failure
//! A schema or table that this role cannot see is 404.
//!
//! # Limits
//! - A page ends before its limit when its rows have more than [`limits::BYTES`].
//! - A table without a primary key shows its first page only.

use serde::Serialize;

use super::Part;
use crate::error::Problem;
use crate::limits;
use crate::query::{Reader, Table, quote_ident, quote_literal};

/// A table or view and what belongs to it.
#[derive(Clone, Debug, Serialize)]
pub struct Relation {
    pub schema: String,
    pub name: String,
    pub kind: String,
    pub columns: Part,
    pub indexes: Part,
    pub constraints: Part,
    /// Columns of the primary key, in order, with their types.
    pub key: Vec<(String, String)>,
}

/// A page of rows.
#[derive(Clone, Debug, Serialize)]
pub struct Rows {
    pub rows: Table,
    /// The key after which the next page begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<Vec<String>>,
    /// The key before which the page before this one ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<Vec<String>>,
}

/// Where a page of rows is.
#[derive(Clone, Debug, PartialEq)]
pub enum Place {
    First,
    After(Vec<String>),
    Before(Vec<String>),
}

const KIND: &str = "CASE c.relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' \
     WHEN 'p' THEN 'partitioned table' ELSE c.relkind::text END";

pub async fn schemas(reader: &Reader) -> Part {
    Part::of(
        reader,
        "SELECT n.nspname AS schema, count(c.oid) AS relations FROM pg_catalog.pg_namespace n \
         LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'v', 'm', 'p') \
         WHERE n.nspname NOT LIKE 'pg\\_t%' GROUP BY n.nspname \
         ORDER BY n.nspname IN ('pg_catalog', 'information_schema'), n.nspname",
    )
    .await
}

pub async fn tables(reader: &Reader, schema: &str) -> Part {
    Part::of(
        reader,
        &format!(
            "SELECT c.relname AS name, {KIND} AS kind, CASE WHEN c.reltuples >= 0 THEN c.reltuples::int8 END AS rows_about, \
             (SELECT count(*) FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns, \
             pg_catalog.obj_description(c.oid, 'pg_class') AS comment \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = {} AND c.relkind IN ('r', 'v', 'm', 'p') ORDER BY c.relname",
            quote_literal(schema)
        ),
    )
    .await
}

/// Foreign keys whose table is in the schema.
pub async fn foreign_keys(reader: &Reader, schema: &str) -> Part {
    Part::of(
        reader,
        &format!(
            "SELECT c.relname AS \"table\", k.conname AS name, pg_catalog.pg_get_constraintdef(k.oid) AS definition, \
             fn.nspname AS referenced_schema, f.relname AS referenced \
             FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.conrelid \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace JOIN pg_catalog.pg_class f ON f.oid = k.confrelid \
             JOIN pg_catalog.pg_namespace fn ON fn.oid = f.relnamespace \
             WHERE k.contype = 'f' AND n.nspname = {} ORDER BY c.relname, k.conname",
            quote_literal(schema)
        ),
    )
    .await
}

/// Columns of all tables in the schema, for the diagram and the editor.
pub async fn columns(reader: &Reader, schema: Option<&str>) -> Part {
    let of = match schema {
        Some(schema) => {
            format!("n.nspname = {} AND c.relkind IN ('r', 'p')", quote_literal(schema))
        }
        None => "n.nspname NOT LIKE 'pg\\_t%' AND c.relkind IN ('r', 'v', 'm', 'p')".to_owned(),
    };
    Part::of(
        reader,
        &format!(
            "SELECT n.nspname AS schema, c.relname AS \"table\", a.attname AS name, \
             pg_catalog.format_type(a.atttypid, a.atttypmod) AS type \
             FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid \
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE {of} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY n.nspname, c.relname, a.attnum"
        ),
    )
    .await
}

/// A table, view or system table.
pub async fn relation(reader: &Reader, schema: &str, name: &str) -> Result<Relation, Problem> {
    let (in_schema, named) = (quote_literal(schema), quote_literal(name));
    let this = format!("n.nspname = {in_schema} AND c.relname = {named}");
    let found = reader
        .table(&format!(
            "SELECT {KIND} AS kind FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE {this} AND c.relkind IN ('r', 'v', 'm', 'p')"
        ))
        .await?;
    let kind = found.first("kind").ok_or_else(|| Problem::not_found("such table"))?.to_owned();
    let from = "JOIN pg_catalog.pg_class c ON c.oid = {} JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace";
    let columns = format!(
        "SELECT a.attname AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type, NOT a.attnotnull AS nullable, \
         pg_catalog.pg_get_expr(d.adbin, d.adrelid) AS \"default\" FROM pg_catalog.pg_attribute a {} \
         LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
         WHERE {this} AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        from.replace("{}", "a.attrelid")
    );
    let indexes = format!(
        "SELECT i.relname AS name, x.indisunique AS \"unique\", x.indisprimary AS \"primary\", \
         pg_catalog.pg_get_indexdef(x.indexrelid) AS definition FROM pg_catalog.pg_index x {} \
         JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid WHERE {this} ORDER BY x.indisprimary DESC, i.relname",
        from.replace("{}", "x.indrelid")
    );
    let constraints = format!(
        "SELECT k.conname AS name, CASE k.contype WHEN 'p' THEN 'primary key' WHEN 'f' THEN 'foreign key' \
         WHEN 'u' THEN 'unique' WHEN 'c' THEN 'check' ELSE k.contype::text END AS kind, \
         pg_catalog.pg_get_constraintdef(k.oid) AS definition FROM pg_catalog.pg_constraint k {} \
         WHERE {this} ORDER BY k.contype DESC, k.conname",
        from.replace("{}", "k.conrelid")
    );
    let key = format!(
        "SELECT a.attname AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type \
         FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.conrelid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (k.conkey) \
         WHERE k.contype = 'p' AND {this} ORDER BY array_position(k.conkey, a.attnum)"
    );
    let (columns, indexes, constraints, key) = futures::join!(
        Part::of(reader, &columns),
        Part::of(reader, &indexes),
        Part::of(reader, &constraints),
        reader.table(&key),
    );
    let key = key?;
    let key = key.texts("name").into_iter().zip(key.texts("type")).collect();
    Ok(Relation {
        schema: schema.to_owned(),
        name: name.to_owned(),
        kind,
        columns,
        indexes,
        constraints,
        key,
    })
}

/// A page of the rows of a table.
pub async fn rows(
    reader: &Reader,
    of: &Relation,
    place: &Place,
    limit: usize,
) -> Result<Rows, Problem> {
    let limit = limit.clamp(1, limits::ROWS);
    let sql = page_sql(of, place, limit + 1)?;
    let mut rows = reader.some(&sql, limit + 1).await?;
    // Fewer rows than were asked for, when their bytes are many: what came is a page as well.
    let more = rows.rows.len() > limit || rows.cut;
    rows.rows.truncate(limit);
    let backwards = matches!(place, Place::Before(_));
    if backwards {
        rows.rows.reverse();
    }
    // With a key the next page has the rest; without one nothing has.
    rows.cut = more && of.key.is_empty();
    let key_of = |row: Option<&Vec<Option<String>>>| {
        let row = row?;
        let key = of.key.iter().map(|(name, _)| rows.get(row, name).map(str::to_owned));
        key.collect::<Option<Vec<String>>>().filter(|key| !key.is_empty())
    };
    let (first, last) = (key_of(rows.rows.first()), key_of(rows.rows.last()));
    let (before, after) = match place {
        Place::First => (false, more),
        Place::After(_) => (true, more),
        Place::Before(_) => (more, true),
    };
    let next = last.filter(|_| after);
    let previous = first.filter(|_| before);
    Ok(Rows { rows, next, previous })
}

fn page_sql(of: &Relation, place: &Place, limit: usize) -> Result<String, Problem> {
    let table = format!("{}.{}", quote_ident(&of.schema), quote_ident(&of.name));
    let (sign, order, key) = match place {
        Place::First => ("", "", None),
        Place::After(key) => (">", "", Some(key)),
        Place::Before(key) => ("<", " DESC", Some(key)),
    };
    let names: Vec<String> = of.key.iter().map(|(name, _)| quote_ident(name)).collect();
    let condition = match key {
        None => String::new(),
        Some(key) if key.len() == names.len() && !key.is_empty() => {
            let values: Vec<String> = key
                .iter()
                .zip(&of.key)
                .map(|(value, (_, kind))| format!("{}::{kind}", quote_literal(value)))
                .collect();
            match (names.as_slice(), values.as_slice()) {
                ([name], [value]) => format!(" WHERE {name} {sign} {value}"),
                _ => format!(" WHERE ({}) {sign} ({})", names.join(", "), values.join(", ")),
            }
        }
        Some(_) => {
            return Err(Problem::bad_request(format!(
                "the key of {table} has {} columns; give as many values",
                names.len()
            )));
        }
    };
    let order = if names.is_empty() {
        String::new()
    } else {
        let by: Vec<String> = names.iter().map(|name| format!("{name}{order}")).collect();
        format!(" ORDER BY {}", by.join(", "))
    };
    Ok(format!("SELECT * FROM {table}{condition}{order} LIMIT {limit}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relation(key: &[(&str, &str)]) -> Relation {
        let nothing = || Part::missing("this");
        Relation {
            schema: "public".to_owned(),
            name: "<script>".to_owned(),
            kind: "table".to_owned(),
            columns: nothing(),
            indexes: nothing(),
            constraints: nothing(),
            key: key.iter().map(|(name, kind)| ((*name).to_owned(), (*kind).to_owned())).collect(),
        }
    }

    #[test]
    fn pages_go_along_the_key_both_ways() {
        let one = relation(&[("id", "integer")]);
        let sql = |of: &Relation, place: Place| page_sql(of, &place, 11).expect("a page");
        assert_eq!(
            sql(&one, Place::First),
            "SELECT * FROM public.\"<script>\" ORDER BY id LIMIT 11"
        );
        assert_eq!(
            sql(&one, Place::After(vec!["7".to_owned()])),
            "SELECT * FROM public.\"<script>\" WHERE id > '7'::integer ORDER BY id LIMIT 11"
        );
        let two = relation(&[("a", "integer"), ("B", "text")]);
        assert_eq!(
            sql(&two, Place::Before(vec!["7".to_owned(), "x'; --".to_owned()])),
            "SELECT * FROM public.\"<script>\" WHERE (a, \"B\") < ('7'::integer, 'x''; --'::text) ORDER BY a DESC, \"B\" DESC LIMIT 11"
        );
        assert_eq!(sql(&relation(&[]), Place::First), "SELECT * FROM public.\"<script>\" LIMIT 11");
    }

    #[test]
    fn key_of_another_length_is_refused() {
        let one = relation(&[("id", "integer")]);
        for key in [vec![], vec!["1".to_owned(), "2".to_owned()]] {
            assert!(page_sql(&one, &Place::After(key), 1).is_err());
        }
        assert!(page_sql(&relation(&[]), &Place::After(vec!["1".to_owned()]), 1).is_err());
    }
}
