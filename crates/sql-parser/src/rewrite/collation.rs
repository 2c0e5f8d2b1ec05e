//! Orders by Unicode's collation: `ORDER BY name COLLATE "und-x-icu"` sorts by what [`KEY`] makes
//! of the text.
//!
//! ```text
//! ORDER BY e COLLATE "de-x-icu"            ORDER BY "collation_key#"(e, 'de')         also of windows, aggregates and indexes
//! a COLLATE "de-x-icu" < b                 "collation_key#"(a, 'de') < "collation_key#"(b, 'de')      also > <= >=, and BETWEEN of such a text
//! a COLLATE "de-x-icu" = b                 a = b          collations are deterministic: only the same text is equal
//! ```
//! # Invariants
//! - A key ends with the text: no two texts have one, and texts that the collation does not tell
//!   apart are in the order of their bytes.
//!
//! # On failure
//! 42704 for a collation that does not exist, 42P21 for two in one comparison. Elsewhere than above
//! such a collation would have an effect that nothing here gives it: whoever binds it refuses it
//! (0A000).

use std::ops::ControlFlow;

use crate::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentClause,
    FunctionArguments, Ident, ObjectName, ObjectNamePart, OrderByExpr, OrderByKind, Query, Select,
    Statement, Value, VisitMut, VisitorMut, WindowSpec, WindowType,
};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result, SqlState};

/// The function that makes a key of a text and a language.
pub const KEY: &str = "collation_key#";
/// At the end of the names of Unicode's collations.
const UNICODE: &str = "-x-icu";
/// Languages that have a collation of PostgreSQL's; `und`: none, Unicode's root. A script and a
/// country may follow (`zh-Hans-CN`).
const LANGUAGES: &[&str] = &[
    "und", "af", "am", "ar", "as", "az", "be", "bg", "bn", "bs", "ca", "cs", "cy", "da", "de",
    "el", "en", "es", "et", "eu", "fa", "fi", "fil", "fr", "ga", "gl", "gu", "ha", "he", "hi",
    "hr", "hu", "hy", "id", "ig", "is", "it", "ja", "ka", "kk", "km", "kn", "ko", "lb", "lo", "lt",
    "lv", "mk", "ml", "mn", "mr", "ms", "mt", "my", "nb", "ne", "nl", "nn", "no", "or", "pa", "pl",
    "ps", "pt", "ro", "ru", "si", "sk", "sl", "sq", "sr", "sv", "sw", "ta", "te", "th", "tk", "to",
    "tr", "ug", "uk", "ur", "uz", "vi", "yi", "yo", "zh", "zu",
];

/// How texts are sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Collation {
    /// By their bytes.
    Bytes,
    /// By Unicode's collation of a language (`und`: of none).
    Unicode(String),
}

/// Whether there is a collation of that language, which a script (four letters) and a country (two
/// letters or three digits) may follow.
#[must_use]
pub fn is_language(tag: &str) -> bool {
    let mut parts = tag.split('-').peekable();
    if !parts.next().is_some_and(|language| LANGUAGES.contains(&language)) {
        return false;
    }
    let letters = |part: &&str, count: usize| {
        part.len() == count && part.chars().all(|c| c.is_ascii_alphabetic())
    };
    parts.next_if(|part| letters(part, 4));
    let digits = |part: &&str| part.len() == 3 && part.chars().all(|c| c.is_ascii_digit());
    parts.next_if(|part| letters(part, 2) || digits(part));
    parts.next().is_none()
}

