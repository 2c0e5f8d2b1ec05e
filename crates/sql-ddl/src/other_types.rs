//! Types that definitions name and that no CREATE TYPE made: arrays, rows of tables and views, the
//! server's own.
//!
//! # Invariants
//! What PostgreSQL would keep of them and has no place here is refused, not passed over. A GRANT of
//! USAGE alone is taken: everybody has that, and it cannot be taken away.
//!
//! # On failure
//! PostgreSQL's errors, and 0A000 where it would change such a type.
//!
//! # Limits
//! They have no rights, owners and comments of their own: rows are their table's owner's, the
//! server's types the first superuser's.

use super::Ddl;
use super::grant::Change;
use super::names::split;
use super::types::undefined_type;
use telesto_sql_catalog::rights::denied;
use telesto_sql_catalog::{Owner, Relation};
use telesto_sql_expr::type_name::parse_internal_name;
use telesto_sql_parser::definition::GrantKind;
use telesto_sql_parser::sqlparser::ast::ObjectName;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};

/// What a name means that is no user's type.
pub(super) struct OtherType {
    kind: OtherKind,
    /// As messages have it.
    shown: String,
    owner: Owner,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum OtherKind {
    Array,
    /// Of a table or a view.
    Row,
    System,
}

impl Ddl<'_> {
    /// What the name means; no user's type has it.
    fn other_type(&self, name: &ObjectName) -> Result<Option<OtherType>> {
        let (schema, own) = split(name)?;
        if schema.as_deref().is_none_or(|schema| schema == "pg_catalog")
            && let Some(ty) = parse_internal_name(&own)
        {
            let kind = match ty {
                SqlType::Array(_) => OtherKind::Array,
                _ => OtherKind::System,
            };
            return Ok(Some(OtherType { kind, shown: ty.to_string(), owner: Owner::BOOTSTRAP }));
        }
        let path = self.open_path();
        if let Some(ty) = self.catalog().resolve_type(schema.as_deref(), &own, &path) {
            let (kind, shown) = (OtherKind::Array, ty.to_string());
            return Ok(Some(OtherType { kind, shown, owner: Owner::BOOTSTRAP }));
        }
        let row = |own: &str| {
            let found = self.catalog().resolve(schema.as_deref(), own, &path)?;
            let (schema, name, owner) = match found {
                Relation::Table(table) => (table.schema, &table.name, table.owner),
                Relation::View(view) => (view.schema, &view.name, view.owner),
                Relation::Sequence(_) | Relation::Index(..) => return None,
            };
            Some((self.shown_name(schema, name), owner))
        };
        if let Some((shown, owner)) = row(&own) {
            return Ok(Some(OtherType { kind: OtherKind::Row, shown, owner }));
        }
        let rows = own.strip_prefix('_').and_then(row);
        Ok(rows.map(|(shown, owner)| OtherType {
            kind: OtherKind::Array,
            shown: format!("{shown}[]"),
            owner,
        }))
    }

    fn must_own(&self, ty: &OtherType) -> Result<()> {
        if self.actor.owns(ty.owner) {
            return Ok(());
        }
        Err(denied(format!("must be owner of type {}", ty.shown)))
    }

    /// What ALTER TYPE says of a name that no user's type has.
    pub(super) fn cannot_alter(&self, name: &ObjectName) -> Result<Error> {
        let Some(ty) = self.other_type(name)? else { return Ok(undefined_type(name)) };
        let shown = &ty.shown;
        let wrong = |message: String| Error::new(SqlState::WRONG_OBJECT_TYPE, message);
        Ok(match ty.kind {
            OtherKind::Row => {
                wrong(format!("{shown} is a table's row type")).hint("Use ALTER TABLE instead.")
            }
            OtherKind::Array => {
                let element = shown.trim_end_matches("[]");
                wrong(format!("cannot alter array type {shown}")).hint(format!(
                    "You can alter type {element}, which will alter the array type as well."
                ))
            }
            OtherKind::System => {
                self.must_own(&ty)?;
                Error::unsupported("ALTER TYPE of a type of the server")
                    .hint("CREATE DOMAIN makes one of your own that is like it.")
            }
        })
    }

