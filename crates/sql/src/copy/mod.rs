//! COPY: bulk data in and out, as text, csv or binary.
//!
//! # Protocol
//! In: the client's data is cut into rows as it comes; batches of rows go the way of INSERT's, so
//! that defaults, constraints and indexes are those of any INSERT. Out: a query's rows are written
//! one by one as they are pulled.
//!
//! # Invariants
//! - At most one batch of rows is held, in and out.
//! - Generated columns are never copied.
//! - COPY FROM takes effect whole or not at all: it is one statement of its transaction.
//!
//! # On failure
//! Errors name the line (`COPY t, line 3`): 22P04 for malformed data, else that of the value or the
//! constraint.
//!
//! # Limits
//! No files or programs on the server.

mod binary;
mod condition;
pub(crate) mod fuzz;
mod input;
mod line_ends;
mod lines;
mod options;

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::BytesMut;
use futures::StreamExt as _;

use telesto_sql_plan::{RowStream, Rows, row_security};

use self::input::CopyIn;
use self::lines::encode;
use self::options::Options;
use crate::catalog::{Generated, Relation, Table};
use crate::error::{Error, Result, SqlState};
use crate::expr::Settings;
use crate::expr::context::EvalContext;
use crate::interrupt;
use crate::plan::{CopyFormat, CopyPiece, ExecutablePlan, ResultColumn, StatementResult};
use crate::plan::{ExecContext, PlanContext};
use crate::sqlparser::ast::{
    CopySource, CopyTarget, Expr, Ident, LimitClause, ObjectName, Query, SetExpr, Statement, Value,
};
use crate::types::Row;
use crate::types::{Datum, SqlType};

/// A COPY, planned.
#[derive(Debug)]
pub(crate) struct CopyPlan {
    statement: Statement,
    columns: Arc<[ResultColumn]>,
    parameters: Vec<SqlType>,
    sent: Option<Sent>,
}

/// What COPY TO sends: a query and its columns.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub query: Statement,
    pub columns: Arc<[ResultColumn]>,
}

impl CopyPlan {
    /// What it sends, if it is one that does.
    pub fn sent(&self) -> Option<&Sent> {
        self.sent.as_ref()
    }
}

/// Plans a COPY.
///
/// # Errors
/// Those of the statement.
pub(crate) fn plan(statement: &Statement, context: &mut PlanContext<'_>) -> Result<Arc<CopyPlan>> {
    check(statement, context)?;
    let sent = match query_of(statement, context.catalog, context.settings)? {
        None => None,
        Some(query) => {
            let columns = crate::engine_df::describe_query(&query, context)?.into();
            Some(Sent { query: Statement::Query(Box::new(query)), columns })
        }
    };
    let (statement, parameters) = (statement.clone(), context.parameters.resolved());
    Ok(Arc::new(CopyPlan { statement, columns: Arc::from([]), parameters, sent }))
}

#[async_trait]
impl ExecutablePlan for CopyPlan {
    /// None of them: COPY has a protocol of its own.
    fn columns(&self) -> Option<&Arc<[ResultColumn]>> {
        Some(&self.columns)
    }

    fn is_by_key(&self) -> bool {
        false
    }

    fn is_read_only(&self) -> bool {
        self.writes().is_none()
    }

