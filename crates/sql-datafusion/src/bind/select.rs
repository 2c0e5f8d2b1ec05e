//! One SELECT: FROM, WHERE, grouping, windows, DISTINCT, ORDER BY.
//!
//! # Order of work
//! Every expression is bound once over the FROM columns, aggregates and window calls inside it.
//! Then the plan is built bottom-up (aggregate, windows, set-returning calls, projection, distinct,
//! sort), and each step replaces in the expressions above what it has computed by a reference to
//! it.
//!
//! # Invariants
//! - A column used above a grouping is a grouping expression, inside an aggregate, or depends on a
//!   grouped primary key (42803 otherwise).
//! - ORDER BY sees output names first, then input columns, as PostgreSQL does.

use std::cell::RefCell;
use std::collections::BTreeMap;

use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast;

use super::distinct_on::{begins_order, sets_in_outputs_alone, tell_apart};
use super::group::{Groups, refuse_aggregates, refuse_sets, refuse_windows};
use super::query::ordinal;
use super::scope::{Folds, OuterFold, Relation, Scope, fold};
use super::whole_row::grouped_names;
use super::{Binder, Place, Typed};
use crate::types::TypeShape;
use crate::{fault, row_by_row, waiting};
use telesto_sql_expr::output_name;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

/// A select-list entry.
pub(super) struct Output {
    pub(super) name: String,
    pub(super) expr: Expr,
    pub(super) ty: SqlType,
    pub(super) origin: Option<super::scope::Origin>,
    pub(super) parameter: Option<usize>,
}

/// An ORDER BY entry: an output column, or an expression of its own.
pub(super) enum Order {
    Output(usize, ast::OrderByOptions),
    Other(Expr, SqlType, ast::OrderByOptions),
}

