//! From filters to key ranges: which index a scan reads, and which part of it.
//!
//! # Invariants
//! A range holds every row the filters let through; DataFusion checks the filters again on what
//! comes. So a filter that is not understood only costs reads, never an answer.
//!
//! # Limits
//! Understood are comparisons of a column with constants, IN lists and their OR form, on types that
//! Arrow orders as PostgreSQL does, on numeric and char(n). Partial indexes are not used.

use std::collections::BTreeMap;

use bytes::Bytes;
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use telesto_common::DatabaseId;
use telesto_common::key::{Direction, KeyRange, successor};

use super::bind::natively_ordered;
use super::scan_costs::cost;
use super::together::{Prefixes, Together};
use super::types::datum_of;
use super::{decimal, sort_key};
use telesto_sql_catalog::codec::{self, EntryCodec};
use telesto_sql_catalog::{Index, IndexColumn, Table};
use telesto_sql_plan::MAX_BEHIND;
use telesto_sql_plan::estimate::Shape;
use telesto_sql_plan::watch::Asked;
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, SqlType};

/// What a whole unique key counts.
pub(super) const UNIQUE: u32 = 1000;
/// Rows of a table that is never scanned where an index serves: what is not read cannot conflict.
const SMALL: f64 = 10_000.0;
/// Ranges one scan reads at most; lists that would make more do not narrow it.
pub(super) const MAX_RANGES: usize = 10_000;
/// The same where nothing is known of the table, so that nothing says whether a scan costs less.
pub(super) const UNPRICED_RANGES: usize = 1000;

/// One end of a range of values.
type Bound = Option<(Datum, bool)>;

/// What the filters say of one column.
#[derive(Clone, Debug, Default)]
pub(super) struct Constraint {
    /// The only values possible.
    pub values: Option<Vec<Datum>>,
    /// Lower end and whether it is inside.
    pub lower: Bound,
    /// Upper end and whether it is inside.
    pub upper: Bound,
}

/// How a scan reads its table.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// Number of the index; 0 for the table itself.
    pub index: u32,
    /// What to read, in order.
    pub ranges: Vec<KeyRange>,
    /// Rows to look up by their whole primary keys, in order, instead of ranges.
    pub points: Vec<Bytes>,
    /// How much of the table that is.
    pub part: Part,
    /// What EXPLAIN shows.
    pub shown: String,
}

/// How much of a table a scan reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of it.
    Whole,
    /// A row for each range or point, at most.
    One,
    /// Some rows.
    Some,
}

/// Whether the filter can narrow a scan of `table`.
pub(crate) fn understands(table: &Table, filter: &Expr) -> bool {
    let mut found = BTreeMap::new();
    collect(table, filter, &mut found);
    !found.is_empty()
}

/// What the filters say of the table's columns.
pub(crate) fn constraints(table: &Table, filters: &[Expr]) -> BTreeMap<usize, Constraint> {
    let mut constraints = BTreeMap::new();
    for filter in filters {
        collect(table, filter, &mut constraints);
    }
    constraints
}

/// The columns that they are about.
pub(crate) fn asked(constraints: &BTreeMap<usize, Constraint>) -> Asked {
    let equal = constraints.iter().filter(|(_, said)| said.values.is_some());
    let ranges =
        constraints.iter().filter(|(_, said)| said.lower.is_some() || said.upper.is_some());
    Asked::of(equal.map(|(at, _)| *at), ranges.map(|(at, _)| *at))
}

/// How many ranges a scan of a table may read.
fn most_ranges(shape: Option<&Shape<'_>>) -> usize {
    if shape.is_some() { MAX_RANGES } else { UNPRICED_RANGES }
}

/// A way to read a table along an index.
struct Candidate<'a> {
    index: &'a Index,
    /// Its entries have all that is wanted.
    alone: bool,
    score: u32,
    cost: f64,
    ranges: usize,
    /// The prefixes to be read, where they are not all combinations of what is said of single
    /// columns.
    prefixes: Option<Prefixes<'a>>,
}

/// What is asked of a table.
pub(super) struct Asking<'a> {
    /// What is said of single columns.
    pub constraints: &'a BTreeMap<usize, Constraint>,
    /// What joins said of several columns at a time, beside that.
    pub together: &'a [Together],
    /// The columns wanted, if entries of an index may give them.
    pub wanted: Option<&'a [bool]>,
}

/// The best way to read what is asked for.
pub(super) fn choose(
    database: DatabaseId,
    table: &Table,
    asking: &Asking<'_>,
    shape: Option<&Shape<'_>>,
) -> Result<Access> {
    match best(table, asking, shape) {
        Some(Candidate { index, alone, prefixes: Some(prefixes), .. }) => {
            prefixes.access(database, table, (index, alone))
        }
        Some(Candidate { index, alone, .. }) => {
            bounded(database, table, (index, alone), asking.constraints, most_ranges(shape))
        }
        None => Ok(Access {
            index: 0,
            ranges: vec![codec::table_range(database, table, 0)],
            points: Vec::new(),
            part: Part::Whole,
            shown: format!("Seq Scan on {}", table.name),
        }),
    }
}

