//! Forms of expressions that the binders do not know, written as others that they do, right after
//! parsing.
//!
//! | written | as |
//! | --- | --- |
//! | `x BETWEEN SYMMETRIC a AND b` | `x BETWEEN a AND b OR x BETWEEN b AND a` |
//! | `(a, b) OVERLAPS (c, d)` | `overlaps(a, b, c, d)` |
//! | `make_interval(days => 3)` | `make_interval(0, 0, 0, 3)` |
//! | `to_json((SELECT r FROM (…) AS r))` | `(SELECT to_json(r) FROM (…) AS r)`: a row cannot leave its query, its JSON can |
//!
//! # Invariants
//! The tokens `BETWEEN SYMMETRIC` become `BETWEEN NOT` before parsing. PostgreSQL's grammar has no
//! NOT there, and what a client writes so is refused before, so that none is taken for the other.
//!
//! # On failure
//! 42883 for an argument's name that the function does not have, 42601 for what is no call.

use std::ops::ControlFlow;

use crate::names::fold;
use crate::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgOperator,
    FunctionArguments, Ident, SelectItem, SetExpr, Statement, TableFactor, UnaryOperator, Value,
    visit_expressions_mut,
};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result, SqlState};

/// A function whose arguments have names: each with what stands for it when it is left out.
type Named = (&'static str, &'static [(&'static str, Option<&'static str>)]);

/// PostgreSQL's functions with named arguments, of those there are.
const NAMED: &[Named] = &[
    (
        "make_interval",
        &[
            ("years", Some("0")),
            ("months", Some("0")),
            ("weeks", Some("0")),
            ("days", Some("0")),
            ("hours", Some("0")),
            ("mins", Some("0")),
            ("secs", Some("0.0")),
        ],
    ),
    ("make_date", &[("year", None), ("month", None), ("day", None)]),
    ("make_time", &[("hour", None), ("min", None), ("sec", None)]),
    (
        "make_timestamp",
        &[
            ("year", None),
            ("month", None),
            ("mday", None),
            ("hour", None),
            ("min", None),
            ("sec", None),
        ],
    ),
    (
        "make_timestamptz",
        &[
            ("year", None),
            ("month", None),
            ("mday", None),
            ("hour", None),
            ("min", None),
            ("sec", None),
            ("timezone", None),
        ],
    ),
    (
        "jsonb_set",
        &[
            ("jsonb_in", None),
            ("path", None),
            ("replacement", None),
            ("create_if_missing", Some("true")),
        ],
    ),
    (
        "jsonb_insert",
        &[
            ("jsonb_in", None),
            ("path", None),
            ("replacement", None),
            ("insert_after", Some("false")),
        ],
    ),
];

/// Whether a statement has a form of these.
pub fn is_in(tokens: &[TokenWithSpan]) -> bool {
    tokens.iter().any(|token| match &token.token {
        Token::RArrow | Token::Assignment => true,
        Token::Word(word) if word.quote_style.is_none() => {
            ["OVERLAPS", "SYMMETRIC"].iter().any(|known| word.value.eq_ignore_ascii_case(known))
                || is_of_rows(&word.value)
        }
        _ => false,
    })
}

/// Writes `BETWEEN SYMMETRIC` as the parser can read it.
///
/// # Errors
/// 42601 for `BETWEEN NOT`, which stands for that.
pub fn spell_symmetric(tokens: &mut [TokenWithSpan]) -> Result<()> {
    let mut between = false;
    for token in tokens {
        let Token::Word(word) = &token.token else {
            between &= matches!(token.token, Token::Whitespace(_));
            continue;
        };
        let is = |known: &str| word.quote_style.is_none() && word.value.eq_ignore_ascii_case(known);
        if between && is("NOT") {
            return Err(Error::syntax("syntax error at or near \"NOT\""));
        }
        if between && is("SYMMETRIC") {
            token.token = Token::make_keyword("NOT");
            between = false;
        } else {
            between = is("BETWEEN");
        }
    }
    Ok(())
}

