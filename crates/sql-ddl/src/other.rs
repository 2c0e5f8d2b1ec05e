//! Schemas, roles, comments.

use super::Ddl;
use super::names::{fold, split, undefined_column, undefined_table};
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{Relation, Role, Schema, UserType};
use telesto_sql_parser::definition::{RoleChange, RoleOption};
use telesto_sql_parser::sqlparser::ast::{
    CommentObject, CreateRole, Ident, ObjectName, Password, SchemaName,
};
use telesto_sql_types::error::{Error, Result, SqlState};

impl Ddl<'_> {
    pub(super) fn create_schema(&mut self, name: &SchemaName, if_not_exists: bool) -> Result<()> {
        let name = match name {
            SchemaName::Simple(name) | SchemaName::NamedAuthorization(name, _) => split(name)?.1,
            SchemaName::UnnamedAuthorization(role) => fold(role),
        };
        if self.catalog().schema(&name).is_some() {
            let message = format!("schema \"{name}\" already exists");
            if if_not_exists {
                self.context.notices.skipped(SqlState::DUPLICATE_SCHEMA, &message);
                return Ok(());
            }
            return Err(Error::new(SqlState::DUPLICATE_SCHEMA, message));
        }
        if name.starts_with("pg_") {
            return Err(Error::new(
                SqlState::RESERVED_NAME,
                format!("unacceptable schema name \"{name}\""),
            )
            .detail("The prefix \"pg_\" is reserved for system schemas."));
        }
        let oid = self.change.oid();
        let owner = self.context.settings.current_user.clone();
        self.change.put(Object::Schema(Schema { oid, name, owner, comment: None }));
        Ok(())
    }

    pub(super) fn create_role(&mut self, create: &CreateRole) -> Result<()> {
        let password = match &create.password {
            None | Some(Password::NullPassword) => None,
            Some(Password::Password(text)) => {
                let text = text.to_string();
                let text = text.trim_matches('\'');
                if !text.starts_with("SCRAM-SHA-256$") {
                    return Err(Error::unsupported("a password in clear")
                        .hint("Give a SCRAM-SHA-256 verifier: the statement, not the password, reaches logs."));
                }
                Some(text.to_owned())
            }
        };
        for name in &create.names {
            let (_, name) = split(name)?;
            if self.catalog().roles().any(|role| role.name == name) {
                if create.if_not_exists {
                    continue;
                }
                return Err(Error::new(
                    SqlState::DUPLICATE_OBJECT,
                    format!("role \"{name}\" already exists"),
                ));
            }
            let oid = self.change.oid();
            self.change.put(Object::Role(Role {
                oid,
                name,
                superuser: create.superuser == Some(true),
                login: create.login == Some(true),
                create_db: create.create_db == Some(true),
                create_role: create.create_role == Some(true),
                password: password.clone(),
            }));
        }
        Ok(())
    }

    /// A password as it may be stored.
    fn verifier(text: &str) -> Result<String> {
        if !text.starts_with("SCRAM-SHA-256$") {
            return Err(Error::unsupported("a password in clear").hint(
                "Give a SCRAM-SHA-256 verifier: the statement, not the password, reaches logs.",
            ));
        }
        Ok(text.to_owned())
    }

    pub(super) fn alter_role(&mut self, name: &Ident, change: &RoleChange) -> Result<()> {
        let name = match fold(name).as_str() {
            "current_user" | "current_role" if name.quote_style.is_none() => {
                self.context.settings.current_user.clone()
            }
            "session_user" if name.quote_style.is_none() => {
                self.context.settings.session_user.clone()
            }
            name => name.to_owned(),
        };
        let known = |wanted: &str| self.catalog().roles().find(|r| r.name == wanted).cloned();
        let mut role = (*known(&name).ok_or_else(|| {
            Error::new(SqlState::UNDEFINED_OBJECT, format!("role \"{name}\" does not exist"))
        })?)
        .clone();
        match change {
            RoleChange::Rename(to) => {
                let to = fold(to);
                if known(&to).is_some() {
                    return Err(Error::new(
                        SqlState::DUPLICATE_OBJECT,
                        format!("role \"{to}\" already exists"),
                    ));
                }
                role.name = to;
            }
            RoleChange::Options(options) => {
                for option in options {
                    match option {
                        RoleOption::Superuser(on) => role.superuser = *on,
                        RoleOption::Login(on) => role.login = *on,
                        RoleOption::CreateDb(on) => role.create_db = *on,
                        RoleOption::CreateRole(on) => role.create_role = *on,
                        RoleOption::Password(None) => role.password = None,
                        RoleOption::Password(Some(text)) => {
                            role.password = Some(Self::verifier(text)?);
                        }
                        RoleOption::Other => {}
                    }
                }
            }
        }
        self.change.put(Object::Role(role));
        Ok(())
    }

    pub(super) fn comment(
        &mut self,
        kind: CommentObject,
        name: &ObjectName,
        comment: Option<&str>,
        if_exists: bool,
    ) -> Result<()> {
        let comment = comment.map(str::to_owned);
        match kind {
            CommentObject::Schema => {
                let (_, name) = split(name)?;
                let schema = self.catalog().schema(&name).ok_or_else(|| {
                    Error::new(
                        SqlState::INVALID_SCHEMA_NAME,
                        format!("schema \"{name}\" does not exist"),
                    )
                })?;
                let schema = Schema { comment, ..(**schema).clone() };
                self.change.put(Object::Schema(schema));
            }
            CommentObject::Column => {
                let parts: Vec<Ident> =
                    name.0.iter().filter_map(|p| p.as_ident()).cloned().collect();
                let Some((column, table)) = parts.split_last() else {
                    return Err(Error::syntax("column name must be qualified"));
                };
                if table.is_empty() {
                    return Err(Error::syntax("column name must be qualified"));
                }
                let mut table = (*self.table(&ObjectName::from(table.to_vec()))?).clone();
                let column = fold(column);
                let position = table
                    .column_position(&column)
                    .ok_or_else(|| undefined_column(&column, &table))?;
                table.columns[position].comment = comment;
                self.change.put(Object::Table(table));
            }
            CommentObject::Table
            | CommentObject::Index
            | CommentObject::Sequence
            | CommentObject::View => match self.find(name)? {
                Some(Relation::Table(table)) => {
                    let mut table = (*table).clone();
                    table.comment = comment;
                    self.change.put(Object::Table(table));
                }
                Some(Relation::Index(table, index)) => {
                    let mut table = (*table).clone();
                    for found in table.known_indexes_mut() {
                        if found.oid == index.oid {
                            found.comment.clone_from(&comment);
                        }
                    }
                    self.change.put(Object::Table(table));
                }
                Some(Relation::Sequence(sequence)) => {
                    let mut sequence = (*sequence).clone();
                    sequence.comment = comment;
                    self.change.put(Object::Sequence(sequence));
                }
                Some(Relation::View(view)) => {
                    let mut view = (*view).clone();
                    view.comment = comment;
                    self.change.put(Object::View(view));
                }
                None if if_exists => {}
                None => return Err(undefined_table(name)),
            },
            CommentObject::Type => {
                let ty = self.find_type(name)?.ok_or_else(|| super::types::undefined_type(name))?;
                self.change.put(Object::Type(UserType { comment, ..(*ty).clone() }));
            }
            CommentObject::Extension | CommentObject::Database | CommentObject::Role => {
                self.context.notices.notice(format!("COMMENT ON {kind} is accepted and not kept"));
            }
            other => return Err(Error::unsupported(format!("COMMENT ON {other}"))),
        }
        Ok(())
    }
}
