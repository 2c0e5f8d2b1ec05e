//! Run-time parameters: SET, RESET, SHOW.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use telesto_txn::{Durability, Level};

use crate::levels::{check_level, level_name, level_named};
use crate::settings_origins::Origins;
use crate::settings_planner;
pub use crate::settings_queue::{ConfigQueue, Configured};
use crate::settings_roles::by_session;
pub use crate::settings_roles::{Becomes, is_of_superusers};
use telesto_sql_types::error::{Error, Result, SqlState};
use telesto_sql_types::{TextStyle, TimeZone};

/// `telesto.executor`: which executor takes queries. Writes are always planned by the key path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Executor {
    /// The key path if it can, else DataFusion.
    #[default]
    Auto,
    /// DataFusion for every query.
    DataFusion,
    /// The key path; a query it cannot take is refused with the reason (0A000).
    Key,
}

impl Executor {
    const ALL: [(&str, Self); 3] =
        [("auto", Self::Auto), ("datafusion", Self::DataFusion), ("key", Self::Key)];

    /// Its name in SET and SHOW.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, own)| *own == self).map_or("auto", |(name, _)| name)
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(own, _)| name.eq_ignore_ascii_case(own)).map(|(_, own)| *own)
    }
}

/// The settings of a session at one moment. Immutable; replaced as a whole by SET.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The session's user.
    pub session_user: String,
    /// The user whose rights count (SET ROLE).
    pub current_user: String,
    /// OID of the role that logged in: what SET SESSION AUTHORIZATION is allowed by.
    pub authenticated_role: u32,
    /// OID of the session's role.
    pub session_role: u32,
    /// OID of the role whose rights count.
    pub current_role: u32,
    /// Whether that was a superuser when it came to count: shown, never relied upon.
    pub superuser: bool,
    /// The database.
    pub database: String,
    /// Schemas searched for unqualified names, `"$user"` not yet replaced.
    pub search_path: Vec<String>,
    /// Time zone as given (`UTC`, `Europe/Berlin`, `+02`).
    pub time_zone: String,
    /// application_name
    pub application_name: String,
    /// Default isolation level of new transactions.
    pub default_level: Level,
    /// default_transaction_read_only
    pub default_read_only: bool,
    /// The session was opened to read only: none of its transactions may write, whatever it is told
    /// by SET or BEGIN.
    pub confined: bool,
    /// `telesto.consistency`: `Session` or `Eventual` for reads; `None` is `strict`.
    pub consistency: Option<Level>,
    /// `telesto.durability`
    pub durability: Option<Durability>,
    /// `telesto.executor`
    pub executor: Executor,
    /// statement_timeout, milliseconds; 0 for none.
    pub statement_timeout_ms: u64,
    /// bytea_output: true for `hex`, false for `escape`.
    pub bytea_hex: bool,
    /// extra_float_digits
    pub extra_float_digits: i32,
    /// standard_conforming_strings is always on; everything else set by name.
    pub others: BTreeMap<String, String>,
    /// Where the values come from.
    #[serde(default)]
    pub origins: Origins,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            session_user: "telesto".to_owned(),
            current_user: "telesto".to_owned(),
            authenticated_role: telesto_sql_catalog::acl::BOOTSTRAP,
            session_role: telesto_sql_catalog::acl::BOOTSTRAP,
            current_role: telesto_sql_catalog::acl::BOOTSTRAP,
            superuser: true,
            database: telesto_sql_catalog::DEFAULT_DATABASE.to_owned(),
            search_path: vec!["$user".to_owned(), telesto_sql_catalog::PUBLIC.to_owned()],
            time_zone: "UTC".to_owned(),
            application_name: String::new(),
            default_level: Level::Serializable,
            default_read_only: false,
            confined: false,
            consistency: None,
            durability: None,
            executor: Executor::Auto,
            statement_timeout_ms: 0,
            bytea_hex: true,
            extra_float_digits: 1,
            others: BTreeMap::new(),
            origins: Origins::default(),
        }
    }
}

impl Settings {
    /// The search path with `"$user"` replaced.
    #[must_use]
    pub fn effective_search_path(&self) -> Vec<String> {
        self.search_path
            .iter()
            .map(|s| if s == "$user" { self.current_user.clone() } else { s.clone() })
            .collect()
    }
}

