//! The constraints of a domain, applied to a value.
//!
//! # Invariants
//! NOT NULL first, then the conditions; NULL of a condition is no violation. Conditions see the
//! value as VALUE, of the base type.
//!
//! # On failure
//! 23502, 23514 naming the constraint, and those of evaluating a condition.

use std::sync::Arc;

use super::bind::Binder;
use super::bound::Expr;
use super::context::EvalContext;
use super::scope::{Scope, ScopeColumn, ScopeRelation};
use crate::parameters::ParameterTypes;
use telesto_sql_types::domains::DomainType;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{Datum, SqlType};

/// The scope of a domain's conditions: VALUE, of the type `base`.
pub fn value_scope(base: &SqlType) -> Scope {
    let value =
        ScopeColumn { name: "value".to_owned(), ty: base.clone(), position: 0, domain: None };
    let columns = vec![value];
    let relation =
        ScopeRelation { name: String::new(), columns, unqualified: true, hidden: Vec::new() };
    Scope { relations: vec![relation] }
}

/// Binds a condition over VALUE.
///
/// # Errors
/// Those of binding.
pub fn bind_check(text: &str, base: &SqlType, context: &EvalContext<'_>) -> Result<Expr> {
    let scope = value_scope(base);
    let expr = telesto_sql_parser::stored::parse_stored(text)?;
    Binder::new(&scope, &mut ParameterTypes::default(), context, "CHECK").condition(&expr)
}

/// A domain's conditions by the names of their constraints, bound. Kept beside the type, which
/// knows no expressions.
type BoundChecks = Vec<(String, Expr)>;

/// Whether a value may be one of the domain.
///
/// # Errors
/// See the module.
pub fn check(value: &Datum, domain: &DomainType, context: &EvalContext<'_>) -> Result<()> {
    if domain.not_null && value.is_null() {
        return Err(Error::new(
            SqlState::NOT_NULL_VIOLATION,
            format!("domain {} does not allow null values", domain.name),
        )
        .data_type(&domain.schema, &domain.name));
    }
    if domain.checks.is_empty() {
        return Ok(());
    }
    let bound = match domain.bound.get() {
        Some(bound) => bound,
        None => {
            // Whoever comes first binds for all.
            let owner = context.catalog.user_type(domain.oid).map_or(0, |ty| ty.owner.0);
            let settings = context.settings.of_owner(context.catalog, owner);
            let by_owner = EvalContext::planning(&settings, context.catalog);
            let bind = |(name, text): &(String, String)| {
                Ok((name.clone(), bind_check(text, &domain.base, &by_owner)?))
            };
            let all = domain.checks.iter().map(bind).collect::<Result<BoundChecks>>()?;
            domain.bound.get_or_init(|| Arc::new(all))
        }
    };
    let bound = bound.downcast_ref::<BoundChecks>();
    for (name, condition) in bound.into_iter().flatten() {
        if condition.eval(std::slice::from_ref(value), context)?.as_bool() == Some(false) {
            return Err(Error::new(
                SqlState::CHECK_VIOLATION,
                format!("value for domain {} violates check constraint \"{name}\"", domain.name),
            )
            .constraint(name.clone())
            .data_type(&domain.schema, &domain.name));
        }
    }
    Ok(())
}
