//! LATERAL: what is computed for each row of what stands left of it.
//!
//! # Protocol
//! ```text
//! left, f(left.x)                 left + a list of what f gives                       -> unnested
//! left, LATERAL (SELECT … x …)    a join, where DataFusion finds one; else row by row:
//!                                 left + a list of the query's rows, one struct each  -> unnested, fields to columns
//! left, (a JOIN f(left.x) …)      row by row, as such a query
//! ```
//!
//! # Invariants
//! The query's rows keep their order beside one left row; a left row without rows goes, or stays
//! with NULLs under LEFT JOIN … ON true.
//!
//! A function in a LEFT JOIN with a condition, and in one with USING, is such a query:
//! `(SELECT * FROM f(left.x))`.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Column, JoinType, ScalarValue, UnnestOptions};
use datafusion::functions::core::expr_fn::get_field;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, lit, when};
use datafusion::sql::sqlparser::ast;

use super::from::{Outside, coalesce, is_true, needs_left};
use super::group::refuse_sets;
use super::merged::Merge;
use super::query::rename;
use super::scope::{Relation, Scope, ScopeColumn, fold};
use super::select::{all_columns, filter, project};
use super::sets::TableSet;
use super::table_call::{Call, TableCall};
use super::{Binder, Typed};
use crate::apply::Shape;
use crate::types::{TypeShape as _, arrow_type};
use crate::{fault, outer};
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

/// What became of a LATERAL item.
pub(super) enum Beside {
    /// It stands beside the left rows now.
    Joined(Relation),
    /// It is left to a join; the left side comes back.
    Left(Relation),
}

/// Whether a join keeps left rows that nothing stands beside, without a condition of its own;
/// `None`: it is of another kind.
pub(super) fn keeps_left(kind: JoinType, constraint: Option<&ast::JoinConstraint>) -> Option<bool> {
    match (kind, constraint) {
        (JoinType::Inner, None | Some(ast::JoinConstraint::None | ast::JoinConstraint::On(_))) => {
            Some(false)
        }
        (JoinType::Left, Some(ast::JoinConstraint::On(on))) if is_true(on) => Some(true),
        _ => None,
    }
}

