//! How many rows conditions leave: one model for both executors, in PostgreSQL's terms.
//!
//! ```text
//! condition ─► tests of columns ─► frequency of a common value | part of the histogram | 1/distinct   (what is known of the column)
//!                             └──► PostgreSQL's guesses                                               (nothing is)
//! AND: product, both ends of a range together     OR: a + b - ab     NOT: 1 - a
//! ```
//! # Invariants
//! - A number between 0 and 1, whatever the statistics say: they may be old, and wrong.
//! - Nothing here decides which rows there are.
//!
//! # Limits
//! Conditions count as independent of each other. The values of parameters are not looked at: one
//! plan serves them all.

use telesto_sql_catalog::statistics::{ColumnStatistics, Found, Valued, key_of};
use telesto_sql_catalog::{CatalogSnapshot, Table};
use telesto_sql_expr::{Comparison, Expr, Node};
use telesto_sql_types::{Datum, SqlType};

/// Of `=`, where nothing is known.
const EQUAL: f64 = 0.005;
/// Of one inequality.
const INEQUALITY: f64 = 1.0 / 3.0;
/// Of both ends of a range.
const RANGE: f64 = 0.005;
/// Of a pattern.
const MATCH: f64 = 0.005;
/// Of IS NULL.
const IS_NULL: f64 = 0.005;
/// Of any other condition.
const OTHER: f64 = 1.0 / 3.0;
/// Distinct values, where nothing is known.
const DISTINCT: f64 = 200.0;

/// A value that a column is compared with; `None`: known when the statement runs.
type Value<'v> = Option<&'v Datum>;
/// One end of a range and whether it is inside.
pub type End<'v> = Option<(Value<'v>, bool)>;

/// A table with what is known of its rows.
#[derive(Clone, Debug)]
pub struct Shape<'t> {
    table: &'t Table,
    found: Found,
    rows: f64,
}

/// What a condition says of one end of a column's range.
struct Side<'e> {
    column: usize,
    upper: bool,
    end: (Value<'e>, bool),
}

impl<'t> Shape<'t> {
    /// Of a table that has been analyzed; `None`: nothing is known of its rows.
    #[must_use]
    pub fn of(catalog: &CatalogSnapshot, table: &'t Table) -> Option<Self> {
        let found = catalog.statistics.of(table)?;
        let rows = found.rows.filter(|rows| rows.is_finite())?;
        Some(Self { table, found, rows })
    }

    /// Rows of the table, at least one.
    #[must_use]
    pub fn rows(&self) -> f64 {
        self.rows.max(1.0)
    }

    /// What is known of the column at a position.
    #[must_use]
    pub fn column(&self, at: usize) -> Option<&ColumnStatistics> {
        self.found.column(self.table.columns.get(at)?)
    }

