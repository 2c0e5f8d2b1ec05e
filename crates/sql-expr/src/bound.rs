//! Bound expressions and their evaluation.
//!
//! # Invariants
//! - Every node has a type; a child has been cast to what its parent takes, so evaluation never
//!   looks at types except where a function asks for them.
//! - Three-valued logic: AND and OR do not evaluate their right side when the left decides; a
//!   strict function with a NULL argument is not called.
//! - Evaluation reads the row, the parameters and the [`EvalContext`]; it changes nothing but
//!   through volatile functions.
//!
//! # On failure
//! The first error in order of evaluation; CASE and COALESCE evaluate only what they need.

use std::cmp::Ordering;

use super::cast;
use super::context::{Call, EvalContext};
use super::registry::{Function, Volatility};
use super::ty::{CastContext, stable_cast};
use super::volatility::{call_may_fail, call_may_overflow, cast_may_fail};
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::{Datum, SqlType};

/// Comparison of two values of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names say it.
pub enum Comparison {
    Eq,
    NotEq,
    Lt,
    LtEq,
    Gt,
    GtEq,
}

impl Comparison {
    /// Whether `order` fulfils it.
    #[must_use]
    pub fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Eq => order.is_eq(),
            Self::NotEq => order.is_ne(),
            Self::Lt => order.is_lt(),
            Self::LtEq => order.is_le(),
            Self::Gt => order.is_gt(),
            Self::GtEq => order.is_ge(),
        }
    }

    /// The comparison with its sides exchanged.
    #[must_use]
    pub fn flipped(self) -> Self {
        match self {
            Self::Lt => Self::Gt,
            Self::LtEq => Self::GtEq,
            Self::Gt => Self::Lt,
            Self::GtEq => Self::LtEq,
            same => same,
        }
    }

    /// The comparison of that operator.
    #[must_use]
    pub fn of_symbol(symbol: &str) -> Option<Self> {
        Some(match symbol {
            "=" => Self::Eq,
            "<>" | "!=" => Self::NotEq,
            "<" => Self::Lt,
            "<=" => Self::LtEq,
            ">" => Self::Gt,
            ">=" => Self::GtEq,
            _ => return None,
        })
    }
}

/// The lower and upper bound of a slice; one that is left out is the array's own.
pub type Bounds = (Option<Box<Expr>>, Option<Box<Expr>>);

