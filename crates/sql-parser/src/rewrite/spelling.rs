//! Statements about types that the parser does not know, written as others that it does.
//!
//! | statement | parsed as |
//! | --- | --- |
//! | `int ARRAY` | `int[]` |
//! | `CREATE VIEW … WITH (security_barrier)` | `… WITH (security_barrier = true)` |
//! | `CREATE VIEW v AS … WITH LOCAL CHECK OPTION` | `CREATE VIEW v WITH (check_option = local) AS …` |
//! | `inet 'text'`, and constants of other types whose names are no words of the parser's | `'text'::inet` |
//! | `pg_catalog.substring(x, 2)`, and other functions whose names are words of the parser's | `pg_catalog."substring"(x, 2)` |
//! | `trim(FROM x)`, `trim(LEADING FROM x)` | `trim(' ' FROM x)`, `trim(LEADING ' ' FROM x)` |
//! | `ALTER TYPE name OWNER TO …`, `SET SCHEMA …`; `ALTER DOMAIN` with these, `RENAME TO …` | `ALTER COLLATION` of that name: the same forms |
//! | `CREATE DOMAIN name AS type …` | `CREATE TABLE name (value type …)`, marked external |
//! | `ALTER DOMAIN name SET DEFAULT …` and the like | `ALTER TABLE name ALTER COLUMN value SET DEFAULT …`, marked external |
//! | `ALTER DOMAIN name ADD CONSTRAINT …` and the like | `ALTER TABLE name ADD CONSTRAINT …`, marked external |
//!
//! # Invariants
//! A statement that is borrowed is refused when it is written itself (collations, external tables),
//! so that none is taken for the other.

use crate::sqlparser::ast::{AlterTableType, Statement};
use crate::sqlparser::keywords::Keyword;
use crate::sqlparser::tokenizer::{Token, TokenWithSpan, Whitespace, Word};
use telesto_sql_types::error::{Error, Result};
use telesto_sql_types::text::{NAME_BYTES, cut_name};

/// Writes the type `int ARRAY` as `int[]`. ARRAY is reserved: behind it stands `[` or `(` in an
/// expression, and behind a type's name (or its modifiers) neither (`int ARRAY[3]` stays a syntax
/// error).
pub fn spell_arrays(tokens: &mut Vec<TokenWithSpan>) {
    let is_array = |token: &Token| matches!(token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case("ARRAY"));
    if !tokens.iter().any(|t| is_array(&t.token)) {
        return;
    }
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let token = |nth: usize| solid.get(nth).map(|at| &tokens[*at].token);
    let found: Vec<usize> = (1..solid.len())
        .filter(|nth| is_array(&tokens[solid[*nth]].token))
        .filter(|nth| matches!(token(nth - 1), Some(Token::Word(_) | Token::RParen)))
        .filter(|nth| !matches!(token(nth + 1), Some(Token::LBracket | Token::LParen)))
        .map(|nth| solid[nth])
        .collect();
    for at in found.into_iter().rev() {
        let span = tokens[at].span;
        let brackets = [Token::LBracket, Token::RBracket];
        tokens.splice(at..=at, brackets.map(|token| TokenWithSpan::new(token, span)));
    }
}

/// Writes options of a view without a value as `option = true`.
pub fn spell_view_options(tokens: &mut Vec<TokenWithSpan>) {
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let is =
        |nth: usize, word: &str| solid.get(nth).is_some_and(|at| is_word(&tokens[*at].token, word));
    let view = (1..6).find(|nth| is(*nth, "VIEW")).filter(|_| is(0, "CREATE"));
    let Some(view) = view else { return };
    let Some(with) =
        (view..solid.len()).take_while(|nth| !is(*nth, "AS")).find(|nth| is(*nth, "WITH"))
    else {
        return;
    };
    let token = |nth: usize| solid.get(nth).map(|at| &tokens[*at].token);
    if token(with + 1) != Some(&Token::LParen) {
        return;
    }
    let last = (with..solid.len()).find(|nth| token(*nth) == Some(&Token::RParen));
    let bare: Vec<usize> = (with + 2..last.unwrap_or(with))
        .filter(|nth| matches!(token(*nth), Some(Token::Word(_))))
        .filter(|nth| matches!(token(nth - 1), Some(Token::LParen | Token::Comma)))
        .filter(|nth| matches!(token(nth + 1), Some(Token::RParen | Token::Comma)))
        .map(|nth| solid[nth])
        .collect();
    for at in bare.into_iter().rev() {
        let span = tokens[at].span;
        let value = [Token::Eq, Token::make_word("true", None)];
        tokens.splice(at + 1..at + 1, value.map(|token| TokenWithSpan::new(token, span)));
    }
}

