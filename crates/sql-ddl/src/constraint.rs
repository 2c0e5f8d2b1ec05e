//! Constraints, for CREATE TABLE and ALTER TABLE.

use super::index::{IndexOptions, not_distinct};
use super::keys::{delete_columns, each_once, take_set_columns};
use super::names::{fold, free_name, quote, split, undefined_column};
use super::{After, Ddl};
use telesto_sql_catalog::{
    CheckConstraint, Deferral, ForeignKey, ForeignKeyAction, ForeignKeyMatch, Index, Table,
};
use telesto_sql_keypath::key_types::KeyTypes;
use telesto_sql_parser::sqlparser::ast::{
    ConstraintCharacteristics, ConstraintReferenceMatchKind, DeferrableInitial, Expr,
    ForeignKeyConstraint, Ident, PrimaryKeyConstraint, ReferentialAction, TableConstraint,
};
use telesto_sql_parser::stored::parse_over_row;
use telesto_sql_types::error::{Error, Result, SqlState};

fn action(action: Option<ReferentialAction>) -> ForeignKeyAction {
    match action {
        None | Some(ReferentialAction::NoAction) => ForeignKeyAction::NoAction,
        Some(ReferentialAction::Restrict) => ForeignKeyAction::Restrict,
        Some(ReferentialAction::Cascade) => ForeignKeyAction::Cascade,
        Some(ReferentialAction::SetNull) => ForeignKeyAction::SetNull,
        Some(ReferentialAction::SetDefault) => ForeignKeyAction::SetDefault,
    }
}

