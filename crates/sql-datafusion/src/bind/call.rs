//! Calls: scalar functions, aggregates, window functions, set-returning functions, and the forms
//! with a syntax of their own (COALESCE, NULLIF, GREATEST, LEAST, ARRAY(subquery)).
//!
//! # Invariants
//! Aggregates return PostgreSQL's types: `count` bigint, `sum(int)` bigint, `sum(bigint)` and
//! averages of whole numbers numeric.

use datafusion::common::ScalarValue;
use datafusion::functions_aggregate as fa;
use datafusion::logical_expr::expr::{AggregateFunction, Unnest};
use datafusion::logical_expr::{AggregateUDF, Expr, SortExpr, cast};
use datafusion::sql::sqlparser::ast;

use super::from::coalesce;
use super::group::{refuse_aggregates, refuse_sets};
use super::levels::refuse_inside;
use super::ordered::refuse_in_direct_arguments;
use super::row_order::shows_order;
use super::scope::{Scope, fold};
use super::window_call::window_function;
use super::{Binder, Typed};
use crate::aggregate::{Fold, folding};
use crate::arrays::gathered_type;
use crate::spread::{self, Measure};
use crate::types::{TypeShape, arrow_type};
use crate::udf::extreme;
use crate::{fault, guards, waiting};
use telesto_sql_expr::is_void_parameter;
use telesto_sql_expr::nullif_result;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

/// A resolved aggregate: the function, its arguments cast as it wants them, what it returns.
pub(super) struct Aggregate {
    pub function: std::sync::Arc<AggregateUDF>,
    pub args: Vec<Expr>,
    pub ty: SqlType,
    /// Cast what the plan's function returns to this.
    pub recast: bool,
}

/// Whether there is a `min` and a `max` of the type.
fn has_extremes(ty: &SqlType) -> bool {
    use SqlType as T;
    let none = matches!(ty, T::Bool | T::Jsonb | T::Uuid | T::Record(_) | T::Composite(_));
    !(none || ty.is_bits() || ty.is_ranged())
}

/// 42809.
fn without_over(name: &str) -> telesto_sql_types::error::Error {
    fault::new("42809", format!("window function {name} requires an OVER clause"))
}

