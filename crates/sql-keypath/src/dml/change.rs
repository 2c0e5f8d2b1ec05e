//! Planning of UPDATE and DELETE.
//!
//! # Invariants
//! What needs other tables becomes a query that gives the keys (and new values) of the rows to
//! write ([`super::rows`]).

use super::additive::additive;
use super::rows::{Assigned, Part, key_of, relations, select, single_assignments};
use super::*;
use crate::policies::{RowChecks, names_columns};
use telesto_sql_plan::row_security::{self, Finding};

/// The one relation a statement writes, and its alias.
pub(super) fn written(target: &TableWithJoins) -> Result<(&ObjectName, Option<&ast::Ident>)> {
    match &target.relation {
        TableFactor::Table { name, alias, args: None, .. } if target.joins.is_empty() => {
            Ok((name, alias.as_ref().map(|alias| &alias.name)))
        }
        _ => Err(fault::unsupported("writing to anything but one table")),
    }
}

/// Whether setting these columns may change a primary or unique key.
pub(super) fn moves_keys(info: &CompiledTable, set: &[(usize, Given)]) -> bool {
    let changes = |column: usize| {
        set.iter().any(|(at, _)| *at == column)
            || info.generated.iter().any(|(at, _)| *at == column)
    };
    info.unique.iter().any(|index| info.forms.depends(index, &changes))
}

/// Plans an UPDATE.
///
/// # Errors
/// Errors of the statement.
pub(crate) async fn update(update: &ast::Update, context: &mut PlanContext<'_>) -> Result<KeyPlan> {
    if update.limit.is_some() || !update.order_by.is_empty() {
        return Err(Error::syntax("UPDATE takes no ORDER BY or LIMIT"));
    }
    let (name, alias) = written(&update.table)?;
    let written = Written::named(name, alias, Doing::Update, context)?;
    written.may_write(assigned(&update.assignments), Doing::Update)?;
    let mut info = CompiledTable::new(context.catalog, context.settings, &written.table)?;
    info.secured = written.secured.is_some();
    let info = Arc::new(info);
    let table = &written.face;
    let mut scope = Scope { relations: vec![written.relation()] };
    let before = context.parameters.clone();
    let from = match &update.from {
        None => None,
        Some(UpdateTableFromKind::BeforeSet(f) | UpdateTableFromKind::AfterSet(f)) => Some(f),
    };
    let reads = from.is_some()
        || update.returning.is_some()
        || update.selection.as_ref().is_some_and(names_columns)
        || update.assignments.iter().any(|assigned| names_columns(&assigned.value));
    let checks = match written.secured {
        None => None,
        Some(reader) => {
            let actor = context.catalog.actor(reader);
            let checks = row_security::update_checks(&written.table, &actor, reads)?;
            Some(RowChecks::compile(checks, &written.table, reader, context)?)
        }
    };
    let checks = RowChecks::and_views(checks, written.checked()?);
    // Rows behind policies are found by a query.
    let bound = if from.is_some() || written.secured.is_some() {
        None
    } else {
        let eval = EvalContext::planning(context.settings, context.catalog);
        let bound = (|| {
            let condition = written.condition(update.selection.as_ref(), &scope, context)?;
            let set = assignments(&update.assignments, table, &scope, context, &eval)?;
            let set = set.into_iter().map(|(at, given)| match given {
                Given::Expr(expr) => (at, Given::Expr(written.computed(expr))),
                Given::Default => (at, Given::Default),
            });
            Ok((condition, set.collect::<Vec<_>>()))
        })();
        match bound {
            Ok(bound) => Some(bound),
            Err(error) if written.needs_query(&error) => {
                *context.parameters = before;
                None
            }
            Err(error) => return Err(error),
        }
    };
    let (target, set) = match bound {
        Some((condition, set)) => {
            let eval = EvalContext::planning(context.settings, context.catalog);
            let conditions = Conditions::over(condition, &info.forms).placed_in(&written.table);
            let (access, filter) = conditions.choose_among(&written.table, None, &eval);
            (Target::Path(Box::new(access), filter), set)
        }
        None => {
            let (target, set, others) =
                update_by_query(update, from.map_or(&[], Vec::as_slice), &written, reads, context)
                    .await?;
            scope.relations.extend(others);
            (target, set)
        }
    };
    let (returning, columns) = returning(update.returning.as_ref(), &written, &scope, context)?;
    let moves_keys = moves_keys(&info, &set);
    // Policies look at the row.
    let plain = returning.is_none() && written.is_table() && checks.is_none();
    let eval = EvalContext::planning(context.settings, context.catalog);
    let adding = plain.then(|| additive(&info, &target, &set, &eval)).flatten();
    Ok(KeyPlan {
        columns,
        read_only: false,
        kind: Kind::Update(UpdatePlan { info, target, set, moves_keys, returning, adding, checks }),
    })
}

