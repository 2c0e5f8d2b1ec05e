//! ALTER ROLE … SET, ALTER DATABASE … SET and RESET: what sessions to come begin with.
//!
//! # Invariants
//! - A value that SET would refuse is not stored; whether one is for superusers alone is asked of
//!   who stores it.
//! - Everybody sets what is their own; who creates roles, that of roles that are no superusers; the
//!   database's owner, the database's; a superuser, everything.
//! - A record without values goes.
//! - `telesto.defining_region` is none of them: it is a definition of its own.
//!
//! # On failure
//! PostgreSQL's errors; 0A000 for parameters that are a session's or a transaction's own here.
//!
//! # Limits
//! Sessions under way keep what they began with.

use std::collections::BTreeSet;

use telesto_sql_catalog::Role;
use telesto_sql_catalog::rights::{denied, is_predefined};
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::stored_settings::{ALL_ROLES, StoredSettings};
use telesto_sql_expr::Settings;
use telesto_sql_expr::settings_origins::values_of;
use telesto_sql_parser::definition::{SettingChange, SettingsOf};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::identifier::quote_ident;

use super::Ddl;
use super::access::no_role;
use super::names::split;
use super::roles::reserved;

/// Parameters that take lists.
const LISTS: [&str; 2] = ["search_path", "datestyle"];
/// Parameters whose names are not spelled in lower case.
const SPELLED: [&str; 3] = ["TimeZone", "DateStyle", "IntervalStyle"];
/// The region in which definitions are made: ALTER DATABASE gives them to another one.
const DEFINING_REGION: &str = "telesto.defining_region";
/// The role that a session's rights are those of.
const ROLE: &str = "role";

/// Parameters that no session begins with here.
fn refuse(name: &str) -> Result<()> {
    let hint = match name.to_ascii_lowercase().as_str() {
        "session_authorization" => "A session can begin with another role: ALTER ROLE … SET role.",
        "transaction_isolation" => "default_transaction_isolation is for all transactions.",
        "transaction_read_only" => "default_transaction_read_only is for all transactions.",
        "transaction_deferrable" => "default_transaction_deferrable is for all transactions.",
        _ => return Ok(()),
    };
    Err(Error::unsupported(format!("{name} among the settings of a role or database")).hint(hint))
}

/// Whether a name may be a parameter that an application makes.
fn is_simple(name: &str) -> bool {
    let part = |part: &str| {
        let begins =
            part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || !c.is_ascii());
        begins
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "_$".contains(c) || !c.is_ascii())
    };
    name.contains('.') && name.split('.').all(part)
}

/// A parameter's name as it is stored.
fn spelled(name: &str) -> String {
    let known = SPELLED.into_iter().find(|known| known.eq_ignore_ascii_case(name));
    match known {
        Some(known) => known.to_owned(),
        None if is_of_an_application(name) => name.to_owned(),
        None => name.to_ascii_lowercase(),
    }
}

/// Whether the server does not know the parameter, and an application may.
fn is_of_an_application(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.contains('.') && !lower.starts_with("telesto.")
}

/// The text that several values are stored as.
fn flattened(name: &str, values: &[String]) -> Result<String> {
    if values.len() > 1 && !LISTS.iter().any(|list| name.eq_ignore_ascii_case(list)) {
        return Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("SET {name} takes only one argument"),
        ));
    }
    if name.eq_ignore_ascii_case("search_path") {
        let quoted: Vec<_> = values.iter().map(|value| quote_ident(value)).collect();
        return Ok(quoted.join(", "));
    }
    Ok(values.join(", "))
}

