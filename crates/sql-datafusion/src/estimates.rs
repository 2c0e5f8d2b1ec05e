//! EXPLAIN's estimates: the rows that DataFusion expects of each operator, where tables below have
//! been analyzed.
//!
//! # Invariants
//! One line of a plan is one operator, in the order of its lines; where that does not hold, nothing
//! is added.

use datafusion::common::stats::Precision;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use super::source::SourceExec;

/// The lines of a plan with ` (rows=n)` behind those of which something is known.
pub(crate) fn with_estimates(plan: &dyn ExecutionPlan, lines: String) -> String {
    if !is_known(plan) {
        return lines;
    }
    let mut rows = Vec::new();
    collect(plan, &StatisticsContext::new(), &mut rows);
    if rows.len() != lines.lines().count() {
        return lines;
    }
    let mut out = String::with_capacity(lines.len() + rows.len() * 12);
    for (line, rows) in lines.lines().zip(rows) {
        out.push_str(line);
        if let Some(rows) = rows {
            out.push_str(&format!(" (rows={})", rows.max(1)));
        }
        out.push('\n');
    }
    out
}

/// Whether a scan below is of a table that has been analyzed.
fn is_known(plan: &dyn ExecutionPlan) -> bool {
    plan.downcast_ref::<SourceExec>().is_some_and(SourceExec::is_estimated)
        || plan.children().into_iter().any(|child| is_known(child.as_ref()))
}

fn collect(plan: &dyn ExecutionPlan, context: &StatisticsContext, rows: &mut Vec<Option<usize>>) {
    let known = context.compute(plan, &StatisticsArgs::new()).ok();
    rows.push(known.and_then(|known| match known.num_rows {
        Precision::Exact(rows) | Precision::Inexact(rows) => Some(rows),
        Precision::Absent => None,
    }));
    for child in plan.children() {
        collect(child.as_ref(), context, rows);
    }
}
