//! Parsing the definitions of this folder, and the node that carries them.

use super::create::{bare_columns, create_table, like_at, no_data};
use super::words::{Words, is_word, syntax};
use super::{Definition, Kind, OwnedKind};
use crate::sqlparser::ast::{Ident, ObjectName, Statement, Value};
use crate::sqlparser::tokenizer::{Token, TokenWithSpan};
use telesto_sql_types::error::{Error, Result};

/// What the carrier is called. PRAGMA is no statement of PostgreSQL, so only [`take`] makes one.
const CARRIER: &str = "definition";

/// The statement for these tokens, whose text is `text`, if it is one of ours.
///
/// # Errors
/// 42601.
pub fn take(tokens: &[TokenWithSpan], text: impl FnOnce() -> String) -> Result<Option<Statement>> {
    check_comment(tokens)?;
    if !is_ours(tokens) {
        return Ok(None);
    }
    let text = text();
    parse(&text)?;
    Ok(Some(Statement::Pragma {
        name: ObjectName::from(vec![Ident::new(CARRIER)]),
        value: Some(Value::SingleQuotedString(text).into()),
        is_eq: true,
    }))
}

/// The definition a carrier holds; `None` for any other statement.
///
/// # Errors
/// None that [`take`] would not have given.
pub fn read(statement: &Statement) -> Result<Option<Definition>> {
    text(statement).map(parse).transpose()
}