/// The collation of that name.
///
/// # Errors
/// 42704 for one that does not exist, 0A000 for one of an operating system's.
pub fn named(name: &ObjectName) -> Result<Collation> {
    let parts: Vec<String> =
        name.0.iter().filter_map(|part| part.as_ident()).map(crate::names::fold).collect();
    let called = match &parts[..] {
        [called] => called,
        [schema, called] if schema == "pg_catalog" => called,
        _ => return Err(missing(&name.to_string())),
    };
    match called.as_str() {
        "C" | "POSIX" | "default" | "ucs_basic" | "C.UTF-8" | "C.utf8" => {
            return Ok(Collation::Bytes);
        }
        _ => {}
    }
    if let Some(tag) = called.strip_suffix(UNICODE).filter(|tag| is_language(tag)) {
        return Ok(Collation::Unicode(tag.to_owned()));
    }
    if called.contains(['_', '.']) {
        return Err(Error::unsupported(format!("collation \"{called}\""))
            .hint("Use \"C\", or one of Unicode's such as \"und-x-icu\"."));
    }
    Err(missing(called))
}

/// Checks the collation of a column, a field or a domain.
///
/// # Errors
/// 42704; 0A000 for one that does not sort by bytes.
pub fn check_of_column(name: &ObjectName) -> Result<()> {
    match named(name)? {
        Collation::Bytes => Ok(()),
        Collation::Unicode(_) => Err(Error::unsupported(format!("collation {name} of a column"))
            .hint("Write it where it matters: ORDER BY column COLLATE …, and in an index.")),
    }
}

/// The names of Unicode's collations.
pub fn unicode_names() -> impl Iterator<Item = (String, &'static str)> {
    LANGUAGES.iter().map(|language| (format!("{language}{UNICODE}"), *language))
}

fn missing(name: &str) -> Error {
    Error::new(
        SqlState::UNDEFINED_OBJECT,
        format!("collation \"{name}\" for encoding \"UTF8\" does not exist"),
    )
}

/// Whether the text names a collation.
pub fn is_in(tokens: &[TokenWithSpan]) -> bool {
    tokens.iter().any(|token| {
        matches!(&token.token, Token::Word(word) if word.quote_style.is_none()
            && word.value.eq_ignore_ascii_case("collate"))
    })
}

/// Gives Unicode's collations in `statement` their effect.
///
/// # Errors
/// 42704, 42P21.
pub fn rewrite(statement: &mut Statement) -> Result<()> {
    if let Statement::CreateIndex(create) = statement {
        for column in &mut create.columns {
            keyed(&mut column.column)?;
        }
    }
    match statement.visit(&mut Orders) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// A stored expression or query as it was written: with collations in the place of keys.
pub fn restore(written: &mut impl VisitMut) {
    let _ = written.visit(&mut Shown);
}

/// The text of a stored expression as it was written.
#[must_use]
pub fn shown(stored: &str) -> String {
    if !stored.contains(KEY) {
        return stored.to_owned();
    }
    crate::stored::parse_stored(stored).map_or_else(
        |_| stored.to_owned(),
        |mut written| {
            restore(&mut written);
            written.to_string()
        },
    )
}

struct Shown;

impl VisitorMut for Shown {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr
            && let [ObjectNamePart::Identifier(name)] = &function.name.0[..]
            && name.value == KEY
            && let FunctionArguments::List(list) = &function.args
            && let [
                FunctionArg::Unnamed(FunctionArgExpr::Expr(text)),
                FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(language))),
            ] = &list.args[..]
            && let Value::SingleQuotedString(language) = &language.value
        {
            let name = Ident::with_quote('"', format!("{language}{UNICODE}"));
            *expr = Expr::Collate {
                expr: Box::new(text.clone()),
                collation: ObjectName::from(vec![name]),
            };
        }
        ControlFlow::Continue(())
    }
}

/// What an expression is collated by, and the expression without it; `None`: it says nothing.
fn collated(expr: &Expr) -> Result<Option<(Collation, &Expr)>> {
    match expr {
        Expr::Nested(inner) => collated(inner),
        Expr::Collate { expr, collation } => Ok(Some((named(collation)?, expr))),
        _ => Ok(None),
    }
}

fn key_of(expr: Expr, language: &str) -> Expr {
    let language = Expr::Value(Value::SingleQuotedString(language.to_owned()).with_empty_span());
    let args = [expr, language].map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)));
    let mut function = super::constructs::call(KEY, args.into());
    function.name = ObjectName::from(vec![Ident::with_quote('"', KEY)]);
    Expr::Function(function)
}

