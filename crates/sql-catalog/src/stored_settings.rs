//! Settings that sessions begin with: ALTER ROLE … SET and ALTER DATABASE … SET.
//!
//! ```text
//! all roles ─► the database ─► the role ─► the role in the database ─► what the client asks for     the last one counts
//! ```
//! # Invariants
//! - There is at most one record for each whom and where ([`StoredSettings::role`],
//!   [`StoredSettings::in_database`]), and none that is empty.
//! - Names are as PostgreSQL spells them; of one parameter, whatever its case, a record has one
//!   value.
//! - A record follows its role's OID: a renamed role keeps its settings. DROP ROLE takes the
//!   records of the role away.
//!
//! # On failure
//! Nothing here fails: values are checked where they are stored (`sql-ddl`), and again where a
//! session begins (`sql`).
//!
//! # Limits
//! Values are texts, as SET takes them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::snapshot::CatalogSnapshot;

/// The role of a record that is about all roles.
pub const ALL_ROLES: u32 = 0;

/// What sessions begin with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSettings {
    /// OID.
    pub oid: u32,
    /// Whose sessions; [`ALL_ROLES`]: everybody's.
    pub role: u32,
    /// Those in this database, not in all.
    pub in_database: bool,
    /// Names and values, in the order in which they were first set.
    pub values: Vec<(String, String)>,
}

impl StoredSettings {
    /// Puts a value in the place of the one that the parameter has here, or behind the others.
    pub fn set(&mut self, name: &str, value: String) {
        match self.values.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            Some((_, known)) => *known = value,
            None => self.values.push((name.to_owned(), value)),
        }
    }

    /// The values as `pg_db_role_setting` shows them.
    #[must_use]
    pub fn shown(&self) -> Vec<String> {
        self.values.iter().map(|(name, value)| format!("{name}={value}")).collect()
    }
}

impl CatalogSnapshot {
    /// All records of settings, by OID.
    pub fn stored_settings(&self) -> impl Iterator<Item = &Arc<StoredSettings>> {
        self.stored_settings.values()
    }

    /// The record about these sessions, if there is one.
    #[must_use]
    pub fn settings_of(&self, role: u32, in_database: bool) -> Option<&Arc<StoredSettings>> {
        self.stored_settings().find(|known| known.role == role && known.in_database == in_database)
    }

    /// The records that a session of `role` begins with; a later one goes over those before it.
    pub fn beginning_of(&self, role: u32) -> impl Iterator<Item = &Arc<StoredSettings>> {
        [(ALL_ROLES, false), (ALL_ROLES, true), (role, false), (role, true)]
            .into_iter()
            .filter_map(|(role, in_database)| self.settings_of(role, in_database))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Object;

    #[test]
    fn one_parameter_has_one_value_whatever_its_case() {
        let mut settings = StoredSettings {
            oid: 1,
            role: 2,
            in_database: false,
            values: vec![("work_mem".to_owned(), "1MB".to_owned())],
        };
        settings.set("App.Tenant", "7".to_owned());
        settings.set("work_mem", "2MB".to_owned());
        settings.set("app.tenant", "8".to_owned());
        assert_eq!(settings.shown(), ["work_mem=2MB", "App.Tenant=8"]);
    }

    #[test]
    fn records_come_from_the_farthest_to_the_nearest() {
        let mut catalog = CatalogSnapshot::default();
        for (oid, role, in_database) in
            [(1, 9, true), (2, 9, false), (3, 0, true), (4, 0, false), (5, 8, true)]
        {
            let values = Vec::new();
            catalog.insert(Object::Settings(StoredSettings { oid, role, in_database, values }));
        }
        let oids = |role| catalog.beginning_of(role).map(|one| one.oid).collect::<Vec<_>>();
        assert_eq!(oids(9), [4, 3, 2, 1]);
        assert_eq!(oids(8), [4, 3, 5]);
        assert_eq!(oids(7), [4, 3]);
    }
}
