//! FROM and WHERE of a join, taken apart: tables in one list, conditions as conjuncts.
//!
//! # Invariants
//! - Table i has its columns at `first..first + width` of a wide row that all conditions are bound
//!   over.
//! - Conditions of inner joins and of WHERE are one pool: they may be checked at any time after the
//!   tables they name were joined. A left join keeps its ON, a semi or anti join the condition of
//!   its subquery.
//! - ON sees the tables of its own comma item up to its join. A subquery's names hide outer ones.
//!
//! # On failure
//! Any error declines the query: the other executor's binder reports what is wrong.
//!
//! # Limits
//! Plain tables; inner, cross and left joins; subqueries of one table at the top of WHERE.

use std::sync::Arc;

use crate::access::conjuncts;
use crate::select::decline;
use crate::{find_table, name_parts};
use telesto_sql_catalog::Table;
use telesto_sql_expr::bound::Comparison;
use telesto_sql_expr::{Binder, EvalContext, Expr, Scope, ScopeColumn, ScopeRelation, fold};
use telesto_sql_parser::rewrite::using_alias;
use telesto_sql_parser::sqlparser::ast::{
    self, BinaryOperator, GroupByExpr, JoinConstraint, JoinOperator, Query, SelectItem, SetExpr,
    TableFactor, TableWithJoins,
};
use telesto_sql_plan::PlanContext;
use telesto_sql_plan::compiled_table;
use telesto_sql_types::error::{Error, Result, SqlState};

/// Most tables of one join.
const MAX_TABLES: usize = 32;

/// How a table is joined to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinKind {
    /// Only matches.
    Inner,
    /// NULLs where nothing matches.
    Left,
    /// Whether something matches.
    Semi,
    /// Whether nothing matches.
    Anti,
}

/// A table of the join.
#[derive(Debug)]
pub struct Source {
    /// Its description.
    pub table: Arc<Table>,
    /// The name it goes by.
    pub name: String,
    /// Its first column in the wide row.
    pub first: usize,
    /// How it is joined.
    pub kind: JoinKind,
    /// What a match must fulfil, besides the pool if it is an inner join.
    pub on: Vec<Expr>,
}

/// A column of `SELECT *`: name, position, table.
#[derive(Clone, Debug)]
pub struct Star {
    /// Its name.
    pub name: String,
    /// Position in the wide row.
    pub position: usize,
}

/// FROM and WHERE.
#[derive(Debug, Default)]
pub struct Sources {
    /// The tables, in the order they are written.
    pub tables: Vec<Source>,
    /// The names in view of the select list.
    pub scope: Scope,
    /// Conditions of inner joins and WHERE.
    pub pool: Vec<Expr>,
    /// What `*` stands for.
    pub star: Vec<Star>,
    width: usize,
}