/// An item of an order.
fn keyed(item: &mut OrderByExpr) -> Result<()> {
    if let Some((Collation::Unicode(language), expr)) = collated(&item.expr)? {
        item.expr = key_of(expr.clone(), &language);
    }
    Ok(())
}

fn all_keyed(items: &mut [OrderByExpr]) -> Result<()> {
    items.iter_mut().try_for_each(keyed)
}

fn window_keyed(window: &mut WindowSpec) -> Result<()> {
    all_keyed(&mut window.order_by)
}

fn function_keyed(function: &mut Function) -> Result<()> {
    if let Some(WindowType::WindowSpec(window)) = &mut function.over {
        window_keyed(window)?;
    }
    // Not WITHIN GROUP, whose order is what such an aggregate gives back.
    let FunctionArguments::List(list) = &mut function.args else { return Ok(()) };
    for clause in &mut list.clauses {
        if let FunctionArgumentClause::OrderBy(items) = clause {
            all_keyed(items)?;
        }
    }
    Ok(())
}

/// The sides of a comparison, which has one collation; `ordered`: it asks for more than equality.
fn compared(sides: &mut [&mut Expr], ordered: bool) -> Result<()> {
    let mut found: Option<(Collation, String)> = None;
    for side in sides.iter() {
        if let Expr::Collate { collation, .. } = plain(side) {
            let own = named(collation)?;
            match &found {
                Some((other, name)) if *other != own => {
                    let own = collation.to_string().replace('"', "");
                    return Err(Error::new(
                        SqlState::COLLATION_MISMATCH,
                        format!(
                            "collation mismatch between explicit collations \"{name}\" and \"{own}\""
                        ),
                    ));
                }
                _ => found = Some((own, collation.to_string().replace('"', ""))),
            }
        }
    }
    let Some((Collation::Unicode(language), _)) = found else { return Ok(()) };
    for side in sides {
        let inner = match collated(side)? {
            Some((_, inner)) => inner.clone(),
            None => (**side).clone(),
        };
        **side = if ordered { key_of(inner, &language) } else { inner };
    }
    Ok(())
}

fn plain(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(inner) => plain(inner),
        other => other,
    }
}

fn expression(expr: &mut Expr) -> Result<()> {
    match expr {
        Expr::BinaryOp { left, op, right } => {
            let ordered = match op {
                BinaryOperator::Lt
                | BinaryOperator::LtEq
                | BinaryOperator::Gt
                | BinaryOperator::GtEq => true,
                BinaryOperator::Eq | BinaryOperator::NotEq => false,
                _ => return Ok(()),
            };
            compared(&mut [left, right], ordered)
        }
        // Else each bound has a comparison of its own, with or without a collation.
        Expr::Between { expr, low, high, .. } if matches!(plain(expr), Expr::Collate { .. }) => {
            compared(&mut [expr, low, high], true)
        }
        Expr::IsDistinctFrom(left, right) | Expr::IsNotDistinctFrom(left, right) => {
            compared(&mut [left, right], false)
        }
        Expr::Function(function) => function_keyed(function),
        _ => Ok(()),
    }
}

struct Orders;

fn flow(result: Result<()>) -> ControlFlow<Error> {
    match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    }
}

impl VisitorMut for Orders {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        match query.order_by.as_mut().map(|order| &mut order.kind) {
            Some(OrderByKind::Expressions(items)) => flow(all_keyed(items)),
            Some(OrderByKind::All(_)) | None => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        for window in &mut select.named_window {
            if let crate::sqlparser::ast::NamedWindowExpr::WindowSpec(window) = &mut window.1 {
                match window_keyed(window) {
                    Ok(()) => {}
                    Err(error) => return ControlFlow::Break(error),
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        flow(expression(expr))
    }
}
