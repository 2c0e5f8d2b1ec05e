//! SET CONSTRAINTS, and the check of deferred constraints before a commit.
//!
//! # Invariants
//! - A mode set in a transaction ends with it, and goes back with a rollback to a savepoint.
//! - Tables whose rows deferred constraints are about are not redefined before these were checked
//!   ([`may_define`]).
//! - IMMEDIATE checks at once what waits for the commit; when that fails, so does the statement.
//!
//! # On failure
//! 42704 for a name that no constraint has, 42809 for a constraint that cannot be deferred, 23503
//! and 23505 for what is violated.

use std::sync::Arc;

use super::Session;
use crate::catalog::{CatalogSnapshot, Relation, Table};
use crate::definition::{Action, Definition, Kind};
use crate::error::{Error, Result, SqlState};
use crate::exec::write::Statement as Writing;
use crate::expr::{EvalContext, fold};
use crate::plan::ExecContext;
use crate::sqlparser::ast::{Expr, ObjectName, Statement, Value};

/// A constraint's name, with its schema if given.
type Name = (Option<String>, String);

/// SET CONSTRAINTS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetConstraints {
    /// Which; `None`: all.
    names: Option<Vec<Name>>,
    deferred: bool,
}

impl SetConstraints {
    /// From the values that `parse` writes: the mode, then names; an empty one says that the name
    /// before is the schema of the next.
    ///
    /// # Errors
    /// 42601.
    pub(super) fn read(values: &[Expr]) -> Result<Self> {
        let wrong =
            || Error::syntax("SET CONSTRAINTS takes ALL or names, and DEFERRED or IMMEDIATE");
        let Some((Expr::Identifier(when), names)) = values.split_first() else {
            return Err(wrong());
        };
        let mut found: Vec<Name> = Vec::new();
        let mut qualified = false;
        for name in names {
            let Expr::Value(value) = name else { return Err(wrong()) };
            let Value::SingleQuotedString(name) = &value.value else { return Err(wrong()) };
            if name.is_empty() {
                qualified = true;
            } else if std::mem::take(&mut qualified) {
                let (_, schema) = found.pop().ok_or_else(wrong)?;
                found.push((Some(schema), name.clone()));
            } else {
                found.push((None, name.clone()));
            }
        }
        Ok(Self {
            names: (!found.is_empty()).then_some(found),
            deferred: when.value.eq_ignore_ascii_case("deferred"),
        })
    }
}

/// The OIDs of the foreign keys and other keys of a name: those of the first schema that has a
/// constraint of the name. Only what is deferrable can be `deferred`; the rest is immediate as it
/// is.
fn named(
    catalog: &CatalogSnapshot,
    path: &[String],
    name: &Name,
    deferred: bool,
) -> Result<Vec<u32>> {
    let (schema, name) = name;
    let schemas = match schema {
        Some(schema) => std::slice::from_ref(schema),
        None => path,
    };
    for schema in schemas {
        let mut found = Vec::new();
        let mut fixed = false;
        for table in catalog.tables().filter(|t| catalog.schema_name(t.schema) == schema.as_str()) {
            for key in table.foreign_keys.iter().filter(|key| key.name == *name) {
                fixed |= !key.deferrable;
                found.push(key.oid);
            }
            fixed |= table.checks.iter().any(|check| check.name == *name);
            for index in table.all_indexes().filter(|index| index.name == *name) {
                let Some(oid) = index.constraint_oid else { continue };
                fixed |= index.deferral.is_none();
                found.push(oid);
            }
        }
        if fixed && deferred {
            return Err(Error::new(
                SqlState::WRONG_OBJECT_TYPE,
                format!("constraint \"{name}\" is not deferrable"),
            ));
        }
        if fixed || !found.is_empty() {
            return Ok(found);
        }
    }
    let shown = schema.as_ref().map_or_else(|| name.clone(), |schema| format!("{schema}.{name}"));
    Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("constraint \"{shown}\" does not exist")))
}

/// The tables that a definition changes or empties, with its words; renaming does neither. `None`:
/// it is not known which.
fn changed(statement: &Statement) -> Result<Option<(&'static str, Vec<ObjectName>)>> {
    use crate::sqlparser::ast::ObjectType;
    if let Some(definition) = crate::definition::read(statement)? {
        return Ok(match definition {
            Definition::Alter { kind: Kind::Table, name, actions, .. } => {
                let renames = |action: &Action| {
                    matches!(
                        action,
                        Action::RenameTo(_)
                            | Action::RenameColumn { .. }
                            | Action::RenameConstraint { .. }
                            | Action::SetSchema(_)
                    )
                };
                let names = if actions.iter().all(renames) { Vec::new() } else { vec![name] };
                Some((Kind::Table.tag(), names))
            }
            Definition::CommentOnConstraint { .. } => Some(("COMMENT", Vec::new())),
            _ => None,
        });
    }
    Ok(match statement {
        Statement::Drop { object_type: ObjectType::Table, names, .. } => {
            Some(("DROP TABLE", names.clone()))
        }
        Statement::Truncate(truncate) => {
            let names = truncate.table_names.iter().map(|target| target.name.clone());
            Some(("TRUNCATE", names.collect()))
        }
        Statement::CreateIndex(create) => Some(("CREATE INDEX", vec![create.table_name.clone()])),
        Statement::CreateTable(_) | Statement::CreateView(_) => Some(("CREATE", Vec::new())),
        _ => None,
    })
}