impl Binder<'_> {
    /// `left, LATERAL (query)` when the query is to be run for each left row.
    pub(super) fn lateral_query(
        &self,
        left: Relation,
        factor: &ast::TableFactor,
        kind: JoinType,
        constraint: Option<&ast::JoinConstraint>,
        outside: Outside<'_>,
    ) -> Result<Beside> {
        let outer = outside.lateral;
        let scope = Scope::new(&left.columns, outer);
        let (inner, alias, joined) = match factor {
            ast::TableFactor::Derived { lateral: true, subquery, alias, .. } => {
                (self.query(subquery, Some(&scope))?, alias, false)
            }
            ast::TableFactor::NestedJoin { table_with_joins, alias }
                if sees(table_with_joins, &left.columns) =>
            {
                let inside = Outside { lateral: Some(&scope), ..outside };
                (self.joined(table_with_joins, None, inside)?, alias, true)
            }
            _ => return Ok(Beside::Left(left)),
        };
        let references = outer::references(&inner.plan).map_err(fault::from_datafusion)?;
        let level = |(column, _): &(Column, Expr)| scope.level_of(column);
        let refers = references.iter().any(|reference| level(reference) == Some(0));
        if matches!(kind, JoinType::Right | JoinType::Full) {
            refuse_left(&references, &left.columns)?;
        }
        // DataFusion's joins know one level.
        let further = references.iter().any(|reference| level(reference) > Some(0));
        let wrongly = further || self.joins_wrongly(&inner.plan, &scope)?;
        if !refers || !(self.row_by_row || wrongly || joined) {
            return Ok(Beside::Left(left));
        }
        // The columns of a join without a name keep those of its sides.
        let keeps_names = joined && alias.is_none();
        let inner = if keeps_names { self.flat_join(inner)? } else { self.flatten(inner)? };
        let mut inner = match alias {
            Some(alias) => rename(inner, &alias.columns)?,
            None => inner,
        };
        let table = alias.as_ref().map(|alias| fold(&alias.name));
        if !keeps_names {
            for column in &mut inner.columns {
                column.table.clone_from(&table);
            }
        }
        let merge = Merge::of(constraint, &left.columns, &inner.columns);
        let keep = self.filter_beside(&left, &mut inner, &merge, (kind, constraint), outer)?;
        let field = |(at, column): (usize, &ScopeColumn)| {
            Field::new(format!("c{at}"), arrow_type(&column.ty), true)
        };
        let fields: Fields = inner.columns.iter().enumerate().map(field).collect();
        let returns =
            DataType::List(Arc::new(Field::new_list_field(DataType::Struct(fields), true)));
        let rows = Shape::Rows { or_null: keep };
        let Some(rows) = self.applied(rows, &inner, &returns, &[], false, &scope)? else {
            return Ok(Beside::Left(left));
        };
        let (mut plan, rights) = self.rows_beside(left.plan, rows, inner.columns, table, keep)?;
        let joined = self.merged(left.columns, rights, &merge, kind)?;
        if !joined.computed.is_empty() {
            let mut exprs = all_columns(&plan);
            exprs.extend(joined.computed);
            plan = project(plan, exprs)?;
        }
        let relation = Relation { plan, columns: joined.columns };
        self.where_on(relation, kind, constraint, outer).map(Beside::Joined)
    }

    /// Puts what a join says of both sides among the conditions of the query beside one left row,
    /// where it is not asked of the rows after it; whether left rows stay that have none beside
    /// them.
    fn filter_beside(
        &self,
        left: &Relation,
        inner: &mut Relation,
        merge: &Merge,
        (kind, constraint): (JoinType, Option<&ast::JoinConstraint>),
        outer: Option<&Scope<'_>>,
    ) -> Result<bool> {
        let scope = Scope::new(&left.columns, outer);
        match (kind, constraint) {
            (
                JoinType::Inner | JoinType::Left,
                Some(ast::JoinConstraint::Using(_) | ast::JoinConstraint::Natural),
            ) => {
                self.merged(left.columns.clone(), inner.columns.clone(), merge, kind)?;
                let outside = Scope::new(&[], Some(&scope));
                for name in &merge.names {
                    let (outside, ty) = outside.resolve(None, name)?;
                    let own = Scope::new(&inner.columns, None);
                    let (own, own_ty) = own.resolve(None, name)?;
                    let equal = self.binary("=", Typed::of(outside, ty), Typed::of(own, own_ty))?;
                    inner.plan = filter(inner.plan.clone(), equal.expr)?;
                }
                Ok(kind == JoinType::Left)
            }
            (JoinType::Left, Some(ast::JoinConstraint::On(on))) if !is_true(on) => {
                let both = [left.columns.as_slice(), inner.columns.as_slice()].concat();
                self.join_on(on, &Scope::new(&both, outer))?;
                let within = Scope::new(&inner.columns, Some(&scope));
                let condition = self.condition(on, &within, "JOIN/ON")?;
                inner.plan = filter(inner.plan.clone(), condition)?;
                Ok(true)
            }
            _ => keeps_left(kind, constraint)
                .ok_or_else(|| fault::unsupported("this join with LATERAL")),
        }
    }

    /// `left` with the lists `rows`, one struct for each row of a query, taken apart into its
    /// columns; in the plan they are called after `table`.
    fn rows_beside(
        &self,
        left: LogicalPlan,
        rows: Expr,
        inner: Vec<ScopeColumn>,
        table: Option<String>,
        keep: bool,
    ) -> Result<(LogicalPlan, Vec<ScopeColumn>)> {
        let unique = self.unique(table.as_deref().unwrap_or("subquery"));
        let own = all_columns(&left);
        let mut exprs = own.clone();
        exprs.push(rows.alias(&unique));
        let list = Column::new_unqualified(unique.clone());
        let plan = unnested(project(left, exprs)?, vec![list.clone()], keep)?;
        let mut exprs = own;
        let mut columns = Vec::with_capacity(inner.len());
        for (at, column) in inner.into_iter().enumerate() {
            let name = format!("{unique}.{at}");
            let value = get_field(Expr::Column(list.clone()), format!("c{at}"));
            exprs.push(value.alias(&name));
            columns.push(ScopeColumn { column: Column::new_unqualified(name), ..column });
        }
        Ok((project(plan, exprs)?, columns))
    }

    /// The rows of an inner join's product that its condition lets through.
    fn where_on(
        &self,
        relation: Relation,
        kind: JoinType,
        constraint: Option<&ast::JoinConstraint>,
        outer: Option<&Scope<'_>>,
    ) -> Result<Relation> {
        let (JoinType::Inner, Some(ast::JoinConstraint::On(on))) = (kind, constraint) else {
            return Ok(relation);
        };
        let scope = Scope::new(&relation.columns, outer);
        let condition = self.join_on(on, &scope)?;
        Ok(Relation { plan: filter(relation.plan, condition)?, columns: relation.columns })
    }

    /// The columns that a call gives.
    fn set_of(&self, call: &Call<'_>, scope: &Scope<'_>) -> Result<TableSet> {
        let mut args = self.table_arguments(&call.args, scope)?;
        match args.pop() {
            Some(value) if call.whole => {
                refuse_sets(&value.expr, "FROM")?;
                let ty = if value.ty.is_unknown() { SqlType::Text } else { value.ty.clone() };
                self.value_in_from(&call.name, self.coerce(value, &ty, "FROM")?)
            }
            last => {
                args.extend(last);
                self.call_in_from(&call.name, args)
            }
        }
    }

    /// `left, f(…) [WITH ORDINALITY]`: the call is computed beside each left row as a list, then
    /// unnested.
    pub(super) fn lateral_call(
        &self,
        left: Relation,
        call: &TableCall<'_>,
        kind: JoinType,
        constraint: Option<&ast::JoinConstraint>,
        outer: Option<&Scope<'_>>,
    ) -> Result<Relation> {
        call.has_columns_of_its_own()?;
        let keep_empty = keeps_left(kind, constraint).ok_or_else(|| {
            fault::unsupported("this join with a function that uses the left side")
        })?;
        let scope = Scope::new(&left.columns, outer);
        let mut sets = Vec::with_capacity(call.calls.len());
        for one in &call.calls {
            sets.push((one, self.set_of(one, &scope)?));
        }
        let unnests = sets.iter().any(|(_, set)| set.unnest);
        let several = sets.len() > 1;
        // Lists of unequal length: the longest one numbers the rows.
        let uneven =
            several || sets.iter().any(|(one, _)| one.name == "unnest" && one.args.len() > 1);
        let width: usize = sets.iter().map(|(_, set)| set.columns.len()).sum();
        let table = call.shown();
        let unique = self.unique(&table);
        let aliases: &[ast::TableAliasColumnDef] = call.alias.map_or(&[], |alias| &alias.columns);
        call.names_at_most(width + usize::from(call.ordinality))?;
        let scalar = width == 1 && !call.ordinality;
        let keep = keep_empty && unnests;
        let mut exprs = all_columns(&left.plan);
        let mut lists = Vec::new();
        // Beside lists, what is none is there in the first row alone.
        let mut first: Vec<Column> = Vec::new();
        let mut columns = left.columns;
        let mut numbered: Vec<(Expr, SqlType)> = Vec::new();
        let mut at = 0;
        for (one, TableSet { columns: given, unnest, named }) in sets {
            for (name, ty, expr) in given {
                let plan_name = format!("{unique}.{name}.{at}");
                let column = Column::new_unqualified(plan_name.clone());
                if unnest && (numbered.is_empty() || uneven) {
                    numbered.push((expr.clone(), ty.clone()));
                }
                let expr = if unnest { self.list_or_null(expr, &ty, keep) } else { expr };
                exprs.push(expr.alias(&plan_name));
                match (unnest, unnests) {
                    (true, _) => lists.push(column.clone()),
                    (false, true) => first.push(column.clone()),
                    (false, false) => {}
                }
                let shown = match aliases.get(at) {
                    Some(alias) => fold(&alias.name),
                    None => shown_column(one, named.then_some(name), several, &table),
                };
                columns.push(ScopeColumn { scalar, ..seen(&table, shown, ty, column) });
                at += 1;
            }
        }
        let mut ordinals = Vec::new();
        if call.ordinality {
            for (list, (expr, ty)) in numbered.into_iter().enumerate() {
                let plan_name = format!("{unique}.ordinality.{list}");
                let numbers = self.ordinals(expr, &ty);
                exprs.push(self.list_or_null(numbers, &SqlType::Int8, keep).alias(&plan_name));
                ordinals.push(Column::new_unqualified(plan_name));
            }
            lists.extend(ordinals.iter().cloned());
            let name = aliases.get(at).map_or_else(|| "ordinality".to_owned(), |a| fold(&a.name));
            let column = Column::new_unqualified(format!("{unique}.ordinality"));
            columns.push(seen(&table, name, SqlType::Int8, column));
        }
        let one = Column::new_unqualified(format!("{unique}.first"));
        if !first.is_empty() {
            exprs.push(only_one().alias(&one.name));
            lists.push(one.clone());
            ordinals.push(one.clone());
        }
        let mut plan = project(left.plan, exprs)?;
        if !lists.is_empty() {
            plan = unnested(plan, lists, keep_empty)?;
        }
        plan = in_first_row(plan, &one, &first)?;
        if call.ordinality {
            plan = numbered_by(plan, ordinals, format!("{unique}.ordinality"))?;
        }
        let relation = Relation { plan, columns };
        self.where_on(relation, kind, constraint, outer)
    }
}

