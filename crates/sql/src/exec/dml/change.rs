//! Planning of UPDATE and DELETE.
//!
//! # Invariants
//! What needs other tables becomes a query that gives the primary keys (and new values) of the rows to write.

use super::*;

/// The one table a statement writes, and its alias.
fn written(target: &TableWithJoins, context: &PlanContext<'_>) -> Result<(Arc<Table>, String)> {
    match &target.relation {
        TableFactor::Table { name, alias, args: None, .. } if target.joins.is_empty() => {
            let table = find_table(name, context)?;
            let shown = alias.as_ref().map_or_else(|| table.name.clone(), |a| fold(&a.name));
            Ok((table, shown))
        }
        _ => Err(fault::unsupported("writing to anything but one table")),
    }
}

/// Whether setting these columns may change a primary or unique key.
fn moves_keys(info: &TableInfo, set: &[(usize, Given)]) -> bool {
    !info.predicates.is_empty()
        || info.unique.iter().any(|index| {
            index.columns.iter().any(|c| {
                set.iter().any(|(at, _)| *at == c.column)
                    || info.generated.iter().any(|(at, _)| *at == c.column)
            })
        })
}

/// Plans an UPDATE.
///
/// # Errors
/// Errors of the statement.
pub(in crate::exec) async fn update(
    update: &ast::Update,
    context: &mut PlanContext<'_>,
) -> Result<KeyPlan> {
    if update.limit.is_some() || !update.order_by.is_empty() {
        return Err(Error::syntax("UPDATE takes no ORDER BY or LIMIT"));
    }
    let (table, shown) = written(&update.table, context)?;
    let info = Arc::new(TableInfo::new(context.catalog, context.settings, &table)?);
    let scope = Scope { relations: vec![relation(&table, &shown, 0, true)] };
    let before = context.parameters.clone();
    let from = match &update.from {
        None => None,
        Some(UpdateTableFromKind::BeforeSet(f) | UpdateTableFromKind::AfterSet(f)) => Some(f),
    };
    let bound = if from.is_some() {
        None
    } else {
        let eval = EvalContext::planning(context.settings, context.catalog);
        let bound = (|| {
            let condition = match &update.selection {
                None => None,
                Some(e) => {
                    Some(Binder::new(&scope, context.parameters, &eval, "WHERE").condition(e)?)
                }
            };
            Ok((condition, assignments(&update.assignments, &table, &scope, context, &eval)?))
        })();
        match bound {
            Ok(bound) => Some(bound),
            Err(error) if error_needs_query(&error) => {
                *context.parameters = before;
                None
            }
            Err(error) => return Err(error),
        }
    };
    let (target, set) = match bound {
        Some((condition, set)) => {
            let (access, filter) = Conditions::new(condition).choose(&table, None);
            (Target::Path(Box::new(access), filter), set)
        }
        None => update_by_query(update, from, &table, &shown, context).await?,
    };
    let (returning, columns) = returning(update.returning.as_ref(), &table, &scope, context)?;
    let moves_keys = moves_keys(&info, &set);
    Ok(KeyPlan {
        columns,
        read_only: false,
        kind: Kind::Update(UpdatePlan { info, target, set, moves_keys, returning }),
    })
}

fn error_needs_query(error: &Error) -> bool {
    error.code() == SqlState::FEATURE_NOT_SUPPORTED && error.message().contains("subquery")
}