pub(super) fn error_needs_query(error: &Error) -> bool {
    error.code() == SqlState::FEATURE_NOT_SUPPORTED && error.message().contains("subquery")
}

/// Refuses a LATERAL subquery that names the table written: PostgreSQL lets it stand there and
/// refers to nothing.
fn refuse_lateral(others: &[TableWithJoins], target: &str) -> Result<()> {
    let factors = others.iter().flat_map(|from| {
        std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation))
    });
    for factor in factors {
        let TableFactor::Derived { lateral: true, subquery, .. } = factor else { continue };
        let own = ast::visit_relations(subquery, |relation| {
            let same = relation
                .0
                .last()
                .and_then(|part| part.as_ident())
                .is_some_and(|name| fold(name) == *target);
            if same {
                std::ops::ControlFlow::Break(())
            } else {
                std::ops::ControlFlow::Continue(())
            }
        });
        let named = ast::visit_expressions(subquery, |expr| match expr {
            ast::Expr::CompoundIdentifier(parts)
                if parts.len() == 2 && fold(&parts[0]) == *target =>
            {
                std::ops::ControlFlow::Break(())
            }
            _ => std::ops::ControlFlow::Continue(()),
        });
        if named.is_break() && own.is_continue() {
            return Err(Error::new(
                SqlState::INVALID_COLUMN_REFERENCE,
                format!("invalid reference to FROM-clause entry for table \"{target}\""),
            )
            .hint(format!(
                "There is an entry for table \"{target}\", but it cannot be referenced from this part of the query."
            )));
        }
    }
    Ok(())
}

/// The query of a statement that writes `table`: `list` behind the key, then, for RETURNING, the
/// other tables' columns.
async fn by_query(
    written: &Written,
    finding: Finding,
    others: &[TableWithJoins],
    condition: Option<&ast::Expr>,
    values: Vec<(ast::Expr, SqlType)>,
    returns: bool,
    context: &mut PlanContext<'_>,
) -> Result<(QuerySource, Option<usize>, Vec<ScopeRelation>)> {
    refuse_lateral(others, &written.shown)?;
    let mut from = vec![written.keyed(finding, context)?];
    from.extend(others.iter().cloned());
    let star = returns && !others.is_empty();
    let mut list = vec![key_of(&written.shown)];
    let mut wanted = vec![SqlType::Bytea];
    for (value, ty) in values {
        list.push(value);
        wanted.push(ty);
    }
    let own = written.width();
    let begin = list.len() + own;
    let relations = match star {
        true => relations(&from, own, written.table.columns.len(), context)?,
        false => Vec::new(),
    };
    let query = select(list, star, from, condition)?;
    let source = QuerySource::plan_into(query, wanted, context).await?;
    Ok((source, star.then_some(begin), relations))
}

