//! Binding: from syntax to typed [`Expr`]s.
//!
//! # Invariants
//! - What is bound has PostgreSQL 15's type; every implicit cast is an explicit node.
//! - An untyped literal or parameter stays "unknown" until its context decides its type; a
//!   parameter's type is noted in [`ParameterTypes`] the first time.
//! - Nothing volatile or stable is evaluated here, but casts of literals are: plans are made per
//!   settings and catalog.
//!
//! # On failure
//! PostgreSQL's errors: 42703, 42702, 42P01, 42883, 42804, 42846, 22P02, …; 0A000 for what the key
//! path does not bind (subqueries, window functions), which for a query means that the other
//! executor takes it.
//!
//! # Limits
//! Nesting is bounded by [`MAX_DEPTH`].

use super::array::NO_POSITION;
use super::bound::{Expr, Node};
use super::cast;
use super::context::EvalContext;
use super::fault;
use super::scope::{Scope, fold};
use super::ty::{CastContext, castable};
use crate::functions::rows::{ROW_NOT_NULL, ROW_NULL};
use crate::parameters::ParameterTypes;
use crate::registry::Volatility;
use crate::type_name::{interval_fields, literal_fields, literal_type};
use telesto_sql_parser::rewrite::collation::Collation;
use telesto_sql_parser::sqlparser::ast::{self, Ident, Value};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{BitString, Datum, Numeric, SqlType};

/// Deepest nesting of an expression.
pub const MAX_DEPTH: usize = 1_200;

/// What a function that is no scalar function means here.
pub trait CallHook {
    /// Binds an aggregate (or says `None`: not one).
    ///
    /// # Errors
    /// Those of binding.
    fn aggregate(
        &mut self,
        binder: &mut Binder<'_>,
        name: &str,
        call: &ast::Function,
    ) -> Result<Option<Expr>>;
}

/// Binds expressions of one statement.
pub struct Binder<'a> {
    /// Relations in view.
    pub scope: &'a Scope,
    /// Types of the parameters.
    pub parameters: &'a mut ParameterTypes,
    /// For constants.
    pub context: &'a EvalContext<'a>,
    /// Where we are, for errors: `WHERE`, `RETURNING`, `DEFAULT`.
    pub clause: &'static str,
    /// Who takes aggregates; `None`: 42803.
    pub hook: Option<&'a mut dyn CallHook>,
    depth: usize,
    /// Inside COALESCE or CASE, where a constant that does not evaluate may never be looked at.
    pub(super) conditional: usize,
    /// Values that are computed once, so far.
    held: u32,
    /// Whether constant casts, calls and comparisons stay as they are written, for who shows the
    /// expression.
    pub(super) as_written: bool,
}

impl std::fmt::Debug for Binder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Binder").field("clause", &self.clause).finish_non_exhaustive()
    }
}

impl<'a> Binder<'a> {
    /// A binder over `scope`.
    pub fn new(
        scope: &'a Scope,
        parameters: &'a mut ParameterTypes,
        context: &'a EvalContext<'a>,
        clause: &'static str,
    ) -> Self {
        Self {
            scope,
            parameters,
            context,
            clause,
            hook: None,
            depth: 0,
            conditional: 0,
            held: 0,
            as_written: false,
        }
    }

    /// Keeps what is constant as it is written: for showing the expression, not for evaluating it.
    #[must_use]
    pub fn as_written(self) -> Self {
        Self { as_written: true, ..self }
    }

