//! DROP SCHEMA.
//!
//! # Invariants
//! All that is in the schema goes, and what depends on any of it: told in one go, in the order in
//! which it was made.
//!
//! # On failure
//! 3F000, 2BP01; the caller undoes what was removed before an error.

use super::Ddl;
use super::dependents::Dependents;
use super::going::{Going, Targets};
use super::names::split;
use telesto_sql_catalog::Relation;
use telesto_sql_parser::sqlparser::ast::ObjectName;
use telesto_sql_types::error::{Error, Result, SqlState};

impl Ddl<'_> {
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
            types: types.iter().map(|t| t.oid).collect(),
            column: None,
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
        let mut going = Going::default();
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
        }
        let relations = tables.iter().cloned().map(Relation::Table);
        let relations = relations.chain(views.iter().cloned().map(Relation::View));
        for relation in relations.chain(sequences.iter().cloned().map(Relation::Sequence)) {
            self.add_going(&relation, &targets, (&mut needs, &mut going))?;
        }
        needs.settle(cascade, &self.context.notices)?;
        self.remove_going(going).await?;
        for view in views {
            self.change.remove(view.oid);
        }
        // What goes has been told: the tables themselves say nothing more.
        for table in tables {
            for (other, key) in self.catalog().referencing(table.id).to_vec() {
                self.remove_foreign_key(other, key.oid);
            }
            self.drop_table(&table, &targets, true).await?;
        }
        for sequence in sequences {
            if self.catalog().sequence(sequence.oid).is_some() {
                self.forget_sequence(sequence.oid).await?;
            }
        }
        for ty in types {
            self.remove_type(&ty, true).await?;
        }
        self.change.remove(schema.oid);
        Ok(())
    }
}
