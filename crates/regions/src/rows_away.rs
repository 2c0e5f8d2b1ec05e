//! Rows that transactions of one region change and another one keeps: asked for, and told.
//!
//! ```text
//!  this region                                        home
//!  S, a snapshot ─ keys or a range, S, definitions ─► everything of this region up to S is there ─► H, its newest snapshot ─► rows, H
//!                 ─ more, H ────────────────────────► rows as of H
//!                 ─ what was read, and when ────────► is it as it was, up to the newest commit?
//! ```
//! # Invariants
//! - The home tells rows that it keeps by the definitions of who asks, and only when those who
//!   wrote them before have stopped.
//! - All answers to one transaction's statement are of H.
//!
//! # On failure
//! [`telesto_txn::Error::Elsewhere`] names the region and says why;
//! [`telesto_txn::Error::Conflict`] when the definitions differ, after what was in the way has come
//! here.
//!
//! # Limits
//! About [`ROWS_BYTES`] an answer. H is kept as long as any snapshot that nobody holds: the
//! retention.

use std::collections::BTreeSet;

use bytes::{BufMut as _, Bytes, BytesMut};
use telesto_common::cursor::{Cursor, Malformed, put_string, put_varint};
use telesto_common::{RegionId, Timestamp, TxnId};
use telesto_shard::{Change, Read, ScanSpec};
use telesto_txn::service::{ChangedRequest, Freshness, ScanRequest};
use telesto_txn::{AskRows, Error as Txn, ROWS_BYTES, Reads, ReadsSince, RowsGiven, Wanted};

use crate::error::{Error, Result};
use crate::forward::{self, ARRIVAL};
use crate::home;
use crate::question::Question;
use crate::shared::{SERVICE, Shared};
use crate::store::Store;
use crate::wire::{Header, Reply, Request};

/// Rows in an answer, at most.
const MOST_ROWS: u64 = 4096;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Rows(RowsGiven),
    /// Something is not as it was read: what was written under this key then, by another
    /// transaction.
    Changed {
        other: TxnId,
        at: Timestamp,
        key: Bytes,
    },
    /// The home has other definitions, up to this time of its log.
    Defined(Timestamp),
}

/// The question, with the definitions at the asker's snapshot.
pub(crate) async fn question(
    store: &Store,
    stamp: Option<Bytes>,
    asked: &AskRows,
) -> Result<Question> {
    let stamp = match (stamp, asked.at) {
        (Some(stamp), None) => {
            let read = store.get(vec![stamp], asked.snapshot).await?.pop();
            read.and_then(Read::into_value).unwrap_or_default()
        }
        _ => Bytes::new(),
    };
    let (seen, at, wanted) = (asked.snapshot, asked.at, asked.wanted.clone());
    Ok(Question::Rows { seen, at, stamp, wanted })
}

/// See [`telesto_txn::Away::rows`].
pub(crate) async fn rows_at(
    shared: &Shared,
    home: RegionId,
    asked: AskRows,
) -> telesto_txn::Result<RowsGiven> {
    let stamp = shared.tables.as_ref().map(|tables| tables.stamp());
    let told = async {
        let question = question(&shared.store, stamp.clone(), &asked).await?;
        Told::decode(ask(shared, home, &question).await?)
            .map_err(Error::malformed("another region's answer to a question for rows"))
    };
    match told.await {
        Ok(told) => of_told(shared, home, (asked.txn, stamp), told).await,
        Err(error) => Err(unanswered(&shared.name_of(home), &error.to_string())),
    }
}

/// Passes a question on, over a connection that no stream waits for.
pub(crate) async fn ask(shared: &Shared, home: RegionId, question: &Question) -> Result<Bytes> {
    let (Some(client), Some(peer)) = (shared.readers.get(&home), shared.peers.get(&home)) else {
        return Err(Error::UnknownRegion(home));
    };
    // What the transaction has seen of this region is to be there.
    peer.hurry.notify_one();
    let header = Header { deployment: shared.config.deployment, from: shared.config.me, to: home };
    let request = Request::Ask(question.encode()).encode(header);
    let by = shared.env.deadline(shared.config.timeout);
    let reply = client.call(SERVICE, request, by).await?;
    match Reply::decode(reply).map_err(Error::malformed("another region's reply"))? {
        Reply::Answer(answer) => Ok(answer),
        Reply::Refused(reason) => Err(Error::Refused { region: home, reason }),
        _ => Err(Error::malformed("another region's answer")("it is none".to_owned())),
    }
}

async fn of_told(
    shared: &Shared,
    home: RegionId,
    (txn, stamp): (TxnId, Option<Bytes>),
    told: Told,
) -> telesto_txn::Result<RowsGiven> {
    match told {
        Told::Rows(given) => Ok(given),
        Told::Changed { other, at, key } => {
            Err(forward::conflict(shared, home, txn, other, at, key).await)
        }
        Told::Defined(at) => {
            let key = stamp.unwrap_or_default();
            Err(forward::conflict(shared, home, txn, TxnId(0), at, key).await)
        }
    }
}

/// What is told of a region that does not answer.
pub(crate) fn unanswered(name: &str, reason: &str) -> Txn {
    Txn::Elsewhere(format!(
        "region {name}, which keeps rows that the statement changes, did not tell them ({reason}); nothing was written: run it again, or see SELECT * FROM telesto_regions"
    ))
}

