//! CREATE TYPE … AS (…), ALTER TYPE … ATTRIBUTE.
//!
//! # Invariants
//! - No row is rewritten: values name their fields by numbers, which are never given twice.
//! - No type is a field of itself, however deep, and none is nested deeper than [`MAX_NESTED`].
//! - What is stored as text has the fields that its type has (`composite_texts`).
//! - A field that a stored text reads by its name (a view, a check, an index, a default) is neither
//!   renamed nor dropped.
//!
//! # On failure
//! PostgreSQL's errors: 42701, 42703, 42P16, 42809; 54001 for types nested too deep; 0A000 for a
//! change that columns of the type stand against.
//!
//! # Limits
//! Fields of domains and of regclass and its kin are refused. A field's type is changed only while
//! no column is of the composite type, as in PostgreSQL.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::Ddl;
use super::names::{fold, split};
use telesto_sql_catalog::types::{MAX_NESTED, is_made_of, user_oid};
use telesto_sql_catalog::{Composite, Guarded, TypeKind, UserType};
use telesto_sql_expr::type_name::sql_type;
use telesto_sql_parser::definition::AttributeAction;
use telesto_sql_parser::rewrite::collation::check_of_column;
use telesto_sql_parser::sqlparser::ast::{
    AccessExpr, DataType, Expr, Ident, ObjectName, UserDefinedTypeCompositeAttributeDef,
    visit_expressions,
};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{CompositeField, SqlType};

/// Most fields of a type, as PostgreSQL.
const MAX_FIELDS: usize = 1600;

fn no_field(name: &str, ty: &str) -> Error {
    Error::new(
        SqlState::UNDEFINED_COLUMN,
        format!("column \"{name}\" of relation \"{ty}\" does not exist"),
    )
}

/// Whether an expression reads a field called `name`.
fn reads_field(expr: &Expr, name: &str) -> bool {
    let Expr::CompoundFieldAccess { access_chain, .. } = expr else { return false };
    access_chain
        .iter()
        .any(|step| matches!(step, AccessExpr::Dot(Expr::Identifier(field)) if fold(field) == name))
}