impl Binder<'_> {
    /// Values that are told apart are of a type: of text, where a parameter has none yet.
    fn of_types(&self, args: Vec<Typed>) -> Result<Vec<Typed>> {
        let told = |arg: Typed| match arg.parameter.filter(|_| arg.ty.is_unknown()) {
            Some(_) => self.cast(arg, &SqlType::Text),
            None => Ok(arg),
        };
        args.into_iter().map(told).collect()
    }

    pub(super) fn function(&self, call: &ast::Function, scope: &Scope<'_>) -> Result<Typed> {
        let name = call.name.0.last().and_then(|part| part.as_ident()).map(fold);
        let name = name.ok_or_else(|| fault::syntax("a function needs a name"))?;
        if name == "row"
            && let Some(row) = self.row_value(&ast::Expr::Function(call.clone()), scope)?
        {
            return Ok(row);
        }
        if let Some(known) = self.known_call(&name, call, scope)? {
            return Ok(known);
        }
        let list = match &call.args {
            ast::FunctionArguments::Subquery(query) if name == "array" => {
                return self.array_subquery(query, scope);
            }
            ast::FunctionArguments::Subquery(query) => {
                let arg = self.expr(&ast::Expr::Subquery(query.clone()), scope)?;
                return self.call(&name, vec![arg]);
            }
            ast::FunctionArguments::None => None,
            ast::FunctionArguments::List(list) => Some(list),
        };
        if let (Some(list), false) = (list, call.within_group.is_empty()) {
            refuse_in_direct_arguments(list)?;
        }
        let mut star = false;
        let mut args = Vec::new();
        for arg in list.iter().flat_map(|list| &list.args) {
            match arg {
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => {
                    let bound = self.expr(expr, scope)?;
                    if !is_void_parameter(expr, &bound.ty) {
                        args.push(bound);
                    }
                }
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Wildcard) => star = true,
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::QualifiedWildcard(name)) => {
                    args.push(self.row_behind_star(name, scope)?);
                }
                _ => return Err(fault::unsupported("named function arguments")),
            }
        }
        let distinct = list.is_some_and(|list| {
            list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct)
        });
        if distinct && name == "count" && call.over.is_none() {
            args = self.of_types(args)?;
        }
        let mut order: Vec<SortExpr> = Vec::new();
        let mut nulls = call.null_treatment;
        for clause in list.iter().flat_map(|list| &list.clauses) {
            match clause {
                ast::FunctionArgumentClause::OrderBy(items) => order = self.sorts(items, scope)?,
                ast::FunctionArgumentClause::IgnoreOrRespectNulls(treatment) => {
                    nulls = Some(*treatment);
                }
                _ => return Err(fault::unsupported("this clause inside a function call")),
            }
        }
        let filter = match &call.filter {
            None => None,
            Some(filter) => {
                let filter = self.condition(filter, scope, "FILTER")?;
                refuse_aggregates(&filter, "FILTER")?;
                Some(Box::new(filter))
            }
        };
        let within = self.sorts(&call.within_group, scope)?;
        let aggregate = match &call.over {
            None if within.is_empty() => self.aggregate_named(&name, &args, star)?,
            _ => None,
        };
        if aggregate.is_some() || call.over.is_none() && !within.is_empty() {
            let sorted = order.iter().chain(&within).map(|sort| &sort.expr);
            let mut parts: Vec<Expr> =
                args.iter().map(|arg| &arg.expr).chain(sorted).cloned().collect();
            refuse_inside(&parts)?;
            parts.extend(filter.as_deref().cloned());
            if let Some(outer) = self.outer_fold(call, &parts, scope)? {
                return Ok(outer);
            }
        }
        if order.is_empty() && !distinct && call.over.is_none() && shows_order(&name) {
            order = scope.order.to_vec();
        }
        if !within.is_empty() {
            return self.ordered_set(&name, call, args, scope);
        }
        if let Some(over) = &call.over {
            if !order.is_empty() {
                return Err(fault::unsupported("ORDER BY inside of a window function's call"));
            }
            return self.window_call(&name, args, star, distinct, nulls, filter, over, scope);
        }
        if let Some(mut aggregate) = aggregate {
            self.sorted_by_arguments(distinct, &args, &order)?;
            if let ("count", true, false, [arg]) = (&*name, distinct, star, &args[..]) {
                // Equal values that do not look so count once.
                let ty = if arg.ty.is_unknown() { &SqlType::Text } else { &arg.ty };
                for arg in &mut aggregate.args {
                    *arg = self.orderable(std::mem::take(arg), ty)?;
                }
            }
            let keys = order.iter_mut().map(|sort| &mut sort.expr);
            guard(aggregate.args.iter_mut().chain(keys), filter.as_deref())?;
            let call = Expr::AggregateFunction(AggregateFunction::new_udf(
                aggregate.function,
                aggregate.args,
                distinct && tells_doubles(&name),
                filter,
                order,
                None,
            ));
            return Ok(shaped(call, aggregate.ty, aggregate.recast));
        }
        if filter.is_some() || distinct || !order.is_empty() {
            return Err(fault::new(
                "42809",
                format!(
                    "DISTINCT, ORDER BY or FILTER specified, but {name} is not an aggregate function"
                ),
            ));
        }
        if window_function(&name).is_some() {
            return Err(without_over(&name));
        }
        match name.as_str() {
            "coalesce" => self.coalesced(args),
            "nullif" => {
                let [a, b] = two(args, &name)?;
                let a = self.once(a)?;
                let ty = nullif_result(&a.ty, &b.ty);
                let equal = self.binary("=", a.clone(), b)?.expr;
                let a = self.coerce(a, &ty, "NULLIF")?;
                let null =
                    ScalarValue::try_from(&arrow_type(&ty)).map_err(fault::from_datafusion)?;
                let chosen = datafusion::logical_expr::when(equal, Expr::Literal(null, None))
                    .otherwise(a.expr)
                    .map_err(fault::from_datafusion)?;
                Ok(Typed::of(chosen, ty))
            }
            "greatest" => self.extreme(args, true, &name),
            "least" => self.extreme(args, false, &name),
            _ => {
                if self.is_set_function(&name) {
                    if name == "unnest" && args.len() > 1 {
                        // Several arrays go side by side in FROM only.
                        return Err(self.no_function(&name, &args));
                    }
                    let set = self.table_call(&name, args)?;
                    let [(_, ty, expr)] = <[_; 1]>::try_from(set.columns).map_err(|_| {
                        fault::unsupported(
                            "a function with several result columns in the select list",
                        )
                    })?;
                    let unnest = Unnest { expr: Box::new(expr), outer: false };
                    return Ok(Typed::of(Expr::Unnest(unnest), ty));
                }
                self.call(&name, args)
            }
        }
    }

    /// `CURRENT_TIMESTAMP(n)` and its kin.
    pub(super) fn to_precision(&self, name: &str, precision: &Typed) -> Result<Typed> {
        let Expr::Literal(ScalarValue::Int32(Some(precision @ 0..)), _) = &precision.expr else {
            return Err(fault::syntax("a precision must be a number"));
        };
        let precision = u8::try_from((*precision).min(6)).unwrap_or(6);
        let now = self.call(name, Vec::new())?;
        let ty = match &now.ty {
            SqlType::TimestampTz(_) => SqlType::TimestampTz(Some(precision)),
            SqlType::Timestamp(_) => SqlType::Timestamp(Some(precision)),
            SqlType::TimeTz(_) => SqlType::TimeTz(Some(precision)),
            _ => SqlType::Time(Some(precision)),
        };
        self.cast(now, &ty)
    }

    /// Refuses an order of distinct values by what is none of them: which of equal values it took
    /// would be anybody's.
    fn sorted_by_arguments(
        &self,
        distinct: bool,
        args: &[Typed],
        order: &[SortExpr],
    ) -> Result<()> {
        if !distinct {
            return Ok(());
        }
        let keys = args.iter().map(|arg| {
            let ty = if arg.ty.is_unknown() { &SqlType::Text } else { &arg.ty };
            self.orderable(arg.expr.clone(), ty)
        });
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let known =
            |expr: &Expr| keys.iter().any(|key| key == expr || crate::waiting::alike(key, expr));
        if order.iter().all(|sort| known(&sort.expr)) {
            return Ok(());
        }
        Err(fault::new(
            "42P10",
            "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list"
                .to_owned(),
        ))
    }

    fn coalesced(&self, args: Vec<Typed>) -> Result<Typed> {
        let types: Vec<_> = args.iter().map(|a| a.ty.clone()).collect();
        let ty = self.common_type(&types, "COALESCE")?;
        let mut whole: Option<Expr> = None;
        for arg in args.into_iter().rev() {
            // DataFusion asks whether each but the last is NULL, and then for its value.
            let arg = if whole.is_some() { self.once(arg)? } else { arg };
            let arg = self.coerce(arg, &ty, "COALESCE")?.expr;
            refuse_sets(&arg, "COALESCE")?;
            whole = Some(match whole {
                None => arg,
                Some(rest) => coalesce(arg, rest)?,
            });
        }
        let expr = whole.ok_or_else(|| fault::syntax("COALESCE needs at least one argument"))?;
        Ok(Typed::of(expr, ty))
    }

    fn extreme(&self, args: Vec<Typed>, greatest: bool, name: &str) -> Result<Typed> {
        let types: Vec<_> = args.iter().map(|a| a.ty.clone()).collect();
        let ty = self.common_type(&types, name)?;
        if args.is_empty() {
            return Err(fault::syntax("GREATEST and LEAST need at least one argument"));
        }
        // One call of all: comparisons of two at a time would name each value again in every one
        // that follows it.
        let function = extreme(greatest, &ty, args.len());
        let values = args.into_iter().map(|arg| Ok(self.coerce(arg, &ty, name)?.expr));
        Ok(Typed::of(function.call(values.collect::<Result<_>>()?), ty))
    }

    /// The aggregate of this name for these arguments; `None` when the name is no aggregate's.
    pub(super) fn aggregate_named(
        &self,
        name: &str,
        args: &[Typed],
        star: bool,
    ) -> Result<Option<Aggregate>> {
        let cx = self.evaluation();
        let ready = |function, args: Vec<Expr>, ty| {
            Ok(Some(Aggregate { function, args, ty, recast: false }))
        };
        if star {
            if name != "count" {
                return Err(fault::new("42883", format!("function {name}(*) does not exist")));
            }
            let one = Expr::Literal(ScalarValue::Int64(Some(1)), None);
            return ready(fa::count::count_udaf(), vec![one], SqlType::Int8);
        }
        let arity = |n: usize| {
            if args.len() == n { Ok(()) } else { Err(self.no_function(name, args)) }
        };
        let first = || -> Result<(Expr, SqlType)> {
            let arg = args.first().cloned().ok_or_else(|| self.no_function(name, args))?;
            let ty = if arg.ty.is_unknown() { SqlType::Text } else { arg.ty.clone() };
            Ok((self.coerce(arg, &ty, name)?.expr, ty))
        };
        let folded = |fold, args: Vec<Expr>, types: &[SqlType], ty: SqlType| {
            let function = folding(fold, types, &ty, &cx);
            Ok(Some(Aggregate { function, args, ty, recast: false }))
        };
        match name {
            "count" => {
                arity(1)?;
                let arg = self.of_any_type(args[0].clone())?.expr;
                ready(fa::count::count_udaf(), vec![arg], SqlType::Int8)
            }
            "sum" | "avg" => {
                arity(1)?;
                if args[0].ty.is_unknown() {
                    let message = format!("function {name}(unknown) is not unique");
                    return Err(fault::new("42725", message));
                }
                let (mut arg, mut ty) = first()?;
                if matches!(ty, SqlType::Time(_)) {
                    // There are none for time: interval's are taken.
                    let typed = Typed::of(arg, ty);
                    arg = self.coerce(typed, &SqlType::Interval, name)?.expr;
                    ty = SqlType::Interval;
                }
                let sum = name == "sum";
                match &ty {
                    SqlType::Int2 | SqlType::Int4 if sum => ready(
                        fa::sum::sum_udaf(),
                        vec![cast(arg, arrow_type(&SqlType::Int8))],
                        SqlType::Int8,
                    ),
                    SqlType::Float4 | SqlType::Float8 => {
                        let measure = match &ty {
                            _ if !sum => Measure::Average,
                            SqlType::Float4 => Measure::SumReal,
                            _ => Measure::Sum,
                        };
                        let ty = if sum { ty } else { SqlType::Float8 };
                        Ok(Some(of_doubles(measure, arg, ty)))
                    }
                    SqlType::Int2 | SqlType::Int4 | SqlType::Int8 | SqlType::Numeric(..) => {
                        let fold = if sum { Fold::SumNumeric } else { Fold::AvgNumeric };
                        folded(fold, vec![arg], &[ty], SqlType::Numeric(None))
                    }
                    SqlType::Interval => {
                        let fold = if sum { Fold::SumInterval } else { Fold::AvgInterval };
                        folded(fold, vec![arg], std::slice::from_ref(&ty), ty.clone())
                    }
                    _ => Err(self.no_function(name, args)),
                }
            }
            "min" | "max" => {
                arity(1)?;
                let (arg, ty) = first()?;
                if !has_extremes(&ty) {
                    return Err(self.no_function(name, args));
                }
                // There is none for varchar and cidr: text's and inet's are taken.
                let ty = match ty {
                    SqlType::Varchar(_) => SqlType::Text,
                    SqlType::Cidr => SqlType::Inet,
                    ty => ty.without_modifier(),
                };
                if matches!(ty, SqlType::Float4 | SqlType::Float8) {
                    let least = name == "min";
                    let measure = if least { Measure::Least } else { Measure::Greatest };
                    return Ok(Some(of_doubles(measure, arg, ty)));
                }
                let function = native_extreme(name);
                if super::operators::natively_ordered(&ty) {
                    ready(function, vec![arg], ty)
                } else {
                    let fold = if name == "min" { Fold::Least } else { Fold::Greatest };
                    folded(fold, vec![arg], std::slice::from_ref(&ty), ty.clone())
                }
            }
            "bool_and" | "every" | "bool_or" => {
                arity(1)?;
                let arg = self.coerce(args[0].clone(), &SqlType::Bool, name)?.expr;
                let function = if name == "bool_or" {
                    fa::bool_and_or::bool_or_udaf()
                } else {
                    fa::bool_and_or::bool_and_udaf()
                };
                ready(function, vec![arg], SqlType::Bool)
            }
            "bit_and" | "bit_or" | "bit_xor" | "range_agg" | "range_intersect_agg" => {
                arity(1)?;
                self.combined(name, args)
            }
            "array_agg" => {
                arity(1)?;
                let (arg, ty) = first()?;
                let Some(whole) = gathered_type(&ty) else {
                    return Err(fault::unsupported("array_agg of int2vector or oidvector"));
                };
                folded(Fold::Array, vec![arg], &[ty], whole)
            }
            "string_agg" => {
                arity(2)?;
                let (arg, ty) = first()?;
                let ty = if ty == SqlType::Bytea { ty } else { SqlType::Text };
                let arg = self.coerce(Typed::of(arg, args[0].ty.clone()), &ty, name)?.expr;
                let separator = self.coerce(args[1].clone(), &ty, name)?.expr;
                folded(Fold::Joined, vec![arg, separator], &[ty.clone(), ty.clone()], ty)
            }
            "json_agg" | "jsonb_agg" => {
                arity(1)?;
                let (arg, ty) = first()?;
                folded(Fold::JsonArray, vec![arg], &[ty], json_type(name))
            }
            "json_object_agg" | "jsonb_object_agg" => {
                arity(2)?;
                let (key, key_type) = first()?;
                let key = self.cast(Typed::of(key, key_type), &SqlType::Text)?.expr;
                let value = args[1].clone();
                let ty = if value.ty.is_unknown() { SqlType::Text } else { value.ty.clone() };
                let value = self.coerce(value, &ty, name)?.expr;
                folded(Fold::JsonObject, vec![key, value], &[SqlType::Text, ty], json_type(name))
            }
            "stddev" | "stddev_samp" | "stddev_pop" | "variance" | "var_samp" | "var_pop" => {
                arity(1)?;
                let (measure, ty) = spread_of(name, &args[0].ty);
                let arg = self.coerce(args[0].clone(), &ty, name)?.expr;
                ready(spread::spread(measure, &ty), vec![arg], spread::returns(&ty))
            }
            "regr_slope" | "regr_intercept" | "regr_avgx" | "regr_avgy" | "regr_sxx"
            | "regr_syy" | "regr_sxy" | "regr_r2" | "regr_count" | "corr" | "covar_pop"
            | "covar_samp" => self.of_pairs(name, args),
            "grouping" => {
                let args = args.iter().map(|a| a.expr.clone()).collect();
                Ok(Some(Aggregate {
                    function: fa::grouping::grouping_udaf(),
                    args,
                    ty: SqlType::Int4,
                    recast: true,
                }))
            }
            _ => Ok(None),
        }
    }
}

