//! The order of a join: which table drives it, and by which keys the others are reached.
//!
//! # Invariants
//! - Every conjunct is proved by a path or checked once, as soon as the tables it names are joined.
//! - A left, semi or anti join comes after every table its condition names.
//! - Rows of the plan hold the columns used, in the order of the levels: positions are moved from
//!   the wide row here.
//!
//! # On failure
//! 0A000 with the table that no key reaches, or why its driver is left to a hash join.
//!
//! # Limits
//! Greedy: the best path first; of tables that nobody has analyzed, what is unique goes before what
//! is not.

use super::from::{JoinKind, Source, Sources};
use super::{Driver, JoinPlan, Step};
use crate::access::estimate::{LOOK_UP, SMALL, expected, left};
use crate::access::{Access, Best, Conditions, Order, conjunction};
use crate::select::decline;
use telesto_sql_catalog::CatalogSnapshot;
use telesto_sql_catalog::codec::{EntryCodec, RowCodec};
use telesto_sql_expr::Expr;
use telesto_sql_plan::estimate::Shape;
use telesto_sql_types::error::{Error, Result};

/// What the query wants of the rows.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// Columns (of the wide row) used above the join.
    pub columns: Vec<bool>,
    /// The order, if it is one of columns.
    pub order: Option<&'a Order>,
    /// Whether there is an ORDER BY at all.
    pub sorted: bool,
    /// Whether LIMIT ends it early, if no sort is needed.
    pub limited: bool,
    /// Rows that LIMIT and OFFSET let through and pass over, where they are constants.
    pub rows: Option<f64>,
}

/// The plan with where the columns of the wide row went.
#[derive(Debug)]
pub struct Arranged {
    /// The plan.
    pub plan: JoinPlan,
    /// Place of each column of the wide row in the plan's rows; `usize::MAX` for those not used.
    pub places: Vec<usize>,
    /// Rows come in the order wanted.
    pub ordered: bool,
}

/// An order of a join with what it costs, in rows of a scan, where all of its tables were analyzed.
struct Candidate {
    arranged: Arranged,
    cost: Option<f64>,
    /// All of the driver's table is walked, in the order wanted, until enough rows are found.
    walks: bool,
}

/// How much cheaper a walk along an index has to be: how many of its rows find what they are joined
/// to is a guess.
const WALK: f64 = 2.0;
/// The part of all rows that a LIMIT of unknown length is taken for, as in PostgreSQL.
const UNKNOWN_LIMIT: f64 = 0.1;

/// What is known of the rows of each table.
type Shapes<'s> = Vec<Option<Shape<'s>>>;

/// A step before its columns are placed.
struct Level {
    source: usize,
    access: Access,
    matches: Vec<Expr>,
    after: Vec<Expr>,
}

struct Arranging<'s> {
    sources: &'s Sources,
    /// Conjuncts of the pool with the tables they name; `None` once used.
    pool: Vec<(Option<Expr>, u64)>,
    bound: u64,
    levels: Vec<Level>,
    shapes: &'s Shapes<'s>,
    /// Rows expected of what is joined so far.
    rows: Option<f64>,
    /// The same, where a level may have less than one for each row before it.
    expected: Option<f64>,
    /// What the look-ups of all levels cost, and what reading the tables would.
    costs: Option<(f64, f64)>,
}

