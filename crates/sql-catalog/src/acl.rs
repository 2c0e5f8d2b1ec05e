//! Privileges on objects: what may be granted, access control lists, and how GRANT and REVOKE
//! change them.
//!
//! # Purpose
//! One list of [`AclItem`]s an object, as PostgreSQL keeps them: who gave what to whom, and what of
//! it may be handed on.
//!
//! # Invariants
//! - An object without a list of its own (`None`) has the privileges of [`Acl::default_of`].
//! - The owner holds every grant option, whatever the list says; so no chain of grants can be cut
//!   off from the owner.
//! - At most one item for a pair of grantee and grantor, and none without a right.
//!
//! # On failure
//! REVOKE of what others were given in turn is refused (2BP01) unless it cascades.
//!
//! # Limits
//! Nothing here looks at memberships: who a role may act as is the business of [`crate::rights`].

use serde::{Deserialize, Serialize};
use telesto_sql_types::error::{Error, Result, SqlState};

/// OID that stands for PUBLIC, all roles there are and will be.
pub const EVERYBODY: u32 = 0;
/// OID of the role that a database begins with: it may do everything, and cannot be dropped.
pub const BOOTSTRAP: u32 = 10;

/// The role that owns an object, by OID.
///
/// Records written before owners counted hold a name here: what was made then belongs to the
/// bootstrap superuser, who is still written as that name, so that versions which know no other
/// owner read the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Owner(pub u32);

impl Owner {
    /// The bootstrap superuser.
    pub const BOOTSTRAP: Self = Self(BOOTSTRAP);
}

impl Serialize for Owner {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match self.0 {
            BOOTSTRAP => to.serialize_str(crate::DEFAULT_DATABASE),
            oid => to.serialize_u32(oid),
        }
    }
}

impl<'de> Deserialize<'de> for Owner {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Stored {
            Oid(u32),
            Name(#[allow(dead_code, reason = "every name means the bootstrap superuser")] String),
        }
        Ok(match Stored::deserialize(from)? {
            Stored::Oid(oid) => Self(oid),
            Stored::Name(_) => Self::BOOTSTRAP,
        })
    }
}

/// A set of rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rights(pub u16);

impl Rights {
    /// No right.
    pub const NONE: Self = Self(0);
    /// INSERT.
    pub const INSERT: Self = Self(1);
    /// SELECT.
    pub const SELECT: Self = Self(1 << 1);
    /// UPDATE.
    pub const UPDATE: Self = Self(1 << 2);
    /// DELETE.
    pub const DELETE: Self = Self(1 << 3);
    /// TRUNCATE.
    pub const TRUNCATE: Self = Self(1 << 4);
    /// REFERENCES.
    pub const REFERENCES: Self = Self(1 << 5);
    /// TRIGGER.
    pub const TRIGGER: Self = Self(1 << 6);
    /// EXECUTE.
    pub const EXECUTE: Self = Self(1 << 7);
    /// USAGE.
    pub const USAGE: Self = Self(1 << 8);
    /// CREATE.
    pub const CREATE: Self = Self(1 << 9);
    /// TEMPORARY.
    pub const TEMPORARY: Self = Self(1 << 10);
    /// CONNECT.
    pub const CONNECT: Self = Self(1 << 11);

    /// Every right with its letter in an item's text and its name, in PostgreSQL's order.
    pub const ALL: &'static [(Self, char, &'static str)] = &[
        (Self::INSERT, 'a', "INSERT"),
        (Self::SELECT, 'r', "SELECT"),
        (Self::UPDATE, 'w', "UPDATE"),
        (Self::DELETE, 'd', "DELETE"),
        (Self::TRUNCATE, 'D', "TRUNCATE"),
        (Self::REFERENCES, 'x', "REFERENCES"),
        (Self::TRIGGER, 't', "TRIGGER"),
        (Self::EXECUTE, 'X', "EXECUTE"),
        (Self::USAGE, 'U', "USAGE"),
        (Self::CREATE, 'C', "CREATE"),
        (Self::TEMPORARY, 'T', "TEMPORARY"),
        (Self::CONNECT, 'c', "CONNECT"),
    ];

    /// The right called `name`, in any case.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let name = if name.eq_ignore_ascii_case("temp") { "TEMPORARY" } else { name };
        Self::ALL.iter().find(|(.., own)| own.eq_ignore_ascii_case(name)).map(|(right, ..)| *right)
    }

    /// Those of either.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those of `self` that `other` has not.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of `other` are there.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Each of them with its name.
    pub fn each(self) -> impl Iterator<Item = (Self, &'static str)> {
        Self::ALL
            .iter()
            .filter(move |(right, ..)| self.has(*right))
            .map(|(right, _, name)| (*right, *name))
    }
}

