//! Names: folding, schemas, finding what a definition is about.

use std::sync::Arc;

use super::Ddl;
use crate::catalog::{CatalogSnapshot, Relation, Table};
use crate::error::{Error, Result, SqlState};
use crate::sqlparser::ast::{Ident, ObjectName};
use crate::types::text::cut_name;

/// The name an identifier means: folded to lower case unless quoted, cut to 63 bytes.
pub(super) fn fold(ident: &Ident) -> String {
    let name =
        if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() };
    cut_name(&name).to_owned()
}

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

pub(super) fn undefined_column(column: &str, table: &Table) -> Error {
    Error::new(
        SqlState::UNDEFINED_COLUMN,
        format!("column \"{column}\" of relation \"{}\" does not exist", table.name),
    )
}

/// Name of the first free one of `base`, `base1`, ….
pub(super) fn free_name(taken: impl Fn(&str) -> bool, base: &str) -> String {
    let base = cut_name(base);
    if !taken(base) {
        return base.to_owned();
    }
    let mut number = 1_u32;
    loop {
        let candidate = format!("{base}{number}");
        if !taken(&candidate) {
            return candidate;
        }
        number += 1;
    }
}

impl Ddl<'_> {
    pub(super) fn catalog(&self) -> &CatalogSnapshot {
        self.change.catalog()
    }

    fn path(&self) -> Vec<String> {
        self.context.settings.effective_search_path()
    }

    /// The OID of the schema something is created in.
    pub(super) fn creation_schema(&self, schema: Option<&str>) -> Result<u32> {
        let missing = |name: &str| {
            Error::new(SqlState::INVALID_SCHEMA_NAME, format!("schema \"{name}\" does not exist"))
        };
        let found = match schema {
            Some("pg_temp") => {
                return Err(Error::unsupported("a temporary table"));
            }
            Some(name) => self.catalog().schema(name).ok_or_else(|| missing(name))?,
            None => self.path().iter().find_map(|name| self.catalog().schema(name)).ok_or_else(
                || {
                    Error::new(
                        SqlState::INVALID_SCHEMA_NAME,
                        "no schema has been selected to create in",
                    )
                },
            )?,
        };
        if matches!(found.name.as_str(), "pg_catalog" | "information_schema") {
            return Err(Error::new(
                SqlState::INSUFFICIENT_PRIVILEGE,
                format!("permission denied to create in schema \"{}\"", found.name),
            ));
        }
        Ok(found.oid)
    }

    pub(super) fn find(&self, name: &ObjectName) -> Result<Option<Relation>> {
        let (schema, relation) = split(name)?;
        Ok(self.catalog().resolve(schema.as_deref(), &relation, &self.path()).cloned())
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
            return Ok(true);
        }
        let message = format!("relation \"{name}\" already exists");
        if if_not_exists {
            self.context.notices.notice(format!("{message}, skipping"));
            return Ok(false);
        }
        Err(Error::new(SqlState::DUPLICATE_TABLE, message))
    }

    /// A free relation name in `schema`; `also` tells of names of the statement under way.
    pub(super) fn relation_name(&self, schema: u32, base: &str, also: &[String]) -> String {
        free_name(
            |name| {
                self.catalog().relation(schema, name).is_some() || also.iter().any(|n| n == name)
            },
            base,
        )
    }
}
