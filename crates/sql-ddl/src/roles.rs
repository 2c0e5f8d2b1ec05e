//! CREATE, ALTER and DROP of roles; GRANT and REVOKE of memberships.
//!
//! # Invariants
//! - Only a superuser makes, changes or drops a superuser, or one that replicates or passes row
//!   security by.
//! - Roles are never members of each other in a circle.
//! - A role that owns something, or that something was granted to, is not dropped (2BP01).
//! - A password is kept as its SCRAM-SHA-256 verifier, with a salt of its own, whichever way it was
//!   given.
//!
//! # On failure
//! PostgreSQL's errors; 42501 for who may not.

use std::sync::Arc;

use telesto_sql_catalog::Role;
use telesto_sql_catalog::acl::BOOTSTRAP;
use telesto_sql_catalog::model::Membership;
use telesto_sql_catalog::rights::{DATABASE_OWNER, denied, is_predefined};
use telesto_sql_catalog::store::Object;
use telesto_sql_expr::EvalContext;
use telesto_sql_expr::cast::input;
use telesto_sql_parser::definition::{GrantRole, RoleChange, RoleOption, RoleSpec};
use telesto_sql_parser::sqlparser::ast::Ident;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, SqlType};

use super::Ddl;
use super::names::fold;
use super::verifier::{is_of_nothing, verifier};

pub(super) fn reserved(name: &str, detail: &str) -> Error {
    Error::new(SqlState::RESERVED_NAME, format!("role name \"{name}\" is reserved")).detail(detail)
}

/// What PostgreSQL would do: what the roles of every database are members of is in no record here.
fn fixed(name: &str) -> Error {
    Error::unsupported(format!("a change of what predefined role \"{name}\" is a member of"))
        .hint("GRANT both to a role of your own, and make that the members' role.")
}

fn grant_error(message: String) -> Error {
    Error::new(SqlState::INVALID_GRANT_OPERATION, message)
}

