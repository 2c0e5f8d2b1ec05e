//! Functions that stand as FROM items: one, or several side by side (`ROWS FROM`).

use datafusion::sql::sqlparser::ast;

use super::scope::fold;
use crate::fault;
use telesto_sql_expr::output_name;
use telesto_sql_parser::rewrite::calls_in_from::is_word_call;
use telesto_sql_parser::rewrite::rows_from::RowsFrom;
use telesto_sql_parser::rewrite::variadic;
use telesto_sql_types::error::{Error, Result};

/// One call.
pub(super) struct Call<'a> {
    pub name: String,
    pub args: Vec<&'a ast::Expr>,
    /// What its only column is called, where that is said.
    pub column: Option<&'a str>,
    /// Its only argument is all of it: it has a syntax of its own.
    pub whole: bool,
}

impl Call<'_> {
    /// The function's name as it is shown.
    pub(super) fn shown(&self) -> &str {
        variadic::plain_name(&self.name).unwrap_or(&self.name)
    }
}

/// The calls of a FROM item.
pub(super) struct TableCall<'a> {
    pub calls: Vec<Call<'a>>,
    pub alias: Option<&'a ast::TableAlias>,
    pub ordinality: bool,
}

impl<'a> TableCall<'a> {
    /// Only `json_to_record` and its kin are told their columns' types, and those are written
    /// otherwise by now.
    pub(super) fn has_columns_of_its_own(&self) -> Result<()> {
        let columns = self.alias.map_or(&[][..], |alias| &alias.columns);
        if columns.iter().any(|column| column.data_type.is_some()) {
            return Err(fault::syntax(
                "a column definition list is only allowed for functions returning \"record\"",
            ));
        }
        Ok(())
    }

    /// Refuses more names than there are columns.
    pub(super) fn names_at_most(&self, columns: usize) -> Result<()> {
        let names = self.alias.map_or(0, |alias| alias.columns.len());
        if names > columns {
            return Err(fault::new(
                "42P10",
                format!(
                    "table \"{}\" has {columns} columns available but {names} columns specified",
                    self.shown()
                ),
            ));
        }
        Ok(())
    }

    /// What the item is called: after the first function where it has no alias.
    pub(super) fn shown(&self) -> String {
        match (self.alias, self.calls.first()) {
            (Some(alias), _) => fold(&alias.name),
            (None, first) => first.map_or("", Call::shown).to_owned(),
        }
    }

    /// The calls of a FROM item; `None`: it is of another kind.
    pub(super) fn of(factor: &'a ast::TableFactor) -> Option<Self> {
        let one = |name: String, args: Vec<&'a ast::Expr>| {
            vec![Call { name, args, column: None, whole: false }]
        };
        match factor {
            ast::TableFactor::Table { name, alias, args: Some(args), with_ordinality, .. } => {
                Some(Self {
                    calls: one(last(name)?, plain(&args.args)?),
                    alias: alias.as_ref(),
                    ordinality: *with_ordinality,
                })
            }
            ast::TableFactor::Function { name, args, alias, with_ordinality, .. } => Some(Self {
                calls: one(last(name)?, plain(args)?),
                alias: alias.as_ref(),
                ordinality: *with_ordinality,
            }),
            ast::TableFactor::UNNEST { alias, array_exprs, with_ordinality, .. } => Some(Self {
                calls: one("unnest".to_owned(), array_exprs.iter().collect()),
                alias: alias.as_ref(),
                ordinality: *with_ordinality,
            }),
            ast::TableFactor::TableFunction { expr, alias } => {
                let rows = RowsFrom::of(expr)?;
                let calls = rows.calls.into_iter().map(|(column, call)| called(call, column));
                Some(Self {
                    calls: calls.collect::<Option<_>>()?,
                    alias: alias.as_ref(),
                    ordinality: rows.ordinality,
                })
            }
            _ => None,
        }
    }
}

fn last(name: &ast::ObjectName) -> Option<String> {
    name.0.last().and_then(|part| part.as_ident()).map(fold)
}

fn plain(args: &[ast::FunctionArg]) -> Option<Vec<&ast::Expr>> {
    args.iter()
        .map(|arg| match arg {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => Some(expr),
            _ => None,
        })
        .collect()
}

/// A call of `ROWS FROM`: nothing but a name and arguments, or one with a syntax of its own.
fn called<'a>(expr: &'a ast::Expr, column: Option<&'a str>) -> Option<Call<'a>> {
    use ast::Expr as E;
    let whole = || Some(Call { name: output_name(expr), args: vec![expr], column, whole: true });
    let call = match expr {
        E::Function(call) => call,
        E::Cast { .. }
        | E::Extract { .. }
        | E::Position { .. }
        | E::Substring { .. }
        | E::Trim { .. }
        | E::Overlay { .. }
        | E::Ceil { .. }
        | E::Floor { .. } => return whole(),
        E::Identifier(name) if name.quote_style.is_none() && is_word_call(&fold(name)) => {
            return whole();
        }
        _ => return None,
    };
    let own_syntax = ["coalesce", "nullif", "greatest", "least"];
    let name = last(&call.name)?;
    if own_syntax.contains(&name.as_str()) || is_word_call(&name) {
        return whole();
    }
    let args: &[ast::FunctionArg] = match &call.args {
        ast::FunctionArguments::List(list)
            if list.duplicate_treatment.is_none() && list.clauses.is_empty() =>
        {
            &list.args
        }
        _ => return None,
    };
    if call.over.is_some() || call.filter.is_some() || !call.within_group.is_empty() {
        return None;
    }
    Some(Call { name, args: plain(args)?, column, whole: false })
}

/// The item as a subquery that refers to what stands left of it.
///
/// # Errors
/// 54001.
pub(super) fn as_subquery(
    factor: &ast::TableFactor,
    call: &TableCall<'_>,
) -> Result<ast::TableFactor> {
    let unreadable =
        |error| Error::internal(format!("a call in FROM does not parse again: {error}"));
    let subquery = telesto_sql_parser::syntax::read_query(&format!("SELECT * FROM {factor}"))
        .map_err(|unread| unread.or_else(unreadable))?;
    Ok(ast::TableFactor::Derived {
        lateral: true,
        subquery: Box::new(subquery),
        alias: Some(ast::TableAlias {
            explicit: true,
            name: telesto_sql_parser::names::ident(&call.shown()),
            columns: Vec::new(),
            at: None,
        }),
        sample: None,
    })
}
