//! Plans of operators that are kept from one execution of a statement to the next.
//!
//! # Purpose
//! Binding, optimising and choosing operators is nine tenths of a small statement here. One that is
//! executed again has its operators made once, with parameters as calls ([`super::parameter`]), and
//! each execution takes its seat in them ([`super::seat`]).
//!
//! # Protocol
//! ```text
//! first execution    planned for its values alone, as ever; its time is noted
//! second             planned for all ──► operators ──┬─ reset, linked, run ──► rows … end ──► put back
//! later              taken ──────────────────────────┘   taken already, or another catalog: planned as ever
//! ```
//! Scans choose their index and ranges when they are opened, by the values of the execution. Of
//! joins it is the first execution's values that decide; now and then one is planned for itself,
//! and a statement that takes longer by what is kept goes back to that.
//!
//! # Invariants
//! - Nothing of an execution is in the operators ([`super::seat`]), but for parameters whose values
//!   the plan is made for (`LIMIT $1`): with others it is made anew.
//! - Only operators are kept of which it is known that an execution leaves nothing in them
//!   ([`KEPT`]); they are reset before each.
//! - One execution at a time has them. The catalog is the very one that they were made with.
//!
//! # Failure behaviour
//! What cannot be planned for all is planned for one. An error of the engine itself ends the
//! keeping.
//!
//! # Limits
//! Not kept: what locks rows, waits, is recursive, reads system tables or tables with row security,
//! has subqueries that run row by row, WITH queries that are computed once, or texts that are
//! another time whenever they are read (`'today'`). A plan counts what its operators, expressions
//! and constants are about, of a sixteenth of the memory of statements beside it; what comes when
//! that is full is planned for each execution.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{TreeNode as _, TreeNodeRecursion};
use datafusion::error::Result as DfResult;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties as _};
use futures::Stream;
use parking_lot::Mutex;
use telesto_common::env::Clock;
use telesto_common::limits::Reservation;

use super::bind::ScopeColumn;
use super::named_filters::{Rule, rules_apart};
use super::row_by_row::InTurnExec;
use super::runtime::{self, QueryBounds};
use super::seat::Seat;
use super::source::SourceExec;
use super::{BoundQuery, DfPlan, Physical, bind_query, cooperative, locks, planned, stream};
use super::{depth, fault, row_by_row, types};
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_expr::Settings;
use telesto_sql_parser::stack::Need;
use telesto_sql_plan::{ExecContext, RowStream};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Row, SqlType};

/// The setting that says whether plans are kept.
const MODE: &str = "plan_cache_mode";
/// What an operator that is kept counts, bytes.
const NODE_BYTES: u64 = 4 << 10;
/// Attempts that may fail before none is made any more.
const ATTEMPTS: u32 = 2;
/// Executions that may be slower, but for those that are not, before the plan is kept no longer.
const SLOWER: u32 = 3;
/// After so many executions by what is kept one is planned for itself, to compare; after twice as
/// many again, and so on.
const COMPARED: u32 = 4;
/// The same, at most.
const COMPARED_AT_MOST: u32 = 1024;
/// Executions in a row that need other constants, before the plan is kept no longer.
const REMADE: u32 = 3;
/// What an expression counts, bytes.
const PART_BYTES: u64 = 256;
/// What one plan may count, bytes.
const MOST_BYTES: u64 = 1 << 20;
/// What a measurement is off by anyway.
const NOISE: Duration = Duration::from_millis(2);

/// Operators of which an execution of a reset copy leaves nothing behind, and that compute nothing
/// on tasks of their own, which might outlive it (DataFusion 55.2: read one by one). Of an
/// aggregate the copies share a dynamic filter, which is off (`runtime`).
const KEPT: [&str; 22] = [
    "AggregateExec",
    "BoundedWindowAggExec",
    "CoalescePartitionsExec",
    "CooperativeExec",
    "CrossJoinExec",
    "EmptyExec",
    "FilterExec",
    "GlobalLimitExec",
    "HashJoinExec",
    "InTurnExec",
    "LocalLimitExec",
    "NestedLoopJoinExec",
    "OpaqueExec",
    "PartialSortExec",
    "PlaceholderRowExec",
    "ProjectionExec",
    "ScalarSubqueryExec",
    "SortExec",
    "SortExec(TopK)",
    "SortPreservingMergeExec",
    "UnionExec",
    "WindowAggExec",
];

