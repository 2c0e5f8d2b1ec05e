//! GROUP BY: what is grouped, what may be used above the groups.

use std::cell::RefCell;
use std::collections::BTreeSet;

use datafusion::common::Column;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Aggregate, Expr, GroupingSet, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast;

use super::equality::{comparable, one_of};
use super::operators::natively_ordered;
use super::scope::{Folds, OuterFold, Scope, ScopeColumn, fold};
use super::select::{Output, all_columns, project, substitute};
use super::{Binder, Typed};
use crate::types::TypeShape;
use crate::{fault, outer, waiting};
use telesto_sql_parser::rewrite::group_distinct;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

/// Elements of a CUBE at most, as in PostgreSQL.
const MAX_CUBE: usize = 12;

/// Grouping sets at most, as in PostgreSQL.
const MAX_SETS: usize = 4096;

/// What is grouped by.
#[derive(Default)]
pub(super) struct Groups {
    /// The elements of GROUP BY, each the sets it stands for: a plain one is a set of its own.
    elements: Vec<Vec<Vec<Expr>>>,
    /// Whether there are grouping sets.
    sets: bool,
    /// Whether sets that are the same count once.
    distinct: bool,
    /// Those whose equal values DataFusion tells apart, with their types.
    apart: Vec<(Expr, SqlType)>,
}

impl Groups {
    /// The grouping sets: one of each element, in all combinations.
    fn combined(self) -> Result<Vec<Vec<Expr>>> {
        let mut all: Vec<Vec<Expr>> = vec![Vec::new()];
        for element in self.elements {
            if all.len() * element.len() > MAX_SETS {
                let message = format!("too many grouping sets present (maximum {MAX_SETS})");
                return Err(fault::new("54001", message));
            }
            let with = |set: &Vec<Expr>| {
                let set = set.clone();
                element.iter().map(move |more| distinct(set.iter().chain(more)))
            };
            all = all.iter().flat_map(with).collect();
        }
        if self.distinct {
            let mut once: Vec<Vec<Expr>> = Vec::new();
            for set in all {
                let same = |known: &Vec<Expr>| {
                    known.len() == set.len() && set.iter().all(|expr| known.contains(expr))
                };
                if !once.iter().any(same) {
                    once.push(set);
                }
            }
            return Ok(once);
        }
        Ok(all)
    }
}

/// The expressions, each once.
fn distinct<'a>(exprs: impl Iterator<Item = &'a Expr>) -> Vec<Expr> {
    let mut out: Vec<Expr> = Vec::new();
    for expr in exprs {
        if !out.contains(expr) {
            out.push(expr.clone());
        }
    }
    out
}

