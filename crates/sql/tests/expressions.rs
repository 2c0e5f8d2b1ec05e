//! Types and values of expressions, compared with the answers of a real PostgreSQL 15.
//!
//! `tests/data/expressions.expected` is written by `tests/data/regenerate.sh`; pairs of lines: the
//! expression, then `type | value` or `!SQLSTATE`. `tests/data/expressions.differences` lists the
//! expressions whose answer is known to differ, each with the answer given here; an entry that no
//! longer differs fails the test, so the list only shrinks.

use std::collections::BTreeMap;
use std::sync::Arc;

use telesto_sql::catalog::CatalogSnapshot;
use telesto_sql::expr::{Binder, EvalContext, Scope, cast};
use telesto_sql::plan::ParameterTypes;
use telesto_sql::session::Settings;
use telesto_sql::sqlparser::{dialect::PostgreSqlDialect, parser::Parser};

const EXPECTED: &str = include_str!("data/expressions.expected");
const DIFFERENCES: &str = include_str!("data/expressions.differences");

fn answer(text: &str) -> String {
    let parsed = Parser::new(&PostgreSqlDialect {}).try_with_sql(text).and_then(|mut parser| {
        let expr = parser.parse_expr()?;
        parser.expect_token(&telesto_sql::sqlparser::tokenizer::Token::EOF)?;
        Ok(expr)
    });
    let Ok(parsed) = parsed else { return "!42601".to_owned() };
    let catalog = Arc::new(CatalogSnapshot::default());
    let settings = Settings::default();
    let context = EvalContext::planning(&settings, &catalog);
    let scope = Scope::default();
    let mut parameters = ParameterTypes::default();
    let result = (|| {
        let bound = Binder::new(&scope, &mut parameters, &context, "SELECT").bind(&parsed)?;
        let value = bound.eval(&[], &context)?;
        let shown = if value.is_null() {
            "NULL".to_owned()
        } else {
            cast::output(&value, &bound.ty, &context)?
        };
        // pg_typeof shows the SQL name, format_type without a length the internal one.
        let ty = bound.ty.without_modifier().to_string().replace("bpchar", "character");
        Ok::<_, telesto_sql::Error>(format!("{ty} | {shown}"))
    })();
    match result {
        Ok(shown) => shown.replace('\n', "\\n").replace('\t', "\\t"),
        Err(error) => format!("!{}", error.code()),
    }
}

fn pairs(text: &str) -> Vec<(&str, &str)> {
    let mut lines = text.lines();
    let mut out = Vec::new();
    while let (Some(expression), Some(expected)) = (lines.next(), lines.next()) {
        out.push((expression, expected));
    }
    out
}

#[test]
fn expressions_evaluated_give_the_types_and_values_of_postgres() {
    let known: BTreeMap<&str, &str> = pairs(DIFFERENCES).into_iter().collect();
    let mut wrong = Vec::new();
    let all = pairs(EXPECTED);
    assert!(all.len() > 500, "the expected answers are missing");
    for (expression, expected) in all {
        let got = answer(expression);
        match known.get(expression) {
            Some(_) if got == expected => wrong.push(format!("{expression}\n  no longer differs")),
            Some(ours) if got == *ours => {}
            _ if got == expected => {}
            _ => wrong.push(format!("{expression}\n  expected {expected}\n  got      {got}")),
        }
    }
    assert!(wrong.is_empty(), "{} expressions differ:\n{}", wrong.len(), wrong.join("\n"));
}
