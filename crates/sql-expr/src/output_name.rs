//! The name of a result column that has no alias.
//!
//! # Invariants
//! Both executors ask here, so a query's columns have the same names whichever runs it
//! (PostgreSQL's `FigureColname`): a column, field or call names itself; a cast or a CASE names
//! itself only where nothing stronger is inside.

use super::scope::fold;
use telesto_sql_parser::rewrite::variadic::plain_name;
use telesto_sql_parser::sqlparser::ast::{self, DataType, Expr as E};

/// How much a name says: a weaker one gives way to what stands around it.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Strength {
    Nothing,
    Weak,
    Strong,
}

/// The name PostgreSQL gives an output without an alias.
#[must_use]
pub fn output_name(expr: &ast::Expr) -> String {
    match figure(expr) {
        (Strength::Nothing, _) => "?column?".to_owned(),
        (_, name) => name,
    }
}

fn strong(name: impl Into<String>) -> (Strength, String) {
    (Strength::Strong, name.into())
}

fn weak(inner: (Strength, String), name: impl FnOnce() -> String) -> (Strength, String) {
    if inner.0 == Strength::Strong { inner } else { (Strength::Weak, name()) }
}

fn is_key(call: &ast::Function) -> bool {
    let name = call.name.0.last().and_then(|part| part.as_ident());
    name.is_some_and(|name| name.value == telesto_sql_parser::rewrite::collation::KEY)
}

fn figure(expr: &E) -> (Strength, String) {
    let nothing = (Strength::Nothing, String::new());
    match expr {
        E::Identifier(name) => strong(fold(name)),
        E::CompoundIdentifier(parts) => strong(parts.last().map(fold).unwrap_or_default()),
        // What a collation stands for has the name of its text.
        E::Function(call) if is_key(call) => match &call.args {
            ast::FunctionArguments::List(list) => match list.args.first() {
                Some(ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(text))) => figure(text),
                _ => nothing,
            },
            _ => nothing,
        },
        E::Function(call) => {
            let name = call.name.0.last().and_then(|part| part.as_ident()).map(fold);
            let name = name.unwrap_or_default();
            strong(plain_name(&name).unwrap_or(&name))
        }
        E::Nested(inner) | E::Collate { expr: inner, .. } => figure(inner),
        E::CompoundFieldAccess { root, access_chain } => {
            let field = |step: &ast::AccessExpr| match step {
                ast::AccessExpr::Dot(E::Identifier(name)) => Some(fold(name)),
                _ => None,
            };
            access_chain.iter().rev().find_map(field).map_or_else(|| figure(root), strong)
        }
        E::Cast { expr, data_type, .. } => weak(figure(expr), || type_name(data_type)),
        E::TypedString(typed) => (Strength::Weak, type_name(&typed.data_type)),
        E::Interval(_) => (Strength::Weak, "interval".to_owned()),
        E::Case { else_result, .. } => {
            weak(else_result.as_deref().map_or(nothing, figure), || "case".to_owned())
        }
        E::Exists { negated: false, .. } => strong("exists"),
        E::Subquery(query) => match &*query.body {
            ast::SetExpr::Select(select) => match select.projection.first() {
                Some(ast::SelectItem::UnnamedExpr(expr)) => figure(expr),
                Some(ast::SelectItem::ExprWithAlias { alias, .. }) => strong(fold(alias)),
                // VALUES as a value is written so.
                Some(ast::SelectItem::Wildcard(_)) if is_values(select) => strong("column1"),
                _ => nothing,
            },
            _ => nothing,
        },
        E::Extract { .. } => strong("extract"),
        E::Position { .. } => strong("position"),
        E::Substring { shorthand, .. } => strong(if *shorthand { "substr" } else { "substring" }),
        E::Overlay { .. } => strong("overlay"),
        E::Ceil { .. } => strong("ceil"),
        E::Floor { .. } => strong("floor"),
        E::Trim { trim_where, .. } => strong(match trim_where {
            Some(ast::TrimWhereField::Leading) => "ltrim",
            Some(ast::TrimWhereField::Trailing) => "rtrim",
            _ => "btrim",
        }),
        E::AtTimeZone { .. } => strong("timezone"),
        E::Array(_) => strong("array"),
        E::BinaryOp { op: ast::BinaryOperator::Overlaps, .. } => strong("overlaps"),
        E::Tuple(_) => strong("row"),
        _ => nothing,
    }
}

fn is_values(select: &ast::Select) -> bool {
    matches!(select.from.as_slice(), [ast::TableWithJoins {
        relation: ast::TableFactor::Derived { subquery, .. },
        joins,
    }] if joins.is_empty() && matches!(*subquery.body, ast::SetExpr::Values(_)))
}

/// The type's own name, without length and dimensions.
fn type_name(ty: &DataType) -> String {
    super::types::shown_name(ty).unwrap_or_else(|| ty.to_string().to_lowercase())
}
