//! CREATE DOMAIN, ALTER DOMAIN, DROP DOMAIN.
//!
//! # Invariants
//! - What a domain newly demands holds for the rows of every column of it, and of domains made of
//!   it, before the statement ends.
//! - Statements come in the form of those about a table of one column `value`
//!   (`sql-parser::rewrite::spelling`).
//!
//! # Limits
//! No arrays of domains.

use telesto_common::TableId;

use super::names::{fold, free_name, quote};
use super::{After, Ddl};
use telesto_sql_catalog::store::Object;
use telesto_sql_catalog::{CheckConstraint, Domain, TypeKind};
use telesto_sql_expr::EvalContext;
use telesto_sql_expr::domain::bind_check;
use telesto_sql_expr::type_name::sql_type;
use telesto_sql_parser::rewrite::collation::check_of_column;
use telesto_sql_parser::sqlparser::ast::{
    AlterColumnOperation, AlterTable, AlterTableOperation, ColumnOption, CreateTable, DropBehavior,
    DropDomain, Expr, Ident, ObjectName, ObjectType, TableConstraint, visit_expressions_mut,
};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};

/// The condition with VALUE replaced by a column.
fn over_column(text: &str, column: &str) -> Result<String> {
    let mut expr = super::parse_expr(text)?;
    let _ = visit_expressions_mut(&mut expr, |e| {
        if matches!(e, Expr::Identifier(name) if fold(name) == "value") {
            *e = Expr::Identifier(Ident::with_quote('"', column));
        }
        std::ops::ControlFlow::<()>::Continue(())
    });
    Ok(expr.to_string())
}

