//! Where the values of a session's parameters come from, and what RESET goes back to.
//!
//! # Invariants
//! - A parameter that nothing is said of here has its built-in value, or one that the session was
//!   opened with.
//! - Names are in lower case.
//!
//! # On failure
//! Nothing here fails but what setting a parameter does.
//!
//! # Limits
//! `pg_settings` alone reads it: no statement means anything else for it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use telesto_sql_types::error::Result;

use crate::Settings;
use crate::settings::is_fixed;

/// The values that a parameter's text stands for, as SET takes them: names of a search path, one
/// value of any other.
#[must_use]
pub fn values_of(name: &str, text: &str) -> Vec<String> {
    if name.eq_ignore_ascii_case("search_path") { names_in(text) } else { vec![text.to_owned()] }
}

/// A list of names as written: quoted ones as they are, others folded to lower case.
fn names_in(list: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut name, mut blanks, mut quoted) = (String::new(), String::new(), false);
    let mut chars = list.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.next_if_eq(&'"').is_some() => name.push('"'),
            '"' => quoted = !quoted,
            ',' if !quoted => {
                names.push(std::mem::take(&mut name));
                blanks.clear();
            }
            // Blanks count between letters only.
            c if !quoted && c.is_whitespace() => blanks.push(c),
            c => {
                if !name.is_empty() {
                    name.push_str(&blanks);
                }
                blanks.clear();
                if quoted { name.push(c) } else { name.extend(c.to_lowercase()) }
            }
        }
    }
    names.push(name);
    names
}

/// Who gave a parameter the value that a session begins with; a later one goes over those before
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Source {
    /// ALTER ROLE ALL.
    AllRoles,
    /// ALTER DATABASE.
    Database,
    /// ALTER ROLE.
    Role,
    /// ALTER ROLE … IN DATABASE.
    RoleInDatabase,
    /// The client, when it connected.
    Client,
}

impl Source {
    /// Its name in `pg_settings`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AllRoles => "global",
            Self::Database => "database",
            Self::Role => "user",
            Self::RoleInDatabase => "database user",
            Self::Client => "client",
        }
    }
}

/// Where values come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origins {
    /// What the session began with, where that is not built in.
    begun: BTreeMap<String, (Source, String)>,
    /// What was SET since.
    set: BTreeSet<String>,
}

impl Origins {
    pub(crate) fn is_set(&mut self, name: String) {
        self.set.insert(name);
    }

    pub(crate) fn is_reset(&mut self, name: &str) {
        self.set.remove(name);
    }
}

impl Settings {
    /// Sets a parameter for a session that begins: RESET goes back to it. Whether a role may set it
    /// is asked of the client alone: who stored a value was asked then.
    ///
    /// # Errors
    /// Those of [`Settings::set`].
    pub fn begin_with(&mut self, source: Source, name: &str, values: &[String]) -> Result<()> {
        let lower = name.to_ascii_lowercase();
        if source == Source::Client {
            self.may_set(&lower)?;
        }
        self.assign(name, values)?;
        let value = self.show(name)?;
        self.origins.begun.insert(lower, (source, value));
        Ok(())
    }

    /// Where a parameter's value comes from, as `pg_settings` says it.
    #[must_use]
    pub fn source_of(&self, name: &str) -> &'static str {
        let lower = name.to_ascii_lowercase();
        if self.origins.set.contains(&lower) {
            return "session";
        }
        self.origins.begun.get(&lower).map_or("default", |(source, _)| source.name())
    }

    /// What a parameter is once it was RESET; `None`: it is one that the application made.
    #[must_use]
    pub fn reset_value(&self, name: &str) -> Option<String> {
        let lower = name.to_ascii_lowercase();
        if is_fixed(&lower) {
            return self.show(name).ok();
        }
        match self.origins.begun.get(&lower) {
            Some((_, value)) => Some(value.clone()),
            None => Self::default().show(name).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Vec<String> {
        vec![value.to_owned()]
    }

    #[test]
    fn reset_goes_back_to_what_the_session_began_with() {
        let mut settings = Settings::default();
        for (source, name, value) in [
            (Source::AllRoles, "work_mem", "1MB"),
            (Source::Role, "work_mem", "2MB"),
            (Source::Role, "app.tenant", "7"),
            (Source::Database, "TimeZone", "Europe/Berlin"),
            (Source::Database, "statement_timeout", "90s"),
            (Source::Client, "search_path", "a"),
        ] {
            settings.begin_with(source, name, &text(value)).expect(name);
        }
        let defaults = settings.clone();
        for (name, value, begun, source) in [
            ("work_mem", "3MB", "2MB", "user"),
            ("app.tenant", "8", "7", "user"),
            ("timezone", "UTC", "Europe/Berlin", "database"),
            ("statement_timeout", "1s", "90s", "database"),
            ("search_path", "b", "a", "client"),
            ("enable_sort", "off", "on", "default"),
            ("application_name", "shop", "", "default"),
        ] {
            settings.set(name, &text(value)).expect(name);
            assert_eq!(
                (settings.show(name).as_deref(), settings.source_of(name)),
                (Ok(value), "session")
            );
            assert_eq!(settings.reset_value(name).as_deref(), Some(begun), "{name}");
            settings.reset(name, &defaults).expect(name);
            assert_eq!(
                (settings.show(name).as_deref(), settings.source_of(name)),
                (Ok(begun), source)
            );
        }
        assert_eq!(settings, defaults);
    }

    #[test]
    fn what_was_stored_is_set_for_whomever_and_what_a_client_asks_is_not() {
        let mut settings = Settings { superuser: false, ..Settings::default() };
        let value = text("all");
        settings.begin_with(Source::Role, "log_statement", &value).expect("stored by a superuser");
        let asked = settings.begin_with(Source::Client, "log_statement", &value);
        assert_eq!(asked.expect_err("refused").code().0, "42501");
        let defaults = settings.clone();
        let reset = settings.reset("log_statement", &defaults);
        assert_eq!(reset.expect_err("refused").code().0, "42501");
    }
}