/// Chooses the order.
///
/// # Errors
/// 0A000 with the reason to decline.
pub fn arrange(
    sources: &Sources,
    wanted: &Wanted<'_>,
    catalog: &CatalogSnapshot,
) -> Result<Arranged> {
    let shapes: Shapes<'_> =
        sources.tables.iter().map(|source| Shape::of(catalog, &source.table)).collect();
    let mut drivers: Vec<(u64, usize, Best)> = Vec::new();
    for (at, source) in sources.tables.iter().enumerate() {
        if source.kind == JoinKind::Inner {
            let best = driving(sources, at, wanted, &shapes);
            drivers.push((best.score, at, best));
        }
    }
    drivers.sort_by_key(|(score, at, _)| (std::cmp::Reverse(*score), *at));
    // Where one gives the order of the few rows asked for, that counts for more than how many it
    // has.
    if !(wanted.limited && wanted.sorted) && drivers.iter().all(|(_, _, best)| best.cost.is_some())
    {
        let cost = |best: &Best| match best.access.unique {
            true => 1.0,
            false => best.cost.unwrap_or(f64::INFINITY),
        };
        drivers.sort_by(|(.., a), (.., b)| {
            a.access.is_full().cmp(&b.access.is_full()).then(cost(a).total_cmp(&cost(b)))
        });
    }
    let mut reason: Option<Error> = None;
    let by_cost = wanted.limited && wanted.sorted && shapes.iter().all(Option::is_some);
    let mut found: Vec<Candidate> = Vec::new();
    for (_, at, best) in drivers {
        match Arranging::from_driver(sources, at, best, wanted, &shapes) {
            Ok(candidate) if by_cost && candidate.cost.is_some() => found.push(candidate),
            // A walk counts only beside what it spares.
            Ok(candidate) if candidate.walks => {}
            Ok(candidate) => return Ok(candidate.arranged),
            Err(error) => {
                reason.get_or_insert(error);
            }
        }
    }
    let scans: f64 = shapes.iter().flatten().map(Shape::rows).sum();
    let priced = found.into_iter().filter_map(|candidate| {
        let cost = candidate.cost? * if candidate.walks { WALK } else { 1.0 };
        (!candidate.walks || cost < scans).then_some((cost, candidate))
    });
    let least = priced.min_by(|(one, _), (other, _)| one.total_cmp(other));
    least.map(|(_, candidate)| candidate.arranged).ok_or_else(|| {
        reason.unwrap_or_else(|| decline("no table of the join has a condition on a key"))
    })
}

/// The best path to a table from constants alone.
fn driving(sources: &Sources, at: usize, wanted: &Wanted<'_>, shapes: &Shapes<'_>) -> Best {
    let source = &sources.tables[at];
    let own = own_conjuncts(sources, at);
    let order = own_order(source, wanted.order);
    let left = shapes[at].as_ref().map(|s| left(s, &own, source.first, &source.table));
    let found = Conditions::among(own, columns(source), &|value| !value.uses_columns());
    let mut best = found.best(&source.table, order.as_ref(), shapes[at].as_ref());
    if best.access.is_full()
        && let Some(order) = &order
        && let Some((index, reverse)) = crate::access::along(&source.table, order)
    {
        best.access = Access { index, reverse, ordered: true, ..Access::full() };
    }
    best.access.rows = left;
    best
}

fn own_conjuncts(sources: &Sources, at: usize) -> Vec<Expr> {
    sources.pool.iter().filter(|c| tables_of(sources, c) & !(1 << at) == 0).cloned().collect()
}

/// The order in the table's own columns, when it is of them alone.
fn own_order(source: &Source, order: Option<&Order>) -> Option<Order> {
    let columns = columns(source);
    order?
        .iter()
        .map(|(column, down)| columns.contains(column).then(|| (column - columns.start, *down)))
        .collect()
}

fn columns(source: &Source) -> std::ops::Range<usize> {
    source.first..source.first + source.table.columns.len()
}

fn tables_of(sources: &Sources, expr: &Expr) -> u64 {
    let mut found = 0;
    expr.walk(&mut |e| {
        if let telesto_sql_expr::Node::Column(at) = e.node {
            found |= 1 << sources.table_of(at);
        }
    });
    found
}