/// The text a carrier holds.
pub fn text(statement: &Statement) -> Option<&str> {
    match statement {
        Statement::Pragma { value: Some(value), .. } => match &value.value {
            Value::SingleQuotedString(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// The first words, in upper case; quoted ones and symbols as `"`.
fn first_words(tokens: &[TokenWithSpan], count: usize) -> Vec<String> {
    tokens
        .iter()
        .filter(|t| !matches!(t.token, Token::Whitespace(_)))
        .take(count)
        .map(|token| match &token.token {
            Token::Word(w) if w.quote_style.is_none() => w.value.to_ascii_uppercase(),
            _ => "\"".to_owned(),
        })
        .collect()
}

/// Whether a word without quotes is anywhere among the tokens.
fn has_word(tokens: &[TokenWithSpan], word: &str) -> bool {
    tokens.iter().any(|t| {
        matches!(&t.token, Token::Word(w) if w.quote_style.is_none() && w.value.eq_ignore_ascii_case(word))
    })
}

/// Fails for a COMMENT ON … IS whose last word is no text and not NULL: the SQL parser takes any
/// word.
fn check_comment(tokens: &[TokenWithSpan]) -> Result<()> {
    if !first_words(tokens, 2).iter().map(String::as_str).eq(["COMMENT", "ON"]) {
        return Ok(());
    }
    let last = tokens
        .iter()
        .rev()
        .find(|token| !matches!(token.token, Token::Whitespace(_) | Token::SemiColon | Token::EOF));
    match last {
        Some(TokenWithSpan { token: token @ Token::Word(_), .. }) if !is_word(token, "NULL") => {
            Err(Error::syntax(format!("syntax error at or near \"{token}\"")))
        }
        _ => Ok(()),
    }
}

fn is_ours(tokens: &[TokenWithSpan]) -> bool {
    let words = first_words(tokens, 4);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["ALTER", "TABLE" | "INDEX" | "SEQUENCE" | "VIEW" | "SCHEMA" | "ROLE" | "USER", ..] => true,
        ["ALTER", "TYPE", ..] => super::attributes::of_attributes(tokens),
        ["ALTER", "DEFAULT" | "MATERIALIZED" | "FOREIGN" | "GROUP" | "DATABASE", ..] => true,
        ["CREATE" | "DROP", "ROLE" | "USER" | "GROUP", ..] | ["DROP", "OWNED", ..] => true,
        ["CREATE", "SEQUENCE", ..] | ["CREATE", "TEMP" | "TEMPORARY", "SEQUENCE", ..] => true,
        ["CREATE", "SCHEMA", ..] => true,
        ["CREATE", "TABLE" | "UNLOGGED" | "TEMP" | "TEMPORARY" | "LOCAL" | "GLOBAL", ..] => {
            like_at(tokens).is_some()
                || no_data(tokens).is_some()
                || words[1] == "UNLOGGED"
                || bare_columns(tokens).is_some()
                || super::with_settings::has_settings(tokens)
        }
        ["COMMENT", "ON", "CONSTRAINT", ..] => true,
        ["REINDEX", ..] | ["DROP", "INDEX", "CONCURRENTLY", ..] => true,
        ["GRANT", ..] => has_word(tokens, "TO"),
        ["REVOKE", ..] => has_word(tokens, "FROM"),
        ["REASSIGN", "OWNED", ..] => has_word(tokens, "TO"),
        _ => false,
    }
}

/// A token as it is written: strings and names with their quotes doubled.
pub fn token_text(token: &TokenWithSpan) -> String {
    match &token.token {
        Token::SingleQuotedString(text) => format!("'{}'", text.replace('\'', "''")),
        Token::Word(word) if word.quote_style == Some('"') => {
            format!("\"{}\"", word.value.replace('"', "\"\""))
        }
        token => token.to_string(),
    }
}

pub fn tokenize(text: &str) -> Result<Vec<TokenWithSpan>> {
    crate::syntax::tokens(text).map_err(|(message, ..)| Error::syntax(message))
}

fn parse(text: &str) -> Result<Definition> {
    let mut tokens = tokenize(text)?;
    crate::rewrite::spelling::cut_identifiers(&mut tokens);
    crate::rewrite::spelling::spell_constants(&mut tokens);
    super::spell_constraints(&mut tokens, crate::rewrite::spelling::Spelled::Plain)?;
    crate::rewrite::set_columns::spell(&mut tokens)?;
    crate::parse::spell_nodes(&mut tokens, true)?;
    let first = first_words(&tokens, 3);
    // The elements of CREATE SCHEMA are spelled one by one.
    if first.get(1).is_none_or(|w| w != "SCHEMA") {
        super::identity::spell(&mut tokens)?;
    }
    if first.first().is_some_and(|w| w == "CREATE")
        && first.get(1).is_some_and(|w| {
            matches!(w.as_str(), "TABLE" | "UNLOGGED" | "TEMP" | "TEMPORARY" | "LOCAL" | "GLOBAL")
        })
        && !first.contains(&"SEQUENCE".to_owned())
    {
        return create_table(tokens);
    }
    let mut words = Words(crate::syntax::parser(tokens, false));
    let definition = words.definition()?;
    if !words.at_end() {
        return Err(words.unexpected());
    }
    Ok(definition)
}

impl Words<'_> {
    fn definition(&mut self) -> Result<Definition> {
        if let Some(definition) = self.of_rights()? {
            return Ok(definition);
        }
        if self.words(&["CREATE", "SCHEMA"]) {
            return self.create_schema();
        }
        if self.words(&["CREATE"]) {
            let temporary = self.words(&["TEMP"]) || self.words(&["TEMPORARY"]);
            self.expect_words(&["SEQUENCE"])?;
            let if_not_exists = self.words(&["IF", "NOT", "EXISTS"]);
            let name = self.object_name()?;
            let options = self.sequence_options()?;
            return Ok(Definition::CreateSequence { temporary, if_not_exists, name, options });
        }
        if self.words(&["COMMENT", "ON", "CONSTRAINT"]) {
            let name = self.identifier()?;
            self.expect_words(&["ON"])?;
            if self.words(&["DOMAIN"]) {
                return Err(Error::unsupported("COMMENT ON a constraint of a domain"));
            }
            let on = self.object_name()?;
            self.expect_words(&["IS"])?;
            let comment = if self.words(&["NULL"]) { None } else { Some(self.string()?) };
            return Ok(Definition::CommentOnConstraint { name, on, comment });
        }
        if self.words(&["REINDEX"]) {
            return self.reindex();
        }
        if self.words(&["DROP", "INDEX", "CONCURRENTLY"]) {
            let if_exists = self.words(&["IF", "EXISTS"]);
            let mut names = vec![self.object_name()?];
            while self.symbol(",") {
                names.push(self.object_name()?);
            }
            let cascade = self.words(&["CASCADE"]);
            if !cascade {
                self.words(&["RESTRICT"]);
            }
            return Ok(Definition::DropIndexConcurrently { if_exists, names, cascade });
        }
        self.expect_words(&["ALTER"])?;
        if self.words(&["DEFAULT", "PRIVILEGES"]) {
            return self.default_privileges();
        }
        if self.words(&["SCHEMA"]) {
            let name = self.identifier()?;
            if self.words(&["RENAME", "TO"]) {
                return Ok(Definition::AlterSchema { name, to: self.identifier()? });
            }
            return self.owner_to(OwnedKind::Schema, ObjectName::from(vec![name]));
        }
        if self.words(&["DATABASE"]) {
            let name = self.object_name()?;
            if self.peek_settings() {
                return self.settings_of_database(name);
            }
            if !self.peek_words(&["OWNER"]) {
                return Err(Error::unsupported("ALTER DATABASE")
                    .hint("Of a database the owner and the settings can be changed."));
            }
            return self.owner_to(OwnedKind::Database, name);
        }
        if self.words(&["TYPE"]) {
            return self.alter_attributes();
        }
        if self.words(&["GROUP"]) {
            return self.alter_group();
        }
        if self.words(&["ROLE"]) || self.words(&["USER"]) {
            return self.alter_role();
        }
        if self.words(&["MATERIALIZED"]) {
            return Err(Error::unsupported("a materialized view"));
        }
        if self.words(&["FOREIGN"]) {
            return Err(Error::unsupported("a foreign table or data wrapper"));
        }
        self.alter_relation()
    }

    /// ALTER TABLE, INDEX, SEQUENCE or VIEW; ALTER has been taken.
    fn alter_relation(&mut self) -> Result<Definition> {
        let kind = if self.words(&["TABLE"]) {
            Kind::Table
        } else if self.words(&["INDEX"]) {
            Kind::Index
        } else if self.words(&["SEQUENCE"]) {
            Kind::Sequence
        } else {
            self.expect_words(&["VIEW"])?;
            Kind::View
        };
        if self.words(&["ALL", "IN", "TABLESPACE"]) {
            return Err(Error::unsupported("a tablespace"));
        }
        let if_exists = self.words(&["IF", "EXISTS"]);
        self.words(&["ONLY"]);
        let name = self.object_name()?;
        self.symbol("*");
        if kind == Kind::Sequence {
            let options = self.sequence_options()?;
            if !options.is_empty() {
                return Ok(Definition::AlterSequence { if_exists, name, options });
            }
        }
        let actions = self.actions(kind)?;
        Ok(Definition::Alter { kind, if_exists, name, actions })
    }

    /// GRANT, REVOKE, and what is dropped of roles; `None`: another definition.
    fn of_rights(&mut self) -> Result<Option<Definition>> {
        if self.words(&["CREATE", "USER"]) {
            return self.create_role(true).map(Some);
        }
        if self.words(&["CREATE", "ROLE"]) || self.words(&["CREATE", "GROUP"]) {
            return self.create_role(false).map(Some);
        }
        if self.words(&["GRANT"]) {
            return self.grant(true).map(Some);
        }
        if self.words(&["REVOKE"]) {
            return self.grant(false).map(Some);
        }
        if self.words(&["REASSIGN", "OWNED"]) {
            return self.reassign().map(Some);
        }
        if self.words(&["DROP", "OWNED"]) {
            return self.drop_owned().map(Some);
        }
        if !self.peek_words(&["DROP", "INDEX"]) && self.words(&["DROP"]) {
            if !(self.words(&["ROLE"]) || self.words(&["USER"])) {
                self.expect_words(&["GROUP"])?;
            }
            return self.drop_role().map(Some);
        }
        Ok(None)
    }

    fn create_schema(&mut self) -> Result<Definition> {
        let if_not_exists = self.words(&["IF", "NOT", "EXISTS"]);
        let mut name = None;
        if !self.peek_words(&["AUTHORIZATION"]) {
            name = Some(self.identifier()?);
        }
        let owner = if self.words(&["AUTHORIZATION"]) { Some(self.role()?) } else { None };
        if name.is_none() && owner.is_none() {
            return Err(self.unexpected());
        }
        let mut elements = Vec::new();
        while !self.at_end() {
            if !(self.peek_words(&["CREATE"]) || self.peek_words(&["GRANT"])) {
                return Err(self.unexpected());
            }
            if if_not_exists {
                return Err(Error::new(
                    telesto_sql_types::SqlState::FEATURE_NOT_SUPPORTED,
                    "CREATE SCHEMA IF NOT EXISTS cannot include schema elements",
                ));
            }
            elements.push(self.element()?);
        }
        Ok(Definition::CreateSchema { if_not_exists, name, owner, elements })
    }

    /// One element of CREATE SCHEMA: it ends where the next begins.
    fn element(&mut self) -> Result<Statement> {
        let mut tokens = vec![self.0.next_token()];
        let mut depth = 0_u32;
        loop {
            let next = self.0.peek_token();
            match &next.token {
                Token::EOF => break,
                Token::LParen => depth += 1,
                Token::RParen => depth = depth.saturating_sub(1),
                token if depth == 0 && (is_word(token, "CREATE") || is_word(token, "GRANT")) => {
                    break;
                }
                _ => {}
            }
            tokens.push(self.0.next_token());
        }
        // Tokens without blanks between them would run together as text: they are parsed as they
        // are.
        if is_ours(&tokens) {
            let text = tokens.iter().map(token_text).collect::<Vec<_>>().join(" ");
            return take(&tokens, || text)?.ok_or_else(|| self.unexpected());
        }
        super::identity::spell(&mut tokens)?;
        let mut parser = crate::syntax::parser(tokens, false);
        let mut statement = parser.parse_statement().map_err(|error| syntax(&error))?;
        crate::rewrite::precedence::restore(&mut statement)?;
        Ok(statement)
    }
}