/// What reading what is asked for costs at least, in rows of a scan.
pub(crate) fn least(
    table: &Table,
    constraints: &BTreeMap<usize, Constraint>,
    shape: &Shape<'_>,
) -> f64 {
    let asking = Asking { constraints, together: &[], wanted: None };
    best(table, &asking, Some(shape)).map_or(shape.rows(), |best| best.cost)
}

/// `None`: all of the table is read.
fn best<'a>(
    table: &'a Table,
    asking: &Asking<'a>,
    shape: Option<&Shape<'_>>,
) -> Option<Candidate<'a>> {
    let constraints = asking.constraints;
    let mut found: Vec<Candidate<'_>> = Vec::new();
    let most = most_ranges(shape);
    for index in table.all_indexes().filter(|index| index.predicate.is_none()) {
        let alone = index.id != 0
            && asking.wanted.is_some_and(|w| EntryCodec::compact(table, index, w).is_some());
        for rows in asking.together {
            if let Some(prefixes) = Prefixes::of(index, rows, constraints) {
                let (score, cost) = prefixes.score_and_cost((index, alone), shape);
                let (ranges, prefixes) = (prefixes.count(), Some(prefixes));
                found.push(Candidate { index, alone, score, cost, ranges, prefixes });
            }
        }
        let (score, ranges) = score(table, index, constraints, most);
        if score == 0 {
            continue;
        }
        let own = (score, alone);
        let cost = shape.map_or(0.0, |shape| cost(table, index, constraints, own, shape));
        found.push(Candidate { index, alone, score, cost, ranges, prefixes: None });
    }
    let whole = shape.map_or(f64::INFINITY, |shape| shape.rows().max(SMALL));
    // Of those that are alike the one of the fewest ranges, or else the first.
    found
        .into_iter()
        .min_by(|a, b| {
            let score = || b.score.cmp(&a.score).then(a.ranges.cmp(&b.ranges));
            a.cost.total_cmp(&b.cost).then_with(score)
        })
        .filter(|best| best.cost <= whole)
}

/// How much an index narrows, and how many ranges it makes: equal leading columns, then a range;
/// the whole of a unique key beats all.
fn score(
    table: &Table,
    index: &Index,
    constraints: &BTreeMap<usize, Constraint>,
    most: usize,
) -> (u32, usize) {
    let (mut score, mut lists, mut ranges) = (0, false, 1_usize);
    for (at, part) in table.entry_columns(index).enumerate() {
        match constraints.get(&part.column) {
            Some(Constraint { values: Some(values), .. }) => {
                if !narrows(index, at, values, lists) || ranges.saturating_mul(values.len()) > most
                {
                    break;
                }
                lists |= values.len() > 1;
                ranges *= values.len();
                score += if repeats(index, at, part) { 0 } else { 20 };
                if at + 1 == index.columns.len() && (index.unique || index.id == 0) {
                    score += UNIQUE;
                }
            }
            Some(c) if c.lower.is_some() || c.upper.is_some() => {
                score += 10;
                break;
            }
            _ => break,
        }
    }
    // Reading the table itself saves a look-up for each row.
    (if score > 0 && index.id == 0 { score + 5 } else { score }, ranges)
}

/// Whether the values of the column at `at` of the entries narrow what is read. A list on a column
/// of the primary key behind an index does only where none did before: its ranges could be more
/// than the rows.
pub(super) fn narrows(index: &Index, at: usize, values: &[Datum], lists: bool) -> bool {
    at < index.columns.len() || values.len() <= if lists { 1 } else { MAX_BEHIND }
}

/// Whether a column of the primary key behind an index is one of the index's own.
pub(super) fn repeats(index: &Index, at: usize, part: &IndexColumn) -> bool {
    at >= index.columns.len() && index.columns.iter().any(|own| own.column == part.column)
}

