//! GROUP BY, HAVING and DISTINCT of the key path.
//!
//! # Protocol
//! ```text
//! rows -> keys of the group, arguments of aggregates -> one row a group: keys, then aggregates -> HAVING -> ORDER BY -> output
//! ```
//! Expressions above the groups are bound over the rows below them, aggregates behind all columns;
//! then each part that is a key, and each aggregate, becomes a column of the group's row
//! ([`lift`]).
//!
//! # Invariants
//! - Values are the same when their keys in an index would be: `1.0` and `1.00` are one group,
//!   which shows the first.
//! - Groups come in the order their first rows came.
//!
//! # On failure
//! 53200 when the groups do not fit the statement's memory.
//!
//! # Limits
//! Plain expressions of types that keys can have; columns that depend on a grouped primary key are
//! left to DataFusion.

use rustc_hash::FxHashMap;
use telesto_common::key::{Direction, KeyWriter};

use super::order::is_constant;
use super::*;

/// The groups of a query.
#[derive(Debug)]
pub(super) struct Grouping {
    /// What is grouped by, over the rows below.
    pub keys: Vec<Expr>,
    /// Over a row of a group.
    having: Option<Expr>,
}

/// What is shown of the groups.
pub(super) struct Shown<'a> {
    pub output: &'a mut [Expr],
    pub sort: &'a mut [SortKey],
}

/// The expressions of GROUP BY; `None`: there is no such clause.
pub(super) fn keys(
    select: &ast::Select,
    scope: &Scope,
    context: &mut PlanContext<'_>,
    eval: &EvalContext<'_>,
) -> Result<Option<Vec<Expr>>> {
    let GroupByExpr::Expressions(items, modifiers) = &select.group_by else {
        return Err(decline("GROUP BY ALL"));
    };
    if !modifiers.is_empty() {
        return Err(decline("GROUP BY WITH"));
    }
    if items.is_empty() {
        return Ok(None);
    }
    let mut keys: Vec<Expr> = Vec::with_capacity(items.len());
    for item in items {
        let item = meant(item, select, scope)?;
        let key = Binder::new(scope, context.parameters, eval, "GROUP BY").bind_known(item)?;
        keys.push(groupable(key)?);
    }
    Ok(Some(keys))
}

/// The expression an item of GROUP BY stands for: a column, before a number or name of the select
/// list.
fn meant<'q>(item: &'q ast::Expr, select: &'q ast::Select, scope: &Scope) -> Result<&'q ast::Expr> {
    let shown = |at: usize| match select.projection.get(at) {
        Some(SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) => Ok(expr),
        _ => Err(decline("this item of GROUP BY")),
    };
    match item {
        ast::Expr::Value(value) => match &value.value {
            ast::Value::Number(number, _) => {
                let at = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
                shown(at.unwrap_or(usize::MAX))
            }
            _ => Err(decline("a constant in GROUP BY")),
        },
        ast::Expr::Identifier(name) => {
            let name = fold(name);
            if scope.resolve(None, &name).is_ok() {
                return Ok(item);
            }
            let named = |item: &SelectItem| matches!(item, SelectItem::ExprWithAlias { alias, .. } if fold(alias) == name);
            shown(select.projection.iter().position(named).unwrap_or(usize::MAX))
        }
        ast::Expr::Rollup(_)
        | ast::Expr::Cube(_)
        | ast::Expr::GroupingSets(_)
        | ast::Expr::Tuple(_) => Err(decline("grouping sets")),
        other if is_constant(other) => Err(decline("a constant in GROUP BY")),
        other => Ok(other),
    }
}

/// Refuses what cannot be told apart by its key.
fn groupable(key: Expr) -> Result<Expr> {
    use SqlType as T;
    let known = matches!(
        key.ty,
        T::Bool
            | T::Int2
            | T::Int4
            | T::Int8
            | T::Float4
            | T::Float8
            | T::Numeric(_)
            | T::Text
            | T::Varchar(_)
            | T::Char(_)
            | T::Name
            | T::Bytea
            | T::Uuid
            | T::Bit(_)
            | T::Varbit(_)
            | T::Inet
            | T::Cidr
            | T::Range(_)
            | T::Multirange(_)
            | T::Date
            | T::Time(_)
            | T::TimeTz(_)
            | T::Timestamp(_)
            | T::TimestampTz(_)
            | T::Oid
    );
    if !known {
        return Err(decline("GROUP BY or DISTINCT of this type"));
    }
    if key.volatility() == Volatility::Volatile {
        return Err(decline("a volatile function with GROUP BY or DISTINCT"));
    }
    Ok(key)
}

