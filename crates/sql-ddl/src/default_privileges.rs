//! ALTER DEFAULT PRIVILEGES: what is granted on objects that a role is yet to make.
//!
//! # Invariants
//! - A list is kept for a role, a schema (or all) and a kind, where it is another than what is
//!   there without one; in the order of grantees and grantors.
//!
//! # On failure
//! 42501 for who does not act as the role, 3F000, 0LP01.

use telesto_sql_catalog::rights::denied;
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{Acl, DefaultAcl, Granted, Owner, Rights};
use telesto_sql_parser::definition::{Grant, GrantOn, RoleSpec};
use telesto_sql_parser::sqlparser::ast::Ident;
use telesto_sql_types::error::{Error, Result, SqlState};

use super::Ddl;
use super::grant::{Change, kind_of, rights_named};
use super::names::fold;

impl Ddl<'_> {
    pub(super) fn default_privileges(
        &mut self,
        of: &[RoleSpec],
        within: &[Ident],
        statement: &Grant,
    ) -> Result<()> {
        let GrantOn::Later(kind) = statement.on else {
            return Err(Error::internal("default privileges on objects"));
        };
        let kind = kind_of(kind);
        let rights = rights_named(statement, kind)?;
        let change = Change { statement, grantees: self.grantees(&statement.roles)? };
        let mut roles = Vec::new();
        for spec in of {
            let role = self.role_of(spec)?;
            if !self.actor.acts_as(role.oid) {
                return Err(denied("permission denied to change default privileges"));
            }
            roles.push(role.oid);
        }
        if of.is_empty() {
            roles.push(self.actor.oid);
        }
        let mut schemas = Vec::new();
        for schema in within {
            let name = fold(schema);
            let schema = self.catalog().schema(&name).ok_or_else(|| {
                Error::new(
                    SqlState::INVALID_SCHEMA_NAME,
                    format!("schema \"{name}\" does not exist"),
                )
            })?;
            schemas.push(schema.oid);
        }
        if schemas.is_empty() {
            schemas.push(0);
        }
        for role in roles {
            for schema in &schemas {
                self.change_default((role, *schema, kind), rights, &change)?;
            }
        }
        Ok(())
    }

    fn change_default(
        &mut self,
        (role, schema, kind): (u32, u32, Granted),
        rights: Rights,
        change: &Change<'_>,
    ) -> Result<()> {
        let owner = Owner(role);
        // Of one schema only what is added is kept.
        let base = if schema == 0 { Acl::default_of(kind, owner) } else { Acl::default() };
        let known = self
            .catalog()
            .default_acls()
            .find(|d| (d.role, d.schema, d.kind) == (role, schema, kind))
            .cloned();
        let mut acl = known.as_ref().map_or_else(|| base.clone(), |known| known.acl.clone());
        for grantee in &change.grantees {
            if change.statement.grant {
                let options = if change.statement.with_option { rights } else { Rights::NONE };
                acl.grant((*grantee, role), rights, options, owner)?;
            } else {
                let only = change.statement.only_option;
                acl.revoke((*grantee, role), rights, only, change.statement.cascade, owner)?;
            }
        }
        // In the order that PostgreSQL keeps these in.
        acl.sort();
        let mut plain = base;
        plain.sort();
        match (known, acl == plain) {
            (Some(known), true) => self.change.remove(known.oid),
            (None, true) => {}
            (known, false) => {
                self.change.define_temporary(false);
                let oid = match known {
                    Some(known) => known.oid,
                    None => self.change.oid(),
                };
                self.change.put(Object::DefaultAcl(DefaultAcl { oid, role, schema, kind, acl }));
            }
        }
        Ok(())
    }
}
