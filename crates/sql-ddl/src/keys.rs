//! ALTER CONSTRAINT, VALIDATE CONSTRAINT, constraints made of indexes that are there, comments of
//! constraints, and the columns that ON DELETE of a foreign key sets.

use super::Ddl;
use super::alter::no_constraint;
use super::constraint::{deferral, may_defer};
use super::index::IndexOptions;
use super::names::fold;
use telesto_sql_catalog::{IndexColumn, Table};
use telesto_sql_parser::marks::SET_COLUMN;
use telesto_sql_parser::sqlparser::ast::{ConstraintUsingIndex, Ident};
use telesto_sql_types::error::{Error, Result, SqlState};

/// The columns that ON DELETE sets, which the parser leaves among the referenced ones.
pub(super) fn take_set_columns(referred: &mut Vec<Ident>) -> Vec<String> {
    let mut set = Vec::new();
    referred.retain(|name| match name.value.strip_prefix(SET_COLUMN) {
        Some(name) => {
            set.push(name.to_owned());
            false
        }
        None => true,
    });
    set
}

/// Positions of the columns that ON DELETE sets: some of the key's.
///
/// # Errors
/// 42703, 42P10.
pub(super) fn delete_columns(table: &Table, key: &[usize], names: &[String]) -> Result<Vec<usize>> {
    let mut out = Vec::new();
    for name in names {
        let at = table.column_position(name).ok_or_else(|| {
            Error::new(
                SqlState::UNDEFINED_COLUMN,
                format!("column \"{name}\" referenced in foreign key constraint does not exist"),
            )
        })?;
        if !key.contains(&at) {
            return Err(Error::new(
                SqlState::INVALID_COLUMN_REFERENCE,
                format!(
                    "column \"{name}\" referenced in ON DELETE SET action must be part of foreign key"
                ),
            ));
        }
        if !out.contains(&at) {
            out.push(at);
        }
    }
    Ok(out)
}

/// The comments of constraints that are gone go.
pub(super) fn forget_comments(table: &mut Table) {
    let mut comments = std::mem::take(&mut table.constraint_comments);
    comments.retain(|(name, _)| super::constraint::has_constraint(table, name));
    table.constraint_comments = comments;
}

/// Refuses a list of a constraint's columns that has one twice.
///
/// # Errors
/// 42701.
pub(super) fn each_once(table: &Table, columns: &[IndexColumn], constraint: &str) -> Result<()> {
    for (at, column) in columns.iter().enumerate() {
        if columns[..at].iter().any(|before| before.column == column.column) {
            return Err(Error::new(
                SqlState::DUPLICATE_COLUMN,
                format!(
                    "column \"{}\" appears twice in {constraint} constraint",
                    column.name(table)
                ),
            ));
        }
    }
    Ok(())
}

/// The index that a constraint is to be made of.
///
/// # Errors
/// 42704, 55000, 42809.
fn index_for_key(table: &Table, index_name: &str) -> Result<telesto_sql_catalog::Index> {
    if table.building.iter().any(|build| build.index.name == index_name) {
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("index \"{index_name}\" is not valid"),
        ));
    }
    let index = table.indexes.iter().find(|i| i.name == index_name).cloned().ok_or_else(|| {
        Error::new(SqlState::UNDEFINED_OBJECT, format!("index \"{index_name}\" does not exist"))
    })?;
    let refused = |text: String| Err(Error::new(SqlState::WRONG_OBJECT_TYPE, text));
    if index.constraint_oid.is_some() {
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("index \"{index_name}\" is already associated with a constraint"),
        ));
    }
    let detail = "Cannot create a primary key or unique constraint using such an index.";
    if !index.unique {
        return refused(format!("\"{index_name}\" is not a unique index"))
            .map_err(|error: Error| error.detail(detail));
    }
    if index.predicate.is_some() {
        return refused(format!("\"{index_name}\" is a partial index"))
            .map_err(|error: Error| error.detail(detail));
    }
    if index.has_expressions() {
        return refused(format!("index \"{index_name}\" contains expressions"))
            .map_err(|error: Error| error.detail(detail));
    }
    let unusual = |c: &IndexColumn| {
        c.direction == telesto_common::key::Direction::Descending || c.nulls_first.is_some()
    };
    if let Some(at) = index.columns.iter().position(unusual) {
        let number = at + 1;
        return refused(format!(
            "index \"{index_name}\" column number {number} does not have default sorting behavior"
        ))
        .map_err(|error: Error| error.detail(detail));
    }
    Ok(index)
}

