//! Keys of window functions that stay the same for all functions of one window.
//!
//! `CommonSubexprEliminate` gives what it puts in a key's place the key's name, but not in a
//! function that has a name already, as one has whose arguments were simplified. Then two functions
//! of one window have keys that are equal and do not look so, which the planner of operators takes
//! for a fault.
//!
//! # Invariants
//! A function keeps the name that those above know it by.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Expr, LogicalPlan, Window};

/// Takes names off the keys of windows with several functions.
///
/// # Errors
/// Those of DataFusion.
pub(super) fn without_names(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    plan.transform_down_with_subqueries(|node| match node {
        LogicalPlan::Window(window)
            if window.window_expr.len() > 1 && window.window_expr.iter().any(has_named_key) =>
        {
            let functions = window.window_expr.into_iter().map(without_named_keys).collect();
            let window = Window::try_new(functions, Arc::clone(&window.input))?;
            Ok(Transformed::yes(LogicalPlan::Window(window)))
        }
        node => Ok(Transformed::no(node)),
    })
}

/// The keys that a function's rows are parted and sorted by.
fn keys(function: &Expr) -> impl Iterator<Item = &Expr> {
    let function = match function {
        Expr::Alias(named) => &named.expr,
        function => function,
    };
    let params = match function {
        Expr::WindowFunction(function) => Some(&function.params),
        _ => None,
    };
    params.into_iter().flat_map(|params| {
        params.partition_by.iter().chain(params.order_by.iter().map(|sort| &sort.expr))
    })
}

fn has_named_key(function: &Expr) -> bool {
    keys(function).any(|key| matches!(key, Expr::Alias(_)))
}

fn without_named_keys(function: Expr) -> Expr {
    match function {
        Expr::Alias(mut named) => {
            *named.expr = bare(*named.expr);
            Expr::Alias(named)
        }
        function if has_named_key(&function) => {
            let name = function.schema_name().to_string();
            bare(function).alias(name)
        }
        function => function,
    }
}

fn bare(function: Expr) -> Expr {
    match function {
        Expr::WindowFunction(mut function) => {
            let params = &mut function.params;
            let sorted = params.order_by.iter_mut().map(|sort| &mut sort.expr);
            for key in params.partition_by.iter_mut().chain(sorted) {
                *key = std::mem::take(key).unalias();
            }
            Expr::WindowFunction(function)
        }
        function => function,
    }
}
