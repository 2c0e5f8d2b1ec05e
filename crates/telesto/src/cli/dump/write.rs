//! Definitions as SQL.
//!
//! # Invariants
//! - Names are written with their schemas; names and texts are quoted so that any of them comes
//!   back as it was.
//! - A default that names a sequence or a table comes behind all tables: it may be one of a table
//!   that is made later.

use std::fmt::Write as _;

use super::Out;
use super::catalog::{Catalog, Column, Owner, Sequence, Table};

/// Key words that cannot be a name without quotes. PostgreSQL's reserved ones and those that may
/// not name a type or function; quoting too many costs nothing.
const RESERVED: &str = " all analyse analyze and any array as asc asymmetric authorization between bigint binary bit boolean both case cast char \
character check coalesce collate collation column concurrently constraint create cross current_catalog current_date current_role current_schema \
current_time current_timestamp current_user dec decimal default deferrable desc distinct do else end except exists extract false fetch float for \
foreign freeze from full grant greatest group grouping having ilike in initially inner inout int integer intersect interval into is isnull join \
lateral leading least left like limit localtime localtimestamp national natural nchar none normalize not notnull null nullif numeric offset on only \
or order out outer overlaps overlay placing position precision primary real references returning right row select session_user setof similar \
smallint some substring symmetric table tablesample then time timestamp to trailing treat trim true union unique user using values varchar variadic \
verbose when where window with xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable ";

/// A name, quoted where it must be.
pub fn ident(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !RESERVED.contains(&format!(" {name} "));
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// A text, quoted.
pub fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// What comes before the rows.
///
/// # Errors
/// What cannot be written.
pub(super) fn before(catalog: &Catalog, out: &mut Out) -> Result<(), String> {
    out.line("\n--\n-- Schemas, types, sequences, tables\n--\n")?;
    for schema in catalog.schemas.iter().filter(|schema| *schema != "public") {
        out.line(&format!("CREATE SCHEMA {};", ident(schema)))?;
    }
    for made in &catalog.enums {
        let labels: Vec<String> = made.labels.iter().map(|label| literal(label)).collect();
        out.line(&format!("CREATE TYPE {} AS ENUM ({});", made.name.sql(), labels.join(", ")))?;
    }
    for made in &catalog.composites {
        let fields: Vec<String> =
            made.fields.iter().map(|(name, ty)| format!("{} {ty}", ident(name))).collect();
        out.line(&format!("CREATE TYPE {} AS ({});", made.name.sql(), fields.join(", ")))?;
    }
    for domain in &catalog.domains {
        let mut text = format!("CREATE DOMAIN {} AS {}", domain.name.sql(), domain.base);
        if let Some(collation) = &domain.collation {
            let _ = write!(text, " COLLATE {}", ident_always(collation));
        }
        if let Some(default) = domain.default.as_ref().filter(|default| !names_relations(default)) {
            let _ = write!(text, " DEFAULT {default}");
        }
        if domain.not_null {
            text.push_str(" NOT NULL");
        }
        for (name, definition) in &domain.checks {
            let _ = write!(text, " CONSTRAINT {} {definition}", ident(name));
        }
        out.line(&format!("{text};"))?;
    }
    for sequence in &catalog.sequences {
        if !matches!(sequence.owner, Owner::Identity(..)) && serial(catalog, sequence).is_none() {
            let name = sequence.name.sql();
            out.line(&format!("CREATE SEQUENCE {name} AS {} {};", sequence.ty, options(sequence)))?;
        }
    }
    for table in &catalog.tables {
        create(catalog, table, out)?;
    }
    for statement in late_defaults(catalog) {
        out.line(&statement)?;
    }
    for sequence in &catalog.sequences {
        if let Owner::Serial(oid, column) = &sequence.owner
            && serial(catalog, sequence).is_none()
            && let Some(table) = catalog.tables.iter().find(|table| table.oid == *oid)
        {
            let column = format!("{}.{}", table.name.sql(), ident(column));
            out.line(&format!("ALTER SEQUENCE {} OWNED BY {column};", sequence.name.sql()))?;
        }
    }
    out.line("")
}

/// Whether a default names a sequence or a table, which may come with a table that is made later.
fn names_relations(default: &str) -> bool {
    default.contains("::regclass")
}

/// The defaults that can only be set once every table is there, with the sequences that come with
/// its columns.
fn late_defaults(catalog: &Catalog) -> Vec<String> {
    let mut statements = Vec::new();
    for domain in &catalog.domains {
        if let Some(default) = domain.default.as_ref().filter(|default| names_relations(default)) {
            let domain = domain.name.sql();
            statements.push(format!("ALTER DOMAIN {domain} SET DEFAULT {default};"));
        }
    }
    for table in &catalog.tables {
        for column in table.columns.iter().filter(|column| !column.generated) {
            if let Some(default) = &column.expression
                && names_relations(default)
                && of_serial(catalog, table, column).is_none()
            {
                let (table, column) = (table.name.sql(), ident(&column.name));
                statements.push(format!(
                    "ALTER TABLE {table} ALTER COLUMN {column} SET DEFAULT {default};"
                ));
            }
        }
    }
    statements
}

/// `serial` and its kin, for a column that its own sequence makes one.
fn of_serial(catalog: &Catalog, table: &Table, column: &Column) -> Option<&'static str> {
    let owner = Owner::Serial(table.oid, column.name.clone());
    let own = catalog.sequences.iter().filter(|sequence| sequence.owner == owner);
    own.filter_map(|sequence| serial(catalog, sequence)).next()
}

