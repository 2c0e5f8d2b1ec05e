//! FROM: tables, joins, derived tables, table functions, LATERAL.
//!
//! # Invariants
//! Every relation instance is aliased uniquely in the plan. A later item sees the columns of the
//! earlier ones where SQL lets it (LATERAL, functions).

use std::collections::BTreeMap;

use datafusion::common::{Column, JoinType};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Subquery};
use datafusion::sql::sqlparser::ast;

use super::group::refuse_aggregates;
use super::lateral::{Beside, keeps_left, sees};
use super::merged::Merge;
use super::query::rename;
use super::scope::{Origin, Relation, Scope, ScopeColumn, fold};
use super::select::{all_columns, project};
use super::table_call::{TableCall, as_subquery};
use super::{Binder, BoundView, Found};
use crate::{fault, outer};
use telesto_sql_plan::hidden::HIDDEN_PREFIX;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

/// What is in view of the items of a join.
#[derive(Clone, Copy)]
pub(super) struct Outside<'s> {
    /// The level outside.
    pub outer: Option<&'s Scope<'s>>,
    /// The same, and for functions and LATERAL also what stands left of the parentheses around the
    /// join.
    pub lateral: Option<&'s Scope<'s>>,
}

impl Binder<'_> {
    /// Binds a FROM clause; none at all is one row without columns.
    pub(crate) fn from(
        &self,
        items: &[ast::TableWithJoins],
        outer: Option<&Scope<'_>>,
    ) -> Result<Relation> {
        self.named_once(items)?;
        let mut whole: Option<Relation> = None;
        for item in items {
            whole = Some(self.joined(item, whole, Outside { outer, lateral: outer })?);
        }
        Ok(match whole {
            Some(relation) => relation,
            None => Relation {
                plan: LogicalPlanBuilder::empty(true).build().map_err(fault::from_datafusion)?,
                columns: Vec::new(),
            },
        })
    }

    /// One comma-separated item with its joins, beside what stands left of it.
    pub(super) fn joined(
        &self,
        item: &ast::TableWithJoins,
        left: Option<Relation>,
        outside: Outside<'_>,
    ) -> Result<Relation> {
        let mut relation = match left {
            None => self.factor(&item.relation, None, outside)?,
            Some(left) if needs_left(&item.relation) || item.joins.is_empty() => {
                self.join_factor(left, &item.relation, JoinType::Inner, None, outside)?
            }
            // a, (b JOIN c): b's joins bind before the comma does.
            Some(left) if sees(item, &left.columns) => {
                let table_with_joins = Box::new(item.clone());
                let nested = ast::TableFactor::NestedJoin { table_with_joins, alias: None };
                return self.join_factor(left, &nested, JoinType::Inner, None, outside);
            }
            Some(left) => {
                let right = self.joined(item, None, outside)?;
                let (outer, merge) = (outside.outer, Merge::default());
                return self.join(left, right, JoinType::Inner, None, merge, outer);
            }
        };
        for join in &item.joins {
            use ast::JoinOperator as J;
            let (kind, constraint) = match &join.join_operator {
                J::Join(c) | J::Inner(c) => (JoinType::Inner, Some(c)),
                J::Left(c) | J::LeftOuter(c) => (JoinType::Left, Some(c)),
                J::Right(c) | J::RightOuter(c) => (JoinType::Right, Some(c)),
                J::FullOuter(c) => (JoinType::Full, Some(c)),
                J::CrossJoin(_) => (JoinType::Inner, None),
                _ => return Err(fault::unsupported("this kind of join")),
            };
            relation = self.join_factor(relation, &join.relation, kind, constraint, outside)?;
        }
        Ok(relation)
    }

    fn join_factor(
        &self,
        left: Relation,
        factor: &ast::TableFactor,
        kind: JoinType,
        constraint: Option<&ast::JoinConstraint>,
        outside: Outside<'_>,
    ) -> Result<Relation> {
        let subquery;
        let mut factor = factor;
        if let Some(call) = TableCall::of(factor) {
            let scope = Scope::new(&left.columns, outside.lateral);
            if self.call_uses(&call, &scope)? {
                if keeps_left(kind, constraint).is_some() {
                    return self.lateral_call(left, &call, kind, constraint, outside.lateral);
                }
                call.has_columns_of_its_own()?;
                subquery = as_subquery(factor, &call)?;
                factor = &subquery;
            }
        }
        let left = match self.lateral_query(left, factor, kind, constraint, outside)? {
            Beside::Joined(relation) => return Ok(relation),
            Beside::Left(left) => left,
        };
        let right = self.factor(factor, Some(&left), outside)?;
        let merge = Merge::of(constraint, &left.columns, &right.columns);
        let on = match constraint {
            Some(ast::JoinConstraint::On(expr)) => Some(expr),
            _ => None,
        };
        self.join(left, right, kind, on, merge, outside.outer)
    }

    fn join(
        &self,
        left: Relation,
        right: Relation,
        kind: JoinType,
        on: Option<&ast::Expr>,
        merge: Merge,
        outer: Option<&Scope<'_>>,
    ) -> Result<Relation> {
        let mut extended = Vec::new();
        if matches!(kind, JoinType::Left | JoinType::Full) {
            extended.extend(&right.columns);
        }
        if matches!(kind, JoinType::Right | JoinType::Full) {
            extended.extend(&left.columns);
        }
        self.null_extended.borrow_mut().extend(extended.iter().map(|c| c.column.relation.clone()));
        let joined = self.merged(left.columns, right.columns, &merge, kind)?;
        let columns = joined.columns;
        let condition = match on {
            Some(on) => Some(self.join_on(on, &Scope::new(&columns, outer))?),
            None => joined.condition,
        };
        let mut plan = self.join_plans(left.plan, right.plan, kind, condition)?;
        if !joined.computed.is_empty() {
            let mut exprs = all_columns(&plan);
            exprs.extend(joined.computed);
            plan = project(plan, exprs)?;
        }
        Ok(Relation { plan, columns })
    }

    /// The condition behind ON.
    pub(super) fn join_on(&self, on: &ast::Expr, scope: &Scope<'_>) -> Result<Expr> {
        let condition = self.condition(on, scope, "JOIN/ON")?;
        refuse_aggregates(&condition, "JOIN conditions")?;
        Ok(condition)
    }

    /// One table factor. `left` is what a LATERAL item may refer to.
    fn factor(
        &self,
        factor: &ast::TableFactor,
        left: Option<&Relation>,
        outside: Outside<'_>,
    ) -> Result<Relation> {
        let Outside { outer, lateral: around } = outside;
        match factor {
            ast::TableFactor::Table { name, alias, args: None, sample, .. } => {
                let relation = self.whole_table(name)?;
                let table = name.0.last().and_then(|p| p.as_ident()).map(fold).unwrap_or_default();
                let relation = self.aliased(relation, alias.as_ref(), &table)?;
                if !self.is_with_query(name) {
                    let named = relation.columns.iter().map(|c| c.column.relation.clone());
                    self.named_rows.borrow_mut().extend(named);
                }
                match sample {
                    None => Ok(relation),
                    Some(_) if !self.is_table(name)? => Err(fault::new(
                        "0A000",
                        "TABLESAMPLE clause can only be applied to tables and materialized views",
                    )),
                    Some(sample) => self.sampled(relation, sample, outer),
                }
            }
            ast::TableFactor::Derived { sample: Some(_), .. } => {
                Err(fault::syntax("syntax error at or near \"TABLESAMPLE\""))
            }
            ast::TableFactor::Derived { lateral, subquery, alias, .. } => {
                let name = alias.as_ref().map_or_else(|| "subquery".to_owned(), |a| fold(&a.name));
                let relation = match left.filter(|_| *lateral) {
                    Some(left) => {
                        let scope = Scope::new(&left.columns, around);
                        let mut relation = self.query(subquery, Some(&scope))?;
                        let references =
                            outer::references(&relation.plan).map_err(fault::from_datafusion)?;
                        if references.iter().any(|(used, _)| scope.level_of(used) == Some(0)) {
                            let outer_ref_columns = relation.plan.all_out_ref_exprs();
                            self.correlated.set(true);
                            relation.plan = LogicalPlan::Subquery(Subquery {
                                subquery: std::sync::Arc::new(relation.plan),
                                outer_ref_columns,
                                spans: datafusion::common::Spans::new(),
                            });
                        }
                        relation
                    }
                    None => self.query(subquery, if *lateral { around } else { outer })?,
                };
                let mut relation = self.aliased(relation, alias.as_ref(), &name)?;
                if alias.is_none() {
                    for column in &mut relation.columns {
                        column.table = None;
                    }
                }
                Ok(relation)
            }
            ast::TableFactor::NestedJoin { table_with_joins, alias } => {
                // Where a statement is only described, nothing is run row by row.
                let scope = left.map(|left| Scope::new(&left.columns, around));
                let lateral = scope.as_ref().or(around);
                let relation = self.joined(table_with_joins, None, Outside { outer, lateral })?;
                match alias {
                    None => Ok(relation),
                    Some(alias) => {
                        let flat = self.flatten(relation)?;
                        self.aliased(flat, Some(alias), &fold(&alias.name))
                    }
                }
            }
            ast::TableFactor::Table {
                name,
                alias,
                args: Some(args),
                with_ordinality: false,
                ..
            } if args.args.is_empty() && Self::is_system_call(name) => {
                let called = name.0.last().and_then(|p| p.as_ident()).map(fold).unwrap_or_default();
                let table = ast::ObjectName::from(vec![ast::Ident::new(format!("{called}()"))]);
                self.aliased(self.whole_table(&table)?, alias.as_ref(), &called)
            }
            factor => match TableCall::of(factor) {
                Some(call) => {
                    call.has_columns_of_its_own()?;
                    let one = Relation {
                        plan: LogicalPlanBuilder::empty(true)
                            .build()
                            .map_err(fault::from_datafusion)?,
                        columns: Vec::new(),
                    };
                    let relation = match self.series_call(&call, around)? {
                        Some(series) => series,
                        None => self.lateral_call(one, &call, JoinType::Inner, None, around)?,
                    };
                    Ok(relation)
                }
                None => Err(fault::unsupported("this kind of FROM item")),
            },
        }
    }

    /// Whether a call without arguments gives the rows of a system table.
    fn is_system_call(name: &ast::ObjectName) -> bool {
        let parts: Vec<String> = name.0.iter().filter_map(|p| p.as_ident()).map(fold).collect();
        let Some((name, schema)) = parts.split_last() else { return false };
        telesto_sql_catalog::builtin::tables::find_call(schema.last().map(String::as_str), name)
            .is_some()
    }

    /// All columns of a table, a CTE or a system catalog, under an alias of its own.
    pub(crate) fn whole_table(&self, name: &ast::ObjectName) -> Result<Relation> {
        let parts: Vec<String> = name.0.iter().filter_map(|p| p.as_ident()).map(fold).collect();
        if let [single] = parts.as_slice() {
            let cte = self.ctes.borrow().iter().rev().find(|c| c.name == *single).cloned();
            if let Some(cte) = cte {
                return self.aliased(cte.relation, None, single);
            }
        }
        let table = match self.find_table(&parts)? {
            Found::Table(table) => table,
            Found::View(view) => {
                let BoundView { oid, query, names, need, reader, barrier, stored } = *view;
                // A view's names mean what they meant when it was made: nothing of this statement
                // is in its view.
                let outside = self.ctes.take();
                let before = self.reader.replace(reader);
                let read_by = self.stored.replace(Some(stored));
                let relation = need.provide(move || self.query(&query, None));
                self.stored.replace(read_by);
                self.reader.set(before);
                self.ctes.replace(outside);
                let mut relation = relation?;
                crate::depth::need(&relation.plan)?;
                let instance = self.next_instance();
                for (position, (column, name)) in relation.columns.iter_mut().zip(names).enumerate()
                {
                    column.name = name;
                    column.origin = Some(Origin { table: oid, position, instance });
                    if column.is_row_of_table() {
                        column.ty = SqlType::Text;
                    }
                }
                if let Some(name) = barrier {
                    relation = self.names_of_its_own(relation)?;
                    relation = self.walled(format!("Barrier of {name}"), relation)?;
                }
                return self.aliased(relation, None, parts.last().map_or("", String::as_str));
            }
        };
        let guard = table.guard;
        let alias = self.unique(parts.last().map_or("", String::as_str));
        let instance = self.next_instance();
        let plan = LogicalPlanBuilder::scan(alias.as_str(), table.source, None)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        let columns = table
            .columns
            .into_iter()
            .enumerate()
            .map(|(position, (name, plan_name, ty))| ScopeColumn {
                table: parts.last().cloned(),
                name,
                ty,
                merged: plan_name.starts_with(HIDDEN_PREFIX),
                scalar: false,
                parameter: None,
                column: Column::new(Some(alias.clone()), plan_name),
                origin: table.id.map(|id| Origin { table: id, position, instance }),
            })
            .collect();
        let relation = Relation { plan, columns };
        match guard {
            None => Ok(relation),
            Some(guard) => self.behind_policies(&guard, relation),
        }
    }

    /// The relation under a plan alias of its own, visible as `alias` (or `default`).
    fn aliased(
        &self,
        relation: Relation,
        alias: Option<&ast::TableAlias>,
        default: &str,
    ) -> Result<Relation> {
        let name = alias.map_or_else(|| default.to_owned(), |alias| fold(&alias.name));
        let relation = match alias {
            Some(alias) => rename(relation, &alias.columns)?,
            None => relation,
        };
        if matches!(relation.plan, LogicalPlan::TableScan(_)) {
            let columns = relation
                .columns
                .into_iter()
                .map(|column| ScopeColumn { table: Some(name.clone()), ..column })
                .collect();
            return Ok(Relation { plan: relation.plan, columns });
        }
        let unique = self.unique(&name);
        let relation = self.names_of_its_own(relation)?;
        let plan = LogicalPlanBuilder::from(relation.plan)
            .alias(unique.as_str())
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        let columns = relation
            .columns
            .into_iter()
            .map(|column| ScopeColumn {
                table: Some(name.clone()),
                column: Column::new(Some(unique.clone()), column.column.name.clone()),
                ..column
            })
            .collect();
        Ok(Relation { plan, columns })
    }

    /// The relation with columns whose names no other relation's columns have in the plan.
    fn names_of_its_own(&self, mut relation: Relation) -> Result<Relation> {
        let mut names: BTreeMap<String, String> = BTreeMap::new();
        for column in &relation.columns {
            let name = &column.column.name;
            if !names.contains_key(name) {
                names.insert(name.clone(), self.unique(name));
            }
        }
        if names.iter().all(|(old, new)| old == new) {
            return Ok(relation);
        }
        let plan_columns = relation.plan.schema().columns();
        let renamed = plan_columns.into_iter().map(|column| match names.get(&column.name) {
            Some(new) => Expr::Column(column).alias(new),
            None => Expr::Column(column),
        });
        relation.plan = project(relation.plan, renamed.collect())?;
        for column in &mut relation.columns {
            if let Some(new) = names.get(&column.column.name) {
                column.column = Column::new_unqualified(new);
            }
        }
        Ok(relation)
    }

    /// Projects a join's columns to unqualified unique names, so that one alias fits over all.
    pub(super) fn flatten(&self, relation: Relation) -> Result<Relation> {
        self.flat(relation, |column| !column.merged)
    }

    /// [`Self::flatten`] of a join without a name, with what is reachable by the names of its
    /// sides.
    pub(super) fn flat_join(&self, relation: Relation) -> Result<Relation> {
        self.flat(relation, |column| !column.column.name.starts_with(HIDDEN_PREFIX))
    }

    fn flat(&self, relation: Relation, keep: fn(&ScopeColumn) -> bool) -> Result<Relation> {
        let mut exprs = Vec::new();
        let mut columns = Vec::new();
        for column in relation.columns.into_iter().filter(keep) {
            let name = self.unique(&column.name);
            exprs.push(Expr::Column(column.column.clone()).alias(&name));
            let column = ScopeColumn { column: Column::new_unqualified(name), ..column };
            columns.push(ScopeColumn { scalar: false, ..column });
        }
        Ok(Relation { plan: project(relation.plan, exprs)?, columns })
    }

    fn call_uses(&self, call: &TableCall<'_>, scope: &Scope<'_>) -> Result<bool> {
        for arg in call.calls.iter().flat_map(|call| &call.args) {
            let value = self.expr(arg, scope)?.expr;
            let mut within = Vec::new();
            outer::within(&value, &mut within).map_err(fault::from_datafusion)?;
            let of_left = |(column, _): &(Column, Expr)| scope.level_of(column) == Some(0);
            if !value.column_refs().is_empty() || within.iter().any(of_left) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A call that can be computed as it is read.
    fn series_call(
        &self,
        call: &TableCall<'_>,
        outer: Option<&Scope<'_>>,
    ) -> Result<Option<Relation>> {
        let ([one], false) = (call.calls.as_slice(), call.ordinality) else { return Ok(None) };
        let scope = Scope::new(&[], outer);
        let args = one.args.iter().map(|arg| self.expr(arg, &scope)).collect::<Result<_>>()?;
        let table = call.shown();
        if one.name == "generate_series" {
            call.names_at_most(1)?;
        }
        let named = call.alias.and_then(|alias| alias.columns.first());
        let column = named.map_or_else(|| table.clone(), |column| fold(&column.name));
        self.series(&one.name, args, (&table, &column))
    }
}

pub(super) fn needs_left(factor: &ast::TableFactor) -> bool {
    matches!(factor, ast::TableFactor::Derived { lateral: true, .. })
        || TableCall::of(factor).is_some()
}

pub(super) fn is_true(expr: &ast::Expr) -> bool {
    matches!(expr, ast::Expr::Value(v) if v.value == ast::Value::Boolean(true))
}

/// `a`, or `b` when `a` is null.
pub(crate) fn coalesce(a: Expr, b: Expr) -> Result<Expr> {
    datafusion::logical_expr::when(a.clone().is_not_null(), a)
        .otherwise(b)
        .map_err(fault::from_datafusion)
}
