//! GROUP BY: what is grouped, what may be used above the groups.

use std::cell::RefCell;
use std::collections::BTreeSet;

use datafusion::common::Column;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, GroupingSet, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast;

use super::equal::{one_of, shown};
use super::operators::natively_ordered;
use super::scope::{Scope, ScopeColumn, fold};
use super::select::{Output, substitute};
use super::{Binder, Typed};
use crate::engine_df::fault;
use crate::engine_df::types::TypeShape;
use crate::error::Result;
use crate::types::SqlType;

/// Elements of a CUBE at most, as in PostgreSQL.
const MAX_CUBE: usize = 12;

/// What is grouped by.
#[derive(Default)]
pub(super) struct Groups {
    exprs: Vec<Expr>,
    /// Those among them whose equal values DataFusion tells apart, with their types.
    apart: Vec<(Expr, SqlType)>,
}

impl Binder<'_> {
    pub(super) fn group_by(
        &self,
        group: &ast::GroupByExpr,
        scope: &Scope<'_>,
        outputs: &[Output],
    ) -> Result<Option<Groups>> {
        let apart = RefCell::default();
        let ast::GroupByExpr::Expressions(items, modifiers) = group else {
            return Err(fault::unsupported("GROUP BY ALL"));
        };
        if !modifiers.is_empty() {
            return Err(fault::unsupported("GROUP BY … WITH modifiers"));
        }
        if items.is_empty() {
            return Ok(None);
        }
        let lists = |lists: &[Vec<ast::Expr>]| -> Result<Vec<Vec<Expr>>> {
            lists
                .iter()
                .map(|list| {
                    list.iter().map(|e| self.group_item(e, scope, outputs, &apart)).collect()
                })
                .collect()
        };
        let mut out = Vec::new();
        for item in items {
            match item {
                ast::Expr::Rollup(sets) => {
                    let parts = lists(sets)?;
                    out.push(Expr::GroupingSet(if parts.iter().all(|part| part.len() == 1) {
                        GroupingSet::Rollup(parts.concat())
                    } else {
                        // An element of several columns comes and goes as one.
                        let prefixes = (0..=parts.len()).rev().map(|len| parts[..len].concat());
                        GroupingSet::GroupingSets(prefixes.collect())
                    }));
                }
                ast::Expr::Cube(sets) => {
                    let parts = lists(sets)?;
                    if parts.len() > MAX_CUBE {
                        let message = format!("CUBE is limited to {MAX_CUBE} elements");
                        return Err(fault::new("54011", message));
                    }
                    out.push(Expr::GroupingSet(if parts.iter().all(|part| part.len() == 1) {
                        GroupingSet::Cube(parts.concat())
                    } else {
                        let chosen = |mask: usize| {
                            let within = (0..parts.len()).filter(|at| mask & (1 << at) != 0);
                            within.flat_map(|at| parts[at].clone()).collect()
                        };
                        GroupingSet::GroupingSets((0..1 << parts.len()).map(chosen).collect())
                    }));
                }
                ast::Expr::GroupingSets(sets) => {
                    out.push(Expr::GroupingSet(GroupingSet::GroupingSets(lists(sets)?)));
                }
                // GROUP BY () is one group of everything.
                ast::Expr::Tuple(parts) => {
                    for part in parts {
                        out.push(self.group_item(part, scope, outputs, &apart)?);
                    }
                }
                item => out.push(self.group_item(item, scope, outputs, &apart)?),
            }
        }
        Ok(Some(Groups { exprs: out, apart: apart.into_inner() }))
    }

    fn group_item(
        &self,
        item: &ast::Expr,
        scope: &Scope<'_>,
        outputs: &[Output],
        apart: &RefCell<Vec<(Expr, SqlType)>>,
    ) -> Result<Expr> {
        // Input columns win over output names here, unlike in ORDER BY.
        let by_input = match item {
            ast::Expr::Identifier(name) => scope.find(None, &fold(name))?.is_some(),
            _ => false,
        };
        let expr = match (by_input, self.output_position(item, outputs)?) {
            (false, Some(at)) => Typed::of(outputs[at].expr.clone(), outputs[at].ty.clone()),
            _ => {
                let typed = self.expr(item, scope)?;
                let ty = if typed.ty.is_unknown() { SqlType::Text } else { typed.ty.clone() };
                self.coerce(typed, &ty, "GROUP BY")?
            }
        };
        let Typed { expr, ty, .. } = expr;
        if !natively_ordered(&ty) && !ty.is_unknown() {
            apart.borrow_mut().push((expr.clone(), ty));
        }
        refuse_aggregates(&expr, "GROUP BY")?;
        Ok(expr)
    }

    pub(super) fn aggregate(
        &self,
        plan: LogicalPlan,
        groups: Groups,
        aggregates: Vec<Expr>,
        columns: &[ScopeColumn],
        above: &mut [&mut Expr],
    ) -> Result<LogicalPlan> {
        let Groups { exprs: mut group, apart } = groups;
        let sets = group.iter().any(|e| matches!(e, Expr::GroupingSet(_)));
        if !sets {
            let mut seen = Vec::new();
            group.retain(|e| {
                !seen.contains(e) && {
                    seen.push(e.clone());
                    true
                }
            });
            self.add_dependent_columns(&mut group, &aggregates, columns, above)?;
        }
        let flat: Vec<Expr> = group
            .iter()
            .flat_map(|e| match e {
                Expr::GroupingSet(set) => set.distinct_expr().into_iter().cloned().collect(),
                other => vec![other.clone()],
            })
            .collect();
        // Equal values that do not look so are grouped by their sort keys, and one of them is shown.
        let mut keys: Vec<(Expr, Expr)> = Vec::new();
        for (expr, ty) in apart {
            if !keys.iter().any(|(known, _)| *known == expr) {
                let key = self.orderable(expr.clone(), &ty)?;
                keys.push((expr, key));
            }
        }
        let mut group: Vec<Expr> = group.into_iter().map(|e| keyed(e, &keys)).collect();
        let groups = group.len();
        group.extend(aggregates.iter().cloned().map(|e| match e {
            Expr::AggregateFunction(mut call) if call.func.name() == "grouping" => {
                let args = std::mem::take(&mut call.params.args);
                call.params.args = args.into_iter().map(|e| keyed(e, &keys)).collect();
                Expr::AggregateFunction(call)
            }
            e => e,
        }));
        for (expr, _) in &keys {
            group.push(one_of(expr.clone(), Vec::new()).alias(self.unique("shown#")));
        }
        let (plan, mut group) = self.awaited_below(plan, group)?;
        let folded = group.split_off(groups);
        let plan = LogicalPlanBuilder::from(plan)
            .aggregate(group, folded)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        // The aggregate's schema: grouping columns, then (with grouping sets) an id, then aggregates.
        let fields: Vec<Column> =
            plan.schema().iter().map(|(q, f)| Column::new(q.cloned(), f.name().clone())).collect();
        let values = fields.len() - keys.len();
        let tail = values - aggregates.len();
        let mut distinct_flat: Vec<Expr> = Vec::new();
        for e in flat {
            if !distinct_flat.contains(&e) {
                distinct_flat.push(e);
            }
        }
        let mut replace: Vec<(Expr, Expr)> = Vec::new();
        for (expr, field) in distinct_flat.into_iter().zip(&fields) {
            let shown = match keys.iter().position(|(known, _)| *known == expr) {
                Some(at) => shown(field.clone(), fields[values + at].clone())?,
                None => Expr::Column(field.clone()),
            };
            replace.push((expr, shown));
        }
        let computed = fields[tail..values].iter().cloned().map(Expr::Column);
        replace.extend(aggregates.into_iter().zip(computed));
        for expr in above.iter_mut() {
            let taken = std::mem::take(*expr);
            **expr = substitute(taken, &replace)?;
            check_grouped(expr, &fields, columns)?;
        }
        Ok(plan)
    }

    /// When a table's whole primary key is grouped, its other columns may be used: they depend on it.
    fn add_dependent_columns(
        &self,
        group: &mut Vec<Expr>,
        aggregates: &[Expr],
        columns: &[ScopeColumn],
        above: &[&mut Expr],
    ) -> Result<()> {
        let grouped: BTreeSet<(usize, usize)> = columns
            .iter()
            .filter(|c| group.contains(&Expr::Column(c.column.clone())))
            .filter_map(|c| c.origin.map(|o| (o.instance, o.position)))
            .collect();
        let mut used = BTreeSet::new();
        for expr in above {
            expr.apply(|node| {
                if aggregates.contains(node) || group.contains(node) {
                    return Ok(TreeNodeRecursion::Jump);
                }
                if let Expr::Column(column) = node {
                    used.insert(column.clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })
            .map_err(fault::from_datafusion)?;
        }
        for column in columns {
            let reference = Expr::Column(column.column.clone());
            if !used.contains(&column.column) || group.contains(&reference) {
                continue;
            }
            let Some(origin) = column.origin else { continue };
            let key = self.primary_key(origin.table)?;
            let determined = !key.is_empty()
                && key.iter().all(|position| grouped.contains(&(origin.instance, *position)));
            if determined {
                group.push(reference);
            }
        }
        Ok(())
    }
}

fn check_grouped(expr: &Expr, fields: &[Column], columns: &[ScopeColumn]) -> Result<()> {
    let mut stray = None;
    expr.apply(|node| {
        if let Expr::Column(column) = node
            && !fields.contains(column)
        {
            stray = Some(column.clone());
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map_err(fault::from_datafusion)?;
    let Some(stray) = stray else { return Ok(()) };
    let name = columns.iter().find(|c| c.column == stray).map_or_else(
        || stray.name.clone(),
        |c| match &c.table {
            Some(table) => format!("{table}.{}", c.name),
            None => c.name.clone(),
        },
    );
    Err(fault::new(
        "42803",
        format!(
            "column \"{name}\" must appear in the GROUP BY clause or be used in an aggregate function"
        ),
    ))
}

pub(super) fn refuse_aggregates(expr: &Expr, clause: &str) -> Result<()> {
    let has = |wanted: fn(&Expr) -> bool| expr.exists(|node| Ok(wanted(node))).unwrap_or(false);
    if has(|e| matches!(e, Expr::AggregateFunction(_))) {
        return Err(fault::new(
            "42803",
            format!("aggregate functions are not allowed in {clause}"),
        ));
    }
    if has(|e| matches!(e, Expr::WindowFunction(_))) {
        return Err(fault::new("42P20", format!("window functions are not allowed in {clause}")));
    }
    if has(|e| matches!(e, Expr::Unnest(_))) {
        return Err(fault::new(
            "0A000",
            format!("set-returning functions are not allowed in {clause}"),
        ));
    }
    Ok(())
}

/// A grouping element with sort keys in the place of what is grouped by them.
fn keyed(element: Expr, keys: &[(Expr, Expr)]) -> Expr {
    let key = |expr: Expr| match keys.iter().find(|(known, _)| *known == expr) {
        Some((_, key)) => key.clone(),
        None => expr,
    };
    let list = |list: Vec<Expr>| list.into_iter().map(key).collect();
    match element {
        Expr::GroupingSet(GroupingSet::Rollup(parts)) => {
            Expr::GroupingSet(GroupingSet::Rollup(list(parts)))
        }
        Expr::GroupingSet(GroupingSet::Cube(parts)) => {
            Expr::GroupingSet(GroupingSet::Cube(list(parts)))
        }
        Expr::GroupingSet(GroupingSet::GroupingSets(sets)) => {
            Expr::GroupingSet(GroupingSet::GroupingSets(sets.into_iter().map(list).collect()))
        }
        other => key(other),
    }
}
