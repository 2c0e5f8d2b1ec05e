//! Whole statements.

use datafusion::sql::sqlparser::ast;

use super::Binder;
use super::scope::Relation;
use telesto_sql_types::SqlType;
use telesto_sql_types::error::Result;

impl Binder<'_> {
    /// A whole statement.
    ///
    /// Untyped literals and parameters in the select list take the types `wanted`, by position;
    /// without one, text.
    pub(crate) fn statement(&self, query: &ast::Query, wanted: &[SqlType]) -> Result<Relation> {
        self.wanted.replace(wanted.to_vec());
        self.query(query, None)
    }
}
