//! The types that a statement names: those of a schema that is closed to the role are not for it.
//!
//! # How it works
//! Casts in views, defaults and checks are kept as text and read again for their users, who need no
//! right on the schemas of types there. So what is asked is what a statement writes itself. It is
//! asked before planning: an error of that (a label that is none, a value outside a domain) would
//! tell of the type.
//!
//! # Invariants
//! What a name without a schema means is found by all of the search path: where that is closed,
//! there is no such type.
//!
//! # On failure
//! 42501, 42704; nothing was planned.

use std::ops::ControlFlow;

use telesto_sql_catalog::temp::is_temporary;
use telesto_sql_catalog::{Actor, CatalogSnapshot, Guarded, Rights};
use telesto_sql_expr::types::{UserTypes, named};
use telesto_sql_parser::definition::{
    self, Action, AttributeAction, ColumnChange, Definition, SequenceOption,
};
use telesto_sql_parser::sqlparser::ast::{
    ArrayElemTypeDef, ColumnDef, CreateTable, DataType, Expr, ObjectName, Statement, TableFactor,
    UserDefinedTypeRepresentation, Visit, Visitor,
};

use super::{Class, class_of};
use crate::error::{Error, Result, SqlState};
use crate::expr::fold;
use crate::session::settings::Settings;

/// Fails when the statement names a type of a schema that the role may not look into.
///
/// # Errors
/// 42501, 42704.
pub(crate) fn check_types(
    statement: &Statement,
    catalog: &CatalogSnapshot,
    settings: &Settings,
) -> Result<()> {
    if catalog.role(settings.current_role).is_some_and(|role| role.superuser) {
        return Ok(());
    }
    let mut types = Types::default();
    types.statement(statement)?;
    are_open(&types, catalog, settings)
}

/// [`check_types`] of types that are written by themselves, as those of PREPARE.
///
/// # Errors
/// 42501, 42704.
pub(crate) fn check_type_names(
    written: &[DataType],
    catalog: &CatalogSnapshot,
    settings: &Settings,
) -> Result<()> {
    let mut types = Types::default();
    written.iter().for_each(|ty| types.take(ty));
    are_open(&types, catalog, settings)
}

fn are_open(types: &Types, catalog: &CatalogSnapshot, settings: &Settings) -> Result<()> {
    if types.0.is_empty() {
        return Ok(());
    }
    let actor = catalog.actor(settings.current_role);
    types.0.iter().try_for_each(|name| is_open(name, catalog, settings, &actor))
}

fn is_open(
    name: &ObjectName,
    catalog: &CatalogSnapshot,
    settings: &Settings,
    actor: &Actor,
) -> Result<()> {
    let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident()).map(fold).collect();
    let closed = |schema: &str| {
        let schema = catalog.schema(schema).filter(|schema| !is_temporary(schema.oid))?;
        let guarded = Guarded::schema(schema);
        (!guarded.rights_of(actor).has(Rights::USAGE)).then_some(guarded)
    };
    match parts.as_slice() {
        [own] => {
            let path = settings.effective_search_path();
            let within = path.iter().find(|schema| {
                catalog.resolve_type(None, own, std::slice::from_ref(*schema)).is_some()
            });
            if within.and_then(|schema| closed(schema)).is_none() || is_of_system(name) {
                return Ok(());
            }
            let message = format!("type \"{own}\" does not exist");
            Err(Error::new(SqlState::UNDEFINED_OBJECT, message))
        }
        // A schema that is not there is said where the name is looked up.
        [.., schema, _] => closed(schema).map_or(Ok(()), |guarded| Err(guarded.refused())),
        [] => Ok(()),
    }
}

/// Whether the server has a type of this name: it comes before those of users.
fn is_of_system(name: &ObjectName) -> bool {
    let (catalog, settings) = (CatalogSnapshot::default(), Settings::default());
    let none = UserTypes { catalog: &catalog, settings: &settings };
    named(&DataType::Custom(name.clone(), Vec::new()), &none).is_ok()
}

/// The names of types in a statement that the parser does not know by themselves.
#[derive(Default)]
struct Types(Vec<ObjectName>);

impl Types {
    fn take(&mut self, ty: &DataType) {
        match ty {
            DataType::Array(
                ArrayElemTypeDef::SquareBracket(inner, _)
                | ArrayElemTypeDef::AngleBracket(inner)
                | ArrayElemTypeDef::Parenthesis(inner),
            ) => self.take(inner),
            DataType::Custom(name, _) => self.0.push(name.clone()),
            _ => {}
        }
    }

    /// What expressions in a piece of a statement name.
    fn within(&mut self, piece: &impl Visit) {
        let _ = piece.visit(self);
    }

