//! What a session tells whoever keeps a record of it: which definitions and changes of roles were
//! run, by whom, with what end.
//!
//! ```text
//! statement ──> class? ──> room for its record, or 58030 ──> runs ──> record: SQLSTATE
//!                 none: nothing is asked                      └ dropped under way: record without SQLSTATE
//! ```
//!
//! # Invariants
//! - A statement of a class that is wanted does not run before there is room for its record.
//! - No text leaves here that has a password: see [`without_passwords`].
//!
//! # On failure
//! Whoever has no room says why; the statement has then done nothing.
//!
//! # Limits
//! - [`TEXT_BYTES`] of a statement's text.
//! - The end told is that of the statement, or of the transaction where it was one by itself; a
//!   ROLLBACK behind it is not told.
//! - Of functions, those that change spend caps or the kind of the log are told, where they do it
//!   (`telesto_sql_plan::audit`).
//! - Refusals (42501) and log-ins are told by the server, which sees all of them.

use std::fmt::Write as _;
use std::sync::Arc;

use telesto_sql_parser::definition::{self, Definition};
pub use telesto_sql_plan::audit::{Audit, AuditClass, Audited, Slot};

use super::{Prepared, Session, StatementResult};
use crate::access::{Class, class_of};
use crate::error::{Result, SqlState};
use crate::sqlparser::ast::{SetExpr, Statement};
use crate::sqlparser::dialect::PostgreSqlDialect;
use crate::sqlparser::tokenizer::{Token, Tokenizer};

/// Bytes told of a statement's text.
pub const TEXT_BYTES: usize = 16 << 10;

impl Session {
    /// The session's text of late, as `pg_stat_activity` shows it, without passwords.
    #[must_use]
    pub fn recent_text(&self) -> String {
        without_passwords(&self.shown.get().query)
    }

    /// Room for the record of a statement that is about to run; `None`: none is kept of it.
    pub(super) async fn audits(
        &mut self,
        prepared: &Prepared,
        sql: &str,
        alone: bool,
    ) -> Result<Option<Box<dyn Slot>>> {
        let Some(audit) = &self.audit else { return Ok(None) };
        let Some(statement) = &prepared.statement else { return Ok(None) };
        let Some(class) = prepared.need.provide(|| audited_class(statement)) else {
            return Ok(None);
        };
        if !audit.wants(class) {
            return Ok(None);
        }
        let text = match definition::text(statement) {
            _ if alone => without_passwords(sql),
            Some(text) => without_passwords(text),
            None => prepared.need.provide(|| without_passwords(&statement.to_string())),
        };
        let audited = Audited {
            class,
            statement: text,
            role: self.settings.current_user.clone(),
            application: self.settings.application_name.clone(),
        };
        let audit = Arc::clone(audit);
        match audit.room(audited).await {
            Ok(slot) => Ok(Some(slot)),
            Err(error) => {
                self.fail();
                Err(error)
            }
        }
    }
}

/// Tells how a statement ended.
pub(super) async fn ended(
    slot: Option<Box<dyn Slot>>,
    result: Result<StatementResult>,
) -> Result<StatementResult> {
    if let Some(slot) = slot {
        let state = result.as_ref().err().map_or(SqlState::SUCCESS, |e| e.code());
        slot.ended(state).await;
    }
    result
}

/// Of what class a statement is, by its kind.
fn audited_class(statement: &Statement) -> Option<AuditClass> {
    if let Statement::Explain { statement, analyze: true, .. } = statement {
        return audited_class(statement);
    }
    // SELECT … INTO makes a table.
    if let Statement::Query(query) = statement
        && let SetExpr::Select(select) = &*query.body
        && select.into.is_some()
    {
        return Some(AuditClass::Definition);
    }
    if class_of(statement) != Class::Definition {
        return None;
    }
    Some(match definition::read(statement) {
        Ok(Some(
            Definition::CreateRole { .. }
            | Definition::AlterRole { .. }
            | Definition::DropRole { .. }
            | Definition::Settings(_)
            | Definition::Grant(_)
            | Definition::GrantRole(_)
            | Definition::DefaultPrivileges { .. }
            | Definition::ReassignOwned { .. }
            | Definition::DropOwned { .. },
        )) => AuditClass::Role,
        _ => AuditClass::Definition,
    })
}

