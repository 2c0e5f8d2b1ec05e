//! Single-table queries by key, and queries without FROM.
//!
//! # Invariants
//! - Only what the projection, the filter and the order need is decoded.
//! - Rows are read in batches as the receiver pulls them; LIMIT stops the scan.
//!
//! # Limits
//! One table, no grouping but over everything (count, sum, min, max, avg), no DISTINCT, windows, set operations,
//! subqueries, locks. A query without condition and without LIMIT is left to DataFusion. What must be sorted is
//! sorted in memory, counted against the statement's budget.

mod run;

use std::sync::Arc;

use telesto_txn::ReadFor;

use super::access::{Access, Conditions, Keys, Order};
use super::read::{BATCH, Reader, eval_all, eval_waiting, get_many};
use super::source::{out_of_memory, row_bytes};
use super::{KeyPlan, Kind, find_table, info, storage};
use crate::catalog::Table;
use crate::codec::RowCodec;
use crate::error::{Error, Result, SqlState};
use crate::expr::bind::CallHook;
use crate::expr::{Binder, EvalContext, Expr, Node, Scope, Volatility, fault, fold};
use crate::plan::{ExecContext, PlanContext};
use crate::session::{ResultColumn, Row, Rows, StatementResult};
use crate::sqlparser::ast::{
    self, GroupByExpr, LimitClause, OrderByKind, Query, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, TableFactor,
};
use crate::types::{Datum, Numeric, SqlType};

pub(super) use run::describe_access;

/// A query planned for the key path.
#[derive(Debug)]
pub struct SelectPlan {
    from: Option<From>,
    filter: Option<Expr>,
    output: Vec<Expr>,
    aggregates: Vec<Aggregate>,
    sort: Vec<SortKey>,
    limit: Option<Expr>,
    offset: Option<Expr>,
    /// One row by a whole unique key, no sort, no aggregate: the fast way.
    point: bool,
    /// Calls a function that must wait (nextval): the result is computed at once, not as it is pulled.
    waits: bool,
}

#[derive(Debug)]
struct From {
    table: Arc<Table>,
    codec: RowCodec,
    access: Access,
}

#[derive(Debug)]
struct SortKey {
    expr: Expr,
    descending: bool,
    nulls_first: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AggregateKind {
    CountRows,
    Count,
    Sum,
    Avg,
    Min,
    Max,
}

#[derive(Debug)]
struct Aggregate {
    kind: AggregateKind,
    arg: Option<Expr>,
    ty: SqlType,
}

/// Collects aggregates; each becomes a column of the row of results.
#[derive(Default)]
struct Aggregates {
    found: Vec<Aggregate>,
}

impl CallHook for Aggregates {
    fn aggregate(
        &mut self,
        binder: &mut Binder<'_>,
        name: &str,
        call: &ast::Function,
    ) -> Result<Option<Expr>> {
        let kind = match name {
            "count" => AggregateKind::Count,
            "sum" => AggregateKind::Sum,
            "avg" => AggregateKind::Avg,
            "min" => AggregateKind::Min,
            "max" => AggregateKind::Max,
            other if crate::expr::is_aggregate(other) => {
                return Err(fault::unsupported(format!("{other}() by key")));
            }
            _ => return Ok(None),
        };
        let ast::FunctionArguments::List(list) = &call.args else {
            return Err(fault::unsupported("this aggregate"));
        };
        let plain =
            list.duplicate_treatment.is_none() && list.clauses.is_empty() && call.filter.is_none();
        if !plain || list.args.len() != 1 {
            return Err(fault::unsupported("this aggregate by key"));
        }
        let (kind, arg, ty) = match &list.args[0] {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Wildcard)
                if kind == AggregateKind::Count =>
            {
                (AggregateKind::CountRows, None, SqlType::Int8)
            }
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => {
                let arg = binder.bind_known(expr)?;
                let ty = aggregate_type(kind, &arg.ty)?;
                (kind, Some(arg), ty)
            }
            _ => return Err(fault::unsupported("this aggregate by key")),
        };
        self.found.push(Aggregate { kind, arg, ty: ty.clone() });
        Ok(Some(Expr::column(self.found.len() - 1, ty)))
    }
}

