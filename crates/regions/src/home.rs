//! Commits what transactions of other regions have written of tables whose home is here.
//!
//! ```text
//! request ─► committed already? ─► what the asker had seen is here ─► same definitions, home ─► validated from P on, committed
//! ```
//! # Invariants
//! - What is committed here carries the past of its transaction: everything that its region had at
//!   the snapshot is in this log before it.
//! - Validation is that of a transaction of this region with a snapshot at P, the position of this
//!   log that the asker had applied. So P is of this log as it is now: of this incarnation, within
//!   what is kept, and told by a region that was found to stand in this log.
//! - What the asker could not read, since it does not have it, is read here, and validated from
//!   then on.
//! - The definitions are the asker's, at the commit: their stamp is among what must be unchanged.
//!
//! # On failure
//! [`Answer::Refused`]: nothing was done by this request. Of one that was sent before only a
//! commit, a conflict or a broken constraint is an answer.
//!
//! # Limits
//! The request's own: [`crate::forwarded`]. Definitions that are on their way are waited for,
//! [`DEFINITIONS`] at most.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::{Deadline, RegionId, Timestamp};
use telesto_shard::Read;
use telesto_txn::Database as _;
use telesto_txn::Outcome;
use telesto_txn::regions::{Keeper, Meaning};
use telesto_txn::service::{BeginReply, CommitReply, CommitRequest, CommitWrites, Freshness};

use crate::committing::Entered;
use crate::error::{Error, Result};
use crate::forwarded::{Answer, Forwarded};
use crate::shared::Shared;
use tokio::sync::watch;

/// How long definitions that the asker has are waited for.
const DEFINITIONS: Duration = Duration::from_secs(1);
/// Between two looks for them.
const LOOK: Duration = Duration::from_millis(10);

/// What is told to `from`, whose request had so many bytes.
pub(crate) async fn commit_for(
    shared: &Arc<Shared>,
    from: RegionId,
    mut request: Forwarded,
    bytes: usize,
) -> Answer {
    let txn = request.txn;
    loop {
        let told = match shared.committing.enter(txn, bytes, request.again) {
            Entered::Full => return Answer::Refused("it has too much to commit; retry".to_owned()),
            Entered::Alone(tell) => {
                let (on, told) = (Arc::clone(shared), tell.subscribe());
                // A task of its own: the asker may stop to wait for it, and asks again.
                let work = request.clone();
                shared.env.spawn("committing for another region", async move {
                    let answer = answer(&on, from, work).await;
                    tell.send_replace(Some(answer));
                    on.committing.left(bytes);
                });
                return wait(told).await.unwrap_or_else(ended);
            }
            Entered::Beside(told) => told,
        };
        match wait(told).await {
            Some(
                answer @ (Answer::Committed { .. }
                | Answer::Conflict { .. }
                | Answer::Unexpected { .. }),
            ) => return answer,
            // Its asker is told that nothing was written: then this copy of the request must not be
            // carried out.
            Some(answer @ (Answer::Refused(_) | Answer::Defined { .. })) if !request.again => {
                return answer;
            }
            Some(Answer::Refused(_) | Answer::Defined { .. }) => {}
            Some(Answer::Unknown(_)) | None => request.again = true,
        }
    }
}

async fn wait(mut told: watch::Receiver<Option<Answer>>) -> Option<Answer> {
    told.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone())
}

fn ended() -> Answer {
    Answer::Unknown("it stopped while it was committing".to_owned())
}

async fn answer(shared: &Shared, from: RegionId, request: Forwarded) -> Answer {
    let txn = request.txn;
    let answer = match prepare_and_commit(shared, from, request).await {
        Ok(answer) => answer,
        Err(Error::Engine(error)) => of_engine(error),
        Err(error) => Answer::Refused(error.to_string()),
    };
    match &answer {
        Answer::Committed { .. } => {
            if let Some(peer) = shared.peers.get(&from) {
                // It waits for it there, and what is committed there then for the label.
                peer.hurry.notify_one();
            }
            shared.trees.hurry();
            metrics::counter!("telesto_regions_committed_for_total", "peer" => from.to_string())
                .increment(1);
        }
        // With itself: an earlier request of it is in the log, and not applied yet.
        Answer::Conflict { other, .. } if *other == txn => {
            return Answer::Unknown("it is being committed".to_owned());
        }
        _ => {}
    }
    answer
}