/// What a node does.
#[derive(Clone, Debug)]
pub enum Node {
    /// A constant.
    Const(Datum),
    /// A column: position in the row.
    Column(usize),
    /// A parameter: `$n`, 1-based.
    Param(usize),
    /// All are true.
    And(Vec<Expr>),
    /// One is true.
    Or(Vec<Expr>),
    /// NOT.
    Not(Box<Expr>),
    /// Comparison of two values of one type.
    Compare(Comparison, Box<Expr>, Box<Expr>),
    /// `IS [NOT] DISTINCT FROM`; true: NOT.
    Distinct(bool, Box<Expr>, Box<Expr>),
    /// IS NULL; true: NOT.
    IsNull(bool, Box<Expr>),
    /// IS TRUE (`Some(true)`), FALSE, UNKNOWN (`None`); second: NOT.
    IsTruth(Option<bool>, bool, Box<Expr>),
    /// Value, list of the same type, NOT.
    InList(Box<Expr>, Vec<Expr>, bool),
    /// Value, comparison, array; true: ALL.
    Quantified(Box<Expr>, Comparison, Box<Expr>, bool),
    /// Value, operator that is no comparison, array; true: ALL.
    QuantifiedCall(Box<Expr>, &'static Function, Box<Expr>, bool),
    /// Row comparison: pairs of one type each.
    RowCompare(Comparison, Vec<(Expr, Expr)>),
    /// Conditions with results, and the ELSE.
    Case(Vec<(Expr, Expr)>, Option<Box<Expr>>),
    /// The first that is not NULL.
    Coalesce(Vec<Expr>),
    /// The greatest (true) or least that is not NULL.
    Extreme(bool, Vec<Expr>),
    /// NULL if both are equal: the comparison, and the first value.
    NullIf(Box<Expr>, Box<Expr>),
    /// A value that is computed once for an expression that names it several times: its number, the
    /// value, the expression.
    Once(u32, Box<Expr>, Box<Expr>),
    /// The value of this number, inside of that expression.
    Held(u32),
    /// A cast to this node's type.
    Cast(Box<Expr>, CastContext),
    /// A function or operator call.
    Call(&'static Function, Vec<Expr>, Vec<SqlType>),
    /// An array of elements; true: of arrays.
    Array(Vec<Expr>, bool),
    /// Array, subscripts.
    Subscript(Box<Expr>, Vec<Expr>),
    /// Array, lower and upper bound of each dimension.
    Slice(Box<Expr>, Vec<Bounds>),
}

/// A typed expression.
#[derive(Clone, Debug)]
pub struct Expr {
    /// What it does.
    pub node: Node,
    /// The type of its value.
    pub ty: SqlType,
}

impl Expr {
    /// A constant.
    #[must_use]
    pub fn constant(value: Datum, ty: SqlType) -> Self {
        Self { node: Node::Const(value), ty }
    }

    /// A column of the row.
    #[must_use]
    pub fn column(position: usize, ty: SqlType) -> Self {
        Self { node: Node::Column(position), ty }
    }

    /// A node of type boolean.
    #[must_use]
    pub fn bool(node: Node) -> Self {
        Self { node, ty: SqlType::Bool }
    }

    /// The value for a row.
    ///
    /// # Errors
    /// Those of the functions and casts inside.
    pub fn eval(&self, row: &[Datum], context: &EvalContext<'_>) -> Result<Datum> {
        match &self.node {
            Node::Const(value) => Ok(value.clone()),
            Node::Column(at) => Ok(row.get(*at).cloned().unwrap_or(Datum::Null)),
            _ => telesto_sql_parser::stack::deeper(|| self.eval_here(row, context)),
        }
    }

    fn eval_here(&self, row: &[Datum], context: &EvalContext<'_>) -> Result<Datum> {
        match &self.node {
            Node::Const(value) => Ok(value.clone()),
            Node::Column(at) => Ok(row.get(*at).cloned().unwrap_or(Datum::Null)),
            Node::Param(number) => context.execution()?.parameter(*number).cloned(),
            Node::And(items) => truth_chain(items, row, context, false),
            Node::Or(items) => truth_chain(items, row, context, true),
            Node::Not(item) => Ok(match item.eval(row, context)? {
                Datum::Bool(v) => Datum::Bool(!v),
                _ => Datum::Null,
            }),
            Node::Compare(comparison, a, b) => {
                let (ty, a) = (&a.ty, a.eval(row, context)?);
                if a.is_null() {
                    return Ok(Datum::Null);
                }
                let b = b.eval(row, context)?;
                if b.is_null() {
                    return Ok(Datum::Null);
                }
                Ok(Datum::Bool(comparison.holds(a.cmp_typed(&b, ty))))
            }
            Node::Distinct(negated, a, b) => {
                let ty = &a.ty;
                let (a, b) = (a.eval(row, context)?, b.eval(row, context)?);
                Ok(Datum::Bool(a.cmp_typed(&b, ty).is_ne() != *negated))
            }
            Node::IsNull(negated, item) => {
                Ok(Datum::Bool(item.eval(row, context)?.is_null() != *negated))
            }
            Node::IsTruth(wanted, negated, item) => {
                Ok(Datum::Bool((item.eval(row, context)?.as_bool() == *wanted) != *negated))
            }
            Node::InList(value, list, negated) => in_list(value, list, *negated, row, context),
            Node::Quantified(value, comparison, list, all) => {
                compared_with_each(value, *comparison, list, *all, row, context)
            }
            Node::QuantifiedCall(value, function, list, all) => {
                let types = [value.ty.clone(), value.ty.clone()];
                let call = Call { context, args: &types, returns: &self.ty };
                let test = |value: &Datum, item: &Datum| {
                    (function.body)(&[value.clone(), item.clone()], &call)
                };
                quantified((value, list, *all, false), test, row, context)
            }
            Node::RowCompare(comparison, pairs) => row_compare(*comparison, pairs, row, context),
            Node::Case(branches, otherwise) => {
                for (condition, result) in branches {
                    if condition.eval(row, context)?.as_bool() == Some(true) {
                        return result.eval(row, context);
                    }
                }
                otherwise.as_ref().map_or(Ok(Datum::Null), |e| e.eval(row, context))
            }
            Node::Coalesce(items) => {
                for item in items {
                    let value = item.eval(row, context)?;
                    if !value.is_null() {
                        return Ok(value);
                    }
                }
                Ok(Datum::Null)
            }
            Node::Extreme(greatest, items) => {
                let mut best = Datum::Null;
                for item in items {
                    let value = item.eval(row, context)?;
                    if value.is_null() {
                        continue;
                    }
                    let order = value.cmp_typed(&best, &item.ty);
                    if best.is_null()
                        || (*greatest && order.is_gt())
                        || (!*greatest && order.is_lt())
                    {
                        best = value;
                    }
                }
                Ok(best)
            }
            Node::NullIf(equal, value) => {
                if equal.eval(row, context)?.as_bool() == Some(true) {
                    return Ok(Datum::Null);
                }
                value.eval(row, context)
            }
            Node::Once(number, value, whole) => whole.with_held(*number, value, row, context),
            Node::Held(_) => Err(Error::internal("a value is named outside of its expression")),
            Node::Cast(item, how) => {
                let value = item.eval(row, context)?;
                // A domain may refuse NULL.
                if value.is_null() && !matches!(self.ty, SqlType::Domain(_)) {
                    return Ok(value);
                }
                cast::cast(value, &item.ty, &self.ty, *how, context)
            }
            Node::Call(function, args, types) => self.call(function, args, types, row, context),
            Node::Array(items, nested) => {
                let values =
                    items.iter().map(|i| i.eval(row, context)).collect::<Result<Vec<_>>>()?;
                super::array::build(values, &self.ty, *nested)
            }
            Node::Subscript(value, subscripts) => {
                let value = value.eval(row, context)?;
                let at =
                    subscripts.iter().map(|s| s.eval(row, context)).collect::<Result<Vec<_>>>()?;
                super::array::element(&value, &at)
            }
            Node::Slice(value, bounds) => {
                let value = value.eval(row, context)?;
                let bound =
                    |e: &Option<Box<Expr>>| e.as_ref().map(|e| e.eval(row, context)).transpose();
                let bounds = bounds.iter().map(|(low, high)| Ok((bound(low)?, bound(high)?)));
                super::array::slice(&value, &bounds.collect::<Result<Vec<_>>>()?)
            }
        }
    }

    fn call(
        &self,
        function: &'static Function,
        args: &[Expr],
        types: &[SqlType],
        row: &[Datum],
        context: &EvalContext<'_>,
    ) -> Result<Datum> {
        let call = Call { context, args: types, returns: &self.ty };
        // The usual one or two arguments need no allocation.
        match args {
            [] => (function.body)(&[], &call),
            [a] => {
                let values = [a.eval(row, context)?];
                if function.strict && values[0].is_null() {
                    return Ok(Datum::Null);
                }
                (function.body)(&values, &call)
            }
            [a, b] => {
                let values = [a.eval(row, context)?, b.eval(row, context)?];
                if function.strict && (values[0].is_null() || values[1].is_null()) {
                    return Ok(Datum::Null);
                }
                (function.body)(&values, &call)
            }
            many => {
                let values =
                    many.iter().map(|a| a.eval(row, context)).collect::<Result<Vec<_>>>()?;
                if function.strict && values.iter().any(Datum::is_null) {
                    return Ok(Datum::Null);
                }
                (function.body)(&values, &call)
            }
        }
    }

    /// Whether the row fulfils the condition: true, neither false nor NULL.
    ///
    /// # Errors
    /// Those of evaluation.
    pub fn holds(&self, row: &[Datum], context: &EvalContext<'_>) -> Result<bool> {
        match &self.node {
            // Of a condition what comes after a NULL is not looked at either.
            Node::And(items) => {
                for item in items {
                    if !item.holds(row, context)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            _ => Ok(self.eval(row, context)?.as_bool() == Some(true)),
        }
    }

    /// Whether it reads columns of a row.
    #[must_use]
    pub fn reads_columns(&self) -> bool {
        let mut found = false;
        self.walk(&mut |part| found |= matches!(part.node, Node::Column(_)));
        found
    }

    /// Whether its evaluation may fail for some rows.
    #[must_use]
    pub fn may_fail(&self) -> bool {
        let mut found = false;
        self.walk(&mut |part| {
            found |= match &part.node {
                Node::Call(function, args, _) => {
                    let pattern = args.get(1).is_some_and(Self::reads_columns);
                    call_may_fail(function, pattern)
                }
                Node::QuantifiedCall(_, function, array, _) => {
                    call_may_fail(function, array.reads_columns())
                }
                Node::Cast(inner, _) => cast_may_fail(&inner.ty, &part.ty),
                _ => false,
            };
        });
        found
    }

    /// Whether something in it may be out of its type's range, though it does not fail otherwise.
    #[must_use]
    pub fn may_overflow(&self) -> bool {
        let mut found = false;
        self.walk(&mut |part| {
            found |= matches!(&part.node, Node::Call(function, ..) if call_may_overflow(function));
        });
        found
    }

    /// Calls `visit` for this node and everything below.
    pub fn walk(&self, visit: &mut impl FnMut(&Self)) {
        visit(self);
        self.each_child(&mut |child| child.walk(visit));
    }

    /// Whether something in it is computed from constants alone and was not folded: its evaluation
    /// failed.
    pub(super) fn holds_failed_constant(&self) -> bool {
        let constant = |expr: &Self| matches!(expr.node, Node::Const(_));
        let mut found = false;
        self.walk(&mut |part| {
            found |= match &part.node {
                Node::Call(function, args, _) => {
                    function.volatility == Volatility::Immutable && args.iter().all(constant)
                }
                Node::Cast(inner, _) => {
                    constant(inner)
                        && inner.ty != SqlType::Unknown
                        && !stable_cast(&inner.ty, &part.ty)
                }
                _ => false,
            };
        });
        found
    }

    /// How far the value depends on more than row and parameters.
    #[must_use]
    pub fn volatility(&self) -> Volatility {
        let mut found = Volatility::Immutable;
        self.walk(&mut |e| {
            if let Node::Call(function, _, _) = &e.node {
                found = found.max(function.volatility);
            }
            if let Node::Held(_) = &e.node {
                found = Volatility::Volatile;
            }
            if let Node::Cast(..) = &e.node {
                // Casts of times and names look at settings and catalog.
                found = found.max(Volatility::Stable);
            }
        });
        found
    }

    /// Whether the value depends on a column.
    #[must_use]
    pub fn uses_columns(&self) -> bool {
        let mut found = false;
        self.walk(&mut |e| found |= matches!(e.node, Node::Column(_)));
        found
    }

    /// Marks the columns the value depends on.
    pub fn mark_columns(&self, used: &mut [bool]) {
        self.walk(&mut |e| {
            if let Node::Column(at) = e.node
                && let Some(slot) = used.get_mut(at)
            {
                *slot = true;
            }
        });
    }

    /// Whether this is the constant NULL.
    #[must_use]
    pub fn is_null_constant(&self) -> bool {
        matches!(&self.node, Node::Const(Datum::Null))
    }
}

fn truth_chain(
    items: &[Expr],
    row: &[Datum],
    context: &EvalContext<'_>,
    decides: bool,
) -> Result<Datum> {
    let mut unknown = false;
    for item in items {
        match item.eval(row, context)?.as_bool() {
            Some(value) if value == decides => return Ok(Datum::Bool(decides)),
            Some(_) => {}
            None => unknown = true,
        }
    }
    Ok(if unknown { Datum::Null } else { Datum::Bool(!decides) })
}

fn in_list(
    value: &Expr,
    list: &[Expr],
    negated: bool,
    row: &[Datum],
    context: &EvalContext<'_>,
) -> Result<Datum> {
    let ty = &value.ty;
    let value = value.eval(row, context)?;
    if value.is_null() {
        return Ok(Datum::Null);
    }
    let mut unknown = false;
    for item in list {
        let item = item.eval(row, context)?;
        if item.is_null() {
            unknown = true;
        } else if value.cmp_typed(&item, ty).is_eq() {
            return Ok(Datum::Bool(!negated));
        }
    }
    Ok(if unknown { Datum::Null } else { Datum::Bool(negated) })
}

fn compared_with_each(
    value: &Expr,
    comparison: Comparison,
    list: &Expr,
    all: bool,
    row: &[Datum],
    context: &EvalContext<'_>,
) -> Result<Datum> {
    let members = matches!((comparison, all), (Comparison::Eq, false) | (Comparison::NotEq, true));
    let ty = &value.ty;
    let test =
        |value: &Datum, item: &Datum| Ok(Datum::Bool(comparison.holds(value.cmp_typed(item, ty))));
    quantified((value, list, all, members), test, row, context)
}

/// `value op ANY (list)` or `ALL`; `members`: being an element decides.
fn quantified(
    (value, list, all, members): (&Expr, &Expr, bool, bool),
    test: impl Fn(&Datum, &Datum) -> Result<Datum>,
    row: &[Datum],
    context: &EvalContext<'_>,
) -> Result<Datum> {
    let ty = &value.ty;
    let (value, list) = (value.eval(row, context)?, list.eval(row, context)?);
    let Datum::Array(list) = &list else { return Ok(Datum::Null) };
    if members
        && let Some(members) = context.members(list, ty)?
        && let Some(answer) = members.answer(&value, all)
    {
        return Ok(answer);
    }
    if list.elements.is_empty() {
        return Ok(Datum::Bool(all));
    }
    if value.is_null() {
        return Ok(Datum::Null);
    }
    let mut unknown = false;
    for item in &list.elements {
        if item.is_null() {
            unknown = true;
            continue;
        }
        match test(&value, item)? {
            Datum::Bool(found) if found != all => return Ok(Datum::Bool(!all)),
            Datum::Bool(_) => {}
            _ => unknown = true,
        }
    }
    Ok(if unknown { Datum::Null } else { Datum::Bool(all) })
}

/// Rows compare by their first pair that differs; a NULL before it makes the result unknown. For
/// equality a difference anywhere decides.
fn row_compare(
    comparison: Comparison,
    pairs: &[(Expr, Expr)],
    row: &[Datum],
    context: &EvalContext<'_>,
) -> Result<Datum> {
    let by_equality = matches!(comparison, Comparison::Eq | Comparison::NotEq);
    let mut unknown = false;
    for (left, right) in pairs {
        let (a, b) = (left.eval(row, context)?, right.eval(row, context)?);
        if a.is_null() || b.is_null() {
            if !by_equality {
                return Ok(Datum::Null);
            }
            unknown = true;
            continue;
        }
        let order = a.cmp_typed(&b, &left.ty);
        if order.is_ne() {
            return Ok(Datum::Bool(comparison.holds(order)));
        }
    }
    Ok(if unknown { Datum::Null } else { Datum::Bool(comparison.holds(Ordering::Equal)) })
}
