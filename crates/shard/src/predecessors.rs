//! What a batch of the fold supersedes in the checkpoint, found in one pass.
//!
//! # Purpose
//! A point get costs a filter look-up in every table; a large write set has millions of keys,
//! nearly always close together and mostly new. One iterator over the checkpoint tells of a whole
//! stretch of keys that nothing is there, and yields what is.
//!
//! # Invariants
//! - The pass and point gets give the same answers. Keys come in order; everything the fold applied
//!   before is seen, nothing of the batch itself.
//!
//! # Limits
//! It gives up, for point gets, when the checkpoint turns out to hold much between the keys.

use bytes::Bytes;
use telesto_common::Timestamp;
use telesto_common::key::KeyRange;

use crate::api::Version;
use crate::engine::{Fault, Outcome, ReadAhead, View};
use crate::row;

/// Fewer keys than this are not worth a pass.
const LEAST_KEYS: usize = 64;
/// Rows between two keys that are stepped over before the iterator is opened anew at the second.
const STEPS: usize = 16;
/// How often it may be opened anew, in parts of the keys settled so far, and at least.
const REOPENS_PART: usize = 32;
const LEAST_REOPENS: usize = 4;

/// What a pass found.
pub(crate) struct Found {
    /// How many of the keys, from the first on, it has settled.
    pub(crate) settled: usize,
    /// The versions superseded.
    pub(crate) versions: Vec<(Bytes, Version)>,
}

/// The stored newest version as what a write at `at` supersedes.
pub(crate) fn older(
    path: &str,
    key: &Bytes,
    stored: &Bytes,
    at: Timestamp,
) -> Outcome<Option<(Bytes, Version)>> {
    let version = row::decode_newest(path, stored)
        .map_err(|error| Fault::Corrupt { object: None, reason: error.to_string() })?;
    // At or above: this LSN was folded before, in part; its history is written.
    Ok((version.at < at).then(|| (key.clone(), version)))
}

/// Looks up keys, in order, each with the time of the write that supersedes it.
pub(crate) async fn by_pass<V: View + ?Sized>(
    path: &str,
    view: &V,
    keys: &[(Bytes, Timestamp)],
) -> Outcome<Found> {
    let mut found = Found { settled: 0, versions: Vec::new() };
    if keys.len() < LEAST_KEYS {
        return Ok(found);
    }
    let end = row::newest_end();
    let mut rows = None;
    // The row the iterator stands at: nothing lies between it and the keys settled.
    let mut next: Option<(Bytes, Bytes)> = None;
    let mut reopens = 0;
    for (key, at) in keys {
        let wanted = row::newest_key(key);
        let mut steps = 0;
        loop {
            if let Some((stored_key, stored)) = &next
                && *stored_key >= wanted
            {
                if *stored_key == wanted {
                    found.versions.extend(older(path, key, stored, *at)?);
                }
                break;
            }
            if rows.is_none() || steps == STEPS {
                if reopens > LEAST_REOPENS + found.settled / REOPENS_PART {
                    return Ok(found);
                }
                reopens += 1;
                steps = 0;
                let range = KeyRange::new(wanted.clone(), end.clone());
                rows = Some(view.scan(range, false, ReadAhead::Short).await?);
            }
            let Some(iterator) = &mut rows else { break };
            steps += 1;
            match iterator.next().await? {
                Some(row) => next = Some(row),
                // Nothing at or after this key, and so after every later one.
                None => {
                    found.settled = keys.len();
                    return Ok(found);
                }
            }
        }
        found.settled += 1;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use telesto_common::{ShardId, TxnId};

    use super::*;
    use crate::engine::Engine as _;
    use crate::engine::memory::MemoryCheckpoints;

    fn key(number: u32) -> Bytes {
        Bytes::from(format!("{number:06}"))
    }

    proptest! {
        /// Whatever is stored around the keys: each key settled has the answer a point get gives.
        #[test]
        fn pass_and_point_gets_give_the_same_answers(
            stored in proptest::collection::btree_map(0_u32..4000, 1_u64..20, 0..1500),
            asked in proptest::collection::btree_set(0_u32..4000, 0..400),
            first in 0_u32..4000,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
            runtime.block_on(async {
                let checkpoints = MemoryCheckpoints::new();
                let engine = checkpoints.engine(ShardId(0), "shards/0/checkpoint".to_owned());
                let writer = engine.open_writer().await.expect("opens");
                let version = |at| Version { at: Timestamp(at), txn: TxnId(1), origin: None, value: None };
                let rows = stored.iter().filter(|(number, _)| **number >= first).map(|(number, at)| {
                    (row::newest_key(&key(*number)), row::encode_newest(&version(*at)))
                });
                writer.apply(1, rows.collect()).await.expect("applies");
                let keys: Vec<_> = asked.iter().map(|number| (key(*number), Timestamp(10))).collect();
                let found = by_pass("p", writer.as_ref(), &keys).await.expect("reads");
                assert_eq!(found.settled == 0, keys.len() < LEAST_KEYS, "{} of {}", found.settled, keys.len());
                let mut expected = Vec::new();
                for (key, at) in &keys[..found.settled] {
                    if let Some(stored) = writer.get(&row::newest_key(key)).await.expect("reads") {
                        expected.extend(older("p", key, &stored, *at).expect("decodes"));
                    }
                }
                assert_eq!(found.versions, expected);
            });
        }
    }
}