/// What may fail, or waits, is computed for the rows that the filter lets through.
pub(super) fn guard<'a>(
    parts: impl Iterator<Item = &'a mut Expr>,
    filter: Option<&Expr>,
) -> Result<()> {
    // A volatile filter, looked at twice, would let other rows through.
    let Some(filter) = filter.filter(|filter| !filter.is_volatile()) else { return Ok(()) };
    for part in parts.filter(|part| guards::wants_guard(part) || waiting::holds(part)) {
        let guarded = datafusion::logical_expr::when(filter.clone(), std::mem::take(part)).end();
        *part = guarded.map_err(fault::from_datafusion)?;
    }
    Ok(())
}

/// Whether DISTINCT changes what a function gives: of the greatest and the least it does not, and
/// would keep all values in memory.
fn tells_doubles(name: &str) -> bool {
    !matches!(name, "min" | "max")
}

/// What a function of variance measures, and the type it computes in.
fn spread_of(name: &str, ty: &SqlType) -> (Measure, SqlType) {
    let measure = match name {
        "stddev" | "stddev_samp" => Measure::Deviation,
        "stddev_pop" => Measure::DeviationPop,
        "var_pop" => Measure::VariancePop,
        _ => Measure::Variance,
    };
    let exact = matches!(ty, SqlType::Int2 | SqlType::Int4 | SqlType::Int8 | SqlType::Numeric(_));
    (measure, if exact { ty.without_modifier() } else { SqlType::Float8 })
}

/// An aggregate that is computed of doubles and gives floating point of type `ty`.
fn of_doubles(measure: Measure, arg: Expr, ty: SqlType) -> Aggregate {
    Aggregate {
        function: spread::spread(measure, &SqlType::Float8),
        args: vec![cast(arg, arrow_type(&SqlType::Float8))],
        recast: ty == SqlType::Float4,
        ty,
    }
}

/// DataFusion's own `min` or `max`.
pub(super) fn native_extreme(name: &str) -> std::sync::Arc<AggregateUDF> {
    if name == "min" { fa::min_max::min_udaf() } else { fa::min_max::max_udaf() }
}

pub(super) fn shaped(call: Expr, ty: SqlType, recast: bool) -> Typed {
    let expr = if recast { cast(call, arrow_type(&ty)) } else { call };
    Typed::of(expr, ty)
}

fn two(args: Vec<Typed>, name: &str) -> Result<[Typed; 2]> {
    <[Typed; 2]>::try_from(args)
        .map_err(|args| fault::syntax(&format!("{name} takes two arguments, not {}", args.len())))
}

/// What an aggregate of JSON gives.
fn json_type(name: &str) -> SqlType {
    if name.starts_with("jsonb") { SqlType::Jsonb } else { SqlType::Json }
}
