//! Names of the log's bucket objects. Numbers have 20 digits, so that listing order is numeric order.
//!
//! ```text
//! shards/<shard>/chain/<version>
//! shards/<shard>/log/<loglet>/<lsn>
//! shards/<shard>/archive/<loglet>/<first>-<last>
//! shards/<shard>/clock/<token>
//! ```

use telesto_common::{Lsn, ShardId, WriterToken};

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
    key.rsplit('/').next()?.parse().ok()
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
    let lsn = parts.next()?.parse().ok()?;
    Some((parts.next()?.parse().ok()?, Lsn(lsn)))
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
    let loglet = parts.next()?.parse().ok()?;
    Some((loglet, Lsn(first.parse().ok()?), Lsn(last.parse().ok()?)))
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
    }
}
