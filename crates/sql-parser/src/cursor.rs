//! DECLARE, FETCH, MOVE and CLOSE from their tokens: the parser knows only some of their forms.
//!
//! # Invariants
//! - A statement that does not begin with one of these words is left to the parser.
//! - MOVE is the parser's FETCH with the name `MOVE` for its target; a target in the text is a
//!   syntax error, as in PostgreSQL.

use crate::sqlparser::ast::{
    CloseCursor, Declare, DeclareType, Expr, FetchDirection, FetchPosition, FunctionArg,
    FunctionArgExpr, FunctionArguments, Ident, ObjectName, ObjectNamePart, Query, SetExpr,
    Statement, Value, ValueWithSpan,
};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result};

/// The target that makes a FETCH a MOVE.
const MOVE: &str = "MOVE";

/// Whether a FETCH is a MOVE: it goes through the rows and returns none.
pub fn is_move(into: Option<&ObjectName>) -> bool {
    into.is_some()
}

/// What follows the head of a DECLARE.
pub struct Head {
    declare: Declare,
    /// Where the query begins among the tokens.
    pub query_at: usize,
}

impl Head {
    /// The statement with its query.
    ///
    /// # Errors
    /// 42601 for a statement that is no query.
    pub fn with_query(mut self, query: Box<Query>) -> Result<Statement> {
        let word = match &*query.body {
            SetExpr::Insert(_) => "insert",
            SetExpr::Update(_) => "update",
            SetExpr::Delete(_) => "delete",
            _ => {
                self.declare.for_query = Some(query);
                return Ok(Statement::Declare { stmts: vec![self.declare] });
            }
        };
        Err(Error::syntax(format!("syntax error at or near \"{word}\"")))
    }
}

/// What the tokens are.
pub enum Found {
    /// A whole statement.
    Statement(Box<Statement>),
    /// DECLARE; its query is the parser's.
    Declare(Head),
    /// Something else.
    Other,
}

struct Words<'a> {
    /// Tokens that are no white space, with their places.
    solid: Vec<(usize, &'a Token)>,
    at: usize,
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.solid.get(self.at).map(|(_, token)| *token)
    }

    fn word(&self) -> String {
        match self.peek() {
            Some(Token::Word(word)) if word.quote_style.is_none() => {
                word.value.to_ascii_uppercase()
            }
            _ => String::new(),
        }
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.word() == word;
        self.at += usize::from(found);
        found
    }

    fn left(&self) -> usize {
        self.solid.len() - self.at
    }

    fn unexpected<T>(&self) -> Result<T> {
        Err(match self.peek() {
            Some(token) => Error::syntax(format!("syntax error at or near \"{token}\"")),
            None => Error::syntax("syntax error at end of input"),
        })
    }

    fn expect(&mut self, word: &str) -> Result<()> {
        if self.take(word) { Ok(()) } else { self.unexpected() }
    }

    fn name(&mut self) -> Result<Ident> {
        match self.peek() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(match word.quote_style {
                    Some(quote) => Ident::with_quote(quote, word.value.clone()),
                    None => Ident::new(word.value.clone()),
                })
            }
            _ => self.unexpected(),
        }
    }

    /// A number with an optional sign; `None`: there is none here.
    fn number(&mut self) -> Result<Option<ValueWithSpan>> {
        let negative = match self.peek() {
            Some(Token::Minus) => true,
            Some(Token::Plus | Token::Number(..)) => false,
            _ => return Ok(None),
        };
        if !matches!(self.peek(), Some(Token::Number(..))) {
            self.at += 1;
        }
        let Some(Token::Number(text, _)) = self.peek() else { return self.unexpected() };
        if text.parse::<i32>().is_err() {
            return self.unexpected();
        }
        self.at += 1;
        let text = if negative { format!("-{text}") } else { text.clone() };
        Ok(Some(Value::Number(text, false).with_empty_span()))
    }

    fn end(&self) -> Result<()> {
        if self.left() == 0 { Ok(()) } else { self.unexpected() }
    }
}

