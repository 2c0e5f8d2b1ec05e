//! Subqueries in expressions: as plan nodes that DataFusion turns into joins, or as calls
//! ([`crate::apply`]).
//!
//! # Invariants
//! A join is chosen only where it gives the same answer: its marks are true or false, never NULL,
//! so `IN` may be one below AND and OR of a WHERE alone, and EXISTS below NOT too.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::TreeNode as _;
use datafusion::common::{Column, Spans};
use datafusion::logical_expr::expr::InSubquery;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Operator, Subquery};
use datafusion::sql::sqlparser::ast;

use super::expr::negate;
use super::operators::has_one_row_at_most;
use super::query::has_subquery;
use super::scope::{Relation, Scope, fold};
use super::select::{collect, project, substitute};
use super::{Binder, Typed};
use crate::apply::{self, Shape};
use crate::arrays::ArrayWork;
use crate::fault;
use crate::guards;
use crate::outer;
use crate::row_by_row;
use crate::types::{arrow_type, list_type};
use crate::udf;
use crate::waiting;
use telesto_sql_expr::{comparison_type, registry};
use telesto_sql_types::error::Result;

/// Whether something in a plan may fail for some rows.
fn fails_somewhere(plan: &LogicalPlan) -> bool {
    plan.exists(|node| Ok(node.expressions().iter().any(guards::may_fail))).unwrap_or(true)
}

