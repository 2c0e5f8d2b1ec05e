//! Access paths: which keys of which index a condition needs.
//!
//! # Invariants
//! - The ranges of a path contain every row the condition can be true for; what the path does not prove is left in the
//!   residual filter.
//! - Values are converted to the column's own type before they become key bytes; a value outside that type matches
//!   nothing (equality) or widens to no bound (range).
//! - NULL never matches a comparison: a NULL value makes the path empty, and open ranges stop before the NULLs.
//!
//! # Limits
//! Equality and IN on leading columns, then one range. At most [`MAX_POINTS`] combinations of IN values; beyond that
//! later IN conditions stay in the filter.

use telesto_common::key::{Direction, KeyRange, KeyWriter, successor};

use crate::catalog::{Index, Table};
use crate::error::Result;
use crate::exec::storage;
use crate::expr::{Comparison, EvalContext, Expr, Node, Volatility};
use crate::types::{Datum, SqlType};

/// Most key combinations one path may name by constants.
pub const MAX_POINTS: usize = 10_000;

/// How the value of a comparison becomes a key element.
#[derive(Clone, Debug)]
pub struct KeyValue {
    /// The value; uses no column.
    pub expr: Expr,
    /// The column's type.
    pub ty: SqlType,
}

/// A condition on one key column.
#[derive(Clone, Debug)]
pub enum Part {
    /// Equal to this.
    Eq(KeyValue),
    /// Equal to one of these.
    In(Vec<KeyValue>),
    /// Equal to one element of this array.
    Any(KeyValue),
}

/// A bound of a range.
#[derive(Clone, Debug)]
pub struct Bound {
    /// Its value.
    pub value: KeyValue,
    /// Whether the value itself is inside.
    pub inclusive: bool,
}

/// A path to rows.
#[derive(Clone, Debug)]
pub struct Access {
    /// `Index::id`; 0 for the primary key (or the hidden row id).
    pub index: u32,
    /// Conditions on the leading columns.
    pub parts: Vec<Part>,
    /// Lower and upper bound of the next column.
    pub low: Option<Bound>,
    /// Upper bound.
    pub high: Option<Bound>,
    /// Greatest key first.
    pub reverse: bool,
    /// All columns of a unique key are given: at most one row for each combination.
    pub unique: bool,
    /// Rows come in the order asked for.
    pub ordered: bool,
}

impl Access {
    /// Reads the whole table in primary key order.
    #[must_use]
    pub fn full() -> Self {
        Self {
            index: 0,
            parts: Vec::new(),
            low: None,
            high: None,
            reverse: false,
            unique: false,
            ordered: false,
        }
    }

    /// Whether nothing narrows it.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.parts.is_empty() && self.low.is_none() && self.high.is_none()
    }
}

/// A condition taken apart: conjuncts that constrain one column, and everything.
#[derive(Debug, Default)]
pub struct Conditions {
    eq: Vec<(usize, Part, usize)>,
    ranges: Vec<(usize, Comparison, KeyValue)>,
    /// All conjuncts; those a path proves are dropped by [`Conditions::choose`].
    conjuncts: Vec<Expr>,
}

/// An ordering asked for: column, descending.
pub type Order = Vec<(usize, bool)>;

impl Conditions {
    /// Takes a condition apart.
    #[must_use]
    pub fn new(condition: Option<Expr>) -> Self {
        let mut found = Self::default();
        let conjuncts = match condition {
            None => Vec::new(),
            Some(Expr { node: Node::And(items), .. }) => {
                items.into_iter().flat_map(flatten).collect()
            }
            Some(other) => vec![other],
        };
        for (at, conjunct) in conjuncts.iter().enumerate() {
            found.classify(conjunct, at);
        }
        found.conjuncts = conjuncts;
        found
    }

