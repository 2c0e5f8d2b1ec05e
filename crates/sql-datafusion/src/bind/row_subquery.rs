//! A row that is compared with the rows of a subquery: `(a, b) = (SELECT x, y …)`,
//! `(a, b) [NOT] IN (SELECT x, y …)`.
//!
//! ```text
//! nothing of the query around in it:   a call over (a, b) that runs it once ([`crate::apply`])
//!                                      IN that a join gives is a join, as where it is correlated
//! correlated:  (a, b) = (SELECT x, y FROM t …)   ─>   (SELECT (a, b) = ("row#1", "row#2") FROM (SELECT x, y FROM t …) "row#" ("row#1", "row#2"))
//!              IN: `Binder::row_in_subquery`
//! ```
//!
//! # Invariants
//! A subquery that names nothing of the query around it is computed once, whatever it calls.
//! Without a row in it `=` is NULL and IN is false; with more than one `=` is 21000.

use arrow::datatypes::DataType;
use datafusion::logical_expr::{Expr, Operator};
use datafusion::sql::sqlparser::ast::{self, Ident};

use super::operators::native;
use super::scope::{Relation, Scope};
use super::{Binder, Typed};
use crate::apply::Shape;
use crate::{fault, outer};
use telesto_sql_expr::{comparison_type, row_of};
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// The comparison of a row with a subquery; `None`: it is none.
    pub(super) fn row_and_subquery(
        &self,
        left: &ast::Expr,
        op: &ast::BinaryOperator,
        right: &ast::Expr,
        scope: &Scope<'_>,
    ) -> Result<Option<Typed>> {
        let (Some(row), ast::Expr::Subquery(query)) = (row_of(left), right) else {
            return Ok(None);
        };
        // Its width is asked for before anything is compared.
        let relation = self.as_wide(row.len(), query, scope)?;
        let native = native(&op.to_string())
            .filter(|op| !matches!(op, Operator::IsDistinctFrom | Operator::IsNotDistinctFrom));
        if let Some(native) = native
            && !self.is_correlated(&relation, scope)?
        {
            let shape = Shape::Row(native, row.len());
            if let Some(call) = self.row_call(&row, &op.to_string(), shape, relation, scope)? {
                return Ok(Some(Typed::bool(call)));
            }
        }
        let names: Vec<Ident> = (1..=row.len()).map(|n| quoted(&format!("row#{n}"))).collect();
        let columns = names.iter().cloned().map(ast::Expr::Identifier).collect();
        let text = format!(
            "SELECT {left} {op} {} FROM ({query}) AS {} ({})",
            ast::Expr::Tuple(columns),
            quoted("row#"),
            names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        );
        let rewritten = telesto_sql_parser::syntax::read_query(&text).map_err(|unread| {
            unread.or_else(|error| fault::syntax(&format!("a row and a subquery: {error}")))
        })?;
        self.scalar_subquery(&rewritten, scope).map(Some)
    }

    /// The subquery, which has as many columns as there are values beside it: others are refused.
    pub(super) fn as_wide(
        &self,
        width: usize,
        query: &ast::Query,
        scope: &Scope<'_>,
    ) -> Result<Relation> {
        // What is bound in between does not stand where the comparison stands.
        let place = self.place.take();
        let relation = self.query(query, Some(scope));
        self.place.set(place);
        let relation = relation?;
        let columns = relation.columns.len();
        if columns == width {
            return Ok(relation);
        }
        let few = if columns < width { "few" } else { "many" };
        Err(fault::syntax(&format!("subquery has too {few} columns")))
    }

    /// Whether a subquery names something of the queries around it.
    pub(super) fn is_correlated(&self, relation: &Relation, scope: &Scope<'_>) -> Result<bool> {
        let references = outer::references(&relation.plan).map_err(fault::from_datafusion)?;
        Ok(references.iter().any(|(column, _)| scope.level_of(column).is_some()))
    }

    /// The comparison of a row with a subquery that is run once; `None`: the statement is only
    /// described.
    pub(super) fn row_call(
        &self,
        row: &[ast::Expr],
        op: &str,
        shape: Shape,
        relation: Relation,
        scope: &Scope<'_>,
    ) -> Result<Option<Expr>> {
        let mut left = Vec::with_capacity(row.len());
        let mut types = Vec::with_capacity(row.len());
        for (value, column) in row.iter().zip(&relation.columns) {
            let value = self.expr(value, scope)?;
            let ty = comparison_type(&value.ty, &column.ty).ok_or_else(|| {
                let column = Typed::of(Expr::Column(column.column.clone()), column.ty.clone());
                self.no_such(op, &[value.clone(), column], true)
            })?;
            left.push(self.comparable(self.coerce(value, &ty, op)?)?);
            types.push(ty);
        }
        let relation = self.comparable_relation(self.conform(relation, &types, op)?)?;
        self.applied(shape, &relation, &DataType::Boolean, &left, false, scope)
    }
}

fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}
