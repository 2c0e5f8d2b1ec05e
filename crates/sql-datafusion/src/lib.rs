//! The DataFusion executor: every query that is not on the key path.
//!
//! # Protocol
//! ```text
//! statement --bind (PostgreSQL's names and types)--> logical plan --DataFusion--> operators
//!                                                                        |
//!     rows out <-- Datum <-- Arrow batches <-- operators <-- SourceExec: transaction scans, system tables
//! ```
//! Planning ([`plan_into`]) binds the statement once for its result columns and parameter types. An
//! execution binds again with the parameter values as constants, so that DataFusion plans for what
//! is asked; a statement that is executed again is planned for any values (`keeping`).
//!
//! # Invariants
//! - Every read goes through the statement's transaction and is recorded there for validation.
//! - A query holds at most its memory bound; beyond it operators spill to files.
//! - Rows are produced as they are pulled; dropping the stream stops everything.
//!
//! # On failure
//! Errors keep their SQLSTATE through DataFusion (`fault`).

mod aggregate;
mod apply;
mod arithmetic;
mod arrays;
mod asked;
mod bind;
mod columns;
mod decimal;
mod depth;
mod doubles;
mod dynamic;
mod estimates;
mod evaluate;
mod fault;
mod filter_pushdown;
mod fixed_casts;
mod framed;
mod gathered;
mod guards;
mod join_edges;
mod join_order;
mod join_rows;
mod json_folds;
mod keeping;
mod looking;
mod named_filters;
mod once;
mod opaque;
mod outer;
mod pairs;
mod parameter;
mod per_row;
mod pool;
mod quantified;
mod row_by_row;
mod row_tests;
mod runtime;
mod scan_costs;
mod scan_ranges;
mod seat;
mod secured;
mod sequence_table;
mod series;
mod sets;
mod slices;
mod sort_key;
mod source;
mod spill;
mod spread;
mod stored;
mod tables;
mod together;
mod totals;
mod types;
mod udf;
mod virtual_table;
mod waiting;
mod window_keys;
mod with_rows;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::execution::TaskContext;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::{FutureExt as _, StreamExt, TryStreamExt as _};
use telesto_txn::ReadFor;

pub use runtime::QueryBounds;

use self::bind::{Binder, Parameters, Relation, ScopeColumn};
use self::evaluate::Evaluation;
use self::keeping::Keeping;
use self::seat::Seat;
use self::tables::CatalogTables;
use estimates::with_estimates;
use telesto_sql_parser::sqlparser::ast::{Query, Statement, Visit as _, Visitor};
use telesto_sql_parser::stack::Need;
use telesto_sql_plan::{ExecContext, ExecutablePlan, FromColumn, PlanContext};
use telesto_sql_plan::{ResultColumn, RowStream, Rows, StatementResult};
use telesto_sql_types::Row;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::interrupt;

/// A query planned for DataFusion; used by many executions.
#[derive(Debug)]
pub struct DfPlan {
    query: Box<Query>,
    columns: Arc<[ResultColumn]>,
    parameters: Vec<SqlType>,
    /// What untyped output columns become, by position.
    wanted: Vec<SqlType>,
    /// Its operators, once it is executed again.
    keeping: Arc<Keeping>,
}

/// What a query is bound with beside its text: the types of its parameters, and what untyped output
/// columns become.
type Inputs<'i> = (&'i [SqlType], &'i [SqlType]);

impl DfPlan {
    fn inputs(&self) -> Inputs<'_> {
        (&self.parameters, &self.wanted)
    }

    fn rows(&self, rows: RowStream) -> StatementResult {
        let columns = Arc::clone(&self.columns);
        StatementResult::Rows { columns, rows: Rows::Stream(rows), tag: "SELECT" }
    }
}

#[async_trait]
impl ExecutablePlan for DfPlan {
    fn columns(&self) -> Option<&Arc<[ResultColumn]>> {
        Some(&self.columns)
    }

    fn is_by_key(&self) -> bool {
        false
    }

    fn is_for_any_values(&self) -> bool {
        self.keeping.has_operators()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn writes(&self) -> Option<&'static str> {
        None
    }