/// Whether a function or LATERAL in a join names something that stands left of the join. It may be
/// something of its own after all.
pub(super) fn sees(item: &ast::TableWithJoins, left: &[ScopeColumn]) -> bool {
    let named = |expr: &ast::Expr| match expr {
        ast::Expr::Identifier(name) => {
            let name = fold(name);
            let is = |column: &ScopeColumn| {
                column.name == name || column.table.as_deref() == Some(name.as_str())
            };
            left.iter().any(is)
        }
        ast::Expr::CompoundIdentifier(parts) => match parts.as_slice() {
            [.., table, _] => {
                let table = fold(table);
                left.iter().any(|column| column.table.as_deref() == Some(table.as_str()))
            }
            _ => false,
        },
        _ => false,
    };
    let sees_it = |factor: &ast::TableFactor| match factor {
        ast::TableFactor::NestedJoin { table_with_joins, .. } => sees(table_with_joins, left),
        factor if needs_left(factor) => ast::visit_expressions(factor, |expr| match named(expr) {
            true => std::ops::ControlFlow::Break(()),
            false => std::ops::ControlFlow::Continue(()),
        })
        .is_break(),
        _ => false,
    };
    sees_it(&item.relation) || item.joins.iter().any(|join| sees_it(&join.relation))
}

