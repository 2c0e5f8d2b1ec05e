//! Binding of operators, comparisons and calls.

use std::borrow::Cow;

use super::bind::{Binder, number};
use super::bind_rows::row_of;
use super::bound::{Comparison, Expr, Node};
use super::fault;
use super::registry::registry;
use super::ty::{Category, Tag, common_type, tag};
use telesto_sql_parser::sqlparser::ast::{self, BinaryOperator, UnaryOperator, Value};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, SqlType};

const NO_OPERATOR_HINT: &str = "No operator matches the given name and argument types. You might need to add explicit type casts.";

/// The type two values are compared in; `None` when there is no such operator.
#[must_use]
pub fn comparison_type(left: &SqlType, right: &SqlType) -> Option<SqlType> {
    use Tag::{
        Bpchar, Date, Float4, Float8, Int2, Int4, Int8, Numeric, Oid, Reg, Timestamp, TimestampTz,
        Unknown,
    };
    let (a, b) = (tag(left), tag(right));
    if a == Tag::Json || b == Tag::Json || a == Tag::Void || b == Tag::Void {
        return None;
    }
    Some(match (a, b) {
        (Unknown, Unknown) => SqlType::Text,
        (Unknown, _) => comparable(right),
        (_, Unknown) => comparable(left),
        (Tag::Array, Tag::Array) => {
            if left == right {
                return Some(left.clone());
            }
            let (x, y) = (left.element_type()?, right.element_type()?);
            if left.is_vector() || right.is_vector() {
                return Some(comparison_type(x, y)?.array_of());
            }
            if x.same_base(y) { comparable(left) } else { comparison_type(x, y)?.array_of() }
        }
        // Whichever side it is on: varchar has no operators of its own, and those of char(n) are
        // nearer than those of text.
        (Bpchar, Bpchar | Tag::Varchar) | (Tag::Varchar, Bpchar) => SqlType::Char(None),
        (x, y) if x.category() == Category::String && y.category() == Category::String => {
            SqlType::Text
        }
        (Tag::InternalChar, y) if y.category() == Category::String => SqlType::Text,
        (x, Tag::InternalChar) if x.category() == Category::String => SqlType::Text,
        (Int2, Int2) => SqlType::Int2,
        (Int2 | Int4, Int2 | Int4) => SqlType::Int4,
        (Int2 | Int4 | Int8, Int2 | Int4 | Int8) => SqlType::Int8,
        (Int2 | Int4 | Int8 | Numeric, Int2 | Int4 | Int8 | Numeric) => SqlType::Numeric(None),
        (Float4, Float4) => SqlType::Float4,
        (
            Int2 | Int4 | Int8 | Numeric | Float4 | Float8,
            Int2 | Int4 | Int8 | Numeric | Float4 | Float8,
        ) => SqlType::Float8,
        (Oid | Reg, Oid | Reg) => SqlType::Oid,
        (Oid | Reg, Int2 | Int4 | Int8) | (Int2 | Int4 | Int8, Oid | Reg) => SqlType::Oid,
        (Reg, Tag::Text | Tag::Varchar) if *left == SqlType::RegClass => SqlType::RegClass,
        (Date, Date) => SqlType::Date,
        (Date | Timestamp, Date | Timestamp) => SqlType::Timestamp(None),
        (Date | Timestamp | TimestampTz, Date | Timestamp | TimestampTz) => {
            SqlType::TimestampTz(None)
        }
        (Tag::Bit, Tag::Varbit) | (Tag::Varbit, Tag::Bit) => SqlType::Varbit(None),
        (Tag::Inet, Tag::Cidr) | (Tag::Cidr, Tag::Inet) => SqlType::Inet,
        (Tag::Interval, Tag::Time) | (Tag::Time, Tag::Interval) => SqlType::Interval,
        (Tag::TimeTz, Tag::Time) | (Tag::Time, Tag::TimeTz) => SqlType::TimeTz(None),
        (Tag::Enum, Tag::Enum) if left != right => return None,
        (Tag::Record, Tag::Record) if !super::ty::same_fields(left, right) => return None,
        (x, y) if x == y => comparable(left),
        _ => return None,
    })
}

