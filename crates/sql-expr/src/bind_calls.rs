//! Binding of function calls.
//!
//! # Invariants
//! COALESCE, GREATEST, LEAST, NULLIF and `type(value)` have typing of their own; everything else is
//! resolved by the registry, its arguments cast to what the overload takes.

use super::bind::Binder;
use super::bind_ops::{no_operator, operator_text};
use super::bound::{Comparison, Expr, Node};
use super::fault;
use super::registry::{ResolveError, registry};
use super::scope::fold;
use super::ty::CastContext;
use telesto_sql_parser::rewrite::variadic::plain_name;
use telesto_sql_parser::sqlparser::ast;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, SqlType};

impl Binder<'_> {
    pub(super) fn function(&mut self, call: &ast::Function) -> Result<Expr> {
        let parts: Vec<String> =
            call.name.0.iter().filter_map(|p| p.as_ident()).map(fold).collect();
        let name = match parts.as_slice() {
            [name] => name.clone(),
            [schema, name] if schema == "pg_catalog" || schema == "information_schema" => {
                name.clone()
            }
            _ => {
                return Err(Error::new(
                    SqlState::UNDEFINED_FUNCTION,
                    format!("function {} does not exist", call.name),
                ));
            }
        };
        if call.over.is_some() {
            return Err(fault::unsupported("a window function here"));
        }
        if let Some(hook) = self.hook.take() {
            let found = hook.aggregate(self, &name, call);
            self.hook = Some(hook);
            if let Some(found) = found? {
                return Ok(found);
            }
        } else if is_aggregate(&name) && !registry().knows(&name) || !call.within_group.is_empty() {
            return Err(Error::new(
                SqlState::GROUPING_ERROR,
                format!("aggregate functions are not allowed in {}", self.clause),
            ));
        }
        let args = match &call.args {
            ast::FunctionArguments::None => Vec::new(),
            ast::FunctionArguments::Subquery(_) => {
                return Err(fault::unsupported("a subquery as an argument"));
            }
            ast::FunctionArguments::List(list) => {
                if list.duplicate_treatment.is_some()
                    || call.filter.is_some()
                    || !call.within_group.is_empty()
                {
                    return Err(Error::new(
                        SqlState::WRONG_OBJECT_TYPE,
                        format!(
                            "DISTINCT, FILTER or WITHIN GROUP specified, but {name} is not an aggregate function"
                        ),
                    ));
                }
                if let Some(items) = super::bind_rows::row_items(call) {
                    return self.row_value(&items);
                }
                if name == "pg_typeof"
                    && let [ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument))] =
                        &list.args[..]
                    && let Some(oid) = self.domain_of(argument)
                {
                    return Ok(Expr { node: Node::Const(Datum::Oid(oid)), ty: SqlType::RegType });
                }
                let mut args = Vec::with_capacity(list.args.len());
                for argument in &list.args {
                    let conditional = usize::from(name == "coalesce" && !args.is_empty());
                    self.conditional += conditional;
                    let bound = self.argument(argument)?;
                    self.conditional -= conditional;
                    if !is_out_parameter(argument, &bound.ty) {
                        args.push(bound);
                    }
                }
                args
            }
        };
        self.call_named(&name, args)
    }

    /// The domain whose value an expression is: a column's, or that of a cast. Everything else has
    /// a base type.
    fn domain_of(&self, expr: &ast::Expr) -> Option<u32> {
        match expr {
            ast::Expr::Nested(inner) => self.domain_of(inner),
            ast::Expr::Identifier(name) => self.scope.resolve(None, &fold(name)).ok()?.domain,
            ast::Expr::CompoundIdentifier(parts) => {
                let [.., table, name] = &parts[..] else { return None };
                self.scope.resolve(Some(&fold(table)), &fold(name)).ok()?.domain
            }
            ast::Expr::Cast { data_type, .. } => match self.context.named(data_type).ok()? {
                SqlType::Domain(domain) => Some(domain.oid),
                _ => None,
            },
            _ => None,
        }
    }

    fn argument(&mut self, argument: &ast::FunctionArg) -> Result<Expr> {
        match argument {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(e)) => self.bind(e),
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::QualifiedWildcard(_)) => {
                Err(fault::unsupported("a whole row as an argument here"))
            }
            ast::FunctionArg::Unnamed(_) => Err(Error::syntax("* is allowed in count(*) only")),
            _ => Err(fault::unsupported("named arguments")),
        }
    }

    /// A function call on bound arguments; the forms with their own typing first.
    ///
    /// # Errors
    /// 42883, 42725, 42804.
    pub fn call_named(&mut self, name: &str, args: Vec<Expr>) -> Result<Expr> {
        match name {
            "coalesce" | "greatest" | "least" if args.is_empty() => {
                let name = name.to_uppercase();
                return Err(Error::syntax(format!("{name} needs at least one argument")));
            }
            "coalesce" => {
                let (args, ty) = self.unify(args, "COALESCE")?;
                return Ok(Expr { node: Node::Coalesce(args), ty });
            }
            "greatest" | "least" => {
                let what = if name == "greatest" { "GREATEST" } else { "LEAST" };
                let (args, ty) = self.unify(args, what)?;
                return Ok(Expr { node: Node::Extreme(name == "greatest", args), ty });
            }
            "nullif" => {
                let [a, b] = <[Expr; 2]>::try_from(args)
                    .map_err(|_| Error::syntax("NULLIF takes two arguments"))?;
                let ty = nullif_result(&a.ty, &b.ty);
                let mut held = None;
                let a = self.held(a, &mut held);
                let first = self.implicit(a.clone(), &ty)?;
                let equal = self.compare(Comparison::Eq, a, b)?;
                let node = Node::NullIf(Box::new(equal), Box::new(first));
                return Ok(super::bind::once(Expr { node, ty }, held));
            }
            // The precision of CURRENT_TIMESTAMP(n) and its kin.
            "current_timestamp" | "localtimestamp" | "localtime" | "current_time"
                if args.len() == 1 =>
            {
                let precision = match &args[0].node {
                    Node::Const(Datum::Int4(p @ 0..)) => u8::try_from((*p).min(6)).unwrap_or(6),
                    _ => return Err(Error::syntax("a precision must be a number")),
                };
                let now = self.resolve_call(name, Vec::new())?;
                let ty = match &now.ty {
                    SqlType::TimestampTz(_) => SqlType::TimestampTz(Some(precision)),
                    SqlType::Timestamp(_) => SqlType::Timestamp(Some(precision)),
                    SqlType::TimeTz(_) => SqlType::TimeTz(Some(precision)),
                    _ => SqlType::Time(Some(precision)),
                };
                return self.coerce(now, &ty, CastContext::Explicit);
            }
            // `type(value)` is a cast where there is no such function.
            _ if args.len() == 1 && !registry().knows(name) => {
                if let Ok(ty) = self.context.type_of_name(name) {
                    let [value] =
                        <[Expr; 1]>::try_from(args).map_err(|_| fault::kind("one argument"))?;
                    return self.coerce(value, &ty, CastContext::Explicit);
                }
                return Err(no_function(name, &args));
            }
            _ => {}
        }
        self.resolve_call(name, args)
    }

    /// Resolves an overload and casts the arguments.
    ///
    /// # Errors
    /// 42883, 42725.
    pub fn resolve_call(&mut self, name: &str, args: Vec<Expr>) -> Result<Expr> {
        let types: Vec<SqlType> = args.iter().map(|a| a.ty.clone()).collect();
        super::functions::spread::check(name, &types)?;
        let operator = !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let resolved = registry().resolve(name, &types).map_err(|error| match (error, operator) {
            (ResolveError::NoSuch, true) => no_operator(name, &types.iter().collect::<Vec<_>>()),
            (ResolveError::NoSuch, false) => no_function(name, &args),
            (ResolveError::Ambiguous, true) => {
                let shown = operator_text(name, &types.iter().collect::<Vec<_>>());
                Error::new(SqlState::AMBIGUOUS_FUNCTION, format!("operator is not unique: {shown}"))
                    .hint("Could not choose a best candidate operator. You might need to add explicit type casts.")
            }
            (ResolveError::Ambiguous, false) => Error::new(
                SqlState::AMBIGUOUS_FUNCTION,
                format!("function {} is not unique", signature(name, &args)),
            )
            .hint("Could not choose a best candidate function. You might need to add explicit type casts."),
        })?;
        let args = args
            .into_iter()
            .zip(&resolved.args)
            .enumerate()
            .map(|(at, (arg, ty))| match resolved.function.takes_any(at) {
                true => self.of_any_type(arg),
                false => self.coerce(arg, ty, CastContext::Implicit),
            })
            .collect::<Result<Vec<_>>>()?;
        // pg_typeof tells an untyped literal from text.
        let types = if name == "pg_typeof" { types } else { resolved.args };
        let call = Expr { node: Node::Call(resolved.function, args, types), ty: resolved.returns };
        self.folded(call, false)
    }
}

