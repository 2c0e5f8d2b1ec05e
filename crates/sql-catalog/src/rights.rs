//! Who may do what: memberships of roles, and the rights they give on the objects of a catalog.
//!
//! # Purpose
//! [`Actor`] is a role with all it may act as; every check of a privilege asks it. The predefined
//! roles are here, too: they are in no record, and in every catalog.
//!
//! # Invariants
//! - A role that is not in the catalog (any more) has no right at all.
//! - Rights pass along memberships through roles that INHERIT; SET ROLE passes along all of them.
//! - A superuser has every right; nobody becomes one by membership (SET ROLE makes one act as one).
//! - The owner of the database, and nobody else, is a member of `pg_database_owner`.
//!
//! # On failure
//! 42501 with PostgreSQL's words: what was refused is named, what would have been found is not.

use std::sync::{Arc, OnceLock};

use telesto_common::TableId;
use telesto_sql_types::error::{Error, Result, SqlState};

use crate::acl::{Acl, BOOTSTRAP, Granted, Owner, Rights};
use crate::model::{Membership, Role, Schema, Sequence, Table};
use crate::types::UserType;
use crate::view::View;
use crate::{CatalogSnapshot, INFORMATION_SCHEMA_OID, PG_CATALOG_OID, PUBLIC_OID};

/// Reads all data.
pub const READ_ALL_DATA: u32 = 6181;
/// Writes all data.
pub const WRITE_ALL_DATA: u32 = 6182;
/// The owner of the database.
pub const DATABASE_OWNER: u32 = 6171;
/// Everything that watches a database.
pub const MONITOR: u32 = 3373;
/// Reads all settings.
pub const READ_ALL_SETTINGS: u32 = 3374;
/// Sees what other sessions do.
pub const READ_ALL_STATS: u32 = 3375;
/// Looks at tables for statistics.
pub const STAT_SCAN_TABLES: u32 = 3377;
/// Cancels statements and ends sessions of others.
pub const SIGNAL_BACKEND: u32 = 4200;

/// The predefined roles: OID, name, what they are members of.
const PREDEFINED: &[(u32, &str, &[u32])] = &[
    (DATABASE_OWNER, "pg_database_owner", &[]),
    (READ_ALL_DATA, "pg_read_all_data", &[]),
    (WRITE_ALL_DATA, "pg_write_all_data", &[]),
    (MONITOR, "pg_monitor", &[READ_ALL_SETTINGS, READ_ALL_STATS, STAT_SCAN_TABLES]),
    (READ_ALL_SETTINGS, "pg_read_all_settings", &[]),
    (READ_ALL_STATS, "pg_read_all_stats", &[]),
    (STAT_SCAN_TABLES, "pg_stat_scan_tables", &[]),
    (SIGNAL_BACKEND, "pg_signal_backend", &[]),
];

/// The predefined roles.
pub fn predefined() -> &'static [Arc<Role>] {
    static ROLES: OnceLock<Vec<Arc<Role>>> = OnceLock::new();
    ROLES.get_or_init(|| {
        let role = |(oid, name, of): &(u32, &str, &[u32])| {
            let member = |role: &u32| Membership { role: *role, grantor: BOOTSTRAP, admin: false };
            Arc::new(Role {
                member_of: of.iter().map(member).collect(),
                ..Role::new(*oid, (*name).to_owned())
            })
        };
        PREDEFINED.iter().map(role).collect()
    })
}

/// Whether a role is part of every database.
#[must_use]
pub fn is_predefined(oid: u32) -> bool {
    PREDEFINED.iter().any(|(known, ..)| *known == oid)
}

/// Gives the schemas of every database what PostgreSQL 15 grants on them, where the record says
/// nothing.
pub(crate) fn with_initial_rights(mut schema: Schema) -> Schema {
    if schema.acl.is_some() {
        return schema;
    }
    match schema.oid {
        PUBLIC_OID if schema.owner == Owner::BOOTSTRAP => schema.owner = Owner(DATABASE_OWNER),
        PG_CATALOG_OID | INFORMATION_SCHEMA_OID | PUBLIC_OID => {}
        _ => return schema,
    }
    let mut acl = Acl::default_of(Granted::Schema, schema.owner);
    acl.0.push(crate::acl::AclItem {
        grantee: crate::acl::EVERYBODY,
        grantor: schema.owner.0,
        rights: Rights::USAGE,
        options: Rights::NONE,
    });
    schema.acl = Some(acl);
    schema
}

