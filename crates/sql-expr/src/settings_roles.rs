//! Whose session it is, among its settings: changed by the session alone, which asks the catalog whether it may.

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
    /// Keeps one call for the parameter `role`, by one that asked the catalog; the new value as SHOW prints it.
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

impl Settings {
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

    /// Has another role's rights count from here on; the session's own again with `None`. Whoever calls it has asked the catalog.
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