impl Binder<'_> {
    /// Binds a SELECT together with the ORDER BY that belongs to it.
    pub(crate) fn select(
        &self,
        select: &ast::Select,
        order: &[ast::OrderByExpr],
        outer: Option<&Scope<'_>>,
    ) -> Result<Relation> {
        refuse_foreign_clauses(select)?;
        let star = |item: &ast::SelectItem| matches!(item, ast::SelectItem::Wildcard(_));
        if select.from.is_empty() && select.projection.iter().any(star) {
            return Err(fault::syntax("SELECT * with no tables specified is not valid"));
        }
        let wanted = self.wanted.take();
        let from = self.from(&select.from, outer)?;
        let (mut plan, below) = self.with_order(select, from.plan)?;
        let scope = Scope {
            order: &below,
            folds: Folds::Refused("WHERE"),
            ..Scope::new(&from.columns, outer)
        };
        if let Some(condition) = &select.selection {
            self.place.set(Place { exists: true, inside: true });
            let mut bound = self.condition(condition, &scope, "WHERE")?;
            if split_conjunction(&bound).into_iter().any(waits_for_join) {
                bound = self.condition(condition, &scope, "WHERE")?;
            }
            let condition = bound;
            refuse_aggregates(&condition, "WHERE")?;
            plan = filter(plan, condition)?;
        }
        let folds = RefCell::default();
        let scope = Scope { folds: Folds::Taken(&folds), ..scope };
        super::frames::told_apart(&select.named_window)?;
        let previous = self.windows.replace(select.named_window.clone());
        let grouped = self.grouped_rows.replace(grouped_names(&select.group_by));
        let parts = self.parts(select, order, &wanted, &scope);
        self.grouped_rows.replace(grouped);
        self.windows.replace(previous);
        let (mut outputs, mut orders, group, mut having, mut on) = parts?;

        // Grouping.
        let mut above: Vec<&mut Expr> = Vec::new();
        above.extend(outputs.iter_mut().map(|o| &mut o.expr));
        above.extend(orders.iter_mut().filter_map(|o| match o {
            Order::Other(expr, ..) => Some(expr),
            Order::Output(..) => None,
        }));
        above.extend(having.as_mut());
        above.extend(on.iter_mut());
        let mut aggregates: Vec<Expr> = Vec::new();
        for expr in &above {
            collect(expr, &mut aggregates, |e| matches!(e, Expr::AggregateFunction(_)));
        }
        let folds: Vec<OuterFold> = folds.into_inner();
        for fold in &folds {
            collect(&fold.expr, &mut aggregates, |e| matches!(e, Expr::AggregateFunction(_)));
        }
        if !aggregates.is_empty() || group.is_some() || select.having.is_some() {
            let group = group.unwrap_or_default();
            plan = self.aggregate(plan, group, aggregates, folds, &from.columns, &mut above)?;
        }
        if let Some(having) = having.take() {
            plan = filter(plan, having)?;
        }

        // Windows.
        let mut above: Vec<&mut Expr> = Vec::new();
        above.extend(outputs.iter_mut().map(|o| &mut o.expr));
        above.extend(orders.iter_mut().filter_map(|o| match o {
            Order::Other(expr, ..) => Some(expr),
            Order::Output(..) => None,
        }));
        above.extend(on.iter_mut());
        let mut windows = Vec::new();
        for expr in &above {
            collect(expr, &mut windows, |e| matches!(e, Expr::WindowFunction(_)));
        }
        plan = self.windows(plan, windows, &mut above)?;
        if !on.is_empty() && sets_in_outputs_alone(&outputs, &orders, &on) {
            // DISTINCT ON sees the rows before the sets among their columns make several of each.
            plan = self.first_of_each(plan, &outputs, &orders, std::mem::take(&mut on))?;
        }
        let mut above: Vec<&mut Expr> = outputs.iter_mut().map(|o| &mut o.expr).collect();
        above.extend(orders.iter_mut().filter_map(|o| match o {
            Order::Other(expr, ..) => Some(expr),
            Order::Output(..) => None,
        }));
        above.extend(on.iter_mut());
        plan = self.unnest_calls(plan, &mut above)?;
        self.finish(plan, select, outputs, orders, on)
    }

    #[allow(
        clippy::type_complexity,
        reason = "the parts of one SELECT, taken apart at once by the only caller"
    )]
    fn parts(
        &self,
        select: &ast::Select,
        order: &[ast::OrderByExpr],
        wanted: &[SqlType],
        scope: &Scope<'_>,
    ) -> Result<(Vec<Output>, Vec<Order>, Option<Groups>, Option<Expr>, Vec<Expr>)> {
        let mut outputs = Vec::new();
        for item in &select.projection {
            self.outputs(item, scope, &mut outputs)?;
        }
        for (at, output) in outputs.iter_mut().enumerate() {
            // An untyped literal in the output is text, or what the statement makes of it.
            if output.ty.is_unknown() && !self.keep_unknown.get() {
                let mut typed = Typed::of(output.expr.clone(), output.ty.clone());
                typed.parameter = output.parameter;
                if let (Some(number), Some(ty)) = (output.parameter, wanted.get(at)) {
                    self.meets_its_type(number, ty)?;
                }
                let ty = wanted.get(at).cloned().unwrap_or(SqlType::Text);
                output.expr = self.coerce(typed, &ty, "SELECT")?.expr;
                output.ty = ty;
            }
        }
        tell_apart(&select.group_by, &mut outputs);
        let group = self.group_by(&select.group_by, scope, &outputs)?;
        let having = match &select.having {
            None => None,
            Some(having) => {
                let having = self.condition(having, scope, "HAVING")?;
                refuse_windows(&having, "HAVING")?;
                refuse_sets(&having, "HAVING")?;
                Some(having)
            }
        };
        let mut orders = Vec::new();
        for item in order {
            orders.push(self.order_item(item, scope, &outputs)?);
        }
        let mut on = Vec::new();
        if let Some(ast::Distinct::On(exprs)) = &select.distinct {
            let mut values = Vec::with_capacity(exprs.len());
            for expr in exprs {
                let value = match self.output_position(expr, &outputs, "DISTINCT ON")? {
                    Some(at) => Typed::of(outputs[at].expr.clone(), outputs[at].ty.clone()),
                    None => self.expr(expr, scope)?,
                };
                on.push(self.orderable(value.expr.clone(), &value.ty)?);
                values.push(value.expr);
            }
            begins_order(&values, &orders, &outputs)?;
        }
        Ok((outputs, orders, group, having, on))
    }

    /// A condition of type boolean.
    pub(crate) fn condition(
        &self,
        expr: &ast::Expr,
        scope: &Scope<'_>,
        clause: &str,
    ) -> Result<Expr> {
        let typed = self.expr(expr, scope)?;
        if !typed.ty.is_unknown() && typed.ty != SqlType::Bool {
            return Err(fault::new(
                "42804",
                format!("argument of {clause} must be type boolean, not type {}", typed.ty),
            ));
        }
        Ok(self.coerce(typed, &SqlType::Bool, clause)?.expr)
    }

    pub(super) fn outputs(
        &self,
        item: &ast::SelectItem,
        scope: &Scope<'_>,
        out: &mut Vec<Output>,
    ) -> Result<()> {
        let star = |table: Option<&str>, out: &mut Vec<Output>| {
            let before = out.len();
            for column in scope.columns {
                let wanted = match table {
                    None => !column.merged,
                    Some(table) => column.table.as_deref() == Some(table) && !column.hidden(),
                };
                if wanted {
                    out.push(Output {
                        name: column.name.clone(),
                        expr: Expr::Column(column.column.clone()),
                        ty: column.ty.clone(),
                        origin: column.origin,
                        parameter: None,
                    });
                }
            }
            out.len() > before
        };
        match item {
            ast::SelectItem::Wildcard(_) => {
                star(None, out);
            }
            ast::SelectItem::QualifiedWildcard(
                ast::SelectItemQualifiedWildcardKind::ObjectName(name),
                _,
            ) => {
                let table = name.0.last().and_then(|part| part.as_ident()).map(fold);
                let table = table.unwrap_or_default();
                if !star(Some(&table), out) {
                    return Err(fault::new(
                        "42P01",
                        format!("missing FROM-clause entry for table \"{table}\""),
                    ));
                }
            }
            ast::SelectItem::QualifiedWildcard(
                ast::SelectItemQualifiedWildcardKind::Expr(row),
                _,
            ) => self.fields(row, scope, out)?,
            ast::SelectItem::UnnamedExpr(expr) => {
                let typed = match self.row_value(expr, scope)? {
                    Some(row) => row,
                    None => self.expr(expr, scope)?,
                };
                out.push(Output {
                    name: output_name(expr),
                    origin: origin_of(&typed.expr, scope),
                    expr: typed.expr,
                    ty: typed.ty,
                    parameter: typed.parameter,
                });
            }
            ast::SelectItem::ExprWithAlias { expr, alias } => {
                let typed = match self.row_value(expr, scope)? {
                    Some(row) => row,
                    None => self.expr(expr, scope)?,
                };
                out.push(Output {
                    name: fold(alias),
                    origin: origin_of(&typed.expr, scope),
                    expr: typed.expr,
                    ty: typed.ty,
                    parameter: typed.parameter,
                });
            }
            _ => return Err(fault::unsupported("this form of select-list entry")),
        }
        Ok(())
    }

    /// The output that an item of `clause` (ORDER BY, GROUP BY or DISTINCT ON) names by position or
    /// by alias.
    pub(super) fn output_position(
        &self,
        expr: &ast::Expr,
        outputs: &[Output],
        clause: &str,
    ) -> Result<Option<usize>> {
        if let Some(at) = ordinal(expr, outputs.len(), clause)? {
            return Ok(Some(at));
        }
        if let ast::Expr::Identifier(name) = expr {
            let name = fold(name);
            let mut hits = outputs.iter().enumerate().filter(|(_, o)| o.name == name);
            if let Some((at, first)) = hits.next() {
                if hits.any(|(_, other)| other.expr != first.expr) {
                    return Err(fault::new("42702", format!("ORDER BY \"{name}\" is ambiguous")));
                }
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    fn order_item(
        &self,
        item: &ast::OrderByExpr,
        scope: &Scope<'_>,
        outputs: &[Output],
    ) -> Result<Order> {
        if let Some(at) = self.output_position(&item.expr, outputs, "ORDER BY")? {
            return Ok(Order::Output(at, item.options));
        }
        let typed = self.expr(&item.expr, scope)?;
        let same = |o: &Output| o.expr == typed.expr || waiting::alike(&o.expr, &typed.expr);
        if let Some(at) = outputs.iter().position(same) {
            return Ok(Order::Output(at, item.options));
        }
        let ty = if typed.ty.is_unknown() { SqlType::Text } else { typed.ty.clone() };
        let typed = self.coerce(typed, &ty, "ORDER BY")?;
        Ok(Order::Other(typed.expr, ty, item.options))
    }

    fn windows(
        &self,
        plan: LogicalPlan,
        windows: Vec<Expr>,
        above: &mut [&mut Expr],
    ) -> Result<LogicalPlan> {
        if windows.is_empty() {
            return Ok(plan);
        }
        let (mut plan, mut waiting) = self.awaited_below(plan, windows.clone())?;
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        let mut columns: Vec<Option<Column>> = vec![None; waiting.len()];
        let mut numbers: Vec<usize> = (0..waiting.len()).collect();
        // DataFusion names a call without the casts in it: calls of one name are computed one after
        // the other, each under a name of its own.
        while !waiting.is_empty() {
            names.clear();
            let (mut now, mut later, mut left) = (Vec::new(), Vec::new(), Vec::new());
            for (call, number) in waiting.into_iter().zip(numbers) {
                let name = call.schema_name().to_string();
                if names.contains_key(&name) {
                    later.push(call);
                    left.push(number);
                    continue;
                }
                let unique = self.unique("window#");
                columns[number] = Some(Column::new_unqualified(unique.clone()));
                names.insert(name, unique);
                now.push(call);
            }
            let below = all_columns(&plan).len();
            plan = LogicalPlanBuilder::window_plan(plan, now).map_err(fault::from_datafusion)?;
            let mut exprs = all_columns(&plan);
            for expr in exprs.iter_mut().skip(below) {
                let name = expr.schema_name().to_string();
                if let Some(unique) = names.get(&name) {
                    *expr = std::mem::take(expr).alias(unique);
                }
            }
            plan = project(plan, exprs)?;
            (waiting, numbers) = (later, left);
        }
        let columns = columns.into_iter().flatten().map(Expr::Column);
        let replace: Vec<_> = windows.into_iter().zip(columns).collect();
        for expr in above.iter_mut() {
            let taken = std::mem::take(*expr);
            **expr = substitute(taken, &replace)?;
        }
        Ok(plan)
    }

    /// Set-returning calls in the select list: computed as lists, then unnested side by side.
    pub(super) fn unnest_calls(
        &self,
        plan: LogicalPlan,
        above: &mut [&mut Expr],
    ) -> Result<LogicalPlan> {
        let mut calls = Vec::new();
        for expr in above.iter() {
            collect(expr, &mut calls, |e| matches!(e, Expr::Unnest(_)));
        }
        if calls.is_empty() {
            return Ok(plan);
        }
        let mut exprs: Vec<Expr> = plan
            .schema()
            .iter()
            .map(|(q, f)| Expr::Column(Column::new(q.cloned(), f.name().clone())))
            .collect();
        let mut replace = Vec::new();
        let mut columns = Vec::new();
        for call in calls {
            let Expr::Unnest(unnest) = &call else { continue };
            let name = self.unique("set#");
            exprs.push((*unnest.expr).clone().alias(&name));
            columns.push(Column::new_unqualified(name.clone()));
            replace.push((call, Expr::Column(Column::new_unqualified(name))));
        }
        let options = datafusion::common::UnnestOptions::new().with_preserve_nulls(false);
        let plan = LogicalPlanBuilder::from(project(plan, exprs)?)
            .unnest_columns_with_options(columns, options)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        for expr in above.iter_mut() {
            let taken = std::mem::take(*expr);
            **expr = substitute(taken, &replace)?;
        }
        Ok(plan)
    }
}

/// Puts a filter on a plan.
pub(crate) fn filter(plan: LogicalPlan, condition: Expr) -> Result<LogicalPlan> {
    // DataFusion walks the condition several times: one that holds a list of thousands takes a
    // while each time.
    telesto_sql_types::interrupt::check_long()?;
    if waiting::holds(&condition) {
        return row_by_row::filter(plan, condition);
    }
    LogicalPlanBuilder::from(plan)
        .filter(condition)
        .and_then(LogicalPlanBuilder::build)
        .map_err(fault::from_datafusion)
}

/// Every column of a plan.
pub(crate) fn all_columns(plan: &LogicalPlan) -> Vec<Expr> {
    plan.schema()
        .iter()
        .map(|(q, f)| Expr::Column(Column::new(q.cloned(), f.name().clone())))
        .collect()
}

/// A plan that computes expressions.
pub(crate) fn project(plan: LogicalPlan, exprs: Vec<Expr>) -> Result<LogicalPlan> {
    telesto_sql_types::interrupt::check_long()?;
    if exprs.iter().any(waiting::holds) {
        return row_by_row::projection(plan, exprs);
    }
    LogicalPlanBuilder::from(plan)
        .project(exprs)
        .and_then(LogicalPlanBuilder::build)
        .map_err(fault::from_datafusion)
}

pub(super) fn origin_of(expr: &Expr, scope: &Scope<'_>) -> Option<super::scope::Origin> {
    let Expr::Column(column) = expr else { return None };
    scope.columns.iter().find(|c| c.column == *column)?.origin
}

/// Collects the outermost expressions that `wanted` accepts, each once.
pub(crate) fn collect(expr: &Expr, into: &mut Vec<Expr>, wanted: impl Fn(&Expr) -> bool) {
    let walked = expr.apply(|node| {
        if wanted(node) {
            if !into.contains(node) {
                into.push(node.clone());
            }
            return Ok(TreeNodeRecursion::Jump);
        }
        Ok(TreeNodeRecursion::Continue)
    });
    debug_assert!(walked.is_ok(), "the visitor never fails");
}

/// Replaces whole sub-expressions.
pub(crate) fn substitute(expr: Expr, replace: &[(Expr, Expr)]) -> Result<Expr> {
    expr.transform_down(|node| {
        if let Some((_, new)) = replace.iter().find(|(old, _)| *old == node) {
            return Ok(Transformed::new(new.clone(), true, TreeNodeRecursion::Jump));
        }
        Ok(Transformed::no(node))
    })
    .map(|done| done.data)
    .map_err(fault::from_datafusion)
}

/// Whether a condition waits and has a subquery that would become a join: what computes it row by
/// row can make none.
fn waits_for_join(condition: &Expr) -> bool {
    let joins = |part: &Expr| Ok(matches!(part, Expr::Exists(_) | Expr::InSubquery(_)));
    waiting::holds(condition) && condition.exists(joins).unwrap_or(true)
}

fn refuse_foreign_clauses(select: &ast::Select) -> Result<()> {
    let refused = [
        (select.top.is_some(), "TOP"),
        (select.into.is_some(), "SELECT INTO"),
        (!select.lateral_views.is_empty(), "LATERAL VIEW"),
        (select.prewhere.is_some(), "PREWHERE"),
        (!select.connect_by.is_empty(), "CONNECT BY"),
        (!select.cluster_by.is_empty(), "CLUSTER BY"),
        (!select.distribute_by.is_empty(), "DISTRIBUTE BY"),
        (!select.sort_by.is_empty(), "SORT BY"),
        (select.qualify.is_some(), "QUALIFY"),
        (select.exclude.is_some(), "EXCLUDE"),
    ];
    match refused.into_iter().find(|(present, _)| *present) {
        Some((_, what)) => Err(fault::unsupported(what)),
        None => Ok(()),
    }
}
