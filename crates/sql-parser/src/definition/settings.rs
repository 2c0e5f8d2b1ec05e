//! ALTER ROLE, USER and DATABASE … SET and RESET: settings that sessions begin with.
//!
//! # Invariants
//! What SET takes is read here as SET reads it: words are folded unless quoted, numbers are as
//! written. TRUE and FALSE stay these words.
//!
//! # On failure
//! 42601.
//!
//! # Limits
//! Names are as written; which parameters there are is known when the statement runs.

use super::privileges::RoleSpec;
use super::words::Words;
use super::{Definition, words::is_word};
use crate::names::fold;
use crate::setting_values::{is_default, set_value, zone_value};
use crate::sqlparser::ast::{Expr, ObjectName, Value};
use crate::sqlparser::tokenizer::Token;
use telesto_sql_types::error::{Error, Result};

/// Whose settings, and what becomes of them.
#[derive(Clone, Debug)]
pub struct SettingsOf {
    /// Of which role; `None`: of all.
    pub role: Option<RoleSpec>,
    /// In this database; `None`: in all.
    pub database: Option<ObjectName>,
    /// ALTER DATABASE, not ALTER ROLE.
    pub of_database: bool,
    /// What becomes of them.
    pub change: SettingChange,
}

/// What becomes of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingChange {
    /// SET name TO values.
    Set(String, Vec<String>),
    /// SET name FROM CURRENT.
    FromCurrent(String),
    /// RESET name, or SET name TO DEFAULT.
    Reset(String),
    /// RESET ALL.
    ResetAll,
}

