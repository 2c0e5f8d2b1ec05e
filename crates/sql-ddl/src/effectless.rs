//! Actions of ALTER that have no effect: whether they are of such a relation, and whether what they
//! name is there.
//!
//! # Invariants
//! Nothing is changed. There are neither triggers nor rules here, one tablespace and one way to
//! store rows.
//!
//! # On failure
//! 42704 for what is not there, 42809 for another kind of relation, as in PostgreSQL.

use super::Ddl;
use super::names::fold;
use telesto_sql_catalog::{Index, IndexColumn, Relation, Table};
use telesto_sql_parser::definition::{Effectless, Named};
use telesto_sql_parser::sqlparser::ast::Ident;
use telesto_sql_types::error::{Error, Result, SqlState};

fn missing(what: &str, name: &Ident, of: &str) -> Error {
    let name = fold(name);
    Error::new(SqlState::UNDEFINED_OBJECT, format!("{what} \"{name}\"{of} does not exist"))
}

fn wrong(message: String) -> Error {
    Error::new(SqlState::WRONG_OBJECT_TYPE, message)
}

/// The index of that name, once it is built.
fn index_of<'t>(table: &'t Table, name: &Ident) -> Result<&'t Index> {
    let folded = fold(name);
    table
        .primary
        .iter()
        .chain(&table.indexes)
        .find(|index| index.name == folded)
        .ok_or_else(|| missing("index", name, &format!(" for table \"{}\"", table.name)))
}

/// Fails unless the index tells each row of the table from all others.
fn may_identify(table: &Table, index: &Index) -> Result<()> {
    let name = &index.name;
    let mut state = SqlState::FEATURE_NOT_SUPPORTED;
    let fault = if !index.is_key() {
        state = SqlState::WRONG_OBJECT_TYPE;
        format!("cannot use non-unique index \"{name}\" as replica identity")
    } else if index.deferral.is_some() {
        format!("cannot use non-immediate index \"{name}\" as replica identity")
    } else if index.columns.iter().any(|column| column.expression.is_some()) {
        format!("cannot use expression index \"{name}\" as replica identity")
    } else if index.predicate.is_some() {
        format!("cannot use partial index \"{name}\" as replica identity")
    } else if let Some(column) = index
        .columns
        .iter()
        .filter_map(|column| table.columns.get(column.column))
        .find(|column| index.id != 0 && !column.not_null)
    {
        state = SqlState::WRONG_OBJECT_TYPE;
        format!(
            "index \"{name}\" cannot be used as replica identity because column \"{}\" is nullable",
            column.name
        )
    } else {
        return Ok(());
    };
    Err(Error::new(state, fault))
}

/// Fails unless statistics may be kept of this column of an index.
fn has_statistics(index: &Index, table: &Table, number: i64) -> Result<()> {
    let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    let names = index.column_names(table);
    let Some((at, column)) = at.and_then(|at| Some((at, names.get(at)?))) else {
        return Err(Error::new(
            SqlState::UNDEFINED_COLUMN,
            format!("column number {number} of relation \"{}\" does not exist", index.name),
        ));
    };
    let expression = |column: &IndexColumn| column.expression.is_some();
    if index.columns.get(at).is_some_and(expression) {
        return Ok(());
    }
    Err(Error::new(
        SqlState::FEATURE_NOT_SUPPORTED,
        format!(
            "cannot alter statistics on non-expression column \"{column}\" of index \"{}\"",
            index.name
        ),
    )
    .hint("Alter statistics on table column instead."))
}

fn tablespace(name: &Ident) -> Result<()> {
    match fold(name).as_str() {
        "pg_default" => Ok(()),
        "pg_global" => Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            "only shared relations can be placed in pg_global tablespace",
        )),
        _ => Err(missing("tablespace", name, "")),
    }
}

fn access_method(name: &Ident) -> Result<()> {
    let folded = fold(name);
    match folded.as_str() {
        "heap" => Ok(()),
        "btree" | "hash" | "gist" | "gin" | "spgist" | "brin" => Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("access method \"{folded}\" is not of type TABLE"),
        )),
        _ => Err(missing("access method", name, "")),
    }
}

fn of_table(table: &Table, action: &Effectless) -> Result<()> {
    match &action.named {
        Named::Nothing => Ok(()),
        Named::ClusterIndex(name) => {
            let index = index_of(table, name)?;
            if index.predicate.is_some() {
                let message = format!("cannot cluster on partial index \"{}\"", index.name);
                return Err(Error::new(SqlState::FEATURE_NOT_SUPPORTED, message));
            }
            Ok(())
        }
        Named::IdentityIndex(name) => may_identify(table, index_of(table, name)?),
        Named::Trigger(name) => {
            Err(missing("trigger", name, &format!(" for table \"{}\"", table.name)))
        }
        Named::Rule(name) => {
            Err(missing("rule", name, &format!(" for relation \"{}\"", table.name)))
        }
        Named::Tablespace(name) => tablespace(name),
        Named::AccessMethod(name) => access_method(name),
        Named::Persistence if telesto_sql_catalog::temp::is_temporary(table.id.0) => {
            Err(Error::new(
                SqlState::INVALID_TABLE_DEFINITION,
                format!(
                    "cannot change logged status of table \"{}\" because it is temporary",
                    table.name
                ),
            ))
        }
        Named::Persistence => Ok(()),
        Named::IndexColumn(_) => Err(Error::unsupported("a column of a table by its number")),
    }
}

impl Ddl<'_> {
    /// An action without effect on a relation.
    pub(super) fn effectless(relation: &Relation, action: &Effectless) -> Result<()> {
        let name = match (relation, &action.named) {
            (Relation::Table(table), _) => return of_table(table, action),
            (Relation::Index(_, _), Named::Tablespace(name)) => return tablespace(name),
            (Relation::Index(table, index), Named::IndexColumn(number)) => {
                return has_statistics(index, table, *number);
            }
            (Relation::Sequence(_), Named::Persistence) => return Ok(()),
            (Relation::Index(_, index), _) => &index.name,
            (Relation::Sequence(sequence), _) => &sequence.name,
            (Relation::View(view), _) => &view.name,
        };
        let kind = match relation {
            Relation::Index(..) => "indexes",
            Relation::Sequence(_) => "sequences",
            _ => "views",
        };
        Err(wrong(format!(
            "ALTER action {} cannot be performed on relation \"{name}\"",
            action.shown
        ))
        .detail(format!("This operation is not supported for {kind}.")))
    }
}
