//! Alternatives that each say what several columns equal: `(a, b) IN ((1, 2), (3, 4))`,
//! `a = 1 AND b = 2 OR a = 3 AND b = 4`.
//!
//! # Invariants
//! - A path by them reads the keys of each alternative and no others: those of a list for each
//!   column would be all pairs of their values, and what is read can conflict.
//! - They prove nothing: the condition stays in the filter.
//!
//! # Limits
//! Of columns that another condition gives single values or a list, that is used. One set of
//! alternatives a path.

use telesto_sql_expr::{Comparison, Expr, Node};
use telesto_sql_types::SqlType;

use super::{Access, Conditions, KeyValue, MAX_POINTS, Part, flatten};

/// What alternatives say of the columns that all of them speak of.
#[derive(Debug)]
pub(super) struct Rows {
    columns: Vec<usize>,
    /// Of each alternative the values, in the order of `columns`.
    values: Vec<Vec<KeyValue>>,
}

impl Rows {
    /// What such alternatives say; `None`: they have no column in common. `key_column` knows the
    /// columns, `usable` the values.
    pub(super) fn of(
        any: &[Expr],
        key_column: &dyn Fn(&Expr) -> Option<(usize, SqlType)>,
        usable: &dyn Fn(&Expr) -> bool,
    ) -> Option<Self> {
        let mut each = Vec::with_capacity(any.len());
        for alternative in any {
            let mut said: Vec<(usize, KeyValue)> = Vec::new();
            for condition in flatten(alternative.clone()) {
                let Node::Compare(Comparison::Eq, a, b) = &condition.node else { continue };
                let (column, value) = match (key_column(a), key_column(b)) {
                    (Some(column), _) if usable(b) => (column, b),
                    (_, Some(column)) if usable(a) => (column, a),
                    _ => continue,
                };
                if said.iter().all(|(other, _)| *other != column.0) {
                    said.push((column.0, KeyValue { expr: (**value).clone(), ty: column.1 }));
                }
            }
            if said.is_empty() {
                return None;
            }
            each.push(said);
        }
        let mut columns: Vec<usize> = each.first()?.iter().map(|(column, _)| *column).collect();
        columns.retain(|column| each.iter().all(|said| said.iter().any(|(own, _)| own == column)));
        if columns.is_empty() {
            return None;
        }
        let values = each.into_iter().map(|mut said| {
            said.retain(|(column, _)| columns.contains(column));
            said.sort_by_key(|(own, _)| columns.iter().position(|column| column == own));
            said.into_iter().map(|(_, value)| value).collect()
        });
        let values = values.collect();
        Some(Self { columns, values })
    }

    /// Their columns.
    pub(super) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// The values of a column, one of each alternative.
    fn list(&self, column: usize) -> Option<Part> {
        let at = self.columns.iter().position(|own| *own == column)?;
        Some(Part::In(self.values.iter().map(|values| values[at].clone()).collect()))
    }
}

impl Conditions {
    /// Adds to a path what alternatives say of the next column, those of `chosen` if some are;
    /// whether they say something.
    pub(super) fn add_rows<'c>(
        &'c self,
        access: &mut Access,
        column: usize,
        chosen: &mut Option<&'c Rows>,
        combinations: &mut usize,
    ) -> bool {
        let speak = |rows: &&Rows| rows.columns.contains(&column);
        let rows = match chosen {
            Some(rows) => Some(*rows).filter(speak),
            None => self.rows.iter().filter(speak).max_by_key(|rows| rows.columns.len()),
        };
        let Some((rows, list)) = rows.and_then(|rows| Some((rows, rows.list(column)?))) else {
            return false;
        };
        if chosen.is_none() {
            let many = combinations.saturating_mul(rows.values.len());
            if many > MAX_POINTS {
                return false;
            }
            *combinations = many;
            *chosen = Some(rows);
        }
        access.together.push(access.parts.len());
        access.parts.push(list);
        true
    }
}
