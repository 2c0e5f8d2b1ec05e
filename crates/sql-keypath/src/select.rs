//! Queries by key of one table or along a join, and queries without FROM.
//!
//! # Invariants
//! - Only what the projection, the filter and the order need is decoded.
//! - Rows are read in batches as the receiver pulls them; LIMIT stops the scan.
//!
//! # Limits
//! One table or a key join; count, sum, min, max, avg, over everything or with GROUP BY; DISTINCT;
//! no windows, set operations; subqueries as `join` takes them. A query without condition and
//! without LIMIT is left to DataFusion. What must be sorted is sorted in memory, counted against
//! the statement's budget.

mod aggregate;
mod grouped;
mod joined;
mod locked;
mod names;
mod order;
mod run;

use crate::policies;
use std::sync::Arc;

use telesto_txn::ReadFor;

use super::access::{Access, Conditions, Keys, Order};
use super::join::from;
use super::join::run::JoinReader;
use super::join::{JoinPlan, Sources};
use super::read::{BATCH, CLAIMED, Reader, eval_all, eval_waiting, get_many};
use super::{KeyPlan, Kind, find_table, storage};
use telesto_sql_catalog::Table;
use telesto_sql_catalog::codec::{EntryCodec, RowCodec};
use telesto_sql_expr::bind::CallHook;
use telesto_sql_expr::{
    Binder, EvalContext, Expr, Node, Scope, Volatility, fault, fold, output_name,
};
use telesto_sql_parser::sqlparser::ast::{
    self, GroupByExpr, LimitClause, OrderByKind, Query, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, TableFactor,
};
use telesto_sql_plan::compiled_table;
use telesto_sql_plan::index_expressions::IndexExpressions;
use telesto_sql_plan::{ExecContext, PlanContext};
use telesto_sql_plan::{ResultColumn, Rows, StatementResult};
use telesto_sql_types::Row;
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::held::{out_of_memory, row_bytes};
use telesto_sql_types::{Datum, Numeric, SqlType};

use aggregate::{Aggregate, Aggregates, BEHIND, State};
use grouped::{Grouping, Shown};
use joined::{joined_column, stars};
use locked::RowLock;
use names::mixes_columns;
use order::{behind_no_sort, bound_value, limits, order_columns, sort_keys};
use run::Input;
pub(super) use run::{access_words, describe_access, index_only};

/// A query planned for the key path.
#[derive(Debug)]
pub struct SelectPlan {
    from: Option<From>,
    /// Several tables; then `from` and `filter` are none.
    join: Option<Arc<JoinPlan>>,
    filter: Option<Expr>,
    output: Vec<Expr>,
    aggregates: Vec<Aggregate>,
    sort: Vec<SortKey>,
    /// The order is one of the join's driver, and not all rows are wanted: its rows are sorted
    /// before they are joined, if they are few.
    sort_first: bool,
    limit: Option<Expr>,
    offset: Option<Expr>,
    /// Groups; then the output, its order and HAVING are over a row of each group.
    group: Option<Grouping>,
    /// The first row decides: the least or greatest value along an index.
    first_only: bool,
    /// One row by a whole unique key, no sort, no aggregate: the fast way.
    point: bool,
    /// FOR UPDATE or FOR SHARE: what is read is validated at every level, and rows are claimed.
    locks: Option<RowLock>,
    /// Calls a function that must wait (nextval): the result is computed at once, not as it is
    /// pulled.
    waits: bool,
}

impl SelectPlan {
    /// The table it reads, and how, where that is one.
    pub(super) fn reads(&self) -> Option<(&Table, &Access)> {
        self.from.as_ref().map(|from| (&*from.table, &from.access))
    }
}

#[derive(Debug)]
struct From {
    table: Arc<Table>,
    codec: RowCodec,
    /// Where the entries of the path's index are enough.
    entries: Option<EntryCodec>,
    access: Access,
}