impl<'s> Arranging<'s> {
    fn from_driver(
        sources: &'s Sources,
        at: usize,
        best: Best,
        wanted: &Wanted<'_>,
        shapes: &'s Shapes<'s>,
    ) -> Result<Candidate> {
        let pool = sources.pool.iter().map(|c| (Some(c.clone()), tables_of(sources, c))).collect();
        let rows = best.access.rows.map(|rows| rows as f64);
        let all = shapes[at].as_ref().map(Shape::rows);
        // A walk is not priced where nothing ends it early.
        let walk = all.filter(|_| wanted.limited && best.access.is_full());
        let each = if best.access.index == 0 { 1.0 } else { LOOK_UP };
        let costs = best.cost.or(walk.map(|rows| rows * each)).zip(all);
        let (bound, levels) = (1 << at, Vec::new());
        let expected = rows;
        let mut work = Self { sources, pool, bound, levels, shapes, rows, expected, costs };
        let source = &sources.tables[at];
        let own = work.take(0);
        let filter: Vec<Expr> = unproved(own, &best.proved);
        let access = best.access;
        while work.levels.len() + 1 < sources.tables.len() {
            work.extend()?;
        }
        let ordered = wanted.sorted && access.ordered && own_order(source, wanted.order).is_some();
        let short = wanted.limited && (ordered || !wanted.sorted);
        if let Some((look_ups, scans)) = work.costs
            && !wanted.limited
            && scans > SMALL
            && look_ups > scans
        {
            return Err(decline("its keys lead to so much of the tables that scans cost less"));
        }
        let mut walks = false;
        if access.is_full() {
            let all_kept = filter.is_empty()
                && work.levels.iter().all(|level| {
                    let kind = sources.tables[level.source].kind;
                    level.after.is_empty()
                        && (kind == JoinKind::Left
                            || kind == JoinKind::Inner && level.matches.is_empty())
                });
            // How many rows have a match at all, or none, is not known: nor how many a condition on
            // what a left join gives leaves.
            let inner = |level: &Level| match sources.tables[level.source].kind {
                JoinKind::Inner => true,
                JoinKind::Left => level.after.is_empty(),
                JoinKind::Semi | JoinKind::Anti => false,
            };
            walks = !all_kept && ordered && work.costs.is_some() && work.levels.iter().all(inner);
            if !short || !all_kept && !walks {
                return Err(decline("no table of the join has a condition on a key"));
            }
        } else if access.parts.is_empty()
            && access.prefix.is_none()
            && (access.low.is_none() || access.high.is_none())
            && work.costs.is_none()
            && !short
        {
            return Err(decline("all rows of an open range are joined"));
        }
        // What is asked for may be found before all is read.
        let part = match (work.expected, short) {
            (Some(rows), true) => {
                wanted.rows.map_or(UNKNOWN_LIMIT, |wanted| (wanted / rows.max(1.0)).min(1.0))
            }
            _ => 1.0,
        };
        let cost = work.costs.map(|(look_ups, _)| look_ups * part);
        let arranged = work.place(at, access, filter, ordered, wanted)?;
        Ok(Candidate { arranged, cost, walks })
    }

    /// Takes the unused conjuncts that name joined tables only, and of these `more`.
    fn take(&mut self, more: u64) -> Vec<Expr> {
        let seen = self.bound | more;
        self.pool
            .iter_mut()
            .filter(|(_, tables)| tables & !seen == 0)
            .filter_map(|(conjunct, _)| conjunct.take())
            .collect()
    }

    /// Joins the table with the best path.
    fn extend(&mut self) -> Result<()> {
        let sources = self.sources;
        let joined = |at: usize| self.bound & (1 << at) != 0;
        let mut chosen: Option<(Option<f64>, usize, Best)> = None;
        let mut unreached: Option<&str> = None;
        for (at, source) in sources.tables.iter().enumerate() {
            if joined(at) {
                continue;
            }
            let conjuncts = match source.kind {
                JoinKind::Inner => self
                    .pool
                    .iter()
                    .filter(|(_, tables)| tables & !(self.bound | 1 << at) == 0)
                    .filter_map(|(conjunct, _)| conjunct.clone())
                    .collect(),
                _ if self.ready(at) => source.on.clone(),
                _ => continue,
            };
            let known = |value: &Expr| tables_of(sources, value) & !self.bound == 0;
            let shape = self.shapes[at].as_ref();
            let left = shape.map(|shape| left(shape, &conjuncts, source.first, &source.table));
            let each = shape.map(|s| expected(s, &conjuncts, source.first, &source.table));
            let conditions = Conditions::among(conjuncts, columns(source), &known);
            let mut best = conditions.best(&source.table, None, shape);
            best.access.rows = left;
            if best.access.parts.is_empty() {
                unreached.get_or_insert(&source.name);
            } else if chosen.as_ref().is_none_or(|(.., other)| best.is_better(other, false, false))
            {
                chosen = Some((each, at, best));
            }
        }
        let Some((each, at, best)) = chosen else {
            return Err(decline(&format!(
                "no key leads to \"{}\"",
                unreached.unwrap_or("a table")
            )));
        };
        let (conjuncts, after) = if sources.tables[at].kind == JoinKind::Inner {
            (self.take(1 << at), Vec::new())
        } else {
            (sources.tables[at].on.clone(), self.take(1 << at))
        };
        self.bound |= 1 << at;
        self.expected = self.expected.zip(each).map(|(rows, each)| match sources.tables[at].kind {
            JoinKind::Inner => rows * each,
            JoinKind::Left => rows * each.max(1.0),
            JoinKind::Semi | JoinKind::Anti => rows,
        });
        let access = self.reckon(at, best.access, best.cost);
        self.levels.push(Level {
            source: at,
            access,
            matches: unproved(conjuncts, &best.proved),
            after,
        });
        Ok(())
    }