impl Ddl<'_> {
    pub(super) fn create_composite(
        &mut self,
        name: &ObjectName,
        attributes: &[UserDefinedTypeCompositeAttributeDef],
    ) -> Result<()> {
        let new = self.new_type(name)?;
        let relation = self.change.oid();
        let mut composite = Composite { relation, fields: Vec::new(), next: 1 };
        for attribute in attributes {
            if let Some(collation) = &attribute.collation {
                check_of_column(collation)?;
            }
            let field = fold(&attribute.name);
            if composite.fields.iter().any(|known| known.name == field) {
                return Err(Error::new(
                    SqlState::DUPLICATE_COLUMN,
                    format!("column \"{field}\" specified more than once"),
                ));
            }
            self.add_field(&mut composite, new.oid, field, &attribute.data_type)?;
        }
        self.put_type(new, TypeKind::Composite(composite));
        Ok(())
    }

    fn add_field(
        &self,
        composite: &mut Composite,
        oid: u32,
        name: String,
        ty: &DataType,
    ) -> Result<()> {
        let ty = self.field_type(&name, oid, ty)?;
        if composite.fields.len() >= MAX_FIELDS || composite.next == u16::MAX {
            return Err(Error::new(
                SqlState::TOO_MANY_COLUMNS,
                format!("tables can have at most {MAX_FIELDS} columns"),
            ));
        }
        composite.fields.push(CompositeField { number: composite.next, name, ty });
        composite.next += 1;
        Ok(())
    }

    /// The type of a field of the composite type with OID `of`.
    fn field_type(&self, name: &str, of: u32, ty: &DataType) -> Result<SqlType> {
        let ty = sql_type(ty, Some(&self.user_types()))?;
        super::table::storable(name, &ty)?;
        let element = ty.element_type().unwrap_or(&ty);
        if matches!(element, SqlType::Domain(_)) || element.is_reg() {
            return Err(Error::unsupported(format!("a field of type {ty} in a composite type"))
                .hint("Use the type it is made of, or text."));
        }
        let inner = user_oid(&ty);
        if inner.is_some_and(|inner| self.catalog().is_nested_in(of, inner)) {
            return Err(Error::new(
                SqlState::INVALID_TABLE_DEFINITION,
                format!("composite type {ty} cannot be made a member of itself"),
            ));
        }
        // Those that the type is in, and the new field's.
        let catalog = self.catalog();
        let around = catalog.user_types().filter(|outer| catalog.is_nested_in(of, outer.oid));
        let around = around.map(|outer| catalog.nested(outer.oid)).max().unwrap_or(1);
        if around + inner.map_or(0, |inner| catalog.nested(inner)) > MAX_NESTED {
            return Err(Error::new(
                SqlState::STATEMENT_TOO_COMPLEX,
                format!("composite types are nested more than {MAX_NESTED} deep"),
            )
            .hint("Make a field's type jsonb, or put the inner rows into a table of their own."));
        }
        Ok(ty)
    }

    pub(super) async fn alter_attributes(
        &mut self,
        name: &ObjectName,
        actions: &[AttributeAction],
    ) -> Result<&'static str> {
        let found = self.find_type(name)?;
        let Some((found, mut ty)) = found.map(|found| (Arc::clone(&found), (*found).clone()))
        else {
            return Err(self.no_composite(name));
        };
        if !matches!(ty.kind, TypeKind::Composite(_)) {
            return Err(self.no_composite(name));
        }
        self.need_owner(Guarded::user_type(&found))?;
        for action in actions {
            if let TypeKind::Composite(composite) = &mut ty.kind {
                self.alter_attribute(&found, composite, action)?;
            }
            // Texts say fields by their places: they are written again with each change of these.
            let moves = !matches!(action, AttributeAction::Type { .. });
            self.put_fields(ty.clone(), moves).await?;
        }
        Ok("ALTER TYPE")
    }

    /// As PostgreSQL has it, to which a composite type is a relation.
    fn no_composite(&self, name: &ObjectName) -> Error {
        let shown = split(name).map_or_else(|_| name.to_string(), |(_, name)| name);
        if let Ok(Some(_)) = self.find(name) {
            let message = format!("\"{shown}\" is not a composite type");
            return Error::new(SqlState::WRONG_OBJECT_TYPE, message);
        }
        Error::new(SqlState::UNDEFINED_TABLE, format!("relation \"{shown}\" does not exist"))
    }

    fn alter_attribute(
        &self,
        ty: &UserType,
        composite: &mut Composite,
        action: &AttributeAction,
    ) -> Result<()> {
        let place = |fields: &[CompositeField], name: &Ident| {
            let name = fold(name);
            fields
                .iter()
                .position(|field| field.name == name)
                .ok_or_else(|| no_field(&name, &ty.name))
        };
        let free =
            |fields: &[CompositeField], name: &str| match fields.iter().any(|f| f.name == name) {
                false => Ok(()),
                true => Err(Error::new(
                    SqlState::DUPLICATE_COLUMN,
                    format!("column \"{name}\" of relation \"{}\" already exists", ty.name),
                )),
            };
        match action {
            AttributeAction::Add { name, ty: data_type } => {
                let name = fold(name);
                free(&composite.fields, &name)?;
                self.add_field(composite, ty.oid, name, data_type)
            }
            AttributeAction::Drop { if_exists, name } => {
                let at = match place(&composite.fields, name) {
                    Err(error) if *if_exists => {
                        self.context.notices.notice(format!("{}, skipping", error.message()));
                        return Ok(());
                    }
                    at => at?,
                };
                self.not_read(ty, &composite.fields[at].name, "DROP ATTRIBUTE")?;
                composite.fields.remove(at);
                Ok(())
            }
            AttributeAction::Type { name, ty: data_type } => {
                let at = place(&composite.fields, name)?;
                let new = self.field_type(&composite.fields[at].name, ty.oid, data_type)?;
                self.no_column_of(ty)?;
                self.not_read(ty, &composite.fields[at].name, "ALTER ATTRIBUTE … TYPE")?;
                composite.fields[at].ty = new;
                Ok(())
            }
            AttributeAction::Rename { name, to } => {
                let at = place(&composite.fields, name).map_err(|_| {
                    let message = format!("column \"{}\" does not exist", fold(name));
                    Error::new(SqlState::UNDEFINED_COLUMN, message)
                })?;
                let to = fold(to);
                free(&composite.fields, &to)?;
                self.not_read(ty, &composite.fields[at].name, "RENAME ATTRIBUTE")?;
                composite.fields[at].name = to;
                Ok(())
            }
        }
    }

    /// Fails when a column is of the type, or of one that has a field of it.
    fn no_column_of(&self, ty: &UserType) -> Result<()> {
        for table in self.catalog().tables() {
            let uses = |column: &SqlType| {
                user_oid(column).is_some_and(|outer| self.catalog().is_nested_in(ty.oid, outer))
            };
            if let Some((_, column)) = table.visible_columns().find(|(_, column)| uses(&column.ty))
            {
                return Err(Error::new(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    format!(
                        "cannot alter type \"{}\" because column \"{}.{}\" uses it",
                        ty.name, table.name, column.name
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Fails when a stored text reads a field of this name; of which type is not told by the text.
    fn not_read(&self, ty: &UserType, field: &str, what: &str) -> Result<()> {
        let reads = self.text_that(|expr| reads_field(expr, field))?;
        match reads {
            None => Ok(()),
            Some(reader) => Err(Error::unsupported(format!(
                "ALTER TYPE {} {what} {field} while {reader} reads a field of that name",
                ty.name
            ))
            .hint("Drop that first, and make it again afterwards.")),
        }
    }

    /// Takes the fields of the type with OID `gone` out of a composite type, with CASCADE.
    pub(super) async fn drop_fields_of(&mut self, ty: &UserType, gone: u32) -> Result<()> {
        let mut ty = ty.clone();
        let TypeKind::Composite(composite) = &mut ty.kind else { return Ok(()) };
        let (name, notices) = (&ty.name, &self.context.notices);
        composite.fields.retain(|field| {
            let keep = !is_made_of(&field.ty, gone);
            if !keep {
                notices.notice(format!(
                    "drop cascades to column {} of composite type {name}",
                    field.name
                ));
            }
            keep
        });
        self.put_fields(ty, true).await
    }
}

/// Whether an expression, or one inside it, is `found`.
pub(super) fn any_expression(expr: &Expr, found: &impl Fn(&Expr) -> bool) -> bool {
    visit_expressions(expr, |expr| {
        if found(expr) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .is_break()
}
