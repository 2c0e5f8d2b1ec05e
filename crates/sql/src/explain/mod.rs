//! EXPLAIN and EXPLAIN ANALYZE: which path a statement takes and why.
//!
//! # Invariants
//! - EXPLAIN never runs the statement, only subqueries whose one value decides what is read
//!   (`session::init_plan`); EXPLAIN ANALYZE runs it whole and throws its rows away.
//! - What is shown is the plan that is run: the same planners are asked.
//!
//! - EXPLAIN ANALYZE tells the bucket requests and dollars of the statement: from the begin of its
//!   transaction, if it began it, to the last row. Of a write alone in its transaction (a simple
//!   query of one statement) it tells the commit's share too; elsewhere the commit comes after the
//!   answer, and that is what it says.
//!
//! - With COST it lists what was used of each resource, processors and bytes to other nodes too,
//!   with its price.
//!
//! # Limits
//! EXPLAIN without ANALYZE shows no cost: what a statement requests depends on what is cached when
//! it runs. `telesto_sql_plan::cost` says what belongs to no statement.

mod tree;

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::{Value as Json, json};
use telesto_bucket::Cost;
use telesto_meter::Resource;

use crate::engine_df;
use crate::error::{Error, Result};
use crate::exec::Choice;
use crate::expr::settings::Executor;
use crate::interrupt;
use crate::plan::{ExecContext, ExecutablePlan, ParameterTypes, Plan, PlanContext};
use crate::plan::{ResultColumn, Rows, StatementResult};
use crate::session::init_plan::InitialPlan;
use crate::sqlparser::ast::{
    AnalyzeFormat, AnalyzeFormatKind, Expr, Statement, UtilityOption, Value,
};
use crate::types::Row;
use crate::types::{Datum, SqlType};

/// Begin of the line, and name of the field, that tells the commit's share.
const COMMIT: &str = "Commit";
const COMMIT_LATER: &str =
    "comes after this answer, not counted in it (afterwards: SHOW telesto.last_statement_cost)";

/// What an EXPLAIN asks for.
struct Wanted<'a> {
    statement: &'a Statement,
    analyze: bool,
    json: bool,
    cost: bool,
    /// COSTS: estimates are shown.
    costs: bool,
}

impl<'a> Wanted<'a> {
    fn of(statement: &'a Statement) -> Result<Self> {
        let Statement::Explain { analyze, statement, format, options, .. } = statement else {
            return Err(Error::internal("EXPLAIN was expected"));
        };
        let mut wanted =
            Self { statement, analyze: *analyze, json: false, cost: false, costs: true };
        let format = format.as_ref().map(|kind| match kind {
            AnalyzeFormatKind::Keyword(format) | AnalyzeFormatKind::Assignment(format) => format,
        });
        match format {
            None | Some(AnalyzeFormat::TEXT) => {}
            Some(AnalyzeFormat::JSON) => wanted.json = true,
            Some(other) => return Err(Error::unsupported(format!("EXPLAIN (FORMAT {other})"))),
        }
        for option in options.iter().flatten() {
            wanted.option(option)?;
        }
        Ok(wanted)
    }

    fn option(&mut self, option: &UtilityOption) -> Result<()> {
        let word = match &option.arg {
            None => String::new(),
            Some(Expr::Identifier(ident)) => ident.value.to_lowercase(),
            Some(Expr::Value(value)) => match &value.value {
                Value::Boolean(on) => on.to_string(),
                other => other.to_string().trim_matches('\'').to_lowercase(),
            },
            Some(other) => other.to_string().to_lowercase(),
        };
        let on = !matches!(word.as_str(), "false" | "off" | "0");
        match option.name.value.to_lowercase().as_str() {
            "analyze" => self.analyze = on,
            "cost" => self.cost = on,
            "costs" => self.costs = on,
            "format" => match word.as_str() {
                "text" => self.json = false,
                "json" => self.json = true,
                _ => return Err(Error::unsupported(format!("EXPLAIN (FORMAT {word})"))),
            },
            // Accepted and without effect: there is nothing more or less to show.
            "verbose" | "buffers" | "timing" | "summary" | "settings" | "wal" => {}
            other => {
                return Err(Error::syntax(format!("unrecognized EXPLAIN option \"{other}\"")));
            }
        }
        Ok(())
    }
}

/// An EXPLAIN, planned.
#[derive(Debug)]
pub(crate) struct ExplainPlan {
    statement: Statement,
    columns: Arc<[ResultColumn]>,
    parameters: Vec<SqlType>,
}

/// Plans an EXPLAIN.
///
/// # Errors
/// Those of the statement inside.
pub(crate) fn plan(
    statement: &Statement,
    context: &mut PlanContext<'_>,
) -> Result<Arc<ExplainPlan>> {
    let columns = describe(statement, context)?.into();
    let parameters = context.parameters.resolved();
    Ok(Arc::new(ExplainPlan { statement: statement.clone(), columns, parameters }))
}

