//! What the select list names.
//!
//! # Invariants
//! A column inside an aggregate is not named outside of it.

use super::*;

/// Whether a select item with aggregates also names a column outside of them.
pub(super) fn mixes_columns(select: &ast::Select, scope: &Scope) -> bool {
    use std::ops::ControlFlow;
    struct Outside<'s> {
        scope: &'s Scope,
        depth: usize,
        found: bool,
    }
    impl telesto_sql_parser::sqlparser::ast::Visitor for Outside<'_> {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<()> {
            match expr {
                ast::Expr::Function(f)
                    if telesto_sql_expr::is_aggregate(&f.name.to_string().to_lowercase())
                        || !f.within_group.is_empty() =>
                {
                    self.depth += 1;
                }
                ast::Expr::Identifier(i) if self.depth == 0 => {
                    self.found |= self.scope.resolve(None, &fold(i)).is_ok();
                }
                ast::Expr::CompoundIdentifier(_) if self.depth == 0 => self.found = true,
                _ => {}
            }
            ControlFlow::Continue(())
        }
        fn post_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<()> {
            if let ast::Expr::Function(f) = expr
                && (telesto_sql_expr::is_aggregate(&f.name.to_string().to_lowercase())
                    || !f.within_group.is_empty())
            {
                self.depth -= 1;
            }
            ControlFlow::Continue(())
        }
    }
    let mut visitor = Outside { scope, depth: 0, found: false };
    for item in &select.projection {
        let _ = telesto_sql_parser::sqlparser::ast::Visit::visit(item, &mut visitor);
    }
    visitor.found
}