impl Binder<'_> {
    pub(super) fn group_by(
        &self,
        group: &ast::GroupByExpr,
        scope: &Scope<'_>,
        outputs: &[Output],
    ) -> Result<Option<Groups>> {
        let scope = &Scope { folds: Folds::Refused("GROUP BY"), ..*scope };
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
        let (distinct, items) = group_distinct::of(items);
        let lists = |lists: &[Vec<ast::Expr>]| -> Result<Vec<Vec<Expr>>> {
            lists
                .iter()
                .map(|list| {
                    list.iter().map(|e| self.group_item(e, scope, outputs, &apart)).collect()
                })
                .collect()
        };
        let mut elements = Vec::new();
        let mut sets = false;
        for item in items {
            match item {
                ast::Expr::Rollup(parts) => {
                    sets = true;
                    let parts = lists(parts)?;
                    // An element of several columns comes and goes as one.
                    let prefixes = (0..=parts.len()).rev().map(|len| parts[..len].concat());
                    elements.push(prefixes.collect());
                }
                ast::Expr::Cube(parts) => {
                    sets = true;
                    let parts = lists(parts)?;
                    if parts.len() > MAX_CUBE {
                        let message = format!("CUBE is limited to {MAX_CUBE} elements");
                        return Err(fault::new("54011", message));
                    }
                    let chosen = |mask: usize| {
                        let within = (0..parts.len()).filter(|at| mask & (1 << at) != 0);
                        within.flat_map(|at| parts[at].clone()).collect()
                    };
                    elements.push((0..1 << parts.len()).rev().map(chosen).collect());
                }
                ast::Expr::GroupingSets(parts) => {
                    sets = true;
                    elements.push(lists(parts)?);
                }
                // GROUP BY () is one group of everything.
                ast::Expr::Tuple(parts) => {
                    for part in parts {
                        elements.push(vec![vec![self.group_item(part, scope, outputs, &apart)?]]);
                    }
                }
                item => elements.push(vec![vec![self.group_item(item, scope, outputs, &apart)?]]),
            }
        }
        Ok(Some(Groups { elements, sets, distinct, apart: apart.into_inner() }))
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
        let output = if by_input { None } else { self.output_position(item, outputs, "GROUP BY")? };
        let expr = match output {
            Some(at) => Typed::of(outputs[at].expr.clone(), outputs[at].ty.clone()),
            None => {
                let typed = self.expr(item, scope)?;
                let ty = if typed.ty.is_unknown() { SqlType::Text } else { typed.ty.clone() };
                match outputs.iter().find(|o| waiting::alike(&o.expr, &typed.expr)) {
                    Some(output) => Typed::of(output.expr.clone(), output.ty.clone()),
                    None => self.coerce(typed, &ty, "GROUP BY")?,
                }
            }
        };
        let Typed { expr, ty, .. } = expr;
        comparable(&ty)?;
        if !natively_ordered(&ty) && !ty.is_unknown() {
            apart.borrow_mut().push((expr.clone(), ty));
        }
        refuse_aggregates(&expr, "GROUP BY")?;
        Ok(expr)
    }

    /// The groups of `plan` with the aggregates over them; in `above` references to what is
    /// computed here take its place. `folds` are columns beside them that subqueries of this level
    /// use.
    pub(super) fn aggregate(
        &self,
        plan: LogicalPlan,
        mut groups: Groups,
        aggregates: Vec<Expr>,
        folds: Vec<OuterFold>,
        columns: &[ScopeColumn],
        above: &mut [&mut Expr],
    ) -> Result<LogicalPlan> {
        let (sets, apart) = (groups.sets, std::mem::take(&mut groups.apart));
        let mut combined = groups.combined()?;
        if let ([only], false) = (combined.as_mut_slice(), sets) {
            if only.is_empty() && aggregates.is_empty() {
                // One row, whatever the rows below are.
                for expr in above.iter() {
                    check_grouped(expr, &[], columns)?;
                }
                return LogicalPlanBuilder::empty(true).build().map_err(fault::from_datafusion);
            }
            self.add_dependent_columns(only, &aggregates, columns, above)?;
        }
        let flat = distinct(combined.iter().flatten());
        let (plan, keys, mut shown) = self.group_keys(plan, &flat, &apart)?;
        let key = |expr: Expr| match flat.iter().position(|known| *known == expr) {
            Some(at) => Expr::Column(keys[at].clone()),
            None => expr,
        };
        let mut folded: Vec<Expr> = Vec::with_capacity(aggregates.len() + shown.len());
        for aggregate in &aggregates {
            let aggregate = match aggregate.clone() {
                Expr::AggregateFunction(mut call) if call.func.name() == "grouping" => {
                    let args = std::mem::take(&mut call.params.args);
                    if args.iter().any(|arg| !flat.contains(arg)) {
                        return Err(fault::new(
                            "42803",
                            "arguments to GROUPING must be grouping expressions of the associated query level".to_owned(),
                        ));
                    }
                    call.params.args = args.into_iter().map(key).collect();
                    Expr::AggregateFunction(call)
                }
                other => other,
            };
            folded.push(aggregate);
        }
        let values: Vec<Expr> = shown.iter().map(|(_, value)| value.clone()).collect();
        folded.extend(values);
        let (plan, folded) = self.awaited_below(plan, folded)?;
        // Names of their own: DataFusion's leave out casts, and change with what takes the place of
        // an outer column.
        let names: Vec<String> = folded
            .iter()
            .map(|expr| match expr {
                Expr::AggregateFunction(call) => self.unique(&format!("{}#", call.func.name())),
                _ => self.unique("fold#"),
            })
            .collect();
        let folded = folded.into_iter().zip(&names).map(|(expr, name)| expr.alias(name));
        let set = |set: Vec<Expr>| set.into_iter().map(key).collect::<Vec<Expr>>();
        let mut combined: Vec<Vec<Expr>> = combined.into_iter().map(set).collect();
        let group = match (sets, combined.as_mut_slice()) {
            (false, [only]) => std::mem::take(only),
            _ => vec![Expr::GroupingSet(GroupingSet::GroupingSets(combined))],
        };
        let plan = LogicalPlanBuilder::from(plan)
            .aggregate(group, folded)
            .and_then(LogicalPlanBuilder::build)
            .map_err(fault::from_datafusion)?;
        // GROUPING is not computed from the number DataFusion gives each set where another operator
        // uses that.
        let mut kept = all_columns(&plan);
        kept.retain(|expr| {
            !matches!(expr, Expr::Column(column) if column.name == Aggregate::INTERNAL_GROUPING_ID)
        });
        let plan = if sets { project(plan, kept)? } else { plan };
        let named = |at: usize| Column::new_unqualified(names[at].clone());
        let mut replace: Vec<(Expr, Expr)> = Vec::new();
        for (expr, key) in flat.into_iter().zip(keys) {
            let value = match shown.iter_mut().position(|(known, _)| *known == expr) {
                Some(at) => super::equality::shown(key, named(aggregates.len() + at))?,
                None => Expr::Column(key),
            };
            replace.push((expr, value));
        }
        let computed = (0..aggregates.len()).map(|at| Expr::Column(named(at)));
        replace.extend(aggregates.into_iter().zip(computed));
        for expr in above.iter_mut() {
            let taken = std::mem::take(*expr);
            **expr = substitute(taken, &replace)?;
        }
        let (plan, fields) = self.beside_groups(plan, folds, &replace, columns, above)?;
        for expr in above {
            check_grouped(expr, &fields, columns)?;
        }
        Ok(plan)
    }

    /// What is grouped by as columns, in the order of `flat`; and where these are sort keys,
    /// because equal values do not look so, one of the values of a group.
    #[allow(clippy::type_complexity, reason = "what one caller takes apart at once")]
    fn group_keys(
        &self,
        plan: LogicalPlan,
        flat: &[Expr],
        apart: &[(Expr, SqlType)],
    ) -> Result<(LogicalPlan, Vec<Column>, Vec<(Expr, Expr)>)> {
        let mut values = flat.to_vec();
        let plan = self.unnest_calls(plan, &mut values.iter_mut().collect::<Vec<_>>())?;
        let (plan, values) = self.as_columns(plan, values)?;
        let mut shown = Vec::new();
        let mut keys = Vec::with_capacity(values.len());
        for (expr, value) in flat.iter().zip(values) {
            keys.push(match apart.iter().find(|(known, _)| known == expr) {
                Some((_, ty)) => {
                    shown.push((expr.clone(), one_of(value.clone(), Vec::new())));
                    self.orderable(value, ty)?
                }
                None => value,
            });
        }
        let (plan, keys) = self.as_columns(plan, keys)?;
        let keys = keys.into_iter().filter_map(|key| match key {
            Expr::Column(column) => Some(column),
            _ => None,
        });
        Ok((plan, keys.collect(), shown))
    }

    /// The expressions as columns: what is none yet is computed below, under a name of its own.
    fn as_columns(&self, plan: LogicalPlan, exprs: Vec<Expr>) -> Result<(LogicalPlan, Vec<Expr>)> {
        if exprs.iter().all(|expr| matches!(expr, Expr::Column(_))) {
            return Ok((plan, exprs));
        }
        let mut below = all_columns(&plan);
        let mut out = Vec::with_capacity(exprs.len());
        for expr in exprs {
            out.push(match expr {
                Expr::Column(_) => expr,
                expr => {
                    let name = self.unique("group#");
                    below.push(expr.alias(&name));
                    Expr::Column(Column::new_unqualified(name))
                }
            });
        }
        Ok((project(plan, below)?, out))
    }

    /// The groups with what subqueries above them use: aggregates of theirs that belong here, and
    /// columns that are grouped but shown in another way. The columns that may be used above come
    /// with them.
    fn beside_groups(
        &self,
        plan: LogicalPlan,
        folds: Vec<OuterFold>,
        replace: &[(Expr, Expr)],
        columns: &[ScopeColumn],
        above: &[&mut Expr],
    ) -> Result<(LogicalPlan, Vec<Column>)> {
        let mut fields = plan.schema().columns();
        let mut beside = Vec::new();
        for fold in folds {
            let value = substitute(fold.expr, replace)?;
            check_grouped(&value, &fields, columns)?;
            beside.push((fold.column, value));
        }
        let mut used = Vec::new();
        for expr in above {
            outer::within(expr, &mut used).map_err(fault::from_datafusion)?;
        }
        for (column, _) in used {
            let ours = columns.iter().find(|known| known.column == column);
            let Some(ours) = ours.filter(|_| !fields.contains(&column)) else { continue };
            let reference = Expr::Column(column.clone());
            let Some((_, value)) = replace.iter().find(|(known, _)| *known == reference) else {
                let name = shown_name(ours);
                let message = format!("subquery uses ungrouped column \"{name}\" from outer query");
                return Err(fault::new("42803", message));
            };
            beside.push((column, value.clone()));
        }
        if beside.is_empty() {
            return Ok((plan, fields));
        }
        let mut exprs = all_columns(&plan);
        for (column, value) in beside {
            exprs.push(value.alias_qualified(column.relation.clone(), column.name.clone()));
            fields.push(column);
        }
        Ok((project(plan, exprs)?, fields))
    }

    /// When a table's whole primary key is grouped, its other columns may be used: they depend on
    /// it.
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
                } else if outer::subquery(node).is_some() {
                    let mut inside = Vec::new();
                    outer::within(node, &mut inside)?;
                    used.extend(inside.into_iter().map(|(column, _)| column));
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
    let known = columns.iter().find(|c| c.column == stray);
    let name = known.map_or_else(|| stray.name.clone(), shown_name);
    Err(fault::new(
        "42803",
        format!(
            "column \"{name}\" must appear in the GROUP BY clause or be used in an aggregate function"
        ),
    ))
}

