//! Binding: casts that the context asks for, and what is constant.
//!
//! # Invariants
//! - A cast is there when and only when the types differ; between two types the cast to a length
//!   stays one.
//! - What is constant is evaluated once, here, but for what depends on settings or the time.
//!
//! # On failure
//! 42846 when there is no such cast, 42804 for types that have nothing in common, the value's
//! errors for literals.

use super::bind::Binder;
use super::bound::{Expr, Node};
use super::fault;
use super::registry::Volatility;
use super::stored_literals::names_a_moment;
use super::ty::{CastContext, castable, common_type, stable_cast};
use telesto_sql_parser::sqlparser::ast;
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, SqlType};

impl Binder<'_> {
    /// Binds an expression whose type, if still unknown, is the one `wanted`, or text.
    ///
    /// # Errors
    /// See the module, and those of the cast.
    pub fn bind_wanted(&mut self, expr: &ast::Expr, wanted: Option<&SqlType>) -> Result<Expr> {
        let bound = self.bind(expr)?;
        match wanted {
            Some(ty) if bound.ty == SqlType::Unknown => {
                self.coerce(bound, ty, CastContext::Implicit)
            }
            _ => self.known(bound),
        }
    }

    /// Casts implicitly.
    ///
    /// # Errors
    /// 42846 when there is no implicit cast.
    pub fn implicit(&mut self, expr: Expr, ty: &SqlType) -> Result<Expr> {
        self.coerce(expr, ty, CastContext::Implicit)
    }

    /// Casts to `ty` as `how` allows.
    ///
    /// # Errors
    /// 42846 when there is no such cast; the value's errors for literals.
    pub fn coerce(&mut self, expr: Expr, ty: &SqlType, how: CastContext) -> Result<Expr> {
        if expr.ty == *ty {
            return Ok(expr);
        }
        if let SqlType::Domain(domain) = ty {
            let node = Node::Cast(Box::new(self.coerce(expr, &domain.base, how)?), how);
            let checked = Expr { ty: ty.clone(), node };
            // From here on a value of the base type.
            return Ok(Expr { ty: domain.base.clone(), node: Node::Cast(Box::new(checked), how) });
        }
        if expr.ty == SqlType::Unknown {
            return self.coerce_unknown(expr, ty, how);
        }
        if *ty == expr.ty.without_modifier() {
            // Only a modifier is dropped: no work, but a cast to the length must stay one.
            if matches!(expr.node, Node::Cast(..)) {
                return Ok(Expr { ty: ty.clone(), node: Node::Cast(Box::new(expr), how) });
            }
            return Ok(Expr { ty: ty.clone(), ..expr });
        }
        if !castable(&expr.ty, ty, how) {
            return Err(fault::cannot_cast(&expr.ty, ty));
        }
        let stable = stable_cast(&expr.ty, ty);
        // ARRAY[…] casts its elements, so that unknown literals inside are read as the wanted type.
        let cast = Expr { ty: ty.clone(), node: Node::Cast(Box::new(expr), how) };
        // What depends on a setting (DateStyle, the time zone) is computed, and fails, when it
        // runs, as in PostgreSQL: what is cast further may fail only then, too.
        if stable {
            return Ok(cast);
        }
        self.folded(cast, self.conditional == 0)
    }

    /// What stands where any type will do: an untyped literal is text, an untyped parameter is left
    /// open.
    pub(super) fn of_any_type(&mut self, expr: Expr) -> Result<Expr> {
        match expr.node {
            Node::Param(number) if expr.ty == SqlType::Unknown => {
                self.parameters.leave(number);
                Ok(Expr { ty: SqlType::Text, node: Node::Param(number) })
            }
            _ => self.known(expr),
        }
    }

    fn coerce_unknown(&mut self, expr: Expr, ty: &SqlType, how: CastContext) -> Result<Expr> {
        match expr.node {
            Node::Const(Datum::Null) => Ok(Expr::constant(Datum::Null, ty.clone())),
            Node::Const(value) => {
                let moment = matches!(
                    ty,
                    SqlType::Date
                        | SqlType::Time(_)
                        | SqlType::TimeTz(_)
                        | SqlType::Timestamp(_)
                        | SqlType::TimestampTz(_)
                ) && value.as_str().is_some_and(names_a_moment);
                let literal = Expr::constant(value, SqlType::Unknown);
                let plain = ty.without_modifier();
                let target = if self.as_written { &plain } else { ty };
                let cast = Expr { ty: target.clone(), node: Node::Cast(Box::new(literal), how) };
                let value = if moment { cast } else { self.evaluated(cast, true)? };
                if *ty == value.ty || how != CastContext::Explicit {
                    return Ok(value);
                }
                Ok(Expr { ty: ty.clone(), node: Node::Cast(Box::new(value), how) })
            }
            Node::Param(number) => {
                let plain = ty.without_modifier();
                let known = match self.parameters.get(number) {
                    // Met before, where its type was told.
                    Some(known) if castable(known, &plain, CastContext::Implicit) => known.clone(),
                    _ => {
                        self.parameters.infer(number, plain.clone())?;
                        plain
                    }
                };
                let typed = Expr { ty: known, node: Node::Param(number) };
                if typed.ty == *ty { Ok(typed) } else { self.coerce(typed, ty, how) }
            }
            node => {
                // NULL-valued constructs such as CASE over unknown branches: cast their text.
                let unknown = Expr { ty: SqlType::Text, node };
                Ok(Expr {
                    ty: ty.clone(),
                    node: Node::Cast(Box::new(unknown), CastContext::Explicit),
                })
            }
        }
    }

    /// Evaluates what is constant. With `strict` an error is reported now, else the node stays and
    /// fails when it runs.
    pub(super) fn folded(&mut self, expr: Expr, strict: bool) -> Result<Expr> {
        if self.as_written { Ok(expr) } else { self.evaluated(expr, strict) }
    }

    fn evaluated(&mut self, expr: Expr, strict: bool) -> Result<Expr> {
        // NULL in, NULL out; but PostgreSQL has refused a constant that fails before.
        if let Node::Call(function, args, _) = &expr.node
            && function.strict
            && args.iter().any(|arg| matches!(arg.node, Node::Const(Datum::Null)))
            && !args.iter().any(Expr::holds_failed_constant)
        {
            return Ok(Expr::constant(Datum::Null, expr.ty));
        }
        let constant = match &expr.node {
            Node::Cast(inner, _) => matches!(inner.node, Node::Const(_)),
            Node::Call(function, args, _) => {
                function.volatility == Volatility::Immutable
                    && args.iter().all(|a| matches!(a.node, Node::Const(_)))
            }
            Node::Compare(_, a, b) => {
                matches!((&a.node, &b.node), (Node::Const(_), Node::Const(_)))
            }
            _ => false,
        };
        if !constant {
            return Ok(expr);
        }
        match expr.eval(&[], self.context) {
            Ok(value) => Ok(Expr::constant(value, expr.ty)),
            Err(error) if strict => Err(error),
            Err(_) => Ok(expr),
        }
    }

    /// Casts all to their common type.
    ///
    /// # Errors
    /// 42804, of arrays 42846, naming `what`.
    pub fn unify(&mut self, exprs: Vec<Expr>, what: &str) -> Result<(Vec<Expr>, SqlType)> {
        let types: Vec<SqlType> = exprs.iter().map(|e| e.ty.clone()).collect();
        let ty = common_type(&types).map_err(|(a, b)| {
            if matches!((&a, &b), (SqlType::Array(_), SqlType::Array(_))) {
                return fault::error("42846", format!("{what} could not convert type {b} to {a}"));
            }
            fault::mismatch(format!(
                "{what} types {} and {} cannot be matched",
                a.without_modifier(),
                b.without_modifier()
            ))
        })?;
        let cast = exprs.into_iter().map(|e| self.implicit(e, &ty)).collect::<Result<_>>()?;
        Ok((cast, ty))
    }
}

/// Refuses a collation of what is no text.
///
/// # Errors
/// 42804.
pub fn takes_collation(ty: &SqlType) -> Result<()> {
    use SqlType as T;
    match ty.element_type().unwrap_or(ty).of_values() {
        T::Text | T::Varchar(_) | T::Char(_) | T::Name | T::Unknown => Ok(()),
        _ => Err(fault::mismatch(format!("collations are not supported by type {ty}"))),
    }
}
