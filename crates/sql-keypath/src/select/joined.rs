//! Queries of several tables: what is above a key join.
//!
//! # Invariants
//! Expressions are bound over the wide row of all columns, and moved to the join's rows once its
//! order is chosen.

use super::*;
use crate::join::from::Star;
use crate::join::order::{self, Arranged, Wanted};
use telesto_sql_catalog::CatalogSnapshot;

impl SelectPlan {
    /// Chooses the order of a join, and moves all expressions to its rows.
    pub(super) fn join(
        &mut self,
        sources: &Sources,
        order: Option<&Order>,
        catalog: &CatalogSnapshot,
    ) -> Result<()> {
        let above = || {
            let inputs = self.aggregates.iter().filter_map(|a| a.arg.as_ref());
            let plain = self.aggregates.is_empty() && self.group.is_none();
            let outputs = if plain { self.output.iter() } else { [].iter() };
            let sort = if self.group.is_none() { self.sort.iter() } else { [].iter() };
            let keys = self.group.iter().flat_map(|group| &group.keys);
            outputs.chain(inputs).chain(sort.map(|key| &key.expr)).chain(keys)
        };
        let mut used = vec![false; sources.width()];
        above().for_each(|expr| expr.mark_columns(&mut used));
        let conditions = sources.pool.iter().chain(sources.tables.iter().flat_map(|t| &t.on));
        let all = above().chain(conditions).chain(&self.output);
        if all.into_iter().any(|e| e.volatility() == Volatility::Volatile) {
            return Err(decline("a volatile function in a join"));
        }
        let wanted = Wanted {
            columns: used,
            order,
            sorted: !self.sort.is_empty() && self.group.is_none(),
            limited: self.limit.is_some() && self.aggregates.is_empty() && self.group.is_none(),
            rows: rows_of(self.limit.as_ref())
                .zip(match &self.offset {
                    None => Some(0.0),
                    offset => rows_of(offset.as_ref()),
                })
                .map(|(limit, offset)| limit + offset),
        };
        let Arranged { mut plan, places, ordered } = order::arrange(sources, &wanted, catalog)?;
        if self.locks.is_some() {
            plan.fetch_rows();
        }
        if ordered && self.group.is_none() {
            self.sort.clear();
        }
        let to = |at: usize| places.get(at).copied().unwrap_or(usize::MAX);
        let plain = self.aggregates.is_empty();
        let inputs = self.aggregates.iter_mut().filter_map(|a| a.arg.as_mut());
        match &mut self.group {
            Some(group) => inputs.chain(&mut group.keys).for_each(|e| e.remap(&to)),
            None => {
                inputs.for_each(|e| e.remap(&to));
                let outputs = if plain { self.output.iter_mut() } else { [].iter_mut() };
                let sort = self.sort.iter_mut().map(|key| &mut key.expr);
                outputs.chain(sort).for_each(|e| e.remap(&to));
            }
        }
        // With LIMIT, the rows of few that come first are joined first: those behind it never are.
        // By columns only: an expression could fail for a row that finds no match.
        let driver = plan.driver.codec.width();
        self.sort_first = self.limit.is_some()
            && self.group.is_none()
            && plain
            && self.locks.is_none()
            && !self.sort.is_empty()
            && self.sort.iter().all(|key| matches!(key.expr.node, Node::Column(at) if at < driver));
        self.join = Some(Arc::new(plan));
        Ok(())
    }
}

/// The number of rows that a LIMIT or OFFSET says, if it is a constant.
fn rows_of(bound: Option<&Expr>) -> Option<f64> {
    match bound?.node {
        Node::Const(Datum::Int8(rows)) => Some(rows as f64),
        _ => None,
    }
}

/// Adds the columns a `*` over a join stands for.
pub(super) fn stars(
    sources: &Sources,
    found: Vec<Star>,
    output: &mut Vec<Expr>,
    columns: &mut Vec<ResultColumn>,
) {
    for star in found {
        let source = &sources.tables[sources.table_of(star.position)];
        let ty = source.table.columns[star.position - source.first].ty.clone();
        let column = Expr::column(star.position, ty);
        columns.push(joined_column(sources, star.name, &column));
        output.push(column);
    }
}

/// A result column of a join; a plain column keeps its origin.
pub(super) fn joined_column(sources: &Sources, name: String, bound: &Expr) -> ResultColumn {
    let mut column = ResultColumn::new(name, bound.ty.clone());
    if let Node::Column(at) = bound.node
        && at < BEHIND
    {
        let source = &sources.tables[sources.table_of(at)];
        column.table_oid = source.table.id.0;
        column.attnum = source.table.columns[at - source.first].id;
    }
    column
}