    fn ty(&self, at: usize) -> Option<&'t SqlType> {
        self.table.columns.get(at).map(|column| &column.ty)
    }

    /// Distinct values of a column.
    #[must_use]
    pub fn distinct(&self, at: usize) -> f64 {
        let known = self.column(at).and_then(|known| known.distinct_of(self.rows()));
        known.unwrap_or_else(|| DISTINCT.min(self.rows())).clamp(1.0, self.rows())
    }

    fn nulls(&self, at: usize) -> Option<f64> {
        self.column(at).map(|known| part(f64::from(known.null_fraction)))
    }

    /// The part of the rows where a column is NULL.
    #[must_use]
    pub fn null(&self, at: usize) -> f64 {
        self.nulls(at).unwrap_or_else(|| match self.table.columns.get(at) {
            Some(column) if column.not_null => 0.0,
            _ => IS_NULL,
        })
    }

    /// The part where a column equals a value.
    #[must_use]
    pub fn equal(&self, at: usize, value: Value<'_>) -> f64 {
        let Some(known) = self.column(at) else { return 1.0 / self.distinct(at) };
        let distinct = self.distinct(at);
        let present = 1.0 - self.null(at);
        let Some(key) = value.and_then(|value| self.key(at, value)) else {
            let each = present / distinct;
            let most = known.common.first().map_or(1.0, |(_, frequency)| f64::from(*frequency));
            return part(each.min(most));
        };
        if let Some((_, frequency)) = known.common.iter().find(|(common, _)| common.key == key) {
            return part(f64::from(*frequency));
        }
        let common: f64 = known.common.iter().map(|(_, f)| f64::from(*f)).sum();
        let others = (distinct - known.common.len() as f64).max(1.0);
        let least = known.common.last().map_or(1.0, |(_, frequency)| f64::from(*frequency));
        part(((present - common) / others).min(least))
    }

    /// The part where a column equals one of several values.
    #[must_use]
    pub fn one_of<'v>(&self, at: usize, values: impl Iterator<Item = Value<'v>>) -> f64 {
        part(values.map(|value| self.equal(at, value)).sum())
    }

    fn key(&self, at: usize, value: &Datum) -> Option<Vec<u8>> {
        let ty = self.ty(at)?;
        key_of(&as_column(value, ty), ty)
    }

    /// The part where a column is less than a value, or equal with `inclusive`.
    fn below(&self, at: usize, value: Value<'_>, inclusive: bool) -> Option<f64> {
        let known = self.column(at)?;
        let key = self.key(at, value?)?;
        let fits = |common: &&(Valued, f32)| match common.0.key.cmp(&key) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => inclusive,
            std::cmp::Ordering::Greater => false,
        };
        let frequency = |(_, frequency): &(Valued, f32)| f64::from(*frequency);
        let common: f64 = known.common.iter().map(frequency).sum();
        let among: f64 = known.common.iter().filter(fits).map(frequency).sum();
        let others = (1.0 - self.null(at) - common).max(0.0);
        let distinct = (self.distinct(at) - known.common.len() as f64).max(1.0);
        let below = match known.bounds.len() {
            0 | 1 => 0.5,
            _ => below_in(&known.bounds, &key, inclusive, 1.0 / distinct),
        };
        Some(part(among + others * below))
    }

    /// The part where a column is between two ends.
    #[must_use]
    pub fn between(&self, at: usize, low: End<'_>, high: End<'_>) -> f64 {
        let present = 1.0 - self.null(at);
        let above = |(value, inclusive): (Value<'_>, bool)| {
            self.below(at, value, !inclusive).map(|below| part(present - below))
        };
        let under = |(value, inclusive)| self.below(at, value, inclusive);
        match (low, high) {
            (None, None) => present,
            (Some(low), None) => above(low).unwrap_or(INEQUALITY),
            (None, Some(high)) => under(high).unwrap_or(INEQUALITY),
            (Some(low), Some(high)) => match (above(low), under(high)) {
                (Some(above), Some(under)) => (above + under - present).clamp(1e-10, 1.0),
                _ => RANGE,
            },
        }
    }

    /// The part where a text starts with another.
    #[must_use]
    pub fn prefix(&self, at: usize, prefix: &str) -> f64 {
        let low = Datum::text(prefix);
        let Some(end) = behind(prefix) else { return MATCH };
        let high = Datum::text(end);
        match self.column(at) {
            Some(_) => self.between(at, Some((Some(&low), true)), Some((Some(&high), false))),
            None => MATCH,
        }
    }

    /// The part that fulfils all conditions. `position` gives the table's own column of one that
    /// they name, if it is one.
    #[must_use]
    pub fn all(&self, conditions: &[Expr], position: &dyn Fn(usize) -> Option<usize>) -> f64 {
        let mut selectivity = 1.0;
        let mut sides: Vec<Side<'_>> = Vec::new();
        for condition in conditions {
            match self.side(condition, position) {
                Some(side) => sides.push(side),
                None => selectivity *= self.one(condition, position),
            }
        }
        while let Some(side) = sides.pop() {
            let other = sides.iter().position(|o| o.column == side.column && o.upper != side.upper);
            let other = other.map(|at| sides.swap_remove(at).end);
            let (low, high) =
                if side.upper { (other, Some(side.end)) } else { (Some(side.end), other) };
            selectivity *= self.between(side.column, low, high);
        }
        part(selectivity)
    }

    /// What an inequality between a column and a value says.
    fn side<'e>(
        &self,
        condition: &'e Expr,
        position: &dyn Fn(usize) -> Option<usize>,
    ) -> Option<Side<'e>> {
        let Node::Compare(comparison, a, b) = &condition.node else { return None };
        let (column, value, comparison) = match (column_of(a), column_of(b)) {
            (Some(at), None) => (at, b, *comparison),
            (None, Some(at)) => (at, a, comparison.flipped()),
            _ => return None,
        };
        let (upper, inclusive) = match comparison {
            Comparison::Lt => (true, false),
            Comparison::LtEq => (true, true),
            Comparison::Gt => (false, false),
            Comparison::GtEq => (false, true),
            _ => return None,
        };
        Some(Side { column: position(column)?, upper, end: (constant(value), inclusive) })
    }

    fn one(&self, condition: &Expr, position: &dyn Fn(usize) -> Option<usize>) -> f64 {
        let own = |expr: &Expr| column_of(expr).and_then(position);
        match &condition.node {
            Node::Const(Datum::Bool(true)) => 1.0,
            Node::Const(_) => 0.0,
            Node::And(all) => self.all(all, position),
            Node::Or(any) => {
                let each =
                    any.iter().map(|condition| self.all(std::slice::from_ref(condition), position));
                each.fold(0.0, |sum, one| sum + one - sum * one)
            }
            Node::Not(inner) => part(1.0 - self.all(std::slice::from_ref(inner), position)),
            Node::IsNull(negated, value) => match own(value) {
                Some(at) if *negated => 1.0 - self.null(at),
                Some(at) => self.null(at),
                None if *negated => 1.0 - IS_NULL,
                None => IS_NULL,
            },
            Node::Column(at) => match position(*at) {
                Some(at) => self.equal(at, Some(&Datum::Bool(true))),
                None => 0.5,
            },
            Node::Compare(comparison, a, b) => match (own(a), own(b)) {
                (Some(one), Some(other)) => match comparison {
                    Comparison::Eq => 1.0 / self.distinct(one).max(self.distinct(other)),
                    Comparison::NotEq => 1.0 - 1.0 / self.distinct(one).max(self.distinct(other)),
                    _ => INEQUALITY,
                },
                (Some(at), None) => self.compared(at, *comparison, constant(b)),
                (None, Some(at)) => self.compared(at, comparison.flipped(), constant(a)),
                (None, None) => match comparison {
                    Comparison::Eq => EQUAL,
                    Comparison::NotEq => 1.0 - EQUAL,
                    _ => INEQUALITY,
                },
            },
            Node::InList(value, list, negated) => {
                let one_of = match own(value) {
                    Some(at) => self.one_of(at, list.iter().map(constant)),
                    None => part(EQUAL * list.len() as f64),
                };
                let present = own(value).map_or(1.0, |at| 1.0 - self.null(at));
                if *negated { part(present - one_of) } else { one_of }
            }
            Node::Quantified(value, Comparison::Eq, list, false) => match own(value) {
                Some(at) => match constant(list) {
                    Some(Datum::Array(array)) => self.one_of(at, array.elements.iter().map(Some)),
                    // As PostgreSQL: an array of ten.
                    _ => self.one_of(at, std::iter::repeat_n(None, 10)),
                },
                None => part(EQUAL * 10.0),
            },
            Node::Call(function, args, _) => self.call(function.name, args, &own),
            _ => OTHER,
        }
    }

    fn compared(&self, at: usize, comparison: Comparison, value: Value<'_>) -> f64 {
        match comparison {
            Comparison::Eq => self.equal(at, value),
            Comparison::NotEq => part(1.0 - self.null(at) - self.equal(at, value)),
            Comparison::Lt | Comparison::LtEq => {
                self.between(at, None, Some((value, comparison == Comparison::LtEq)))
            }
            _ => self.between(at, Some((value, comparison == Comparison::GtEq)), None),
        }
    }

    fn call(&self, name: &str, args: &[Expr], own: &dyn Fn(&Expr) -> Option<usize>) -> f64 {
        let pattern = match (args.first().and_then(own), args.get(1).and_then(constant)) {
            (Some(at), Some(Datum::Text(pattern))) => Some((at, pattern)),
            _ => None,
        };
        match (name, pattern) {
            ("~~" | "like", Some((at, pattern))) => {
                let fixed = pattern.split(['%', '_', '\\']).next().unwrap_or_default();
                if fixed.len() == pattern.len() {
                    return self.equal(at, Some(&Datum::text(fixed)));
                }
                let rest = rest_of_pattern(&pattern[fixed.len()..]);
                if fixed.is_empty() { rest } else { part(self.prefix(at, fixed) * rest) }
            }
            ("starts_with" | "^@", Some((at, prefix))) => self.prefix(at, prefix),
            ("~~" | "like" | "~~*" | "ilike" | "~" | "~*", _) => MATCH,
            ("!~~" | "!~~*" | "!~" | "!~*", _) => 1.0 - MATCH,
            _ => OTHER,
        }
    }

    /// Rows left of `selectivity`, at least one.
    #[must_use]
    pub fn left(&self, selectivity: f64) -> f64 {
        (self.rows() * part(selectivity)).round().max(1.0)
    }
}

