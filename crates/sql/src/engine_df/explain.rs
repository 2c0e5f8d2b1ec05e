//! EXPLAIN and EXPLAIN ANALYZE: which path a statement takes and why.
//!
//! # Invariants
//! - EXPLAIN never runs the statement; EXPLAIN ANALYZE runs it whole and throws its rows away.
//! - What is shown is the plan that is run: the same planners are asked.
//!
//! # Limits
//! Bucket requests and dollars are those of the commit and are shown by the server's metrics; a statement's own reads
//! are not told apart here.

use std::sync::Arc;

use datafusion::physical_plan::display::DisplayableExecutionPlan;
use futures::future::BoxFuture;
use futures::{FutureExt, TryStreamExt};
use serde_json::json;

use super::{physical, stream};
use crate::error::{Error, Result};
use crate::plan::{ExecContext, ParameterTypes, PlanContext};
use crate::session::{ResultColumn, Row, StatementResult};
use crate::sqlparser::ast::{
    AnalyzeFormat, AnalyzeFormatKind, Expr, Statement, UtilityOption, Value,
};
use crate::types::{Datum, SqlType};

/// What an EXPLAIN asks for.
struct Wanted<'a> {
    statement: &'a Statement,
    analyze: bool,
    json: bool,
}

impl<'a> Wanted<'a> {
    fn of(statement: &'a Statement) -> Result<Self> {
        let Statement::Explain { analyze, statement, format, options, .. } = statement else {
            return Err(Error::internal("EXPLAIN was expected"));
        };
        let mut wanted = Self { statement, analyze: *analyze, json: false };
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
            "format" => match word.as_str() {
                "text" => self.json = false,
                "json" => self.json = true,
                _ => return Err(Error::unsupported(format!("EXPLAIN (FORMAT {word})"))),
            },
            // Accepted and without effect: there is nothing more or less to show.
            "verbose" | "costs" | "buffers" | "timing" | "summary" | "settings" | "wal" => {}
            other => {
                return Err(Error::syntax(format!("unrecognized EXPLAIN option \"{other}\"")));
            }
        }
        Ok(())
    }
}

/// The result columns of an EXPLAIN; plans the statement inside.
pub(super) fn describe(
    statement: &Statement,
    context: &mut PlanContext<'_>,
) -> Result<Vec<ResultColumn>> {
    let wanted = Wanted::of(statement)?;
    if let Statement::Query(query) = wanted.statement {
        super::describe_query(query, context)?;
    }
    let ty = if wanted.json { SqlType::Json } else { SqlType::Text };
    Ok(vec![ResultColumn::new("QUERY PLAN", ty)])
}

/// Runs an EXPLAIN. Boxed: the statement inside may have a query of its own.
pub(super) fn run<'a>(
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
    let wanted = Wanted::of(statement)?;
    let started = context.env.clock.monotonic();
    let mut types = ParameterTypes::new(&parameters.iter().cloned().map(Some).collect::<Vec<_>>());
    let key = crate::exec::plan(
        wanted.statement,
        &mut PlanContext {
            catalog: &context.catalog,
            settings: &context.settings,
            parameters: &mut types,
            txn: Some(&context.txn),
            env: &context.env,
        },
    )
    .await?;
    let mut rows = None;
    let (path, lines) = match (&key, wanted.statement) {
        (Some(plan), _) => {
            if wanted.analyze {
                rows = Some(drain(plan.execute(context).await?).await?);
            }
            ("key path", plan.describe())
        }
        (None, Statement::Query(query)) => {
            let physical = physical(query, parameters, context).await?;
            if wanted.analyze {
                let counted = stream(&physical, context)?
                    .try_fold(0_u64, |rows, batch| async move { Ok(rows + batch.len() as u64) });
                rows = Some(counted.await?);
                let shown = DisplayableExecutionPlan::with_metrics(physical.plan.as_ref());
                ("DataFusion", shown.indent(false).to_string())
            } else {
                let shown = DisplayableExecutionPlan::new(physical.plan.as_ref());
                ("DataFusion", shown.indent(false).to_string())
            }
        }
        _ => return Err(Error::unsupported("EXPLAIN of this statement")),
    };
    let took = context.env.clock.monotonic().saturating_sub(started);
    let millis = took.as_secs_f64() * 1000.0;
    let lines: Vec<&str> =
        lines.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    if wanted.json {
        let mut plan = json!({ "Path": path, "Plan": lines });
        if let (Some(map), Some(rows)) = (plan.as_object_mut(), rows) {
            map.insert("Rows".to_owned(), json!(rows));
            map.insert("Execution Time".to_owned(), json!(millis));
        }
        let text = serde_json::to_string_pretty(&json!([plan]))
            .map_err(|error| Error::internal(format!("a plan as JSON: {error}")))?;
        return Ok(vec![vec![Datum::Json(Arc::from(text))]]);
    }
    let mut out = vec![format!("Path: {path}")];
    out.extend(lines.into_iter().map(str::to_owned));
    if let Some(rows) = rows {
        out.push(format!("Rows: {rows}"));
        out.push(format!("Execution Time: {millis:.3} ms"));
    }
    Ok(out.into_iter().map(|line| vec![Datum::text(line)]).collect())
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