impl From {
    /// Reads the columns that are `wanted`.
    fn reading(
        table: &Arc<Table>,
        access: Access,
        wanted: &[bool],
        locks: Option<RowLock>,
    ) -> Result<Self> {
        let codec = RowCodec::projected(table, |at| wanted[at])?;
        let index = table.index(access.index).filter(|_| locks.is_none());
        let entries = index.and_then(|index| EntryCodec::of(table, index, wanted));
        Ok(Self { table: Arc::clone(table), codec, entries, access })
    }
}

#[derive(Debug)]
struct SortKey {
    expr: Expr,
    descending: bool,
    nulls_first: bool,
}

/// 0A000 with the reason why a query is not taken.
pub(super) fn decline(reason: &str) -> Error {
    Error::new(SqlState::FEATURE_NOT_SUPPORTED, format!("not by key: {reason}"))
}

/// Plans a query.
///
/// # Errors
/// 0A000 with the reason when it is not of this shape; else the statement's errors.
pub(super) fn plan(query: &Query, context: &mut PlanContext<'_>) -> Result<KeyPlan> {
    plan_into(query, &[], context)
}

/// [`plan`] of a query whose untyped literals and parameters take the types of the columns they go
/// to.
///
/// # Errors
/// Those of [`plan`].
pub(super) fn plan_into(
    query: &Query,
    wanted: &[SqlType],
    context: &mut PlanContext<'_>,
) -> Result<KeyPlan> {
    let query = unwrapped(query);
    if query.with.is_some() || query.for_clause.is_some() {
        return Err(decline("WITH or FOR"));
    }
    let SetExpr::Select(select) = &*query.body else { return Err(decline("not a plain SELECT")) };
    if select.qualify.is_some()
        || select.into.is_some()
        || select.top.is_some()
        || !select.named_window.is_empty()
        || !select.lateral_views.is_empty()
    {
        return Err(decline("windows or QUALIFY"));
    }
    if select.from.is_empty() {
        return shape(query, select, None, wanted, context);
    }
    let plain = select.from.len() == 1 && select.from[0].joins.is_empty();
    if plain && !from::has_subquery(select.selection.as_ref()) {
        return shape(query, select, Some(&select.from[0].relation), wanted, context);
    }
    // Whatever is wrong with a join, the other executor's binder says it.
    shape(query, select, None, wanted, context).map_err(|error| match error.code() {
        SqlState::FEATURE_NOT_SUPPORTED => error,
        _ => decline(error.message()),
    })
}

/// The query inside of parentheses around which nothing stands.
pub(super) fn unwrapped(query: &Query) -> &Query {
    match &*query.body {
        SetExpr::Query(inner)
            if query.with.is_none()
                && query.order_by.is_none()
                && query.limit_clause.is_none()
                && query.fetch.is_none()
                && query.locks.is_empty()
                && query.for_clause.is_none()
                && query.pipe_operators.is_empty() =>
        {
            unwrapped(inner)
        }
        _ => query,
    }
}

fn relation_of((table, shown): &(Arc<Table>, String)) -> telesto_sql_expr::ScopeRelation {
    compiled_table::relation(table, shown, 0, true)
}