/// What privileges can be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Granted {
    /// A table or a view.
    Table,
    /// A column.
    Column,
    /// A sequence.
    Sequence,
    /// A schema.
    Schema,
    /// A type or a domain.
    Type,
    /// A function.
    Function,
    /// The database.
    Database,
}

impl Granted {
    /// All rights on such an object.
    #[must_use]
    pub const fn rights(self) -> Rights {
        match self {
            Self::Table => Rights(0x7F),
            Self::Column => {
                Rights::INSERT.or(Rights::SELECT).or(Rights::UPDATE).or(Rights::REFERENCES)
            }
            Self::Sequence => Rights::SELECT.or(Rights::UPDATE).or(Rights::USAGE),
            Self::Schema => Rights::USAGE.or(Rights::CREATE),
            Self::Type => Rights::USAGE,
            Self::Function => Rights::EXECUTE,
            Self::Database => Rights::CREATE.or(Rights::TEMPORARY).or(Rights::CONNECT),
        }
    }

    /// What everybody may do until somebody says otherwise.
    #[must_use]
    pub const fn public(self) -> Rights {
        match self {
            Self::Table | Self::Column | Self::Sequence | Self::Schema => Rights::NONE,
            Self::Type => Rights::USAGE,
            Self::Function => Rights::EXECUTE,
            Self::Database => Rights::TEMPORARY.or(Rights::CONNECT),
        }
    }

    /// The letter in `pg_default_acl`.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Table | Self::Column => "r",
            Self::Sequence => "S",
            Self::Schema => "n",
            Self::Type => "T",
            Self::Function => "f",
            Self::Database => "d",
        }
    }

    /// What it is called in messages.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Table => "relation",
            Self::Column => "column",
            Self::Sequence => "sequence",
            Self::Schema => "schema",
            Self::Type => "type",
            Self::Function => "function",
            Self::Database => "database",
        }
    }
}

/// What one role gave another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AclItem {
    /// To whom; [`EVERYBODY`] for PUBLIC.
    pub grantee: u32,
    /// By whom.
    pub grantor: u32,
    /// What.
    pub rights: Rights,
    /// What of it may be handed on.
    #[serde(default, skip_serializing_if = "is_none")]
    pub options: Rights,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_none(rights: &Rights) -> bool {
    rights.is_empty()
}

/// An access control list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acl(pub Vec<AclItem>);

impl Acl {
    /// The list of an object of which nothing was granted or revoked.
    #[must_use]
    pub fn default_of(kind: Granted, owner: Owner) -> Self {
        if kind == Granted::Column {
            return Self::default();
        }
        let mut items = Vec::new();
        let grantor = owner.0;
        if !kind.public().is_empty() {
            items.push(AclItem {
                grantee: EVERYBODY,
                grantor,
                rights: kind.public(),
                options: Rights::NONE,
            });
        }
        items.push(AclItem {
            grantee: grantor,
            grantor,
            rights: kind.rights(),
            options: Rights::NONE,
        });
        Self(items)
    }

    /// What was granted to one of `roles` or to everybody.
    #[must_use]
    pub fn rights_of(&self, roles: &[u32]) -> Rights {
        self.to(roles).fold(Rights::NONE, |sum, item| sum.or(item.rights))
    }

    /// What one of `roles` may hand on, the owner's power apart.
    #[must_use]
    pub fn options_of(&self, roles: &[u32]) -> Rights {
        self.to(roles).fold(Rights::NONE, |sum, item| sum.or(item.options))
    }

    fn to<'a>(&'a self, roles: &'a [u32]) -> impl Iterator<Item = &'a AclItem> {
        self.0.iter().filter(|item| item.grantee == EVERYBODY || roles.contains(&item.grantee))
    }

