//! Whether a query's condition implies the predicate of a partial index.
//!
//! # Invariants
//! `true` only when every row that fulfils the condition fulfils the predicate, whatever the
//! parameters are. What is not understood is not implied: the index is then not used, and answers
//! stay right.
//!
//! # Limits
//! Conjunct by conjunct: the same condition; `IS NOT NULL` from any condition that a NULL would not
//! fulfil; comparisons of one expression with constants; IN lists; OR in the predicate (one arm)
//! and in the condition (all arms). A parameter is no constant here, because a plan serves all its
//! values.

use telesto_sql_expr::{Comparison, EvalContext, Expr, Node};
use telesto_sql_types::Datum;

/// Whether rows that fulfil all `conjuncts` fulfil `predicate`.
#[must_use]
pub fn implies(conjuncts: &[Expr], predicate: &Expr, context: &EvalContext<'_>) -> bool {
    match &predicate.node {
        Node::And(items) => items.iter().all(|item| implies(conjuncts, item, context)),
        Node::Or(items) if items.iter().any(|item| implies(conjuncts, item, context)) => true,
        _ => conjuncts.iter().any(|conjunct| one_implies(conjunct, predicate, context)),
    }
}

/// Whether each implies the other, or they are the same.
#[must_use]
pub fn equivalent(a: &Expr, b: &Expr, context: &EvalContext<'_>) -> bool {
    if a.ty != b.ty && !a.ty.same_base(&b.ty) {
        return false;
    }
    a.same_as(b)
        || a.ty == telesto_sql_types::SqlType::Bool
            && implies(std::slice::from_ref(a), b, context)
            && implies(std::slice::from_ref(b), a, context)
}

fn one_implies(condition: &Expr, predicate: &Expr, context: &EvalContext<'_>) -> bool {
    if condition.same_as(predicate) {
        return true;
    }
    match &condition.node {
        Node::And(items) => return implies(items, predicate, context),
        Node::Or(items) => {
            return items
                .iter()
                .all(|item| implies(std::slice::from_ref(item), predicate, context));
        }
        _ => {}
    }
    if let (Some((a, x)), Some((b, y))) = (truth(condition), truth(predicate)) {
        return x == y && a.same_as(b);
    }
    if let Node::IsNull(true, item) = &predicate.node {
        return rejects_null(condition, item);
    }
    let (Some(given), Some(wanted)) = (Fact::of(condition, context), Fact::of(predicate, context))
    else {
        return false;
    };
    given.subject.same_as(wanted.subject) && given.within(&wanted)
}

/// A boolean expression asked to be true or false.
fn truth(expr: &Expr) -> Option<(&Expr, bool)> {
    match &expr.node {
        Node::Not(inner) => truth(inner).map(|(e, wanted)| (e, !wanted)),
        Node::IsTruth(Some(wanted), false, inner) => {
            truth(inner).map(|(e, inner)| (e, inner == *wanted))
        }
        Node::Compare(Comparison::Eq, a, b) => match (&a.node, &b.node) {
            (_, Node::Const(Datum::Bool(wanted))) => truth(a).map(|(e, v)| (e, v == *wanted)),
            (Node::Const(Datum::Bool(wanted)), _) => truth(b).map(|(e, v)| (e, v == *wanted)),
            _ => None,
        },
        Node::Column(_) | Node::Call(..) if expr.ty == telesto_sql_types::SqlType::Bool => {
            Some((expr, true))
        }
        _ => None,
    }
}

/// Whether `condition` cannot be true when `item` is NULL.
fn rejects_null(condition: &Expr, item: &Expr) -> bool {
    match &condition.node {
        Node::Compare(_, a, b) => null_through(a, item) || null_through(b, item),
        Node::InList(value, ..) | Node::Quantified(value, _, _, false) => null_through(value, item),
        Node::Not(inner) => match &inner.node {
            Node::Compare(..) | Node::InList(..) | Node::Column(_) | Node::Call(..) => {
                null_through(inner, item)
            }
            _ => false,
        },
        Node::IsNull(true, inner) => null_through(inner, item),
        Node::IsTruth(Some(_), false, inner) => null_through(inner, item),
        Node::And(items) => items.iter().any(|c| rejects_null(c, item)),
        Node::Or(items) => !items.is_empty() && items.iter().all(|c| rejects_null(c, item)),
        _ => null_through(condition, item),
    }
}

