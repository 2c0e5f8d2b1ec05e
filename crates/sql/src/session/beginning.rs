//! The settings that a session begins with.
//!
//! ```text
//! built in ─► stored: all roles, the database, the role, the role in the database ─► what the client asks for     (RESET: these)
//! ```
//! # Invariants
//! - What is stored never keeps anybody out: a value that is none any more is left out, with a
//!   WARNING.
//! - What the client asks for goes over what is stored; one that is refused ends the session, as it
//!   does without.
//! - A session takes a role that is stored for it, or that the client asks for, only where it may
//!   become that role now.
//!
//! # On failure
//! Errors of the client's parameters. Sessions of the first role, where nobody is asked for a
//! password, begin whatever the bucket does: with what this process knows of the catalog or, where
//! that is nothing, with the built-in settings and a WARNING. Of other roles the log-in has read
//! the catalog as it is now, or failed.
//!
//! # Limits
//! - What another process has stored a moment ago may be missed by such a session of the first
//!   role.
//! - A session keeps what it began with, whatever is stored later. SET ROLE and SET SESSION
//!   AUTHORIZATION bring no settings.

use telesto_sql_catalog::rights::denied;

use super::SqlEngine;
use super::engine::SessionOptions;
use super::roles::{LoggedIn, refuse_role};
use super::settings::Settings;
use crate::catalog::CatalogSnapshot;
use crate::error::{Error, Result};
use crate::expr::settings_origins::{Source, values_of};

/// Puts what is stored for the role of these settings into them; why what was left out was.
fn put_stored(settings: &mut Settings, catalog: &CatalogSnapshot) -> Vec<Error> {
    let mut refused = Vec::new();
    for stored in catalog.beginning_of(settings.session_role) {
        let source = match (stored.role == settings.session_role, stored.in_database) {
            (false, false) => Source::AllRoles,
            (false, true) => Source::Database,
            (true, false) => Source::Role,
            (true, true) => Source::RoleInDatabase,
        };
        for (name, value) in &stored.values {
            let put = if name.eq_ignore_ascii_case("role") {
                put_role(settings, catalog, value)
            } else {
                settings.begin_with(source, name, &values_of(name, value))
            };
            refused.extend(put.err());
        }
    }
    refused
}

/// Has a session begin with another role.
fn put_role(settings: &mut Settings, catalog: &CatalogSnapshot, name: &str) -> Result<()> {
    let is_super = |oid: u32| catalog.role(oid).is_some_and(|role| role.superuser);
    if name == "none" {
        settings.become_role(None);
        settings.superuser = is_super(settings.session_role);
        return Ok(());
    }
    let role = catalog.role_named(name).ok_or_else(|| super::roles::no_role(name))?;
    if !catalog.may_become(settings.session_role, role.oid) {
        return Err(denied(format!("permission denied to set role \"{name}\"")));
    }
    settings.become_role(Some((role.oid, name)));
    settings.superuser = role.superuser;
    Ok(())
}

/// Says that a session begins without what is stored: who asks what is wrong with the database must
/// not be kept out by that.
fn unread(error: &Error) -> Error {
    let message = error.message();
    Error::new(
        error.code(),
        format!("the settings of roles and of the database are not in force: {message}"),
    )
}

impl SqlEngine {
    /// The settings of a session that begins, and what it is warned of.
    pub(super) async fn beginning(
        &self,
        role: LoggedIn,
        user: String,
        options: &mut SessionOptions,
    ) -> Result<(Settings, Vec<Error>)> {
        let mut settings = Settings {
            session_user: user.clone(),
            current_user: user,
            authenticated_role: role.oid,
            session_role: role.oid,
            current_role: role.oid,
            superuser: role.superuser,
            confined: options.read_only,
            ..Settings::default()
        };
        let mut warnings = Vec::new();
        if !options.bare {
            let catalog = match role.catalog {
                Some(catalog) => Ok(catalog),
                None => self.known_catalog().await,
            };
            match catalog {
                Ok(catalog) => warnings = put_stored(&mut settings, &catalog),
                Err(error) => warnings.push(unread(&error)),
            }
        }
        let application = std::mem::take(&mut options.application_name);
        if !application.is_empty() {
            settings.begin_with(Source::Client, "application_name", &[application])?;
        }
        for (name, value) in std::mem::take(&mut options.parameters) {
            if name.eq_ignore_ascii_case("role") {
                // Rights are asked of the catalog as it is now, not of what this process knew of
                // it.
                put_role(&mut settings, &*self.catalog_now().await?, &value)?;
                continue;
            }
            refuse_role(&name)?;
            settings.begin_with(Source::Client, &name, &[value])?;
        }
        Ok((settings, warnings))
    }
}