    fn column(&mut self, column: &ColumnDef) {
        self.take(&column.data_type);
        self.within(column);
    }

    fn table(&mut self, create: &CreateTable) {
        self.within(create);
        create.columns.iter().for_each(|column| self.take(&column.data_type));
    }

    fn statement(&mut self, statement: &Statement) -> Result<()> {
        if !matches!(class_of(statement), Class::Data | Class::Definition) {
            return Ok(());
        }
        match statement {
            Statement::CreateTable(create) => self.table(create),
            Statement::Pragma { .. } => {
                if let Some(definition) = definition::read(statement)? {
                    self.definition(&definition)?;
                }
            }
            Statement::CreateType {
                representation: Some(UserDefinedTypeRepresentation::Composite { attributes }),
                ..
            } => attributes.iter().for_each(|attribute| self.take(&attribute.data_type)),
            other => self.within(other),
        }
        Ok(())
    }

    fn definition(&mut self, definition: &Definition) -> Result<()> {
        match definition {
            Definition::Alter { actions, .. } => {
                actions.iter().for_each(|action| self.action(action));
            }
            Definition::AlterSequence { options, .. }
            | Definition::CreateSequence { options, .. } => self.options(options),
            Definition::AlterAttributes { actions, .. } => {
                for action in actions {
                    match action {
                        AttributeAction::Add { ty, .. } | AttributeAction::Type { ty, .. } => {
                            self.take(ty);
                        }
                        AttributeAction::Drop { .. } | AttributeAction::Rename { .. } => {}
                    }
                }
            }
            Definition::CreateSchema { elements, .. } => {
                elements.iter().try_for_each(|element| self.statement(element))?;
            }
            Definition::CreateTableLike { create, .. }
            | Definition::CreateTableEmpty(create)
            | Definition::CreateTableAs(create) => self.table(create),
            Definition::AlterSchema { .. }
            | Definition::OwnerTo { .. }
            | Definition::CreateRole { .. }
            | Definition::DropRole { .. }
            | Definition::Grant(_)
            | Definition::GrantRole(_)
            | Definition::DefaultPrivileges { .. }
            | Definition::ReassignOwned { .. }
            | Definition::DropOwned { .. }
            | Definition::AlterRole { .. }
            | Definition::Settings(_)
            | Definition::CommentOnConstraint { .. }
            | Definition::DropIndexConcurrently { .. }
            | Definition::Reindex { .. }
            | Definition::ReindexAll { .. } => {}
        }
        Ok(())
    }

    fn action(&mut self, action: &Action) {
        match action {
            Action::AddColumn { definition, .. } => self.column(definition),
            Action::AddConstraint { constraint, .. } => self.within(&**constraint),
            Action::Column { change, .. } => match change {
                ColumnChange::Type { ty, using } => {
                    self.take(ty);
                    using.iter().for_each(|using| self.within(&**using));
                }
                ColumnChange::SetDefault(value) => self.within(&**value),
                ColumnChange::AddIdentity { options, .. }
                | ColumnChange::SetIdentity { options, .. } => self.options(options),
                ColumnChange::DropDefault
                | ColumnChange::SetNotNull
                | ColumnChange::DropNotNull
                | ColumnChange::DropExpression { .. }
                | ColumnChange::DropIdentity { .. }
                | ColumnChange::Nothing => {}
            },
            Action::DropColumn { .. }
            | Action::DropConstraint { .. }
            | Action::AlterConstraint { .. }
            | Action::ValidateConstraint(_)
            | Action::RenameTo(_)
            | Action::RenameColumn { .. }
            | Action::RenameConstraint { .. }
            | Action::SetSchema(_)
            | Action::Settings(_)
            | Action::OwnerTo(_)
            | Action::ViewOptions { .. }
            | Action::RowSecurity(_)
            | Action::Effectless(_)
            | Action::Unsupported(_) => {}
        }
    }

    fn options(&mut self, options: &[SequenceOption]) {
        for option in options {
            if let SequenceOption::As(ty) = option {
                self.take(ty);
            }
        }
    }
}

impl Visitor for Types {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Cast { data_type, .. } => self.take(data_type),
            Expr::TypedString(typed) => self.take(&typed.data_type),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        let alias = match factor {
            TableFactor::Table { alias, .. }
            | TableFactor::Derived { alias, .. }
            | TableFactor::TableFunction { alias, .. }
            | TableFactor::Function { alias, .. }
            | TableFactor::UNNEST { alias, .. }
            | TableFactor::NestedJoin { alias, .. } => alias,
            _ => return ControlFlow::Continue(()),
        };
        for column in alias.iter().flat_map(|alias| &alias.columns) {
            if let Some(ty) = &column.data_type {
                self.take(ty);
            }
        }
        ControlFlow::Continue(())
    }
}