    fn classify(&mut self, conjunct: &Expr, at: usize) {
        match &conjunct.node {
            Node::Compare(comparison, a, b) => {
                let (column, value, comparison) = match (key_column(a), key_column(b)) {
                    (Some(column), _) if usable(b) => (column, b, *comparison),
                    (_, Some(column)) if usable(a) => (column, a, comparison.flipped()),
                    _ => return,
                };
                let value = KeyValue { expr: (**value).clone(), ty: column.1 };
                match comparison {
                    Comparison::Eq => self.eq.push((column.0, Part::Eq(value), at)),
                    Comparison::NotEq => {}
                    other => self.ranges.push((column.0, other, value)),
                }
            }
            Node::InList(value, list, false) => {
                if let Some((column, ty)) = key_column(value)
                    && list.iter().all(usable)
                {
                    let values =
                        list.iter().map(|e| KeyValue { expr: e.clone(), ty: ty.clone() }).collect();
                    self.eq.push((column, Part::In(values), at));
                }
            }
            Node::Quantified(value, Comparison::Eq, list, false) => {
                if let Some((column, ty)) = key_column(value)
                    && usable(list)
                {
                    self.eq.push((column, Part::Any(KeyValue { expr: (**list).clone(), ty }), at));
                }
            }
            _ => {}
        }
    }

    /// The best path among the indexes of `table`, and the filter that remains. `order` is what the statement wants.
    #[must_use]
    pub fn choose(mut self, table: &Table, order: Option<&Order>) -> (Access, Option<Expr>) {
        let mut best: Option<(u64, Access, Vec<usize>)> = None;
        for index in table.all_indexes().filter(|i| i.predicate.is_none()) {
            let (access, proved) = self.path(index, order);
            let score = score(&access, index, order.is_some());
            if score > 0 && best.as_ref().is_none_or(|(s, ..)| score > *s) {
                best = Some((score, access, proved));
            }
        }
        let (access, proved) =
            best.map_or_else(|| (Access::full(), Vec::new()), |(_, a, p)| (a, p));
        let mut at = 0;
        self.conjuncts.retain(|_| {
            at += 1;
            !proved.contains(&(at - 1))
        });
        let mut rest = self.conjuncts;
        let filter = match rest.len() {
            0 => None,
            1 => rest.pop(),
            _ => Some(Expr::bool(Node::And(rest))),
        };
        (access, filter)
    }

    fn path(&self, index: &Index, order: Option<&Order>) -> (Access, Vec<usize>) {
        let mut access = Access { index: index.id, ..Access::full() };
        let mut proved = Vec::new();
        let mut combinations = 1_usize;
        for column in &index.columns {
            // A single value before a list, a list before an array of unknown length.
            let candidates = self.eq.iter().filter(|(c, ..)| *c == column.column);
            let Some((_, part, at)) = candidates.min_by_key(|(_, part, _)| match part {
                Part::Eq(_) => 0,
                Part::In(_) => 1,
                Part::Any(_) => 2,
            }) else {
                break;
            };
            if let Part::In(values) = part {
                combinations = combinations.saturating_mul(values.len().max(1));
                if combinations > MAX_POINTS {
                    break;
                }
            }
            if matches!(part, Part::Eq(v) if !matches!(v.ty, SqlType::Char(_))) {
                proved.push(*at);
            }
            access.parts.push(part.clone());
        }
        let used = access.parts.len();
        access.unique = used == index.columns.len() && (index.unique || index.id == 0);
        if let Some(next) = index.columns.get(used) {
            for (_, comparison, value) in self.ranges.iter().filter(|(c, ..)| *c == next.column) {
                let bound = |inclusive| Some(Bound { value: value.clone(), inclusive });
                match comparison {
                    Comparison::Gt if access.low.is_none() => access.low = bound(false),
                    Comparison::GtEq if access.low.is_none() => access.low = bound(true),
                    Comparison::Lt if access.high.is_none() => access.high = bound(false),
                    Comparison::LtEq if access.high.is_none() => access.high = bound(true),
                    _ => {}
                }
            }
        }
        if let Some(order) = order {
            match order_along(index, &access.parts, order) {
                Some(reverse) => {
                    access.reverse = reverse;
                    access.ordered = true;
                }
                None => {
                    access.ordered =
                        access.unique && access.parts.iter().all(|p| matches!(p, Part::Eq(_)))
                }
            }
        }
        (access, proved)
    }
}

