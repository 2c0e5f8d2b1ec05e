//! Planning of MERGE.
//!
//! # Protocol
//! `SELECT t.key, * FROM source LEFT JOIN t ON condition` gives each source row with the key of
//! each row it matches, NULL without one. Conditions and values of the WHEN clauses are computed
//! over the row there (read by its key) and the source's columns behind it.
//!
//! # Limits
//! No subqueries in WHEN clauses.

use super::change::{moves_keys, written};
use super::rows::{from_clause, key_of, keyed, relations, select};
use super::*;
use crate::policies::MergeChecks;
use telesto_sql_catalog::Relation;
use telesto_sql_parser::marks::{DEFAULT_VALUES, DO_NOTHING};
use telesto_sql_parser::sqlparser::ast::{Merge, MergeAction, MergeClauseKind, MergeInsertKind};

/// What a WHEN clause does.
#[derive(Debug)]
pub(crate) enum MergeDo {
    /// Nothing.
    Nothing,
    /// Deletes the row.
    Delete,
    /// Sets columns.
    Update(Vec<(usize, Given)>),
    /// Inserts: columns and values.
    Insert(Vec<usize>, Vec<Given>),
}

/// A WHEN clause.
#[derive(Debug)]
pub(crate) struct MergeWhen {
    /// WHEN MATCHED; otherwise WHEN NOT MATCHED.
    pub matched: bool,
    pub condition: Option<Expr>,
    pub action: MergeDo,
}

/// A MERGE.
#[derive(Debug)]
pub(crate) struct MergePlan {
    pub info: Arc<CompiledTable>,
    pub source: QuerySource,
    /// Columns of the source.
    pub width: usize,
    pub clauses: Vec<MergeWhen>,
    /// What policies ask of its rows.
    pub checks: Option<MergeChecks>,
}

impl MergePlan {
    /// One line for EXPLAIN.
    pub fn describe(&self) -> String {
        format!("Merge into {} from a query", self.info.table.name)
    }
}

/// Plans a MERGE.
///
/// # Errors
/// Errors of the statement.
pub(crate) async fn merge(merge: &Merge, context: &mut PlanContext<'_>) -> Result<KeyPlan> {
    if merge.output.is_some() {
        return Err(Error::syntax("MERGE has no OUTPUT or RETURNING"));
    }
    let target = TableWithJoins { relation: merge.table.clone(), joins: Vec::new() };
    let (name, alias) = written(&target)?;
    let (schema, called) = crate::name_parts(name)?;
    let path = context.settings.effective_search_path();
    let found = context.catalog.resolve(schema.as_deref(), &called, &path);
    if matches!(found, Some(Relation::View(_))) {
        return Err(Error::new(
            SqlState::FEATURE_NOT_SUPPORTED,
            format!("cannot execute MERGE on relation \"{called}\""),
        )
        .detail("This operation is not supported for views."));
    }
    let table = find_table(name, context)?;
    let checks = match crate::policies::secured(&table, None, context)? {
        Some(reader) => Some(MergeChecks::compile(&table, reader, context)?),
        None => None,
    };
    let shown = alias.map_or_else(|| table.name.clone(), fold);
    let info = Arc::new(CompiledTable::new(context.catalog, context.settings, &table)?);
    let source = TableWithJoins { relation: merge.source.clone(), joins: Vec::new() };
    let others = relations(std::slice::from_ref(&source), 0, table.columns.len(), context)?;
    if others.iter().any(|other| other.name == shown) {
        return Err(Error::new(
            SqlState::DUPLICATE_ALIAS,
            format!("name \"{shown}\" specified more than once"),
        )
        .detail("The name is used both as MERGE target table and data source."));
    }
    // The alias of USING is one more name for columns that are there.
    let rows = others.iter().filter(|other| other.unqualified);
    let width = rows.map(|other| other.columns.len()).sum();
    // source LEFT JOIN t ON condition
    let mut from = from_clause("SELECT FROM s LEFT JOIN t ON true")?;
    let Some(item) = from.first_mut() else { return Err(Error::internal("a FROM made here")) };
    item.relation = source.relation;
    if let Some(join) = item.joins.first_mut() {
        join.relation = keyed(&table, &shown, "r", context)?.relation;
        let on = ast::JoinConstraint::On((*merge.on).clone());
        let needs_all = merge.clauses.iter().any(|c| c.clause_kind != MergeClauseKind::Matched);
        join.join_operator = match needs_all {
            true => ast::JoinOperator::LeftOuter(on),
            false => ast::JoinOperator::Inner(on),
        };
    }
    let query = select(vec![key_of(&shown)], true, from, None)?;
    let query_source = QuerySource::plan(query, context).await?;
    let source_only = Scope { relations: others.clone() };
    let mut both = Scope { relations: vec![relation(&table, &shown, 0, true)] };
    both.relations.extend(others);
    let mut clauses: Vec<MergeWhen> = Vec::new();
    for clause in &merge.clauses {
        let matched = match clause.clause_kind {
            MergeClauseKind::Matched => true,
            MergeClauseKind::NotMatched => false,
            _ => return Err(Error::syntax("syntax error at or near \"BY\"")),
        };
        if clauses.iter().any(|before| before.matched == matched && before.condition.is_none()) {
            return Err(Error::syntax(
                "unreachable WHEN clause specified after unconditional WHEN clause",
            ));
        }
        let scope = if matched { &both } else { &source_only };
        let eval = EvalContext::planning(context.settings, context.catalog);
        let condition = match &clause.predicate {
            None => None,
            Some(expr) => {
                let mut binder = Binder::new(scope, context.parameters, &eval, "MERGE WHEN AND");
                Some(binder.condition(expr)?)
            }
        };
        let action = action(&clause.action, &table, scope, context)?;
        clauses.push(MergeWhen { matched, condition, action });
    }
    Ok(KeyPlan {
        columns: None,
        read_only: false,
        kind: Kind::Merge(Box::new(MergePlan {
            info,
            source: query_source,
            width,
            clauses,
            checks,
        })),
    })
}

