//! `ROWS FROM (f(…), g(…) AS (columns)) [WITH ORDINALITY]`, which the parser does not know, and the
//! node that carries it.
//!
//! ```text
//! ROWS FROM (f(a), g(b)) WITH ORDINALITY AS t   ->   TABLE ((true, f(a), g(b))) AS t
//! json_to_recordset(x) AS (n int, …)            ->   ('n', unnest(ARRAY(SELECT …))), …   one pair a column
//! ```
//!
//! # Invariants
//! `TABLE (…)` in FROM is no SQL of PostgreSQL: where a client writes it, it is refused, so that
//! the parser's node for it is this module's own. [`RowsFrom::of`] reads the node, [`restore`]
//! gives it the form in which it was written.
//!
//! # On failure
//! 42601.
//!
//! # Limits
//! A function with a list of its columns is shown, in a view, as the calls of `unnest` that it is
//! executed as.

use std::ops::ControlFlow;

use crate::names::{fold, ident};
use crate::sqlparser::ast::{
    Expr, Ident, ObjectName, Query, TableAlias, TableAliasColumnDef, TableFactor, Value, VisitMut,
    VisitorMut,
};
use crate::sqlparser::keywords::Keyword;
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result};

/// What the node holds.
pub struct RowsFrom<'a> {
    /// Whether it is WITH ORDINALITY.
    pub ordinality: bool,
    /// The calls; with a name where the call's only column has one of its own.
    pub calls: Vec<(Option<&'a str>, &'a Expr)>,
}

impl<'a> RowsFrom<'a> {
    /// Reads the expression of a node; `None`: it is not of this module.
    #[must_use]
    pub fn of(expr: &'a Expr) -> Option<Self> {
        let Expr::Tuple(parts) = expr else { return None };
        let [Expr::Value(ordinality), calls @ ..] = parts.as_slice() else { return None };
        let Value::Boolean(ordinality) = ordinality.value else { return None };
        let call = |part: &'a Expr| match part {
            Expr::Tuple(named) => match named.as_slice() {
                [Expr::Value(name), call] => match &name.value {
                    Value::SingleQuotedString(name) => Some((Some(name.as_str()), call)),
                    _ => None,
                },
                _ => None,
            },
            call => Some((None, call)),
        };
        Some(Self { ordinality, calls: calls.iter().map(call).collect::<Option<_>>()? })
    }
}

fn keyword(token: Option<&Token>) -> Keyword {
    match token {
        Some(Token::Word(word)) if word.quote_style.is_none() => word.keyword,
        _ => Keyword::NoKeyword,
    }
}

/// Where the words are that begin such an item, and the parenthesis behind them.
struct Found {
    begins: usize,
    open: usize,
}

/// Writes the items of a statement as the parser can read them; `kept`: the text is not a client's,
/// and may have the node.
///
/// # Errors
/// See the module.
pub fn spell(tokens: &mut Vec<TokenWithSpan>, kept: bool) -> Result<()> {
    let has = |word: Keyword| tokens.iter().any(|token| keyword(Some(&token.token)) == word);
    let rows = has(Keyword::ROWS);
    if has(Keyword::TABLE)
        && !kept
        && let Some(found) = find(tokens, Keyword::TABLE)
    {
        return wrong(Some(&tokens[found.begins].token));
    }
    // The last is the first, so that what stands inside of another one is written before it.
    while rows && let Some(found) = find(tokens, Keyword::ROWS) {
        write(tokens, &found)?;
    }
    Ok(())
}

/// The last item of a statement that begins with a word: `ROWS FROM (` or `TABLE (`.
fn find(tokens: &[TokenWithSpan], wanted: Keyword) -> Option<Found> {
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let token = |nth: usize| solid.get(nth).map(|at| &tokens[*at].token);
    let word = |nth: usize| keyword(token(nth));
    // Whether each level of parentheses is in a FROM.
    let mut levels = vec![false];
    let mut last = None;
    for nth in 0..solid.len() {
        let before = nth.checked_sub(1);
        let begins = levels.last() == Some(&true)
            && match before.and_then(token) {
                Some(Token::Comma | Token::LParen) => true,
                before => matches!(
                    keyword(before),
                    Keyword::FROM | Keyword::JOIN | Keyword::LATERAL | Keyword::USING
                ),
            };
        match token(nth) {
            Some(Token::LParen) => levels.push(begins),
            Some(Token::RParen) if levels.len() > 1 => drop(levels.pop()),
            Some(other) => {
                let level = levels.last_mut();
                let from = match keyword(Some(other)) {
                    Keyword::FROM | Keyword::USING => before.map(word) != Some(Keyword::DISTINCT),
                    Keyword::SELECT
                    | Keyword::WHERE
                    | Keyword::GROUP
                    | Keyword::ORDER
                    | Keyword::HAVING
                    | Keyword::RETURNING
                    | Keyword::SET
                    | Keyword::VALUES => false,
                    _ => level.as_deref().copied().unwrap_or_default(),
                };
                if let Some(level) = level {
                    *level = from;
                }
            }
            None => {}
        }
        let open = nth + if wanted == Keyword::ROWS { 2 } else { 1 };
        let is_call = begins
            && word(nth) == wanted
            && (wanted != Keyword::ROWS || word(nth + 1) == Keyword::FROM)
            && token(open) == Some(&Token::LParen);
        if is_call {
            last = Some(Found { begins: solid[nth], open: solid[open] });
        }
    }
    last
}

fn wrong<T>(token: Option<&Token>) -> Result<T> {
    Err(Error::syntax(match token {
        Some(token) => format!("syntax error at or near \"{token}\""),
        None => "syntax error at end of input".to_owned(),
    }))
}