#[async_trait]
impl ExecutablePlan for ExplainPlan {
    fn columns(&self) -> Option<&Arc<[ResultColumn]>> {
        Some(&self.columns)
    }

    fn is_by_key(&self) -> bool {
        false
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn writes(&self) -> Option<&'static str> {
        None
    }

    fn describe(&self) -> String {
        "EXPLAIN".to_owned()
    }

    async fn execute(&self, context: &ExecContext) -> Result<StatementResult> {
        interrupt::computes().await;
        let rows = run(&self.statement, &self.parameters, context).await?;
        Ok(StatementResult::Rows {
            columns: Arc::clone(&self.columns),
            rows: Rows::Ready(rows),
            tag: "EXPLAIN",
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The result of an `EXPLAIN ANALYZE` that wrote, once its commit's share is known; any other
/// unchanged.
///
/// # Errors
/// XX000 when the result is not one of EXPLAIN's.
pub(crate) fn with_commit_cost(
    statement: Option<&Statement>,
    result: StatementResult,
    commit: Cost,
) -> Result<StatementResult> {
    match (statement, result) {
        (Some(Statement::Explain { .. }), StatementResult::Rows { columns, rows, tag }) => {
            let rows = match rows {
                Rows::Ready(rows) => Rows::Ready(committed(rows, commit)?),
                stream @ Rows::Stream(_) => stream,
            };
            Ok(StatementResult::Rows { columns, rows, tag })
        }
        (_, result) => Ok(result),
    }
}

/// The result columns of an EXPLAIN; plans the statement inside.
fn describe(statement: &Statement, context: &mut PlanContext<'_>) -> Result<Vec<ResultColumn>> {
    let wanted = Wanted::of(statement)?;
    if let Statement::Query(query) = wanted.statement {
        engine_df::describe_query(query, context)?;
    }
    let ty = if wanted.json { SqlType::Json } else { SqlType::Text };
    Ok(vec![ResultColumn::new("QUERY PLAN", ty)])
}

/// Runs an EXPLAIN. Boxed: the statement inside may have a query of its own.
fn run<'a>(
    statement: &'a Statement,
    parameters: &'a [SqlType],
    context: &'a ExecContext,
) -> BoxFuture<'a, Result<Vec<Row>>> {
    explain(statement, parameters, context).boxed()
}

async fn explain(
    statement: &Statement,
    parameters: &[SqlType],
    context: &ExecContext,
) -> Result<Vec<Row>> {
    let mut wanted = Wanted::of(statement)?;
    let started = context.env.clock.monotonic();
    let mut types = known(parameters);
    let planned = context
        .planner
        .plan(
            wanted.statement,
            &mut PlanContext {
                catalog: &context.catalog,
                settings: &context.settings,
                parameters: &mut types,
                txn: Some(&context.txn),
                env: &context.env,
                earlier: Arc::default(),
                planner: &context.planner,
            },
        )
        .await;
    let planned = match planned {
        // Only running it by key alone is refused.
        Err(_) if context.settings.executor == Executor::Key => None,
        planned => Some(planned?),
    };
    let (mut context, mut parameters, mut first) = (context, parameters, Vec::new());
    let valued;
    if let Some(plan) = planned.as_ref().and_then(Plan::downcast::<InitialPlan>)
        && let Some(with_values) = plan.with_values(context).await?
    {
        first = plan.describe_values();
        valued = with_values;
        context = &valued;
        (wanted.statement, parameters) = plan.rest();
        types = known(parameters);
    }
    let key = crate::exec::plan(
        wanted.statement,
        &mut PlanContext {
            catalog: &context.catalog,
            settings: &context.settings,
            parameters: &mut types,
            txn: Some(&context.txn),
            env: &context.env,
            earlier: Arc::default(),
            planner: &context.planner,
        },
    )
    .await?;
    let mut rows = None;
    let (path, lines) = match (&key, wanted.statement) {
        (Choice::Key(plan), _) => {
            if wanted.analyze {
                rows = Some(drain(plan.execute(context).await?).await?);
            }
            ("key path", plan.describe())
        }
        (Choice::Declined(_), Statement::Query(query)) => {
            let (lines, counted) =
                engine_df::explain_query(query, parameters, context, wanted.analyze).await?;
            rows = counted;
            ("DataFusion", lines)
        }
        _ => return Err(Error::unsupported("EXPLAIN of this statement")),
    };
    first.extend(elsewhere(&key, context));
    let why = match &key {
        Choice::Declined(reason) => Some(reason),
        Choice::Key(_) => None,
    };
    let cost = context.cost.so_far();
    let items = wanted.cost.then(|| items(context));
    let prices = context.cost.meter().map_or("no bucket", |meter| meter.prices().name.as_str());
    let writes = !matches!(wanted.statement, Statement::Query(_));
    let millis = context.env.clock.monotonic().saturating_sub(started).as_secs_f64() * 1000.0;
    let lines = tree::shown(&lines, wanted.costs);
    if wanted.json {
        let tree = tree::tree(matches!(key, Choice::Key(_)), &lines);
        let mut plan = json!({ "Plan": tree, "Path": path });
        if let (Some(map), Some(why)) = (plan.as_object_mut(), why) {
            map.insert("Why Not Key".to_owned(), json!(why));
        }
        if let (Some(map), false) = (plan.as_object_mut(), first.is_empty()) {
            map.insert("First".to_owned(), json!(first));
        }
        if let (Some(map), Some(rows)) = (plan.as_object_mut(), rows) {
            map.insert("Rows".to_owned(), json!(rows));
            map.insert("Execution Time".to_owned(), json!(millis));
            map.insert("Bucket".to_owned(), cost_json(cost));
            map.insert("Prices".to_owned(), json!(prices));
            map.extend(items.map(|items| ("Cost".to_owned(), json!(items))));
            map.extend(writes.then(|| (COMMIT.to_owned(), json!(COMMIT_LATER))));
        }
        return Ok(vec![vec![json_datum(&json!([plan]))?]]);
    }
    let mut out = vec![format!("Path: {path}")];
    out.extend(why.map(|why| format!("Why not key: {why}")));
    out.extend(first);
    out.extend(lines.into_iter().map(str::to_owned));
    if let Some(rows) = rows {
        out.push(format!("Rows: {rows}"));
        out.push(format!("Execution Time: {millis:.3} ms"));
        out.push(format!("Bucket: {cost} (prices: {prices})"));
        out.extend(items.into_iter().flatten());
        if writes {
            out.push(format!("{COMMIT}: {COMMIT_LATER}"));
        }
    }
    Ok(out.into_iter().map(|line| vec![Datum::text(line)]).collect())
}

/// Tells of rows that are committed in another region, and where those are that a value places.
fn elsewhere(key: &Choice, context: &ExecContext) -> Vec<String> {
    let Choice::Key(plan) = key else { return Vec::new() };
    let home = plan.written().and_then(|table| crate::exec::homes::forwarded_to(table, context));
    let forwarded = home.map(|home| format!("Writes: forwarded to region \"{home}\""));
    let placed = plan.placed(context).map(|told| format!("Placed: {told}"));
    forwarded.into_iter().chain(placed).collect()
}

fn known(parameters: &[SqlType]) -> ParameterTypes {
    ParameterTypes::new(&parameters.iter().cloned().map(Some).collect::<Vec<_>>())
}

fn json_datum(plan: &Json) -> Result<Datum> {
    let text = serde_json::to_string_pretty(plan)
        .map_err(|error| Error::internal(format!("a plan as JSON: {error}")))?;
    Ok(Datum::Json(Arc::from(text)))
}

fn cost_json(cost: Cost) -> Json {
    json!({
        "Gets": cost.gets,
        "Puts": cost.puts,
        "Lists": cost.lists,
        "Deletes": cost.deletes,
        "Bytes Sent": cost.uploaded_bytes,
        "Bytes Received": cost.downloaded_bytes,
        "Dollars": cost.dollars,
    })
}

/// The lines of `EXPLAIN (ANALYZE, COST)`: what was used of each resource and what it costs, and
/// the sum.
fn items(context: &ExecContext) -> Vec<String> {
    let charge = context.cost.charge_at(context.env.clock.monotonic());
    let rates = context.cost.accounts().rates();
    let used = Resource::ALL.into_iter().filter(|resource| charge.get(*resource) > 0);
    let mut lines: Vec<String> = used
        .map(|resource| {
            let (amount, unit) = (charge.amount(resource), rates.of(resource, resource.units()));
            let cost = rates.of(resource, charge.get(resource));
            format!("Cost of {}: {amount} at ${unit} = ${cost}", resource.name())
        })
        .collect();
    lines.push(format!("Cost: ${}", rates.price(&charge)));
    lines
}

/// The rows of an EXPLAIN ANALYZE of a write after its commit: with the commit's share.
fn committed(mut rows: Vec<Row>, commit: Cost) -> Result<Vec<Row>> {
    let Some(last) = rows.last_mut().and_then(|row| row.first_mut()) else { return Ok(rows) };
    match last {
        Datum::Json(text) => {
            let mut plan: Json = serde_json::from_str(text)
                .map_err(|error| Error::internal(format!("a plan as JSON: {error}")))?;
            if let Some(field) = plan.get_mut(0).and_then(|plan| plan.get_mut(COMMIT)) {
                *field = cost_json(commit);
                *last = json_datum(&plan)?;
            }
        }
        Datum::Text(text) if text.starts_with(COMMIT) => {
            *last = Datum::text(format!("{COMMIT}: {commit}"));
        }
        _ => {}
    }
    Ok(rows)
}

/// The number of rows a result has, or the number its command tag tells.
async fn drain(result: StatementResult) -> Result<u64> {
    Ok(match result {
        StatementResult::Rows { rows, .. } => rows.collect().await?.len() as u64,
        StatementResult::Command { tag } => {
            tag.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
        }
        _ => 0,
    })
}
