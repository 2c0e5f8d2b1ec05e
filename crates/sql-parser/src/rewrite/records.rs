//! `json_to_record` and its kin in FROM, written as subqueries, right after parsing.
//!
//! `jsonb_to_recordset(x) AS t(a int, b text)` is
//! `LATERAL (SELECT CAST(e ->> 'a' AS int) AS a, CAST(e ->> 'b' AS text) AS b FROM jsonb_array_elements(x) AS …(e)) AS t`:
//! the list of columns says what the result is, and no function of the registry could.
//!
//! # Invariants
//! A field that is missing or JSON's null is NULL; JSON's arrays become arrays; what is no object
//! is refused (22023), as in PostgreSQL.
//!
//! # On failure
//! 42601 for a call without types of its columns, and for types on what has columns of its own;
//! 42701 for a column twice.

use std::ops::ControlFlow;

use crate::names::fold;
use crate::sqlparser::ast::{
    ArrayElemTypeDef, CharacterLength, DataType, Expr, FunctionArg, FunctionArgExpr,
    FunctionArguments, Ident, ObjectName, SetExpr, Statement, TableAlias, TableFactor, VisitMut,
    VisitorMut,
};
use crate::sqlparser::parser::ParserError;
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result, SqlState};

/// What is said of a list of columns behind another function.
const ONLY_RECORDS: &str =
    "a column definition list is only allowed for functions returning \"record\"";

/// Whether a statement may call one of these.
pub fn is_in(tokens: &[TokenWithSpan]) -> bool {
    tokens.iter().any(|token| match &token.token {
        Token::Word(word) => called(&word.value.to_ascii_lowercase()).is_some(),
        _ => false,
    })
}

/// The type of JSON, and whether it is a set, of a function of these.
fn called(name: &str) -> Option<(&'static str, bool)> {
    Some(match name {
        "json_to_record" => ("json", false),
        "jsonb_to_record" => ("jsonb", false),
        "json_to_recordset" => ("json", true),
        "jsonb_to_recordset" => ("jsonb", true),
        _ => return None,
    })
}

/// Rewrites the calls of a statement.
///
/// # Errors
/// See the module.
pub fn rewrite(statement: &mut Statement) -> Result<()> {
    struct Calls;
    impl VisitorMut for Calls {
        type Break = Error;

        fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
            match rewritten(factor) {
                Ok(None) => ControlFlow::Continue(()),
                Ok(Some(subquery)) => {
                    *factor = subquery;
                    ControlFlow::Continue(())
                }
                Err(error) => ControlFlow::Break(error),
            }
        }
    }
    match VisitMut::visit(statement, &mut Calls) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// The call a FROM item is.
fn call(factor: &TableFactor) -> Option<(&ObjectName, &[FunctionArg], Option<&TableAlias>)> {
    match factor {
        TableFactor::Table { name, args: Some(args), alias, .. } => {
            Some((name, &args.args, alias.as_ref()))
        }
        TableFactor::Function { name, args, alias, .. } => Some((name, args, alias.as_ref())),
        _ => None,
    }
}

fn rewritten(factor: &TableFactor) -> Result<Option<TableFactor>> {
    let Some((name, args, alias)) = call(factor) else { return Ok(None) };
    let function = name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default();
    let Some((json, set)) = called(&function) else { return Ok(None) };
    let [FunctionArg::Unnamed(FunctionArgExpr::Expr(document))] = args else { return Ok(None) };
    let listed = "a column definition list is required for functions returning \"record\"";
    let alias = alias.ok_or_else(|| Error::syntax(listed))?;
    let columns = alias
        .columns
        .iter()
        .map(|column| {
            let ty = column.data_type.as_ref().ok_or_else(|| Error::syntax(listed))?;
            Ok(format!("{} AS {}", field(json, &fold(&column.name), ty), column.name))
        })
        .collect::<Result<Vec<_>>>()?;
    if columns.is_empty() {
        return Err(Error::syntax(listed));
    }
    listed_once(alias.columns.iter().map(|column| &column.name))?;
    let elements = elements(json, set, &function, document);
    let sql = format!(
        "SELECT 1 FROM LATERAL (SELECT {} FROM ({elements}) AS \"r#\") AS {}",
        columns.join(", "),
        alias.name
    );
    // What is joined from parts that were parsed parses again.
    let unreadable = |_| Error::syntax(format!("syntax error at or near \"{function}\""));
    let mut parsed = crate::syntax::read(&sql, |parser| parser.parse_query())
        .map_err(|unread| unread.or_else(unreadable))?;
    let SetExpr::Select(select) = &mut *parsed.body else { return Ok(None) };
    Ok(select.from.pop().map(|from| from.relation))
}

