//! Schemas, roles, comments.

use super::Ddl;
use super::names::{fold, split, undefined_column, undefined_table};
use crate::catalog::store::Object;
use crate::catalog::{Relation, Role, Schema, View};
use crate::error::{Error, Result, SqlState};
use crate::plan::{ParameterTypes, PlanContext};
use crate::sqlparser::ast::{
    CommentObject, CreateRole, CreateView, Ident, ObjectName, Password, SchemaName, Statement,
};
use crate::types::SqlType;

impl Ddl<'_> {
    pub(super) fn create_schema(&mut self, name: &SchemaName, if_not_exists: bool) -> Result<()> {
        let name = match name {
            SchemaName::Simple(name) | SchemaName::NamedAuthorization(name, _) => split(name)?.1,
            SchemaName::UnnamedAuthorization(role) => fold(role),
        };
        if self.catalog().schema(&name).is_some() {
            let message = format!("schema \"{name}\" already exists");
            if if_not_exists {
                self.context.notices.notice(format!("{message}, skipping"));
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

    pub(super) async fn create_view(&mut self, create: &CreateView) -> Result<()> {
        if create.materialized || create.temporary {
            return Err(Error::unsupported("a materialized or temporary view"));
        }
        let (schema, name) = split(&create.name)?;
        let schema = self.creation_schema(schema.as_deref())?;
        let before = match self.catalog().relation(schema, &name).cloned() {
            Some(Relation::View(view)) if create.or_replace => Some(view),
            _ if !self.check_free(schema, &name, create.if_not_exists)? => return Ok(()),
            _ => None,
        };
        let mut parameters = ParameterTypes::default();
        let plan = crate::session::plan_statement(
            &Statement::Query(create.query.clone()),
            &mut PlanContext {
                catalog: &self.context.catalog,
                settings: &self.context.settings,
                parameters: &mut parameters,
                txn: Some(&self.context.txn),
                env: &self.context.env,
            },
        )
        .await?;
        let mut columns: Vec<(String, SqlType)> = plan
            .columns()
            .map(|columns| columns.iter().map(|c| (c.name.clone(), c.ty.clone())).collect())
            .unwrap_or_default();
        if create.columns.len() > columns.len() {
            return Err(Error::syntax("CREATE VIEW specifies more column names than columns"));
        }
        for (column, given) in columns.iter_mut().zip(&create.columns) {
            column.0 = fold(&given.name);
        }
        if let Some(before) = &before
            && !columns.starts_with(&before.columns)
        {
            return Err(Error::new(
                SqlState::INVALID_TABLE_DEFINITION,
                "cannot change the names or types of view columns, nor drop any",
            )
            .hint("Drop the view and create it again."));
        }
        let oid = before.as_ref().map_or_else(|| self.change.oid(), |view| view.oid);
        self.change.put(Object::View(View {
            oid,
            schema,
            name,
            owner: self.context.settings.current_user.clone(),
            query: create.query.to_string(),
            columns,
            comment: None,
        }));
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
                    for found in table.primary.iter_mut().chain(&mut table.indexes) {
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
            CommentObject::Extension | CommentObject::Database | CommentObject::Role => {
                self.context.notices.notice(format!("COMMENT ON {kind} is accepted and not kept"));
            }
            other => return Err(Error::unsupported(format!("COMMENT ON {other}"))),
        }
        Ok(())
    }
}
