//! Operators, casts and calls: what the registry resolves, and what DataFusion may compute itself.
//!
//! # Invariants
//! A comparison is left to DataFusion only where Arrow's order of the values is PostgreSQL's
//! ([`natively_ordered`]); then it can be pushed into scans and used as a join key.

use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{
    Expr, LogicalPlan, LogicalPlanBuilder, Operator, binary_expr, cast,
};

use super::expr::negate;
use super::scope::{Relation, ScopeColumn};
use super::{Binder, Typed};
use crate::aggregate::{Fold, folding};
use crate::arrays::ArrayWork;
use crate::evaluate::call;
use crate::fault;
use crate::types::{TypeShape, arrow_type, datum_of, scalar};
use crate::udf;
use crate::waiting::waiting_call;
use telesto_sql_expr::array::NO_POSITION;
use telesto_sql_expr::cast::cast as convert;
use telesto_sql_expr::comparison_type;
use telesto_sql_expr::registry::{self, ResolveError, Resolved, registry};
use telesto_sql_expr::ty::castable;
use telesto_sql_expr::ty::{CastContext, common_type};
use telesto_sql_parser::rewrite::variadic::plain_name;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::interrupt;
use telesto_sql_types::{RangeKind, SqlType};

/// Whether Arrow compares values of this type as PostgreSQL does.
pub(crate) fn natively_ordered(ty: &SqlType) -> bool {
    if let SqlType::Range(kind) | SqlType::Multirange(kind) = ty {
        // Numbers carry their scale.
        return *kind != RangeKind::Num;
    }
    matches!(
        ty,
        SqlType::Bool
            | SqlType::Int2
            | SqlType::Int4
            | SqlType::Int8
            | SqlType::Float4
            | SqlType::Float8
            | SqlType::Text
            | SqlType::Varchar(_)
            | SqlType::Bytea
            | SqlType::Uuid
            | SqlType::Bit(_)
            | SqlType::Varbit(_)
            | SqlType::Inet
            | SqlType::Cidr
            | SqlType::Enum(_)
            | SqlType::Date
            | SqlType::Time(_)
            | SqlType::TimeTz(_)
            | SqlType::Timestamp(_)
            | SqlType::TimestampTz(_)
            | SqlType::Oid
            | SqlType::Name
    )
}

/// The plan operator for a comparison.
pub(super) fn native(op: &str) -> Option<Operator> {
    Some(match op {
        "=" => Operator::Eq,
        "<>" => Operator::NotEq,
        "<" => Operator::Lt,
        "<=" => Operator::LtEq,
        ">" => Operator::Gt,
        ">=" => Operator::GtEq,
        "IS DISTINCT FROM" => Operator::IsDistinctFrom,
        "IS NOT DISTINCT FROM" => Operator::IsNotDistinctFrom,
        _ => return None,
    })
}