fn comparable(ty: &SqlType) -> SqlType {
    match ty {
        SqlType::Varchar(_) => SqlType::Text,
        other => other.without_modifier(),
    }
}

/// The function that `substring` and, as `shorthand`, `substr` stand for: they are one but for bit
/// strings, of which there is no `substr`.
#[must_use]
pub fn substring_name(shorthand: bool, value: &SqlType) -> &'static str {
    if shorthand && value.is_bits() { "substr" } else { "substring" }
}

impl Binder<'_> {
    /// `left op right`.
    ///
    /// # Errors
    /// 42883 when the types do not compare.
    pub fn compare(&mut self, op: Comparison, left: Expr, right: Expr) -> Result<Expr> {
        let Some(ty) = comparison_type(&left.ty, &right.ty) else {
            return Err(no_operator(comparison_symbol(op), &[&left.ty, &right.ty]));
        };
        let (left, right) = (self.implicit(left, &ty)?, self.implicit(right, &ty)?);
        self.folded(Expr::bool(Node::Compare(op, Box::new(left), Box::new(right))), false)
    }

    pub(super) fn operator(&mut self, expr: &ast::Expr) -> Result<Expr> {
        use ast::Expr as E;
        match expr {
            E::BinaryOp { left, op, right } => self.binary(left, op, right),
            E::UnaryOp { op, expr } => self.unary(*op, expr),
            E::IsDistinctFrom(a, b) => self.distinct(a, b, false),
            E::IsNotDistinctFrom(a, b) => self.distinct(a, b, true),
            E::InList { expr, list, negated } => self.in_list(expr, list, *negated),
            E::Between { expr, negated, low, high } => {
                let above = self.compared(Comparison::GtEq, expr, low)?;
                let below = self.compared(Comparison::LtEq, expr, high)?;
                Ok(negate(Expr::bool(Node::And(vec![above, below])), *negated))
            }
            E::Like { negated, any: false, expr, pattern, escape_char } => {
                self.like("like", expr, pattern, escape_char.as_ref(), *negated)
            }
            E::ILike { negated, any: false, expr, pattern, escape_char } => {
                self.like("ilike", expr, pattern, escape_char.as_ref(), *negated)
            }
            E::SimilarTo { negated, expr, pattern, escape_char } => {
                self.like("similar", expr, pattern, escape_char.as_ref(), *negated)
            }
            E::AnyOp { left, compare_op, right, .. } => {
                self.quantified(left, compare_op, right, false)
            }
            E::AllOp { left, compare_op, right } => self.quantified(left, compare_op, right, true),
            E::AtTimeZone { timestamp, time_zone } => {
                let (zone, at) = (self.bind(time_zone)?, self.bind(timestamp)?);
                self.resolve_call("timezone", vec![zone, at])
            }
            E::Extract { field, expr, .. } => {
                let field = Expr::constant(
                    Datum::text(
                        field
                            .to_string()
                            .to_lowercase()
                            .trim_matches('"')
                            .trim_matches('\'')
                            .to_owned(),
                    ),
                    SqlType::Text,
                );
                let value = self.bind(expr)?;
                self.resolve_call("extract", vec![field, value])
            }
            E::Ceil { expr, .. } => self.call_exprs("ceil", &[expr]),
            E::Floor { expr, .. } => self.call_exprs("floor", &[expr]),
            E::Position { expr, r#in } => self.call_exprs("position", &[r#in, expr]),
            E::Substring { expr, substring_from, substring_for, shorthand, .. } => {
                let mut args = vec![self.bind(expr)?];
                match substring_from {
                    Some(from) => args.push(self.bind(from)?),
                    None => args.push(Expr::constant(Datum::Int4(1), SqlType::Int4)),
                }
                if let Some(length) = substring_for {
                    args.push(self.bind(length)?);
                }
                self.resolve_call(substring_name(*shorthand, &args[0].ty), args)
            }
            E::Trim { expr, trim_where, trim_what, trim_characters } => {
                let name = match trim_where {
                    None | Some(ast::TrimWhereField::Both) => "btrim",
                    Some(ast::TrimWhereField::Leading) => "ltrim",
                    Some(ast::TrimWhereField::Trailing) => "rtrim",
                };
                let mut args = vec![self.bind(expr)?];
                if let Some(what) = trim_what {
                    args.push(self.bind(what)?);
                }
                for what in trim_characters.iter().flatten() {
                    args.push(self.bind(what)?);
                }
                self.resolve_call(name, args)
            }
            E::Overlay { expr, overlay_what, overlay_from, overlay_for } => {
                let mut args: Vec<&ast::Expr> = vec![expr, overlay_what, overlay_from];
                args.extend(overlay_for.as_deref());
                self.call_exprs("overlay", &args)
            }
            E::Function(call) => self.function(call),
            E::Tuple(items) => self.row_value(&items.iter().collect::<Vec<_>>()),
            other => {
                let shown = other.to_string();
                let shown: String = shown.chars().take(60).collect();
                Err(fault::unsupported(format!("the expression {shown}")))
            }
        }
    }

    fn call_exprs(&mut self, name: &str, args: &[&ast::Expr]) -> Result<Expr> {
        let args = args.iter().map(|a| self.bind(a)).collect::<Result<_>>()?;
        self.resolve_call(name, args)
    }

    fn binary(&mut self, left: &ast::Expr, op: &BinaryOperator, right: &ast::Expr) -> Result<Expr> {
        match op {
            BinaryOperator::And | BinaryOperator::Or => {
                // Long chains are flat, so that they cost no depth.
                let and = *op == BinaryOperator::And;
                let mut operands = Vec::new();
                flatten(left, op, &mut operands);
                flatten(right, op, &mut operands);
                let items = operands
                    .into_iter()
                    .map(|e| {
                        let bound = self.bind(e)?;
                        self.boolean(bound, if and { "AND" } else { "OR" })
                    })
                    .collect::<Result<_>>()?;
                return Ok(Expr::bool(if and { Node::And(items) } else { Node::Or(items) }));
            }
            _ => {}
        }
        let symbol = symbol_of(op)?;
        if let Some((a, b)) = rows(left, right) {
            if *op == BinaryOperator::Overlaps {
                return self.call_exprs("overlaps", &a.iter().chain(&*b).collect::<Vec<_>>());
            }
            let comparison = Comparison::of_symbol(&symbol)
                .ok_or_else(|| fault::unsupported("this operator on rows"))?;
            return self.row_comparison(comparison, &a, &b);
        }
        // A chain grows to the left: it is bound from its first operand on, in a loop.
        let mut chain = vec![(symbol, right)];
        let mut first = left;
        while let ast::Expr::BinaryOp { left, op, right } = first
            && !matches!(op, BinaryOperator::And | BinaryOperator::Or | BinaryOperator::Overlaps)
            && rows(left, right).is_none()
        {
            chain.push((symbol_of(op)?, right));
            first = left;
        }
        let mut value = self.bind(first)?;
        let mut levels = 0;
        for (symbol, right) in chain.into_iter().rev() {
            let right = self.bind(right)?;
            value = self.binary_bound(&symbol, value, right)?;
            // What is constant is one node however many it was computed from.
            levels += usize::from(!matches!(value.node, Node::Const(_)));
            if levels > super::bind::MAX_DEPTH {
                return Err(telesto_sql_parser::syntax::too_deep());
            }
        }
        Ok(value)
    }

    /// A binary operator on bound operands.
    ///
    /// # Errors
    /// 42883, 42725.
    pub fn binary_bound(&mut self, symbol: &str, left: Expr, right: Expr) -> Result<Expr> {
        match Comparison::of_symbol(symbol) {
            Some(comparison) => self.compare(comparison, left, right),
            None => self.resolve_call(symbol, vec![left, right]),
        }
    }

    /// The comparison of two operands; of rows that are written out field by field.
    fn compared(
        &mut self,
        comparison: Comparison,
        left: &ast::Expr,
        right: &ast::Expr,
    ) -> Result<Expr> {
        if let Some((left, right)) = rows(left, right) {
            return self.row_comparison(comparison, &left, &right);
        }
        let (left, right) = (self.bind(left)?, self.bind(right)?);
        self.compare(comparison, left, right)
    }

    fn row_comparison(
        &mut self,
        comparison: Comparison,
        a: &[ast::Expr],
        b: &[ast::Expr],
    ) -> Result<Expr> {
        if a.len() != b.len() {
            return Err(Error::syntax("unequal number of entries in row expressions"));
        }
        let mut equalities = Vec::with_capacity(a.len());
        for (a, b) in a.iter().zip(b) {
            let (a, b) = (self.bind(a)?, self.bind(b)?);
            let each = match comparison {
                Comparison::NotEq => Comparison::NotEq,
                _ => Comparison::Eq,
            };
            equalities.push(self.compare(each, a, b)?);
        }
        match comparison {
            Comparison::Eq => Ok(Expr::bool(Node::And(equalities))),
            Comparison::NotEq => Ok(Expr::bool(Node::Or(equalities))),
            _ => {
                let pairs = equalities
                    .into_iter()
                    .map(|e| match e.node {
                        Node::Compare(_, a, b) => Ok((*a, *b)),
                        // Two constants were folded: compare what they folded to with true.
                        node => {
                            Ok((Expr::bool(node), Expr::constant(Datum::Bool(true), SqlType::Bool)))
                        }
                    })
                    .collect::<Result<Vec<_>>>()?;
                if pairs.iter().any(|(a, _)| matches!(a.node, Node::Const(Datum::Bool(_)))) {
                    // Folding lost the order of the values: bind again without it.
                    return self.row_order(comparison, a, b);
                }
                Ok(Expr::bool(Node::RowCompare(comparison, pairs)))
            }
        }
    }

    fn row_order(
        &mut self,
        comparison: Comparison,
        a: &[ast::Expr],
        b: &[ast::Expr],
    ) -> Result<Expr> {
        let mut pairs = Vec::with_capacity(a.len());
        for (a, b) in a.iter().zip(b) {
            let (a, b) = (self.bind(a)?, self.bind(b)?);
            let ty = comparison_type(&a.ty, &b.ty)
                .ok_or_else(|| no_operator(comparison_symbol(comparison), &[&a.ty, &b.ty]))?;
            pairs.push((self.implicit(a, &ty)?, self.implicit(b, &ty)?));
        }
        Ok(Expr::bool(Node::RowCompare(comparison, pairs)))
    }

    fn unary(&mut self, op: UnaryOperator, expr: &ast::Expr) -> Result<Expr> {
        if op == UnaryOperator::Minus
            && let Some((text, negative)) = negative_number(expr)
        {
            return number(text, !negative);
        }
        if op == UnaryOperator::Not {
            let bound = self.bind(expr)?;
            let bound = self.boolean(bound, "NOT")?;
            return Ok(negate(bound, true));
        }
        let symbol = match op {
            UnaryOperator::Plus => "+",
            UnaryOperator::Minus => "-",
            UnaryOperator::BitwiseNot => "~",
            UnaryOperator::PGSquareRoot => "|/",
            UnaryOperator::PGCubeRoot => "||/",
            UnaryOperator::PGAbs => "@",
            other => return Err(fault::unsupported(format!("the operator {other}"))),
        };
        let bound = self.bind(expr)?;
        self.resolve_call(symbol, vec![bound])
    }

    fn distinct(&mut self, a: &ast::Expr, b: &ast::Expr, negated: bool) -> Result<Expr> {
        if let Some((a, b)) = rows(a, b) {
            if a.len() != b.len() {
                return Err(Error::syntax("unequal number of entries in row expressions"));
            }
            let fields = a.iter().zip(&*b).map(|(a, b)| self.distinct(a, b, true));
            let same = Expr::bool(Node::And(fields.collect::<Result<_>>()?));
            return Ok(if negated { same } else { Expr::bool(Node::Not(Box::new(same))) });
        }
        let (a, b) = (self.bind(a)?, self.bind(b)?);
        let ty = comparison_type(&a.ty, &b.ty).ok_or_else(|| no_operator("=", &[&a.ty, &b.ty]))?;
        let (a, b) = (self.implicit(a, &ty)?, self.implicit(b, &ty)?);
        Ok(Expr::bool(Node::Distinct(negated, Box::new(a), Box::new(b))))
    }

    fn in_list(&mut self, expr: &ast::Expr, list: &[ast::Expr], negated: bool) -> Result<Expr> {
        // Rows that are written out are compared field by field, and a NULL among them decides
        // nothing; as values they would be equal or not.
        if let Some(left) = row_of(expr)
            && let Some(rights) = list.iter().map(row_of).collect::<Option<Vec<_>>>()
        {
            let any = rights.iter().map(|right| self.row_comparison(Comparison::Eq, &left, right));
            let any = any.collect::<Result<Vec<_>>>()?;
            return Ok(negate(Expr::bool(Node::Or(any)), negated));
        }
        let value = self.bind(expr)?;
        let items = list.iter().map(|e| self.bind(e)).collect::<Result<Vec<_>>>()?;
        // Several values without columns are one array, of one type with the value; the others are
        // compared one by one.
        let steady = items.iter().filter(|item| !item.reads_columns()).map(|item| item.ty.clone());
        let types: Vec<_> = std::iter::once(value.ty.clone()).chain(steady).collect();
        let listed = if types.len() > 2 { common_type(&types).ok() } else { None };
        // Of varchar the values are compared as text, as what is varchar in them is anyway; char(n)
        // would not be.
        let padded = types.iter().any(|ty| matches!(ty, SqlType::Char(_)));
        let listed = listed.filter(|ty| padded || !matches!(ty, SqlType::Varchar(_)));
        let items = items.into_iter().map(|item| match &listed {
            Some(ty) if !item.reads_columns() => self.implicit(item, ty),
            _ => Ok(item),
        });
        let items = items.collect::<Result<Vec<_>>>()?;
        let mut ty = value.ty.clone();
        for item in &items {
            ty = comparison_type(&ty, &item.ty)
                .ok_or_else(|| no_operator("=", &[&value.ty, &item.ty]))?;
        }
        let value = self.implicit(value, &ty)?;
        let items = items.into_iter().map(|e| self.implicit(e, &ty)).collect::<Result<_>>()?;
        Ok(Expr::bool(Node::InList(Box::new(value), items, negated)))
    }

    fn like(
        &mut self,
        name: &str,
        expr: &ast::Expr,
        pattern: &ast::Expr,
        escape: Option<&ast::ValueWithSpan>,
        negated: bool,
    ) -> Result<Expr> {
        let mut args = vec![self.bind(expr)?, self.bind(pattern)?];
        if let Some(escape) = escape {
            args.push(self.literal(&escape.value)?);
        }
        let symbol = match (name, negated) {
            ("like", false) => "~~",
            ("like", true) => "!~~",
            ("ilike", false) => "~~*",
            ("ilike", true) => "!~~*",
            _ => "similar",
        };
        if args.len() == 2
            && registry().resolve(name, &[args[0].ty.clone(), args[1].ty.clone()]).is_err()
        {
            return Err(no_operator(symbol, &[&args[0].ty, &args[1].ty]));
        }
        let matched = self.resolve_call(name, args)?;
        Ok(negate(matched, negated))
    }

    fn quantified(
        &mut self,
        left: &ast::Expr,
        op: &BinaryOperator,
        right: &ast::Expr,
        all: bool,
    ) -> Result<Expr> {
        let symbol = symbol_of(op)?;
        let (value, list) = (self.bind(left)?, self.bind(right)?);
        let element = match &list.ty {
            ty if ty.element_type().is_some() => {
                ty.element_type().cloned().unwrap_or(SqlType::Unknown)
            }
            SqlType::Unknown => SqlType::Unknown,
            _ => {
                return Err(Error::new(
                    SqlState::WRONG_OBJECT_TYPE,
                    "op ANY/ALL (array) requires array on right side",
                ));
            }
        };
        let Some(comparison) = Comparison::of_symbol(&symbol) else {
            return self.quantified_call(&symbol, value, list, &element, all);
        };
        let ty = comparison_type(&value.ty, &element)
            .ok_or_else(|| no_operator(&symbol, &[&value.ty, &element]))?;
        let value = self.implicit(value, &ty)?;
        let list = self.implicit(list, &ty.array_of())?;
        Ok(Expr::bool(Node::Quantified(Box::new(value), comparison, Box::new(list), all)))
    }

    /// LIKE, regular expressions and their kin with ANY or ALL.
    fn quantified_call(
        &mut self,
        symbol: &str,
        value: Expr,
        list: Expr,
        element: &SqlType,
        all: bool,
    ) -> Result<Expr> {
        let resolved = registry()
            .resolve(symbol, &[value.ty.clone(), element.clone()])
            .map_err(|_| no_operator(symbol, &[&value.ty, element]))?;
        let ([left, right], SqlType::Bool) = (&resolved.args[..], &resolved.returns) else {
            return Err(fault::unsupported(format!("{symbol} with ANY or ALL")));
        };
        let value = self.implicit(value, left)?;
        let list = self.implicit(list, &right.clone().array_of())?;
        let (value, list) = (Box::new(value), Box::new(list));
        Ok(Expr::bool(Node::QuantifiedCall(value, resolved.function, list, all)))
    }
}