impl Words<'_> {
    /// Whether SET or RESET of a setting is next.
    pub fn peek_settings(&self) -> bool {
        let tablespace = is_word(&self.0.peek_nth_token(1).token, "TABLESPACE");
        (self.peek_words(&["SET"]) && !tablespace) || self.peek_words(&["RESET"])
    }

    /// ALTER ROLE, behind its role; `None`: ALL.
    pub fn settings_of_role(&mut self, role: Option<RoleSpec>) -> Result<Definition> {
        let database =
            if self.words(&["IN", "DATABASE"]) { Some(self.object_name()?) } else { None };
        let change = self.setting_change()?;
        Ok(Definition::Settings(Box::new(SettingsOf {
            role,
            database,
            of_database: false,
            change,
        })))
    }

    /// ALTER DATABASE, behind its name.
    pub fn settings_of_database(&mut self, name: ObjectName) -> Result<Definition> {
        let change = self.setting_change()?;
        Ok(Definition::Settings(Box::new(SettingsOf {
            role: None,
            database: Some(name),
            of_database: true,
            change,
        })))
    }

    fn setting_change(&mut self) -> Result<SettingChange> {
        if self.words(&["RESET"]) {
            if self.words(&["ALL"]) {
                return Ok(SettingChange::ResetAll);
            }
            for (words, name) in [
                (&["TIME", "ZONE"][..], "TimeZone"),
                (&["SESSION", "AUTHORIZATION"], "session_authorization"),
                (&["TRANSACTION", "ISOLATION", "LEVEL"], "transaction_isolation"),
            ] {
                if self.words(words) {
                    return Ok(SettingChange::Reset(name.to_owned()));
                }
            }
            return Ok(SettingChange::Reset(self.parameter()?));
        }
        self.expect_words(&["SET"])?;
        if self.words(&["TIME", "ZONE"]) {
            let zone = zone_value(&self.expression()?)?;
            let name = "TimeZone".to_owned();
            return Ok(match zone {
                Some(zone) => SettingChange::Set(name, vec![zone]),
                None => SettingChange::Reset(name),
            });
        }
        if self.words(&["NAMES"]) {
            return self.setting_to("client_encoding".to_owned());
        }
        if self.words(&["SESSION", "AUTHORIZATION"]) {
            return self.setting_to("session_authorization".to_owned());
        }
        let assigns = |token: &Token| *token == Token::Eq || is_word(token, "TO");
        if self.peek_words(&["ROLE"]) && !assigns(&self.0.peek_nth_token(1).token) {
            self.words(&["ROLE"]);
            return self.setting_to("role".to_owned());
        }
        let name = self.parameter()?;
        if self.words(&["FROM", "CURRENT"]) {
            return Ok(SettingChange::FromCurrent(name));
        }
        if !self.symbol("=") {
            self.expect_words(&["TO"])?;
        }
        self.setting_to(name)
    }

    fn setting_to(&mut self, name: String) -> Result<SettingChange> {
        let mut values = vec![self.expression()?];
        while self.symbol(",") {
            values.push(self.expression()?);
        }
        if is_default(&values) {
            return Ok(SettingChange::Reset(name));
        }
        let values = values.iter().map(|value| match value {
            Expr::Value(given) => match &given.value {
                // They are stored as written.
                Value::Boolean(on) => Ok(on.to_string()),
                Value::Placeholder(name) => {
                    Err(Error::syntax(format!("syntax error at or near \"{name}\"")))
                }
                _ => set_value(value),
            },
            _ => set_value(value),
        });
        Ok(SettingChange::Set(name, values.collect::<Result<Vec<_>>>()?))
    }

    /// A parameter's name, with points.
    fn parameter(&mut self) -> Result<String> {
        let mut name = fold(&self.identifier()?);
        while self.0.peek_token().token == Token::Period {
            self.0.next_token();
            name.push('.');
            name.push_str(&fold(&self.identifier()?));
        }
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse;

    fn change(sql: &str) -> SettingChange {
        let parsed = parse::parse(sql).expect(sql);
        let statement = parsed[0].statement.as_ref().expect("a statement");
        match crate::definition::read(statement).expect(sql) {
            Some(Definition::Settings(settings)) => settings.change,
            other => panic!("{sql}: {other:?}"),
        }
    }

    #[test]
    fn settings_are_read_as_set_reads_them() {
        let set = |name: &str, values: &[&str]| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            SettingChange::Set(name.to_owned(), values)
        };
        for (sql, expected) in [
            ("ALTER ROLE a SET Work_Mem = '64MB'", set("work_mem", &["64MB"])),
            ("ALTER USER a SET enable_sort TO OFF", set("enable_sort", &["off"])),
            ("ALTER ROLE ALL SET enable_sort = TRUE", set("enable_sort", &["true"])),
            (
                "ALTER ROLE a IN DATABASE d SET search_path TO \"$user\", Public, 'A b'",
                set("search_path", &["$user", "public", "A b"]),
            ),
            ("ALTER DATABASE d SET extra_float_digits = -1", set("extra_float_digits", &["-1"])),
            ("ALTER ROLE a SET \"App\".x = 7", set("App.x", &["7"])),
            ("ALTER ROLE a SET TIME ZONE 'UTC'", set("TimeZone", &["UTC"])),
            ("ALTER ROLE a SET TIME ZONE LOCAL", SettingChange::Reset("TimeZone".to_owned())),
            ("ALTER ROLE a SET ROLE b", set("role", &["b"])),
            ("ALTER ROLE a SET role = b", set("role", &["b"])),
            ("ALTER ROLE a SET NAMES 'utf8'", set("client_encoding", &["utf8"])),
            ("ALTER ROLE a SET x.y TO DEFAULT", SettingChange::Reset("x.y".to_owned())),
            ("ALTER ROLE a RESET TIME ZONE", SettingChange::Reset("TimeZone".to_owned())),
            ("ALTER ROLE a RESET ALL", SettingChange::ResetAll),
            (
                "ALTER ROLE CURRENT_USER SET work_mem FROM CURRENT",
                SettingChange::FromCurrent("work_mem".to_owned()),
            ),
        ] {
            assert_eq!(change(sql), expected, "{sql}");
        }
    }

    #[test]
    fn what_is_no_setting_is_a_syntax_error() {
        for sql in [
            "ALTER ROLE a SET",
            "ALTER ROLE a SET work_mem",
            "ALTER ROLE a SET LOCAL work_mem = 64",
            "ALTER ROLE a SET work_mem = 64 SUPERUSER",
            "ALTER ROLE a IN DATABASE d SUPERUSER",
            "ALTER ROLE a, b SET work_mem = 64",
            "ALTER ROLE ALL SUPERUSER",
            "ALTER GROUP a SET work_mem = 64",
        ] {
            let error = parse::parse(sql).expect_err(sql);
            assert_eq!(error.code().0, "42601", "{sql}");
        }
    }
}