    /// Adds what `grantor` gives to `grantee`.
    ///
    /// # Errors
    /// 0LP01 when an option would go back to whom it comes from, or to everybody.
    pub fn grant(
        &mut self,
        (grantee, grantor): (u32, u32),
        rights: Rights,
        options: Rights,
        owner: Owner,
    ) -> Result<()> {
        if !options.is_empty() {
            if grantee == EVERYBODY {
                return Err(Error::new(
                    SqlState::INVALID_GRANT_OPERATION,
                    "grant options can only be granted to roles",
                ));
            }
            self.refuse_circle(grantee, grantor, options, owner)?;
        }
        match self.0.iter_mut().find(|i| i.grantee == grantee && i.grantor == grantor) {
            Some(item) => {
                item.rights = item.rights.or(rights);
                item.options = item.options.or(options);
            }
            None => self.0.push(AclItem { grantee, grantor, rights, options }),
        }
        Ok(())
    }

    /// Fails when `grantor` has the options only by way of `grantee`.
    fn refuse_circle(
        &self,
        grantee: u32,
        grantor: u32,
        options: Rights,
        owner: Owner,
    ) -> Result<()> {
        if grantor == owner.0 {
            return Ok(());
        }
        let mut without = self.clone();
        without.strip(grantee, options);
        let left = without
            .0
            .iter()
            .filter(|item| item.grantee == grantor)
            .fold(Rights::NONE, |sum, item| sum.or(item.options));
        if left.has(options) {
            return Ok(());
        }
        Err(Error::new(
            SqlState::INVALID_GRANT_OPERATION,
            "grant options cannot be granted back to your own grantor",
        ))
    }

    /// Takes these options, and all that hangs on them, from a role.
    fn strip(&mut self, role: u32, options: Rights) {
        let mut waiting = vec![role];
        while let Some(role) = waiting.pop() {
            let mut lost = Rights::NONE;
            for item in self.0.iter_mut().filter(|item| item.grantee == role) {
                lost = lost.or(item.options.and(options));
                item.options = item.options.without(options);
            }
            if lost.is_empty() {
                continue;
            }
            for item in self.0.iter_mut().filter(|item| item.grantor == role) {
                item.rights = item.rights.without(lost);
                if !item.options.and(lost).is_empty() {
                    waiting.push(item.grantee);
                }
            }
        }
    }

    /// Takes from `grantee` what `grantor` gave; with `only_options` the rights stay.
    ///
    /// # Errors
    /// 2BP01 when somebody was given some of it in turn and it does not cascade.
    pub fn revoke(
        &mut self,
        (grantee, grantor): (u32, u32),
        rights: Rights,
        only_options: bool,
        cascade: bool,
        owner: Owner,
    ) -> Result<()> {
        let mut lost = Rights::NONE;
        for item in self.0.iter_mut().filter(|i| i.grantee == grantee && i.grantor == grantor) {
            lost = lost.or(item.options.and(rights));
            item.options = item.options.without(rights);
            if !only_options {
                item.rights = item.rights.without(rights);
            }
        }
        self.0.retain(|item| !item.rights.is_empty());
        if lost.is_empty() || grantee == owner.0 {
            return Ok(());
        }
        // Somebody else may have given the same options.
        let still = self
            .0
            .iter()
            .filter(|item| item.grantee == grantee)
            .fold(Rights::NONE, |sum, item| sum.or(item.options));
        let lost = lost.without(still);
        while let Some(next) =
            self.0.iter().find(|i| i.grantor == grantee && !i.rights.and(lost).is_empty()).copied()
        {
            if !cascade {
                return Err(Error::new(
                    SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                    "dependent privileges exist",
                )
                .hint("Use CASCADE to revoke them too."));
            }
            self.revoke((next.grantee, grantee), lost, false, true, owner)?;
        }
        Ok(())
    }

    /// Puts `to` in the place of `from`, as owner of the object.
    pub fn change_owner(&mut self, from: Owner, to: Owner) {
        let old = std::mem::take(&mut self.0);
        for mut item in old {
            for role in [&mut item.grantee, &mut item.grantor] {
                if *role == from.0 {
                    *role = to.0;
                }
            }
            match self.0.iter_mut().find(|i| i.grantee == item.grantee && i.grantor == item.grantor)
            {
                Some(known) => {
                    known.rights = known.rights.or(item.rights);
                    known.options = known.options.or(item.options);
                }
                None => self.0.push(item),
            }
        }
    }

