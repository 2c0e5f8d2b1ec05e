//! Actions of ALTER TABLE and its kin that have no effect here: triggers, rules, where and how rows
//! are stored.
//!
//! # How it works
//! Each form that PostgreSQL documents is read to its end. What it names is kept, so that `ddl` can
//! ask whether it is there.
//!
//! # On failure
//! Any other form is a syntax error (42601): a word misspelt in `ENABLE ROW LEVEL SECURITY` must
//! not pass for a statement without effect.

use super::words::Words;
use super::{Effectless, Kind, Named};
use crate::sqlparser::tokenizer::Token;
use telesto_sql_types::SqlState;
use telesto_sql_types::error::{Error, Result};

/// An action that names nothing.
const fn plain(shown: &'static str) -> Effectless {
    Effectless { shown, named: Named::Nothing }
}

fn invalid(message: String) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

impl Words<'_> {
    /// One of the actions without effect; `None`: another action is next, or none.
    pub(super) fn effectless(&mut self) -> Result<Option<Effectless>> {
        let found = if self.words(&["ENABLE"]) {
            self.enable()?
        } else if self.words(&["DISABLE"]) {
            if self.words(&["TRIGGER"]) {
                self.trigger("DISABLE TRIGGER", "DISABLE TRIGGER ALL", "DISABLE TRIGGER USER")?
            } else {
                self.expect_words(&["RULE"])?;
                let named = Named::Rule(self.identifier()?);
                Effectless { shown: "DISABLE RULE", named }
            }
        } else if self.words(&["CLUSTER", "ON"]) {
            Effectless { shown: "CLUSTER ON", named: Named::ClusterIndex(self.identifier()?) }
        } else if self.words(&["SET", "WITHOUT"]) {
            if self.words(&["CLUSTER"]) {
                plain("SET WITHOUT CLUSTER")
            } else {
                self.expect_words(&["OIDS"])?;
                plain("SET WITHOUT OIDS")
            }
        } else if self.words(&["SET", "TABLESPACE"]) {
            Effectless { shown: "SET TABLESPACE", named: Named::Tablespace(self.identifier()?) }
        } else if self.words(&["SET", "LOGGED"]) {
            Effectless { shown: "SET LOGGED", named: Named::Persistence }
        } else if self.words(&["SET", "UNLOGGED"]) {
            Effectless { shown: "SET UNLOGGED", named: Named::Persistence }
        } else if self.words(&["SET", "ACCESS"]) {
            self.expect_words(&["METHOD"])?;
            let named = Named::AccessMethod(self.identifier()?);
            Effectless { shown: "SET ACCESS METHOD", named }
        } else if self.words(&["REPLICA"]) {
            self.expect_words(&["IDENTITY"])?;
            self.replica_identity()?
        } else {
            return Ok(None);
        };
        Ok(Some(found))
    }

    /// Behind ENABLE.
    fn enable(&mut self) -> Result<Effectless> {
        let (trigger, rule) = if self.words(&["ALWAYS"]) {
            ("ENABLE ALWAYS TRIGGER", "ENABLE ALWAYS RULE")
        } else if self.words(&["REPLICA"]) {
            ("ENABLE REPLICA TRIGGER", "ENABLE REPLICA RULE")
        } else if self.words(&["TRIGGER"]) {
            return self.trigger("ENABLE TRIGGER", "ENABLE TRIGGER ALL", "ENABLE TRIGGER USER");
        } else {
            self.expect_words(&["RULE"])?;
            let named = Named::Rule(self.identifier()?);
            return Ok(Effectless { shown: "ENABLE RULE", named });
        };
        if self.words(&["TRIGGER"]) {
            if self.peek_words(&["ALL"]) || self.peek_words(&["USER"]) {
                return Err(self.unexpected());
            }
            return Ok(Effectless { shown: trigger, named: Named::Trigger(self.identifier()?) });
        }
        self.expect_words(&["RULE"])?;
        Ok(Effectless { shown: rule, named: Named::Rule(self.identifier()?) })
    }

    /// A trigger's name, or ALL, or USER.
    fn trigger(
        &mut self,
        one: &'static str,
        all: &'static str,
        user: &'static str,
    ) -> Result<Effectless> {
        if self.words(&["ALL"]) {
            return Ok(plain(all));
        }
        if self.words(&["USER"]) {
            return Ok(plain(user));
        }
        Ok(Effectless { shown: one, named: Named::Trigger(self.identifier()?) })
    }

    fn replica_identity(&mut self) -> Result<Effectless> {
        if self.words(&["USING"]) {
            self.expect_words(&["INDEX"])?;
            let named = Named::IdentityIndex(self.identifier()?);
            return Ok(Effectless { shown: "REPLICA IDENTITY", named });
        }
        if !(self.words(&["FULL"]) || self.words(&["NOTHING"])) {
            self.expect_words(&["DEFAULT"])?;
        }
        Ok(plain("REPLICA IDENTITY"))
    }

    /// `ALTER COLUMN 1 SET STATISTICS 100` of an index; the number is next.
    pub(super) fn index_column(&mut self) -> Result<Effectless> {
        let number = self.integer()?;
        if !self.words(&["SET", "STATISTICS"]) {
            return Err(self.unexpected());
        }
        self.statistics_target()?;
        let shown = "ALTER COLUMN ... SET STATISTICS";
        Ok(Effectless { shown, named: Named::IndexColumn(number) })
    }

    fn statistics_target(&mut self) -> Result<()> {
        let target = self.integer()?;
        if target < -1 {
            return Err(invalid(format!("statistics target {target} is too low")));
        }
        Ok(())
    }

    /// What has no effect on a column: SET STATISTICS, STORAGE, COMPRESSION, SET (…) and RESET (…).
    /// Whether one was next.
    pub(super) fn column_effectless(&mut self) -> Result<bool> {
        if self.words(&["SET", "STATISTICS"]) {
            self.statistics_target()?;
        } else if self.words(&["SET", "STORAGE"]) {
            let storage = self.unreserved()?;
            let known = ["plain", "external", "extended", "main"];
            if !known.contains(&storage.to_lowercase().as_str()) {
                return Err(invalid(format!("invalid storage type \"{storage}\"")));
            }
        } else if self.words(&["SET", "COMPRESSION"]) {
            if !self.words(&["DEFAULT"]) {
                let method = self.unreserved()?;
                if !["pglz", "lz4"].contains(&method.as_str()) {
                    return Err(invalid(format!("invalid compression method \"{method}\"")));
                }
            }
        } else if self.peek_options() {
            let reset = self.words(&["RESET"]);
            if !reset {
                self.expect_words(&["SET"])?;
            }
            let settings = self.settings(reset)?;
            settings.iter().filter(|_| !reset).try_for_each(|(name, value)| option(name, value))?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// A name as an option's value: DEFAULT and strings are none.
    fn unreserved(&mut self) -> Result<String> {
        let name = matches!(self.0.peek_token().token, Token::Word(_));
        if !name || self.peek_words(&["DEFAULT"]) {
            return Err(self.unexpected());
        }
        let name = self.identifier()?;
        Ok(if name.quote_style.is_some() { name.value } else { name.value.to_lowercase() })
    }

    /// What PostgreSQL has of inheritance, partitions and extensions, by its name; `None`: another
    /// action is next, or none.
    pub(super) fn unsupported(&mut self, kind: Kind) -> Result<Option<&'static str>> {
        Ok(Some(if self.words(&["INHERIT"]) {
            self.object_name()?;
            "INHERIT"
        } else if self.words(&["NO", "INHERIT"]) {
            self.object_name()?;
            "NO INHERIT"
        } else if self.words(&["ATTACH"]) {
            self.expect_words(&["PARTITION"])?;
            self.object_name()?;
            if kind != Kind::Index {
                if !(self.peek_words(&["DEFAULT"]) || self.peek_words(&["FOR", "VALUES"])) {
                    return Err(self.unexpected());
                }
                self.rest_of_action();
            }
            "ATTACH PARTITION"
        } else if self.words(&["DETACH"]) {
            self.expect_words(&["PARTITION"])?;
            self.object_name()?;
            let _ = self.words(&["CONCURRENTLY"]) || self.words(&["FINALIZE"]);
            "DETACH PARTITION"
        } else if self.words(&["DEPENDS"]) {
            self.expect_words(&["ON", "EXTENSION"])?;
            self.identifier()?;
            "DEPENDS ON EXTENSION"
        } else if self.words(&["NO", "DEPENDS"]) {
            self.expect_words(&["ON", "EXTENSION"])?;
            self.identifier()?;
            "NO DEPENDS ON EXTENSION"
        } else if self.words(&["OF"]) {
            self.object_name()?;
            "OF"
        } else if self.words(&["NOT", "OF"]) {
            "NOT OF"
        } else {
            return Ok(None);
        }))
    }
}

/// Fails unless PostgreSQL knows this option of a column and its value.
fn option(name: &str, value: &Option<String>) -> Result<()> {
    if !["n_distinct", "n_distinct_inherited"].contains(&name) {
        return Err(invalid(format!("unrecognized parameter \"{name}\"")));
    }
    let value = value.as_deref().unwrap_or("true");
    match value.parse::<f64>() {
        Ok(number) if number >= -1.0 => Ok(()),
        Ok(_) => Err(invalid(format!("value {value} out of bounds for option \"{name}\""))),
        Err(_) => {
            Err(invalid(format!("invalid value for floating point option \"{name}\": {value}")))
        }
    }
}
