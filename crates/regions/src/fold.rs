//! From the log of this region to the stream of one other: what it replicates, with the past of
//! each transaction.
//!
//! # Invariants
//! - A fold is a function of the log from its position on: made again, it gives the same elements
//!   with the same numbers.
//! - Only transactions that this region committed first go into a stream; of them only keys that
//!   the receiver replicates. Of a transaction that brings rules, only what it replicates by those
//!   too: what has just been taken from it is not sent any more. (A region that is no member any
//!   more is told so by the rules before.)
//!
//! # On failure
//! Damage in the log, and parts that cannot be read, are reported; the position stays.
//!
//! # Limits
//! One transaction's writes for one receiver in memory at a time.

use std::sync::Arc;

use bytes::Bytes;
use telesto_bucket::{Bucket, Cause};
use telesto_common::key::KeyRange;
use telesto_common::{RegionId, ShardId, Timestamp};
use telesto_geo::RegionSet;
use telesto_log::record::{Commit, Entry, Part, Record, Write, Writes};
use telesto_shard::ProcessCache;
use telesto_shard::part::{PartReader, PartScan};
use telesto_txn::MAX_OUTGOING_BYTES;

use crate::error::{Error, Result};
use crate::inbox::known_of;
use crate::past::Past;
use crate::rows;
use crate::wire::{Element, KeyWrite, Position};
use telesto_geo::placement::{Placement as _, Rules};

/// Where parts of large write sets are read from.
#[derive(Clone, Debug)]
pub(crate) struct PartSource {
    pub bucket: Arc<dyn Bucket>,
    pub cache: Arc<ProcessCache>,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    pub me: RegionId,
    pub shard: ShardId,
    pub position: Position,
    pub rules: Rules,
    pub parts: PartSource,
}

/// What an entry gave.
#[derive(Debug, Default)]
pub(crate) struct Folded {
    pub elements: Vec<Element>,
    /// Ranges that the receiver replicates from here on.
    pub gained: Vec<KeyRange>,
    /// Each commit of this region, whoever gets something of it: when, and which regions replicate
    /// what it wrote.
    pub labels: Vec<(Timestamp, RegionSet)>,
}

/// What is collected of one commit.
struct Sorted<'a> {
    rules: &'a Rules,
    to: Option<RegionId>,
    placement: RegionSet,
    /// Regions that get another part of it than `to`.
    differ: RegionSet,
    writes: Vec<KeyWrite>,
    bytes: usize,
    known: Option<Past>,
    new_rules: Option<&'a Rules>,
    /// Who is a member by the new rules.
    members: RegionSet,
}

impl Sorted<'_> {
    fn add(&mut self, write: &Write) -> Result<()> {
        if rows::is_own(&write.key) {
            if write.key == rows::inbox()
                && let Some(value) = write.value.clone()
            {
                self.known = Some(known_of(value).map_err(Error::malformed("progress"))?);
            }
            return Ok(());
        }
        let mut regions = self.rules.regions(&write.key);
        if let Some(rules) = self.new_rules {
            regions.0 &= rules.regions(&write.key).0 | !self.members.0;
        }
        self.placement = RegionSet(self.placement.0 | regions.0);
        if let Some(to) = self.to {
            let others = if regions.has(to) { !regions.0 } else { regions.0 };
            self.differ = RegionSet(self.differ.0 | others);
        }
        if self.to.is_some_and(|to| regions.has(to)) {
            let write = KeyWrite { key: write.key.clone(), value: write.value.clone() };
            self.bytes += write.bytes();
            if self.bytes <= MAX_OUTGOING_BYTES {
                self.writes.push(write);
            }
        }
        Ok(())
    }
}

impl Fold {
    /// Takes the next entry of the log; elements are for `to`.
    pub async fn entry(&mut self, entry: &Entry, to: Option<RegionId>) -> Result<Folded> {
        let mut folded = Folded::default();
        for record in entry.records_of(self.shard) {
            let Record::Commit(commit) = record else { continue };
            self.position.at = commit.timestamp;
            if commit.origin.source == self.me {
                self.commit(commit, to, &mut folded).await?;
            } else if let Some(rules) = self.brought(&commit.writes).await? {
                // Another region made rules, and they came here.
                self.replace_rules(rules, to, &mut folded);
            }
        }
        self.position.lsn = entry.lsn;
        self.position.hash = entry.hash;
        Ok(folded)
    }

