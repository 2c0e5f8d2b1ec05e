//! What a path costs, by what is known of the table's rows.
//!
//! # Invariants
//! A number for choosing between paths and for EXPLAIN. Every path that is chosen gives the same
//! rows.
//!
//! # Limits
//! Tables that nobody has analyzed have none: the choice is then by the form of the conditions
//! alone.

use telesto_sql_catalog::codec::EntryCodec;
use telesto_sql_catalog::{CatalogSnapshot, Index, IndexColumn, Table};
use telesto_sql_expr::{EvalContext, Expr, Node};
use telesto_sql_plan::estimate::Shape;
use telesto_sql_plan::watch::Asked;
use telesto_sql_types::Datum;
use telesto_sql_types::error::Result;

use crate::select::decline;

use super::{Access, Bound, Conditions, KeyValue, Order, Part, PrefixKind};

/// What looking up a row by its entry costs, in rows of a scan.
pub const LOOK_UP: f64 = 8.0;
/// Rows of a table that is small enough to be reached by key in any case: what is not read cannot
/// conflict.
pub const SMALL: f64 = 10_000.0;

fn constant(value: &KeyValue) -> Option<&Datum> {
    match &value.expr.node {
        Node::Const(value) => Some(value),
        Node::Cast(inner, _) => match &inner.node {
            Node::Const(value) => Some(value),
            _ => None,
        },
        _ => None,
    }
}

/// The best path of a table.
#[derive(Debug)]
pub struct Best {
    /// How good it is; 0: it reads everything.
    pub score: u64,
    /// What it costs, in rows of a scan, where the table was analyzed.
    pub cost: Option<f64>,
    /// The path.
    pub access: Access,
    /// Positions of the conjuncts that hold for every row of the path.
    pub proved: Vec<usize>,
}

impl Best {
    /// Whether it is to be preferred: by what both cost, where that is known and neither is a whole
    /// unique key or alone gives the order asked for; else by the form of the conditions. `small`:
    /// of a table that is reached by key in any case, so that a path over all of its rows, which
    /// gives the order, costs no less than one that narrows them.
    #[must_use]
    pub fn is_better(&self, other: &Self, wants_order: bool, small: bool) -> bool {
        let narrow = !self.access.is_full() && !other.access.is_full();
        let comparable = other.score > 0
            && (narrow || !small)
            && !self.access.unique
            && !other.access.unique
            && (!wants_order || self.access.ordered == other.access.ordered);
        match (self.cost, other.cost) {
            (Some(own), Some(others)) if comparable && own != others => own < others,
            _ => self.score > other.score,
        }
    }
}

impl Conditions {
    /// The columns of a table of so many that the conditions are about.
    #[must_use]
    pub fn asked(&self, columns: usize) -> Asked {
        let own = |at: &usize| *at < columns;
        let rows = self.rows.iter().flat_map(|rows| rows.columns().iter().copied());
        let equal = self.eq.iter().map(|(at, ..)| *at).chain(rows).filter(own);
        let ranges = self.ranges.iter().map(|(at, ..)| *at);
        let prefixes = self.prefixes.iter().map(|(at, _)| *at);
        Asked::of(equal, ranges.chain(prefixes).filter(own))
    }

