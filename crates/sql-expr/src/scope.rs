//! Names in view of an expression.
//!
//! # Invariants
//! A name that two relations have is an error (42702), never a guess.

use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};

pub use telesto_sql_parser::names::fold;

/// A column in view.
#[derive(Clone, Debug)]
pub struct ScopeColumn {
    /// Name.
    pub name: String,
    /// Type.
    pub ty: SqlType,
    /// Position in the row that is evaluated.
    pub position: usize,
    /// The domain it was declared with, by OID: what `pg_typeof` shows.
    pub domain: Option<u32>,
}

/// A relation in view.
#[derive(Clone, Debug)]
pub struct ScopeRelation {
    /// Alias, or name.
    pub name: String,
    /// Its columns.
    pub columns: Vec<ScopeColumn>,
    /// Whether its columns are found without its name too (`excluded` is not).
    pub unqualified: bool,
    /// Columns that are found only with its name all the same: merged by USING, or hidden by an
    /// inner query's.
    pub hidden: Vec<String>,
}

/// The relations in view.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// In order of the FROM clause.
    pub relations: Vec<ScopeRelation>,
}

impl Scope {
    /// Finds a column.
    ///
    /// # Errors
    /// 42703, 42702, 42P01.
    pub fn resolve(&self, table: Option<&str>, name: &str) -> Result<&ScopeColumn> {
        let mut found = None;
        let mut table_known = false;
        for relation in &self.relations {
            match table {
                Some(table) if table != relation.name => continue,
                None if !relation.unqualified => continue,
                _ => table_known = true,
            }
            if table.is_none() && relation.hidden.iter().any(|hidden| hidden == name) {
                continue;
            }
            if let Some(column) = relation.columns.iter().find(|c| c.name == name) {
                if found.is_some() {
                    return Err(Error::new(
                        SqlState::AMBIGUOUS_COLUMN,
                        format!("column reference \"{name}\" is ambiguous"),
                    ));
                }
                found = Some(column);
            }
        }
        found.ok_or_else(|| match table {
            None if self.relations.iter().any(|relation| relation.name == name) => {
                Error::unsupported(format!("the whole row of \"{name}\" as a value here"))
            }
            Some(table) if !table_known => Error::new(
                SqlState::UNDEFINED_TABLE,
                format!("missing FROM-clause entry for table \"{table}\""),
            ),
            Some(table) => Error::new(
                SqlState::UNDEFINED_COLUMN,
                format!("column {table}.{name} does not exist"),
            ),
            None => {
                Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist"))
            }
        })
    }
}