fn of_engine(error: telesto_txn::Error) -> Answer {
    use telesto_txn::Error as Txn;
    match error {
        Txn::Conflict { other, at, key, .. } => Answer::Conflict { other, at, key },
        Txn::OutcomeUnknown { reason, .. } => Answer::Unknown(reason),
        error => Answer::Refused(error.to_string()),
    }
}

async fn prepare_and_commit(shared: &Shared, from: RegionId, request: Forwarded) -> Result<Answer> {
    let limit = Duration::from_micros(request.timeout_micros).min(shared.config.timeout);
    let by = shared.env.deadline(limit);
    if request.again
        && let Outcome::Committed(at) = shared.engine.outcome(request.txn).await?
    {
        return Ok(Answer::Committed { at, lsn: shared.engine.applied().0 });
    }
    check_stream(shared, from, &request)?;
    shared.take_up(from, request.snapshot, by).await?;
    let snapshot = loop {
        let snapshot = shared.store.begin(Freshness::Tail, None).await?;
        if stamp_at(shared, &snapshot).await?.as_ref() == Some(&request.stamp) {
            break snapshot;
        }
        shared.store.release(&snapshot).await;
        let at = snapshot.snapshot;
        let until = by.earlier(shared.env.deadline(DEFINITIONS));
        if !wait_for_definitions(shared, &request.stamp, until).await? {
            return Ok(Answer::Defined { at });
        }
    };
    let kept = shared.store.begin(Freshness::Applied, Some(request.earliest())).await;
    let committed = match &kept {
        Ok(_) => commit(shared, request, &snapshot, by).await,
        Err(error) => Err(error.clone()),
    };
    shared.store.release(&snapshot).await;
    if let Ok(kept) = kept {
        shared.store.release(&kept).await;
    }
    committed
}

/// Refuses what counts by another log than this one.
fn check_stream(shared: &Shared, from: RegionId, request: &Forwarded) -> Result<()> {
    // Streams are interrupted and go on; what counts is that this log is the one that the asker
    // knows.
    let stands = shared.peers.get(&from).is_some_and(|peer| peer.stands.load(Ordering::Relaxed));
    let now = shared.engine.applied().1;
    let whole = shared.taking_back.lock().is_empty();
    let same = request.incarnation == shared.incarnation();
    if !stands || !whole || !same || request.earliest() > now {
        return Err(Error::NotStreaming { region: from });
    }
    Ok(())
}

async fn stamp_at(shared: &Shared, snapshot: &BeginReply) -> Result<Option<Bytes>> {
    let Some(tables) = &shared.tables else { return Ok(None) };
    let read = shared.store.get(vec![tables.stamp()], snapshot.snapshot).await?.pop();
    Ok(read.and_then(Read::into_value))
}