    /// Rows that a path reads.
    pub(super) fn rows_read(
        &self,
        table: &Table,
        index: &Index,
        access: &Access,
        shape: &Shape<'_>,
    ) -> f64 {
        let mut part = 1.0;
        let mut columns =
            table.entry_columns(index).enumerate().map(|(at, own)| self.position(index, at, own));
        let mut counted = Vec::with_capacity(access.parts.len());
        for ((number, part_of), at) in access.parts.iter().enumerate().zip(columns.by_ref()) {
            // A column of the primary key behind an index may be one of the index's own.
            if counted.contains(&at) {
                continue;
            }
            counted.push(at);
            part *= match part_of {
                // The first of its row has counted how many rows there are.
                Part::In(_) if access.together.iter().skip(1).any(|own| *own == number) => {
                    shape.equal(at, None)
                }
                Part::Eq(value) => shape.equal(at, constant(value)),
                Part::In(values) => shape.one_of(at, values.iter().map(constant)),
                Part::Any(list) => match constant(list) {
                    Some(Datum::Array(array)) => shape.one_of(at, array.elements.iter().map(Some)),
                    _ => shape.one_of(at, std::iter::repeat_n(None, 10)),
                },
            };
        }
        if let Some(at) = columns.next() {
            let end = |bound: &'_ Option<Bound>| {
                bound.as_ref().map(|bound| (constant(&bound.value).cloned(), bound.inclusive))
            };
            let (low, high) = (end(&access.low), end(&access.high));
            if low.is_some() || high.is_some() {
                let low = low.as_ref().map(|(value, inside)| (value.as_ref(), *inside));
                let high = high.as_ref().map(|(value, inside)| (value.as_ref(), *inside));
                part *= shape.between(at, low, high);
            } else if let Some(prefix) = &access.prefix
                && let Node::Const(Datum::Text(pattern)) = &prefix.pattern.node
            {
                let fixed = match prefix.kind {
                    PrefixKind::Whole => pattern.as_ref(),
                    PrefixKind::Like(_) => pattern.split(['%', '_', '\\']).next().unwrap_or(""),
                };
                part *= shape.prefix(at, fixed);
            }
        }
        shape.rows() * part
    }

    /// What a path costs, in rows of a scan. `alone`: the index is read alone
    /// ([`Conditions::reads_alone`]).
    pub(super) fn cost(
        &self,
        table: &Table,
        (index, alone): (&Index, bool),
        access: &Access,
        shape: &Shape<'_>,
    ) -> f64 {
        self.rows_read(table, index, access, shape) * if alone { 1.0 } else { LOOK_UP }
    }

    /// Whether a path along the index needs no rows beside what lies in it. `proved`: conditions
    /// that are not looked at again.
    pub(super) fn reads_alone(&self, table: &Table, index: &Index, proved: &[usize]) -> bool {
        if index.id == 0 {
            return true;
        }
        let Some(mut wanted) = self.used.clone() else { return false };
        for (at, conjunct) in self.conjuncts.iter().enumerate() {
            if !proved.contains(&at) {
                conjunct.mark_columns(&mut wanted);
            }
        }
        EntryCodec::of(table, index, &wanted).is_some()
    }

    /// [`Conditions::choose_among`] for a query; `all`: all of its rows are read, and none locked.
    ///
    /// # Errors
    /// 0A000 when a scan of the table costs less.
    pub fn choose_read(
        self,
        table: &Table,
        order: Option<&Order>,
        context: &EvalContext<'_>,
        all: bool,
    ) -> Result<(Access, Option<Expr>)> {
        if all && self.are_dear(table, order, context.catalog) {
            return Err(decline("the index leads to so much of the table that a scan costs less"));
        }
        Ok(self.choose_among(table, order, context))
    }

    /// Whether the best path leads to so much of the table that a scan costs less.
    fn are_dear(&self, table: &Table, order: Option<&Order>, catalog: &CatalogSnapshot) -> bool {
        let Some(shape) = Shape::of(catalog, table) else { return false };
        let best = self.best(table, order, Some(&shape));
        let access = &best.access;
        // The order spares a sort, or all but the first row.
        if access.ordered && order.is_some() {
            return false;
        }
        if access.is_full() || access.unique || access.partial || access.index == 0 {
            return false;
        }
        let whole = shape.rows();
        whole > SMALL
            && table.index(access.index).is_some_and(|index| {
                let alone = self.reads_alone(table, index, &best.proved);
                self.cost(table, (index, alone), access, &shape) > whole
            })
    }

    /// Rows that are left by all conditions, for EXPLAIN.
    pub(super) fn rows_left(&self, table: &Table, catalog: &CatalogSnapshot) -> Option<u64> {
        let shape = Shape::of(catalog, table)?;
        Some(left(&shape, &self.conjuncts, 0, table))
    }
}

/// How good a path is by its form; 0: nothing narrows it.
pub(super) fn score(
    access: &Access,
    table: &Table,
    (index, alone): (&Index, bool),
    wants_order: bool,
) -> u64 {
    // A column of the index that the primary key has too counts once.
    let own = |column: &IndexColumn| {
        let same = |own: &IndexColumn| own.expression.is_none() && own.column == column.column;
        index.columns.iter().any(same)
    };
    let parts = access.parts.iter().zip(table.entry_columns(index)).enumerate();
    let counted = parts.filter(|(at, (_, column))| *at < index.columns.len() || !own(column));
    let (mut eq, mut lists) = (0, 0);
    for (_, (part, _)) in counted {
        *(if matches!(part, Part::Eq(_)) { &mut eq } else { &mut lists }) += 1;
    }
    let bounds = u64::from(access.low.is_some()) + u64::from(access.high.is_some());
    let mut score = eq * 100 + lists * 80 + bounds * 30 + u64::from(access.prefix.is_some()) * 40;
    if access.unique {
        score += 10_000;
    }
    if wants_order && access.ordered {
        score += 20;
    }
    // The primary key, and an index that has all that is wanted, save the second look-up.
    if score > 0 && alone {
        score += 5;
    }
    score
}

/// [`left`] as it is: less than one, if few of so many rows before it have a match.
pub fn expected(shape: &Shape<'_>, conjuncts: &[Expr], first: usize, table: &Table) -> f64 {
    let own = |at: usize| at.checked_sub(first).filter(|at| *at < table.columns.len());
    shape.rows() * shape.all(conjuncts, &own)
}

/// Rows of a table that fulfil conditions; its columns begin at `first`.
pub fn left(shape: &Shape<'_>, conjuncts: &[Expr], first: usize, table: &Table) -> u64 {
    let own = |at: usize| at.checked_sub(first).filter(|at| *at < table.columns.len());
    shape.left(shape.all(conjuncts, &own)) as u64
}