    /// Puts the items in the order of grantees, then of grantors.
    pub fn sort(&mut self) {
        self.0.sort_by_key(|item| (item.grantee, item.grantor));
    }

    /// Whether a role is named in it.
    #[must_use]
    pub fn mentions(&self, role: u32) -> bool {
        self.0.iter().any(|item| item.grantee == role || item.grantor == role)
    }

    /// [`Acl::forget`] of somebody who may revoke only what comes from grantors of which `may` says
    /// so.
    ///
    /// # Errors
    /// None: what depends on it goes, too.
    pub fn forget_from(
        &mut self,
        role: u32,
        owner: Owner,
        may: impl Fn(u32) -> bool,
    ) -> Result<()> {
        let comes = |item: &&AclItem| item.grantee == role && may(item.grantor);
        while let Some(item) = self.0.iter().find(comes).copied() {
            self.revoke((role, item.grantor), item.rights, false, true, owner)?;
        }
        if role != owner.0 && may(role) {
            while let Some(item) = self.0.iter().find(|item| item.grantor == role).copied() {
                self.revoke((item.grantee, role), item.rights, false, true, owner)?;
            }
        }
        Ok(())
    }

    /// Takes a role out of it: what it has, and what it gave.
    ///
    /// # Errors
    /// None: what depends on it goes, too.
    pub fn forget(&mut self, role: u32, owner: Owner) -> Result<()> {
        while let Some(item) = self.0.iter().find(|item| item.grantee == role).copied() {
            self.revoke((role, item.grantor), item.rights, false, true, owner)?;
        }
        self.0.retain(|item| item.grantor != role || role == owner.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner(100);

    fn chain() -> Acl {
        let mut acl = Acl::default_of(Granted::Table, OWNER);
        acl.grant((1, 100), Rights::SELECT, Rights::SELECT, OWNER).expect("to 1");
        acl.grant((2, 1), Rights::SELECT, Rights::SELECT, OWNER).expect("to 2");
        acl.grant((3, 2), Rights::SELECT, Rights::NONE, OWNER).expect("to 3");
        acl
    }

    #[test]
    fn revoke_without_cascade_is_refused_while_others_depend_on_it() {
        let mut acl = chain();
        let error = acl.revoke((1, 100), Rights::SELECT, false, false, OWNER).expect_err("refused");
        assert_eq!(error.code(), SqlState::DEPENDENT_OBJECTS_STILL_EXIST);
    }

    #[test]
    fn revoke_that_cascades_takes_the_whole_chain_and_nothing_else() {
        let mut acl = chain();
        acl.grant((3, 100), Rights::INSERT, Rights::NONE, OWNER).expect("INSERT to 3");
        acl.revoke((1, 100), Rights::SELECT, false, true, OWNER).expect("revoked");
        assert_eq!(acl.rights_of(&[1]), Rights::NONE);
        assert_eq!(acl.rights_of(&[2]), Rights::NONE);
        assert_eq!(acl.rights_of(&[3]), Rights::INSERT);
        assert_eq!(acl.rights_of(&[100]), Granted::Table.rights());
    }

    #[test]
    fn option_given_twice_survives_the_loss_of_one() {
        let mut acl = chain();
        acl.grant((2, 100), Rights::SELECT, Rights::SELECT, OWNER).expect("to 2 again");
        acl.revoke((1, 100), Rights::SELECT, false, true, OWNER).expect("revoked");
        assert_eq!(acl.rights_of(&[3]), Rights::SELECT);
    }

    #[test]
    fn option_does_not_go_back_to_its_grantor() {
        let mut acl = chain();
        let error = acl.grant((1, 2), Rights::SELECT, Rights::SELECT, OWNER).expect_err("a circle");
        assert_eq!(error.code(), SqlState::INVALID_GRANT_OPERATION);
    }

    #[test]
    fn owner_in_old_records_is_the_bootstrap_superuser() {
        let old: Owner = serde_json::from_str("\"anybody\"").expect("a name");
        assert_eq!(old, Owner::BOOTSTRAP);
        let new: Owner = serde_json::from_str("16400").expect("an OID");
        assert_eq!(new, Owner(16400));
        assert_eq!(serde_json::to_string(&Owner::BOOTSTRAP).expect("text"), "\"telesto\"");
        assert_eq!(serde_json::to_string(&new).expect("text"), "16400");
    }
}