fn aggregate_type(kind: AggregateKind, ty: &SqlType) -> Result<SqlType> {
    Ok(match (kind, ty) {
        (AggregateKind::Count | AggregateKind::CountRows, _) => SqlType::Int8,
        (AggregateKind::Sum, SqlType::Int2 | SqlType::Int4) => SqlType::Int8,
        (AggregateKind::Sum, SqlType::Int8 | SqlType::Numeric(_)) => SqlType::Numeric(None),
        (AggregateKind::Sum, SqlType::Float8) => SqlType::Float8,
        (
            AggregateKind::Avg,
            SqlType::Int2 | SqlType::Int4 | SqlType::Int8 | SqlType::Numeric(_),
        ) => SqlType::Numeric(None),
        (AggregateKind::Avg, SqlType::Float8) => SqlType::Float8,
        (AggregateKind::Min | AggregateKind::Max, ty)
            if ty.is_number()
                || matches!(
                    ty,
                    SqlType::Text
                        | SqlType::Date
                        | SqlType::Time(_)
                        | SqlType::Timestamp(_)
                        | SqlType::TimestampTz(_)
                ) =>
        {
            ty.without_modifier()
        }
        _ => return Err(fault::unsupported("this aggregate by key")),
    })
}

fn decline(reason: &str) -> Error {
    Error::new(SqlState::FEATURE_NOT_SUPPORTED, format!("not by key: {reason}"))
}

