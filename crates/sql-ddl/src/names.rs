//! Names: folding, schemas, finding what a definition is about.

use std::sync::Arc;

use super::Ddl;
use telesto_sql_catalog::{CatalogSnapshot, Guarded, Relation, Rights, Table};
use telesto_sql_expr::types::UserTypes;
use telesto_sql_parser::sqlparser::ast::ObjectName;
use telesto_sql_types::error::{Error, Result, SqlState};

pub(super) use telesto_sql_parser::names::fold;

/// An identifier as SQL text.
pub(super) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Schema (if written) and name.
pub(super) fn split(name: &ObjectName) -> Result<(Option<String>, String)> {
    let parts: Vec<String> = name.0.iter().filter_map(|p| p.as_ident()).map(fold).collect();
    match parts.as_slice() {
        [name] => Ok((None, name.clone())),
        [schema, name] => Ok((Some(schema.clone()), name.clone())),
        [_database, schema, name] => Ok((Some(schema.clone()), name.clone())),
        _ => Err(Error::syntax(format!("improper qualified name: {name}"))),
    }
}

pub(super) fn undefined_table(name: &ObjectName) -> Error {
    let shown = split(name).map_or_else(
        |_| name.to_string(),
        |(schema, name)| schema.map_or(name.clone(), |schema| format!("{schema}.{name}")),
    );
    Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{shown}\" does not exist"))
}

/// 3F000.
pub(super) fn undefined_schema(name: &str) -> Error {
    Error::new(SqlState::INVALID_SCHEMA_NAME, format!("schema \"{name}\" does not exist"))
}

pub(super) fn undefined_column(column: &str, table: &Table) -> Error {
    Error::new(
        SqlState::UNDEFINED_COLUMN,
        format!("column \"{column}\" of relation \"{}\" does not exist", table.name),
    )
}

/// The columns that every table of PostgreSQL has by itself.
const SYSTEM_COLUMNS: [&str; 6] = ["tableoid", "cmax", "xmax", "cmin", "xmin", "ctid"];

/// Whether a table's column may be called that: not like one that PostgreSQL's tables have by
/// themselves, which such a table could not be moved to.
///
/// # Errors
/// 42701.
pub(super) fn free_of_system_columns(column: &str) -> Result<()> {
    if SYSTEM_COLUMNS.contains(&column) {
        return Err(Error::new(
            SqlState::DUPLICATE_COLUMN,
            format!("column name \"{column}\" conflicts with a system column name"),
        )
        .hint("Choose another name."));
    }
    Ok(())
}

/// The first `length` bytes, cut at a character.
pub(super) fn cut_at(text: &str, length: usize) -> &str {
    let mut end = text.len().min(length);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// `table_columns_label` (`table_label` without columns) in 63 bytes: the longer of the first two
/// is cut, never the label (`makeObjectName`).
fn object_name(table: &str, columns: &str, label: &str) -> String {
    let points = if columns.is_empty() { 1 } else { 2 };
    let room = 63 - label.len().min(60) - points;
    let (mut first, mut second) = (table.len(), columns.len());
    while first + second > room {
        if first > second { first -= 1 } else { second -= 1 }
    }
    let table = cut_at(table, first);
    if columns.is_empty() {
        return format!("{table}_{label}");
    }
    format!("{table}_{}_{label}", cut_at(columns, second))
}

/// What the name of an object is made of that is given none: what it belongs to, columns (or
/// nothing), a label.
pub(super) type NameParts<'a> = (&'a str, &'a str, &'a str);

/// The name made of the parts; where that is taken, with the first free number behind the label.
pub(super) fn free_name(
    taken: impl Fn(&str) -> bool,
    (table, columns, label): NameParts<'_>,
) -> String {
    let mut name = object_name(table, columns, label);
    let mut number = 0_u64;
    while taken(&name) {
        number += 1;
        name = object_name(table, columns, &format!("{label}{number}"));
    }
    name
}

