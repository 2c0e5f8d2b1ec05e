//! `information_schema._pg_expandarray(array)`: the one function of PostgreSQL's own that gives
//! rows of two columns, and that pgjdbc calls in a select list to learn the columns of keys and
//! indexes.
//!
//! # What is done
//! There are no composite values, so its columns are put in its place right after parsing:
//!
//! | written | becomes |
//! | --- | --- |
//! | `(_pg_expandarray(a)).x`, `….n` | `unnest(a)`, `generate_series(1, cardinality(a))` |
//! | `_pg_expandarray(a) AS keys` in a subquery in FROM | both of these, named `keys.x` and `keys.n` |
//! | `(sub.keys).x` around it | `sub."keys.x"` |
//!
//! # Limits
//! Its value as a whole, as a result column or an argument, stays a call of a function that is not
//! there (42883).
//!
//! Nothing here fails.

use std::ops::ControlFlow;

use crate::names::fold as fold_ident;
use crate::sqlparser::ast::{
    AccessExpr, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, Ident, ObjectName, Select, SelectItem, SetExpr, Statement, TableFactor,
    Value, VisitMut, VisitorMut, visit_expressions_mut,
};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};

const NAME: &str = "_pg_expandarray";

/// Whether the function is named in the statement.
pub fn is_in(tokens: &[TokenWithSpan]) -> bool {
    tokens.iter().any(|t| matches!(&t.token, Token::Word(w) if w.value.eq_ignore_ascii_case(NAME)))
}

/// Puts columns in the place of its calls.
pub fn expand(statement: &mut Statement) {
    let _: ControlFlow<()> = visit_expressions_mut(statement, |expr| {
        if let Some(column) = column_of_call(expr) {
            *expr = column;
        }
        ControlFlow::Continue(())
    });
    let mut wholes = Wholes::default();
    let _: ControlFlow<()> = statement.visit(&mut wholes);
    let _: ControlFlow<()> = visit_expressions_mut(statement, |expr| {
        if let Some(column) = column_of_whole(expr, &wholes.names) {
            *expr = column;
        }
        ControlFlow::Continue(())
    });
}

/// The array, when `expr` is a call of the function.
fn array_of(expr: &Expr) -> Option<&Expr> {
    let Expr::Function(Function { name, args: FunctionArguments::List(list), .. }) = expr else {
        return None;
    };
    let called = name.0.last().and_then(|part| part.as_ident()).map(fold_ident)?;
    match list.args.as_slice() {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(array))] if called == NAME => Some(array),
        _ => None,
    }
}

/// The column that a field access names, with what it is taken of.
fn field(expr: &Expr) -> Option<(&Expr, String)> {
    let Expr::CompoundFieldAccess { root, access_chain } = expr else { return None };
    let [AccessExpr::Dot(Expr::Identifier(field))] = access_chain.as_slice() else { return None };
    let field = fold_ident(field);
    let whole = match &**root {
        Expr::Nested(inner) => inner,
        root => root,
    };
    matches!(field.as_str(), "x" | "n").then_some((whole, field))
}

fn column_of_call(expr: &Expr) -> Option<Expr> {
    let (whole, field) = field(expr)?;
    Some(column(array_of(whole)?, &field))
}

/// The elements (`x`) of an array, or their numbers (`n`).
fn column(array: &Expr, field: &str) -> Expr {
    match field {
        "x" => call("unnest", vec![array.clone()]),
        _ => {
            let one = Expr::value(Value::Number("1".to_owned(), false));
            call("generate_series", vec![one, call("cardinality", vec![array.clone()])])
        }
    }
}

fn call(name: &str, args: Vec<Expr>) -> Expr {
    let args = args.into_iter().map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)));
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: args.collect(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// The name of a column that stands for a field of `whole`.
fn part_name(whole: &str, field: &str) -> Ident {
    Ident::with_quote('"', format!("{whole}.{field}"))
}

/// `(sub.keys).x`, where `keys` was a whole.
fn column_of_whole(expr: &Expr, wholes: &[String]) -> Option<Expr> {
    let (whole, field) = field(expr)?;
    let known = |ident: &Ident| {
        let name = fold_ident(ident);
        wholes.contains(&name).then(|| part_name(&name, &field))
    };
    match whole {
        Expr::Identifier(name) => known(name).map(Expr::Identifier),
        Expr::CompoundIdentifier(parts) => {
            let (name, table) = parts.split_last()?;
            let mut parts = table.to_vec();
            parts.push(known(name)?);
            Some(Expr::CompoundIdentifier(parts))
        }
        _ => None,
    }
}

/// Takes the wholes in subqueries in FROM apart, and keeps their names.
#[derive(Default)]
struct Wholes {
    names: Vec<String>,
}

impl Wholes {
    fn take_apart(&mut self, select: &mut Select) {
        let items = std::mem::take(&mut select.projection);
        for item in items {
            match item {
                SelectItem::ExprWithAlias { expr, alias } if array_of(&expr).is_some() => {
                    let name = fold_ident(&alias);
                    for field in ["x", "n"] {
                        let Some(array) = array_of(&expr) else { continue };
                        select.projection.push(SelectItem::ExprWithAlias {
                            expr: column(array, field),
                            alias: part_name(&name, field),
                        });
                    }
                    self.names.push(name);
                }
                item => select.projection.push(item),
            }
        }
    }
}

impl VisitorMut for Wholes {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::Derived { subquery, .. } = factor
            && let SetExpr::Select(select) = &mut *subquery.body
        {
            self.take_apart(select);
        }
        ControlFlow::Continue(())
    }
}