/// What region `from` is told.
pub(crate) async fn answer(
    shared: &Shared,
    from: RegionId,
    (seen, at): (Timestamp, Option<Timestamp>),
    stamp: Bytes,
    wanted: Wanted,
) -> Result<Bytes> {
    if !shared.taking_back.lock().is_empty() {
        return Err(Error::NotStreaming { region: from });
    }
    let store = &shared.store;
    let snapshot = match at {
        Some(at) => store.begin(Freshness::Applied, Some(at)).await?,
        None => {
            shared.wait_for(from, seen, shared.env.deadline(ARRIVAL)).await?;
            store.begin(Freshness::Tail, None).await?
        }
    };
    let told = tell(shared, snapshot.snapshot, at.is_none().then_some(stamp), wanted).await;
    store.release(&snapshot).await;
    Ok(told?.encode())
}

async fn tell(
    shared: &Shared,
    at: Timestamp,
    stamp: Option<Bytes>,
    wanted: Wanted,
) -> Result<Told> {
    let Some(tables) = &shared.tables else {
        return Err(Error::NotHome { reason: "it has no definitions".to_owned() });
    };
    let here = shared.store.get(vec![tables.stamp()], at).await?.pop().and_then(Read::into_value);
    if stamp.is_some() && stamp != here {
        return Ok(Told::Defined(at));
    }
    let meaning = tables.at(at, here.as_ref()).await.map_err(Error::Definitions)?;
    let Some(meaning) = meaning else {
        return Err(Error::NotHome { reason: "it has no definitions yet".to_owned() });
    };
    let keys: BTreeSet<Bytes> = match &wanted {
        Wanted::Keys(keys) => keys.iter().cloned().collect(),
        Wanted::Range { range, .. } => std::iter::once(range.start.clone()).collect(),
        Wanted::Unchanged(reads) => {
            let starts = reads.ranges.iter().map(|read| read.range.start.clone());
            reads.points.iter().map(|(key, _)| key.clone()).chain(starts).collect()
        }
    };
    home::check_keeps(shared, &meaning, keys.iter(), at).await?;
    let mut given = RowsGiven { at, incarnation: shared.incarnation(), ..RowsGiven::default() };
    let mut bytes = 0;
    match wanted {
        Wanted::Keys(keys) => {
            for key in keys {
                let read = shared.store.get(vec![key], at).await?.pop();
                let value = read.and_then(Read::into_value);
                bytes += value.as_ref().map_or(0, Bytes::len);
                given.values.push(value);
                if bytes >= ROWS_BYTES {
                    break;
                }
            }
        }
        Wanted::Range { range, reverse, limit } => {
            let limit = limit.clamp(1, MOST_ROWS);
            let request = ScanRequest {
                shard: shared.store.shard,
                range,
                at,
                spec: ScanSpec { reverse, limit: Some(limit) },
                timeout: shared.store.timeout,
            };
            let found = shared.store.service.scan(request).await?;
            given.more = found.len() as u64 >= limit;
            for row in found {
                if bytes >= ROWS_BYTES {
                    given.more = true;
                    break;
                }
                bytes += row.key.len() + row.value.len();
                given.rows.push((row.key, row.value));
            }
        }
        Wanted::Unchanged(reads) => {
            if let Some(change) = changed(&shared.store, reads).await? {
                return Ok(Told::Changed { other: change.txn, at: change.at, key: change.key });
            }
        }
    }
    metrics::counter!("telesto_regions_rows_told_total")
        .increment((given.rows.len() + given.values.len()) as u64);
    Ok(Told::Rows(given))
}

/// What was written of `reads` since they were read, as far as everything is applied here.
async fn changed(store: &Store, reads: Reads) -> Result<Option<Change>> {
    for ReadsSince { since, keys, ranges } in reads.by_since() {
        let request =
            ChangedRequest { shard: store.shard, keys, ranges, since, timeout: store.timeout };
        if let Some(change) = store.service.changed(request).await?.change {
            return Ok(Some(change));
        }
    }
    Ok(None)
}

impl Told {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Rows(given) => {
                out.put_u8(1);
                out.put_u64_le(given.at.0);
                put_varint(&mut out, given.incarnation);
                put_varint(&mut out, given.values.len() as u64);
                for value in &given.values {
                    out.put_u8(u8::from(value.is_some()));
                    put_string(&mut out, value.as_deref().unwrap_or_default());
                }
                put_varint(&mut out, given.rows.len() as u64);
                for (key, value) in &given.rows {
                    put_string(&mut out, key);
                    put_string(&mut out, value);
                }
                out.put_u8(u8::from(given.more));
            }
            Self::Defined(at) => {
                out.put_u8(2);
                out.put_u64_le(at.0);
            }
            Self::Changed { other, at, key } => {
                out.put_u8(3);
                out.put_u128_le(other.0);
                out.put_u64_le(at.0);
                put_string(&mut out, key);
            }
        }
        out.freeze()
    }

    pub fn decode(bytes: Bytes) -> std::result::Result<Self, Malformed> {
        let mut cursor = Cursor::new(bytes);
        let told = match cursor.u8()? {
            1 => {
                let mut given = RowsGiven {
                    at: Timestamp(cursor.u64()?),
                    incarnation: cursor.varint()?,
                    ..RowsGiven::default()
                };
                for _ in 0..cursor.count(2)? {
                    let there = cursor.u8()? == 1;
                    given.values.push(Some(cursor.string()?).filter(|_| there));
                }
                for _ in 0..cursor.count(2)? {
                    given.rows.push((cursor.string()?, cursor.string()?));
                }
                given.more = cursor.u8()? == 1;
                Self::Rows(given)
            }
            2 => Self::Defined(Timestamp(cursor.u64()?)),
            3 => Self::Changed {
                other: TxnId(u128::from_le_bytes(cursor.array16()?)),
                at: Timestamp(cursor.u64()?),
                key: cursor.string()?,
            },
            kind => {
                return Err(format!(
                    "an answer of kind {kind} to a question for rows is not known"
                ));
            }
        };
        cursor.finish()?;
        Ok(told)
    }
}
