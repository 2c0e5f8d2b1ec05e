//! Asks other regions to commit what transactions of this one have written of their tables.
//!
//! ```text
//!  this region                                                  home
//!  snapshot S ─ progress row at S ─► P, of the home's log
//!  request: P, reads, writes, stamp, S ───────────────────────► waits until everything of this region up to S is there
//!                                                               validates from P on, commits at t
//!  waits until the home's stream has passed t ◄──── t ───────── and its stream
//! ```
//! # Invariants
//! - P is what this region had applied of the home's log *at the snapshot*: it is read there, from
//!   the row that is committed with what it counts.
//! - A request that may have been carried out is sent again only as such, and then nothing but a
//!   commit, a conflict or a broken constraint ends it.
//! - After a conflict what was in the way is waited for here, so that the next try sees it.
//!
//! # On failure
//! [`telesto_txn::Error::Elsewhere`] when certainly nothing was committed: at once when the home
//! refuses, after [`UNREACHABLE`] when it cannot be reached. [`telesto_txn::Error::OutcomeUnknown`]
//! when a lost answer could not be had again until the deadline.
//!
//! # Limits
//! [`crate::forwarded::MAX_BYTES`]. What is committed is waited for [`ARRIVAL`] long.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::{Deadline, RegionId, Timestamp, TxnId};
use telesto_net::Error as NetError;
use telesto_shard::Read;
use telesto_txn::service::CheckedWrite;
use telesto_txn::{AwayRequest, Elsewhere, Error as Txn, Reads};

use crate::error::{Error, Result};
use crate::forwarded::{Answer, Forwarded, MAX_BYTES};
use crate::inbox;
use crate::rows;
use crate::shared::{SERVICE, Shared};
use crate::store::Store;
use crate::wire::{Header, Reply, Request};

/// How long a home that cannot be reached is tried for.
const UNREACHABLE: Duration = Duration::from_secs(5);
/// How long a commit, or what was in its way, is waited for here.
pub(crate) const ARRIVAL: Duration = Duration::from_secs(5);
/// The longest one request is waited for before it is sent again.
const ASKED: Duration = Duration::from_secs(10);
/// Between two requests, at first and at most.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// No answer that ends it.
struct Lost {
    perhaps_done: bool,
    reason: String,
}

