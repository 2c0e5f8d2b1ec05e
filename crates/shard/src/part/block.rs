//! A block of a part in memory: its rows in order, each decoded when it is asked for.
//!
//! # Invariants
//! - All rows lie within the payload: that is checked once, when the block is made.
//! - Keys grow, as the writer saw to; the checksum of the block was compared before.

use std::ops::Range;

use bytes::Bytes;
use telesto_common::key::KeyRange;
use telesto_log::record::Write;

use super::format;

/// The payload of a block, and where its rows begin.
#[derive(Debug)]
pub(crate) struct Block {
    payload: Bytes,
    starts: Vec<u32>,
}

impl Block {
    /// `None`: the payload is not made of rows.
    pub(crate) fn new(payload: Bytes) -> Option<Self> {
        let mut starts = Vec::new();
        let mut at = 0;
        while at < payload.len() {
            starts.push(u32::try_from(at).ok()?);
            at += format::write_len(&payload[at..])?;
        }
        Some(Self { payload, starts })
    }

    /// Bytes it holds.
    pub(crate) fn weight(&self) -> u64 {
        (self.payload.len() + self.starts.len() * size_of::<u32>()) as u64
    }

    fn key(&self, start: u32) -> &[u8] {
        format::write_key(&self.payload[start as usize..])
    }

    /// The row at `at`; `None`: there are not so many.
    pub(crate) fn write(&self, at: usize) -> Option<Write> {
        let start = *self.starts.get(at)? as usize;
        let end = self.starts.get(at + 1).map_or(self.payload.len(), |end| *end as usize);
        format::decode_write(self.payload.slice(start..end))
    }

    /// The row of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Write> {
        let found = self.starts.binary_search_by(|start| self.key(*start).cmp(key));
        found.ok().and_then(|at| self.write(at))
    }

    /// Which rows lie in `range`.
    pub(crate) fn within(&self, range: &KeyRange) -> Range<usize> {
        let first = self.starts.partition_point(|start| self.key(*start) < &range.start[..]);
        let beyond = match &range.end {
            end if end.is_empty() => self.starts.len(),
            end => self.starts.partition_point(|start| self.key(*start) < &end[..]),
        };
        first..beyond.max(first)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::*;

    type Rows = BTreeMap<Vec<u8>, (Option<Vec<u8>>, bool)>;

    proptest! {
        #[test]
        fn blocks_give_what_was_written(
            rows in proptest::collection::btree_map(
                proptest::collection::vec(0_u8..4, 0..4), any::<(Option<Vec<u8>>, bool)>(), 0..40),
            start in proptest::collection::vec(0_u8..4, 0..4),
            end in proptest::collection::vec(0_u8..4, 0..4),
        ) {
            let rows: Rows = rows;
            let writes: Vec<Write> = rows
                .into_iter()
                .map(|(key, (value, fresh))| Write { key: key.into(), value: value.map(Bytes::from), fresh })
                .collect();
            let mut payload = BytesMut::new();
            writes.iter().for_each(|write| format::encode_write(&mut payload, write));
            let block = Block::new(payload.freeze()).expect("decodes");
            let range = KeyRange::new(Bytes::from(start.clone()), Bytes::from(end));
            let expected: Vec<Write> =
                writes.iter().filter(|write| range.contains(&write.key)).cloned().collect();
            let found: Vec<Write> = block.within(&range).filter_map(|at| block.write(at)).collect();
            prop_assert_eq!(found, expected);
            let one = writes.iter().find(|write| write.key == start).cloned();
            prop_assert_eq!(block.get(&start), one);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            if let Some(block) = Block::new(Bytes::from(bytes)) {
                for at in block.within(&KeyRange::default()) {
                    let write = block.write(at).expect("it was counted");
                    let _ = block.get(&write.key);
                }
            }
        }
    }
}