impl Ddl<'_> {
    /// Whether all of these are sequences, and there are any.
    pub(super) fn are_sequences(&self, names: &[ObjectName]) -> Result<bool> {
        for name in names {
            if !matches!(self.find(name)?, Some(Relation::Sequence(_))) {
                return Ok(false);
            }
        }
        Ok(!names.is_empty())
    }

    pub(super) fn catalog(&self) -> &CatalogSnapshot {
        self.change.catalog()
    }

    /// Users' types, those of the statement under way included.
    pub(super) fn user_types(&self) -> UserTypes<'_> {
        UserTypes { catalog: self.change.catalog(), settings: &self.context.settings }
    }

    /// A relation's name, with its schema unless the search path makes that unnecessary.
    pub(super) fn shown_name(&self, schema: u32, name: &str) -> String {
        let first = self.catalog().visible_in(name, &self.path());
        let within = self.catalog().schema_name(schema);
        let name = telesto_sql_types::identifier::quote_ident(name);
        if first == Some(schema) {
            name
        } else {
            format!("{}.{name}", telesto_sql_types::identifier::quote_ident(within))
        }
    }

    /// The schema a new relation goes to.
    pub(super) fn schema_for(&mut self, temporary: bool, schema: Option<&str>) -> Result<u32> {
        let own = self.catalog().temp.as_ref().map(|temp| temp.schema);
        let named = match schema {
            Some(name) => self.catalog().schema(name).map(|s| s.oid),
            None => None,
        };
        if temporary && schema.is_some() && named != own {
            return Err(Error::new(
                SqlState::INVALID_TABLE_DEFINITION,
                "cannot create temporary relation in non-temporary schema",
            ));
        }
        if temporary || (named.is_some() && named == own) {
            self.may_make_temporary()?;
            let own = own.ok_or_else(|| Error::internal("a session without temporary schema"))?;
            self.change.define_temporary(true);
            return Ok(own);
        }
        self.change.define_temporary(false);
        self.creation_schema(schema)
    }

    /// An OID for something in this schema.
    pub(super) fn object_oid(&mut self, schema: u32) -> u32 {
        self.change.define_temporary(telesto_sql_catalog::temp::is_temporary(schema));
        self.change.oid()
    }

    pub(super) fn path(&self) -> Vec<String> {
        let mut path = self.context.settings.effective_search_path();
        if let Some(within) = &self.within {
            path.insert(0, within.clone());
        }
        path
    }

    /// The schemas that a name without one is looked for in: what is closed to the role is passed
    /// over.
    pub(super) fn open_path(&self) -> Vec<String> {
        let mut path = self.path();
        path.retain(|name| self.catalog().schema(name).is_none_or(|schema| self.is_open(schema)));
        path
    }

    /// The OID of the schema something is created in.
    pub(super) fn creation_schema(&self, schema: Option<&str>) -> Result<u32> {
        let found = match schema {
            Some(name) => self.catalog().schema(name).ok_or_else(|| undefined_schema(name))?,
            None => self
                .open_path()
                .iter()
                .filter_map(|name| self.catalog().schema(name))
                .find(|schema| !telesto_sql_catalog::temp::is_temporary(schema.oid))
                .ok_or_else(|| {
                    Error::new(
                        SqlState::INVALID_SCHEMA_NAME,
                        "no schema has been selected to create in",
                    )
                })?,
        };
        if matches!(found.name.as_str(), "pg_catalog" | "information_schema") {
            return Err(Error::new(
                SqlState::INSUFFICIENT_PRIVILEGE,
                format!("permission denied to create in schema \"{}\"", found.name),
            ));
        }
        match telesto_sql_catalog::temp::is_temporary(found.oid) {
            true => self.may_make_temporary()?,
            false => Guarded::schema(found).need(&self.actor, Rights::CREATE)?,
        }
        Ok(found.oid)
    }

    /// The relation that a statement names.
    ///
    /// # Errors
    /// 3F000 without the schema, 42501 where it is closed to the role: it does not tell what is not
    /// in it, either.
    pub(super) fn find(&self, name: &ObjectName) -> Result<Option<Relation>> {
        let (schema, relation) = split(name)?;
        if let Some(missing) = self.missing_schema(name)? {
            return Err(undefined_schema(&missing));
        }
        self.schema_usage(name)?;
        Ok(self.catalog().resolve(schema.as_deref(), &relation, &self.open_path()).cloned())
    }

    /// [`Ddl::find`] for IF EXISTS: without its schema the relation is not there, either.
    pub(super) fn find_if_there(&self, name: &ObjectName) -> Result<Option<Relation>> {
        match self.missing_schema(name)? {
            Some(_) => Ok(None),
            None => self.find(name),
        }
    }

    /// The schema that a name gives and that is not there. That of temporary relations is, for
    /// whoever has none yet.
    pub(super) fn missing_schema(&self, name: &ObjectName) -> Result<Option<String>> {
        let schema = split(name)?.0;
        Ok(schema.filter(|name| name != "pg_temp" && self.catalog().schema(name).is_none()))
    }

    pub(super) fn table(&self, name: &ObjectName) -> Result<Arc<Table>> {
        match self.find(name)? {
            Some(Relation::Table(table)) => Ok(table),
            Some(_) => Err(Error::new(
                SqlState::WRONG_OBJECT_TYPE,
                format!("\"{}\" is not a table", split(name)?.1),
            )),
            None => Err(undefined_table(name)),
        }
    }

    /// Fails when the name is taken in the schema. `Ok(false)`: taken, but `if_not_exists`.
    pub(super) fn check_free(&self, schema: u32, name: &str, if_not_exists: bool) -> Result<bool> {
        if self.catalog().relation(schema, name).is_none() {
            if self.catalog().user_type_named(schema, name).is_some() {
                return Err(Error::new(
                    SqlState::DUPLICATE_OBJECT,
                    format!("type \"{name}\" already exists"),
                )
                .hint("A relation has an associated type of the same name, so you must use a name that doesn't conflict with any existing type."));
            }
            return Ok(true);
        }
        let message = format!("relation \"{name}\" already exists");
        if if_not_exists {
            self.context.notices.skipped(SqlState::DUPLICATE_TABLE, &message);
            return Ok(false);
        }
        Err(Error::new(SqlState::DUPLICATE_TABLE, message))
    }

    /// The name PostgreSQL would choose for an index of `table` on `columns`, free in its schema
    /// and among the table's own.
    pub(super) fn chosen_name(&self, table: &Table, columns: &str, label: &str) -> String {
        let taken = |name: &str| {
            self.catalog().relation(table.schema, name).is_some()
                || table.known_indexes().any(|index| index.name == name)
        };
        free_name(taken, (&table.name, columns, label))
    }

    /// A free relation name in `schema`; `also` tells of names of the statement under way.
    pub(super) fn relation_name(
        &self,
        schema: u32,
        parts: NameParts<'_>,
        also: &[String],
    ) -> String {
        let taken = |name: &str| {
            self.catalog().relation(schema, name).is_some() || also.iter().any(|n| n == name)
        };
        free_name(taken, parts)
    }
}