fn bounded(
    database: DatabaseId,
    table: &Table,
    (index, alone): (&Index, bool),
    constraints: &BTreeMap<usize, Constraint>,
    most: usize,
) -> Result<Access> {
    let mut prefixes: Vec<Vec<Datum>> = vec![Vec::new()];
    let mut conditions = Vec::new();
    let mut range: Option<(&Constraint, Direction)> = None;
    for (at, part) in table.entry_columns(index).enumerate() {
        let Some(constraint) = constraints.get(&part.column) else { break };
        let name = &table.columns[part.column].name;
        match &constraint.values {
            Some(values)
                if prefixes.len().saturating_mul(values.len()) <= most
                    && narrows(index, at, values, prefixes.len() > 1) =>
            {
                if !repeats(index, at, part) {
                    conditions.push(match values.len() {
                        1 => format!("{name} ="),
                        n => format!("{name} in {n} values"),
                    });
                }
                prefixes = prefixes
                    .into_iter()
                    .flat_map(|prefix| {
                        values.iter().map(move |value| {
                            let mut longer = prefix.clone();
                            longer.push(value.clone());
                            longer
                        })
                    })
                    .collect();
            }
            Some(_) => break,
            None => {
                let ends = [("from", &constraint.lower), ("to", &constraint.upper)];
                let shown: Vec<&str> =
                    ends.iter().filter(|(_, end)| end.is_some()).map(|(word, _)| *word).collect();
                conditions.push(format!("{name} {}", shown.join(" ")));
                range = Some((constraint, part.direction));
                break;
            }
        }
    }
    let whole = range.is_none() && conditions.len() == index.columns.len();
    let unique = whole && (index.id == 0 || index.unique);
    let mut ranges = Vec::with_capacity(prefixes.len());
    for prefix in &prefixes {
        ranges.push(match range {
            None => {
                let key = codec::index_prefix_key(database, table, index, prefix)?;
                KeyRange::with_prefix(key.as_slice())
            }
            Some((constraint, direction)) => {
                ends(database, table, index, prefix, constraint, direction)?
            }
        });
    }
    ranges.sort_by(|a, b| a.start.cmp(&b.start));
    ranges.dedup();
    ranges.retain(|range| !range.is_empty());
    // A row's key is the start of the range that holds only it.
    let points = match whole && index.id == 0 {
        true => std::mem::take(&mut ranges).into_iter().map(|range| range.start).collect(),
        false => Vec::new(),
    };
    Ok(Access {
        index: index.id,
        ranges,
        points,
        part: if unique { Part::One } else { Part::Some },
        shown: format!(
            "{} using {} on {}, bounds: {}",
            scan_word(alone),
            index.name,
            table.name,
            conditions.join(", ")
        ),
    })
}

/// What EXPLAIN calls a scan of an index.
pub(super) fn scan_word(alone: bool) -> &'static str {
    if alone { "Index Only Scan" } else { "Index Scan" }
}

/// The entries behind a prefix between the ends of a constraint on the next column.
pub(super) fn ends(
    database: DatabaseId,
    table: &Table,
    index: &Index,
    prefix: &[Datum],
    constraint: &Constraint,
    direction: Direction,
) -> Result<KeyRange> {
    let whole =
        KeyRange::with_prefix(codec::index_prefix_key(database, table, index, prefix)?.as_slice());
    let key = |end: &Datum| -> Result<Vec<u8>> {
        let mut values = prefix.to_vec();
        values.push(end.clone());
        let key = codec::index_prefix_key(database, table, index, &values)?;
        Ok(key.as_slice().to_vec())
    };
    // In a descending column the greatest value comes first.
    let (first, last) = match direction {
        Direction::Ascending => (&constraint.lower, &constraint.upper),
        Direction::Descending => (&constraint.upper, &constraint.lower),
    };
    let start = match first {
        None => whole.start,
        Some((value, true)) => key(value)?.into(),
        Some((value, false)) => successor(&key(value)?),
    };
    let end = match last {
        None => whole.end,
        Some((value, true)) => successor(&key(value)?),
        Some((value, false)) => key(value)?.into(),
    };
    Ok(KeyRange::new(start, end))
}

fn collect(table: &Table, filter: &Expr, into: &mut BTreeMap<usize, Constraint>) {
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And, right }) => {
            collect(table, left, into);
            collect(table, right, into);
        }
        Expr::BinaryExpr(BinaryExpr { op: Operator::Or, .. }) => {
            let mut column = None;
            let mut values = Vec::new();
            if equal_to_any(table, filter, &mut column, &mut values)
                && let Some(column) = column
            {
                narrow(into.entry(column).or_default(), values);
            } else {
                of_alternatives(table, filter, into);
            }
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            if let Some((column, op, value)) = comparison(table, left, *op, right) {
                let constraint = into.entry(column).or_default();
                match op {
                    Operator::Eq => narrow(constraint, vec![value]),
                    Operator::Gt => raise(&mut constraint.lower, value, false),
                    Operator::GtEq => raise(&mut constraint.lower, value, true),
                    Operator::Lt => lower(&mut constraint.upper, value, false),
                    Operator::LtEq => lower(&mut constraint.upper, value, true),
                    _ => {}
                }
            }
        }
        Expr::InList(list) if !list.negated => {
            let Some(place) = place(table, &list.expr) else { return };
            let position = place.column;
            let values: Option<Vec<Datum>> =
                list.list.iter().map(|item| constant(table, place, item)).collect();
            if let Some(values) = values {
                narrow(into.entry(position).or_default(), values);
            }
        }
        _ => {}
    }
}