/// Whether the index gives the order, and then whether backwards.
fn order_along(index: &Index, parts: &[Part], order: &Order) -> Option<bool> {
    if !parts.iter().all(|p| matches!(p, Part::Eq(_))) {
        return None;
    }
    let fixed: Vec<usize> = index.columns[..parts.len()].iter().map(|c| c.column).collect();
    let mut rest = index.columns[parts.len()..].iter();
    let mut reverse: Option<bool> = None;
    for (column, descending) in order {
        if fixed.contains(column) {
            continue;
        }
        match rest.next() {
            Some(next) if next.column == *column => {
                let backwards = (next.direction == Direction::Descending) != *descending;
                if reverse.is_some_and(|r| r != backwards) {
                    return None;
                }
                reverse = Some(backwards);
            }
            // A unique key in full: what follows cannot matter.
            None if index.unique => break,
            _ => return None,
        }
    }
    Some(reverse.unwrap_or(false))
}

fn score(access: &Access, index: &Index, wants_order: bool) -> u64 {
    let eq = access.parts.iter().filter(|p| matches!(p, Part::Eq(_))).count() as u64;
    let lists = access.parts.len() as u64 - eq;
    let bounds = u64::from(access.low.is_some()) + u64::from(access.high.is_some());
    let mut score = eq * 100 + lists * 80 + bounds * 30;
    if access.unique {
        score += 10_000;
    }
    if wants_order && access.ordered {
        score += 20;
    }
    // The primary key saves the second look-up.
    if score > 0 && index.id == 0 {
        score += 5;
    }
    score
}

fn flatten(expr: Expr) -> Vec<Expr> {
    match expr.node {
        Node::And(items) => items.into_iter().flat_map(flatten).collect(),
        node => vec![Expr { node, ty: expr.ty }],
    }
}

fn usable(expr: &Expr) -> bool {
    !expr.uses_columns() && expr.volatility() < Volatility::Volatile
}

/// The column under a comparison, through casts that keep order and equality.
fn key_column(expr: &Expr) -> Option<(usize, SqlType)> {
    match &expr.node {
        Node::Column(at) => Some((*at, expr.ty.clone())),
        Node::Cast(inner, _) => {
            let Node::Column(at) = inner.node else { return None };
            let widened = inner.ty.is_integer() && expr.ty.is_integer();
            let text = matches!(inner.ty, SqlType::Varchar(_) | SqlType::Name | SqlType::Text)
                && expr.ty == SqlType::Text;
            (widened || text).then(|| (at, inner.ty.clone()))
        }
        _ => None,
    }
}

/// A value as the column has it.
enum Converted {
    Value(Datum),
    Null,
    /// Below or above every value of the column's type.
    Below,
    Above,
}

fn convert(value: Datum, ty: &SqlType) -> Converted {
    if value.is_null() {
        return Converted::Null;
    }
    let range = match ty {
        SqlType::Int2 => (i64::from(i16::MIN), i64::from(i16::MAX)),
        SqlType::Int4 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        SqlType::Int8 => (i64::MIN, i64::MAX),
        _ => return Converted::Value(value),
    };
    let Some(number) = value.as_i64() else { return Converted::Value(value) };
    if number < range.0 {
        Converted::Below
    } else if number > range.1 {
        Converted::Above
    } else {
        Converted::Value(match ty {
            SqlType::Int2 => Datum::Int2(number as i16),
            SqlType::Int4 => Datum::Int4(number as i32),
            _ => Datum::Int8(number),
        })
    }
}

/// The keys of a path for given parameters.
#[derive(Debug)]
pub enum Keys {
    /// Whole keys of a unique index.
    Points(Vec<bytes::Bytes>),
    /// Ranges, in order.
    Ranges(Vec<KeyRange>),
}