/// `serial` and its kin, for a sequence that is in all as they make it: name, options, owner and
/// default.
fn serial(catalog: &Catalog, sequence: &Sequence) -> Option<&'static str> {
    let Owner::Serial(oid, column) = &sequence.owner else { return None };
    let table = catalog.tables.iter().find(|table| table.oid == *oid)?;
    let column = table.columns.iter().find(|found| found.name == *column)?;
    let (word, most) = match sequence.ty.as_str() {
        "smallint" => ("smallserial", "32767"),
        "integer" => ("serial", "2147483647"),
        "bigint" => ("bigserial", "9223372036854775807"),
        _ => return None,
    };
    let Sequence { start, increment, min, max, cache, cycle, name, ty, .. } = sequence;
    let usual = name.0 == table.name.0 && name.1 == format!("{}_{}_seq", table.name.1, column.name);
    let options = [start, increment, min, cache].iter().all(|option| *option == "1");
    // The whole text: another sequence, or what is computed of this one's values, is no serial's
    // default.
    let own = format!("nextval({}::regclass)", literal(&name.sql()));
    let called = column.expression.as_ref().is_some_and(|default| *default == own);
    let fits = usual && options && called && max == most && !cycle && column.ty == *ty;
    (fits && column.not_null).then_some(word)
}

fn options(sequence: &Sequence) -> String {
    let Sequence { increment, min, max, start, cache, cycle, .. } = sequence;
    let cycle = if *cycle { " CYCLE" } else { "" };
    format!(
        "INCREMENT BY {increment} MINVALUE {min} MAXVALUE {max} START WITH {start} CACHE {cache}{cycle}"
    )
}

fn create(catalog: &Catalog, table: &Table, out: &mut Out) -> Result<(), String> {
    let mut parts = Vec::new();
    for column in &table.columns {
        parts.push(column_definition(catalog, table, column)?);
    }
    for (name, definition) in &table.constraints {
        parts.push(format!("CONSTRAINT {} {definition}", ident(name)));
    }
    let unlogged = if table.unlogged { "UNLOGGED " } else { "" };
    let name = table.name.sql();
    out.line(&format!("CREATE {unlogged}TABLE {name} (\n    {}\n);", parts.join(",\n    ")))?;
    match &table.key {
        // Before the rows, so that none is stored in clear.
        Some(key) => out.line(&format!("ALTER TABLE {name} SET (telesto.key = {});", literal(key))),
        None => Ok(()),
    }
}

fn column_definition(catalog: &Catalog, table: &Table, column: &Column) -> Result<String, String> {
    if let Some(word) = of_serial(catalog, table, column) {
        return Ok(format!("{} {word} NOT NULL", ident(&column.name)));
    }
    let mut text = format!("{} {}", ident(&column.name), column.ty);
    if let Some(collation) = &column.collation {
        let _ = write!(text, " COLLATE {}", ident_always(collation));
    }
    match (&column.expression, column.generated) {
        (Some(expression), true) => {
            let _ = write!(text, " GENERATED ALWAYS AS ({expression}) STORED");
        }
        (Some(expression), false) if names_relations(expression) => {}
        (Some(expression), false) => {
            let _ = write!(text, " DEFAULT {expression}");
        }
        (None, true) => {
            return Err(format!(
                "the generated column {} of {} has no expression in the system tables, so it cannot be dumped",
                column.name,
                table.name.sql()
            ));
        }
        (None, false) => {}
    }
    if let Some(kind) = column.identity {
        let owner = Owner::Identity(table.oid, column.name.clone());
        let sequence = catalog.sequences.iter().find(|sequence| sequence.owner == owner);
        let sequence = sequence.ok_or_else(|| {
            format!("the sequence of {}.{} was not found", table.name.sql(), column.name)
        })?;
        // The name a sequence gets by itself; another one is said.
        let usual = format!("{}_{}_seq", table.name.1, column.name);
        let named = if sequence.name.1 == usual && sequence.name.0 == table.name.0 {
            String::new()
        } else {
            format!("SEQUENCE NAME {} ", sequence.name.sql())
        };
        let _ = write!(text, " GENERATED {kind} AS IDENTITY ({named}{})", options(sequence));
    }
    if column.not_null {
        text.push_str(" NOT NULL");
    }
    Ok(text)
}

