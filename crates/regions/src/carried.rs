//! Answers the other nodes of this region, whose sessions reach other regions through the node that
//! carries the streams.
//!
//! # Invariants
//! Nothing is decided here: what is asked is done as for a session of this node.
//!
//! # On failure
//! [`Relayed::Refused`] with the reason. A node whose streams were ended, or started anew, does not
//! answer for those: it is asked again.
//!
//! # Limits
//! Who asks waits no longer than it says.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use bytes::Bytes;
use telesto_common::{Label, RegionId, Timestamp};
use telesto_txn::Database as _;
use telesto_txn::peers::Answers;
use telesto_txn::regions::RegionControl as _;

use crate::asked::Asked;
use crate::control::not_attached;
use crate::error::Error;
use crate::forward;
use crate::forwarded::Forwarded;
use crate::question::Question;
use crate::read_away;
use crate::regions::Regions;
use crate::relayed::{Relay, Relayed};
use crate::rows_away;
use crate::shown::Shown;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Carried(pub Weak<Regions>);

#[async_trait]
impl Answers for Carried {
    async fn answer(&self, question: Bytes) -> Option<Bytes> {
        let relay = Relay::decode(question).ok()?;
        let regions = self.0.upgrade()?;
        Some(answer(&regions, relay).await.encode())
    }
}

async fn answer(regions: &Regions, relay: Relay) -> Relayed {
    let shared = regions.shared();
    let refused = |error: &dyn std::fmt::Display| Relayed::Refused(error.to_string());
    let seen = |at: Timestamp| Label::update(shared.config.me, at);
    match relay {
        Relay::Carries => Relayed::Yes,
        Relay::Opens if shared.config.opened.load(Ordering::Acquire) => Relayed::Yes,
        Relay::Opens => Relayed::Refused("it waits for what the region may have lost".to_owned()),
        Relay::Commit { home, forwarded } => match Forwarded::decode(forwarded) {
            Ok(forwarded) => {
                let committed = forward::send(shared, home, forwarded).await;
                Relayed::of_commit(committed, shared.engine.applied().1)
            }
            Err(reason) => Relayed::Refused(reason),
        },
        Relay::Arrive { home, at, limit } => {
            match shared.take_up(home, at, regions.deadline(limit)).await {
                Ok(here) => Relayed::Here(here),
                Err(error) => refused(&error),
            }
        }
        Relay::Token { seen: at } => match regions.told_token(seen(at)).await {
            Ok(token) => Relayed::Text(token),
            Err(error) => refused(&error),
        },
        Relay::Migrate { seen: at, to } => match regions.migrate_to(seen(at), &to).await {
            Ok(token) => Relayed::Text(token),
            Err(reason) => Relayed::Refused(reason),
        },
        Relay::Attach { token, limit } => {
            match regions.attach(&token, regions.deadline(limit)).await {
                Ok(label) => Relayed::Here(label.timestamp),
                Err(error) => Relayed::of_attach(not_attached(&error)),
            }
        }
        Relay::Shown(what) => match what {
            Shown::Regions => regions.view().await.map(Relayed::Regions),
            Shown::Links => Ok(Relayed::Links(regions.links())),
            Shown::Conflicts => Ok(Relayed::Conflicts(regions.conflicts())),
        }
        .unwrap_or_else(|error| refused(&error)),
        Relay::Distances => Relayed::Far(read_away::distances(shared)),
        Relay::Rows { region, question } => {
            let answer = async {
                let question = Question::decode(question);
                let question = question.map_err(Error::malformed("a question for rows"))?;
                rows_away::ask(shared, region, &question).await
            };
            answer.await.map_or_else(|error| refused(&error), Relayed::Said)
        }
        Relay::Read { region, asked } => read(regions, region, asked).await,
    }
}

async fn read(regions: &Regions, region: RegionId, asked: Bytes) -> Relayed {
    let shared = regions.shared();
    let told = match Asked::decode(asked) {
        Ok(asked) => read_away::say(shared, region, &asked).await,
        Err(reason) => return Relayed::Refused(reason),
    };
    match told {
        Ok(told) => Relayed::Said(told.encode()),
        Err(error) => Relayed::Refused(error.to_string()),
    }
}

/// Lets the other nodes of the cluster ask, if there is one.
pub(crate) fn answer_nodes(regions: &Arc<Regions>) {
    if let Some(peers) = regions.shared().engine.peers() {
        peers.answer_with(Arc::new(Carried(Arc::downgrade(regions))));
    }
}
