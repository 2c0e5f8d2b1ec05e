//! `array[i]`, `array[low:high]`, `json['key']`, and a character of a name.
//!
//! # Limits
//! Arrow's lists have one dimension: an array is subscripted, or sliced, once (0A000).

use datafusion::sql::sqlparser::ast;

use super::scope::Scope;
use super::{Binder, Typed};
use crate::fault;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// A value behind subscripts.
    pub(super) fn access(
        &self,
        root: &ast::Expr,
        chain: &[ast::AccessExpr],
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        /// Arrow's lists have one dimension.
        const SEVERAL: &str = "a query over multi-dimensional arrays";
        let mut typed = self.expr(root, scope)?;
        let (mut taken, mut sliced) = (false, false);
        for step in chain {
            typed = match step {
                ast::AccessExpr::Subscript(ast::Subscript::Index { index }) => {
                    let array = typed.ty.element_type().is_some();
                    if sliced || (taken && !array && typed.ty != SqlType::Jsonb) {
                        return Err(fault::unsupported(SEVERAL));
                    }
                    taken |= array;
                    let index = self.expr(index, scope)?;
                    match typed.ty {
                        SqlType::Name => self.character(typed, index)?,
                        _ => self.subscript(typed, index)?,
                    }
                }
                ast::AccessExpr::Subscript(ast::Subscript::Slice {
                    lower_bound,
                    upper_bound,
                    stride: None,
                }) => {
                    if taken || sliced {
                        return Err(fault::unsupported(SEVERAL));
                    }
                    sliced = true;
                    // A bound that is left out is the array's own.
                    let bound = |given: &Option<ast::Expr>, end: i32| match given {
                        Some(expr) => self.position(self.expr(expr, scope)?),
                        None => Ok(Typed::int(end)),
                    };
                    let low = bound(lower_bound, i32::MIN)?;
                    let high = bound(upper_bound, i32::MAX)?;
                    self.call("array#slice", vec![typed, low, high])?
                }
                _ => return Err(fault::unsupported("this kind of field access")),
            };
        }
        Ok(typed)
    }

    /// `name[0]`: a name is an array of "char" that counts from 0; behind its end is nothing.
    fn character(&self, name: Typed, index: Typed) -> Result<Typed> {
        let text = self.cast(name, &SqlType::Text)?;
        let place = self.binary("+", index, Typed::int(1))?;
        let found = self.call("substr", vec![text, place.clone(), Typed::int(1)])?;
        let known = self.binary(">", place, Typed::int(0))?.expr;
        let known = known.and(self.binary("<>", found.clone(), Typed::text(String::new()))?.expr);
        let found = self.cast(found, &SqlType::InternalChar)?;
        let nothing = Self::null_of(&SqlType::InternalChar)?;
        let chosen = datafusion::logical_expr::when(known, found.expr)
            .otherwise(nothing)
            .map_err(fault::from_datafusion)?;
        Ok(Typed::of(chosen, SqlType::InternalChar))
    }
}