/// Rewrites the forms of a statement.
///
/// # Errors
/// See the module.
pub fn rewrite(statement: &mut Statement) -> Result<()> {
    let found = visit_expressions_mut(statement, |expr| {
        let changed = match expr {
            Expr::Between { low, .. }
                if matches!(&**low, Expr::UnaryOp { op: UnaryOperator::Not, .. }) =>
            {
                let taken = std::mem::replace(expr, Expr::Tuple(Vec::new()));
                *expr = symmetric(taken);
                Ok(())
            }
            Expr::BinaryOp { op: BinaryOperator::Overlaps, .. } => {
                let taken = std::mem::replace(expr, Expr::Tuple(Vec::new()));
                overlaps(taken).map(|call| *expr = call)
            }
            Expr::Function(call) => {
                let made = positional(call);
                if let Some(inside) = around_row(call) {
                    *expr = inside;
                }
                made
            }
            _ => Ok(()),
        };
        match changed {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    });
    match found {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Whether a function of this name makes JSON of one row.
fn is_of_rows(name: &str) -> bool {
    ["row_to_json", "to_json", "to_jsonb"].iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// `f((SELECT r FROM (…) AS r))` as `(SELECT f(r) FROM (…) AS r)`. Hasura writes its objects so.
fn around_row(call: &Function) -> Option<Expr> {
    if !is_of_rows(&call.name.to_string()) {
        return None;
    }
    let mut outer = call.clone();
    let argument = only_argument(&mut outer)?;
    let Expr::Subquery(query) = &*argument else { return None };
    let mut query = query.clone();
    let SetExpr::Select(select) = &mut *query.body else { return None };
    let ([SelectItem::UnnamedExpr(shown)], [from]) =
        (select.projection.as_mut_slice(), select.from.as_slice())
    else {
        return None;
    };
    let Expr::Identifier(row) = &*shown else { return None };
    let (TableFactor::Derived { alias: Some(alias), .. }, []) =
        (&from.relation, from.joins.as_slice())
    else {
        return None;
    };
    if fold(row) != fold(&alias.name) || select.distinct.is_some() {
        return None;
    }
    *argument = shown.clone();
    *shown = Expr::Function(outer);
    Some(Expr::Subquery(query))
}

fn only_argument(call: &mut Function) -> Option<&mut Expr> {
    let FunctionArguments::List(list) = &mut call.args else { return None };
    match list.args.as_mut_slice() {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))] => Some(expr),
        _ => None,
    }
}

fn symmetric(between: Expr) -> Expr {
    let Expr::Between { expr, negated, low, high } = between else { return between };
    let low = match *low {
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => expr,
        low => Box::new(low),
    };
    let one = |low: &Expr, high: &Expr| {
        let (low, high) = (Box::new(low.clone()), Box::new(high.clone()));
        Box::new(Expr::Between { expr: expr.clone(), negated, low, high })
    };
    let op = if negated { BinaryOperator::And } else { BinaryOperator::Or };
    let either = Expr::BinaryOp { left: one(&low, &high), op, right: one(&high, &low) };
    Expr::Nested(Box::new(either))
}

fn overlaps(spans: Expr) -> Result<Expr> {
    let Expr::BinaryOp { left, right, .. } = spans else { return Ok(spans) };
    let ends = |side: Expr, which: &str| match side {
        Expr::Tuple(ends) if ends.len() == 2 => Ok(ends),
        _ => Err(Error::syntax(format!(
            "wrong number of parameters on {which} side of OVERLAPS expression"
        ))),
    };
    let mut args = ends(*left, "left")?;
    args.extend(ends(*right, "right")?);
    let args = args.into_iter().map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)));
    Ok(Expr::Function(call("overlaps", args.collect())))
}

