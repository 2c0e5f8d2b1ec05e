//! How entries and versions of a spilled run are encoded.
//!
//! # Invariants
//! What was encoded decodes to the same; `None` of a decoder: the bytes are none of these.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use telesto_common::{Lsn, RegionId, Timestamp, TxnId};
use telesto_log::record::Write;

use super::{Place, Stored};
use crate::api::{Origin, Version};
use crate::external::External;
use crate::tail::{Item, ItemCommit, ItemWrites};

const VALUE: u8 = 1;
const LABELLED: u8 = 2;
const FRESH: u8 = 4;
const EXTERNAL: u8 = 8;

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // Keys and values are far below 4 GiB: the log's entries hold them.
    out.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.put_slice(bytes);
}

fn take_bytes(body: &mut Bytes) -> Option<Bytes> {
    let length = body.try_get_u32().ok()? as usize;
    (body.len() >= length).then(|| body.split_to(length))
}

fn put_origin(out: &mut Vec<u8>, origin: Option<&Origin>) {
    if let Some(origin) = origin {
        out.put_u16(origin.source.0);
        out.put_u64(origin.timestamp.0);
    }
}

fn take_origin(body: &mut Bytes, flags: u8) -> Option<Option<Box<Origin>>> {
    if flags & LABELLED == 0 {
        return Some(None);
    }
    let source = RegionId(body.try_get_u16().ok()?);
    let timestamp = Timestamp(body.try_get_u64().ok()?);
    Some(Some(Box::new(Origin { source, timestamp })))
}

fn flag(set: bool, flag: u8) -> u8 {
    if set { flag } else { 0 }
}

/// Appends an entry. `wrote` is told of each write, with its commit and where in `out` its value
/// begins.
pub(super) fn put_item(
    out: &mut Vec<u8>,
    item: &Item,
    mut wrote: impl FnMut(&ItemCommit, &Write, usize),
) {
    out.put_u64(item.lsn.0);
    out.put_u64(item.newest.0);
    out.put_u64(u64::try_from(item.applied_at.as_nanos()).unwrap_or(u64::MAX));
    out.put_u32(item.commits.len() as u32);
    for commit in &item.commits {
        let external = matches!(commit.writes, ItemWrites::External(_));
        out.put_u8(flag(commit.origin.is_some(), LABELLED) | flag(external, EXTERNAL));
        out.put_u128(commit.txn.0);
        out.put_u64(commit.at.0);
        put_origin(out, commit.origin.as_deref());
        let ItemWrites::Inline(writes) = &commit.writes else { continue };
        out.put_u32(writes.len() as u32);
        for write in writes {
            out.put_u8(flag(write.value.is_some(), VALUE) | flag(write.fresh, FRESH));
            put_bytes(out, &write.key);
            let value = write.value.as_deref().unwrap_or_default();
            put_bytes(out, value);
            wrote(commit, write, out.len() - value.len());
        }
    }
}

/// The entries of a piece.
pub(super) fn items(
    mut body: Bytes,
    externals: &BTreeMap<Timestamp, Arc<External>>,
) -> Option<Vec<Item>> {
    let mut items = Vec::new();
    while !body.is_empty() {
        let lsn = Lsn(body.try_get_u64().ok()?);
        let newest = Timestamp(body.try_get_u64().ok()?);
        let applied_at = Duration::from_nanos(body.try_get_u64().ok()?);
        let mut commits = Vec::new();
        for _ in 0..body.try_get_u32().ok()? {
            let flags = body.try_get_u8().ok()?;
            let txn = TxnId(body.try_get_u128().ok()?);
            let at = Timestamp(body.try_get_u64().ok()?);
            let origin = take_origin(&mut body, flags)?;
            let writes = match flags & EXTERNAL {
                0 => ItemWrites::Inline(take_writes(&mut body)?),
                _ => ItemWrites::External(Arc::clone(externals.get(&at)?)),
            };
            commits.push(ItemCommit { txn, at, origin, writes });
        }
        items.push(Item::read_back(lsn, commits, newest, applied_at));
    }
    Some(items)
}

fn take_writes(body: &mut Bytes) -> Option<Vec<Write>> {
    let mut writes = Vec::new();
    for _ in 0..body.try_get_u32().ok()? {
        let flags = body.try_get_u8().ok()?;
        let key = take_bytes(body)?;
        let value = take_bytes(body)?;
        let value = (flags & VALUE != 0).then_some(value);
        writes.push(Write { key, value, fresh: flags & FRESH != 0 });
    }
    Some(writes)
}

/// Appends a key and how many versions of it follow.
pub(super) fn put_key(out: &mut Vec<u8>, key: &[u8], versions: usize) {
    put_bytes(out, key);
    out.put_u32(versions as u32);
}

/// Appends what names a version, and where its value lies.
pub(super) fn put_version(out: &mut Vec<u8>, stored: &Stored) {
    let Stored { version, place } = stored;
    out.put_u8(flag(place.is_some(), VALUE) | flag(version.origin.is_some(), LABELLED));
    out.put_u64(version.at.0);
    out.put_u128(version.txn.0);
    put_origin(out, version.origin.as_deref());
    if let Some(place) = place {
        out.put_u64(place.offset);
        out.put_u32(place.bytes);
        out.put_u32(place.crc);
    }
}