impl Access {
    /// Computes the keys.
    ///
    /// # Errors
    /// Those of evaluating the values.
    pub fn keys(
        &self,
        table: &Table,
        prefix: KeyWriter,
        context: &EvalContext<'_>,
    ) -> Result<Keys> {
        let index = table.index(self.index);
        let columns = index.map_or(&[][..], |i| &i.columns);
        let mut writers = vec![prefix];
        for (part, column) in self.parts.iter().zip(columns) {
            let ty = &table.columns[column.column].ty;
            let mut values = part_values(part, context)?;
            if writers.len().saturating_mul(values.len()) > 1 {
                values.sort_by(|a, b| a.cmp_typed(b, ty));
                values.dedup_by(|a, b| a.cmp_typed(b, ty).is_eq());
                if column.direction == Direction::Descending {
                    values.reverse();
                }
            }
            let mut next = Vec::with_capacity(writers.len() * values.len());
            for (at, value) in values.iter().enumerate() {
                if at + 1 == values.len() && writers.len() == 1 {
                    // The usual single combination reuses its buffer.
                    let mut writer = std::mem::take(&mut writers).pop().unwrap_or_default();
                    storage::append_key(&mut writer, value, ty, column.direction)?;
                    next.push(writer);
                } else {
                    for writer in &writers {
                        let mut writer = writer.clone();
                        storage::append_key(&mut writer, value, ty, column.direction)?;
                        next.push(writer);
                    }
                }
            }
            if writers.len() > 1 {
                // Values of the earlier columns must vary slowest.
                next.sort_by(|a, b| a.as_slice().cmp(b.as_slice()));
            }
            writers = next;
            if writers.is_empty() {
                return Ok(Keys::Ranges(Vec::new()));
            }
        }
        if self.unique {
            return Ok(Keys::Points(writers.into_iter().map(KeyWriter::finish).collect()));
        }
        let mut ranges = Vec::with_capacity(writers.len());
        for writer in writers {
            match columns.get(self.parts.len()) {
                Some(column) if self.low.is_some() || self.high.is_some() => {
                    let ty = &table.columns[column.column].ty;
                    if let Some(range) = self.range(&writer, ty, column.direction, context)? {
                        ranges.push(range);
                    }
                }
                _ => ranges.push(KeyRange::with_prefix(writer.as_slice())),
            }
        }
        if self.reverse {
            ranges.reverse();
        }
        Ok(Keys::Ranges(ranges))
    }

    fn range(
        &self,
        writer: &KeyWriter,
        ty: &SqlType,
        direction: Direction,
        context: &EvalContext<'_>,
    ) -> Result<Option<KeyRange>> {
        // `Some(None)`: no bound; `None`: nothing can match.
        let mut low = None;
        if let Some(bound) = &self.low {
            match convert(bound.value.expr.eval(&[], context)?, ty) {
                Converted::Null | Converted::Above => return Ok(None),
                Converted::Below => {}
                Converted::Value(v) => low = Some((v, bound.inclusive)),
            }
        }
        let mut high = None;
        if let Some(bound) = &self.high {
            match convert(bound.value.expr.eval(&[], context)?, ty) {
                Converted::Null | Converted::Below => return Ok(None),
                Converted::Above => {}
                Converted::Value(v) => high = Some((v, bound.inclusive)),
            }
        }
        let element = |value: &Datum| {
            let mut key = writer.clone();
            storage::append_key(&mut key, value, ty, direction)?;
            Ok::<_, crate::Error>(key.finish())
        };
        // In key order the NULLs are after the greatest ascending, before the greatest descending value.
        let nulls = element(&Datum::Null)?;
        let (first, last) = match direction {
            Direction::Ascending => (low, high),
            Direction::Descending => (high, low),
        };
        let start = match first {
            Some((value, true)) => element(&value)?,
            Some((value, false)) => successor(&element(&value)?),
            None if direction == Direction::Descending => successor(&nulls),
            None => bytes::Bytes::copy_from_slice(writer.as_slice()),
        };
        let end = match last {
            Some((value, true)) => successor(&element(&value)?),
            Some((value, false)) => element(&value)?,
            None if direction == Direction::Ascending => nulls,
            None => successor(writer.as_slice()),
        };
        let range = KeyRange::new(start, end);
        Ok((!range.is_empty()).then_some(range))
    }
}

fn part_values(part: &Part, context: &EvalContext<'_>) -> Result<Vec<Datum>> {
    let mut values = Vec::new();
    let mut add = |value: Datum, ty: &SqlType| {
        if let Converted::Value(value) = convert(value, ty) {
            values.push(value);
        }
    };
    match part {
        Part::Eq(v) => add(v.expr.eval(&[], context)?, &v.ty),
        Part::In(list) => {
            for v in list {
                add(v.expr.eval(&[], context)?, &v.ty);
            }
        }
        Part::Any(v) => {
            if let Datum::Array(array) = v.expr.eval(&[], context)? {
                for item in &array.elements {
                    add(item.clone(), &v.ty);
                }
            }
        }
    }
    Ok(values)
}
