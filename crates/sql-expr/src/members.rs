//! Whether a value is in a long list: `x = ANY (array)`, `x <> ALL (array)`.
//!
//! PostgreSQL hashes such a list from nine elements on; comparing with each is far slower for lists
//! of thousands, which applications send.
//!
//! # Invariants
//! The answer is that of comparing with every element: two values have one key exactly where they
//! are equal by the order of their type (`codec::write_datum_key`).
//!
//! # On failure
//! Types without keys (jsonb, rows) are not hashed: whoever asks compares one by one.
//!
//! # Limits
//! Nine elements at least; shorter lists are compared with one by one.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use telesto_common::key::{Direction, KeyWriter};
use telesto_sql_catalog::codec::{is_key_type, write_datum_key};
use telesto_sql_types::error::Result;
use telesto_sql_types::interrupt::Steps;
use telesto_sql_types::{ArrayValue, Datum, SqlType};

/// Shorter lists are compared with one by one.
const LEAST: usize = 9;

/// Lists that one evaluation remembers.
const REMEMBERED: usize = 4;

/// The elements of a list, hashed.
#[derive(Debug)]
pub struct Members {
    keys: FxHashSet<Vec<u8>>,
    unknown: bool,
    ty: SqlType,
}

impl Members {
    /// The elements `items` of type `ty`; `None`: they are few, or cannot be hashed.
    ///
    /// # Errors
    /// When the statement is to end.
    pub fn of(items: &[Datum], ty: &SqlType) -> Result<Option<Self>> {
        if items.len() < LEAST || !is_key_type(ty) {
            return Ok(None);
        }
        let mut members = Self {
            keys: FxHashSet::with_capacity_and_hasher(items.len(), Default::default()),
            unknown: false,
            ty: ty.clone(),
        };
        let (mut steps, mut key) = (Steps::default(), KeyWriter::new());
        for item in items {
            steps.step()?;
            if item.is_null() {
                members.unknown = true;
            } else if members.write(&mut key, item) {
                members.keys.insert(key.as_slice().to_vec());
            } else {
                return Ok(None);
            }
        }
        Ok(Some(members))
    }

    fn write(&self, key: &mut KeyWriter, value: &Datum) -> bool {
        key.clear();
        write_datum_key(key, value, &self.ty, Direction::Ascending).is_ok()
    }

    /// `value = ANY (list)`; with `all` `value <> ALL (list)`. `None`: the value cannot be hashed.
    #[must_use]
    pub fn answer(&self, value: &Datum, all: bool) -> Option<Datum> {
        if value.is_null() {
            return Some(Datum::Null);
        }
        let mut key = KeyWriter::new();
        if !self.write(&mut key, value) {
            return None;
        }
        Some(match self.keys.contains(key.as_slice()) {
            true => Datum::Bool(!all),
            false if self.unknown => Datum::Null,
            false => Datum::Bool(all),
        })
    }
}

/// A list that was met, and its elements where it was met before.
type Met = (Arc<ArrayValue>, Option<Arc<Members>>);

/// The lists that an evaluation meets row by row.
#[derive(Debug, Default)]
pub(crate) struct KnownLists(Vec<Met>);

impl KnownLists {
    /// The elements of `list`, which is hashed when it is met for the second time: one that each
    /// row has for itself never is.
    pub fn members(
        &mut self,
        list: &Arc<ArrayValue>,
        ty: &SqlType,
    ) -> Result<Option<Arc<Members>>> {
        if list.elements.len() < LEAST {
            return Ok(None);
        }
        if let Some((_, members)) = self.0.iter_mut().find(|(known, _)| Arc::ptr_eq(known, list)) {
            if members.is_none() {
                *members = Members::of(&list.elements, ty)?.map(Arc::new);
            }
            return Ok(members.as_ref().filter(|members| members.ty == *ty).cloned());
        }
        if self.0.len() == REMEMBERED {
            self.0.remove(0);
        }
        self.0.push((Arc::clone(list), None));
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_by_one(items: &[Datum], value: &Datum, ty: &SqlType, all: bool) -> Datum {
        let mut unknown = false;
        for item in items {
            match item.is_null() {
                true => unknown = true,
                false if value.cmp_typed(item, ty).is_eq() => return Datum::Bool(!all),
                false => {}
            }
        }
        if unknown { Datum::Null } else { Datum::Bool(all) }
    }

    #[test]
    fn answers_are_those_of_comparing_one_by_one() {
        let floats = [0.0, -0.0, f64::NAN, -f64::NAN, 1.5, f64::INFINITY, 2.0, 3.0, 4.0, 5.0];
        let floats = floats.map(Datum::Float8).to_vec();
        let texts = ["a", "a ", "", "b", "B", "ä", "c", "d", "e", "f"].map(Datum::text).to_vec();
        let ints = (0..20).map(Datum::Int4).collect::<Vec<_>>();
        let others = [Datum::Float8(7.0), Datum::Float8(-1.5)];
        for (items, ty) in [
            (floats.iter().cloned().chain(others).collect(), SqlType::Float8),
            (texts.clone(), SqlType::Text),
            (texts, SqlType::Char(None)),
            (ints, SqlType::Int4),
        ] as [(Vec<Datum>, SqlType); 4]
        {
            for list in [items[1..].to_vec(), [&items[..items.len() - 1], &[Datum::Null]].concat()]
            {
                let members = Members::of(&list, &ty).expect("no end").expect("hashed");
                for value in &items {
                    for all in [false, true] {
                        let expected = one_by_one(&list, value, &ty, all);
                        assert_eq!(members.answer(value, all), Some(expected), "{value:?} {ty}");
                    }
                }
            }
        }
    }
}