/// NOT where `negated`.
#[must_use]
pub fn negate(expr: Expr, negated: bool) -> Expr {
    if negated { Expr::bool(Node::Not(Box::new(expr))) } else { expr }
}

fn flatten<'e>(expr: &'e ast::Expr, op: &BinaryOperator, out: &mut Vec<&'e ast::Expr>) {
    // The left side of a chain is its long side: walk it without recursion.
    let mut pending = vec![expr];
    while let Some(next) = pending.pop() {
        match next {
            ast::Expr::BinaryOp { left, op: inner, right } if inner == op => {
                pending.push(right);
                pending.push(left);
            }
            other => out.push(other),
        }
    }
}

/// The fields of a row that is written out.
type Fields<'a> = Cow<'a, [ast::Expr]>;

/// The fields of two rows that are written out.
fn rows<'a>(left: &'a ast::Expr, right: &'a ast::Expr) -> Option<(Fields<'a>, Fields<'a>)> {
    Some((row_of(left)?, row_of(right)?))
}

/// The digits of a number, and whether it is negated already.
fn negative_number(expr: &ast::Expr) -> Option<(&str, bool)> {
    match expr {
        ast::Expr::Value(value) => match &value.value {
            Value::Number(text, _) => Some((text, false)),
            _ => None,
        },
        ast::Expr::Nested(inner) => negative_number(inner),
        ast::Expr::UnaryOp { op: UnaryOperator::Minus, expr } => {
            negative_number(expr).map(|(text, negative)| (text, !negative))
        }
        _ => None,
    }
}