pub(super) fn call(name: &str, args: Vec<FunctionArg>) -> Function {
    use crate::sqlparser::ast::{FunctionArgumentList, ObjectName};
    Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args,
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    }
}

/// Puts the named arguments of a call in their places.
fn positional(call: &mut Function) -> Result<()> {
    let shown = call.name.to_string();
    let FunctionArguments::List(list) = &mut call.args else { return Ok(()) };
    let is_named = |arg: &FunctionArg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::BinaryOp { op, .. })) => {
            *op == BinaryOperator::Assignment
        }
        FunctionArg::Unnamed(_) => false,
        _ => true,
    };
    if !list.args.iter().any(is_named) {
        return Ok(());
    }
    let name = shown.rsplit('.').next().unwrap_or(&shown).to_ascii_lowercase();
    let Some((_, known)) = NAMED.iter().find(|(known, _)| *known == name) else { return Ok(()) };
    let missing = || {
        Error::new(
            SqlState::UNDEFINED_FUNCTION,
            format!("function {shown} with these named arguments does not exist"),
        )
        .hint("No function matches the given name and argument types. You might need to add explicit type casts.")
    };
    let mut places: Vec<Option<FunctionArgExpr>> = vec![None; known.len()];
    let mut named = false;
    for (at, arg) in std::mem::take(&mut list.args).into_iter().enumerate() {
        let (place, value) = match named_by_assignment(arg) {
            FunctionArg::Unnamed(_) if named => {
                return Err(Error::syntax("positional argument cannot follow named argument"));
            }
            FunctionArg::Unnamed(value) => (at, value),
            FunctionArg::Named { name, arg, operator } => {
                named = true;
                (place_of(&name, &operator, known).ok_or_else(missing)?, arg)
            }
            FunctionArg::ExprNamed { name: Expr::Identifier(name), arg, operator } => {
                named = true;
                (place_of(&name, &operator, known).ok_or_else(missing)?, arg)
            }
            FunctionArg::ExprNamed { .. } => return Err(missing()),
        };
        match places.get_mut(place) {
            Some(free @ None) => *free = Some(value),
            Some(Some(_)) => return Err(Error::syntax("argument name used more than once")),
            None => return Err(missing()),
        }
    }
    // What is left out at the end stays so where nothing stands for it.
    let given = places.iter().rposition(Option::is_some).map_or(0, |at| at + 1);
    for (place, (_, default)) in places.into_iter().zip(*known).take(given) {
        let value = match (place, default) {
            (Some(value), _) => value,
            (None, Some(default)) => FunctionArgExpr::Expr(constant(default)),
            (None, None) => return Err(missing()),
        };
        list.args.push(FunctionArg::Unnamed(value));
    }
    Ok(())
}

/// `name := value`, which the parser reads as an operator.
fn named_by_assignment(arg: FunctionArg) -> FunctionArg {
    let FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::BinaryOp {
        left,
        op: BinaryOperator::Assignment,
        right,
    })) = arg
    else {
        return arg;
    };
    match *left {
        Expr::Identifier(name) => FunctionArg::Named {
            name,
            arg: FunctionArgExpr::Expr(*right),
            operator: FunctionArgOperator::Assignment,
        },
        left => FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::BinaryOp {
            left: Box::new(left),
            op: BinaryOperator::Assignment,
            right,
        })),
    }
}

fn place_of(
    name: &Ident,
    operator: &FunctionArgOperator,
    known: &[(&'static str, Option<&'static str>)],
) -> Option<usize> {
    if !matches!(operator, FunctionArgOperator::RightArrow | FunctionArgOperator::Assignment) {
        return None;
    }
    let name = crate::names::fold(name);
    known.iter().position(|(known, _)| *known == name)
}

fn constant(text: &str) -> Expr {
    let value = match text {
        "true" => Value::Boolean(true),
        "false" => Value::Boolean(false),
        number => Value::Number(number.to_owned(), false),
    };
    Expr::Value(value.into())
}
