//! Whether two bound expressions are the same, and whether one may be kept in an index.
//!
//! # Invariants
//! - Two expressions that are the same have the same value for every row. The reverse does not
//!   hold: `a + b` and `b + a` are different.
//! - How a cast was asked for does not matter, what it gives does.

use super::bound::{Expr, Node};
use super::registry::Volatility;
use telesto_sql_types::{Datum, SqlType};

fn all_same(a: &[Expr], b: &[Expr]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same_as(b))
}

fn both(a: &Option<Box<Expr>>, b: &Option<Box<Expr>>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => a.same_as(b),
        _ => false,
    }
}

/// Equal, and of the same bytes: `1.0` is not `1.00` inside an expression.
fn same_constant(a: &Datum, b: &Datum) -> bool {
    format!("{a:?}") == format!("{b:?}")
}

impl Expr {
    /// Whether the other is the same expression.
    #[must_use]
    pub fn same_as(&self, other: &Self) -> bool {
        use Node as N;
        if let (Some((a, x)), Some((b, y))) = (self.as_like(), other.as_like()) {
            return a == b && all_same(x, y);
        }
        match (&self.node, &other.node) {
            (N::Const(a), N::Const(b)) => self.ty.same_base(&other.ty) && same_constant(a, b),
            (N::Column(a), N::Column(b)) | (N::Param(a), N::Param(b)) => a == b,
            (N::And(a), N::And(b)) | (N::Or(a), N::Or(b)) | (N::Coalesce(a), N::Coalesce(b)) => {
                all_same(a, b)
            }
            (N::Not(a), N::Not(b)) => a.same_as(b),
            (N::Compare(op, a, b), N::Compare(op2, c, d)) => {
                op == op2 && a.same_as(c) && b.same_as(d)
                    || *op == op2.flipped() && a.same_as(d) && b.same_as(c)
            }
            (N::Distinct(n, a, b), N::Distinct(m, c, d)) => n == m && a.same_as(c) && b.same_as(d),
            (N::IsNull(n, a), N::IsNull(m, b)) => n == m && a.same_as(b),
            (N::IsTruth(w, n, a), N::IsTruth(v, m, b)) => w == v && n == m && a.same_as(b),
            (N::InList(a, x, n), N::InList(b, y, m)) => n == m && a.same_as(b) && all_same(x, y),
            (N::Quantified(a, op, x, n), N::Quantified(b, op2, y, m)) => {
                n == m && op == op2 && a.same_as(b) && x.same_as(y)
            }
            (N::QuantifiedCall(a, f, x, n), N::QuantifiedCall(b, g, y, m)) => {
                n == m && std::ptr::eq(*f, *g) && a.same_as(b) && x.same_as(y)
            }
            (N::RowCompare(op, a), N::RowCompare(op2, b)) => op == op2 && same_pairs(a, b),
            (N::Case(a, x), N::Case(b, y)) => same_pairs(a, b) && both(x, y),
            (N::Extreme(g, a), N::Extreme(h, b)) => g == h && all_same(a, b),
            (N::NullIf(a, b), N::NullIf(c, d)) => a.same_as(c) && b.same_as(d),
            (N::Cast(a, _), N::Cast(b, _)) => self.ty == other.ty && a.same_as(b),
            (N::Call(f, a, _), N::Call(g, b, _)) => {
                std::ptr::eq(*f, *g) && self.ty.same_base(&other.ty) && all_same(a, b)
            }
            (N::Array(a, n), N::Array(b, m)) => {
                n == m && self.ty.same_base(&other.ty) && all_same(a, b)
            }
            (N::Subscript(a, x), N::Subscript(b, y)) => a.same_as(b) && all_same(x, y),
            (N::Slice(a, x), N::Slice(b, y)) => {
                let same = |((a, b), (c, d))| both(a, c) && both(b, d);
                a.same_as(b)
                    && x.len() == y.len()
                    && x.iter().map(|(a, b)| (a, b)).zip(y.iter().map(|(a, b)| (a, b))).all(same)
            }
            _ => false,
        }
    }

    /// LIKE and ILIKE have a name, an operator and a negated operator: the operator and its
    /// arguments.
    #[must_use]
    pub fn as_like(&self) -> Option<(&'static str, &[Self])> {
        let of = |expr: &Self| match &expr.node {
            Node::Call(function, args, _) if args.len() == 2 => match function.name {
                "like" => Some("~~"),
                "ilike" => Some("~~*"),
                name @ ("~~" | "~~*" | "!~~" | "!~~*") => Some(name),
                _ => None,
            },
            _ => None,
        };
        match &self.node {
            Node::Not(inner) => {
                let symbol = match of(inner)? {
                    "~~" => "!~~",
                    "~~*" => "!~~*",
                    _ => return None,
                };
                Some((symbol, inner.as_like()?.1))
            }
            Node::Call(_, args, _) => Some((of(self)?, args)),
            _ => None,
        }
    }

    /// Whether the value depends on the row alone, whoever asks and whenever: what an index may
    /// hold.
    #[must_use]
    pub fn is_immutable(&self) -> bool {
        let mut immutable = true;
        self.walk(&mut |e| match &e.node {
            Node::Call(function, ..) => immutable &= function.volatility == Volatility::Immutable,
            Node::Cast(inner, _) => immutable &= cast_is_immutable(&inner.ty, &e.ty),
            Node::Param(_) | Node::Held(_) => immutable = false,
            _ => {}
        });
        immutable
    }
}

fn same_pairs(a: &[(Expr, Expr)], b: &[(Expr, Expr)]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|((a, b), (c, d))| a.same_as(c) && b.same_as(d))
}

/// Casts that look at DateStyle, IntervalStyle, TimeZone or the catalog are stable in PostgreSQL 15
/// (`pg_cast`, `pg_type`).
fn cast_is_immutable(from: &SqlType, to: &SqlType) -> bool {
    if let (SqlType::Array(from), SqlType::Array(to)) = (from, to) {
        return cast_is_immutable(from, to);
    }
    let zoned = |ty: &SqlType| matches!(ty, SqlType::TimestampTz(_) | SqlType::TimeTz(_));
    let moment = |ty: &SqlType| {
        matches!(ty, SqlType::Date | SqlType::Time(_) | SqlType::Timestamp(_)) || zoned(ty)
    };
    // Labels are looked up in the catalog, and may be renamed.
    if matches!(from, SqlType::Enum(_)) != matches!(to, SqlType::Enum(_)) {
        return false;
    }
    // So are fields, and what is in them may depend on settings.
    if from.is_row() || to.is_row() {
        return false;
    }
    let text = |ty: &SqlType| ty.is_string() || *ty == SqlType::Unknown;
    if from.is_ranged() || to.is_ranged() {
        return !(text(from) || text(to));
    }
    let named = |ty: &SqlType| ty.with_names().is_some();
    if text(from) {
        // Also what is read from JSON or arrays as text.
        return !(moment(to)
            || *to == SqlType::Interval
            || named(to)
            || matches!(to, SqlType::Array(_)));
    }
    if text(to) {
        let steady = matches!(from, SqlType::Time(_) | SqlType::TimeTz(_));
        let styled = moment(from) || *from == SqlType::Interval;
        return steady || !(styled || named(from) || matches!(from, SqlType::Array(_)));
    }
    if matches!((from, to), (SqlType::TimestampTz(_), SqlType::TimeTz(_))) {
        return false;
    }
    // Times cross zones only with the session's TimeZone.
    !(moment(from) && moment(to) && zoned(from) != zoned(to))
}