/// The part of all pairs of rows whose columns are equal.
#[must_use]
pub fn joined(one: (&Shape<'_>, usize), other: (&Shape<'_>, usize)) -> f64 {
    let present = (1.0 - one.0.null(one.1)) * (1.0 - other.0.null(other.1));
    part(present / one.0.distinct(one.1).max(other.0.distinct(other.1)))
}

fn part(number: f64) -> f64 {
    if number.is_nan() { 0.5 } else { number.clamp(0.0, 1.0) }
}

/// The column under casts that keep equality and order.
fn column_of(expr: &Expr) -> Option<usize> {
    match &expr.node {
        Node::Column(at) => Some(*at),
        Node::Cast(inner, _) => match inner.node {
            Node::Column(at)
                if inner.ty.is_integer() && expr.ty.is_integer()
                    || inner.ty.is_string() && expr.ty.is_string() =>
            {
                Some(at)
            }
            _ => None,
        },
        _ => None,
    }
}

fn constant(expr: &Expr) -> Value<'_> {
    match &expr.node {
        Node::Const(value) if !value.is_null() => Some(value),
        _ => None,
    }
}

/// An integer as one of the column's type, where it fits.
fn as_column(value: &Datum, ty: &SqlType) -> Datum {
    let number = match value {
        Datum::Int2(v) => i64::from(*v),
        Datum::Int4(v) => i64::from(*v),
        Datum::Int8(v) => *v,
        _ => return value.clone(),
    };
    let clamped = |least: i64, most: i64| number.clamp(least, most);
    match ty {
        SqlType::Int2 => i16::try_from(clamped(i16::MIN.into(), i16::MAX.into()))
            .map_or(Datum::Null, Datum::Int2),
        SqlType::Int4 => i32::try_from(clamped(i32::MIN.into(), i32::MAX.into()))
            .map_or(Datum::Null, Datum::Int4),
        SqlType::Int8 => Datum::Int8(number),
        _ => value.clone(),
    }
}

