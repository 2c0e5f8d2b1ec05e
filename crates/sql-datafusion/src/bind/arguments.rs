//! The arguments of a function in FROM.
//!
//! # Limits
//! By position only.

use super::scope::Scope;
use super::{Binder, Typed};
use telesto_sql_expr::is_void_parameter;
use telesto_sql_parser::sqlparser::ast;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// Binds them; a parameter declared void is none (`{? = call f(?)}` of pgjdbc).
    pub(super) fn table_arguments(
        &self,
        from: &[&ast::Expr],
        scope: &Scope<'_>,
    ) -> Result<Vec<Typed>> {
        let mut args = Vec::with_capacity(from.len());
        for arg in from {
            let bound = self.expr(arg, scope)?;
            if !is_void_parameter(arg, &bound.ty) {
                args.push(bound);
            }
        }
        Ok(args)
    }
}
