//! Keys of Unicode's collation (UTS #10, with CLDR's data, by the crate `icu_collator`):
//! `"collation_key#"(text, language)`, which is what `COLLATE "de-x-icu"` in an order, an index or
//! a comparison stands for (`telesto_sql_parser::rewrite::collation`).
//!
//! # Invariants
//! - Keys compare by bytes as the texts do in that language; texts that it does not tell apart
//!   compare by their own bytes, as with PostgreSQL's collations, which are deterministic.
//!
//! # Limits
//! Keys are those of the crate's version: indexes on them hold for as long as that does not change.
//! It is pinned.

use std::collections::BTreeMap;
use std::sync::Arc;

use icu_collator::options::CollatorOptions;
use icu_collator::{Collator, CollatorBorrowed};
use icu_locale_core::Locale;
use parking_lot::Mutex;
use telesto_sql_parser::rewrite::collation::{KEY, is_language};
use telesto_sql_types::Datum;
use telesto_sql_types::error::{Error, Result, SqlState};

use crate::registry::{Function, function};
use crate::ty::Tag::{Bytea, Text};
use crate::value::str_of;

/// The functions of this module.
pub const TABLE: &[Function] = &[function(KEY, &[Text, Text], Bytea, |a, _| {
    key(str_of(&a[0])?, str_of(&a[1])?).map(|key| Datum::Bytea(key.into()))
})];

/// Most collators that are kept.
const KEPT: usize = 256;

type Known = Arc<CollatorBorrowed<'static>>;

/// Those of the languages that were asked for.
static COLLATORS: Mutex<BTreeMap<String, Known>> = Mutex::new(BTreeMap::new());

fn key(text: &str, language: &str) -> Result<Vec<u8>> {
    let known = COLLATORS.lock().get(language).cloned();
    let collator = match known {
        Some(collator) => collator,
        None => {
            let collator = Arc::new(collator(language)?);
            let mut known = COLLATORS.lock();
            if known.len() >= KEPT {
                known.clear();
            }
            known.insert(language.to_owned(), Arc::clone(&collator));
            collator
        }
    };
    let mut key = Vec::with_capacity(text.len() * 2 + 8);
    let Ok(()) = collator.write_sort_key_to(text, &mut key);
    // Below every byte of a key, so that the shorter key comes first.
    key.push(0);
    key.extend_from_slice(text.as_bytes());
    Ok(key)
}

fn collator(language: &str) -> Result<CollatorBorrowed<'static>> {
    let unknown = || {
        Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("there is no collation of the language {language:?}"),
        )
    };
    if !is_language(language) {
        return Err(unknown());
    }
    let locale: Locale = language.parse().map_err(|_| unknown())?;
    Collator::try_new(locale.into(), CollatorOptions::default()).map_err(|_| unknown())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(language: &str, texts: &[&str]) -> Vec<String> {
        let mut keyed: Vec<_> =
            texts.iter().map(|text| (key(text, language).expect("a key"), *text)).collect();
        keyed.sort();
        keyed.into_iter().map(|(_, text)| text.to_owned()).collect()
    }

    #[test]
    fn texts_sort_as_in_their_language() {
        let texts = ["Z", "ä", "a", "B", "b", "ab", "A", "", "a b", "a-b", "Äz", "z"];
        let root = ["", "a", "A", "ä", "a b", "a-b", "ab", "Äz", "b", "B", "z", "Z"];
        assert_eq!(sorted("und", &texts), root);
        let swedish = ["", "a", "A", "a b", "a-b", "ab", "b", "B", "z", "Z", "ä", "Äz"];
        assert_eq!(sorted("sv", &texts), swedish);
    }

    #[test]
    fn every_language_that_has_a_name_has_a_collation() {
        for (name, language) in telesto_sql_parser::rewrite::collation::unicode_names() {
            assert!(key("x", language).is_ok(), "{name}");
        }
    }
}
