//! CREATE TYPE … AS ENUM, ALTER TYPE, DROP TYPE; names, schemas and owners of domains too.
//!
//! # Invariants
//! - Adding, renaming and moving change the catalog only: rows hold OIDs of labels, keys their
//!   order bytes.
//! - Types share their names with relations, as in PostgreSQL, where every relation has a row type.
//! - What names a type or a label as SQL text (defaults, checks, views) is written again when the
//!   name changes, or the change is refused.
//!
//! # Limits
//! A label added can be used at once; PostgreSQL makes one wait for the commit (55P04).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Ddl;
use super::names::{fold, split, undefined_schema};
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::types::is_made_of;
use telesto_sql_catalog::{
    Column, Granted, Guarded, Owner, Relation, Role, Table, TypeKind, UserType,
};
use telesto_sql_parser::definition::RoleSpec;
use telesto_sql_parser::sqlparser::ast::{
    self, AlterCollation, AlterCollationOperation, AlterType, AlterTypeAddValue,
    AlterTypeAddValuePosition, AlterTypeOperation, Ident, ObjectName,
    UserDefinedTypeRepresentation,
};
use telesto_sql_types::enums::between;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{EnumLabel, SqlType};

/// A type that is being made: what it has before it is known what it is.
pub(super) struct NewType {
    pub(super) oid: u32,
    array_oid: u32,
    schema: u32,
    pub(super) name: String,
}

pub(super) fn undefined_type(name: &ObjectName) -> Error {
    let shown = split(name).map_or_else(
        |_| name.to_string(),
        |(schema, name)| schema.map_or(name.clone(), |schema| format!("{schema}.{name}")),
    );
    Error::new(SqlState::UNDEFINED_OBJECT, format!("type \"{shown}\" does not exist"))
}

/// The role that OWNER TO names.
fn spec_of(owner: &ast::Owner) -> RoleSpec {
    match owner {
        ast::Owner::Ident(name) if name.quote_style.is_none() && fold(name) == "public" => {
            RoleSpec::Public
        }
        ast::Owner::Ident(name) => RoleSpec::Name(name.clone()),
        ast::Owner::SessionUser => RoleSpec::SessionUser,
        _ => RoleSpec::CurrentUser,
    }
}

fn label_of(label: &Ident) -> Result<&str> {
    if label.quote_style != Some('\'') {
        return Err(Error::syntax(format!("syntax error at or near \"{label}\"")));
    }
    if label.value.len() > 63 {
        return Err(Error::new(
            SqlState::INVALID_NAME,
            format!("invalid enum label \"{}\"", label.value),
        )
        .detail("Labels must be 63 bytes or less."));
    }
    Ok(&label.value)
}

fn label_exists(label: &str) -> Error {
    Error::new(SqlState::DUPLICATE_OBJECT, format!("enum label \"{label}\" already exists"))
}

/// Whether a domain is made of the type (or of an array of it).
fn made_of(ty: &UserType, oid: u32) -> bool {
    match &ty.kind {
        TypeKind::Domain(domain) => {
            domain.parent == Some(oid) || domain.parent.is_none() && is_made_of(&domain.base, oid)
        }
        TypeKind::Composite(composite) => {
            composite.fields.iter().any(|field| is_made_of(&field.ty, oid))
        }
        TypeKind::Enum(_) => false,
    }
}

/// What of a type made of the one with this OID depends on it.
fn dependent(ty: &UserType, oid: u32) -> String {
    if let TypeKind::Composite(composite) = &ty.kind
        && let Some(field) = composite.fields.iter().find(|field| is_made_of(&field.ty, oid))
    {
        return format!("column {} of composite type {}", field.name, ty.name);
    }
    format!("type {}", ty.name)
}

fn no_label(label: &str) -> Error {
    Error::new(
        SqlState::INVALID_PARAMETER_VALUE,
        format!("\"{label}\" is not an existing enum label"),
    )
}

/// 42809 of a type that is none.
pub(super) fn no_enum(name: &str) -> Error {
    Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{name}\" is not an enum"))
}