/// Reads a statement about cursors.
///
/// # Errors
/// 42601.
pub fn parse(tokens: &[TokenWithSpan]) -> Result<Found> {
    let solid = tokens
        .iter()
        .enumerate()
        .filter(|(_, token)| !matches!(token.token, Token::Whitespace(_)))
        .map(|(at, token)| (at, &token.token))
        .collect();
    let mut words = Words { solid, at: 0 };
    let moves = match words.word().as_str() {
        "DECLARE" => return declare(&mut words).map(Found::Declare),
        "CLOSE" => {
            words.at += 1;
            let cursor = if words.take("ALL") {
                CloseCursor::All
            } else {
                CloseCursor::Specific { name: words.name()? }
            };
            words.end()?;
            return Ok(Found::Statement(Box::new(Statement::Close { cursor })));
        }
        "FETCH" => false,
        "MOVE" => true,
        _ => return Ok(Found::Other),
    };
    words.at += 1;
    let direction = direction(&mut words)?;
    if !words.take("FROM") {
        words.take("IN");
    }
    let name = words.name()?;
    words.end()?;
    let into = moves.then(|| ObjectName(vec![ObjectNamePart::Identifier(Ident::new(MOVE))]));
    let position = FetchPosition::From;
    Ok(Found::Statement(Box::new(Statement::Fetch { name, direction, position, into })))
}

fn direction(words: &mut Words<'_>) -> Result<FetchDirection> {
    // A cursor may have any of these words for its name.
    if words.left() == 1 {
        return Ok(FetchDirection::Next);
    }
    if let Some(limit) = words.number()? {
        return Ok(FetchDirection::Count { limit });
    }
    let word = words.word();
    words.at += 1;
    Ok(match word.as_str() {
        "NEXT" => FetchDirection::Next,
        "PRIOR" => FetchDirection::Prior,
        "FIRST" => FetchDirection::First,
        "LAST" => FetchDirection::Last,
        "ALL" => FetchDirection::All,
        "ABSOLUTE" | "RELATIVE" => match words.number()? {
            Some(limit) if word == "ABSOLUTE" => FetchDirection::Absolute { limit },
            Some(limit) => FetchDirection::Relative { limit },
            None => return words.unexpected(),
        },
        "FORWARD" if words.left() > 1 && words.take("ALL") => FetchDirection::ForwardAll,
        "FORWARD" => FetchDirection::Forward { limit: words.number()? },
        "BACKWARD" if words.left() > 1 && words.take("ALL") => FetchDirection::BackwardAll,
        "BACKWARD" => FetchDirection::Backward { limit: words.number()? },
        _ => {
            words.at -= 1;
            FetchDirection::Next
        }
    })
}

fn declare(words: &mut Words<'_>) -> Result<Head> {
    words.at += 1;
    let name = words.name()?;
    let mut declare = Declare {
        names: vec![name],
        data_type: None,
        assignment: None,
        declare_type: Some(DeclareType::Cursor),
        binary: None,
        sensitive: None,
        scroll: None,
        hold: None,
        for_query: None,
    };
    let twice = |what: &str| {
        Err(Error::new(
            telesto_sql_types::SqlState::INVALID_CURSOR_DEFINITION,
            format!("cannot specify both {what}"),
        ))
    };
    loop {
        if words.take("BINARY") {
            declare.binary = Some(true);
        } else if words.take("INSENSITIVE") {
            if declare.sensitive == Some(false) {
                return twice("ASENSITIVE and INSENSITIVE");
            }
            declare.sensitive = Some(true);
        } else if words.take("ASENSITIVE") {
            if declare.sensitive == Some(true) {
                return twice("ASENSITIVE and INSENSITIVE");
            }
            declare.sensitive = Some(false);
        } else if words.take("SCROLL") {
            if declare.scroll == Some(false) {
                return twice("SCROLL and NO SCROLL");
            }
            declare.scroll = Some(true);
        } else if words.take("NO") {
            words.expect("SCROLL")?;
            if declare.scroll == Some(true) {
                return twice("SCROLL and NO SCROLL");
            }
            declare.scroll = Some(false);
        } else {
            break;
        }
    }
    words.expect("CURSOR")?;
    if words.take("WITH") {
        words.expect("HOLD")?;
        declare.hold = Some(true);
    } else if words.take("WITHOUT") {
        words.expect("HOLD")?;
        declare.hold = Some(false);
    }
    words.expect("FOR")?;
    match words.solid.get(words.at) {
        Some((query_at, _)) => Ok(Head { declare, query_at: *query_at }),
        None => words.unexpected(),
    }
}

