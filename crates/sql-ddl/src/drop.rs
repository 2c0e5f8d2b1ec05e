//! DROP and TRUNCATE.

use std::collections::BTreeSet;

use telesto_common::TableId;

use super::dependents::Dependents;
use super::names::{split, undefined_table};
use super::{Ddl, build};
use telesto_sql_catalog::regions::Home;
use telesto_sql_catalog::statistics::statistics_key;
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{Guarded, Relation, Table, sequence};
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

/// What one statement drops.
#[derive(Default)]
pub(super) struct Targets {
    pub(super) tables: BTreeSet<TableId>,
    pub(super) views: BTreeSet<u32>,
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
                            self.drop_view(&view, &targets, cascade)?;
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
        let gone: Vec<u32> = targets.tables.iter().map(|table| table.0).collect();
        let relation = Relation::Table(std::sync::Arc::new(table.clone()));
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
        // Sequences that go with the table may be used by others' defaults.
        let owned: Vec<u32> = self
            .catalog()
            .sequences()
            .filter(|s| s.owned_by.is_some_and(|(owner, _)| owner == table.id))
            .map(|s| s.oid)
            .collect();
        for oid in &owned {
            for (other, _, text) in self.defaults_with(*oid) {
                if other != table.id && !targets.tables.contains(&other) {
                    let sequence = self.catalog().sequence(*oid).map_or_else(String::new, |s| {
                        format!("sequence {}", self.shown_name(s.schema, &s.name))
                    });
                    needs.add_on(text, sequence);
                }
            }
        }
        let views =
            self.views_that_go(self.views_on(table.schema, &table.name), targets, &mut needs);
        let policies = self.policies_that_go(&relation, &views, &gone, &mut needs);
        needs.settle(cascade, &self.context.notices)?;
        self.remove_policies(policies);
        for (other, key) in referencing {
            let Some(other) = self.catalog().table(other).cloned() else { continue };
            let mut other = (*other).clone();
            other.foreign_keys.retain(|foreign| foreign.oid != key.oid);
            self.change.put(Object::Table(other));
        }
        for view in views {
            self.change.remove(view);
        }
        for oid in owned {
            self.forget_defaults_with(oid);
            self.forget_sequence(oid).await?;
        }
        self.release(table, None).await?;
        self.change.remove(table.id.0);
        Ok(())
    }

    /// Adds these views, and those over them, to what goes; their OIDs.
    fn views_that_go(
        &self,
        views: Vec<std::sync::Arc<telesto_sql_catalog::View>>,
        targets: &Targets,
        needs: &mut Dependents,
    ) -> Vec<u32> {
        let direct: Vec<_> =
            views.into_iter().filter(|view| !targets.views.contains(&view.oid)).collect();
        for view in &direct {
            needs.add(format!("view {}", self.shown_name(view.schema, &view.name)));
        }
        let mut oids: Vec<u32> = direct.iter().map(|view| view.oid).collect();
        for (view, on) in self.views_upon(&direct) {
            if !targets.views.contains(&view.oid) {
                needs.add_on(format!("view {}", self.shown_name(view.schema, &view.name)), on);
                oids.push(view.oid);
            }
        }
        oids
    }

    /// Drops the views over this one.
    pub(super) fn drop_views_on(&mut self, schema: u32, name: &str) {
        let direct = self.views_on(schema, name);
        let mut needs = Dependents::of(String::new());
        for view in self.views_that_go(direct, &Targets::default(), &mut needs) {
            self.change.remove(view);
        }
    }

    pub(super) fn drop_view(
        &mut self,
        view: &telesto_sql_catalog::View,
        targets: &Targets,
        cascade: bool,
    ) -> Result<()> {
        let gone: Vec<u32> = targets.tables.iter().map(|table| table.0).collect();
        let relation = Relation::View(std::sync::Arc::new(view.clone()));
        let shown = self.shown_name(view.schema, &view.name);
        let mut needs = Dependents::of(format!("view {shown}"));
        let views = self.views_that_go(self.views_on(view.schema, &view.name), targets, &mut needs);
        let policies = self.policies_that_go(&relation, &views, &gone, &mut needs);
        needs.settle(cascade, &self.context.notices)?;
        self.remove_policies(policies);
        for view in views {
            self.change.remove(view);
        }
        self.change.remove(view.oid);
        Ok(())
    }

    /// Columns whose defaults use the sequence: table, position, and how PostgreSQL calls it.
    fn defaults_with(&self, sequence: u32) -> Vec<(TableId, usize, String)> {
        let by_oid = format!("'{sequence}'");
        let mut out = Vec::new();
        for table in self.catalog().tables() {
            for (at, column) in table.visible_columns() {
                if column.default.as_ref().is_some_and(|text| text.contains(&by_oid)) {
                    let shown = self.shown_name(table.schema, &table.name);
                    let text = format!("default value for column {} of table {shown}", column.name);
                    out.push((table.id, at, text));
                }
            }
        }
        out
    }

    fn forget_defaults_with(&mut self, sequence: u32) {
        for (table, at, _) in self.defaults_with(sequence) {
            if let Some(table) = self.catalog().table(table) {
                let mut table = (**table).clone();
                table.columns[at].default = None;
                self.change.put(Object::Table(table));
            }
        }
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
        for (_, _, text) in self.defaults_with(sequence.oid) {
            needs.add(text);
        }
        let views = self.views_that_go(
            self.views_on(sequence.schema, &sequence.name),
            &Targets::default(),
            &mut needs,
        );
        needs.settle(cascade, &self.context.notices)?;
        for view in views {
            self.change.remove(view);
        }
        self.forget_defaults_with(sequence.oid);
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
            let Some(other) = self.catalog().table(other).cloned() else { continue };
            let mut other = (*other).clone();
            other.foreign_keys.retain(|foreign| foreign.oid != key.oid);
            self.change.put(Object::Table(other));
        }
        Ok(())
    }

    pub(super) async fn drop_schema(
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
            return Err(Error::new(
                SqlState::DEPENDENT_OBJECTS_STILL_EXIST,
                format!("cannot drop schema {name} because it is required by the database system"),
            ));
        }
        let tables: Vec<_> =
            self.catalog().tables().filter(|t| t.schema == schema.oid).cloned().collect();
        let sequences: Vec<_> =
            self.catalog().sequences().filter(|s| s.schema == schema.oid).cloned().collect();
        let views: Vec<_> =
            self.catalog().views().filter(|v| v.schema == schema.oid).cloned().collect();
        let types: Vec<_> =
            self.catalog().user_types().filter(|t| t.schema == schema.oid).cloned().collect();
        let mut needs = Dependents::of(format!("schema {name}"));
        let targets = Targets {
            tables: tables.iter().map(|t| t.id).collect(),
            views: views.iter().map(|v| v.oid).collect(),
        };
        // In the order they were made, as PostgreSQL tells them.
        let mut members: Vec<(u32, String)> = Vec::new();
        for table in &tables {
            let shown = self.shown_name(table.schema, &table.name);
            members.push((table.id.0, format!("table {shown}")));
        }
        for sequence in &sequences {
            if sequence.owned_by.is_none() {
                let shown = self.shown_name(sequence.schema, &sequence.name);
                members.push((sequence.oid, format!("sequence {shown}")));
            }
        }
        for view in &views {
            let shown = self.shown_name(view.schema, &view.name);
            members.push((view.oid, format!("view {shown}")));
        }
        for ty in &types {
            members.push((ty.oid, format!("type {}", self.shown_name(ty.schema, &ty.name))));
        }
        members.sort();
        for (_, member) in members {
            needs.add(member);
        }
        let mut others = Vec::new();
        for table in &tables {
            let on = format!("table {}", self.shown_name(table.schema, &table.name));
            for (other, key) in self.catalog().referencing(table.id) {
                if !targets.tables.contains(other)
                    && let Some(other) = self.catalog().table(*other)
                {
                    let other = self.shown_name(other.schema, &other.name);
                    needs.add_on(format!("constraint {} on table {other}", key.name), on.clone());
                }
            }
            let direct = self.views_on(table.schema, &table.name);
            others.extend(self.views_that_go(direct, &targets, &mut needs));
        }
        needs.settle(cascade, &self.context.notices)?;
        for view in others {
            self.change.remove(view);
        }
        for view in views {
            self.change.remove(view.oid);
        }
        // What goes has been told: the tables themselves say nothing more.
        for table in tables {
            for (other, key) in self.catalog().referencing(table.id).to_vec() {
                let Some(other) = self.catalog().table(other).cloned() else { continue };
                let mut other = (*other).clone();
                other.foreign_keys.retain(|foreign| foreign.oid != key.oid);
                self.change.put(Object::Table(other));
            }
            self.drop_table(&table, &targets, true).await?;
        }
        for sequence in sequences {
            if self.catalog().sequence(sequence.oid).is_some() {
                self.forget_defaults_with(sequence.oid);
                self.forget_sequence(sequence.oid).await?;
            }
        }
        for ty in types {
            self.remove_type(&ty, true).await?;
        }
        self.change.remove(schema.oid);
        Ok(())
    }

    /// Removes a table's rows: few at once, many by giving the table another place.
    async fn empty(&mut self, table: &Table) -> Result<()> {
        let large =
            !telesto_sql_catalog::temp::is_temporary(table.id.0) && self.is_large(table, 0).await?;
        // Rows are deleted by who writes them; another region's are left behind with their storage, which is a definition.
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
