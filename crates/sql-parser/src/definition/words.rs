//! Reading words, names and pieces of SQL off the tokens of a definition.

use crate::sqlparser::ast::{
    ColumnDef, ConstraintCharacteristics, DataType, Expr, Ident, ObjectName, TableConstraint,
    VisitMut,
};
use crate::sqlparser::parser::{Parser, ParserError};
use crate::sqlparser::tokenizer::Token;
use telesto_sql_types::error::{Error, Result};

/// Whether the token is this word, without quotes.
pub fn is_word(token: &Token, word: &str) -> bool {
    matches!(token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word))
}

/// Whether the token is a text.
pub fn is_string(token: &Token) -> bool {
    matches!(
        token,
        Token::SingleQuotedString(_)
            | Token::EscapedStringLiteral(_)
            | Token::UnicodeStringLiteral(_)
            | Token::DollarQuotedString(_)
    )
}

/// The SQL parser's error as ours.
pub fn syntax(error: &ParserError) -> Error {
    match error {
        ParserError::RecursionLimitExceeded => crate::syntax::too_deep(),
        ParserError::TokenizerError(text) | ParserError::ParserError(text) => {
            Error::syntax(format!("syntax error: {text}"))
        }
    }
}

/// What the parser read, with its operators bound as PostgreSQL binds them.
fn restored<T: VisitMut>(read: std::result::Result<T, ParserError>) -> Result<T> {
    let mut read = read.map_err(|error| syntax(&error))?;
    crate::rewrite::precedence::restore(&mut read)?;
    Ok(read)
}

/// The words of one definition.
pub struct Words<'a>(pub Parser<'a>);

impl Words<'_> {
    pub fn peek_words(&self, words: &[&str]) -> bool {
        words.iter().enumerate().all(|(at, word)| is_word(&self.0.peek_nth_token(at).token, word))
    }

    /// Takes these words if all are next.
    pub fn words(&mut self, words: &[&str]) -> bool {
        let found = self.peek_words(words);
        if found {
            for _ in words {
                self.0.next_token();
            }
        }
        found
    }

    pub fn expect_words(&mut self, words: &[&str]) -> Result<()> {
        if self.words(words) { Ok(()) } else { Err(self.unexpected()) }
    }

    /// Takes `(`, `)` or `,`.
    pub fn symbol(&mut self, symbol: &str) -> bool {
        let found = self.0.peek_token().token.to_string() == symbol;
        if found {
            self.0.next_token();
        }
        found
    }

    pub fn expect_symbol(&mut self, symbol: &str) -> Result<()> {
        if self.symbol(symbol) { Ok(()) } else { Err(self.unexpected()) }
    }

    /// SET or RESET with storage options in parentheses is next.
    pub fn peek_options(&self) -> bool {
        (self.peek_words(&["SET"]) || self.peek_words(&["RESET"]))
            && self.0.peek_nth_token(1).token == Token::LParen
    }

    pub fn is_number(&self) -> bool {
        match self.0.peek_token().token {
            Token::Number(..) => true,
            Token::Minus | Token::Plus => {
                matches!(self.0.peek_nth_token(1).token, Token::Number(..))
            }
            _ => false,
        }
    }

    pub fn integer(&mut self) -> Result<i64> {
        let sign = if self.symbol("-") {
            "-"
        } else {
            self.symbol("+");
            ""
        };
        match self.0.peek_token().token {
            Token::Number(text, _) => {
                let value = format!("{sign}{text}").parse().map_err(|_| {
                    Error::new(
                        telesto_sql_types::SqlState::NUMERIC_OUT_OF_RANGE,
                        format!("value \"{sign}{text}\" is out of range for type bigint"),
                    )
                })?;
                self.0.next_token();
                Ok(value)
            }
            _ => Err(self.unexpected()),
        }
    }

    pub fn at_end(&self) -> bool {
        self.0.peek_token().token == Token::EOF
    }

    pub fn unexpected(&self) -> Error {
        match self.0.peek_token().token {
            Token::EOF => Error::syntax("syntax error at end of input"),
            token => Error::syntax(format!("syntax error at or near \"{token}\"")),
        }
    }

    /// Skips to the comma that ends this action, or to the end.
    pub fn rest_of_action(&mut self) {
        let mut depth = 0_u32;
        loop {
            match self.0.peek_token().token {
                Token::EOF => return,
                Token::Comma if depth == 0 => return,
                Token::LParen => depth += 1,
                Token::RParen => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.0.next_token();
        }
    }

    pub fn identifier(&mut self) -> Result<Ident> {
        self.0.parse_identifier().map_err(|error| syntax(&error))
    }

    pub fn object_name(&mut self) -> Result<ObjectName> {
        self.0.parse_object_name(false).map_err(|error| syntax(&error))
    }

    pub fn data_type(&mut self) -> Result<DataType> {
        self.0.parse_data_type().map_err(|error| syntax(&error))
    }

    pub fn expression(&mut self) -> Result<Expr> {
        restored(self.0.parse_expr())
    }

    /// A text in quotes of one kind or another; a word, or a name in double quotes, is none.
    pub fn string(&mut self) -> Result<String> {
        if !is_string(&self.0.peek_token_ref().token) {
            return Err(self.unexpected());
        }
        if let Token::DollarQuotedString(quoted) = &self.0.peek_token_ref().token {
            let text = quoted.value.clone();
            self.0.advance_token();
            return Ok(text);
        }
        self.0.parse_literal_string().map_err(|error| syntax(&error))
    }

    pub fn column_definition(&mut self) -> Result<ColumnDef> {
        restored(self.0.parse_column_def())
    }

    pub fn table_constraint(&mut self) -> Result<Option<TableConstraint>> {
        restored(self.0.parse_optional_table_constraint())
    }

    pub fn characteristics(&mut self) -> Result<Option<ConstraintCharacteristics>> {
        self.0.parse_constraint_characteristics().map_err(|error| syntax(&error))
    }
}