/// A column as PostgreSQL names it in messages.
fn shown_name(column: &ScopeColumn) -> String {
    match &column.table {
        Some(table) => format!("{table}.{}", column.name),
        None => column.name.clone(),
    }
}

/// Refuses aggregates, windows and set-returning functions in a clause.
pub(super) fn refuse_aggregates(expr: &Expr, clause: &str) -> Result<()> {
    if has(expr, |e| matches!(e, Expr::AggregateFunction(_))) {
        return Err(fault::new(
            "42803",
            format!("aggregate functions are not allowed in {clause}"),
        ));
    }
    refuse_windows(expr, clause)?;
    // What is grouped by may be a set.
    if clause == "GROUP BY" { Ok(()) } else { refuse_sets(expr, clause) }
}

/// Refuses window functions in a clause.
pub(super) fn refuse_windows(expr: &Expr, clause: &str) -> Result<()> {
    match has(expr, |e| matches!(e, Expr::WindowFunction(_))) {
        true => Err(fault::new("42P20", format!("window functions are not allowed in {clause}"))),
        false => Ok(()),
    }
}

/// Refuses set-returning functions in a clause.
pub(super) fn refuse_sets(expr: &Expr, clause: &str) -> Result<()> {
    match has(expr, |e| matches!(e, Expr::Unnest(_))) {
        true => {
            let message = format!("set-returning functions are not allowed in {clause}");
            Err(fault::new("0A000", message))
        }
        false => Ok(()),
    }
}

fn has(expr: &Expr, wanted: fn(&Expr) -> bool) -> bool {
    expr.exists(|node| Ok(wanted(node))).unwrap_or(true)
}
