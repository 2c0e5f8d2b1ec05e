//! `ARRAY(SELECT …)`.
//!
//! # Limits
//! A subquery that gives arrays is refused (0A000): lists have one dimension here.

use datafusion::common::ScalarValue;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast;

use super::from::coalesce;
use super::scope::Scope;
use super::{Binder, Typed};
use crate::aggregate::{Fold, folding};
use crate::apply::Shape;
use crate::fault;
use crate::types::{TypeShape, arrow_type};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// `ARRAY(SELECT …)`: the subquery's column gathered in its order, `{}` when it has no rows.
    pub(super) fn array_subquery(&self, query: &ast::Query, scope: &Scope<'_>) -> Result<Typed> {
        let relation = self.query(query, Some(scope))?;
        let [column] = relation.columns.as_slice() else {
            return Err(fault::syntax("subquery must return only one column"));
        };
        let element = column.ty.clone();
        if element.element().is_some() {
            return Err(fault::unsupported("ARRAY(…) of a subquery that gives arrays"));
        }
        let ty = element.clone().array_of();
        if query.order_by.is_some()
            && let Some(call) =
                self.applied(Shape::Array, &relation, &arrow_type(&ty), None, false, scope)?
        {
            return Ok(Typed::of(call, ty));
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
        // A correlated subquery without matching rows comes back as null from the join it is turned into.
        let empty = ScalarValue::List(ScalarValue::new_list_nullable(
            &[],
            &arrow_type(ty.element().unwrap_or(&SqlType::Text)),
        ));
        let gathered = self.scalar_of(relation, &ty, scope)?;
        let whole = coalesce(gathered, Expr::Literal(empty, None))?;
        Ok(Typed::of(whole, ty))
    }
}
