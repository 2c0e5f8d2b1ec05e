//! Ordered-set aggregates: `percentile_cont(f) WITHIN GROUP (ORDER BY x)` and its kin.
//!
//! # How
//! The values that are not NULL are gathered by `array_agg` in the order asked for; a function of the registry
//! ([`telesto_sql_expr::functions::ordered`]) takes the result from the array.
//!
//! # Limits
//! All values of a group are held in memory, as by `array_agg`. One fraction; `percentile_cont` over numbers only.

use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::sql::sqlparser::ast;

use super::scope::Scope;
use super::{Binder, Typed};
use crate::fault;
use telesto_sql_expr::functions::ordered::{CONTINUOUS, DISCRETE, MODE};
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
        if function == CONTINUOUS {
            if !value.ty.is_number() {
                return Err(fault::unsupported("percentile_cont over other types than numbers"));
            }
            value = self.cast(value, &SqlType::Float8)?;
        }
        let order = self.sorts(&call.within_group, scope)?;
        let mut filter = value.expr.clone().is_not_null();
        if let Some(condition) = &call.filter {
            filter = Expr::and(self.condition(condition, scope, "FILTER")?, filter);
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