/// Whether a statement's plan is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// From its second execution on, unless that is slower.
    Auto,
    Always,
    Never,
}

impl Mode {
    fn of(settings: &Settings) -> Self {
        match settings.others.get(MODE).map(String::as_str) {
            Some("force_generic_plan") => Self::Always,
            Some("force_custom_plan") => Self::Never,
            _ => Self::Auto,
        }
    }
}

/// What is known of the executions of one planned statement.
#[derive(Debug, Default)]
pub(super) struct Keeping(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// It has been executed.
    executed: bool,
    place: Place,
    failed: u32,
    /// What executions took that were planned for themselves, their planning included: half of it
    /// the last one.
    planned_for_one: Option<Duration>,
    slower: u32,
    /// Executions by what is kept since one was planned for itself, and how many there may be.
    since: u32,
    compared: u32,
    remade: u32,
    /// Who has taken the operators last.
    taken: u64,
}

#[derive(Debug, Default)]
enum Place {
    #[default]
    Empty,
    Kept(Box<KeptPlan>),
    /// The execution of that number has it.
    Taken(u64),
    /// It is not kept.
    Never,
}

/// Operators for any execution.
#[derive(Debug)]
struct KeptPlan {
    /// Never executed themselves: each execution gets a copy. Always there until it is dropped.
    operators: Option<Arc<dyn ExecutionPlan>>,
    /// The rules that link the operators of an execution.
    links: Vec<Rule>,
    seat: Arc<Seat>,
    columns: Vec<ScopeColumn>,
    need: Need,
    catalog: Arc<CatalogSnapshot>,
    /// Which statistics were known ([`telesto_sql_catalog::statistics::KnownStatistics::mark`]).
    statistics: u64,
    settings: Arc<Settings>,
    /// Parameters whose values it was made for. To the bit: values that are equal may differ
    /// (`30 days` and `1 month`).
    fixed: Vec<(usize, SqlType, ScalarValue)>,
    _memory: Reservation,
}

impl Drop for KeptPlan {
    fn drop(&mut self) {
        self.need.release(self.operators.take());
    }
}

impl KeptPlan {
    /// Whether it is of the catalog and the settings of `context`.
    fn holds(&self, context: &ExecContext) -> bool {
        Arc::ptr_eq(&self.catalog, &context.catalog)
            && self.statistics == context.catalog.statistics.mark()
            && (Arc::ptr_eq(&self.settings, &context.settings)
                || self.settings.plans_alike(&context.settings))
    }

    /// Whether the parameters that it was made for have the same values.
    fn has_constants_of(&self, context: &ExecContext) -> bool {
        self.fixed.iter().all(|(at, ty, value)| {
            let given = context.parameters.get(*at).and_then(|given| types::scalar(given, ty).ok());
            given.as_ref() == Some(value)
        })
    }

    /// Makes the operators that serve any execution, for `context` as the first; `None`: what only
    /// one for each execution can do.
    async fn made(plan: &DfPlan, context: &ExecContext) -> Result<Option<Self>> {
        if locks(&plan.query) {
            return Ok(None);
        }
        let statistics = context.catalog.statistics.mark();
        let (rules, links) = rules_apart();
        let seat = Seat::planning(context);
        let state = Arc::new(runtime::session_state(&QueryBounds::of(context), rules)?);
        let bound = bind_query(&plan.query, plan.inputs(), (context, &seat), &state, false)?;
        let BoundQuery { correlated, waiting, measures, passes, .. } = bound;
        if correlated || waiting || measures || passes {
            tracing::debug!(correlated, waiting, measures, passes, "not kept for all executions");
            return Ok(None);
        }
        let (columns, need) = (bound.relation.columns.clone(), depth::need(&bound.relation.plan)?);
        let value = |number: &usize| {
            let at = number.checked_sub(1)?;
            let ty = plan.parameters.get(at)?.clone();
            let value = types::scalar(context.parameters.get(at)?, &ty).ok()?;
            Some((at, ty, value))
        };
        let fixed: Vec<_> = bound.fixed.iter().filter_map(value).collect();
        let known = fixed.len() == bound.fixed.len();
        let operators = planned(&state, bound, need).await?;
        let operators = need.provide(|| row_by_row::one_after_the_other(operators));
        let operators = operators.map_err(fault::from_datafusion)?;
        let bytes = need.provide(|| size(&operators)).map_err(fault::from_datafusion)?;
        let Some(bytes) = bytes.filter(|bytes| known && *bytes <= MOST_BYTES) else {
            need.release(operators);
            return Ok(None);
        };
        let room = context.live.kept_plans.as_ref();
        let memory = room.and_then(|room| room.reserve("plans that are kept", bytes).ok());
        let Some(memory) = memory else {
            need.release(operators);
            return Ok(None);
        };
        seat.leave();
        Ok(Some(Self {
            operators: Some(operators),
            links,
            seat,
            columns,
            need,
            catalog: Arc::clone(&context.catalog),
            statistics,
            settings: Arc::clone(&context.settings),
            fixed,
            _memory: memory,
        }))
    }

