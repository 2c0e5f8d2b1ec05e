//! What plans depend on besides the catalog: settings, as far as they count.
//!
//! # Purpose
//! Plans are kept with a [`Basis`] and used by whoever has the same one. Two sessions with settings
//! that plan alike have the same, so that comparing is a look at an address.
//!
//! # Invariants
//! - There is one basis for settings that plan alike (`Settings::plans_alike`), as long as anybody
//!   has it.
//! - Its number is never given again.
//!
//! # On failure
//! Nothing fails.
//!
//! # Limits
//! A basis that nobody has is forgotten when the next is made.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use telesto_sql_expr::Settings;
use telesto_sql_expr::settings_planning::TextCache;

use crate::types::TextStyle;

/// See the module's text.
#[derive(Debug)]
pub(in crate::session) struct Basis {
    /// Its name among all of the process.
    pub number: u64,
    /// As what a literal's text is read.
    pub style: TextStyle,
    /// Whether texts are kept under these settings.
    pub keeps: bool,
    /// Whether from their first time on.
    pub eager: bool,
    settings: Settings,
}

impl Basis {
    /// Whether these settings have this basis.
    pub fn is_of(&self, settings: &Settings) -> bool {
        self.settings.plans_alike(settings)
    }
}

/// All bases that somebody has.
#[derive(Debug, Default)]
pub(in crate::session) struct Bases {
    /// By the hash of their settings.
    known: Mutex<FxHashMap<u64, Vec<Weak<Basis>>>>,
    given: AtomicU64,
}

impl Bases {
    /// The basis of these settings.
    pub fn of(&self, settings: &Settings) -> Arc<Basis> {
        let hash = settings.planning_hash();
        let mut known = self.known.lock();
        let alike = known.get(&hash).into_iter().flatten().filter_map(Weak::upgrade);
        if let Some(basis) = alike.into_iter().find(|basis| basis.is_of(settings)) {
            return basis;
        }
        let basis = Arc::new(Basis {
            number: self.given.fetch_add(1, Ordering::Relaxed),
            style: settings.text_style(0),
            keeps: settings.text_cache() != TextCache::Off,
            eager: settings.text_cache() == TextCache::Eager,
            settings: settings.for_planning(),
        });
        known.retain(|_, alike| {
            alike.retain(|basis| basis.strong_count() > 0);
            !alike.is_empty()
        });
        known.entry(hash).or_default().push(Arc::downgrade(&basis));
        basis
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_plan_alike_have_one_basis_and_others_another() {
        let bases = Bases::default();
        let plain = Settings::default();
        let mut named = plain.clone();
        named.set("application_name", &["shop".to_owned()]).expect("set");
        let mut elsewhere = plain.clone();
        elsewhere.set("search_path", &["other".to_owned()]).expect("set");
        let basis = bases.of(&plain);
        assert!(Arc::ptr_eq(&basis, &bases.of(&named)));
        let other = bases.of(&elsewhere);
        assert_ne!(basis.number, other.number);
        drop(other);
        assert_ne!(bases.of(&elsewhere).number, 1, "a number is given once");
        drop(basis);
        bases.of(&Settings::default());
        assert_eq!(bases.known.lock().len(), 1, "those of nobody are forgotten");
    }
}