impl Sources {
    /// Takes FROM and WHERE apart.
    ///
    /// # Errors
    /// Whatever declines the query.
    pub fn bind(
        from: &[TableWithJoins],
        selection: Option<&ast::Expr>,
        context: &mut PlanContext<'_>,
        eval: &EvalContext<'_>,
    ) -> Result<Self> {
        let mut all = Self::default();
        for item in from {
            all.item(item, context, eval)?;
        }
        let names = all.scope.relations.iter().filter(|r| !r.name.is_empty());
        let mut names: Vec<&str> = names.map(|r| r.name.as_str()).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(decline("a table name given twice"));
        }
        let mut parts = Vec::new();
        if let Some(selection) = selection {
            split(selection, &mut parts);
        }
        for part in parts {
            match subquery(part) {
                None => {
                    let mut binder = Binder::new(&all.scope, context.parameters, eval, "WHERE");
                    all.pool.extend(conjuncts(Some(binder.condition(part)?)));
                }
                Some(Nested { query, tested, kind }) => {
                    all.semi(query, tested, kind, context, eval)?;
                }
            }
        }
        Ok(all)
    }

    /// The table whose columns include `position`.
    #[must_use]
    pub fn table_of(&self, position: usize) -> usize {
        self.tables.partition_point(|t| t.first <= position).saturating_sub(1)
    }

    /// Columns of the wide row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    fn add(&mut self, table: Arc<Table>, name: String, kind: JoinKind) -> Result<ScopeRelation> {
        if self.tables.len() == MAX_TABLES {
            return Err(decline("more tables than a key join takes"));
        }
        let relation = compiled_table::relation(&table, &name, self.width, true);
        let first = self.width;
        self.width += table.columns.len();
        self.tables.push(Source { table, name, first, kind, on: Vec::new() });
        Ok(relation)
    }

    /// One comma-separated item with its joins.
    fn item(
        &mut self,
        item: &TableWithJoins,
        context: &mut PlanContext<'_>,
        eval: &EvalContext<'_>,
    ) -> Result<()> {
        let (table, name) = plain_table(&item.relation, context)?;
        let relation = self.add(table, name, JoinKind::Inner)?;
        let mut star = stars(&relation);
        let mut scope = Scope { relations: vec![relation] };
        for join in &item.joins {
            let (kind, constraint) = match &join.join_operator {
                JoinOperator::Join(c) | JoinOperator::Inner(c) => (JoinKind::Inner, Some(c)),
                JoinOperator::Left(c) | JoinOperator::LeftOuter(c) => (JoinKind::Left, Some(c)),
                JoinOperator::CrossJoin(_) => (JoinKind::Inner, None),
                _ => return Err(decline("a join other than INNER, CROSS and LEFT")),
            };
            if join.global {
                return Err(decline("GLOBAL JOIN"));
            }
            let (table, name) = plain_table(&join.relation, context)?;
            let relation = self.add(table, name, kind)?;
            let right = stars(&relation);
            let mut on = Vec::new();
            match constraint {
                None | Some(JoinConstraint::None) if kind == JoinKind::Inner => {
                    scope.relations.push(relation);
                    star.extend(right);
                }
                Some(JoinConstraint::On(condition)) => {
                    scope.relations.push(relation);
                    star.extend(right);
                    let mut binder = Binder::new(&scope, context.parameters, eval, "JOIN/ON");
                    on = conjuncts(Some(binder.condition(condition)?));
                }
                Some(JoinConstraint::Using(names)) if using_alias::alias(names).is_some() => {
                    return Err(decline("an alias of USING"));
                }
                Some(JoinConstraint::Using(names)) => {
                    let names = names
                        .iter()
                        .filter_map(|name| name.0.last().and_then(|p| p.as_ident()).map(fold));
                    let mut merged = Vec::new();
                    let alone = Scope { relations: vec![relation.clone()] };
                    for name in names {
                        let left = scope.resolve(None, &name)?.clone();
                        let right = alone.resolve(None, &name)?.clone();
                        if left.ty.without_modifier() != right.ty.without_modifier() {
                            return Err(decline("USING over columns of different types"));
                        }
                        let mut binder = Binder::new(&scope, context.parameters, eval, "USING");
                        on.push(binder.compare(
                            Comparison::Eq,
                            Expr::column(left.position, left.ty.clone()),
                            Expr::column(right.position, right.ty.clone()),
                        )?);
                        merged.push(left);
                    }
                    star = merge(star, right, &merged);
                    scope.relations.push(relation);
                    for relation in &mut scope.relations {
                        relation.hidden.extend(merged.iter().map(|c| c.name.clone()));
                    }
                    scope.relations.push(ScopeRelation {
                        // No name can be written so: its columns are found without one only.
                        name: String::new(),
                        columns: merged,
                        unqualified: true,
                        hidden: Vec::new(),
                    });
                }
                _ => return Err(decline("NATURAL JOIN")),
            }
            match kind {
                JoinKind::Inner => self.pool.extend(on),
                _ => {
                    if let Some(last) = self.tables.last_mut() {
                        last.on = on;
                    }
                }
            }
        }
        self.scope.relations.extend(scope.relations);
        self.star.extend(star);
        Ok(())
    }

    /// A subquery in WHERE as a semi or anti join.
    fn semi(
        &mut self,
        query: &Query,
        tested: Option<&ast::Expr>,
        kind: JoinKind,
        context: &mut PlanContext<'_>,
        eval: &EvalContext<'_>,
    ) -> Result<()> {
        let select = plain_select(query)?;
        let [item] = select.from.as_slice() else { return Err(decline("a subquery of this kind")) };
        if !item.joins.is_empty() {
            return Err(decline("a subquery with a join"));
        }
        let (table, name) = plain_table(&item.relation, context)?;
        let inner = self.add(table, name, kind)?;
        let mut scope = Scope::default();
        for outer in &self.scope.relations {
            let mut outer = outer.clone();
            outer.hidden.extend(inner.columns.iter().map(|c| c.name.clone()));
            if outer.name != inner.name {
                scope.relations.push(outer);
            }
        }
        scope.relations.push(inner.clone());
        let mut on = Vec::new();
        match tested {
            // EXISTS: nothing that could make one row of no rows, or more of one.
            None => {
                let simple = |item: &SelectItem| {
                    matches!(
                        item,
                        SelectItem::Wildcard(_)
                            | SelectItem::UnnamedExpr(
                                ast::Expr::Value(_)
                                    | ast::Expr::Identifier(_)
                                    | ast::Expr::CompoundIdentifier(_)
                            )
                    )
                };
                if !select.projection.iter().all(simple) {
                    return Err(decline("a subquery of this kind"));
                }
                for item in &select.projection {
                    if let SelectItem::UnnamedExpr(expr) = item {
                        Binder::new(&scope, context.parameters, eval, "SELECT").bind(expr)?;
                    }
                }
            }
            Some(tested) => {
                let [SelectItem::UnnamedExpr(shown)] = select.projection.as_slice() else {
                    return Err(decline("a subquery of this kind"));
                };
                let mut binder = Binder::new(&self.scope, context.parameters, eval, "WHERE");
                let left = binder.bind(tested)?;
                let mut binder = Binder::new(&scope, context.parameters, eval, "SELECT");
                let right = binder.bind_known(shown)?;
                on.push(binder.compare(Comparison::Eq, left, right)?);
            }
        }
        if let Some(condition) = &select.selection {
            let mut binder = Binder::new(&scope, context.parameters, eval, "WHERE");
            on.extend(conjuncts(Some(binder.condition(condition)?)));
        }
        if let Some(last) = self.tables.last_mut() {
            last.on = on;
        }
        Ok(())
    }
}