/// A role and what it may act as.
#[derive(Clone, Debug)]
pub struct Actor {
    /// The role.
    pub oid: u32,
    /// Whether it may do everything.
    pub superuser: bool,
    /// Itself and the roles whose rights it has.
    pub roles: Vec<u32>,
}

impl Actor {
    /// Whether it has the rights of a role.
    #[must_use]
    pub fn acts_as(&self, role: u32) -> bool {
        self.superuser || self.roles.contains(&role)
    }

    /// Whether it counts as the owner of what `owner` owns.
    #[must_use]
    pub fn owns(&self, owner: Owner) -> bool {
        self.acts_as(owner.0)
    }
}

/// An object that rights are on.
#[derive(Clone, Copy, Debug)]
pub struct Guarded<'a> {
    /// What it is.
    pub kind: Granted,
    /// Whose it is.
    pub owner: Owner,
    /// What was granted; `None`: the default.
    pub acl: Option<&'a Acl>,
    /// What it is called in messages.
    pub name: &'a str,
    /// What it is in messages.
    pub word: &'static str,
}

impl<'a> Guarded<'a> {
    /// A table.
    #[must_use]
    pub fn table(table: &'a Table) -> Self {
        Self::relation(Granted::Table, table.owner, table.acl.as_ref(), &table.name, "table")
    }

    /// A view.
    #[must_use]
    pub fn view(view: &'a View) -> Self {
        Self::relation(Granted::Table, view.owner, view.acl.as_ref(), &view.name, "view")
    }

    /// A sequence.
    #[must_use]
    pub fn sequence(sequence: &'a Sequence) -> Self {
        let acl = sequence.acl.as_ref();
        Self::relation(Granted::Sequence, sequence.owner, acl, &sequence.name, "sequence")
    }

    /// A schema.
    #[must_use]
    pub fn schema(schema: &'a Schema) -> Self {
        Self::relation(Granted::Schema, schema.owner, schema.acl.as_ref(), &schema.name, "schema")
    }

    /// A type.
    #[must_use]
    pub fn user_type(ty: &'a UserType) -> Self {
        Self::relation(Granted::Type, ty.owner, ty.acl.as_ref(), &ty.name, "type")
    }

    fn relation(
        kind: Granted,
        owner: Owner,
        acl: Option<&'a Acl>,
        name: &'a str,
        word: &'static str,
    ) -> Self {
        Self { kind, owner, acl, name, word }
    }

    /// What `actor` may do with it.
    #[must_use]
    pub fn rights_of(&self, actor: &Actor) -> Rights {
        if actor.superuser {
            return self.kind.rights();
        }
        let mut rights = match self.acl {
            Some(acl) => acl.rights_of(&actor.roles),
            None => Acl::default_of(self.kind, self.owner).rights_of(&actor.roles),
        };
        let reads = actor.roles.contains(&READ_ALL_DATA);
        let writes = actor.roles.contains(&WRITE_ALL_DATA);
        match self.kind {
            Granted::Table | Granted::Sequence => {
                if reads {
                    rights = rights.or(Rights::SELECT);
                }
                if writes {
                    let all = Rights::INSERT.or(Rights::UPDATE).or(Rights::DELETE);
                    rights = rights.or(all.and(self.kind.rights()));
                }
            }
            Granted::Schema if reads || writes => rights = rights.or(Rights::USAGE),
            _ => {}
        }
        rights
    }

    /// What `actor` may hand on of it.
    #[must_use]
    pub fn options_of(&self, actor: &Actor) -> Rights {
        if actor.owns(self.owner) {
            return self.kind.rights();
        }
        self.acl.map_or(Rights::NONE, |acl| acl.options_of(&actor.roles))
    }

