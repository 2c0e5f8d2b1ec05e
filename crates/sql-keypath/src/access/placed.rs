//! What a statement that changes rows knows of a table whose rows are placed by the values of a
//! column, without saying it: each row has a value that the rule names.
//!
//! # Invariants
//! - A path that goes by it holds every row: no row has another value, and a rule that changes is
//!   another definition.
//!
//! # Limits
//! Only where the statement's conditions say nothing of the column.

use telesto_sql_catalog::Table;
use telesto_sql_catalog::by_row::ByRow;
use telesto_sql_expr::Expr;

use super::{Conditions, KeyValue, Part};

impl Conditions {
    /// With that each row of `table` has a value of the rule, if it has one: rows are looked for
    /// under each of them.
    #[must_use]
    pub fn placed_in(mut self, table: &Table) -> Self {
        let Some(rule) = &table.placement.by_row else { return self };
        let Some(at) = table.columns.iter().position(|column| column.id == rule.column) else {
            return self;
        };
        let mut asked = (self.eq.iter().map(|(column, ..)| column))
            .chain(self.ranges.iter().map(|(column, ..)| column))
            .chain(self.prefixes.iter().map(|(column, _)| column))
            .chain(self.rows.iter().flat_map(|rows| rows.columns()));
        if asked.any(|column| *column == at) {
            return self;
        }
        let ty = &table.columns[at].ty;
        let value = |value: &String| {
            let datum = ByRow::datum(ty, value)?;
            Some(KeyValue { expr: Expr::constant(datum, ty.clone()), ty: ty.clone() })
        };
        let values = rule.values.keys().filter_map(value).collect();
        // It is no condition of the statement that a path could prove.
        self.eq.push((at, Part::In(values), usize::MAX));
        self
    }
}