/// The select list that gives a table's primary key.
fn key_list(table: &Table, shown: &str) -> Result<Vec<String>> {
    let primary = table.primary.as_ref().ok_or_else(|| {
        fault::unsupported(
            "FROM, USING or a subquery in a statement that writes a table without primary key",
        )
    })?;
    Ok(primary
        .columns
        .iter()
        .map(|c| format!("{}.{}", quoted(shown), quoted(&table.columns[c.column].name)))
        .collect())
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn from_list(target: &TableWithJoins, others: Option<&Vec<TableWithJoins>>) -> String {
    let mut from = vec![target.to_string()];
    from.extend(others.into_iter().flatten().map(ToString::to_string));
    from.join(", ")
}

async fn update_by_query(
    update: &ast::Update,
    from: Option<&Vec<TableWithJoins>>,
    table: &Table,
    shown: &str,
    context: &mut PlanContext<'_>,
) -> Result<(Target, Vec<(usize, Given)>)> {
    let mut list = key_list(table, shown)?;
    let first = list.len();
    let mut columns = Vec::new();
    for assignment in &update.assignments {
        let AssignmentTarget::ColumnName(name) = &assignment.target else {
            return Err(fault::unsupported("SET (…) = together with FROM or a subquery"));
        };
        let column = target_column(table, name)?;
        if is_default(&assignment.value) {
            columns.push((column, None));
            continue;
        }
        may_assign(table, column, true)?;
        let value = &assignment.value;
        // An untyped literal or parameter takes the column's type, as in an assignment.
        list.push(match value {
            ast::Expr::Value(_) => {
                format!("CAST({value} AS {})", table.columns[column].ty.without_modifier())
            }
            _ => format!("({value})"),
        });
        columns.push((column, Some(list.len() - 1)));
    }
    let condition = update.selection.as_ref().map_or_else(String::new, |e| format!(" WHERE {e}"));
    let sql =
        format!("SELECT {} FROM {}{condition}", list.join(", "), from_list(&update.table, from));
    let source = QuerySource::plan_text(&sql, context).await?;
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
    debug_assert!(first <= types.len());
    Ok((Target::Query(source), set))
}

/// Plans a DELETE.
///
/// # Errors
/// Errors of the statement.
pub(in crate::exec) async fn delete(
    delete: &ast::Delete,
    context: &mut PlanContext<'_>,
) -> Result<KeyPlan> {
    if delete.limit.is_some() || !delete.order_by.is_empty() || !delete.tables.is_empty() {
        return Err(Error::syntax("DELETE takes no ORDER BY, LIMIT or list of tables"));
    }
    let (FromTable::WithFromKeyword(tables) | FromTable::WithoutKeyword(tables)) = &delete.from;
    let [target] = tables.as_slice() else {
        return Err(fault::unsupported("DELETE from several tables"));
    };
    let (table, shown) = written(target, context)?;
    let info = Arc::new(TableInfo::new(context.catalog, context.settings, &table)?);
    let scope = Scope { relations: vec![relation(&table, &shown, 0, true)] };
    let before = context.parameters.clone();
    let bound = if delete.using.is_some() {
        None
    } else {
        let eval = EvalContext::planning(context.settings, context.catalog);
        let bound = delete
            .selection
            .as_ref()
            .map(|e| Binder::new(&scope, context.parameters, &eval, "WHERE").condition(e))
            .transpose();
        match bound {
            Ok(bound) => Some(bound),
            Err(error) if error_needs_query(&error) => {
                *context.parameters = before;
                None
            }
            Err(error) => return Err(error),
        }
    };
    let target = match bound {
        Some(condition) => {
            let (access, filter) = Conditions::new(condition).choose(&table, None);
            Target::Path(Box::new(access), filter)
        }
        None => {
            let list = key_list(&table, &shown)?.join(", ");
            let condition =
                delete.selection.as_ref().map_or_else(String::new, |e| format!(" WHERE {e}"));
            let sql = format!(
                "SELECT {list} FROM {}{condition}",
                from_list(target, delete.using.as_ref())
            );
            Target::Query(QuerySource::plan_text(&sql, context).await?)
        }
    };
    let (returning, columns) = returning(delete.returning.as_ref(), &table, &scope, context)?;
    Ok(KeyPlan {
        columns,
        read_only: false,
        kind: Kind::Delete(DeletePlan { info, target, returning }),
    })
}
