//! OWNER TO, REASSIGN OWNED, DROP OWNED.
//!
//! # Invariants
//! - What goes with an object goes with it to its new owner: the sequences of a table, its indexes.
//! - In its access control list the new owner takes the old one's place.
//!
//! # On failure
//! 42501 for who may not; 2BP01 where what is dropped is needed by what stays.

use std::collections::BTreeSet;

use telesto_common::TableId;
use telesto_sql_catalog::acl::BOOTSTRAP;
use telesto_sql_catalog::rights::{denied, is_predefined};
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{Acl, DatabaseRights, Guarded, Owner, Relation, Rights, Role};
use telesto_sql_parser::definition::{OwnedKind, RoleSpec};
use telesto_sql_parser::sqlparser::ast::ObjectName;
use telesto_sql_types::error::{Error, Result, SqlState};

use super::Ddl;
use super::going::Targets;
use super::names::split;

fn moved(acl: &mut Option<Acl>, owner: &mut Owner, to: Owner) {
    if let Some(acl) = acl {
        acl.change_owner(*owner, to);
    }
    *owner = to;
}

impl Ddl<'_> {
    /// ALTER TABLE, INDEX, SEQUENCE and VIEW … OWNER TO.
    pub(super) fn give_relation(&mut self, relation: &Relation, to: &RoleSpec) -> Result<()> {
        let to = self.role_of(to)?;
        match relation {
            Relation::Table(table) => {
                self.may_give(Guarded::table(table), &to, table.schema)?;
                self.move_table(table.id, Owner(to.oid));
            }
            Relation::View(view) => {
                self.may_give(Guarded::view(view), &to, view.schema)?;
                let mut view = (**view).clone();
                moved(&mut view.acl, &mut view.owner, Owner(to.oid));
                self.change.put(Object::View(view));
            }
            Relation::Sequence(sequence) => {
                if sequence.owned_by.is_some() {
                    return Err(Error::new(
                        SqlState::FEATURE_NOT_SUPPORTED,
                        format!("cannot change owner of sequence \"{}\"", sequence.name),
                    )
                    .detail(format!("Sequence \"{}\" is linked to a table.", sequence.name)));
                }
                self.may_give(Guarded::sequence(sequence), &to, sequence.schema)?;
                let mut sequence = (**sequence).clone();
                moved(&mut sequence.acl, &mut sequence.owner, Owner(to.oid));
                self.change.put(Object::Sequence(sequence));
            }
            Relation::Index(_, index) => {
                self.need_owner_of(relation)?;
                self.context.notices.warning(
                    SqlState::WARNING,
                    format!("cannot change owner of index \"{}\"", index.name),
                );
            }
        }
        Ok(())
    }

    /// Gives a table, and the sequences that belong to it, to another.
    fn move_table(&mut self, id: TableId, to: Owner) {
        let Some(table) = self.catalog().table(id).cloned() else { return };
        let mut table = (*table).clone();
        let from = table.owner;
        for column in &mut table.columns {
            if let Some(acl) = &mut column.acl {
                acl.change_owner(from, to);
            }
        }
        moved(&mut table.acl, &mut table.owner, to);
        self.change.put(Object::Table(table));
        let own: Vec<_> = self
            .catalog()
            .sequences()
            .filter(|s| s.owned_by.is_some_and(|(owner, _)| owner == id))
            .cloned()
            .collect();
        for sequence in own {
            let mut sequence = (*sequence).clone();
            moved(&mut sequence.acl, &mut sequence.owner, to);
            self.change.put(Object::Sequence(sequence));
        }
    }

    /// ALTER SCHEMA and DATABASE … OWNER TO.
    pub(super) fn give(&mut self, kind: OwnedKind, name: &ObjectName, to: &RoleSpec) -> Result<()> {
        let to = self.role_of(to)?;
        let (_, name) = split(name)?;
        match kind {
            OwnedKind::Schema => {
                let schema = self.catalog().schema(&name).cloned().ok_or_else(|| {
                    Error::new(
                        SqlState::INVALID_SCHEMA_NAME,
                        format!("schema \"{name}\" does not exist"),
                    )
                })?;
                self.may_give(Guarded::schema(&schema), &to, 0)?;
                let mut schema = (*schema).clone();
                moved(&mut schema.acl, &mut schema.owner, Owner(to.oid));
                self.change.put(Object::Schema(schema));
            }
            OwnedKind::Database => {
                self.known_database(&name)?;
                let catalog = self.catalog();
                catalog.guarded_database().need_owner(&self.actor)?;
                let creates = catalog.role(self.actor.oid).is_some_and(|role| role.create_db);
                if !self.actor.superuser {
                    if !catalog.is_member(self.actor.oid, to.oid) {
                        return Err(denied(format!("must be member of role \"{}\"", to.name)));
                    }
                    if !creates {
                        return Err(denied("permission denied to change owner of database"));
                    }
                }
                self.move_database(Owner(to.oid));
            }
        }
        Ok(())
    }

    fn move_database(&mut self, to: Owner) {
        let mut rights: DatabaseRights = self.database_record();
        moved(&mut rights.acl, &mut rights.owner, to);
        self.change.put(Object::Database(rights));
    }

    fn roles_named(&self, specs: &[RoleSpec], may_not: &str) -> Result<Vec<std::sync::Arc<Role>>> {
        let mut roles = Vec::new();
        for spec in specs {
            let role = self.role_of(spec)?;
            if !self.actor.acts_as(role.oid) {
                return Err(denied(may_not));
            }
            roles.push(role);
        }
        Ok(roles)
    }

    fn refuse_required(role: &Role, what: &str) -> Result<()> {
        if role.oid == BOOTSTRAP || is_predefined(role.oid) {
            return Err(Error::new(
                SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                format!(
                    "cannot {what} owned by role {} because they are required by the database system",
                    role.name
                ),
            ));
        }
        Ok(())
    }

    pub(super) fn reassign_owned(&mut self, from: &[RoleSpec], to: &RoleSpec) -> Result<()> {
        let from = self.roles_named(from, "permission denied to reassign objects")?;
        let to = self.role_of(to)?;
        if !self.actor.acts_as(to.oid) {
            return Err(denied("permission denied to reassign objects"));
        }
        let owner = Owner(to.oid);
        for role in from {
            Self::refuse_required(&role, "reassign ownership of objects")?;
            if role.oid == to.oid {
                continue;
            }
            let catalog = self.catalog().clone();
            for table in catalog.tables().filter(|o| o.owner.0 == role.oid) {
                self.move_table(table.id, owner);
            }
            for sequence in
                catalog.sequences().filter(|o| o.owner.0 == role.oid && o.owned_by.is_none())
            {
                let mut sequence = (**sequence).clone();
                moved(&mut sequence.acl, &mut sequence.owner, owner);
                self.change.put(Object::Sequence(sequence));
            }
            for view in catalog.views().filter(|o| o.owner.0 == role.oid) {
                let mut view = (**view).clone();
                moved(&mut view.acl, &mut view.owner, owner);
                self.change.put(Object::View(view));
            }
            for schema in catalog.schemas().filter(|o| o.owner.0 == role.oid) {
                let mut schema = (**schema).clone();
                moved(&mut schema.acl, &mut schema.owner, owner);
                self.change.put(Object::Schema(schema));
            }
            for ty in catalog.user_types().filter(|o| o.owner.0 == role.oid) {
                let mut ty = (**ty).clone();
                moved(&mut ty.acl, &mut ty.owner, owner);
                self.change.put(Object::Type(ty));
            }
            if catalog.database_owner().0 == role.oid {
                self.move_database(owner);
            }
        }
        Ok(())
    }

    pub(super) async fn drop_owned(&mut self, of: &[RoleSpec], cascade: bool) -> Result<()> {
        let of = self.roles_named(of, "permission denied to drop objects")?;
        for role in &of {
            Self::refuse_required(role, "drop objects")?;
        }
        let owners: Vec<u32> = of.iter().map(|role| role.oid).collect();
        let owned = |owner: Owner| owners.contains(&owner.0);
        let catalog = self.catalog().clone();
        let targets = Targets {
            tables: catalog
                .tables()
                .filter(|o| owned(o.owner))
                .map(|o| o.id)
                .collect::<BTreeSet<_>>(),
            views: catalog.views().filter(|o| owned(o.owner)).map(|o| o.oid).collect(),
            types: catalog.user_types().filter(|o| owned(o.owner)).map(|o| o.oid).collect(),
            column: None,
        };
        for view in catalog.views().filter(|o| owned(o.owner)) {
            if self.catalog().views().any(|v| v.oid == view.oid) {
                self.drop_view(view, &targets, cascade).await?;
            }
        }
        for table in catalog.tables().filter(|o| owned(o.owner)) {
            if let Some(table) = self.catalog().table(table.id).cloned() {
                // What points at it from another that goes, goes first.
                for (other, key) in self.catalog().referencing(table.id).to_vec() {
                    let Some(other) = self.catalog().table(other).cloned() else { continue };
                    if owned(other.owner) {
                        let mut other = (*other).clone();
                        other.foreign_keys.retain(|foreign| foreign.oid != key.oid);
                        self.change.put(Object::Table(other));
                    }
                }
                self.drop_table(&table, &targets, cascade).await?;
            }
        }
        for sequence in catalog.sequences().filter(|o| owned(o.owner)) {
            if let Some(sequence) = self.catalog().sequence(sequence.oid).cloned() {
                self.drop_sequence(&sequence, cascade).await?;
            }
        }
        for ty in catalog.user_types().filter(|o| owned(o.owner)) {
            if self.catalog().user_types().any(|known| known.oid == ty.oid) {
                self.remove_type(ty, cascade).await?;
            }
        }
        for schema in catalog.schemas().filter(|o| owned(o.owner)) {
            if self.catalog().schema_by_oid(schema.oid).is_some() {
                let name =
                    ObjectName::from(vec![telesto_sql_parser::sqlparser::ast::Ident::with_quote(
                        '"',
                        schema.name.clone(),
                    )]);
                self.drop_schema(&name, false, cascade).await?;
            }
        }
        for role in owners {
            self.forget_grants(role)?;
        }
        Ok(())
    }

    /// Takes from an object's rights what a role was granted, and gave: whatever there is where the
    /// actor acts for the owner, else what comes from roles that it acts as. Of what stays the
    /// client is warned, as after a REVOKE that may revoke nothing.
    fn forget_in(&self, acl: &mut Option<Acl>, owner: Owner, role: u32, name: &str) -> Result<()> {
        let Some(acl) = acl.as_mut().filter(|acl| owner.0 != role && acl.mentions(role)) else {
            return Ok(());
        };
        if self.actor.owns(owner) {
            return acl.forget(role, owner);
        }
        let before = acl.clone();
        acl.forget_from(role, owner, |grantor| self.actor.acts_as(grantor))?;
        if *acl == before {
            self.context.notices.warning(
                SqlState::PRIVILEGE_NOT_REVOKED,
                format!("no privileges could be revoked for \"{name}\""),
            );
        }
        Ok(())
    }

    /// Takes from everything in the database what a role was granted on it, and gave.
    fn forget_grants(&mut self, role: u32) -> Result<()> {
        let catalog = self.catalog().clone();
        let mentions = |acl: &Option<Acl>| acl.as_ref().is_some_and(|acl| acl.mentions(role));
        for table in catalog.tables() {
            if mentions(&table.acl) || table.columns.iter().any(|column| mentions(&column.acl)) {
                let mut table = (**table).clone();
                let owner = table.owner;
                self.forget_in(&mut table.acl, owner, role, &table.name)?;
                for column in &mut table.columns {
                    self.forget_in(&mut column.acl, owner, role, &column.name)?;
                    column.acl = column.acl.take().filter(|acl| !acl.0.is_empty());
                }
                self.change.put(Object::Table(table));
            }
        }
        for view in catalog.views().filter(|o| mentions(&o.acl)) {
            let mut view = (**view).clone();
            self.forget_in(&mut view.acl, view.owner, role, &view.name)?;
            self.change.put(Object::View(view));
        }
        for sequence in catalog.sequences().filter(|o| mentions(&o.acl)) {
            let mut sequence = (**sequence).clone();
            self.forget_in(&mut sequence.acl, sequence.owner, role, &sequence.name)?;
            self.change.put(Object::Sequence(sequence));
        }
        for schema in catalog.schemas().filter(|o| mentions(&o.acl)) {
            let mut schema = (**schema).clone();
            self.forget_in(&mut schema.acl, schema.owner, role, &schema.name)?;
            self.change.put(Object::Schema(schema));
        }
        for ty in catalog.user_types().filter(|o| mentions(&o.acl)) {
            let mut ty = (**ty).clone();
            self.forget_in(&mut ty.acl, ty.owner, role, &ty.name)?;
            self.change.put(Object::Type(ty));
        }
        if let Some(rights) = catalog.database_rights().filter(|rights| mentions(&rights.acl)) {
            let mut rights = (**rights).clone();
            self.forget_in(&mut rights.acl, rights.owner, role, &catalog.database_name)?;
            self.change.put(Object::Database(rights));
        }
        for default in catalog.default_acls() {
            if default.role == role {
                self.change.remove(default.oid);
            } else if default.acl.mentions(role) {
                let mut default = (**default).clone();
                default.acl.forget(role, Owner(default.role))?;
                self.change.put(Object::DefaultAcl(default));
            }
        }
        Ok(())
    }

    /// Whether the role may make schemas.
    pub(super) fn may_make_schema(&self) -> Result<()> {
        self.catalog().guarded_database().need(&self.actor, Rights::CREATE)
    }
}