    fn writes(&self) -> Option<&'static str> {
        match &self.statement {
            Statement::Copy { source: CopySource::Query(query), to: true, .. } => writing(query),
            Statement::Copy { to: true, .. } => None,
            _ => Some("COPY FROM"),
        }
    }

    fn describe(&self) -> String {
        "COPY".to_owned()
    }

    async fn execute(&self, context: &ExecContext) -> Result<StatementResult> {
        interrupt::computes().await;
        run(&self.statement, &self.parameters, context).await
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Checks a COPY while it is planned: its names and options.
///
/// # Errors
/// Those of the statement.
fn check(statement: &Statement, context: &mut PlanContext<'_>) -> Result<()> {
    let Statement::Copy { source, target, options, legacy_options, to, .. } = statement else {
        return Err(Error::internal("COPY was expected"));
    };
    let options = Options::of(options, legacy_options)?;
    options.check_direction(*to)?;
    match (target, to) {
        (CopyTarget::Stdin, false) | (CopyTarget::Stdout, true) => {}
        (CopyTarget::Stdin | CopyTarget::Stdout, _) => {
            return Err(Error::syntax("COPY goes FROM STDIN or TO STDOUT"));
        }
        _ => {
            return Err(Error::new(
                SqlState::INSUFFICIENT_PRIVILEGE,
                "COPY to or from a file or program on the server is not allowed",
            )
            .hint("Use COPY FROM STDIN or TO STDOUT, or psql's \\copy."));
        }
    }
    match source {
        CopySource::Query(query) if writing(query).is_some() => needs_rows(query)?,
        // It is described by who plans.
        CopySource::Query(_) => {}
        CopySource::Table { table_name, columns } => {
            let table = target_table(table_name, context.catalog, context.settings)?;
            context.catalog.check_replicated(&table)?;
            chosen_columns(&table, columns)?;
            if let Some(text) = &options.condition {
                let eval = EvalContext::planning(context.settings, context.catalog);
                condition::bind(text, &table, &eval)?;
            }
        }
    }
    Ok(())
}

async fn run(
    statement: &Statement,
    parameters: &[SqlType],
    context: &ExecContext,
) -> Result<StatementResult> {
    let Statement::Copy { source, options, legacy_options, to, .. } = statement else {
        return Err(Error::internal("COPY was expected"));
    };
    let options = Options::of(options, legacy_options)?;
    match source {
        CopySource::Table { table_name, columns } if !to => {
            let table = target_table(table_name, &context.catalog, &context.settings)?;
            let role = context.settings.current_role;
            if row_security::is_on(&table, &context.catalog, &context.settings, role)? {
                return Err(Error::new(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    "COPY FROM not supported with row-level security",
                )
                .hint("Use INSERT statements instead."));
            }
            let chosen = chosen_columns(&table, columns)?;
            let target = CopyIn::prepare(&table, chosen, options.clone(), context)?;
            Ok(StatementResult::CopyIn {
                format: options.format,
                columns: target.width(),
                target: Box::new(target),
            })
        }
        CopySource::Table { table_name, columns } => {
            let table = target_table(table_name, &context.catalog, &context.settings)?;
            let query = query_of_table(table_name, &table, columns)?;
            if context.catalog.places_rows() {
                return copy_out(&query, options, parameters, context, Some(&table)).await;
            }
            table_out(query, options, context, &table).await
        }
        CopySource::Query(query) if writing(query).is_some() => {
            let written = match (&query.with, &*query.body) {
                (
                    None,
                    SetExpr::Insert(inner) | SetExpr::Update(inner) | SetExpr::Delete(inner),
                ) => inner.clone(),
                _ => Statement::Query(query.clone()),
            };
            let run = Box::pin(telesto_sql_plan::query_statement(context, &written));
            let (columns, rows) = run.await?;
            let rows = rows.collect().await?;
            let rows = Box::pin(futures::stream::once(async move { Ok(rows) }));
            copy_rows(&columns, rows, options, context, None)
        }
        CopySource::Query(query) => copy_out(query, options, parameters, context, None).await,
    }
}

/// The query whose rows a COPY TO sends; nothing for COPY FROM.
///
/// # Errors
/// Those of the table's and the columns' names.
pub(crate) fn query_of(
    statement: &Statement,
    catalog: &crate::catalog::CatalogSnapshot,
    settings: &Settings,
) -> Result<Option<Query>> {
    match statement {
        Statement::Copy { source: CopySource::Query(query), to: true, .. }
            if writing(query).is_none() =>
        {
            Ok(Some((**query).clone()))
        }
        Statement::Copy { source: CopySource::Table { table_name, columns }, to: true, .. } => {
            let table = target_table(table_name, catalog, settings)?;
            query_of_table(table_name, &table, columns).map(Some)
        }
        _ => Ok(None),
    }
}

fn query_of_table(name: &ObjectName, table: &Table, columns: &[Ident]) -> Result<Query> {
    let chosen = chosen_columns(table, columns)?;
    let names: Vec<String> = chosen
        .iter()
        .map(|at| Ident::with_quote('"', table.columns[*at].name.as_str()).to_string())
        .collect();
    parse_query(&format!("SELECT {} FROM {name}", names.join(", ")))
}

/// What a COPY TO gives whose rows another region has sent.
///
/// # Errors
/// Those of its options.
pub(crate) fn sent_elsewhere(
    statement: &Statement,
    (columns, rows): (&[ResultColumn], RowStream),
    context: &ExecContext,
) -> Result<StatementResult> {
    let Statement::Copy { source, options, legacy_options, .. } = statement else {
        return Err(Error::internal("COPY was expected"));
    };
    let options = Options::of(options, legacy_options)?;
    let table = match source {
        CopySource::Table { table_name, .. } => {
            Some(target_table(table_name, &context.catalog, &context.settings)?)
        }
        CopySource::Query(_) => None,
    };
    copy_rows(columns, rows, options, context, table.as_deref())
}

/// What a query writes, by itself or in its WITH.
fn writing(query: &Query) -> Option<&'static str> {
    let parts = query.with.iter().flat_map(|with| &with.cte_tables);
    match &*query.body {
        SetExpr::Insert(_) => Some("INSERT"),
        SetExpr::Update(_) => Some("UPDATE"),
        SetExpr::Delete(_) => Some("DELETE"),
        _ => parts.into_iter().find_map(|cte| writing(&cte.query)),
    }
}

