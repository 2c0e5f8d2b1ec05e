//! Expressions: from syntax to typed plan expressions.
//!
//! # Invariants
//! - What is bound has PostgreSQL's type. Operators and functions are resolved by the same registry
//!   as on the key path; only what DataFusion computes identically (comparisons of equal types,
//!   AND, OR, NOT, CASE, IS NULL) is left to it.
//! - An untyped literal or parameter keeps the type "unknown" until its context decides; then it is
//!   a constant of that type.

use arrow::datatypes::DataType;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::Exists;
use datafusion::logical_expr::{Expr, not};
use datafusion::sql::sqlparser::ast;

use super::lists::joined;
use super::scope::{Scope, fold};
use super::subquery::{one_whatever, subquery_of};
use super::{Binder, Place, Typed};
use crate::apply::Shape;
use crate::fault;
use crate::types::scalar;
use telesto_sql_expr::type_name::{interval_fields, literal_type};
use telesto_sql_expr::{known_collation, row_of, substring_name, takes_collation};
use telesto_sql_parser::rewrite::calls_in_from;
use telesto_sql_types::error::{Result, SqlState};
use telesto_sql_types::{BitString, Datum, SqlType};

impl Binder<'_> {
    /// Binds an expression over the columns of `scope`.
    pub(crate) fn expr(&self, expr: &ast::Expr, scope: &Scope<'_>) -> Result<Typed> {
        let _depth = self.enter()?;
        telesto_sql_parser::stack::deeper(|| self.expr_here(expr, scope))
    }

    fn expr_here(&self, expr: &ast::Expr, scope: &Scope<'_>) -> Result<Typed> {
        use ast::Expr as E;
        let place = self.place.take();
        match expr {
            E::Identifier(name) => self.identifier(name, scope),
            E::CompoundIdentifier(parts) => {
                let names: Vec<String> = parts.iter().map(fold).collect();
                let (name, table) = match names.as_slice() {
                    [.., table, name] => (name, Some(table.as_str())),
                    [name] => (name, None),
                    [] => return Err(fault::syntax("empty name")),
                };
                let (expr, ty) = scope.resolve(table, name)?;
                Ok(Typed::of(expr, ty))
            }
            E::Nested(inner) => {
                self.place.set(place);
                self.expr(inner, scope)
            }
            E::Value(value) => self.literal(&value.value),
            E::Collate { expr, collation } => {
                known_collation(collation)?;
                let value = self.expr(expr, scope)?;
                takes_collation(&value.ty)?;
                Ok(value)
            }
            // Not DataFusion's IS TRUE and its kin: its planner takes them for never NULL, its
            // operators do not, and an aggregation above refuses the difference.
            E::IsTrue(e) => self.truth(e, scope, |e| e.clone().is_not_null().and(e)),
            E::IsNotTrue(e) => self.truth(e, scope, |e| e.clone().is_null().or(not(e))),
            E::IsFalse(e) => self.truth(e, scope, |e| e.clone().is_not_null().and(not(e))),
            E::IsNotFalse(e) => self.truth(e, scope, |e| e.clone().is_null().or(e)),
            E::IsUnknown(e) => self.truth(e, scope, |e| Expr::IsNull(Box::new(e))),
            E::IsNotUnknown(e) => self.truth(e, scope, |e| Expr::IsNotNull(Box::new(e))),
            E::IsNull(e) => match self.row_null(e, false, scope)? {
                Some(test) => Ok(test),
                None => {
                    let value = self.expr(e, scope)?;
                    match value.ty.is_row() {
                        true => self.record_null(value, false),
                        false => Ok(Typed::bool(self.of_any_type(value)?.expr.is_null())),
                    }
                }
            },
            E::IsNotNull(e) => match self.row_null(e, true, scope)? {
                Some(test) => Ok(test),
                None => {
                    let value = self.expr(e, scope)?;
                    match value.ty {
                        SqlType::Record(_) | SqlType::Composite(_) => self.record_null(value, true),
                        _ => Ok(Typed::bool(self.of_any_type(value)?.expr.is_not_null())),
                    }
                }
            },
            E::IsDistinctFrom(l, r) => self.told_apart("IS DISTINCT FROM", l, r, scope),
            E::IsNotDistinctFrom(l, r) => self.told_apart("IS NOT DISTINCT FROM", l, r, scope),
            E::InList { expr, list, negated }
                if row_of(expr).is_some() && list.iter().all(|item| row_of(item).is_some()) =>
            {
                let left = row_of(expr).unwrap_or_default();
                let mut equal = Vec::with_capacity(list.len());
                for item in list {
                    let right = row_of(item).unwrap_or_default();
                    equal.push(self.row_comparison("=", &left, &right, scope)?.expr);
                }
                let any = joined(equal, Expr::or)
                    .ok_or_else(|| fault::syntax("IN needs at least one value"))?;
                Ok(Typed::bool(negate(any, *negated)))
            }
            E::InList { expr, list, negated } => {
                let left = self.expr(expr, scope)?;
                let items = list.iter().map(|item| self.expr(item, scope));
                let items = self.of_one_type(&left, items.collect::<Result<Vec<_>>>()?)?;
                let any = self
                    .equal_to_one(left, items)?
                    .ok_or_else(|| fault::syntax("IN needs at least one value"))?;
                Ok(Typed::bool(negate(any, *negated)))
            }
            E::InSubquery { expr, subquery, negated } => {
                self.among(expr, subquery, *negated, place, scope)
            }
            E::Between { expr, negated, low, high }
                if row_of(expr).is_some() && row_of(low).is_some() && row_of(high).is_some() =>
            {
                let row = row_of(expr).unwrap_or_default();
                let (low, high) =
                    (row_of(low).unwrap_or_default(), row_of(high).unwrap_or_default());
                let above = self.row_comparison(">=", &row, &low, scope)?.expr;
                let below = self.row_comparison("<=", &row, &high, scope)?.expr;
                Ok(Typed::bool(negate(Expr::and(above, below), *negated)))
            }
            E::Between { expr, negated, low, high } => {
                self.between(expr, low, high, *negated, scope)
            }
            E::BinaryOp { left, op, right } => self.binary_op(left, op, right, place, scope),
            E::Like { negated, any: false, expr, pattern, escape_char } => {
                self.like("like", expr, pattern, escape_char.as_ref(), *negated, scope)
            }
            E::ILike { negated, any: false, expr, pattern, escape_char } => {
                self.like("ilike", expr, pattern, escape_char.as_ref(), *negated, scope)
            }
            E::SimilarTo { negated, expr, pattern, escape_char } => {
                self.like("similar", expr, pattern, escape_char.as_ref(), *negated, scope)
            }
            E::AnyOp { left, compare_op, right, .. } => {
                self.quantified(left, compare_op, right, false, place, scope)
            }
            E::AllOp { left, compare_op, right } => {
                self.quantified(left, compare_op, right, true, place, scope)
            }
            E::UnaryOp { op, expr } => {
                if *op == ast::UnaryOperator::Not {
                    self.place.set(Place { inside: false, ..place });
                }
                self.unary(*op, expr, scope)
            }
            E::Cast { kind, expr, data_type, .. } => {
                if matches!(kind, ast::CastKind::TryCast | ast::CastKind::SafeCast) {
                    return Err(fault::unsupported("TRY_CAST"));
                }
                let target = self.type_named(data_type)?;
                self.tell_fields(expr, &target)?;
                let typed = self.expr(expr, scope)?;
                self.cast_named(typed, data_type, &target)
            }
            E::TypedString(typed) => {
                let target = literal_type(&typed.data_type, self.type_named(&typed.data_type)?);
                let text = self.literal(&typed.value.value)?;
                self.cast_named(text, &typed.data_type, &target)
            }
            E::Interval(interval) => self.interval(interval, scope),
            E::AtTimeZone { timestamp, time_zone } => {
                let (time, zone) = (self.expr(timestamp, scope)?, self.expr(time_zone, scope)?);
                self.call("timezone", vec![zone, time])
            }
            E::Extract { field, expr, .. } => {
                let field = field.to_string().to_lowercase();
                let field = Typed::text(field.trim_matches('"').trim_matches('\'').to_owned());
                let value = self.expr(expr, scope)?;
                self.call("extract", vec![field, value])
            }
            E::Ceil { expr, .. } => self.call("ceil", vec![self.expr(expr, scope)?]),
            E::Floor { expr, .. } => self.call("floor", vec![self.expr(expr, scope)?]),
            E::Position { expr, r#in } => {
                let (needle, hay) = (self.expr(expr, scope)?, self.expr(r#in, scope)?);
                self.call("position", vec![hay, needle])
            }
            E::Substring { expr, substring_from, substring_for, shorthand, .. } => {
                let mut args = vec![self.expr(expr, scope)?];
                match (substring_from, substring_for) {
                    (None, Some(_)) => args.push(Typed::int(1)),
                    (from, _) => {
                        if let Some(from) = from {
                            args.push(self.expr(from, scope)?);
                        }
                    }
                }
                if let Some(length) = substring_for {
                    args.push(self.expr(length, scope)?);
                }
                self.call(substring_name(*shorthand, &args[0].ty), args)
            }
            E::Trim { trim_where, trim_what, expr, trim_characters } => {
                let name = match trim_where {
                    Some(ast::TrimWhereField::Leading) => "ltrim",
                    Some(ast::TrimWhereField::Trailing) => "rtrim",
                    _ => "btrim",
                };
                let mut args = vec![self.expr(expr, scope)?];
                if let Some(what) = trim_what {
                    args.push(self.expr(what, scope)?);
                }
                for what in trim_characters.iter().flatten() {
                    args.push(self.expr(what, scope)?);
                }
                self.call(name, args)
            }
            E::Overlay { expr, overlay_what, overlay_from, overlay_for } => {
                let mut args = vec![
                    self.expr(expr, scope)?,
                    self.expr(overlay_what, scope)?,
                    self.expr(overlay_from, scope)?,
                ];
                if let Some(length) = overlay_for {
                    args.push(self.expr(length, scope)?);
                }
                self.call("overlay", args)
            }
            E::Function(function) => self.function(function, scope),
            E::Case { operand, conditions, else_result, .. } => {
                self.case(operand.as_deref(), conditions, else_result.as_deref(), scope)
            }
            E::Exists { subquery, negated } => {
                let relation = self.exists_query(subquery, scope)?;
                let joins = place.exists && !one_whatever(&relation.plan);
                let shape = Shape::Exists;
                if let Some(call) =
                    self.applied(shape, &relation, &DataType::Boolean, &[], joins, scope)?
                {
                    return Ok(Typed::bool(negate(call, *negated)));
                }
                Ok(Typed::bool(Expr::Exists(Exists::new(subquery_of(relation), *negated))))
            }
            E::Subquery(query) => self.scalar_subquery(query, scope),
            E::Tuple(_) => match self.row_value(expr, scope)? {
                Some(row) => Ok(row),
                None => Err(fault::unsupported(&format!("the expression {expr}"))),
            },
            E::QualifiedWildcard(name, _) => self.row_behind_star(name, scope),
            E::Array(array) => self.array(&array.elem, scope),
            E::CompoundFieldAccess { root, access_chain } => self.access(root, access_chain, scope),
            other => Err(fault::unsupported(&format!("the expression {other}"))),
        }
    }

    fn identifier(&self, name: &ast::Ident, scope: &Scope<'_>) -> Result<Typed> {
        let folded = fold(name);
        let missing = match scope.resolve(None, &folded) {
            Ok((expr, ty)) => return Ok(Typed::of(expr, ty)),
            Err(error) => error,
        };
        // CURRENT_DATE and its like come without parentheses.
        if name.quote_style.is_none() && calls_in_from::is_word_call(&folded) {
            return self.call(&folded, Vec::new());
        }
        if missing.code() != SqlState::UNDEFINED_COLUMN {
            return Err(missing);
        }
        self.row_called(&folded, scope)?.ok_or(missing)
    }

    fn literal(&self, value: &ast::Value) -> Result<Typed> {
        use ast::Value as V;
        match value {
            V::Null => Ok(Typed::null()),
            V::Boolean(value) => {
                Ok(Typed::bool(Expr::Literal(ScalarValue::Boolean(Some(*value)), None)))
            }
            V::Number(digits, _) => self.number(digits),
            V::SingleQuotedString(text)
            | V::EscapedStringLiteral(text)
            | V::UnicodeStringLiteral(text) => Ok(Typed::unknown(text.clone())),
            V::SingleQuotedByteStringLiteral(digits) => self.bits(digits, false),
            V::HexStringLiteral(digits) => self.bits(digits, true),
            V::DollarQuotedString(text) => Ok(Typed::unknown(text.value.clone())),
            V::NationalStringLiteral(text) => Ok(Typed::unknown(text.clone())),
            V::Placeholder(name) => self.parameter(name),
            other => Err(fault::unsupported(&format!("the literal {other}"))),
        }
    }

    fn bits(&self, digits: &str, hex: bool) -> Result<Typed> {
        let value = Datum::bits(BitString::literal(digits, hex)?);
        let ty = SqlType::Bit(None);
        Ok(Typed::of(Expr::Literal(scalar(&value, &ty)?, None), ty))
    }

    fn number(&self, digits: &str) -> Result<Typed> {
        if let Ok(value) = digits.parse::<i32>() {
            return Ok(Typed::int(value));
        }
        if let Ok(value) = digits.parse::<i64>() {
            return Ok(Typed::of(
                Expr::Literal(ScalarValue::Int64(Some(value)), None),
                SqlType::Int8,
            ));
        }
        self.cast(Typed::unknown(digits.to_owned()), &SqlType::Numeric(None))
    }

    fn truth(
        &self,
        expr: &ast::Expr,
        scope: &Scope<'_>,
        test: impl FnOnce(Expr) -> Expr,
    ) -> Result<Typed> {
        let typed = self.expr(expr, scope)?;
        Ok(Typed::bool(test(self.coerce(typed, &SqlType::Bool, "IS")?.expr)))
    }

    fn binary_op(
        &self,
        left: &ast::Expr,
        op: &ast::BinaryOperator,
        right: &ast::Expr,
        place: Place,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        use ast::BinaryOperator as B;
        if matches!(op, B::And | B::Or) {
            let word = if *op == B::And { "AND" } else { "OR" };
            self.place.set(place);
            let l = self.condition(left, scope, word)?;
            self.place.set(place);
            let r = self.condition(right, scope, word)?;
            return Ok(Typed::bool(if *op == B::And { Expr::and(l, r) } else { Expr::or(l, r) }));
        }
        // Row comparison: (a, b) = (c, d).
        if let (Some(ls), Some(rs)) = (self.row_items(left, scope), self.row_items(right, scope)) {
            return self.row_comparison(&operator_name(op)?, &ls, &rs, scope);
        }
        if let Some(compared) = self.row_and_subquery(left, op, right, scope)? {
            return Ok(compared);
        }
        // A chain grows to the left: it is bound from its first operand on, in a loop.
        let mut chain = vec![(op, right)];
        let mut first = left;
        while let ast::Expr::BinaryOp { left, op, right } = first
            && !matches!(op, B::And | B::Or)
            && !(row_of(left).is_some() && row_of(right).is_some())
        {
            chain.push((op, right));
            first = left;
        }
        let mut value = self.expr(first, scope)?;
        for (op, right) in chain.into_iter().rev() {
            let right = self.expr(right, scope)?;
            value = self.binary(&operator_name(op)?, value, right)?;
        }
        Ok(value)
    }

    fn told_apart(
        &self,
        op: &str,
        left: &ast::Expr,
        right: &ast::Expr,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        if let (Some(left), Some(right)) =
            (self.row_items(left, scope), self.row_items(right, scope))
        {
            return self.row_comparison(op, &left, &right, scope);
        }
        let (left, right) = (self.expr(left, scope)?, self.expr(right, scope)?);
        // As in PostgreSQL a NULL that is written out makes a test for NULL of it, whatever the
        // type.
        let null = |typed: &Typed| {
            typed.parameter.is_none() && matches!(&typed.expr, Expr::Literal(ScalarValue::Null, _))
        };
        let value = match (null(&left), null(&right)) {
            (true, false) => Some(right.expr.clone()),
            (false, true) => Some(left.expr.clone()),
            _ => None,
        };
        if let Some(value) = value {
            return Ok(Typed::bool(negate(value.is_null(), op == "IS DISTINCT FROM")));
        }
        self.binary(op, left, right)
    }

    fn row_comparison(
        &self,
        op: &str,
        left: &[ast::Expr],
        right: &[ast::Expr],
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        if left.len() != right.len() || left.is_empty() {
            return Err(fault::syntax("unequal number of entries in row expressions"));
        }
        let pairs = left
            .iter()
            .zip(right)
            .map(|(l, r)| Ok((self.expr(l, scope)?, self.expr(r, scope)?)))
            .collect::<Result<Vec<_>>>()?;
        let mut rest: Option<Expr> = None;
        for (l, r) in pairs.into_iter().rev() {
            rest = Some(match (op, rest) {
                ("=" | "<>" | "IS DISTINCT FROM" | "IS NOT DISTINCT FROM", rest) => {
                    let each = if op.starts_with("IS") { "IS NOT DISTINCT FROM" } else { "=" };
                    let equal = self.binary(each, l, r)?.expr;
                    rest.map_or(equal.clone(), |rest| Expr::and(equal, rest))
                }
                (op @ ("<" | "<=" | ">" | ">="), None) => self.binary(op, l, r)?.expr,
                (op @ ("<" | "<=" | ">" | ">="), Some(rest)) => {
                    let strict = self.binary(&op[..1], l.clone(), r.clone())?.expr;
                    let equal = self.binary("=", l, r)?.expr;
                    Expr::or(strict, Expr::and(equal, rest))
                }
                (op, _) => return Err(fault::unsupported(&format!("row comparison with {op}"))),
            });
        }
        let expr = rest.ok_or_else(|| fault::syntax("empty row"))?;
        Ok(Typed::bool(negate(expr, matches!(op, "<>" | "IS DISTINCT FROM"))))
    }

    fn like(
        &self,
        name: &str,
        expr: &ast::Expr,
        pattern: &ast::Expr,
        escape: Option<&ast::ValueWithSpan>,
        negated: bool,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        let value = self.expr(expr, scope)?;
        let pattern = self.expr(pattern, scope)?;
        let matched = self.pattern_match(
            name,
            value,
            pattern,
            match escape {
                None => None,
                Some(escape) => Some(self.literal(&escape.value)?),
            },
        )?;
        Ok(Typed::bool(negate(matched.expr, negated)))
    }

    fn unary(&self, op: ast::UnaryOperator, expr: &ast::Expr, scope: &Scope<'_>) -> Result<Typed> {
        use ast::UnaryOperator as U;
        match op {
            U::Not => Ok(Typed::bool(negate(self.condition(expr, scope, "NOT")?, true))),
            // The smallest integers have no positive counterpart: bind the sign with the digits.
            U::Minus => {
                if let ast::Expr::Value(value) = expr
                    && let ast::Value::Number(digits, _) = &value.value
                {
                    return self.number(&format!("-{digits}"));
                }
                let typed = self.expr(expr, scope)?;
                self.prefix("-", typed)
            }
            U::Plus => {
                let typed = self.expr(expr, scope)?;
                self.prefix("+", typed)
            }
            U::BitwiseNot => {
                let typed = self.expr(expr, scope)?;
                self.prefix("~", typed)
            }
            U::PGAbs => self.call("abs", vec![self.expr(expr, scope)?]),
            U::PGSquareRoot => self.call("sqrt", vec![self.expr(expr, scope)?]),
            U::PGCubeRoot => self.call("cbrt", vec![self.expr(expr, scope)?]),
            other => Err(fault::unsupported(&format!("the operator {other}"))),
        }
    }

    /// A cast to `target`, which is written as `name`: fields of an interval are in the name alone.
    fn cast_named(&self, typed: Typed, name: &ast::DataType, target: &SqlType) -> Result<Typed> {
        match interval_fields(name) {
            Some(fields) => self.interval_of_fields(typed, fields),
            None => self.cast(typed, target),
        }
    }

    /// IN, NOT IN, `= ANY` and `<> ALL` of a query.
    fn among(
        &self,
        expr: &ast::Expr,
        subquery: &ast::Query,
        negated: bool,
        place: Place,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        let joins = place.inside && !negated;
        if let Some(values) = row_of(expr) {
            if joins {
                self.place.set(Place { exists: true, ..place });
            }
            return self.row_in_subquery(&values, subquery, negated, place.inside, scope);
        }
        let left = self.expr(expr, scope)?;
        self.in_subquery(left, "=", false, subquery, negated, joins, scope)
    }

    fn quantified(
        &self,
        left: &ast::Expr,
        op: &ast::BinaryOperator,
        right: &ast::Expr,
        all: bool,
        place: Place,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        let name = operator_name(op)?;
        if let (ast::Expr::Subquery(query), Some(_)) = (right, row_of(left)) {
            return match (name.as_str(), all) {
                ("=", false) => self.among(left, query, false, place, scope),
                ("<>", true) => self.among(left, query, true, place, scope),
                _ => Err(fault::unsupported(&format!("a row {name} ANY or ALL (subquery)"))),
            };
        }
        let left = self.expr(left, scope)?;
        if let ast::Expr::Subquery(query) = right {
            if super::operators::native(&name).is_none() {
                let array = self.expr(&array_of_query(query), scope)?;
                return self.any_of_array(&name, left, array, all);
            }
            let joins = place.inside && name == "=" && !all;
            return self.in_subquery(left, &name, all, query, false, joins, scope);
        }
        // A list written out is a chain of comparisons, which indexes understand.
        if let ast::Expr::Array(array) = right {
            let items = array.elem.iter().map(|item| self.expr(item, scope));
            let items = items.collect::<Result<Vec<_>>>()?;
            // Of arrays it is one of several dimensions, and its elements are theirs.
            if items.iter().any(|item| matches!(item.ty, SqlType::Array(_))) {
                let array = self.make_array(items)?;
                return self.any_of_array(&name, left, array, all);
            }
            let chain = if name == "=" && !all {
                self.equal_to_one(left, items)?
            } else {
                let tests = items
                    .into_iter()
                    .map(|item| self.binary(&name, left.clone(), item).map(|test| test.expr));
                let tests = tests.collect::<Result<_>>()?;
                if all { joined(tests, Expr::and) } else { joined(tests, Expr::or) }
            };
            let none = Expr::Literal(ScalarValue::Boolean(Some(all)), None);
            return Ok(Typed::bool(chain.unwrap_or(none)));
        }
        let array = self.expr(right, scope)?;
        self.any_of_array(&name, left, array, all)
    }

    fn array(&self, items: &[ast::Expr], scope: &Scope<'_>) -> Result<Typed> {
        telesto_sql_expr::array::within_dimensions(items)?;
        let items = items.iter().map(|e| self.expr(e, scope)).collect::<Result<Vec<_>>>()?;
        self.make_array(items)
    }
}

pub(super) fn negate(expr: Expr, negated: bool) -> Expr {
    if negated { Expr::Not(Box::new(expr)) } else { expr }
}

/// `ARRAY(SELECT …)`.
fn array_of_query(query: &ast::Query) -> ast::Expr {
    ast::Expr::Function(ast::Function {
        name: ast::ObjectName::from(vec![ast::Ident::new("ARRAY")]),
        uses_odbc_syntax: false,
        parameters: ast::FunctionArguments::None,
        args: ast::FunctionArguments::Subquery(Box::new(query.clone())),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// The operator's name as PostgreSQL's catalog spells it.
pub(crate) fn operator_name(op: &ast::BinaryOperator) -> Result<String> {
    use ast::BinaryOperator as B;
    Ok(match op {
        B::PGCustomBinaryOperator(parts) => parts.last().cloned().unwrap_or_default(),
        B::PGLikeMatch => "~~".to_owned(),
        B::PGILikeMatch => "~~*".to_owned(),
        B::PGNotLikeMatch => "!~~".to_owned(),
        B::PGNotILikeMatch => "!~~*".to_owned(),
        B::NotEq => "<>".to_owned(),
        B::Spaceship
        | B::Xor
        | B::DuckIntegerDivide
        | B::MyIntegerDivide
        | B::Match
        | B::Regexp => {
            return Err(fault::unsupported(&format!("the operator {op}")));
        }
        other => other.to_string(),
    })
}