    /// Fails unless `actor` has all of these rights.
    ///
    /// # Errors
    /// 42501.
    pub fn need(&self, actor: &Actor, rights: Rights) -> Result<()> {
        if self.rights_of(actor).has(rights) { Ok(()) } else { Err(self.refused()) }
    }

    /// Fails unless `actor` owns it.
    ///
    /// # Errors
    /// 42501.
    pub fn need_owner(&self, actor: &Actor) -> Result<()> {
        if actor.owns(self.owner) { Ok(()) } else { Err(self.not_owner()) }
    }

    /// The error of who does not own it.
    #[must_use]
    pub fn not_owner(&self) -> Error {
        denied(format!("must be owner of {} {}", self.word, self.name))
    }

    /// The error of who may not.
    #[must_use]
    pub fn refused(&self) -> Error {
        denied(format!("permission denied for {} {}", self.word, self.name))
    }
}

/// 42501.
#[must_use]
pub fn denied(message: impl Into<String>) -> Error {
    Error::new(SqlState::INSUFFICIENT_PRIVILEGE, message)
}

impl CatalogSnapshot {
    /// The role with this OID.
    #[must_use]
    pub fn role(&self, oid: u32) -> Option<&Arc<Role>> {
        self.roles.get(&oid)
    }

    /// The role called `name`.
    #[must_use]
    pub fn role_named(&self, name: &str) -> Option<&Arc<Role>> {
        self.roles.values().find(|role| role.name == name)
    }

    /// The name of the role with this OID; of one that is gone, its number.
    #[must_use]
    pub fn role_name(&self, oid: u32) -> String {
        self.role(oid).map_or_else(|| oid.to_string(), |role| role.name.clone())
    }

    /// The role with all it may act as.
    #[must_use]
    pub fn actor(&self, oid: u32) -> Actor {
        let superuser = self.role(oid).is_some_and(|role| role.superuser);
        Actor { oid, superuser, roles: self.memberships(oid, true) }
    }

    /// A role and what it is a member of, directly or not; with `inherited`, only as far as rights
    /// pass by themselves.
    fn memberships(&self, oid: u32, inherited: bool) -> Vec<u32> {
        if self.role(oid).is_none() {
            return Vec::new();
        }
        let mut found = vec![oid];
        let mut at = 0;
        while let Some(member) = found.get(at).copied() {
            at += 1;
            let Some(role) = self.role(member) else { continue };
            if inherited && !role.inherit {
                continue;
            }
            let owned = (self.database_owner().0 == member).then_some(DATABASE_OWNER);
            // By number: which role a grant is by goes by the order in which PostgreSQL finds them.
            let mut direct: Vec<u32> = role.member_of.iter().map(|m| m.role).collect();
            direct.sort_unstable();
            for next in direct.into_iter().chain(owned) {
                if !found.contains(&next) {
                    found.push(next);
                }
            }
        }
        found
    }

    /// Whether `member` may SET ROLE to `role`.
    #[must_use]
    pub fn may_become(&self, member: u32, role: u32) -> bool {
        let superuser = self.role(member).is_some_and(|role| role.superuser);
        superuser || self.is_member(member, role)
    }

    /// Whether `member` is `role` or a member of it, superusers not counted as members of all.
    #[must_use]
    pub fn is_member(&self, member: u32, role: u32) -> bool {
        self.memberships(member, false).contains(&role)
    }

    /// Whether `member` may give and take memberships of `role`.
    #[must_use]
    pub fn is_admin(&self, member: u32, role: u32) -> bool {
        if self.role(member).is_some_and(|role| role.superuser) {
            return true;
        }
        if member == role {
            return false;
        }
        let roles = self.memberships(member, false);
        roles.iter().filter_map(|oid| self.role(*oid)).any(|known| {
            known.member_of.iter().any(|membership| membership.admin && membership.role == role)
        })
    }

    /// Whose the database is.
    #[must_use]
    pub fn database_owner(&self) -> Owner {
        self.database_rights.as_ref().map_or(Owner::BOOTSTRAP, |rights| rights.owner)
    }