fn take_version(body: &mut Bytes) -> Option<Stored> {
    let flags = body.try_get_u8().ok()?;
    let at = Timestamp(body.try_get_u64().ok()?);
    let txn = TxnId(body.try_get_u128().ok()?);
    let origin = take_origin(body, flags)?;
    let place = match flags & VALUE {
        0 => None,
        _ => Some(Place {
            offset: body.try_get_u64().ok()?,
            bytes: body.try_get_u32().ok()?,
            crc: body.try_get_u32().ok()?,
        }),
    };
    Some(Stored { version: Version { at, txn, origin, value: None }, place })
}

fn take_versions(body: &mut Bytes) -> Option<Vec<Stored>> {
    let count = body.try_get_u32().ok()?;
    (0..count).map(|_| take_version(body)).collect()
}

/// All keys of a block, with their versions.
pub(super) fn keys(mut body: Bytes) -> Option<Vec<(Bytes, Vec<Stored>)>> {
    let mut keys = Vec::new();
    while !body.is_empty() {
        let key = take_bytes(&mut body)?;
        keys.push((key, take_versions(&mut body)?));
    }
    Some(keys)
}

/// The versions of `key` in a block; none when it is not there.
pub(super) fn versions_of(mut body: Bytes, key: &[u8]) -> Option<Vec<Stored>> {
    while !body.is_empty() {
        let found = take_bytes(&mut body)?;
        let versions = take_versions(&mut body)?;
        if found == key {
            return Some(versions);
        }
        if &found[..] > key {
            break;
        }
    }
    Some(Vec::new())
}

/// Appends a transaction and when it was committed.
pub(super) fn put_outcome(out: &mut Vec<u8>, txn: TxnId, at: Timestamp) {
    out.put_u128(txn.0);
    out.put_u64(at.0);
}

/// When `txn` was committed, as far as a block of outcomes tells.
#[allow(clippy::option_option, reason = "the outer one: the bytes are no outcomes")]
pub(super) fn outcome_in(mut body: Bytes, txn: TxnId) -> Option<Option<Timestamp>> {
    while !body.is_empty() {
        let found = TxnId(body.try_get_u128().ok()?);
        let at = Timestamp(body.try_get_u64().ok()?);
        if found == txn {
            return Some(Some(at));
        }
    }
    Some(None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry() -> impl Strategy<Value = Item> {
        let write = (any::<Vec<u8>>(), any::<Option<Vec<u8>>>(), any::<bool>());
        let write = write.prop_map(|(key, value, fresh)| {
            let value = value.map(Bytes::from);
            Write { key: Bytes::from(key), value, fresh }
        });
        let origin = any::<Option<(u16, u64)>>().prop_map(|of| {
            let label =
                |(source, at)| Origin { source: RegionId(source), timestamp: Timestamp(at) };
            of.map(|of| Box::new(label(of)))
        });
        let commit = (any::<u128>(), any::<u64>(), origin, prop::collection::vec(write, 0..5));
        let commit = commit.prop_map(|(txn, at, origin, writes)| ItemCommit {
            txn: TxnId(txn),
            at: Timestamp(at),
            origin,
            writes: ItemWrites::Inline(writes),
        });
        let commits = prop::collection::vec(commit, 0..4);
        (any::<u64>(), any::<u64>(), any::<u32>(), commits).prop_map(
            |(lsn, newest, at, commits)| {
                let at = Duration::from_micros(u64::from(at));
                Item::read_back(Lsn(lsn), commits, Timestamp(newest), at)
            },
        )
    }

    proptest! {
        #[test]
        fn entries_and_versions_decode_to_what_was_encoded(entries in prop::collection::vec(entry(), 1..5)) {
            let (mut piece, mut block, mut expected) = (Vec::new(), Vec::new(), Vec::new());
            let mut values = Vec::new();
            for entry in &entries {
                put_item(&mut piece, entry, |commit, write, at| {
                    let (txn, origin) = (commit.txn, commit.origin.clone());
                    let version = Version { at: commit.at, txn, origin, value: None };
                    let bytes = write.value.as_ref().map_or(0, Bytes::len) as u32;
                    let place = write.value.as_ref().map(|_| Place { offset: at as u64, bytes, crc: bytes });
                    put_key(&mut block, &write.key, 1);
                    put_version(&mut block, &Stored { version: version.clone(), place });
                    expected.push((write.key.clone(), version, place.is_some()));
                    values.push((at, write.value.clone()));
                });
            }
            for (at, value) in values {
                let value = value.unwrap_or_default();
                prop_assert_eq!(&piece[at..at + value.len()], &value[..]);
            }
            let read = items(Bytes::from(piece), &BTreeMap::new()).expect("decodes");
            prop_assert_eq!(format!("{read:?}"), format!("{entries:?}"));
            let read = keys(Bytes::from(block)).expect("decodes").into_iter().map(|(key, mut versions)| {
                let stored = versions.pop().expect("one version");
                (key, stored.version, stored.place.is_some())
            });
            prop_assert_eq!(read.collect::<Vec<_>>(), expected);
        }

        #[test]
        fn arbitrary_bytes_never_panic_a_decoder(bytes: Vec<u8>) {
            let bytes = Bytes::from(bytes);
            let _ = (items(bytes.clone(), &BTreeMap::new()), keys(bytes.clone()));
            let _ = (versions_of(bytes.clone(), b"key"), outcome_in(bytes, TxnId(1)));
        }
    }
}
