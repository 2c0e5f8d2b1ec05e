//! DataFusion's session state and the bounds a query runs under.
//!
//! # Invariants
//! - One partition: operators run on the session's own task.
//! - A query never holds more memory than its pool grants, and all queries together not more than
//!   the memory of all statements; sorts, aggregates and joins that would spill to scratch files of
//!   the node, which disappear with the query.
//!
//! # On failure
//! A query that cannot spill and does not fit fails with 53200.

use std::sync::Arc;

use datafusion::config::ConfigOptions;
use datafusion::execution::TaskContext;
use datafusion::execution::context::SessionConfig;
use datafusion::execution::disk_manager::DiskManagerBuilder;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::physical_optimizer::PhysicalOptimizerRule;

use telesto_cipher::Scratch;
use telesto_common::Env;
use telesto_common::limits::MemoryBudget;

use super::fault;
use super::pool::QueryPool;
use super::spill;
use telesto_sql_plan::ExecContext;
use telesto_sql_types::error::Result;

/// Rows a batch holds at most.
pub(crate) const BATCH_ROWS: usize = 2048;

/// What one query may hold although it is more than half of all.
const LEAST_BYTES: usize = 16 << 20;

/// Bounds of one query.
#[derive(Clone, Debug)]
pub struct QueryBounds {
    /// Memory for operators, bytes.
    pub memory_bytes: usize,
    /// What all queries share; `None`: this query is alone.
    pub shared: Option<Arc<MemoryBudget>>,
    /// Where to spill.
    pub scratch: Scratch,
    /// Runs what blocks.
    pub env: Env,
    /// Spilled bytes on disk at most.
    pub spill_bytes: u64,
}

impl QueryBounds {
    /// The bounds a statement runs under: a share of the memory all statements have together.
    pub(crate) fn of(context: &ExecContext) -> Self {
        let all = usize::try_from(context.memory.limit_bytes()).unwrap_or(usize::MAX);
        let shared = Some(Arc::clone(&context.memory));
        Self {
            memory_bytes: (all / 2).max(LEAST_BYTES.min(all)),
            shared,
            scratch: context.scratch.clone(),
            env: context.env.clone(),
            spill_bytes: 100 << 30,
        }
    }
}

/// Memory a row of a batch may take before a query with little memory gets smaller batches, bytes:
/// a merge holds a batch of every spilled file.
const ROW_SHARE_BYTES: usize = 32 << 10;

/// A state for one query, whose operators are made by `rules`.
pub(crate) fn session_state(
    bounds: &QueryBounds,
    rules: Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>>,
) -> Result<SessionState> {
    let (config, runtime) = environment(bounds)?;
    let mut physical_rules = rules;
    physical_rules.insert(0, Arc::new(super::opaque::HideKnownValues));
    Ok(SessionStateBuilder::new()
        .with_analyzer_rules(super::looking::analyzer_rules())
        .with_optimizer_rules(super::filter_pushdown::logical_rules())
        .with_physical_optimizer_rules(physical_rules)
        .with_query_planner(Arc::new(super::row_by_row::Planner))
        .with_config(config)
        .with_runtime_env(runtime)
        .build())
}

/// What the operators of one execution run in.
pub(crate) fn task(bounds: &QueryBounds) -> Result<Arc<TaskContext>> {
    let (config, runtime) = environment(bounds)?;
    let task = TaskContext::default().with_session_config(config).with_runtime(runtime);
    Ok(Arc::new(task))
}

fn environment(bounds: &QueryBounds) -> Result<(SessionConfig, Arc<RuntimeEnv>)> {
    super::looking::install();
    let mut options = ConfigOptions::new();
    options.execution.target_partitions = 1;
    // The optimiser knows of more expressions than operators do that they are never NULL: CASE, and
    // what becomes one.
    options.execution.skip_physical_aggregate_schema_check = true;

    options.execution.collect_statistics = false;
    options.optimizer.enable_round_robin_repartition = false;
    options.optimizer.repartition_joins = false;
    options.optimizer.repartition_aggregations = false;
    options.optimizer.repartition_windows = false;
    options.optimizer.repartition_sorts = false;
    // Scans look at dynamic filters when they begin: only joins have filled theirs by then.
    options.optimizer.enable_topk_dynamic_filter_pushdown = false;
    options.optimizer.enable_aggregate_dynamic_filter_pushdown = false;
    // Its heap of the greatest keeps NaN and NULL out, and it fails for DISTINCT of floating point.
    options.optimizer.enable_topk_aggregation = false;
    options.optimizer.hash_join_inlist_pushdown_max_distinct_values =
        super::scan_ranges::MAX_RANGES;
    // Zero means: never fall back to an in-memory merge that ignores the pool.
    options.execution.sort_spill_reservation_bytes =
        (bounds.memory_bytes / 8).min(options.execution.sort_spill_reservation_bytes);
    let batch_rows = (bounds.memory_bytes / ROW_SHARE_BYTES).clamp(256, BATCH_ROWS);
    options.sql_parser.map_string_types_to_utf8view = false;
    options.catalog.create_default_catalog_and_schema = false;
    options.catalog.information_schema = false;
    let mode = spill::mode(bounds.scratch.clone(), bounds.env.clone(), bounds.spill_bytes);
    let disk = DiskManagerBuilder::default().with_mode(mode);
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(QueryPool::new(bounds.memory_bytes, bounds.shared.as_ref())))
        .with_disk_manager_builder(disk)
        .build_arc()
        .map_err(fault::from_datafusion)?;
    Ok((SessionConfig::from(options).with_batch_size(batch_rows), runtime))
}