/// Where the process id that a session shows is kept.
pub const BACKEND_PID: &str = "telesto.backend_pid";

/// The price sheet by which views tell dollars; empty: the bucket's own.
pub const PRICES: &str = "telesto.prices";

/// Parameters that are accepted, kept and shown, but change nothing: what drivers and pg_dump set.
const ACCEPTED: &[(&str, &str)] = &[
    ("allow_in_place_tablespaces", "off"),
    ("backslash_quote", "safe_encoding"),
    ("bytea_output", "hex"),
    ("check_function_bodies", "on"),
    ("client_encoding", "UTF8"),
    ("client_min_messages", "notice"),
    ("datestyle", "ISO, MDY"),
    ("default_table_access_method", "heap"),
    ("default_tablespace", ""),
    ("default_transaction_deferrable", "off"),
    ("default_with_oids", "off"),
    ("escape_string_warning", "on"),
    ("integer_datetimes", "on"),
    ("intervalstyle", "postgres"),
    ("is_superuser", "on"),
    ("lc_collate", "C"),
    ("lc_ctype", "C"),
    ("lc_messages", "C"),
    ("lc_monetary", "C"),
    ("lc_numeric", "C"),
    ("lc_time", "C"),
    ("log_statement", "none"),
    ("max_identifier_length", "63"),
    ("max_index_keys", "32"),
    ("max_connections", "100"),
    ("quote_all_identifiers", "off"),
    ("row_security", "on"),
    ("server_encoding", "UTF8"),
    ("server_version", "15.0"),
    ("server_version_num", "150000"),
    ("session_replication_role", "origin"),
    ("standard_conforming_strings", "on"),
    ("statement_timeout", "0"),
    ("synchronize_seqscans", "on"),
    ("synchronous_commit", "on"),
    (PRICES, ""),
    ("transaction_deferrable", "off"),
    ("transaction_timeout", "0"),
    // The log is no WAL that could be streamed or decoded.
    ("wal_level", "minimal"),
    ("xmlbinary", "base64"),
    ("xmloption", "content"),
];

const FIXED: &[&str] = &[
    "integer_datetimes",
    "is_superuser",
    "lc_collate",
    "lc_ctype",
    "max_identifier_length",
    "max_index_keys",
    "max_connections",
    "server_encoding",
    "server_version",
    "server_version_num",
    "wal_level",
];

/// The parameters reported to clients when they change (ParameterStatus).
pub const REPORTED: &[&str] = &[
    "application_name",
    "client_encoding",
    "DateStyle",
    "default_transaction_read_only",
    "integer_datetimes",
    "IntervalStyle",
    "is_superuser",
    "server_encoding",
    "server_version",
    "session_authorization",
    "standard_conforming_strings",
    "TimeZone",
];

/// Whether the parameter, in lower case, is nobody's to change.
pub(crate) fn is_fixed(lower: &str) -> bool {
    FIXED.contains(&lower)
}

fn unknown(name: &str) -> Error {
    Error::new(
        SqlState::UNDEFINED_OBJECT,
        format!("unrecognized configuration parameter \"{name}\""),
    )
}

fn invalid(name: &str, value: &str) -> Error {
    Error::new(
        SqlState::INVALID_PARAMETER_VALUE,
        format!("invalid value for parameter \"{name}\": \"{value}\""),
    )
}

fn boolean(name: &str, value: &str) -> Result<bool> {
    match value.to_ascii_lowercase().as_str() {
        "on" | "true" | "t" | "yes" | "1" => Ok(true),
        "off" | "false" | "f" | "no" | "0" => Ok(false),
        _ => Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("parameter \"{name}\" requires a Boolean value"),
        )),
    }
}

/// A duration: bare numbers are milliseconds.
fn milliseconds(name: &str, value: &str) -> Result<u64> {
    let value = value.trim();
    let digits = value.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
    let number: u64 = digits.parse().map_err(|_| invalid(name, value))?;
    let factor = match value[digits.len()..].trim() {
        "" | "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(invalid(name, value)),
    };
    // PostgreSQL's largest.
    number.checked_mul(factor).filter(|ms| *ms <= 2_147_483_647).ok_or_else(|| {
        Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!(
                "{value} is outside the valid range for parameter \"{name}\" (0 .. 2147483647 ms)"
            ),
        )
    })
}