impl Binder<'_> {
    /// Resolves and applies a binary operator.
    pub(super) fn binary(&self, op: &str, left: Typed, right: Typed) -> Result<Typed> {
        // Two untyped literals are text, whatever the operator.
        let (left, right) = if left.literal().is_some() && right.literal().is_some() {
            (self.cast(left, &SqlType::Text)?, self.cast(right, &SqlType::Text)?)
        } else {
            (left, right)
        };
        match native(op) {
            Some(native_op) => self.comparison(op, native_op, left, right),
            None => self.resolve(op, vec![left, right], true),
        }
    }

    /// A comparison, on the values themselves or on their sort keys.
    fn comparison(&self, name: &str, op: Operator, left: Typed, right: Typed) -> Result<Typed> {
        let ty = comparison_type(&left.ty, &right.ty)
            .ok_or_else(|| self.no_such(name, &[left.clone(), right.clone()], true))?;
        if let Some(days) = super::days::compared(op, &left, &right)? {
            return Ok(days);
        }
        let l = self.comparable(self.coerce(left, &ty, name)?)?;
        let r = self.comparable(self.coerce(right, &ty, name)?)?;
        // Of two equal values DataFusion takes the first for the one that tells the order of rows:
        // a column, where there is one.
        let (l, r) = match (op, &l, &r) {
            (Operator::Eq, Expr::Column(_), _) => (l, r),
            (Operator::Eq, _, Expr::Column(_)) => (r, l),
            _ => (l, r),
        };
        let distinct = op == Operator::IsDistinctFrom;
        if (distinct || op == Operator::IsNotDistinctFrom)
            && [&l, &r].iter().all(|side| side.any_column_refs() && !side.is_volatile())
        {
            // Written out: as a key of a join among several the optimizer forgets that nulls are
            // equal here.
            let nulls = Expr::and(l.clone().is_null(), r.clone().is_null());
            let equal = binary_expr(l, Operator::Eq, r);
            let equal = equal.clone().is_not_null().and(equal);
            return Ok(Typed::bool(negate(Expr::or(nulls, equal), distinct)));
        }
        Ok(Typed::bool(binary_expr(l, op, r)))
    }

    /// A prefix operator.
    pub(super) fn prefix(&self, op: &str, typed: Typed) -> Result<Typed> {
        self.resolve(op, vec![typed], true)
    }

    /// A scalar function call; `type(value)` is a cast where there is no such function.
    pub(super) fn call(&self, name: &str, mut args: Vec<Typed>) -> Result<Typed> {
        let is_time = || {
            matches!(name, "current_timestamp" | "localtimestamp" | "localtime" | "current_time")
        };
        if let [precision] = &args[..]
            && is_time()
        {
            return self.to_precision(name, precision);
        }
        if args.len() == 1
            && !registry().knows(name)
            && let Ok(ty) = self.evaluation.hold().context().type_of_name(name)
            && let Some(value) = args.pop()
        {
            return self.cast(value, &ty);
        }
        self.resolve(name, args, false)
    }

    fn resolve(&self, name: &str, args: Vec<Typed>, operator: bool) -> Result<Typed> {
        let types: Vec<SqlType> = args.iter().map(|a| a.ty.clone()).collect();
        telesto_sql_expr::functions::spread::check(name, &types)?;
        let resolved = registry().resolve(name, &types).map_err(|why| match why {
            ResolveError::NoSuch => self.no_such(name, &args, operator),
            ResolveError::Ambiguous => fault::new(
                "42725",
                format!("{} is not unique; add explicit casts", signature(name, &args, operator)),
            ),
        })?;
        let mut out = Vec::with_capacity(args.len());
        for (at, (arg, ty)) in args.into_iter().zip(&resolved.args).enumerate() {
            out.push(match resolved.function.takes_any(at) {
                true => self.of_any_type(arg)?.expr,
                false => self.coerce(arg, ty, name)?.expr,
            });
        }
        let ty = resolved.returns.clone();
        if operator && let Some(value) = self.folded(&resolved, &out)? {
            return Ok(Typed::of(value, ty));
        }
        self.measures.set(self.measures.get() || resolved.function.measures);
        let function = if resolved.function.waits {
            self.waiting.set(true);
            waiting_call(resolved, self.next_instance(), self.evaluation())
        } else {
            udf::scalar_call(resolved, self.evaluation())
        };
        Ok(Typed::of(function.call(out), ty))
    }

    /// What an operator makes of constants. DataFusion would find it too, but asks each operator of
    /// a chain for the types of all that are before it, again and again: a sum of some thousand
    /// constants took a minute. `None`: it is not constant, or fails, which is told when it runs.
    fn folded(&self, resolved: &Resolved, args: &[Expr]) -> Result<Option<Expr>> {
        if resolved.function.volatility != registry::Volatility::Immutable {
            return Ok(None);
        }
        let mut values = Vec::with_capacity(args.len());
        for (arg, ty) in args.iter().zip(&resolved.args) {
            let Expr::Literal(value, _) = arg else { return Ok(None) };
            values.push(datum_of(value, ty)?);
        }
        interrupt::check()?;
        match call(resolved, &values, &self.evaluation.hold().context()) {
            Ok(value) => Ok(Some(Expr::Literal(scalar(&value, &resolved.returns)?, None))),
            Err(_) => {
                // The statement's own end is not the operator's failure.
                interrupt::check()?;
                Ok(None)
            }
        }
    }

    /// 42883 for a function.
    pub(super) fn no_function(&self, name: &str, args: &[Typed]) -> Error {
        self.no_such(name, args, false)
    }

    pub(super) fn no_such(&self, name: &str, args: &[Typed], operator: bool) -> Error {
        let shown = signature(name, args, operator);
        let (message, kind) = if operator {
            (format!("operator does not exist: {shown}"), "operator")
        } else {
            (format!("function {shown} does not exist"), "function")
        };
        fault::new("42883", message).hint(format!(
            "No {kind} matches the given name and argument types. You might need to add explicit type casts."
        ))
    }

    /// LIKE and its relatives.
    pub(super) fn pattern_match(
        &self,
        name: &str,
        value: Typed,
        pattern: Typed,
        escape: Option<Typed>,
    ) -> Result<Typed> {
        let mut args = vec![value, pattern];
        match escape {
            Some(escape) => args.push(escape),
            None if name != "similar" => {
                return self.resolve(if name == "like" { "~~" } else { "~~*" }, args, true);
            }
            None => {}
        }
        self.call(name, args)
    }

    /// The common type of the branches of `what`.
    pub(super) fn common_type(&self, types: &[SqlType], what: &str) -> Result<SqlType> {
        let types = as_text(types.to_vec());
        common_type(&types).map_err(|(a, b)| match (a.element(), b.element()) {
            (Some(_), Some(_)) => {
                fault::new("42846", format!("{what} could not convert type {b} to {a}"))
            }
            _ => fault::new(
                "42804",
                format!("{what} types {a} and {b} cannot be matched; add explicit casts"),
            ),
        })
    }

    /// Casts where SQL casts silently.
    pub(super) fn coerce(&self, typed: Typed, to: &SqlType, what: &str) -> Result<Typed> {
        if typed.ty == *to {
            return Ok(typed);
        }
        if typed.ty.is_unknown() || to.is_unknown() {
            return self.cast(typed, to);
        }
        if !castable(&typed.ty, to, CastContext::Implicit) {
            return Err(fault::new(
                "42804",
                format!(
                    "{what}: expression is of type {} but {to} is needed; add an explicit cast",
                    typed.ty
                ),
            ));
        }
        self.cast(typed, to)
    }

    /// Casts as asked for.
    pub(super) fn cast(&self, typed: Typed, to: &SqlType) -> Result<Typed> {
        let record = typed.ty.is_row() && matches!(to, SqlType::Record(_));
        if typed.ty == *to || record {
            return Ok(typed);
        }
        if let SqlType::Domain(domain) = to {
            let value = self.cast(typed, &domain.base)?;
            let checked =
                udf::cast_call(&domain.base, to, self.evaluation()).call(vec![value.expr]);
            return Ok(Typed::of(checked, domain.base.clone()));
        }
        if let Some(at) = typed.parameter {
            return self.decide_parameter(at, to);
        }
        if typed.ty.is_unknown() {
            // A literal: its value is known now.
            return match typed.literal() {
                None => Ok(Typed::of(Self::null_of(to)?, to.clone())),
                Some(text) => {
                    self.note_passing(text, to);
                    let stored = self.stored.borrow();
                    let value = udf::input(text, to, &self.evaluation, stored.as_deref())?;
                    Ok(Typed::of(Expr::Literal(scalar(&value, to)?, None), to.clone()))
                }
            };
        }
        if !castable(&typed.ty, to, CastContext::Explicit) {
            return Err(fault::new("42846", format!("cannot cast type {} to {to}", typed.ty)));
        }
        let from = typed.ty;
        if let Some(value) = self.cast_constant(&typed.expr, &from, to) {
            return Ok(Typed::of(value?, to.clone()));
        }
        let expr = if widens(&from, to) {
            cast(typed.expr, arrow_type(to))
        } else if same_values(&from, to) {
            typed.expr
        } else {
            udf::cast_call(&from, to, self.evaluation()).call(vec![typed.expr])
        };
        Ok(Typed::of(expr, to.clone()))
    }

    /// What a number becomes as another number, so that a chain of constants of several types stays
    /// constant. `None`: it is no number, or fails, which is told when it runs.
    fn cast_constant(&self, expr: &Expr, from: &SqlType, to: &SqlType) -> Option<Result<Expr>> {
        let number = |ty: &SqlType| {
            use SqlType as T;
            matches!(ty, T::Int2 | T::Int4 | T::Int8 | T::Float4 | T::Float8 | T::Numeric(None))
        };
        let Expr::Literal(value, _) = expr else { return None };
        if !number(from) || !number(to) {
            return None;
        }
        let value = datum_of(value, from).ok()?;
        let held = self.evaluation.hold();
        let value = convert(value, from, to, CastContext::Explicit, &held.context()).ok()?;
        Some(scalar(&value, to).map(|value| Expr::Literal(value, None)))
    }

    /// The value of an expression that must not depend on rows.
    pub(super) fn constant(&self, typed: Typed, clause: &str) -> Result<ScalarValue> {
        use datafusion::logical_expr::simplify::SimplifyContext;
        use datafusion::optimizer::simplify_expressions::ExprSimplifier;
        if let Expr::Literal(value, _) = typed.expr {
            return Ok(value);
        }
        let simplified = ExprSimplifier::new(SimplifyContext::default())
            .simplify(self.fixed(typed.expr)?)
            .map_err(fault::from_datafusion)?;
        match simplified {
            Expr::Literal(value, _) => Ok(value),
            _ => {
                Err(fault::new("42P10", format!("argument of {clause} must not contain variables")))
            }
        }
    }

    /// A form of `expr` that DataFusion sorts as PostgreSQL does.
    pub(super) fn orderable(&self, expr: Expr, ty: &SqlType) -> Result<Expr> {
        if natively_ordered(ty) {
            return Ok(expr);
        }
        Ok(udf::sort_key(ty).call(vec![expr]))
    }

    /// A form of the value under which equal values have equal bytes, for joins and IN.
    pub(super) fn comparable(&self, typed: Typed) -> Result<Expr> {
        if natively_ordered(&typed.ty) {
            return Ok(typed.expr);
        }
        Ok(udf::sort_key(&typed.ty).call(vec![typed.expr]))
    }

    /// The columns of `relation` in comparable form.
    pub(super) fn comparable_relation(&self, relation: Relation) -> Result<Relation> {
        if relation.columns.iter().all(|column| natively_ordered(&column.ty)) {
            return Ok(relation);
        }
        let mut exprs = Vec::with_capacity(relation.columns.len());
        let mut columns = Vec::with_capacity(relation.columns.len());
        for column in relation.columns {
            let typed = Typed::of(Expr::Column(column.column.clone()), column.ty.clone());
            // Of two columns with one name each needs its own.
            let name = match columns.is_empty() {
                true => column.column.name.clone(),
                false => self.unique("compared"),
            };
            exprs.push(self.comparable(typed)?.alias(name.clone()));
            columns.push(ScopeColumn { column: Column::new_unqualified(name), ..column });
        }
        let plan = LogicalPlanBuilder::from(relation.plan)
            .project(exprs)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        Ok(Relation { plan, columns })
    }

    /// The first row of a scalar subquery, and whether there are more, as a list
    /// ([`Fold::Single`]).
    pub(super) fn first_row(&self, relation: Relation) -> Result<Relation> {
        let Some(column) = relation.columns.first().cloned() else { return Ok(relation) };
        let list = column.ty.clone().array_of();
        let single =
            folding(Fold::Single, std::slice::from_ref(&column.ty), &list, &self.evaluation());
        let name = self.unique("single#");
        let call = Expr::AggregateFunction(AggregateFunction::new_udf(
            single,
            vec![Expr::Column(column.column.clone())],
            false,
            None,
            Vec::new(),
            None,
        ));
        let plan = LogicalPlanBuilder::from(relation.plan)
            .aggregate(Vec::<Expr>::new(), vec![call.alias(&name)])
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        Ok(Relation {
            plan,
            columns: vec![ScopeColumn {
                column: Column::new_unqualified(name),
                ty: list,
                ..column
            }],
        })
    }

    /// `left op ANY (array)` or `ALL`.
    pub(super) fn any_of_array(
        &self,
        op: &str,
        left: Typed,
        array: Typed,
        all: bool,
    ) -> Result<Typed> {
        let element = match array.ty.element() {
            Some(element) => element.clone(),
            None if array.ty.is_unknown() => SqlType::Unknown,
            None => {
                let text = "op ANY/ALL (array) requires array on right side";
                return Err(fault::new("42809", text));
            }
        };
        let no_such = || {
            let item = Typed::of(array.expr.clone(), element.clone());
            self.no_such(op, &[left.clone(), item], true)
        };
        let types = [left.ty.clone(), element.clone()];
        let (test, ty) = match native(op) {
            Some(native) => {
                let ty = comparison_type(&left.ty, &element).ok_or_else(no_such)?;
                (udf::Test::Compare(native), ty)
            }
            None => {
                let resolved = registry().resolve(op, &types).map_err(|_| no_such())?;
                match &resolved.args[..] {
                    [a, b] if a == b => {
                        let ty = a.clone();
                        (udf::Test::Operator(resolved), ty)
                    }
                    _ => return Err(fault::unsupported(&format!("{op} with ANY or ALL"))),
                }
            }
        };
        let left = self.coerce(left, &ty, op)?;
        let array = if element == ty { array } else { self.cast(array, &ty.clone().array_of())? };
        let call = udf::quantified(op, test, &ty, all, self.evaluation());
        Ok(Typed::bool(call.call(vec![left.expr, array.expr])))
    }

    /// `ARRAY[…]`.
    pub(super) fn make_array(&self, items: Vec<Typed>) -> Result<Typed> {
        let types: Vec<_> = items.iter().map(|item| item.ty.clone()).collect();
        let element =
            if types.is_empty() { SqlType::Text } else { self.common_type(&types, "ARRAY")? };
        let items = items.into_iter().map(|item| Ok(self.coerce(item, &element, "ARRAY")?.expr));
        let items = items.collect::<Result<Vec<_>>>()?;
        // Of arrays it is one of a dimension more.
        let nested = matches!(element, SqlType::Array(_));
        let ty = if nested { element.clone() } else { element.clone().array_of() };
        let work = ArrayWork::Make { ty: ty.clone(), nested };
        let call = udf::array_call(work, vec![element; items.len()], ty.clone());
        Ok(Typed::of(call.call(items), ty))
    }

    /// A subscript of an array, cast to integer as in an assignment.
    pub(super) fn position(&self, index: Typed) -> Result<Typed> {
        if !index.ty.is_unknown() && !castable(&index.ty, &SqlType::Int4, CastContext::Assignment) {
            return Err(fault::new("42804", NO_POSITION.to_owned()));
        }
        self.cast(index, &SqlType::Int4)
    }

    /// `json['key']`.
    pub(super) fn subscript(&self, base: Typed, index: Typed) -> Result<Typed> {
        if base.ty != SqlType::Jsonb {
            return self.binary("->", base, index);
        }
        // Beside integers and texts nothing is a subscript; a scalar has no parts.
        let fits = index.ty.is_unknown() || index.ty.is_integer() || index.ty.is_string();
        if !fits {
            return self.binary("->", base, index);
        }
        let index = self.cast(index, &SqlType::Text)?;
        self.call("jsonb_extract_path", vec![base, index])
    }
}