/// What all alternatives say a column equals, one of its values each:
/// `a = 1 AND b = 2 OR a = 3 AND b = 4`.
fn of_alternatives(table: &Table, filter: &Expr, into: &mut BTreeMap<usize, Constraint>) {
    let mut common: Option<BTreeMap<usize, Vec<Datum>>> = None;
    let mut left = vec![filter];
    while let Some(next) = left.pop() {
        if let Expr::BinaryExpr(BinaryExpr { left: one, op: Operator::Or, right: other }) = next {
            left.extend([&**one, &**other]);
            continue;
        }
        let mut said = BTreeMap::new();
        collect(table, next, &mut said);
        let values = said.into_iter().filter_map(|(column, said)| Some((column, said.values?)));
        let mut values: BTreeMap<usize, Vec<Datum>> = values.collect();
        match &mut common {
            None => common = Some(values),
            Some(common) => common.retain(|column, before| {
                values.remove(column).map(|more| before.extend(more)).is_some()
            }),
        }
        if common.as_ref().is_some_and(BTreeMap::is_empty) {
            return;
        }
    }
    for (column, values) in common.into_iter().flatten() {
        narrow(into.entry(column).or_default(), values);
    }
}

/// `a = 1 OR a = 2 …` on one column.
fn equal_to_any(
    table: &Table,
    filter: &Expr,
    column: &mut Option<usize>,
    values: &mut Vec<Datum>,
) -> bool {
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
            equal_to_any(table, left, column, values) && equal_to_any(table, right, column, values)
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            match comparison(table, left, *op, right) {
                Some((position, Operator::Eq, value))
                    if column.is_none_or(|column| column == position) =>
                {
                    *column = Some(position);
                    values.push(value);
                    true
                }
                _ => false,
            }
        }
        _ => false,
    }
}

fn comparison(
    table: &Table,
    left: &Expr,
    op: Operator,
    right: &Expr,
) -> Option<(usize, Operator, Datum)> {
    let supported =
        matches!(op, Operator::Eq | Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq);
    if !supported {
        return None;
    }
    if let Some(place) = place(table, left) {
        return Some((place.column, op, constant(table, place, right)?));
    }
    let place = place(table, right)?;
    Some((place.column, op.swap()?, constant(table, place, left)?))
}

/// A column of the table as conditions show it.
#[derive(Clone, Copy)]
struct Place {
    column: usize,
    /// By the sort key of its value.
    keyed: bool,
}

fn place(table: &Table, expr: &Expr) -> Option<Place> {
    if let Expr::Column(column) = expr {
        let column = table.column_position(&column.name)?;
        let place = Place { column, keyed: false };
        return natively_ordered(&table.columns[column].ty).then_some(place);
    }
    let Expr::Column(column) = sort_key::of_sort_key(expr)? else { return None };
    let column = table.column_position(&column.name)?;
    let read_back = matches!(table.columns[column].ty, SqlType::Numeric(_) | SqlType::Char(_));
    read_back.then_some(Place { column, keyed: true })
}

fn constant(table: &Table, place: Place, expr: &Expr) -> Option<Datum> {
    let ty = &table.columns[place.column].ty;
    if place.keyed {
        let key = sort_key::constant_key(expr)?;
        return match ty {
            SqlType::Numeric(_) => decimal::of_value_part(&key).map(Datum::numeric),
            _ => String::from_utf8(key).ok().map(Datum::text),
        };
    }
    let Expr::Literal(value, _) = expr else { return None };
    if value.is_null() || value.data_type() != super::types::arrow_type(ty) {
        return None;
    }
    let value: &ScalarValue = value;
    datum_of(value, ty).ok()
}

pub(super) fn narrow(constraint: &mut Constraint, mut values: Vec<Datum>) {
    values.sort_by(Datum::cmp_values);
    values.dedup();
    if let Some(mut before) = constraint.values.take() {
        before.retain(|value| values.binary_search_by(|own| own.cmp_values(value)).is_ok());
        values = before;
    }
    constraint.values = Some(values);
}

pub(super) fn raise(bound: &mut Bound, value: Datum, inside: bool) {
    let tighter = bound.as_ref().is_none_or(|(old, old_inside)| {
        let order = value.cmp_values(old);
        order.is_gt() || (order.is_eq() && *old_inside && !inside)
    });
    if tighter {
        *bound = Some((value, inside));
    }
}

pub(super) fn lower(bound: &mut Bound, value: Datum, inside: bool) {
    let tighter = bound.as_ref().is_none_or(|(old, old_inside)| {
        let order = value.cmp_values(old);
        order.is_lt() || (order.is_eq() && *old_inside && !inside)
    });
    if tighter {
        *bound = Some((value, inside));
    }
}