/// The query of an EXISTS without what it selects, where that is of no matter; and whether names in
/// what it selects are still to be looked at.
fn bare(query: &ast::Query) -> Option<(ast::Query, bool)> {
    let ast::SetExpr::Select(select) = &*query.body else { return None };
    let ast::GroupByExpr::Expressions(groups, _) = &select.group_by else { return None };
    if select.distinct.is_some() || !groups.is_empty() || select.having.is_some() {
        return None;
    }
    let (mut computes, mut named) = (false, false);
    for item in &select.projection {
        let expr = match item {
            ast::SelectItem::Wildcard(_) => {
                computes = true;
                continue;
            }
            ast::SelectItem::UnnamedExpr(expr) | ast::SelectItem::ExprWithAlias { expr, .. } => {
                expr
            }
            _ => return None,
        };
        // An aggregate makes a row, a set-returning function none or several; what waits is not
        // called, as in PostgreSQL.
        let waits = |name: &ast::ObjectName| {
            let name = name.0.last().and_then(|part| part.as_ident()).map(fold);
            name.is_some_and(|name| registry().waits(&name))
        };
        let calls = ast::visit_expressions(expr, |part| match part {
            ast::Expr::Function(call) if waits(&call.name) => ControlFlow::Continue(()),
            ast::Expr::Function(_) | ast::Expr::Subquery(_) | ast::Expr::Exists { .. } => {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        });
        if calls.is_break() {
            return None;
        }
        if !matches!(
            expr,
            ast::Expr::Value(_) | ast::Expr::Identifier(_) | ast::Expr::CompoundIdentifier(_)
        ) {
            (computes, named) = (true, true);
        }
    }
    if !computes {
        return None;
    }
    let mut select = select.clone();
    let one = ast::Expr::value(ast::Value::Number("1".to_owned(), false));
    select.projection = vec![ast::SelectItem::UnnamedExpr(one)];
    let body = Box::new(ast::SetExpr::Select(select));
    Some((ast::Query { body, order_by: None, ..query.clone() }, named))
}

impl Binder<'_> {
    /// The relation of an EXISTS.
    pub(super) fn exists_query(&self, query: &ast::Query, scope: &Scope<'_>) -> Result<Relation> {
        let Some((bare, named)) = bare(query) else { return self.query(query, Some(scope)) };
        if named
            && let Err(error) = self.query(query, Some(scope))
            && !error.code().0.starts_with("22")
        {
            return Err(error);
        }
        self.query(&bare, Some(scope))
    }

    pub(super) fn scalar_subquery(&self, query: &ast::Query, scope: &Scope<'_>) -> Result<Typed> {
        let relation = self.query(query, Some(scope))?;
        let [column] = relation.columns.as_slice() else {
            return Err(fault::syntax("subquery must return only one column"));
        };
        let ty = column.ty.clone();
        if has_one_row_at_most(&relation.plan) {
            return Ok(Typed::of(self.scalar_of(relation, &arrow_type(&ty), scope)?, ty));
        }
        let rows = self.scalar_of(self.first_row(relation)?, &list_type(&ty), scope)?;
        let only = udf::array_call(ArrayWork::Only, vec![ty.clone().array_of()], ty.clone());
        Ok(Typed::of(only.call(vec![rows]), ty))
    }

    /// The only value of a one-column relation of at most one row.
    pub(super) fn scalar_of(
        &self,
        relation: Relation,
        returns: &DataType,
        scope: &Scope<'_>,
    ) -> Result<Expr> {
        // DataFusion's join of one takes a column without nulls at its word, also when there is no
        // row.
        let nullable = relation.plan.schema().field(0).is_nullable();
        let call = self.applied(Shape::Scalar, &relation, returns, &[], nullable, scope)?;
        if let Some(call) = call {
            return Ok(call);
        }
        let mut relation = relation;
        // DataFusion computes equal subqueries once; PostgreSQL each one. A name of its own makes
        // it another one.
        if outer::changes(&relation.plan).map_err(fault::from_datafusion)? {
            relation.plan = LogicalPlanBuilder::from(relation.plan)
                .alias(self.unique("changing"))
                .and_then(LogicalPlanBuilder::build)
                .map_err(fault::from_datafusion)?;
        }
        Ok(Expr::ScalarSubquery(subquery_of(relation)))
    }

    /// The subquery as a call: when no join gives what it gives (`joins`), or when correlated ones
    /// are run row by row.
    pub(super) fn applied(
        &self,
        shape: Shape,
        relation: &Relation,
        returns: &DataType,
        left: &[Expr],
        joins: bool,
        scope: &Scope<'_>,
    ) -> Result<Option<Expr>> {
        // A join would compute what may fail for rows that the CASE around does not ask it for.
        let joins = joins && !(self.cases.get() > 0 && fails_somewhere(&relation.plan));
        let mut outer: Vec<(Column, Expr)> = Vec::new();
        let mut args: Vec<Expr> = Vec::new();
        let references = outer::references(&relation.plan).map_err(fault::from_datafusion)?;
        for (column, reference) in references {
            // A column of this level, or of one further out: then it is an outer reference here as
            // well.
            let value = match scope.level_of(&column) {
                Some(0) => Expr::Column(column.clone()),
                Some(_) => reference.clone(),
                None => continue,
            };
            args.push(value);
            outer.push((column, reference));
        }
        if !outer.is_empty() {
            self.correlated.set(true);
        }
        let wrongly = || self.joins_wrongly(&relation.plan, scope);
        // A join would compute what waits in another order, or for other rows.
        let joins = joins && (outer.is_empty() || !row_by_row::within(&relation.plan));
        if joins && (outer.is_empty() || !(self.row_by_row || wrongly()?)) {
            return Ok(None);
        }
        // Without a state the statement is only described.
        let Some(state) = self.apply.as_ref() else { return Ok(None) };
        if !self.row_by_row && !apply::runs(&relation.plan, &outer, state) {
            self.refused.set(true);
        }
        let columns = outer.into_iter().map(|(column, _)| column).collect();
        args.extend_from_slice(left);
        let plan = relation.plan.clone();
        let call = apply::call(self.next_instance(), shape, plan, columns, returns.clone(), state);
        Ok(Some(call.call(args)))
    }

    /// Whether a join would not give what running the plan for each row of `scope` gives.
    pub(super) fn joins_wrongly(&self, plan: &LogicalPlan, scope: &Scope<'_>) -> Result<bool> {
        outer::joins_wrongly(plan, |column| scope.level_of(column).is_some())
            .map_err(fault::from_datafusion)
    }

    /// The expressions with what must be awaited in them computed below, in a projection: operators
    /// other than that and filters cannot wait. Subqueries too: DataFusion makes joins of them in
    /// these alone. And columns of outer rows: values in their place would change the names of what
    /// is computed.
    pub(super) fn awaited_below(
        &self,
        plan: LogicalPlan,
        exprs: Vec<Expr>,
    ) -> Result<(LogicalPlan, Vec<Expr>)> {
        let mut calls = Vec::new();
        let waits = self.waiting.get();
        // An argument that waits is computed as a whole: of CASE and its kin only what they get to.
        let argument = |part: &Expr| {
            !matches!(part, Expr::AggregateFunction(_) | Expr::WindowFunction(_))
                && waiting::holds(part)
        };
        for expr in &exprs {
            collect(expr, &mut calls, |part| {
                waits && argument(part)
                    || apply::is_awaited(part)
                    || outer::subquery(part).is_some()
                    || matches!(part, Expr::OuterReferenceColumn(..))
            });
        }
        if calls.is_empty() {
            return Ok((plan, exprs));
        }
        let mut below: Vec<Expr> = plan
            .schema()
            .iter()
            .map(|(q, f)| Expr::Column(Column::new(q.cloned(), f.name().clone())))
            .collect();
        let mut replace = Vec::new();
        for call in calls {
            let name = self.unique("subquery");
            below.push(call.clone().alias(&name));
            replace.push((call, Expr::Column(Column::new_unqualified(name))));
        }
        let plan = project(plan, below)?;
        let exprs =
            exprs.into_iter().map(|expr| substitute(expr, &replace)).collect::<Result<Vec<_>>>()?;
        Ok((plan, exprs))
    }

    #[allow(clippy::too_many_arguments, reason = "one comparison, taken apart by the syntax")]
    pub(super) fn in_subquery(
        &self,
        left: Typed,
        op: &str,
        all: bool,
        query: &ast::Query,
        negated: bool,
        joins: bool,
        scope: &Scope<'_>,
    ) -> Result<Typed> {
        let relation = self.query(query, Some(scope))?;
        let [column] = relation.columns.as_slice() else {
            return Err(fault::syntax("subquery has too many columns"));
        };
        let ty = comparison_type(&left.ty, &column.ty).ok_or_else(|| {
            let column = Typed::of(Expr::Column(column.column.clone()), column.ty.clone());
            self.no_such(op, &[left.clone(), column], true)
        })?;
        let native = match super::operators::native(op) {
            Some(native)
                if !matches!(native, Operator::IsDistinctFrom | Operator::IsNotDistinctFrom) =>
            {
                native
            }
            _ => return Err(fault::unsupported(&format!("{op} ANY (subquery)"))),
        };
        let relation = self.conform(relation, std::slice::from_ref(&ty), op)?;
        let left = self.comparable(self.coerce(left, &ty, op)?)?;
        let relation = self.comparable_relation(relation)?;
        // A join's condition can neither wait nor hold another subquery.
        let joins = joins && !one_whatever(&relation.plan) && !has_subquery(&left);
        let shape = Shape::Quantified(native, all);
        if let Some(call) = self.applied(
            shape,
            &relation,
            &DataType::Boolean,
            std::slice::from_ref(&left),
            joins,
            scope,
        )? {
            return Ok(Typed::bool(negate(call, negated)));
        }
        // A join; or the statement is only described. Its column needs a relation's name: without
        // one, DataFusion takes it for a second one beside the column of the join it makes below
        // OR. Named by a projection: pulling correlated columns up leaves the schema of an alias
        // behind.
        let mut relation = relation;
        let value = match relation.plan.schema().columns().as_slice() {
            [column] => {
                Expr::Column(column.clone()).alias_qualified(Some(self.unique("in")), "value")
            }
            _ => return Err(fault::syntax("subquery has too many columns")),
        };
        relation.plan = LogicalPlanBuilder::from(relation.plan)
            .project(vec![value])
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        let subquery = subquery_of(relation);
        Ok(Typed::bool(Expr::InSubquery(InSubquery::new(Box::new(left), subquery, negated))))
    }
}

/// Whether what a plan gives hangs on more than which rows match: an aggregate without groups has a
/// row when nothing does, and LIMIT and OFFSET count rows of one outer row. Joins get these wrong.
pub(super) fn one_whatever(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::Limit(_) => true,
        LogicalPlan::Projection(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Distinct(_)
        | LogicalPlan::Union(_) => plan.inputs().into_iter().any(one_whatever),
        _ => false,
    }
}

/// A subquery node over a bound relation.
pub(crate) fn subquery_of(relation: Relation) -> Subquery {
    let outer_ref_columns = relation.plan.all_out_ref_exprs();
    Subquery { subquery: Arc::new(relation.plan), outer_ref_columns, spans: Spans::new() }
}