/// A statement's text as it may be written down: a literal behind the word PASSWORD is left out,
/// and of CREATE and ALTER ROLE whatever stands there, as somebody may have forgotten the quotes; a
/// literal that speaks of passwords itself is, and comments are, which could hold one. What cannot
/// be taken apart into words is cut there, as is what is longer than [`TEXT_BYTES`].
#[must_use]
pub fn without_passwords(sql: &str) -> String {
    let kept = &sql[..sql.floor_char_boundary(TEXT_BYTES)];
    let mut tokens = Vec::new();
    let whole = Tokenizer::new(&PostgreSqlDialect {}, kept)
        .with_unescape(false)
        .tokenize_with_location_into_buf(&mut tokens)
        .is_ok()
        && kept.len() == sql.len();
    let mut out = String::with_capacity(kept.len());
    let mut secret = false;
    let mut bare = BarePassword::default();
    for token in tokens {
        match token.token {
            Token::Whitespace(space) => {
                bare.touches = false;
                use crate::sqlparser::tokenizer::Whitespace;
                match space {
                    Whitespace::SingleLineComment { .. } => out.push('\n'),
                    Whitespace::MultiLineComment(_) => out.push(' '),
                    other => {
                        // Writing to a text does not fail.
                        let _ = write!(out, "{other}");
                    }
                }
            }
            token if bare.goes_on(&token) => {}
            token if bare.is_one(&token) => out.push_str("'***'"),
            token if (secret || may_hold_one(&token)) && is_text(&token) => out.push_str("'***'"),
            token => {
                // Between the word and its text may be `=` or `(`; a text that follows a text
                // belongs to it.
                let passes = secret && matches!(token, Token::Eq | Token::LParen);
                secret = passes
                    || matches!(&token, Token::Word(word) if word.value.eq_ignore_ascii_case("password"));
                // Writing to a text does not fail.
                let _ = write!(out, "{token}");
            }
        }
    }
    if !whole {
        out.push_str(" …");
    }
    out
}

/// What stands behind PASSWORD in CREATE and ALTER ROLE, USER and GROUP without quotes, up to the
/// next blank: the statement is refused, and is written down all the same.
#[derive(Default)]
struct BarePassword {
    /// Words of the statement before this one that make it one about roles.
    words: usize,
    /// A password is next.
    next: bool,
    /// The token before was one, or a part of one.
    touches: bool,
}

impl BarePassword {
    /// Whether the token belongs to the password before it.
    fn goes_on(&self, token: &Token) -> bool {
        self.touches && !matches!(token, Token::SemiColon | Token::RParen)
    }

    /// Whether the token is a password that is written as a word.
    fn is_one(&mut self, token: &Token) -> bool {
        let is = |words: &[&str]| {
            matches!(token, Token::Word(word) if word.quote_style.is_none()
                && words.iter().any(|own| word.value.eq_ignore_ascii_case(own)))
        };
        if *token == Token::SemiColon {
            *self = Self::default();
            return false;
        }
        if matches!(token, Token::Eq | Token::LParen) {
            return false;
        }
        let one = self.next && !is(&["NULL"]);
        self.touches = one;
        if self.words < 2 {
            let known: &[&str] = match self.words {
                0 => &["CREATE", "ALTER"],
                _ => &["ROLE", "USER", "GROUP"],
            };
            // Another statement has none.
            self.words = if is(known) { self.words + 1 } else { usize::MAX };
        }
        self.next = self.words == 2 && !one && is(&["PASSWORD"]);
        one && matches!(token, Token::Word(_))
    }
}

fn is_text(token: &Token) -> bool {
    !matches!(
        token,
        Token::Word(_)
            | Token::Eq
            | Token::LParen
            | Token::RParen
            | Token::Comma
            | Token::SemiColon
    )
}

/// Whether a literal speaks of passwords itself: a statement in a statement (DO, a function's
/// body), a connection's text, a verifier.
fn may_hold_one(token: &Token) -> bool {
    if matches!(token, Token::Word(_)) {
        return false;
    }
    let text = token.to_string().to_ascii_lowercase();
    text.contains("password") || text.contains("scram-sha-256$")
}

#[cfg(test)]
mod tests {
    use super::*;
    use telesto_sql_parser::parse;

