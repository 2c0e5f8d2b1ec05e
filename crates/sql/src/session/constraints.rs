//! SET CONSTRAINTS, and the check of deferred constraints before a commit.
//!
//! # Invariants
//! - A mode set in a transaction ends with it, and goes back with a rollback to a savepoint.
//! - IMMEDIATE checks at once what waits for the commit; when that fails, so does the statement.
//!
//! # On failure
//! 42704 for a name that no constraint has, 42809 for a constraint that cannot be deferred, 23503 for what is violated.

use super::Session;
use crate::catalog::CatalogSnapshot;
use crate::error::{Error, Result, SqlState};
use crate::exec::write::Statement as Writing;
use crate::expr::EvalContext;
use crate::sqlparser::ast::{Expr, Value};

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
    /// From the values that `parse` writes: the mode, then names; an empty one says that the name before is the schema of the next.
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

/// The OIDs of the foreign keys of a name: those of the first schema that has a constraint of the name. Only what is deferrable can be
/// `deferred`; the rest is immediate as it is.
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
            fixed |= table.checks.iter().any(|check| check.name == *name)
                || table
                    .all_indexes()
                    .any(|index| index.constraint_oid.is_some() && index.name == *name);
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
    /// 23503 for the first that is still there, if it is at the log's tail too; else the conflict.
    pub(super) async fn settle_deferred(&mut self, constraints: Option<&[u32]>) -> Result<()> {
        let waiting = self.deferred.waiting(constraints);
        if waiting.is_empty() {
            return Ok(());
        }
        let txn = self.transaction().await?;
        // Under READ COMMITTED it sees what others have committed by now.
        txn.next_statement().await?;
        let catalog = self.read_catalog(&txn).await?;
        let context = self.context_of(txn, catalog, &[], true);
        let eval = EvalContext::executing(&context);
        let settled = Writing::over(&context, &eval).settle(&waiting).await;
        if let Err(error) = settled {
            return Err(self.confirmed(error).await);
        }
        if constraints.is_none() {
            self.deferred.settled();
        }
        Ok(())
    }
}