pub(super) fn has_constraint(table: &Table, name: &str) -> bool {
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

/// What a key's DEFERRABLE makes of it; `None`: it is checked for each row.
pub(super) fn deferral(
    given: Option<&ConstraintCharacteristics>,
    primary: bool,
) -> Result<Option<Deferral>> {
    let Some(given) = given else { return Ok(None) };
    let initially_deferred = matches!(given.initially, Some(DeferrableInitial::Deferred));
    if initially_deferred && given.deferrable == Some(false) {
        return Err(Error::syntax("constraint declared INITIALLY DEFERRED must be DEFERRABLE"));
    }
    let deferrable = initially_deferred || given.deferrable == Some(true);
    Ok(deferrable.then_some(Deferral { initially_deferred, primary }))
}

/// Where what is deferred could not be told apart from what counts, or is checked in other places.
///
/// # Errors
/// 0A000 with the way out.
pub(super) fn may_defer(table: &Table) -> Result<()> {
    let Some(index) = table.known_indexes().find(|index| index.deferral.is_some()) else {
        return Ok(());
    };
    let what = if table.curated.is_some() {
        "is curated"
    } else if table.placement.by_row.is_some() {
        "places its rows by a value"
    } else {
        return Ok(());
    };
    Err(Error::unsupported(format!(
        "the deferrable key \"{}\" of table \"{}\", which {what}",
        index.name, table.name
    ))
    .hint("Declare the key without DEFERRABLE: an UPDATE of one statement may exchange keys all the same."))
}

fn match_kind(key: &ForeignKeyConstraint) -> Result<ForeignKeyMatch> {
    match key.match_kind {
        Some(ConstraintReferenceMatchKind::Full) => Ok(ForeignKeyMatch::Full),
        Some(ConstraintReferenceMatchKind::Partial) => Err(Error::unsupported("MATCH PARTIAL")),
        _ => Ok(ForeignKeyMatch::Simple),
    }
}

impl Ddl<'_> {
    /// Gives `table` a new place for its rows, filled from the old one with the catalog's write.
    pub(super) fn rewrite(&mut self, table: &mut Table) {
        self.rewrite_from(table, table.clone());
    }

    /// [`Self::rewrite`] of rows that have the shape of `before`.
    pub(super) fn rewrite_from(&mut self, table: &mut Table, before: Table) {
        let moved = |step: &After| matches!(step, After::Rewrite(id, ..) if *id == table.id);
        if !self.after.iter().any(moved) {
            self.after.insert(0, After::Rewrite(table.id, Box::new(before), false));
            table.storage = telesto_common::TableId(self.change.oid());
        }
    }

    fn constraint_name(
        &self,
        table: &Table,
        given: Option<&Ident>,
        (columns, label): (&str, &str),
    ) -> Result<String> {
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
            None => {
                let taken = |name: &str| has_constraint(table, name);
                Ok(free_name(taken, (&table.name, columns, label)))
            }
        }
    }

    /// Adds a constraint to `table`. `fresh`: the table has no rows yet.
    pub(super) async fn add_constraint(
        &mut self,
        table: &mut Table,
        constraint: &TableConstraint,
        fresh: bool,
        not_valid: bool,
    ) -> Result<()> {
        match constraint {
            TableConstraint::PrimaryKey(key) => {
                self.add_primary_key(table, key, fresh)?;
            }
            TableConstraint::Unique(unique) => {
                let deferral = deferral(unique.characteristics.as_ref(), false)?;
                let (columns, include) = self.key_columns(table, &unique.columns)?;
                each_once(table, &columns, "unique")?;
                let included = include.iter().map(|at| table.columns[*at].name.as_str());
                let list: Vec<_> = columns.iter().map(|c| c.name(table)).chain(included).collect();
                let list = list.join("_");
                let name = match unique.name.as_ref() {
                    Some(name) => self.constraint_name(table, Some(name), (&list, "key"))?,
                    None => self.chosen_name(table, &list, "key"),
                };
                self.check_free(table.schema, &name, false)?;
                let options = IndexOptions {
                    unique: deferral.is_none(),
                    deferral,
                    constraint: true,
                    nulls_not_distinct: not_distinct(&unique.nulls_distinct),
                    include,
                    ..IndexOptions::default()
                };
                self.push_index(table, name, columns, options);
                may_defer(table)?;
            }
            TableConstraint::Check(check) => {
                let columns = columns_in(&check.expr, table);
                let column = match columns.as_slice() {
                    [one] => table.columns[*one].name.as_str(),
                    _ => "",
                };
                let name = self.constraint_name(table, check.name.as_ref(), (column, "check"))?;
                self.check_condition(table, &check.expr)?;
                let expression = self.stored_condition(table, &check.expr)?;
                if !fresh && !not_valid {
                    self.check_rows(table, &name, &expression)?;
                }
                let oid = self.change.oid();
                table.checks.push(CheckConstraint { oid, name, expression, validated: !not_valid });
            }
            TableConstraint::ForeignKey(key) => {
                self.add_foreign_key(table, key, fresh, not_valid)?;
            }
            TableConstraint::PrimaryKeyUsingIndex(using) => {
                self.add_key_using_index(table, using, true).await?;
            }
            TableConstraint::UniqueUsingIndex(using) => {
                self.add_key_using_index(table, using, false).await?;
            }
            other => return Err(Error::unsupported(format!("{other}"))),
        }
        Ok(())
    }

    fn add_primary_key(
        &mut self,
        table: &mut Table,
        key: &PrimaryKeyConstraint,
        fresh: bool,
    ) -> Result<()> {
        let deferral = deferral(key.characteristics.as_ref(), true)?;
        if table.primary_key().is_some() {
            return Err(Error::new(
                SqlState::INVALID_TABLE_DEFINITION,
                format!("multiple primary keys for table \"{}\" are not allowed", table.name),
            ));
        }
        let (columns, include) = self.key_columns(table, &key.columns)?;
        each_once(table, &columns, "primary key")?;
        let name = match key.name.as_ref() {
            Some(name) => self.constraint_name(table, Some(name), ("", "pkey"))?,
            None => {
                let own = [table.name.clone()];
                self.relation_name(table.schema, (&table.name, "", "pkey"), &own)
            }
        };
        self.check_free(table.schema, &name, false)?;
        for column in &columns {
            let not_null = &mut table.columns[column.column].not_null;
            if !std::mem::replace(not_null, true) && deferral.is_some() && !fresh {
                // The rows stay where they are: nothing else would look at them.
                self.require_no_nulls(table, column.column);
            }
        }
        if deferral.is_some() {
            let options =
                IndexOptions { constraint: true, deferral, include, ..IndexOptions::default() };
            self.push_index(table, name, columns, options);
            return may_defer(table);
        }
        let oid = self.change.oid();
        let constraint_oid = Some(self.change.oid());
        let index = Index {
            oid,
            id: 0,
            name,
            columns,
            unique: true,
            deferral: None,
            nulls_not_distinct: false,
            include,
            constraint_oid,
            predicate: None,
            comment: None,
        };
        if !fresh {
            // Every row and index entry gets another key.
            self.rewrite(table);
        }
        table.primary = Some(index);
        Ok(())
    }

    /// Every row must fulfil a check in the end.
    pub(super) fn check_rows(&mut self, table: &Table, name: &str, expression: &str) -> Result<()> {
        let (target, expression) = (self.qualified(table), parse_over_row(expression)?);
        self.after.push(After::Empty(
            vec![table.id],
            format!("SELECT 1 FROM {target} WHERE NOT ({expression}) LIMIT 1"),
            Error::new(
                SqlState::CHECK_VIOLATION,
                format!(
                    "check constraint \"{name}\" of relation \"{}\" is violated by some row",
                    table.name
                ),
            )
            .constraint(name),
        ));
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
        let mut key = key.clone();
        let set = take_set_columns(&mut key.referred_columns);
        let key = &key;
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
        let delete_columns = delete_columns(table, &columns, &set)?;
        // A table may refer to itself before it is in the catalog.
        let itself = {
            let (schema, name) = split(&key.foreign_table)?;
            name == table.name
                && schema.is_none_or(|s| self.catalog().schema_name(table.schema) == s)
        };
        let other = if itself { table.clone() } else { (*self.table(&key.foreign_table)?).clone() };
        let referenced_columns: Vec<usize> = if key.referred_columns.is_empty() {
            let primary = other.primary_key().ok_or_else(|| {
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
        last_alike(table, &other)?;
        self.may_reference(&other, &referenced_columns)?;
        if columns.len() != referenced_columns.len() {
            return Err(Error::new(
                SqlState::INVALID_FOREIGN_KEY,
                "number of referencing and referenced columns for foreign key disagree",
            ));
        }
        let whole = key.referred_columns.is_empty();
        let referenced_index = referenced_key(&other, &referenced_columns, whole)?;
        let list: Vec<_> = columns.iter().map(|c| table.columns[*c].name.as_str()).collect();
        let list = list.join("_");
        let name = self.constraint_name(table, key.name.as_ref(), (&list, "fkey"))?;
        keys_compare(table, &other, &columns, &referenced_columns, &name)?;
        let match_kind = match_kind(key)?;
        if !fresh && !not_valid {
            self.check_foreign_rows(table, &other, &columns, &referenced_columns, &name);
            self.check_full_rows(table, &columns, &name, match_kind == ForeignKeyMatch::Full);
        }
        let characteristics = key.characteristics.as_ref();
        let initially_deferred = characteristics
            .is_some_and(|c| matches!(c.initially, Some(DeferrableInitial::Deferred)));
        let key = ForeignKey {
            oid: self.change.oid(),
            name,
            columns,
            referenced: other.id,
            referenced_columns,
            referenced_index,
            on_delete: action(key.on_delete),
            delete_columns,
            on_update: action(key.on_update),
            match_kind,
            deferrable: initially_deferred
                || characteristics.is_some_and(|c| c.deferrable == Some(true)),
            initially_deferred,
            validated: !not_valid,
        };
        if !fresh && other.id != table.id {
            self.may_be_checked(table, &other, &key)?;
        }
        table.foreign_keys.push(key);
        Ok(())
    }

    /// Looks for rows whose columns of a MATCH FULL key are NULL in part.
    pub(super) fn check_full_rows(
        &mut self,
        table: &Table,
        columns: &[usize],
        name: &str,
        full: bool,
    ) {
        if !full {
            return;
        }
        let each = |test: &str| {
            let tests = columns.iter().map(|a| quote(&table.columns[*a].name));
            tests.map(|name| format!("a.{name} {test}")).collect::<Vec<_>>().join(" OR ")
        };
        let (from, some, given) = (self.qualified(table), each("IS NULL"), each("IS NOT NULL"));
        self.after.push(After::Empty(
            vec![table.id],
            format!("SELECT 1 FROM {from} AS a WHERE ({some}) AND ({given}) LIMIT 1"),
            Error::new(
                SqlState::FOREIGN_KEY_VIOLATION,
                format!(
                    "insert or update on table \"{}\" violates foreign key constraint \"{name}\"",
                    table.name
                ),
            )
            .detail("MATCH FULL does not allow mixing of null and nonnull key values.")
            .table(self.catalog().schema_name(table.schema), table.name.clone())
            .constraint(name),
        ));
    }

    pub(super) fn check_foreign_rows(
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
                let (a, b) = (&table.columns[*a], &other.columns[*b]);
                let mut left = format!("a.{}", quote(&a.name));
                if KeyTypes::of(&a.ty, &b.ty) == KeyTypes::Cast {
                    left = format!("{left}::{}", b.ty.without_modifier());
                }
                format!("{left} = b.{}", quote(&b.name))
            })
            .collect();
        let present: Vec<String> = columns
            .iter()
            .map(|a| format!("a.{} IS NOT NULL", quote(&table.columns[*a].name)))
            .collect();
        let (from, to) = (self.qualified(table), self.qualified(other));
        self.after.push(After::Empty(
            vec![table.id, other.id],
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

/// The key of `other` over these columns; `whole`: its primary key was meant.
///
/// # Errors
/// 42830 when there is none, 55000 for one that is deferrable.
fn referenced_key(other: &Table, columns: &[usize], whole: bool) -> Result<u32> {
    let mut wanted = columns.to_vec();
    wanted.sort_unstable();
    if wanted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Error::new(
            SqlState::INVALID_FOREIGN_KEY,
            "foreign key referenced-columns list must not contain duplicates",
        ));
    }
    let referenced_index = other
        .all_indexes()
        .filter(|index| index.is_key() && index.predicate.is_none())
        .filter(|index| {
            let mut have: Vec<_> = index.columns.iter().map(|c| c.column).collect();
            have.sort_unstable();
            have == wanted
        })
        // One that is always unique, if there are several.
        .min_by_key(|index| index.deferral.is_some());
    if let Some(index) = referenced_index.filter(|index| index.deferral.is_some()) {
        let what = match whole && index.is_primary() {
            true => "primary key",
            false => "unique constraint",
        };
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("cannot use a deferrable {what} for referenced table \"{}\"", other.name),
        ));
    }
    referenced_index.map(|index| index.id).ok_or_else(|| {
        Error::new(
            SqlState::INVALID_FOREIGN_KEY,
            format!(
                "there is no unique constraint matching given keys for referenced table \"{}\"",
                other.name
            ),
        )
    })
}