/// See the module's text.
pub(crate) async fn commit_at(
    shared: &Shared,
    home: RegionId,
    request: AwayRequest,
) -> telesto_txn::Result<Elsewhere> {
    let by = shared.env.deadline(request.timeout);
    let stamp = shared.tables.as_ref().map(|tables| tables.stamp());
    let translated = translate(&shared.store, stamp, home, request).await;
    let mut forwarded = translated.map_err(|error| refused(shared, home, &error.to_string()))?;
    forwarded.timeout_micros = micros(by.remaining(shared.env.clock.monotonic()));
    send(shared, home, forwarded).await
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Has `home` commit a transaction that is translated, within the time that it says.
pub(crate) async fn send(
    shared: &Shared,
    home: RegionId,
    mut forwarded: Forwarded,
) -> telesto_txn::Result<Elsewhere> {
    let place = shared.place_of(forwarded.snapshot).await;
    forwarded.snapshot = place.map_err(|error| match forwarded.again {
        // It may have been carried out when it was sent first.
        true => unknown(shared, home, forwarded.txn, &error.to_string()),
        false => refused(shared, home, &error.to_string()),
    })?;
    let started = shared.env.clock.monotonic();
    let committed = ask_until_known(shared, home, forwarded).await;
    let outcome = match &committed {
        Ok(_) => "committed",
        Err(Txn::Conflict { .. }) => "conflict",
        Err(Txn::Unexpected { .. }) => "unexpected",
        Err(Txn::OutcomeUnknown { .. }) => "unknown",
        Err(_) => "refused",
    };
    let took = shared.env.clock.monotonic().saturating_sub(started);
    metrics::counter!("telesto_regions_forwarded_total", "home" => home.to_string(), "outcome" => outcome)
        .increment(1);
    metrics::histogram!("telesto_regions_forwarded_seconds", "home" => home.to_string())
        .record(took.as_secs_f64());
    committed
}

async fn ask_until_known(
    shared: &Shared,
    home: RegionId,
    mut forwarded: Forwarded,
) -> telesto_txn::Result<Elsewhere> {
    let Some(peer) = shared.peers.get(&home) else {
        return Err(refused(shared, home, &Error::UnknownRegion(home).to_string()));
    };
    let by = shared.env.deadline(Duration::from_micros(forwarded.timeout_micros));
    let reach_by = by.earlier(shared.env.deadline(UNREACHABLE));
    let txn = forwarded.txn;
    // What the transaction has seen of this region is to be there when the request is.
    peer.hurry.notify_one();
    shared.trees.hurry();
    let mut pause = PAUSE;
    loop {
        let again = forwarded.again;
        let lost = match attempt(shared, home, &mut forwarded, by).await {
            Ok(Answer::Committed { at, lsn }) => {
                let until = shared.env.deadline(ARRIVAL);
                let arrived = shared.take_up(home, at, until).await.is_ok();
                return Ok(Elsewhere { home, at, lsn, arrived });
            }
            Ok(Answer::Conflict { other, at, key }) => {
                return Err(conflict(shared, home, txn, other, at, key).await);
            }
            Ok(Answer::Unexpected { key, there }) => return Err(Txn::Unexpected { key, there }),
            Ok(Answer::Defined { at }) if !again => {
                let stamp = shared.tables.as_ref().map(|tables| tables.stamp());
                let key = stamp.unwrap_or_default();
                return Err(conflict(shared, home, txn, TxnId(0), at, key).await);
            }
            Ok(Answer::Refused(reason)) if !again => return Err(refused(shared, home, &reason)),
            Ok(Answer::Defined { .. }) => {
                Lost { perhaps_done: false, reason: "it has other definitions".to_owned() }
            }
            Ok(Answer::Refused(reason)) => Lost { perhaps_done: false, reason },
            Ok(Answer::Unknown(reason)) => Lost { perhaps_done: true, reason },
            Err(lost) => lost,
        };
        forwarded.again |= lost.perhaps_done;
        let until = if forwarded.again { by } else { reach_by };
        if until.passed(shared.env.clock.monotonic() + pause) {
            return Err(match forwarded.again {
                true => unknown(shared, home, txn, &lost.reason),
                false => refused(shared, home, &lost.reason),
            });
        }
        shared.env.clock.sleep(pause + shared.env.jitter(pause / 2)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn attempt(
    shared: &Shared,
    home: RegionId,
    forwarded: &mut Forwarded,
    by: Deadline,
) -> std::result::Result<Answer, Lost> {
    let not_done = |reason: String| Lost { perhaps_done: false, reason };
    let Some(client) = shared.clients.get(&home) else {
        return Err(not_done(Error::UnknownRegion(home).to_string()));
    };
    let left = by.remaining(shared.env.clock.monotonic());
    forwarded.timeout_micros = micros(left);
    let body = forwarded.encode();
    if body.len() > MAX_BYTES {
        return Ok(Answer::Refused(format!(
            "what it read and wrote is {} bytes, more than {MAX_BYTES}; read and write less at once",
            body.len()
        )));
    }
    let header = Header { deployment: shared.config.deployment, from: shared.config.me, to: home };
    let request = Request::Forward(body).encode(header);
    let until = by.earlier(shared.env.deadline(ASKED));
    let reply = client.call(SERVICE, request, until).await.map_err(|error| Lost {
        perhaps_done: !matches!(
            error,
            NetError::Unreachable { .. }
                | NetError::TooLarge { .. }
                | NetError::NotServed { .. }
                | NetError::Refused { .. }
        ),
        reason: error.to_string(),
    })?;
    // What cannot be read may say that it is done.
    let unreadable = |reason| Lost { perhaps_done: true, reason };
    match Reply::decode(reply).map_err(unreadable)? {
        Reply::Answer(answer) => Answer::decode(answer).map_err(unreadable),
        Reply::Refused(reason) => Ok(Answer::Refused(reason)),
        _ => Err(unreadable("another region's answer is none".to_owned())),
    }
}

/// The request by the home's log.
pub(crate) async fn translate(
    store: &Store,
    stamp: Option<Bytes>,
    home: RegionId,
    request: AwayRequest,
) -> Result<Forwarded> {
    let mut places: BTreeMap<Timestamp, (Timestamp, u64)> = BTreeMap::new();
    let AwayRequest {
        txn,
        snapshot,
        defined_at,
        mut reads,
        mut writes,
        expected,
        there,
        durability,
        timeout: _,
    } = request;
    let points = reads.points.iter().map(|(_, since)| *since);
    let ranges = reads.ranges.iter().map(|read| read.since);
    let since: Vec<_> = points.chain(ranges).chain(writes.iter().map(|w| w.since)).collect();
    for since in since {
        if let std::collections::btree_map::Entry::Vacant(place) = places.entry(since) {
            place.insert(place_at(store, home, since).await?);
        }
    }
    let incarnation = places.values().map(|(_, incarnation)| *incarnation).max();
    let incarnation = incarnation.unwrap_or_default();
    if places.values().any(|(_, other)| *other != incarnation) {
        return Err(Error::NotStreaming { region: home });
    }
    let by_home = |since: &mut Timestamp| {
        *since = places.get(since).map_or(Timestamp::ZERO, |(there, _)| *there);
    };
    reads.points.iter_mut().for_each(|(_, since)| by_home(since));
    reads.ranges.iter_mut().for_each(|read| by_home(&mut read.since));
    writes.iter_mut().for_each(|write| by_home(&mut write.since));
    if let Some((read, of)) = there {
        if of != incarnation {
            return Err(Error::NotStreaming { region: home });
        }
        since_read(&mut writes, &read);
        reads.points.extend(read.points);
        reads.ranges.extend(read.ranges);
    }
    let stamp = match stamp {
        Some(stamp) => value_at(store, stamp, defined_at).await?.unwrap_or_default(),
        None => Bytes::new(),
    };
    Ok(Forwarded {
        again: false,
        txn,
        timeout_micros: 0,
        snapshot,
        incarnation,
        stamp,
        durability,
        reads,
        writes,
        expected,
    })
}

/// Writes of rows that were read in the home are of what was there then.
fn since_read(writes: &mut [CheckedWrite], read: &Reads) {
    let points: BTreeMap<&Bytes, Timestamp> =
        read.points.iter().map(|(key, since)| (key, *since)).collect();
    for CheckedWrite { write, since } in writes {
        let ranges = read.ranges.iter().filter(|range| range.range.contains(&write.key));
        let ranges = ranges.map(|range| range.since);
        let read = ranges.chain(points.get(&write.key).copied()).min();
        *since = read.unwrap_or(*since);
    }
}

/// Up to where the home's log was here at a snapshot, and in which of its incarnations.
async fn place_at(store: &Store, home: RegionId, at: Timestamp) -> Result<(Timestamp, u64)> {
    let stored = value_at(store, rows::inbox(), at).await?;
    let stood = stored.map(|stored| inbox::stood(stored, home)).transpose();
    let stood = stood.map_err(Error::malformed("progress"))?.flatten();
    stood.ok_or(Error::NotStreaming { region: home })
}

/// A snapshot's value, which the transaction's own lease keeps.
async fn value_at(store: &Store, key: Bytes, at: Timestamp) -> Result<Option<Bytes>> {
    Ok(store.get(vec![key], at).await?.pop().and_then(Read::into_value))
}

fn refused(shared: &Shared, home: RegionId, reason: &str) -> Txn {
    Txn::Elsewhere(format!(
        "region {}, where these tables are written, did not commit the transaction ({reason}); nothing was written: run it again, or see SELECT * FROM telesto_regions",
        shared.name_of(home)
    ))
}

fn unknown(shared: &Shared, home: RegionId, txn: TxnId, reason: &str) -> Txn {
    let reason = format!(
        "region {} was asked and did not answer: {reason}; that region knows",
        shared.name_of(home)
    );
    Txn::OutcomeUnknown { txn, reason }
}

/// The conflict, when what was in the way is here: the next try is to see it.
pub(crate) async fn conflict(
    shared: &Shared,
    home: RegionId,
    txn: TxnId,
    other: TxnId,
    at: Timestamp,
    key: Bytes,
) -> Txn {
    if let Err(error) = catch_up(shared, home, at).await {
        tracing::debug!(%error, "what was in the way of a forwarded transaction is not here yet");
    }
    Txn::Conflict { txn, other, at, key }
}

async fn catch_up(shared: &Shared, home: RegionId, at: Timestamp) -> Result<()> {
    let by = shared.env.deadline(ARRIVAL);
    shared.take_up(home, at, by).await?;
    let stored = shared.store.row(rows::inbox(), None).await?;
    let stood = stored.map(|stored| inbox::stood(stored, home)).transpose();
    let stood = stood.map_err(Error::malformed("progress"))?.flatten();
    if stood.is_none_or(|(passed, _)| passed < at) {
        // The position has moved on without a transaction, and was not noted.
        let noted = shared.apply_taken(Vec::new(), crate::shared::Then::Nothing);
        let noted = shared.env.within(by, "noting how far a region has come", noted).await;
        noted.map_err(|error| Error::Unnoted(error.to_string()))??;
    }
    Ok(())
}
