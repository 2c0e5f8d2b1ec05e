//! Stored form of records (`docs/reference/formats/log.md`).

use bytes::{BufMut, Bytes, BytesMut};
use telesto_common::{
    Incarnation, Label, LabelKind, Lsn, NodeId, RegionId, ShardId, Timestamp, TxnId,
};

use super::cursor::{Cursor, Malformed, put_string, put_varint};
use crate::record::{Commit, Config, Decide, Messages, Part, Prepare, Record, Write, Writes};

const COMMIT: u8 = 1;
const PREPARE: u8 = 2;
const DECIDE: u8 = 3;
const REMOTE_COMMIT: u8 = 4;
const CONFIG: u8 = 5;
const MESSAGES: u8 = 6;

const INLINE: u8 = 0;
const EXTERNAL: u8 = 1;

const PRESENT: u8 = 1;
const FRESH: u8 = 2;

const CHECKPOINT_ADVANCED: u8 = 1;
const SEAL: u8 = 2;
const NODE_JOINED: u8 = 3;

/// Appends one record.
pub fn put_record(out: &mut BytesMut, record: &Record) {
    match record {
        Record::Commit(commit) => {
            out.put_u8(COMMIT);
            put_commit(out, commit);
        }
        Record::Prepare(prepare) => {
            out.put_u8(PREPARE);
            put_varint(out, prepare.shard.0);
            out.put_u128_le(prepare.txn.0);
            out.put_u64_le(prepare.home_shard);
            out.put_u64_le(prepare.deadline.0);
            put_writes(out, &prepare.writes);
        }
        Record::Decide(decide) => {
            out.put_u8(DECIDE);
            put_varint(out, decide.shard.0);
            out.put_u128_le(decide.txn.0);
            out.put_u8(u8::from(decide.timestamp.is_some()));
            out.put_u64_le(decide.timestamp.unwrap_or_default().0);
        }
        Record::RemoteCommit(commit) => {
            out.put_u8(REMOTE_COMMIT);
            put_commit(out, commit);
        }
        Record::Config(config) => {
            out.put_u8(CONFIG);
            put_config(out, config);
        }
        Record::Messages(messages) => {
            out.put_u8(MESSAGES);
            put_varint(out, messages.shard.0);
            out.put_u128_le(messages.txn.0);
            put_varint(out, messages.bodies.len() as u64);
            for body in &messages.bodies {
                put_string(out, body);
            }
        }
    }
}

fn put_commit(out: &mut BytesMut, commit: &Commit) {
    put_varint(out, commit.shard.0);
    out.put_u128_le(commit.txn.0);
    out.put_u64_le(commit.timestamp.0);
    out.put_u128_le(commit.source.0);
    out.put_u8(commit.origin.kind as u8);
    out.put_u16_le(commit.origin.source.0);
    out.put_u64_le(commit.origin.timestamp.0);
    out.put_u32_le(commit.origin.target);
    put_writes(out, &commit.writes);
}

fn put_writes(out: &mut BytesMut, writes: &Writes) {
    match writes {
        Writes::Inline(writes) => {
            out.put_u8(INLINE);
            put_varint(out, writes.len() as u64);
            for write in writes {
                let present = if write.value.is_some() { PRESENT } else { 0 };
                out.put_u8(present | if write.fresh { FRESH } else { 0 });
                put_string(out, &write.key);
                if let Some(value) = &write.value {
                    put_string(out, value);
                }
            }
        }
        Writes::External(parts) => {
            out.put_u8(EXTERNAL);
            put_varint(out, parts.len() as u64);
            for part in parts {
                put_string(out, part.object.as_bytes());
                put_string(out, &part.first_key);
                put_string(out, &part.last_key);
                out.put_u64_le(part.writes);
                out.put_u64_le(part.size_bytes);
                out.put_u32_le(part.checksum);
            }
        }
    }
}

fn put_config(out: &mut BytesMut, config: &Config) {
    match config {
        Config::CheckpointAdvanced { shard, lsn, version } => {
            out.put_u8(CHECKPOINT_ADVANCED);
            put_varint(out, shard.0);
            out.put_u64_le(lsn.0);
            out.put_u64_le(*version);
        }
        Config::Seal { next_version, next_chain } => {
            out.put_u8(SEAL);
            out.put_u64_le(*next_version);
            put_string(out, next_chain);
        }
        Config::NodeJoined { node, incarnation } => {
            out.put_u8(NODE_JOINED);
            out.put_u128_le(node.0);
            out.put_u64_le(incarnation.0);
        }
    }
}

