//! Keys of a join lead to the rows: what a hash join learns from its smaller side narrows the scan
//! of the other.
//!
//! # Protocol
//! ```text
//! HashJoin   build side read whole --its keys--> dynamic filter: key IN (…), least <= key <= greatest
//!   probe side: SourceExec --first batch asked for: reads the filter--> look-ups and ranges of an index instead of a scan
//! ```
//! DataFusion gives the filter to the scan when it plans (`FilterPushdownPhase::Post`) and fills it
//! before it asks the probe side for its first row (`HashJoinExec`, `DynamicFilterPhysicalExpr`).
//!
//! # Invariants
//! The join compares all the same: what is not understood here only costs reads. A filter that is
//! still empty says nothing.
//!
//! # Limits
//! Equality of columns, of several at a time too, and of integers of two widths; filters are read
//! once, when the scan begins.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, InListExpr, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_expr_common::physical_expr::snapshot_physical_expr;

use super::bind::natively_ordered;
use super::scan_ranges::{Constraint, UNPRICED_RANGES, lower, narrow, raise};
use super::together::Together;
use super::types::{arrow_type, datum_of};
use telesto_sql_catalog::Table;
use telesto_sql_catalog::sizes::TableSizes;
use telesto_sql_catalog::temp::is_temporary;
use telesto_sql_types::{Datum, SqlType};

/// Values of a column that are not the beginning of a unique key, at most, where no statistics tell
/// of how many rows they are: each may stand for many, read one by one.
const MAX_VALUES: usize = 100;
/// A look-up costs about as much as so many rows of a scan.
const LOOK_UP: u64 = 4;
/// Fewer values than these may be the rare ones, however few others there are.
const FEW: usize = 8;

/// What joins told a scan when it began.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Whether they told anything of a column.
    pub narrowed: bool,
    /// Rows of values that columns have together.
    pub together: Vec<Together>,
}

/// Adds to `constraints` what the filters say now of columns of `table`; what they say of several
/// at a time is given back. `positions`: the table's column at each place of the scan's output;
/// `sizes`: of the tables that foreign keys lead to, where all of the table would be read
/// otherwise; `analyzed`: the index is chosen by what it costs, whatever is said here.
pub(super) fn collect(
    table: &Table,
    positions: &[usize],
    filters: &[Arc<dyn PhysicalExpr>],
    sizes: Option<&TableSizes>,
    analyzed: bool,
    constraints: &mut BTreeMap<usize, Constraint>,
) -> Told {
    let mut found = BTreeMap::new();
    let mut told = Told::default();
    for filter in filters {
        if let Ok(now) = snapshot_physical_expr(Arc::clone(filter)) {
            walk(table, positions, &now, &mut found, &mut told.together);
        }
    }
    told.together.retain(|rows| analyzed || rows.values.len() <= MAX_VALUES);
    let mut narrowed = false;
    for (column, said) in found {
        let first = |index: &telesto_sql_catalog::Index| {
            index.columns.first().is_some_and(|part| part.column == column)
        };
        let unique =
            table.all_indexes().any(|index| (index.unique || index.id == 0) && first(index));
        let constraint = constraints.entry(column).or_default();
        let most = |values: &[Datum]| {
            sizes.is_some_and(|sizes| are_most(table, column, values.len(), sizes))
        };
        if let Some(values) = said.values
            && (analyzed
                || values.len() <= UNPRICED_RANGES
                    && (unique || values.len() <= MAX_VALUES && !most(&values)))
        {
            narrow(constraint, values);
            narrowed = true;
        }
        // A range of another index could hold every row, and each would be looked up.
        if analyzed || table.all_indexes().any(|index| index.id == 0 && first(index)) {
            for (end, inside) in said.lower {
                raise(&mut constraint.lower, end, inside);
                narrowed = true;
            }
            for (end, inside) in said.upper {
                lower(&mut constraint.upper, end, inside);
                narrowed = true;
            }
        }
    }
    Told { narrowed, ..told }
}

/// Whether so many values are so many of the rows that a foreign key leads to that most rows may
/// have one of them: every country leads to every address. What is known of the table that is led
/// to may be old, or of another session's temporary table.
fn are_most(table: &Table, column: usize, values: usize, sizes: &TableSizes) -> bool {
    if values < FEW {
        return false;
    }
    let mut keys = table.foreign_keys.iter().filter(|key| key.columns == [column]);
    keys.any(|key| {
        let known = sizes.known(key.referenced).filter(|_| !is_temporary(key.referenced.0));
        let values = values as u64;
        known.is_some_and(|rows| rows >= values && values * LOOK_UP > rows)
    })
}

/// The first column of an index that the filters are going to speak of.
pub(super) fn leading(
    table: &Table,
    positions: &[usize],
    filters: &[Arc<dyn PhysicalExpr>],
) -> Option<usize> {
    let mut columns = filters.iter().flat_map(|filter| {
        filter.children().into_iter().filter_map(|child| column(table, positions, child))
    });
    columns.find(|column| {
        table
            .all_indexes()
            .any(|index| index.columns.first().is_some_and(|part| part.column == *column))
    })
}

/// What a filter says of one column.
#[derive(Default)]
struct Said {
    values: Option<Vec<Datum>>,
    lower: Vec<(Datum, bool)>,
    upper: Vec<(Datum, bool)>,
}