    /// The operators of one execution.
    fn for_execution(&self, context: &ExecContext) -> Result<Physical> {
        let operators = self.operators.clone().ok_or_else(super::gone)?;
        let task = runtime::task(&QueryBounds::of(context))?;
        let config = task.session_config().options();
        let plan = self.need.provide(|| {
            let plan = reset_plan_states(operators)?;
            let linked =
                self.links.iter().try_fold(plan, |plan, rule| rule.optimize(plan, config))?;
            cooperative(linked)
        });
        let plan = Some(plan.map_err(fault::from_datafusion)?);
        Ok(Physical { plan, task, columns: self.columns.clone(), need: self.need })
    }
}

/// Whether an operator may be kept.
fn may_be_kept(node: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(source) = node.downcast_ref::<SourceExec>() {
        return source.is_for_any_execution();
    }
    // What makes one partition of several reads each on a task of its own, and a join of several
    // waits for all of them.
    let several = node.output_partitioning().partition_count() > 1
        || node.children().iter().any(|input| input.output_partitioning().partition_count() > 1);
    let gathers = node.is::<InTurnExec>() || node.is::<UnionExec>();
    (gathers || !several) && KEPT.binary_search(&node.name()).is_ok()
}

/// What operators count, bytes; `None`: one of them may not be kept.
fn size(operators: &Arc<dyn ExecutionPlan>) -> DfResult<Option<u64>> {
    let mut bytes = 0;
    let other = operators.exists(|node| {
        if !may_be_kept(node) {
            tracing::debug!(operator = node.name(), "not kept for all executions");
            return Ok(true);
        }
        bytes += NODE_BYTES;
        node.apply_expressions(&mut |expr| {
            expr.apply(|part| {
                let constant = part.downcast_ref::<Literal>();
                let own = constant.map_or(0, |constant| constant.value().size() as u64);
                bytes += PART_BYTES + own;
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(false)
    })?;
    Ok((!other).then_some(bytes))
}

impl Keeping {
    /// Runs the plan by operators that are kept; `None`: it is to be planned for this execution.
    ///
    /// # Errors
    /// The statement's end, while operators are made.
    pub async fn run(
        self: &Arc<Self>,
        plan: &DfPlan,
        context: &ExecContext,
    ) -> Result<Option<(Physical, RowStream)>> {
        let mode = Mode::of(&context.settings);
        let Some((mut run, known)) = self.take(mode, context) else { return Ok(None) };
        let clock = &context.env.clock;
        let begun = clock.monotonic();
        let kept = match known {
            Some(kept) => kept,
            None => match KeptPlan::made(plan, context).await {
                Ok(Some(kept)) => Box::new(kept),
                Ok(None) => {
                    run.end = End::Never;
                    return Ok(None);
                }
                Err(error) => {
                    // What is wrong with the statement itself is told by the plan for this
                    // execution.
                    telesto_sql_types::interrupt::check_long()?;
                    tracing::debug!(%error, "not planned for all executions");
                    run.end = End::Failed;
                    return Ok(None);
                }
            },
        };
        kept.seat.run(context);
        let kept = run.kept.insert(kept);
        let linked = kept.for_execution(context);
        let linked = linked.and_then(|physical| Ok((stream(&physical, context)?, physical)));
        let (rows, physical) = match linked {
            Ok(linked) => linked,
            Err(error) => {
                telesto_sql_types::interrupt::check_long()?;
                tracing::debug!(%error, "operators that were kept do not run");
                run.end = End::Failed;
                return Ok(None);
            }
        };
        let took = clock.monotonic().saturating_sub(begun);
        let rows = Timed::new(rows, Arc::clone(clock), took);
        Ok(Some((physical, Box::pin(KeptRows { rows, run, mode, ended: false }))))
    }

    /// Takes the operators, if this execution is to have them; inner `None`: they are to be made.
    fn take(
        self: &Arc<Self>,
        mode: Mode,
        context: &ExecContext,
    ) -> Option<(Run, Option<Box<KeptPlan>>)> {
        // Dropped when the lock is gone: it may be large.
        let mut unfit = None;
        let mut state = self.0.lock();
        let again = std::mem::replace(&mut state.executed, true);
        if mode == Mode::Never || mode == Mode::Auto && !again {
            return None;
        }
        if mode == Mode::Auto && matches!(state.place, Place::Kept(_)) {
            state.since += 1;
            if state.since > state.compared.max(COMPARED) {
                state.since = 0;
                state.compared = (state.compared.max(COMPARED) * 2).min(COMPARED_AT_MOST);
                return None;
            }
        }
        let number = state.taken + 1;
        let known = match std::mem::replace(&mut state.place, Place::Taken(number)) {
            Place::Kept(kept) if !kept.holds(context) => {
                unfit = Some(kept);
                None
            }
            Place::Kept(kept) if !kept.has_constants_of(context) => {
                unfit = Some(kept);
                state.remade += 1;
                if mode == Mode::Auto && state.remade >= REMADE {
                    state.place = Place::Never;
                    drop(state);
                    drop(unfit);
                    return None;
                }
                None
            }
            Place::Kept(kept) => {
                state.remade = 0;
                Some(kept)
            }
            Place::Empty => None,
            other => {
                state.place = other;
                return None;
            }
        };
        state.taken = number;
        drop(state);
        drop(unfit);
        let run = Run { kept: None, home: Arc::clone(self), number, end: End::Well };
        Some((run, known))
    }

    /// Whether operators are there for an execution that comes.
    pub fn has_operators(&self) -> bool {
        matches!(self.0.lock().place, Place::Kept(_))
    }

    /// An execution that was planned for itself took so long.
    fn note_planned(&self, took: Duration) {
        let mut state = self.0.lock();
        let before = state.planned_for_one.unwrap_or(took);
        state.planned_for_one = Some((before + took) / 2);
    }

    /// An execution by kept operators took so long; `ended`: to its last row. Whether it was slower
    /// than one that is planned for itself once too often.
    fn is_too_slow(&self, took: Duration, ended: bool) -> bool {
        let mut state = self.0.lock();
        let slower = state.planned_for_one.is_some_and(|other| took > other * 3 / 2 + NOISE);
        if slower {
            state.slower += 1;
        } else if ended {
            state.slower = state.slower.saturating_sub(1);
        }
        state.slower >= SLOWER
    }

    /// The rows of an execution that was planned for itself, which took `planning`.
    pub fn timed(
        self: &Arc<Self>,
        rows: RowStream,
        context: &ExecContext,
        planning: Duration,
    ) -> RowStream {
        let home = Arc::clone(self);
        let rows = Timed::new(rows, Arc::clone(&context.env.clock), planning);
        Box::pin(PlannedRows { rows, home })
    }
}

/// An execution that has the operators: they are put back when it is dropped.
#[derive(Debug)]
struct Run {
    kept: Option<Box<KeptPlan>>,
    home: Arc<Keeping>,
    number: u64,
    end: End,
}

/// What becomes of the operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Well,
    /// They could not be made, or not be run.
    Failed,
    /// They are not kept any more.
    Never,
}

impl Drop for Run {
    fn drop(&mut self) {
        let mut kept = self.kept.take();
        if let Some(kept) = &kept {
            kept.seat.leave();
        }
        let mut state = self.home.0.lock();
        if matches!(state.place, Place::Taken(number) if number == self.number) {
            state.failed += u32::from(self.end == End::Failed);
            let never = self.end == End::Never || state.failed >= ATTEMPTS;
            state.place = match kept.take_if(|_| self.end == End::Well) {
                _ if never => Place::Never,
                Some(kept) => Place::Kept(kept),
                None => Place::Empty,
            };
        }
        // What is not put back is dropped when the lock is gone.
        drop(state);
        drop(kept);
    }
}

/// Rows, and how long whoever makes them took.
struct Timed {
    rows: RowStream,
    clock: Arc<dyn Clock>,
    /// When it was asked for what it has not given yet.
    asked: Option<Duration>,
    took: Duration,
}

impl Timed {
    fn new(rows: RowStream, clock: Arc<dyn Clock>, took: Duration) -> Self {
        Self { rows, clock, asked: None, took }
    }

    /// With what it has been asked for and has not given yet.
    fn so_far(&self) -> Duration {
        let waits = self.asked.map(|asked| self.clock.monotonic().saturating_sub(asked));
        self.took + waits.unwrap_or_default()
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<Row>>>> {
        let asked = *self.asked.get_or_insert_with(|| self.clock.monotonic());
        let polled = self.rows.as_mut().poll_next(context);
        if polled.is_ready() {
            self.took += self.clock.monotonic().saturating_sub(asked);
            self.asked = None;
        }
        polled
    }
}

/// The rows of an execution by operators that are kept.
struct KeptRows {
    rows: Timed,
    run: Run,
    mode: Mode,
    ended: bool,
}

impl Stream for KeptRows {
    type Item = Result<Vec<Row>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.rows.poll(context);
        match &polled {
            Poll::Ready(None) => self.ended = true,
            Poll::Ready(Some(Err(error))) if is_of_the_engine(error) => self.run.end = End::Never,
            _ => {}
        }
        polled
    }
}

impl Drop for KeptRows {
    fn drop(&mut self) {
        // Who is stopped for taking too long, or has had enough, has taken so long.
        let took = self.rows.so_far();
        if self.mode == Mode::Auto && self.run.home.is_too_slow(took, self.ended) {
            self.run.end = End::Never;
        }
    }
}

/// Whether an error may be one of operators that are kept, not of the statement.
fn is_of_the_engine(error: &Error) -> bool {
    let code = error.code();
    code == SqlState::INTERNAL_ERROR || code == SqlState::FEATURE_NOT_SUPPORTED
}

/// The rows of an execution that was planned for itself.
struct PlannedRows {
    rows: Timed,
    home: Arc<Keeping>,
}

impl Stream for PlannedRows {
    type Item = Result<Vec<Row>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.rows.poll(context);
        if let Poll::Ready(None) = &polled {
            self.home.note_planned(self.rows.took);
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether so many milliseconds are once too often.
    fn too_slow(keeping: &Keeping, took: u64, ended: bool) -> bool {
        keeping.is_too_slow(Duration::from_millis(took), ended)
    }

    #[test]
    fn what_is_slower_three_times_is_kept_no_longer() {
        let keeping = Keeping::default();
        assert!((0..9).all(|_| !too_slow(&keeping, 900, true)), "there is nothing to compare with");
        keeping.note_planned(Duration::from_millis(10));
        assert!((0..9).all(|_| !too_slow(&keeping, 16, true)), "that is noise");
        assert!(!too_slow(&keeping, 30, true) && !too_slow(&keeping, 30, false));
        assert!(too_slow(&keeping, 30, true), "the third time");
    }

    #[test]
    fn executions_that_are_not_slower_make_up_for_those_that_are() {
        let keeping = Keeping::default();
        keeping.note_planned(Duration::from_millis(10));
        for _ in 0..9 {
            assert!(!too_slow(&keeping, 30, true) && !too_slow(&keeping, 5, true));
        }
        assert!(!too_slow(&keeping, 30, true));
        assert!(!too_slow(&keeping, 5, false), "who had enough after one row says nothing");
        assert!(!too_slow(&keeping, 30, true) && too_slow(&keeping, 30, true));
    }

    #[test]
    fn the_last_plan_for_one_counts_half() {
        let keeping = Keeping::default();
        keeping.note_planned(Duration::from_millis(10));
        keeping.note_planned(Duration::from_millis(110));
        assert!((0..9).all(|_| !too_slow(&keeping, 90, true)), "60 ms and a half");
        assert!((0..2).all(|_| !too_slow(&keeping, 100, true)) && too_slow(&keeping, 100, true));
    }
}