/// Plans a query.
///
/// # Errors
/// 0A000 with the reason when it is not of this shape; else the statement's errors.
pub(super) fn plan(query: &Query, context: &mut PlanContext<'_>) -> Result<KeyPlan> {
    if query.with.is_some()
        || !query.locks.is_empty()
        || query.fetch.is_some()
        || query.for_clause.is_some()
    {
        return Err(decline("WITH, FETCH or FOR"));
    }
    let SetExpr::Select(select) = &*query.body else { return Err(decline("not a plain SELECT")) };
    let grouped =
        !matches!(&select.group_by, GroupByExpr::Expressions(g, m) if g.is_empty() && m.is_empty());
    if select.distinct.is_some()
        || grouped
        || select.having.is_some()
        || select.qualify.is_some()
        || select.into.is_some()
        || select.top.is_some()
        || !select.named_window.is_empty()
        || !select.lateral_views.is_empty()
    {
        return Err(decline("DISTINCT, GROUP BY, HAVING or windows"));
    }
    let table = match select.from.as_slice() {
        [] => None,
        [one] if one.joins.is_empty() => match &one.relation {
            TableFactor::Table { name, alias, args: None, version: None, sample: None, .. } => {
                if alias.as_ref().is_some_and(|a| !a.columns.is_empty()) {
                    return Err(decline("a column alias list"));
                }
                let table = find_table(name, context)?;
                let shown = alias.as_ref().map_or_else(|| table.name.clone(), |a| fold(&a.name));
                Some((table, shown))
            }
            _ => return Err(decline("not a plain table")),
        },
        _ => return Err(decline("a join")),
    };
    let scope = Scope {
        relations: table.iter().map(|(t, name)| info::relation(t, name, 0, true)).collect(),
    };
    let eval = EvalContext::planning(context.settings, context.catalog);
    let filter = match &select.selection {
        None => None,
        Some(expr) => {
            Some(Binder::new(&scope, context.parameters, &eval, "WHERE").condition(expr)?)
        }
    };
    let mut aggregates = Aggregates::default();
    let mut output = Vec::new();
    let mut columns = Vec::new();
    for item in &select.projection {
        match item {
            SelectItem::Wildcard(options) if plain_wildcard(options) => {
                let Some((table, _)) = &table else {
                    return Err(Error::syntax("SELECT * with no tables specified is not valid"));
                };
                wildcard(table, &mut output, &mut columns);
            }
            SelectItem::QualifiedWildcard(
                SelectItemQualifiedWildcardKind::ObjectName(name),
                options,
            ) if plain_wildcard(options) => {
                let (_, wanted) = super::name_parts(name)?;
                match &table {
                    Some((table, shown)) if *shown == wanted => {
                        wildcard(table, &mut output, &mut columns)
                    }
                    _ => {
                        return Err(Error::new(
                            SqlState::UNDEFINED_TABLE,
                            format!("missing FROM-clause entry for table \"{wanted}\""),
                        ));
                    }
                }
            }
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
                let mut binder = Binder::new(&scope, context.parameters, &eval, "SELECT");
                if table.is_some() {
                    binder.hook = Some(&mut aggregates);
                }
                let bound = binder.bind_known(expr)?;
                let name = match item {
                    SelectItem::ExprWithAlias { alias, .. } => fold(alias),
                    _ => column_name(expr),
                };
                columns.push(result_column(name, &bound, table.as_ref().map(|(t, _)| t)));
                output.push(bound);
            }
            _ => return Err(decline("this item of the select list")),
        }
    }
    if !aggregates.found.is_empty() {
        // Columns beside aggregates would need grouping.
        if mixes_columns(select, &scope) {
            return Err(decline("aggregates beside columns"));
        }
        for column in &mut columns {
            (column.table_oid, column.attnum) = (0, 0);
        }
    }
    let sort = sort_keys(query, &scope, context, &eval, &select.projection, &output)?;
    if !aggregates.found.is_empty() && !sort.is_empty() {
        return Err(decline("ORDER BY over aggregates"));
    }
    let (limit, offset) = limits(query, context, &eval)?;

    let order: Option<Order> = order_columns(&sort);
    let conditions = Conditions::new(filter.clone());
    let (from, rest, sort) = match &table {
        None => (None, filter, sort),
        Some((table, _)) => {
            let (mut access, rest) = conditions.choose(table, order.as_ref());
            if access.is_full() {
                // Without any key condition only "the first rows in key order" is short.
                let wanted = order.clone().unwrap_or_default();
                let along =
                    table.all_indexes().filter(|i| i.predicate.is_none()).find_map(|index| {
                        let columns = index.columns.iter().map(|c| c.column);
                        let leading = wanted.iter().map(|(c, _)| *c).eq(columns.take(wanted.len()));
                        let same = index.columns.iter().zip(&wanted).map(|(c, (_, d))| {
                            (c.direction == telesto_common::key::Direction::Descending) != *d
                        });
                        let reverse: Vec<bool> = same.collect();
                        let uniform = reverse.windows(2).all(|w| w[0] == w[1]);
                        (leading && uniform)
                            .then(|| (index.id, reverse.first().copied().unwrap_or(false)))
                    });
                let short = limit.is_some() && aggregates.found.is_empty() && rest.is_none();
                match (short, sort.is_empty(), along) {
                    (true, true, _) => {}
                    (true, false, Some((id, reverse))) if order.is_some() => {
                        access.index = id;
                        access.reverse = reverse;
                        access.ordered = true;
                    }
                    _ => return Err(decline("no index serves the condition")),
                }
            }
            let sort = if access.ordered { Vec::new() } else { sort };
            let mut wanted = vec![false; table.columns.len()];
            let inputs = aggregates.found.iter().filter_map(|a| a.arg.as_ref());
            let outputs = if aggregates.found.is_empty() { output.iter() } else { [].iter() };
            for expr in outputs.chain(inputs).chain(&rest).chain(sort.iter().map(|k| &k.expr)) {
                expr.mark_columns(&mut wanted);
            }
            let codec = RowCodec::projected(table, |at| wanted[at])?;
            (Some(From { table: Arc::clone(table), codec, access }), rest, sort)
        }
    };
    let volatile = |e: &Expr| e.volatility() == Volatility::Volatile;
    let has_volatile = output.iter().any(volatile) || rest.as_ref().is_some_and(volatile);
    let point = from.as_ref().is_some_and(|f| f.access.unique && f.access.index == 0)
        && sort.is_empty()
        && aggregates.found.is_empty()
        && limit.is_none()
        && offset.is_none()
        && !has_volatile;
    let writes = output.iter().chain(&rest).any(calls_writer);
    let waits = writes || has_volatile;
    Ok(KeyPlan {
        columns: Some(columns.into()),
        read_only: !writes,
        kind: Kind::Select(Arc::new(SelectPlan {
            from,
            filter: rest,
            output,
            aggregates: aggregates.found,
            sort,
            limit,
            offset,
            point,
            waits,
        })),
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

/// Whether a select item with aggregates also names a column outside of them.
fn mixes_columns(select: &ast::Select, scope: &Scope) -> bool {
    use std::ops::ControlFlow;
    struct Outside<'s> {
        scope: &'s Scope,
        depth: usize,
        found: bool,
    }
    impl crate::sqlparser::ast::Visitor for Outside<'_> {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<()> {
            match expr {
                ast::Expr::Function(f)
                    if crate::expr::is_aggregate(&f.name.to_string().to_lowercase()) =>
                {
                    self.depth += 1;
                }
                ast::Expr::Identifier(i) if self.depth == 0 => {
                    self.found |= self.scope.resolve(None, &fold(i)).is_ok();
                }
                ast::Expr::CompoundIdentifier(_) if self.depth == 0 => self.found = true,
                _ => {}
            }
            ControlFlow::Continue(())
        }
        fn post_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<()> {
            if let ast::Expr::Function(f) = expr
                && crate::expr::is_aggregate(&f.name.to_string().to_lowercase())
            {
                self.depth -= 1;
            }
            ControlFlow::Continue(())
        }
    }
    let mut visitor = Outside { scope, depth: 0, found: false };
    for item in &select.projection {
        let _ = crate::sqlparser::ast::Visit::visit(item, &mut visitor);
    }
    visitor.found
}

