//! Which node of a region's cluster carries its streams, where several could.
//!
//! ```text
//! node that could carry ── does anybody? ─ yes ─► stands by, and asks again
//!                                        └ no ──► row "I carry" (if it still says what it said) ─► carries
//! node that carries ── row names another one ─► stands by
//! ```
//! # Invariants
//! - The row is changed by a transaction that has read it: of two nodes that want to carry at once,
//!   one is told that the other was first.
//! - Two that carry for a while, because one has not read the row yet, do no harm: what is sent is
//!   a function of the log, and what is applied is validated against the row that says how far it
//!   was applied.
//!
//! # On failure
//! The engine's errors: without a majority of the log nobody begins to carry.
//!
//! # Limits
//! Whether a node carries is asked over the cluster's connections. A node that answers there and is
//! not reached by the other regions goes on carrying.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use telesto_common::cursor::Cursor;
use telesto_common::{Env, Incarnation, NodeId, ShardId, Timestamp};
use telesto_geo::placement::life_row;
use telesto_shard::Read;
use telesto_txn::service::{CommitWrites, Freshness};
use telesto_txn::{Database as _, Engine, Reads};

use crate::error::{Error, Result};
use crate::life::doubt_write;
use crate::relayed::{Relay, Relayed};
use crate::rows;
use crate::store::{Store, checked};

/// How long a node that is asked whether it carries may take to say so.
const ASKED: Duration = Duration::from_secs(1);
/// Bound on each wait for the engine.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A process that carries the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The node.
    pub node: NodeId,
    /// Its process.
    pub life: Incarnation,
}

impl Claim {
    fn encode(self) -> Bytes {
        let mut out = Vec::with_capacity(24);
        out.extend_from_slice(&self.node.0.to_le_bytes());
        out.extend_from_slice(&self.life.0.to_le_bytes());
        out.into()
    }

    fn decode(bytes: Bytes) -> Result<Self> {
        let mut cursor = Cursor::new(bytes);
        let node = cursor.u128();
        let read =
            node.and_then(|node| Ok(Self { node: NodeId(node), life: Incarnation(cursor.u64()?) }));
        read.map_err(Error::malformed("the row that names the node with the streams"))
    }
}

fn store(env: &Env, engine: &Arc<Engine>) -> Store {
    Store {
        env: env.clone(),
        service: engine.service(),
        shard: ShardId(0),
        me: engine.region(),
        timeout: TIMEOUT,
    }
}

/// Lets columns that merge count apart, since clients are to write before anybody has heard of the
/// other regions. Whoever carries the streams next, and hears of all of them, ends that.
///
/// # Errors
/// The engine's.
pub async fn count_apart(env: &Env, engine: &Arc<Engine>) -> Result<()> {
    let store = store(env, engine);
    if store.row(life_row(), None).await?.is_some() {
        return Ok(());
    }
    let life = env.random.next_u64() | 1;
    tracing::warn!(
        life,
        "nobody carries the streams of this region: columns that merge are counted apart until somebody does"
    );
    let life = Bytes::copy_from_slice(&life.to_le_bytes());
    store.put(vec![checked(life_row(), Some(life), Timestamp::MAX), doubt_write(env, false)]).await
}

/// See the module's text.
#[derive(Debug)]
pub struct Claims {
    engine: Arc<Engine>,
    store: Store,
    me: Claim,
}

impl Claims {
    /// Of a node of `engine`'s region, which is `me`.
    #[must_use]
    pub fn new(env: &Env, engine: &Arc<Engine>, me: Claim) -> Self {
        Self { engine: Arc::clone(engine), store: store(env, engine), me }
    }

    /// Whom the row names, as far as this node has applied the log.
    ///
    /// # Errors
    /// The engine's; [`Error::Malformed`].
    pub async fn named(&self) -> Result<Option<Claim>> {
        let snapshot = self.store.begin(Freshness::Applied, None).await?;
        let read = self.store.get(vec![rows::claim()], snapshot.snapshot).await;
        self.store.release(&snapshot).await;
        read?.pop().and_then(Read::into_value).map(Claim::decode).transpose()
    }

    /// Whether the row names this process.
    ///
    /// # Errors
    /// As [`Claims::named`].
    pub async fn is_mine(&self) -> Result<bool> {
        Ok(self.named().await? == Some(self.me))
    }

    /// Another node of the cluster that carries the streams now: `first` is asked first.
    pub async fn carrier(&self, first: Option<NodeId>) -> Option<NodeId> {
        let peers = self.engine.peers()?;
        let yes = |answer: Bytes| Relayed::decode(answer) == Ok(Relayed::Yes);
        if let Some(node) = first.filter(|node| *node != self.me.node)
            && let Ok(answer) = peers.ask_one(node, Relay::Carries.encode(), ASKED).await
            && yes(answer)
        {
            return Some(node);
        }
        let answers = peers.ask(Relay::Carries.encode(), ASKED).await;
        answers.into_iter().find_map(|(node, answer)| yes(answer).then_some(node))
    }

    /// Whether `node`, which carries, lets clients write. One that does not know the question is of
    /// an older version, and does not say.
    pub async fn opens(&self, node: NodeId) -> bool {
        let Some(peers) = self.engine.peers() else { return true };
        let said = peers.ask_one(node, Relay::Opens.encode(), ASKED).await;
        !said.is_ok_and(|said| matches!(Relayed::decode(said), Ok(Relayed::Refused(_))))
    }

    /// Shows in the metrics whether this process carries (`telesto_regions_carries`).
    pub fn show(&self, carries: bool) {
        metrics::gauge!("telesto_regions_carries").set(if carries { 1.0 } else { 0.0 });
    }

    /// Has the row name this process, if it still names `before`; whether it does now.
    ///
    /// # Errors
    /// The engine's; [`Error::Malformed`].
    pub async fn take(&self, before: Option<Claim>) -> Result<bool> {
        let snapshot = self.store.begin(Freshness::Tail, None).await?;
        let at = snapshot.snapshot;
        let read = self.store.get(vec![rows::claim()], at).await;
        self.store.release(&snapshot).await;
        let named = read?.pop().and_then(Read::into_value).map(Claim::decode).transpose()?;
        if named == Some(self.me) {
            return Ok(true);
        }
        if named != before {
            return Ok(false);
        }
        let writes = CommitWrites::Inline(vec![checked(rows::claim(), Some(self.me.encode()), at)]);
        match self.store.commit(writes, Reads::default(), at).await {
            Ok(_) => Ok(true),
            Err(Error::Engine(telesto_txn::Error::Conflict { .. })) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_is_read_as_it_was_written_and_not_when_it_is_cut_off() {
        let claim = Claim { node: NodeId(7 << 70), life: Incarnation(9) };
        let bytes = claim.encode();
        assert_eq!(Claim::decode(bytes.clone()).expect("reads"), claim);
        assert!(Claim::decode(bytes.slice(..20)).is_err());
    }
}
