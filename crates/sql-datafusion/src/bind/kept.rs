//! What gets into a plan that is to be kept ([`crate::keeping`]) and holds for some executions
//! only.

use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::logical_expr::Expr;

use super::Binder;
use crate::{fault, parameter};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

/// Texts of dates and times that are another one whenever they are read.
const PASSING: [&str; 4] = ["now", "today", "tomorrow", "yesterday"];

impl Binder<'_> {
    /// An expression whose value the plan is made for, with the values that parameters have now.
    pub(super) fn fixed(&self, expr: Expr) -> Result<Expr> {
        let mut parameters = self.parameters.borrow_mut();
        let filled = expr.transform_up(|part| {
            let Some((number, value)) = parameter::of(&part) else {
                return Ok(Transformed::no(part));
            };
            parameters.fixed.insert(number);
            Ok(Transformed::yes(Expr::Literal(value.map_err(fault::to_datafusion)?, None)))
        });
        Ok(filled.map_err(fault::from_datafusion)?.data)
    }

    /// Notes a constant of type `ty` that is another time whenever its text is read.
    pub(super) fn note_passing(&self, text: &str, ty: &SqlType) {
        use SqlType as T;
        let mut parameters = self.parameters.borrow_mut();
        if parameters.seat.is_none() {
            return;
        }
        // What takes no words of time itself may hold what does: arrays, records, ranges, domains.
        let is_plain = matches!(
            ty,
            T::Bool | T::Int2 | T::Int4 | T::Int8 | T::Float4 | T::Float8 | T::Numeric(_) | T::Text
        ) || ty.is_string();
        let text = text.to_ascii_lowercase();
        let passes = matches!(ty, T::TimeTz(_)) || PASSING.iter().any(|word| text.contains(word));
        parameters.passes |= passes && !is_plain;
    }
}