/// Writes `WITH … CHECK OPTION` behind a view's query as an option before it.
pub fn spell_check_options(tokens: &mut Vec<TokenWithSpan>) {
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let is =
        |nth: usize, word: &str| solid.get(nth).is_some_and(|at| is_word(&tokens[*at].token, word));
    let token = |nth: usize| solid.get(nth).map(|at| &tokens[*at].token);
    let Some(view) = (1..6).find(|nth| is(*nth, "VIEW")).filter(|_| is(0, "CREATE")) else {
        return;
    };
    let mut end = solid.len();
    while end > view && matches!(token(end - 1), Some(Token::SemiColon | Token::EOF)) {
        end -= 1;
    }
    if end < view + 4 || !(is(end - 1, "OPTION") && is(end - 2, "CHECK")) {
        return;
    }
    let (with, value) = match (is(end - 3, "LOCAL"), is(end - 3, "CASCADED")) {
        (true, _) => (end - 4, "local"),
        (_, true) => (end - 4, "cascaded"),
        _ => (end - 3, "cascaded"),
    };
    let Some(before) = (view..with).find(|nth| is(*nth, "AS")).filter(|_| is(with, "WITH")) else {
        return;
    };
    let (from, to, at) = (solid[with], solid[end - 1], solid[before]);
    let span = tokens[from].span;
    let made = |token: Token| TokenWithSpan::new(token, span);
    let word = |word: &str| made(Token::make_word(word, None));
    let option = [word("check_option"), made(Token::Eq), word(value), made(Token::RParen)];
    tokens.drain(from..=to);
    // Beside options that are there, which end in front of AS.
    let listed = (view..before).any(|nth| is_word(&tokens[solid[nth]].token, "WITH"));
    if listed {
        let last = solid[before - 1];
        tokens.splice(last..=last, [made(Token::Comma)].into_iter().chain(option));
    } else {
        let space = || made(Token::Whitespace(Whitespace::Space));
        let head = [word("WITH"), space(), made(Token::LParen)];
        tokens.splice(at..at, head.into_iter().chain(option).chain([space()]));
    }
}

fn is_word(token: &Token, word: &str) -> bool {
    matches!(token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word))
}

/// Cuts identifiers to the 63 bytes that names have, wherever they stand.
pub fn cut_identifiers(tokens: &mut [TokenWithSpan]) {
    for token in tokens {
        if let Token::Word(word) = &mut token.token
            && word.value.len() > NAME_BYTES
        {
            word.value.truncate(cut_name(&word.value).len());
        }
    }
}

/// Types of PostgreSQL whose names the parser takes for columns in front of a text.
const TYPED: &[&str] = &[
    "bpchar",
    "cidr",
    "datemultirange",
    "daterange",
    "inet",
    "int4multirange",
    "int4range",
    "int8multirange",
    "int8range",
    "name",
    "nummultirange",
    "numrange",
    "oid",
    "regnamespace",
    "regproc",
    "regprocedure",
    "regrole",
    "regtype",
    "tsmultirange",
    "tsrange",
    "tstzmultirange",
    "tstzrange",
    "varbit",
    "xid",
];

