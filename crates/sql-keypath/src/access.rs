//! Access paths: which keys of which index a condition needs.
//!
//! # Invariants
//! - The ranges of a path contain every row the condition can be true for; what the path does not
//!   prove is left in the residual filter.
//! - Values are converted to the column's own type before they become key bytes; a value outside
//!   that type matches nothing (equality) or widens to no bound (range).
//! - Entries of an index whose values rows may share end in the primary key: its columns narrow and
//!   order as the index's own do.
//! - A partial index is used only when the condition implies its predicate
//!   ([`telesto_sql_plan::implication`]); an expression that an index holds counts as a column
//!   behind the table's own ([`IndexExpressions`]).
//! - NULL never matches a comparison: a NULL value makes the path empty, and open ranges stop
//!   before the NULLs.
//! - What a LIKE pattern starts with is known when it runs; a pattern that starts with a wildcard
//!   reads everything ([`Access::effective`]).
//!
//! # Limits
//! Equality, IN, and rows of values (`alternatives`) on leading columns of the entries, then one
//! range or one prefix. At most [`MAX_POINTS`] combinations of IN values; beyond that later IN
//! conditions stay in the filter. Of the primary key behind an index, a list narrows only where
//! none did before, and only up to [`MAX_BEHIND`](telesto_sql_plan::MAX_BEHIND) constants: its
//! ranges could be more than the rows.

mod alternatives;
pub mod estimate;
mod keys;
mod placed;
mod prefix;

use std::ops::Range;

use telesto_common::key::Direction;

use telesto_sql_catalog::{Index, IndexColumn, Table};
use telesto_sql_expr::{Comparison, EvalContext, Expr, Node, Volatility};
use telesto_sql_plan::estimate::Shape;
use telesto_sql_plan::index_expressions::IndexExpressions;
use telesto_sql_types::SqlType;

use alternatives::Rows;
pub use estimate::Best;
pub use keys::Keys;

/// Most key combinations one path may name by constants.
pub const MAX_POINTS: usize = 10_000;

/// How many combinations of IN values each value of an array (`= ANY`) is looked up with.
const MAX_BESIDE_ARRAY: usize = 16;

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

/// A pattern that gives the text the next column starts with.
#[derive(Clone, Debug)]
pub struct Prefix {
    /// The pattern, or the text itself; uses no column.
    pub pattern: Expr,
    /// How the pattern is read.
    pub kind: PrefixKind,
}

/// How a pattern gives a prefix.
#[derive(Clone, Debug)]
pub enum PrefixKind {
    /// LIKE; the escape character, a backslash unless it is given.
    Like(Option<Expr>),
    /// `starts_with`: the whole text.
    Whole,
}

/// A path to rows.
#[derive(Clone, Debug)]
pub struct Access {
    /// `Index::id`; 0 for the primary key (or the hidden row id).
    pub index: u32,
    /// Conditions on the leading columns.
    pub parts: Vec<Part>,
    /// Which of them are lists of equal length whose values belong together, first to first.
    pub together: Vec<usize>,
    /// Lower and upper bound of the next column.
    pub low: Option<Bound>,
    /// Upper bound.
    pub high: Option<Bound>,
    /// What the text of the next column starts with, when it has no bounds.
    pub prefix: Option<Prefix>,
    /// Without bounds and prefix: only where the next column is not NULL.
    pub skip_nulls: bool,
    /// Greatest key first.
    pub reverse: bool,
    /// All columns of a unique key are given: at most one row for each combination.
    pub unique: bool,
    /// Rows come in the order asked for.
    pub ordered: bool,
    /// The index is a partial one, which narrows without a condition on its columns.
    pub partial: bool,
    /// Rows expected after all conditions, where the table was analyzed.
    pub rows: Option<u64>,
}

