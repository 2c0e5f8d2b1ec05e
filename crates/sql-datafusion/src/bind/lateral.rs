//! LATERAL: what is computed for each row of what stands left of it.
//!
//! # Protocol
//! ```text
//! left, f(left.x)                 left + a list of what f gives                       -> unnested
//! left, LATERAL (SELECT … x …)    a join, where DataFusion finds one; else row by row:
//!                                 left + a list of the query's rows, one struct each  -> unnested, fields to columns
//! ```
//!
//! # Invariants
//! The query's rows keep their order beside one left row; a left row without rows goes, or stays with NULLs under LEFT JOIN … ON true.
//!
//! # Limits
//! Functions: no LEFT JOIN with a condition (0A000).

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Column, JoinType, UnnestOptions};
use datafusion::functions::core::expr_fn::get_field;
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast;

use super::Binder;
use super::from::{TableCall, coalesce, is_true};
use super::query::rename;
use super::scope::{Relation, Scope, ScopeColumn, fold};
use super::select::{all_columns, filter, project};
use crate::apply::Shape;
use crate::types::arrow_type;
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

/// Whether a join keeps left rows that nothing stands beside, without a condition of its own; `None`: it is of another kind.
fn keeps_left(kind: JoinType, constraint: Option<&ast::JoinConstraint>) -> Option<bool> {
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
        outer: Option<&Scope<'_>>,
    ) -> Result<Beside> {
        let ast::TableFactor::Derived { lateral: true, subquery, alias, .. } = factor else {
            return Ok(Beside::Left(left));
        };
        let scope = Scope::new(&left.columns, outer);
        let inner = self.query(subquery, Some(&scope))?;
        let references = outer::references(&inner.plan).map_err(fault::from_datafusion)?;
        let level = |(column, _): &(Column, Expr)| scope.level_of(column);
        let refers = references.iter().any(|reference| level(reference) == Some(0));
        if matches!(kind, JoinType::Right | JoinType::Full) {
            let of_left = |(column, _): &(Column, Expr)| {
                left.columns.iter().find(|known| known.column == *column)
            };
            if let Some(column) = references.iter().find_map(of_left) {
                let table = column.table.as_deref().unwrap_or_default();
                return Err(fault::new(
                    "42P10",
                    format!("invalid reference to FROM-clause entry for table \"{table}\""),
                ));
            }
        }
        // DataFusion's joins know one level.
        let further = references.iter().any(|reference| level(reference) > Some(0));
        let wrongly = further || self.joins_wrongly(&inner.plan, &scope)?;
        if !refers || !(self.row_by_row || wrongly) {
            return Ok(Beside::Left(left));
        }
        let inner = self.flatten(inner)?;
        let mut inner = match alias {
            Some(alias) => rename(inner, &alias.columns)?,
            None => inner,
        };
        let table = alias.as_ref().map(|alias| fold(&alias.name));
        for column in &mut inner.columns {
            column.table.clone_from(&table);
        }
        let keep = match (kind, constraint) {
            (JoinType::Left, Some(ast::JoinConstraint::On(on))) if !is_true(on) => {
                // What it says of both sides is a condition of the query beside one left row.
                let both = [left.columns.as_slice(), inner.columns.as_slice()].concat();
                self.condition(on, &Scope::new(&both, outer), "JOIN/ON")?;
                let within = Scope::new(&inner.columns, Some(&scope));
                let condition = self.condition(on, &within, "JOIN/ON")?;
                inner.plan = filter(inner.plan, condition)?;
                true
            }
            _ => keeps_left(kind, constraint)
                .ok_or_else(|| fault::unsupported("this join with LATERAL"))?,
        };
        let field = |(at, column): (usize, &ScopeColumn)| {
            Field::new(format!("c{at}"), arrow_type(&column.ty), true)
        };
        let fields: Fields = inner.columns.iter().enumerate().map(field).collect();
        let returns =
            DataType::List(Arc::new(Field::new_list_field(DataType::Struct(fields), true)));
        let rows = Shape::Rows { or_null: keep };
        let Some(rows) = self.applied(rows, &inner, &returns, None, false, &scope)? else {
            return Ok(Beside::Left(left));
        };
        let unique = self.unique(table.as_deref().unwrap_or("subquery"));
        let own = all_columns(&left.plan);
        let mut exprs = own.clone();
        exprs.push(rows.alias(&unique));
        let list = Column::new_unqualified(unique.clone());
        let options = UnnestOptions::new().with_preserve_nulls(keep);
        let plan = LogicalPlanBuilder::from(project(left.plan, exprs)?)
            .unnest_columns_with_options(vec![list.clone()], options)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        let mut exprs = own;
        let mut columns = left.columns;
        for (at, column) in inner.columns.into_iter().enumerate() {
            let name = format!("{unique}.{at}");
            let value = get_field(Expr::Column(list.clone()), format!("c{at}"));
            exprs.push(value.alias(&name));
            columns.push(ScopeColumn {
                table: table.clone(),
                column: Column::new_unqualified(name),
                ..column
            });
        }
        let relation = Relation { plan: project(plan, exprs)?, columns };
        self.where_on(relation, kind, constraint, outer).map(Beside::Joined)
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
        let condition = self.condition(on, &scope, "JOIN/ON")?;
        Ok(Relation { plan: filter(relation.plan, condition)?, columns: relation.columns })
    }

    /// `left, f(…) [WITH ORDINALITY]`: the call is computed beside each left row as a list, then unnested.
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
        let args = self.table_arguments(&call.args, &scope)?;
        let set = self.call_in_from(&call.name, args)?;
        // Lists of unequal length: the longest one numbers the rows.
        let uneven = call.name == "unnest" && call.args.len() > 1;
        let table = call.alias.map_or_else(|| call.name.clone(), |alias| fold(&alias.name));
        let unique = self.unique(&table);
        let mut exprs = all_columns(&left.plan);
        let mut unnest = Vec::new();
        let mut columns = left.columns;
        let aliases: &[ast::TableAliasColumnDef] = call.alias.map_or(&[], |alias| &alias.columns);
        let mut numbered: Vec<(Expr, SqlType)> = Vec::new();
        let scalar = set.columns.len() == 1 && !call.ordinality;
        for (at, (name, ty, expr)) in set.columns.into_iter().enumerate() {
            let plan_name = format!("{unique}.{name}.{at}");
            if numbered.is_empty() || uneven {
                numbered.push((expr.clone(), ty.clone()));
            }
            let keep = keep_empty && set.unnest;
            exprs.push(self.list_or_null(expr, &ty, keep).alias(&plan_name));
            if set.unnest {
                unnest.push(Column::new_unqualified(plan_name.clone()));
            }
            // A function with one result that has no name names its column after the alias.
            let shown = match aliases.get(at) {
                Some(alias) => fold(&alias.name),
                None if set.named => name,
                None => table.clone(),
            };
            columns.push(ScopeColumn {
                parameter: None,
                table: Some(table.clone()),
                name: shown,
                ty,
                column: Column::new_unqualified(plan_name),
                merged: false,
                scalar,
                origin: None,
            });
        }
        let mut ordinals = Vec::new();
        if call.ordinality {
            let at = unnest.len().max(1);
            for (list, (expr, ty)) in numbered.into_iter().enumerate() {
                let plan_name = format!("{unique}.ordinality.{list}");
                let numbers = self.ordinals(expr, &ty, set.unnest);
                let keep = keep_empty && set.unnest;
                exprs.push(self.list_or_null(numbers, &SqlType::Int8, keep).alias(&plan_name));
                ordinals.push(Column::new_unqualified(plan_name));
            }
            if set.unnest {
                unnest.extend(ordinals.iter().cloned());
            }
            columns.push(ScopeColumn {
                table: Some(table),
                name: aliases.get(at).map_or_else(|| "ordinality".to_owned(), |a| fold(&a.name)),
                ty: SqlType::Int8,
                column: Column::new_unqualified(format!("{unique}.ordinality")),
                merged: false,
                scalar: false,
                parameter: None,
                origin: None,
            });
        }
        let mut plan = project(left.plan, exprs)?;
        if !unnest.is_empty() {
            let options = UnnestOptions::new().with_preserve_nulls(keep_empty);
            plan = LogicalPlanBuilder::from(plan)
                .unnest_columns_with_options(unnest, options)
                .and_then(LogicalPlanBuilder::build)
                .map_err(fault::from_datafusion)?;
        }
        if let Some(number) =
            ordinals.into_iter().map(Expr::Column).map(Ok).reduce(|a, b| coalesce(a?, b?))
        {
            let mut exprs = all_columns(&plan);
            exprs.push(number?.alias(format!("{unique}.ordinality")));
            plan = project(plan, exprs)?;
        }
        let relation = Relation { plan, columns };
        self.where_on(relation, kind, constraint, outer)
    }
}
