//! DROP and TRUNCATE.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use telesto_common::TableId;

use super::names::{fold, split, undefined_table};
use super::{Ddl, build};
use crate::catalog::store::Object;
use crate::catalog::{Relation, Table, sequence};
use crate::error::{Error, Result, SqlState};
use crate::session::parse::parse;
use crate::sqlparser::ast::{
    CascadeOption, ObjectName, ObjectType, Truncate, TruncateIdentityOption, visit_relations,
};

fn depends(what: &str, detail: String) -> Error {
    Error::new(
        SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
        format!("cannot drop {what} because other objects depend on it"),
    )
    .detail(detail)
    .hint("Use DROP ... CASCADE to drop the dependent objects too.")
}

/// Whether a view's query names the relation. A name without a schema is taken for it.
fn uses(query: &str, schema: &str, relation: &str) -> bool {
    let Ok(parsed) = parse(query) else { return false };
    let named = |name: &ObjectName| {
        let parts: Vec<_> = name.0.iter().filter_map(|part| part.as_ident()).map(fold).collect();
        match parts.as_slice() {
            [.., within, name] => within == schema && name == relation,
            [name] => name == relation,
            [] => false,
        }
    };
    parsed.iter().filter_map(|parsed| parsed.statement.as_ref()).any(|statement| {
        visit_relations(statement, |name| match named(name) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
        .is_break()
    })
}

impl Ddl<'_> {
    pub(super) async fn drop_objects(
        &mut self,
        kind: ObjectType,
        names: &[ObjectName],
        if_exists: bool,
        cascade: bool,
    ) -> Result<String> {
        let dropped_views: BTreeSet<u32> = names
            .iter()
            .filter_map(|name| match self.find(name) {
                Ok(Some(Relation::View(view))) => Some(view.oid),
                _ => None,
            })
            .collect();
        let dropped_tables: BTreeSet<TableId> = names
            .iter()
            .filter_map(|name| match self.find(name) {
                Ok(Some(Relation::Table(table))) => Some(table.id),
                _ => None,
            })
            .collect();
        for name in names {
            match kind {
                ObjectType::Schema => self.drop_schema(name, if_exists, cascade).await?,
                ObjectType::Role | ObjectType::User => self.drop_role(name, if_exists)?,
                ObjectType::Table | ObjectType::Index | ObjectType::Sequence | ObjectType::View => {
                    let word = match kind {
                        ObjectType::Table => "table",
                        ObjectType::Index => "index",
                        ObjectType::View => "view",
                        _ => "sequence",
                    };
                    match (kind, self.find(name)?) {
                        (ObjectType::Table, Some(Relation::Table(table))) => {
                            self.drop_table(&table, &dropped_tables, cascade).await?;
                        }
                        (ObjectType::Index, Some(Relation::Index(table, index))) => {
                            self.drop_index(&table, index.id, cascade).await?;
                        }
                        (ObjectType::Sequence, Some(Relation::Sequence(sequence))) => {
                            self.drop_sequence(&sequence, cascade).await?;
                        }
                        (ObjectType::View, Some(Relation::View(view))) => {
                            let of = ("view", view.schema, view.name.as_str());
                            self.drop_views_on(of, &dropped_views, cascade)?;
                            self.change.remove(view.oid);
                        }
                        (_, Some(_)) => {
                            return Err(Error::new(
                                SqlState::WRONG_OBJECT_TYPE,
                                format!("\"{}\" is not a {word}", split(name)?.1),
                            ));
                        }
                        (_, None) => {
                            let shown = split(name)?.1;
                            let message = format!("{word} \"{shown}\" does not exist");
                            if !if_exists {
                                return Err(Error::new(
                                    if kind == ObjectType::Index {
                                        SqlState::UNDEFINED_OBJECT
                                    } else {
                                        SqlState::UNDEFINED_TABLE
                                    },
                                    message,
                                ));
                            }
                            self.context.notices.notice(format!("{message}, skipping"));
                        }
                    }
                }
                other => return Err(Error::unsupported(format!("DROP {other}"))),
            }
        }
        Ok(format!("DROP {kind}"))
    }

    async fn drop_table(
        &mut self,
        table: &Table,
        also: &BTreeSet<TableId>,
        cascade: bool,
    ) -> Result<()> {
        let referencing = self.catalog().referencing(table.id).to_vec();
        for (other, key) in referencing {
            if other == table.id || also.contains(&other) {
                continue;
            }
            let Some(other) = self.catalog().table(other).cloned() else { continue };
            let text = format!("constraint {} on table {}", key.name, other.name);
            if !cascade {
                return Err(depends(
                    &format!("table {}", table.name),
                    format!("{text} depends on table {}", table.name),
                ));
            }
            self.context.notices.notice(format!("drop cascades to {text}"));
            let mut other = (*other).clone();
            other.foreign_keys.retain(|foreign| foreign.oid != key.oid);
            self.change.put(Object::Table(other));
        }
        let of = ("table", table.schema, table.name.as_str());
        self.drop_views_on(of, &BTreeSet::new(), cascade)?;
        let owned: Vec<u32> = self
            .catalog()
            .sequences()
            .filter(|s| s.owned_by.is_some_and(|(owner, _)| owner == table.id))
            .map(|s| s.oid)
            .collect();
        for oid in owned {
            self.forget_sequence(oid).await?;
        }
        build::delete_rows(self.context, table).await?;
        self.change.remove(table.id.0);
        Ok(())
    }

    /// Refuses when views use the relation, or drops them and those that use them.
    fn drop_views_on(
        &mut self,
        (kind, schema, name): (&str, u32, &str),
        also: &BTreeSet<u32>,
        cascade: bool,
    ) -> Result<()> {
        let mut used = vec![(schema, name.to_owned())];
        while let Some((schema, relation)) = used.pop() {
            let within = self.catalog().schema_name(schema).to_owned();
            let views: Vec<_> = self
                .catalog()
                .views()
                .filter(|view| !also.contains(&view.oid))
                .filter(|view| view.name != relation && uses(&view.query, &within, &relation))
                .cloned()
                .collect();
            for view in views {
                if !cascade {
                    let text = format!("view {} depends on {kind} {name}", view.name);
                    return Err(depends(&format!("{kind} {name}"), text));
                }
                self.context.notices.notice(format!("drop cascades to view {}", view.name));
                self.change.remove(view.oid);
                used.push((view.schema, view.name.clone()));
            }
        }
        Ok(())
    }

    pub(super) async fn forget_sequence(&mut self, oid: u32) -> Result<()> {
        sequence::write_position(&self.context.txn, self.context.catalog.database, oid, None)
            .await?;
        self.change.remove(oid);
        Ok(())
    }

    async fn drop_sequence(
        &mut self,
        sequence: &crate::catalog::Sequence,
        cascade: bool,
    ) -> Result<()> {
        if let Some((table, column)) = sequence.owned_by
            && let Some(table) = self.catalog().table(table).cloned()
        {
            let uses = table.columns.get(column).is_some_and(|column| {
                column.default.as_ref().is_some_and(|d| d.contains(&sequence.name))
                    || column.generated.is_some()
            });
            if uses && (sequence.identity || !cascade) {
                return Err(depends(
                    &format!("sequence {}", sequence.name),
                    format!(
                        "default value for column {} of table {} depends on sequence {}",
                        table.columns[column].name, table.name, sequence.name
                    ),
                ));
            }
            if uses {
                let mut table = (*table).clone();
                table.columns[column].default = None;
                self.change.put(Object::Table(table));
            }
        }
        self.forget_sequence(sequence.oid).await
    }

    pub(super) async fn drop_index(
        &mut self,
        table: &Table,
        index: u32,
        cascade: bool,
    ) -> Result<()> {
        let Some(found) = table.index(index).cloned() else { return Ok(()) };
        if found.constraint_oid.is_some() {
            return Err(Error::new(
                SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                format!(
                    "cannot drop index {0} because constraint {0} on table {1} requires it",
                    found.name, table.name
                ),
            )
            .hint(format!(
                "You can drop constraint {} on table {} instead.",
                found.name, table.name
            )));
        }
        self.remove_index(table, index, cascade).await
    }

    /// Removes a secondary index and its entries; foreign keys that rely on it go with CASCADE.
    pub(super) async fn remove_index(
        &mut self,
        table: &Table,
        index: u32,
        cascade: bool,
    ) -> Result<()> {
        self.release_key(table, index, cascade)?;
        let Some(current) = self.catalog().table(table.id).cloned() else { return Ok(()) };
        let mut current = (*current).clone();
        let only = Table {
            primary: None,
            indexes: current.indexes.iter().filter(|i| i.id == index).cloned().collect(),
            ..current.clone()
        };
        build::delete_index(self.context, &only, index).await?;
        current.indexes.retain(|i| i.id != index);
        self.change.put(Object::Table(current));
        Ok(())
    }

    /// Foreign keys that point at a key about to go.
    pub(super) fn release_key(&mut self, table: &Table, index: u32, cascade: bool) -> Result<()> {
        for (other, key) in self.catalog().referencing(table.id).to_vec() {
            if key.referenced_index != index {
                continue;
            }
            let Some(other) = self.catalog().table(other).cloned() else { continue };
            let name = table.index(index).map_or("", |i| i.name.as_str()).to_owned();
            if !cascade {
                return Err(depends(
                    &format!("constraint {name} on table {}", table.name),
                    format!(
                        "constraint {} on table {} depends on index {name}",
                        key.name, other.name
                    ),
                ));
            }
            let mut other = (*other).clone();
            other.foreign_keys.retain(|foreign| foreign.oid != key.oid);
            self.change.put(Object::Table(other));
        }
        Ok(())
    }

    async fn drop_schema(
        &mut self,
        name: &ObjectName,
        if_exists: bool,
        cascade: bool,
    ) -> Result<()> {
        let (_, name) = split(name)?;
        let Some(schema) = self.catalog().schema(&name).cloned() else {
            let message = format!("schema \"{name}\" does not exist");
            if !if_exists {
                return Err(Error::new(SqlState::INVALID_SCHEMA_NAME, message));
            }
            self.context.notices.notice(format!("{message}, skipping"));
            return Ok(());
        };
        if matches!(name.as_str(), "pg_catalog" | "information_schema") {
            return Err(depends(
                &format!("schema {name}"),
                format!("schema {name} is required by the database system"),
            ));
        }
        let tables: Vec<_> =
            self.catalog().tables().filter(|t| t.schema == schema.oid).cloned().collect();
        let sequences: Vec<_> =
            self.catalog().sequences().filter(|s| s.schema == schema.oid).cloned().collect();
        let views: Vec<u32> =
            self.catalog().views().filter(|v| v.schema == schema.oid).map(|v| v.oid).collect();
        let empty = tables.is_empty() && sequences.is_empty() && views.is_empty();
        if !cascade && !empty {
            let first = tables
                .first()
                .map(|t| format!("table {name}.{}", t.name))
                .or_else(|| sequences.first().map(|s| format!("sequence {name}.{}", s.name)))
                .unwrap_or_else(|| "a view".to_owned());
            return Err(depends(
                &format!("schema {name}"),
                format!("{first} depends on schema {name}"),
            ));
        }
        let all: BTreeSet<TableId> = tables.iter().map(|t| t.id).collect();
        for oid in views {
            self.change.remove(oid);
        }
        for table in tables {
            self.drop_table(&table, &all, true).await?;
        }
        for sequence in sequences {
            if self.catalog().sequence(sequence.oid).is_some() {
                self.forget_sequence(sequence.oid).await?;
            }
        }
        self.change.remove(schema.oid);
        Ok(())
    }

    fn drop_role(&mut self, name: &ObjectName, if_exists: bool) -> Result<()> {
        let (_, name) = split(name)?;
        let found = self.catalog().roles().find(|role| role.name == name).map(|role| role.oid);
        match found {
            Some(10) => Err(Error::new(
                SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                format!("cannot drop role {name} because it is required by the database system"),
            )),
            Some(oid) => {
                self.change.remove(oid);
                Ok(())
            }
            None if if_exists => {
                self.context.notices.notice(format!("role \"{name}\" does not exist, skipping"));
                Ok(())
            }
            None => Err(Error::new(
                SqlState::UNDEFINED_OBJECT,
                format!("role \"{name}\" does not exist"),
            )),
        }
    }

    pub(super) async fn truncate(&mut self, truncate: &Truncate) -> Result<()> {
        let mut tables = Vec::new();
        for target in &truncate.table_names {
            match self.find(&target.name)? {
                Some(Relation::Table(table)) => tables.push(table),
                Some(_) => {
                    return Err(Error::new(
                        SqlState::WRONG_OBJECT_TYPE,
                        format!("\"{}\" is not a table", target.name),
                    ));
                }
                None if truncate.if_exists => {}
                None => return Err(undefined_table(&target.name)),
            }
        }
        let cascade = matches!(truncate.cascade, Some(CascadeOption::Cascade));
        let mut at = 0;
        while at < tables.len() {
            let table = tables[at].clone();
            at += 1;
            for (other, _) in self.catalog().referencing(table.id).to_vec() {
                if tables.iter().any(|t| t.id == other) {
                    continue;
                }
                let Some(other) = self.catalog().table(other).cloned() else { continue };
                if !cascade {
                    return Err(Error::new(
                        SqlState::FEATURE_NOT_SUPPORTED,
                        "cannot truncate a table referenced in a foreign key constraint",
                    )
                    .detail(format!("Table \"{}\" references \"{}\".", other.name, table.name))
                    .hint(format!(
                        "Truncate table \"{}\" at the same time, or use TRUNCATE ... CASCADE.",
                        other.name
                    )));
                }
                self.context
                    .notices
                    .notice(format!("truncate cascades to table \"{}\"", other.name));
                tables.push(other);
            }
        }
        let restart = matches!(truncate.identity, Some(TruncateIdentityOption::Restart));
        for table in &tables {
            build::delete_rows(self.context, table).await?;
            if restart {
                let owned: Vec<_> = self
                    .catalog()
                    .sequences()
                    .filter(|s| s.owned_by.is_some_and(|(owner, _)| owner == table.id))
                    .map(|s| (**s).clone())
                    .collect();
                for sequence in owned {
                    let database = self.context.catalog.database;
                    sequence::write_position(&self.context.txn, database, sequence.oid, None)
                        .await?;
                    // A changed object: values already taken by processes are not given any more.
                    let mut sequence = sequence;
                    sequence.epoch += 1;
                    self.change.put(Object::Sequence(sequence));
                }
            }
        }
        Ok(())
    }
}
