//! DROP and TRUNCATE.

use std::sync::Arc;

use telesto_common::TableId;

use super::dependents::Dependents;
use super::going::{Going, Targets};
use super::names::{split, undefined_table};
use super::{After, Ddl, build};
use telesto_sql_catalog::regions::Home;
use telesto_sql_catalog::statistics::statistics_key;
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{Guarded, Relation, Table, View, sequence};
use telesto_sql_parser::sqlparser::ast::{
    CascadeOption, ObjectName, ObjectType, Truncate, TruncateIdentityOption,
};
use telesto_sql_types::error::{Error, Result, SqlState};

pub(super) fn depends(what: &str, detail: String) -> Error {
    Error::new(
        SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
        format!("cannot drop {what} because other objects depend on it"),
    )
    .detail(detail)
    .hint("Use DROP ... CASCADE to drop the dependent objects too.")
}

impl Ddl<'_> {
    pub(super) async fn drop_objects(
        &mut self,
        kind: ObjectType,
        names: &[ObjectName],
        if_exists: bool,
        cascade: bool,
    ) -> Result<String> {
        let mut targets = Targets::default();
        for name in names {
            match self.find(name) {
                Ok(Some(Relation::View(view))) => drop(targets.views.insert(view.oid)),
                Ok(Some(Relation::Table(table))) => drop(targets.tables.insert(table.id)),
                _ => {}
            }
        }
        for name in names {
            if let Some(missing) = self.missing_schema(name)?
                && if_exists
            {
                self.context
                    .notices
                    .notice(format!("schema \"{missing}\" does not exist, skipping"));
                continue;
            }
            match kind {
                ObjectType::Schema => self.drop_schema(name, if_exists, cascade).await?,
                ObjectType::Table | ObjectType::Index | ObjectType::Sequence | ObjectType::View => {
                    let word = match kind {
                        ObjectType::Table => "table",
                        ObjectType::Index => "index",
                        ObjectType::View => "view",
                        _ => "sequence",
                    };
                    match (kind, self.find(name)?) {
                        (ObjectType::Table, Some(Relation::Table(table))) => {
                            self.drop_table(&table, &targets, cascade).await?;
                        }
                        (ObjectType::Index, Some(Relation::Index(table, index))) => {
                            self.drop_index(&table, index.id, cascade).await?;
                        }
                        (ObjectType::Sequence, Some(Relation::Sequence(sequence))) => {
                            self.drop_sequence(&sequence, cascade).await?;
                        }
                        (ObjectType::View, Some(Relation::View(view))) => {
                            self.drop_view(&view, &targets, cascade).await?;
                        }
                        (_, Some(_)) => {
                            let article = if word == "index" { "an" } else { "a" };
                            return Err(Error::new(
                                SqlState::WRONG_OBJECT_TYPE,
                                format!("\"{}\" is not {article} {word}", split(name)?.1),
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
                ObjectType::Type => self.drop_type(name, if_exists, cascade).await?,
                other => return Err(Error::unsupported(format!("DROP {other}"))),
            }
        }
        Ok(format!("DROP {kind}"))
    }

    pub(super) async fn drop_table(
        &mut self,
        table: &Table,
        targets: &Targets,
        cascade: bool,
    ) -> Result<()> {
        let relation = Relation::Table(Arc::new(table.clone()));
        let shown = self.shown_name(table.schema, &table.name);
        let mut needs = Dependents::of(format!("table {shown}"));
        let referencing: Vec<_> = self
            .catalog()
            .referencing(table.id)
            .iter()
            .filter(|(other, _)| *other != table.id && !targets.tables.contains(other))
            .cloned()
            .collect();
        for (other, key) in &referencing {
            if let Some(other) = self.catalog().table(*other) {
                let other = self.shown_name(other.schema, &other.name);
                needs.add(format!("constraint {} on table {other}", key.name));
            }
        }
        // Sequences that go with the table may be used by others.
        let owned: Vec<u32> = self
            .catalog()
            .sequences()
            .filter(|s| s.owned_by.is_some_and(|(owner, _)| owner == table.id))
            .map(|s| s.oid)
            .collect();
        let mut targets = targets.clone();
        targets.tables.insert(table.id);
        let mut going = Going::default();
        self.add_going(&relation, &targets, (&mut needs, &mut going))?;
        for oid in &owned {
            if let Some(sequence) = self.catalog().sequence(*oid).cloned() {
                let sequence = Relation::Sequence(sequence);
                self.add_going(&sequence, &targets, (&mut needs, &mut going))?;
            }
        }
        needs.settle(cascade, &self.context.notices)?;
        self.remove_going(going).await?;
        for (other, key) in referencing {
            self.remove_foreign_key(other, key.oid);
        }
        for oid in owned {
            self.forget_sequence(oid).await?;
        }
        // A domain that went may have taken a column of its key.
        self.after.retain(|step| match step {
            After::Rewrite(id, ..) | After::Fill(id, _) => *id != table.id,
            After::Empty(..) => true,
        });
        self.release(table, None).await?;
        self.change.remove(table.id.0);
        Ok(())
    }

    /// Drops what goes with a view that is dropped as something else goes.
    pub(super) async fn remove_view(&mut self, view: &Arc<View>) -> Result<()> {
        let mut going = Going::default();
        let mut needs = Dependents::of(String::new());
        let relation = Relation::View(Arc::clone(view));
        self.add_going(&relation, &Targets::default(), (&mut needs, &mut going))?;
        self.remove_going(going).await?;
        self.change.remove(view.oid);
        Ok(())
    }

    pub(super) async fn drop_view(
        &mut self,
        view: &View,
        targets: &Targets,
        cascade: bool,
    ) -> Result<()> {
        let relation = Relation::View(Arc::new(view.clone()));
        let shown = self.shown_name(view.schema, &view.name);
        let mut needs = Dependents::of(format!("view {shown}"));
        let mut going = Going::default();
        self.add_going(&relation, targets, (&mut needs, &mut going))?;
        needs.settle(cascade, &self.context.notices)?;
        self.remove_going(going).await?;
        self.change.remove(view.oid);
        Ok(())
    }

    pub(super) async fn forget_sequence(&mut self, oid: u32) -> Result<()> {
        sequence::write_position(&self.context.txn, &self.context.catalog, oid, None).await?;
        self.change.remove(oid);
        Ok(())
    }

    pub(super) async fn drop_sequence(
        &mut self,
        sequence: &telesto_sql_catalog::Sequence,
        cascade: bool,
    ) -> Result<()> {
        let shown = self.shown_name(sequence.schema, &sequence.name);
        if let (true, Some((table, column))) = (sequence.identity, sequence.owned_by)
            && let Some(table) = self.catalog().table(table)
        {
            let of = self.shown_name(table.schema, &table.name);
            let column = table.columns.get(column).map_or("", |c| c.name.as_str());
            return Err(Error::new(
                SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                format!(
                    "cannot drop sequence {shown} because column {column} of table {of} requires it"
                ),
            )
            .hint(format!("You can drop column {column} of table {of} instead.")));
        }
        let mut needs = Dependents::of(format!("sequence {shown}"));
        let mut going = Going::default();
        let relation = Relation::Sequence(Arc::new(sequence.clone()));
        self.add_going(&relation, &Targets::default(), (&mut needs, &mut going))?;
        needs.settle(cascade, &self.context.notices)?;
        self.remove_going(going).await?;
        self.forget_sequence(sequence.oid).await
    }

    pub(super) async fn drop_index(
        &mut self,
        table: &Table,
        index: u32,
        cascade: bool,
    ) -> Result<()> {
        let Some(found) = table.known_indexes().find(|i| i.id == index).cloned() else {
            return Ok(());
        };
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
        self.release(&current, Some(index)).await?;
        current.indexes.retain(|i| i.id != index);
        current.building.retain(|b| b.index.id != index);
        self.change.put(Object::Table(current));
        Ok(())
    }

    /// Foreign keys that point at a key about to go.
    pub(super) fn release_key(&mut self, table: &Table, index: u32, cascade: bool) -> Result<()> {
        let Some(found) = table.index(index) else { return Ok(()) };
        let shown = self.shown_name(table.schema, &table.name);
        let target = match found.constraint_oid {
            Some(_) => format!("constraint {} on table {shown}", found.name),
            None => format!("index {}", self.shown_name(table.schema, &found.name)),
        };
        let on = format!("index {}", self.shown_name(table.schema, &found.name));
        let mut needs = Dependents::of(target);
        let keys: Vec<_> = self
            .catalog()
            .referencing(table.id)
            .iter()
            .filter(|(_, key)| key.referenced_index == index)
            .cloned()
            .collect();
        for (other, key) in &keys {
            if let Some(other) = self.catalog().table(*other) {
                let other = self.shown_name(other.schema, &other.name);
                needs.add_on(format!("constraint {} on table {other}", key.name), on.clone());
            }
        }
        needs.settle(cascade, &self.context.notices)?;
        for (other, key) in keys {
            self.remove_foreign_key(other, key.oid);
        }
        Ok(())
    }

    /// Removes a table's rows: few at once, many by giving the table another place.
    async fn empty(&mut self, table: &Table) -> Result<()> {
        let large =
            !telesto_sql_catalog::temp::is_temporary(table.id.0) && self.is_large(table, 0).await?;
        // Rows are deleted by who writes them; another region's are left behind with their storage,
        // which is a definition.
        let catalog = self.catalog();
        let here = match table.placement.home {
            Home::Region(home) => home == catalog.me().0 && table.placement.moved.is_none(),
            Home::Any => true,
            Home::Row => false,
        };
        let own = !catalog.is_regional() || here;
        // Who fills an index must notice: it reads the catalog, not the rows that it has done.
        if !large && table.building.is_empty() && own {
            build::delete_rows(self.context, table).await?;
            return Ok(());
        }
        self.release_keys(table, None).await?;
        self.change.define_temporary(false);
        let storage = TableId(self.change.oid());
        self.change.put(Object::Table(Table { storage, ..table.clone() }));
        Ok(())
    }

    /// Nothing is known any more of the rows of a table that was emptied.
    async fn forget_statistics(&self, table: &Table) -> Result<()> {
        let catalog = &self.context.catalog;
        if catalog.statistics.of(table).is_some() {
            let key = statistics_key(catalog.database, table.id);
            self.context.txn.delete(key).await?;
            catalog.statistics.written(self.context.txn.id());
        }
        Ok(())
    }

    pub(super) async fn truncate(&mut self, truncate: &Truncate) -> Result<()> {
        let mut tables = Vec::new();
        for target in &truncate.table_names {
            match self.find(&target.name)? {
                Some(Relation::Table(table)) => {
                    // Before what references it, which is others' business.
                    self.may_truncate(&table)?;
                    tables.push(table);
                }
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
            self.may_truncate(table)?;
            super::curated::may_change(table, &self.actor)?;
        }
        for table in &tables {
            self.empty(table).await?;
            self.forget_statistics(table).await?;
            if restart {
                let owned: Vec<_> = self
                    .catalog()
                    .sequences()
                    .filter(|s| s.owned_by.is_some_and(|(owner, _)| owner == table.id))
                    .map(|s| (**s).clone())
                    .collect();
                for sequence in owned {
                    self.need_owner(Guarded::sequence(&sequence))?;
                    sequence::write_position(
                        &self.context.txn,
                        &self.context.catalog,
                        sequence.oid,
                        None,
                    )
                    .await?;
                    if let Some(text) = sequence::set_here_alone(self.catalog(), sequence.oid) {
                        self.context.notices.warning(SqlState::WARNING, text);
                    }
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