/// Checks that the values of a foreign key's columns can be compared.
///
/// # Errors
/// 42804, 0A000.
fn keys_compare(
    table: &Table,
    other: &Table,
    columns: &[usize],
    referenced: &[usize],
    name: &str,
) -> Result<()> {
    for (column, referenced) in columns.iter().zip(referenced) {
        let (column, referenced) = (&table.columns[*column], &other.columns[*referenced]);
        let (from, to) = (&column.ty, &referenced.ty);
        let text = format!("foreign key constraint \"{name}\" cannot be implemented");
        let error = match KeyTypes::of(from, to) {
            KeyTypes::Incompatible => Error::new(SqlState::DATATYPE_MISMATCH, text),
            KeyTypes::Unsupported => Error::new(SqlState::FEATURE_NOT_SUPPORTED, text)
                .hint("Give both columns the same type."),
            KeyTypes::Same | KeyTypes::Exact | KeyTypes::Cast => continue,
        };
        return Err(error.detail(format!(
            "Key columns \"{}\" and \"{}\" are of incompatible types: {from} and {to}.",
            column.name, referenced.name
        )));
    }
    Ok(())
}

impl Ddl<'_> {
    /// Checks the foreign keys on either side of columns that have got another type: the types, and
    /// every row again, as a USING expression may have changed any value.
    ///
    /// # Errors
    /// 42804, 0A000.
    pub(super) fn recheck_foreign_keys(&mut self, table: &Table, changed: &[usize]) -> Result<()> {
        let mut pairs = Vec::new();
        let touches = |columns: &[usize]| columns.iter().any(|c| changed.contains(c));
        for key in &table.foreign_keys {
            let itself = key.referenced == table.id;
            if touches(&key.columns) || itself && touches(&key.referenced_columns) {
                let other = if itself { table.clone() } else { self.table_of(key.referenced)? };
                pairs.push((table.clone(), other, key.clone()));
            }
        }
        for (child, key) in self.catalog().referencing(table.id) {
            if *child != table.id && touches(&key.referenced_columns) {
                pairs.push((self.table_of(*child)?, table.clone(), (**key).clone()));
            }
        }
        for (child, parent, key) in &pairs {
            let (columns, referenced) = (&key.columns, &key.referenced_columns);
            keys_compare(child, parent, columns, referenced, &key.name)?;
            if key.validated {
                self.check_foreign_rows(child, parent, columns, referenced, &key.name);
            }
        }
        Ok(())
    }

    fn table_of(&self, id: telesto_common::TableId) -> Result<Table> {
        let found = self.catalog().table(id);
        found
            .map(|t| (**t).clone())
            .ok_or_else(|| Error::internal("a table of a foreign key is gone"))
    }
}

/// Fails unless rows of the referenced table are there as long as those that reference them.
fn last_alike(table: &Table, referenced: &Table) -> Result<()> {
    use telesto_sql_catalog::model::OnCommit;
    let temporary = [table, referenced].map(|t| telesto_sql_catalog::temp::is_temporary(t.id.0));
    if temporary[0] != temporary[1] {
        let word = if temporary[0] { "temporary" } else { "permanent" };
        return Err(Error::new(
            SqlState::INVALID_TABLE_DEFINITION,
            format!("constraints on {word} tables may reference only {word} tables"),
        ));
    }
    if referenced.on_commit == OnCommit::DeleteRows && table.on_commit != OnCommit::DeleteRows {
        let message = "unsupported ON COMMIT and foreign key combination";
        return Err(Error::new(SqlState::FEATURE_NOT_SUPPORTED, message).detail(format!(
            "Table \"{}\" references \"{}\", but they do not have the same ON COMMIT setting.",
            table.name, referenced.name
        )));
    }
    Ok(())
}

/// The columns of `table` an expression names.
pub(super) fn columns_in(expr: &Expr, table: &Table) -> Vec<usize> {
    use std::ops::ControlFlow;
    use telesto_sql_parser::sqlparser::ast::visit_expressions;
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