/// Whether a plan has one row at most whatever its tables hold. DataFusion's own count (`max_rows`)
/// takes a query without FROM for one without rows, so that two of them together were one row.
pub(super) fn has_one_row_at_most(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::EmptyRelation(_) => true,
        LogicalPlan::Values(values) => values.values.len() <= 1,
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::Limit(limit) => {
            plan.max_rows().is_some_and(|rows| rows <= 1) || has_one_row_at_most(&limit.input)
        }
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Distinct(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::SubqueryAlias(_) => plan.inputs().into_iter().all(has_one_row_at_most),
        _ => false,
    }
}

fn signature(name: &str, args: &[Typed], operator: bool) -> String {
    let types: Vec<String> = args.iter().map(|a| a.ty.to_string()).collect();
    match (operator, types.as_slice()) {
        (true, [one]) => format!("{name} {one}"),
        (true, [l, r]) => format!("{l} {name} {r}"),
        _ => format!("{}({})", plain_name(name).unwrap_or(name), types.join(", ")),
    }
}

/// Casts Arrow does exactly as PostgreSQL: every value has an equal in the target.
fn widens(from: &SqlType, to: &SqlType) -> bool {
    use SqlType as T;
    matches!(
        (from, to),
        (T::Int2, T::Int4 | T::Int8 | T::Float4 | T::Float8)
            | (T::Int4, T::Int8 | T::Float8)
            | (T::Float4, T::Float8)
    )
}

/// Casts that change nothing about the value or its Arrow form.
fn same_values(from: &SqlType, to: &SqlType) -> bool {
    use SqlType as T;
    matches!(
        (from, to),
        (T::Varchar(_) | T::Name, T::Text)
            | (T::Text | T::Varchar(_) | T::Name, T::Varchar(None))
            | (T::Numeric(_), T::Numeric(None))
            | (T::Char(_), T::Char(None))
    )
}

/// `"char"` beside strings is compared as text.
fn as_text<T: AsMut<[SqlType]>>(mut types: T) -> T {
    let all = types.as_mut();
    if all.iter().any(SqlType::is_string) {
        for ty in all.iter_mut().filter(|ty| **ty == SqlType::InternalChar) {
            *ty = SqlType::Text;
        }
    }
    types
}
