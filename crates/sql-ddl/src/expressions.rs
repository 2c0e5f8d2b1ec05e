//! Expressions kept in the catalog: how they are stored, and what is refused when they are
//! declared.
//!
//! # Invariants
//! - Names of relations inside `'…'::regclass` and `nextval('…')` are stored as OIDs, so that a
//!   rename or another search path does not change what a default means. Types and constants are
//!   settled, too (`settling`).
//! - Columns of the table whose rows an expression is over are named alone: the table may get
//!   another name.
//! - Everything stored here binds: a definition fails rather than every later statement on the
//!   table.

use std::sync::Arc;

use super::Ddl;
use super::names::fold;
use telesto_sql_catalog::{Generated, Table};
use telesto_sql_expr::bound::Node;
use telesto_sql_expr::context::EvalContext;
use telesto_sql_expr::registry::Volatility;
use telesto_sql_expr::{Binder, CastContext, Expr as Bound, Scope};
use telesto_sql_parser::sqlparser::ast::{
    CastKind, DataType, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Value, VisitMut,
    VisitorMut,
};
use telesto_sql_parser::stored::{own_columns, parse_stored};
use telesto_sql_plan::ParameterTypes;
use telesto_sql_plan::compiled_table::relation;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result, SqlState};

/// Whether a cast between the types looks at settings.
fn is_stable_cast(from: &SqlType, to: &SqlType) -> bool {
    let zoned = |ty: &SqlType| matches!(ty, SqlType::TimestampTz(_) | SqlType::TimeTz(_));
    let time = |ty: &SqlType| {
        matches!(
            ty,
            SqlType::Date
                | SqlType::Time(_)
                | SqlType::TimeTz(_)
                | SqlType::Timestamp(_)
                | SqlType::TimestampTz(_)
        )
    };
    let text = |ty: &SqlType| ty.is_string() || *ty == SqlType::Unknown;
    (text(to) && telesto_sql_expr::ty::has_stable_text(from))
        || (text(from) && (time(to) || *to == SqlType::Interval))
        || (zoned(from) && time(to) && !zoned(to))
        || (zoned(to) && time(from) && !zoned(from))
        || (text(from) && to.is_oid_like())
        || (from.is_oid_like() && text(to))
        || (from.is_ranged() && text(to))
        || (text(from) && to.is_ranged())
}

/// Whether an expression gives the same for the same row, whatever the settings and the time.
pub(super) fn is_immutable(bound: &Bound) -> bool {
    let mut immutable = true;
    bound.walk(&mut |expr| match &expr.node {
        Node::Call(function, _, _) => immutable &= function.volatility == Volatility::Immutable,
        Node::Cast(inner, _) => immutable &= !is_stable_cast(&inner.ty, &expr.ty),
        _ => {}
    });
    immutable
}

/// Whether an expression has to be computed for every row.
pub(super) fn is_volatile(bound: &Bound) -> bool {
    let mut volatile = false;
    bound.walk(&mut |expr| {
        if let Node::Call(function, _, _) = &expr.node {
            volatile |= function.volatility == Volatility::Volatile;
        }
    });
    volatile
}

/// Writes names of relations as OIDs.
struct Oids<'a>(&'a EvalContext<'a>);

impl Oids<'_> {
    fn resolve(&self, expr: &mut Expr) -> Result<()> {
        let Expr::Value(value) = expr else { return Ok(()) };
        let Value::SingleQuotedString(name) = &mut value.value else { return Ok(()) };
        *name = self.0.relation_oid(name)?.to_string();
        Ok(())
    }
}

impl VisitorMut for Oids<'_> {
    type Break = Error;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> std::ops::ControlFlow<Error> {
        let result = match expr {
            Expr::Cast { expr: inner, data_type: DataType::Regclass, .. } => self.resolve(inner),
            Expr::Function(function) => {
                let name = function.name.0.last().and_then(|part| part.as_ident()).map(fold);
                let sequence = matches!(name.as_deref(), Some("nextval" | "currval" | "setval"));
                match &mut function.args {
                    FunctionArguments::List(list) if sequence => match list.args.first_mut() {
                        Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)))
                            if matches!(argument, Expr::Value(_)) =>
                        {
                            let resolved = self.resolve(argument);
                            let inner = std::mem::replace(argument, Expr::value(Value::Null));
                            *argument = Expr::Cast {
                                kind: CastKind::DoubleColon,
                                expr: Box::new(inner),
                                data_type: DataType::Regclass,
                                array: false,
                                format: None,
                            };
                            resolved
                        }
                        _ => Ok(()),
                    },
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        };
        match result {
            Ok(()) => std::ops::ControlFlow::Continue(()),
            Err(error) => std::ops::ControlFlow::Break(error),
        }
    }
}

