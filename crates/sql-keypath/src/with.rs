//! Statements of several parts: INSERT, UPDATE, DELETE and MERGE inside WITH, and WITH in front of
//! them.
//!
//! # Protocol
//! ```text
//! WITH a AS (DELETE … RETURNING …), b AS (SELECT … FROM a), c AS (INSERT … SELECT … FROM b)  SELECT … FROM a
//!      part 0: run to its end, rows kept            part 1: reads part 0     main: reads part 0
//! ```
//! Parts run in the order they are written, each once and to its end, whether or not it is referred
//! to; then foreign keys are settled; then the main statement gives its rows. A later part sees an
//! earlier one as `SELECT * FROM` the relation its rows are in ([`telesto_sql_plan::with_rows`]).
//!
//! # Invariants
//! - Every part reads through one view of the transaction: the state at the statement's start.
//! - A CTE that only reads and is referred to several times beside parts that write is a part too,
//!   so that its rows are the same to all; so is one that locks rows or calls what is volatile, as
//!   PostgreSQL never merges these into what refers to them.
//!
//! # Limits
//! Others are left to DataFusion, which computes once what groups, or is MATERIALIZED, and is
//! referred to several times, inside of subqueries too.
//!
//! # On failure
//! The statement's error; the caller undoes its writes. 53200 when the rows kept do not fit the
//! statement's memory.

use std::ops::ControlFlow;
use std::sync::Arc;

use futures::TryStreamExt as _;
use telesto_common::limits::Reservation;

use super::source::enclosed;
use super::write::Statement;
use super::{Choice, KeyPlan, Kind};
use telesto_sql_expr::{EvalContext, fold, registry};
use telesto_sql_parser::sqlparser::ast::{self, Cte, Ident, ObjectName, Query, SetExpr};
use telesto_sql_plan::with_rows::{Earlier, PartRows, Parts, part_name, uses};
use telesto_sql_plan::{ExecContext, Plan, PlanContext};
use telesto_sql_plan::{ResultColumn, Rows, StatementResult};
use telesto_sql_types::Row;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::held::{out_of_memory, row_bytes};

/// A statement of several parts.
#[derive(Debug)]
pub(super) struct WithPlan {
    parts: Vec<Plan>,
    main: Plan,
}

impl WithPlan {
    /// The command it is, if a part of it writes or locks.
    pub fn writes(&self) -> Option<&'static str> {
        let of = |plan: &Plan| match plan {
            Plan::Run(plan) => plan.writes(),
            _ => None,
        };
        of(&self.main).or_else(|| self.parts.iter().find_map(of).map(|_| "SELECT"))
    }
}

/// The statement that writes which a query is made of.
fn writing(query: &Query) -> Option<&ast::Statement> {
    match &*query.body {
        SetExpr::Insert(statement)
        | SetExpr::Update(statement)
        | SetExpr::Delete(statement)
        | SetExpr::Merge(statement) => Some(statement),
        _ => None,
    }
}

/// Whether a query writes, inside its WITH or as a whole, or locks inside its WITH.
#[must_use]
pub fn writes_inside(query: &Query) -> bool {
    let parts = query.with.iter().flat_map(|with| &with.cte_tables);
    writing(query).is_some() || parts.into_iter().any(|cte| acts(&cte.query))
}

/// Whether a query is a statement of several parts: one that writes or locks, or has a CTE that is
/// computed once.
pub(super) fn concerns(query: &Query) -> bool {
    let once = |with: &ast::With| {
        let uses = uses(query, with);
        uses.iter().enumerate().any(|(at, uses)| computed_once(with, at, *uses))
    };
    writes_inside(query) || query.with.as_ref().is_some_and(once)
}

/// Whether a CTE that only reads is one whose rows are the same to all who refer to it.
fn computed_once(with: &ast::With, at: usize, uses: usize) -> bool {
    let cte = &with.cte_tables[at];
    let recursive = with.recursive && mentions(&cte.query, &fold(&cte.alias.name)) > 0;
    match uses {
        0 => false,
        1 => !recursive && volatile(&cte.query),
        _ => volatile(&cte.query),
    }
}

