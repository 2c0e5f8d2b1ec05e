//! `(row).*` in queries that are stored, written out as the row's fields.
//!
//! ```text
//! SELECT (v).*, id FROM t        SELECT (v).a, (v).b, id FROM t
//! ```
//! # Invariants
//! - A stored query has the fields that the row's type had when it was stored, as in PostgreSQL.
//! - Of which type a row is is told by the binders, which are asked for a field that no type has:
//!   nothing here guesses types.
//!
//! # On failure
//! A star behind what is of no known composite type stays: behind a relation's name it is the
//! relation's (`view_stars`).
//!
//! # Limits
//! Each star costs one binding. Of two types with one name in different schemas and other fields
//! none is taken.

use std::ops::ControlFlow;

use super::Ddl;
use telesto_sql_parser::names::ident;
use telesto_sql_parser::sqlparser::ast::{
    AccessExpr, Expr, Ident, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, VisitMut,
    VisitorMut,
};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{SqlType, interrupt};

/// A field that no type has: the parser's own names begin with this letter (`rewrite/row_star`).
const PROBE: &str = "\u{3}?";

/// Puts fields where one of the stars stands.
struct Fields<'a> {
    /// Which of the stars, in the order in which they are met.
    at: usize,
    names: &'a [String],
    met: usize,
}

impl Fields<'_> {
    /// The query with the star written out; `None`: it has no such star.
    fn put(query: &Query, at: usize, names: &[String]) -> Option<Query> {
        let mut fields = Fields { at, names, met: 0 };
        let mut query = query.clone();
        let _ = VisitMut::visit(&mut query, &mut fields);
        (fields.met > at).then_some(query)
    }
}

/// `(row).name`.
fn field(row: &Expr, name: &str) -> SelectItem {
    let step = AccessExpr::Dot(Expr::Identifier(match name {
        PROBE => Ident::with_quote('"', name),
        name => ident(name),
    }));
    let (root, mut access_chain) = match row {
        Expr::CompoundFieldAccess { root, access_chain } => (root.clone(), access_chain.clone()),
        Expr::Nested(_) => (Box::new(row.clone()), Vec::new()),
        other => (Box::new(Expr::Nested(Box::new(other.clone()))), Vec::new()),
    };
    access_chain.push(step);
    SelectItem::UnnamedExpr(Expr::CompoundFieldAccess { root, access_chain })
}

impl VisitorMut for Fields<'_> {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let mut items = Vec::with_capacity(select.projection.len());
        for item in std::mem::take(&mut select.projection) {
            let SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::Expr(row), _) =
                &item
            else {
                items.push(item);
                continue;
            };
            if self.met == self.at {
                items.extend(self.names.iter().map(|name| field(row, name)));
            } else {
                items.push(item);
            }
            self.met += 1;
        }
        select.projection = items;
        ControlFlow::Continue(())
    }
}

impl Ddl<'_> {
    /// The query with the stars behind rows written out.
    ///
    /// # Errors
    /// 57014 and its kin.
    pub(super) async fn fields_written(&self, query: &Query) -> Result<Query> {
        let (mut query, mut at) = (query.clone(), 0);
        while let Some(probing) = Fields::put(&query, at, &[PROBE.to_owned()]) {
            interrupt::pace().await?;
            let bound = self.view_columns(&probing).await;
            let written = bound
                .err()
                .and_then(|error| self.fields_told(&error))
                .and_then(|names| Fields::put(&query, at, &names));
            match written {
                Some(written) => query = written,
                None => at += 1,
            }
        }
        Ok(query)
    }

    /// The fields of the type that has no field of the probe's name, by the error of it.
    fn fields_told(&self, error: &Error) -> Option<Vec<String>> {
        if error.code() != SqlState::UNDEFINED_COLUMN {
            return None;
        }
        let shown =
            error.message().strip_prefix(&format!("column \"{PROBE}\" not found in data type "))?;
        let catalog = self.catalog();
        let mut found: Option<Vec<String>> = None;
        for ty in catalog.user_types().filter_map(|ty| catalog.composite(ty.oid)) {
            if SqlType::Composite(ty.clone()).to_string() != shown {
                continue;
            }
            let names: Vec<String> = ty.fields.iter().map(|field| field.name.clone()).collect();
            if found.as_ref().is_some_and(|known| *known != names) {
                return None;
            }
            found = Some(names);
        }
        found
    }
}
