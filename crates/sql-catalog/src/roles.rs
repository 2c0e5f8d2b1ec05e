//! Roles, and the rights that belong to no single object: on the database, and those that new
//! objects begin with.
//!
//! # Invariants
//! A field that was added has a default that means what records without it meant.

use serde::{Deserialize, Serialize};

use crate::acl::{Acl, BOOTSTRAP, Granted, Owner};

/// That a role is a member of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Of which role.
    pub role: u32,
    /// Who made it so.
    pub grantor: u32,
    /// WITH ADMIN OPTION: it may make others members, too.
    #[serde(default)]
    pub admin: bool,
}

/// A role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// OID.
    pub oid: u32,
    /// Name.
    pub name: String,
    /// SUPERUSER.
    pub superuser: bool,
    /// LOGIN.
    pub login: bool,
    /// CREATEDB.
    pub create_db: bool,
    /// CREATEROLE.
    pub create_role: bool,
    /// SCRAM-SHA-256 verifier as PostgreSQL stores it; never the password.
    #[serde(default)]
    pub password: Option<String>,
    /// INHERIT.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub inherit: bool,
    /// REPLICATION.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replication: bool,
    /// BYPASSRLS.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bypass_rls: bool,
    /// CONNECTION LIMIT; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_limit: Option<u32>,
    /// VALID UNTIL: microseconds since 2000-01-01 UTC; `None`: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_until: Option<i64>,
    /// The roles it is a member of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub member_of: Vec<Membership>,
}

fn yes() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_yes(yes: &bool) -> bool {
    *yes
}

impl Role {
    /// A role that may do nothing yet.
    #[must_use]
    pub fn new(oid: u32, name: String) -> Self {
        Self {
            oid,
            name,
            superuser: false,
            login: false,
            create_db: false,
            create_role: false,
            password: None,
            inherit: true,
            replication: false,
            bypass_rls: false,
            connection_limit: None,
            valid_until: None,
            member_of: Vec::new(),
        }
    }

    /// Whether it has parts that a reader of object format 1 would not know.
    #[must_use]
    pub fn is_extended(&self) -> bool {
        let plain = Self {
            superuser: self.superuser,
            login: self.login,
            create_db: self.create_db,
            create_role: self.create_role,
            password: self.password.clone(),
            // The first role has them without saying so.
            replication: self.replication && self.oid == BOOTSTRAP,
            bypass_rls: self.bypass_rls && self.oid == BOOTSTRAP,
            ..Self::new(self.oid, self.name.clone())
        };
        *self != plain
    }
}

/// Whose the database is, and what was granted on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseRights {
    /// OID of the database.
    pub oid: u32,
    /// Owner.
    pub owner: Owner,
    /// What was granted on it; `None`: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<Acl>,
    /// The users of a users file have got their roles: a name that has none now was dropped, or
    /// never had any right.
    #[serde(default)]
    pub has_users: bool,
}

/// What new objects of a role begin with (ALTER DEFAULT PRIVILEGES).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultAcl {
    /// OID.
    pub oid: u32,
    /// Whose objects.
    pub role: u32,
    /// In which schema; 0: in all, and in the place of the built-in default.
    pub schema: u32,
    /// What kind of objects.
    pub kind: Granted,
    /// Their rights; for one schema: what is added to the others.
    pub acl: Acl,
}
