//! GRANT and REVOKE of privileges.
//!
//! # Invariants
//! - Rights are given by whom they come from: the owner, for itself and superusers; else the first
//!   role that has all the options, of those whose rights the giver has, itself first; else the one
//!   that has most of them.
//! - Who has no option at all, and no right either, is refused; who has some gives these, with a
//!   warning.
//! - REVOKE of a right on a table takes it from its columns as well.
//!
//! # On failure
//! 0LP01 for a privilege that such an object has not, 2BP01 for one that was handed on, 42501 for
//! who may not.
//!
//! # Limits
//! Functions are those of the server: everybody may call them, and nothing can be taken from
//! anybody.

use telesto_sql_catalog::acl::EVERYBODY;
use telesto_sql_catalog::rights::denied;
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{
    Acl, DATABASE_OID, DatabaseRights, Granted, Guarded, Owner, Relation, Rights, Table, TypeKind,
};
use telesto_sql_parser::definition::{Grant, GrantKind, GrantOn, RoleSpec};
use telesto_sql_parser::sqlparser::ast::{Ident, ObjectName};
use telesto_sql_types::error::{Error, Result, SqlState};

use super::Ddl;
use super::names::{fold, split, undefined_column, undefined_table};

/// Rights that a statement gives or takes, with the roles.
pub(super) struct Change<'g> {
    pub(super) statement: &'g Grant,
    pub(super) grantees: Vec<u32>,
}

pub(super) fn kind_of(kind: GrantKind) -> Granted {
    match kind {
        GrantKind::Table => Granted::Table,
        GrantKind::Sequence => Granted::Sequence,
        GrantKind::Function => Granted::Function,
        GrantKind::Schema => Granted::Schema,
        GrantKind::Type | GrantKind::Domain => Granted::Type,
        GrantKind::Database => Granted::Database,
    }
}

fn operation_error(message: String) -> Error {
    Error::new(SqlState::INVALID_GRANT_OPERATION, message)
}

/// The rights named, on such an object; with columns only those on columns.
pub(super) fn rights_named(statement: &Grant, kind: Granted) -> Result<Rights> {
    let Some(named) = &statement.privileges else { return Ok(kind.rights()) };
    let mut rights = Rights::NONE;
    for (name, columns) in named {
        let right = Rights::named(name).ok_or_else(|| {
            Error::syntax(format!("unrecognized privilege type \"{}\"", name.to_lowercase()))
        })?;
        if !columns.is_empty() {
            if kind != Granted::Table {
                return Err(operation_error(
                    "column privileges are only valid for relations".to_owned(),
                ));
            }
            if !Granted::Column.rights().has(right) {
                let name = name.to_uppercase();
                return Err(operation_error(format!("invalid privilege type {name} for column")));
            }
            continue;
        }
        if !kind.rights().has(right) {
            let (name, word) = (name.to_uppercase(), kind.word());
            return Err(operation_error(format!("invalid privilege type {name} for {word}")));
        }
        rights = rights.or(right);
    }
    Ok(rights)
}

/// The rights named, whatever they are on.
fn rights_named_of(statement: &Grant) -> Rights {
    let Some(named) = &statement.privileges else { return Granted::Column.rights() };
    let named = named.iter().filter_map(|(name, _)| Rights::named(name));
    named.fold(Rights::NONE, Rights::or)
}

impl Change<'_> {
    fn all(&self) -> bool {
        self.statement.privileges.is_none()
    }
}