impl Grouping {
    /// Binds HAVING, and moves what is shown to the rows of the groups. `keys` are those of GROUP
    /// BY.
    pub fn bind(
        select: &ast::Select,
        scope: &Scope,
        keys: Option<Vec<Expr>>,
        shown: Shown<'_>,
        aggregates: &mut Aggregates,
        context: &mut PlanContext<'_>,
        eval: &EvalContext<'_>,
    ) -> Result<Self> {
        let mut having = None;
        if let Some(condition) = &select.having {
            let mut binder = Binder::new(scope, context.parameters, eval, "HAVING");
            binder.hook = Some(&mut *aggregates);
            having = Some(binder.condition(condition)?);
        }
        let keys = match (keys, &select.distinct) {
            (Some(keys), None) => keys,
            (None, Some(ast::Distinct::Distinct))
                if aggregates.found.is_empty() && having.is_none() =>
            {
                let shows = |key: &SortKey| shown.output.iter().any(|o| o.same_as(&key.expr));
                if !shown.sort.iter().all(shows) {
                    // PostgreSQL refuses it, and so does the general path.
                    return Err(decline("an order by what DISTINCT does not give"));
                }
                shown.output.iter().cloned().map(groupable).collect::<Result<_>>()?
            }
            _ => {
                return Err(decline("DISTINCT with groups, DISTINCT ON, or HAVING without groups"));
            }
        };
        let above = shown.output.iter_mut().chain(shown.sort.iter_mut().map(|key| &mut key.expr));
        for expr in above.chain(&mut having) {
            lift(expr, &keys)?;
            if expr.volatility() == Volatility::Volatile {
                return Err(decline("a volatile function with GROUP BY or DISTINCT"));
            }
        }
        Ok(Self { keys, having })
    }
}

/// Makes columns of a group's row of the parts that are its keys or aggregates.
fn lift(expr: &mut Expr, keys: &[Expr]) -> Result<()> {
    if let Some(at) = keys.iter().position(|key| key.same_as(expr)) {
        *expr = Expr::column(at, expr.ty.clone());
        return Ok(());
    }
    if let Node::Column(at) = &mut expr.node {
        let Some(aggregate) = at.checked_sub(BEHIND) else {
            return Err(decline("a column that is neither grouped by nor inside an aggregate"));
        };
        *at = keys.len() + aggregate;
        return Ok(());
    }
    let mut result = Ok(());
    expr.each_child_mut(&mut |child| {
        if result.is_ok() {
            result = lift(child, keys);
        }
    });
    result
}

impl SelectPlan {
    /// The groups that HAVING keeps: a row each, keys then aggregates.
    pub(super) async fn groups(
        &self,
        grouping: &Grouping,
        reader: &mut Input,
        exec: &ExecContext,
        context: &EvalContext<'_>,
    ) -> Result<Vec<Row>> {
        let mut held = exec.memory.reserve("groups", 0).map_err(out_of_memory)?;
        let mut places: FxHashMap<Box<[u8]>, usize> = FxHashMap::default();
        let mut groups: Vec<(Row, Vec<State>)> = Vec::new();
        let mut key = KeyWriter::new();
        loop {
            let found = reader.next(BATCH, exec, context).await?;
            if found.is_empty() {
                break;
            }
            for row in &found {
                key.clear();
                for expr in &grouping.keys {
                    match expr.eval(row, context)? {
                        Datum::Null => {
                            key.null(Direction::Ascending);
                        }
                        value => {
                            storage::append_key(&mut key, &value, &expr.ty, Direction::Ascending)?;
                        }
                    }
                }
                let at = match places.get(key.as_slice()) {
                    Some(at) => *at,
                    None => {
                        let shown = grouping
                            .keys
                            .iter()
                            .map(|expr| expr.eval(row, context))
                            .collect::<Result<Row>>()?;
                        let states = self.aggregates.iter().map(State::new);
                        let bytes = row_bytes(&shown)
                            + key.as_slice().len() as u64
                            + 64 * (1 + self.aggregates.len() as u64);
                        held.grow(bytes).map_err(out_of_memory)?;
                        places.insert(key.as_slice().into(), groups.len());
                        groups.push((shown, states.collect()));
                        groups.len() - 1
                    }
                };
                let states = &mut groups[at].1;
                for (state, aggregate) in states.iter_mut().zip(&self.aggregates) {
                    state.take(aggregate, row, context)?;
                }
            }
        }
        drop(places);
        let mut rows = Vec::with_capacity(groups.len());
        for (mut row, states) in groups {
            for (state, aggregate) in states.into_iter().zip(&self.aggregates) {
                row.push(state.finish(aggregate)?);
            }
            let kept = match &grouping.having {
                Some(having) => having.holds(&row, context)?,
                None => true,
            };
            if kept {
                rows.push(row);
            }
        }
        Ok(rows)
    }

    /// The result over the rows of groups.
    pub(super) fn over_groups(
        &self,
        rows: Vec<Row>,
        limit: Option<u64>,
        offset: u64,
        context: &EvalContext<'_>,
    ) -> Result<Vec<Row>> {
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let take = limit.map_or(usize::MAX, |l| usize::try_from(l).unwrap_or(usize::MAX));
        if self.sort.is_empty() {
            let rows = rows.iter().skip(skip).take(take);
            return rows.map(|row| self.project(row, context)).collect();
        }
        let mut keyed = rows
            .into_iter()
            .map(|row| {
                let keys = self.sort.iter().map(|key| key.expr.eval(&row, context));
                Ok((keys.collect::<Result<Vec<_>>>()?, row))
            })
            .collect::<Result<Vec<_>>>()?;
        self.order(&mut keyed)?;
        let rows = keyed.iter().skip(skip).take(take);
        rows.map(|(_, row)| self.project(row, context)).collect()
    }
}