/// Whether the definitions with this stamp come.
async fn wait_for_definitions(shared: &Shared, stamp: &Bytes, by: Deadline) -> Result<bool> {
    let Some(tables) = &shared.tables else { return Ok(false) };
    while !by.passed(shared.env.clock.monotonic()) {
        shared.env.clock.sleep(LOOK).await;
        if shared.store.row(tables.stamp(), None).await?.as_ref() == Some(stamp) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Validates and commits by the definitions at `snapshot`, which are the asker's.
async fn commit(
    shared: &Shared,
    request: Forwarded,
    snapshot: &BeginReply,
    by: Deadline,
) -> Result<Answer> {
    let Forwarded { again, txn, stamp, durability, mut reads, writes, expected, .. } = request;
    let at = snapshot.snapshot;
    let meaning = match &shared.tables {
        Some(tables) => {
            reads.points.push((tables.stamp(), at));
            tables.at(at, Some(&stamp)).await.map_err(Error::Definitions)?
        }
        None => None,
    };
    let Some(meaning) = meaning else {
        return Err(Error::NotHome { reason: "it has no definitions yet".to_owned() });
    };
    for key in check_home(shared, &meaning, &writes, at).await? {
        reads.points.push((key, at));
    }
    if let Some((key, there)) = unexpected(shared, &meaning, &expected, at).await? {
        // An earlier request of the same transaction may have put it there.
        return Ok(match again.then_some(shared.engine.outcome(txn).await?) {
            Some(Outcome::Committed(at)) => {
                Answer::Committed { at, lsn: shared.engine.applied().0 }
            }
            _ => Answer::Unexpected { key, there },
        });
    }
    reads.points.extend(expected.into_iter().map(|(key, _)| (key, at)));
    let request = CommitRequest {
        shard: shared.store.shard,
        txn,
        reads,
        writes: CommitWrites::Inline(writes),
        messages: Vec::new(),
        after: Timestamp::ZERO,
        origin: None,
        durability,
        timeout: by.remaining(shared.env.clock.monotonic()),
    };
    Ok(match shared.engine.commit_once(request, again).await? {
        CommitReply::Committed { timestamp, lsn, .. } => Answer::Committed { at: timestamp, lsn },
        // Only of external write sets.
        CommitReply::Recheck(change) => {
            Answer::Conflict { other: change.txn, at: change.at, key: change.key }
        }
    })
}

/// The first of `expected` that is not so at `at`. That they stay so is for who commits to see to.
async fn unexpected(
    shared: &Shared,
    meaning: &Arc<dyn Meaning>,
    expected: &[(Bytes, bool)],
    at: Timestamp,
) -> Result<Option<(Bytes, bool)>> {
    let keeps = |key: &[u8]| matches!(meaning.keeper(key), Keeper::Region { home, .. } if home == shared.config.me);
    if !expected.iter().all(|(key, _)| keeps(key)) {
        let reason = "what it is to look for is written in another region".to_owned();
        return Err(Error::NotHome { reason });
    }
    let keys = expected.iter().map(|(key, _)| key.clone()).collect();
    let reads = shared.store.get(keys, at).await?;
    let found = reads.into_iter().map(|read| read.into_value().is_some());
    let mut wrong = expected.iter().zip(found).filter(|((_, there), found)| there != found);
    Ok(wrong.next().map(|(asked, _)| asked.clone()))
}

/// Refuses writes of what this region does not keep, or not yet. The rows that say it does.
async fn check_home(
    shared: &Shared,
    meaning: &Arc<dyn Meaning>,
    writes: &[telesto_txn::service::CheckedWrite],
    at: Timestamp,
) -> Result<Vec<Bytes>> {
    check_keeps(shared, meaning, writes.iter().map(|write| &write.write.key), at).await
}

/// Refuses keys that this region does not keep, or not yet. The rows that say it does.
pub(crate) async fn check_keeps(
    shared: &Shared,
    meaning: &Arc<dyn Meaning>,
    keys: impl Iterator<Item = &Bytes>,
    at: Timestamp,
) -> Result<Vec<Bytes>> {
    let mut rows = std::collections::BTreeMap::new();
    for key in keys {
        match meaning.keeper(key) {
            Keeper::Region { home, moved } if home == shared.config.me => {
                rows.extend(moved.into_iter().map(|row| (row, key.clone())));
            }
            Keeper::Region { home, .. } => {
                let reason = format!("a table is written in region {home}");
                return Err(Error::NotHome { reason });
            }
            Keeper::Other => {
                let reason = "a key belongs to no table that has one home".to_owned();
                return Err(Error::NotHome { reason });
            }
        }
    }
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<Bytes> = rows.keys().cloned().collect();
    let reads = shared.store.get(keys.clone(), at).await?;
    for (written, read) in rows.values().zip(reads) {
        if !meaning.has_stopped(written, read.into_value().as_ref()) {
            let reason = "a region that wrote a table before has not said yet that it has stopped";
            return Err(Error::NotHome { reason: reason.to_owned() });
        }
    }
    Ok(keys)
}
