//! ALTER TABLE and ALTER INDEX.

use super::constraint::columns_in;
use super::names::{fold, quote, split, undefined_column, undefined_table};
use super::{After, Ddl};
use crate::catalog::store::Object;
use crate::catalog::{Generated, Relation, Table};
use crate::error::{Error, Result, SqlState};
use crate::expr::bind::castable;
use crate::expr::cast::cast;
use crate::expr::{CastContext, EvalContext};
use crate::plan::query;
use crate::sqlparser::ast::{
    AlterColumnOperation, AlterIndexOperation, AlterTable, AlterTableOperation, ColumnDef,
    DropBehavior, Expr, Ident, ObjectName, RenameTableNameKind,
};
use crate::types::SqlType;
use crate::types::parse::sql_type;

fn no_constraint(name: &str, table: &Table) -> Error {
    Error::new(
        SqlState::UNDEFINED_OBJECT,
        format!("constraint \"{name}\" of relation \"{}\" does not exist", table.name),
    )
}

fn is_cascade(behavior: Option<&DropBehavior>) -> bool {
    matches!(behavior, Some(DropBehavior::Cascade))
}

/// Whether a default gives the same value for every row, and may be computed once.
fn is_steady(expr: &Expr) -> bool {
    use crate::sqlparser::ast::visit_expressions;
    use std::ops::ControlFlow;
    let volatile = ["nextval", "random", "clock_timestamp", "gen_random_uuid", "timeofday"];
    let found = visit_expressions(expr, |expr| match expr {
        Expr::Function(f)
            if volatile
                .contains(&f.name.to_string().to_lowercase().rsplit('.').next().unwrap_or("")) =>
        {
            ControlFlow::Break(())
        }
        Expr::Subquery(_) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    found.is_continue()
}

impl Ddl<'_> {
    pub(super) async fn alter_table(&mut self, alter: &AlterTable) -> Result<()> {
        let found = self.find(&alter.name)?;
        let mut table = match found {
            Some(Relation::Table(table)) => (*table).clone(),
            // pg_dump alters owners of sequences and views with ALTER TABLE.
            Some(relation) => return self.alter_relation(&relation, alter),
            None if alter.if_exists => {
                self.context.notices.notice(format!(
                    "relation \"{}\" does not exist, skipping",
                    split(&alter.name)?.1
                ));
                return Ok(());
            }
            None => return Err(undefined_table(&alter.name)),
        };
        for operation in &alter.operations {
            self.alter_step(&mut table, operation).await?;
            self.change.put(Object::Table(table.clone()));
        }
        Ok(())
    }

    fn alter_relation(&mut self, relation: &Relation, alter: &AlterTable) -> Result<()> {
        for operation in &alter.operations {
            match (operation, relation) {
                (AlterTableOperation::OwnerTo { .. }, _) => {}
                (AlterTableOperation::RenameTable { table_name }, Relation::Sequence(sequence)) => {
                    let mut sequence = (**sequence).clone();
                    sequence.name = self.new_name(sequence.schema, table_name)?;
                    self.change.put(Object::Sequence(sequence));
                }
                _ => return Err(Error::unsupported(format!("ALTER TABLE … {operation}"))),
            }
        }
        Ok(())
    }

    fn new_name(&self, schema: u32, name: &RenameTableNameKind) -> Result<String> {
        let (RenameTableNameKind::As(name) | RenameTableNameKind::To(name)) = name;
        let (_, name) = split(name)?;
        self.check_free(schema, &name, false)?;
        Ok(name)
    }

    async fn alter_step(
        &mut self,
        table: &mut Table,
        operation: &AlterTableOperation,
    ) -> Result<()> {
        match operation {
            AlterTableOperation::AddColumn { if_not_exists, column_def, .. } => {
                self.alter_add_column(table, column_def, *if_not_exists).await
            }
            AlterTableOperation::DropColumn { column_names, if_exists, drop_behavior, .. } => {
                for name in column_names {
                    self.alter_drop_column(
                        table,
                        name,
                        *if_exists,
                        is_cascade(drop_behavior.as_ref()),
                    )
                    .await?;
                }
                Ok(())
            }
            AlterTableOperation::RenameColumn { old_column_name, new_column_name } => {
                self.rename_column(table, old_column_name, new_column_name)
            }
            AlterTableOperation::RenameTable { table_name } => {
                table.name = self.new_name(table.schema, table_name)?;
                Ok(())
            }
            AlterTableOperation::RenameConstraint { old_name, new_name } => {
                let (old, new) = (fold(old_name), fold(new_name));
                let names = table
                    .checks
                    .iter_mut()
                    .map(|c| &mut c.name)
                    .chain(table.foreign_keys.iter_mut().map(|c| &mut c.name))
                    .chain(table.primary.iter_mut().map(|c| &mut c.name))
                    .chain(table.indexes.iter_mut().map(|c| &mut c.name));
                match names.into_iter().find(|name| **name == old) {
                    Some(name) => *name = new,
                    None => return Err(no_constraint(&old, table)),
                }
                Ok(())
            }
            AlterTableOperation::AddConstraint { constraint, not_valid } => {
                self.add_constraint(table, constraint, false, *not_valid)
            }
            AlterTableOperation::DropConstraint { if_exists, name, drop_behavior } => {
                let cascade = is_cascade(drop_behavior.as_ref());
                self.drop_constraint(table, &fold(name), *if_exists, cascade).await
            }
            AlterTableOperation::DropPrimaryKey { drop_behavior } => {
                let name = table.primary.as_ref().map(|p| p.name.clone()).unwrap_or_default();
                self.drop_constraint(table, &name, false, is_cascade(drop_behavior.as_ref())).await
            }
            AlterTableOperation::ValidateConstraint { name } => {
                let name = fold(name);
                let target = self.qualified(table);
                // Never a success that checked nothing.
                let known = table.checks.iter().any(|check| check.name == name)
                    || table.foreign_keys.iter().any(|key| key.name == name);
                if !known && table.all_indexes().any(|index| index.unique && index.name == name) {
                    let message = format!(
                        "constraint \"{name}\" of relation \"{}\" is not a foreign key or check constraint",
                        table.name
                    );
                    return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, message));
                }
                if !known {
                    return Err(no_constraint(&name, table));
                }
                if table.foreign_keys.iter().any(|key| key.name == name && !key.validated) {
                    return Err(Error::unsupported("VALIDATE CONSTRAINT of a foreign key"));
                }
                for check in &mut table.checks {
                    if check.name == name && !check.validated {
                        check.validated = true;
                        let sql = format!(
                            "SELECT 1 FROM {target} WHERE NOT ({}) LIMIT 1",
                            check.expression
                        );
                        let error = Error::new(
                            SqlState::CHECK_VIOLATION,
                            format!("check constraint \"{name}\" is violated by some row"),
                        );
                        self.after.push(After::Empty(sql, error.constraint(name.clone())));
                    }
                }
                Ok(())
            }
            AlterTableOperation::AlterColumn { column_name, op } => {
                let name = fold(column_name);
                let position =
                    table.column_position(&name).ok_or_else(|| undefined_column(&name, table))?;
                self.alter_column(table, position, op)
            }
            AlterTableOperation::OwnerTo { .. }
            | AlterTableOperation::EnableRowLevelSecurity
            | AlterTableOperation::DisableRowLevelSecurity
            | AlterTableOperation::ReplicaIdentity { .. }
            | AlterTableOperation::ClusterBy { .. }
            | AlterTableOperation::SetOptionsParens { .. }
            | AlterTableOperation::DisableTrigger { .. }
            | AlterTableOperation::EnableTrigger { .. } => Ok(()),
            other => Err(Error::unsupported(format!("ALTER TABLE … {other}"))),
        }
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
                self.context.notices.notice(format!("{message}, skipping"));
                return Ok(());
            }
            return Err(Error::new(SqlState::DUPLICATE_COLUMN, message));
        }
        let mut constraints = Vec::new();
        self.add_column(table, definition, &mut constraints)?;
        let target = self.qualified(table);
        let Some(column) = table.columns.last_mut() else { return Ok(()) };
        let computed = column.default.is_some() || column.generated.is_some();
        let steady = match (&column.default, &column.generated) {
            (Some(text), None) => {
                let expr = definition.options.iter().find_map(|option| match &option.option {
                    crate::sqlparser::ast::ColumnOption::Default(expr) => Some(expr),
                    _ => None,
                });
                expr.is_some_and(is_steady).then(|| text.clone())
            }
            _ => None,
        };
        if let Some(text) = steady {
            let (columns, rows) = query(self.context, &format!("SELECT {text}")).await?;
            let value = rows.collect().await?.pop().and_then(|mut row| row.pop());
            if let (Some(value), Some(from)) = (value, columns.first()) {
                let from = if from.ty == SqlType::Text { &SqlType::Unknown } else { &from.ty };
                let eval = EvalContext::executing(self.context);
                let value = cast(value, from, &column.ty, CastContext::Assignment, &eval)?;
                // Stored in the form that any session reads the same.
                let plain = crate::types::TextStyle::default();
                column.missing = (!value.is_null()).then(|| value.to_text(&column.ty, &plain));
            }
        } else if computed {
            let assigned = quote(&name);
            self.after.push(After::Run(format!("UPDATE {target} SET {assigned} = DEFAULT")));
        }
        if column.not_null && column.missing.is_none() {
            self.require_no_nulls(table, table.columns.len() - 1);
        }
        self.change.put(Object::Table(table.clone()));
        for constraint in &constraints {
            self.add_constraint(table, constraint, false, false)?;
        }
        Ok(())
    }

    fn require_no_nulls(&mut self, table: &Table, position: usize) {
        let column = &table.columns[position];
        self.after.push(After::Empty(
            format!(
                "SELECT 1 FROM {} WHERE {} IS NULL LIMIT 1",
                self.qualified(table),
                quote(&column.name)
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

    async fn alter_drop_column(
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
        let uses = |index: &crate::catalog::Index| {
            index.columns.iter().any(|column| column.column == position)
        };
        let indexes: Vec<u32> = table.indexes.iter().filter(|i| uses(i)).map(|i| i.id).collect();
        for index in indexes {
            self.remove_index(table, index, cascade).await?;
            table.indexes.retain(|i| i.id != index);
        }
        if table.primary.as_ref().is_some_and(uses) {
            self.release_key(table, 0, cascade)?;
            self.rewrite(table);
            table.primary = None;
        }
        table.foreign_keys.retain(|key| !key.columns.contains(&position));
        let checks = std::mem::take(&mut table.checks);
        for check in checks {
            let expr = parse_expr(&check.expression)?;
            if !columns_in(&expr, table).contains(&position) {
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
        let column = &mut table.columns[position];
        column.dropped = true;
        column.name = format!("........pg.dropped.{}........", column.id);
        column.not_null = false;
        column.default = None;
        column.generated = None;
        column.missing = None;
        Ok(())
    }

    fn rename_column(&mut self, table: &mut Table, old: &Ident, new: &Ident) -> Result<()> {
        let (old, new) = (fold(old), fold(new));
        let position = table.column_position(&old).ok_or_else(|| undefined_column(&old, table))?;
        if table.column_position(&new).is_some() {
            return Err(Error::new(
                SqlState::DUPLICATE_COLUMN,
                format!("column \"{new}\" of relation \"{}\" already exists", table.name),
            ));
        }
        // Expressions are kept as text: rename inside them too.
        let rename = |text: &mut String| -> Result<()> {
            use crate::sqlparser::ast::visit_expressions_mut;
            let mut expr = parse_expr(text)?;
            let _ = visit_expressions_mut(&mut expr, |expr| {
                if let Expr::Identifier(ident) = expr
                    && fold(ident) == old
                {
                    *ident = Ident::with_quote('"', new.clone());
                }
                std::ops::ControlFlow::<()>::Continue(())
            });
            *text = expr.to_string();
            Ok(())
        };
        for check in &mut table.checks {
            rename(&mut check.expression)?;
        }
        for column in &mut table.columns {
            if let Some(Generated::Stored(text)) = &mut column.generated {
                rename(text)?;
            }
        }
        table.columns[position].name = new;
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
            self.release_key(table, 0, cascade)?;
            self.rewrite(table);
            table.primary = None;
            return Ok(());
        }
        let index = table.indexes.iter().find(|i| i.name == name && i.constraint_oid.is_some());
        if let Some(id) = index.map(|index| index.id) {
            self.remove_index(table, id, cascade).await?;
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

    fn alter_column(
        &mut self,
        table: &mut Table,
        position: usize,
        operation: &AlterColumnOperation,
    ) -> Result<()> {
        match operation {
            AlterColumnOperation::SetNotNull => {
                if !table.columns[position].not_null {
                    table.columns[position].not_null = true;
                    self.require_no_nulls(table, position);
                }
            }
            AlterColumnOperation::DropNotNull => {
                let in_key = table
                    .primary
                    .as_ref()
                    .is_some_and(|p| p.columns.iter().any(|c| c.column == position));
                if in_key {
                    return Err(Error::new(
                        SqlState::INVALID_TABLE_DEFINITION,
                        format!("column \"{}\" is in a primary key", table.columns[position].name),
                    ));
                }
                table.columns[position].not_null = false;
            }
            AlterColumnOperation::SetDefault { value } => {
                table.columns[position].default = Some(value.to_string());
            }
            AlterColumnOperation::DropDefault => table.columns[position].default = None,
            AlterColumnOperation::SetDataType { data_type, using, .. } => {
                if using.is_some() {
                    return Err(Error::unsupported("ALTER COLUMN … TYPE … USING")
                        .hint("Add a column, fill it by UPDATE, drop the old one and rename."));
                }
                let ty = sql_type(data_type)?;
                let column = &table.columns[position];
                if !castable(&column.ty, &ty, CastContext::Assignment) {
                    return Err(Error::new(
                        SqlState::DATATYPE_MISMATCH,
                        format!(
                            "column \"{}\" cannot be cast automatically to type {ty}",
                            column.name
                        ),
                    ));
                }
                self.rewrite(table);
                let column = &mut table.columns[position];
                column.ty = ty;
                column.missing = None;
            }
            AlterColumnOperation::AddGenerated { generated_as, sequence_options } => {
                let column = &table.columns[position];
                if column.default.is_some() || column.generated.is_some() {
                    return Err(Error::new(
                        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                        format!(
                            "column \"{}\" of relation \"{}\" already has a default value",
                            column.name, table.name
                        ),
                    ));
                }
                let (name, ty) = (column.name.clone(), column.ty.clone());
                let sequence = self.column_sequence(
                    table.schema,
                    (table.id, &table.name),
                    (position, &name),
                    &ty,
                    sequence_options.as_deref().unwrap_or(&[]),
                    true,
                )?;
                let by_default =
                    matches!(generated_as, Some(crate::sqlparser::ast::GeneratedAs::ByDefault));
                table.columns[position].generated = Some(if by_default {
                    Generated::IdentityByDefault(sequence.oid)
                } else {
                    Generated::IdentityAlways(sequence.oid)
                });
            }
        }
        Ok(())
    }

    pub(super) fn alter_index(
        &mut self,
        name: &ObjectName,
        operation: &AlterIndexOperation,
    ) -> Result<()> {
        let AlterIndexOperation::RenameIndex { index_name } = operation;
        let Some(Relation::Index(table, index)) = self.find(name)? else {
            return Err(undefined_table(name));
        };
        let (_, new) = split(index_name)?;
        self.check_free(table.schema, &new, false)?;
        let mut table = (*table).clone();
        for found in table.primary.iter_mut().chain(&mut table.indexes) {
            if found.oid == index.oid {
                found.name.clone_from(&new);
            }
        }
        self.change.put(Object::Table(table));
        Ok(())
    }
}

fn parse_expr(text: &str) -> Result<Expr> {
    use crate::sqlparser::dialect::PostgreSqlDialect;
    use crate::sqlparser::parser::Parser;
    Parser::new(&PostgreSqlDialect {})
        .try_with_sql(text)
        .and_then(|mut parser| parser.parse_expr())
        .map_err(|error| Error::corrupt(format!("an expression in the catalog: {error}")))
}
