//! The records of an entry, from the requests of a group.
//!
//! # Invariants
//! The same survivors give the same records: an append of unknown outcome is tried again with them.

use telesto_common::{Label, Timestamp};
use telesto_log::record::{Commit, Config, Messages, Record, Writes};
use telesto_shard::Folded;

use super::additions::{self, Made};
use super::committer::Pending;
use crate::local::Local;
use crate::service::{CheckedWrite, CommitWrites};

/// What goes into the entry: the records of the survivors, in their order.
pub(crate) fn records(
    local: &Local,
    live: &[Pending],
    survivors: &[(usize, Timestamp)],
    made: &Made,
) -> Vec<Record> {
    let shard = local.options.shard;
    let mut records = Vec::with_capacity(survivors.len() + 1);
    if let Some(Folded { lsn, version }) = *local.folded_record.lock() {
        records.push(Record::Config(Config::CheckpointAdvanced { shard, lsn, version }));
    }
    for (position, timestamp) in survivors {
        let request = &live[*position].request;
        let writes = match &request.writes {
            CommitWrites::Inline(writes) => inline(writes),
            CommitWrites::External { parts, .. } => Writes::External(parts.clone()),
            CommitWrites::Adding { own, .. } => {
                additions::together(own, made.get(position).map_or(&[], Vec::as_slice))
            }
            CommitWrites::Applied { own, remote } => {
                let first = timestamp.0 - remote.len() as u64;
                for (remote, at) in remote.iter().zip(first..) {
                    records.push(Record::Commit(Commit {
                        shard,
                        txn: remote.txn,
                        timestamp: Timestamp(at),
                        source: local.options.identity.node,
                        origin: remote.origin,
                        writes: match remote.parts.is_empty() {
                            true => inline(&remote.writes),
                            false => Writes::External(remote.parts.clone()),
                        },
                    }));
                }
                inline(own)
            }
        };
        records.push(Record::Commit(Commit {
            shard,
            txn: request.txn,
            timestamp: *timestamp,
            source: local.options.identity.node,
            origin: request
                .origin
                .unwrap_or_else(|| Label::update(local.options.region, *timestamp)),
            writes,
        }));
        if !request.messages.is_empty() {
            let bodies = request.messages.clone();
            records.push(Record::Messages(Messages { shard, txn: request.txn, bodies }));
        }
    }
    records
}

fn inline(writes: &[CheckedWrite]) -> Writes {
    Writes::Inline(writes.iter().map(|checked| checked.write.clone()).collect())
}