/// The DECLARE a statement is.
#[must_use]
pub fn declared(statement: &Statement) -> Option<&Declare> {
    match statement {
        Statement::Declare { stmts } => stmts.first(),
        _ => None,
    }
}

/// The call that stands for `CURRENT OF`. It has no quotes and no text has such a word, so that no
/// client's call is it.
const CURRENT_OF: &str = "current_of#";

/// `WHERE CURRENT OF cursor` is, for the parser, the call of a function. Whether there is any.
///
/// # Errors
/// 42601 when no name follows.
pub fn spell_current_of(tokens: &mut Vec<TokenWithSpan>) -> Result<bool> {
    let is = |token: &TokenWithSpan, text: &str| {
        matches!(&token.token, Token::Word(word) if word.quote_style.is_none()
            && word.value.eq_ignore_ascii_case(text))
    };
    let solid: Vec<usize> =
        (0..tokens.len()).filter(|at| !matches!(tokens[*at].token, Token::Whitespace(_))).collect();
    let found = solid.windows(3).position(|three| {
        is(&tokens[three[0]], "WHERE")
            && is(&tokens[three[1]], "CURRENT")
            && is(&tokens[three[2]], "OF")
    });
    let Some(found) = found else { return Ok(false) };
    let (current, of) = (solid[found + 1], solid[found + 2]);
    let name = solid.get(found + 3).filter(|at| matches!(tokens[**at].token, Token::Word(_)));
    let Some(name) = name.copied() else {
        return Err(match solid.get(found + 3) {
            Some(at) => Error::syntax(format!("syntax error at or near \"{}\"", tokens[*at].token)),
            None => Error::syntax("syntax error at end of input"),
        });
    };
    if let Token::Word(word) = &mut tokens[current].token {
        CURRENT_OF.clone_into(&mut word.value);
        word.keyword = crate::sqlparser::keywords::Keyword::NoKeyword;
    }
    tokens[of].token = Token::LParen;
    let end = TokenWithSpan { token: Token::RParen, span: tokens[name].span };
    tokens.insert(name + 1, end);
    Ok(true)
}

/// The cursor of the `WHERE CURRENT OF` that is the whole condition of an UPDATE or DELETE.
#[must_use]
pub fn current_of(statement: &Statement) -> Option<&Ident> {
    let condition = match statement {
        Statement::Update(update) => update.selection.as_ref(),
        Statement::Delete(delete) => delete.selection.as_ref(),
        _ => None,
    };
    let Some(Expr::Function(function)) = condition else { return None };
    let [ObjectNamePart::Identifier(name)] = &function.name.0[..] else { return None };
    if name.quote_style.is_some() || name.value != CURRENT_OF {
        return None;
    }
    let FunctionArguments::List(list) = &function.args else { return None };
    match &list.args[..] {
        [FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Identifier(cursor)))] => Some(cursor),
        _ => None,
    }
}

/// Refuses `WHERE CURRENT OF`, where it was `spelled`, elsewhere than in an UPDATE or DELETE of its
/// own.
///
/// # Errors
/// 0A000, 42601.
pub fn check_current_of(statement: &Statement, spelled: bool) -> Result<()> {
    match statement {
        _ if !spelled || current_of(statement).is_some() => Ok(()),
        Statement::Prepare { statement, .. } => check_current_of(statement, spelled),
        Statement::Update(_)
        | Statement::Delete(_)
        | Statement::Query(_)
        | Statement::Explain { .. } => {
            Err(Error::unsupported("WHERE CURRENT OF inside of another statement"))
        }
        _ => Err(Error::syntax("syntax error at or near \"CURRENT\"")),
    }
}

/// An UPDATE or DELETE with another condition.
#[must_use]
pub fn with_condition(statement: &Statement, condition: Expr) -> Statement {
    let mut statement = statement.clone();
    match &mut statement {
        Statement::Update(update) => update.selection = Some(condition),
        Statement::Delete(delete) => delete.selection = Some(condition),
        _ => {}
    }
    statement
}
