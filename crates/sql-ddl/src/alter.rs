//! ALTER TABLE, INDEX, SEQUENCE and VIEW.
//!
//! # Invariants
//! The actions of one ALTER TABLE run in PostgreSQL's passes, whatever order they are written in:
//! what is dropped goes first, then types, then new columns, then constraints.

use super::dependents::Dependents;
use super::going::Going;
use super::index::uses_column;
use super::keys::forget_comments;
use super::names::{fold, split, undefined_column, undefined_table};
use super::{After, Ddl};
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{Generated, Index, Relation, Table};
use telesto_sql_expr::cast::cast;
use telesto_sql_expr::{CastContext, EvalContext};
use telesto_sql_parser::definition::{Action, ColumnChange, Kind, RowSecurityChange};
use telesto_sql_parser::sqlparser::ast::{ColumnDef, Ident, ObjectName, TableConstraint};
use telesto_sql_plan::query;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};

pub(super) fn no_constraint(name: &str, table: &Table) -> Error {
    Error::new(
        SqlState::UNDEFINED_OBJECT,
        format!("constraint \"{name}\" of relation \"{}\" does not exist", table.name),
    )
}

/// The pass in which columns get other types.
const TYPES: u8 = 1;

/// PostgreSQL's pass of an action.
fn pass(action: &Action) -> u8 {
    match action {
        Action::DropColumn { .. } | Action::DropConstraint { .. } => 0,
        Action::Column { change, .. } => match change {
            ColumnChange::DropDefault
            | ColumnChange::DropNotNull
            | ColumnChange::DropExpression { .. }
            | ColumnChange::DropIdentity { .. } => 0,
            ColumnChange::Type { .. } => TYPES,
            ColumnChange::SetNotNull | ColumnChange::SetIdentity { .. } => 6,
            ColumnChange::SetDefault(_) | ColumnChange::AddIdentity { .. } => 9,
            ColumnChange::Nothing => 10,
        },
        Action::AddColumn { .. } => 4,
        Action::AddConstraint { constraint, .. } => match &**constraint {
            TableConstraint::Check(_) => 5,
            TableConstraint::ForeignKey(_) => 9,
            _ => 7,
        },
        _ => 10,
    }
}

