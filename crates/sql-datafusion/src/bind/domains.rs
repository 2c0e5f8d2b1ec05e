//! The domain whose value an argument is, for `pg_typeof`: a value has its base type everywhere
//! else.

use datafusion::logical_expr::Expr;
use datafusion::sql::sqlparser::ast;

use super::scope::Scope;
use super::select::origin_of;
use super::{Binder, Typed};
use crate::fault;
use crate::types::scalar;
use telesto_sql_types::error::Result;
use telesto_sql_types::{Datum, SqlType};

impl Binder<'_> {
    /// A call whose arguments are not what they are elsewhere: of whole rows, or `pg_typeof` of a
    /// domain.
    pub(super) fn known_call(
        &self,
        name: &str,
        call: &ast::Function,
        scope: &Scope<'_>,
    ) -> Result<Option<Typed>> {
        let ast::FunctionArguments::List(list) = &call.args else {
            return self.over_rows(name, call, scope);
        };
        if name == "pg_typeof"
            && let [ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument))] =
                &list.args[..]
            && let Some(oid) = self.domain_of(argument, scope)?
        {
            let oid = scalar(&Datum::Oid(oid), &SqlType::RegType)?;
            return Ok(Some(Typed::of(Expr::Literal(oid, None), SqlType::RegType)));
        }
        if name == "pg_typeof"
            && let [ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument))] =
                &list.args[..]
            && self.is_of_table(argument, scope)
        {
            return Err(fault::unsupported("pg_typeof of a table's row")
                .hint("The type is called after the table."));
        }
        self.over_rows(name, call, scope)
    }

    /// The OID of the domain: of a stored table's column, or of a cast.
    fn domain_of(&self, expr: &ast::Expr, scope: &Scope<'_>) -> Result<Option<u32>> {
        Ok(match expr {
            ast::Expr::Nested(inner) => self.domain_of(inner, scope)?,
            ast::Expr::Cast { data_type, .. } => match self.type_named(data_type) {
                Ok(SqlType::Domain(domain)) => Some(domain.oid),
                _ => None,
            },
            ast::Expr::Identifier(_) | ast::Expr::CompoundIdentifier(_) => {
                let typed = self.expr(expr, scope)?;
                let origin = origin_of(&typed.expr, scope);
                origin.and_then(|origin| self.tables.domain_of(origin.table, origin.position))
            }
            _ => None,
        })
    }
}