impl Ddl<'_> {
    pub(super) fn grantees(&self, roles: &[RoleSpec]) -> Result<Vec<u32>> {
        roles
            .iter()
            .map(|spec| match spec {
                RoleSpec::Public => Ok(EVERYBODY),
                spec => self.role_of(spec).map(|role| role.oid),
            })
            .collect()
    }

    pub(super) fn grant(&mut self, statement: &Grant) -> Result<()> {
        if let Some(by) = &statement.by
            && self.role_of(by)?.oid != self.actor.oid
        {
            return Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                "grantor must be current user",
            ));
        }
        self.objects_are_there(&statement.on)?;
        let change = Change { statement, grantees: self.grantees(&statement.roles)? };
        match &statement.on {
            GrantOn::Objects(kind, names) => {
                // Sequences may be named where tables are, with the rights of sequences.
                if !(*kind == GrantKind::Table && self.are_sequences(names)?) {
                    rights_named(statement, kind_of(*kind))?;
                }
                for name in names {
                    self.grant_on(*kind, name, &change)?;
                }
                Ok(())
            }
            GrantOn::AllIn(kind, schemas) => {
                rights_named(statement, kind_of(*kind))?;
                for schema in schemas {
                    self.grant_on_all(*kind, schema, &change)?;
                }
                Ok(())
            }
            GrantOn::Later(_) => Err(Error::internal("default privileges without a role")),
        }
    }

    /// PostgreSQL looks up what the rights are on first, then the roles, then the words of the
    /// rights.
    fn objects_are_there(&self, on: &GrantOn) -> Result<()> {
        let schema_named = |name: &str| {
            self.catalog().schema(name).ok_or_else(|| super::names::undefined_schema(name))
        };
        match on {
            GrantOn::Objects(kind, names) => names.iter().try_for_each(|name| match kind {
                GrantKind::Table | GrantKind::Sequence => {
                    self.find(name)?.map(|_| ()).ok_or_else(|| undefined_table(name))
                }
                GrantKind::Schema => schema_named(&split(name)?.1).map(|_| ()),
                GrantKind::Type | GrantKind::Domain => match self.find_type(name)? {
                    Some(_) => Ok(()),
                    None => self.is_other_type(name),
                },
                GrantKind::Database => self.known_database(&split(name)?.1),
                GrantKind::Function => Ok(()),
            }),
            GrantOn::AllIn(_, schemas) => schemas.iter().try_for_each(|name| {
                Guarded::schema(schema_named(&fold(name))?).need(&self.actor, Rights::USAGE)
            }),
            GrantOn::Later(_) => Ok(()),
        }
    }

    fn grant_on(&mut self, kind: GrantKind, name: &ObjectName, change: &Change<'_>) -> Result<()> {
        match kind {
            GrantKind::Table | GrantKind::Sequence => {
                let found = self.find(name)?.ok_or_else(|| undefined_table(name))?;
                match (kind, found) {
                    (GrantKind::Table, Relation::Table(table)) => {
                        self.grant_on_table(&table, change)
                    }
                    (GrantKind::Table, Relation::View(view)) => {
                        self.refuse_columns(change)?;
                        let mut view = (*view).clone();
                        let acl = self.changed(&Guarded::view(&view), Rights::NONE, change)?;
                        let rights = rights_named_of(change.statement);
                        self.may_touch_columns(&Guarded::view(&view), rights, change)?;
                        view.acl = acl;
                        self.change.put(Object::View(view));
                        Ok(())
                    }
                    (_, Relation::Sequence(sequence)) => self.grant_on_sequence(&sequence, change),
                    (_, Relation::Index(_, index)) => Err(Error::new(
                        SqlState::WRONG_OBJECT_TYPE,
                        format!("\"{}\" is an index", index.name),
                    )),
                    (_, _) => Err(Error::new(
                        SqlState::WRONG_OBJECT_TYPE,
                        format!("\"{}\" is not a sequence", split(name)?.1),
                    )),
                }
            }
            GrantKind::Schema => {
                let (_, name) = split(name)?;
                let schema = self.catalog().schema(&name).cloned();
                let schema = schema.ok_or_else(|| super::names::undefined_schema(&name))?;
                let mut schema = (*schema).clone();
                schema.acl = self.changed(&Guarded::schema(&schema), Rights::NONE, change)?;
                self.change.put(Object::Schema(schema));
                Ok(())
            }
            GrantKind::Type | GrantKind::Domain => {
                let Some(ty) = self.find_type(name)? else {
                    return self.grant_on_other_type(kind, name, change);
                };
                if kind == GrantKind::Domain && !matches!(ty.kind, TypeKind::Domain(_)) {
                    return Err(super::domain::no_domain(&format!("\"{}\"", ty.name)));
                }
                let mut ty = (*ty).clone();
                ty.acl = self.changed(&Guarded::user_type(&ty), Rights::NONE, change)?;
                self.change.put(Object::Type(ty));
                Ok(())
            }
            GrantKind::Database => {
                let (_, name) = split(name)?;
                self.known_database(&name)?;
                let mut rights = self.database_record();
                let acl = self.changed(&self.catalog().guarded_database(), Rights::NONE, change)?;
                rights.acl = acl;
                self.change.put(Object::Database(rights));
                Ok(())
            }
            GrantKind::Function => self.grant_on_function(name, change),
        }
    }

    /// Of the server's own functions everybody may call each: what would change that is refused.
    fn grant_on_function(&self, name: &ObjectName, change: &Change<'_>) -> Result<()> {
        let (schema, own) = split(name)?;
        let known = schema.as_deref().is_none_or(|schema| schema == "pg_catalog")
            && telesto_sql_catalog::builtin::procedures::oid(&own).is_some();
        if !known {
            return Err(Error::new(
                SqlState::UNDEFINED_FUNCTION,
                format!("could not find a function named \"{own}\""),
            ));
        }
        if !self.actor.superuser {
            return Err(denied(format!("permission denied for function {own}")));
        }
        if change.statement.grant {
            return Ok(());
        }
        Err(Error::unsupported("REVOKE of a function of the server").hint(
            "What needs protection is protected by roles: see pg_signal_backend and its kin.",
        ))
    }

    pub(super) fn known_database(&self, name: &str) -> Result<()> {
        if name == self.catalog().database_name {
            return Ok(());
        }
        Err(Error::new(
            SqlState::INVALID_CATALOG_NAME,
            format!("database \"{name}\" does not exist"),
        ))
    }

    pub(super) fn database_record(&self) -> DatabaseRights {
        self.catalog().database_rights().map_or_else(
            || DatabaseRights {
                oid: DATABASE_OID,
                owner: Owner::BOOTSTRAP,
                acl: None,
                has_users: false,
            },
            |rights| (**rights).clone(),
        )
    }

    fn refuse_columns(&self, change: &Change<'_>) -> Result<()> {
        let named =
            change.statement.privileges.iter().flatten().any(|(_, columns)| !columns.is_empty());
        if named || !change.statement.columns.is_empty() {
            return Err(Error::unsupported("privileges on columns of a view or a sequence")
                .hint("Grant on the whole, or make a view of the columns."));
        }
        Ok(())
    }

    fn grant_on_sequence(
        &mut self,
        sequence: &telesto_sql_catalog::Sequence,
        change: &Change<'_>,
    ) -> Result<()> {
        self.refuse_columns(change)?;
        let mut sequence = sequence.clone();
        if let Some(named) = &change.statement.privileges {
            // Named as a table: what only tables have is passed over.
            let foreign = named.iter().any(|(name, _)| {
                Rights::named(name).is_some_and(|right| !Granted::Sequence.rights().has(right))
            });
            if foreign {
                self.context.notices.warning(
                    SqlState::INVALID_GRANT_OPERATION,
                    format!(
                        "sequence \"{}\" only supports USAGE, SELECT, and UPDATE privileges",
                        sequence.name
                    ),
                );
            }
        }
        let guarded = Guarded::sequence(&sequence);
        let acl = self.changed(&guarded, Rights::NONE, change)?;
        self.may_touch_columns(&guarded, rights_named_of(change.statement), change)?;
        sequence.acl = acl;
        self.change.put(Object::Sequence(sequence));
        Ok(())
    }

    /// A REVOKE that concerns columns, too, is refused to who has no right of these at all, as
    /// PostgreSQL does.
    fn may_touch_columns(
        &self,
        guarded: &Guarded<'_>,
        rights: Rights,
        change: &Change<'_>,
    ) -> Result<()> {
        let of_columns = Granted::Column.rights();
        if change.statement.grant || rights.and(of_columns).is_empty() {
            return Ok(());
        }
        let held = guarded.rights_of(&self.actor).or(guarded.options_of(&self.actor));
        if held.and(of_columns).is_empty() { Err(guarded.refused()) } else { Ok(()) }
    }

    fn grant_on_table(&mut self, table: &Table, change: &Change<'_>) -> Result<()> {
        let mut table = table.clone();
        let statement = change.statement;
        // By column: position and rights.
        let mut columns: Vec<(usize, Rights)> = Vec::new();
        let mut of_columns = |table: &Table, names: &[Ident], rights: Rights| -> Result<()> {
            for name in names {
                let name = fold(name);
                let at =
                    table.column_position(&name).ok_or_else(|| undefined_column(&name, table))?;
                match columns.iter_mut().find(|(known, _)| *known == at) {
                    Some((_, known)) => *known = known.or(rights),
                    None => columns.push((at, rights)),
                }
            }
            Ok(())
        };
        if !statement.columns.is_empty() {
            of_columns(&table, &statement.columns, Granted::Column.rights())?;
        }
        for (name, names) in statement.privileges.iter().flatten().filter(|(_, c)| !c.is_empty()) {
            let right = Rights::named(name).unwrap_or(Rights::NONE);
            of_columns(&table, names, right)?;
        }
        let rights = if statement.columns.is_empty() {
            rights_named(statement, Granted::Table)?
        } else {
            Rights::NONE
        };
        let whole = !rights.is_empty();
        let guarded_table = table.clone();
        let guarded = Guarded::table(&guarded_table);
        if whole {
            table.acl = self.changed(&guarded, rights, change)?;
            self.may_touch_columns(&guarded, rights, change)?;
            let of_columns = rights.and(Granted::Column.rights());
            if !statement.grant && !of_columns.is_empty() {
                for (at, column) in table.columns.iter().enumerate() {
                    // Of one that is named, what is taken from the whole is taken as well.
                    match columns.iter_mut().find(|(known, _)| *known == at) {
                        Some((_, known)) => *known = known.or(of_columns),
                        None if column.acl.is_some() => columns.push((at, of_columns)),
                        None => {}
                    }
                }
            }
        }
        for (at, rights) in columns {
            let name = table.columns[at].name.clone();
            let acl = table.columns[at].acl.take();
            let held = guarded.rights_of(&self.actor).and(Granted::Column.rights());
            let column = Guarded {
                kind: Granted::Column,
                owner: table.owner,
                acl: acl.as_ref(),
                name: &name,
                word: "column",
            };
            let given = Given {
                guarded: &column,
                rights,
                table: guarded.acl,
                held,
                quiet: whole && !statement.grant,
            };
            let changed = self.changed_by(&given, change)?;
            table.columns[at].acl = changed.filter(|acl| !acl.0.is_empty());
        }
        self.change.put(Object::Table(table));
        Ok(())
    }

    fn grant_on_all(&mut self, kind: GrantKind, schema: &Ident, change: &Change<'_>) -> Result<()> {
        let name = fold(schema);
        let schema = self.catalog().schema(&name).cloned();
        let schema = schema.ok_or_else(|| super::names::undefined_schema(&name))?;
        self.refuse_columns(change)?;
        let here = |of: u32| of == schema.oid;
        match kind {
            GrantKind::Table => {
                let tables: Vec<_> =
                    self.catalog().tables().filter(|t| here(t.schema)).cloned().collect();
                for table in tables {
                    self.grant_on_table(&table, change)?;
                }
                let views: Vec<_> =
                    self.catalog().views().filter(|v| here(v.schema)).cloned().collect();
                for view in views {
                    let mut view = (*view).clone();
                    view.acl = self.changed(&Guarded::view(&view), Rights::NONE, change)?;
                    self.change.put(Object::View(view));
                }
            }
            GrantKind::Sequence => {
                let found: Vec<_> =
                    self.catalog().sequences().filter(|s| here(s.schema)).cloned().collect();
                for sequence in found {
                    self.grant_on_sequence(&sequence, change)?;
                }
            }
            // No schema of a user's has functions.
            GrantKind::Function => {}
            _ => return Err(Error::internal("ALL of this kind")),
        }
        Ok(())
    }

    /// The object's list after the statement; `rights` where they are not all that the statement
    /// names.
    fn changed(
        &self,
        guarded: &Guarded<'_>,
        rights: Rights,
        change: &Change<'_>,
    ) -> Result<Option<Acl>> {
        let rights = if rights.is_empty() {
            let named = change.statement.privileges.iter().flatten();
            let mut sum = Rights::NONE;
            for (name, _) in named {
                let right = Rights::named(name).ok_or_else(|| {
                    Error::syntax(format!(
                        "unrecognized privilege type \"{}\"",
                        name.to_lowercase()
                    ))
                })?;
                sum = sum.or(right.and(guarded.kind.rights()));
            }
            if change.all() { guarded.kind.rights() } else { sum }
        } else {
            rights
        };
        self.changed_by(
            &Given { guarded, rights, table: None, held: Rights::NONE, quiet: false },
            change,
        )
    }

    fn changed_by(&self, given: &Given<'_>, change: &Change<'_>) -> Result<Option<Acl>> {
        let Given { guarded, rights, table, quiet, .. } = *given;
        let statement = change.statement;
        let (grantor, options) = self.grantor(guarded, rights, table);
        let held = guarded.rights_of(&self.actor);
        let may = options.and(rights);
        if options.is_empty() && held.or(given.held).is_empty() && !quiet {
            return Err(guarded.refused());
        }
        if statement.with_option && change.grantees.contains(&EVERYBODY) {
            let text = "grant options can only be granted to roles";
            return Err(operation_error(text.to_owned()));
        }
        if !quiet && !rights.is_empty() && !may.has(rights) {
            self.warn_of_part(guarded, may, change);
        }
        let mut acl =
            guarded.acl.cloned().unwrap_or_else(|| Acl::default_of(guarded.kind, guarded.owner));
        if may.is_empty() {
            // PostgreSQL writes down what was the default, even if nothing is added.
            return Ok(Some(acl));
        }
        for grantee in &change.grantees {
            if statement.grant {
                let options = if statement.with_option { may } else { Rights::NONE };
                acl.grant((*grantee, grantor), may, options, guarded.owner)?;
            } else {
                let only = statement.only_option;
                acl.revoke((*grantee, grantor), may, only, statement.cascade, guarded.owner)?;
            }
        }
        Ok(Some(acl))
    }

    /// The role that the rights come from, and which of them it may hand on. Of a column, options
    /// on its table count, too.
    fn grantor(&self, guarded: &Guarded<'_>, rights: Rights, table: Option<&Acl>) -> (u32, Rights) {
        let owner = guarded.owner.0;
        if self.actor.superuser || self.actor.oid == owner {
            return (owner, guarded.kind.rights());
        }
        let mut best = (self.actor.oid, Rights::NONE);
        for role in &self.actor.roles {
            let items = guarded.acl.into_iter().chain(table).flat_map(|acl| &acl.0);
            let own = match *role == owner {
                true => rights,
                false => items
                    .filter(|item| item.grantee == *role)
                    .fold(Rights::NONE, |sum, item| sum.or(item.options))
                    .and(rights),
            };
            if own == rights {
                return (*role, own);
            }
            if own.0.count_ones() > best.1.0.count_ones() {
                best = (*role, own);
            }
        }
        best
    }

    fn warn_of_part(&self, guarded: &Guarded<'_>, may: Rights, change: &Change<'_>) {
        let name = guarded.name;
        let (code, text) = match (change.statement.grant, may.is_empty(), change.all()) {
            (true, true, _) => (
                SqlState::PRIVILEGE_NOT_GRANTED,
                format!("no privileges were granted for \"{name}\""),
            ),
            (true, false, false) => (
                SqlState::PRIVILEGE_NOT_GRANTED,
                format!("not all privileges were granted for \"{name}\""),
            ),
            (false, true, _) => (
                SqlState::PRIVILEGE_NOT_REVOKED,
                format!("no privileges could be revoked for \"{name}\""),
            ),
            (false, false, false) => (
                SqlState::PRIVILEGE_NOT_REVOKED,
                format!("not all privileges could be revoked for \"{name}\""),
            ),
            (_, false, true) => return,
        };
        self.context.notices.warning(code, text);
    }
}

/// Rights on an object about to change.
#[derive(Clone, Copy)]
struct Given<'a> {
    guarded: &'a Guarded<'a>,
    rights: Rights,
    /// Of a column, what was granted on its table.
    table: Option<&'a Acl>,
    /// Rights that come from elsewhere, in the same way.
    held: Rights,
    /// No complaint about what cannot be given.
    quiet: bool,
}
