//! `BETWEEN`: two comparisons.

use datafusion::logical_expr::Expr;
use datafusion::sql::sqlparser::ast;

use super::expr::negate;
use super::scope::Scope;
use super::{Binder, Typed};
use crate::waiting;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// `expr BETWEEN low AND high`. As in PostgreSQL the expression stands in both comparisons: a
    /// call that waits is made for each.
    pub(super) fn between(
        &self,
        expr: &ast::Expr,
        low: &ast::Expr,
        high: &ast::Expr,
        negated: bool,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        let value = self.expr(expr, scope)?;
        let again =
            if waiting::holds(&value.expr) { self.expr(expr, scope)? } else { value.clone() };
        // One after the other: a parameter that both have is of the type that the first asks for.
        let low = self.expr(low, scope)?;
        let above = self.binary(">=", value, low)?.expr;
        let high = self.expr(high, scope)?;
        let below = self.binary("<=", again, high)?.expr;
        Ok(Typed::bool(negate(Expr::and(above, below), negated)))
    }
}