/// Refuses a statement that writes and gives no rows.
fn needs_rows(query: &Query) -> Result<()> {
    let returns = match &*query.body {
        SetExpr::Insert(Statement::Insert(insert)) => insert.returning.is_some(),
        SetExpr::Update(Statement::Update(update)) => update.returning.is_some(),
        SetExpr::Delete(Statement::Delete(delete)) => delete.returning.is_some(),
        _ => true,
    };
    match returns {
        true => Ok(()),
        false => Err(Error::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            "COPY query must have a RETURNING clause",
        )),
    }
}

fn target_table(
    name: &ObjectName,
    catalog: &crate::catalog::CatalogSnapshot,
    settings: &Settings,
) -> Result<Arc<Table>> {
    let parts: Vec<String> = name
        .0
        .iter()
        .filter_map(|part| part.as_ident())
        .map(|ident| {
            if ident.quote_style.is_some() {
                ident.value.clone()
            } else {
                ident.value.to_lowercase()
            }
        })
        .collect();
    let (schema, table) = match parts.as_slice() {
        [table] => (None, table),
        [.., schema, table] => (Some(schema.as_str()), table),
        [] => return Err(Error::syntax("COPY needs a table")),
    };
    match catalog.resolve(schema, table, &settings.effective_search_path()) {
        Some(Relation::Table(table)) => Ok(Arc::clone(table)),
        Some(_) => Err(Error::new(
            SqlState::WRONG_OBJECT_TYPE,
            format!("cannot copy \"{table}\": it is not a table"),
        )
        .hint("Use COPY (SELECT …) TO STDOUT.")),
        None => Err(Error::new(
            SqlState::UNDEFINED_TABLE,
            format!("relation \"{}\" does not exist", parts.join(".")),
        )),
    }
}

fn is_generated(table: &Table, column: usize) -> bool {
    matches!(table.columns[column].generated, Some(Generated::Stored(_)))
}

/// Positions of the columns copied.
fn chosen_columns(table: &Table, columns: &[Ident]) -> Result<Vec<usize>> {
    if columns.is_empty() {
        let given = |at: &usize| !is_generated(table, *at);
        return Ok(table.visible_columns().map(|(at, _)| at).filter(given).collect());
    }
    let mut out: Vec<usize> = Vec::with_capacity(columns.len());
    for ident in columns {
        let name = if ident.quote_style.is_some() {
            ident.value.clone()
        } else {
            ident.value.to_lowercase()
        };
        let at = table.column_position(&name).ok_or_else(|| {
            Error::new(
                SqlState::UNDEFINED_COLUMN,
                format!("column \"{name}\" of relation \"{}\" does not exist", table.name),
            )
        })?;
        if is_generated(table, at) {
            return Err(Error::new(
                SqlState::INVALID_COLUMN_REFERENCE,
                format!("column \"{name}\" is a generated column"),
            )
            .detail("Generated columns cannot be used in COPY."));
        }
        if out.contains(&at) {
            return Err(Error::new(
                SqlState::DUPLICATE_COLUMN,
                format!("column \"{name}\" specified more than once"),
            ));
        }
        out.push(at);
    }
    Ok(out)
}

fn parse_query(sql: &str) -> Result<Query> {
    crate::syntax::read_query(sql).map_err(|unread| {
        unread.or_else(|error| Error::internal(format!("a query of COPY does not parse: {error}")))
    })
}