/// Plans a plain SELECT; `single` is its only table, if it has only one and no subquery.
fn shape(
    query: &Query,
    select: &ast::Select,
    single: Option<&TableFactor>,
    wanted: &[SqlType],
    context: &mut PlanContext<'_>,
) -> Result<KeyPlan> {
    let eval = EvalContext::planning(context.settings, context.catalog);
    let mut sources = None;
    let table = match single {
        Some(TableFactor::Table {
            name, alias, args: None, version: None, sample: None, ..
        }) => {
            if alias.as_ref().is_some_and(|a| !a.columns.is_empty()) {
                return Err(decline("a column alias list"));
            }
            let table = find_table(name, context)?;
            let shown = alias.as_ref().map_or_else(|| table.name.clone(), |a| fold(&a.name));
            Some((table, shown))
        }
        Some(_) => return Err(decline("not a plain table")),
        None => {
            if !select.from.is_empty() {
                let selection = select.selection.as_ref();
                sources = Some(Sources::bind(&select.from, selection, context, &eval)?);
            }
            None
        }
    };
    let scope = match &sources {
        Some(sources) => sources.scope.clone(),
        None => Scope { relations: table.iter().map(relation_of).collect() },
    };
    let secured = table.as_ref().map(|(table, _)| &**table);
    let policies = policies::of_query(secured, !query.locks.is_empty(), context, &eval)?;
    let filter = match &select.selection {
        Some(expr) if sources.is_none() => {
            Some(Binder::new(&scope, context.parameters, &eval, "WHERE").condition(expr)?)
        }
        _ => None,
    };
    let keys = grouped::keys(select, &scope, context, &eval)?;
    let grouping = keys.is_some() || select.distinct.is_some() || select.having.is_some();
    let first = if grouping { BEHIND } else { 0 };
    let mut aggregates = Aggregates { first, found: Vec::new() };
    let mut output = Vec::new();
    let mut columns = Vec::new();
    for item in &select.projection {
        match item {
            SelectItem::Wildcard(options) if plain_wildcard(options) => match (&table, &sources) {
                (Some((table, _)), _) => wildcard(table, &mut output, &mut columns),
                (None, Some(sources)) => {
                    stars(sources, sources.star.clone(), &mut output, &mut columns);
                }
                (None, None) => {
                    return Err(Error::syntax("SELECT * with no tables specified is not valid"));
                }
            },
            SelectItem::QualifiedWildcard(
                SelectItemQualifiedWildcardKind::ObjectName(name),
                options,
            ) if plain_wildcard(options) => {
                let found = from::qualified_star(&scope, name)?;
                match (&table, &sources) {
                    (Some((table, _)), _) => wildcard(table, &mut output, &mut columns),
                    (_, Some(sources)) => stars(sources, found, &mut output, &mut columns),
                    _ => return Err(Error::internal("a table without columns in view")),
                }
            }
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
                let mut binder = Binder::new(&scope, context.parameters, &eval, "SELECT");
                if table.is_some() || sources.is_some() {
                    binder.hook = Some(&mut aggregates);
                }
                let bound = binder.bind_wanted(expr, wanted.get(output.len()))?;
                let name = match item {
                    SelectItem::ExprWithAlias { alias, .. } => fold(alias),
                    _ => output_name(expr),
                };
                columns.push(match &sources {
                    Some(sources) => joined_column(sources, name, &bound),
                    None => result_column(name, &bound, table.as_ref().map(|(t, _)| t)),
                });
                output.push(bound);
            }
            _ => return Err(decline("this item of the select list")),
        }
    }
    let locks = RowLock::of(&query.locks);
    if locks.is_some()
        && (grouping || !aggregates.found.is_empty() || !names_all(&query.locks, &scope))
    {
        return Err(decline("FOR UPDATE that is refused"));
    }
    if !aggregates.found.is_empty() && !grouping {
        // Columns beside aggregates would need grouping.
        if mixes_columns(select, &scope) {
            return Err(decline("aggregates beside columns"));
        }
        for column in &mut columns {
            (column.table_oid, column.attnum) = (0, 0);
        }
    }
    let hook = grouping.then_some(&mut aggregates);
    let mut sort = sort_keys(query, &scope, context, &eval, (&columns, &output), hook)?;
    let group = match grouping {
        true => {
            let shown = Shown { output: &mut output, sort: &mut sort };
            Some(Grouping::bind(select, &scope, keys, shown, &mut aggregates, context, &eval)?)
        }
        false => None,
    };
    if !aggregates.found.is_empty() && group.is_none() && !sort.is_empty() {
        return Err(decline("ORDER BY over aggregates"));
    }
    let (limit, offset) = limits(query, context, &eval)?;

    let forms = match &table {
        Some((table, _)) => IndexExpressions::bind(context.catalog, context.settings, table)?,
        None => IndexExpressions::default(),
    };
    let extremum = aggregate::extremum(&aggregates.found, group.is_some());
    let order: Option<Order> = match (&group, &extremum) {
        (Some(_), _) => None,
        (None, Some(order)) => Some(order.clone()),
        (None, None) => order_columns(&sort, &forms),
    };
    if let Some(sources) = sources {
        behind_no_sort(&output, &sort, locks)?;
        let mut plan = SelectPlan {
            from: None,
            join: None,
            filter: None,
            output,
            aggregates: aggregates.found,
            sort,
            sort_first: false,
            limit,
            offset,
            group,
            first_only: false,
            point: false,
            waits: false,
            locks,
        };
        plan.join(&sources, order.as_ref().filter(|_| extremum.is_none()), context.catalog)?;
        let kind = Kind::Select(Arc::new(plan));
        return Ok(KeyPlan { columns: Some(columns.into()), read_only: locks.is_none(), kind });
    }
    let used = |table: &Table, sort: &[SortKey]| {
        used_columns(table, &output, (&aggregates.found, group.as_ref()), sort)
    };
    let mut conditions = Conditions::over(filter.clone(), &forms);
    let mut first_only = false;
    let (from, rest, sort) = match &table {
        None => (None, filter, sort),
        Some((table, _)) => {
            if locks.is_none() {
                conditions = conditions.beside(used(table, &sort));
            }
            let along = order.as_ref().and_then(|order| conditions.along(table, order));
            let all = limit.is_none() && locks.is_none();
            let (mut access, rest) = conditions.choose_read(table, order.as_ref(), &eval, all)?;
            let rest = policies::before(policies, rest);
            let plain = aggregates.found.is_empty() && group.is_none();
            if access.is_full() {
                // Without any key condition only "the first rows in key order" is short.
                let short = (limit.is_some() && plain || extremum.is_some()) && rest.is_none();
                let sorted = !sort.is_empty() || extremum.is_some();
                // Rows to be locked are claimed one by one, whatever leads to them.
                match (short || locks.is_some(), !sorted, along) {
                    (true, true, _) => {}
                    (true, false, Some((id, reverse))) if order.is_some() => {
                        access.index = id;
                        access.reverse = reverse;
                        access.ordered = true;
                    }
                    _ if locks.is_some() => {}
                    _ => return Err(decline("no index serves the condition")),
                }
            }
            first_only = extremum.is_some() && access.ordered && !access.unique;
            if first_only {
                // Of the column itself: one that equality fixes is not NULL, and what follows it
                // may be.
                let index = table.all_indexes().find(|index| index.id == access.index);
                let next = index.map(|index| forms.position(index, access.parts.len()));
                let sought = extremum.as_ref().and_then(|order| order.first());
                access.skip_nulls = next.is_some() && next == sought.map(|(column, _)| *column);
            }
            let sort = if access.ordered && group.is_none() { Vec::new() } else { sort };
            let mut wanted = used(table, &sort);
            rest.iter().for_each(|expr| expr.mark_columns(&mut wanted));
            (Some(From::reading(table, access, &wanted, locks)?), rest, sort)
        }
    };
    behind_no_sort(&output, &sort, locks)?;
    let volatile = |e: &Expr| e.volatility() == Volatility::Volatile;
    let has_volatile = output.iter().any(volatile) || rest.as_ref().is_some_and(volatile);
    let point = from.as_ref().is_some_and(|f| f.access.unique && f.access.index == 0)
        && sort.is_empty()
        && aggregates.found.is_empty()
        && group.is_none()
        && limit.is_none()
        && offset.is_none()
        && !has_volatile
        && locks.is_none_or(|lock| lock == RowLock::Wait);
    not_measuring(output.iter().chain(&rest).chain(keys_of(group.as_ref(), &sort)))?;
    let writes = output.iter().chain(&rest).any(calls_writer);
    let waits = writes || output.iter().chain(&rest).any(does_more_than_draw);
    Ok(KeyPlan {
        columns: Some(columns.into()),
        read_only: !writes && locks.is_none(),
        kind: Kind::Select(Arc::new(SelectPlan {
            from,
            join: None,
            filter: rest,
            output,
            aggregates: aggregates.found,
            sort,
            sort_first: false,
            limit,
            offset,
            group,
            first_only,
            point,
            waits,
            locks,
        })),
    })
}