    /// Whether an entry may bring rules.
    pub fn may_bring_rules(&self, entry: &Entry) -> bool {
        let commits = entry.records_of(self.shard).filter_map(|record| match record {
            Record::Commit(commit) => Some(commit),
            _ => None,
        });
        let bring = |writes: &Writes| match writes {
            Writes::Inline(writes) => writes.iter().any(|write| write.key == rows::placement()),
            Writes::External(_) => true,
        };
        commits.map(|commit| &commit.writes).any(bring)
    }

    async fn commit(
        &mut self,
        commit: &Commit,
        to: Option<RegionId>,
        folded: &mut Folded,
    ) -> Result<()> {
        let new_rules = self.brought(&commit.writes).await?;
        let mut sorted = Sorted {
            rules: &self.rules,
            to,
            placement: RegionSet::default(),
            differ: RegionSet::default(),
            writes: Vec::new(),
            bytes: 0,
            known: None,
            new_rules: new_rules.as_ref(),
            members: new_rules.as_ref().map(members).unwrap_or_default(),
        };
        match &commit.writes {
            Writes::Inline(writes) => {
                for write in writes {
                    sorted.add(write)?;
                }
            }
            Writes::External(parts) => {
                for part in parts {
                    let mut scan = self.scan(part, KeyRange::default());
                    while let Some(write) = scan.next().await.map_err(unread)? {
                        sorted.add(&write)?;
                    }
                }
            }
        }
        let Sorted { placement, differ, writes, bytes, known, .. } = sorted;
        if let Some(known) = known {
            self.position.past.absorb(&known);
        }
        self.position.past.count(self.me, placement);
        if !placement.is_empty() {
            folded.labels.push((commit.timestamp, placement));
        }
        if let Some(region) = to
            && placement.has(region)
        {
            // Refused where it commits. A log may have such a one that is older than that.
            if bytes > MAX_OUTGOING_BYTES {
                let (at, limit) = (commit.timestamp, MAX_OUTGOING_BYTES);
                return Err(Error::TooLarge { region, at, bytes, limit });
            }
            let past = self.position.past.clone();
            let shared_with = RegionSet(placement.0 & !differ.0).without(self.me).without(region);
            // What was taken back from a peer goes under the label that it had.
            let at = commit.origin.timestamp;
            folded.elements.push(Element { at, past, shared_with, writes });
        }
        if let Some(rules) = new_rules {
            self.replace_rules(rules, to, folded);
        }
        Ok(())
    }

    fn scan(&self, part: &Part, range: KeyRange) -> PartScan {
        let (bucket, cache) = (Arc::clone(&self.parts.bucket), &self.parts.cache);
        let reader = PartReader::new(bucket, Arc::clone(cache), part.clone());
        Arc::new(reader).scan(Cause::Read, range, false)
    }

    /// The rules that a commit brings, if any.
    async fn brought(&self, writes: &Writes) -> Result<Option<Rules>> {
        match writes {
            Writes::Inline(writes) => {
                let brings = writes.iter().find(|write| write.key == rows::placement());
                brings.map(|write| rules_of(write.value.clone())).transpose()
            }
            Writes::External(parts) => {
                let key = rows::placement();
                // Rows of tables are in parts without it: those are not looked into.
                for part in parts.iter().filter(|p| p.first_key <= key && key <= p.last_key) {
                    let mut scan = self.scan(part, KeyRange::point(&key));
                    if let Some(write) = scan.next().await.map_err(unread)? {
                        return rules_of(write.value).map(Some);
                    }
                }
                Ok(None)
            }
        }
    }

    fn replace_rules(&mut self, rules: Rules, to: Option<RegionId>, folded: &mut Folded) {
        if let Some(to) = to {
            folded.gained.extend(rules.gained(&self.rules, to));
        }
        self.rules = rules;
    }
}

/// Every member has the row with the rules.
fn members(rules: &Rules) -> RegionSet {
    rules.regions(&rows::placement())
}

fn unread(error: telesto_shard::Error) -> Error {
    Error::Shard(error.to_string())
}

/// The rules in a placement row, or none.
pub(crate) fn rules_of(value: Option<Bytes>) -> Result<Rules> {
    let rules = value.map(Rules::decode).transpose().map_err(Error::malformed("placement"))?;
    Ok(rules.unwrap_or_default())
}
