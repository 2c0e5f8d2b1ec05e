//! Whole queries: WITH, set operations, VALUES, ORDER BY and LIMIT around them.
//!
//! # Invariants
//! The relation returned has unqualified output columns with unique plan names, in select-list
//! order.

use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::{Case, Expr, LogicalPlan, LogicalPlanBuilder, SortExpr, col, lit};
use datafusion::sql::sqlparser::ast;

use super::scope::{Relation, Scope, ScopeColumn, fold};
use super::select::project;
use super::{Binder, CteEntry, Typed};
use crate::types::TypeShape;
use crate::{fault, waiting};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

/// Beside the rows of VALUES that are computed apart: their order.
const NUMBER: &str = "row#";

impl Binder<'_> {
    /// Binds a query. `outer` is the level its correlated names may refer to.
    pub(crate) fn query(&self, query: &ast::Query, outer: Option<&Scope<'_>>) -> Result<Relation> {
        let depth = self.enter_query()?;
        telesto_sql_parser::stack::deeper(|| {
            let bound = self.query_here(query, outer);
            drop(depth);
            bound
        })
    }

    fn query_here(&self, query: &ast::Query, outer: Option<&Scope<'_>>) -> Result<Relation> {
        // SEARCH or CYCLE: the terms of a recursive query are bound one by one.
        if !query.pipe_operators.is_empty() {
            return Err(fault::syntax("WITH query is not recursive"));
        }
        let wanted = self.wanted.take();
        // Inside parentheses of a set operation its branches are still branches.
        let plain = !matches!(&*query.body, ast::SetExpr::SetOperation { .. });
        let before = self.keep_unknown.get();
        if plain || query.with.is_some() {
            self.keep_unknown.set(false);
        }
        let ctes = self.ctes.borrow().len();
        if let Some(with) = &query.with {
            self.with(Some(query), with, outer)?;
        }
        self.wanted.replace(wanted);
        let locking = self.locking.get();
        self.locking.set(locking || !query.locks.is_empty());
        let bound = self.query_body(query, outer);
        self.locking.set(locking);
        self.wanted.take();
        self.ctes.borrow_mut().truncate(ctes);
        self.keep_unknown.set(before);
        bound
    }

    fn query_body(&self, query: &ast::Query, outer: Option<&Scope<'_>>) -> Result<Relation> {
        let order: &[ast::OrderByExpr] = match query.order_by.as_ref().map(|order| &order.kind) {
            None => &[],
            Some(ast::OrderByKind::Expressions(list)) => list,
            Some(ast::OrderByKind::All(_)) => return Err(fault::unsupported("ORDER BY ALL")),
        };
        self.locks(query, outer)?;
        let mut relation = match &*query.body {
            ast::SetExpr::Select(select) => self.select(select, order, outer)?,
            body => {
                let relation = self.set_expr(body, outer)?;
                self.order_output(relation, order)?
            }
        };
        relation = self.bounded(relation, query, order, outer)?;
        Ok(relation)
    }

    pub(super) fn limits(
        &self,
        query: &ast::Query,
        outer: Option<&Scope<'_>>,
    ) -> Result<(Option<i64>, Option<i64>)> {
        let (mut limit, offset) = match &query.limit_clause {
            None => (None, None),
            Some(ast::LimitClause::LimitOffset { limit, offset, limit_by }) => {
                if !limit_by.is_empty() {
                    return Err(fault::unsupported("LIMIT BY"));
                }
                (limit.as_ref(), offset.as_ref().map(|offset| &offset.value))
            }
            Some(ast::LimitClause::OffsetCommaLimit { .. }) => {
                return Err(fault::syntax(
                    "LIMIT #,# syntax is not supported; use LIMIT and OFFSET",
                ));
            }
        };
        if let Some(fetch) = &query.fetch {
            if fetch.percent {
                return Err(fault::syntax("FETCH FIRST … PERCENT is not SQL of PostgreSQL"));
            }
            if limit.is_some() && fetch.quantity.is_some() {
                return Err(fault::syntax("multiple LIMIT clauses not allowed"));
            }
            // `FETCH FIRST (n) ROWS WITH TIES` is spelled with a LIMIT before it.
            if limit.is_none() && fetch.quantity.is_none() {
                return Ok((Some(1), self.limit_value(offset, outer, "OFFSET")?));
            }
            limit = limit.or(fetch.quantity.as_ref());
        }
        Ok((self.limit_value(limit, outer, "LIMIT")?, self.limit_value(offset, outer, "OFFSET")?))
    }

    fn limit_value(
        &self,
        expr: Option<&ast::Expr>,
        outer: Option<&Scope<'_>>,
        clause: &str,
    ) -> Result<Option<i64>> {
        let Some(expr) = expr else { return Ok(None) };
        if matches!(expr, ast::Expr::Identifier(name) if fold(name) == "all") {
            return Ok(None);
        }
        let scope = Scope::new(&[], outer);
        let typed = self.expr(expr, &scope)?;
        let typed = self.coerce(typed, &SqlType::Int8, "LIMIT")?;
        let ScalarValue::Int64(value) = self.constant(typed, clause)? else {
            return Err(fault::new(
                "42804",
                format!("argument of {clause} must be of type bigint"),
            ));
        };
        if value.is_some_and(|value| value < 0) {
            let code = if clause == "LIMIT" { "2201W" } else { "2201X" };
            return Err(fault::new(code, format!("{clause} must not be negative")));
        }
        Ok(value)
    }

    /// Binds what a WITH list names; `query`: that which it stands before, if rows are read.
    pub(super) fn with(
        &self,
        query: Option<&ast::Query>,
        with: &ast::With,
        outer: Option<&Scope<'_>>,
    ) -> Result<()> {
        let named = query.map(|query| telesto_sql_plan::with_rows::uses(query, with));
        for (number, cte) in with.cte_tables.iter().enumerate() {
            let name = fold(&cte.alias.name);
            let own = &with.cte_tables[..number];
            if own.iter().any(|other| fold(&other.alias.name) == name) {
                let message = format!("WITH query name \"{name}\" specified more than once");
                return Err(fault::new("42712", message));
            }
            let recursive = with.recursive && mentions(&cte.query, &name);
            let mut relation = if recursive {
                self.recursive_cte(cte, &name, outer)?
            } else {
                self.query(&cte.query, outer)?
            };
            let uses = named.as_ref().map_or(0, |named| named[number]);
            let inside = outer.is_some();
            relation.plan = crate::once::once(relation.plan, cte, (uses, inside), &self.spooled)?;
            // Named twice by one that is named twice, and so on: what it has grown to is looked at
            // before the next.
            crate::depth::need(&relation.plan)?;
            let relation = rename(relation, &cte.alias.columns)?;
            self.ctes.borrow_mut().push(CteEntry { name, relation });
        }
        Ok(())
    }

    /// One branch of a set operation, or VALUES, or a parenthesised query.
    pub(super) fn set_expr(
        &self,
        body: &ast::SetExpr,
        outer: Option<&Scope<'_>>,
    ) -> Result<Relation> {
        match body {
            ast::SetExpr::Select(select) => self.select(select, &[], outer),
            ast::SetExpr::Query(query) => self.query(query, outer),
            ast::SetExpr::Values(values) => {
                let wanted = self.wanted.take();
                self.values(values, &wanted, outer)
            }
            ast::SetExpr::SetOperation { .. } => self.set_operations(body, outer),
            ast::SetExpr::Table(table) => {
                let mut parts = Vec::new();
                parts.extend(table.schema_name.clone().map(ast::Ident::new));
                parts.extend(table.table_name.clone().map(ast::Ident::new));
                self.whole_table(&ast::ObjectName::from(parts))
            }
            ast::SetExpr::Insert(_)
            | ast::SetExpr::Update(_)
            | ast::SetExpr::Delete(_)
            | ast::SetExpr::Merge(_) => Err(telesto_sql_plan::with_rows::not_at_the_top()),
        }
    }

    /// `VALUES (…), (…)`: columns `column1`, `column2`, …
    pub(crate) fn values(
        &self,
        values: &ast::Values,
        wanted: &[SqlType],
        outer: Option<&Scope<'_>>,
    ) -> Result<Relation> {
        let scope = Scope::new(&[], outer);
        let width = values.rows.first().map_or(0, |row| row.content.len());
        let mut rows = Vec::with_capacity(values.rows.len());
        for row in &values.rows {
            if row.content.len() != width {
                return Err(fault::syntax("VALUES lists must all be the same length"));
            }
            rows.push(
                row.content.iter().map(|e| self.expr(e, &scope)).collect::<Result<Vec<_>>>()?,
            );
        }
        self.rows_of(rows, width, wanted)
    }

    fn rows_of(&self, rows: Vec<Vec<Typed>>, width: usize, wanted: &[SqlType]) -> Result<Relation> {
        if width == 0 {
            return Err(fault::syntax("VALUES needs at least one column"));
        }
        let mut types = Vec::with_capacity(width);
        for at in 0..width {
            let column: Vec<_> = rows.iter().map(|row| row[at].ty.clone()).collect();
            let untyped = column.iter().all(SqlType::is_unknown);
            types.push(match wanted.get(at).filter(|_| untyped) {
                Some(ty) => ty.clone(),
                None => self.common_type(&column, "VALUES")?,
            });
        }
        let mut exprs = Vec::with_capacity(rows.len());
        let (mut simple, mut waits) = (true, false);
        for row in rows {
            let mut out = Vec::with_capacity(width);
            for (typed, ty) in row.into_iter().zip(&types) {
                let expr = self.coerce(typed, ty, "VALUES")?.expr;
                simple &= !has_subquery(&expr);
                waits |= waiting::holds(&expr);
                out.push(expr);
            }
            exprs.push(out);
        }
        let columns: Vec<_> = types
            .iter()
            .enumerate()
            .map(|(at, ty)| ScopeColumn {
                table: None,
                name: format!("column{}", at + 1),
                ty: ty.clone(),
                column: Column::new_unqualified(format!("column{}", at + 1)),
                merged: false,
                scalar: false,
                parameter: None,
                origin: None,
            })
            .collect();
        let plan = if waits {
            return self.take_columns(rows_that_wait(exprs, &columns)?, &columns);
        } else if simple {
            LogicalPlanBuilder::values(exprs).and_then(LogicalPlanBuilder::build)
        } else {
            let several = exprs.len() > 1;
            let mut union: Option<LogicalPlanBuilder> = None;
            for (number, row) in (0_i64..).zip(exprs) {
                let named = row.into_iter().zip(&columns).map(|(e, c)| e.alias(&c.column.name));
                let named = named.chain([lit(number).alias(NUMBER)]);
                let one = LogicalPlanBuilder::empty(true)
                    .project(named)
                    .and_then(LogicalPlanBuilder::build)
                    .map_err(fault::from_datafusion)?;
                union = Some(match union {
                    None => LogicalPlanBuilder::from(one),
                    Some(before) => before.union(one).map_err(fault::from_datafusion)?,
                });
            }
            let union = union.unwrap_or_else(|| LogicalPlanBuilder::empty(false));
            if several {
                union.sort(vec![col(NUMBER).sort(true, false)]).and_then(LogicalPlanBuilder::build)
            } else {
                union.build()
            }
        }
        .map_err(fault::from_datafusion)?;
        self.take_columns(plan, &columns)
    }

    /// ORDER BY over the output columns of a set operation.
    fn order_output(&self, relation: Relation, order: &[ast::OrderByExpr]) -> Result<Relation> {
        if order.is_empty() {
            return Ok(relation);
        }
        let mut sorts = Vec::with_capacity(order.len());
        for item in order {
            let at = match (ordinal(&item.expr, relation.columns.len(), "ORDER BY")?, &item.expr) {
                (None, ast::Expr::Identifier(name)) => {
                    let name = fold(name);
                    relation.columns.iter().position(|c| c.name == name)
                }
                (at, _) => at,
            };
            let column = at.and_then(|at| relation.columns.get(at)).ok_or_else(|| {
                fault::new(
                    "0A000",
                    "ORDER BY of a set operation takes output column names or positions only; wrap it in SELECT * FROM (…)".to_owned(),
                )
            })?;
            sorts.push(self.sort_key(
                Expr::Column(column.column.clone()),
                &column.ty,
                &item.options,
            )?);
        }
        let plan = LogicalPlanBuilder::from(relation.plan)
            .sort(sorts)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        Ok(Relation { plan, columns: relation.columns })
    }

    /// A sort key with PostgreSQL's place for nulls: last ascending, first descending.
    pub(crate) fn sort_key(
        &self,
        expr: Expr,
        ty: &SqlType,
        options: &ast::OrderByOptions,
    ) -> Result<SortExpr> {
        let ascending = options.asc.unwrap_or(true);
        let nulls_first = options.nulls_first.unwrap_or(!ascending);
        Ok(SortExpr::new(self.orderable(expr, ty)?, ascending, nulls_first))
    }

    /// Casts the columns of `relation` to `types`.
    pub(crate) fn conform(
        &self,
        relation: Relation,
        types: &[SqlType],
        what: &str,
    ) -> Result<Relation> {
        if relation.columns.iter().zip(types).all(|(column, ty)| column.ty == *ty) {
            return Ok(relation);
        }
        let mut exprs = Vec::with_capacity(types.len());
        let mut columns = Vec::with_capacity(types.len());
        for (column, ty) in relation.columns.into_iter().zip(types) {
            let mut typed = Typed::of(Expr::Column(column.column.clone()), column.ty.clone());
            let name = column.column.name.clone();
            if let Some(at) = column.parameter.filter(|_| column.ty.is_unknown()) {
                let decided = if ty.is_unknown() { &SqlType::Text } else { ty };
                self.decide_parameter(at, decided)?;
            }
            if column.ty.is_unknown() && *ty != column.ty {
                // A literal that is a column by now: its text is read as the type wanted.
                let held = relation
                    .plan
                    .schema()
                    .field_with_name(column.column.relation.as_ref(), &name)
                    .map_err(fault::from_datafusion)?;
                if *held.data_type() != arrow::datatypes::DataType::Null {
                    typed = self.cast(Typed::of(typed.expr, SqlType::Text), ty)?;
                }
            }
            exprs.push(self.coerce(typed, ty, what)?.expr.alias(name.clone()));
            columns.push(ScopeColumn {
                ty: ty.clone(),
                column: Column::new_unqualified(name),
                ..column
            });
        }
        let plan = LogicalPlanBuilder::from(relation.plan)
            .project(exprs)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        Ok(Relation { plan, columns })
    }

    /// The columns of `relation` under the plan names of `names`.
    pub(super) fn project_as(&self, relation: Relation, names: &[ScopeColumn]) -> Result<Relation> {
        let exprs: Vec<_> = relation
            .columns
            .iter()
            .zip(names)
            .map(|(from, to)| Expr::Column(from.column.clone()).alias(to.column.name.clone()))
            .collect();
        let plan = LogicalPlanBuilder::from(relation.plan)
            .project(exprs)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        Ok(Relation { plan, columns: names.to_vec() })
    }

    /// The first columns of `plan`, by position, under the names of `columns`, unqualified.
    pub(crate) fn take_columns(
        &self,
        plan: LogicalPlan,
        columns: &[ScopeColumn],
    ) -> Result<Relation> {
        let exprs: Vec<_> = plan
            .schema()
            .iter()
            .zip(columns)
            .map(|((qualifier, field), to)| {
                Expr::Column(Column::new(qualifier.cloned(), field.name().clone()))
                    .alias(to.column.name.clone())
            })
            .collect();
        let columns = columns
            .iter()
            .map(|column| ScopeColumn {
                column: Column::new_unqualified(column.column.name.clone()),
                ..column.clone()
            })
            .collect();
        let plan = LogicalPlanBuilder::from(plan)
            .project(exprs)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        Ok(Relation { plan, columns })
    }
}