impl Said {
    /// The column's value is one of these. The build side gives one for each of its rows, equal
    /// ones too.
    fn are(&mut self, mut values: Vec<Datum>, ty: &SqlType) {
        values.sort_by(|a, b| a.cmp_typed(b, ty));
        values.dedup_by(|a, b| a.cmp_typed(b, ty).is_eq());
        if let Some(before) = &self.values {
            values.retain(|value| before.binary_search_by(|b| b.cmp_typed(value, ty)).is_ok());
        }
        self.values = Some(values);
    }
}

fn walk(
    table: &Table,
    positions: &[usize],
    filter: &Arc<dyn PhysicalExpr>,
    found: &mut BTreeMap<usize, Said>,
    together: &mut Vec<Together>,
) {
    if let Some(list) = filter.downcast_ref::<InListExpr>() {
        if list.negated() {
            return;
        }
        let (columns, rows) = match row(list.expr()) {
            None => match column(table, positions, list.expr()) {
                Some(own) => (vec![own], of_list(table, &[(0, own)], list, Held::Alone)),
                None => return,
            },
            // What is no column of the table is not looked at: more rows may pass.
            Some(parts) => {
                let own = |(at, part)| Some((at, column(table, positions, part)?));
                let own: Vec<_> = parts.iter().enumerate().filter_map(own).collect();
                let rows = of_list(table, &own, list, Held::InRow);
                (own.into_iter().map(|(_, column)| column).collect(), rows)
            }
        };
        let Some(rows) = rows else { return };
        for (at, column) in columns.iter().enumerate() {
            let values = rows.iter().map(|row: &Vec<Datum>| row[at].clone()).collect();
            found.entry(*column).or_default().are(values, &table.columns[*column].ty);
        }
        if columns.len() > 1 {
            together.push(Together { columns, values: rows });
        }
        return;
    }
    let Some(binary) = filter.downcast_ref::<BinaryExpr>() else { return };
    if *binary.op() == Operator::And {
        walk(table, positions, binary.left(), found, together);
        walk(table, positions, binary.right(), found, together);
        return;
    }
    let Some(column) = column(table, positions, binary.left()) else { return };
    let Some(literal) = binary.right().downcast_ref::<Literal>() else { return };
    let Ok(Some(value)) = constant(table, column, literal.value()) else { return };
    let said = found.entry(column).or_default();
    match binary.op() {
        Operator::GtEq => said.lower.push((value, true)),
        Operator::Gt => said.lower.push((value, false)),
        Operator::LtEq => said.upper.push((value, true)),
        Operator::Lt => said.upper.push((value, false)),
        _ => {}
    }
}

/// How an item of a list holds the value of a place.
#[derive(Clone, Copy)]
enum Held {
    /// It is the value.
    Alone,
    /// It is a row of values.
    InRow,
}

/// The parts of the row that a join by several keys compares: `struct(a, b) IN (…)`.
fn row(expr: &Arc<dyn PhysicalExpr>) -> Option<&[Arc<dyn PhysicalExpr>]> {
    let call = expr.downcast_ref::<ScalarFunctionExpr>()?;
    (call.fun().name() == "struct").then(|| call.args())
}

/// The values of a list as rows, of the places and columns given; those that no row of the table
/// has are left out. `None`: one cannot be told.
fn of_list(
    table: &Table,
    own: &[(usize, usize)],
    list: &InListExpr,
    held: Held,
) -> Option<Vec<Vec<Datum>>> {
    let mut rows = Vec::with_capacity(list.len());
    'items: for item in list.list() {
        let literal = item.downcast_ref::<Literal>()?;
        let mut row = Vec::with_capacity(own.len());
        for (at, column) in own {
            let told = match (held, literal.value()) {
                (Held::Alone, value) => constant(table, *column, value),
                (Held::InRow, ScalarValue::Struct(fields)) => {
                    let part = fields.columns().get(*at)?;
                    let value = ScalarValue::try_from_array(part, 0).ok()?;
                    constant(table, *column, &value)
                }
                (Held::InRow, _) => return None,
            };
            match told.ok()? {
                Some(value) => row.push(value),
                None => continue 'items,
            }
        }
        rows.push(row);
    }
    Some(rows)
}

/// The table's column that an expression is, or is with more bits.
fn column(table: &Table, positions: &[usize], expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        let column = column(table, positions, cast.expr())?;
        let wider = cast.cast_type().is_signed_integer()
            && matches!(table.columns[column].ty, SqlType::Int2 | SqlType::Int4 | SqlType::Int8);
        return wider.then_some(column);
    }
    let at = positions.get(expr.downcast_ref::<Column>()?.index())?;
    let column = table.columns.get(*at)?;
    natively_ordered(&column.ty).then_some(*at)
}

/// A constant as a value of the column; `None`: no row's value equals it. An error: it cannot be
/// told.
fn constant(table: &Table, column: usize, value: &ScalarValue) -> Result<Option<Datum>, ()> {
    if value.is_null() {
        return Ok(None);
    }
    let ty = &table.columns[column].ty;
    let wanted = arrow_type(ty);
    if value.data_type() == wanted {
        return datum_of(value, ty).map(Some).map_err(|_| ());
    }
    if !value.data_type().is_signed_integer() || !wanted.is_signed_integer() {
        return Err(());
    }
    match value.cast_to(&wanted) {
        Ok(fits) if !fits.is_null() => datum_of(&fits, ty).map(Some).map_err(|_| ()),
        _ => Ok(None),
    }
}
