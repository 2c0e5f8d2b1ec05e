//! Calls of functions over windows.
//!
//! # Invariants
//! An aggregate over a moving frame is one that rows can leave. A frame that DataFusion has not is
//! computed by [`crate::framed`].
//!
//! # On failure
//! 42P20 for calls inside of calls, 0A000 for what is not there, and what the arguments say.

use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::functions_window as fw;
use datafusion::logical_expr::expr::{NullTreatment, WindowFunction, WindowFunctionParams};
use datafusion::logical_expr::{Expr, WindowFunctionDefinition};
use datafusion::sql::sqlparser::ast;

use super::call::{Aggregate, guard, native_extreme, shaped};
use super::frames::Window;
use super::group::refuse_windows;
use super::scope::Scope;
use super::{Binder, Typed};
use crate::aggregate::{Fold, folding};
use crate::fault;
use crate::framed::{Computed, framed};
use crate::looking::looking;
use crate::per_row::per_row;
use crate::types::TypeShape;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::{Error, Result};

impl Binder<'_> {
    #[allow(clippy::too_many_arguments, reason = "the parts of one call as the syntax has them")]
    pub(super) fn window_call(
        &self,
        name: &str,
        args: Vec<Typed>,
        star: bool,
        distinct: bool,
        nulls: Option<ast::NullTreatment>,
        filter: Option<Box<Expr>>,
        over: &ast::WindowType,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        if nulls.is_some() {
            return Err(fault::unsupported("IGNORE NULLS and RESPECT NULLS"));
        }
        let Window { partition_by, order_by, frame: window_frame, empty, own } =
            self.window(over, scope, name == "nth_value" && self.is_by_row(name, &args)?)?;
        // No row is in such a frame.
        let none = || Box::new(Expr::Literal(ScalarValue::Boolean(Some(false)), None));
        let filter = if empty { Some(none()) } else { filter };
        for expr in partition_by.iter().chain(order_by.iter().map(|sort| &sort.expr)) {
            refuse_windows(expr, "window definitions")?;
        }
        if args.iter().any(|arg| refuse_windows(&arg.expr, "arguments").is_err()) {
            return Err(fault::new("42P20", "window function calls cannot be nested"));
        }
        if distinct {
            return Err(fault::unsupported("DISTINCT for window functions"));
        }
        let aggregate = match (name, &args[..]) {
            // Of false and true: DataFusion's own do not move with a frame.
            ("bool_and" | "every" | "bool_or", [arg]) => {
                let fold = if name == "bool_or" { Fold::Greatest } else { Fold::Least };
                let arg = self.coerce(arg.clone(), &SqlType::Bool, name)?.expr;
                let ty = SqlType::Bool;
                let function = folding(fold, std::slice::from_ref(&ty), &ty, &self.evaluation());
                Some(Aggregate { function, args: vec![arg], ty, recast: false })
            }
            // Of a frame that moves it keeps the best to come; the one of groups adds up anew.
            ("min" | "max", [arg]) if matches!(arg.ty, SqlType::Float4 | SqlType::Float8) => {
                let found = self.aggregate_named(name, &args, star)?;
                found.map(|found| Aggregate { function: native_extreme(name), ..found })
            }
            _ => self.aggregate_named(name, &args, star)?,
        };
        let (mut fun, mut args, ty, recast) = match aggregate {
            Some(mut a) => {
                guard(a.args.iter_mut(), filter.as_deref())?;
                let function = WindowFunctionDefinition::AggregateUDF(looking(a.function));
                (function, a.args, a.ty, a.recast)
            }
            None => {
                let mut function =
                    window_function(name).ok_or_else(|| self.no_window_function(name, &args))?;
                let by_row = self.is_by_row(name, &args)?;
                if let Some(per_row) = by_row.then(|| per_row(name)).flatten() {
                    function = Arc::new(per_row);
                }
                let (out, ty) = self.window_args(name, &args, by_row)?;
                if empty && matches!(name, "first_value" | "last_value" | "nth_value") {
                    return Ok(Typed::of(Self::null_of(&ty)?, ty));
                }
                (WindowFunctionDefinition::WindowUDF(function), out, ty, true)
            }
        };
        let mut filter = match &fun {
            WindowFunctionDefinition::WindowUDF(_) if empty => None,
            _ => filter,
        };
        if let Some(own) = own {
            let computed = match (&fun, name) {
                (WindowFunctionDefinition::AggregateUDF(function), _) => {
                    Some(Computed::Aggregate(Arc::clone(function)))
                }
                (_, "first_value") => Some(Computed::First),
                (_, "last_value") => Some(Computed::Last),
                (_, "nth_value") => Some(Computed::Nth),
                // The others look at no frame.
                _ => None,
            };
            if let Some(computed) = computed {
                let function = framed(computed, args.len(), filter.is_some(), own.frame);
                fun = WindowFunctionDefinition::WindowUDF(Arc::new(function));
                args.extend(filter.take().map(|filter| *filter));
                args.extend(own.keys);
            }
        }
        let call = Expr::WindowFunction(Box::new(WindowFunction {
            fun,
            params: WindowFunctionParams {
                args,
                partition_by,
                order_by,
                window_frame,
                filter,
                null_treatment: None::<NullTreatment>,
                distinct,
            },
        }));
        Ok(shaped(call, ty, recast))
    }

    /// 42809 for OVER behind a function that is no window's, 42883 where there is none.
    fn no_window_function(&self, name: &str, args: &[Typed]) -> Error {
        let known = self.is_set_function(name) || self.call(name, args.to_vec()).is_ok();
        if !known {
            return self.no_function(name, args);
        }
        fault::new(
            "42809",
            format!(
                "OVER specified, but {name} is not a window function nor an aggregate function"
            ),
        )
    }

    /// Whether the arguments are looked at for each row: some are no constants, or the number is
    /// one that DataFusion's functions take otherwise than PostgreSQL's, as NULL and what is not
    /// positive.
    fn is_by_row(&self, name: &str, args: &[Typed]) -> Result<bool> {
        let first = usize::from(name != "ntile");
        if args.iter().skip(first).any(|arg| !arg.expr.column_refs().is_empty()) {
            return Ok(true);
        }
        let least = match name {
            "ntile" | "nth_value" => 1,
            "lag" | "lead" => i64::MIN,
            _ => return Ok(false),
        };
        let Some(number) = args.get(first) else { return Ok(false) };
        let number = self.whole_number(number.clone(), name)?;
        Ok(match self.constant(number, name)? {
            ScalarValue::Int64(Some(number)) => number < least,
            number => number.is_null(),
        })
    }

    /// A number of rows. PostgreSQL's are integers; DataFusion takes them as bigint.
    fn whole_number(&self, mut number: Typed, name: &str) -> Result<Typed> {
        if number.ty.is_unknown() {
            number = self.coerce(number, &SqlType::Int4, name)?;
        }
        self.coerce(number, &SqlType::Int8, name)
    }

    /// Arguments and type of a function that is for windows alone; `by_row`: some that DataFusion's
    /// take as constants are none.
    fn window_args(
        &self,
        name: &str,
        args: &[Typed],
        by_row: bool,
    ) -> Result<(Vec<Expr>, SqlType)> {
        let int8 = |at: usize| -> Result<Expr> {
            let typed = self.whole_number(args[at].clone(), name)?;
            if by_row {
                return Ok(typed.expr);
            }
            Ok(Expr::Literal(self.constant(typed, name)?, None))
        };
        let mut out = Vec::new();
        let ty = match name {
            "row_number" | "rank" | "dense_rank" => SqlType::Int8,
            "percent_rank" | "cume_dist" => SqlType::Float8,
            "ntile" if args.len() == 1 => {
                out.push(int8(0)?);
                SqlType::Int4
            }
            "lag" | "lead" | "first_value" | "last_value" | "nth_value" if !args.is_empty() => {
                let unknown = args[0].ty.is_unknown();
                let ty = if unknown { SqlType::Text } else { args[0].ty.without_modifier() };
                out.push(self.coerce(args[0].clone(), &ty, name)?.expr);
                if args.len() > 1 {
                    out.push(int8(1)?);
                }
                if args.len() > 2 {
                    let default = self.coerce(args[2].clone(), &ty, name)?;
                    out.push(match by_row {
                        true => default.expr,
                        false => Expr::Literal(self.constant(default, name)?, None),
                    });
                }
                ty
            }
            _ => return Err(self.no_function(name, args)),
        };
        Ok((out, ty))
    }
}

/// The function of this name that is for windows alone.
pub(super) fn window_function(
    name: &str,
) -> Option<std::sync::Arc<datafusion::logical_expr::WindowUDF>> {
    Some(match name {
        "row_number" => fw::row_number::row_number_udwf(),
        "rank" => fw::rank::rank_udwf(),
        "dense_rank" => fw::rank::dense_rank_udwf(),
        "percent_rank" => fw::rank::percent_rank_udwf(),
        "cume_dist" => fw::cume_dist::cume_dist_udwf(),
        "ntile" => fw::ntile::ntile_udwf(),
        "lag" => fw::lead_lag::lag_udwf(),
        "lead" => fw::lead_lag::lead_udwf(),
        "first_value" => fw::nth_value::first_value_udwf(),
        "last_value" => fw::nth_value::last_value_udwf(),
        "nth_value" => fw::nth_value::nth_value_udwf(),
        _ => return None,
    })
}