/// Names of PostgreSQL's common aggregates.
#[must_use]
pub fn is_aggregate(name: &str) -> bool {
    matches!(
        name,
        "count"
            | "sum"
            | "avg"
            | "min"
            | "max"
            | "bool_and"
            | "bool_or"
            | "every"
            | "string_agg"
            | "array_agg"
            | "json_agg"
            | "jsonb_agg"
            | "json_object_agg"
            | "jsonb_object_agg"
            | "stddev"
            | "stddev_pop"
            | "stddev_samp"
            | "variance"
            | "var_pop"
            | "var_samp"
            | "bit_and"
            | "bit_or"
            | "range_agg"
            | "range_intersect_agg"
            | "corr"
            | "mode"
            | "percentile_cont"
            | "percentile_disc"
            | "any_value"
    )
}

fn signature(name: &str, args: &[Expr]) -> String {
    let types: Vec<String> = args.iter().map(|a| a.ty.without_modifier().to_string()).collect();
    format!("{}({})", plain_name(name).unwrap_or(name), types.join(", "))
}

/// Whether an argument is a parameter that a driver declared void: the OUT parameter of
/// `{? = call f(?)}`. PostgreSQL takes it out of the call ("a hack to allow the JDBC driver to not
/// have to distinguish input and output parameter symbols").
fn is_out_parameter(argument: &ast::FunctionArg, ty: &SqlType) -> bool {
    matches!(argument, ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(e)) if is_void_parameter(e, ty))
}