/// Why a record cannot be read.
#[derive(Debug)]
pub enum Unreadable {
    /// It is damaged.
    Malformed(Malformed),
    /// It has something that this program does not know: a newer one wrote it, for the checksum of
    /// the whole was good.
    Unknown { what: &'static str, found: u16, supported: u16 },
}

impl From<Malformed> for Unreadable {
    fn from(what: Malformed) -> Self {
        Self::Malformed(what)
    }
}

fn unknown(what: &'static str, found: u8, supported: u8) -> Unreadable {
    Unreadable::Unknown { what, found: found.into(), supported: supported.into() }
}

/// Reads one record. Keys and values share the input's memory. `only` is the shard of a log whose
/// records do not name theirs yet (entry version 1).
pub fn take_record(cursor: &mut Cursor, only: Option<ShardId>) -> Result<Record, Unreadable> {
    Ok(match cursor.u8()? {
        COMMIT => Record::Commit(take_commit(cursor, only)?),
        PREPARE => Record::Prepare(Prepare {
            shard: take_shard(cursor, only)?,
            txn: TxnId(cursor.u128()?),
            home_shard: cursor.u64()?,
            deadline: Timestamp(cursor.u64()?),
            writes: take_writes(cursor)?,
        }),
        DECIDE => {
            let shard = take_shard(cursor, only)?;
            let txn = TxnId(cursor.u128()?);
            let decided = cursor.u8()?;
            let timestamp = Timestamp(cursor.u64()?);
            match decided {
                0 => Record::Decide(Decide { shard, txn, timestamp: None }),
                1 => Record::Decide(Decide { shard, txn, timestamp: Some(timestamp) }),
                other => return Err(unknown("a decision of kind", other, 1)),
            }
        }
        REMOTE_COMMIT => Record::RemoteCommit(take_commit(cursor, only)?),
        CONFIG => Record::Config(take_config(cursor, only)?),
        MESSAGES => {
            let shard = take_shard(cursor, only)?;
            let txn = TxnId(cursor.u128()?);
            let count = cursor.count(1)?;
            let mut bodies = Vec::with_capacity(count);
            for _ in 0..count {
                bodies.push(cursor.string()?);
            }
            Record::Messages(Messages { shard, txn, bodies })
        }
        other => return Err(unknown("a record of kind", other, MESSAGES)),
    })
}

fn take_shard(cursor: &mut Cursor, only: Option<ShardId>) -> Result<ShardId, Malformed> {
    only.map_or_else(|| cursor.varint().map(ShardId), Ok)
}

fn take_commit(cursor: &mut Cursor, only: Option<ShardId>) -> Result<Commit, Unreadable> {
    Ok(Commit {
        shard: take_shard(cursor, only)?,
        txn: TxnId(cursor.u128()?),
        timestamp: Timestamp(cursor.u64()?),
        source: NodeId(cursor.u128()?),
        origin: Label {
            kind: match cursor.u8()? {
                0 => LabelKind::Update,
                1 => LabelKind::Migration,
                2 => LabelKind::EpochChange,
                other => return Err(unknown("a label of kind", other, 2)),
            },
            source: RegionId(cursor.u16()?),
            timestamp: Timestamp(cursor.u64()?),
            target: cursor.u32()?,
        },
        writes: take_writes(cursor)?,
    })
}

fn take_writes(cursor: &mut Cursor) -> Result<Writes, Unreadable> {
    match cursor.u8()? {
        INLINE => {
            let count = cursor.count(2)?;
            let mut writes = Vec::with_capacity(count);
            for _ in 0..count {
                let flags = cursor.u8()?;
                if flags & !(PRESENT | FRESH) != 0 {
                    return Err(unknown("a write with flags", flags, PRESENT | FRESH));
                }
                let key = cursor.string()?;
                let value = if flags & PRESENT != 0 { Some(cursor.string()?) } else { None };
                writes.push(Write { key, value, fresh: flags & FRESH != 0 });
            }
            Ok(Writes::Inline(writes))
        }
        EXTERNAL => {
            let count = cursor.count(23)?;
            let mut parts = Vec::with_capacity(count);
            for _ in 0..count {
                parts.push(Part {
                    object: text(cursor.string()?)?,
                    first_key: cursor.string()?,
                    last_key: cursor.string()?,
                    writes: cursor.u64()?,
                    size_bytes: cursor.u64()?,
                    checksum: cursor.u32()?,
                });
            }
            Ok(Writes::External(parts))
        }
        other => Err(unknown("a write set of kind", other, EXTERNAL)),
    }
}

fn take_config(cursor: &mut Cursor, only: Option<ShardId>) -> Result<Config, Unreadable> {
    Ok(match cursor.u8()? {
        CHECKPOINT_ADVANCED => Config::CheckpointAdvanced {
            shard: take_shard(cursor, only)?,
            lsn: Lsn(cursor.u64()?),
            version: cursor.u64()?,
        },
        SEAL => Config::Seal { next_version: cursor.u64()?, next_chain: cursor.string()? },
        NODE_JOINED => Config::NodeJoined {
            node: NodeId(cursor.u128()?),
            incarnation: Incarnation(cursor.u64()?),
        },
        other => return Err(unknown("a configuration record of kind", other, NODE_JOINED)),
    })
}

fn text(bytes: Bytes) -> Result<String, Malformed> {
    String::from_utf8(bytes.to_vec()).map_err(|e| e.to_string())
}
