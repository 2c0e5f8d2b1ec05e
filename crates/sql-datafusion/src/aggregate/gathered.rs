//! `range_agg`: the multirange of all ranges, or multiranges, of a group.
//!
//! # Invariants
//! A group of empty ranges has the empty multirange; only one without a value has NULL.

use telesto_sql_expr::value::multirange_of;
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::held::Growing;
use telesto_sql_types::interrupt::Steps;
use telesto_sql_types::{Datum, Multirange, SqlType};

/// The multirange of the first values of all these rows.
pub(super) fn ranges(rows: &[Vec<Datum>], ty: &SqlType) -> Result<Datum> {
    let SqlType::Multirange(kind) = ty else {
        return Err(Error::internal("range_agg gives a multirange"));
    };
    let (mut parts, mut steps, mut made) = (Vec::new(), Steps::default(), Growing::default());
    for row in rows {
        steps.step()?;
        match &row[0] {
            Datum::Range(range) => {
                made.add(range.held())?;
                parts.push(range.as_ref().clone());
            }
            other => {
                let ranges = multirange_of(other)?;
                made.add(ranges.held())?;
                parts.extend_from_slice(ranges.parts());
            }
        }
    }
    Multirange::new(*kind, parts).map(Datum::multirange)
}
