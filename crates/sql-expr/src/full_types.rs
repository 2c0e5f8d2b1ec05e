//! Names of users' types in the parser's trees, and with their schemas.
//!
//! # Invariants
//! Every place is visited in which a query or an expression names a type: casts, typed constants,
//! lists of columns behind functions.

use std::ops::ControlFlow;

use super::stored_literals::full_name;
use super::types::{UserTypes, named};
use telesto_sql_parser::sqlparser::ast::{
    ArrayElemTypeDef, DataType, Expr, TableFactor, VisitMut, VisitorMut,
};
use telesto_sql_types::SqlType;

/// Whether the type is, or is made of, one that users make.
fn is_of_users(ty: &SqlType) -> bool {
    match ty {
        SqlType::Enum(_) | SqlType::Composite(_) | SqlType::Domain(_) => true,
        SqlType::Array(element) => is_of_users(element),
        _ => false,
    }
}

fn type_of_text(text: &str) -> Option<DataType> {
    telesto_sql_parser::syntax::read_type(text).ok()
}

/// Calls `edit` with every type that a tree names.
struct Types<F>(F);

impl<F: FnMut(&mut DataType)> VisitorMut for Types<F> {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Cast { data_type, .. } => (self.0)(data_type),
            Expr::TypedString(typed) => (self.0)(&mut typed.data_type),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let alias = match factor {
            TableFactor::Table { alias, .. }
            | TableFactor::Derived { alias, .. }
            | TableFactor::TableFunction { alias, .. }
            | TableFactor::Function { alias, .. }
            | TableFactor::UNNEST { alias, .. }
            | TableFactor::NestedJoin { alias, .. } => alias,
            _ => return ControlFlow::Continue(()),
        };
        let columns = alias.iter_mut().flat_map(|alias| &mut alias.columns);
        columns.filter_map(|column| column.data_type.as_mut()).for_each(&mut self.0);
        ControlFlow::Continue(())
    }
}

/// Calls `edit` with every type that a tree names.
pub fn each_type(tree: &mut impl VisitMut, edit: impl FnMut(&mut DataType)) {
    let _ = tree.visit(&mut Types(edit));
}

/// The type named inside a type name: that of an array's elements.
pub fn innermost(ty: &mut DataType) -> &mut DataType {
    match ty {
        DataType::Array(
            ArrayElemTypeDef::SquareBracket(inner, _)
            | ArrayElemTypeDef::AngleBracket(inner)
            | ArrayElemTypeDef::Parenthesis(inner),
        ) => innermost(inner),
        other => other,
    }
}

/// Gives users' types their schemas.
pub fn qualify_types(tree: &mut impl VisitMut, users: &UserTypes<'_>) {
    each_type(tree, |ty| {
        if let Ok(meant) = named(ty, users)
            && is_of_users(&meant)
            && let Some(full) = type_of_text(&full_name(&meant))
        {
            *ty = full;
        }
    });
}
