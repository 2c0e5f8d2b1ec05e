//! What an EXECUTE is part of: itself, its EXPLAIN, or the table that is made of its rows. And
//! tables that are made of a query with parameters.
//!
//! # Invariants
//! `CREATE TABLE … AS EXECUTE`, and `CREATE TABLE … AS` of a query with parameters, run as the
//! CREATE TABLE of the query with the values written into it: what is repeated after a conflict,
//! and what is looked at for rights, is that statement.
//!
//! # On failure
//! 42809 for a prepared statement that is no query, and what EXECUTE answers.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;

use super::{Prepared, Session, StatementResult};
use crate::error::{Error, Result, SqlState};
use crate::expr::EvalContext;
use crate::expr::bound::Expr as Bound;
use crate::expr::deparse::Deparse;
use crate::sqlparser::ast::{
    self, CreateTable, Expr, Query, SetExpr, Statement, TableFactor, Value, Visit, VisitMut,
    Visitor, VisitorMut,
};
use crate::types::{Datum, SqlType};
use telesto_sql_parser::definition::{self, Definition};
use telesto_sql_parser::rewrite::create_as_execute;
use telesto_sql_parser::statement_kind::executes;

/// The table that a statement makes of a prepared one, and whether it gets no rows.
struct Made {
    create: CreateTable,
    empty: bool,
}

impl Made {
    /// `None`: the statement is another one.
    fn of(statement: &Statement) -> Result<Option<Self>> {
        let made = match statement {
            Statement::CreateTable(create) if executed(create).is_some() => {
                Self { create: create.clone(), empty: false }
            }
            Statement::Pragma { .. } => match Self::defined(statement)? {
                Some(made) => made,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        Ok(executed(&made.create).is_some().then_some(made))
    }

    /// The table of a statement that the parser does not know.
    fn defined(statement: &Statement) -> Result<Option<Self>> {
        Ok(match definition::read(statement)? {
            Some(Definition::CreateTableAs(create)) => Some(Self { create: *create, empty: false }),
            Some(Definition::CreateTableEmpty(create)) => {
                Some(Self { create: *create, empty: true })
            }
            _ => None,
        })
    }

    /// The EXECUTE in it.
    fn execute(&self) -> Result<Statement> {
        let called = executed(&self.create);
        let (name, parameters) = called.ok_or_else(|| Error::internal("no EXECUTE"))?;
        let name = vec![telesto_sql_parser::names::ident(&name)];
        Ok(Statement::Execute {
            name: Some(ast::ObjectName::from(name)),
            has_parentheses: !parameters.is_empty(),
            parameters: parameters.into_iter().cloned().collect(),
            immediate: false,
            into: Vec::new(),
            using: Vec::new(),
            output: false,
            default: false,
        })
    }

    /// The statement with a query in the place of the EXECUTE.
    fn with_query(mut self, query: Query) -> Result<Statement> {
        let mut query = Box::new(query);
        if self.empty {
            let mut none = crate::access::query_of("SELECT * FROM (SELECT 1) AS q LIMIT 0")?;
            if let SetExpr::Select(select) = &mut *none.body
                && let Some(from) = select.from.first_mut()
                && let TableFactor::Derived { subquery, .. } = &mut from.relation
            {
                *subquery = query;
            }
            query = Box::new(none);
        }
        self.create.query = Some(query);
        Ok(Statement::CreateTable(self.create))
    }
}

/// What a table is made of, if that is an EXECUTE.
fn executed(create: &CreateTable) -> Option<(String, Vec<&Expr>)> {
    create.query.as_deref().and_then(create_as_execute::of)
}

/// The query with parameters whose rows a statement makes a table of; `None`: the statement is
/// another one.
///
/// # Errors
/// Those of reading a definition.
pub(super) fn query_with_parameters(statement: &Statement) -> Result<Option<Statement>> {
    let query = match statement {
        Statement::CreateTable(create) => create.query.clone(),
        Statement::Query(query) => {
            let mut query = query.clone();
            match &mut *query.body {
                SetExpr::Select(select) => select.into.take().map(|_| query),
                _ => None,
            }
        }
        Statement::Pragma { .. } => match definition::read(statement)? {
            Some(Definition::CreateTableAs(create) | Definition::CreateTableEmpty(create)) => {
                create.query
            }
            _ => None,
        },
        _ => None,
    };
    let query = query.filter(|query| create_as_execute::of(query).is_none());
    Ok(query.filter(|query| Visit::visit(query, &mut Parameters).is_break()).map(Statement::Query))
}

/// Ends at the first parameter.
struct Parameters;

impl Visitor for Parameters {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Value(value) if matches!(value.value, Value::Placeholder(_)) => {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

/// The EXECUTE that a statement is, explains, or makes a table of.
fn execute_in(statement: &Statement) -> Result<Option<Cow<'_, Statement>>> {
    if let Some(execute) = executes(statement) {
        return Ok(Some(Cow::Borrowed(execute)));
    }
    match Made::of(statement)? {
        Some(made) => Ok(Some(Cow::Owned(made.execute()?))),
        None => Ok(None),
    }
}

/// Writes values in the places of parameters.
struct Values(Vec<Expr>);

impl VisitorMut for Values {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Value(value) = expr
            && let Value::Placeholder(name) = &value.value
            && let Some(number) = name.strip_prefix('$').and_then(|n| n.parse::<usize>().ok())
            && let Some(value) = number.checked_sub(1).and_then(|at| self.0.get(at))
        {
            *expr = Expr::Nested(Box::new(value.clone()));
        }
        ControlFlow::Continue(())
    }
}

impl Session {
    /// What runs in the place of `statement`: of the EXECUTE that it is, or that is in it, or of
    /// the query with parameters that it makes a table of. A future of its own: a statement is
    /// large, and every caller would move it.
    pub(super) fn run_in_place_of<'a>(
        &'a mut self,
        prepared: &'a Arc<Prepared>,
        statement: &'a Statement,
        parameters: &'a [Datum],
    ) -> Result<Option<BoxFuture<'a, Result<StatementResult>>>> {
        if let Some(execute) = execute_in(statement)? {
            return Ok(Some(async move { self.run_named(statement, &execute).await }.boxed()));
        }
        let query = match parameters {
            [] => None,
            _ => query_with_parameters(statement)?,
        };
        let Some(Statement::Query(query)) = query else { return Ok(None) };
        let filled = self.run_filled(prepared, statement, query, parameters);
        Ok(Some(filled.boxed()))
    }