impl Ddl<'_> {
    /// ALTER ROLE and ALTER DATABASE, of settings; the tag.
    pub(super) fn alter_settings(&mut self, given: &SettingsOf) -> Result<&'static str> {
        let role = given.role.as_ref().map(|spec| self.role_of(spec)).transpose()?;
        if let Some(role) = &role {
            if is_predefined(role.oid) {
                return Err(reserved(&role.name, "Cannot alter reserved roles."));
            }
            self.may_alter_settings(role)?;
        }
        if let Some(name) = &given.database {
            let (_, name) = split(name)?;
            self.known_database(&name)?;
            if role.is_none() {
                self.catalog().guarded_database().need_owner(&self.actor)?;
            }
        }
        if role.is_none() && given.database.is_none() && !self.actor.superuser {
            return Err(denied("must be superuser to alter settings globally"));
        }
        if let SettingChange::Set(name, values) = &given.change
            && given.of_database
            && role.is_none()
            && name.eq_ignore_ascii_case(DEFINING_REGION)
        {
            return self.define_in(values);
        }
        let whose = (role.as_ref().map_or(ALL_ROLES, |role| role.oid), given.database.is_some());
        match &given.change {
            SettingChange::Set(name, values) => {
                let value = flattened(name, values)?;
                self.check_value(name, &value)?;
                self.store(whose, name, value);
            }
            SettingChange::FromCurrent(name) => {
                let value = self.context.settings.show(name)?;
                self.check_value(name, &value)?;
                self.store(whose, name, value);
            }
            SettingChange::Reset(name) => {
                self.may_reset(name)?;
                self.forget(whose, |known| known.eq_ignore_ascii_case(name));
            }
            // What the role may not reset by its name stays.
            SettingChange::ResetAll => {
                let known = self.catalog().settings_of(whose.0, whose.1);
                let names = known.iter().flat_map(|known| &known.values).map(|(name, _)| name);
                let goes = |name: &&String| self.actor.superuser || self.may_reset(name).is_ok();
                let going: BTreeSet<String> = names.filter(goes).cloned().collect();
                self.forget(whose, |known| going.contains(known));
            }
        }
        Ok(if given.of_database { "ALTER DATABASE" } else { "ALTER ROLE" })
    }

    /// ALTER DATABASE … SET telesto.defining_region: it is no setting of sessions, but this
    /// region's last definition.
    fn define_in(&mut self, values: &[String]) -> Result<&'static str> {
        if !self.actor.superuser {
            return Err(denied("must be superuser to say where definitions are made"));
        }
        let [region] = values else {
            let text = format!("SET {DEFINING_REGION} takes only one argument");
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, text));
        };
        self.change.hand_over(region)?;
        Ok("ALTER DATABASE")
    }

    fn store(&mut self, (role, in_database): (u32, bool), name: &str, value: String) {
        self.change.define_temporary(false);
        let mut settings = match self.catalog().settings_of(role, in_database) {
            Some(known) => (**known).clone(),
            None => {
                let oid = self.change.oid();
                StoredSettings { oid, role, in_database, values: Vec::new() }
            }
        };
        settings.set(&spelled(name), value);
        self.change.put(Object::Settings(settings));
    }

    /// Takes away what `goes` says of names.
    fn forget(&mut self, (role, in_database): (u32, bool), goes: impl Fn(&str) -> bool) {
        let Some(known) = self.catalog().settings_of(role, in_database).cloned() else { return };
        let mut settings = (*known).clone();
        settings.values.retain(|(name, _)| !goes(name));
        if settings.values.is_empty() {
            self.change.remove(settings.oid);
        } else if settings != *known {
            self.change.put(Object::Settings(settings));
        }
    }

    fn may_alter_settings(&self, role: &Role) -> Result<()> {
        if self.actor.superuser {
            return Ok(());
        }
        if role.superuser {
            return Err(denied("must be superuser to alter superusers"));
        }
        if role.oid == self.actor.oid || self.creates_roles() {
            return Ok(());
        }
        Err(denied("permission denied"))
    }

    /// The session's settings, to try a value in.
    fn trial(&self) -> Settings {
        let mut trial = (*self.context.settings).clone();
        trial.superuser = self.actor.superuser;
        trial
    }

    /// Fails when a session could not begin with the value, or who stores it may not.
    fn check_value(&self, name: &str, value: &str) -> Result<()> {
        refuse(name)?;
        if name.eq_ignore_ascii_case(ROLE) {
            // It may be there when a session begins; so may the right to it.
            if value != "none" && self.catalog().role_named(value).is_none() {
                self.context.notices.notice(no_role(value).message().to_owned());
            }
            return Ok(());
        }
        if is_of_an_application(name) {
            return self.may_have_own(name);
        }
        self.trial().set(name, &values_of(name, value))
    }

    /// Fails when the parameter is none, or not the role's to reset.
    fn may_reset(&self, name: &str) -> Result<()> {
        if is_of_an_application(name) {
            return self.may_have_own(name);
        }
        if name.eq_ignore_ascii_case(ROLE) || refuse(name).is_err() {
            return Ok(());
        }
        let built_in = Settings::default().show(name)?;
        self.trial().set(name, &values_of(name, &built_in))
    }

    /// Fails unless the role may store a parameter that the server does not know.
    fn may_have_own(&self, name: &str) -> Result<()> {
        if !is_simple(name) {
            return Err(Error::new(
                SqlState::INVALID_NAME,
                format!("invalid configuration parameter name \"{name}\""),
            )
            .detail(
                "Custom parameter names must be two or more simple identifiers separated by dots.",
            ));
        }
        if self.actor.superuser {
            return Ok(());
        }
        Err(denied(format!("permission denied to set parameter \"{name}\"")))
    }
}
