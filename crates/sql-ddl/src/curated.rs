//! `ALTER TABLE … SET (telesto.curated = role)`: whose members approve what others write into a
//! table.
//!
//! # Invariants
//! - Who is no curator changes nothing of a curated table but who may use it and what is said of
//!   it: neither its rows, by TRUNCATE, DROP or a new type of a column, nor what the types of its
//!   columns say, nor the name it is read by, nor that it is curated. Every definition is looked
//!   at, whatever it was ([`check_change`]).
//! - A role that curates a table is not dropped.
//!
//! # On failure
//! 42501 for who is no curator, 42704 for what is no role, 0A000 for temporary tables and in
//! databases of several regions.

use std::collections::BTreeSet;

use super::Ddl;
use telesto_sql_catalog::rights::denied;
use telesto_sql_catalog::temp::is_temporary;
use telesto_sql_catalog::types::{TypeKind, user_oid};
use telesto_sql_catalog::{Actor, CatalogSnapshot, Table};
use telesto_sql_types::error::{Error, Result, SqlState};

/// The setting's name.
pub(super) const CURATED: &str = "telesto.curated";

impl Ddl<'_> {
    /// Takes the setting from a list of settings (`None`: nobody curates the table any more).
    pub(super) fn curate(
        &mut self,
        table: &mut Table,
        settings: &[(String, Option<String>)],
    ) -> Result<()> {
        for (_, value) in settings.iter().filter(|(name, _)| name == CURATED) {
            may_change(table, &self.actor)?;
            let Some(name) = value.as_deref() else {
                table.curated = None;
                continue;
            };
            if is_temporary(table.id.0) {
                return Err(Error::unsupported("a temporary table that is curated")
                    .hint("Nobody but its session sees it."));
            }
            if self.catalog().is_regional() {
                return Err(Error::unsupported("a curated table in a database of several regions"));
            }
            let name =
                name.strip_prefix('"').and_then(|name| name.strip_suffix('"')).unwrap_or(name);
            let folded = name.to_lowercase();
            let named = |wanted: &str| self.catalog().roles().find(|role| role.name == wanted);
            let role = named(name).or_else(|| named(&folded));
            let role = role.ok_or_else(|| {
                Error::new(SqlState::UNDEFINED_OBJECT, format!("role \"{name}\" does not exist"))
                    .hint("SET (telesto.curated = role) names the role whose members approve changes.")
            })?;
            table.curated = Some(role.oid);
            super::constraint::may_defer(table)?;
        }
        Ok(())
    }
}

/// Fails unless the role curates the table, if anybody does.
pub(super) fn may_change(table: &Table, actor: &Actor) -> Result<()> {
    match table.curated {
        Some(role) if !actor.acts_as(role) => {
            Err(denied(format!("must be curator of table {}", table.name))
                .hint("A member of the role that curates it changes it: telesto.curated."))
        }
        _ => Ok(()),
    }
}

/// Fails where a definition changes a curated table for who is no curator of it.
pub(super) fn check_change(
    before: &CatalogSnapshot,
    after: &CatalogSnapshot,
    touched: &[u32],
    actor: &Actor,
) -> Result<()> {
    for (was, _) in before.curated() {
        if renames_schema(before, after, was.schema) || changes_types(before, after, touched, was) {
            may_change(was, actor)?;
        }
        if !touched.contains(&was.id.0) {
            continue;
        }
        let Some(now) = after.table(was.id) else {
            may_change(was, actor)?;
            continue;
        };
        let mut columns = now.columns.clone();
        for (column, old) in columns.iter_mut().zip(&was.columns) {
            column.acl.clone_from(&old.acl);
            column.comment.clone_from(&old.comment);
        }
        let same = Table {
            columns,
            owner: was.owner,
            acl: was.acl.clone(),
            comment: was.comment.clone(),
            constraint_comments: was.constraint_comments.clone(),
            row_security: was.row_security.clone(),
            ..(**now).clone()
        };
        if same != **was {
            may_change(was, actor)?;
        }
    }
    Ok(())
}

/// Whether a schema has got another name: what readers find under the name they know may be
/// another's then.
fn renames_schema(before: &CatalogSnapshot, after: &CatalogSnapshot, schema: u32) -> bool {
    before.schema_name(schema) != after.schema_name(schema)
}

/// Whether what a type of the table's columns is has changed: a label that is renamed changes what
/// readers are shown.
fn changes_types(
    before: &CatalogSnapshot,
    after: &CatalogSnapshot,
    touched: &[u32],
    table: &Table,
) -> bool {
    let mut met = BTreeSet::new();
    let mut reached: Vec<u32> = table
        .visible_columns()
        .flat_map(|(_, column)| column.domain.into_iter().chain(user_oid(&column.ty)))
        .collect();
    while let Some(oid) = reached.pop() {
        let Some(was) = before.user_type(oid).filter(|_| met.insert(oid)) else { continue };
        let now = after.user_type(oid);
        if touched.contains(&oid) && now.is_none_or(|now| now.kind != was.kind) {
            return true;
        }
        match &was.kind {
            TypeKind::Enum(_) => {}
            TypeKind::Domain(domain) => {
                reached.extend(user_oid(&domain.base).into_iter().chain(domain.parent));
            }
            TypeKind::Composite(composite) => {
                reached.extend(composite.fields.iter().filter_map(|field| user_oid(&field.ty)));
            }
        }
    }
    false
}