impl Ddl<'_> {
    pub(super) fn creates_roles(&self) -> bool {
        self.actor.superuser
            || self.catalog().role(self.actor.oid).is_some_and(|role| role.create_role)
    }

    fn check_name(name: &str) -> Result<()> {
        if name.starts_with("pg_") {
            return Err(reserved(name, "Role names starting with \"pg_\" are reserved."));
        }
        if matches!(name, "public" | "none") {
            return Err(Error::new(
                SqlState::RESERVED_NAME,
                format!("role name \"{name}\" is reserved"),
            ));
        }
        Ok(())
    }

    fn check_role_free(&self, name: &str) -> Result<()> {
        if self.catalog().role_named(name).is_none() {
            return Ok(());
        }
        Err(Error::new(SqlState::DUPLICATE_OBJECT, format!("role \"{name}\" already exists")))
    }

    pub(super) fn create_role(&mut self, name: &Ident, options: &[RoleOption]) -> Result<()> {
        let name = fold(name);
        let asked = |option: &RoleOption| options.contains(option);
        if !self.actor.superuser {
            if asked(&RoleOption::Superuser(true)) {
                return Err(denied("must be superuser to create superusers"));
            }
            if asked(&RoleOption::Replication(true)) {
                return Err(denied("must be superuser to create replication users"));
            }
            if asked(&RoleOption::BypassRls(true)) {
                return Err(denied("must be superuser to create bypassrls users"));
            }
            if !self.creates_roles() {
                return Err(denied("permission denied to create role"));
            }
        }
        Self::check_name(&name)?;
        self.check_role_free(&name)?;
        self.change.define_temporary(false);
        let mut role = Role::new(self.change.oid(), name);
        self.apply(&mut role, options)?;
        let oid = role.oid;
        self.change.put(Object::Role(role));
        for option in options {
            match option {
                RoleOption::InRole(of) => {
                    for of in self.named_roles(of)? {
                        self.add_member(&of, oid, (self.actor.oid, false))?;
                    }
                }
                RoleOption::Role(members) | RoleOption::Admin(members) => {
                    let admin = matches!(option, RoleOption::Admin(_));
                    for member in self.named_roles(members)? {
                        let role = self.role_by_oid(oid)?;
                        self.add_member(&role, member.oid, (self.actor.oid, admin))?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn named_roles(&self, specs: &[RoleSpec]) -> Result<Vec<Arc<Role>>> {
        specs.iter().map(|spec| self.role_of(spec)).collect()
    }

    /// Puts options into a role.
    fn apply(&self, role: &mut Role, options: &[RoleOption]) -> Result<()> {
        for option in options {
            match option {
                RoleOption::Superuser(on) => role.superuser = *on,
                RoleOption::Login(on) => role.login = *on,
                RoleOption::CreateDb(on) => role.create_db = *on,
                RoleOption::CreateRole(on) => role.create_role = *on,
                RoleOption::Inherit(on) => role.inherit = *on,
                RoleOption::Replication(on) => role.replication = *on,
                RoleOption::BypassRls(on) => role.bypass_rls = *on,
                RoleOption::ConnectionLimit(limit) => {
                    role.connection_limit = match *limit {
                        -1 => None,
                        limit => Some(u32::try_from(limit).map_err(|_| {
                            Error::new(
                                SqlState::INVALID_PARAMETER_VALUE,
                                format!("invalid connection limit: {limit}"),
                            )
                        })?),
                    };
                }
                RoleOption::ValidUntil(text) => {
                    let context = EvalContext::executing(self.context);
                    role.valid_until = match input(text, &SqlType::TimestampTz(None), &context)? {
                        Datum::TimestampTz(i64::MAX) => None,
                        Datum::TimestampTz(at) => Some(at),
                        _ => return Err(Error::internal("a moment that is none")),
                    };
                }
                RoleOption::Password(None) => role.password = None,
                RoleOption::Password(Some(text)) => {
                    role.password = if is_of_nothing(text) {
                        self.context.notices.notice(
                            "empty string is not a valid password, clearing password".to_owned(),
                        );
                        None
                    } else {
                        Some(verifier(text, self.context.env.random_u128())?)
                    };
                }
                RoleOption::InRole(_) | RoleOption::Role(_) | RoleOption::Admin(_) => {}
                RoleOption::SysId => {
                    self.context.notices.notice("SYSID can no longer be specified".to_owned());
                }
            }
        }
        Ok(())
    }

    pub(super) fn alter_role(&mut self, spec: &RoleSpec, change: &RoleChange) -> Result<()> {
        let known = self.role_of(spec)?;
        if is_predefined(known.oid) {
            return Err(reserved(&known.name, "Cannot alter reserved roles."));
        }
        let mut role = (*known).clone();
        match change {
            RoleChange::Rename(to) => {
                let to = fold(to);
                Self::check_name(&to)?;
                let settings = &self.context.settings;
                let of = |oid: u32, whose: &str| {
                    (role.oid == oid)
                        .then(|| Error::unsupported(format!("{whose} user cannot be renamed")))
                };
                if let Some(error) = of(settings.session_role, "session")
                    .or_else(|| of(settings.current_role, "current"))
                {
                    return Err(Error::new(
                        SqlState::FEATURE_NOT_SUPPORTED,
                        error.message().replace(" is not supported", ""),
                    ));
                }
                self.check_role_free(&to)?;
                if role.superuser && !self.actor.superuser {
                    return Err(denied("must be superuser to rename superusers"));
                }
                if !self.creates_roles() {
                    return Err(denied("permission denied to rename role"));
                }
                role.name = to;
            }
            RoleChange::Options(options) => {
                self.may_alter(&role, options)?;
                if role.oid == BOOTSTRAP && options.contains(&RoleOption::Superuser(false)) {
                    return Err(Error::new(
                        SqlState::FEATURE_NOT_SUPPORTED,
                        "the first role must be a superuser",
                    ));
                }
                self.apply(&mut role, options)?;
            }
        }
        self.change.put(Object::Role(role));
        Ok(())
    }

    /// Whether the role may change these options of another.
    fn may_alter(&self, role: &Role, options: &[RoleOption]) -> Result<()> {
        if self.actor.superuser {
            return Ok(());
        }
        let about = |wanted: fn(&RoleOption) -> bool| options.iter().any(wanted);
        if role.superuser || about(|o| matches!(o, RoleOption::Superuser(_))) {
            return Err(denied(
                "must be superuser to alter superuser roles or change superuser attribute",
            ));
        }
        if role.replication || about(|o| matches!(o, RoleOption::Replication(_))) {
            return Err(denied(
                "must be superuser to alter replication roles or change replication attribute",
            ));
        }
        if about(|o| matches!(o, RoleOption::BypassRls(_))) {
            return Err(denied("must be superuser to change bypassrls attribute"));
        }
        if self.creates_roles() {
            return Ok(());
        }
        // Everybody may change the own password, and nothing else.
        let password =
            !options.is_empty() && options.iter().all(|o| matches!(o, RoleOption::Password(_)));
        if password && role.oid == self.actor.oid {
            return Ok(());
        }
        Err(denied("permission denied"))
    }

    pub(super) fn drop_roles(&mut self, if_exists: bool, specs: &[RoleSpec]) -> Result<()> {
        if !self.creates_roles() {
            return Err(denied("permission denied to drop role"));
        }
        for spec in specs {
            let RoleSpec::Name(name) = spec else {
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    "cannot use special role specifier in DROP ROLE",
                ));
            };
            let role = match self.role_of(spec) {
                Ok(role) => role,
                Err(_) if if_exists => {
                    let name = fold(name);
                    let text = format!("role \"{name}\" does not exist, skipping");
                    self.context.notices.notice(text);
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.drop_one_role(&role)?;
        }
        Ok(())
    }

    fn drop_one_role(&mut self, role: &Role) -> Result<()> {
        let in_use = |whose: &str| {
            Error::new(SqlState::OBJECT_IN_USE, format!("{whose} user cannot be dropped"))
        };
        if role.oid == self.context.settings.current_role {
            return Err(in_use("current"));
        }
        if role.oid == self.context.settings.session_role {
            return Err(in_use("session"));
        }
        if role.superuser && !self.actor.superuser {
            return Err(denied("must be superuser to drop superusers"));
        }
        if role.oid == BOOTSTRAP || is_predefined(role.oid) {
            return Err(Error::new(
                SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                format!(
                    "cannot drop role {} because it is required by the database system",
                    role.name
                ),
            ));
        }
        if let Some(target) = self.policy_of_role(role.oid) {
            return Err(Error::new(
                SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                format!(
                    "role \"{}\" cannot be dropped because some objects depend on it",
                    role.name
                ),
            )
            .detail(target)
            .hint("ALTER POLICY … TO, or DROP POLICY."));
        }
        let curates = self.catalog().curated().iter().find(|(_, by)| *by == role.oid);
        if let Some((table, _)) = curates {
            return Err(Error::new(
                SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                format!(
                    "role \"{}\" cannot be dropped because some objects depend on it",
                    role.name
                ),
            )
            .detail(format!("curator of table {}", table.name))
            .hint("ALTER TABLE … SET (telesto.curated = …), or RESET (telesto.curated)."));
        }
        let dependents = self.catalog().dependents_of_role(role.oid);
        if !dependents.is_empty() {
            let lines: Vec<String> = dependents
                .into_iter()
                .map(|(what, owns)| {
                    format!("{} {what}", if owns { "owner of" } else { "privileges for" })
                })
                .collect();
            return Err(Error::new(
                SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                format!(
                    "role \"{}\" cannot be dropped because some objects depend on it",
                    role.name
                ),
            )
            .detail(lines.join("\n")));
        }
        let members: Vec<_> = self
            .catalog()
            .roles()
            .filter(|other| other.member_of.iter().any(|m| m.role == role.oid))
            .cloned()
            .collect();
        for member in members {
            let mut member = (*member).clone();
            member.member_of.retain(|m| m.role != role.oid);
            self.change.put(Object::Role(member));
        }
        let begins = self.catalog().stored_settings().filter(|known| known.role == role.oid);
        for oid in begins.map(|known| known.oid).collect::<Vec<_>>() {
            self.change.remove(oid);
        }
        self.change.remove(role.oid);
        // A users file does not bring it back.
        let mut rights = self.database_record();
        if !rights.has_users {
            rights.has_users = true;
            self.change.put(Object::Database(rights));
        }
        Ok(())
    }

    pub(super) fn grant_role(&mut self, given: &GrantRole) -> Result<()> {
        // PostgreSQL 15 reads who takes it back, and does not look at it.
        let by = match given.by.as_ref().filter(|_| given.grant) {
            Some(by) => self.role_of(by)?.oid,
            None => self.actor.oid,
        };
        let members = self.named_roles(&given.roles)?;
        for of in &given.of {
            let of = self.role_of(of)?;
            for member in &members {
                let of = self.role_by_oid(of.oid)?;
                if given.grant {
                    self.add_member(&of, member.oid, (by, given.with_option))?;
                } else {
                    self.remove_member(&of, member.oid, given.only_option)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the role may give or take memberships of another.
    fn may_admit(&self, role: &Role) -> Result<()> {
        if self.actor.superuser {
            return Ok(());
        }
        if role.superuser {
            return Err(denied("must be superuser to alter superusers"));
        }
        if self.creates_roles() || self.catalog().is_admin(self.actor.oid, role.oid) {
            return Ok(());
        }
        Err(denied(format!("must have admin option on role \"{}\"", role.name)))
    }

    /// Has one role be a member of another, by whom and whether with the right to have others be.
    fn add_member(
        &mut self,
        role: &Role,
        member: u32,
        (grantor, admin): (u32, bool),
    ) -> Result<()> {
        let known = self.role_by_oid(member)?;
        self.may_admit(role)?;
        if role.oid == DATABASE_OWNER {
            let text = format!("role \"{}\" cannot have explicit members", role.name);
            return Err(grant_error(text));
        }
        if grantor != self.actor.oid && !self.actor.superuser {
            return Err(denied("must be superuser to set grantor"));
        }
        if member == DATABASE_OWNER {
            let text = format!("role \"{}\" cannot be a member of any role", known.name);
            return Err(grant_error(text));
        }
        if self.catalog().is_member(role.oid, member) {
            let text = format!("role \"{}\" is a member of role \"{}\"", role.name, known.name);
            return Err(grant_error(text));
        }
        let mut changed = (*known).clone();
        match changed.member_of.iter_mut().find(|m| m.role == role.oid) {
            Some(membership) if membership.admin || !admin => {
                self.context.notices.notice(format!(
                    "role \"{}\" is already a member of role \"{}\"",
                    known.name, role.name
                ));
                return Ok(());
            }
            _ if is_predefined(member) => return Err(fixed(&known.name)),
            Some(membership) => *membership = Membership { role: role.oid, grantor, admin },
            None => changed.member_of.push(Membership { role: role.oid, grantor, admin }),
        }
        self.change.put(Object::Role(changed));
        Ok(())
    }

    fn remove_member(&mut self, role: &Role, member: u32, only_admin: bool) -> Result<()> {
        let known = self.role_by_oid(member)?;
        self.may_admit(role)?;
        let mut changed = (*known).clone();
        let Some(at) = changed.member_of.iter().position(|m| m.role == role.oid) else {
            self.context.notices.warning(
                SqlState::WARNING,
                format!("role \"{}\" is not a member of role \"{}\"", known.name, role.name),
            );
            return Ok(());
        };
        if is_predefined(member) {
            return Err(fixed(&known.name));
        }
        if only_admin {
            changed.member_of[at].admin = false;
        } else {
            changed.member_of.remove(at);
        }
        self.change.put(Object::Role(changed));
        Ok(())
    }
}
