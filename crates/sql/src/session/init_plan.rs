//! Subqueries that give one value, or one list, for the whole statement, run before it.
//!
//! # Protocol
//! ```text
//! SELECT … WHERE o_id > (SELECT max(o_id) - 100 FROM orders)
//!   1. SELECT max(o_id) - 100 FROM orders           planned by itself, on either path
//!   2. SELECT … WHERE o_id > $n                     n behind the statement's own parameters: a range of a key
//! ```
//! `x IN (SELECT …)` becomes `x = ANY($n)` in the same way, if keys lead to the rows then and did
//! not before; the values taken out of it before are known to it.
//!
//! A subquery that plans by itself names nothing of the queries around it: names in it are looked
//! up inside it first. So it is the same for every row, as PostgreSQL's InitPlan is.
//!
//! # Invariants
//! - Only subqueries that read, or lock what they read, are taken; each runs once for each
//!   execution, in the statement's transaction and before its first write. Equal texts share a
//!   value, but those that call what gives another value each time (`gen_random_uuid()`): each of
//!   them has its own.
//! - PostgreSQL runs such a subquery when its value is first asked for. One that fails here, where
//!   it might never have been asked for, makes the statement run as it is written.
//!
//! # Limits
//! None of a statement with WITH in it: its names could mean something else inside. Not EXISTS, ANY
//! and ALL. A list of more than [`MAX_LIST`] values makes the statement run as it is written, this
//! time and from then on.

use std::any::Any;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures::TryStreamExt as _;

use crate::error::{Error, Result, SqlState};
use crate::expr::registry::registry;
use crate::expr::settings::Executor;
use crate::expr::{fold, output_name};
use crate::plan::{ExecContext, ExecutablePlan, ParameterTypes, Plan, PlanContext};
use crate::session::{ResultColumn, Rows, StatementResult, plan_as_written, plan_statement};
use crate::sqlparser::ast::{
    BinaryOperator, Expr, Ident, Query, Select, SelectItem, Statement, Value, Visit, VisitMut,
    Visitor, VisitorMut,
};
use crate::types::{ArrayValue, Datum, SqlType};

/// Values of a list at most: each row found is compared with them one after the other.
const MAX_LIST: usize = 1000;

/// What a subquery gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gives {
    /// One value, NULL for no row.
    One,
    /// An array.
    List,
}

/// A statement with subqueries that run first.
#[derive(Debug)]
pub struct InitialPlan {
    /// What runs first, each giving the next parameter.
    values: Vec<(Plan, Gives)>,
    /// The statement over all parameters, and its plan.
    rest: Statement,
    main: Plan,
    /// The statement as it is written, for when a value fails; none, if it does not plan so or is
    /// to run by key only.
    written: Option<Plan>,
    /// A list was too long.
    long: AtomicBool,
    /// Types of its own parameters, then of the values.
    types: Vec<SqlType>,
}

/// The statement with its subqueries taken out, planned over their values. `None`: there are none,
/// or it does not plan so. The types of its own parameters are known; `written` is its plan as it
/// is.
pub(crate) async fn plan(
    statement: &Statement,
    written: Option<&Plan>,
    context: &PlanContext<'_>,
) -> Option<Arc<dyn ExecutablePlan>> {
    if !concerns(statement, context) {
        return None;
    }
    let known = context.parameters.resolved();
    let own = known.len();
    let mut found = Found {
        own,
        types: known.into_iter().map(Some).collect(),
        values: Vec::new(),
        taken: Vec::new(),
        rest: statement.clone(),
    };
    let _ = VisitMut::visit(&mut found.rest, &mut Names);
    found.take_out(Gives::One, context).await;
    let mut main = match found.values.is_empty() {
        true => None,
        false => found.plan(context).await,
    };
    if main.is_none() && written.is_some() {
        return None;
    }
    if !matches!(main.as_ref().or(written), Some(plan) if plan.is_by_key()) {
        let before = (found.types.clone(), found.rest.clone(), found.values.len());
        found.take_out(Gives::List, context).await;
        let listed = match found.values.len() > before.2 {
            true => {
                let planned = found.plan(context).await;
                planned.filter(|plan| plan.is_by_key() || main.is_none())
            }
            false => None,
        };
        match listed {
            Some(plan) => main = Some(plan),
            None => {
                found.values.truncate(before.2);
                (found.types, found.rest) = (before.0, before.1);
            }
        }
    }
    let types = ParameterTypes::new(&found.types).resolved();
    Some(Arc::new(InitialPlan {
        values: found.values,
        rest: found.rest,
        main: main?,
        written: written.cloned(),
        long: AtomicBool::new(false),
        types,
    }))
}