/// The least text that is greater than all that start with `prefix`.
fn behind(prefix: &str) -> Option<String> {
    let mut chars: Vec<char> = prefix.chars().collect();
    while let Some(last) = chars.pop() {
        let next = (u32::from(last) + 1..=u32::from(char::MAX)).find_map(char::from_u32);
        if let Some(next) = next {
            chars.push(next);
            return Some(chars.into_iter().collect());
        }
    }
    None
}

/// What is left of a pattern behind its fixed beginning, as PostgreSQL guesses it.
fn rest_of_pattern(pattern: &str) -> f64 {
    let each = pattern.chars().map(|c| match c {
        '%' => 5.0,
        '_' => 0.9,
        _ => 0.2,
    });
    each.fold(1.0, |product: f64, factor| product * factor).min(1.0)
}

/// The part of a histogram's values that is less than a key, or equal.
fn below_in(bounds: &[Valued], key: &[u8], inclusive: bool, equal: f64) -> f64 {
    let parts = (bounds.len() - 1) as f64;
    let at = bounds.partition_point(|bound| bound.key.as_slice() < key);
    let below = if at == 0 && bounds[0].key != key {
        0.0
    } else if at >= bounds.len() {
        1.0
    } else {
        // The bound at `at` is the first that is not less: the key lies in the part before it.
        let upper = at.max(1);
        let inside = place(&bounds[upper - 1].key, &bounds[upper].key, key);
        let mut up_to = ((upper - 1) as f64 + inside) / parts;
        if upper == 1 {
            // The first part includes its lower bound.
            up_to += equal * (1.0 - inside);
        }
        if inclusive { up_to } else { up_to - equal }
    };
    // The ends of the histogram are those of the sample only.
    let cut = 0.01 / parts;
    below.clamp(cut, 1.0 - cut)
}

/// Where a key lies between two others, from 0 to 1.
fn place(low: &[u8], high: &[u8], key: &[u8]) -> f64 {
    let prefix = low.iter().zip(high).take_while(|(a, b)| a == b).count();
    let number = |bytes: &[u8]| {
        let behind = bytes.get(prefix..).unwrap_or_default();
        (0..8).fold(0.0, |sum, at| sum * 256.0 + f64::from(behind.get(at).copied().unwrap_or(0)))
    };
    let (low, high, key) = (number(low), number(high), number(key));
    if high <= low { 0.5 } else { ((key - low) / (high - low)).clamp(0.0, 1.0) }
}