impl Settings {
    /// How long to wait for a lock at most; zero: for ever.
    ///
    /// # Errors
    /// 22023 for what is no duration.
    pub fn lock_timeout(&self) -> Result<std::time::Duration> {
        let set = self.others.get("lock_timeout");
        let ms = set.map_or(Ok(0), |value| milliseconds("lock_timeout", value))?;
        Ok(std::time::Duration::from_millis(ms))
    }

    /// Sets a parameter; `values` as written (a list for search_path).
    ///
    /// # Errors
    /// 42704 for an unknown parameter, 22023 for a bad value, 55P02 for a fixed one.
    pub fn set(&mut self, name: &str, values: &[String]) -> Result<()> {
        let lower = name.to_ascii_lowercase();
        self.may_set(&lower)?;
        self.assign(name, values)?;
        self.origins.is_set(lower);
        Ok(())
    }

    /// [`Settings::set`], whoever may.
    pub(crate) fn assign(&mut self, name: &str, values: &[String]) -> Result<()> {
        let lower = name.to_ascii_lowercase();
        let joined = values.join(", ");
        let value = joined.trim();
        match lower.as_str() {
            "search_path" => {
                self.search_path = values.iter().filter(|v| !v.is_empty()).cloned().collect();
            }
            "timezone" => {
                let zone =
                    TimeZone::parse(value, false).ok_or_else(|| invalid("TimeZone", value))?;
                self.time_zone = match zone {
                    TimeZone::Named(_) => zone.name(),
                    TimeZone::Fixed(_) if TimeZone::of_hours(value).is_some() => zone.name(),
                    TimeZone::Fixed(_) => value.to_uppercase(),
                };
            }
            "application_name" => value.clone_into(&mut self.application_name),
            "default_transaction_isolation" => {
                self.default_level = level_named(value).ok_or_else(|| invalid(name, value))?;
            }
            "default_transaction_read_only" => self.default_read_only = boolean(name, value)?,
            "statement_timeout" => self.statement_timeout_ms = milliseconds(name, value)?,
            "bytea_output" => {
                self.bytea_hex = match value.to_ascii_lowercase().as_str() {
                    "hex" => true,
                    "escape" => false,
                    _ => return Err(invalid(name, value)),
                };
            }
            "extra_float_digits" => {
                self.extra_float_digits = value
                    .parse()
                    .ok()
                    .filter(|n| (-15..=3).contains(n))
                    .ok_or_else(|| invalid(name, value))?;
            }
            "telesto.consistency" | "telesto.durability" | "telesto.executor" => {
                self.assign_own(&lower, name, value)?;
            }
            "client_encoding" => {
                let plain: String =
                    value.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
                if !matches!(plain.to_ascii_uppercase().as_str(), "UTF8" | "UNICODE" | "SQLASCII") {
                    return Err(Error::unsupported(format!("client_encoding {value}"))
                        .hint("Telesto speaks UTF8 only."));
                }
            }
            "datestyle" => {
                let upper = value.to_ascii_uppercase();
                if !upper.split(',').all(|p| matches!(p.trim(), "ISO" | "MDY" | "US")) {
                    return Err(Error::unsupported(format!("DateStyle {value}"))
                        .hint("Telesto prints and reads dates as ISO, MDY."));
                }
            }
            "intervalstyle" => match value.to_ascii_lowercase().as_str() {
                "postgres" | "iso_8601" => {
                    self.others.insert(lower, value.to_ascii_lowercase());
                }
                "postgres_verbose" | "sql_standard" => {
                    return Err(Error::unsupported(format!("IntervalStyle {value}"))
                        .hint("Telesto prints intervals as postgres or iso_8601."));
                }
                _ => return Err(invalid("IntervalStyle", value)),
            },
            "standard_conforming_strings" if !boolean(name, value)? => {
                return Err(Error::unsupported("standard_conforming_strings = off"));
            }
            "session_authorization" | "role" => return Err(by_session(name)),
            fixed if is_fixed(fixed) => {
                return Err(Error::new(
                    SqlState::CANT_CHANGE_RUNTIME_PARAM,
                    format!("parameter \"{name}\" cannot be changed"),
                ));
            }
            other
                if other.contains('.') && !other.starts_with("telesto.")
                    || ACCEPTED.iter().any(|(known, _)| *known == other) =>
            {
                check_level(other, value)?;
                // Blanks are the application's own.
                let kept = if other.contains('.') { joined } else { value.to_owned() };
                self.others.insert(lower, kept);
            }
            other => {
                let kept = settings_planner::checked(other, value)?.ok_or_else(|| unknown(name))?;
                self.others.insert(lower, kept);
            }
        }
        Ok(())
    }

