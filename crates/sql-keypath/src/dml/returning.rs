//! RETURNING: expressions over the row that was written, and over the rows beside it.
//!
//! # Limits
//! A whole row (`RETURNING t`, `to_json(t)`) is taken in `to_json`, `to_jsonb` and `row_to_json`
//! only, and only the written one.

use std::ops::ControlFlow;

use super::*;
use crate::name_parts;
use telesto_sql_expr::whole_row::row_as_json;
use telesto_sql_parser::sqlparser::ast::visit_expressions_mut;

/// The expressions of a RETURNING and the columns they make; none without one.
pub(super) type Returning = (Option<Vec<Expr>>, Option<Arc<[ResultColumn]>>);

/// Binds RETURNING.
pub(super) fn returning(
    items: Option<&Vec<SelectItem>>,
    written: &Written,
    scope: &Scope,
    context: &mut PlanContext<'_>,
) -> Result<Returning> {
    let Some(items) = items else { return Ok((None, None)) };
    let table = &written.face;
    let eval = EvalContext::planning(context.settings, context.catalog);
    let (mut output, mut columns) = (Vec::new(), Vec::new());
    for item in items {
        match item {
            SelectItem::QualifiedWildcard(ast::SelectItemQualifiedWildcardKind::Expr(row), _) => {
                let mut binder = Binder::new(scope, context.parameters, &eval, "RETURNING");
                let fields =
                    binder.fields_of(row).map_err(|error| returning_fault(error, written))?;
                for (name, field) in fields {
                    columns.push(result_column(name, &field, Some(table)));
                    output.push(written.computed(field));
                }
            }
            SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options)
                if plain_wildcard(options) =>
            {
                let wanted = match item {
                    SelectItem::QualifiedWildcard(
                        ast::SelectItemQualifiedWildcardKind::ObjectName(name),
                        _,
                    ) => Some(name_parts(name)?.1),
                    _ => None,
                };
                let all = |relation: &&ScopeRelation| {
                    wanted.as_ref().is_none_or(|wanted| *wanted == relation.name)
                };
                let mut known = false;
                for (at, other) in scope.relations.iter().enumerate().filter(|(_, r)| all(r)) {
                    known = true;
                    if at == 0 {
                        for (expr, column) in written.star()? {
                            output.push(expr);
                            columns.push(column);
                        }
                        continue;
                    }
                    for column in &other.columns {
                        output.push(Expr::column(column.position, column.ty.clone()));
                        columns.push(ResultColumn::new(column.name.clone(), column.ty.clone()));
                    }
                }
                if !known {
                    let wanted = wanted.unwrap_or_default();
                    return Err(Error::new(
                        SqlState::UNDEFINED_TABLE,
                        format!("missing FROM-clause entry for table \"{wanted}\""),
                    ));
                }
            }
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
                let whole = with_rows(expr, written, scope)?;
                let bound = Binder::new(scope, context.parameters, &eval, "RETURNING")
                    .bind_known(&whole)
                    .map_err(|error| returning_fault(error, written))?;
                let name = match item {
                    SelectItem::ExprWithAlias { alias, .. } => fold(alias),
                    _ => output_name(expr),
                };
                columns.push(result_column(name, &bound, Some(table)));
                output.push(written.computed(bound));
            }
            _ => return Err(fault::unsupported("this item of RETURNING")),
        }
    }
    Ok((Some(output), Some(columns.into())))
}

/// `expr` with `to_json(t)` and its kin of a whole row written out over the row's columns.
fn with_rows(expr: &ast::Expr, written: &Written, scope: &Scope) -> Result<ast::Expr> {
    let mut expr = expr.clone();
    let done = visit_expressions_mut(&mut expr, |part| match row_in_json(part, written, scope) {
        Ok(None) => ControlFlow::Continue(()),
        Ok(Some(row)) => {
            *part = row;
            ControlFlow::Continue(())
        }
        Err(error) => ControlFlow::Break(error),
    });
    match done {
        ControlFlow::Continue(()) => Ok(expr),
        ControlFlow::Break(error) => Err(error),
    }
}

fn row_in_json(expr: &ast::Expr, written: &Written, scope: &Scope) -> Result<Option<ast::Expr>> {
    let ast::Expr::Function(call) = expr else { return Ok(None) };
    let ast::FunctionArguments::List(list) = &call.args else { return Ok(None) };
    let [ast::FunctionArg::Unnamed(argument)] = list.args.as_slice() else { return Ok(None) };
    let name = match argument {
        ast::FunctionArgExpr::Expr(ast::Expr::Identifier(name)) => fold(name),
        ast::FunctionArgExpr::QualifiedWildcard(name) => name_parts(name)?.1,
        _ => return Ok(None),
    };
    let called = call.name.to_string().to_lowercase();
    let json = match called.as_str() {
        "to_json" | "row_to_json" => SqlType::Json,
        "to_jsonb" => SqlType::Jsonb,
        _ => return Ok(None),
    };
    if scope.resolve(None, &name).is_ok() {
        return Ok(None);
    }
    // Rows beside it may be NULL, which takes a query.
    if name != written.shown {
        return Ok(None);
    }
    let columns = written.star()?.into_iter().map(|(_, column)| column.name).collect();
    row_as_json(&name, columns, &json).map(Some)
}