/// The call and its list of columns, `(name type, …)`, of `ROWS FROM` as pairs of a name and a
/// call, one a column.
///
/// # Errors
/// 42601 for what is no list of columns, and for a function that takes none.
pub(super) fn item(call: &[TokenWithSpan], columns: &[TokenWithSpan]) -> Result<String> {
    let unreadable = |error: &ParserError| crate::parse::syntax_error("", error);
    let mut parser = crate::syntax::parser(call.to_vec(), false);
    let call = parser.parse_expr().map_err(|error| unreadable(&error))?;
    let Expr::Function(call) = call else {
        return Err(Error::syntax(format!("syntax error at or near \"{call}\"")));
    };
    let mut parser = crate::syntax::parser(columns.to_vec(), false);
    let mut read = || {
        parser.expect_token(&Token::LParen)?;
        let columns = parser.parse_comma_separated(|parser| {
            Ok((parser.parse_identifier()?, parser.parse_data_type()?))
        })?;
        parser.expect_token(&Token::RParen)?;
        parser.expect_token(&Token::EOF)?;
        Ok(columns)
    };
    let columns: Vec<(Ident, DataType)> = read().map_err(|error| unreadable(&error))?;
    listed_once(columns.iter().map(|(name, _)| name))?;
    let function = call.name.0.last().and_then(|part| part.as_ident()).map(fold);
    let function = function.unwrap_or_default();
    let (Some((json, set)), FunctionArguments::List(list)) = (called(&function), &call.args) else {
        return Err(Error::syntax(ONLY_RECORDS));
    };
    let [FunctionArg::Unnamed(FunctionArgExpr::Expr(document))] = list.args.as_slice() else {
        return Err(Error::syntax(ONLY_RECORDS));
    };
    if columns.iter().any(|(_, ty)| matches!(ty, DataType::Array(_))) {
        // One list a column is what the call becomes, and a list of arrays is one of their
        // elements.
        return Err(Error::unsupported("an array among the columns of a function in ROWS FROM")
            .hint("Name the function in FROM by itself."));
    }
    let elements = elements(json, set, &function, document);
    let pairs = columns.iter().map(|(name, ty)| {
        let name = fold(name);
        format!(
            "('{}', unnest(ARRAY(SELECT {} FROM ({elements}) AS \"r#\")))",
            name.replace('\'', "''"),
            field(json, &name, ty)
        )
    });
    Ok(pairs.collect::<Vec<_>>().join(", "))
}

/// Refuses a name that a list of columns has twice.
fn listed_once<'i>(names: impl Iterator<Item = &'i Ident>) -> Result<()> {
    let mut known: Vec<String> = Vec::new();
    for name in names.map(fold) {
        if known.contains(&name) {
            return Err(Error::new(
                SqlState::DUPLICATE_COLUMN,
                format!("column name \"{name}\" specified more than once"),
            ));
        }
        known.push(name);
    }
    Ok(())
}

/// A query of the objects that become rows, `e#`.
fn elements(json: &str, set: bool, function: &str, document: &Expr) -> String {
    if set {
        format!(
            "SELECT \"json#object\"(\"e#\", '{function}') AS \"e#\" \
             FROM {json}_array_elements({document}) AS \"s#\"(\"e#\")"
        )
    } else {
        format!("SELECT \"json#object\"(CAST({document} AS {json}), '{function}') AS \"e#\"")
    }
}

/// A field of `e#` as a value of type `ty`.
fn field(json: &str, name: &str, ty: &DataType) -> String {
    let key = format!("'{}'", name.replace('\'', "''"));
    let part = format!("(\"r#\".\"e#\" -> {key})");
    let text = format!("(\"r#\".\"e#\" ->> {key})");
    match ty {
        DataType::JSON | DataType::JSONB => {
            format!(
                "CASE {json}_typeof({part}) WHEN 'null' THEN NULL ELSE CAST({part} AS {ty}) END"
            )
        }
        DataType::Array(ArrayElemTypeDef::SquareBracket(element, _)) => format!(
            "CASE WHEN \"json#nested\"({part}, {}) IS NOT NULL \
             THEN CAST(\"json#nested\"({part}, {0}) AS {ty}) \
             WHEN {json}_typeof({part}) = 'array' THEN ARRAY(SELECT CAST({} AS {element}) \
             FROM {json}_array_elements_text(\"json#list\"({part})) AS \"a#\"(\"v#\")) \
             ELSE CAST({text} AS {ty}) END",
            matches!(**element, DataType::JSON | DataType::JSONB),
            fitting("\"v#\"", element)
        ),
        ty => format!("CAST({} AS {ty})", fitting(&text, ty)),
    }
}

/// `text` for a cast to `ty` that refuses what is too long for it, as an assignment does.
fn fitting(text: &str, ty: &DataType) -> String {
    match ty {
        DataType::Varchar(Some(CharacterLength::IntegerLength { length, .. }))
        | DataType::CharacterVarying(Some(CharacterLength::IntegerLength { length, .. })) => {
            format!("\"text#fit\"({text}, {length}, 'character varying')")
        }
        DataType::Char(Some(CharacterLength::IntegerLength { length, .. }))
        | DataType::Character(Some(CharacterLength::IntegerLength { length, .. })) => {
            format!("\"text#fit\"({text}, {length}, 'character')")
        }
        DataType::Char(None) | DataType::Character(None) => {
            format!("\"text#fit\"({text}, 1, 'character')")
        }
        _ => text.to_owned(),
    }
}
