//! WITH RECURSIVE, and the recursive terms that PostgreSQL refuses.
//!
//! # On failure
//! 42P19.
//!
//! # Limits
//! Looked at is what the term itself selects from: what a subquery of an expression refers to is
//! not.

use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, col};
use datafusion::sql::sqlparser::ast;

use super::query::rename;
use super::scope::{Relation, Scope, ScopeColumn, fold};
use super::search::Marks;
use super::{Binder, CteEntry};
use crate::fault;
use crate::types::arrow_type;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// `WITH RECURSIVE name AS (start UNION [ALL] step)`.
    pub(super) fn recursive_cte(
        &self,
        cte: &ast::Cte,
        name: &str,
        outer: Option<&Scope<'_>>,
    ) -> Result<Relation> {
        let ast::SetExpr::SetOperation { left, op: ast::SetOperator::Union, set_quantifier, right } =
            &*cte.query.body
        else {
            return Err(fault::new(
                "42P19",
                format!(
                    "recursive query \"{name}\" does not have the form non-recursive-term UNION [ALL] recursive-term"
                ),
            ));
        };
        refuse_bounds(&cte.query)?;
        refuse_recursion(right, name)?;
        let distinct = !matches!(set_quantifier, ast::SetQuantifier::All);
        let start = rename(self.set_expr(left, outer)?, &cte.alias.columns)?;
        let marks = Marks::of(&cte.query, &start.columns)?;
        if !marks.is_empty() && is_set_operation(left) {
            return Err(fault::new(
                "0A000",
                "with a SEARCH or CYCLE clause, the left side of the UNION must be a SELECT",
            ));
        }
        let start = self.marked_start(start, &marks)?;
        // The work table carries the start's columns under names of its own.
        let work_name = self.unique(name);
        let schema = Arc::new(arrow::datatypes::Schema::new(
            start
                .columns
                .iter()
                .map(|c| {
                    arrow::datatypes::Field::new(c.column.name.clone(), arrow_type(&c.ty), true)
                })
                .collect::<Vec<_>>(),
        ));
        let start_plan = nullable(start.plan, &start.columns)?;
        let work =
            Arc::new(datafusion::catalog::cte_worktable::CteWorkTable::new(&work_name, schema));
        let scan = LogicalPlanBuilder::scan(
            work_name.as_str(),
            datafusion::datasource::provider_as_source(work),
            None,
        )
        .and_then(LogicalPlanBuilder::build)
        .map_err(fault::from_datafusion)?;
        let mut columns: Vec<ScopeColumn> = start
            .columns
            .iter()
            .map(|c| ScopeColumn {
                column: Column::new(Some(work_name.clone()), c.column.name.clone()),
                ..c.clone()
            })
            .collect();
        marks.seen_inside(&mut columns);
        let passing;
        let right = match marks.is_empty() {
            true => &**right,
            false => {
                passing = marks.passed_through(right, name)?;
                &passing
            }
        };
        self.ctes
            .borrow_mut()
            .push(CteEntry { name: name.to_owned(), relation: Relation { plan: scan, columns } });
        let step = self.set_expr(right, outer);
        self.ctes.borrow_mut().pop();
        let types: Vec<_> = start.columns.iter().map(|c| c.ty.clone()).collect();
        if distinct {
            types.iter().try_for_each(super::equality::comparable)?;
        }
        let step = step?;
        if step.columns.len() != types.len() {
            return Err(fault::syntax("each UNION query must have the same number of columns"));
        }
        let step = self.conform(step, &types, "UNION")?;
        let step =
            self.conform(self.marked_step(step, &marks, &start.columns)?, &types, "UNION")?;
        // Same plan names as the start, in a schema of the same shape.
        let step = self.project_as(step, &start.columns)?;
        let plan = LogicalPlanBuilder::from(start_plan)
            .to_recursive_query(work_name, step.plan, distinct)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        Ok(marks.seen_outside(Relation { plan, columns: start.columns }))
    }
}

/// Refuses what would sort or cut the rows of a recursive query, which come as they are found.
fn refuse_bounds(query: &ast::Query) -> Result<()> {
    let (mut limit, mut offset) = (query.fetch.is_some(), false);
    match &query.limit_clause {
        None => {}
        Some(ast::LimitClause::LimitOffset { limit: most, offset: first, .. }) => {
            limit |= most.is_some();
            offset = first.is_some();
        }
        Some(ast::LimitClause::OffsetCommaLimit { .. }) => limit = true,
    }
    let what = if query.order_by.is_some() {
        "ORDER BY"
    } else if offset {
        "OFFSET"
    } else if limit {
        "LIMIT"
    } else if !query.locks.is_empty() {
        "FOR UPDATE/SHARE"
    } else {
        return Ok(());
    };
    Err(fault::new("0A000", format!("{what} in a recursive query is not implemented")))
}

/// Whether it is one, perhaps in parentheses.
fn is_set_operation(body: &ast::SetExpr) -> bool {
    match body {
        ast::SetExpr::SetOperation { .. } => true,
        ast::SetExpr::Query(query) => is_set_operation(&query.body),
        _ => false,
    }
}