/// Writes the constant `inet 'text'` as `'text'::inet`.
pub fn spell_constants(tokens: &mut Vec<TokenWithSpan>) {
    let typed = |token: &Token| matches!(token, Token::Word(w) if w.quote_style.is_none() && TYPED.iter().any(|name| w.value.eq_ignore_ascii_case(name)));
    if !tokens.iter().any(|t| typed(&t.token)) {
        return;
    }
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let is_text = |at: usize| {
        matches!(tokens[at].token, Token::SingleQuotedString(_) | Token::EscapedStringLiteral(_))
    };
    // A name behind a point is a column's or a schema's own.
    let bare = |nth: usize| nth == 0 || tokens[solid[nth - 1]].token != Token::Period;
    let found: Vec<(usize, usize)> = (0..solid.len().saturating_sub(1))
        .filter(|nth| typed(&tokens[solid[*nth]].token) && bare(*nth) && is_text(solid[nth + 1]))
        .map(|nth| (solid[nth], solid[nth + 1]))
        .collect();
    for (name, text) in found.into_iter().rev() {
        let colons = TokenWithSpan::new(Token::DoubleColon, tokens[name].span);
        tokens.insert(text + 1, colons);
        let name = tokens.remove(name);
        tokens.insert(text + 1, name);
    }
}

/// Quotes names of functions behind `pg_catalog.` that the parser takes for forms with a syntax of
/// their own: `pg_catalog.substring(a, 2)`.
pub fn spell_qualified_calls(tokens: &mut [TokenWithSpan]) {
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    for four in solid.windows(4) {
        let schema = is_word(&tokens[four[0]].token, "pg_catalog");
        let called =
            tokens[four[1]].token == Token::Period && tokens[four[3]].token == Token::LParen;
        if schema
            && called
            && let Token::Word(word) = &mut tokens[four[2]].token
            && word.quote_style.is_none()
            && word.keyword != Keyword::NoKeyword
        {
            *word = Word {
                value: word.value.to_lowercase(),
                quote_style: Some('"'),
                keyword: Keyword::NoKeyword,
            };
        }
    }
}

/// Writes the blanks that `trim(FROM x)` and `trim(TRAILING FROM x)` leave out (pgjdbc's
/// `{fn length(x)}`).
pub fn spell_trims(tokens: &mut Vec<TokenWithSpan>) {
    let word = |token: &Token, known: &[&str]| matches!(token, Token::Word(w) if w.quote_style.is_none() && known.iter().any(|k| w.value.eq_ignore_ascii_case(k)));
    if !tokens.iter().any(|t| word(&t.token, &["TRIM"])) {
        return;
    }
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let is = |nth: usize, known: &[&str]| {
        solid.get(nth).is_some_and(|at| word(&tokens[*at].token, known))
    };
    let found: Vec<usize> = (0..solid.len())
        .filter(|nth| {
            is(*nth, &["TRIM"])
                && solid.get(nth + 1).is_some_and(|at| tokens[*at].token == Token::LParen)
        })
        .map(|nth| nth + 2 + usize::from(is(nth + 2, &["LEADING", "TRAILING", "BOTH"])))
        .filter(|nth| is(*nth, &["FROM"]))
        .map(|nth| solid[nth])
        .collect();
    for at in found.into_iter().rev() {
        let span = tokens[at].span;
        let blanks =
            [Token::SingleQuotedString(" ".to_owned()), Token::Whitespace(Whitespace::Space)];
        tokens.splice(at..at, blanks.map(|token| TokenWithSpan::new(token, span)));
    }
}

/// The first words of a statement, in capitals; what is no plain word is empty.
fn words(tokens: &[TokenWithSpan], count: usize) -> Vec<(usize, String)> {
    tokens
        .iter()
        .enumerate()
        .filter(|(_, t)| !matches!(t.token, Token::Whitespace(_)))
        .take(count)
        .map(|(at, token)| match &token.token {
            Token::Word(w) if w.quote_style.is_none() => (at, w.value.to_ascii_uppercase()),
            _ => (at, String::new()),
        })
        .collect()
}

/// The index of the first token behind the (perhaps dotted) name that starts at solid token `from`.
fn after_name(tokens: &[TokenWithSpan], from: usize) -> usize {
    let solid: Vec<usize> = (from..tokens.len())
        .filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_)))
        .collect();
    let mut at = 1;
    while at < solid.len() && tokens[solid[at]].token == Token::Period {
        at += 2;
    }
    solid.get(at).copied().unwrap_or(tokens.len())
}

