//! Which settings a plan depends on.
//!
//! # Purpose
//! A plan is kept with the settings it was made under, and used again under settings that plan
//! alike. Sessions of one application differ in what they are called and in what it tells them of a
//! request (`SET LOCAL app.tenant = …`); their plans are the same.
//!
//! # Invariants
//! - Planning evaluates constants alone, by immutable functions and casts. What is left out here is
//!   read by functions that are stable or volatile (`current_setting`), so never while a plan is
//!   made, or by the session itself.
//! - In doubt a setting counts: a new field of [`Settings`], and a new name, do until they are
//!   named here.
//!
//! # Limits
//! What a plan does when it runs it has from the execution's settings, never from those it was made
//! under.

use std::hash::{Hash, Hasher};

use crate::settings::{BACKEND_PID, Settings};
use crate::settings_origins::Origins;

/// The name of the setting that says which texts are kept.
pub const TEXT_CACHE: &str = "telesto.text_cache";

/// Which texts are kept, with their plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextCache {
    /// None, and none is used.
    Off,
    /// Those that come a second time.
    On,
    /// All, from their first time on.
    Eager,
}

/// Parameters that the session alone looks at.
const OF_THE_SESSION: [&str; 8] = [
    BACKEND_PID,
    "client_min_messages",
    "idle_in_transaction_session_timeout",
    "idle_session_timeout",
    "lock_timeout",
    "telesto.max_staleness",
    "telesto.serve_stale",
    "transaction_timeout",
];

/// Whether plans may depend on the parameter.
fn counts(name: &str) -> bool {
    let of_the_application = name.contains('.') && !name.starts_with("telesto.");
    // Names with a NUL are the engine's own, and mean other plans.
    (!of_the_application || name.contains('\0')) && !OF_THE_SESSION.contains(&name)
}

impl Settings {
    /// Which texts are kept.
    #[must_use]
    pub fn text_cache(&self) -> TextCache {
        match self.others.get(TEXT_CACHE).map(String::as_str) {
            Some("off") => TextCache::Off,
            Some("eager") => TextCache::Eager,
            _ => TextCache::On,
        }
    }

    /// The parameters set by name that plans may depend on.
    fn counting(&self) -> impl Iterator<Item = (&String, &String)> {
        self.others.iter().filter(|(name, _)| counts(name))
    }

    /// These settings, with what plans do not depend on as at the start of a session.
    #[must_use]
    pub fn for_planning(&self) -> Self {
        let others = self.counting().map(|(name, value)| (name.clone(), value.clone()));
        Self {
            application_name: String::new(),
            statement_timeout_ms: 0,
            others: others.collect(),
            origins: Origins::default(),
            ..self.clone()
        }
    }

    /// Whether a statement planned under one of them has the same plan under the other.
    #[must_use]
    pub fn plans_alike(&self, other: &Self) -> bool {
        // Every field has its name here, so that a new one is not forgotten.
        let Self {
            session_user,
            current_user,
            authenticated_role,
            session_role,
            current_role,
            superuser,
            database,
            search_path,
            time_zone,
            application_name: _,
            default_level,
            default_read_only,
            confined,
            consistency,
            durability,
            executor,
            statement_timeout_ms: _,
            bytea_hex,
            extra_float_digits,
            others: _,
            origins: _,
        } = self;
        (*current_role, *session_role, *authenticated_role)
            == (other.current_role, other.session_role, other.authenticated_role)
            && (*superuser, *default_read_only, *confined, *bytea_hex, *extra_float_digits)
                == (
                    other.superuser,
                    other.default_read_only,
                    other.confined,
                    other.bytea_hex,
                    other.extra_float_digits,
                )
            && *default_level == other.default_level
            && *consistency == other.consistency
            && *durability == other.durability
            && *executor == other.executor
            && *current_user == other.current_user
            && *session_user == other.session_user
            && *database == other.database
            && *search_path == other.search_path
            && *time_zone == other.time_zone
            && self.counting().eq(other.counting())
    }

    /// Equal for settings that plan alike.
    #[must_use]
    pub fn planning_hash(&self) -> u64 {
        let mut hasher = rustc_hash::FxHasher::default();
        (self.current_role, self.session_role, &self.search_path).hash(&mut hasher);
        (&self.time_zone, self.bytea_hex, self.extra_float_digits).hash(&mut hasher);
        self.counting().for_each(|pair| pair.hash(&mut hasher));
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_say_what_a_statement_means_do_not_plan_alike() {
        let plain = Settings::default();
        for (name, value) in [
            ("search_path", "other"),
            ("TimeZone", "Asia/Tokyo"),
            ("IntervalStyle", "iso_8601"),
            ("bytea_output", "escape"),
            ("extra_float_digits", "0"),
            ("row_security", "off"),
            ("telesto.executor", "datafusion"),
            ("telesto.consistency", "session"),
            ("telesto.text_cache", "off"),
            ("telesto.commutative_updates", "off"),
            ("default_transaction_read_only", "on"),
            ("default_transaction_isolation", "read committed"),
            ("enable_hashjoin", "off"),
        ] {
            let mut other = plain.clone();
            other.set(name, &[value.to_owned()]).expect(name);
            assert!(!plain.plans_alike(&other) && !other.plans_alike(&plain), "{name}");
        }
        let mut other = plain.clone();
        other.current_role += 1;
        assert!(!plain.plans_alike(&other));
        other = plain.clone();
        other.others.insert("\0without_policies".to_owned(), String::new());
        assert!(!plain.plans_alike(&other), "the engine's own");
    }

    #[test]
    fn what_an_application_says_of_itself_plans_alike() {
        let plain = Settings::default();
        for (name, value) in [
            ("application_name", "shop"),
            ("statement_timeout", "5s"),
            ("lock_timeout", "5s"),
            ("client_min_messages", "warning"),
            ("request.jwt.claims", "{}"),
        ] {
            let mut other = plain.clone();
            other.set(name, &[value.to_owned()]).expect(name);
            assert!(plain.plans_alike(&other) && other.plans_alike(&plain), "{name}");
            assert_eq!(plain.planning_hash(), other.planning_hash(), "{name}");
            assert_eq!(plain.for_planning(), other.for_planning(), "{name}");
        }
    }
}