/// Collations are looked for by their exact name.
fn ident_always(name: &str) -> String {
    format!("pg_catalog.\"{}\"", name.replace('"', "\"\""))
}

/// What comes after the rows.
///
/// # Errors
/// What cannot be written.
pub(super) fn after(catalog: &Catalog, out: &mut Out) -> Result<(), String> {
    out.line("--\n-- Indexes, constraints, views, policies, comments\n--\n")?;
    for definition in &catalog.indexes {
        out.line(&format!("{definition};"))?;
    }
    for table in &catalog.tables {
        let keys = table.foreign_keys.iter().map(|(name, definition, _)| (name, definition));
        let late = table.late_checks.iter().map(|(name, definition)| (name, definition));
        for (name, definition) in keys.chain(late) {
            let (table, name) = (table.name.sql(), ident(name));
            out.line(&format!("ALTER TABLE {table} ADD CONSTRAINT {name} {definition};"))?;
        }
    }
    for view in &catalog.views {
        // Names without a schema in a view's text are those of its own schema, then of public.
        let public = view.name.0 == "public";
        if !public {
            out.line(&format!("SET search_path = {}, public;", ident(&view.name.0)))?;
        }
        let columns: Vec<String> = view.columns.iter().map(|column| ident(column)).collect();
        let (name, columns) = (view.name.sql(), columns.join(", "));
        let options = match view.options.as_str() {
            "" => String::new(),
            options => format!(" WITH ({options})"),
        };
        out.line(&format!("CREATE VIEW {name} ({columns}){options} AS\n{};", view.query))?;
        if !public {
            out.line("SET search_path = public;")?;
        }
    }
    // Behind the rows, which they would keep out.
    for policy in &catalog.policies {
        out.line(policy)?;
    }
    for comment in &catalog.comments {
        out.line(comment)?;
    }
    out.line("")
}

#[cfg(test)]
mod tests {
    use super::super::catalog::Name;
    use super::*;

    #[test]
    fn names_and_texts_are_quoted_where_they_must_be() {
        for plain in ["customer", "c_id", "_x1"] {
            assert_eq!(ident(plain), plain);
        }
        for (name, quoted) in [
            ("order", "\"order\""),
            ("Mixed", "\"Mixed\""),
            ("a\"b", "\"a\"\"b\""),
            ("1a", "\"1a\""),
            ("", "\"\""),
        ] {
            assert_eq!(ident(name), quoted);
        }
        assert_eq!(literal("it's"), "'it''s'");
    }

    fn column(name: &str, expression: &str) -> Column {
        Column {
            name: name.to_owned(),
            ty: "integer".to_owned(),
            not_null: true,
            expression: Some(expression.to_owned()),
            generated: false,
            identity: None,
            collation: None,
        }
    }

    fn with_default(expression: &str) -> Catalog {
        let name = |name: &str| Name("Odd".to_owned(), name.to_owned());
        let of = |text: &str| text.to_owned();
        Catalog {
            tables: vec![Table {
                oid: 7,
                name: name("t"),
                unlogged: false,
                key: None,
                columns: vec![column("id", expression)],
                constraints: Vec::new(),
                foreign_keys: Vec::new(),
                late_checks: Vec::new(),
            }],
            sequences: vec![Sequence {
                name: name("t_id_seq"),
                ty: of("integer"),
                start: of("1"),
                increment: of("1"),
                min: of("1"),
                max: of("2147483647"),
                cache: of("1"),
                cycle: false,
                owner: Owner::Serial(7, of("id")),
            }],
            ..Catalog::default()
        }
    }

    #[test]
    fn column_is_serial_only_where_its_default_is_its_own_sequences() {
        let own = with_default("nextval('\"Odd\".t_id_seq'::regclass)");
        let written = column_definition(&own, &own.tables[0], &own.tables[0].columns[0]);
        assert_eq!(written, Ok("id serial NOT NULL".to_owned()));
        assert_eq!(late_defaults(&own), Vec::<String>::new());
        for other in [
            "nextval('public.other'::regclass)",
            "nextval('\"Odd\".t_id_seq'::regclass) + 1",
            "nextval('\"Odd\".t_id_seq2'::regclass)",
        ] {
            let catalog = with_default(other);
            let table = &catalog.tables[0];
            let written = column_definition(&catalog, table, &table.columns[0]);
            assert_eq!(written, Ok("id integer NOT NULL".to_owned()), "{other}");
            let set = format!("ALTER TABLE \"Odd\".t ALTER COLUMN id SET DEFAULT {other};");
            assert_eq!(late_defaults(&catalog), [set]);
        }
    }
}