    fn describe(&self) -> String {
        "DataFusion".to_owned()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    /// The rows come as a stream.
    async fn execute(&self, context: &ExecContext) -> Result<StatementResult> {
        interrupt::computes().await;
        if let Some((physical, rows)) = self.keeping.run(self, context).await? {
            note_plan(&physical, context);
            return Ok(self.rows(rows));
        }
        let begun = context.env.clock.monotonic();
        let physical = physical(&self.query, self.inputs(), context).await?;
        let planning = context.env.clock.monotonic().saturating_sub(begun);
        note_plan(&physical, context);
        let rows = stream(&physical, context)?;
        Ok(self.rows(self.keeping.timed(rows, context, planning)))
    }
}

/// Shows the operators to the account of the statement, if that asks.
fn note_plan(physical: &Physical, context: &ExecContext) {
    if let Some(entry) = context.cost.entry().filter(|entry| entry.wants_plan())
        && let Ok(plan) = physical.shown(plan_text)
    {
        entry.note_plan(&plan);
    }
}

/// Plans a query, with untyped literals and parameters in the select list of the types `wanted`, by
/// position.
///
/// # Errors
/// Errors of the statement: unknown names, types that do not fit, …
pub fn plan_into(
    statement: &Statement,
    wanted: Vec<SqlType>,
    context: &mut PlanContext<'_>,
) -> Result<Arc<DfPlan>> {
    let Statement::Query(query) = statement else {
        return Err(Error::unsupported("this statement"));
    };
    let columns = described(context, |binder, tables| {
        let relation = binder.statement(query, &wanted)?;
        Ok(result_columns(&relation.columns, tables))
    })?;
    Ok(Arc::new(DfPlan {
        query: query.clone(),
        columns: columns.into(),
        parameters: context.parameters.resolved(),
        wanted,
        keeping: Arc::default(),
    }))
}

/// The result columns of a query. Parameter types found on the way are noted in `context`.
///
/// # Errors
/// Errors of the statement.
pub fn describe_query(query: &Query, context: &mut PlanContext<'_>) -> Result<Vec<ResultColumn>> {
    described(context, |binder, tables| {
        let relation = binder.statement(query, &[])?;
        Ok(result_columns(&relation.columns, tables))
    })
}

/// The columns that `*` stands for over a FROM clause, and behind them those of the aliases of
/// USING.
///
/// # Errors
/// Errors of the clause.
pub fn describe_from(
    from: &[telesto_sql_parser::sqlparser::ast::TableWithJoins],
    context: &mut PlanContext<'_>,
) -> Result<Vec<FromColumn>> {
    let with = context.earlier.with.clone();
    described(context, |binder, _| binder.columns_of_from(with.as_ref(), from))
}

/// What a binder finds out while planning. Parameter types found on the way are noted in `context`.
fn described<T>(
    context: &mut PlanContext<'_>,
    bind: impl FnOnce(&Binder<'_>, &CatalogTables) -> Result<T>,
) -> Result<T> {
    let tables = CatalogTables::planning(context);
    let mut types: BTreeMap<usize, SqlType> = BTreeMap::new();
    let known = context.parameters.resolved().len();
    for number in 1..=known {
        if let Some(ty) = context.parameters.get(number) {
            types.insert(number - 1, ty.clone());
        }
    }
    let evaluation = Evaluation::planning(context.settings, context.catalog);
    let parameters = Parameters { types, ..Parameters::default() };
    let binder = Binder::new(&tables, evaluation, parameters);
    let out = bind(&binder, &tables)?;
    let found = binder.into_parameters();
    for number in 1..=found.count {
        context.parameters.mention(number);
        if found.open.contains(&(number - 1)) {
            context.parameters.leave(number);
        }
        if let Some(ty) = found.types.get(&(number - 1)) {
            context.parameters.infer(number, ty.clone())?;
        }
    }
    Ok(out)
}

fn result_columns(columns: &[ScopeColumn], tables: &CatalogTables) -> Vec<ResultColumn> {
    columns
        .iter()
        .map(|column| {
            let mut out = ResultColumn::new(column.name.clone(), column.ty.clone());
            if column.is_row_of_table() {
                (out.ty, out.whole_row) = (SqlType::Text, true);
            }
            if let Some(origin) = column.origin {
                out.table_oid = origin.table.0;
                out.attnum = tables.attribute_number(origin.table, origin.position);
            }
            out
        })
        .collect()
}

/// A query bound for execution.
struct BoundQuery {
    relation: Relation,
    /// Whether it has correlated subqueries.
    correlated: bool,
    /// Whether it calls a function that waits.
    waiting: bool,
    /// Whether it asks what indexes take.
    measures: bool,
    /// Parameters whose values got into a plan that is to be kept, by number.
    fixed: BTreeSet<usize>,
    /// Whether something got into it that is another value at another time.
    passes: bool,
}

/// Binds a query for the executions of a seat, of which the context is the first.
fn bind_query(
    query: &Query,
    inputs: Inputs<'_>,
    (context, seat): (&ExecContext, &Arc<Seat>),
    state: &Arc<SessionState>,
    row_by_row: bool,
) -> Result<BoundQuery> {
    let tables = CatalogTables::seated(seat, context);
    let types = inputs.0.iter().cloned().enumerate().collect();
    let values = Some(Arc::clone(&context.parameters));
    let kept = seat.is_kept().then(|| Arc::clone(seat));
    let given = Parameters { types, values, seat: kept, ..Parameters::default() };
    let binder = Binder::new(&tables, Evaluation::seated(seat, context), given);
    let binder = binder.applying(state, row_by_row);
    let relation = binder.statement(query, inputs.1)?;
    interrupt::check_long()?;
    if binder.met_refused() {
        return bind_query(query, inputs, (context, seat), state, true);
    }
    let (correlated, waiting) = (binder.met_correlated(), binder.met_waiting());
    let measures = binder.met_measuring();
    let Parameters { fixed, passes, .. } = binder.into_parameters();
    Ok(BoundQuery { relation, correlated, waiting, measures, fixed, passes })
}

/// A plan of operators with what it runs in.
struct Physical {
    /// Always there until it is dropped.
    plan: Option<Arc<dyn ExecutionPlan>>,
    task: Arc<TaskContext>,
    columns: Vec<ScopeColumn>,
    need: Need,
}

impl Physical {
    /// What `show` makes of the operators.
    fn shown<T>(&self, show: impl FnOnce(&dyn ExecutionPlan) -> T) -> Result<T> {
        let plan = self.plan.as_ref().ok_or_else(gone)?;
        Ok(self.need.provide(|| show(plan.as_ref())))
    }
}

fn gone() -> Error {
    Error::internal("a plan that was dropped is used")
}

impl Drop for Physical {
    fn drop(&mut self) {
        self.need.release(self.plan.take());
    }
}

/// Plans a query for execution. Correlated subqueries become joins where DataFusion can; where it
/// cannot, they are run row by row.
async fn physical(query: &Query, inputs: Inputs<'_>, context: &ExecContext) -> Result<Physical> {
    let locked;
    let context = if locks(query) {
        locked = ExecContext { read_for: ReadFor::Locked, ..context.clone() };
        &locked
    } else {
        context
    };
    let rules = named_filters::physical_rules();
    let state = Arc::new(runtime::session_state(&QueryBounds::of(context), rules)?);
    let seat = Seat::of_one(context);
    let bound = bind_query(query, inputs, (context, &seat), &state, false)?;
    if bound.measures {
        // Operators cannot wait for it wherever a call may stand.
        context.measure_space().await?;
    }
    let columns = bound.relation.columns.clone();
    let correlated = bound.correlated;
    let mut need = depth::need(&bound.relation.plan)?;
    let plan = match planned(&state, bound, need).await {
        Ok(plan) => plan,
        Err(refused) if correlated => {
            tracing::debug!(%refused, "correlated subqueries run row by row");
            let bound = bind_query(query, inputs, (context, &seat), &state, true)?;
            need = depth::need(&bound.relation.plan)?;
            planned(&state, bound, need).await?
        }
        Err(error) => return Err(error),
    };
    let plan = need.provide(|| cooperative(plan)).map_err(fault::from_datafusion)?;
    Ok(Physical { plan: Some(plan), task: state.task_ctx(), columns, need })
}

/// The operators of a bound query, made with the stack that it takes.
async fn planned(
    state: &SessionState,
    bound: BoundQuery,
    need: Need,
) -> Result<Arc<dyn ExecutionPlan>> {
    let work = async move {
        let plan = operators(state, &bound.relation.plan, bound.waiting).await?;
        row_by_row::in_turn(plan).map_err(fault::from_datafusion)
    };
    if need.is_small() { work.await } else { need.future(work.boxed()).await }
}

/// Whether a query, or one inside of it, asks for locks. Then all it reads is validated, not only
/// what `OF` names.
fn locks(query: &Query) -> bool {
    struct Locks;
    impl Visitor for Locks {
        type Break = ();

        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
            if query.locks.is_empty() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        }
    }
    query.visit(&mut Locks).is_break()
}

/// The operators of a plan.
async fn operators(
    state: &SessionState,
    plan: &LogicalPlan,
    waiting: bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = join_order::ordered(plan.clone())
        .and_then(|plan| state.optimize(&plan))
        .and_then(asked::asked)
        .and_then(apply::awaited_last)
        .map_err(fault::from_datafusion)?;
    interrupt::check_long()?;
    let plan = guards::in_order(plan).map_err(fault::from_datafusion)?;
    interrupt::check_long()?;
    if waiting {
        waiting::check(&plan)?;
    }
    if apply::misplaced(&plan).map_err(fault::from_datafusion)? {
        return Err(fault::unsupported(
            "a subquery in a join condition, or one that needs two levels of outer rows,",
        ));
    }
    interrupt::check_long()?;
    let planned = state.query_planner().create_physical_plan(&plan, state).await;
    planned.map_err(fault::from_datafusion)
}

/// Makes operators that combine several inputs give way to other tasks. DataFusion does so at the
/// leaves only, and a join may give out batches for hours without touching one: the statement could
/// not be cancelled.
fn cooperative(plan: Arc<dyn ExecutionPlan>) -> datafusion::common::Result<Arc<dyn ExecutionPlan>> {
    let wrapped = plan.transform_up(|node| {
        if node.children().len() < 2 {
            return Ok(Transformed::no(node));
        }
        let node = slices::sliced(node)?;
        let node: Arc<dyn ExecutionPlan> = Arc::new(CooperativeExec::new(node));
        Ok(Transformed::yes(node))
    })?;
    Ok(wrapped.data)
}

/// What EXPLAIN shows of a query: its operators, a line each. With `analyze` it runs, its rows are
/// thrown away, and their number comes with the lines, which tell what each operator counted.
///
/// # Errors
/// Those of the query.
pub async fn explain_query(
    query: &Query,
    parameters: &[SqlType],
    context: &ExecContext,
    analyze: bool,
) -> Result<(String, Option<u64>)> {
    let physical = physical(query, (parameters, &[]), context).await?;
    if !analyze {
        return Ok((physical.shown(plan_text)?, None));
    }
    let counted = stream(&physical, context)?
        .try_fold(0_u64, |rows, batch| async move { Ok(rows + batch.len() as u64) });
    let rows = counted.await?;
    let shown = |plan: &dyn ExecutionPlan| {
        with_estimates(plan, DisplayableExecutionPlan::with_metrics(plan).indent(false).to_string())
    };
    Ok((physical.shown(shown)?, Some(rows)))
}

/// What EXPLAIN shows of a plan that was not run.
fn plan_text(plan: &dyn ExecutionPlan) -> String {
    with_estimates(plan, DisplayableExecutionPlan::new(plan).indent(false).to_string())
}

/// Runs a query and gives its rows as they come. Parameters have the given types; their values are
/// the context's.
///
/// # Errors
/// Errors of the statement; those of the rows come from the stream.
pub async fn run_query(
    query: &Query,
    parameters: &[SqlType],
    context: &ExecContext,
) -> Result<RowStream> {
    let physical = physical(query, (parameters, &[]), context).await?;
    stream(&physical, context)
}

/// Runs a query and tells its result columns with its rows.
///
/// # Errors
/// Errors of the statement; those of the rows come from the stream.
pub async fn run_described(
    query: &Query,
    parameters: &[SqlType],
    context: &ExecContext,
) -> Result<(Vec<ResultColumn>, RowStream)> {
    let physical = physical(query, (parameters, &[]), context).await?;
    let tables = CatalogTables::seated(&Seat::of_one(context), context);
    let columns = result_columns(&physical.columns, &tables);
    Ok((columns, stream(&physical, context)?))
}

fn stream(physical: &Physical, context: &ExecContext) -> Result<RowStream> {
    let plan = physical.plan.clone().ok_or_else(gone)?;
    let (task, need) = (Arc::clone(&physical.task), physical.need);
    let batches = need.provide(|| execute_stream(plan, task)).map_err(fault::from_datafusion)?;
    let batches = need.stream(batches);
    let types: Vec<SqlType> = physical.columns.iter().map(|column| column.ty.clone()).collect();
    let context = context.clone();
    // An operator may give all at once; as rows that takes several times as much.
    let pieces = batches.flat_map(|batch| {
        let batch = batch.map_err(fault::from_datafusion);
        let rows = batch.as_ref().map_or(1, |batch| batch.num_rows().max(1));
        let piece = move |at: usize| match &batch {
            Ok(batch) => {
                Ok(batch.slice(at, runtime::BATCH_ROWS.min(batch.num_rows().saturating_sub(at))))
            }
            Err(error) => Err(error.clone()),
        };
        futures::stream::iter((0..rows).step_by(runtime::BATCH_ROWS).map(piece))
    });
    Ok(Box::pin(pieces.map(move |batch| {
        context.check_cancelled()?;
        let _values = telesto_sql_types::held::scope();
        let batch = batch?;
        let mut rows: Vec<Row> =
            (0..batch.num_rows()).map(|_| Vec::with_capacity(types.len())).collect();
        for (array, ty) in batch.columns().iter().zip(&types) {
            for (at, row) in rows.iter_mut().enumerate() {
                row.push(types::datum_at(array.as_ref(), at, ty)?);
            }
        }
        Ok(rows)
    })))
}
