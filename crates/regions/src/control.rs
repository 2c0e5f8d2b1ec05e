//! The replication as sessions of this process use it.
//!
//! # Invariants
//! Nothing is decided here: [`Regions`] does what is asked.
//!
//! # On failure
//! Errors are given as their texts; each says what to do.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use telesto_common::{Label, RegionId, Timestamp};
use telesto_txn::regions::{
    ConflictView, LinkView, NotAttached, RegionControl, RegionView, RegionsView, TreeView,
};
use telesto_txn::{
    AskRows, AwayRead, AwayRequest, Database as _, Distance, Elsewhere, Pieces, RowsGiven,
};

use crate::error::Error;
use crate::forward;
use crate::read_away;
use crate::regions::{PeerStatus, Regions};
use crate::rows_away;

/// Whether it is worth while to try again.
pub(crate) fn not_attached(error: &Error) -> NotAttached {
    let text = error.to_string();
    match error {
        Error::Token(_) | Error::UnknownRegion(_) => NotAttached::NoToken(text),
        Error::LostWith { .. } => NotAttached::Lost(text),
        _ => NotAttached::NotYet(text),
    }
}

impl Regions {
    /// [`Regions::token`] of a session that may have taken up what is not placed here.
    pub(crate) async fn told_token(&self, session: Label) -> crate::Result<String> {
        let shared = self.shared();
        let seen = match session.timestamp {
            Timestamp::ZERO => shared.engine.applied().1,
            seen => seen,
        };
        let place = shared.place_of(seen).await?;
        Ok(self.token(Label::update(shared.config.me, place)))
    }
}

#[async_trait]
impl RegionControl for Regions {
    async fn view(&self) -> telesto_txn::Result<RegionsView> {
        let status = self.status();
        let peer = |peer: PeerStatus| RegionView {
            id: peer.id,
            name: peer.name,
            address: peer.address,
            connected: peer.connected,
            filling: peer.filling,
            behind: peer.behind,
            sent: peer.sent.0,
            sent_bytes: peer.sent.1,
            applied: peer.applied,
            waiting: peer.waiting,
            passed: peer.passed,
            visible_after: peer.visible_after,
            trouble: peer.trouble,
        };
        Ok(RegionsView {
            me: status.me,
            name: status.name,
            plane: status.plane.into(),
            tree: TreeView {
                epoch: status.tree.epoch,
                state: status.tree.state.into(),
                by_label: status.tree.applied.0,
                by_past: status.tree.applied.1,
                trouble: status.tree.trouble,
            },
            peers: status.peers.into_iter().map(peer).collect(),
            conflicts: status.conflicts,
            trouble: status.trouble,
        })
    }

    async fn links(&self) -> telesto_txn::Result<Vec<LinkView>> {
        Ok(Self::links(self))
    }

    async fn conflicts(&self) -> telesto_txn::Result<Vec<ConflictView>> {
        Ok(Self::conflicts(self))
    }

    async fn token(&self, session: Label) -> Result<String, String> {
        self.told_token(session).await.map_err(|error| error.to_string())
    }

    async fn migrate(&self, session: Label, to: &str) -> Result<String, String> {
        self.migrate_to(session, to).await
    }

    async fn attach(&self, token: &str, limit: Duration) -> Result<Label, NotAttached> {
        let by = self.deadline(limit);
        Self::attach(self, token, by).await.map_err(|error| not_attached(&error))
    }

    async fn commit_at(
        &self,
        home: RegionId,
        request: AwayRequest,
    ) -> telesto_txn::Result<Elsewhere> {
        forward::commit_at(self.shared(), home, request).await
    }

    async fn rows_at(&self, home: RegionId, asked: AskRows) -> telesto_txn::Result<RowsGiven> {
        rows_away::rows_at(self.shared(), home, asked).await
    }

    async fn arrive(
        &self,
        home: RegionId,
        at: Timestamp,
        limit: Duration,
    ) -> Result<Label, String> {
        let by = self.deadline(limit);
        let here = self.shared().take_up(home, at, by).await.map_err(|error| error.to_string())?;
        Ok(Label::update(self.shared().config.me, here))
    }

    async fn distances(&self) -> Vec<Distance> {
        read_away::distances(self.shared())
    }

    async fn read_at(
        &self,
        region: RegionId,
        read: AwayRead,
    ) -> telesto_txn::Result<Box<dyn Pieces>> {
        let way = Arc::clone(self.shared());
        read_away::read_by(way, region, read).await
    }
}