/// What has been taken out of a statement so far.
struct Found {
    own: usize,
    types: Vec<Option<SqlType>>,
    values: Vec<(Plan, Gives)>,
    taken: Vec<(Query, Gives)>,
    rest: Statement,
}

impl Found {
    async fn take_out(&mut self, gives: Gives, context: &PlanContext<'_>) {
        let mut at = 0;
        while let Some(query) = nth(&self.rest, at, gives) {
            let known = match changes(&query) {
                true => None,
                false => self.taken.iter().position(|(q, g)| *g == gives && *q == query),
            };
            let number = match known {
                Some(before) => self.own + before + 1,
                None => {
                    let found = value(&query, &self.types, context).await;
                    let Some((plan, ty)) = found else {
                        at += 1;
                        continue;
                    };
                    self.types.push(Some(match gives {
                        Gives::One => ty,
                        Gives::List => ty.array_of(),
                    }));
                    self.values.push((plan, gives));
                    self.taken.push((query, gives));
                    self.types.len()
                }
            };
            replace(&mut self.rest, at, gives, number);
        }
    }

    async fn plan(&self, context: &PlanContext<'_>) -> Option<Plan> {
        as_written(&self.rest, &mut ParameterTypes::new(&self.types), context).await
    }
}

/// Plans a statement without looking for subqueries at its top; `None`: it does not plan.
async fn as_written(
    statement: &Statement,
    parameters: &mut ParameterTypes,
    context: &PlanContext<'_>,
) -> Option<Plan> {
    let mut inner = PlanContext {
        catalog: context.catalog,
        settings: context.settings,
        parameters,
        txn: context.txn,
        env: context.env,
        earlier: Arc::default(),
        planner: context.planner,
    };
    let planned = Box::pin(plan_as_written(statement, &mut inner)).await;
    planned.ok().filter(|plan| !matches!(plan, Plan::Session))
}

/// Whether a statement may have such subqueries.
fn concerns(statement: &Statement, context: &PlanContext<'_>) -> bool {
    let known = matches!(
        statement,
        Statement::Query(_)
            | Statement::Insert(_)
            | Statement::Update(_)
            | Statement::Delete(_)
            | Statement::Merge(_)
    );
    if !known
        || context.settings.executor == Executor::DataFusion
        || context.earlier.with.is_some()
        || !context.earlier.parts.is_empty()
    {
        return false;
    }
    let mut found = Shape::default();
    let _ = statement.visit(&mut found);
    found.subqueries > 0 && !found.with
}

/// Whether a subquery calls what gives another value each time.
fn changes(query: &Query) -> bool {
    let mut found = Shape::default();
    let _ = query.visit(&mut found);
    found.changes
}

/// Plans a subquery by itself; `None`: it stays where it is.
async fn value(
    query: &Query,
    types: &[Option<SqlType>],
    context: &PlanContext<'_>,
) -> Option<(Plan, SqlType)> {
    let mut found = Shape::default();
    let _ = query.visit(&mut found);
    if found.effects {
        return None;
    }
    let mut parameters = ParameterTypes::new(types);
    let mut inner = PlanContext {
        catalog: context.catalog,
        settings: context.settings,
        parameters: &mut parameters,
        txn: context.txn,
        env: context.env,
        earlier: Arc::default(),
        planner: context.planner,
    };
    let statement = Statement::Query(Box::new(query.clone()));
    let plan = Box::pin(plan_statement(&statement, &mut inner)).await.ok()?;
    match plan.columns().map(|columns| &**columns) {
        Some([column]) if !column.whole_row && parameters.resolved().len() == types.len() => {
            let ty = column.ty.clone();
            Some((plan, ty))
        }
        _ => None,
    }
}

#[async_trait]
impl ExecutablePlan for InitialPlan {
    fn columns(&self) -> Option<&Arc<[ResultColumn]>> {
        self.main.columns()
    }

    fn is_by_key(&self) -> bool {
        false
    }

