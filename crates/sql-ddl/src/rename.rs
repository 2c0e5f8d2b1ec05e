//! RENAME and SET SCHEMA, of relations, columns, constraints and schemas.
//!
//! # Invariants
//! Views name relations with their schemas; a rename rewrites their texts in the same transaction.
//! What renaming a column does to them is [`super::view_columns`]'s.

use std::ops::ControlFlow;

use super::alter::no_constraint;
use super::names::{fold, free_of_system_columns};
use super::{Ddl, parse_expr};
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{Generated, Relation, Schema, Table, View};
use telesto_sql_parser::sqlparser::ast::{Expr, Ident, visit_expressions_mut};
use telesto_sql_types::error::{Error, Result, SqlState};

impl Ddl<'_> {
    pub(super) fn rename_relation(&mut self, relation: &Relation, new: &str) -> Result<()> {
        self.move_relation(relation, None, Some(new))
    }

    pub(super) fn set_schema(&mut self, relation: &Relation, schema: &str) -> Result<()> {
        let at = match relation {
            Relation::Table(table) => table.schema,
            Relation::View(view) => view.schema,
            Relation::Sequence(sequence) => sequence.schema,
            Relation::Index(table, _) => table.schema,
        };
        let oid = self.schema_for(false, Some(schema))?;
        if telesto_sql_catalog::temp::is_temporary(at)
            != telesto_sql_catalog::temp::is_temporary(oid)
        {
            return Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                "cannot move objects into or out of temporary schemas",
            ));
        }
        match relation {
            Relation::Index(..) => {
                return Err(Error::new(
                    SqlState::WRONG_OBJECT_TYPE,
                    "cannot move an index to another schema without its table",
                ));
            }
            Relation::Sequence(sequence) => {
                if let Some((table, _)) = sequence.owned_by
                    && let Some(table) = self.catalog().table(table)
                {
                    return Err(Error::new(
                        SqlState::FEATURE_NOT_SUPPORTED,
                        "cannot move an owned sequence into another schema",
                    )
                    .detail(format!(
                        "Sequence \"{}\" is linked to table \"{}\".",
                        sequence.name, table.name
                    )));
                }
            }
            _ => {}
        }
        self.move_relation(relation, Some(oid), None)
    }

    fn move_relation(
        &mut self,
        relation: &Relation,
        schema: Option<u32>,
        name: Option<&str>,
    ) -> Result<()> {
        let (at, was) = match relation {
            Relation::Table(table) => (table.schema, table.name.clone()),
            Relation::View(view) => (view.schema, view.name.clone()),
            Relation::Sequence(sequence) => (sequence.schema, sequence.name.clone()),
            Relation::Index(table, index) => (table.schema, index.name.clone()),
        };
        let to = schema.unwrap_or(at);
        let new = name.unwrap_or(&was).to_owned();
        if to == at && schema.is_some() {
            // Already there.
            return Ok(());
        }
        if self.catalog().relation(to, &new).is_some() {
            let message = match schema {
                Some(_) => format!(
                    "relation \"{new}\" already exists in schema \"{}\"",
                    self.catalog().schema_name(to)
                ),
                None => format!("relation \"{new}\" already exists"),
            };
            return Err(Error::new(SqlState::DUPLICATE_TABLE, message));
        }
        // Tables and views have a type of their name.
        if matches!(relation, Relation::Table(_) | Relation::View(_))
            && self.catalog().user_type_named(to, &new).is_some()
        {
            let within = match schema {
                Some(_) => format!(" in schema \"{}\"", self.catalog().schema_name(to)),
                None => String::new(),
            };
            return Err(Error::new(
                SqlState::DUPLICATE_OBJECT,
                format!("type \"{new}\" already exists{within}"),
            ));
        }
        self.policies_allow_change(relation, &[])?;
        self.rewrite_views((at, &was), (to, &new))?;
        match relation {
            Relation::Table(table) => {
                let mut table = (**table).clone();
                if to != at {
                    self.move_what_belongs(&table, to)?;
                }
                (table.schema, table.name) = (to, new);
                self.change.put(Object::Table(table));
            }
            Relation::View(view) => {
                // Its own text may just have changed.
                let now = self.catalog().views().find(|v| v.oid == view.oid).cloned();
                let mut view = (*now.unwrap_or_else(|| view.clone())).clone();
                (view.schema, view.name) = (to, new);
                self.change.put(Object::View(view));
            }
            Relation::Sequence(sequence) => {
                let mut sequence = (**sequence).clone();
                (sequence.schema, sequence.name) = (to, new);
                self.change.put(Object::Sequence(sequence));
            }
            Relation::Index(table, index) => {
                let mut table = (**table).clone();
                if index.constraint_oid.is_some() {
                    name_constraint(&mut table, &was, &new)?;
                }
                let building = table.building.iter_mut().map(|build| &mut build.index);
                for found in table.primary.iter_mut().chain(&mut table.indexes).chain(building) {
                    if found.oid == index.oid {
                        found.name.clone_from(&new);
                    }
                }
                self.change.put(Object::Table(table));
            }
        }
        Ok(())
    }

    /// Indexes are in their table's schema by nature; owned sequences go with it.
    fn move_what_belongs(&mut self, table: &Table, to: u32) -> Result<()> {
        let taken = |name: &str, schema: &str| {
            Error::new(
                SqlState::DUPLICATE_TABLE,
                format!("relation \"{name}\" already exists in schema \"{schema}\""),
            )
        };
        let schema = self.catalog().schema_name(to).to_owned();
        for index in table.known_indexes() {
            if self.catalog().relation(to, &index.name).is_some() {
                return Err(taken(&index.name, &schema));
            }
        }
        let owned: Vec<_> = self
            .catalog()
            .sequences()
            .filter(|s| s.owned_by.is_some_and(|(owner, _)| owner == table.id))
            .cloned()
            .collect();
        for sequence in owned {
            if self.catalog().relation(to, &sequence.name).is_some() {
                return Err(taken(&sequence.name, &schema));
            }
            let mut sequence = (*sequence).clone();
            sequence.schema = to;
            self.change.put(Object::Sequence(sequence));
        }
        Ok(())
    }

    pub(super) fn rename_schema(&mut self, name: &Ident, to: &Ident) -> Result<()> {
        let (name, to) = (fold(name), fold(to));
        let schema = self.catalog().schema(&name).cloned().ok_or_else(|| {
            Error::new(SqlState::INVALID_SCHEMA_NAME, format!("schema \"{name}\" does not exist"))
        })?;
        if self.catalog().schema(&to).is_some() {
            return Err(Error::new(
                SqlState::DUPLICATE_SCHEMA,
                format!("schema \"{to}\" already exists"),
            ));
        }
        if to.starts_with("pg_") {
            return Err(Error::new(
                SqlState::RESERVED_NAME,
                format!("unacceptable schema name \"{to}\""),
            )
            .detail("The prefix \"pg_\" is reserved for system schemas."));
        }
        if schema.oid == telesto_sql_catalog::PG_CATALOG_OID
            || schema.oid == telesto_sql_catalog::INFORMATION_SCHEMA_OID
        {
            return Err(Error::new(
                SqlState::INSUFFICIENT_PRIVILEGE,
                format!("permission denied for schema {name}"),
            ));
        }
        self.policies_allow_schema(&name)?;
        self.rename_schema_in_views(&name, &to)?;
        self.rename_schema_of_types(&name, &to)?;
        self.change.put(Object::Schema(Schema { name: to, ..(*schema).clone() }));
        Ok(())
    }

    pub(super) fn rename_column(
        &mut self,
        table: &mut Table,
        old: &Ident,
        new: &Ident,
    ) -> Result<()> {
        let (old, new) = (fold(old), fold(new));
        let position = table.column_position(&old).ok_or_else(|| {
            Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{old}\" does not exist"))
        })?;
        if table.column_position(&new).is_some() {
            return Err(Error::new(
                SqlState::DUPLICATE_COLUMN,
                format!("column \"{new}\" of relation \"{}\" already exists", table.name),
            ));
        }
        free_of_system_columns(&new)?;
        self.policies_allow_name(table, &old)?;
        self.policies_allow_name(table, &new)?;
        // Expressions are kept as text: rename inside them too.
        let rename = |text: &mut String| -> Result<()> {
            let mut expr = parse_expr(text)?;
            let _ = visit_expressions_mut(&mut expr, |expr| {
                let ident = match expr {
                    Expr::Identifier(ident) => Some(ident),
                    Expr::CompoundIdentifier(parts) => parts.last_mut(),
                    _ => None,
                };
                if let Some(ident) = ident
                    && fold(ident) == old
                {
                    *ident = telesto_sql_parser::names::ident(&new);
                }
                ControlFlow::<()>::Continue(())
            });
            *text = expr.to_string();
            Ok(())
        };
        for check in &mut table.checks {
            rename(&mut check.expression)?;
        }
        for column in &mut table.columns {
            if let Some(Generated::Stored(text)) = &mut column.generated {
                rename(text)?;
            }
        }
        let building = table.building.iter_mut().map(|build| &mut build.index);
        for index in table.indexes.iter_mut().chain(building) {
            if let Some(predicate) = &mut index.predicate {
                rename(predicate)?;
            }
            for expression in index.columns.iter_mut().filter_map(|c| c.expression.as_mut()) {
                rename(&mut expression.sql)?;
            }
        }
        for policy in &mut table.row_security.policies {
            for text in policy.using.iter_mut().chain(&mut policy.check) {
                // Those that reach beyond the row were asked for above.
                if !super::policies::has_relations(&parse_expr(text)?) {
                    rename(text)?;
                }
            }
        }
        let names: Vec<String> =
            table.visible_columns().map(|(_, column)| column.name.clone()).collect();
        self.rename_in_views((table.schema, &table.name), &names, (&old, &new));
        table.columns[position].name = new;
        self.refresh_forms(table)
    }

    pub(super) fn rename_view_column(&mut self, view: &View, old: &str, new: &str) -> Result<()> {
        let mut view = view.clone();
        if view.columns.iter().any(|(name, _)| name == new) {
            return Err(Error::new(
                SqlState::DUPLICATE_COLUMN,
                format!("column \"{new}\" of relation \"{}\" already exists", view.name),
            ));
        }
        let names: Vec<String> = view.columns.iter().map(|(name, _)| name.clone()).collect();
        let column = view.columns.iter_mut().find(|(name, _)| name == old).ok_or_else(|| {
            Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{old}\" does not exist"))
        })?;
        new.clone_into(&mut column.0);
        // The views over it are read as they are while it has the old name.
        self.rename_in_views((view.schema, &view.name), &names, (old, new));
        self.change.put(Object::View(view));
        Ok(())
    }

    pub(super) fn rename_constraint(
        &mut self,
        table: &mut Table,
        old: &Ident,
        new: &Ident,
    ) -> Result<()> {
        let (old, new) = (fold(old), fold(new));
        let is_key = table.all_indexes().any(|i| i.constraint_oid.is_some() && i.name == old);
        let known = is_key
            || table.checks.iter().any(|c| c.name == old)
            || table.foreign_keys.iter().any(|c| c.name == old);
        if !known {
            return Err(Error::new(
                SqlState::UNDEFINED_OBJECT,
                format!("constraint \"{old}\" for table \"{}\" does not exist", table.name),
            ));
        }
        name_constraint(table, &old, &new)?;
        if is_key {
            self.check_free(table.schema, &new, false)?;
        }
        let names = table
            .checks
            .iter_mut()
            .map(|c| &mut c.name)
            .chain(table.foreign_keys.iter_mut().map(|c| &mut c.name))
            .chain(
                table
                    .primary
                    .iter_mut()
                    .chain(&mut table.indexes)
                    .filter(|i| i.constraint_oid.is_some())
                    .map(|c| &mut c.name),
            );
        for name in names {
            if *name == old {
                name.clone_from(&new);
                return Ok(());
            }
        }
        Err(no_constraint(&old, table))
    }
}

/// A constraint is about to get another name: so has its comment.
///
/// # Errors
/// 42710.
fn name_constraint(table: &mut Table, old: &str, new: &str) -> Result<()> {
    if super::constraint::has_constraint(table, new) {
        return Err(Error::new(
            SqlState::DUPLICATE_OBJECT,
            format!("constraint \"{new}\" for relation \"{}\" already exists", table.name),
        ));
    }
    for (name, _) in &mut table.constraint_comments {
        if name == old {
            new.clone_into(name);
        }
    }
    Ok(())
}
