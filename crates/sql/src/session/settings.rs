//! Run-time parameters: SET, RESET, SHOW.

use std::collections::BTreeMap;

use telesto_txn::{Durability, Level};

/// The settings of a session at one moment. Immutable; replaced as a whole by SET.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The session's user.
    pub session_user: String,
    /// The user whose rights count (SET ROLE).
    pub current_user: String,
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
    /// `telesto.consistency`: `Session` or `Eventual` for reads; `None` is `strict`.
    pub consistency: Option<Level>,
    /// `telesto.durability`
    pub durability: Option<Durability>,
    /// statement_timeout, milliseconds; 0 for none.
    pub statement_timeout_ms: u64,
    /// bytea_output: true for `hex`, false for `escape`.
    pub bytea_hex: bool,
    /// extra_float_digits
    pub extra_float_digits: i32,
    /// standard_conforming_strings is always on; everything else set by name.
    pub others: BTreeMap<String, String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            session_user: "telesto".to_owned(),
            current_user: "telesto".to_owned(),
            database: crate::catalog::DEFAULT_DATABASE.to_owned(),
            search_path: vec!["$user".to_owned(), crate::catalog::PUBLIC.to_owned()],
            time_zone: "UTC".to_owned(),
            application_name: String::new(),
            default_level: Level::Serializable,
            default_read_only: false,
            consistency: None,
            durability: None,
            statement_timeout_ms: 0,
            bytea_hex: true,
            extra_float_digits: 1,
            others: BTreeMap::new(),
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