impl Ddl<'_> {
    pub(super) fn create_type(
        &mut self,
        name: &ObjectName,
        representation: Option<&UserDefinedTypeRepresentation>,
    ) -> Result<()> {
        let labels = match representation {
            Some(UserDefinedTypeRepresentation::Enum { labels }) => labels,
            Some(UserDefinedTypeRepresentation::Composite { attributes }) => {
                return self.create_composite(name, attributes);
            }
            Some(UserDefinedTypeRepresentation::Range { .. }) => {
                return Err(Error::unsupported("CREATE TYPE of a range").hint(
                    "Use one of int4range, int8range, numrange, daterange, tsrange and tstzrange, or two columns with a CHECK.",
                ));
            }
            _ => return Err(Error::unsupported("CREATE TYPE of a base or shell type")),
        };
        let new = self.new_type(name)?;
        let mut known: Vec<Arc<EnumLabel>> = Vec::with_capacity(labels.len());
        for (at, label) in labels.iter().enumerate() {
            let label = label_of(label)?;
            if known.iter().any(|before| before.label == label) {
                return Err(Error::new(
                    SqlState::UNIQUE_VIOLATION,
                    "duplicate key value violates unique constraint \"pg_enum_typid_label_index\"",
                )
                .detail(format!(
                    "Key (enumtypid, enumlabel)=({}, {label}) already exists.",
                    new.oid
                )));
            }
            let order = between(known.last().map(|before| before.order.as_slice()), None);
            known.push(Arc::new(EnumLabel {
                oid: self.change.oid(),
                sort: (at + 1) as f32,
                order,
                label: label.to_owned(),
            }));
        }
        self.put_type(new, TypeKind::Enum(known));
        Ok(())
    }

    /// Begins a type; fails when the name is taken where it is made.
    pub(super) fn new_type(&mut self, name: &ObjectName) -> Result<NewType> {
        let (schema, name) = split(name)?;
        let schema = self.creation_schema(schema.as_deref())?;
        self.check_type_free(schema, &name)?;
        let (oid, array_oid) = (self.change.oid(), self.change.oid());
        Ok(NewType { oid, array_oid, schema, name })
    }

    /// Puts a type that was begun; it is the maker's, with the rights that are given by default.
    pub(super) fn put_type(&mut self, new: NewType, kind: TypeKind) {
        let NewType { oid, array_oid, schema, name } = new;
        self.change.put(Object::Type(UserType {
            oid,
            array_oid,
            schema,
            name,
            owner: self.maker(),
            acl: self.initial_acl(Granted::Type, schema),
            kind,
            comment: None,
        }));
    }

    /// Fails when a type, or a relation with its row type, has the name.
    fn check_type_free(&self, schema: u32, name: &str) -> Result<()> {
        let taken = self.catalog().user_type_named(schema, name).is_some()
            || self.catalog().user_types().any(|t| t.schema == schema && t.array_name() == name)
            || matches!(
                self.catalog().relation(schema, name),
                Some(Relation::Table(_) | Relation::View(_) | Relation::Sequence(_))
            );
        if !taken {
            return Ok(());
        }
        Err(Error::new(SqlState::DUPLICATE_OBJECT, format!("type \"{name}\" already exists")))
    }

    /// The user's type of this name.
    ///
    /// # Errors
    /// As [`Ddl::find`].
    pub(super) fn find_type(&self, name: &ObjectName) -> Result<Option<Arc<UserType>>> {
        let (schema, own) = split(name)?;
        if let Some(missing) = self.missing_schema(name)? {
            return Err(undefined_schema(&missing));
        }
        self.schema_usage(name)?;
        let within = |schema: &str| {
            let schema = self.catalog().schema(schema)?.oid;
            self.catalog().user_type_named(schema, &own).cloned()
        };
        Ok(match schema {
            Some(schema) => within(&schema),
            None => self.open_path().iter().find_map(|schema| within(schema)),
        })
    }

    pub(super) async fn alter_type(&mut self, alter: &AlterType) -> Result<()> {
        let Some(found) = self.find_type(&alter.name)? else {
            return Err(match &alter.operation {
                AlterTypeOperation::Rename(_) => self.cannot_alter(&alter.name)?,
                _ => self.no_such_enum(&alter.name)?,
            });
        };
        let mut ty = (*found).clone();
        let renames = matches!(alter.operation, AlterTypeOperation::Rename(_));
        if !renames && !matches!(ty.kind, TypeKind::Enum(_)) {
            return Err(no_enum(&ty.name));
        }
        self.need_owner(Guarded::user_type(&found))?;
        match &alter.operation {
            AlterTypeOperation::Rename(rename) => {
                return self.rename_type(&ty, ty.schema, &fold(&rename.new_name));
            }
            AlterTypeOperation::AddValue(add) => {
                let TypeKind::Enum(labels) = &mut ty.kind else { return Err(no_enum(&ty.name)) };
                if !self.add_label(labels, add)? {
                    return Ok(());
                }
            }
            AlterTypeOperation::RenameValue(rename) => {
                let (from, to) = (label_of(&rename.from)?, label_of(&rename.to)?);
                let TypeKind::Enum(labels) = &mut ty.kind else { return Err(no_enum(&ty.name)) };
                let at = labels.iter().position(|label| label.label == from);
                let at = at.ok_or_else(|| no_label(from))?;
                if labels.iter().any(|label| label.label == to) {
                    return Err(label_exists(to));
                }
                labels[at] = Arc::new(EnumLabel { label: to.to_owned(), ..(*labels[at]).clone() });
                self.places_no_rows(ty.oid, from)?;
                self.rename_label_in_texts(ty.oid, from, to).await?;
            }
        }
        self.change.put(Object::Type(ty));
        Ok(())
    }

    /// Refuses a change of a label by which rows are placed: the rule names it.
    fn places_no_rows(&self, ty: u32, label: &str) -> Result<()> {
        let of_type = |table: &Table, column: u16| {
            let of = table.columns.iter().find(|known| known.id == column);
            of.is_some_and(|known| matches!(&known.ty, SqlType::Enum(own) if own.oid == ty))
        };
        for table in self.catalog().tables() {
            let Some(rule) = &table.placement.by_row else { continue };
            if rule.values.contains_key(label) && of_type(table, rule.column) {
                return Err(Error::new(
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    format!("rows of table \"{}\" are placed by label \"{label}\"", table.name),
                )
                .hint("ALTER TABLE … RESET (telesto.regions), rename the label, and place the rows again."));
            }
        }
        Ok(())
    }

    /// `false`: it is there already, and that is all right.
    fn add_label(
        &mut self,
        labels: &mut Vec<Arc<EnumLabel>>,
        add: &AlterTypeAddValue,
    ) -> Result<bool> {
        let new = label_of(&add.value)?;
        if labels.iter().any(|label| label.label == new) {
            if add.if_not_exists {
                let message = format!("enum label \"{new}\" already exists");
                self.context.notices.skipped(SqlState::DUPLICATE_OBJECT, &message);
                return Ok(false);
            }
            return Err(label_exists(new));
        }
        let place = |label: &Ident| {
            labels
                .iter()
                .position(|known| known.label == label.value)
                .ok_or_else(|| no_label(&label.value))
        };
        let at = match &add.position {
            None => labels.len(),
            Some(AlterTypeAddValuePosition::Before(label)) => place(label)?,
            Some(AlterTypeAddValuePosition::After(label)) => place(label)? + 1,
        };
        let (low, high) = (at.checked_sub(1).and_then(|at| labels.get(at)), labels.get(at));
        let order = between(low.map(|l| l.order.as_slice()), high.map(|h| h.order.as_slice()));
        let sort = match (low, high) {
            (None, None) => 1.0,
            (Some(low), None) => low.sort + 1.0,
            (None, Some(high)) => high.sort - 1.0,
            (Some(low), Some(high)) => (low.sort + high.sort) / 2.0,
        };
        let full = low.is_some_and(|l| l.sort >= sort) || high.is_some_and(|h| h.sort <= sort);
        let oid = self.change.oid();
        labels.insert(at, Arc::new(EnumLabel { oid, sort, order, label: new.to_owned() }));
        if full {
            // No number is left between the two: PostgreSQL counts anew. Keys do not hold these
            // numbers.
            for (at, label) in labels.iter_mut().enumerate() {
                *label = Arc::new(EnumLabel { sort: (at + 1) as f32, ..(**label).clone() });
            }
        }
        Ok(true)
    }

    fn rename_type(&mut self, ty: &UserType, schema: u32, name: &str) -> Result<()> {
        self.check_type_free(schema, name)?;
        self.rename_type_in_texts(ty.oid, schema, name)?;
        let ty = UserType { schema, name: name.to_owned(), ..ty.clone() };
        self.change.put(Object::Type(ty));
        Ok(())
    }

    /// ALTER TYPE … RENAME TO, OWNER TO, SET SCHEMA, in the form the parser has them
    /// (`sql-parser::parse`).
    pub(super) fn place_type(&mut self, alter: &AlterCollation) -> Result<&'static str> {
        // To whom it goes is looked up before what goes.
        let to = match &alter.operation {
            AlterCollationOperation::OwnerTo(owner) => Some(self.role_of(&spec_of(owner))?),
            _ => None,
        };
        let Some(ty) = self.find_type(&alter.name)? else {
            return Err(match &alter.operation {
                // The parser has ALTER DOMAIN alone in this form.
                AlterCollationOperation::RenameTo { .. } => self.no_such_domain(&alter.name)?,
                _ => self.cannot_alter(&alter.name)?,
            });
        };
        let tag = match &ty.kind {
            TypeKind::Domain(_) => "ALTER DOMAIN",
            TypeKind::Enum(_) | TypeKind::Composite(_) => "ALTER TYPE",
        };
        match to {
            Some(to) => self.give_type(&ty, &to)?,
            None => self.placed(&ty, &alter.operation)?,
        }
        Ok(tag)
    }

    /// Gives a type to another; its owner is asked about nothing.
    fn give_type(&mut self, ty: &UserType, to: &Role) -> Result<()> {
        self.may_give(Guarded::user_type(ty), to, ty.schema)?;
        let mut ty = ty.clone();
        if let Some(acl) = &mut ty.acl {
            acl.change_owner(ty.owner, Owner(to.oid));
        }
        ty.owner = Owner(to.oid);
        self.change.put(Object::Type(ty));
        Ok(())
    }

    fn placed(&mut self, ty: &UserType, operation: &AlterCollationOperation) -> Result<()> {
        match operation {
            AlterCollationOperation::OwnerTo(_) => {
                Err(Error::internal("a type that is given to nobody"))
            }
            AlterCollationOperation::SetSchema { schema_name } => {
                let (_, schema) = split(schema_name)?;
                let schema = self.creation_schema(Some(&schema))?;
                self.need_owner(Guarded::user_type(ty))?;
                if schema == ty.schema {
                    return Ok(());
                }
                self.rename_type(ty, schema, &ty.name)
            }
            AlterCollationOperation::RenameTo { new_name } => {
                self.need_owner(Guarded::user_type(ty))?;
                if !matches!(ty.kind, TypeKind::Domain(_)) {
                    return Err(super::domain::no_domain(&ty.name));
                }
                self.rename_type(ty, ty.schema, &fold(new_name))
            }
            AlterCollationOperation::RefreshVersion => {
                Err(Error::syntax("syntax error at or near \"REFRESH\""))
            }
        }
    }

    pub(super) async fn drop_type(
        &mut self,
        name: &ObjectName,
        if_exists: bool,
        cascade: bool,
    ) -> Result<()> {
        if let Some(missing) = self.missing_schema(name)?
            && if_exists
        {
            self.context.notices.notice(format!("schema \"{missing}\" does not exist, skipping"));
            return Ok(());
        }
        let Some(ty) = self.find_type(name)? else {
            if let Some(error) = self.cannot_drop(name)? {
                return Err(error);
            }
            let error = undefined_type(name);
            if !if_exists {
                return Err(error);
            }
            self.context.notices.notice(format!("{}, skipping", error.message()));
            return Ok(());
        };
        self.remove_type(&ty, cascade).await
    }

    /// Drops a type, and with `cascade` what is made of it.
    pub(super) async fn remove_type(&mut self, ty: &UserType, cascade: bool) -> Result<()> {
        let shown = telesto_sql_types::enums::quoted(&ty.name);
        let mut first = None;
        let mut dependents = Vec::new();
        for table in self.catalog().tables() {
            let of_type = |c: &Column| {
                is_made_of(&c.ty, ty.oid) && c.domain.is_none() || c.domain == Some(ty.oid)
            };
            for (_, column) in table.visible_columns().filter(|(_, c)| of_type(c)) {
                let what = format!("column {} of table {}", column.name, table.name);
                first.get_or_insert_with(|| what.clone());
                dependents.push((table.id, column.name.clone(), what));
            }
        }
        let texts = self.texts_that_name_type(ty.oid)?;
        let made: Vec<_> =
            self.catalog().user_types().filter(|t| made_of(t, ty.oid)).cloned().collect();
        first = first.or_else(|| made.first().map(|t| dependent(t, ty.oid)));
        if let Some(what) = first.or_else(|| texts.first().map(|text| text.what.clone()))
            && !cascade
        {
            return Err(super::drop::depends(
                &format!("type {shown}"),
                format!("{what} depends on type {shown}"),
            ));
        }
        for domain in made {
            if matches!(domain.kind, TypeKind::Composite(_)) {
                self.drop_fields_of(&domain, ty.oid).await?;
                continue;
            }
            self.context.notices.notice(format!("drop cascades to type {}", domain.name));
            Box::pin(self.remove_type(&domain, true)).await?;
        }
        for (table, column, what) in dependents {
            let Some(table) = self.catalog().table(table).cloned() else { continue };
            self.context.notices.notice(format!("drop cascades to {what}"));
            let mut table = (*table).clone();
            let column = Ident::with_quote('"', column);
            self.alter_drop_column(&mut table, &column, true, true).await?;
            self.change.put(Object::Table(table));
        }
        let views: BTreeSet<u32> =
            self.texts_that_name_type(ty.oid)?.iter().filter_map(|t| t.view).collect();
        for oid in views {
            let Some(view) = self.catalog().views().find(|view| view.oid == oid).cloned() else {
                continue;
            };
            self.context.notices.notice(format!("drop cascades to view {}", view.name));
            self.remove_view(&view).await?;
        }
        if let Some(text) = self.texts_that_name_type(ty.oid)?.first() {
            return Err(Error::unsupported(format!(
                "DROP TYPE … CASCADE while {} names the type",
                text.what
            ))
            .hint("Drop that first."));
        }
        self.change.remove(ty.oid);
        Ok(())
    }
}