    fn is_for_any_values(&self) -> bool {
        self.main.is_for_any_values()
    }

    fn is_read_only(&self) -> bool {
        matches!(&self.main, Plan::Run(main) if main.is_read_only())
    }

    fn writes(&self) -> Option<&'static str> {
        match &self.main {
            Plan::Run(main) => main.writes(),
            Plan::Session => None,
        }
    }

    fn describe(&self) -> String {
        let mut lines = self.describe_values();
        if let Plan::Run(main) = &self.main {
            lines.push(main.describe());
        }
        lines.join("\n")
    }

    async fn execute(&self, context: &ExecContext) -> Result<StatementResult> {
        match self.with_values(context).await? {
            Some(context) => Box::pin(self.main.execute(&context)).await,
            None => self.as_written(context).await,
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl InitialPlan {
    /// The statement over the values, and the types of all its parameters.
    pub(crate) fn rest(&self) -> (&Statement, &[SqlType]) {
        (&self.rest, &self.types)
    }

    /// Parameters of the statement itself.
    fn own(&self) -> usize {
        self.types.len() - self.values.len()
    }

    /// Lines for EXPLAIN: what runs first.
    #[must_use]
    pub fn describe_values(&self) -> Vec<String> {
        let lines = self.values.iter().enumerate().map(|(at, (plan, _))| {
            let what = match plan {
                Plan::Run(plan) if plan.is_by_key() => plan.describe(),
                _ => "DataFusion".to_owned(),
            };
            format!("First ${}: {what}", self.own() + at + 1)
        });
        lines.collect()
    }

    /// The context with the values behind the statement's own parameters; `None`: one of them
    /// fails.
    ///
    /// # Errors
    /// Those of the transaction.
    pub(crate) async fn with_values(&self, context: &ExecContext) -> Result<Option<ExecContext>> {
        let mut parameters = context.parameters.to_vec();
        if self.long.load(Ordering::Relaxed) {
            return Ok(None);
        }
        for (at, (plan, gives)) in self.values.iter().enumerate() {
            let most = if *gives == Gives::One { 1 } else { MAX_LIST };
            let known;
            let known = if at == 0 {
                context
            } else {
                known = ExecContext { parameters: parameters.clone().into(), ..context.clone() };
                &known
            };
            let value = async { gather(Box::pin(plan.execute(known)).await?, most).await };
            let mut found = match value.await {
                Ok(Some(found)) => found,
                Ok(None) if self.written.is_none() && *gives == Gives::One => {
                    return Err(Error::new(
                        SqlState::CARDINALITY_VIOLATION,
                        "more than one row returned by a subquery used as an expression",
                    ));
                }
                Ok(None) => {
                    // Of one value, the statement itself says that there are more.
                    self.long.fetch_or(*gives == Gives::List, Ordering::Relaxed);
                    return Ok(None);
                }
                Err(error) if is_of_value(&error) && self.written.is_some() => return Ok(None),
                Err(error) => return Err(error),
            };
            parameters.push(match (gives, &self.types[self.own() + at]) {
                (Gives::List, SqlType::Array(element)) => {
                    Datum::Array(Arc::new(ArrayValue::new((**element).clone(), found)))
                }
                _ => found.pop().unwrap_or(Datum::Null),
            });
        }
        Ok(Some(ExecContext { parameters: parameters.into(), ..context.clone() }))
    }

    /// Runs the statement without taking anything out of it.
    async fn as_written(&self, context: &ExecContext) -> Result<StatementResult> {
        match &self.written {
            Some(plan) => Box::pin(plan.execute(context)).await,
            None => Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                format!("IN over a subquery of more than {MAX_LIST} rows is not supported here"),
            )
            .hint("Join with the subquery, in a query or before the statement.")),
        }
    }
}

/// Whether an error tells of the value, and not of the transaction, the bucket or the client.
fn is_of_value(error: &Error) -> bool {
    let code = error.code().to_string();
    // Data exceptions, and more than one row.
    error.conflict().is_none() && (code.starts_with("22") || code.starts_with("21"))
}

