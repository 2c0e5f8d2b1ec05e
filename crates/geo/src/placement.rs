//! Which regions replicate which keys.
//!
//! # Invariants
//! - What no rule names is replicated nowhere: it stays in the region that wrote it.
//! - A region's own rows of replication are never replicated, whatever the rules say; the row with
//!   the rules is, if they say so.
//! - The rules that hold for a commit are those that stand before it in its region's log, so that a
//!   stream made again is the same.
//!
//! # On failure
//! Stored rules that do not decode are told as such, and stop the streams of the region.
//!
//! # Limits
//! Rules are key ranges: tables, and parts of them, as rows with one value of a column that leads
//! every key.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::cursor::{Cursor, Malformed, put_string, put_varint};
use telesto_common::key::{Direction, KeyRange, KeyWriter};
use telesto_common::{DatabaseId, RegionId, TableId};

use crate::RegionSet;

/// The table of the system's key space that holds a region's own rows of replication.
const OWN: TableId = TableId(0xFFFF_FF01);
/// The number of the row with the rules among them.
const RULES: u64 = 2;
/// And of the one that says that the region has everything.
const COMPLETE: u64 = 4;
/// And of the one with the life.
const LIFE: u64 = 5;
/// And of the one with the doubt.
const DOUBT: u64 = 9;

/// The key of a region's own row of replication with this number.
#[must_use]
pub fn own_row(number: u64) -> Bytes {
    let mut writer = KeyWriter::prefix(DatabaseId(0), OWN, 0);
    writer.u64(number, Direction::Ascending);
    writer.finish()
}

/// The key of the row with the rules.
#[must_use]
pub fn rules_row() -> Bytes {
    own_row(RULES)
}

/// The key of the row that a region which has joined others writes when it has everything that was
/// to be sent to it at first: at a time before there are rows here which are not all of them.
#[must_use]
pub fn complete_row() -> Bytes {
    own_row(COMPLETE)
}

/// The key of the row in which a region keeps, as u64 little endian, the number of its life (0, or
/// none: the usual one): where columns merge it counts apart while it does not know whether it has
/// lost commits that another region has.
#[must_use]
pub fn life_row() -> Bytes {
    own_row(LIFE)
}

/// The key of the row with the number, u64 little endian, that a region draws each time that it
/// goes on although it may have lost commits, and when it knows that it has. What was given out by
/// positions of its own, which no other region has, may be elsewhere. Odd: it knows that it has.
#[must_use]
pub fn doubt_row() -> Bytes {
    own_row(DOUBT)
}

/// Whether a key is a region's own row of replication; the row with the rules is not.
#[must_use]
pub fn is_own(key: &[u8]) -> bool {
    let prefix = [0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0x01];
    key.starts_with(&prefix) && key != rules_row()
}

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
pub struct Rules {
    /// By where they begin.
    rules: Arc<Vec<Rule>>,
    /// No two of them name one key: the one that names a key is found without a look at all of
    /// them.
    disjoint: bool,
}

impl Rules {
    /// From rules, in any order.
    #[must_use]
    pub fn new(mut rules: Vec<Rule>) -> Self {
        rules.sort_by(|a, b| (&a.range.start, &a.range.end).cmp(&(&b.range.start, &b.range.end)));
        // The empty end is no bound.
        let disjoint = rules
            .windows(2)
            .all(|two| !two[0].range.end.is_empty() && two[0].range.end <= two[1].range.start);
        Self { rules: Arc::new(rules), disjoint }
    }

    /// The rules, by where they begin.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The ranges that `region` has by these rules and had not by `before`.
    #[must_use]
    pub fn gained(&self, before: &Self, region: RegionId) -> Vec<KeyRange> {
        let inside = |range: &KeyRange, old: &KeyRange| {
            old.start <= range.start
                && (old.end.is_empty() || (!range.end.is_empty() && range.end <= old.end))
        };
        let had = |rule: &Rule| {
            before
                .rules
                .iter()
                .any(|old| inside(&rule.range, &old.range) && old.regions.has(region))
        };
        let gained = self.rules.iter().filter(|rule| rule.regions.has(region) && !had(rule));
        gained.map(|rule| rule.range.clone()).collect()
    }

    /// As they are stored.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(1);
        put_varint(&mut out, self.rules.len() as u64);
        for rule in &*self.rules {
            put_string(&mut out, &rule.range.start);
            put_string(&mut out, &rule.range.end);
            out.put_u64_le(rule.regions.0);
        }
        out.freeze()
    }

    /// Reads what [`Rules::encode`] made.
    ///
    /// # Errors
    /// Why the bytes are no rules.
    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
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
        if is_own(key) {
            return RegionSet::default();
        }
        if self.disjoint {
            let behind = self.rules.partition_point(|rule| *rule.range.start <= *key);
            let last = behind.checked_sub(1).and_then(|at| self.rules.get(at));
            return last
                .filter(|rule| rule.range.contains(key))
                .map(|rule| rule.regions)
                .unwrap_or_default();
        }
        let naming = self.rules.iter().filter(|rule| rule.range.contains(key));
        RegionSet(naming.fold(0, |all, rule| all | rule.regions.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(number: u8) -> Bytes {
        Bytes::from(vec![b'k', number])
    }

    fn rules() -> impl Strategy<Value = Vec<Rule>> {
        let rule = (0_u8..12, 0_u8..12, 0_u64..8).prop_map(|(start, end, regions)| Rule {
            range: KeyRange { start: key(start), end: key(end) },
            regions: RegionSet(regions),
        });
        proptest::collection::vec(rule, 0..5)
    }

    proptest! {
        #[test]
        fn key_is_where_any_rule_has_it_and_rules_are_read_back(rules in rules(), at in 0_u8..14) {
            let all = rules.iter().filter(|rule| rule.range.contains(&key(at)));
            let expected = all.fold(0, |all, rule| all | rule.regions.0);
            let rules = Rules::new(rules);
            prop_assert_eq!(rules.regions(&key(at)), RegionSet(expected));
            prop_assert_eq!(Rules::decode(rules.encode()), Ok(rules));
        }
    }

    #[test]
    fn region_gains_only_what_no_wider_rule_gave_it_before() {
        let region = RegionId(1);
        let rule = |start, end, regions: &[u16]| Rule {
            range: KeyRange { start: key(start), end: key(end) },
            regions: regions.iter().map(|id| RegionId(*id)).collect(),
        };
        let before = Rules::new(vec![rule(1, 5, &[0, 1]), rule(7, 9, &[0])]);
        let after = Rules::new(vec![rule(2, 4, &[0, 1]), rule(4, 6, &[1]), rule(7, 9, &[0, 1])]);
        let gained = after.gained(&before, region);
        assert_eq!(gained, vec![rule(4, 6, &[]).range, rule(7, 9, &[]).range]);
        assert!(before.gained(&before, region).is_empty());
    }

    #[test]
    fn own_rows_stay_and_the_rules_go_where_they_say() {
        let everything = KeyRange { start: Bytes::new(), end: Bytes::new() };
        let rules = Rules::new(vec![Rule { range: everything, regions: RegionSet(7) }]);
        assert_eq!(rules.regions(&own_row(1)), RegionSet::default());
        assert_eq!(rules.regions(&rules_row()), RegionSet(7));
    }
}
