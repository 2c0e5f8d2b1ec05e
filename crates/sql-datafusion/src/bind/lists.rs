//! Lists of values that one is compared with, and long chains of tests.
//!
//! # Invariants
//! - A list of values of one type is one operator, which looks a row up in a set.
//! - Tests that are joined make a tree of logarithmic depth: DataFusion walks it by functions that
//!   call themselves.

use datafusion::logical_expr::Expr;

use super::query::has_subquery;
use super::{Binder, Typed};
use crate::types::TypeShape as _;
use telesto_sql_expr::comparison_type;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// Whether `left` equals one of `items`; `None` without items.
    pub(super) fn equal_to_one(&self, left: Typed, items: Vec<Typed>) -> Result<Option<Expr>> {
        let first = items.first().and_then(|item| comparison_type(&left.ty, &item.ty));
        let alike = first.filter(|ty| {
            items.len() > 1
                && items.iter().all(|item| {
                    comparison_type(&left.ty, &item.ty).as_ref() == Some(ty)
                        && !has_subquery(&item.expr)
                })
        });
        let Some(ty) = alike.filter(|_| !left.ty.is_unknown()) else {
            let equal = items
                .into_iter()
                .map(|item| self.binary("=", left.clone(), item).map(|equal| equal.expr));
            return Ok(joined(equal.collect::<Result<_>>()?, Expr::or));
        };
        // One list, which is a set to the operators and a look-up a row; a chain of comparisons
        // would be walked for each.
        let value = self.comparable(self.coerce(left, &ty, "IN")?)?;
        let items = items.into_iter().map(|item| {
            telesto_sql_types::interrupt::check()?;
            self.comparable(self.coerce(item, &ty, "IN")?)
        });
        Ok(Some(value.in_list(items.collect::<Result<_>>()?, false)))
    }
}

/// The tests joined by AND or OR, as a tree of little depth; `None` without tests.
pub(super) fn joined(mut tests: Vec<Expr>, join: fn(Expr, Expr) -> Expr) -> Option<Expr> {
    while tests.len() > 1 {
        let mut pairs = Vec::with_capacity(tests.len().div_ceil(2));
        let mut left = tests.into_iter();
        while let Some(first) = left.next() {
            pairs.push(match left.next() {
                Some(second) => join(first, second),
                None => first,
            });
        }
        tests = pairs;
    }
    tests.pop()
}