fn write(tokens: &mut Vec<TokenWithSpan>, found: &Found) -> Result<()> {
    let mut depth = 0_usize;
    let mut items: Vec<Vec<TokenWithSpan>> = vec![Vec::new()];
    let mut close = None;
    for (at, token) in tokens.iter().enumerate().skip(found.open) {
        match &token.token {
            Token::Whitespace(_) => continue,
            Token::LParen | Token::LBracket => depth += 1,
            Token::RParen | Token::RBracket => depth = depth.saturating_sub(1),
            Token::Comma if depth == 1 => {
                items.push(Vec::new());
                continue;
            }
            _ => {}
        }
        if depth == 0 {
            close = Some(at);
            break;
        }
        if at > found.open
            && let Some(item) = items.last_mut()
        {
            item.push(token.clone());
        }
    }
    let Some(close) = close else { return wrong(None) };
    let mut solid =
        (close + 1..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_)));
    let (with, numbered) = (solid.next(), solid.next());
    let word = |at: Option<usize>| keyword(at.map(|at| &tokens[at].token));
    let ordinality = word(with) == Keyword::WITH && word(numbered) == Keyword::ORDINALITY;
    let end = if ordinality { numbered.unwrap_or(close) } else { close };
    // LATERAL says nothing of functions that they do not do by themselves, and the parser takes it
    // before calls only.
    let lateral = (0..found.begins)
        .rev()
        .find(|at| !matches!(tokens[*at].token, Token::Whitespace(_)))
        .filter(|at| keyword(Some(&tokens[*at].token)) == Keyword::LATERAL);
    let mut new = vec![
        Token::make_keyword("TABLE"),
        Token::LParen,
        Token::LParen,
        Token::make_keyword(if ordinality { "TRUE" } else { "FALSE" }),
    ];
    for item in items {
        new.push(Token::Comma);
        match item.last() {
            None => return wrong(Some(&tokens[close].token)),
            Some(TokenWithSpan { token: Token::Word(word), .. })
                if item.len() == 1
                    && word.quote_style.is_none()
                    && super::calls_in_from::is_word_call(&word.value.to_ascii_lowercase()) => {}
            Some(last) if last.token != Token::RParen => return wrong(Some(&item[0].token)),
            Some(_) if !matches!(item[0].token, Token::Word(_)) => {
                return wrong(Some(&item[0].token));
            }
            Some(_) => {}
        }
        match columns_at(&item) {
            Some(at) => {
                let (call, columns) = item.split_at(at);
                let text = super::records::item(call, &columns[1..])?;
                let spelled =
                    crate::syntax::tokens(&text).map_err(|(message, ..)| Error::syntax(message))?;
                new.extend(spelled.into_iter().map(|t| t.token).filter(|t| *t != Token::EOF));
            }
            None => new.extend(item.into_iter().map(|t| t.token)),
        }
    }
    new.extend([Token::RParen, Token::RParen]);
    let begin = lateral.unwrap_or(found.begins);
    let span = tokens[found.begins].span;
    let new = new.into_iter().map(|token| TokenWithSpan::new(token, span));
    tokens.splice(begin..=end, new);
    Ok(())
}

/// Where the AS of a list of columns stands in an item.
fn columns_at(item: &[TokenWithSpan]) -> Option<usize> {
    let mut depth = 0_usize;
    item.iter().position(|token| {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && keyword(Some(&token.token)) == Keyword::AS
    })
}

/// Gives the items of a query the form in which they are written: for its text, not for a binder.
pub fn restore(query: &mut Query) {
    struct Items;
    impl VisitorMut for Items {
        type Break = ();

        fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
            if let TableFactor::TableFunction { expr, alias } = factor
                && let Some(written) = written(expr, alias.as_ref())
            {
                *factor = as_text(written);
            }
            ControlFlow::Continue(())
        }
    }
    let _ = query.visit(&mut Items);
}

/// A FROM item that is shown as this text.
pub(super) fn as_text(text: String) -> TableFactor {
    TableFactor::Table {
        name: ObjectName::from(vec![Ident::new(text)]),
        alias: None,
        args: None,
        with_hints: Vec::new(),
        version: None,
        with_ordinality: false,
        partitions: Vec::new(),
        json_path: None,
        sample: None,
        index_hints: Vec::new(),
    }
}

fn written(expr: &Expr, alias: Option<&TableAlias>) -> Option<String> {
    let rows = RowsFrom::of(expr)?;
    let calls: Vec<String> = rows.calls.iter().map(|(_, call)| call.to_string()).collect();
    let mut text = format!("ROWS FROM({})", calls.join(", "));
    if rows.ordinality {
        text.push_str(" WITH ORDINALITY");
    }
    let mut alias = alias.cloned();
    if rows.calls.iter().any(|(name, _)| name.is_some())
        && let Some(alias) = &mut alias
    {
        // The columns' names go with the list that is not shown: all of them are given by the
        // alias.
        let names = rows.calls.iter().map(|(name, call)| match (name, call) {
            (Some(name), _) => ident(name),
            (None, Expr::Function(call)) => {
                let last = call.name.0.last().and_then(|part| part.as_ident());
                ident(&last.map(fold).unwrap_or_default())
            }
            (None, _) => ident("column"),
        });
        let given = alias.columns.len();
        let columns = names.skip(given).map(|name| TableAliasColumnDef { name, data_type: None });
        alias.columns.extend(columns);
    }
    if let Some(alias) = alias {
        text = format!("{text} {alias}");
    }
    Some(text)
}
