//! A page: a node of a B-link tree (§3.4).
//!
//! # Invariants
//! - A node holds keys below its high key; what is at or above it is to the right.
//! - A leaf holds records, an inner node the smallest key and the page of each child; the first
//!   child's key is 0.
//! - The header carries the time of the last checkpoint (§4.5) and, for monotonic writes, the
//!   number of the newest log record of each client that was applied (§5.2).
//!
//! # Limits
//! Nodes are never merged: nothing is deleted in this workload. A tree's own header (the metadata
//! of its root in the paper) is a page without entries.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::workload::{Key, Table};

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PageRef {
    pub table: Table,
    pub id: u64,
}

impl PageRef {
    /// The root of a table's tree, which never moves.
    pub fn root(table: Table) -> Self {
        Self { table, id: 0 }
    }

    /// The header of a table's tree.
    pub fn header(table: Table) -> Self {
        Self { table, id: u64::MAX }
    }

    /// Its key in the bucket.
    pub fn key(self) -> String {
        format!("s3db/{}/{:016x}", self.table, self.id)
    }
}

/// Bytes of a record beside its payload, and of an entry of an inner node.
const RECORD_OVERHEAD: usize = 21;
const CHILD_BYTES: usize = 29;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Content {
    Leaf(BTreeMap<Key, Bytes>),
    Inner(BTreeMap<Key, u64>),
}

/// A page.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Node {
    /// Wall-clock microseconds of whoever made the last checkpoint.
    pub checkpointed: u64,
    /// By client: its newest log record that was applied here.
    pub counters: BTreeMap<u32, u64>,
    pub high: Option<Key>,
    pub right: Option<u64>,
    pub content: Content,
}

impl Node {
    pub fn leaf(records: BTreeMap<Key, Bytes>, checkpointed: u64) -> Self {
        let content = Content::Leaf(records);
        Self { checkpointed, counters: BTreeMap::new(), high: None, right: None, content }
    }

    pub fn inner(children: BTreeMap<Key, u64>, checkpointed: u64) -> Self {
        let content = Content::Inner(children);
        Self { checkpointed, counters: BTreeMap::new(), high: None, right: None, content }
    }

    pub fn encode(&self) -> Result<Bytes> {
        let encoded = postcard::to_stdvec(self);
        let encoded = encoded.map_err(|source| Error::Damaged { what: "a page".into(), source })?;
        Ok(encoded.into())
    }

    pub fn decode(page: PageRef, bytes: &[u8]) -> Result<Self> {
        postcard::from_bytes(bytes).map_err(|source| Error::Damaged { what: page.key(), source })
    }

    /// The sibling that holds `key`, if it is beyond this node.
    pub fn beyond(&self, key: Key) -> Option<u64> {
        self.right.filter(|_| self.high.is_some_and(|high| key >= high))
    }

    /// The child to go on in; `None` in a leaf.
    pub fn child(&self, key: Key) -> Option<u64> {
        match &self.content {
            Content::Leaf(_) => None,
            Content::Inner(children) => children.range(..=key).next_back().map(|(_, child)| *child),
        }
    }

    pub fn get(&self, key: Key) -> Option<&Bytes> {
        match &self.content {
            Content::Leaf(records) => records.get(&key),
            Content::Inner(_) => None,
        }
    }

    /// Inserts or replaces a record; an inner node is left as it is.
    pub fn set(&mut self, key: Key, payload: Bytes) {
        if let Content::Leaf(records) = &mut self.content {
            records.insert(key, payload);
        }
    }

    /// Adds a child; a leaf is left as it is.
    pub fn adopt(&mut self, low: Key, child: u64) {
        if let Content::Inner(children) = &mut self.content {
            children.insert(low, child);
        }
    }

    /// Its size, bytes, nearly.
    pub fn bytes(&self) -> usize {
        match &self.content {
            Content::Leaf(records) => {
                records.values().map(|payload| payload.len() + RECORD_OVERHEAD).sum()
            }
            Content::Inner(children) => children.len() * CHILD_BYTES,
        }
    }

    /// Cuts it into pieces of about `limit` bytes at most (one entry at least), each with its
    /// smallest key. The pieces are not linked.
    pub fn cut(self, limit: usize) -> Vec<(Key, Self)> {
        let entries = match &self.content {
            Content::Leaf(records) => records.len(),
            Content::Inner(children) => children.len(),
        };
        let pieces = self.bytes().div_ceil(limit.max(1)).clamp(1, entries.max(1));
        let each = entries.div_ceil(pieces).max(1);
        let mut rest = self;
        let mut cut = Vec::with_capacity(pieces);
        while let Some(tail) = rest.split_after(each) {
            cut.push((rest.lowest(), rest));
            rest = tail;
        }
        cut.push((rest.lowest(), rest));
        cut
    }

    /// Keeps the first `each` entries; the others, under the same header, if there are any.
    fn split_after(&mut self, each: usize) -> Option<Self> {
        let content = match &mut self.content {
            Content::Leaf(records) => {
                let middle = *records.keys().nth(each)?;
                Content::Leaf(records.split_off(&middle))
            }
            Content::Inner(children) => {
                let middle = *children.keys().nth(each)?;
                Content::Inner(children.split_off(&middle))
            }
        };
        let Self { checkpointed, high, right, .. } = *self;
        Some(Self { checkpointed, counters: self.counters.clone(), high, right, content })
    }

    fn lowest(&self) -> Key {
        match &self.content {
            Content::Leaf(records) => records.keys().next().copied().unwrap_or_default(),
            Content::Inner(children) => children.keys().next().copied().unwrap_or_default(),
        }
    }
}
