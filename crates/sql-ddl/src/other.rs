//! Schemas and comments.

use super::Ddl;
use super::names::{fold, split, undefined_column, undefined_table};
use telesto_sql_catalog::rights::denied;
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{Granted, Owner, Relation, Schema, TypeKind, UserType};
use telesto_sql_parser::definition::RoleSpec;
use telesto_sql_parser::sqlparser::ast::{CommentObject, Ident, ObjectName};
use telesto_sql_types::error::{Error, Result, SqlState};

impl Ddl<'_> {
    /// CREATE SCHEMA; its name.
    pub(super) fn create_schema(
        &mut self,
        name: Option<&Ident>,
        owner: Option<&RoleSpec>,
        if_not_exists: bool,
    ) -> Result<String> {
        let owner = match owner {
            Some(spec) => self.role_of(spec)?,
            None => self.role_by_oid(self.maker().0)?,
        };
        let name = name.map_or_else(|| owner.name.clone(), fold);
        self.may_make_schema()?;
        if !self.actor.superuser && !self.catalog().is_member(self.actor.oid, owner.oid) {
            return Err(denied(format!("must be member of role \"{}\"", owner.name)));
        }
        if name.starts_with("pg_") {
            return Err(Error::new(
                SqlState::RESERVED_NAME,
                format!("unacceptable schema name \"{name}\""),
            )
            .detail("The prefix \"pg_\" is reserved for system schemas."));
        }
        if self.catalog().schema(&name).is_some() {
            let message = format!("schema \"{name}\" already exists");
            if if_not_exists {
                self.context.notices.skipped(SqlState::DUPLICATE_SCHEMA, &message);
                return Ok(name);
            }
            return Err(Error::new(SqlState::DUPLICATE_SCHEMA, message));
        }
        self.change.define_temporary(false);
        let oid = self.change.oid();
        self.maker = Owner(owner.oid);
        // What is made in it is made with its owner's rights.
        self.actor = self.catalog().actor(owner.oid);
        let acl = self.initial_acl(Granted::Schema, 0);
        let schema = Schema { oid, name: name.clone(), owner: self.maker, acl, comment: None };
        self.change.put(Object::Schema(schema));
        Ok(name)
    }

    /// Fails when the relation that a comment is on is of another kind than the statement says, or
    /// in a schema that is closed to the role.
    fn is_of_kind(&self, kind: CommentObject, name: &ObjectName) -> Result<()> {
        let what = match kind {
            CommentObject::Table => "a table",
            CommentObject::View => "a view",
            CommentObject::Sequence => "a sequence",
            CommentObject::Index => "an index",
            _ => return Ok(()),
        };
        let fits = match self.find(name)? {
            None => true,
            Some(Relation::Table(_)) => kind == CommentObject::Table,
            Some(Relation::View(_)) => kind == CommentObject::View,
            Some(Relation::Sequence(_)) => kind == CommentObject::Sequence,
            Some(Relation::Index(..)) => kind == CommentObject::Index,
        };
        if fits {
            return Ok(());
        }
        let own = split(name)?.1;
        Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{own}\" is not {what}")))
    }

    fn comment_on_column(&mut self, name: &ObjectName, comment: Option<String>) -> Result<()> {
        let parts: Vec<Ident> = name.0.iter().filter_map(|p| p.as_ident()).cloned().collect();
        let Some((column, relation)) = parts.split_last().filter(|(_, of)| !of.is_empty()) else {
            return Err(Error::syntax("column name must be qualified"));
        };
        let (column, relation) = (fold(column), ObjectName::from(relation.to_vec()));
        if let Some(Relation::View(view)) = self.find(&relation)? {
            let mut view = (*view).clone();
            let position = view.columns.iter().position(|(name, _)| *name == column);
            let number = position.and_then(|position| u16::try_from(position + 1).ok());
            let Some(number) = number else {
                return Err(Error::new(
                    SqlState::UNDEFINED_COLUMN,
                    format!("column \"{column}\" of relation \"{}\" does not exist", view.name),
                ));
            };
            match comment {
                Some(comment) => view.column_comments.insert(number, comment),
                None => view.column_comments.remove(&number),
            };
            self.change.put(Object::View(view));
            return Ok(());
        }
        let mut table = (*self.table(&relation)?).clone();
        let position =
            table.column_position(&column).ok_or_else(|| undefined_column(&column, &table))?;
        table.columns[position].comment = comment;
        self.change.put(Object::Table(table));
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
        self.is_of_kind(kind, name)?;
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
            CommentObject::Column => self.comment_on_column(name, comment)?,
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
                let Some(ty) = self.find_type(name)? else {
                    return Err(self.cannot_comment(name)?);
                };
                self.change.put(Object::Type(UserType { comment, ..(*ty).clone() }));
            }
            CommentObject::Domain => {
                let Some(ty) = self.find_type(name)? else {
                    return Err(self.no_such_domain(name)?);
                };
                if !matches!(ty.kind, TypeKind::Domain(_)) {
                    return Err(super::domain::no_domain(&format!("\"{}\"", ty.name)));
                }
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
