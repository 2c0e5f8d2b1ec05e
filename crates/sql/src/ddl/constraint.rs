//! Indexes and constraints, for CREATE TABLE, ALTER TABLE and CREATE INDEX.

use telesto_common::key::Direction;

use super::names::{fold, free_name, quote, split, undefined_column};
use super::{After, Ddl};
use crate::catalog::store::Object;
use crate::catalog::{
    CheckConstraint, ForeignKey, ForeignKeyAction, ForeignKeyMatch, Index, IndexColumn, Table,
};
use crate::codec::key::is_key_type;
use crate::error::{Error, Result, SqlState};
use crate::sqlparser::ast::{
    ConstraintReferenceMatchKind, CreateIndex, DeferrableInitial, Expr, ForeignKeyConstraint,
    Ident, IndexColumn as AstIndexColumn, IndexType, ReferentialAction, TableConstraint,
};

fn action(action: Option<ReferentialAction>) -> ForeignKeyAction {
    match action {
        None | Some(ReferentialAction::NoAction) => ForeignKeyAction::NoAction,
        Some(ReferentialAction::Restrict) => ForeignKeyAction::Restrict,
        Some(ReferentialAction::Cascade) => ForeignKeyAction::Cascade,
        Some(ReferentialAction::SetNull) => ForeignKeyAction::SetNull,
        Some(ReferentialAction::SetDefault) => ForeignKeyAction::SetDefault,
    }
}

fn has_constraint(table: &Table, name: &str) -> bool {
    table.checks.iter().any(|c| c.name == name)
        || table.foreign_keys.iter().any(|c| c.name == name)
        || table.all_indexes().any(|i| i.constraint_oid.is_some() && i.name == name)
}

pub(super) fn column_of(table: &Table, name: &Ident) -> Result<usize> {
    let name = fold(name);
    table.column_position(&name).ok_or_else(|| {
        Error::new(
            SqlState::UNDEFINED_COLUMN,
            format!("column \"{name}\" named in key does not exist"),
        )
    })
}

