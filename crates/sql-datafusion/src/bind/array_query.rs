//! `ARRAY(SELECT …)`.
//!
//! # Limits
//! A subquery that gives int2vector or oidvector is refused (0A000).

use std::sync::Arc;

use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast;

use super::from::coalesce;
use super::scope::Scope;
use super::{Binder, Typed};
use crate::aggregate::{Fold, folding};
use crate::apply::Shape;
use crate::arrays::{ArrayWork, gathered_type};
use crate::fault;
use crate::types::{TypeShape, arrow_type, list_type, scalar};
use crate::udf;
use telesto_sql_types::error::Result;
use telesto_sql_types::{ArrayValue, Datum, SqlType};

impl Binder<'_> {
    /// `ARRAY(SELECT …)`: the subquery's column gathered in its order, `{}` when it has no rows.
    pub(super) fn array_subquery(&self, query: &ast::Query, scope: &Scope<'_>) -> Result<Typed> {
        let relation = self.query(query, Some(scope))?;
        let [column] = relation.columns.as_slice() else {
            return Err(fault::syntax("subquery must return only one column"));
        };
        let element = column.ty.clone();
        let Some(ty) = gathered_type(&element) else {
            return Err(fault::unsupported("ARRAY(…) of a subquery that gives vectors"));
        };
        if query.order_by.is_some()
            && let Some(rows) =
                self.applied(Shape::Array, &relation, &list_type(&element), &[], false, scope)?
        {
            let list = vec![element.clone().array_of()];
            let call = udf::array_call(ArrayWork::Rows { element }, list, ty.clone());
            return Ok(Typed::of(call.call(vec![rows]), ty));
        }
        let value = Expr::Column(column.column.clone());
        let gather = folding(Fold::ArrayOrEmpty, &[element], &ty, &self.evaluation());
        let call = Expr::AggregateFunction(AggregateFunction::new_udf(
            gather,
            vec![value],
            false,
            None,
            Vec::new(),
            None,
        ));
        let mut relation = relation;
        let name = self.unique("array#");
        relation.plan = LogicalPlanBuilder::from(relation.plan)
            .aggregate(Vec::<Expr>::new(), vec![call.alias(&name)])
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        relation.columns.clear();
        // A correlated subquery without matching rows comes back as null from the join it is turned
        // into.
        let inner = ty.element().cloned().unwrap_or(SqlType::Text);
        let empty = scalar(&Datum::Array(Arc::new(ArrayValue::new(inner, Vec::new()))), &ty)?;
        let gathered = self.scalar_of(relation, &arrow_type(&ty), scope)?;
        let whole = coalesce(gathered, Expr::Literal(empty, None))?;
        Ok(Typed::of(whole, ty))
    }
}