    /// [`Settings::assign`] of what fields are for.
    fn assign_own(&mut self, lower: &str, name: &str, value: &str) -> Result<()> {
        match lower {
            "telesto.consistency" => {
                self.consistency = match value.to_ascii_lowercase().as_str() {
                    "strict" | "default" => None,
                    "session" => Some(Level::Session),
                    "eventual" => Some(Level::Eventual),
                    _ => {
                        return Err(invalid(name, value)
                            .hint("Available values: strict, session, eventual."));
                    }
                };
            }
            "telesto.durability" => {
                self.durability = match value.to_ascii_lowercase().as_str() {
                    "default" => None,
                    "bucket" => Some(Durability::Bucket),
                    "quorum" => Some(Durability::Quorum),
                    _ => {
                        return Err(
                            invalid(name, value).hint("Available values: default, bucket, quorum.")
                        );
                    }
                };
            }
            "telesto.executor" => {
                self.executor = Executor::named(value).ok_or_else(|| {
                    invalid(name, value).hint("Available values: auto, datafusion, key.")
                })?;
            }
            _ => return Err(unknown(name)),
        }
        Ok(())
    }

    /// Puts a parameter back to its value in `defaults`.
    ///
    /// # Errors
    /// 42704; 42501 for a parameter that is not for the role.
    pub fn reset(&mut self, name: &str, defaults: &Self) -> Result<()> {
        let lower = name.to_ascii_lowercase();
        self.may_set(&lower)?;
        match lower.as_str() {
            "search_path" => self.search_path.clone_from(&defaults.search_path),
            "telesto.consistency" => self.consistency = defaults.consistency,
            "telesto.durability" => self.durability = defaults.durability,
            "telesto.executor" => self.executor = defaults.executor,
            "role" | "session_authorization" => return Err(by_session(name)),
            _ => match defaults.others.get(&lower) {
                Some(value) => drop(self.others.insert(lower.clone(), value.clone())),
                None if self.others.remove(&lower).is_some() => {
                    // Of an application's the session knows the name from now on.
                    if lower.contains('.') && !lower.starts_with("telesto.") {
                        self.others.insert(lower.clone(), String::new());
                    }
                }
                None => {
                    let value = defaults.show(name)?;
                    if !is_fixed(&lower) {
                        self.assign(name, &[value])?;
                        self.others.remove(&lower);
                    }
                }
            },
        }
        self.origins.is_reset(&lower);
        Ok(())
    }