/// Whether a query calls what gives another value each time.
pub(super) fn volatile(query: &Query) -> bool {
    ast::visit_expressions(query, |expr| {
        let name = match expr {
            ast::Expr::Function(call) => call.name.0.last().and_then(|part| part.as_ident()),
            _ => None,
        };
        match name {
            Some(name) if registry().is_volatile(&fold(name)) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    })
    .is_break()
}

/// Whether a CTE does more than read, and so runs once, whoever refers to it.
fn acts(query: &Query) -> bool {
    writing(query).is_some() || !query.locks.is_empty()
}

/// How often something names `name` as a relation.
fn mentions(node: &impl ast::Visit, name: &str) -> usize {
    let mut count = 0;
    let _ = ast::visit_relations(node, |relation| {
        let single = relation.0.len() == 1;
        let hit = single && relation.0[0].as_ident().is_some_and(|ident| fold(ident) == name);
        count += usize::from(hit);
        ControlFlow::<()>::Continue(())
    });
    count
}

/// `SELECT * FROM name`.
pub(super) fn all_of(name: &str) -> Result<Query> {
    let mut query = made_here("SELECT * FROM given")?;
    let found = ast::visit_relations_mut(&mut query, |relation| {
        *relation = ObjectName::from(vec![Ident::with_quote('"', name)]);
        ControlFlow::<()>::Continue(())
    });
    debug_assert!(found.is_continue(), "nothing stops the visit");
    Ok(query)
}

/// A query text made here.
fn made_here(sql: &str) -> Result<Query> {
    telesto_sql_parser::syntax::read_query(sql).map_err(|unread| {
        unread
            .or_else(|error| Error::internal(format!("a query made here does not parse: {error}")))
    })
}

/// Plans a statement of several parts.
///
/// # Errors
/// Errors of the statement.
pub(super) async fn plan(query: &Query, context: &mut PlanContext<'_>) -> Result<KeyPlan> {
    let mut earlier = Earlier::clone(&context.earlier);
    let mut parts = Vec::new();
    let all_read = !writes_inside(query);
    if let Some(with) = &query.with {
        let named = uses(query, with);
        let mut seen = ast::With { cte_tables: Vec::new(), ..with.clone() };
        for (at, cte) in with.cte_tables.iter().enumerate() {
            let name = fold(&cte.alias.name);
            if with.cte_tables[..at].iter().any(|other| fold(&other.alias.name) == name) {
                return Err(Error::new(
                    SqlState::DUPLICATE_ALIAS,
                    format!("WITH query name \"{name}\" specified more than once"),
                ));
            }
            let uses = named[at];
            let writes = writing(&cte.query).is_some();
            let shared = uses > 1 && !all_read;
            if !acts(&cte.query) && !shared && !computed_once(with, at, uses) {
                seen.cte_tables.push(cte.clone());
            } else {
                let plan = part(cte, &name, &seen, &earlier, context).await?;
                let columns = plan.columns().cloned();
                if columns.is_none() && uses > 0 {
                    return Err(Error::new(
                        SqlState::FEATURE_NOT_SUPPORTED,
                        format!("WITH query \"{name}\" does not have a RETURNING clause"),
                    ));
                }
                let mut known = cte.clone();
                known.query = Box::new(all_of(&part_name(parts.len()))?);
                // It is computed now: else it would be a part again, without end.
                known.materialized = None;
                if with.recursive && !writes && mentions(&cte.query, &name) > 0 {
                    // Its columns have the names of the alias already.
                    known.alias.columns.clear();
                }
                earlier.parts.push(columns.clone().unwrap_or_else(|| Arc::from([])));
                if columns.is_some() {
                    seen.cte_tables.push(known);
                }
                parts.push(plan);
            }
            earlier.with = (!seen.cte_tables.is_empty()).then(|| seen.clone());
        }
    }
    let main = Query { with: None, ..query.clone() };
    let main = under(&main, earlier, context).await?;
    let columns = main.columns().cloned();
    let plan = WithPlan { parts, main };
    Ok(KeyPlan { columns, read_only: all_read, kind: Kind::With(Box::new(plan)) })
}

/// Plans one CTE.
async fn part(
    cte: &Cte,
    name: &str,
    seen: &ast::With,
    earlier: &Earlier,
    context: &mut PlanContext<'_>,
) -> Result<Plan> {
    let refers_to_itself = seen.recursive && mentions(&cte.query, name) > 0;
    if writing(&cte.query).is_none() {
        if !refers_to_itself && !cte.query.pipe_operators.is_empty() {
            return Err(Error::syntax("WITH query is not recursive"));
        }
        if !refers_to_itself {
            return under(&cte.query, earlier.clone(), context).await;
        }
        if !cte.query.locks.is_empty() {
            return Err(locks_recursively(&cte.query, name));
        }
        let mut with = seen.clone();
        with.cte_tables.push(cte.clone());
        let earlier = Earlier { with: Some(with), ..earlier.clone() };
        return under(&all_of(name)?, earlier, context).await;
    }
    if refers_to_itself {
        return Err(Error::new(
            SqlState::INVALID_RECURSION,
            format!("recursive query \"{name}\" must not contain data-modifying statements"),
        ));
    }
    let mut earlier = earlier.clone();
    let mut query = (*cte.query).clone();
    if let Some(own) = query.with.take() {
        if own.cte_tables.iter().any(|inner| writing(&inner.query).is_some()) {
            return Err(telesto_sql_plan::with_rows::not_at_the_top());
        }
        let mut with = earlier
            .with
            .clone()
            .unwrap_or_else(|| ast::With { cte_tables: Vec::new(), ..own.clone() });
        with.recursive |= own.recursive;
        with.cte_tables.extend(own.cte_tables);
        earlier.with = Some(with);
    }
    under(&query, earlier, context).await
}

/// The error for FOR UPDATE behind a query that names itself. It would be a part of its own step,
/// without end.
fn locks_recursively(query: &Query, name: &str) -> Error {
    if matches!(*query.body, SetExpr::SetOperation { .. }) {
        return Error::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            "FOR UPDATE/SHARE is not allowed with UNION/INTERSECT/EXCEPT",
        );
    }
    Error::new(
        SqlState::INVALID_RECURSION,
        format!(
            "recursive query \"{name}\" does not have the form non-recursive-term UNION [ALL] recursive-term"
        ),
    )
}