/// Whether the relations of `OF` are those of the query.
fn names_all(locks: &[ast::LockClause], scope: &Scope) -> bool {
    let named = locks.iter().filter_map(|lock| lock.of.as_ref());
    named.into_iter().all(|of| {
        let name = of.0.last().and_then(|part| part.as_ident()).map(fold);
        scope.relations.iter().any(|relation| Some(&relation.name) == name.as_ref())
    })
}

fn calls_writer(expr: &Expr) -> bool {
    let mut found = false;
    expr.walk(&mut |e| {
        if let Node::Call(function, ..) = &e.node {
            found |= matches!(function.name, "nextval" | "setval");
        }
    });
    found
}

/// Whether something is called that neither a random number, a new identifier nor the time comes
/// from: it may wait or have effects, and is done with before the statement ends.
fn does_more_than_draw(expr: &Expr) -> bool {
    const DRAWS: [&str; 5] =
        ["random", "gen_random_uuid", "uuid_generate_v4", "clock_timestamp", "timeofday"];
    let mut found = false;
    expr.walk(&mut |e| {
        if let Node::Call(function, ..) = &e.node {
            found |= function.volatility == Volatility::Volatile && !DRAWS.contains(&function.name);
        }
        found |= matches!(e.node, Node::Held(_));
    });
    found
}