/// The rows of a table as they are stored. In key order, by key: DataFusion has no `-0`, and no
/// timestamp of the last thirty years of PostgreSQL's range. It reads them where policies hide
/// some.
async fn table_out(
    mut query: Query,
    options: Options,
    context: &ExecContext,
    table: &Table,
) -> Result<StatementResult> {
    // Without a limit the key path leaves whole tables to DataFusion; this is none.
    let all = Expr::value(Value::Number(i64::MAX.to_string(), false));
    query.limit_clause =
        Some(LimitClause::LimitOffset { limit: Some(all), offset: None, limit_by: Vec::new() });
    let statement = Statement::Query(Box::new(query));
    let (columns, rows) = Box::pin(telesto_sql_plan::query_statement(context, &statement)).await?;
    let rows: RowStream = match rows {
        Rows::Ready(rows) => Box::pin(futures::stream::once(async move { Ok(rows) })),
        Rows::Stream(rows) => rows,
    };
    copy_rows(&columns, rows, options, context, Some(table))
}

async fn copy_out(
    query: &Query,
    options: Options,
    parameters: &[SqlType],
    context: &ExecContext,
    table: Option<&Table>,
) -> Result<StatementResult> {
    let (columns, rows) = crate::engine_df::run_described(query, parameters, context).await?;
    let rows = match context.catalog.places_rows() {
        true => begun(rows).await?,
        false => rows,
    };
    copy_rows(&columns, rows, options, context, table)
}

/// The rows, of which the first ones were found: whether they are here is told before something is
/// sent.
async fn begun(mut rows: RowStream) -> Result<RowStream> {
    let first = rows.next().await.transpose()?;
    Ok(futures::stream::iter(first.map(Ok)).chain(rows).boxed())
}

/// The rows as COPY writes them.
fn copy_rows(
    columns: &[ResultColumn],
    rows: RowStream,
    options: Options,
    context: &ExecContext,
    table: Option<&Table>,
) -> Result<StatementResult> {
    let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
    let forced = options::flags(&options.force_quote, &names, "FORCE_QUOTE", table)?;
    let types: Vec<SqlType> = columns.iter().map(|column| column.ty.clone()).collect();
    let head = options.header.then(|| {
        let names: Vec<_> =
            columns.iter().map(|column| Some(column.name.as_str().into())).collect();
        Ok(CopyPiece { bytes: encode(&names, &options, &[]).into(), rows: 0 })
    });
    let (format, width) = (options.format, types.len());
    let binary = format == CopyFormat::Binary;
    // The header of the binary format comes with the first row, or with the end mark: clients look
    // for it there.
    let mut before = BytesMut::new();
    if binary {
        binary::header(&mut before);
    }
    let context = context.clone();
    let batches = rows.map(Some).chain(futures::stream::once(async { None }));
    let pieces = batches.flat_map(move |batch| {
        let pieces = match batch {
            None if binary => {
                let mut bytes = before.split();
                binary::trailer(&mut bytes);
                vec![Ok(CopyPiece { bytes: bytes.freeze(), rows: 0 })]
            }
            None => Vec::new(),
            Some(Err(error)) => vec![Err(error)],
            Some(Ok(batch)) if binary => batch
                .iter()
                .map(|row| {
                    let mut bytes = before.split();
                    binary::encode(row, &types, &mut bytes);
                    Ok(CopyPiece { bytes: bytes.freeze(), rows: 1 })
                })
                .collect(),
            Some(Ok(batch)) => {
                let eval = EvalContext::executing(&context);
                batch.iter().map(|row| line(row, &types, &options, &forced, &eval)).collect()
            }
        };
        futures::stream::iter(pieces)
    });
    let data = Box::pin(futures::stream::iter(head).chain(pieces));
    Ok(StatementResult::CopyOut { format, columns: width, data })
}

/// A row as a line of text or csv.
fn line(
    row: &Row,
    types: &[SqlType],
    options: &Options,
    forced: &[bool],
    eval: &EvalContext<'_>,
) -> Result<CopyPiece> {
    let fields = row
        .iter()
        .zip(types)
        .map(|(value, ty)| match value {
            Datum::Null => Ok(None),
            value => crate::expr::cast::output(value, ty, eval).map(|text| Some(text.into())),
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(CopyPiece { bytes: encode(&fields, options, forced).into(), rows: 1 })
}
