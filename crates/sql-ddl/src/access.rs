//! Who may define what: ownership of what is changed, CREATE where something new goes.
//!
//! # Invariants
//! - Every definition ends here, whatever it was: what it changed in the catalog is compared with
//!   what was there. A new object needs CREATE on its schema (a schema: on the database); a changed
//!   or dropped one must belong to the role, or its schema must.
//! - What a definition changes along the way and the role does not own (CASCADE, renamed names in
//!   views) is let through only for statements whose named objects were checked before
//!   ([`Reach::Named`]), and views that a definition below them wrote anew, so that they stay what
//!   they are, are not asked about at all.
//! - What is not known here is refused to everybody but superusers.
//!
//! # On failure
//! 42501; the caller undoes what the definition wrote.

use std::sync::Arc;
use telesto_sql_catalog::rights::denied;
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::temp::is_temporary;
use telesto_sql_catalog::types::{TypeKind, UserType, user_oid};
use telesto_sql_catalog::{
    Acl, Actor, CatalogSnapshot, Granted, Guarded, Owner, Relation, Rights, Role, Schema, Table,
};
use telesto_sql_parser::definition::{Action, Definition, RoleSpec};
use telesto_sql_parser::sqlparser::ast::{ObjectName, ObjectType, Statement};
use telesto_sql_types::CompositeField;
use telesto_sql_types::error::{Error, Result, SqlState};

use super::Ddl;
use super::names::{fold, split};

/// How far a definition may reach beyond what the role owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Not at all.
    Own,
    /// To what hangs on the objects that it names: these were checked.
    Named,
    /// It is about roles and rights, and checked each of them.
    Rights,
}

/// How far a definition reaches.
pub(super) fn reach(statement: &Statement, definition: Option<&Definition>) -> Reach {
    match definition {
        Some(
            Definition::Grant(_)
            | Definition::GrantRole(_)
            | Definition::DefaultPrivileges { .. }
            | Definition::ReassignOwned { .. }
            | Definition::DropOwned { .. }
            | Definition::CreateRole { .. }
            | Definition::AlterRole { .. }
            | Definition::DropRole { .. }
            | Definition::Settings(_)
            | Definition::OwnerTo { .. },
        ) => Reach::Rights,
        Some(Definition::AlterSchema { .. }) => Reach::Named,
        Some(Definition::Alter { actions, .. }) => {
            let far = |action: &Action| match action {
                Action::DropColumn { cascade, .. } | Action::DropConstraint { cascade, .. } => {
                    *cascade
                }
                Action::RenameTo(_)
                | Action::RenameColumn { .. }
                | Action::SetSchema(_)
                | Action::OwnerTo(_) => true,
                _ => false,
            };
            if actions.iter().any(far) { Reach::Named } else { Reach::Own }
        }
        Some(Definition::DropIndexConcurrently { cascade: true, .. }) => Reach::Named,
        Some(_) => Reach::Own,
        None => match statement {
            Statement::Drop { .. } | Statement::DropDomain(_) | Statement::Truncate(_) => {
                Reach::Named
            }
            Statement::AlterType(_) | Statement::AlterCollation(_) => Reach::Named,
            Statement::AlterTable(alter) if alter.table_type.is_some() => Reach::Named,
            _ => Reach::Own,
        },
    }
}

/// An object of the catalog as rights are on it, with its schema (0: none).
fn guarded(object: &Object) -> Option<(Guarded<'_>, u32)> {
    Some(match object {
        Object::Schema(o) => (Guarded::schema(o), 0),
        Object::Table(o) => (Guarded::table(o), o.schema),
        Object::Sequence(o) => (Guarded::sequence(o), o.schema),
        Object::View(o) => (Guarded::view(o), o.schema),
        Object::Type(o) => (Guarded::user_type(o), o.schema),
        // Notes of keys to be swept, and what is checked where it is made.
        Object::Dropped(_) => return None,
        Object::Role(_) | Object::Database(_) | Object::DefaultAcl(_) | Object::Settings(_) => {
            return None;
        }
        // The superusers'.
        Object::Region(_) | Object::Cap(_) => return None,
    })
}