impl Ddl<'_> {
    /// PRIMARY KEY or UNIQUE USING INDEX: the index becomes the constraint's and takes its name.
    pub(super) async fn add_key_using_index(
        &mut self,
        table: &mut Table,
        using: &ConstraintUsingIndex,
        primary: bool,
    ) -> Result<()> {
        let index_name = fold(&using.index_name);
        let index = index_for_key(table, &index_name)?;
        let name = using.name.as_ref().map_or_else(|| index_name.clone(), fold);
        if super::constraint::has_constraint(table, &name) {
            return Err(Error::new(
                SqlState::DUPLICATE_OBJECT,
                format!("constraint \"{name}\" for relation \"{}\" already exists", table.name),
            ));
        }
        if name != index_name {
            self.check_free(table.schema, &name, false)?;
            self.context.notices.notice(format!(
                "ALTER TABLE / ADD CONSTRAINT USING INDEX will rename index \"{index_name}\" to \"{name}\""
            ));
        }
        if primary {
            if table.primary_key().is_some() {
                return Err(Error::new(
                    SqlState::INVALID_TABLE_DEFINITION,
                    format!("multiple primary keys for table \"{}\" are not allowed", table.name),
                ));
            }
            for column in &index.columns {
                if !table.columns[column.column].not_null {
                    table.columns[column.column].not_null = true;
                    self.require_no_nulls(table, column.column);
                }
            }
        }
        if let Some(deferral) = deferral(using.characteristics.as_ref(), primary)? {
            // Rows that share a key for a while need entries of their own, in which no referenced
            // row is looked up.
            self.needed_by_no_key(table, index.id)?;
            self.remove_index(table, index.id, false).await?;
            table.indexes.retain(|i| i.id != index.id);
            let options = IndexOptions {
                constraint: true,
                deferral: Some(deferral),
                nulls_not_distinct: index.nulls_not_distinct,
                include: index.include,
                ..IndexOptions::default()
            };
            self.push_index(table, name, index.columns, options);
            return may_defer(table);
        }
        let constraint_oid = Some(self.change.oid());
        if primary {
            // Rows lie in the order of their primary key: they move, and the index is theirs from
            // then on.
            self.rewrite(table);
            table.indexes.retain(|i| i.id != index.id);
            self.repoint_keys(table, index.id, 0);
            table.primary =
                Some(telesto_sql_catalog::Index { id: 0, name, constraint_oid, ..index });
            return Ok(());
        }
        for found in &mut table.indexes {
            if found.id == index.id {
                found.name.clone_from(&name);
                found.constraint_oid = constraint_oid;
            }
        }
        Ok(())
    }

    /// Refuses to make a constraint deferrable that foreign keys rely on.
    fn needed_by_no_key(&self, table: &Table, index: u32) -> Result<()> {
        let referencing = self.catalog().referencing(table.id).iter();
        let own = table.foreign_keys.iter().filter(|key| key.referenced == table.id);
        let mut keys = referencing.map(|(_, key)| &**key).chain(own);
        match keys.find(|key| key.referenced_index == index) {
            Some(key) => Err(Error::unsupported(format!(
                "a deferrable constraint of an index that foreign key \"{}\" relies on",
                key.name
            ))
            .hint("Make it NOT DEFERRABLE, or drop the foreign key first.")),
            None => Ok(()),
        }
    }

    pub(super) fn alter_constraint(
        &mut self,
        table: &mut Table,
        name: &str,
        deferrable: bool,
        deferred: bool,
    ) -> Result<()> {
        if let Some(key) = table.foreign_keys.iter_mut().find(|key| key.name == name) {
            key.deferrable = deferrable;
            key.initially_deferred = deferred;
            return Ok(());
        }
        if super::constraint::has_constraint(table, name) {
            return Err(Error::new(
                SqlState::WRONG_OBJECT_TYPE,
                format!(
                    "constraint \"{name}\" of relation \"{}\" is not a foreign key constraint",
                    table.name
                ),
            ));
        }
        Err(no_constraint(name, table))
    }

    /// Checks the rows that were there when a constraint was added NOT VALID.
    pub(super) fn validate_constraint(&mut self, table: &mut Table, name: &str) -> Result<()> {
        if let Some(at) = table.foreign_keys.iter().position(|key| key.name == name) {
            if table.foreign_keys[at].validated {
                return Ok(());
            }
            let key = table.foreign_keys[at].clone();
            let other = if key.referenced == table.id {
                table.clone()
            } else {
                (**self
                    .catalog()
                    .table(key.referenced)
                    .ok_or_else(|| Error::internal("a referenced table is gone"))?)
                .clone()
            };
            self.check_foreign_rows(table, &other, &key.columns, &key.referenced_columns, name);
            let full = key.match_kind == telesto_sql_catalog::ForeignKeyMatch::Full;
            self.check_full_rows(table, &key.columns, name, full);
            table.foreign_keys[at].validated = true;
            return Ok(());
        }
        if let Some(check) = table.checks.iter_mut().find(|check| check.name == name) {
            if !check.validated {
                check.validated = true;
                let expression = check.expression.clone();
                self.check_rows(table, name, &expression)?;
            }
            return Ok(());
        }
        if super::constraint::has_constraint(table, name) {
            return Err(Error::new(
                SqlState::WRONG_OBJECT_TYPE,
                format!(
                    "constraint \"{name}\" of relation \"{}\" is not a foreign key or check constraint",
                    table.name
                ),
            ));
        }
        Err(no_constraint(name, table))
    }
}