/// The symbol the registry knows an operator by.
///
/// # Errors
/// 0A000 for operators PostgreSQL has not.
pub fn symbol_of(op: &BinaryOperator) -> Result<String> {
    Ok(match op {
        BinaryOperator::Custom(symbol) => symbol.clone(),
        BinaryOperator::PGCustomBinaryOperator(parts) => parts.last().cloned().unwrap_or_default(),
        BinaryOperator::NotEq => "<>".to_owned(),
        BinaryOperator::PGExp | BinaryOperator::BitwiseXor => "^".to_owned(),
        BinaryOperator::PGBitwiseXor => "#".to_owned(),
        BinaryOperator::Overlaps => "overlaps".to_owned(),
        other => other.to_string(),
    })
}

fn comparison_symbol(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Eq => "=",
        Comparison::NotEq => "<>",
        Comparison::Lt => "<",
        Comparison::LtEq => "<=",
        Comparison::Gt => ">",
        Comparison::GtEq => ">=",
    }
}

pub(super) fn operator_text(symbol: &str, types: &[&SqlType]) -> String {
    match types {
        [one] => format!("{symbol} {}", one.without_modifier()),
        [left, right] => {
            format!("{} {symbol} {}", left.without_modifier(), right.without_modifier())
        }
        _ => symbol.to_owned(),
    }
}

/// 42883 for an operator.
#[must_use]
pub fn no_operator(symbol: &str, types: &[&SqlType]) -> Error {
    Error::new(
        SqlState::UNDEFINED_FUNCTION,
        format!("operator does not exist: {}", operator_text(symbol, types)),
    )
    .hint(NO_OPERATOR_HINT)
}