async fn update_by_query(
    update: &ast::Update,
    from: &[TableWithJoins],
    written: &Written,
    reads: bool,
    context: &mut PlanContext<'_>,
) -> Result<(Target, Vec<(usize, Given)>, Vec<ScopeRelation>)> {
    let table = &*written.face;
    let mut values = Vec::new();
    let mut columns = Vec::new();
    for Assigned { column, value, part } in single_assignments(&update.assignments, table)? {
        if !matches!(part, Part::Whole) {
            return Err(Error::unsupported("assignment to a part of a column by another query"));
        }
        match value {
            None => columns.push((column, None)),
            Some(value) => {
                may_assign(table, column, true)?;
                values.push((value, table.columns[column].ty.without_modifier()));
                // The key comes first.
                columns.push((column, Some(values.len())));
            }
        }
    }
    let returns = update.returning.is_some();
    let (source, others, relations) = by_query(
        written,
        Finding::Update(reads),
        from,
        update.selection.as_ref(),
        values,
        returns,
        context,
    )
    .await?;
    let types = source.types();
    let eval = EvalContext::planning(context.settings, context.catalog);
    let empty = Scope::default();
    let mut set = Vec::with_capacity(columns.len());
    for (column, at) in columns {
        set.push((
            column,
            match at {
                None => Given::Default,
                Some(at) => {
                    let ty = types.get(at).cloned().unwrap_or(SqlType::Text);
                    let mut binder = Binder::new(&empty, context.parameters, &eval, "UPDATE");
                    Given::Expr(assign(&mut binder, Expr::column(at, ty), table, column)?)
                }
            },
        ));
    }
    Ok((Target::Query(source, others), set, relations))
}

/// Plans a DELETE.
///
/// # Errors
/// Errors of the statement.
pub(crate) async fn delete(delete: &ast::Delete, context: &mut PlanContext<'_>) -> Result<KeyPlan> {
    if delete.limit.is_some() || !delete.order_by.is_empty() || !delete.tables.is_empty() {
        return Err(Error::syntax("DELETE takes no ORDER BY, LIMIT or list of tables"));
    }
    let (FromTable::WithFromKeyword(tables) | FromTable::WithoutKeyword(tables)) = &delete.from;
    let [target] = tables.as_slice() else {
        return Err(fault::unsupported("DELETE from several tables"));
    };
    let (name, alias) = written(target)?;
    let written = Written::named(name, alias, Doing::Delete, context)?;
    let mut info = CompiledTable::new(context.catalog, context.settings, &written.table)?;
    info.secured = written.secured.is_some();
    let info = Arc::new(info);
    let mut scope = Scope { relations: vec![written.relation()] };
    let before = context.parameters.clone();
    let reads = delete.using.is_some()
        || delete.returning.is_some()
        || delete.selection.as_ref().is_some_and(names_columns);
    let bound = if delete.using.is_some() || written.secured.is_some() {
        None
    } else {
        match written.condition(delete.selection.as_ref(), &scope, context) {
            Ok(bound) => Some(bound),
            Err(error) if written.needs_query(&error) => {
                *context.parameters = before;
                None
            }
            Err(error) => return Err(error),
        }
    };
    let target = match bound {
        Some(condition) => {
            let eval = EvalContext::planning(context.settings, context.catalog);
            let conditions = Conditions::over(condition, &info.forms).placed_in(&written.table);
            let (access, filter) = conditions.choose_among(&written.table, None, &eval);
            Target::Path(Box::new(access), filter)
        }
        None => {
            let others = delete.using.as_deref().unwrap_or_default();
            let condition = delete.selection.as_ref();
            let returns = delete.returning.is_some();
            let (source, others, relations) = by_query(
                &written,
                Finding::Delete(reads),
                others,
                condition,
                Vec::new(),
                returns,
                context,
            )
            .await?;
            scope.relations.extend(relations);
            Target::Query(source, others)
        }
    };
    let (returning, columns) = returning(delete.returning.as_ref(), &written, &scope, context)?;
    Ok(KeyPlan {
        columns,
        read_only: false,
        kind: Kind::Delete(DeletePlan { info, target, returning }),
    })
}