    /// What a statement for enums says of a name that no user's type has.
    pub(super) fn no_such_enum(&self, name: &ObjectName) -> Result<Error> {
        Ok(match self.other_type(name)? {
            Some(ty) => super::types::no_enum(&ty.shown),
            None => undefined_type(name),
        })
    }

    /// What a statement for domains says of a name that no user's type has.
    pub(super) fn no_such_domain(&self, name: &ObjectName) -> Result<Error> {
        Ok(match self.other_type(name)? {
            Some(ty) => super::domain::no_domain(&ty.shown),
            None => undefined_type(name),
        })
    }

    /// What COMMENT ON TYPE says of a name that no user's type has.
    pub(super) fn cannot_comment(&self, name: &ObjectName) -> Result<Error> {
        let Some(ty) = self.other_type(name)? else { return Ok(undefined_type(name)) };
        self.must_own(&ty)?;
        Ok(Error::unsupported("COMMENT ON TYPE of a row type, an array or a type of the server")
            .hint("COMMENT ON the table, the view, or the type of the elements."))
    }

    /// What DROP TYPE says of a name that no user's type has.
    pub(super) fn cannot_drop(&self, name: &ObjectName) -> Result<Option<Error>> {
        let Some(ty) = self.other_type(name)? else { return Ok(None) };
        let shown = &ty.shown;
        let (message, hint) = match ty.kind {
            OtherKind::Row => (
                format!("cannot drop type {shown} because table {shown} requires it"),
                format!("You can drop table {shown} instead."),
            ),
            OtherKind::Array => (
                format!("cannot drop type {shown} because its element type requires it"),
                "Drop the element type instead.".to_owned(),
            ),
            OtherKind::System => (
                format!("cannot drop type {shown} because it is required by the database system"),
                "Drop types that CREATE TYPE and CREATE DOMAIN made.".to_owned(),
            ),
        };
        if ty.kind != OtherKind::Array {
            self.must_own(&ty)?;
        }
        Ok(Some(Error::new(SqlState::DEPENDENT_OBJECTS_STILL_EXIST, message).hint(hint)))
    }

    /// Fails unless the name means a type at all.
    pub(super) fn is_other_type(&self, name: &ObjectName) -> Result<()> {
        self.other_type(name)?.map(|_| ()).ok_or_else(|| undefined_type(name))
    }

    /// GRANT and REVOKE of USAGE on a name that no user's type has.
    pub(super) fn grant_on_other_type(
        &self,
        kind: GrantKind,
        name: &ObjectName,
        change: &Change<'_>,
    ) -> Result<()> {
        let ty = self.other_type(name)?.ok_or_else(|| undefined_type(name))?;
        let own = split(name)?.1;
        if ty.kind == OtherKind::Array {
            return Err(Error::new(
                SqlState::INVALID_GRANT_OPERATION,
                "cannot set privileges of array types",
            )
            .hint("Set the privileges of the element type instead."));
        }
        if kind == GrantKind::Domain {
            return Err(super::domain::no_domain(&format!("\"{own}\"")));
        }
        let statement = change.statement;
        if !self.actor.owns(ty.owner) {
            let (code, message) = if statement.grant {
                (SqlState::PRIVILEGE_NOT_GRANTED, "no privileges were granted")
            } else {
                (SqlState::PRIVILEGE_NOT_REVOKED, "no privileges could be revoked")
            };
            self.context.notices.warning(code, format!("{message} for \"{own}\""));
            return Ok(());
        }
        if statement.grant && !statement.with_option {
            return Ok(());
        }
        let what = if statement.grant { "WITH GRANT OPTION" } else { "REVOKE" };
        Err(Error::unsupported(format!("{what} on a row type or a type of the server"))
            .hint("Make a domain or a type of your own: its rights are kept."))
    }
}