impl Access {
    /// Reads the whole table in primary key order.
    #[must_use]
    pub fn full() -> Self {
        Self {
            index: 0,
            parts: Vec::new(),
            together: Vec::new(),
            low: None,
            high: None,
            prefix: None,
            skip_nulls: false,
            reverse: false,
            unique: false,
            ordered: false,
            partial: false,
            rows: None,
        }
    }

    /// Whether nothing narrows it.
    #[must_use]
    pub fn is_full(&self) -> bool {
        !self.partial
            && self.parts.is_empty()
            && self.low.is_none()
            && self.high.is_none()
            && self.prefix.is_none()
    }
}

/// A condition taken apart: conjuncts that constrain one column, and everything.
#[derive(Debug, Default)]
pub struct Conditions {
    eq: Vec<(usize, Part, usize)>,
    rows: Vec<Rows>,
    ranges: Vec<(usize, Comparison, KeyValue)>,
    prefixes: Vec<(usize, Prefix)>,
    /// All conjuncts; those a path proves are dropped when it is chosen.
    conjuncts: Vec<Expr>,
    forms: IndexExpressions,
    /// Columns that are used beside the conditions, where that is known.
    used: Option<Vec<bool>>,
}

/// The conjuncts of a condition.
#[must_use]
pub fn conjuncts(condition: Option<Expr>) -> Vec<Expr> {
    condition.into_iter().flat_map(flatten).collect()
}

/// The conjunction of conditions, those that may fail last; `None`: there are none.
#[must_use]
pub fn conjunction(mut conditions: Vec<Expr>) -> Option<Expr> {
    conditions.sort_by_cached_key(|one| (one.may_fail(), one.may_overflow()));
    match conditions.len() {
        0 | 1 => conditions.pop(),
        _ => Some(Expr::bool(Node::And(conditions))),
    }
}

/// An ordering asked for: column, descending.
pub type Order = Vec<(usize, bool)>;

impl Conditions {
    /// Takes a condition apart, for indexes on columns.
    #[must_use]
    pub fn new(condition: Option<Expr>) -> Self {
        Self::over(condition, &IndexExpressions::default())
    }

    /// Takes a condition apart, for a table with such indexes, with its columns at their positions.
    #[must_use]
    pub fn over(condition: Option<Expr>, forms: &IndexExpressions) -> Self {
        let known = |value: &Expr| !value.uses_columns();
        Self::taken(conjuncts(condition), 0..usize::MAX, &known, forms)
    }

    /// With what is used of the table beside the conditions: one for each of its columns.
    #[must_use]
    pub fn beside(self, used: Vec<bool>) -> Self {
        Self { used: Some(used), ..self }
    }

    /// Conditions on the table whose columns are at `columns` of a wider row, for indexes on
    /// columns; `known` says which values are there before its rows are read.
    #[must_use]
    pub fn among(
        conjuncts: Vec<Expr>,
        columns: Range<usize>,
        known: &dyn Fn(&Expr) -> bool,
    ) -> Self {
        Self::taken(conjuncts, columns, known, &IndexExpressions::default())
    }

    fn taken(
        conjuncts: Vec<Expr>,
        columns: Range<usize>,
        known: &dyn Fn(&Expr) -> bool,
        forms: &IndexExpressions,
    ) -> Self {
        let mut found = Self { forms: forms.clone(), ..Self::default() };
        for (at, conjunct) in conjuncts.iter().enumerate() {
            found.classify(conjunct, at, &columns, &|value| {
                known(value) && value.volatility() < Volatility::Volatile
            });
        }
        found.conjuncts = conjuncts;
        found
    }

    fn classify(
        &mut self,
        conjunct: &Expr,
        at: usize,
        columns: &Range<usize>,
        usable: &dyn Fn(&Expr) -> bool,
    ) {
        let forms = std::mem::take(&mut self.forms);
        self.classify_over(conjunct, at, columns, usable, &forms);
        self.forms = forms;
    }