fn action(
    action: &MergeAction,
    table: &Arc<Table>,
    scope: &Scope,
    context: &mut PlanContext<'_>,
) -> Result<MergeDo> {
    let is = |name: &ObjectName, spelled: &str| {
        name.0.last().and_then(|p| p.as_ident()).is_some_and(|name| name.value == spelled)
    };
    let nothing = |name: &ObjectName| is(name, DO_NOTHING);
    let eval = EvalContext::planning(context.settings, context.catalog);
    match action {
        MergeAction::Delete { .. } => Ok(MergeDo::Delete),
        MergeAction::Update(update) => {
            if update.update_predicate.is_some() || update.delete_predicate.is_some() {
                return Err(Error::syntax("syntax error at or near \"WHERE\""));
            }
            if let [one] = update.assignments.as_slice()
                && let AssignmentTarget::ColumnName(name) = &one.target
                && nothing(name)
            {
                return Ok(MergeDo::Nothing);
            }
            let set = assignments(&update.assignments, table, scope, context, &eval)?;
            Ok(MergeDo::Update(set))
        }
        MergeAction::Insert(insert) => {
            if insert.insert_predicate.is_some() {
                return Err(Error::syntax("syntax error at or near \"WHERE\""));
            }
            if insert.columns.iter().any(nothing) {
                return Ok(MergeDo::Nothing);
            }
            if insert.columns.iter().any(|name| is(name, DEFAULT_VALUES)) {
                return Ok(MergeDo::Insert(Vec::new(), Vec::new()));
            }
            let (overriding, named) = overriding(&insert.columns);
            let explicit = !named.is_empty();
            let mut targets: Vec<usize> = if explicit {
                named.iter().map(|name| target_column(table, name)).collect::<Result<_>>()?
            } else {
                table.visible_columns().map(|(at, _)| at).collect()
            };
            let values = match &insert.kind {
                MergeInsertKind::Row => {
                    return Err(Error::syntax("syntax error at or near \"ROW\""));
                }
                MergeInsertKind::Values(values) => values,
            };
            let way = Way { explicit, overriding, scope };
            let mut rows = bind_values(values, table, &mut targets, &way, context, &eval)?;
            match (rows.pop(), rows.is_empty()) {
                (Some(row), true) => Ok(MergeDo::Insert(targets, row)),
                _ => Err(Error::syntax("MERGE inserts one row of VALUES")),
            }
        }
    }
}

/// Whether updates of the clauses may change a primary or unique key.
pub(crate) fn may_move_keys(plan: &MergePlan) -> bool {
    plan.clauses.iter().any(|clause| match &clause.action {
        MergeDo::Update(set) => moves_keys(&plan.info, set),
        _ => false,
    })
}