impl Ddl<'_> {
    fn index_columns(&self, table: &Table, columns: &[AstIndexColumn]) -> Result<Vec<IndexColumn>> {
        columns
            .iter()
            .map(|given| {
                let Expr::Identifier(name) = &given.column.expr else {
                    return Err(Error::unsupported("an index on an expression"));
                };
                let column = column_of(table, name)?;
                let ty = &table.columns[column].ty;
                if !is_key_type(ty) {
                    return Err(Error::new(
                        SqlState::UNDEFINED_OBJECT,
                        format!("data type {ty} has no default operator class for access method \"btree\""),
                    ));
                }
                let descending = given.column.options.asc == Some(false);
                if let Some(first) = given.column.options.nulls_first
                    && first != descending {
                        return Err(Error::unsupported(
                            "NULLS FIRST on an ascending or NULLS LAST on a descending index column",
                        ));
                    }
                let direction =
                    if descending { Direction::Descending } else { Direction::Ascending };
                Ok(IndexColumn { column, direction })
            })
            .collect()
    }

    pub(super) fn create_index(&mut self, create: &CreateIndex) -> Result<()> {
        let mut table = (*self.table(&create.table_name)?).clone();
        match &create.using {
            None | Some(IndexType::BTree | IndexType::Hash) => {}
            Some(other) => return Err(Error::unsupported(format!("access method {other}"))),
        }
        if create.predicate.is_some() {
            return Err(Error::unsupported("a partial index"));
        }
        if create.nulls_distinct == Some(false) {
            return Err(Error::unsupported("NULLS NOT DISTINCT"));
        }
        let columns = self.index_columns(&table, &create.columns)?;
        let name = match &create.name {
            Some(name) => split(name)?.1,
            None => {
                let list: Vec<_> =
                    columns.iter().map(|c| table.columns[c.column].name.as_str()).collect();
                self.relation_name(
                    table.schema,
                    &format!("{}_{}_idx", table.name, list.join("_")),
                    &[],
                )
            }
        };
        if !self.check_free(table.schema, &name, create.if_not_exists)? {
            return Ok(());
        }
        self.push_index(&mut table, name, columns, create.unique, false);
        self.change.put(Object::Table(table));
        Ok(())
    }

    /// Gives `table` a new place for its rows, to be filled from the old one when the catalog is written.
    pub(super) fn rewrite(&mut self, table: &mut Table) {
        let moved = |step: &After| matches!(step, After::Rewrite(id, _) if *id == table.id);
        if !self.after.iter().any(moved) {
            self.after.insert(0, After::Rewrite(table.id, Box::new(table.clone())));
            table.storage = telesto_common::TableId(self.change.oid());
        }
    }

    fn push_index(
        &mut self,
        table: &mut Table,
        name: String,
        columns: Vec<IndexColumn>,
        unique: bool,
        constraint: bool,
    ) {
        let id = table.next_index;
        table.next_index += 1;
        let oid = self.change.oid();
        let constraint_oid = constraint.then(|| self.change.oid());
        table.indexes.push(Index {
            oid,
            id,
            name,
            columns,
            unique,
            constraint_oid,
            predicate: None,
            comment: None,
        });
        self.after.push(After::Fill(table.id, id));
    }

    fn constraint_name(&self, table: &Table, given: Option<&Ident>, base: &str) -> Result<String> {
        match given {
            Some(name) => {
                let name = fold(name);
                if has_constraint(table, &name) {
                    return Err(Error::new(
                        SqlState::DUPLICATE_OBJECT,
                        format!(
                            "constraint \"{name}\" for relation \"{}\" already exists",
                            table.name
                        ),
                    ));
                }
                Ok(name)
            }
            None => Ok(free_name(|name| has_constraint(table, name), base)),
        }
    }

    /// Adds a constraint to `table`. `fresh`: the table has no rows yet.
    pub(super) fn add_constraint(
        &mut self,
        table: &mut Table,
        constraint: &TableConstraint,
        fresh: bool,
        not_valid: bool,
    ) -> Result<()> {
        match constraint {
            TableConstraint::PrimaryKey(key) => {
                if table.primary.is_some() {
                    return Err(Error::new(
                        SqlState::INVALID_TABLE_DEFINITION,
                        format!(
                            "multiple primary keys for table \"{}\" are not allowed",
                            table.name
                        ),
                    ));
                }
                let columns = self.index_columns(table, &key.columns)?;
                let base = format!("{}_pkey", table.name);
                let name = match key.name.as_ref() {
                    Some(name) => self.constraint_name(table, Some(name), &base)?,
                    None => self.relation_name(table.schema, &base, &[]),
                };
                self.check_free(table.schema, &name, false)?;
                for column in &columns {
                    table.columns[column.column].not_null = true;
                }
                let oid = self.change.oid();
                let constraint_oid = Some(self.change.oid());
                let index = Index {
                    oid,
                    id: 0,
                    name,
                    columns,
                    unique: true,
                    constraint_oid,
                    predicate: None,
                    comment: None,
                };
                if !fresh {
                    // Every row and index entry gets another key.
                    self.rewrite(table);
                }
                table.primary = Some(index);
            }
            TableConstraint::Unique(unique) => {
                let columns = self.index_columns(table, &unique.columns)?;
                let list: Vec<_> =
                    columns.iter().map(|c| table.columns[c.column].name.as_str()).collect();
                let base = format!("{}_{}_key", table.name, list.join("_"));
                let name = match unique.name.as_ref() {
                    Some(name) => self.constraint_name(table, Some(name), &base)?,
                    None => {
                        let taken: Vec<String> =
                            table.all_indexes().map(|i| i.name.clone()).collect();
                        self.relation_name(table.schema, &base, &taken)
                    }
                };
                self.check_free(table.schema, &name, false)?;
                self.push_index(table, name, columns, true, true);
            }
            TableConstraint::Check(check) => {
                let columns = columns_in(&check.expr, table);
                let base = match columns.as_slice() {
                    [one] => format!("{}_{}_check", table.name, table.columns[*one].name),
                    _ => format!("{}_check", table.name),
                };
                let name = self.constraint_name(table, check.name.as_ref(), &base)?;
                let expression = check.expr.to_string();
                if !fresh && !not_valid {
                    let target = self.qualified(table);
                    self.after.push(After::Empty(
                        format!("SELECT 1 FROM {target} WHERE NOT ({expression}) LIMIT 1"),
                        Error::new(
                            SqlState::CHECK_VIOLATION,
                            format!(
                                "check constraint \"{name}\" of relation \"{}\" is violated by some row",
                                table.name
                            ),
                        )
                        .constraint(name.clone()),
                    ));
                }
                let oid = self.change.oid();
                table.checks.push(CheckConstraint { oid, name, expression, validated: !not_valid });
            }
            TableConstraint::ForeignKey(key) => {
                self.add_foreign_key(table, key, fresh, not_valid)?;
            }
            other => return Err(Error::unsupported(format!("{other}"))),
        }
        Ok(())
    }

    pub(super) fn qualified(&self, table: &Table) -> String {
        format!("{}.{}", quote(self.catalog().schema_name(table.schema)), quote(&table.name))
    }

    fn add_foreign_key(
        &mut self,
        table: &mut Table,
        key: &ForeignKeyConstraint,
        fresh: bool,
        not_valid: bool,
    ) -> Result<()> {
        let columns = key
            .columns
            .iter()
            .map(|name| {
                column_of(table, name).map_err(|_| {
                    Error::new(
                        SqlState::UNDEFINED_COLUMN,
                        format!(
                            "column \"{}\" referenced in foreign key constraint does not exist",
                            fold(name)
                        ),
                    )
                })
            })
            .collect::<Result<Vec<_>>>()?;
        // A table may refer to itself before it is in the catalog.
        let itself = {
            let (schema, name) = split(&key.foreign_table)?;
            name == table.name
                && schema.is_none_or(|s| self.catalog().schema_name(table.schema) == s)
        };
        let other = if itself { table.clone() } else { (*self.table(&key.foreign_table)?).clone() };
        let referenced_columns: Vec<usize> = if key.referred_columns.is_empty() {
            let primary = other.primary.as_ref().ok_or_else(|| {
                Error::new(
                    SqlState::UNDEFINED_OBJECT,
                    format!("there is no primary key for referenced table \"{}\"", other.name),
                )
            })?;
            primary.columns.iter().map(|c| c.column).collect()
        } else {
            key.referred_columns
                .iter()
                .map(|name| {
                    let name = fold(name);
                    other.column_position(&name).ok_or_else(|| undefined_column(&name, &other))
                })
                .collect::<Result<_>>()?
        };
        if columns.len() != referenced_columns.len() {
            return Err(Error::new(
                SqlState::INVALID_FOREIGN_KEY,
                "number of referencing and referenced columns for foreign key disagree",
            ));
        }
        let mut wanted = referenced_columns.clone();
        wanted.sort_unstable();
        let referenced_index = other
            .all_indexes()
            .filter(|index| index.unique && index.predicate.is_none())
            .find(|index| {
                let mut have: Vec<_> = index.columns.iter().map(|c| c.column).collect();
                have.sort_unstable();
                have == wanted
            })
            .map(|index| index.id)
            .ok_or_else(|| {
                Error::new(
                    SqlState::INVALID_FOREIGN_KEY,
                    format!(
                        "there is no unique constraint matching given keys for referenced table \"{}\"",
                        other.name
                    ),
                )
            })?;
        let list: Vec<_> = columns.iter().map(|c| table.columns[*c].name.as_str()).collect();
        let base = format!("{}_{}_fkey", table.name, list.join("_"));
        let name = self.constraint_name(table, key.name.as_ref(), &base)?;
        for (column, referenced) in columns.iter().zip(&referenced_columns) {
            let (from, to) = (&table.columns[*column].ty, &other.columns[*referenced].ty);
            let both_string = from.is_string() && to.is_string();
            if !(from.same_base(to) || from.is_integer() && to.is_integer() || both_string) {
                return Err(Error::new(
                    SqlState::DATATYPE_MISMATCH,
                    format!("foreign key constraint \"{name}\" cannot be implemented"),
                )
                .detail(format!(
                    "Key columns \"{}\" and \"{}\" are of incompatible types: {from} and {to}.",
                    table.columns[*column].name, other.columns[*referenced].name
                )));
            }
        }
        if !fresh && !not_valid {
            self.check_foreign_rows(table, &other, &columns, &referenced_columns, &name);
        }
        let characteristics = key.characteristics.as_ref();
        let initially_deferred = characteristics
            .is_some_and(|c| matches!(c.initially, Some(DeferrableInitial::Deferred)));
        let oid = self.change.oid();
        table.foreign_keys.push(ForeignKey {
            oid,
            name,
            columns,
            referenced: other.id,
            referenced_columns,
            referenced_index,
            on_delete: action(key.on_delete),
            on_update: action(key.on_update),
            match_kind: match key.match_kind {
                Some(ConstraintReferenceMatchKind::Full) => ForeignKeyMatch::Full,
                Some(ConstraintReferenceMatchKind::Partial) => {
                    return Err(Error::unsupported("MATCH PARTIAL"));
                }
                _ => ForeignKeyMatch::Simple,
            },
            deferrable: initially_deferred
                || characteristics.is_some_and(|c| c.deferrable == Some(true)),
            initially_deferred,
            validated: !not_valid,
        });
        Ok(())
    }

    fn check_foreign_rows(
        &mut self,
        table: &Table,
        other: &Table,
        columns: &[usize],
        referenced: &[usize],
        name: &str,
    ) {
        let joined: Vec<String> = columns
            .iter()
            .zip(referenced)
            .map(|(a, b)| {
                format!(
                    "a.{} = b.{}",
                    quote(&table.columns[*a].name),
                    quote(&other.columns[*b].name)
                )
            })
            .collect();
        let present: Vec<String> = columns
            .iter()
            .map(|a| format!("a.{} IS NOT NULL", quote(&table.columns[*a].name)))
            .collect();
        let (from, to) = (self.qualified(table), self.qualified(other));
        self.after.push(After::Empty(
            format!(
                "SELECT 1 FROM {from} AS a WHERE {} AND NOT EXISTS (SELECT 1 FROM {to} AS b WHERE {}) LIMIT 1",
                present.join(" AND "),
                joined.join(" AND ")
            ),
            Error::new(
                SqlState::FOREIGN_KEY_VIOLATION,
                format!(
                    "insert or update on table \"{}\" violates foreign key constraint \"{name}\"",
                    table.name
                ),
            )
            .detail(format!("A row of \"{}\" has no match in table \"{}\".", table.name, other.name))
            .table(self.catalog().schema_name(table.schema), table.name.clone())
            .constraint(name),
        ));
    }
}

/// The columns of `table` an expression names.
pub(super) fn columns_in(expr: &Expr, table: &Table) -> Vec<usize> {
    use crate::sqlparser::ast::visit_expressions;
    use std::ops::ControlFlow;
    let mut found = Vec::new();
    let _ = visit_expressions(expr, |expr| {
        let name = match expr {
            Expr::Identifier(name) => Some(name),
            Expr::CompoundIdentifier(parts) => parts.last(),
            _ => None,
        };
        if let Some(position) = name.and_then(|name| table.column_position(&fold(name)))
            && !found.contains(&position)
        {
            found.push(position);
        }
        ControlFlow::<()>::Continue(())
    });
    found
}