    /// Binds an expression; its type may be unknown.
    ///
    /// # Errors
    /// See the module.
    pub fn bind(&mut self, expr: &ast::Expr) -> Result<Expr> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(telesto_sql_parser::syntax::too_deep());
        }
        let bound = telesto_sql_parser::stack::deeper(|| self.bind_inner(expr));
        self.depth -= 1;
        bound
    }

    /// Binds an expression and casts it to `ty`, implicitly.
    ///
    /// # Errors
    /// 42804 when it does not fit.
    pub fn bind_as(&mut self, expr: &ast::Expr, ty: &SqlType) -> Result<Expr> {
        let bound = self.bind(expr)?;
        self.implicit(bound, ty)
    }

    /// Binds a condition.
    ///
    /// # Errors
    /// 42804 when it is not boolean.
    pub fn condition(&mut self, expr: &ast::Expr) -> Result<Expr> {
        let bound = self.bind(expr)?;
        self.boolean(bound, self.clause)
    }

    /// Binds an expression whose type, if still unknown, is text.
    ///
    /// # Errors
    /// See the module.
    pub fn bind_known(&mut self, expr: &ast::Expr) -> Result<Expr> {
        let bound = self.bind(expr)?;
        self.known(bound)
    }

    /// Unknown becomes text.
    ///
    /// # Errors
    /// Those of the cast.
    pub fn known(&mut self, expr: Expr) -> Result<Expr> {
        if expr.ty == SqlType::Unknown {
            self.coerce(expr, &SqlType::Text, CastContext::Implicit)
        } else {
            Ok(expr)
        }
    }

    pub(super) fn boolean(&mut self, expr: Expr, what: &str) -> Result<Expr> {
        if !matches!(expr.ty, SqlType::Bool | SqlType::Unknown) {
            return Err(fault::mismatch(format!(
                "argument of {what} must be type boolean, not type {}",
                expr.ty.without_modifier()
            )));
        }
        self.coerce(expr, &SqlType::Bool, CastContext::Implicit)
    }

    fn bind_inner(&mut self, expr: &ast::Expr) -> Result<Expr> {
        use ast::Expr as E;
        match expr {
            E::Identifier(ident) => self.identifier(ident),
            E::CompoundIdentifier(parts) => {
                let names: Vec<String> = parts.iter().map(fold).collect();
                match names.as_slice() {
                    [.., table, name] => self.column(Some(table), name),
                    _ => Err(Error::syntax("syntax error in a name")),
                }
            }
            E::Nested(inner) => self.bind(inner),
            E::Value(value) => self.literal(&value.value),
            E::TypedString(typed) => {
                let ty = self.context.named(&typed.data_type)?;
                let ty = literal_type(&typed.data_type, ty);
                let text = self.literal(&typed.value.value)?;
                match interval_fields(&typed.data_type) {
                    Some(fields) => self.interval_of_fields(text, fields),
                    None => self.coerce(text, &ty, CastContext::Explicit),
                }
            }
            E::Cast { kind: ast::CastKind::TryCast | ast::CastKind::SafeCast, .. } => {
                Err(fault::unsupported("TRY_CAST"))
            }
            E::Cast { expr, data_type, .. } => {
                let ty = self.context.named(data_type)?;
                if let (E::Array(array), SqlType::Array(element)) = (&**expr, &ty) {
                    return self.array_of(&array.elem, Some(element));
                }
                let bound = self.bind_for(expr, &ty)?;
                match interval_fields(data_type) {
                    Some(fields) => self.interval_of_fields(bound, fields),
                    None => self.coerce(bound, &ty, CastContext::Explicit),
                }
            }
            E::Collate { expr, collation } => {
                known_collation(collation)?;
                let value = self.bind(expr)?;
                super::bind_coerce::takes_collation(&value.ty)?;
                Ok(value)
            }
            E::IsNull(e) => self.null_test(e, false),
            E::IsNotNull(e) => self.null_test(e, true),
            E::IsTrue(e) => self.truth_test(e, Some(true), false),
            E::IsNotTrue(e) => self.truth_test(e, Some(true), true),
            E::IsFalse(e) => self.truth_test(e, Some(false), false),
            E::IsNotFalse(e) => self.truth_test(e, Some(false), true),
            E::IsUnknown(e) => self.truth_test(e, None, false),
            E::IsNotUnknown(e) => self.truth_test(e, None, true),
            E::Array(array) => self.array_of(&array.elem, None),
            E::CompoundFieldAccess { root, access_chain } => self.access(root, access_chain),
            E::Interval(interval) => self.interval(interval),
            E::Case { operand, conditions, else_result, .. } => {
                self.case(operand.as_deref(), conditions, else_result.as_deref())
            }
            E::Subquery(_) | E::Exists { .. } | E::InSubquery { .. } => {
                Err(fault::unsupported(format!("a subquery in {}", self.clause)))
            }
            other => self.operator(other),
        }
    }

    fn identifier(&mut self, ident: &Ident) -> Result<Expr> {
        let name = fold(ident);
        match self.column(None, &name) {
            Err(error)
                if error.code() == SqlState::UNDEFINED_COLUMN && ident.quote_style.is_none() =>
            {
                // Functions that are written without parentheses.
                match name.as_str() {
                    "current_role" | "current_schema" | "current_catalog" | "localtime"
                    | "localtimestamp" | "current_user" | "session_user" | "user"
                    | "current_date" | "current_timestamp" | "current_time" => {
                        self.call_named(&name, Vec::new())
                    }
                    _ => Err(position(error, ident)),
                }
            }
            other => other,
        }
    }

    fn column(&mut self, table: Option<&str>, name: &str) -> Result<Expr> {
        let column = self.scope.resolve(table, name)?;
        Ok(Expr::column(column.position, column.ty.clone()))
    }

    pub(super) fn literal(&mut self, value: &Value) -> Result<Expr> {
        let unknown = |text: &str| Ok(Expr::constant(Datum::text(text), SqlType::Unknown));
        let bits = |digits: &str, hex| {
            let value = Datum::bits(BitString::literal(digits, hex)?);
            Ok(Expr::constant(value, SqlType::Bit(None)))
        };
        match value {
            Value::Number(text, _) => number(text, false),
            Value::SingleQuotedString(text)
            | Value::EscapedStringLiteral(text)
            | Value::UnicodeStringLiteral(text)
            | Value::NationalStringLiteral(text) => unknown(text),
            Value::DollarQuotedString(text) => unknown(&text.value),
            Value::SingleQuotedByteStringLiteral(digits) => bits(digits, false),
            Value::HexStringLiteral(digits) => bits(digits, true),
            Value::Boolean(v) => Ok(Expr::constant(Datum::Bool(*v), SqlType::Bool)),
            Value::Null => Ok(Expr::constant(Datum::Null, SqlType::Unknown)),
            Value::Placeholder(text) => {
                let number = crate::parameters::number(text)?;
                self.parameters.mention(number);
                let ty = self.parameters.get(number).cloned().unwrap_or(SqlType::Unknown);
                Ok(Expr { node: Node::Param(number), ty })
            }
            other => Err(fault::unsupported(format!("the literal {other}"))),
        }
    }

    fn null_test(&mut self, expr: &ast::Expr, negated: bool) -> Result<Expr> {
        if matches!(expr, ast::Expr::Tuple(_)) {
            return Err(fault::unsupported("IS NULL of a row"));
        }
        let bound = self.bind(expr)?;
        let bound = self.of_any_type(bound)?;
        if bound.ty.is_row() {
            return self.call_named(if negated { ROW_NOT_NULL } else { ROW_NULL }, vec![bound]);
        }
        Ok(Expr::bool(Node::IsNull(negated, Box::new(bound))))
    }

    fn truth_test(
        &mut self,
        expr: &ast::Expr,
        wanted: Option<bool>,
        negated: bool,
    ) -> Result<Expr> {
        let bound = self.bind(expr)?;
        let what = match wanted {
            Some(true) => "IS TRUE",
            Some(false) => "IS FALSE",
            None => "IS UNKNOWN",
        };
        let bound = self.boolean(bound, what)?;
        Ok(Expr::bool(Node::IsTruth(wanted, negated, Box::new(bound))))
    }

    fn array_of(&mut self, items: &[ast::Expr], wanted: Option<&SqlType>) -> Result<Expr> {
        if items.is_empty() {
            let element = wanted.ok_or_else(|| {
                Error::new(SqlState::INDETERMINATE_DATATYPE, "cannot determine type of empty array")
                    .hint("Explicitly cast to the desired type, for example ARRAY[]::integer[].")
            })?;
            let ty = element.clone().array_of();
            return Ok(Expr { node: Node::Array(Vec::new(), false), ty });
        }
        super::array::within_dimensions(items)?;
        let nested = items.iter().all(|i| matches!(i, ast::Expr::Array(_)));
        let mut bound = Vec::with_capacity(items.len());
        for item in items {
            bound.push(match item {
                ast::Expr::Array(inner) => self.array_of(&inner.elem, wanted)?,
                other => self.bind(other)?,
            });
        }
        let nested = nested || bound.iter().all(|e| matches!(e.ty, SqlType::Array(_)));
        match wanted {
            Some(element) => {
                let target = if nested { element.clone().array_of() } else { element.clone() };
                let items = bound
                    .into_iter()
                    .map(|e| self.coerce(e, &target, CastContext::Explicit))
                    .collect::<Result<_>>()?;
                Ok(Expr { node: Node::Array(items, nested), ty: element.clone().array_of() })
            }
            None => {
                let (items, element) = self.unify(bound, "ARRAY")?;
                // A literal beside an array is one.
                let nested = nested || matches!(element, SqlType::Array(_));
                let ty = if nested { element } else { element.array_of() };
                Ok(Expr { node: Node::Array(items, nested), ty })
            }
        }
    }

    /// A subscript of an array, cast to integer as in an assignment.
    pub(super) fn position(&mut self, expr: &ast::Expr) -> Result<Expr> {
        let bound = self.bind(expr)?;
        if !matches!(bound.ty, SqlType::Unknown)
            && !castable(&bound.ty, &SqlType::Int4, CastContext::Assignment)
        {
            return Err(fault::mismatch(NO_POSITION.to_owned()));
        }
        self.coerce(bound, &SqlType::Int4, CastContext::Assignment)
    }

    fn access(&mut self, root: &ast::Expr, chain: &[ast::AccessExpr]) -> Result<Expr> {
        let mut value = self.bind(root)?;
        let mut subscripts = Vec::new();
        for step in chain {
            let subscript = match step {
                ast::AccessExpr::Subscript(subscript) => subscript,
                ast::AccessExpr::Dot(ast::Expr::Identifier(name)) => {
                    let row = subscripted(value, std::mem::take(&mut subscripts))?;
                    value = self.field(row, &fold(name))?;
                    continue;
                }
                ast::AccessExpr::Dot(_) => {
                    return Err(Error::syntax("a field is named by an identifier"));
                }
            };
            match subscript {
                ast::Subscript::Index { index } if value.ty == SqlType::Jsonb => {
                    let key = self.bind(index)?;
                    let fits = matches!(key.ty, SqlType::Unknown)
                        || key.ty.is_integer()
                        || key.ty.is_string();
                    value = if fits {
                        // A scalar has no parts, and digits count in an array.
                        let key = self.coerce(key, &SqlType::Text, CastContext::Explicit)?;
                        self.call_named("jsonb_extract_path", vec![value, key])?
                    } else {
                        self.resolve_call("->", vec![value, key])?
                    };
                }
                ast::Subscript::Index { index } => {
                    subscripts.push(Subscripted::At(self.position(index)?));
                }
                ast::Subscript::Slice { lower_bound, upper_bound, stride: None } => {
                    let mut bound = |e: &Option<ast::Expr>| {
                        e.as_ref().map(|e| self.position(e).map(Box::new)).transpose()
                    };
                    let (low, high) = (bound(lower_bound)?, bound(upper_bound)?);
                    subscripts.push(Subscripted::Between(low, high));
                }
                ast::Subscript::Slice { .. } => {
                    return Err(Error::syntax("syntax error at or near \":\""));
                }
            }
        }
        subscripted(value, subscripts)
    }

    fn interval(&mut self, interval: &ast::Interval) -> Result<Expr> {
        let value = self.bind(&interval.value)?;
        let Node::Const(Datum::Text(text)) = &value.node else {
            return Err(Error::syntax(
                "an interval literal must be a string; use make_interval() or a product",
            ));
        };
        let text = Expr::constant(Datum::text(text.to_string()), SqlType::Unknown);
        match literal_fields(interval) {
            Some(fields) => self.interval_of_fields(text, fields),
            None => self.coerce(text, &SqlType::Interval, CastContext::Explicit),
        }
    }

    /// A cast to an interval type that has fields or a precision.
    fn interval_of_fields(
        &mut self,
        value: Expr,
        (fields, precision): (String, i32),
    ) -> Result<Expr> {
        let target = if value.ty == SqlType::Unknown { SqlType::Text } else { SqlType::Interval };
        let value = match value.ty {
            SqlType::Text | SqlType::Varchar(_) => value,
            _ => self.coerce(value, &target, CastContext::Explicit)?,
        };
        let fields = Expr::constant(Datum::text(fields), SqlType::Text);
        let precision = Expr::constant(Datum::Int4(precision), SqlType::Int4);
        self.call_named("interval_of_fields", vec![value, fields, precision])
    }

    fn case(
        &mut self,
        operand: Option<&ast::Expr>,
        conditions: &[ast::CaseWhen],
        otherwise: Option<&ast::Expr>,
    ) -> Result<Expr> {
        let mut tests = Vec::with_capacity(conditions.len());
        let mut results = Vec::with_capacity(conditions.len() + 1);
        // The ELSE result comes first when types are chosen, as in PostgreSQL.
        self.conditional += 1;
        if let Some(otherwise) = otherwise {
            results.push(self.bind(otherwise)?);
        }
        let mut held = None;
        for when in conditions {
            tests.push(match operand {
                Some(operand) => {
                    let left = match &held {
                        Some((_, _, name)) => Expr::clone(name),
                        None => {
                            let value = self.bind(operand)?;
                            self.held(value, &mut held)
                        }
                    };
                    let right = self.bind(&when.condition)?;
                    self.compare(super::bound::Comparison::Eq, left, right)?
                }
                None => {
                    let condition = self.bind(&when.condition)?;
                    self.boolean(condition, "CASE/WHEN")?
                }
            });
            results.push(self.bind(&when.result)?);
        }
        let (results, ty) = self.unify(results, "CASE")?;
        self.conditional -= 1;
        let mut results = results.into_iter();
        let otherwise = if otherwise.is_some() { results.next().map(Box::new) } else { None };
        let node = Node::Case(tests.into_iter().zip(results).collect(), otherwise);
        Ok(once(Expr { node, ty }, held))
    }

    /// What stands for `value` in an expression that names it several times: it itself, or, where
    /// each computing of it may give another value, the one that [`once`] computes.
    pub(super) fn held(&mut self, value: Expr, held: &mut Option<Held>) -> Expr {
        if value.volatility() != Volatility::Volatile {
            return value;
        }
        self.held += 1;
        let name = Expr { node: Node::Held(self.held), ty: value.ty.clone() };
        *held = Some((self.held, value, name.clone()));
        name
    }
}

