//! Which query an aggregate belongs to: the innermost one whose columns it uses, as in PostgreSQL.
//!
//! `SELECT (SELECT max(s.id)) FROM s` has one row: the aggregate is the outer query's, which
//! computes it beside its groups. The subquery sees it as a column of an outer row.

use std::sync::Arc;

use arrow::datatypes::Field;
use datafusion::common::Column;
use datafusion::logical_expr::Expr;
use datafusion::sql::sqlparser::ast;

use super::scope::{Folds, OuterFold, Scope};
use super::{Binder, Typed};
use crate::types::arrow_type;
use crate::{fault, outer};
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// The aggregate call as a column of an outer query, when it belongs there. `parts` are its
    /// arguments, bound in `scope`, with what it sorts by and its filter.
    pub(super) fn outer_fold(
        &self,
        call: &ast::Function,
        parts: &[Expr],
        scope: &Scope<'_>,
    ) -> Result<Option<Typed>> {
        let Some(level) = level(parts, scope)?.filter(|level| *level > 0) else { return Ok(None) };
        let mut levels = std::iter::successors(Some(scope), |scope| scope.parent);
        let Some(own) = levels.nth(level) else { return Ok(None) };
        let folds = match own.folds {
            Folds::Taken(folds) => folds,
            Folds::Refused(clause) => {
                let message = format!("aggregate functions are not allowed in {clause}");
                return Err(fault::new("42803", message));
            }
        };
        let Typed { expr, ty, .. } = self.function(call, own)?;
        let known = folds.borrow().iter().find(|fold| fold.expr == expr).cloned();
        let column = match known {
            Some(fold) => fold.column,
            None => {
                let column = Column::new_unqualified(self.unique("outer fold#"));
                folds.borrow_mut().push(OuterFold { column: column.clone(), expr });
                column
            }
        };
        let field = Field::new(column.name.clone(), arrow_type(&ty), true);
        Ok(Some(Typed::of(Expr::OuterReferenceColumn(Arc::new(field), column), ty)))
    }
}

/// The innermost level whose columns or aggregates are used: 0 is that of `scope`.
fn level(parts: &[Expr], scope: &Scope<'_>) -> Result<Option<usize>> {
    let mut used = Vec::new();
    for part in parts {
        let own = |node: &Expr| matches!(node, Expr::Column(_) | Expr::AggregateFunction(_));
        if holds(part, own) {
            return Ok(Some(0));
        }
        outer::within(part, &mut used).map_err(fault::from_datafusion)?;
    }
    Ok(used.iter().filter_map(|(column, _)| scope.level_of(column)).min())
}

/// Refuses what cannot stand in an aggregate's arguments.
pub(super) fn refuse_inside(parts: &[Expr]) -> Result<()> {
    let any = |wanted: fn(&Expr) -> bool| parts.iter().any(|part| holds(part, wanted));
    if any(|node| matches!(node, Expr::AggregateFunction(_))) {
        return Err(fault::new("42803", "aggregate function calls cannot be nested"));
    }
    if any(|node| matches!(node, Expr::WindowFunction(_))) {
        let message = "aggregate function calls cannot contain window function calls";
        return Err(fault::new("42803", message));
    }
    if any(|node| matches!(node, Expr::Unnest(_))) {
        let message = "aggregate function calls cannot contain set-returning function calls";
        return Err(fault::new("0A000", message));
    }
    Ok(())
}

fn holds(expr: &Expr, wanted: impl Fn(&Expr) -> bool) -> bool {
    use datafusion::common::tree_node::TreeNode;
    expr.exists(|node| Ok(wanted(node))).unwrap_or(true)
}