impl Ddl<'_> {
    pub(super) async fn alter(
        &mut self,
        kind: Kind,
        if_exists: bool,
        name: &ObjectName,
        actions: &[Action],
    ) -> Result<()> {
        let found = if if_exists { self.find_if_there(name)? } else { self.find(name)? };
        let Some(found) = found else {
            if if_exists {
                self.context
                    .notices
                    .notice(format!("relation \"{}\" does not exist, skipping", split(name)?.1));
                return Ok(());
            }
            return Err(undefined_table(name));
        };
        let fits = match (kind, &found) {
            (Kind::Table, _)
            | (Kind::Index, Relation::Index(..))
            | (Kind::Sequence, Relation::Sequence(_))
            | (Kind::View, Relation::View(_)) => true,
            // PostgreSQL renames anything in the name of an index.
            (Kind::Index, _) => matches!(actions, [Action::RenameTo(_)]),
            _ => false,
        };
        if !fits {
            let word = match kind {
                Kind::Table => "a table",
                Kind::Index => "an index",
                Kind::Sequence => "a sequence",
                Kind::View => "a view",
            };
            return Err(Error::new(
                SqlState::WRONG_OBJECT_TYPE,
                format!("\"{}\" is not {word}", split(name)?.1),
            ));
        }
        self.need_owner_of(&found)?;
        match found {
            Relation::Table(table) => self.alter_table((*table).clone(), actions).await,
            found => {
                for action in actions {
                    self.alter_other(&found, action)?;
                }
                Ok(())
            }
        }
    }

    async fn alter_table(&mut self, mut table: Table, actions: &[Action]) -> Result<()> {
        self.change.define_temporary(telesto_sql_catalog::temp::is_temporary(table.id.0));
        let mut ordered: Vec<&Action> = actions.iter().collect();
        ordered.sort_by_key(|action| pass(action));
        let mut retyped = Vec::new();
        for action in ordered {
            // All columns have their new types now.
            if pass(action) > TYPES && !retyped.is_empty() {
                self.recheck_foreign_keys(&table, &std::mem::take(&mut retyped))?;
            }
            self.alter_step(&mut table, action).await?;
            forget_comments(&mut table);
            self.change.put(Object::Table(table.clone()));
            if let Action::Column { name, change: ColumnChange::Type { .. } } = action {
                retyped.extend(table.column_position(&fold(name)));
            }
        }
        self.recheck_foreign_keys(&table, &retyped)
    }

    /// An action on a view, a sequence or an index.
    fn alter_other(&mut self, relation: &Relation, action: &Action) -> Result<()> {
        match action {
            Action::Settings(settings)
                if settings.iter().any(|(name, _)| name.starts_with("telesto.")) =>
            {
                Err(Error::new(
                    SqlState::WRONG_OBJECT_TYPE,
                    "telesto.curated, telesto.home, telesto.key and telesto.regions are settings of tables",
                )
                .hint("ALTER TABLE … SET the table's; its indexes go with it."))
            }
            Action::Effectless(action) => Self::effectless(relation, action),
            Action::Settings(_) => Ok(()),
            Action::RenameTo(name) => {
                self.may_make_in(relation)?;
                self.rename_relation(relation, &fold(name))
            }
            Action::SetSchema(schema) => self.set_schema(relation, &fold(schema)),
            Action::OwnerTo(to) => self.give_relation(relation, to),
            Action::ViewOptions { invoker, barrier, check } => match relation {
                Relation::View(view) => {
                    let mut view = (**view).clone();
                    view.security_invoker = invoker.unwrap_or(view.security_invoker);
                    view.security_barrier = barrier.unwrap_or(view.security_barrier);
                    if let Some(check) = check {
                        view.check_option =
                            check.as_deref().map(super::view_options::check_option).transpose()?;
                        self.may_check(&view)?;
                    }
                    self.change.put(Object::View(view));
                    Ok(())
                }
                _ => Err(Error::unsupported("options of a view of anything else")),
            },
            Action::RenameColumn { from, to } => match relation {
                Relation::View(view) => self.rename_view_column(view, &fold(from), &fold(to)),
                _ => Err(Error::new(
                    SqlState::WRONG_OBJECT_TYPE,
                    "cannot rename columns of this kind of relation",
                )),
            },
            Action::Unsupported(what) => Err(Error::unsupported(what)),
            Action::Column { change: ColumnChange::SetDefault(_), .. } => {
                Err(Error::unsupported("a default of a view's column"))
            }
            _ => {
                let (name, kind) = match relation {
                    Relation::View(view) => (&view.name, "views"),
                    Relation::Sequence(sequence) => (&sequence.name, "sequences"),
                    Relation::Index(_, index) => (&index.name, "indexes"),
                    Relation::Table(table) => (&table.name, "tables"),
                };
                Err(Error::new(
                    SqlState::WRONG_OBJECT_TYPE,
                    format!("ALTER action cannot be performed on relation \"{name}\""),
                )
                .detail(format!("This operation is not supported for {kind}.")))
            }
        }
    }

    async fn alter_step(&mut self, table: &mut Table, action: &Action) -> Result<()> {
        match action {
            Action::Effectless(action) => {
                Self::effectless(&Relation::Table(std::sync::Arc::new(table.clone())), action)
            }
            Action::Settings(settings) => {
                self.curate(table, settings)?;
                self.place(table, settings).await?;
                self.encrypt(table, settings, false).await
            }
            Action::Unsupported(what) => Err(Error::unsupported(what)),
            Action::AddColumn { if_not_exists, definition } => {
                self.alter_add_column(table, definition, *if_not_exists).await
            }
            Action::DropColumn { if_exists, name, cascade } => {
                self.alter_drop_column(table, name, *if_exists, *cascade).await
            }
            Action::Column { name, change } => {
                let name = fold(name);
                let position =
                    table.column_position(&name).ok_or_else(|| undefined_column(&name, table))?;
                self.alter_column(table, position, change).await
            }
            Action::AddConstraint { constraint, not_valid } => {
                self.add_constraint(table, constraint, false, *not_valid).await
            }
            Action::DropConstraint { if_exists, name, cascade } => {
                self.drop_constraint(table, &fold(name), *if_exists, *cascade).await
            }
            Action::AlterConstraint { name, deferrable, deferred } => {
                self.alter_constraint(table, &fold(name), *deferrable, *deferred)
            }
            Action::ValidateConstraint(name) => self.validate_constraint(table, &fold(name)),
            Action::OwnerTo(to) => {
                let relation = Relation::Table(std::sync::Arc::new(table.clone()));
                self.give_relation(&relation, to)?;
                self.reread(table)
            }
            Action::RowSecurity(change) => {
                let security = &mut table.row_security;
                match change {
                    RowSecurityChange::Enable => security.enabled = true,
                    RowSecurityChange::Disable => security.enabled = false,
                    RowSecurityChange::Force => security.forced = true,
                    RowSecurityChange::NoForce => security.forced = false,
                }
                Ok(())
            }
            Action::ViewOptions { .. } => {
                Err(Error::unsupported("options of a view of anything else"))
            }
            Action::RenameTo(name) => {
                self.may_make_in(&Relation::Table(std::sync::Arc::new(table.clone())))?;
                self.rename_relation(
                    &Relation::Table(std::sync::Arc::new(table.clone())),
                    &fold(name),
                )?;
                self.reread(table)
            }
            Action::SetSchema(schema) => {
                self.set_schema(
                    &Relation::Table(std::sync::Arc::new(table.clone())),
                    &fold(schema),
                )?;
                self.reread(table)
            }
            Action::RenameColumn { from, to } => self.rename_column(table, from, to),
            Action::RenameConstraint { from, to } => self.rename_constraint(table, from, to),
        }
    }

    /// Takes the table as the catalog under way has it.
    pub(super) fn reread(&self, table: &mut Table) -> Result<()> {
        *table = (**self
            .catalog()
            .table(table.id)
            .ok_or_else(|| Error::internal("an altered table is gone"))?)
        .clone();
        Ok(())
    }

    async fn alter_add_column(
        &mut self,
        table: &mut Table,
        definition: &ColumnDef,
        if_not_exists: bool,
    ) -> Result<()> {
        let name = fold(&definition.name);
        if table.column_position(&name).is_some() {
            let message =
                format!("column \"{name}\" of relation \"{}\" already exists", table.name);
            if if_not_exists {
                self.context.notices.skipped(SqlState::DUPLICATE_COLUMN, &message);
                return Ok(());
            }
            return Err(Error::new(SqlState::DUPLICATE_COLUMN, message));
        }
        self.policies_allow_name(table, &name)?;
        self.keep_views_of(table, &name).await?;
        let before = table.clone();
        let mut constraints = Vec::new();
        self.add_column(table, definition, &mut constraints)?;
        // Its sequence must be known to what follows.
        self.change.put(Object::Table(table.clone()));
        let position = table.columns.len() - 1;
        self.check_column(table, position)?;
        let column = &table.columns[position];
        let steady = match (&column.default, &column.generated) {
            (Some(text), None) if column.domain.is_none() && !self.default_is_volatile(text)? => {
                Some(text.clone())
            }
            _ => None,
        };
        if let Some(text) = steady {
            let (columns, rows) = query(self.context, &format!("SELECT {text}")).await?;
            let value = rows.collect().await?.pop().and_then(|mut row| row.pop());
            let column = &mut table.columns[position];
            if let (Some(value), Some(from)) = (value, columns.first()) {
                let from = if from.ty == SqlType::Text { &SqlType::Unknown } else { &from.ty };
                let eval = EvalContext::executing(self.context);
                let value = cast(value, from, &column.ty, CastContext::Assignment, &eval)?;
                // Stored in the form that any session reads the same.
                let plain = telesto_sql_types::TextStyle::default();
                column.missing = (!value.is_null()).then(|| value.to_text(&column.ty, &plain));
            }
            if column.not_null && column.missing.is_none() {
                self.require_no_nulls(table, position);
            }
        } else if column.default.is_some() || column.generated.is_some() || column.domain.is_some()
        {
            // Another value for every row.
            self.rewrite_from(table, before);
        } else if column.not_null {
            self.require_no_nulls(table, position);
        }
        self.change.put(Object::Table(table.clone()));
        for constraint in &constraints {
            self.add_constraint(table, constraint, false, false).await?;
        }
        Ok(())
    }

    pub(super) fn require_no_nulls(&mut self, table: &Table, position: usize) {
        let column = &table.columns[position];
        self.after.push(After::Empty(
            vec![table.id],
            format!(
                "SELECT 1 FROM {} WHERE {} IS NULL LIMIT 1",
                self.qualified(table),
                super::names::quote(&column.name)
            ),
            Error::new(
                SqlState::NOT_NULL_VIOLATION,
                format!(
                    "column \"{}\" of relation \"{}\" contains null values",
                    column.name, table.name
                ),
            )
            .column(column.name.clone()),
        ));
    }

    pub(super) async fn alter_drop_column(
        &mut self,
        table: &mut Table,
        name: &Ident,
        if_exists: bool,
        cascade: bool,
    ) -> Result<()> {
        let name = fold(name);
        let Some(position) = table.column_position(&name) else {
            if if_exists {
                self.context.notices.notice(format!(
                    "column \"{name}\" of relation \"{}\" does not exist, skipping",
                    table.name
                ));
                return Ok(());
            }
            return Err(undefined_column(&name, table));
        };
        let uses = |index: &Index| {
            index.include.contains(&position)
                || index.columns.iter().any(|column| column.column == position)
        };
        self.drop_what_needs_column(table, position, cascade).await?;
        let mut indexes = Vec::new();
        for index in table.known_indexes().filter(|i| i.id != 0) {
            if uses_column(table, index, position)? {
                indexes.push(index.id);
            }
        }
        for index in indexes {
            self.remove_index(table, index, cascade).await?;
            table.indexes.retain(|i| i.id != index);
            table.building.retain(|b| b.index.id != index);
        }
        if table.primary.as_ref().is_some_and(uses) {
            self.release_key(table, 0, cascade)?;
            self.rewrite(table);
            table.primary = None;
        }
        self.reread_own_keys(table);
        table.foreign_keys.retain(|key| !key.columns.contains(&position));
        let checks = std::mem::take(&mut table.checks);
        for check in checks {
            let expr = super::parse_expr(&check.expression)?;
            if !super::constraint::columns_in(&expr, table).contains(&position) {
                table.checks.push(check);
            }
        }
        let owned: Vec<u32> = self
            .catalog()
            .sequences()
            .filter(|s| s.owned_by == Some((table.id, position)))
            .map(|s| s.oid)
            .collect();
        for oid in owned {
            self.forget_sequence(oid).await?;
        }
        self.drop_in_views(table, position);
        let column = &mut table.columns[position];
        column.dropped = true;
        column.name = format!("........pg.dropped.{}........", column.id);
        column.not_null = false;
        column.default = None;
        column.generated = None;
        column.missing = None;
        Ok(())
    }

    /// Foreign keys of the table to itself may have gone with a key of it.
    fn reread_own_keys(&self, table: &mut Table) {
        if let Some(current) = self.catalog().table(table.id) {
            table
                .foreign_keys
                .retain(|key| current.foreign_keys.iter().any(|other| other.oid == key.oid));
        }
    }

    /// Generated columns and views that use a column: refused, or dropped with it.
    async fn drop_what_needs_column(
        &mut self,
        table: &mut Table,
        position: usize,
        cascade: bool,
    ) -> Result<()> {
        let name = table.columns[position].name.clone();
        let shown = self.shown_name(table.schema, &table.name);
        let mut needs = Dependents::of(format!("column {name} of table {shown}"));
        let mut generated = Vec::new();
        for (at, column) in table.visible_columns() {
            if let Some(Generated::Stored(text)) = &column.generated
                && at != position
                && super::constraint::columns_in(&super::parse_expr(text)?, table)
                    .contains(&position)
            {
                needs.add(format!("column {} of table {shown}", column.name));
                generated.push(Ident::with_quote('"', column.name.clone()));
            }
        }
        for (child, key) in self.catalog().referencing(table.id) {
            if key.referenced_columns.contains(&position)
                && !(*child == table.id && key.columns.contains(&position))
                && let Some(child) = self.catalog().table(*child)
            {
                let child = self.shown_name(child.schema, &child.name);
                needs.add(format!("constraint {} on table {child}", key.name));
            }
        }
        let mut going = Going::default();
        self.add_going_with_column(table, position, (&mut needs, &mut going)).await?;
        needs.settle(cascade, &self.context.notices)?;
        self.change.put(Object::Table(table.clone()));
        self.remove_going(going).await?;
        self.reread(table)?;
        for column in generated {
            Box::pin(self.alter_drop_column(table, &column, true, true)).await?;
        }
        let foreign: Vec<_> = self
            .catalog()
            .referencing(table.id)
            .iter()
            .filter(|(_, key)| key.referenced_columns.contains(&position))
            .map(|(child, key)| (*child, key.oid))
            .collect();
        for (child, oid) in foreign {
            if child == table.id {
                table.foreign_keys.retain(|key| key.oid != oid);
                continue;
            }
            self.remove_foreign_key(child, oid);
        }
        self.change.put(Object::Table(table.clone()));
        Ok(())
    }

    async fn drop_constraint(
        &mut self,
        table: &mut Table,
        name: &str,
        if_exists: bool,
        cascade: bool,
    ) -> Result<()> {
        let before = (table.checks.len(), table.foreign_keys.len());
        table.checks.retain(|check| check.name != name);
        table.foreign_keys.retain(|key| key.name != name);
        if before != (table.checks.len(), table.foreign_keys.len()) {
            return Ok(());
        }
        if table.primary.as_ref().is_some_and(|primary| primary.name == name) {
            let shown = self.shown_name(table.schema, &table.name);
            let mut needs = Dependents::of(format!("constraint {name} on table {shown}"));
            let mut going = Going::default();
            self.add_going_with_primary(table, (&mut needs, &mut going)).await?;
            needs.settle(cascade, &self.context.notices)?;
            self.change.put(Object::Table(table.clone()));
            self.remove_going(going).await?;
            self.reread(table)?;
            self.release_key(table, 0, cascade)?;
            self.reread_own_keys(table);
            self.rewrite(table);
            table.primary = None;
            return Ok(());
        }
        let index = table.indexes.iter().find(|i| i.name == name && i.constraint_oid.is_some());
        if let Some(id) = index.map(|index| index.id) {
            self.remove_index(table, id, cascade).await?;
            self.reread_own_keys(table);
            table.indexes.retain(|i| i.id != id);
            return Ok(());
        }
        if if_exists {
            self.context.notices.notice(format!(
                "constraint \"{name}\" of relation \"{}\" does not exist, skipping",
                table.name
            ));
            return Ok(());
        }
        Err(no_constraint(name, table))
    }
}
