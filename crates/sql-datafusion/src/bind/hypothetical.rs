//! Hypothetical-set aggregates: `rank(v) WITHIN GROUP (ORDER BY x)` and its kin, the place that a
//! row of `v` would have.
//!
//! # How
//! They are counts of the group's rows that come before that row, or beside it, in the order asked
//! for:
//!
//! | written | as |
//! | --- | --- |
//! | `rank` | `count(*) FILTER (WHERE before) + 1` |
//! | `dense_rank` | `count(DISTINCT ROW(x, …)) FILTER (WHERE before) + 1` |
//! | `percent_rank` | rows before, by all rows; 0 where there are none |
//! | `cume_dist` | rows before or beside and one, by all rows and one |
//!
//! # Invariants
//! NULLs come before or behind as the order says. FILTER of the aggregate is one of each count.
//!
//! # On failure
//! 42883 for other numbers of arguments than of expressions in WITHIN GROUP, 42804 for those of
//! other types, 42803 for arguments that are not grouped.

use datafusion::sql::sqlparser::ast::{
    self, BinaryOperator as Op, DuplicateTreatment, Expr as E, FunctionArg, FunctionArgExpr,
};

use super::scope::Scope;
use super::{Binder, Typed};
use telesto_sql_types::error::Result;

/// Whether there is a hypothetical-set aggregate of that name.
pub(super) fn is_hypothetical(name: &str) -> bool {
    matches!(name, "rank" | "dense_rank" | "percent_rank" | "cume_dist")
}

fn number(value: &str) -> E {
    E::Value(ast::Value::Number(value.to_owned(), false).into())
}

fn binary(left: E, op: Op, right: E) -> E {
    E::Nested(Box::new(E::BinaryOp { left: Box::new(left), op, right: Box::new(right) }))
}

fn is_null(expr: &E) -> E {
    E::IsNull(Box::new(E::Nested(Box::new(expr.clone()))))
}

fn is_not_null(expr: &E) -> E {
    E::IsNotNull(Box::new(E::Nested(Box::new(expr.clone()))))
}

