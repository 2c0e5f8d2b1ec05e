//! Enum types: labels, their order, and how a type is named in stored definitions.
//!
//! # Invariants
//! - Every label has an OID of its own, which rows hold, and **order bytes**, which keys hold: of
//!   two labels the one declared first has the lesser bytes. Between any two order bytes there are
//!   others ([`between`]), so a label added in the middle never moves one that is there, and no key
//!   is ever rewritten.
//! - A type is its OID: two [`EnumType`]s of one OID are equal, whatever labels they know. Labels
//!   come from the catalog of the statement that uses them.
//! - Definitions hold the OID only; the catalog puts the labels back when it is read
//!   (`telesto_sql_catalog::types`).
//!
//! # Limits
//! Order bytes grow by about one byte for seven labels added at the same place.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result, SqlState};

/// One label of an enum type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EnumLabel {
    /// OID (pg_enum), in rows.
    pub oid: u32,
    /// `enumsortorder`, as PostgreSQL counts it.
    pub sort: f32,
    /// Order bytes, in keys; they never change.
    pub order: Vec<u8>,
    /// The label.
    pub label: String,
}

/// An enum type with its labels in order.
#[derive(Clone)]
pub struct EnumType {
    /// OID.
    pub oid: u32,
    /// OID of its array type.
    pub array_oid: u32,
    /// Its schema's name.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Labels, by their order.
    pub labels: Vec<Arc<EnumLabel>>,
}

impl EnumType {
    /// A type of which only the OID is known yet.
    #[must_use]
    pub fn unlinked(oid: u32) -> Self {
        Self { oid, array_oid: 0, schema: String::new(), name: String::new(), labels: Vec::new() }
    }

    /// The label written `text`.
    ///
    /// # Errors
    /// 22P02.
    pub fn by_label(&self, text: &str) -> Result<&Arc<EnumLabel>> {
        self.labels.iter().find(|label| label.label == text).ok_or_else(|| {
            Error::new(
                SqlState::INVALID_TEXT_REPRESENTATION,
                format!("invalid input value for enum {self}: \"{text}\""),
            )
        })
    }

    /// The label with this OID.
    ///
    /// # Errors
    /// XX001: labels are never removed.
    pub fn by_oid(&self, oid: u32) -> Result<&Arc<EnumLabel>> {
        self.labels
            .iter()
            .find(|label| label.oid == oid)
            .ok_or_else(|| Error::corrupt(format!("enum {self} has no label with OID {oid}")))
    }

    /// The label with these order bytes.
    ///
    /// # Errors
    /// XX001.
    pub fn by_order(&self, order: &[u8]) -> Result<&Arc<EnumLabel>> {
        self.labels
            .binary_search_by(|label| label.order.as_slice().cmp(order))
            .map(|at| &self.labels[at])
            .map_err(|_| Error::corrupt(format!("enum {self} has no label of this order")))
    }
}

impl PartialEq for EnumType {
    fn eq(&self, other: &Self) -> bool {
        self.oid == other.oid
    }
}

impl Eq for EnumType {}

impl Hash for EnumType {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.oid.hash(state);
    }
}

/// Short: types are printed to tell one plan from another.
impl fmt::Debug for EnumType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Enum({})", self.oid)
    }
}

impl fmt::Display for EnumType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.schema.is_empty() && self.schema != crate::PUBLIC {
            write!(f, "{}.", quoted(&self.schema))?;
        }
        f.write_str(&quoted(&self.name))
    }
}

/// A name as SQL writes it: in quotes when it needs them.
#[must_use]
pub fn quoted(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Stored as the OID.
pub fn serialize<S: Serializer>(
    ty: &Arc<EnumType>,
    out: S,
) -> std::result::Result<S::Ok, S::Error> {
    ty.oid.serialize(out)
}

/// A stored OID, to be linked.
pub fn deserialize<'de, D: Deserializer<'de>>(
    input: D,
) -> std::result::Result<Arc<EnumType>, D::Error> {
    u32::deserialize(input).map(|oid| Arc::new(EnumType::unlinked(oid)))
}

/// Order bytes between two neighbours: greater than `low` and less than `high`. None ends in 0, so
/// that there is always room below.
#[must_use]
pub fn between(low: Option<&[u8]>, high: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut bound = high;
    for at in 0.. {
        let from = low.and_then(|low| low.get(at)).copied().unwrap_or(0);
        // Without a bound any byte up to 255 will do.
        let to = bound.map_or(256, |high| high.get(at).copied().map_or(0, u16::from));
        let from = u16::from(from);
        if to > from + 1 {
            // Appending is what happens most: leave room below the end by small steps.
            let step = if high.is_none() { (to - from).min(16) } else { to - from };
            out.push((from + step.div_ceil(2).max(1)).min(255) as u8);
            return out;
        }
        out.push(from as u8);
        if to > from {
            // Lower than the bound from here on.
            bound = None;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn order_bytes_put_between_others_lie_between_them(places in proptest::collection::vec(any::<prop::sample::Index>(), 1..300)) {
            let mut all: Vec<Vec<u8>> = Vec::new();
            for place in places {
                let at = place.index(all.len() + 1);
                let low = at.checked_sub(1).map(|at| all[at].clone());
                let new = between(low.as_deref(), all.get(at).map(Vec::as_slice));
                prop_assert!(new.last() != Some(&0));
                all.insert(at, new);
            }
            prop_assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
        }
    }

    #[test]
    fn order_bytes_at_one_place_stay_short() {
        for front in [true, false] {
            let mut bound = between(None, None);
            for _ in 0..1000 {
                bound =
                    if front { between(None, Some(&bound)) } else { between(Some(&bound), None) };
            }
            assert!(bound.len() < 150, "{}", bound.len());
        }
    }
}