/// Compares what a definition made of the catalog with what was there.
///
/// # Errors
/// 42501.
pub(super) fn check_change(
    before: &CatalogSnapshot,
    after: &CatalogSnapshot,
    touched: &[u32],
    actor: &Actor,
    reach: Reach,
) -> Result<()> {
    if actor.superuser {
        return Ok(());
    }
    super::curated::check_change(before, after, touched, actor)?;
    for oid in touched {
        match after.object(*oid) {
            Some(Object::Table(table)) => types_usage(before, &table, actor)?,
            Some(Object::Type(ty)) => types_of_type_usage(before, &ty, actor)?,
            _ => {}
        }
        let (old, new) = (before.object(*oid), after.object(*oid));
        let about_rights = |object: &Option<Object>| {
            matches!(
                object,
                Some(
                    Object::Role(_)
                        | Object::Database(_)
                        | Object::DefaultAcl(_)
                        | Object::Settings(_)
                        | Object::Region(_)
                        | Object::Cap(_)
                )
            )
        };
        if (about_rights(&old) || about_rights(&new)) && reach != Reach::Rights {
            return Err(denied("permission denied to change roles or rights"));
        }
        if reach == Reach::Rights || is_temporary(*oid) {
            continue;
        }
        match (old.as_ref().and_then(guarded), new.as_ref().and_then(guarded)) {
            (None, Some((made, schema))) => may_create(before, after, actor, &made, schema)?,
            (Some((was, schema)), None) if reach == Reach::Own => {
                may_drop(before, actor, &was, schema)?;
            }
            (Some((was, _)), Some(_)) if reach == Reach::Own => was.need_owner(actor)?,
            (Some((_, from)), Some((made, to))) if from != to => {
                may_create(before, after, actor, &made, to)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Fails when a column that is new, or has another type, is of a type that the role may not use.
fn types_usage(before: &CatalogSnapshot, table: &Table, actor: &Actor) -> Result<()> {
    let was = before.table(table.id);
    for (at, column) in table.visible_columns() {
        let known = was.and_then(|was| was.columns.get(at));
        if known.is_some_and(|known| known.ty == column.ty && known.domain == column.domain) {
            continue;
        }
        let oid = column.domain.or_else(|| telesto_sql_catalog::types::user_oid(&column.ty));
        if let Some(ty) = oid.and_then(|oid| before.user_type(oid)) {
            Guarded::user_type(ty).need(actor, Rights::USAGE)?;
        }
    }
    Ok(())
}

/// Fails when a type is made of one that the role may not use: a new domain, or a field that is new
/// or has another type.
fn types_of_type_usage(before: &CatalogSnapshot, ty: &UserType, actor: &Actor) -> Result<()> {
    let usage = |oid: Option<u32>| match oid.and_then(|oid| before.user_type(oid)) {
        Some(of) => Guarded::user_type(of).need(actor, Rights::USAGE),
        None => Ok(()),
    };
    let was = before.user_type(ty.oid);
    match &ty.kind {
        TypeKind::Domain(domain) if was.is_none() => {
            usage(domain.parent.or_else(|| user_oid(&domain.base)))
        }
        TypeKind::Composite(composite) => {
            let known: &[CompositeField] = match was.map(|was| &was.kind) {
                Some(TypeKind::Composite(was)) => &was.fields,
                _ => &[],
            };
            for field in &composite.fields {
                let of = user_oid(&field.ty);
                let same =
                    |was: &CompositeField| was.number == field.number && user_oid(&was.ty) == of;
                if !known.iter().any(same) {
                    usage(of)?;
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn may_create(
    before: &CatalogSnapshot,
    after: &CatalogSnapshot,
    actor: &Actor,
    made: &Guarded<'_>,
    schema: u32,
) -> Result<()> {
    // CREATE SCHEMA asked before it went on with its owner's rights.
    if made.kind == Granted::Schema {
        return Ok(());
    }
    // A schema that the statement made itself is the maker's.
    let schema = before.schema_by_oid(schema).or_else(|| after.schema_by_oid(schema));
    let schema = schema.ok_or_else(|| Error::internal("an object without a schema"))?;
    let guarded = Guarded::schema(schema);
    if before.schema_by_oid(schema.oid).is_none() && actor.acts_as(schema.owner.0) {
        return Ok(());
    }
    guarded.need(actor, Rights::CREATE)
}

fn may_drop(before: &CatalogSnapshot, actor: &Actor, was: &Guarded<'_>, schema: u32) -> Result<()> {
    let of_schema = before.schema_by_oid(schema).is_some_and(|schema| actor.owns(schema.owner));
    if of_schema { Ok(()) } else { was.need_owner(actor) }
}

impl Ddl<'_> {
    /// The role that what a statement makes belongs to.
    pub(super) fn maker(&self) -> Owner {
        self.maker
    }

    /// What a new object of the maker begins with.
    pub(super) fn initial_acl(&self, kind: Granted, schema: u32) -> Option<Acl> {
        if is_temporary(schema) {
            return None;
        }
        self.catalog().initial_acl(kind, self.maker, schema)
    }

    /// Fails unless the role owns the object.
    pub(super) fn need_owner(&self, guarded: Guarded<'_>) -> Result<()> {
        guarded.need_owner(&self.actor)
    }

    /// Fails unless the role owns the relation; an index belongs to whom its table belongs to.
    pub(super) fn need_owner_of(&self, relation: &Relation) -> Result<()> {
        match relation {
            Relation::Table(table) => self.need_owner(Guarded::table(table)),
            Relation::View(view) => self.need_owner(Guarded::view(view)),
            Relation::Sequence(sequence) => self.need_owner(Guarded::sequence(sequence)),
            Relation::Index(table, index) => {
                if self.actor.owns(table.owner) {
                    return Ok(());
                }
                Err(denied(format!("must be owner of index {}", index.name)))
            }
        }
    }

    /// Fails unless the role owns the object, or the schema that it is in.
    pub(super) fn may_drop(&self, guarded: Guarded<'_>, schema: u32) -> Result<()> {
        may_drop(self.catalog(), &self.actor, &guarded, schema)
    }

    /// [`Ddl::may_drop`] of each object that a DROP names.
    pub(super) fn may_drop_named(&self, kind: ObjectType, names: &[ObjectName]) -> Result<()> {
        for name in names {
            // Said, or passed over, where it is dropped.
            if self.missing_schema(name)?.is_some() {
                continue;
            }
            if kind == ObjectType::Schema {
                if let Some(schema) = self.catalog().schema(&split(name)?.1) {
                    self.need_owner(Guarded::schema(schema))?;
                }
            } else if kind == ObjectType::Type {
                if let Some(ty) = self.find_type(name)? {
                    self.may_drop(Guarded::user_type(&ty), ty.schema)?;
                }
            } else if let Some(found) = self.find(name)? {
                match &found {
                    Relation::Table(table) => self.may_drop(Guarded::table(table), table.schema)?,
                    Relation::View(view) => self.may_drop(Guarded::view(view), view.schema)?,
                    Relation::Sequence(sequence) => {
                        self.may_drop(Guarded::sequence(sequence), sequence.schema)?;
                    }
                    Relation::Index(table, index) => {
                        let of_schema = self
                            .catalog()
                            .schema_by_oid(table.schema)
                            .is_some_and(|schema| self.actor.owns(schema.owner));
                        if !of_schema && !self.actor.owns(table.owner) {
                            return Err(denied(format!("must be owner of index {}", index.name)));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the role may look into the schema.
    pub(super) fn is_open(&self, schema: &Schema) -> bool {
        is_temporary(schema.oid)
            || Guarded::schema(schema).rights_of(&self.actor).has(Rights::USAGE)
    }

    /// Fails when the role may not look into the schema that a name gives.
    pub(super) fn schema_usage(&self, name: &ObjectName) -> Result<()> {
        let (Some(schema), _) = split(name)? else { return Ok(()) };
        match self.catalog().schema(&schema) {
            Some(schema) if !is_temporary(schema.oid) => {
                Guarded::schema(schema).need(&self.actor, Rights::USAGE)
            }
            _ => Ok(()),
        }
    }

    /// Fails unless the role may make something temporary.
    pub(super) fn may_make_temporary(&self) -> Result<()> {
        let database = self.catalog().guarded_database();
        if database.rights_of(&self.actor).has(Rights::TEMPORARY) {
            return Ok(());
        }
        Err(denied(format!(
            "permission denied to create temporary tables in database \"{}\"",
            self.catalog().database_name
        )))
    }

    /// Fails unless the role may make something in the schema of a relation: a new name is that,
    /// too.
    pub(super) fn may_make_in(&self, relation: &Relation) -> Result<()> {
        let schema = match relation {
            Relation::Table(table) | Relation::Index(table, _) => table.schema,
            Relation::View(view) => view.schema,
            Relation::Sequence(sequence) => sequence.schema,
        };
        match self.catalog().schema_by_oid(schema) {
            Some(schema) if !is_temporary(schema.oid) => {
                Guarded::schema(schema).need(&self.actor, Rights::CREATE)
            }
            _ => Ok(()),
        }
    }

    /// Fails unless the role may TRUNCATE the table.
    pub(super) fn may_truncate(&self, table: &Table) -> Result<()> {
        Guarded::table(table).need(&self.actor, Rights::TRUNCATE)
    }

    /// Fails unless the role may refer to these columns.
    pub(super) fn may_reference(&self, table: &Table, columns: &[usize]) -> Result<()> {
        let allowed = |column: &usize| {
            self.catalog().column_rights(&self.actor, table, *column).has(Rights::REFERENCES)
        };
        if columns.iter().all(allowed) { Ok(()) } else { Err(Guarded::table(table).refused()) }
    }

    /// The role that a statement means.
    pub(super) fn role_of(&self, spec: &RoleSpec) -> Result<Arc<Role>> {
        let settings = &self.context.settings;
        match spec {
            RoleSpec::CurrentUser => self.role_by_oid(settings.current_role),
            RoleSpec::SessionUser => self.role_by_oid(settings.session_role),
            RoleSpec::Public => Err(no_role("public")),
            RoleSpec::Name(name) => {
                let name = fold(name);
                self.catalog().role_named(&name).cloned().ok_or_else(|| no_role(&name))
            }
        }
    }

    /// The role with this OID.
    pub(super) fn role_by_oid(&self, oid: u32) -> Result<Arc<Role>> {
        self.catalog().role(oid).cloned().ok_or_else(|| no_role(&oid.to_string()))
    }

    /// Fails unless the role may give what it owns to `to`, which must be able to make it where it
    /// is.
    pub(super) fn may_give(&self, guarded: Guarded<'_>, to: &Role, schema: u32) -> Result<()> {
        if self.actor.superuser || guarded.owner.0 == to.oid {
            return Ok(());
        }
        self.need_owner(guarded)?;
        if !self.catalog().is_member(self.actor.oid, to.oid) {
            return Err(denied(format!("must be member of role \"{}\"", to.name)));
        }
        let target = self.catalog().actor(to.oid);
        match guarded.kind {
            Granted::Schema => self.catalog().guarded_database().need(&self.actor, Rights::CREATE),
            _ => match self.catalog().schema_by_oid(schema) {
                Some(schema) if !is_temporary(schema.oid) => {
                    Guarded::schema(schema).need(&target, Rights::CREATE)
                }
                _ => Ok(()),
            },
        }
    }
}

/// 42704 of a role.
pub(super) fn no_role(name: &str) -> Error {
    Error::new(SqlState::UNDEFINED_OBJECT, format!("role \"{name}\" does not exist"))
}