    /// The database, for rights on it.
    #[must_use]
    pub fn guarded_database(&self) -> Guarded<'_> {
        Guarded {
            kind: Granted::Database,
            owner: self.database_owner(),
            acl: self.database_rights.as_ref().and_then(|rights| rights.acl.as_ref()),
            name: &self.database_name,
            word: "database",
        }
    }

    /// What `actor` may do with a column: what it may do with the table, and what was granted on
    /// the column.
    #[must_use]
    pub fn column_rights(&self, actor: &Actor, table: &Table, position: usize) -> Rights {
        let whole = Guarded::table(table).rights_of(actor).and(Granted::Column.rights());
        let own = table.columns.get(position).and_then(|column| column.acl.as_ref());
        own.map_or(whole, |acl| whole.or(acl.rights_of(&actor.roles)))
    }

    /// The list that a new object of `owner` in `schema` begins with (ALTER DEFAULT PRIVILEGES);
    /// `None`: the default.
    #[must_use]
    pub fn initial_acl(&self, kind: Granted, owner: Owner, schema: u32) -> Option<Acl> {
        let of = |schema: u32| {
            self.default_acls
                .values()
                .find(|d| d.role == owner.0 && d.schema == schema && d.kind == kind)
                .map(|d| d.acl.clone())
        };
        let (everywhere, here) = (of(0), of(schema).filter(|_| schema != 0));
        if everywhere.is_none() && here.is_none() {
            return None;
        }
        let mut default = Acl::default_of(kind, owner);
        let mut acl = everywhere.unwrap_or_else(|| default.clone());
        for item in here.into_iter().flat_map(|acl| acl.0) {
            match acl.0.iter_mut().find(|i| i.grantee == item.grantee && i.grantor == item.grantor)
            {
                Some(known) => {
                    known.rights = known.rights.or(item.rights);
                    known.options = known.options.or(item.options);
                }
                None => acl.0.push(item),
            }
        }
        // PostgreSQL sorts both, to compare them, and keeps the list so.
        acl.sort();
        default.sort();
        (acl != default).then_some(acl)
    }

    /// The table a sequence belongs to, where it makes the values of an identity column.
    #[must_use]
    pub fn identity_of(&self, sequence: &Sequence) -> Option<TableId> {
        sequence.owned_by.filter(|_| sequence.identity).map(|(table, _)| table)
    }

    /// What of the database belongs to a role or mentions it: (what it is, whether the role owns
    /// it).
    #[must_use]
    pub fn dependents_of_role(&self, role: u32) -> Vec<(String, bool)> {
        let mut found = Vec::new();
        let mut look = |guarded: Guarded<'_>| {
            let what = format!("{} {}", guarded.word, guarded.name);
            if guarded.owner.0 == role {
                found.push((what, true));
            } else if guarded.acl.is_some_and(|acl| acl.mentions(role)) {
                found.push((what, false));
            }
        };
        look(self.guarded_database());
        self.schemas().for_each(|o| look(Guarded::schema(o)));
        self.sequences().filter(|s| !s.identity).for_each(|o| look(Guarded::sequence(o)));
        self.views().for_each(|o| look(Guarded::view(o)));
        self.types.values().for_each(|o| look(Guarded::user_type(o)));
        self.tables().for_each(|o| look(Guarded::table(o)));
        for table in self.tables() {
            for (_, column) in table.visible_columns() {
                if column.acl.as_ref().is_some_and(|acl| acl.mentions(role)) {
                    found.push((format!("column {} of table {}", column.name, table.name), false));
                }
            }
        }
        for default in self.default_acls.values() {
            if default.role == role {
                let kind = default.kind.word();
                found.push((format!("default privileges on new {kind}s of its own"), true));
            } else if default.acl.mentions(role) {
                let whose = self.role_name(default.role);
                let kind = default.kind.word();
                let what = format!("default privileges on new {kind}s belonging to role {whose}");
                found.push((what, false));
            }
        }
        found
    }
}
