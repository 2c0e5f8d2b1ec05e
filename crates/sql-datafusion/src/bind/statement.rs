//! Whole statements: the outermost query and what its result looks like.

use datafusion::common::Column;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast;

use super::scope::{Relation, ScopeColumn};
use super::{Binder, Typed};
use crate::fault;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// A whole statement. Columns of the reg* types become text: the names they are shown by are in the statement's
    /// catalog, which whoever writes the result out does not have.
    ///
    /// Untyped literals and parameters in the select list take the types `wanted`, by position; without one, text.
    pub(crate) fn statement(&self, query: &ast::Query, wanted: &[SqlType]) -> Result<Relation> {
        self.wanted.replace(wanted.to_vec());
        let relation = self.query(query, None)?;
        if !relation.columns.iter().any(|column| column.ty.with_names().is_some()) {
            return Ok(relation);
        }
        let mut exprs = Vec::with_capacity(relation.columns.len());
        let mut columns = Vec::with_capacity(relation.columns.len());
        for column in relation.columns {
            let name = column.column.name.clone();
            let mut typed = Typed::of(Expr::Column(column.column.clone()), column.ty.clone());
            if let Some(named) = column.ty.with_names() {
                typed = self.cast(typed, &named)?;
            }
            exprs.push(typed.expr.alias(name.clone()));
            let plain = Column::new_unqualified(name);
            columns.push(ScopeColumn { ty: typed.ty, column: plain, ..column });
        }
        let plan = LogicalPlanBuilder::from(relation.plan)
            .project(exprs)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        Ok(Relation { plan, columns })
    }
}
