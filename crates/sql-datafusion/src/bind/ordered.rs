//! Ordered-set aggregates: `percentile_cont(f) WITHIN GROUP (ORDER BY x)` and its kin.
//!
//! # How
//! The values that are not NULL are gathered by `array_agg` in the order asked for; a function of
//! the registry ([`telesto_sql_expr::functions::ordered`]) takes the result from the array.
//!
//! # Limits
//! All values of a group are held in memory, as by `array_agg`.

use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::sql::sqlparser::ast;

use super::call::guard;
use super::scope::Scope;
use super::{Binder, Typed};
use crate::fault;
use crate::types::TypeShape as _;
use telesto_sql_expr::functions::ordered::{
    CONTINUOUS, CONTINUOUS_EACH, CONTINUOUS_INTERVALS, CONTINUOUS_INTERVALS_EACH, DISCRETE,
    DISCRETE_EACH, MODE,
};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// An ordered-set aggregate with its direct arguments.
    pub(super) fn ordered_set(
        &self,
        name: &str,
        call: &ast::Function,
        direct: Vec<Typed>,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        let (function, arguments) = match name {
            "percentile_disc" => (DISCRETE, 1),
            "percentile_cont" => (CONTINUOUS, 1),
            "mode" => (MODE, 0),
            _ if super::hypothetical::is_hypothetical(name) => {
                if call.over.is_some() {
                    return Err(fault::unsupported("OVER with a hypothetical-set aggregate"));
                }
                return self.hypothetical(name, call, direct, scope);
            }
            _ => {
                // Looked for with the ordered values behind the arguments, as in PostgreSQL.
                let mut args = direct;
                for item in &call.within_group {
                    args.push(self.expr(&item.expr, scope)?);
                }
                return Err(self.no_function(name, &args));
            }
        };
        let [item] = call.within_group.as_slice() else {
            return Err(fault::unsupported("WITHIN GROUP over several expressions"));
        };
        if direct.len() != arguments {
            return Err(self.no_function(name, &direct));
        }
        if call.over.is_some() {
            return Err(fault::unsupported("OVER with an ordered-set aggregate"));
        }
        let mut value = self.expr(&item.expr, scope)?;
        if value.ty == SqlType::Unknown {
            value = self.cast(value, &SqlType::Text)?;
        }
        if value.ty.element().is_some() {
            return Err(fault::unsupported("an ordered-set aggregate of arrays"));
        }
        let intervals = function == CONTINUOUS && value.ty == SqlType::Interval;
        if function == CONTINUOUS && !intervals {
            if !value.ty.is_number() {
                // There is none, as in PostgreSQL.
                return Err(self.no_function(name, &[direct, vec![value]].concat()));
            }
            value = self.cast(value, &SqlType::Float8)?;
        }
        let mut direct = direct;
        let several = direct.first().is_some_and(|arg| arg.ty.element().is_some());
        if several {
            direct = vec![self.cast(direct.remove(0), &SqlType::Float8.array_of())?];
        }
        let function = match (function, intervals, several) {
            (CONTINUOUS, false, true) => CONTINUOUS_EACH,
            (CONTINUOUS, true, false) => CONTINUOUS_INTERVALS,
            (CONTINUOUS, true, true) => CONTINUOUS_INTERVALS_EACH,
            (DISCRETE, _, true) => DISCRETE_EACH,
            _ => function,
        };
        let mut order = self.sorts(&call.within_group, scope)?;
        let condition =
            call.filter.as_deref().map(|filter| self.condition(filter, scope, "FILTER"));
        let condition = condition.transpose()?;
        let keys = order.iter_mut().map(|sort| &mut sort.expr);
        guard(std::iter::once(&mut value.expr).chain(keys), condition.as_ref())?;
        let mut filter = value.expr.clone().is_not_null();
        if let Some(condition) = condition {
            filter = Expr::and(condition, filter);
        }
        let gathered = self
            .aggregate_named("array_agg", std::slice::from_ref(&value), false)?
            .ok_or_else(|| self.no_function("array_agg", std::slice::from_ref(&value)))?;
        let aggregate = Expr::AggregateFunction(AggregateFunction::new_udf(
            gathered.function,
            gathered.args,
            false,
            Some(Box::new(filter)),
            order,
            None,
        ));
        let mut args = vec![super::call::shaped(aggregate, gathered.ty, gathered.recast)];
        args.extend(direct);
        self.call(function, args)
    }
}

/// Refuses what PostgreSQL's grammar has not inside of the parentheses before WITHIN GROUP.
pub(super) fn refuse_in_direct_arguments(list: &ast::FunctionArgumentList) -> Result<()> {
    if list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct) {
        return Err(fault::syntax("cannot use DISTINCT with WITHIN GROUP"));
    }
    match list.clauses.iter().any(|c| matches!(c, ast::FunctionArgumentClause::OrderBy(_))) {
        true => Err(fault::syntax("cannot use multiple ORDER BY clauses with WITHIN GROUP")),
        false => Ok(()),
    }
}
