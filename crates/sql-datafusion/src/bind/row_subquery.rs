//! A row that is compared with the row of a subquery: `(a, b) = (SELECT x, y …)`.
//!
//! ```text
//! (a, b) = (SELECT x, y FROM t)   ─>   (SELECT (a, b) = ("row#1", "row#2") FROM (SELECT x, y FROM t) "row#" ("row#1", "row#2"))
//! ```
//!
//! # Invariants
//! The subquery is computed once. Without a row in it the comparison is NULL; with more than one it is 21000.

use datafusion::sql::sqlparser::ast::{self, Ident};

use super::scope::Scope;
use super::{Binder, Typed};
use crate::fault;
use telesto_sql_expr::row_of;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// The comparison of a row with a subquery; `None`: it is none.
    pub(super) fn row_and_subquery(
        &self,
        left: &ast::Expr,
        op: &ast::BinaryOperator,
        right: &ast::Expr,
        scope: &Scope<'_>,
    ) -> Result<Option<Typed>> {
        let (Some(row), ast::Expr::Subquery(query)) = (row_of(left), right) else {
            return Ok(None);
        };
        // Its width is asked for before anything is compared.
        self.as_wide(row.len(), query, scope)?;
        let names: Vec<Ident> = (1..=row.len()).map(|n| quoted(&format!("row#{n}"))).collect();
        let columns = names.iter().cloned().map(ast::Expr::Identifier).collect();
        let text = format!(
            "SELECT {left} {op} {} FROM ({query}) AS {} ({})",
            ast::Expr::Tuple(columns),
            quoted("row#"),
            names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        );
        let rewritten = telesto_sql_parser::syntax::read_query(&text).map_err(|unread| {
            unread.or_else(|error| fault::syntax(&format!("a row and a subquery: {error}")))
        })?;
        self.scalar_subquery(&rewritten, scope).map(Some)
    }

    /// Refuses a subquery that has more or fewer columns than the `width` values beside it.
    pub(super) fn as_wide(
        &self,
        width: usize,
        query: &ast::Query,
        scope: &Scope<'_>,
    ) -> Result<()> {
        // What is bound in between does not stand where the comparison stands.
        let place = self.place.take();
        let columns = self.query(query, Some(scope))?.columns.len();
        self.place.set(place);
        if columns == width {
            return Ok(());
        }
        let few = if columns < width { "few" } else { "many" };
        Err(fault::syntax(&format!("subquery has too {few} columns")))
    }
}

fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}
