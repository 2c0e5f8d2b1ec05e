//! What DataFusion does for long in one poll, made to look whether its statement is to end: its own
//! aggregates over a window, and the rules of its analyzer, and what it spawns. (Its optimisers'
//! rules: [`super::filter_pushdown`], [`super::named_filters`].)
//!
//! A window's operator computes the rows of a batch, and at the end of its input all that are left,
//! in one poll: each row has its accumulator take in what enters the frame and give back what
//! leaves it.
//!
//! # Invariants
//! But for the look an aggregate, or a rule, is the one it wraps.
//!
//! # On failure
//! Those of [`interrupt::check`].

use std::any::Any;
use std::sync::{Arc, Once};

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::common::runtime::{JoinSetTracer, set_join_set_tracer};
use datafusion::config::ConfigOptions;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::expr::WindowFunctionParams;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, LogicalPlan, ReversedUDAF, SetMonotonicity,
    Signature,
};
use datafusion::optimizer::{Analyzer, AnalyzerRule};

use futures::future::BoxFuture;

use super::fault;
use telesto_sql_types::interrupt;

/// The analyzer's rules.
pub(super) fn analyzer_rules() -> Vec<Arc<dyn AnalyzerRule + Send + Sync>> {
    let looking = |rule| Arc::new(LookingRule(rule)) as Arc<dyn AnalyzerRule + Send + Sync>;
    Analyzer::new().rules.into_iter().map(looking).collect()
}

#[derive(Debug)]
struct LookingRule(Arc<dyn AnalyzerRule + Send + Sync>);

impl AnalyzerRule for LookingRule {
    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> DfResult<LogicalPlan> {
        interrupt::check_long().map_err(fault::to_datafusion)?;
        self.0.analyze(plan, config)
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

/// Has what DataFusion spawns, the runs of a sort above all, be a part of the statement that it is
/// spawned for.
pub(super) fn install() {
    static INHERITS: Inherits = Inherits;
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if set_join_set_tracer(&INHERITS).is_err() {
            tracing::warn!("another tracer is installed: what DataFusion spawns cannot be ended");
        }
    });
}

struct Inherits;

impl JoinSetTracer for Inherits {
    fn trace_future(
        &self,
        future: BoxFuture<'static, Box<dyn Any + Send>>,
    ) -> BoxFuture<'static, Box<dyn Any + Send>> {
        interrupt::inheriting(future)
    }

    fn trace_block(
        &self,
        block: Box<dyn FnOnce() -> Box<dyn Any + Send> + Send>,
    ) -> Box<dyn FnOnce() -> Box<dyn Any + Send> + Send> {
        // Files are written and read there.
        block
    }
}

/// `function` that looks at every call of its accumulators.
pub(super) fn looking(function: Arc<AggregateUDF>) -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::new_from_impl(Looking(function)))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Looking(Arc<AggregateUDF>);

#[derive(Debug)]
struct LookingAccumulator(Box<dyn Accumulator>);

fn look() -> DfResult<()> {
    interrupt::check().map_err(fault::to_datafusion)
}

impl AggregateUDFImpl for Looking {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn window_function_schema_name(&self, params: &WindowFunctionParams) -> DfResult<String> {
        self.0.window_function_schema_name(params)
    }

    fn window_function_display_name(&self, params: &WindowFunctionParams) -> DfResult<String> {
        self.0.window_function_display_name(params)
    }

    fn signature(&self) -> &Signature {
        self.0.signature()
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        self.0.return_type(types)
    }

    fn return_field(&self, fields: &[FieldRef]) -> DfResult<FieldRef> {
        self.0.return_field(fields)
    }

    fn is_nullable(&self) -> bool {
        self.0.is_nullable()
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> DfResult<Box<dyn Accumulator>> {
        Ok(Box::new(LookingAccumulator(self.0.accumulator(args)?)))
    }

    fn create_sliding_accumulator(
        &self,
        args: AccumulatorArgs<'_>,
    ) -> DfResult<Box<dyn Accumulator>> {
        Ok(Box::new(LookingAccumulator(self.0.create_sliding_accumulator(args)?)))
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> DfResult<Vec<FieldRef>> {
        self.0.state_fields(args)
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.0.order_sensitivity()
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        match self.0.reverse_udf() {
            ReversedUDAF::Reversed(reversed) => ReversedUDAF::Reversed(looking(reversed)),
            other => other,
        }
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        self.0.coerce_types(types)
    }

    fn is_descending(&self) -> Option<bool> {
        self.0.is_descending()
    }

    fn default_value(&self, data_type: &DataType) -> DfResult<ScalarValue> {
        self.0.default_value(data_type)
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.0.supports_null_handling_clause()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.0.inner().set_monotonicity(data_type)
    }
}

impl Accumulator for LookingAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        look()?;
        self.0.update_batch(values)
    }

    fn evaluate(&mut self) -> DfResult<ScalarValue> {
        look()?;
        self.0.evaluate()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn state(&mut self) -> DfResult<Vec<ScalarValue>> {
        self.0.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DfResult<()> {
        look()?;
        self.0.merge_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> DfResult<()> {
        look()?;
        self.0.retract_batch(values)
    }

    fn supports_retract_batch(&self) -> bool {
        self.0.supports_retract_batch()
    }
}