    fn classify_over(
        &mut self,
        conjunct: &Expr,
        at: usize,
        columns: &Range<usize>,
        usable: &dyn Fn(&Expr) -> bool,
        forms: &IndexExpressions,
    ) {
        let key_column = |expr: &Expr| {
            key_or_form(expr, forms)
                .filter(|(at, _)| columns.contains(at))
                .map(|(at, ty)| (at - columns.start, ty))
        };
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
            Node::Or(any) => self.rows.extend(Rows::of(any, &key_column, usable)),
            Node::Call(function, args, _) => {
                let Some((value, rest)) = args.split_first() else { return };
                if let Some(prefix) = Prefix::of_call(function.name, rest)
                    && rest.iter().all(usable)
                    && let Some((column, ty)) = key_column(value)
                    && matches!(ty, SqlType::Varchar(_) | SqlType::Name | SqlType::Text)
                {
                    self.prefixes.push((column, prefix));
                }
            }
            _ => {}
        }
    }

    /// The best path among the indexes of `table`, partial ones too, and the filter that remains.
    /// `order` is what the statement wants.
    #[must_use]
    pub fn choose_among(
        self,
        table: &Table,
        order: Option<&Order>,
        context: &EvalContext<'_>,
    ) -> (Access, Option<Expr>) {
        let serves = |index: &Index| self.forms.serves(index, &self.conjuncts, context);
        let shape = Shape::of(context.catalog, table);
        let mut best = self.best_of(table, order, &serves, shape.as_ref());
        best.access.rows = self.rows_left(table, context.catalog);
        if best.access.partial
            && let Some(index) = table.index(best.access.index)
        {
            // Every row of the index fulfils the predicate.
            best.proved.extend(
                (0..self.conjuncts.len())
                    .filter(|at| self.forms.proves(index, &self.conjuncts[*at], context)),
            );
        }
        self.chosen(best)
    }

    /// The path, and the filter that remains.
    fn chosen(self, best: Best) -> (Access, Option<Expr>) {
        let mut at = 0;
        let mut rest = self.conjuncts;
        rest.retain(|_| {
            at += 1;
            !best.proved.contains(&(at - 1))
        });
        (best.access, conjunction(rest))
    }

    /// The best path among the indexes of `table` on all rows.
    #[must_use]
    pub fn best(&self, table: &Table, order: Option<&Order>, shape: Option<&Shape<'_>>) -> Best {
        self.best_of(table, order, &|_| false, shape)
    }

    /// `serves` says which partial indexes may be used.
    fn best_of(
        &self,
        table: &Table,
        order: Option<&Order>,
        serves: &dyn Fn(&Index) -> bool,
        shape: Option<&Shape<'_>>,
    ) -> Best {
        let mut best = Best { score: 0, cost: None, access: Access::full(), proved: Vec::new() };
        let small = shape.is_some_and(|shape| shape.rows() <= estimate::SMALL);
        for index in table.all_indexes() {
            if index.predicate.is_some() && !serves(index) {
                continue;
            }
            let (access, proved) = self.path(table, index, order);
            // Of an index that leads nowhere it need not be known.
            let leads = index.id == 0 || !access.is_full() || access.ordered;
            let read = (index, leads && self.reads_alone(table, index, &proved));
            let score = estimate::score(&access, table, read, order.is_some());
            // A partial index holds fewer rows: it wins over a whole one that narrows as much.
            // Without a condition on its columns it is read when it gives the order, or when its
            // predicate picks values.
            let score = match (score, access.partial) {
                (0, true) if order.is_some() && access.ordered => 20,
                (0, true) if self.forms.picks_values(index) => 10,
                (0, _) => 0,
                (score, partial) => score + u64::from(partial) * 10,
            };
            let cost = shape.map(|shape| self.cost(table, read, &access, shape));
            let candidate = Best { score, cost, access, proved };
            if score > 0 && candidate.is_better(&best, order.is_some(), small) {
                best = candidate;
            }
        }
        best
    }

    /// Where planners see a column of the index's entries, the one at `at`.
    fn position(&self, index: &Index, at: usize, column: &IndexColumn) -> usize {
        if at < index.columns.len() { self.forms.position(index, at) } else { column.column }
    }

    /// An index on all rows whose leading columns are the order, and whether it gives it backwards.
    #[must_use]
    pub fn along(&self, table: &Table, order: &Order) -> Option<(u32, bool)> {
        let whole = table.all_indexes().filter(|i| i.predicate.is_none());
        whole.filter(|i| table.entry_columns(i).count() >= order.len()).find_map(|index| {
            let mut reverse = None;
            let columns = table.entry_columns(index).enumerate();
            for ((at, own), (column, descending)) in columns.zip(order) {
                let backwards = (own.direction == Direction::Descending) != *descending;
                if self.position(index, at, own) != *column
                    || !usual_nulls(table, own)
                    || *reverse.get_or_insert(backwards) != backwards
                {
                    return None;
                }
            }
            Some((index.id, reverse.unwrap_or(false)))
        })
    }

    fn path(&self, table: &Table, index: &Index, order: Option<&Order>) -> (Access, Vec<usize>) {
        let partial = index.predicate.is_some();
        let mut access = Access { index: index.id, partial, ..Access::full() };
        let mut proved = Vec::new();
        let (mut combinations, mut arrays, mut rows) = (1_usize, 0_usize, None);
        for (at, column) in table.entry_columns(index).enumerate() {
            let position = self.position(index, at, column);
            // A single value before a list, a list before an array of unknown length.
            let candidates = self.eq.iter().filter(|(c, ..)| *c == position);
            let Some((_, part, proof)) = candidates.min_by_key(|(_, part, _)| match part {
                Part::Eq(_) => 0,
                Part::In(_) => 1,
                Part::Any(_) => 2,
            }) else {
                let own = at < index.columns.len() && arrays == 0;
                if own && self.add_rows(&mut access, position, &mut rows, &mut combinations) {
                    continue;
                }
                break;
            };
            if at >= index.columns.len() && !narrows_behind(part, &access.parts) {
                break;
            }
            // How long an array is, nobody knows before the statement runs: beside other lists it
            // would make any number of keys.
            let most = match part {
                Part::Eq(_) => usize::MAX,
                Part::In(values) => {
                    combinations = combinations.saturating_mul(values.len().max(1));
                    if arrays == 0 { MAX_POINTS } else { MAX_BESIDE_ARRAY }
                }
                Part::Any(_) => {
                    arrays += 1;
                    if arrays == 1 { MAX_BESIDE_ARRAY } else { 0 }
                }
            };
            if combinations > most {
                break;
            }
            if matches!(part, Part::Eq(v) if !matches!(v.ty, SqlType::Char(_))) {
                proved.push(*proof);
            }
            access.parts.push(part.clone());
        }
        let used = access.parts.len();
        access.unique = used == index.columns.len() && (index.unique || index.id == 0);
        if let Some(column) = table.entry_columns(index).nth(used) {
            let next = self.position(index, used, column);
            for (_, comparison, value) in self.ranges.iter().filter(|(c, ..)| *c == next) {
                let bound = |inclusive| Some(Bound { value: value.clone(), inclusive });
                match comparison {
                    Comparison::Gt if access.low.is_none() => access.low = bound(false),
                    Comparison::GtEq if access.low.is_none() => access.low = bound(true),
                    Comparison::Lt if access.high.is_none() => access.high = bound(false),
                    Comparison::LtEq if access.high.is_none() => access.high = bound(true),
                    _ => {}
                }
            }
            if access.low.is_none() && access.high.is_none() {
                let prefix = self.prefixes.iter().find(|(c, _)| *c == next);
                access.prefix = prefix.map(|(_, prefix)| prefix.clone());
            }
        }
        if let Some(order) = order {
            match self.order_along(table, index, &access.parts, order) {
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

    /// Whether the index gives the order, and then whether backwards.
    fn order_along(
        &self,
        table: &Table,
        index: &Index,
        parts: &[Part],
        order: &Order,
    ) -> Option<bool> {
        if !parts.iter().all(|p| matches!(p, Part::Eq(_))) {
            return None;
        }
        let mut columns = table.entry_columns(index).enumerate();
        let fixed: Vec<usize> = (columns.by_ref().take(parts.len()))
            .map(|(at, column)| self.position(index, at, column))
            .collect();
        let mut reverse: Option<bool> = None;
        for (column, descending) in order {
            if fixed.contains(column) {
                continue;
            }
            match columns.next() {
                Some((at, next)) if self.position(index, at, next) == *column => {
                    if !usual_nulls(table, next) {
                        return None;
                    }
                    let backwards = (next.direction == Direction::Descending) != *descending;
                    if reverse.is_some_and(|r| r != backwards) {
                        return None;
                    }
                    reverse = Some(backwards);
                }
                // A unique key in full: what follows cannot matter.
                None if index.id == 0 => break,
                None if index.unique && !index.columns.iter().any(|c| may_be_null(table, c)) => {
                    break;
                }
                None if !index.unique && table.primary.is_some() => break,
                _ => return None,
            }
        }
        Some(reverse.unwrap_or(false))
    }
}

/// The index that gives the whole table in that order of columns, and whether backwards.
#[must_use]
pub fn along(table: &Table, order: &Order) -> Option<(u32, bool)> {
    Conditions::default().along(table, order)
}

fn may_be_null(table: &Table, column: &IndexColumn) -> bool {
    table.columns.get(column.column).is_none_or(|c| !c.not_null)
}

/// Whether NULLs are where ORDER BY has them unless it says otherwise, or are not there.
pub(super) fn usual_nulls(table: &Table, column: &IndexColumn) -> bool {
    column.nulls_first.is_none() || !may_be_null(table, column)
}

/// Whether a condition on a column of the primary key behind an index is worth its ranges.
fn narrows_behind(part: &Part, before: &[Part]) -> bool {
    match part {
        Part::Eq(_) => true,
        Part::In(values) => {
            values.len() <= telesto_sql_plan::MAX_BEHIND
                && before.iter().all(|part| matches!(part, Part::Eq(_)))
        }
        Part::Any(_) => false,
    }
}

fn flatten(expr: Expr) -> Vec<Expr> {
    match expr.node {
        Node::And(items) => items.into_iter().flat_map(flatten).collect(),
        node => vec![Expr { node, ty: expr.ty }],
    }
}

/// The key column, or expression of an index, under a comparison.
fn key_or_form(expr: &Expr, forms: &IndexExpressions) -> Option<(usize, SqlType)> {
    if let Some(found) = key_column(expr) {
        return Some(found);
    }
    if forms.is_empty() {
        return None;
    }
    forms.place_of(expr).or_else(|| match &expr.node {
        // Casts that keep order are looked through here as well.
        Node::Cast(inner, _) if keeps_order(&inner.ty, &expr.ty) => forms.place_of(inner),
        _ => None,
    })
}

/// The column under a comparison, through casts that keep order and equality.
fn key_column(expr: &Expr) -> Option<(usize, SqlType)> {
    match &expr.node {
        Node::Column(at) => Some((*at, expr.ty.clone())),
        Node::Cast(inner, _) => {
            let Node::Column(at) = inner.node else { return None };
            keeps_order(&inner.ty, &expr.ty).then(|| (at, inner.ty.clone()))
        }
        _ => None,
    }
}

fn keeps_order(from: &SqlType, to: &SqlType) -> bool {
    let widened = from.is_integer() && to.is_integer();
    let text =
        matches!(from, SqlType::Varchar(_) | SqlType::Name | SqlType::Text) && *to == SqlType::Text;
    widened || text
}