/// What rows are grouped and sorted by.
fn keys_of<'e>(group: Option<&'e Grouping>, sort: &'e [SortKey]) -> impl Iterator<Item = &'e Expr> {
    group.into_iter().flat_map(|group| &group.keys).chain(sort.iter().map(|key| &key.expr))
}

/// Leaves what asks for the sizes of indexes to DataFusion, which measures before it begins: here
/// rows are evaluated where nothing waits.
fn not_measuring<'e>(exprs: impl Iterator<Item = &'e Expr>) -> Result<()> {
    let mut found = false;
    for expr in exprs {
        expr.walk(&mut |e| {
            if let Node::Call(function, ..) = &e.node {
                found |= function.measures;
            }
        });
    }
    if found { Err(Error::unsupported("not by key: the size of a relation")) } else { Ok(()) }
}

/// Whether a wildcard has no EXCLUDE, REPLACE or the like.
pub(super) fn plain_wildcard(options: &ast::WildcardAdditionalOptions) -> bool {
    options.opt_ilike.is_none()
        && options.opt_exclude.is_none()
        && options.opt_except.is_none()
        && options.opt_replace.is_none()
        && options.opt_rename.is_none()
}

/// The columns of a table that a query uses beside its conditions.
fn used_columns(
    table: &Table,
    output: &[Expr],
    (aggregates, group): (&[Aggregate], Option<&Grouping>),
    sort: &[SortKey],
) -> Vec<bool> {
    let mut used = vec![false; table.columns.len()];
    let inputs = aggregates.iter().filter_map(|aggregate| aggregate.arg.as_ref());
    let plain = aggregates.is_empty() && group.is_none();
    let outputs = if plain { output.iter() } else { [].iter() };
    let sorted = if group.is_none() { sort.iter() } else { [].iter() };
    let keys = group.into_iter().flat_map(|group| &group.keys);
    let sorted = sorted.map(|key| &key.expr).chain(keys);
    outputs.chain(inputs).chain(sorted).for_each(|expr| expr.mark_columns(&mut used));
    used
}

/// Adds all columns of a table.
pub(super) fn wildcard(table: &Table, output: &mut Vec<Expr>, columns: &mut Vec<ResultColumn>) {
    for (at, column) in table.visible_columns() {
        output.push(Expr::column(at, column.ty.clone()));
        columns.push(ResultColumn {
            name: column.name.clone(),
            ty: column.ty.clone(),
            table_oid: table.id.0,
            attnum: column.id,
            whole_row: false,
        });
    }
}

/// A result column; a plain column of the table keeps its origin.
pub(super) fn result_column(
    name: String,
    bound: &Expr,
    table: Option<&Arc<Table>>,
) -> ResultColumn {
    let mut column = ResultColumn::new(name, bound.ty.clone());
    if let (Node::Column(at), Some(table)) = (&bound.node, table)
        && let Some(own) = table.columns.get(*at)
    {
        column.table_oid = table.id.0;
        column.attnum = own.id;
    }
    column
}