/// The position an ORDER BY or GROUP BY item names, when it is a plain integer.
///
/// # Errors
/// 42P10 for a place that is none of `width` columns, 42601 for any other constant.
pub(crate) fn ordinal(expr: &ast::Expr, width: usize, clause: &str) -> Result<Option<usize>> {
    use ast::UnaryOperator::{Minus, Plus};
    let (sign, value) = match expr {
        ast::Expr::Nested(inner) => return ordinal(inner, width, clause),
        ast::Expr::UnaryOp { op: op @ (Minus | Plus), expr } => match &**expr {
            ast::Expr::Value(value) if matches!(value.value, ast::Value::Number(..)) => {
                (if *op == Minus { "-" } else { "" }, value)
            }
            _ => return Ok(None),
        },
        ast::Expr::Value(value) => ("", value),
        _ => return Ok(None),
    };
    let place = match &value.value {
        ast::Value::Placeholder(_) => return Ok(None),
        ast::Value::Number(digits, _) => format!("{sign}{digits}").parse::<i32>().ok(),
        _ => None,
    };
    let place = place.ok_or_else(|| fault::syntax(&format!("non-integer constant in {clause}")))?;
    let at = usize::try_from(place).ok().filter(|at| (1..=width).contains(at));
    let missing =
        || fault::new("42P10", format!("{clause} position {place} is not in select list"));
    at.map(|at| Some(at - 1)).ok_or_else(missing)
}

