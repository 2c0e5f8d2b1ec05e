//! Names of the log's bucket objects. Numbers have 20 digits, so that listing order is numeric
//! order.
//!
//! ```text
//! shards/<shard>/chain/<version>
//! shards/<shard>/log/<loglet>/<lsn>
//! shards/<shard>/archive/<loglet>/<first>-<last>
//! shards/<shard>/clock/<token>
//! shards/<shard>/why/<loglet>
//! ```

use telesto_common::{Lsn, ShardId, WriterToken};

/// A number as keys have it: 20 digits, one form only. The greatest is none, so that there is
/// always one after it.
fn number(text: &str) -> Option<u64> {
    let digits = text.len() == 20 && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|n| *n != u64::MAX)
}

/// Prefix of the chain versions.
pub fn chain_prefix(shard: ShardId) -> String {
    format!("shards/{shard}/chain")
}

/// A chain version.
pub fn chain(shard: ShardId, version: u64) -> String {
    format!("shards/{shard}/chain/{version:020}")
}

/// The version in a chain key.
pub fn chain_version(key: &str) -> Option<u64> {
    number(key.rsplit('/').next()?)
}

/// Why a loglet became the active one.
pub fn why(shard: ShardId, loglet: u64) -> String {
    format!("shards/{shard}/why/{loglet:020}")
}

/// That a loglet in the bucket is to be left on request only.
pub fn stays(shard: ShardId, loglet: u64) -> String {
    format!("shards/{shard}/why/{loglet:020}-stays")
}

/// Prefix of every bucket loglet's slots.
pub fn log_prefix(shard: ShardId) -> String {
    format!("shards/{shard}/log")
}

/// Prefix of one loglet's slots.
pub fn loglet_prefix(shard: ShardId, loglet: u64) -> String {
    format!("shards/{shard}/log/{loglet:020}")
}

/// A slot.
pub fn slot(shard: ShardId, loglet: u64, lsn: Lsn) -> String {
    format!("shards/{shard}/log/{loglet:020}/{:020}", lsn.0)
}

/// Loglet and LSN of a slot key.
pub fn slot_of(key: &str) -> Option<(u64, Lsn)> {
    let mut parts = key.rsplit('/');
    let lsn = number(parts.next()?)?;
    Some((number(parts.next()?)?, Lsn(lsn)))
}

/// Prefix of all archives.
pub fn archive_prefix(shard: ShardId) -> String {
    format!("shards/{shard}/archive")
}

/// Prefix of one loglet's archive.
pub fn loglet_archive_prefix(shard: ShardId, loglet: u64) -> String {
    format!("shards/{shard}/archive/{loglet:020}")
}

/// An archive object.
pub fn archive(shard: ShardId, loglet: u64, first: Lsn, last: Lsn) -> String {
    format!("shards/{shard}/archive/{loglet:020}/{:020}-{:020}", first.0, last.0)
}

/// Loglet, first and last LSN of an archive key.
pub fn archive_of(key: &str) -> Option<(u64, Lsn, Lsn)> {
    let mut parts = key.rsplit('/');
    let (first, last) = parts.next()?.split_once('-')?;
    let loglet = number(parts.next()?)?;
    Some((loglet, Lsn(number(first)?), Lsn(number(last)?)))
}

/// Prefix of the clock objects.
pub fn clock_prefix(shard: ShardId) -> String {
    format!("shards/{shard}/clock")
}

/// A short-lived object whose modification time is the bucket's clock.
pub fn clock(shard: ShardId, token: WriterToken) -> String {
    format!("shards/{shard}/clock/{token}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_numbers_parse_back_and_sort_numerically() {
        let shard = ShardId(7);
        assert_eq!(chain_version(&chain(shard, 12)), Some(12));
        assert_eq!(slot_of(&slot(shard, 3, Lsn(44))), Some((3, Lsn(44))));
        let key = archive(shard, 3, Lsn(9), Lsn(10));
        assert_eq!(archive_of(&key), Some((3, Lsn(9), Lsn(10))));
        assert!(slot(shard, 3, Lsn(9)) < slot(shard, 3, Lsn(10)));
        assert!(slot(shard, 9, Lsn(9)) < slot(shard, 10, Lsn(1)));
        assert_eq!(archive_of("shards/7/archive/x/y"), None);
        for absurd in [u64::MAX, u64::MAX - 1] {
            let known = absurd != u64::MAX;
            assert_eq!(slot_of(&slot(shard, 3, Lsn(absurd))).is_some(), known);
            assert_eq!(archive_of(&archive(shard, 3, Lsn(1), Lsn(absurd))).is_some(), known);
            assert_eq!(chain_version(&chain(shard, absurd)).is_some(), known);
        }
        for other in ["44", "+0000000000000000044", "000000000000000000044", "99999999999999999999"]
        {
            assert_eq!(slot_of(&format!("shards/7/log/{:020}/{other}", 3)), None, "{other}");
        }
    }
}
