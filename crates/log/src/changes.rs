//! Who owned the log when, and why that changed: told from the chain, whose versions stay for ever.
//!
//! ```text
//! chain/1 … chain/n          whose active loglet, since when          (the truth)
//! why/<loglet>               the winner's reason, put once            (told beside it, if whoever won could put it)
//! ```
//! # Invariants
//! - Reads decide nothing, and no reason does: a loglet without one is as good as any. What it says
//!   of a log in the bucket, for how long it is to stay there, is a wish: it is the chain that says
//!   where the log is.
//! - A reason belongs to a loglet's id, which only the winner of a chain version has made active.
//!
//! # On failure
//! A reason that could not be put is missing.
//!
//! # Limits
//! The newest [`LOOKED`] versions of the chain: trims are versions too. A look costs a GET for each
//! that this process has not read before, and one for each reason.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use telesto_bucket::Cause;
use telesto_common::{Deadline, Incarnation, Lsn, NodeId};

use crate::chain::{Chain, LogKind, Medium};
use crate::error::Result;
use crate::keys;
use crate::log::{Inner, VirtualLog};
use crate::store::{Put, Store};

/// Versions looked at.
const LOOKED: u64 = 256;
/// Requests under way at a time.
const AT_ONCE: usize = 16;
/// Bytes of a reason.
const LONGEST: usize = 2000;
/// Bound on putting one.
const PATIENCE: Duration = Duration::from_secs(10);

/// A loglet that became the active one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The chain version that made it active.
    pub version: u64,
    /// When the bucket says that was written: microseconds since 1970.
    pub at_micros: u64,
    /// The loglet.
    pub loglet: u64,
    /// Its first position.
    pub start: Lsn,
    /// Where it is kept.
    pub medium: LogKind,
    /// Its sequencer's node, life and host; `None`: it is in the bucket, where all append.
    pub owner: Option<(NodeId, Incarnation, String)>,
    /// Why, in words of whoever made it, or as the chain tells.
    pub reason: Option<String>,
    /// How long the change took, milliseconds, where that was told.
    pub took_millis: Option<u64>,
}

/// When a log that is in the bucket goes on on the nodes' disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeavesBucket {
    /// Whenever it may: nobody has said anything.
    Freely,
    /// When so many nodes can keep it: as many as kept it before.
    With(usize),
    /// On request only: it was put there on request.
    OnRequest,
}

/// The stored form of a reason.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Why {
    why: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    took_ms: Option<u64>,
    /// The log stays in the bucket until it is asked to leave.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    stays: bool,
    /// How many log servers it had before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    copies: Option<usize>,
}

impl Why {
    /// `why`, cut to what is kept of it.
    fn because(why: &str) -> Self {
        let mut end = why.len().min(LONGEST);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        Self { why: why[..end].to_owned(), ..Self::default() }
    }
}

/// What was read of versions: they never change.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<BTreeMap<u64, Change>>);

impl Change {
    fn of(chain: &Chain, at_micros: u64) -> Self {
        let active = chain.active();
        let owner = match &active.medium {
            Medium::Quorum { owner, .. } => {
                Some((owner.node, owner.incarnation, owner.host.clone()))
            }
            Medium::Bucket => None,
        };
        Self {
            version: chain.version,
            at_micros,
            loglet: active.id,
            start: active.start,
            medium: active.medium.kind(),
            owner,
            reason: None,
            took_millis: None,
        }
    }

    /// What the chain alone tells of why this one follows `before`.
    fn told_by(&self, before: Option<&Self>) -> Option<String> {
        let Some(before) = before else {
            return (self.version == 1).then(|| "the log was created".to_owned());
        };
        let (own, others) = match (&self.owner, &before.owner) {
            (Some(own), Some(others)) => (own, others),
            (Some(_), None) => return Some("switched from the bucket".to_owned()),
            (None, Some(_)) => return Some("switched to the bucket".to_owned()),
            (None, None) => return None,
        };
        if own.0 != others.0 {
            return None;
        }
        Some(match own.1 == others.1 {
            true => "its owner went on in a new loglet".to_owned(),
            false => "its owner started anew".to_owned(),
        })
    }
}

impl VirtualLog {
    /// Which loglets became active lately, oldest first.
    ///
    /// # Errors
    /// Those of the bucket; a damaged version.
    pub async fn changes(&self, by: Deadline) -> Result<Vec<Change>> {
        self.inner.changes(by).await
    }

    /// Leaves for everybody why the loglet that is active now, which this process has made so,
    /// became active. Does not wait for it.
    pub fn explain(&self, why: &str, took: Option<Duration>) {
        let took_ms = took.map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        let why = Why { took_ms, ..Why::because(why) };
        // Of the bucket alone: a log that is closed meanwhile is not kept open for it. By then
        // another loglet may be the active one.
        let store = self.inner.store.clone();
        let key = keys::why(store.shard, self.inner.chain().active().id);
        let by = store.env.deadline(PATIENCE);
        self.inner.store.env.spawn("leaving a reason", async move {
            if let Err(error) = put_note(&store, &key, &why, by).await {
                tracing::warn!("why the log changed its owner is not in the bucket: {error}");
            }
        });
    }