/// Whether a wildcard has no EXCLUDE, REPLACE or the like.
pub(super) fn plain_wildcard(options: &ast::WildcardAdditionalOptions) -> bool {
    options.opt_ilike.is_none()
        && options.opt_exclude.is_none()
        && options.opt_except.is_none()
        && options.opt_replace.is_none()
        && options.opt_rename.is_none()
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

/// The name PostgreSQL gives a column without alias (`FigureColname`).
pub(super) fn column_name(expr: &ast::Expr) -> String {
    match expr {
        ast::Expr::Identifier(i) => fold(i),
        ast::Expr::CompoundIdentifier(parts) => parts.last().map(fold).unwrap_or_default(),
        ast::Expr::Function(f) => {
            f.name.0.last().and_then(|p| p.as_ident()).map(fold).unwrap_or_default()
        }
        ast::Expr::Nested(inner) | ast::Expr::Collate { expr: inner, .. } => column_name(inner),
        ast::Expr::CompoundFieldAccess { root, .. } => column_name(root),
        ast::Expr::Cast { expr, data_type, .. } => {
            let inner = column_name(expr);
            if inner != "?column?" {
                return inner;
            }
            crate::expr::types::named(data_type)
                .map_or(inner, |ty| ty.internal_name().trim_start_matches('_').to_owned())
        }
        ast::Expr::TypedString(typed) => crate::expr::types::named(&typed.data_type)
            .map_or_else(|_| "?column?".to_owned(), |ty| ty.internal_name()),
        ast::Expr::Case { else_result: Some(e), .. } => match column_name(e) {
            name if name == "?column?" => "case".to_owned(),
            name => name,
        },
        ast::Expr::Case { .. } => "case".to_owned(),
        ast::Expr::Extract { .. } => "extract".to_owned(),
        ast::Expr::Substring { .. } => "substring".to_owned(),
        ast::Expr::Position { .. } => "position".to_owned(),
        ast::Expr::Trim { trim_where: Some(ast::TrimWhereField::Leading), .. } => {
            "ltrim".to_owned()
        }
        ast::Expr::Trim { trim_where: Some(ast::TrimWhereField::Trailing), .. } => {
            "rtrim".to_owned()
        }
        ast::Expr::Trim { .. } => "btrim".to_owned(),
        ast::Expr::Overlay { .. } => "overlay".to_owned(),
        ast::Expr::Ceil { .. } => "ceil".to_owned(),
        ast::Expr::Floor { .. } => "floor".to_owned(),
        ast::Expr::AtTimeZone { .. } => "timezone".to_owned(),
        ast::Expr::Array(_) => "array".to_owned(),
        ast::Expr::Interval(_) => "interval".to_owned(),
        ast::Expr::Value(v) if matches!(v.value, ast::Value::Boolean(_)) => "bool".to_owned(),
        _ => "?column?".to_owned(),
    }
}

fn sort_keys(
    query: &Query,
    scope: &Scope,
    context: &mut PlanContext<'_>,
    eval: &EvalContext<'_>,
    projection: &[SelectItem],
    output: &[Expr],
) -> Result<Vec<SortKey>> {
    let Some(order) = &query.order_by else { return Ok(Vec::new()) };
    let OrderByKind::Expressions(items) = &order.kind else { return Err(decline("ORDER BY ALL")) };
    let simple = projection.len() == output.len();
    items
        .iter()
        .map(|item| {
            let descending = item.options.asc == Some(false);
            let alias = match &item.expr {
                // A number or an alias means an output column, before a column of the table.
                ast::Expr::Value(v) => match &v.value {
                    ast::Value::Number(n, _) => {
                        let at = n
                            .parse::<usize>()
                            .ok()
                            .and_then(|n| n.checked_sub(1))
                            .filter(|at| *at < output.len());
                        Some(at.ok_or_else(|| {
                            Error::new(
                                SqlState::INVALID_COLUMN_REFERENCE,
                                format!("ORDER BY position {n} is not in select list"),
                            )
                        })?)
                    }
                    _ => return Err(decline("a constant in ORDER BY")),
                },
                ast::Expr::Identifier(i) if simple => {
                    let name = fold(i);
                    projection.iter().position(|p| match p {
                        SelectItem::ExprWithAlias { alias, .. } => fold(alias) == name,
                        _ => false,
                    })
                }
                _ => None,
            };
            let expr = match alias {
                Some(at) => output[at].clone(),
                None => Binder::new(scope, context.parameters, eval, "ORDER BY")
                    .bind_known(&item.expr)?,
            };
            Ok(SortKey {
                expr,
                descending,
                nulls_first: item.options.nulls_first.unwrap_or(descending),
            })
        })
        .collect()
}

/// The order as table columns, when it is only of those with the usual place of NULLs.
fn order_columns(sort: &[SortKey]) -> Option<Order> {
    if sort.is_empty() {
        return None;
    }
    sort.iter()
        .map(|key| match key.expr.node {
            Node::Column(at) if key.nulls_first == key.descending => Some((at, key.descending)),
            _ => None,
        })
        .collect()
}

fn limits(
    query: &Query,
    context: &mut PlanContext<'_>,
    eval: &EvalContext<'_>,
) -> Result<(Option<Expr>, Option<Expr>)> {
    let empty = Scope::default();
    let mut bind = |expr: &ast::Expr, clause: &'static str| {
        let mut binder = Binder::new(&empty, context.parameters, eval, clause);
        let bound = binder.bind(expr)?;
        binder.coerce(bound, &SqlType::Int8, crate::expr::CastContext::Assignment)
    };
    match &query.limit_clause {
        None => Ok((None, None)),
        Some(LimitClause::LimitOffset { limit, offset, limit_by }) if limit_by.is_empty() => Ok((
            limit.as_ref().map(|e| bind(e, "LIMIT")).transpose()?,
            offset.as_ref().map(|o| bind(&o.value, "OFFSET")).transpose()?,
        )),
        Some(_) => Err(decline("this form of LIMIT")),
    }
}

/// The value of LIMIT or OFFSET; NULL is no bound.
fn bound_value(expr: &Option<Expr>, context: &EvalContext<'_>, what: &str) -> Result<Option<u64>> {
    let Some(expr) = expr else { return Ok(None) };
    match expr.eval(&[], context)? {
        Datum::Null => Ok(None),
        value => u64::try_from(value.as_i64().unwrap_or(0)).map(Some).map_err(|_| {
            let code = if what == "LIMIT" {
                SqlState::INVALID_ROW_COUNT_IN_LIMIT
            } else {
                SqlState::INVALID_ROW_COUNT_IN_OFFSET
            };
            Error::new(code, format!("{what} must not be negative"))
        }),
    }
}