/// Plans a query or a statement that writes, with the WITH list of `earlier` in view.
async fn under(query: &Query, earlier: Earlier, context: &mut PlanContext<'_>) -> Result<Plan> {
    let with = earlier.with.clone();
    let mut inner = PlanContext {
        catalog: context.catalog,
        settings: context.settings,
        parameters: &mut *context.parameters,
        txn: context.txn,
        env: context.env,
        earlier: Arc::new(earlier),
        planner: context.planner,
    };
    match writing(query) {
        None => {
            let query = enclosed(query.clone(), with.as_ref());
            let statement = ast::Statement::Query(Box::new(query));
            inner.planner.plan(&statement, &mut inner).await
        }
        Some(statement) => {
            if with.is_some() {
                // What nothing refers to must be right all the same.
                let unused = enclosed(all_of_nothing()?, with.as_ref());
                inner.planner.describe_query(&unused, &mut inner)?;
            }
            match Box::pin(super::plan(statement, &mut inner)).await? {
                Choice::Key(plan) => Ok(Plan::of(plan)),
                Choice::Declined(_) => Err(Error::unsupported("this statement in WITH")),
            }
        }
    }
}

/// `SELECT 1`.
fn all_of_nothing() -> Result<Query> {
    made_here("SELECT 1")
}

impl WithPlan {
    /// Lines for EXPLAIN.
    pub fn describe(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            lines.push(format!("Part {}: {}", number + 1, describe(part)));
        }
        lines.push(format!("Then: {}", describe(&self.main)));
        lines.join("\n")
    }

    /// Runs all parts, then the main statement.
    pub(super) async fn execute(&self, context: &ExecContext) -> Result<StatementResult> {
        let parts = Arc::new(Parts::default());
        let mut exec = context.clone();
        exec.txn = context.txn.view();
        exec.parts = Some(Arc::clone(&parts));
        for part in &self.parts {
            let rows = match execute(part, &exec).await? {
                StatementResult::Rows { columns, rows, .. } => keep(columns, rows, &exec).await?,
                _ => keep(Arc::from([]), Rows::Ready(Vec::new()), &exec).await?,
            };
            parts.push(rows);
        }
        let result = match &self.main {
            Plan::Run(main) if main.is_by_key() && !main.is_read_only() => {
                let result = Box::pin(main.execute(&exec)).await?;
                settle(&exec, &parts).await?;
                result
            }
            main => {
                settle(&exec, &parts).await?;
                execute(main, &exec).await?
            }
        };
        Ok(result)
    }
}

fn describe(plan: &Plan) -> String {
    match plan {
        Plan::Run(plan) if plan.is_by_key() => plan.describe(),
        Plan::Run(_) => "a query".to_owned(),
        Plan::Session => String::new(),
    }
}

async fn execute(plan: &Plan, exec: &ExecContext) -> Result<StatementResult> {
    match plan {
        Plan::Session => Err(Error::unsupported("this statement in WITH")),
        plan => Box::pin(plan.execute(exec)).await,
    }
}

/// Settles the foreign keys of all parts.
async fn settle(exec: &ExecContext, parts: &Parts) -> Result<()> {
    let alone = ExecContext { parts: None, ..exec.clone() };
    let context = EvalContext::executing(&alone);
    let mut statement = Statement::over(&alone, &context);
    statement.resume(parts.take_pending());
    statement.finish().await
}

/// Reads rows to their end, counted against the statement's memory.
async fn keep(columns: Arc<[ResultColumn]>, rows: Rows, exec: &ExecContext) -> Result<PartRows> {
    let mut held: Reservation =
        exec.memory.reserve("rows of RETURNING", 0).map_err(out_of_memory)?;
    let mut all: Vec<Row> = Vec::new();
    match rows {
        Rows::Ready(rows) => {
            held.grow(rows.iter().map(row_bytes).sum()).map_err(out_of_memory)?;
            all = rows;
        }
        Rows::Stream(mut stream) => {
            while let Some(batch) = stream.try_next().await? {
                held.grow(batch.iter().map(row_bytes).sum()).map_err(out_of_memory)?;
                all.extend(batch);
            }
        }
    }
    Ok(PartRows { columns, rows: all, held })
}