/// The values of a result of one column; `None`: there are more than `most`.
async fn gather(result: StatementResult, most: usize) -> Result<Option<Vec<Datum>>> {
    let StatementResult::Rows { rows, .. } = result else {
        return Err(Error::internal("a subquery without rows"));
    };
    let mut found = Vec::new();
    let mut add = |batch: Vec<Vec<Datum>>| {
        found.extend(batch.into_iter().map(|mut row| row.pop().unwrap_or(Datum::Null)));
        found.len() > most
    };
    let too_many = match rows {
        Rows::Ready(rows) => add(rows),
        Rows::Stream(mut stream) => loop {
            let Some(batch) = stream.try_next().await? else { break false };
            if add(batch) {
                break true;
            }
        },
    };
    Ok((!too_many).then_some(found))
}

/// What a statement is made of.
#[derive(Default)]
struct Shape {
    subqueries: usize,
    with: bool,
    /// Functions that do more than compute.
    effects: bool,
    /// Functions that give another value each time.
    changes: bool,
}

impl Visitor for Shape {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        self.with |= query.with.is_some();
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        let one = matches!(expr, Expr::Subquery(_) | Expr::InSubquery { .. });
        self.subqueries += usize::from(one);
        if let Expr::Function(call) = expr
            && let Some(name) = call.name.0.last().and_then(|part| part.as_ident())
        {
            let name = fold(name);
            self.effects |= registry().waits(&name);
            self.changes |= registry().is_volatile(&name);
        }
        ControlFlow::Continue(())
    }
}

/// Gives items of select lists and of RETURNING with a subquery in them the names they have as they
/// are written.
struct Names;

impl Names {
    fn give(items: &mut [SelectItem]) {
        for item in items {
            if let SelectItem::UnnamedExpr(expr) = item {
                let mut found = Shape::default();
                let _ = Visit::visit(&*expr, &mut found);
                if found.subqueries > 0 {
                    let alias = Ident::with_quote('"', output_name(expr));
                    *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
                }
            }
        }
    }
}

impl VisitorMut for Names {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        Self::give(&mut select.projection);
        ControlFlow::Continue(())
    }

    fn pre_visit_statement(&mut self, statement: &mut Statement) -> ControlFlow<()> {
        let returning = match statement {
            Statement::Insert(insert) => insert.returning.as_mut(),
            Statement::Update(update) => update.returning.as_mut(),
            Statement::Delete(delete) => delete.returning.as_mut(),
            _ => None,
        };
        Self::give(returning.map_or(&mut [], |items| items.as_mut_slice()));
        ControlFlow::Continue(())
    }
}

/// The subquery number `at` of its kind, outer ones before those inside them.
fn nth(statement: &Statement, at: usize, gives: Gives) -> Option<Query> {
    struct Nth(usize, Gives, Option<Query>);
    impl Visitor for Nth {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            let query = match (expr, self.1) {
                (Expr::Subquery(query), Gives::One) => query,
                (Expr::InSubquery { subquery, .. }, Gives::List) => subquery,
                _ => return ControlFlow::Continue(()),
            };
            if self.0 == 0 {
                self.2 = Some((**query).clone());
                return ControlFlow::Break(());
            }
            self.0 -= 1;
            ControlFlow::Continue(())
        }
    }
    let mut search = Nth(at, gives, None);
    let _ = Visit::visit(statement, &mut search);
    search.2
}

/// Puts `$number` in the place of subquery number `at` of its kind.
fn replace(statement: &mut Statement, at: usize, gives: Gives, number: usize) {
    struct Replace(usize, Gives, usize);
    impl VisitorMut for Replace {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
            let parameter = Expr::Value(Value::Placeholder(format!("${}", self.2)).into());
            let replaced = match (&*expr, self.1) {
                (Expr::Subquery(_), Gives::One) => parameter,
                (Expr::InSubquery { expr: left, negated: false, .. }, Gives::List) => Expr::AnyOp {
                    left: left.clone(),
                    compare_op: BinaryOperator::Eq,
                    right: Box::new(parameter),
                    is_some: false,
                },
                (Expr::InSubquery { expr: left, negated: true, .. }, Gives::List) => Expr::AllOp {
                    left: left.clone(),
                    compare_op: BinaryOperator::NotEq,
                    right: Box::new(parameter),
                },
                _ => return ControlFlow::Continue(()),
            };
            if self.0 == 0 {
                *expr = replaced;
                return ControlFlow::Break(());
            }
            self.0 -= 1;
            ControlFlow::Continue(())
        }
    }
    let _ = VisitMut::visit(statement, &mut Replace(at, gives, number));
}
