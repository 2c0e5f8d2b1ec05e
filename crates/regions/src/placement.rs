//! Which regions replicate which keys.
//!
//! # Invariants
//! - What no rule names is replicated nowhere: it stays in the region that wrote it.
//! - This layer's own rows are never replicated, whatever the rules say.
//! - The rules that hold for a commit are those that stand before it in its region's log, so that a stream made again is the same.
//!
//! # On failure
//! Stored rules that do not decode stop the streams of the region, with the reason in the status.
//!
//! # Limits
//! Rules are key ranges: tables and parts of them. Rules by a column's value are not built.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::RegionId;
use telesto_common::cursor::{Cursor, Malformed, put_string, put_varint};
use telesto_common::key::KeyRange;
use telesto_geo::RegionSet;

use crate::rows;

/// One rule: the keys of `range` are in all of `regions`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The keys.
    pub range: KeyRange,
    /// Where they are.
    pub regions: RegionSet,
}

/// Decides where a key is replicated.
pub trait Placement: std::fmt::Debug + Send + Sync {
    /// The regions that replicate `key`; none: only the one that writes it.
    fn regions(&self, key: &[u8]) -> RegionSet;
}

/// Placement by rules; where several name a key, all their regions have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Arc<Vec<Rule>>);

impl Rules {
    /// From rules, in any order.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> Self {
        Self(Arc::new(rules))
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.0
    }

    /// The ranges that `region` has by these rules and had not by `before`.
    pub(crate) fn gained(&self, before: &Self, region: RegionId) -> Vec<KeyRange> {
        let had = |rule: &Rule| {
            before.0.iter().any(|old| old.range == rule.range && old.regions.has(region))
        };
        let gained = self.0.iter().filter(|rule| rule.regions.has(region) && !had(rule));
        gained.map(|rule| rule.range.clone()).collect()
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(1);
        put_varint(&mut out, self.0.len() as u64);
        for rule in &*self.0 {
            put_string(&mut out, &rule.range.start);
            put_string(&mut out, &rule.range.end);
            out.put_u64_le(rule.regions.0);
        }
        out.freeze()
    }

    pub(crate) fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let version = cursor.u8()?;
        if version != 1 {
            return Err(format!("placement of version {version} is not known"));
        }
        let count = cursor.count(10)?;
        let mut rules = Vec::with_capacity(count);
        for _ in 0..count {
            let range = KeyRange { start: cursor.string()?, end: cursor.string()? };
            rules.push(Rule { range, regions: RegionSet(cursor.u64()?) });
        }
        cursor.finish()?;
        Ok(Self::new(rules))
    }
}

impl Placement for Rules {
    fn regions(&self, key: &[u8]) -> RegionSet {
        if rows::is_own(key) {
            return RegionSet::default();
        }
        let naming = self.0.iter().filter(|rule| rule.range.contains(key));
        RegionSet(naming.fold(0, |all, rule| all | rule.regions.0))
    }
}