/// A subquery that stands in WHERE by itself.
struct Nested<'q> {
    query: &'q Query,
    tested: Option<&'q ast::Expr>,
    kind: JoinKind,
}

fn subquery(expr: &ast::Expr) -> Option<Nested<'_>> {
    match expr {
        ast::Expr::Nested(inner) => subquery(inner),
        ast::Expr::Exists { subquery, negated } => Some(Nested {
            query: subquery,
            tested: None,
            kind: if *negated { JoinKind::Anti } else { JoinKind::Semi },
        }),
        ast::Expr::UnaryOp { op: ast::UnaryOperator::Not, expr } => match subquery(expr)? {
            Nested { query, tested: None, kind: JoinKind::Semi } => {
                Some(Nested { query, tested: None, kind: JoinKind::Anti })
            }
            _ => None,
        },
        // NOT IN is unknown, not true, where the list holds a NULL: left to the other executor.
        ast::Expr::InSubquery { expr, subquery, negated: false } => {
            Some(Nested { query: subquery, tested: Some(expr), kind: JoinKind::Semi })
        }
        _ => None,
    }
}

/// Whether WHERE has a subquery as one of its conjuncts.
pub fn has_subquery(selection: Option<&ast::Expr>) -> bool {
    let mut parts = Vec::new();
    if let Some(selection) = selection {
        split(selection, &mut parts);
    }
    parts.into_iter().any(|part| subquery(part).is_some())
}

fn split<'e>(expr: &'e ast::Expr, out: &mut Vec<&'e ast::Expr>) {
    let mut pending = vec![expr];
    while let Some(next) = pending.pop() {
        match next {
            ast::Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
                pending.push(right);
                pending.push(left);
            }
            ast::Expr::Nested(inner)
                if matches!(**inner, ast::Expr::BinaryOp { op: BinaryOperator::And, .. }) =>
            {
                pending.push(inner);
            }
            other => out.push(other),
        }
    }
}

fn plain_select(query: &Query) -> Result<&ast::Select> {
    let SetExpr::Select(select) = &*query.body else {
        return Err(decline("a subquery of this kind"));
    };
    let plain = query.with.is_none()
        && query.order_by.is_none()
        && query.limit_clause.is_none()
        && query.fetch.is_none()
        && query.locks.is_empty()
        && query.for_clause.is_none()
        && select.distinct.is_none()
        && select.having.is_none()
        && select.qualify.is_none()
        && select.into.is_none()
        && select.top.is_none()
        && select.named_window.is_empty()
        && select.lateral_views.is_empty()
        && matches!(&select.group_by, GroupByExpr::Expressions(g, m) if g.is_empty() && m.is_empty());
    if plain { Ok(select) } else { Err(decline("a subquery of this kind")) }
}

fn plain_table(factor: &TableFactor, context: &PlanContext<'_>) -> Result<(Arc<Table>, String)> {
    let TableFactor::Table { name, alias, args: None, version: None, sample: None, .. } = factor
    else {
        return Err(decline("something other than a plain table in FROM"));
    };
    if alias.as_ref().is_some_and(|a| !a.columns.is_empty()) {
        return Err(decline("a column alias list"));
    }
    let table = find_table(name, context)?;
    crate::policies::open(&table, context)?;
    let shown = alias.as_ref().map_or_else(|| table.name.clone(), |a| fold(&a.name));
    Ok((table, shown))
}

fn stars(relation: &ScopeRelation) -> Vec<Star> {
    let star = |c: &ScopeColumn| Star { name: c.name.clone(), position: c.position };
    relation.columns.iter().map(star).collect()
}

/// `*` of a join with USING: the merged columns, the left's others, the right's others.
fn merge(left: Vec<Star>, right: Vec<Star>, merged: &[ScopeColumn]) -> Vec<Star> {
    let mut all: Vec<Star> =
        merged.iter().map(|c| Star { name: c.name.clone(), position: c.position }).collect();
    let own = |star: &Star| !merged.iter().any(|c| c.name == star.name);
    all.extend(left.into_iter().filter(|s| !merged.iter().any(|c| c.position == s.position)));
    all.extend(right.into_iter().filter(own));
    all
}

/// Positions and names of the columns `name.*` stands for.
///
/// # Errors
/// 42P01 when there is no such table.
pub fn qualified_star(scope: &Scope, name: &ast::ObjectName) -> Result<Vec<Star>> {
    let (_, wanted) = name_parts(name)?;
    scope.relations.iter().find(|r| r.name == wanted).map(stars).ok_or_else(|| {
        Error::new(
            SqlState::UNDEFINED_TABLE,
            format!("missing FROM-clause entry for table \"{wanted}\""),
        )
    })
}