/// The error of an expression of the wrong type.
fn mismatch(column: &str, ty: &SqlType, from: &SqlType) -> Error {
    Error::new(
        SqlState::DATATYPE_MISMATCH,
        format!(
            "column \"{column}\" is of type {} but default expression is of type {}",
            ty.without_modifier(),
            from.without_modifier()
        ),
    )
    .hint("You will need to rewrite or cast the expression.")
}

impl Ddl<'_> {
    /// The form in which an expression is stored, before [`Self::check_column`] has settled what it
    /// means.
    pub(super) fn stored(&self, expr: &Expr) -> Result<String> {
        self.with_oids(expr).map(|expr| expr.to_string())
    }

    /// The form in which a condition over the table's rows is stored.
    pub(super) fn stored_condition(&self, table: &Table, expr: &Expr) -> Result<String> {
        let scope = Scope { relations: vec![relation(table, &table.name, 0, true)] };
        let alone = self.over_own_row(table, self.with_oids(expr)?);
        let settled = self.settled(&alone, &scope, |binder, bound| {
            binder.implicit(bound, &SqlType::Bool).map(drop)
        });
        Ok(settled?.to_string())
    }

    /// The expression with the table's columns named alone.
    fn over_own_row(&self, table: &Table, mut expr: Expr) -> Expr {
        let schema = self.catalog().schema_name(table.schema);
        own_columns(&mut expr, |before| match before {
            [name] => fold(name) == table.name,
            [within, name] => fold(within) == schema && fold(name) == table.name,
            _ => false,
        });
        expr
    }

    /// An expression in which names of relations are their OIDs.
    ///
    /// # Errors
    /// 42P01 of a relation that there is not.
    pub(super) fn with_oids(&self, expr: &Expr) -> Result<Expr> {
        let catalog = Arc::new(self.catalog().clone());
        let context = EvalContext::planning(&self.context.settings, &catalog);
        let mut expr = expr.clone();
        match VisitMut::visit(&mut expr, &mut Oids(&context)) {
            std::ops::ControlFlow::Break(error) => Err(error),
            std::ops::ControlFlow::Continue(()) => Ok(expr),
        }
    }

    /// Whether the default `text` gives another value for every row.
    pub(super) fn default_is_volatile(&self, text: &str) -> Result<bool> {
        Ok(is_volatile(&self.bound_default(text)?))
    }

    /// The default `text`, bound.
    pub(super) fn bound_default(&self, text: &str) -> Result<Bound> {
        let catalog = Arc::new(self.catalog().clone());
        let context = EvalContext::planning(&self.context.settings, &catalog);
        let (scope, mut parameters) = (Scope::default(), ParameterTypes::default());
        Binder::new(&scope, &mut parameters, &context, "DEFAULT expressions")
            .bind(&parse_stored(text)?)
    }

    /// Refuses a default or generated column that could not be computed, and settles what the text
    /// of one that can be means.
    pub(super) fn check_column(&self, table: &mut Table, position: usize) -> Result<()> {
        let column = &table.columns[position];
        if column.default.is_none() && column.generated.is_none() {
            return Ok(());
        }
        self.may_be_computed(table, position)?;
        let over_row = Scope { relations: vec![relation(table, &table.name, 0, true)] };
        let shape = table.clone();
        let column = &mut table.columns[position];
        let ty = column.ty.clone();
        let settled = |text: &str, scope: &Scope| -> Result<String> {
            let finished = |binder: &mut Binder<'_>, bound: Bound| {
                binder.coerce(bound, &ty, CastContext::Assignment).map(drop)
            };
            let written = parse_stored(text)?;
            let settled = self.settled(&written, scope, finished)?;
            Ok(if settled == written { text.to_owned() } else { settled.to_string() })
        };
        if let Some(text) = &mut column.default {
            *text = settled(text, &Scope::default())?;
        }
        if let Some(Generated::Stored(text)) = &mut column.generated {
            let alone = self.over_own_row(&shape, parse_stored(text)?);
            *text = settled(&alone.to_string(), &over_row)?;
        }
        Ok(())
    }

    fn may_be_computed(&self, table: &Table, position: usize) -> Result<()> {
        let column = &table.columns[position];
        let catalog = Arc::new(self.catalog().clone());
        let context = EvalContext::planning(&self.context.settings, &catalog);
        let mut parameters = ParameterTypes::default();
        let assign = |binder: &mut Binder<'_>, bound: Bound| {
            let from = bound.ty.clone();
            binder.coerce(bound, &column.ty, CastContext::Assignment).map_err(|error| {
                if error.code() == SqlState::CANNOT_COERCE {
                    mismatch(&column.name, &column.ty, &from)
                } else {
                    error
                }
            })
        };
        if let Some(text) = &column.default {
            let expr = parse_stored(text)?;
            refuse(&expr, "DEFAULT expressions", "DEFAULT expression")?;
            let column_reference = || {
                Error::new(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    "cannot use column reference in DEFAULT expression",
                )
            };
            if !super::constraint::columns_in(&expr, table).is_empty() {
                return Err(column_reference());
            }
            let scope = Scope::default();
            let mut binder = Binder::new(&scope, &mut parameters, &context, "DEFAULT expressions");
            // Whether such a column exists does not matter, as in PostgreSQL.
            let bound = binder.bind(&expr).map_err(|error| match error.code() {
                SqlState::UNDEFINED_COLUMN | SqlState::UNDEFINED_TABLE => column_reference(),
                _ => error,
            })?;
            assign(&mut binder, bound)?;
        }
        if let Some(Generated::Stored(text)) = &column.generated {
            let expr = parse_stored(text)?;
            refuse(&expr, "column generation expressions", "column generation expression")?;
            for used in super::constraint::columns_in(&expr, table) {
                if matches!(table.columns[used].generated, Some(Generated::Stored(_))) {
                    return Err(Error::new(
                        SqlState::INVALID_OBJECT_DEFINITION,
                        format!(
                            "cannot use generated column \"{}\" in column generation expression",
                            table.columns[used].name
                        ),
                    )
                    .detail("A generated column cannot reference another generated column."));
                }
            }
            let scope = Scope { relations: vec![relation(table, &table.name, 0, true)] };
            let mut binder =
                Binder::new(&scope, &mut parameters, &context, "column generation expressions");
            let bound = binder.bind(&expr)?;
            let bound = assign(&mut binder, bound)?;
            if !is_immutable(&bound) {
                return Err(Error::new(
                    SqlState::INVALID_OBJECT_DEFINITION,
                    "generation expression is not immutable",
                ));
            }
        }
        Ok(())
    }

    /// Refuses a check that is no condition over the table.
    pub(super) fn check_condition(&self, table: &Table, expr: &Expr) -> Result<()> {
        refuse(expr, "check constraints", "check constraint")?;
        let catalog = Arc::new(self.catalog().clone());
        let context = EvalContext::planning(&self.context.settings, &catalog);
        let mut parameters = ParameterTypes::default();
        let scope = Scope { relations: vec![relation(table, &table.name, 0, true)] };
        Binder::new(&scope, &mut parameters, &context, "CHECK").condition(expr).map(|_| ())
    }
}

/// Refuses what no stored expression may have, in PostgreSQL's words.
fn refuse(expr: &Expr, clauses: &str, clause: &str) -> Result<()> {
    use std::ops::ControlFlow;
    use telesto_sql_parser::sqlparser::ast::visit_expressions;
    let aggregates =
        ["count", "sum", "min", "max", "avg", "array_agg", "string_agg", "bool_and", "bool_or"];
    let found = visit_expressions(expr, |expr| match expr {
        Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. } => ControlFlow::Break(
            Error::new(SqlState::FEATURE_NOT_SUPPORTED, format!("cannot use subquery in {clause}")),
        ),
        Expr::Function(function) if function.over.is_some() => ControlFlow::Break(Error::new(
            SqlState::WINDOWING_ERROR,
            format!("window functions are not allowed in {clauses}"),
        )),
        Expr::Function(function)
            if function
                .name
                .0
                .last()
                .and_then(|part| part.as_ident())
                .is_some_and(|name| aggregates.contains(&fold(name).as_str())) =>
        {
            ControlFlow::Break(Error::new(
                SqlState::GROUPING_ERROR,
                format!("aggregate functions are not allowed in {clauses}"),
            ))
        }
        _ => ControlFlow::Continue(()),
    });
    match found {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}