    /// Runs a statement that has an EXECUTE in it.
    async fn run_named(
        &mut self,
        statement: &Statement,
        execute: &Statement,
    ) -> Result<StatementResult> {
        let (inner, values) = match self.named_in(statement, execute).boxed().await {
            Ok(named) => named,
            Err(error) => {
                self.fail();
                return Err(error);
            }
        };
        self.run_roomy(&inner, values).await
    }

    /// What runs in the place of the statement, and with which values.
    async fn named_in(
        &mut self,
        statement: &Statement,
        execute: &Statement,
    ) -> Result<(Arc<Prepared>, Vec<Datum>)> {
        let (inner, values) = self.execute_prepared(execute).boxed().await?;
        let Some(made) = Made::of(statement)? else {
            let inner = inner.explained_by(statement).unwrap_or(inner);
            return Ok((inner, values));
        };
        let Some(Statement::Query(query)) = inner.statement.as_deref() else {
            return Err(Error::new(
                SqlState::WRONG_OBJECT_TYPE,
                "prepared statement is not a SELECT",
            ));
        };
        let values = self.written(&values, &inner.parameter_types).await?;
        let statement = inner.need.provide(|| {
            let mut query = (**query).clone();
            let _ = VisitMut::visit(&mut query, &mut Values(values));
            made.with_query(query)
        })?;
        Ok((inner.in_place_of(statement, Vec::new()), Vec::new()))
    }

    /// Makes the table of a query with the values in the places of its parameters.
    async fn run_filled(
        &mut self,
        prepared: &Arc<Prepared>,
        statement: &Statement,
        mut query: Box<Query>,
        parameters: &[Datum],
    ) -> Result<StatementResult> {
        let values = match self.written(parameters, &prepared.parameter_types).boxed().await {
            Ok(values) => values,
            Err(error) => {
                self.fail();
                return Err(error);
            }
        };
        let filled = prepared.need.provide(|| -> Result<Statement> {
            let mut values = Values(values);
            let made = match statement {
                Statement::Pragma { .. } => Made::defined(statement)?,
                _ => None,
            };
            Ok(match made {
                Some(made) => {
                    let _ = VisitMut::visit(&mut query, &mut values);
                    made.with_query(*query)?
                }
                None => {
                    let mut statement = statement.clone();
                    let _ = VisitMut::visit(&mut statement, &mut values);
                    statement
                }
            })
        })?;
        let inner = prepared.in_place_of(filled, Vec::new());
        self.run_roomy(&inner, Vec::new()).await
    }

    /// Values as constants of their types.
    async fn written(&mut self, values: &[Datum], types: &[SqlType]) -> Result<Vec<Expr>> {
        if values.is_empty() {
            return Ok(Vec::new());
        }
        let context = self.side_context().await?;
        let eval = EvalContext::executing(&context);
        let none = |_| String::new();
        let deparse =
            Deparse { column: &none, pretty: false, reader: Some(&eval), inner_domain: false };
        let written = values.iter().zip(types).map(|(value, ty)| {
            let text = deparse.text(&Bound::constant(value.clone(), ty.clone()));
            telesto_sql_parser::syntax::read(&text, |parser| parser.parse_expr()).map_err(
                |unread| {
                    unread.or_else(|error| {
                        Error::internal(format!("a constant made here does not parse: {error}"))
                    })
                },
            )
        });
        written.collect()
    }
}