    #[test]
    fn passwords_and_comments_are_left_out_whatever_their_quotes() {
        for (sql, told) in [
            (
                "CREATE ROLE a LOGIN PASSWORD 'secret' CREATEDB",
                "CREATE ROLE a LOGIN PASSWORD '***' CREATEDB",
            ),
            ("alter user a password E'sec\\'ret'", "alter user a password '***'"),
            ("ALTER ROLE a PASSWORD $x$secret$x$", "ALTER ROLE a PASSWORD '***'"),
            ("ALTER ROLE a PASSWORD U&'secret'", "ALTER ROLE a PASSWORD '***'"),
            ("ALTER ROLE a PASSWORD 'sec'\n'ret'", "ALTER ROLE a PASSWORD '***'\n'***'"),
            ("ALTER ROLE a PASSWORD /* secret */ 'secret'", "ALTER ROLE a PASSWORD   '***'"),
            ("UPDATE t SET password = 'secret', b = 'c'", "UPDATE t SET password = '***', b = 'c'"),
            (
                "ALTER ROLE a PASSWORD NULL VALID UNTIL 'x' -- secret",
                "ALTER ROLE a PASSWORD NULL VALID UNTIL 'x' \n",
            ),
            ("ALTER ROLE a PASSWORD 'secret", "ALTER ROLE a PASSWORD  …"),
            ("ALTER ROLE a PASSWORD (('secret'))", "ALTER ROLE a PASSWORD (('***'))"),
            ("ALTER ROLE a password=5", "ALTER ROLE a password='***'"),
            ("DO $$ ALTER ROLE a PASSWORD 'secret' $$", "DO '***'"),
            ("DO 'alter role a password ''secret'''", "DO '***'"),
            ("SELECT f('host=a password=secret', 'b')", "SELECT f('***', 'b')"),
            ("SELECT 'SCRAM-SHA-256$4096:secret$secret:secret'", "SELECT '***'"),
            (
                "ALTER ROLE a PASSWORD secret VALID UNTIL 'x'",
                "ALTER ROLE a PASSWORD '***' VALID UNTIL 'x'",
            ),
            (
                "CREATE USER a ENCRYPTED PASSWORD \"secret\"",
                "CREATE USER a ENCRYPTED PASSWORD '***'",
            ),
            ("alter role a password = secret; select a", "alter role a password = '***'; select a"),
            ("ALTER ROLE a PASSWORD secret-2@x LOGIN", "ALTER ROLE a PASSWORD '***' LOGIN"),
            ("ALTER ROLE a PASSWORD 2secret;SELECT b", "ALTER ROLE a PASSWORD '***';SELECT b"),
            ("ALTER ROLE a PASSWORD 'x'secret", "ALTER ROLE a PASSWORD '***'"),
            ("CREATE TABLE a (password text)", "CREATE TABLE a (password text)"),
            ("SELECT password FROM a", "SELECT password FROM a"),
            ("GRANT a TO \"password\"", "GRANT a TO \"password\""),
        ] {
            assert_eq!(without_passwords(sql), told);
        }
    }

    #[test]
    fn long_text_is_cut_and_never_inside_of_a_password() {
        let sql = format!("CREATE ROLE a PASSWORD '{}'", "secret".repeat(TEXT_BYTES));
        assert_eq!(without_passwords(&sql), "CREATE ROLE a PASSWORD  …");
    }

    #[test]
    fn statements_have_their_class() {
        for (sql, class) in [
            ("SELECT 1", None),
            ("INSERT INTO t VALUES (1)", None),
            ("SET ROLE a", None),
            ("EXPLAIN CREATE TABLE t AS SELECT 1", None),
            ("CREATE TABLE t (a int)", Some(AuditClass::Definition)),
            ("ALTER TABLE t ADD b int", Some(AuditClass::Definition)),
            ("DROP TABLE t", Some(AuditClass::Definition)),
            ("TRUNCATE t", Some(AuditClass::Definition)),
            ("SELECT a INTO t FROM u", Some(AuditClass::Definition)),
            ("SELECT a INTO TEMP t FROM u", Some(AuditClass::Definition)),
            ("EXPLAIN ANALYZE SELECT a INTO t FROM u", Some(AuditClass::Definition)),
            ("CREATE ROLE a", Some(AuditClass::Role)),
            ("ALTER ROLE a PASSWORD 'x'", Some(AuditClass::Role)),
            ("ALTER ROLE a SET work_mem = 64", Some(AuditClass::Role)),
            ("ALTER DATABASE a RESET ALL", Some(AuditClass::Role)),
            ("DROP USER a", Some(AuditClass::Role)),
            ("GRANT SELECT ON t TO a", Some(AuditClass::Role)),
            ("REVOKE a FROM b", Some(AuditClass::Role)),
        ] {
            let parsed = parse::parse(sql).expect("parses");
            let statement = parsed[0].statement.as_ref().expect("a statement");
            assert_eq!(audited_class(statement), class, "{sql}");
        }
    }
}