/// As `is_out_parameter`.
pub fn is_void_parameter(argument: &ast::Expr, ty: &SqlType) -> bool {
    *ty == SqlType::Void
        && matches!(argument, ast::Expr::Value(v) if matches!(v.value, ast::Value::Placeholder(_)))
}

fn no_function(name: &str, args: &[Expr]) -> Error {
    Error::new(SqlState::UNDEFINED_FUNCTION, format!("function {} does not exist", signature(name, args)))
        .hint("No function matches the given name and argument types. You might need to add explicit type casts.")
}

/// The type of `NULLIF(a, b)`: an untyped `a` is what the operator that compares them takes.
pub fn nullif_result(a: &SqlType, b: &SqlType) -> SqlType {
    if *a != SqlType::Unknown {
        return nullif_type(a, b).unwrap_or_else(|| a.clone());
    }
    super::comparison_type(a, b).filter(|ty| *ty != SqlType::Unknown).unwrap_or(SqlType::Text)
}

/// The type of `NULLIF(a, b)` where it is not that of `a`: the operator that compares them takes
/// another.
fn nullif_type(a: &SqlType, b: &SqlType) -> Option<SqlType> {
    let ty = super::comparison_type(a, b)?;
    let float = |ty: &SqlType| matches!(ty, SqlType::Float4 | SqlType::Float8);
    // There are operators for two integers, and two floating point numbers, of different sizes; for
    // name and text, too.
    let own = (a.is_integer() && b.is_integer()) || (float(a) && float(b)) || *a == SqlType::Name;
    let other = a.is_string() || (a.is_number() && b.is_number()) || *a == SqlType::Cidr;
    (other && !own).then_some(ty)
}