/// Refuses a query on the side of a join that keeps rows without a left one, when it refers to
/// that.
fn refuse_left(references: &[(Column, Expr)], left: &[ScopeColumn]) -> Result<()> {
    let of_left = |(column, _): &(Column, Expr)| left.iter().find(|known| known.column == *column);
    match references.iter().find_map(of_left) {
        None => Ok(()),
        Some(column) => {
            let table = column.table.as_deref().unwrap_or_default();
            Err(fault::new(
                "42P10",
                format!("invalid reference to FROM-clause entry for table \"{table}\""),
            ))
        }
    }
}

/// A column of what is called `table`.
fn seen(table: &str, name: String, ty: SqlType, column: Column) -> ScopeColumn {
    ScopeColumn {
        table: Some(table.to_owned()),
        name,
        ty,
        column,
        merged: false,
        scalar: false,
        parameter: None,
        origin: None,
    }
}

/// What the column of a call is called. A function with one result that has no name names it after
/// the alias, if it is alone.
fn shown_column(call: &Call<'_>, own: Option<String>, several: bool, table: &str) -> String {
    match (call.column, own) {
        (Some(name), _) => name.to_owned(),
        (None, Some(name)) => name,
        (None, None) if several => call.shown().to_owned(),
        (None, None) => table.to_owned(),
    }
}

/// The rows with a row for each element of the lists side by side; `keep`: also for those without
/// any.
fn unnested(plan: LogicalPlan, lists: Vec<Column>, keep: bool) -> Result<LogicalPlan> {
    LogicalPlanBuilder::from(plan)
        .unnest_columns_with_options(lists, UnnestOptions::new().with_preserve_nulls(keep))
        .and_then(LogicalPlanBuilder::build)
        .map_err(fault::from_datafusion)
}

/// The rows with the number of each beside it: that of the longest list; 1 where there are none.
fn numbered_by(plan: LogicalPlan, ordinals: Vec<Column>, name: String) -> Result<LogicalPlan> {
    let numbers = ordinals.into_iter().map(Expr::Column).map(Ok);
    let number = numbers.reduce(|a, b| coalesce(a?, b?)).transpose()?;
    let mut exprs = all_columns(&plan);
    exprs.push(number.unwrap_or_else(|| lit(1_i64)).alias(name));
    project(plan, exprs)
}

/// A list of one number, 1.
fn only_one() -> Expr {
    let one = [ScalarValue::Int64(Some(1))];
    lit(ScalarValue::List(ScalarValue::new_list_nullable(&one, &DataType::Int64)))
}

/// The rows with `columns` in the first of them alone, where `one` is there.
fn in_first_row(plan: LogicalPlan, one: &Column, columns: &[Column]) -> Result<LogicalPlan> {
    if columns.is_empty() {
        return Ok(plan);
    }
    let exprs = all_columns(&plan).into_iter().map(|expr| match &expr {
        Expr::Column(column) if columns.contains(column) => {
            let name = column.name.clone();
            let there = Expr::Column(one.clone()).is_not_null();
            let value = when(there, expr).end().map_err(fault::from_datafusion)?;
            Ok(value.alias(name))
        }
        _ => Ok(expr),
    });
    project(plan, exprs.collect::<Result<Vec<_>>>()?)
}