/// A value that is computed once: its number, itself, and what stands for it.
pub(super) type Held = (u32, Expr, Expr);

/// An expression that names a value several times.
pub(super) fn once(whole: Expr, held: Option<Held>) -> Expr {
    match held {
        None => whole,
        Some((number, value, _)) => {
            let ty = whole.ty.clone();
            Expr { node: Node::Once(number, Box::new(value), Box::new(whole)), ty }
        }
    }
}

/// A number literal: integer, bigint or numeric by its size.
pub(super) fn number(text: &str, negative: bool) -> Result<Expr> {
    let signed = if negative { format!("-{text}") } else { text.to_owned() };
    if let Ok(value) = signed.parse::<i32>() {
        return Ok(Expr::constant(Datum::Int4(value), SqlType::Int4));
    }
    if let Ok(value) = signed.parse::<i64>() {
        return Ok(Expr::constant(Datum::Int8(value), SqlType::Int8));
    }
    Numeric::parse(&signed)
        .map(|value| Expr::constant(Datum::numeric(value), SqlType::Numeric(None)))
        .ok_or_else(|| fault::out_of_range(&SqlType::Numeric(None)))
}

/// What stands in brackets behind an array.
enum Subscripted {
    At(Expr),
    Between(Option<Box<Expr>>, Option<Box<Expr>>),
}