/// Refuses a recursive term that PostgreSQL refuses (42P19): one that names itself twice, in a
/// subquery of an expression, below an outer join that may leave it out, or under an aggregate.
fn refuse_recursion(term: &ast::SetExpr, name: &str) -> Result<()> {
    let refused = |what: &str| Err(fault::new("42P19", what.to_owned()));
    let in_expression = ast::visit_expressions(term, |expr| {
        let within = match expr {
            ast::Expr::Subquery(query) => count(query, name),
            ast::Expr::Exists { subquery, .. } | ast::Expr::InSubquery { subquery, .. } => {
                count(subquery, name)
            }
            ast::Expr::Function(call) => match &call.args {
                ast::FunctionArguments::Subquery(query) => count(query, name),
                _ => 0,
            },
            _ => 0,
        };
        if within > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    if in_expression.is_break() {
        return refused(&format!(
            "recursive reference to query \"{name}\" must not appear within a subquery"
        ));
    }
    if count(term, name) > 1 {
        return refused(&format!(
            "recursive reference to query \"{name}\" must not appear more than once"
        ));
    }
    match ast::Visit::visit(term, &mut Selects(name)) {
        ControlFlow::Break(what) => refused(&what),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Looks at each SELECT of a recursive term, also those in FROM.
struct Selects<'n>(&'n str);

impl ast::Visitor for Selects<'_> {
    type Break = String;

    fn pre_visit_select(&mut self, select: &ast::Select) -> ControlFlow<String> {
        if left_out_of(select, self.0) {
            return ControlFlow::Break(format!(
                "recursive reference to query \"{}\" must not appear within an outer join",
                self.0
            ));
        }
        if folds(select) && select.from.iter().any(|from| stands_in(from, self.0)) {
            return ControlFlow::Break(
                "aggregate functions are not allowed in a recursive query's recursive term"
                    .to_owned(),
            );
        }
        ControlFlow::Continue(())
    }
}

/// Whether `name` stands on a side of an outer join that it may leave out.
fn left_out_of(select: &ast::Select, name: &str) -> bool {
    use ast::JoinOperator as J;
    select.from.iter().any(|from| {
        let mut left = count(&from.relation, name) > 0;
        from.joins.iter().any(|join| {
            let right = count(&join.relation, name) > 0;
            let below = match &join.join_operator {
                J::Left(_) | J::LeftOuter(_) => right,
                J::Right(_) | J::RightOuter(_) => left,
                J::FullOuter(_) => left || right,
                _ => false,
            };
            left |= right;
            below
        })
    })
}

/// Whether `name` is itself among what is joined, not in a subquery there.
fn stands_in(from: &ast::TableWithJoins, name: &str) -> bool {
    let factor = |factor: &ast::TableFactor| match factor {
        ast::TableFactor::Table { name: table, .. } => {
            matches!(&table.0[..], [only] if only.as_ident().is_some_and(|ident| fold(ident) == name))
        }
        ast::TableFactor::NestedJoin { table_with_joins, .. } => stands_in(table_with_joins, name),
        _ => false,
    };
    factor(&from.relation) || from.joins.iter().any(|join| factor(&join.relation))
}

/// Whether a SELECT has an aggregate in its list that is its own.
fn folds(select: &ast::Select) -> bool {
    let aggregates = ast::visit_expressions(&select.projection, |expr| match expr {
        ast::Expr::Function(call) if call.over.is_none() => {
            let name = call.name.0.last().and_then(|part| part.as_ident()).map(fold);
            match !call.within_group.is_empty()
                || name.is_some_and(|name| telesto_sql_expr::is_aggregate(&name))
            {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        }
        _ => ControlFlow::Continue(()),
    });
    // An aggregate in a subquery of the list is that query's own.
    let plain = select.projection.iter().all(|item| {
        !ast::visit_expressions(item, |expr| match expr {
            ast::Expr::Subquery(_) | ast::Expr::Exists { .. } | ast::Expr::InSubquery { .. } => {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        })
        .is_break()
    });
    aggregates.is_break() && plain
}

/// How often something names `name` as a relation.
fn count(node: &impl ast::Visit, name: &str) -> usize {
    let mut count = 0;
    let _ = ast::visit_relations(node, |relation| {
        let single = relation.0.len() == 1;
        let hit = single && relation.0[0].as_ident().is_some_and(|ident| fold(ident) == name);
        count += usize::from(hit);
        ControlFlow::<()>::Continue(())
    });
    count
}

/// Makes every output column nullable, as a work table's columns are.
fn nullable(plan: LogicalPlan, columns: &[ScopeColumn]) -> Result<LogicalPlan> {
    let null_row = columns
        .iter()
        .map(|c| {
            ScalarValue::try_from(&arrow_type(&c.ty))
                .map(|null| Expr::Literal(null, None).alias(c.column.name.clone()))
        })
        .collect::<datafusion::common::Result<Vec<_>>>()
        .map_err(fault::from_datafusion)?;
    let never = LogicalPlanBuilder::empty(false)
        .project(null_row)
        .and_then(LogicalPlanBuilder::build)
        .map_err(fault::from_datafusion)?;
    let names: Vec<_> =
        columns.iter().map(|c| col(c.column.clone()).alias(&c.column.name)).collect();
    LogicalPlanBuilder::from(plan)
        .project(names)
        .and_then(|plan| plan.union(never))
        .and_then(LogicalPlanBuilder::build)
        .map_err(fault::from_datafusion)
}
