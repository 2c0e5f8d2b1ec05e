//! Interval literals, and casts to interval types that have fields or a precision.

use datafusion::sql::sqlparser::ast;

use super::scope::Scope;
use super::{Binder, Typed};
use telesto_sql_expr::type_name::literal_fields;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    pub(super) fn interval(&self, interval: &ast::Interval, scope: &Scope<'_>) -> Result<Typed> {
        let typed = self.expr(&interval.value, scope)?;
        match literal_fields(interval) {
            Some(fields) => self.interval_of_fields(typed, fields),
            None => self.cast(typed, &SqlType::Interval),
        }
    }

    /// A cast to an interval type that has fields or a precision.
    pub(super) fn interval_of_fields(
        &self,
        value: Typed,
        (fields, precision): (String, i32),
    ) -> Result<Typed> {
        let value = match value.ty {
            SqlType::Text | SqlType::Varchar(_) => value,
            SqlType::Unknown => self.cast(value, &SqlType::Text)?,
            _ => self.cast(value, &SqlType::Interval)?,
        };
        self.call("interval_of_fields", vec![value, Typed::text(fields), Typed::int(precision)])
    }
}