/// Whether a definition may be made in a block that has written rows which deferred constraints are
/// about: not to their tables, and, while violations wait, not to others that these are about.
///
/// # Errors
/// 55006.
pub(super) fn may_define(statement: &Statement, context: &ExecContext) -> Result<()> {
    let deferred = &context.deferred;
    let refused = |what: String| {
        Error::new(
            SqlState::OBJECT_IN_USE,
            format!("cannot {what} because it has pending trigger events"),
        )
        .hint("SET CONSTRAINTS ALL IMMEDIATE checks the deferred constraints.")
    };
    if !deferred.any_queued() && !deferred.any() {
        return Ok(());
    }
    let Some((words, names)) = changed(statement)? else {
        if !deferred.any() {
            return in_no_schema(statement, context);
        }
        let text = crate::definition::text(statement)
            .map_or_else(|| statement.to_string(), str::to_uppercase);
        let words = text.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        return Err(Error::new(
            SqlState::OBJECT_IN_USE,
            format!("cannot {words} because there are pending trigger events"),
        )
        .hint("SET CONSTRAINTS ALL IMMEDIATE checks the deferred constraints."));
    };
    let waiting = deferred.waiting(None);
    let path = context.settings.effective_search_path();
    for name in &names {
        let parts: Vec<String> = name.0.iter().filter_map(|p| p.as_ident()).map(fold).collect();
        let (schema, relation) = match parts.as_slice() {
            [relation] => (None, relation),
            [.., schema, relation] => (Some(schema.as_str()), relation),
            [] => continue,
        };
        let found = context.catalog.resolve(schema, relation, &path);
        let Some(Relation::Table(table)) = found else { continue };
        let concerned = waiting.iter().any(|waiting| waiting.tables().contains(&table.id));
        if concerned || deferred.is_queued(table.id) {
            return Err(refused(format!("{words} \"{}\"", table.name)));
        }
    }
    Ok(())
}

/// DROP SCHEMA takes no table along that has such rows.
fn in_no_schema(statement: &Statement, context: &ExecContext) -> Result<()> {
    use crate::sqlparser::ast::ObjectType;
    let Statement::Drop { object_type: ObjectType::Schema, names, .. } = statement else {
        return Ok(());
    };
    let dropped: Vec<String> =
        names.iter().filter_map(|name| name.0.last()?.as_ident()).map(fold).collect();
    let catalog = &context.catalog;
    let of_schema = |table: &&Arc<Table>| {
        dropped.iter().any(|name| catalog.schema_name(table.schema) == name.as_str())
    };
    match catalog.tables().filter(of_schema).find(|t| context.deferred.is_queued(t.id)) {
        None => Ok(()),
        Some(table) => Err(Error::new(
            SqlState::OBJECT_IN_USE,
            format!("cannot DROP TABLE \"{}\" because it has pending trigger events", table.name),
        )
        .hint("SET CONSTRAINTS ALL IMMEDIATE checks the deferred constraints.")),
    }
}

impl Session {
    /// SET CONSTRAINTS in the block under way.
    pub(super) async fn set_constraints(&mut self, set: &SetConstraints) -> Result<()> {
        let constraints = match &set.names {
            None => None,
            Some(names) => {
                let txn = self.transaction().await?;
                let catalog = self.read_catalog(&txn).await?;
                let path = self.settings.effective_search_path();
                let mut found = Vec::new();
                for name in names {
                    found.extend(named(&catalog, &path, name, set.deferred)?);
                }
                Some(found)
            }
        };
        if !set.deferred {
            self.settle_deferred(constraints.as_deref()).await?;
        }
        self.deferred.set(constraints.as_deref(), set.deferred);
        Ok(())
    }

    /// Looks at the violations of these constraints that wait; `None`: of all.
    ///
    /// # Errors
    /// 23503, 23505 for the first that is still there, if it is at the log's tail too; else the
    /// conflict.
    pub(super) async fn settle_deferred(&mut self, constraints: Option<&[u32]>) -> Result<()> {
        let waiting = self.deferred.waiting(constraints);
        if waiting.is_empty() {
            self.deferred.checked(constraints);
            return Ok(());
        }
        let txn = self.transaction().await?;
        // Under READ COMMITTED it sees what others have committed by now.
        txn.next_statement().await?;
        let catalog = self.catalog_of_statement(&txn).await?;
        let context = self.context_of(txn, catalog, &[], true);
        let eval = EvalContext::executing(&context);
        let settled = Writing::over(&context, &eval).settle(&waiting).await;
        if let Err(error) = settled {
            return Err(self.confirmed(error).await);
        }
        self.deferred.checked(constraints);
        if constraints.is_none() {
            self.deferred.settled();
        }
        Ok(())
    }
}