    /// Counts what a level costs, and how many rows there are behind it: `access.rows` is of one
    /// row before it until then.
    fn reckon(&mut self, at: usize, mut access: Access, cost: Option<f64>) -> Access {
        let each = access.rows.take();
        self.costs = match (self.costs, cost, self.rows, &self.shapes[at]) {
            (Some((look_ups, scans)), Some(cost), Some(rows), Some(shape)) => {
                let cost = if access.unique { LOOK_UP } else { cost.max(LOOK_UP) };
                Some((look_ups + rows * cost, scans + shape.rows()))
            }
            _ => None,
        };
        self.rows = self.rows.zip(each).map(|(rows, each)| match self.sources.tables[at].kind {
            JoinKind::Inner => rows * each as f64,
            JoinKind::Left => rows * (each as f64).max(1.0),
            JoinKind::Semi | JoinKind::Anti => rows,
        });
        access.rows = self.rows.map(|rows| rows.round().max(1.0) as u64);
        access
    }

    /// Whether all tables that the condition of a left, semi or anti join names are joined.
    fn ready(&self, at: usize) -> bool {
        let named = self.sources.tables[at]
            .on
            .iter()
            .fold(0, |found, conjunct| found | tables_of(self.sources, conjunct));
        named & !(self.bound | 1 << at) == 0
    }

    /// Gives every column that is used its place, and builds the plan.
    fn place(
        mut self,
        driver: usize,
        mut access: Access,
        filter: Vec<Expr>,
        ordered: bool,
        wanted: &Wanted<'_>,
    ) -> Result<Arranged> {
        let sources = self.sources;
        let mut used = wanted.columns.clone();
        for expr in &filter {
            expr.mark_columns(&mut used);
        }
        for level in &mut self.levels {
            level.access.each_value(&mut |value| value.mark_columns(&mut used));
            for expr in level.matches.iter().chain(&level.after) {
                expr.mark_columns(&mut used);
            }
        }
        let mut places = vec![usize::MAX; used.len()];
        let mut next = 0;
        for at in std::iter::once(driver).chain(self.levels.iter().map(|l| l.source)) {
            let source = &sources.tables[at];
            let before = next;
            for column in columns(source).filter(|c| used[*c]) {
                places[column] = next;
                next += 1;
            }
            if matches!(source.kind, JoinKind::Semi | JoinKind::Anti) {
                // Its columns are there while it is matched, and gone afterwards.
                next = before;
            }
        }
        let to = |at: usize| places.get(at).copied().unwrap_or(usize::MAX);
        let moved = |exprs: Vec<Expr>| {
            let mut all = conjunction(exprs);
            all.iter_mut().for_each(|e| e.remap(&to));
            all
        };
        let codec = |source: &Source| {
            RowCodec::compact(&source.table, |column| used[source.first + column])
        };
        let entries = |source: &Source, access: &Access| {
            let index = source.table.index(access.index)?;
            let wanted: Vec<bool> = columns(source).map(|column| used[column]).collect();
            EntryCodec::compact(&source.table, index, &wanted)
        };
        access.each_value(&mut |value| value.remap(&to));
        let first = &sources.tables[driver];
        let plan = JoinPlan {
            driver: Driver {
                table: std::sync::Arc::clone(&first.table),
                codec: codec(first)?,
                entries: entries(first, &access),
                access,
                filter: moved(filter),
            },
            steps: self
                .levels
                .into_iter()
                .map(|mut level| {
                    let source = &sources.tables[level.source];
                    level.access.each_value(&mut |value| value.remap(&to));
                    Ok(Step {
                        table: std::sync::Arc::clone(&source.table),
                        codec: codec(source)?,
                        entries: entries(source, &level.access),
                        access: level.access,
                        kind: source.kind,
                        matches: moved(level.matches),
                        after: moved(level.after),
                    })
                })
                .collect::<Result<_>>()?,
        };
        Ok(Arranged { plan, places, ordered })
    }
}

fn unproved(conjuncts: Vec<Expr>, proved: &[usize]) -> Vec<Expr> {
    let kept = conjuncts.into_iter().enumerate().filter(|(at, _)| !proved.contains(at));
    kept.map(|(_, conjunct)| conjunct).collect()
}