    /// SHOW.
    ///
    /// # Errors
    /// 42704.
    pub fn show(&self, name: &str) -> Result<String> {
        let lower = name.to_ascii_lowercase();
        let flag = |on: bool| if on { "on" } else { "off" }.to_owned();
        Ok(match lower.as_str() {
            "search_path" => self
                .search_path
                .iter()
                .map(|s| {
                    if s.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
                        s.clone()
                    } else {
                        format!("\"{s}\"")
                    }
                })
                .collect::<Vec<_>>()
                .join(", "),
            "timezone" => self.time_zone.clone(),
            "application_name" => self.application_name.clone(),
            "default_transaction_isolation" => level_name(self.default_level).to_owned(),
            "default_transaction_read_only" => flag(self.default_read_only),
            "statement_timeout" => match self.statement_timeout_ms {
                0 => "0".to_owned(),
                ms if ms % 60_000 == 0 => format!("{}min", ms / 60_000),
                ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
                ms => format!("{ms}ms"),
            },
            "bytea_output" => if self.bytea_hex { "hex" } else { "escape" }.to_owned(),
            "extra_float_digits" => self.extra_float_digits.to_string(),
            "telesto.consistency" => self.consistency.map_or("strict", level_name).to_owned(),
            "telesto.durability" => match self.durability {
                None => "default",
                Some(Durability::Bucket) => "bucket",
                Some(Durability::Quorum) => "quorum",
            }
            .to_owned(),
            "telesto.executor" => self.executor.name().to_owned(),
            "session_authorization" => self.session_user.clone(),
            "is_superuser" => flag(self.superuser),
            "role" => {
                if self.current_role == self.session_role {
                    "none".to_owned()
                } else {
                    self.current_user.clone()
                }
            }
            other => match self.others.get(other) {
                Some(value) => value.clone(),
                None => ACCEPTED
                    .iter()
                    .find(|(known, _)| *known == other)
                    .map(|(_, value)| (*value).to_owned())
                    .or_else(|| settings_planner::initial(other))
                    .ok_or_else(|| unknown(name))?,
            },
        })
    }

    /// Every parameter with its value, by name.
    #[must_use]
    pub fn all(&self) -> Vec<(String, String)> {
        const OWN: &[&str] = &[
            "application_name",
            "default_transaction_isolation",
            "default_transaction_read_only",
            "extra_float_digits",
            "search_path",
            "TimeZone",
            "telesto.consistency",
            "telesto.durability",
            "telesto.executor",
        ];
        let mut all: Vec<(String, String)> = OWN
            .iter()
            .copied()
            .chain(ACCEPTED.iter().map(|(name, _)| *name))
            .chain(settings_planner::names())
            .filter_map(|name| Some((name.to_owned(), self.show(name).ok()?)))
            .collect();
        all.sort();
        all
    }

    /// The session's time zone.
    #[must_use]
    pub fn zone(&self) -> TimeZone {
        TimeZone::parse(&self.time_zone, false).unwrap_or_default()
    }

    /// What text input and output depend on; `now_micros` is the start of the transaction.
    #[must_use]
    pub fn text_style(&self, now_micros: i64) -> TextStyle {
        TextStyle {
            zone: self.zone(),
            now_micros,
            bytea_hex: self.bytea_hex,
            extra_float_digits: self.extra_float_digits,
            interval_iso: self.interval_iso(),
        }
    }

    /// Whether intervals are shown in the form of ISO 8601.
    #[must_use]
    pub fn interval_iso(&self) -> bool {
        self.others.get("intervalstyle").is_some_and(|style| style.eq_ignore_ascii_case("iso_8601"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_show_and_reset_follow_postgres() {
        let mut s = Settings::default();
        s.set("TimeZone", &["europe/berlin".to_owned()]).expect("zone");
        assert_eq!(s.show("timezone").as_deref(), Ok("Europe/Berlin"));
        s.set("search_path", &["a".to_owned(), "B c".to_owned()]).expect("path");
        assert_eq!(s.show("search_path").as_deref(), Ok("a, \"B c\""));
        s.reset("search_path", &Settings::default()).expect("reset");
        assert_eq!(s.show("search_path").as_deref(), Ok("\"$user\", public"));
        s.set("statement_timeout", &["2min".to_owned()]).expect("timeout");
        assert_eq!(
            (s.statement_timeout_ms, s.show("statement_timeout").as_deref()),
            (120_000, Ok("2min"))
        );
        for (name, value, code) in [
            ("nosuch", "1", "42704"),
            ("telesto.nosuch", "1", "42704"),
            ("TimeZone", "Mars/Phobos", "22023"),
            ("server_version", "9", "55P02"),
            ("client_encoding", "LATIN1", "0A000"),
            ("telesto.consistency", "weak", "22023"),
            ("telesto.executor", "fast", "22023"),
        ] {
            assert_eq!(s.set(name, &[value.to_owned()]).expect_err(name).code().0, code, "{name}");
        }
        s.set("myapp.user", &["7".to_owned()]).expect("custom");
        assert_eq!(s.show("myapp.user").as_deref(), Ok("7"));
    }
}