/// The element of an array in these places, or the slice between these bounds; the value itself
/// when there are none.
fn subscripted(value: Expr, places: Vec<Subscripted>) -> Result<Expr> {
    if places.is_empty() {
        return Ok(value);
    }
    let Some(element) = value.ty.element_type() else {
        return Err(not_subscriptable(&value.ty));
    };
    let element = element.clone();
    // One slice makes slices of all: a place alone is the end of one that begins with 1.
    if places.iter().any(|place| matches!(place, Subscripted::Between(..))) {
        let first = || Some(Box::new(Expr::constant(Datum::Int4(1), SqlType::Int4)));
        let bounds = places.into_iter().map(|place| match place {
            Subscripted::At(end) => (first(), Some(Box::new(end))),
            Subscripted::Between(low, high) => (low, high),
        });
        let node = Node::Slice(Box::new(value), bounds.collect());
        return Ok(Expr { node, ty: element.array_of() });
    }
    let places = places.into_iter().filter_map(|place| match place {
        Subscripted::At(at) => Some(at),
        Subscripted::Between(..) => None,
    });
    Ok(Expr { node: Node::Subscript(Box::new(value), places.collect()), ty: element })
}

fn not_subscriptable(ty: &SqlType) -> Error {
    fault::mismatch(format!(
        "cannot subscript type {} because it does not support subscripting",
        ty.without_modifier()
    ))
}

/// Adds the position of an identifier, where the parser kept it.
fn position(error: Error, ident: &Ident) -> Error {
    let start = ident.span.start;
    if start.line == 1
        && let Ok(column) = u32::try_from(start.column)
    {
        return error.position(column);
    }
    error
}

/// Casts a value given from outside (a parameter in text, a default) to a column's type.
///
/// # Errors
/// Those of the cast.
pub fn input_value(text: &str, ty: &SqlType, context: &EvalContext<'_>) -> Result<Datum> {
    cast::fit(cast::input(text, ty, context)?, ty)
}

/// Whether a collation is one that sorts by bytes, as all text does.
///
/// # Errors
/// 0A000 for any other.
pub fn known_collation(collation: &ast::ObjectName) -> Result<()> {
    match telesto_sql_parser::rewrite::collation::named(collation)? {
        Collation::Bytes => Ok(()),
        Collation::Unicode(_) => Err(fault::unsupported(format!(
            "collation {collation} elsewhere than in an order, an index or a comparison"
        ))),
    }
}