/// Gives the columns of `relation` the names of an alias list.
pub(crate) fn rename(
    mut relation: Relation,
    names: &[ast::TableAliasColumnDef],
) -> Result<Relation> {
    if names.len() > relation.columns.len() {
        return Err(fault::new(
            "42P10",
            format!(
                "alias list names {} columns where there are {}",
                names.len(),
                relation.columns.len()
            ),
        ));
    }
    for (column, alias) in relation.columns.iter_mut().zip(names) {
        column.name = fold(&alias.name);
    }
    Ok(relation)
}

/// Rows of VALUES in which something waits: each column is, by the number of the row, one of its
/// expressions.
fn rows_that_wait(rows: Vec<Vec<Expr>>, columns: &[ScopeColumn]) -> Result<LogicalPlan> {
    let numbers = (0_i64..).take(rows.len()).map(|number| vec![lit(number)]).collect();
    let plan = LogicalPlanBuilder::values(numbers)
        .and_then(|plan| plan.project([col("column1").alias(NUMBER)]))
        .and_then(LogicalPlanBuilder::build)
        .map_err(fault::from_datafusion)?;
    let mut cases: Vec<Vec<(Box<Expr>, Box<Expr>)>> = vec![Vec::new(); columns.len()];
    for (number, row) in (0_i64..).zip(rows) {
        for (pairs, value) in cases.iter_mut().zip(row) {
            pairs.push((Box::new(col(NUMBER).eq(lit(number))), Box::new(value)));
        }
    }
    let exprs = cases.into_iter().zip(columns).map(|(when_then_expr, column)| {
        Expr::Case(Case { expr: None, when_then_expr, else_expr: None }).alias(&column.column.name)
    });
    project(plan, exprs.collect())
}

/// Whether an expression has a subquery, or a call that must be awaited.
pub(super) fn has_subquery(expr: &Expr) -> bool {
    use datafusion::common::tree_node::TreeNode;
    expr.exists(|node| {
        Ok(matches!(
            node,
            Expr::ScalarSubquery(_)
                | Expr::Exists(_)
                | Expr::InSubquery(_)
                | Expr::SetComparison(_)
        ) || crate::apply::is_awaited(node))
    })
    .unwrap_or(true)
}

/// Whether a query names `name` as a relation.
fn mentions(query: &ast::Query, name: &str) -> bool {
    use std::ops::ControlFlow;
    ast::visit_relations(query, |relation| {
        let hit = relation.0.len() == 1
            && relation.0[0].as_ident().is_some_and(|ident| fold(ident) == name);
        if hit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .is_break()
}
