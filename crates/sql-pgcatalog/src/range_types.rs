//! `pg_range`: what the range types are made of.

use super::operator_classes::class_of;
use super::rows::RowSet;
use telesto_sql_types::RangeKind;

/// The rows, with PostgreSQL's function names.
pub(super) fn rows(out: &mut RowSet<'_>) {
    for kind in RangeKind::ALL {
        let [range, _, multirange, _] = kind.oids();
        let name = kind.name();
        let discrete = matches!(kind, RangeKind::Int4 | RangeKind::Int8 | RangeKind::Date);
        out.row()
            .set("rngtypid", range)
            .set("rngsubtype", kind.subtype().oid())
            .set("rngmultitypid", multirange)
            .set("rngsubopc", class_of(&kind.subtype()))
            .set("rngcanonical", if discrete { format!("{name}_canonical") } else { String::new() })
            .set("rngsubdiff", format!("{name}_subdiff"));
    }
}