    /// Leaves why the bucket's loglet that is active now is, and when the log may leave the bucket.
    /// What was left for this loglet before stays.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: it is not known whether that was left.
    ///
    /// [`Error::Unavailable`]: crate::Error::Unavailable
    pub async fn stays_in_bucket(
        &self,
        why: &str,
        leaves: LeavesBucket,
        by: Deadline,
    ) -> Result<()> {
        let (stays, copies) = match leaves {
            LeavesBucket::Freely => (false, None),
            LeavesBucket::With(copies) => (false, Some(copies)),
            LeavesBucket::OnRequest => (true, None),
        };
        let why = Why { stays, copies, ..Why::because(why) };
        let loglet = self.inner.chain().active().id;
        if stays {
            // Beside what may be there already: a request counts whatever the log was put there
            // for.
            let key = keys::stays(self.inner.store.shard, loglet);
            put_note(&self.inner.store, &key, &why, by).await?;
        }
        let key = keys::why(self.inner.store.shard, loglet);
        put_note(&self.inner.store, &key, &why, by).await
    }

    /// When the log, which is in the bucket, may leave it: what was left beside its active loglet.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    ///
    /// [`Error::Unavailable`]: crate::Error::Unavailable
    pub async fn leaves_bucket(&self, by: Deadline) -> Result<LeavesBucket> {
        let inner = &self.inner;
        // Whoever has just put it there leaves the note before it lets go.
        let waiting = "waiting for a change of the log";
        let _changing = inner.store.env.within(by, waiting, inner.reconfigure.lock()).await?;
        let loglet = inner.chain().active().id;
        let key = keys::stays(inner.store.shard, loglet);
        if inner.store.get(Cause::Admin, &key, by).await?.is_some() {
            return Ok(LeavesBucket::OnRequest);
        }
        Ok(match inner.why(loglet, by).await? {
            Some(Why { stays: true, .. }) => LeavesBucket::OnRequest,
            // What versions before this one left of a request.
            Some(Why { why, .. }) if why == "switched to bucket on request" => {
                LeavesBucket::OnRequest
            }
            Some(Why { copies: Some(copies), .. }) => LeavesBucket::With(copies),
            Some(_) | None => LeavesBucket::Freely,
        })
    }
}

impl Inner {
    async fn changes(&self, by: Deadline) -> Result<Vec<Change>> {
        let newest = self.newest_chain(Cause::Admin, by).await?.version;
        let oldest = newest.saturating_sub(LOOKED).max(1);
        let known: BTreeMap<u64, Change> = self.changes.0.lock().clone();
        let unread = (oldest..=newest).filter(|version| !known.contains_key(version));
        let read: Vec<Change> = stream::iter(unread)
            .map(|version| async move {
                let key = keys::chain(self.store.shard, version);
                let Some(object) = self.store.get(Cause::Admin, &key, by).await? else {
                    return Ok(None);
                };
                let chain = Chain::decode(self.store.shard, version, &object.body)?;
                Ok::<_, crate::Error>(Some(Change::of(&chain, object.modified_micros)))
            })
            .buffered(AT_ONCE)
            .try_filter_map(|found| async move { Ok(found) })
            .try_collect()
            .await?;
        let all = {
            let mut known = self.changes.0.lock();
            known.extend(read.into_iter().map(|own| (own.version, own)));
            known.retain(|version, _| *version >= oldest);
            known.clone()
        };
        let mut changed: Vec<Change> = Vec::new();
        let mut before: Option<Change> = None;
        for own in all.into_values() {
            let began = match &before {
                Some(before) => before.loglet != own.loglet,
                // Whether the first one of them changed anything is not known.
                None => own.version == 1,
            };
            if began {
                let reason = own.told_by(before.as_ref());
                changed.push(Change { reason, ..own.clone() });
            }
            before = Some(own);
        }
        stream::iter(changed)
            .map(|change| self.with_reason(change, by))
            .buffered(AT_ONCE)
            .try_collect()
            .await
    }

    async fn with_reason(&self, mut change: Change, by: Deadline) -> Result<Change> {
        if let Some(why) = self.why(change.loglet, by).await? {
            (change.reason, change.took_millis) = (Some(why.why), why.took_ms);
        }
        Ok(change)
    }

    async fn why(&self, loglet: u64, by: Deadline) -> Result<Option<Why>> {
        let key = keys::why(self.store.shard, loglet);
        let object = self.store.get(Cause::Admin, &key, by).await?;
        // Of a newer version, perhaps: what cannot be read is not told.
        Ok(object.and_then(|object| serde_json::from_slice::<Why>(&object.body).ok()))
    }
}

/// Leaves a note at `key`, if there is none.
async fn put_note(store: &Store, key: &str, why: &Why, by: Deadline) -> Result<()> {
    let Ok(body) = serde_json::to_vec(why) else { return Ok(()) };
    match store.put(Cause::Registry, key, Bytes::from(body), by).await? {
        Put::Created | Put::Exists => Ok(()),
        Put::Unknown(reason) => Err(crate::Error::Unavailable { shard: store.shard, reason }),
    }
}