/// Whether `expr` is NULL when `item` is.
fn null_through(expr: &Expr, item: &Expr) -> bool {
    if expr.same_as(item) {
        return true;
    }
    match &expr.node {
        Node::Call(function, args, _) => {
            function.strict && args.iter().any(|arg| null_through(arg, item))
        }
        Node::Cast(inner, _) | Node::Not(inner) => null_through(inner, item),
        Node::Compare(_, a, b) => null_through(a, item) || null_through(b, item),
        Node::InList(value, ..) => null_through(value, item),
        _ => false,
    }
}

/// What a condition says of one expression by constants.
struct Fact<'e> {
    subject: &'e Expr,
    kind: Kind,
}

enum Kind {
    /// One of these.
    Values(Vec<Datum>),
    /// None of these.
    NotValues(Vec<Datum>),
    /// In that relation to the value.
    Bound(Comparison, Datum),
}

/// The value of an expression that is the same for every row and every execution.
fn constant(expr: &Expr, context: &EvalContext<'_>) -> Option<Datum> {
    if let Node::Const(value) = &expr.node {
        return Some(value.clone());
    }
    if expr.uses_columns() || !expr.is_immutable() {
        return None;
    }
    expr.eval(&[], context).ok()
}

impl<'e> Fact<'e> {
    fn of(expr: &'e Expr, context: &EvalContext<'_>) -> Option<Self> {
        match &expr.node {
            Node::Compare(comparison, a, b) => {
                let (subject, value, comparison) =
                    match (constant(a, context), constant(b, context)) {
                        (None, Some(value)) => (a, value, *comparison),
                        (Some(value), None) => (b, value, comparison.flipped()),
                        _ => return None,
                    };
                if value.is_null() {
                    return None;
                }
                let kind = match comparison {
                    Comparison::Eq => Kind::Values(vec![value]),
                    Comparison::NotEq => Kind::NotValues(vec![value]),
                    other => Kind::Bound(other, value),
                };
                Some(Self { subject, kind })
            }
            Node::InList(subject, list, negated) => {
                let values: Vec<Datum> =
                    list.iter().map(|e| constant(e, context)).collect::<Option<_>>()?;
                Self::among(subject, values, *negated)
            }
            Node::Quantified(subject, comparison, list, all) => {
                let Datum::Array(array) = constant(list, context)? else { return None };
                match (comparison, all) {
                    (Comparison::Eq, false) => Self::among(subject, array.elements.clone(), false),
                    (Comparison::NotEq, true) => Self::among(subject, array.elements.clone(), true),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn among(subject: &'e Expr, mut values: Vec<Datum>, negated: bool) -> Option<Self> {
        if negated && values.iter().any(Datum::is_null) {
            // Never true: not worth understanding.
            return None;
        }
        values.retain(|value| !value.is_null());
        let kind = if negated { Kind::NotValues(values) } else { Kind::Values(values) };
        Some(Self { subject, kind })
    }

    /// Whether what this allows is allowed by `wanted`.
    fn within(&self, wanted: &Self) -> bool {
        let ty = &self.subject.ty;
        let order = |a: &Datum, b: &Datum| a.cmp_typed(b, ty);
        let has = |values: &[Datum], value: &Datum| values.iter().any(|v| order(v, value).is_eq());
        match (&self.kind, &wanted.kind) {
            (Kind::Values(given), Kind::Values(allowed)) => given.iter().all(|v| has(allowed, v)),
            (Kind::Values(given), Kind::NotValues(refused)) => {
                !given.iter().any(|v| has(refused, v))
            }
            (Kind::Values(given), Kind::Bound(comparison, end)) => {
                given.iter().all(|v| comparison.holds(order(v, end)))
            }
            (Kind::NotValues(given), Kind::NotValues(refused)) => {
                refused.iter().all(|v| has(given, v))
            }
            (Kind::Bound(comparison, end), Kind::NotValues(refused)) => {
                !refused.iter().any(|v| comparison.holds(order(v, end)))
            }
            (Kind::Bound(given, a), Kind::Bound(wanted, b)) => {
                use Comparison::{Gt, GtEq, Lt, LtEq};
                let order = order(a, b);
                match (given, wanted) {
                    (Gt, Gt) | (Gt, GtEq) | (GtEq, GtEq) => order.is_ge(),
                    (GtEq, Gt) => order.is_gt(),
                    (Lt, Lt) | (Lt, LtEq) | (LtEq, LtEq) => order.is_le(),
                    (LtEq, Lt) => order.is_lt(),
                    _ => false,
                }
            }
            _ => false,
        }
    }
}
