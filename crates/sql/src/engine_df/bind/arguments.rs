//! The arguments of a function in FROM.
//!
//! # Limits
//! By position only.

use super::scope::Scope;
use super::{Binder, Typed};
use crate::error::Result;
use crate::expr::is_void_parameter;
use crate::sqlparser::ast;

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
