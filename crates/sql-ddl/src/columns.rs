//! ALTER TABLE … ALTER COLUMN.

use super::constraint::columns_in;
use super::rewrite::Using;
use super::{After, Ddl, parse_expr};
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{Generated, Table};
use telesto_sql_expr::bound::Node;
use telesto_sql_expr::ty::castable;
use telesto_sql_expr::type_name::sql_type;
use telesto_sql_expr::{Binder, CastContext, EvalContext, Scope};
use telesto_sql_parser::definition::{ColumnChange, SequenceOption};
use telesto_sql_parser::sqlparser::ast::{DataType, Expr};
use telesto_sql_plan::ParameterTypes;
use telesto_sql_plan::compiled_table::relation;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, SqlType};

fn of_column(table: &Table, position: usize, rest: &str) -> String {
    format!("column \"{}\" of relation \"{}\" {rest}", table.columns[position].name, table.name)
}

fn no_cast_of_default(name: &str, ty: &SqlType) -> Error {
    Error::new(
        SqlState::DATATYPE_MISMATCH,
        format!("default for column \"{name}\" cannot be cast automatically to type {ty}"),
    )
}

fn not_ready(text: String) -> Error {
    Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, text)
}

impl Ddl<'_> {
    pub(super) async fn alter_column(
        &mut self,
        table: &mut Table,
        position: usize,
        change: &ColumnChange,
    ) -> Result<()> {
        match change {
            ColumnChange::Nothing => Ok(()),
            ColumnChange::SetNotNull => {
                if !table.columns[position].not_null {
                    table.columns[position].not_null = true;
                    self.require_no_nulls(table, position);
                }
                Ok(())
            }
            ColumnChange::DropNotNull => {
                let column = &table.columns[position];
                let in_key = table
                    .primary_key()
                    .is_some_and(|p| p.columns.iter().any(|c| c.column == position));
                if in_key {
                    return Err(Error::new(
                        SqlState::INVALID_TABLE_DEFINITION,
                        format!("column \"{}\" is in a primary key", column.name),
                    ));
                }
                if is_identity(table, position) {
                    return Err(Error::syntax(of_column(table, position, "is an identity column")));
                }
                table.columns[position].not_null = false;
                Ok(())
            }
            ColumnChange::SetDefault(expr) => {
                self.may_have_default(table, position, "DROP EXPRESSION")?;
                table.columns[position].default = Some(self.stored(expr)?);
                self.check_column(table, position)
            }
            ColumnChange::DropDefault => {
                self.may_have_default(table, position, "DROP EXPRESSION")?;
                table.columns[position].default = None;
                Ok(())
            }
            ColumnChange::Type { ty, using } => {
                self.alter_column_type(table, position, ty, using.as_deref()).await
            }
            ColumnChange::DropExpression { if_exists } => {
                if matches!(table.columns[position].generated, Some(Generated::Stored(_))) {
                    table.columns[position].generated = None;
                    return Ok(());
                }
                let text = of_column(table, position, "is not a stored generated column");
                self.missing(*if_exists, text)
            }
            ColumnChange::AddIdentity { always, options } => {
                self.add_identity(table, position, *always, options)
            }
            ColumnChange::SetIdentity { always, options } => {
                self.set_identity(table, position, *always, options).await
            }
            ColumnChange::DropIdentity { if_exists } => {
                let sequence = match table.columns[position].generated {
                    Some(Generated::IdentityAlways(oid) | Generated::IdentityByDefault(oid)) => oid,
                    _ => {
                        let text = of_column(table, position, "is not an identity column");
                        return self.missing(*if_exists, text);
                    }
                };
                table.columns[position].generated = None;
                self.change.put(Object::Table(table.clone()));
                self.needed_by_nothing(sequence)?;
                self.forget_sequence(sequence).await
            }
        }
    }

    /// 55000, or with IF EXISTS a notice.
    fn missing(&self, if_exists: bool, text: String) -> Result<()> {
        if if_exists {
            self.context.notices.notice(format!("{text}, skipping"));
            return Ok(());
        }
        Err(not_ready(text))
    }

    fn may_have_default(&self, table: &Table, position: usize, hint: &str) -> Result<()> {
        let hinted = |error: Error| {
            error.hint(format!("Use ALTER TABLE ... ALTER COLUMN ... {hint} instead."))
        };
        if is_identity(table, position) {
            let error = Error::syntax(of_column(table, position, "is an identity column"));
            return Err(error.hint("Use ALTER TABLE ... ALTER COLUMN ... DROP IDENTITY instead."));
        }
        if matches!(table.columns[position].generated, Some(Generated::Stored(_))) {
            let error = Error::syntax(of_column(table, position, "is a generated column"));
            return Err(hinted(error));
        }
        Ok(())
    }

    async fn alter_column_type(
        &mut self,
        table: &mut Table,
        position: usize,
        ty: &DataType,
        using: Option<&Expr>,
    ) -> Result<()> {
        let declared = sql_type(ty, Some(&self.user_types()))?;
        let domain = match &declared {
            SqlType::Domain(domain) => Some(domain.oid),
            _ => None,
        };
        let ty = declared.of_values().clone();
        let name = table.columns[position].name.clone();
        super::table::storable(&name, &ty)?;
        if let Some(view) = self.views_using_column(table, position).await.first() {
            return Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                "cannot alter type of a column used by a view or rule",
            )
            .detail(format!(
                "rule _RETURN on view {} depends on column \"{name}\"",
                self.shown_name(view.schema, &view.name)
            )));
        }
        if let Some((on, policy)) = self.policies_using_column(table, position).await?.first() {
            return Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                "cannot alter type of a column used in a policy definition",
            )
            .detail(format!("{} depends on column \"{name}\"", self.shown_policy(*on, policy))));
        }
        if let Some(user) = generated_using(table, position)? {
            return Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                "cannot alter type of a column used by a generated column",
            )
            .detail(format!(
                "Column \"{name}\" is used by generated column \"{}\".",
                table.columns[user].name
            )));
        }
        let column = &table.columns[position];
        if let Some(using) = using {
            self.check_using(table, position, &ty, using)?;
        } else if !matches!(column.generated, Some(Generated::Stored(_)))
            && !castable(&column.ty, &ty, CastContext::Assignment)
        {
            return Err(Error::new(
                SqlState::DATATYPE_MISMATCH,
                format!("column \"{name}\" cannot be cast automatically to type {ty}"),
            )
            .hint(format!(
                "You might need to specify \"USING {}::{ty}\".",
                telesto_sql_types::identifier::quote_ident(&name)
            )));
        }
        if is_identity(table, position) && !ty.is_integer() {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                "identity column type must be smallint, integer, or bigint",
            ));
        }
        self.retype_default(table, position, &ty)?;
        self.rewrite(table);
        if let Some(using) = using {
            self.using.push(Using { table: table.id, position, expr: using.clone() });
        }
        let column = &mut table.columns[position];
        let before = std::mem::replace(&mut column.ty, ty.clone());
        column.missing = None;
        column.domain = domain;
        if column.default.is_some()
            && let Err(error) = self.check_column(table, position)
        {
            if error.code() != SqlState::DATATYPE_MISMATCH {
                return Err(error);
            }
            return Err(no_cast_of_default(&name, &ty));
        }
        self.keys_take(table, position)?;
        self.refresh_forms(table)?;
        if let Some(Generated::IdentityAlways(oid) | Generated::IdentityByDefault(oid)) =
            table.columns[position].generated
        {
            self.retype_sequence(oid, &before, &ty)?;
        }
        Ok(())
    }

    /// Gives a default without a type of its own, a bare literal, the type the column had: what it
    /// means stays the same.
    fn retype_default(&self, table: &mut Table, position: usize, ty: &SqlType) -> Result<()> {
        let column = &mut table.columns[position];
        let Some(text) = &column.default else { return Ok(()) };
        let bound = self.bound_default(text)?;
        let null = matches!(bound.node, Node::Const(Datum::Null));
        if bound.ty != SqlType::Unknown || null || column.ty.same_base(ty) {
            return Ok(());
        }
        if !castable(&column.ty, ty, CastContext::Assignment) {
            return Err(no_cast_of_default(&column.name, ty));
        }
        column.default = Some(format!("CAST({text} AS {})", column.ty));
        Ok(())
    }

    /// Checks that the indexes over a column take its new type, that checks still bind, and later
    /// that they hold.
    fn keys_take(&mut self, table: &Table, position: usize) -> Result<()> {
        let ty = &table.columns[position].ty;
        let indexed = table
            .all_indexes()
            .any(|index| index.columns.iter().any(|part| part.column == position));
        if indexed && !telesto_sql_catalog::codec::key::is_key_type(ty) {
            return Err(super::index::no_key_type(ty));
        }
        for check in &table.checks {
            let condition = telesto_sql_parser::stored::parse_over_row(&check.expression)?;
            self.check_condition(table, &condition)?;
            if check.validated && columns_in(&condition, table).contains(&position) {
                self.check_rows(table, &check.name, &check.expression)?;
            }
        }
        Ok(())
    }

    fn check_using(
        &self,
        table: &Table,
        position: usize,
        ty: &SqlType,
        using: &Expr,
    ) -> Result<()> {
        let name = &table.columns[position].name;
        if matches!(table.columns[position].generated, Some(Generated::Stored(_))) {
            return Err(Error::new(
                SqlState::INVALID_COLUMN_DEFINITION,
                "cannot specify USING when altering type of generated column",
            )
            .detail(format!("Column \"{name}\" is a generated column.")));
        }
        let catalog = std::sync::Arc::new(self.catalog().clone());
        let context = EvalContext::planning(&self.context.settings, &catalog);
        let mut parameters = ParameterTypes::default();
        // Rows are read as they were before the first column that the statement gives another type.
        let moved = self.after.iter().find_map(|step| match step {
            After::Rewrite(id, old, _) if *id == table.id => Some(&**old),
            _ => None,
        });
        let scope =
            Scope { relations: vec![relation(moved.unwrap_or(table), &table.name, 0, true)] };
        let mut binder = Binder::new(&scope, &mut parameters, &context, "transform expressions");
        let bound = binder.bind(using)?;
        binder.coerce(bound, ty, CastContext::Assignment).map(|_| ()).map_err(|error| {
            if error.code() != SqlState::CANNOT_COERCE {
                return error;
            }
            Error::new(
                SqlState::DATATYPE_MISMATCH,
                format!(
                    "result of USING clause for column \"{name}\" cannot be cast automatically to type {ty}"
                ),
            )
            .hint("You might need to add an explicit cast.")
        })
    }

    fn add_identity(
        &mut self,
        table: &mut Table,
        position: usize,
        always: bool,
        options: &[SequenceOption],
    ) -> Result<()> {
        let column = &table.columns[position];
        if is_identity(table, position) {
            return Err(not_ready(of_column(table, position, "is already an identity column")));
        }
        if column.default.is_some() || column.generated.is_some() {
            return Err(not_ready(of_column(table, position, "already has a default value")));
        }
        if !column.ty.is_integer() {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                "identity column type must be smallint, integer, or bigint",
            ));
        }
        if !column.not_null {
            return Err(not_ready(of_column(
                table,
                position,
                "must be declared NOT NULL before identity can be added",
            )));
        }
        let (name, ty) = (column.name.clone(), column.ty.clone());
        let sequence = self.column_sequence(
            table.schema,
            (table.id, &table.name),
            (position, &name),
            &ty,
            options,
            true,
        )?;
        table.columns[position].generated = Some(if always {
            Generated::IdentityAlways(sequence.oid)
        } else {
            Generated::IdentityByDefault(sequence.oid)
        });
        Ok(())
    }

    async fn set_identity(
        &mut self,
        table: &mut Table,
        position: usize,
        always: Option<bool>,
        options: &[SequenceOption],
    ) -> Result<()> {
        let oid = match table.columns[position].generated {
            Some(Generated::IdentityAlways(oid) | Generated::IdentityByDefault(oid)) => oid,
            _ => return Err(not_ready(of_column(table, position, "is not an identity column"))),
        };
        if let Some(always) = always {
            table.columns[position].generated = Some(if always {
                Generated::IdentityAlways(oid)
            } else {
                Generated::IdentityByDefault(oid)
            });
        }
        if options.is_empty() {
            return Ok(());
        }
        self.alter_sequence_options(oid, options, true).await
    }
}

pub(super) fn is_identity(table: &Table, position: usize) -> bool {
    matches!(
        table.columns[position].generated,
        Some(Generated::IdentityAlways(_) | Generated::IdentityByDefault(_))
    )
}

/// The first generated column that uses the one at `position`.
pub(super) fn generated_using(table: &Table, position: usize) -> Result<Option<usize>> {
    for (at, column) in table.visible_columns() {
        if let Some(Generated::Stored(text)) = &column.generated
            && columns_in(&parse_expr(text)?, table).contains(&position)
        {
            return Ok(Some(at));
        }
    }
    Ok(None)
}
