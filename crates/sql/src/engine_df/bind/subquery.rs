//! Subqueries in expressions: as plan nodes that DataFusion turns into joins, or as calls for each row
//! ([`crate::engine_df::apply`]).

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{Column, Spans};
use datafusion::logical_expr::expr::{InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::{Expr, Subquery};
use datafusion::sql::sqlparser::ast;

use super::expr::negate;
use super::scope::{Relation, Scope};
use super::{Binder, Typed};
use crate::engine_df::apply::{self, Shape};
use crate::engine_df::fault;
use crate::engine_df::types::arrow_type;
use crate::error::Result;
use crate::types::SqlType;

impl Binder<'_> {
    pub(super) fn scalar_subquery(&self, query: &ast::Query, scope: &Scope<'_>) -> Result<Typed> {
        let relation = self.query(query, Some(scope))?;
        let [column] = relation.columns.as_slice() else {
            return Err(fault::syntax("subquery must return only one column"));
        };
        let ty = column.ty.clone();
        let relation = self.at_most_one_row(relation)?;
        Ok(Typed::of(self.scalar_of(relation, &ty, scope), ty))
    }

    /// The only value of a one-column relation of at most one row.
    pub(super) fn scalar_of(&self, relation: Relation, ty: &SqlType, scope: &Scope<'_>) -> Expr {
        match self.applied(Shape::Scalar, &relation, &arrow_type(ty), None, scope) {
            Some(call) => call,
            None => Expr::ScalarSubquery(subquery_of(relation)),
        }
    }

    /// The subquery as a call for each row, when it is correlated and the join form is not wanted.
    pub(super) fn applied(
        &self,
        shape: Shape,
        relation: &Relation,
        returns: &DataType,
        left: Option<&Expr>,
        scope: &Scope<'_>,
    ) -> Option<Expr> {
        let mut outer: Vec<(Column, Expr)> = Vec::new();
        for reference in relation.plan.all_out_ref_exprs() {
            let Expr::OuterReferenceColumn(_, column) = &reference else { continue };
            if outer.iter().any(|(known, _)| known == column) {
                continue;
            }
            // A column of this level, or of one further out: then it is an outer reference here as well.
            let own = scope.columns.iter().any(|known| known.column == *column);
            let value = if own { Expr::Column(column.clone()) } else { reference.clone() };
            outer.push((column.clone(), value));
        }
        if outer.is_empty() {
            return None;
        }
        self.correlated.set(true);
        let state = self.apply.as_ref()?;
        let (columns, mut args): (Vec<Column>, Vec<Expr>) = outer.into_iter().unzip();
        args.extend(left.cloned());
        let plan = relation.plan.clone();
        let call = apply::call(self.next_instance(), shape, plan, columns, returns.clone(), state);
        Some(call.call(args))
    }

    pub(super) fn in_subquery(
        &self,
        left: Typed,
        op: &str,
        all: bool,
        query: &ast::Query,
        negated: bool,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        let relation = self.query(query, Some(scope))?;
        let [column] = relation.columns.as_slice() else {
            return Err(fault::syntax("subquery has too many columns"));
        };
        let ty = self.common_type(&[left.ty.clone(), column.ty.clone()], op)?;
        let relation = self.conform(relation, std::slice::from_ref(&ty), op)?;
        let left = self.comparable(self.coerce(left, &ty, op)?)?;
        let relation = self.comparable_relation(relation)?;
        let wants = matches!((op, all), ("=", false) | ("<>", true));
        let plain = if wants {
            self.applied(Shape::In, &relation, &DataType::Boolean, Some(&left), scope)
        } else {
            None
        };
        if let Some(call) = plain {
            return Ok(Typed::bool(negate(call, negated != all)));
        }
        let subquery = subquery_of(relation);
        let expr = match (op, all) {
            ("=", false) => Expr::InSubquery(InSubquery::new(Box::new(left), subquery, negated)),
            ("<>", true) => Expr::InSubquery(InSubquery::new(Box::new(left), subquery, !negated)),
            (op, all) => {
                let op = super::operators::native(op)
                    .ok_or_else(|| fault::unsupported(&format!("{op} ANY (subquery)")))?;
                let quantifier = if all { SetQuantifier::All } else { SetQuantifier::Any };
                let compared = Expr::SetComparison(SetComparison::new(
                    Box::new(left),
                    subquery,
                    op,
                    quantifier,
                ));
                negate(compared, negated)
            }
        };
        Ok(Typed::bool(expr))
    }
}

/// A subquery node over a bound relation.
pub(crate) fn subquery_of(relation: Relation) -> Subquery {
    let outer_ref_columns = relation.plan.all_out_ref_exprs();
    Subquery { subquery: Arc::new(relation.plan), outer_ref_columns, spans: Spans::new() }
}
