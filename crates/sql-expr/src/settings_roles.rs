//! Whose session it is, among its settings: changed by the session alone, which asks the catalog
//! whether it may.

use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_catalog::acl::BOOTSTRAP;
use telesto_sql_catalog::rights::denied;
use telesto_sql_types::error::{Error, Result, SqlState};

use crate::Settings;
use crate::settings::{ConfigQueue, Configured};

/// Who a session acts as from here on, of one that asked the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Becomes {
    /// The role; `None`: the session's own.
    pub role: Option<(u32, String)>,
    /// Whether it is a superuser.
    pub superuser: bool,
}

impl ConfigQueue {
    /// Keeps one call for the parameter `role`, by one that asked the catalog; the new value as
    /// SHOW prints it.
    ///
    /// # Errors
    /// 54000 for too many parameters.
    pub fn push_role(&self, becomes: Becomes, local: bool) -> Result<String> {
        let shown = becomes.role.as_ref().map_or("none", |(_, name)| name).to_owned();
        let values = vec![shown.clone()];
        self.keep(Configured { name: "role".to_owned(), values, local, becomes: Some(becomes) })?;
        Ok(shown)
    }
}

/// The error of who would change a role as a parameter: whether a session may is not known here.
pub(crate) fn by_session(name: &str) -> Error {
    Error::new(
        SqlState::CANT_CHANGE_RUNTIME_PARAM,
        format!("parameter \"{name}\" cannot be set in this way"),
    )
    .hint("Use SET ROLE and RESET ROLE, or SET SESSION AUTHORIZATION.")
}

/// Parameters that only superusers set, as in PostgreSQL.
const OF_SUPERUSERS: &[&str] = &[
    "allow_in_place_tablespaces",
    "deadlock_timeout",
    "lc_messages",
    "log_min_duration_statement",
    "log_statement",
    "session_replication_role",
];

/// Whether only superusers set the parameter.
#[must_use]
pub fn is_of_superusers(name: &str) -> bool {
    OF_SUPERUSERS.iter().any(|own| own.eq_ignore_ascii_case(name))
}

impl Settings {
    /// Whether the role whose rights count is a superuser in `catalog`. A session of the first role
    /// may have begun before there was anything to ask; one of a role that was dropped since is
    /// nobody's.
    #[must_use]
    pub fn is_superuser_in(&self, catalog: &CatalogSnapshot) -> bool {
        let unasked = self.current_role == BOOTSTRAP && self.superuser;
        catalog.role(self.current_role).map_or(unasked, |role| role.superuser)
    }

    /// Who the session acts as behind `SET ROLE`, asked of `catalog` as that asks: may the
    /// session's role, not the one that it acts as now.
    ///
    /// # Errors
    /// 22023 for a role there is not, 42501 for one that the session may not become.
    pub fn role_to_take(&self, catalog: &CatalogSnapshot, name: &str) -> Result<Becomes> {
        let session = self.session_role;
        let is_super = |oid: u32| catalog.role(oid).is_some_and(|role| role.superuser);
        if name == "none" {
            return Ok(Becomes { role: None, superuser: is_super(session) });
        }
        // Where nobody is asked for a password a session may have a name that no role has.
        let own = || (name == self.session_user).then_some(session);
        let oid = catalog.role_named(name).map(|role| role.oid).or_else(own);
        let oid = oid.ok_or_else(|| {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("role \"{name}\" does not exist"))
        })?;
        if !catalog.may_become(session, oid) {
            return Err(denied(format!("permission denied to set role \"{name}\"")));
        }
        Ok(Becomes { role: Some((oid, name.to_owned())), superuser: is_super(oid) })
    }

    /// Fails when the parameter, in lower case, is not for the role whose rights count.
    pub(crate) fn may_set(&self, name: &str) -> Result<()> {
        if self.superuser || !OF_SUPERUSERS.contains(&name) {
            return Ok(());
        }
        Err(Error::new(
            SqlState::INSUFFICIENT_PRIVILEGE,
            format!("permission denied to set parameter \"{name}\""),
        ))
    }

    /// Has another role's rights count from here on; the session's own again with `None`. Whoever
    /// calls it has asked the catalog.
    pub fn become_role(&mut self, role: Option<(u32, &str)>) {
        match role {
            Some((oid, name)) => {
                self.current_role = oid;
                name.clone_into(&mut self.current_user);
            }
            None => {
                self.current_role = self.session_role;
                self.current_user.clone_from(&self.session_user);
            }
        }
    }

    /// Takes the role that somebody asked the catalog for.
    pub fn take_role(&mut self, becomes: &Becomes) {
        self.become_role(becomes.role.as_ref().map(|(oid, name)| (*oid, name.as_str())));
        self.superuser = becomes.superuser;
    }

    /// Has the session be of another role. Whoever calls it has asked the catalog.
    pub fn become_session(&mut self, oid: u32, name: &str) {
        self.session_role = oid;
        name.clone_into(&mut self.session_user);
        self.become_role(None);
    }
}