fn call(name: &str, args: Vec<FunctionArgExpr>) -> ast::Function {
    ast::Function {
        name: ast::ObjectName::from(vec![ast::Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: ast::FunctionArguments::None,
        args: ast::FunctionArguments::List(ast::FunctionArgumentList {
            duplicate_treatment: None,
            args: args.into_iter().map(FunctionArg::Unnamed).collect(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    }
}

/// `count(*)`, or of what is `distinct`, of the rows for which `wanted` and the aggregate's own
/// filter hold.
fn count(distinct: Option<E>, filter: Option<&E>, wanted: Option<E>) -> E {
    let arg = distinct.clone().map_or(FunctionArgExpr::Wildcard, FunctionArgExpr::Expr);
    let mut counted = call("count", vec![arg]);
    if let (Some(_), ast::FunctionArguments::List(list)) = (&distinct, &mut counted.args) {
        list.duplicate_treatment = Some(DuplicateTreatment::Distinct);
    }
    let all = filter.map(|filter| E::Nested(Box::new(filter.clone()))).into_iter().chain(wanted);
    counted.filter = all.reduce(|a, b| binary(a, Op::And, b)).map(Box::new);
    E::Function(counted)
}

fn double(expr: E) -> E {
    E::Cast {
        kind: ast::CastKind::Cast,
        expr: Box::new(expr),
        data_type: ast::DataType::DoublePrecision,
        array: false,
        format: None,
    }
}

/// Whether a row of the group comes before the hypothetical one, and whether beside it.
fn places(direct: &[E], order: &[ast::OrderByExpr]) -> (E, E) {
    let (mut before, mut beside): (Option<E>, Option<E>) = (None, None);
    for (value, item) in direct.iter().zip(order).rev() {
        let key = &item.expr;
        let ascending = item.options.asc.unwrap_or(true);
        let nulls_first = item.options.nulls_first.unwrap_or(!ascending);
        let nested = |expr: &E| E::Nested(Box::new(expr.clone()));
        let op = if ascending { Op::Lt } else { Op::Gt };
        let null = match nulls_first {
            true => binary(is_null(key), Op::And, is_not_null(value)),
            false => binary(is_not_null(key), Op::And, is_null(value)),
        };
        let first = binary(binary(nested(key), op, nested(value)), Op::Or, null);
        let same = E::Nested(Box::new(E::IsNotDistinctFrom(
            Box::new(nested(key)),
            Box::new(nested(value)),
        )));
        before = Some(match before {
            None => first,
            Some(rest) => binary(first, Op::Or, binary(same.clone(), Op::And, rest)),
        });
        beside = Some(match beside {
            None => same,
            Some(rest) => binary(same, Op::And, rest),
        });
    }
    let none = || E::Value(ast::Value::Boolean(false).into());
    (before.unwrap_or_else(none), beside.unwrap_or_else(none))
}

fn placed(name: &str, call_of: &ast::Function, direct: &[E]) -> E {
    let order = &call_of.within_group;
    let filter = call_of.filter.as_deref();
    let (before, beside) = places(direct, order);
    let one = || number("1");
    match name {
        "rank" => binary(count(None, filter, Some(before)), Op::Plus, one()),
        "dense_rank" => {
            let keys = order.iter().map(|item| FunctionArgExpr::Expr(item.expr.clone()));
            let row = E::Function(call("row", keys.collect()));
            binary(count(Some(row), filter, Some(before)), Op::Plus, one())
        }
        "percent_rank" => {
            let all = count(None, filter, None);
            let none = call(
                "nullif",
                vec![FunctionArgExpr::Expr(all), FunctionArgExpr::Expr(number("0"))],
            );
            let share = binary(
                double(count(None, filter, Some(before))),
                Op::Divide,
                double(E::Function(none)),
            );
            let zero = double(number("0"));
            let args = vec![FunctionArgExpr::Expr(share), FunctionArgExpr::Expr(zero)];
            E::Function(call("coalesce", args))
        }
        _ => {
            let reached = binary(before, Op::Or, beside);
            let reached = binary(count(None, filter, Some(reached)), Op::Plus, one());
            let all = binary(count(None, filter, None), Op::Plus, one());
            binary(double(reached), Op::Divide, double(all))
        }
    }
}

impl Binder<'_> {
    /// The place of a hypothetical row. `direct`: the arguments, bound.
    pub(super) fn hypothetical(
        &self,
        name: &str,
        call_of: &ast::Function,
        direct: Vec<Typed>,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        let ast::FunctionArguments::List(list) = &call_of.args else {
            return Err(self.no_function(name, &direct));
        };
        let values = list.args.iter().filter_map(|arg| match arg {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value.clone()),
            _ => None,
        });
        let values: Vec<E> = values.collect();
        if values.len() != call_of.within_group.len() || list.args.len() != values.len() {
            let mut args = direct;
            for item in &call_of.within_group {
                args.push(self.expr(&item.expr, scope)?);
            }
            return Err(self.no_function(name, &args));
        }
        for (bound, item) in direct.iter().zip(&call_of.within_group) {
            let key = self.expr(&item.expr, scope)?;
            self.common_type(&[bound.ty.clone(), key.ty], "WITHIN GROUP")?;
        }
        let mut place = placed(name, call_of, &values);
        // Outside of the counts, too, an argument must be grouped; what is computed does not depend
        // on it.
        for (value, bound) in values.iter().zip(&direct) {
            if !bound.expr.column_refs().is_empty() {
                place = E::Case {
                    case_token: ast::helpers::attached_token::AttachedToken::empty(),
                    end_token: ast::helpers::attached_token::AttachedToken::empty(),
                    operand: None,
                    conditions: vec![ast::CaseWhen {
                        condition: is_null(value),
                        result: place.clone(),
                    }],
                    else_result: Some(Box::new(place)),
                };
            }
        }
        self.expr(&place, scope)
    }
}