impl Ddl<'_> {
    /// The form in which a condition over VALUE is stored.
    fn settled_of_value(&self, expr: &Expr, base: &SqlType) -> Result<String> {
        let scope = telesto_sql_expr::domain::value_scope(base);
        let condition = |binder: &mut telesto_sql_expr::Binder<'_>, bound| {
            binder.implicit(bound, &SqlType::Bool).map(drop)
        };
        Ok(self.settled(&self.with_oids(expr)?, &scope, condition)?.to_string())
    }

    /// The form in which a default is stored.
    fn settled_default(&self, expr: &Expr, base: &SqlType) -> Result<String> {
        let assigned = |binder: &mut telesto_sql_expr::Binder<'_>, bound| {
            binder.coerce(bound, base, telesto_sql_expr::CastContext::Assignment).map(drop)
        };
        let expr = self.with_oids(expr)?;
        Ok(self.settled(&expr, &telesto_sql_expr::Scope::default(), assigned)?.to_string())
    }

    fn new_check(
        &mut self,
        ty: &str,
        base: &SqlType,
        checks: &mut Vec<CheckConstraint>,
        (name, expr): (Option<&Ident>, &Expr),
        validated: bool,
    ) -> Result<()> {
        let taken = |name: &str| checks.iter().any(|check| check.name == name);
        let name = match name {
            Some(name) => fold(name),
            None => free_name(taken, (ty, "", "check")),
        };
        if taken(&name) {
            return Err(Error::new(
                SqlState::DUPLICATE_OBJECT,
                format!("constraint \"{name}\" for domain \"{ty}\" already exists"),
            ));
        }
        let expression = self.settled_of_value(expr, base)?;
        bind_check(&expression, base, &EvalContext::executing(self.context))?;
        let oid = self.change.oid();
        checks.push(CheckConstraint { oid, name, expression, validated });
        Ok(())
    }

    pub(super) fn create_domain(&mut self, create: &CreateTable) -> Result<()> {
        let new = self.new_type(&create.name)?;
        let Some(value) = create.columns.first() else {
            return Err(Error::internal("a domain without a type"));
        };
        let declared = sql_type(&value.data_type, Some(&self.user_types()))?;
        let base = declared.of_values().clone();
        if matches!(base, SqlType::Record(_) | SqlType::Void) {
            return Err(Error::new(
                SqlState::DATATYPE_MISMATCH,
                format!("\"{base}\" is not a valid base type for a domain"),
            )
            .hint("Make it of a type that columns have."));
        }
        super::table::storable("value", &base)?;
        let parent = match &declared {
            SqlType::Domain(parent) => Some(parent.oid),
            _ => None,
        };
        let mut domain =
            Domain { base, parent, not_null: false, default: None, checks: Vec::new() };
        for option in &value.options {
            match &option.option {
                ColumnOption::Null => {}
                ColumnOption::NotNull => domain.not_null = true,
                ColumnOption::Default(_) if domain.default.is_some() => {
                    return Err(Error::syntax("multiple default expressions"));
                }
                ColumnOption::Default(expr) => {
                    domain.default = Some(self.settled_default(expr, &domain.base)?)
                }
                ColumnOption::Check(check) => {
                    let of = option.name.as_ref().or(check.name.as_ref());
                    let base = domain.base.clone();
                    self.new_check(&new.name, &base, &mut domain.checks, (of, &check.expr), true)?;
                }
                ColumnOption::Collation(name) => check_of_column(name)?,
                ColumnOption::PrimaryKey(_) => {
                    return Err(Error::syntax("primary key constraints not possible for domains"));
                }
                ColumnOption::Unique(_) => {
                    return Err(Error::syntax("unique constraints not possible for domains"));
                }
                ColumnOption::ForeignKey(_) => {
                    return Err(Error::syntax("foreign key constraints not possible for domains"));
                }
                other => return Err(Error::unsupported(format!("{other} of a domain"))),
            }
        }
        // Copied, as in PostgreSQL: a later change there is not seen here.
        if let (SqlType::Domain(parent), None) = (&declared, &domain.default) {
            domain.default.clone_from(&parent.default);
        }
        self.put_type(new, TypeKind::Domain(domain));
        Ok(())
    }

    /// The columns of a domain, and of domains made of it.
    fn columns_of_domain(&self, oid: u32) -> Vec<(TableId, usize)> {
        let mut all = vec![oid];
        let mut at = 0;
        while let Some(oid) = all.get(at).copied() {
            all.extend(self.catalog().user_types().filter_map(|ty| match &ty.kind {
                TypeKind::Domain(domain) if domain.parent == Some(oid) => Some(ty.oid),
                _ => None,
            }));
            at += 1;
        }
        let mut out = Vec::new();
        for table in self.catalog().tables() {
            for (at, column) in table.visible_columns() {
                if column.domain.is_some_and(|domain| all.contains(&domain)) {
                    out.push((table.id, at));
                }
            }
        }
        out
    }

    /// After the change no row may fulfil `violates` of a column.
    fn require(
        &mut self,
        oid: u32,
        violates: impl Fn(&str) -> Result<String>,
        error: impl Fn(&str, &str) -> Error,
    ) -> Result<()> {
        for (table, position) in self.columns_of_domain(oid) {
            let Some(table) = self.catalog().table(table).cloned() else { continue };
            let column = &table.columns[position].name;
            let target = self.qualified(&table);
            let sql = format!("SELECT 1 FROM {target} WHERE {} LIMIT 1", violates(column)?);
            self.after.push(After::Empty(vec![table.id], sql, error(column, &table.name)));
        }
        Ok(())
    }

    fn require_check(&mut self, oid: u32, text: &str) -> Result<()> {
        self.require(
            oid,
            |column| Ok(format!("NOT ({})", over_column(text, column)?)),
            |column, table| {
                Error::new(
                    SqlState::CHECK_VIOLATION,
                    format!(
                        "column \"{column}\" of table \"{table}\" contains values that violate the new constraint"
                    ),
                )
            },
        )
    }

    pub(super) fn alter_domain(&mut self, alter: &AlterTable) -> Result<()> {
        let Some(found) = self.find_type(&alter.name)? else {
            return Err(self.no_such_domain(&alter.name)?);
        };
        let mut ty = (*found).clone();
        let name = ty.name.clone();
        let TypeKind::Domain(domain) = &mut ty.kind else {
            return Err(no_domain(&telesto_sql_types::enums::quoted(&name)));
        };
        self.need_owner(telesto_sql_catalog::Guarded::user_type(&found))?;
        let missing = |constraint: &str| {
            Error::new(
                SqlState::UNDEFINED_OBJECT,
                format!("constraint \"{constraint}\" of domain \"{name}\" does not exist"),
            )
        };
        for operation in &alter.operations {
            match operation {
                AlterTableOperation::AlterColumn { op, .. } => match op {
                    AlterColumnOperation::SetDefault { value } => {
                        domain.default = Some(self.settled_default(value, &domain.base)?);
                    }
                    AlterColumnOperation::DropDefault => domain.default = None,
                    AlterColumnOperation::DropNotNull => domain.not_null = false,
                    AlterColumnOperation::SetNotNull => {
                        domain.not_null = true;
                        self.require(
                            found.oid,
                            |column| Ok(format!("{} IS NULL", quote(column))),
                            |column, table| {
                                Error::new(
                                    SqlState::NOT_NULL_VIOLATION,
                                    format!(
                                        "column \"{column}\" of table \"{table}\" contains null values"
                                    ),
                                )
                            },
                        )?;
                    }
                    other => return Err(Error::unsupported(format!("ALTER DOMAIN … {other}"))),
                },
                AlterTableOperation::AddConstraint {
                    constraint: TableConstraint::Check(check),
                    not_valid,
                } => {
                    let base = domain.base.clone();
                    let new = (check.name.as_ref(), &*check.expr);
                    self.new_check(&name, &base, &mut domain.checks, new, !not_valid)?;
                    if !not_valid {
                        self.require_check(found.oid, &check.expr.to_string())?;
                    }
                }
                AlterTableOperation::DropConstraint { if_exists, name: constraint, .. } => {
                    let constraint = fold(constraint);
                    let before = domain.checks.len();
                    domain.checks.retain(|check| check.name != constraint);
                    if domain.checks.len() == before {
                        if !if_exists {
                            return Err(missing(&constraint));
                        }
                        let message = missing(&constraint).message().to_owned();
                        self.context.notices.notice(format!("{message}, skipping"));
                    }
                }
                AlterTableOperation::RenameConstraint { old_name, new_name } => {
                    let (old, new) = (fold(old_name), fold(new_name));
                    if domain.checks.iter().any(|check| check.name == new) {
                        return Err(Error::new(
                            SqlState::DUPLICATE_OBJECT,
                            format!("constraint \"{new}\" for domain {name} already exists"),
                        ));
                    }
                    let check = domain.checks.iter_mut().find(|check| check.name == old);
                    check.ok_or_else(|| missing(&old))?.name = new;
                }
                AlterTableOperation::ValidateConstraint { name: constraint } => {
                    let constraint = fold(constraint);
                    let check = domain.checks.iter_mut().find(|check| check.name == constraint);
                    let check = check.ok_or_else(|| missing(&constraint))?;
                    if !check.validated {
                        check.validated = true;
                        let text = check.expression.clone();
                        self.require_check(found.oid, &text)?;
                    }
                }
                other => return Err(Error::unsupported(format!("ALTER DOMAIN … {other}"))),
            }
        }
        self.change.put(Object::Type(ty));
        Ok(())
    }

    pub(super) async fn drop_domain(&mut self, drop: &DropDomain) -> Result<()> {
        let name: &ObjectName = &drop.name;
        if self.missing_schema(name)?.is_none()
            && let Some(found) = self.find_type(name)?
            && !matches!(found.kind, TypeKind::Domain(_))
        {
            return Err(no_domain(&format!("\"{}\"", found.name)));
        }
        self.may_drop_named(ObjectType::Type, std::slice::from_ref(name))?;
        let cascade = matches!(drop.drop_behavior, Some(DropBehavior::Cascade));
        self.drop_type(name, drop.if_exists, cascade).await
    }
}

/// 42809 of a type that is none.
pub(super) fn no_domain(name: &str) -> Error {
    Error::new(SqlState::WRONG_OBJECT_TYPE, format!("{name} is not a domain"))
}