/// What the statement really is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelled {
    /// As it says.
    Plain,
    /// A domain.
    Domain,
}

fn keyword(word: &str, like: &TokenWithSpan) -> TokenWithSpan {
    TokenWithSpan::new(Token::make_keyword(word), like.span)
}

/// See the module.
///
/// # Errors
/// 0A000 for the statements borrowed.
pub fn spell_types(tokens: &mut Vec<TokenWithSpan>) -> Result<Spelled> {
    let start = words(tokens, 3);
    let [(_, verb), (kind, what), (name, _)] = start.as_slice() else { return Ok(Spelled::Plain) };
    let (kind, name) = (*kind, *name);
    match (verb.as_str(), what.as_str()) {
        ("ALTER", "COLLATION") => return Err(Error::unsupported("ALTER COLLATION")),
        ("ALTER" | "CREATE", "EXTERNAL") => {
            return Err(Error::unsupported("an external table"));
        }
        ("ALTER", "TYPE" | "DOMAIN") => {}
        ("CREATE", "DOMAIN") => {
            // CREATE TABLE name (value type …).
            let span = tokens[kind].clone();
            let rest = after_name(tokens, name);
            let has_as = words(&tokens[rest..], 1)
                .first()
                .filter(|(_, w)| w == "AS")
                .map(|(at, _)| rest + at);
            tokens.push(TokenWithSpan::new(Token::RParen, span.span));
            match has_as {
                Some(at) => {
                    tokens[at].token = Token::LParen;
                    tokens.insert(at + 1, keyword("value", &span));
                }
                None => {
                    tokens.insert(rest, keyword("value", &span));
                    tokens.insert(rest, TokenWithSpan::new(Token::LParen, span.span));
                }
            }
            tokens[kind].token = Token::make_keyword("TABLE");
            return Ok(Spelled::Domain);
        }
        _ => return Ok(Spelled::Plain),
    }
    let at = after_name(tokens, name);
    let rest = words(&tokens[at..], 2);
    let rest: Vec<&str> = rest.iter().map(|(_, word)| word.as_str()).collect();
    if matches!(rest[..], ["OWNER" | "RENAME", "TO"] | ["SET", "SCHEMA"]) {
        if !(what == "TYPE" && rest[0] == "RENAME") {
            tokens[kind].token = Token::make_keyword("COLLATION");
        }
        return Ok(Spelled::Plain);
    }
    if what == "TYPE" {
        return Ok(Spelled::Plain);
    }
    tokens[kind].token = Token::make_keyword("TABLE");
    if matches!(rest[..], ["SET" | "DROP", "DEFAULT" | "NOT"]) {
        let like = tokens[kind].clone();
        for word in ["value", "COLUMN", "ALTER"] {
            tokens.insert(at, keyword(word, &like));
        }
    }
    Ok(Spelled::Domain)
}

/// Marks the statement parsed for what it is.
pub fn mark(statement: &mut Statement, spelled: Spelled) {
    if spelled == Spelled::Plain {
        return;
    }
    match statement {
        Statement::CreateTable(create) => create.external = true,
        Statement::AlterTable(alter) => alter.table_type = Some(AlterTableType::External),
        _ => {}
    }
}

/// Writes `SET role TO …` and `SET role = …` as an assignment to a parameter of that name, where
/// the parser reads a role called `TO`.
pub fn spell_role(tokens: &mut [TokenWithSpan]) {
    let word = |token: &Token| match token {
        Token::Word(w) if w.quote_style.is_none() => w.value.to_ascii_uppercase(),
        _ => String::new(),
    };
    let mut solid =
        tokens.iter_mut().filter(|token| !matches!(token.token, Token::Whitespace(_))).peekable();
    if solid.next().is_none_or(|first| word(&first.token) != "SET") {
        return;
    }
    solid.next_if(|scope| matches!(word(&scope.token).as_str(), "SESSION" | "LOCAL"));
    let Some(role) = solid.next_if(|role| word(&role.token) == "ROLE") else { return };
    if solid.peek().is_some_and(|next| next.token == Token::Eq || word(&next.token) == "TO") {
        role.token = Token::make_word("role", Some('"'));
    }
}
